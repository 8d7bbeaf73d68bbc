# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    LanceTable,
    RowCount,
    build_publisher,
    build_table_checks,
    pipes_extras,
    pipes_table,
)
from tests.plugin.shop import ORDERS, PRODUCTION_ORDERS, recorded

# Dagster's Pipes client calls methods that Dagster deprecates or previews.
pytestmark = [
    pytest.mark.filterwarnings("ignore:AssetExecutionContext:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*expected_writer_count"),
]
EXTERNAL = Path(__file__).parent / "external_orders.py"
CHECK = dg.AssetCheckSpec("ids_are_positive", asset=ORDERS, blocking=True)


def pipeline(lake: LanceResource, **script: Any) -> Any:
    """Orders written by an external process, two checks and a publisher."""

    @dg.asset(key=ORDERS, check_specs=[CHECK], retry_policy=dg.RetryPolicy(max_retries=script.pop("retries", 0)))
    def orders(context: dg.AssetExecutionContext, client: dg.PipesSubprocessClient) -> Iterator[Any]:
        given = {"mode": "overwrite", **script}
        if context.op_execution_context.retry_number:
            given["fails"] = False
        command = [sys.executable, str(EXTERNAL), json.dumps(given)]
        yield from client.run(
            context=context,
            command=command,
            extras=pipes_extras(context, lake),
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "LANCE_DAGSTER_COMMITTER": ""},
        ).get_results()

    return [orders, *build_table_checks(ORDERS, [RowCount(minimum=1)]), build_publisher([ORDERS])]


def run(lake: LanceResource, instance: dg.DagsterInstance, **script: Any) -> dg.ExecuteInProcessResult:
    """Materialize the pipeline."""
    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake), "client": dg.PipesSubprocessClient()}
    return dg.materialize(pipeline(lake, **script), instance=instance, resources=resources, raise_on_error=False)


def ids(lake: LanceResource, ref: str = "production") -> list[int]:
    """The ids of the orders."""
    return sorted(row["id"] for row in lake.table(ORDERS).read(ref).to_pylist())


@pytest.mark.slow
def test_external_process_is_audited_and_published(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The process creates the table on the run's branch; its version passes the gate and reaches production."""
    result = run(lake, instance, ids=[1, 2])
    assert result.success
    assert [1, 2] == ids(lake)
    found = recorded(instance, ORDERS).metadata
    assert (f"run/{result.run_id}", "2") == (found["lance/branch"], found["lance/version"])
    assert 2 == found["dagster/row_count"]
    assert "shop/orders" == lake.table(ORDERS).config.get()["dagster/asset"]
    assert "main@2" == recorded(instance, PRODUCTION_ORDERS).metadata["lance/to"]


@pytest.mark.slow
def test_check_of_the_process_stops_the_publisher(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A blocking check that the process reports as failed keeps its rows on the branch."""
    result = run(lake, instance, ids=[-1])
    assert not result.success
    assert [-1] == ids(lake, f"run/{result.run_id}")
    assert "production" not in lake.table(ORDERS).tags.list()


@pytest.mark.slow
def test_repeated_step_appends_once(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Dagster starts the process again after it broke; the rows of its first attempt are replaced."""
    result = run(lake, instance, ids=[1, 2], mode="append", fails=True, retries=1)
    assert result.success
    assert [1, 2] == ids(lake)


@pytest.mark.slow
def test_process_that_writes_nothing_fails(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A green run without rows would publish what another run wrote."""
    LanceTable.create(lake.uri_of(ORDERS), schema_of_orders())
    assert not run(lake, instance, ids=[1], mode="nothing").success


def test_process_without_extras() -> None:
    """The error names the call that is missing."""
    with pytest.raises(InvalidInputError, match=r"pass extras=pipes_extras\(context, lance\)"), pytest.warns():
        pipes_table()


def schema_of_orders() -> Any:
    """One column."""
    return pa.schema([("id", pa.int64())])
