"""What was published is not published again after its record was collected."""

import os
import time
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from lance_dagster import ConflictError, LanceRepository, LanceResource, Unique
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.types import CommitRetention
from tests.plugin.shop import failure
from tests.plugin.stall import ITEMS, Stall

OLD = CommitRetention(promotions=1, keep_for=timedelta(0))
"""Everything that is a day old, while other processes are at work."""


def collect(lake: LanceResource) -> int:
    """Make the repository two days older and collect it; return how many candidates were collected."""
    for path in Path(lake.root, "_repository").rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - timedelta(days=2).total_seconds(),) * 2)
    return LanceRepository.open(lake.root).maintenance.collect(OLD, dry_run=False).candidates


def test_a_late_repetition_is_refused(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The re-execution of a run whose record was collected says so before it writes; a new run is published."""
    stall = Stall(lake, [Unique("id")])
    first = stall.write(instance, 1).removeprefix("run/")
    assert stall.publish(instance).success
    stall.write(instance, 2)
    assert stall.publish(instance).success
    assert 1 == collect(lake)
    again = stall.run(instance, selection=[ITEMS], tags={"dagster/root_run_id": first, "dagster/parent_run_id": first})
    assert f"the record of run {first} was collected" in failure(again, "shop__items")
    stall.write(instance, 3)
    assert stall.publish(instance).success
    assert [1, 2, 3] == stall.published()


def test_a_branch_of_a_collected_write_is_refused(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A worker that commits long after its write was discarded leaves a branch that nobody publishes."""
    stall = Stall(lake, [Unique("id")])
    assert stall.run(instance).success
    late = stall.write(instance, 2)
    table, head = stall.table, stall.table.head(late)
    metadata = table.branches.get(late).metadata
    assert stall.publish(instance, discard=late, reason="the worker is dead").success
    stall.write(instance, 3)
    assert stall.publish(instance).success
    collect(lake)
    table.branches.create(late, metadata={key: metadata[key] for key in ("dagster/run_id", "dagster/root_run_id")})
    table.append(table.read("main").slice(0, 1), branch=late, properties=head.properties)
    assert not stall.publish(instance, ref=late).success
    with pytest.raises(ConflictError):
        RecordView(repository=LanceRepository.open(lake.root)).on_branch(table, table.head(late))
    assert [1, 3] == stall.published()
