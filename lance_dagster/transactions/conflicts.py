"""Whether a change still means what it meant when another one was committed first.

A writer reads a version, prepares its change, and finds that others committed meanwhile. For each of them one answer
is needed: compatible, so the change is applied on top; compatible once both deletion vectors are joined; retryable,
so the writer must read again and redo its work; or incompatible, so a person has to look. The rules are those
pylance 14 applies to its own commits, checked pair by pair, because writers of both kinds share a table. There are a
few pairs where this package is stricter, each with its reason where it is decided. In two it is more lenient:

- Two updates of metadata of the table, the schema or one field pass where they set different keys: each is applied to
  what the other one left, so the order does not matter. pylance refuses any two.
- A reservation of fragment ids passes after an overwrite or a restore: ids are never given twice, so that the reserved
  ones are free in any later version.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from lance_dagster.format import transaction as ops
from lance_dagster.format.model import TOMBSTONE_FIELD, Fragment, IndexMetadata
from lance_dagster.format.transaction import Operation, Transaction
from lance_dagster.transactions.claims import UPSERT, decode_claims
from lance_dagster.transactions.index_updates import covered_fragments


class Compatibility(Enum):
    """What a committed transaction means for one that is about to be."""

    COMPATIBLE = "compatible"
    REBASE = "compatible once the deletion vectors are joined"
    RETRYABLE = "retryable"
    INCOMPATIBLE = "incompatible"


COMPATIBLE, REBASE, RETRYABLE, INCOMPATIBLE = Compatibility

RowChange = ops.Update | ops.Delete
_REPLACES_TABLE = (ops.Overwrite, ops.Restore)
_HAS_NO_ROWS = (ops.ReserveFragments, ops.Clone, ops.UpdateBases)


def classify(mine: Transaction, theirs: Transaction) -> Compatibility:
    """Say what `theirs`, committed after `mine` read the table, means for `mine`."""
    one, other = mine.operation, theirs.operation
    if isinstance(one, ops.UpdateBases):
        return _judge_bases(one, other)
    if isinstance(other, _HAS_NO_ROWS):
        return COMPATIBLE
    if isinstance(other, ops.UpdateMemWalState):
        unaffected = isinstance(one, ops.Update | ops.Project | ops.Rewrite | ops.UpdateConfig)
        return COMPATIBLE if unaffected else INCOMPATIBLE
    if isinstance(other, ops.DataOverlay):
        return RETRYABLE
    if _adds_keys(mine) and isinstance(other, ops.Append | ops.Update):
        # What this one found missing may have come with the other's rows.
        return RETRYABLE
    rule = _RULES.get(type(one))
    return RETRYABLE if rule is None else rule(one, other)


def _adds_keys(mine: Transaction) -> bool:
    """Tell whether a change added rows because no row had their keys."""
    operation = mine.operation
    inserts = isinstance(operation, ops.Update) and operation.inserted_rows is not None
    return inserts or any(claim.mode == UPSERT for claim in decode_claims(mine.properties))


def touched_fragments(operation: RowChange) -> frozenset[int]:
    """Return the ids of the fragments an operation removes or changes."""
    return removed_fragments(operation).union(fragment.id for fragment in operation.updated_fragments)


def removed_fragments(operation: RowChange) -> frozenset[int]:
    """Return the ids of the fragments an operation removes whole."""
    if isinstance(operation, ops.Update):
        return frozenset(operation.removed_fragment_ids)
    return frozenset(operation.deleted_fragment_ids)


def _judge_append(mine: ops.Append, other: Operation) -> Compatibility:
    if isinstance(other, _REPLACES_TABLE):
        return INCOMPATIBLE
    if isinstance(other, ops.Merge | ops.Project):
        # A column that may not be null came into being, and the appended rows have no value for it.
        return COMPATIBLE if other.preserves_nullability and _still_read(mine.fragments, other) else RETRYABLE
    return COMPATIBLE


def _still_read(added: Iterable[Fragment], other: ops.Merge | ops.Project) -> bool:
    """Tell whether every value in new files belongs to a column that there still is.

    Stricter than pylance: a cast gives a column another id, so values written before it would be read as nulls, and
    the id of a column that was dropped may be given to another one.
    """
    known = {TOMBSTONE_FIELD, *(field.id for field in other.fields)}
    return all(known.issuperset(file.fields) for fragment in added for file in fragment.files)


def _judge_row_change(mine: RowChange, other: Operation) -> Compatibility:
    match other:
        case ops.Append():
            return COMPATIBLE
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Update() | ops.Delete():
            return _judge_two_row_changes(mine, other)
        case ops.Rewrite() | ops.DataReplacement():
            return RETRYABLE if touched_fragments(mine) & _fragments_of(other) else COMPATIBLE
        case ops.Merge():
            return RETRYABLE
        case ops.Project() if isinstance(mine, ops.Update):
            fits = other.preserves_nullability and _still_read(mine.new_fragments, other)
            return COMPATIBLE if fits else RETRYABLE
        case _:
            return COMPATIBLE


def _judge_two_row_changes(mine: RowChange, other: RowChange) -> Compatibility:
    if not touched_fragments(mine) & touched_fragments(other):
        return COMPATIBLE
    columns = any(isinstance(side, ops.Update) and side.writes_columns for side in (mine, other))
    return RETRYABLE if columns else REBASE


def _judge_overwrite(_: ops.Overwrite, other: Operation) -> Compatibility:
    return RETRYABLE if isinstance(other, ops.Overwrite) else COMPATIBLE


def _judge_restore(_: ops.Restore, other: Operation) -> Compatibility:
    own = isinstance(other, ops.UpdateConfig) and (other.schema_metadata is not None or other.field_metadata)
    return INCOMPATIBLE if own else COMPATIBLE


def _judge_create_index(mine: ops.CreateIndex, other: Operation) -> Compatibility:
    if isinstance(other, _REPLACES_TABLE):
        return INCOMPATIBLE
    fields = {number for index in mine.new_indices for number in (*index.fields, *index.covering_fields)}
    match other:
        case ops.CreateIndex():
            names = {index.name for index in (*mine.new_indices, *mine.removed_indices)}
            taken = names.intersection(index.name for index in (*other.new_indices, *other.removed_indices))
            return RETRYABLE if taken else COMPATIBLE
        case ops.Rewrite():
            return RETRYABLE if _speak_for(mine.new_indices, _fragments_of(other)) else COMPATIBLE
        case ops.DataReplacement():
            replaced = {number for _, file in other.replacements for number in file.fields}
            return RETRYABLE if fields & replaced else COMPATIBLE
        case ops.Update() if fields.intersection(other.fields_modified):
            # Stricter than pylance: the new index holds the old values and would claim to speak for the new ones.
            return RETRYABLE
        case ops.Merge() | ops.Project():
            gone = fields.difference(field.id for field in other.fields)
            return RETRYABLE if gone else COMPATIBLE
        case _:
            return COMPATIBLE


def _judge_rewrite(mine: ops.Rewrite, other: Operation) -> Compatibility:
    match other:
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Update() | ops.Delete():
            return RETRYABLE if touched_fragments(other) & _fragments_of(mine) else COMPATIBLE
        case ops.Rewrite() | ops.DataReplacement():
            return RETRYABLE if _fragments_of(other) & _fragments_of(mine) else COMPATIBLE
        case ops.Merge():
            return RETRYABLE
        case ops.CreateIndex():
            return RETRYABLE if _speak_for(other.new_indices, _fragments_of(mine)) else COMPATIBLE
        case _:
            return COMPATIBLE


def _judge_merge(_: ops.Merge, other: Operation) -> Compatibility:
    match other:
        case ops.Overwrite() | ops.Restore() | ops.Project():
            return INCOMPATIBLE
        case ops.CreateIndex():
            return COMPATIBLE
        case ops.UpdateConfig():
            own = other.schema_metadata is not None or other.field_metadata
            return RETRYABLE if own else COMPATIBLE
        case _:
            return RETRYABLE


def _judge_project(mine: ops.Project, other: Operation) -> Compatibility:
    match other:
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Merge() | ops.Project():
            return RETRYABLE
        case ops.UpdateConfig(field_metadata=changed) if changed:
            # Stricter than pylance, whose projection brings back the metadata it read.
            return RETRYABLE
        case ops.Append() | ops.Update() | ops.DataReplacement():
            # Somebody wrote values, and what this projection found out about nulls may be true no longer.
            return COMPATIBLE if mine.preserves_nullability else RETRYABLE
        case _:
            return COMPATIBLE


def _judge_config(mine: ops.UpdateConfig, other: Operation) -> Compatibility:
    about_schema = mine.schema_metadata is not None or mine.field_metadata
    match other:
        case ops.UpdateConfig():
            return INCOMPATIBLE if _same_keys(mine, other) else COMPATIBLE
        case ops.Overwrite() | ops.Restore() if about_schema:
            return INCOMPATIBLE
        case ops.Merge() if about_schema:
            return RETRYABLE
        case ops.Project() if mine.field_metadata:
            # Stricter than pylance: the field may be gone.
            known = {field.id for field in other.fields}
            return COMPATIBLE if known.issuperset(mine.field_metadata) else RETRYABLE
        case _:
            return COMPATIBLE


def _same_keys(mine: ops.UpdateConfig, other: ops.UpdateConfig) -> bool:
    pairs = [
        (mine.config, other.config),
        (mine.table_metadata, other.table_metadata),
        (mine.schema_metadata, other.schema_metadata),
        *((own, other.field_metadata.get(number)) for number, own in mine.field_metadata.items()),
    ]
    return any(one is not None and two is not None and _overlap(one, two) for one, two in pairs)


def _overlap(one: ops.MapUpdate, two: ops.MapUpdate) -> bool:
    if one.replace or two.replace:
        return True
    # A key that both delete is gone either way.
    return any(
        not (value is None and two.entries[key] is None) for key, value in one.entries.items() if key in two.entries
    )


def _judge_replacement(mine: ops.DataReplacement, other: Operation) -> Compatibility:
    own = _fragments_of(mine)
    fields = {number for _, file in mine.replacements for number in file.fields}
    match other:
        case ops.Overwrite() | ops.Restore():
            return INCOMPATIBLE
        case ops.Delete():
            return INCOMPATIBLE if own & removed_fragments(other) else COMPATIBLE
        case ops.Update() | ops.Rewrite() | ops.DataReplacement():
            return RETRYABLE if _rewrites(other, own, fields) else COMPATIBLE
        case ops.CreateIndex():
            indexed = {number for index in other.new_indices for number in (*index.fields, *index.covering_fields)}
            return RETRYABLE if fields & indexed else COMPATIBLE
        case ops.Merge():
            return RETRYABLE
        case ops.Project() if fields.difference(field.id for field in other.fields):
            return INCOMPATIBLE
        case ops.Project(preserves_nullability=False):
            return RETRYABLE
        case _:
            return COMPATIBLE


def _rewrites(
    other: ops.Update | ops.Rewrite | ops.DataReplacement, fragments: frozenset[int], fields: set[int]
) -> bool:
    """Tell whether a change moved the rows of some fragments, or wrote values of some fields there."""
    match other:
        case ops.Update(writes_columns=True):
            written, touched = set(other.fields_modified), touched_fragments(other)
        case ops.Update():
            written, touched = fields, touched_fragments(other)
        case ops.Rewrite():
            written, touched = fields, _fragments_of(other)
        case ops.DataReplacement():
            written, touched = {n for _, file in other.replacements for n in file.fields}, _fragments_of(other)
    return bool(fragments & touched and fields & written)


def _judge_bases(mine: ops.UpdateBases, other: Operation) -> Compatibility:
    if not isinstance(other, ops.UpdateBases):
        return COMPATIBLE
    theirs = [part for base in other.new_bases for part in _identity(base.id, base.name, base.path)]
    ours = [part for base in mine.new_bases for part in _identity(base.id, base.name, base.path)]
    return INCOMPATIBLE if set(theirs) & set(ours) else COMPATIBLE


def _identity(number: int, name: str | None, path: str) -> Collection[tuple[str, str]]:
    parts = [("path", path), *([("name", name)] if name else []), *([("id", str(number))] if number else [])]
    return frozenset(parts)


def _speak_for(indices: Iterable[IndexMetadata], fragments: frozenset[int]) -> bool:
    bitmaps = map(covered_fragments, indices)
    return any(bitmap is None or not fragments.isdisjoint(bitmap) for bitmap in bitmaps)


def _fragments_of(operation: ops.Rewrite | ops.DataReplacement) -> frozenset[int]:
    if isinstance(operation, ops.DataReplacement):
        return frozenset(number for number, _ in operation.replacements)
    return frozenset(fragment.id for group in operation.groups for fragment in group.old)


_RULES: Mapping[type[Operation], Callable[[Any, Operation], Compatibility]] = {
    ops.Append: _judge_append,
    ops.Delete: _judge_row_change,
    ops.Update: _judge_row_change,
    ops.Overwrite: _judge_overwrite,
    ops.Restore: _judge_restore,
    ops.CreateIndex: _judge_create_index,
    ops.Rewrite: _judge_rewrite,
    ops.Merge: _judge_merge,
    ops.Project: _judge_project,
    ops.UpdateConfig: _judge_config,
    ops.DataReplacement: _judge_replacement,
    ops.ReserveFragments: lambda *_: COMPATIBLE,
}
