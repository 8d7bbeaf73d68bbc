"""Convert values to another type, and refuse a value that the type does not hold exactly.

Arrow's casts are said to be safe, and nevertheless round numbers to a decimal or to single precision, overflow to
infinity and cut moments to a date. So every new value is cast back and compared with the old value.

A floating-point number stands for the shortest decimal number that it is read from: 0.1 is exactly the decimal 0.1 and
the text '0.1', although its bits are 0.1000000000000000055... Between floating-point numbers the bits count, so 0.1 in
single precision is a different number than 0.1 in double precision.
"""

from collections.abc import Iterator
from decimal import Decimal, DecimalException
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles.conforming import fits_type
from lance_dagster.datafiles.dictionaries import decoded, encoded, plain_type
from lance_dagster.datafiles.extension_types import extended, stored, stored_type
from lance_dagster.errors import SchemaMismatchError
from lance_dagster.format.shown_values import shown_value

# A type of decimals that holds the digits of usual numbers before and after the point.
_WIDE = pa.decimal256(76, 38)
_OF_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def cast_exactly(values: Any, target: pa.DataType, *, rounding: bool = False, filling: bool = False) -> Any:  # noqa: ANN401  # any Arrow array
    """Return the same values in another type.

    Args:
        values: An array. Values inside of lists, maps and structs count too.
        target: The type.
        rounding: Whether a type of floating-point numbers gets the nearest number where it does not hold a number
            exactly. A number beyond its range is refused all the same.
        filling: Whether fields of the type that a struct lacks become null; otherwise such a struct is refused.

    Raises:
        SchemaMismatchError: A value would change in the type, or cannot be cast to it. The message has the value.
    """
    if values.type == target:
        return values
    plain, plain_target = _alone(decoded(stored(values))), plain_type(stored_type(target))
    _refuse_other_fields(plain.type, plain_target, filling=filling)
    try:
        # Arrow calculates with the bits where it casts between decimals and floating-point numbers; as text they are
        # read and written correctly. No number changes when it is written, so only the second cast is compared.
        intermediate = plain.cast(_by_text(plain.type, plain_target))
        cast = intermediate.cast(plain_target)
        changed = next(_changes(intermediate, cast, rounding=rounding), None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(_with_value(plain, plain_target, error)) from error
    if changed is not None:
        before, after = changed
        raise SchemaMismatchError(f"{before} would become {after}")
    return extended(encoded(cast, stored_type(target)), target)


def _refuse_other_fields(source: Any, target: Any, *, filling: bool) -> None:  # noqa: ANN401  # any Arrow type
    """Refuse a struct with other fields: Arrow drops fields that the type lacks, and adds missing fields as null.

    Raises:
        SchemaMismatchError: The message has the fields of both.
    """
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        was, now = ([kind.field(index).name for index in range(kind.num_fields)] for kind in (source, target))
        if set(was) - set(now) or (set(now) - set(was) and not filling):
            raise SchemaMismatchError(f"a struct has the fields {', '.join(was)}, and the type {', '.join(now)}")
        for name in was:
            _refuse_other_fields(source.field(name).type, target.field(name).type, filling=filling)
    elif source.num_fields == target.num_fields == 1:
        _refuse_other_fields(source.field(0).type, target.field(0).type, filling=filling)


def exact_cast(values: "pa.Array[Any]", column: "pa.Field[Any]") -> "pa.Array[Any]":
    """Cast numbers to the type of a column, where each value stays the same number.

    `conform` does not change the kind of numbers; this is for callers who were asked to accept values that fit. Fields
    of the type that a struct lacks become null.

    Raises:
        SchemaMismatchError: A value is not the same number in the type of the column.
    """
    try:
        cast: pa.Array[Any] = cast_exactly(values, column.type, filling=True)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"column {column.name!r} is {values.type}, the table holds {column.type}, and a value does not fit: {error}"
        ) from error
    return cast


def _alone(values: Any) -> Any:  # noqa: ANN401  # an array
    """Return an array without what is outside of a slice or below a null struct: Arrow would cast that too."""
    if not values.type.num_fields:
        return values
    own = values.take(pa.array(np.arange(len(values))))
    if not pa.types.is_struct(own.type):
        return own
    return pa.StructArray.from_arrays(list(map(_alone, own.flatten())), fields=list(own.type), mask=own.is_null())


def can_shorten(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether an SQL expression can round or shorten values of a type, so that another type holds them."""
    numbers = all(pa.types.is_decimal(kind) or _is_number(kind) for kind in (source, target))
    moments = pa.types.is_timestamp(source) and pa.types.is_temporal(target)
    return numbers or moments


def _is_number(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow)


def _by_text(source: Any, target: Any) -> Any:  # noqa: ANN401  # any Arrow type
    """Return the type with text where decimals become floating-point numbers, or the other way round."""
    decimal, floating = pa.types.is_decimal, pa.types.is_floating
    if (decimal(source) and floating(target)) or (floating(source) and decimal(target)):
        return pa.string()
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        names = [target.field(index).name for index in range(target.num_fields)]
        parts = [(own, target.field(own.name).type if own.name in names else own.type) for own in source]
        return pa.struct([own.with_type(_by_text(own.type, to)) for own, to in parts])
    if pa.types.is_map(source) and pa.types.is_map(target):
        make: Any = pa.map_
        item = source.item_field.with_type(_by_text(source.item_type, target.item_type))
        return make(source.key_field.with_type(_by_text(source.key_type, target.key_type)), item)
    if _is_list(source) and _is_list(target):
        item = source.field(0).with_type(_by_text(source.value_type, target.value_type))
        if pa.types.is_fixed_size_list(source):
            return pa.list_(item, source.list_size)
        return pa.large_list(item) if pa.types.is_large_list(source) else pa.list_(item)
    return source


def _is_list(arrow: pa.DataType) -> bool:
    return pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)


def _changes(before: Any, after: Any, *, rounding: bool) -> Iterator[tuple[object, object]]:  # noqa: ANN401  # arrays
    """Yield a value that a cast changed, and what it became, for each part of an array with a changed value."""
    before, after = (array.storage if isinstance(array, pa.ExtensionArray) else array for array in (before, after))
    if fits_type(before.type, after.type):
        return
    parts = _parts(before, after)
    for part, cast in parts:
        yield from _changes(part, cast, rounding=rounding)
    if parts:
        return
    if rounding and pa.types.is_floating(after.type):
        beyond = pc.is_inf(after.cast(pa.float64()))
        before, after = before.filter(beyond), after.filter(beyond)
    place = _first_changed(before, after)
    if place >= 0:
        yield shown_value(before[place]), shown_value(after[place])


def _parts(before: Any, after: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401  # arrays
    """Return the parts of nested values and of what they became, in pairs; what is below a null does not count."""
    source, target = before.type, after.type
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        names = [target.field(index).name for index in range(target.num_fields)]
        parts = dict(zip(names, after.flatten(), strict=True))
        return [(part, parts[own.name]) for own, part in zip(source, before.flatten(), strict=True)]
    if pa.types.is_map(source) and pa.types.is_map(target):
        # The keys of a slice are the keys of the whole array; the filter copies the slice.
        is_valid = before.is_valid()
        before, after = before.filter(is_valid), after.filter(is_valid)
        return [(before.keys, after.keys), (before.items, after.items)]
    return [(before.flatten(), after.flatten())] if _is_list(source) and _is_list(target) else []


def _first_changed(before: Any, after: Any) -> int:  # noqa: ANN401  # arrays
    """Return the place of the first value that a cast changed, or -1."""
    place = _first_by_rule(before, after)
    if place is not None:
        return place
    source = before.type
    if pa.types.is_timestamp(source) and pa.types.is_date(after.type):
        # A date is midnight by the clock of the time zone.
        before = before if source.tz is None else pc.call_function("local_timestamp", [before])
        source = before.type
    # If a value was changed, the cast back may be out of range, which is not the error to report.
    back = after.cast(source, safe=False)
    if pa.types.is_float16(source):
        # Arrow does not compare half precision.
        back, before = back.cast(pa.float32()), before.cast(pa.float32())
    same: Any = pc.call_function("equal", [back, before])
    if pa.types.is_floating(source):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(before)))
    return _first(same, flag=False)


def _first_by_rule(before: Any, after: Any) -> int | None:  # noqa: ANN401  # arrays
    """Return what `_first_changed` returns, for types of which a cast back shows nothing; None for other types."""
    source, target = before.type, after.type
    if _is_text(source):
        return _first_misread(before, after) if _is_number(target) else -1
    # Of a date with milliseconds, only the day is written as text.
    if _is_text(target) and not pa.types.is_date64(source):
        return -1
    if pa.types.is_decimal(source) and pa.types.is_integer(target):
        return -1
    if pa.types.is_integer(source) and pa.types.is_time(target):
        # Arrow takes any number, and shows a number beyond the day as a time of another day.
        day = 86_400 * _OF_A_SECOND[target.unit]
        counts = before.cast(pa.decimal128(20, 0))
        negative, beyond = pc.call_function("less", [counts, 0]), pc.call_function("greater_equal", [counts, day])
        return _first(pc.or_(negative, beyond), flag=True)
    if pa.types.is_timestamp(source) and pa.types.is_time(target):
        # A time of day has no date, whatever the moment is.
        return _first(before.is_valid(), flag=True)
    return -1 if pa.types.is_timestamp(target) else None


def _is_text(arrow: Any) -> bool:  # noqa: ANN401  # any Arrow type
    """Return whether values are text, as which Arrow takes bytes too where it parses a number."""
    return fits_type(arrow, pa.string()) or fits_type(arrow, pa.binary())


def _first(mask: Any, *, flag: bool) -> int:  # noqa: ANN401  # an array of booleans
    place: int = pc.index(mask, pa.scalar(flag)).as_py()
    return place


def _first_misread(texts: Any, numbers: Any) -> int:  # noqa: ANN401  # arrays
    """Return the place of the first text that was read as another number than it says, or -1.

    '300' read as 44 in eight bits is misread. A floating-point number counts as the shortest number that it is read
    from: '0.1' is not misread.
    """
    spelled, shortest = texts.cast(pa.string()), numbers.cast(pa.string())
    if pa.types.is_integer(numbers.type):
        # Arrow reads hexadecimal digits too, as the bits of a number: '0xFF' is -1 in eight bits.
        return _first(pc.match_substring(spelled, "x", ignore_case=True), flag=True)
    places = np.flatnonzero(pc.fill_null(pc.not_equal(spelled, shortest), False).to_numpy(zero_copy_only=False))  # noqa: FBT003
    spelled, shortest = spelled.take(pa.array(places)), shortest.take(pa.array(places))
    if pa.types.is_float16(numbers.type):
        # Arrow writes half precision with the digits of single precision, which is right too, but not the shortest.
        remaining = numbers.take(pa.array(places)).to_numpy(zero_copy_only=False)
        shortest = pa.array([str(number) for number in remaining], pa.string())
    try:
        same: Any = pc.call_function("equal", [spelled.cast(_WIDE), shortest.cast(_WIDE)])
    except pa.ArrowInvalid:
        # Numbers with more digits than the type has, or infinities; Python takes them all, more slowly.
        same = pa.array(map(_is_same, spelled.to_pylist(), shortest.to_pylist()), pa.bool_())
    place = _first(same, flag=False)
    return int(places[place]) if place >= 0 else -1


def _is_same(text: str, shortest: str) -> bool:
    try:
        written_number, shortest_number = Decimal(text), Decimal(shortest)
    except DecimalException:
        return False
    return written_number == shortest_number or (written_number.is_nan() and shortest_number.is_nan())


def _with_value(values: Any, target: Any, error: Exception) -> str:  # noqa: ANN401  # an array, a type
    """Return an error of a cast, with the first value that fails; without a value if the types cannot be cast."""
    if not isinstance(error, pa.ArrowInvalid) or not _fails(values, target):
        return str(error)
    first, end = 0, len(values)
    # No row before `first` fails, and a row before `end` does.
    while end - first > 1:
        middle = (first + end) // 2
        if _fails(values.slice(first, middle - first), target):
            end = middle
        else:
            first = middle
    return f"{shown_value(values[first])} does not fit: {error}" if end > first else str(error)


def _fails(values: Any, target: Any) -> bool:  # noqa: ANN401  # an array, a type
    try:
        _alone(values).cast(_by_text(values.type, target)).cast(target)
    except pa.ArrowInvalid:
        return True
    return False
