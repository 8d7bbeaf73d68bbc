"""A daemon of Spark's Python workers, in which the first attempt of each task fails while it writes a data file.

`spark.python.daemon.module` names this module. Only jobs with the local property `FAILURE` fail: it has the point of a
task's life, what happens there, and the file to which each failure adds a line.
"""

import os
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.daemon import manager

from lance_dagster.datafiles.writing import _OpenFile
from lance_dagster.types import StagedFile

FAILURE = "lance_dagster.tests.failure"
POINTS = ("before its file", "in its file", "after its file")
FAILURES = ("raises", "exits")


def fail(point: str) -> None:
    """End the first attempt of a task here if its job is to fail at this point."""
    task = TaskContext.get()
    wanted = task.getLocalProperty(FAILURE) if task is not None else None
    if task is None or wanted is None or task.attemptNumber():
        return
    expected, failure, log = wanted.split("|")
    if point != expected:
        return
    with Path(log).open("a") as file:
        file.write(f"{task.partitionId()}\n")
    if failure == "exits":
        # As a worker whose memory is used up.
        os._exit(1)
    raise RuntimeError(f"the task fails {point}")


class _FailingFile(_OpenFile):
    """A data file at whose points a task may fail."""

    def __init__(self, *arguments: object) -> None:
        fail("before its file")
        super().__init__(*arguments)  # type: ignore[arg-type]

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rest = super().write(batch)
        fail("in its file")
        return rest

    def close(self) -> StagedFile:
        made = super().close()
        fail("after its file")
        return made


if __name__ == "__main__":
    from lance_dagster.datafiles import writing

    writing._OpenFile = _FailingFile  # type: ignore[assignment, misc]  # noqa: SLF001 - the one place that every way of writing has
    manager()
