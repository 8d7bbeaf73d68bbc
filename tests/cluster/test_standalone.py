"""Spark on a cluster writes exact rows and one version, even if processes are lost. `make test-cluster` runs these."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_dagster.spark.streaming.stream_sink import EPOCH_ID
from lance_dagster.table import LanceTable
from tests.cluster.conftest import PROGRAM_SECONDS, WORKERS, Cluster
from tests.cluster.walks import ABSENT, ROWS

pytestmark = pytest.mark.cluster


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """An empty table, on a disk that all processes share."""
    return LanceTable.create(tmp_path / "table", pa.schema([("id", pa.int64()), ("square", pa.int64())]))


def result(finished: tuple[int, str]) -> dict[str, Any]:
    """The result of a driver that succeeded."""
    code, output = finished
    assert 0 == code, output
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    assert found["installed"], "the driver ran the checkout and not the wheel"
    return found


def unreferenced(table: LanceTable) -> int:
    """The number of files that no version references, all of which a collection deletes."""
    found = table.maintenance.collect_garbage(timedelta(days=1), grace=timedelta(0), dry_run=False)
    assert () == tuple(found.problems)
    assert {} == {name: count for name, count in found.waiting.items() if count.files}
    again = table.maintenance.collect_garbage(timedelta(days=1), grace=timedelta(0))
    assert 0 == sum(count.files for count in again.garbage.values())
    return sum(count.files for count in found.garbage.values())


def test_rows_are_written_read_upserted_deleted_and_compacted(cluster: Cluster, table: LanceTable) -> None:
    """Two executors do the work in a Python that has neither Dagster nor an extra of the package."""
    found = result(cluster.run("work", Path(table.uri)))
    changed = len(range(0, 2 * ROWS, 3))
    added = ROWS - changed
    executors = found["executors"]
    assert 2 == len(executors["java"])
    assert all(Path(place).is_relative_to(cluster.python.parents[1]) for place in executors["lance_dagster"])
    assert {name: [""] for name in ABSENT} == {name: executors[name] for name in ABSENT}
    assert ROWS == found["changes"]
    assert found["rows"] == found["source"]
    assert [added, changed] == found["merged"]
    assert 10 == found["deleted"]
    assert (2 * ROWS + added - 10, 2 * ROWS + added - 10) == (found["rows"], found["distinct"])
    # Ten rows are deleted, four of them with keys that are multiples of three.
    assert ROWS - 4 == found["changed"]
    before, after = found["fragments"]
    assert after < before
    # These are two appends, an upsert, a delete, and a compaction with its reserved ids.
    assert [2, 3, 4, 5, 6, 7] == table.branches.version_numbers(after=1)
    assert table.maintenance.verify(deep=True).ok


def test_an_executor_that_is_lost_in_mid_write(cluster: Cluster, table: LanceTable) -> None:
    """Another executor repeats its tasks; their first files are garbage."""
    assert result(cluster.run("killed_executor", Path(table.uri)))["killed"]
    assert [2] == table.branches.version_numbers(after=1)
    assert list(range(ROWS)) == sorted(table.read(columns=["id"]).column("id").to_pylist())  # type: ignore[type-var]
    assert table.maintenance.verify(deep=True).ok
    unreferenced(table)
    assert table.maintenance.verify(deep=True).ok


def test_a_slow_task_whose_second_attempt_is_faster(cluster: Cluster, table: LanceTable) -> None:
    """Spark starts the second attempt on the other host, both write all rows, and one of them is committed."""
    found = result(cluster.run("straggler", Path(table.uri)))
    for way in ("stage", "save"):
        assert [0, 1] == [attempt for attempt, _ in found[way]]
        assert set(WORKERS) == {host for _, host in found[way]}
    assert [2, 3] == table.branches.version_numbers(after=1)
    assert sorted([*range(ROWS)] * 2) == sorted(table.read(columns=["id"]).column("id").to_pylist())  # type: ignore[type-var]
    assert table.maintenance.verify(deep=True).ok
    unreferenced(table)
    assert table.maintenance.verify(deep=True).ok


def test_a_driver_that_is_lost_after_staging(cluster: Cluster, table: LanceTable) -> None:
    """No version references its files, and a collection deletes them."""
    code, output = cluster.run("killed_driver", Path(table.uri))
    assert -signal.SIGKILL == code, output
    assert [] == table.branches.version_numbers(after=1)
    assert 0 < unreferenced(table)
    assert 0 == table.count_rows()
    assert table.maintenance.verify(deep=True).ok


def test_a_stream_that_is_killed(cluster: Cluster, table: LanceTable, tmp_path: Path) -> None:
    """It is killed twice, soon after a commit; the copy has each row once, and one version for each batch."""
    copy = tmp_path / "copy"
    for kill in range(2):
        program = cluster.start("stream", Path(table.uri))
        for number in range(3):
            table.append(pa.table({"id": [10 * kill + number], "square": [0]}))
        _wait_for_version(copy, 2 + 2 * kill)
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate(timeout=60)
    (tmp_path / "stop").touch()
    result(cluster.run("stream", Path(table.uri)))
    made = LanceTable.open(copy)
    assert [0, 1, 2, 10, 11, 12] == sorted(made.read().column("id").to_pylist())  # type: ignore[type-var]
    batches = [made.at(f"main@{number}").properties[EPOCH_ID] for number in made.branches.version_numbers(after=1)]
    assert len(batches) == len(set(batches))
    assert made.maintenance.verify(deep=True).ok


def _wait_for_version(table: Path, number: int) -> None:
    deadline = time.monotonic() + PROGRAM_SECONDS
    while time.monotonic() < deadline:
        if LanceTable.exists(table) and LanceTable.open(table).head().number >= number:
            return
        time.sleep(0.05)
    pytest.fail(f"{table} has no version {number} after {PROGRAM_SECONDS} s")
