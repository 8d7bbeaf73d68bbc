"""Publishers that die, and others that act, before a request that a test names."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from lance_dagster import LanceTable
from lance_dagster.plugin.table_asset import TableKey
from tests.plugin.scripted_lake import ScriptedLake
from tests.plugin.shop import CUSTOMERS, ORDERS, PROMOTED, Shop
from tests.repository.scripted_repository import Plug, opened
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_on


class Dying(ScriptedLake):
    """A scripted lake whose script also sees the requests of the tables that the publisher opens."""

    def table(self, key: TableKey, metadata: Mapping[str, object] | None = None) -> LanceTable:
        """Open the table of an asset."""
        return LanceTable(context_on(ScriptedStore(opened(self.uri_of(key, metadata)), self.scripts[-1])))


def main_moves(request: Request) -> bool:
    """Whether a request puts a manifest of `main`."""
    return request.commits and request.key.startswith("_versions/")


def channel_moves(request: Request) -> bool:
    """Whether a request puts an entry of the channel."""
    return request.writes and request.key.startswith("_repository/channels/")


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
    lance, shop.lance = shop.lance, Dying(root=shop.lance.root)
    assert not shop.publish(instance, *PROMOTED).success
    assert plug.pulled
    shop.lance = lance
