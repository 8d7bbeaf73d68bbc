"""A job that verifies, compacts and cleans up tables, with a report for each table.

The first step collects old commits of the repository, where the resource has one, so that the tables can collect the
versions that only these commits name. Then every table is a step of its own, in one process: a table that fails does
not stop the other tables, the run fails at its end, and a re-execution from failure repeats only the tables that
failed.

The job changes no rows and may run while others write and publish. Compaction commits to `main`, and a run branch that
was forked before merges into the compacted `main` without a conflict. The collection deletes no file that a branch, a
tag or a writer may need.

Tiers are base paths to which the job moves the data files of rows of a certain age, which is by a column of dates or
timestamps, or by the partition that a row was written for. A table with several tiers has its rows at the tier of the
greatest age that they have reached, so no file is moved twice in one run.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import dagster as dg
from pydantic import Field

from lance_dagster.errors import InvalidInputError, LanceDagsterError, TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.sql_text import instant
from lance_dagster.format.validation import check_class, check_flag, check_options, require_sequence
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.check_arguments import require_duration
from lance_dagster.plugin.resource import LanceResource, SparkResource
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, WatchedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.gc.garbage_report import GarbageReport
    from lance_dagster.plugin.io.partition_values import PartitionValues
    from lance_dagster.table import LanceTable
    from lance_dagster.verify.manifest_rules import Problem

_DEFAULT_AGE = timedelta(days=14)
_SHOWN = 20
_REPOSITORY = "repository"
_DIGITS = 8
Report = dict[str, dg.MetadataValue | str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A base path for the data files of rows that are older than a span.

    Attributes:
        to: The name of the base path, which `maintenance.add_base` has added to the table.
        older_than: The age of the rows.
        column: The column, or SQL expression, that says how old a row is: a date, a timestamp, in UTC where it has no
            time zone, or text that begins with a date such as `2026-05-01`; None for the `lance/partition_expr` of the
            asset. A partition counts from its beginning.

    Raises:
        InvalidInputError: The age is not a duration, or a name is not text.
    """

    to: str
    older_than: timedelta
    column: str | None = None

    def __post_init__(self) -> None:
        """Validate the attributes."""
        require_duration("older_than", self.older_than)
        for what, name in (("to", self.to), ("column", self.column)):
            if not (isinstance(name, str) and name) and not (what == "column" and name is None):
                raise InvalidInputError(f"{what} of a Tier has to be a name, not {name!r}")


class MaintenanceConfig(dg.Config):
    """The run configuration of the maintenance job."""

    dry_run: bool = Field(default=False, description="Verify, and report what would be collected; change nothing.")


class MaintenanceOptions(TypedDict, total=False):
    """The parts of the maintenance of each table; all of them by default.

    `verify` looks for damage first, and a damaged table is left as it is. `compact` rewrites small fragments of `main`.
    `indices` adds rows that the indices of `main` do not cover. `tiers` are base paths to which the data files of old
    rows of `main` are moved; a table without such a base path fails. `collect` is the age from which versions that are
    no longer needed expire and unreferenced files are deleted; None collects nothing. `spark_key` is the key of a
    `SparkResource` whose executors compact the tables; None compacts them in the process of the step.
    """

    verify: bool
    compact: bool
    indices: bool
    tiers: Sequence[Tier]
    collect: timedelta | None
    spark_key: str | None


class MaintenanceJob(NamedTuple):
    """A maintenance job, and its schedule when one was asked for."""

    job: dg.JobDefinition
    schedule: dg.ScheduleDefinition | None


def build_maintenance_job(
    tables: Sequence[TableAsset],
    *,
    name: str = "lance_maintenance",
    schedule: str | None = None,
    resource_key: str = RESOURCE_KEY,
    **options: Unpack[MaintenanceOptions],
) -> MaintenanceJob:
    """Build a job that verifies, compacts and cleans up some tables, and its schedule.

    It records an observation of each candidate: how many versions, files and bytes were removed, the number of
    fragments before and after, the refreshed indices, and the problems that were found. A step fails when its table
    is damaged or its maintenance raises an error; the other tables are maintained all the same. A table that no run has
    written yet is left out, with a warning.

    Args:
        tables: The candidates, as definitions or keys.
        name: The name of the job.
        schedule: When the job runs, as a cron expression in UTC such as `0 3 * * 0`; None for no schedule.
        resource_key: The key of the `LanceResource`.
        options: See `MaintenanceOptions`.

    Raises:
        InvalidInputError: No table is given, a table is given twice, the schedule is not a cron expression, or an
            option has the wrong type or is negative.
    """
    require_sequence("tables", tables, "shop/orders")
    check_options(build_maintenance_job, options, MaintenanceOptions)
    maintained = [WatchedTable.of(table) for table in tables]
    if not maintained or len({table.key for table in maintained}) < len(maintained):
        names = [table.name for table in maintained]
        raise InvalidInputError(f"build_maintenance_job needs at least one table, and each only once: {names}")
    _check_options(options)
    first = _repository_op(f"{name}__{_REPOSITORY}", resource_key, options)
    steps = zip(maintained, _identifiers(maintained), strict=True)
    ops = [_op(watched_table, f"{name}__{step}", resource_key, options) for watched_table, step in steps]

    listed = ", ".join(table.name for table in maintained[:_SHOWN])
    about = f"Verify, compact and clean up {len(maintained)} Lance tables: {listed}."

    # In one process: a process for each table would take longer to start than the work of most tables.
    @dg.job(name=name, executor_def=dg.in_process_executor, description=about)
    def maintenance() -> None:
        collected = first()
        for op in ops:
            op(collected)

    return MaintenanceJob(maintenance, _planned(maintenance, schedule) if schedule else None)


def _planned(job: dg.JobDefinition, schedule: str) -> dg.ScheduleDefinition:
    # STOPPED until somebody switches it on in the UI, as with every schedule of Dagster.
    about = f"Starts {job.name}, which verifies tables, compacts them and deletes files that nothing needs any more."
    try:
        return dg.ScheduleDefinition(job=job, cron_schedule=schedule, description=about)
    except dg.DagsterInvalidDefinitionError:
        raise InvalidInputError(
            f"the schedule of {job.name} has to be a cron expression with five fields such as '0 3 * * 0', not "
            f"{schedule!r}"
        ) from None


def _check_options(options: MaintenanceOptions) -> None:
    if options.get("collect") is not None:
        require_duration("collect", options["collect"])
    for part in ("verify", "compact", "indices"):
        check_flag(part, options.get(part, True))
    example = "Tier(to='cold', older_than=timedelta(days=90))"
    require_sequence("tiers", options.get("tiers", ()), example)
    for tier in options.get("tiers", ()):
        check_class("a tier", tier, Tier, example)


def _op(watched_table: WatchedTable, name: str, resource_key: str, options: MaintenanceOptions) -> dg.OpDefinition:
    spark_key = options.get("spark_key")

    @dg.op(
        name=name,
        ins={"repository": dg.In(dg.Nothing)},
        required_resource_keys={resource_key, *([spark_key] if spark_key else [])},
        description=f"Maintain the table of {watched_table.name}.",
    )
    def maintain(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        lance: LanceResource = getattr(context.resources, resource_key)
        spark: SparkResource | None = getattr(context.resources, spark_key) if spark_key else None
        step = _Step(context, watched_table, spark, dry_run=config.dry_run)
        try:
            table = _written_table(context, lance, watched_table)
        except LanceDagsterError as error:
            raise dg.Failure(description=f"{watched_table.name}: {error}") from error
        if table is None:
            return
        try:
            step.run(table, options)
        except LanceDagsterError as error:
            raise dg.Failure(description=f"{watched_table.name}: {error}", metadata=step.report) from error
        finally:
            # A step that fails is reported too, because its work before the failure is committed.
            context.log_event(dg.AssetObservation(watched_table.key, description="maintenance", metadata=step.report))
        if step.damage:
            raise dg.Failure(description=f"{watched_table.name} is damaged: {step.damage[0]}", metadata=step.report)

    return maintain


def _written_table(
    context: dg.OpExecutionContext, lance: LanceResource, watched_table: WatchedTable
) -> "LanceTable | None":
    """Return the table of a candidate; None, with a warning, when no run has written it yet.

    Raises:
        TableNotFoundError: The repository has the table, and it is gone.
    """
    try:
        return lance.table(watched_table.key, watched_table.metadata)
    except TableNotFoundError as error:
        repository, name = lance.open_repository(), str(lance.address_of(watched_table.key, watched_table.metadata))
        if repository is not None and name in repository.tables():
            uri = lance.uri_of(watched_table.key, watched_table.metadata)
            raise TableNotFoundError(f"the table at {uri}, which the repository has, is gone") from error
        # A job is defined with all of its tables, and some may not have been written yet.
        context.log.warning("%s: nothing to maintain: %s", watched_table.name, error)
        return None


def _repository_op(name: str, resource_key: str, options: MaintenanceOptions) -> dg.OpDefinition:
    """Return the step that collects old commits of the repository, so that tables can collect their versions."""

    @dg.op(
        name=name,
        out=dg.Out(dg.Nothing),
        required_resource_keys={resource_key},
        description="Collect the commits of the repository that are no longer needed, where the resource has one.",
    )
    def collect(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        repository = getattr(context.resources, resource_key).open_repository()
        age = options.get("collect", _DEFAULT_AGE)
        if repository is None or age is None:
            return
        from lance_dagster.repository.collect_commits import CommitRetention

        collection = repository.maintenance.collect(CommitRetention(keep_for=age), dry_run=config.dry_run)
        context.add_output_metadata(
            {
                f"lance/commits_{'would_remove' if collection.dry_run else 'removed'}": len(collection.commits),
                "lance/branches_kept": len(collection.kept),
            }
        )
        for reason in collection.kept[:_SHOWN]:
            context.log.warning("kept: %s", reason)

    return collect


class _Step:
    """The maintenance of one table; each part of the maintenance adds its entries to `report`."""

    def __init__(
        self, context: dg.OpExecutionContext, watched: WatchedTable, spark: SparkResource | None, *, dry_run: bool
    ) -> None:
        self.report: Report = {}
        self._spark = spark
        self.damage: list[Problem] = []
        self._context, self._name, self._dry_run = context, watched.name, dry_run
        self._partition_expr = watched.metadata.get(md.PARTITION_EXPR)
        # The sensors take a version with a run id for a version of Dagster's.
        # Imported only in a run, as all modules are that loading a code location does not need.
        from lance_dagster.plugin.run_branch import RunChain

        self._properties = {md.RUN_ID: RunChain.of_context(context).run_id or "", md.JOB_NAME: context.job_name}

    def run(self, table: "LanceTable", options: MaintenanceOptions) -> None:
        if options.get("verify", True):
            self._verify(table)
        if self.damage:
            # Compaction reads files that may be damaged, and a collection could delete files that a repair needs.
            return
        if not self._dry_run:
            if options.get("compact", True):
                self._compact(table)
            if options.get("indices", True):
                self._refresh_indices(table)
        if tiers := options.get("tiers"):
            self._move(table, tiers)
        age = options.get("collect", _DEFAULT_AGE)
        if age is not None:
            self._collect(table, age)

    def _verify(self, table: "LanceTable") -> None:
        verification = table.maintenance.verify()
        self.damage = _damage(verification.problems)
        self._add_problems(verification.problems)
        self.report["lance/versions_verified"] = verification.versions

    def _compact(self, table: "LanceTable") -> None:
        before = _fragments(table)
        message = f"maintenance of {self._name}"
        if self._spark is None:
            version = table.maintenance.compact(message=message, properties=self._properties)
        else:
            # Imported here: PySpark is an optional extra.
            from lance_dagster.spark.spark_compaction import compact_table

            version = compact_table(self._spark.session, table, message=message, properties=self._properties)
        self.report |= {"lance/fragments_before": before, "lance/fragments_after": _fragments(table)}
        self.report |= {md.BRANCH: version.branch, md.VERSION: str(version.number)}

    def _refresh_indices(self, table: "LanceTable") -> None:
        missing = [index.name for index in table.maintenance.indices() if index.needs_work]
        if missing:
            table.to_lance(MAIN).optimize.optimize_indices(index_names=missing)
        self.report["lance/indices_refreshed"] = len(missing)

    def _move(self, table: "LanceTable", tiers: Sequence[Tier]) -> None:
        expression = md.plain(self._partition_expr)
        predicates = tier_predicates(
            tiers,
            table.schema(),
            partition_expr=expression if isinstance(expression, str) else None,
            now=datetime.now(UTC),
            asset=self._name,
        )
        message, files, size = f"maintenance of {self._name}", 0, 0
        for tier, where in predicates:
            move = table.maintenance.move_files(
                where, tier.to, message=message, properties=self._properties, dry_run=self._dry_run
            )
            files, size = files + move.files, size + move.bytes
        verb = "would_move" if self._dry_run else "moved"
        self.report |= {f"lance/files_{verb}": files, f"lance/bytes_{verb}": size}

    def _collect(self, table: "LanceTable", age: timedelta) -> None:
        garbage = table.maintenance.collect_garbage(age, dry_run=self._dry_run)
        self._add_problems(garbage.problems)
        self.report |= _garbage(garbage)
        if not self._dry_run and not garbage.ok:
            self.damage = _damage(garbage.problems)

    def _add_problems(self, problems: "Sequence[Problem]") -> None:
        self.report["lance/problems"] = len(problems)
        if problems:
            lines = [f"- {problem}" for problem in problems[:_SHOWN]]
            more = [f"- and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            self.report["lance/problem_list"] = dg.MetadataValue.md("\n".join(lines + more))
            for problem in problems[:_SHOWN]:
                self._context.log.warning("%s: %s", self._name, problem)


def _damage(problems: "Sequence[Problem]") -> "list[Problem]":
    from lance_dagster.verify.manifest_rules import ERROR

    return [problem for problem in problems if problem.severity == ERROR]


def _garbage(report: "GarbageReport") -> Report:
    if report.dry_run:
        # A dry run uses names of its own: a plot of removed files must not show files that were not removed.
        removed, expired, verb = report.garbage, report.expired, "would_remove"
    else:
        removed, expired = report.garbage if report.done else {}, report.expired if report.expiry_done else {}
        verb = "removed"
    return {
        f"lance/versions_{verb}": sum(map(len, expired.values())),
        f"lance/files_{verb}": sum(count.files for count in removed.values()),
        f"lance/bytes_{verb}": sum(count.bytes for count in removed.values()),
        "lance/files_waiting": sum(count.files for count in report.waiting.values()),
    }


def _fragments(table: "LanceTable") -> int:
    return len(table.to_lance(MAIN).get_fragments())


def _identifiers(tables: Sequence[WatchedTable]) -> list[str]:
    """Return a name for the step of each table: all names differ, also from the name of the repository's step.

    Example: the tables `a/b` and `c` get `a__b` and `c`; `a/b` and `a__b` get `a__b_` with a digest of each key.
    """
    # Dagster allows letters, digits and underscores in the name of an op.
    plain = [re.sub(r"\W", "_", table.name.replace("/", "__"), flags=re.ASCII) for table in tables]
    times = Counter([*plain, _REPOSITORY])
    # The digest is added only where two names are equal, because people write the names into a run configuration.
    return [
        name
        if times[name] == 1
        else f"{name}_{hashlib.sha256(repr(watched_table.key.path).encode()).hexdigest()[:_DIGITS]}"
        for name, watched_table in zip(plain, tables, strict=True)
    ]


def tier_predicates(
    tiers: Sequence[Tier], schema: "pa.Schema", *, partition_expr: str | None, now: datetime, asset: str
) -> list[tuple[Tier, str]]:
    """Return the predicate of the rows of each tier; the oldest tier comes last.

    Args:
        tiers: The tiers.
        schema: The columns of the table.
        partition_expr: The column or SQL expression of the partitions, for tiers without a column.
        now: The time that ages are counted from.
        asset: The asset's name, for error messages.

    Raises:
        InvalidInputError: A column does not exist or has no age.
    """
    ordered = sorted(tiers, key=lambda tier: tier.older_than)
    predicates = []
    for tier, following in pairwise((*ordered, None)):
        if tier is None:
            continue
        values = _age_values(tier, schema, partition_expr, asset)
        predicate = f"{values.sql} < {_age_limit(values, now - tier.older_than, asset)}"
        if following is not None:
            older = _age_values(following, schema, partition_expr, asset)
            predicate += f" AND {older.sql} >= {_age_limit(older, now - following.older_than, asset)}"
        predicates.append((tier, predicate))
    return predicates


def _age_values(tier: Tier, schema: "pa.Schema", partition_expr: str | None, asset: str) -> "PartitionValues":
    # Imported in a run, as all modules are that loading a code location does not need.
    from lance_dagster.plugin.io.partition_values import PartitionValues

    column = tier.column or partition_expr
    if column is None:
        raise InvalidInputError(
            f"{asset} has no lance/partition_expr of one dimension, so nothing says how old its rows are; give "
            f"Tier(to={tier.to!r}, column=...) a column"
        )
    return PartitionValues.of(column, schema, asset)


def _age_limit(values: "PartitionValues", moment: datetime, asset: str) -> str:
    """Return a moment as a value of a column, in SQL."""
    import pyarrow as pa

    utc, kind = moment.astimezone(UTC), values.kind
    if pa.types.is_date(kind):
        return f"date '{utc:%Y-%m-%d}'"
    if pa.types.is_timestamp(kind):
        return instant(utc) if kind.tz is not None else f"timestamp '{utc:%Y-%m-%d %H:%M:%S}'"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"'{utc:%Y-%m-%d}'"
    raise InvalidInputError(
        f"column {values.name!r} of {asset} is {kind}, which has no age; give a date, a timestamp or text such as "
        "2026-05-01"
    )
