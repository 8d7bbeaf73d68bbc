# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_dagster import InvalidInputError, LanceIOManager, LanceResource, LanceTable, SchemaMismatchError
from lance_dagster.datafiles import RowTally
from lance_dagster.plugin.io.output_rows import SparkRows
from tests.spark.samples import schema_of

EVENTS = dg.AssetKey(["log", "events"])
REGIONS = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])

pytestmark = pytest.mark.slow


def run(lake: LanceResource, frame: DataFrame, **options: Any) -> dict[str, Any]:
    """Materialize a frame on one branch for all runs; return the rows that each event counts, by partition."""
    metadata = {"lance/partition_expr": "region", **options.pop("metadata", {})}

    @dg.asset(key=EVENTS, partitions_def=REGIONS, metadata=metadata)
    def events() -> DataFrame:
        return frame

    tags = {"lance/branch": "dev", **options.pop("tags", {})}
    result = dg.materialize([events], resources={"io_manager": LanceIOManager(lance=lake)}, tags=tags, **options)
    made = result.asset_materializations_for_node("log__events")
    return {event.partition or "": event.metadata["dagster/partition_row_count"].value for event in made}


def found(lake: LanceResource) -> list[Any]:
    """The regions of the rows on the branch."""
    regions: list[Any] = lake.table(EVENTS).read("dev")["region"].to_pylist()
    return sorted(regions)


def rows(spark: SparkSession, *regions: str | None, kind: str = "bigint") -> DataFrame:
    """One row for each region, in two partitions of Spark."""
    numbered = [(region, number) for number, region in enumerate(regions)]
    return spark.createDataFrame(numbered, f"region string, n {kind}").repartition(2)


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
def test_rows_of_other_partitions_are_never_committed(lake: LanceResource, spark: SparkSession, mode: str) -> None:
    """Executors check each batch: runs for a, b and b again, each with rows of both, leave each row of a once."""
    settings: dict[str, Any] = {"lance/write_mode": mode, **({"lance/keys": ["n"]} if mode == "upsert" else {})}
    assert {"a": 1} == run(lake, rows(spark, "a"), partition_key="a", metadata=settings)
    for _ in range(2):
        with pytest.raises(InvalidInputError) as caught:
            run(lake, rows(spark, "a", "b", None, "b"), partition_key="b", metadata=settings)
        assert "log/events returned 2 rows that are not in the partitions it was asked for (b)" in str(caught.value)
    assert ["a"] == found(lake)


def test_spark_upserts_by_key(lake: LanceResource, spark: SparkSession) -> None:
    """Executors match the keys: rows are updated in place, missing ones of the partition deleted, bad keys refused."""
    settings: dict[str, Any] = {"lance/write_mode": "upsert", "lance/keys": ["n"], "lance/when_missing": "delete"}
    for region in ("a", "b"):
        start = 10 if region == "b" else 0
        frame = spark.createDataFrame([(region, start + number) for number in range(3)], "region string, n bigint")
        run(lake, frame, partition_key=region, metadata=settings)
    frame = spark.createDataFrame([("a", 1), ("a", 7)], "region string, n bigint")
    assert {"a": 2} == run(lake, frame, partition_key="a", metadata=settings)
    table = lake.table(EVENTS)
    assert [1, 7, 10, 11, 12] == table.read("dev").sort_by("n")["n"].to_pylist()
    cases: list[tuple[list[Any], str]] = [
        ([("a", None)], "returned 1 row without a value in its key column 'n'"),
        ([("a", 1), ("a", 1)], "two of the rows have the key n = 1"),
    ]
    for wrong, said in cases:
        refused = spark.createDataFrame(wrong, "region string, n bigint")
        with pytest.raises(InvalidInputError, match=said):
            run(lake, refused, partition_key="a", metadata=settings)
    assert [1, 7, 10, 11, 12] == table.read("dev").sort_by("n")["n"].to_pylist()


def test_keys_of_other_numbers_are_compared_as_those_of_the_table(spark: SparkSession, tmp_table_uri: str) -> None:
    """Rows that change keep what the frame lacks, and a number that the key's type does not hold is refused."""
    schema = schema_of(id=pa.int64(), note=pa.string(), x=pa.float64())
    table = LanceTable.create(tmp_table_uri, schema)
    table.append(pa.table({"id": [1, 2], "note": ["a", "b"], "x": [1.0, 2.0]}, schema=schema))

    def upsert(key: str, query: str) -> None:
        rows = SparkRows(spark.sql(f"SELECT {query}"))
        staged = rows.stage_upsert(table, "main", [key], schema=schema, when={}, tally=RowTally())
        table.upsert(staged, on=[key])

    upsert("id", "2L AS id, 5.0D AS x")
    upsert("x", "3L AS id, 5 AS x")
    upsert("id", "1.0D AS id, 6 AS x")
    upsert("id", "4 AS id, 7.0D AS x")
    for wrong in ("1.5D", "1e300D", "double('NaN')"):
        with pytest.raises(SchemaMismatchError):
            upsert("id", f"{wrong} AS id")
    with pytest.raises(InvalidInputError):
        upsert("id", "id FROM VALUES (1.0D), (1.0D) AS given(id)")
    expected = [
        {"id": 1, "note": "a", "x": 6.0},
        {"id": 3, "note": "b", "x": 5.0},
        {"id": 4, "note": None, "x": 7.0},
    ]
    assert expected == table.read().sort_by("id").to_pylist()


def upsert(lake: LanceResource, frame: DataFrame, key: str = "a", **metadata: Any) -> dict[str, Any]:
    """Upsert the rows of one partition by `n`, widening columns, and delete its rows that are missing."""
    settings = {"lance/write_mode": "upsert", "lance/keys": ["n"], "lance/when_missing": "delete"}
    widening = {"lance/schema_evolution": "widen", **metadata}
    return run(lake, frame, partition_key=key, metadata={**settings, **widening})


def test_an_upsert_that_changes_columns_is_matched_by_the_executors(lake: LanceResource, spark: SparkSession) -> None:
    """New columns are null in the rows that stay, and columns are commits of their own."""
    first = spark.createDataFrame([("a", 1, 1), ("a", 2, 2), ("b", 3, 3)], "region string, n int, x int")
    for key in ("a", "b"):
        upsert(lake, first.where(f"region = '{key}'"), key)
    table = lake.table(EVENTS)
    before = table.head("dev")
    second = spark.createDataFrame(
        [("a", 2, 2.5, "new"), ("a", 2**40, 0.5, None)], "region string, n long, x double, note string"
    )
    assert {"a": 2} == upsert(lake, second.repartition(2))
    expected = [
        {"region": "a", "n": 2, "x": 2.5, "note": "new"},
        {"region": "b", "n": 3, "x": 3.0, "note": None},
        {"region": "a", "n": 2**40, "x": 0.5, "note": None},
    ]
    assert expected == table.read("dev").sort_by("n").to_pylist()
    # A cast for each of two columns, one commit for those that are added, and the rows.
    assert ["Merge", "Merge", "Merge", "Update"] == [
        table.at(f"dev@{number}").operation for number in table.branches.version_numbers("dev", after=before.number)
    ]
    assert table.maintenance.verify().ok


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    """The setting by which `value` and `Value` are two names."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.usefixtures("case_sensitive")
def test_an_upsert_keeps_the_values_of_columns_that_the_frame_lacks(lake: LanceResource, spark: SparkSession) -> None:
    """They are null in new rows only, also those of a column whose name differs in case."""
    first = [("a", 1, 1, "x"), ("a", 2, 2, "y")]
    upsert(lake, spark.createDataFrame(first, "region string, n int, x int, Value string"))
    upsert(lake, spark.createDataFrame([("a", 2, "v"), ("a", 3, "w")], "region string, n int, value string"))
    rows = lake.table(EVENTS).read("dev").sort_by("n").to_pylist()
    assert [(2, 2, "y", "v"), (3, None, None, "w")] == [
        (row["n"], row["x"], row["Value"], row["value"]) for row in rows
    ]


@pytest.mark.usefixtures("case_sensitive")
def test_an_upsert_keeps_columns_whose_names_differ_in_case(lake: LanceResource, spark: SparkSession) -> None:
    """A column that the frame lacks does not replace one that it has: Spark takes the one name for the other."""
    upsert(lake, spark.createDataFrame([("a", 1, "x")], "region string, n int, Value string"))
    upsert(lake, spark.createDataFrame([("a", 2, "y")], "region string, n int, value string"))
    rows = lake.table(EVENTS).read("dev").sort_by("n").to_pylist()
    # The first row is missing in the second frame, and is deleted.
    assert [(None, "y")] == [(row["Value"], row["value"]) for row in rows]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_columns_are_found_in_any_case(lake: LanceResource, spark: SparkSession, mode: str) -> None:
    """Spark's default: the table gets no second column, and keeps its spelling."""
    settings: dict[str, Any] = {"lance/write_mode": mode, **({"lance/keys": ["n"]} if mode == "upsert" else {})}
    schemas = {"a": "region string, n int, Value string", "b": "REGION string, N int, value string"}
    for number, (region, schema) in enumerate(schemas.items()):
        frame = spark.createDataFrame([(region, number, region)], schema)
        assert {region: 1} == run(lake, frame, partition_key=region, metadata=settings)
    assert ["region", "n", "Value"] == lake.table(EVENTS).schema("dev").names
    assert ["a", "b"] == sorted(row["Value"] for row in lake.table(EVENTS).read("dev").to_pylist())


def test_an_upsert_whose_rows_are_refused_changes_no_column(lake: LanceResource, spark: SparkSession) -> None:
    """Columns are edited after the rows are written."""
    upsert(lake, spark.createDataFrame([("a", 1)], "region string, n int"))
    head = str(lake.table(EVENTS).head("dev"))
    for wrong in ([("a", 1, 1), ("b", 2, 2)], [("a", 1, 1), ("a", 1, 2)], [("a", None, 1)]):
        with pytest.raises(InvalidInputError):
            upsert(lake, spark.createDataFrame(wrong, "region string, n long, more int"))
    assert head == str(lake.table(EVENTS).head("dev"))


def test_rows_that_another_writer_adds_before_the_columns_change_are_matched_again(
    lake: LanceResource, spark: SparkSession
) -> None:
    """The rows are matched with the version before the edits, so a commit in between has to be seen."""
    upsert(lake, spark.createDataFrame([("a", 1)], "region string, n int"))
    table = lake.table(EVENTS)
    uri = table.uri

    def meet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Rows are computed after the version that they are matched with was read.
        other = LanceTable.open(uri)
        if other.count_rows("dev") == 1:
            other.append(pa.table({"region": ["a"], "n": pa.array([7], pa.int32())}), branch="dev")
        yield from batches

    rows = spark.createDataFrame([("a", 1, "x"), ("a", 7, "y")], "region string, n int, note string").coalesce(1)
    assert {"a": 2} == upsert(lake, rows.mapInArrow(meet, rows.schema))
    assert [(1, "x"), (7, "y")] == [(row["n"], row["note"]) for row in table.read("dev").sort_by("n").to_pylist()]


def test_each_partition_of_a_run_has_its_own_row_count(lake: LanceResource, spark: SparkSession) -> None:
    """The executors count the rows of each partition, and the driver adds them up."""
    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "d"}
    counted = run(lake, rows(spark, "b", "c", "c", "d", "d", "d"), tags=tags)
    assert {"a": 0, "b": 1, "c": 2, "d": 3} == counted
    assert ["b", "c", "c", "d", "d", "d"] == found(lake)


def test_columns_of_a_table_follow_its_policy(lake: LanceResource, spark: SparkSession) -> None:
    """Numbers are cast or widened, columns are added, and values that do not fit are refused."""
    run(lake, rows(spark, "a", kind="int"), partition_key="a")
    wide = rows(spark, "b", kind="bigint")
    with pytest.raises(SchemaMismatchError):
        run(lake, wide, partition_key="b")
    run(lake, wide, partition_key="b", metadata={"lance/schema_evolution": "add_columns"})
    assert pa.int32() == lake.table(EVENTS).schema("dev").field("n").type
    huge = spark.createDataFrame([("c", 2**40)], "region string, n bigint")
    with pytest.raises(SchemaMismatchError):
        run(lake, huge, partition_key="c", metadata={"lance/schema_evolution": "add_columns"})
    run(lake, huge, partition_key="c", metadata={"lance/schema_evolution": "widen"})
    assert pa.int64() == lake.table(EVENTS).schema("dev").field("n").type
    more = spark.createDataFrame([("d", 1.5)], "region string, price double")
    run(lake, more, partition_key="d", metadata={"lance/schema_evolution": "add_columns"})
    rows_now = sorted(lake.table(EVENTS).read("dev").to_pylist(), key=lambda row: row["region"])
    assert rows_now == [
        {"region": "a", "n": 0, "price": None},
        {"region": "b", "n": 0, "price": None},
        {"region": "c", "n": 2**40, "price": None},
        {"region": "d", "n": None, "price": 1.5},
    ]
