# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import json
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceResource, LanceTable, build_ref_sensor, ref_asset_specs
from tests.plugin.shop import CUSTOMERS, ORDERS, Shop

ROWS = pa.table({"id": [1]})


class Ticks:
    """A sensor evaluated tick by tick, the way the daemon does it."""

    def __init__(self, sensor: dg.SensorDefinition, lance: LanceResource, instance: dg.DagsterInstance) -> None:
        self.sensor, self.lance, self.instance = sensor, lance, instance
        self.cursor: str | None = None

    def tick(self) -> Any:
        """Evaluate once, and keep the cursor."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources={"lance": self.lance})
        found = self.sensor.evaluate_tick(context)
        self.cursor = found.cursor
        return found

    def announced(self) -> list[tuple[str, Any]]:
        """Evaluate once; the assets and versions of its events."""
        events = self.tick().asset_events
        return [(event.asset_key.to_user_string(), event.metadata["lance/version"].value) for event in events]


@pytest.fixture
def orders(lake: LanceResource) -> LanceTable:
    """An empty table of orders."""
    return LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)


def test_first_tick_remembers_and_later_ticks_announce(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """What was there is history; then every new manifest is announced once, whoever wrote it."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    assert ticks.announced() == []
    orders.append(ROWS)
    lance.write_dataset(ROWS, orders.uri, mode="append")
    events = ticks.tick().asset_events
    assert [event.metadata["lance/version"].value for event in events] == [2, 3]
    assert [event.asset_key.to_user_string() for event in events] == ["main/shop/orders"] * 2
    assert events[1].metadata["lance/foreign"].value is True
    assert events[1].metadata["dagster/row_count"].value == 2
    assert events[1].metadata["lance/operation"].value == "Append"
    assert events[1].tags["dagster/data_version"] == orders.head().transaction
    assert ticks.announced() == []


def test_from_start_announces_history(lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable) -> None:
    """For a sensor that is added to old tables on purpose."""
    orders.append(ROWS)
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], from_start=True), lake, instance)
    assert ticks.announced() == [("main/shop/orders", 1), ("main/shop/orders", 2)]
    assert ticks.announced() == []


def test_table_that_appears_later_is_announced_whole(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A table that was not there at the first tick is news from its first version on."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    assert ticks.announced() == []
    LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)
    assert ticks.announced() == [("main/shop/orders", 1)]


def test_published_versions_name_their_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The merge of a run is announced on main, and is not foreign; the tag it moved announces itself."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["main", "production"]), shop.lance, instance)
    ticks.tick()
    run_id = shop.run(instance).run_id
    created, merged = ticks.tick().asset_events
    assert created.metadata["lance/version"].value == 1
    assert merged.metadata["lance/foreign"].value is False
    assert merged.metadata["lance/run_id"].value == run_id


def test_foreign_move_of_a_tag(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Somebody promotes outside of Dagster: the promoted node is materialized, once for each move."""
    shop.run(instance)
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["production"]), shop.lance, instance)
    assert ticks.announced() == []
    lance.dataset(shop.table().uri).tags.update("production", 1)
    assert ticks.announced() == [("production/shop/orders", 1)]
    shop.table().tags.move("production", "main@2", metadata={"by": "hand"})
    assert ticks.announced() == [("production/shop/orders", 2)]
    assert ticks.announced() == []


def test_run_requests_carry_the_newest_version(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """One run for a table however many versions it got, under a key that a repeated tick repeats."""

    @dg.job
    def follow_up() -> None:
        pass

    ticks = Ticks(build_ref_sensor("refs", [ORDERS], job=follow_up), lake, instance)
    assert ticks.tick().run_requests == []
    orders.append(ROWS)
    orders.append(ROWS)
    before = ticks.cursor
    (request,) = ticks.tick().run_requests
    assert request.run_key == "lance:shop/orders@main=3"
    assert request.tags["lance/ref"] == "main@3"
    ticks.cursor = before
    assert ticks.tick().run_requests[0].run_key == request.run_key


def test_budget_leaves_the_rest_to_the_next_tick(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """Without any time a tick still does one table, and the next one goes on behind it."""
    LanceTable.create(lake.uri_of(CUSTOMERS), ROWS.schema)
    ticks = Ticks(build_ref_sensor("refs", [ORDERS, CUSTOMERS], from_start=True, budget_seconds=0), lake, instance)
    assert ticks.announced() == [("main/shop/orders", 1)]
    assert json.loads(ticks.cursor or "")["next"] == 1
    assert ticks.announced() == [("main/shop/customers", 1)]
    orders.append(ROWS)
    assert ticks.announced() == [("main/shop/orders", 2)]


def test_broken_table_does_not_stop_the_others(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """It is reported, looked at again next time, and the others go on."""
    broken = LanceTable.create(lake.uri_of(CUSTOMERS), ROWS.schema)
    ticks = Ticks(build_ref_sensor("refs", [CUSTOMERS, ORDERS]), lake, instance)
    ticks.tick()
    broken.append(ROWS)
    orders.append(ROWS)
    for manifest in Path(broken.uri, "_versions").glob("*.manifest"):
        manifest.write_bytes(b"not a manifest")
    assert ticks.announced() == [("main/shop/orders", 2)]
    assert ticks.announced() == []


def test_specs_of_the_main_branches(lake: LanceResource) -> None:
    """External assets with the table's name and place."""
    (spec,) = ref_asset_specs([ORDERS], lance=lake)
    assert spec.key.path == ["main", "shop", "orders"]
    assert spec.metadata["dagster/table_name"] == "shop.orders"
    assert spec.metadata["dagster/uri"] == lake.uri_of(ORDERS)
    assert spec.metadata["lance/ref"] == "main"
    with pytest.raises(InvalidInputError, match="at least one table"):
        build_ref_sensor("refs", [])
    for act in (lambda: build_ref_sensor("refs", "shop"), lambda: ref_asset_specs("shop")):
        with pytest.raises(InvalidInputError, match=r"tables: a list such as \['shop/orders'\] is wanted, not 'shop'"):
            act()
    with pytest.raises(InvalidInputError, match=r"refs: a list such as \['main'\] is wanted, not 'main'"):
        build_ref_sensor("refs", [ORDERS], refs="main")
