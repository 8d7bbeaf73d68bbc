"""A conversion to another type keeps every value, or is refused with a value that it would change."""

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from lance_dagster.datafiles import cast_exactly
from lance_dagster.errors import SchemaMismatchError

NAN, INFINITE = float("nan"), float("inf")
CENTS, MOMENT = pa.decimal128(10, 2), pa.timestamp("us")
BERLIN = ZoneInfo("Europe/Berlin")
LOCAL = pa.timestamp("us", "Europe/Berlin")
NOON, MIDNIGHT = dt.datetime(2026, 1, 31, 12), dt.datetime(2026, 1, 31)  # noqa: DTZ001
CHANGED: list[tuple[pa.DataType, pa.DataType, list[Any], Any]] = [
    (pa.float64(), CENTS, [1.5, 0.1, -0.0], 1.239),
    (pa.float64(), pa.decimal128(5, 0), [2.0], -1.5),
    (pa.float64(), pa.decimal128(38, 37), [0.1], NAN),
    (pa.float16(), pa.decimal128(5, 1), [np.float16(1.5)], np.float16(1.25)),
    (pa.float64(), pa.float32(), [0.5, NAN, INFINITE, -0.0], 0.1),
    (pa.float64(), pa.float32(), [0.5], 1e300),
    (pa.float64(), pa.float32(), [16777216.0], 16777217.0),
    (pa.float64(), pa.float16(), [0.5, INFINITE], 70000.0),
    (pa.float64(), pa.float16(), [0.5], 1e-9),
    (pa.float64(), pa.int64(), [3.0, -0.0], 1.5),
    (pa.float64(), pa.bool_(), [0.0, 1.0], 1.5),
    (pa.float64(), pa.bool_(), [1.0], NAN),
    (pa.int64(), pa.bool_(), [0, 1], 5),
    (pa.int64(), pa.float64(), [2**53], 2**53 + 1),
    (pa.int64(), pa.float16(), [2048], 2049),
    (pa.int64(), pa.float16(), [2048], 70000),
    (pa.decimal128(22, 2), pa.float64(), [Decimal("0.30"), Decimal("12345678.91")], Decimal("12345678901234567890.12")),
    (CENTS, pa.float32(), [Decimal("0.10")], Decimal("16777217.00")),
    (CENTS, pa.int64(), [Decimal("1.00")], Decimal("1.25")),
    (CENTS, pa.decimal128(5, 1), [Decimal("1.50")], Decimal("1.25")),
    (pa.string(), pa.float64(), ["1.50", "1e2", "inf", "nan", "1e-200"], "0.12345678901234567890123"),
    (pa.string(), pa.float64(), ["0.1"], "1e400"),
    (pa.string(), pa.float32(), ["0.1"], "16777217"),
    (pa.string(), pa.float16(), ["0.1", "0.0999755859375"], "2049"),
    (pa.string(), CENTS, ["1.5"], "1.239"),
    (pa.string(), pa.int8(), ["-7", "07"], "0xFF"),
    (pa.int32(), pa.time32("s"), [0, 86_399], 86_400),
    (pa.int64(), pa.time64("ns"), [0], -1),
    (pa.float16(), pa.int32(), [np.float16(2)], np.float16(1.5)),
    (MOMENT, pa.date32(), [MIDNIGHT], NOON),
    (MOMENT, pa.date64(), [MIDNIGHT], NOON),
    (LOCAL, pa.date32(), [MIDNIGHT.replace(tzinfo=BERLIN)], MIDNIGHT.replace(tzinfo=dt.UTC)),
    (MOMENT, pa.time64("us"), [], NOON),
    (MOMENT, pa.timestamp("s"), [NOON], NOON.replace(microsecond=1)),
]
"""For a type and another one: values that it holds too, and one that it does not."""


@pytest.mark.parametrize("case", CHANGED, ids=lambda case: f"{case[0]} to {case[1]}")
@pytest.mark.parametrize("shape", ["plain", "list", "vector", "struct", "map", "dictionary"])
def test_values_stay_or_are_refused(shape: str, case: tuple[pa.DataType, pa.DataType, list[Any], Any]) -> None:
    """Inside of other types too, and beside nulls; a slice counts alone."""
    given, wanted, kept, changed = case
    makes: dict[str, Any] = {
        "plain": lambda kind: kind,
        "list": pa.list_,
        "vector": lambda kind: pa.list_(kind, 1),
        "struct": lambda kind: pa.struct([("n", pa.int8()), ("x", kind)]),
        "map": lambda kind: pa.map_(pa.string(), kind),
        "dictionary": lambda kind: kind,
    }
    puts: dict[str, Any] = {
        "list": lambda value: [value],
        "vector": lambda value: [value],
        "struct": lambda value: {"n": 1, "x": value},
        "map": lambda value: [("k", value)],
    }
    make, put = makes[shape], puts.get(shape, lambda value: value)
    values: Any = pa.array([None, *map(put, kept), put(changed), None], make(given))
    # Arrow makes no dictionaries of half precision.
    if shape == "dictionary" and not pa.types.is_float16(given):
        values = values.dictionary_encode()
    with pytest.raises(SchemaMismatchError):
        cast_exactly(values, make(wanted))
    held = cast_exactly(values.slice(0, len(kept) + 1), make(wanted))
    assert (make(wanted), len(kept) + 1) == (held.type, len(held))
    assert values.slice(0, len(kept) + 1).is_valid().equals(held.is_valid())


def test_decimals_are_read_and_written_correctly() -> None:
    """Arrow's own casts are one bit off for some decimals."""
    numbers = [Decimal(number * 7919 % 10**12).scaleb(-(number % 12)) for number in range(2000)]
    decimals = pa.array(numbers, pa.decimal128(30, 12))
    floats = cast_exactly(decimals, pa.float64())
    assert [float(number) for number in numbers] == floats.to_pylist()
    assert decimals.equals(cast_exactly(floats, decimals.type))


def test_floating_point_numbers_are_rounded_on_request() -> None:
    """Only they, and not to infinity."""
    values = pa.array([0.1, INFINITE, NAN, None])
    rounded = cast_exactly(values, pa.float32(), rounding=True)
    assert str([np.float32(0.1).item(), INFINITE, NAN, None]) == str(rounded.to_pylist())
    refused: list[tuple[pa.Array[Any], pa.DataType, str]] = [
        (pa.array([0.5, 1e300]), pa.float32(), r"^1e\+300 would become inf$"),
        (pa.array(["inf", "1e400"]), pa.float64(), r"^1e400 would become inf$"),
        (pa.array([1.239]), CENTS, r"^1.239 does not fit: "),
    ]
    for given, wanted, problem in refused:
        with pytest.raises(SchemaMismatchError, match=problem):
            cast_exactly(given, wanted, rounding=True)
