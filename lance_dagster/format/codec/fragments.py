"""Fields, fragments, data files and deletion files: wire messages to values and back."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found, unused-ignore]  # no stub

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.model import BasePath, DataFile, DeletionFile, Field, Fragment


def unknown_fields(message: Message) -> list[str]:
    """Name every field of a message, and of the messages in it, that this package has no name for."""
    known: Any = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    # A manifest may hold thousands of messages, and hardly ever an unknown field: look closer only when one is there.
    return [] if known.ByteSize() == message.ByteSize() else list(dict.fromkeys(_unknown_in(message)))


def _unknown_in(message: Message) -> Iterator[str]:
    unknown: Any = UnknownFieldSet(message)
    yield from (f"{message.DESCRIPTOR.name} field {unknown[index].field_number}" for index in range(len(unknown)))
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for nested in [value] if isinstance(value, Message) else value:
            yield from _unknown_in(nested)


def field_from_wire(message: wire.Field) -> Field:
    """Read one schema field."""
    return Field(
        id=message.id,
        name=message.name,
        logical_type=message.logical_type,
        parent_id=message.parent_id,
        nullable=message.nullable,
        metadata=dict(message.metadata),
        extension_name=message.extension_name,
        encoding=message.encoding,
        kind=message.type,
        dictionary=(message.dictionary.offset, message.dictionary.length) if message.HasField("dictionary") else None,
        primary_key=message.unenforced_primary_key,
        primary_key_position=message.unenforced_primary_key_position,
        clustering_key=message.unenforced_clustering_key,
        clustering_key_position=message.unenforced_clustering_key_position,
    )


def field_to_wire(field: Field) -> wire.Field:
    """Write one schema field."""
    message = wire.Field(
        id=field.id,
        name=field.name,
        logical_type=field.logical_type,
        parent_id=field.parent_id,
        nullable=field.nullable,
        metadata=dict(field.metadata),
        extension_name=field.extension_name,
        encoding=field.encoding,
        type=field.kind,
        unenforced_primary_key=field.primary_key,
        unenforced_primary_key_position=field.primary_key_position,
        unenforced_clustering_key=field.clustering_key,
        unenforced_clustering_key_position=field.clustering_key_position,
    )
    if field.dictionary is not None:
        message.dictionary.offset, message.dictionary.length = field.dictionary
    return message


def base_from_wire(message: wire.BasePath) -> BasePath:
    """Read one base path."""
    return BasePath(
        id=message.id,
        path=message.path,
        name=message.name if message.HasField("name") else None,
        is_dataset_root=message.is_dataset_root,
    )


def base_to_wire(base: BasePath) -> wire.BasePath:
    """Write one base path."""
    return wire.BasePath(id=base.id, path=base.path, name=base.name, is_dataset_root=base.is_dataset_root)


def file_from_wire(message: wire.DataFile) -> DataFile:
    """Read one data file entry."""
    return DataFile(
        path=message.path,
        fields=tuple(message.fields),
        column_indices=tuple(message.column_indices),
        major=message.file_major_version,
        minor=message.file_minor_version,
        size=message.file_size_bytes,
        base_id=message.base_id if message.HasField("base_id") else None,
    )


def file_to_wire(file: DataFile) -> wire.DataFile:
    """Write one data file entry."""
    return wire.DataFile(
        path=file.path,
        fields=file.fields,
        column_indices=file.column_indices,
        file_major_version=file.major,
        file_minor_version=file.minor,
        file_size_bytes=file.size,
        base_id=file.base_id,
    )


def fragment_from_wire(message: wire.DataFragment) -> Fragment:
    """Read one fragment. Call `fragment_problems` first: what it names would be lost here."""
    deletion = message.deletion_file if message.HasField("deletion_file") else None
    return Fragment(
        id=message.id,
        files=tuple(file_from_wire(file) for file in message.files),
        physical_rows=message.physical_rows,
        deletion=DeletionFile(
            kind=deletion.file_type,
            read_version=deletion.read_version,
            id=deletion.id,
            deleted_rows=deletion.num_deleted_rows,
            base_id=deletion.base_id if deletion.HasField("base_id") else None,
        )
        if deletion is not None
        else None,
        row_ids=_inline(message, "inline_row_ids"),
        created_at=_inline(message, "inline_created_at_versions"),
        updated_at=_inline(message, "inline_last_updated_at_versions"),
    )


def _inline(message: wire.DataFragment, name: Any) -> bytes | None:  # noqa: ANN401  # a literal in the stubs
    found: bytes | None = getattr(message, name) if message.HasField(name) else None
    return found


def fragment_to_wire(fragment: Fragment) -> wire.DataFragment:
    """Write one fragment."""
    message = wire.DataFragment(
        id=fragment.id,
        files=[file_to_wire(file) for file in fragment.files],
        physical_rows=fragment.physical_rows,
    )
    if fragment.deletion is not None:
        message.deletion_file.CopyFrom(
            wire.DeletionFile(
                file_type=wire.DeletionFile.FileType.Name(fragment.deletion.kind),
                read_version=fragment.deletion.read_version,
                id=fragment.deletion.id,
                num_deleted_rows=fragment.deletion.deleted_rows,
                base_id=fragment.deletion.base_id,
            )
        )
    if fragment.row_ids is not None:
        message.inline_row_ids = fragment.row_ids
    if fragment.created_at is not None:
        message.inline_created_at_versions = fragment.created_at
    if fragment.updated_at is not None:
        message.inline_last_updated_at_versions = fragment.updated_at
    return message


def fragment_problems(message: wire.DataFragment) -> list[str]:
    """Name what a fragment uses that this package does not understand."""
    found = []
    if message.overlays:
        found.append("data overlay files")
    spilled = ("spilled_row_ids", "spilled_last_updated_at_versions", "spilled_created_at_versions")
    if any(message.HasField(name) for name in spilled):
        found.append("spilled row lineage")
    if message.clustering_id or message.metadata:
        found.append("fragment clustering or metadata")
    return found
