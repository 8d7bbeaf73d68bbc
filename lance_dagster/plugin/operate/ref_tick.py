"""One tick of a ref sensor: read the tables in several threads, until the time budget is used up.

A ref that is a channel of a repository is read from the log of the channel, once for all tables (`channel_look`).

An unchanged table costs two listings and one manifest for a branch, and one listing for each tag. On object storage
nearly all of that is waiting, which threads do at the same time.

A table is identified only by its commits: a table that was dropped and created again at the same place has the same URI
and the same version numbers. A look therefore compares the transaction of the version that was reported last.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lance_dagster.errors import LanceDagsterError, RefNotFoundError, TableNotFoundError, VersionNotFoundError, counted
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.operate.channel_look import ChannelLook, ChannelMove
from lance_dagster.plugin.operate.ref_cursor import BranchMark, Marks, RefCursor
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import WatchedTable

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_files import Tag
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_THREADS = 16
# Enough of a uuid to tell two tables apart; the cursor holds one for each branch of each table.
_TRANSACTION_CHARACTERS = 8
_NAMED = 8
# The mark of a ref that the table lacked.
_ABSENT = ""


class News(NamedTuple):
    """A version that was not reported yet, with the branch or tag it was found under and further facts about it.

    `moved_at` is the time of the tag's move as its file says it, empty where another program left none.
    """

    table: WatchedTable
    ref: str
    version: "Version"
    is_tag: bool = False
    is_recreated: bool = False
    move: ChannelMove | None = None
    moved_at: str = ""

    def __str__(self) -> str:
        """Return the table and the version, such as `shop/orders main@7`."""
        return f"{self.table.name} {f'{self.ref} to ' if self.is_tag else ''}{self.version}"


@dataclass(slots=True, kw_only=True)
class _Look:
    """One look at one table; it changes `marks` as it goes, so that it can stop after any version.

    `begins` are the refs of which this look only records the present state. `published` are moves of tags that the
    publisher reported itself.
    """

    lance: LanceResource
    refs: Sequence[str]
    watched: WatchedTable
    marks: Marks
    is_first: bool
    begins: Collection[str]
    until: float
    news: list[News] = field(default_factory=list)
    published: list[News] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: str | None = None

    def run(self) -> None:
        try:
            table = self.lance.table(self.watched.key, self.watched.metadata)
        except TableNotFoundError:
            # The table stays known, but without marks: when it is created again, its first version is news.
            if self.marks:
                self.notes.append(f"{self.watched.name} was dropped")
            self.marks.clear()
            return
        except LanceDagsterError as error:
            self.problem = f"{self.watched.name}: {error}"
            return
        for ref in self.refs:
            try:
                self._look_at(table, ref)
            except LanceDagsterError as error:
                self.problem = f"{self.watched.name}: {error}"

    def _look_at(self, table: "LanceTable", ref: str) -> None:
        # This is imported in a tick only, because a code location is loaded without the merge.
        from lance_dagster.plugin.publish.publication import find_tag

        tag = None if ref == MAIN else find_tag(table, ref)
        if tag is not None:
            self._look_at_tag(table, ref, tag)
        elif ref == MAIN or ref in table.branches.list(ref):
            self._look_at_branch(table, ref)
        else:
            # Not an error: a tag such as `production` is created by the first publication.
            self.missing.append(ref)
            # Whatever it names when it is created is news; a ref without a mark was never looked at.
            self.marks[ref] = _ABSENT

    def _look_at_branch(self, table: "LanceTable", branch: str) -> None:
        try:
            head = table.head(branch)
        except RefNotFoundError:  # deleted since it was listed
            return
        mark = self.marks.get(branch)
        if mark == _mark_of(head):
            return
        # Versions from before the sensor are not news, so the readers are not started for them.
        if branch in self.begins:
            self.marks[branch] = _mark_of(head)
            return
        reported = mark if isinstance(mark, BranchMark) else None
        recreated = reported is not None and not _contains(table, head, reported)
        if recreated and branch == MAIN:
            self.notes.append(
                f"{self.watched.name} was dropped and created again, so it is reported from its first version on"
            )
        elif recreated:
            self.notes.append(f"branch {branch} of {self.watched.name} was reset, or deleted and created again")
        after = 0 if reported is None or recreated else reported.number
        self._collect(table, branch, after=after, is_recreated=recreated)

    def _collect(self, table: "LanceTable", branch: str, *, after: int, is_recreated: bool) -> None:
        for number in table.branches.version_numbers(branch, after=after):
            # At least one version in each look; otherwise a short budget would stop all progress.
            if self.news and time.monotonic() >= self.until:
                return
            try:
                version = table.at(f"branch:{branch}@{number}")
            except VersionNotFoundError:
                # The garbage collector deleted the version between the listing and this read.
                continue
            self.news.append(News(self.watched, branch, version, is_recreated=is_recreated))
            # After each version, so that a look that stops here is resumed at the next one.
            self.marks[branch] = _mark_of(version)

    def _look_at_tag(self, table: "LanceTable", name: str, tag: "Tag") -> None:
        moved_at = tag.updated_at.isoformat() if tag.updated_at else ""
        moved = f"{tag.ref} {moved_at}" if moved_at else tag.ref
        # The time of the move is a part of the mark, so that a move away and back is noticed.
        if self.marks.get(name) == moved:
            return
        # The publisher materializes the promoted node itself; a second event would start its readers twice. A tag
        # that another program moved later still has the metadata, but not the target that the metadata names.
        by_publisher = md.RUN_ID in tag.metadata and tag.metadata.get(md.MOVED_TO) == tag.ref
        if name not in self.begins:
            # With `branch:`, because other programs allow a tag and a branch of the same name.
            version = table.at(f"branch:{tag.ref}")
            moves = self.published if by_publisher else self.news
            moves.append(News(self.watched, name, version, is_tag=True, moved_at=moved_at))
        self.marks[name] = moved


@dataclass(slots=True, kw_only=True)
class RefTick:
    """One tick: reads tables and collects their news, in the order of the tables.

    `published` are moves of tags that the publisher reported itself; the moves of channels are in `moves`.
    """

    lance: LanceResource
    refs: Sequence[str]
    cursor: RefCursor
    until: float
    news: list[News] = field(default_factory=list)
    published: list[News] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    moves: list[ChannelMove] = field(default_factory=list)
    visited: int = 0

    def run(self, watched: Sequence[WatchedTable]) -> None:
        """Look at every channel and table once, starting with the table at which the last tick stopped.

        Where all refs are channels of a repository, no table is read. A damaged table does not stop the tick.
        """
        self.refs = [ref for ref in self.refs if not self._look_at_channel(ref, watched)]
        if not self.refs:
            self.visited = len(watched)
            return
        # The modulo is needed because the definitions may have lost tables since the cursor was written.
        first = self.cursor.next % len(watched)
        order = [*watched[first:], *watched[:first]]
        self.cursor.keep_only(watched_table.name for watched_table in watched)
        with ThreadPoolExecutor(max_workers=min(_THREADS, len(order))) as threads:
            looks = threads.map(self._look, range(len(order)), order)
            for look in looks:
                # No time was left for this table, so the next tick starts here. The daemon would discard all events of
                # a tick that takes longer than it allows.
                if look is None:
                    break
                self._add(look)
        self.cursor.next = (first + self.visited) % len(watched)

    def _look_at_channel(self, ref: str, watched: Sequence[WatchedTable]) -> bool:
        """Report the moves of a channel; return False when the ref is not a channel."""
        if ref == MAIN:
            return False
        try:
            repository = self.lance.open_repository()
            if repository is None:
                self.cursor.note_absent(ref)
                return False
            tables = {
                str(self.lance.address_of(watched_table.key, watched_table.metadata)): watched_table
                for watched_table in watched
            }
            names = {place: table.name for place, table in tables.items() if table.name in self.cursor.tables}
            marks = {place: self.cursor.tables[name] for place, name in names.items()}
            with_marks = [name for place, name in names.items() if marks[place]]
            look = ChannelLook(
                repository=repository,
                channel=ref,
                cursor=self.cursor,
                watched=tables,
                tag_marks=marks,
                until=self.until,
            )
        except LanceDagsterError as error:
            self.problems.append(f"channel {ref}: {error}")
            return True
        try:
            is_channel = look.run()
        except LanceDagsterError as error:
            self.problems.append(f"channel {ref}: {error}")
            # With False the tags of this name would be reported now, and the same moves at a later tick from the log.
            is_channel = True
        # Also after an error: the cursor has passed the entries that were read before it.
        self.moves += look.moves
        # The look takes the marks of tags away. A table without marks counts as a table that did not exist, so its
        # tags, which follow the channel, would be news once more when the channel is deleted.
        for name in with_marks:
            if not self.cursor.tables[name]:
                del self.cursor.tables[name]
        self.notes += look.notes
        self.news += [News(tables[name], ref, version, is_tag=True, move=move) for move, name, version in look.versions]
        return is_channel

    def _look(self, place: int, watched_table: WatchedTable) -> _Look | None:
        # Each tick reads at least one table; otherwise a short budget would stop all progress.
        if place and time.monotonic() >= self.until:
            return None
        marks, announce_all = self.cursor.tables.get(watched_table.name), self.cursor.announce_all
        # A table without marks did not exist. In a table with marks, a ref without a mark was added to the sensor.
        begins = [ref for ref in self.refs if marks is None or (marks and ref not in marks)]
        look = _Look(
            lance=self.lance,
            refs=self.refs,
            watched=watched_table,
            # The look gets a copy: when an earlier table had no time left, it is not gathered and must leave no marks.
            marks=dict(marks or {}),
            is_first=marks is None and not announce_all,
            begins=() if announce_all else begins,
            until=self.until,
        )
        look.run()
        return look

    def _add(self, look: _Look) -> None:
        self.visited += 1
        # A table that failed at the first look stays unknown, so that its history is not reported later.
        if look.problem is None or not look.is_first:
            self.cursor.tables[look.watched.name] = look.marks
        self.news += look.news
        self.published += look.published
        self.notes += look.notes
        if look.problem is not None:
            self.problems.append(look.problem)
        for ref in look.missing:
            self.missing[ref] = self.missing.get(ref, 0) + 1

    def text(self, watched: Sequence[WatchedTable]) -> str:
        """Return what the tick found, for Dagster's list of ticks."""
        return "; ".join(self._sentences(len(watched)))

    def _sentences(self, tables: int) -> Iterator[str]:
        of_moves = [name for move in self.moves for name in move.published]
        published = dict.fromkeys([*of_moves, *(news.table.name for news in self.published)])
        if self.news:
            # By table, the newest version last; a dict keeps the newest version of each table and ref.
            newest = {(news.table.name, news.ref): str(news) for news in self.news}
            changed = len({news.table.name for news in self.news})
            yield f"{counted(len(self.news), 'version')} of {counted(changed, 'table')}: {_listed(newest.values())}"
        elif published:
            yield f"nothing to report: the publisher reported {_listed(published)} itself"
        else:
            yield f"nothing new in {counted(self.visited, 'table')}"
        if self.moves:
            yield _listed(map(str, self.moves))
        yield from self.notes[:_NAMED]
        for ref, count in self.missing.items():
            yield f"{counted(count, 'table')} of {self.visited} have no branch or tag {ref!r}"
        if self.problems:
            yield f"{counted(len(self.problems), 'table')} could not be read: {_listed(self.problems)}"
        if self.visited < tables:
            yield f"{counted(tables - self.visited, 'table')} left to the next tick"


def _mark_of(version: "Version") -> BranchMark:
    return BranchMark(version.number, version.transaction[:_TRANSACTION_CHARACTERS])


def _contains(table: "LanceTable", head: "Version", mark: BranchMark) -> bool:
    """Return whether the branch has the version of a mark: it was not reset or created again since then."""
    if head.number < mark.number:
        return False
    try:
        return _mark_of(table.at(f"branch:{head.branch}@{mark.number}")) == mark
    except VersionNotFoundError:
        # Collected as garbage, which happens only to versions that have successors.
        return True


def _listed(texts: Iterable[str]) -> str:
    return md.listed(list(texts), _NAMED)
