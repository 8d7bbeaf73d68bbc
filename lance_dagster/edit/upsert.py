"""Upsert rows by key: update the rows of a table whose key occurs in the source rows, and insert the other source rows.

A key is the value of one column or of several columns together. A key that contains a null equals no other key, as in
SQL and in pylance. NaN equals NaN, whatever its sign and payload; 0.0 and -0.0 differ (values are compared bitwise).

The source rows are held in memory. Of the table, the key columns are scanned, and other columns are read only for
updated rows: columns that the source lacks, and columns that a condition compares. The upsert is one commit.

The commit claims the inserted keys. When two writers insert the same key concurrently, the second one conflicts, reads
the new head and updates the row of the first. A merge of two branches that both inserted a key is a conflict.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import (
    Addresses,
    Positions,
    batch_size,
    blob_columns,
    check_schema,
    conform,
    evaluate_condition,
    offsets_by_fragment,
    scan_addressed,
    take,
    take_rows,
)
from lance_dagster.datafiles.writing import StagedFiles, write_files
from lance_dagster.edit.write import (
    CommitInfo,
    Rows,
    check_rows,
    field_ids,
    moved_in,
    refuse_nested_blobs,
    retried,
    submit,
    taken_out,
    target,
)
from lance_dagster.edit.write_result import Written
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.format.sql_text import check_closed
from lance_dagster.format.transaction import Update
from lance_dagster.format.validation import check_names, check_string, string_list
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.transactions.claims import NO_KEYS, UPSERT

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset
from lance_dagster.edit.key_predicates import comparable_values, exact_predicate_of, predicate_of

_NOWHERE = -1


def key_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the validated key columns of a call.

    Raises:
        InvalidInputError: The argument is empty or is not a list of strings.
    """
    names = string_list("key", columns, "id")
    if not names:
        raise InvalidInputError("a key is a list of at least one column, such as ['id']")
    return names


class Keys:
    """An index from unique keys to row positions, for lookups of any number of other rows.

    Each key gets an integer code. For a key of several columns, the code of the first columns and the code of the next
    column form a pair, and each pair that occurs gets a code of its own. A row whose pair does not occur has no match.

    Python tuples as dictionary keys would be simpler, but cost far more time and memory for each row.
    """

    def __init__(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Assign a code to the key of each row.

        Raises:
            InvalidInputError: Two rows have the same key, or the type of a column cannot be compared.
        """
        self._columns = tuple(columns)
        self._values: list[pa.Array[Any]] = []
        self._pairs: list[Positions] = []
        stored = [comparable_values(rows.column(name), name) for name in columns]
        for values in stored:
            self._values.append(values.drop_null().unique())
        numbers = self._numbers(stored, learn=True)
        # Rows with a null in the key have no code. They match nothing and may occur any number of times.
        places = np.flatnonzero(numbers != _NOWHERE)
        order = np.argsort(numbers[places], kind="stable")
        self._rows = places[order]
        codes = numbers[self._rows]
        # The codes are sorted, so equal keys are neighbours.
        twice = np.flatnonzero(codes[1:] == codes[:-1])
        if len(twice):
            (row,) = shown_rows(rows.select(self._columns).slice(int(self._rows[twice[0]]), 1))
            shown = ", ".join(f"{name} = {value!r}" for name, value in row.items())
            raise InvalidInputError(f"two of the rows have the key {shown}; each key may occur once")

    def places(self, rows: pa.Table) -> Positions:
        """Return for each row the position of the indexed row with the same key; -1 where no key matches."""
        numbers = self._numbers([comparable_values(rows.column(name), name) for name in self._columns], learn=False)
        if not len(self._rows):
            return np.full(rows.num_rows, _NOWHERE, np.int64)
        # Each code occurs exactly once, so the codes are dense and index the sorted positions directly.
        return np.where(numbers == _NOWHERE, _NOWHERE, self._rows[numbers])

    def _numbers(self, columns: "Sequence[pa.Array[Any]]", *, learn: bool) -> Positions:
        """Return the code of each row's key; with `learn`, record the pairs that occur."""
        numbers = _codes(columns[0], self._values[0])
        for step, (column, values) in enumerate(zip(columns[1:], self._values[1:], strict=True)):
            codes = _codes(column, values)
            there = (numbers != _NOWHERE) & (codes != _NOWHERE)
            # No overflow: both factors are bounded by the number of indexed rows, which are held in memory.
            pairs = numbers * max(len(values), 1) + codes
            if learn:
                self._pairs.append(np.unique(pairs[there]))
            numbers = _pair_places(pairs, there, self._pairs[step])
        return numbers


def _codes(column: "pa.Array[Any]", values: "pa.Array[Any]") -> Positions:
    """Return the position of each value of a column in `values`; -1 for nulls and other values."""
    positions: Any = pc.index_in(column, value_set=values, skip_nulls=True)
    codes: Positions = positions.fill_null(_NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _pair_places(pairs: Positions, there: np.ndarray[tuple[int], np.dtype[np.bool_]], learned: Positions) -> Positions:
    """Return the position of each pair in the sorted pairs `learned`; -1 where a pair is not valid or not known."""
    if not len(learned):
        return np.full(len(pairs), _NOWHERE, np.int64)
    # `searchsorted` returns an insertion point, which is past the end for large values and needs a check of equality.
    places = np.minimum(np.searchsorted(learned, pairs), len(learned) - 1)
    return np.where(there & (learned[places] == pairs), places, _NOWHERE)


WhenNotMatched = Literal["insert", "ignore"]
"""What happens to source rows whose key is not in the table."""
WhenMissing = Literal["keep", "delete"]
"""What happens to rows of the table whose key is not in the source."""


class When(TypedDict, total=False):
    """The keyword arguments of an upsert that say what happens to matched, unmatched and missing rows."""

    when_matched: str
    when_not_matched: WhenNotMatched
    when_missing: WhenMissing
    missing_where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The validated rules of an upsert for matched rows, unmatched source rows and rows missing from the source."""

    when_matched: str = "update"
    when_not_matched: WhenNotMatched = "insert"
    when_missing: WhenMissing = "keep"
    missing_where: str | None = None

    @classmethod
    def of(cls, when: When) -> "Rules":
        """Build the rules from the keyword arguments of an upsert.

        Raises:
            InvalidInputError: A keyword or a value is unknown.
        """
        check_names("option of an upsert", when, When.__annotations__)
        return cls(**when)

    def __post_init__(self) -> None:
        """Validate the rules.

        Raises:
            InvalidInputError: A rule has an unknown value; the message names the valid ones.
        """
        # Of `when_matched` only the type is checked: every other text is a condition, which pylance parses later.
        check_string("when_matched", self.when_matched)
        if self.missing_where is not None:
            check_closed("missing_where", self.missing_where)
        for what, rule, choices in (
            ("when_not_matched", self.when_not_matched, get_args(WhenNotMatched)),
            ("when_missing", self.when_missing, get_args(WhenMissing)),
        ):
            if rule not in choices:
                raise InvalidInputError(f"{what} cannot be {rule!r}; give {choices[0]!r} or {choices[1]!r}")
        if self.missing_where is not None and self.when_missing != "delete":
            raise InvalidInputError("missing_where limits the rows that when_missing='delete' deletes; give both")

    @property
    def condition(self) -> str | None:
        """The condition under which a matched row is updated; None when the rule is a keyword."""
        return None if self.when_matched in ("update", "keep") else self.when_matched


@dataclass(slots=True)
class _Matches:
    """Pairs of a table row and the source row with the same key.

    `addresses` are the row addresses in the table, `source_places` the positions of the source rows. `places` are the
    positions among all live rows of the table, or None when only a part of the table was scanned. `missing` holds the
    addresses of the rows whose key the source lacks, when these are to be deleted.
    """

    addresses: Addresses
    source_places: Positions
    places: Positions | None
    missing: list[Addresses] = field(default_factory=list)

    def only(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]] | slice) -> "_Matches":
        """Return the selected pairs; `missing` stays as it is."""
        places = None if self.places is None else self.places[chosen]
        return _Matches(self.addresses[chosen], self.source_places[chosen], places, self.missing)


def upsert(context: TableContext, data: Rows, on: Sequence[str], *, rules: Rules, info: CommitInfo) -> Written:
    """Upsert rows by key in one commit, or return the head when nothing changes."""
    check_rows(data)
    if isinstance(data, StagedFiles):
        raise InvalidInputError("rows are upserted by their values; give Arrow rows instead of staged files")
    keys = string_list("on", on, "id")
    # A stream is read into memory, because a retry needs the rows again.
    rows = data.read_all() if isinstance(data, pa.RecordBatchReader) else data

    def attempt() -> Written:
        head = context.head(info.branch)
        refuse_nested_blobs(head, "upsert")
        return _UpsertAttempt(context, head, _conformed(rows, keys, head.schema, rules), on=keys, rules=rules).commit(
            info
        )

    return retried(attempt)


def _conformed(rows: pa.Table | pa.RecordBatch, on: Sequence[str], schema: pa.Schema, rules: Rules) -> pa.Table:
    """Return the source rows in the types of the table. Columns other than the keys may be absent.

    Raises:
        InvalidInputError: The key is empty, names a column twice, or names a column the table does not have.
        SchemaMismatchError: A column does not fit, or rows to insert lack a key or a non-nullable column.
    """
    if not on or len(set(on)) < len(on):
        raise InvalidInputError(f"an upsert needs key columns, each once, such as on=['id']; not {[*on]}")
    for name in on:
        if name not in schema.names:
            raise InvalidInputError(f"there is no key column {name!r}; the table has {', '.join(schema.names)}")
        if name not in rows.schema.names:
            raise SchemaMismatchError(f"the key column {name!r} is missing")
    table_schema = pa.schema([column for column in schema if column.name in rows.schema.names])
    check_schema(rows.schema, table_schema)
    left_out = [column.name for column in schema if column.name not in table_schema.names and not column.nullable]
    if left_out and rules.when_not_matched == "insert":
        raise SchemaMismatchError(
            f"column {left_out[0]!r} is missing, and new rows may not have a null there; give it, or "
            "when_not_matched='ignore'"
        )
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.Table.from_batches([conform(batch, table_schema) for batch in batches], schema=table_schema)


def upsert_operation(
    context: TableContext,
    head: State,
    staged: StagedFiles,
    addresses: Addresses,
    *,
    removed: Addresses,
    columns: Sequence[str],
) -> Update:
    """Return the operation that removes rows and adds files, whose leading rows were at `addresses`."""
    out = taken_out(context, head, offsets_by_fragment(removed))
    return Update(
        removed_fragment_ids=out.removed,
        updated_fragments=out.updated,
        new_fragments=moved_in(context, head, staged, addresses),
        updated_fields=field_ids(head.manifest.fields, columns),
    )


def submit_upsert(
    context: TableContext,
    head: State,
    operation: Update,
    info: CommitInfo,
    *,
    on: tuple[str, ...],
    added: pa.Table | None,
) -> State:
    """Commit an upsert, which claims the keys of the inserted rows."""
    if added is not None:
        return submit(context, head, operation, info.as_properties(UPSERT, predicate_of(added, on), on=on))
    # Updates are not claimed, since concurrent ones of a row conflict by their deletion vectors. The key columns are
    # recorded: new values must not be combined with another key that the row got on the other side of a merge.
    return submit(context, head, operation, replace(info, partitions=()).as_properties(UPSERT, NO_KEYS, on=on))


class _UpsertAttempt:
    """One attempt of an upsert, against one version of the table."""

    def __init__(
        self, context: TableContext, head: State, rows: pa.Table, *, on: tuple[str, ...], rules: Rules
    ) -> None:
        self._context = context
        self._head = head
        self._rows = rows
        self._on = on
        self._rules = rules
        self._schema = head.schema
        self._kept = [name for name in self._schema.names if name not in rows.schema.names]
        self._dataset: LanceDataset = context.dataset(head)
        self._blobs = frozenset(blob_columns(self._schema))

    def commit(self, info: CommitInfo) -> Written:
        """Commit the upsert, or return the head when nothing changes."""
        keys = Keys(self._rows, self._on)
        matches = self._matched(keys)
        there = np.zeros(self._rows.num_rows, np.bool_)
        there[matches.source_places] = True
        # Computed after `there`: a matched row that the condition leaves unchanged is still not inserted.
        changed = self._chosen(matches)
        inserts = self._rules.when_not_matched == "insert"
        added = np.flatnonzero(~there) if inserts else np.empty(0, np.int64)
        removed = np.concatenate([changed.addresses, *matches.missing])
        if not len(removed) and not len(added):
            return Written(state=self._head)
        place = target(self._context, self._schema, self._head).with_ranges(self._on)
        # Updated rows come first in the files, because `moved_in` assigns their row ids to the leading rows.
        staged = StagedFiles(self._schema, write_files(place, self._rows_to_write(changed, added)), place.base)
        # The changed fields. An inserted row is new to every index, so all fields count as changed then.
        columns = self._rows.schema.names if not len(added) else self._schema.names
        operation = upsert_operation(
            self._context, self._head, staged, changed.addresses, removed=removed, columns=columns
        )
        keys_added = take(self._rows, added) if len(added) else None
        return Written(
            state=submit_upsert(self._context, self._head, operation, info, on=self._on, added=keys_added),
            added=len(added),
            deleted=sum(map(len, matches.missing)),
            updated=len(changed.addresses),
        )

    def _matched(self, keys: Keys) -> _Matches:
        """Match the rows of the table with the source rows by key, by a filtered scan where the source keys are few."""
        # Rows that the source lacks can be found only by a scan of all rows that may be missing.
        needs_all_rows = self._rules.when_missing == "delete" and self._rules.missing_where is None
        few = None if needs_all_rows else exact_predicate_of(self._rows, self._on)
        addresses, source_places, missing = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], []
        there = [np.empty(0, np.int64)]
        rows_read = 0
        for part in scan_addressed(
            self._dataset, self._on, few, fragment_ids=self._context.matching_fragments(self._head, few)
        ):
            places = keys.places(part.rows)
            matching = places != _NOWHERE
            addresses.append(part.addresses[matching])
            source_places.append(places[matching])
            there.append(np.flatnonzero(matching) + rows_read)
            rows_read += len(places)
            if needs_all_rows:
                missing.append(part.addresses[~matching])
        if self._rules.missing_where is not None:
            missing_where = self._rules.missing_where
            fragments = self._context.matching_fragments(self._head, missing_where)
            among = scan_addressed(
                self._dataset, self._on, missing_where, named="missing_where", fragment_ids=fragments
            )
            missing.extend(part.addresses[keys.places(part.rows) == _NOWHERE] for part in among)
        matches = _Matches(np.concatenate(addresses), np.concatenate(source_places), np.concatenate(there), missing)
        if few is None:
            return matches
        # An index returns rows in its own order. Adjacent rows with ascending ids take less space in the id sequence.
        order = np.argsort(matches.addresses)
        return _Matches(matches.addresses[order], matches.source_places[order], None, missing)

    def _chosen(self, matches: _Matches) -> _Matches:
        """Return the pairs whose table row is updated."""
        every = np.ones(len(matches.source_places), np.bool_)
        condition = self._rules.condition
        if condition is None:
            return matches.only(every if self._rules.when_matched == "update" else ~every)
        flags = [every[:0]]
        # Without pairs the condition is evaluated on an empty part, so an invalid one fails for every table.
        for part in self._parts_of(len(every)) or [slice(0, 0)]:
            pairs = matches.only(part)
            # A condition cannot use blobs, and reading their bytes would be expensive.
            names = [name for name in self._schema.names if name not in self._blobs]
            before = take_rows(self._dataset, pairs.addresses, names, pairs.places)
            source = take(self._rows, pairs.source_places).drop_columns(
                [*self._blobs.intersection(self._rows.schema.names)]
            )
            flags.append(evaluate_condition(condition, {"source": source, "target": before}))
        return matches.only(np.concatenate(flags))

    def _rows_to_write(self, changed: _Matches, added: Positions) -> Iterator[pa.RecordBatch]:
        """Yield the rows to write: first the updated rows, then the inserted rows."""
        for part in self._parts_of(len(changed.source_places)):
            pairs = changed.only(part)
            rows = take(self._rows, pairs.source_places)
            if self._kept:
                # Columns that the source lacks keep the values of the table.
                before = take_rows(self._dataset, pairs.addresses, self._kept, pairs.places)
                for column in before.schema:
                    rows = rows.append_column(column, before.column(column.name))
            yield from rows.select(self._schema.names).to_batches()
        for part in self._parts_of(len(added)):
            rows = take(self._rows, added[part])
            for name in self._kept:
                column = self._schema.field(name)
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
            yield from rows.select(self._schema.names).to_batches()

    def _parts_of(self, count: int) -> list[slice]:
        step = batch_size(self._schema)
        return [slice(start, start + step) for start in range(0, count, step)]
