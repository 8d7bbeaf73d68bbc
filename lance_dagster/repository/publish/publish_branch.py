"""Publish the changes of a branch to its tables: one commit of `main`, then the steps that follow it.

A crash after the commit loses nothing: a publication of the same branch finds the commit and completes the missing
steps. The branch ends last, so as long as it exists, `status` shows that steps may be missing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

from lance_dagster.errors import InvalidInputError, NotFoundError, RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import string_list
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.merge.rules import Strategy
from lance_dagster.repository.channel_moves import DEFAULT_CHANNEL, Channel
from lance_dagster.repository.channels import Channels
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.projection import Lagging, land_tables
from lance_dagster.repository.publish.commit_tables import AuditStaged, CommitRequest, CommittedTables, commit_tables
from lance_dagster.repository.publish.forks import (
    MERGED,
    TouchedTables,
    end_branch,
    has_more,
    head_of_branch,
    touched_tables,
)
from lance_dagster.repository.publish.staging import Staging, stage_merge
from lance_dagster.repository.registry import RepositoryContext

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
        MergeConflictError: Tables cannot be merged; it has the conflicts of all of them, and nothing is visible.
        ProtectedError: The channel is held; nothing was merged.
        ConflictError: The channel was rolled back meanwhile; the commit is on `main`, and the branch stays.
    """
    if wanted.branch == MAIN:
        raise InvalidInputError("branches are published to main; use `commit` for versions on main of the tables")
    since = None
    if wanted.channel is not None:
        # Refused before anything is merged: a refusal after the commit would leave `main` ahead of the channel.
        since = Channels(repository).refuse_immovable(wanted.channel, create=wanted.creates_channel)
    logs, branch, merging = repository.logs, wanted.branch, wanted.merging
    # Not `current`: the newest entry is also needed when it ended the branch, because it names the commit.
    ended = logs.newest("branch", branch)
    newest = logs.current("branch", MAIN)
    head = logs.commit(newest.commit)
    touched = touched_tables(repository, branch, head, None if tables is None else tuple(tables))
    names = touched.names
    merged = None if ended is None else ended.properties.get(MERGED)
    if merged is not None and not has_more(repository, branch, merged=merged, names=names):
        # The branch was published before. That publication may have died before it updated `main` of each table, the
        # channel and the branches of the tables, so these idempotent steps are repeated.
        published = _landed_again(repository, wanted, touched, merged=merged, head=head)
        return _followed(repository, wanted, published, touched, ended=ended, since=since)
    if not names and not touched.removed:
        raise RefNotFoundError(branch, [], repository.root, "branch", "no table was forked to it; name the tables")

    staging = Staging(repository.registry)

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        try:
            # The newest version at this moment. Rows that are committed to the branch later are not published, and
            # `end_branch` keeps the branch because of them.
            source = head_of_branch(repository.table(name), name, branch)
            change = staging.change(name, dest, sources=(source,), options=merging)
        except RefNotFoundError:
            if tables is None:
                # The process that forked the table died between the mark and the branch, so nothing was written there.
                # A table that the caller named is another case: there the name is likely to be wrong.
                return None
            raise
        return stage_merge(change, dest)

    request = CommitRequest(
        branch=MAIN,
        stage=stage,
        names=names,
        message=merging.message or "",
        properties={**merging.properties, "branch": branch},
        audit=audit,
        reads=_reads(repository, wanted, {*head.tables, *names}),
        # Saves two requests. Where `main` moved since, the put of the entry fails and the next attempt reads it again.
        since=newest,
        staging=staging,
    )
    done = commit_tables(logs, request)
    published = _landed(staging, wanted, touched, done)
    return _followed(repository, wanted, published, touched, ended=ended, since=since)


def _landed(staging: Staging, wanted: PublishRequest, touched: TouchedTables, done: CommittedTables) -> Published:
    """Bring `main` of the tables up to a commit that was just made."""
    # A later commit may have removed a table that the branch touched.
    present = [name for name in touched.names if name in done.commit.tables]
    # Before the channel: the tags of the tables then name versions of `main`, and not of branches beside it.
    landed = land_tables(staging, done.commit, present, strategy=wanted.merging.strategy)
    return Published(commit=done.commit, changed=done.changed, lagging=landed)


def _landed_again(
    repository: RepositoryContext,
    wanted: PublishRequest,
    touched: TouchedTables,
    *,
    merged: str,
    head: RepositoryCommit,
) -> Published:
    """Bring `main` of the tables that an earlier commit changed up to the newest one."""
    commit = repository.logs.commit(merged)
    try:
        parent = repository.logs.commit(commit.parents[0]) if commit.parents else None
    except NotFoundError:
        # The commit was collected, because the publication was long ago. Then all tables are checked.
        parent = None
    # The commit is checked too: the first attempt may have ended the branch of a table whose `main` lags behind.
    names = head.tables.keys() & {*touched.names, *commit.changed_from(parent)}
    strategy = wanted.merging.strategy if head.id == merged else None
    landed = land_tables(Staging(repository.registry), head, sorted(names), strategy=strategy)
    return Published(commit=commit, lagging=landed)


def _reads(repository: RepositoryContext, wanted: PublishRequest, known: Collection[str]) -> tuple[str, ...]:
    reads = string_list("reads", wanted.options.get("reads", ()), "shop/orders")
    # If it were left out, an audit would pass without the table that it has to read.
    for name in reads:
        if name not in known:
            raise RefNotFoundError(name, sorted(known), repository.root, "committed table")
    return reads


def _followed(
    repository: RepositoryContext,
    wanted: PublishRequest,
    published: Published,
    touched: TouchedTables,
    *,
    ended: RefEntry | None,
    since: RefEntry | None,
) -> Published:
    """Do the last steps of a publication, after `main` of the tables: promote the channel, and end the branch.

    `ended` and `since` are the newest entries of the branch and of the channel, as they were before.
    """
    options, commit = wanted.options, published.commit
    left = tuple(
        f"{wanted.branch} of {name}: the table was removed from the repository; the branch stays in its files"
        for name in sorted(touched.removed.values())
    )
    published = replace(published, kept=left)
    if wanted.channel is not None:
        moved = Channels(repository).promote(
            wanted.channel,
            commit.id,
            reason=wanted.merging.message or "",
            properties=options.get("properties"),
            # A publication that was overtaken must not take the channel back to its own commit.
            forward_only=True,
            since=since,
            create=wanted.creates_channel,
        )
        published = replace(published, channel=moved, lagging=published.lagging + moved.lagging)
    if not options.get("retire", True):
        return published
    # Last: as long as the branch exists, a repeated publication completes all steps above that a crash left undone.
    kept = end_branch(repository, wanted.branch, touched, merged=commit.id, known=ended)
    return replace(published, kept=(*kept, *left))
