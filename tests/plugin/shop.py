# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""A small shop for the tests: two candidates, their checks, a publisher and a reader.

A file beside the tables says what the assets return and how the checks behave, so that one test can make a run fail and
the next run of the same definitions succeed, in this process or in others.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

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
MART = dg.AssetKey("mart")
_LOADED = [
    "dagster",
    "pandas",
    "lance",
    "s3fs",
    "lance_dagster.plugin.io.io_manager",
    "lance_dagster.repository.repository",
]
MANY = dg.multiprocess_executor.configured(
    {"start_method": {"forkserver": {"preload_modules": _LOADED}}}, name="multiprocess"
)
"""A process for each step; the steps are forked from one that has loaded the package."""


@dataclass(frozen=True)
class Script:
    """The behaviour of the assets and checks in the next run."""

    orders: Sequence[float] = (1, 2, 3)
    customers: Sequence[int] = (10, 20)
    customers_fail: bool = False
    check_raises: bool = False
    mart_fails: bool = False
    mode: str = "overwrite"
    evolution: str = "refuse"


@dataclass
class Shop:
    """Definitions over one folder of tables, and methods that run them and inspect the tables."""

    lance: LanceResource
    assets: Sequence[Any]

    @property
    def definitions(self) -> dg.Definitions:
        """All definitions, with jobs that run in one process or in several, for all nodes or for some."""
        short = dg.AssetSelection.assets(ORDERS, PRODUCTION_ORDERS)
        checks = dg.AssetSelection.checks_for_assets(ORDERS, CUSTOMERS)
        candidates = dg.AssetSelection.assets(ORDERS, CUSTOMERS) | checks
        one_promoted = dg.AssetSelection.assets(ORDERS, CUSTOMERS, PRODUCTION_ORDERS)
        return dg.Definitions(
            assets=[one for one in self.assets if not isinstance(one, dg.AssetChecksDefinition)],
            asset_checks=[one for one in self.assets if isinstance(one, dg.AssetChecksDefinition)],
            resources=self.resources,
            jobs=[
                dg.define_asset_job("everything", selection="*", executor_def=dg.in_process_executor),
                dg.define_asset_job("everything_in_processes", selection="*", executor_def=MANY),
                dg.define_asset_job("in_processes", selection=short, executor_def=MANY),
                dg.define_asset_job("candidates", selection=candidates, executor_def=dg.in_process_executor),
                dg.define_asset_job("one_promoted", selection=one_promoted, executor_def=dg.in_process_executor),
            ],
        )

    @property
    def resources(self) -> dict[str, Any]:
        """The resource, and the IO manager that uses it."""
        return {"lance": self.lance, "io_manager": LanceIOManager(lance=self.lance)}

    def play(self, **changes: Any) -> None:
        """Write the script of the next run."""
        _script_file(self.lance.root).write_text(json.dumps(asdict(Script(**changes))))

    def run(self, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialize all assets, or those that the options select."""
        return dg.materialize(self.assets, instance=instance, resources=self.resources, raise_on_error=False, **options)

    def execute(
        self,
        instance: dg.DagsterInstance,
        options: dg.ReexecutionOptions | None = None,
        job: str = "everything",
        **tags: str,
    ) -> dg.JobExecutionResult:
        """Execute a job the way Dagster's own processes do, optionally as a re-execution."""
        built = dg.build_reconstructable_job(
            reconstructor_module_name="tests.plugin.shop",
            reconstructor_function_name="job_at",
            reconstructable_kwargs={"root": self.lance.root, "name": job},
        )
        return dg.execute_job(built, instance=instance, reexecution_options=options, tags=tags)

    def publish(self, instance: dg.DagsterInstance, *keys: dg.AssetKey, **config: Any) -> dg.ExecuteInProcessResult:
        """Materialize the publisher's nodes as its button does; without an argument, the node of the orders."""
        return self.run(
            instance,
            selection=list(keys or (PRODUCTION_ORDERS,)),
            run_config={"ops": {"publish_production": {"config": config}}},
        )

    def table(self, key: dg.AssetKey = ORDERS) -> LanceTable:
        """A candidate's table."""
        return self.lance.table(key)

    def ids(self, ref: str = "main", key: dg.AssetKey = ORDERS) -> list[int]:
        """The ids in a table, sorted."""
        return sorted(row["id"] for row in self.table(key).read(ref).to_pylist())

    def tag(self, key: dg.AssetKey = ORDERS) -> str | None:
        """The version that the tag `production` names."""
        tag = self.table(key).tags.list().get("production")
        return tag.ref if tag else None

    @property
    def read_by_mart(self) -> list[list[int]]:
        """The ids that the reader of production saw, run by run."""
        file = _reads_file(self.lance.root)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Recorded(NamedTuple):
    """A materialization, whose metadata are plain values."""

    metadata: Mapping[str, Any]
    tags: Mapping[str, str]


def recorded(instance: dg.DagsterInstance, key: dg.AssetKey) -> Recorded:
    """The newest materialization of an asset."""
    event = instance.get_latest_materialization_event(key)
    assert event is not None
    assert event.asset_materialization is not None
    made = event.asset_materialization
    return Recorded({name: value.value for name, value in made.metadata.items()}, made.tags or {})


def materialize(lake: LanceResource, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
    """Materialize assets, which the IO manager of a lake stores; a run that failed is returned too."""
    options.setdefault("resources", {"lance": lake, "io_manager": LanceIOManager(lance=lake)})
    options.setdefault("raise_on_error", False)
    return dg.materialize(list(assets), **options)


def failure(result: dg.ExecuteInProcessResult | dg.JobExecutionResult, step: str = "publish_production") -> str:
    """The text of a step's failure, with its causes."""
    (event,) = [event for event in result.get_step_failure_events() if event.step_key == step]
    error = event.step_failure_data.error
    said = event.step_failure_data.user_failure_data
    texts = [said.description or ""] if said else []
    while error is not None:
        texts.append(error.message)
        error = error.cause
    return "\n".join(texts)


def job_at(root: str, name: str) -> dg.JobDefinition:
    """A job of the shop, for Dagster, which asks for it several times for each run."""
    return _job(root, name, threading.get_ident())


# Runs at the same time share nothing, as in processes of their own.
@lru_cache(maxsize=8)
def _job(root: str, name: str, _thread: int) -> dg.JobDefinition:
    return shop_at(root).definitions.resolve_job_def(name)


def shop_at(root: str, *, checks: Sequence[dg.AssetCheckKey] = (), **fields: Any) -> Shop:
    """Build the shop over a folder; the publisher gets `checks`, and the resource gets `fields`."""
    lance = LanceResource(root=root, **fields)

    @dg.asset(key=ORDERS)
    def orders(context: dg.AssetExecutionContext) -> pa.Table:
        script = _script(root)
        settings: dict[str, Any] = {"lance/write_mode": script.mode, "lance/schema_evolution": script.evolution}
        context.add_output_metadata(settings | ({"lance/keys": ["id"]} if script.mode == "upsert" else {}))
        return pa.table({"id": list(script.orders)})

    @dg.asset(key=CUSTOMERS)
    def customers() -> pa.Table:
        if _script(root).customers_fail:
            raise ValueError("customers are not at home")
        return pa.table({"id": list(_script(root).customers)})

    @dg.asset_check(asset=ORDERS, blocking=True)
    def ids_are_positive(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        if _script(root).check_raises:
            raise ValueError("the check broke")
        bad = lance.open(context, ORDERS).count_rows("id <= 0")
        return dg.AssetCheckResult(passed=bad == 0, description=f"{bad} ids are not positive")

    # The customers have no check.
    publisher = build_publisher([ORDERS, CUSTOMERS], checks=checks, unchecked=True)

    @dg.asset(key=MART, ins={"orders": dg.AssetIn(PRODUCTION_ORDERS)})
    def mart(orders: pa.Table) -> None:
        if _script(root).mart_fails:
            raise ValueError("the mart is closed")
        with _reads_file(root).open("a") as file:
            file.write(json.dumps(sorted(orders["id"].to_pylist())) + "\n")

    rows = build_table_checks(ORDERS, [RowCount(minimum=1, maximum=10)])
    return Shop(lance, [orders, customers, ids_are_positive, *rows, publisher, mart])


def _script(root: str) -> Script:
    file = _script_file(root)
    return Script(**json.loads(file.read_text())) if file.exists() else Script()


def _script_file(root: str) -> Path:
    return Path(root).with_name("script.json")


def _reads_file(root: str) -> Path:
    return Path(root).with_name("reads.jsonl")


def ids_of(rows: pa.Table) -> list[int]:
    """The ids of rows, sorted."""
    return sorted(found for found in rows["id"].to_pylist() if found is not None)


CANDIDATES = dg.AssetSelection.assets(ORDERS, CUSTOMERS)

PROMOTED = (PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS)


def reasons(result: dg.ExecuteInProcessResult) -> str:
    """The reasons with which the publisher refused."""
    assert not result.success
    return failure(result)


def candidates(shop: Shop, instance: dg.DagsterInstance) -> str:
    """Write and audit both tables without a publication; return the id of the run."""
    result = shop.run(instance, selection=CANDIDATES)
    assert result.success
    return result.run_id


ORDERS_PY = """
import dagster as dg
import pyarrow as pa

@dg.asset(key=["shop", "orders"])
def orders() -> pa.Table:
    return pa.table({"id": [1, 2]})
"""
