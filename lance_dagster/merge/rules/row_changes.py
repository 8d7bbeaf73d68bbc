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

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, count
from operator import ne

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.deletions import same_deletion_vector
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.row_runs import RowRuns, U64Array, VersionRuns, bitmap_of, elements
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
    holders: dict[str, list[Fragment]] = {}
    for fragment in other.fragments:
        for file in fragment.files:
            holders.setdefault(file.path, []).append(fragment)
    ids: dict[int, int] = {}
    differing: set[int] = set()
    for fragment in base.fragments:
        names = fragment.file_names
        same = {each.id: each for name in names for each in holders.get(name, ())}
        fitting = [each for _, each in sorted(same.items()) if each.physical_rows == fragment.physical_rows]
        if not fitting:
            continue
        # A merge that takes single rows of a fragment adds another one with files of the first. The one with the same
        # columns is in the place: beside the other, its rows would seem to have got other values.
        found = max(fitting, key=lambda each: len(names & each.file_names))
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


OFFSET_BITS = 32
GONE, SHARED = 2**30, 2**30 + 2**29
"""From these fragment ids on, addresses are the ids that rows have on the dest which the base does not have.

Before `SHARED` they are of rows the base had deleted, whole fragments of them, and a side brought back; from it on, of
rows that came to both sides by other ways.
"""


@dataclass(frozen=True, kw_only=True)
class RelocatedRows:
    """Rows of a fragment that are not where the base has them.

    `origins` gives by the offset of a row its address in the merge base; rows without one were put in since.
    `updated` are the offsets of rows that got new values since, `back` those of rows that the base has only as deleted.
    `live` are the offsets of the rows meant: all that are not deleted, or in a fragment that is in the place of one of
    the base, those that the base has deleted there. A fragment of new rows alone has no origins, so that it costs the
    same however many rows it has.
    """

    fragment: Fragment
    origins: RowRuns
    updated: BitMap
    back: BitMap
    live: BitMap

    @property
    def inserted(self) -> BitMap:
        """Offsets of the live rows that the base does not have."""
        return self.live - self.origins.positions if len(self.origins) else self.live.copy()

    @property
    def written(self) -> BitMap:
        """Offsets of the live rows that were put in, brought back or given new values."""
        return self.inserted | (self.live & (self.updated | self.back))

    @property
    def base_ids(self) -> Iterable[int]:
        """The fragments of the base that rows come from."""
        return self._by_fragment

    def from_base(self, base_ids: Container[int]) -> dict[int, tuple[BitMap, BitMap]]:
        """Return, by fragment of the base, the offsets there of the live rows moved and of those updated."""
        if not len(self.origins):
            return {}
        live = self.origins.restricted(self.live)
        moved = offsets_in_base(live.restricted(self.live - self.updated) if self.updated else live)
        updated = offsets_in_base(live.restricted(self.updated)) if self.updated else {}
        return {
            number: (moved.get(number, BitMap()), updated.get(number, BitMap()))
            for number in moved.keys() | updated.keys()
            if number in base_ids or number >= GONE
        }

    def at(self, base_id: int, offsets: BitMap) -> BitMap:
        """Return the offsets here of rows given by their offsets in a fragment of the base."""
        rows = self._by_fragment.get(base_id)
        if rows is None:
            return BitMap()
        here = rows.restricted(offsets)
        return bitmap_of(here.first, here.count) & self.live

    def in_base(self, offsets: BitMap) -> dict[int, BitMap]:
        """Return, by fragment of the base, the offsets there of rows given by their offsets here."""
        return offsets_in_base(self.origins.restricted(offsets))

    def live_from(self, base_ids: Collection[int]) -> BitMap:
        """Return the offsets here of the live rows that come from some fragments of the base."""
        others = [rows for number, rows in self._by_fragment.items() if number not in base_ids]
        live = self.live & self.origins.positions
        for rows in others:
            live -= bitmap_of(rows.first, rows.count)
        return live

    @cached_property
    def _by_fragment(self) -> dict[int, RowRuns]:
        """By fragment of the base the offsets here of its rows: one compaction may have those of thousands."""
        return {number: RowRuns(at, count, first) for number, at, count, first in _by_fragment(self.origins)}


def offsets_in_base(origins: RowRuns) -> dict[int, BitMap]:
    """Return, by fragment of the merge base, the offsets there that some addresses name."""
    return {number: bitmap_of(at, count) for number, at, count, _ in _by_fragment(origins)}


def _by_fragment(origins: RowRuns) -> Iterator[tuple[int, U64Array, U64Array, U64Array]]:
    """Group runs by the fragments that their addresses name: offsets there, numbers of rows, and positions."""
    if not len(origins):
        return
    rows = _within_fragments(origins).inverse()
    numbers = rows.at >> np.uint64(OFFSET_BITS)
    offsets = rows.at & np.uint64(2**OFFSET_BITS - 1)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), offsets[start:end], rows.count[start:end], rows.first[start:end]


def base_ids_of(origins: RowRuns) -> list[int]:
    """Return the fragments of the merge base that some addresses name."""
    numbers: list[int] = np.unique(_within_fragments(origins).first >> np.uint64(OFFSET_BITS)).tolist()
    return numbers


def by_address(numbers: Sequence[int], parts: Sequence[RowRuns]) -> RowRuns:
    """Put maps from offsets in fragments together as one from addresses.

    Args:
        numbers: The ids of the fragments, ascending.
        parts: The map of each.
    """
    together = RowRuns.concatenated(parts)
    starts = np.array(numbers, np.uint64) << np.uint64(OFFSET_BITS)
    # One sum for all: a table of thousands of fragments would pay for thousands of small ones.
    return RowRuns(together.at + np.repeat(starts, [len(part) for part in parts]), together.count, together.first)


def at_addresses(numbers: Sequence[int], parts: Sequence[VersionRuns]) -> VersionRuns:
    """Put the versions of rows of fragments, given by their ascending ids, together as those of addresses."""
    at = by_address(numbers, [RowRuns(part.at, part.count, part.at) for part in parts])
    return VersionRuns(at.at, at.count, np.concatenate([at.at[:0], *(part.version for part in parts)]))


def offsets_by_fragment(rows: RowRuns) -> dict[int, BitMap]:
    """Group the positions of a map, which are addresses, by their fragments: the offsets in each."""
    return offsets_in_base(RowRuns(rows.at, rows.count, rows.at))


def _within_fragments(origins: RowRuns) -> RowRuns:
    """Cut runs where a fragment ends. Only those that stand for row ids go on into the next."""
    shift = np.uint64(OFFSET_BITS)
    numbers, last = origins.first >> shift, origins.lasts >> shift
    if np.array_equal(numbers, last):
        return origins
    every = np.unique(np.concatenate([np.arange(*pair) for pair in zip(numbers, last + np.uint64(1), strict=True)]))
    whole = np.full(len(every), 2**OFFSET_BITS, np.uint64)
    return origins.through(RowRuns(every << shift, whole, every << shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRowChanges:
    """What became of the rows of one fragment of the base, as offsets in it.

    `place` is the fragment still in its place. `stays`, `moved` and `updated` are alive; `rewritten` are gone from
    where they were, written anew by an update among rows that cannot be told apart. `in_place` are those of the
    updated rows that are where they were.
    """

    place: Fragment | None
    stays: BitMap
    moved: BitMap = field(default_factory=BitMap)
    updated: BitMap = field(default_factory=BitMap)
    rewritten: BitMap = field(default_factory=BitMap)
    in_place: BitMap = field(default_factory=BitMap)

    @property
    def alive(self) -> BitMap:
        """Rows that can be pointed at."""
        return self.stays | self.moved | self.updated


@dataclass
class RowChanges:
    """What one side did to the rows of the base, looked up fragment by fragment."""

    matched: MatchedFragments
    deleted: Deleted
    relocated: Mapping[int, RelocatedRows]
    rewritten: Mapping[int, BitMap] = field(default_factory=dict)

    def of(self, base_id: int) -> FragmentRowChanges:
        """Return what became of the rows of one fragment of the base."""
        place, stays = self.matched.place(base_id), BitMap()
        if place is not None:
            stays = live_rows(self.matched.side, place, self.deleted)
            stays -= self.deleted(self.matched.base, present(self.matched.base, base_id))
        moved, updated = self.moved_from(base_id)
        in_place = stays & updated
        stays -= in_place
        rewritten = self.rewritten.get(base_id, BitMap()) - stays - moved - updated
        if rewritten:
            rewritten -= self.deleted(self.matched.base, present(self.matched.base, base_id))
        return FragmentRowChanges(
            place=place, stays=stays, moved=moved, updated=updated, rewritten=rewritten, in_place=in_place
        )

    def moved_from(self, base_id: int) -> tuple[BitMap, BitMap]:
        """Return the rows of a changed fragment of the base that were moved as they are, and those updated."""
        return self._gathered.get(base_id, (BitMap(), BitMap()))

    def shared(self) -> set[int]:
        """Return the ids that stand for fragments of rows which both sides have and the base has not."""
        return {number for number in self._gathered if number >= GONE}

    def holders(self, base_id: int, offsets: BitMap) -> dict[int, BitMap]:
        """Return where rows of a fragment of the base lie elsewhere: offsets by fragment of the side."""
        numbers = self._numbers_by_base.get(base_id, ()) if offsets else ()
        found = {number: self.relocated[number].at(base_id, offsets) for number in numbers}
        return {number: here for number, here in found.items() if here}

    def places(self, base_id: int, offsets: BitMap) -> dict[int, tuple[frozenset[str], int]]:
        """Return the files and the offset in them of rows that lie elsewhere, by their offsets in a base fragment."""
        found: dict[int, tuple[frozenset[str], int]] = {}
        for number, here in self.holders(base_id, offsets).items():
            rows = self.relocated[number]
            origins = rows.origins.at_positions(elements(here)) & np.uint64(2**OFFSET_BITS - 1)
            names = rows.fragment.file_names
            found |= {there: (names, offset) for there, offset in zip(origins.tolist(), here, strict=True)}
        return found

    @cached_property
    def _numbers_by_base(self) -> dict[int, list[int]]:
        """The relocated fragments that rows of each fragment of the base are in."""
        found: dict[int, list[int]] = {}
        for number, rows in self.relocated.items():
            for base_id in rows.base_ids:
                found.setdefault(base_id, []).append(number)
        return found

    @cached_property
    def _gathered(self) -> dict[int, tuple[BitMap, BitMap]]:
        found: dict[int, tuple[BitMap, BitMap]] = {}
        for rows in self.relocated.values():
            for number, (moved, updated) in rows.from_base(self.matched.changed).items():
                before = found.get(number)
                found[number] = (moved, updated) if before is None else (before[0] | moved, before[1] | updated)
        return found


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


def addresses_of(fragment: Fragment, base_id: int) -> RowRuns:
    """Return the addresses of all rows of a fragment that is in the place of one of the base."""
    return RowRuns.of([(0, fragment.physical_rows, base_id << OFFSET_BITS)])
