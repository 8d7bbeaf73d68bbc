"""What waits is shown by the record of the repository alone."""

from pathlib import Path

import pytest

from lance_dagster import LanceRepository
from lance_dagster.types import RecordedWrite, Verdict
from tests.repository.scripted_repository import Plug, made_by, new_repository, rows, scripted
from tests.repository.write_requests import write_request


@pytest.fixture
def repository(tmp_path: Path) -> LanceRepository:
    """A repository with two empty tables."""
    return new_repository(tmp_path, "a", "b")


def recorded(repository: LanceRepository, name: str, run: str, candidate: str, *partitions: str) -> RecordedWrite:
    """Record an append of a run."""
    request = write_request(run, candidate=candidate, work=name, partitions=partitions)
    return repository.record.put(repository.table_id(name), request)


def test_candidates_have_their_runs_tables_and_verdicts(repository: LanceRepository) -> None:
    """A candidate has everything that its runs wrote and nobody published, in each table."""
    first, second = recorded(repository, "a", "r1", "b1", "d1"), recorded(repository, "a", "r1", "b1", "d2")
    other, last = recorded(repository, "b", "r2", "b1"), recorded(repository, "a", "r3", "r3")
    repository.record.join("b1", "r4")
    table = repository.fork("a", "run/r1")
    head = table.append(rows(1), branch="run/r1")
    verdict = Verdict(check="rows", passed=True)
    repository.record.put_verdicts(first.table_id, head.id, [verdict])
    backfill, run = repository.candidates()
    assert (("b1", ("r1", "r2", "r4")), ("r3", ("r3",))) == ((backfill.id, backfill.runs), (run.id, run.runs))
    on_a, on_b = backfill.tables
    assert ("a", "run/r1", (first, second), head, {"rows": verdict}) == (
        on_a.table,
        on_a.branch,
        on_a.writes,
        on_a.head,
        on_a.verdicts,
    )
    assert ("b", (other,), None, {}) == (on_b.table, on_b.writes, on_b.head, on_b.verdicts)
    assert [(last,)] == [each.writes for each in run.tables]


def test_what_is_closed_does_not_wait(repository: LanceRepository) -> None:
    """A candidate of which everything is published or dropped is left out, and so is the part of another."""
    gone, left = recorded(repository, "a", "r1", "r1"), recorded(repository, "a", "r2", "r2")
    dropped, merged = recorded(repository, "b", "r2", "r2"), recorded(repository, "a", "r3", "r3")
    assert 3 == repository.status().candidates
    repository.publications.drop_writes([gone, dropped], merged=[merged], message="over")
    (candidate,) = repository.candidates()
    assert (("r2", (left,)), 1) == ((candidate.id, candidate.tables[0].writes), repository.status().candidates)
    assert "1 candidate recorded by runs" in str(repository.status())


def test_a_table_that_is_gone_is_shown(repository: LanceRepository, tmp_path: Path) -> None:
    """The record outlives the folder of a table; nothing is written to look at it."""
    recorded(repository, "a", "r1", "r1")
    (tmp_path / "a.lance").rename(tmp_path / "elsewhere")
    again = scripted(repository.root, Plug(0, lambda request: request.writes))
    ((table,),) = [each.tables for each in again.candidates()]
    assert ("a", "run/r1", None) == (table.table, table.branch, table.head)


def test_the_requests_do_not_grow_with_what_was_published(repository: LanceRepository) -> None:
    """Closed writes behind the oldest open one cost nothing, however many there are."""
    writes = [recorded(repository, "a", f"r{number}", f"r{number}") for number in range(40)]
    repository.publications.drop_writes(writes[:30], message="over")
    few = made_by(repository, LanceRepository.candidates)
    more = [recorded(repository, "b", f"s{number}", f"s{number}") for number in range(40)]
    repository.publications.drop_writes(more, message="over")
    # One listing of the other table, whose files are not read.
    assert few + 1 == made_by(repository, LanceRepository.candidates)
