"""What a list of versions says about each, read without making values of everything a manifest holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.fields import unknown_fields
from lance_dagster.format.codec.fragments import FragmentCoding
from lance_dagster.format.codec.manifests import inline_transaction, manifest_message, unknown_flags
from lance_dagster.format.model import Fragments

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A version in short.

    `timestamp` is in nanoseconds since 1970 UTC, `transaction` a uuid, `read_version` the version it was made from
    knowing of, `forked_from` a branch (None for main) and a number. The last five are empty when the transaction is
    not known.
    """

    number: int
    timestamp: int
    rows: int
    writer: tuple[str, str] | None
    transaction: str = ""
    read_version: int = 0
    operation: str = ""
    properties: Mapping[str, str]
    forked_from: tuple[str | None, int] | None = None


def summarize(data: bytes, path: str) -> Summary | None:
    """Read a manifest file in short; None when it carries no transaction. `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a manifest file.
        UnsupportedFeatureError: The table uses something this package does not know.
    """
    message = manifest_message(data, path)
    flags = unknown_flags(message)
    if flags:
        raise UnsupportedFeatureError(path, flags)
    body = inline_transaction(data, message, path)
    if body is None:
        return None
    try:
        transaction = wire.Transaction.FromString(body)
    except DecodeError as error:
        raise CorruptFileError(path, f"its transaction cannot be parsed: {error}") from error
    kind = transaction.WhichOneof("operation")
    if kind is None:
        raise UnsupportedFeatureError(path, unknown_fields(transaction) or ["a transaction without operation"])
    writer = message.writer_version
    clone = transaction.clone
    return Summary(
        number=message.version,
        timestamp=message.timestamp.seconds * _SECOND + message.timestamp.nanos,
        rows=Fragments(message.fragments, FragmentCoding(path)).rows,
        writer=(writer.library, writer.version) if message.HasField("writer_version") else None,
        transaction=transaction.uuid,
        read_version=transaction.read_version,
        operation=kind.title().replace("_", ""),
        properties=dict(transaction.transaction_properties),
        forked_from=(clone.ref_name or None, clone.ref_version) if kind == "clone" else None,
    )
