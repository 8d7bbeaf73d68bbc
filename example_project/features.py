"""The features of a flight that are known before it leaves: sixteen numbers per flight, in one vector column.

This is plain Spark over three tables, without Dagster and Lance. Values from after the doors close (departure delay,
air time) are not among the features; the arrival delay is a separate column, from which the label is computed.
"""

import math

from pyspark.sql import Column, DataFrame, functions as sf

VECTOR = "features"
DIMENSIONS = 16
LATE_MINUTES = 15

_KEYS = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest")


def flight_features(flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Join each flight with the weather at its origin in its hour and with its plane.

    Returns:
        One row per flight: the flight's key columns, `arr_delay`, and the vector. Weather and planes are sometimes
        missing; then the flight stays, the unknown numbers are 0 and a flag in the vector says so.
    """
    sky = weather.select(
        "origin", "time_hour", "temp", "dewp", "humid", "wind_speed", "precip", "visib", sf.lit(1.0).alias("sky_known")
    )
    aircraft = planes.select(
        "tailnum", sf.col("year").alias("built"), "seats", "engines", sf.lit(1.0).alias("plane_known")
    )
    # Planes are a few thousand rows: sending them to every task is cheaper than sorting the flights by tail number.
    joined = flights.join(sky, ["origin", "time_hour"], "left").join(sf.broadcast(aircraft), "tailnum", "left")
    return joined.select(*_KEYS, "arr_delay", sf.array(*_numbers()).alias(VECTOR))


def training_set(features: DataFrame) -> DataFrame:
    """Keep the flights that arrived and label them: `late` is true when the arrival delay exceeded a quarter hour."""
    arrived = features.where(sf.col("arr_delay").isNotNull())
    return arrived.select(
        "time_hour", "carrier", "origin", "dest", (sf.col("arr_delay") > LATE_MINUTES).alias("late"), VECTOR
    )


def _numbers() -> list[Column]:
    """Return the sixteen numbers, each scaled to about one and never null."""
    weekday = sf.dayofweek(sf.make_date(sf.col("year"), sf.col("month"), sf.col("day")))
    minutes = sf.col("hour") * 60 + sf.col("minute")
    scaled = [
        sf.sin(minutes * (2 * math.pi / 1440)),
        sf.cos(minutes * (2 * math.pi / 1440)),
        sf.sin(weekday * (2 * math.pi / 7)),
        sf.cos(weekday * (2 * math.pi / 7)),
        sf.col("distance") / 1000,
        sf.col("temp") / 100,
        sf.col("dewp") / 100,
        sf.col("humid") / 100,
        sf.col("wind_speed") / 50,
        sf.col("precip"),
        sf.col("visib") / 10,
        sf.col("sky_known"),
        sf.col("seats") / 400,
        (sf.lit(2013) - sf.col("built")) / 50,
        sf.col("engines") / 4,
        sf.col("plane_known"),
    ]
    return [sf.coalesce(number.cast("float"), sf.lit(0.0).cast("float")) for number in scaled]
