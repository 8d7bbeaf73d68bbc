"""Many merges, sequential ones into a changing main and concurrent ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CommitConflictError
from lance_dagster.store import open_store
from tests.conftest import S3Storage
from tests.merge.concurrent_runs import SCHEMA, ConcurrentRuns, Rows, as_arrow, as_rows
from tests.process_race import race
from tests.soak import FACTOR
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_on

pytestmark = pytest.mark.slow

BRANCHES, RACERS = (300, 20) if FACTOR else (60, 8)
"""The number of branches that are merged in sequence, and at once."""
OPEN_AT_ONCE = 5


@pytest.mark.scaled
@pytest.mark.parametrize("seed", [1])
def test_runs_merged_one_after_another_into_a_moving_main(tmp_path: Path, seed: int) -> None:
    """Main equals a plain model after appends, updates, deletions, replacements and compactions, some by pylance.

    Of two rival runs, the second is refused if it conflicts with the first. No other run is refused.
    """
    runs, rivals = ConcurrentRuns(tmp_path, seed), 0
    for number in range(BRANCHES):
        if number % 4 == 3:
            runs.fork_rivals(f"run/{number}")
        else:
            runs.fork(f"run/{number}")
        rivals += f"run/{number}" in runs.rivals
        if runs.random.random() < 0.3:
            runs.write_main()
        while len(runs.open) >= OPEN_AT_ONCE:
            runs.merge()
        if number % 10 == 0:
            runs.check()
    while runs.open:
        runs.merge()
    runs.check()
    assert BRANCHES == runs.merged
    assert rivals > runs.refused > 0
    report = runs.table.maintenance.verify(deep=True)
    assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]


class Merged(NamedTuple):
    """The result of a merge among many.

    `version` is the merged version, `tried` the number of manifests put, `taken` how many of their numbers were taken,
    and `given_up` how often the merge was started again after that.
    """

    version: int
    tried: int
    taken: int
    given_up: int


def merging(uri: str, options: Mapping[str, str], branch: str) -> Merged:
    """Merge a branch, and try again as long as other merges are faster."""
    tried = taken = 0

    def script(request: Request) -> object:
        nonlocal tried, taken
        answer = request.send()
        tried += request.commits
        taken += request.commits and not answer
        return answer

    table = LanceTable(context_on(ScriptedStore(open_store(uri, options), script)))
    for again in range(20):
        try:
            return Merged(table.merge(branch).number, tried, taken, again)
        except CommitConflictError:
            continue
    raise AssertionError(branch)


def prepared(uri: str, options: Mapping[str, str]) -> tuple[LanceTable, Rows]:
    """A table with branches that append, delete and update different rows of one fragment, and the expected rows."""
    table = LanceTable.create(uri, SCHEMA, storage_options=options)
    rows: Rows = {number: ("p", number) for number in range(10 * RACERS)}
    table.append(as_arrow(rows))
    for number in range(RACERS):
        branch, ten = f"run/{number}", 10 * number
        table.branches.create(branch)
        table.append(as_arrow({1000 + number: ("n", number)}), branch=branch)
        table.delete(f"id = {ten}", branch=branch)
        table.update({"value": "value + 1000"}, where=f"id = {ten + 1}", branch=branch)
        del rows[ten]
        rows |= {1000 + number: ("n", number), ten + 1: ("p", ten + 1001)}
    return table, rows


def raced(uri: str, options: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Merge all branches concurrently, and assert that each was merged once."""
    table, rows = prepared(uri, options)
    results = race(merging, [(uri, options, f"run/{number}") for number in range(RACERS)])
    report(
        f"{RACERS} merges at once: {sum(each.taken for each in results)} numbers were taken, "
        f"{sum(each.given_up for each in results)} given up"
    )
    assert list(range(3, RACERS + 3)) == sorted(each.version for each in results)
    for each in results:
        # Every attempt but the last lost its number to another merge, and no number was lost twice.
        assert each.taken + 1 == each.tried
        assert each.given_up <= each.taken <= each.version - 3
    of = {
        version.properties["lance_dagster.merge"]: version.number for version in table.log(first_parent=True)[:RACERS]
    }
    assert {f"run/{number}@5": each.version for number, each in enumerate(results)} == of
    assert rows == as_rows(table.read())
    assert list(range(1, RACERS + 3)) == table.branches.version_numbers()
    dataset = lance.dataset(uri, storage_options=dict(options) or None)
    assert rows == as_rows(dataset.to_table())
    dataset.validate()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a text even if the test passes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def told(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}")  # noqa: T201 - counted, not held

    return told


@pytest.mark.scaled
def test_branches_merged_by_as_many_processes_at_once(tmp_path: Path, report: Callable[[str], None]) -> None:
    """On local disk, no row is lost or duplicated."""
    raced(str(tmp_path / "table"), {}, report)


@pytest.mark.scaled
def test_branches_merged_at_once_on_an_object_store(s3_storage: S3Storage, report: Callable[[str], None]) -> None:
    """In a bucket, no row is lost or duplicated."""
    raced(f"{s3_storage.uri}/table", s3_storage.storage_options, report)


def test_one_branch_merged_by_two_processes_on_an_object_store(s3_storage: S3Storage) -> None:
    """There is one merge commit, which both processes return."""
    uri, options = f"{s3_storage.uri}/table", s3_storage.storage_options
    table = LanceTable.create(uri, SCHEMA, storage_options=options)
    table.branches.create("run")
    table.append(as_arrow({1: ("p", 1)}), branch="run")
    versions = race(merging, [(uri, options, "run")] * 2)
    assert [2, 2] == [each.version for each in versions]
    assert 1 == sum(each.tried - each.taken for each in versions)
    assert [1, 2] == table.branches.version_numbers()
    assert {1: ("p", 1)} == as_rows(table.read())


# Errors that the tests above found.


def names_of(table: LanceTable) -> list[tuple[str, int]]:
    """The rows of main without their ids, sorted."""
    return sorted(as_rows(table.read()).values())


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_a_retired_branch_are_the_same_rows_in_later_merges(tmp_path: Path, *, compacted: bool) -> None:
    """Main no longer has the branch's record, but a branch forked before has it, so that its deletion finds the row."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    table.append(as_arrow({1: ("a", 1)}))
    table.branches.create("retired")
    table.append(as_arrow({2: ("r", 1), 3: ("r", 2)}), branch="retired")
    table.append(as_arrow({4: ("m", 1)}))
    table.merge("retired")
    table.branches.delete("retired")
    table.branches.create("run")
    for number in range(10):
        table.branches.create("other")
        table.append(as_arrow({10 + number: ("o", number)}), branch="other")
        table.merge("other")
        table.branches.delete("other")
    if compacted:
        table.maintenance.compact()
    table.delete("id = 2", branch="run")
    table.merge("run")
    assert [("a", 1), ("m", 1), *(("o", number) for number in range(10)), ("r", 2)] == names_of(table)


def test_rows_that_both_sides_compacted_count_as_unchanged(tmp_path: Path) -> None:
    """Rows that merely moved with a fragment of the branch stay in main's fragments, and do not count as written."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    for number in range(3):
        table.append(as_arrow({number: (f"p{number}", number)}))
    table.branches.create("one")
    table.branches.create("two")
    table.replace_where("part = 'p0'", as_arrow({9: ("p0", 9)}), branch="one")
    lance.dataset(table.uri).checkout_version(("one", None)).optimize.compact_files()
    table.update({"value": "value + 1000"}, where="part = 'p1'", branch="two")
    table.maintenance.compact()
    table.merge("one")
    table.merge("two")
    assert [("p0", 9), ("p1", 1001), ("p2", 2)] == names_of(table)
