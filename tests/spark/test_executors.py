"""Rows stay on the executors, survive a lost shuffle, and need bounded memory."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lance_dagster import stage, upsert_frame
from lance_dagster.datafiles import RowTally
from lance_dagster.spark.keyed_rows import KeyedWrite, stage_upsert_counted
from lance_dagster.spark.spark_schema import target_schema
from lance_dagster.table import LanceTable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RESULT_BYTES, MOST_MEBIBYTES = "spark.driver.maxResultSize", 350
# A process keeps the cores of its first session, so each number of cores needs its own process.
WORK = """
import json, sys
from lance_dagster import local_session, read_table, stage, upsert_frame
from lance_dagster.spark.spark_schema import target_schema
from lance_dagster.table import LanceTable

spark = local_session(master=sys.argv[1], config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4"})
df = spark.range(0, 20_000, 1, 6).selectExpr("id", "id % 7 AS day", "array(id, null) AS li", "id / 3 AS x")
table = LanceTable.create(sys.argv[2], target_schema(df.schema))
table.append(stage(df, table))
df.selectExpr("id + 20000 AS id", "day", "li", "x").write.format("lance_dagster").mode("append").save(table.uri)
upsert_frame(spark.range(39_990, 40_010).selectExpr("id", "-1L AS day", "array(id) AS li", "0D AS x"), table, ["id"])
rows = read_table(spark, table)
found = rows.where("day <= 3").groupBy("day").agg({"id": "sum", "x": "max", "*": "count"}).orderBy("day").collect()
whole = sorted(map(str, rows.collect()))
print(json.dumps([table.head().number, [list(map(str, row)) for row in found], whole]))
"""


def test_no_rows_come_to_the_driver(spark: SparkSession, tmp_table_uri: str) -> None:
    """Spark fails jobs whose results are too large, but not those of a write or an upsert."""
    df = spark.range(0, 40_000, 1, 4).selectExpr("id", "sha2(cast(id AS string), 512) AS text")
    table = LanceTable.create(tmp_table_uri, target_schema(df.schema))
    settings = spark.sparkContext._jsc.sc().conf()  # noqa: SLF001 - Spark has no other way
    usual = settings.get(RESULT_BYTES, "1g")
    settings.set(RESULT_BYTES, "512k")
    try:
        with pytest.raises(Py4JJavaError, match="maxResultSize"):
            df.collect()
        table.append(stage(df, table))
        # Each changed row returns eight bytes to the driver.
        upsert_frame(spark.range(30_000, 50_000).selectExpr("id", "'new' AS text"), table, ["id"])
        # The same holds for an upsert that is committed after a column was added.
        more = df.selectExpr("id", "text", "sha2(text, 512) AS more")
        write = KeyedWrite(table=table, branch="main", on=["id"], rules={}, schema=target_schema(more.schema))
        staged = stage_upsert_counted(more, write, RowTally())
        added = table.columns.add(pa.field("more", pa.string()))
        table.upsert(replace(staged, version=added.number), on=["id"])
    finally:
        settings.set(RESULT_BYTES, usual)
    assert [50_000, 10_000] == [table.count_rows(), table.count_rows("main", "text = 'new'")]
    assert [40_000, 10_000] == [table.count_rows("main", f"more IS {null} NULL") for null in ("NOT", "")]


@pytest.mark.soak
def test_a_stage_that_runs_again_after_a_lost_shuffle(spark: SparkSession, tmp_table_uri: str, tmp_path: Path) -> None:
    """If the input of a task is gone, Spark computes it again, and each row is written once, in one version."""
    made, lost = tmp_path / "made", tmp_path / "lost"
    made.touch()

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with made.open("a") as file:
            file.write("made\n")
        yield from batches

    def lose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and not lost.exists():
            lost.touch()
            # These folders belong to this Spark alone.
            for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for file in Path(folder).rglob("shuffle_*"):
                    file.unlink(missing_ok=True)

    df = spark.range(0, 4000, 1, 4).mapInArrow(make, "id long").repartition(8, "id").mapInArrow(lose, "id long")
    table = LanceTable.create(tmp_table_uri, target_schema(df.schema))
    table.append(stage(df, table))
    assert 4 < len(made.read_text().splitlines())
    assert [2] == table.branches.version_numbers(after=1)
    assert list(range(4000)) == sorted(table.read()["id"].to_pylist())  # type: ignore[type-var]


@pytest.mark.soak
def test_one_core_and_two_give_equal_results(tmp_path: Path) -> None:
    """Rows, version numbers and sums are equal."""

    def found(cores: int) -> list[object]:
        command = [sys.executable, "-c", WORK, f"local[{cores}]", str(tmp_path / f"table{cores}")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stderr
        result: list[object] = json.loads(done.stdout.splitlines()[-1])
        return result

    one, two = found(1), found(2)
    assert one == two
    assert 40_010 == len(one[2])  # type: ignore[arg-type]


@pytest.mark.soak
def test_the_memory_of_workers_is_bounded() -> None:
    """The bound holds for rows of every shape and for large partitions."""
    command = [sys.executable, "-m", "benchmarks", "--print", "--only", "Spark, memory of workers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    peaks = [int(peak) for peak in re.findall(r"(\d+) MiB \|", done.stdout)]
    assert 20 == len(peaks)
    # A smaller value would mean that no worker was found.
    assert min(peaks) > 100
    assert max(peaks) <= MOST_MEBIBYTES, done.stdout
