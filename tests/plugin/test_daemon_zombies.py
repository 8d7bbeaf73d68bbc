"""A worker that the daemon takes for dead, and whose run it retries, publishes nothing when it wakes up."""

from itertools import product
from pathlib import Path

import dagster as dg
import pytest

from lance_dagster import LanceRepository
from tests.plugin.daemon import daemon, runs_of
from tests.plugin.shop import ids_of
from tests.soak import DEEP

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

# Each job appends to two tables. The first worker sleeps in one of the steps until a file appears.
LOCATION = """
import time
from pathlib import Path

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks

TOP = Path(TOP_FOLDER)


def sleep_once(job):
    asleep = TOP / f"{job} sleeps"
    if not asleep.exists():
        asleep.touch()
        while not (TOP / "wake up").exists():
            time.sleep(0.1)


def definitions(strategy, sleeps_in):
    job = f"{strategy}_{sleeps_in}".lower()
    append = {"lance/write_mode": "append"}

    @dg.asset(key=[job, "orders"], metadata=append)
    def orders():
        if sleeps_in == "orders":
            sleep_once(job)
        return pa.table({"id": [1, 2]})

    @dg.asset(key=[job, "lines"], metadata=append, deps=[orders])
    def lines():
        if sleeps_in == "lines":
            sleep_once(job)
        return pa.table({"id": [3]})

    @dg.asset_check(asset=lines, blocking=True, name="last")
    def last():
        if sleeps_in == "last":
            sleep_once(job)
        return dg.AssetCheckResult(passed=True)

    publisher = build_publisher([orders, lines], name=f"publish_{job}")
    # Without the values, so that nothing but the record of what was published keeps the rows from being added twice.
    checks = [check for asset in (orders, lines) for check in build_table_checks(asset, [RowCount(minimum=1)])]
    selection = dg.AssetSelection.assets(orders, lines, publisher)
    tags = {"dagster/retry_strategy": strategy}
    return dg.Definitions(
        [orders, lines, publisher], asset_checks=[*checks, last], jobs=[dg.define_asset_job(job, selection, tags=tags)]
    )


parts = [definitions(strategy, sleeps_in) for strategy, sleeps_in in CASES]
JOBS = [job for part in parts for job in part.jobs]


@dg.sensor(jobs=JOBS, default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=1)
def once(context):
    return [dg.RunRequest(run_key=job.name, job_name=job.name) for job in JOBS]


lance = LanceResource(root=str(TOP / "lake"))
defs = dg.Definitions.merge(
    *parts,
    dg.Definitions(
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
        sensors=[once],
        executor=dg.in_process_executor,
    ),
)
"""
STRATEGIES, STEPS = ("FROM_FAILURE", "FROM_ASSET_FAILURE", "ALL_STEPS"), ("orders", "lines", "last")
# A run of each job starts processes that take seconds of a core, so outside of a soak each strategy has one step.
CASES = [*product(STRATEGIES, STEPS)] if DEEP else [*zip(STRATEGIES, STEPS, strict=True)]
JOBS = [f"{strategy}_{step}".lower() for strategy, step in CASES]
_ENDED = {dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_FAILURE}


def ends(instance: dg.DagsterInstance, run_id: str) -> int:
    """How often a run was reported as ended: once by whoever took its worker for dead, once by the worker."""
    return len(instance.get_records_for_run(run_id, of_type=_ENDED).records)


def test_a_worker_that_wakes_up_publishes_nothing_twice(tmp_path: Path) -> None:
    """The rows are in production once, whichever step slept and from where the daemon retried the run."""
    with daemon(tmp_path, LOCATION, CASES=CASES) as running:
        instance, lake = running.instance, running.lake
        running.until(lambda: all((tmp_path / f"{job} sleeps").exists() for job in JOBS))
        sleeping = {job: runs_of(instance, job)[0] for job in JOBS}
        for run in sleeping.values():
            instance.report_run_failed(run)
        running.until(lambda: all(any(run.is_finished for run in runs_of(instance, job)[1:]) for job in JOBS))
        (tmp_path / "wake up").touch()
        running.until(lambda: all(ends(instance, run.run_id) > 1 for run in sleeping.values()))
    production = LanceRepository.open(tmp_path / "lake").at("production")
    for job in JOBS:
        for name, expected in (("orders", [1, 2]), ("lines", [3])):
            table = lake.table(f"{job}/{name}")
            actual = {ref: ids_of(table.read(ref)) for ref in ("main", "production")}
            actual["channel"] = ids_of(production[f"{job}/{name}"].read())
            assert {"main": expected, "production": expected, "channel": expected} == actual, (job, name)
