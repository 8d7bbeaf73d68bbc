# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""Sensors and conditions that a test evaluates tick by tick, as the daemon does."""

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from lance_dagster import LanceResource
from tests.plugin.shop import Shop


class Ticks:
    """A sensor that is evaluated tick by tick, as by the daemon."""

    def __init__(self, sensor: dg.SensorDefinition, lance: LanceResource, instance: dg.DagsterInstance) -> None:
        self.sensor, self.lance, self.instance = sensor, lance, instance
        self.cursor: str | None = None

    def tick(self) -> Any:
        """Evaluate once, and keep the cursor."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources={"lance": self.lance})
        found = self.sensor.evaluate_tick(context)
        self.cursor = found.cursor
        return found

    def text(self) -> str:
        """Evaluate once; return the text of the tick."""
        return str(self.tick().skip_message)

    def announced(self) -> list[tuple[str, Any]]:
        """Evaluate once; return the assets and versions of its events."""
        events = self.tick().asset_events
        return [(event.asset_key.to_user_string(), int(str(event.metadata["lance/version"].value))) for event in events]


READER = dg.AssetKey("reader")


class ConditionTicks:
    """An asset with a condition, evaluated tick by tick; `meanwhile` happens when a run makes the asset."""

    def __init__(
        self,
        shop: Shop,
        instance: dg.DagsterInstance,
        condition: dg.AutomationCondition,  # type: ignore[type-arg]
        deps: Sequence[dg.AssetKey] = (),
    ) -> None:
        @dg.asset(key=READER, deps=list(deps), automation_condition=condition)
        def reader() -> None:
            self.meanwhile()

        self.reader, self.instance = reader, instance
        found = shop.definitions
        self.definitions = dg.Definitions.merge(found, dg.Definitions([reader]))
        self.cursor: Any = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.requested()

    def make(self) -> None:
        """Make the asset."""
        assert dg.materialize([self.reader], instance=self.instance).success

    def requested(self) -> int:
        """Evaluate once; return the number of requested runs of the reader."""
        result = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self.cursor, asset_selection=dg.AssetSelection.assets(READER)
        )
        self.cursor = result.cursor
        return result.get_num_requested(READER)
