"""Values as digests: rows are equal when their digests are, whatever the types they are represented in.

A row's values are laid out side by side in cells of a fixed width, which hold short values as they are and long ones
as a digest; the row's digest is that of its cells. Null equals null, and a number that is no number any other;
nought and minus nought differ: values are compared as they are stored. Two rows that differ have the same digest by
chance only, of one in 2^128.

Which rows of one version are which of another, told by numbers: row ids, or digests of keys or of whole rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.diff.schema_diff import Fields
from lance_dagster.format.arrow_types import arrow_type
from lance_dagster.format.codec import U64Array
from lance_dagster.format.model import Field

Cells = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Digests = np.ndarray[tuple[int, int], np.dtype[np.uint64]]
"""Two numbers for each row."""
_DIGEST = 16
_NULL, _VALUE, _LONG, _NONE = 0, 1, 255, 254
"""First byte of a cell: null, a value (and how long, for text), a digest of one, one that cannot be of the new type."""
_FLOATS: Mapping[pa.DataType, type[np.floating[Any]]] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_BLOBS = ("lance-encoding:blob", "lance.blob.v2")


@dataclass(frozen=True, slots=True)
class Shape:
    """How the values of a column are looked at that are not of the same type in both versions.

    `parts` are the fields both have, by their places below the field before and after; None where there are none
    below. `cast` is the type that the older values are brought to.
    """

    parts: "tuple[tuple[int, int, Shape | None], ...] | None" = None
    cast: pa.DataType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """A column both versions have: its names there, its ids, and how its values are compared; None: as they are."""

    before: str
    after: str
    ids: frozenset[int]
    shape: Shape | None = None


class NotComparableError(Exception):
    """Report that the values of two fields have nothing in common. Caught where columns are put together."""


def compared_columns(
    before: Fields, after: Fields, matched: Mapping[int, int]
) -> tuple[tuple[ComparedColumn, ...], tuple[str, ...]]:
    """Return the columns both versions have, and the names of those whose values cannot be compared."""
    found: list[ComparedColumn] = []
    refused: list[str] = []
    origins = {new: old for old, new in matched.items()}
    inside: dict[int, list[int]] = {}
    for number in matched:
        inside.setdefault(before.column(before.by_id[number]).id, []).append(number)
    for field in after.below(None):
        if field.id not in origins:
            continue
        old = before.by_id[origins[field.id]]
        ids = frozenset(inside.get(old.id, ()))
        try:
            shape = _shape(before, after, (old, field), matched)
        except NotComparableError:
            refused.append(field.name)
        else:
            found.append(ComparedColumn(before=old.name, after=field.name, ids=ids, shape=shape))
    return tuple(found), tuple(refused)


def _shape(
    before: Fields, after: Fields, pair: tuple[Field, Field], matched: Mapping[int, int], *, nested: bool = False
) -> Shape | None:
    old, new = pair
    if _is_blob(old) or _is_blob(new):
        # Bytes of blobs inside another column cannot be read, and where they lie says nothing.
        if nested or not (_is_blob(old) and _is_blob(new)):
            raise NotComparableError
        return None
    olds, news = before.below(old), after.below(new)
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
    same = [(place, place, None) for place in range(max(len(olds), len(news)))]
    return None if parts == same else Shape(tuple(parts))


def _leaf_shape(old: Field, new: Field) -> Shape | None:
    if old.logical_type == new.logical_type:
        return None
    one, other = arrow_type(old.logical_type), arrow_type(new.logical_type)
    if one is None or other is None:
        raise NotComparableError
    try:
        pa.array([], one).cast(other)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise NotComparableError from error
    return Shape(cast=other)


def _kind(field: Field) -> str:
    """Return what is below a field: the widths of offsets make no difference."""
    return field.logical_type.removeprefix("large_")


def _is_blob(field: Field) -> bool:
    return field.extension_name in _BLOBS or not field.metadata.keys().isdisjoint(_BLOBS)


def digests(columns: Iterable[tuple["pa.Array[Any]", Shape | None]], *, after: bool) -> Digests:
    """Return the digest of each row.

    Args:
        columns: The values of each column and how they are looked at; at least one.
        after: Whether they are those of the newer version.
    """
    together = np.concatenate([_cells(values, shape, after) for values, shape in columns], axis=1)
    return _digested(together).view(np.uint64)


def nulls(columns: Iterable["pa.Array[Any]"]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which rows have a null in one of the columns."""
    found = [np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_) for values in columns]
    together: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_or.reduce(found)
    return together


def _digested(cells: Cells) -> Cells:
    rows, width = cells.shape
    data = cells.tobytes()
    return _joined(data[row * width : (row + 1) * width] for row in range(rows))


def _cells(values: Any, shape: Shape | None, after: bool) -> Cells:  # noqa: ANN401, FBT001  # any Arrow array
    failed = None
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if shape is not None and shape.cast is not None and not after:
        values, failed = _cast(values, shape.cast)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_struct(values.type):
        cells = _struct_cells(values, shape, after)
    elif pa.types.is_nested(values.type):
        cells = _list_cells(values, shape, after)
    else:
        cells = _leaf_cells(values)
    present = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    cells[~present] = _NULL
    if failed is not None:
        cells[failed, 0] = _NONE
    return cells


def _struct_cells(values: Any, shape: Shape | None, after: bool) -> Cells:  # noqa: ANN401, FBT001  # as above
    children = values.flatten()
    parts = _parts(shape, len(children))
    inner = [_cells(children[part[1] if after else part[0]], part[2], after) for part in parts]
    return np.concatenate([np.full((len(values), 1), _VALUE, np.uint8), *inner], axis=1)


def _list_cells(values: Any, shape: Shape | None, after: bool) -> Cells:  # noqa: ANN401, FBT001  # as above
    rows = len(values)
    inner = shape.parts[0][2] if shape is not None and shape.parts else None
    if pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        offsets = np.arange(rows + 1, dtype=np.int64) * size
        items = values.values.slice(values.offset * size, rows * size)
    else:
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
        pairs = [values.keys.slice(start, end - start), values.items.slice(start, end - start)]
        return pa.StructArray.from_arrays(pairs, names=["key", "value"])
    items: pa.Array[Any] = values.values.slice(start, end - start)
    return items


def _leaf_cells(values: Any) -> Cells:  # noqa: ANN401  # as above
    arrow = values.type
    if pa.types.is_null(arrow):
        return np.zeros((len(values), 1), np.uint8)
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
    short = lengths <= _DIGEST
    cells[:, 0] = np.where(short, lengths + _VALUE, _LONG)
    if buffer is None or not buffer.size:
        return cells
    data = np.frombuffer(buffer, np.uint8)
    steps = np.arange(_DIGEST)
    inside = (steps < lengths[:, None]) & short[:, None]
    cells[:, 1:] = np.where(inside, data[np.minimum(offsets[:-1, None] + steps, len(data) - 1)], 0)
    view = memoryview(buffer)
    ends = zip(offsets[:-1][~short].tolist(), offsets[1:][~short].tolist(), strict=True)
    cells[~short, 1:] = _joined(view[start:end] for start, end in ends)
    return cells


def _joined(values: Iterable[bytes | memoryview]) -> Cells:
    """Return the digest of each value."""
    found = b"".join([blake2b(value, digest_size=_DIGEST).digest() for value in values])
    return np.frombuffer(found, np.uint8).reshape(-1, _DIGEST)


def _parts(shape: Shape | None, count: int) -> Sequence[tuple[int, int, Shape | None]]:
    if shape is not None and shape.parts is not None:
        return shape.parts
    return [(place, place, None) for place in range(count)]


def _cast(values: Any, wanted: pa.DataType) -> tuple[Any, np.ndarray[tuple[int], np.dtype[np.bool_]] | None]:  # noqa: ANN401
    """Bring values to another type; tells which cannot be brought there without loss."""
    try:
        return values.cast(wanted), None
    except pa.ArrowInvalid:
        failed = np.zeros(len(values), np.bool_)
    found: list[Any] = []
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
    """Places of rows that are in both, in the same order, and of those in one alone, in theirs."""

    before: RowPositions
    after: RowPositions
    removed: RowPositions
    added: RowPositions


def paired_by_ids(before: U64Array, known: Flags, after: U64Array) -> RowPairs:
    """Pair rows by their ids.

    Args:
        before: Ids of rows of the older version, as they are in the newer one.
        known: Which of them there is an id for.
        after: Ids of rows of the newer version.
    """
    candidates = np.flatnonzero(known)
    _, olds, news = np.intersect1d(before[candidates], after, assume_unique=True, return_indices=True)
    return _paired(candidates[olds], news, len(before), len(after))


def paired_by_values(before: Digests, after: Digests) -> RowPairs:
    """Pair rows of equal digests, the first with the first and so on, as long as both have any."""
    count = len(before)
    together = np.concatenate([before, after])
    numbers = _numbered(together)
    span = len(together) + 1
    olds, news = _ranked(numbers[:count], span), _ranked(numbers[count:], span)
    _, one, other = np.intersect1d(olds, news, assume_unique=True, return_indices=True)
    return _paired(one, other, count, len(after))


def first_duplicate(digests: Digests) -> int | None:
    """Return the place of a row whose digest another one has as well."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    found = np.flatnonzero(np.all(ordered[1:] == ordered[:-1], axis=1))
    return int(order[found[0] + 1]) if len(found) else None


def _paired(olds: RowPositions, news: RowPositions, before: int, after: int) -> RowPairs:
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
    """Return for each number, and for how many of the same stand before it, a number of its own."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.r_[starts, len(numbers)]))
    return numbers * span + ranks
