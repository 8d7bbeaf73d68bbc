import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_dagster import (
    SaveMode,
    compact_table,
    delete_keys,
    read_changes,
    read_table,
    stage,
    table_view,
    upsert_frame,
    write_table,
)
from lance_dagster.errors import AlreadyExistsError, InvalidInputError, RefNotFoundError
from lance_dagster.history.table_uri import table_uri
from lance_dagster.table import LanceTable
from lance_dagster.transactions.claims import decode_claims
from tests.spark.samples import schema_of


def ids(uri: str, ref: str = "main") -> list[object]:
    """The ids in the table."""
    return LanceTable.open(uri).read(ref).sort_by("id")["id"].to_pylist()


def test_save_modes_mean_what_they_mean_in_spark(spark: SparkSession, tmp_table_uri: str) -> None:
    """The default mode creates a table, and refuses an existing one; each save is one version after the creation."""
    first = write_table(spark.range(3), tmp_table_uri)
    with pytest.raises(AlreadyExistsError):
        write_table(spark.range(9), tmp_table_uri)
    assert str(first) == str(write_table(spark.range(9), tmp_table_uri, mode="ignore"))
    assert [0, 1, 2] == ids(tmp_table_uri)
    write_table(spark.range(3, 5), tmp_table_uri, mode="append")
    assert [0, 1, 2, 3, 4] == ids(tmp_table_uri)
    last = write_table(spark.sql("SELECT 7L AS id, 'a' AS name"), tmp_table_uri, mode="overwrite")
    assert [{"id": 7, "name": "a"}] == LanceTable.open(tmp_table_uri).read().to_pylist()
    assert [1, 2, 3, 4] == [1, *LanceTable.open(tmp_table_uri).branches.version_numbers(after=1)]
    assert 4 == last.number


def test_a_save_that_is_ignored_computes_nothing(spark: SparkSession, tmp_table_uri: str) -> None:
    """The frame would fail if it were computed."""
    write_table(spark.range(1), tmp_table_uri)
    write_table(spark.range(1).selectExpr("cast(1 / id AS long) AS id"), tmp_table_uri, mode="ignore")
    assert [0] == ids(tmp_table_uri)


def test_a_part_is_replaced(spark: SparkSession, tmp_table_uri: str) -> None:
    """Rows that do not satisfy the predicate are refused, and nothing is committed."""
    write_table(spark.range(6), tmp_table_uri)
    write_table(spark.range(4, 5), tmp_table_uri, mode="overwrite", replace_where="id >= 3")
    assert [0, 1, 2, 4] == ids(tmp_table_uri)
    with pytest.raises(InvalidInputError, match="id >= 3"):
        write_table(spark.range(2), tmp_table_uri, mode="overwrite", replace_where="id >= 3")
    assert [0, 1, 2, 4] == ids(tmp_table_uri)
    saved = spark.range(8, 9).write.format("lance_dagster").option("replace_where", "id >= 2")
    saved.mode("overwrite").save(tmp_table_uri)
    assert [0, 1, 8] == ids(tmp_table_uri)


def test_the_executors_check_the_rows_of_a_replacement(spark: SparkSession, tmp_table_uri: str) -> None:
    """The commit trusts them and does not read the files again; rows outside are counted in all partitions."""
    write_table(spark.range(6), tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    staged = stage(spark.range(4, 7), table, where="id >= 3")
    assert "id >= 3" == staged.satisfies
    with pytest.raises(InvalidInputError, match="such as one with id"):
        stage(spark.range(0, 9, 1, 4), table, where="id >= 5")
    with pytest.raises(InvalidInputError):
        stage(spark.range(1).selectExpr("cast(1 / id AS long) AS id"), table, where="price > 1")
    with pytest.raises(InvalidInputError, match="such as one with id is null"):
        stage(spark.sql("SELECT explode(array(5L, null)) AS id"), table, where="id >= 5")


def test_a_predicate_of_the_data_source_is_checked_while_it_is_written(spark: SparkSession, tmp_table_uri: str) -> None:
    """The tasks check their rows, and the commit refuses what they found."""
    write_table(spark.range(6), tmp_table_uri)
    saved = spark.range(0, 9, 1, 3).write.format("lance_dagster").option("replace_where", "id >= 5").mode("overwrite")
    with pytest.raises(PySparkException, match="such as one"):
        saved.save(tmp_table_uri)
    assert [0, 1, 2, 3, 4, 5] == ids(tmp_table_uri)


def test_partition_keys_are_claimed(spark: SparkSession, tmp_table_uri: str) -> None:
    """A merge compares the keys, so two replacements of one partition on two branches conflict, in either way."""
    frame = spark.range(6).selectExpr("id", "id % 2 AS day")
    write_table(frame, tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    part = frame.where("day = 1")
    for branch in ("a", "b", "c"):
        table.branches.create(branch)
    where = "day = 1"
    write_table(part, tmp_table_uri, "overwrite", "a", replace_where=where, partitions=["1"])
    write_table(part.where("id > 1"), tmp_table_uri, "append", "c", partitions=["1,0"])
    saved = part.write.format("lance_dagster").options(branch="b", replace_where=where, partitions='["1"]')
    saved.mode("overwrite").save(tmp_table_uri)
    claims = [decode_claims(table.head(branch).properties)[0] for branch in ("a", "b", "c")]
    assert [("1",), ("1",), ("1,0",)] == [claim.partitions for claim in claims]
    with pytest.raises(InvalidInputError):
        write_table(part, tmp_table_uri, "append", partitions="1")


def test_a_branch_and_vectors(spark: SparkSession, tmp_table_uri: str) -> None:
    """Vectors of a new table have a fixed length; `main` does not get the rows of the branch."""
    frame = spark.sql("SELECT 1L AS id, array(cast(1 AS float), cast(2 AS float)) AS v")
    write_table(frame, tmp_table_uri, vectors={"v": 2})
    table = LanceTable.open(tmp_table_uri)
    assert pa.list_(pa.float32(), 2) == table.schema().field("v").type
    table.branches.create("run/1")
    write_table(frame, tmp_table_uri, mode="append", branch="run/1", coalesce="auto")
    assert [1] == ids(tmp_table_uri)
    assert [1, 1] == ids(tmp_table_uri, "run/1")


def test_modes_are_spelled_as_in_spark(spark: SparkSession, tmp_table_uri: str) -> None:
    """Spark takes any capitals, and `error`."""
    write_table(spark.range(1), tmp_table_uri, mode="error")
    write_table(spark.range(1, 2), tmp_table_uri, mode="Append")  # type: ignore[arg-type]
    assert [0, 1] == ids(tmp_table_uri)
    with pytest.raises(AlreadyExistsError):
        write_table(spark.range(1), tmp_table_uri, mode="ErrorIfExists")  # type: ignore[arg-type]


def test_a_first_save_that_fails_leaves_no_table(spark: SparkSession, tmp_table_uri: str) -> None:
    """The same call succeeds once the cause is gone."""
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        write_table(spark.range(1).selectExpr("cast(1 / id AS long) AS id"), tmp_table_uri)
    with pytest.raises(RefNotFoundError, match="there is no table yet"):
        write_table(spark.range(1), tmp_table_uri, branch="run/1")
    assert not LanceTable.exists(tmp_table_uri)
    assert 2 == write_table(spark.range(3), tmp_table_uri).number
    assert [0, 1, 2] == ids(tmp_table_uri)


@pytest.mark.parametrize("mode,rows", [("append", [0, 1, 9]), ("overwrite", [0, 1]), ("ignore", [9]), ("error", [9])])
def test_another_writer_creates_the_table_meanwhile(
    spark: SparkSession, tmp_table_uri: str, mode: SaveMode, rows: list[int]
) -> None:
    """The other writer is first: its rows are kept, replaced, or are the reason that nothing is saved."""

    def create(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = LanceTable.create(tmp_table_uri, pa.schema([pa.field("id", pa.int64())]))
        table.append(pa.table({"id": [9]}))
        yield from batches

    frame = spark.range(0, 2, 1, 1).mapInArrow(create, "id long")
    with pytest.raises(AlreadyExistsError) if mode == "error" else contextlib.nullcontext():
        write_table(frame, tmp_table_uri, mode)
    assert rows == ids(tmp_table_uri)


@pytest.mark.parametrize(
    "options,said",
    [
        ({"mode": "apend"}, "unknown save mode 'apend'; did you mean 'append'"),
        ({"vector": {}}, "unknown option of write_table 'vector'; did you mean 'vectors'"),
        ({"replace_where": "id = 1"}, "replace_where needs mode='overwrite', not 'errorifexists'"),
        ({"partitionBy": "day"}, "no partitions in Spark's sense: leave partitionBy out"),
        ({"partitions": 3, "mode": "append"}, "partitions"),
        ({"coalesce": 0}, "coalesce is a number of partitions, 'auto' or None, not 0"),
    ],
)
def test_a_save_that_makes_no_sense_is_refused(
    spark: SparkSession, tmp_table_uri: str, options: dict[str, object], said: str
) -> None:
    """The error has the nearest name."""
    with pytest.raises(InvalidInputError):
        write_table(spark.range(1), table_uri(tmp_table_uri, "main"))
    with pytest.raises(InvalidInputError, match=said):
        write_table(spark.range(1), tmp_table_uri, **options)  # type: ignore[arg-type]
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()), exist_ok=True)
    assert 0 == table.count_rows()


def test_a_frame_without_columns_is_refused(spark: SparkSession, tmp_table_uri: str) -> None:
    """The number of its rows could not be kept."""
    none = spark.range(3).select()
    with pytest.raises(InvalidInputError):
        write_table(none, tmp_table_uri)
    with pytest.raises(PySparkException, match="the frame has no columns"):
        none.write.format("lance_dagster").mode("append").save(tmp_table_uri)
    assert not LanceTable.exists(tmp_table_uri)


def test_what_is_no_frame_session_or_table_is_refused(spark: SparkSession, tmp_table_uri: str) -> None:
    """By the name of the argument, with an example."""
    table = LanceTable.create(tmp_table_uri, pa.schema([("id", pa.int64())]))
    frame = spark.range(1)
    rows: Any = pa.table({"id": [1]})
    wrong: Any = table
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: write_table(rows, tmp_table_uri), "df has to be a DataFrame"),
        (lambda: stage(rows, table), "df has to be a DataFrame"),
        (lambda: stage(frame, rows), "table has to be a LanceTable"),
        (lambda: upsert_frame(rows, table, ["id"]), "df has to be a DataFrame"),
        (lambda: delete_keys(rows, table, ["id"]), "df has to be a DataFrame"),
        (lambda: read_table(spark, rows), "table has to be a LanceTable"),
        (lambda: read_table(wrong, table), "spark has to be a SparkSession"),
        (lambda: read_changes(wrong, table, "main"), "spark has to be a SparkSession"),
        (lambda: compact_table(wrong, table), "spark has to be a SparkSession"),
        (lambda: table_view(spark, table, "main", "a b"), "'a b' cannot name a view"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidInputError, match=said):
            call()


def test_a_replacement_by_a_predicate_takes_lists_of_extension_types(spark: SparkSession, tmp_table_uri: str) -> None:
    """There is no empty array of such a type in pyarrow."""
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.uuid()))])
    table = LanceTable.create(tmp_table_uri, schema)
    frame = spark.sql("SELECT 1L AS id, array(cast('0123456789abcdef' AS BINARY)) AS tags")
    write_table(frame, tmp_table_uri, "overwrite", replace_where="id = 1")
    assert 1 == table.count_rows()
