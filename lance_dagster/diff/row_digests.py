"""Compute a digest for each row from its values. Pure.

Rows are equal when their digests are, whatever Arrow types hold the values. The values of a row are laid out in cells
of fixed width: a short value as it is, a long value as its digest. The digest of the row is the digest of its cells.
Values are compared bitwise, with two exceptions for logical equality: null equals null, and NaN equals NaN whatever its
payload. 0.0 and -0.0 differ. Two different rows have equal digests with a probability of 2^-128.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import cast_exactly
from lance_dagster.diff.comparison_shapes import ComparisonShape
from lance_dagster.errors import SchemaMismatchError

Cells = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Digests = np.ndarray[tuple[int, int], np.dtype[np.uint64]]
"""The digests of rows: two numbers for each row."""
_DIGEST = 16
_NULL, _VALUE, _LONG, _NONE = 0, 1, 255, 254
"""First byte of a cell: null, a value (with its length, for text), a digest, or a value that cannot be cast."""
_FLOATS: Mapping[pa.DataType, type[np.floating[Any]]] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


def digests(columns: Iterable[tuple["pa.Array[Any]", ComparisonShape | None]], *, after: bool) -> Digests:
    """Return the digest of each row.

    Args:
        columns: The values of each column and how to compare them; at least one.
        after: Whether the values are from the newer version.
    """
    # Fixed widths make the cells of all columns one matrix, which is digested row by row.
    together = np.concatenate([_cells(values, shape, after) for values, shape in columns], axis=1)
    return _digested(together).view(np.uint64)


def nulls(columns: Iterable["pa.Array[Any]"]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which rows have a null in one of the columns."""
    null_flags = [np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_) for values in columns]
    together: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_or.reduce(null_flags)
    return together


def _digested(cells: Cells) -> Cells:
    # The rows are slices of one `bytes` object; a NumPy view for each row would be built only to be hashed.
    rows, width = cells.shape
    data = cells.tobytes()
    return _joined(data[row * width : (row + 1) * width] for row in range(rows))


def _cells(values: Any, shape: ComparisonShape | None, after: bool) -> Cells:  # noqa: ANN401, FBT001  # any Arrow array
    failed = None
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if shape is not None and shape.cast is not None and not after:
        values, failed = _cast(values, shape.cast)
    # The indices of two dictionaries do not mean the same values.
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_struct(values.type):
        cells = _struct_cells(values, shape, after)
    elif pa.types.is_nested(values.type):
        cells = _list_cells(values, shape, after)
    else:
        cells = _leaf_cells(values)
    present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    # All bytes are cleared: the buffer below a null may hold anything.
    cells[~present] = _NULL
    if failed is not None:
        # Marked apart from null: a value that cannot be cast equals nothing in the newer version.
        cells[failed, 0] = _NONE
    return cells


def _struct_cells(values: Any, shape: ComparisonShape | None, after: bool) -> Cells:  # noqa: ANN401, FBT001  # as above
    children = values.flatten()
    parts = _parts(shape, len(children))
    inner = [_cells(children[part[1] if after else part[0]], part[2], after) for part in parts]
    return np.concatenate([np.full((len(values), 1), _VALUE, np.uint8), *inner], axis=1)


def _list_cells(values: Any, shape: ComparisonShape | None, after: bool) -> Cells:  # noqa: ANN401, FBT001  # as above
    rows = len(values)
    inner = shape.parts[0][2] if shape is not None and shape.parts else None
    if pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        # A sliced array shares its buffer, so its own offset has to be added.
        offsets = np.arange(rows + 1, dtype=np.int64) * size
        items = values.values.slice(values.offset * size, rows * size)
    else:
        # Only the entries of these rows are digested: the child array of a slice holds the entries of all rows.
        offsets = np.asarray(values.offsets.to_numpy(), np.int64) if rows else np.zeros(1, np.int64)
        items = _entries(values, int(offsets[0]), int(offsets[-1]))
        offsets = offsets - offsets[0]
    cells = _cells(items, inner, after)
    data, width = cells.tobytes(), cells.shape[1]
    ends = offsets * width
    bounds = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    digested = _joined(data[start:end] for start, end in bounds)
    return np.concatenate([np.full((rows, 1), _VALUE, np.uint8), digested], axis=1)


def _entries(values: Any, start: int, end: int) -> "pa.Array[Any]":  # noqa: ANN401  # a list or a map
    if pa.types.is_map(values.type):
        # `keys` and `items` are two arrays; as a struct, an entry has cells for both.
        pairs = [values.keys.slice(start, end - start), values.items.slice(start, end - start)]
        return pa.StructArray.from_arrays(pairs, names=["key", "value"])
    items: pa.Array[Any] = values.values.slice(start, end - start)
    return items


def _leaf_cells(values: Any) -> Cells:  # noqa: ANN401  # as above
    arrow = values.type
    if pa.types.is_null(arrow):
        return np.zeros((len(values), 1), np.uint8)
    # Booleans are packed into bits; one byte each makes cells of equal width.
    if pa.types.is_boolean(arrow):
        values = values.cast(pa.uint8())
    if arrow in (pa.string_view(), pa.binary_view()):
        values = values.cast(pa.large_binary() if arrow == pa.binary_view() else pa.large_string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_binary(values.type):
        values = values.cast(pa.large_binary())
    return _text_cells(values) if pa.types.is_large_binary(values.type) else _number_cells(values)


def _number_cells(values: Any) -> Cells:  # noqa: ANN401  # as above
    rows, width = len(values), values.type.bit_width // 8
    buffer = values.buffers()[1]
    if buffer is None or not rows:
        return np.zeros((rows, width + 1), np.uint8)
    content = np.frombuffer(buffer, np.uint8, count=rows * width, offset=values.offset * width)
    if (kind := _FLOATS.get(values.type)) is not None:
        numbers = content.view(kind).copy()
        # Every NaN gets one bit pattern, so that NaN equals NaN.
        numbers[np.isnan(numbers)] = np.nan
        content = numbers.view(np.uint8)
    return np.concatenate([np.full((rows, 1), _VALUE, np.uint8), content.reshape(rows, width)], axis=1)


def _text_cells(values: Any) -> Cells:  # noqa: ANN401  # as above
    rows = len(values)
    cells = np.zeros((rows, _DIGEST + 1), np.uint8)
    _, places, buffer = values.buffers()
    if not rows or places is None:
        return cells
    offsets = np.frombuffer(places, np.int64, count=rows + 1, offset=values.offset * 8)
    lengths = np.diff(offsets)
    # A short value is its own digest: no hashing, and no collision among short values.
    short = lengths <= _DIGEST
    # The length is part of the cell: padding with zeros alone would make "a" and "a\0" equal.
    cells[:, 0] = np.where(short, lengths + _VALUE, _LONG)
    if buffer is None or not buffer.size:
        return cells
    data = np.frombuffer(buffer, np.uint8)
    steps = np.arange(_DIGEST)
    inside = (steps < lengths[:, None]) & short[:, None]
    # Positions are clipped at the end of the buffer: the places beyond a value are replaced by 0 anyway.
    cells[:, 1:] = np.where(inside, data[np.minimum(offsets[:-1, None] + steps, len(data) - 1)], 0)
    view = memoryview(buffer)
    ends = zip(offsets[:-1][~short].tolist(), offsets[1:][~short].tolist(), strict=True)
    cells[~short, 1:] = _joined(view[start:end] for start, end in ends)
    return cells


def _joined(values: Iterable[bytes | memoryview]) -> Cells:
    """Return the digest of each value."""
    joined = b"".join([blake2b(value, digest_size=_DIGEST).digest() for value in values])
    return np.frombuffer(joined, np.uint8).reshape(-1, _DIGEST)


def _parts(shape: ComparisonShape | None, count: int) -> Sequence[tuple[int, int, ComparisonShape | None]]:
    if shape is not None and shape.parts is not None:
        return shape.parts
    return [(place, place, None) for place in range(count)]


def _cast(values: Any, arrow_type: pa.DataType) -> tuple[Any, np.ndarray[tuple[int], np.dtype[np.bool_]] | None]:  # noqa: ANN401
    """Cast values; also return which values cannot be cast without loss."""
    try:
        return cast_exactly(values, arrow_type), None
    except SchemaMismatchError:
        failed = np.zeros(len(values), np.bool_)
    casts: list[Any] = []
    # Values are cast one by one, since the error does not say in which row a value failed. This is needed only where a
    # value does not fit.
    for row in range(len(values)):
        try:
            casts.append(cast_exactly(values.slice(row, 1), arrow_type))
        except SchemaMismatchError:
            failed[row] = True
            casts.append(pa.array([None], arrow_type))
    return pa.concat_arrays(casts), failed
