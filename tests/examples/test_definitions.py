import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from example_project import assets, checks, places, publishing, reports, source
from example_project.definitions import build_definitions, defs
from lance_dagster import LanceTable, build_publisher
from tests.forked_program import without_server

CHECKOUT = Path(__file__).parents[2]
MONTH = "2013-01"
# The server has done the slow imports before it forks; Lance itself must not be imported before a fork.
FAST_START = {"start_method": {"forkserver": {"preload_modules": ["dagster", "pandas", "pyspark.sql"]}}}
TAKEN = ("nyc/flights:keys_exist_carrier", "nyc/flights:rows_match_source", "nyc/airlines:unique_carrier")


def load_two_tables() -> dg.JobDefinition:
    """A part of the example's job, with each step in its own process."""
    tables = [assets.flights, assets.airlines]
    taken = [check for check in checks.CHECKS if {key.to_user_string() for key in check.check_keys} <= set(TAKEN)]
    defs = dg.Definitions(
        assets=[*tables, build_publisher(tables, tag=publishing.TAG)],
        asset_checks=taken,
        jobs=[dg.define_asset_job("load_two_tables")],
        resources=build_definitions().resources,
        executor=dg.multiprocess_executor.configured(FAST_START, name="multiprocess"),
    )
    return defs.resolve_job_def("load_two_tables")


def test_definitions_load() -> None:
    """All names in the definitions resolve, and all expected nodes exist."""
    dg.Definitions.validate_loadable(defs)
    nodes = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    for key in assets.KEYS:
        name = key.to_user_string()
        assert {name, f"production/{name}", f"main/{name}"} <= nodes
    assert "reports/delay_by_carrier" in nodes


@pytest.mark.parametrize("table", source.SCHEMAS)
def test_each_column_is_described(table: str) -> None:
    """The pages of a table that comes from a file say of each of its columns what it means."""
    columns = [column.split()[0] for column in source.SCHEMAS[table].split(",")]
    described = columns_of(table)
    assert set(columns) == described
    assert {"time_hour", "late", "features"} <= columns_of("training_set")


def columns_of(table: str) -> set[str]:
    """The columns that the definition of a promoted node describes."""
    key = dg.AssetKey([publishing.TAG, "nyc", table])
    schema = publishing.publisher.specs_by_key[key].metadata["dagster/column_schema"]
    return {column.name for column in schema.columns if column.description}


def test_every_check_blocks() -> None:
    """A check that does not block would let a defective month be published."""
    graph = defs.resolve_asset_graph()
    keys = list(graph.asset_check_keys)
    assert {key.asset_key for key in keys} == set(assets.KEYS)
    assert [] == [key for key in keys if not graph.get_check_spec(key).blocking]


def test_the_report_is_no_part_of_the_job() -> None:
    """The report depends on the promoted nodes, with which the job that writes ends."""
    job = defs.resolve_job_def("load_month")
    names = {key.to_user_string() for key in job.asset_layer.selected_asset_keys}
    own = {key.to_user_string() for key in assets.KEYS}
    assert own | {f"production/{name}" for name in own} == names


def test_the_schedule_loads_months() -> None:
    """The schedule is monthly and launches the partitioned job."""
    schedule = defs.resolve_schedule_def("load_month_schedule")
    assert ("load_month", "0 0 1 * *") == (schedule.job_name, schedule.cron_schedule)


@pytest.mark.parametrize("sensor", ["main_sensor", "reports_automation"])
def test_sensors_watch_from_the_start(sensor: str) -> None:
    """The sensors that announce versions and make the report run by default."""
    assert dg.DefaultSensorStatus.RUNNING == defs.resolve_sensor_def(sensor).default_status


def test_the_report_follows_every_move(instance: dg.DagsterInstance) -> None:
    """The report also follows a move between the previous report and the next evaluation of the automation."""
    report = reports.delay_by_carrier.key
    watched = dg.AssetSelection.assets(report)
    promoted = [dg.AssetKey([publishing.TAG, "nyc", name]) for name in ("airlines", "training_set")]
    cursor = None
    asked = []
    for happened in (promoted, promoted[1:], [report, promoted[1]], [report], []):
        for key in happened:
            instance.report_runless_asset_event(dg.AssetMaterialization(key))
        looked = dg.evaluate_automation_conditions(defs, instance, watched, cursor=cursor)
        cursor = looked.cursor
        asked.append(looked.get_num_requested(report))
    assert [0, 1, 1, 0, 0] == asked


@pytest.mark.slow
def test_the_workspace_file_is_valid(tmp_path: Path) -> None:
    """`dg dev -w workspace.yaml` finds the definitions from the root of the checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=CHECKOUT,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Validation successful for code location example_project" in done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.slow
def test_a_month_under_the_multiprocess_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step runs in its own process; the audit stops a defective month, and a corrected re-execution is merged."""
    monkeypatch.setenv(places.ROOT_VARIABLE, str(tmp_path / "state"))
    with without_server(), dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job, tags = dg.reconstructable(load_two_tables), {"dagster/partition": MONTH}
        config = {"ops": {"nyc__flights": {"config": {"defect": "unknown_carrier"}}}}
        broken = dg.execute_job(job, instance, config, tags)
        failed = {event.step_key for event in broken.all_events if event.is_step_failure}
        assert {"nyc__flights_keys_exist_carrier"} == failed
        assert {} == flights().tags.list()
        again = dg.ReexecutionOptions(broken.run_id, ["nyc__flights*"])
        mended = dg.execute_job(job, instance, tags=tags, reexecution_options=again)
        assert mended.success
    assert source.rows_by_month("flights")[1] == flights().count_rows("production")
    assert 0 == flights().count_rows("production", "carrier = '??'")


def flights() -> LanceTable:
    """The table of flights in the folder of the test."""
    return LanceTable.open(f"{places.tables()}/nyc/flights.lance")
