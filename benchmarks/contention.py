"""Many writers that append to one branch at once: how fast, how long the slowest waits, and how fairly.

Each writer is a process that appends one row again and again. Both libraries take turns with the same number of
writers, since the machine may be slowed down by others at any moment; compare the two lines of a round.
"""

import multiprocessing
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path

import lance
import pyarrow as pa

from lance_dagster import LanceTable

WRITERS = (1, 8, 16)
ROUNDS = 3
SECONDS = 6.0
# How many of a hundred commits are at least as fast as the figure of the slow ones.
_SLOW = 99
PACKAGE, QUICKLY, PYLANCE = "lance_dagster", "lance_dagster, not synced", "pylance"
_LIBRARIES = (PACKAGE, QUICKLY, PYLANCE)


def _write(library: str, uri: str, barrier: Barrier, seconds: float) -> list[float | None]:
    """Append until the time is over; return how long each append took, or None for one that the library gave up."""
    row = pa.table({"value": pa.array([1], pa.int64())})
    options = {"durability": "process"} if library == QUICKLY else {}
    table = None if library == PYLANCE else LanceTable.open(uri, options)

    def append() -> None:
        if table is None:
            lance.write_dataset(row, uri, mode="append")
        else:
            table.append(row)

    # The first one imports what it needs; where it is given up, that is done, too.
    with suppress(OSError):
        append()
    taken: list[float | None] = []
    barrier.wait(120)
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        try:
            append()
        except OSError:
            taken.append(None)
        else:
            taken.append(time.perf_counter() - start)
    return taken


_barrier: list[Barrier] = []


def _meet(barrier: Barrier) -> None:
    _barrier.append(barrier)


def _job(library: str, uri: str, seconds: float) -> list[float | None]:
    return _write(library, uri, _barrier[0], seconds)


def contended(folder: Path, library: str, writers: int, seconds: float = SECONDS) -> list[list[float]]:
    """Let writers append to a new table at once; return how long each append of each writer took."""
    uri = str(folder / uuid.uuid4().hex)
    LanceTable.create(uri, pa.schema([pa.field("value", pa.int64())]))
    context = multiprocessing.get_context("forkserver")
    # Imported once: sixteen processes that import at once would be measured instead.
    context.set_forkserver_preload([__name__])
    with context.Pool(writers, initializer=_meet, initargs=(context.Barrier(writers),)) as pool:
        found = pool.starmap(_job, [(library, uri, seconds)] * writers, chunksize=1)
    acknowledged, kept = sum(each is not None for one in found for each in one), LanceTable.open(uri).count_rows()
    # The first append of each writer is not counted, and may have been given up.
    if not acknowledged <= kept <= acknowledged + writers:
        raise RuntimeError(f"{library}: {acknowledged} appends were acknowledged, and {kept} rows are there")
    return [[each for each in one if each is not None] for one in found]


def fairness(counts: list[int]) -> float:
    """Return Jain's index: 1 when all did the same, 1 / n when one did everything."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)


def figures(found: list[list[float]], seconds: float = SECONDS) -> tuple[float, float, float, float, int]:
    """Return commits per second, the median, the 99th percentile, the fairness, and the commits of the slowest."""
    taken = sorted(each for one in found for each in one)
    counts = [len(one) for one in found]
    slow = taken[min(len(taken) - 1, len(taken) * _SLOW // 100)]
    return len(taken) / seconds, statistics.median(taken), slow, fairness(counts), min(counts)


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure every number of writers, both libraries in turn, and yield the medians of the rounds."""
    for writers in WRITERS:
        measured: dict[str, list[tuple[float, float, float, float, int]]] = {name: [] for name in _LIBRARIES}
        for _ in range(ROUNDS):
            for name in _LIBRARIES:
                measured[name].append(figures(contended(folder, name, writers)))
        beside = [statistics.median(values) for values in zip(*measured[PYLANCE], strict=True)]
        for name in _LIBRARIES:
            rate, middle, slow, fair, least = (statistics.median(each) for each in zip(*measured[name], strict=True))
            yield (
                f"{writers} writers, {name}",
                f"{rate:.0f}",
                f"{rate / beside[0]:.2f}",
                f"{middle * 1e3:.1f}",
                f"{slow * 1e3:.0f}",
                f"{slow / beside[2]:.2f}",
                f"{fair:.2f}",
                f"{least:.0f}",
            )
