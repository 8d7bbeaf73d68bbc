"""Sensors that report new versions of branches and tag moves to Dagster, or commits that no publication made.

Delivery is at least once: Dagster stores the events of a tick before its cursor, so a crash between the two
reports a version twice, and no version is lost. The run key contains the version, so a repeated report starts no
second run.

Each version is a materialization of an external asset. An observation would not be enough: Dagster's automation ignores
observations of external assets.
"""

import re
import time
from collections.abc import Iterable, Sequence
from reprlib import repr as shortened
from typing import TYPE_CHECKING, TypedDict, Unpack

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import (
    check_class,
    check_flag,
    check_options,
    check_string,
    require_sequence,
    string_list,
    whole_number,
)
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.check_arguments import require_number
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import (
    RESOURCE_KEY,
    TableAsset,
    WatchedTable,
    asset_key_of,
    metadata_of,
    place_metadata,
    table_address,
)

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.plugin.operate.channel_look import ChannelMove
    from lance_dagster.plugin.operate.ref_tick import News, RefTick

# A third of the limit of the daemon, which discards the events of a tick that exceeds it.
BUDGET_SECONDS = 20.0
_ID_DIGITS = 12
_NAMED = 50


class SensorOptions(TypedDict, total=False):
    """Further options of `dg.sensor`. `job` is a job or the result of `dg.define_asset_job`."""

    job: object  # Dagster does not export the type of an asset job
    minimum_interval_seconds: int
    default_status: dg.DefaultSensorStatus
    description: str


def check_sensor_options(options: SensorOptions) -> None:
    """Refuse values with which a sensor would fail at a tick, or of which Dagster does not say what is wrong.

    Raises:
        InvalidInputError: The message names the option.
    """
    # Every kind of job has a name; without a job, the first run that is requested would fail the tick.
    if "job" in options and not isinstance(getattr(options["job"], "name", None), str):
        raise InvalidInputError(
            f"job has to be a job, or the result of dg.define_asset_job, not {shortened(options['job'])}; leave it out "
            "to request no runs"
        )
    if "minimum_interval_seconds" in options:
        whole_number("minimum_interval_seconds", options["minimum_interval_seconds"], 0)
    if "default_status" in options:
        example = "dg.DefaultSensorStatus.RUNNING"
        check_class("default_status", options["default_status"], dg.DefaultSensorStatus, example)
    if "description" in options:
        check_string("description", options["description"])


def build_ref_sensor(
    name: str,
    tables: Sequence[TableAsset],
    *,
    refs: Sequence[str] = (MAIN,),
    from_start: bool = False,
    budget_seconds: float = BUDGET_SECONDS,
    resource_key: str = RESOURCE_KEY,
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that reports new versions and tag moves of some tables, by any program.

    Every new version of a branch in `refs` becomes a materialization of the external asset
    `<branch>/<candidate's key>`; see `ref_asset_specs`. Every move of a tag in `refs` becomes a materialization of
    the promoted node `<tag>/<candidate's key>`, unless the publisher moved it. A table that was dropped and created
    again is reported from its first version on, with the metadata `lance/recreated`.

    Where the tables are in a repository and a ref is a channel of it, the log of the channel is read, once for all
    tables. Each table that an entry changed is reported with the entry, the commit, who moved the channel and why.

    With `job`, the sensor also requests a run for each table that changed, or a run for the newest entry of a channel,
    also where the publisher made the move. A publication changes `main` and the tag: a sensor of both requests runs
    for both, so give the refs that the job reads. The run key contains the version, and the time of a tag's move, so
    that a repeated report starts no second run, and a tag that comes back to a version starts one. Dagster's list of
    ticks shows what was reported, and the refs that some tables lack. The log of the tick names the tables that could
    not be read.

    A cursor that is damaged, or of another release of this package, is replaced: the sensor logs a warning and
    continues with the versions that are committed afterwards.

    Args:
        name: The sensor's name.
        tables: The candidates, as definitions or keys.
        refs: Branches and tags, by name.
        from_start: Whether the first tick reports the versions that exist already. Otherwise it only records
            them in the cursor, as does the first tick after a table or a ref was added.
        budget_seconds: The time after which a tick leaves the remaining tables to the next tick.
        resource_key: The key of the `LanceResource`.
        options: Passed to `dg.sensor`: `job`, `minimum_interval_seconds`, `default_status`, `description`.

    Raises:
        InvalidInputError: No table or no ref is given, or an option is unknown or has a value of another kind.
    """
    check_options(build_ref_sensor, options, SensorOptions)
    check_sensor_options(options)
    check_flag("from_start", from_start)
    require_number("budget_seconds", budget_seconds, least=0)
    watched, names = _watched(tables), string_list("refs", refs, MAIN)
    if not watched or not names:
        raise InvalidInputError("build_ref_sensor needs at least one table and one ref")
    with_runs = "job" in options

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)  # type: ignore[arg-type]
    def ref_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tick = _tick(
            context, watched, names, resource_key=resource_key, from_start=from_start, budget_seconds=budget_seconds
        )
        text = tick.text(watched)
        requests = run_requests([*tick.published, *tick.news], tick.moves) if with_runs else None
        if requests:
            # Dagster refuses a text beside run requests, so its list of ticks shows the runs instead.
            context.log.info(text)
        return dg.SensorResult(
            asset_events=[_materialization(news) for news in tick.news],
            run_requests=requests,
            skip_reason=None if requests else text,
            cursor=tick.cursor.to_json(),
        )

    return ref_sensor


def build_protected_branch_sensor(
    name: str,
    tables: Sequence[TableAsset],
    *,
    branches: Sequence[str] = (MAIN,),
    resource_key: str = RESOURCE_KEY,
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that reports versions of protected branches that neither a publication nor maintenance made.

    Policies of the storage stop writers that may not write `main`. This sensor finds commits that the policies allowed:
    by a writer with too many permissions, a repair by hand, a program that does not use run branches.

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
    watched, names = _watched(tables), string_list("branches", branches, MAIN)
    if not watched or not names:
        raise InvalidInputError("build_protected_branch_sensor needs at least one table and one branch")
    with_runs = "job" in options

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)  # type: ignore[arg-type]
    def protected_branch_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        tick = _tick(context, watched, names, resource_key=resource_key)
        # A name in `branches` may be the name of a tag or a channel, whose moves are not commits.
        unpublished = [news for news in tick.news if not news.is_tag and not _is_published(news.version)]
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


def _watched(tables: Sequence[TableAsset]) -> tuple[WatchedTable, ...]:
    require_sequence("tables", tables, "shop/orders")
    return tuple(WatchedTable.of(table) for table in tables)


def _tick(
    context: dg.SensorEvaluationContext,
    watched: Sequence[WatchedTable],
    refs: Sequence[str],
    *,
    resource_key: str,
    from_start: bool = False,
    budget_seconds: float = BUDGET_SECONDS,
) -> "RefTick":
    """Look at the refs once, from the cursor of the sensor on, and log what could not be read."""
    # Imported only in a tick, as all modules are that loading a code location does not need.
    from lance_dagster.plugin.operate.ref_cursor import RefCursor
    from lance_dagster.plugin.operate.ref_tick import RefTick

    cursor = RefCursor.of(context.cursor, from_start=from_start)
    if cursor is None:
        context.log.warning(
            "the cursor of this sensor is damaged or of another release, so it is replaced: what was committed "
            "since the last tick is not reported. Cursor: %.200s",
            context.cursor,
        )
    lance, until = getattr(context.resources, resource_key), time.monotonic() + budget_seconds
    tick = RefTick(lance=lance, refs=refs, cursor=cursor or RefCursor(), until=until)
    tick.run(watched)
    for problem in tick.problems:
        context.log.error(problem)
    for note in tick.notes:
        context.log.warning(note)
    return tick


def _is_published(version: "Version") -> bool:
    """Return whether a version was made by a publication, or changes no row, as by maintenance or a creation."""
    from lance_dagster.format.transaction import MAINTENANCE_NAMES

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


def ref_asset_specs(
    tables: Sequence[TableAsset], *, branches: Sequence[str] = (MAIN,), lance: LanceResource | None = None
) -> list[dg.AssetSpec]:
    """Return the external assets that represent branches of some tables, in a group for each branch.

    Args:
        tables: The candidates, as definitions or keys.
        branches: The branches that a ref sensor reports.
        lance: The resource, from which the definitions get the URIs of the tables.
    """
    require_sequence("tables", tables, "shop/orders")
    names = string_list("branches", branches, MAIN)
    return [_spec(asset_key_of(table), metadata_of(table), branch, lance) for branch in names for table in tables]


def _spec(key: dg.AssetKey, metadata: dict[str, object], branch: str, lance: LanceResource | None) -> dg.AssetSpec:
    about = (
        lance.definition_metadata(key, metadata)
        if lance
        else md.definition_metadata(table_address(key, metadata).dotted, None)
    )
    return dg.AssetSpec(
        dg.AssetKey([branch, *key.path]),
        description=f"Every version of the branch {branch} of {key.to_user_string()}, whoever committed it. A sensor "
        "materializes this node, so that Dagster shows commits of other programs too; no run makes it.",
        # Dagster allows fewer characters in the name of a group than Lance in the name of a branch.
        group_name=re.sub(r"\W", "_", branch, flags=re.ASCII),
        kinds={"lance"},
        metadata={**place_metadata(key, metadata), md.REF: branch, **about},
    )


def run_requests(news: "Iterable[News]", moves: "Iterable[ChannelMove]" = ()) -> list[dg.RunRequest]:
    """Return a run for the newest version of each table, or for all tables of a channel, in place of earlier versions.

    Args:
        news: What is reported, and moves of tags that the publisher reported itself.
        moves: The moves of channels. A move that changed no watched table requests no run.
    """
    news = list(news)
    reported = {version.move for version in news}
    # Both are in the order of the versions, so the newest move or version of each key stays.
    by_channel = {move.channel: move for move in moves if move.published or move in reported}
    by_table = {version.table.name: version for version in news if version.move is None}
    of_moves = [
        dg.RunRequest(
            run_key=f"lance:{move.ref}:{move.commit[:_ID_DIGITS]}",
            tags={md.REF: move.ref, md.REPOSITORY_COMMIT: move.commit},
        )
        for move in by_channel.values()
    ]
    return [*of_moves, *map(_request, by_table.values())]


def _request(news: "News") -> dg.RunRequest:
    name, version = news.table.name, news.version
    # The transaction, because a table that was created again has other versions under the same numbers.
    key = f"lance:{name}@{news.ref}={version.number}:{version.transaction[:8]}"
    # A tag may come back to a version: Dagster would drop the run of a key that it knows.
    key += f":{news.moved_at}" if news.moved_at else ""
    return dg.RunRequest(run_key=key, tags={md.CANDIDATE: name, md.REF: str(version)})


def _materialization(news: "News") -> dg.AssetMaterialization:
    extra: dict[str, str | bool | None] = {
        "lance/tag": news.ref if news.is_tag else None,
        "lance/recreated": news.is_recreated or None,
    }
    if news.move is not None:
        extra |= {md.EVENT: str(news.move), **_about(news.move)}
    return version_materialization(dg.AssetKey([news.ref, *news.table.key.path]), news.version, **extra)


def _about(move: "ChannelMove") -> dict[str, str | bool | None]:
    """Return the metadata about an entry of a channel, which is the same for all tables that it changed."""
    return {
        md.CHANNEL_ENTRY: move.ref,
        md.REPOSITORY_COMMIT: move.commit,
        "lance/action": move.action,
        md.WHO: move.who or None,
        md.REASON: move.why or None,
        "lance/tables": md.listed(move.tables, _NAMED),
    }


def version_materialization(
    key: dg.AssetKey, version: "Version", **extra: str | bool | None
) -> dg.AssetMaterialization:
    """Return the materialization of an external asset for a version, with the entries that are not None."""
    from lance_dagster.format.transaction import MERGE

    about = {"lance/run_id": version.properties.get(md.RUN_ID), **extra}
    return dg.AssetMaterialization(
        asset_key=key,
        # On a promoted node, the message of a version that the channel went back to would look like a publication.
        description=str(extra.get(md.EVENT) or version.message) or None,
        metadata={
            **({md.EVENT: extra[md.EVENT]} if extra.get(md.EVENT) else {}),
            **md.version_metadata(version),
            md.ROW_COUNT: version.rows,
            "lance/operation": version.operation,
            "lance/committer": version.committer,
            # Whether neither a run nor a merge of this package made the version.
            "lance/foreign": md.RUN_ID not in version.properties and MERGE not in version.properties,
            **{name: value for name, value in about.items() if value is not None},
        },
        tags=md.data_version_tags(version),
    )
