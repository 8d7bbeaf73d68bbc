"""Measure the publication of many tables by the changed tables, and the resolution of a channel by its history."""

import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import medians, ms, requests, sizes, timed
from benchmarks.tables import QUICK
from lance_dagster import LanceRepository, LanceTable
from lance_dagster.repository.commits.ref_log import COMMITS, RefLogs, next_entry
from lance_dagster.repository.registry import IDENTITY
from lance_dagster.store import open_store

TABLES = 100
CHANGED = (1, 10, 100)
SIZES = (10, 100, 1_000, 3_000)
BRANCHES = (10, 300, 1_000)
ENTRIES = (10, 10_000)
RUNS = 3
CHANNEL = "production"
ROWS = pa.table({"id": [1, 2, 3]})
_REQUESTS = (
    *("get", "get_range", "get_with_etag", "list", "list_some", "folders", "sizes", "walk"),
    *("put", "put_if_absent", "compare_and_swap", "delete", "delete_many", "compare_and_delete"),
)


def by_changed_tables(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of changed tables: time and requests, and both for each table."""
    root = folder / "changed"
    repository = LanceRepository.create(root, QUICK)
    names = [f"shop/t{number}" for number in range(TABLES)]
    for name in names:
        repository.create_table(name, ROWS.schema)
    repository.commit("start")
    repository.channels.promote(CHANNEL)
    for count in CHANGED:
        taken, made = [], []
        for run in range(RUNS):
            branch = f"run/{count}-{run}"
            for name in names[:count]:
                repository.fork(name, branch).append(ROWS, branch=branch)
            again = LanceRepository.open(root, QUICK)
            with requests(_REQUESTS) as counted:
                taken.append(timed(_publication(again, branch)))
            made.append(len(counted))
        step, number = statistics.median(taken), statistics.median(made)
        yield f"{count} of {TABLES}", ms(step), ms(step / count), f"{number:,.0f}", f"{number / count:.0f}"
    shutil.rmtree(root)


def by_tables(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of tables: the publication of one table, what it stores, and the status."""
    for count in SIZES:
        root = folder / f"tables{count}"
        repository = _copies(root, count)
        taken, stored, made = [], [], []
        for run in range(RUNS):
            name, branch = f"shop/t{run}", f"run/{run}"
            repository.fork(name, branch).append(ROWS, branch=branch)
            before = sum(sizes(root / COMMITS).values())
            taken.append(timed(_publication(repository, branch)))
            stored.append(sum(sizes(root / COMMITS).values()) - before)
            repository.fork(name, branch).append(ROWS, branch=branch)
            again = LanceRepository.open(root, QUICK)
            with requests(_REQUESTS) as counted:
                again.publish(branch, channel=CHANNEL)
            made.append(len(counted))
        status = medians({CHANNEL: lambda root=root: LanceRepository.open(root, QUICK).status()})[CHANNEL]  # type: ignore[misc]
        step, size, number = statistics.median(taken), statistics.median(stored), statistics.median(made)
        yield f"{count:,}", ms(step), f"{size / 1000:,.0f} kB", f"{number:,.0f}", ms(status)
        shutil.rmtree(root)


def _copies(root: Path, count: int) -> LanceRepository:
    """Make a repository of empty tables, which are copies of one table."""
    repository = LanceRepository.create(root, QUICK)
    repository.create_table("shop/t0", ROWS.schema)
    for number in range(1, count):
        copy = root / "shop" / f"t{number}.lance"
        shutil.copytree(root / "shop" / "t0.lance", copy)
        # A copy of the identity would count as the same table.
        (copy / IDENTITY).unlink()
        repository.table_id(f"shop/t{number}")
    repository.commit("start")
    repository.channels.promote(CHANNEL)
    return repository


def by_branches(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of branches: a dry run of the collection of a table, and its requests."""
    for count in BRANCHES:
        root = folder / f"branches{count}"
        table = LanceTable.create(root, ROWS.schema, storage_options=QUICK)
        for number in range(count):
            table.branches.create(f"run/{number}")
            table.append(ROWS, branch=f"run/{number}")

        def collect(root: Path = root) -> object:
            return LanceTable.open(root, QUICK).maintenance.collect_garbage()

        with requests(_REQUESTS) as counted:
            collect()
        yield f"{count:,}", ms(medians({CHANNEL: collect})[CHANNEL]), f"{len(counted):,}"
        shutil.rmtree(root)


def by_entries(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each length of a channel's history: resolving the channel, and the version of a table by it."""
    root = folder / "entries"
    repository = LanceRepository.create(root, QUICK)
    repository.create_table("t", ROWS.schema)
    repository.commit("start")
    repository.channels.promote(CHANNEL)
    logs = RefLogs(open_store(root, QUICK))
    entry = logs.current("channel", CHANNEL)
    for count in ENTRIES:
        for number in range(entry.number + 1, count + 1):
            entry = replace(next_entry(entry, "promote", entry.commit), number=number)
            logs.append("channel", CHANNEL, entry)

        def resolve() -> object:
            return LanceRepository.open(root, QUICK).at(CHANNEL)["t"].version

        with requests(_REQUESTS) as counted:
            resolve()
        yield f"{count:,}", ms(medians({CHANNEL: resolve})[CHANNEL]), str(len(counted))
    shutil.rmtree(root)


def _publication(repository: LanceRepository, branch: str) -> Callable[[], object]:
    return lambda: repository.publish(branch, channel=CHANNEL)
