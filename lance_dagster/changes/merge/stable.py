"""Find rows of the merge base by their row ids, where the table keeps these stable.

Which rows got new values is read from the versions the side made: an update writes its rows into new fragments under
the ids they had, stamped as updated by that version; a compaction keeps the stamps. Where a version was cleaned up,
the stamps of the newest one have to do, which takes a row for updated whose columns only changed before it was moved:
more is refused then than has to be, and nothing is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lance_dagster.changes.merge.fates import (
    GONE,
    INSERTED,
    OFFSET_BITS,
    SHARED,
    Addresses,
    Elsewhere,
    Flags,
    addresses_of,
    unplaced,
)
from lance_dagster.changes.merge.matching import Matched, present
from lance_dagster.changes.row_spaces import RowSpace, Translation
from lance_dagster.changes.sides import Deleted, Side
from lance_dagster.format.codec import U64Array, decode_row_ids, decode_versions, smallest_row_id
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.transaction import Merge, Restore, Update


@dataclass(frozen=True, slots=True)
class Identities:
    """What the row ids of a side mean: ids of the merge base, or addresses of rows that only the sides share.

    `gone` are the addresses of rows that the base knows, for those it has deleted.
    """

    base: Translation
    shared: Translation
    gone: Translation

    @classmethod
    def of_both(cls, base: RowSpace, source: RowSpace, dest: RowSpace) -> "tuple[Identities, Identities]":
        """Return what the ids of source and dest mean.

        Rows of branches that were merged into both, crosswise or from a third one that is gone, are not in the base.
        """
        ours, theirs, both = source.translation(base), dest.translation(base), source.translation(dest)
        shared = both.beyond(ours)
        gone = both.beyond(shared)
        return (
            cls(ours, shared.shifted(SHARED << OFFSET_BITS), gone.shifted(GONE << OFFSET_BITS)),
            cls(
                theirs,
                _itself(shared.back).shifted(SHARED << OFFSET_BITS),
                _itself(gone.back).shifted(GONE << OFFSET_BITS),
            ),
        )


def _itself(translation: Translation) -> Translation:
    """Return a translation of the same ids to themselves."""
    return Translation(tuple((first, end, first) for first, end, _ in translation.stretches))


def located_by_ids(identities: Identities, side: Side, matched: Matched, deleted: Deleted) -> dict[int, Elsewhere]:
    """Return the rows of a side that are in the place of no fragment of the merge base.

    Args:
        identities: What its row ids mean.
        side: The side.
        matched: Its fragments beside those of the base.
        deleted: Reads deletion vectors.
    """
    index = _Index(matched.base, matched.changed, deleted)
    updated = _Updated.of(side, deleted)
    known_below = max(identities.base.end, identities.shared.end)
    found: dict[int, Elsewhere] = {}
    for number, live in unplaced(matched, deleted):
        fragment = present(side.manifest, number)
        lowest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if lowest is not None and lowest >= known_below:
            # All of its rows came after the merge base; there is no need to know which.
            addresses = np.full(fragment.physical_rows, INSERTED, np.int64)
            new = np.zeros(fragment.physical_rows, np.bool_)
            back = new
        else:
            ids = _ids(fragment, side.name)
            addresses, alive = index.addresses(*identities.base.apply(ids))
            there, shared = identities.shared.apply(ids)
            addresses[shared] = there[shared].astype(np.int64)
            there, known = identities.gone.apply(ids)
            back = known & ~alive & ~shared
            addresses[back] = there[back].astype(np.int64)
            new = updated.among(ids)
            if updated.by_stamps:
                new |= index.stamped_otherwise(addresses, _stamps(fragment, side.name), side.common)
            own = matched.base_of(number)
            if own is not None:
                # Brought back to life: an older state of a row that the base has elsewhere, or one it has no more.
                addresses = np.where(alive | back, addresses, addresses_of(fragment, own))
                new, back = alive, ~alive
        found[number] = Elsewhere(fragment=fragment, addresses=addresses, updated=new, back=back, live=live)
    return found


class _Index:
    """Where the rows of some fragments of the merge base are, by row id; made when it is asked for the first time."""

    def __init__(self, base: Manifest, fragments: Iterable[int], deleted: Deleted) -> None:
        self._base, self._fragments, self._deleted = base, sorted(fragments), deleted
        self._sorted: tuple[U64Array, Addresses, Flags] | None = None

    def addresses(self, ids: U64Array, known: Flags) -> tuple[Addresses, Flags]:
        """Return where rows are in the base, and which of them are alive there."""
        found, alive = np.full(len(ids), INSERTED, np.int64), np.zeros(len(ids), np.bool_)
        if known.any():
            have, where, dead = self._lookup()
            if len(have):
                places = np.minimum(np.searchsorted(have, ids), len(have) - 1)
                hit = known & (have[places] == ids)
                found[hit], alive[hit] = where[places[hit]], ~dead[places[hit]]
        return found, alive

    def stamped_otherwise(self, addresses: Addresses, stamps: U64Array, common: int) -> Flags:
        """Tell which rows the base says were last updated by another version, or after the last common one."""
        differ = np.zeros(len(addresses), np.bool_)
        known = addresses != INSERTED
        # What the base does not have may have changed: more is refused then than has to be.
        differ |= addresses >> OFFSET_BITS >= GONE
        known &= ~differ
        for number in np.unique(addresses[known] >> OFFSET_BITS).tolist():
            here = known & (addresses >> OFFSET_BITS == number)
            own = _stamps(present(self._base, number), "the merge base")
            before = own[addresses[here] & (2**OFFSET_BITS - 1)]
            differ[here] = (before != stamps[here]) | (before > np.uint64(common))
        return differ

    def _lookup(self) -> tuple[U64Array, Addresses, Flags]:
        if self._sorted is None:
            parts = [self._rows_of(number) for number in self._fragments]
            ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _, _ in parts)])
            where = np.concatenate([np.empty(0, np.int64), *(where for _, where, _ in parts)])
            dead = np.concatenate([np.empty(0, np.bool_), *(dead for _, _, dead in parts)])
            # Of a row that was moved before, the place where it is alive counts.
            order = np.lexsort((dead, ids))
            ids, where, dead = ids[order], where[order], dead[order]
            first = np.r_[True, ids[1:] != ids[:-1]] if len(ids) else np.empty(0, np.bool_)
            self._sorted = ids[first], where[first], dead[first]
        return self._sorted

    def _rows_of(self, number: int) -> tuple[U64Array, Addresses, Flags]:
        fragment = present(self._base, number)
        dead = np.zeros(fragment.physical_rows, np.bool_)
        dead[np.array(self._deleted(self._base, fragment), np.int64)] = True
        return _ids(fragment, "the merge base"), addresses_of(fragment, number), dead


@dataclass(frozen=True, slots=True)
class _Updated:
    """The ids of rows that got new values since the merge base, and whether stamps have to be asked too."""

    ids: U64Array
    by_stamps: bool

    @classmethod
    def of(cls, side: Side, deleted: Deleted) -> "_Updated":
        ids = np.empty(0, np.uint64)
        known: dict[int, U64Array] = {side.anchor.version: ids} if side.anchor is not None and side.same_ids else {}
        by_stamps = side.anchor is None
        for change in side.changes:
            if change.transaction is None or change.before is None or change.after is None:
                by_stamps = True
                continue
            if isinstance(change.operation, Restore):
                before = known.get(change.operation.version)
                by_stamps |= before is None
                ids = ids if before is None else before
            elif isinstance(change.operation, Update | Merge) or change.is_merge:
                ids = np.union1d(ids, _rewritten(change.before, change.after, deleted))
            known[change.after.version] = ids
        return cls(ids, by_stamps)

    def among(self, ids: U64Array) -> Flags:
        return np.isin(ids, self.ids)


def _rewritten(before: Manifest, after: Manifest, deleted: Deleted) -> U64Array:
    """Return the ids of rows that a version wrote anew into other fragments."""
    had = set(before.fragments.ids)
    found: list[U64Array] = [np.empty(0, np.uint64)]
    for number in after.fragments.ids:
        if number in had:
            continue
        fragment = present(after, number)
        lowest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if lowest is not None and lowest >= before.next_row_id:
            continue
        ids = _ids(fragment, f"version {after.version}")
        stamps = _stamps(fragment, f"version {after.version}")
        fresh = (ids < np.uint64(before.next_row_id)) & (stamps == np.uint64(after.version))
        if fragment.deletion is not None and fresh.any():
            # A merge brings a fragment for some of its rows; the others are alive elsewhere, as they were.
            fresh[np.array(deleted(after, fragment), np.int64)] = False
        found.append(ids[fresh])
    return np.concatenate(found)


def _ids(fragment: Fragment, where: str) -> U64Array:
    return decode_row_ids(fragment.row_ids, fragment.physical_rows, f"fragment {fragment.id} of {where}")


def _stamps(fragment: Fragment, where: str) -> U64Array:
    return decode_versions(fragment.updated_at, fragment.physical_rows, f"fragment {fragment.id} of {where}")
