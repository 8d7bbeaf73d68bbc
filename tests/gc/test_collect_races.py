"""Other writers act at any moment during a collection, and nothing that was acknowledged to them is lost."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.cli.maintenance_commands import garbage_lines
from lance_dagster.errors import LanceDagsterError, RefNotFoundError
from lance_dagster.store import open_store
from tests.backdating import DAY, age, files
from tests.process_race import race
from tests.soak import DEEP
from tests.store.scripted import PlugPulledError, Request, ScriptedStore, answer_lost_at_write, plug_pulled_before_write
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, context_of, context_on, entries, new_table

pytestmark = pytest.mark.scaled

WEEK = 7 * DAY
Act = Callable[[LanceTable], tuple[str, Rows]]
"""An operation on a table; it returns a ref and the rows that the ref must have from then on."""
OLD = [("a", 2)]
RUN = [("a", 5), ("r", 1), ("r", 2)]


def made(folder: Path) -> LanceTable:
    """A table with expired versions, a merged and an unmerged branch, and unreferenced files, all of them old."""
    table = LanceTable.create(folder / uuid.uuid4().hex, SCHEMA, storage_options={"durability": "process"})
    table.append(entries("a", 2))
    for number in range(3, 6):
        table.overwrite(entries("a", number))
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    table.append(entries("r", 2), branch="run")
    table.branches.create("merged")
    table.append(entries("m", 1), branch="merged")
    table.overwrite(entries("m", 2), branch="merged")
    table.merge("merged")
    table.stage(entries("s", 1))
    age(table, 30 * DAY)
    return table


def appended(table: LanceTable) -> tuple[str, Rows]:
    """Append rows to main."""
    table.append(entries("n", 1))
    return "main", [("m", 2), ("n", 1)]


def tagged(table: LanceTable) -> tuple[str, Rows]:
    """Tag a version that is about to expire."""
    table.tags.create("late", "main@2")
    return "late", OLD


def tagged_by_pylance(table: LanceTable) -> tuple[str, Rows]:
    """Tag the version with pylance."""
    as_pylance(table).tags.create("late", 2)
    return "late", OLD


def forked(table: LanceTable) -> tuple[str, Rows]:
    """Fork a branch from a version that is about to expire, and append rows."""
    table.branches.create("late", "main@2")
    table.append(entries("l", 1), branch="late")
    return "late", [*OLD, ("l", 1)]


def forked_by_pylance(table: LanceTable) -> tuple[str, Rows]:
    """Fork the branch with pylance."""
    as_pylance(table).create_branch("late", 2)
    return "late", OLD


def restored(table: LanceTable) -> tuple[str, Rows]:
    """Restore a version that is about to expire."""
    lance.dataset(table.uri, version=2).restore()
    return "main", OLD


def merged(table: LanceTable) -> tuple[str, Rows]:
    """Merge a branch into another."""
    # Main was replaced by the rows of another branch, so this one needs a strategy.
    table.merge("run", into="merged", strategy="source-wins")
    return "merged", contents(table, "merged")


def run_again(table: LanceTable) -> tuple[str, Rows]:
    """Delete a branch and create it again."""
    table.branches.delete("run")
    table.branches.create("run", "main")
    table.append(entries("r", 9), branch="run")
    return "run", [("m", 2), ("r", 9)]


def deleted(table: LanceTable) -> tuple[str, Rows]:
    """Delete rows."""
    table.append(entries("x", 1, 2))
    table.delete("value = 1")
    return "main", [("m", 2), ("x", 2)]


def overwritten(table: LanceTable) -> tuple[str, Rows]:
    """Overwrite the rows of a branch with pylance."""
    lance.write_dataset(entries("o", 1), as_pylance(table, "run"), mode="overwrite")
    return "run", [("o", 1)]


def collected(table: LanceTable) -> tuple[str, Rows]:
    """Collect garbage concurrently."""
    table.maintenance.collect_garbage(WEEK, dry_run=False)
    return "run", RUN


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        appended,
        tagged,
        tagged_by_pylance,
        forked,
        forked_by_pylance,
        restored,
        merged,
        run_again,
        deleted,
        overwritten,
        collected,
    )
}


MOMENTS: dict[str, Callable[[list[Request]], bool]] = {
    "before names are read": lambda past: len(past) == 2,
    "before everything is listed": lambda past: past[-1].verb == "walk",
    "while versions are read": lambda past: (
        past[-1].verb == "get" and "walk" in [request.verb for request in past[:-3]]
    ),
    "before copies are listed": lambda past: (past[-1].verb, past[-1].key) == ("walk", "_expired"),
    "before the first copy": lambda past: past[-1].verb == "put",
    "before manifests are deleted": lambda past: past[-1].verb == "delete_many",
    "after manifests were deleted": lambda past: "delete_many" in [request.verb for request in past[:-1]],
    "before files are deleted": lambda past: [request.verb for request in past].count("delete_many") == 2,
}
"""The moments of the operations, as predicates of the requests up to the one that is about to be sent."""


def held(table: LanceTable, expected: dict[str, Rows]) -> None:
    """Assert that each ref has its rows, read with pylance."""
    fresh = LanceTable.open(table.uri)
    assert expected == {ref: contents(fresh, ref) for ref in expected}


def acting(table: LanceTable, moment: Callable[[list[Request]], bool], act: Callable[[], None]) -> LanceTable:
    """The table, through a store that calls `act` at a given moment."""
    past: list[Request] = []
    waiting = [act]

    def script(request: Request) -> object:
        past.append(request)
        if waiting and moment(past):
            waiting.pop()()
        return request.send()

    return LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ACTS)
def test_whatever_is_done_at_whatever_moment_is_not_lost(name: str, moment: str, tmp_path: Path) -> None:
    """The rows are there after this collection, the next one, and the one that deletes files of expired versions."""
    table = made(tmp_path)
    expected = {"main": [("m", 2)], "run": RUN, "merged": [("m", 2)]}
    done = False

    def act() -> None:
        nonlocal done
        done = True
        try:
            ref, rows = ACTS[name](LanceTable.open(table.uri))
        except (LanceDagsterError, ValueError, OSError, RuntimeError) as error:
            # The version had expired already, and the error says so.
            assert any(said in str(error).lower() for said in ("has no version 2", "not found")), error  # noqa: PT017
        else:
            expected[ref] = rows

    assert acting(table, MOMENTS[moment], act).maintenance.collect_garbage(WEEK, dry_run=False).done
    assert done
    held(table, expected)
    age(table, 2 * DAY, "_expired")
    assert LanceTable.open(table.uri).maintenance.collect_garbage(WEEK, dry_run=False).done
    held(table, expected)
    check = LanceTable.open(table.uri).maintenance.verify(deep=DEEP)
    assert [] == [str(problem) for problem in check.problems if problem.severity == "error"]


def test_a_branch_that_is_deleted_and_collected_while_it_is_merged_is_merged_whole(tmp_path: Path) -> None:
    """The versions of the deleted branch wait for deletion like expired ones."""
    table = made(tmp_path)
    waiting = [True]

    def script(request: Request) -> object:
        if request.commits and waiting:
            waiting.pop()
            other = LanceTable.open(table.uri)
            other.branches.delete("run")
            assert other.maintenance.collect_garbage(WEEK, dry_run=False).done
            assert other.maintenance.collect_garbage(WEEK, dry_run=False).done
        return request.send()

    merging = LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))
    merging.merge("run", into="merged", strategy="source-wins")
    held(table, {"merged": contents(merging, "merged"), "main": [("m", 2)]})
    assert {("r", 1), ("r", 2)} <= set(contents(table, "merged"))
    assert table.maintenance.verify(deep=True).ok


def test_a_merge_that_is_repeated_long_after_it_died_keeps_what_it_copied_then(tmp_path: Path) -> None:
    """Its first attempt copied a file of pylance; a collection beside the second one finds an old copy."""
    table = made(tmp_path)
    as_pylance(table, "run").insert(entries("p", 1))

    def dying(request: Request) -> object:
        if request.commits:
            raise PlugPulledError
        return request.send()

    def collecting(request: Request) -> object:
        if request.commits:
            assert LanceTable.open(table.uri).maintenance.collect_garbage(WEEK, dry_run=False).done
        return request.send()

    store = open_store(table.uri)
    with pytest.raises(PlugPulledError):
        LanceTable(context_on(ScriptedStore(store, dying))).merge("run", into="merged", strategy="source-wins")
    age(table, 30 * DAY)
    merging = LanceTable(context_on(ScriptedStore(store, collecting)))
    merging.merge("run", into="merged", strategy="source-wins")
    assert ("p", 1) in contents(LanceTable.open(table.uri), "merged")
    assert table.maintenance.verify(deep=True).ok


def test_a_version_that_is_named_while_nobody_should_be_at_work_stops_the_deleting(tmp_path: Path) -> None:
    """With a grace period of zero, the report separates what expired from what is left, and the next run does that."""
    table = made(tmp_path)

    def act() -> None:
        tagged(table)

    late = acting(table, MOMENTS["before manifests are deleted"], act)
    before = files(table, "data")
    report = late.maintenance.collect_garbage(WEEK, grace=timedelta(0), dry_run=False)
    assert (False, True, True) == (report.done, report.expiry_done, report.ok)
    assert (("main@2",), ("needed again",)) == (report.put_back, report.kept["main@2"])
    assert (1, 3, 4) == report.expired["main"]
    assert [2, 5, 6] == table.branches.version_numbers()
    assert before == files(table, "data")
    lines = list(garbage_lines(report))
    assert {"expired: main@1, main@3 to main@4", "needed again: main@2", "would delete:"} <= set(lines)
    (line,) = [line for line in lines if line.startswith(f"{report.versions} versions expired; {report.files} files (")]
    assert line.endswith("are left to the next run, because another process is writing")
    again = LanceTable.open(table.uri).maintenance.collect_garbage(WEEK, grace=timedelta(0), dry_run=False)
    assert (True, True, {}) == (again.done, again.expiry_done, again.expired)
    # The next run deletes what the first report listed, and the copies of expired versions.
    assert set(report.paths) == {path for path in again.paths if not path.startswith("_expired")}
    held(table, {"main": [("m", 2)], "late": OLD, "run": RUN})
    assert table.maintenance.verify(deep=True).ok


def settled(folder: Path) -> LanceTable:
    """A table whose branch `run` was deleted so long ago that the next collection deletes its files."""
    table = LanceTable.create(folder / uuid.uuid4().hex, SCHEMA, storage_options={"durability": "process"})
    table.append(entries("a", 1, 2))
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    table.delete("value = 2", branch="run")
    table.branches.delete("run")
    age(table, 30 * DAY)
    return table


def test_a_branch_that_is_recovered_beside_a_collection_keeps_its_files(tmp_path: Path) -> None:
    """At each request of the collection, the recovery is refused or the branch can be read from then on."""
    recovered, refused = 0, 0
    for step in range(200):
        table, outcome = settled(tmp_path), list[str]()

        def act(table: LanceTable = table, outcome: list[str] = outcome) -> None:
            try:
                outcome.append(LanceTable.open(table.uri).branches.recover("run").name)
            except RefNotFoundError as error:
                outcome.append(str(error))

        collector = acting(table, lambda past, step=step: len(past) == step + 1, act)  # type: ignore[misc]
        report = collector.maintenance.collect_garbage(WEEK, dry_run=False)
        if not outcome:
            break
        back = outcome == ["run"]
        recovered, refused = recovered + back, refused + (not back)
        assert report.done or back
        for _ in range(2):
            held(table, {"run": [("a", 1), ("r", 1)]} if back else {"main": [("a", 1), ("a", 2)]})
            assert table.maintenance.verify().ok
            assert LanceTable.open(table.uri).maintenance.collect_garbage(WEEK, dry_run=False).done
    assert recovered > 5
    assert refused > 2


@pytest.mark.parametrize("grace", [None, timedelta(0)], ids=["settling", "at once"])
def test_no_copy_outlives_the_files_that_it_names(grace: timedelta | None, tmp_path: Path) -> None:
    """A collection that dies leaves nothing from which an unreadable branch could be recovered."""
    for step in range(100):
        table = settled(tmp_path)
        dying = LanceTable(context_on(ScriptedStore(open_store(table.uri), plug_pulled_before_write(step))))
        try:
            dying.maintenance.collect_garbage(WEEK, grace=grace, dry_run=False)
        except PlugPulledError:
            again = LanceTable.open(table.uri)
            try:
                again.branches.recover("run")
            except RefNotFoundError:
                continue
            held(again, {"run": [("a", 1), ("r", 1)]})
        else:
            break
    assert step > 2


def test_a_collection_can_die_before_any_write(tmp_path: Path) -> None:
    """The table has the same rows, and the next collection completes the work."""
    for step in range(100):
        table = made(tmp_path)
        expected = {ref: contents(table, ref) for ref in ("main", "run", "merged")}
        grace = timedelta(0) if step % 2 else None
        dying = LanceTable(context_on(ScriptedStore(open_store(table.uri), plug_pulled_before_write(step))))
        try:
            dying.maintenance.collect_garbage(WEEK, dry_run=False, grace=grace)
        except PlugPulledError:
            held(table, expected)
        else:
            break
        again = LanceTable.open(table.uri)
        assert again.maintenance.collect_garbage(WEEK, dry_run=False, grace=grace).done
        held(table, expected)
        age(table, 30 * DAY)
        again.maintenance.collect_garbage(WEEK, dry_run=False)
        held(table, expected)
        assert 0 == again.maintenance.collect_garbage(WEEK).files
        assert again.maintenance.verify(deep=DEEP).ok
    assert step > 5


def test_a_collection_survives_lost_answers(tmp_path: Path) -> None:
    """It is unknown whether a write landed; all rows can still be read."""
    for step in range(100):
        table = made(tmp_path)
        expected = {ref: contents(table, ref) for ref in ("main", "run", "merged")}
        losing = LanceTable(context_on(ScriptedStore(open_store(table.uri), answer_lost_at_write(step))))
        try:
            losing.maintenance.collect_garbage(WEEK, dry_run=False)
        except LanceDagsterError:
            held(table, expected)
        else:
            break
        assert LanceTable.open(table.uri).maintenance.collect_garbage(WEEK, dry_run=False).done
        held(table, expected)
    assert step > 5


def append(uri: str, writer: int) -> list[int]:
    """Append rows, and create, merge and delete branches, a few times."""
    table = LanceTable.open(uri)
    values = [100 * writer + number for number in range(5)]
    for value in values:
        table.append(entries("o", value))
        table.branches.create(f"b{value}", "main")
        table.append(entries("b", value), branch=f"b{value}")
        table.merge(f"b{value}")
        table.branches.delete(f"b{value}")
    return values


def collect(uri: str, writer: int) -> list[int]:
    """Collect repeatedly, with versions that expire at once."""
    del writer
    for _ in range(6):
        LanceTable.open(uri).maintenance.collect_garbage(timedelta(0), dry_run=False)
    return []


def work(uri: str, writer: int) -> list[int]:
    """Run one of the processes."""
    return collect(uri, writer) if writer < 2 else append(uri, writer)


def test_two_collectors_and_two_writers_at_once(tmp_path: Path) -> None:
    """All acknowledged rows are in the table."""
    table = new_table(tmp_path, entries("a", 1))
    found = race(work, [(table.uri, writer) for writer in range(4)])
    values = sorted(value for values in found for value in values)
    assert [("a", 1), *(("b", value) for value in values), *(("o", value) for value in values)] == contents(table)
    held(table, {})


@pytest.mark.parametrize("unlisted", ["main", "run"])
def test_a_head_that_the_inventory_does_not_show_keeps_its_files(unlisted: str, tmp_path: Path) -> None:
    """The listing of all files lags behind, or the version was committed after it with files that are old."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    for branch in ("main", "run"):
        table.append(entries("b", 2), branch=branch)
    age(table, 30 * DAY)
    state = context_of(table).head(unlisted)
    newest = state.path.removeprefix(f"{table.uri}/")

    def script(request: Request) -> object:
        found = request.send()
        return [entry for entry in found if entry.key != newest] if request.verb == "walk" else found

    lagging = LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))
    report = lagging.maintenance.collect_garbage(timedelta(0), grace=timedelta(0), dry_run=False)
    assert report.ok
    assert [("a", 1), ("b", 2)] == contents(table, "main") == contents(table, "run")
