"""A sensor that reports commits on protected branches that no publication made.

Policies of the storage stop writers that may not write `main`. This sensor detects commits that policies allowed: by a
writer with too many permissions, a repair by hand, a program that does not use run branches. It reports and changes
nothing.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import MAINTENANCE_NAMES
from lance_dagster.format.validation import check_options, require_sequence, string_list
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.operate.ref_sensor import (
    BUDGET_SECONDS,
    SensorOptions,
    check_sensor_options,
    run_logged,
    run_requests,
    stored_cursor,
)
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, WatchedTable

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.plugin.operate.ref_tick import News


def build_protected_branch_sensor(
    name: str,
    tables: Sequence[TableAsset],
    *,
    branches: Sequence[str] = (MAIN,),
    resource_key: str = RESOURCE_KEY,
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that reports versions of protected branches that neither a publication nor maintenance made.

    Each such version becomes an observation of the external asset `<branch>/<candidate's key>` with the metadata
    `lance/unpublished`, and an error in the log of the tick. With `job`, the sensor also requests a run for each table
    with such versions, for example to notify somebody. The first tick only records which versions exist.

    The properties of its transaction decide whether a version counts as published, and any program with write access
    can imitate them: the sensor detects accidents, and policies of the storage keep attackers out.

    Args:
        name: The sensor's name.
        tables: The candidates, as definitions or keys.
        branches: The branches that only publications may change.
        resource_key: The key of the `LanceResource`.
        options: Passed to `dg.sensor`: `job`, `minimum_interval_seconds`, `default_status`, `description`.

    Raises:
        InvalidInputError: No table or no branch is given, or an option is unknown or has a value of another kind.
    """
    check_options(build_protected_branch_sensor, options, SensorOptions)
    check_sensor_options(options)
    require_sequence("tables", tables, "shop/orders")
    names = string_list("branches", branches, MAIN)
    watched = tuple(WatchedTable.of(table) for table in tables)
    if not watched or not names:
        raise InvalidInputError("build_protected_branch_sensor needs at least one table and one branch")
    with_runs = "job" in options

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)  # type: ignore[arg-type]
    def protected_branch_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        # Imported only in a tick, as all modules are that loading a code location does not need.
        from lance_dagster.plugin.operate.ref_tick import RefTick

        lance: LanceResource = getattr(context.resources, resource_key)
        until = time.monotonic() + BUDGET_SECONDS
        tick = RefTick(lance=lance, refs=names, cursor=stored_cursor(context, from_start=False), until=until)
        run_logged(tick, watched, context)
        # A name in `branches` may be the name of a tag or a channel, whose moves are not commits.
        unpublished = [news for news in tick.news if not news.is_tag and not is_published(news.version)]
        for news in unpublished:
            context.log.error("%s was committed by %s and not by a publication", news, _committer(news))
        requests = run_requests(unpublished) if with_runs else None
        text = f"{len(tick.news)} new versions, all of them published" if tick.news else "no new version"
        text = f"not published: {', '.join(map(str, unpublished))}" if unpublished else text
        return dg.SensorResult(
            asset_events=[_observation(news) for news in unpublished],
            run_requests=requests,
            skip_reason=None if requests else text,
            cursor=tick.cursor.to_json(),
        )

    return protected_branch_sensor


def is_published(version: "Version") -> bool:
    """Return whether a version was made by a publication, or changes no row, as by maintenance or a creation."""
    # The IO manager creates the table of an asset on `main` without rows, before anything is published.
    is_new_and_empty = version.number == 1 and not version.rows
    return md.PUBLISHED_BY in version.properties or version.operation in MAINTENANCE_NAMES or is_new_and_empty


def _committer(news: "News") -> str:
    run_id = news.version.properties.get(md.RUN_ID)
    return f"the run {run_id}" if run_id else news.version.committer or "an unknown program"


def _observation(news: "News") -> dg.AssetObservation:
    return dg.AssetObservation(
        dg.AssetKey([news.ref, *news.table.key.path]),
        description=f"{news.version} was committed by {_committer(news)} and not by a publication",
        metadata={
            **md.version_metadata(news.version),
            md.ROW_COUNT: news.version.rows,
            "lance/operation": news.version.operation,
            "lance/unpublished": True,
        },
    )
