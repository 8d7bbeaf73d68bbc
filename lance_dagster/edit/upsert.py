"""Keys: which rows of a table are meant by rows of the same key.

A key is the value of one column, or of several together. A key with a null in it is equal to no other, as in SQL and
as pylance has it. Numbers that are no numbers are equal to each other; nought and minus nought are not: values are
compared as they are stored.

Bring rows into a table by key: change those that are there, add those that are not.

The given rows are held in memory; of the table only the key columns are read, and the other columns of rows that stay
in part. Everything is one commit. Keys that are added are claimed: of two writers that add the same key at the same
time, the second one looks again and changes the row of the first; branches that both added it cannot be merged.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import (
    Addresses,
    LanceDataset,
    Positions,
    StagedFiles,
    batch_size,
    blob_columns,
    check_schema,
    conform,
    evaluate_condition,
    offsets_by_fragment,
    scan_addressed,
    take_rows,
    write_files,
)
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
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.transaction import Update
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import TableContext, schema_of
from lance_dagster.history.versions import State
from lance_dagster.transactions.claims import UPSERT

_LISTED = 100
"""Up to so many keys are named one by one in a predicate."""
_LOOKED_UP = 1000
"""Up to so many keys are looked up by an index, where there is one."""
_BEYOND = 2**63
_NOWHERE = -1


def key_columns(given: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a key that a caller gave.

    Raises:
        InvalidInputError: There are none, or it is no list.
    """
    found = string_list("key", given, "id")
    if not found:
        raise InvalidInputError("a key is a list of columns such as ['id'], not an empty one")
    return found


class Keys:
    """The keys of some rows, each of them once, ready to be looked up for any number of other rows.

    A key of several columns is numbered column by column: two columns give a pair of numbers, each pair that occurs
    a number, and so on. Rows with a number that does not occur are left behind on the way.
    """

    def __init__(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Give each key of some rows a number.

        Raises:
            InvalidInputError: Two rows have the same key, or a column is of a type that cannot be compared.
        """
        self._columns = tuple(columns)
        self._values: list[pa.Array[Any]] = []
        self._pairs: list[Positions] = []
        stored = [comparable_values(rows.column(name), name) for name in columns]
        for values in stored:
            self._values.append(values.drop_null().unique())
        numbers = self._numbers(stored, learn=True)
        places = np.flatnonzero(numbers != _NOWHERE)
        order = np.argsort(numbers[places], kind="stable")
        self._rows = places[order]
        known = numbers[self._rows]
        twice = np.flatnonzero(known[1:] == known[:-1])
        if len(twice):
            row = rows.select(self._columns).slice(int(self._rows[twice[0]]), 1).to_pylist()[0]
            shown = ", ".join(f"{name} = {value!r}" for name, value in row.items())
            raise InvalidInputError(f"two of the rows have the key {shown}; each key may come once")

    def places(self, rows: pa.Table) -> Positions:
        """Return for each row the place of the row of the same key among those given first; -1 for none."""
        numbers = self._numbers([comparable_values(rows.column(name), name) for name in self._columns], learn=False)
        if not len(self._rows):
            return np.full(rows.num_rows, _NOWHERE, np.int64)
        # Numbers of keys that occur are dense, since each of them occurs once.
        return np.where(numbers == _NOWHERE, _NOWHERE, self._rows[numbers])

    def _numbers(self, columns: "Sequence[pa.Array[Any]]", *, learn: bool) -> Positions:
        numbers = _codes(columns[0], self._values[0])
        for step, (column, values) in enumerate(zip(columns[1:], self._values[1:], strict=True)):
            codes = _codes(column, values)
            there = (numbers != _NOWHERE) & (codes != _NOWHERE)
            pairs = numbers * max(len(values), 1) + codes
            if learn:
                self._pairs.append(np.unique(pairs[there]))
            numbers = _found(pairs, there, self._pairs[step])
        return numbers


def _codes(column: "pa.Array[Any]", values: "pa.Array[Any]") -> Positions:
    found: Any = pc.index_in(column, value_set=values, skip_nulls=True)
    codes: Positions = found.fill_null(_NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _found(pairs: Positions, there: np.ndarray[tuple[int], np.dtype[np.bool_]], known: Positions) -> Positions:
    if not len(known):
        return np.full(len(pairs), _NOWHERE, np.int64)
    places = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
    return np.where(there & (known[places] == pairs), places, _NOWHERE)


def comparable_values(column: "pa.ChunkedArray[Any]", name: str) -> "pa.Array[Any]":
    """Return a column as one array of values that can be compared: what is stored, without a dictionary.

    Raises:
        InvalidInputError: The values are of a type that cannot be a key.
    """
    whole: Any = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    if isinstance(whole, pa.ExtensionArray):
        whole = whole.storage
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    if pa.types.is_nested(whole.type) or pa.types.is_float16(whole.type):
        raise InvalidInputError(
            f"column {name!r} is {column.type}, which cannot be a key; give columns of single values"
        )
    comparable: pa.Array[Any] = whole
    return comparable


def predicate_of(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return a condition in Lance SQL that holds for every row with one of these keys, and for few others.

    None when no value of the key can be written down.
    """
    found = [condition for name in columns if (condition := _condition(rows.column(name), name)) is not None]
    return " AND ".join(found) or None


def exact_predicate_of(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return a condition that names the values of one column of a key one by one, if they are few; else None.

    An index on the column answers it without a look at every row.
    """
    for name in columns:
        values = comparable_values(rows.column(name), name).drop_null().unique()
        if 0 < len(values) <= _LOOKED_UP and (condition := _listed(values, name)) is not None:
            return condition
    return None


def _condition(column: "pa.ChunkedArray[Any]", name: str) -> str | None:
    values = comparable_values(column, name).drop_null().unique()
    if len(values) <= _LISTED:
        return _listed(values, name)
    limits: Any = pc.min_max(values) if not pa.types.is_boolean(values.type) else None
    low, high = _literal(limits["min"].as_py()), _literal(limits["max"].as_py())
    return None if low is None or high is None else f"`{name}` >= {low} AND `{name}` <= {high}"


def _listed(values: "pa.Array[Any]", name: str) -> str | None:
    listed = [_literal(value) for value in values.to_pylist()]
    known = [literal for literal in listed if literal is not None]
    return f"`{name}` IN ({', '.join(known)})" if known and len(known) == len(listed) else None


def _literal(value: object) -> str | None:
    """Write a value in Lance SQL; None for types that have no plain literal."""
    match value:
        case bool():
            return str(value).lower()
        case int() if -_BEYOND <= value < _BEYOND:
            return str(value)
        case str() if value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return None


class When(TypedDict, total=False):
    """What becomes of rows in an upsert, by which side has their key: the keyword arguments of that name."""

    when_matched: str
    when_not_matched: str
    when_missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What becomes of rows in an upsert, by which side has their key."""

    when_matched: str = "update"
    when_not_matched: str = "insert"
    when_missing: str = "keep"

    @classmethod
    def of(cls, when: When) -> "Rules":
        """Take what an upsert was given.

        Raises:
            InvalidInputError: It is no rule, or there is no such choice.
        """
        for name in when:
            if name not in When.__annotations__:
                close = difflib.get_close_matches(name, When.__annotations__, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(When.__annotations__)}"
                raise InvalidInputError(f"an upsert takes no {name!r}; {hint}")
        return cls(**when)

    def __post_init__(self) -> None:
        """Refuse what is no rule.

        Raises:
            InvalidInputError: Names the rules there are.
        """
        for what, rule, known in (
            ("when_not_matched", self.when_not_matched, ("insert", "ignore")),
            ("when_missing", self.when_missing, ("keep", "delete")),
        ):
            if rule not in known:
                raise InvalidInputError(f"{what} cannot be {rule!r}; give {known[0]!r} or {known[1]!r}")

    @property
    def condition(self) -> str | None:
        """The condition under which a matched row is changed, if that is what decides."""
        return None if self.when_matched in ("update", "keep") else self.when_matched


@dataclass(slots=True)
class _Matches:
    """Rows of the table and the given row of the same key: addresses, and the place among the given rows.

    Where the whole table was read, also the place among all its live rows.
    """

    addresses: Addresses
    given: Positions
    places: Positions | None
    missing: list[Addresses] = field(default_factory=list)

    def only(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]] | slice) -> "_Matches":
        """Return some of the pairs."""
        places = None if self.places is None else self.places[chosen]
        return _Matches(self.addresses[chosen], self.given[chosen], places, self.missing)


def upsert(context: TableContext, data: Rows, on: Sequence[str], *, rules: Rules, info: CommitInfo) -> State:
    """Bring rows in by key; the head as it is when that changes nothing."""
    check_rows(data)
    if isinstance(data, StagedFiles):
        raise InvalidInputError("rows are upserted by their values; give Arrow rows instead of staged files")
    keys = string_list("on", on, "id")
    # Read once: a retry needs them again, and a stream is gone then.
    rows = data.read_all() if isinstance(data, pa.RecordBatchReader) else data

    def attempt() -> State:
        head = context.head(info.branch)
        refuse_nested_blobs(head, "upsert")
        return _Upsert(context, head, _conformed(rows, keys, schema_of(head), rules), on=keys, rules=rules).commit(info)

    return retried(attempt)


def _conformed(rows: pa.Table | pa.RecordBatch, on: Sequence[str], schema: pa.Schema, rules: Rules) -> pa.Table:
    """Return the rows in the table's types; columns may be left out, keys may not.

    Raises:
        InvalidInputError: The keys are not columns of both.
        SchemaMismatchError: A column does not fit, or one that may not be null is left out of rows to be added.
    """
    if not on or len(set(on)) < len(on):
        raise InvalidInputError(f"an upsert needs key columns, each once, such as on=['id']; not {[*on]}")
    for name in on:
        if name not in schema.names:
            raise InvalidInputError(f"no column {name!r} to be a key; the table has {', '.join(schema.names)}")
        if name not in rows.schema.names:
            raise SchemaMismatchError(f"column {name!r} is the key, and missing")
    wanted = pa.schema([column for column in schema if column.name in rows.schema.names])
    check_schema(rows.schema, wanted)
    left_out = [column.name for column in schema if column.name not in wanted.names and not column.nullable]
    if left_out and rules.when_not_matched == "insert":
        raise SchemaMismatchError(
            f"column {left_out[0]!r} is missing, and new rows may not have a null there; give it, or "
            "when_not_matched='ignore'"
        )
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.Table.from_batches([conform(batch, wanted) for batch in batches], schema=wanted)


class _Upsert:
    """An upsert into one version of the table."""

    def __init__(
        self, context: TableContext, head: State, rows: pa.Table, *, on: tuple[str, ...], rules: Rules
    ) -> None:
        self._context = context
        self._head = head
        self._rows = rows
        self._on = on
        self._rules = rules
        self._schema = schema_of(head)
        self._kept = [name for name in self._schema.names if name not in rows.schema.names]
        self._dataset: LanceDataset = context.dataset(head)
        self._blobs = frozenset(blob_columns(self._schema))

    def commit(self, info: CommitInfo) -> State:
        """Commit it; the head as it is when nothing changes."""
        keys = Keys(self._rows, self._on)
        matches = self._matched(keys)
        there = np.zeros(self._rows.num_rows, np.bool_)
        there[matches.given] = True
        changed = self._chosen(matches)
        inserts = self._rules.when_not_matched == "insert"
        added = np.flatnonzero(~there) if inserts else np.empty(0, np.int64)
        gone = np.concatenate([changed.addresses, *matches.missing])
        if not len(gone) and not len(added):
            return self._head
        place = target(self._context, self._schema, self._head)
        staged = StagedFiles(self._schema, write_files(place, self._written(changed, added)), place.base)
        out = taken_out(self._context, self._head, offsets_by_fragment(gone))
        fields = self._head.manifest.fields
        operation = Update(
            removed_fragment_ids=out.removed,
            updated_fragments=out.updated,
            new_fragments=moved_in(self._context, self._head, staged, changed.addresses),
            preserved_fields=field_ids(fields, self._rows.schema.names if not len(added) else self._schema.names),
        )
        claims = predicate_of(self._rows.take(added), self._on) if len(added) else None
        mode, on = (UPSERT, self._on) if len(added) else (None, ())
        return submit(self._context, self._head, operation, info.as_properties(mode, claims, on=on))

    def _matched(self, keys: Keys) -> _Matches:
        """Look up the key of every row of the table, or of those that can have one of a few keys."""
        few = None if self._rules.when_missing == "delete" else exact_predicate_of(self._rows, self._on)
        addresses, given, missing = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], []
        there = [np.empty(0, np.int64)]
        read = 0
        for part in scan_addressed(self._dataset, self._on, few):
            places = keys.places(part.rows)
            found = places != _NOWHERE
            addresses.append(part.addresses[found])
            given.append(places[found])
            there.append(np.flatnonzero(found) + read)
            read += len(places)
            if self._rules.when_missing == "delete":
                missing.append(part.addresses[~found])
        matches = _Matches(np.concatenate(addresses), np.concatenate(given), np.concatenate(there), missing)
        if few is None:
            return matches
        # An index gives rows in its own order; where they lie side by side, their ids take less room.
        order = np.argsort(matches.addresses)
        return _Matches(matches.addresses[order], matches.given[order], None, missing)

    def _chosen(self, matches: _Matches) -> _Matches:
        """Return the pairs whose row is changed."""
        every = np.ones(len(matches.given), np.bool_)
        condition = self._rules.condition
        if condition is None:
            return matches.only(every if self._rules.when_matched == "update" else ~every)
        found = [every[:0]]
        # With no pairs, the condition is looked at all the same.
        for part in self._parts_of(len(every)) or [slice(0, 0)]:
            pairs = matches.only(part)
            names = [name for name in self._schema.names if name not in self._blobs]
            before = take_rows(self._dataset, pairs.addresses, names, pairs.places)
            source = self._rows.take(pairs.given).drop_columns([*self._blobs.intersection(self._rows.schema.names)])
            found.append(evaluate_condition(condition, {"source": source, "target": before}))
        return matches.only(np.concatenate(found))

    def _written(self, changed: _Matches, added: Positions) -> Iterator[pa.RecordBatch]:
        """Make the rows to be written: first those that were there, then those that are new."""
        for part in self._parts_of(len(changed.given)):
            pairs = changed.only(part)
            rows = self._rows.take(pairs.given)
            if self._kept:
                before = take_rows(self._dataset, pairs.addresses, self._kept, pairs.places)
                for column in before.schema:
                    rows = rows.append_column(column, before.column(column.name))
            yield from rows.select(self._schema.names).to_batches()
        for part in self._parts_of(len(added)):
            rows = self._rows.take(added[part])
            for name in self._kept:
                column = self._schema.field(name)
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
            yield from rows.select(self._schema.names).to_batches()

    def _parts_of(self, count: int) -> list[slice]:
        step = batch_size(self._schema)
        return [slice(start, start + step) for start in range(0, count, step)]
