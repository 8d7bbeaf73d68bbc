"""Repositories of many tables that are committed, published and promoted together, using only object storage."""

from lance_dagster.repository.adoption import Adopted, AdoptedChannel
from lance_dagster.repository.candidates.audits import Verdict
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.record import CandidateRecord
from lance_dagster.repository.candidates.writes import (
    WRITE_MARK,
    ClosedWrites,
    RecordedWrite,
    WriteChanges,
    WriteMode,
    WriteRequest,
    excluded_by,
    published_twin,
)
from lance_dagster.repository.channel_moves import DEFAULT_CHANNEL, Channel
from lance_dagster.repository.channels import AdvanceOptions, Channels, PromoteOptions, RollbackOptions
from lance_dagster.repository.collect_commits import CommitRetention, RepositoryGarbage
from lance_dagster.repository.commits.release_tags import ReleaseTag
from lance_dagster.repository.commits.resolve_commit import RESTORES
from lance_dagster.repository.commits.snapshot import ChannelHold, RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.projection import COMMIT, Lagging, Releases
from lance_dagster.repository.publish.exact_versions import VersionToPublish
from lance_dagster.repository.publish.publish_branch import Published, PublishOptions
from lance_dagster.repository.repository import LanceRepository
from lance_dagster.repository.repository_status import ChannelState, RepositoryStatus, TableState
from lance_dagster.repository.snapshot_diff import RepositoryDiff, TableDiff
from lance_dagster.repository.view import RepositoryView, TableView

__all__ = [
    "COMMIT",
    "DEFAULT_CHANNEL",
    "RESTORES",
    "WRITE_MARK",
    "Adopted",
    "AdoptedChannel",
    "AdvanceOptions",
    "CandidateRecord",
    "Channel",
    "ChannelHold",
    "ChannelState",
    "Channels",
    "ClosedWrites",
    "CommitRetention",
    "Lagging",
    "LanceRepository",
    "NumberSet",
    "PromoteOptions",
    "PublishOptions",
    "Published",
    "RecordedWrite",
    "RefEntry",
    "ReleaseTag",
    "Releases",
    "RepositoryCommit",
    "RepositoryDiff",
    "RepositoryGarbage",
    "RepositoryStatus",
    "RepositoryView",
    "RollbackOptions",
    "TableDiff",
    "TableState",
    "TableVersion",
    "TableView",
    "Verdict",
    "VersionToPublish",
    "WriteChanges",
    "WriteMode",
    "WriteRequest",
    "excluded_by",
    "published_twin",
]
