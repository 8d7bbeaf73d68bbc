"""Match rows of two versions: digests of values, and pairs of equal row ids or equal digests. Pure.

Rows are equal when their digests are, whatever Arrow types hold the values. The values of a row are laid out in cells
of fixed width; a short value is stored in its cell, a long one as a digest; the digest of the row is that of its cells.
Values are compared bitwise, with two exceptions for logical equality: null equals null, and NaN equals NaN whatever its
payload. 0.0 and -0.0 differ. Two different rows have equal digests with a probability of 2^-128.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.diff.schema_diff import Fields
from lance_dagster.format.arrow_types import arrow_type
from lance_dagster.format.model import Field
from lance_dagster.format.row_runs import RowRuns

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
_OFFSET_BITS = 32
"""Bits of an address that are the offset in the fragment; those above are the id of the fragment."""
_BLOBS = ("lance-encoding:blob", "lance.blob.v2")


@dataclass(frozen=True, slots=True)
class ComparisonShape:
    """The way to compare the values of a column whose type differs between the versions.

    Attributes:
        parts: The child fields that both versions have: position in the older type, in the newer type, and how to
            compare them; None for a type without children.
        cast: The type that the older values are cast to.
    """

    parts: "tuple[tuple[int, int, ComparisonShape | None], ...] | None" = None
    cast: pa.DataType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """A column of both versions: its names, its older field ids, and how to compare it (None: as it is)."""

    before: str
    after: str
    ids: frozenset[int]
    shape: ComparisonShape | None = None


class NotComparableError(Exception):
    """The values of two fields cannot be compared. `compared_columns` catches it."""


def compared_columns(
    before: Fields, after: Fields, matched: Mapping[int, int]
) -> tuple[tuple[ComparedColumn, ...], tuple[str, ...]]:
    """Return the columns of both versions that can be compared, and the names of those that cannot."""
    found: list[ComparedColumn] = []
    refused: list[str] = []
    origins = {new: old for old, new in matched.items()}
    inside: dict[int, list[int]] = {}
    # Field ids inside a column count as its own: a file that rewrites one of them changes values of the column.
    for number in matched:
        inside.setdefault(before.column(before.by_id[number]).id, []).append(number)
    for field in after.below(None):
        if field.id not in origins:
            continue
        old = before.by_id[origins[field.id]]
        ids = frozenset(inside.get(old.id, ()))
        try:
            shape = _shape(before, after, (old, field), matched)
        # One column that cannot be compared does not prevent the comparison of the others; the caller names it.
        except NotComparableError:
            refused.append(field.name)
        else:
            found.append(ComparedColumn(before=old.name, after=field.name, ids=ids, shape=shape))
    return tuple(found), tuple(refused)


def _shape(
    before: Fields, after: Fields, pair: tuple[Field, Field], matched: Mapping[int, int], *, nested: bool = False
) -> ComparisonShape | None:
    old, new = pair
    if _is_blob(old) or _is_blob(new):
        # Blobs inside another column cannot be read, and their descriptions only say where the bytes are.
        if nested or not (_is_blob(old) and _is_blob(new)):
            raise NotComparableError
        return None
    olds, news = before.below(old), after.below(new)
    # A struct that became a list, or a leaf that got children, has no values in common with what it was.
    if bool(olds) != bool(news) or (olds and _kind(old) != _kind(new)):
        raise NotComparableError
    if not olds:
        return _leaf_shape(old, new)
    places = {field.id: place for place, field in enumerate(news)}
    parts = []
    for place, field in enumerate(olds):
        number = matched.get(field.id)
        if number is not None and number in places:
            shape = _shape(before, after, (field, news[places[number]]), matched, nested=True)
            parts.append((place, places[number], shape))
    if not parts:
        raise NotComparableError
    # With the same children in the same order, the values can be compared as they are.
    same = [(place, place, None) for place in range(max(len(olds), len(news)))]
    return None if parts == same else ComparisonShape(tuple(parts))


def _leaf_shape(old: Field, new: Field) -> ComparisonShape | None:
    if old.logical_type == new.logical_type:
        return None
    one, other = arrow_type(old.logical_type), arrow_type(new.logical_type)
    if one is None or other is None:
        raise NotComparableError
    try:
        # An empty cast asks Arrow whether a conversion exists at all.
        pa.array([], one).cast(other)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise NotComparableError from error
    return ComparisonShape(cast=other)


def _kind(field: Field) -> str:
    """Return the logical type without the width of its offsets, which does not matter for values."""
    return field.logical_type.removeprefix("large_")


def _is_blob(field: Field) -> bool:
    return field.extension_name in _BLOBS or not field.metadata.keys().isdisjoint(_BLOBS)


def digests(columns: Iterable[tuple["pa.Array[Any]", ComparisonShape | None]], *, after: bool) -> Digests:
    """Return the digest of each row.

    Args:
        columns: The values of each column and how to compare them; at least one.
        after: Whether the values are those of the newer version.
    """
    # Fixed widths make the cells of all columns one matrix, which is digested row by row.
    together = np.concatenate([_cells(values, shape, after) for values, shape in columns], axis=1)
    return _digested(together).view(np.uint64)


def nulls(columns: Iterable["pa.Array[Any]"]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which rows have a null in one of the columns."""
    found = [np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_) for values in columns]
    together: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_or.reduce(found)
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
        # Only the entries of these rows are digested: the child array of a slice holds those of all rows.
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
    found = np.frombuffer(buffer, np.uint8, count=rows * width, offset=values.offset * width)
    if (kind := _FLOATS.get(values.type)) is not None:
        numbers = found.view(kind).copy()
        # Every NaN gets one bit pattern, so that NaN equals NaN.
        numbers[np.isnan(numbers)] = np.nan
        found = numbers.view(np.uint8)
    return np.concatenate([np.full((rows, 1), _VALUE, np.uint8), found.reshape(rows, width)], axis=1)


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
    found = b"".join([blake2b(value, digest_size=_DIGEST).digest() for value in values])
    return np.frombuffer(found, np.uint8).reshape(-1, _DIGEST)


def _parts(shape: ComparisonShape | None, count: int) -> Sequence[tuple[int, int, ComparisonShape | None]]:
    if shape is not None and shape.parts is not None:
        return shape.parts
    return [(place, place, None) for place in range(count)]


def _cast(values: Any, wanted: pa.DataType) -> tuple[Any, np.ndarray[tuple[int], np.dtype[np.bool_]] | None]:  # noqa: ANN401
    """Cast values; also return which of them cannot be cast without loss."""
    try:
        return values.cast(wanted), None
    except pa.ArrowInvalid:
        failed = np.zeros(len(values), np.bool_)
    found: list[Any] = []
    # Values are cast one by one, since Arrow does not say which value failed. This is needed only where one does not
    # fit.
    for row in range(len(values)):
        try:
            found.append(values.slice(row, 1).cast(wanted))
        except pa.ArrowInvalid:
            failed[row] = True
            found.append(pa.array([None], wanted))
    return pa.concat_arrays(found), failed


Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
RowPositions = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Positions of the rows in both versions, pair by pair, and of the rows in only one of them."""

    before: RowPositions
    after: RowPositions
    removed: RowPositions
    added: RowPositions


def paired_by_ids(before: Mapping[int, RowRuns], after: Mapping[int, RowRuns]) -> RowRuns:
    """Pair rows by their ids; the cost depends on the runs of ids, and not on the number of rows.

    Args:
        before: Row ids of the older version by fragment and offset, translated to ids of the newer one.
        after: Row ids of the newer version by fragment and offset.

    Returns:
        A map from the addresses in the newer version to those in the older one, for rows that both have.
    """
    addresses = [ids.moved(at=number << _OFFSET_BITS) for number, ids in sorted(before.items())]
    by_id = RowRuns.concatenated(addresses).inverse()
    pairs = [ids.through(by_id).moved(at=number << _OFFSET_BITS) for number, ids in sorted(after.items())]
    return RowRuns.concatenated(pairs)


def paired_by_values(before: Digests, after: Digests) -> RowPairs:
    """Pair rows of equal digests: the first with the first, the second with the second, as long as both have one."""
    count = len(before)
    together = np.concatenate([before, after])
    numbers = _numbered(together)
    # The span is large enough that number and rank never run into each other.
    span = len(together) + 1
    # Ranks make duplicates distinct: three equal rows before and two after are two pairs and one removed row.
    olds, news = _ranked(numbers[:count], span), _ranked(numbers[count:], span)
    _, one, other = np.intersect1d(olds, news, assume_unique=True, return_indices=True)
    return _paired(one, other, count, len(after))


def first_duplicate(digests: Digests) -> int | None:
    """Return the position of a row whose digest another row has too; None when all are distinct."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    found = np.flatnonzero(np.all(ordered[1:] == ordered[:-1], axis=1))
    return int(order[found[0] + 1]) if len(found) else None


def _paired(olds: RowPositions, news: RowPositions, before: int, after: int) -> RowPairs:
    # Pairs are put in the order of the newer version, in which the rows are shown.
    order = np.argsort(news, kind="stable")
    return RowPairs(
        olds[order],
        news[order],
        np.setdiff1d(np.arange(before), olds, assume_unique=True),
        np.setdiff1d(np.arange(after), news, assume_unique=True),
    )


def _numbered(digests: Digests) -> RowPositions:
    """Give equal digests the same number, counted from 0."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    numbers = np.empty(len(digests), np.int64)
    numbers[order] = np.cumsum(np.r_[False, np.any(ordered[1:] != ordered[:-1], axis=1)]) if len(digests) else 0
    return numbers


def _ranked(numbers: RowPositions, span: int) -> RowPositions:
    """Return a distinct number for each pair of a number and its count among equal ones before it."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.r_[starts, len(numbers)]))
    return numbers * span + ranks
