"""What runs wrote before the record was kept is recorded without a commit, or left alone with the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceRepository, LanceTable, RefNotFoundError
from lance_dagster.repository.candidates.closed_writes import NONE_CLOSED, WriteChanges
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.writes import WRITE_MARK, RecordedWrite, WriteRequest
from tests.process_race import race
from tests.repository.scripted_repository import FAST, new_repository, rows
from tests.repository.write_requests import write_request, write_request_on


def forked(table: LanceTable, run: str, *, root: str = "", parent: str = "main", **metadata: str) -> str:
    """Make the branch of a run, as the release before did."""
    about = {"dagster/run_id": run, "dagster/root_run_id": root or run, "dagster/job": "daily", **metadata}
    table.branches.create(f"run/{run}", at=parent, metadata=about)
    return f"run/{run}"


def about(run: str, *partitions: str, **properties: str) -> dict[str, str]:
    """The properties of a commit with rows, as the release before wrote them."""
    keys = {"dagster/partition_keys": json.dumps(partitions)} if partitions else {}
    own = {"dagster/asset_key": "a", "dagster/run_id": run, "dagster/step_key": "a", "dagster/output": "result"}
    return {**own, **keys, **properties}


def appended(table: LanceTable, run: str, number: int, *partitions: str, **metadata: str) -> str:
    """Make a branch of a run that appended a row."""
    branch = forked(table, run, **metadata)
    table.append(rows(number), branch=branch, properties=about(run, *partitions), partitions=partitions)
    return branch


def overwritten(table: LanceTable, run: str, number: int) -> str:
    """Make a branch of a run that replaced all rows."""
    branch = forked(table, run)
    table.overwrite(rows(number), branch=branch, properties=about(run))
    return branch


def waiting(repository: LanceRepository, name: str = "a") -> list[RecordedWrite]:
    """The recorded writes of a table that wait, oldest first, as another process sees them."""
    table_id = repository.table_id(name)
    closed = repository.head().writes.get(table_id, NONE_CLOSED)
    return LanceRepository.open(repository.root, FAST).record.open_writes(table_id, closed)


def files(repository: LanceRepository) -> list[str]:
    """The files of the record, and of all tables."""
    return sorted(str(path) for path in Path(repository.root).rglob("*") if path.is_file())


def record_all(root: str, _: int) -> int:
    """Record all branches, as one of several processes."""
    return len(LanceRepository.open(root, FAST).maintenance.record_branches(dry_run=False).recorded)


@pytest.fixture
def repository(tmp_path: Path) -> LanceRepository:
    """A repository with an empty table `a`."""
    return new_repository(tmp_path, "a")


def test_rows_without_a_mark_are_recorded(repository: LanceRepository) -> None:
    """The write has what its run would have recorded, and the branch still ends with the audited version."""
    table = repository.table("a")
    branch = appended(table, "r1", 1, "d1", "d2", **{"dagster/backfill": "b1"})
    before = table.head(branch)
    done = repository.maintenance.record_branches(dry_run=False)
    expected = WriteRequest(
        candidate="b1",
        run_id="r1",
        origin="r1",
        branch="run/r1",
        branch_id=table.branches.get("run/r1").id,
        base=before.number - 1,
        work='["a", "result", ""]',
        partitions=("d1", "d2"),
        mode="append",
        step="a",
    )
    (write,) = waiting(repository)
    assert (expected, before.id) == (write.request, write.commit_id)
    assert (("run/r1", (expected,)), ()) == ((done.recorded[0].branch, done.recorded[0].writes), done.left)
    assert before == table.head(branch)
    assert write.mark == repository.record.mark_of(write.table_id, before.id)
    assert [write] == repository.record.of_candidate("b1")


def test_a_second_call_records_nothing(repository: LanceRepository) -> None:
    """What is recorded is skipped, also after the write was dropped; new commits of the branch are recorded."""
    table = repository.table("a")
    branch = appended(table, "r1", 1, "d1")
    repository.maintenance.record_branches(dry_run=False)
    assert ((), ()) == (
        repository.maintenance.record_branches().recorded,
        repository.maintenance.record_branches(dry_run=False).recorded,
    )
    repository.publications.drop_writes(waiting(repository), message="discard")
    assert () == repository.maintenance.record_branches(dry_run=False).recorded
    table.append(rows(2), branch=branch, properties=about("r1", "d2"), partitions=["d2"])
    (again,) = repository.maintenance.record_branches(dry_run=False).recorded
    assert [("d2",)] == [request.partitions for request in again.writes]


def test_a_dry_run_writes_nothing(repository: LanceRepository) -> None:
    """The default names the same branches and writes no file."""
    appended(repository.table("a"), "r1", 1)
    before = files(repository)
    found = repository.maintenance.record_branches()
    assert before == files(repository)
    assert (True, ["run/r1"]) == (found.dry_run, [each.branch for each in found.recorded])
    assert found.recorded == repository.maintenance.record_branches(dry_run=False).recorded


def test_racing_processes_record_each_commit_once(repository: LanceRepository) -> None:
    """Each commit belongs to one open write, whichever processes record at the same moment."""
    for run in range(5):
        appended(repository.table("a"), f"r{run}", run)
    race(record_all, [(repository.root, number) for number in range(4)])
    assert [f"run/r{run}" for run in range(5)] == sorted(write.request.branch for write in waiting(repository))


def test_a_call_that_died_is_completed(repository: LanceRepository) -> None:
    """A write that was put before its commit was claimed gets the commit, and no second write is made."""
    branch = appended(repository.table("a"), "r1", 1)
    request = repository.maintenance.record_branches().recorded[0].writes[0]
    table_id = repository.table_id("a")
    first = repository.record.put(table_id, request, repository.table("a").head(branch).id)
    assert () == repository.maintenance.record_branches(dry_run=False).recorded
    assert [first] == waiting(repository)
    assert first.mark == repository.record.mark_of(table_id, first.commit_id)


def test_numbers_follow_the_commits(repository: LanceRepository) -> None:
    """The order of the numbers is that of the commits, and not of the names of the branches."""
    for run in ("r2", "r9", "r1"):
        overwritten(repository.table("a"), run, 1)
    repository.maintenance.record_branches(dry_run=False)
    assert ["run/r2", "run/r9", "run/r1"] == [write.request.branch for write in waiting(repository)]


def test_an_attempt_replaces_the_one_before(repository: LanceRepository) -> None:
    """A re-execution that continues a run, and repeated its step, replaces its write; both have one origin."""
    table = repository.table("a")
    first = appended(table, "r1", 1, "d1")
    second = forked(table, "r2", root="r1", parent=first)
    # The release before took the rows back and appended them again.
    table.restore("main", branch=second, properties={"dagster/run_id": "r2", "dagster/step_key": "a"})
    table.append(rows(1), branch=second, properties=about("r2", "d1"), partitions=["d1"])
    table.append(rows(2), branch=second, properties=about("r2", "d2"), partitions=["d2"])
    repository.maintenance.record_branches(dry_run=False)
    writes = [(write.request.run_id, write.request.origin, write.request.replaces) for write in waiting(repository)]
    assert [("r1", "r1", ()), ("r2", "r1", (1,)), ("r2", "r1", ())] == writes
    assert ["run/r1", "run/r2", "run/r2"] == [write.request.branch for write in waiting(repository)]
    assert {"r1"} == {write.request.candidate for write in waiting(repository)}


def test_the_mode_comes_from_the_claims(repository: LanceRepository) -> None:
    """Each kind of write is recorded as what it was."""
    table = repository.table("a")
    branch = forked(table, "r1")
    asset = "dagster/asset_key"
    table.append(rows(1), branch=branch, properties=about("r1") | {asset: "a"})
    table.overwrite(rows(1), branch=branch, properties=about("r1") | {asset: "b"})
    table.replace_where("id = 1", rows(1), branch=branch, properties=about("r1") | {asset: "c"})
    table.upsert(rows(1), on=["id"], branch=branch, properties=about("r1") | {asset: "d"})
    (found,) = repository.maintenance.record_branches().recorded
    assert ["append", "overwrite", "replace", "upsert"] == [request.mode for request in found.writes]


def test_published_rows_and_marked_rows_are_skipped(repository: LanceRepository) -> None:
    """A branch that main contains, one without commits, and one whose run recorded its writes need nothing."""
    table = repository.table("a")
    table.merge(appended(table, "r1", 1))
    forked(table, "r2")
    marked = forked(table, "r3")
    mark = repository.record.put(repository.table_id("a"), write_request_on(table, "r3")).mark
    table.append(rows(3), branch=marked, properties=about("r3") | {WRITE_MARK: mark})
    assert ((), ()) == (
        repository.maintenance.record_branches().recorded,
        repository.maintenance.record_branches().left,
    )


def test_tables_that_are_not_registered_are_looked_at(repository: LanceRepository) -> None:
    """A table below the root is registered when a write is recorded; one that was removed is left out."""
    for name in ("lines", "removed"):
        table = LanceTable.create(f"{repository.root}/{name}.lance", rows().schema, storage_options=FAST)
        appended(table, "r1", 1)
    repository.table_id("removed")
    repository.remove_table("removed")
    assert (["lines"], ["a"]) == (
        [each.table for each in repository.maintenance.record_branches().recorded],
        repository.tables(),
    )
    repository.maintenance.record_branches(dry_run=False)
    assert (["a", "lines"], 1) == (repository.tables(), len(waiting(repository, "lines")))


def test_a_copy_of_a_table_is_left_alone(repository: LanceRepository) -> None:
    """A folder that was copied has the identity of the other table, and its branches are listed with that reason."""
    appended(repository.table("a"), "r1", 1)
    shutil.copytree(f"{repository.root}/a.lance", f"{repository.root}/copy.lance")
    done = repository.maintenance.record_branches(dry_run=False)
    assert (["a"], ["copy"]) == ([each.table for each in done.recorded], [each.table for each in done.left])
    assert "was copied or moved" in done.left[0].reason


def test_chosen_runs_alone_are_recorded(repository: LanceRepository) -> None:
    """Other runs wait for the next call; an unknown run is an error with the names that are near."""
    for run in ("r1", "r2"):
        appended(repository.table("a"), run, 1, run)
    assert ["run/r2"] == [
        each.branch for each in repository.maintenance.record_branches(["r2"], dry_run=False).recorded
    ]
    assert ["run/r1"] == [each.branch for each in repository.maintenance.record_branches(dry_run=False).recorded]
    with pytest.raises(RefNotFoundError, match="run/r1"):
        repository.maintenance.record_branches(["r3"])


def without_run_id(table: LanceTable) -> None:
    """A branch that a person named after a run."""
    table.branches.create("run/r1")
    table.append(rows(1), branch="run/r1", properties=about("r1"))


def of_another_run(table: LanceTable) -> None:
    """A branch that was renamed."""
    table.branches.rename(appended(table, "r0", 1), "run/r1")


def with_a_foreign_commit(table: LanceTable) -> None:
    """A branch on top of which another program committed."""
    table.append(rows(2), branch=appended(table, "r1", 1))


def on_another_branch(table: LanceTable) -> None:
    """A branch that was forked from a branch of a person."""
    table.branches.create("feature")
    table.append(rows(2), branch="feature")
    appended(table, "r1", 1, parent="feature")


def without_rows(table: LanceTable) -> None:
    """A branch whose run died before it wrote rows."""
    table.config.set({"dagster/asset": "a"}, branch=forked(table, "r1"), properties={"dagster/run_id": "r1"})


def without_a_mode(table: LanceTable) -> None:
    """A commit that names an asset, and no rows that it claims."""
    branch = forked(table, "r1")
    table.append(rows(1), branch=branch, properties={"dagster/run_id": "r1"})
    table.delete("id = 1", branch=branch, properties=about("r1"))


def with_damaged_partitions(table: LanceTable) -> None:
    """A commit whose partitions another program wrote."""
    appended(table, "r0", 1)
    branch = forked(table, "r1")
    table.append(rows(1), branch=branch, properties=about("r1") | {"dagster/partition_keys": "d1"})


def of_a_backfill(table: LanceTable) -> None:
    """An append to a table without partitions by one of the runs of a backfill."""
    appended(table, "r1", 1, **{"dagster/backfill": "b1"})


@pytest.mark.parametrize(
    "prepare,reason",
    [
        (without_run_id, "does not say that run r1 made it"),
        (of_another_run, "does not say that run r1 made it"),
        (with_a_foreign_commit, "run/r1@3 was not committed by the run of its branch"),
        (on_another_branch, "it was forked from feature"),
        (without_rows, "no commit of it has the rows of an output"),
        (without_a_mode, "does not say whether it appended"),
        (with_damaged_partitions, "does not have a list of partitions"),
        (of_a_backfill, "does not say for which partition: execute the run again"),
    ],
)
def test_what_is_unclear_is_left_alone(
    repository: LanceRepository, prepare: Callable[[LanceTable], None], reason: str
) -> None:
    """A branch that does not say enough is listed with the reason, and nothing is written for it."""
    prepare(repository.table("a"))
    (left,) = [each for each in repository.maintenance.record_branches(dry_run=False).left if each.branch == "run/r1"]
    assert reason in left.reason
    assert [] == [write for write in waiting(repository) if write.request.branch == "run/r1"]


def test_older_rows_do_not_supersede_recorded_ones(repository: LanceRepository) -> None:
    """A write of the same rows that is recorded already keeps an older branch from getting a larger number."""
    table = repository.table("a")
    overwritten(table, "r1", 1)
    newer = repository.record.put(repository.table_id("a"), write_request("r2", mode="overwrite"))
    (left,) = repository.maintenance.record_branches(dry_run=False).left
    assert "write 1 of run/r2 (overwrite), of the same rows, is recorded already" in left.reason
    repository.publications.drop_writes([newer], message="discard")
    assert ["run/r1"] == [each.branch for each in repository.maintenance.record_branches(dry_run=False).recorded]


def test_an_older_run_is_not_recorded_behind_a_newer_one(repository: LanceRepository) -> None:
    """Runs that were recorded one by one keep the order of their commits."""
    for run in ("r1", "r2", "r3"):
        overwritten(repository.table("a"), run, 1)
    repository.maintenance.record_branches(["r2"], dry_run=False)
    done = repository.maintenance.record_branches(dry_run=False)
    assert (["run/r3"], ["run/r1"]) == ([each.branch for each in done.recorded], [each.branch for each in done.left])


def test_the_rows_are_published_once(repository: LanceRepository) -> None:
    """A recorded append and a later one of the same work exclude each other, as if both runs had recorded theirs."""
    table = repository.table("a")
    appended(table, "r1", 1)
    repository.maintenance.record_branches(dry_run=False)
    (first,) = waiting(repository)
    again = write_request("r2", candidate="r1", work=first.request.work)
    second = repository.record.put(first.table_id, again)
    after = WriteChanges(publish=(first,), related=repository.record.candidate).apply({})
    closed = after[first.table_id]
    assert (NumberSet.of([first.number]), NumberSet.of([second.number])) == (closed.published, closed.dropped)
