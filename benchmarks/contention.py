"""Measure many writers that append to one branch at once: their rate, the time of the slowest, and their fairness.

Each writer is a process that appends one row again and again. The libraries take turns with the same number of
writers, since other load may slow the machine down at any moment; compare the lines of a round.

In a closed loop a writer appends as soon as its last append ended, so that a slow library gets less to do. In an open
loop an append is due at fixed times, and the time it takes counts from when it was due.
"""

import multiprocessing
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path

import lance
import pyarrow as pa
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments

from lance_dagster import LanceTable
from tests.conftest import bucket_on, server
from tests.servers.ceph import ceph, missing_programs, new_bucket

# Seconds before each answer of the object store.
LATENCY = 0.03
WRITERS = (1, 8, 16)
ROUNDS = 3
SECONDS = 6.0
# With a few commits a second, sixteen writers make too few in less time to tell whether they are treated alike.
SECONDS_ON_S3 = 20.0
# How many of a hundred commits are at least as fast as the figure of the slow ones.
_SLOW = 99
# Of the open loops: how many seconds pass between the appends of one of the writers, on local disk and on a store.
# pylance has to be able to commit as many, or its times would measure the length of the benchmark.
PERIOD, PERIOD_ON_S3 = 0.4, 4.0
PACKAGE, QUICKLY, PYLANCE = "lance_dagster", "lance_dagster, not synced", "pylance"
APART = "lance_dagster, without turns"
"""Each writer has a folder for temporary files of its own, as on a machine of its own, so that they race."""
COMMITTED = "pylance, commit"
"""Writes its data file and calls `LanceDataset.commit`, which is what distributed writers do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One append: how many seconds it took, and whether it was acknowledged or given up."""

    seconds: float
    acknowledged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    """Writers of one library that append to one table for some seconds."""

    library: str
    uri: str
    seconds: float
    storage_options: Mapping[str, str]
    period: float = 0.0


def _write(competition: Competition, barrier: Barrier) -> tuple[bool, list[Attempt]]:
    """Append until the time is over; return whether the first append was acknowledged, and all later appends."""
    row = pa.table({"value": pa.array([1], pa.int64())})
    options = dict(competition.storage_options) | ({"durability": "process"} if competition.library == QUICKLY else {})
    by_package = competition.library in (PACKAGE, QUICKLY, APART)
    table = LanceTable.open(competition.uri, options) if by_package else None

    def append() -> bool:
        if table is not None:
            # Any error ends the benchmark: this package gives up nothing in so short a time.
            table.append(row)
            return True
        try:
            if competition.library == COMMITTED:
                dataset = lance.dataset(competition.uri, storage_options=options or None)
                change = LanceOperation.Append(write_fragments(row, dataset, storage_options=options or None))
                LanceDataset.commit(dataset, change, read_version=dataset.version)
            else:
                lance.write_dataset(row, competition.uri, mode="append", storage_options=options or None)
        except OSError as error:
            # After 20 attempts; an append that fails for another reason may have been committed all the same.
            if "conflict" not in str(error).lower() and "concurrent" not in str(error).lower():
                raise
            return False
        return True

    # The first one imports what it needs, so its time is not measured.
    first = append()
    made: list[Attempt] = []
    barrier.wait(120)
    due = time.perf_counter()
    until = due + competition.seconds
    # The writers of an open loop are not in step.
    due += random.random() * competition.period  # noqa: S311 - no secret
    while (start := time.perf_counter()) < until and due < until:
        time.sleep(max(0.0, due - start))
        acknowledged = append()
        now = time.perf_counter()
        made.append(Attempt(seconds=now - (due if competition.period else start), acknowledged=acknowledged))
        due = due + competition.period if competition.period else now
    # Appends that were due while an earlier one took too long, and were never begun.
    while competition.period and due < until:
        made.append(Attempt(seconds=time.perf_counter() - due, acknowledged=False))
        due += competition.period
    return first, made


_barrier: list[Barrier] = []


def _meet(barrier: Barrier) -> None:
    _barrier.append(barrier)


def _job(competition: Competition) -> tuple[bool, list[Attempt]]:
    with tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own if competition.library == APART else None
        return _write(competition, _barrier[0])


def contended(
    place: str,
    library: str,
    writers: int,
    *,
    seconds: float = SECONDS,
    period: float = 0.0,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[list[list[Attempt]], int]:
    """Let writers append to a new table at once; return the appends of each writer, and how many were lost.

    Args:
        place: The folder or prefix of the table.
        library: Who appends.
        writers: How many of them.
        seconds: How long they do.
        period: The seconds between the appends of one writer in an open loop; 0 is a closed loop.
        storage_options: Of the table.

    Raises:
        RuntimeError: The table has more rows than were acknowledged.
    """
    uri, options = f"{place}/{uuid.uuid4().hex}", dict(storage_options or {})
    LanceTable.create(uri, pa.schema([pa.field("value", pa.int64())]), storage_options=options)
    competition = Competition(library=library, uri=uri, seconds=seconds, storage_options=options, period=period)
    context = multiprocessing.get_context("forkserver")
    # Imported once: sixteen processes that import at once would be measured instead.
    context.set_forkserver_preload([__name__])
    with context.Pool(writers, initializer=_meet, initargs=(context.Barrier(writers),)) as pool:
        found = pool.map(_job, [competition] * writers, chunksize=1)
    acknowledged = sum(first + sum(each.acknowledged for each in made) for first, made in found)
    kept = LanceTable.open(uri, options).count_rows()
    if acknowledged < kept:
        raise RuntimeError(f"{library}: {acknowledged} appends were acknowledged, but the table has {kept} rows")
    return [made for _, made in found], acknowledged - kept


def fairness(counts: list[int]) -> float:
    """Return Jain's index: 1 when all writers made the same number of commits, 1 / n when one made all of them."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)


def figures(found: list[list[Attempt]], seconds: float = SECONDS) -> tuple[float, float, float, float, int, int]:
    """Return commits per second, median, 99th percentile, fairness, the commits of the slowest, and the given up.

    Both times are those of all appends: one that was given up took at least as long as it was tried.
    """
    taken = sorted(each.seconds for one in found for each in one)
    counts = [sum(each.acknowledged for each in one) for one in found]
    slow = taken[min(len(taken) - 1, len(taken) * _SLOW // 100)]
    made = sum(counts)
    return made / seconds, statistics.median(taken), slow, fairness(counts), min(counts), len(taken) - made


@dataclass(frozen=True, slots=True)
class Place:
    """Where tables are made: `longest` is for how many seconds several writers append, `period` that of open loops."""

    name: str
    uri: str
    longest: float
    period: float
    storage_options: Mapping[str, str] = field(default_factory=dict)


def on_disk(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure on local disk, synced and not."""
    libraries = (PACKAGE, QUICKLY, PYLANCE, COMMITTED)
    yield from _rows(Place("local disk", str(folder), SECONDS, PERIOD), libraries)


def on_s3(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure on the S3 server of the tests."""
    with server(folder / "server.log", "tests.servers.s3_server", "--latency", str(LATENCY)) as address:
        storage = bucket_on(f"http://{address}")
        place = Place("S3", storage.uri, SECONDS_ON_S3, PERIOD_ON_S3, storage.storage_options)
        yield from _rows(place, (PACKAGE, APART, PYLANCE, COMMITTED))


def on_ceph(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure on Ceph, behind a proxy that delays each response; yield nothing where it is not installed."""
    reason = missing_programs()
    if reason is not None:
        print(f"Ceph is not measured: {reason}", file=sys.stderr)
        return
    below = folder / "ceph"
    below.mkdir()
    with ceph(below) as endpoint:
        behind = ("--to", endpoint.rpartition(":")[2], "--latency", str(LATENCY))
        with server(folder / "proxy.log", "tests.servers.delaying_proxy", *behind) as address:
            storage = new_bucket(f"http://{address}")
            place = Place("Ceph", storage.uri, SECONDS_ON_S3, PERIOD_ON_S3, storage.storage_options)
            yield from _rows(place, (PACKAGE, APART, PYLANCE, COMMITTED))


def _rows(place: Place, libraries: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Measure every number of writers, the libraries in turn, and yield the medians of the rounds."""
    for writers, period in (*((number, 0.0) for number in WRITERS), (WRITERS[-1], place.period)):
        seconds = place.longest if writers > 1 else SECONDS
        # One writer has no rival, and an open loop few.
        taking_part = [name for name in libraries if name != APART or (writers > 1 and not period)]
        measured: dict[str, list[tuple[float, ...]]] = {name: [] for name in taking_part}
        for _ in range(ROUNDS):
            for name in taking_part:
                found, lost = contended(
                    place.uri,
                    name,
                    writers,
                    seconds=seconds,
                    period=period,
                    storage_options=place.storage_options,
                )
                measured[name].append((*figures(found, seconds), lost))
        beside = [statistics.median(values) for values in zip(*measured[PYLANCE], strict=True)]
        loop = f", each every {period:g} s" if period else ""
        for name in taking_part:
            medians = (statistics.median(each) for each in zip(*measured[name], strict=True))
            rate, middle, slow, fair, least, gave_up, _ = medians
            yield (
                f"{place.name}, {writers} writer{'s' * (writers > 1)}{loop}, {name}",
                f"{rate:.0f}",
                f"{rate / beside[0]:.2f}",
                f"{middle * 1e3:.1f}",
                f"{slow * 1e3:.0f}",
                f"{slow / beside[2]:.2f}",
                f"{fair:.2f}",
                f"{least:.0f}",
                f"{gave_up:.0f}",
                # Of all rounds: one lost append is one too many, which a median would not show.
                f"{sum(each[-1] for each in measured[name]):.0f}",
            )
