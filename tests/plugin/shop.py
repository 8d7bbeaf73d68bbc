"""A small shop for the tests: two candidates, their checks, a publisher and a reader.

What the assets return and how the checks behave is read from a `Script`, so that one test can make a run fail and
the next run of the same definitions succeed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import dagster as dg
import pyarrow as pa

from lance_dagster import (
    LanceIOManager,
    LanceResource,
    LanceTable,
    RowCount,
    build_publisher,
    build_table_checks,
)

ORDERS, CUSTOMERS = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "customers"])
PRODUCTION_ORDERS = dg.AssetKey(["production", "shop", "orders"])
PRODUCTION_CUSTOMERS = dg.AssetKey(["production", "shop", "customers"])


@dataclass
class Script:
    """What happens in the next run."""

    orders: list[int] = field(default_factory=lambda: [1, 2, 3])
    customers: list[int] = field(default_factory=lambda: [10, 20])
    customers_fail: bool = False
    check_raises: bool = False
    mode: str = "overwrite"
    seen: list[object] = field(default_factory=list)


@dataclass
class Shop:
    """Definitions over one folder of tables, and ways to look at these."""

    lance: LanceResource
    script: Script
    assets: Sequence[dg.AssetsDefinition | dg.AssetChecksDefinition]

    @property
    def resources(self) -> dict[str, object]:
        return {"lance": self.lance, "io_manager": LanceIOManager(lance=self.lance)}

    @property
    def definitions(self) -> dg.Definitions:
        return dg.Definitions(
            assets=[one for one in self.assets if not isinstance(one, dg.AssetChecksDefinition)],
            asset_checks=[one for one in self.assets if isinstance(one, dg.AssetChecksDefinition)],
            resources=self.resources,
            jobs=[dg.define_asset_job("everything", selection="*", executor_def=dg.in_process_executor)],
        )

    def run(self, instance: dg.DagsterInstance, **options: object) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            self.assets,
            instance=instance,
            resources=self.resources,
            raise_on_error=False,
            **options,  # type: ignore[arg-type]
        )

    def table(self, key: dg.AssetKey = ORDERS) -> LanceTable:
        return self.lance.table(key)

    def ids(self, ref: str = "main", key: dg.AssetKey = ORDERS) -> list[int]:
        return sorted(self.table(key).read(ref)["id"].to_pylist())


def build_shop(lance: LanceResource, *, checks: Sequence[dg.AssetCheckKey] = ()) -> Shop:
    """Build the shop; `checks` are named to the publisher."""
    script = Script()

    @dg.asset(key=ORDERS)
    def orders(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_output_metadata({"write_mode": script.mode})
        return pa.table({"id": script.orders})

    @dg.asset(key=CUSTOMERS)
    def customers() -> pa.Table:
        if script.customers_fail:
            raise ValueError("customers are not at home")
        return pa.table({"id": script.customers})

    @dg.asset_check(asset=ORDERS, blocking=True)
    def ids_are_positive(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        if script.check_raises:
            raise ValueError("the check broke")
        table = lance.open(context, ORDERS)
        bad = table.count_rows("id <= 0")
        return dg.AssetCheckResult(passed=bad == 0, description=f"{bad} ids are not positive")

    publisher = build_publisher([ORDERS, CUSTOMERS], checks=checks)

    @dg.asset(ins={"orders": dg.AssetIn(PRODUCTION_ORDERS)})
    def mart(orders: pa.Table) -> None:
        script.seen.append(sorted(orders["id"].to_pylist()))

    rows = build_table_checks(ORDERS, [RowCount(minimum=1, maximum=10)])
    return Shop(lance, script, [orders, customers, ids_are_positive, *rows, publisher, mart])
