"""Choose the fragments that a compaction rewrites, as a plan that other processes can execute.

The groups of a plan are independent of each other: other processes write the files, and one commit adds the files of
all groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from lance_dagster.datafiles import MAX_BYTES_PER_FILE
from lance_dagster.datafiles.writing import WriteTarget
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.history.versions import Version
from lance_dagster.transactions.index_updates import covered_fragments, indices_of

Group = tuple[Fragment, ...]
# Fragments of wide rows are large enough before they have many rows. Files are closed by their size in memory, and a
# compressed file of that size is smaller.
_LARGE_BYTES = MAX_BYTES_PER_FILE // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionGroup:
    """Adjacent fragments that are rewritten together, by any process: `write_files(target, rows of the fragments)`.

    Attributes:
        fragments: The ids of the fragments, in the order of their rows.
        target: The target of the rows.
        rows: The number of rows.
    """

    fragments: tuple[int, ...]
    target: WriteTarget
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The groups that a compaction of one version rewrites; `only_pylance` when this package cannot move the rows.

    The files that several processes write for the groups are committed together by `commit_compaction`.
    """

    version: Version
    groups: tuple[CompactionGroup, ...]
    only_pylance: bool = False


def plan_compaction(
    manifest: Manifest, target_rows: int, deleted_share: float, *, mix_partitions: bool = False
) -> tuple[Group, ...]:
    """Return the groups of fragments to rewrite.

    The fragments of a group are adjacent, or were written for the same partition.

    Args:
        manifest: The version to compact.
        target_rows: The number of rows a fragment should have; fragments with fewer rows are candidates, unless their
            files are large.
        deleted_share: The share of deleted rows, from 0 to 1, above which a fragment is rewritten even alone.
        mix_partitions: Whether fragments of different partitions may be in one group, if they are adjacent.
    """
    bitmaps = [covered_fragments(index) for index in indices_of(manifest)]

    def kind(fragment: Fragment) -> tuple[bool, tuple[bool, ...], frozenset[int | None]]:
        worn = _worn(fragment, deleted_share)
        covered_by = tuple(bitmap is not None and fragment.id in bitmap for bitmap in bitmaps)
        small = fragment.rows < target_rows and _size(fragment) < _LARGE_BYTES
        return worn or small, covered_by, frozenset(file.base_id for file in fragment.files)

    groups: list[Group] = []
    for neighbours in [manifest.fragments] if mix_partitions else _by_scope(manifest):
        # `groupby` without a sort: only adjacent fragments of equal kind may form a group.
        for (candidate, *_), run in groupby(neighbours, kind):
            if candidate:
                groups += _bins(tuple(run), target_rows)
    # A small fragment alone would be rewritten by every run, and each time to an equal fragment.
    return tuple(group for group in groups if len(group) > 1 or _worn(group[0], deleted_share))


def _by_scope(manifest: Manifest) -> list[Sequence[Fragment]]:
    """Return the fragments of each partition, and each run of adjacent fragments of which no partition is known."""
    by_scope: dict[str, list[Fragment]] = {}
    runs: list[Sequence[Fragment]] = []
    for scope, run in groupby(manifest.fragments, lambda fragment: scope_of_fragment(manifest, fragment)):
        if scope is None:
            runs.append(list(run))
        else:
            by_scope.setdefault(scope, []).extend(run)
    # A partition gets its fragments over time, with those of other partitions between them.
    return [*runs, *by_scope.values()]


def scope_of_fragment(manifest: Manifest, fragment: Fragment) -> str | None:
    """Return the scope that the rows of a fragment were written for; None where it is unknown."""
    # Files of columns that were added later have no scope.
    scopes = (manifest.known_ranges.scope(file.path) for file in fragment.files)
    return next((scope for scope in scopes if scope is not None), None)


def _worn(fragment: Fragment, deleted_share: float) -> bool:
    return fragment.physical_rows - fragment.rows > deleted_share * fragment.physical_rows


def _bins(run: Sequence[Fragment], target_rows: int) -> Iterator[Group]:
    """Split a run of adjacent fragments wherever the target number of rows, or a large size, is reached."""
    bins: list[list[Fragment]] = [[]]
    rows = size = 0
    for fragment in run:
        if rows >= target_rows or size >= _LARGE_BYTES:
            bins.append([])
            rows = size = 0
        bins[-1].append(fragment)
        rows += fragment.rows
        size += _size(fragment)
    yield from map(tuple, bins)


def _size(fragment: Fragment) -> int:
    return sum(file.size for file in fragment.files)
