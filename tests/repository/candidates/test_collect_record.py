"""The record of candidates is collected when nobody can publish, repeat or take back what they wrote."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from lance_dagster import ConflictError, LanceRepository
from lance_dagster.repository.candidates.closed_writes import ClosedWrites, WriteChanges
from lance_dagster.repository.candidates.collect_record import SettledWrites
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.commits.snapshot import TableVersion
from lance_dagster.repository.publish.commit_tables import CommitRequest, commit_tables
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.store import open_store
from lance_dagster.transactions.claims import ClaimMode
from lance_dagster.types import CommitRetention, RecordedWrite, Verdict
from tests.repository.scripted_repository import FAST, Plug, new_repository, rows, scripted
from tests.repository.write_requests import write_request_on
from tests.store.scripted import PlugPulledError

OLD = CommitRetention(promotions=1, keep_for=timedelta(0))
"""Everything that is a day old, while other processes are at work."""
DAYS = timedelta(days=2)
_MOST_STEPS = 100


@pytest.fixture
def repository(tmp_path: Path) -> LanceRepository:
    """A repository with an empty table `a`."""
    return new_repository(tmp_path, "a")


def again(repository: LanceRepository) -> LanceRepository:
    """The repository as another process sees it."""
    return LanceRepository.open(repository.root, FAST)


def written(repository: LanceRepository, run: str, mode: ClaimMode = "append", candidate: str = "") -> RecordedWrite:
    """Record a write of a run, commit its row to the branch of the run, and let a check pass on the version."""
    table = repository.fork("a", f"run/{run}")
    request = write_request_on(table, run, candidate=candidate or run, mode=mode)
    write = repository.record.put(repository.table_id("a"), request)
    version = table.append(rows(write.number), branch=f"run/{run}", properties={"lance/write": write.mark})
    verdict = Verdict(check="rows", passed=True)
    repository.record.put_verdicts(write.table_id, version.id, [verdict], write=write.number)
    return write


def published(repository: LanceRepository, run: str, mode: ClaimMode = "append", candidate: str = "") -> RecordedWrite:
    """Write and publish; the branch of the run is deleted."""
    write = written(repository, run, mode, candidate)
    repository.publish(f"run/{run}", channel="production")
    repository.publications.drop_writes([], merged=[write], message="published")
    repository.channels.promote("production", "main", reason="published")
    return write


def age(repository: LanceRepository) -> None:
    """Make all files of the repository two days older."""
    for path in Path(repository.root, "_repository").rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - DAYS.total_seconds(),) * 2)


def left(repository: LanceRepository) -> list[str]:
    """The files of the record, by candidate and by folder of the others."""
    root = Path(repository.root, "_repository")
    found = [path.relative_to(root) for name in ("writes", "candidates", "audits") for path in (root / name).rglob("*")]
    return sorted(f"{path.parts[0]} {path.parts[1]} {path.name}" for path in found if (root / path).is_file())


def collected(repository: LanceRepository) -> tuple[int, int, int]:
    """Collect what is a day old; return the numbers of candidates, writes and audited versions."""
    done = again(repository).maintenance.collect(OLD, dry_run=False)
    return done.candidates, done.writes, done.audits


def test_old_candidates_go_and_leave_a_file(repository: LanceRepository) -> None:
    """A candidate whose appends are published leaves one empty file; the newest write of the table stays."""
    published(repository, "r1")
    last = published(repository, "r2")
    repository.record.join("r1", "r1-again")
    age(repository)
    expected = (1, 1, 1)
    dry = again(repository).maintenance.collect(OLD)
    assert (expected, expected) == ((dry.candidates, dry.writes, dry.audits), collected(repository))
    names = left(repository)
    assert ["candidates r1 ~collected", f"candidates r2 {last.mark}"] == [
        name for name in names if name.startswith("candidates")
    ]
    assert (2, 2) == (len([n for n in names if not n.startswith("candidates")]), repository.table("a").count_rows())
    assert (0, 0, 0) == collected(repository)
    assert 3 == published(repository, "r3").number


def test_only_published_appends_leave_a_file(repository: LanceRepository) -> None:
    """Nothing stays of a candidate whose rows were dropped, or replace others."""
    dropped = written(repository, "r1")
    repository.table("a").branches.delete("run/r1")
    repository.publications.drop_writes([dropped], message="discard")
    published(repository, "r2", "overwrite")
    published(repository, "r3")
    age(repository)
    assert (2, 2, 2) == collected(repository)
    assert {"r3"} == {name.split()[1] for name in left(repository) if name.startswith("candidates")}


def test_a_late_append_is_refused(repository: LanceRepository) -> None:
    """A repetition of a collected candidate is not published twice; one that replaces rows is published."""
    published(repository, "r1")
    published(repository, "r2")
    age(repository)
    collected(repository)
    other = again(repository)
    late = written(other, "r9", candidate="r1")
    with pytest.raises(ConflictError, match="was collected"):
        other.publications.drop_writes([], merged=[late], message="published")
    assert other.record.candidate("r1").is_collected
    replacing = written(other, "r10", "overwrite", candidate="r1")
    assert (
        replacing.number
        in other.publications.drop_writes([], merged=[replacing], message="p").writes[late.table_id].published
    )


def waits(repository: LanceRepository) -> None:
    """A write of the candidate waits."""
    written(repository, "r1b", candidate="r1")


def has_a_branch(repository: LanceRepository) -> None:
    """A branch with the rows is left."""
    table = repository.table("a")
    table.branches.create("run/r1")


def is_named_open(repository: LanceRepository) -> None:
    """A channel names a commit from before the publication."""
    repository.channels.create("staging", "main~2", reason="older")


def is_young(repository: LanceRepository) -> None:
    """A run joined the candidate just now."""
    age(repository)
    repository.record.join("r1", "r1-again")


@pytest.mark.parametrize("prepare", [waits, has_a_branch, is_named_open, is_young])
def test_what_somebody_may_need_stays(repository: LanceRepository, prepare: Callable[[LanceRepository], None]) -> None:
    """A candidate is collected as a whole, when nothing of it can be published, repeated or taken back."""
    published(repository, "r1")
    if prepare is not is_young:
        prepare(repository)
    published(repository, "r2")
    if prepare is not is_young:
        age(repository)
    else:
        prepare(repository)
    before = left(repository)
    assert (0, 0, 0) == collected(repository)
    assert before == left(repository)


def test_a_release_tag_keeps_no_record(repository: LanceRepository) -> None:
    """A commit that is kept for ever by its tag alone does not keep the record of what was published since."""
    repository.tags.create("v1", "main")
    published(repository, "r1")
    published(repository, "r2")
    age(repository)
    assert (1, 1, 1) == collected(repository)


def test_a_withdrawn_append_that_may_come_back_leaves_a_file(repository: LanceRepository) -> None:
    """While a commit has the rows, a revert may bring them back, so the repetition of their append stays refused."""
    write = published(repository, "r1")
    repository.tags.create("v1", "main")
    withdrawn = WriteChanges(withdraw={write.table_id: NumberSet.of([1])})
    context = RepositoryContext.on(open_store(repository.root, FAST), FAST)
    commit_tables(context.logs, CommitRequest(branch="main", stage=nothing, names=(), message="back", writes=withdrawn))
    repository.channels.promote("production", "main", reason="back")
    published(repository, "r2")
    age(repository)
    assert (1, 1, 1) == collected(repository)
    assert again(repository).record.candidate("r1").is_collected


def nothing(_: str, dest: TableVersion | None) -> TableVersion | None:
    """Leave a table as it is."""
    return dest


def test_closed_is_what_all_named_commits_have_closed() -> None:
    """One commit that has a write open, or does not know its table, keeps it."""
    settled = SettledWrites()
    settled.add({"t": ClosedWrites(NumberSet.of([1, 2])), "u": ClosedWrites(NumberSet.of([1]))}, is_named=True)
    settled.add({"t": ClosedWrites(NumberSet.of([1]), NumberSet.of([3]))}, is_named=True)
    settled.add({}, is_named=False)
    assert {"t": NumberSet.of([1])} == settled.closed


def test_a_write_without_a_mark_goes(repository: LanceRepository) -> None:
    """A process that died before it marked the write as one of its candidate committed no rows of it."""
    write = written(repository, "r1")
    repository.table("a").branches.delete("run/r1")
    repository.publications.drop_writes([write], message="gone")
    published(repository, "r2")
    Path(repository.root, "_repository", "candidates", "r1", write.mark).unlink()
    age(repository)
    assert (0, 1, 1) == collected(repository)


def test_a_collection_that_dies_is_completed(repository: LanceRepository, tmp_path: Path) -> None:
    """After a crash at any request, a late append is refused or still known, and the next collection does the rest."""
    for run in ("r1", "r2", "r3"):
        published(repository, run)
    age(repository)
    root = tmp_path / "_repository"
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for step in range(_MOST_STEPS):
        for path in [path for path in root.rglob("*") if path.is_file()]:
            path.unlink()
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        age(repository)
        plug = Plug(step, lambda request: request.writes)
        with suppress(PlugPulledError):
            scripted(repository.root, plug).maintenance.collect(OLD, dry_run=False)
        record = again(repository).record.candidate("r1")
        assert record.is_collected or [1] == [write.number for write in record.writes]
        collected(repository)
        assert again(repository).record.candidate("r1").is_collected
        assert 1 == len([name for name in left(repository) if name.startswith("candidates r1 ")])
        if not plug.pulled:
            return
    pytest.fail("the collection never ended")
