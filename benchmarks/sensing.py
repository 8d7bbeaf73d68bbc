"""How long one tick of a ref sensor takes, and how many requests it makes to the storage."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa

from benchmarks.measure import medians, ms, requests
from benchmarks.tables import QUICK
from lance_dagster import LanceResource, LanceTable, build_ref_sensor

TABLES = (50, 500)
CHANGED = 10
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
        """Evaluate once, and return the number of reported versions; keep the cursor or tick again from the same."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"lance": self.resource}
        )
        found = self.sensor.evaluate_tick(context)
        self.cursor = found.cursor if keep else self.cursor
        return len(found.asset_events)


def by_tables(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of tables: unchanged, with some changed, and beside that opening the tables."""
    with dg.DagsterInstance.ephemeral() as instance:
        for count in TABLES:
            root = folder / f"tables{count}"
            names = _tables(root, count)
            ticks = _Ticks(build_ref_sensor("refs", names), LanceResource(root=str(root)), instance)
            ticks.tick()
            uris = [f"{root}/{name}.lance" for name in names]
            found = medians({"tick": ticks.tick, "open": lambda uris=uris: [LanceTable.open(u).head() for u in uris]})  # type: ignore[misc]
            with requests(_READS) as made:
                ticks.tick()
            for uri in uris[:CHANGED]:
                LanceTable.open(uri, QUICK).append(ROWS)
            changed = medians({"tick": lambda ticks=ticks: ticks.tick(keep=False)})["tick"]  # type: ignore[misc]
            with requests(_READS) as of_changed:
                ticks.tick(keep=False)
            yield (
                f"{count:,}",
                ms(found["tick"]),
                f"{len(made) / count:.1f}",
                ms(found["open"]),
                f"{found['open'] / found['tick']:.2f}",
                ms(changed),
                f"{(len(of_changed) - len(made)) / CHANGED:.1f}",
                f"{changed / found['tick']:.2f}",
            )
            shutil.rmtree(root)


def _tables(root: Path, count: int) -> list[str]:
    """Create tables of one row each; copies of the first one are quicker than new ones."""
    names = [f"shop/t{number}" for number in range(count)]
    first = LanceTable.create(f"{root}/{names[0]}.lance", ROWS.schema, storage_options=QUICK)
    first.append(ROWS)
    for name in names[1:]:
        shutil.copytree(first.uri, f"{root}/{name}.lance")
    return names
