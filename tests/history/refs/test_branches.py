"""Branches are created and deleted, concurrently, and by processes that die at any step."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    InvalidRefNameError,
    RefNotFoundError,
    StoreError,
    VersionNotFoundError,
)
from lance_dagster.history.refs.ref_files import CREATING, NEVER_A_VERSION, READY, STATE
from lance_dagster.store import LocalStore
from tests.raising import raises
from tests.store.scripted import (
    PlugPulledError,
    Request,
    Script,
    ScriptedStore,
    answer_lost_at_write,
    plug_pulled_before_write,
)
from tests.table_factory import as_pylance, contents, context_of, context_on, entries, new_table

WRITES_TO_CREATE = 4
"""The writes are the name, the transaction, the manifest, the hint and the mark that it is ready."""
WRITES_TO_DELETE = 7
"""The writes are two marks, the fence, the copy of its one manifest, that manifest, the other files and the name."""


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of one row."""
    return new_table(tmp_path, entries("a", 1))


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def ref_file(table: LanceTable, name: str) -> Path:
    """The file of a branch's metadata."""
    return Path(table.uri) / "_refs/branches" / f"{name}.json"


def assert_usable(table: LanceTable, name: str) -> None:
    """A new branch has the parent's rows and takes new ones, and pylance reads all of them."""
    before = contents(table, name)
    assert READY == table.branches.list()[name].state
    table.append(entries("z", 1), branch=name)
    as_pylance(table).checkout_version((name, None)).insert(entries("z", 2))
    assert sorted([*before, ("z", 1), ("z", 2)]) == contents(table, name)
    assert name in as_pylance(table).branches.list()


def test_creating_writes_what_is_counted_here(table: LanceTable) -> None:
    """The numbers are right, so tests interrupt a creation or deletion at each write."""
    for expected, job in ((WRITES_TO_CREATE, "create"), (WRITES_TO_DELETE, "delete")):
        written: list[str] = []

        def script(request: Request, written: list[str] = written) -> object:
            if request.writes:
                written.append(f"{request.verb} {request.key}")
            return request.send()

        getattr(through(table, script).branches, job)("run")
        assert expected == len(written), written


@pytest.mark.parametrize("step", range(WRITES_TO_CREATE))
@pytest.mark.parametrize("exist_ok", [True, False])
def test_a_creation_that_died_is_finished_by_the_next(table: LanceTable, step: int, *, exist_ok: bool) -> None:
    """The next caller gets the branch, whatever was written before; until then the branch does not exist."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.create("run")
    assert {} == table.branches.list()
    with pytest.raises(RefNotFoundError):
        table.read("run")
    made = table.branches.create("run", exist_ok=exist_ok)
    assert ("run", "main@2") == (made.name, made.parent)
    assert_usable(table, "run")


@pytest.mark.parametrize("step", range(WRITES_TO_CREATE))
def test_a_creation_whose_answer_was_lost_is_finished_by_the_next(table: LanceTable, step: int) -> None:
    """Each write is made, but the answer to one is lost."""
    try:
        through(table, answer_lost_at_write(step)).branches.create("run")
    except StoreError:
        table.branches.create("run", exist_ok=True)
    assert_usable(table, "run")


@pytest.mark.parametrize("step", range(1, WRITES_TO_DELETE))
def test_a_deletion_that_died_is_finished_by_the_next(table: LanceTable, step: int) -> None:
    """The branch is gone for readers after the mark, and a second deletion removes the rest."""
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.delete("run")
    assert {} == table.branches.list()
    table.branches.delete("run")
    assert not ref_file(table, "run").exists()
    assert not (Path(table.uri) / "tree").exists()


@pytest.mark.parametrize("step", range(1, WRITES_TO_DELETE))
def test_a_deletion_that_died_is_in_the_way_of_no_merge(table: LanceTable, step: int) -> None:
    """Both other branches have its rows, which are identified by row ids, as after a complete deletion."""
    for name in ("run", "other"):
        table.branches.create(name)
    table.append(entries("r", 1), branch="run")
    table.merge("run", into="other")
    table.append(entries("o", 1), branch="other")
    table.append(entries("r", 2), branch="run")
    table.merge("run")
    before = contents(table)
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.delete("run")
    again = LanceTable.open(table.uri)
    again.merge("other")
    assert sorted([*before, ("o", 1)]) == contents(again)


@pytest.mark.parametrize("step", range(WRITES_TO_DELETE))
def test_a_name_whose_deletion_died_can_be_taken(table: LanceTable, step: int) -> None:
    """The new branch has the rows of its fork point, and none of the old branch."""
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.delete("run")
    if not step:
        table.branches.delete("run")
    table.branches.create("run")
    assert [("a", 1)] == contents(table, "run")
    assert_usable(table, "run")


def test_a_branch_being_created_elsewhere_is_helped_along(table: LanceTable) -> None:
    """A mark of another process without versions becomes a branch with the same id."""
    lineage = [[NEVER_A_VERSION, "0123456789abcdef0123456789abcdef"]]
    described = {
        "parentBranch": None,
        "identifier": {"version_mapping": lineage},
        "parentVersion": 2,
        "createAt": 1_700_000_000,
        "manifestSize": 400,
        "metadata": {STATE: CREATING, "asker": "somebody"},
    }
    ref_file(table, "run").parent.mkdir(parents=True)
    ref_file(table, "run").write_text(json.dumps(described))
    made = table.branches.create("run", exist_ok=True)
    assert ("0123456789abcdef0123456789abcdef", "somebody") == (made.id, made.metadata["asker"])
    assert_usable(table, "run")


def test_a_branch_being_created_from_elsewhere_is_not_passed_off(table: LanceTable) -> None:
    """A caller does not get a branch of another version without an error or `exist_ok`."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(1)).branches.create("run", "main@1")
    with pytest.raises(AlreadyExistsError):
        table.branches.create("run", "main@2")
    assert "main@1" == table.branches.create("run", "main@2", exist_ok=True).parent


def test_the_loser_of_a_race_for_a_name_is_told(table: LanceTable) -> None:
    """Another process takes the name between the look and the put."""

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and "_refs" in request.key:
            table.branches.create("run")
        return request.send()

    with pytest.raises(AlreadyExistsError):
        through(table, script).branches.create("run")
    again = through(table, script).branches.create("run", exist_ok=True)
    assert table.branches.list()["run"].id == again.id


def test_a_branch_that_is_being_deleted_is_not_brought_back(table: LanceTable) -> None:
    """A late completion of a creation does not undo a deletion in between."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(WRITES_TO_CREATE - 1)).branches.create("run")

    def script(request: Request) -> object:
        if request.verb == "get_with_etag":
            with pytest.raises(PlugPulledError):
                through(table, plug_pulled_before_write(1)).branches.delete("run")
        return request.send()

    with pytest.raises(ConflictError):
        through(table, script).branches.create("run", exist_ok=True)
    assert {} == table.branches.list()


def test_a_name_that_is_taken_is_refused(table: LanceTable) -> None:
    """The error has the fork point of the existing branch; `exist_ok` returns it unchanged."""
    first = table.branches.create("run", metadata={"why": "test"})
    with pytest.raises(AlreadyExistsError, match="forked from main@2"):
        table.branches.create("run")
    table.append(entries("b", 1))
    assert first.id == table.branches.create("run", exist_ok=True).id
    assert "test" == table.branches.list()["run"].metadata["why"]


def test_a_tag_and_a_branch_cannot_share_a_name(table: LanceTable) -> None:
    """The name would be ambiguous."""
    table.tags.create("release", "main")
    table.branches.create("run")
    with pytest.raises(AlreadyExistsError):
        table.branches.create("release")
    with pytest.raises(AlreadyExistsError):
        table.tags.create("run", "main")
    with raises(InvalidRefNameError, kind="tag", name="main", rule="'main' is reserved for the main branch"):
        table.tags.move("main", "main")


def test_a_bad_name_is_refused_before_anything_is_written(table: LanceTable) -> None:
    """The error has the rule, and no file is written."""
    with raises(
        InvalidRefNameError,
        kind="branch",
        name="a b",
        rule="segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'a b'",
    ):
        table.branches.create("a b")
    with raises(InvalidRefNameError, kind="tag", name="a/b", rule="a tag name cannot contain '/'"):
        table.tags.create("a/b", "main")
    assert not (Path(table.uri) / "_refs" / "branches").exists()


def test_a_branch_in_use_is_not_deleted(table: LanceTable) -> None:
    """The error names each reference; without references the branch is deleted."""
    table.branches.create("run")
    table.branches.create("run/child", "run")
    table.tags.create("kept", "run")
    with pytest.raises(ConflictError, match="tag 'kept', branch 'run/child'"):
        table.branches.delete("run")
    table.tags.delete("kept")
    table.branches.delete("run/child")
    table.branches.delete("run")
    assert {} == table.branches.list()


def test_a_branch_with_a_version_after_the_given_one_is_kept(table: LanceTable) -> None:
    """Later versions than `newest` prevent the deletion; a version of another branch is refused."""
    table.branches.create("b")
    first = table.append(entries("b", 1), branch="b")
    table.append(entries("b", 2), branch="b")
    with pytest.raises(ConflictError):
        table.branches.delete("b", newest=first)
    assert_usable(table, "b")
    with pytest.raises(InvalidInputError):
        table.branches.delete("b", newest=table.head())
    table.branches.delete("b", newest=table.head("b"))
    assert {} == table.branches.list()


def test_a_branch_that_is_not_there_cannot_be_deleted(table: LanceTable) -> None:
    """The error has the nearest name."""
    table.branches.create("run/17")
    with raises(RefNotFoundError, ref="run/71", kind="branch", known=("main", "run/17")):
        table.branches.delete("run/71")


def test_deleting_a_branch_leaves_its_neighbours(table: LanceTable) -> None:
    """A branch whose name continues with a slash, and one with the same prefix, keep their rows."""
    for name in ("run/1", "run/1/deeper", "run/10"):
        table.branches.create(name)
        table.append(entries(name, 1), branch=name)
    table.branches.delete("run/1")
    assert [("a", 1), ("run/10", 1)] == contents(table, "run/10")
    assert [("a", 1), ("run/1/deeper", 1)] == contents(table, "run/1/deeper")
    table.branches.create("run/1")
    assert [("a", 1)] == contents(table, "run/1")


def test_versions_without_metadata_are_in_the_way(table: LanceTable) -> None:
    """Versions that another program left are named in the error, and not used."""
    as_pylance(table).create_branch("run")
    ref_file(table, "run").unlink()
    with pytest.raises(AlreadyExistsError, match="without metadata"):
        table.branches.create("run")


def test_a_new_branch_names_inherited_files_through_a_base(table: LanceTable) -> None:
    """Its first version has the parent's rows and number, and pylance reads the same rows."""
    table.branches.create("run")
    version = table.at("run")
    assert ("run@2", "Clone", ("main@2",)) == (str(version), version.operation, version.parents)
    dataset = as_pylance(table, "run")
    dataset.validate()
    assert [("a", 1)] == [(row["key"], row["value"]) for row in dataset.to_table().to_pylist()]
    manifest = context_of(table).head("run").manifest
    assert [(1, table.uri, "root", True)] == [
        (base.id, base.path, base.name, base.is_dataset_root) for base in manifest.base_paths
    ]


def test_the_lineage_protects_a_branch_from_clean_up_of_its_parent(table: LanceTable) -> None:
    """The lineage begins with a version that never exists, so pylance always reads the branch."""
    table.branches.create("outer")
    table.branches.create("inner", "outer")
    lineage = json.loads(ref_file(table, "inner").read_bytes())["identifier"]["version_mapping"]
    assert [NEVER_A_VERSION, NEVER_A_VERSION] == [version for version, _ in lineage]
    assert [table.branches.list()["outer"].id, table.branches.list()["inner"].id] == [own for _, own in lineage]
    listed = lance.dataset(table.uri).branches.list()
    assert "outer" == listed["inner"]["parent_branch"]


WRITES_TO_RESET = 10
"""The writes are two marks, the fence, the copy of its one manifest, that manifest, the other files, the name again,
the first number, the transaction, the manifest and the hint; the mark that it is ready is one more.
"""


@pytest.mark.parametrize("step", range(WRITES_TO_RESET + 1))
def test_a_reset_that_died_is_finished_by_the_next(table: LanceTable, step: int) -> None:
    """The branch is unchanged or missing until the next reset, and its metadata is kept."""
    first = table.branches.create("run", metadata={"why": "test"})
    table.append(entries("b", 1), branch="run")
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.reset("run", "main@1")
    assert table.branches.list() == ({} if step else {"run": first})
    made = table.branches.reset("run", "main@1")
    assert ("main@1", "test", READY) == (made.parent, made.metadata["why"], made.state)
    assert first.id != made.id
    assert [] == contents(table, "run")
    assert_usable(table, "run")


@pytest.mark.parametrize("step", range(1, WRITES_TO_RESET + 1))
def test_a_branch_whose_reset_died_can_be_deleted_or_made_again(table: LanceTable, step: int) -> None:
    """This holds for each step at which the reset died."""
    for job in ("delete_branch", "create_branch"):
        table.branches.create("run", "main@1")
        with pytest.raises(PlugPulledError):
            through(table, plug_pulled_before_write(step)).branches.reset("run", "main@2")
        if job == "delete_branch":
            table.branches.delete("run")
            assert not ref_file(table, "run").exists()
            assert not (Path(table.uri) / "tree").exists()
        else:
            table.branches.create("run", "main@2", exist_ok=True)
            assert_usable(table, "run")


def test_a_reset_writes_what_is_counted_here(table: LanceTable) -> None:
    """The number is right, so tests interrupt a reset at each write."""
    table.branches.create("run")
    written: list[str] = []

    def script(request: Request) -> object:
        if request.writes:
            written.append(f"{request.verb} {request.key}")
        return request.send()

    through(table, script).branches.reset("run", "main@1")
    assert WRITES_TO_RESET + 1 == len(written), written


def test_what_cannot_be_reset(table: LanceTable) -> None:
    """`main`, a referenced branch and a missing branch cannot be reset."""
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    with pytest.raises(InvalidInputError, match="cannot be reset"):
        table.branches.reset("main", "run")
    table.branches.create("run/child", "run")
    with pytest.raises(ConflictError):
        table.branches.reset("run", "main@1")
    with pytest.raises(RefNotFoundError):
        table.branches.reset("none", "main@1")
    assert [("a", 1), ("b", 1)] == contents(table, "run")


@pytest.mark.parametrize("referrer", ["branch", "tag", "move"])
@pytest.mark.parametrize("when", ["list", "compare_and_swap"])
def test_who_refers_to_a_branch_while_it_is_deleted(table: LanceTable, referrer: str, when: str) -> None:
    """Either the branch stays, or there is no reference to it."""
    table.branches.create("run")
    table.tags.create("moving", "main@1")
    jobs: dict[str, Callable[[], object]] = {
        "branch": partial(table.branches.create, "child", "run"),
        "tag": partial(table.tags.create, "kept", "run"),
        "move": partial(table.tags.move, "moving", "run"),
    }
    refer = jobs[referrer]
    for place in range(12):
        seen = 0

        def script(request: Request, place: int = place) -> object:
            nonlocal seen
            if request.verb == when:
                seen += 1
                if seen == place + 1:
                    with suppress(RefNotFoundError, ConflictError):
                        refer()
            return request.send()

        deleted = False
        with suppress(ConflictError):
            through(table, script).branches.delete("run")
            deleted = True
        users = context_of(table).refs.referrers_of("run")
        assert not (deleted and users)
        assert deleted != ("run" in table.branches.list())
        if "child" in table.branches.list():
            table.branches.delete("child")
        if "kept" in table.tags.list():
            table.tags.delete("kept")
        table.tags.move("moving", "main@1")
        table.branches.create("run", exist_ok=True)
    assert_usable(table, "run")


REFERRERS: dict[str, Callable[[LanceTable], object]] = {
    "branch": lambda table: table.branches.create("other", "run"),
    "new tag": lambda table: table.tags.create("other", "run"),
    "moved tag": lambda table: table.tags.move("moving", "run"),
}


@pytest.mark.parametrize("job", REFERRERS)
def test_a_branch_that_is_deleted_while_somebody_refers_to_it(table: LanceTable, job: str) -> None:
    """At each request of the other process, the reference is refused, or its version exists."""
    table.tags.create("moving", "main@1")
    for place in range(60):
        table.branches.create("run", exist_ok=True)
        seen = 0

        def script(request: Request, place: int = place) -> object:
            nonlocal seen
            seen += 1
            if seen == place + 1:
                with suppress(ConflictError):
                    table.branches.delete("run")
            return request.send()

        made = False
        with suppress(RefNotFoundError, VersionNotFoundError, ConflictError):
            REFERRERS[job](through(table, script))
            made = True
        users = context_of(table).refs.referrers_of("run")
        assert made == bool(users)
        assert not made or "run" in table.branches.list()
        assert "other" in table.branches.list() or "other" in table.tags.list() or not made or job == "moved tag"
        if "other" in table.branches.list():
            table.branches.delete("other")
        if "other" in table.tags.list():
            table.tags.delete("other")
        table.tags.move("moving", "main@1")
        if seen <= place:
            break
    else:
        raise AssertionError("it makes fewer requests")


def test_metadata_is_changed_by_compare_and_swap(table: LanceTable) -> None:
    """Concurrent changes of different keys are both made; None removes a key."""
    table.branches.create("run", metadata={"why": "test", "who": "ann"})

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and "where" not in table.branches.list()["run"].metadata:
            table.branches.set_metadata("run", {"where": "here"})
        return request.send()

    through(table, script).branches.set_metadata("run", {"who": "bob", "why": None})
    found = {
        key: value for key, value in table.branches.get("run").metadata.items() if not key.startswith("lance_dagster.")
    }
    assert {"who": "bob", "where": "here"} == found
    assert {"who": "bob", "where": "here"}.items() <= as_pylance(table).branches.list()["run"]["metadata"].items()


def test_keys_of_the_package_are_not_for_others(table: LanceTable) -> None:
    """These keys hold the state of a branch, and changing them could undo a deletion."""
    with pytest.raises(InvalidInputError):
        table.branches.create("run", metadata={STATE: "ready"})
    table.branches.create("run")
    with pytest.raises(InvalidInputError):
        table.branches.set_metadata("run", {STATE: None})
    with pytest.raises(RefNotFoundError):
        table.branches.set_metadata("none", {"a": "b"})
    with pytest.raises(RefNotFoundError):
        table.branches.get("main")


def test_branches_are_listed_by_pattern(table: LanceTable) -> None:
    """Files of other branches are not read."""
    for name in ("run/1", "run/2", "release/1", "dev"):
        table.branches.create(name)
    asked: list[str] = []

    def script(request: Request) -> object:
        asked.append(request.key)
        return request.send()

    assert ["run/1", "run/2"] == sorted(through(table, script).branches.list("run/*"))
    assert ["_refs/branches", "_refs/branches/run%2F1.json", "_refs/branches/run%2F2.json"] == sorted(asked)
    assert ["release/1", "run/1"] == sorted(table.branches.list("*/1"))
    assert 4 == len(table.branches.list())
