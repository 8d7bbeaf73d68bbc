"""Publication for readers: the job that loads a month, its schedule, and the sensor that watches `main`."""

import dagster as dg

from example_project import assets
from lance_dagster import build_publisher, build_ref_sensor, ref_asset_specs

TAG = "production"

publisher = build_publisher(assets.ASSETS, tag=TAG)

# The consumer is not part of this job: it reads the tables that this job publishes, and starts when the tag has moved.
# The three tables without months are loaded again with each month, so that a month is audited against current lists.
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

# The assets that represent the branch `main` of each table in Dagster, whichever program writes to it.
main_nodes = ref_asset_specs(assets.ASSETS)
