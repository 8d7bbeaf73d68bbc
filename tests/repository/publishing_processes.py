"""Processes that publish to one repository, and one that reads it meanwhile."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from lance_dagster import LanceRepository
from lance_dagster.errors import RefNotFoundError
from tests.repository.scripted_repository import FAST, ids, rows

CHANNEL = "production"


def publish_runs(root: str, numbers: Sequence[int], tables: Sequence[str], acknowledged: str) -> None:
    """Publish a run with a row in each table for each number, as a process that starts again after it was killed."""
    repository = LanceRepository.open(root, FAST)
    file = Path(acknowledged)
    done = set(file.read_text().split()) if file.exists() else set()
    for number in numbers:
        if str(number) in done:
            continue
        publish_run(repository, number, tables)
        with file.open("a") as acknowledgements:
            acknowledgements.write(f"{number}\n")


def publish_run(repository: LanceRepository, number: int, tables: Sequence[str]) -> None:
    """Write and publish one run, or finish one that an earlier process began."""
    branch = f"run/{number}"
    for name in tables:
        # The rows of a run that was published without an acknowledgement are on main.
        if repository.table(name).count_rows(filter=f"id = {number}"):
            continue
        table = repository.fork(name, branch)
        if not table.count_rows(branch, filter=f"id = {number}"):
            table.append(rows(number), branch=branch)
    repository.publish(branch, channel=CHANNEL)


def read_until(root: str, ended: str) -> dict[str, int]:
    """Read the channel until a file appears; return the number of reads, and how many of them were inconsistent."""
    found = {"reads": 0, "different": 0, "backwards": 0, "torn": 0}
    kept, before, rng = LanceRepository.open(root, FAST), set[int](), random.Random(1)
    while not Path(ended).exists():
        repository = kept if rng.random() < 0.5 else LanceRepository.open(root, FAST)
        try:
            tables = list(ids(repository, CHANNEL).values())
        except RefNotFoundError:
            time.sleep(0.01)
            continue
        now = set(tables[0])
        found["torn"] += any(set(each) != now for each in tables)
        found["backwards"] += not before <= now
        found["different"] += before != now
        found["reads"] += 1
        before = now
    return found


def publish_once(root: str, number: int, tables: Sequence[str]) -> str:
    """Publish one run, and return the id of its commit."""
    repository = LanceRepository.open(root, FAST)
    publish_run(repository, number, tables)
    return repository.head().id


def publish_branch(root: str, branch: str) -> str:
    """Publish a branch whose files survive power cuts, and return the id of the commit."""
    return LanceRepository.open(root).publish(branch, channel=CHANNEL).commit.id
