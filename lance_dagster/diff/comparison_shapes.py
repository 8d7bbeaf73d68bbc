"""Find out how the values of a column are compared when its type differs between two versions. Pure.

Every column that both versions have is compared, under its newer type where the types differ. A column of which no
value can be compared is refused by name, before any row is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lance_dagster.diff.schema_diff import Fields
from lance_dagster.format.logical_types import arrow_type
from lance_dagster.format.model import Field


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
    """Return the columns of both versions that can be compared, and the names of columns that cannot be compared."""
    comparable: list[ComparedColumn] = []
    refused: list[str] = []
    origins = {new: old for old, new in matched.items()}
    inside: dict[int, list[int]] = {}
    # Field ids inside a column count as its own: a file that rewrites an inner field changes values of the column.
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
            comparable.append(ComparedColumn(before=old.name, after=field.name, ids=ids, shape=shape))
    return tuple(comparable), tuple(refused)


def _shape(
    before: Fields, after: Fields, pair: tuple[Field, Field], matched: Mapping[int, int], *, nested: bool = False
) -> ComparisonShape | None:
    old, new = pair
    if old.holds_blobs or new.holds_blobs:
        # Blobs inside another column cannot be read, and their descriptions only say where the bytes are.
        if nested or not (old.holds_blobs and new.holds_blobs):
            raise NotComparableError
        return None
    olds, news = before.below(old), after.below(new)
    # A struct that became a list, or a leaf that got children, has no values in common with the older field.
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
    old_type, new_type = arrow_type(old.logical_type), arrow_type(new.logical_type)
    if old_type is None or new_type is None:
        raise NotComparableError
    try:
        # An empty cast asks Arrow whether a conversion exists at all.
        pa.array([], old_type).cast(new_type)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise NotComparableError from error
    return ComparisonShape(cast=new_type)


def _kind(field: Field) -> str:
    """Return the logical type without the width of its offsets, which does not matter for values."""
    return field.logical_type.removeprefix("large_")
