"""Runs whose process kills itself at a storage request, for processes of the tests and for those of a daemon.

On local disk, a request of the package that changes anything takes effect by one call: a link, a rename or a removal.
A process is killed right before such a call. Where it would be killed at a request that only reads, the disk is as
after the change before.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, Unique, build_publisher, build_table_checks

ORDERS, LINES = dg.AssetKey(["depot", "orders"]), dg.AssetKey(["depot", "lines"])
PROMOTED = [dg.AssetKey(["production", *key.path]) for key in (ORDERS, LINES)]
PUBLISHER = "publish_production"
ROLLBACK = {"ref": "production~1", "reason": "wrong"}
"""The config of the publisher that takes readers back by one publication."""
KILL_AT, NUMBER = "test/kill_at", "test/number"
"""Tags of a run: the number of changes before the one at which it dies, and the id that it appends."""
FOLDER = "LANCE_DAGSTER_TEST_REQUESTS"
"""The variable of the environment with the folder whose files ask the daemon for runs."""
_CHANGES = frozenset({"os.link", "os.rename", "os.remove"})


class MortalLake(LanceResource):
    """A resource of a run that has the tag `KILL_AT`; re-executions, which Dagster gives the tag too, live on."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Count the changes below the root from now on."""
        tags: Mapping[str, str] = context.run.tags if context.run else {}
        if KILL_AT in tags and context.run is not None and context.run.parent_run_id is None:
            _die_at(self.root, int(tags[KILL_AT]))


def _die_at(root: str, change: int) -> None:
    left = change

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _CHANGES and str(arguments[0]).startswith(root):
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(watch)


@dg.asset(key=ORDERS, metadata={"lance/write_mode": "append"})
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """The orders, to which a run appends its number."""
    return pa.table({"id": [int(context.run.tags[NUMBER])]})


@dg.asset(key=LINES, metadata={"lance/write_mode": "append"}, deps=[orders])
def lines(context: dg.AssetExecutionContext) -> pa.Table:
    """The lines of the orders."""
    return pa.table({"id": [int(context.run.tags[NUMBER])]})


lance = MortalLake.configure_at_launch()
publisher = build_publisher([orders, lines])
candidates = dg.AssetSelection.assets(orders, lines) | dg.AssetSelection.checks_for_assets(orders, lines)
JOBS = [
    dg.define_asset_job("everything", "*"),
    dg.define_asset_job("candidates", candidates),
    dg.define_asset_job("promoted", dg.AssetSelection.assets(*PROMOTED)),
]


@dg.sensor(jobs=JOBS, default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=1)
def requested(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest]:
    """Ask for the run that each new file of the folder describes."""
    for file in sorted(Path(os.environ[FOLDER]).glob("*.json")):
        if file.name > (context.cursor or ""):
            context.update_cursor(file.name)
            yield dg.RunRequest(run_key=file.name, **json.loads(file.read_text()))


definitions = dg.Definitions(
    assets=[orders, lines, publisher],
    asset_checks=[check for asset in (orders, lines) for check in build_table_checks(asset, [Unique("id")])],
    resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
    jobs=JOBS,
    sensors=[requested],
    executor=dg.in_process_executor,
)


def options_of(root: str, *, number: int = 0, kill_at: int | None = None, **config: object) -> dict[str, Any]:
    """The run config and the tags of a run; `config` is that of the publisher."""
    run_config: dict[str, Any] = {"resources": {"lance": {"config": {"root": root}}}}
    if config:
        run_config["ops"] = {PUBLISHER: {"config": config}}
    tags = {NUMBER: str(number)} | ({} if kill_at is None else {KILL_AT: str(kill_at)})
    return {"run_config": run_config, "tags": tags}


def job_named(name: str) -> dg.JobDefinition:
    """A job, for Dagster, which builds it again for each run."""
    return definitions.resolve_job_def(name)


def execute(
    instance: dg.DagsterInstance,
    job: str,
    reexecution: dg.ReexecutionOptions | None = None,
    **options: Any,  # noqa: ANN401 - options of Dagster
) -> dg.JobExecutionResult:
    """Execute a job in this process; the options are those of `options_of`."""
    built = dg.build_reconstructable_job(
        reconstructor_module_name="tests.plugin.killed_requests",
        reconstructor_function_name="job_named",
        reconstructable_kwargs={"name": job},
    )
    return dg.execute_job(built, instance=instance, reexecution_options=reexecution, **options)


def execute_and_die(home: str, job: str, options: Mapping[str, Any]) -> None:
    """Execute a job in this process, which is killed meanwhile."""
    with dg.DagsterInstance.local_temp(home, overrides={"telemetry": {"enabled": False}}) as instance:
        execute(instance, job, **options)
