"""Apply one transaction to a manifest.

A commit must preserve these invariants. This module enforces them for every operation; a merge builds its manifest in
`merge.rules.plan` and has to preserve them there:
- Fragment ids are never reused, not even after an overwrite or a restore. Deletion files and indices are keyed by
  fragment id, so a reused id would give rows the deletions or index entries of other rows.
- On a table with stable row ids, a row id is assigned once. Row ids are not part of the transaction of an append: they
  are assigned here, again on every retry, because another commit may have taken them meanwhile.
- An index covers only fragments whose values it contains.
- Feature flags state what the manifest really contains. A reader that does not know a flag has to refuse the table.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lance_dagster.errors import InvalidInputError, UnsupportedFeatureError
from lance_dagster.format import transaction as ops
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import (
    TOMBSTONE_FIELD,
    DataFile,
    Field,
    Flag,
    Fragment,
    Fragments,
    Manifest,
    WriterVersion,
)
from lance_dagster.format.schema import with_field_metadata
from lance_dagster.format.transaction import Transaction
from lance_dagster.format.value_ranges import count_blocks, of_files, united
from lance_dagster.transactions.base_paths import add_base_paths, restored_base_paths
from lance_dagster.transactions.index_updates import (
    apply_create_index,
    apply_rewrite,
    drop_indices_without_fields,
    indices_of,
    uncover_fields,
)
from lance_dagster.transactions.row_lineage import restamped, stamped, with_creation, with_new_values

MAX_FRAGMENT_ID, MAX_ROW_ID = 2**32 - 1, 2**64 - 1
# The other known flags (stable row ids, file format versions) are decided when the table is created and are kept.
_RECOMPUTED = Flag.DELETION_FILES | Flag.TABLE_CONFIG | Flag.BASE_PATHS | Flag.NO_TRANSACTION_FILE | Flag.COVERED_INDEX


def empty_manifest(fields: Sequence[Field], file_version: str) -> Manifest:
    """Return the state of a table with stable row ids before its first version: no rows."""
    flags = int(Flag.STABLE_ROW_IDS)
    return Manifest(version=0, fields=tuple(fields), file_version=file_version, reader_flags=flags, writer_flags=flags)


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
        restored: The manifest that a `Restore` returns to.

    Raises:
        InvalidInputError: This package cannot commit the operation, or the operation references a fragment, field or
            index that does not exist.
        UnsupportedFeatureError: The manifest lacks counts that only pylance can recompute.
    """
    # A restore is the only operation that needs a second manifest, so it is not in the table of rules.
    operation = transaction.operation
    if isinstance(operation, ops.Restore):
        changed = _restored(head, restored, operation.version)
    else:
        rule = _RULES.get(type(operation))
        if rule is None:
            raise InvalidInputError(f"cannot commit the operation {transaction.operation_name}; commit it with pylance")
        changed = rule(head, operation)
    return next_version(head, changed, timestamp=timestamp, writer=writer)


_GONE_FILES = 64
"""The number of data files whose ranges may stay when the files are gone."""


def next_version(head: Manifest, changed: Manifest, *, timestamp: int, writer: WriterVersion) -> Manifest:
    """Return a changed state as the version after `head`.

    Raises:
        UnsupportedFeatureError: The manifest lacks counts that only pylance can recompute.
    """
    _refuse_unknown_numbers(changed)
    return with_feature_flags(
        replace(
            changed,
            version=head.version + 1,
            # It is never before the parent's timestamp: clock skew must not reorder a log or a time travel by date.
            timestamp=max(timestamp, head.timestamp),
            # The manifest file holds the transaction itself.
            transaction_file="",
            writer=writer,
            # These two describe the parent version.
            version_aux_data=0,
            tag="",
            ranges=_ranges(changed),
        )
    )


def _ranges(changed: Manifest) -> str:
    """Return the known ranges of the data files of a state, with the ranges that new fragments bring."""
    new = [item.ranges for item in changed.fragments.items if isinstance(item, Fragment) and item.ranges]
    ranges = united(changed.ranges, *new) if new else changed.ranges
    # Files that are gone are left out now and then: to look for them takes the names of all files.
    if count_blocks(ranges) <= 2 * len(changed.fragments) + _GONE_FILES:
        return ranges
    fragments = changed.fragments
    return of_files(ranges, (path for number in fragments.ids for path in fragments.paths(number)))


def _refuse_unknown_numbers(changed: Manifest) -> None:
    """Refuse a manifest of an old pylance release that pylance itself would repair before a commit.

    pylance decides by the writer version whether to recompute counts and index bitmaps. With our name as the writer it
    would never repair them, so the first commit has to be pylance's.

    Raises:
        UnsupportedFeatureError: Fragments lack row counts, or the coverage of indices may be wrong.
    """
    # Raises when a fragment lacks its row count.
    _ = changed.rows
    if changed.index_section is not None and _before_bitmaps_were_right(changed.writer):
        coding = changed.fragments.decoder
        where = coding.path if coding is not None else f"{changed.branch or MAIN}@{changed.version}"
        what = "indices of pylance before 0.8.15, which may be wrong about what they cover (commit with pylance once)"
        raise UnsupportedFeatureError(where, [what])


def _before_bitmaps_were_right(writer: WriterVersion | None) -> bool:
    if writer is None:
        return True
    release = re.fullmatch(r"0\.(\d{1,9})\.(\d{1,9})", writer.version)
    return writer.library == "lance" and release is not None and (int(release[1]), int(release[2])) < (8, 15)


def with_feature_flags(manifest: Manifest) -> Manifest:
    """Recompute the feature flags that depend on the content of a manifest; keep all other flags."""
    shared = Flag(0)
    if manifest.fragments.deletions:
        shared |= Flag.DELETION_FILES
    if manifest.base_paths:
        shared |= Flag.BASE_PATHS
    if manifest.index_section is not None and any(index.covering_fields for index in indices_of(manifest)):
        shared |= Flag.COVERED_INDEX
    # Readers may ignore the configuration, so only the writer flag is set for it.
    own = Flag.TABLE_CONFIG if manifest.config else Flag(0)
    return replace(
        manifest,
        reader_flags=int(manifest.reader_flags & ~_RECOMPUTED | shared),
        writer_flags=int(manifest.writer_flags & ~_RECOMPUTED | shared | own),
    )


def _append(head: Manifest, operation: ops.Append) -> Manifest:
    return _with_added(head, head.fragments, [_without_row_ids(fragment) for fragment in operation.fragments])


def _delete(head: Manifest, operation: ops.Delete) -> Manifest:
    updated = _with_vectors(head, operation.updated_fragments)
    return replace(head, fragments=_without(head, operation.deleted_fragment_ids, updated))


def _with_vectors(head: Manifest, updated: Sequence[Fragment]) -> list[Fragment]:
    """Return the fragments of `head` that an operation updated, with the new deletion files.

    Only the deletion file is taken over: the change may have been prepared on an older version, and its data files may
    since have been replaced by a column change.
    """
    fragments = []
    for fragment in updated:
        own = head.fragments.find(fragment.id)
        fragments.append(fragment if own is None else replace(own, deletion=fragment.deletion))
    return fragments


def _update(head: Manifest, operation: ops.Update) -> Manifest:
    updated: Sequence[Fragment] = operation.updated_fragments
    if not operation.writes_columns:
        updated = _with_vectors(head, updated)
    # Row versions depend on the number of the new version, so the pending fragments cannot contain them.
    elif head.stable_row_ids:
        updated = list(restamped(operation, head.version + 1))
    added = operation.new_fragments
    if head.stable_row_ids:
        added = _with_creation(head, operation)
    remaining = _without(head, operation.removed_fragment_ids, updated)
    changed = _with_added(head, remaining, added)
    if operation.writes_columns:
        touched = [fragment.id for fragment in operation.updated_fragments]
        changed = uncover_fields(changed, operation.fields_modified, touched)
        changed = _without_dead_files(changed, touched)
    return changed


def _with_creation(head: Manifest, operation: ops.Update) -> list[Fragment]:
    """Return the new fragments of an update with the creation versions of moved rows.

    pylance omits them from the transaction. They are looked up in the fragments the rows came from.
    """
    ids = [*operation.removed_fragment_ids, *(fragment.id for fragment in operation.updated_fragments)]
    missing = [fragment.row_ids is not None and fragment.created_at is None for fragment in operation.new_fragments]
    # Decoding the sequences of all source fragments is expensive; most updates of this package carry the versions.
    if not any(missing):
        return list(operation.new_fragments)
    sources = [own for number in ids if (own := head.fragments.find(number)) is not None]
    return [
        with_creation(fragment, sources) if lacks_versions else fragment
        for fragment, lacks_versions in zip(operation.new_fragments, missing, strict=True)
    ]


def _overwrite(head: Manifest, operation: ops.Overwrite) -> Manifest:
    # max_fragment_id and next_row_id are carried over from head: old versions still reference the old ids.
    emptied = replace(
        head,
        fields=operation.fields,
        schema_metadata=operation.schema_metadata,
        config={**head.config, **operation.config_upserts},
        base_paths=add_base_paths(head.base_paths, operation.initial_bases),
        # All indexed rows are gone.
        index_section=None,
    )
    return _with_added(emptied, Fragments(), [_without_row_ids(fragment) for fragment in operation.fragments])


def _restored(head: Manifest, restored: Manifest | None, number: int) -> Manifest:
    if restored is None:
        raise InvalidInputError(f"cannot restore version {number}: its manifest was not passed as `restored`")
    # None means that no fragment was ever numbered.
    ids = [fragment_id for fragment_id in (head.max_fragment_id, restored.max_fragment_id) if fragment_id is not None]
    return replace(
        restored,
        branch=head.branch,
        # A restore returns to old rows, not to old locations: files may have been relocated since.
        base_paths=restored_base_paths(restored.base_paths, head.base_paths),
        # The counters keep the maximum of both: ids of the abandoned versions must not be assigned again.
        max_fragment_id=max(ids, default=None),
        next_row_id=max(head.next_row_id, restored.next_row_id),
        max_allocated_field_id=max(
            (
                field_id
                for field_id in (head.max_allocated_field_id, restored.max_allocated_field_id)
                if field_id is not None
            ),
            default=None,
        ),
    )


def _rewrite(head: Manifest, operation: ops.Rewrite) -> Manifest:
    # The ids of the new fragments were reserved by an earlier commit, so they are kept instead of being assigned.
    fragments = head.fragments
    highest = -1 if head.max_fragment_id is None else head.max_fragment_id
    for group in operation.groups:
        new = [fragment.id for fragment in group.new]
        if not group.moves_rows:
            fragments = _without(replace(head, fragments=fragments), (), group.new)
            continue
        fragments = _exchanged(fragments, [fragment.id for fragment in group.old], group.new)
        highest = max(highest, *new) if new else highest
    moved = replace(head, fragments=fragments, max_fragment_id=highest if highest >= 0 else None)
    return apply_rewrite(moved, operation)


def _exchanged(fragments: Fragments, old: Sequence[int], new: Sequence[Fragment]) -> Fragments:
    """Replace the fragments `old` by the fragments `new`, ordered by id: `validate` of pylance requires this order."""
    remaining = fragments.changed(old, {})
    duplicates = set(remaining.ids).intersection(fragment.id for fragment in new)
    if duplicates:
        raise InvalidInputError(
            f"there is a fragment {min(duplicates)} already; a rewrite needs ids that were reserved"
        )
    # Unchanged items stay encoded: only ids are needed for sorting.
    together = [*zip(remaining.ids, remaining.items, strict=True), *((fragment.id, fragment) for fragment in new)]
    return Fragments([item for _, item in sorted(together, key=lambda pair: pair[0])], remaining.decoder)


def _merge(head: Manifest, operation: ops.Merge) -> Manifest:
    fragments = operation.fragments if isinstance(operation.fragments, Fragments) else Fragments(operation.fragments)
    ids, named = set(head.fragments.ids), set(fragments.ids)
    unknown, lost = sorted(named - ids), sorted(ids - named)
    if unknown:
        raise InvalidInputError(f"version {head.version} has no fragment {unknown[0]}")
    # A fragment is missing when another commit added it after the merge operation was prepared.
    if lost:
        raise InvalidInputError(f"a merge without fragment {lost[0]} of version {head.version} would lose its rows")
    # Encoded items are compared first: only fragments that differ are decoded.
    before = dict(zip(head.fragments.ids, head.fragments.items, strict=True))
    changed: dict[int, Fragment] = {}
    for number, item in zip(fragments.ids, fragments.items, strict=True):
        if item != before[number]:
            own, fragment = head.fragments.find(number), fragments.find(number)
            if own is not None and fragment is not None and own.files != fragment.files:
                changed[number] = with_new_values(fragment, head.version + 1) if head.stable_row_ids else fragment
    merged = replace(
        head,
        fields=operation.fields,
        schema_metadata=operation.schema_metadata,
        fragments=fragments.changed((), changed),
    )
    return drop_indices_without_fields(drop_unused_files(merged, head.fields))


def _project(head: Manifest, operation: ops.Project) -> Manifest:
    return drop_indices_without_fields(drop_unused_files(replace(head, fields=operation.fields), head.fields))


def drop_unused_files(manifest: Manifest, before: Sequence[Field]) -> Manifest:
    """Drop data files that contain only fields missing from the schema, when the schema lost fields."""
    live = {field.id for field in manifest.fields}
    lost_fields = not live.issuperset(field.id for field in before)
    return _without_dead_files(manifest, manifest.fragments.ids) if lost_fields else manifest


def _without_dead_files(manifest: Manifest, fragments: Iterable[int]) -> Manifest:
    """Drop the data files of some fragments that contain only fields missing from the schema."""
    live = {field.id for field in manifest.fields}
    changed: dict[int, Fragment] = {}
    for number in fragments:
        fragment = manifest.fragments.find(number)
        if fragment is None:
            continue
        files = tuple(file for file in fragment.files if not live.isdisjoint(file.fields))
        if fragment.files and not files:
            raise InvalidInputError(
                f"fragment {fragment.id} would be left without a file: the remaining columns are null in all its rows, "
                "and no file records how many rows it has; write one of these columns first, or keep another"
            )
        if files != fragment.files:
            changed[fragment.id] = replace(fragment, files=files)
    return replace(manifest, fragments=manifest.fragments.changed((), changed))


def _reserve(head: Manifest, operation: ops.ReserveFragments) -> Manifest:
    highest = -1 if head.max_fragment_id is None else head.max_fragment_id
    return replace(head, max_fragment_id=highest + operation.count)


def _config(head: Manifest, operation: ops.UpdateConfig) -> Manifest:
    config, table, schema = operation.config, operation.table_metadata, operation.schema_metadata
    described = head.schema_metadata
    if schema is not None:
        current = {key: value.decode("utf-8", "surrogateescape") for key, value in described.items()}
        changed = schema.apply_to(current)
        described = {key: value.encode("utf-8", "surrogateescape") for key, value in changed.items()}
    return replace(
        head,
        config=head.config if config is None else config.apply_to(head.config),
        table_metadata=head.table_metadata if table is None else table.apply_to(head.table_metadata),
        schema_metadata=described,
        fields=with_field_metadata(head.fields, operation.field_metadata),
    )


def _replace_data(head: Manifest, operation: ops.DataReplacement) -> Manifest:
    updated: dict[int, Fragment] = {}
    for number, file in operation.replacements:
        fragment = updated.get(number) or head.fragments.find(number)
        if fragment is None:
            raise InvalidInputError(f"version {head.version} has no fragment {number}")
        fragment = replace(fragment, files=_with_file(fragment, file))
        updated[number] = with_new_values(fragment, head.version + 1) if head.stable_row_ids else fragment
    changed = replace(head, fragments=head.fragments.changed((), updated))
    # The replaced values are not in the indices.
    for number, file in operation.replacements:
        changed = uncover_fields(changed, file.fields, [number])
    return changed


def _with_file(fragment: Fragment, file: DataFile) -> tuple[DataFile, ...]:
    fields = set(file.fields)
    for place, own in enumerate(fragment.files):
        if set(own.fields) - {TOMBSTONE_FIELD} == fields:
            return (*fragment.files[:place], file, *fragment.files[place + 1 :])
    # Replacing part of a file would leave two files with values of one field.
    if any(fields.intersection(own.fields) for own in fragment.files):
        raise InvalidInputError(
            f"a file of fields {list(file.fields)} cannot replace a file of fragment {fragment.id}: no file of the "
            "fragment holds exactly these fields"
        )
    return (*fragment.files, file)


def _update_bases(head: Manifest, operation: ops.UpdateBases) -> Manifest:
    return replace(head, base_paths=add_base_paths(head.base_paths, operation.new_bases))


def _without_row_ids(fragment: Fragment) -> Fragment:
    return replace(fragment, row_ids=None, created_at=None, updated_at=None)


def _without(head: Manifest, removed: Sequence[int], updated: Sequence[Fragment]) -> Fragments:
    try:
        return head.fragments.changed(removed, {fragment.id: fragment for fragment in updated})
    except InvalidInputError as error:
        raise InvalidInputError(f"in version {head.version} {error}") from error


def _with_added(head: Manifest, remaining: Fragments, added: Sequence[Fragment]) -> Manifest:
    """Add fragments: assign fragment ids and, with stable row ids, row ids and row versions."""
    # Other writers may have recorded a maximum that is too low; an id assigned twice would lose rows.
    highest = -1 if head.max_fragment_id is None else head.max_fragment_id
    fragment_id = max(highest, max(head.fragments.ids, default=-1))
    if fragment_id + len(added) > MAX_FRAGMENT_ID:
        raise InvalidInputError(f"version {head.version} has a fragment {fragment_id}; there are no more ids after it")
    # Both limits are checked before anything is assigned: beyond them, ids would wrap around and be used twice.
    row_id = head.next_row_id
    if row_id + sum(fragment.physical_rows for fragment in added) > MAX_ROW_ID:
        raise InvalidInputError(
            f"version {head.version} assigned row ids up to {row_id}; there are no more ids after it"
        )
    numbered: list[Fragment] = []
    for fragment in added:
        fragment_id += 1
        new = replace(fragment, id=fragment_id)
        if head.stable_row_ids:
            new, row_id = stamped(new, row_id, head.version + 1)
        numbered.append(new)
    return replace(
        head,
        fragments=remaining.added(numbered),
        max_fragment_id=fragment_id if fragment_id >= 0 else None,
        next_row_id=row_id,
    )


_RULES: Mapping[type[ops.Operation], Callable[[Manifest, Any], Manifest]] = {
    ops.Append: _append,
    ops.Delete: _delete,
    ops.Update: _update,
    ops.Overwrite: _overwrite,
    ops.CreateIndex: apply_create_index,
    ops.Rewrite: _rewrite,
    ops.Merge: _merge,
    ops.Project: _project,
    ops.ReserveFragments: _reserve,
    ops.UpdateConfig: _config,
    ops.DataReplacement: _replace_data,
    ops.UpdateBases: _update_bases,
}
