"""The result of a check that reads another table holds only for the version of that table that it read."""

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    KeysExist,
    LanceIOManager,
    LanceResource,
    PinnedTable,
    RowCount,
    build_publisher,
    build_table_checks,
    table_check,
)
from tests.plugin.scripted_lake import ScriptedLake
from tests.plugin.shop import failure, ids_of
from tests.store.scripted import Request

ORDERS, LINES = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "lines"])


class Shop:
    """Orders that are replaced, and lines that are appended; each line is of an order."""

    def __init__(self, lake: LanceResource, instance: dg.DagsterInstance) -> None:
        """Make the definitions."""
        self.lake, self.instance = lake, instance
        self.orders, self.lines, self.evaluated = [1], [1], 0
        shop = self

        @dg.asset(key=ORDERS)
        def orders() -> pa.Table:
            return pa.table({"id": shop.orders})

        @dg.asset(key=LINES, metadata={"lance/write_mode": "append"}, deps=[orders])
        def lines() -> pa.Table:
            return pa.table({"id": shop.lines})

        @table_check(asset=lines, reads=[orders])
        def counted(lines: PinnedTable, orders: PinnedTable) -> bool:
            shop.evaluated += 1
            return lines.count_rows() >= 0 and orders.count_rows() > 0

        self.checks = {
            ORDERS: build_table_checks(orders, [RowCount(minimum=1)]),
            LINES: [*build_table_checks(lines, [KeysExist("id", in_table="shop/orders", key="id")]), counted],
        }
        self.assets = [orders, lines, *self.checks[ORDERS], *self.checks[LINES], build_publisher([orders, lines])]

    def run(self, *keys: dg.AssetKey, publish: bool = True) -> dg.ExecuteInProcessResult:
        """Write tables, check them, publish them."""
        promoted = [dg.AssetKey(["production", *key.path]) for key in keys] if publish else []
        return self._execute(selection=dg.AssetSelection.assets(*keys, *promoted))

    def publish(self, *keys: dg.AssetKey, **config: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401
        """Press the publisher's button."""
        selection = dg.AssetSelection.assets(*[dg.AssetKey(["production", *key.path]) for key in keys])
        return self._execute(selection=selection, run_config={"ops": {"publish_production": {"config": config}}})

    def seen(self, key: dg.AssetKey = LINES) -> list[int]:
        """The ids that readers see."""
        return ids_of(self.lake.table(key).read("production"))

    def _execute(self, **options: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401
        resources = {"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)}
        return dg.materialize(self.assets, resources=resources, instance=self.instance, raise_on_error=False, **options)


@pytest.fixture
def shop(lake: LanceResource, instance: dg.DagsterInstance) -> Shop:
    """A shop in which order 1 and a line of it are published."""
    made = Shop(lake, instance)
    assert made.run(ORDERS, LINES).success
    return made


def test_the_other_table_moved_after_the_check(shop: Shop) -> None:
    """A line is refused whose order another run removed after the check had passed."""
    waiting = shop.run(LINES, publish=False)
    assert waiting.success
    shop.orders = [2]
    assert shop.run(ORDERS).success
    said = failure(shop.publish(LINES, ref=f"run/{waiting.run_id}"))
    assert "'keys_exist_id' failed on the merge of" in said
    assert [1] == shop.seen()
    shop.orders = [1, 2]
    assert shop.run(ORDERS).success
    assert shop.publish(LINES, ref=f"run/{waiting.run_id}").success
    assert [1, 1] == shop.seen()


def test_the_other_table_of_the_run_is_not_published_with_it(shop: Shop) -> None:
    """A line is refused whose order the same run wrote, when that order is not published with it."""
    shop.orders, shop.lines = [1, 5], [5]
    waiting = shop.run(ORDERS, LINES, publish=False)
    assert waiting.success
    assert "'keys_exist_id' failed on the merge of" in failure(shop.publish(LINES, ref=f"run/{waiting.run_id}"))
    assert shop.publish(ORDERS, LINES, ref=f"run/{waiting.run_id}").success
    assert ([1, 5], [1, 5]) == (shop.seen(ORDERS), shop.seen())


def test_without_movement_nothing_is_evaluated_again(shop: Shop) -> None:
    """Tables that are published as the checks saw them are not evaluated a second time."""
    shop.evaluated = 0
    shop.orders, shop.lines = [1, 6], [6]
    assert shop.run(ORDERS, LINES).success
    assert 1 == shop.evaluated
    assert shop.run(LINES).success
    assert 2 == shop.evaluated


@pytest.mark.parametrize("orders, expected", [([2], [1]), ([1, 2], [1, 1])])
def test_the_other_table_is_published_just_before_the_commit(
    lake: LanceResource, instance: dg.DagsterInstance, orders: list[int], expected: list[int]
) -> None:
    """A check is evaluated again on the order that another publisher commits between the audit and the commit."""
    shop = Shop(lake, instance)
    assert shop.run(ORDERS, LINES).success
    waiting = shop.run(LINES, publish=False)
    pending = [1]

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/") and pending:
            pending.clear()
            shop.lake, shop.orders = lake, orders
            assert shop.run(ORDERS).success
        return request.send()

    ScriptedLake.scripts.append(script)
    shop.lake, shop.evaluated = ScriptedLake(root=lake.root), 0
    published = shop.publish(LINES, ref=f"run/{waiting.run_id}")
    shop.lake = lake
    assert (1 in orders) == published.success
    assert published.success or "'keys_exist_id' failed on run/" in failure(published)
    assert (expected, orders, 1) == (shop.seen(), shop.seen(ORDERS), shop.evaluated)


def test_readers_get_the_other_table_as_the_check_saw_it(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A line is refused while its order is only in a version that the repository or its channel does not name."""
    shop = Shop(lake, instance)
    assert shop.run(ORDERS, LINES).success
    lake.table(ORDERS).append(pa.table({"id": [7]}))
    shop.lines = [7]
    waiting = shop.run(LINES, publish=False)
    assert waiting.success
    assert "'keys_exist_id' failed on run/" in failure(shop.publish(LINES, ref=f"run/{waiting.run_id}"))
    assert [1] == shop.seen()
    repository = lake.open_repository()
    assert repository is not None
    repository.commit("order 7")
    said = failure(shop.publish(LINES, ref=f"run/{waiting.run_id}"))
    assert "channel 'production' names shop/orders at main@2, and main of the repository another version" in said
    assert [1] == shop.seen()
    assert shop.publish(ORDERS, ref="main").success
    assert shop.publish(LINES, ref=f"run/{waiting.run_id}").success
    assert ([1, 7], [1, 7]) == (shop.seen(ORDERS), shop.seen())
