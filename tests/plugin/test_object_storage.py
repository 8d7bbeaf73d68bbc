"""Writing, auditing and publishing on an object store, without leaving the credentials anywhere."""

# ruff: noqa: ANN401 - definitions are handed on as they come
import json
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pandas as pd
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceResource,
    RowCount,
    build_publisher,
    build_table_checks,
    promoted_asset_spec,
)
from tests.conftest import S3Storage
from tests.plugin.leaks import leaks
from tests.plugin.shop import ids_of

pytestmark = pytest.mark.slow

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


@dg.asset(key_prefix="shop", partitions_def=DAYS, metadata={"lance/partition_expr": "day"})
def orders(context: dg.AssetExecutionContext) -> pd.DataFrame:
    """Three orders a day."""
    return pd.DataFrame({"day": [context.partition_key] * 3, "amount": [1, 2, 3]})


def test_runs_publish_on_s3_and_leave_no_secret(
    s3_storage: S3Storage, stored_instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Two runs write, audit and publish; pylance reads the tag; no file of Dagster's holds a credential."""
    secret = "canary-secret"
    options = {**s3_storage.storage_options, "aws_secret_access_key": secret}
    resource = LanceResource(root=f"{s3_storage.uri}/lake", storage_options=options)
    manager = LanceIOManager(lance=resource)
    assets = [
        orders,
        *build_table_checks(orders, [RowCount(minimum=1)]),
        build_publisher([orders], partitions_def=DAYS),
    ]
    for day in DAYS.get_partition_keys():
        done = dg.materialize(
            assets,
            partition_key=day,
            resources={"lance": resource, "io_manager": manager},
            instance=stored_instance,
        )
        assert done.success
    table = resource.table("shop/orders")
    published = lance.dataset(table.uri, version="production", storage_options=options)
    published.validate()
    assert (6, {}) == (published.count_rows(), table.branches.list("run/*"))
    assert secret not in "".join(map(repr, (resource, manager, table, table.write_target())))
    assert [] == leaks(tmp_path, secret)


class Locations:
    """Two code locations over one root on S3, each with its own resource: orders, and a report that reads them."""

    def __init__(self, storage: S3Storage, instance: dg.DagsterInstance) -> None:
        self.storage, self.instance, self.read = storage, instance, list[int]()
        self.ids = [1]

    @property
    def lake(self) -> LanceResource:
        """A resource of its own for each use, as in separate processes."""
        return LanceResource(root=f"{self.storage.uri}/lake", storage_options=dict(self.storage.storage_options))

    def write(self, *ids: int, publish: bool, **tags: str) -> dg.ExecuteInProcessResult:
        """Append orders in the first location."""

        @dg.asset(key=["shop", "orders"], metadata={"lance/write_mode": "append"})
        def orders() -> pa.Table:
            return pa.table({"id": list(ids)})

        checks = build_table_checks(orders, [RowCount(minimum=1)])
        return self._run([orders, *checks, *([build_publisher([orders])] if publish else [])], tags)

    def report(self, upstream: dg.AssetSpec, **tags: str) -> dg.ExecuteInProcessResult:
        """Write a report in the second location, which knows the orders as an external asset."""

        @dg.asset(key=["shop", "report"], ins={"orders": dg.AssetIn(upstream.key)})
        def report(orders: pa.Table) -> pa.Table:
            self.read = ids_of(orders)
            return pa.table({"orders": [orders.num_rows]})

        return self._run([upstream, report], tags, selection=[report])

    def _run(self, assets: list[Any], tags: dict[str, str], **options: Any) -> dg.ExecuteInProcessResult:
        lake = self.lake
        resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
        tags = {f"dagster/{name}": value for name, value in tags.items()}
        return dg.materialize(assets, resources=resources, instance=self.instance, tags=tags, **options)


def test_another_code_location_reads_what_is_published(s3_storage: S3Storage, instance: dg.DagsterInstance) -> None:
    """It never reads a candidate that waits; a run of the same backfill does, and its commit names what it read."""
    locations = Locations(s3_storage, instance)
    orders, promoted = dg.AssetSpec(["shop", "orders"]), promoted_asset_spec("shop/orders")
    locations.write(1, publish=True)
    waiting = locations.write(2, publish=False, backfill="one")
    (candidate,) = locations.lake.table("shop/orders").branches.list("run/*")
    assert f"run/{waiting.run_id}" == candidate
    for upstream, tags, ids in (
        (orders, {}, [1]),
        (promoted, {}, [1]),
        (orders, {"backfill": "another"}, [1]),
        (promoted, {"backfill": "one"}, [1]),
        (orders, {"backfill": "one"}, [1, 2]),
    ):
        done = locations.report(upstream, **tags)
        assert ids == locations.read, (upstream.key, tags)
    head = locations.lake.table("shop/report").head(f"run/{done.run_id}")
    read = json.loads(head.properties["dagster/read_unpublished"])
    number = locations.lake.table("shop/orders").head(candidate).number
    uri = locations.lake.uri_of("shop/orders")
    assert {uri: [f"{candidate}@{number}"]} == read
