"""Two publishers over the same tables: what a run wrote reaches the readers of a channel whole or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InRange,
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    Unique,
    build_publisher,
    build_table_checks,
)


class Shop:
    """Two tables to which each run appends its number; the number of `lines` is negative where they are bad."""

    def __init__(self, root: Path) -> None:
        """Make the definitions, without a publisher."""
        self.number, self.is_bad = 0, False
        self.lance = LanceResource(root=str(root / "lake"))
        self.instance = dg.DagsterInstance.ephemeral()

        @dg.asset(key_prefix="shop", metadata={"lance/write_mode": "append"})
        def orders() -> pa.Table:
            return pa.table({"id": [self.number]})

        @dg.asset(key_prefix="shop", metadata={"lance/write_mode": "append"}, deps=[orders])
        def lines() -> pa.Table:
            return pa.table({"id": [-self.number if self.is_bad else self.number]})

        self.orders, self.lines = orders, lines
        self.checks = [
            check for asset in (orders, lines) for check in build_table_checks(asset, [Unique("id"), InRange("id", 0)])
        ]
        self.publishers: list[dg.AssetsDefinition] = []

    def run(
        self, *nodes: dg.AssetsDefinition, number: int = 0, is_bad: bool = False, ref: str = "", reason: str = ""
    ) -> dg.ExecuteInProcessResult:
        """Materialize some nodes, with the checks of the tables among them."""
        self.number, self.is_bad = number, is_bad
        config = {name: value for name, value in {"ref": ref, "reason": reason}.items() if value}
        publishers = [node for node in nodes if node in self.publishers]
        ops = {node.node_def.name: {"config": config} for node in publishers if config}
        tables = [node for node in nodes if node not in publishers]
        selected: dg.AssetSelection = dg.AssetSelection.assets(*(key for node in nodes for key in node.keys))
        if tables:
            selected |= dg.AssetSelection.checks_for_assets(*tables)
        return dg.materialize(
            [self.orders, self.lines, *self.checks, *self.publishers],
            selection=selected,
            resources={"lance": self.lance, "io_manager": LanceIOManager(lance=self.lance)},
            instance=self.instance,
            run_config={"ops": ops},
            raise_on_error=False,
        )

    def seen(self, channel: str = "production") -> dict[str, list[int]]:
        """What readers of a channel see, by table."""
        repository = self.lance.open_repository()
        assert repository is not None
        view = repository.at(channel)
        tables = {name.rpartition("/")[2]: view[name].read()["id"] for name in view}
        return {name: sorted(map(int, ids.to_numpy())) for name, ids in tables.items()}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop without rows."""
    return Shop(tmp_path)


def both(number: int) -> dict[str, list[int]]:
    """All runs up to a number in both tables."""
    return {"orders": [*range(1, number + 1)], "lines": [*range(1, number + 1)]}


def test_a_table_whose_run_was_refused_comes_along_with_no_other(shop: Shop) -> None:
    """Another publisher put the orders of a refused run on `main`: the next run waits, and its orders with it."""
    production, staging = build_publisher([shop.orders, shop.lines]), build_publisher([shop.orders], tag="staging")
    shop.publishers += [production, staging]
    assert shop.run(shop.orders, shop.lines, production, staging, number=1).success
    assert not shop.run(shop.orders, shop.lines, production, number=2, is_bad=True).success
    assert shop.run(staging).success
    assert {"orders": [1, 2]} == shop.seen("staging")
    third = shop.run(shop.orders, shop.lines, production, number=3)
    assert not third.success
    assert both(1) == shop.seen()
    # A person decides that readers see the orders of the second run without its lines.
    assert shop.run(production, ref="main", reason="the lines of the second run come later").success
    assert [1, 2] == shop.seen()["orders"]


@pytest.mark.parametrize("together", [True, False], ids=["both tables", "one table"])
def test_what_another_channel_has_comes_along_whole(shop: Shop, *, together: bool) -> None:
    """A run that was published to staging alone reaches production with both of its tables, or waits."""
    production = build_publisher([shop.orders, shop.lines])
    staging = build_publisher([shop.orders, shop.lines], tag="staging")
    shop.publishers += [production, staging]
    assert shop.run(shop.orders, shop.lines, production, staging, number=1).success
    assert shop.run(shop.orders, shop.lines, staging, number=2).success
    assert both(1) == shop.seen()
    if together:
        assert shop.run(shop.orders, shop.lines, production, number=3).success
        assert both(3) == shop.seen()
        return
    alone = dg.AssetSelection.assets(["shop", "orders"], ["production", "shop", "orders"])
    shop.number = 3
    third = dg.materialize(
        [shop.orders, shop.lines, *shop.checks, production, staging],
        selection=alone | dg.AssetSelection.checks_for_assets(shop.orders),
        resources={"lance": shop.lance, "io_manager": LanceIOManager(lance=shop.lance)},
        instance=shop.instance,
        raise_on_error=False,
    )
    assert not third.success
    assert both(1) == shop.seen()
    assert shop.run(production, ref="main", reason="staging is good").success
    assert both(2) == shop.seen()
    assert shop.run(production).success
    assert {"orders": [1, 2, 3], "lines": [1, 2]} == shop.seen()


def test_a_publisher_that_came_later_lags_behind_no_run(shop: Shop) -> None:
    """A channel that begins after another one gets all runs of `main`, in all of its tables."""
    staging = build_publisher([shop.orders, shop.lines], tag="staging")
    shop.publishers.append(staging)
    for number in (1, 2):
        assert shop.run(shop.orders, shop.lines, staging, number=number).success
    production = build_publisher([shop.orders, shop.lines])
    shop.publishers.append(production)
    assert shop.run(shop.orders, shop.lines, production, number=3).success
    assert both(3) == shop.seen()


def test_a_run_that_wrote_a_table_which_was_made_again_is_published_whole(shop: Shop) -> None:
    """The record names the former table: *Materialize* publishes no part of the run, and `ref` publishes all of it."""
    production = build_publisher([shop.orders, shop.lines])
    shop.publishers.append(production)
    for number in (1, 2):
        assert shop.run(shop.orders, shop.lines, production, number=number).success
    shutil.rmtree(shop.lance.uri_of("shop/lines"))
    third = shop.run(shop.orders, shop.lines, production, number=3)
    assert not third.success
    repository = shop.lance.open_repository()
    assert repository is not None
    repository.remove_table("shop/lines")
    repository.adopt(["shop/lines"])
    assert shop.run(production).success
    assert 2 == repository.at("production")["shop/orders"].count_rows()
    assert shop.run(production, ref=f"run/{third.run_id}", reason="both tables").success
    assert {"orders": [1, 2, 3], "lines": [3]} == shop.seen()


def test_publishers_over_two_layers_publish_in_one_job(tmp_path: Path) -> None:
    """The second publisher is not split where the first one has to be, so it publishes the run whole."""
    shop = Shop(tmp_path)

    @dg.asset(key_prefix="shop", ins={"orders": dg.AssetIn(["production", "shop", "orders"])})
    def totals(orders: pa.Table) -> pa.Table:
        return pa.table({"id": [orders.num_rows]})

    tables = [shop.orders, totals]
    defs = dg.Definitions(
        assets=[*tables, build_publisher(tables), build_publisher(tables, tag="staging")],
        asset_checks=[check for table in tables for check in build_table_checks(table, [Unique("id")])],
        resources={"lance": shop.lance, "io_manager": LanceIOManager(lance=shop.lance)},
        executor=dg.in_process_executor,
    )
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=shop.instance).success
    assert {"orders": [0], "totals": [1]} == shop.seen() == shop.seen("staging")


def test_a_table_that_may_be_skipped_and_a_layer_above_it_need_two_publishers() -> None:
    """Dagster cannot split the graph that waits for optional outputs, so the definitions are refused."""

    @dg.asset(key_prefix="shop", output_required=False)
    def returns() -> None:
        pass

    @dg.asset(key_prefix="shop", deps=[["production", "shop", "returns"]])
    def totals() -> None:
        pass

    with pytest.raises(InvalidInputError):
        build_publisher([returns, totals])


def failures(result: dg.ExecuteInProcessResult, text: Callable[[str], bool]) -> list[str]:
    """The descriptions of failed steps for which a condition holds."""
    described = (event.step_failure_data.user_failure_data for event in result.get_step_failure_events())
    return [data.description or "" for data in described if data is not None and text(data.description or "")]


def test_the_refusal_says_what_to_do(shop: Shop) -> None:
    """It names the run that would be seen in part, the table that lacks it, and what a person can do."""
    production, staging = build_publisher([shop.orders, shop.lines]), build_publisher([shop.orders], tag="staging")
    shop.publishers += [production, staging]
    assert shop.run(shop.orders, shop.lines, production, staging, number=1).success
    second = shop.run(shop.orders, shop.lines, production, number=2, is_bad=True)
    assert shop.run(staging).success
    third = shop.run(shop.orders, shop.lines, production, number=3)
    (said,) = failures(third, lambda text: f"run {second.run_id}" in text)
    assert "shop/lines" in said
    assert "with ref: main" in said
