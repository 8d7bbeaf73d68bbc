"""Match the fragments of one side with those of the merge base, and find what became of every row.

On one line of versions a fragment keeps its id for good: ids are never given twice, not even after an overwrite or a
restore. Across lines ids prove nothing, since each line hands out its own; there, fragments are matched by the names of
their data files, which are unique.

Fragments that were not touched since the merge base are found by comparing their encoded bytes, without decoding them.

A row of the merge base is known by its address there: the fragment and the offset in it. On a side it stays where it
is, was moved to another fragment with its values (a compaction), was given new values and moved (an update), or is
gone. With stable row ids the ids of the rows in other fragments say which they are. Without, the transactions of the
side are replayed: a compaction keeps the order of its rows, an update does not tell which new row was which old row.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, count
from operator import ne

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.codec import decode_row_runs, smallest_row_id
from lance_dagster.format.deletions import same_deletion_vector
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.row_runs import RowRuns, U64Array, bitmap_of, elements
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_origins import NOWHERE, AbsentRows, BaseKey, Origins
from lance_dagster.transactions.claims import SideHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedFragments:
    """The fragments of a side, matched with those of the merge base.

    `ids` maps the id of a fragment of the merge base to the id of the fragment in its place, which has the same rows in
    the same order, though perhaps other files or deleted rows. `changed` are the ids of fragments of the merge base
    that are gone or differ; `back` is the inverse of `ids`; `unmatched` are the ids of the side's fragments that
    correspond to no fragment of the merge base. `anchored` is like `ids`, for the side's anchor.
    """

    base: Manifest
    side: Manifest
    ids: Mapping[int, int]
    changed: frozenset[int]
    unmatched: tuple[int, ...]
    anchored: Mapping[int, int]
    back: Mapping[int, int]

    def place(self, base_id: int) -> Fragment | None:
        """Return the fragment of the side in the place of a fragment of the merge base."""
        own = self.ids.get(base_id)
        return None if own is None else self.side.fragments.find(own)

    def base_of(self, side_id: int) -> int | None:
        """Return the fragment of the merge base in whose place a fragment of the side is."""
        return self.back.get(side_id)


def match_fragments(base: Manifest, side: SideHistory) -> MatchedFragments:
    """Find the fragments of a side that are in the place of fragments of the merge base."""
    manifest = side.manifest
    if side.anchor is not None and side.same_ids:
        anchored = dict(zip(side.anchor.fragments.ids, side.anchor.fragments.ids, strict=True))
        ids = _still(anchored, manifest)
        differing = differing_fragments(side.anchor, manifest)
    else:
        # The ids of another line prove nothing, so the merge base is matched with the anchor by file names. From the
        # anchor on it is one line, and ids count again.
        through = side.anchor or manifest
        anchored, differing = _by_names(base, through)
        ids = anchored
        if side.anchor is not None:
            later = differing_fragments(side.anchor, manifest)
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
    """Return the anchored fragments that still exist."""
    there = set(manifest.fragments.ids)
    return anchored if there.issuperset(anchored.values()) else {n: own for n, own in anchored.items() if own in there}


def differing_fragments(earlier: Manifest, later_version: Manifest) -> set[int]:
    """Return the ids of fragments of a version that a later version dropped or changed."""
    old, new, old_ids, new_ids = (
        earlier.fragments.items,
        later_version.fragments.items,
        earlier.fragments.ids,
        later_version.fragments.ids,
    )
    # Bytes that are equal in the same place are the same fragment; only fragments with other bytes have to be found by
    # their ids.
    unequal = list(compress(count(), map(ne, old, new)))
    shared = min(len(old), len(new))
    later = {new_ids[place]: new[place] for place in (*unequal, *range(shared, len(new)))}
    places = (*unequal, *range(shared, len(old)))
    return {old_ids[place] for place in places if later.get(old_ids[place]) != old[place]}


def _by_names(base: Manifest, state: Manifest) -> tuple[dict[int, int], set[int]]:
    holders: dict[str, list[Fragment]] = {}
    for fragment in state.fragments:
        for file in fragment.files:
            holders.setdefault(file.path, []).append(fragment)
    ids: dict[int, int] = {}
    differing: set[int] = set()
    for fragment in base.fragments:
        names = fragment.file_names
        same = {candidate.id: candidate for name in names for candidate in holders.get(name, ())}
        # A shared file alone does not prove the same rows in the same order: the number of rows has to be equal too.
        fitting = [
            candidate for _, candidate in sorted(same.items()) if candidate.physical_rows == fragment.physical_rows
        ]
        if not fitting:
            continue
        # A merge that takes single rows of a fragment adds a second fragment with files of the first. The fragment with
        # the same columns counts: in the other fragment, the rows would seem to have got other values.
        counterpart = max(fitting, key=lambda candidate: len(names & candidate.file_names))
        ids[fragment.id] = counterpart.id
        if counterpart.file_names != fragment.file_names or not same_deletion_vector(
            counterpart.deletion, fragment.deletion
        ):
            differing.add(fragment.id)
    return ids, differing


@dataclass(frozen=True, kw_only=True)
class RelocatedRows:
    """Rows of a fragment that are not where the merge base has them.

    `origins` says where each row comes from; rows without an origin were inserted since. `updated` are the offsets of
    rows that got new values since, `back` the offsets of rows that the merge base has only as deleted.

    `live` are the offsets of the rows that this object describes. In a fragment that the merge base lacks, these are
    all rows that are not deleted. In a fragment that is in the place of a fragment of the merge base, they are the rows
    that the merge base has deleted there, and the rows that were updated in place. A fragment of only new rows has no
    origins, so that it costs the same however many rows it has.
    """

    fragment: Fragment
    origins: Origins
    updated: BitMap
    back: BitMap
    live: BitMap

    @property
    def inserted(self) -> BitMap:
        """Offsets of the live rows that the merge base does not have."""
        return self.live - self.origins.positions if len(self.origins) else self.live.copy()

    @property
    def written(self) -> BitMap:
        """Offsets of the live rows that were put in, brought back or given new values."""
        return self.inserted | (self.live & (self.updated | self.back))

    @property
    def base_keys(self) -> Collection[BaseKey]:
        """The fragments of the merge base that rows come from."""
        return self._by_key.keys()

    def from_base(self, base_ids: Container[int]) -> dict[BaseKey, tuple[BitMap, BitMap]]:
        """Return, for each base fragment, the offsets of live rows that were moved, and of live rows that were updated.

        Args:
            base_ids: The fragments of the merge base that are asked for; rows it does not have are always returned.
        """
        if not len(self.origins):
            return {}
        live = self.origins.restricted(self.live)
        moved = (live.restricted(self.live - self.updated) if self.updated else live).in_base()
        updated = live.restricted(self.updated).in_base() if self.updated else {}
        return {
            key: (moved.get(key, BitMap()), updated.get(key, BitMap()))
            for key in moved.keys() | updated.keys()
            if key in base_ids or isinstance(key, AbsentRows)
        }

    def at(self, key: BaseKey, offsets: BitMap) -> BitMap:
        """Return the offsets here of live rows given by their offsets in a fragment of the merge base."""
        rows = self._by_key.get(key)
        if rows is None:
            return BitMap()
        here = rows.restricted(offsets)
        return bitmap_of(here.first, here.count) & self.live

    def pairs(self, key: BaseKey, offsets: BitMap) -> tuple[U64Array, U64Array]:
        """Return ascending offsets in a fragment of the merge base, and the offsets here, of rows that are live here.

        Args:
            key: The fragment of the merge base.
            offsets: Offsets in it of the rows asked for.
        """
        rows = self._by_key.get(key, NOWHERE).restricted(offsets)
        there, here = elements(rows.positions), rows.values()
        # Origins name deleted copies too, and a deleted copy must not be taken for the row.
        live = np.isin(here, elements(bitmap_of(rows.first, rows.count) & self.live))
        return there[live], here[live]

    def in_base(self, offsets: BitMap) -> dict[BaseKey, BitMap]:
        """Return, by fragment of the merge base, the offsets there of rows given by their offsets here."""
        return self.origins.restricted(offsets).in_base()

    def live_from(self, base_ids: Container[int]) -> BitMap:
        """Return the offsets here of the live rows that come from some fragments of the merge base."""
        others = [rows for key, rows in self._by_key.items() if key not in base_ids]
        live = self.live & self.origins.positions
        for rows in others:
            live -= bitmap_of(rows.first, rows.count)
        return live

    @cached_property
    def _by_key(self) -> dict[BaseKey, RowRuns]:
        """The offsets here by fragment of the merge base: one compacted fragment may have rows of thousands."""
        return self.origins.by_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRowChanges:
    """What became of the rows of one fragment of the merge base, as offsets in it.

    `place` is the fragment still in its place. `stays`, `moved` and `updated` rows are alive; `in_place` are the
    updated rows that are where they were. `rewritten` rows are not where they were: an update wrote them anew among
    rows that cannot be distinguished. `copied` rows are deleted in the merge base, and the side may have a copy of them
    among such rows.

    Example, without stable row ids: an update of rows 0 and 1 of a fragment of four rows deletes both and appends two
    rows in no order that is recorded. Then rows 2 and 3 stay, and rows 0 and 1 are rewritten.
    """

    place: Fragment | None
    stays: BitMap
    moved: BitMap = field(default_factory=BitMap)
    updated: BitMap = field(default_factory=BitMap)
    rewritten: BitMap = field(default_factory=BitMap)
    copied: BitMap = field(default_factory=BitMap)
    in_place: BitMap = field(default_factory=BitMap)

    @property
    def alive(self) -> BitMap:
        """Rows that were located on the side."""
        return self.stays | self.moved | self.updated


@dataclass
class RowChanges:
    """What one side did to the rows of the merge base, looked up fragment by fragment."""

    matched: MatchedFragments
    deleted: Deleted
    relocated: Mapping[int, RelocatedRows]
    rewritten: Mapping[int, BitMap] = field(default_factory=dict)

    def of(self, key: BaseKey) -> FragmentRowChanges:
        """Return what became of the rows of one fragment of the merge base, or of rows that it does not have."""
        moved, updated = self.moved_from(key)
        if isinstance(key, AbsentRows):
            return FragmentRowChanges(place=None, stays=BitMap(), moved=moved, updated=updated)
        place, stays = self.matched.place(key), BitMap()
        dead = self.deleted(self.matched.base, self.matched.base.fragment(key))
        if place is not None:
            # A row that is deleted in the merge base and alive on the side counts among the relocated rows.
            stays = live_rows(self.matched.side, place, self.deleted) - dead
        in_place = stays & updated
        stays -= in_place
        # A row that was located did not go to an unknown place.
        rewritten = self.rewritten.get(key, BitMap()) - stays - moved - updated
        return FragmentRowChanges(
            place=place,
            stays=stays,
            moved=moved,
            updated=updated,
            rewritten=rewritten - dead,
            copied=rewritten & dead,
            in_place=in_place,
        )

    def moved_from(self, key: BaseKey) -> tuple[BitMap, BitMap]:
        """Return the rows of a changed fragment of the merge base that were moved as they are, and those updated."""
        return self._gathered.get(key, (BitMap(), BitMap()))

    def absent(self) -> set[AbsentRows]:
        """Return the keys of the live rows that the merge base lacks, and that are known beyond this side."""
        return {key for key in self._gathered if isinstance(key, AbsentRows)}

    def holders(self, key: BaseKey, offsets: BitMap) -> dict[int, BitMap]:
        """Return where the relocated rows of a base fragment lie: offsets by fragment of the side."""
        numbers = self.numbers_by_key.get(key, ()) if offsets else ()
        offsets_by_fragment = {number: self.relocated[number].at(key, offsets) for number in numbers}
        return {number: here for number, here in offsets_by_fragment.items() if here}

    def places(self, key: BaseKey, offsets: BitMap) -> dict[int, tuple[frozenset[str], int]]:
        """Return the files and the offset in them of relocated rows, by their offsets in a base fragment."""
        files_by_row: dict[int, tuple[frozenset[str], int]] = {}
        for number in self.numbers_by_key.get(key, ()) if offsets else ():
            rows = self.relocated[number]
            names = rows.fragment.file_names
            there, here = rows.pairs(key, offsets)
            files_by_row |= {row: (names, place) for row, place in zip(there.tolist(), here.tolist(), strict=True)}
        return files_by_row

    @cached_property
    def numbers_by_key(self) -> Mapping[BaseKey, Sequence[int]]:
        """By fragment of the merge base, the ids of the side's fragments that its rows were moved to."""
        numbers: dict[BaseKey, list[int]] = {}
        for number, rows in self.relocated.items():
            for key in rows.base_keys:
                numbers.setdefault(key, []).append(number)
        return numbers

    @cached_property
    def _gathered(self) -> dict[BaseKey, tuple[BitMap, BitMap]]:
        changes: dict[BaseKey, tuple[BitMap, BitMap]] = {}
        for rows in self.relocated.values():
            for key, (moved, updated) in rows.from_base(self.matched.changed).items():
                before = changes.get(key)
                changes[key] = (moved, updated) if before is None else (before[0] | moved, before[1] | updated)
        return changes


def rows_out_of_place(matched: MatchedFragments, deleted: Deleted) -> Iterator[tuple[int, BitMap]]:
    """Return, by fragment of the side, the offsets of live rows that are not where the merge base has them."""
    for number in matched.unmatched:
        yield number, live_rows(matched.side, matched.side.fragment(number), deleted)
    for base_id in sorted(matched.changed):
        before = matched.base.fragment(base_id)
        # Only rows that the merge base has deleted can be back, and most fragments have none: their vectors on the
        # side, one file each, need not be read here.
        place = None if before.deletion is None else matched.place(base_id)
        if place is not None:
            back = deleted(matched.base, before) - deleted(matched.side, place)
            if back:
                yield place.id, back


def row_ids_of(fragment: Fragment, where: str) -> RowRuns:
    """Return the row ids of a fragment; an error about damage says where the fragment is."""
    return decode_row_runs(fragment.row_ids, fragment.physical_rows, f"fragment {fragment.id} of {where}")


def live_rows(manifest: Manifest, fragment: Fragment, deleted: Deleted) -> BitMap:
    """Return the offsets of the rows of a fragment that are not deleted."""
    return BitMap(range(fragment.physical_rows)) - deleted(manifest, fragment)


def live(manifest: Manifest, among: RowRuns, deleted: Deleted, numbers: set[int] | None = None) -> RowRuns:
    """Return the rows, of the ids `among`, that a version has, as a set of ids.

    Args:
        manifest: The version.
        among: The ids asked for, as a set.
        deleted: Reads deletion vectors.
        numbers: The fragments that are looked at; all by default.
    """
    return RowRuns.set_of(list(_live_parts(manifest, among, deleted, numbers))) if len(among) else among


def _live_parts(manifest: Manifest, among: RowRuns, deleted: Deleted, numbers: set[int] | None) -> Iterator[RowRuns]:
    largest = among.largest or 0
    for number in manifest.fragments.ids if numbers is None else sorted(numbers):
        fragment = manifest.fragment(number)
        lowest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if lowest is not None and lowest > largest:
            continue
        ids = row_ids_of(fragment, f"version {manifest.version}").where_in(among)
        # A deletion vector is a file, which is read only where some of the rows are.
        if len(ids) and fragment.deletion is not None:
            ids = ids.restricted(BitMap(range(fragment.physical_rows)) - deleted(manifest, fragment))
        if len(ids):
            yield ids
