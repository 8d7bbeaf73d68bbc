"""After a publisher was killed that had moved `main`, the next *Materialize* does the rest, and nothing beyond it."""

from collections.abc import Callable

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


def killed(shop: Shop, instance: dg.DagsterInstance, at: Callable[[Request], bool], after: int = 0) -> None:
    """Publish orders 4 and customer 30, and die before a request that matches, after some others that matched."""
    shop.play(orders=[1, 2, 3, 4], customers=[10, 20, 30])
    written = dg.AssetSelection.assets(ORDERS, CUSTOMERS) | dg.AssetSelection.checks_for_assets(ORDERS)
    assert shop.run(instance, selection=written).success
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
