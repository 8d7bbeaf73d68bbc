"""Whole definitions: `lance_assets` makes the usual definitions, `validate_definitions` refuses what cannot work."""

import difflib
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict, Unpack

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import check_options
from lance_dagster.plugin.checks.check_definitions import build_table_checks, require_checks
from lance_dagster.plugin.checks.table_check import TableCheck
from lance_dagster.plugin.definition_findings import Findings, refuse_other_managers
from lance_dagster.plugin.io.io_manager import LanceIOManager
from lance_dagster.plugin.operate.page_asset import PageAssetOptions, build_page_asset
from lance_dagster.plugin.provider_options import AzureOptions, GoogleOptions, S3Options
from lance_dagster.plugin.publish.publisher import build_publisher, publisher_name, require_name
from lance_dagster.plugin.resource import LanceResource, SparkResource
from lance_dagster.plugin.table_asset import RESOURCE_KEY, asset_key_of

# Two mappings and not one with both kinds of keys: type checkers accept only exactly the key type of a mapping.
ChecksByAsset = Mapping[str, Sequence[TableCheck]] | Mapping[dg.AssetKey, Sequence[TableCheck]]
# The value of `schedule` that loads each partition when it ends.
_BY_PARTITION = "partitions"
_WEEKLY = "0 3 * * 0"
_OFTEN = "*/15 * * * *"
_CRON_FIELDS = 5


def validate_definitions(defs: dg.Definitions) -> dg.Definitions:
    """Return definitions as they are, or refuse them with an error that lists all mistakes.

    Call it where the code location makes its `Definitions`, so that a mistake is found when they are loaded and not in
    a run. It reads no table and no environment variable.

    Refused are: metadata of assets and inputs that is misspelt, unknown or in the wrong place; several assets on one
    table, and tables outside of the root; partitioned assets without `lance/partition_expr`, or whose runs would
    overwrite each other's partitions; publishers and checks that read a table at another place than its asset
    writes; assets whose table is checked or published, but whose rows another IO manager than a
    `LanceIOManager` stores; publishers of tables without a blocking check, unless they have `unchecked=True`;
    publishers that Dagster would split into steps; resources that are missing; and secrets that are not given as
    `dg.EnvVar`.

    Raises:
        InvalidInputError: Something is wrong. The message has a line for each finding.

    Examples:
        >>> defs = validate_definitions(dg.Definitions())
    """
    findings = Findings(defs).all()
    if findings:
        raise InvalidInputError("these definitions cannot work:\n" + "\n".join(f"- {finding}" for finding in findings))
    return defs


class LanceAssetsOptions(TypedDict, total=False):
    """The options of `lance_assets` that most code locations leave out."""

    spark: SparkResource | None
    schedule: str | None
    maintenance: str | None
    page: bool | PageAssetOptions
    storage_options: Mapping[str, str]
    s3: S3Options | None
    azure: AzureOptions | None
    google: GoogleOptions | None
    environment: str | dg.EnvVar
    unchecked: bool
    name: str
    resource_key: str
    io_manager_key: str


def lance_assets(
    assets: Sequence[dg.AssetsDefinition],
    *,
    root: str | os.PathLike[str] | dg.EnvVar,
    checks: ChecksByAsset | None = None,
    tag: str = "production",
    **options: Unpack[LanceAssetsOptions],
) -> dg.Definitions:
    """Return the definitions of assets that are written on a branch of each run, checked there, and published.

    Three ideas are enough to use it. A run writes each table on a branch of its own, so nobody else reads its rows.
    The checks read that branch. When all of them pass, the branch is merged into `main` and the tag is moved to
    the result. Readers depend on the promoted nodes, such as `production/shop/orders`, and read the version of the tag.

    The definitions have a `LanceResource`, a `LanceIOManager` as the default IO manager, the checks, a publisher, a
    job `load_and_publish` that writes, checks and publishes everything, a job `publish` for promotions by hand, a job
    `maintenance` with a schedule, and a sensor `tag_moves` that reports moves of the tag by other programs. They are
    validated. Merge them with the definitions of readers and other assets by `dg.Definitions.merge`.

    Switch the schedule of the maintenance on in the UI; like every schedule of Dagster it is stopped until then. Each
    publication leaves a small branch in each table, which only maintenance deletes.

    Args:
        assets: The candidates: each returns the rows of one table.
        root: The folder of the tables: an absolute local path, `s3://bucket/path`, `az://` or `gs://`.
        checks: The blocking checks of each asset, by its key, such as `{"shop/orders": [Unique("id")]}`.
        tag: The tag that readers follow, and the first part of the keys of the promoted nodes.
        **options: `spark`, the session for assets that return or take Spark frames; the steps of a run then share one
            process. `schedule`, a cron expression, at which everything is loaded; or `partitions`, to load each
            partition of time when it ends. `maintenance`, when tables are verified, compacted and cleaned up, as a cron
            expression in UTC; Sundays at 3 if left out, None for no such job. `page=True`, an asset `lake_page` with a
            schedule, which writes the lake on one page to `lake.html` below the root; or the options of the page, such
            as `page={"dagster_url": "https://dagster.example.com"}`. `s3`, `azure`, `google` or
            `storage_options`, credentials of the root.
            `environment`, the name of a branch deployment, whose tables are forks of those below the root.
            `unchecked`, whether tables may have no check. `name`, put before the names of the jobs and the sensor, for
            a code location that calls this several times; then `resource_key` and `io_manager_key` differ too, and
            the assets of the call have its `io_manager_key`.

    Raises:
        InvalidInputError: A check names an asset that is not given, or `validate_definitions` finds a mistake.

    Examples:
        >>> @dg.asset
        ... def numbers() -> pa.Table:
        ...     return pa.table({"id": [1, 2, 3]})
        >>> defs = lance_assets([numbers], root="/data/lake", checks={"numbers": [RowCount(minimum=1)]})
        >>> [job.name for job in defs.jobs]
        ['load_and_publish', 'publish', 'maintenance']
    """
    # Imported here, because a code location that calls only `validate_definitions` need not have them.
    from lance_dagster.plugin.operate.ref_sensor import build_ref_sensor

    check_options(lance_assets, options, LanceAssetsOptions)
    _refuse_wrong_checks(checks or {})
    _refuse_wrong_schedules(options.get("schedule"), options.get("maintenance"))
    storage = dict(options.get("storage_options", {}))
    environment = options.get("environment", "")
    providers = {name: options.get(name) for name in ("s3", "azure", "google")}
    lance = LanceResource(root=root, storage_options=storage, environment=environment, **providers)
    spark = options.get("spark")
    resource_key = options.get("resource_key", RESOURCE_KEY)
    prefix = f"{require_name('name', options['name'])}_" if options.get("name") else ""

    def described(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.merge_attributes(metadata=lance.definition_metadata(spec.key, spec.metadata), kinds={"lance"})

    io_manager_key = options.get("io_manager_key", "io_manager")
    given_assets = _asset_list(assets)
    refuse_other_managers(given_assets, io_manager_key)
    candidates = [asset.map_asset_specs(described) for asset in given_assets]
    specs = [spec for asset in candidates for spec in asset.specs]
    publisher = build_publisher(
        candidates,
        tag=tag,
        name=f"{prefix}{publisher_name(tag)}",
        resource_key=resource_key,
        unchecked=options.get("unchecked", False),
    )
    resources: dict[str, object] = {
        resource_key: lance,
        io_manager_key: LanceIOManager(lance=lance, spark=spark),
    }
    definitions = dg.Definitions(
        assets=[*candidates, publisher],
        asset_checks=_checks(specs, checks or {}, resource_key),
        sensors=[build_ref_sensor(f"{prefix}tag_moves", specs, refs=(tag,), resource_key=resource_key)],
        resources=resources | ({"spark": spark} if spark else {}),
    )
    jobs = _jobs(prefix, specs, publisher, schedule=options.get("schedule"), in_process=spark is not None)
    upkeep = _maintenance(f"{prefix}maintenance", specs, options.get("maintenance", _WEEKLY), resource_key)
    page = _page(prefix, publisher, resource_key, page=options.get("page", False))
    return validate_definitions(dg.Definitions.merge(definitions, jobs, upkeep, page))


def _asset_list(assets: object) -> list[dg.AssetsDefinition]:
    """Return the assets as a list, or refuse a value of another type, which would fail deep inside of Dagster."""
    if isinstance(assets, str | bytes | dg.AssetsDefinition) or not isinstance(assets, Iterable):
        kind = "one asset" if isinstance(assets, dg.AssetsDefinition) else reprlib.repr(assets)
        raise InvalidInputError(f"assets have to be a list of assets such as [orders], not {kind}")
    elements = list(assets)
    for element in elements:
        if not isinstance(element, dg.AssetsDefinition):
            raise InvalidInputError(
                f"assets: {reprlib.repr(element)} is not an asset; give the functions that are decorated with @dg.asset"
            )
    return elements


def _refuse_wrong_checks(checks: object) -> None:
    example = "{'shop/orders': [Unique('id')]}"
    if not isinstance(checks, Mapping):
        raise InvalidInputError(f"checks have to be a mapping such as {example}, not {reprlib.repr(checks)}")
    for key, values in checks.items():
        require_checks(values, key.to_user_string() if isinstance(key, dg.AssetKey) else str(key), example)


def _refuse_wrong_schedules(schedule: object, maintenance: object) -> None:
    if schedule not in (None, _BY_PARTITION) and not _is_cron(schedule):
        raise InvalidInputError(
            f"schedule: {reprlib.repr(schedule)} is not a cron expression; give one such as '0 6 * * *' or '@daily', "
            f"or {_BY_PARTITION!r} to load each partition when it ends"
        )
    if maintenance is not None and not _is_cron(maintenance):
        raise InvalidInputError(
            f"maintenance: {reprlib.repr(maintenance)} is not a cron expression; give one such as {_WEEKLY!r}, or None "
            "for no such job"
        )


def _is_cron(schedule: object) -> bool:
    """Return whether a text has the form of a cron expression; Dagster validates its fields."""
    fields = schedule.split() if isinstance(schedule, str) else []
    return len(fields) == _CRON_FIELDS or (len(fields) == 1 and fields[0].startswith("@"))


def _checks(specs: Sequence[dg.AssetSpec], checks: ChecksByAsset, resource_key: str) -> list[dg.AssetChecksDefinition]:
    by_key = {spec.key: spec for spec in specs}
    table_checks: list[dg.AssetChecksDefinition] = []
    for named, values in checks.items():
        spec = by_key.get(asset_key_of(named))
        if spec is None:
            names = [key.to_user_string() for key in by_key]
            name = asset_key_of(named).to_user_string()
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"the assets are {', '.join(names)}"
            raise InvalidInputError(f"checks are given for {name!r}, which is not one of the assets; {meant}")
        table_checks += build_table_checks(spec, values, resource_key=resource_key)
    return table_checks


def _refuse_several_partitions(specs: Sequence[dg.AssetSpec]) -> None:
    """Refuse different partitions with a remedy; Dagster would refuse them without one, when the job is resolved."""
    first = next((spec for spec in specs if spec.partitions_def is not None), None)
    for spec in specs:
        if first is not None and spec.partitions_def not in (None, first.partitions_def):
            raise InvalidInputError(
                f"{first.key.to_user_string()} and {spec.key.to_user_string()} have different partitions, and the job "
                "load_and_publish cannot have both; call lance_assets once for each kind of partitions, with name=, "
                "resource_key= and io_manager_key=, or publish all of them by one build_publisher and no such job"
            )


def _maintenance(name: str, specs: Sequence[dg.AssetSpec], schedule: str | None, resource_key: str) -> dg.Definitions:
    if schedule is None:
        return dg.Definitions()
    from lance_dagster.plugin.operate.maintenance_job import build_maintenance_job

    maintenance = build_maintenance_job(specs, name=name, schedule=schedule, resource_key=resource_key)
    return dg.Definitions(jobs=[maintenance.job], schedules=[maintenance.schedule] if maintenance.schedule else [])


def _page(
    prefix: str, publisher: dg.AssetsDefinition, resource_key: str, *, page: bool | PageAssetOptions
) -> dg.Definitions:
    if page is False:
        return dg.Definitions()
    if page is not True and not isinstance(page, Mapping):
        raise InvalidInputError(f"page: {reprlib.repr(page)} is neither True, False nor a mapping of options")
    chosen: PageAssetOptions = {"name": f"{prefix}lake_page", **({} if page is True else page)}
    asset = build_page_asset(sorted(publisher.keys), resource_key=resource_key, **chosen)
    schedule = dg.ScheduleDefinition(
        name=f"{asset.key.to_python_identifier()}_schedule",
        target=dg.AssetSelection.assets(asset),
        cron_schedule=_OFTEN,
        description="Writes the page of the lake anew; a page is as old as its last run.",
    )
    return dg.Definitions(assets=[asset], schedules=[schedule])


def _jobs(
    prefix: str,
    specs: Sequence[dg.AssetSpec],
    publisher: dg.AssetsDefinition,
    *,
    schedule: str | None,
    in_process: bool,
) -> dg.Definitions:
    _refuse_several_partitions(specs)
    promoted = dg.AssetSelection.assets(*publisher.keys)
    load = dg.define_asset_job(
        f"{prefix}load_and_publish",
        selection=dg.AssetSelection.assets(*(spec.key for spec in specs)) | promoted,
        description="Write every table on a branch of the run, check it there, merge it into main, move the tag.",
        # Each process that needs Spark would start its own Java process.
        executor_def=dg.in_process_executor if in_process else None,
    )
    publish = dg.define_asset_job(
        f"{prefix}publish",
        selection=promoted,
        description="Promote, roll back or publish by hand; the run configuration says which version and why.",
    )
    partitioned = [spec.key.to_user_string() for spec in specs if spec.partitions_def is not None]
    if schedule is None:
        return dg.Definitions(jobs=[load, publish])
    if schedule != _BY_PARTITION:
        if partitioned:
            raise InvalidInputError(
                f"{partitioned[0]} has partitions; give schedule={_BY_PARTITION!r} to load each partition when it "
                f"ends, since the cron expression {schedule!r} names none"
            )
        by_time = dg.ScheduleDefinition(job=load, cron_schedule=schedule)
        return dg.Definitions(jobs=[load, publish], schedules=[by_time])
    if not partitioned:
        raise InvalidInputError(
            f"schedule={_BY_PARTITION!r} loads partitions when they end, but none of the assets has partitions; give a "
            "cron expression"
        )
    return dg.Definitions(jobs=[load, publish], schedules=[dg.build_schedule_from_partitioned_job(load)])
