"""Writing, auditing and publishing on an object store, without leaving the credentials anywhere."""

from pathlib import Path

import dagster as dg
import lance
import pandas as pd

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks
from tests.conftest import S3Storage
from tests.plugin.leaks import leaks

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
