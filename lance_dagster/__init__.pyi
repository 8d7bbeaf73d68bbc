# The names that users type, each with the module that defines it. Type checkers read this list, and `__init__.py` loads
# a name from its module when the name is first used. The types of what they take and return are in `types.pyi`.

from lance_dagster.datafiles.writing import StagedFiles as StagedFiles, write_files as write_files
from lance_dagster.diff.diff import Diff as Diff
from lance_dagster.edit.write_result import WriteResult as WriteResult
from lance_dagster.errors import (
    AlreadyExistsError as AlreadyExistsError,
    CommitStateUnknownError as CommitStateUnknownError,
    ConflictError as ConflictError,
    FormatError as FormatError,
    InvalidInputError as InvalidInputError,
    LanceDagsterError as LanceDagsterError,
    MergeConflictError as MergeConflictError,
    NotFoundError as NotFoundError,
    ProtectedError as ProtectedError,
    PublishRefusedError as PublishRefusedError,
    RefMovedError as RefMovedError,
    RefNotFoundError as RefNotFoundError,
    SchemaMismatchError as SchemaMismatchError,
    StoreError as StoreError,
    TableNotFoundError as TableNotFoundError,
)
from lance_dagster.format import transaction
from lance_dagster.format.transaction import Transaction as Transaction
from lance_dagster.gc.garbage_report import GarbageReport as GarbageReport
from lance_dagster.history.log import LogFilter as LogFilter
from lance_dagster.history.refs.ref_files import Branch as Branch, Tag as Tag
from lance_dagster.history.versions import Version as Version
from lance_dagster.merge.preview import MergePreview as MergePreview
from lance_dagster.merge.rules.strategy import Conflict as Conflict
from lance_dagster.page.lake_page import lake_page as lake_page
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
from lance_dagster.plugin.checks.evaluation import open_candidate as open_candidate
from lance_dagster.plugin.checks.row_checks import KeysExist as KeysExist, RowCount as RowCount, Unique as Unique
from lance_dagster.plugin.checks.table_check import (
    Audit as Audit,
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
from lance_dagster.plugin.definitions import lance_assets as lance_assets, validate_definitions as validate_definitions
from lance_dagster.plugin.io.io_manager import LanceIOManager as LanceIOManager
from lance_dagster.plugin.operate.branch_sweeper import build_branch_sweeper as build_branch_sweeper
from lance_dagster.plugin.operate.discovery_sensor import build_discovery_sensor as build_discovery_sensor
from lance_dagster.plugin.operate.maintenance_job import Tier as Tier, build_maintenance_job as build_maintenance_job
from lance_dagster.plugin.operate.page_asset import build_page_asset as build_page_asset
from lance_dagster.plugin.operate.pipes_session import pipes_extras as pipes_extras, pipes_table as pipes_table
from lance_dagster.plugin.operate.ref_sensor import (
    build_protected_branch_sensor as build_protected_branch_sensor,
    build_ref_sensor as build_ref_sensor,
    ref_asset_specs as ref_asset_specs,
)
from lance_dagster.plugin.operate.waiting_check import build_waiting_checks as build_waiting_checks
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
from lance_dagster.plugin.publish.publisher import build_publisher as build_publisher
from lance_dagster.plugin.resource import (
    LanceResource as LanceResource,
    PinnedTable as PinnedTable,
    SparkResource as SparkResource,
)
from lance_dagster.repository.repository import LanceRepository as LanceRepository
from lance_dagster.repository.repository_namespace import RepositoryNamespace as RepositoryNamespace
from lance_dagster.spark.change_rows import read_changes as read_changes
from lance_dagster.spark.keyed_rows import delete_keys as delete_keys, upsert_frame as upsert_frame
from lance_dagster.spark.save import SaveMode as SaveMode, write_table as write_table
from lance_dagster.spark.session import local_session as local_session
from lance_dagster.spark.source import (
    LanceDataSource as LanceDataSource,
    narrow as narrow,
    read_table as read_table,
    table_view as table_view,
)
from lance_dagster.spark.spark_compaction import compact_table as compact_table
from lance_dagster.spark.streaming.stream_sink import upsert_batches as upsert_batches
from lance_dagster.spark.writer import stage as stage
from lance_dagster.table.table import LanceTable as LanceTable

# The operations of a `Transaction` have general names, such as `Merge`, so they stay in a module of their own.
operations = transaction
