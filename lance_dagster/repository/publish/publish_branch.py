"""Publish the changes of a branch to its tables: one commit of `main`, then the steps that follow it.

A crash after the commit loses nothing: a publication of the same branch finds the commit and completes the missing
steps. The branch ends last, so as long as it exists, `status` shows that steps may be missing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict

from lance_dagster.errors import InvalidInputError, NotFoundError, PublishRefusedError, RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import MERGE
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import full_log
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.repository.candidates.closed_writes import WriteChanges
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.channel_moves import DEFAULT_CHANNEL, Channel, ChannelMoves
from lance_dagster.repository.channels import Channels
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.projection import Lagging, land_tables, settle_tables
from lance_dagster.repository.publish.commit_tables import AuditStaged, CommitRequest, commit_tables, run_audit
from lance_dagster.repository.publish.forks import (
    MERGED,
    BranchEnd,
    ForkedTables,
    branch_heads,
    forked_tables,
    has_more,
    refuse_lost,
)
from lance_dagster.repository.publish.revert_commit import changed_by
from lance_dagster.repository.publish.staging import Staging, for_each_table, stage_merge
from lance_dagster.repository.recorded_writes import is_merged, writes_of
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.repository.run_branches import branch_as_typed, unknown_branch
from lance_dagster.store import together
from lance_dagster.table import LanceTable

# How many tables a text names, so that it fits on a screen.
_OF_MAIN = f"{MAIN}@"
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of a publication.

    Attributes:
        commit: The commit of `main` that has the changes.
        changed: The tables that it changed; none when everything was published before.
        channel: The channel that names the commit now, or None.
        lagging: The branches and tags of tables that could not be brought up to the commit; `repair` tries again.
        kept: The branches of tables that were not deleted, and why.
        versions: The version of each table that the caller published; where `main` has a newer version of a table, the
            commit names the newer version.
    """

    commit: RepositoryCommit
    changed: Mapping[str, TableVersion] = field(default_factory=dict, repr=False)
    channel: Channel | None = None
    lagging: tuple[Lagging, ...] = ()
    kept: tuple[str, ...] = ()
    versions: Mapping[str, TableVersion] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Return a line for the commit, a line for the channel, and a line for each step that is missing."""
        names = sorted(self.changed)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        changed = ", ".join(f"{name} {self.changed[name]}" for name in names[:_SHOWN])
        lines = [f"main: {self.commit}", f"changed: {changed or 'nothing'}{more}"]
        if self.channel is not None:
            lines.append(f"channel {self.channel.name}: {self.channel.commit[:12]}")
        missing = [f"lags behind: {ref}" for ref in self.lagging] + [f"kept: {branch}" for branch in self.kept]
        lines += missing[:_SHOWN]
        if len(missing) > _SHOWN:
            lines.append(f"and {len(missing) - _SHOWN} more")
        return "\n".join(lines)


class PublishOptions(TypedDict, total=False):
    """Options of a publication."""

    message: str
    properties: Mapping[str, str]
    strategy: Strategy
    retire: bool
    create_channel: bool
    reads: Iterable[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """A branch to publish, the channel to promote, and the options."""

    branch: str
    channel: str | None
    options: PublishOptions

    @property
    def creates_channel(self) -> bool:
        """Whether the channel may be a new one."""
        return self.options.get("create_channel", self.channel == DEFAULT_CHANNEL)

    @property
    def merging(self) -> MergeOptions:
        """The options of the merge of each table."""
        return MergeOptions(
            message=self.options.get("message") or f"publish {self.branch}",
            properties=self.options.get("properties") or {},
            strategy=self.options.get("strategy"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBranch:
    """A branch and what depends on it, as a publication has read them.

    Attributes:
        entry: The newest entry of the branch; None for a branch that was made in the tables themselves.
        forked: Its tables.
        heads: By table, the newest version of the branch; None where the table has no such branch.
        mains: By table, the newest version of its `main`; None where the table was deleted.
        newest: The newest entry of `main`.
        commit: The commit that `newest` names.
        since: The newest entry of the channel, or None.
    """

    entry: RefEntry | None
    forked: ForkedTables
    heads: Mapping[str, State | None]
    mains: Mapping[str, State | None]
    newest: RefEntry
    commit: RepositoryCommit
    since: RefEntry | None

    @classmethod
    def read(
        cls, repository: RepositoryContext, request: PublishRequest, tables: tuple[str, ...] | None
    ) -> "OpenedBranch":
        """Read the channel, the branch and `main`, and then the tables; errors as for `publish_branch`."""
        logs = repository.logs

        def read_channel() -> RefEntry | None:
            # Refused before anything is merged: a refusal after the commit would leave `main` ahead of the channel.
            channels, name = Channels(repository), request.channel
            return None if name is None else channels.refuse_immovable(name, create=request.creates_channel)

        def read_main() -> tuple[RefEntry, RepositoryCommit]:
            newest = logs.current("branch", MAIN)
            return newest, logs.commit(newest.commit)

        # The newest entry of the branch is also needed when it ended the branch, because it names the commit.
        since, ((entry, marks), (newest, commit)) = together(
            logs.store, read_channel, lambda: together(logs.store, lambda: logs.forked(request.branch), read_main)
        )
        forked = forked_tables(repository, entry, marks, commit, tables=tables)
        heads = branch_heads(repository, request.branch, forked)
        return cls(
            entry=entry,
            forked=forked,
            heads={name: head for name, (head, _) in heads.items()},
            mains={name: main for name, (_, main) in heads.items()},
            newest=newest,
            commit=commit,
            since=since,
        )


def publish_branch(
    repository: RepositoryContext,
    request: PublishRequest,
    *,
    tables: Iterable[str] | None,
    audit: AuditStaged | None,
) -> Published:
    """Merge a branch of many tables into `main`, all of them at once or none, and do the steps that follow the commit.

    Raises:
        RefNotFoundError: There is no such branch, or no such channel; or no commit has a table that the audit reads.
        InvalidInputError: The branch is `main`, or an option has a wrong type.
        PublishRefusedError: Tables have lost the branch that they were forked to; nothing was merged.
        MergeConflictError: Tables cannot be merged; the error has the conflicts of all tables, and nothing is visible.
        ProtectedError: The channel is held; nothing was merged.
        ConflictError: The channel was rolled back meanwhile; the commit is on `main`, and the branch stays.
    """
    if request.branch == MAIN:
        raise InvalidInputError(
            "main cannot be published, because branches are published to it; to commit versions of main, use `commit`"
        )
    request = replace(request, branch=branch_as_typed(repository, request.branch))
    names, ended = None if tables is None else tuple(tables), None
    while True:
        try:
            return _published(repository, request, OpenedBranch.read(repository, request, names), audit)
        except (NotFoundError, PublishRefusedError):
            # Another publication may have published and deleted the branch while this one read it. Then the newest
            # entry of the branch names the commit, which the next attempt finds.
            newest = repository.logs.newest("branch", request.branch)
            if newest is None or MERGED not in newest.properties or newest == ended:
                raise
            ended = newest


def _published(
    repository: RepositoryContext, request: PublishRequest, opened: OpenedBranch, audit: AuditStaged | None
) -> Published:
    """Publish a branch as it was read; errors as for `publish_branch`."""
    branch = request.branch
    refuse_lost(repository, branch, opened.forked, opened.heads)
    merged = None if opened.entry is None else opened.entry.properties.get(MERGED)
    if merged is not None and not has_more(repository, opened.heads, merged=merged):
        # An earlier publication of the branch may have died before it updated `main` of each table, the channel and the
        # branches of the tables, so these idempotent steps are repeated.
        return _finished(repository, request, opened, _published_before(repository, opened, merged))
    if not opened.forked.names and not opened.forked.removed:
        raise unknown_branch(repository, branch, "no table was forked to it: name the tables that have it")
    staging = Staging(repository.registry)
    committed_tables = commit_tables(
        repository.logs, _request(repository, request, opened, staging=staging, audit=audit)
    )
    commit = committed_tables.commit
    # A later commit may have removed a table of the branch.
    names = tuple(name for name in opened.forked.names if name in commit.tables)
    committed = Committed(commit=commit, changed=committed_tables.changed, staging=staging, head=commit, names=names)
    return _finished(repository, request, opened, committed)


def _request(
    repository: RepositoryContext,
    request: PublishRequest,
    opened: OpenedBranch,
    *,
    staging: Staging,
    audit: AuditStaged | None,
) -> CommitRequest:
    """Return the request for the commit of a branch."""
    branch, merging, names = request.branch, request.merging, opened.forked.names

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        source = opened.heads[name]
        if source is not None:
            change = staging.change(name, dest, sources=(source,), options=merging)
            # `opened.mains` is outdated where the repository got another version of the table since it was read.
            is_recent = dest == opened.commit.tables.get(name)
            return stage_merge(replace(change, main=opened.mains[name] if is_recent else None), dest)
        if name in opened.forked.ids:
            # The process that forked the table died between the mark and the branch, so nothing was written there.
            return None
        # The caller named the table, and the name is likely to be wrong.
        error = repository.table(name).refs.branch_not_found(branch)
        uri = repository.table(name).uri
        raise RefNotFoundError(branch, error.known, uri, "branch", f"{name} was not forked to it")

    def audit_present(tables: Mapping[str, TableVersion]) -> None:
        # The branch of a version that has landed may be deleted; then the audit reads the version on `main`.
        run_audit(audit, {name: staging.present(name, at) for name, at in tables.items()}) if audit else None

    return CommitRequest(
        branch=MAIN,
        stage=stage,
        names=names,
        message=merging.message or "",
        properties={**merging.properties, "branch": branch},
        audit=None if audit is None else audit_present,
        reads=_reads(repository, request, {*opened.commit.tables, *names}),
        # Saves two requests. Where `main` moved since, the put of the entry fails and the next attempt reads it again.
        since=opened.newest,
        writes=WriteChanges(
            publish=_recorded_writes(repository, opened),
            related=repository.record.candidate,
            is_merged=partial(is_merged, repository),
        ),
        staging=staging,
        channel=request.channel or "",
    )


def _recorded_writes(repository: RepositoryContext, opened: OpenedBranch) -> tuple[RecordedWrite, ...]:
    """Return the recorded writes whose rows a branch brings to `main`, also the writes of branches merged into it.

    The commit closes them, as every publication does: another attempt at the same rows is refused then.

    Raises:
        ConflictError: The record of a write was collected, so nobody can tell whether its rows are published.
    """

    def of_table(name: str) -> list[RecordedWrite]:
        head, context = opened.heads[name], repository.table(name)
        if head is None:
            return []
        newest = context.versions.describe(head)
        versions = LanceTable(context).branches.unmerged(newest)
        # Most branches have merged nothing but `main`, and then the log need not be read.
        if any(not version.properties.get(MERGE, _OF_MAIN).startswith(_OF_MAIN) for version in versions):
            versions = [version for version, _ in full_log(context, newest, after=MAIN, limit=None, only=None)]
        writes = writes_of(repository, context.uri, versions)
        # Of a table that was copied, the writes are those of the other table.
        own = repository.registry.id_of(name) if writes else None
        return [write for write in writes if write.table_id == own]

    return tuple(write for writes in for_each_table(of_table, opened.forked.names).values() for write in writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit that has the changes of a branch, and the steps that follow it.

    Attributes:
        commit: The commit.
        changed: The tables that it changed; none where an earlier publication made it.
        staging: The versions that this process staged for it.
        head: The commit up to which `main` of the tables in `names` is brought: the commit itself, or a newer commit.
        names: The tables whose `main` is brought up to `head`.
    """

    commit: RepositoryCommit
    changed: Mapping[str, TableVersion]
    staging: Staging
    head: RepositoryCommit
    names: tuple[str, ...]


def _published_before(repository: RepositoryContext, opened: OpenedBranch, merged: str) -> Committed:
    """Return the commit of an earlier publication; `main` of its tables is brought up to the newest commit."""
    commit, head = repository.logs.commit(merged), opened.commit
    try:
        parent = repository.logs.commit(commit.parents[0]) if commit.parents else None
    except NotFoundError:
        # The commit was collected, because the publication was long ago. Then all tables are checked.
        parent = None
    # Also the tables of the commit: the first attempt may have ended the branch of a table whose `main` lags behind.
    names = head.tables.keys() & {*opened.forked.names, *commit.changed_from(parent)}
    staging = Staging(repository.registry)
    return Committed(commit=commit, changed={}, staging=staging, head=head, names=tuple(sorted(names)))


def _reads(repository: RepositoryContext, request: PublishRequest, tables: Collection[str]) -> tuple[str, ...]:
    reads = string_list("reads", request.options.get("reads", ()), "shop/orders")
    # An unknown name is refused: the audit would pass without the table that it has to read.
    for name in reads:
        if name not in tables:
            raise RefNotFoundError(name, sorted(tables), repository.root, "committed table")
    return reads


def _finished(
    repository: RepositoryContext, request: PublishRequest, opened: OpenedBranch, committed: Committed
) -> Published:
    """Do the steps that follow a commit: `main` of the tables, the channel, and the end of the branch.

    The marks of the branch are deleted last. As long as a mark exists, `status` shows that steps may be missing, and a
    repeated publication completes the steps that are missing after a crash.
    """
    commit, staging, retires = committed.commit, committed.staging, request.options.get("retire", True)
    end = BranchEnd(
        repository=repository,
        branch=request.branch,
        forked=opened.forked,
        heads=opened.heads,
        merged=commit.id,
        newest=opened.entry,
    )
    # The caller gave the strategy for this commit, and not for a newer commit.
    strategy = request.merging.strategy if committed.head.id == commit.id else None

    def delete() -> dict[str, str]:
        settle_tables(staging, committed.head, committed.names)
        return end.delete() if retires else {}

    # `main` before the channel: the tags of the tables then name versions of `main`, and not of run branches. The
    # branch of a table is deleted only after the log names the commit with its rows: otherwise it would count as lost.
    lagging, _ = together(
        repository.store,
        lambda: land_tables(staging, committed.head, committed.names, strategy=strategy),
        lambda: end.record() if retires else None,
    )
    channel, refusals = together(repository.store, lambda: _promoted(repository, request, opened, commit), delete)
    if retires:
        end.unmark(refusals)
    removed = [
        f"{request.branch} of {name}: the table was removed from the repository; the branch stays in its files"
        for name in sorted(opened.forked.removed.values())
    ]
    return Published(
        commit=commit,
        changed={name: staging.present(name, at) for name, at in committed.changed.items()},
        channel=channel,
        lagging=lagging + (() if channel is None else channel.lagging),
        kept=(*refusals.values(), *removed),
    )


def _promoted(
    repository: RepositoryContext, request: PublishRequest, opened: OpenedBranch, commit: RepositoryCommit
) -> Channel | None:
    """Promote the channel, if there is one."""
    if request.channel is None:
        return None
    channels = Channels(repository)
    reason, properties = request.merging.message or "", request.options.get("properties")
    # `main` may still have what a rollback took back, also in a newer version by another program. Readers get the other
    # tables, where they see no commit in part.
    if opened.since is not None and (staying := _rolled_back(repository, opened.since, commit)):
        tables = commit.tables.keys() - staying
        if not ChannelMoves(repository).divided(request.channel, opened.since, tables, commit):
            return channels.advance(
                request.channel, commit.id, tables, reason=reason, properties=properties, since=opened.since
            )
    # This refuses what was taken back.
    return channels.promote(
        request.channel,
        commit.id,
        reason=reason,
        properties=properties,
        # Where a later publication was faster, this one must not move the channel back to its own commit.
        forward_only=True,
        since=opened.since,
        create=request.creates_channel,
    )


def _rolled_back(repository: RepositoryContext, since: RefEntry, commit: RepositoryCommit) -> set[str]:
    """Return the tables of a commit that a rollback took back from a channel, and that the commit did not change."""
    if not since.withdrawn:
        return set()
    returning = ChannelMoves(repository).returning(since, commit.tables).keys()
    changed = changed_by(repository, commit, commit)
    return {
        name
        for name, at in commit.tables.items()
        if name in returning or (at.id in since.withdrawn and name not in changed)
    }
