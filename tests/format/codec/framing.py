"""Parse a manifest file without the package, change its message, and write it again."""

import struct
from collections.abc import Callable

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire


def message_of(data: bytes) -> wire.Manifest:
    """The manifest message of a file, found through the footer."""
    (position,) = struct.unpack("<Q", data[-16:-8])
    (length,) = struct.unpack_from("<I", data, position)
    return wire.Manifest.FromString(data[position + 4 : position + 4 + length])


def bare_message_of(data: bytes) -> wire.Manifest:
    """The manifest message without the offsets, which depend on the length of the sections before it."""
    message = message_of(data)
    message.ClearField("transaction_section")
    message.ClearField("index_section")
    return message


def framed(body: bytes) -> bytes:
    """A manifest file without sections."""
    return struct.pack("<I", len(body)) + body + struct.pack("<QHH4s", 0, 0, 2, b"LANC")


def changed(data: bytes, change: Callable[[wire.Manifest], object]) -> bytes:
    """The file with its message changed and its sections left out."""
    message = bare_message_of(data)
    change(message)
    return framed(message.SerializeToString())
