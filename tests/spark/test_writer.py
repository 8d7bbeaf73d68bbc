import contextlib
import dataclasses
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_dagster import local_session, read_table, stage
from lance_dagster.datafiles import RowTally
from lance_dagster.errors import SchemaMismatchError, StoreError
from lance_dagster.spark.spark_schema import replacement_schema, target_schema
from lance_dagster.spark.writer import large_batches, stage_counted
from lance_dagster.table import LanceTable
from tests.spark.samples import rows, schema_of

pytestmark = pytest.mark.slow

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
OURS = ("2147483647", "4096")
FOREIGN = """
from pyspark.sql import SparkSession
from lance_dagster import LanceDataSource
from lance_dagster.spark.java import ensure_java

ensure_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for _ in range(2):
    spark.dataSource.register(LanceDataSource)
"""


def limits(spark: SparkSession) -> tuple[str | None, str | None]:
    """The limits of a batch in a session."""
    return spark.conf.get(BATCH_BYTES), spark.conf.get(BATCH_ROWS)


def test_timestamps_are_stored_in_utc_whatever_the_session_shows(spark: SparkSession, tmp_table_uri: str) -> None:
    """The session's time zone applies to the display only."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    try:
        df = spark.sql("SELECT timestamp '2026-07-01 02:00:00' AS at, array(timestamp '2026-07-01 02:00:00') AS more")
        table = LanceTable.create(tmp_table_uri, target_schema(df.schema))
        table.append(stage(df, table))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = table.read()
    assert pa.timestamp("us", "UTC") == stored.schema.field("at").type
    assert "2026-07-01 00:00:00+00:00" == str(stored["at"][0].as_py()) == str(stored["more"][0].as_py()[0])


def test_rows_come_back_from_every_partition_and_nothing_from_empty_ones(
    spark: SparkSession, tmp_table_uri: str
) -> None:
    """There is one file for each non-empty partition; columns are matched by name."""
    df = spark.range(1000).repartition(8).filter("id < 4 OR id > 990").selectExpr("id * 2 AS twice", "id")
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), twice=pa.int64()))
    staged = stage(df, table)
    assert 13 == staged.rows
    assert 0 == table.count_rows()
    table.append(staged)
    ids = [*range(4), *range(991, 1000)]
    assert [{"id": number, "twice": 2 * number} for number in ids] == rows(read_table(spark, table))


def test_no_rows_are_no_files(spark: SparkSession, tmp_table_uri: str) -> None:
    """An empty frame is valid, and can be committed."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    staged = stage(spark.range(0), table)
    assert () == staged.files
    table.append(staged)
    assert 0 == table.count_rows()


def test_a_frame_can_replace_the_schema(spark: SparkSession, tmp_table_uri: str) -> None:
    """An overwrite takes the columns of the staged files."""
    table = LanceTable.create(tmp_table_uri, schema_of(v=pa.list_(pa.float32(), 2), old=pa.int8()))
    df = spark.sql("SELECT array(cast(1 AS float), cast(2 AS float)) AS v, 'a' AS new")
    schema = replacement_schema(df.schema, table.schema())
    table.overwrite(stage(df, table, schema=schema))
    assert schema == table.schema()
    assert [{"v": [1.0, 2.0], "new": "a"}] == table.read().to_pylist()


def test_a_branch_has_its_own_columns(spark: SparkSession, tmp_table_uri: str) -> None:
    """The frame is checked against its branch, and `main` is not affected."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    table.branches.create("run/1")
    df = spark.sql("SELECT 1L AS id, 'a' AS name")
    table.overwrite(stage(df, table, schema=target_schema(df.schema)), branch="run/1")
    table.append(stage(df, table, branch="run/1"), branch="run/1")
    assert [{"id": 1, "name": "a"}] * 2 == rows(read_table(spark, table, ref="run/1"))
    with pytest.raises(SchemaMismatchError):
        stage(df, table)


@pytest.mark.parametrize(
    "query,said",
    [
        (
            "SELECT 1L AS id, array(cast(1 AS float)) AS v",
            "column 'v' does not fit the table's fixed_size_list<item: float>[2]: a row has 1 elements",
        ),
        ("SELECT cast(null AS long) AS id, cast(null AS array<float>) AS v", "column 'id' has nulls"),
    ],
)
def test_values_that_do_not_fit_are_an_error_of_the_package_on_one_line(
    spark: SparkSession, tmp_table_uri: str, query: str, said: str
) -> None:
    """The caller can catch errors that an executor finds."""
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.list_(pa.float32(), 2))]
    table = LanceTable.create(tmp_table_uri, pa.schema(columns))
    with pytest.raises(SchemaMismatchError) as refused:
        stage(spark.sql(query), table)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_user_s_own_errors_pass_through(spark: SparkSession, tmp_table_uri: str) -> None:
    """A frame is computed while it is staged, and may fail for reasons outside the package."""

    def fail(_: object) -> None:
        raise RuntimeError("division by cucumber")

    df = spark.range(1).rdd.map(fail).toDF("id long")
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    with pytest.raises(PySparkException, match="division by cucumber"):
        stage(df, table)


def test_batch_settings_are_restored(spark: SparkSession, tmp_table_uri: str) -> None:
    """The session has its old settings after a success and after a failure."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    stage(spark.range(1), table)
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        stage(spark.range(1).selectExpr("cast(1 / id AS long) AS id"), table)
    assert OURS == limits(spark)


def test_batches_are_bounded_by_rows_or_by_bytes(spark: SparkSession) -> None:
    """A byte limit is slow for narrow rows, and is the only limit that works for binary ones."""
    cases: list[tuple[list[pa.DataType], int, tuple[str | None, str]]] = [
        ([pa.int64()], 0, ("2147483647", "16384")),
        ([pa.string()] * 20, 0, ("2147483647", "12800")),
        ([pa.float64()] * 200, 0, ("2147483647", "10240")),
        ([pa.list_(pa.float32(), 512)], 0, ("2147483647", "4096")),
        ([pa.string()], 100_000, ("2147483647", "167")),
        ([pa.list_(pa.binary())], 0, ("67108864", "16384")),
    ]
    for columns, stored, expected in cases:
        schema = schema_of(**{f"c{number}": arrow for number, arrow in enumerate(columns)})
        with large_batches(spark, schema, stored):
            assert expected == limits(spark)


def test_small_partitions_share_a_file_on_request(spark: SparkSession, tmp_table_uri: str) -> None:
    """There are as many files as cores; a frame of unknown or large size keeps its partitions."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    frame = spark.range(0, 40, 1, 20)
    assert [20, 3, 2] == [len(stage(frame, table, coalesce=wanted).files) for wanted in (None, 3, "auto")]
    unknown = spark.createDataFrame(spark.sparkContext.parallelize([(1,), (2,), (3,)], 3), "id long")
    assert 3 == len(stage(unknown, table, coalesce="auto").files)


def test_names_that_differ_in_case_only(spark: SparkSession, tmp_table_uri: str) -> None:
    """Spark finds such names ambiguous when it looks columns up by name."""
    df = spark.sql("SELECT 1 AS a, 2 AS A")
    table = LanceTable.create(tmp_table_uri, target_schema(df.schema))
    table.append(stage(df, table))
    assert (
        [{"a": 1, "A": 2}] == table.read().to_pylist() == [row.asDict() for row in read_table(spark, table).collect()]
    )


@pytest.mark.parametrize("around", ["named_struct('x', {})", "array({}, null)", "map('k', {})"])
def test_variants_below_nulls(spark: SparkSession, tmp_table_uri: str, around: str) -> None:
    """The parts of a variant are not nullable, and are null where the value around the variant is null."""
    variant = around.format("parse_json('[1]')")
    df = spark.range(4).selectExpr("id", f"if(id % 2 = 1, {variant}, null) AS v", f"array({variant}, null) AS w")
    table = LanceTable.create(tmp_table_uri, target_schema(df.schema))
    table.append(stage(df, table))
    assert [str(row) for row in df.collect()] == [str(row) for row in read_table(spark, table).orderBy("id").collect()]


def test_an_executor_that_does_not_see_the_table_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise it would create the folder on its own disk, and the commit would reference missing files."""
    table = LanceTable.create(str(tmp_path / "table"), schema_of(id=pa.int64()))
    target = dataclasses.replace(table.write_target(), data_uri=str(tmp_path / "elsewhere" / "data"))
    with pytest.raises(StoreError, match="several machines write"):
        stage_counted(spark.range(1), target, RowTally())
    assert not (tmp_path / "elsewhere").exists()


def test_threads_that_stage_together_share_the_settings(spark: SparkSession) -> None:
    """The first thread to finish must not reset the settings of the other."""
    first, second = large_batches(spark, schema_of(a=pa.int8())), large_batches(spark, schema_of(a=pa.int8()))
    with contextlib.ExitStack() as last:
        with contextlib.ExitStack() as early:
            early.enter_context(first)
            last.enter_context(second)
        assert "2147483647" == spark.conf.get(BATCH_BYTES)
    assert OURS == limits(spark)


def test_a_limit_the_user_set_is_kept(spark: SparkSession) -> None:
    """The limit may be what makes long texts fit into memory."""
    spark.conf.set(BATCH_ROWS, "7")
    try:
        with large_batches(spark, schema_of(a=pa.int8())):
            assert "7" == spark.conf.get(BATCH_ROWS)
        local_session()
        assert ("2147483647", "7") == limits(spark)
    finally:
        spark.conf.set(BATCH_ROWS, OURS[1])


def test_settings_that_a_session_does_not_have_are_taken_away_again(spark: SparkSession) -> None:
    """A session that this package did not start gets them for a write only."""
    for key in (BATCH_BYTES, BATCH_ROWS):
        spark.conf.unset(key)
    try:
        default = limits(spark)
        with large_batches(spark, schema_of(a=pa.int8())):
            assert ("2147483647", "16384") == limits(spark)
        assert default == limits(spark)
        assert not {BATCH_BYTES, BATCH_ROWS} & set(spark.conf.getAll)
    finally:
        local_session()
    assert OURS == limits(spark)


def test_a_foreign_session_is_told_once_what_makes_writes_faster() -> None:
    """In the log of the process that registers the source."""
    done = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, check=True)
    assert 1 == done.stderr.count(f'spark.conf.set("{BATCH_BYTES}", "2147483647") makes df.write')


def test_rows_are_staged_under_a_base_path(spark: SparkSession, tmp_table_uri: str, tmp_path: Path) -> None:
    """Executors write under the base path, which the commit references."""
    df = spark.range(0, 10, 1, 2)
    table = LanceTable.create(tmp_table_uri, target_schema(df.schema))
    table.maintenance.add_base("cold", tmp_path / "cold")
    table.append(stage(df, table, base="cold"))
    assert 2 == len(list((tmp_path / "cold").glob("*.lance")))
    assert rows(df) == rows(read_table(spark, table))
