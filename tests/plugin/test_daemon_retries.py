"""The daemon's automatic retries of runs that failed or whose process was killed, with a publisher at their end."""

from pathlib import Path

import dagster as dg
import pytest

from lance_dagster import LanceRepository
from tests.plugin.daemon import daemon, runs_of
from tests.plugin.shop import ids_of

pytestmark = pytest.mark.slow
# Each job appends to two tables of a lake of its own, and breaks once, at the second table.
LOCATION = """
import os
import signal
from pathlib import Path

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, Unique, build_publisher, build_table_checks

TOP = Path(TOP_FOLDER)


def is_first(job):
    marker = TOP / f"{job} broke"
    found = marker.exists()
    marker.touch()
    return not found


class KilledAfterCommit(LanceIOManager):
    def handle_output(self, context, obj):
        super().handle_output(context, obj)
        # The rows are committed, and Dagster has no event of them.
        if context.asset_key.path == ["killed_after_commit", "lines"] and is_first("killed_after_commit"):
            os.kill(os.getpid(), signal.SIGKILL)


def job(how):
    append = {"lance/write_mode": "append"}

    @dg.asset(key=[how, "orders"], metadata=append)
    def orders():
        return pa.table({"id": [1, 2]})

    @dg.asset(key=[how, "lines"], metadata=append, deps=[orders])
    def lines():
        if how == "raises" and is_first(how):
            raise ValueError("the lines are not there yet")
        if how == "killed" and is_first(how):
            os.kill(os.getpid(), signal.SIGKILL)
        return pa.table({"id": [3]})

    publisher = build_publisher([orders, lines], name=f"publish_{how}")
    checks = [one for asset in (orders, lines) for one in build_table_checks(asset, [Unique("id")])]
    jobs = [dg.define_asset_job(how, dg.AssetSelection.assets(orders, lines, publisher))]
    return dg.Definitions([orders, lines, publisher], asset_checks=checks, jobs=jobs)


made = {how: job(how) for how in ("raises", "killed", "killed_after_commit")}
JOBS = [job for one in made.values() for job in one.jobs]


@dg.sensor(jobs=JOBS, default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=1)
def once(context):
    return [dg.RunRequest(run_key=how, job_name=how) for how in made]


lance = LanceResource(root=str(TOP / "lake"))
defs = dg.Definitions.merge(
    *made.values(),
    dg.Definitions(
        resources={"lance": lance, "io_manager": KilledAfterCommit(lance=lance)},
        sensors=[once],
        executor=dg.in_process_executor,
    ),
)
"""


def test_the_daemon_retries_and_publishes_once(tmp_path: Path) -> None:
    """A run that raised, and runs that were killed before and after a commit, are retried from failure and published.

    Rows are in production once, both tables of a run at one commit, and no run branch is left.
    """
    jobs = ("raises", "killed", "killed_after_commit")
    with daemon(tmp_path, LOCATION) as running:
        instance, lake = running.instance, running.lake
        running.until(lambda: all(any(run.is_success for run in runs_of(instance, job)) for job in jobs))
        for job in jobs:
            broken, retried = runs_of(instance, job)
            assert (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS) == (broken.status, retried.status)
            # This tag says that the daemon retried from failure, and not all steps.
            assert (broken.run_id, "true") == (retried.parent_run_id, retried.tags.get("dagster/is_resume_retry"))
    production = LanceRepository.open(tmp_path / "lake").at("production")
    for job in jobs:
        for name, ids in (("orders", [1, 2]), ("lines", [3])):
            table = lake.table(f"{job}/{name}")
            for ref in ("main", "production"):
                assert ids == ids_of(table.read(ref)), (job, name, ref)
            assert ids == ids_of(production[f"{job}/{name}"].read())
            assert {} == table.branches.list("run/*")
