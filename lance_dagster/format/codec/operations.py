"""Decode and encode transactions, with one reader and one writer per operation.

A transaction with an unknown operation or an unknown field is refused: a conflict check or a rebase that ignores part
of a change could lose it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format import transaction as ops
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.index_parts import (
    files_from_wire,
    files_to_wire,
    index_from_wire,
    index_to_wire,
    uuid_from_wire,
    uuid_to_wire,
)
from lance_dagster.format.codec.manifest_parts import (
    ProtobufFragmentDecoder,
    base_paths_from_wire,
    base_paths_to_wire,
    encode_fragments,
    fields_from_wire,
    fields_to_wire,
    file_from_wire,
    file_to_wire,
    unknown_fields,
)
from lance_dagster.format.layout import is_file_name, is_path_inside
from lance_dagster.format.model import Fragments
from lance_dagster.format.schema import check_field_tree
from lance_dagster.format.transaction import Merge, Overwrite, Project, Transaction

# Message types of operations are nested in the transaction message.
_T = wire.Transaction


def operation_from_wire(message: _T, kind: str, path: str) -> ops.Operation:
    """Decode the operation in the oneof field `kind`; `path` is used in messages.

    Raises:
        ValueError: A uuid is not 16 bytes long, or a file or branch name leaves its folder.
    """
    return _READERS[kind](getattr(message, kind), ProtobufFragmentDecoder(path))


def operation_to_wire(operation: ops.Operation, message: _T) -> None:
    """Encode an operation into a transaction."""
    kind, write = _WRITERS[type(operation)]
    target: Message = getattr(message, kind)
    target.CopyFrom(write(operation))
    # An operation whose fields all have default values serializes to nothing; only its presence tells its kind.
    target.SetInParent()


# Every reader leaves fragments encoded (`Fragments`): most operations are read for their kind and properties only.
def _append_from(message: _T.Append, decoder: ProtobufFragmentDecoder) -> ops.Append:
    return ops.Append(fragments=Fragments(message.fragments, decoder))


def _append_to(operation: ops.Append) -> _T.Append:
    return _T.Append(fragments=encode_fragments(operation.fragments))


def _delete_from(message: _T.Delete, decoder: ProtobufFragmentDecoder) -> ops.Delete:
    return ops.Delete(
        updated_fragments=Fragments(message.updated_fragments, decoder),
        deleted_fragment_ids=tuple(message.deleted_fragment_ids),
        predicate=message.predicate,
    )


def _delete_to(operation: ops.Delete) -> _T.Delete:
    return _T.Delete(
        updated_fragments=encode_fragments(operation.updated_fragments),
        deleted_fragment_ids=operation.deleted_fragment_ids,
        predicate=operation.predicate,
    )


def _overwrite_from(message: _T.Overwrite, decoder: ProtobufFragmentDecoder) -> ops.Overwrite:
    return ops.Overwrite(
        fragments=Fragments(message.fragments, decoder),
        fields=fields_from_wire(message.schema),
        schema_metadata=dict(message.schema_metadata),
        config_upserts=dict(message.config_upsert_values),
        initial_bases=base_paths_from_wire(message.initial_bases),
    )


def _overwrite_to(operation: ops.Overwrite) -> _T.Overwrite:
    return _T.Overwrite(
        fragments=encode_fragments(operation.fragments),
        schema=fields_to_wire(operation.fields),
        schema_metadata=dict(operation.schema_metadata),
        config_upsert_values=dict(operation.config_upserts),
        initial_bases=base_paths_to_wire(operation.initial_bases),
    )


def _create_index_from(message: _T.CreateIndex, _: ProtobufFragmentDecoder) -> ops.CreateIndex:
    return ops.CreateIndex(
        new_indices=tuple(map(index_from_wire, message.new_indices)),
        removed_indices=tuple(map(index_from_wire, message.removed_indices)),
    )


def _create_index_to(operation: ops.CreateIndex) -> _T.CreateIndex:
    return _T.CreateIndex(
        new_indices=map(index_to_wire, operation.new_indices),
        removed_indices=map(index_to_wire, operation.removed_indices),
    )


def _rewrite_from(message: _T.Rewrite, decoder: ProtobufFragmentDecoder) -> ops.Rewrite:
    # The deprecated form has one group, with its fragments directly in the operation.
    ungrouped = [message] if message.old_fragments or message.new_fragments else []
    groups: Iterable[Any] = [*ungrouped, *message.groups]
    return ops.Rewrite(
        groups=tuple(
            ops.RewriteGroup(
                old=Fragments(group.old_fragments, decoder),
                new=Fragments(group.new_fragments, decoder),
            )
            for group in groups
        ),
        rewritten_indices=tuple(
            ops.RewrittenIndex(
                old=uuid_from_wire(index.old_id),
                new=uuid_from_wire(index.new_id),
                details=(index.new_index_details.type_url, index.new_index_details.value)
                if index.HasField("new_index_details")
                else None,
                index_version=index.new_index_version,
                files=files_from_wire(index.new_index_files),
            )
            for index in message.rewritten_indices
        ),
    )


def _rewrite_to(operation: ops.Rewrite) -> _T.Rewrite:
    groups = [
        _T.Rewrite.Group(old_fragments=encode_fragments(group.old), new_fragments=encode_fragments(group.new))
        for group in operation.groups
    ]
    message = _T.Rewrite(groups=groups)
    for index in operation.rewritten_indices:
        entry = message.rewritten_indices.add(
            old_id=uuid_to_wire(index.old),
            new_id=uuid_to_wire(index.new),
            new_index_version=index.index_version,
            new_index_files=files_to_wire(index.files),
        )
        if index.details is not None:
            entry.new_index_details.type_url, entry.new_index_details.value = index.details
            # Details with default values serialize to nothing, and their presence has to survive a round trip.
            entry.new_index_details.SetInParent()
    return message


def _merge_from(message: _T.Merge, decoder: ProtobufFragmentDecoder) -> ops.Merge:
    return ops.Merge(
        fragments=Fragments(message.fragments, decoder),
        fields=fields_from_wire(message.schema),
        schema_metadata=dict(message.schema_metadata),
        preserves_nullability=message.preserves_nullability,
    )


def _merge_to(operation: ops.Merge) -> _T.Merge:
    return _T.Merge(
        fragments=encode_fragments(operation.fragments),
        schema=fields_to_wire(operation.fields),
        schema_metadata=dict(operation.schema_metadata),
        preserves_nullability=operation.preserves_nullability,
    )


def _update_from(message: _T.Update, decoder: ProtobufFragmentDecoder) -> ops.Update:
    return ops.Update(
        removed_fragment_ids=tuple(message.removed_fragment_ids),
        updated_fragments=Fragments(message.updated_fragments, decoder),
        new_fragments=Fragments(message.new_fragments, decoder),
        fields_modified=tuple(message.fields_modified),
        # pylance's `update_columns` leaves the mode at its default, so `Update` itself says which kind of update it is.
        mode=message.update_mode,
        updated_fields=tuple(message.fields_for_preserving_frag_bitmap),
        inserted_rows=_filter_from(message.inserted_rows) if message.HasField("inserted_rows") else None,
        updated_offsets={number: tuple(rows.values) for number, rows in message.updated_fragment_offsets.items()},
        updated_offset_bitmaps=dict(message.updated_fragment_offset_bitmaps),
        compacted_sstables=_sstables_from(message.compacted_sstables),
    )


def _update_to(operation: ops.Update) -> _T.Update:
    message = _T.Update(
        removed_fragment_ids=operation.removed_fragment_ids,
        updated_fragments=encode_fragments(operation.updated_fragments),
        new_fragments=encode_fragments(operation.new_fragments),
        fields_modified=operation.fields_modified,
        update_mode=_T.Update.Mode.Name(operation.mode),
        fields_for_preserving_frag_bitmap=operation.updated_fields,
        compacted_sstables=_sstables_to(operation.compacted_sstables),
        updated_fragment_offset_bitmaps=dict(operation.updated_offset_bitmaps),
    )
    for number, rows in operation.updated_offsets.items():
        message.updated_fragment_offsets[number].values.extend(rows)
    if operation.inserted_rows is not None:
        message.inserted_rows.CopyFrom(_filter_to(operation.inserted_rows))
    return message


def _filter_from(message: _T.KeyExistenceFilter) -> ops.KeyFilter:
    bloom = message.bloom
    return ops.KeyFilter(
        fields=tuple(message.field_ids),
        # An exact filter without hashes means that no row was inserted; with an absent one, the keys are unknown.
        hashes=tuple(message.exact.key_hashes) if message.HasField("exact") else None,
        bloom=(bloom.bitmap, bloom.num_bits, bloom.number_of_items, bloom.probability)
        if message.HasField("bloom")
        else None,
    )


def _filter_to(keys: ops.KeyFilter) -> _T.KeyExistenceFilter:
    message = _T.KeyExistenceFilter(field_ids=keys.fields)
    if keys.hashes is not None:
        message.exact.key_hashes.extend(keys.hashes)
        message.exact.SetInParent()
    if keys.bloom is not None:
        bitmap, bits, items, probability = keys.bloom
        bloom = _T.KeyExistenceFilter.Bloom(
            bitmap=bitmap, num_bits=bits, number_of_items=items, probability=probability
        )
        message.bloom.CopyFrom(bloom)
    return message


def _sstables_from(messages: Iterable[_T.CompactedSstable]) -> tuple[ops.CompactedSstable, ...]:
    return tuple(ops.CompactedSstable(uuid_from_wire(entry.shard_id), entry.generation) for entry in messages)


def _sstables_to(entries: Iterable[ops.CompactedSstable]) -> list[_T.CompactedSstable]:
    return [_T.CompactedSstable(shard_id=uuid_to_wire(entry.shard), generation=entry.generation) for entry in entries]


def _project_from(message: _T.Project, _: ProtobufFragmentDecoder) -> ops.Project:
    return ops.Project(fields=fields_from_wire(message.schema), preserves_nullability=message.preserves_nullability)


def _project_to(operation: ops.Project) -> _T.Project:
    return _T.Project(schema=fields_to_wire(operation.fields), preserves_nullability=operation.preserves_nullability)


def _config_from(message: _T.UpdateConfig, _: ProtobufFragmentDecoder) -> ops.UpdateConfig:
    # Presence counts: an update that replaces a map by nothing has no entry either, and clears the map.
    config = _map_from(message.config_updates) if message.HasField("config_updates") else None
    schema = _map_from(message.schema_metadata_updates) if message.HasField("schema_metadata_updates") else None
    fields = {number: _map_from(entries) for number, entries in message.field_metadata_updates.items()}
    # The deprecated form has a field per kind of metadata, and always replaced schema and field metadata whole.
    if message.upsert_values or message.delete_keys:
        removed = dict.fromkeys(message.delete_keys)
        config = ops.MapUpdate(entries={**removed, **message.upsert_values})
    if message.schema_metadata:
        schema = ops.MapUpdate(entries=dict(message.schema_metadata), replace=True)
    for number, own in message.field_metadata.items():
        fields[number] = ops.MapUpdate(entries=dict(own.metadata), replace=True)
    return ops.UpdateConfig(
        config=config,
        table_metadata=_map_from(message.table_metadata_updates)
        if message.HasField("table_metadata_updates")
        else None,
        schema_metadata=schema,
        field_metadata=fields,
    )


def _config_to(operation: ops.UpdateConfig) -> _T.UpdateConfig:
    message = _T.UpdateConfig(
        config_updates=_map_to(operation.config),
        table_metadata_updates=_map_to(operation.table_metadata),
        schema_metadata_updates=_map_to(operation.schema_metadata),
    )
    for number, entries in operation.field_metadata.items():
        message.field_metadata_updates[number].CopyFrom(_map_to(entries) or _T.UpdateMap())
    return message


def _map_from(message: _T.UpdateMap) -> ops.MapUpdate:
    # An entry without a value removes its key; an empty value is a value.
    entries = {entry.key: entry.value if entry.HasField("value") else None for entry in message.update_entries}
    return ops.MapUpdate(entries=entries, replace=message.replace)


def _map_to(update: ops.MapUpdate | None) -> _T.UpdateMap | None:
    if update is None:
        return None
    entries = [_T.UpdateMap.Entry(key=key, value=value) for key, value in update.entries.items()]
    return _T.UpdateMap(update_entries=entries, replace=update.replace)


def _replacement_from(message: _T.DataReplacement, _: ProtobufFragmentDecoder) -> ops.DataReplacement:
    pairs = tuple((entry.fragment_id, file_from_wire(entry.new_file)) for entry in message.replacements)
    outside = next((file.path for _, file in pairs if not is_file_name(file.path)), None)
    # The path is untrusted: it would be joined to the data folder.
    if outside is not None:
        raise ValueError(f"{outside[:100]!r} is not the name of a data file")
    return ops.DataReplacement(replacements=pairs)


def _replacement_to(operation: ops.DataReplacement) -> _T.DataReplacement:
    pairs = operation.replacements
    kind = _T.DataReplacement.Replacement
    return _T.DataReplacement(
        replacements=[kind(fragment_id=number, new_file=file_to_wire(file)) for number, file in pairs]
    )


def _clone_from(message: _T.Clone, _: ProtobufFragmentDecoder) -> ops.Clone:
    # The name is untrusted: it becomes a folder below `tree/`, and the path of a branch file.
    if message.ref_name and not is_path_inside(message.ref_name):
        raise ValueError(f"{message.ref_name[:100]!r} is not the name of a branch")
    return ops.Clone(
        is_shallow=message.is_shallow,
        ref_version=message.ref_version,
        ref_path=message.ref_path,
        ref_name=message.ref_name if message.HasField("ref_name") else None,
        branch_name=message.branch_name if message.HasField("branch_name") else None,
    )


def _clone_to(operation: ops.Clone) -> _T.Clone:
    return _T.Clone(
        is_shallow=operation.is_shallow,
        ref_name=operation.ref_name,
        ref_version=operation.ref_version,
        ref_path=operation.ref_path,
        branch_name=operation.branch_name,
    )


def _overlay_from(message: _T.DataOverlay, _: ProtobufFragmentDecoder) -> ops.DataOverlay:
    def overlay_from(entry: wire.DataOverlayFile) -> ops.Overlay:
        return ops.Overlay(
            file=file_from_wire(entry.data_file),
            committed_version=entry.committed_version,
            # Either one bitmap of rows for all fields of the file, or one for each field; never both.
            shared_bitmap=entry.shared_offset_bitmap if entry.HasField("shared_offset_bitmap") else None,
            field_bitmaps=tuple(entry.field_coverage.offset_bitmaps) if entry.HasField("field_coverage") else None,
        )

    return ops.DataOverlay(
        groups=tuple((group.fragment_id, tuple(map(overlay_from, group.overlays))) for group in message.groups)
    )


def _overlay_to(operation: ops.DataOverlay) -> _T.DataOverlay:
    def overlay_to(overlay: ops.Overlay) -> wire.DataOverlayFile:
        entry = wire.DataOverlayFile(
            data_file=file_to_wire(overlay.file),
            committed_version=overlay.committed_version,
            shared_offset_bitmap=overlay.shared_bitmap,
        )
        if overlay.field_bitmaps is not None:
            entry.field_coverage.offset_bitmaps.extend(overlay.field_bitmaps)
            entry.field_coverage.SetInParent()
        return entry

    groups: Sequence[tuple[int, Sequence[ops.Overlay]]] = operation.groups
    kind = _T.DataOverlay.Group
    return _T.DataOverlay(
        groups=[kind(fragment_id=number, overlays=map(overlay_to, files)) for number, files in groups]
    )


_READERS: Mapping[str, Callable[[Any, ProtobufFragmentDecoder], ops.Operation]] = {
    "append": _append_from,
    "delete": _delete_from,
    "overwrite": _overwrite_from,
    "create_index": _create_index_from,
    "rewrite": _rewrite_from,
    "merge": _merge_from,
    "restore": lambda message, _: ops.Restore(version=message.version),
    "reserve_fragments": lambda message, _: ops.ReserveFragments(count=message.num_fragments),
    "update": _update_from,
    "project": _project_from,
    "update_config": _config_from,
    "data_replacement": _replacement_from,
    "update_mem_wal_state": lambda message, _: ops.UpdateMemWalState(
        compacted_sstables=_sstables_from(message.compacted_sstables)
    ),
    "clone": _clone_from,
    "update_bases": lambda message, _: ops.UpdateBases(new_bases=base_paths_from_wire(message.new_bases)),
    "data_overlay": _overlay_from,
}
_WRITERS: Mapping[type[ops.Operation], tuple[str, Callable[[Any], Any]]] = {
    ops.Append: ("append", _append_to),
    ops.Delete: ("delete", _delete_to),
    ops.Overwrite: ("overwrite", _overwrite_to),
    ops.CreateIndex: ("create_index", _create_index_to),
    ops.Rewrite: ("rewrite", _rewrite_to),
    ops.Merge: ("merge", _merge_to),
    ops.Restore: ("restore", lambda operation: _T.Restore(version=operation.version)),
    ops.ReserveFragments: ("reserve_fragments", lambda operation: _T.ReserveFragments(num_fragments=operation.count)),
    ops.Update: ("update", _update_to),
    ops.Project: ("project", _project_to),
    ops.UpdateConfig: ("update_config", _config_to),
    ops.DataReplacement: ("data_replacement", _replacement_to),
    ops.UpdateMemWalState: (
        "update_mem_wal_state",
        lambda operation: _T.UpdateMemWalState(compacted_sstables=_sstables_to(operation.compacted_sstables)),
    ),
    ops.Clone: ("clone", _clone_to),
    ops.UpdateBases: (
        "update_bases",
        lambda operation: _T.UpdateBases(new_bases=base_paths_to_wire(operation.new_bases)),
    ),
    ops.DataOverlay: ("data_overlay", _overlay_to),
}


def decode_transaction(data: bytes, path: str) -> Transaction:
    """Decode a transaction; `path` is used in messages.

    Raises:
        CorruptFileError: The bytes are not a transaction.
        UnsupportedFeatureError: The operation, or a field of it, is unknown.
    """
    message = wire.Transaction()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFileError(path, f"its transaction cannot be parsed: {error}") from error
    kind = message.WhichOneof("operation")
    # An operation of a later release is an unknown field of the message, so it ends up in the same refusal.
    unknown = unknown_fields(message)
    if kind is None or unknown:
        raise UnsupportedFeatureError(path, unknown or ["a transaction without operation"])
    try:
        operation = operation_from_wire(message, kind, path)
    except ValueError as error:
        raise CorruptFileError(path, f"its transaction is invalid: {error}") from error
    # These carry a schema, which a rebase or a merge takes over without reading the manifest it came with.
    if isinstance(operation, Overwrite | Merge | Project):
        check_field_tree(operation.fields, path)
    return Transaction(
        read_version=message.read_version,
        uuid=message.uuid,
        operation=operation,
        properties=dict(message.transaction_properties),
        tag=message.tag,
    )


def encode_transaction(transaction: Transaction) -> bytes:
    """Encode a transaction, deterministically: a retry writes the same bytes."""
    message = wire.Transaction(
        read_version=transaction.read_version,
        uuid=transaction.uuid,
        tag=transaction.tag,
        transaction_properties=dict(transaction.properties),
    )
    operation_to_wire(transaction.operation, message)
    return message.SerializeToString(deterministic=True)
