"""Decide from Dagster's event log whether a version passed its audit.

In a run that includes the blocking checks, Dagster's graph already keeps the publisher behind them. That is not
enough: checks can be deselected at launch, and a publisher that is started by hand has no check before it. The
publisher therefore verifies the audit of the exact version that it is about to publish:

1. the newest materialization of the candidate on that run branch must name the version
2. every blocking check must have an evaluation after that materialization
3. the newest evaluation of each check must name the version, where it names one, and must have passed

A check that did not run counts as failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.run_branch import RunChain, family_of, run_of

_PARENTS_OF_A_MERGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The version whose audit decides: on the branch where a run wrote it, even when it was merged since."""

    asset: dg.AssetKey
    branch: str
    number: int
    run_id: str

    @classmethod
    def of(cls, asset: dg.AssetKey, version: Version) -> "Subject | str":
        """Return the audited version behind a version, or the reason why there is none.

        A merge commit on `main` stands for the version of the run branch that it merged.
        """
        run_id = version.properties.get(md.RUN_ID)
        if version.branch == MAIN:
            if run_id is None or len(version.parents) != _PARENTS_OF_A_MERGE:
                made = f"{version.operation} by {version.committer}"
                return f"{_name(asset)}: {version} was not made by a published run ({made}), so nothing audited it"
            # The second parent of a merge commit is its source. The branch may be deleted by now; only its
            # name and the number are compared with events, so that is no obstacle.
            branch, _, number = version.parents[1].rpartition("@")
            return cls(asset=asset, branch=branch, number=int(number), run_id=run_id)
        run_id = run_id or run_of(version.branch)
        if run_id is None:
            return f"{_name(asset)}: {version} was committed outside of Dagster, so nothing audited it"
        return cls(asset=asset, branch=version.branch, number=version.number, run_id=run_id)

    @property
    def ref(self) -> str:
        """The version as a ref expression."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True, slots=True)
class _Event:
    """A materialization of the asset, or (when `check` is set) an evaluation of one of its checks."""

    order: tuple[int, int]
    asset: dg.AssetKey
    check: dg.AssetCheckKey | None
    metadata: Mapping[str, object]
    passed: bool = True
    description: str = ""


def reasons_against(
    subject: Subject, checks: Sequence[dg.AssetCheckKey], *, instance: dg.DagsterInstance, chain: RunChain
) -> list[str]:
    """Return every reason why a version may not be published; empty when it passed its audit.

    Args:
        subject: The version.
        checks: The blocking checks.
        instance: The Dagster instance, whose event log is read.
        chain: The run that publishes. A re-execution may have run the checks of a version that its parent wrote.
    """
    events = list(_events(subject, family_of(subject.run_id, instance, chain.run_ids), instance))
    materialized = [event for event in events if event.check is None and _branch(event) == subject.branch]
    name = _name(subject.asset)
    if not materialized:
        return [f"{name}: no run recorded a materialization of {subject.ref}, so it is unknown what the checks saw"]
    last = max(materialized, key=lambda event: event.order)
    if (found := md.audited_version(last.metadata)) != (subject.branch, subject.number):
        seen = f"{found[0]}@{found[1]}" if found else "an unknown version"
        return [f"{name}: {subject.ref} is to be published, but what the run materialized was {seen}"]
    # An evaluation before the last materialization was of an earlier attempt of the step, whose rows are
    # gone.
    after = [event for event in events if event.check is not None and event.order > last.order]
    return [reason for check in checks if check.asset_key == subject.asset for reason in _failed(check, subject, after)]


def was_materialized(asset: dg.AssetKey, run_id: str, instance: dg.DagsterInstance) -> bool:
    """Return whether the event log has a materialization of an asset by a run."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    events = (record.event_log_entry.dagster_event for record in records)
    return any(event is not None and event.asset_key == asset for event in events)


def _failed(check: dg.AssetCheckKey, subject: Subject, after: Sequence[_Event]) -> Iterator[str]:
    title = f"{_name(check.asset_key)}: blocking check {check.name!r}"
    evaluations = [event for event in after if event.check == check]
    if not evaluations:
        yield f"{title} was not run on {subject.ref}"
        return
    # The newest one counts, so that a check which failed and passed when it was re-executed does not refuse.
    last = max(evaluations, key=lambda event: event.order)
    seen = md.audited_version(last.metadata)
    # A check that a user wrote may name no version; its place in the log is all that is known about it.
    if seen not in (None, (subject.branch, subject.number)):
        yield f"{title} looked at {seen[0]}@{seen[1]}, not at {subject.ref}"
    elif not last.passed:
        yield f"{title} failed on {subject.ref}" + (f": {last.description}" if last.description else "")


def _events(subject: Subject, run_ids: Sequence[str], instance: dg.DagsterInstance) -> Iterator[_Event]:
    """Yield the materializations and check evaluations of an asset in some runs; run ids are oldest first."""
    kinds = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION}
    # Some event logs, such as SQLite's with a file for each run, count storage ids per run. They order the
    # events of one run only, so the place of the run comes first.
    for place, run_id in enumerate(run_ids):
        for record in instance.get_records_for_run(run_id, of_type=kinds).records:
            event = record.event_log_entry.dagster_event
            found = event and _event_of((place, record.storage_id), event)
            if found and found.asset == subject.asset:
                yield found


def _event_of(order: tuple[int, int], event: dg.DagsterEvent) -> _Event | None:
    if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION:
        made = event.step_materialization_data.materialization
        return _Event(order, made.asset_key, None, made.metadata)
    found = event.asset_check_evaluation_data
    # As in Dagster: a blocking check that fails with severity WARN does not stop the downstream assets.
    passed = found.passed or found.severity == dg.AssetCheckSeverity.WARN
    key = found.asset_check_key
    return _Event(order, key.asset_key, key, found.metadata, passed, found.description or "")


def _branch(event: _Event) -> str | None:
    return md.text(event.metadata, md.BRANCH)


def _name(asset: dg.AssetKey) -> str:
    return asset.to_user_string()
