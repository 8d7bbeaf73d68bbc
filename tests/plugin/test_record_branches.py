"""What runs wrote with the release that kept no record waits, once it is recorded, as if they had recorded it."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceRepository, LanceResource, LanceTable, Unique
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.output_events import event_metadata
from lance_dagster.types import RunBranch, RunChain
from tests.plugin.shop import failure
from tests.plugin.stall import ITEMS, Stall

AUDITED = dg.AssetSelection.assets(ITEMS) | dg.AssetSelection.checks_for_assets(ITEMS)
SCHEMA = pa.schema([("id", pa.int64())])


class OldStall(Stall):
    """A stall whose runs append as the release before did: without a recorded write, and without its mark."""

    def __init__(self, lake: LanceResource) -> None:
        super().__init__(lake, [Unique("id")])

        @dg.asset(key=ITEMS)
        def items(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
            table = LanceTable.create(lake.uri_of(ITEMS), SCHEMA, exist_ok=True)
            branch = RunBranch(table=table, chain=RunChain.of_context(context))
            branch.ensure()
            properties = {
                md.ASSET_KEY: ITEMS.to_user_string(),
                md.RUN_ID: context.run.run_id,
                md.STEP_KEY: "shop__items",
                md.OUTPUT: "result",
            }
            version = table.append(pa.table({"id": self.ids}), branch=branch.name, properties=properties)
            return dg.MaterializeResult(metadata=event_metadata(version, SCHEMA, {}))

        self.new, self.assets[0] = self.assets[0], items


@pytest.fixture
def stall(lake: LanceResource) -> OldStall:
    """A stall of the release before, in which nothing is written yet."""
    return OldStall(lake)


def record(lake: LanceResource) -> LanceRepository:
    """Record the branches of the lake."""
    repository = LanceRepository.create(lake.root)
    assert () == repository.maintenance.record_branches(dry_run=False).left
    return repository


def test_old_branches_are_published(stall: OldStall, lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """*Materialize* publishes old branches, by their old audits, as soon as they are recorded, and not before."""
    for number in (1, 2):
        stall.write(instance, number)
    LanceRepository.create(lake.root)
    assert stall.publish(instance).success
    assert 2 == len(stall.table.branches.list("run/*"))
    record(lake)
    assert stall.publish(instance).success
    assert ([1, 2], {}) == (stall.published(), stall.table.branches.list("run/*"))


def test_an_old_branch_that_failed_waits(stall: OldStall, lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The audit of the release before keeps rows back, and the person is told which check failed."""
    stall.ids = [1, 1]
    result = stall.run(instance, selection=AUDITED)
    record(lake)
    refused = stall.publish(instance, ref=f"run/{result.run_id}")
    assert not refused.success
    assert "blocking check 'unique_id' failed" in failure(refused)


def test_an_old_branch_is_discarded(stall: OldStall, lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A discarded branch leaves nothing that waits."""
    ref = stall.write(instance, 1)
    repository = record(lake)
    assert stall.publish(instance, discard=ref, reason="wrong day").success
    table_id = repository.table_id("shop/items")
    closed = repository.head().writes[table_id]
    assert ({}, []) == (stall.table.branches.list("run/*"), repository.record.open_writes(table_id, closed))


def test_a_new_repetition_of_an_old_run_is_no_second_append(
    stall: OldStall, lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """An old run is published after it was recorded; its re-execution by this release is refused."""
    old = stall.write(instance, 1).removeprefix("run/")
    record(lake)
    assert stall.publish(instance).success
    stall.assets[0] = stall.new
    again = stall.run(instance, selection=[ITEMS], tags={"dagster/root_run_id": old, "dagster/parent_run_id": old})
    assert not again.success
    assert "repeating the step would add its rows again" in failure(again, "shop__items")
