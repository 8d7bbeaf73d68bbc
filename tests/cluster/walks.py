"""The drivers that `test_standalone.py` starts: `python walks.py WALK MASTER TABLE`. Each ends with a line of JSON."""

import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import lance_dagster
from lance_dagster import (
    LanceTable,
    compact_table,
    delete_keys,
    local_session,
    read_changes,
    read_table,
    stage,
    upsert_frame,
)

ROWS, PARTITIONS = 400_000, 8
# Packages that executors need not have.
ABSENT = ("dagster", "dagster_pipes", "dagster_shared", "pandas", "polars")
LONGEST_WAIT_SECONDS = 300


def session(master: str) -> SparkSession:
    """A session with an executor on each worker, and speculation."""
    config = {
        "spark.executor.memory": "700m",
        "spark.executor.cores": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.speculation": "true",
        # Half of the tasks of a small stage are enough to see that one is slow.
        "spark.speculation.quantile": "0.5",
        "spark.sql.shuffle.partitions": "4",
    }
    return local_session("lance_dagster on a cluster", master, config)


def numbers(spark: SparkSession) -> DataFrame:
    """Rows with a number and its square."""
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id * id AS square")


def executors(spark: SparkSession) -> dict[str, list[str]]:
    """The Java processes that run tasks, and where their Python finds some packages; nowhere is an empty text."""
    packages = ("lance_dagster", *ABSENT)

    def environment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            specs = map(importlib.util.find_spec, packages)
            found = {name: (spec and spec.origin) or "" for name, spec in zip(packages, specs, strict=True)}
            yield pa.record_batch({"of": ["java", *found], "found": [str(java_process()), *found.values()]})

    rows = spark.range(0, 64, 1, 64).mapInArrow(environment, "of string, found string").distinct().collect()
    return {name: sorted(row.found for row in rows if row.of == name) for name in ("java", *packages)}


def java_process() -> int:
    """The id of the executor that started this Python worker, which is the parent of PySpark's daemon."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(daemon.rpartition(")")[2].split()[1])


def work(spark: SparkSession, table: LanceTable) -> dict[str, Any]:
    """Write, read, upsert, delete and compact."""
    table.append(stage(numbers(spark), table))
    numbers(spark).selectExpr(f"id + {ROWS} AS id", "square").write.format("lance_dagster").mode("append").save(
        table.uri
    )
    changed = spark.range(0, ROWS * 3, 3, PARTITIONS).selectExpr("id", "-1L AS square")
    merged = upsert_frame(changed, table, on=["id"])
    deleted = delete_keys(spark.range(10), table, on=["id"])
    before = len(table.to_lance().get_fragments())
    compact_table(spark, table, target_rows=200_000)
    read = read_table(spark, table)
    return {
        "executors": executors(spark),
        "source": spark.read.format("lance_dagster").load(table.uri).select("id").distinct().count(),
        "changes": read_changes(spark, table, "main@2", "main@3").count(),
        "merged": [merged.rows_added, merged.rows_updated],
        "deleted": deleted.rows_deleted,
        "rows": read.count(),
        "distinct": read.select("id").distinct().count(),
        "changed": read.where("square = -1").count(),
        "fragments": [before, len(table.to_lance().get_fragments())],
    }


def killed_executor(spark: SparkSession, table: LanceTable) -> dict[str, Any]:
    """Stage rows while the executor of one task is killed with half of its rows written."""
    folder = Path(table.uri).parent

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if context is not None and context.partitionId() == 1 and number == 2:
                try:
                    # The creation is exclusive, so only one attempt kills its executor.
                    (folder / "killed").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(java_process(), signal.SIGKILL)

    table.append(stage(numbers(spark).mapInArrow(kill_once, "id long, square long"), table))
    return {"killed": (folder / "killed").exists()}


def straggler(spark: SparkSession, table: LanceTable) -> dict[str, Any]:
    """Write rows in two ways, with a task whose first attempt waits until a second one has sent all of its rows."""
    return {
        "stage": _with_straggler(spark, table, "stage", lambda df: table.append(stage(df, table))),
        "save": _with_straggler(
            spark, table, "save", lambda df: df.write.format("lance_dagster").mode("append").save(table.uri)
        ),
    }


def _with_straggler(
    spark: SparkSession, table: LanceTable, way: str, write: Callable[[DataFrame], object]
) -> list[list[Any]]:
    """Write rows while one task is slow; return the number and the host of each of its attempts."""
    folder = Path(table.uri).parent / way
    folder.mkdir()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None or context.partitionId() != 1:
            yield from batches
            return
        attempt = context.attemptNumber()
        host = Path(f"/proc/{java_process()}/cmdline").read_text().split("--hostname\0")[1].split("\0")[0]
        (folder / f"{attempt} {host}").touch()
        for number, batch in enumerate(batches):
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while attempt == 0 and number == 1 and not (folder / "sent").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("Spark started no second attempt")
                time.sleep(0.05)
            yield batch
        # The first attempt goes on, so both may finish their files.
        (folder / "sent").touch()

    write(numbers(spark).mapInArrow(wait, "id long, square long"))
    attempts = (file.name.split() for file in folder.glob("* *"))
    return sorted([int(number), host] for number, host in attempts)


def killed_driver(spark: SparkSession, table: LanceTable) -> dict[str, Any]:
    """Stage rows, and kill this process before they are committed."""
    staged = stage(numbers(spark), table)
    assert staged.rows == ROWS
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def stream(spark: SparkSession, table: LanceTable) -> dict[str, Any]:
    """Copy rows that are appended to the table, until this process is killed or the file `stop` exists."""
    folder = Path(table.uri).parent
    read = spark.readStream.format("lance_dagster").option("maxVersionsPerTrigger", "1").load(table.uri)
    write = read.writeStream.format("lance_dagster").option("checkpointLocation", str(folder / "checkpoint"))
    write = write.trigger(availableNow=True) if (folder / "stop").exists() else write
    query = write.start(str(folder / "copy"))
    query.awaitTermination()
    progress = query.lastProgress
    return {"batch": progress and progress["batchId"]}


WALKS: dict[str, Callable[[SparkSession, LanceTable], dict[str, Any]]] = {
    walk.__name__: walk for walk in (work, killed_executor, straggler, killed_driver, stream)
}

if __name__ == "__main__":
    _, walk, master, place = sys.argv
    installed = Path(lance_dagster.__file__).is_relative_to(os.environ["PYTHONPATH"])
    spark = session(master)
    found = WALKS[walk](spark, LanceTable.open(place))
    spark.stop()
    sys.stdout.write(json.dumps({"installed": installed, **found}) + "\n")
