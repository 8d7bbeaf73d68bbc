"""Move a channel by the next entry of its log, and bring the Lance tags of the tables up to it.

The entry is one put-if-absent, and moves all tables for readers of the channel. The Lance tags of the tables follow,
one table after the other. Where a process dies before all tags have moved, the remaining tags are moved when the call
is repeated, by the next move that changes their tables, or by `repair`.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from lance_dagster.errors import (
    Call,
    ConflictError,
    NotFoundError,
    ProtectedError,
    RefNotFoundError,
    Remedy,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs.ref_names import check_tag_name
from lance_dagster.repository.commits.promotions import by_id, changed_versions, moved_tables
from lance_dagster.repository.commits.ref_log import next_entry
from lance_dagster.repository.commits.repository_tags import refuse_taken
from lance_dagster.repository.commits.snapshot import ChannelHold, Moves, RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.projection import FollowingTag, Lagging, project
from lance_dagster.repository.registry import RepositoryContext

DEFAULT_CHANNEL = "production"
"""The channel that the first publication to it creates; any other name is created explicitly."""
TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMove:
    """The version of one table that readers of a channel see before and after a rollback; None for no version."""

    name: str
    before: TableVersion | None
    after: TableVersion | None

    @property
    def is_move(self) -> bool:
        """Whether the version changes."""
        return self.before != self.after

    def __str__(self) -> str:
        """Return the table and both versions."""
        before, after = ("no version" if at is None else at.on_main for at in (self.before, self.after))
        return f"{self.name}: {before} -> {after}" if self.is_move else f"{self.name}: {before} stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel: its name, its commit, and the newest entry of its log.

    Attributes:
        name: The name.
        commit: The id of the commit.
        entry: The newest entry of its log.
        lagging: The tags of tables that could not be brought up to the channel.
        moves: For a rollback, and for its dry run, each table that goes back, with the version before and after; empty
            where the rollback was made before.
        left: For a rollback of some tables, the tables that stay, although a withdrawn promotion moved them too. Where
            a promotion moved `a` and `b`, a rollback of `a` leaves `b`.
    """

    name: str
    commit: str
    entry: RefEntry
    lagging: tuple[Lagging, ...] = ()
    moves: tuple[TableMove, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def hold(self) -> ChannelHold | None:
        """The hold that keeps the channel from moving, or None."""
        return self.entry.hold


@dataclass(frozen=True, slots=True)
class ChannelMoves:
    """The moves of the channels of one repository."""

    _repository: RepositoryContext

    def move(
        self,
        name: str,
        decide: Callable[[RefEntry | None], RefEntry | None],
        *,
        create: bool = False,
        tags: bool = True,
    ) -> Channel:
        """Append the entry that `decide` returns for the newest entry; None leaves the channel as it is.

        Raises:
            RefNotFoundError: There is no such channel, and `create` is False.
        """
        check_tag_name(name)
        for _ in range(TRIES):
            newest = self._newest(name, create=create)
            # `decide` gets None for a deleted channel, so that it does not compare with the commit of that channel.
            before = None if newest is None or newest.deleted else newest
            entry = decide(before)
            if entry is None:
                # An earlier call moved the channel. Its process may have died before the tags followed.
                if before is None or not tags:
                    return channel_at(name, self._repository.logs.current("channel", name))
                return self._followed(name, before, self._before(name, before))
            # The number follows that of the newest entry and not of `before`: a channel that was deleted continues
            # after its old numbers, because a reader takes the entry with the larger number for the later move.
            entry = entry if newest is None else replace(entry, number=newest.number + 1)
            entry = replace(entry, upto=self._upto(name, entry, newest))
            # The entry of a rollback has its moves already, with the promotions that it withdraws.
            entry = entry if entry.moves is not None else replace(entry, moves=self._promoted(before, entry))
            entry = replace(entry, withdrawn=self._withdrawn(before, entry))
            if self._repository.logs.append("channel", name, entry):
                # The put first, then the mark: so this process sees the mark, or the collection sees the entry.
                self._refuse_collected(name, entry, before)
                return self._followed(name, entry, before) if tags else channel_at(name, entry)
        raise contended(self._repository, name)

    def _upto(self, name: str, entry: RefEntry, newest: RefEntry | None) -> int:
        """Return the number `RefEntry.upto` for the next entry of a channel."""
        logs, before = self._repository.logs, 0 if newest is None else newest.upto
        # A rollback withdraws every commit that was made for the channel before it, promoted or not.
        commit = logs.current("branch", MAIN).commit if entry.action == "rollback" else entry.commit
        return max(before, logs.commit(commit).channels.get(name, 0))

    def unpromoted(
        self, name: str, entry: RefEntry | None, head: RepositoryCommit | None = None
    ) -> tuple[RepositoryCommit, ...]:
        """Return the commits of `main` that were made for a channel and never promoted to it, oldest first.

        The process that made such a commit died before it moved the channel, or is about to move the channel.

        Args:
            name: The channel.
            entry: The newest entry of the channel; None where the channel does not exist.
            head: The newest commit of `main`; None to read it.
        """
        logs, upto = self._repository.logs, 0 if entry is None else entry.upto
        commits: list[RepositoryCommit] = []
        newest = None if head is not None else logs.newest("branch", MAIN)
        head = head if newest is None else logs.commit(newest.commit)
        number = 0 if head is None else head.channels.get(name, 0)
        # A commit that was collected is too old to be promoted without a request of a person.
        with suppress(NotFoundError):
            while number > upto:
                commit = logs.commit(logs.entry("branch", MAIN, number).commit)
                commits.append(commit)
                # The parent has the number of the entry of `main` that was made for the channel before this commit.
                number = logs.commit(commit.parents[0]).channels.get(name, 0)
        return tuple(reversed(commits))

    def divided(
        self, name: str, entry: RefEntry | None, tables: Collection[str], head: RepositoryCommit
    ) -> dict[str, RepositoryCommit]:
        """Return the tables in which readers of a channel would lack a commit whose rows they see in `tables`.

        Readers see a commit in all of its tables or in none. A commit of `main` is not in the channel where the channel
        was rolled back before the promotion of the commit, or was held. A later commit of one table has the rows of the
        earlier commit in this table, and its promotion would show them without the other tables of the earlier commit.

        Args:
            name: The channel.
            entry: The newest entry of the channel; None where the channel does not exist.
            tables: The names of the tables that are to be promoted.
            head: The commit of `main` whose versions of `tables` are to be promoted, or the parent of this commit.

        Returns:
            The names of the tables to promote too, each with the oldest commit that readers would see in part.
        """
        logs, commit = self._repository.logs, head
        present = {} if entry is None else by_id(logs.commit(entry.commit))
        moved = {head.tables[table].id for table in tables if table in head.tables}
        lacking: dict[str, RepositoryCommit] = {}
        while any(_is_ahead(table, commit, present) for table in moved) and name in commit.channels:
            try:
                commit = logs.commit(logs.entry("branch", MAIN, commit.channels[name]).commit)
                parent = logs.commit(commit.parents[0]) if commit.parents else None
            except NotFoundError:
                # A collection deleted the older commits, so the tables of each of them are not known.
                break
            changed = moved_tables(parent, commit)
            if any(_is_ahead(table, commit, present) for table in moved & changed):
                behind = [table for table in changed - moved if _is_ahead(table, commit, present)]
                lacking |= {by_id(commit)[table][0]: commit for table in behind}
            if parent is None:
                break
            commit = parent
        return lacking

    def _promoted(self, before: RefEntry | None, entry: RefEntry) -> Moves:
        """Return the tables that a promotion moves; a promotion withdraws nothing."""
        if before is not None and before.commit == entry.commit:
            return {}
        present = None if before is None else self._repository.logs.commit(before.commit)
        return dict.fromkeys(moved_tables(present, self._repository.logs.commit(entry.commit)), ())

    def _withdrawn(self, before: RefEntry | None, entry: RefEntry) -> Mapping[str, int]:
        """Return `RefEntry.withdrawn` of an entry."""
        if before is None or before.commit == entry.commit:
            return {} if before is None else before.withdrawn
        withdrawn = dict(before.withdrawn)
        logs = self._repository.logs
        for old, new in changed_versions(logs.commit(before.commit).tables, logs.commit(entry.commit).tables):
            if old is not None and (new is None or 0 < new.lands < old.lands):
                if entry.action == "rollback":
                    withdrawn[old.id] = max(withdrawn.get(old.id, 0), old.lands)
            elif new is not None and new.lands >= withdrawn.get(new.id, 0):
                withdrawn.pop(new.id, None)
        return withdrawn

    def returning(self, before: RefEntry | None, tables: Mapping[str, TableVersion]) -> dict[str, TableVersion]:
        """Return the versions in `tables` that a rollback took back from a channel, by table.

        Args:
            before: The newest entry of the channel.
            tables: The versions of all tables after a move of the channel.
        """
        if before is None or not before.withdrawn:
            return {}
        names = {at.id: table for table, at in tables.items()}
        return {
            names[new.id]: new
            for old, new in changed_versions(self._repository.logs.commit(before.commit).tables, tables)
            if new is not None and (0 if old is None else old.lands) < new.lands <= before.withdrawn.get(new.id, 0)
        }

    def refuse_withdrawn(
        self, name: str, before: RefEntry, commit: RepositoryCommit, tables: Mapping[str, TableVersion]
    ) -> None:
        """Refuse to show readers of a channel a version again that a rollback took back.

        Args:
            name: The channel.
            before: Its newest entry.
            commit: The commit to move to.
            tables: The versions of all tables after the move.

        Raises:
            ConflictError: One of the versions was taken back.
        """
        returning = self.returning(before, tables)
        if not returning:
            return
        rollbacks = (
            entry
            for entry in self._repository.logs.entries("channel", name, upto=before.number)
            if entry.action == "rollback" and any(at.id in (entry.moves or ()) for at in returning.values())
        )
        # The entry of an old rollback may be collected.
        taken_back = next(rollbacks, None)
        by, reason = ("a rollback", "") if taken_back is None else (taken_back.by, f": {taken_back.reason}")
        versions = ", ".join(f"{table} {at.on_main}" for table, at in sorted(returning.items()))
        remedy = Remedy(
            "revert on main the commit that made it, and move the channel to the commit of the revert; {} moves it to "
            "this commit all the same",
            Call("channels.promote", (name, commit.short_id), {"again": True}),
        )
        raise ConflictError(
            f"commit {commit.short_id} has {versions}, which {by} took back from channel {name!r} of "
            f"{self._repository.root}{reason}",
            remedy=remedy,
        )

    def _newest(self, name: str, *, create: bool) -> RefEntry | None:
        """Return the newest entry of a channel, which may be the deletion of the channel."""
        newest = self._repository.logs.newest("channel", name)
        if (newest is None or newest.deleted) and not create:
            raise unknown_channel(self._repository, name)
        # A branch or a repository tag may have got the name since the channel was deleted.
        if newest is None or newest.deleted:
            refuse_taken(self._repository.logs, name, "channel")
        return newest

    def _followed(self, name: str, entry: RefEntry, before: RefEntry | None) -> Channel:
        """Bring the tags of the tables up to an entry, and to later moves of the channel by other processes."""
        lagging: tuple[Lagging, ...] = ()
        while before is None or (before.commit, before.hold) != (entry.commit, entry.hold):
            commit = self._repository.logs.commit(entry.commit)
            past = None if before is None else before.hold
            parent = None if before is None else self._repository.logs.commit(before.commit)
            # Only the tags of tables that changed are moved, so that other tables cost no request. A hold that began or
            # ended concerns the tags of all tables.
            changed = commit.tables if past != entry.hold else commit.changed_from(parent)
            tag = FollowingTag(name=name, hold=entry.hold, past="" if past is None else past.reason)
            # The tag of a table that the commit does not have stays where it is: there is nothing to move it to.
            names = [table for table in changed if table in commit.tables]
            lagging = project(self._repository.registry, commit, names, tag)
            # The channel is read again after the tags were moved: another process may have moved the channel and the
            # tags forward before this process moved the tags back. Then the tags are moved to the newest entry.
            before, newest = entry, self._repository.logs.newest("channel", name)
            if newest is None or newest.deleted:
                break
            entry = newest
        return replace(channel_at(name, entry), lagging=lagging)

    def _before(self, name: str, entry: RefEntry) -> RefEntry | None:
        """Return the newest entry of a channel that names another commit; None where it no longer exists.

        Of the entries `promote 1`, `promote 2`, `hold 2` it returns `promote 1`.
        """
        before = entry
        # Holds and releases are entries with the same commit; the tags did not move with them.
        while before.commit == entry.commit:
            try:
                before = self._repository.logs.entry("channel", name, before.number - 1)
            except NotFoundError:
                return None
        return None if before.deleted else before

    def _refuse_collected(self, name: str, entry: RefEntry, before: RefEntry | None) -> None:
        """Undo a move when a collection marked its commit before it saw the move.

        A collection marks its commits first and then reads the channels again; a move appends its entry first and then
        reads the mark. So the collection sees the entry, or the move sees the mark.
        """
        if not self._repository.logs.is_expired(entry.commit):
            return
        reason = "the commit is being collected"
        if before is None:
            back = next_entry(entry, "delete", "", reason=reason)
        else:
            # A withdrawn entry withdraws nothing, so promotions that the move had withdrawn count again.
            moves = dict.fromkeys(entry.moves or (), (entry.number,))
            back = replace(
                next_entry(entry, "rollback", before.commit, reason=reason),
                hold=before.hold,
                moves=moves,
                withdrawn=before.withdrawn,
            )
        # Where another process has moved the channel on meanwhile, this put is refused, as it should be.
        self._repository.logs.append("channel", name, back)
        raise NotFoundError(
            f"commit {entry.commit[:12]} of {self._repository.root} is being collected; choose a newer commit"
        )


def _is_ahead(table: str, commit: RepositoryCommit, present: Mapping[str, tuple[str, TableVersion]]) -> bool:
    """Return whether a commit has a newer version of a table than the present version.

    Args:
        table: The id of the table.
        commit: The commit.
        present: The tables of the channel by id, each with its name and version.
    """
    _, version = by_id(commit).get(table, ("", None))
    _, named = present.get(table, ("", None))
    return (
        version is not None
        and version != named
        and (named is None or 0 in (version.lands, named.lands) or version.lands > named.lands)
    )


def unknown_channel(repository: RepositoryContext, name: str) -> RefNotFoundError:
    """Return the error for a name that no channel has: the name is misspelt, or of a channel to be created."""
    channels = list(repository.logs.live("channel"))
    near = RefNotFoundError(name, channels, repository.root, "channel").hint
    return RefNotFoundError(name, channels, repository.root, "channel", f"{near}; a new channel is created explicitly")


def channel_at(name: str, entry: RefEntry) -> Channel:
    """Return a channel as an entry of its log has it."""
    return Channel(name=name, commit=entry.commit, entry=entry)


def refuse_held(name: str, entry: RefEntry) -> None:
    """Refuse to move a channel that is held.

    Raises:
        ProtectedError: The channel is held; the message says by whom, since when and why.
    """
    hold = entry.hold
    if hold is not None:
        release = Call("channels.release", (name,), {"reason": "..."})
        raise ProtectedError("channel", name, "move", str(hold), Remedy("release it with {}", release))


def contended(repository: RepositoryContext, name: str) -> ConflictError:
    """Return the error of a process that lost each race to move a channel."""
    return ConflictError(
        f"other processes moved channel {name!r} of {repository.root} during each of {TRIES} attempts; try again"
    )
