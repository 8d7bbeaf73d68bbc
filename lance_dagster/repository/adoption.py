"""Add existing tables to a repository, and let channels start at their Lance tags.

Readers may have followed a tag such as `production` of each table for years. The channel of that name begins at the
versions of these tags: a table whose `main` is ahead of its tag is in the channel at the tag, and a table without the
tag is not in the channel. Where a tag is held, so is the channel.

Each step is idempotent, and two processes may adopt at once: tables that a commit names are skipped, and so are tables
that the channel names. `main` gets its commit before the channels get their entries. Until its first entry a channel
does not exist, and readers use the tags.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pendulum

from lance_dagster.errors import AlreadyExistsError, FormatError, LanceDagsterError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import validate_commit_info
from lance_dagster.history.refs.followed_channel import FOLLOWED_COMMIT
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.refs.ref_names import check_tag_name
from lance_dagster.history.versions import State
from lance_dagster.repository.channel_moves import Channel, ChannelMoves
from lance_dagster.repository.commits.ref_log import next_entry, person, with_properties
from lance_dagster.repository.commits.snapshot import ChannelHold, RefEntry, RepositoryCommit, TableVersion, new_commit
from lance_dagster.repository.publish.commit_tables import CommitRequest, commit_tables
from lance_dagster.repository.publish.staging import capture, for_each_table
from lance_dagster.repository.registry import RepositoryContext


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedChannel:
    """A channel that got tables from the tags of its name.

    Attributes:
        channel: The channel after the adoption; held, where a tag was held.
        tables: By table that was added, its version, such as `main@7`.
        behind_main: The added tables whose `main` is newer; the next promotion of `main` brings them up to it.
    """

    channel: Channel
    tables: Mapping[str, str]
    behind_main: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The result of an adoption.

    Attributes:
        commit: The newest commit of `main`, which names all tables that were adopted.
        tables: The tables that `main` of the repository did not name before.
        channels: By name, the channels that got tables from their tags.
        skipped: The tables and tags that were not adopted, each with the reason: a table that cannot be read, a tag
            whose version is gone.
    """

    commit: RepositoryCommit
    tables: tuple[str, ...] = ()
    channels: Mapping[str, AdoptedChannel] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tag of a table, its version, and whether this is the newest version of `main`."""

    tag: Tag
    state: State
    is_newest: bool


@dataclass(frozen=True, slots=True)
class Adoption:
    """Adopts tables of one repository."""

    _repository: RepositoryContext

    def adopt(
        self, names: Iterable[str] | None, channels: Iterable[str], *, message: str, properties: Mapping[str, str]
    ) -> Adopted:
        """Register and commit tables, then let channels begin at the tags of these tables.

        Raises:
            NotFoundError: There is no table at a name in `names`.
            AlreadyExistsError: A table in `names` is a copy of another table.
        """
        # Checked first: tables would be registered without a commit otherwise.
        validate_commit_info(message, properties)
        tags = tuple(channels)
        for tag in tags:
            check_tag_name(tag)
        head = self._repository.head()
        tables = self._all() if names is None else sorted(set(names))
        # Tables that a commit names were registered and read when they were committed, so they cost no request here.
        new_tables, skipped = self._registered(
            [table for table in tables if table not in head.tables], strict=names is not None
        )
        # `main` before the channels: the commit of a channel has the commit of `main` as a parent.
        head, adopted = self._committed(head, new_tables, message, properties)
        present = [table for table in tables if table in head.tables]
        adopted_channels: dict[str, AdoptedChannel] = {}
        for tag in tags:
            tagged, reasons = self._tagged(tag, present)
            channel = self._begun(tag, tagged, head, properties) if tagged else None
            skipped += reasons
            if channel is not None:
                adopted_channels[tag] = channel
        return Adopted(commit=head, tables=adopted, channels=adopted_channels, skipped=tuple(skipped))

    def _all(self) -> list[str]:
        """Return the tables that are registered or found below the root, except tables that were removed before."""
        registered = set(self._repository.registry.names())
        discovered = [
            name
            for name in self._repository.registry.discover(registered)
            if not self._repository.registry.was_removed(name)
        ]
        # The search skips registered tables, and an adoption that died may have registered a table without a commit.
        return sorted({*registered, *discovered})

    def _registered(self, names: Iterable[str], *, strict: bool) -> tuple[list[str], list[str]]:
        """Register tables; return the tables that can be committed, and the reasons why other tables cannot be."""

        def register(name: str) -> LanceDagsterError | None:
            try:
                self._repository.registry.register(name)
                # Read before the commit: a table that cannot be read would stop the commit of all tables.
                self._repository.table(name).head(MAIN)
            except (AlreadyExistsError, FormatError, NotFoundError) as error:
                return error
            return None

        registered, skipped = [], []
        for name, error in for_each_table(register, names).items():
            if error is None:
                registered.append(name)
            elif strict:
                raise error
            else:
                skipped.append(f"{name}: {error}")
        return registered, skipped

    def _committed(
        self, head: RepositoryCommit, names: list[str], message: str, properties: Mapping[str, str]
    ) -> tuple[RepositoryCommit, tuple[str, ...]]:
        if not names:
            return head, ()

        def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
            # Another process adopted the table first. An adoption does not add later versions; `commit` does.
            if dest is not None:
                return None
            context = self._repository.table(name)
            return capture(context, self._repository.registry.register(name), context.head(MAIN))

        request = CommitRequest(
            branch=MAIN,
            stage=stage,
            names=tuple(names),
            message=message or f"adopt {', '.join(names)}",
            properties=properties,
        )
        committed = commit_tables(self._repository.logs, request)
        return committed.commit, tuple(sorted(committed.changed))

    def _tagged(self, name: str, tables: Iterable[str]) -> tuple[dict[str, Tagged], list[str]]:
        """Return the tagged tables that the channel does not name yet, and the reasons why other tags are skipped."""
        newest = self._repository.logs.newest("channel", name)
        if newest is not None and newest.deleted:
            # A person deleted the channel, and the tags of the tables stayed. These must not create it again.
            return {}, []
        named = {} if newest is None else self._repository.logs.commit(newest.commit).tables

        def tagged_or_reason(table: str) -> Tagged | str | None:
            context = self._repository.table(table)
            tag = context.refs.tags.find(name)
            # A tag with this key was set by a channel that no longer names the table: it was rolled back to a commit
            # before the table. Adopting the tag would undo the rollback.
            if tag is None or FOLLOWED_COMMIT in tag.metadata:
                return None
            try:
                state = context.versions.load(tag.branch, tag.version)
                return Tagged(tag, state, state.branch == MAIN and state.number == context.head(MAIN).number)
            except (FormatError, NotFoundError) as error:
                return f"tag {name} of {table}: {error}"

        results = for_each_table(tagged_or_reason, [table for table in tables if table not in named])
        tagged = {table: tag for table, tag in results.items() if isinstance(tag, Tagged)}
        reasons = [reason for reason in results.values() if isinstance(reason, str)]
        # A held channel names the same tables until it is released; the next adoption after that adds its tags.
        if tagged and newest is not None and newest.hold is not None:
            reasons += [f"tag {name} of {table}: channel {name} is {newest.hold}" for table in tagged]
            return {}, reasons
        return tagged, reasons

    def _begun(
        self, name: str, tagged: Mapping[str, Tagged], head: RepositoryCommit, properties: Mapping[str, str]
    ) -> AdoptedChannel | None:
        """Add tables to a channel at the versions of their tags; tables that the channel names stay."""
        # Outside of the decision, which may be made several times: capturing a version costs requests.
        versions = for_each_table(
            lambda table: capture(self._repository.table(table), head.tables[table].id, tagged[table].state), tagged
        )
        added: list[str] = []

        def entry(before: RefEntry | None) -> RefEntry | None:
            present = None if before is None else self._repository.logs.commit(before.commit)
            named = {} if present is None else present.tables
            # Filled anew by each decision: the entry of the last decision is the entry that was put.
            added[:] = sorted(versions.keys() - named.keys())
            # Another process added the tables, or held the channel since it was read.
            if not added or (before is not None and before.hold is not None):
                added.clear()
                return None
            reason = f"adopt the tags {name} of {', '.join(added)}"
            tables = {**named, **{table: versions[table] for table in added}}
            # With the commit of `main` as a parent the channel contains it: a publication without changes does not move
            # the channel to `main`, past the tags.
            parents = (head,) if present is None else (present, head)
            target, data = new_commit(tables, parents, author=person(), message=reason, properties=properties)
            self._repository.logs.put_commit(target, data, base=present)
            hold = _hold([tagged[table] for table in added])
            return with_properties(next_entry(before, "promote", target.id, reason=reason, hold=hold), properties)

        moved = ChannelMoves(self._repository).move(name, entry, create=True)
        if not added:
            return None
        return AdoptedChannel(
            channel=moved,
            tables={table: str(tagged[table].state) for table in added},
            behind_main=tuple(table for table in added if not tagged[table].is_newest),
        )


def _hold(tagged: Iterable[Tagged]) -> ChannelHold | None:
    """Return the hold of a channel whose tags were held: an adoption must not release a hold."""
    holds = [table.tag.hold for table in tagged if table.tag.hold is not None]
    if not holds:
        return None
    # A channel has one hold, so it gets the reasons of all tags and the earliest time.
    reasons = "; ".join(dict.fromkeys(hold.reason for hold in holds))
    since = min((hold.held_at for hold in holds if hold.held_at is not None), default=pendulum.now("UTC"))
    return ChannelHold(reason=reasons, held_by=holds[0].held_by, held_at=since)
