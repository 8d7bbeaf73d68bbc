"""Apply one transaction to a manifest.

What a commit may not get wrong is decided here, and only here: fragment ids are never used twice, not even after an
overwrite or a restore; row ids of a table with stable row ids are handed out once; feature flags say what the
manifest really contains.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import row_id_range, version_run
from lance_dagster.format.model import Field, Flag, Fragment, Manifest, WriterVersion
from lance_dagster.format.transaction import Append, Delete, Overwrite, Restore, Transaction, Update

_RECOMPUTED = Flag.DELETION_FILES | Flag.TABLE_CONFIG | Flag.BASE_PATHS | Flag.NO_TRANSACTION_FILE


def empty_manifest(fields: Sequence[Field], file_version: str) -> Manifest:
    """Return what a table is before its first version: no rows, stable row ids on."""
    return Manifest(
        version=0,
        fields=tuple(fields),
        file_version=file_version,
        reader_flags=Flag.STABLE_ROW_IDS,
        writer_flags=Flag.STABLE_ROW_IDS,
    )


def apply(
    head: Manifest,
    transaction: Transaction,
    *,
    timestamp: int,
    writer: WriterVersion,
    restored: Manifest | None = None,
) -> Manifest:
    """Return the manifest that follows `head` when `transaction` is committed on it.

    Args:
        head: The newest version of the branch.
        transaction: The change. Its new fragments are numbered and given row ids here.
        timestamp: Nanoseconds since 1970 UTC.
        writer: Who writes the manifest.
        restored: The manifest a `Restore` goes back to.

    Raises:
        InvalidInputError: The operation cannot be committed by this package, or names fragments that are not there.
    """
    version = head.version + 1
    match transaction.operation:
        case Append(fragments=added):
            changed = _with_added(head, head.fragments, added, version)
        case Delete(updated_fragments=updated, deleted_fragment_ids=removed):
            changed = replace(head, fragments=_without(head, removed, updated))
        case Update(removed_fragment_ids=removed, updated_fragments=updated, new_fragments=added):
            changed = _with_added(head, _without(head, removed, updated), added, version)
        case Overwrite():
            changed = _overwritten(head, transaction.operation, version)
        case Restore() if restored is not None:
            changed = replace(
                restored,
                branch=head.branch,
                max_fragment_id=head.max_fragment_id,
                next_row_id=max(head.next_row_id, restored.next_row_id),
            )
        case _:
            raise InvalidInputError(f"cannot commit the operation {transaction.operation_name}")
    return with_flags(
        replace(
            changed,
            version=version,
            timestamp=max(timestamp, head.timestamp),
            transaction_file=transaction.file_name,
            writer=writer,
            version_aux_data=0,
            tag="",
        )
    )


def with_flags(manifest: Manifest) -> Manifest:
    """Recompute the feature flags that follow from what a manifest contains; keep the others."""
    shared = Flag(0)
    if any(fragment.deletion for fragment in manifest.fragments):
        shared |= Flag.DELETION_FILES
    if manifest.base_paths:
        shared |= Flag.BASE_PATHS
    own = Flag.TABLE_CONFIG if manifest.config else Flag(0)
    return replace(
        manifest,
        reader_flags=int(manifest.reader_flags & ~_RECOMPUTED | shared),
        writer_flags=int(manifest.writer_flags & ~_RECOMPUTED | shared | own),
    )


def _overwritten(head: Manifest, operation: Overwrite, version: int) -> Manifest:
    emptied = replace(
        head,
        fields=operation.fields,
        schema_metadata=operation.schema_metadata,
        config={**head.config, **operation.config_upserts},
        # The indexed rows are gone, and with them what the indices know.
        index_section=None,
        reader_flags=head.reader_flags & ~Flag.COVERED_INDEX,
        writer_flags=head.writer_flags & ~Flag.COVERED_INDEX,
    )
    return _with_added(emptied, (), operation.fragments, version)


def _without(head: Manifest, removed: Iterable[int], updated: Iterable[Fragment]) -> tuple[Fragment, ...]:
    gone = frozenset(removed)
    changed = {fragment.id: fragment for fragment in updated}
    missing = sorted((gone | changed.keys()) - head.fragment_map().keys())
    if missing:
        raise InvalidInputError(f"version {head.version} has no fragment {missing[0]}")
    return tuple(changed.get(fragment.id, fragment) for fragment in head.fragments if fragment.id not in gone)


def _with_added(head: Manifest, kept: tuple[Fragment, ...], added: Sequence[Fragment], version: int) -> Manifest:
    """Give the added fragments numbers and, on a table with stable row ids, their rows ids."""
    fragment_id = -1 if head.max_fragment_id is None else head.max_fragment_id
    row_id = head.next_row_id
    numbered: list[Fragment] = []
    for fragment in added:
        fragment_id += 1
        new = replace(fragment, id=fragment_id, row_ids=None, created_at=None, updated_at=None)
        if head.stable_row_ids:
            run = version_run(fragment.physical_rows, version)
            ids = row_id_range(row_id, fragment.physical_rows)
            new = replace(new, row_ids=ids, created_at=run, updated_at=run)
            row_id += fragment.physical_rows
        numbered.append(new)
    return replace(
        head,
        fragments=(*kept, *numbered),
        max_fragment_id=fragment_id if fragment_id >= 0 else None,
        next_row_id=row_id,
    )
