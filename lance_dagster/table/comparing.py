"""Which rows differ between two versions.

Fragments that are the same in both are not looked at. Of the others, rows at the same offset of the same fragment are
the same row; only the columns whose values lie in other files are compared. Rows that are live in one version alone,
by that measure, are told by their ids, by a key, or by their values: a row that moved is in both. Whether such a row
changed is told by its values, never by the versions written down beside it, which other changes set as well.

In memory are, for each row of a fragment that differs, its address and its id, or the digest it is known by; and
digests of some million pairs of rows at a time. Values are read in batches and let go.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from lance_dagster.changes.diff import Comparison
from lance_dagster.changes.diff_fragments import FragmentPair
from lance_dagster.changes.diff_rows import Flags, Paired, Places, paired_by_ids, paired_by_values, twice
from lance_dagster.changes.diff_values import ComparedColumn, Digests
from lance_dagster.changes.row_spaces import Translation
from lance_dagster.datafiles import Addresses
from lance_dagster.errors import InvalidInputError
from lance_dagster.table.versioned_rows import NO_ADDRESSES, VersionedRows, addresses_of

_PAIRS_AT_ONCE = 4 * 1024 * 1024
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class ByIds:
    """Rows are told by their stable ids; None where these are the same in both versions."""

    translation: Translation | None


@dataclass(frozen=True, slots=True)
class ByKey:
    """Rows are told by the values of some columns."""

    columns: tuple[ComparedColumn, ...]


@dataclass(frozen=True, slots=True)
class ByValues:
    """Rows are told by all they hold."""


Identity = ByIds | ByKey | ByValues


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """Addresses of the rows that differ: in the older version, in the newer one, and in both, in the same order."""

    removed: Addresses
    added: Addresses
    changed_before: Addresses
    changed_after: Addresses


@dataclass(slots=True)
class _Candidates:
    """Rows of one version alone, as far as fragments tell, and rows of both of which some columns may differ."""

    olds: list[Addresses] = field(default_factory=lambda: [NO_ADDRESSES])
    news: list[Addresses] = field(default_factory=lambda: [NO_ADDRESSES])
    in_place: list[tuple[Addresses, Addresses, tuple[ComparedColumn, ...]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """Two versions whose rows are compared: what their manifests tell, in which columns, and how rows are told."""

    before: VersionedRows
    after: VersionedRows
    comparison: Comparison
    columns: tuple[ComparedColumn, ...]
    identity: Identity

    def changes(self) -> RowChanges:
        """Find the rows that differ.

        Raises:
            InvalidInputError: Two rows have the same key.
        """
        found = self._candidates()
        olds, news = np.sort(np.concatenate(found.olds)), np.sort(np.concatenate(found.news))
        paired = self._paired(olds, news)
        pairs = list(found.in_place)
        if not isinstance(self.identity, ByValues):
            pairs.append((olds[paired.before], news[paired.after], self.columns))
        changed = [self._changed(*pair) for pair in pairs]
        changed_before = np.concatenate([NO_ADDRESSES, *(one for one, _ in changed)])
        changed_after = np.concatenate([NO_ADDRESSES, *(other for _, other in changed)])
        order = np.argsort(changed_after)
        return RowChanges(
            removed=olds[paired.removed],
            added=news[paired.added],
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
                # Rows of the same place may have another key.
                found.olds.append(self.before.live(pair.before))
                found.news.append(self.after.live(pair.after))
            elif differing or not pair.same_deletions:
                self._compare_in_place(found, pair, differing)
        found.olds += map(self.before.live, self.comparison.match.removed)
        found.news += map(self.after.live, self.comparison.match.added)
        return found

    def _compare_in_place(self, found: _Candidates, pair: FragmentPair, differing: tuple[ComparedColumn, ...]) -> None:
        was, is_now = self.before.deleted(pair.before), self.after.deleted(pair.after)
        found.olds.append(addresses_of(pair.before, is_now - was))
        found.news.append(addresses_of(pair.after, was - is_now))
        if differing:
            both = self.before.live(pair.before, is_now), self.after.live(pair.after, was)
            found.in_place.append((*both, differing))

    def _paired(self, olds: Addresses, news: Addresses) -> Paired:
        match self.identity:
            case ByIds(translation):
                ids = self.before.ids(olds)
                known: Flags = np.ones(len(ids), np.bool_)
                if translation is not None:
                    ids, known = translation.apply(ids)
                return paired_by_ids(ids, known, self.after.ids(news))
            case ByKey(keys):
                return self._paired_by_key(olds, news, keys)
            case ByValues():
                return self._paired_by_values(olds, news)

    def _paired_by_values(self, olds: Addresses, news: Addresses) -> Paired:
        # Rows without a column in common have nothing by which they could be equal.
        if not self.columns or not len(olds) or not len(news):
            nothing: Places = np.empty(0, np.int64)
            return Paired(nothing, nothing, np.arange(len(olds)), np.arange(len(news)))
        return paired_by_values(self.before.digests(olds, self.columns)[0], self.after.digests(news, self.columns)[0])

    def _paired_by_key(self, olds: Addresses, news: Addresses, keys: tuple[ComparedColumn, ...]) -> Paired:
        """Pair rows of the same key. Those with a null in it are known by their values: to have moved is no change."""
        old_keys, old_null = keys_of(self.before, olds, keys)
        new_keys, new_null = keys_of(self.after, news, keys)
        paired = paired_by_values(old_keys[~old_null], new_keys[~new_null])
        old_places, new_places = np.flatnonzero(old_null), np.flatnonzero(new_null)
        same = self._paired_by_values(olds[old_places], news[new_places])
        one = np.concatenate([np.flatnonzero(~old_null)[paired.before], old_places[same.before]])
        other = np.concatenate([np.flatnonzero(~new_null)[paired.after], new_places[same.after]])
        return Paired(
            one,
            other,
            np.setdiff1d(np.arange(len(olds)), one, assume_unique=True),
            np.setdiff1d(np.arange(len(news)), other, assume_unique=True),
        )

    def _changed(
        self, olds: Addresses, news: Addresses, columns: tuple[ComparedColumn, ...]
    ) -> tuple[Addresses, Addresses]:
        if not columns:
            return NO_ADDRESSES, NO_ADDRESSES
        differing = [np.empty(0, np.bool_)]
        for part in parts_of(len(olds), _PAIRS_AT_ONCE):
            one, other = self.before.digests(olds[part], columns)[0], self.after.digests(news[part], columns)[0]
            differing.append(np.any(one != other, axis=1))
        chosen = np.concatenate(differing)
        return olds[chosen], news[chosen]


def keys_of(side: VersionedRows, addresses: Addresses, keys: tuple[ComparedColumn, ...]) -> tuple[Digests, Flags]:
    """Return the digests of the keys of rows, and which rows have a null in theirs.

    Raises:
        InvalidInputError: Two rows have the same key.
    """
    digests, null = side.digests(addresses, keys)
    places = np.flatnonzero(~null)
    doubled = twice(digests[places])
    if doubled is not None:
        names = [side.name(column) for column in keys]
        row = side.take(addresses[places[doubled : doubled + 1]], names).to_pylist()[0]
        shown = ", ".join(f"{name} = {str(value)[:_SHOWN]!r}" for name, value in row.items())
        raise InvalidInputError(f"two rows of {side.state} have the key {shown}; a key may come once in a version")
    return digests, null


def parts_of(count: int, step: int) -> Iterator[slice]:
    """Cut so many rows into stretches of at most `step`."""
    yield from (slice(start, start + step) for start in range(0, count, step))
