"""Clones: separate tables made from one version, by reference or by copy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import AlreadyExistsError, InvalidInputError, LanceTable, RefNotFoundError
from lance_dagster.errors import CorruptFileError
from lance_dagster.history.context import TableContext
from lance_dagster.placement.clone import CLONE, clone, write_clone
from lance_dagster.store import open_store
from lance_dagster.transactions.base_paths import deep_clone
from tests.backdating import DAY, age
from tests.compat.tables import OPERATIONS, assert_sound, prepared
from tests.conftest import S3Storage
from tests.raising import raises
from tests.store.scripted import (
    PlugPulledError,
    Request,
    ScriptedStore,
    intruder_at_commit,
    obedient,
    plug_pulled_before_write,
)
from tests.table_factory import SCHEMA, as_pylance, contents, context_on, entries, new_table

SHALLOW, DEEP = "shallow", "deep"
BOTH = pytest.mark.parametrize("kind", [SHALLOW, DEEP])


def cloned(table: LanceTable, place: Path | str, kind: str, at: str = "main") -> LanceTable:
    """A shallow or a deep clone."""
    return table.maintenance.clone(place, at, shallow=kind == SHALLOW)


def branched(folder: Path) -> LanceTable:
    """A table under two base paths, with an index and deletions, and a branch with more of each."""
    table = prepared(folder)
    as_pylance(table).create_scalar_index("value", "BTREE")
    table.maintenance.add_base("cold", folder / "cold")
    table.maintenance.add_base("warm", folder / "warm", is_dataset_root=True)
    table.append(table.stage(entries("cold", 1, 2), base="cold"))
    table.append(table.stage(entries("warm", 1, 2), base="warm"))
    table.branches.create("run")
    table.replace_where("value = 1 and key <> 'a'", entries("new", 1), branch="run")
    as_pylance(table, "run").insert(entries("pylance", 1))
    as_pylance(table, "run").delete("key = 'a' and value = 1")
    return table


RUN = [("a", 2), ("b", 2), ("cold", 2), ("new", 1), ("pylance", 1), ("warm", 2)]


@BOTH
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_clone_has_the_rows_of_its_source(tmp_path: Path, operation: str, kind: str) -> None:
    """The rows keep their ids and versions, in each state of the source."""
    table = prepared(tmp_path)
    rows = OPERATIONS[operation](table)
    clone = cloned(table, tmp_path / "clone", kind)
    assert_sound(as_pylance(clone), rows)
    assert (table.head().number, {}, {}) == (clone.head().number, clone.branches.list(), clone.tags.list())


@BOTH
def test_a_clone_is_neither_inside_its_source_nor_around_it(tmp_path: Path, kind: str) -> None:
    """A collection of one would delete the files of the other, also where a link leads there."""
    table = new_table(tmp_path / "lake", entries("a", 1))
    (tmp_path / "link").symlink_to(table.uri)
    for place in (f"{table.uri}/data/clone", tmp_path / "link" / "clone", tmp_path / "lake"):
        with pytest.raises(InvalidInputError):
            cloned(table, place, kind)
    assert [("a", 1)] == contents(cloned(table, f"{table.uri}-clone", kind))


@BOTH
def test_a_branch_can_be_cloned(tmp_path: Path, kind: str) -> None:
    """The clone has inherited rows, rows under base paths, and rows that pylance wrote into the branch's folder."""
    table = branched(tmp_path)
    clone = cloned(table, tmp_path / "clone", kind, "run")
    assert_sound(as_pylance(clone), RUN)
    plan = as_pylance(clone).scanner(filter="value = 2").explain_plan()
    assert "ScalarIndexQuery" in plan
    assert 4 == clone.count_rows(filter="value = 2")
    assert [(kind == SHALLOW)] * 2 == [bool(clone.maintenance.bases()), bool(list(clone.maintenance.bases()))]


def test_a_deep_clone_needs_nothing_of_its_source(tmp_path: Path) -> None:
    """Each place of the source can be deleted."""
    table = branched(tmp_path)
    clone = cloned(table, tmp_path / "clone", DEEP, "run")
    for place in (table.uri, tmp_path / "cold", tmp_path / "warm"):
        shutil.rmtree(place)
    again = LanceTable.open(clone.uri)
    assert_sound(as_pylance(again), RUN)
    again.branches.create("x")
    again.append(entries("x", 1), branch="x")
    again.merge("x")
    assert_sound(as_pylance(again), [*RUN, ("x", 1)])


def test_a_shallow_clone_is_one_manifest(tmp_path: Path) -> None:
    """The base paths for the source are named after the cloned version."""
    table = branched(tmp_path)
    clone = cloned(table, tmp_path / "clone", SHALLOW, "run")
    assert [] == list((tmp_path / "clone").rglob("*.lance"))
    named = {base.name: base.path for base in clone.maintenance.bases()}
    version = str(table.head("run"))
    own = {version: f"{table.uri}/tree/run", f"{version}-root": table.uri}
    assert {"cold": str(tmp_path / "cold"), "warm": str(tmp_path / "warm"), **own} == named
    assert all(base.id for base in clone.maintenance.bases())


@BOTH
def test_source_and_clone_go_their_own_ways(tmp_path: Path, kind: str) -> None:
    """Neither shows later changes of the other."""
    table = branched(tmp_path)
    clone = cloned(table, tmp_path / "clone", kind, "run")
    clone.replace_where("key IN ('cold', 'a', 'clone')", entries("clone", 1))
    as_pylance(clone).delete("key = 'b'")
    table.overwrite(entries("source", 1), branch="run")
    assert_sound(as_pylance(clone), [("clone", 1), ("new", 1), ("pylance", 1), ("warm", 2)])
    assert [("source", 1)] == contents(table, "run")


@BOTH
def test_branches_of_a_clone_are_merged(tmp_path: Path, kind: str) -> None:
    """Records of merges in the source do not apply to the clone, where main is another branch."""
    table = prepared(tmp_path)
    table.branches.create("run")
    table.append(entries("m", 1))
    table.append(entries("r", 1), branch="run")
    table.merge("main", into="run")
    clone = cloned(table, tmp_path / "clone", kind, "run")
    clone.branches.create("x")
    clone.replace_where("key IN ('m', 'c', 'x')", entries("x", 1), branch="x")
    clone.append(entries("y", 1))
    clone.merge("x")
    rows = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("r", 1), ("x", 1), ("y", 1)]
    assert_sound(as_pylance(clone), rows)
    assert_sound(as_pylance(clone), rows)
    clone.branches.delete("x")
    assert rows == contents(LanceTable.open(clone.uri))


@BOTH
def test_a_clone_can_be_cloned(tmp_path: Path, kind: str) -> None:
    """The second clone may be shallow or deep, of a branch of a shallow one."""
    first = cloned(branched(tmp_path), tmp_path / "first", SHALLOW, "run")
    first.branches.create("run")
    first.append(entries("first", 1), branch="run")
    first.replace_where("key = 'cold' or key = 'first' and value = 2", entries("first", 2), branch="run")
    second = cloned(first, tmp_path / "second", kind, "run")
    rows = sorted([("first", 1), ("first", 2), *(row for row in RUN if row[0] != "cold")])
    assert_sound(as_pylance(second), rows)
    second.branches.create("root-less")
    second.append(entries("z", 1), branch="root-less")
    second.merge("root-less")
    assert_sound(as_pylance(second), sorted([*rows, ("z", 1)]))
    assert len(second.maintenance.bases()) == len({base.name for base in second.maintenance.bases()})


def test_a_clone_of_a_clone_stays_when_the_one_between_is_deleted(tmp_path: Path) -> None:
    """Each table whose files it has keeps them by a tag for it."""
    root = new_table(tmp_path, entries("a", 1, 2))
    middle = cloned(root, tmp_path / "middle", SHALLOW)
    last = cloned(middle, tmp_path / "last", SHALLOW)
    shutil.rmtree(middle.uri)
    for name, tag in root.tags.list().items():
        if tag.metadata[CLONE] == middle.uri:
            root.tags.delete(name)
    root.overwrite(entries("b", 1))
    age(root, 30 * DAY)
    for _ in range(2):
        LanceTable.open(root.uri).maintenance.collect_garbage(DAY, dry_run=False)
        age(root, 2 * DAY)
    assert [("a", 1), ("a", 2)] == contents(LanceTable.open(last.uri, {"allowed_base_paths": middle.uri}))
    assert [last.uri] == [tag.metadata[CLONE] for tag in root.tags.list().values()]


@pytest.mark.parametrize("at", ["main", "run"])
def test_a_clone_of_a_moved_clone_leaves_its_tag(tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture) -> None:
    """The tag for the moved clone has its former place, so the version is told by the clone's first version."""
    root = new_table(tmp_path, entries("a", 1, 2))
    root.branches.create("run")
    root.append(entries("r", 1), branch="run")
    middle = cloned(root, tmp_path / "middle", SHALLOW, at)
    shutil.move(middle.uri, tmp_path / "moved")
    there = LanceTable.open(tmp_path / "moved", {"allowed_base_paths": str(tmp_path)})
    last = cloned(there, tmp_path / "last", SHALLOW)
    assert {middle.uri: str(root.head(at)), last.uri: str(root.head(at))} == {
        tag.metadata[CLONE]: tag.ref for tag in root.tags.list().values()
    }
    assert [] == caplog.records
    for tag in root.tags.list():
        root.tags.delete(tag)
    root.branches.delete("run")
    if at == "run":
        LanceTable.open(root.uri).maintenance.collect_garbage(DAY, dry_run=False)
        cloned(there, tmp_path / "late", SHALLOW)
        assert ["nothing keeps the files of"] == [record.getMessage()[:26] for record in caplog.records]


@BOTH
def test_a_tag_or_an_old_version_can_be_cloned(tmp_path: Path, kind: str) -> None:
    """Any ref can be cloned."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    table.tags.create("early", "main@2")
    table.overwrite(entries("b", 1))
    assert [("a", 1)] == contents(cloned(table, tmp_path / "x", kind, "early"))
    assert [("a", 1), ("a", 2)] == contents(cloned(table, tmp_path / "y", kind, "main@3"))


@BOTH
def test_a_table_that_is_there_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    """The place of the source itself is refused too."""
    table = new_table(tmp_path, entries("a", 1))
    other = new_table(tmp_path, entries("b", 1))
    for place in (other.uri, table.uri):
        with pytest.raises(AlreadyExistsError):
            cloned(table, place, kind)
    assert [("b", 1)] == contents(other)
    assert 1 == len(list(Path(other.uri, "data").iterdir()))


def test_a_deep_clone_without_all_files_is_not_there(tmp_path: Path) -> None:
    """The same call makes the clone once the files are found."""
    table = branched(tmp_path)
    file = next((tmp_path / "cold").iterdir())
    lost = file.rename(tmp_path / "lost")
    with raises(CorruptFileError, path=str(file)):
        cloned(table, tmp_path / "clone", DEEP, "run")
    assert not LanceTable.exists(tmp_path / "clone")
    lost.rename(file)
    assert_sound(as_pylance(cloned(table, tmp_path / "clone", DEEP, "run")), RUN)


def test_a_deep_clone_is_finished_after_any_crash(tmp_path: Path) -> None:
    """A clone interrupted before any of its writes does not exist; a repeated call completes it."""
    table = branched(tmp_path)
    source = context_on(open_store(table.uri))
    state = source.at("run")
    manifest = deep_clone(state.manifest)

    def clone_to(place: str, script: Callable[..., object]) -> TableContext:
        made = context_on(ScriptedStore(open_store(tmp_path / place), script))
        write_clone(source, state, made, manifest)
        return made

    for step in range(100):
        place = f"clone-{step}"
        try:
            clone_to(place, plug_pulled_before_write(step))
        except PlugPulledError:
            # The last write is the hint, before which the clone exists.
            if not LanceTable.exists(tmp_path / place):
                clone_to(place, obedient)
            assert_sound(lance.dataset(tmp_path / place), RUN)
        else:
            assert 10 < step
            return
    pytest.fail("a clone has fewer writes than that")


def test_two_clones_to_one_place_do_not_mix(tmp_path: Path) -> None:
    """Their first versions have different numbers, so both puts of a manifest would succeed."""
    table = branched(tmp_path)
    other = new_table(tmp_path, entries("other", 1))
    source = context_on(open_store(table.uri))
    state = source.at("run")
    said: list[str] = []

    def intrude() -> None:
        with pytest.raises(AlreadyExistsError) as error:
            other.maintenance.clone(tmp_path / "clone")
        said.append(str(error.value))

    made = context_on(ScriptedStore(open_store(tmp_path / "clone"), intruder_at_commit(intrude)))
    write_clone(source, state, made, deep_clone(state.manifest))
    assert [f"another clone is being made at {tmp_path}/clone, of {table.uri} {state} deep"] == [
        text.partition(";")[0] for text in said
    ]
    assert_sound(lance.dataset(tmp_path / "clone"), RUN)
    assert [state.number] == LanceTable.open(tmp_path / "clone").branches.version_numbers()


def test_a_shallow_clone_beside_the_deletion_of_its_branch_is_refused(tmp_path: Path) -> None:
    """The deletion has looked for tags by then, so the tag would not keep the files from a collection."""
    table = branched(tmp_path)
    source = context_on(open_store(table.uri))
    state, said = source.at("run"), list[str]()

    def script(request: Request) -> object:
        # The copies are made after the search for tags, and before the versions are deleted.
        if request.key.startswith("_expired/run/") and not said:
            with pytest.raises(RefNotFoundError) as error:
                clone(source, state, str(tmp_path / "clone"), shallow=True, properties={})
            said.append(str(error.value))
        return request.send()

    LanceTable(context_on(ScriptedStore(open_store(table.uri), script))).branches.delete("run")
    assert {"it is being deleted"} == {text.split("; ")[1] for text in said}
    assert {} == table.tags.list()
    assert not (tmp_path / "clone" / "_versions").exists()


def test_the_same_clone_made_twice_at_once_is_made_once(tmp_path: Path) -> None:
    """The slower call raises an error that the clone exists."""
    table = branched(tmp_path)
    source = context_on(open_store(table.uri))
    state = source.at("run")
    intruder = intruder_at_commit(lambda: cloned(table, tmp_path / "clone", DEEP, "run"))
    made = context_on(ScriptedStore(open_store(tmp_path / "clone"), intruder))
    with pytest.raises(AlreadyExistsError):
        write_clone(source, state, made, deep_clone(state.manifest))
    assert_sound(lance.dataset(tmp_path / "clone"), RUN)


def test_what_was_copied_is_not_copied_again(tmp_path: Path) -> None:
    """Files of the right size are kept, and others are copied again."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    first, second = sorted(Path(table.uri, "data").iterdir())
    there = tmp_path / "clone" / "data"
    there.mkdir(parents=True)
    (there / first.name).write_bytes(first.read_bytes())
    kept = (there / first.name).stat().st_ino
    (there / second.name).write_bytes(second.read_bytes()[:-1])
    clone = cloned(table, tmp_path / "clone", DEEP)
    assert [("a", 1), ("a", 2)] == contents(clone)
    assert kept == (there / first.name).stat().st_ino


@BOTH
def test_blobs_come_along(tmp_path: Path, kind: str) -> None:
    """Blobs lie in a folder beside the data file that has its name."""
    schema = pa.schema([pa.field("key", pa.int64()), lance.blob_field("blob")])
    rows = pa.table([pa.array([1, 2]), lance.blob_array([b"x" * 200_000, b"y" * 6_000_000])], schema=schema)
    lance.write_dataset(rows, tmp_path / "source", data_storage_version="2.2", enable_stable_row_ids=True)
    clone = cloned(LanceTable.open(tmp_path / "source"), tmp_path / "clone", kind)
    if kind == DEEP:
        shutil.rmtree(tmp_path / "source")
    blobs = as_pylance(clone).take_blobs("blob", indices=[0, 1])
    assert [200_000, 6_000_000] == [len(blob.readall()) for blob in blobs if blob]


@BOTH
@pytest.mark.parametrize("way", ["local to S3", "S3 to local", "S3 to S3"])
def test_clones_lie_in_other_storage(tmp_path: Path, s3_storage: S3Storage, way: str, kind: str) -> None:
    """Files under a base path are read with the source's options, whatever options the clone has."""
    source, _, dest = way.split()
    options = s3_storage.storage_options
    places = {"S3": (s3_storage.uri, options), "local": (str(tmp_path), None)}
    table = LanceTable.create(f"{places[source][0]}/source", SCHEMA, storage_options=places[source][1])
    table.append(entries("a", 1, 2, 3))
    table.maintenance.add_base("near", tmp_path / "near")
    table.append(table.stage(entries("near", 1), base="near"))
    table.branches.create("run")
    table.replace_where("key IN ('a', 'b') and value = 1", entries("b", 1), branch="run")
    rows = [("a", 2), ("a", 3), ("b", 1), ("near", 1)]
    clone = table.maintenance.clone(
        f"{places[dest][0]}/clone", "run", shallow=kind == SHALLOW, storage_options=places[dest][1]
    )
    assert rows == contents(clone)
    again = LanceTable.open(clone.uri, clone.storage_options)
    again.replace_where("key = 'a' and value = 2 or key = 'c'", entries("c", 1))
    assert [("a", 3), ("b", 1), ("c", 1), ("near", 1)] == contents(again)
    assert rows == contents(table, "run")


def test_a_clone_on_another_account_reads_its_source_with_the_sources_options(s3_storage: S3Storage) -> None:
    """The clone's own options take precedence for its own files."""
    table = LanceTable.create(f"{s3_storage.uri}/source", SCHEMA, storage_options=s3_storage.storage_options)
    table.append(entries("a", 1))
    other = {**s3_storage.storage_options, "aws_access_key_id": "other-key"}
    clone = table.maintenance.clone(f"{s3_storage.uri}/clone", storage_options=other)
    assert other.items() <= dict(clone.storage_options).items()
    assert "test-key" == clone.storage_options["base_1.aws_access_key_id"]
    assert [("a", 1)] == contents(clone)
    deep = table.maintenance.clone(f"{s3_storage.uri}/deep", shallow=False, storage_options=other)
    assert (other, [("a", 1)]) == (dict(deep.storage_options), contents(deep))
