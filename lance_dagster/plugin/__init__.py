"""Connect Dagster to Lance tables: run branches, checks of them, a publisher that merges them, and sensors.

The public names are loaded when they are first used, so that a code location loads only the modules that it uses. None
of them needs pyarrow or the format before a run: the step imports the modules that write, read, merge and evaluate.
"""

import importlib
from typing import TYPE_CHECKING

from dagster_shared.libraries import DagsterLibraryRegistry

from lance_dagster.__about__ import __version__

if TYPE_CHECKING:
    from lance_dagster.plugin.checks.change_checks import (
        Freshness as Freshness,
        NoSchemaChange as NoSchemaChange,
        RowCountChange as RowCountChange,
        SchemaIs as SchemaIs,
    )
    from lance_dagster.plugin.checks.check_definitions import (
        build_table_checks as build_table_checks,
        table_check as table_check,
    )
    from lance_dagster.plugin.checks.evaluation import (
        check_values as check_values,
        evaluate_check as evaluate_check,
        open_candidate as open_candidate,
    )
    from lance_dagster.plugin.checks.row_checks import (
        KeysExist as KeysExist,
        RowCount as RowCount,
        Unique as Unique,
    )
    from lance_dagster.plugin.checks.table_check import (
        Audit as Audit,
        BoundCheck as BoundCheck,
        CheckOutcome as CheckOutcome,
        TableCheck as TableCheck,
    )
    from lance_dagster.plugin.checks.value_checks import (
        InRange as InRange,
        IsIn as IsIn,
        Matches as Matches,
        NotNull as NotNull,
        NullRate as NullRate,
        Satisfies as Satisfies,
    )
    from lance_dagster.plugin.components import (
        LancePublisherComponent as LancePublisherComponent,
        LanceResourceComponent as LanceResourceComponent,
        LanceTablesComponent as LanceTablesComponent,
    )
    from lance_dagster.plugin.definitions import (
        LanceAssetsOptions as LanceAssetsOptions,
        lance_assets as lance_assets,
        validate_definitions as validate_definitions,
    )
    from lance_dagster.plugin.io.io_manager import (
        LanceIOManager as LanceIOManager,
    )
    from lance_dagster.plugin.io.partition_values import (
        PartitionFilter as PartitionFilter,
    )
    from lance_dagster.plugin.operate.branch_sweeper import (
        SweeperOptions as SweeperOptions,
        build_branch_sweeper as build_branch_sweeper,
    )
    from lance_dagster.plugin.operate.discovery_sensor import (
        build_discovery_sensor as build_discovery_sensor,
    )
    from lance_dagster.plugin.operate.maintenance_job import (
        MaintenanceConfig as MaintenanceConfig,
        MaintenanceJob as MaintenanceJob,
        MaintenanceOptions as MaintenanceOptions,
        build_maintenance_job as build_maintenance_job,
    )
    from lance_dagster.plugin.operate.pipes_session import (
        PipesTable as PipesTable,
        pipes_extras as pipes_extras,
        pipes_table as pipes_table,
    )
    from lance_dagster.plugin.operate.protected_branch_sensor import (
        build_protected_branch_sensor as build_protected_branch_sensor,
    )
    from lance_dagster.plugin.operate.ref_sensor import (
        SensorOptions as SensorOptions,
        build_ref_sensor as build_ref_sensor,
        ref_asset_specs as ref_asset_specs,
    )
    from lance_dagster.plugin.operate.waiting_check import (
        build_waiting_checks as build_waiting_checks,
    )
    from lance_dagster.plugin.provider_options import (
        AzureOptions as AzureOptions,
        GoogleOptions as GoogleOptions,
        S3Options as S3Options,
    )
    from lance_dagster.plugin.publish.promoted_asset import (
        candidate_audited as candidate_audited,
        newer_than as newer_than,
        promoted_asset_spec as promoted_asset_spec,
        tag_moved as tag_moved,
    )
    from lance_dagster.plugin.publish.publish_config import (
        PublishConfig as PublishConfig,
        Rollback as Rollback,
    )
    from lance_dagster.plugin.publish.publisher import (
        PublisherOptions as PublisherOptions,
        build_publisher as build_publisher,
    )
    from lance_dagster.plugin.resource import (
        LanceResource as LanceResource,
        PinnedTable as PinnedTable,
        SparkResource as SparkResource,
    )
    from lance_dagster.plugin.run_branch import (
        RunBranch as RunBranch,
        RunChain as RunChain,
    )
    from lance_dagster.plugin.settings import (
        WriteMode as WriteMode,
    )
    from lance_dagster.plugin.table_asset import (
        TableAddress as TableAddress,
    )

_HOMES = {
    "checks.change_checks": ("Freshness", "NoSchemaChange", "RowCountChange", "SchemaIs"),
    "checks.check_definitions": ("build_table_checks", "table_check"),
    "checks.evaluation": ("check_values", "evaluate_check", "open_candidate"),
    "checks.row_checks": ("KeysExist", "RowCount", "Unique"),
    "checks.table_check": ("Audit", "BoundCheck", "CheckOutcome", "TableCheck"),
    "checks.value_checks": ("InRange", "IsIn", "Matches", "NotNull", "NullRate", "Satisfies"),
    "components": ("LancePublisherComponent", "LanceResourceComponent", "LanceTablesComponent"),
    "definitions": ("LanceAssetsOptions", "lance_assets", "validate_definitions"),
    "io.io_manager": ("LanceIOManager",),
    "io.partition_values": ("PartitionFilter",),
    "operate.branch_sweeper": ("SweeperOptions", "build_branch_sweeper"),
    "operate.discovery_sensor": ("build_discovery_sensor",),
    "operate.maintenance_job": ("MaintenanceConfig", "MaintenanceJob", "MaintenanceOptions", "build_maintenance_job"),
    "operate.pipes_session": ("PipesTable", "pipes_extras", "pipes_table"),
    "operate.protected_branch_sensor": ("build_protected_branch_sensor",),
    "operate.ref_sensor": ("SensorOptions", "build_ref_sensor", "ref_asset_specs"),
    "operate.waiting_check": ("build_waiting_checks",),
    "provider_options": ("AzureOptions", "GoogleOptions", "S3Options"),
    "publish.promoted_asset": ("candidate_audited", "newer_than", "promoted_asset_spec", "tag_moved"),
    "publish.publish_config": ("PublishConfig", "Rollback"),
    "publish.publisher": ("PublisherOptions", "build_publisher"),
    "resource": ("LanceResource", "PinnedTable", "SparkResource"),
    "run_branch": ("RunBranch", "RunChain"),
    "settings": ("WriteMode",),
    "table_asset": ("TableAddress",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = tuple(_HOME_OF)  # one list of names, kept above


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'lance_dagster.plugin' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)


DagsterLibraryRegistry.register("lance-dagster", __version__, is_dagster_package=False)
