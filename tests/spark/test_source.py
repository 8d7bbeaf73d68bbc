import contextlib
import io
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from lance_dagster import InvalidInputError, LanceRepository, read_table, stage
from lance_dagster.history.table_uri import table_uri
from lance_dagster.spark.writer import WRITE_PROPERTY, FileColumns, LanceWriter
from lance_dagster.table import LanceTable
from tests.conftest import S3Storage
from tests.spark.samples import rows, schema_of

pytestmark = pytest.mark.slow

FORMAT = "lance_dagster"


def test_overwrite_replaces_rows_and_columns(spark: SparkSession, tmp_table_uri: str) -> None:
    """The previous version can still be read."""
    spark.range(5).write.format(FORMAT).mode("append").save(tmp_table_uri)
    spark.sql("SELECT 'a' AS name").write.format(FORMAT).mode("overwrite").save(tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    assert [{"name": "a"}] == table.read().to_pylist()
    assert 5 == spark.read.format(FORMAT).option("ref", "main@2").load(tmp_table_uri).count()


def test_a_table_of_a_repository_is_read_at_a_commit(spark: SparkSession, tmp_path: Path) -> None:
    """The URI of a version and the view of all tables give the commit; the option `ref` is refused beside them."""
    lake = LanceRepository.create(tmp_path)
    orders = lake.create_table("shop/orders", pa.schema([("id", pa.int64())]))
    for number, channel in ((1, "production"), (2, None)):
        lake.fork("shop/orders", "run/1").append(pa.table({"id": [number]}), branch="run/1")
        lake.publish("run/1", channel=channel)
    uri = lake.uri("shop/orders", "production")
    assert 1 == spark.read.format(FORMAT).load(uri).count()
    assert 2 == spark.read.format(FORMAT).load(table_uri(orders.uri, "main")).count()
    assert [1] == [row.id for row in read_table(spark, lake.at("production")["shop/orders"]).collect()]
    with pytest.raises(AnalysisException, match="names its ref"):
        spark.read.format(FORMAT).option("ref", "main").load(uri)
    with pytest.raises(InvalidInputError):
        read_table(spark, lake.at("production")["shop/orders"], "main@1")


def test_a_save_is_one_version_with_its_own_uuid(spark: SparkSession, tmp_table_uri: str) -> None:
    """Two saves of the same rows are two versions with different values of a property."""
    for _ in range(2):
        spark.range(10).repartition(3).write.format(FORMAT).mode("append").save(tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    versions = [table.at(f"main@{number}") for number in table.branches.version_numbers(after=1)]
    assert 2 == len({version.properties[WRITE_PROPERTY] for version in versions})
    assert 20 == table.count_rows()


def test_read_table_takes_a_version(spark: SparkSession, tmp_table_uri: str) -> None:
    """A version is taken like a ref expression; the frame does not follow the branch."""
    spark.range(5).write.format(FORMAT).mode("append").save(tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    version = table.head()
    spark.range(5).write.format(FORMAT).mode("append").save(tmp_table_uri)
    assert 5 == read_table(spark, table, version).count()
    assert 10 == read_table(spark, table, "main", filter="id >= 0").count()


def test_options_choose_ref_columns_and_rows(spark: SparkSession, tmp_table_uri: str) -> None:
    """Options are strings; names are separated by commas or given as a JSON list."""
    frame = spark.range(4).selectExpr("id", "id * 2 AS twice", "id = 1 AS `odd, one`")
    frame.write.format(FORMAT).mode("append").save(tmp_table_uri)
    LanceTable.open(tmp_table_uri).tags.create("production", "main")
    frame.write.format(FORMAT).mode("append").save(tmp_table_uri)
    read = spark.read.format(FORMAT).option("ref", "production").option("filter", "twice > 3")
    assert [{"id": 2, "twice": 4}, {"id": 3, "twice": 6}] == rows(
        read.option("columns", "id, twice").load(tmp_table_uri)
    )
    assert ["odd, one", "id"] == read.option("columns", '["odd, one", "id"]').load(tmp_table_uri).columns


def test_a_frame_stays_on_the_version_of_its_schema(spark: SparkSession, tmp_table_uri: str) -> None:
    """A commit between the load and the job is not visible."""
    spark.range(3).write.format(FORMAT).mode("append").save(tmp_table_uri)
    df = spark.read.format(FORMAT).load(tmp_table_uri)
    spark.range(3).write.format(FORMAT).mode("append").save(tmp_table_uri)
    assert 3 == df.count()


def test_a_schema_given_for_the_read_chooses_columns(spark: SparkSession, tmp_table_uri: str) -> None:
    """Its types must be those of the table."""
    spark.range(2).selectExpr("id", "id * 2 AS twice").write.format(FORMAT).mode("append").save(tmp_table_uri)
    read = spark.read.format(FORMAT)
    assert [{"twice": 0}, {"twice": 2}] == [
        row.asDict() for row in read.schema("twice long").load(tmp_table_uri).collect()
    ]
    with pytest.raises(AnalysisException, match="twice bigint"):
        read.schema("twice string").load(tmp_table_uri).collect()
    with pytest.raises(AnalysisException, match="leave NOT NULL"):
        read.schema(spark.range(1).schema).load(tmp_table_uri).collect()


def test_a_branch_is_written_and_main_is_not(spark: SparkSession, tmp_table_uri: str) -> None:
    """The option `branch` gives the branch of the commit."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    table.branches.create("run/1")
    spark.range(3).write.format(FORMAT).option("branch", "run/1").mode("append").save(tmp_table_uri)
    assert [0, 3] == [table.count_rows(ref) for ref in ("main", "run/1")]


@pytest.mark.parametrize(
    "options,said",
    [
        ({"rev": "main"}, "unknown option 'rev'; did you mean 'ref'?"),
        ({"colums": "id"}, "unknown option 'colums'; did you mean 'columns'?"),
        ({"nothing": "3"}, "unknown option 'nothing'; there are path, ref, branch, columns, filter, changes,"),
        ({"ref": "prodution"}, "no branch or tag 'prodution'"),
        ({"columns": "id,idd"}, "no column 'idd'"),
        ({"columns": "["}, "the option columns must be a JSON list of names"),
        ({"filter": "id ="}, "cannot evaluate the filter 'id ='"),
        ({"path": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_read_that_makes_no_sense_says_so(
    spark: SparkSession, tmp_table_uri: str, options: Mapping[str, str], said: str
) -> None:
    """Spark wraps the error, and keeps its message, with no traceback into this package before it."""
    LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    with pytest.raises(AnalysisException, match=re.escape(said)) as caught:
        spark.read.format(FORMAT).options(**{"path": tmp_table_uri, **options}).load()
    assert 1 == str(caught.value).count('  File "')


def test_sql_that_spark_keeps_from_the_source(spark: SparkSession, tmp_table_uri: str) -> None:
    """If Spark calls the package, the error says what to use instead; the Spark page lists Spark's own errors."""
    frame = spark.range(5)
    frame.write.format(FORMAT).mode("append").save(tmp_table_uri)
    view = f"CREATE TEMPORARY VIEW only_here USING {FORMAT} OPTIONS (path '{tmp_table_uri}')"
    spark.sql(f"CREATE TABLE kept (id BIGINT) USING {FORMAT} OPTIONS (path '{tmp_table_uri}')")
    save = frame.write.format(FORMAT).mode("append")
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: spark.sql(f"CREATE TABLE a USING {FORMAT} LOCATION '{tmp_table_uri}'"), r"use table_view\(spark, "),
        (lambda: spark.sql("SELECT * FROM kept").collect(), r"use table_view\(spark, "),
        (lambda: spark.sql("INSERT INTO kept VALUES (9)"), r"use table_view\(spark, "),
        (lambda: save.saveAsTable("b"), r"use table_view\(spark, "),
        (lambda: spark.sql("SELECT * FROM lance_dagster.`/t`"), "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
        (lambda: save.partitionBy("id").save(tmp_table_uri), "partitioning or clustering columns do not match"),
    ]
    try:
        for call, said in refused:
            with pytest.raises(PySparkException, match=said):
                call()
        spark.sql(view)
        spark.sql("INSERT INTO only_here VALUES (9)")
        assert 6 == LanceTable.open(tmp_table_uri).count_rows()
    finally:
        spark.sql("DROP TABLE kept")
        spark.catalog.dropTempView("only_here")


VIEW = f"CREATE OR REPLACE TEMPORARY VIEW orders USING {FORMAT} OPTIONS"


def test_a_view_of_a_branch_is_read_and_written(spark: SparkSession, tmp_table_uri: str) -> None:
    """Rows are inserted into the branch; Spark keeps the version that the view read until the view is made again."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    table.branches.create("dev")
    view = f"{VIEW} (path '{tmp_table_uri}', branch 'dev')"
    spark.sql(view)
    try:
        spark.sql("INSERT INTO orders VALUES (1)")
        assert [1] == table.read("dev")["id"].to_pylist()
        assert [] == spark.sql("SELECT id FROM orders").collect()
        spark.sql(view)
        assert [1] == [row.id for row in spark.sql("SELECT id FROM orders").collect()]
    finally:
        spark.catalog.dropTempView("orders")


def test_a_view_of_a_ref_is_one_version(spark: SparkSession, tmp_table_uri: str) -> None:
    """It is read and never written, and the error names the option of views that are written."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    table.append(pa.table({"id": [1]}))
    spark.sql(f"{VIEW} (path '{tmp_table_uri}', ref 'main')")
    try:
        table.append(pa.table({"id": [2]}))
        assert [1] == [row.id for row in spark.sql("SELECT id FROM orders").collect()]
        with pytest.raises(AnalysisException, match="the option branch instead"):
            spark.sql("INSERT INTO orders VALUES (3)")
        for options, said in (("ref 'main', branch 'main'", "not both"), ("branch 'main@1'", "main@1")):
            with pytest.raises(AnalysisException, match=said):
                spark.sql(f"{VIEW} (path '{tmp_table_uri}', {options})")
    finally:
        spark.catalog.dropTempView("orders")


@pytest.mark.parametrize(
    "options,query,said",
    [
        (
            {"ref": "main"},
            "SELECT 1L AS id",
            "ref names a version, which is read and never written",
        ),
        ({"branch": "nowhere"}, "SELECT 1L AS id", "no branch or tag 'nowhere'"),
        ({"vectors": "id=3"}, "SELECT 1L AS id", "the option vectors is name:length, separated by commas"),
        ({}, "SELECT 'a' AS id", "column 'id' is string in the Spark frame and int64 in the table, which takes bigint"),
    ],
)
def test_a_write_that_makes_no_sense_says_so_and_writes_nothing(
    spark: SparkSession, tmp_table_uri: str, options: Mapping[str, str], query: str, said: str
) -> None:
    """The error is raised before a job is started."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    with pytest.raises(AnalysisException, match=re.escape(said)):
        spark.sql(query).write.format(FORMAT).mode("append").options(**options).save(tmp_table_uri)
    assert [] == table.branches.version_numbers(after=1)


def test_a_value_that_does_not_fit_is_named(spark: SparkSession, tmp_table_uri: str) -> None:
    """Spark reports a worker's error as text, and nothing is committed."""
    table = LanceTable.create(tmp_table_uri, schema_of(v=pa.list_(pa.float32(), 2)))
    ragged = spark.sql("SELECT array(cast(1 AS float)) AS v")
    with pytest.raises(PySparkException, match="SchemaMismatchError: column 'v' does not fit"):
        ragged.write.format(FORMAT).mode("append").save(tmp_table_uri)
    assert [] == table.branches.version_numbers(after=1)


def test_a_commit_repeated_is_one_version(tmp_table_uri: str) -> None:
    """The version has the uuid of the write."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    writer = LanceWriter(table, "main", columns=FileColumns(table.schema(), ("id",)), overwrite=False)
    written = [writer.write(iter([pa.record_batch({"id": [1, 2]})])), None]
    for _ in range(2):
        pickle.loads(pickle.dumps(writer)).commit(written)  # noqa: S301 - bytes of this test
    writer.abort(written)
    assert [2] == table.branches.version_numbers(after=1)
    assert 2 == table.count_rows()


def test_storage_options_reach_the_store_and_no_plan(spark: SparkSession, s3_storage: S3Storage) -> None:
    """The driver, the planner and the executors need them for a bucket."""
    uri = f"{s3_storage.uri}/numbers"
    options = {f"storage.{key}": value for key, value in s3_storage.storage_options.items()}
    spark.range(5).write.format(FORMAT).options(**options).mode("append").save(uri)
    df = spark.read.format(FORMAT).options(**options).load(uri)
    assert 5 == df.count()
    table = LanceTable.open(uri, s3_storage.storage_options)
    table.append(stage(spark.range(5), table))
    again = read_table(spark, table, columns=["id"], filter="id > 2")
    assert 4 == again.count()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        df.explain("formatted")
        again.explain("extended")
    assert "lance_dagster" in printed.getvalue()
    assert "test-secret" not in printed.getvalue()
    with pytest.raises(AnalysisException) as refused:
        spark.read.format(FORMAT).options(**options, ref="nowhere").load(uri)
    assert "test-secret" not in str(refused.value)
