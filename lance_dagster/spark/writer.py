"""Write Spark frames as data files, on the executors.

There are two entry points. `stage` writes the files and hands their description back to the calling process, which
commits them: errors, the version and the choice of commit stay with the caller. `LanceWriter` serves
`df.write`, where Spark runs the commit in a process of its own and reports nothing but success.

Spark sends rows to Python in batches. To keep a batch within a number of bytes it computes the size of every row,
which for narrow rows costs more than the transfer and the encoding together. `stage` therefore disables the limit
of bytes while it runs, and limits the number of rows instead. Schemas with binary columns keep the limit of bytes,
because a few rows of them can fill the memory.
"""

import functools
import json
import re
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lance_dagster.datafiles import RowScope, RowTally, StagedFile, StagedFiles, WriteTarget, write_files
from lance_dagster.errors import InvalidInputError, LanceDagsterError, SchemaMismatchError, StoreError
from lance_dagster.spark.spark_schema import check_fits, holds_binary, row_bytes, to_table_batch
from lance_dagster.table import LanceTable

WRITE_PROPERTY = "lance_dagster.write"
_BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# The largest value that Spark takes for the limit of bytes; no value turns the limit off.
_UNLIMITED = str(2**31 - 1)
_BATCH_BYTES = 4 * 1024 * 1024
_FEWEST_RECORDS, _MOST_RECORDS = 1024, 65536


def stage(
    df: DataFrame,
    table: LanceTable,
    branch: str = "main",
    *,
    vectors: Mapping[str, int] | None = None,
    schema: pa.Schema | None = None,
    base: str | None = None,
) -> StagedFiles:
    """Write a Spark frame's rows as data files of a table, for a commit to name.

    Works with classic Spark and Spark Connect; the executors need this package. Until the result is given to
    `table.append`, `overwrite` or `replace_where` no reader sees a row. Files of failed tasks stay behind,
    unnamed, until garbage is collected. The frame is computed once; each of its non-empty partitions becomes at
    least one file, so `coalesce` a frame of many small ones first. Columns are matched by name. Spark's limits on
    the size of a batch are changed while this runs, unless the session sets them explicitly.

    Args:
        df: The rows.
        table: Where the files go.
        branch: The branch the commit will be made on, whose columns the frame must have.
        vectors: The length of vector columns, checked against the table's before anything is written.
        schema: The columns after the commit, for an `overwrite` that changes them; see `replacement_schema`.
            None means the branch's own.
        base: The name of the base path to write to; None for the table itself.

    Raises:
        SchemaMismatchError: The frame's columns or types are not the table's, or a value does not fit its
            column.
        RefNotFoundError: There is no such branch.
    """
    target = table.write_target(schema, branch, base)
    check_fits(df.schema, target.schema, vectors=vectors)
    return stage_counted(df, target, RowTally())


def stage_counted(df: DataFrame, target: WriteTarget, tally: RowTally) -> StagedFiles:
    """Write a Spark frame's rows as `stage` does, and count them on the executors.

    The columns have to be those of the target, by name. Numbers of another type are cast when their values fit. After
    the first row outside of the tally's scope a task writes no more rows but counts the rest, and nothing is raised:
    the caller reads `tally.outside` before it commits the files.

    Args:
        df: The rows.
        target: Where the files go, and the schema of the table.
        tally: Has the scope of the rows, and gets the numbers of all executors.

    Raises:
        SchemaMismatchError: A value does not fit its column.
    """
    task = functools.partial(_stage_partition, target, tally.scope)
    with large_batches(df.sparkSession, target.schema), _errors_of_executors():
        rows = df.mapInArrow(task, "file string, tally string").collect()
    # Spark runs a task again after a failure and may run it twice (speculation); it returns the rows of one attempt,
    # so the files and the counts of the others are never used.
    for row in rows:
        if row.tally is not None:
            tally.absorb(row.tally)
    files = tuple(StagedFile(**json.loads(row.file)) for row in rows if row.file is not None)
    return StagedFiles(schema=target.schema, files=files, base=target.base)


def _stage_partition(
    target: WriteTarget, scope: RowScope | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one partition's files, and yield their descriptions and then the counts; runs on an executor."""
    tally = RowTally(scope)
    described: list[tuple[str | None, str | None]] = [
        (json.dumps({"name": file.name, "rows": file.rows, "size": file.size}), None)
        for file in write_files(target, tally.passing(to_table_batch(batch, target.schema) for batch in batches))
    ]
    described.append((None, tally.encoded()))
    files, counts = zip(*described, strict=True)
    yield pa.RecordBatch.from_arrays([pa.array(files, pa.string()), pa.array(counts, pa.string())], ["file", "tally"])


class _BatchSettings:
    """The batch settings that were changed in one Spark session, and the number of calls that still need them."""

    def __init__(self, spark: SparkSession) -> None:
        # Keep settings that the user set: they may be necessary to make the rows fit into memory.
        self.keys = {_BYTES_PER_BATCH, _RECORDS_PER_BATCH} - set(spark.conf.getAll)
        self.calls = 0


# Settings belong to the session, and several threads may stage frames in it at once. Calls are counted, so that the
# first call to end does not take the settings away from the others.
_lock = threading.Lock()
_changed: weakref.WeakKeyDictionary[SparkSession, _BatchSettings] = weakref.WeakKeyDictionary()


@contextmanager
def large_batches(spark: SparkSession, schema: pa.Schema) -> Iterator[None]:
    """Let Spark send batches of about 4 MiB; the last of several calls restores the session's settings."""
    records = max(_FEWEST_RECORDS, min(_MOST_RECORDS, _BATCH_BYTES // row_bytes(schema)))
    wanted = {_RECORDS_PER_BATCH: str(records)}
    if not holds_binary(schema):
        wanted[_BYTES_PER_BATCH] = _UNLIMITED
    with _lock:
        settings = _changed.get(spark) or _BatchSettings(spark)
        _changed[spark] = settings
        settings.calls += 1
        for key in settings.keys & wanted.keys():
            spark.conf.set(key, wanted[key])
    try:
        yield
    finally:
        with _lock:
            settings.calls -= 1
            if not settings.calls:
                for key in _changed.pop(spark).keys:
                    spark.conf.unset(key)


@contextmanager
def _errors_of_executors() -> Iterator[None]:
    """Raise this package's error where Spark reports it as the text of a Python worker's traceback."""
    try:
        yield
    except PySparkException as error:
        # The traceback of a chained error names several errors; the last one was raised to Spark.
        raised = re.findall(r"^lance_dagster\.errors\.(\w+): (.*)$", str(error), re.MULTILINE)
        if not raised:
            raise
        name, message = raised[-1]
        # Only errors whose constructor takes just the message can be rebuilt from the text.
        known = {kind.__name__: kind for kind in (InvalidInputError, SchemaMismatchError, StoreError)}
        raise known.get(name, LanceDagsterError)(message) from None


@dataclass(frozen=True, slots=True)
class _WrittenFiles(WriterCommitMessage):
    """The files that one task wrote, as its message to the commit."""

    files: tuple[StagedFile, ...]


class LanceWriter(DataSourceArrowWriter):
    """Write the rows of Spark's `df.write`, and commit them as one version.

    Spark may call `abort` after a commit that landed, so `abort` deletes nothing: the garbage collector removes
    files that no version names. The version's property `lance_dagster.write` is a uuid, generated once for each
    `save()`, by which a repeated commit finds the version that it already made.
    """

    def __init__(self, table: LanceTable, branch: str, *, schema: pa.Schema, overwrite: bool) -> None:
        """Fix the branch's head, the schema of the files and the uuid of this write."""
        self._uri = table.uri
        self._branch = branch
        self._target = table.write_target(schema, branch)
        self._overwrite = overwrite
        self._base = table.head(branch).number
        # Made on the driver, before Spark pickles this object: all tasks and every repetition of the commit share it.
        self._write = uuid.uuid4().hex

    # Spark's own Arrow writer changes the type of this argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Write one task's rows; runs on an executor."""
        batches = (to_table_batch(batch, self._target.schema) for batch in iterator)
        return _WrittenFiles(write_files(self._target, batches))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks as one version."""
        # Open the table again: the commit runs in another process than the one that planned the write.
        table = LanceTable.open(self._uri, self._target.storage_options)
        if self._is_committed(table):
            return
        files = tuple(file for message in messages if isinstance(message, _WrittenFiles) for file in message.files)
        staged = StagedFiles(self._target.schema, files)
        save = table.overwrite if self._overwrite else table.append
        save(staged, branch=self._branch, properties={WRITE_PROPERTY: self._write})

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the commit may have landed, so the files must not be deleted."""

    def _is_committed(self, table: LanceTable) -> bool:
        """Return whether a version since the start of this write was made by it."""
        since = table.branches.version_numbers(self._branch, after=self._base)
        made = (table.at(f"{self._branch}@{number}") for number in since)
        return any(version.properties.get(WRITE_PROPERTY) == self._write for version in made)
