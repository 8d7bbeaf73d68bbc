"""What a publisher needs beyond `publish`: exact versions, the writes of runs, readers that stay at a commit."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Unpack

from lance_dagster.errors import ConflictError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_options, string_list
from lance_dagster.history.context import Properties
from lance_dagster.history.versions import Version
from lance_dagster.repository.candidates.closed_writes import WriteChanges
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.projection import FollowingTag, Lagging, land_tables, project, settle_tables
from lance_dagster.repository.publish.commit_tables import CommitRequest, commit_tables, run_audit, stage_nothing
from lance_dagster.repository.publish.exact_versions import (
    PlanAgain,
    VersionOptions,
    VersionToPublish,
    exact_request,
    version_in,
    write_changes,
)
from lance_dagster.repository.publish.publish_branch import Published
from lance_dagster.repository.publish.staging import Staging
from lance_dagster.repository.recorded_writes import is_merged, mark_of, writes_of
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.repository.view import RepositoryView, TableView
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True)
class Publications:
    """The publications of one repository: `repository.publications`."""

    _repository: RepositoryContext

    def newest_read(self) -> RepositoryCommit | None:
        """Return the newest commit of `main` that this object has read or made, without a request; None for none."""
        return self._repository.logs.newest_read()

    def publish_versions(
        self,
        versions: Mapping[str, VersionToPublish],
        *,
        plan_again: PlanAgain,
        message: str,
        audit: Callable[[Mapping[str, TableView]], None] | None = None,
        reads: Iterable[str] = (),
        **options: Unpack[VersionOptions],
    ) -> Published:
        """Commit versions of tables exactly as they are, all at once, and bring `main` of each table up to them.

        Args:
            versions: By table, a version that contains everything `main` of the table has, or a version of `main`.
            plan_again: A function that is called with the name of a table whose `main` moved meanwhile, and returns
                another version.
            message: The commit message.
            audit: A function that raises to refuse the commit. It gets the versions that the commit would have of the
                tables in `versions` and in `reads`, and is called again when an attempt has other versions of them.
            reads: Other tables that the audit reads. Tables that no commit has yet are left out.
            **options: `properties` are kept with the commit. `channel` is the channel that the caller promotes the
                commit to next; another publisher does so if the caller dies.

        Raises:
            ConflictError: `main` of a table moved again and again; or a recorded write was closed meanwhile, or adds
                rows that `main` has; nothing is visible.
        """
        current, registry = dict(versions), self._repository.registry
        check_options(self.publish_versions, options, VersionOptions)
        properties = options.get("properties") or {}
        request = exact_request(registry, current, plan_again, message=message, properties=properties)
        request = replace(request, writes=write_changes(self._repository, current), channel=options.get("channel", ""))
        if audit is not None:

            def audit_views(tables: Mapping[str, TableVersion]) -> None:
                run_audit(audit, {name: TableView(name, at, registry) for name, at in tables.items()})

            request = replace(request, audit=audit_views, reads=string_list("reads", reads, "shop/orders"))
        committed = commit_tables(self._repository.logs, request)
        # The tags do not move: the caller promotes the audited versions by `channels.advance`.
        staging = request.staging or Staging(registry)
        lagging = land_tables(staging, committed.commit, current)
        settle_tables(staging, committed.commit, current)
        landed_versions = {
            name: version_in(registry, committed.commit, name, version) for name, version in current.items()
        }
        return Published(commit=committed.commit, changed=committed.changed, lagging=lagging, versions=landed_versions)

    def commit_with(self, write: RecordedWrite) -> RepositoryCommit | None:
        """Return the commit of `main` that published a recorded write; None where `main` does not have its rows.

        This takes two requests where the newest commit published the write; otherwise a binary search in the log of
        `main`.
        """

        def has(commit: RepositoryCommit) -> bool:
            return write.table_id in commit.writes and write.number in commit.writes[write.table_id].published

        head = self._repository.resolve(MAIN)
        if not has(head):
            return None
        logs = self._repository.logs

        def commit(number: int) -> RepositoryCommit | None:
            # Old commits may be collected; then the oldest commit that still exists and has the write is returned.
            with suppress(NotFoundError):
                return logs.commit(logs.entry("branch", MAIN, number).commit)
            return None

        with suppress(NotFoundError):
            if not head.parents or not has(logs.commit(head.parents[0])):
                return head
        numbers = sorted(logs.numbers("branch", MAIN))
        first = bisect_left(numbers, x=True, key=lambda number: (at := commit(number)) is not None and has(at))
        return commit(numbers[first])

    def discard_writes(
        self, writes: Iterable[RecordedWrite], *, message: str, properties: Properties = None
    ) -> RepositoryCommit:
        """Commit that recorded writes will never be published, as `drop_writes` does, or refuse where one is published.

        Raises:
            ConflictError: A write was published meanwhile; the other writes are dropped.
        """
        discarded = list(writes)
        commit = self.drop_writes(discarded, message=message, properties=properties)
        published = [str(write) for write in discarded if write.number in commit.writes[write.table_id].published]
        if published:
            raise ConflictError(
                f"{', '.join(published)} was published by commit {commit.short_id} or before it, so it cannot be "
                "discarded: roll back to an older version instead"
            )
        return commit

    def is_merged(self, write: RecordedWrite) -> bool:
        """Tell whether somebody merged the branch of a recorded write into `main` without a publication."""
        return is_merged(self._repository, write)

    def mark_of(self, table: LanceTable, version: Version) -> str | None:
        """Return the mark of the recorded write that wrote the rows of a version; None if no record exists."""
        return mark_of(self._repository, table.uri, version)

    def writes_of(self, table: LanceTable, versions: Iterable[Version]) -> list[RecordedWrite]:
        """Return the recorded writes that wrote the rows of versions of a table, in the order of the versions.

        Raises:
            ConflictError: The record of a write was collected, so nobody can tell whether its rows are published.
        """
        return writes_of(self._repository, table.uri, versions)

    def drop_writes(
        self,
        writes: Iterable[RecordedWrite],
        *,
        merged: Iterable[RecordedWrite] = (),
        message: str,
        properties: Properties = None,
    ) -> RepositoryCommit:
        """Commit that recorded writes will never be published; writes that are closed stay as they are.

        The commit changes no table. Where a publication of a write is under way, the first of the two commits in the
        log of `main` decides: either the publication is refused, or the write is published and not dropped.

        Args:
            writes: The recorded writes.
            merged: Recorded writes that count as published, because somebody merged their branches into `main` of the
                tables without a publication.
            message: The commit message, such as the reason.
            properties: Kept with the commit.
        """
        changes = WriteChanges(publish=tuple(merged), drop=tuple(writes), related=self._repository.record.candidate)
        request = CommitRequest(
            branch=MAIN, stage=stage_nothing, names=(), message=message, properties=properties or {}, writes=changes
        )
        return commit_tables(self._repository.logs, request).commit

    def pinned(self, reader: str | None, channel: str) -> RepositoryView | None:
        """Return all tables as a channel named them at a reader's first request; None when there is no such channel.

        All processes of a reader, such as the steps of a run, read the same commit this way.

        Args:
            reader: A name of the reader, such as the id of its run; None to see what the channel names now.
            channel: The channel.
        """
        commit = None if reader is None else self._repository.logs.pinned(reader, channel)
        if commit is None:
            newest = self._repository.logs.newest("channel", channel)
            if newest is None or newest.deleted:
                return None
            # The channel may move between the reads of two steps of a run; the pin that was put first counts for both.
            commit = newest.commit if reader is None else self._repository.logs.pin(reader, channel, newest.commit)
        return RepositoryView(self._repository.logs.commit(commit), self._repository.registry)

    def pin_again(self, reader: str, channel: str, commit: str) -> None:
        """Pin a reader of a channel to another commit, because it published that commit itself."""
        self._repository.logs.pin_again(reader, channel, commit)

    def follow(self, channel: str, tables: Iterable[str]) -> tuple[Lagging, ...]:
        """Bring `main` and the tags of some tables up to a channel; return what could not be brought up.

        The process that moved the channel may have died before this step. Tables that the channel does not name, and a
        channel that does not exist, are skipped.
        """
        newest = self._repository.logs.newest("channel", channel)
        if newest is None or newest.deleted:
            return ()
        commit = self._repository.logs.commit(newest.commit)
        names = [name for name in tables if name in commit.tables]
        tag = FollowingTag(name=channel, hold=newest.hold)
        lagging = land_tables(Staging(self._repository.registry), commit, names)
        return lagging + project(self._repository.registry, commit, names, tag)

    def land(self, commit: RepositoryCommit, tables: Iterable[str]) -> tuple[Lagging, ...]:
        """Bring `main` of some tables up to the repository; return the tables that could not be brought up.

        The process that made the commit may have died before this step. The tags that kept the versions of the commit
        until they landed are dropped, so that the branches of the versions may be deleted.

        Args:
            commit: The commit of the process that died.
            tables: The tables, all of them in the commit.
        """
        head, staging = self._repository.resolve(MAIN), Staging(self._repository.registry)
        names = [name for name in tables if name in head.tables]
        lagging = land_tables(staging, head, names)
        settle_tables(staging, commit, names)
        return lagging
