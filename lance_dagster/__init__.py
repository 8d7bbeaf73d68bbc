"""Data versioning for Lance tables, run by Dagster.

The public names are loaded when they are first used: an executor that only writes data files imports neither Dagster
nor Spark.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_dagster.datafiles import StagedFile, StagedFiles, WriteTarget, write_files
    from lance_dagster.history.refs import Branch, Tag
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_HOMES = {
    "lance_dagster.changes.merge": ("Conflict",),
    "lance_dagster.datafiles": ("StagedFile", "StagedFiles", "WriteTarget", "write_files"),
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
    "lance_dagster.history.refs": ("Branch", "Tag"),
    "lance_dagster.history.versions": ("Version",),
    "lance_dagster.table": ("LanceTable",),
    "lance_dagster.spark": ("LanceDataSource", "ensure_java", "local_session", "read_table", "stage"),
    "lance_dagster.plugin": (
        "InRange",
        "KeysExist",
        "LanceIOManager",
        "LanceResource",
        "NullRate",
        "RowCount",
        "RunBranch",
        "SparkResource",
        "Unique",
        "build_publisher",
        "build_ref_sensor",
        "build_table_checks",
        "ref_asset_specs",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'lance_dagster' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
