"""Protected branches take only merges, and protected tags name only merged versions."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError, InvalidInputError, ProtectedError
from lance_dagster.store import LocalStore
from lance_dagster.types import Protection
from tests.process_race import race
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore, plug_pulled_before_write
from tests.table_factory import as_pylance, contents, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table whose main and releases are protected, with a run branch."""
    made = new_table(tmp_path, entries("a", 1), entries("a", 2))
    made.branches.create("release/1")
    made.branches.protect(["main", "release/*"])
    made.tags.protect(["production", "v*"])
    made.branches.create("run/1")
    made.append(entries("r", 1), branch="run/1")
    return made


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


WRITES: dict[str, Callable[[LanceTable, str], object]] = {
    "append": lambda table, branch: table.append(entries("x", 1), branch=branch),
    "overwrite": lambda table, branch: table.overwrite(entries("x", 1), branch=branch),
    "replace_where": lambda table, branch: table.replace_where("value = 1", entries("x", 1), branch=branch),
    "delete": lambda table, branch: table.delete("value = 1", branch=branch),
    "update": lambda table, branch: table.update({"value": "value + 1"}, branch=branch),
    "upsert": lambda table, branch: table.upsert(entries("a", 1), on=["value"], branch=branch),
    "add_columns": lambda table, branch: table.columns.add(pa.schema({"n": pa.int64()}), branch=branch),
    "drop_columns": lambda table, branch: table.columns.drop(["value"], branch=branch),
    "rename_column": lambda table, branch: table.columns.rename("value", "v", branch=branch),
    "set_config": lambda table, branch: table.config.set({"a": "b"}, branch=branch),
    "set_table_metadata": lambda table, branch: table.config.set_table_metadata({"a": "b"}, branch=branch),
    "add_base": lambda table, branch: table.maintenance.add_base("other", f"{table.uri}-other", branch=branch),
}


@pytest.mark.parametrize("branch", ["main", "release/1"])
@pytest.mark.parametrize("write", WRITES)
def test_a_protected_branch_takes_no_commit(table: LanceTable, write: str, branch: str) -> None:
    """The error has the branch, the pattern and the remedy; no version is made."""
    before = table.head(branch)
    with pytest.raises(ProtectedError) as caught:
        WRITES[write](table, branch)
    assert ("branch", branch) == (caught.value.kind, caught.value.name)
    assert "it is protected " in str(caught.value)
    assert before == table.head(branch)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - bytes of this test
    assert (caught.value.args, str(caught.value)) == (again.args, str(again))


def test_a_protected_branch_takes_merges_and_upkeep(table: LanceTable) -> None:
    """Rows of other branches can be merged, and rows can be compacted."""
    merged = table.merge("run/1")
    assert [("a", 1), ("a", 2), ("r", 1)] == contents(table)
    table.merge("main", into="release/1")
    compacted = table.maintenance.compact()
    assert compacted.number > merged.number
    assert [("a", 1), ("a", 2), ("r", 1)] == contents(table) == contents(table, "release/1")


def test_a_protected_branch_stays(table: LanceTable) -> None:
    """It cannot be deleted, reset or renamed, and no other branch can be renamed to its name."""
    for act in (
        lambda: table.branches.delete("release/1"),
        lambda: table.branches.reset("release/1", "main"),
        lambda: table.branches.rename("release/1", "old"),
        lambda: table.branches.rename("run/1", "release/2"),
    ):
        with raises(ProtectedError, kind="branch"):
            act()
    table.branches.unprotect(["release/*"])
    table.branches.delete("release/1")
    assert ["run/1"] == list(table.branches.list())


def test_a_protected_tag_names_what_was_merged(table: LanceTable) -> None:
    """It moves only along main and protected branches, and cannot be deleted or renamed."""
    with raises(ProtectedError, kind="tag", name="v1", refused="create"):
        table.tags.create("v1", "run/1")
    table.tags.create("v1", "release/1", immutable=True)
    table.tags.move("production", "main@2")
    table.tags.move("production", "main@3")
    with raises(ProtectedError, kind="tag", name="production", refused="move"):
        table.tags.move("production", "run/1")
    assert "main@2" == table.tags.rollback("production").ref
    with raises(ProtectedError, kind="tag", name="v1", refused="delete"):
        table.tags.delete("v1", force=True)
    table.tags.create("other", "run/1")
    for old, new in (("production", "live"), ("other", "v2")):
        with raises(ProtectedError, kind="tag", refused="rename"):
            table.tags.rename(old, new)
    table.tags.unprotect(["v*"])
    table.tags.delete("v1", force=True)
    assert {"production", "other"} == set(table.tags.list())


def test_other_names_are_free(table: LanceTable) -> None:
    """A pattern protects only matching names; a new branch may have a protected name."""
    table.append(entries("r", 2), branch="run/1")
    table.branches.reset("run/1", "main")
    table.branches.delete("run/1")
    table.branches.create("release/2")
    with pytest.raises(ProtectedError):
        table.append(entries("r", 2), branch="release/2")


def test_protection_outlives_what_happens_to_rows(table: LanceTable) -> None:
    """Pylance can overwrite and restore main; the protection is not part of any version."""
    lance.write_dataset(entries("p", 1), table.uri, mode="overwrite")
    dataset = lance.dataset(table.uri, version=1)
    dataset.restore()
    dataset.create_branch("dev").insert(entries("p", 1))
    assert ["dev", "release/1", "run/1"] == sorted(dataset.branches.list())
    lance.dataset(table.uri).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    with pytest.raises(ProtectedError):
        table.append(entries("x", 1))
    assert (
        Protection(branches=("main", "release/*"), tags=("production", "v*"))
        == LanceTable.open(table.uri).branches.protection()
    )


def test_patterns_are_added_and_taken_back(table: LanceTable) -> None:
    """A pattern is added once; a missing pattern cannot be removed."""
    table.branches.protect(["main", "hot*"])
    assert ("hot*", "main", "release/*") == table.branches.protection().branches
    assert ("main", "release/*") == table.branches.unprotect(["hot*"]).branches
    with pytest.raises(InvalidInputError):
        table.branches.unprotect(["hot*"])
    with pytest.raises(InvalidInputError):
        table.tags.protect([""])
    table.branches.unprotect(["main", "release/*"])
    table.tags.unprotect(["production", "v*"])
    assert Protection() == table.branches.protection()
    assert "main@4" == str(table.append(entries("x", 1)))


def test_a_pattern_is_short(table: LanceTable) -> None:
    """A long pattern takes time by the square of its length, at each commit."""
    for act in (table.branches.protect, table.tags.protect):
        act(["a" * 256])
        with pytest.raises(InvalidInputError):
            act(["[" * 257])
    for look in (table.branches.list, table.tags.list):
        with pytest.raises(InvalidInputError):
            look("[" * 257)


LONG = json.dumps({"branches": ["[" * 257], "tags": []}).encode()
MANY = json.dumps({"branches": [f"{number:06}" for number in range(20_000)], "tags": []}).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"branches": "main", "tags": []}', b"\xff", b'{"branches":[1]}', LONG, MANY],
    ids=["empty", "list", "no patterns", "text", "no text", "numbers", "long", "many"],
)
def test_what_cannot_be_read_protects_everything(table: LanceTable, content: bytes) -> None:
    """If the file is damaged, every write is refused, with the file in the error."""
    (Path(table.uri) / "_refs/protection.json").write_bytes(content)
    for act in (
        lambda: table.append(entries("x", 1), branch="run/1"),
        lambda: table.branches.delete("run/1"),
        lambda: table.tags.move("other", "run/1"),
        lambda: table.branches.protect(["a"]),
    ):
        with raises(CorruptFileError, path=str(Path(table.uri) / "_refs/protection.json")):
            act()


@pytest.mark.parametrize("step", range(2))
def test_a_change_that_died_is_made_or_not(table: LanceTable, step: int) -> None:
    """The change is a single write."""
    before = table.branches.protection()
    writer = through(table, plug_pulled_before_write(step))
    if step:
        writer.branches.protect(["x"])
    else:
        with pytest.raises(PlugPulledError):
            writer.branches.protect(["x"])
        assert before == table.branches.protection()
    assert ("main", "release/*", "x") == table.branches.protect(["x"]).branches


def test_a_request_made_twice_is_one_change(table: LanceTable) -> None:
    """A client library may repeat a request after a lost answer, and report its own change as another writer's."""

    def script(request: Request) -> object:
        answer = request.send()
        return False if request.verb == "compare_and_swap" and answer and left and left.pop() else answer

    left = [True]
    assert ("release/*",) == through(table, script).branches.unprotect(["main"]).branches
    left = [True]
    assert ("main", "release/*") == through(table, script).branches.protect(["main"]).branches
    assert ("main", "release/*") == table.branches.protection().branches


def protect(uri: str, name: str) -> bool:
    """Protect one more branch."""
    return name in LanceTable.open(uri).branches.protect([name]).branches


def test_those_who_protect_at_once_all_do(table: LanceTable) -> None:
    """No pattern of concurrent processes is lost."""
    names = ["one", "two", "three"]
    assert [True] * 3 == race(protect, [(table.uri, name) for name in names])
    assert {"main", "release/*", *names} == set(table.branches.protection().branches)


def test_looking_costs_a_commit_no_request(table: LanceTable) -> None:
    """A commit reads the patterns once, and needs one listing of versions less."""
    table.branches.unprotect(["main"])
    asked: list[str] = []

    def script(request: Request) -> object:
        asked.append(f"{request.verb} {request.key}")
        return request.send()

    through(table, script).append(entries("x", 1))
    assert 1 == asked.count("get _refs/protection.json")
    assert 11 >= len([request for request in asked if not request.startswith("sync")]), asked


def test_pylance_goes_on(table: LanceTable) -> None:
    """Pylance ignores the protection, and can use the table."""
    as_pylance(table).insert(entries("p", 1))
    dataset = as_pylance(table)
    dataset.create_branch("by-pylance")
    dataset.tags.create("by-pylance", 2)
    dataset.branches.delete("by-pylance")
    assert [("a", 1), ("a", 2), ("p", 1)] == contents(table)


def test_branches_and_tags_are_protected_by_one_write(table: LanceTable) -> None:
    """A wrong pattern of either kind leaves both unchanged."""
    writes: list[str] = []

    def script(request: Request) -> object:
        if request.writes:
            writes.append(request.key)
        return request.send()

    found = through(table, script).branches.protect(["hot"], tags=["x*"])
    assert (("hot", "main", "release/*"), ("production", "v*", "x*")) == (found.branches, found.tags)
    assert 1 == len(writes)
    with pytest.raises(InvalidInputError):
        table.branches.unprotect(["hot"], tags=["y"])
    assert found == table.branches.protection()
    table.branches.unprotect(["hot"], tags=["x*"])
    assert ("production", "v*") == table.branches.protection().tags
