"""The status of the tables, channels and branches of a repository."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lance_dagster.errors import CommitConflictError, InvalidInputError, NotFoundError, counted
from lance_dagster.format.layout import BRANCH_PIN, LANDING_PIN, MAIN, PIN, PUBLISHED, RUNS
from lance_dagster.format.transaction import MERGE, SAME_ROWS, WITHOUT_ROWS
from lance_dagster.history.context import TableContext, first_parent_log
from lance_dagster.history.versions import State, Version
from lance_dagster.repository.candidate_status import count_candidates
from lance_dagster.repository.collect_commits import CommitRetention
from lance_dagster.repository.commits.ref_log import TAGS, RefLogs
from lance_dagster.repository.commits.snapshot import ChannelHold, RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.publish.forks import ForkedTables, branch_id_of, forked_tables, lost_branch
from lance_dagster.repository.publish.staging import for_each_table, landed_at
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.repository.run_branches import is_as_forked
from lance_dagster.transactions.claims import OVERWRITE, REPLACE, decode_claims

T = TypeVar("T")
# A table with more versions on `main` that no commit has is not looked at for maintenance: each is read for it.
_MOST_AHEAD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table compared with the newest commit of the repository.

    Attributes:
        name: The table.
        at: The version that the repository names; None for a table that was never committed.
        main: The newest version of the table's own `main`; None when there is no longer a table at its place.
        ahead: How many versions other programs committed to `main` since; the next publication of the table, or
            `commit`, adds them to the repository.
        maintenance: How many versions of `ahead` change no row, such as compactions; None where `ahead` is above 100.
        lagging: Whether `main` does not have the version of the repository yet; `repair` brings it there.
        replaced: Whether another program deleted the table and created a new table at its place. `remove_table` drops
            the old table from the repository, and then `adopt` adds the new table; the old table can no longer be read
            at older commits.
        moved_tags: The tags that no longer follow their channel, with the version they name: another program moved
            them, or a publication was interrupted.
        missing_tags: The channels that name the table although it has no tag of their name: another program deleted the
            tag, or a publication was interrupted.
        held_tags: The tags that are held although their channel is not, with the hold as text: a publisher of the
            channel publishes nothing until they are released.
    """

    name: str
    at: TableVersion | None
    main: str | None
    ahead: int
    lagging: bool
    replaced: bool
    moved_tags: Mapping[str, str]
    maintenance: int | None = 0
    missing_tags: tuple[str, ...] = ()
    held_tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def commits_ahead(self) -> str:
        """The versions of `main` that the repository does not have, as text: maintenance, and others."""
        if self.maintenance is None:
            return f"{self.ahead} of any kind"
        others = self.ahead - self.maintenance
        kinds = [
            *([f"{self.maintenance} of maintenance, which changes no row"] if self.maintenance else []),
            *([f"{others} that {'changes' if others == 1 else 'change'} the table"] if others else []),
        ]
        return " and ".join(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """A channel: its commit, how many commits `main` is ahead of it, and its hold.

    `behind` is None where the commit is not on the line of first parents of `main`, or a commit in between was
    collected.
    """

    name: str
    commit: str
    behind: int | None
    hold: ChannelHold | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryStatus:
    """The status of a repository.

    Attributes:
        commit: The newest commit of `main`.
        tables: The registered tables.
        channels: The channels.
        waiting: By branch that was not published, its tables: branches of `fork`, and run branches that were made in
            the tables themselves. A table that was removed since is written `orders (removed)`.
        unwritten: By waiting branch, the tables in which nothing was committed to it: the run is under way, or failed
            before its first commit.
        superseded: By waiting branch that can no longer be published, the tables with the version of `main` that
            replaced the rows which the branch replaces.
        lost: By waiting branch that cannot be published, the tables that have lost the branch that was forked: fork
            these tables again, or discard their part.
        candidates: How many candidates of runs and backfills wait by the record; `repository.candidates()` has them.
        collectable: The approximate minimum number of commits that a collection with the default retention deletes.
        held_versions: How many branches and tags of tables hold versions for commits; they are deleted with their
            commits.
    """

    commit: RepositoryCommit
    tables: tuple[TableState, ...]
    channels: tuple[ChannelState, ...]
    waiting: Mapping[str, tuple[str, ...]]
    unwritten: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    superseded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: int = 0
    collectable: int = 0
    held_versions: int = 0

    def written(self, branch: str) -> tuple[str, ...]:
        """Return the tables in which a waiting branch has commits of its own."""
        return tuple(name for name in self.waiting[branch] if name not in self.unwritten.get(branch, ()))

    @property
    def empty(self) -> tuple[str, ...]:
        """The waiting branches to which nothing was committed in any table: no rows wait there."""
        return tuple(name for name in self.waiting if name in self.unwritten and not self.written(name))

    def __str__(self) -> str:
        """Return a line for `main`, each channel, each table with findings, and each branch that waits."""
        lines = [f"main: {self.commit.short_id} {self.commit.message}, {counted(len(self.commit.tables), 'table')}"]
        for channel in self.channels:
            held = f", held by {channel.hold.held_by}: {channel.hold.reason}" if channel.hold else ""
            behind = "apart from main" if channel.behind is None else f"{channel.behind} behind main"
            lines.append(f"channel {channel.name}: {channel.commit[:12]}, {behind}{held}")
        for table in self.tables:
            findings = [
                *(["the table no longer exists"] if table.main is None else []),
                *(["another table has its place"] if table.replaced else []),
                *(["never committed"] if table.at is None else []),
                *([f"main has versions that are not committed: {table.commits_ahead}"] if table.ahead else []),
                *(["main lags behind"] if table.lagging else []),
                *(f"tag {tag} names {version}" for tag, version in table.moved_tags.items()),
                *(f"tag {tag} is missing" for tag in table.missing_tags),
                *(f"tag {tag} is {hold}" for tag, hold in table.held_tags.items()),
            ]
            if findings:
                lines.append(f"table {table.name}: {'; '.join(findings)}")
        lines += self._branch_lines()
        if self.candidates:
            lines.append(f"{counted(self.candidates, 'candidate')} recorded by runs: `candidates` shows what waits")
        if self.collectable:
            commits, held = counted(self.collectable, "old commit"), counted(self.held_versions, "branch or tag")
            lines.append(f"`collect` would delete {commits}; tables hold versions for commits by {held}")
        return "\n".join(lines)

    def _branch_lines(self) -> Iterator[str]:
        for name in self.waiting:
            yield from (f"table {table}: {lost_branch(name, table)}" for table in self.lost.get(name, ()))
            if name in self.empty:
                continue
            newer = [f"{table} {version}" for table, version in self.superseded.get(name, {}).items()]
            advice = f"; superseded by {', '.join(newer)}: discard it" if newer else ""
            yield f"branch {name} waits: {', '.join(self.written(name))}{advice}"
        if self.empty:
            branches = counted(len(self.empty), "branch")
            yield f"{branches} without commits, of runs that are under way or failed before: `discard` deletes a branch"


def status_of_repository(repository: RepositoryContext, tables: Collection[str] | None = None) -> RepositoryStatus:
    """Read the channels, the branches that wait, and tables; this writes nothing.

    No table is opened: a listing of its versions, its refs and its identity are read, and the version that a run
    published.

    Args:
        repository: The repository.
        tables: The tables to look at; None for all.
    """
    newest = repository.logs.current("branch", MAIN)
    head = repository.logs.commit(newest.commit)
    channels = dict(sorted(repository.logs.live("channel").items()))
    followed = {
        name: FollowedChannel(entry, repository.logs.commit(entry.commit).tables) for name, entry in channels.items()
    }
    # A table may be registered and not committed yet, or committed and removed from the register since.
    names = sorted({*repository.registry.names(), *head.tables} if tables is None else {*tables})
    if tables is None:
        # All ranges of a commit of many tables are read at once, and not one by one.
        versions: Mapping[str, TableVersion] = dict(head.tables)
        followed = {name: replace(channel, tables=dict(channel.tables)) for name, channel in followed.items()}
    else:
        versions = head.tables
    looks = _each_table(repository, lambda name: _look(repository, name, versions.get(name), followed), names)
    forked = _forked(repository, head)
    waiting = {
        branch: {*tables.names, *(f"{name} (removed)" for name in tables.removed.values())}
        for branch, tables in forked.items()
    }
    # A run of Dagster makes its branch in each table as it writes there. The repository learns of it when the run is
    # published; until then only the tables know.
    run_branches = {name: [branch for branch in looks[name].branches if branch.startswith(RUNS)] for name in names}
    for name in names:
        for branch in run_branches[name]:
            waiting.setdefault(branch, set()).add(name)
    # Nothing is read for a table without branches that wait.
    waits = [name for name in names if any(name in waiting.get(branch, ()) for branch in looks[name].branches)]
    heads = for_each_table(lambda name: _heads(repository.table(name), name, waiting, looks[name].branches), waits)
    newer = for_each_table(lambda name: superseded_branches(repository.table(name), run_branches[name]), waits)
    return RepositoryStatus(
        commit=head,
        tables=tuple(looks[name].state for name in names),
        channels=_channel_states(repository.logs, channels, head, newest),
        waiting={branch: tuple(sorted(waiting[branch])) for branch in sorted(waiting)},
        unwritten=_unwritten(waiting, heads),
        lost=_lost(forked, heads, looked_at=names),
        superseded={
            branch: {name: newer[name][branch] for name in waits if branch in newer[name]}
            for branch in sorted({branch for name in waits for branch in newer[name]})
        },
        candidates=count_candidates(repository, head),
        collectable=_collectable(repository.logs, channels=len(channels), branches=len(waiting)),
        held_versions=sum(look.held_versions for look in looks.values()),
    )


@dataclass(frozen=True, slots=True)
class FollowedChannel:
    """A channel that tags of tables follow: its newest entry, and the versions of tables that it names."""

    entry: RefEntry
    tables: Mapping[str, TableVersion]


@dataclass(frozen=True, slots=True)
class _TableLook:
    """What the status reads of a table: its state, its branches, and how many versions are held for commits."""

    state: TableState
    branches: tuple[str, ...]
    held_versions: int


def _each_table(repository: RepositoryContext, look: Callable[[str], T], names: Sequence[str]) -> dict[str, T]:
    """Look at tables, many at the same time on an object store; on local disk a look takes less time than a thread."""
    if repository.store.ordered_listing:
        return for_each_table(look, names)
    return {name: look(name) for name in names}


def _look(
    repository: RepositoryContext, name: str, at: TableVersion | None, followed: Mapping[str, FollowedChannel]
) -> _TableLook:
    context = repository.table(name)
    branches, tags = context.refs.branches.names(""), context.refs.tags.names("")
    state = _table_state(context, name, at, followed=followed, tag_names=tags)
    if state.main is not None and repository.registry.was_replaced(name):
        # Another table has this place: its branches and tags say nothing about the table that was committed.
        state = replace(state, moved_tags={}, missing_tags=(), held_tags={}, ahead=0, lagging=False, replaced=True)
    return _TableLook(state, tuple(branches), _held(branches, tags))


def _channel_states(
    logs: RefLogs, channels: Mapping[str, RefEntry], head: RepositoryCommit, newest: RefEntry
) -> tuple[ChannelState, ...]:
    """Return the state of each channel.

    Args:
        logs: The commits and refs.
        channels: The newest entry of each channel.
        head: The newest commit of `main`.
        newest: The newest entry of `main`.
    """
    return tuple(
        ChannelState(
            name=name,
            commit=entry.commit,
            behind=_behind(logs, head, newest, entry.commit),
            hold=entry.hold,
        )
        for name, entry in channels.items()
    )


def held_versions(context: TableContext) -> int:
    """Return how many branches and tags of a table hold versions for commits."""
    return _held(context.refs.branches.names(PUBLISHED), context.refs.tags.names(""))


def _held(branches: Iterable[str], tags: Iterable[str]) -> int:
    held_tags = sum(name.startswith((PIN, BRANCH_PIN, LANDING_PIN)) for name in tags)
    return held_tags + sum(name.startswith(PUBLISHED) for name in branches)


def _forked(repository: RepositoryContext, head: RepositoryCommit) -> dict[str, ForkedTables]:
    """Return the branches that were forked and not ended, with their tables."""
    # The end of a branch deletes its marks. A branch with a mark still waits, whatever its log says: rows may have been
    # committed to the branch, or a table forked to it, while it was published.
    logs = {name: log for name, log in repository.logs.branch_logs().items() if log.marks}
    newest = repository.logs.newest_of(logs)
    return {name: forked_tables(repository, newest.get(name), log.marks, head) for name, log in logs.items()}


def _heads(
    context: TableContext, name: str, waiting: Mapping[str, Collection[str]], branches: Iterable[str]
) -> dict[str, State]:
    """Return the newest versions of the waiting branches of a table."""
    heads = {}
    for branch in branches:
        # A branch may have been deleted since it was listed, or it is being made or reset.
        with suppress(NotFoundError, CommitConflictError):
            if name in waiting.get(branch, ()):
                heads[branch] = context.head(branch)
    return heads


def _unwritten(waiting: Mapping[str, set[str]], heads: Mapping[str, Mapping[str, State]]) -> dict[str, tuple[str, ...]]:
    """Return the waiting branches that are as they were forked, with the tables in which they are."""
    unwritten = {
        branch: tuple(name for name in sorted(heads) if branch in heads[name] and is_as_forked(heads[name][branch]))
        for branch in sorted(waiting)
    }
    return {branch: names for branch, names in unwritten.items() if names}


def _lost(
    forked: Mapping[str, ForkedTables], heads: Mapping[str, Mapping[str, State]], looked_at: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the branches that tables have lost, with these tables, of the tables that were looked at."""
    names = {*looked_at}
    lost = {
        branch: tuple(
            name
            for name in tables.names
            if name in names and tables.is_lost(name, branch_id_of(heads.get(name, {}).get(branch)))
        )
        for branch, tables in sorted(forked.items())
    }
    return {branch: names for branch, names in lost.items() if names}


def _collectable(logs: RefLogs, *, channels: int, branches: int) -> int:
    """Return how many commits a collection with the default retention deletes; usually it deletes more.

    No log is read for this, so the number of commits that the refs may need is subtracted.
    """
    retention = CommitRetention()
    # The local clock: reading the clock of the storage needs a write, for which a reader may lack permission.
    until = time.time() - max(retention.keep_for, retention.grace).total_seconds()
    old = sum(modified < until for modified in logs.ages()[0].values())
    # For each channel, its promotions and the entry that was in force at the time `until`; for `main`, the entry that
    # was in force then; for each other branch, the commit that it was forked from; and repository tags.
    needed = channels * (retention.promotions + 1) + 1 + branches + (len(logs.store.list(TAGS)) if old else 0)
    return max(0, old - needed)


def _table_state(
    context: TableContext,
    name: str,
    at: TableVersion | None,
    *,
    followed: Mapping[str, FollowedChannel],
    tag_names: Collection[str],
) -> TableState:
    numbers = context.versions.numbers(MAIN)
    if not numbers:
        return TableState(name=name, at=at, main=None, ahead=0, lagging=False, replaced=False, moved_tags={})
    landed = None if at is None else _landed_number(context, at, numbers)
    # In a table that the channel does not name, a tag of its name does not follow the channel.
    versions = {channel: version for channel, of in followed.items() if (version := of.tables.get(name)) is not None}
    tags = {channel: context.refs.tags.find(channel) if channel in tag_names else None for channel in versions}
    moved, held = {}, {}
    for channel, tag in tags.items():
        version = versions[channel]
        if tag is not None and tag.ref not in (str(version), _landed_ref(context, version, numbers)):
            moved[channel] = tag.ref
        if tag is not None and tag.hold is not None and followed[channel].entry.hold is None:
            held[channel] = str(tag.hold)
    # Where `main` lags behind, nothing tells which of its versions the commit contains already.
    ahead = [] if landed is None else [number for number in numbers if number > landed]
    return TableState(
        name=name,
        at=at,
        main=f"{MAIN}@{numbers[-1]}",
        ahead=len(ahead),
        maintenance=_maintenance_since(context, ahead),
        lagging=at is not None and landed is None,
        replaced=False,
        moved_tags=moved,
        missing_tags=tuple(channel for channel, tag in tags.items() if tag is None),
        held_tags=held,
    )


def _landed_ref(context: TableContext, at: TableVersion, numbers: Sequence[int]) -> str:
    number = _landed_number(context, at, numbers)
    return "" if number is None else f"{MAIN}@{number}"


def _landed_number(context: TableContext, at: TableVersion, numbers: Sequence[int]) -> int | None:
    """Return the number of `landed_at`, given the versions of `main`; at most one transaction is read for it."""
    if at.lands not in numbers:
        return None
    if at.branch == MAIN:
        return at.lands
    transaction = context.versions.transaction(MAIN, at.lands)
    if transaction is not None:
        return at.lands if transaction.properties.get(MERGE) == str(at) else None
    landed = landed_at(context, at)
    return None if landed is None else landed.number


def _behind(logs: RefLogs, head: RepositoryCommit, newest: RefEntry, commit_id: str) -> int | None:
    # Each commit of `main` has its predecessor as its only parent, and an entry of its own: a commit that is 3
    # generations behind the head is on `main` if the entry 3 numbers before the newest entry names it.
    steps = head.generation - logs.commit(commit_id).generation
    try:
        entry = newest if not steps else logs.entry("branch", MAIN, newest.number - steps) if steps > 0 else None
    except NotFoundError:
        # Commits between them were collected.
        return None
    return None if entry is None or entry.commit != commit_id else steps


def superseded_branches(context: TableContext, branches: Iterable[str]) -> dict[str, str]:
    """Return the branches of a table whose rows `main` has replaced since the fork, each with the newest such version.

    Such a branch cannot be published any more, because its merge has a conflict. The claims that both sides recorded
    tell this; no merge is tried, and no times are compared.

    Args:
        context: The table.
        branches: The names of branches; a branch that was deleted meanwhile is left out.
    """
    superseded = {}
    for branch in branches:
        try:
            own_versions = _commits(context, branch, after=MAIN)
            replaced = _replaced_partitions(own_versions)
            # The parent of the oldest version of the branch is the version that it was forked from.
            since = [] if replaced is None else _commits(context, MAIN, after=own_versions[-1].parents[0])
        except (NotFoundError, InvalidInputError):
            continue
        newer = next((version for version in since if _covers(_replaced_partitions([version]), replaced)), None)
        if newer is not None:
            superseded[branch] = str(newer)
    return superseded


def _maintenance_since(context: TableContext, numbers: Sequence[int]) -> int | None:
    """Return how many of the newest versions of `main` change no row; None for more versions than are read.

    Args:
        context: The table.
        numbers: The numbers of the versions.
    """
    if len(numbers) > _MOST_AHEAD:
        return None
    newest = _commits(context, MAIN, limit=len(numbers)) if numbers else []
    return sum(version.operation in SAME_ROWS for version in newest)


def _commits(context: TableContext, ref: str, *, after: str | None = None, limit: int | None = None) -> list[Version]:
    return first_parent_log(context, ref, after=after, limit=limit, only=None)


def _replaced_partitions(commits: Iterable[Version]) -> frozenset[tuple[str, str]] | None:
    """Return the partitions whose rows commits replaced, each by its partitioning and its key.

    It is empty for the whole table, and None if the commits did anything else.
    """
    keys: set[tuple[str, str]] = set()
    is_whole = is_other = False
    for commit in commits:
        claims = decode_claims(commit.properties)
        # A change of rows without a claim may be in any partition.
        is_other |= not claims and commit.operation not in WITHOUT_ROWS
        # Nothing tells whether the rows of one predicate are among the rows of another predicate.
        comparable = (claim.mode == OVERWRITE or (claim.mode == REPLACE and claim.partitions) for claim in claims)
        is_other |= not all(comparable)
        is_whole |= any(not claim.partitions for claim in claims)
        keys |= {(claim.partitioning, key) for claim in claims for key in claim.partitions}
    if is_other or not (is_whole or keys):
        return None
    return frozenset() if is_whole else frozenset(keys)


def _covers(newer: frozenset[tuple[str, str]] | None, older: frozenset[tuple[str, str]] | None) -> bool:
    if newer is None or older is None:
        return False
    return not newer or (bool(older) and older <= newer)
