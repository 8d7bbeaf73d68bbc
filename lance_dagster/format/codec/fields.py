"""Schema fields and base paths: wire messages to values and back; and what a message holds that has no name here."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found, unused-ignore]  # no stub

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.model import BasePath, Field


def unknown_fields(message: Message) -> list[str]:
    """Name every field of a message, and of the messages in it, that this package has no name for."""
    known: Any = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    # There is hardly ever an unknown field: look closer only when one is there.
    return (
        []
        if known.ByteSize() == message.ByteSize()
        else list(dict.fromkeys(_unknown_in(message))) or ["an unknown field"]
    )


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
