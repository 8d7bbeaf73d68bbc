"""Channels: names that readers follow, with a history, rollback and hold.

A channel such as `production` names one commit of the repository, and so one version of every table. Each move is an
entry of its log: who, when, why, and which checks had passed. A held channel does not move until it is released.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypedDict, Unpack

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ProtectedError,
    RefMovedError,
    RefNotFoundError,
    Remedy,
)
from lance_dagster.history.refs.ref_names import check_tag_name
from lance_dagster.history.refs.tag_hold import given_reason
from lance_dagster.history.refs.tag_operations import release_tag
from lance_dagster.repository.commits.ref_log import EXPIRED, RefLogs, next_entry, person, with_properties
from lance_dagster.repository.commits.release_tags import read_tag
from lance_dagster.repository.commits.resolve_commit import RESTORES, earlier_promotions, is_ancestor, resolve_commit
from lance_dagster.repository.commits.snapshot import (
    Action,
    ChannelHold,
    RefEntry,
    RepositoryCommit,
    TableVersion,
    new_commit,
)
from lance_dagster.repository.projection import Lagging, project
from lance_dagster.repository.registry import Registry
from lance_dagster.repository.staging import NEVER, for_each_table

_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel: its name, the commit it names, its newest entry, and the tags of tables that lag behind."""

    name: str
    commit: str
    entry: RefEntry
    lagging: tuple[Lagging, ...] = ()

    @property
    def hold(self) -> ChannelHold | None:
        """The hold that keeps the channel from moving, or None."""
        return self.entry.hold


class PromoteOptions(TypedDict, total=False):
    """Options of a promotion."""

    reason: str
    properties: Mapping[str, str] | None
    expected: str | None
    forward_only: bool
    tags: bool


class RollbackOptions(TypedDict, total=False):
    """Options of a rollback."""

    steps: int
    to: str | None
    hold: bool
    who: str
    tags: bool


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one repository: `repository.channels`."""

    _logs: RefLogs
    _registry: Registry

    def list(self) -> dict[str, Channel]:
        """Read all channels, by name."""
        return {name: _channel(name, entry) for name, entry in sorted(self._logs.live("channel").items())}

    def get(self, name: str) -> Channel:
        """Read one channel.

        Raises:
            RefNotFoundError: There is no such channel.
        """
        return _channel(name, self._logs.current("channel", name))

    def history(self, name: str, limit: int | None = None) -> tuple[RefEntry, ...]:
        """Return the entries of a channel, newest first: who moved it when, where to and why."""
        self._logs.current("channel", name)
        return tuple(islice(self._logs.entries("channel", name), limit))

    def promote(
        self,
        name: str,
        at: str = "main",
        **options: Unpack[PromoteOptions],
    ) -> Channel:
        """Let a channel name a commit, and create the channel if there is none.

        The channel moves for all tables at once. The tags of that name in the tables follow one by one.

        Args:
            name: The channel.
            at: The commit, as a ref expression.
            **options: `reason` is shown by the history. `properties` are kept there, such as the checks that passed.
                `expected` is the id of the commit that the channel must name now. With `forward_only=True` a channel
                that names a commit which contains this one is left as it is. With `tags=False` the tags of the tables
                are left to the caller.

        Raises:
            ProtectedError: The channel is held.
            RefMovedError: The channel does not name `expected`.
        """
        commit, expected = resolve_commit(self._logs, at), options.get("expected")
        forward_only, reason = options.get("forward_only", False), options.get("reason", "")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if expected is not None and (before is None or before.commit != expected):
                raise RefMovedError(name, expected, "nothing" if before is None else before.commit)
            if before is not None:
                if before.commit == commit.id or (forward_only and is_ancestor(self._logs, commit.id, before.commit)):
                    return None
                _refuse_held(name, before)
            return with_properties(
                next_entry(before, "promote", commit.id, reason=reason), options.get("properties") or {}
            )

        return self._moved(name, entry, tags=options.get("tags", True))

    def advance(self, name: str, at: str, tables: Collection[str], **options: Unpack[PromoteOptions]) -> Channel:
        """Let a channel name some tables as a commit has them, and every other table as before.

        What was audited is promoted this way: `main` of the repository may have commits of other tables that no check
        looked at for this channel, or that were withdrawn from it. Where the channel names a newer version of a table,
        that version stays.

        Args:
            name: The channel.
            at: The commit, as a ref expression.
            tables: The tables to promote.
            **options: As for `promote`.

        Raises:
            ProtectedError: The channel is held.
        """
        commit, properties = resolve_commit(self._logs, at), options.get("properties") or {}

        def entry(before: RefEntry | None) -> RefEntry | None:
            present = None if before is None else self._logs.commit(before.commit)
            named = {} if present is None else present.tables
            wanted = {**named, **{one: commit.tables[one] for one in tables if _is_newer(commit, named, one)}}
            if before is not None and wanted == named:
                return None
            if before is not None:
                _refuse_held(name, before)
            target = commit
            if wanted != commit.tables:
                # A commit of the channel alone, which contains both that it was made from.
                parents = (commit,) if present is None else (present, commit)
                target, data = new_commit(
                    wanted, parents, author=person(), message=options.get("reason", ""), properties=properties
                )
                self._logs.put_commit(target, data)
            action: Action = "rollback" if RESTORES in properties else "promote"
            return with_properties(next_entry(before, action, target.id, reason=options.get("reason", "")), properties)

        return self._moved(name, entry, tags=options.get("tags", True))

    def rollback(self, name: str, *, reason: str, **options: Unpack[RollbackOptions]) -> Channel:
        """Let a channel name an earlier commit again, for all tables at once.

        After a crash it can be repeated: a channel that is held by a rollback for this reason stays where it is.
        Without a hold only `to` says where it shall stop; steps would be counted from where it is then.

        Args:
            name: The channel.
            reason: Why.
            steps: How many promotions to go back.
            to: The commit to go back to, as a ref expression, in place of steps.
            hold: Hold the channel there, so that the next publication does not bring back what was withdrawn.
            who: Who did it; empty for the committer.

        Raises:
            RefNotFoundError: There were fewer promotions.
            ProtectedError: The channel is held.
            NotFoundError: What the commit names is being collected.
        """
        given = given_reason(reason, "roll back")
        steps, to, who = options.get("steps", 1), options.get("to"), options.get("who", "")
        hold = options.get("hold", True)
        if steps < 1:
            raise InvalidInputError(f"a channel is rolled back by 1 step or more, not by {steps}")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is None:
                return self._logs.current("channel", name)
            if hold and _rolled_back(before, given):
                return None
            _refuse_held(name, before)
            target = None if to is None else resolve_commit(self._logs, to).id
            if target == before.commit and not hold:
                return None
            target = target or earlier_promotions(self._logs, name, before, steps)[-1]
            held = ChannelHold(reason=given, held_by=who or person(), held_at=pendulum.now("UTC")) if hold else None
            return next_entry(before, "rollback", target, reason=given, hold=held, by=who)

        # Looked up once: each further look would go back from what another process made of the channel meanwhile.
        return self._moved(name, entry, once=True, tags=options.get("tags", True))

    def hold(self, name: str, *, reason: str, who: str = "") -> Channel:
        """Keep a channel where it is until it is released.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: It is held already, for another reason.
        """
        given = given_reason(reason, "hold")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is None:
                return self._logs.current("channel", name)
            if before.hold is not None and before.hold.reason == given:
                return None
            _refuse_held(name, before)
            held = ChannelHold(reason=given, held_by=who or person(), held_at=pendulum.now("UTC"))
            return next_entry(before, "hold", before.commit, reason=given, hold=held, by=who)

        return self._moved(name, entry)

    def refuse_held(self, name: str) -> None:
        """Refuse to go on when a channel is held; one that does not exist is free.

        Raises:
            ProtectedError: It is held.
        """
        newest = self._logs.newest("channel", name)
        if newest is not None:
            _refuse_held(name, newest)

    def release(self, name: str, *, reason: str, who: str = "", tags: bool = True) -> Channel:
        """Let a held channel move again; a channel that is not held is left as it is.

        Args:
            name: The channel.
            reason: Why.
            who: Who releases it; empty for the committer.
            tags: Release the tags of that name in the tables too, which a publisher held beside the channel.
        """
        given = given_reason(reason, "release")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is None:
                return self._logs.current("channel", name)
            if before.hold is None:
                return None
            return next_entry(before, "release", before.commit, reason=given, by=who)

        released = self._moved(name, entry)

        def release(table: str) -> None:
            context = self._registry.context(table)
            with suppress(RefNotFoundError):
                release_tag(name, given, who, context.refs)

        if tags:
            for_each_table(release, self._logs.commit(released.commit).tables, "")
        return released

    def delete(self, name: str, *, reason: str) -> None:
        """Delete a channel; its history stays until it is collected, and the tags of the tables stay.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: It is held.
        """
        for _ in range(_TRIES):
            before = self._logs.current("channel", name)
            _refuse_held(name, before)
            if self._logs.append("channel", name, next_entry(before, "delete", "", reason=reason)):
                return
        raise _contended(self._logs, name)

    def _moved(
        self, name: str, decide: Callable[[RefEntry | None], RefEntry | None], *, once: bool = False, tags: bool = True
    ) -> Channel:
        """Append the entry that `decide` makes of the newest one; None leaves the channel as it is."""
        check_tag_name(name)
        for _ in range(_TRIES):
            newest = self._logs.newest("channel", name)
            if newest is None:
                self._refuse_taken(name)
            before = None if newest is None or newest.deleted else newest
            wanted = decide(before)
            if wanted is None:
                # Done before, so there is an entry. The process that wrote it may have died before the tags followed.
                if before is None or not tags:
                    return self.get(name)
                return self._followed(name, before, self._before(name, before))
            # A channel that was deleted goes on after its old numbers.
            if newest is not None:
                wanted = replace(wanted, number=newest.number + 1)
            if self._logs.append("channel", name, wanted):
                self._refuse_collected(name, wanted, before)
                return self._followed(name, wanted, before) if tags else _channel(name, wanted)
            if once:
                raise RefMovedError(name, "no commit" if before is None else before.commit, "another commit meanwhile")
        raise _contended(self._logs, name)

    def _followed(self, name: str, entry: RefEntry, before: RefEntry | None) -> Channel:
        """Let the tags of the tables follow an entry, and what other processes made of the channel meanwhile."""
        lagging: tuple[Lagging, ...] = ()
        while before is None or before.commit != entry.commit:
            commit = self._logs.commit(entry.commit)
            parent = None if before is None else self._logs.commit(before.commit)
            # Only the tables that differ: a table that was not touched costs nothing.
            names = [table for table in commit.changed_from(parent) if table in commit.tables]
            lagging = project(self._registry, commit, names, tag=name, options=None)
            # Looked at after the tags were moved: a process that moved the channel on may have moved its tags before
            # this one did, and the last writer has to leave those of the newest entry.
            before, newest = entry, self._logs.newest("channel", name, known=entry)
            if newest is None or newest.deleted:
                break
            entry = newest
        return replace(_channel(name, entry), lagging=lagging)

    def _before(self, name: str, entry: RefEntry) -> RefEntry | None:
        """Return the entry before the one that brought a channel to its commit; None where there is none any more."""
        before = entry
        while before.commit == entry.commit:
            try:
                before = self._logs.entry("channel", name, before.number - 1)
            except NotFoundError:
                return None
        return None if before.deleted else before

    def _refuse_collected(self, name: str, entry: RefEntry, before: RefEntry | None) -> None:
        """Take a move back when a collection marked its commit before it saw the move.

        The collection marks first and then looks at the channels again; here the move comes first and the look at the
        mark second. So one of the two sees the other.
        """
        if self._logs.store.get(f"{EXPIRED}/{entry.commit}") is None:
            return
        if before is not None:
            back = next_entry(entry, "rollback", before.commit, reason="the commit is being collected")
            self._logs.append("channel", name, replace(back, hold=before.hold))
        raise NotFoundError(
            f"commit {entry.commit[:12]} of {self._logs.store.uri} is being collected; choose a newer one"
        )

    def _refuse_taken(self, name: str) -> None:
        branch = self._logs.newest("branch", name)
        if (branch is not None and not branch.deleted) or read_tag(self._logs, name) is not None:
            kind = "release tag" if branch is None else "branch"
            raise AlreadyExistsError(f"{name!r} is a {kind} of {self._logs.store.uri}; a channel needs another name")


def _is_newer(commit: RepositoryCommit, named: Mapping[str, TableVersion], table: str) -> bool:
    """Return whether a commit has a table at a version that a channel shall name from now on."""
    offered, present = commit.tables.get(table), named.get(table)
    if offered is None or present is None or offered.id != present.id:
        return offered is not None
    # A slower publication must not undo a faster one. Where a version is not on `main` its place is unknown.
    return offered.lands == NEVER or offered.lands >= present.lands


def _channel(name: str, entry: RefEntry) -> Channel:
    return Channel(name=name, commit=entry.commit, entry=entry)


def _rolled_back(entry: RefEntry, reason: str) -> bool:
    return entry.action == "rollback" and entry.hold is not None and entry.hold.reason == reason


def _refuse_held(name: str, entry: RefEntry) -> None:
    hold = entry.hold
    if hold is not None:
        release = Call("channels.release", (name,), {"reason": "..."})
        raise ProtectedError("channel", name, "move", str(hold), Remedy("release it with {}", release))


def _contended(logs: RefLogs, name: str) -> ConflictError:
    return ConflictError(f"other processes moved channel {name!r} of {logs.store.uri} each of {_TRIES} times")
