"""Find the rows that differ between two versions, and stream them as Arrow record batches.

Fragments that are equal in both versions are not read. Rows at the same offset of the same fragment are the same row,
and only the columns whose values are in other files are compared. Rows that are live in only one version by that
measure are candidates: they are identified by row ids, by a key, or by their values, and a row that moved is found on
both sides. Whether a row changed is decided by its values, never by the row versions stored beside it: adding a column
sets those for every row.

Rows are held as offsets by fragment, in bitmaps that store ranges as ranges, and their ids as runs: a fragment of 100
million rows that was appended costs a few kilobytes, and none of its rows is read to find out that they are new. Only
where rows are identified by a key or by their values does memory hold a digest for each candidate row. Values are read
in batches and released, and the digests of a bounded number of pairs are compared at a time.

A stream of rows of both versions needs one schema: the columns of the newer version, then those that only the older
one has. A column that changed its type appears twice, under its name with the newer values and as `<name>_before` with
the older ones. What a version does not have is null.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import (
    Addresses,
    batch_size,
    count_physical_rows,
    group_by_fragment,
    offsets_by_fragment,
    projected_schema,
    row_offsets,
    scan_fragment,
    take_rows,
)
from lance_dagster.diff.manifest_diff import Comparison, FragmentPair
from lance_dagster.diff.row_claims import check_row_claims
from lance_dagster.diff.row_matching import (
    ComparedColumn,
    Digests,
    Flags,
    RowPairs,
    RowPositions,
    digests,
    first_duplicate,
    nulls,
    paired_by_ids,
    paired_by_values,
)
from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.codec import U64Array, decode_row_runs
from lance_dagster.format.model import Fragment
from lance_dagster.format.row_runs import RowRuns, elements
from lance_dagster.history.context import TableContext
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.transactions.row_id_spaces import Translation

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset

_OFFSET_BITS = 32
RowOffsets = Mapping[int, BitMap]
"""Rows of a version: their offsets by fragment id, none of them empty."""
NO_ADDRESSES: Addresses = np.empty(0, np.uint64)


class VersionedRows:
    """The rows of one of two compared versions; `after` is True for the newer one."""

    def __init__(self, parts: TableContext, state: State, *, after: bool) -> None:
        """Take the version; nothing is read yet."""
        self._context = parts
        self._after = after
        self.state = state

    @cached_property
    def dataset(self) -> "LanceDataset":
        """The version as a pylance dataset."""
        # The rows of a fragment are read only where they are live, so its deletion file was decoded before.
        return self._context.dataset(self.state, ())

    def name(self, column: ComparedColumn) -> str:
        """Return the name of a column in this version."""
        return column.after if self._after else column.before

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema in which rows are read."""
        return projected_schema(self.dataset, columns)

    def deleted(self, fragment: Fragment) -> BitMap:
        """Return the offsets of the rows of a fragment that are deleted."""
        return deleted_offsets(self._context.versions, self.state, self._counted(fragment))

    def live(self, fragment: Fragment) -> BitMap:
        """Return the offsets of the live rows of a fragment."""
        return BitMap(range(self._counted(fragment).physical_rows)) - self.deleted(fragment)

    def ids(self, addresses: Addresses) -> U64Array:
        """Return the stable row ids of rows: one element for each row."""
        found = np.empty_like(addresses)
        for number, places in group_by_fragment(addresses):
            offsets = row_offsets(addresses[places]).astype(np.uint64)
            found[places] = self._ids_of(number).at_positions(offsets)
        return found

    def addresses(self, rows: RowOffsets) -> Addresses:
        """Return the addresses of rows, after the files confirmed that there are so many."""
        check_row_claims(self._context.versions, self.state, rows)
        return addresses_of(rows)

    def id_runs(self, rows: RowOffsets) -> dict[int, RowRuns]:
        """Return the stable row ids of rows by fragment and offset."""
        return {number: self._ids_of(number).restricted(offsets) for number, offsets in rows.items()}

    def _ids_of(self, number: int) -> RowRuns:
        fragment = self._fragment(number)
        return decode_row_runs(fragment.row_ids, fragment.physical_rows, f"fragment {number} of {self.state}")

    def digests(self, addresses: Addresses, columns: Sequence[ComparedColumn]) -> tuple[Digests, Flags]:
        """Return the digest of some columns for each row, and which rows have a null in one of them."""
        found, null = np.empty((len(addresses), 2), np.uint64), np.zeros(len(addresses), np.bool_)
        order = np.argsort(addresses)
        ordered = addresses[order]
        names = [self.name(column) for column in columns]
        read = 0
        # Rows are read in storage order and put back into the order that was asked for.
        for part, where in self._parts_of(offsets_by_fragment(ordered), names):
            together = [part.column(name).combine_chunks() for name in names]
            values = [(value, column.shape) for value, column in zip(together, columns, strict=True)]
            places = order[np.searchsorted(ordered, where)]
            found[places] = digests(values, after=self._after)
            null[places] = nulls(together)
            read += len(where)
        # pylance skips rows that it considers deleted. Without this check their digests would be whatever the memory
        # held.
        if read != len(addresses):
            raise CorruptFileError(self.dataset.uri, f"only {read} of {len(addresses)} rows could be read")
        return found, null

    def batches(self, rows: RowOffsets, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns of rows in storage order, a bounded number of rows at a time."""
        for part, _ in self._parts_of(rows, columns):
            yield part

    def take(self, addresses: Addresses, columns: Sequence[str]) -> pa.Table:
        """Read some columns of rows in the given order, all at once."""
        return take_rows(self.dataset, addresses, columns)

    def _parts_of(self, rows: RowOffsets, columns: Sequence[str]) -> Iterator[tuple[pa.Table, Addresses]]:
        for number, offsets in sorted(rows.items()):
            fragment = self._fragment(number)
            # A scan of a whole fragment is much faster than taking every row of it.
            whole = fragment.has_row_count and len(offsets) == fragment.rows
            for part in scan_fragment(self.dataset, number, columns, None if whole else offsets):
                yield part.rows, part.addresses

    def _counted(self, fragment: Fragment) -> Fragment:
        # Very old programs did not record the number of rows.
        if fragment.physical_rows:
            return fragment
        return replace(fragment, physical_rows=count_physical_rows(self.dataset, fragment.id))

    def _fragment(self, number: int) -> Fragment:
        found = self.state.manifest.fragments.find(number)
        if found is None:
            raise CorruptFileError(
                str(self.state), f"a reader finds a fragment {number} that its manifest does not have"
            )
        return found


def addresses_of(rows: RowOffsets) -> Addresses:
    """Return the addresses of rows, ascending: one element for each row."""
    # Addresses ascend, so that values are read in storage order and results come in the order of the table.
    parts = [elements(offsets) + np.uint64(number << _OFFSET_BITS) for number, offsets in sorted(rows.items())]
    addresses: Addresses = np.concatenate([NO_ADDRESSES, *parts])
    return addresses


def _united(parts: Iterable[tuple[int, BitMap]]) -> RowOffsets:
    """Put rows together, given as pairs of a fragment and offsets in it; a fragment may come more than once."""
    found: dict[int, BitMap] = {}
    for number, offsets in parts:
        if offsets:
            found[number] = found[number] | offsets if number in found else offsets
    return found


_PAIRS_AT_ONCE = 4 * 1024 * 1024
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class ByIds:
    """Rows are identified by their stable row ids; None where these are the same in both versions."""

    translation: Translation | None


@dataclass(frozen=True, slots=True)
class ByKey:
    """Rows are identified by the values of some columns."""

    columns: tuple[ComparedColumn, ...]


@dataclass(frozen=True, slots=True)
class ByValues:
    """Rows are identified by all of their values."""


Identity = ByIds | ByKey | ByValues


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifferences:
    """The rows that only one version has, and the addresses of the changed rows in both, pair by pair."""

    removed: RowOffsets
    added: RowOffsets
    changed_before: Addresses
    changed_after: Addresses


@dataclass(slots=True)
class _Candidates:
    """Rows that only one version has, judged by fragments alone, and pairs of rows of which some columns may differ."""

    olds: list[tuple[int, BitMap]] = field(default_factory=list)
    news: list[tuple[int, BitMap]] = field(default_factory=list)
    in_place: list[tuple["_Pairs", tuple[ComparedColumn, ...]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The same rows in both versions: addresses in the newer one to those in the older one, in runs."""

    addresses: RowRuns

    def parts(self, step: int) -> Iterator[tuple[Addresses, Addresses]]:
        """Yield the older and the newer addresses of at most `step` pairs at a time."""
        runs = self.addresses
        # These map the number of a pair to its addresses. A run is cut where a portion ends, never expanded whole.
        olds, news = runs.packed_positions(), RowRuns(runs.at, runs.count, runs.at).packed_positions()
        for start in range(0, runs.rows, step):
            yield olds.sliced(start, step).values(), news.sliced(start, step).values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identified:
    """Candidate rows: those that only one version has, and those that were found in both."""

    removed: RowOffsets
    added: RowOffsets
    pairs: _Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """Two versions whose rows are compared, the columns to compare, and how rows are identified."""

    before: VersionedRows
    after: VersionedRows
    comparison: Comparison
    columns: tuple[ComparedColumn, ...]
    identity: Identity

    def changes(self) -> RowDifferences:
        """Find the rows that differ.

        Raises:
            InvalidInputError: Two rows have the same key.
        """
        # Fragments are compared first: rows in fragments that both versions share are not read at all.
        candidates = self._candidates()
        found = self._identified(_united(candidates.olds), _united(candidates.news))
        pairs = list(candidates.in_place)
        # Rows paired by their values are equal and cannot have changed.
        if not isinstance(self.identity, ByValues):
            pairs.append((found.pairs, self.columns))
        changed = [part for pair in pairs for part in self._changed(*pair)]
        changed_before = np.concatenate([NO_ADDRESSES, *(one for one, _ in changed)])
        changed_after = np.concatenate([NO_ADDRESSES, *(other for _, other in changed)])
        # Changed rows are put in the order of the newer version, in which `added` rows are too.
        order = np.argsort(changed_after)
        return RowDifferences(
            removed=found.removed,
            added=found.added,
            changed_before=changed_before[order],
            changed_after=changed_after[order],
        )

    def _candidates(self) -> _Candidates:
        found = _Candidates()
        keys = self.identity.columns if isinstance(self.identity, ByKey) else ()
        for pair in self.comparison.match.pairs:
            rewritten = pair.rewritten(self.comparison.matched)
            differing = tuple(column for column in self.columns if not column.ids.isdisjoint(rewritten))
            if any(not column.ids.isdisjoint(rewritten) for column in keys):
                # A rewritten key column: the row at an offset may be another row by its key.
                found.olds.append((pair.before.id, self.before.live(pair.before)))
                found.news.append((pair.after.id, self.after.live(pair.after)))
            elif differing or not pair.same_deletions:
                self._compare_in_place(found, pair, differing)
        found.olds += [(fragment.id, self.before.live(fragment)) for fragment in self.comparison.match.removed]
        found.news += [(fragment.id, self.after.live(fragment)) for fragment in self.comparison.match.added]
        return found

    def _compare_in_place(self, found: _Candidates, pair: FragmentPair, differing: tuple[ComparedColumn, ...]) -> None:
        was, is_now = self.before.deleted(pair.before), self.after.deleted(pair.after)
        # Rows deleted since were removed, or moved to another fragment by an update.
        found.olds.append((pair.before.id, is_now - was))
        # Rows that are live again were undeleted by a restore or a revert.
        found.news.append((pair.after.id, was - is_now))
        if differing:
            # These rows are at the same offsets in both versions, and live in both.
            rows = RowRuns.itself(self.before.live(pair.before) - is_now)
            both = rows.moved(at=pair.after.id << _OFFSET_BITS, first=pair.before.id << _OFFSET_BITS)
            found.in_place.append((_Pairs(both), differing))

    def _identified(self, olds: RowOffsets, news: RowOffsets) -> _Identified:
        """Find out which rows of the older version are which of the newer one.

        Raises:
            InvalidInputError: Two rows have the same key.
        """
        match self.identity:
            case ByIds(translation):
                return self._identified_by_ids(olds, news, translation)
            case ByKey(keys):
                one, other = self.before.addresses(olds), self.after.addresses(news)
                return _of_pairs(one, other, self._paired_by_key(one, other, keys))
            case ByValues():
                if not (self.columns and olds and news):
                    # Without a common column no two rows can be equal, and rows of one side alone need not be read.
                    return _Identified(removed=olds, added=news, pairs=_Pairs(RowRuns.of(())))
                one, other = self.before.addresses(olds), self.after.addresses(news)
                return _of_pairs(one, other, self._paired_by_values(one, other))

    def _identified_by_ids(self, olds: RowOffsets, news: RowOffsets, translation: Translation | None) -> _Identified:
        """Pair rows by their stable ids: by runs, since most candidates are whole fragments."""
        old_ids = self.before.id_runs(olds)
        if translation is not None:
            # A row without an id in the newer version was never there, so it is removed.
            old_ids = {number: ids.through(translation.runs) for number, ids in old_ids.items()}
        pairs = paired_by_ids(old_ids, self.after.id_runs(news))
        return _Identified(removed=_without(olds, pairs.inverse()), added=_without(news, pairs), pairs=_Pairs(pairs))

    def _paired_by_values(self, olds: Addresses, news: Addresses) -> RowPairs:
        # Without a common column no two rows can be equal.
        if not self.columns or not len(olds) or not len(news):
            nothing: RowPositions = np.empty(0, np.int64)
            return RowPairs(nothing, nothing, np.arange(len(olds)), np.arange(len(news)))
        return paired_by_values(self.before.digests(olds, self.columns)[0], self.after.digests(news, self.columns)[0])

    def _paired_by_key(self, olds: Addresses, news: Addresses, keys: tuple[ComparedColumn, ...]) -> RowPairs:
        """Pair rows of equal keys; those with a null in the key by values, so that a mere move is not a change."""
        old_keys, old_null = keys_of(self.before, olds, keys)
        new_keys, new_null = keys_of(self.after, news, keys)
        paired = paired_by_values(old_keys[~old_null], new_keys[~new_null])
        old_places, new_places = np.flatnonzero(old_null), np.flatnonzero(new_null)
        # A null key equals no key, so these rows cannot be paired by key.
        same = self._paired_by_values(olds[old_places], news[new_places])
        one = np.concatenate([np.flatnonzero(~old_null)[paired.before], old_places[same.before]])
        other = np.concatenate([np.flatnonzero(~new_null)[paired.after], new_places[same.after]])
        return RowPairs(
            one,
            other,
            np.setdiff1d(np.arange(len(olds)), one, assume_unique=True),
            np.setdiff1d(np.arange(len(news)), other, assume_unique=True),
        )

    def _changed(self, pairs: _Pairs, columns: tuple[ComparedColumn, ...]) -> Iterator[tuple[Addresses, Addresses]]:
        """Yield the older and the newer addresses of the rows that differ in some columns."""
        # Pairs are compared in bounded portions: the digests of all pairs of a large table would not fit into memory.
        for olds, news in pairs.parts(_PAIRS_AT_ONCE) if columns else ():
            one, other = self.before.digests(olds, columns)[0], self.after.digests(news, columns)[0]
            chosen = np.any(one != other, axis=1)
            yield olds[chosen], news[chosen]


def _without(rows: RowOffsets, addresses: RowRuns) -> RowOffsets:
    """Return rows without those whose addresses are positions of a map."""
    each = 1 << _OFFSET_BITS
    return _united(
        (number, offsets - addresses.sliced(number * each, each).positions) for number, offsets in rows.items()
    )


def _of_pairs(olds: Addresses, news: Addresses, paired: RowPairs) -> _Identified:
    """Return the rows as identified by pairs of positions in their addresses."""
    one, other = olds[paired.before], news[paired.after]
    count = np.ones(len(other), np.uint64)
    order = np.argsort(other)
    return _Identified(
        removed=offsets_by_fragment(olds[paired.removed]),
        added=offsets_by_fragment(news[paired.added]),
        pairs=_Pairs(RowRuns(other[order], count, one[order])),
    )


def keys_of(side: VersionedRows, addresses: Addresses, keys: tuple[ComparedColumn, ...]) -> tuple[Digests, Flags]:
    """Return the digests of the keys of rows, and which rows have a null in the key.

    Raises:
        InvalidInputError: Two rows have the same key.
    """
    digests, null = side.digests(addresses, keys)
    places = np.flatnonzero(~null)
    # Only rows that were read are checked; duplicates in shared fragments are not looked for.
    doubled = first_duplicate(digests[places])
    if doubled is not None:
        names = [side.name(column) for column in keys]
        row = side.take(addresses[places[doubled : doubled + 1]], names).to_pylist()[0]
        shown = ", ".join(f"{name} = {str(value)[:_SHOWN]!r}" for name, value in row.items())
        raise InvalidInputError(f"two rows of {side.state} have the key {shown}; a key may come once in a version")
    return digests, null


def parts_of(count: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` rows that cover `count` rows."""
    yield from (slice(start, start + step) for start in range(0, count, step))


CHANGE_TYPE, CHANGE_ID = "_change_type", "_change_id"
INSERT, DELETE, PREIMAGE, POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"
_BEFORE = "_before"


@dataclass(frozen=True, slots=True)
class _StreamColumn:
    """A column of the stream, and its name in each version; None in a version that does not have it."""

    column: "pa.Field[Any]"
    before: str | None
    after: str | None


class ChangedRows:
    """Reads the rows that differ as streams."""

    def __init__(
        self, before: VersionedRows, after: VersionedRows, comparison: Comparison, columns: Sequence[str] | None
    ) -> None:
        """Take the versions and the columns to read; None for all."""
        self._before, self._after = before, after
        self._names = _readable(comparison, columns)
        self._comparison = comparison

    def added(self, changes: RowDifferences) -> pa.RecordBatchReader:
        """Read the rows only the newer version has, as it has them."""
        return _read_version(self._after, changes.added, self._names[1])

    def removed(self, changes: RowDifferences) -> pa.RecordBatchReader:
        """Read the rows only the older version has, as it had them."""
        return _read_version(self._before, changes.removed, self._names[0])

    def feed(self, changes: RowDifferences) -> pa.RecordBatchReader:
        """Read rows of every kind as a change feed; a preimage is followed by its postimage."""
        shown = self._shown()
        marks: list[pa.Field[Any]] = [
            pa.field(CHANGE_TYPE, pa.string(), nullable=False),
            pa.field(CHANGE_ID, pa.int64(), nullable=False),
        ]
        schema = pa.schema([*marks, *(one.column for one in shown)])

        def batches() -> Iterator[pa.RecordBatch]:
            number = 0
            for table, kinds in self._context(changes, shown):
                # A preimage and its postimage are one change, so both get the same id.
                rows_each = len(kinds)
                ids = number + np.arange(table.num_rows) // rows_each
                number += table.num_rows // rows_each
                columns: list[Any] = [
                    pa.array(kinds * (table.num_rows // rows_each), pa.string()),
                    pa.array(ids, pa.int64()),
                ]
                whole = pa.table([*columns, *table.columns], schema=schema)
                yield from whole.to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _context(self, changes: RowDifferences, shown: Sequence[_StreamColumn]) -> Iterator[tuple[pa.Table, list[str]]]:
        for rows in self._before.batches(changes.removed, self._names[0]):
            yield _as_stream(rows, shown, after=False), [DELETE]
        step = batch_size(self._after.dataset.schema)
        for part in parts_of(len(changes.changed_after), step):
            olds = self._before.take(changes.changed_before[part], self._names[0])
            news = self._after.take(changes.changed_after[part], self._names[1])
            both = pa.concat_tables([_as_stream(olds, shown, after=False), _as_stream(news, shown, after=True)])
            count = olds.num_rows
            # The rows are interleaved: preimage and postimage of each row follow one another.
            yield both.take(np.arange(2 * count).reshape(2, count).T.ravel()), [PREIMAGE, POSTIMAGE]
        for rows in self._after.batches(changes.added, self._names[1]):
            yield _as_stream(rows, shown, after=True), [INSERT]

    def _shown(self) -> list[_StreamColumn]:
        olds, news = self._before.schema(self._names[0]), self._after.schema(self._names[1])
        matched, before, after = self._comparison.matched, self._comparison.before, self._comparison.after
        origins = {
            after.by_id[matched[field.id]].name: field.name for field in before.below(None) if field.id in matched
        }
        shown: list[_StreamColumn] = []
        left = list(olds.names)
        for column in news:
            origin = origins.get(column.name)
            if origin in left and (kind := _common_type(olds.field(origin).type, column.type)) is not None:
                left.remove(origin)
                shown.append(_StreamColumn(_nullable(column.with_type(kind)), origin, column.name))
            else:
                shown.append(_StreamColumn(_nullable(column), None, column.name))
        # A column that keeps its old values under `<name>_before` must not hide a column of that very name.
        taken = {one.column.name for one in shown}
        for name in left:
            column = _nullable(olds.field(name))
            renamed = column.with_name(_unused_name(name, taken))
            taken.add(renamed.name)
            shown.append(_StreamColumn(renamed, name, None))
        return shown


def _readable(comparison: Comparison, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the columns to read from each version, in the order of that version."""
    before, after = comparison.before, comparison.after
    if columns is None:
        return [field.name for field in before.below(None)], [field.name for field in after.below(None)]
    origins = {new: old for old, new in comparison.matched.items()}
    news = {field.name: field for field in after.below(None)}
    olds = {field.name: field for field in before.below(None)}
    of_old = [
        before.by_id[origins[news[name].id]].name for name in columns if name in news and news[name].id in origins
    ]
    of_old += [name for name in columns if name not in news and name in olds]
    return list(dict.fromkeys(of_old)), [name for name in columns if name in news]


def _read_version(side: VersionedRows, found: RowOffsets, names: Sequence[str]) -> pa.RecordBatchReader:
    schema = side.schema(names)

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in side.batches(found, names):
            # pylance may mark columns nullable that the schema does not; the stream has one schema.
            yield from (rows if rows.schema == schema else rows.cast(schema)).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _as_stream(rows: pa.Table, shown: Sequence[_StreamColumn], *, after: bool) -> pa.Table:
    found = []
    for one in shown:
        name = one.after if after else one.before
        if name is None:
            found.append(pa.nulls(rows.num_rows, one.column.type))
            continue
        values = rows.column(name)
        found.append(values if values.type == one.column.type else values.cast(one.column.type))
    return pa.table(found, schema=pa.schema([one.column for one in shown]))


def _nullable(column: "pa.Field[Any]") -> "pa.Field[Any]":
    # A row of the other version may have no value in this column.
    return column.with_nullable(nullable=True)


def _unused_name(name: str, taken: set[str]) -> str:
    if name in taken:
        name = f"{name}{_BEFORE}"
    while name in taken:
        name = f"{name}_"
    return name


def _common_type(before: pa.DataType, after: pa.DataType) -> Any:  # noqa: ANN401  # as below
    """Return a type that holds the values of both unchanged, ignoring the nullability of inner fields; None if none."""
    if before == after:
        return after
    one, other = _relaxed(before), _relaxed(after)
    return other if one == other else None


def _relaxed(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    if pa.types.is_struct(arrow):
        fields = [arrow.field(place) for place in range(arrow.num_fields)]
        return pa.struct([pa.field(field.name, _relaxed(field.type)) for field in fields])
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(pa.field("item", _relaxed(arrow.value_type)), arrow.list_size)
    if pa.types.is_list(arrow):
        return pa.list_(pa.field("item", _relaxed(arrow.value_type)))
    if pa.types.is_large_list(arrow):
        return pa.large_list(pa.field("item", _relaxed(arrow.value_type)))
    return arrow
