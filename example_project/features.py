"""What a model may know about a flight before it leaves: sixteen numbers per flight, one vector column.

Plain Spark over three tables, no Dagster and no Lance. Nothing that happens after the doors close (departure delay,
air time) is among the features; the arrival delay travels beside them as the label's source.
"""

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

VECTOR = "features"
DIMENSIONS = 16
LATE_MINUTES = 15

_KEYS = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest")


def flight_features(flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Join each flight with the weather at its origin in its hour and with its plane.

    Returns:
        One row per flight: the flight's key columns, `arr_delay`, and the vector. Weather and planes are sometimes
        missing; the flight stays, the unknown numbers are 0 and a flag in the vector says so.
    """
    sky = weather.select(
        "origin", "time_hour", "temp", "dewp", "humid", "wind_speed", "precip", "visib", F.lit(1.0).alias("sky_known")
    )
    aircraft = planes.select(
        "tailnum", F.col("year").alias("built"), "seats", "engines", F.lit(1.0).alias("plane_known")
    )
    # Planes are a few thousand rows: sending them to every task is cheaper than sorting the flights by tail number.
    joined = flights.join(sky, ["origin", "time_hour"], "left").join(F.broadcast(aircraft), "tailnum", "left")
    return joined.select(*_KEYS, "arr_delay", F.array(*_numbers()).alias(VECTOR))


def training_set(features: DataFrame) -> DataFrame:
    """Keep the flights that arrived and label them: `late` is true when the arrival delay exceeded a quarter hour."""
    arrived = features.where(F.col("arr_delay").isNotNull())
    return arrived.select(
        "time_hour", "carrier", "origin", "dest", (F.col("arr_delay") > LATE_MINUTES).alias("late"), VECTOR
    )


def _numbers() -> list[Column]:
    """Return the sixteen numbers, each scaled to about one and never null."""
    weekday = F.dayofweek(F.make_date(F.col("year"), F.col("month"), F.col("day")))
    minutes = F.col("hour") * 60 + F.col("minute")
    scaled = [
        F.sin(minutes * (2 * math.pi / 1440)),
        F.cos(minutes * (2 * math.pi / 1440)),
        F.sin(weekday * (2 * math.pi / 7)),
        F.cos(weekday * (2 * math.pi / 7)),
        F.col("distance") / 1000,
        F.col("temp") / 100,
        F.col("dewp") / 100,
        F.col("humid") / 100,
        F.col("wind_speed") / 50,
        F.col("precip"),
        F.col("visib") / 10,
        F.col("sky_known"),
        F.col("seats") / 400,
        (F.lit(2013) - F.col("built")) / 50,
        F.col("engines") / 4,
        F.col("plane_known"),
    ]
    return [F.coalesce(number.cast("float"), F.lit(0.0).cast("float")) for number in scaled]
