"""Find the steps of a run that read a candidate while its publisher works.

An input such as `PinnedTable` or a lazy frame names a version of the run's branch, and its rows are read when the step
asks for them. The publisher deletes that branch, so it has to know which steps may still read. A step that begins after
the deletion reads `main`, which has the rows.
"""

from collections.abc import Collection

import dagster as dg

_STARTED = {
    # Executors of several processes report this before the process of the step exists.
    dg.DagsterEventType.STEP_WORKER_STARTING,
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_RESTARTED,
}
_OVER = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SKIPPED}
_PLANNED_ASSET = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_PLANNED_CHECK = dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED


def read_by(context: dg.AssetExecutionContext, candidates: Collection[dg.AssetKey]) -> dict[dg.AssetKey, list[str]]:
    """Return those of some candidates that other steps of the current run may be reading, with the keys of the steps.

    Args:
        context: The context of the publisher's step.
        candidates: The candidates.
    """
    planned: dict[str, set[dg.AssetKey | dg.AssetCheckKey]] = {}
    at_work: set[str] = set()
    wanted = {*_STARTED, *_OVER, _PLANNED_ASSET, _PLANNED_CHECK}
    for record in context.instance.get_records_for_run(context.run.run_id, of_type=wanted).records:
        event = record.event_log_entry.get_dagster_event()
        step = event.step_key or ""
        if event.event_type == _PLANNED_ASSET:
            planned.setdefault(_node(step), set()).add(event.asset_materialization_planned_data.asset_key)
        elif event.event_type == _PLANNED_CHECK:
            planned.setdefault(_node(step), set()).add(event.asset_check_planned_data.asset_check_key)
        elif event.event_type in _OVER:
            at_work.discard(step)
        else:
            at_work.add(step)
    found: dict[dg.AssetKey, list[str]] = {}
    for step in sorted(at_work):
        made = planned.get(_node(step), set())
        # The publisher itself depends on all of its candidates.
        if made.isdisjoint(context.selected_asset_keys):
            for key in set(candidates) & _read(context, made):
                found.setdefault(key, []).append(step)
    return found


def _read(
    context: dg.AssetExecutionContext, made: Collection[dg.AssetKey | dg.AssetCheckKey]
) -> set[dg.AssetKey | dg.AssetCheckKey]:
    """Return what some assets and checks depend on; a check reads its asset."""
    graph = context.job_def.asset_layer.asset_graph
    return {parent for key in made if graph.has(key) for parent in graph.get(key).parent_entity_keys}


def _node(step: str) -> str:
    # The steps of a graph are named after the graph: the step that materializes its asset is one of them.
    return step.split(".", maxsplit=1)[0]
