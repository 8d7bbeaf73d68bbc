"""Measure the time of one tick of a ref sensor, and the requests that it makes to the storage."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa

from benchmarks.measure import medians, ms, requests
from benchmarks.tables import QUICK
from lance_dagster import LanceRepository, LanceResource, LanceTable, build_ref_sensor

TABLES = (50, 500)
CHANGED = 10
CHANNEL = "production"
ROWS = pa.table({"id": [1]})
_READS = ("get", "get_with_etag", "list", "list_some", "folders")


@dataclass(slots=True)
class _Ticks:
    """A sensor over some tables, evaluated as the daemon does it."""

    sensor: dg.SensorDefinition
    resource: LanceResource
    instance: dg.DagsterInstance
    cursor: str | None = None

    def tick(self, *, keep: bool = True) -> int:
        """Evaluate once, and return the number of reported versions; with `keep`, the next tick has the new cursor."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"lance": self.resource}
        )
        found = self.sensor.evaluate_tick(context)
        self.cursor = found.cursor if keep else self.cursor
        return len(found.asset_events)


def by_tables(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield two rows for each number of tables: watched by the refs of each table, and by a channel of a repository."""
    with dg.DagsterInstance.ephemeral() as instance:
        for count in TABLES:
            for channel in (False, True):
                root = folder / f"tables{count}"
                names = _tables(root, count)
                yield f"{count:,}{', by a channel' if channel else ''}", *_row(root, names, instance, channel=channel)
                shutil.rmtree(root)


def _row(root: Path, names: list[str], instance: dg.DagsterInstance, *, channel: bool) -> Iterator[str]:
    """Yield the figures of a tick: unchanged, compared with opening the tables, and with some tables changed."""
    repository = _repository(root) if channel else None
    refs = (CHANNEL,) if channel else ("main",)
    ticks = _Ticks(build_ref_sensor("refs", names, refs=refs), LanceResource(root=str(root)), instance)
    ticks.tick()
    uris = [f"{root}/{name}.lance" for name in names]
    found = medians({"tick": ticks.tick, "open": lambda: [LanceTable.open(uri).head() for uri in uris]})
    with requests(_READS) as made:
        ticks.tick()
    for uri in uris[:CHANGED]:
        LanceTable.open(uri, QUICK).append(ROWS)
    if repository is not None:
        repository.commit("more", tables=names[:CHANGED])
        repository.channels.promote(CHANNEL)
    changed = medians({"tick": lambda: ticks.tick(keep=False)})["tick"]
    with requests(_READS) as of_changed:
        reported = ticks.tick(keep=False)
    if reported != CHANGED:
        raise RuntimeError(f"the tick reported {reported} tables, but {CHANGED} changed")
    yield ms(found["tick"])
    yield f"{len(made) / len(names):.1f}" if repository is None else f"{len(made)} for all"
    yield ms(found["open"])
    yield f"{found['open'] / found['tick']:.2f}"
    yield ms(changed)
    yield f"{(len(of_changed) - len(made)) / CHANGED:.1f}"
    yield f"{changed / found['tick']:.2f}"


def _repository(root: Path) -> LanceRepository:
    repository = LanceRepository.create(root, QUICK)
    repository.adopt()
    repository.channels.promote(CHANNEL)
    return repository


def _tables(root: Path, count: int) -> list[str]:
    """Create tables of one row each; copies of the first one are quicker than new ones."""
    names = [f"shop/t{number}" for number in range(count)]
    first = LanceTable.create(f"{root}/{names[0]}.lance", ROWS.schema, storage_options=QUICK)
    first.append(ROWS)
    for name in names[1:]:
        shutil.copytree(first.uri, f"{root}/{name}.lance")
    return names
