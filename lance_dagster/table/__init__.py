"""The public table object, its namespaces and the values they return."""

from lance_dagster.diff.diff import Diff, RowCounts
from lance_dagster.merge.preview import MergePreview
from lance_dagster.placement.relocate import Relocation, Repointed
from lance_dagster.table.branches import Branches
from lance_dagster.table.columns import Columns
from lance_dagster.table.config import Config
from lance_dagster.table.maintenance import Maintenance
from lance_dagster.table.status import RefStatus, TableStatus
from lance_dagster.table.table import LanceTable
from lance_dagster.table.tags import Tags
from lance_dagster.verify.verify import VerifyReport

__all__ = [
    "Branches",
    "Columns",
    "Config",
    "Diff",
    "LanceTable",
    "Maintenance",
    "MergePreview",
    "RefStatus",
    "Relocation",
    "Repointed",
    "RowCounts",
    "TableStatus",
    "Tags",
    "VerifyReport",
]
