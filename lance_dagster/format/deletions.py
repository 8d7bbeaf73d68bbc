"""Encode and decode deletion files: the offsets of the deleted rows of one fragment.

Table format specification, "Deletion Files". Few offsets are stored as an Arrow file with one `uint32 not null` column
`row_id`, many as a Roaring bitmap; the threshold is pylance's.

A compressed Arrow file of a few bytes can declare buffers of gigabytes. Decoding therefore adds up the declared
uncompressed sizes from the FlatBuffers metadata first, and refuses a file that would expand beyond what offsets need.
"""

import io
import struct
from array import array
from collections.abc import Iterable
from functools import lru_cache
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
_WIDTH = 4
"""Bytes of an offset."""
_AROUND = 458
"""Bytes of an Arrow file that `encode_offsets` writes, without its values and their padding. A file of another pyarrow
release may have another number; it is parsed then."""
_MOST_PACKED = 256
"""The largest accepted compression ratio, in uncompressed bytes per byte of the file."""
_MOST_UNKNOWN = 1 << 24
"""The rows that a fragment is taken to have at most where a very old manifest does not say it."""


def same_deletion_vector(first: DeletionFile | None, second: DeletionFile | None) -> bool:
    """Return whether two deletion files are known to hold the same offsets, without reading them.

    False means that they may differ. This package and pylance choose ids at random, so equal ids imply one file. Other
    writers may number deletion files, so the read version and the row count have to be equal too.
    """
    if first is None or second is None:
        return first is second
    return (first.id, first.read_version, first.deleted_rows) == (second.id, second.read_version, second.deleted_rows)


def encode_offsets(offsets: Iterable[int]) -> tuple[int, bytes]:
    """Encode row offsets; return the kind of file (0 Arrow, 1 bitmap) and its bytes."""
    bitmap = BitMap(offsets)
    if len(bitmap) >= _BITMAP_FROM:
        return BITMAP_FILE, bitmap.serialize()
    # The Arrow file is put together from cached bytes, which differ only in the values for files of equal length.
    head, tail = _arrow_frame(len(bitmap))
    return ARROW_FILE, b"".join((head, bitmap.to_array().tobytes(), tail))


@lru_cache(maxsize=_BITMAP_FROM)
def _arrow_frame(count: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the values in an Arrow file with a number of offsets.

    They are equal in all files with the same number of offsets. A merge may write a thousand files, and Arrow takes
    longer to assemble a file than the disk to write it.
    """
    # These values occur nowhere else in the file, so that they can be searched for in the finished bytes.
    values = [0xA5C3F107 - number for number in range(count)]
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch([pa.array(values, pa.uint32())], schema=_SCHEMA))
    head, body, tail = (
        sink.getvalue().partition(array("I", values).tobytes()) if values else (sink.getvalue(), b"", b"")
    )
    if values and not body:
        raise ValueError(f"the {count} offsets are not where they were put")
    return head, tail


def decode_offsets(kind: int, data: bytes, path: str, rows: int) -> BitMap:
    """Decode row offsets; `path` is used in messages, `rows` of the fragment (0: unknown) limit what is unpacked.

    Raises:
        CorruptFileError: The bytes are not a deletion file of that kind.
    """
    if kind not in (ARROW_FILE, BITMAP_FILE):
        raise CorruptFileError(path, f"it does not hold row offsets: there is no deletion file of kind {kind}")
    try:
        if kind == BITMAP_FILE:
            return BitMap.deserialize(data)
        values = _of_own(data)
        return _from_arrow(data, rows or _MOST_UNKNOWN) if values is None else BitMap(array("I", values))
    except (ValueError, LookupError, struct.error, OSError, pa.ArrowException) as error:
        raise CorruptFileError(path, f"it does not hold row offsets: {error}") from error


def _of_own(data: bytes) -> bytes | None:
    """Return the values of an Arrow file that `encode_offsets` wrote, or None when it is another.

    The bytes around the values contain their number. A file with equal bytes there is known completely, and is not
    parsed.
    """
    # Values are padded to eight bytes, so two numbers of offsets give files of one size.
    most = (len(data) - _AROUND) // _WIDTH
    for count in (most, most - 1):
        if not 0 < count < _BITMAP_FROM:
            continue
        head, tail = _arrow_frame(count)
        size = len(head) + _WIDTH * count
        if size + len(tail) == len(data) and data.startswith(head) and data.endswith(tail):
            return data[len(head) : size]
    return None


def _from_arrow(data: bytes, rows: int) -> BitMap:
    if not (data.startswith(_MAGIC) and data.endswith(_MAGIC)):
        raise ValueError("it is not an Arrow file")
    unpacked = _unpacked_size(data)
    # This is checked before the file is opened: pyarrow allocates whatever a compressed buffer claims to need.
    if unpacked > _MOST_PACKED * len(data):
        raise ValueError(f"{len(data)} bytes would unpack to {unpacked}")
    # The ratio alone lets a file of megabytes claim gigabytes. Twice the width of an offset leaves room for padding.
    if unpacked > len(data) + 2 * _WIDTH * rows:
        raise ValueError(f"{len(data)} bytes would unpack to {unpacked}, and offsets of {rows} rows need less")
    deleted = BitMap()
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        # pylance refuses any other name, type or nullability as corrupt, so a reader must not be more generous.
        if reader.schema != _SCHEMA:
            raise ValueError(f"its columns are {reader.schema}".replace("\n", ", "))
        for number in range(reader.num_record_batches):
            offsets = reader.get_batch(number).column(0)
            if offsets.null_count:
                raise ValueError("it holds nulls")
            # pyroaring reads an `array` as a buffer; a numpy array it would iterate element by element.
            deleted.update(array("I", offsets.to_numpy().tobytes()))
    return deleted


def _unpacked_size(file: bytes) -> int:
    """Return the sum of the declared uncompressed sizes of all buffers (Arrow columnar format, "Compression").

    The metadata is parsed by hand: pyarrow decompresses when it opens a batch, which is what must not happen yet.
    """
    data = memoryview(file)
    # The file ends with the footer, its length in 4 bytes, and the magic bytes.
    end = len(data) - len(_MAGIC) - 4
    footer = data[end - _unpacked("<i", data, end) : end]
    # `recordBatches` is the fourth field of the footer: a vector of 24-byte blocks (offset, metadata length, body).
    batches = _field(footer, _follow(footer, 0), 3)
    place = _follow(footer, batches) if batches else 0
    total = 0
    for number in range(_unpacked("<I", footer, place) if batches else 0):
        start, described = (
            _unpacked(form, footer, place + 4 + 24 * number + at) for form, at in (("<q", 0), ("<i", 8))
        )
        # Python reads negative indices from the end, so these would pass as other bytes of the file.
        if start < 0 or described < 0:
            raise ValueError("a batch in it is before its start")
        body = start + described
        # 8 bytes before the message: the continuation marker and the length of the metadata.
        total += _of_batch(data[start + 8 : body], data[body:])
    return total


def _of_batch(metadata: memoryview, body: memoryview) -> int:
    # The header is the third field of a Message; `buffers` and `compression` are the third and fourth of a RecordBatch.
    header = _follow(metadata, _field(metadata, _follow(metadata, 0), 2))
    buffers, compressed = _field(metadata, header, 2), _field(metadata, header, 3)
    if not buffers:
        return 0
    place = _follow(metadata, buffers)
    count = _unpacked("<I", metadata, place)
    if count > _BUFFERS:
        raise ValueError(f"a batch in it has {count} buffers, one column has {_BUFFERS}")
    total = 0
    for number in range(count):
        start, length = (_unpacked("<q", metadata, place + 4 + 16 * number + half) for half in (0, 8))
        # A compressed buffer starts with its uncompressed size in 8 bytes; -1 there means that it is not compressed.
        total += max(length, _unpacked("<q", body, start)) if compressed and length else length
    return total


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a FlatBuffers table, 0 when the field is absent."""
    # A table starts with the distance back to its vtable, which lists the offsets of the fields that are present.
    # Writers leave out fields at the end, so the vtable may be shorter than the number of the field.
    layout = table - _unpacked("<i", data, table)
    present = 4 + 2 * number < _unpacked("<H", data, layout)
    offset = _unpacked("<H", data, layout + 4 + 2 * number) if present else 0
    return table + offset if offset else 0


def _follow(data: memoryview, place: int) -> int:
    return place + _unpacked("<I", data, place)


def _unpacked(form: str, data: memoryview, place: int) -> int:
    if place < 0:
        raise ValueError("an offset in it points before its start")
    values: tuple[Any, ...] = struct.unpack_from(form, data, place)
    return int(values[0])
