"""Data versioning for Lance tables, run by Dagster.

The public names are loaded when they are first used: an executor that only writes data files imports neither Dagster
nor Spark.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_dagster.changes.sides import (
        Conflict as Conflict,
    )
    from lance_dagster.datafiles import (
        StagedFile as StagedFile,
    )
    from lance_dagster.datafiles import (
        StagedFiles as StagedFiles,
    )
    from lance_dagster.datafiles import (
        WriteTarget as WriteTarget,
    )
    from lance_dagster.datafiles import (
        write_files as write_files,
    )
    from lance_dagster.errors import (
        AlreadyExistsError as AlreadyExistsError,
    )
    from lance_dagster.errors import (
        CommitConflictError as CommitConflictError,
    )
    from lance_dagster.errors import (
        CommitStateUnknownError as CommitStateUnknownError,
    )
    from lance_dagster.errors import (
        ConditionalPutUnsupportedError as ConditionalPutUnsupportedError,
    )
    from lance_dagster.errors import (
        ConflictError as ConflictError,
    )
    from lance_dagster.errors import (
        CorruptFileError as CorruptFileError,
    )
    from lance_dagster.errors import (
        FormatError as FormatError,
    )
    from lance_dagster.errors import (
        InvalidInputError as InvalidInputError,
    )
    from lance_dagster.errors import (
        InvalidRefNameError as InvalidRefNameError,
    )
    from lance_dagster.errors import (
        LanceDagsterError as LanceDagsterError,
    )
    from lance_dagster.errors import (
        MergeConflictError as MergeConflictError,
    )
    from lance_dagster.errors import (
        NotFoundError as NotFoundError,
    )
    from lance_dagster.errors import (
        PublishRefusedError as PublishRefusedError,
    )
    from lance_dagster.errors import (
        RefMovedError as RefMovedError,
    )
    from lance_dagster.errors import (
        RefNotFoundError as RefNotFoundError,
    )
    from lance_dagster.errors import (
        RefSyntaxError as RefSyntaxError,
    )
    from lance_dagster.errors import (
        SchemaMismatchError as SchemaMismatchError,
    )
    from lance_dagster.errors import (
        StoreError as StoreError,
    )
    from lance_dagster.errors import (
        TableNotFoundError as TableNotFoundError,
    )
    from lance_dagster.errors import (
        UnsupportedFeatureError as UnsupportedFeatureError,
    )
    from lance_dagster.errors import (
        VersionNotFoundError as VersionNotFoundError,
    )
    from lance_dagster.format.transaction import (
        Transaction as Transaction,
    )
    from lance_dagster.history.refs import (
        Branch as Branch,
    )
    from lance_dagster.history.refs import (
        Tag as Tag,
    )
    from lance_dagster.history.versions import (
        Version as Version,
    )
    from lance_dagster.plugin import (
        InRange as InRange,
    )
    from lance_dagster.plugin import (
        KeysExist as KeysExist,
    )
    from lance_dagster.plugin import (
        LanceIOManager as LanceIOManager,
    )
    from lance_dagster.plugin import (
        LanceResource as LanceResource,
    )
    from lance_dagster.plugin import (
        NotNull as NotNull,
    )
    from lance_dagster.plugin import (
        NullRate as NullRate,
    )
    from lance_dagster.plugin import (
        PinnedTable as PinnedTable,
    )
    from lance_dagster.plugin import (
        PublishConfig as PublishConfig,
    )
    from lance_dagster.plugin import (
        RowCount as RowCount,
    )
    from lance_dagster.plugin import (
        RunBranch as RunBranch,
    )
    from lance_dagster.plugin import (
        RunChain as RunChain,
    )
    from lance_dagster.plugin import (
        SparkResource as SparkResource,
    )
    from lance_dagster.plugin import (
        Unique as Unique,
    )
    from lance_dagster.plugin import (
        build_publisher as build_publisher,
    )
    from lance_dagster.plugin import (
        build_ref_sensor as build_ref_sensor,
    )
    from lance_dagster.plugin import (
        build_table_checks as build_table_checks,
    )
    from lance_dagster.plugin import (
        ref_asset_specs as ref_asset_specs,
    )
    from lance_dagster.spark import (
        LanceDataSource as LanceDataSource,
    )
    from lance_dagster.spark import (
        ensure_java as ensure_java,
    )
    from lance_dagster.spark import (
        local_session as local_session,
    )
    from lance_dagster.spark import (
        read_table as read_table,
    )
    from lance_dagster.spark import (
        stage as stage,
        target_schema as target_schema,
    )
    from lance_dagster.table import (
        LanceTable as LanceTable,
    )
    from lance_dagster.table import (
        MergePreview as MergePreview,
    )

_HOMES = {
    "lance_dagster.changes.sides": ("Conflict",),
    "lance_dagster.datafiles": (
        "StagedFile",
        "StagedFiles",
        "WriteTarget",
        "write_files",
    ),
    "lance_dagster.errors": (
        "AlreadyExistsError",
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
        "NotFoundError",
        "PublishRefusedError",
        "RefMovedError",
        "RefNotFoundError",
        "RefSyntaxError",
        "SchemaMismatchError",
        "StoreError",
        "TableNotFoundError",
        "UnsupportedFeatureError",
        "VersionNotFoundError",
    ),
    "lance_dagster.format.transaction": ("Transaction",),
    "lance_dagster.history.refs": (
        "Branch",
        "Tag",
    ),
    "lance_dagster.history.versions": ("Version",),
    "lance_dagster.plugin": (
        "InRange",
        "KeysExist",
        "LanceIOManager",
        "LanceResource",
        "NotNull",
        "NullRate",
        "PinnedTable",
        "PublishConfig",
        "RowCount",
        "RunBranch",
        "RunChain",
        "SparkResource",
        "Unique",
        "build_publisher",
        "build_ref_sensor",
        "build_table_checks",
        "ref_asset_specs",
    ),
    "lance_dagster.spark": (
        "LanceDataSource",
        "ensure_java",
        "local_session",
        "read_table",
        "stage",
        "target_schema",
    ),
    "lance_dagster.table": (
        "LanceTable",
        "MergePreview",
    ),
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
