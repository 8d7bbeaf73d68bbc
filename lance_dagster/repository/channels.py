"""Channels: names that readers follow, with a history, rollback and hold.

A channel such as `production` names one commit of the repository, and so one version of every table. Each move is an
entry of its log, with the user, the time, the reason and the checks that passed. A held channel does not move until it
is released.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
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
    RefMovedError,
    RefNotFoundError,
    Remedy,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_flag, check_options, optional_limit, string_list, whole_number
from lance_dagster.history.context import Properties
from lance_dagster.history.refs.followed_channel import FOLLOWED_COMMIT
from lance_dagster.history.refs.ref_names import check_tag_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_hold import given_reason
from lance_dagster.history.refs.tag_operations import release_tag, set_metadata
from lance_dagster.repository.channel_moves import (
    DEFAULT_CHANNEL,
    TRIES,
    Channel,
    ChannelMoves,
    channel_at,
    contended,
    refuse_held,
    unknown_channel,
)
from lance_dagster.repository.channel_rollback import ChannelRollback, RollbackRequest
from lance_dagster.repository.commits.promotions import RESTORES, Promotions, by_id, moved_tables
from lance_dagster.repository.commits.ref_log import next_entry, person, with_properties
from lance_dagster.repository.commits.repository_tags import refuse_taken
from lance_dagster.repository.commits.resolve_commit import is_ancestor
from lance_dagster.repository.commits.snapshot import (
    Action,
    ChannelHold,
    Recorded,
    RefEntry,
    RepositoryCommit,
    TableVersion,
    new_commit,
    writes_of,
)
from lance_dagster.repository.publish.staging import NEVER, for_each_table
from lance_dagster.repository.registry import RepositoryContext


class MoveOptions(TypedDict, total=False):
    """Options of a promotion, of all tables or of some tables."""

    reason: str
    properties: Properties
    since: RefEntry | None
    tags: bool


class AdvanceOptions(MoveOptions, total=False):
    """Options of a promotion of some tables."""

    restores: RepositoryCommit | None
    divide: bool


class PromoteOptions(MoveOptions, total=False):
    """Options of a promotion."""

    expected: str | None
    forward_only: bool
    create: bool
    again: bool


class RollbackOptions(TypedDict, total=False):
    """Options of a rollback."""

    tables: Iterable[str] | None
    steps: int
    to: RepositoryCommit | str | None
    hold: bool
    who: str
    properties: Properties
    tags: bool
    request: str
    dry_run: bool


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
        """Read a channel.

        Raises:
            RefNotFoundError: There is no such channel.
        """
        newest = self._repository.logs.newest("channel", name)
        if newest is None or newest.deleted:
            raise unknown_channel(self._repository, name)
        return channel_at(name, newest)

    def history(self, name: str, limit: int | None = None) -> tuple[RefEntry, ...]:
        """Return the entries of a channel, newest first: who moved it when, where to and why.

        The entries of a channel that was deleted exist until they are collected.

        Raises:
            RefNotFoundError: There never was such a channel.
            InvalidInputError: The limit is negative.
        """
        limit = optional_limit("limit", limit)
        if self._repository.logs.newest("channel", name) is None:
            raise unknown_channel(self._repository, name)
        return tuple(islice(self._repository.logs.entries("channel", name), limit))

    def create(self, name: str, at: str = "main", *, reason: str = "", properties: Properties = None) -> Channel:
        """Create a channel; return the existing one when it names the same commit.

        The name of a deleted channel may be used again; its history continues.

        Args:
            name: The new channel.
            at: The commit, as a ref expression.
            reason: Why; the history shows it.
            properties: Kept in the history.

        Raises:
            AlreadyExistsError: The channel names another commit, or a branch or repository tag has the name.
            InvalidRefNameError: The name breaks a rule.
        """
        commit = self._repository.resolve_stored(at)

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is not None and before.commit != commit.id:
                remedy = Remedy("{} moves it", Call("channels.promote", (name, at)))
                raise AlreadyExistsError(
                    f"channel {name!r} of {self._repository.root} exists and names commit {before.commit[:12]}",
                    remedy=remedy,
                )
            if before is not None:
                return None
            return with_properties(next_entry(None, "promote", commit.id, reason=reason), properties or {})

        return self._moves.move(name, entry, create=True)

    def entries_after(self, name: str, number: int) -> tuple[RefEntry, ...]:
        """Return the entries of a channel that follow the entry of a number, oldest first; a deletion is an entry too.

        Two requests when there is nothing new, however long the log is. Entries that were collected are left out.

        Args:
            name: The channel; the result is empty where the channel never existed.
            number: The number of the last entry that the caller has; 0 for all entries. Of a log with entries 1 to 5,
                `3` returns entries 4 and 5.
        """
        newest = self._repository.logs.newest("channel", name)
        if newest is None or newest.number <= number:
            return ()
        # The usual case of a sensor that polls often: no listing of the log is needed.
        if newest.number == number + 1:
            return (newest,)
        between = []
        for entry_number in self._repository.logs.numbers("channel", name):
            if number < entry_number < newest.number:
                # The entry may be collected between the listing and this read.
                with suppress(NotFoundError):
                    between.append(self._repository.logs.entry("channel", name, entry_number))
        return (*reversed(between), newest)

    def unpromoted(
        self, name: str, *, entry: RefEntry | None = None, head: RepositoryCommit | None = None
    ) -> tuple[RepositoryCommit, ...]:
        """Return the commits of `main` that were made for a channel and never promoted to it, oldest first.

        The publisher of such a commit died before it moved the channel, or is about to move the channel. Commits that
        were made before the channel was rolled back are left out.

        Args:
            name: The channel.
            entry: The newest entry of the channel, if the caller has just read it.
            head: The newest commit of `main`, if the caller has just read it.
        """
        return self._moves.unpromoted(name, entry or self._repository.logs.newest("channel", name), head)

    def divided(
        self, name: str, tables: Collection[str], *, entry: RefEntry | None = None, head: RepositoryCommit | None = None
    ) -> dict[str, RepositoryCommit]:
        """Return the tables that have to be promoted together with some tables, so that readers see whole commits.

        Example: a publisher made commit 7 of `a` and `b` for the channel and died before the promotion. A promotion of
        `a` alone would show readers the rows of commit 7 in `a` and not in `b`: the result is `{"b": commit 7}`.

        Args:
            name: The channel; it need not exist.
            tables: The tables that are to be promoted.
            entry: The newest entry of the channel, if the caller has just read it.
            head: The newest commit of `main`, if the caller has just read it.

        Returns:
            The names of the tables to promote too, each with the oldest commit that readers would see in part.
        """
        return self._moves.divided(
            name,
            entry or self._repository.logs.newest("channel", name),
            tables,
            head or self._repository.resolve_stored(MAIN),
        )

    def promote(
        self,
        name: str,
        at: str = "main",
        **options: Unpack[PromoteOptions],
    ) -> Channel:
        """Move a channel to a commit.

        The channel moves for all tables at once. In each table the tag with the name of the channel follows, one table
        after the other.

        Args:
            name: The channel.
            at: The commit, as a ref expression.
            **options: `reason` is shown by the history. `properties` are kept in the history, such as the checks that
                passed. `expected` is the id of the commit that the channel must name before the move. With
                `forward_only=True` the channel is not moved where its commit contains the commit `at` already. `since`
                is an entry of the channel that the caller read before; a channel that was rolled back after `since` is
                not moved. With `create=True` a channel that does not exist is created; `production` is created unless
                `create=False`. With `again=True` the channel may move to a version that a rollback took back. With
                `tags=False` the caller moves the tags of the tables.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: The channel is held.
            RefMovedError: The channel does not name `expected`.
            ConflictError: The channel was rolled back after `since`, or the commit has a version of a table that a
                rollback took back from the channel.
        """
        check_options(self.promote, options, PromoteOptions)
        expected, reason = options.get("expected"), options.get("reason", "")
        forward_only = options.get("forward_only", False)

        def entry(before: RefEntry | None) -> RefEntry | None:
            # Resolved after the channel was read: the other way round, a publication in between would move `main` and
            # the channel, and this move would take the channel back to the commit that `main` named before.
            commit = self._repository.resolve_stored(at)
            # Compared at each try, with the entry that the put will follow: this makes a compare-and-swap of it.
            if expected is not None and (before is None or before.commit != expected):
                raise RefMovedError(name, expected, "nothing" if before is None else before.commit)
            if before is not None:
                # Before the hold is checked: a held channel that names the commit already need not move.
                if before.commit == commit.id or (
                    forward_only and is_ancestor(self._repository.logs, commit.id, before.commit)
                ):
                    return None
                refuse_held(name, before)
                self._refuse_rolled_back(name, before, commit, since=options.get("since"))
                if not options.get("again", False):
                    self._moves.refuse_withdrawn(name, before, commit, commit.tables)
            return with_properties(
                next_entry(before, "promote", commit.id, reason=reason), options.get("properties") or {}
            )

        create = options.get("create", name == DEFAULT_CHANNEL)
        return self._moves.move(name, entry, create=create, tags=options.get("tags", True))

    def advance(
        self,
        name: str,
        at: str,
        tables: Collection[str] | Mapping[str, TableVersion],
        **options: Unpack[AdvanceOptions],
    ) -> Channel:
        """Move a channel to the versions that a commit has of some tables; every other table stays as it is.

        A publisher promotes audited versions this way: `main` of the repository may have commits of other tables that
        were not audited for this channel, or that were withdrawn from the channel. Where the channel names a newer
        version of a table, the newer version stays. A channel that does not exist is created: the definition of a
        publisher names it.

        Example: the channel names `a@1` and `b@1`, and the commit has `a@2` and `b@2`. With `tables=["a"]` the channel
        names `a@2` and `b@1` afterwards.

        Args:
            name: The channel.
            at: The commit, as a ref expression.
            tables: The names of the tables to promote; or the version to promote by name, where it differs from the
                version that the commit has.
            **options: `reason`, `properties`, `since` and `tags`, as for `promote`. `restores` is an earlier commit
                whose content the versions have, as after a revert; the move is then a rollback, which withdraws the
                promotions of the tables since `restores`. With `divide=True` readers may see an older commit in part:
                the promoted tables with its rows, other tables of the commit without them.

        Raises:
            ProtectedError: The channel is held.
            ConflictError: The channel was rolled back after `since`; or other tables have to be promoted too, as
                `divided` returns them.
        """
        check_options(self.advance, options, AdvanceOptions)
        commit, properties = self._repository.resolve_stored(at), dict(options.get("properties") or {})
        restores = options.get("restores")
        if restores is not None:
            properties[RESTORES] = restores.id
        offered = tables if isinstance(tables, Mapping) else {table: commit.tables[table] for table in tables}

        def entry(before: RefEntry | None) -> RefEntry | None:
            present = None if before is None else self._repository.logs.commit(before.commit)
            named = {} if present is None else present.tables
            versions = _advanced(named, offered)
            if before is not None and versions == named:
                return None
            if before is not None:
                refuse_held(name, before)
                moved = {version.id for table, version in versions.items() if named.get(table) != version}
                self._refuse_rolled_back(name, before, commit, since=options.get("since"), tables=moved)
                if restores is None and not options.get("divide", False) and commit.parents:
                    parent = self._repository.logs.commit(commit.parents[0])
                    refuse_divided(name, self._moves.divided(name, before, offered, parent))
            # Where the channel gets all tables as the commit has them, it names the commit itself, which is on `main`.
            target = commit
            if versions != commit.tables:
                # A commit of the channel alone. The commit of `main` is a parent too, so that a promotion with
                # `forward_only` does not move the channel back to the commit of `main`.
                parents = (commit,) if present is None else (present, commit)
                target, data = new_commit(
                    versions,
                    parents,
                    author=person(),
                    message=options.get("reason", ""),
                    properties=properties,
                    recorded=Recorded(writes_of(versions, (commit, *parents)), commit.channels),
                )
                # Stored before the entry that names it. Where the entry loses its race, the commit is collected.
                self._repository.logs.put_commit(target, data, base=present)
            # Restoring an earlier commit undoes promotions, so that `channel~1` does not lead to them.
            action: Action = "promote" if restores is None else "rollback"
            move = with_properties(next_entry(before, action, target.id, reason=options.get("reason", "")), properties)
            return move if restores is None or before is None else self._withdrawing(name, before, move, restores)

        return self._moves.move(name, entry, create=True, tags=options.get("tags", True))

    def rollback(self, name: str, *, reason: str = "", **options: Unpack[RollbackOptions]) -> Channel:
        """Move a channel back, for all tables at once or for some of them.

        The rollback withdraws the promotions that it goes back over, for the tables that it moves: these promotions no
        longer count as steps of these tables. Tables that are not named in `tables` keep the version that the channel
        names. Readers see all tables go back at once. `Channel.moves` of the result has the version of each table
        before and after.

        A call may be repeated after a crash. A call with a `request` that an entry of the channel has fulfilled changes
        nothing, whatever happened since. Without `request`, a call with the arguments of the newest entry changes
        nothing; to go further back on purpose, give another reason. Where another process moves one of the tables
        meanwhile, the call is refused; moves of other tables do not matter.

        Args:
            name: The channel.
            reason: Why; a dry run needs none.
            tables: The tables that go back; None for all.
            steps: How many promotions of these tables to go back.
            to: The commit to go back to, as a ref expression or a commit, in place of steps. `production~2` counts the
                promotions of these tables.
            hold: Hold the channel after the rollback, so that the next publication does not bring back what was
                withdrawn. The hold concerns all tables of the channel. A held channel can be rolled back further, and
                stays held.
            who: Who rolls the channel back; empty for the committer.
            properties: Kept in the history.
            tags: Whether the tag with the name of the channel follows in each table.
            request: An identity of the request, such as the id of a run, which tells a repeated call from a new call.
            dry_run: Change nothing, and return the channel as it is, with what the rollback would move.

        Raises:
            RefNotFoundError: There is no such channel; or the tables had fewer promotions, or a table has no older
                version.
            TableNotFoundError: The channel does not name a table of `tables`.
            ProtectedError: The channel is held, and a table would move forward or the channel be released.
            RefMovedError: Another process moved a table of `tables` meanwhile.
            NotFoundError: The commit is being collected.
            InvalidInputError: `steps` and `to` are both given, `steps` is not a whole number of 1 or more, or `tables`
                is empty; or no reason is given.
        """
        check_options(self.rollback, options, RollbackOptions)
        to, tables = options.get("to"), options.get("tables")
        check_flag("hold", options.get("hold", True))
        is_dry_run = options.get("dry_run", False)
        check_flag("dry_run", is_dry_run)
        if to is not None and "steps" in options:
            raise InvalidInputError("a channel is rolled back by steps or to a commit; give steps or to, not both")
        names = None if tables is None else tuple(string_list("tables", tables, "shop/orders"))
        if names == ():
            raise InvalidInputError("no table is named that goes back; leave out tables to move all of them")
        rollback = ChannelRollback(
            self._repository,
            RollbackRequest(
                channel=name,
                tables=names,
                steps=whole_number("the number of steps", options.get("steps", 1), 1),
                to=to,
                # A dry run is looked at before anybody knows what to write into the history.
                reason=reason if is_dry_run and reason == "" else given_reason(reason, "roll back"),
                hold=options.get("hold", True),
                who=options.get("who", ""),
                properties=options.get("properties") or {},
                request=options.get("request", ""),
            ),
        )
        if is_dry_run:
            return rollback.preview()
        return rollback.described(self._moves.move(name, rollback.decide, tags=options.get("tags", True)))

    def hold(
        self, name: str, *, reason: str, who: str = "", properties: Properties = None, tags: bool = True
    ) -> Channel:
        """Keep a channel, and the tag with its name in each table, where they are until the channel is released.

        Args:
            name: The channel.
            reason: Why.
            who: Who holds it; empty for the committer.
            properties: Kept in the history.
            tags: Hold the tags of the tables, so that a program that promotes a single table is refused as well.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: The channel is held already, for another reason.
        """
        checked_reason = given_reason(reason, "hold")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is None:
                raise unknown_channel(self._repository, name)
            # The reason distinguishes a call that is repeated after a crash from a second person who holds the channel.
            if before.hold is not None and before.hold.reason == checked_reason:
                return None
            refuse_held(name, before)
            hold = ChannelHold(reason=checked_reason, held_by=who or person(), held_at=pendulum.now("UTC"))
            held = next_entry(before, "hold", before.commit, reason=checked_reason, hold=hold, by=who)
            return with_properties(held, properties or {})

        return self._moves.move(name, entry, tags=tags)

    def _change_tags(self, entry: RefEntry, change: Callable[[Refs], object]) -> None:
        """Change the tag of each table that an entry names; a table without a tag is skipped."""
        present = self._repository.logs.commit(entry.commit).tables

        def change_tag(table: str) -> None:
            # A table has no tag where it could not be brought up to the channel so far. A table that was moved has none
            # at its former place.
            with suppress(RefNotFoundError):
                change(self._repository.table(table).refs)
                return
            moved = self._repository.registry.name_of(present[table].id)
            if moved is not None and moved != table:
                with suppress(RefNotFoundError):
                    change(self._repository.table(moved).refs)

        for_each_table(change_tag, present)

    def _withdrawing(self, name: str, before: RefEntry, entry: RefEntry, restores: RepositoryCommit) -> RefEntry:
        """Return an entry that restores the content of an earlier commit, with the promotions that it withdraws."""
        logs, older = self._repository.logs, by_id(restores)
        moved = moved_tables(logs.commit(before.commit), logs.commit(entry.commit))
        targets = {table: older[table][1] if table in older else None for table in moved}
        withdrawn = Promotions(logs, name).withdrawn_by(before, targets).numbers
        return replace(entry, moves={table: tuple(sorted(withdrawn.get(table, ()))) for table in moved})

    def _refuse_rolled_back(
        self,
        name: str,
        before: RefEntry,
        commit: RepositoryCommit,
        *,
        since: RefEntry | None,
        tables: Collection[str] | None = None,
    ) -> None:
        """Refuse to promote tables of a publication during which somebody rolled them back, without a hold.

        Raises:
            ConflictError: The last move of one of `tables` after `since` was such a rollback. Without `tables`, the
                last move of any table counts.
        """
        for number in range(before.number, before.number if since is None else since.number, -1):
            moved = before if number == before.number else self._repository.logs.entry("channel", name, number)
            # Holds and releases move nothing; entries of an earlier version do not say what they moved.
            concerned = moved.moves is None or (bool(moved.moves) if tables is None else moved.moves.keys() & tables)
            if moved.action in ("hold", "release") or not concerned:
                continue
            if moved.action != "rollback":
                return
            # The commit may have what the rollback took back.
            promote = Call("channels.promote", (name, commit.short_id), {"again": True})
            remedy = Remedy("{} moves it all the same", promote)
            raise ConflictError(
                f"channel {name!r} of {self._repository.root} was rolled back to {moved.commit[:12]} meanwhile by "
                f"{moved.by}: {moved.reason}; commit {commit.short_id} was published, and the channel stays there",
                remedy=remedy,
            )

    def refuse_immovable(self, name: str, *, create: bool) -> RefEntry | None:
        """Return the newest entry of a channel, or raise when it is held or cannot be created.

        Raises:
            ProtectedError: The channel is held.
            RefNotFoundError: There is no such channel.
            AlreadyExistsError: A branch or repository tag has the name.
            InvalidRefNameError: The name breaks a rule.
        """
        check_tag_name(name)
        newest = self._repository.logs.newest("channel", name)
        if newest is not None:
            refuse_held(name, newest)
        if newest is None or newest.deleted:
            if not create:
                raise unknown_channel(self._repository, name)
            refuse_taken(self._repository.logs, name, "channel")
        return newest

    def release(
        self, name: str, *, reason: str, who: str = "", properties: Properties = None, tags: bool = True
    ) -> Channel:
        """Let a held channel move again; a channel that is not held is left as it is.

        Args:
            name: The channel.
            reason: Why.
            who: Who releases it; empty for the committer.
            properties: Kept in the history.
            tags: Release the tag with the name of the channel in each table too, which a publisher held beside the
                channel.
        """
        checked_reason = given_reason(reason, "release")

        def entry(before: RefEntry | None) -> RefEntry | None:
            if before is None:
                raise unknown_channel(self._repository, name)
            if before.hold is None:
                return None
            released = next_entry(before, "release", before.commit, reason=checked_reason, by=who)
            return with_properties(released, properties or {})

        # The tags do not follow this entry: `move` releases only tags that are held for the reason of the channel, and
        # a publisher may have held tags for another reason. All of them are released below.
        channel = self._moves.move(name, entry, tags=False)
        if tags:
            self._change_tags(channel.entry, lambda refs: release_tag(name, checked_reason, who, refs))
        return channel

    def delete(self, name: str, *, reason: str, properties: Properties = None) -> None:
        """Delete a channel; the tag with its name stays in each table.

        The history of the channel stays. A collection keeps the commits that the channel named within the last
        `CommitRetention.keep_for`, and the commit that the channel named when this period began;
        `CommitRetention.promotions` no longer applies. Commits that are kept can be read by their ids.

        Raises:
            RefNotFoundError: There is no such channel.
            ProtectedError: The channel is held.
        """
        for _ in range(TRIES):
            # Read at each try: another process may have held the channel meanwhile.
            before = self.get(name).entry
            refuse_held(name, before)
            end = with_properties(next_entry(before, "delete", "", reason=reason), properties or {})
            if self._repository.logs.append("channel", name, end):
                # The tags stay, and follow nothing any more.
                self._change_tags(before, lambda refs: set_metadata(name, {FOLLOWED_COMMIT: None}, refs))
                return
        raise contended(self._repository, name)


def refuse_divided(channel: str, lacking: Mapping[str, RepositoryCommit]) -> None:
    """Refuse a promotion by which readers would see a commit in part.

    Args:
        channel: The channel.
        lacking: The tables in which readers would lack a commit, as `Channels.divided` returns them.

    Raises:
        ConflictError: There are such tables.
    """
    if lacking:
        commits = ", ".join(dict.fromkeys(map(str, lacking.values())))
        raise ConflictError(
            f"readers of {channel} would see {commits} in part: the promoted tables have its rows, and {channel} does "
            f"not name its versions of {', '.join(sorted(lacking))}; promote these tables too, from {MAIN}"
        )


def _advanced(named: Mapping[str, TableVersion], offered: Mapping[str, TableVersion]) -> dict[str, TableVersion]:
    """Return the tables that a channel names, with the offered version of a table in place of an older version.

    Example: named `a@2`, `b@1` and offered `a@1`, `b@2` give `a@2`, `b@2`.
    """
    # By id: where a table was moved since, the channel has it under its old name. With both names in the channel, the
    # table would have two versions there, and its tag would move from one version to the other.
    present = {at.id: at for at in named.values()}
    newer = {name: at for name, at in offered.items() if _is_newer(at, present.get(at.id))}
    replaced = {at.id for at in newer.values()}
    return {name: at for name, at in named.items() if at.id not in replaced} | newer


def _is_newer(offered: TableVersion, present: TableVersion | None) -> bool:
    """Return whether a channel takes an offered version of a table in place of its present version."""
    if present is None:
        return True
    # A slower publication must not undo a faster publication. A version that cannot land on `main` has no number to
    # compare; then the channel takes the offered version.
    return offered.lands == NEVER or offered.lands >= present.lands
