"""Decide what to do with the branches of runs, where the rows of a run without success may wait to be published too.

These rows wait in two cases. A re-execution continued the run and succeeded: then both branches are parts of one
candidate. Or every table of the run was written and passed its checks, and only a later step failed: the publisher,
such as while the tag is held, or a step downstream. Rows that conflict with what is published do not wait, since they
cannot be merged.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import NotFoundError, RefNotFoundError
from lance_dagster.plugin.commit_properties import has_source
from lance_dagster.plugin.operate.branch_decisions import (
    Action,
    BranchDecision,
    KeepFor,
    RunLookups,
    RunsOfBranches,
    decide,
    short,
)
from lance_dagster.plugin.publish.publish_gate import AuditLog, Subject, reasons_against
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.publish.waiting import Candidate
from lance_dagster.plugin.recorded_writes import write_of
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import RunBranch, RunChain, is_written, run_of
from lance_dagster.plugin.table_asset import WatchedTable
from lance_dagster.repository.candidates.writes import RecordedWrite

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_files import Branch
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_PLANNED = dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED
_EVALUATED = dg.DagsterEventType.ASSET_CHECK_EVALUATION


@dataclass(slots=True, kw_only=True)
class WaitingCandidates:
    """Look up the candidates of runs, each once.

    Attributes:
        lance: The resource.
        instance: The Dagster instance.
        watched: The tables that are published together.
    """

    lance: LanceResource
    instance: dg.DagsterInstance
    watched: Sequence[WatchedTable]
    log: AuditLog = field(init=False)
    _runs: dict[str, tuple[str, ...]] = field(init=False, default_factory=dict)
    _passed: dict[tuple[str, tuple[str, ...]], bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Read no event before it is needed."""
        repository = self.lance.open_repository()
        self.log = AuditLog(self.instance, None if repository is None else RecordView(repository=repository))

    def decide(
        self, one: WatchedTable, table: "LanceTable", branch: "Branch", *, runs: RunsOfBranches, keep: KeepFor
    ) -> "tuple[Version, BranchDecision] | None":
        """Decide what to do with a run branch, and return its head too.

        Returns:
            None when a publisher deleted the branch since it was listed.
        """
        try:
            head = table.head(branch.name)
            # A branch without commits of its own has no rows that `main` could lack.
            is_merged = not is_written(head) or table.branches.is_merged(head) is not None
        except RefNotFoundError:
            return None
        run_id = run_of(branch.name) or ""
        found = decide(
            branch.name,
            runs,
            keep=keep,
            is_merged=is_merged,
            created_at=branch.created_at,
            lookups=RunLookups(partial(self.ended_with, run_id, one), self.log.repeated_by),
        )
        if found.action is Action.WAITING and self.log.is_output_skipped(one.key, self.runs_of(run_id)):
            reason = "the next attempt of its step succeeded without this output"
            found = BranchDecision(Action.DELETE, reason, unmerged=Action.WAITING)
        elif found.action is Action.DELETE and found.repeated_by and self._is_discarded(found.repeated_by, table):
            # The branch has the only rows that are left of the two runs, and a person may publish it by `ref`.
            found = BranchDecision(Action.KEEP, f"its full re-execution {short(found.repeated_by)} was discarded")
        if found.action is Action.WAITING and self._is_dropped(table, head):
            found = BranchDecision(Action.DELETE, "a newer run took the place of its rows", unmerged=Action.WAITING)
        return head, found

    def close_writes(self, table: "LanceTable") -> None:
        """Close the recorded writes of a table that no publication will close, of runs that are over.

        The process of a run died before it committed the rows, somebody deleted the branch, or a person merged it.
        """
        record = self.log.record
        writes = [] if record is None else record.open_writes(table)
        over = {run.run_id for run in self._runs_of(writes) if run.is_finished}
        merged, gone = list[RecordedWrite](), list[RecordedWrite]()
        for write in (write for write in writes if write.request.run_id in over):
            head = table.branches.newest(write.request.branch)
            if _is_merged(table, write.request.branch, head):
                merged.append(write)
            elif record is not None and (head is None or write not in record.on_branch(table, head)):
                gone.append(write)
        if record is not None and (merged or gone):
            record.repository.drop_writes(gone, merged=merged, message="close the writes of runs that are over")
            record.refresh()

    def _runs_of(self, writes: Sequence[RecordedWrite]) -> Sequence[dg.DagsterRun]:
        """Return the runs of some writes that this Dagster instance knows: another one may run the others."""
        run_ids = list(dict.fromkeys(write.request.run_id for write in writes))
        return self.instance.get_runs(dg.RunsFilter(run_ids=run_ids)) if run_ids else []

    def _is_dropped(self, table: "LanceTable", head: "Version") -> bool:
        """Return whether the rows of a branch will never be published."""
        record = self.log.record
        write = None if record is None else write_of(record.repository, table, head)
        return record is not None and write is not None and record.is_dropped(write)

    def _is_discarded(self, run_id: str, table: "LanceTable") -> bool:
        """Return whether what a run wrote to a table was dropped, and none of it is published."""
        candidate = RunChain.of(self.instance.get_run_by_id(run_id), self.instance).candidate_id
        record = self.log.record
        if record is None:
            return False
        writes = record.writes_of_runs(candidate, self.runs_of(run_id), table)
        return bool(writes) and all(record.is_dropped(write) for write in writes)

    def runs_of(self, run_id: str) -> tuple[str, ...]:
        """Return a run and those that it continues or that continue it, oldest first."""
        if run_id not in self._runs:
            self._runs[run_id] = Candidate.of(run_id, self.log, ()).run_ids
        return self._runs[run_id]

    def ended_with(self, run_id: str, one: WatchedTable) -> dg.RunRecord | None:
        """Return the run with which the candidate of a run was complete, or None when it may not be published.

        Args:
            run_id: A run without success.
            one: The table of its branch.
        """
        runs = self.runs_of(run_id)
        found = self.instance.get_run_records(dg.RunsFilter(run_ids=list(runs)))
        records = {record.dagster_run.run_id: record for record in found}
        newest_first = [records[run] for run in reversed(runs) if run in records]
        succeeded = next((record for record in newest_first if record.dagster_run.is_success), None)
        if succeeded is not None or not newest_first:
            return succeeded
        # The table of the branch comes first: the other tables may not have been written by these runs.
        written = self._has_passed(one, runs) and all(
            self._has_passed(each, runs)
            for each in self.watched
            if any(self.log.plans([each.key], run) for run in runs)
        )
        return newest_first[0] if written else None

    def _has_passed(self, one: WatchedTable, runs: tuple[str, ...]) -> bool:
        key = (one.name, runs)
        if key not in self._passed:
            self._passed[key] = not self.log.unwritten([one.key], runs) and not self._reasons_against(one, runs)
        return self._passed[key]

    def _reasons_against(self, one: WatchedTable, runs: Sequence[str]) -> list[str]:
        """Return the reasons against the newest branch of some runs in a table; none when it was published."""
        with suppress(NotFoundError):
            table = self.lance.table(one.key, one.metadata)
            head = RunBranch(table=table, chain=RunChain(run_ids=tuple(reversed(runs)))).written()
            subject = None if head is None else Subject.of(one.key, head)
            if head is not None and isinstance(subject, Subject):
                # The sensor does not know which checks are blocking, but the runs planned them.
                checks, record = self._checks(one.key, runs), self.log.record
                verdicts = {} if record is None else record.verdicts(table, subject.commit_id)
                against = reasons_against(
                    subject, checks, log=self.log, chain=RunChain(), verdicts=verdicts, unchecked=True
                )
                return against or [str(conflict) for conflict in table.preview_merge(head).conflicts]
        return []

    def _checks(self, asset: dg.AssetKey, runs: Sequence[str]) -> list[dg.AssetCheckKey]:
        """Return the checks of an asset that some runs planned, without those whose evaluation was not blocking."""
        planned, free = set[dg.AssetCheckKey](), set[dg.AssetCheckKey]()
        for run_id in runs:
            for record in self.instance.get_records_for_run(run_id, of_type={_PLANNED, _EVALUATED}).records:
                event = record.event_log_entry.dagster_event
                if event is not None and event.event_type == _PLANNED:
                    planned.add(event.asset_check_planned_data.asset_check_key)
                elif event is not None and not event.asset_check_evaluation_data.blocking:
                    free.add(event.asset_check_evaluation_data.asset_check_key)
        return sorted((check for check in planned - free if check.asset_key == asset), key=lambda check: check.name)


def _is_merged(table: "LanceTable", branch: str, head: "Version | None") -> bool:
    """Return whether `main` has the rows of a branch, which may be deleted since."""
    if head is not None:
        return is_written(head) and table.branches.is_merged(head) is not None
    return has_source(table, branch)
