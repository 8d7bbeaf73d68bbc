"""The fragment-reuse index: which fragments replaced which while the indices were left as they were.

A compaction by pylance with `defer_index_remap` moves rows and stores no index anew. It records in this index which
fragments it replaced by which, such as 1 and 2 by 7. Readers follow the addresses in an index and the fragments in its
bitmap by this record: an index whose bitmap names the fragments 1 and 2 covers fragment 7 too. An index loses this
coverage when 1 or 2 is removed from its bitmap.
"""

from collections.abc import Iterable, Sequence

from pyroaring import BitMap

from lance_dagster.format.codec import replaced_fragments
from lance_dagster.format.model import IndexMetadata, Manifest

FRAGMENT_REUSE = "__lance_frag_reuse"

Replaced = tuple[BitMap, BitMap]
"""The old and the new fragments of one compaction."""


def defers_indices(indices: Iterable[IndexMetadata]) -> bool:
    """Return whether a compaction left the indices as they were, so that readers follow rows to new fragments."""
    return any(index.name == FRAGMENT_REUSE for index in indices)


def deferred_compactions(indices: Iterable[IndexMetadata]) -> list[Replaced] | None:
    """Return the fragments that compactions replaced, oldest first; None where the record is not in the manifest."""
    compactions: list[Replaced] = []
    for index in indices:
        if index.name == FRAGMENT_REUSE:
            pairs = replaced_fragments(index.details[1]) if index.details is not None else None
            # A large record is in a file, which this pure module cannot read.
            if pairs is None:
                return None
            compactions += [(BitMap(old), BitMap(new)) for old, new in pairs]
    return compactions


def followed(bitmap: BitMap, compactions: Sequence[Replaced]) -> BitMap:
    """Return the fragments that readers take an index to cover whose bitmap names these."""
    for old, new in compactions:
        if bitmap & old:
            bitmap = bitmap - old | new
    return bitmap


def with_replaced(fragments: BitMap, compactions: Sequence[Replaced] | None, manifest: Manifest) -> BitMap:
    """Return the ids to remove from a bitmap so that readers do not take some fragments to be covered.

    Args:
        fragments: The fragments.
        compactions: The fragments that compactions replaced, oldest first; None where they are unknown.
        manifest: The version that has the fragments.
    """
    if compactions is None:
        # Any fragment that is gone may lead to `fragments`.
        return fragments | (BitMap(range((manifest.max_fragment_id or 0) + 1)) - BitMap(manifest.fragments.ids))
    for old, new in reversed(compactions):
        # A reader that finds an old fragment takes all new fragments to be covered, so all old fragments have to go.
        if fragments & new:
            fragments = fragments | old
    return fragments
