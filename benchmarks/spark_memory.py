"""Measure the peak memory of Spark's Python workers while they write and read each shape of data."""

import re
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.spark import DATA, SCALE, session
from lance_dagster import LanceTable
from lance_dagster.spark import read_table, stage, target_schema

_PROC = Path("/proc")
_MARK = "LANCE_DAGSTER_BENCH_WORKER"


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
    read_table(frame.sparkSession, table, filter=condition).write.format("noop").mode("overwrite").save()


def _peak(mark: str) -> int:
    """Return the bytes of memory that the largest of the workers with a mark has had."""
    found = 0
    for process in _PROC.glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}\0".encode() in (process / "environ").read_bytes():
                line = re.search(r"VmHWM:\s*(\d+) kB", (process / "status").read_text())
                found = max(found, 1024 * int(line.group(1)) if line else 0)
        except OSError:
            # The process ended, or is another user's.
            continue
    return found
