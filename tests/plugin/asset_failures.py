"""Re-execute a run from the failure of its assets, as the daemon does and a person can in the UI.

Dagster 1.13 selects the assets that the run planned and did not materialize, those whose blocking check failed, and the
checks that were not executed. An asset whose step raised after its output was stored was materialized, so it is not
selected. The steps get new keys: where the run had `written` and `written_2`, a re-execution of the second has
`written`.
"""

from collections.abc import Collection

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run


def reexecute_from_asset_failure(
    job: dg.JobDefinition, run_id: str, instance: dg.DagsterInstance, *, also: Collection[dg.AssetKey] = ()
) -> dg.JobExecutionResult:
    """Execute the assets and checks that Dagster selects of a run, and further assets that a person adds."""
    parent = instance.get_run_by_id(run_id)
    assert parent is not None
    assert parent.execution_plan_snapshot_id is not None
    snapshot = instance.get_execution_plan_snapshot(parent.execution_plan_snapshot_id)
    assets, checks = instance.run_domain.get_keys_to_reexecute(run_id, snapshot)
    part = job.get_subset(asset_selection={*assets, *also}, asset_check_selection={*checks})
    root_id = parent.root_run_id or run_id
    tags = {
        "dagster/is_asset_resume_retry": "true",
        "dagster/parent_run_id": run_id,
        "dagster/root_run_id": root_id,
    }
    run = instance.create_run_for_job(part, tags=tags, root_run_id=root_id, parent_run_id=run_id)
    return execute_run(InMemoryJob(part), run, instance)
