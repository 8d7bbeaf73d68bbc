"""Publish the tables of a repository as one commit; a table alone is a repository of one.

One put in the storage publishes the audited version of every table: the commit of the repository. `main` of each table
follows, then the channel moves for all tables at once, and the tag of each table follows the channel.

The first publication creates the repository. Tables that have the tag already are then added to the channel at the
versions that their tags name, so that a rollback can return to these versions. Other tables are left alone.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import dagster as dg

from lance_dagster.errors import (
    ConflictError,
    InvalidInputError,
    MergeConflictError,
    NotFoundError,
    PublishRefusedError,
    RefNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.codec import COMMIT_PREFIX
from lance_dagster.format.layout import MAIN
from lance_dagster.history.ref_grammar import parse
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.versions import Version
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.publication import (
    Opened,
    Publication,
    find_tag,
    landing_message,
    landing_properties,
    next_steps,
    refuse_deleted,
)
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.publish.rollback import (
    commit_message,
    drop_branch,
    is_at,
    is_rollback,
    moved_meanwhile,
    restored_version,
)
from lance_dagster.plugin.run_branch import RunChain, preview_branch
from lance_dagster.repository import LanceRepository
from lance_dagster.repository.candidates.closed_writes import NONE_CLOSED, excluded_by
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.channel_moves import Channel
from lance_dagster.repository.commits.promotions import RESTORES
from lance_dagster.repository.commits.snapshot import ChannelHold, RefEntry, RepositoryCommit, TableVersion
from lance_dagster.repository.publish.exact_versions import VersionToPublish
from lance_dagster.repository.publish.staging import NEVER
from lance_dagster.repository.view import RepositoryView, TableView
from lance_dagster.store import concurrently
from lance_dagster.table import LanceTable

# The most other tables of a commit that the page of a promoted node names.
_SHOWN = 20
# Twice the publications of two weeks at one an hour: with a maintenance job that collects, fewer are left.
_MANY_HELD = 700


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTables:
    """A commit of the repository, the publications that it has, and the version of each table to promote."""

    commit: RepositoryCommit
    published: tuple[Publication, ...]
    versions: Mapping[str, TableVersion]


class PromotedCommit(NamedTuple):
    """A commit that a publisher made for the channel, and that the channel names.

    Attributes:
        commit: The commit of `main`.
        names: The tables that it changed.
        channel: The channel, which names them.
    """

    commit: RepositoryCommit
    names: tuple[str, ...]
    channel: Channel


class CommitAudit(Protocol):
    """What audits publications while they are committed (`publication_audit`)."""

    def replan(self, publication: Publication) -> Publication:
        """Preview and audit a merge again, because `main` has moved."""

    def names_of_tables_read(self, publications: Iterable[Publication]) -> Mapping[dg.AssetKey, str]:
        """Return the names in the repository of the other tables that checks read, by asset."""

    def audit_with_tables(
        self, publications: Sequence[Publication], views: Mapping[dg.AssetKey, TableView], hint: str
    ) -> None:
        """Evaluate these checks on tables as readers would get them; raise to refuse the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPublisher:
    """The publication of the tables of one repository.

    Attributes:
        repository: The repository; before the first publication it has no commits, and is yet to be created.
        channel: The channel that readers follow; it has the name of the tag.
        chain: The run that publishes.
        about: Reason, person and run, kept with the commit and with the move of the channel.
        record: The record of the lake.
        nodes: The promoted nodes of the publisher by the names of their tables, in which readers see a run whole or
            not at all.
        divides: Whether a person chose what to publish, so that readers may see a run or a commit in part.
        started: The channel when the step started; None before the first promotion.
    """

    repository: LanceRepository
    channel: str
    chain: RunChain
    about: Mapping[str, str]
    record: RecordView
    nodes: Mapping[str, dg.AssetKey]
    divides: bool
    started: Channel | None = None

    def channel_now(self) -> Channel | None:
        """Return the channel; None before the first promotion."""
        try:
            return self.repository.channels.get(self.channel)
        except RefNotFoundError:
            return None

    @property
    def hold(self) -> ChannelHold | None:
        """The hold of the channel, which is one for all tables."""
        return None if self.started is None else self.started.hold

    def as_named(self, opened: Opened) -> Opened:
        """Return a table whose tag before the publication is at the version that the channel names.

        The tags follow the channel one by one, and a tag may lag behind. Then a rollback of all tables would take the
        version of the tag for the present one, and leave out a table whose tag it names.
        """
        name, tag = self.repository.name_of(opened.table), opened.previous
        view = None if self.started is None else self.repository.at(self.started.commit)
        table = None if view is None else view.get(name)
        # In the usual case the tag is there, and no version is read.
        if table is None or (tag is not None and tag.ref == f"{MAIN}@{table.at.lands}"):
            return opened
        # The version is not found where another program has created the table again.
        with suppress(VersionNotFoundError):
            version = table.version
            if version.branch == MAIN:
                tag = tag or Tag(name=self.channel, branch=MAIN, version=version.number)
                return opened._replace(previous=replace(tag, branch=MAIN, version=version.number))
        return opened

    def view_of(self, ref: str, names: Collection[str] | None) -> RepositoryView | None:
        """Return all tables at the commit that a ref names, as an expression of the channel (`production~1`) or an id.

        Args:
            ref: The ref.
            names: The tables whose promotions count for `production~1`, and which go back; None for all.

        Returns:
            None for any other ref, which each table resolves for itself.

        Raises:
            RefNotFoundError: The history of the channel does not reach back that far.
        """
        expression = parse(ref)
        if expression.name == self.channel:
            # The bare name is the channel as it is now, which each table resolves by its tag. So it does where the tags
            # are older than the channel, which has no history then.
            if self.started is None or not (expression.steps or expression.suffix):
                return None
            # A retried step must not go back a second time: `production~1` would be counted from the rollback.
            rollback = self._rolled_back()
            if rollback is not None:
                return self.repository.at(rollback.commit)
            present = self.repository.at(self.started.commit)
            # A table that the channel does not name has no promotion that could count.
            counting = None if names is None else [name for name in names if name in present]
            return self.repository.at(ref, tables=counting or None)
        if expression.kind or not COMMIT_PREFIX.fullmatch(expression.name):
            return None
        try:
            return self.repository.at(ref)
        except RefNotFoundError:
            # The versions of a table have ids of the same form, so each table is asked for this one.
            return None

    def version_in(self, view: RepositoryView, publication: Publication, ref: str) -> Version:
        """Return the version of `main` that a table has at a commit, which `ref` names in messages.

        Raises:
            VersionNotFoundError: The table was not part of the repository then, or its version is not on `main`.
        """
        name, commit = self.repository.name_of(publication.table), view.commit.short_id
        if name not in view:
            named = f"commit {commit}" if parse(ref).name != self.channel else f"{ref} (commit {commit})"
            raise VersionNotFoundError(
                f"{named} has no {name}: it was first published later, so there is no older version to go back to; "
                "set ref to a later commit, or select only the tables that the commit has"
            )
        version = view[name].version
        if version.branch != MAIN:
            raise VersionNotFoundError(f"{name} at {commit} is not on main: another program committed there just then")
        return version

    def refuse_unchanged(self, ref: str, view: RepositoryView, publications: Sequence[Publication]) -> None:
        """Refuse an earlier state of the channel at which each table has the version that it has now.

        Raises:
            PublishRefusedError: The message names the expression that would change a table.
        """
        present = self.channel_now()
        # A retried step is given the commit that the channel names since its first attempt.
        if present is None or present.commit == view.commit.id or parse(ref).name != self.channel:
            return
        if not publications or any(
            publication.previous is None or not is_at(publication, publication.previous) or is_rollback(publication)
            for publication in publications
        ):
            return
        changed = self.repository.at(present.commit).commit.changed_from(view.commit)
        others = f", and since then only {', '.join(changed[:_SHOWN])} changed" if changed else ""
        remedy = f"set ref to {self.channel}~1 to roll it back by its last promotion"
        raise PublishRefusedError(
            f"{ref} changes nothing",
            [
                f"{publication.name}: {self.channel} names {publication.version}, and so did {ref}{others}; {remedy}"
                for publication in publications
            ],
        )

    def commit(
        self,
        publications: Sequence[Publication],
        audit: CommitAudit,
        restored: RepositoryView | None = None,
    ) -> PublishedTables:
        """Commit the audited versions of all tables; nothing is promoted yet.

        Args:
            publications: The tables, each with the version that was audited; an older version of `main` is restored.
            audit: Audits a merge again when `main` has moved since the audit. It also evaluates the checks that read
                other tables, on the versions of these tables that the commit would name.
            restored: For a rollback of all tables, the tables at the commit that it restores.

        Raises:
            MergeConflictError: Tables cannot be merged; nothing of any table is visible.
            ConflictError: A branch was deleted; or `main` of a table moved each time its merge was audited; or the
                commit was made, but `main` of a table could not follow it: another program committed a conflict.
        """
        # `again` replaces entries, so that the publications that are returned are those that were committed.
        current = {self.repository.name_of(publication.table): publication for publication in publications}

        def again(name: str) -> VersionToPublish:
            publication = current[name]
            # A person chose what to withdraw; what has landed since was not part of the choice.
            if is_rollback(publication):
                raise moved_meanwhile(publication, publication.table.head(MAIN))
            current[name] = audit.replan(publication)
            return self._wanted(current[name])

        read_names = audit.names_of_tables_read(publications)
        # Whoever promotes the commit after this publisher died has to promote it as a rollback.
        about = self.about if restored is None else {**self.about, RESTORES: restored.commit.id}
        try:
            published = self.repository.publications.publish_versions(
                {name: self._wanted(publication) for name, publication in current.items()},
                plan_again=again,
                message=commit_message(publications, self.about),
                properties=about,
                channel=self.channel,
                audit=partial(self._audit_last, current, read_names, audit),
                reads=read_names.values(),
            )
        except MergeConflictError as error:
            raise _with_remedy(error, current) from error
        finally:
            # `_wanted` made these branches, also for a commit that was refused.
            for publication in current.values():
                if is_rollback(publication):
                    drop_branch(publication.table, preview_branch(self.chain, "rollback"))
        # Nothing is promoted then: the tags of a channel must not name versions that `main` lacks.
        if published.lagging:
            which = "; ".join(map(str, published.lagging))
            raise ConflictError(f"published as commit {published.commit.short_id}, but main could not follow: {which}")
        view = self.repository.at(published.commit.id)

        def landed(name: str) -> Publication:
            # The commit may have a newer version of a table, which was not audited; then the audited one is promoted.
            publication, table = current[name], view[name]
            return replace(publication, landed=table.landed) if table.at == published.versions[name] else publication

        return PublishedTables(
            commit=published.commit, published=tuple(concurrently(landed, current)), versions=published.versions
        )

    def _audit_last(
        self,
        current: Mapping[str, Publication],
        table_names: Mapping[dg.AssetKey, str],
        audit: CommitAudit,
        views: Mapping[str, TableView],
    ) -> None:
        """Audit the publications for the last time before the commit.

        The branches must be there. Checks that read other tables are evaluated on these tables as the commit names
        them, and as the channel keeps naming them.

        Args:
            current: The publications, by table.
            table_names: The tables that checks read, by asset.
            audit: What audits them.
            views: The tables as the commit would name them.
        """
        # Another publisher may have committed since the tables were searched.
        self.record.follow()
        if not self.divides and (lacking := self._divided_runs(current)):
            raise PublishRefusedError(
                f"{self.channel} would show a run in part", self.reasons_divided(current.values(), lacking)
            )
        # The tag of a version that is published as it is keeps its branch.
        pinned = {name: view.at.branch for name, view in views.items() if view.at.pin}
        refuse_deleted(
            publication
            for name, publication in current.items()
            if {source.branch for source in publication.sources} != {pinned.get(name)}
        )
        if not table_names:
            return

        def evaluate(views: Mapping[str, TableView], hint: str) -> None:
            named = {asset: views[name] for asset, name in table_names.items() if name in views}
            audit.audit_with_tables(list(current.values()), named, hint)

        evaluate(views, "")
        # A table that is not published now keeps its version in the channel, and `main` may be ahead of that version.
        others = [name for name in views if name not in current]
        present = self.channel_now() if others else None
        named = {} if present is None else self.repository.at(present.commit)
        if lagging := {name: named[name] for name in others if name in named and named[name].at != views[name].at}:
            places = ", ".join(f"{name} at {_place(view.at)}" for name, view in sorted(lagging.items()))
            hint = (
                f"; channel {self.channel!r} names {places}, and main of the repository another version: publish "
                "both at once, or the other table first, with ref: main"
            )
            evaluate({**views, **lagging}, hint)

    def adopt(self, publications: Iterable[Publication]) -> Mapping[str, str]:
        """Add tables that have the tag already to the channel, at the version of the tag; return these versions."""
        # A table without the tag was never published, and enters the channel with this publication.
        new = [
            self.repository.name_of(publication.table)
            for publication in publications
            if publication.previous is not None
        ]
        # A table that the channel named when the step started was added before; the others are looked for once more.
        new = self._unnamed(new, self.started)
        if new:
            new = self._unnamed(new, self.channel_now())
        adopted = self.repository.adopt(new, channels=[self.channel]).channels.get(self.channel) if new else None
        return {} if adopted is None else adopted.tables

    def _unnamed(self, names: Sequence[str], channel: Channel | None) -> list[str]:
        """Return the tables of some names that a channel does not name."""
        named = () if channel is None else self.repository.at(channel.commit)
        return [name for name in names if name not in named]

    def promote(self, published: PublishedTables, restored: RepositoryView | None) -> list[Publication]:
        """Move the channel to the published versions of all tables at once; the tags of the tables follow.

        Other tables keep their versions in the channel: this publisher did not audit newer ones.

        Args:
            published: The commit.
            restored: For a rollback of all tables, the tables at the commit that it restores.
        """
        # This step materializes the promoted nodes of these tables, so the sensor of the channel leaves them out.
        properties = {**self.about, md.REPORTED: _names(published.versions)}
        since = None if restored is not None or self.started is None else self.started.entry
        if restored is not None:
            rollback = self._rolled_back()
            # A retried step finds its rollback as the newest entry, and records no second one. It goes back to the
            # commit that it restored before, or for `production~1` to the one that it made.
            repeated = () if rollback is None else (rollback.commit, rollback.properties.get(RESTORES))
            restored = None if restored.commit.id in repeated else restored
        moved = self.repository.channels.advance(
            self.channel,
            published.commit.id,
            published.versions,
            reason=self.about.get(md.REASON, published.commit.message),
            properties=properties,
            # A person who rolls back is expected to know of other rollbacks.
            since=since,
            restores=None if restored is None else restored.commit,
            divide=self.divides,
        )
        return self._promoted(moved, published.published, published.versions)

    def divided(self, publications: Sequence[Publication]) -> dict[str, str]:
        """Return the other tables of runs and commits that readers would see only in part after the publications.

        `main` of a table may have a run that another publisher committed, or a commit that the channel was moved back
        from. The next publication of the table shows that run or commit too, but only in this table.

        Returns:
            By table, the run or commit that readers would see in the published tables alone; nothing where a person
            chose the tables.
        """
        if self.divides or not publications:
            return {}
        entry = None if self.started is None else self.started.entry
        published = {self.repository.name_of(publication.table): publication for publication in publications}
        lacking = self.repository.channels.divided(self.channel, published, entry=entry, head=self.record.head)
        return {name: str(commit) for name, commit in lacking.items()} | self._divided_runs(published)

    def reasons_divided(self, publications: Iterable[Publication], lacking: Mapping[str, str]) -> list[str]:
        """Return why publications wait, given the tables that would lack what they show, and what a person can do."""
        waiting, along = list(publications), ", ".join(dict.fromkeys(lacking.values()))
        nodes = [*(publication.promoted for publication in waiting), *map(self.nodes.get, lacking)]
        together = ", ".join(node.to_user_string() for node in nodes if node is not None)
        lagging = ", ".join(lacking)
        return [
            f"{publication.name}: it waits with {lagging}: readers would see {along} in {publication.name} and not "
            f"there, because another publisher brought it to {MAIN}, or {self.channel} was moved back from it: publish "
            f"what {lagging} lacks, or materialize {together} together, with ref: {MAIN} and a reason"
            for publication in waiting
        ]

    def _divided_runs(self, published: Mapping[str, Publication]) -> dict[str, str]:
        """Return the tables of the publisher in which readers would lack a run that comes along from `main`."""
        head, entry = self.record.head, None if self.started is None else self.started.entry
        visible = {} if entry is None else dict(self.repository.head(entry.commit).writes)
        # What another publisher has just committed for this channel is promoted first, with all of its tables.
        for commit in self.repository.channels.unpromoted(self.channel, entry=entry, head=head):
            parent = self.repository.head(commit.parents[0]) if commit.parents else None
            changed = {commit.tables[name].id for name in commit.changed_from(parent) if name in commit.tables}
            visible |= {table_id: commit.writes.get(table_id, NONE_CLOSED) for table_id in changed}
        ids = {name: at.id for name, at in head.tables.items() if name in self.nodes}
        names = {table_id: name for name, table_id in ids.items()}
        # A table that no commit has shows nothing but what is published now.
        sources = {ids[name]: {source.branch for source in of.sources} for name, of in published.items() if name in ids}

        def is_seen(write: RecordedWrite) -> bool:
            if write.number in visible.get(write.table_id, NONE_CLOSED).published or self.record.is_dropped(write):
                return True
            # The publication brings what `main` has of its tables, and the branches that it merges.
            of_table = sources.get(write.table_id)
            return of_table is not None and (self.record.is_published(write) or write.request.branch in of_table)

        lacking: dict[str, str] = {}
        for table_id in sources:
            # Mostly `main` has nothing that readers of the channel do not see already, and nothing is read.
            along = head.writes.get(table_id, NONE_CLOSED).published - visible.get(table_id, NONE_CLOSED).published
            for write in self.record.repository.record.read((table_id, number) for number in along):
                for sibling in self.record.of_candidate(write.request.candidate):
                    of_same_run = sibling.request.origin == write.request.origin and sibling.table_id in names
                    if of_same_run and not is_seen(sibling):
                        lacking[names[sibling.table_id]] = f"run {write.request.run_id}"
        return lacking

    def uncollected(self, published: Sequence[Publication]) -> str | None:
        """Return a warning that old publications were not collected for long; None when there are few of them."""
        # Each publication leaves a tag in each of its tables, so a look at one table is enough.
        # It has no more of them than versions of `main`, and a branch for each: few versions need no look.
        many = [
            publication
            for publication in published[:1]
            if publication.landed is None or publication.landed.number > _MANY_HELD // 2
        ]
        for name in [self.repository.name_of(publication.table) for publication in many]:
            held = self.repository.maintenance.held_versions(name)
            if held > _MANY_HELD:
                return (
                    f"{held} branches and tags of {name} hold versions for old commits of the repository: schedule the "
                    "job of build_maintenance_job, or run `lance-dagster free` once a week"
                )
        return None

    def withdrawn(self, table: LanceTable) -> int:
        """Return the number on `main` of the newest version of a table that a rollback took back; 0 for none."""
        withdrawn = {} if self.started is None else self.started.entry.withdrawn
        return withdrawn.get(self.repository.table_id(self.repository.name_of(table)), 0) if withdrawn else 0

    def left_behind(self, to: RepositoryView, publications: Sequence[Publication]) -> str | None:
        """Return a warning that a rollback leaves out tables that were promoted with those that go back."""
        if self.started is None or not any(map(is_rollback, publications)):
            return None
        present = self.repository.at(self.started.commit)
        selected = [
            name
            for name in map(self.repository.name_of, (publication.table for publication in publications))
            if name in present
        ]
        # What the rollback withdraws, whether it is a hold or a revert.
        planned = self.repository.channels.rollback(
            self.channel, tables=selected, to=to.commit, reason=self.about.get(md.REASON) or "planned", dry_run=True
        )
        stay = [f"{name} at {_place(present[name].at)}" for name in planned.left]
        if not stay:
            return None
        named = ", ".join([*stay[:_SHOWN], *([f"and {len(stay) - _SHOWN} more"] if len(stay) > _SHOWN else [])])
        return (
            f"only the selected tables go back; others that were promoted with them stay: {named}. Select their nodes "
            "too, to roll them back"
        )

    def catch_up(self, names: Sequence[str]) -> None:
        """Bring `main` and the tags of tables up to the channel: a publisher may have died before they followed."""
        # What does not follow, such as a tag that is held, is reported by the publication itself.
        self.repository.publications.follow(self.channel, names)

    def newest_promotion(self) -> list[PromotedCommit]:
        """Return the commit of `main` that the channel got last when the step started; none where it was moved back."""
        entry = None if self.started is None else self.started.entry
        if self.started is None or entry is None or entry.action != "promote" or not entry.moves:
            return []
        at = self.repository.at(entry.commit).commit
        names = tuple(name for name, version in at.tables.items() if version.id in entry.moves)
        return [PromotedCommit(replace(at, properties=entry.properties), names, self.started)]

    def finish(self, *, before: RepositoryCommit | None = None) -> list[PromotedCommit]:
        """Promote what publishers committed for the channel before they died; return it, oldest first.

        Such a commit passed its audit, and readers of `main` have it. The publisher that made it may be alive, and
        about to do the same.

        Args:
            before: A commit of `main`: commits before it are looked at; None for all commits.
        """
        head = self.record.head
        if before is not None:
            if not before.parents:
                return []
            head = self.repository.head(before.parents[0])
        finished: list[PromotedCommit] = []
        entry = None if self.started is None else self.started.entry
        for commit in self.repository.channels.unpromoted(self.channel, entry=entry, head=head):
            parent = self.repository.head(commit.parents[0]) if commit.parents else None
            names = tuple(name for name in commit.changed_from(parent) if name in commit.tables)
            # The tags of the channel must not name versions that `main` of a table lacks. Where another program was
            # there first, a person decides which rows stay.
            if self.repository.publications.land(commit, names) or not self._is_on_main(commit, names):
                continue
            # Readers of a tag that is held alone see the commit in no table.
            tags = (find_tag(self.repository.table(name), self.channel) for name in names)
            if any(tag is not None and tag.hold is not None for tag in tags):
                continue
            restores = commit.properties.get(RESTORES)
            moved = self.repository.channels.advance(
                self.channel,
                commit.id,
                names,
                reason=commit.properties.get(md.REASON, commit.message),
                properties={**commit.properties, md.REPORTED: _names(names)},
                restores=None if restores is None else self.repository.at(restores).commit,
                # It is promoted with all of its tables; a commit before it that cannot be promoted is an older one.
                divide=True,
            )
            finished.append(PromotedCommit(commit, names, moved))
        return finished

    def _is_on_main(self, commit: RepositoryCommit, names: Iterable[str]) -> bool:
        """Return whether `main` of some tables has exactly the versions of a commit."""
        view = self.repository.at(commit.id)
        with suppress(VersionNotFoundError):
            return all(view[name].version.branch == MAIN for name in names)
        return False

    def ahead(self, publication: Publication) -> str:
        """Return what `main` of a table has and its channel was moved back from or never got; empty for nothing.

        A publisher of another channel, or a person, put it there. It is promoted when a person asks for it.
        """
        at = self.record.head.tables.get(self.repository.name_of(publication.table))
        named = 0 if publication.previous is None else publication.previous.version
        if (
            at is None
            or at.lands <= named
            or (publication.previous is not None and publication.previous.branch != MAIN)
        ):
            return ""
        version = self.repository.at(self.record.head.id)[self.repository.name_of(publication.table)].version
        behind = f"and {self.channel} names {publication.previous.ref if publication.previous else 'no version'}"
        if restored := version.properties.get(md.ROLLED_BACK_TO):
            return f"nothing waits, but {version} is a rollback to {restored}, {behind}: to promote it, set ref: {MAIN}"
        runs = runs_of(version)
        has, ref = (f"has what run/{runs[-1]} wrote", f"run/{runs[-1]}, or ref: {MAIN}") if runs else ("is newer", MAIN)
        return f"nothing waits, but {version} {has}, {behind}: to promote it, set ref: {ref}"

    def has_left(self, publication: Publication, version: Version) -> bool:
        """Return whether the channel was moved back: it once named `version` of a table or a later version of it.

        Args:
            publication: The publication of the table.
            version: A version of `main` that the channel does not name now.
        """
        present = self.channel_now()
        of = self.record.head.tables.get(self.repository.name_of(publication.table))
        if present is None or of is None:
            return False
        for entry in self.repository.channels.history(self.channel):
            with suppress(NotFoundError):
                tables = {} if entry.deleted else self.repository.head(entry.commit).tables
                # By id: entries from before the table was moved have its old name.
                at = next((at for at in tables.values() if at.id == of.id), None)
                if at is not None and (at.lands == NEVER or at.lands >= version.number):
                    return True
        return False

    def _rolled_back(self) -> RefEntry | None:
        """Return the newest entry of the channel if it is a rollback with the reason of this step."""
        present = self.channel_now()
        newest = None if present is None else present.entry
        # The reason tells a retry from a further rollback by steps, which needs a reason of its own.
        is_same = newest and newest.action == "rollback" and newest.reason == self.about.get(md.REASON)
        return newest if is_same else None

    def roll_back(self, to: RepositoryView | None, publications: Sequence[Publication]) -> list[Publication]:
        """Move the channel back and hold it there, for all tables at once, including those that are not selected.

        Raises:
            InvalidInputError: A version of one table was chosen, but a channel names a commit of all tables.
        """
        if to is None:
            raise InvalidInputError(
                f"a rollback that holds moves all tables of {self.channel}: set ref to {self.channel}~1 or to the id "
                "of a commit, or roll this table back with rollback: revert"
            )
        properties = {
            **self.about,
            md.REPORTED: _names(self.repository.name_of(publication.table) for publication in publications),
        }
        moved = self.repository.channels.rollback(
            self.channel,
            reason=self.about[md.REASON],
            to=to.commit,
            who=self.about.get(md.WHO, ""),
            properties=properties,
        )
        return self._promoted(moved, publications, {})

    def _promoted(
        self, moved: Channel, published: Sequence[Publication], landed: Mapping[str, TableVersion]
    ) -> list[Publication]:
        """Return the publications with the versions that the channel names now, and with the entry that names them.

        Args:
            moved: The channel.
            published: The publications.
            landed: By table, which version `Publication.landed` is, where that is known.
        """
        view = self.repository.at(moved.commit)
        about = {
            md.REPOSITORY_COMMIT: moved.commit,
            md.CHANNEL_ENTRY: f"{self.channel}@{moved.entry.number}",
            md.LAGGING: [str(lagging) for lagging in moved.lagging],
        }
        if self.chain.run_id is not None:
            # Downstream steps of this run read what it published, even if the run read the channel before.
            self.repository.publications.pin_again(self.chain.run_id, self.channel, moved.commit)

        def promoted(lagging: Publication) -> Publication:
            name = self.repository.name_of(lagging.table)
            # `landed` was read a moment ago, and is the version to return unless the channel names another one.
            version = (
                lagging.landed
                if lagging.landed is not None and view[name].at == landed.get(name)
                else view[name].version
            )
            tables = _other_tables(view, landed, name)
            return replace(lagging, promoted_to=version, about={**lagging.about, **about, md.COMMIT_TABLES: tables})

        return concurrently(promoted, published)

    def _wanted(self, publication: Publication) -> VersionToPublish:
        if is_rollback(publication):
            return restored_version(publication, self.chain, self.about, self.record)
        # A version of `main` is committed as it is; there is no merge commit, and so no message.
        if publication.planned is None and (publication.landed is not None or not publication.sources):
            return VersionToPublish(
                version=publication.version, message="", writes=publication.writes, drops=publication.drops
            )
        message, about = landing_message(publication), landing_properties(publication, self.chain)
        return VersionToPublish(
            version=publication.planned or publication.sources[0],
            message=message,
            properties=about,
            writes=publication.writes,
            drops=publication.drops,
        )

    def with_writes(self, publication: Publication) -> Publication:
        """Return a publication with the recorded writes that it publishes, and those that it supersedes."""
        writes = [write for source in publication.sources for write in self.record.on_branch(publication.table, source)]
        if not writes:
            return publication
        older = [open_write for open_write in self.record.open_writes(publication.table) if open_write not in writes]
        drops: dict[RecordedWrite, RecordedWrite] = {}
        # Mostly nothing else is open, and then nobody asks what the candidate wrote before.
        for write in writes if older else ():
            excluded = excluded_by(write, self.record.of_candidate(write.request.candidate))
            drops |= {
                open_write: write for open_write in older if write.supersedes(open_write) or open_write in excluded
            }
        # Branches that were looked at are noted already, with advice.
        noted = {reason.partition("@")[0] for reason in publication.superseded}
        superseded = [
            f"{open_write} is superseded by {write}, and will not be published"
            for open_write, write in drops.items()
            if open_write.request.branch not in noted
        ]
        publication = replace(publication, writes=tuple(dict.fromkeys(writes)), drops=tuple(drops))
        return publication.noting(md.SUPERSEDED, superseded)


def _with_remedy(error: MergeConflictError, current: Mapping[str, Publication]) -> MergeConflictError:
    """Return the error of a commit with what a person can do about the runs in conflict.

    Args:
        error: The error of the repository, which knows nothing of runs.
        current: The publications, by table.
    """
    conflicts = [conflict for conflict in error.conflicts if isinstance(conflict, Conflict)]
    refused = [
        publication
        for name, publication in current.items()
        if any(conflict.unit.startswith(f"{name}: ") for conflict in conflicts)
    ]
    remedy = error.remedy or next_steps(refused, conflicts, current.values())
    return MergeConflictError(error.message, error.conflicts, remedy=remedy)


def _other_tables(view: RepositoryView, changed: Collection[str], name: str) -> dg.MarkdownMetadataValue | None:
    """Return the other tables of a commit with their versions; those that were published with the table come first."""
    others = sorted((table for table in view if table != name), key=lambda table: (table not in changed, table))
    lines = [
        f"- `{table}` {_place(view[table].at)}" + (", published with it" if table in changed else "")
        for table in others[:_SHOWN]
    ]
    more = [f"- and {len(others) - _SHOWN} more"] if len(others) > _SHOWN else []
    return dg.MetadataValue.md("\n".join([*lines, *more])) if others else None


def _place(at: TableVersion) -> str:
    # The version on `main` is what people find in the log of the table.
    return f"{MAIN}@{at.lands}" if at.lands else str(at)


def _names(tables: Iterable[str]) -> str:
    return json.dumps(sorted(tables))
