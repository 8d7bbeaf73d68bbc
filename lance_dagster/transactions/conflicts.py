"""Decide whether a pending transaction can be committed after a concurrent transaction.

A writer reads a version, prepares its transaction, and finds that other transactions were committed meanwhile. Each
committed transaction is classified against the pending transaction:
- compatible: the pending transaction is applied on top unchanged, such as an append after an append;
- rebase: both deleted rows of the same fragment, and the deletion vectors have to be combined first;
- retryable: the writer has to read again and redo its work, such as a row change after a compaction of its fragments;
- incompatible: a retry would overwrite the intention of the committed writer, so a person has to decide.

The rules are the rules that pylance 14 applies to its own commits, checked pair by pair against pylance, because
pylance and this package write the same tables: a pair that only one of them refuses gives no protection. Where this
package is stricter, a comment gives the reason.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from lance_dagster.format import transaction as ops
from lance_dagster.format.model import TOMBSTONE_FIELD, Fragment, IndexMetadata, Manifest
from lance_dagster.format.transaction import Operation, Transaction
from lance_dagster.transactions.claims import REPLACE, UPSERT, Claim, decode_claims
from lance_dagster.transactions.index_updates import covered_fragments


class Compatibility(Enum):
    """The effect of a committed transaction on a pending one."""

    COMPATIBLE = "compatible"
    REBASE = "compatible once the deletion vectors are combined"
    RETRYABLE = "retryable"
    INCOMPATIBLE = "incompatible"


COMPATIBLE, REBASE, RETRYABLE, INCOMPATIBLE = Compatibility

RowChange = ops.Update | ops.Delete
_REPLACES_TABLE = (ops.Overwrite, ops.Restore)
# These operations change neither rows nor schema: a pending change stays valid after any of them.
_HAS_NO_ROWS = (ops.ReserveFragments, ops.Clone, ops.UpdateBases)


def classify(pending: Transaction, committed: Transaction) -> Compatibility:
    """Classify `committed`, a transaction committed after `pending` read the table.

    Args:
        pending: The transaction that is to be committed.
        committed: The transaction that was committed first.
    """
    operation, landed = pending.operation, committed.operation
    # New base paths conflict only with other base paths, whatever else was committed.
    if isinstance(operation, ops.UpdateBases):
        return _classify_bases(operation, landed)
    if isinstance(landed, _HAS_NO_ROWS):
        return COMPATIBLE
    if isinstance(landed, ops.UpdateMemWalState):
        unaffected = isinstance(operation, ops.Update | ops.Rewrite | ops.UpdateConfig)
        return COMPATIBLE if unaffected else INCOMPATIBLE
    # This package cannot read overlays, so no rule could combine them with a change.
    if isinstance(landed, ops.DataOverlay):
        return RETRYABLE
    if _adds_keys(pending) and isinstance(landed, ops.Append | ops.Update):
        # An upsert inserts the keys it did not find; the committed rows may contain these keys by now.
        return RETRYABLE
    # Stricter than pylance: a merge that also changes columns may bring deleted rows back, or other values, in
    # fragments that the index would claim to cover.
    if isinstance(operation, ops.CreateIndex) and isinstance(landed, ops.Merge) and _merges_branches(committed):
        return RETRYABLE
    # Stricter than pylance, which adds the rows of the same file twice.
    if _add_same_files(operation, landed):
        return RETRYABLE
    # Fail closed: an operation without a rule is prepared again.
    rule = _RULES.get(type(operation))
    verdict = RETRYABLE if rule is None else rule(operation, landed)
    # Stricter than pylance, which knows no claims.
    return RETRYABLE if verdict in (COMPATIBLE, REBASE) and _replaces_claimed(pending, committed) else verdict


def is_plain_append(transaction: Transaction) -> bool:
    """Return whether a transaction adds rows whatever rows are there: neither an upsert nor a replacement."""
    is_append = isinstance(transaction.operation, ops.Append)
    return is_append and not _adds_keys(transaction) and not _replacements(transaction)


def appended_since(pending: Transaction, before: Manifest, after: Manifest) -> bool:
    """Return whether two versions alone show that every commit between them is compatible with an append.

    The two versions show it if schema and indices are the same, and the later version has the fragments of the earlier
    version, followed by all fragments that were added in between. So a writer reads one version instead of every
    version that landed. If False is returned, the transactions have to be classified one by one.

    Args:
        pending: An append that `is_plain_append`.
        before: A version that the append is compatible with.
        after: A later version of the same branch.
    """
    earlier, later = before.fragments, after.fragments
    added = later[len(earlier) :]
    # An overwrite of a table without fragments would look like an append.
    has_earlier = len(earlier) > 0 and later.items[: len(earlier)] == earlier.items
    numbered = (after.max_fragment_id or 0) - (before.max_fragment_id or 0) == len(added)
    same_schema = after.fields == before.fields and after.max_allocated_field_id == before.max_allocated_field_id
    if not (has_earlier and numbered and same_schema and after.index_section == before.index_section):
        return False
    return not _add_same_files(pending.operation, ops.Append(fragments=added))


def same_columns(before: Manifest, after: Manifest) -> bool:
    """Return whether rows that fit `before` by the names of its columns mean the same in `after`."""
    return before.fields == after.fields or _described(before) == _described(after)


def _described(manifest: Manifest) -> set[tuple[object, ...]]:
    return {
        (field.id, field.parent_id, field.name, field.logical_type, field.extension_name, field.nullable)
        for field in manifest.fields
    }


def _merges_branches(transaction: Transaction) -> bool:
    """Return whether a transaction is a merge, pick or revert, and not an edit of columns."""
    # A squash merge records claims alone, which no edit of columns does.
    marks = ops.CHANGE_ORIGIN_PROPERTIES | {ops.MERGE, ops.CLAIMS}
    return not marks.isdisjoint(transaction.properties)


def _adds_keys(pending: Transaction) -> bool:
    """Return whether a change inserted rows because their keys were missing: an upsert."""
    operation = pending.operation
    inserts = isinstance(operation, ops.Update) and operation.inserted_rows is not None
    return inserts or any(claim.mode == UPSERT and claim.exclusive for claim in decode_claims(pending.properties))


def _replaces_claimed(pending: Transaction, committed: Transaction) -> bool:
    """Return whether the pending change may replace rows that the committed change claims.

    Two replacements of partition `2026-01-31` are an example. The pending replacement did not see the rows that the
    committed replacement added. If both found no row to remove, no fragment shows the conflict, and the partition would
    have the rows of both, which is the result of neither order.
    """
    own = _replacements(pending)
    claimed = [claim for claim in decode_claims(committed.properties) if claim.exclusive] if own else []
    return any(claim.shared_partitions(there) != () for claim in own for there in claimed)


def _replacements(transaction: Transaction) -> list[Claim]:
    """Return the claims of the replacements in a transaction."""
    return [claim for claim in decode_claims(transaction.properties) if claim.mode == REPLACE]


def touched_fragments(operation: RowChange) -> frozenset[int]:
    """Return the ids of the fragments that an operation removes or updates."""
    return removed_fragments(operation).union(fragment.id for fragment in operation.updated_fragments)


def removed_fragments(operation: RowChange) -> frozenset[int]:
    """Return the ids of the fragments that an operation removes."""
    if isinstance(operation, ops.Update):
        return frozenset(operation.removed_fragment_ids)
    return frozenset(operation.deleted_fragment_ids)


def _classify_append(pending: ops.Append, committed: Operation) -> Compatibility:
    if isinstance(committed, _REPLACES_TABLE):
        return INCOMPATIBLE
    if isinstance(committed, ops.Merge | ops.Project):
        # A schema change without `preserves_nullability` may add a non-nullable column, for which the appended rows
        # have no value.
        return (
            COMPATIBLE if committed.preserves_nullability and _still_read(pending.fragments, committed) else RETRYABLE
        )
    return COMPATIBLE


def _add_same_files(pending: Operation, committed: Operation) -> bool:
    """Return whether two operations add the rows of one staged file, which would be in the table twice."""
    own = _added_files(pending)
    return bool(own) and not own.isdisjoint(_added_files(committed))


def _added_files(operation: Operation) -> frozenset[tuple[str, int | None]]:
    """Return the names and base ids of the data files of an operation that adds rows to the existing rows."""
    match operation:
        case ops.Append(fragments=added) | ops.Update(new_fragments=added):
            return frozenset((file.path, file.base_id) for fragment in added for file in fragment.files)
    return frozenset()


def _still_read(added: Iterable[Fragment], committed: ops.Merge | ops.Project) -> bool:
    """Return whether all fields of the added data files still exist after a schema change.

    Stricter than pylance: a cast changes the field id of a column, so values written under the old id would be read as
    nulls; and the id of a dropped column may be assigned to a new column, which would show the old values.
    """
    ids = {TOMBSTONE_FIELD, *(field.id for field in committed.fields)}
    return all(ids.issuperset(file.fields) for fragment in added for file in fragment.files)


def _classify_row_change(pending: RowChange, committed: Operation) -> Compatibility:
    match committed:
        case ops.Append():
            return COMPATIBLE
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Update() | ops.Delete():
            return _classify_two_row_changes(pending, committed)
        case ops.Rewrite() | ops.DataReplacement():
            return RETRYABLE if touched_fragments(pending) & _fragments_of(committed) else COMPATIBLE
        case ops.Merge():
            return RETRYABLE
        case ops.Project() if isinstance(pending, ops.Update):
            fits = committed.preserves_nullability and _still_read(pending.new_fragments, committed)
            return COMPATIBLE if fits else RETRYABLE
        case _:
            return COMPATIBLE


# Two deletions in one fragment combine by union of their deletion vectors; whether they deleted the same row is decided
# when the vectors are read. New values written in place cannot be combined this way.
def _classify_two_row_changes(pending: RowChange, committed: RowChange) -> Compatibility:
    if not touched_fragments(pending) & touched_fragments(committed):
        return COMPATIBLE
    columns = any(isinstance(side, ops.Update) and side.writes_columns for side in (pending, committed))
    return RETRYABLE if columns else REBASE


# An overwrite replaces everything, so only a concurrent overwrite conflicts: one of the two tables would be lost.
def _classify_overwrite(_: ops.Overwrite, committed: Operation) -> Compatibility:
    return RETRYABLE if isinstance(committed, ops.Overwrite) else COMPATIBLE


# A restore replaces rows and schema. Metadata that was set meanwhile would be lost silently, rows are meant to be.
def _classify_restore(_: ops.Restore, committed: Operation) -> Compatibility:
    own = isinstance(committed, ops.UpdateConfig) and (
        committed.schema_metadata is not None or committed.field_metadata
    )
    return INCOMPATIBLE if own else COMPATIBLE


def _classify_create_index(pending: ops.CreateIndex, committed: Operation) -> Compatibility:
    if isinstance(committed, _REPLACES_TABLE):
        return INCOMPATIBLE
    fields = {number for index in pending.new_indices for number in (*index.fields, *index.covering_fields)}
    match committed:
        case ops.CreateIndex():
            names = {index.name for index in (*pending.new_indices, *pending.removed_indices)}
            shared = names.intersection(index.name for index in (*committed.new_indices, *committed.removed_indices))
            return RETRYABLE if shared else COMPATIBLE
        # A compaction removes fragments that the new index covers by address.
        case ops.Rewrite():
            return RETRYABLE if _covers(pending.new_indices, _fragments_of(committed)) else COMPATIBLE
        case ops.DataReplacement():
            replaced = {number for _, file in committed.replacements for number in file.fields}
            return RETRYABLE if fields & replaced else COMPATIBLE
        case ops.Update() if fields.intersection(committed.fields_modified):
            # Stricter than pylance: the new index contains the old values, and would claim to cover the updated rows.
            return RETRYABLE
        # An index on a field that was dropped meanwhile could never be used.
        case ops.Merge() | ops.Project():
            dropped = fields.difference(field.id for field in committed.fields)
            return RETRYABLE if dropped else COMPATIBLE
        case _:
            return COMPATIBLE


# A compaction copies live rows. Deletions and updates committed meanwhile in the same fragments would be undone.
def _classify_rewrite(pending: ops.Rewrite, committed: Operation) -> Compatibility:
    match committed:
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Update() | ops.Delete():
            return RETRYABLE if touched_fragments(committed) & _fragments_of(pending) else COMPATIBLE
        case ops.Rewrite() | ops.DataReplacement():
            return RETRYABLE if _fragments_of(committed) & _fragments_of(pending) else COMPATIBLE
        case ops.Merge():
            return RETRYABLE
        case ops.CreateIndex():
            return RETRYABLE if _covers(committed.new_indices, _fragments_of(pending)) else COMPATIBLE
        case _:
            return COMPATIBLE


# A merge operation lists all fragments with their new data files, so every fragment that was added or changed meanwhile
# would be missing from it.
def _classify_merge(_: ops.Merge, committed: Operation) -> Compatibility:
    match committed:
        case ops.Overwrite() | ops.Restore() | ops.Project():
            return INCOMPATIBLE
        case ops.CreateIndex():
            return COMPATIBLE
        case ops.UpdateConfig():
            own = committed.schema_metadata is not None or committed.field_metadata
            return RETRYABLE if own else COMPATIBLE
        case _:
            return RETRYABLE


def _classify_project(pending: ops.Project, committed: Operation) -> Compatibility:
    match committed:
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Merge() | ops.Project():
            return RETRYABLE
        case ops.UpdateConfig(field_metadata=changed) if changed:
            # Stricter than pylance: its projection writes back the field metadata it read, and loses the change.
            return RETRYABLE
        case ops.Append() | ops.Update() | ops.DataReplacement():
            # The projection verified that a column has no nulls; the committed values may contain some.
            return COMPATIBLE if pending.preserves_nullability else RETRYABLE
        case _:
            return COMPATIBLE


def _classify_config(pending: ops.UpdateConfig, committed: Operation) -> Compatibility:
    # Table configuration and table metadata are independent of the schema; schema and field metadata are not.
    about_schema = pending.schema_metadata is not None or pending.field_metadata
    match committed:
        case ops.UpdateConfig():
            return INCOMPATIBLE if _same_keys(pending, committed) else COMPATIBLE
        case ops.Overwrite() | ops.Restore() if about_schema:
            return INCOMPATIBLE
        case ops.Merge() if about_schema:
            return RETRYABLE
        case ops.Project() if pending.field_metadata:
            # Stricter than pylance: the projection may have dropped the field.
            ids = {field.id for field in committed.fields}
            return COMPATIBLE if ids.issuperset(pending.field_metadata) else RETRYABLE
        case _:
            return COMPATIBLE


def _same_keys(pending: ops.UpdateConfig, committed: ops.UpdateConfig) -> bool:
    pairs = [
        (pending.config, committed.config),
        (pending.table_metadata, committed.table_metadata),
        (pending.schema_metadata, committed.schema_metadata),
        *((own, committed.field_metadata.get(number)) for number, own in pending.field_metadata.items()),
    ]
    return any(first is not None and second is not None and _overlap(first, second) for first, second in pairs)


def _overlap(first: ops.MapUpdate, second: ops.MapUpdate) -> bool:
    if first.replace or second.replace:
        return True
    # Two deletions of a key agree, in whichever order they are applied.
    return any(
        not (value is None and second.entries[key] is None)
        for key, value in first.entries.items()
        if key in second.entries
    )


def _classify_replacement(pending: ops.DataReplacement, committed: Operation) -> Compatibility:
    own = _fragments_of(pending)
    fields = {number for _, file in pending.replacements for number in file.fields}
    match committed:
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        # The replacement file has values for a fragment that no longer exists; reading again does not bring it back.
        case ops.Delete():
            return INCOMPATIBLE if own & removed_fragments(committed) else COMPATIBLE
        case ops.Update() | ops.Rewrite() | ops.DataReplacement():
            return RETRYABLE if _rewrites(committed, own, fields) else COMPATIBLE
        case ops.CreateIndex():
            indexed = {number for index in committed.new_indices for number in (*index.fields, *index.covering_fields)}
            return RETRYABLE if fields & indexed else COMPATIBLE
        case ops.Merge():
            return RETRYABLE
        case ops.Project() if fields.difference(field.id for field in committed.fields):
            return INCOMPATIBLE
        case ops.Project(preserves_nullability=False):
            return RETRYABLE
        case _:
            return COMPATIBLE


def _rewrites(
    committed: ops.Update | ops.Rewrite | ops.DataReplacement, fragments: frozenset[int], fields: set[int]
) -> bool:
    """Return whether a change moved rows of the fragments, or wrote values of the fields in them."""
    match committed:
        case ops.Update(writes_columns=True):
            fields_written, touched = set(committed.fields_modified), touched_fragments(committed)
        case ops.Update():
            fields_written, touched = fields, touched_fragments(committed)
        case ops.Rewrite():
            fields_written, touched = fields, _fragments_of(committed)
        case ops.DataReplacement():
            fields_written, touched = (
                {n for _, file in committed.replacements for n in file.fields},
                _fragments_of(committed),
            )
    return bool(fragments & touched and fields & fields_written)


def _classify_bases(pending: ops.UpdateBases, committed: Operation) -> Compatibility:
    if not isinstance(committed, ops.UpdateBases):
        return COMPATIBLE
    committed_parts = [part for base in committed.new_bases for part in _identity(base.id, base.name, base.path)]
    pending_parts = [part for base in pending.new_bases for part in _identity(base.id, base.name, base.path)]
    return INCOMPATIBLE if set(committed_parts) & set(pending_parts) else COMPATIBLE


def _identity(number: int, name: str | None, path: str) -> Collection[tuple[str, str]]:
    parts = [("path", path), *([("name", name)] if name else []), *([("id", str(number))] if number else [])]
    return frozenset(parts)


def _covers(indices: Iterable[IndexMetadata], fragments: frozenset[int]) -> bool:
    # An index without a recorded bitmap may cover any fragment.
    bitmaps = map(covered_fragments, indices)
    return any(bitmap is None or not fragments.isdisjoint(bitmap) for bitmap in bitmaps)


def _fragments_of(operation: ops.Rewrite | ops.DataReplacement) -> frozenset[int]:
    if isinstance(operation, ops.DataReplacement):
        return frozenset(number for number, _ in operation.replacements)
    return frozenset(fragment.id for group in operation.groups for fragment in group.old)


_RULES: Mapping[type[Operation], Callable[[Any, Operation], Compatibility]] = {
    ops.Append: _classify_append,
    ops.Delete: _classify_row_change,
    ops.Update: _classify_row_change,
    ops.Overwrite: _classify_overwrite,
    ops.Restore: _classify_restore,
    ops.CreateIndex: _classify_create_index,
    ops.Rewrite: _classify_rewrite,
    ops.Merge: _classify_merge,
    ops.Project: _classify_project,
    ops.UpdateConfig: _classify_config,
    ops.DataReplacement: _classify_replacement,
    ops.ReserveFragments: lambda *_: COMPATIBLE,
}
