"""Many publishers and readers at once: every reader sees one commit, and nothing that was acknowledged is lost."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from lance_dagster import LanceRepository
from tests.forked_program import ready_processes
from tests.process_race import race
from tests.repository.publishing_processes import publish_branch, publish_once, publish_runs, read_until
from tests.repository.scripted_repository import FAST, ids, in_order, new_repository, rows
from tests.soak import FACTOR

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

TABLES = ("a", "b", "c", "d", "e")
PUBLISHERS = 4
RUNS = 125 if FACTOR else 10
KILLS = 100 if FACTOR else 8
SECONDS = 3600 if FACTOR else 300


def checked(repository: LanceRepository, numbers: Sequence[int], tables: Sequence[str] = TABLES) -> None:
    """Check that every run is once in each of its tables, however the table is read, and that nothing lags behind."""
    for ref in ("main", "production"):
        found = ids(repository, ref)
        assert {name: sorted(numbers) for name in tables} == {name: found[name] for name in tables}
    for name in tables:
        table = repository.table(name)
        assert sorted(numbers) == in_order(table.read())
        report = table.maintenance.verify(deep=False)
        assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]


def test_readers_see_one_commit_while_publishers_are_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Readers see whole commits, while four processes publish runs of five tables and are killed repeatedly."""
    repository = new_repository(tmp_path / "repository", *TABLES)
    ended, context, rng = tmp_path / "ended", ready_processes(), random.Random(7)
    shares = [range(1 + first, 1 + PUBLISHERS * RUNS, PUBLISHERS) for first in range(PUBLISHERS)]
    files = [str(tmp_path / f"acknowledged-{number}") for number in range(PUBLISHERS)]

    def started(number: int) -> BaseProcess:
        process = context.Process(
            target=publish_runs, args=(repository.root, shares[number], TABLES, files[number]), daemon=True
        )
        process.start()
        return process

    with context.Pool(2) as readers:
        reading = readers.starmap_async(read_until, [(repository.root, str(ended))] * 2)
        running = [started(number) for number in range(PUBLISHERS)]
        kills, deadline = 0, time.monotonic() + SECONDS
        while any(process.is_alive() for process in running):
            assert time.monotonic() < deadline
            time.sleep(rng.uniform(0.1, 1.0))
            number = rng.randrange(PUBLISHERS)
            if kills < KILLS and running[number].is_alive():
                running[number].kill()
                running[number].join()
                running[number] = started(number)
                kills += 1
        ended.touch()
        found: Counter[str] = Counter()
        for reads in reading.get(timeout=60):
            found.update(reads)
    assert [0] * PUBLISHERS == [process.exitcode for process in running]
    numbers = [number for share in shares for number in share]
    assert sorted(numbers) == sorted(int(line) for file in files for line in Path(file).read_text().split())
    assert (0, 0) == (found["torn"], found["backwards"])
    assert found["different"]
    record_property("reads", found["reads"])
    record_property("kills", kills)
    again = LanceRepository.open(repository.root, FAST)
    assert () == again.maintenance.repair()
    checked(again, numbers)
    # Each publication is in the history exactly once, and the tags of the tables follow.
    messages = [commit.message for commit in again.log() if commit.message.startswith("publish")]
    assert sorted(f"publish run/{number}" for number in numbers) == sorted(messages)
    for name in TABLES:
        assert sorted(numbers) == in_order(again.table(name).read("production"))


@pytest.mark.parametrize(
    "tables",
    [[TABLES, TABLES], [("a", "b"), ("c", "d")], [("a", "b"), ("b", "c")]],
    ids=["the same tables", "disjoint tables", "one table in common"],
)
def test_two_publishers_at_once(tmp_path: Path, tables: list[tuple[str, ...]]) -> None:
    """Two concurrent publications both succeed; the second one merges the tables again that both changed."""
    repository = new_repository(tmp_path, *TABLES)
    race(publish_once, [(repository.root, number, names) for number, names in enumerate(tables, start=1)])
    expected = {name: [number for number, names in enumerate(tables, start=1) if name in names] for name in TABLES}
    again = LanceRepository.open(repository.root, FAST)
    assert (expected, expected) == (ids(again, "main"), ids(again, "production"))
    assert 4 == len(again.log())
    assert () == again.maintenance.repair()


def test_several_publishers_of_one_branch_at_once(tmp_path: Path) -> None:
    """One of them publishes it, all say so, and none is disturbed by the end of the branch."""
    repository = new_repository(tmp_path, "a", "b")
    for number in range(1, 13):
        branch = f"run/{number}"
        for name in ("a", "b"):
            repository.fork(name, branch).append(rows(number), branch=branch)
        (commit,) = set(race(publish_branch, [(repository.root, branch)] * 3))
        assert repository.head().id == commit
    checked(repository, range(1, 13), ("a", "b"))


def test_eight_publishers_at_once(tmp_path: Path) -> None:
    """None of eight concurrent publishers gives up, and each run is published once."""
    repository = new_repository(tmp_path, "a", "b")
    race(publish_once, [(repository.root, number, ("a", "b")) for number in range(1, 9)])
    again = LanceRepository.open(repository.root, FAST)
    again.maintenance.repair()
    checked(again, range(1, 9), ("a", "b"))
    assert 10 == len(again.log())
