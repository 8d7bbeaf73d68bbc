"""The definitions that Dagster loads: `dg dev -w workspace.yaml`."""

import dagster as dg

from example_project import assets, checks, places, publishing, reports
from lance_dagster import LanceIOManager, LanceResource, SparkResource, validate_definitions

_SPARK = {
    # A month is small: more partitions would only make more files.
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "2g",
}


def build_definitions(executor: dg.ExecutorDefinition = dg.in_process_executor) -> dg.Definitions:
    """Return the definitions of the example.

    Args:
        executor: In one process all steps share a Spark session. With `dg.multiprocess_executor` every step that
            needs Spark starts its own.
    """
    # On an object store, credentials come from the environment.
    lance = LanceResource(root=places.tables())
    spark = SparkResource(app_name="example_project", config=_SPARK)
    # The candidates' pages name their tables because of this; the pages of the promoted nodes do so anyway.
    candidates = [
        asset.map_asset_specs(lambda spec: spec.merge_attributes(metadata=lance.definition_metadata(spec.key)))
        for asset in assets.ASSETS
    ]
    defs = dg.Definitions(
        assets=[*candidates, publishing.publisher, *publishing.main_nodes, reports.delay_by_carrier],
        asset_checks=checks.CHECKS,
        jobs=[publishing.load_month],
        schedules=[publishing.monthly],
        sensors=[publishing.main_sensor, reports.automation],
        resources={"lance": lance, "spark": spark, "io_manager": LanceIOManager(lance=lance, spark=spark)},
        executor=executor,
    )
    # A misspelt setting or two assets on one table are refused here, and not found in the first run.
    return validate_definitions(defs)


defs = build_definitions()
