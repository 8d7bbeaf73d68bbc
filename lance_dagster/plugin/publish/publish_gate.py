"""Decide whether a version passed its audit.

In a run that includes the blocking checks, Dagster's graph already keeps the publisher behind them. That is not
enough: checks can be deselected at launch, and the run of a publisher that is started by hand has no checks. The
publisher therefore verifies the audit of the exact version that it is about to publish:

1. the step that wrote the version must have succeeded, and nothing newer was materialized on the branch
2. every blocking check must have a verdict on exactly this version, and the last verdict must let it pass

Table checks leave their verdicts in the record of the lake, under the commit id of the version. Other checks, such as a
plain `@asset_check`, leave them in Dagster's event log. There an evaluation counts when it names the transaction of
the version, in whichever run; one that names no version counts when it comes after the materialization, in the run
that wrote the version or in a run that continues it.

A check that did not run counts as failed, and so does a table without blocking checks.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import dagster as dg

from lance_dagster.errors import FormatError, PublishRefusedError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import string_lists_of
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.recorded_writes import recorded_table_id
from lance_dagster.plugin.run_branch import RunChain, family_of, repeated_by, rest_of_backfill, run_of
from lance_dagster.repository.candidates.audits import Verdict

_PARENTS_OF_A_MERGE = 2
# How many evaluations of a check are asked for at once; all pages are read.
_PAGE = 200
# How often a publisher looks for a check of its own run, and after how many seconds: about 40 minutes in all.
_LOOKS = 60
_LONGEST_WAIT = 60.0
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_STARTED = {dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED}
_SUCCEEDED = dg.DagsterEventType.STEP_SUCCESS
_MATERIALIZED, _EVALUATED = dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION
_CANCELLED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The version whose audit decides, on the run branch where it was written, even if it has been merged since.

    Attributes:
        asset: The candidate.
        branch: The branch of the version.
        number: Its number on the branch.
        run_id: The run that wrote it.
        commit_id: The commit id of the version, under which the record has its verdicts; empty where it is unknown.
        transaction: The uuid of its transaction; empty where it is unknown.
        table_id: The identity of the table in the record, where the version names it; else empty.
    """

    asset: dg.AssetKey
    branch: str
    number: int
    run_id: str
    commit_id: str = ""
    transaction: str = ""
    table_id: str = ""

    @classmethod
    def of(cls, asset: dg.AssetKey, version: Version) -> "Subject | str":
        """Return the audited version behind a version, or the reason why there is none.

        A merge commit on `main` stands for the version of the run branch that it merged.
        """
        run_id = version.properties.get(md.RUN_ID)
        if version.branch == MAIN:
            if run_id is None or len(version.parents) != _PARENTS_OF_A_MERGE:
                origin = f"{version.operation} by {version.committer}"
                return f"{_name(asset)}: {version} was not made by a published run ({origin}), so nothing audited it"
            # The second parent of a merge commit is its source. The branch may be deleted by now, which does not
            # matter: only its name and the version number are compared with events.
            return cls.of_source(asset, version, version.properties.get(md.AUDITED_VERSION, version.parents[1]), run_id)
        run_id = run_id or run_of(version.branch)
        if run_id is None:
            return f"{_name(asset)}: {version} was committed outside of Dagster, so nothing audited it"
        return cls(
            asset=asset,
            branch=version.branch,
            number=version.number,
            run_id=run_id,
            commit_id=version.id,
            transaction=version.transaction,
            table_id=recorded_table_id(version),
        )

    @classmethod
    def of_source(cls, asset: dg.AssetKey, version: Version, source: str, run_id: str) -> "Subject":
        """Return the version of a run branch that a commit of `main` published.

        Args:
            asset: The candidate.
            version: The version of `main`.
            source: The version of the run branch, as a ref.
            run_id: The run that wrote it.
        """
        branch, _, number = source.rpartition("@")
        # Commits of other programs, and of earlier releases, do not name the transaction.
        with suppress(FormatError):
            identity = string_lists_of(version, md.AUDITED_TRANSACTIONS).get(source, [])
            if len(identity) == len(("commit id", "transaction")):
                commit_id, transaction = identity
                return cls(
                    asset=asset,
                    branch=branch,
                    number=int(number),
                    run_id=run_id,
                    commit_id=commit_id,
                    transaction=transaction,
                )
        return cls(asset=asset, branch=branch, number=int(number), run_id=run_id)

    def is_named_by(self, metadata: Mapping[str, object]) -> bool:
        """Return whether the metadata of an event name exactly this version."""
        named = md.text(metadata, md.TRANSACTION)
        if self.transaction and named is not None:
            return named == self.transaction
        return md.audited_version(metadata) == (self.branch, self.number)

    @property
    def ref(self) -> str:
        """The version as a ref expression."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A materialization of the asset by a step, or (when `check` is set) an evaluation of one of its checks.

    `attempt` is the start of the attempt of the step that made the event.
    """

    order: tuple[int, int]
    at: float
    asset: dg.AssetKey
    check: dg.AssetCheckKey | None
    metadata: Mapping[str, object]
    passed: bool = True
    description: str = ""
    run_id: str = ""
    step: str | None = None
    attempt: int = 0

    def is_of_same_attempt(self, event: "AuditEvent") -> bool:
        """Return whether one attempt of a step made two events: an asset may report its checks before its rows."""
        return (self.run_id, self.step, self.attempt) == (event.run_id, event.step, event.attempt)


class AuditLog:
    """The audit events of the event log, read once for each run.

    One publication asks about many tables that the same run wrote. Dagster can filter the events of a run by kind but
    not by asset, so reading them for each table would cost the square of their number.
    """

    def __init__(self, instance: dg.DagsterInstance, record: RecordView) -> None:
        """Start without events; those of a run are read when they are first needed.

        Args:
            instance: The Dagster instance.
            record: The record of the lake, which knows re-executions that Dagster does not tag.
        """
        self.instance = instance
        self.record = record
        self._families: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        self._candidates: dict[str, tuple[str, ...]] = {}
        self._events: dict[str, _RunEvents] = {}
        self._repeated: dict[str, str | None] = {}

    def repeated_by(self, run_id: str) -> str | None:
        """Return the newest run that did all the work of a run again and succeeded, or None."""
        if run_id not in self._repeated:
            self._repeated[run_id] = repeated_by(run_id, self.instance, self.related(run_id))
        return self._repeated[run_id]

    def related(self, run_id: str) -> tuple[str, ...]:
        """Return the runs of the candidate of a run that wrote anything, by the record of the lake."""
        run = self.instance.get_run_by_id(run_id)
        return self.record.runs_of_candidate(RunChain.of(run, self.instance).candidate_id) if run else ()

    def family(self, run_id: str, chain: RunChain) -> tuple[str, ...]:
        """Return a run and the re-executions that continue it, oldest first."""
        # The run that publishes is under way, and only a run that is over is continued by another one.
        if run_id == chain.run_id:
            return (run_id,)
        key = (run_id, chain.run_ids)
        if key not in self._families:
            candidates = (*chain.run_ids, *self.related(run_id))
            self._families[key] = family_of(run_id, self.instance, candidates) or (run_id,)
        return self._families[key]

    def runs_of_candidate(self, run_id: str) -> tuple[str, ...]:
        """Return the runs that wrote the candidate of a run, oldest first: its root run, and those that continue it."""
        instance = self.instance
        if run_id not in self._candidates:
            # The chain is newest first: its last run is the one that all others continue.
            first = RunChain.of(instance.get_run_by_id(run_id), instance).run_ids[-1:] or (run_id,)
            # A run whose record was deleted is known only by its branch.
            family = family_of(first[0], instance, (run_id, *self.related(run_id))) or (run_id,)
            later = (run for run in rest_of_backfill(family[-1], instance) if run not in family)
            self._candidates[run_id] = (*family, *later)
        return self._candidates[run_id]

    def events(self, asset: dg.AssetKey, run_ids: Sequence[str]) -> list[AuditEvent]:
        """Return the materializations and check evaluations of an asset in some runs; run ids are oldest first.

        A materialization is left out when a later attempt of its step succeeded: what that attempt did not write again
        does not belong to the result of the runs.
        """
        all_of_them = self._all_events(asset, run_ids)
        return [event for event in all_of_them if event.check is not None or not self._is_outdated(event, run_ids)]

    def is_output_skipped(self, asset: dg.AssetKey, run_ids: Sequence[str]) -> bool:
        """Return whether some runs materialized an asset, and the attempt that succeeded at last left it out.

        The rows of an attempt that failed are on the branch of its run, and are not to be published. Run ids are oldest
        first.
        """
        materializations = [event for event in self._all_events(asset, run_ids) if event.check is None]
        return bool(materializations) and all(self._is_outdated(event, run_ids) for event in materializations)

    def _all_events(self, asset: dg.AssetKey, run_ids: Sequence[str]) -> list[AuditEvent]:
        # Some event logs, such as SQLite's with a file for each run, count storage ids per run. These ids order only
        # events of the same run, so the position of the run is compared first.
        return [
            replace(event, order=(place, event.order[1]), run_id=run_id)
            for place, run_id in enumerate(run_ids)
            for event in self._of_run(run_id).audited.get(asset, ())
        ]

    def _is_outdated(self, materialization: AuditEvent, run_ids: Sequence[str]) -> bool:
        """Return whether a later attempt of the step that materialized an asset was to do so too, and succeeded."""
        for place, run_id in enumerate(run_ids):
            # A re-execution may select only some outputs of a step; the others stay as they are. The step is that of
            # the later run: Dagster numbers the steps of a multi-asset anew.
            planned, succeeded = self._of_run(run_id).planned, self._of_run(run_id).succeeded
            started = succeeded.get(planned[materialization.asset]) if materialization.asset in planned else None
            if started is not None and (place, started) > materialization.order:
                return True
        return False

    def reason_against_step(self, subject: Subject, family: Sequence[str]) -> str | None:
        """Return why what a step wrote does not count: the step did not succeed; None where it does.

        What a step stored before it failed is not its result. A retry, or a re-execution, replaces it.

        Args:
            subject: The version.
            family: The runs that may have materialized it, oldest first.
        """
        events = [event for event in self._all_events(subject.asset, family) if event.check is None]
        writing = [event for event in events if subject.is_named_by(event.metadata)]
        for event in writing:
            succeeded = self._of_run(event.run_id).succeeded.get(event.step)
            # An event without a step, which a program reported by itself, is no result of a step that could fail.
            if event.step is None or succeeded == event.attempt:
                return None
        # The record of a run may be deleted, and a step of the current run may be about to succeed.
        runs = [self.instance.get_run_by_id(event.run_id) for event in writing]
        if not writing or any(run is None for run in runs):
            return None
        step = writing[-1].step
        return (
            f"{_name(subject.asset)}: step {step!r} of run {writing[-1].run_id} wrote {subject.ref} and did not succeed"
        )

    def was_materialized(self, asset: dg.AssetKey, run_id: str) -> bool:
        """Return whether a run stored rows of an asset, by whichever attempt of a step."""
        return any(event.check is None for event in self._of_run(run_id).audited.get(asset, ()))

    def stored_nothing(self, asset: dg.AssetKey, run_ids: Sequence[str]) -> bool:
        """Return whether a step of some runs had nothing to store for an asset, and said so."""
        return any(asset in self._of_run(run_id).nothing for run_id in run_ids)

    def written_by(self, asset: dg.AssetKey, chain: RunChain) -> list[str]:
        """Return the runs of a chain that materialized an asset, newest first; none when their result lacks it."""
        is_output_skipped = self.is_output_skipped(asset, chain.run_ids[::-1])
        return [] if is_output_skipped else [run for run in chain.run_ids if self.was_materialized(asset, run)]

    def plans(self, assets: Iterable[dg.AssetKey], run_id: str) -> bool:
        """Return whether a run was to materialize any of some assets when it was launched."""
        return not self._of_run(run_id).planned.keys().isdisjoint(assets)

    def unwritten(self, assets: Iterable[dg.AssetKey], family: Sequence[str]) -> list[dg.AssetKey]:
        """Return the assets that runs planned to materialize and did not, unless they left them out on purpose."""
        missing: set[dg.AssetKey] = set()
        skipped: set[dg.AssetKey] = set()
        for run_id in family:
            planned, succeeded = self._of_run(run_id).planned, self._of_run(run_id).succeeded
            run = self.instance.get_run_by_id(run_id)
            missing |= planned.keys()
            # Dagster plans optional outputs too. A step that succeeded without one left it out on purpose, and in a run
            # that succeeded so did a step that was skipped. The record of a run may be deleted.
            is_good = run is None or run.is_success
            skipped |= {asset for asset, step in planned.items() if is_good or step in succeeded}
            skipped |= {asset for asset in planned if self.was_materialized(asset, run_id)}
        return [asset for asset in assets if asset in missing - skipped]

    def is_later(self, evaluation: AuditEvent, rival: AuditEvent) -> bool:
        """Return whether an evaluation came later than `rival`, an evaluation of another run, and counts instead.

        Storage ids of events of different runs cannot be compared, and the times of events are those of the workers'
        clocks. The order in which Dagster recorded the runs depends on no clock, but runs may overlap. Where the two
        orders disagree, the evaluation that failed counts.
        """
        records = self.instance.get_run_records(dg.RunsFilter(run_ids=[evaluation.run_id, rival.run_id]))
        numbers = {record.dagster_run.run_id: record.storage_id for record in records}
        by_time = evaluation.at > rival.at
        if evaluation.run_id not in numbers or rival.run_id not in numbers:
            # The record of a run may be deleted.
            return by_time
        by_run = numbers[evaluation.run_id] > numbers[rival.run_id]
        return by_run if by_run == by_time else not evaluation.passed

    def _of_run(self, run_id: str) -> "_RunEvents":
        if run_id not in self._events:
            self._events[run_id] = _RunEvents.of(run_id, self.instance)
        return self._events[run_id]


@dataclass(frozen=True, slots=True)
class _RunEvents:
    """The events of one run.

    Attributes:
        audited: The materializations and evaluations of each asset.
        planned: The step that was to materialize each asset.
        succeeded: The start of the attempt by which each step succeeded.
        nothing: The assets whose output was None.
    """

    audited: dict[dg.AssetKey, list[AuditEvent]] = field(default_factory=dict)
    planned: dict[dg.AssetKey, str | None] = field(default_factory=dict)
    succeeded: dict[str | None, int] = field(default_factory=dict)
    nothing: set[dg.AssetKey] = field(default_factory=set)

    @classmethod
    def of(cls, run_id: str, instance: dg.DagsterInstance) -> "_RunEvents":
        events, started = cls(), dict[str | None, int]()
        kinds = {_PLANNED, _SUCCEEDED, *_STARTED, _MATERIALIZED, _EVALUATED}
        for record in instance.get_records_for_run(run_id, of_type=kinds).records:
            occurrence = record.event_log_entry.get_dagster_event()
            kind, step = occurrence.event_type, occurrence.step_key
            if kind == _PLANNED:
                events.planned[occurrence.asset_materialization_planned_data.asset_key] = step
            elif kind in _STARTED:
                started[step] = record.storage_id
            elif kind == _SUCCEEDED:
                events.succeeded[step] = started.get(step, 0)
            else:
                event = _event_of((0, record.storage_id), record.event_log_entry.timestamp, occurrence)
                # Such an output counts as an output that was skipped.
                if event.check is None and md.plain(event.metadata.get(md.STORED_NOTHING)):
                    events.nothing.add(event.asset)
                else:
                    of_asset = events.audited.setdefault(event.asset, [])
                    of_asset.append(replace(event, attempt=started.get(step, 0)))
        return events


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAudit:
    """What the event log and the record of the lake say about the audit of one version.

    Attributes:
        subject: The version.
        log: The event log.
        chain: The run that publishes. A re-execution may have run the checks of a version that its parent wrote.
        verdicts: The last verdicts on the version that the record of the lake has, by the name of the check.
    """

    subject: Subject
    log: AuditLog
    chain: RunChain
    verdicts: Mapping[str, Verdict]

    def reasons_against(self, checks: Iterable[dg.AssetCheckKey], *, unchecked: bool = False) -> list[str]:
        """Return every reason why the version may not be published; empty when it passed its audit.

        Args:
            checks: The blocking checks.
            unchecked: Whether a table without blocking checks may be published.
        """
        subject, events = self.subject, self._events
        materialized = [
            event for event in events if event.check is None and md.text(event.metadata, md.BRANCH) == subject.branch
        ]
        materialization = max(materialized, key=lambda event: event.order, default=None)
        # Verdicts in the record outlive Dagster's record of the run.
        is_recorded = bool(self.verdicts) and not self.log.instance.has_run(subject.run_id)
        reason = None if is_recorded else self._reason_against_run(materialization)
        if reason is not None:
            return [reason]
        of_table = [check for check in checks if check.asset_key == subject.asset]
        if not of_table and not unchecked:
            advice = "add one, or give unchecked=True to build_publisher or lance_assets"
            return [f"{_name(subject.asset)}: no blocking check guards it; {advice}"]
        # An evaluation before the last attempt of the step saw the rows of an earlier one, which are gone.
        evaluated = [
            event
            for event in events
            if materialization is None
            or event.order > materialization.order
            or event.is_of_same_attempt(materialization)
        ]
        return [reason for check in of_table if (reason := self._reason_of(check, evaluated)) is not None]

    def passed(self, checks: Iterable[dg.AssetCheckKey]) -> dict[dg.AssetCheckKey, bool | None]:
        """Return whether each check of the table let the version pass at last; None where it was not evaluated."""
        passed: dict[dg.AssetCheckKey, bool | None] = {}
        for check in (check for check in checks if check.asset_key == self.subject.asset):
            verdict = self.verdicts.get(check.name)
            newest = None if verdict else self._newest_evaluation(check, self._events)
            passed[check] = verdict.passed if verdict else newest.passed if newest else None
        return passed

    def tables_read(self, check: dg.AssetCheckKey) -> Mapping[str, object] | None:
        """Return the version of each other table that a check's evaluation read; None when it did not record them."""
        if check.name in self.verdicts:
            return self.verdicts[check.name].reads
        # `reasons_against` counts the same evaluation, so these are the tables behind the verdict.
        newest = self._newest_evaluation(check, self._events)
        versions = None if newest is None else md.plain(newest.metadata.get(md.READ))
        return versions if isinstance(versions, Mapping) else None

    @property
    def _family(self) -> tuple[str, ...]:
        """The runs that may have materialized the version, oldest first."""
        return self.log.family(self.subject.run_id, self.chain)

    @property
    def _events(self) -> list[AuditEvent]:
        return self.log.events(self.subject.asset, self._family)

    def _reason_against_run(self, materialization: AuditEvent | None) -> str | None:
        """Return why the runs of the version do not let it count as their result; None where they do.

        Args:
            materialization: The last materialization of the asset on the branch of the version.
        """
        subject, name = self.subject, _name(self.subject.asset)
        if materialization is None:
            return f"{name}: no run recorded a materialization of {subject.ref}, so it is unknown what the checks saw"
        if not subject.is_named_by(materialization.metadata):
            named = md.audited_version(materialization.metadata)
            version = f"{named[0]}@{named[1]}" if named else "an unknown version"
            version += " of a branch that is gone" if named == (subject.branch, subject.number) else ""
            return f"{name}: {subject.ref} is to be published, but what the run materialized was {version}"
        return self.log.reason_against_step(subject, self._family)

    def _reason_of(self, check: dg.AssetCheckKey, evaluated: Iterable[AuditEvent]) -> str | None:
        """Return the reason against the version that the verdict or the newest evaluation of a check gives, or None.

        Only the newest evaluation counts: a check that failed, and passed when it was re-executed, is no reason.
        """
        subject, title = self.subject, f"{_name(check.asset_key)}: blocking check {check.name!r}"
        verdict = self.verdicts.get(check.name)
        newest = None if verdict else self._newest_evaluation(check, evaluated)
        if verdict is None and newest is None:
            return f"{title} was not run on {subject.ref}"
        audited = md.audited_version(newest.metadata) if newest else None
        # The evaluation of a user's own check may not name a version; then only its position in the log is known.
        if newest is not None and audited is not None and not subject.is_named_by(newest.metadata):
            return f"{title} looked at {audited[0]}@{audited[1]}, not at {subject.ref}"
        result = verdict or newest
        if result is None or result.passed:
            return None
        return f"{title} failed on {subject.ref}{f': {result.description}' if result.description else ''}"

    def _newest_evaluation(self, check: dg.AssetCheckKey, evaluated: Iterable[AuditEvent]) -> AuditEvent | None:
        """Return the evaluation of a check that counts for the version: of its runs, or of a run outside of them."""
        of_family = [event for event in evaluated if event.check == check]
        newest = max(of_family, key=lambda event: event.order, default=None)
        alone = self._evaluated_alone(check)
        return alone if alone is not None and (newest is None or self.log.is_later(alone, newest)) else newest

    def _evaluated_alone(self, check: dg.AssetCheckKey) -> AuditEvent | None:
        """Return the newest evaluation of exactly this version by a run outside of its family."""
        # Without the transaction, an evaluation may be about another branch of the same name.
        if not self.subject.transaction:
            return None
        storage, family = self.log.instance.event_log_storage, self._family
        # This is the history of one check over all runs, newest first; `get_records_for_run` would need the runs' ids.
        cursor: int | None = None
        while True:
            page = storage.get_asset_check_execution_history(check, limit=_PAGE, cursor=cursor)
            for record in page:
                entry = record.event if record.run_id not in family else None
                event = entry.dagster_event if entry else None
                # A check that is planned or still runs has a record too, with another event or none.
                if entry is None or event is None or event.event_type != _EVALUATED:
                    continue
                evaluation = _event_of((0, 0), entry.timestamp, event)
                # A publisher's evaluation read other tables at versions that readers would have got; these may have
                # moved.
                is_own = md.PUBLISHED_BY not in evaluation.metadata
                if is_own and md.text(evaluation.metadata, md.TRANSACTION) == self.subject.transaction:
                    return replace(evaluation, run_id=record.run_id)
            if len(page) < _PAGE:
                return None
            cursor = page[-1].id


def wait_for_checks(context: dg.AssetExecutionContext, checks: Sequence[dg.AssetCheckKey]) -> None:
    """Request a retry of the step while its run has yet to evaluate some checks; return after the last retry.

    Dagster orders the publisher behind blocking checks, and knows nothing of the others that a publisher names.

    Args:
        context: The context of the publisher's step.
        checks: The checks.
    """
    late = _to_evaluate(context) & set(checks) if checks else set()
    if late and context.retry_number < _LOOKS:
        names = ", ".join(sorted(check.to_user_string() for check in late))
        context.log.info("this run has yet to evaluate %s; looking again later", names)
        seconds = min(context.retry_number + 1.0, _LONGEST_WAIT)
        raise dg.RetryRequested(max_retries=_LOOKS, seconds_to_wait=seconds)


def after_failed_audit(branches: Iterable[str]) -> str:
    """Return which settings of the publisher help a person when versions did not pass their audit.

    Args:
        branches: The branches of the versions; `main` for a version that the person named by `ref`.
    """
    runs = sorted({branch for branch in branches if branch != MAIN})
    anyway = "ignore_failed_checks: true with a reason publishes it all the same"
    if not runs:
        return f"name a version that passed its checks, such as production~1; {anyway}"
    again = "repair the data or the check and re-execute the run, or materialize the asset again"
    return "; ".join([again, *(f"discard: {run} gives up what it wrote; ref: {run} and {anyway}" for run in runs)])


def refuse_cancelled(context: dg.AssetExecutionContext) -> None:
    """Refuse to go on when somebody has cancelled the run of the publisher.

    The multiprocess executor interrupts only the processes that it has at that moment, and not one that it is about to
    start.

    Raises:
        PublishRefusedError: The run is being cancelled, or was.
    """
    # The context has the run as it was when the step began.
    run = context.instance.get_run_by_id(context.run.run_id)
    if run is not None and run.status in _CANCELLED:
        raise PublishRefusedError(
            "the run was cancelled, so nothing is published",
            ["what it was to publish waits: materialize the promoted nodes to publish it after all, or discard it"],
        )


def _to_evaluate(context: dg.AssetExecutionContext) -> set[dg.AssetCheckKey]:
    """Return the checks that the current run has yet to evaluate."""
    planning = dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED
    kinds = {planning, _EVALUATED, dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SKIPPED}
    planned, evaluated, over = set[dg.AssetCheckKey](), set[dg.AssetCheckKey](), set[str]()
    for record in context.instance.get_records_for_run(context.run.run_id, of_type=kinds).records:
        event = record.event_log_entry.get_dagster_event()
        if event.event_type == planning:
            planned.add(event.asset_check_planned_data.asset_check_key)
        elif event.event_type == _EVALUATED:
            evaluated.add(event.asset_check_evaluation_data.asset_check_key)
        else:
            # The step of a graph's op is named after the graph.
            over.add((event.step_key or "").split(".")[0])
    graph = context.job_def.asset_layer.asset_graph
    # A check whose step failed or was skipped is not evaluated any more; the gate refuses without it.
    return {check for check in planned - evaluated if graph.assets_def_for_key(check).node_def.name not in over}


def _event_of(order: tuple[int, int], at: float, event: dg.DagsterEvent) -> AuditEvent:
    if event.event_type == _MATERIALIZED:
        materialization = event.step_materialization_data.materialization
        return AuditEvent(order, at, materialization.asset_key, None, materialization.metadata, step=event.step_key)
    evaluation = event.asset_check_evaluation_data
    # As in Dagster: a blocking check that fails with severity WARN does not stop the downstream assets.
    passed = evaluation.passed or evaluation.severity == dg.AssetCheckSeverity.WARN
    key = evaluation.asset_check_key
    description = evaluation.description or ""
    return AuditEvent(order, at, key.asset_key, key, evaluation.metadata, passed, description, step=event.step_key)


def _name(asset: dg.AssetKey) -> str:
    return asset.to_user_string()
