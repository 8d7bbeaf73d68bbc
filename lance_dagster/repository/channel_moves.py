"""Move a channel by the next entry of its log, and bring the Lance tags of the tables up to it.

The entry is one put-if-absent, and all tables move for readers of the channel. The Lance tags of the tables follow, one
by one. When a process dies between the two steps, some tags are not moved. They are moved when the call is repeated, by
the next move that changes their tables, and by `repair`.
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
from lance_dagster.repository.commits.promotions import by_id, moved_tables
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
    """A channel: its name, the commit it names, and its newest entry.

    Attributes:
        name: The name.
        commit: The id of the commit.
        entry: The newest entry of its log.
        lagging: The tags of tables that could not be brought up to the channel.
        moves: For a rollback, and for its dry run, each table that goes back, with the version before and after; empty
            where the rollback was made before.
        left: For a rollback of some tables, other tables that promotions which are withdrawn moved too, and that stay.
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
        """Append the entry that `decide` makes of the newest one; None leaves the channel as it is.

        Raises:
            RefNotFoundError: There is no such channel, and `create` is False.
        """
        check_tag_name(name)
        for _ in range(TRIES):
            newest = self._newest(name, create=create)
            # The caller gets None for a deleted channel, so that nothing is compared with the commit it named.
            before = None if newest is None or newest.deleted else newest
            wanted = decide(before)
            if wanted is None:
                # An earlier call moved the channel. Its process may have died before the tags followed.
                if before is None or not tags:
                    return channel_at(name, self._repository.logs.current("channel", name))
                return self._followed(name, before, self._before(name, before))
            # The number is counted from the newest entry and not from `before`: a channel that was deleted continues
            # after its old numbers, since readers take a larger number for a later move.
            wanted = wanted if newest is None else replace(wanted, number=newest.number + 1)
            wanted = replace(wanted, upto=self._upto(name, wanted, newest))
            # A rollback records what it withdraws itself.
            wanted = wanted if wanted.moves is not None else replace(wanted, moves=self._promoted(before, wanted))
            if self._repository.logs.append("channel", name, wanted):
                # The mark of a collection is read after the put, so that one of the two sees the other.
                self._refuse_collected(name, wanted, before)
                return self._followed(name, wanted, before) if tags else channel_at(name, wanted)
        raise contended(self._repository, name)

    def _upto(self, name: str, entry: RefEntry, newest: RefEntry | None) -> int:
        """Return up to which entry of `main` a channel was promoted, or was moved back from, after an entry."""
        logs, before = self._repository.logs, 0 if newest is None else newest.upto
        # What was committed for the channel before a rollback counts as withdrawn, promoted or not.
        commit = logs.current("branch", MAIN).commit if entry.action == "rollback" else entry.commit
        return max(before, logs.commit(commit).channels.get(name, 0))

    def unpromoted(
        self, name: str, entry: RefEntry | None, head: RepositoryCommit | None = None
    ) -> tuple[RepositoryCommit, ...]:
        """Return the commits of `main` that were made for a channel and never promoted to it, oldest first.

        The process that made such a commit died before it moved the channel, or is about to move it.

        Args:
            name: The channel.
            entry: Its newest entry; None where there is none.
            head: The newest commit of `main`; None to read it.
        """
        logs, upto = self._repository.logs, 0 if entry is None else entry.upto
        commits: list[RepositoryCommit] = []
        newest = None if head is not None else logs.newest("branch", MAIN)
        head = head if newest is None else logs.commit(newest.commit)
        number = 0 if head is None else head.channels.get(name, 0)
        # What was collected is too old to be promoted unasked.
        with suppress(NotFoundError):
            while number > upto:
                commit = logs.commit(logs.entry("branch", MAIN, number).commit)
                commits.append(commit)
                # The commit before it names the entry that was made for the channel before.
                number = logs.commit(commit.parents[0]).channels.get(name, 0)
        return tuple(reversed(commits))

    def divided(
        self, name: str, entry: RefEntry | None, tables: Collection[str], head: RepositoryCommit
    ) -> dict[str, RepositoryCommit]:
        """Return the tables in which readers of a channel would lack a commit whose rows they see in some other table.

        `main` is ahead of a channel where a commit was rolled back before it was promoted, or by a hold that ended.
        The next commit of one of its tables has its rows; readers see a commit in all of its tables or in none.

        Args:
            name: The channel.
            entry: Its newest entry; None where there is none.
            tables: The names of the tables that are to be promoted.
            head: The commit of `main` whose versions of these tables are to be promoted, or its parent.

        Returns:
            The names of these other tables, each with the oldest commit that readers would see in part.
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
                # What was collected was committed long ago, and nobody can say any more what belongs together.
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
        """Return the tables that an entry moves; it withdraws nothing."""
        if before is not None and before.commit == entry.commit:
            return {}
        present = None if before is None else self._repository.logs.commit(before.commit)
        return dict.fromkeys(moved_tables(present, self._repository.logs.commit(entry.commit)), ())

    def _newest(self, name: str, *, create: bool) -> RefEntry | None:
        """Return the newest entry of a channel, also one that deleted it."""
        newest = self._repository.logs.newest("channel", name)
        if (newest is None or newest.deleted) and not create:
            raise unknown_channel(self._repository, name)
        # The name of a channel that was deleted may have been given to a branch or a repository tag since.
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
            # Only the tags of tables that differ are moved, so that other tables cost no request. A hold that began or
            # ended concerns the tags of all tables.
            changed = commit.tables if past != entry.hold else commit.changed_from(parent)
            tag = FollowingTag(name=name, hold=entry.hold, past="" if past is None else past.reason)
            # The tag of a table that the commit does not have stays where it is: there is nothing to move it to.
            names = [table for table in changed if table in commit.tables]
            lagging = project(self._repository.registry, commit, names, tag)
            # The channel is read again after the tags were moved. Another process may have moved the channel on and its
            # tags before this process moved them back; then this process moves them to the newest entry once more.
            before, newest = entry, self._repository.logs.newest("channel", name)
            if newest is None or newest.deleted:
                break
            entry = newest
        return replace(channel_at(name, entry), lagging=lagging)

    def _before(self, name: str, entry: RefEntry) -> RefEntry | None:
        """Return the entry before the one that moved a channel to its commit; None where it no longer exists."""
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

        The collection marks first and then reads the channels again; here the move comes first and the mark is read
        second. So one of the two sees the other.
        """
        if not self._repository.logs.is_expired(entry.commit):
            return
        why = "the commit is being collected"
        if before is None:
            back = next_entry(entry, "delete", "", reason=why)
        else:
            # It withdraws the move, and so also what the move withdrew.
            moves = dict.fromkeys(entry.moves or (), (entry.number,))
            back = replace(next_entry(entry, "rollback", before.commit, reason=why), hold=before.hold, moves=moves)
        # Where another process has moved the channel on meanwhile, this put is refused, as it should be.
        self._repository.logs.append("channel", name, back)
        raise NotFoundError(
            f"commit {entry.commit[:12]} of {self._repository.root} is being collected; choose a newer one"
        )


def _is_ahead(table: str, commit: RepositoryCommit, present: Mapping[str, tuple[str, TableVersion]]) -> bool:
    """Return whether a commit has a version of a table, given by its id, that is newer than the present version."""
    _, made = by_id(commit).get(table, ("", None))
    _, named = present.get(table, ("", None))
    return (
        made is not None
        and made != named
        and (named is None or 0 in (made.lands, named.lands) or made.lands > named.lands)
    )


def unknown_channel(repository: RepositoryContext, name: str) -> RefNotFoundError:
    """Return the error for a name that no channel has: it may be misspelt, or new."""
    known = list(repository.logs.live("channel"))
    near = RefNotFoundError(name, known, repository.root, "channel").hint
    return RefNotFoundError(name, known, repository.root, "channel", f"{near}; a new channel is created explicitly")


def channel_at(name: str, entry: RefEntry) -> Channel:
    """Return a channel as an entry of its log has it."""
    return Channel(name=name, commit=entry.commit, entry=entry)


def refuse_held(name: str, entry: RefEntry) -> None:
    """Refuse to move a channel that is held.

    Raises:
        ProtectedError: It is held; the message says by whom, since when and why.
    """
    hold = entry.hold
    if hold is not None:
        release = Call("channels.release", (name,), {"reason": "..."})
        raise ProtectedError("channel", name, "move", str(hold), Remedy("release it with {}", release))


def contended(repository: RepositoryContext, name: str) -> ConflictError:
    """Return the error of a process that lost each race to move a channel."""
    return ConflictError(f"other processes moved channel {name!r} of {repository.root} each of {TRIES} times")
