"""The audit: the conditions that a candidate has to meet before it is published. Every check blocks.

The standard rules are built-in checks, passed to `build_table_checks`. Two kinds of rules are written out: that the
tables have exactly the rows of the source is a check class of the project, and that the computed tables neither lose
nor duplicate rows are functions. None of them depends on the run, so the publisher can evaluate each one again on the
version that it is about to publish.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import dagster as dg

from example_project import assets, features, source
from lance_dagster import (
    Audit,
    CheckOutcome,
    InRange,
    KeysExist,
    NotNull,
    NullRate,
    PinnedTable,
    RowCount,
    TableCheck,
    Unique,
    build_table_checks,
    table_check,
)


@dataclass(frozen=True)
class RowsMatchSource:
    """Require exactly the rows of a source file, for each month that is in the table."""

    source_table: str
    name: str = "rows_match_source"
    description: str = "The table has exactly the rows of the source file, for each month that is in it."
    # This checks the whole table and not only the month of the run: a month must not lose rows to the next one.
    scope: Literal["table"] = "table"
    reads: tuple[dg.AssetKey, ...] = ()
    row_wise: bool = False

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Compare the counts, by month in a table that has months."""
        if "month" not in audit.candidate.schema.names:
            return _compared({0: audit.candidate.count_rows()}, {0: source.rows(self.source_table)})
        found = source.months_in(audit.candidate.read(["month"]))
        # The month being loaded is expected even if the table has no row of that month.
        loading = {assets.month_of(key) for key in audit.partition_keys}
        by_month = source.rows_by_month(self.source_table)
        return _compared(found, {month: by_month[month] for month in found.keys() | loading})


_RULES: Mapping[dg.AssetsDefinition, tuple[TableCheck, ...]] = {
    assets.flights: (
        NotNull("time_hour"),
        # A flight that never left has no departure time; one in ten is more than the worst month of snow.
        NullRate("dep_time", 0.10),
        NullRate("tailnum", 0.05),
        InRange("distance", minimum=1, maximum=5000),
        InRange("air_time", minimum=1, maximum=1440),
        Unique(("time_hour", "carrier", "flight", "origin")),
        KeysExist("carrier", "nyc/airlines", "carrier"),
        # Not `dest`: the airport list leaves out four airports of Puerto Rico and the Virgin Islands.
        KeysExist("origin", "nyc/airports", "faa"),
    ),
    assets.weather: (
        NotNull("time_hour"),
        NullRate("temp", 0.01),
        InRange("temp", minimum=-40, maximum=130),
        InRange("wind_speed", minimum=0, maximum=253),
        Unique(("origin", "time_hour")),
        KeysExist("origin", "nyc/airports", "faa"),
    ),
    assets.airlines: (Unique("carrier"), NotNull("name")),
    assets.airports: (
        Unique("faa"),
        InRange("lat", minimum=-90, maximum=90),
        InRange("lon", minimum=-180, maximum=180),
    ),
    assets.planes: (Unique("tailnum"), InRange("seats", minimum=1, maximum=900)),
    assets.flight_features: (NotNull(features.VECTOR), Unique(("time_hour", "carrier", "flight", "origin"))),
    assets.training_set: (RowCount(minimum=1), NotNull("late"), NotNull(features.VECTOR)),
}


@table_check(asset=assets.flight_features, reads=[assets.flights], scope="table")
def one_row_per_flight(flight_features: PinnedTable, flights: PinnedTable) -> CheckOutcome:
    """Require that joining weather and planes neither lost nor duplicated a flight."""
    return _compared({0: flight_features.count_rows()}, {0: flights.count_rows()})


@table_check(asset=assets.training_set, reads=[assets.flight_features], scope="table")
def one_row_per_arrival(training_set: PinnedTable, flight_features: PinnedTable) -> CheckOutcome:
    """Require that the training set has every flight that arrived, and no other."""
    return _compared({0: training_set.count_rows()}, {0: flight_features.count_rows("arr_delay IS NOT NULL")})


def _compared(found: Mapping[int, int], expected: Mapping[int, int]) -> CheckOutcome:
    different = [
        f"{found.get(key, 0):,} rows{f' of month {key}' if key else ''}, expected {expected[key]:,}"
        for key in sorted(expected)
        if found.get(key, 0) != expected[key]
    ]
    return CheckOutcome(
        passed=not different,
        description="; ".join(different) or f"{sum(found.values()):,} rows, as expected",
        counts={"rows": sum(found.values()), "expected_rows": sum(expected.values())},
    )


_FROM_SOURCE = (assets.flights, assets.weather, assets.airlines, assets.airports, assets.planes)

CHECKS: tuple[dg.AssetChecksDefinition, ...] = (
    *(check for asset in _FROM_SOURCE for check in build_table_checks(asset, [RowsMatchSource(asset.key.path[-1])])),
    *(check for asset, rules in _RULES.items() for check in build_table_checks(asset, rules)),
    one_row_per_flight,
    one_row_per_arrival,
)
