"""What can go wrong with the flights on the way, to see the audit stop it."""

from enum import Enum
from typing import assert_never

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


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
            mirrored = F.when(F.col("origin") == "JFK", -F.col("distance")).otherwise(F.col("distance"))
            return flights.withColumn("distance", mirrored)
        case Defect.unknown_carrier:
            renamed = F.when(F.col("carrier") == "UA", "??").otherwise(F.col("carrier"))
            return flights.withColumn("carrier", renamed)
        case Defect.duplicated_rows:
            return flights.union(flights.where(F.col("flight") % 2 == 0))
        case _:
            assert_never(defect)
