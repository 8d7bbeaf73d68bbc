"""Find what a run of a publisher is to publish: the version of each table, or the reason why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import dagster as dg

from lance_dagster.errors import (
    NotFoundError,
    PublishRefusedError,
    RefNotFoundError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin.publish.dependencies import Dependencies
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import (
    Opened,
    Publication,
    find_by_ref,
    find_by_run,
    refuse_branches_named,
)
from lance_dagster.plugin.publish.publication_audit import PublicationAudit
from lance_dagster.plugin.publish.publish_config import Rollback
from lance_dagster.plugin.publish.publishing_run import PublishingRun
from lance_dagster.plugin.publish.waiting import find_by_backfill, find_waiting, wait
from lance_dagster.plugin.publish.whole_candidate import WholeCandidates
from lance_dagster.plugin.run_branch import run_of
from lance_dagster.repository.view import RepositoryView
from lance_dagster.store import concurrently

# How often, and after how many seconds, a publisher is retried while runs that it depends on have yet to publish.
_RETRIES = 60
_RETRY_AFTER = 3.0


@dataclass(slots=True)
class SearchResult:
    """The result of a search through the tables: what to publish, and what is missing, wrong, held or refused."""

    publications: list[Publication] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    nothing_new: bool = False

    def refuse_part(self, candidates: Sequence[dg.AssetKey], nodes: Sequence[dg.AssetKey]) -> None:
        """Refuse all tables that were found, because the run writes others whose promoted nodes it does not select.

        Args:
            candidates: The candidates that are left out.
            nodes: Their promoted nodes.
        """
        others, missing = (", ".join(key.to_user_string() for key in keys) for keys in (candidates, nodes))
        self.missing += [
            f"{publication.name}: the run also writes {others}, and what a run writes is published as a whole: select "
            f"{missing} too. When the run is over, {publication.promoted.to_user_string()} materialized by itself "
            "publishes all of it"
            for publication in self.publications
        ]
        self.refused += [publication.name for publication in self.publications]
        self.publications.clear()

    def refusal(self, tag: str, *, chosen: bool) -> PublishRefusedError:
        """Return the error that says why nothing is published; `chosen` says that a person named what to publish."""
        if self.held and not self.wrong:
            return PublishRefusedError(f"{tag} is held, so nothing was published", self.missing)
        if self.refused and not self.wrong:
            return PublishRefusedError(f"refused to publish {', '.join(self.refused)}", self.missing)
        hint = "" if chosen else "; to publish something else, set ref to main@<n> or run/<run id>"
        return PublishRefusedError(f"nothing to publish{hint}", [*self.wrong, *self.missing])


@dataclass(slots=True, kw_only=True)
class PublicationSearch:
    """The search of one run of a publisher.

    Attributes:
        run: The run.
        audit: What audits a version of a table.
        candidates: The candidates of runs, each looked at once.
        chosen: All tables at the commit that the config names, once they were searched; None where it names none.
    """

    run: PublishingRun
    audit: PublicationAudit
    candidates: WholeCandidates
    chosen: RepositoryView | None = None

    def find(self, nodes: Sequence[PromotedNode], *, is_finished: bool) -> list[Publication]:
        """Return the publications of the tables that have something to publish.

        Args:
            nodes: The selected nodes.
            is_finished: Whether the publication of another publisher was finished, so that there need be nothing else.

        Raises:
            PublishRefusedError: No table has anything that may be published, or a table lacks a version that it needs.
        """
        search = SearchResult(nothing_new=is_finished)
        # A run is looked up in each table separately. Any other ref may name one commit of all tables.
        if self.run.config.ref and run_of(self.run.config.ref) is None:
            # A rollback that holds moves all tables; else the promotions of the selected tables count.
            names = None if self.run.config.rollback is Rollback.hold else self.run.names_of(nodes)
            self.chosen = self.run.publisher.view_of(self.run.config.ref, names)
        for publication in self._publications_of_runs(nodes, search):
            self._sort(publication, search)
        self._keep_together(search)
        self._keep_dependent_back(search)
        self._keep_undivided(search)
        if search.wrong or not (search.publications or (search.nothing_new and not search.refused)):
            raise search.refusal(self.run.tag, chosen=bool(self.run.config.ref))
        refuse_branches_named(self.run.tag, search.publications)
        self._check_rollback(search.publications)
        self._log(search)
        return search.publications

    def _log(self, search: SearchResult) -> None:
        """Log what is not published, and why."""
        if not search.publications:
            self.run.context.log.info("nothing new for %s", self.run.tag)
        for reason in search.missing:
            self.run.context.log.warning("not published, so its readers are not run: %s", reason)
        for publication in search.publications:
            for reason in publication.waiting:
                self.run.context.log.warning("%s: it waits: %s", publication.name, reason)
            # A superseded branch loses no rows, so this is not a warning.
            for superseded in publication.superseded:
                self.run.context.log.info("%s: %s", publication.name, superseded)

    def _publications_of_runs(self, nodes: Sequence[PromotedNode], search: SearchResult) -> list[Publication]:
        """Return the publications of tables, and of others that the same runs wrote: readers see a run as a whole."""
        publications, deselected = (
            self._publications_of(nodes, search),
            [node for node in self.run.nodes if node not in nodes],
        )
        if not (deselected and self.run.is_alone):
            return self.candidates.without_superseded(publications, ())
        # With a search of its own: its messages are about nodes that nobody selected.
        others = self._publications_of(deselected, SearchResult())
        whole_publications, whole_others = (
            self.candidates.without_superseded(publications, others),
            self.candidates.without_superseded(others, publications),
        )
        return [*whole_publications, *self.candidates.written_with(whole_publications, whole_others)]

    def _publications_of(self, nodes: Sequence[PromotedNode], search: SearchResult) -> list[Publication]:
        """Return the publication of each table that was found."""
        named = run_of(self.run.config.ref) if self.run.config.ref else None
        publications, by_run = list[Publication](), named is not None or not self.run.config.ref
        # Storage is read for several tables at a time; the event log is read by this thread only.
        for node, opened in zip(nodes, concurrently(self.run.opened_or_missing, nodes), strict=True):
            try:
                publications.append(self._look(node, opened))
            except (TableNotFoundError, RefNotFoundError, VersionNotFoundError) as error:
                # A run may write only some of the tables, so its branch may be missing in others. Any other ref
                # must exist in every table, and so must a table that the run has written.
                search.nothing_new |= self.run.log.stored_nothing(node.candidate, self.run.chain.run_ids)
                # Oldest first.
                runs = self.run.chain.run_ids[::-1] if named is None else self.run.log.runs_of_candidate(named)
                lost = self.candidates.lost(node, runs) if by_run else []
                noted = search.missing if by_run and not lost else search.wrong
                noted.append(f"{node.candidate.to_user_string()}: {''.join(lost) or error}")
        return publications

    def _keep_together(self, search: SearchResult) -> None:
        """Leave out all tables of a run when one of them is held or not selected: they are published together."""
        # With `ref` a person chose the tables. In a run of the publisher alone, `WholeCandidates` has decided already.
        if not search.publications or self.run.config.ref or self.run.is_alone:
            return
        if search.held:
            search.missing += [
                f"{publication.name}: it waits with {', '.join(search.held)}" for publication in search.publications
            ]
            search.publications.clear()
            return
        if deselected := self._deselected():
            search.refuse_part([node.candidate for node in deselected], [node.promoted for node in deselected])

    def _deselected(self) -> list[PromotedNode]:
        """Return the nodes that the run does not select, although it or a run that it continues writes their tables.

        Such a table cannot come along: Dagster does not let the publisher's step wait for it, so it may not be written
        yet. Tables that are published already are not returned.
        """

        def is_unpublished(node: PromotedNode) -> bool:
            opened = self.run.opened_or_missing(node)
            # Without a branch the table was published, or the run has yet to write it, or failed before it did.
            if isinstance(opened, NotFoundError) or opened.head is None:
                return not self.run.log.written_by(node.candidate, self.run.chain) or bool(
                    self.candidates.lost(node, runs)
                )
            return opened.table.branches.is_merged(opened.head) is None

        runs = self.run.chain.run_ids[::-1]
        deselected = [
            node
            for node in self.run.nodes_of_step(self.run.nodes)
            if node.promoted not in self.run.context.selected_asset_keys
            and not self.run.log.is_output_skipped(node.candidate, runs)
        ]
        # Storage is read only for tables that the runs planned to write.
        planned = [
            node
            for node in deselected
            if any(self.run.log.plans([node.candidate], run) for run in self.run.chain.run_ids)
        ]
        return list(filter(is_unpublished, planned))

    def _keep_dependent_back(self, search: SearchResult) -> None:
        """Leave out rows that were computed from unpublished versions of other runs of the same backfill."""
        # `ignore_failed_checks` covers these too. Without a backfill a run reads only what is published.
        own = self.run.chain.backfill_id is None and not (self.run.config.ref or self.run.is_alone)
        if not (own or self.run.config.ignore_failed_checks):
            dependencies = Dependencies(self.run.instance, self.run.record, self.run.lance.connection_options)
            search.publications, waiting = dependencies.keep_back(search.publications)
            # When each run of a backfill publishes, an earlier run may be about to publish what is missing.
            if dependencies.under_way and self.run.chain.backfill_id is not None:
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_AFTER)
            search.missing += [
                f"{publication.name}: {reason}" for publication in waiting for reason in publication.waiting
            ]
            # A run of *Materialize* succeeds, since it publishes whatever waits; a backfill was to publish these.
            search.refused += [publication.name for publication in waiting if self.run.chain.backfill_id is not None]

    def _keep_undivided(self, search: SearchResult) -> None:
        """Leave out all tables where readers would see a run or a commit in these alone, since its rows come along."""
        lacking = self.run.publisher.divided(search.publications)
        if not lacking:
            return
        search.missing += self.run.publisher.reasons_divided(search.publications, lacking)
        # A run of *Materialize* succeeds, since it publishes whatever can be published.
        search.nothing_new |= self.run.is_alone
        search.refused += [] if self.run.is_alone else [publication.name for publication in search.publications]
        search.publications.clear()

    def _sort(self, publication: Publication, search: SearchResult) -> None:
        """Decide whether a table is published, is left out with a warning, or stops the publication of all."""
        hold = (publication.previous.hold if publication.previous else None) or self.run.hold
        # A rollback that holds may take a held channel further back.
        if publication.audited and hold and not self._rolls_back_all:
            # The table is neither merged nor promoted: its branch waits, and is published after the release.
            search.held.append(publication.name)
            search.missing.append(
                f"{publication.name}: {self.run.tag} is {hold}; set release: true and a reason to publish it again"
            )
        elif publication.audited:
            search.publications.append(publication)
        # The event log says that a run wrote the table. A missing branch is then an error: it was
        # deleted, or the run wrote under another root.
        elif runs := self.run.log.written_by(publication.candidate, self.run.chain):
            search.wrong.append(
                f"{publication.name}: run {runs[0]} materialized it, but left no branch in {publication.table.uri}"
            )
        # An output that was None: there is nothing to publish, and nothing is missing.
        elif self.run.log.stored_nothing(publication.candidate, self.run.chain.run_ids):
            search.nothing_new = True
        # At the end of a backfill every branch of the table failed: other tables are published without it.
        elif publication.waiting and self.run.chain.backfill_id is not None:
            search.refused.append(publication.name)
            search.missing += publication.waiting
        # This is not an error: a run of *Materialize* succeeds when everything is published already.
        elif self.run.is_alone:
            search.nothing_new = True
            search.missing += [f"{publication.name}: it waits: {reason}" for reason in publication.waiting]
            if not publication.waiting and (ahead := self.run.publisher.ahead(publication)):
                search.missing.append(f"{publication.name}: {ahead}")
        else:
            search.missing.append(f"{publication.name}: no run branch of this run")

    def _look(self, node: PromotedNode, opened: Opened | NotFoundError) -> Publication:
        if isinstance(opened, NotFoundError):
            raise opened
        empty = self.run.publication(node, opened)
        if self.run.config.ref:
            if self.chosen is not None:
                landed = self.run.publisher.version_in(self.chosen, empty, self.run.config.ref)
                return replace(empty, landed=landed, chosen=True)
            return find_by_ref(empty, self.run.config.ref, instance=self.run.instance, record=self.run.record)
        # The branch of a run may have rows of an attempt that failed; the next one left the optional output out.
        is_output_skipped = self.run.log.is_output_skipped(node.candidate, self.run.chain.run_ids[::-1])
        head = None if is_output_skipped else opened.head
        publication = find_by_run(empty, self.run.chain, head=head, record=self.run.record)
        if publication.audited:
            return publication
        # A partitioned publisher runs in each run of the backfill, and publishes what that run wrote.
        if (backfill := self.run.chain.backfill_id) is not None and not self.run.partitioned:
            later = partial(wait, self.run.context) if self.run.is_alone else None
            return self._unless_withdrawn(find_by_backfill(empty, backfill, self.candidates, wait=later))
        # In a job, branches of other runs keep waiting: the job was launched to publish its own rows.
        if not self.run.is_alone:
            return publication
        return find_waiting(empty, self.candidates, within=self.run.partition_keys)

    def _unless_withdrawn(self, publication: Publication) -> Publication:
        """Return a table without the version that its backfill published, if the channel was moved back from it."""
        named = publication.previous.version if publication.previous and publication.previous.branch == MAIN else 0
        if (
            publication.landed is None
            or publication.landed.number <= named
            or not self.run.publisher.has_left(publication, publication.landed)
        ):
            return publication
        return replace(publication, landed=None)

    def _check_rollback(self, publications: Sequence[Publication]) -> None:
        """Refuse a rollback that changes none of its tables, and warn of tables that it leaves out."""
        if self.chosen is None:
            return
        self.run.publisher.refuse_unchanged(self.run.config.ref, self.chosen, publications)
        if not self._rolls_back_all and (stay := self.run.publisher.left_behind(self.chosen, publications)):
            self.run.context.log.warning(stay)

    @property
    def _rolls_back_all(self) -> bool:
        return self.chosen is not None and self.run.config.rollback is Rollback.hold
