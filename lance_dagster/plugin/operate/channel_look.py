"""Read the moves of a channel of a repository since the last tick from its log.

An entry of the log is one promotion, rollback, hold or release of all tables, with the user and the reason. So a
channel that did not move costs one read of its newest entry, however many tables it names, and a channel that moved
costs reads of the versions of the tables that changed. Tags are not read: they follow the channel.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lance_dagster.errors import FormatError, NotFoundError, RefNotFoundError, counted
from lance_dagster.format.validation import parsed_json
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.operate.ref_cursor import BranchMark, Marks, RefCursor

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.commits.snapshot import RefEntry
    from lance_dagster.repository.view import RepositoryView


class ChannelMove(NamedTuple):
    """An entry of a channel that was not reported yet, and the tables that it changed.

    `published` are the watched tables whose promoted nodes the publisher materialized itself.
    """

    channel: str
    number: int
    commit: str
    action: str
    who: str
    why: str
    tables: tuple[str, ...]
    published: tuple[str, ...] = ()

    @property
    def ref(self) -> str:
        """The entry as a ref expression of the repository, such as `production@17`."""
        return f"{self.channel}@{self.number}"

    def __str__(self) -> str:
        """Return the action, the user, the reason and the number of tables that changed."""
        why = f": {self.why}" if self.why else ""
        return f"{self.ref} {self.action} by {self.who}{why} ({counted(len(self.tables), 'table')} changed)"


@dataclass(slots=True, kw_only=True)
class ChannelLook:
    """One look at one channel; it changes the mark in the cursor as it goes, so that it can stop after any entry.

    `watched` are the names of the tables in the repository. `versions` are the versions to report: each with the entry
    that moved the channel to it, and the table.
    """

    repository: "LanceRepository"
    channel: str
    cursor: RefCursor
    watched: Collection[str]
    tag_marks: Mapping[str, Marks]
    until: float
    moves: list[ChannelMove] = field(default_factory=list)
    versions: "list[tuple[ChannelMove, str, Version]]" = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> bool:
        """Read the log, and return whether the channel exists; otherwise the ref is a tag or branch of the tables."""
        try:
            newest = self.repository.channels.get(self.channel).entry
        except RefNotFoundError:
            return self._look_at_absent()
        mark = self.cursor.channels.get(self.channel)
        if mark == _mark_of(newest):
            return True
        # A channel that was watched while it did not exist has a mark: all of its moves since are new.
        # A cursor of an earlier release has no marks of absent channels. It watched this ref where a table has a mark
        # of it, or no marks, because the refs of that table did not exist.
        was_watched = any(self.channel in marks or not marks for marks in self.tag_marks.values())
        if mark is None and not was_watched and not self.cursor.announce_all:
            self.cursor.channels[self.channel] = _mark_of(newest)
            return True
        if mark is None and self.cursor.announce_all:
            # `announce_all` reports what the channel names at present, and not each promotion of the past.
            self._report(newest, None)
            return True
        # The numbers of one log only grow, and `newest` is not the entry of the mark.
        if mark is not None and mark.number >= newest.number:
            self.notes.append(f"channel {self.channel} starts again: the repository was dropped and created again")
            mark = None
        mark = mark or BranchMark(0, "")
        # In the usual case `newest` is the only new entry, and the log need not be listed.
        is_next = newest.number == mark.number + 1
        self._report_all(
            mark, (newest,) if is_next else self.repository.channels.entries_after(self.channel, mark.number)
        )
        return True

    def _look_at_absent(self) -> bool:
        """Report the entries before the channel was deleted; return True where it exists or entries are left to report.

        The log stays after the deletion, so promotions between the previous tick and the deletion are not lost.
        """
        mark = self.cursor.channels.get(self.channel)
        if mark is None:
            self.cursor.note_absent(self.channel, self._newest_number())
            return False
        entries = self.repository.channels.entries_after(self.channel, mark.number)
        # Somebody may have created the channel again just now.
        if not self._report_all(mark, entries) or (entries and not entries[-1].deleted):
            return True
        self.cursor.note_absent(self.channel, entries[-1].number if entries else mark.number)
        if entries or mark.transaction:
            self.notes.append(f"channel {self.channel} was deleted, so the tags of that name are watched")
        return False

    def _newest_number(self) -> int:
        """Return the number of the entry that deleted the channel: the log goes on if the channel is created again."""
        try:
            (newest,) = self.repository.channels.history(self.channel, limit=1)
        except RefNotFoundError:
            return 0
        # Somebody may have created the channel again just now; the next tick reports the entry of its creation.
        return newest.number if newest.deleted else newest.number - 1

    def _report_all(self, mark: BranchMark, entries: "Sequence[RefEntry]") -> bool:
        """Report entries after a mark, and return whether the time was enough for all of them."""
        # The mark of a channel has the commit of its entry. When that was collected, every table counts as changed.
        before = self._view(mark.transaction) if mark.transaction else None
        for entry in entries:
            # At least one entry in each tick; otherwise a short budget would stop all progress.
            if self.moves and time.monotonic() >= self.until:
                return False
            before = self._report(entry, before) or before
        return True

    def _report(self, entry: "RefEntry", before: "RepositoryView | None") -> "RepositoryView | None":
        view = None if entry.deleted else self._view(entry.commit)
        if view is None:
            # The entry deleted the channel, or its commit was collected. The next entry is compared with the last entry
            # whose commit could be read.
            self.cursor.channels[self.channel] = _mark_of(entry)
            return None
        changed = view.commit.changed_from(None if before is None else before.commit)
        tables = tuple(name for name in changed if name in view)
        who, why = entry.properties.get(md.WHO) or entry.by, entry.properties.get(md.REASON) or entry.reason
        reported = _names_in(entry.properties.get(md.REPORTED, ""))
        watched = [name for name in tables if name in self.watched]
        published = tuple(name for name in watched if name in reported)
        move = ChannelMove(self.channel, entry.number, entry.commit, entry.action, who, why, tables, published)
        versions: list[tuple[ChannelMove, str, Version]] = []
        for name in watched:
            if name in reported:
                continue
            try:
                version = view[name].version
            except (NotFoundError, FormatError) as error:
                # The table will not be readable at the next tick either, and the other tables must be reported.
                self.notes.append(f"{name} at entry {entry.number} of {self.channel}: {error}")
                continue
            # A table is adopted at the version of its tag, which was reported when the tag moved. The mark of the tag
            # is removed, because only the log of the channel counts from here on.
            tag = self.tag_marks.get(name, {}).pop(self.channel, "")
            if not str(tag).startswith(f"{version} "):
                versions.append((move, name, version))
        # The mark moves last, with what is reported: where a table cannot be read, the next tick reads the entry again.
        self.moves.append(move)
        self.versions += versions
        self.cursor.channels[self.channel] = _mark_of(entry)
        return view

    def _view(self, commit: str) -> "RepositoryView | None":
        try:
            return self.repository.at(commit)
        except NotFoundError:
            return None


def _mark_of(entry: "RefEntry") -> BranchMark:
    return BranchMark(entry.number, entry.commit)


def _names_in(text: str) -> frozenset[str]:
    """Return the tables that a publisher reports itself; none when the text does not come from a publisher."""
    try:
        names = parsed_json(text or "[]")
    except ValueError:
        return frozenset()
    return frozenset(map(str, names)) if isinstance(names, list) else frozenset()
