"""The tables: two that arrive month by month, three lookup tables, and two that are computed from these with Spark.

Every asset returns a Spark frame; the IO manager writes it to the run's own branch. Only the assets of the same run and
the audit read these candidates. Readers use the promoted nodes of `publishing`.

A month is a month of New York's calendar, as in the source. The partitions carry that time zone, so their windows
compare exactly with `time_hour`, which is UTC: an evening flight of 31 January has a `time_hour` in February.
"""

import dagster as dg
from pydantic import Field
from pyspark.sql import DataFrame, functions as sf

from example_project import features, source
from example_project.columns import column_schema
from example_project.defects import Defect, damaged
from lance_dagster import SparkResource

GROUP = "nyc"
MONTHS = dg.MonthlyPartitionsDefinition(
    start_date=f"{source.YEAR}-01", end_date=f"{source.YEAR + 1}-01", fmt="%Y-%m", timezone="America/New_York"
)
_MONTHLY = {"lance/partition_expr": "time_hour"}
_REPLACED = {"lance/write_mode": "overwrite"}
_VECTORS = {"lance/vectors": {features.VECTOR: features.DIMENSIONS}}
# The strongest wind ever measured at the ground.
_RECORD_WIND_MPH = 253


class FlightsConfig(dg.Config):
    """Run configuration of `nyc/flights`."""

    defect: Defect = Field(
        default=Defect.none,
        description="The defect of the delivery. A re-execution of the run gets the correct data.",
    )


@dg.asset(
    key_prefix=GROUP,
    group_name=GROUP,
    partitions_def=MONTHS,
    metadata={**_MONTHLY, **column_schema("flights")},
    kinds={"spark", "lance"},
)
def flights(context: dg.AssetExecutionContext, config: FlightsConfig, spark: SparkResource) -> DataFrame:
    """Load every flight that left one of New York's three airports in a month."""
    delivered = source.read(spark.session, "flights", month=month_of(context.partition_key))
    is_first_attempt = context.run.parent_run_id is None
    return damaged(delivered, config.defect if is_first_attempt else Defect.none)


@dg.asset(
    key_prefix=GROUP,
    group_name=GROUP,
    partitions_def=MONTHS,
    metadata={**_MONTHLY, **column_schema("weather")},
    kinds={"spark", "lance"},
)
def weather(context: dg.AssetExecutionContext, spark: SparkResource) -> DataFrame:
    """Load the weather at the three airports, hour by hour.

    The source has a wind reading of 1,048 mph at Newark on 12 February: readings above the world record are removed,
    but the hour stays.
    """
    hours = source.read(spark.session, "weather", month=month_of(context.partition_key))
    believable = sf.when(sf.col("wind_speed") <= _RECORD_WIND_MPH, sf.col("wind_speed"))
    return hours.withColumn("wind_speed", believable)


@dg.asset(
    key_prefix=GROUP, group_name=GROUP, metadata={**_REPLACED, **column_schema("airlines")}, kinds={"spark", "lance"}
)
def airlines(spark: SparkResource) -> DataFrame:
    """Load the airlines, by carrier code."""
    return source.read(spark.session, "airlines")


@dg.asset(
    key_prefix=GROUP, group_name=GROUP, metadata={**_REPLACED, **column_schema("airports")}, kinds={"spark", "lance"}
)
def airports(spark: SparkResource) -> DataFrame:
    """Load the airports, by FAA code."""
    return source.read(spark.session, "airports")


@dg.asset(
    key_prefix=GROUP, group_name=GROUP, metadata={**_REPLACED, **column_schema("planes")}, kinds={"spark", "lance"}
)
def planes(spark: SparkResource) -> DataFrame:
    """Load the planes, by tail number."""
    return source.read(spark.session, "planes")


@dg.asset(
    key_prefix=GROUP,
    group_name=GROUP,
    partitions_def=MONTHS,
    metadata={**_MONTHLY, **_VECTORS, **column_schema("flight_features")},
    kinds={"spark", "lance"},
)
def flight_features(flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Compute a vector of the values that were known about each flight before it left, one row per flight."""
    return features.flight_features(flights, weather, planes)


@dg.asset(
    key_prefix=GROUP,
    group_name=GROUP,
    partitions_def=MONTHS,
    metadata={**_MONTHLY, **_VECTORS, **column_schema("training_set")},
    kinds={"spark", "lance"},
)
def training_set(flight_features: DataFrame) -> DataFrame:
    """Label the flights that arrived by whether they were more than a quarter of an hour late."""
    return features.training_set(flight_features)


ASSETS = (flights, weather, airlines, airports, planes, flight_features, training_set)
KEYS = tuple(asset.key for asset in ASSETS)


def month_of(partition_key: str) -> int:
    """Return the number of the month a partition holds."""
    return MONTHS.time_window_for_partition_key(partition_key).start.month
