"""Measure work on one partition by the fragments of the table, and a backfill in one run by its partitions."""

import shutil
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import dagster as dg
import pyarrow as pa

from benchmarks.measure import ms, sizes
from benchmarks.tables import QUICK
from lance_dagster import (
    LanceIOManager,
    LanceResource,
    LanceTable,
    RowCount,
    StagedFiles,
    build_publisher,
    build_table_checks,
)
from lance_dagster.format.layout import DATA, VERSIONS
from lance_dagster.format.value_ranges import ValueRange, encode_range
from lance_dagster.types import StagedFile
from tests.conftest import bucket_on, server
from tests.store.providers import requests_of

FRAGMENTS = (10, 1_000, 50_000)
PARTITIONS = (10, 100, 1_000)
ROWS_OF_PARTITION = 10
RUNS = 3
STEP = "publish_production"
_DAY = "day = 'd3'"
_ROWS = pa.table({"day": ["d3"], "id": [3]})
FLOORS: Mapping[str, int] = {"replace": 5, "read": 3, "count": 2}
"""The requests that the protocol needs.

Each reads the newest version: a listing and a manifest. A read adds the data file. A replacement adds the data file and
the manifest that it puts, and looks once whether the branch is protected.
"""


def by_fragments(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each operation on a partition of one fragment and each number of fragments of the table.

    The table is on the S3 server of the tests; each operation opens it anew.
    """
    with server(folder / "server.log", "tests.servers.s3_server") as address:
        storage = bucket_on(f"http://{address}")
        options = dict(storage.storage_options)
        for count in FRAGMENTS:
            uri = f"{storage.uri}/days{count}.lance"
            _table_of_days(uri, options, count)

            def open_again(uri: str = uri) -> LanceTable:
                return LanceTable.open(uri, options)

            work: Mapping[str, Callable[[], object]] = {
                "count": lambda: open_again().count_rows(filter=_DAY),
                "read": lambda: open_again().read(filter=_DAY),
                "replace": lambda: open_again().replace_where(_DAY, _ROWS),
            }
            for name, act in work.items():
                # The first requests of a process are made once: a probe, and where the server is.
                act()
                yield f"{name}, {count:,} fragments", str(len(requests_of(storage, act))), str(FLOORS[name])


def _table_of_days(uri: str, options: Mapping[str, str], count: int) -> None:
    """Make a table of so many fragments, of which only the one of a day has its file: no other is opened."""
    table = LanceTable.create(uri, _ROWS.schema, storage_options=options)
    table.replace_where(_DAY, _ROWS)
    days = (f"e{number}" for number in range(count - 1))
    files = tuple(
        StagedFile(
            name=f"{uuid.uuid4().hex}.lance",
            rows=1,
            size=1,
            ranges=encode_range("day", "string", ValueRange(has_nulls=False, lower=day, upper=day)),
        )
        for day in days
    )
    table.append(StagedFiles(_ROWS.schema, files, is_checked=True))


def by_partitions(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of partitions: a backfill of them in one run, its publication, and what it stores."""
    for count in PARTITIONS:
        backfills = [_backfill(folder / f"backfill{count}-{number}", count) for number in range(RUNS)]
        written, published, stored, floor = map(statistics.median, zip(*backfills, strict=True))
        each = ms((written + published) / count)
        yield f"{count:,}", ms(written), ms(published), each, f"{stored / 1000:,.0f} kB", f"{floor / 1000:,.0f} kB"


def _backfill(root: Path, count: int) -> tuple[float, float, int, int]:
    """Return the seconds of the step that writes and of the publication, and the bytes of the lake and of its rows."""
    days = dg.DailyPartitionsDefinition("2020-01-01", end_offset=1)
    keys = days.get_partition_keys()[:count]
    policy = dg.BackfillPolicy.single_run()
    rows = pa.table({"day": [day for day in keys for _ in range(ROWS_OF_PARTITION)]})

    @dg.asset(partitions_def=days, metadata={"lance/partition_expr": "day"}, backfill_policy=policy)
    def events() -> pa.Table:
        return rows

    publisher = build_publisher([events], partitions_def=days, backfill_policy=policy)
    lance = LanceResource(root=str(root), storage_options=QUICK)
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [events, *build_table_checks(events, [RowCount(minimum=1)]), publisher],
            resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
            instance=instance,
            tags=tags,
            run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
        )
        seconds = {stats.step_key: stats for stats in instance.get_run_step_stats(result.run_id)}
        written, published = (
            (seconds[step].end_time or 0.0) - (seconds[step].start_time or 0.0) for step in ("events", STEP)
        )
    files = sizes(root)
    data = sum(size for path, size in files.items() if path.parent.name == DATA and path.suffix == ".lance")
    manifest = max(size for path, size in files.items() if path.parent.name == VERSIONS)
    shutil.rmtree(root)
    return written, published, sum(files.values()), data + manifest
