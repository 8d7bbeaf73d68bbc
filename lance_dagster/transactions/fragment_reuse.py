"""The fragment-reuse index: which fragments replaced others while the indices were left as they were.

A compaction by pylance with `defer_index_remap` moves rows and stores no index anew. It records in this index which
fragments it replaced by which. Readers follow both the addresses in an index and the fragments in its bitmap by this
record: an index that covers the old fragments of a compaction covers the new ones, as long as its own bitmap names the
old ones. The other indices lose that coverage when the old fragments are removed from their bitmaps.
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
    found: list[Replaced] = []
    for index in indices:
        if index.name == FRAGMENT_REUSE:
            pairs = replaced_fragments(index.details[1]) if index.details is not None else None
            # A large record is in a file, and what is pure cannot read it.
            if pairs is None:
                return None
            found += [(BitMap(old), BitMap(new)) for old, new in pairs]
    return found


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
        # Any of the fragments that are gone may lead to these.
        return fragments | (BitMap(range((manifest.max_fragment_id or 0) + 1)) - BitMap(manifest.fragments.ids))
    for old, new in reversed(compactions):
        # A reader that finds one of the old fragments takes all new ones to be covered, so all old ones have to go.
        if fragments & new:
            fragments = fragments | old
    return fragments
