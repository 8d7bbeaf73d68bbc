"""Partitions, retries, skipped outputs and cancelled runs, with one process for all steps and with one per step."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceIOManager, LanceResource, LanceTable, NotNull, build_publisher, build_table_checks
from tests.conftest import CHECKOUT
from tests.plugin.shop import MANY, failure

EVENTS = dg.AssetKey("events")
DAYS = dg.DailyPartitionsDefinition("2024-01-01")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])
CITIES = dg.DynamicPartitionsDefinition(name="cities")
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
KINDS: dict[str, tuple[Any, Any]] = {
    "static": (REGIONS, "region"),
    "daily": (DAYS, "day"),
    "multi": (BOTH, {"day": "day", "region": "region"}),
    "dynamic": (CITIES, "region"),
}
EXECUTORS = {"one": dg.in_process_executor, "many": MANY}
CANCELLED = """
import sys
import dagster as dg
from tests.plugin.test_executors import run

with dg.DagsterInstance.local_temp(sys.argv[2], overrides={"telemetry": {"enabled": False}}) as instance:
    run(sys.argv[1], instance, sys.argv[3], "slow")
"""

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """Whether all steps share one process."""
    return str(request.param)


def job_of(root: str, executor: str, case: str) -> dg.JobDefinition:
    """The definitions of one case, for processes that build them again."""
    lance = LanceResource(root=root)
    assets = CASES[case](root, case)
    publisher = build_publisher([one for one in assets if isinstance(one, dg.AssetsDefinition)], unchecked=True)
    checks = [one for one in assets if isinstance(one, dg.AssetChecksDefinition)]
    definitions = dg.Definitions(
        assets=[*(one for one in assets if one not in checks), publisher],
        asset_checks=checks,
        jobs=[dg.define_asset_job("job", selection="*", executor_def=EXECUTORS[executor])],
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
    )
    return definitions.resolve_job_def("job")


def _partitioned(_root: str, kind: str) -> list[Any]:
    definition, expression = KINDS[kind]

    @dg.asset(
        key=EVENTS,
        partitions_def=definition,
        metadata={"lance/partition_expr": expression},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        cells = [_cell(kind, key) for key in context.partition_keys]
        days = pa.array([day for day, _ in cells]).cast(pa.timestamp("us"))
        run_id = context.run.run_id
        return pa.table({"day": days, "region": [region for _, region in cells], "run": [run_id] * len(cells)})

    return [events, *build_table_checks(EVENTS, [NotNull("region")])]


def _cell(kind: str, key: str) -> tuple[str, str]:
    """The day and the region of a partition."""
    if kind == "multi":
        day, region = key.split("|")
        return day, region
    return (key, "eu") if kind == "daily" else ("2024-01-01", key)


def _retried(_root: str, mode: str) -> list[Any]:
    keys = {"lance/keys": ["id"]} if mode == "upsert" else {}

    @dg.asset(key=EVENTS, metadata={"lance/write_mode": mode, **keys}, retry_policy=dg.RetryPolicy(max_retries=1))
    def events(context: dg.AssetExecutionContext) -> Iterator[dg.Output[pa.Table]]:
        number = context.op_execution_context.retry_number
        yield dg.Output(pa.table({"id": [1, 2], "attempt": [number, number]}))
        if not number:
            raise ValueError("the step fails after its rows were committed")

    return [events]


def _skipped(_root: str, _case: str) -> list[Any]:
    @dg.multi_asset(outs={"a": dg.AssetOut(is_required=False), "b": dg.AssetOut(is_required=False)})
    def both() -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(pa.table({"id": [1]}), "a")

    return [both]


def _slow(root: str, _case: str) -> list[Any]:
    """A table that is written at once, and one whose step takes a minute in the first run."""
    mark = Path(root).with_name("started")

    @dg.asset
    def quick() -> pa.Table:
        return pa.table({"id": [1]})

    @dg.asset(deps=[quick])
    def slow() -> pa.Table:
        if not mark.exists():
            mark.touch()
            time.sleep(60)
        return pa.table({"id": [2]})

    return [quick, slow]


def _read_late(root: str, _case: str) -> list[Any]:
    """A table, and a check that reads it after the publisher of its run has ended."""
    lance = LanceResource(root=root)

    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    @dg.asset_check(asset=orders)
    def reads_late(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        table = lance.open(context, "orders")
        ended = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
        while not any(
            record.event_log_entry.step_key == "publish_production"
            for record in context.instance.get_records_for_run(context.run.run_id, of_type=ended).records
        ):
            time.sleep(0.05)
        return dg.AssetCheckResult(passed=table.read().num_rows == 1)

    return [orders, reads_late]


def _cancelled_late(_root: str, _case: str) -> list[Any]:
    """A table whose run is cancelled after it was written, when no process of the publisher can be interrupted yet."""

    @dg.asset
    def orders(context: dg.AssetExecutionContext) -> pa.Table:
        if context.run.parent_run_id is None:
            context.instance.report_run_canceling(context.run)
        return pa.table({"id": [1]})

    return [orders]


CASES: dict[str, Any] = {
    **dict.fromkeys(KINDS, _partitioned),
    **dict.fromkeys(("append", "overwrite", "upsert"), _retried),
    "skipped": _skipped,
    "slow": _slow,
    "read late": _read_late,
    "cancelled late": _cancelled_late,
}


def run(
    root: str,
    instance: dg.DagsterInstance,
    executor: str,
    case: str,
    options: dg.ReexecutionOptions | None = None,
    *,
    tags: Mapping[str, str] | None = None,
) -> dg.JobExecutionResult:
    """Run the job of a case; the tags are Dagster's, without their prefix."""
    job = dg.build_reconstructable_job(
        reconstructor_module_name="tests.plugin.test_executors",
        reconstructor_function_name="job_of",
        reconstructable_kwargs={"root": root, "executor": executor, "case": case},
    )
    given = {f"dagster/{name}": value for name, value in (tags or {}).items()}
    return dg.execute_job(job, instance=instance, reexecution_options=options, tags=given)


def cells(root: str) -> dict[tuple[str, str], str]:
    """The run that wrote each partition that readers see."""
    rows = LanceTable.open(f"{root}/events.lance").read("production").to_pylist()
    found = {(f"{row['day']:%Y-%m-%d}", row["region"]): row["run"] for row in rows}
    assert len(rows) == len(found)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_partitions(lake: LanceResource, stored_instance: dg.DagsterInstance, executor: str, kind: str) -> None:
    """A partition that is written again is replaced and published, and the others stay."""
    stored_instance.add_dynamic_partitions("cities", ["oslo", "rome"])
    one, other = {
        "static": ("eu", "us"),
        "daily": ("2024-01-01", "2024-01-02"),
        "multi": ("2024-01-01|eu", "2024-01-01|us"),
        "dynamic": ("oslo", "rome"),
    }[kind]
    wanted = {}
    for name in (one, other, one):
        result = run(lake.root, stored_instance, executor, kind, tags=_partition_tags(kind, name))
        assert result.success
        wanted[_cell(kind, name)] = result.run_id
    assert wanted == cells(lake.root)


def _partition_tags(kind: str, name: str) -> dict[str, str]:
    if kind != "multi":
        return {"partition": name}
    day, region = name.split("|")
    return {"partition": name, "partition/day": day, "partition/region": region}


def test_a_range_in_one_run(lake: LanceResource, stored_instance: dg.DagsterInstance, executor: str) -> None:
    """The days of a single-run backfill are one commit, and are published together."""
    ends = {"asset_partition_range_start": "2024-01-02", "asset_partition_range_end": "2024-01-04"}
    tags = {"backfill": "backfill", **ends}
    result = run(lake.root, stored_instance, executor, "daily", tags=tags)
    assert result.success
    assert {(f"2024-01-0{day}", "eu"): result.run_id for day in (2, 3, 4)} == cells(lake.root)
    assert 2 == len(LanceTable.open(f"{lake.root}/events.lance").log("production"))


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_step_that_is_repeated_after_its_commit(
    lake: LanceResource, stored_instance: dg.DagsterInstance, executor: str, mode: str
) -> None:
    """The retry of a step replaces what its failed attempt committed, in every mode."""
    assert run(lake.root, stored_instance, executor, mode).success
    rows = LanceTable.open(f"{lake.root}/events.lance").read("production").to_pylist()
    assert [{"id": 1, "attempt": 1}, {"id": 2, "attempt": 1}] == sorted(rows, key=lambda row: row["id"])


def test_a_skipped_output(lake: LanceResource, stored_instance: dg.DagsterInstance, executor: str) -> None:
    """When one output is skipped, the other one is published."""
    assert run(lake.root, stored_instance, executor, "skipped").success
    assert 1 == LanceTable.open(f"{lake.root}/a.lance").count_rows("production")


def test_a_step_that_reads_while_its_run_is_published(lake: LanceResource, stored_instance: dg.DagsterInstance) -> None:
    """The publisher keeps the branch of a table that another step of the run is reading."""
    result = run(lake.root, stored_instance, "many", "read late")
    assert result.success
    (found,) = result.get_asset_check_evaluations()
    assert found.passed
    assert [f"run/{result.run_id}"] == list(LanceTable.open(f"{lake.root}/orders.lance").branches.list("run/*"))


def test_a_run_that_is_cancelled_before_its_publisher(
    lake: LanceResource, stored_instance: dg.DagsterInstance, executor: str
) -> None:
    """A publisher whose run was cancelled before its step began refuses; resumed, the run is published."""
    stopped = run(lake.root, stored_instance, executor, "cancelled late")
    assert "the run was cancelled, so nothing is published" in failure(stopped)
    assert {} == LanceTable.open(f"{lake.root}/orders.lance").tags.list()
    options = dg.ReexecutionOptions.from_failure(stopped.run_id, stored_instance)
    assert run(lake.root, stored_instance, executor, "cancelled late", options).success
    assert 1 == LanceTable.open(f"{lake.root}/orders.lance").count_rows("production")


def test_a_cancelled_run(lake: LanceResource, tmp_path: Path, executor: str) -> None:
    """An interrupted run publishes nothing; resumed from its failure, it publishes both tables."""
    home = tmp_path / "dagster"
    home.mkdir()
    command = [sys.executable, "-c", CANCELLED, lake.root, str(home), executor]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        while not Path(lake.root).with_name("started").exists():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    with dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as instance:
        (stopped,) = instance.get_runs()
        assert stopped.status in (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)
        assert {} == LanceTable.open(f"{lake.root}/quick.lance").tags.list()
        resumed = run(
            lake.root, instance, executor, "slow", dg.ReexecutionOptions.from_failure(stopped.run_id, instance)
        )
        assert resumed.success, failure(resumed)
    for name in ("quick", "slow"):
        assert 1 == LanceTable.open(f"{lake.root}/{name}.lance").count_rows("production")
