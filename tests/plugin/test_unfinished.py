"""After a publisher was killed that had moved `main`, the next *Materialize* does the rest, and nothing beyond it."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceRepository,
    LanceResource,
    LanceTable,
    Unique,
    build_publisher,
    build_table_checks,
)
from tests.plugin.dying_publisher import Dying, Meanwhile, channel_moves, killed, main_moves, written
from tests.plugin.shop import (
    CUSTOMERS,
    ORDERS,
    PRODUCTION_CUSTOMERS,
    PRODUCTION_ORDERS,
    PROMOTED,
    Shop,
    failure,
    recorded,
    shop_at,
)
from tests.repository.scripted_repository import Plug
from tests.store.scripted import Request

pytestmark = pytest.mark.slow


def tag_moves(request: Request) -> bool:
    """Whether a request writes a tag."""
    return request.writes and request.key.startswith("_refs/tags/production")


def pinned(request: Request) -> bool:
    """Whether a request writes the pin of the publisher's run, after the channel and the tags have moved."""
    return request.writes and "/pins/" in request.key


@pytest.mark.parametrize(
    "at,after",
    [
        pytest.param(main_moves, 1, id="between the tables"),
        pytest.param(channel_moves, 0, id="before the channel"),
        pytest.param(tag_moves, 0, id="before the first tag"),
        pytest.param(tag_moves, 1, id="between the tags"),
        pytest.param(pinned, 0, id="before the event"),
    ],
)
def test_the_next_publication_does_the_rest(
    shop: Shop, instance: dg.DagsterInstance, *, at: Callable[[Request], bool], after: int
) -> None:
    """Both tables are promoted, with an event each, and no branch is left; a later foreign commit is not promoted."""
    assert shop.run(instance).success
    killed(shop, instance, at, after)
    # If `main` of the orders had not followed yet, the foreign rows would be audited and published with the orders.
    foreign = shop.table().append(pa.table({"id": [99]})) if not after else shop.table().head()
    assert shop.publish(instance, *PROMOTED).success
    assert ([1, 2, 3, 4], [10, 20, 30]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))
    for key, node in zip((ORDERS, CUSTOMERS), PROMOTED, strict=True):
        assert shop.table(key).branches.list("run/*") == {}
        assert shop.tag(key) == recorded(instance, node).metadata["lance/to"]
    assert after or str(foreign) == str(shop.table().head())
    reported = list(map(instance.get_latest_materialization_event, PROMOTED))
    assert shop.publish(instance, *PROMOTED).success
    assert reported == list(map(instance.get_latest_materialization_event, PROMOTED))


def test_a_published_append_that_main_lacks_is_not_repeated(shop: Shop, instance: dg.DagsterInstance) -> None:
    """After a publisher died between the commit of the repository and `main`, the append is refused all the same."""
    assert shop.run(instance).success
    shop.play(mode="append", orders=[4])
    first = shop.execute(instance, job="candidates")
    Dying.scripts.append(Plug(0, main_moves))
    lance, shop.lance = shop.lance, Dying(root=shop.lance.root)
    assert not shop.publish(instance, *PROMOTED).success
    shop.lance = lance
    assert [1, 2, 3] == shop.ids("main")
    again = shop.execute(instance, dg.ReexecutionOptions(first.run_id), "candidates")
    said = failure(again, "shop__orders")
    assert first.run_id in said
    assert "is published; repeating the step would add its rows again" in said
    assert shop.publish(instance, *PROMOTED).success
    assert [1, 2, 3, 4] == shop.ids("main") == shop.ids("production")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_publication_under_way_is_not_promoted_in_part(shop: Shop, instance: dg.DagsterInstance, after: int) -> None:
    """Another publisher that finds one of two tables on `main`, while the other one is not, promotes neither."""
    assert shop.run(instance).success
    written(shop, instance)
    other = shop_at(shop.lance.root)
    seen: list[int] = []

    def press() -> None:
        assert other.publish(instance, *PROMOTED).success
        view = LanceRepository.open(shop.lance.root).at("production")
        seen.extend(view[name].count_rows() for name in ("shop/orders", "shop/customers"))

    # After both tables, the channel moves.
    def is_point(request: Request) -> bool:
        return main_moves(request) or channel_moves(request)

    Dying.scripts.append(Meanwhile(after, is_point, press))
    shop.lance = Dying(root=shop.lance.root)
    assert shop.publish(instance, *PROMOTED).success
    assert seen in ([3, 2], [4, 3])
    assert ([1, 2, 3, 4], [10, 20, 30]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))


def test_a_rollback_by_a_clock_that_is_behind_counts(shop: Shop, instance: dg.DagsterInstance) -> None:
    """What was committed before a rollback is not promoted after it, although the entry of the rollback looks older."""
    shop.play(orders=[1])
    assert shop.run(instance).success
    shop.play(orders=[1, 2, 3])
    assert shop.run(instance).success
    killed(shop, instance, channel_moves)
    channels = LanceRepository.open(shop.lance.root).channels
    channels.rollback("production", reason="2 is a test")
    channels.release("production", reason="looked at")
    for file in Path(shop.lance.root, "_repository/channels/production").glob("*.json"):
        entry = json.loads(file.read_text())
        at = datetime.fromisoformat(entry["at"]) - timedelta(days=2)
        file.write_text(json.dumps({**entry, "at": at.isoformat()}))
    pressed = shop.publish(instance, *PROMOTED)
    assert (True, [1]) == (pressed.success, shop.ids("production"))


def test_what_was_withdrawn_meanwhile_stays_away(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A version that a person withdrew is not promoted again, though its publisher died before it reported it."""
    assert shop.run(instance).success
    killed(shop, instance, pinned)
    channels = LanceRepository.open(shop.lance.root).channels
    channels.rollback("production", reason="4 is a test")
    channels.release("production", reason="looked at")
    pressed = shop.publish(instance, *PROMOTED)
    assert (True, [1, 2, 3]) == (pressed.success, shop.ids("production"))
    said = [entry.user_message for entry in instance.all_logs(pressed.run_id) if "nothing waits" in entry.user_message]
    assert 2 == sum("to promote it, set ref" in text for text in said)


ORDERS_ONLY = dg.AssetSelection.assets(ORDERS, PRODUCTION_ORDERS) | dg.AssetSelection.checks_for_assets(ORDERS)
OF_ORDERS = dg.AssetSelection.assets(ORDERS) | dg.AssetSelection.checks_for_assets(ORDERS)


def in_view(shop: Shop) -> tuple[int, int]:
    """The numbers of orders and of customers that readers of the channel see."""
    view = LanceRepository.open(shop.lance.root).at("production")
    return view["shop/orders"].count_rows(), view["shop/customers"].count_rows()


BOTH = (ORDERS, CUSTOMERS)


def load(lance: LanceResource, instance: dg.DagsterInstance, number: int, *keys: dg.AssetKey) -> bool:
    """Append a number to tables whose checks can be evaluated on a merge, and publish it; return whether it worked."""

    @dg.multi_asset(
        outs={key.path[-1]: dg.AssetOut(key=key, is_required=False) for key in (ORDERS, CUSTOMERS)}, can_subset=True
    )
    def written(context: dg.AssetExecutionContext) -> Iterator[dg.Output[pa.Table]]:
        for key in context.selected_asset_keys:
            yield dg.Output(pa.table({"id": [number]}), key.path[-1], metadata={"lance/write_mode": "append"})

    checks = [check for key in (ORDERS, CUSTOMERS) for check in build_table_checks(key, [Unique("id")])]
    nodes = [dg.AssetKey(["production", *key.path]) for key in keys]
    selection = dg.AssetSelection.assets(*keys, *nodes) | dg.AssetSelection.checks_for_assets(*keys)
    return dg.materialize(
        [written, build_publisher([ORDERS, CUSTOMERS]), *checks],
        instance=instance,
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
        selection=selection,
        raise_on_error=False,
    ).success


def test_a_run_of_one_table_promotes_the_rest_of_a_publication(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A later run of the orders promotes the customers of a dead publication in the same move, with an event."""
    assert shop.run(instance).success
    killed(shop, instance, channel_moves)
    shop.play(orders=[1, 2, 3, 4, 5])
    assert shop.run(instance, selection=ORDERS_ONLY).success
    assert (5, 3) == in_view(shop)
    made = recorded(instance, PRODUCTION_CUSTOMERS)
    assert shop.tag(CUSTOMERS) == made.metadata["lance/to"]
    assert made.tags["dagster/data_version"] == shop.table(CUSTOMERS).at("production").transaction
    assert {} == shop.table(CUSTOMERS).branches.list("run/*")
    assert shop.publish(instance, *PROMOTED).success
    assert made == recorded(instance, PRODUCTION_CUSTOMERS)


def test_a_publication_that_one_main_lacks_is_not_shown_in_part(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Where `main` of a table has yet to follow the dead publication, readers see no part of it by a later run."""
    assert load(shop.lance, instance, 1, *BOTH)
    Dying.scripts.append(Plug(1, main_moves))
    assert not load(Dying(root=shop.lance.root), instance, 2, *BOTH)
    later = load(shop.lance, instance, 3, ORDERS)
    assert in_view(shop) == ((3, 2) if later else (1, 1))
    assert load(shop.lance, instance, 4, *BOTH)
    assert (4 if later else 3, 3) == in_view(shop)


@pytest.mark.parametrize("withdrawn", [True, False], ids=["rolled back", "held"])
def test_what_cannot_come_along_keeps_a_run_back(shop: Shop, instance: dg.DagsterInstance, *, withdrawn: bool) -> None:
    """Where the customers of a dead publication may not be promoted, the orders of a later run wait, and say why."""
    assert shop.run(instance).success
    shop.play(orders=[1, 2])
    assert shop.run(instance).success
    killed(shop, instance, channel_moves)
    if withdrawn:
        channels = LanceRepository.open(shop.lance.root).channels
        channels.rollback("production", reason="4 is a test")
        channels.release("production", reason="looked at")
    else:
        shop.table(CUSTOMERS).tags.hold("production", reason="a count")
    before = in_view(shop)
    shop.play(orders=[1, 2, 3, 4, 5])
    for later in (shop.run(instance, selection=ORDERS_ONLY), shop.publish(instance, *PROMOTED)):
        assert before == in_view(shop)
        logged = "\n".join(entry.user_message for entry in instance.all_logs(later.run_id))
        said = logged if later.success else failure(later)
        assert "readers would see" in said
        assert "materialize production/shop/orders, production/shop/customers together, with ref: main" in said
    if withdrawn:
        assert shop.publish(instance, *PROMOTED, ref="main", reason="no test after all").success
    else:
        shop.table(CUSTOMERS).tags.release("production", reason="counted")
    assert shop.publish(instance, *PROMOTED).success
    assert (5, 3) == in_view(shop)


@pytest.mark.parametrize("is_alone", [True, False], ids=["materialize", "job"])
def test_a_publication_under_way_is_promoted_first(shop: Shop, instance: dg.DagsterInstance, *, is_alone: bool) -> None:
    """A publisher promotes what a slower one has committed, with all of its tables, and then its own rows."""
    assert shop.run(instance).success
    written(shop, instance)
    first = LanceTable.open(shop.table().uri).branches.list("run/*")
    other, seen = shop_at(shop.lance.root), list[tuple[int, int]]()

    def overtake() -> None:
        shop.play(orders=[1, 2, 3, 4, 5])
        assert other.run(instance, selection=OF_ORDERS if is_alone else ORDERS_ONLY).success
        assert not is_alone or other.publish(instance, *PROMOTED).success
        seen.append(in_view(shop))

    Dying.scripts.append(Meanwhile(0, channel_moves, overtake))
    shop.lance = Dying(root=shop.lance.root)
    assert shop.publish(instance, *PROMOTED, ref=next(iter(first))).success
    assert ([(5, 3)], (5, 3)) == (seen, in_view(shop))
    entries = LanceRepository.open(shop.lance.root).channels.history("production")
    assert ["promote"] * 3 == [entry.action for entry in entries]


def test_a_commit_in_between_is_seen_before_the_channel_moves(shop: Shop, instance: dg.DagsterInstance) -> None:
    """When another publisher commits both tables and dies while a run publishes the orders, both are promoted."""
    assert load(shop.lance, instance, 1, *BOTH)

    def die() -> None:
        Dying.scripts.append(Plug(0, channel_moves))
        assert not load(Dying(root=shop.lance.root), instance, 2, *BOTH)
        Dying.scripts.pop()
        assert (1, 1) == in_view(shop)

    def commits(request: Request) -> bool:
        return request.writes and request.key.startswith("_repository/branches/main/")

    Dying.scripts.append(Meanwhile(0, commits, die))
    assert load(Dying(root=shop.lance.root), instance, 3, ORDERS)
    assert ([1, 2, 3], [1, 2]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))
    assert (3, 2) == in_view(shop)


def test_the_partition_of_a_publisher_that_died_is_reported(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Whoever publishes the next partition finishes the publication, and reports the partition that it was of."""
    days = dg.StaticPartitionsDefinition(["mon", "tue"])
    key = dg.AssetKey(["shop", "visits"])

    @dg.asset(key=key, partitions_def=days, metadata={"lance/partition_expr": "day"})
    def visits(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key]})

    nodes = [visits, *build_table_checks(visits, [Unique("day")]), build_publisher([visits], partitions_def=days)]

    def run(lance: LanceResource, day: str) -> bool:
        resources = {"lance": lance, "io_manager": LanceIOManager(lance=lake)}
        options: dict[str, Any] = {"partition_key": day, "resources": resources, "instance": instance}
        return dg.materialize(nodes, raise_on_error=False, **options).success

    Dying.scripts.append(plug := Plug(0, channel_moves))
    assert not run(Dying(root=lake.root), "mon")
    assert plug.pulled
    assert run(lake, "tue")
    assert ["mon", "tue"] == sorted(row["day"] for row in lake.table(key).read("production").to_pylist())
    assert {"mon", "tue"} == instance.get_materialized_partitions(dg.AssetKey(["production", *key.path]))
