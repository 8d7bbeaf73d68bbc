# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""An output that is None stores nothing where the asset's metadata allows it, as in other integrations."""

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    RowCount,
    build_publisher,
    build_table_checks,
)
from tests.plugin.shop import ids_of, materialize

ORDERS, RETURNS = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "returns"])
DAYS = dg.StaticPartitionsDefinition(["a", "b", "c"])
NONE_ALLOWED = {"lance/allow_none": True}


def rows(number: int, day: str = "a") -> pa.Table:
    """One row."""
    return pa.table({"id": [number], "day": [day]})


def asset(value: Any, **options: Any) -> dg.AssetsDefinition:
    """An asset that may be None; `value` is called in each run."""
    metadata = {**NONE_ALLOWED, **options.pop("metadata", {})}

    def orders(context: dg.AssetExecutionContext) -> pa.Table | None:
        rows: pa.Table | None = value(context)
        return rows

    made: dg.AssetsDefinition = dg.asset(key=options.pop("key", ORDERS), metadata=metadata, **options)(orders)
    return made


def test_none_stores_nothing(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """There is no version and no branch; the event says so, and the asset counts as materialized."""
    result = materialize(lake, asset(lambda _: None), instance=instance)
    (event,) = result.asset_materializations_for_node("shop__orders")
    assert event.metadata["lance/stored_nothing"].value is True
    assert lake.open_repository() is None
    assert materialize(lake, asset(lambda _: rows(1)), instance=instance).success
    assert materialize(lake, asset(lambda _: None), instance=instance).success
    assert 1 == len(lake.table(ORDERS).branches.list("run/*"))


def test_none_is_refused_unless_it_is_allowed(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The error names the metadata."""

    @dg.asset(key=ORDERS)
    def orders() -> pa.Table | None:
        return None

    with pytest.raises(InvalidInputError, match="'lance/allow_none': True"):
        dg.materialize([orders], resources={"io_manager": LanceIOManager(lance=lake)}, instance=instance)


def test_a_publisher_has_nothing_to_publish(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The run succeeds before there is a table, and leaves the published rows later; its checks look at these."""
    values: list[Any] = [None, rows(1), None]
    orders = asset(lambda _: values.pop(0))
    nodes = [orders, build_publisher([orders]), *build_table_checks(orders, [RowCount(minimum=1)])]
    alone = dg.AssetSelection.assets(*nodes[:2]).without_checks()
    assert materialize(lake, *nodes, selection=alone, instance=instance).success
    assert materialize(lake, *nodes, instance=instance).success
    assert materialize(lake, *nodes, instance=instance).success
    assert [1] == ids_of(lake.table(ORDERS).read("production"))
    assert {} == lake.table(ORDERS).branches.list("run/*")


def test_other_tables_are_published(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A table of which a run has nothing to store keeps none back."""
    orders, returns = asset(lambda _: rows(1)), asset(lambda _: None, key=RETURNS)
    assert materialize(
        lake, orders, returns, build_publisher([orders, returns], unchecked=True), instance=instance
    ).success
    assert [1] == ids_of(lake.table(ORDERS).read("production"))


def test_an_earlier_attempt_is_taken_back(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A step stored rows and raised; its retry has none, so nothing is published and readers in the run see none."""
    attempts: list[int] = []
    seen: list[list[int]] = []

    @dg.asset(key=ORDERS, retry_policy=dg.RetryPolicy(max_retries=1), metadata=NONE_ALLOWED)
    def orders() -> Any:
        attempts.append(1)
        yield dg.Output(rows(1) if len(attempts) == 1 else None)
        if len(attempts) == 1:
            raise ValueError("it fails once")

    @dg.asset(ins={"upstream": dg.AssetIn(ORDERS, metadata={"lance/allow_missing": True})})
    def reader(upstream: pa.Table) -> None:
        seen.append(ids_of(upstream))

    assert materialize(lake, orders, reader, build_publisher([orders], unchecked=True), instance=instance).success
    assert [[]] == seen
    assert 0 == lake.table(ORDERS).count_rows()


def test_partitions_without_rows_are_done(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """They count as materialized in Dagster, so the publisher at the end of a backfill has no partition missing."""
    stored = {"a": rows(1, "a"), "b": None, "c": rows(3, "c")}
    options: dict[str, Any] = {"partitions_def": DAYS, "metadata": {"lance/partition_expr": "day"}}
    orders = asset(lambda context: stored[context.partition_key], **options)
    publisher = build_publisher([orders], unchecked=True)
    backfill = {"dagster/backfill": "all"}
    for day in stored:
        assert materialize(lake, orders, partition_key=day, tags=backfill, instance=instance).success
    assert {"a", "b", "c"} == instance.get_materialized_partitions(ORDERS)
    assert materialize(lake, orders, publisher, selection=[*publisher.keys], tags=backfill, instance=instance).success
    assert [1, 3] == ids_of(lake.table(ORDERS).read("production"))
