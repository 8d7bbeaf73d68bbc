"""Compact a table with Spark: executors rewrite the rows, and the calling process plans and commits.

The plan is made by the rules of `table.maintenance.compact`. Each group of fragments is one task. Of a task that ran
more than once Spark returns one attempt, so the files of other attempts are named by no version and are collected as
garbage.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_dagster.datafiles import scan_fragments
from lance_dagster.datafiles.writing import StagedFile, write_files
from lance_dagster.edit.compaction import CompactionGoal
from lance_dagster.edit.compaction_plan import CompactionGroup
from lance_dagster.format.validation import check_class, check_options
from lance_dagster.history.versions import Version
from lance_dagster.spark.reader import opened
from lance_dagster.spark.worker import begin_task
from lance_dagster.spark.writer import check_session, errors_of_executors
from lance_dagster.store.retries import is_retryable_conflict, repeated
from lance_dagster.table import LanceTable

# How often the job is run when other commits change the same fragments meanwhile.
_ATTEMPTS = 5


def compact_table(
    spark: SparkSession,
    table: LanceTable,
    branch: str = "main",
    *,
    message: str | None = None,
    properties: Mapping[str, str] | None = None,
    **goal: Unpack[CompactionGoal],
) -> Version:
    """Rewrite adjacent small fragments, and fragments with many deleted rows, to larger ones by a Spark job.

    There is one commit of the rows, after a version that reserves the ids of their fragments. The result is that of
    `table.maintenance.compact`, which this calls for a table with blobs or with an index that only pylance can rewrite.
    Each group of fragments is a task; `target_rows` decides how many
    groups there are. When another commit changed one of the fragments meanwhile, the job is run again.

    Args:
        spark: A classic or Spark Connect session.
        table: The table.
        branch: The branch to compact.
        message: The commit message.
        properties: Stored with the transaction.
        **goal: `target_rows`, the rows a fragment should have at least, unless its files have 512 MiB;
            `deleted_share`, the share of deleted rows above which a fragment is rewritten even alone; and
            `mix_partitions`, whether rows of different partitions may get into one fragment.

    Returns:
        The compacted version; the newest one when no fragment needs rewriting.

    Raises:
        InvalidInputError: An option is unknown or makes no sense.
        CommitConflictError: Concurrent commits changed the same fragments at each attempt.
    """
    # A misspelt option is refused by its name; without this check it would be a TypeError of another method.
    check_session(spark)
    check_class("table", table, LanceTable, "LanceTable.open(uri)")
    check_options(compact_table, goal, CompactionGoal)

    def attempt() -> Version | None:
        # Planned at each attempt: after a conflict, the fragments of the former plan are not all there any more. The
        # files of that attempt are named by no version, and the garbage collector deletes them later.
        plan = table.maintenance.plan_compaction(branch, **goal)
        if plan.only_pylance:
            return None
        if not plan.groups:
            return table.head(branch)
        staged_files = _rewritten(spark, table, plan.version, plan.groups)
        return table.maintenance.commit_compaction(plan, staged_files, message=message, properties=properties)

    version = repeated(attempt, is_retryable_conflict, times=_ATTEMPTS)
    if version is None:
        return table.maintenance.compact(branch=branch, message=message, properties=properties, **goal)
    return version


def _rewritten(
    spark: SparkSession, table: LanceTable, version: Version, groups: Sequence[CompactionGroup]
) -> list[list[StagedFile]]:
    """Rewrite the rows of the groups on the executors, and return the files of each."""
    task = functools.partial(_rewrite, table.uri, version, groups)
    # One row in each partition: a group is one task, which Spark repeats alone when it fails.
    numbers = spark.range(0, len(groups), 1, len(groups))
    with errors_of_executors():
        rows = numbers.mapInArrow(task, "number long, files string").collect()
    # By number, because the commit takes the groups in the order of the plan.
    files = {row.number: json.loads(row.files) for row in rows}
    return [[StagedFile(**file) for file in files[number]] for number in range(len(groups))]


def _rewrite(
    uri: str, version: Version, groups: Sequence[CompactionGroup], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the files of the groups with these numbers and yield their descriptions; runs on an executor."""
    begin_task()
    for batch in numbers:
        for value in batch.column(0):
            number = int(value.as_py())
            group = groups[number]
            # The id of the version is part of the cache key: another table at the same place is not taken for this one.
            options = group.target.storage_options
            dataset = opened(uri, str(version), version.id, options, fragments=group.fragments)
            files = write_files(group.target, scan_fragments(dataset, group.fragments))
            # A description goes back to the driver as JSON, because Spark moves only columns between its processes.
            described = [file.described() for file in files]
            columns: list[pa.Array[Any]] = [
                pa.array([number], pa.int64()),
                pa.array([json.dumps(described)], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["number", "files"])
