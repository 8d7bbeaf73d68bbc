# The types of what the names of `lance_dagster` take and return, each with the module that defines it.

from lance_dagster.datafiles.writing import StagedFile as StagedFile, WriteTarget as WriteTarget
from lance_dagster.diff.diff import RowCounts as RowCounts
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
from lance_dagster.format.model import (
    BasePath as BasePath,
    DataFile as DataFile,
    DeletionFile as DeletionFile,
    Field as Field,
    Fragment as Fragment,
    IndexFile as IndexFile,
    IndexMetadata as IndexMetadata,
)
from lance_dagster.format.partition_scope import PartitionScope as PartitionScope
from lance_dagster.gc.garbage_report import FileCount as FileCount
from lance_dagster.history.refs.protection import Protection as Protection
from lance_dagster.history.refs.ref_files import BranchState as BranchState
from lance_dagster.history.refs.tag_hold import TagHold as TagHold
from lance_dagster.history.refs.tag_operations import TagMove as TagMove
from lance_dagster.merge.merge_commit import MergeMode as MergeMode
from lance_dagster.merge.rules.strategy import ConflictKind as ConflictKind, Strategy as Strategy, Winner as Winner
from lance_dagster.page.lake_page import PageOptions as PageOptions
from lance_dagster.placement.clone import CloneOptions as CloneOptions
from lance_dagster.placement.relocate import (
    RelocateOptions as RelocateOptions,
    Relocation as Relocation,
    Repointed as Repointed,
)
from lance_dagster.plugin.checks.table_check import BoundCheck as BoundCheck
from lance_dagster.plugin.definitions import LanceAssetsOptions as LanceAssetsOptions
from lance_dagster.plugin.io.partition_values import PartitionFilter as PartitionFilter
from lance_dagster.plugin.operate.branch_sweeper import SweeperOptions as SweeperOptions
from lance_dagster.plugin.operate.maintenance_job import (
    MaintenanceConfig as MaintenanceConfig,
    MaintenanceJob as MaintenanceJob,
    MaintenanceOptions as MaintenanceOptions,
)
from lance_dagster.plugin.operate.page_asset import PageAssetOptions as PageAssetOptions
from lance_dagster.plugin.operate.pipes_session import PipesTable as PipesTable
from lance_dagster.plugin.operate.ref_sensor import SensorOptions as SensorOptions
from lance_dagster.plugin.publish.publish_config import PublishConfig as PublishConfig, Rollback as Rollback
from lance_dagster.plugin.publish.publisher import PublisherOptions as PublisherOptions
from lance_dagster.plugin.run_branch import RunBranch as RunBranch, RunChain as RunChain
from lance_dagster.plugin.settings import WriteMode as WriteMode
from lance_dagster.plugin.table_asset import TableAddress as TableAddress
from lance_dagster.repository.adoption import Adopted as Adopted, AdoptedChannel as AdoptedChannel
from lance_dagster.repository.candidate_status import (
    CandidateTable as CandidateTable,
    WaitingCandidate as WaitingCandidate,
)
from lance_dagster.repository.candidates.audits import Verdict as Verdict
from lance_dagster.repository.candidates.closed_writes import ClosedWrites as ClosedWrites
from lance_dagster.repository.candidates.number_set import NumberSet as NumberSet
from lance_dagster.repository.candidates.record import CandidateRecord as CandidateRecord
from lance_dagster.repository.candidates.writes import (
    CandidateWrites as CandidateWrites,
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
from lance_dagster.repository.maintenance import RepositoryMaintenance as RepositoryMaintenance
from lance_dagster.repository.projection import Lagging as Lagging, RepositoryTags as RepositoryTags
from lance_dagster.repository.publications import Publications as Publications
from lance_dagster.repository.publish.exact_versions import (
    VersionOptions as VersionOptions,
    VersionToPublish as VersionToPublish,
)
from lance_dagster.repository.publish.publish_branch import Published as Published, PublishOptions as PublishOptions
from lance_dagster.repository.record_branches import BranchWrites as BranchWrites, RecordedBranches as RecordedBranches
from lance_dagster.repository.repository_status import (
    ChannelState as ChannelState,
    RepositoryStatus as RepositoryStatus,
    TableState as TableState,
)
from lance_dagster.repository.snapshot_diff import RepositoryDiff as RepositoryDiff, TableDiff as TableDiff
from lance_dagster.repository.view import RepositoryView as RepositoryView, TableView as TableView
from lance_dagster.spark.keyed_rows import UpsertOptions as UpsertOptions
from lance_dagster.spark.save import SaveOptions as SaveOptions
from lance_dagster.spark.writer import StageOptions as StageOptions
from lance_dagster.table.branches import Branches as Branches
from lance_dagster.table.columns import Columns as Columns
from lance_dagster.table.config import Config as Config
from lance_dagster.table.maintenance import Maintenance as Maintenance
from lance_dagster.table.status import RefStatus as RefStatus, TableStatus as TableStatus
from lance_dagster.table.tags import Tags as Tags
from lance_dagster.verify.manifest_rules import Problem as Problem
from lance_dagster.verify.verify import VerifyReport as VerifyReport
