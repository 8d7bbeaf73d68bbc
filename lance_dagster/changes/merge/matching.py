"""Which fragment of one side is which of the merge base.

On one line of versions a fragment keeps its id for good: ids are never given twice, not even after an overwrite or a
restore. Across lines ids prove nothing, since each line hands out its own; there the names of the data files do, which
are unique.

What was not touched since the merge base is found by comparing encoded fragments, without reading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress, count
from operator import ne

from lance_dagster.changes.sides import Side
from lance_dagster.format.deletions import same_vector
from lance_dagster.format.model import Fragment, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The fragments of a side beside those of the merge base.

    `ids` gives by the id of a fragment of the base the id of the fragment in its place: with the same rows in the same
    order, though with other files or more deleted rows. `changed` are the ids of those of the base that are gone or
    differ; `back` is `ids` the other way round; `others` are the ids of the side's fragments that are in the place of
    none. `anchored` is as `ids`, for the side's anchor.
    """

    base: Manifest
    side: Manifest
    ids: Mapping[int, int]
    changed: frozenset[int]
    others: tuple[int, ...]
    anchored: Mapping[int, int]
    back: Mapping[int, int]

    def place(self, base_id: int) -> Fragment | None:
        """Return the fragment in the place of one of the base."""
        own = self.ids.get(base_id)
        return None if own is None else self.side.fragments.find(own)

    def base_of(self, side_id: int) -> int | None:
        """Return the fragment of the base that one of the side is in the place of."""
        return self.back.get(side_id)


def match(base: Manifest, side: Side) -> Matched:
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
    return Matched(
        base=base,
        side=manifest,
        ids=ids,
        changed=(before - ids.keys()) | (before & differing),
        others=tuple(number for number in manifest.fragments.ids if number not in back),
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
        if found.file_names != fragment.file_names or not same_vector(found.deletion, fragment.deletion):
            differing.add(fragment.id)
    return ids, differing


def present(manifest: Manifest, number: int) -> Fragment:
    """Return a fragment that has to be there."""
    fragment = manifest.fragments.find(number)
    if fragment is None:
        raise LookupError(f"version {manifest.version} has no fragment {number}")
    return fragment
