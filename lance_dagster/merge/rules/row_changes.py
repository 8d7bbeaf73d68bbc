"""Which fragment of one side is which of the merge base.

On one line of versions a fragment keeps its id for good: ids are never given twice, not even after an overwrite or a
restore. Across lines ids prove nothing, since each line hands out its own; there the names of the data files do, which
are unique.

What was not touched since the merge base is found by comparing encoded fragments, without reading them.

What became of every row of the merge base on one side.

A row of the base is known by its address there: the fragment and the offset in it. On a side it stays where it is,
was moved to another fragment with its values (a compaction), was given new values and moved (an update), or is gone.
With stable row ids the ids of the rows in other fragments say which they are. Without, the transactions of the side
are replayed: a compaction keeps the order of its rows, an update leaves no trace of which new row was which old one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, count
from operator import ne

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.deletions import same_deletion_vector
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.merge.rules.merge_input import Deleted, SideHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedFragments:
    """The fragments of a side beside those of the merge base.

    `ids` gives by the id of a fragment of the base the id of the fragment in its place: with the same rows in the same
    order, though with other files or more deleted rows. `changed` are the ids of those of the base that are gone or
    differ; `back` is `ids` the other way round; `unmatched` are the ids of the side's fragments that are in the place
    of none. `anchored` is as `ids`, for the side's anchor.
    """

    base: Manifest
    side: Manifest
    ids: Mapping[int, int]
    changed: frozenset[int]
    unmatched: tuple[int, ...]
    anchored: Mapping[int, int]
    back: Mapping[int, int]

    def place(self, base_id: int) -> Fragment | None:
        """Return the fragment in the place of one of the base."""
        own = self.ids.get(base_id)
        return None if own is None else self.side.fragments.find(own)

    def base_of(self, side_id: int) -> int | None:
        """Return the fragment of the base that one of the side is in the place of."""
        return self.back.get(side_id)


def match_fragments(base: Manifest, side: SideHistory) -> MatchedFragments:
    """Find the fragments of a side that are in the place of those of the merge base."""
    manifest = side.manifest
    if side.anchor is not None and side.same_ids:
        anchored = dict(zip(side.anchor.fragments.ids, side.anchor.fragments.ids, strict=True))
        ids = _still(anchored, manifest)
        differing = _differing(side.anchor, manifest)
    else:
        through = side.anchor or manifest
        anchored, differing = _by_names(base, through)
        ids = anchored
        if side.anchor is not None:
            later = _differing(side.anchor, manifest)
            differing |= {number for number, own in anchored.items() if own in later}
            ids = _still(anchored, manifest)
    # Whole sets and mappings at once: most fragments of a large table are the same on both sides.
    back, before = dict(zip(ids.values(), ids, strict=True)), frozenset(base.fragments.ids)
    return MatchedFragments(
        base=base,
        side=manifest,
        ids=ids,
        changed=(before - ids.keys()) | (before & differing),
        unmatched=tuple(number for number in manifest.fragments.ids if number not in back),
        anchored=anchored,
        back=back,
    )


def _still(anchored: dict[int, int], manifest: Manifest) -> dict[int, int]:
    """Return those of the fragments of an anchor that are there."""
    there = set(manifest.fragments.ids)
    return anchored if there.issuperset(anchored.values()) else {n: own for n, own in anchored.items() if own in there}


def _differing(one: Manifest, other: Manifest) -> set[int]:
    """Return the ids of fragments of a version that are not in a later one as they were."""
    old, new = one.fragments, other.fragments
    # Bytes that are equal in the same place are the same fragment; only the others have to be found by their ids.
    unequal = list(compress(count(), map(ne, old.items, new.items)))
    shared = min(len(old), len(new))
    later = {new.ids[place]: new.items[place] for place in (*unequal, *range(shared, len(new)))}
    places = (*unequal, *range(shared, len(old)))
    return {old.ids[place] for place in places if later.get(old.ids[place]) != old.items[place]}


def _by_names(base: Manifest, other: Manifest) -> tuple[dict[int, int], set[int]]:
    holders = {file.path: fragment for fragment in other.fragments for file in fragment.files}
    ids: dict[int, int] = {}
    differing: set[int] = set()
    for fragment in base.fragments:
        found = next((holders[name] for name in fragment.file_names if name in holders), None)
        if found is None or found.physical_rows != fragment.physical_rows:
            continue
        ids[fragment.id] = found.id
        if found.file_names != fragment.file_names or not same_deletion_vector(found.deletion, fragment.deletion):
            differing.add(fragment.id)
    return ids, differing


def present(manifest: Manifest, number: int) -> Fragment:
    """Return a fragment that has to be there."""
    fragment = manifest.fragments.find(number)
    if fragment is None:
        raise LookupError(f"version {manifest.version} has no fragment {number}")
    return fragment


Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Addresses = np.ndarray[tuple[int], np.dtype[np.int64]]
OFFSET_BITS = 32
GONE, SHARED = 2**30, 2**30 + 2**29
"""From these fragment ids on, addresses are the ids that rows have on the dest which the base does not have.

Before `SHARED` they are of rows the base had deleted, whole fragments of them, and a side brought back; from it on, of
rows that came to both sides by other ways.
"""
INSERTED = -1
"""Stands in `RelocatedRows.addresses` for a row that the merge base does not have."""


@dataclass(frozen=True, kw_only=True)
class RelocatedRows:
    """Rows of a fragment that are not where the base has them.

    For each row of the fragment in order, `addresses` has where it is in the merge base, or `INSERTED`, `updated`
    whether it got new values since, and `back` whether the base has it only as deleted. `live` are the offsets of the
    rows meant: all that are not deleted, or in a fragment that is in the place of one of the base, those that the base
    has deleted there.
    """

    fragment: Fragment
    addresses: Addresses
    updated: Flags
    back: Flags
    live: BitMap

    @property
    def inserted(self) -> BitMap:
        """Offsets of the live rows that the base does not have."""
        return self._live_where(self.addresses == INSERTED)

    @property
    def written(self) -> BitMap:
        """Offsets of the live rows that were put in, brought back or given new values."""
        return self._live_where((self.addresses == INSERTED) | self.updated | self.back)

    def from_base(self, base_ids: Iterable[int]) -> dict[int, tuple[BitMap, BitMap]]:
        """Return, by fragment of the base, the offsets there of the live rows moved and of those updated."""
        live = np.zeros(len(self.addresses), np.bool_)
        live[np.array(self.live, np.int64)] = True
        wanted = set(base_ids)
        found: dict[int, tuple[BitMap, BitMap]] = {}
        for number, rows in self._by_fragment.items():
            here = rows[live[rows]]
            if len(here) and (number in wanted or number >= GONE):
                updated = self.updated[here]
                found[number] = _offsets(self.addresses[here[~updated]]), _offsets(self.addresses[here[updated]])
        return found

    def at(self, base_id: int, offsets: BitMap) -> BitMap:
        """Return the offsets here of rows given by their offsets in a fragment of the base."""
        here = self._by_fragment.get(base_id)
        if here is None:
            return BitMap()
        there = self.addresses[here] & (2**OFFSET_BITS - 1)
        wanted = np.isin(there, np.array(offsets, np.int64))
        return BitMap(here[wanted].tolist()) & self.live

    def in_base(self, offsets: BitMap) -> dict[int, BitMap]:
        """Return, by fragment of the base, the offsets there of rows given by their offsets here."""
        wanted = np.zeros(len(self.addresses), np.bool_)
        wanted[np.array(offsets, np.int64)] = True
        found = {number: _offsets(self.addresses[rows[wanted[rows]]]) for number, rows in self._by_fragment.items()}
        return {number: here for number, here in found.items() if here}

    @cached_property
    def _by_fragment(self) -> dict[int, Addresses]:
        """By fragment of the base the offsets here of its rows: one compaction may have those of thousands."""
        known = np.flatnonzero(self.addresses != INSERTED)
        numbers = self.addresses[known] >> OFFSET_BITS
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        parts = np.split(known[order], starts[1:]) if len(starts) else []
        return dict(zip(numbers[order][starts].tolist(), parts, strict=True))

    def _live_where(self, condition: Flags) -> BitMap:
        return BitMap(np.flatnonzero(condition).tolist()) & self.live


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRowChanges:
    """What became of the rows of one fragment of the base, as offsets in it.

    `place` is the fragment still in its place. `stays`, `moved` and `updated` are alive; `rewritten` are gone from
    where they were, written anew by an update among rows that cannot be told apart.
    """

    place: Fragment | None
    stays: BitMap
    moved: BitMap = field(default_factory=BitMap)
    updated: BitMap = field(default_factory=BitMap)
    rewritten: BitMap = field(default_factory=BitMap)

    @property
    def alive(self) -> BitMap:
        """Rows that can be pointed at."""
        return self.stays | self.moved | self.updated


@dataclass(slots=True)
class RowChanges:
    """What one side did to the rows of the base, looked up fragment by fragment."""

    matched: MatchedFragments
    deleted: Deleted
    relocated: Mapping[int, RelocatedRows]
    rewritten: Mapping[int, BitMap] = field(default_factory=dict)
    _moved: dict[int, tuple[BitMap, BitMap]] | None = None

    def of(self, base_id: int) -> FragmentRowChanges:
        """Return what became of the rows of one fragment of the base."""
        place, stays = self.matched.place(base_id), BitMap()
        if place is not None:
            stays = live_rows(self.matched.side, place, self.deleted)
            stays -= self.deleted(self.matched.base, present(self.matched.base, base_id))
        moved, updated = self._gathered().get(base_id, (BitMap(), BitMap()))
        rewritten = self.rewritten.get(base_id, BitMap()) - stays - moved - updated
        if rewritten:
            rewritten -= self.deleted(self.matched.base, present(self.matched.base, base_id))
        return FragmentRowChanges(place=place, stays=stays, moved=moved, updated=updated, rewritten=rewritten)

    def shared(self) -> set[int]:
        """Return the ids that stand for fragments of rows which both sides have and the base has not."""
        return {number for number in self._gathered() if number >= GONE}

    def holders(self, base_id: int, offsets: BitMap) -> dict[int, BitMap]:
        """Return where rows of a fragment of the base lie elsewhere: offsets by fragment of the side."""
        found = {number: rows.at(base_id, offsets) for number, rows in self.relocated.items()}
        return {number: here for number, here in found.items() if here}

    def places(self, base_id: int, offsets: BitMap) -> dict[int, tuple[frozenset[str], int]]:
        """Return the files and the offset in them of rows that lie elsewhere, by their offsets in a base fragment."""
        found: dict[int, tuple[frozenset[str], int]] = {}
        for number, here in self.holders(base_id, offsets).items():
            rows = self.relocated[number]
            for offset in here:
                found[int(rows.addresses[offset]) & (2**OFFSET_BITS - 1)] = rows.fragment.file_names, offset
        return found

    def _gathered(self) -> dict[int, tuple[BitMap, BitMap]]:
        if self._moved is None:
            self._moved = {}
            for rows in self.relocated.values():
                for number, (moved, updated) in rows.from_base(self.matched.changed).items():
                    before = self._moved.get(number, (BitMap(), BitMap()))
                    self._moved[number] = (before[0] | moved, before[1] | updated)
        return self._moved


def rows_out_of_place(matched: MatchedFragments, deleted: Deleted) -> Iterator[tuple[int, BitMap]]:
    """Return, by fragment of the side, the offsets of live rows that are not where the base has them."""
    for number in matched.unmatched:
        yield number, live_rows(matched.side, present(matched.side, number), deleted)
    for base_id in sorted(matched.changed):
        place = matched.place(base_id)
        if place is not None:
            back = live_rows(matched.side, place, deleted) & deleted(matched.base, present(matched.base, base_id))
            if back:
                yield place.id, back


def live_rows(manifest: Manifest, fragment: Fragment, deleted: Deleted) -> BitMap:
    """Return the offsets of the rows of a fragment that are not deleted."""
    return BitMap(range(fragment.physical_rows)) - deleted(manifest, fragment)


def addresses_of(fragment: Fragment, base_id: int) -> Addresses:
    """Return the addresses of all rows of a fragment that is in the place of one of the base."""
    return np.arange(fragment.physical_rows, dtype=np.int64) + (base_id << OFFSET_BITS)


def _offsets(addresses: Addresses) -> BitMap:
    return BitMap((addresses & (2**OFFSET_BITS - 1)).tolist())
