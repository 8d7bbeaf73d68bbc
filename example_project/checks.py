"""The audit: what must hold of a candidate before it is published. Every check blocks.

The plain rules are values handed to `build_table_checks`. The two rules it has no value for are written out: the
tables must have exactly the rows the source has, and the tables made from them must not lose or double any.
"""

from collections.abc import Mapping

import dagster as dg

from example_project import assets, features, source
from lance_dagster import (
    InRange,
    KeysExist,
    LanceResource,
    NotNull,
    NullRate,
    PinnedTable,
    RowCount,
    Unique,
    build_table_checks,
)

_RULES = {
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


def _rows_match_source(asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    name = asset.key.path[-1]

    @dg.asset_check(
        asset=asset.key,
        name="rows_match_source",
        blocking=True,
        description="The table has exactly the rows of the source file, for each month that is in it.",
    )
    def rows_match_source(context: dg.AssetCheckExecutionContext, lance: LanceResource) -> dg.AssetCheckResult:
        candidate = lance.open(context, asset.key)
        if "month" in candidate.schema.names:
            found = source.months_in(candidate.read(["month"]))
            # The month being loaded is expected even if the table has no row of it.
            loading = {assets.month_of(context.partition_key)} if context.has_partition_key else set()
            expected = {month: source.rows_by_month(name)[month] for month in found.keys() | loading}
        else:
            found, expected = {0: candidate.count_rows()}, {0: source.rows(name)}
        return _compared(candidate, found, expected)

    return rows_match_source


@dg.asset_check(
    asset=assets.flight_features.key,
    blocking=True,
    additional_deps=[assets.flights.key],
    description="Joining weather and planes neither lost nor doubled a flight.",
)
def one_row_per_flight(context: dg.AssetCheckExecutionContext, lance: LanceResource) -> dg.AssetCheckResult:
    """Compare the number of feature rows with the number of flights."""
    candidate = lance.open(context, assets.flight_features.key)
    flights = lance.open(context, assets.flights.key)
    return _compared(candidate, {0: candidate.count_rows()}, {0: flights.count_rows()})


@dg.asset_check(
    asset=assets.training_set.key,
    blocking=True,
    additional_deps=[assets.flight_features.key],
    description="Every flight that arrived is in the training set, and no other.",
)
def one_row_per_arrival(context: dg.AssetCheckExecutionContext, lance: LanceResource) -> dg.AssetCheckResult:
    """Compare the number of examples with the number of flights that have an arrival delay."""
    candidate = lance.open(context, assets.training_set.key)
    arrived = lance.open(context, assets.flight_features.key).count_rows("arr_delay IS NOT NULL")
    return _compared(candidate, {0: candidate.count_rows()}, {0: arrived})


def _compared(candidate: PinnedTable, found: Mapping[int, int], expected: Mapping[int, int]) -> dg.AssetCheckResult:
    different = [
        f"{found.get(key, 0):,} rows{f' of month {key}' if key else ''}, expected {expected[key]:,}"
        for key in sorted(expected)
        if found.get(key, 0) != expected[key]
    ]
    return dg.AssetCheckResult(
        passed=not different,
        description="; ".join(different) or f"{sum(found.values()):,} rows, as expected",
        # The publisher compares this with the version it is about to publish.
        metadata={
            "lance/branch": candidate.version.branch,
            "lance/version": candidate.version.number,
            "rows": sum(found.values()),
            "expected_rows": sum(expected.values()),
        },
    )


_FROM_SOURCE = (assets.flights, assets.weather, assets.airlines, assets.airports, assets.planes)

CHECKS: tuple[dg.AssetChecksDefinition, ...] = (
    *(_rows_match_source(asset) for asset in _FROM_SOURCE),
    *(check for asset, rules in _RULES.items() for check in build_table_checks(asset, rules)),
    one_row_per_flight,
    one_row_per_arrival,
)
