"""Names of columns that differ in upper and lower case only mean what the setting `spark.sql.caseSensitive` says."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_dagster import (
    InvalidInputError,
    LanceDataSource,
    SchemaMismatchError,
    delete_keys,
    read_table,
    stage,
    upsert_batches,
    upsert_frame,
    write_table,
)
from lance_dagster.table import LanceTable
from tests.spark.samples import schema_of

FORMAT, SETTING = LanceDataSource.name(), "spark.sql.caseSensitive"
Write = Callable[[DataFrame, LanceTable], object]
BEFORE = [(1, "a")]
WRITES: dict[str, tuple[Write, list[tuple[int, str]]]] = {
    "stage": (lambda frame, table: table.append(stage(frame, table)), [*BEFORE, (1, "b")]),
    "write_table": (lambda frame, table: write_table(frame, table.uri, mode="append"), [*BEFORE, (1, "b")]),
    "replace": (
        lambda frame, table: write_table(frame, table.uri, mode="overwrite", replace_where="id = 1"),
        [(1, "b")],
    ),
    "overwrite": (lambda frame, table: write_table(frame, table.uri, mode="overwrite"), [(1, "b")]),
    "save": (lambda frame, table: frame.write.format(FORMAT).mode("append").save(table.uri), [*BEFORE, (1, "b")]),
    "upsert": (lambda frame, table: upsert_frame(frame, table, ["ID"]), [(1, "b")]),
    "batch": (lambda frame, table: upsert_batches(table, ["Id"], stream="s")(frame, 0), [(1, "b")]),
    "delete": (lambda frame, table: delete_keys(frame, table, ["ID"]), []),
}


@pytest.fixture
def table(tmp_table_uri: str) -> LanceTable:
    """A table with one row."""
    made = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), name=pa.string()))
    made.append(pa.table({"id": [1], "name": ["a"]}))
    return made


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """A row in other columns' names."""
    return spark.createDataFrame([("b", 1)], "NAME string, ID long")


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    """The setting by which `id` and `ID` are two names."""
    spark.conf.set(SETTING, "true")
    yield
    spark.conf.unset(SETTING)


def found(table: LanceTable) -> list[tuple[object, ...]]:
    """The rows, in columns of the names that the table had."""
    rows = table.read()
    assert rows.schema.names in (["id", "name"], ["name", "id"])
    return sorted(tuple(row[name] for name in ("id", "name")) for row in rows.to_pylist())


@pytest.mark.parametrize("write", WRITES)
def test_names_are_those_of_the_table(frame: DataFrame, table: LanceTable, write: str) -> None:
    """Each way to write finds the columns, as Spark's own sources do, and the table keeps its spelling."""
    call, expected = WRITES[write]
    call(frame, table)
    assert expected == found(table)


@pytest.mark.usefixtures("case_sensitive")
@pytest.mark.parametrize("write", [name for name in WRITES if name != "overwrite"])
def test_names_are_exact_where_the_session_says_so(frame: DataFrame, table: LanceTable, write: str) -> None:
    """Nothing is written."""
    with pytest.raises((InvalidInputError, SchemaMismatchError, PySparkException), match=r"'(ID|Id|NAME)'"):
        WRITES[write][0](frame, table)
    assert BEFORE == found(table)


def test_columns_that_are_read(spark: SparkSession, table: LanceTable) -> None:
    """They are named in any case; a schema that is given has its own names."""
    assert ["name"] == read_table(spark, table, columns=["Name"]).columns
    read = spark.read.format(FORMAT)
    assert ["name"] == read.option("columns", "NAME").load(table.uri).columns
    (row,) = read.schema("NAME string, Id long").load(table.uri).collect()
    assert {"NAME": "a", "Id": 1} == row.asDict()


@pytest.mark.usefixtures("case_sensitive")
def test_columns_that_are_read_by_exact_names(spark: SparkSession, table: LanceTable) -> None:
    """The error names the columns that there are."""
    with pytest.raises(InvalidInputError, match="it has id, name"):
        read_table(spark, table, columns=["Name"])
