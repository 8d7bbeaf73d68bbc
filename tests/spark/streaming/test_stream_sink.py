"""Streaming queries from table to table, interrupted between the commit of a batch and its record in the checkpoint."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from lance_dagster.errors import InvalidInputError
from lance_dagster.spark.streaming.stream_sink import EPOCH_ID, LanceStreamWriter, batch_version, upsert_batches
from lance_dagster.spark.writer import FileColumns
from lance_dagster.table import LanceTable

pytestmark = pytest.mark.slow

FORMAT = "lance_dagster"


@pytest.fixture
def source(tmp_path: Path) -> LanceTable:
    """A table of three rows, to be read as a stream."""
    made = LanceTable.create(tmp_path / "source", pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())]))
    made.append(pa.table({"id": [1, 2, 3], "n": [0, 0, 0]}))
    return made


def forget_last_batch(checkpoint: Path) -> None:
    """Leave the state of a kill between the commit of the sink and the record in the checkpoint."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()


def test_a_batch_that_is_repeated_is_one_version(spark: SparkSession, source: LanceTable, tmp_path: Path) -> None:
    """The query continues after the repeated batch; the first batch creates the table."""
    sink = tmp_path / "sink"

    def run() -> list[int]:
        """Run a query until its source has nothing new; return the numbers of its batches."""
        read = spark.readStream.format(FORMAT).load(source.uri)
        write = read.writeStream.format(FORMAT).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = write.queryName("numbers").trigger(availableNow=True).start(str(sink))
        query.awaitTermination()
        return [progress["batchId"] for progress in query.recentProgress]

    assert [0] == run()
    forget_last_batch(tmp_path / "checkpoint")
    source.append(pa.table({"id": [4], "n": [0]}))
    assert [0, 1] == run()
    table = LanceTable.open(sink)
    assert [{"id": number, "n": 0} for number in (1, 2, 3, 4)] == table.read().sort_by("id").to_pylist()
    versions = [table.at(f"main@{number}") for number in table.branches.version_numbers(after=1)]
    assert ["0", "1"] == [version.properties[EPOCH_ID] for version in versions]


@pytest.mark.parametrize(
    "options,expected",
    [
        ({"startingVersion": "3", "ignoreDeletes": "true"}, [{"id": 4, "n": 1}]),
        ({"skipChangeCommits": "true"}, [{"id": number, "n": number // 4} for number in (1, 3, 4)]),
        (
            {"startingVersion": "3", "changes": "true"},
            [
                {"_change_type": "delete", "_commit_version": 4, "id": 2, "n": 0},
                {"_change_type": "insert", "_commit_version": 3, "id": 4, "n": 1},
            ],
        ),
    ],
    ids=["deletes ignored", "changes skipped", "changes"],
)
def test_a_query_with_the_options_of_the_source(
    spark: SparkSession, source: LanceTable, tmp_path: Path, options: dict[str, str], expected: list[dict[str, object]]
) -> None:
    """Spark passes the options to the source, and its sink has what they let through."""
    source.append(pa.table({"id": [4], "n": [1]}))
    source.delete("id = 2")
    read = spark.readStream.format(FORMAT).options(**options).load(source.uri)
    write = read.writeStream.format(FORMAT).option("checkpointLocation", str(tmp_path / "checkpoint"))
    write.trigger(availableNow=True).start(str(tmp_path / "sink")).awaitTermination()
    assert expected == LanceTable.open(tmp_path / "sink").read().sort_by("id").to_pylist()


def test_a_query_in_complete_mode_replaces_all_rows(spark: SparkSession, source: LanceTable, tmp_path: Path) -> None:
    """Each batch has the whole result of an aggregation, and a repeated batch is not written again."""
    sink = tmp_path / "sink"

    def run(mode: str = "complete") -> None:
        counts = spark.readStream.format(FORMAT).load(source.uri).groupBy("n").count()
        write = counts.writeStream.format(FORMAT).outputMode(mode).trigger(availableNow=True)
        write.option("checkpointLocation", str(tmp_path / mode)).start(str(sink)).awaitTermination()

    run()
    source.append(pa.table({"id": [4, 5], "n": [0, 7]}))
    run()
    forget_last_batch(tmp_path / "complete")
    run()
    table = LanceTable.open(sink)
    assert [{"n": 0, "count": 4}, {"n": 7, "count": 1}] == table.read().sort_by("n").to_pylist()
    assert ["Overwrite", "Overwrite"] == [
        table.at(f"main@{number}").operation for number in table.branches.version_numbers(after=1)
    ]
    with pytest.raises(StreamingQueryException, match="lance_dagster does not support Update mode"):
        run("update")


def test_batches_are_upserted_once(spark: SparkSession, source: LanceTable, tmp_path: Path) -> None:
    """A repeated batch does not undo later commits."""
    table = LanceTable.create(tmp_path / "dest", source.schema())
    table.append(pa.table({"id": [3], "n": [7]}))

    def run() -> None:
        write = spark.readStream.format(FORMAT).load(source.uri).writeStream.trigger(availableNow=True)
        write = write.foreachBatch(upsert_batches(table, on=["id"]))
        write.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run()
    assert [0, 0, 0] == table.read().column("n").to_pylist()
    table.update({"n": "9"}, where="id = 1")
    forget_last_batch(tmp_path / "checkpoint")
    run()
    assert {1: 9, 2: 0, 3: 0} == dict(zip(*table.read().to_pydict().values(), strict=True))


def test_a_named_stream_loses_no_batch_of_a_new_checkpoint(
    spark: SparkSession, source: LanceTable, tmp_path: Path
) -> None:
    """Numbers of batches begin again; where the checkpoint is not known, a lower number is refused."""
    table = LanceTable.create(tmp_path / "dest", source.schema())

    def run(checkpoint: str) -> int:
        """Run a query of the stream; return how many versions it made."""
        before = table.head().number
        write = spark.readStream.format(FORMAT).load(source.uri).writeStream.trigger(availableNow=True)
        write = write.foreachBatch(upsert_batches(table, on=["id"], stream="orders"))
        write.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()
        return table.head().number - before

    assert 1 == run("a")
    source.append(pa.table({"id": [4], "n": [0]}))
    assert 1 == run("a")
    table.delete("true")
    assert 1 == run("b")
    assert [1, 2, 3, 4] == table.read().sort_by("id").column("id").to_pylist()
    for checkpoint in ("a", "b"):
        forget_last_batch(tmp_path / checkpoint)
        assert 0 == run(checkpoint)
    frame = spark.createDataFrame([(9, 9)], "id long, n long")
    unknown = upsert_batches(table, on=["id"], stream="unknown")
    for batch in (4, 4):
        unknown(frame, batch)
    with pytest.raises(InvalidInputError, match="now gets batch 0"):
        unknown(frame, 0)


def test_a_batch_is_looked_for_behind_other_commits(source: LanceTable) -> None:
    """A later batch of a query implies the earlier ones, and batches of another query do not count."""
    columns = FileColumns(source.schema(), tuple(source.schema().names))
    writer = LanceStreamWriter(source, "main", columns, overwrite=False)
    assert batch_version(source, "main", "q", 0) is None
    made = source.append(pa.table({"id": [4], "n": [0]}), properties={"lance.streaming.queryId": "q", EPOCH_ID: "4"})
    source.append(pa.table({"id": [5], "n": [0]}))
    assert made == batch_version(source, "main", "q", 4) == batch_version(source, "main", "q", 3)
    assert batch_version(source, "main", "q", 5) is None
    assert batch_version(source, "main", "r", 0) is None
    # Without a task there is nothing to commit.
    writer.commit([], 5)
    assert 4 == source.head().number


def test_a_stream_that_makes_no_sense_says_so(spark: SparkSession, source: LanceTable, tmp_path: Path) -> None:
    """Spark wraps the message, and no other error, such as an unbound variable, hides it."""
    read = spark.readStream.format(FORMAT).option("filter", "id > 1").load(source.uri)
    with pytest.raises(StreamingQueryException, match="a stream has no option 'filter'") as refused:
        read.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "a")).start().processAllAvailable()
    assert "UnboundLocalError" not in str(refused.value)
    sink = spark.readStream.format(FORMAT).load(source.uri).writeStream.format(FORMAT).option("branch", "nowhere")
    with pytest.raises(StreamingQueryException, match="no branch or tag 'nowhere'"):
        sink.option("checkpointLocation", str(tmp_path / "b")).start(source.uri).processAllAvailable()
