"""Write the batches of Spark's structured streams to a table, each exactly once.

Spark may repeat a batch: it notes that a batch is done only after the sink has committed it. Each version that a stream
makes therefore has the id of the query and the number of the batch among its properties, put there by the same commit
as the rows. A batch that has such a version already is not written again.

The properties have the names that lance-spark's sink uses.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Unpack

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from lance_dagster.datafiles.writing import StagedFile, StagedFiles, write_files
from lance_dagster.errors import InvalidInputError
from lance_dagster.history.context import Properties
from lance_dagster.history.versions import Version
from lance_dagster.spark.keyed_rows import UpsertOptions, upsert_frame
from lance_dagster.spark.worker import begin_task
from lance_dagster.spark.writer import FileColumns, check_visible
from lance_dagster.table import LanceTable

QUERY_ID, EPOCH_ID = "lance.streaming.queryId", "lance.streaming.epochId"
# The id of the query, which is the id of its checkpoint, where a stream has a name instead of it.
_CHECKPOINT = "lance_dagster.streaming.checkpoint"
_QUERY_PROPERTY = "sql.streaming.queryId"


def batch_version(
    table: LanceTable, branch: str, query: str, batch: int, *, checkpoint: str | None = None
) -> Version | None:
    """Return the version that a batch of a query, or a later batch of the query, made on a branch; None without one.

    Versions are looked through from the newest to the last version that the query made. Versions of another checkpoint
    are passed over where both checkpoints are known: another checkpoint numbers its batches anew.
    """
    for number in reversed(table.branches.version_numbers(branch)):
        version = table.at(f"{branch}@{number}")
        properties = version.properties
        if properties.get(QUERY_ID) == query and (
            checkpoint is None or properties.get(_CHECKPOINT, checkpoint) == checkpoint
        ):
            # Batches are committed in their order, so an older version is of an earlier batch.
            return version if int(version.properties.get(EPOCH_ID, -1)) >= batch else None
    return None


def upsert_batches(
    table: LanceTable,
    on: list[str],
    branch: str = "main",
    *,
    stream: str | None = None,
    message: str | None = None,
    properties: Properties = None,
    **rules: Unpack[UpsertOptions],
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that upserts each batch of a stream exactly once.

    Args:
        table: The table.
        on: The key columns. A key may come once in a batch.
        branch: The branch.
        stream: What identifies the stream when it is started again; None for the id of the query, which is that of its
            checkpoint. Only a classic session knows the id. A new checkpoint numbers its batches from 0 again: with
            Spark Connect give it a new name. A batch with a lower number than the newest one of the name raises
            `InvalidInputError` there.
        message: The message of each commit.
        properties: Kept with each commit, beside the id of the stream and the number of the batch.
        **rules: The rules of `upsert_frame`.

    Example:
        frames.writeStream.option("checkpointLocation", place).foreachBatch(upsert_batches(table, on=["id"])).start()
    """

    def write(df: DataFrame, batch: int) -> None:
        checkpoint = _query_of(df)
        query = stream or checkpoint
        if query is None:
            raise InvalidInputError(
                "the id of the query is not known here; name the stream: upsert_batches(..., stream='orders')"
            )
        batch_made = batch_version(table, branch, query, batch, checkpoint=checkpoint)
        if batch_made is not None:
            _check_repeated(batch_made, query, batch, checkpoint)
            return
        commit_properties = {**(properties or {}), **_properties(query, batch)}
        if stream and checkpoint:
            commit_properties[_CHECKPOINT] = checkpoint
        upsert_frame(df, table, on, branch, message=message, properties=commit_properties, **rules)

    return write


def _query_of(df: DataFrame) -> str | None:
    """Return the id of the query that a batch is of; None where the session does not know it."""
    context = df.sparkSession.sparkContext if isinstance(df, ClassicDataFrame) else None
    return (context.getLocalProperty(_QUERY_PROPERTY) if context is not None else None) or None


def _check_repeated(newest_version: Version, query: str, batch: int, checkpoint: str | None) -> None:
    """Refuse to pass over a batch that may differ from the batch that was written under its number.

    Raises:
        InvalidInputError: A batch of a higher number was written, maybe by a query with another checkpoint.
    """
    newest = int(newest_version.properties[EPOCH_ID])
    same = checkpoint is not None and checkpoint in (query, newest_version.properties.get(_CHECKPOINT))
    # Spark repeats only the last batch of a query.
    if batch < newest and not same:
        raise InvalidInputError(
            f"stream {query!r} has written batch {newest} in {newest_version} and now gets batch {batch}: a query with "
            "a new checkpoint numbers its batches from 0 again, so give it a new name: upsert_batches(..., "
            f"stream='{query}-2')"
        )


def _properties(query: str, batch: int) -> Mapping[str, str]:
    return {QUERY_ID: query, EPOCH_ID: str(batch)}


@dataclass(frozen=True, slots=True)
class _BatchFiles(WriterCommitMessage):
    """The files that one task of a batch wrote, and the query that the batch is of."""

    query: str
    files: tuple[StagedFile, ...]


class LanceStreamWriter(DataSourceStreamArrowWriter):
    """Write one batch of a stream; Spark makes a new writer for each batch, and a second writer to commit it."""

    def __init__(self, table: LanceTable, branch: str, columns: FileColumns, *, overwrite: bool) -> None:
        """Keep where the rows go; with `overwrite`, each batch replaces all rows."""
        self._target, self._uri = table.write_target(columns.schema, branch), table.uri
        self._branch, self._columns, self._overwrite = branch, columns, overwrite

    # Spark's own Arrow writer changes the type of this argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Write one task's rows; runs on an executor."""
        begin_task()
        check_visible(self._target)
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_PROPERTY) if context is not None else None
        if not query:
            raise InvalidInputError("Spark does not say which query this batch is of, so it cannot be written once")
        return _BatchFiles(query, write_files(self._target, self._columns.batches(iterator)))

    # Spark's name of the argument.
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files of all tasks as one version, unless the batch was committed before."""
        task_files = [message for message in messages if isinstance(message, _BatchFiles)]
        files = tuple(file for message in task_files for file in message.files)
        # A batch without rows changes nothing, unless it replaces all rows by none.
        if not task_files or not (files or self._overwrite):
            return
        # The writer keeps the URI and not the table, because Spark sends it to the executors.
        table = LanceTable.open(self._uri, self._target.storage_options)
        query = task_files[0].query
        if batch_version(table, self._branch, query, batchId) is not None:
            return
        save = table.overwrite if self._overwrite else table.append
        staged = StagedFiles(self._target.schema, files, self._target.base)
        save(staged, branch=self._branch, properties=_properties(query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the commit may have landed, so the files must not be deleted."""
