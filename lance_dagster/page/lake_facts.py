"""What the page of a lake shows, read by the public methods of `LanceRepository` and `LanceTable`.

Nothing is written. The number of requests grows with the tables, the commits and the moves of channels; the log is read
in pieces, since a commit names every table and a long log of many tables would not fit into memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pendulum
import pyarrow as pa

from lance_dagster.diff.manifest_diff import ADDED
from lance_dagster.errors import LanceDagsterError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.run_properties import PUBLISHED_BY, RUN_ID
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.history.versions import Version
from lance_dagster.repository import LanceRepository
from lance_dagster.repository.candidate_status import WaitingCandidate
from lance_dagster.repository.channel_moves import TableMove
from lance_dagster.repository.commits.snapshot import ChannelHold, RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.repository_status import ChannelState, RepositoryStatus, TableState
from lance_dagster.repository.snapshot_diff import TableDiff
from lance_dagster.store import concurrently
from lance_dagster.table import LanceTable

# A commit names every table: of 1,000 tables, this many commits take some 50 MB at a time.
_PIECE = 100
# How many versions of tables are read for the lines of growth; the tables share them.
_GROWTH, _LEAST_GROWTH, _MOST_GROWTH = 20_000, 20, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCommit:
    """A commit of `main`, with the tables that it changed.

    Attributes:
        id: The id.
        committed_at: When it was made.
        author: Who made it.
        message: Its message.
        runs: The runs of Dagster that it names, such as the run that published it.
        changes: The tables that it changed, with the versions before and after; empty where the parent was collected.
    """

    id: str
    committed_at: pendulum.DateTime
    author: str
    message: str
    runs: tuple[str, ...]
    changes: tuple[TableMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMove:
    """One entry of a channel.

    Attributes:
        entry: The entry.
        main: The id of the commit of `main` that readers of the channel were at; a channel that got only some tables of
            a commit is at the newest commit of which it got some.
        runs: The runs of Dagster that the entry names.
        changes: The tables that changed for readers of the channel.
    """

    entry: RefEntry
    main: str
    runs: tuple[str, ...]
    changes: tuple[TableMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSample:
    """Rows that differ between the two newest moments of a channel in one table: how many, and the first of them."""

    table: str
    counts: str
    rows: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChannel:
    """A channel: its state, its moves from the newest on, and rows that its last move changed."""

    state: ChannelState
    moves: tuple[PageMove, ...]
    samples: tuple[RowSample, ...] = ()

    @property
    def name(self) -> str:
        """The name."""
        return self.state.name

    @property
    def hold(self) -> ChannelHold | None:
        """The hold."""
        return self.state.hold


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table.

    Attributes:
        state: How it compares with the newest commit.
        growth: The newest versions of `main`, oldest first.
        versions: The number of versions of `main`.
        bytes: The size of the data files of the newest version of `main`; None where files have no recorded size.
        published: The newest shown commit that changed the table.
        branches: The branches that wait.
        problem: Why the table cannot be read; empty where it can.
    """

    state: TableState
    growth: tuple[Version, ...] = ()
    versions: int = 0
    bytes: int | None = None
    published: PageCommit | None = None
    branches: tuple[str, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The name."""
        return self.state.name

    @property
    def rows(self) -> int | None:
        """The rows of the newest version of `main`."""
        return self.growth[-1].rows if self.growth else None

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the table, as short sentences."""
        state = self.state
        return (
            *([self.problem] if self.problem else []),
            *(["another program made this table again"] if state.replaced else []),
            *(["never committed"] if state.at is None else []),
            *(["main lags behind: `lance-dagster repair` brings it up"] if state.lagging else []),
            *([f"versions on main that the lake does not have: {state.commits_ahead}"] if state.ahead else []),
            *(
                f"tag {tag} names {version} and does not follow its channel"
                for tag, version in state.moved_tags.items()
            ),
            *(f"tag {tag} is missing" for tag in state.missing_tags),
            *(f"tag {tag} is {hold}" for tag, hold in state.held_tags.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCandidate:
    """A candidate that waits.

    Attributes:
        waiting: The candidate.
        forked_from: By table, the version of `main` that its branch was forked from.
        rows: The rows that it wrote, as far as the versions that its branches were forked from are still there.
    """

    waiting: WaitingCandidate
    forked_from: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0

    @property
    def refused(self) -> bool:
        """Whether a check failed."""
        return any(not verdict.passed for table in self.waiting.tables for verdict in table.verdicts.values())

    @property
    def newest(self) -> pendulum.DateTime | None:
        """When its newest rows were committed; None where it has none."""
        return max((table.head.committed_at for table in self.waiting.tables if table.head is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFacts:
    """Everything that the page shows.

    Attributes:
        root: The root.
        made_at: When it was read.
        status: The status of the repository.
        commits: The newest commits of `main`, newest first.
        has_older: Whether there are older commits.
        channels: The channels.
        candidates: The candidates that wait, those with a failed check first, then the newest first.
        tables: The tables that changed last first.
        branches: Waiting branches with commits that no candidate of the record has, each with its tables.
    """

    root: str
    made_at: pendulum.DateTime
    status: RepositoryStatus
    commits: tuple[PageCommit, ...]
    has_older: bool
    channels: tuple[PageChannel, ...]
    candidates: tuple[PageCandidate, ...]
    tables: tuple[PageTable, ...]
    branches: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """The last part of the root."""
        return self.root.rstrip("/").rpartition("/")[2] or self.root

    @property
    def held(self) -> tuple[PageChannel, ...]:
        """The channels that are held."""
        return tuple(channel for channel in self.channels if channel.hold is not None)

    @property
    def refused(self) -> tuple[PageCandidate, ...]:
        """The candidates with a failed check."""
        return tuple(candidate for candidate in self.candidates if candidate.refused)

    @property
    def troubled(self) -> tuple[PageTable, ...]:
        """The tables with problems."""
        return tuple(table for table in self.tables if table.problems)

    @property
    def rows(self) -> int:
        """The rows of all tables that can be read."""
        return sum(table.rows or 0 for table in self.tables)

    @property
    def rows_waiting(self) -> int:
        """The rows of candidates without a failed check."""
        return sum(candidate.rows for candidate in self.candidates if not candidate.refused)

    @property
    def rows_rejected(self) -> int:
        """The rows of candidates with a failed check."""
        return sum(candidate.rows for candidate in self.refused)

    @property
    def bytes(self) -> int | None:
        """The bytes of all tables; None where the bytes of a table are not known."""
        sizes = [table.bytes for table in self.tables if not table.problem]
        return None if None in sizes else sum(size or 0 for size in sizes)


def lake_facts(repository: LanceRepository, *, commits: int, preview_rows: int) -> LakeFacts:
    """Read what the page shows.

    Args:
        repository: The lake.
        commits: How many commits of `main`, and how many moves of each channel, are read.
        preview_rows: How many rows of each table that the last move of a channel changed are read.
    """
    status = repository.status()
    log, has_older = _log(repository, commits)
    candidates = concurrently(lambda waiting: _candidate(repository, waiting), repository.candidates())
    main = {commit.id for commit in log}
    channels = [_channel(repository, state, main, limit=commits, rows=preview_rows) for state in status.channels]
    recorded = {table.branch for candidate in candidates for table in candidate.waiting.tables}
    return LakeFacts(
        root=repository.root,
        made_at=pendulum.now("UTC"),
        status=status,
        commits=log,
        has_older=has_older,
        channels=tuple(channels),
        candidates=tuple(sorted(candidates, key=_urgency)),
        tables=_tables(repository, status, log),
        branches={
            name: tables for name, tables in status.waiting.items() if name not in recorded and name not in status.empty
        },
    )


def runs_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the runs that the properties of a commit or of an entry name."""
    return tuple(dict.fromkeys(properties[key] for key in (RUN_ID, PUBLISHED_BY) if properties.get(key)))


def moves_between(before: Mapping[str, TableVersion], after: Mapping[str, TableVersion]) -> tuple[TableMove, ...]:
    """Return the tables whose versions differ, by name."""
    moves = [TableMove(name=name, before=before.get(name), after=after.get(name)) for name in {**before, **after}]
    return tuple(sorted((move for move in moves if move.is_move), key=lambda move: move.name))


def _log(repository: LanceRepository, limit: int) -> tuple[tuple[PageCommit, ...], bool]:
    """Return the newest commits of `main`, newest first, and whether there are older ones."""
    shown: list[PageCommit] = []
    commit: RepositoryCommit | None = repository.head()
    while commit is not None and len(shown) < limit:
        # The last commit of a piece begins the next piece, which has its parent.
        piece = repository.log(commit.id, min(_PIECE, limit - len(shown)) + 1)
        parents: list[RepositoryCommit | None] = [*piece[1:], None]
        whole = piece[:-1] if len(piece) > 1 else piece
        shown += [_commit(each, parent) for each, parent in zip(whole, parents, strict=False)]
        commit = piece[-1] if len(piece) > 1 else None
    if commit is not None and not commit.parents and len(shown) < limit:
        shown.append(_commit(commit, None))
    return tuple(shown), commit is not None and len(shown) >= limit


def _commit(commit: RepositoryCommit, parent: RepositoryCommit | None) -> PageCommit:
    # Without its parent, nothing tells what a commit changed, unless it is the first commit.
    changes = (
        moves_between({} if parent is None else parent.tables, commit.tables) if parent or not commit.parents else ()
    )
    return PageCommit(
        id=commit.id,
        committed_at=commit.committed_at,
        author=commit.author,
        message=commit.message,
        runs=runs_of(commit.properties),
        changes=changes,
    )


def _channel(
    repository: LanceRepository, state: ChannelState, main: Iterable[str], *, limit: int, rows: int
) -> PageChannel:
    history = repository.channels.history(state.name, limit + 1)
    moves: list[PageMove] = []
    # From the oldest entry on, so that each commit is compared with the commit before it.
    before: RepositoryCommit | None = None
    for entry in reversed(history):
        after = None if entry.deleted else _stored(repository, entry.commit)
        changes = moves_between({} if before is None else before.tables, {} if after is None else after.tables)
        known = before is not None or entry.number == 1
        moves.append(
            PageMove(
                entry=entry,
                main=_on_main(after, main),
                runs=runs_of(entry.properties),
                changes=changes if known else (),
            )
        )
        before = after or before
    shown = tuple(reversed(moves))[:limit]
    samples = _samples(repository, history, rows) if rows else ()
    return PageChannel(state=state, moves=shown, samples=samples)


def _stored(repository: LanceRepository, commit_id: str) -> RepositoryCommit | None:
    # The commit of an old entry may have been collected.
    with suppress(NotFoundError):
        return repository.head(commit_id)
    return None


def _on_main(commit: RepositoryCommit | None, main: Iterable[str]) -> str:
    if commit is None:
        return ""
    # The commit of a channel that got some tables of a commit has that commit as its last parent.
    return next((each for each in (commit.id, *reversed(commit.parents)) if each in main), "")


def _samples(repository: LanceRepository, history: Sequence[RefEntry], limit: int) -> tuple[RowSample, ...]:
    """Return rows that differ between the two newest commits of a channel, for each table that differs."""
    commits = list(dict.fromkeys(entry.commit for entry in history if entry.commit))[:2]
    if len(commits) < 2:  # noqa: PLR2004  # two moments
        return ()
    try:
        differences = repository.diff(commits[1], commits[0]).tables
    except NotFoundError:
        # The older commit was collected.
        return ()
    return tuple(_sample(table, limit) for table in differences)


def _sample(table: TableDiff, limit: int) -> RowSample:
    if table.kind != "changed":
        return RowSample(table=table.name, counts=f"the table was {table.kind}")
    try:
        difference = table.rows()
        return RowSample(
            table=table.name, counts=str(difference.stat()), rows=tuple(_first_rows(difference.rows(), limit))
        )
    # A version may have been collected, a file be damaged, or the rows not fit into memory.
    except (LanceDagsterError, OSError) as error:
        return RowSample(table=table.name, counts=f"the rows cannot be compared: {error}")


def _first_rows(reader: pa.RecordBatchReader, limit: int) -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = []
    # Batch by batch: the first rows of a large difference must not cost the reading of all of it.
    for batch in reader:
        rows += shown_rows(batch.slice(0, limit - len(rows)))
        if len(rows) >= limit:
            break
    return rows


def _candidate(repository: LanceRepository, waiting: WaitingCandidate) -> PageCandidate:
    forks, rows = {}, 0
    for candidate_table in waiting.tables:
        # The branch, or the version that it was forked from, may be gone, or be deleted at this moment.
        with suppress(NotFoundError):
            if candidate_table.head is not None:
                table = repository.table(candidate_table.table)
                fork = forks[candidate_table.table] = table.branches.get(candidate_table.branch).parent
                written = table.diff(fork, candidate_table.head).fragments
                rows += sum(fragment.rows_after for fragment in written if fragment.kind == ADDED)
    return PageCandidate(waiting=waiting, forked_from=forks, rows=rows)


def _urgency(candidate: PageCandidate) -> tuple[bool, float]:
    return not candidate.refused, -(candidate.newest.timestamp() if candidate.newest else 0.0)


def _tables(
    repository: LanceRepository, status: RepositoryStatus, commits: Sequence[PageCommit]
) -> tuple[PageTable, ...]:
    published: dict[str, PageCommit] = {}
    # From the newest commit on: the first commit that names a table is its last publication.
    for commit in commits:
        for move in commit.changes:
            published.setdefault(move.name, commit)
    growth = max(_LEAST_GROWTH, min(_MOST_GROWTH, _GROWTH // max(1, len(status.tables))))
    branches: dict[str, list[str]] = {}
    for branch, names in status.waiting.items():
        for name in names:
            branches.setdefault(name, []).append(branch)

    def table(state: TableState) -> PageTable:
        page_table = PageTable(
            state=state, published=published.get(state.name), branches=tuple(branches.get(state.name, ()))
        )
        if state.main is None:
            return replace(page_table, problem="the table no longer exists")
        try:
            return _with_versions(page_table, repository.table(state.name), growth)
        # One damaged table must not hide all other tables.
        except (LanceDagsterError, OSError) as error:
            return replace(page_table, problem=str(error))

    tables = concurrently(table, status.tables)
    places = {name: place for place, name in enumerate(published)}
    return tuple(sorted(tables, key=lambda table: (places.get(table.name, len(places)), table.name)))


def _with_versions(page_table: PageTable, table: LanceTable, growth: int) -> PageTable:
    # The files and not the rows are opened: no file of rows is read.
    files = [file for fragment in table.to_lance(MAIN).get_fragments() for file in fragment.data_files()]
    sizes: list[int | None] = [file.file_size_bytes for file in files]
    return replace(
        page_table,
        growth=tuple(reversed(table.log(MAIN, limit=growth))),
        versions=len(table.branches.version_numbers(MAIN)),
        bytes=None if None in sizes else sum(size or 0 for size in sizes),
    )
