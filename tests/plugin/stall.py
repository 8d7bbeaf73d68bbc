# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""A stall: one table of items to which runs append, with checks and a publisher that a test chooses."""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, LanceTable, build_publisher, build_table_checks

ITEMS, PRODUCTION_ITEMS = dg.AssetKey(["shop", "items"]), dg.AssetKey(["production", "shop", "items"])

DAYS = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])


class Stall:
    """A table of items to which runs append, with checks that the test chooses."""

    def __init__(
        self, lake: LanceResource, checks: Sequence[Any] = (), *, days: bool = False, once: bool = False, **options: Any
    ) -> None:
        self.lake, self.ids = lake, [1]
        metadata = {"lance/write_mode": options.pop("mode", "append")} | (
            {"lance/partition_expr": "day"} if days else {}
        )

        @dg.asset(key=ITEMS, metadata=metadata, partitions_def=DAYS if days else None)
        def items(context: dg.AssetExecutionContext) -> pa.Table:
            day = {"day": [context.partition_key] * len(self.ids)} if days else {}
            return pa.table({"id": self.ids, **day})

        values = [check for check in checks if not isinstance(check, dg.AssetChecksDefinition)]
        given = [check for check in checks if isinstance(check, dg.AssetChecksDefinition)]
        publisher = build_publisher([items], partitions_def=DAYS if days and not once else None, **options)
        self.assets = [items, publisher, *build_table_checks(items, values), *given]

    def run(self, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialize everything, or what the options select."""
        resources = {"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)}
        return dg.materialize(self.assets, instance=instance, resources=resources, raise_on_error=False, **options)

    def write(self, instance: dg.DagsterInstance, *ids: int, **options: Any) -> str:
        """Write and audit items on a run branch, which waits; return the ref of the branch."""
        self.ids = list(ids)
        selection = dg.AssetSelection.assets(ITEMS) | dg.AssetSelection.checks_for_assets(ITEMS)
        result = self.run(instance, selection=selection, **options)
        assert result.success
        return f"run/{result.run_id}"

    def publish(self, instance: dg.DagsterInstance, ref: str = "", **config: Any) -> dg.ExecuteInProcessResult:
        """Press the publisher's button."""
        options = {key: config.pop(key) for key in ("partition_key", "tags") if key in config}
        asked = {"ops": {"publish_production": {"config": {"ref": ref, **config}}}}
        return self.run(instance, selection=[PRODUCTION_ITEMS], run_config=asked, **options)

    @property
    def table(self) -> LanceTable:
        """The table of the items."""
        return self.lake.table(ITEMS)

    def published(self) -> list[int]:
        """The ids that readers of production see."""
        return sorted(row["id"] for row in self.table.read("production").to_pylist())

    def previews(self) -> list[str]:
        """The names of the preview branches."""
        return list(self.table.branches.list("preview/*"))
