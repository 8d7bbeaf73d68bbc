"""The difference between two versions of a table, as users get it.

A `Diff` is made from two manifests: schema, settings, indices, fragments and row counts. Which rows differ is computed
on the first request, since this may read data files, and is then kept with the object.

How rows of the two versions are recognised as the same row (`_relation`): by the key the caller names; else by stable
row ids, translated where a merge gave rows other ids; else, in a table without them or where the fork point was
cleaned up, by their values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import pyarrow as pa

from lance_dagster.diff.changed_rows import ChangedRows
from lance_dagster.diff.comparison_shapes import ComparedColumn
from lance_dagster.diff.manifest_diff import ChangeKind, Comparison, FragmentChange, IndexChange, KeyChange, compare
from lance_dagster.diff.row_comparison import ByIds, ByKey, ByValues, Identity, RowComparison, RowDifferences
from lance_dagster.diff.row_matching import paired_by_ids
from lance_dagster.diff.schema_diff import FieldChange
from lance_dagster.diff.versioned_rows import NO_ADDRESSES, VersionedRows
from lance_dagster.edit.upsert import key_columns
from lance_dagster.errors import InvalidInputError, UnsupportedFeatureError, VersionNotFoundError, counted
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import Overwrite, Restore
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.history.lineage import Lineage, changes_since, lineage_of, row_space
from lance_dagster.history.versions import State
from lance_dagster.transactions.claims import OVERWRITE

_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The number of rows that only the newer version has, that only the older one has, and that differ in both."""

    added: int
    removed: int
    changed: int

    def __str__(self) -> str:
        """Return the counts as one line."""
        return f"{counted(self.added, 'row')} added, {self.removed:,} removed, {self.changed:,} changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The changes that turn version `before` into version `after`.

    The attributes come from the manifests: `schema`, `settings`, `indices`, `fragments`, and the row counts of both
    versions (None where a very old program did not count them). Which rows differ is found out when one of the methods
    asks for it, and is kept with this object: `stat` counts the rows, `added`, `removed`, `changed` and `rows` read
    them.

    All five methods take `columns`, the columns to compare, by their names in `after`. The name that a column had in
    `before` is accepted too, unless another column has it in `after`.

    With `base_of`, `before` is the merge base of that version and `after`. Rows are identified by the columns in `on`
    if there are some, else by stable row ids, else by their values. The values of columns in `not_compared` cannot be
    compared, such as nested blobs or types without a cast, and are ignored. A column that only one version has does not
    make a row count as changed.

    A pickled copy holds no storage options; it reads rows with the credentials of its own environment.
    """

    uri: str
    before: str
    after: str
    base_of: str | None = None
    on: tuple[str, ...] | None = None
    schema: tuple[FieldChange, ...]
    settings: tuple[KeyChange, ...]
    indices: tuple[IndexChange, ...]
    fragments: tuple[FragmentChange, ...]
    rows_before: int | None
    rows_after: int | None
    not_compared: tuple[str, ...] = ()
    _rows: "DifferingRows | None" = field(default=None, repr=False, compare=False)

    @property
    def unchanged(self) -> bool:
        """Whether schema, settings, indices and fragments are equal; then no row differs. Compaction makes it False."""
        return not (self.schema or self.settings or self.indices or self.fragments)

    def stat(self, columns: Sequence[str] | None = None) -> RowCounts:
        """Count the rows that differ; reads only rows that moved or whose values are in other files.

        Args:
            columns: The columns to compare; None for all that both versions have.

        Raises:
            InvalidInputError: A column does not exist, or two rows have the same key.
        """
        differences = self.differing_rows(columns)
        added, removed = (sum(map(len, rows.values())) for rows in (differences.added, differences.removed))
        return RowCounts(added, removed, len(differences.changed_after))

    def added(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the rows only `after` has, with its columns, in their order there.

        Raises:
            InvalidInputError: A column does not exist, or two rows have the same key.
        """
        rows = self._differing()
        return rows.streams(columns).added(rows.changes(columns))

    def removed(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the rows only `before` has, with its columns, in their order there.

        Raises:
            InvalidInputError: A column does not exist, or two rows have the same key.
        """
        rows = self._differing()
        return rows.streams(columns).removed(rows.changes(columns))

    def changed(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the old and the new values of the rows that differ in both versions: `rows("changed")`.

        Raises:
            InvalidInputError: A column does not exist, or two rows have the same key.
        """
        return self.rows("changed", columns)

    def rows(self, kind: ChangeKind | None = None, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the rows that differ as a change feed: first removed rows, then changed rows, then added rows.

        Two columns precede the columns of the table. `_change_type` is "insert", "delete", "update_preimage" or
        "update_postimage". `_change_id` numbers the changes: the preimage of a changed row and its postimage, which
        follows it, have the same number. A column that a row's version does not have is null. A column that got
        another type appears twice, with the older values under `<name>_before`.

        Args:
            kind: The kind of rows to read; None for all three kinds.
            columns: The columns to compare and to read; None for all.

        Raises:
            InvalidInputError: The kind or a column does not exist, two rows have the same key, or the table has a
                column named `_change_type` or `_change_id`.
        """
        # The kind is checked before any row is read, so that a typo is found at once.
        if kind is not None and kind not in _KINDS:
            raise InvalidInputError(f"{kind!r} is not a kind of row; choose one of {', '.join(_KINDS)}")
        rows = self._differing()
        differences = rows.changes(columns)
        return rows.streams(columns).feed(differences if kind is None else _only(differences, kind))

    def differing_rows(self, columns: Sequence[str] | None = None) -> RowDifferences:
        """Return where the rows that differ lie, and read as few rows as possible for it.

        This is for programs that read the rows themselves, on several machines.

        Args:
            columns: The columns to compare; None for all that both versions have.

        Raises:
            InvalidInputError: A column does not exist, or two rows have the same key.
        """
        return self._differing().changes(columns)

    def __str__(self) -> str:
        """Return the differences of the manifests, in lines."""
        return "\n".join(self.lines())

    def lines(self, shown: int = 20) -> Iterator[str]:
        """Yield the differences of the manifests line by line, with at most `shown` fragments."""
        base = "" if self.base_of is None else f" (since the merge base with {self.base_of})"
        yield f"{self.before} -> {self.after}{base}"
        if self.unchanged:
            yield "nothing differs"
            return
        for title, changes in (("schema", self.schema), ("settings", self.settings), ("indices", self.indices)):
            if changes:
                yield f"{title}:"
                yield from (f"  {change}" for change in changes)
        if self.fragments:
            yield f"fragments: {_kinds(self.fragments)}"
            yield from (f"  {change}" for change in self.fragments[:shown])
            if len(self.fragments) > shown:
                yield f"  and {len(self.fragments) - shown:,} more"
        if self.not_compared:
            yield f"not compared: {', '.join(self.not_compared)}"
        yield f"rows: {_count(self.rows_before)} -> {_count(self.rows_after)}"

    def __reduce__(self) -> tuple[object, tuple[dict[str, object]]]:
        """Pickle without the store, which holds credentials."""
        return _copied, ({name: getattr(self, name) for name in self.__slots__ if name != "_rows"},)

    def _differing(self) -> "DifferingRows":
        if self._rows is not None:
            return self._rows
        # An unpickled copy names the versions, so the same two are found again whatever was committed since.
        context = open_context(self.uri, None)
        before, after = (context.versions.load(*_parse_version(version)) for version in (self.before, self.after))
        rows = DifferingRows(context, before, after, self.on)
        # The object is frozen for callers: the cache changes none of its values.
        object.__setattr__(self, "_rows", rows)
        return rows


class DifferingRows:
    """The rows that differ between two versions, computed once for each choice of columns."""

    def __init__(self, context: TableContext, before: State, after: State, key: Sequence[str] | None) -> None:
        """Compare the manifests.

        Raises:
            InvalidInputError: A column of the key is not in both versions, or cannot be compared.
        """
        self._before = VersionedRows(context, before, after=False)
        self._after = VersionedRows(context, after, after=True)
        # Manifests decide which fields and fragments correspond; only then can a key be looked up in both.
        shared, ids = _relation(context, before, after)
        self.comparison = compare(
            before.manifest, after.manifest, shared, partial(_ids_restarted, context, before, after)
        )
        self._identity: Identity = ids
        if key is not None:
            # A key that the caller names wins over row ids: an overwrite gives equal rows new ids.
            self._identity = ByKey(_key_columns(self.comparison, key, before, after))
        self._differences: dict[tuple[str, ...] | None, RowDifferences] = {}

    def changes(self, columns: Sequence[str] | None) -> RowDifferences:
        """Find the rows that differ in some columns.

        Raises:
            InvalidInputError: Neither version has one of the columns, or two rows have the same key.
        """
        # `stat`, `added` and `removed` for the same columns share one comparison, which may read many data files.
        names = self._named(columns)
        if names not in self._differences:
            compared = RowComparison(
                before=self._before,
                after=self._after,
                comparison=self.comparison,
                columns=self._compared(names),
                identity=self._identity,
            )
            self._differences[names] = compared.changes()
        return self._differences[names]

    def streams(self, columns: Sequence[str] | None) -> ChangedRows:
        """Return the reader of the rows that differ."""
        return ChangedRows(self._before, self._after, self.comparison, self._named(columns))

    def _compared(self, names: tuple[str, ...] | None) -> tuple[ComparedColumn, ...]:
        columns = self.comparison.columns
        return columns if names is None else tuple(column for column in columns if column.after in names)

    def _named(self, columns: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the names of columns in the newer version, whichever version's names were given."""
        return None if columns is None else self.comparison.named(string_list("columns", columns, "id"))


def diff(
    context: TableContext, before: State, after: State, *, on: Sequence[str] | None, base_of: str | None = None
) -> Diff:
    """Compare two versions by their manifests; no row is read."""
    keys = None if on is None else key_columns(on)
    rows = DifferingRows(context, before, after, keys)
    comparison = rows.comparison
    return Diff(
        uri=context.uri,
        before=str(before),
        after=str(after),
        base_of=base_of,
        on=keys,
        schema=comparison.schema,
        settings=comparison.settings,
        indices=comparison.indices,
        fragments=comparison.fragments,
        rows_before=_rows(before.manifest),
        rows_after=_rows(after.manifest),
        not_compared=comparison.not_compared,
        _rows=rows,
    )


def count_moved_rows(context: TableContext, before: State, after: State) -> RowCounts:
    """Count the rows that differ between two versions of one branch, without reading a value.

    A row counts as changed where both versions have it, in other data files: a compaction may have moved it as it was.
    Without stable row ids a row that moved counts as one removed and one added.
    """
    shared, restarted = _relation(context, before, after)[0], partial(_ids_restarted, context, before, after)
    comparison = compare(before.manifest, after.manifest, shared, restarted)
    old, new = VersionedRows(context, before, after=False), VersionedRows(context, after, after=True)
    olds = {fragment.id: old.live(fragment) for fragment in comparison.match.removed}
    news = {fragment.id: new.live(fragment) for fragment in comparison.match.added}
    in_place = 0
    for pair in comparison.match.pairs:
        was, is_now = old.deleted(pair.before), new.deleted(pair.after)
        olds[pair.before.id], news[pair.after.id] = is_now - was, was - is_now
        if pair.rewritten(comparison.matched):
            in_place += len(old.live(pair.before) - is_now)
    removed, added = (sum(map(len, rows.values())) for rows in (olds, news))
    if not (before.manifest.stable_row_ids and after.manifest.stable_row_ids):
        return RowCounts(added, removed, in_place)
    moved = paired_by_ids(old.id_runs(olds), new.id_runs(news)).rows
    return RowCounts(added - moved, removed - moved, in_place + moved)


def _relation(context: TableContext, before: State, after: State) -> tuple[Manifest | None, ByIds | ByValues]:
    """Return the last common version, None where it was cleaned up, and how to recognise rows that moved."""
    stable = before.manifest.stable_row_ids and after.manifest.stable_row_ids
    # On one branch the older version is the last common version, and row ids need no translation.
    if before.branch == after.branch:
        return min(before, after, key=lambda state: state.number).manifest, ByIds(None) if stable else ByValues()
    before_lineage, after_lineage = lineage_of(before, context.refs), lineage_of(after, context.refs)
    try:
        shared = _last_common_version(context, before_lineage, after_lineage)
        spaces = row_space(before_lineage, context.versions), row_space(after_lineage, context.versions)
    except VersionNotFoundError:
        # The fork point was cleaned up, so ids of the two branches cannot be translated; values still can be compared.
        return None, ByValues()
    return shared.manifest, ByIds(spaces[0].translation(spaces[1])) if stable else ByValues()


def _ids_restarted(context: TableContext, before: State, after: State) -> bool:
    """Return whether a change since the last common version may have given its field ids to other fields."""
    before_lineage, after_lineage = lineage_of(before, context.refs), lineage_of(after, context.refs)
    changes = (
        *changes_since(before_lineage, after_lineage, context.versions),
        *changes_since(after_lineage, before_lineage, context.versions),
    )
    # A merge can bring the overwrite of another branch. Of a version that was cleaned up, nothing is known.
    return any(
        change.transaction is None
        or isinstance(change.operation, Overwrite | Restore)
        or any(claim.mode == OVERWRITE for claim in change.claims)
        for change in changes
    )


def _last_common_version(context: TableContext, first: Lineage, second: Lineage) -> State:
    # On the first branch that both lines share, the versions up to the lower of both numbers are common.
    line, number = next(
        (line, min(line.number, segment.number))
        for line in first.segments
        for segment in second.segments
        if line.id == segment.id
    )
    # Often one of the two is the last common version itself, and need not be read again.
    for state in (first.state, second.state):
        if (state.branch, state.number) == (line.branch, number):
            return state
    return context.versions.load(line.branch, number)


def _key_columns(comparison: Comparison, key: Sequence[str], before: State, after: State) -> tuple[ComparedColumn, ...]:
    comparable = {column.after: column for column in comparison.columns}
    # A key that has another name in the older version is the usual mistake, so the message gives the newer name.
    for name in key:
        if name not in comparable:
            renamed = next((column.after for column in comparison.columns if column.before == name), None)
            called = f"; {name} is called {renamed} in {after}" if renamed else ""
            raise InvalidInputError(
                f"column {name!r} cannot be a key: {before} and {after} have in common "
                f"{', '.join(comparable) or 'none'}{called}"
            )
    return tuple(comparable[name] for name in dict.fromkeys(key))


def _only(differences: RowDifferences, kind: ChangeKind) -> RowDifferences:
    nothing = RowDifferences(removed={}, added={}, changed_before=NO_ADDRESSES, changed_after=NO_ADDRESSES)
    match kind:
        case "added":
            return replace(nothing, added=differences.added)
        case "removed":
            return replace(nothing, removed=differences.removed)
        case _:
            return replace(nothing, changed_before=differences.changed_before, changed_after=differences.changed_after)


def _rows(manifest: Manifest) -> int | None:
    try:
        return manifest.rows
    # A manifest of a very old program does not count its rows.
    except UnsupportedFeatureError:
        return None


def _kinds(changes: Sequence[FragmentChange]) -> str:
    counts = {kind: sum(change.kind == kind for change in changes) for kind in ("added", "removed", "changed")}
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def _parse_version(version: str) -> tuple[str, int]:
    branch, _, number = version.rpartition("@")
    return branch, int(number)


def _copied(values: Mapping[str, object]) -> Diff:
    return Diff(**values)  # type: ignore[arg-type]  # the values of another Diff
