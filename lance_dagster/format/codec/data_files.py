"""The shape of a data file of format 2.0 or newer: its footer, and where its parts lie. Pure.

    pages of values | global buffers | metadata of each column | two tables of (position, size) | footer of 40 bytes

The first global buffer records the number of rows. Values are not decoded here, so a file of the right shape may still
hold damaged pages. A file of a wrong shape is refused before pylance opens it: pylance takes positions and sizes from
the file and allocates what they claim.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.protobuf.any_pb2 import Any
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found, unused-ignore]  # no stub

from lance_dagster.errors import CorruptFileError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire

ReadRange = Callable[[int, int], bytes]
"""Returns the bytes of the file from one position up to another."""
_Part = tuple[int, int]
_FOOTER = struct.Struct("<QQQIIHH4s")
_ENTRY = struct.Struct("<QQ")
_MAGIC = b"LANC"
# Early files of format 2.0 say 0.3; a footer before that has another layout.
_FIRST, _NEXT_MAJOR = (0, 3), 3
_ROWS_OF_LEAVES = (2, 1)
"""The first version whose columns are all leaves of the schema, with pages that count rows."""
_LAST_KNOWN = (2, 2)
_ENCODINGS = "/lance.encodings"
_COLUMN_ENCODINGS = frozenset({"/lance.encodings.ColumnEncoding"})
# "/lance.encodings.PageLayout" is in files that were written before version 2.1 was final; pylance says that it cannot
# read them.
_PAGE_ENCODINGS = frozenset(
    {"/lance.encodings.ArrayEncoding", "/lance.encodings.PageLayout", "/lance.encodings21.PageLayout"}
)
_DIRECT, _LENGTH_DELIMITED = 2, 2
"""The field of an encoding that is stored in place, and the wire type of a field that is a message."""
_MOST_METADATA = 64 << 20
"""The largest accepted descriptor, and the largest accepted metadata of all columns together, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFileShape:
    """The facts that a data file records about itself: its rows, its columns and its format version.

    `ranges` has the ranges of its values (`format/value_ranges`) where every value was read.
    """

    rows: int
    columns: int
    major: int
    minor: int
    ranges: str | None = field(default=None, compare=False)


def decode_shape(read_range: ReadRange, size: int, path: str, *, pages: bool = False) -> DataFileShape:
    """Decode the footer and the descriptor of a data file, and check that every part lies inside the file.

    Args:
        read_range: Reads bytes of the file; it may return fewer when the file is shorter.
        size: The size of the file in bytes.
        path: The file, for messages.
        pages: Whether to read the metadata of the columns too, and check that every page lies inside the file, has an
            encoding of a known type, and that the pages of a column have all rows.

    Raises:
        CorruptFileError: The file has another shape.
    """
    try:
        return _decode_shape(read_range, size, pages=pages)
    except (struct.error, ValueError, DecodeError) as error:
        raise CorruptFileError(path, f"it is not a data file: {error}") from error


def _decode_shape(read_range: ReadRange, size: int, *, pages: bool) -> DataFileShape:
    if size < _FOOTER.size:
        raise ValueError(f"{size} bytes have no room for its footer")
    end = size - _FOOTER.size
    columns_at, column_table, buffer_table, buffers, columns, major, minor, magic = _FOOTER.unpack(
        read_range(end, size)
    )
    if magic != _MAGIC:
        raise ValueError("it does not end with LANC")
    if not _FIRST <= (major, minor) < (_NEXT_MAJOR, 0):
        raise ValueError(f"its version is {major}.{minor}")
    # Both tables have a known size, so the footer either fits the size of the file exactly or is damaged.
    parts = (columns_at, column_table, column_table + columns * _ENTRY.size, buffer_table)
    if list(parts) != sorted(parts) or buffer_table + buffers * _ENTRY.size > end or not buffers:
        raise ValueError("its footer contradicts its size")
    described = _entries(read_range(buffer_table, buffer_table + _ENTRY.size * buffers))
    placed = _entries(read_range(column_table, column_table + _ENTRY.size * columns))
    _check_inside(described, end, "a buffer")
    _check_inside(placed, column_table, "the metadata of a column")
    if placed and min(start for start, _ in placed) != columns_at:
        raise ValueError("the metadata of its columns is not where its footer says")
    if sum(length for _, length in placed) > _MOST_METADATA or described[0][1] > _MOST_METADATA:
        raise ValueError("its metadata is larger than any writer makes it")
    start, length = described[0]
    rows = int(wire.FileDescriptor.FromString(read_range(start, start + length)).length)
    if pages:
        _check_pages(read_range, placed, end, rows=rows, version=(major, minor))
    return DataFileShape(rows=rows, columns=columns, major=major, minor=minor)


def _check_known(message: Message, what: str) -> None:
    if len(UnknownFieldSet(message)):
        raise ValueError(f"{what} has a field that is not known")


def _check_encoding(data: bytes, types: frozenset[str], what: str) -> None:
    """Check that an encoding is stored in place, is of a known type and is a message: `{2: {1: Any}}`."""
    message = Any.FromString(_only_field(_only_field(data, _DIRECT, what), 1, what))
    _check_known(message, f"the encoding of {what}")
    if message.type_url not in types and (types or not message.type_url.startswith(_ENCODINGS)):
        raise ValueError(f"the encoding of {what} is of the type {message.type_url!r}")
    if not len(UnknownFieldSet(Empty.FromString(message.value))):
        raise ValueError(f"the encoding of {what} is empty")


def _only_field(data: bytes, number: int, what: str) -> bytes:
    """Return the bytes of the one field of a message, which has to have this number."""
    fields = list(UnknownFieldSet(Empty.FromString(data)))
    if [(field.field_number, field.wire_type) for field in fields] != [(number, _LENGTH_DELIMITED)]:
        raise ValueError(f"{what} has no encoding")
    return bytes(fields[0].data)


def _entries(data: bytes) -> Sequence[_Part]:
    return [(start, length) for start, length in _ENTRY.iter_unpack(data)]


def _check_inside(parts: Sequence[_Part], end: int, what: str) -> None:
    for start, length in parts:
        if start + length > end:
            raise ValueError(f"{what} lies at {start} to {start + length}, beyond {end}")


def _check_pages(
    read_range: ReadRange, columns: Sequence[_Part], end: int, *, rows: int, version: tuple[int, int]
) -> None:
    # What a later version calls its encodings is not known.
    types = _PAGE_ENCODINGS if version <= _LAST_KNOWN else frozenset[str]()
    for start, length in columns:
        column = wire.ColumnMetadata.FromString(read_range(start, start + length))
        # After a damaged tag the remaining bytes are an unknown field, and pylance panics over the missing fields.
        _check_known(column, "the metadata of a column")
        _check_encoding(column.encoding, _COLUMN_ENCODINGS, "a column")
        for page in column.pages:
            _check_known(page, "a page")
            _check_encoding(page.encoding, types, "a page")
        # A page of an early file counts the items of lists, not rows.
        if version >= _ROWS_OF_LEAVES and column.pages and sum(page.length for page in column.pages) != rows:
            raise ValueError(f"the pages of a column do not have {rows} rows")
        buffers = [(column.buffer_offsets, column.buffer_sizes)]
        buffers += [(page.buffer_offsets, page.buffer_sizes) for page in column.pages]
        for offsets, sizes in buffers:
            # `zip` raises a ValueError when there are positions without sizes.
            _check_inside(list(zip(offsets, sizes, strict=True)), end, "a page")
