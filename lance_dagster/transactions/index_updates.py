"""Update the indices of a manifest for a change: which indices remain valid, and which fragments each covers.

An index maps values to row addresses, or to row ids on a table with stable row ids, and records the covered fragments
in a bitmap. A query uses the index for covered fragments and scans all other fragments. Removing a fragment from a
bitmap is therefore always safe; keeping it is safe only while the index contains the values of the fragment.

Removed fragments stay in the bitmap: they have no effect on queries, and show that the index was built on rows which
no longer exist. If there is a fragment-reuse index, readers follow them to other fragments (`fragment_reuse`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.codec import decode_indices, encode_indices
from lance_dagster.format.model import IndexMetadata, Manifest
from lance_dagster.format.transaction import CreateIndex, Rewrite, RewriteGroup, RewrittenIndex
from lance_dagster.transactions.fragment_reuse import FRAGMENT_REUSE, deferred_compactions, followed, with_replaced

# Lance stores its own bookkeeping as indices without fields, which do not concern users.
_SYSTEM_INDICES = frozenset({FRAGMENT_REUSE, "__lance_mem_wal"})


def indices_of(manifest: Manifest) -> tuple[IndexMetadata, ...]:
    """Return the indices of a version, with each segment as an entry of its own."""
    return decode_indices(manifest.index_section, f"the index section of version {manifest.version}")


def index_type(segments: Iterable[IndexMetadata]) -> str:
    """Return the type of an index as the format names it, such as "BTree"; "unknown" when no segment records it."""
    types = (index.details[0] for index in segments if index.details is not None)
    return next(types, "unknown").rpartition(".")[2].removesuffix("IndexDetails").removesuffix("Details")


def covered_fragments(index: IndexMetadata) -> BitMap | None:
    """Return the ids of the fragments that an index covers; None when they are not recorded.

    Raises:
        CorruptFileError: The bitmap cannot be decoded.
    """
    if index.bitmap is None:
        return None
    try:
        return BitMap.deserialize(index.bitmap)
    except ValueError as error:
        raise CorruptFileError(f"index {index.name!r}", f"its fragment bitmap cannot be read: {error}") from error


def covered_by_readers(manifest: Manifest) -> list[tuple[IndexMetadata, BitMap]]:
    """Return the indices that answer queries, each with the fragments that readers take it to cover.

    An index without a recorded bitmap covers no fragment.

    Raises:
        CorruptFileError: A bitmap cannot be decoded.
    """
    indices = indices_of(manifest)
    # Where compactions are unknown, coverage is understated.
    compactions = deferred_compactions(indices) or []
    answering = (index for index in indices if index.name not in _SYSTEM_INDICES)
    return [(index, followed(covered_fragments(index) or BitMap(), compactions)) for index in answering]


def drop_indices_without_fields(manifest: Manifest) -> Manifest:
    """Drop the indices on fields that are missing from the schema."""
    field_ids = {field.id for field in manifest.fields}
    return _changed(
        manifest,
        [index for index in indices_of(manifest) if field_ids.issuperset((*index.fields, *index.covering_fields))],
    )


def uncover_fields(manifest: Manifest, fields: Collection[int], fragments: Collection[int]) -> Manifest:
    """Remove fragments from the coverage of the indices on fields whose values changed there."""
    changed = frozenset(fields)
    if not fragments or not changed:
        return manifest
    return _uncovered(
        manifest, fragments, lambda index: not changed.isdisjoint((*index.fields, *index.covering_fields))
    )


def uncover_fragments(manifest: Manifest, fragments: Collection[int]) -> Manifest:
    """Remove fragments from the coverage of all indices, because rows were undeleted that an index may not contain."""
    if not fragments:
        return manifest
    return _uncovered(manifest, fragments, lambda index: index.name not in _SYSTEM_INDICES)


def drop_indices(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Drop indices by name."""
    if not names:
        return manifest
    return _changed(manifest, [index for index in indices_of(manifest) if index.name not in names])


def with_indices(manifest: Manifest, indices: Iterable[IndexMetadata]) -> Manifest:
    """Add indices to a manifest."""
    return _changed(manifest, [*indices_of(manifest), *indices])


def incomplete_indices(manifest: Manifest) -> list[str]:
    """Return the names of the indices that do not cover every fragment of a version."""
    coverage: dict[str, BitMap] = {}
    for index, covered in covered_by_readers(manifest):
        coverage[index.name] = coverage.get(index.name, BitMap()) | covered
    fragments = BitMap(manifest.fragments.ids)
    return sorted(name for name, bitmap in coverage.items() if fragments - bitmap)


def _uncovered(manifest: Manifest, fragments: Collection[int], select: Callable[[IndexMetadata], bool]) -> Manifest:
    """Remove fragments from the coverage of some indices."""
    indices = indices_of(manifest)
    removed = with_replaced(BitMap(fragments), deferred_compactions(indices), manifest)
    return _changed(manifest, [_without(index, removed) if select(index) else index for index in indices])


def _without(index: IndexMetadata, fragments: BitMap) -> IndexMetadata:
    # Without a bitmap nothing can be removed; pylance recalculates it on its next commit.
    bitmap = covered_fragments(index)
    return index if bitmap is None else replace(index, bitmap=(bitmap - fragments).serialize())


def apply_create_index(manifest: Manifest, operation: CreateIndex) -> Manifest:
    """Add and remove indices.

    Raises:
        InvalidInputError: A new index is on a field that does not exist.
    """
    field_ids = {field.id for field in manifest.fields}
    for index in operation.new_indices:
        missing = [number for number in index.fields if number not in field_ids]
        if missing and index.name not in _SYSTEM_INDICES:
            raise InvalidInputError(f"index {index.name!r} is on field {missing[0]}, which the table does not have")
    # A new index replaces an index with the same uuid, so that applying an operation twice does not duplicate it.
    removed = {index.uuid for index in (*operation.removed_indices, *operation.new_indices)}
    remaining = [index for index in indices_of(manifest) if index.uuid not in removed]
    return _changed(manifest, [*remaining, *operation.new_indices])


def apply_rewrite(manifest: Manifest, operation: Rewrite) -> Manifest:
    """Update the coverage of indices after rows were moved to other fragments.

    Only an index that was rewritten with the new addresses covers the new fragments: the indices of pylance contain row
    addresses even on tables with stable row ids. A fragment that keeps its id keeps the addresses of its rows.
    """
    groups = [group for group in operation.groups if group.moves_rows]
    replacements = {index.old: index for index in operation.rewritten_indices}
    updated = []
    for index in indices_of(manifest):
        replacement = replacements.get(index.uuid)
        index = replace(  # noqa: PLW2901
            index, bitmap=_moved(index, groups, follow=replacement is not None)
        )
        updated.append(index if replacement is None else _with_replacement(index, replacement))
    return _changed(manifest, updated)


def _with_replacement(index: IndexMetadata, replacement: RewrittenIndex) -> IndexMetadata:
    return replace(
        index,
        uuid=replacement.new,
        details=replacement.details or index.details,
        index_version=replacement.index_version if replacement.details else index.index_version,
        files=replacement.files,
        # The rewritten index is stored in this branch, even when the old index was inherited through a base path.
        base_id=None,
    )


def _moved(index: IndexMetadata, groups: Sequence[RewriteGroup], *, follow: bool) -> bytes | None:
    bitmap = covered_fragments(index)
    if bitmap is None:
        return None
    for group in groups:
        old = BitMap(fragment.id for fragment in group.old)
        shared = bitmap & old
        bitmap -= old
        # This holds only for a group that the index covered completely: it lacks the rows of uncovered old fragments,
        # which moved along.
        if follow and shared == old:
            bitmap |= BitMap(fragment.id for fragment in group.new)
    return bitmap.serialize()


def _changed(manifest: Manifest, indices: Sequence[IndexMetadata]) -> Manifest:
    if list(indices) == list(indices_of(manifest)):
        # Keep the original bytes: re-encoding could drop fields that this package does not know.
        return manifest
    return replace(manifest, index_section=encode_indices(indices))
