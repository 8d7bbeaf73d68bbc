"""Data versioning for Lance tables, run by Dagster.

The public names are loaded when they are first used: an executor that only writes data files imports neither Dagster
nor Spark.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_dagster.datafiles import (
        StagedFile as StagedFile,
        StagedFiles as StagedFiles,
        WriteTarget as WriteTarget,
        write_files as write_files,
    )
    from lance_dagster.diff.manifest_diff import (
        ChangeKind as ChangeKind,
        FragmentChange as FragmentChange,
        IndexChange as IndexChange,
        IndexChangeKind as IndexChangeKind,
        IndexShape as IndexShape,
        KeyChange as KeyChange,
    )
    from lance_dagster.diff.schema_diff import FieldChange as FieldChange, FieldChangeKind as FieldChangeKind
    from lance_dagster.edit.index_status import IndexStatus as IndexStatus
    from lance_dagster.edit.write_result import WriteResult as WriteResult
    from lance_dagster.errors import (
        AlreadyExistsError as AlreadyExistsError,
        Call as Call,
        CommitConflictError as CommitConflictError,
        CommitStateUnknownError as CommitStateUnknownError,
        ConditionalPutUnsupportedError as ConditionalPutUnsupportedError,
        ConflictError as ConflictError,
        CorruptFileError as CorruptFileError,
        FormatError as FormatError,
        InvalidInputError as InvalidInputError,
        InvalidRefNameError as InvalidRefNameError,
        LanceDagsterError as LanceDagsterError,
        MergeConflictError as MergeConflictError,
        MissingExtraError as MissingExtraError,
        NotFoundError as NotFoundError,
        ProtectedError as ProtectedError,
        PublishRefusedError as PublishRefusedError,
        RefMovedError as RefMovedError,
        RefNotFoundError as RefNotFoundError,
        RefSyntaxError as RefSyntaxError,
        Remedy as Remedy,
        SchemaMismatchError as SchemaMismatchError,
        StoreError as StoreError,
        TableNotFoundError as TableNotFoundError,
        UnsupportedFeatureError as UnsupportedFeatureError,
        VersionNotFoundError as VersionNotFoundError,
    )
    from lance_dagster.format.model import (
        BasePath as BasePath,
    )
    from lance_dagster.format.transaction import (
        Transaction as Transaction,
    )
    from lance_dagster.gc.collect import FileCount as FileCount, GarbageReport as GarbageReport
    from lance_dagster.history.log import (
        LogFilter as LogFilter,
    )
    from lance_dagster.history.refs.protection import Protection as Protection
    from lance_dagster.history.refs.ref_store import Branch as Branch, Tag as Tag
    from lance_dagster.history.refs.tag_hold import TagHold as TagHold
    from lance_dagster.history.refs.tag_operations import TagMove as TagMove
    from lance_dagster.history.table_uri import split_table_uri as split_table_uri, table_uri as table_uri
    from lance_dagster.history.versions import (
        Version as Version,
    )
    from lance_dagster.merge.merge_commit import MergeMode as MergeMode
    from lance_dagster.merge.rules.strategy import (
        Conflict as Conflict,
        ConflictKind as ConflictKind,
        Strategy as Strategy,
        Winner as Winner,
    )
    from lance_dagster.plugin import (
        Audit as Audit,
        BoundCheck as BoundCheck,
        CheckOutcome as CheckOutcome,
        Freshness as Freshness,
        InRange as InRange,
        IsIn as IsIn,
        KeysExist as KeysExist,
        LanceAssetsOptions as LanceAssetsOptions,
        LanceIOManager as LanceIOManager,
        LancePublisherComponent as LancePublisherComponent,
        LanceResource as LanceResource,
        LanceResourceComponent as LanceResourceComponent,
        LanceTablesComponent as LanceTablesComponent,
        MaintenanceConfig as MaintenanceConfig,
        MaintenanceJob as MaintenanceJob,
        Matches as Matches,
        NoSchemaChange as NoSchemaChange,
        NotNull as NotNull,
        NullRate as NullRate,
        PartitionFilter as PartitionFilter,
        PinnedTable as PinnedTable,
        PipesTable as PipesTable,
        PublishConfig as PublishConfig,
        PublisherOptions as PublisherOptions,
        Rollback as Rollback,
        RowCount as RowCount,
        RowCountChange as RowCountChange,
        RunBranch as RunBranch,
        RunChain as RunChain,
        S3Options as S3Options,
        Satisfies as Satisfies,
        SchemaIs as SchemaIs,
        SparkResource as SparkResource,
        TableAddress as TableAddress,
        TableCheck as TableCheck,
        Unique as Unique,
        WriteMode as WriteMode,
        build_branch_sweeper as build_branch_sweeper,
        build_discovery_sensor as build_discovery_sensor,
        build_maintenance_job as build_maintenance_job,
        build_publisher as build_publisher,
        build_ref_sensor as build_ref_sensor,
        build_table_checks as build_table_checks,
        candidate_audited as candidate_audited,
        check_values as check_values,
        evaluate_check as evaluate_check,
        lance_assets as lance_assets,
        newer_than as newer_than,
        open_candidate as open_candidate,
        pipes_extras as pipes_extras,
        pipes_table as pipes_table,
        promoted_asset_spec as promoted_asset_spec,
        ref_asset_specs as ref_asset_specs,
        table_check as table_check,
        tag_moved as tag_moved,
        validate_definitions as validate_definitions,
    )
    from lance_dagster.repository import (
        Channel as Channel,
        ChannelHold as ChannelHold,
        ChannelState as ChannelState,
        Lagging as Lagging,
        LanceRepository as LanceRepository,
        Published as Published,
        PublishOptions as PublishOptions,
        RefEntry as RefEntry,
        ReleaseTag as ReleaseTag,
        RepositoryCommit as RepositoryCommit,
        RepositoryDiff as RepositoryDiff,
        RepositoryStatus as RepositoryStatus,
        RepositoryView as RepositoryView,
        TableDiff as TableDiff,
        TableState as TableState,
        TableVersion as TableVersion,
        TableView as TableView,
    )
    from lance_dagster.spark import (
        LanceDataSource as LanceDataSource,
        SaveMode as SaveMode,
        SaveOptions as SaveOptions,
        StageOptions as StageOptions,
        ensure_java as ensure_java,
        large_batches as large_batches,
        local_session as local_session,
        read_table as read_table,
        stage as stage,
        target_schema as target_schema,
        write_table as write_table,
    )
    from lance_dagster.table import (
        Diff as Diff,
        LanceTable as LanceTable,
        MergePreview as MergePreview,
        RefStatus as RefStatus,
        Relocation as Relocation,
        Repointed as Repointed,
        RowCounts as RowCounts,
        TableStatus as TableStatus,
        VerifyReport as VerifyReport,
    )
    from lance_dagster.verify.manifest_rules import Problem as Problem

_HOMES = {
    "lance_dagster.datafiles": ("StagedFile", "StagedFiles", "WriteTarget", "write_files"),
    "lance_dagster.diff.manifest_diff": (
        "ChangeKind",
        "FragmentChange",
        "IndexChange",
        "IndexChangeKind",
        "IndexShape",
        "KeyChange",
    ),
    "lance_dagster.diff.schema_diff": ("FieldChange", "FieldChangeKind"),
    "lance_dagster.edit.index_status": ("IndexStatus",),
    "lance_dagster.edit.write_result": ("WriteResult",),
    "lance_dagster.errors": (
        "AlreadyExistsError",
        "Call",
        "CommitConflictError",
        "CommitStateUnknownError",
        "ConditionalPutUnsupportedError",
        "ConflictError",
        "CorruptFileError",
        "FormatError",
        "InvalidInputError",
        "InvalidRefNameError",
        "LanceDagsterError",
        "MergeConflictError",
        "MissingExtraError",
        "NotFoundError",
        "ProtectedError",
        "PublishRefusedError",
        "RefMovedError",
        "RefNotFoundError",
        "RefSyntaxError",
        "Remedy",
        "SchemaMismatchError",
        "StoreError",
        "TableNotFoundError",
        "UnsupportedFeatureError",
        "VersionNotFoundError",
    ),
    "lance_dagster.format.model": ("BasePath",),
    "lance_dagster.format.transaction": ("Transaction",),
    "lance_dagster.gc.collect": ("FileCount", "GarbageReport"),
    "lance_dagster.history.log": ("LogFilter",),
    "lance_dagster.history.refs.protection": ("Protection",),
    "lance_dagster.history.refs.ref_store": ("Branch", "Tag"),
    "lance_dagster.history.refs.tag_hold": ("TagHold",),
    "lance_dagster.history.refs.tag_operations": ("TagMove",),
    "lance_dagster.history.table_uri": ("split_table_uri", "table_uri"),
    "lance_dagster.history.versions": ("Version",),
    "lance_dagster.merge.merge_commit": ("MergeMode",),
    "lance_dagster.merge.rules.strategy": ("Conflict", "ConflictKind", "Strategy", "Winner"),
    "lance_dagster.plugin": (
        "Audit",
        "BoundCheck",
        "CheckOutcome",
        "Freshness",
        "InRange",
        "IsIn",
        "KeysExist",
        "LanceAssetsOptions",
        "LanceIOManager",
        "LanceResource",
        "MaintenanceConfig",
        "MaintenanceJob",
        "Matches",
        "NoSchemaChange",
        "NotNull",
        "NullRate",
        "PartitionFilter",
        "PinnedTable",
        "PublishConfig",
        "PublisherOptions",
        "Rollback",
        "RowCount",
        "RowCountChange",
        "RunBranch",
        "RunChain",
        "Satisfies",
        "SchemaIs",
        "S3Options",
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
        "check_values",
        "evaluate_check",
        "open_candidate",
        "lance_assets",
        "promoted_asset_spec",
        "ref_asset_specs",
        "validate_definitions",
        "table_check",
        "PipesTable",
        "pipes_extras",
        "pipes_table",
        "candidate_audited",
        "newer_than",
        "tag_moved",
        "LancePublisherComponent",
        "LanceResourceComponent",
        "LanceTablesComponent",
    ),
    "lance_dagster.spark": (
        "LanceDataSource",
        "SaveMode",
        "SaveOptions",
        "StageOptions",
        "ensure_java",
        "large_batches",
        "local_session",
        "read_table",
        "stage",
        "target_schema",
        "write_table",
    ),
    "lance_dagster.repository": (
        "TableDiff",
        "RepositoryDiff",
        "TableState",
        "RepositoryStatus",
        "ChannelState",
        "Channel",
        "ChannelHold",
        "Lagging",
        "LanceRepository",
        "Published",
        "PublishOptions",
        "RefEntry",
        "ReleaseTag",
        "RepositoryCommit",
        "RepositoryView",
        "TableVersion",
        "TableView",
    ),
    "lance_dagster.table": (
        "Diff",
        "LanceTable",
        "MergePreview",
        "Relocation",
        "Repointed",
        "RowCounts",
        "RefStatus",
        "TableStatus",
        "VerifyReport",
    ),
    "lance_dagster.verify.manifest_rules": ("Problem",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = tuple(_HOME_OF)  # one list of names, kept above


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'lance_dagster' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
