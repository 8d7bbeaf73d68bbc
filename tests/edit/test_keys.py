"""Matching of rows by key."""

import datetime as dt
import decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from lance_dagster import LanceTable
from lance_dagster.edit.key_predicates import exact_predicate_of, predicate_of
from lance_dagster.edit.staged_upsert import claimed_values
from lance_dagster.edit.upsert import Keys
from lance_dagster.errors import InvalidInputError

NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int64(), [5, -3, 2**62]),
    "small numbers": (pa.uint8(), [5, 0, 255]),
    "fractions": (pa.float64(), [0.5, NAN, float("inf"), 0.0]),
    "text": (pa.string(), ["b", "", "ä"]),
    "long text": (pa.large_string(), ["b", "", "ä"]),
    "bytes": (pa.binary(), [b"b", b"", b"\x00"]),
    "few bytes": (pa.binary(2), [b"bb", b"\x00\x01"]),
    "truth": (pa.bool_(), [True, False]),
    "days": (pa.date32(), [dt.date(2026, 1, 31), dt.date(1969, 1, 1)]),
    "moments": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 31, tzinfo=dt.UTC)]),
    "decimals": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-7.25")]),
    "words": (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "c"]),
    "durations": (pa.duration("s"), [dt.timedelta(seconds=5)]),
    # Python has no objects for these.
    "moments of the year 20237": (pa.timestamp("us"), [2**59, 2**59 + 1, 0]),
    "days before year 1": (pa.date32(), [-(10**7), 5]),
    "long durations": (pa.duration("s"), [2**55, 5]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_keys_of_every_kind_are_found(kind: str) -> None:
    """Keys are found in any order, repeatedly, and among other keys and nulls."""
    arrow, values = VALUES[kind]
    keys = Keys(pa.table({"k": pa.array([*values, None], arrow)}), ["k"])
    asked = pa.table({"k": pa.array([None, *reversed(values), *values], arrow)})
    places = list(range(len(values)))
    assert [-1, *reversed(places), *places] == keys.places(asked).tolist()


def test_a_null_is_equal_to_nothing() -> None:
    """This holds for each column of a key and for several nulls; an empty set of keys matches nothing."""
    rows = pa.table({"a": pa.array([None, None, 1, None], pa.int64()), "b": ["x", "x", "y", None]})
    assert [-1, -1, 2, -1] == Keys(rows, ["a", "b"]).places(rows).tolist()
    assert [-1, -1] == Keys(rows.slice(0, 2), ["a"]).places(rows.slice(2, 2)).tolist()
    assert [] == Keys(rows.slice(0, 0), ["a", "b"]).places(rows.slice(0, 0)).tolist()


def test_nought_is_not_minus_nought() -> None:
    """Values are compared as they are stored, as in pylance."""
    assert [-1] == Keys(pa.table({"k": [0.0]}), ["k"]).places(pa.table({"k": [-0.0]})).tolist()


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_each_nan_is_the_same_key(tmp_path: Path, kind: type[np.floating[Any]]) -> None:
    """The sign and the payload of a NaN make no other key: 0/0 has the sign bit, which `float("nan")` lacks."""
    bits = {np.float64: (0xFFF8000000000000, 0x7FF8000000000001), np.float32: (0xFFC00000, 0x7FC00001)}[kind]
    whole = np.uint64 if kind is np.float64 else np.uint32
    negative, other = (pa.array(np.array([one, 0], whole).view(kind)) for one in bits)
    rows = pa.table({"k": pa.array([NAN, 1.0], negative.type), "v": [1, 2]})
    table = LanceTable.create(f"{tmp_path}/t", rows.schema)
    table.append(rows)
    assert 1 == table.upsert(pa.table({"k": negative.slice(0, 1), "v": [3]}), on=["k"]).rows_updated
    table.columns.add(pa.table({"k": other, "w": [5, 6]}), on=["k"])
    assert [(2, None), (3, 5)] == sorted((row["v"], row["w"]) for row in table.read().to_pylist())
    with pytest.raises(InvalidInputError):
        table.upsert(pa.table({"k": pa.concat_arrays([negative, other]), "v": [1, 2, 3, 4]}).take([0, 2]), on=["k"])
    with pytest.raises(InvalidInputError):
        table.columns.add(pa.table({"k": pa.concat_arrays([negative, other]).take([0, 2]), "x": [1, 2]}), on=["k"])


COLUMNS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc"), st.none() | st.booleans()), max_size=40)


@given(COLUMNS, COLUMNS)
def test_keys_of_several_columns_are_found(given: list[Any], asked: list[Any]) -> None:
    """The result equals a comparison of each pair."""
    given = list(dict.fromkeys(given))
    rows, others = (
        pa.table(
            {
                "a": pa.array([row[0] for row in some], pa.int32()),
                "b": pa.array([row[1] for row in some], pa.string()),
                "c": pa.array([row[2] for row in some], pa.bool_()),
            }
        )
        for some in (given, asked)
    )
    wanted = [given.index(row) if row in given and row[2] is not None else -1 for row in asked]
    assert wanted == Keys(rows, ["a", "b", "c"]).places(others).tolist()


def test_rows_in_many_chunks_are_one() -> None:
    """The result does not depend on the chunks of the rows."""
    parts = [pa.table({"k": [number, number + 100]}) for number in range(5)]
    rows = pa.concat_tables(parts)
    assert list(range(10)) == Keys(rows, ["k"]).places(rows).tolist()


def test_a_key_that_comes_twice_is_named() -> None:
    """The error has the values of the key."""
    rows = pa.table({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "y"]})
    with pytest.raises(InvalidInputError, match="a = 1, b = 'y'"):
        Keys(rows, ["a", "b"])
    far = pa.table({"at": pa.array([2**59, 2**59], pa.timestamp("us"))})
    with pytest.raises(InvalidInputError, match=r"at = '20237-04-25 10:45:03\.423488'"):
        Keys(far, ["at"])


def test_millions_of_keys_are_numbered() -> None:
    """The combined numbers of several columns do not overflow."""
    size = 300_000
    order = np.random.default_rng(5).permutation(size)
    there, back = pa.array(order.tolist()), pa.array(order[::-1].tolist())
    rows = pa.table({"a": there, "b": back, "c": there})
    asked = pa.table({"a": back, "b": there, "c": back})
    assert np.array_equal(np.arange(size)[::-1], Keys(rows, ["a", "b", "c"]).places(asked))


@pytest.mark.parametrize(
    "rows,predicate",
    [
        ({"k": [1, 5, 1]}, "`k` IN (1, 5)"),
        ({"k": ["it's", "a"]}, "`k` IN ('it''s', 'a')"),
        ({"k": [True]}, "`k` IN (true)"),
        ({"k": list(range(200))}, "`k` >= 0 AND `k` <= 199"),
        ({"k": [f"{number:03}" for number in range(200)]}, "`k` >= '000' AND `k` <= '199'"),
        ({"k": [1, 2], "l": ["x", "x"]}, "`k` IN (1, 2) AND `l` IN ('x')"),
        ({"k": [1.5], "l": ["x"]}, "`l` IN ('x')"),
        ({"k": [dt.date(2026, 1, 31)]}, None),
        ({"k": [dt.date.fromordinal(number) for number in range(1, 300)]}, None),
        ({"k": [dt.timedelta(number) for number in range(300)]}, None),
    ],
)
def test_a_condition_holds_for_all_keys(rows: dict[str, list[Any]], predicate: str | None) -> None:
    """The predicate is true for all keys and few other rows; omitting values without a plain literal widens it."""
    assert predicate == predicate_of(pa.table(rows), list(rows))


@pytest.mark.parametrize(
    "rows,predicate",
    [
        ({"k": list(range(1000))}, f"`k` IN ({', '.join(map(str, range(1000)))})"),
        ({"k": list(range(1001))}, None),
        ({"k": list(range(1001)), "l": ["x"] * 1001}, "`l` IN ('x')"),
        ({"k": [1.5, 2.5], "l": [3, None]}, "`l` IN (3)"),
        ({"k": ["a\nb"]}, None),
        ({"k": [None, None]}, None),
    ],
)
def test_few_keys_are_looked_up_one_by_one(rows: dict[str, list[Any]], predicate: str | None) -> None:
    """The predicate is on one column with few values; nulls are left out, since they match nothing."""
    assert predicate == exact_predicate_of(pa.table(rows), list(rows))


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.duration("s")], ids=str)
def test_a_few_values_give_the_claim_of_all(kind: pa.DataType) -> None:
    """Executors send only these: the limits of values that a predicate can name, and any values of other types."""
    values = pa.array(range(2**59, 2**59 + 300), kind)
    few = claimed_values(values)
    assert len(few) < len(values)
    assert predicate_of(pa.table({"k": values}), ["k"]) == predicate_of(pa.table({"k": few}), ["k"])


def test_numbers_beyond_a_literal_are_not_written_down() -> None:
    """As literals, these numbers would be read as another type."""
    assert exact_predicate_of(pa.table({"k": pa.array([2**63], pa.uint64())}), ["k"]) is None
    assert exact_predicate_of(pa.table({"k": [-(2**63)]}), ["k"]) is None
    assert predicate_of(pa.table({"k": pa.array([2**64 - 1], pa.uint64())}), ["k"]) is None


@pytest.mark.parametrize("kind", VALUES)
def test_rows_of_every_kind_of_key_are_found_in_a_table(tmp_path: Path, kind: str) -> None:
    """An upsert updates existing keys, whether it finds them by a predicate or by reading all rows."""
    arrow, values = VALUES[kind]
    table = LanceTable.create(tmp_path / "keyed", pa.schema({"k": arrow, "n": pa.int64()}))
    rules: tuple[Literal["keep", "delete"], ...] = ("keep", "keep", "delete")
    for number, when in enumerate(rules):
        rows = pa.table({"k": pa.array(values, arrow), "n": [number] * len(values)})
        table.upsert(rows, on=["k"], when_missing=when)
        assert [number] * len(values) == table.read()["n"].to_pylist()
