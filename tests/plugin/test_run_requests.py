"""The most requests that a run sends to object storage: it writes tables, checks them and publishes them."""

import json
import urllib.request

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks
from tests.conftest import S3Storage
from tests.servers.objects import REQUESTS

ROWS = pa.table({"id": [1, 2, 3]})


def run(storage: S3Storage, count: int) -> None:
    """Write, check and publish tables in one run."""
    keys = [dg.AssetKey(["shop", f"t{number}"]) for number in range(count)]

    @dg.multi_asset(outs={key.path[-1]: dg.AssetOut(key=key) for key in keys})
    def tables():  # type: ignore[no-untyped-def]  # noqa: ANN202
        for key in keys:
            yield dg.Output(ROWS, key.path[-1])

    resource = LanceResource(root=f"{storage.uri}/lake", storage_options=storage.storage_options)
    checks = [check for key in keys for check in build_table_checks(key, [RowCount(minimum=1)])]
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [tables, *checks, build_publisher(keys)],
            resources={"lance": resource, "io_manager": LanceIOManager(lance=resource)},
            instance=instance,
        )
        assert result.success


def sent(storage: S3Storage) -> list[str]:
    """The requests since the last call."""
    with urllib.request.urlopen(f"{storage.storage_options['aws_endpoint']}{REQUESTS}") as answer:  # noqa: S310
        return list(json.load(answer))


# Two for each table are for a busy machine, on which a commit right after its fork may take longer than five seconds.
@pytest.mark.parametrize("count, most", [(1, 64 + 2), (4, 205 + 8)])
def test_a_run_sends_at_most_so_many_requests(s3_storage: S3Storage, count: int, most: int) -> None:
    """The second run of tables, which finds them in the lake, sends at most so many requests; pylance's are counted."""
    run(s3_storage, count)
    sent(s3_storage)
    run(s3_storage, count)
    requests = sent(s3_storage)
    assert most >= len(requests), "\n".join(requests)
