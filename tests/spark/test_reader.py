import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition
from pyspark.sql.types import StructType

from lance_dagster import narrow, read_table
from lance_dagster.errors import CorruptFileError, InvalidInputError, RefNotFoundError, StoreError
from lance_dagster.spark.frame import version_frame
from lance_dagster.spark.narrowing import narrowed
from lance_dagster.spark.reader import (
    SPLIT_BYTES,
    FragmentRows,
    FragmentSize,
    LancePartition,
    LanceReader,
    Scan,
    fragment_sizes,
    partition_pieces,
    read_pieces,
    scan_frame,
)
from lance_dagster.spark.spark_schema import arrow_for_spark, readable_schema
from lance_dagster.spark.writer import coalesced
from lance_dagster.table import LanceTable
from lance_dagster.types import StagedFile
from tests.raising import raises
from tests.spark.samples import rows, schema_of

pytestmark = pytest.mark.slow


@pytest.fixture
def numbers(tmp_table_uri: str) -> LanceTable:
    """A table of ten rows in two fragments."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), text=pa.string(), **{"Odd One": pa.bool_()}))
    for start in (0, 5):
        ids = range(start, start + 5)
        made = [{"id": number, "text": f"n{number}", "Odd One": number % 2 == 1} for number in ids]
        table.append(pa.Table.from_pylist(made, schema=table.schema()))
    return table


def test_columns_and_a_filter_are_read_and_nothing_else(spark: SparkSession, numbers: LanceTable) -> None:
    """The columns have the caller's order, and the filter may use a column that is not read."""
    df = read_table(spark, numbers, columns=["Odd One", "id"], filter="text >= 'n7' OR id = 0")
    assert ["Odd One", "id"] == df.columns
    expected = [{"Odd One": number % 2 == 1, "id": number} for number in (0, 7, 8, 9)]
    assert expected == rows(df)


def test_row_ids_and_row_versions_are_columns_on_request(spark: SparkSession, numbers: LanceTable) -> None:
    """They are integers in Spark, and filters and counts on them are right."""
    numbers.update({"text": "'new'"}, where="id = 3")
    names = ["_row_last_updated_at_version", "id", "_rowid", "_row_created_at_version"]
    df = read_table(spark, numbers, columns=names)
    changed = [row.asDict() for row in df.where("_row_last_updated_at_version > _row_created_at_version").collect()]
    assert [{**dict.fromkeys(names, 3), "_row_created_at_version": 2, "_row_last_updated_at_version": 4}] == changed
    assert [10, 4] == [df.count(), df.where("_rowid > 5").count()]
    assert names == df.columns


def test_row_versions_are_refused_where_lance_keeps_none(spark: SparkSession, tmp_table_uri: str) -> None:
    """Lance would return version 1 for every row of a table without stable row ids."""
    for number in range(2):
        lance.write_dataset(pa.table({"id": [number]}), tmp_table_uri, mode="append" if number else "create")
    table = LanceTable.open(tmp_table_uri)
    for name in ("_row_created_at_version", "_row_last_updated_at_version"):
        with pytest.raises(InvalidInputError):
            read_table(spark, table, columns=["id", name])
    assert [0, 1] == sorted(row.id for row in read_table(spark, table, columns=["id", "_rowid"]).collect())


class PushedFilters(DataSource):
    """Ten rows, of which Spark's own filter pushdown lets a reader leave out some."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "pushed_filters"

    def schema(self) -> str:
        """One column."""
        return "id long"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """A reader of all rows."""
        return PushedFiltersReader()


class PushedFiltersReader(DataSourceReader):
    """A reader as Spark documents it."""

    least = 0

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the lower bounds."""
        for one in filters:
            if isinstance(one, GreaterThan):
                self.least = one.value + 1
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002 - Spark's signature
        """The rows that are left."""
        yield from ((number,) for number in range(self.least, 10))


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Enable the filter pushdown to Python data sources, which Spark 4.3 disables by default."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def used_twice(df: DataFrame) -> list[int]:
    """The counts of rows of a frame with a filter, without it, and of both together."""
    few = df.filter("id > 7")
    return [len(frame.collect()) for frame in (few, df, few.union(df))]


def test_one_frame_used_twice_keeps_its_rows(spark: SparkSession, numbers: LanceTable) -> None:
    """The data source has no filter pushdown, so Spark's setting does not matter."""
    for df in (read_table(spark, numbers), spark.read.format("lance_dagster").load(numbers.uri)):
        assert [2, 10, 12] == used_twice(df)


@pytest.mark.usefixtures("pushdown")
def test_the_filter_pushdown_of_spark_loses_rows(spark: SparkSession, numbers: LanceTable) -> None:
    """This is why no reader here has `pushFilters`; with a Spark where this fails, it may get it."""
    spark.dataSource.register(PushedFilters)
    assert [2, 2, 4] == used_twice(spark.read.format("pushed_filters").load())
    for df in (read_table(spark, numbers), spark.read.format("lance_dagster").load(numbers.uri)):
        assert [2, 10, 12] == used_twice(df)


@pytest.fixture
def broadcasts(spark: SparkSession) -> Iterator[None]:
    """Let Spark broadcast what it takes to have at most one MiB."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "1m")
    yield
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def joins(df: DataFrame) -> list[tuple[str, str]]:
    """The joins of the plan of a frame, with the side that is broadcast."""
    plan: Any = narrowed(df)._jdf.queryExecution().executedPlan()  # noqa: SLF001
    return re.findall(r"(SortMerge|Broadcast)\w*Join .*?(Build\w+|$)", str(plan.toString()), re.MULTILINE)


def below_the_read(df: DataFrame) -> str:
    """The kind of the node from which the last read of a table in the plan of a frame gets the numbers of its tasks."""
    plan: Any = narrowed(df)._jdf.queryExecution().analyzed()  # noqa: SLF001
    found = re.findall(r"MapInArrow .*\n\W*(\w+)", str(plan.toString()))
    return str(found[-1])


@pytest.mark.usefixtures("broadcasts")
def test_spark_broadcasts_small_tables_and_no_large_ones(spark: SparkSession, numbers: LanceTable) -> None:
    """Spark knows the size of what an action reads, in a narrowed plan and in another one."""
    large = LanceTable.create(f"{numbers.uri}_large", schema_of(id=pa.int64(), v=pa.list_(pa.float32(), 64)))
    values = pa.array(np.random.default_rng(0).random(8000 * 64, dtype=np.float32))
    large.append(pa.table({"id": range(8000), "v": pa.FixedSizeListArray.from_arrays(values, 64)}))
    big, small, few = read_table(spark, large), read_table(spark, numbers), spark.range(5)
    rest = spark.range(200_000)
    merge, right, left = ("SortMerge", ""), ("Broadcast", "BuildRight"), ("Broadcast", "BuildLeft")
    for joined, expected, count in [
        (rest.join(big, "id"), merge, 8000),
        (big.join(rest, "id"), merge, 8000),
        (big.join(few, "id"), right, 5),
        (few.join(big, "id"), left, 5),
        (big.join(small, "id"), right, 10),
        (rest.join(small, "id"), right, 10),
        (small.join(rest, "id"), left, 10),
        # Only the column that is read counts.
        (rest.join(big.select("id"), "id"), right, 8000),
    ]:
        assert [expected] == joins(joined.selectExpr("*"))
        assert count == joined.count() == len(joined.collect())
    assert 8000 == len(narrow(rest.join(big, "id")).select("v").collect())
    # Actions without a join do without the size, which costs time.
    assert ["Filter", "Range"] == [below_the_read(df) for df in (rest.join(big, "id"), big.select("v"))]


def test_spark_knows_the_size_of_a_frame(spark: SparkSession, tmp_table_uri: str) -> None:
    """It is the larger one of what the rows take in Spark and the share of the columns in the files, nearly."""
    length, width = 80_000, 32
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), n=pa.int64(), v=pa.list_(pa.float32(), width)))
    values = pa.array(np.random.default_rng(0).random(length * width, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, width)
    table.append(pa.table({"id": range(length), "n": [0] * length, "v": vectors}))
    for columns, row in ((["id"], 16), (["id", "n"], 24), (["v"], 4 * width), (None, 4 * width + 16)):
        scan = Scan.plan(table, columns=columns)
        plan: Any = scan_frame(spark, scan, fragment_sizes(scan), "size")._jdf  # noqa: SLF001
        size = int(plan.queryExecution().optimizedPlan().stats().sizeInBytes())
        assert length * row / 1.5 <= size <= length * row * 1.5, columns


def test_partitions_of_a_table_are_merged_by_its_size(spark: SparkSession, numbers: LanceTable) -> None:
    """A large table keeps several of them, and a small one gets as many as there are cores."""
    scan = Scan.plan(numbers)
    sizes = [replace(size, bytes=8 * SPLIT_BYTES) for size in fragment_sizes(scan)]
    large, small = version_frame(spark, scan, sizes), version_frame(spark, scan, fragment_sizes(scan))
    assert [16, 1] == [df.rdd.getNumPartitions() for df in (large, small)]
    # Partitions of 64 MiB are wanted, and Spark takes none of these for more than 16 MiB.
    assert [4, 2] == [coalesced(df, "auto").rdd.getNumPartitions() for df in (large, small.repartition(8))]
    assert 10 == len(coalesced(large, "auto").collect())


def test_a_frame_stays_on_its_version(spark: SparkSession, numbers: LanceTable) -> None:
    """Later commits are visible only in a new frame."""
    df = read_table(spark, numbers)
    tagged = numbers.tags.create("production", "main")
    numbers.append(pa.table({"id": [10], "text": ["n10"], "Odd One": [False]}))
    assert 10 == df.count()
    assert (
        10 == read_table(spark, numbers, ref="production").count() == read_table(spark, numbers, ref=tagged.ref).count()
    )
    assert 11 == read_table(spark, numbers).count()


def test_deleted_rows_stay_away(spark: SparkSession, numbers: LanceTable) -> None:
    """A fragment keeps its deleted rows, but a reader omits them."""
    gone = pa.table({"id": [], "text": [], "Odd One": []}, schema=numbers.schema())
    numbers.replace_where("id IN (1, 2, 8)", gone)
    assert [0, 3, 4, 5, 6, 7, 9] == [row["id"] for row in rows(read_table(spark, numbers, columns=["id"]))]


def test_an_empty_table_is_an_empty_frame(spark: SparkSession, tmp_table_uri: str) -> None:
    """The frame has columns, although there is no fragment to read."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    assert [] == read_table(spark, table).collect()


@pytest.mark.parametrize(
    "columns,filter,said",
    [
        (["idd"], None, "no column 'idd' in .*; it has id, text, Odd One"),
        ([], None, "at least one"),
        ("id", None, r"columns: must be a list such as \['id'\], not 'id'"),
        (["id", "id"], None, "each once"),
        (None, "id >", "cannot evaluate the filter 'id >'"),
        (None, "nothing = 3", "cannot evaluate the filter 'nothing = 3': .*No field named nothing"),
        (None, "id", "does not return a boolean"),
        (None, "id > 1 adn id < 3", "'adn' does not continue"),
    ],
)
def test_a_wrong_column_or_filter_is_refused_at_once(
    spark: SparkSession, numbers: LanceTable, columns: list[str] | None, filter: str | None, said: str
) -> None:
    """The error is raised before any job, and names the column or the filter."""
    with pytest.raises(InvalidInputError, match=said):
        read_table(spark, numbers, columns=columns, filter=filter)


def test_an_action_raises_the_error_of_the_table(spark: SparkSession, numbers: LanceTable) -> None:
    """A filter that fails for some value, and a damaged file, are told as `LanceTable.read` tells them."""
    failing = "cast(concat('a', cast(id as string)) as int) = 1"
    with pytest.raises(InvalidInputError):
        read_table(spark, numbers, filter=failing).collect()
    for file in sorted((Path(numbers.uri) / "data").iterdir()):
        file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(CorruptFileError):
        read_table(spark, numbers).collect()


def test_an_unknown_ref_is_refused_at_once(spark: SparkSession, numbers: LanceTable) -> None:
    """The error is that of the table."""
    with raises(RefNotFoundError, ref="prodution"):
        read_table(spark, numbers, ref="prodution")


def planned(
    table: LanceTable, columns: list[str] | None = None, filter: str | None = None
) -> tuple[LanceReader, list[LancePartition]]:
    """A reader and its partitions, as Spark gets them."""
    plan = Scan.plan(table, columns=columns, filter=filter)
    made = LanceReader(plan, readable_schema(plan.schema))
    return made, made.partitions()


def test_small_fragments_share_a_task(numbers: LanceTable) -> None:
    """A table of many small appends does not need a task for each."""
    _, partitions = planned(numbers)
    assert [2] == [len(partition.pieces) for partition in partitions]


def test_rows_of_small_fragments_share_a_batch(numbers: LanceTable) -> None:
    """Each batch costs time in Spark, however few rows it has."""
    made, (partition,) = planned(numbers)
    assert [10] == [batch.num_rows for batch in made.read(partition)]


def test_dictionaries_of_fragments_may_have_more_values_than_their_indices(tmp_table_uri: str) -> None:
    """Each fragment has a dictionary of its own, of a hundred values, and the indices are bytes."""
    kind = pa.dictionary(pa.int8(), pa.string())
    table = LanceTable.create(tmp_table_uri, schema_of(d=kind))
    values = [[f"{fragment} {n}" for n in range(100)] for fragment in range(3)]
    for names in values:
        table.append(pa.table({"d": pa.array(names).cast(kind)}))
    made, (partition,) = planned(table)
    (batch,) = made.read(partition)
    assert [name for names in values for name in names] == batch.column("d").to_pylist()


def test_many_fragments_are_several_tasks(numbers: LanceTable) -> None:
    """Opening a fragment costs time, however few rows it has."""
    plan = Scan.plan(numbers)
    groups = partition_pieces(plan, [FragmentSize(number, 1, 100) for number in range(10_000)])
    assert 10_000 == sum(map(len, groups))
    assert 50 < len(groups) < 200
    assert max(map(len, groups)) <= 2 * min(map(len, groups[:-1]))


def test_a_large_fragment_is_cut_by_its_columns_bytes(tmp_table_uri: str) -> None:
    """Each row is read once; a narrow column is one task, and so is a filter, which reads the whole fragment."""
    count = 30_000
    values = pa.array(np.random.default_rng(0).random(count * 512, dtype=np.float32))
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), v=pa.list_(pa.float32(), 512)))
    table.append(pa.table({"id": range(count), "v": pa.FixedSizeListArray.from_arrays(values, 512)}))
    for condition, tasks, expected in [
        (None, 2, pa.array(range(count))),
        ("id % 3 = 0", 1, pa.array(range(0, count, 3))),
    ]:
        made, partitions = planned(table, filter=condition)
        assert tasks == len(partitions)
        batches = [batch for partition in partitions for batch in made.read(partition)]
        assert expected == pa.Table.from_batches(batches).sort_by("id")["id"].combine_chunks()
    assert 1 == len(planned(table, columns=["id"])[1])


def test_storage_options_do_not_show() -> None:
    """The plan that is sent to executors may be printed."""
    scan = Scan(
        uri="s3://b/t",
        version="main@1",
        schema=pa.schema([]),
        table_row_bytes=1,
        filter=None,
        storage_options={"aws_secret_access_key": "hush"},
    )
    assert "hush" not in repr(scan)


def test_deletion_files_of_other_fragments_are_not_read(numbers: LanceTable) -> None:
    """Many workers read a table together, and each would read the deletion files of all fragments."""
    numbers.delete("id IN (1, 6)")
    second = next(iter(Path(numbers.uri, "_deletions").glob("1-*")))
    second.unlink()
    scan = Scan.plan(numbers, columns=["id"], filter="id >= 0")
    assert 2 == len(fragment_sizes(scan))
    expected = arrow_for_spark(readable_schema(scan.schema))
    first = pa.Table.from_batches(read_pieces(scan, [FragmentRows(0)], expected))
    assert [0, 2, 3, 4] == first.column("id").to_pylist()
    with pytest.raises(CorruptFileError, match=f"{second.name}.*it is missing"):
        list(read_pieces(scan, [FragmentRows(1)], expected))


def test_workers_exempt_their_imports_from_garbage_collections(spark: SparkSession, numbers: LanceTable) -> None:
    """Spark collects garbage in a worker after each task, which takes most of a small task if imports are included."""

    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"objects": pa.array([gc.get_freeze_count()], pa.int64())})

    read_table(spark, numbers).collect()
    assert 10_000 < max(row.objects for row in spark.range(0, 8, 1, 8).mapInArrow(frozen, "objects long").collect())


def test_a_table_that_executors_do_not_see(spark: SparkSession, numbers: LanceTable) -> None:
    """Each action raises the error of the executor, and not the traceback of its worker."""
    df = read_table(spark, numbers)
    assert 3 == len(df.columns)
    # The driver has the version open, as where it is on a disk of the driver.
    Path(numbers.uri).rename(f"{numbers.uri}_elsewhere")
    said = f"the executor on .* finds no table at {numbers.uri}; .* all of them mount at the same path"
    actions: list[Callable[[DataFrame], object]] = [
        lambda frame: frame.collect(),
        lambda frame: frame.where("id > 3").count(),
        lambda frame: frame.select("id").take(2),
        lambda frame: frame.show(),
        lambda frame: frame.groupBy("Odd One").count().toArrow(),
    ]
    for action in actions:
        with pytest.raises(StoreError, match=said):
            action(df)


def test_fragments_that_cannot_match_are_in_no_partition(numbers: LanceTable) -> None:
    """What is known of the values of a data file saves its task; an executor sends it back with the file."""
    first, second = (fragment.fragment_id for fragment in numbers.to_lance().get_fragments())
    plan = Scan.plan(numbers, filter="id = 1")
    groups = partition_pieces(plan, fragment_sizes(plan))
    assert [[FragmentRows(first)]] == groups
    read = pa.Table.from_batches(list(read_pieces(plan, groups[0], readable_arrow(plan))))
    assert numbers.read(filter="id = 1").to_pylist() == read.to_pylist()
    assert [] == partition_pieces(Scan.plan(numbers, filter="id = 1000"), fragment_sizes(plan))
    unfiltered = Scan.plan(numbers)
    whole = [piece.fragment for group in partition_pieces(unfiltered, fragment_sizes(unfiltered)) for piece in group]
    assert [first, second] == whole
    staged = numbers.stage(numbers.read())
    assert staged.files == tuple(StagedFile(**json.loads(json.dumps(file.described()))) for file in staged.files)
    assert all(file.ranges for file in staged.files)


def readable_arrow(plan: Scan) -> pa.Schema:
    """The Arrow schema that Spark expects of a scan."""
    return arrow_for_spark(readable_schema(plan.schema))
