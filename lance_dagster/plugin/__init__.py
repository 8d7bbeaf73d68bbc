"""Connect Dagster to Lance tables: run branches, checks of them, a publisher that merges them, and sensors."""

from importlib.metadata import PackageNotFoundError, version

from dagster_shared.libraries import DagsterLibraryRegistry

from lance_dagster.plugin.checks.built_in_checks import (
    InRange,
    IsIn,
    KeysExist,
    Matches,
    NotNull,
    NullRate,
    RowCount,
    Satisfies,
    Unique,
)
from lance_dagster.plugin.checks.change_checks import Freshness, NoSchemaChange, RowCountChange, SchemaIs
from lance_dagster.plugin.checks.check_definitions import build_table_checks, table_check
from lance_dagster.plugin.checks.evaluation import BoundCheck, check_values, evaluate_check, open_candidate
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, TableCheck
from lance_dagster.plugin.components import LancePublisherComponent, LanceResourceComponent, LanceTablesComponent
from lance_dagster.plugin.definitions import LanceAssetsOptions, lance_assets, validate_definitions
from lance_dagster.plugin.io.io_manager import LanceIOManager
from lance_dagster.plugin.io.partition_values import PartitionFilter
from lance_dagster.plugin.io.write_request import WriteMode
from lance_dagster.plugin.operate.branch_sweeper import build_branch_sweeper
from lance_dagster.plugin.operate.conditions import candidate_audited, newer_than, tag_moved
from lance_dagster.plugin.operate.discovery_sensor import build_discovery_sensor
from lance_dagster.plugin.operate.maintenance_job import MaintenanceConfig, MaintenanceJob, build_maintenance_job
from lance_dagster.plugin.operate.pipes_session import PipesTable, pipes_extras, pipes_table
from lance_dagster.plugin.operate.ref_sensor import build_ref_sensor, ref_asset_specs
from lance_dagster.plugin.publish.promoted_asset import promoted_asset_spec
from lance_dagster.plugin.publish.publish_step import PublishConfig
from lance_dagster.plugin.publish.publisher import PublisherOptions, build_publisher
from lance_dagster.plugin.publish.rollback import Rollback
from lance_dagster.plugin.resource import LanceResource, PinnedTable, SparkResource
from lance_dagster.plugin.resource_fields import S3Options
from lance_dagster.plugin.run_branch import RunBranch, RunChain
from lance_dagster.plugin.table_asset import TableAddress

__all__ = [
    "Audit",
    "BoundCheck",
    "CheckOutcome",
    "Freshness",
    "InRange",
    "IsIn",
    "KeysExist",
    "LanceAssetsOptions",
    "LanceIOManager",
    "LancePublisherComponent",
    "LanceResource",
    "LanceResourceComponent",
    "LanceTablesComponent",
    "MaintenanceConfig",
    "MaintenanceJob",
    "Matches",
    "NoSchemaChange",
    "NotNull",
    "NullRate",
    "PartitionFilter",
    "PinnedTable",
    "PipesTable",
    "PublishConfig",
    "PublisherOptions",
    "Rollback",
    "RowCount",
    "RowCountChange",
    "RunBranch",
    "RunChain",
    "S3Options",
    "Satisfies",
    "SchemaIs",
    "SparkResource",
    "TableAddress",
    "TableCheck",
    "Unique",
    "WriteMode",
    "build_branch_sweeper",
    "build_discovery_sensor",
    "build_maintenance_job",
    "build_publisher",
    "build_ref_sensor",
    "build_table_checks",
    "candidate_audited",
    "check_values",
    "evaluate_check",
    "lance_assets",
    "newer_than",
    "open_candidate",
    "pipes_extras",
    "pipes_table",
    "promoted_asset_spec",
    "ref_asset_specs",
    "table_check",
    "tag_moved",
    "validate_definitions",
]

try:
    _version = version("lance-dagster")
except PackageNotFoundError:  # imported from a checkout that is not installed
    _version = "0"
DagsterLibraryRegistry.register("lance-dagster", _version, is_dagster_package=False)
