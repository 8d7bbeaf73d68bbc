"""Which promotions of a channel count for which tables, and what the tables were before them.

A promotion moves some tables of a channel. A rollback takes some tables back, and withdraws promotions for these tables
only. Each entry of the log records both: the tables that it moves, and for each of them the entries that it withdraws.
`channel~N` of some tables goes back before the last N promotions that moved one of these tables and are not withdrawn
for it. Every other table stays as the channel names it.

    entry  action    moves        withdraws    readers see
    1      promote   a, b                      a1  b1
    2      promote   a                         a2  b1
    3      promote   b                         a2  b2
    4      promote   a                         a3  b2
    5      rollback  a            2, 4 for a   a1  b2
    6      promote   b                         a1  b3

After entry 6, `~1` of `b` is b2 (before entry 6), and `~2` of `b` is b1. `~1` of `a` does not exist: only entry 1
counts for `a`, and the channel named no version before it. `~1` of all tables is a1 and b2, and `~2` is a1 and b1:
entries 2 and 4 no longer count for any table, so `~2` goes back before entry 3. Right before entry 3 readers saw a2,
which was withdrawn since. So a state may be composed of the versions of several commits.

An entry that was withdrawn withdraws nothing, so promotions that it had withdrawn count again: a move that met a
collection is undone this way.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

from lance_dagster.errors import RefNotFoundError, counted
from lance_dagster.repository.commits.entry_ranges import different_entries
from lance_dagster.repository.commits.ref_log import RefLogs
from lance_dagster.repository.commits.snapshot import (
    Moves,
    RefEntry,
    RepositoryCommit,
    TableVersion,
    composed_commit,
)

RESTORES = "restores"
"""Property of an entry of a channel: the id of an earlier commit, whose content the commit of the entry restores."""
_NEVER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A promotion of a channel: its entry, the entry before it, and the ids of the tables for which it counts."""

    entry: RefEntry
    before: RefEntry | None
    tables: frozenset[str]


@dataclass(slots=True)
class Withdrawal:
    """Promotions that a rollback withdraws.

    Attributes:
        numbers: The numbers of their entries, by table.
        tables: All tables that these promotions moved, also tables that do not go back.
    """

    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    tables: set[str] = field(default_factory=set)

    def add(self, promotion: Promotion, table: str) -> None:
        """Withdraw a promotion for a table."""
        self.numbers[table].append(promotion.entry.number)
        self.tables |= promotion.tables


def by_id(commit: RepositoryCommit | None) -> dict[str, tuple[str, TableVersion]]:
    """Return the tables of a commit by their ids, each with its name."""
    return {} if commit is None else {at.id: (name, at) for name, at in commit.tables.items()}


def moved_tables(before: RepositoryCommit | None, after: RepositoryCommit) -> frozenset[str]:
    """Return the ids of the tables whose version or name differs between two commits, or that only one of them has."""
    old, new = different_entries({} if before is None else before.tables, after.tables)
    # A table that was only moved has two entries that differ, one under each name.
    return frozenset(at.id for tables in (old, new) for at in tables.values())


def changed_versions(
    before: Mapping[str, TableVersion], after: Mapping[str, TableVersion]
) -> Iterator[tuple[TableVersion, TableVersion | None]]:
    """Yield each version of `before` that differs in `after`, with the version there, or None where there is none."""
    old, new = different_entries(before, after)
    versions = {at.id: at for at in new.values()}
    return ((at, versions.get(at.id)) for at in old.values())


@dataclass(frozen=True, slots=True)
class Promotions:
    """The promotions of one channel."""

    logs: RefLogs
    channel: str

    def counting(self, upto: int | None = None, *, entries: Iterator[RefEntry] | None = None) -> Iterator[Promotion]:
        """Read the promotions that count for a table, newest first, each when it is asked for.

        Args:
            upto: The number of the newest entry to look at.
            entries: The entries, newest first, where the caller reads them.
        """
        newest_first = self.logs.entries("channel", self.channel, upto=upto) if entries is None else entries
        withdrawn: dict[str, list[Collection[int]]] = defaultdict(list)
        # A deletion ends the promotions: a new channel of the name has none of the deleted channel.
        for entry, before in _with_older(takewhile(lambda newer: not newer.deleted, newest_first)):
            moves = self._moves(entry, before)
            counts = frozenset(
                table for table in moves if not any(entry.number in numbers for numbers in withdrawn[table])
            )
            for table in counts:
                withdrawn[table].append(moves[table])
            if counts and entry.action != "rollback":
                yield Promotion(entry=entry, before=before, tables=counts)

    def earlier(
        self, entry: RefEntry, steps: int, tables: Collection[str] | None = None
    ) -> tuple[RepositoryCommit, Withdrawal]:
        """Return the state some promotions before an entry, and the promotions that a rollback to it withdraws.

        Args:
            entry: The entry from which the promotions are counted.
            steps: How many promotions to go back.
            tables: The ids of the tables that go back, whose promotions count; None for all.

        Raises:
            RefNotFoundError: There were fewer promotions of these tables.
        """
        present, withdrawal = self.logs.commit(entry.commit), Withdrawal()
        # The entry before the oldest promotion that is withdrawn for each table.
        sources: dict[str, RefEntry] = {}
        count = 0
        for promotion in self.counting(entry.number) if steps else ():
            scope = promotion.tables if tables is None else promotion.tables & frozenset(tables)
            if not scope:
                continue
            if promotion.before is None:
                break
            for table in scope:
                sources[table] = promotion.before
                withdrawal.add(promotion, table)
            count += 1
            if count == steps:
                break
        if count < steps:
            raise self._fewer(entry, steps, count, tables)
        return self._state(present, sources, entry, f"{self.channel}~{steps}"), withdrawal

    def withdrawn_by(self, entry: RefEntry, targets: Mapping[str, TableVersion | None]) -> Withdrawal:
        """Return the promotions that are withdrawn where tables go back from an entry to other versions.

        For each table these are the newest promotions, as long as the version before the promotion is the target or is
        not older than the target. Example: the channel named versions 2, 5 and 7 of a table. A rollback to 2 withdraws
        the promotions of 5 and 7. A rollback to 4 withdraws the promotion of 7 only, so that `~1` leads to 2 next.

        Args:
            entry: The newest entry of the channel.
            targets: By id, the version to which a table goes back; None where the channel is not to name the table.
        """
        passed: dict[str, list[Promotion]] = {table: [] for table in targets}
        # How many of the passed promotions are withdrawn.
        reach, waiting = dict.fromkeys(targets, 0), set(targets)
        for promotion in self.counting(entry.number):
            if not waiting:
                break
            older = by_id(None if promotion.before is None else self.logs.commit(promotion.before.commit))
            for table in promotion.tables & waiting:
                passed[table].append(promotion)
                _, version = older.get(table, ("", None))
                target, count = targets[table], len(passed[table])
                # The first promotion of the table: there is no earlier version.
                if version == target or version is None:
                    waiting.discard(table)
                if version == target or (reach[table] == count - 1 and _is_as_new(version, target)):
                    reach[table] = count
        withdrawal = Withdrawal()
        for table, promotions in passed.items():
            for promotion in promotions[: reach[table]]:
                withdrawal.add(promotion, table)
        return withdrawal

    def commits_back(self, steps: int) -> list[str]:
        """Return the ids of the commits of the newest entries, as far as `channel~steps` of all tables needs them."""
        entries = self.logs.entries("channel", self.channel)
        if not steps:
            return [entry.commit for entry in islice(entries, 1)]
        passed: list[RefEntry] = []

        def noted() -> Iterator[RefEntry]:
            for entry in entries:
                passed.append(entry)
                yield entry

        for _ in islice(self.counting(entries=noted()), steps):
            pass
        # The entries in between are needed too: a collection cuts the log at an entry whose commit it deletes.
        return [entry.commit for entry in passed]

    def _moves(self, entry: RefEntry, before: RefEntry | None) -> Moves:
        """Return the tables that an entry moves, with what it withdraws for each of them."""
        if entry.moves is not None or entry.action in ("hold", "release"):
            return entry.moves or {}
        # An earlier version of this package did not record the moves; its rollbacks moved all tables.
        present = self.logs.commit(entry.commit)
        moved = moved_tables(None if before is None else self.logs.commit(before.commit), present)
        withdrawn: Collection[int] = ()
        if entry.action == "rollback":
            target = entry.properties.get(RESTORES) or entry.commit
            older = self.logs.entries("channel", self.channel, upto=entry.number - 1)
            restored_at = next((earlier.number for earlier in older if earlier.commit == target), 0)
            withdrawn = range(restored_at + 1, entry.number)
        return dict.fromkeys(moved, withdrawn)

    def _state(
        self, present: RepositoryCommit, sources: Mapping[str, RefEntry], entry: RefEntry, name: str
    ) -> RepositoryCommit:
        """Return the commit that has the tables of an entry, some of them as an earlier entry has them."""
        # The oldest commit first: usually it is the whole state.
        entries = sorted(sources.values(), key=lambda source: source.number)
        older = [self.logs.commit(commit) for commit in dict.fromkeys(source.commit for source in entries)]
        commits = {commit.id: by_id(commit) for commit in older}
        tables = {name: at for name, at in present.tables.items() if at.id not in sources}
        tables |= dict(commits[at.commit][table] for table, at in sources.items() if table in commits[at.commit])
        for commit in (*older, present):
            if commit.tables == tables:
                return commit
        return composed_commit(tables, (*older, present), entry, name)

    def _fewer(self, entry: RefEntry, steps: int, count: int, tables: Collection[str] | None) -> RefNotFoundError:
        """Return the error for more steps than there are promotions."""
        names = "" if tables is None else f" of {', '.join(self._names(entry, tables))}"
        instead = (
            f"{self.channel} can be followed back by {counted(count, 'promotion')}{names}"
            if count
            else f"{self.channel} named no other {'commit' if tables is None else 'version'}{names} yet"
        )
        scope = None if tables is None else frozenset(tables)
        counting = {
            promotion.entry.number
            for promotion in self.counting(entry.number)
            if scope is None or promotion.tables & scope
        }
        for earlier in self.logs.entries("channel", self.channel, upto=entry.number):
            if earlier.deleted:
                break
            is_promotion = earlier.action == "promote" and (
                scope is None or earlier.moves is None or scope & earlier.moves.keys()
            )
            if is_promotion and earlier.number not in counting:
                instead += (
                    f"; promotions that were rolled back do not count: {self.channel}@{earlier.number} names that entry"
                )
                break
        return RefNotFoundError(f"{self.channel}~{steps}", [], self.logs.store.uri, "channel", instead)

    def _names(self, entry: RefEntry, tables: Collection[str]) -> list[str]:
        present = by_id(self.logs.commit(entry.commit))
        return sorted(present[table][0] for table in tables if table in present)


def _with_older(entries: Iterator[RefEntry]) -> Iterator[tuple[RefEntry, RefEntry | None]]:
    """Return each entry with the entry before it."""
    newer = next(entries, None)
    while newer is not None:
        older = next(entries, None)
        yield newer, older
        newer = older


def _is_as_new(version: TableVersion | None, target: TableVersion | None) -> bool:
    """Return whether a version is not older than the target; False where a version has no number on `main`."""
    if version is None or target is None:
        return version is not None
    return _NEVER not in (version.lands, target.lands) and version.lands >= target.lands
