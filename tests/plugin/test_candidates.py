"""A candidate, which is what one run wrote to the tables of one publisher, is published whole or not at all."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InRange,
    LanceIOManager,
    LanceResource,
    LanceTable,
    build_branch_sweeper,
    build_publisher,
    build_table_checks,
)
from tests.plugin.appending_location import KEYS, Location
from tests.plugin.shop import Shop, failure


class Strict(Location):
    """Rows of `lines` must not be negative; `orders` may have any; `break_lines` lets the asset of `lines` fail."""

    break_lines = False

    def __init__(self, root: Path, instance: dg.DagsterInstance, **fields: Any) -> None:  # noqa: ANN401
        """Add the check of `lines`."""
        super().__init__(root, instance=instance, **fields)
        self.checks += build_table_checks(KEYS[1], [InRange("id", minimum=0)])

    def value(self, name: str) -> int:
        """The id that a run appends."""
        if name == "lines" and self.break_lines:
            raise ValueError("lines are not at home")
        return abs(self.number) if name == "orders" else self.number


@pytest.fixture
def strict(tmp_path: Path, instance: dg.DagsterInstance) -> Strict:
    """A location with one published run."""
    made = Strict(tmp_path / "lake", instance)
    assert made.run(1).success
    return made


def production(location: Location) -> tuple[list[int], list[int]]:
    """What readers see of both tables."""
    return location.seen(), location.seen("lines")


def test_a_failed_check_keeps_the_other_tables_of_its_run(strict: Strict) -> None:
    """*Materialize* alone publishes no table of a run in which one failed, even if only the other one is selected."""
    broken = strict.run(-2)
    assert not broken.success
    for selection in ([], [dg.AssetKey(["production", "shop", "orders"])]):
        done = strict.act(*selection)
        assert done.success
        said = [entry.user_message for entry in strict.instance.all_logs(done.run_id)]
        assert any(f"run/{broken.run_id}@3 waits with shop/lines" in text for text in said)
    assert ([1], [1]) == production(strict)


def test_a_table_of_a_failed_run_is_published_when_it_is_asked_for(strict: Strict) -> None:
    """A person publishes one table of a failed run by naming the run and selecting the node."""
    broken = strict.run(-2)
    assert strict.act(dg.AssetKey(["production", "shop", "orders"]), ref=f"run/{broken.run_id}").success
    assert ([1, 2], [1]) == production(strict)


def test_a_run_that_died_before_a_table_keeps_the_others(strict: Strict) -> None:
    """A table that its run planned to write, and did not write, counts as failed."""
    strict.break_lines = True
    assert not strict.run(2).success
    assert strict.act().success
    assert ([1], [1]) == production(strict)


def lose(location: Location, *, table: bool) -> None:
    """Delete the branch of `orders`, or the table."""
    orders = location.lance.table(KEYS[0])
    if table:
        shutil.rmtree(orders.uri)
        return
    (branch,) = orders.branches.list("run/*")
    orders.branches.delete(branch)


@pytest.mark.parametrize(
    "before,table",
    [
        pytest.param(True, False, id="branch"),
        pytest.param(False, False, id="branch of the first run"),
        pytest.param(False, True, id="table"),
    ],
)
def test_a_table_that_lost_its_branch_keeps_the_others(
    tmp_path: Path, instance: dg.DagsterInstance, *, before: bool, table: bool
) -> None:
    """A table whose branch somebody deleted keeps the others of its run, unless a person asks for these."""
    location = Strict(tmp_path / "lake", instance)
    assert not before or location.run(1).success
    waiting = location.run(2, publish=False)
    lose(location, table=table)
    for selection in ([], [dg.AssetKey(["production", "shop", "lines"])]):
        done = location.act(*selection)
        assert done.success
        said = "\n".join(entry.user_message for entry in location.instance.all_logs(done.run_id))
        assert f"run {waiting.run_id} materialized it, but left no branch with its rows, and main lacks them" in said
        assert "re-execute all steps of the run, or discard what is left of it, or publish what it wrote" in said
    lines = location.lance.table(KEYS[1])
    assert ([1] if before else []) == (location.seen("lines") if lines.tags.list() else [])
    assert location.act(dg.AssetKey(["production", "shop", "lines"]), ref=f"run/{waiting.run_id}").success
    assert ([1, 2] if before else [2]) == location.seen("lines")


@pytest.mark.parametrize(
    "nodes,table",
    [
        pytest.param(["lines"], False, id="branch and one node"),
        pytest.param(["orders", "lines"], True, id="table and all nodes"),
    ],
)
def test_a_run_that_lost_a_branch_publishes_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, nodes: list[str], *, table: bool
) -> None:
    """The publisher of the run itself refuses, too: the run wrote a table that is gone before the publisher looks."""
    location = Strict(tmp_path / "lake", instance)

    @dg.asset_check(asset=KEYS[1], additional_deps=[KEYS[0]], blocking=True)
    def meddling() -> dg.AssetCheckResult:
        lose(location, table=table)
        return dg.AssetCheckResult(passed=True)

    location.checks.append(meddling)
    location.number = 2
    promoted = [dg.AssetKey(["production", "shop", name]) for name in nodes]
    assert not location.act(*KEYS, *promoted).success
    assert {} == location.lance.table(KEYS[1]).tags.list()


@pytest.mark.parametrize("by_hand", [pytest.param(False, id="by a publication"), pytest.param(True, id="by hand")])
def test_a_table_whose_rows_are_on_main_keeps_nothing_back(strict: Strict, *, by_hand: bool) -> None:
    """A branch that is gone because its rows are on `main` is not missed."""
    waiting = strict.run(2, publish=False)
    branch, orders = f"run/{waiting.run_id}", strict.lance.table(KEYS[0])
    if by_hand:
        orders.merge(branch)
        orders.branches.delete(branch)
    else:
        assert strict.act(dg.AssetKey(["production", "shop", "orders"]), ref=branch).success
    assert {} == orders.branches.list("run/*")
    assert strict.act().success
    assert [1, 2] == strict.seen("lines")


def test_a_step_that_is_executed_again_does_not_make_a_run_whole(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table that a run was to write stays missing when a re-execution of another step succeeds."""
    shop.play(customers_fail=True)
    failed = shop.execute(instance)
    options = dg.ReexecutionOptions(failed.run_id, step_selection=["shop__orders_row_count"])
    assert shop.execute(instance, options).success
    assert shop.publish(instance).success
    assert {} == shop.table().tags.list()


def test_a_partition_that_came_along_is_materialized(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The node of a table that is published with the selected one has an event for the partition of the run."""
    days = dg.StaticPartitionsDefinition(["mon", "tue"])

    def table(name: str) -> dg.AssetsDefinition:
        @dg.asset(key=name, partitions_def=days, metadata={"lance/partition_expr": "day"})
        def rows(context: dg.AssetExecutionContext) -> pa.Table:
            return pa.table({"day": [context.partition_key]})

        return rows

    made = [table("a"), table("b")]
    assets = [*made, build_publisher(made, partitions_def=days, unchecked=True)]
    manager = LanceIOManager(lance=lake)
    options: Any = {"resources": {"lance": lake, "io_manager": manager}, "instance": instance}
    assert dg.materialize(made, partition_key="mon", **options).success
    a, b = (dg.AssetKey(["production", name]) for name in "ab")
    assert dg.materialize(assets, selection=[a], partition_key="mon", **options).success
    assert {"mon"} == instance.get_materialized_partitions(b)
    # A version that a person chooses is also reported for a partition whose event names no partition, or is missing.
    ref = {"ops": {"publish_production": {"config": {"ref": "main"}}}}
    assert dg.materialize(assets, selection=[b], partition_key="tue", run_config=ref, **options).success
    assert {"mon", "tue"} == instance.get_materialized_partitions(b)


def test_other_runs_are_published_meanwhile(strict: Strict) -> None:
    """A table that waits keeps back only the tables of its own run."""
    assert not strict.run(-2).success
    assert strict.run(3, publish=False).success
    assert strict.act().success
    assert ([1, 3], [1, 3]) == production(strict)


def test_a_run_that_is_superseded_in_one_table_is_not_published_in_the_others(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Of a run of both tables and a newer one of the orders, only the newer one is published, from either node."""
    made = Strict(tmp_path / "lake", instance, mode="overwrite")
    assert made.run(1).success
    assert made.run(2, publish=False).success
    made.number = 3
    assert dg.materialize(
        [*made.assets, *made.checks],
        selection=dg.AssetSelection.assets(KEYS[0]) | dg.AssetSelection.checks_for_assets(KEYS[0]),
        resources={"lance": made.lance, "io_manager": LanceIOManager(lance=made.lance)},
        instance=instance,
    ).success
    assert made.act(dg.AssetKey(["production", "shop", "lines"])).success
    assert ([1], [1]) == production(made)
    done = made.act()
    assert ([3], [1]) == production(made)
    said = [entry.user_message for entry in instance.all_logs(done.run_id)]
    assert any("what its run wrote to shop/orders is superseded by run/" in text for text in said)


def two_layers() -> tuple[dg.AssetsDefinition, dg.AssetsDefinition, dg.AssetsDefinition]:
    """Two tables, of which the second one is computed from the promoted first one, and the publisher of both."""

    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"id": [1, 2]})

    @dg.asset(ins={"orders": dg.AssetIn(["production", "orders"])})
    def summary(orders: pa.Table) -> pa.Table:
        return pa.table({"orders": [orders.num_rows]})

    return orders, summary, build_publisher([orders, summary], unchecked=True)


def test_a_publisher_of_two_layers(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A table that is computed from a promoted node of the same publisher is published after it, in the same run."""
    *_, publisher = nodes = two_layers()
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    hold = {"ops": {"publish_production": {"config": {"hold": True, "reason": "not yet"}}}}
    release = {"ops": {"publish_production": {"config": {"release": True, "reason": "now"}}}}
    assert dg.materialize(nodes, **options).success
    assert [2] == lake.table("summary").read("production")["orders"].to_pylist()
    # Held, the publisher keeps the second layer from being written; what waits is published after the release.
    promoted = list(publisher.keys)
    assert dg.materialize(nodes, selection=promoted, run_config=hold, **options).success
    assert not dg.materialize(nodes, raise_on_error=False, **options).success
    assert dg.materialize(nodes, selection=promoted, run_config=release, **options).success
    assert dg.materialize(nodes, selection=promoted, **options).success
    assert "main@3" == lake.table("orders").tags.get("production").ref


LAYERED = """
import os
import dagster as dg
import pyarrow as pa
from lance_dagster import LanceIOManager, LanceResource, RowCount, Unique, build_publisher, build_table_checks

lance = LanceResource(root=os.environ["LAKE"])

@dg.asset
def orders() -> pa.Table:
    return pa.table({"id": [1, 1]})

@dg.asset(ins={"orders": dg.AssetIn(["production", "orders"])})
def summary(orders: pa.Table) -> pa.Table:
    return orders

checks = [*build_table_checks(orders, [Unique("id"), RowCount()]), *build_table_checks(summary, [RowCount()])]
publisher = build_publisher([orders, summary])
few = dg.AssetSelection.assets(orders, summary, *publisher.keys).without_checks()
for check in checks:
    few |= dg.AssetSelection.checks(*[key for key in check.check_keys if "unique" not in key.name])
definitions = dg.Definitions(
    assets=[orders, summary, publisher],
    asset_checks=checks,
    jobs=[dg.define_asset_job("few", selection=few)],
    resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
)
"""


@pytest.mark.slow
def test_a_publisher_of_two_layers_waits_for_deselected_checks(tmp_path: Path) -> None:
    """Dagster divides this publisher into two steps, and takes deselected checks out of the graph of the run."""
    (tmp_path / "layered.py").write_text(LAYERED)
    (tmp_path / "home").mkdir()
    environment = {**os.environ, "LAKE": str(tmp_path / "lake"), "DAGSTER_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "dagster", "job", "execute", "-f", str(tmp_path / "layered.py"), "-j", "few"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "orders: blocking check 'unique_id' was not run on run/" in done.stdout + done.stderr
    assert not LanceTable.open(str(tmp_path / "lake" / "orders.lance")).tags.list()


def test_a_waiting_table_is_published_before_the_layer_that_reads_it(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """A run that writes only the second layer publishes what waits of the first, as `eager()` conditions ask for."""
    orders, summary, publisher = nodes = two_layers()
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    for versions in (1, 2):
        assert dg.materialize(nodes, selection=[orders], **options).success
        assert dg.materialize(nodes, selection=dg.AssetSelection.assets(summary, *publisher.keys), **options).success
        assert [2] == lake.table("summary").read("production")["orders"].to_pylist()
        assert versions == len(lake.table("orders").tags.history("production"))


def test_a_tag_that_is_held_keeps_the_whole_run(strict: Strict) -> None:
    """A held tag stops both tables, in the job and by *Materialize*; after the release both are published."""
    table = LanceTable.open(strict.lance.uri_of(KEYS[0]))
    table.tags.hold("production", reason="under audit")
    assert "it waits with shop/orders" in failure(strict.run(2))
    strict.act()
    assert ([1], [1]) == production(strict)
    table.tags.release("production", reason="audited")
    assert strict.act().success
    assert ([1, 2], [1, 2]) == production(strict)


def test_a_candidate_is_discarded_whole(strict: Strict) -> None:
    """A discard from the node of one table deletes the branches of all tables of the run."""
    broken = strict.run(-2)
    assert strict.act(dg.AssetKey(["production", "shop", "lines"]), discard=broken.run_id, reason="wrong").success
    for key in KEYS:
        assert {} == strict.lance.table(key).branches.list("run/*")


def test_rows_of_a_failed_attempt_are_not_published(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """An attempt wrote `a` and failed, and the next one left `a` out: only `b` is published, and the rest is swept."""
    attempts: list[int] = []

    @dg.multi_asset(
        outs={"a": dg.AssetOut(is_required=False), "b": dg.AssetOut()}, retry_policy=dg.RetryPolicy(max_retries=1)
    )
    def both() -> Iterator[dg.Output[pa.Table]]:
        attempts.append(1)
        if len(attempts) == 1:
            yield dg.Output(pa.table({"id": [666]}), "a")
            raise ValueError("a was a mistake")
        yield dg.Output(pa.table({"id": [1]}), "b")

    publisher = build_publisher([both], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    assert dg.materialize([both, publisher], **options).success
    assert dg.materialize([both, publisher], selection=list(publisher.keys), **options).success
    a, b = lake.table("a"), lake.table("b")
    assert ({}, [1]) == (a.tags.list(), b.read("production")["id"].to_pylist())
    sensor = build_branch_sweeper("sweep", ["a", "b"])
    context = dg.build_sensor_context(instance=instance, resources={"lance": lake})
    swept = sensor.evaluate_tick(context)
    assert "succeeded without this output" in str(swept.skip_message)
    assert {} == a.branches.list("run/*")
