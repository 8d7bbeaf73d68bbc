import dagster as dg

from lance_dagster import candidate_audited, newer_than, tag_moved
from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_ORDERS, Shop
from tests.plugin.ticks import ConditionTicks


def test_tag_moved(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A publication and a rollback request one run each; a written candidate and a publication of nothing do not."""
    ticks = ConditionTicks(shop, instance, tag_moved(), [PRODUCTION_ORDERS])
    assert shop.run(instance, selection=[ORDERS]).success
    assert 0 == ticks.requested()
    assert shop.run(instance).success
    assert 1 == ticks.requested()
    assert 0 == ticks.requested()
    shop.play(orders=[4])
    assert shop.run(instance).success
    assert 1 == ticks.requested()
    # Dagster forgets an event in the tick right after a request: the requested run is about to read the rows anyway.
    assert 0 == ticks.requested()
    assert shop.publish(instance, ref="main@2", reason="wrong rows").success
    assert 1 == ticks.requested()


def test_tag_moved_after_a_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A move after the requested run has made its reader, but within the same tick, requests another run."""
    ticks = ConditionTicks(shop, instance, tag_moved(), [PRODUCTION_ORDERS])
    assert shop.run(instance).success
    assert 1 == ticks.requested()
    ticks.make()
    shop.play(orders=[4])
    assert shop.run(instance).success
    assert 1 == ticks.requested()
    ticks.make()
    assert [0, 0] == [ticks.requested(), ticks.requested()]


def test_tag_moved_during_a_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A move while a run makes its reader requests another run when that run is over, and no third run."""
    ticks = ConditionTicks(shop, instance, tag_moved(), [PRODUCTION_ORDERS])
    assert shop.run(instance).success
    assert 1 == ticks.requested()
    assert 0 == ticks.requested()
    seen: list[int] = []

    def move() -> None:
        shop.play(orders=[4])
        assert shop.run(instance).success
        seen.append(ticks.requested())

    ticks.meanwhile = move
    ticks.make()
    assert [0] == seen
    assert 1 == ticks.requested()
    ticks.meanwhile = lambda: None
    ticks.make()
    assert [0, 0] == [ticks.requested(), ticks.requested()]


def test_candidate_audited(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A candidate that passed its blocking checks requests a run, before it is published; a failed one does not."""
    ticks = ConditionTicks(shop, instance, candidate_audited(), [ORDERS])
    checks = dg.AssetSelection.checks_for_assets(ORDERS)
    shop.play(orders=[-1])
    assert not shop.run(instance, selection=dg.AssetSelection.assets(ORDERS) | checks).success
    assert 0 == ticks.requested()
    shop.play(orders=[1])
    assert shop.run(instance, selection=dg.AssetSelection.assets(ORDERS) | checks).success
    assert 1 == ticks.requested()
    assert 0 == ticks.requested()


def test_newer_than(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Each materialization of the named asset, which is not a dependency, requests a run; other assets request none."""
    ticks = ConditionTicks(shop, instance, newer_than("shop/orders"))
    assert shop.run(instance, selection=[CUSTOMERS]).success
    assert 0 == ticks.requested()
    assert shop.run(instance, selection=[ORDERS]).success
    assert 1 == ticks.requested()
    assert 0 == ticks.requested()
