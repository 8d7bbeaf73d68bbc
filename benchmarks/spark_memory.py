"""Measure the peak memory of Spark's Python workers for each shape of data, and of the driver for two sizes of data."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark import DATA, SCALE, session
from lance_dagster import LanceTable, compact_table, local_session, read_changes, read_table, stage, upsert_frame
from lance_dagster.spark.java import ensure_java
from lance_dagster.spark.spark_schema import target_schema

_PROC = Path("/proc")
_MARK = "LANCE_DAGSTER_BENCH_WORKER"
_FORMAT = "lance_dagster"
# The numbers of rows of the driver's measurement, and the number of partitions of both.
DRIVER_ROWS = (1_000_000, 10_000_000)
_PARTITIONS = 8
# The executor is a process of its own, so what the driver's Java holds is the driver's.
_MASTER = "local-cluster[1,2,2048]"


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the peak of one worker for each shape: usual partitions and one large one, written and read.

    The rows of the large partition are read under a filter, for which a task reads whole fragments.
    """
    with session() as spark:
        environment = spark.sparkContext.environment
        for name, (count, columns, vectors) in DATA.items():
            scaled = max(1000, int(count * SCALE))
            expressions = [f"{expression} AS {column}" for column, expression in columns.items()]
            peaks = []
            for parts, filtered in ((4, False), (1, True)):
                frame = spark.range(0, scaled, 1, parts).selectExpr(*expressions)
                uri, schema = str(folder / f"{name}, {parts}.lance"), target_schema(frame.schema, vectors)
                condition = f"{next(iter(columns))} IS NOT NULL" if filtered else None
                for run in (_write, _read):
                    # Spark starts new workers for another environment, so their memory has not been used before.
                    mark = environment[_MARK] = f"{name} {parts} {run.__name__}"
                    run(frame, LanceTable.create(uri, schema, exist_ok=True), condition)
                    peaks.append(f"{_peak(mark) / 2**20:.0f} MiB")
            yield (name, *peaks)


def _write(frame: DataFrame, table: LanceTable, _: str | None) -> None:
    table.append(stage(frame, table))


def _read(frame: DataFrame, table: LanceTable, condition: str | None) -> None:
    _noop(read_table(frame.sparkSession, table, filter=condition))


def driver_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the peaks of the driver's Python and Java for each operation, with few rows and with ten times as many."""
    home = _spark_home(folder)
    found = []
    for rows in (max(1000, int(number * SCALE)) for number in DRIVER_ROWS):
        # The memory of a Java only grows, so each size has a driver of its own.
        done = subprocess.run(  # noqa: S603 - this module
            [sys.executable, "-m", "benchmarks.spark_memory", str(rows), str(folder / str(rows))],
            env={**os.environ, "SPARK_HOME": str(home)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        peaks: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
        found.append(peaks)
    for name in found[0]:
        yield (name, *(f"{peaks[name][part] / 2**20:.0f} MiB" for part in (0, 1) for peaks in found))


def _spark_home(folder: Path) -> Path:
    """Return a folder with the contents of PySpark's: Spark puts the work of a local cluster there."""
    home = folder / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def _driver_peaks(rows: int, folder: Path) -> dict[str, list[int]]:
    """Run each operation in a new session; return the bytes of the driver's Python and of its Java at their peak."""
    ensure_java()
    config = {
        "spark.driver.memory": "2g",
        "spark.executor.memory": "2g",
        "spark.sql.shuffle.partitions": str(_PARTITIONS),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    spark = local_session("memory of the driver", master=_MASTER, config=config)
    java = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]  # noqa: SLF001
    found = {}
    for name, run in _driver_operations(spark, rows, folder).items():
        for process in _driver(java):
            with contextlib.suppress(OSError):
                (process / "clear_refs").write_text("5")
        run()
        own, of_java, *others = map(_highest, _driver(java))
        found[name] = [max(own, *others), of_java]
    spark.stop()
    return found


def _driver_operations(spark: SparkSession, rows: int, folder: Path) -> dict[str, Callable[[], object]]:
    columns = DATA["narrow, 5 columns"][1]
    frame = spark.range(0, rows, 1, _PARTITIONS).selectExpr(*(f"{value} AS {name}" for name, value in columns.items()))
    table = LanceTable.create(str(folder / "table.lance"), target_schema(frame.schema))
    changed = frame.where("id % 1000 = 0")
    return {
        "`stage` and append": lambda: table.append(stage(frame, table)),
        "`df.write`": lambda: frame.write.format(_FORMAT).mode("append").save(str(folder / "saved.lance")),
        "`read_table`": lambda: _noop(read_table(spark, table)),
        "data source": lambda: _noop(spark.read.format(_FORMAT).load(table.uri)),
        "`upsert_frame` of a thousandth": lambda: upsert_frame(changed, table, ["id"]),
        "`read_changes`": lambda: _noop(read_changes(spark, table, "main~1", "main")),
        "`compact_table`": lambda: compact_table(spark, table, target_rows=rows),
    }


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _driver(java: int) -> list[Path]:
    """Return the driver's processes: this Python, its Java, and the ones that Java starts to plan and to commit."""
    parents: dict[int, int] = {}
    for process in _PROC.glob("[0-9]*"):
        try:
            # The Java of an executor, and the workers below it, are no part of the driver.
            if "java" not in (process / "comm").read_text():
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [os.getpid(), java]
    for number in found:
        found += [child for child, parent in parents.items() if parent == number and child not in found]
    return [_PROC / str(number) for number in found]


def _peak(mark: str) -> int:
    """Return the bytes of memory that the largest of the workers with a mark has had."""
    found = 0
    for process in _PROC.glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}\0".encode() in (process / "environ").read_bytes():
                found = max(found, _highest(process))
        except OSError:
            # The process ended, or is another user's.
            continue
    return found


def _highest(process: Path) -> int:
    """Return the bytes of memory that a process has had at most; 0 for one that ended or is another user's."""
    line = None
    with contextlib.suppress(OSError):
        line = re.search(r"VmHWM:\s*(\d+) kB", (process / "status").read_text())
    return 1024 * int(line.group(1)) if line else 0


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_driver_peaks(int(sys.argv[1]), Path(sys.argv[2]))) + "\n")
