"""After a publisher was killed that had moved `main`, the next *Materialize* does the rest, and nothing beyond it."""

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.plugin.table_asset import TableAddress
from tests.plugin.scripted_lake import ScriptedLake
from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_CUSTOMERS, PRODUCTION_ORDERS, Shop, recorded, shop_at
from tests.repository.scripted_repository import Plug, opened
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_on

PROMOTED = (PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS)


class Dying(ScriptedLake):
    """A scripted lake whose script also sees the requests of the tables that the publisher opens."""

    def open_at(self, address: TableAddress) -> LanceTable:
        """Open the table at an address."""
        return LanceTable(context_on(ScriptedStore(opened(self.uri_at(address)), self.scripts[-1])))


def main_moves(request: Request) -> bool:
    """Whether a request puts a manifest of `main`."""
    return request.commits and request.key.startswith("_versions/")


def tag_moves(request: Request) -> bool:
    """Whether a request writes a tag."""
    return request.writes and request.key.startswith("_refs/tags/production")


def channel_moves(request: Request) -> bool:
    """Whether a request puts an entry of the channel."""
    return request.writes and request.key.startswith("_repository/channels/")


def pinned(request: Request) -> bool:
    """Whether a request writes the pin of the publisher's run, after the channel and the tags have moved."""
    return request.writes and "/pins/" in request.key


class Meanwhile:
    """A script that does something before a request that matches, after some others that matched were answered."""

    def __init__(self, number: int, at: Callable[[Request], bool], act: Callable[[], object]) -> None:
        """Take the number of matching requests that are made before."""
        self.left, self.at, self.act = number, at, act
        # Held during the request: the requests of several threads that match are made one after the other.
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        """Send the request."""
        if not self.at(request):
            return request.send()
        with self._lock:
            self.left -= 1
            if self.left == -1:
                self.act()
            return request.send()


def written(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Write and check orders 4 and customer 30, which wait."""
    shop.play(orders=[1, 2, 3, 4], customers=[10, 20, 30])
    selection = dg.AssetSelection.assets(ORDERS, CUSTOMERS) | dg.AssetSelection.checks_for_assets(ORDERS)
    assert shop.run(instance, selection=selection).success


def killed(shop: Shop, instance: dg.DagsterInstance, at: Callable[[Request], bool], after: int = 0) -> None:
    """Publish orders 4 and customer 30, and die before a request that matches, after some others that matched."""
    written(shop, instance)
    plug = Plug(after, at)
    Dying.scripts.append(plug)
    lance, shop.lance = shop.lance, Dying(root=shop.lance.root, repository=shop.lance.repository)
    assert not shop.publish(instance, *PROMOTED).success
    assert plug.pulled
    shop.lance = lance


@pytest.mark.parametrize(
    "repository,at,after",
    [
        pytest.param(True, main_moves, 1, id="between the tables"),
        pytest.param(True, channel_moves, 0, id="before the channel"),
        pytest.param(True, pinned, 0, id="before the event"),
        pytest.param(False, tag_moves, 0, id="before the first tag"),
        pytest.param(False, tag_moves, 1, id="between the tags"),
    ],
)
def test_the_next_publication_does_the_rest(
    shop: Shop, instance: dg.DagsterInstance, *, repository: bool, at: Callable[[Request], bool], after: int
) -> None:
    """Both tables are promoted, with an event each, and no branch is left; a later foreign commit is not promoted."""
    shop = shop_at(shop.lance.root, repository=repository)
    if repository:
        assert shop.run(instance).success
    killed(shop, instance, at, after)
    # If `main` of the orders had not followed yet, the foreign rows would be audited and published with the orders.
    foreign = shop.table().append(pa.table({"id": [99]})) if not after else shop.table().head()
    assert shop.publish(instance, *PROMOTED).success
    assert ([1, 2, 3, 4], [10, 20, 30]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))
    for key, node in zip((ORDERS, CUSTOMERS), PROMOTED, strict=True):
        # The branch of a table that was promoted already is left to the sweeper.
        assert (key == ORDERS and not repository and after) or shop.table(key).branches.list("run/*") == {}
        assert shop.tag(key) == recorded(instance, node).metadata["lance/to"]
    assert after or str(foreign) == str(shop.table().head())


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
