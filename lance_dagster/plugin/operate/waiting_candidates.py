"""Decide what to do with the branch of a run by the events of its candidate and the record of the lake.

`branch_decisions` decides by the status of the run alone. But the rows of a run that failed wait to be published too,
in two cases:

1. A re-execution continued the failed run and succeeded. The branches of both runs are parts of one candidate.
2. Every table of the run was written and passed its checks, and a later step failed: the publisher, such as while the
   tag is held, or a step downstream.

Example: run `a` writes `orders` and `customers`, both pass their checks, and the publisher fails because `production`
is held. The branch `run/a` waits in both tables. If the check of `customers` fails, `run/a` waits in neither table.

Rows that conflict with `main` do not wait, since they cannot be merged.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import NotFoundError, RefNotFoundError
from lance_dagster.plugin.operate.branch_decisions import (
    Action,
    BranchDecision,
    KeepFor,
    RunLookups,
    RunsOfBranches,
    decide,
    short,
)
from lance_dagster.plugin.publish.publish_gate import AuditLog, Subject, VersionAudit
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.recorded_writes import write_of
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import RunBranch, RunChain, candidate_of, is_written, run_of
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
    """The candidates of runs, each looked up once.

    Attributes:
        lance: The resource.
        instance: The Dagster instance.
        watched: The tables that are published together.
        log: The events of the runs.
        record: The record of the lake.
    """

    lance: LanceResource
    instance: dg.DagsterInstance
    watched: Sequence[WatchedTable]
    log: AuditLog = field(init=False)
    record: RecordView = field(init=False)
    _passed: dict[tuple[str, tuple[str, ...]], bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the log of events and the record, which read what they are asked for."""
        self.record = RecordView(repository=self.lance.repository_to_publish())
        self.log = AuditLog(self.instance, self.record)

    def decide(
        self, watched_table: WatchedTable, table: "LanceTable", branch: "Branch", *, runs: RunsOfBranches, keep: KeepFor
    ) -> "tuple[Version, BranchDecision] | None":
        """Decide what to do with the run branch of a table.

        Returns:
            The head of the branch and the decision.
            None when a publisher deleted the branch since it was listed.
        """
        try:
            head = table.head(branch.name)
            # A branch without commits of its own has no rows that `main` could lack.
            is_merged = not is_written(head) or table.branches.is_merged(head) is not None
        except RefNotFoundError:
            return None
        run_id = run_of(branch.name) or ""
        decision = decide(
            branch.name,
            runs,
            keep=keep,
            is_merged=is_merged,
            created_at=branch.created_at,
            lookups=RunLookups(partial(self.ended_with, run_id, watched_table), self.log.repeated_by),
        )
        if decision.action is Action.WAITING and self.log.is_output_skipped(
            watched_table.key, self.log.runs_of_candidate(run_id)
        ):
            reason = "the next attempt of its step succeeded without this output"
            decision = BranchDecision(Action.DELETE, reason, unmerged=Action.WAITING)
        elif (
            decision.action is Action.DELETE
            and decision.repeated_by
            and self._is_discarded(decision.repeated_by, table)
        ):
            # The rows of the re-execution are gone, so a person may publish the branch of the first run by `ref`.
            decision = BranchDecision(Action.KEEP, f"its full re-execution {short(decision.repeated_by)} was discarded")
        if decision.action is Action.WAITING:
            write = write_of(self.record.repository, table, head)
            if write is not None and self.record.is_dropped(write):
                reason = "a newer run took the place of its rows"
                decision = BranchDecision(Action.DELETE, reason, unmerged=Action.WAITING)
        return head, decision

    def close_writes(self, table: "LanceTable") -> None:
        """Close recorded writes of finished runs to a table that no publication will close.

        The rows of such a write are not on its branch, because the process died before its commit or somebody deleted
        the branch; or they are on `main` already, because a person merged the branch.
        """
        writes = self.record.open_writes(table)
        if not writes:
            return
        run_ids = list(dict.fromkeys(write.request.run_id for write in writes))
        # A run that this Dagster instance does not have may belong to another instance, and may not be over.
        runs = self.instance.get_runs(dg.RunsFilter(run_ids=run_ids))
        finished = {run.run_id for run in runs if run.is_finished}
        merged, lost = list[RecordedWrite](), list[RecordedWrite]()
        publications = self.record.repository.publications
        for write in (write for write in writes if write.request.run_id in finished):
            head = table.branches.newest(write.request.branch)
            if publications.is_merged(write):
                merged.append(write)
            elif head is None or write not in self.record.on_branch(table, head):
                lost.append(write)
        if merged or lost:
            publications.drop_writes(lost, merged=merged, message="close the writes of runs that are over")
            self.record.refresh()

    def _is_discarded(self, run_id: str, table: "LanceTable") -> bool:
        """Return whether every write of a run and its re-executions to a table was dropped from publication."""
        runs = self.log.runs_of_candidate(run_id)
        writes = self.record.writes_of_runs(candidate_of(run_id, self.instance), runs, table)
        return bool(writes) and all(self.record.is_dropped(write) for write in writes)

    def ended_with(self, run_id: str, watched_table: WatchedTable) -> dg.RunRecord | None:
        """Return the run that completed the candidate of a run, or None when the candidate may not be published.

        It is the newest run of the candidate that succeeded. Where no run succeeded, it is the newest run, provided
        that all tables that the runs were to write were written and passed their checks.

        Args:
            run_id: The id of a run without success.
            watched_table: The table of its branch.
        """
        runs = self.log.runs_of_candidate(run_id)
        records = self.instance.get_run_records(dg.RunsFilter(run_ids=list(runs)))
        by_id = {record.dagster_run.run_id: record for record in records}
        newest_first = [by_id[run] for run in reversed(runs) if run in by_id]
        succeeded = next((record for record in newest_first if record.dagster_run.is_success), None)
        if succeeded is not None or not newest_first:
            return succeeded
        # The table of the branch comes first: these runs may not have been meant to write the other tables.
        is_complete = self._has_passed(watched_table, runs) and all(
            self._has_passed(other_table, runs)
            for other_table in self.watched
            if any(self.log.plans([other_table.key], run) for run in runs)
        )
        return newest_first[0] if is_complete else None

    def _has_passed(self, watched_table: WatchedTable, runs: tuple[str, ...]) -> bool:
        key = (watched_table.name, runs)
        if key not in self._passed:
            self._passed[key] = not self.log.unwritten([watched_table.key], runs) and not self._reasons_against(
                watched_table, runs
            )
        return self._passed[key]

    def _reasons_against(self, watched_table: WatchedTable, runs: Sequence[str]) -> list[str]:
        """Return the reasons against publishing the newest branch of some runs in a table; none without a branch."""
        with suppress(NotFoundError):
            table = self.lance.table(watched_table.key, watched_table.metadata)
            head = RunBranch(table=table, chain=RunChain(run_ids=tuple(reversed(runs)))).written()
            subject = None if head is None else Subject.of(watched_table.key, head)
            if head is not None and isinstance(subject, Subject):
                # A sensor has no definitions of checks, so the checks that the runs planned stand for them.
                checks = self._checks(watched_table.key, runs)
                verdicts = self.record.verdicts(table, subject.commit_id, subject.table_id)
                audit = VersionAudit(subject=subject, log=self.log, chain=RunChain(), verdicts=verdicts)
                return audit.reasons_against(checks, unchecked=True) or [
                    str(conflict) for conflict in table.preview_merge(head).conflicts
                ]
        return []

    def _checks(self, asset: dg.AssetKey, runs: Sequence[str]) -> list[dg.AssetCheckKey]:
        """Return the checks of an asset that some runs planned, without checks that were evaluated as not blocking."""
        planned, nonblocking = set[dg.AssetCheckKey](), set[dg.AssetCheckKey]()
        for run_id in runs:
            for record in self.instance.get_records_for_run(run_id, of_type={_PLANNED, _EVALUATED}).records:
                event = record.event_log_entry.dagster_event
                if event is not None and event.event_type == _PLANNED:
                    planned.add(event.asset_check_planned_data.asset_check_key)
                elif event is not None and not event.asset_check_evaluation_data.blocking:
                    nonblocking.add(event.asset_check_evaluation_data.asset_check_key)
        return sorted(
            (check for check in planned - nonblocking if check.asset_key == asset), key=lambda check: check.name
        )
