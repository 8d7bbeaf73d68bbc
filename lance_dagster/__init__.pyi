# The public names, each with the module that defines it. Type checkers read this list, and `__init__.py` loads a name
# from its module when the name is first used.

from lance_dagster.datafiles.writing import (
    StagedFile as StagedFile,
    StagedFiles as StagedFiles,
    WriteTarget as WriteTarget,
    write_files as write_files,
)
from lance_dagster.diff.diff import Diff as Diff, RowCounts as RowCounts
from lance_dagster.diff.manifest_diff import (
    ChangeKind as ChangeKind,
    FragmentChange as FragmentChange,
    IndexChange as IndexChange,
    IndexChangeKind as IndexChangeKind,
    IndexShape as IndexShape,
    KeyChange as KeyChange,
)
from lance_dagster.diff.row_comparison import RowDifferences as RowDifferences
from lance_dagster.diff.schema_diff import FieldChange as FieldChange, FieldChangeKind as FieldChangeKind
from lance_dagster.edit.compaction import CompactionGoal as CompactionGoal
from lance_dagster.edit.compaction_plan import CompactionGroup as CompactionGroup, CompactionPlan as CompactionPlan
from lance_dagster.edit.creation import CreateOptions as CreateOptions
from lance_dagster.edit.index_status import IndexStatus as IndexStatus
from lance_dagster.edit.move_files import FileMove as FileMove, FileMoveOptions as FileMoveOptions
from lance_dagster.edit.staged_upsert import StagedUpsert as StagedUpsert
from lance_dagster.edit.upsert import When as When
from lance_dagster.edit.write_result import WriteResult as WriteResult
from lance_dagster.errors import (
    AlreadyExistsError as AlreadyExistsError,
    BasePathRefusedError as BasePathRefusedError,
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
    NotDurableError as NotDurableError,
    NotEnoughMemoryError as NotEnoughMemoryError,
    NotFoundError as NotFoundError,
    PermissionRefusedError as PermissionRefusedError,
    ProtectedError as ProtectedError,
    PublishRefusedError as PublishRefusedError,
    Reason as Reason,
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
from lance_dagster.format import transaction
from lance_dagster.format.model import (
    BasePath as BasePath,
    DataFile as DataFile,
    DeletionFile as DeletionFile,
    Field as Field,
    Fragment as Fragment,
    IndexFile as IndexFile,
    IndexMetadata as IndexMetadata,
)
from lance_dagster.format.transaction import Transaction as Transaction
from lance_dagster.gc.garbage_report import FileCount as FileCount, GarbageReport as GarbageReport
from lance_dagster.history.log import LogFilter as LogFilter
from lance_dagster.history.refs.protection import Protection as Protection
from lance_dagster.history.refs.ref_files import Branch as Branch, BranchState as BranchState, Tag as Tag
from lance_dagster.history.refs.tag_hold import TagHold as TagHold
from lance_dagster.history.refs.tag_operations import TagMove as TagMove
from lance_dagster.history.table_uri import split_table_uri as split_table_uri, table_uri as table_uri
from lance_dagster.history.versions import Version as Version
from lance_dagster.merge.merge_commit import MergeMode as MergeMode
from lance_dagster.merge.preview import MergePreview as MergePreview
from lance_dagster.merge.rules.strategy import (
    Conflict as Conflict,
    ConflictKind as ConflictKind,
    Strategy as Strategy,
    Winner as Winner,
)
from lance_dagster.page.lake_page import PageOptions as PageOptions, lake_page as lake_page
from lance_dagster.placement.clone import CloneOptions as CloneOptions
from lance_dagster.placement.relocate import (
    RelocateOptions as RelocateOptions,
    Relocation as Relocation,
    Repointed as Repointed,
)
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
from lance_dagster.plugin.checks.row_checks import KeysExist as KeysExist, RowCount as RowCount, Unique as Unique
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
from lance_dagster.plugin.io.io_manager import LanceIOManager as LanceIOManager
from lance_dagster.plugin.io.partition_values import PartitionFilter as PartitionFilter
from lance_dagster.plugin.operate.branch_sweeper import (
    SweeperOptions as SweeperOptions,
    build_branch_sweeper as build_branch_sweeper,
)
from lance_dagster.plugin.operate.discovery_sensor import build_discovery_sensor as build_discovery_sensor
from lance_dagster.plugin.operate.maintenance_job import (
    MaintenanceConfig as MaintenanceConfig,
    MaintenanceJob as MaintenanceJob,
    MaintenanceOptions as MaintenanceOptions,
    build_maintenance_job as build_maintenance_job,
)
from lance_dagster.plugin.operate.page_asset import (
    PageAssetOptions as PageAssetOptions,
    build_page_asset as build_page_asset,
)
from lance_dagster.plugin.operate.pipes_session import (
    PipesTable as PipesTable,
    pipes_extras as pipes_extras,
    pipes_table as pipes_table,
)
from lance_dagster.plugin.operate.ref_sensor import (
    SensorOptions as SensorOptions,
    build_protected_branch_sensor as build_protected_branch_sensor,
    build_ref_sensor as build_ref_sensor,
    ref_asset_specs as ref_asset_specs,
)
from lance_dagster.plugin.operate.tiers import Tier as Tier
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
from lance_dagster.plugin.publish.publish_config import PublishConfig as PublishConfig, Rollback as Rollback
from lance_dagster.plugin.publish.publisher import (
    PublisherOptions as PublisherOptions,
    build_publisher as build_publisher,
)
from lance_dagster.plugin.resource import (
    LanceResource as LanceResource,
    PinnedTable as PinnedTable,
    SparkResource as SparkResource,
)
from lance_dagster.plugin.run_branch import RunBranch as RunBranch, RunChain as RunChain
from lance_dagster.plugin.settings import WriteMode as WriteMode
from lance_dagster.plugin.table_asset import TableAddress as TableAddress
from lance_dagster.repository.adoption import Adopted as Adopted, AdoptedChannel as AdoptedChannel
from lance_dagster.repository.candidate_status import (
    CandidateTable as CandidateTable,
    WaitingCandidate as WaitingCandidate,
)
from lance_dagster.repository.candidates.audits import Verdict as Verdict
from lance_dagster.repository.candidates.number_set import NumberSet as NumberSet
from lance_dagster.repository.candidates.record import CandidateRecord as CandidateRecord
from lance_dagster.repository.candidates.writes import (
    CandidateWrites as CandidateWrites,
    ClosedWrites as ClosedWrites,
    RecordedWrite as RecordedWrite,
    WriteRequest as WriteRequest,
)
from lance_dagster.repository.channel_moves import Channel as Channel, TableMove as TableMove
from lance_dagster.repository.channels import (
    AdvanceOptions as AdvanceOptions,
    Channels as Channels,
    PromoteOptions as PromoteOptions,
    RollbackOptions as RollbackOptions,
)
from lance_dagster.repository.collect_commits import (
    CommitRetention as CommitRetention,
    RepositoryGarbage as RepositoryGarbage,
)
from lance_dagster.repository.commits.repository_tags import RepositoryTag as RepositoryTag
from lance_dagster.repository.commits.snapshot import (
    ChannelHold as ChannelHold,
    RefEntry as RefEntry,
    RepositoryCommit as RepositoryCommit,
    TableVersion as TableVersion,
)
from lance_dagster.repository.free_space import FreedSpace as FreedSpace
from lance_dagster.repository.projection import Lagging as Lagging, RepositoryTags as RepositoryTags
from lance_dagster.repository.publish.exact_versions import (
    VersionOptions as VersionOptions,
    VersionToPublish as VersionToPublish,
)
from lance_dagster.repository.publish.publish_branch import Published as Published, PublishOptions as PublishOptions
from lance_dagster.repository.record_branches import (
    BranchWrites as BranchWrites,
    RecordedBranches as RecordedBranches,
)
from lance_dagster.repository.repository import LanceRepository as LanceRepository
from lance_dagster.repository.repository_namespace import RepositoryNamespace as RepositoryNamespace
from lance_dagster.repository.repository_status import (
    ChannelState as ChannelState,
    RepositoryStatus as RepositoryStatus,
    TableState as TableState,
)
from lance_dagster.repository.snapshot_diff import RepositoryDiff as RepositoryDiff, TableDiff as TableDiff
from lance_dagster.repository.view import RepositoryView as RepositoryView, TableView as TableView
from lance_dagster.spark.change_rows import read_changes as read_changes
from lance_dagster.spark.java import ensure_java as ensure_java
from lance_dagster.spark.keyed_rows import (
    UpsertOptions as UpsertOptions,
    delete_keys as delete_keys,
    stage_upsert as stage_upsert,
    upsert_frame as upsert_frame,
)
from lance_dagster.spark.save import SaveMode as SaveMode, SaveOptions as SaveOptions, write_table as write_table
from lance_dagster.spark.session import local_session as local_session
from lance_dagster.spark.source import (
    LanceDataSource as LanceDataSource,
    narrow as narrow,
    read_table as read_table,
    table_view as table_view,
)
from lance_dagster.spark.spark_compaction import compact_table as compact_table
from lance_dagster.spark.spark_schema import target_schema as target_schema
from lance_dagster.spark.streaming.stream_sink import upsert_batches as upsert_batches
from lance_dagster.spark.writer import StageOptions as StageOptions, large_batches as large_batches, stage as stage
from lance_dagster.table.branches import Branches as Branches
from lance_dagster.table.columns import Columns as Columns
from lance_dagster.table.config import Config as Config
from lance_dagster.table.maintenance import Maintenance as Maintenance
from lance_dagster.table.status import RefStatus as RefStatus, TableStatus as TableStatus
from lance_dagster.table.table import LanceTable as LanceTable
from lance_dagster.table.tags import Tags as Tags
from lance_dagster.verify.manifest_rules import Problem as Problem
from lance_dagster.verify.verify import VerifyReport as VerifyReport

# The operations of a `Transaction` have general names, such as `Merge`, so they stay in a module of their own.
operations = transaction
