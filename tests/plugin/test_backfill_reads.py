# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""A backfill over several assets: its later runs read what its earlier runs wrote, and are published with them."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pandas as pd
import pytest

from lance_dagster import InRange, LanceIOManager, LanceResource, build_publisher, build_table_checks
from tests.plugin.shop import failure

pytestmark = pytest.mark.slow


def _events(instance: dg.DagsterInstance, kind: dg.DagsterEventType) -> Iterator[Any]:
    for run in instance.get_runs():
        yield from instance.get_records_for_run(run.run_id, of_type=kind).records


DAYS = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])
PREFIX = "shop"
BACKFILL = {"dagster/backfill": "b1"}


def _until(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.05)


class Store:
    """Prices without partitions, orders by day that need them, totals by day, and a report of all days.

    The runs are those that Dagster makes of a backfill over all assets: one for each group of equal partitions.
    """

    def __init__(self, lake: LanceResource, instance: dg.DagsterInstance, **options: Any) -> None:
        self.lake, self.instance = lake, instance
        self.price, self.amounts = 1, {"mon": 10, "tue": 20, "wed": 30}
        self.broken = ""
        day_column = {"lance/partition_expr": "day"}

        @dg.asset(key_prefix=PREFIX)
        def prices() -> pd.DataFrame:
            return pd.DataFrame({"price": [self.price]})

        @dg.asset(
            key_prefix=PREFIX, ins={"prices": dg.AssetIn([PREFIX, "prices"])}, partitions_def=DAYS, metadata=day_column
        )
        def orders(context: dg.AssetExecutionContext, prices: pd.DataFrame) -> pd.DataFrame:
            day = context.partition_key
            return pd.DataFrame({"day": [day], "paid": [self.amounts[day] * int(prices["price"].sum())]})

        @dg.asset(
            key_prefix=PREFIX, ins={"orders": dg.AssetIn([PREFIX, "orders"])}, partitions_def=DAYS, metadata=day_column
        )
        def totals(context: dg.AssetExecutionContext, orders: pd.DataFrame) -> pd.DataFrame:
            if context.partition_key == self.broken:
                raise ValueError("broken")
            return pd.DataFrame({"day": [context.partition_key], "total": [int(orders["paid"].sum())]})

        @dg.asset(key_prefix=PREFIX, ins={"orders": dg.AssetIn([PREFIX, "orders"])})
        def report(orders: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"days": [len(orders)], "paid": [int(orders["paid"].sum())]})

        tables = [prices, orders, totals, report]
        checks = [
            *build_table_checks(prices, [InRange("price", minimum=0)]),
            *build_table_checks(orders, [InRange("paid", minimum=0)]),
            *build_table_checks(totals, [InRange("total", minimum=-999)]),
            *build_table_checks(report, [InRange("paid", minimum=-999)]),
        ]
        # The order is not that of the lineage, which the publisher has to find.
        self.publisher = build_publisher(tables[::-1], **options)
        self.assets = [*tables, *checks, self.publisher]

    def run(self, *names: str, tags: dict[str, str] | None = None, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialize some assets and their checks, as one run of the backfill."""
        keys = [dg.AssetKey([PREFIX, name]) for name in names]
        selection = dg.AssetSelection.assets(*keys) | dg.AssetSelection.checks_for_assets(*keys)
        return self.materialize(selection, BACKFILL if tags is None else tags, **options)

    def publish(self, tags: dict[str, str] | None = None, **config: Any) -> dg.ExecuteInProcessResult:
        """Publish at the end of the backfill."""
        selection = dg.AssetSelection.assets(*self.publisher.keys)
        asked = {"ops": {"publish_production": {"config": config}}} if config else None
        return self.materialize(selection, BACKFILL if tags is None else tags, run_config=asked)

    def materialize(self, selection: Any, tags: dict[str, str], **options: Any) -> dg.ExecuteInProcessResult:
        """Materialize a selection in a run with these tags."""
        resources = {"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)}
        return dg.materialize(
            self.assets,
            selection=selection,
            instance=self.instance,
            resources=resources,
            raise_on_error=False,
            tags=tags,
            **options,
        )

    def load(self, tags: dict[str, str]) -> None:
        """Run everything as a backfill does, and publish it."""
        assert self.run("prices", tags=tags).success
        for day in DAYS.get_partition_keys():
            assert self.run("orders", "totals", tags=tags, partition_key=day).success
        assert self.run("report", tags=tags).success
        published = self.publish(tags)
        assert published.success, failure(published)

    def production(self, name: str, ref: str = "production") -> list[dict[str, Any]]:
        """The rows that readers of production see."""
        rows: list[dict[str, Any]] = self.lake.table(dg.AssetKey([PREFIX, name])).read(ref).to_pylist()
        return sorted(rows, key=lambda row: str(row.get("day")))


@pytest.fixture
def store(lake: LanceResource, instance: dg.DagsterInstance) -> Store:
    """The store, after a first backfill."""
    made = Store(lake, instance)
    made.load({"dagster/backfill": "b0"})
    assert made.production("report") == [{"days": 3, "paid": 60}]
    return made


def test_later_runs_read_what_earlier_runs_wrote(store: Store) -> None:
    """A run reads one day, and another one the branches of three runs; all of their results are published at once."""
    store.price, store.amounts = 2, {"mon": 1, "tue": 2, "wed": 3}
    store.load(BACKFILL)
    assert [2, 4, 6] == [row["paid"] for row in store.production("orders")]
    assert [2, 4, 6] == [row["total"] for row in store.production("totals")]
    assert store.production("report") == [{"days": 3, "paid": 12}]
    for name in ("prices", "orders", "totals", "report"):
        branches = store.lake.table(dg.AssetKey([PREFIX, name])).branches.list()
        assert [] == [branch for branch in branches if branch.startswith(("run/", "reads/", "preview/"))]


def test_promoted_nodes_follow_the_lineage_of_their_candidates(store: Store) -> None:
    """The daemon publishes a table after those that it was computed from, though each has its own run."""
    before = {
        spec.key.path[-1]: [dep.asset_key.to_user_string() for dep in spec.deps] for spec in store.publisher.specs
    }
    assert before == {
        "prices": ["shop/prices"],
        "orders": ["shop/orders", "production/shop/prices"],
        "totals": ["shop/totals", "production/shop/orders"],
        "report": ["shop/report", "production/shop/orders"],
    }


def test_what_was_computed_from_refused_rows_waits(store: Store) -> None:
    """A report that read a day whose check failed waits, even after the day is repaired."""
    store.amounts["mon"] = -1
    assert not store.run("orders", "totals", partition_key="mon").success
    store.amounts["tue"] = 5
    assert store.run("orders", "totals", partition_key="tue").success
    read = store.run("report")
    assert read.success
    first = store.publish()
    assert first.success, failure(first)
    assert [10, 5, 30] == [row["paid"] for row in store.production("orders")]
    assert [10, 5, 30] == [row["total"] for row in store.production("totals")]
    assert store.production("report") == [{"days": 3, "paid": 60}]
    store.amounts["mon"] = 7
    assert store.run("orders", "totals", partition_key="mon").success
    second = store.publish()
    assert [7, 5, 30] == [row["paid"] for row in store.production("orders")]
    assert store.production("report") == [{"days": 3, "paid": 60}]
    said = [
        entry.user_message for entry in store.instance.all_logs(second.run_id) if "shop/report" in entry.user_message
    ]
    assert f"run/{read.run_id} was computed from run/" in said[0]
    assert "materialize shop/report again if it was discarded or superseded" in said[0]
    assert store.run("report").success
    assert store.publish().success
    assert store.production("report") == [{"days": 3, "paid": 42}]


def test_a_run_waits_whole_and_until_it_is_repeated(store: Store) -> None:
    """When the prices are loaded again after the orders read them, neither orders nor totals are published."""
    store.price = 2
    assert store.run("prices").success
    assert store.run("orders", "totals", partition_key="mon").success
    store.price = 3
    assert store.run("prices").success
    assert store.publish().success
    assert store.production("prices") == [{"price": 3}]
    assert [10, 20, 30] == [row["paid"] for row in store.production("orders")]
    assert [10, 20, 30] == [row["total"] for row in store.production("totals")]
    assert store.run("orders", "totals", partition_key="mon").success
    assert store.publish().success
    assert [30, 20, 30] == [row["paid"] for row in store.production("orders")]
    assert [30, 20, 30] == [row["total"] for row in store.production("totals")]


def test_what_was_computed_from_a_discarded_branch_waits(store: Store) -> None:
    """*Materialize* says why the rows wait; a person may publish them anyway, with a reason."""
    store.price = 2
    prices = store.run("prices")
    orders = store.run("orders", partition_key="mon")
    assert store.publish({}, discard=prices.run_id, reason="wrong list of prices").success
    refused = store.publish({})
    assert [10, 20, 30] == [row["paid"] for row in store.production("orders")]
    said = " ".join(entry.user_message for entry in store.instance.all_logs(refused.run_id))
    assert f"run/{orders.run_id} was computed from run/{prices.run_id}@" in said
    published = store.publish({}, ref=f"run/{orders.run_id}", ignore_failed_checks=True, reason="the old list is right")
    assert published.success, failure(published)
    assert [20, 20, 30] == [row["paid"] for row in store.production("orders")]


def test_a_run_of_another_backfill_reads_what_is_published(store: Store) -> None:
    """A run does not read what another backfill, or a run without a backfill, wrote before it is published."""
    store.price = 2
    assert store.run("prices").success
    for tags in ({"dagster/backfill": "b2"}, {}):
        assert store.run("orders", partition_key="mon", tags=tags).success
    table = store.lake.table(dg.AssetKey([PREFIX, "orders"]))
    # A later write of another backfill does not hide what this one wrote.
    store.price = 7
    assert store.run("prices", tags={"dagster/backfill": "b2"}).success
    for branch in table.branches.list("run/*"):
        assert [10] == table.read(branch, filter="day = 'mon'")["paid"].to_pylist()
    made = store.run("orders", partition_key="tue")
    assert [40] == table.read(f"run/{made.run_id}", filter="day = 'tue'")["paid"].to_pylist()


def test_a_backfill_that_is_re_executed_from_its_failure_counts_as_one(store: Store) -> None:
    """Dagster starts another backfill for the rest, which reads and publishes what the first one wrote."""
    store.price = 2
    assert store.run("prices").success
    assert store.run("orders", "totals", partition_key="mon").success
    store.broken, amount = "tue", store.amounts.pop("wed")
    for day in ("tue", "wed"):
        assert not store.run("orders", "totals", partition_key=day).success
    store.broken, store.amounts["wed"] = "", amount
    again = {"dagster/backfill": "b2", "dagster/parent_backfill_id": "b1", "dagster/root_backfill_id": "b1"}
    assert store.run("totals", tags=again, partition_key="tue").success
    assert store.run("orders", "totals", tags=again, partition_key="wed").success
    assert store.run("report", tags=again).success
    published = store.publish(again)
    assert published.success, failure(published)
    assert [20, 40, 60] == [row["paid"] for row in store.production("orders")]
    assert [20, 40, 60] == [row["total"] for row in store.production("totals")]
    assert store.production("report") == [{"days": 3, "paid": 120}]


def test_a_day_reads_the_day_before_of_the_same_backfill(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """An asset that reads itself adds up over the days of a backfill, none of which is published yet."""
    days = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-04")
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        partitions_def=days,
        metadata={"lance/partition_expr": "day"},
        ins={"earlier": dg.AssetIn("balance", partition_mapping=before)},
    )
    def balance(context: dg.AssetExecutionContext, earlier: pd.DataFrame | None) -> pd.DataFrame:
        total = 0 if earlier is None else int(earlier["total"].sum())
        return pd.DataFrame({"day": [pd.Timestamp(context.partition_key)], "total": [total + 1]})

    publisher = build_publisher([balance], unchecked=True)
    options: dict[str, Any] = {
        "instance": instance,
        "resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)},
        "tags": BACKFILL,
    }
    for day in days.get_partition_keys():
        assert dg.materialize([balance, publisher], selection=[balance], partition_key=day, **options).success
    assert dg.materialize([balance, publisher], selection=list(publisher.keys), **options).success
    balances = lake.table(dg.AssetKey("balance")).read("production").sort_by("day")
    assert [1, 2, 3] == balances["total"].to_pylist()


def test_a_day_waits_for_the_publication_of_the_day_before(
    lake: LanceResource, stored_instance: dg.DagsterInstance
) -> None:
    """The publisher of a day waits for the day before, whose run is between its check and its publisher."""
    days = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-03")
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    waits = threading.Event()

    @dg.asset(
        partitions_def=days,
        metadata={"lance/partition_expr": "day"},
        ins={"earlier": dg.AssetIn("balance", partition_mapping=before)},
    )
    def balance(context: dg.AssetExecutionContext, earlier: pd.DataFrame | None) -> pd.DataFrame:
        total = 0 if earlier is None else int(earlier["total"].sum())
        return pd.DataFrame({"day": [pd.Timestamp(context.partition_key)], "total": [total + 1]})

    @dg.asset_check(asset=balance, blocking=True)
    def slow(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=context.run.tags["dagster/partition"] == "2026-01-02" or waits.wait(60))

    publisher = build_publisher([balance], partitions_def=days, stale_checks="accept")

    def load(day: str) -> dg.ExecuteInProcessResult:
        resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
        options: dict[str, Any] = {"instance": stored_instance, "resources": resources, "tags": BACKFILL}
        return dg.materialize([balance, slow, publisher], partition_key=day, raise_on_error=False, **options)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load, "2026-01-01")
        _until(lambda: stored_instance.get_latest_materialization_event(dg.AssetKey("balance")) is not None)
        second = pool.submit(load, "2026-01-02")
        retried = dg.DagsterEventType.STEP_UP_FOR_RETRY
        _until(lambda: any(_events(stored_instance, retried)))
        waits.set()
        assert first.result().success
        assert second.result().success
    balances = lake.table(dg.AssetKey("balance")).read("production").sort_by("day")
    assert [1, 2] == balances["total"].to_pylist()


def test_the_publisher_waits_for_runs_that_are_at_work(
    lake: LanceResource, stored_instance: dg.DagsterInstance
) -> None:
    """Dagster starts the publisher when the orders are written, and it waits until their run has done the rest."""
    at_work, goes_on = threading.Event(), threading.Event()

    @dg.asset(partitions_def=DAYS, metadata={"lance/partition_expr": "day"})
    def orders(context: dg.AssetExecutionContext) -> pd.DataFrame:
        return pd.DataFrame({"day": [context.partition_key]})

    @dg.asset(partitions_def=DAYS, metadata={"lance/partition_expr": "day"})
    def totals(orders: pd.DataFrame) -> pd.DataFrame:
        at_work.set()
        assert goes_on.wait(60)
        return orders

    publisher = build_publisher([orders, totals], unchecked=True)
    nodes, resources = [orders, totals, publisher], {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
    options: dict[str, Any] = {"instance": stored_instance, "resources": resources, "tags": BACKFILL}

    with ThreadPoolExecutor(2) as pool:
        day = pool.submit(dg.materialize, nodes, selection=[orders, totals], partition_key="mon", **options)
        # A run that starts in this process configures logging, which deadlocks with one that is writing to its log.
        assert at_work.wait(60)
        promoted = [dg.AssetKey(["production", "orders"])]
        publication = pool.submit(dg.materialize, nodes, selection=promoted, **options)
        _until(lambda: any(_events(stored_instance, dg.DagsterEventType.STEP_UP_FOR_RETRY)))
        goes_on.set()
        assert day.result().success
        assert publication.result().success
    assert ["mon"] == lake.table(orders.key).read("production")["day"].to_pylist()


def test_what_was_computed_from_withdrawn_rows_waits(store: Store) -> None:
    """Orders wait when the prices that they were computed from were published and rolled back."""
    store.price = 2
    assert store.run("prices").success
    assert store.run("orders", partition_key="mon").success
    prices = dg.AssetSelection.assets(dg.AssetKey(["production", PREFIX, "prices"]))
    published = store.materialize(prices, BACKFILL)
    assert published.success, failure(published)
    assert store.production("prices") == [{"price": 2}]
    asked = {"ops": {"publish_production": {"config": {"ref": "production~1", "reason": "wrong prices"}}}}
    assert store.materialize(prices, {}, run_config=asked).success
    assert store.production("prices") == [{"price": 1}]
    assert "which is not published; publish that first" in failure(store.publish())
    assert [10, 20, 30] == [row["paid"] for row in store.production("orders")]


def test_branches_that_conflict_cannot_be_read_together(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """When two runs wrote the same key, the error names both and says what to do, and no preview is left."""
    store = Store(lake, instance)

    @dg.asset(
        partitions_def=DAYS,
        metadata={"lance/partition_expr": "day", "lance/write_mode": "upsert", "lance/keys": ["id"]},
    )
    def items(context: dg.AssetExecutionContext) -> pd.DataFrame:
        return pd.DataFrame({"id": [1], "day": [context.partition_key]})

    @dg.asset
    def counted(items: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(items)]})

    store.assets = [items, counted]
    first = store.materialize([items], {}, partition_key="mon")
    table = lake.table(dg.AssetKey("items"))
    table.merge(f"run/{first.run_id}")
    runs = [store.materialize([items], BACKFILL, partition_key=day) for day in ("tue", "wed")]
    read = store.materialize([counted], BACKFILL)
    text = failure(read, "counted")
    assert f"cannot be read as backfill b1 wrote it: run/{runs[1].run_id}@" in text
    assert "conflicts with main, or with another run of the backfill" in text
    assert f"materialize it again or discard run/{runs[1].run_id}, and repeat this run" in text
    assert {} == table.branches.list("reads/*")


def test_days_that_a_branch_did_not_write_come_from_main(store: Store) -> None:
    """The day that the backfill wrote is read from its branch, and other days from `main`, though it moved since."""
    store.amounts["mon"] = 1
    assert store.run("orders", partition_key="mon").success
    store.amounts["tue"] = 2
    other = {"dagster/backfill": "b9"}
    assert store.run("orders", partition_key="tue", tags=other).success
    assert store.publish(other).success
    assert store.run("report").success
    (branch,) = store.lake.table(dg.AssetKey([PREFIX, "report"])).branches.list("run/*")
    assert store.production("report", branch) == [{"days": 3, "paid": 33}]
