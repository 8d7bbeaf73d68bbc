"""Recovery of branches: from either half, after each crash, beside a rival, and not of what was renamed or dropped."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptFileError,
    LanceDagsterError,
    RefNotFoundError,
)
from lance_dagster.history.refs.branch_operations import delete_up_to
from lance_dagster.store import LocalStore
from tests.backdating import DAY, age, files
from tests.history.refs.schedule_tables import assert_free, copied, made_template
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, ScriptedStore, plug_pulled_before_write
from tests.table_factory import as_pylance, contents, context_on, entries, new_table, sorted_rows

OWN_FILE = "_refs/branches/run.json"
OLD_ROWS = [("a", 1), ("b", 2), ("old", 1), ("old", 2)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """Two versions of main, and a branch `run` with two commits of its own."""
    return made_template(tmp_path_factory.mktemp("recovery"))


def without_run(template: LanceTable) -> LanceTable:
    """A copy of the template whose branch `run` was deleted."""
    table = LanceTable.open(copied(template))
    table.branches.delete("run")
    return table


def errors_of(table: LanceTable) -> list[str]:
    """The errors that `verify` finds."""
    return [str(problem) for problem in table.maintenance.verify().problems if problem.severity == "error"]


def test_a_branch_that_lost_its_file_is_recovered(template: LanceTable) -> None:
    """Its versions have the lost data; afterwards the name can be used, also by pylance."""
    table = LanceTable.open(copied(template))
    before, rows = table.branches.get("run"), table.read("run")
    Path(table.uri, OWN_FILE).unlink()
    with pytest.raises(AlreadyExistsError, match=r"branches.recover\('run'\)"):
        table.branches.create("run")
    found = table.branches.recover("run")
    assert (before.id, before.parent, before.first, before.lineage) == (
        found.id,
        found.parent,
        found.first,
        found.lineage,
    )
    assert rows == table.read("run")
    assert rows.num_rows == lance.dataset(table.uri).checkout_version(("run", None)).count_rows()
    assert found == table.branches.recover("run")
    assert_free(table, "run")


@pytest.mark.parametrize("lost", ["tree/run/_deletions", "data"])
def test_a_branch_without_a_file_that_it_needs_is_not_recovered(tmp_path: Path, lost: str) -> None:
    """Another program deleted a file; the error names it, and nothing of the branch comes back."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    table.delete("value = 2", branch="run")
    table.branches.delete("run")
    before = files(table)
    # Of the data files, the newest one is the branch's own.
    path = max(Path(table.uri, lost).iterdir(), key=lambda found: found.stat().st_mtime_ns)
    path.unlink()
    with raises(CorruptFileError, path=str(path)):
        table.branches.recover("run")
    assert before - {path.relative_to(table.uri).as_posix()} == files(table)
    assert {} == table.branches.list()


def test_a_branch_with_deleted_rows_is_recovered(tmp_path: Path) -> None:
    """Its deletion files, and the files that pylance put into its folder, stay as long as the copies of manifests."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.branches.create("run")
    table.delete("value = 2", branch="run")
    as_pylance(table, "run").insert(entries("p", 1))
    rows = contents(table, "run")
    table.branches.delete("run")
    table.branches.recover("run")
    assert rows == contents(LanceTable.open(table.uri), "run")
    assert Path(table.uri, "tree/run/_versions/latest_version_hint.json").exists()
    table.merge("run")
    # A new branch of the name has nothing of it, and a collection two days later deletes the files.
    table.branches.delete("run")
    table.branches.create("run", "main@2")
    table.delete("value = 1", branch="run")
    age(table, 2 * DAY)
    assert LanceTable.open(table.uri).maintenance.collect_garbage(DAY, dry_run=False).done
    assert [("a", 2), ("a", 3)] == contents(LanceTable.open(table.uri), "run")
    assert rows == contents(LanceTable.open(table.uri))
    assert (1, 0) == tuple(len(files(table, f"tree/run/{folder}")) for folder in ("_deletions", "data"))
    assert [] == errors_of(table)


def test_a_branch_that_lost_its_versions_is_recovered(template: LanceTable) -> None:
    """The copies of its manifests restore it, for a day."""
    table = LanceTable.open(copied(template))
    rows, file = table.read("run"), Path(table.uri, OWN_FILE).read_bytes()
    table.branches.delete("run")
    for kept in (b"", file):
        if kept:
            table.branches.delete("run")
            Path(table.uri, OWN_FILE).write_bytes(kept)
        assert "run" == table.branches.recover("run").name
        assert rows == LanceTable.open(table.uri).read("run")
    assert [] == [problem for problem in table.maintenance.verify().problems if problem.severity == "error"]
    assert_free(table, "run")
    with pytest.raises(RefNotFoundError):
        table.branches.recover("never")


def test_a_renamed_branch_does_not_come_back_under_its_old_name(template: LanceTable) -> None:
    """Both would have one id, and the merge of the second one would be taken for that of the first."""
    table = LanceTable.open(copied(template))
    table.branches.rename("run", "new")
    with pytest.raises(RefNotFoundError, match="the branch is called 'new' now"):
        table.branches.recover("run")
    table.branches.delete("new")
    assert table.branches.recover("run").id == template.branches.get("run").id
    with pytest.raises(RefNotFoundError, match="the branch is called 'run' now"):
        table.branches.recover("new")
    table.append(entries("new", 1), branch="run")
    table.merge("run")
    assert [*OLD_ROWS[:2], ("new", 1), *OLD_ROWS[2:]] == sorted_rows(table.read())


def test_an_old_name_without_its_files_does_not_come_back(tmp_path: Path) -> None:
    """A rename deletes the deletion files under the old name, also those that only an older version names."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.branches.create("run")
    table.delete("value = 2", branch="run")
    table.overwrite(entries("o", 1), branch="run")
    table.branches.rename("run", "new")
    table.branches.delete("new")
    with pytest.raises(RefNotFoundError, match="recover 'new'"):
        table.branches.recover("run")
    assert {} == table.branches.list()
    table.branches.recover("new")
    assert [("a", 1), ("a", 3)] == contents(table, "new~1")
    assert table.maintenance.verify().ok


@pytest.mark.parametrize("back", [False, True])
def test_a_branch_comes_back_under_the_name_with_its_newest_version(template: LanceTable, *, back: bool) -> None:
    """Under the other name, it would give a number again that was merged, and the next merge would pass that over."""
    table = LanceTable.open(copied(template))
    names = ["run", "new", "run"] if back else ["run", "new"]
    for old, new in pairwise(names):
        table.branches.rename(old, new)
    table.append(entries("six", 6), branch=names[-1])
    table.merge(names[-1])
    # The fences of both names reach as far as `main`, so they do not tell the two names apart.
    for value in (7, 8, 9):
        table.append(entries("main", value))
    table.branches.delete(names[-1])
    with pytest.raises(RefNotFoundError, match=f"later versions under the name '{names[-1]}', .* recover"):
        table.branches.recover(names[-2])
    assert {} == table.branches.list()
    table.branches.recover(names[-1])
    assert [3, 4, 5, 6] == table.branches.version_numbers(names[-1])
    table.append(entries("seven", 7), branch=names[-1])
    table.merge(names[-1])
    assert ("seven", 7) in sorted_rows(table.read())


def test_a_damaged_copy_is_in_the_way_of_its_own_branch_alone(tmp_path: Path) -> None:
    """A copy that a power cut emptied neither blocks a later branch of the name nor leaves out a version of its own."""
    table = new_table(tmp_path, entries("a", 1))
    folder = Path(table.uri, "_expired/run")
    table.branches.create("run")
    table.append(entries("early", 1), branch="run")
    table.branches.delete("run")
    early = set(folder.iterdir())
    for path in early:
        path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match="cut off"):
        table.branches.recover("run")
    table.branches.create("run")
    table.append(entries("late", 1), branch="run")
    table.branches.delete("run")
    late = {path: path.read_bytes() for path in set(folder.iterdir()) - early}
    for path, copy in late.items():
        path.write_bytes(b"")
        with pytest.raises(CorruptFileError, match="cut off"):
            table.branches.recover("run")
        path.write_bytes(copy)
    table.branches.recover("run")
    assert [("a", 1), ("late", 1)] == contents(table, "run")


def test_an_earlier_branch_of_the_name_stays_away(template: LanceTable) -> None:
    """Its copies are there still, with the numbers of the later branch, since its fence is gone after a day."""
    table = without_run(template)
    for file in Path(table.uri, "_refs/deleted").iterdir():
        file.unlink()
    table.branches.create("run", "main@3")
    table.append(entries("new", 1), branch="run")
    numbers, rows = table.branches.version_numbers("run"), table.read("run")
    table.branches.delete("run")
    table.branches.recover("run")
    assert ([3, 4], numbers) == (numbers, table.branches.version_numbers("run"))
    assert rows == table.read("run")


def test_versions_that_a_reset_dropped_stay_away(template: LanceTable) -> None:
    """The branch comes back with the versions that it had when it was deleted."""
    table = LanceTable.open(copied(template))
    table.branches.reset("run", "run@3")
    table.append(entries("after", 1), branch="run")
    before = table.branches.version_numbers("run")
    table.branches.delete("run")
    table.branches.recover("run")
    assert before == table.branches.version_numbers("run")
    assert [("a", 1), ("after", 1), ("b", 2)] == sorted_rows(table.read("run"))


@pytest.mark.parametrize("then", ["recover", "delete", "reset"])
def test_a_recovery_that_was_interrupted_can_be_finished(template: LanceTable, then: str) -> None:
    """Before each of its writes: until it is finished, no other call commits to the branch or finishes it."""
    for number in range(1, 100):
        table = without_run(template)
        store = ScriptedStore(LocalStore(table.uri, durable=False), plug_pulled_before_write(number))
        try:
            LanceTable(context_on(store)).branches.recover("run")
        except PlugPulledError:
            pass
        else:
            assert number > 5
            return
        if Path(table.uri, OWN_FILE).exists():
            with pytest.raises((ConflictError, RefNotFoundError), match="is being recovered"):
                table.append(entries("early", 1), branch="run")
            with pytest.raises(ConflictError, match="is being recovered"):
                table.branches.create("run", "main@2", exist_ok=True)
            match then:
                case "delete":
                    table.branches.delete("run")
                case "reset":
                    table.branches.reset("run", "main@2")
                    table.branches.delete("run")
        if then == "recover":
            table.branches.recover("run")
            assert OLD_ROWS == sorted_rows(table.read("run"))
        assert [] == errors_of(table)
        assert_free(table, "run")


RIVALS: Mapping[str, Callable[[LanceTable], object]] = {
    "create": lambda table: table.branches.create("run", "main@2"),
    "delete": lambda table: table.branches.delete("run"),
    "recover": lambda table: table.branches.recover("run"),
}


class Scene:
    """A recovery of the branch `run`, and a rival that makes its call before one of the requests."""

    def __init__(self, template: LanceTable, number: int, rival: str) -> None:
        """Take the number of the request."""
        self.table, self.number, self.rival = without_run(template), number, rival
        self.asked, self.made = 0, False

    def script(self, request: Request) -> object:
        """Send a request, after the rival's call where it is time."""
        if self.asked == self.number:
            with suppress(LanceDagsterError):
                RIVALS[self.rival](self.table)
                self.made = True
        self.asked += 1
        return request.send()

    def recover(self) -> bool:
        """Recover the branch; return whether that succeeded."""
        try:
            store = ScriptedStore(LocalStore(self.table.uri, durable=False), self.script)
            LanceTable(context_on(store)).branches.recover("run")
        except LanceDagsterError:
            return False
        return True


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_at_each_request_of_a_recovery(template: LanceTable, rival: str) -> None:
    """A branch that a rival made has its own rows and no version of the old one; a deletion leaves no version."""
    number, scene = 0, Scene(template, 0, rival)
    while scene.asked >= number:
        scene = Scene(template, number, rival)
        recovered = scene.recover()
        table = LanceTable.open(scene.table.uri)
        found = {name: sorted_rows(table.read(name)) for name in table.branches.list()}
        assert [] == errors_of(table)
        if scene.made and rival == "create":
            assert {"run": [("a", 1)]} == found
            assert 1 == len(table.branches.version_numbers("run"))
        elif scene.made and rival == "delete":
            assert (False, {}) == (recovered, found)
            assert [] == [*Path(table.uri, "tree/run/_versions").glob("*.manifest")]
        else:
            assert (True, {"run": OLD_ROWS}) == (recovered, found)
        assert_free(table, "run")
        number += 1


def test_a_deletion_that_gives_way_does_not_finish_a_recovery(template: LanceTable) -> None:
    """Where only some versions are back, the branch takes no commit until the recovery is finished."""
    table = without_run(template)
    store = ScriptedStore(LocalStore(table.uri, durable=False), plug_pulled_before_write(4))
    with pytest.raises(PlugPulledError):
        LanceTable(context_on(store)).branches.recover("run")
    first, *later = table.branches.version_numbers("run")
    assert later
    context = context_on(LocalStore(table.uri, durable=False))
    begun = context.refs.branches.find("run")
    assert begun is not None
    # A publisher deletes the branch that it merged, of which it knows the version.
    with pytest.raises(ConflictError):
        delete_up_to(begun, first, context.refs, context.versions)
    with pytest.raises((ConflictError, RefNotFoundError), match="is being recovered"):
        table.append(entries("early", 1), branch="run")
    table.branches.recover("run")
    assert OLD_ROWS == sorted_rows(table.read("run"))


def test_a_branch_whose_name_a_tag_has_is_not_recovered(template: LanceTable) -> None:
    """A ref of the name would be ambiguous."""
    table = without_run(template)
    table.tags.create("run", "main@2")
    with pytest.raises(AlreadyExistsError):
        table.branches.recover("run")


SLOW: Mapping[str, Callable[[LanceTable], object]] = {
    "delete": lambda table: table.branches.delete("run"),
    "reset": lambda table: table.branches.reset("run", "main@2"),
}


@pytest.mark.parametrize("slow", SLOW)
def test_a_branch_that_is_recovered_during_a_deletion_keeps_its_versions(template: LanceTable, slow: str) -> None:
    """A deletion, or a reset, that was overtaken may delete versions of the recovered branch, and puts them back."""
    recoveries = 0
    for number in range(100):
        table, asked = LanceTable.open(copied(template)), 0
        recovered: list[str] = []

        def script(
            request: Request, *, table: LanceTable = table, number: int = number, recovered: list[str] = recovered
        ) -> object:
            nonlocal asked
            if asked == number:
                with suppress(LanceDagsterError):
                    table.branches.delete("run")
                    recovered.append(table.branches.recover("run").id)
            asked += 1
            return request.send()

        with suppress(LanceDagsterError):
            SLOW[slow](LanceTable(context_on(ScriptedStore(LocalStore(table.uri, durable=False), script))))
        if asked < number:
            break
        after = LanceTable.open(table.uri)
        found = {name: sorted_rows(after.read(name)) for name in after.branches.list()}
        assert found in ({}, {"run": OLD_ROWS}, {"run": [("a", 1)]})
        assert [] == errors_of(after)
        recoveries += bool(recovered) and found == {"run": OLD_ROWS}
        assert_free(after, "run")
    assert recoveries > 3
