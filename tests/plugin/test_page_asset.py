"""The asset that writes the page of the lake."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, RowCount, build_page_asset, lance_assets
from lance_dagster.plugin.operate.page_asset import PageAssetOptions

ADDRESS = "https://dagster.example.com"


@dg.asset
def orders() -> pa.Table:
    """Two orders."""
    return pa.table({"id": [1, 2]})


def defs_at(root: Path, *, page: "bool | PageAssetOptions") -> dg.Definitions:
    """The definitions of a lake with a page."""
    return lance_assets([orders], root=str(root), checks={"orders": [RowCount(minimum=1)]}, page=page)


def test_the_page_lies_in_the_lake(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """It is written beside the tables, with links to the runs, after they were published."""
    defs = defs_at(tmp_path / "lake", page={"dagster_url": ADDRESS})
    published = defs.resolve_job_def("load_and_publish").execute_in_process(instance=instance)
    job = defs.resolve_implicit_global_asset_job_def()
    made = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("lake_page")])
    (event,) = made.asset_materializations_for_node("lake_page")
    file = tmp_path / "lake" / "lake.html"
    assert str(file) == event.metadata["page"].value
    assert file.stat().st_size == event.metadata["lance/bytes"].value
    assert f'href="{ADDRESS}/runs/{published.run_id}"' in file.read_text()


def test_rows_are_numbers_that_dagster_plots(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The asset has the rows that readers see, those that wait, and those that a check refused."""
    days, ids = dg.StaticPartitionsDefinition(["mon", "tue"]), {"mon": [1, 2, 3], "tue": [4]}

    @dg.asset(partitions_def=days, metadata={"lance/partition_expr": "day"})
    def visits(context: dg.AssetExecutionContext) -> pa.Table:
        day = context.partition_key
        return pa.table({"id": ids[day], "day": [day] * len(ids[day])})

    checks = {"orders": [RowCount(minimum=1)], "visits": [RowCount(minimum=2)]}
    defs = lance_assets([orders, visits], root=str(tmp_path / "lake"), checks=checks, page=True)
    job = defs.resolve_implicit_global_asset_job_def()

    def make(*assets: dg.AssetKey, day: str | None = None) -> bool:
        made = job.execute_in_process(
            instance=instance, asset_selection=list(assets), partition_key=day, raise_on_error=False
        )
        return made.success

    def plotted() -> list[object]:
        assert make(dg.AssetKey("lake_page"))
        event = instance.get_latest_materialization_event(dg.AssetKey("lake_page"))
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        return [metadata[f"lance/rows_{what}"].value for what in ("published", "waiting", "rejected")]

    assert make(orders.key, dg.AssetKey(["production", "orders"]))
    assert [2, 0, 0] == plotted()
    assert make(visits.key, day="mon")
    assert not make(visits.key, day="tue")
    assert [2, 3, 1] == plotted()
    assert make(dg.AssetKey(["production", "visits"]))
    assert [5, 0, 1] == plotted()


def test_the_page_is_written_to_a_path(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The path is on the machine of the run."""
    defs = defs_at(tmp_path / "lake", page={"path": tmp_path / "page.html", "name": "overview"})
    defs.resolve_job_def("load_and_publish").execute_in_process(instance=instance)
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("overview")]).success
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()


def test_there_is_no_page_before_the_first_publication(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The run fails with a message that says when there will be a lake."""
    job = defs_at(tmp_path / "lake", page=True).resolve_implicit_global_asset_job_def()
    made = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("lake_page")], raise_on_error=False)
    assert "the first publication creates it" in str(made.failure_data_for_node("lake_page"))


def test_a_schedule_writes_it_anew(tmp_path: Path) -> None:
    """A page is as old as its last run, so it gets a schedule; a publisher that refuses starts nothing."""
    assert ["lake_page_schedule"] == [
        schedule.name for schedule in defs_at(tmp_path, page=True).schedules or [] if "page" in schedule.name
    ]
    assert dg.AssetKey("lake_page") not in defs_at(tmp_path, page=False).resolve_all_asset_keys()


def test_wrong_options_are_refused_when_definitions_load(tmp_path: Path) -> None:
    """A misspelt option, an address that is none, and a value that is no mapping."""
    with pytest.raises(InvalidInputError):
        build_page_asset(row=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError):
        build_page_asset(dagster_url="javascript:alert(1)")
    with pytest.raises(InvalidInputError):
        defs_at(tmp_path, page="yes")  # type: ignore[arg-type]
