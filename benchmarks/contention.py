"""Many writers that append to one branch at once: how fast, how long the slowest waits, and how fairly.

Each writer is a process that appends one row again and again. Both libraries take turns with the same number of
writers, since the machine may be slowed down by others at any moment; compare the two lines of a round.
"""

import multiprocessing
import statistics
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from tests.conftest import bucket_on, server

# Seconds before each answer of the object store.
LATENCY = 0.03
WRITERS = (1, 8, 16)
ROUNDS = 3
SECONDS = 6.0
# With a few commits a second, sixteen writers make too few in less time to tell whether they are treated alike.
SECONDS_ON_S3 = 20.0
# How many of a hundred commits are at least as fast as the figure of the slow ones.
_SLOW = 99
PACKAGE, QUICKLY, PYLANCE = "lance_dagster", "lance_dagster, not synced", "pylance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Writers of one library that append to one table for some seconds."""

    library: str
    uri: str
    seconds: float
    storage_options: Mapping[str, str]


def _write(contest: Contest, barrier: Barrier) -> list[float | None]:
    """Append until the time is over; return how long each append took, or None for one that the library gave up."""
    row = pa.table({"value": pa.array([1], pa.int64())})
    options = dict(contest.storage_options) | ({"durability": "process"} if contest.library == QUICKLY else {})
    table = None if contest.library == PYLANCE else LanceTable.open(contest.uri, options)

    def append() -> None:
        if table is None:
            lance.write_dataset(row, contest.uri, mode="append", storage_options=options or None)
        else:
            table.append(row)

    # The first one imports what it needs; where it is given up, that is done, too.
    with suppress(OSError):
        append()
    taken: list[float | None] = []
    barrier.wait(120)
    until = time.perf_counter() + contest.seconds
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


def _job(contest: Contest) -> list[float | None]:
    return _write(contest, _barrier[0])


def contended(
    place: str,
    library: str,
    writers: int,
    *,
    seconds: float = SECONDS,
    storage_options: Mapping[str, str] | None = None,
) -> list[list[float]]:
    """Let writers append to a new table at once; return how long each append of each writer took."""
    uri, options = f"{place}/{uuid.uuid4().hex}", dict(storage_options or {})
    LanceTable.create(uri, pa.schema([pa.field("value", pa.int64())]), storage_options=options)
    contest = Contest(library=library, uri=uri, seconds=seconds, storage_options=options)
    context = multiprocessing.get_context("forkserver")
    # Imported once: sixteen processes that import at once would be measured instead.
    context.set_forkserver_preload([__name__])
    with context.Pool(writers, initializer=_meet, initargs=(context.Barrier(writers),)) as pool:
        found = pool.map(_job, [contest] * writers, chunksize=1)
    acknowledged, kept = (
        sum(each is not None for one in found for each in one),
        LanceTable.open(uri, options).count_rows(),
    )
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
    """Measure on local disk, and on an object store that takes its time for each answer."""
    yield from _rows(str(folder), "local disk", (PACKAGE, QUICKLY, PYLANCE), {})
    with server(folder / "server.log", "tests.servers.s3_server", "--latency", str(LATENCY)) as address:
        storage = bucket_on(f"http://{address}")
        yield from _rows(storage.uri, "S3", (PACKAGE, PYLANCE), storage.storage_options, longest=SECONDS_ON_S3)


def _rows(
    place: str, where: str, libraries: Sequence[str], storage_options: Mapping[str, str], *, longest: float = SECONDS
) -> Iterator[tuple[str, ...]]:
    """Measure every number of writers, the libraries in turn, and yield the medians of the rounds."""
    for writers in WRITERS:
        measured: dict[str, list[tuple[float, float, float, float, int]]] = {name: [] for name in libraries}
        seconds = longest if writers > 1 else SECONDS
        for _ in range(ROUNDS):
            for name in libraries:
                taken = contended(place, name, writers, seconds=seconds, storage_options=storage_options)
                measured[name].append(figures(taken, seconds))
        beside = [statistics.median(values) for values in zip(*measured[PYLANCE], strict=True)]
        for name in libraries:
            rate, middle, slow, fair, least = (statistics.median(each) for each in zip(*measured[name], strict=True))
            yield (
                f"{where}, {writers} writers, {name}",
                f"{rate:.0f}",
                f"{rate / beside[0]:.2f}",
                f"{middle * 1e3:.1f}",
                f"{slow * 1e3:.0f}",
                f"{slow / beside[2]:.2f}",
                f"{fair:.2f}",
                f"{least:.0f}",
            )
