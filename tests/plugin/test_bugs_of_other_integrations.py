# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""Bugs that users reported for the IO managers of other table formats, each with the behaviour that holds here.

A docstring names the thread where the fault was reported.
"""

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest

from lance_dagster import LanceIOManager, LanceResource, StoreError
from lance_dagster.errors import CorruptFileError

EVENTS = dg.AssetKey(["log", "events"])
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-11")
ON_ONE_BRANCH = {"lance/branch": "dev"}


def run(lake: LanceResource, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
    """Materialize some assets; all runs use one branch."""
    tags = {**ON_ONE_BRANCH, **options.pop("tags", {})}
    resources = {"io_manager": LanceIOManager(lance=lake)}
    return dg.materialize(list(assets), resources=resources, tags=tags, **options)


def rows(lake: LanceResource) -> list[dict[str, Any]]:
    """The rows of the events."""
    return lake.table(EVENTS).read("dev").to_pylist()


def hourly_rows(context: dg.AssetExecutionContext) -> pa.Table:
    """A row at six in the morning of each day of the run, in timestamps without a time zone."""
    days = [dt.datetime.fromisoformat(key) for key in context.partition_keys]
    return pa.table({"at": pa.array([day.replace(hour=6) for day in days], pa.timestamp("us"))})


def test_days_with_naive_timestamps_stay(lake: LanceResource) -> None:
    """Writing days 4 and 5 leaves days 2 and 3 (dagster-io/dagster#34064: the whole table was overwritten)."""

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "at"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return hourly_rows(context)

    for day in ("2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-04"):
        assert run(lake, events, partition_key=day).success
    assert [2, 3, 4, 5] == sorted(row["at"].day for row in rows(lake))


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_single_run_backfill(lake: LanceResource) -> None:
    """One run writes a range of partitions (dagster-iceberg 0.3.14: "Tried to access partition_key")."""

    @dg.asset(
        key=EVENTS,
        partitions_def=DAYS,
        metadata={"lance/partition_expr": "at"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return hourly_rows(context)

    tags = {"dagster/asset_partition_range_start": "2024-01-02", "dagster/asset_partition_range_end": "2024-01-04"}
    assert run(lake, events, tags=tags).success
    assert [2, 3, 4] == sorted(row["at"].day for row in rows(lake))


def test_partitions_with_gaps_are_read(lake: LanceResource) -> None:
    """A mapping to days 1 and 5 reads these (dagster-io/dagster#17838: "there are (2) key ranges")."""

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "at"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return hourly_rows(context)

    for day in ("2024-01-01", "2024-01-03", "2024-01-05"):
        assert run(lake, events, partition_key=day).success
    seen: list[int] = []
    gaps = dg.SpecificPartitionsPartitionMapping(["2024-01-01", "2024-01-05"])

    @dg.asset(ins={"events": dg.AssetIn(EVENTS, partition_mapping=gaps)})
    def report(events: pa.Table) -> None:
        seen.extend(sorted(row["at"].day for row in events.to_pylist()))

    assert run(lake, events, report, selection=[report]).success
    assert [1, 5] == seen


def test_lazy_frame_is_appended(lake: LanceResource) -> None:
    """A Polars lazy frame is appended (community-integrations#187: an append crashed without a row count)."""

    @dg.asset(key=EVENTS, metadata={"lance/write_mode": "append"})
    def events() -> pl.LazyFrame:
        return pl.LazyFrame({"id": [1, 2]})

    for _ in range(2):
        assert run(lake, events).success
    assert [1, 1, 2, 2] == sorted(row["id"] for row in rows(lake))


def test_metadata_has_a_row_count(lake: LanceResource) -> None:
    """The materialization has the row count and the schema (dagster-iceberg and dagster-deltalake emit neither)."""

    @dg.asset(key=EVENTS)
    def events() -> pl.LazyFrame:
        return pl.LazyFrame({"id": [1, 2]})

    (made,) = run(lake, events).asset_materializations_for_node("log__events")
    assert 2 == made.metadata["dagster/row_count"].value
    schema = made.metadata["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema)
    assert ["id"] == [column.name for column in schema.columns]


def test_retried_append_has_no_row_twice(lake: LanceResource) -> None:
    """A step that fails after its commit and is retried appends once (every other integration appends twice)."""
    attempts: list[int] = []

    class Unsteady(LanceIOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            super().handle_output(context, obj)
            attempts.append(1)
            if len(attempts) == 1:
                raise ConnectionError("the network went away after the commit")

    @dg.asset(key=EVENTS, metadata={"lance/write_mode": "append"}, retry_policy=dg.RetryPolicy(max_retries=1))
    def events() -> pa.Table:
        return pa.table({"id": [1, 2, 3]})

    resources = {"io_manager": Unsteady(lance=lake)}
    assert dg.materialize([events], resources=resources, tags=ON_ONE_BRANCH).success
    assert 2 == len(attempts)
    assert [1, 2, 3] == sorted(row["id"] for row in rows(lake))


def test_damaged_table_is_not_made_anew(lake: LanceResource) -> None:
    """A table that cannot be read is an error (dagster-deltalake took any error for "there is no table")."""

    @dg.asset(key=EVENTS)
    def events() -> pa.Table:
        return pa.table({"id": [1]})

    assert run(lake, events).success
    manifests = sorted(Path(lake.table(EVENTS).uri).rglob("*.manifest"))
    for manifest in manifests:
        manifest.write_bytes(b"not a manifest")
    with pytest.raises((CorruptFileError, StoreError)):
        run(lake, events)
    assert all(manifest.read_bytes() == b"not a manifest" for manifest in manifests)


def test_old_version_is_read(lake: LanceResource) -> None:
    """An input reads the version that it names (dagster-iceberg: the field `snapshot_id` is never used)."""

    @dg.asset(key=EVENTS)
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"id": [int(context.run.tags["id"])]})

    for number in ("7", "8"):
        assert run(lake, events, tags={"id": number}).success
    seen: list[int] = []

    @dg.asset(ins={"events": dg.AssetIn(EVENTS, metadata={"lance/ref": "dev~1"})})
    def report(events: pa.Table) -> None:
        seen.extend(row["id"] for row in events.to_pylist())

    assert run(lake, events, report, selection=[report]).success
    assert [7] == seen


def test_reads_leave_no_events(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A read records no observation of the upstream asset, which would break the lines of its plots."""

    @dg.asset(key=EVENTS)
    def events() -> pa.Table:
        return pa.table({"id": [1]})

    @dg.asset(ins={"events": dg.AssetIn(EVENTS)})
    def report(events: pa.Table) -> None:
        del events

    result = run(lake, events, report, instance=instance)
    assert result.success
    assert [] == [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]


def test_every_check_names_its_version(lake: LanceResource) -> None:
    """A check's result says which version it saw (dagster-io/dagster#16732: it attaches to another materialization)."""
    from lance_dagster import RowCount, build_table_checks

    @dg.asset(key=EVENTS)
    def events() -> pa.Table:
        return pa.table({"id": [1]})

    resources = {"io_manager": LanceIOManager(lance=lake), "lance": lake}
    assets = [events, *build_table_checks(events, [RowCount(minimum=1)])]
    result = dg.materialize(assets, resources=resources)
    (made,) = result.asset_materializations_for_node("log__events")
    (evaluated,) = result.get_asset_check_evaluations()
    for key in ("lance/branch", "lance/version"):
        assert made.metadata[key] == evaluated.metadata[key]
