"""Decide whether what one run wrote to all tables of a publisher may be published: it is published whole or not at all.

The tables of a publisher are published by one commit. A table of a candidate that failed its checks, cannot be merged,
is held, was not written because the run failed before, has lost its branch, or is superseded by a newer run, keeps the
other tables back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lance_dagster.errors import TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import has_source
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import Opened, Publication, publish_alone
from lance_dagster.plugin.publish.publication_audit import PublicationAudit
from lance_dagster.plugin.publish.publish_gate import after_failed_audit
from lance_dagster.plugin.publish.publishing_run import PublishingRun
from lance_dagster.plugin.recorded_writes import is_marked
from lance_dagster.plugin.run_branch import RunChain, branch_of, candidate_of, is_over, run_of
from lance_dagster.table import LanceTable


@dataclass(slots=True, kw_only=True)
class WholeCandidates:
    """Look at the candidates of runs, each once.

    Attributes:
        run: The run of the publisher.
        audit: What audits a version of a table.
    """

    run: PublishingRun
    audit: PublicationAudit
    # The reasons against each table of a candidate, by the id of each run that wrote the candidate.
    _against: dict[str, Mapping[str, Sequence[str]]] = field(init=False, default_factory=dict)
    # What to do about those of the reasons that no repetition of the publication changes: the rows of a table cannot be
    # merged, or are gone.
    _advice: dict[str, str] = field(init=False, default_factory=dict)

    def others(self, publication: Publication) -> Iterator[tuple[str, LanceTable]]:
        """Yield the other tables of the publisher, which are published with this one or not at all."""
        for node in self.run.nodes:
            with suppress(TableNotFoundError):
                if node.candidate != publication.candidate:
                    yield node.candidate.to_user_string(), self.run.table(node)

    def reasons_against(self, publication: Publication, head: Version) -> list[str]:
        """Return the reasons against publishing a branch: its own, or else those against its candidate."""
        own = self.audit.audit_version(publication, head)[1]
        if own:
            return [*own[:-1], f"{own[-1]}; {after_failed_audit([head.branch])}"]
        return self.held_back(publication, head)

    def held_back(self, publication: Publication, head: Version) -> list[str]:
        """Return the reasons against the other tables of the candidate of a branch."""
        run_id = run_of(head.branch) or ""
        if run_id not in self._against:
            runs = self.run.log.runs_of_candidate(run_id)
            # The reasons are kept under each run, since branches of the tables may belong to different re-executions.
            self._against |= dict.fromkeys(runs, self._reasons(runs))
        against = self._against[run_id]
        others = [(name, reasons[0]) for name, reasons in against.items() if name != publication.name and reasons]
        return [
            f"{head} waits with {name}, which the same run was to write: {reason}"
            + (
                f"; {self._advice[reason]}, {publish_alone([publication], head.branch)}"
                if reason in self._advice
                else ""
            )
            for name, reason in others
        ]

    def _reasons(self, run_ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the reasons against each table of the candidate of some runs, oldest first, by the key of its asset.

        The candidate is published whole or not at all: a table that failed its checks, cannot be merged, is held, or
        was not written because the run failed before, keeps the others back.
        """
        log, newest = self.run.log, run_ids[-1]
        # Outputs that an asset may skip are missing on purpose; what is computed from promoted nodes is written later.
        needed = [node.candidate for node in self.run.nodes if not (node.spec.skippable or self.run.is_layered(node))]
        when = "ended before it wrote it" if is_over(newest, log.instance) else "has yet to write it"
        reasons = {key.to_user_string(): [f"run {newest} {when}"] for key in log.unwritten(needed, run_ids)}
        for node in self.run.nodes:
            reasons.setdefault(node.candidate.to_user_string(), []).extend(self._reasons_of_table(node, run_ids))
        return reasons

    def without_superseded(
        self, publications: Sequence[Publication], others: Sequence[Publication]
    ) -> list[Publication]:
        """Leave out the branches of runs whose rows in another table a newer run replaces in the same publication.

        Published without that table, the candidate of such a run would be published in part.

        Args:
            publications: The tables that are to be published.
            others: Other tables of the publisher, which are only looked at.
        """
        reasons: dict[str, str] = {}
        for publication in (*publications, *others):
            for older, newer in publication.overtaken:
                runs = self.run.log.runs_of_candidate(run_of(older) or "")
                # A run that continues another one replaces its rows too, and the two are one candidate.
                if run_of(newer) not in runs:
                    reason = f"what its run wrote to {publication.name} is superseded by {newer}"
                    reasons |= {branch_of(run): reason for run in runs}
        remaining = []
        for publication in publications:
            late = [source for source in publication.sources if source.branch in reasons]
            sources = tuple(source for source in publication.sources if source not in late)
            advice = "re-execute the run, or discard all of it"
            waits = [f"{source}: {reasons[source.branch]}; {advice}" for source in late]
            remaining.append(replace(publication, sources=sources).noting(md.WAITING, waits))
        return remaining

    def written_with(self, publications: Sequence[Publication], others: Iterable[Publication]) -> list[Publication]:
        """Return the other tables that have to be published too: readers see all tables that a run wrote, or none.

        These are the tables with branches of the same runs. A table that is added this way may have branches of further
        runs, whose tables are added as well.

        Args:
            publications: The tables that are to be published.
            others: Other tables of the publisher, each with the branches that it could publish.
        """

        def runs_of_branches(publication: Publication) -> set[str]:
            runs = {run for source in publication.sources if (run := run_of(source.branch)) is not None}
            return {along for run in runs for along in self.run.log.runs_of_candidate(run)}

        runs = set[str]().union(*map(runs_of_branches, publications))
        along, remaining = list[Publication](), list(others)
        # A table that comes along may have branches of further runs, which wrote further tables.
        while more := [publication for publication in remaining if not runs.isdisjoint(runs_of_branches(publication))]:
            along += more
            remaining = [publication for publication in remaining if publication not in more]
            runs = runs.union(*map(runs_of_branches, more))
        return along

    def lost(self, node: PromotedNode, run_ids: Sequence[str]) -> list[str]:
        """Return the reason against a candidate whose rows in a table are gone: neither on a branch nor on `main`.

        Somebody deleted the branch, or the table. Run ids are oldest first.
        """
        events = self.run.log.events(node.candidate, run_ids)
        materialization = max(
            (event for event in events if event.check is None), key=lambda event: event.order, default=None
        )
        branch = "" if materialization is None else md.text(materialization.metadata, md.BRANCH) or ""
        # What another IO manager stored, or an op committed elsewhere, is on no branch of a run.
        if (run_id := run_of(branch)) is None:
            return []
        reason = f"run {run_id} materialized it, but left no branch with its rows, and {MAIN} lacks them"
        with suppress(TableNotFoundError):
            table = self.run.table(node)
            head = table.branches.newest(branch)
            is_there = head is not None and bool(table.branches.unmerged(head))
            # The record is read after the branch: a publisher that is at work deletes the branch after its commit.
            if is_there or self._is_closed(table, run_id, is_kept=head is not None):
                return []
            reason += f" (in {table.uri})"
        self._advice[reason] = "re-execute all steps of the run, or discard what is left of it"
        return [reason]

    def _is_closed(self, table: LanceTable, run_id: str, *, is_kept: bool) -> bool:
        """Return whether what a run wrote to a table is published, or was dropped on purpose.

        Args:
            table: The table.
            run_id: The id of the run.
            is_kept: Whether the run has a branch still, so that a run without recorded writes wrote nothing.
        """
        self.run.record.refresh()
        candidate = candidate_of(run_id, self.run.instance)
        writes = self.run.record.writes_of_runs(candidate, [run_id], table)
        if not writes and not is_kept:
            # Without a record, the log of `main` tells whether it has the rows of the run.
            return has_source(table, branch_of(run_id))
        record = self.run.record
        is_merged = record.repository.publications.is_merged
        return all(record.is_published(write) or record.is_dropped(write) or is_merged(write) for write in writes)

    def _reasons_of_table(self, node: PromotedNode, run_ids: Sequence[str]) -> list[str]:
        """Return the reasons against publishing the rows that some runs wrote to one table."""
        if self.run.log.is_output_skipped(node.candidate, run_ids):
            return []
        # A chain is newest first, and the runs of a candidate are oldest first.
        chain = RunChain(run_ids=tuple(reversed(run_ids)))
        try:
            table, previous, head = Opened.of(self.run.table(node), self.run.tag, chain)
        except TableNotFoundError:
            # A table that was never created has nothing to refuse; `_reasons` names it if it was needed.
            return self.lost(node, run_ids)
        if head is None:
            return self.lost(node, run_ids)
        publication = Publication(candidate=node.candidate, promoted=node.promoted, table=table, previous=previous)
        candidate = candidate_of(run_ids[-1], self.run.instance)
        if is_marked(head) and not self.run.record.writes_of_runs(candidate, run_ids, table):
            reason = f"{head} was recorded for another table, which was removed from the repository or made again"
            self._advice[reason] = "run the job again"
            return [reason]
        merge = table.preview_merge(head)
        # Published already, and the branch is yet to be deleted: the other tables must not wait for it.
        if merge.already_merged:
            return []
        held = [f"{self.run.tag} is {previous.hold}"] if previous is not None and previous.hold is not None else []
        conflicts = list(map(str, merge.conflicts))
        self._advice |= dict.fromkeys(conflicts, "run the job again")
        return [*held, *self.audit.audit_version(publication, head)[1], *conflicts]
