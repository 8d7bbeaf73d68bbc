"""A branch is deleted or reset while another process is committing to it."""

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ConflictError,
    LanceDagsterError,
    NotFoundError,
    RefNotFoundError,
    StoreError,
)
from lance_dagster.format.transaction import Append, Transaction
from lance_dagster.store import LocalStore
from tests.process_race import race
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore
from tests.table_factory import Rows, contents, context_of, context_on, entries, new_table

BEFORE: Rows = [("a", 1), ("b", 2), ("c", 3), ("old", 1), ("old", 2)]
AFTER: Rows = [("a", 1), ("b", 2)]
LATE = ("late", 9)


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Four versions of main, and a branch of the last one with two versions of its own."""
    made = new_table(tmp_path, entries("a", 1), entries("b", 2), entries("c", 3))
    made.branches.create("run")
    made.append(entries("old", 1), branch="run")
    made.append(entries("old", 2), branch="run")
    return made


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def reset(table: LanceTable) -> None:
    """Reset the branch to the third version of main."""
    table.branches.reset("run", "main@3")


def delete_and_create(table: LanceTable) -> None:
    """Replace the branch by deleting and creating it."""
    table.branches.delete("run")
    table.branches.create("run", "main@3")


def delete_and_create_from_newer(table: LanceTable) -> None:
    """Replace the branch, and commit until its version numbers pass those of the old one."""
    table.branches.delete("run")
    table.branches.create("run", "main@3")
    for value in (4, 5):
        table.append(entries("new", value), branch="run")
        table.delete(f"value = {value}", branch="run")


REPLACEMENTS = [reset, delete_and_create, delete_and_create_from_newer]


def staged(table: LanceTable) -> Transaction:
    """A transaction made on the present branch, which adds one row."""
    made = table.append(entries(*LATE), branch="run")
    head = context_of(table).head("run")
    fragment = head.manifest.fragments[-1]
    table.branches.reset("run", "main@4")
    table.append(entries("old", 1), branch="run")
    last = table.append(entries("old", 2), branch="run")
    assert BEFORE == contents(table, "run")
    assert last.number > made.number
    return Transaction(read_version=last.number, uuid=str(uuid.uuid4()), operation=Append(fragments=(fragment,)))


def before_request(number: int, act: Callable[[], object], asked: list[str]) -> Script:
    """Call `act` before one request, counted from 0."""

    def script(request: Request) -> object:
        asked.append(f"{request.verb} {request.key}")
        if len(asked) == number + 1:
            act()
        return request.send()

    return script


def assert_replaced(table: LanceTable) -> None:
    """The branch has the rows of its new start, for the package and pylance, and takes commits of both."""
    branch = table.branches.list()["run"]
    numbers = [number for number in table.branches.version_numbers("run") if number >= branch.first]
    assert list(range(branch.first, branch.first + len(numbers))) == numbers
    assert AFTER == contents(table, "run")
    assert "main@3" == branch.parent
    made = table.append(entries("more", 7), branch="run")
    dataset = lance.dataset(table.uri).checkout_version(("run", None))
    assert made.number == dataset.version
    dataset.insert(entries("more", 8))
    dataset = lance.dataset(table.uri).checkout_version(("run", None))
    dataset.validate()
    assert len(AFTER) + 2 == dataset.count_rows() == table.count_rows("run")


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_a_late_transaction_never_lands_on_the_next_branch(table: LanceTable, replace: Callable[..., None]) -> None:
    """The branch is replaced at each request of the commit."""
    late = staged(table)
    for number in range(100):
        asked: list[str] = []
        before = table.branches.list()["run"].id
        if number:
            table.branches.reset("run", "main@4")
            table.append(entries("old", 1), branch="run")
            last = table.append(entries("old", 2), branch="run")
            late = Transaction(read_version=last.number, uuid=str(uuid.uuid4()), operation=late.operation)
            before = table.branches.list()["run"].id
        writer = through(table, before_request(number, lambda: replace(table), asked))
        landed = False
        with suppress(CommitConflictError, CommitStateUnknownError, NotFoundError):
            writer.commit(late, branch="run")
            landed = True
        if len(asked) <= number:
            break
        assert before != table.branches.list()["run"].id
        assert AFTER == contents(table, "run"), asked
        # It succeeds only if the branch was still there at the second look.
        looks = [place for place, request in enumerate(asked) if request.endswith("branches/run.json")]
        put = any(request.startswith("put_if_absent") for request in asked)
        assert landed == (put and number > looks[-1]), (number, asked)
        with pytest.raises(CommitConflictError, match="which was deleted"):
            table.commit(late, branch="run")
    else:
        raise AssertionError("a commit makes fewer requests")
    assert number > 8
    replace(table)
    assert_replaced(table)
    assert [] == [problem for problem in table.maintenance.verify().problems if problem.severity == "error"]


@pytest.mark.parametrize("job", ["append", "delete", "compact", "merge"])
def test_no_change_in_flight_lands_on_the_next_branch(table: LanceTable, job: str) -> None:
    """The change is not retried on the new branch either, because it was meant for the deleted one."""
    jobs: dict[str, Callable[[LanceTable], object]] = {
        "append": lambda writer: writer.append(entries(*LATE), branch="run"),
        "delete": lambda writer: writer.delete("value = 1", branch="run"),
        "compact": lambda writer: writer.maintenance.compact(branch="run"),
        "merge": lambda writer: writer.merge("main", into="run"),
    }
    table.append(entries("d", 4))
    left = [True]

    def script(request: Request) -> object:
        if request.commits and "tree/run/" in request.key and left:
            left.pop()
            reset(table)
        return request.send()

    with raises(CommitConflictError, committed="run@7", retryable=False):
        jobs[job](through(table, script))
    assert_replaced(table)


def test_a_commit_on_the_way_when_the_branch_goes_leaves_no_name_blocked(table: LanceTable) -> None:
    """The manifest is put after the folder was deleted, and the writer dies before it can delete it."""
    deleted = [False]

    def script(request: Request) -> object:
        if request.commits:
            table.branches.delete("run")
            request.send()
            deleted[0] = True
            raise PlugPulledError
        return request.send()

    with pytest.raises(PlugPulledError):
        through(table, script).append(entries(*LATE), branch="run")
    assert deleted == [True]
    assert {} == table.branches.list()
    table.branches.create("run", "main@3")
    assert_replaced(table)
    found = [(problem.severity, problem.what) for problem in table.maintenance.verify().problems]
    assert ("warning", "the folder of branch 'run' has 1 version below its first") in found


def test_what_a_late_commit_leaves_is_no_version_and_no_error(table: LanceTable) -> None:
    """A writer that dies after its put, on a branch that was reset, leaves a manifest below those of the new branch."""
    died: list[object] = []

    def script(request: Request) -> object:
        if died:
            raise PlugPulledError
        if request.commits:
            reset(table)
            died.append(request.send())
        return request.send() if not died else died[0]

    with pytest.raises(PlugPulledError):
        through(table, script).append(entries(*LATE), branch="run")
    first = table.branches.get("run").first
    late, *own = table.branches.version_numbers("run")
    assert late < first == own[0]
    found = table.maintenance.verify()
    (problem,) = found.problems
    assert problem.severity == "warning"
    assert f"the folder of branch 'run' has 1 version below its first; that is {first}" in str(problem)
    with pytest.raises(NotFoundError):
        table.read(f"run@{late}")
    assert lance.dataset(table.uri).checkout_version(("run", None)).count_rows() == len(contents(table, "run"))


def test_numbers_of_the_next_branch_begin_above(table: LanceTable) -> None:
    """They begin above the numbers that a late writer may still use, but as usual for an unused name."""
    assert 6 == table.head("run").number
    made = table.branches.reset("run", "main@3")
    assert (8, "main@3", "run@8") == (made.first, made.parent, str(table.head("run")))
    version = table.head("run")
    assert ("Clone", ("main@3",), 2) == (version.operation, version.parents, version.rows)
    assert "run@9" == str(table.append(entries("d", 4), branch="run"))
    table.branches.delete("run")
    assert 11 == table.branches.create("run").first
    assert 4 == table.branches.create("other").first


def test_a_branch_that_begins_above_is_merged(table: LanceTable) -> None:
    """The branch can be merged in both directions, repeatedly, and so can branches forked from it."""
    reset(table)
    table.append(entries("new", 1), branch="run")
    table.branches.create("run/child", "run")
    table.append(entries("child", 1), branch="run/child")
    table.merge("run/child", into="run")
    table.branches.delete("run/child")
    assert ["run", "main"] == list(dict.fromkeys(version.branch for version in table.log("run")))
    table.append(entries("d", 4))
    merged = table.merge("run")
    assert [*BEFORE[:3], ("child", 1), ("d", 4), ("new", 1)] == contents(table)
    assert merged == table.merge("run")
    assert merged == table.branches.is_merged("run")
    table.append(entries("new", 2), branch="run")
    table.merge("run")
    assert [*BEFORE[:3], ("child", 1), ("d", 4), ("new", 1), ("new", 2)] == contents(table)


def test_fences_are_swept_away(table: LanceTable) -> None:
    """The next creation deletes fences older than a day; names unused for a day begin as usual."""
    table.branches.delete("run")
    folder = Path(table.uri) / "_refs/deleted"
    (fence,) = folder.iterdir()
    name, newest, seconds, own = fence.name.split("@")
    fence.rename(folder / f"{name}@{newest}@{int(seconds) - 24 * 60 * 60 - 1}@{own}")
    table.branches.create("other")
    assert not list(folder.iterdir())
    table.branches.delete("other")
    assert ["other"] == [file.name.split("@")[0] for file in folder.iterdir()]
    assert 4 == table.branches.create("run").first


def before_put(act: Callable[[], object]) -> Script:
    """Call `act` once, before a manifest of the branch is put."""
    left = [True]

    def script(request: Request) -> object:
        if request.commits and "tree/run/" in request.key and left:
            left.pop()
            act()
        return request.send()

    return script


def after_put(act: Callable[[], object]) -> Script:
    """Call `act` once, after a manifest of the branch was put."""
    left = [True]

    def script(request: Request) -> object:
        answer = request.send()
        if request.commits and "tree/run/" in request.key and left:
            left.pop()
            act()
        return answer

    return script


@pytest.mark.parametrize("users", [["child"], []])
def test_a_commit_is_not_said_to_have_failed_while_a_deletion_may_give_way(table: LanceTable, users: list[str]) -> None:
    """The branch is marked at the second look: the version is on it, and stays if the mark is withdrawn."""
    states = []

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap":
            for user in users:
                table.branches.create(user, "run")
            request.send()
            states.append(context_of(table).refs.branches.find("run"))
            raise PlugPulledError
        return request.send()

    def begin_deleting() -> None:
        with pytest.raises(PlugPulledError):
            through(table, script).branches.delete("run")

    made = through(table, before_put(begin_deleting)).append(entries(*LATE), branch="run")
    assert ["closing"] == [state.state for state in states if state is not None]
    if users:
        with pytest.raises(ConflictError):
            table.branches.create("run", "main@3")
        assert (made, sorted([*BEFORE, LATE])) == (table.head("run"), contents(table, "run"))
    else:
        table.branches.create("run", "main@3")
        assert_replaced(table)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_commit_that_a_deletion_did_not_list_is_not_acknowledged(table: LanceTable, *, is_over: bool) -> None:
    """The manifest is put between the deletion's listing and its seal.

    A writer that looks while the deletion goes on does not know what becomes of it. A writer that looks after the
    deletion finds that nobody could have read its manifest, and takes it back.
    """
    sealing, committed, looked = threading.Event(), threading.Event(), threading.Event()
    swaps = []

    def pause(request: Request) -> object:
        if request.verb == "compare_and_swap" and request.key.endswith("branches/run.json"):
            swaps.append(request.key)
            # The first swap sets the mark, and the second one is the seal.
            if len(swaps) == 2:
                sealing.set()
                assert committed.wait(10)
        elif request.verb == "compare_and_delete" and not is_over:
            assert looked.wait(10)
        return request.send()

    deletion = threading.Thread(target=lambda: through(table, pause).branches.delete("run"))

    def script(request: Request) -> object:
        if request.commits and "tree/run/" in request.key:
            deletion.start()
            assert sealing.wait(10)
            answer = request.send()
            committed.set()
            if is_over:
                deletion.join(10)
            return answer
        return request.send()

    error, told = (CommitConflictError, "deleted meanwhile") if is_over else (CommitStateUnknownError, "being deleted")
    with pytest.raises(error, match=told):
        through(table, script).append(entries(*LATE), branch="run")
    looked.set()
    deletion.join(10)
    assert "run" not in table.branches.list()
    manifests = list(Path(table.uri, "tree/run/_versions").glob("*.manifest"))
    assert (0 if is_over else 1) == len(manifests)
    # Whether it stays there or not, the name is free.
    table.branches.create("run")
    assert contents(table) == contents(table, "run")


@pytest.mark.parametrize("job", ["append", "sync"])
def test_a_commit_to_a_branch_that_was_merged_and_deleted_at_once(table: LanceTable, job: str) -> None:
    """The merge may have included the commit, as here, so the error does not say that it failed."""
    table.append(entries("d", 4))

    def publish() -> None:
        table.merge("run")
        table.branches.delete("run")

    writer = through(table, after_put(publish))
    with pytest.raises(CommitStateUnknownError) as caught:
        writer.append(entries(*LATE), branch="run") if job == "append" else writer.branches.sync("run")
    if job == "append":
        assert LATE in contents(table)
    transaction = caught.value.transaction
    assert isinstance(transaction, Transaction)
    with pytest.raises(NotFoundError):
        table.commit(transaction, branch="run")


def test_a_commit_to_a_branch_that_was_renamed_meanwhile(table: LanceTable) -> None:
    """The renaming included the commit, and committing it to the new name finds it."""
    writer = through(table, after_put(lambda: table.branches.rename("run", "new")))
    with pytest.raises(CommitStateUnknownError) as caught:
        writer.append(entries(*LATE), branch="run")
    transaction = caught.value.transaction
    assert isinstance(transaction, Transaction)
    assert table.commit(transaction, branch="new") == table.head("new")
    assert sorted([*BEFORE, LATE]) == contents(table, "new")


@pytest.mark.parametrize("state", ["closing", "deleting"])
@pytest.mark.parametrize("late", [True, False])
def test_a_commit_to_what_is_left_of_a_branch_that_was_renamed(table: LanceTable, *, state: str, late: bool) -> None:
    """The second look does not tell whether the renaming included the commit; the branch of the new name does."""

    def script(request: Request) -> object:
        answer = request.send()
        if request.verb == "compare_and_swap" and request.key.endswith("branches/run.json"):
            branch = context_of(table).refs.branches.find("run")
            if branch is not None and branch.state == state:
                raise PlugPulledError
        return answer

    def rename() -> None:
        with pytest.raises(PlugPulledError):
            through(table, script).branches.rename("run", "new")

    writer = through(table, before_put(rename) if late else after_put(rename))
    with pytest.raises(CommitStateUnknownError) as caught:
        writer.append(entries(*LATE), branch="run")
    assert contents(table, "new") == sorted(BEFORE if late else [*BEFORE, LATE])
    table.branches.rename("run", "new")
    transaction = caught.value.transaction
    assert isinstance(transaction, Transaction)
    table.commit(transaction, branch="new")
    assert sorted([*BEFORE, LATE]) == contents(table, "new")


def test_a_commit_to_a_branch_that_was_renamed_before_is_taken_away(table: LanceTable) -> None:
    """Its manifest is put where no reader looks any more."""
    writer = through(table, before_put(lambda: table.branches.rename("run", "new")))
    with raises(CommitConflictError, committed="run@7", retryable=False):
        writer.append(entries(*LATE), branch="run")
    assert BEFORE == contents(table, "new")
    assert [] == list(Path(table.uri, "tree/run").rglob("*.manifest"))


@pytest.mark.parametrize("key", ["_refs/branches/run.json", "tree/run/_versions/"])
def test_a_second_look_that_fails_tells_nothing(table: LanceTable, key: str) -> None:
    """Either the branch or the manifest cannot be read."""
    put: list[str] = []

    def script(request: Request) -> object:
        if request.verb == "get" and key in request.key and put:
            raise StoreError("the storage is away")
        if request.commits:
            table.branches.delete("run")
            put.append(request.key)
        return request.send()

    with pytest.raises(CommitStateUnknownError):
        through(table, script).append(entries(*LATE), branch="run")


def test_a_branch_that_pylance_replaced_is_noticed(table: LanceTable) -> None:
    """Pylance makes no fences, so the version may be on the next branch of the name."""

    def script(request: Request) -> object:
        if request.commits:
            dataset = lance.dataset(table.uri)
            dataset.branches.delete("run")
            dataset.create_branch("run", 3)
        return request.send()

    with pytest.raises(CommitStateUnknownError):
        through(table, script).append(entries(*LATE), branch="run")


def write(uri: str, writer: int) -> list[int]:
    """Append rows to the branch until it was replaced a few times; return the acknowledged values."""
    table = LanceTable.open(uri)
    landed = []
    for value in range(100 * writer, 100 * writer + 40):
        with suppress(LanceDagsterError):
            table.append(entries("w", value), branch="run")
            landed.append(value)
    return landed


def replace_often(uri: str, _: int) -> list[int]:
    """Replace the branch repeatedly."""
    table = LanceTable.open(uri)
    for number in range(8):
        with suppress(LanceDagsterError):
            table.branches.reset("run", f"main@{2 + number % 3}")
    return []


def work(uri: str, job: str, argument: int) -> list[int]:
    """Run one process."""
    return {"write": write, "replace": replace_often}[job](uri, argument)


def test_writers_and_a_replacer_in_processes(table: LanceTable) -> None:
    """Each row on the branch was acknowledged and is there once, and the version numbers have no gap."""
    jobs = [(table.uri, "write", 1), (table.uri, "write", 2), (table.uri, "replace", 0)]
    acknowledged = {value for landed in race(work, jobs) for value in landed}
    branch = table.branches.list()["run"]
    numbers = [number for number in table.branches.version_numbers("run") if number >= branch.first]
    assert list(range(branch.first, branch.first + len(numbers))) == numbers
    there = [value for key, value in contents(table, "run") if key == "w"]
    assert len(there) == len(set(there)) == len(numbers) - 1
    assert set(there) <= acknowledged
    assert [] == [problem for problem in table.maintenance.verify().problems if problem.severity == "error"]


def test_a_writer_during_a_reset_is_told_to_try_again(table: LanceTable) -> None:
    """At each request of the reset, a write lands on one of the two branches, or is a retryable conflict."""
    refused, number = set[tuple[bool, bool]](), 0
    while True:
        asked: list[str] = []
        before = table.branches.list()["run"].id
        other = LanceTable.open(table.uri)

        def write(other: LanceTable = other) -> None:
            try:
                # The write is staged before, because a whole append would wait for the reset, which waits for it here.
                other.commit(transaction_on(other), branch="run")
            except CommitConflictError as error:
                refused.add((error.retryable, "it is being reset to main@3" in str(error)))

        through(table, before_request(number, write, asked)).branches.reset("run", "main@3")
        assert before != table.branches.list()["run"].id
        assert not any("resetting" in key for key in table.branches.list()["run"].metadata)
        table.append(entries("old", number), branch="run")
        if len(asked) <= number:
            break
        number += 1
    assert {(True, True)} == refused
    assert number > 10


def transaction_on(table: LanceTable) -> Transaction:
    """A transaction without rows, made on the present head of the branch."""
    return Transaction(read_version=table.head("run").number, uuid=str(uuid.uuid4()), operation=Append(fragments=()))


@pytest.mark.parametrize("step", range(4, 30, 3))
def test_a_writer_after_a_reset_that_died_is_told_how_to_finish_it(table: LanceTable, step: int) -> None:
    """The writer waits briefly and gets no error that the branch is missing; a repeated reset completes it."""

    def script(request: Request) -> object:
        asked.append(request.key)
        if len(asked) > step:
            raise PlugPulledError
        return request.send()

    asked: list[str] = []
    with suppress(PlugPulledError):
        through(table, script).branches.reset("run", "main@3")
    with suppress(CommitConflictError):
        table.head("run")
    table.branches.reset("run", "main@3")
    assert_replaced(table)


def test_a_branch_that_is_being_deleted_is_not_suggested_for_itself(table: LanceTable) -> None:
    """The error says that it is being deleted."""

    def read(request: Request) -> object:
        if request.verb == "delete_many":
            with pytest.raises(RefNotFoundError, match="it is being deleted"):
                LanceTable.open(table.uri).append(entries(*LATE), branch="run")
        return request.send()

    through(table, read).branches.delete("run")
