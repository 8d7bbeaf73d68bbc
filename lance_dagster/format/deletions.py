"""Deletion files: the offsets of the deleted rows of one fragment (table format specification, "Deletion Files").

Few offsets are stored as an Arrow file with one `uint32 not null` column `row_id`, many as a Roaring bitmap; the
threshold is pylance's.
"""

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError

ARROW, BITMAP = 0, 1
_BITMAP_FROM = 5_000
_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])


def encode_offsets(offsets: Iterable[int]) -> tuple[int, bytes]:
    """Write row offsets; returns the kind of file (0 Arrow, 1 bitmap) and its bytes."""
    bitmap = BitMap(offsets)
    if len(bitmap) >= _BITMAP_FROM:
        return BITMAP, bitmap.serialize()
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch([pa.array(bitmap, pa.uint32())], schema=_SCHEMA))
    return ARROW, sink.getvalue()


def decode_offsets(kind: int, data: bytes, path: str) -> BitMap:
    """Read row offsets; `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a deletion file of that kind.
    """
    if kind not in (ARROW, BITMAP):
        raise CorruptFileError(path, f"it does not hold row offsets: there is no deletion file of kind {kind}")
    try:
        if kind == BITMAP:
            return BitMap.deserialize(data)
        with pa.ipc.open_file(io.BytesIO(data)) as reader:
            offsets: list[Any] = reader.read_all().column("row_id").to_pylist()
            return BitMap(offsets)
    except (ValueError, LookupError, pa.ArrowException) as error:
        raise CorruptFileError(path, f"it does not hold row offsets: {error}") from error
