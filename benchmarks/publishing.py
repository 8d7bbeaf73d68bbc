"""Measure the publisher's step by the number of tables that it publishes."""

import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa

from benchmarks.measure import ms, timed
from benchmarks.tables import QUICK
from lance_dagster import LanceIOManager, LanceResource, LanceTable, RowCount, build_publisher, build_table_checks

TABLES = (1, 10, 100)
RUNS = 3
STEP = "publish_production"
ROWS = pa.table({"id": [1, 2, 3]})


def by_tables(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of tables: the step, Dagster's share of it, and the same work without Dagster."""
    for count in TABLES:
        root = folder / f"publish{count}"
        keys = [dg.AssetKey(["shop", f"t{number}"]) for number in range(count)]
        found = [_published(root, keys) for _ in range(RUNS)]
        plain = [_merged(root, keys, number) for number in range(RUNS)]
        steps, recording = zip(*found, strict=True)
        step, dagster, beside = map(statistics.median, (steps, recording, plain))
        ratios = (f"{step / beside:.1f}", f"{(step - dagster) / beside:.1f}")
        yield f"{count:,}", ms(step), ms(step / count), ms(dagster), ms(beside), *ratios
        shutil.rmtree(root)


def _published(root: Path, keys: list[dg.AssetKey]) -> tuple[float, float]:
    """Write every table in a run, check and publish it.

    Returns:
        The seconds of the publisher's step, and those of a step that only reports the same materializations.
    """

    @dg.multi_asset(outs={key.path[-1]: dg.AssetOut(key=key) for key in keys})
    def tables() -> Iterator[dg.Output[pa.Table]]:
        yield from (dg.Output(ROWS, key.path[-1]) for key in keys)

    lance = LanceResource(root=str(root), storage_options=QUICK)
    checks = [check for key in keys for check in build_table_checks(key, [RowCount(minimum=1)])]
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [tables, *checks, build_publisher(keys)],
            resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
            instance=instance,
        )
        again = dg.materialize([_reporting(result.asset_materializations_for_node(STEP))], instance=instance)
        return _seconds(instance, result.run_id, STEP), _seconds(instance, again.run_id, "reporting")


def _reporting(events: Sequence[dg.AssetMaterialization]) -> dg.AssetsDefinition:
    """Return a step that publishes nothing and reports these materializations, under other keys."""

    @dg.multi_asset(specs=[dg.AssetSpec(["reporting", *event.asset_key.path]) for event in events])
    def reporting() -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        for event in events:
            yield dg.MaterializeResult(asset_key=["reporting", *event.asset_key.path], metadata=event.metadata)

    return reporting


def _seconds(instance: dg.DagsterInstance, run_id: str, step: str) -> float:
    (stats,) = instance.get_run_step_stats(run_id, [step])
    if stats.start_time is None or stats.end_time is None:
        raise RuntimeError(f"the step {step} has no times")
    return stats.end_time - stats.start_time


def _merged(root: Path, keys: list[dg.AssetKey], number: int) -> float:
    """Return the seconds that merging a branch of each table and moving its tag takes."""
    tables = [LanceTable.open(f"{root}/{'/'.join(key.path)}.lance", QUICK) for key in keys]
    name = f"by-hand-{number}"
    for table in tables:
        table.branches.create(name)
        table.overwrite(ROWS, branch=name)

    def publish() -> None:
        for table in tables:
            merged = table.merge(name)
            table.tags.move("production", merged)
            table.branches.delete(name)

    return timed(publish)
