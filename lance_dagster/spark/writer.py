"""Write Spark frames as data files, on the executors.

There are two entry points. `stage` writes the files and hands their description back to the calling process, which
commits them: errors, the version and the choice of commit stay with the caller. `LanceWriter` serves
`df.write`, where Spark runs the commit in a process of its own and reports nothing but success.

Spark sends rows to Python in batches. To keep a batch within a number of bytes it computes the size of every row,
which for narrow rows costs more than the transfer and the encoding together. `stage` therefore disables the limit
of bytes while it runs, and limits the number of rows instead. Schemas with binary columns keep the limit of bytes,
because a few such rows can fill the memory.
"""

import functools
import json
import logging
import re
import socket
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lance_dagster.datafiles import RowScope, RowTally
from lance_dagster.datafiles.writing import StagedFile, StagedFiles, WriteTarget, write_files
from lance_dagster.edit.predicate_check import predicate_scope, refuse_outside
from lance_dagster.errors import CorruptFileError, InvalidInputError, LanceDagsterError, SchemaMismatchError, StoreError
from lance_dagster.format.layout import VERSIONS
from lance_dagster.format.validation import check_class, check_options
from lance_dagster.spark.narrowing import narrowed
from lance_dagster.spark.spark_schema import batch_rows, check_fits, holds_binary, names_in_table, to_table_batch
from lance_dagster.spark.worker import begin_task
from lance_dagster.table import LanceTable

WRITE_PROPERTY = "lance_dagster.write"
_BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# The largest value that Spark takes for the limit of bytes; no value turns the limit off.
_UNLIMITED = str(2**31 - 1)
# Spark's own limit of bytes.
_LIMITED = str(64 * 1024 * 1024)
SESSION_BATCHES = {_BYTES_PER_BATCH: _UNLIMITED, _RECORDS_PER_BATCH: "4096"}
"""The batches of a session in which Spark writes tables of any columns by itself, as with `df.write`.

With a limit of bytes, Spark computes the size of each row, which takes as long as the rest of a write. Without it the
number of rows alone bounds a batch, so that there are fewer than the 10,000 rows that are Spark's default.
"""
# The size of a partition that `coalesce="auto"` makes, as Spark estimates it, and a number that no frame reaches.
_PARTITION_BYTES = 64 * 1024 * 1024
_MOST_PARTITIONS = 100_000
_DYNAMIC_EXECUTORS = "spark.dynamicAllocation.enabled"
_CASE_SENSITIVE = "spark.sql.caseSensitive"

Coalesce = int | Literal["auto"] | None
"""The largest number of partitions that a frame is written in; see `stage`."""


class StageOptions(TypedDict, total=False):
    """The keyword arguments of `stage` that say which columns and rows the files have and where they go."""

    vectors: Mapping[str, int] | None
    schema: pa.Schema | None
    base: str | None
    where: str | None


def check_frame(df: object, table: object) -> None:
    """Refuse arguments that are not a frame of Spark and a table.

    Raises:
        InvalidInputError: The message names the argument and an example.
    """
    check_class("df", df, DataFrame, "spark.read.parquet(path)")
    check_class("table", table, LanceTable, "LanceTable.open(uri)")


def check_session(spark: object) -> None:
    """Refuse an argument that is not a session of Spark.

    Raises:
        InvalidInputError: The message names the argument and an example.
    """
    # Sessions of Spark Connect have a class of their own, which needs packages that classic Spark does not.
    if not callable(getattr(spark, "createDataFrame", None)):
        check_class("spark", spark, SparkSession, "local_session()")


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether names that differ in upper and lower case only are different names in a session."""
    return spark.conf.get(_CASE_SENSITIVE) == "true"


def meant_names(spark: SparkSession, names: Sequence[str], table_names: Sequence[str]) -> list[str]:
    """Return what columns are called in a table, by the setting of a session for upper and lower case."""
    return list(names) if is_case_sensitive(spark) else names_in_table(names, table_names)


def with_table_names(df: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return a frame whose columns are called as in a table; see `meant_names`."""
    names = meant_names(df.sparkSession, df.columns, schema.names)
    return df if names == df.columns else df.toDF(*names)


def stage(
    df: DataFrame,
    table: LanceTable,
    branch: str = "main",
    *,
    coalesce: Coalesce = None,
    **options: Unpack[StageOptions],
) -> StagedFiles:
    """Write a Spark frame's rows as data files of a table, for a commit to name.

    Works with classic Spark and Spark Connect; the executors need this package. Until the result is given to
    `table.append`, `overwrite` or `replace_where` no reader sees a row. Files of failed tasks stay behind,
    unnamed, until garbage is collected. The frame is computed once; each of its non-empty partitions becomes at
    least one file. Columns are matched by name, in any case unless `spark.sql.caseSensitive` is true. Spark's limits on
    the size of a batch are changed while this runs, unless the session sets them explicitly.

    Args:
        df: The rows.
        table: Where the files go.
        branch: The branch the commit will be made on, whose columns the frame must have.
        coalesce: The largest number of partitions, into which the frame's are merged without a shuffle. `"auto"` merges
            partitions that Spark estimates to be small, and keeps at least one for each core; it changes nothing where
            Spark has no estimate, and with Spark Connect. The frame is then also computed in so few tasks, so None is
            better where a few rows take long to compute.
        **options: `vectors`, the length of vector columns, is checked against the table's before anything is written.
            `schema` has the columns after the commit, for an `overwrite` that changes them (see `replacement_schema`);
            without it they are the branch's own. `base` is the name of the base path to write to instead of the table
            itself. `where` is a predicate in Lance's SQL that each row has to satisfy, such as the one that
            `table.replace_where` is then given. Executors evaluate it while they write; otherwise `replace_where`
            reads the files again to check them.

    Raises:
        InvalidInputError: An option is unknown, or a row does not satisfy `where`.
        SchemaMismatchError: The frame's columns or types are not the table's, or a value does not fit its
            column.
        RefNotFoundError: There is no such branch.
    """
    check_frame(df, table)
    check_options(stage, options, StageOptions)
    target = table.write_target(options.get("schema"), branch, options.get("base"))
    df = with_table_names(df, target.schema)
    check_fits(df.schema, target.schema, vectors=options.get("vectors"))
    return stage_where(coalesced(df, coalesce), target, options.get("where"))


def stage_where(df: DataFrame, target: WriteTarget, where: str | None) -> StagedFiles:
    """Write a Spark frame's rows as `stage_counted` does, and refuse rows that do not satisfy a predicate.

    Raises:
        InvalidInputError: The predicate is invalid, or a row does not satisfy it.
        SchemaMismatchError: A value does not fit its column.
    """
    tally = RowTally(None if where is None else predicate_scope(where, target.schema))
    staged = stage_counted(df, target, tally)
    # Not by the tasks, which Spark would run again in vain.
    refuse_outside(tally)
    return replace(staged, satisfies=where)


def coalesced(df: DataFrame, partitions: Coalesce) -> DataFrame:
    """Merge partitions of a frame without a shuffle; see `stage`.

    Raises:
        InvalidInputError: The argument is neither a positive number nor "auto".
    """
    if partitions is None:
        return df
    if partitions == "auto":
        return _coalesced_by_size(df)
    # A type checker sees no other value here, but not every caller has a type checker.
    if type(partitions) is not int or partitions < 1:
        raise InvalidInputError(f"coalesce is a number of partitions, 'auto' or None, not {partitions!r}")
    return df.coalesce(partitions)


def _coalesced_by_size(df: DataFrame) -> DataFrame:
    spark = df.sparkSession
    if not isinstance(df, ClassicDataFrame) or spark.conf.get(_DYNAMIC_EXECUTORS, "false") == "true":
        # Executors that are started on demand are few now, and would stay few for so few tasks.
        return df
    # An upper bound in most plans, and a huge number where Spark knows nothing. No job is run for it.
    size = int(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())  # noqa: SLF001
    partitions = max(spark.sparkContext.defaultParallelism, -(-size // _PARTITION_BYTES))
    # `coalesce` makes no more partitions than there are, so a large estimate changes nothing.
    return df.coalesce(partitions) if partitions < _MOST_PARTITIONS else df


def stage_counted(df: DataFrame, target: WriteTarget, tally: RowTally) -> StagedFiles:
    """Write a Spark frame's rows as `stage` does, and count them on the executors.

    The columns have to be the columns of the target, by name. Numbers of another type are cast when their values fit.
    After the first row outside of the tally's scope a task writes no more rows but counts the rest, and nothing is
    raised: the caller reads `tally.outside` before it commits the files.

    Args:
        df: The rows.
        target: Where the files go, and the schema of the table.
        tally: Has the scope of the rows, and gets the numbers of all executors.

    Raises:
        SchemaMismatchError: A value does not fit its column.
    """
    df = narrowed(df)
    names = df.columns
    target = _with_ranges(target, tally.scope)
    task = functools.partial(_stage_partition, target, tally.scope, names)
    # `mapInArrow` looks columns up by name, without regard to case, and would find `a` and `A` ambiguous.
    numbered = df.toDF(*[f"c{number}" for number in range(len(names))])
    with large_batches(df.sparkSession, target.schema, target.stored_row_bytes), errors_of_executors():
        rows = numbered.mapInArrow(task, "file string, tally string").collect()
    # Spark runs a task again after a failure and may run it twice (speculation); it returns the rows of one attempt,
    # so the files and the counts of other attempts are never used.
    for row in rows:
        if row.tally is not None:
            tally.absorb(row.tally)
    files = tuple(StagedFile(**json.loads(row.file)) for row in rows if row.file is not None)
    return StagedFiles(schema=target.schema, files=files, base=target.base)


def _with_ranges(target: WriteTarget, scope: RowScope | None) -> WriteTarget:
    return target if scope is None else target.with_ranges(scope.within.columns)


def _stage_partition(
    target: WriteTarget, scope: RowScope | None, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one partition's files, and yield their descriptions and then the counts; runs on an executor."""
    begin_task()
    check_visible(target)
    tally = RowTally(scope)
    named = (batch.rename_columns(list(names)) for batch in batches)
    described: list[tuple[str | None, str | None]] = [
        (json.dumps(file.described()), None)
        for file in write_files(target, tally.passing(to_table_batch(batch, target.schema) for batch in named))
    ]
    described.append((None, tally.encoded()))
    files, counts = zip(*described, strict=True)
    yield pa.RecordBatch.from_arrays([pa.array(files, pa.string()), pa.array(counts, pa.string())], ["file", "tally"])


def check_visible(target: WriteTarget) -> None:
    """Refuse to write where the table is not, which would make its folder on a disk that no other machine sees.

    Raises:
        StoreError: The path of the table leads to no table on this machine.
    """
    data = Path(target.data_uri)
    root = data.parent
    # A table that is written before it is created has only the data folder.
    if "://" not in target.data_uri and target.base is None and not ((root / VERSIONS).is_dir() or data.is_dir()):
        raise StoreError(
            f"the executor on {socket.gethostname()} finds no table at {root}; a table that several machines write has "
            "to be on object storage or on a file system that all of them mount at the same path"
        )


class _BatchSettings:
    """The batch settings that were changed in one Spark session, and the number of calls that still need them."""

    def __init__(self, spark: SparkSession) -> None:
        # Keep settings that the user set: they may be necessary to make the rows fit into memory.
        current = {key: spark.conf.getAll.get(key) for key in SESSION_BATCHES}
        self.former = {key: value for key, value in current.items() if value in (None, SESSION_BATCHES[key])}
        self.calls = 0

    def restore(self, spark: SparkSession) -> None:
        for key, value in self.former.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


# Settings belong to the session, and several threads may stage frames in it at once. Calls are counted, so that the
# first call to end does not take the settings away from the other calls.
_lock = threading.Lock()
_log = logging.getLogger(__name__)
_advised: list[str] = []
_changed: weakref.WeakKeyDictionary[SparkSession, _BatchSettings] = weakref.WeakKeyDictionary()


@contextmanager
def large_batches(spark: SparkSession, schema: pa.Schema, stored_row_bytes: int = 0) -> Iterator[None]:
    """Let Spark send batches of about 16,000 rows; the last of several calls restores the session's settings.

    Args:
        spark: The session.
        schema: The columns of the batches. There is a limit of bytes where one is binary.
        stored_row_bytes: See `batch_rows`.
    """
    settings_needed = {_RECORDS_PER_BATCH: str(batch_rows(schema, stored_row_bytes))}
    settings_needed[_BYTES_PER_BATCH] = _LIMITED if holds_binary(schema) else _UNLIMITED
    with _lock:
        settings = _changed.get(spark) or _BatchSettings(spark)
        _changed[spark] = settings
        settings.calls += 1
        for key in settings.former:
            spark.conf.set(key, settings_needed[key])
    try:
        yield
    finally:
        with _lock:
            settings.calls -= 1
            if not settings.calls:
                _changed.pop(spark).restore(spark)


def set_session_batches(spark: SparkSession) -> None:
    """Let a session send large batches in all of its writes, unless it has limits of its own."""
    own = spark.conf.getAll
    for key in SESSION_BATCHES.keys() - own.keys():
        spark.conf.set(key, SESSION_BATCHES[key])


def advise_once() -> None:
    """Say in the log, once in a process, what makes writes of the data source faster in the session of the caller."""
    session = SparkSession.getActiveSession() if not _advised else None
    # Executors have no session, and neither have callers that only ask for the name of the format.
    if session is None:
        return
    _advised.append(session.version)
    if _BYTES_PER_BATCH not in session.conf.getAll:
        _log.warning(
            'spark.conf.set("%s", "%s") makes df.write.format("lance_dagster") up to twice as fast in this session, '
            "since Spark then does not compute the size of each row; with large binary values leave it, or lower "
            "%s. local_session and SparkResource set both.",
            _BYTES_PER_BATCH,
            _UNLIMITED,
            _RECORDS_PER_BATCH,
        )


@contextmanager
def errors_of_executors() -> Iterator[None]:
    """Raise this package's error where Spark reports it as the text of a Python worker's traceback."""
    try:
        yield
    except PySparkException as error:
        # The traceback of a chained error names several errors; the last one was raised to Spark.
        raised = re.findall(r"^lance_dagster\.errors\.(\w+): (.*)$", str(error), re.MULTILINE)
        if not raised:
            raise
        name, message = raised[-1]
        damaged, separator, problem = message.partition(" is damaged: ")
        if name == CorruptFileError.__name__ and separator:
            raise CorruptFileError(damaged, problem) from None
        # Only errors whose constructor takes just the message can be rebuilt from the text.
        error_classes = {kind.__name__: kind for kind in (InvalidInputError, SchemaMismatchError, StoreError)}
        raise error_classes.get(name, LanceDagsterError)(message) from None


@dataclass(frozen=True, slots=True)
class _WrittenFiles(WriterCommitMessage):
    """The files that one task wrote and the counts of its rows, as its message to the commit."""

    files: tuple[StagedFile, ...]
    tally: str


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of data files, and what the columns of a frame are called there, in the order of the frame."""

    schema: pa.Schema
    names: tuple[str, ...]

    def batches(self, frame_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task of Spark with the names and types of the files; runs on an executor.

        Raises:
            SchemaMismatchError: A value does not fit its column, or names differ in upper and lower case and the
                session takes such names for different ones.
        """
        for batch in frame_batches:
            frame_names = batch.schema.names
            same = frame_names == list(self.names)
            if not same:
                self._check_case(frame_names)
            yield to_table_batch(batch if same else batch.rename_columns(list(self.names)), self.schema)

    def _check_case(self, frame_names: Sequence[str]) -> None:
        context = TaskContext.get()
        # Spark tells the setting to tasks, and not to the process in which a source plans its write.
        if context is not None and context.getLocalProperty(_CASE_SENSITIVE) == "true":
            unknown = [name for name in frame_names if name not in self.names]
            raise SchemaMismatchError(
                f"the columns of the Spark frame are not those of the table: the table has no "
                f"{', '.join(map(repr, unknown))}, since {_CASE_SENSITIVE} is true in this session; "
                f"the table's columns are {', '.join(self.schema.names)}"
            )


class LanceWriter(DataSourceArrowWriter):
    """Write the rows of Spark's `df.write`, and commit them as one version.

    Spark may call `abort` after a commit that landed, so `abort` deletes nothing: the garbage collector removes
    files that no version names. The version's property `lance_dagster.write` is a uuid, generated once for each
    `save()`, by which a repeated commit finds the version that it already made.
    """

    def __init__(
        self,
        table: LanceTable,
        branch: str,
        *,
        columns: FileColumns,
        overwrite: bool,
        replace_where: str | None = None,
        partitions: Sequence[str] = (),
    ) -> None:
        """Fix the branch's head, the columns of the files and the uuid of this write.

        Raises:
            InvalidInputError: The predicate `replace_where` is invalid.
        """
        self._uri = table.uri
        self._branch = branch
        self._target = table.write_target(columns.schema, branch)
        self._overwrite = overwrite
        self._columns = columns
        self._replace_where = replace_where
        self._scope = None if replace_where is None else predicate_scope(replace_where, columns.schema)
        self._target = _with_ranges(self._target, self._scope)
        self._partitions = partitions
        self._base = table.head(branch).number
        # Made on the driver, before Spark pickles this object: all tasks and every repetition of the commit share it.
        self._write = uuid.uuid4().hex

    # Spark's own Arrow writer changes the type of this argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Write one task's rows; runs on an executor."""
        begin_task()
        check_visible(self._target)
        tally = RowTally(self._scope)
        files = write_files(self._target, tally.passing(self._columns.batches(iterator)))
        return _WrittenFiles(files, tally.encoded())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks as one version.

        Raises:
            InvalidInputError: A row does not satisfy the predicate of a replacement.
        """
        # Open the table again: the commit runs in another process than the process that planned the write.
        table = LanceTable.open(self._uri, self._target.storage_options)
        if self._is_committed(table):
            return
        tally = RowTally(self._scope)
        task_files = [message for message in messages if isinstance(message, _WrittenFiles)]
        for message in task_files:
            tally.absorb(message.tally)
        # Not by the tasks, which Spark would run again in vain.
        refuse_outside(tally)
        files = tuple(file for message in task_files for file in message.files)
        staged = StagedFiles(self._target.schema, files, satisfies=self._replace_where)
        properties = {WRITE_PROPERTY: self._write}
        save = table.overwrite if self._overwrite else table.append
        if self._replace_where is not None:
            save = functools.partial(table.replace_where, self._replace_where)
        save(staged, branch=self._branch, partitions=self._partitions, properties=properties)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the commit may have landed, so the files must not be deleted."""

    def _is_committed(self, table: LanceTable) -> bool:
        """Return whether a version since the start of this write was made by it."""
        since = table.branches.version_numbers(self._branch, after=self._base)
        versions = (table.at(f"{self._branch}@{number}") for number in since)
        return any(version.properties.get(WRITE_PROPERTY) == self._write for version in versions)
