"""A replacement takes only rows for which its predicate is true."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field

from lance_dagster import InvalidInputError, LanceTable
from tests.table_factory import SCHEMA, contents, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """One row of each of two keys."""
    return new_table(tmp_path, pa.concat_tables([entries("mon", 1), entries("tue", 2)]))


GIVEN: dict[str, Callable[[LanceTable, pa.Table], Any]] = {
    "table": lambda _, rows: rows,
    "batch": lambda _, rows: rows.combine_chunks().to_batches()[0],
    "stream": lambda _, rows: rows.to_reader(max_chunksize=1),
    "staged": lambda table, rows: table.stage(rows),
}
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EACH = pytest.mark.parametrize("given", GIVEN)


@EACH
def test_rows_outside_of_the_predicate_are_refused(table: LanceTable, given: str) -> None:
    """The error counts them by value and says what would be right; the table stays as it is."""
    null = pa.table({"key": pa.array([None], pa.string()), "value": [6]})
    rows = pa.concat_tables([entries("mon", 3), entries("tue", 4, 5), null])
    with pytest.raises(InvalidInputError) as caught:
        table.replace_where("key = 'mon'", GIVEN[given](table, rows))
    assert str(caught.value) == (
        "3 of 4 rows do not satisfy the predicate \"key = 'mon'\" of the replacement: key = 'tue' (2 rows), "
        "key is null (1 row); nothing was committed; leave these rows out, or give a predicate that is true for them "
        "too; append adds any rows"
    )
    assert [("mon", 1), ("tue", 2)] == contents(table)


@EACH
def test_rows_that_satisfy_the_predicate_replace(table: LanceTable, given: str) -> None:
    """The rows may come in any shape."""
    table.replace_where("key = 'mon' AND value < 9", GIVEN[given](table, entries("mon", 3, 4)))
    assert [("mon", 3), ("mon", 4), ("tue", 2)] == contents(table)


@EACH
@pytest.mark.parametrize("predicate", ["true", "1 = 1", "value IS NOT NULL OR key IS NULL"])
def test_a_predicate_that_every_row_satisfies(table: LanceTable, given: str, predicate: str) -> None:
    """The predicate may name no column."""
    table.replace_where(predicate, GIVEN[given](table, entries("wed", 3, 4)))
    assert [("wed", 3), ("wed", 4)] == contents(table)


@EACH
def test_a_predicate_that_no_row_satisfies(table: LanceTable, given: str) -> None:
    """The predicate is false for any row; a replacement without rows is valid."""
    with pytest.raises(InvalidInputError):
        table.replace_where("false", GIVEN[given](table, entries("wed", 3, 4)))
    table.replace_where("false", entries("wed"))
    assert [("mon", 1), ("tue", 2)] == contents(table)


def test_the_last_rows_of_a_long_stream_are_checked(table: LanceTable) -> None:
    """Rows are checked in large parts, with the rest at the end of the stream."""
    batches = [*entries("mon", *range(100_000)).to_batches(max_chunksize=7_000), *entries("tue", 1).to_batches()]
    with pytest.raises(InvalidInputError, match="1 of 100,001 rows does not satisfy"):
        table.replace_where("key = 'mon'", pa.RecordBatchReader.from_batches(SCHEMA, batches))
    assert [("mon", 1), ("tue", 2)] == contents(table)


def test_rows_in_memory_are_checked_before_a_file_is_written(table: LanceTable) -> None:
    """A refused replacement leaves no data file behind."""
    before = sorted(path.name for path in (Path(table.uri) / "data").glob("*"))
    with pytest.raises(InvalidInputError, match="1 of 1 row does not satisfy"):
        table.replace_where("key = 'mon'", entries("tue", 3))
    assert before == sorted(path.name for path in (Path(table.uri) / "data").glob("*"))


@pytest.mark.parametrize(
    "column, predicate, fitting, other",
    [
        (pa.array([], pa.date32()), "c = date '2026-01-31'", dt.date(2026, 1, 31), dt.date(2026, 2, 1)),
        (pa.array([], pa.timestamp("us", "UTC")), "c < timestamp '2026-01-31 00:00:00+00:00'", NEW_YEAR, None),
        (pa.array([], pa.bool_()), "c", True, False),
        (pa.array([], pa.float32()), "c > 0.5", 1.0, 0.25),
        (pa.array([], pa.dictionary(pa.int8(), pa.string())), "c = 'x'", "x", "y"),
        (pa.array([], pa.struct([("d", pa.int8())])), "c.d = 1", {"d": 1}, {"d": 2}),
        (pa.array([], pa.list_(pa.int64())), "array_has(c, 1)", [1], [2]),
        (pa.array([], pa.large_string()), "c LIKE 'x%'", "xy", "yx"),
        (pa.array([], pa.decimal128(5, 2)), "c IS NOT NULL", 1, None),
    ],
)
def test_values_of_every_type_are_checked(
    tmp_path: Path, column: "pa.Array[Any]", predicate: str, fitting: object, other: object
) -> None:
    """The query engine that finds the rows of the table checks new rows too, in the column's type."""
    schema = pa.schema([pa.field("c", column.type), pa.field("Not in it", pa.int64())])
    table = LanceTable.create(tmp_path / "table", schema)
    rows = pa.Table.from_pylist([{"c": value, "Not in it": 1} for value in (fitting, other)], schema=schema)
    with pytest.raises(InvalidInputError):
        table.replace_where(predicate, rows)
    with pytest.raises(InvalidInputError):
        table.replace_where(predicate, table.stage(rows))
    table.replace_where(predicate, rows.slice(0, 1))
    assert 1 == table.count_rows() == table.count_rows(filter=predicate)


def test_a_column_whose_name_is_quoted_is_checked(tmp_path: Path) -> None:
    """The columns of a predicate are found without a parser."""
    columns: dict[str, pa.DataType] = {"the day": pa.string(), "n": pa.int64()}
    schema = pa.schema(columns)
    table = LanceTable.create(tmp_path / "table", schema)
    with pytest.raises(InvalidInputError, match="the day = 'tue'"):
        table.replace_where("`the day` = 'mon'", pa.table({"the day": ["tue"], "n": [1]}))


def test_a_column_with_the_name_of_counts_is_shown(tmp_path: Path) -> None:
    """Arrow gives the number of rows of a group the same name."""
    rows = pa.table({"count_all": [1, 2]})
    table = LanceTable.create(tmp_path / "table", rows.schema)
    with pytest.raises(InvalidInputError, match=r"count_all = 2 \(1 row\)"):
        table.replace_where("count_all = 1", rows)


def test_a_value_that_python_has_no_object_for_is_shown(tmp_path: Path) -> None:
    """The moment is in the year 20237."""
    schema = pa.schema({"at": pa.timestamp("us")})
    table = LanceTable.create(tmp_path / "table", schema)
    with pytest.raises(InvalidInputError, match=r"at = '20237-04-25 10:45:03.423488'"):
        table.replace_where("at < timestamp '2026-01-31 00:00:00'", pa.table({"at": [2**59]}).cast(schema))


@pytest.mark.parametrize("virtual", ["_rowid", "_rowaddr", "`_rowid`", "_ROWID"])
def test_a_predicate_about_row_ids_takes_no_rows(table: LanceTable, virtual: str) -> None:
    """New rows get their ids in the commit, so the predicate cannot be evaluated before."""
    with pytest.raises(InvalidInputError, match=f"names {virtual.strip('`').lower()}, which new rows do not have"):
        table.replace_where(f"{virtual} = 0", entries("mon", 3))
    table.replace_where(f"{virtual} = 0", entries("mon"))
    assert [("tue", 2)] == contents(table)


@pytest.mark.parametrize("predicate", ["key = 'a _rowid'", "`key` = 'a _rowid' /* _rowid */"])
def test_a_value_can_be_the_name_of_a_virtual_column(table: LanceTable, predicate: str) -> None:
    """Text in quotes and in comments names no column."""
    table.replace_where(predicate, entries("a _rowid", 3))
    assert [("a _rowid", 3), ("mon", 1), ("tue", 2)] == contents(table)


def test_a_part_of_a_name_is_no_virtual_column(tmp_path: Path) -> None:
    """A column is told from a virtual one by its whole name."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"my_rowid": pa.int64()}))
    table.replace_where("my_rowid = 1", pa.table({"my_rowid": [1]}))
    assert 1 == table.count_rows()


def test_staged_files_under_a_base_path_are_checked(table: LanceTable, tmp_path: Path) -> None:
    """The files are read under the base path."""
    table.maintenance.add_base("cold", tmp_path / "cold", is_dataset_root=True)
    with pytest.raises(InvalidInputError):
        table.replace_where("key = 'mon'", table.stage(entries("tue", 3), base="cold"))
    table.replace_where("key = 'mon'", table.stage(entries("mon", 3), base="cold"))
    assert [("mon", 3), ("tue", 2)] == contents(table)


def test_rows_stay_single_over_two_merges(tmp_path: Path) -> None:
    """Without the check, rows of Tuesday that replaced Monday's rows survived the next merge of Monday's rows."""
    table = new_table(tmp_path, entries("mon", 1))
    for branch in ("one", "two"):
        table.branches.create(branch)
        with pytest.raises(InvalidInputError):
            table.replace_where("key = 'mon'", entries("tue", 2), branch=branch)
        table.replace_where("key = 'mon'", entries("mon", 2), branch=branch)
    table.merge("one")
    table.merge("two", strategy="source-wins")
    assert (
        [("mon", 2)]
        == contents(table)
        == [("mon", row) for row in lance.dataset(table.uri).to_table()["value"].to_pylist()]
    )


@pytest.mark.parametrize("given", ["table", "staged"])
def test_a_predicate_reads_no_column_whose_name_is_part_of_another(tmp_path: Path, given: str) -> None:
    """`image` holds blobs, which are read only where a predicate is about them."""
    schema = pa.schema([pa.field("image_id", pa.int64()), blob_field("image")])
    table = LanceTable.create(tmp_path / "images", schema)
    table.append(pa.table({"image_id": [1], "image": blob_array([b"x"])}, schema=schema))
    rows = pa.table({"image_id": [1], "image": blob_array([b"y"])}, schema=schema)
    result = table.replace_where("image_id = 1 AND 'image' <> ''", GIVEN[given](table, rows))
    assert (1, 1) == (result.rows_added, result.rows_deleted)
    table.replace_where("image IS NOT NULL", GIVEN[given](table, rows))
    both = "image_id = 1 AND image IS NOT NULL"
    if given == "staged":
        with pytest.raises(InvalidInputError):
            table.replace_where(both, GIVEN[given](table, rows))
    else:
        assert 1 == table.replace_where(both, rows).rows_added
