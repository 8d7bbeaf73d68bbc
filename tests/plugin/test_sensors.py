import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceResource,
    LanceTable,
    build_discovery_sensor,
    build_protected_branch_sensor,
    build_ref_sensor,
    ref_asset_specs,
)
from tests.plugin.shop import CUSTOMERS, ORDERS, Shop, candidates
from tests.plugin.ticks import Ticks

ROWS = pa.table({"id": [1]})


@pytest.fixture
def orders(lake: LanceResource) -> LanceTable:
    """An empty table of orders."""
    return LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)


def test_first_tick_remembers_and_later_ticks_announce(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """The first tick announces no existing version; later ones announce each new version once, whoever made it."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    assert ticks.announced() == []
    orders.append(ROWS)
    lance.write_dataset(ROWS, orders.uri, mode="append")
    events = ticks.tick().asset_events
    assert [event.metadata["lance/version"].value for event in events] == ["2", "3"]
    assert [event.asset_key.to_user_string() for event in events] == ["main/shop/orders"] * 2
    assert events[1].metadata["lance/foreign"].value is True
    assert events[1].metadata["dagster/row_count"].value == 2
    assert events[1].metadata["lance/operation"].value == "Append"
    assert events[1].tags["dagster/data_version"] == orders.head().transaction
    assert ticks.announced() == []


def test_from_start_announces_history(lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable) -> None:
    """With `from_start` the first tick announces the existing versions too."""
    orders.append(ROWS)
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], from_start=True), lake, instance)
    assert ticks.announced() == [("main/shop/orders", 1), ("main/shop/orders", 2)]
    assert ticks.announced() == []


def test_table_that_appears_later_is_announced_whole(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A table that did not exist at the first tick is announced from its first version on."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    assert ticks.announced() == []
    LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)
    assert ticks.announced() == [("main/shop/orders", 1)]


def test_published_versions_name_their_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The merge of a run is announced on main, and not as foreign; the moved tag is announced separately."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["main", "production"]), shop.lance, instance)
    ticks.tick()
    run_id = shop.run(instance).run_id
    created, merged = ticks.tick().asset_events
    assert created.metadata["lance/version"].value == "1"
    assert merged.metadata["lance/foreign"].value is False
    assert merged.metadata["lance/run_id"].value == run_id


def test_foreign_move_of_a_tag(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Each move of the tag of a lake without a repository materializes the promoted node once."""
    run_id = candidates(shop, instance)
    shop.table().merge(f"run/{run_id}")
    shop.table().tags.create("production", "main")
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["production"]), shop.lance, instance)
    assert ticks.announced() == []
    lance.dataset(shop.table().uri).tags.update("production", 1)
    assert ticks.announced() == [("production/shop/orders", 1)]
    shop.table().tags.move("production", "main@2", metadata={"by": "hand"}, force=True)
    assert ticks.announced() == [("production/shop/orders", 2)]
    assert ticks.announced() == []


def test_run_requests_carry_the_newest_version(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """A table gets one run request, however many new versions it has; a repeated tick repeats its key."""

    @dg.job
    def follow_up() -> None:
        pass

    ticks = Ticks(build_ref_sensor("refs", [ORDERS], job=follow_up), lake, instance)
    assert ticks.tick().run_requests == []
    orders.append(ROWS)
    orders.append(ROWS)
    before = ticks.cursor
    (request,) = ticks.tick().run_requests
    assert request.run_key == f"lance:shop/orders@main=3:{orders.head().transaction[:8]}"
    assert request.tags["lance/ref"] == "main@3"
    ticks.cursor = before
    assert ticks.tick().run_requests[0].run_key == request.run_key


def test_a_tag_that_comes_back_requests_a_run(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """Each move has its own run key, also the second one to the same version; a repeated tick repeats its key."""

    @dg.job
    def follow_up() -> None:
        pass

    orders.append(ROWS)
    orders.tags.create("production", "main@1")
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["production"], job=follow_up), lake, instance)
    ticks.tick()
    keys = []
    for ref in ("main@2", "main@1", "main@2"):
        orders.tags.move("production", ref, force=True)
        before = ticks.cursor
        keys += [request.run_key for request in ticks.tick().run_requests]
    assert (3, 3) == (len(keys), len(set(keys)))
    ticks.cursor = before
    assert keys[-1] == ticks.tick().run_requests[0].run_key


def test_dropped_table_is_reported_when_it_is_created_again(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """A table that is created again at the same place, with the same version numbers, is recognised as a new one."""
    orders.append(ROWS)
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    ticks.tick()
    shutil.rmtree(orders.uri)
    again = LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)
    again.append(ROWS)
    found = ticks.tick()
    assert ["1", "2"] == [event.metadata["lance/version"].value for event in found.asset_events]
    assert found.asset_events[0].metadata["lance/recreated"].value is True
    assert "shop/orders was dropped and created again" in found.skip_message
    assert ticks.announced() == []
    # The table is dropped, and created again with fewer versions than were reported.
    shutil.rmtree(orders.uri)
    LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)
    assert ticks.announced() == [("main/shop/orders", 1)]


def test_drop_is_noticed_between_two_tables(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """A tick says once that a table was dropped, and the next table at its place is reported from the start."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    ticks.tick()
    shutil.rmtree(orders.uri)
    assert ticks.text() == "nothing new in 1 table; shop/orders was dropped"
    assert ticks.text() == "nothing new in 1 table"
    LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)
    assert ticks.announced() == [("main/shop/orders", 1)]


def test_branch_is_watched_like_main(lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable) -> None:
    """The versions of a branch, and of a later branch with its name, materialize `<branch>/<key>`."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["dev"]), lake, instance)
    assert ticks.text() == "nothing new in 1 table; 1 table of 1 have no branch or tag 'dev'"
    orders.branches.create("dev")
    orders.append(ROWS, branch="dev")
    assert [("dev/shop/orders", 1), ("dev/shop/orders", 2)] == ticks.announced()
    orders.append(ROWS)
    orders.append(ROWS, branch="dev")
    assert [("dev/shop/orders", 3)] == ticks.announced()
    orders.branches.reset("dev", "main")
    # The versions of a new branch begin above the numbers of the branch that had the name before.
    assert [("dev/shop/orders", orders.head("dev").number)] == ticks.announced()
    (spec,) = ref_asset_specs([ORDERS], branches=["dev"])
    assert ["dev", "shop", "orders"] == list(spec.key.path)


def test_a_ref_that_is_added_to_a_sensor_begins_now(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """The past of `main`, a branch and a tag is not reported when a sensor that watched another tag gets them."""
    orders.append(ROWS)
    orders.branches.create("dev")
    for name in ("production", "staging"):
        orders.tags.create(name, "main@1")
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=["production"]), lake, instance)
    assert [] == ticks.announced()
    ticks.sensor = build_ref_sensor("refs", [ORDERS], refs=["production", "main", "dev", "staging", "later"])
    assert [] == ticks.announced()
    orders.append(ROWS)
    orders.branches.create("later")
    orders.tags.move("staging", "main@3")
    expected = [("main/shop/orders", 3), ("staging/shop/orders", 3), ("later/shop/orders", 3)]
    assert expected == ticks.announced()


@pytest.mark.parametrize(
    "cursor",
    [
        "not JSON",
        "[" * 100_000,
        "17",
        "null",
        '{"seen": {"shop/orders": {"main": 1}}, "next": 0, "all": false}',
        '{"format": 2, "seen": {"shop/orders": {"main": ["1", "x"]}}, "next": 0}',
        '{"format": 2, "seen": {"shop/orders": {"main": [1e400, "x"]}}, "next": 0}',
        '{"format": 2, "seen": {"shop/orders": {"main": [true, "x"]}}, "next": 0}',
        '{"format": 2, "seen": {"shop/orders": 7}, "next": 0}',
        '{"format": 2, "seen": {}, "next": -1}',
        '{"format": 2, "seen": {}, "next": "0"}',
        '{"format": 2, "seen": {}, "next": 0, "rest": "' + "x" * 21_000_000 + '"}',
    ],
    ids=lambda cursor: cursor[:60],
)
def test_hostile_cursor_starts_over(
    lake: LanceResource,
    instance: dg.DagsterInstance,
    orders: LanceTable,
    cursor: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """After an invalid cursor the tick warns and starts from the present state, and does not raise at every tick."""
    ticks = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    ticks.cursor = cursor
    assert ticks.announced() == []
    assert "the cursor of this sensor is damaged or of another release" in capfd.readouterr().err
    orders.append(ROWS)
    assert ticks.announced() == [("main/shop/orders", 2)]


def test_cursor_forgets_tables_that_are_no_longer_watched(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """The cursor drops tables that are no longer watched, and an index beyond its end is not an error."""
    LanceTable.create(lake.uri_of(CUSTOMERS), orders.schema())
    ticks = Ticks(build_ref_sensor("refs", [ORDERS, CUSTOMERS]), lake, instance)
    ticks.tick()
    fewer = Ticks(build_ref_sensor("refs", [ORDERS]), lake, instance)
    fewer.cursor = (ticks.cursor or "").replace('"next":0', '"next":7')
    fewer.tick()
    assert ["shop/orders"] == list(json.loads(fewer.cursor)["seen"])


def test_tick_says_what_it_reported(lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable) -> None:
    """The text of a tick has the tables with their newest versions, and the tags with their versions."""
    customers = LanceTable.create(lake.uri_of(CUSTOMERS), ROWS.schema)
    refs = ["main", "production"]
    ticks = Ticks(build_ref_sensor("refs", [ORDERS, CUSTOMERS], refs=refs), lake, instance)
    assert "nothing new in 2 tables; 2 tables of 2 have no branch or tag 'production'" == ticks.text()
    orders.append(ROWS)
    orders.append(ROWS)
    customers.tags.create("production", "main@1")
    text = ticks.text()
    assert text == (
        "3 versions of 2 tables: shop/orders main@3, shop/customers production to main@1; "
        "1 table of 2 have no branch or tag 'production'"
    )


@pytest.mark.usefixtures("orders")
def test_resource_of_another_key(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A sensor may use a resource with another key, such as that of a second warehouse."""
    sensor = build_ref_sensor("refs", [ORDERS], resource_key="archive", from_start=True)
    context = dg.build_sensor_context(instance=instance, resources={"archive": lake})
    found = sensor.evaluate_tick(context)
    assert 1 == len(found.asset_events)
    assert {"archive"} == sensor.required_resource_keys


def test_budget_leaves_the_rest_to_the_next_tick(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """A tick without any time budget still evaluates one table, and the next tick continues with the following one."""
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
    """A broken table is reported and tried again at the next tick, and the others are evaluated."""
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
    with pytest.raises(InvalidInputError):
        build_ref_sensor("refs", [])
    for act in (lambda: build_ref_sensor("refs", "shop"), lambda: ref_asset_specs("shop")):
        with pytest.raises(InvalidInputError):
            act()
    with pytest.raises(InvalidInputError):
        build_ref_sensor("refs", [ORDERS], refs="main")


def test_new_tables_are_discovered(lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable) -> None:
    """A table that another program creates is reported once; tables of assets and older tables are not."""
    known = LanceTable.create(lake.uri_of(CUSTOMERS), orders.schema())
    ticks = Ticks(build_discovery_sensor("new", known=[CUSTOMERS]), lake, instance)
    assert "no new table among 1" == ticks.text()
    lance.write_dataset(ROWS, lake.uri_of("eu/web/clicks"))
    lance.write_dataset(ROWS, lake.uri_of("_work/clicks"))
    found = ticks.tick()
    assert ["main/eu/web/clicks"] == [event.asset_key.to_user_string() for event in found.asset_events]
    assert 1 == found.asset_events[0].metadata["dagster/row_count"].value
    assert "1 new: eu/web/clicks" == found.skip_message
    known.append(ROWS)
    assert "no new table among 2" == ticks.text()
    shutil.rmtree(lake.uri_of("eu/web/clicks"))
    assert "no new table among 1" == ticks.text()
    lance.write_dataset(ROWS, lake.uri_of("eu/web/clicks"))
    assert "1 new: eu/web/clicks" == ticks.text()


@pytest.mark.usefixtures("orders")
def test_discovered_tables_become_partitions_and_runs(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A discovered table becomes a dynamic partition and a run; a folder that is not a table is tried again later."""
    parts = dg.DynamicPartitionsDefinition(name="tables")

    @dg.asset(partitions_def=parts)
    def report() -> None:
        pass

    job = dg.define_asset_job("look", selection=[report])
    sensor = build_discovery_sensor("new", partitions_def=parts, from_start=True, folder="shop", job=job)
    Path(lake.root, "shop", "unfinished.lance").mkdir()
    context = dg.build_sensor_context(
        instance=instance, resources={"lance": lake}, definitions=dg.Definitions([report], jobs=[job])
    )
    # The daemon counts the partitions that a tick adds as existing; a tick in a test does not.
    instance.add_dynamic_partitions("tables", ["shop/orders"])
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        found: Any = sensor.evaluate_tick(context)
    (request,) = found.run_requests
    assert "shop/orders" == request.partition_key
    assert ["shop/orders"] == list(found.dynamic_partitions_requests[0].partition_keys)
    assert ["shop/orders"] == json.loads(found.cursor)
    with pytest.raises(InvalidInputError):
        build_discovery_sensor("new", folder="../elsewhere")


def test_damaged_cursor_of_discovery(lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable) -> None:
    """After a damaged cursor the existing tables count as seen, so they start no runs."""
    for cursor in ("x", "{}", "[1]", "[" * 100_000):
        ticks = Ticks(build_discovery_sensor("new", from_start=True), lake, instance)
        ticks.cursor = cursor
        assert "no new table among 1" == ticks.text()
        assert ["shop/orders"] == json.loads(ticks.cursor)
    assert orders.uri.endswith("shop/orders.lance")


def test_what_no_publication_committed_is_reported(
    lake: LanceResource, instance: dg.DagsterInstance, orders: LanceTable
) -> None:
    """A foreign append and a direct commit of a run are reported; a publication and maintenance are not."""
    ticks = Ticks(build_protected_branch_sensor("guard", [ORDERS]), lake, instance)
    assert [] == ticks.announced()
    orders.branches.create("run/1")
    orders.append(ROWS, branch="run/1")
    orders.merge("run/1", properties={"dagster/published_by": "publisher"})
    assert "1 new versions, all of them published" == ticks.text()
    lance.write_dataset(ROWS, orders.uri, mode="append")
    orders.append(ROWS, properties={"dagster/run_id": "abc"})
    orders.maintenance.compact()
    found = ticks.tick()
    assert [True, True] == [event.metadata["lance/unpublished"].value for event in found.asset_events]
    assert "the run abc and not by a publication" in str(found.asset_events[1].description)
    assert "not published: shop/orders main@3, shop/orders main@4" == found.skip_message
