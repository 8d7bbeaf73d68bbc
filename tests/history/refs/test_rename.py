"""Branches and tags are renamed, also by processes that die at any step."""

from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitStateUnknownError,
    ConflictError,
    InvalidInputError,
    InvalidRefNameError,
    ProtectedError,
    RefMovedError,
    RefNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.store import LocalStore, ObjectInfo
from tests.backdating import DAY, age, stored
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore, plug_pulled_before_write
from tests.table_factory import Rows, as_pylance, contents, context_of, context_on, entries, new_table

ROWS: Rows = [("a", 1), ("b", 3), ("p", 1)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A branch with commits of the package and pylance, deletions, and one merged version."""
    made = new_table(tmp_path, entries("a", 1), entries("a", 2))
    made.branches.create("old", metadata={"why": "test"})
    made.append(entries("b", 3), branch="old")
    made.merge("old")
    made.delete("value = 2", branch="old")
    as_pylance(made, "old").insert(entries("p", 1))
    return made


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def writes_of(table: LanceTable, old: str, new: str) -> int:
    """The number of writes of a renaming."""
    count = 0

    def script(request: Request) -> object:
        nonlocal count
        count += request.writes
        return request.send()

    through(table, script).branches.rename(old, new)
    return count


def assert_renamed(table: LanceTable, new: str = "new") -> None:
    """The branch keeps its content, takes commits of the package and pylance, and can be merged again."""
    assert [new] == list(table.branches.list()) == list(as_pylance(table).branches.list())
    assert not (Path(table.uri) / "tree/old").exists()
    assert ROWS == contents(table, new)
    dataset = as_pylance(table, new)
    dataset.validate()
    assert len(ROWS) == dataset.count_rows()
    assert ("test", "main@3") == (table.branches.list()[new].metadata["why"], table.branches.list()[new].parent)
    dataset.insert(entries("p", 2))
    table.append(entries("more", 1), branch=new)
    table.merge(new)
    assert [*ROWS[:2], ("more", 1), ("p", 1), ("p", 2)] == contents(table)
    table.branches.delete(new)
    as_pylance(table).validate()
    assert [] == [problem for problem in table.maintenance.verify().problems if problem.severity == "error"]


def test_a_branch_gets_another_name(table: LanceTable) -> None:
    """Its versions keep their numbers and content, and merges still know the branch."""
    before, own = table.log("old"), table.branches.list()["old"].id
    renamed = table.branches.rename("old", "new")
    assert ("new", own) == (renamed.name, renamed.id)
    after = table.log("new")
    assert [(version.number, version.transaction, version.rows) for version in before] == [
        (version.number, version.transaction, version.rows) for version in after
    ]
    assert str(table.branches.is_merged("new@4")) == "main@4"
    with pytest.raises(RefNotFoundError):
        table.read("old")
    assert_renamed(table)


def test_a_renaming_that_died_is_finished_by_the_next(table: LanceTable) -> None:
    """After an interruption at any write one of the two names has the rows, and a second call completes it."""
    steps = writes_of(table, "old", "new")
    table.branches.rename("new", "old")
    assert 15 < steps < 40
    for step in range(steps):
        with pytest.raises(PlugPulledError):
            through(table, plug_pulled_before_write(step)).branches.rename("old", "new")
        names = list(table.branches.list())
        assert names in (["old"], ["new", "old"], ["new"]), step
        for name in names:
            assert ROWS == contents(table, name)
        assert ("new", ROWS) == (table.branches.rename("old", "new").name, contents(table, "new"))
        if step < steps - 1:
            table.branches.rename("new", "old")
            assert ROWS == contents(table, "old")
    assert_renamed(table)


def test_no_commit_is_lost_on_the_way(table: LanceTable) -> None:
    """Another process commits before each write: the commit is kept, or its writer gets an error."""
    steps = writes_of(table, "old", "new")
    table.branches.rename("new", "old")
    for step in range(steps):
        left = step
        landed: list[int] = []

        def script(request: Request, step: int = step, landed: list[int] = landed) -> object:
            nonlocal left
            if request.writes:
                left -= 1
                if left == -1:
                    try:
                        table.append(entries("meanwhile", step), branch="old")
                        landed.append(step)
                    except (CommitConflictError, RefNotFoundError):
                        pass
            return request.send()

        through(table, script).branches.rename("old", "new")
        assert landed == [value for key, value in contents(table, "new") if (key, value) == ("meanwhile", step)]
        table.branches.rename("new", "old")


def test_a_commit_on_the_way_when_it_is_renamed_does_not_claim_to_have_landed(table: LanceTable) -> None:
    """The writer looked before the mark and put its manifest after; its error is resolved by committing again."""
    left = [True]

    def script(request: Request) -> object:
        if request.commits and left:
            left.pop()
            with pytest.raises(PlugPulledError):
                through(table, plug_pulled_before_write(2)).branches.rename("old", "new")
        return request.send()

    with pytest.raises(CommitStateUnknownError) as caught:
        through(table, script).append(entries("late", 1), branch="old")
    table.branches.rename("old", "new")
    table.commit(caught.value.transaction, branch="new")  # type: ignore[arg-type]
    assert sorted([*ROWS, ("late", 1)]) == contents(table, "new")


def test_a_branch_that_is_being_renamed_takes_no_commit(table: LanceTable) -> None:
    """It cannot be deleted or renamed otherwise either, and errors for both names say how to continue."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(4)).branches.rename("old", "new")
    with raises(CommitConflictError, committed="old@6", retryable=False):
        table.append(entries("late", 1), branch="old")
    with pytest.raises(ConflictError, match="renamed to 'new'"):
        table.branches.delete("old")
    with pytest.raises(ConflictError, match="renamed to 'new'"):
        table.branches.rename("old", "third")
    with pytest.raises(ConflictError, match="renaming 'old'"):
        table.branches.create("new", exist_ok=True)
    table.branches.rename("old", "new")
    assert_renamed(table)


def test_a_renaming_can_be_given_up(table: LanceTable) -> None:
    """Deleting the new name leaves the branch as it was."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(6)).branches.rename("old", "new")
    table.branches.delete("new")
    assert ROWS == contents(table, "old")
    table.append(entries("late", 1), branch="old")
    table.branches.rename("old", "third")
    assert sorted([*ROWS, ("late", 1)]) == contents(table, "third")


def test_a_branch_in_use_is_not_renamed(table: LanceTable) -> None:
    """The error names the references."""
    table.branches.create("old/child", "old")
    table.tags.create("kept", "old@4")
    with pytest.raises(ConflictError, match="tag 'kept', branch 'old/child'"):
        table.branches.rename("old", "new")
    assert ["old", "old/child"] == sorted(table.branches.list())


def refer_before_the_mark(table: LanceTable) -> Script:
    """Create a tag of the branch after the first look for references."""
    left = [True]

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and left:
            left.pop()
            table.tags.create("kept", "old")
        return request.send()

    return script


def test_a_branch_found_to_be_in_use_too_late_is_as_it_was(table: LanceTable) -> None:
    """The new name is free, the branch takes commits, and it can be renamed once there is no reference."""
    with pytest.raises(ConflictError):
        through(table, refer_before_the_mark(table)).branches.rename("old", "new")
    assert ["old"] == list(context_of(table).refs.branches.all())
    table.append(entries("late", 1), branch="old")
    table.delete("key = 'late'", branch="old")
    table.tags.delete("kept")
    table.branches.rename("old", "new")
    assert_renamed(table)


@pytest.mark.parametrize("step", range(3, 7))
def test_a_renaming_begun_of_a_branch_in_use_is_given_up_by_the_next(table: LanceTable, step: int) -> None:
    """The renaming had copied versions before it died."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.rename("old", "new")
    as_pylance(table).tags.create("kept", ("old", 4))
    with pytest.raises(ConflictError):
        table.branches.rename("old", "new")
    assert ["old"] == list(context_of(table).refs.branches.all())
    table.append(entries("late", 1), branch="old")
    assert sorted([*ROWS, ("late", 1)]) == contents(table, "old")
    assert [] == list(Path(table.uri, "tree/new").rglob("*.manifest"))


def test_a_renaming_that_another_one_finished_is_not_given_up(table: LanceTable) -> None:
    """A short-lived tag refers to the branch while another process completes the renaming."""

    def script(request: Request) -> object:
        if request.verb == "walk" and request.key == "_refs":
            looks.append(request.key)
            if len(looks) == 2:
                renamed.append(table.branches.rename("old", "new").name)
                return [ObjectInfo("_refs/tags/kept.json", len(tag), 0.0)]
        if request.verb == "get_with_etag" and request.key.endswith("kept.json"):
            return tag, ""
        return request.send()

    looks: list[str] = []
    renamed: list[str] = []
    table.tags.create("kept", "old")
    tag = Path(table.uri, "_refs/tags/kept.json").read_bytes()
    table.tags.delete("kept")
    with pytest.raises(ConflictError):
        through(table, script).branches.rename("old", "new")
    assert ["new"] == renamed
    assert_renamed(table)


@pytest.mark.parametrize("died", [False, True], ids=["at once", "after a crash"])
def test_a_collection_beside_a_renaming_takes_none_of_its_files(table: LanceTable, *, died: bool) -> None:
    """The files of the branch are old, and so are the copies of a renaming that died long before."""
    age(table, 30 * DAY)
    rows, done = contents(LanceTable.open(table.uri), "old"), False

    def collecting(request: Request) -> object:
        nonlocal done
        if request.commits and not done:
            done = True
            assert LanceTable.open(table.uri).maintenance.collect_garbage(2 * DAY, dry_run=False).done
        return request.send()

    def dying(request: Request) -> object:
        if request.commits:
            raise PlugPulledError
        return request.send()

    if died:
        with pytest.raises(PlugPulledError):
            through(table, dying).branches.rename("old", "new")
        for path in Path(table.uri, "tree/new").rglob("*.*"):
            stored(path, 30 * DAY)
        # One of the copies was collected before; its folder stays.
        next(Path(table.uri, "tree/new/data").glob("*.lance")).unlink()
    through(table, collecting).branches.rename("old", "new")
    assert done
    assert rows == contents(table, "new")
    assert table.maintenance.verify(deep=True).ok


def test_names_that_cannot_be_given(table: LanceTable) -> None:
    """The error has the rule, or what has the name."""
    table.branches.create("taken")
    table.tags.create("tagged", "main")
    with pytest.raises(AlreadyExistsError, match="branch 'taken'"):
        table.branches.rename("old", "taken")
    with pytest.raises(AlreadyExistsError, match="'tagged' is a tag"):
        table.branches.rename("old", "tagged")
    with pytest.raises(InvalidRefNameError):
        table.branches.rename("old", "a b")
    with pytest.raises(InvalidInputError):
        table.branches.rename("main", "trunk")
    with pytest.raises(RefNotFoundError):
        table.branches.rename("none", "new")
    table.branches.create("short", "main@1")
    table.branches.delete("taken")
    with pytest.raises(AlreadyExistsError):
        table.branches.rename("short", "taken")


def test_a_branch_that_began_above_is_renamed(table: LanceTable) -> None:
    """The number at which its versions begin is kept."""
    table.branches.reset("old", "main@2")
    first = table.branches.list()["old"].first
    table.append(entries("n", 1), branch="old")
    renamed = table.branches.rename("old", "new")
    assert (first, f"new@{first + 1}") == (renamed.first, str(table.head("new")))
    table.merge("new")
    assert ("n", 1) in contents(table)


def test_a_tag_gets_another_name(table: LanceTable) -> None:
    """The tag keeps its history."""
    table.tags.create("candidate", "main@2", metadata={"by": "ann"})
    table.tags.move("candidate", "main@3")
    renamed = table.tags.rename("candidate", "production")
    assert ["production"] == list(table.tags.list()) == list(as_pylance(table).tags.list())
    assert ["main@3", "main@2"] == [move.after for move in table.tags.history("production")]
    assert "main@2" == table.tags.rollback("production").ref
    assert "main@3" == renamed.ref
    with pytest.raises(RefNotFoundError):
        table.tags.rename("candidate", "third")


@pytest.mark.parametrize("step", range(3))
def test_a_tag_whose_renaming_died_is_renamed_by_the_next(table: LanceTable, step: int) -> None:
    """There is a tag at each moment, and exactly one in the end."""
    table.tags.create("candidate", "main@2")
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).tags.rename("candidate", "production")
    assert {"main@2"} == {tag.ref for tag in table.tags.list().values()}
    assert "main@2" == table.tags.rename("candidate", "production").ref
    assert ["production"] == list(table.tags.list())
    assert "main@2" == table.tags.rename("candidate", "production").ref


def test_a_tag_that_was_renamed_long_ago_takes_no_other_one_in(table: LanceTable) -> None:
    """A later tag of the old name on the same version is a separate tag."""
    table.tags.create("candidate", "main@2")
    table.tags.rename("candidate", "production")
    table.tags.create("candidate", "main@2", metadata={"note": "second"})
    for _ in range(2):
        with pytest.raises(AlreadyExistsError):
            table.tags.rename("candidate", "production")
    assert "second" == table.tags.get("candidate").metadata["note"]
    table.tags.delete("production")
    table.tags.rename("candidate", "production")
    assert [("production", "second")] == [(name, tag.metadata["note"]) for name, tag in table.tags.list().items()]


def test_a_tag_that_changed_since_its_renaming_died_is_not_lost(table: LanceTable) -> None:
    """A change of the old tag's metadata since then is not in the new tag."""
    table.tags.create("candidate", "main@2")
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(2)).tags.rename("candidate", "production")
    assert ["candidate", "production"] == sorted(table.tags.list())
    table.tags.set_metadata("candidate", {"note": "late"})
    with pytest.raises(AlreadyExistsError):
        table.tags.rename("candidate", "production")
    table.tags.delete("production")
    assert "late" == table.tags.rename("candidate", "production").metadata["note"]


def test_a_tag_that_moves_while_it_is_renamed(table: LanceTable) -> None:
    """The move is refused, or the new tag has it."""
    table.tags.create("candidate", "main@2")
    moved = [True]

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and moved:
            moved.pop()
            table.tags.move("candidate", "main@3")
        return request.send()

    with raises(RefMovedError, expected="main@2", found="main@3"):
        through(table, script).tags.rename("candidate", "production")
    assert {"candidate": "main@3"} == {name: tag.ref for name, tag in table.tags.list().items()}


def test_tags_that_cannot_be_renamed(table: LanceTable) -> None:
    """An immutable tag cannot be renamed, and a tag cannot get a name that is taken."""
    table.tags.create("v1", "main@2", immutable=True)
    table.tags.create("candidate", "main@2")
    with raises(ProtectedError, kind="tag", name="v1", refused="rename"):
        table.tags.rename("v1", "v2")
    with pytest.raises(AlreadyExistsError):
        table.tags.rename("candidate", "v1")
    with pytest.raises(AlreadyExistsError):
        table.tags.rename("candidate", "old")
    assert 2 == len(lance.dataset(table.uri).tags.list())


def test_a_version_that_was_read_before_is_found_under_the_new_name(table: LanceTable) -> None:
    """Its commit id changes, so number and transaction identify it, also after two renamings."""
    read = table.append(entries("v", 1), branch="old")
    before = table.read(read)
    table.branches.rename("old", "new")
    assert "new@" + str(read.number) == str(table.at(read))
    table.branches.rename("new", "newest")
    assert before == table.read(read)
    table.branches.create("old")
    assert before == table.read(read)
    table.branches.delete("newest")
    with pytest.raises(VersionNotFoundError):
        table.at(read)
