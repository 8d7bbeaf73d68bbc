"""Components: the parts of this package as YAML files of a `dg` project.

The assets themselves stay in Python. A `LanceResourceComponent` configures the root, once for a code location. A
`LanceTablesComponent` checks and operates some tables, and a `LancePublisherComponent` publishes them.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field, StrictFloat, StrictInt

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin.checks.change_checks import Freshness, NoSchemaChange, RowCountChange
from lance_dagster.plugin.checks.check_definitions import build_table_checks
from lance_dagster.plugin.checks.row_checks import KeysExist, RowCount, Unique
from lance_dagster.plugin.checks.table_check import TableCheck
from lance_dagster.plugin.checks.value_checks import InRange, IsIn, Matches, NotNull, NullRate, Satisfies
from lance_dagster.plugin.io.io_manager import LanceIOManager
from lance_dagster.plugin.operate.branch_sweeper import build_branch_sweeper
from lance_dagster.plugin.operate.maintenance_job import build_maintenance_job
from lance_dagster.plugin.operate.ref_sensor import build_ref_sensor, ref_asset_specs
from lance_dagster.plugin.provider_options import literal_secrets
from lance_dagster.plugin.publish.publisher import build_publisher
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import RESOURCE_KEY

_CHECKS = (
    RowCount,
    RowCountChange,
    NotNull,
    NullRate,
    InRange,
    IsIn,
    Matches,
    Satisfies,
    Unique,
    KeysExist,
    Freshness,
    NoSchemaChange,
)
_KINDS: Mapping[str, type] = {check.kind: check for check in _CHECKS}
# The schema of the YAML lists the kinds, and a type checker cannot know them.
if TYPE_CHECKING:
    CheckKind = str
else:
    CheckKind = Literal[tuple(_KINDS)]


# The argument of a check whose value is a duration.
_DURATION = "maximum_age"
# As hours a hundred years; Python refuses much longer durations with an error of its own.
_LONGEST = 876_000


# Dagster's own scaffolder writes no attributes, and such a file does not load. These attributes load, for the user to
# change.
class _ResourceScaffolder(dg.Scaffolder[Any]):
    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, {"root": "{{ project_root }}/lake"})


class _TablesScaffolder(dg.Scaffolder[Any]):
    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        row_count = {"kind": "row_count", "settings": {"minimum": 1}}
        dg.scaffold_component(request, {"tables": [{"key": "my_table", "checks": [row_count]}]})


class _PublisherScaffolder(dg.Scaffolder[Any]):
    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, {"tables": ["my_table"]})


@dg.scaffold_with(_ResourceScaffolder)
class LanceResourceComponent(dg.Component, dg.Model, dg.Resolvable):
    """The place of the tables, as the resource `lance` and the IO manager `io_manager`.

    A code location has one for each warehouse; components that name the same resource key are refused by Dagster.
    """

    root: str = Field(description="Folder of the tables: an absolute path, s3://bucket/path, az:// or gs://.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        description="Endpoint, region and the like, under pylance's names. Secrets go into `environment`.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Storage options that are read from the environment when a run starts, each with the name of its "
        "variable, such as {aws_secret_access_key: LAKE_SECRET}. Dagster's pages show the name.",
    )
    resource_key: str = Field(default=RESOURCE_KEY, description="The key of the resource.")
    io_manager_key: str = Field(default="io_manager", description="The key of the IO manager; the default of assets.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Return the resource and the IO manager over it."""
        lance = self.resource()
        return dg.Definitions(resources={self.resource_key: lance, self.io_manager_key: LanceIOManager(lance=lance)})

    def resource(self) -> LanceResource:
        """Return the resource.

        Raises:
            InvalidInputError: A secret is among the storage options.
        """
        # A template such as {{ env.NAME }} is replaced by its value before this runs, so it cannot be told apart.
        if shown := sorted(literal_secrets(self.storage_options)):
            raise InvalidInputError(
                f"storage_options of a LanceResourceComponent has {', '.join(shown)} as text, which Dagster shows on "
                f"the page of the resource; write environment: {{{shown[0]}: <name of a variable>}} instead"
            )
        variables = {option: dg.EnvVar(name) for option, name in self.environment.items()}
        return LanceResource(root=self.root, storage_options={**self.storage_options, **variables})


class LanceCheckModel(dg.Model, dg.Resolvable):
    """A blocking check of a table: a built-in check, with its arguments."""

    kind: CheckKind = Field(description="The check, such as unique.")
    # `bool` has to be named: pydantic would make the number 1 of true.
    settings: dict[str, str | bool | int | float | list[str | bool | int | float]] = Field(
        default_factory=dict,
        description="The arguments of the check in Python, such as {columns: [id]}; a duration in hours.",
    )

    def check(self) -> TableCheck:
        """Return the check.

        Raises:
            InvalidInputError: An argument is unknown or missing.
        """
        # YAML has lists only, and a check is a frozen value.
        arguments: dict[str, object] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.settings.items()
        }
        try:
            if _DURATION in arguments:
                arguments[_DURATION] = _duration(_DURATION, "hours", arguments[_DURATION])
            table_check: TableCheck = _KINDS[self.kind](**arguments)
        except (TypeError, InvalidInputError) as error:
            # The constructor names the argument that is unknown, missing or wrong.
            raise InvalidInputError(f"the settings {self.settings} do not fit the check {self.kind}: {error}") from None
        return table_check


class LanceTableModel(dg.Model, dg.Resolvable):
    """A candidate, and the checks of its table."""

    key: str = Field(description="The key of the asset that writes the table, such as shop/orders.")
    checks: list[LanceCheckModel] = Field(default_factory=list, description="Its blocking checks.")


@dg.scaffold_with(_TablesScaffolder)
class LanceTablesComponent(dg.Component, dg.Model, dg.Resolvable):
    """Checks of some tables, and their operation: a ref sensor, a branch sweeper, a maintenance job.

    The assets that write the tables are defined in Python, in the same code location.
    """

    tables: list[LanceTableModel] = Field(description="The tables, with their checks.")
    name: str = Field(default="lance", description="The first part of the names of the sensors and the job.")
    watch: bool = Field(default=False, description="Report new versions of main, by any program, to Dagster.")
    keep_failed_days: StrictInt | StrictFloat | None = Field(
        default=None, description="Delete the branches of failed runs after so many days; null for never."
    )
    maintenance: str | None = Field(
        default=None, description="When tables are compacted and cleaned up, as a cron expression in UTC."
    )
    resource_key: str = Field(default=RESOURCE_KEY, description="The key of the LanceResource.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Return the checks, sensors and the job.

        Raises:
            InvalidInputError: There is no table, a table is given twice, or a setting does not fit.
        """
        keys = _keys([table.key for table in self.tables], "LanceTablesComponent")
        checks: list[dg.AssetChecksDefinition] = []
        for table in self.tables:
            table_checks = [check.check() for check in table.checks]
            checks += build_table_checks(table.key, table_checks, resource_key=self.resource_key)
        maintenance = None
        if self.maintenance:
            name = f"{self.name}_maintenance"
            maintenance = build_maintenance_job(
                keys, name=name, schedule=self.maintenance, resource_key=self.resource_key
            )
        return dg.Definitions(
            assets=ref_asset_specs(keys) if self.watch else [],
            asset_checks=checks,
            sensors=self._sensors(keys),
            jobs=[maintenance.job] if maintenance else [],
            schedules=[maintenance.schedule] if maintenance and maintenance.schedule else [],
        )

    def _sensors(self, keys: Sequence[str]) -> list[dg.SensorDefinition]:
        sensors = []
        if self.watch:
            sensors.append(build_ref_sensor(f"{self.name}_refs", keys, resource_key=self.resource_key))
        if self.keep_failed_days is not None:
            keep_failed = _duration("keep_failed_days", "days", self.keep_failed_days)
            name = f"{self.name}_sweeper"
            sensors.append(build_branch_sweeper(name, keys, keep_failed=keep_failed, resource_key=self.resource_key))
        return sensors


class LancePartitionsModel(dg.Model, dg.Resolvable):
    """The partitions of the candidates of a publisher, as their definition in Python has them."""

    kind: Literal["hourly", "daily", "weekly", "monthly", "static"] = Field(description="The kind of the partitions.")
    start: str = Field(default="", description="The first partition of time, such as 2024-01-01.")
    timezone: str = Field(default="UTC", description="The time zone of partitions of time.")
    keys: list[str] = Field(default_factory=list, description="The keys of static partitions.")

    def definition(self) -> dg.PartitionsDefinition:
        """Return the definition of the partitions.

        Raises:
            InvalidInputError: Static partitions have no keys, or partitions of time no start; or Dagster refuses them.
        """
        # Static partitions need keys and no start, partitions of time a start and no keys.
        if bool(self.keys) != (self.kind == "static") or bool(self.start) == (self.kind == "static"):
            raise InvalidInputError("static partitions have `keys`, and partitions of time have a `start`")
        kinds: Mapping[str, Callable[..., dg.PartitionsDefinition]] = {
            "hourly": dg.HourlyPartitionsDefinition,
            "daily": dg.DailyPartitionsDefinition,
            "weekly": dg.WeeklyPartitionsDefinition,
            "monthly": dg.MonthlyPartitionsDefinition,
        }
        try:
            if self.kind == "static":
                return dg.StaticPartitionsDefinition(self.keys)
            return kinds[self.kind](start_date=self.start, timezone=self.timezone)
        # An unknown time zone is a KeyError, whose text is in quotes.
        except (ValueError, KeyError, dg.DagsterInvalidDefinitionError) as error:
            attributes = f"keys {self.keys}" if self.keys else f"start {self.start!r} and timezone {self.timezone!r}"
            hour = "-00:00" if self.kind == "hourly" else ""
            raise InvalidInputError(
                f"{self.kind} partitions cannot have {attributes}: {error.args[0] if error.args else error}; give "
                + ("keys that differ" if self.keys else f"a start such as 2024-01-01{hour} and a zone such as UTC")
            ) from None


@dg.scaffold_with(_PublisherScaffolder)
class LancePublisherComponent(dg.Component, dg.Model, dg.Resolvable):
    """The publisher of some tables, with their promoted nodes."""

    tables: list[str] = Field(description="The keys of the candidates, such as shop/orders.")
    tag: str = Field(default="production", description="The tag that readers follow.")
    unchecked: bool = Field(default=False, description="Publish tables that have no blocking check.")
    stale_checks: Literal["refuse", "accept"] = Field(
        default="refuse", description="When main moved and a plain @asset_check cannot be evaluated on the merge."
    )
    partitions: LancePartitionsModel | None = Field(
        default=None, description="The partitions of the candidates, to publish within each run of a backfill."
    )
    resource_key: str = Field(default=RESOURCE_KEY, description="The key of the LanceResource.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Return the publisher.

        Raises:
            InvalidInputError: There is no table.
        """
        keys = _keys(self.tables, "LancePublisherComponent")
        publisher = build_publisher(
            keys,
            tag=self.tag,
            partitions_def=self.partitions.definition() if self.partitions else None,
            unchecked=self.unchecked,
            resource_key=self.resource_key,
            stale_checks=self.stale_checks,
        )
        return dg.Definitions(assets=[publisher])


def _duration(name: str, unit: Literal["hours", "days"], number: object) -> timedelta:
    """Return a number of hours or days as a duration; a bool, which is an integer in Python, is not a number."""
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= _LONGEST:
        return timedelta(**{unit: number})
    raise InvalidInputError(f"{name} is {number!r}; give a number of {unit} from 0 to {_LONGEST}, such as 7")


def _keys(keys: Sequence[str], component: str) -> list[str]:
    if not keys:
        raise InvalidInputError(f"{component} needs at least one table in `tables`, such as shop/orders")
    if doubled := sorted({key for key in keys if keys.count(key) > 1}):
        raise InvalidInputError(f"{component} has {', '.join(doubled)} twice in `tables`; give each table once")
    return list(keys)
