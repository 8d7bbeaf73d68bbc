"""The merge base: the newest version that two versions both contain; and whether there is anything to merge.

What a version contains is one number for each branch (`Lineage.contained`), so the newest common version of each branch
is the lower of two numbers. If the source contains `main@5` and `run/7@3`, and the dest `main@4` and `run/7@6`, the
candidates are `main@4` and `run/7@3`. The merge base is the candidate that contains all other candidates; after
criss-cross merges there may be no such candidate, and there are several merge bases.
"""

from collections.abc import Iterable, Mapping, Sequence

from lance_dagster.errors import InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.lineage import (
    Lineage,
    VersionPlace,
    has_changes,
    lineage_of,
    load_or_copy,
    merge_records_of,
)
from lance_dagster.history.refs.ref_files import DELETING
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions


def version_that_merged(source: Lineage, dest: Lineage, versions: Versions) -> State | None:
    """Return the version of `dest` that merged everything `source` has; None when there is something to merge.

    The head of `dest` is returned if that version was cleaned up, or if `source` changed nothing.
    """
    # The source may have changed nothing since the fork, or only merged what the dest has: then nothing is left to
    # do, though no merge is recorded.
    if not dest.contains(source):
        return None if has_changes(source, dest, versions) else dest.state
    record = merge_records_of(dest.state.manifest).get(source.id)
    number = dest.state.number if record is None else record.dest
    segment = next((segment for segment in reversed(dest.segments) if number <= segment.number), dest.segments[0])
    try:
        return versions.load(segment.branch, number, segment.id)
    except VersionNotFoundError:
        return dest.state


def merge_base(source: Lineage, dest: Lineage, refs: Refs, versions: Versions) -> Lineage:
    """Return the merge base: the newest version that both contain, or the first of several (`merge_bases`).

    Raises:
        VersionNotFoundError: The merge base was cleaned up.
        InvalidInputError: The versions have no version in common, or the branch of one of them was deleted.
    """
    return merge_bases(source, dest, refs, versions)[0]


def merge_bases(source: Lineage, dest: Lineage, refs: Refs, versions: Versions) -> Sequence[Lineage]:
    """Return the common versions of source and dest that no other common version contains.

    After criss-cross merges there are several; the version on the branch that sorts first comes first. Of a branch that
    was deleted no version is returned; its rows are recognised by their ids.

    Raises:
        VersionNotFoundError: A version that both contain was cleaned up.
        InvalidInputError: The versions have no version in common, or the branch of one of them was deleted.
    """
    segments = {segment.id: segment for segment in (*source.segments, *dest.segments)}
    common = {
        own: number
        for own in source.contained.keys() & dest.contained.keys()
        # The first version of a branch repeats its fork point, which is a candidate on the branch below already.
        if (number := min(source.contained[own], dest.contained[own]))
        > (segments[own].forked if own in segments else -1)
        or own == MAIN
    }
    names = {own: segment.branch for own, segment in segments.items()}
    best = _newest([], _places(common, names), (source, dest), (refs, versions))
    if any(all(number > base.contained.get(own, -1) for base in best) for own, number in common.items()):
        # A third branch was merged into both. Third branches are looked up only now, since that takes listing every
        # branch. If the branch was deleted meanwhile, its rows are still recognised by their ids.
        existing = (branch for branch in refs.branches.all().values() if branch.state != DELETING)
        others = {branch.id: branch.name for branch in existing if branch.id not in names}
        best = _newest(best, _places(common, others), (source, dest), (refs, versions))
    if not best:
        raise InvalidInputError(f"{source.state} and {dest.state} of {refs.store.uri} have no version in common")
    return best


def _places(numbers: Mapping[str, int], names: Mapping[str, str]) -> list[VersionPlace]:
    return [(own, names[own], numbers[own]) for own in numbers.keys() & names.keys()]


def _newest(
    best: Sequence[Lineage],
    places: Iterable[VersionPlace],
    sides: tuple[Lineage, Lineage],
    of: tuple[Refs, Versions],
) -> list[Lineage]:
    """Return the versions among `best` and `places` that no other version among them contains."""
    newest = list(best)
    # Places are sorted by name, then number: ids are random, and would make another choice in a copy of the same table.
    for place in sorted(places, key=lambda place: (place[1], place[2], place[0])):
        base = lineage_of(load_or_copy(place, sides, of[1]), of[0])
        if not any(candidate.contains(base) for candidate in newest):
            at = next((at for at, candidate in enumerate(newest) if base.contains(candidate)), len(newest))
            newest = [*newest[:at], base, *(candidate for candidate in newest[at:] if not base.contains(candidate))]
    return newest


def is_criss_cross(source: Lineage, dest: Lineage, base: Lineage) -> bool:
    """Tell whether merges crossed: both sides contain versions that their merge base does not contain."""
    shared = source.contained.keys() & dest.contained.keys()
    forked = {segment.id: segment.forked for segment in (*source.segments, *dest.segments)}
    return any(
        (number := min(source.contained[own], dest.contained[own])) > base.contained.get(own, -1)
        and number > forked.get(own, -1)
        for own in shared
    )
