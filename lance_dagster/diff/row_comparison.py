"""Find the rows that differ between two versions.

Fragments that are equal in both versions are not read. Rows at the same offset of the same fragment are the same row,
and only the columns whose values are in other files are compared. Rows that seem live in only one version, by fragment
and offset, are candidates: they are identified by row ids, by a key, or by their values, and a row that moved is found
on both sides. Whether a row changed is decided by its values, never by the row versions stored beside it: adding a
column sets the row versions of every row.

Rows are held as offsets by fragment, in bitmaps that store ranges as ranges, and their ids as runs: a fragment of 100
million rows that was appended costs a few kilobytes, and none of its rows is read to find out that they are new. Only
where rows are identified by a key or by their values does memory hold a digest for each candidate row. Values are read
in batches and released, and the digests of a bounded number of pairs are compared at a time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap

from lance_dagster.datafiles import (
    Addresses,
    offsets_by_fragment,
)
from lance_dagster.diff.comparison_shapes import ComparedColumn
from lance_dagster.diff.manifest_diff import Comparison, FragmentPair
from lance_dagster.diff.row_digests import Digests
from lance_dagster.diff.row_matching import (
    Flags,
    RowPairs,
    RowPositions,
    first_duplicate,
    paired_by_ids,
    paired_by_values,
)
from lance_dagster.diff.versioned_rows import NO_ADDRESSES, OFFSET_BITS, RowOffsets, VersionedRows
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.transactions.row_id_spaces import Translation


def _united(parts: Iterable[tuple[int, BitMap]]) -> RowOffsets:
    """Put rows together, given as pairs of a fragment and offsets in it; a fragment may come more than once."""
    offsets_by_fragment: dict[int, BitMap] = {}
    for number, offsets in parts:
        if offsets:
            offsets_by_fragment[number] = (
                offsets_by_fragment[number] | offsets if number in offsets_by_fragment else offsets
            )
    return offsets_by_fragment


_PAIRS_AT_ONCE = 4 * 1024 * 1024
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class ByIds:
    """Rows are identified by stable row ids; `translation` is None where both versions use the same ids."""

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
    """Rows that only one version has, judged by fragments alone, and pairs of rows with columns that may differ."""

    olds: list[tuple[int, BitMap]] = field(default_factory=list)
    news: list[tuple[int, BitMap]] = field(default_factory=list)
    in_place: list[tuple["_Pairs", tuple[ComparedColumn, ...]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The same rows in both versions: a map from addresses in the newer to addresses in the older version, in runs."""

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
    """Candidate rows: rows that only one version has, and pairs of rows that both versions have."""

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
        identified = self._identified(_united(candidates.olds), _united(candidates.news))
        pairs = list(candidates.in_place)
        # Rows paired by their values are equal and cannot have changed.
        if not isinstance(self.identity, ByValues):
            pairs.append((identified.pairs, self.columns))
        changed = [part for pair in pairs for part in self._changed(*pair)]
        changed_before = np.concatenate([NO_ADDRESSES, *(before for before, _ in changed)])
        changed_after = np.concatenate([NO_ADDRESSES, *(after for _, after in changed)])
        # Changed rows are put in the order of the newer version, in which `added` rows are too.
        order = np.argsort(changed_after)
        return RowDifferences(
            removed=identified.removed,
            added=identified.added,
            changed_before=changed_before[order],
            changed_after=changed_after[order],
        )

    def _candidates(self) -> _Candidates:
        candidates = _Candidates()
        keys = self.identity.columns if isinstance(self.identity, ByKey) else ()
        for pair in self.comparison.match.pairs:
            rewritten = pair.rewritten(self.comparison.matched)
            differing = tuple(column for column in self.columns if not column.ids.isdisjoint(rewritten))
            if any(not column.ids.isdisjoint(rewritten) for column in keys):
                # A rewritten key column: the row at an offset may be another row by its key.
                candidates.olds.append((pair.before.id, self.before.live(pair.before)))
                candidates.news.append((pair.after.id, self.after.live(pair.after)))
            elif differing or not pair.same_deletions:
                self._compare_in_place(candidates, pair, differing)
        candidates.olds += [(fragment.id, self.before.live(fragment)) for fragment in self.comparison.match.removed]
        candidates.news += [(fragment.id, self.after.live(fragment)) for fragment in self.comparison.match.added]
        return candidates

    def _compare_in_place(
        self, candidates: _Candidates, pair: FragmentPair, differing: tuple[ComparedColumn, ...]
    ) -> None:
        was, is_now = self.before.deleted(pair.before), self.after.deleted(pair.after)
        # Rows deleted since were removed, or moved to another fragment by an update.
        candidates.olds.append((pair.before.id, is_now - was))
        # Rows that are live again were undeleted by a restore or a revert.
        candidates.news.append((pair.after.id, was - is_now))
        if differing:
            # These rows are at the same offsets in both versions, and live in both.
            rows = RowRuns.itself(self.before.live(pair.before) - is_now)
            addresses = rows.moved(at=pair.after.id << OFFSET_BITS, first=pair.before.id << OFFSET_BITS)
            candidates.in_place.append((_Pairs(addresses), differing))

    def _identified(self, olds: RowOffsets, news: RowOffsets) -> _Identified:
        """Find out which rows of the older version are which rows of the newer version.

        Raises:
            InvalidInputError: Two rows have the same key.
        """
        match self.identity:
            case ByIds(translation):
                return self._identified_by_ids(olds, news, translation)
            case ByKey(keys):
                old_addresses, new_addresses = self.before.addresses(olds), self.after.addresses(news)
                return _of_pairs(old_addresses, new_addresses, self._paired_by_key(old_addresses, new_addresses, keys))
            case ByValues():
                if not (self.columns and olds and news):
                    # Without a common column no two rows can be equal, and rows of one side alone need not be read.
                    return _Identified(removed=olds, added=news, pairs=_Pairs(RowRuns.of(())))
                old_addresses, new_addresses = self.before.addresses(olds), self.after.addresses(news)
                return _of_pairs(old_addresses, new_addresses, self._paired_by_values(old_addresses, new_addresses))

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
        """Pair rows by key; rows with a null in the key by their values, so that a mere move is not a change."""
        old_keys, old_null = keys_of(self.before, olds, keys)
        new_keys, new_null = keys_of(self.after, news, keys)
        paired = paired_by_values(old_keys[~old_null], new_keys[~new_null])
        old_places, new_places = np.flatnonzero(old_null), np.flatnonzero(new_null)
        # A null key equals no key, so these rows cannot be paired by key.
        same = self._paired_by_values(olds[old_places], news[new_places])
        old_positions = np.concatenate([np.flatnonzero(~old_null)[paired.before], old_places[same.before]])
        new_positions = np.concatenate([np.flatnonzero(~new_null)[paired.after], new_places[same.after]])
        return RowPairs(
            old_positions,
            new_positions,
            np.setdiff1d(np.arange(len(olds)), old_positions, assume_unique=True),
            np.setdiff1d(np.arange(len(news)), new_positions, assume_unique=True),
        )

    def _changed(self, pairs: _Pairs, columns: tuple[ComparedColumn, ...]) -> Iterator[tuple[Addresses, Addresses]]:
        """Yield the older and the newer addresses of the rows that differ in some columns."""
        # Pairs are compared in bounded portions: the digests of all pairs of a large table would not fit into memory.
        for olds, news in pairs.parts(_PAIRS_AT_ONCE) if columns else ():
            old_digests, new_digests = self.before.digests(olds, columns)[0], self.after.digests(news, columns)[0]
            chosen = np.any(old_digests != new_digests, axis=1)
            yield olds[chosen], news[chosen]


def _without(rows: RowOffsets, addresses: RowRuns) -> RowOffsets:
    """Return rows without the rows whose addresses are positions of a map."""
    addresses_of_fragment = 1 << OFFSET_BITS
    return _united(
        (number, offsets - addresses.sliced(number * addresses_of_fragment, addresses_of_fragment).positions)
        for number, offsets in rows.items()
    )


def _of_pairs(olds: Addresses, news: Addresses, paired: RowPairs) -> _Identified:
    """Return the rows as identified by pairs of positions in their addresses."""
    old_addresses, new_addresses = olds[paired.before], news[paired.after]
    count = np.ones(len(new_addresses), np.uint64)
    order = np.argsort(new_addresses)
    return _Identified(
        removed=offsets_by_fragment(olds[paired.removed]),
        added=offsets_by_fragment(news[paired.added]),
        pairs=_Pairs(RowRuns(new_addresses[order], count, old_addresses[order])),
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
        (row,) = shown_rows(side.take(addresses[places[doubled : doubled + 1]], names))
        shown = ", ".join(f"{name} = {str(value)[:_SHOWN]!r}" for name, value in row.items())
        raise InvalidInputError(f"two rows of {side.state} have the key {shown}; a key may come once in a version")
    return digests, null


def parts_of(count: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` rows that cover `count` rows."""
    yield from (slice(start, start + step) for start in range(0, count, step))
