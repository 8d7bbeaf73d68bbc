"""A backfill of assets in which some partitions have no rows, by a real daemon.

Dagster from 1.13.22 on counts a partition as failed whose optional output was skipped, and then never starts the
publisher at the end of the backfill. An output that is None is materialized, so the publisher is started.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.daemon import daemon
from tests.plugin.shop import ids_of

pytestmark = pytest.mark.soak

CHECKOUT = Path(__file__).parents[2]
BY_HAND = ("dagster", "asset", "materialize", "--select", "production/skipped")

LOCATION = """
from pathlib import Path

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks

DAYS = dg.StaticPartitionsDefinition(["1", "2", "3"])
BY_DAY = {"lance/partition_expr": "day"}


def rows(day):
    return pa.table({"id": [int(day)], "day": [day]}) if day != "2" else None


@dg.asset(partitions_def=DAYS, output_required=False, metadata=BY_DAY)
def skipped(context):
    found = rows(context.partition_key)
    if found is not None:
        yield dg.Output(found)


@dg.asset(partitions_def=DAYS, metadata={**BY_DAY, "lance/allow_none": True})
def none(context) -> pa.Table | None:
    return rows(context.partition_key)


parts = []
for asset in (skipped, none):
    name = asset.key.to_user_string()
    checks = build_table_checks(asset, [RowCount(minimum=1)])
    parts.append(dg.Definitions([asset, build_publisher([asset], name=f"publish_{name}")], asset_checks=checks))
lance = LanceResource(root=str(Path(TOP_FOLDER) / "lake"))
defs = dg.Definitions.merge(
    *parts,
    dg.Definitions(
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)}, executor=dg.in_process_executor
    ),
)
"""
LAUNCH = """
mutation($assets: [AssetKeyInput!]!) {
  launchPartitionBackfill(backfillParams: {assetSelection: $assets, partitionNames: ["1", "2", "3"]}) {
    __typename
  }
}
"""


def run(home: Path, *command: str) -> str:
    """Run a command of Dagster's in an instance, and return what it prints."""
    done = subprocess.run(
        [Path(sys.executable).parent / command[0], *command[1:]],
        cwd=CHECKOUT,
        env={**os.environ, "DAGSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_partitions_without_rows(tmp_path: Path) -> None:
    """With None the publisher is started; where outputs were skipped, the guide's command publishes the others."""
    with daemon(tmp_path, LOCATION) as running:
        instance, lake = running.instance, running.lake
        for name in ("skipped", "none"):
            variables = json.dumps({"assets": [{"path": [name]}, {"path": ["production", name]}]})
            run(running.home, "dagster-graphql", "-f", str(running.location), "-t", LAUNCH, "-v", variables)
        running.until(lambda: all(each.status.name.startswith("COMPLETED") for each in instance.get_backfills()))
        assert {"COMPLETED_SUCCESS", "COMPLETED_FAILED"} == {each.status.name for each in instance.get_backfills()}
        assert all(each.is_success for each in instance.get_runs())
        assert [1, 3] == ids_of(lake.table("none").read("production"))
        assert "production" not in lake.table("skipped").tags.list()
    run(running.home, *BY_HAND, "-f", str(running.location))
    assert [1, 3] == ids_of(lake.table("skipped").read("production"))
