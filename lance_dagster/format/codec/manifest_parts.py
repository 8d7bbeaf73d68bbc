"""Decode and encode the parts that manifests and transactions share: fields and base paths.

Fields of a message that this package does not know are found and reported by number: what is unknown is refused, never
dropped.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found, unused-ignore]  # no stub

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.model import (
    BasePath,
    Field,
)


def unknown_fields(message: Message) -> list[str]:
    """Return the names of all unknown fields of a message and of the messages nested in it."""
    known: Any = type(message)()
    known.CopyFrom(message)
    # A copy is changed here, not the message of the caller.
    known.DiscardUnknownFields()
    # Comparing sizes costs a fraction of walking every nested message, and unknown fields are rare.
    return (
        []
        if known.ByteSize() == message.ByteSize()
        else list(dict.fromkeys(_unknown_in(message))) or ["an unknown field"]
    )


def _unknown_in(message: Message) -> Iterator[str]:
    unknown: Any = UnknownFieldSet(message)
    yield from (f"{message.DESCRIPTOR.name} field {unknown[index].field_number}" for index in range(len(unknown)))
    for descriptor, value in message.ListFields():
        # Map entries are synthesized messages with two fields, which cannot have unknown ones.
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for nested in [value] if isinstance(value, Message) else value:
            yield from _unknown_in(nested)


def fields_from_wire(messages: Iterable[wire.Field]) -> tuple[Field, ...]:
    """Decode the fields of a schema."""
    return tuple(map(_field_from_wire, messages))


def fields_to_wire(fields: Iterable[Field]) -> list[wire.Field]:
    """Encode the fields of a schema."""
    return list(map(_field_to_wire, fields))


def _field_from_wire(message: wire.Field) -> Field:
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


def _field_to_wire(field: Field) -> wire.Field:
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


def base_paths_from_wire(messages: Iterable[wire.BasePath]) -> tuple[BasePath, ...]:
    """Decode base paths."""
    return tuple(map(_base_path_from_wire, messages))


def base_paths_to_wire(bases: Iterable[BasePath]) -> list[wire.BasePath]:
    """Encode base paths."""
    return [
        wire.BasePath(id=base.id, path=base.path, name=base.name, is_dataset_root=base.is_dataset_root)
        for base in bases
    ]


def _base_path_from_wire(message: wire.BasePath) -> BasePath:
    return BasePath(
        id=message.id,
        path=message.path,
        name=message.name if message.HasField("name") else None,
        is_dataset_root=message.is_dataset_root,
    )
