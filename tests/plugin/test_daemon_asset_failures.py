"""The daemon's retries from the failure of assets publish no rows of a step that failed.

Dagster 1.13 selects the assets that the run planned and did not materialize, those whose blocking check failed, and the
checks that were not executed. An asset whose step raised after its output was stored was materialized, so its step is
not repeated, and the publisher is executed at once. The steps get new keys: where the run had `written` and
`written_2`, a retry of the second has `written`.
"""

from pathlib import Path

import pytest

from lance_dagster import LanceResource
from tests.plugin.daemon import daemon, runs_of
from tests.plugin.shop import ids_of

pytestmark = pytest.mark.soak

LOCATION = """
from pathlib import Path

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks

TOP = Path(TOP_FOLDER)
APPEND = {"lance/write_mode": "append"}
TAGS = {"dagster/retry_strategy": "FROM_ASSET_FAILURE"}


def fail_once(step):
    marker = TOP / f"{step} failed"
    if not marker.exists():
        marker.touch()
        raise ValueError("it fails once")


def single(audit):
    fine = dg.AssetCheckSpec("fine", asset=[audit, "items"], blocking=True)

    @dg.asset(key=[audit, "items"], metadata=APPEND, check_specs=[fine] if audit == "check_specs" else None)
    def items():
        if audit == "raises_before":
            fail_once(audit)
        yield dg.Output(pa.table({"id": [1]}))
        if audit == "check_specs":
            yield dg.AssetCheckResult(passed=True, check_name="fine")
        fail_once(audit)

    checks = build_table_checks(items, [RowCount(minimum=1)]) if audit in ("table_check", "raises_before") else []
    publisher = build_publisher([items], name=f"publish_{audit}", unchecked=audit == "unchecked")
    job = dg.define_asset_job(audit, dg.AssetSelection.assets(items, publisher), tags=TAGS)
    return dg.Definitions([items, publisher], asset_checks=checks, jobs=[job])


def optional():
    outs = {
        name: dg.AssetOut(key=["optional", name], is_required=False, metadata=APPEND) for name in ("a", "b", "c")
    }
    later = {dg.AssetKey(["optional", "between"])}

    @dg.multi_asset(
        outs=outs, internal_asset_deps={"a": set(), "b": later, "c": later}, deps=list(later), can_subset=True
    )
    def written(context):
        rows = pa.table({"id": [1]})
        if len(context.selected_asset_keys) == 1 and "a" in context.selected_output_names:
            yield dg.Output(rows, "a")
            return
        if not (TOP / "optional failed").exists():
            yield dg.Output(rows, "c")
        fail_once("optional")
        yield dg.Output(rows, "b")

    @dg.asset(key=["optional", "between"], deps=[["optional", "a"]])
    def between() -> None:
        pass

    keys = [out.key for out in outs.values()]
    publisher = build_publisher(keys, name="publish_optional")
    checks = [check for key in keys for check in build_table_checks(key, [RowCount(minimum=1)])]
    selection = dg.AssetSelection.assets(written, between, publisher)
    job = dg.define_asset_job("optional", selection, tags=TAGS)
    return dg.Definitions([written, between, publisher], asset_checks=checks, jobs=[job])


parts = [*(single(audit) for audit in ("unchecked", "check_specs", "table_check", "raises_before")), optional()]
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
JOBS = ("unchecked", "check_specs", "table_check", "raises_before", "optional")
RETRIES = 2


def published(lake: LanceResource, name: str) -> list[int]:
    """The rows of a table in production, which equal those on `main`."""
    table = lake.table(name)
    rows = ids_of(table.read("production")) if table.tags.list() else []
    assert rows == ids_of(table.read())
    return rows


def test_rows_of_a_step_that_failed_are_not_published_by_a_retry(tmp_path: Path) -> None:
    """Rows of steps that raised after they stored them are not published; those of a step that was repeated are."""
    with daemon(tmp_path, LOCATION) as running:
        instance, lake = running.instance, running.lake

        def is_over(job: str) -> bool:
            runs = runs_of(instance, job)
            return any(run.is_success for run in runs) or len([run for run in runs if run.is_finished]) > RETRIES

        running.until(lambda: all(map(is_over, JOBS)))
        assert all("dagster/is_asset_resume_retry" in runs_of(instance, job)[1].tags for job in JOBS)
    tables = [*(f"{job}/items" for job in JOBS[:-1]), "optional/c"]
    expected: dict[str, list[int]] = {table: [] for table in tables} | {"raises_before/items": [1]}
    assert expected == {table: published(lake, table) for table in tables}
    assert published(lake, "optional/a") == published(lake, "optional/b")
