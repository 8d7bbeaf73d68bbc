"""Deletion files: the offsets of the deleted rows of one fragment (table format specification, "Deletion Files").

Few offsets are stored as an Arrow file with one `uint32 not null` column `row_id`, many as a Roaring bitmap; the
threshold is pylance's. An Arrow file may be compressed, and then say in a few bytes that it holds gigabytes, so what
it would unpack to is added up first.
"""

import io
import struct
from array import array
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.model import DeletionFile

ARROW_FILE, BITMAP_FILE = 0, 1
_BITMAP_FROM = 5_000
_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_MAGIC = b"ARROW1"
_BUFFERS = 2
_MOST_PACKED = 256
"""Offsets that are packed closer than this, as bytes unpacked for each byte of the file, are no offsets."""


def same_deletion_vector(one: DeletionFile | None, other: DeletionFile | None) -> bool:
    """Tell without reading them whether two deletion files hold the same offsets; False means that they may not.

    The id is random where this package or pylance gave it. What else is in the name has to be the same too, since other
    programs may give ids in other ways.
    """
    if one is None or other is None:
        return one is other
    return (one.id, one.read_version, one.deleted_rows) == (other.id, other.read_version, other.deleted_rows)


def encode_offsets(offsets: Iterable[int]) -> tuple[int, bytes]:
    """Write row offsets; returns the kind of file (0 Arrow, 1 bitmap) and its bytes."""
    bitmap = BitMap(offsets)
    if len(bitmap) >= _BITMAP_FROM:
        return BITMAP_FILE, bitmap.serialize()
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch([pa.array(bitmap, pa.uint32())], schema=_SCHEMA))
    return ARROW_FILE, sink.getvalue()


def decode_offsets(kind: int, data: bytes, path: str) -> BitMap:
    """Read row offsets; `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a deletion file of that kind.
    """
    if kind not in (ARROW_FILE, BITMAP_FILE):
        raise CorruptFileError(path, f"it does not hold row offsets: there is no deletion file of kind {kind}")
    try:
        return BitMap.deserialize(data) if kind == BITMAP_FILE else _from_arrow(data)
    except (ValueError, LookupError, struct.error, OSError, pa.ArrowException) as error:
        raise CorruptFileError(path, f"it does not hold row offsets: {error}") from error


def _from_arrow(data: bytes) -> BitMap:
    if not (data.startswith(_MAGIC) and data.endswith(_MAGIC)):
        raise ValueError("it is no Arrow file")
    unpacked = _unpacked_size(data)
    if unpacked > _MOST_PACKED * len(data):
        raise ValueError(f"{len(data)} bytes would unpack to {unpacked}")
    found = BitMap()
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        if reader.schema != _SCHEMA:
            raise ValueError(f"its columns are {reader.schema}".replace("\n", ", "))
        for number in range(reader.num_record_batches):
            offsets = reader.get_batch(number).column(0)
            if offsets.null_count:
                raise ValueError("it holds nulls")
            found.update(array("I", offsets.to_numpy().tobytes()))
    return found


def _unpacked_size(file: bytes) -> int:
    """Add up what the buffers of all record batches say they unpack to (Arrow columnar format, "Compression")."""
    data = memoryview(file)
    end = len(data) - len(_MAGIC) - 4
    footer = data[end - _read("<i", data, end) : end]
    # The batches are the fourth field of the footer: for each where it is, and how much of that is its description.
    batches = _field(footer, _follow(footer, 0), 3)
    place = _follow(footer, batches) if batches else 0
    total = 0
    for number in range(_read("<I", footer, place) if batches else 0):
        start, described = (_read(form, footer, place + 4 + 24 * number + at) for form, at in (("<q", 0), ("<i", 8)))
        if start < 0 or described < 0:
            raise ValueError("a batch in it is before its start")
        body = start + described
        total += _of_batch(data[start + 8 : body], data[body:])
    return total


def _of_batch(metadata: memoryview, body: memoryview) -> int:
    # The header of a message is its third field; a batch has its buffers in the third, and how they are compressed
    # in the fourth.
    header = _follow(metadata, _field(metadata, _follow(metadata, 0), 2))
    buffers, compressed = _field(metadata, header, 2), _field(metadata, header, 3)
    if not buffers:
        return 0
    place = _follow(metadata, buffers)
    count = _read("<I", metadata, place)
    if count > _BUFFERS:
        raise ValueError(f"a batch in it has {count} buffers, one column has {_BUFFERS}")
    total = 0
    for number in range(count):
        start, length = (_read("<q", metadata, place + 4 + 16 * number + half) for half in (0, 8))
        total += max(length, _read("<q", body, start)) if compressed and length else length
    return total


def _field(data: memoryview, table: int, number: int) -> int:
    """Return where a field of a FlatBuffers table is, 0 when it is left out."""
    layout = table - _read("<i", data, table)
    known = 4 + 2 * number < _read("<H", data, layout)
    offset = _read("<H", data, layout + 4 + 2 * number) if known else 0
    return table + offset if offset else 0


def _follow(data: memoryview, place: int) -> int:
    return place + _read("<I", data, place)


def _read(form: str, data: memoryview, place: int) -> int:
    if place < 0:
        raise ValueError("an offset in it points before its start")
    found: tuple[Any, ...] = struct.unpack_from(form, data, place)
    return int(found[0])
