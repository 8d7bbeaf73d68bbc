"""Decide whether a run branch is deleted, kept, or reported as waiting for its publication.

A branch is deleted only when its rows are on `main`, or when its run ended some time ago and its rows may not be
published: the run ended without success (`waiting_candidates`), or a full re-execution did the work of the run again.
Before that time people re-execute the run from its failure, and the re-execution reads the branch. While a run is
unfinished, no branch of a run with the same root run is deleted: a re-execution may read the branches of all runs that
it continues.

Example, with branches of failed runs kept for 7 days and a branch `run/a`:

    run `a` is running, or its re-execution `b` is       keep
    `main` contains `run/a`                              delete
    `a` succeeded                                        waiting: the publisher may still publish the branch
    `a` failed, then its re-execution `b` succeeded      waiting: the rows of both runs are one candidate
    `a` failed 2 days ago                                keep: it may be re-executed from its failure
    `a` failed 8 days ago                                delete
    `a` is not a run of this Dagster instance            unknown: kept, unless `keep.unknown` says for how long
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

import dagster as dg

from lance_dagster.plugin.run_branch import BRANCH_TAG, run_of

_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
# A status that Dagster may add counts as unfinished, so that its branches are kept.
_UNFINISHED = tuple(status for status in dg.DagsterRunStatus if status not in _FINISHED)


class Action(Enum):
    """The action of the sweeper on a branch."""

    DELETE = "delete"
    KEEP = "keep"
    WAITING = "waiting"
    WITH_OTHERS = "with others"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BranchDecision:
    """The action of the sweeper on a branch, and its reason.

    Attributes:
        action: What the sweeper does.
        reason: Why, for the text of the tick.
        unmerged: For a branch that this table no longer needs, because `main` contains it or a newer run replaced its
            rows: the action if the table needed it. Where that is to wait or to keep, the branch stays as long as
            another table of its run needs it.
        ended: For a branch that waits: the end of the run that completed its rows.
        repeated_by: The id of the run that did all the work of the branch's run again, and succeeded.
    """

    action: Action
    reason: str
    unmerged: Action | None = None
    ended: datetime | None = None
    repeated_by: str | None = None

    def waits_since(self, age: timedelta) -> bool:
        """Return whether the branch waits to be published, and its run ended at least some time ago."""
        return self.action is Action.WAITING and self.ended is not None and datetime.now(UTC) - self.ended >= age


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepFor:
    """How long branches are kept: of runs that are not published, and of runs that the instance does not know.

    `unknown` is None when the branches of unknown runs are kept for ever: the run may belong to another deployment
    that writes the same tables.
    """

    failed: timedelta
    unknown: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsOfBranches:
    """The records of the runs that some branches are named after, by run id, and all runs that are not over."""

    records: Mapping[str, dg.RunRecord]
    unfinished: Sequence[dg.DagsterRun]

    @classmethod
    def of(cls, run_ids: Iterable[str], instance: dg.DagsterInstance) -> "RunsOfBranches":
        """Read the records of some runs with one query, and the unfinished runs with a second query."""
        unique_ids = list(dict.fromkeys(run_ids))
        # Without ids the filter would select all runs.
        records = instance.get_run_records(dg.RunsFilter(run_ids=unique_ids)) if unique_ids else ()
        # All unfinished runs, and not only those with the tag of a root: a re-execution from Python lacks that tag.
        unfinished = tuple(instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)))
        by_id = {record.dagster_run.run_id: record for record in records}
        return cls(records=by_id, unfinished=unfinished)

    def reader_of(self, branch: str, run: dg.DagsterRun | None) -> dg.DagsterRun | None:
        """Return an unfinished run that may read a branch: it has the same root run, or names the branch in a tag."""
        root = run and _root(run)
        return next(
            (reader for reader in self.unfinished if _root(reader) == root or reader.tags.get(BRANCH_TAG) == branch),
            None,
        )


class RunLookups(NamedTuple):
    """What the decision about a branch looks up in Dagster and in the record of the lake, for some branches only.

    Attributes:
        ended_with: Returns the last run of the candidate that the run of the branch belongs to, if the candidate is
            complete; otherwise None. Called only for a run without success.
        repeated_by: Returns the id of a run that did all the work of a run again and succeeded, or None.
    """

    ended_with: Callable[[], dg.RunRecord | None]
    repeated_by: Callable[[str], str | None]


def decide(
    branch: str,
    runs: RunsOfBranches,
    *,
    keep: KeepFor,
    is_merged: bool,
    created_at: datetime,
    lookups: RunLookups,
) -> BranchDecision:
    """Decide what to do with the branch of a run.

    Args:
        branch: The name of the branch, which is named after its run.
        runs: The records of the runs.
        keep: How long branches are kept.
        is_merged: Whether `main` contains the branch.
        created_at: When the branch was forked.
        lookups: What the rules look up.
    """
    # A reader comes before every other rule: a run that continues the branch's run reads the branch even after a merge.
    record = runs.records.get(run_of(branch) or "")
    if (reader := runs.reader_of(branch, record.dagster_run if record else None)) is not None:
        status = reader.status.value.lower().replace("_", " ")
        return BranchDecision(Action.KEEP, f"run {short(reader.run_id)} is {status}")
    if record is None:
        return _decide_unknown(keep, datetime.now(UTC) - created_at, is_merged=is_merged)
    run = record.dagster_run
    # The daemon starts the retry later, so until then no run with the same root run is unfinished.
    if run.is_complete_and_waiting_to_retry:
        return BranchDecision(Action.KEEP, "Dagster is about to retry the run")
    repeated = lookups.repeated_by(run.run_id)
    decision = (
        _decide_succeeded(record, keep, repeated)
        if run.is_success
        else _decide_failed(record, keep, repeated, lookups.ended_with)
    )
    return BranchDecision(Action.DELETE, "main contains it", decision.action) if is_merged else decision


def _decide_succeeded(record: dg.RunRecord, keep: KeepFor, by: str | None) -> BranchDecision:
    # The publisher refuses what a full re-execution did again: it would add appended rows twice.
    if by is None:
        # The time of the commit is a time of the worker's clock, and the run may have gone on for long after it.
        return BranchDecision(Action.WAITING, "the run succeeded", ended=_ended(record))
    age = datetime.now(UTC) - _ended(record)
    reason = f"the run succeeded {_days(age)} ago, and so did a full re-execution of it"
    # Not at once: both passed their checks, and a person may want to compare them.
    return BranchDecision(Action.KEEP if age < keep.failed else Action.DELETE, reason, repeated_by=by)


def _decide_failed(
    record: dg.RunRecord, keep: KeepFor, by: str | None, ended_with: Callable[[], dg.RunRecord | None]
) -> BranchDecision:
    run = record.dagster_run
    if by is not None:
        return BranchDecision(Action.DELETE, f"the run {_past(run)}, and a full re-execution of it succeeded")
    if (complete := ended_with()) is not None:
        return BranchDecision(Action.WAITING, f"the run {_past(run)}, its rows passed", ended=_ended(complete))
    age = datetime.now(UTC) - _ended(record)
    ended = f"the run {_past(run)} {_days(age)} ago"
    if age < keep.failed:
        return BranchDecision(Action.KEEP, f"{ended}, and may be re-executed for {_days(keep.failed)}")
    return BranchDecision(Action.DELETE, ended)


def short(run_id: str) -> str:
    """Return the part of a run id that Dagster's pages show."""
    return run_id[:8]


def _decide_unknown(keep: KeepFor, age: timedelta, *, is_merged: bool) -> BranchDecision:
    """Decide what to do with a branch whose run is of another deployment, or was deleted from the instance."""
    unknown = "this Dagster instance does not know the run"
    if keep.unknown is None or age < keep.unknown:
        return BranchDecision(Action.UNKNOWN, unknown)
    contained = ", and main contains it" if is_merged else ""
    return BranchDecision(Action.DELETE, f"{unknown}, the branch was forked {_days(age)} ago{contained}")


def _root(run: dg.DagsterRun) -> str:
    return run.root_run_id or run.run_id


def _past(run: dg.DagsterRun) -> str:
    return "was cancelled" if run.status == dg.DagsterRunStatus.CANCELED else "failed"


def _ended(record: dg.RunRecord) -> datetime:
    """Return when a run ended, at the earliest by the clock of Dagster's database.

    The start and the end are times of the worker's clock. Dagster recorded the run before it started, so a start that
    looks earlier shows that this clock is behind, and by how much at least. With a clock that is ahead the run looks
    younger, and its branch is kept for longer.
    """
    created = _aware(record.create_timestamp)
    if record.end_time is None:
        # A run that was cancelled in the queue never started.
        return max(created, _aware(record.update_timestamp))
    behind = max(0.0, created.timestamp() - record.start_time) if record.start_time is not None else 0.0
    return max(created, datetime.fromtimestamp(record.end_time + behind, UTC))


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def age_text(moment: datetime) -> str:
    """Return how long ago a moment was, such as `3 hours`."""
    return _days(datetime.now(UTC) - moment)


def _days(age: timedelta) -> str:
    if age >= timedelta(days=2):
        return f"{age.days} days"
    hours, minutes = divmod(int(age.total_seconds() // 60), 60)
    return f"{hours} hours" if hours > 1 else f"{60 * hours + minutes} minutes"
