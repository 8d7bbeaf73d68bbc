"""What a change leaves true of the indices: which still apply, and which fragments each covers.

An index knows rows by address, or by id on a table with stable row ids, and says in a bitmap for which fragments it
speaks. A query answers from the index for those and reads the others, so taking a fragment out of a bitmap is always
right, and leaving one in is right only while the index's values are those of the fragment.

Removed fragments stay in a bitmap: they are of no effect, and tell that the index was built on rows that are gone.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.codec import decode_indices, encode_indices
from lance_dagster.format.model import IndexMetadata, Manifest
from lance_dagster.format.transaction import CreateIndex, Rewrite, RewriteGroup, RewrittenIndex

_SYSTEM_INDICES = frozenset({"__lance_frag_reuse", "__lance_mem_wal"})


def indices_of(manifest: Manifest) -> tuple[IndexMetadata, ...]:
    """Return the indices of a version, segments one by one."""
    return decode_indices(manifest.index_section, _place(manifest))


def index_type(segments: Iterable[IndexMetadata]) -> str:
    """Return what kind of index it is, as the format names it, such as "BTree"; "unknown" where no segment says so."""
    types = (index.details[0] for index in segments if index.details is not None)
    return next(types, "unknown").rpartition(".")[2].removesuffix("IndexDetails").removesuffix("Details")


def covered_fragments(index: IndexMetadata) -> BitMap | None:
    """Return the ids of the fragments an index speaks for; None when that is not recorded.

    Raises:
        CorruptFileError: The bitmap cannot be read.
    """
    if index.bitmap is None:
        return None
    try:
        return BitMap.deserialize(index.bitmap)
    except ValueError as error:
        raise CorruptFileError(f"index {index.name!r}", f"its fragment bitmap cannot be read: {error}") from error


def drop_indices_without_fields(manifest: Manifest) -> Manifest:
    """Drop the indices on fields that the schema does not have."""
    known = {field.id for field in manifest.fields}
    return _changed(
        manifest,
        [index for index in indices_of(manifest) if known.issuperset((*index.fields, *index.covering_fields))],
    )


def uncover_fields(manifest: Manifest, fields: Collection[int], fragments: Collection[int]) -> Manifest:
    """Take fragments whose values of some fields changed out of the indices on those fields."""
    changed = frozenset(fields)
    if not fragments or not changed:
        return manifest
    return _changed(
        manifest,
        [
            uncover(index, fragments) if changed.intersection((*index.fields, *index.covering_fields)) else index
            for index in indices_of(manifest)
        ],
    )


def uncover_fragments(manifest: Manifest, fragments: Collection[int]) -> Manifest:
    """Take fragments out of all indices: rows came to life there that an index may not know."""
    if not fragments:
        return manifest
    return _changed(manifest, [uncover(index, fragments) for index in indices_of(manifest)])


def drop_indices(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Drop indices by name."""
    if not names:
        return manifest
    return _changed(manifest, [index for index in indices_of(manifest) if index.name not in names])


def incomplete_indices(manifest: Manifest) -> list[str]:
    """Return the names of the indices that do not speak for every fragment of a version."""
    coverage: dict[str, BitMap] = {}
    for index in indices_of(manifest):
        if index.name not in _SYSTEM_INDICES:
            coverage[index.name] = coverage.get(index.name, BitMap()) | (covered_fragments(index) or BitMap())
    wanted = BitMap(manifest.fragments.ids)
    return sorted(name for name, known in coverage.items() if wanted - known)


def uncover(index: IndexMetadata, fragments: Iterable[int]) -> IndexMetadata:
    """Take fragments out of what an index speaks for."""
    bitmap = covered_fragments(index)
    return index if bitmap is None else replace(index, bitmap=(bitmap - BitMap(fragments)).serialize())


def apply_create_index(manifest: Manifest, operation: CreateIndex) -> Manifest:
    """Add indices and take indices out.

    Raises:
        InvalidInputError: A new index is on a field that is not there.
    """
    known = {field.id for field in manifest.fields}
    for index in operation.new_indices:
        missing = [number for number in index.fields if number not in known]
        if missing and index.name not in _SYSTEM_INDICES:
            raise InvalidInputError(f"index {index.name!r} is on field {missing[0]}, which the table does not have")
    gone = {index.uuid for index in (*operation.removed_indices, *operation.new_indices)}
    kept = [index for index in indices_of(manifest) if index.uuid not in gone]
    return _changed(manifest, [*kept, *operation.new_indices])


def apply_rewrite(manifest: Manifest, operation: Rewrite) -> Manifest:
    """Let the indices follow rows that were moved to other fragments.

    An index that was stored anew with the new addresses speaks for the new fragments. Any other does not: pylance's
    indices hold row addresses even where row ids are stable.
    """
    followers = {index.old: index for index in operation.rewritten_indices}
    found = []
    for index in indices_of(manifest):
        follower = followers.get(index.uuid)
        index = replace(  # noqa: PLW2901
            index, bitmap=_moved(index, operation.groups, follow=follower is not None)
        )
        found.append(index if follower is None else _stored_anew(index, follower))
    return _changed(manifest, found)


def _stored_anew(index: IndexMetadata, follower: RewrittenIndex) -> IndexMetadata:
    return replace(
        index,
        uuid=follower.new,
        details=follower.details or index.details,
        index_version=follower.index_version if follower.details else index.index_version,
        files=follower.files,
        # Stored anew means stored here, whichever base the old one lay under.
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
        # Only a group that the index knew whole: it would not find the rows of the others.
        if follow and shared == old:
            bitmap |= BitMap(fragment.id for fragment in group.new)
    return bitmap.serialize()


def _changed(manifest: Manifest, indices: Sequence[IndexMetadata]) -> Manifest:
    if list(indices) == list(indices_of(manifest)):
        # The very bytes: what is unchanged is not written differently.
        return manifest
    return replace(manifest, index_section=encode_indices(indices))


def _place(manifest: Manifest) -> str:
    return f"the index section of version {manifest.version}"
