"""Compactions by Spark's executors, compared with those in one process."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_dagster import LanceResource, SparkResource, build_maintenance_job, compact_table, write_files
from lance_dagster.datafiles import scan_fragments
from lance_dagster.edit.compaction_plan import CompactionPlan
from lance_dagster.errors import CommitConflictError, InvalidInputError, StoreError
from lance_dagster.spark import spark_compaction
from lance_dagster.table import LanceTable
from lance_dagster.types import StagedFile

LINEAGE = ["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


@pytest.fixture
def table(tmp_table_uri: str) -> LanceTable:
    """Six fragments of four rows, one of them without its first row."""
    made = LanceTable.create(tmp_table_uri, pa.schema([pa.field("id", pa.int64())]))
    for start in range(0, 24, 4):
        made.append(pa.table({"id": range(start, start + 4)}, made.schema()))
    made.delete("id = 4")
    return made


def lineage(table: LanceTable) -> pa.Table:
    """The rows with their row ids and row versions."""
    return table.to_lance().scanner(columns=LINEAGE).to_table().sort_by("id")


def fragments(table: LanceTable) -> list[int]:
    """The number of rows of each fragment."""
    return [fragment.count_rows() for fragment in table.to_lance().get_fragments()]


def write(table: LanceTable, plan: CompactionPlan) -> list[Sequence[StagedFile]]:
    """Write the files of a plan in this process."""
    dataset = table.to_lance(plan.version)
    return [write_files(group.target, scan_fragments(dataset, group.fragments)) for group in plan.groups]


def test_executors_write_and_one_commit_follows(spark: SparkSession, table: LanceTable) -> None:
    """Each group is a task; rows, their ids and versions stay, and a repeated call has nothing to do."""
    before = lineage(table)
    version = compact_table(spark, table, target_rows=8, message="tidy", properties={"by": "night"})
    assert [4, 11, 8] == fragments(table)
    assert before == lineage(table)
    assert ("Rewrite", "tidy", "night") == (version.operation, version.message, version.properties["by"])
    # One version reserves the ids of the fragments.
    assert [9, 10] == table.branches.version_numbers(after=8)
    assert table.maintenance.verify().ok
    assert str(version) == str(compact_table(spark, table, target_rows=4))
    with pytest.raises(InvalidInputError):
        compact_table(spark, table, target_row=4)  # type: ignore[call-arg]


def test_commits_that_come_meanwhile(table: LanceTable) -> None:
    """Appended rows stay beside the compacted ones; after a deletion the compaction has to start again."""
    plan = table.maintenance.plan_compaction()
    files = write(table, plan)
    table.append(pa.table({"id": [100]}))
    table.maintenance.commit_compaction(plan, files)
    assert [1, 23] == sorted(fragments(table))
    plan = table.maintenance.plan_compaction()
    files = write(table, plan)
    table.delete("id = 7")
    with pytest.raises(CommitConflictError) as refused:
        table.maintenance.commit_compaction(plan, files)
    assert refused.value.retryable
    with pytest.raises(InvalidInputError):
        table.maintenance.commit_compaction(plan, [])


def test_what_only_pylance_can_rewrite_is_left_to_it(spark: SparkSession, table: LanceTable) -> None:
    """The index of the table covers the rows in their new places."""
    table.to_lance().create_scalar_index("id", "BTREE")
    compact_table(spark, table)
    assert [23] == fragments(table)
    (index,) = table.maintenance.indices()
    assert not index.needs_work


def test_the_maintenance_job_compacts_with_spark(
    spark: SparkSession, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The job uses Spark if it has the key of a Spark resource: a Spark job writes the rows."""
    lance = LanceResource(root=str(tmp_path))
    key = dg.AssetKey("orders")
    made = LanceTable.create(tmp_path / "orders.lance", pa.schema([pa.field("id", pa.int64())]))
    for number in range(3):
        made.append(pa.table({"id": [number]}))
    job = build_maintenance_job([key], spark_key="spark", collect=None).job
    resources = {"lance": lance, "spark": SparkResource(master="local[2]")}
    context = spark.sparkContext
    # A group of its own: Spark forgets old jobs, and other tests may have left a group behind.
    context.setJobGroup("maintenance", "compacts a table")
    result = job.execute_in_process(resources=resources, instance=instance)
    assert result.success
    assert 1 == len(context.statusTracker().getJobIdsForGroup("maintenance"))
    assert [3] == fragments(made)
    assert result.run_id == made.head().properties["dagster/run_id"]


def test_executors_that_do_not_see_the_table(spark: SparkSession, table: LanceTable) -> None:
    """The error is that of the executor, and not the traceback of its worker."""
    plan = table.maintenance.plan_compaction("main", target_rows=8)
    # The driver has read what it needs, as where the table is on a disk of the driver.
    Path(table.uri).rename(f"{table.uri}_elsewhere")
    with pytest.raises(StoreError, match="at the same path"):
        spark_compaction._rewritten(spark, table, plan.version, plan.groups)  # noqa: SLF001
