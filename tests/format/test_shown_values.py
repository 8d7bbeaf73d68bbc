"""Values that Python has objects for are shown as these, and all others as text."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from lance_dagster.format.shown_values import shown_rows, shown_value, shown_values

FAR: Any = pa.array([2**59, 0, None], pa.timestamp("us"))
"""A moment in the year 20237, the first one of 1970, and a null."""
SHOWN = ["20237-04-25 10:45:03.423488", dt.datetime(1970, 1, 1), None]  # noqa: DTZ001  # the column has no time zone


@pytest.mark.parametrize(
    "kind,value,shown",
    [
        (pa.timestamp("us"), 2**59, "20237-04-25 10:45:03.423488"),
        (pa.timestamp("s"), 2**40, "<value out of range: 1099511627776>"),
        (pa.timestamp("ms", "Europe/Berlin"), 2**49, "19809-03-05 11:03:41.312Z"),
        (pa.timestamp("s", "Nowhere/Here"), 0, "1970-01-01 00:00:00Z"),
        (pa.date32(), -(10**7), "-25410-12-06"),
        (pa.date32(), 2**31 - 1, "<value out of range: 2147483647>"),
        (pa.duration("s"), 2**55, "36028797018963968 s"),
        (pa.time64("ns"), 1, "00:00:00.000000001"),
    ],
)
def test_a_value_without_an_object_is_text(kind: pa.DataType, value: int, shown: str) -> None:
    """Such are dates that Python has no years for, long durations, and instants in a time zone that is not known."""
    assert shown == shown_value(pa.scalar(value, kind))


def test_times_of_day_that_differ_in_nanoseconds_differ() -> None:
    """Python's time of day ends with microseconds; others are text, at any depth."""
    times = pa.array([1000, 1001, None], pa.time64("ns"))
    expected = [dt.time(microsecond=1), "00:00:00.000001001", None]
    assert expected == shown_values(times)
    rows = pa.table({"at": times, "in": pa.StructArray.from_arrays([times], ["at"])})
    assert [{"at": value, "in": {"at": value}} for value in expected] == shown_rows(rows)


@pytest.mark.parametrize(
    "values,shown",
    [
        (FAR, SHOWN),
        (pa.chunked_array([FAR, FAR]), SHOWN * 2),
        (pa.StructArray.from_arrays([FAR, pa.array([1, 2, 3])], ["a", "b"])[:1], [{"a": SHOWN[0], "b": 1}]),
        (pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), FAR), [SHOWN[:2], [None]]),
        (pa.FixedSizeListArray.from_arrays(FAR, 3), [SHOWN]),
        (pa.MapArray.from_arrays(pa.array([0, 1]), pa.array(["a", "b", "c"]), FAR), [[("a", SHOWN[0])]]),
        (pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), FAR), [SHOWN[0], None, SHOWN[1]]),
    ],
    ids=["plain", "chunks", "struct", "list", "fixed list", "map", "dictionary"],
)
def test_other_values_stay_objects(values: Any, shown: list[Any]) -> None:  # noqa: ANN401  # an array or several
    """One value without an object changes none of its neighbours, in nested values either."""
    assert shown == shown_values(values)


def test_rows_have_all_columns() -> None:
    """Rows with such a value have the same shape as others; no rows are an empty list."""
    rows = pa.table({"at": FAR, "n": [1, 2, 3]})
    assert [{"at": at, "n": n} for at, n in zip(SHOWN, [1, 2, 3], strict=True)] == shown_rows(rows)
    assert rows.slice(1).to_pylist() == shown_rows(rows.slice(1))
    assert [] == shown_rows(rows.slice(3))
