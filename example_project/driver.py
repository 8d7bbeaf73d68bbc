"""Do in Python what a person does in the web UI: launch a run, re-execute a failed one, press *Materialize*.

Everything runs through Dagster's own API and is recorded on its instance, so the web UI shows these runs like any
others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg
from rich.console import Console

from example_project import progress, publishing
from example_project.defects import Defect
from example_project.definitions import defs

Config = Mapping[str, object]
_PARTITION = "dagster/partition"
_STEP_SELECTION = "dagster/step_selection"
# As many characters of a commit id as the command prints.
_SHORT = 12


def load_month_job() -> dg.JobDefinition:
    """Return the job that loads a month."""
    return _with_lines().resolve_job_def(publishing.load_month.name)


def _with_lines() -> dg.Definitions:
    return dg.Definitions.merge(defs, dg.Definitions(loggers={"console": progress.step_lines}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run."""

    run_id: str
    success: bool
    steps: frozenset[str]
    failed_checks: frozenset[str]


@dataclass(frozen=True, slots=True)
class Driver:
    """Launch runs on an instance and show their steps on a console."""

    instance: dg.DagsterInstance
    console: Console

    def load(self, month: str, defect: Defect = Defect.none) -> Run:
        """Load a month, with a defect in its flights when one is asked for."""
        config = _run_config({"nyc__flights": {"config": {"defect": defect.name}}})
        return self._load(f"loading {month}", config, {_PARTITION: month})

    def go_on(self, failed: Run, month: str, *, first_step: str) -> Run:
        """Re-execute a failed run from one of its steps on, with its configuration; earlier steps are not repeated."""
        selection = [f"{first_step}*"]
        again = dg.ReexecutionOptions(failed.run_id, selection)
        return self._load(f"going on with {month}", None, {_PARTITION: month, _STEP_SELECTION: selection[0]}, again)

    def promote(self, ref: str, *, reason: str, **settings: str | bool) -> Run:
        """Materialize all promoted nodes, to move them to a newer or older version.

        Args:
            ref: A commit of the repository: its id, or a ref such as `production~1`.
            reason: Why; kept in the history of the channel.
            settings: Further fields of the publisher's configuration, such as `rollback="hold"`.
        """
        publish = {"config": {"ref": ref, "reason": reason, **settings}}
        return self.materialize(
            *publishing.publisher.keys,
            waiting=f"moving {publishing.TAG} to {ref[:_SHORT]}",
            config={publishing.publisher.op.name: publish},
        )

    def materialize(self, *assets: dg.AssetKey, waiting: str, config: Config | None = None) -> Run:
        """Materialize some assets."""
        job = _with_lines().resolve_implicit_global_asset_job_def()
        with progress.watch(self.console, waiting):
            done = job.execute_in_process(
                _run_config(config or {}), instance=self.instance, asset_selection=assets, raise_on_error=False
            )
        return _finished(done)

    def tick(self, cursor: str | None) -> tuple[str | None, list[dg.AssetMaterialization]]:
        """Evaluate the sensor once and record the versions that it reports.

        Args:
            cursor: The cursor that the last tick returned; None for the first.

        Returns:
            The cursor for the next tick, and the reported materializations.
        """
        resources = {"lance": (defs.resources or {})["lance"]}
        context = dg.build_sensor_context(instance=self.instance, cursor=cursor, resources=resources)
        ticked = publishing.main_sensor.evaluate_tick(context)
        events = [event for event in ticked.asset_events if isinstance(event, dg.AssetMaterialization)]
        for event in events:
            self.instance.report_runless_asset_event(event)
        return ticked.cursor, events

    def automate(
        self, before: dg.EvaluateAutomationConditionsResult | None
    ) -> tuple[dg.EvaluateAutomationConditionsResult, set[dg.AssetKey]]:
        """Evaluate Dagster's automation once; it acts on changes since its last evaluation.

        Returns:
            The cursor for the next evaluation, and the assets that it would materialize now.
        """
        looked = dg.evaluate_automation_conditions(defs, self.instance, cursor=before.cursor if before else None)
        keys = (result.key for result in looked.results if result.true_subset.size)
        return looked, {key for key in keys if isinstance(key, dg.AssetKey)}

    def _load(
        self,
        waiting: str,
        config: Config | None,
        tags: Mapping[str, str],
        again: dg.ReexecutionOptions | None = None,
    ) -> Run:
        with progress.watch(self.console, waiting):
            done = dg.execute_job(
                dg.reconstructable(load_month_job),
                self.instance,
                run_config=config,
                tags=tags,
                reexecution_options=again,
            )
        return _finished(done)


def _run_config(ops: Config) -> dict[str, object]:
    return {"ops": ops, "loggers": {"console": {}}}


def _finished(done: dg.JobExecutionResult | dg.ExecuteInProcessResult) -> Run:
    checks = [
        event.asset_check_evaluation_data
        for event in done.all_events
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    return Run(
        run_id=done.run_id,
        success=done.success,
        steps=frozenset(event.step_key for event in done.all_events if event.is_step_success and event.step_key),
        failed_checks=frozenset(
            f"{check.asset_key.to_user_string()}:{check.check_name}" for check in checks if not check.passed
        ),
    )
