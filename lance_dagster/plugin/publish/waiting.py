"""Find the run branches that wait to be published, and choose among them.

A branch waits when its run is over and the record has an open write on it: its publisher was deselected, refused it, or
runs later, as after a backfill. The branches that passed their audit are published. The numbers of the recorded writes
are the order of the branches. Of two branches that replace the same rows, the newer branch supersedes the older one,
whether the older one passed or not, so a repaired run takes the place of a broken one. A re-execution of all steps that
succeeded supersedes the run that it repeats, whatever it wrote. Of two appends of the same work, the newer one
supersedes the older one, unless that is published.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import dagster as dg

from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.branch_extent import BranchExtent
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.publish.whole_candidate import WholeCandidates
from lance_dagster.plugin.run_branch import (
    RunChain,
    is_over,
    is_written,
    run_of,
)
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.store import concurrently
from lance_dagster.table import LanceTable

# How often a publisher looks for runs of its backfill that are not over, and after how many seconds: about 50 minutes
# in all.
_LOOKS = 60
_LOOK_AFTER = 3.0
_LONGEST_WAIT = 60.0


def find_waiting(publication: Publication, candidates: WholeCandidates, *, within: Sequence[str] = ()) -> Publication:
    """Return the publication of the run branches of a table that wait and passed their audit.

    Args:
        publication: The table.
        candidates: The candidates of runs, each looked at once.
        within: The partitions to publish; a branch that wrote others is left out. Empty for all.
    """
    writes = candidates.run.record.open_writes(publication.table)
    # A run that is not over may write again, and not all of its checks may have run.
    over = cache(partial(is_over, instance=candidates.run.instance))
    finished = [write for write in writes if over(write.request.run_id)]
    return _choose(publication, finished, candidates, within=frozenset(within))


def find_by_backfill(
    publication: Publication,
    backfill_id: str,
    candidates: WholeCandidates,
    *,
    wait: Callable[[str], None] | None = None,
) -> Publication:
    """Return the publication of the branches of a backfill that passed their audit, and note those that have to wait.

    Without branches it publishes the version that an earlier publication of the backfill made, if there is one.

    Args:
        publication: The table.
        backfill_id: The id of the backfill.
        candidates: The candidates of runs, each looked at once.
        wait: Called with the id of a run that wrote the table and is not over, before anything is audited. None when
            the publisher's own run writes candidates: two such runs would wait for each other.
    """
    table, record = publication.table, candidates.run.record
    table_id = record.table_id(table)
    own = [write for write in record.of_candidate(backfill_id) if write.table_id == table_id]
    waiting = [write for write in own if not (record.is_published(write) or record.is_dropped(write))]
    if wait is not None:
        for run_id in dict.fromkeys(write.request.run_id for write in waiting):
            if not is_over(run_id, candidates.run.instance):
                wait(run_id)
    chosen = _choose(publication, waiting, candidates)
    if chosen.sources or chosen.waiting:
        return chosen
    # The publication deletes the branches, so a publisher that is retried finds its result on `main`.
    landed = record.version_with([write for write in own if record.is_published(write)])
    return chosen if landed is None else replace(chosen, landed=landed[1])


def wait(context: dg.AssetExecutionContext, run_id: str) -> None:
    """Request a retry of the publisher's step, because a run of its backfill is not over; return after the last retry.

    Dagster starts the step when the rows are materialized. The run may still have to check them, and to write the
    other tables of its candidate.
    """
    if context.retry_number < _LOOKS:
        seconds = min(_LOOK_AFTER * (context.retry_number + 1), _LONGEST_WAIT)
        context.log.info("run %s of the backfill is not over; looking again in %d s", run_id, seconds)
        raise dg.RetryRequested(max_retries=_LOOKS, seconds_to_wait=seconds)


@dataclass(slots=True, kw_only=True)
class _Chooser:
    """Chooses among the branches of a table, from the newest to the oldest."""

    publication: Publication
    candidates: WholeCandidates
    within: frozenset[str]
    chosen: list[BranchExtent] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)
    overtaken: list[tuple[str, str]] = field(default_factory=list)

    def look(self, extent: BranchExtent) -> None:
        """Choose a branch, or note why it is not published."""
        head = extent.head
        # A branch that was forked from this branch has its rows, and is published in its place.
        if any(newer.contains(extent) for newer in self.chosen):
            return
        covering = next(
            (newer.head for newer in self.chosen if newer.covers(extent) or newer.redoes(extent)),
            None,
        )
        if covering is not None:
            self.overtaken.append((head.branch, covering.branch))
        duplicate = _published_duplicate(extent, self.candidates.run.record)
        newer = (
            covering
            or self._repeated_by(extent)
            or (duplicate.text if duplicate and duplicate.is_whole(extent) else None)
        )
        if newer is not None:
            self._note_superseded(head, newer)
        elif (repeated := self._repeated_in_part(extent)) is not None:
            self.waits.append(repeated)
        elif (deselected_nodes := _reason_to_wait(extent, duplicate, self.within)) is not None:
            self.waits.append(deselected_nodes)
        else:
            self._judge(extent)

    def _repeated_in_part(self, extent: BranchExtent) -> str | None:
        """Return why a branch waits: a branch that is published now appended again to some of its partitions."""
        for newer in self.chosen:
            if repeated := newer.appended_again(extent):
                self.overtaken.append((extent.head.branch, newer.head.branch))
                return _divided(extent, repeated, f"did the newer {newer.head}")
        return None

    def _judge(self, extent: BranchExtent) -> None:
        table, head = self.publication.table, extent.head
        reasons, is_merged = self._audited(head)
        # Only a branch that cannot be published is looked for on `main`: another program may have merged it.
        landed = table.branches.is_merged(head) if reasons else None
        if landed is not None:
            self._note_superseded(head, landed)
        elif reasons:
            self.waits += reasons
        # A branch that is merged already was left behind by a publisher that died before it deleted the branch.
        elif is_merged:
            return
        elif (overlapping := next((newer for newer in self.chosen if extent.shares(newer)), None)) is not None:
            self.overtaken.append((head.branch, overlapping.head.branch))
            self.waits.append(_overlap(extent, overlapping))
        else:
            self.chosen.append(extent)

    def _audited(self, head: Version) -> tuple[Sequence[str], bool]:
        """Return the reasons against publishing a branch, and whether `main` contains the branch already."""
        if reasons := self.candidates.reasons_against(self.publication, head):
            return reasons, False
        merge = self.publication.table.preview_merge(head)
        # A new run replaces an overwrite or a partition; an append or an upsert that waits has to be discarded.
        again = "materialize it again, which starts from what is published"
        advice = f"{again}, then set discard: {head.branch} if it still waits"
        against = [
            f"{head} conflicts with what was published since: {conflict}; {advice}" for conflict in merge.conflicts[:1]
        ]
        if against and (
            others := [
                name
                for name, other_table in self.candidates.others(self.publication)
                if _is_waiting(other_table, head.branch)
            ]
        ):
            named = f"its run also wrote {', '.join(others)}, which discard would delete too"
            against = [f"{against[0]}; {named}: to publish only that, select only its nodes, with ref: {head.branch}"]
        return against, merge.already_merged

    def _note_superseded(self, head: Version, newer: object) -> None:
        self.superseded.append(
            f"{head} is superseded by {newer}; {_advice(head, self.candidates.others(self.publication))}"
        )

    def _repeated_by(self, extent: BranchExtent) -> str | None:
        """Return what did all the work of the run that wrote a branch again, or None."""
        run_id, log, record = run_of(extent.head.branch) or "", self.candidates.run.log, self.candidates.run.record
        if log.is_output_skipped(self.publication.candidate, log.family(run_id, RunChain())):
            return "the next attempt of its step, which succeeded without this output"
        if (repeated := log.repeated_by(run_id)) is not None:
            return f"run {repeated}, which executed all of its steps again"
        # Another run of the candidate is at work on the same rows. What it appends takes the place of these rows.
        at_work = next(
            (
                newer.request.run_id
                for write in extent.writes
                if write.adds_rows
                for newer in record.of_candidate(write.request.candidate)
                if newer.is_same_work(write) and newer.number > write.number and newer.request.run_id != run_id
                if not is_over(newer.request.run_id, log.instance)
            ),
            None,
        )
        return None if at_work is None else f"run {at_work}, which writes the same rows and is not over"


def _choose(
    publication: Publication,
    writes: Iterable[RecordedWrite],
    candidates: WholeCandidates,
    *,
    within: frozenset[str] = frozenset(),
) -> Publication:
    """Return the publication of the branches of some writes that may be published, with notes about the others."""
    table = publication.table
    # Without the branches that a tag of a run named.
    branches = [branch for branch in dict.fromkeys(write.request.branch for write in writes) if run_of(branch)]
    heads = [head for head in concurrently(table.branches.newest, branches) if head is not None and is_written(head)]
    extents = [BranchExtent.of(table, head, candidates.run.record.repository) for head in heads]
    chooser = _Chooser(publication=publication, candidates=candidates, within=within)
    # Newest first: whether a branch is superseded depends on the newer ones that passed.
    for extent in sorted(extents, key=lambda extent: extent.newest, reverse=True):
        chooser.look(extent)
    # The oldest branch is published first.
    sources = tuple(extent.head for extent in reversed(chooser.chosen))
    chosen = replace(publication, sources=sources, overtaken=tuple(chooser.overtaken))
    return chosen.noting(md.WAITING, chooser.waits).noting(md.SUPERSEDED, chooser.superseded)


def _overlap(extent: BranchExtent, newer: BranchExtent) -> str:
    """Say why a branch waits of which a newer branch, which is published now, replaced a part."""
    branch = extent.head.branch
    return (
        f"{extent.head} and the newer {newer.head} both replaced {extent.shares(newer)}: materialize the rest of what "
        f"{branch} wrote again, which starts from what is published, then set discard: {branch}"
    )


@dataclass(frozen=True, slots=True)
class _PublishedDuplicate:
    """A published append of the same work, and the partitions that a branch appended to again; none for all rows."""

    write: RecordedWrite
    partitions: frozenset[str]

    @property
    def text(self) -> str:
        """The append and its run, for messages."""
        return f"run {self.write.request.run_id}, whose {self.write} is published"

    def is_whole(self, extent: BranchExtent) -> bool:
        """Return whether all partitions of a branch were published."""
        return not self.partitions or self.partitions == extent.partitions


def _published_duplicate(extent: BranchExtent, record: RecordView) -> _PublishedDuplicate | None:
    """Return a published append that a branch repeats, in whole or in part."""
    for write in extent.writes:
        if (duplicate := record.published_duplicate(write)) is not None:
            return _PublishedDuplicate(
                duplicate, frozenset(write.request.partitions) & frozenset(duplicate.request.partitions)
            )
    return None


def _reason_to_wait(extent: BranchExtent, duplicate: _PublishedDuplicate | None, within: frozenset[str]) -> str | None:
    """Return why a branch waits whatever its audit says: `main` has a part of its rows, or it is not selected."""
    if duplicate is not None:
        return _divided(extent, duplicate.partitions, duplicate.text)
    if within and not (extent.partitions and extent.partitions <= within):
        wrote = ", ".join(sorted(extent.partitions)) or "the whole table"
        # A definition may have lost the partition since, so that it cannot be selected.
        return f"{extent.head} wrote {wrote}, which is not selected: select it, or set ref: {extent.head.branch}"
    return None


def _divided(extent: BranchExtent, partitions: frozenset[str], by: str) -> str:
    """Say why a branch waits whose rows of some partitions `by` appended too, and how to get the remaining rows."""
    remaining, rows = ", ".join(sorted(extent.partitions - partitions)), ", ".join(sorted(partitions))
    return (
        f"{extent.head} appended to {rows} as {by}: materialize {remaining} again by a new run, "
        f"then set discard: {extent.head.branch}"
    )


def _advice(head: Version, others: Iterable[tuple[str, LanceTable]]) -> str:
    """Return what to do with a superseded branch; discarding it also discards what its run wrote to other tables."""
    waiting = [name for name, table in others if _is_waiting(table, head.branch)]
    if not waiting:
        return "discard it"
    return f"its run also wrote {', '.join(waiting)}, which waits with it: re-execute the run, or discard all of it"


def _is_waiting(table: LanceTable, branch: str) -> bool:
    head = table.branches.newest(branch)
    return head is not None and is_written(head) and table.branches.is_merged(head) is None
