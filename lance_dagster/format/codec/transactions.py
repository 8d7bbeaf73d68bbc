"""Transactions: bytes to values and back."""

from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.fields import unknown_fields
from lance_dagster.format.codec.operations import operation_from_wire, operation_to_wire
from lance_dagster.format.schema import check_tree
from lance_dagster.format.transaction import Merge, Overwrite, Project, Transaction


def decode_transaction(data: bytes, path: str) -> Transaction:
    """Read a transaction; `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a transaction.
        UnsupportedFeatureError: It holds an operation or a field that this package does not know.
    """
    message = wire.Transaction()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFileError(path, f"its transaction cannot be parsed: {error}") from error
    kind = message.WhichOneof("operation")
    unknown = unknown_fields(message)
    if kind is None or unknown:
        raise UnsupportedFeatureError(path, unknown or ["a transaction without operation"])
    try:
        operation = operation_from_wire(message, kind, path)
    except ValueError as error:
        raise CorruptFileError(path, f"its transaction makes no sense: {error}") from error
    if isinstance(operation, Overwrite | Merge | Project):
        check_tree(operation.fields, path)
    return Transaction(
        read_version=message.read_version,
        uuid=message.uuid,
        operation=operation,
        properties=dict(message.transaction_properties),
        tag=message.tag,
    )


def encode_transaction(transaction: Transaction) -> bytes:
    """Write a transaction."""
    message = wire.Transaction(
        read_version=transaction.read_version,
        uuid=transaction.uuid,
        tag=transaction.tag,
        transaction_properties=dict(transaction.properties),
    )
    operation_to_wire(transaction.operation, message)
    return message.SerializeToString(deterministic=True)
