"""Transactions: bytes to values and back."""

from collections.abc import Iterable
from typing import assert_never

from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.fragments import (
    base_from_wire,
    base_to_wire,
    field_from_wire,
    field_to_wire,
    fragment_from_wire,
    fragment_to_wire,
    unknown_fields,
)
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import (
    Append,
    Clone,
    Delete,
    Merge,
    Operation,
    OtherOperation,
    Overwrite,
    Project,
    Restore,
    Transaction,
    Update,
)

_T = wire.Transaction


def decode_transaction(data: bytes, path: str) -> Transaction:
    """Read a transaction; `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a transaction.
        UnsupportedFeatureError: Its operation is not one of the format's that this package knows.
    """
    message = _T()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFileError(path, f"its transaction cannot be parsed: {error}") from error
    kind = message.WhichOneof("operation")
    if kind is None:
        raise UnsupportedFeatureError(path, unknown_fields(message) or ["a transaction without operation"])
    return Transaction(
        read_version=message.read_version,
        uuid=message.uuid,
        operation=_operation_from_wire(message, kind),
        properties=dict(message.transaction_properties),
        tag=message.tag,
    )


def encode_transaction(transaction: Transaction) -> bytes:
    """Write a transaction."""
    message = _T(
        read_version=transaction.read_version,
        uuid=transaction.uuid,
        tag=transaction.tag,
        transaction_properties=dict(transaction.properties),
    )
    _operation_to_wire(transaction.operation, message)
    return message.SerializeToString(deterministic=True)


def _operation_from_wire(message: _T, kind: str) -> Operation:
    match kind:
        case "append":
            return Append(fragments=_fragments(message.append.fragments))
        case "delete":
            return Delete(
                updated_fragments=_fragments(message.delete.updated_fragments),
                deleted_fragment_ids=tuple(message.delete.deleted_fragment_ids),
                predicate=message.delete.predicate,
            )
        case "overwrite":
            return Overwrite(
                fragments=_fragments(message.overwrite.fragments),
                fields=tuple(field_from_wire(field) for field in message.overwrite.schema),
                schema_metadata=dict(message.overwrite.schema_metadata),
                config_upserts=dict(message.overwrite.config_upsert_values),
                initial_bases=tuple(base_from_wire(base) for base in message.overwrite.initial_bases),
            )
        case "update":
            return Update(
                removed_fragment_ids=tuple(message.update.removed_fragment_ids),
                updated_fragments=_fragments(message.update.updated_fragments),
                new_fragments=_fragments(message.update.new_fragments),
                fields_modified=tuple(message.update.fields_modified),
                mode=message.update.update_mode,
            )
        case _:
            return _schema_or_other_from_wire(message, kind)


def _schema_or_other_from_wire(message: _T, kind: str) -> Operation:
    match kind:
        case "merge":
            return Merge(
                fragments=_fragments(message.merge.fragments),
                fields=tuple(field_from_wire(field) for field in message.merge.schema),
                schema_metadata=dict(message.merge.schema_metadata),
                preserves_nullability=message.merge.preserves_nullability,
            )
        case "project":
            return Project(
                fields=tuple(field_from_wire(field) for field in message.project.schema),
                preserves_nullability=message.project.preserves_nullability,
            )
        case "restore":
            return Restore(version=message.restore.version)
        case "clone":
            clone = message.clone
            return Clone(
                is_shallow=clone.is_shallow,
                ref_version=clone.ref_version,
                ref_path=clone.ref_path,
                ref_name=clone.ref_name if clone.HasField("ref_name") else None,
                branch_name=clone.branch_name if clone.HasField("branch_name") else None,
            )
        case _:
            name = kind.title().replace("_", "")
            return OtherOperation(name=name, body=getattr(message, kind).SerializeToString())


def _operation_to_wire(operation: Operation, message: _T) -> None:
    match operation:
        case Append():
            message.append.SetInParent()
            message.append.fragments.extend(fragment_to_wire(fragment) for fragment in operation.fragments)
        case Delete():
            message.delete.SetInParent()
            message.delete.updated_fragments.extend(map(fragment_to_wire, operation.updated_fragments))
            message.delete.deleted_fragment_ids.extend(operation.deleted_fragment_ids)
            message.delete.predicate = operation.predicate
        case Overwrite():
            message.overwrite.CopyFrom(
                _T.Overwrite(
                    fragments=map(fragment_to_wire, operation.fragments),
                    schema=map(field_to_wire, operation.fields),
                    schema_metadata=dict(operation.schema_metadata),
                    config_upsert_values=dict(operation.config_upserts),
                    initial_bases=map(base_to_wire, operation.initial_bases),
                )
            )
        case Update():
            message.update.CopyFrom(
                _T.Update(
                    removed_fragment_ids=operation.removed_fragment_ids,
                    updated_fragments=map(fragment_to_wire, operation.updated_fragments),
                    new_fragments=map(fragment_to_wire, operation.new_fragments),
                    fields_modified=operation.fields_modified,
                    update_mode=_T.Update.Mode.Name(operation.mode),
                )
            )
        case Merge() | Project() | Restore() | Clone() | OtherOperation():
            _schema_or_other_to_wire(operation, message)
        case _ as unreachable:
            assert_never(unreachable)


def _schema_or_other_to_wire(operation: Merge | Project | Restore | Clone | OtherOperation, message: _T) -> None:
    match operation:
        case Merge():
            message.merge.CopyFrom(
                _T.Merge(
                    fragments=map(fragment_to_wire, operation.fragments),
                    schema=map(field_to_wire, operation.fields),
                    schema_metadata=dict(operation.schema_metadata),
                    preserves_nullability=operation.preserves_nullability,
                )
            )
        case Project():
            message.project.CopyFrom(
                _T.Project(
                    schema=map(field_to_wire, operation.fields),
                    preserves_nullability=operation.preserves_nullability,
                )
            )
        case Restore():
            message.restore.version = operation.version
            message.restore.SetInParent()
        case Clone():
            message.clone.CopyFrom(
                _T.Clone(
                    is_shallow=operation.is_shallow,
                    ref_name=operation.ref_name,
                    ref_version=operation.ref_version,
                    ref_path=operation.ref_path,
                    branch_name=operation.branch_name,
                )
            )
        case OtherOperation():
            field = "".join(f"_{c.lower()}" if c.isupper() else c for c in operation.name).lstrip("_")
            getattr(message, field).MergeFromString(operation.body)
            getattr(message, field).SetInParent()
        case _ as unreachable:
            assert_never(unreachable)


def _fragments(messages: Iterable[wire.DataFragment]) -> tuple[Fragment, ...]:
    return tuple(fragment_from_wire(message) for message in messages)
