"""Which fragments are worth rewriting together.

Many small fragments cost a file to open each, and deleted rows are read only to be left out. Neighbours are put
together, so that rows keep their order. Fragments that different indices speak for are never put together: an index
that knows half of a fragment's rows knows nothing it could use. Nor are fragments of different base paths, which lie
where they lie for a reason.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from lance_dagster.changes.indices import covered, indices_of
from lance_dagster.format.model import Fragment, Manifest

Group = tuple[Fragment, ...]


def plan_compaction(manifest: Manifest, target_rows: int, deleted_share: float) -> tuple[Group, ...]:
    """Return groups of neighbouring fragments that are better rewritten as one each, in their order.

    Args:
        manifest: The version to be compacted.
        target_rows: Rows a fragment should have; those with fewer are put together.
        deleted_share: The share of deleted rows, from 0 to 1, above which a fragment is rewritten even alone.
    """
    bitmaps = [covered(index) for index in indices_of(manifest)]

    def kind(fragment: Fragment) -> tuple[bool, tuple[bool, ...], frozenset[int | None]]:
        worn = _worn(fragment, deleted_share)
        known = tuple(bitmap is not None and fragment.id in bitmap for bitmap in bitmaps)
        return worn or fragment.rows < target_rows, known, frozenset(file.base_id for file in fragment.files)

    groups: list[Group] = []
    for (candidate, *_), run in groupby(manifest.fragments, kind):
        if candidate:
            groups += _bins(tuple(run), target_rows)
    return tuple(group for group in groups if len(group) > 1 or _worn(group[0], deleted_share))


def _worn(fragment: Fragment, deleted_share: float) -> bool:
    return fragment.physical_rows - fragment.rows > deleted_share * fragment.physical_rows


def _bins(run: Sequence[Fragment], target_rows: int) -> Iterator[Group]:
    """Cut a run of neighbours wherever the target is reached."""
    bins: list[list[Fragment]] = [[]]
    rows = 0
    for fragment in run:
        if rows >= target_rows:
            bins.append([])
            rows = 0
        bins[-1].append(fragment)
        rows += fragment.rows
    yield from map(tuple, bins)
