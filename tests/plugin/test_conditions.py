from collections.abc import Sequence
from typing import Any

import dagster as dg

from lance_dagster import candidate_audited, newer_than, tag_moved
from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_ORDERS, Shop

READER = dg.AssetKey("reader")


class Ticks:
    """An asset with a condition, evaluated tick by tick."""

    def __init__(
        self,
        shop: Shop,
        instance: dg.DagsterInstance,
        condition: dg.AutomationCondition,  # type: ignore[type-arg]
        deps: Sequence[dg.AssetKey] = (),
    ) -> None:
        @dg.asset(key=READER, deps=list(deps), automation_condition=condition)
        def reader() -> None:
            pass

        self.reader, self.instance = reader, instance
        found = shop.definitions
        self.definitions = dg.Definitions.merge(found, dg.Definitions([reader]))
        self.cursor: Any = None
        self.requested()

    def requested(self) -> int:
        """Evaluate once; return the number of requested runs of the reader."""
        result = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self.cursor, asset_selection=dg.AssetSelection.assets(READER)
        )
        self.cursor = result.cursor
        return result.get_num_requested(READER)


def test_tag_moved(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A publication and a rollback request one run each; a written candidate and a publication of nothing do not."""
    ticks = Ticks(shop, instance, tag_moved(), [PRODUCTION_ORDERS])
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


def test_candidate_audited(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A candidate that passed its blocking checks requests a run, before it is published; a failed one does not."""
    ticks = Ticks(shop, instance, candidate_audited(), [ORDERS])
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
    ticks = Ticks(shop, instance, newer_than("shop/orders"))
    assert shop.run(instance, selection=[CUSTOMERS]).success
    assert 0 == ticks.requested()
    assert shop.run(instance, selection=[ORDERS]).success
    assert 1 == ticks.requested()
    assert 0 == ticks.requested()
