"""The bounds of `InRange` and `IsIn` are fitted to the type of the column, so that no row passes wrongly."""
# ruff: noqa: DTZ001  # a bound may have no time zone

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import InRange, IsIn, LanceTable
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import Bound
from lance_dagster.plugin.checks.fitted_bounds import Side, fitted
from lance_dagster.plugin.checks.table_check import Audit
from lance_dagster.plugin.resource import PinnedTable

UTC = dt.UTC
NANO, SECOND = pa.timestamp("ns"), pa.timestamp("s")
EAST = dt.timezone(dt.timedelta(hours=2))


def stamp(count: int, unit: str, zone: str = "None") -> str:
    """The SQL of a timestamp."""
    return f"arrow_cast({count}, 'Timestamp({unit}, {zone})')"


IN_UTC = 'Some("UTC")'
FITTED: list[tuple[pa.DataType, Bound, Side, str | bool]] = [
    (pa.int64(), 2.5, "minimum", "3"),
    (pa.int64(), 2.5, "maximum", "2"),
    (pa.int64(), -2.5, "minimum", "-2"),
    (pa.int64(), 2.5, "member", False),
    (pa.int64(), 2.0, "member", "2"),
    (pa.int64(), 2.0**53, "maximum", "9007199254740992"),
    (pa.int64(), 2.0**63, "minimum", False),
    (pa.int64(), 2**63, "maximum", True),
    (pa.int64(), -(2**63), "minimum", "arrow_cast('-9223372036854775808', 'Int64')"),
    (pa.int64(), -(2**63) - 1, "minimum", True),
    (pa.int64(), -(2**63) - 1, "maximum", False),
    (pa.int64(), 2**64, "member", False),
    (pa.int8(), 128, "maximum", True),
    (pa.uint64(), 2**64 - 1, "minimum", "18446744073709551615"),
    (pa.uint64(), 2**64, "minimum", False),
    (pa.uint8(), -1, "member", False),
    (pa.decimal128(5, 2), 0.1, "member", "arrow_cast('0.10', 'Decimal128(5, 2)')"),
    (pa.decimal128(5, 2), -0.105, "minimum", "arrow_cast('-0.10', 'Decimal128(5, 2)')"),
    (pa.decimal128(5, 2), 1000, "maximum", True),
    (pa.decimal128(38, 0), 2**53 + 1, "member", "arrow_cast('9007199254740993', 'Decimal128(38, 0)')"),
    (pa.float64(), 2, "minimum", "2.0"),
    (pa.float64(), 2**53 + 1, "minimum", "9007199254740994.0"),
    (pa.float64(), 2**53 + 1, "maximum", "9007199254740992.0"),
    (pa.float64(), 2**53 + 1, "member", False),
    (pa.float64(), 10**400, "minimum", "arrow_cast('inf', 'Float64')"),
    (pa.float32(), 0.1, "member", "0.1"),
    (pa.float32(), -1e39, "minimum", "-3.4028234663852886e+38"),
    (pa.float32(), -1e39, "maximum", "arrow_cast('-inf', 'Float32')"),
    (pa.float16(), 70000, "maximum", "65504.0"),
    (pa.float16(), 70000, "member", False),
    (SECOND, dt.datetime(1970, 1, 1, 0, 0, 0, 1), "minimum", stamp(1, "Second")),
    (SECOND, dt.datetime(1970, 1, 1, 0, 0, 0, 1), "maximum", stamp(0, "Second")),
    (SECOND, dt.datetime(1970, 1, 1, 0, 0, 0, 1), "member", False),
    (SECOND, dt.datetime(1, 1, 1, tzinfo=EAST), "minimum", stamp(-62135604000, "Second")),
    (SECOND, "1970-01-01T00:00:01Z", "member", stamp(1, "Second")),
    (NANO, dt.datetime(9999, 12, 31), "minimum", False),
    (NANO, dt.datetime(9999, 12, 31), "maximum", True),
    (NANO, dt.datetime(9999, 12, 31), "member", False),
    (NANO, dt.datetime(1600, 1, 1), "maximum", False),
    (NANO, dt.date(1600, 1, 1), "minimum", True),
    (pa.timestamp("us", "UTC"), dt.datetime(1970, 1, 1, 2, tzinfo=EAST), "member", stamp(0, "Microsecond", IN_UTC)),
    (pa.timestamp("ms", "Europe/Berlin"), dt.datetime(1970, 1, 1, 1), "member", stamp(0, "Millisecond", IN_UTC)),
    (pa.timestamp("ms", "-05:30"), dt.datetime(1970, 1, 1), "member", stamp(19800000, "Millisecond", IN_UTC)),
    (pa.timestamp("ms", "-05:30"), "1970-01-01", "member", stamp(19800000, "Millisecond", IN_UTC)),
    (pa.timestamp("ms", "-05:30"), dt.date(1970, 1, 1), "member", stamp(0, "Millisecond", IN_UTC)),
    (pa.date32(), dt.date(1970, 1, 2), "member", "arrow_cast(1, 'Date32')"),
    (pa.date32(), dt.datetime(1970, 1, 2, 12), "minimum", "arrow_cast(2, 'Date32')"),
    (pa.date64(), dt.datetime(1970, 1, 2, 12), "maximum", "arrow_cast(1, 'Date32')"),
    (pa.date32(), dt.datetime(1970, 1, 2, 12), "member", False),
    (pa.date32(), "1970-01-02", "member", "arrow_cast(1, 'Date32')"),
    (pa.string(), "o'e", "minimum", "'o''e'"),
    (pa.dictionary(pa.int8(), pa.int64()), 2.5, "minimum", "3"),
    (pa.dictionary(pa.int8(), pa.string()), "a", "member", "'a'"),
    (pa.bool_(), True, "member", "true"),
    (pa.time32("s"), "12:00:00", "minimum", "'12:00:00'"),
]


@pytest.mark.parametrize("kind,bound,side,expected", FITTED, ids=[str(number) for number in range(len(FITTED))])
def test_bounds_fitted_to_a_type(kind: pa.DataType, bound: Bound, side: Side, *, expected: str | bool) -> None:
    """A minimum goes up and a maximum down to a value of the type; what no value satisfies is False."""
    assert expected == fitted(pa.field("x", kind), bound, side)


def test_nanoseconds_of_a_bound_count() -> None:
    """A timestamp of pandas has digits that a datetime of Python lacks."""
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp(100, tz="UTC")
    assert stamp(100, "Nanosecond", IN_UTC) == fitted(pa.field("x", pa.timestamp("ns", "UTC")), moment, "member")
    assert stamp(1, "Microsecond", IN_UTC) == fitted(pa.field("x", pa.timestamp("us", "UTC")), moment, "minimum")


@pytest.mark.parametrize(
    "kind,bound,message",
    [
        (pa.string(), 5, "column 'x' is string, which cannot be compared with 5; give texts"),
        (pa.int64(), "5", "column 'x' is int64, which cannot be compared with '5'; give numbers"),
        (pa.float64(), "5", "column 'x' is double, which cannot be compared with '5'; give numbers"),
        (pa.int64(), True, "cannot be compared with True; give numbers"),
        (pa.bool_(), 1, "cannot be compared with 1; give True or False"),
        (pa.date32(), 5, "is date32[day], which cannot be compared with 5; give dates or datetimes"),
        (NANO, "soon", "is timestamp[ns], which cannot be compared with 'soon'; give dates or datetimes"),
        (NANO, "1970-01-01T00:00:00.0000001", "give dates or datetimes"),
        (pa.int64(), dt.date(2024, 1, 1), "give numbers"),
    ],
)
def test_bounds_of_another_kind(kind: pa.DataType, bound: Bound, message: str) -> None:
    """The error names the column, its type and the bound: Lance would compare some of them as texts."""
    with pytest.raises(InvalidInputError) as raised:
        fitted(pa.field("x", kind), bound, "member")
    assert message in str(raised.value)


def audit_of(path: Path, columns: dict[str, "pa.Array[Any]"]) -> Audit:
    """A table with these columns."""
    rows = pa.table(columns)
    table = LanceTable.create(str(path / "t.lance"), rows.schema)
    table.append(rows)
    return Audit(candidate=PinnedTable(table=table, version=table.head()))


ZONES = (None, "UTC", "Europe/Berlin", "-05:30")


def test_bounds_beside_each_unit_and_zone(tmp_path: Path) -> None:
    """Lance compares the counts of each type as they are."""
    moment, tick = dt.datetime(2024, 6, 1, tzinfo=UTC), dt.timedelta(microseconds=1)
    columns: dict[str, pa.Array[Any]] = {
        f"{unit} {zone}": pa.array([moment if zone else moment.replace(tzinfo=None), None], pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in ZONES
    }
    audit = audit_of(tmp_path, columns)
    for name in columns:
        checks: dict[Any, bool] = {
            InRange(name, minimum=moment, maximum=moment): True,
            InRange(name, minimum=moment + tick): False,
            InRange(name, maximum=moment - tick): False,
            IsIn(name, (moment, moment + tick, dt.datetime(9999, 12, 31))): True,
            IsIn(name, (moment + tick, dt.datetime(9999, 12, 31))): False,
            IsIn(name, (dt.datetime(9999, 12, 31, 0, 0, 0, 1),)): False,
            InRange(name, maximum=dt.datetime(1600, 1, 1)): False,
            InRange(name, minimum=dt.datetime(2300, 1, 1, tzinfo=UTC)): False,
            InRange(name, minimum=dt.date(1600, 1, 1), maximum=dt.date(2300, 1, 1)): True,
        }
        assert list(checks.values()) == [check.evaluate(audit).passed for check in checks], name


def test_bounds_beside_numbers_and_dates(tmp_path: Path) -> None:
    """Integers stay exact beside floats and beside integers of more than 64 bits, and dates are compared as dates."""
    audit = audit_of(
        tmp_path,
        {
            "int": pa.array([2**53, None]),
            "least": pa.array([-(2**63), None]),
            "most": pa.array([2**63 - 1, None]),
            "uint": pa.array([2**64 - 1, None], pa.uint64()),
            "decimal": pa.array([Decimal("0.1"), None], pa.decimal128(38, 34)),
            "far": pa.array([dt.date(2300, 1, 1), None]),
        },
    )
    checks: dict[Any, bool] = {
        IsIn("int", (2**53 + 1, 0.5)): False,
        IsIn("int", (2**53 + 1, -(2**63))): False,
        IsIn("int", (2**53 + 1, 2**64)): False,
        IsIn("int", (2**53, 0.5)): True,
        InRange("int", minimum=2**53 + 1, maximum=2.0**60): False,
        InRange("int", minimum=-(2.0**63), maximum=1e30): True,
        InRange("least", minimum=-(2**63), maximum=-(2**63)): True,
        InRange("least", minimum=-(2**63) + 1): False,
        IsIn("least", (-(2**63), 5)): True,
        InRange("most", minimum=2.0**63): False,
        InRange("uint", minimum=2**64): False,
        InRange("uint", minimum=2**64 - 1): True,
        IsIn("uint", (2**64 - 2, 0)): False,
        IsIn("decimal", (0.1,)): True,
        InRange("decimal", maximum=0.0999): False,
        InRange("far", minimum=dt.datetime(2026, 1, 1)): True,
        InRange("far", minimum=dt.datetime(2300, 1, 1, 12)): False,
    }
    assert list(checks.values()) == [check.evaluate(audit).passed for check in checks]
    assert InRange("most", minimum=2.0**63).evaluate(audit).counts["outside"] == 1


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_bounds_beside_floats(kind: pa.DataType, tmp_path: Path) -> None:
    """An integer is a bound of every float, and a bound beyond its finite values is not infinity."""
    width: Any = kind.to_pandas_dtype()
    audit = audit_of(tmp_path, {"two": pa.array(np.array([2], width)), "inf": pa.array(np.array([np.inf], width))})
    far = 10**400
    checks: dict[Any, bool] = {
        InRange("two", minimum=2, maximum=2): True,
        InRange("two", minimum=3): False,
        IsIn("two", (1, 2)): True,
        InRange("two", minimum=-far, maximum=far): True,
        InRange("two", minimum=far): False,
        InRange("two", maximum=-far): False,
        InRange("inf", maximum=far): False,
        InRange("inf", minimum=far): True,
        IsIn("inf", (far,)): False,
    }
    assert list(checks.values()) == [check.evaluate(audit).passed for check in checks]


@pytest.mark.parametrize("of", [lambda: InRange("x", minimum="5"), lambda: IsIn("x", ("10", "07"))])
def test_texts_beside_numbers_are_refused(tmp_path: Path, of: Callable[[], InRange | IsIn]) -> None:
    """Lance would take 7 for equal to '07'."""
    with pytest.raises(InvalidInputError):
        of().evaluate(audit_of(tmp_path, {"x": pa.array([10, 7])}))


def test_moments_of_numpy(tmp_path: Path) -> None:
    """They become datetimes: NumPy gives a moment in nanoseconds as a number."""
    moment: Any = np.datetime64("2024-06-01T00:00:00.5", "ns")
    assert dt.datetime(2024, 6, 1, 0, 0, 0, 500000) == InRange("x", minimum=moment).minimum
    values: Any = np.array(["2024-06-01T00:00:00.5"], "datetime64[ns]")
    audit = audit_of(tmp_path, {"x": pa.array([moment.item() // 10**6], pa.timestamp("ms"))})
    assert IsIn("x", values).evaluate(audit).passed
    assert not InRange("x", maximum=moment - np.timedelta64(1, "ms")).evaluate(audit).passed


@pytest.mark.parametrize(
    "given,message",
    [
        (np.datetime64(1, "ns"), "which a datetime of Python cannot hold; give a moment of whole microseconds"),
        (np.datetime64(10**13, "s"), "which a datetime of Python cannot hold"),
        (np.datetime64("NaT"), "give finite numbers, texts, dates or datetimes"),
        (np.timedelta64(1, "ns"), "give finite numbers, texts, dates or datetimes"),
    ],
    ids=["a nanosecond", "far", "no moment", "a duration"],
)
def test_moments_of_numpy_that_are_refused(given: "np.generic", message: str) -> None:
    """A moment is never cut, and a duration is no number."""
    with pytest.raises(InvalidInputError, match=message):
        InRange("x", minimum=given)  # type: ignore[arg-type]
