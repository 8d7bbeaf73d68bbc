"""Channels: names that readers follow, with a history, rollback and hold.

A channel such as `production` names one commit of the repository, and so one version of every table. Each move is an
entry of its log: who, when, why, and which checks had passed. A held channel does not move until it is released.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypedDict, Unpack

import pendulum

from lance_dagster.errors import (
    InvalidInputError,
    RefMovedError,
    RefNotFoundError,
)
from lance_dagster.history.refs.tag_hold import given_reason
from lance_dagster.history.refs.tag_operations import release_tag
from lance_dagster.repository.channel_moves import TRIES, Channel, ChannelMoves, channel_at, contended, refuse_held
from lance_dagster.repository.commits.ref_log import next_entry, person, with_properties
from lance_dagster.repository.commits.resolve_commit import RESTORES, earlier_promotions, is_ancestor
from lance_dagster.repository.commits.snapshot import (
    Action,
    ChannelHold,
    RefEntry,
    RepositoryCommit,
    TableVersion,
    new_commit,
)
from lance_dagster.repository.publish.staging import NEVER, for_each_table
from lance_dagster.repository.repository_context import RepositoryContext


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

    _repository: RepositoryContext

    @property
    def _moves(self) -> ChannelMoves:
        return ChannelMoves(self._repository)

    def list(self) -> dict[str, Channel]:
        """Read all channels, by name."""
        return {name: channel_at(name, entry) for name, entry in sorted(self._repository.logs.live("channel").items())}

    def get(self, name: str) -> Channel:
        """Read one channel.

        Raises:
            RefNotFoundError: There is no such channel.
        """
        return channel_at(name, self._repository.logs.current("channel", name))

    def history(self, name: str, limit: int | None = None) -> tuple[RefEntry, ...]:
        """Return the entries of a channel, newest first: who moved it when, where to and why."""
        self._repository.logs.current("channel", name)
        return tuple(islice(self._repository.logs.entries("channel", name), limit))

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
        commit, expected = self._repository.resolve(at), options.get("expected")
        forward_only, reason = options.get("forward_only", False), options.get("reason", "")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if expected is not None and (before is None or before.commit != expected):
                raise RefMovedError(name, expected, "nothing" if before is None else before.commit)
            if before is not None:
                if before.commit == commit.id or (
                    forward_only and is_ancestor(self._repository.logs, commit.id, before.commit)
                ):
                    return None
                refuse_held(name, before)
            return with_properties(
                next_entry(before, "promote", commit.id, reason=reason), options.get("properties") or {}
            )

        return self._moves.move(name, entry, tags=options.get("tags", True))

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
        commit, properties = self._repository.resolve(at), options.get("properties") or {}

        def entry(before: RefEntry | None) -> RefEntry | None:
            present = None if before is None else self._repository.logs.commit(before.commit)
            named = {} if present is None else present.tables
            wanted = {**named, **{one: commit.tables[one] for one in tables if _is_newer(commit, named, one)}}
            if before is not None and wanted == named:
                return None
            if before is not None:
                refuse_held(name, before)
            target = commit
            if wanted != commit.tables:
                # A commit of the channel alone, which contains both that it was made from.
                parents = (commit,) if present is None else (present, commit)
                target, data = new_commit(
                    wanted, parents, author=person(), message=options.get("reason", ""), properties=properties
                )
                self._repository.logs.put_commit(target, data)
            action: Action = "rollback" if RESTORES in properties else "promote"
            return with_properties(next_entry(before, action, target.id, reason=options.get("reason", "")), properties)

        return self._moves.move(name, entry, tags=options.get("tags", True))

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
                return self._repository.logs.current("channel", name)
            if hold and _rolled_back(before, given):
                return None
            refuse_held(name, before)
            target = None if to is None else self._repository.resolve(to).id
            if target == before.commit and not hold:
                return None
            target = target or earlier_promotions(self._repository.logs, name, before, steps)[-1]
            held = ChannelHold(reason=given, held_by=who or person(), held_at=pendulum.now("UTC")) if hold else None
            return next_entry(before, "rollback", target, reason=given, hold=held, by=who)

        # Looked up once: each further look would go back from what another process made of the channel meanwhile.
        return self._moves.move(name, entry, once=True, tags=options.get("tags", True))

    def hold(self, name: str, *, reason: str, who: str = "") -> Channel:
        """Keep a channel where it is until it is released.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: It is held already, for another reason.
        """
        given = given_reason(reason, "hold")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is None:
                return self._repository.logs.current("channel", name)
            if before.hold is not None and before.hold.reason == given:
                return None
            refuse_held(name, before)
            held = ChannelHold(reason=given, held_by=who or person(), held_at=pendulum.now("UTC"))
            return next_entry(before, "hold", before.commit, reason=given, hold=held, by=who)

        return self._moves.move(name, entry)

    def refuse_held(self, name: str) -> None:
        """Refuse to go on when a channel is held; one that does not exist is free.

        Raises:
            ProtectedError: It is held.
        """
        newest = self._repository.logs.newest("channel", name)
        if newest is not None:
            refuse_held(name, newest)

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
                return self._repository.logs.current("channel", name)
            if before.hold is None:
                return None
            return next_entry(before, "release", before.commit, reason=given, by=who)

        released = self._moves.move(name, entry)

        def release(table: str) -> None:
            context = self._repository.table(table)
            with suppress(RefNotFoundError):
                release_tag(name, given, who, context.refs)

        if tags:
            for_each_table(release, self._repository.logs.commit(released.commit).tables)
        return released

    def delete(self, name: str, *, reason: str) -> None:
        """Delete a channel; its history stays until it is collected, and the tags of the tables stay.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: It is held.
        """
        for _ in range(TRIES):
            before = self._repository.logs.current("channel", name)
            refuse_held(name, before)
            if self._repository.logs.append("channel", name, next_entry(before, "delete", "", reason=reason)):
                return
        raise contended(self._repository.logs, name)


def _is_newer(commit: RepositoryCommit, named: Mapping[str, TableVersion], table: str) -> bool:
    """Return whether a commit has a table at a version that a channel shall name from now on."""
    offered, present = commit.tables.get(table), named.get(table)
    if offered is None or present is None or offered.id != present.id:
        return offered is not None
    # A slower publication must not undo a faster one. Where a version is not on `main` its place is unknown.
    return offered.lands == NEVER or offered.lands >= present.lands


def _rolled_back(entry: RefEntry, reason: str) -> bool:
    return entry.action == "rollback" and entry.hold is not None and entry.hold.reason == reason
