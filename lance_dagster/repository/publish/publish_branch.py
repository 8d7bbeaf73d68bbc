"""Publish the changes of a branch to its tables: one commit of `main`, then the steps that follow it.

A crash after the commit loses nothing: a publication of the same branch finds the commit and completes the missing
steps. The branch ends last, so as long as it exists, `status` shows that steps may be missing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

from lance_dagster.errors import InvalidInputError, NotFoundError, PublishRefusedError, RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import string_list
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.repository.channel_moves import DEFAULT_CHANNEL, Channel
from lance_dagster.repository.channels import Channels
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.projection import Lagging, land_tables, settle_tables
from lance_dagster.repository.publish.commit_tables import (
    AuditStaged,
    CommitRequest,
    CommittedTables,
    commit_tables,
    run_audit,
)
from lance_dagster.repository.publish.forks import (
    MERGED,
    BranchEnd,
    ForkedTables,
    branch_heads,
    forked_tables,
    has_more,
    refuse_lost,
)
from lance_dagster.repository.publish.staging import Staging, stage_merge
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.store import together

# How many tables a text names, so that it fits on a screen.
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
        versions: The version of each table that was asked for; the commit names a newer one where `main` has one.
    """

    commit: RepositoryCommit
    changed: Mapping[str, TableVersion] = field(default_factory=dict, repr=False)
    channel: Channel | None = None
    lagging: tuple[Lagging, ...] = ()
    kept: tuple[str, ...] = ()
    versions: Mapping[str, TableVersion] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Return a line for the commit, one for the channel, and one for each step that is missing."""
        names = sorted(self.changed)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        said = ", ".join(f"{name} {self.changed[name]}" for name in names[:_SHOWN])
        lines = [f"main: {self.commit}", f"changed: {said or 'nothing'}{more}"]
        if self.channel is not None:
            lines.append(f"channel {self.channel.name}: {self.channel.commit[:12]}")
        left = [f"lags behind: {each}" for each in self.lagging] + [f"kept: {each}" for each in self.kept]
        return "\n".join([*lines, *left[:_SHOWN], *([f"and {len(left) - _SHOWN} more"] if len(left) > _SHOWN else [])])


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
        mains: By table, the newest version of its `main`; None where there is none.
        newest: The newest entry of `main`.
        commit: The commit that it names.
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
        cls, repository: RepositoryContext, wanted: PublishRequest, tables: tuple[str, ...] | None
    ) -> "OpenedBranch":
        """Read the channel, the branch and `main`, and then the tables; errors as for `publish_branch`."""
        logs = repository.logs

        def read_channel() -> RefEntry | None:
            # Refused before anything is merged: a refusal after the commit would leave `main` ahead of the channel.
            channels, name = Channels(repository), wanted.channel
            return None if name is None else channels.refuse_immovable(name, create=wanted.creates_channel)

        def read_main() -> tuple[RefEntry, RepositoryCommit]:
            newest = logs.current("branch", MAIN)
            return newest, logs.commit(newest.commit)

        # The newest entry of the branch is also needed when it ended the branch, because it names the commit.
        since, ((entry, marks), (newest, commit)) = together(
            logs.store, read_channel, lambda: together(logs.store, lambda: logs.forked(wanted.branch), read_main)
        )
        forked = forked_tables(repository, entry, marks, commit, wanted=tables)
        heads = branch_heads(repository, wanted.branch, forked)
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
    wanted: PublishRequest,
    *,
    tables: Iterable[str] | None,
    audit: AuditStaged | None,
) -> Published:
    """Merge a branch of many tables into `main`, all of them at once or none, and do the steps that follow the commit.

    Raises:
        RefNotFoundError: There is no such branch, or no such channel; or no commit has a table that the audit reads.
        InvalidInputError: The branch is `main`, or an option has a wrong type.
        PublishRefusedError: Tables have lost the branch that they were forked to; nothing was merged.
        MergeConflictError: Tables cannot be merged; it has the conflicts of all of them, and nothing is visible.
        ProtectedError: The channel is held; nothing was merged.
        ConflictError: The channel was rolled back meanwhile; the commit is on `main`, and the branch stays.
    """
    if wanted.branch == MAIN:
        raise InvalidInputError("branches are published to main; use `commit` for versions on main of the tables")
    names, ended = None if tables is None else tuple(tables), None
    while True:
        try:
            return _published(repository, wanted, OpenedBranch.read(repository, wanted, names), audit)
        except (NotFoundError, PublishRefusedError):
            # Another publication may have published and deleted the branch while this one read it. Then the newest
            # entry of the branch names the commit, which the next attempt finds.
            newest = repository.logs.newest("branch", wanted.branch)
            if newest is None or MERGED not in newest.properties or newest == ended:
                raise
            ended = newest


def _published(
    repository: RepositoryContext, wanted: PublishRequest, opened: OpenedBranch, audit: AuditStaged | None
) -> Published:
    """Publish a branch as it was read; errors as for `publish_branch`."""
    branch = wanted.branch
    refuse_lost(repository, branch, opened.forked, opened.heads)
    merged = None if opened.entry is None else opened.entry.properties.get(MERGED)
    if merged is not None and not has_more(repository, opened.heads, merged=merged):
        # The branch was published before. That publication may have died before it updated `main` of each table, the
        # channel and the branches of the tables, so these idempotent steps are repeated.
        return _finished(repository, wanted, opened, _published_before(repository, opened, merged))
    if not opened.forked.names and not opened.forked.removed:
        raise RefNotFoundError(branch, [], repository.root, "branch", "no table was forked to it; name the tables")
    staging = Staging(repository.registry)
    request = _request(repository, wanted, opened, staging=staging, audit=audit)
    done = commit_tables(repository.logs, request)
    # A later commit may have removed a table of the branch.
    names = tuple(name for name in opened.forked.names if name in done.commit.tables)
    return _finished(repository, wanted, opened, Committed(done=done, staging=staging, head=done.commit, names=names))


def _request(
    repository: RepositoryContext,
    wanted: PublishRequest,
    opened: OpenedBranch,
    *,
    staging: Staging,
    audit: AuditStaged | None,
) -> CommitRequest:
    """Return the request for the commit of a branch."""
    branch, merging, names = wanted.branch, wanted.merging, opened.forked.names

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        source = opened.heads[name]
        if source is not None:
            change = staging.change(name, dest, sources=(source,), options=merging)
            # What was read at the beginning is outdated where the repository has another version of the table since.
            is_recent = dest == opened.commit.tables.get(name)
            return stage_merge(replace(change, main=opened.mains[name] if is_recent else None), dest)
        if name in opened.forked.ids:
            # The process that forked the table died between the mark and the branch, so nothing was written there.
            return None
        # The caller named the table, and the name is likely to be wrong.
        error = repository.table(name).refs.branch_not_found(branch)
        uri = repository.table(name).uri
        raise RefNotFoundError(branch, error.known, uri, "branch", f"{name} was not forked to it")

    def look(tables: Mapping[str, TableVersion]) -> None:
        # A version that has landed may have left its branch, and the audit reads it where it is.
        run_audit(audit, {name: staging.present(name, at) for name, at in tables.items()}) if audit else None

    return CommitRequest(
        branch=MAIN,
        stage=stage,
        names=names,
        message=merging.message or "",
        properties={**merging.properties, "branch": branch},
        audit=None if audit is None else look,
        reads=_reads(repository, wanted, {*opened.commit.tables, *names}),
        # Saves two requests. Where `main` moved since, the put of the entry fails and the next attempt reads it again.
        since=opened.newest,
        staging=staging,
        channel=wanted.channel or "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit that has the changes of a branch, and the steps that follow it.

    Attributes:
        done: The commit.
        staging: What this process staged for it.
        head: The commit up to which `main` of tables is brought: the commit itself, or a newer one.
        names: These tables.
    """

    done: CommittedTables
    staging: Staging
    head: RepositoryCommit
    names: tuple[str, ...]


def _published_before(repository: RepositoryContext, opened: OpenedBranch, merged: str) -> Committed:
    """Return the earlier commit of a branch; `main` of the tables that it changed is brought up to the newest one."""
    commit, head = repository.logs.commit(merged), opened.commit
    try:
        parent = repository.logs.commit(commit.parents[0]) if commit.parents else None
    except NotFoundError:
        # The commit was collected, because the publication was long ago. Then all tables are checked.
        parent = None
    # The commit is checked too: the first attempt may have ended the branch of a table whose `main` lags behind.
    names = head.tables.keys() & {*opened.forked.names, *commit.changed_from(parent)}
    done = CommittedTables(commit=commit, changed={})
    return Committed(done=done, staging=Staging(repository.registry), head=head, names=tuple(sorted(names)))


def _reads(repository: RepositoryContext, wanted: PublishRequest, known: Collection[str]) -> tuple[str, ...]:
    reads = string_list("reads", wanted.options.get("reads", ()), "shop/orders")
    # If it were left out, an audit would pass without the table that it has to read.
    for name in reads:
        if name not in known:
            raise RefNotFoundError(name, sorted(known), repository.root, "committed table")
    return reads


def _finished(
    repository: RepositoryContext, wanted: PublishRequest, opened: OpenedBranch, committed: Committed
) -> Published:
    """Do the steps that follow a commit: `main` of the tables, the channel, and the end of the branch.

    The marks of the branch go last. As long as there is one, `status` shows that steps may be missing, and a repeated
    publication completes all that a crash left undone.
    """
    commit, staging, retires = committed.done.commit, committed.staging, wanted.options.get("retire", True)
    end = BranchEnd(
        repository=repository,
        branch=wanted.branch,
        forked=opened.forked,
        heads=opened.heads,
        merged=commit.id,
        known=opened.entry,
    )
    # A strategy was given for the commit itself, and not for a newer one.
    strategy = wanted.merging.strategy if committed.head.id == commit.id else None

    def delete() -> dict[str, str]:
        settle_tables(staging, committed.head, committed.names)
        return end.delete() if retires else {}

    # `main` before the channel: the tags of the tables then name versions of `main`, and not of branches beside it. The
    # branch of a table is deleted only after the log says which commit has it: otherwise it would seem to be lost.
    lagging, _ = together(
        repository.store,
        lambda: land_tables(staging, committed.head, committed.names, strategy=strategy),
        lambda: end.record() if retires else None,
    )
    channel, kept = together(repository.store, lambda: _promoted(repository, wanted, opened, commit), delete)
    if retires:
        end.unmark(kept)
    removed = [
        f"{wanted.branch} of {name}: the table was removed from the repository; the branch stays in its files"
        for name in sorted(opened.forked.removed.values())
    ]
    return Published(
        commit=commit,
        changed={name: staging.present(name, at) for name, at in committed.done.changed.items()},
        channel=channel,
        lagging=lagging + (() if channel is None else channel.lagging),
        kept=(*kept.values(), *removed),
    )


def _promoted(
    repository: RepositoryContext, wanted: PublishRequest, opened: OpenedBranch, commit: RepositoryCommit
) -> Channel | None:
    """Promote the channel, if there is one."""
    if wanted.channel is None:
        return None
    return Channels(repository).promote(
        wanted.channel,
        commit.id,
        reason=wanted.merging.message or "",
        properties=wanted.options.get("properties"),
        # A publication that was overtaken must not take the channel back to its own commit.
        forward_only=True,
        since=opened.since,
        create=wanted.creates_channel,
    )
