"""Versions with an unknown flag, field or operation: a program that used them anyway would have to guess."""

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from tests.faults.mutations import rewritten
from tests.properties.merging.rows_model import Node

_FLAG = 1 << 40
_FIELD = b"\x92\xf3\x03\x01x"
"""Field 7986 of a message, which holds one letter."""
OPERATION = "operation"


def _with_flag(name: str, message: wire.Manifest) -> None:
    setattr(message, name, getattr(message, name) | _FLAG)


def _with_field(message: wire.Manifest) -> None:
    message.MergeFromString(_FIELD)


MANIFESTS: Mapping[str, Callable[[wire.Manifest], object]] = {
    "reader flag": partial(_with_flag, "reader_feature_flags"),
    "writer flag": partial(_with_flag, "writer_feature_flags"),
    "field": _with_field,
}
"""The unknown things that a manifest may have."""


@contextmanager
def unknown(uri: str, node: Node, what: str) -> Iterator[None]:
    """Give a version an unknown flag, field or operation inside the block."""
    path = _manifest(uri, node)
    data, told = path.read_bytes(), path.stat()
    made = None
    if what == OPERATION:
        made = _operation(path, data)
        path.write_bytes(rewritten(data, partial(_elsewhere, made.name)))
    else:
        path.write_bytes(rewritten(data, MANIFESTS[what]))
    try:
        yield
    finally:
        path.write_bytes(data)
        os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
        if made is not None:
            made.unlink()


def _operation(manifest: Path, data: bytes) -> Path:
    """Write a copy of a version's transaction with an unknown operation."""
    (position,) = struct.unpack("<Q", data[-16:-8])
    (length,) = struct.unpack_from("<I", data, position)
    message = wire.Manifest.FromString(data[position + 4 : position + 4 + length])
    folder = manifest.parent.parent / "_transactions"
    if message.transaction_file:
        written = (folder / message.transaction_file).read_bytes()
    else:
        # The manifest file has it, after its length, and no file of its own exists.
        start = message.transaction_section + 4
        written = data[start : start + struct.unpack_from("<I", data, message.transaction_section)[0]]
    folder.mkdir(exist_ok=True)
    said = wire.Transaction.FromString(written)
    said.ClearField(said.WhichOneof("operation"))
    made = folder / f"{said.read_version}-{said.uuid}-unknown.txn"
    made.write_bytes(said.SerializeToString() + _FIELD)
    return made


def _elsewhere(file: str, message: wire.Manifest) -> None:
    message.ClearField("transaction_section")
    message.transaction_file = file


def _manifest(uri: str, node: Node) -> Path:
    branch, number = node
    line = Path(uri) if branch == "main" else Path(uri, "tree", branch)
    return line / "_versions" / f"{2**64 - 1 - number:020d}.manifest"
