"""Take tables of a channel back: what a rollback moves, and which promotions it withdraws.

A rollback of all tables names the earlier commit itself. A rollback of some tables, or to a state that no commit has,
makes a commit of the channel alone, with the older versions of the tables that go back and the present versions of all
others.

A request for a rollback has an identity, which its entry records. A call that is repeated after a crash finds the entry
and changes nothing. A caller may give the identity, such as the id of a run; then an entry anywhere in the log counts.
Without it, the identity is a digest of all arguments, and only the newest entry counts: after the channel was moved, a
person may want another rollback with the same arguments.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pendulum

from lance_dagster.errors import RefMovedError, RefNotFoundError
from lance_dagster.history.ref_grammar import parse
from lance_dagster.repository.channel_moves import (
    Channel,
    ChannelMoves,
    TableMove,
    channel_at,
    refuse_held,
    unknown_channel,
)
from lance_dagster.repository.commits.promotions import Promotions, Withdrawal, by_id
from lance_dagster.repository.commits.ref_log import next_entry, person, with_properties
from lance_dagster.repository.commits.resolve_commit import is_ancestor, resolve_commit
from lance_dagster.repository.commits.snapshot import (
    ChannelHold,
    Recorded,
    RefEntry,
    RepositoryCommit,
    TableVersion,
    new_commit,
    writes_of,
)
from lance_dagster.repository.publish.staging import NEVER
from lance_dagster.repository.registry import RepositoryContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """A request to move a channel back.

    Attributes:
        channel: The channel.
        tables: The names of the tables that go back; None for all.
        steps: How many promotions to go back, where `to` is None.
        to: The commit to go back to, or an expression that names it.
        reason: Why.
        hold: Whether the channel is held there.
        who: Who asks for it; empty for the committer.
        properties: Kept in the history.
        request: The identity that the caller gave the request; empty to use a digest of the arguments.
    """

    channel: str
    tables: tuple[str, ...] | None
    steps: int
    to: RepositoryCommit | str | None
    reason: str
    hold: bool
    who: str
    properties: Mapping[str, str]
    request: str

    @property
    def identity(self) -> str:
        """The identity that the entry records."""
        if self.request:
            return self.request
        to = self.to.id if isinstance(self.to, RepositoryCommit) else self.to
        tables = None if self.tables is None else sorted(self.tables)
        arguments = [tables, self.steps, to, self.reason, self.hold, self.who]
        return hashlib.sha256(json.dumps(arguments).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a rollback leads.

    Attributes:
        present: The commit that the channel names before the rollback.
        source: The commit that has the older versions.
        tables: The version of each table afterwards, by its name.
        moved: The ids of the tables that move.
        withdrawal: The promotions that are withdrawn.
        is_counted: Whether the rollback counts promotions, and so never moves a table forward.
    """

    present: RepositoryCommit
    source: RepositoryCommit
    tables: Mapping[str, TableVersion]
    moved: frozenset[str]
    withdrawal: Withdrawal
    is_counted: bool


@dataclass(slots=True)
class ChannelRollback:
    """One call that moves a channel back; it decides again each time another process moves the channel meanwhile.

    Attributes:
        repository: The repository.
        request: The request.
        first_entry: The newest entry of the channel at the first decision.
        first_versions: By id, the versions at the first decision of the tables that go back.
        moves: The moves that the last decision led to.
        staying: The tables that stay, although a withdrawn promotion moved them too.
    """

    repository: RepositoryContext
    request: RollbackRequest
    first_entry: RefEntry | None = None
    first_versions: Mapping[str, TableVersion] = field(default_factory=dict)
    moves: tuple[TableMove, ...] = ()
    staying: tuple[str, ...] = ()

    def decide(self, before: RefEntry | None) -> RefEntry | None:
        """Return the entry that moves the channel back from entry `before`; None where the request is fulfilled."""
        request = self.request
        target = self._target(before)
        if target is None or before is None:
            return None
        withdrawn = target.withdrawal.numbers
        if target.source.id == before.commit and not (target.moved or withdrawn or request.hold):
            return None
        commit = self._commit(target)
        held = (
            ChannelHold(reason=request.reason, held_by=request.who or person(), held_at=pendulum.now("UTC"))
            if request.hold
            else None
        )
        entry = next_entry(before, "rollback", commit.id, reason=request.reason, hold=held, by=request.who)
        # A table that a later promotion brought to its older version does not move, and its promotions are withdrawn.
        moves = {table: tuple(sorted(withdrawn.get(table, ()))) for table in target.moved | withdrawn.keys()}
        return replace(with_properties(entry, request.properties), moves=moves, request=request.identity)

    def preview(self) -> Channel:
        """Return the channel as it is, with the moves that the rollback would make."""
        before = self.repository.logs.newest("channel", self.request.channel)
        if before is None or before.deleted:
            raise unknown_channel(self.repository, self.request.channel)
        self._target(before)
        return self.described(channel_at(self.request.channel, before))

    def described(self, channel: Channel) -> Channel:
        """Return a channel with the moves of the rollback, and the tables that stay."""
        return replace(channel, moves=self.moves, left=self.staying)

    def _target(self, before: RefEntry | None) -> Target | None:
        request = self.request
        if before is None:
            raise unknown_channel(self.repository, request.channel)
        self.moves, self.staying = (), ()
        if self._is_repeated(before):
            return None
        present = self.repository.logs.commit(before.commit)
        scope = None if request.tables is None else self.repository.ids_in(present, request.tables)
        self._refuse_moved(before, present, scope)
        # A hold keeps a channel from newer commits, so going further back is allowed. Going forward is not, nor is a
        # rollback without a hold, whose entry would end the hold.
        if not request.hold:
            refuse_held(request.channel, before)
        target = self._resolved(before, present, scope)
        if (before.hold is not None or before.withdrawn) and self._goes_forward(target):
            refuse_held(request.channel, before)
            ChannelMoves(self.repository).refuse_withdrawn(request.channel, before, target.source, target.tables)
        self._describe(target, scope)
        return target

    def _is_repeated(self, before: RefEntry) -> bool:
        if before.request == self.request.identity:
            return True
        if not self.request.request:
            return False
        # Another process may have moved the channel since the request was fulfilled.
        entries = self.repository.logs.entries("channel", self.request.channel, upto=before.number - 1)
        return any(entry.request == self.request.request for entry in entries)

    def _refuse_moved(self, before: RefEntry, present: RepositoryCommit, scope: Mapping[str, str] | None) -> None:
        """Refuse a decision after another process moved a table that goes back: steps would lead to another version."""
        versions = {at.id: at for at in present.tables.values() if scope is None or at.id in scope}
        if self.first_entry is None:
            self.first_entry, self.first_versions = before, versions
        if versions != self.first_versions:
            raise RefMovedError(self.request.channel, self.first_entry.commit, "another commit meanwhile")

    def _resolved(self, before: RefEntry, present: RepositoryCommit, scope: Mapping[str, str] | None) -> Target:
        """Return where the rollback leads.

        Raises:
            RefNotFoundError: The channel had fewer promotions than the rollback goes back, or the commit lacks a table
                that is to go back.
        """
        promotions, to = Promotions(self.repository.logs, self.request.channel), self.request.to
        steps, withdrawal = self._steps(), None
        if steps is not None:
            source, withdrawal = promotions.earlier(before, steps, scope)
        else:
            source = resolve_commit(self.repository.logs, to, scope) if isinstance(to, str) else to  # type: ignore[assignment]  # a commit
        older, now = by_id(source), by_id(present)
        if scope is not None and (missing := [name for table, name in scope.items() if table not in older]):
            named = f"commit {source.short_id}" if steps is None else f"{self.request.channel}~{steps}"
            raise RefNotFoundError(
                named,
                [],
                self.repository.root,
                f"version of {', '.join(missing)} at",
                "the channel first named it later, so there is no older version to go back to",
            )
        moved = frozenset(
            table
            for table in (older.keys() | now.keys() if scope is None else scope)
            if older.get(table) != now.get(table)
        )
        tables = {name: at for name, at in present.tables.items() if at.id not in moved}
        tables |= dict(older[table] for table in moved if table in older)
        if withdrawal is None:
            versions = {table: older[table][1] if table in older else None for table in moved}
            withdrawal = promotions.withdrawn_by(before, versions)
        return Target(
            present=present,
            source=source,
            tables=tables,
            moved=moved,
            withdrawal=withdrawal,
            is_counted=steps is not None,
        )

    def _steps(self) -> int | None:
        """Return how many promotions the request goes back; None where the request names a commit."""
        if self.request.to is None:
            return self.request.steps
        if isinstance(self.request.to, RepositoryCommit):
            return None
        # A rollback to `production~2` counts promotions, as a rollback by 2 steps does, and withdraws the same ones.
        expression = parse(self.request.to)
        is_counted = (
            expression.name == self.request.channel
            and not expression.suffix
            and [step.sign for step in expression.steps] == ["~"]
        )
        return expression.steps[0].count if is_counted else None

    def _commit(self, target: Target) -> RepositoryCommit:
        """Return the commit that the channel is to name, and store it."""
        for commit in (target.source, target.present):
            if commit.is_stored and commit.tables == target.tables:
                return commit
        # With the present commit as a parent the channel contains what was published: a repeated publication does not
        # bring back what the rollback withdrew.
        parents = (target.present, target.source) if target.source.is_stored else (target.present,)
        request = self.request
        commit, data = new_commit(
            target.tables,
            parents,
            author=request.who or person(),
            message=request.reason,
            properties=request.properties,
            recorded=Recorded(writes_of(target.tables, (target.source, target.present)), target.present.channels),
        )
        self.repository.logs.put_commit(commit, data, base=target.present)
        return commit

    def _goes_forward(self, target: Target) -> bool:
        """Return whether a table moves to a newer version, or may do so, where its versions cannot be compared."""
        if target.is_counted:
            return False
        now, after = by_id(target.present), {at.id: at for at in target.tables.values()}
        pairs = [(now.get(table), after.get(table)) for table in target.moved]
        if any(old is None or (new is not None and NEVER in (old[1].lands, new.lands)) for old, new in pairs):
            # A version that is not on `main` has no number to compare.
            source = target.source
            return not (source.is_stored and is_ancestor(self.repository.logs, source.id, target.present.id))
        return any(old is not None and new is not None and new.lands > old[1].lands for old, new in pairs)

    def _describe(self, target: Target, scope: Mapping[str, str] | None) -> None:
        """Set the moves of the tables, and the tables of withdrawn promotions that stay."""
        now, after = by_id(target.present), {at.id: (name, at) for name, at in target.tables.items()}
        versions = now | after
        names = {table: (scope or {}).get(table) or versions[table][0] for table in versions}
        self.moves = tuple(
            TableMove(
                name=names[table],
                before=now[table][1] if table in now else None,
                after=after[table][1] if table in after else None,
            )
            for table in sorted(versions if scope is None else scope, key=lambda table: names[table])
        )
        unmoved = target.withdrawal.tables - target.moved
        self.staying = tuple(
            sorted(names[table] for table in unmoved if scope is not None and table in names and table not in scope)
        )
