"""Defects that can be put into the flights, to show that the audit stops them."""

from enum import Enum
from typing import assert_never

from pyspark.sql import DataFrame, functions as sf


class Defect(Enum):
    """A defect to put into a month of flights; `none` leaves it as the source has it."""

    none = "none"
    negative_distance = "negative_distance"
    unknown_carrier = "unknown_carrier"
    duplicated_rows = "duplicated_rows"


def damaged(flights: DataFrame, defect: Defect) -> DataFrame:
    """Return flights with a defect in them, or as they are."""
    match defect:
        case Defect.none:
            return flights
        case Defect.negative_distance:
            mirrored = sf.when(sf.col("origin") == "JFK", -sf.col("distance")).otherwise(sf.col("distance"))
            return flights.withColumn("distance", mirrored)
        case Defect.unknown_carrier:
            renamed = sf.when(sf.col("carrier") == "UA", "??").otherwise(sf.col("carrier"))
            return flights.withColumn("carrier", renamed)
        case Defect.duplicated_rows:
            return flights.union(flights.where(sf.col("flight") % 2 == 0))
        case _:
            assert_never(defect)
