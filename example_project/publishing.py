"""From candidates to what readers see: the job that loads a month, its schedule, and the sensor that watches `main`."""

import dagster as dg

from example_project import assets
from lance_dagster import build_publisher, build_ref_sensor, ref_asset_specs

TAG = "production"

publisher = build_publisher(assets.ASSETS, tag=TAG)

# The consumer is not in it: it reads what this job publishes, and starts when the tag has moved. The three tables
# that have no months are loaded anew with each month, so that a month is audited against the lists of its day.
load_month = dg.define_asset_job(
    "load_month",
    selection=dg.AssetSelection.groups(assets.GROUP) | dg.AssetSelection.assets(publisher),
    description="Load a month: write it on a branch, audit it, merge it into main, move the tag production.",
)

monthly = dg.build_schedule_from_partitioned_job(load_month)

main_sensor = build_ref_sensor(
    "main_sensor",
    assets.ASSETS,
    refs=("main", TAG),
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Announces every new version of main and every move of the tag, whoever made them.",
)

# What stands in Dagster for the branch `main` of each table, whoever writes to it.
main_nodes = ref_asset_specs(assets.ASSETS)
