"""A moved or copied table works at its new place, with branches and tags, by changes of metadata alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec
import lance
import pytest

from lance_dagster import InvalidInputError, LanceTable, StoreError
from lance_dagster.errors import BasePathRefusedError, CorruptFileError
from lance_dagster.format.transaction import Restore, Transaction
from lance_dagster.history.refs.branch_operations import create_branch
from lance_dagster.history.refs.ref_files import DELETING
from lance_dagster.placement.relocate import How, move_base, relocate
from lance_dagster.store import open_store
from lance_dagster.types import Relocation
from tests.compat.tables import OPERATIONS, assert_sound, prepared
from tests.conftest import S3Storage
from tests.raising import raises
from tests.store.scripted import (
    PlugPulledError,
    Request,
    ScriptedStore,
    answer_lost_at_write,
    intruder_at_commit,
    plug_pulled_before_write,
)
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, context_on, entries, new_table

NAMES = ("main", "run", "inner")


def branched(folder: Path) -> LanceTable:
    """A table with deletions and an index, a branch, a branch forked from it, and tags on old and newest versions."""
    table = prepared(folder)
    as_pylance(table).create_scalar_index("value", "BTREE")
    table.branches.create("run")
    table.append(entries("r", 1, 2, 3), branch="run")
    table.tags.create("old", "run")
    table.replace_where("key = 'a' and value = 1 or key = 'r' and value = 4", entries("r", 4), branch="run")
    table.branches.create("inner", "run")
    table.replace_where("key = 'r' and value = 2 or key IN ('c', 'i')", entries("i", 1), branch="inner")
    table.append(entries("r", 5), branch="run")
    table.append(entries("m", 1))
    table.tags.create("production", "main")
    table.tags.create("candidate", "run")
    return table


def rows_of(table: LanceTable, *more: str) -> dict[str, Rows]:
    """The rows of every branch, and of the given refs."""
    return {name: contents(table, name) for name in (*NAMES, *more)}


def moved(table: LanceTable, place: Path = Path("moved")) -> LanceTable:
    """The table, opened after its folder was moved."""
    to = Path(table.uri).parent / place
    to.parent.mkdir(parents=True, exist_ok=True)
    Path(table.uri).rename(to)
    return LanceTable.open(to)


def tags_of(table: LanceTable) -> dict[str, str]:
    """The version that each tag names."""
    return {name: tag.ref for name, tag in table.tags.list().items()}


def test_a_moved_table_is_what_it_was(tmp_path: Path) -> None:
    """Each branch and each tag has the same rows as before."""
    table = branched(tmp_path)
    before = rows_of(table, "old", "candidate", "production")
    there = moved(table)
    with pytest.raises(BasePathRefusedError):
        contents(there, "run")
    done = there.maintenance.relocate()
    again = LanceTable.open(there.uri)
    assert before == rows_of(again, "old", "candidate", "production")
    for name in NAMES:
        assert_sound(as_pylance(again, name), before[name])
    assert {"inner", "run"} == {branch.name for branch in done.branches}
    assert {"candidate", "old"} == {tag.name for tag in done.tags}
    # Earlier versions reference the old place, which is gone, so their files are looked for at the new one.
    report = again.maintenance.verify(deep=True)
    assert (True, ()) == (report.ok, report.base_paths)


def test_what_was_done_is_told(tmp_path: Path) -> None:
    """The result has the versions, the places, the number of files found, and the new versions of tags."""
    table = branched(tmp_path)
    run, inner = table.head("run").number, table.head("inner").number
    there = moved(table)
    done = there.maintenance.relocate()
    by_name = {branch.name: branch for branch in done.branches}
    assert (f"run@{run}", f"run@{run + 1}") == (by_name["run"].before, by_name["run"].after)
    assert f"inner@{inner + 1}" == by_name["inner"].after
    assert ((table.uri, there.uri), (f"{table.uri}/tree/run", f"{there.uri}/tree/run")) == by_name["inner"].paths
    # Main's index and one of its data files, three files of the branches, and the deletion file of the parent branch.
    assert 6 == by_name["inner"].files
    assert {"old": "run@5", "candidate": f"run@{run}"} == {tag.name: tag.before for tag in done.tags}
    assert {"old": "relocated-old@6", "candidate": f"run@{run + 1}", "production": "main@5"} == tags_of(there)
    assert "UpdateBases" == there.head("run").operation


def test_a_relocated_table_goes_on_working(tmp_path: Path) -> None:
    """Writes, merges, new branches and deletions work without the old place."""
    table = branched(tmp_path)
    before = rows_of(table)
    there = moved(table)
    there.maintenance.relocate()
    there.append(entries("x", 1), branch="run")
    there.replace_where("key = 'r' and value = 1 or key = 'x' and value = 2", entries("x", 2), branch="inner")
    there.branches.create("later", "run")
    there.append(entries("x", 3), branch="later")
    there.merge("inner", into="run")
    there.merge("later", into="run")
    there.merge("run")
    merged = contents(there)
    kept = [row for row in {*before["main"], *before["run"]} if row not in {("c", 1), ("a", 1), ("r", 1), ("r", 2)}]
    assert sorted([*kept, ("i", 1), ("x", 1), ("x", 2), ("x", 3)]) == merged
    assert_sound(as_pylance(there), merged)
    for name in ("old", "candidate"):
        there.tags.delete(name)
    for name in ("relocated-old", "later", "inner", "run"):
        there.branches.delete(name)
    assert merged == contents(LanceTable.open(there.uri))
    assert () == there.maintenance.bases()


def test_a_copy_lives_without_the_original(tmp_path: Path) -> None:
    """The branches read the original's files before the call, and their own after it."""
    table = branched(tmp_path)
    before = rows_of(table, "old")
    shutil.copytree(table.uri, tmp_path / "copy")
    copy = LanceTable.open(tmp_path / "copy")
    copy.maintenance.relocate()
    copy.append(entries("x", 1), branch="run")
    assert before == rows_of(table, "old")
    assert () == table.maintenance.relocate().branches
    shutil.rmtree(table.uri)
    assert before | {"run": sorted([*before["run"], ("x", 1)])} == rows_of(LanceTable.open(copy.uri), "old")


def test_a_second_call_finds_nothing_to_do(tmp_path: Path) -> None:
    """The first call has nothing to do if the table was not moved."""
    table = branched(tmp_path)
    assert Relocation() == table.maintenance.relocate()
    there = moved(table)
    assert Relocation() != there.maintenance.relocate()
    assert Relocation() == there.maintenance.relocate()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """The result is that of the real run, including the numbers of files."""
    there = moved(branched(tmp_path))
    heads = {name: str(there.head(name)) for name in NAMES}
    would = there.maintenance.relocate(dry_run=True)
    assert heads == {name: str(there.head(name)) for name in NAMES}
    done = there.maintenance.relocate()
    assert [(b.name, b.before, b.paths, b.files) for b in would.branches] == [
        (b.name, b.before, b.paths, b.files) for b in done.branches
    ]
    assert {None} == {entry.after for entry in (*would.branches, *would.tags)}
    assert [(tag.name, tag.before) for tag in would.tags] == [(tag.name, tag.before) for tag in done.tags]


def test_a_table_is_moved_again_and_back(tmp_path: Path) -> None:
    """The table moves to its earlier folder and below it, with branches forked in between."""
    table = branched(tmp_path)
    before = rows_of(table, "old")
    place = Path(table.uri).name
    there = moved(table, tmp_path / "a" / "b")
    there.maintenance.relocate()
    there.branches.create("second", "run")
    for to in ("a/b-2", "c/d/e", "tmp", "c/d", "f", place):
        there = moved(there, tmp_path / to)
        if to != "tmp":
            there.maintenance.relocate()
            assert before == rows_of(there, "old")
            assert before["run"] == contents(there, "second")
    assert table.uri == there.uri


def test_a_table_is_moved_twice_before_it_is_relocated(tmp_path: Path) -> None:
    """Branches of different ages reference different old places."""
    table = branched(tmp_path)
    before = rows_of(table)
    there = moved(table, Path("first"))
    there.branches.create("second", "main")
    there.append(entries("s", 1), branch="second")
    rows = contents(there, "second")
    last = moved(there, Path("last"))
    last.maintenance.relocate()
    assert before == rows_of(last)
    assert rows == contents(last, "second")


def test_an_old_version_is_read_through_a_branch(tmp_path: Path) -> None:
    """A version never changes, so a branch is forked from it and relocated."""
    table = branched(tmp_path)
    version = str(table.head("run"))
    rows = contents(table, version)
    there = moved(table)
    there.maintenance.relocate()
    # A hint to relocate again would not help the reader.
    with raises(BasePathRefusedError, before_move=str(version)):
        contents(there, version)
    there.branches.create("look", version)
    there.maintenance.relocate()
    assert rows == contents(there, "look")
    assert_sound(as_pylance(there, "look"), rows)


def test_going_back_on_a_relocated_branch_keeps_the_new_place(tmp_path: Path) -> None:
    """The branch has the rows of the old version."""
    table = branched(tmp_path)
    version = table.head("run").number
    rows = contents(table, "run")
    there = moved(table)
    there.maintenance.relocate()
    there.overwrite(entries("x", 1), branch="run")
    head = there.head("run").number
    there.commit(Transaction(read_version=head, uuid="back", operation=Restore(version=version)), branch="run")
    assert rows == contents(there, "run")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_state_of_a_table_is_moved(tmp_path: Path, operation: str) -> None:
    """Every state that a table can have survives a move."""
    table = prepared(tmp_path)
    OPERATIONS[operation](table)
    before = {name: contents(table, name) for name in ("main", *table.branches.list(), *table.tags.list())}
    there = moved(table)
    there.maintenance.relocate()
    assert before == {name: contents(there, name) for name in before}


@pytest.mark.parametrize(
    "spelling",
    ["file://{}", "{}/", "file://{}/"],
    ids=["scheme", "trailing slash", "both"],
)
def test_a_branch_forked_under_another_spelling_is_put_right(tmp_path: Path, spelling: str) -> None:
    """The spelling of the place is corrected, because pylance's clean-up compares base paths as strings."""
    table = prepared(tmp_path)
    before = contents(table)
    lance.dataset(spelling.format(table.uri)).create_branch("run").insert(entries("r", 1))
    with pytest.raises(InvalidInputError):
        table.append(entries("r", 2), branch="run")
    table.maintenance.relocate()
    table.append(entries("r", 2), branch="run")
    assert sorted([*before, ("r", 1), ("r", 2)]) == contents(table, "run")
    there = moved(table)
    there.maintenance.relocate()
    assert sorted([*before, ("r", 1), ("r", 2)]) == contents(there, "run")


def test_files_that_did_not_come_along_are_named(tmp_path: Path) -> None:
    """Nothing is committed to that branch; the missing file and a second call complete the relocation."""
    table = branched(tmp_path)
    before = rows_of(table)
    there = moved(table)
    deletion = next(Path(there.uri, "tree/run/_deletions").iterdir())
    away = deletion.rename(tmp_path / "away")
    number = there.head("inner").number
    with pytest.raises(CorruptFileError, match=f"it lacks 1 file of inner@{number}, .*{deletion.name}"):
        there.maintenance.relocate()
    assert number == there.head("inner").number
    away.rename(deletion)
    there.maintenance.relocate()
    assert before == rows_of(there)


def test_files_are_not_looked_for_when_told_so(tmp_path: Path) -> None:
    """This is for copies whose metadata arrives before the data."""
    there = moved(branched(tmp_path))
    data = Path(there.uri, "data").rename(tmp_path / "later")
    done = there.maintenance.relocate(check=False)
    assert {0} == {branch.files for branch in done.branches}
    data.rename(Path(there.uri, "data"))
    assert 9 == len(contents(there, "run"))


def test_the_old_place_can_be_given(tmp_path: Path) -> None:
    """The place can have any spelling; a place that is not the old one changes nothing."""
    table = branched(tmp_path)
    there = moved(table)
    assert Relocation() == there.maintenance.relocate(tmp_path / "elsewhere")
    assert 2 == len(there.maintenance.relocate(f"file://{table.uri}/").branches)
    assert 9 == len(contents(there, "run"))


def test_bases_in_the_tables_folder_come_along_and_others_stay(tmp_path: Path) -> None:
    """Main gets a commit for these bases, too."""
    table = prepared(tmp_path)
    table.maintenance.add_base("inside", f"{table.uri}/cold")
    table.maintenance.add_base("outside", tmp_path / "cold", is_dataset_root=True)
    table.append(table.stage(entries("in", 1), base="inside"))
    table.append(table.stage(entries("out", 1), base="outside"))
    table.branches.create("run")
    table.append(table.stage(entries("in", 2), branch="run", base="inside"), branch="run")
    before = {name: contents(table, name) for name in ("main", "run")}
    there = moved(table)
    done = there.maintenance.relocate()
    assert ["main", "run"] == [branch.name for branch in done.branches]
    assert before == {name: contents(there, name) for name in before}
    assert [f"{there.uri}/cold", str(tmp_path / "cold")] == [base.path for base in there.maintenance.bases()]


def test_a_moved_clone_still_names_its_source(tmp_path: Path) -> None:
    """A moved source is found after `move_base`."""
    table = branched(tmp_path)
    clone = table.maintenance.clone(tmp_path / "clone", "run")
    clone.branches.create("run")
    clone.append(entries("x", 1), branch="run")
    before = {name: contents(clone, name) for name in ("main", "run")}
    there = moved(clone, Path("moved-clone"))
    there.maintenance.relocate()
    assert before == {name: contents(there, name) for name in before}
    source = moved(table, Path("moved-source"))
    there.maintenance.move_base(table.uri, source.uri)
    again = LanceTable.open(there.uri)
    assert before == {name: contents(again, name) for name in before}
    for name in before:
        as_pylance(again, name).validate()


def test_a_tag_is_rolled_back_after_a_move(tmp_path: Path) -> None:
    """The repair of a tag is no move; the version before it gets correct base paths when the tag goes back to it."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    for value in (2, 3):
        table.append(entries("r", value), branch="run")
        table.tags.move("production", "run") if value > 2 else table.tags.create("production", "run")
    there = moved(table, Path("moved"))
    there.maintenance.relocate()
    assert [("a", 1), ("r", 2), ("r", 3)] == contents(there, "production")
    assert [("run@3", "run@5"), (None, "run@3")] == [
        (move.before, move.after) for move in there.tags.history("production")
    ]
    there.tags.rollback("production")
    assert [("a", 1), ("r", 2)] == contents(LanceTable.open(there.uri), "production")
    assert "relocated-production" == there.tags.get("production").branch
    assert "every base path is correct" == str(there.maintenance.relocate())


def test_a_circle_of_forks_ends(tmp_path: Path) -> None:
    """Two damaged branch files name each other as parents, and the moved table is repaired nevertheless."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("one")
    table.branches.create("two", "one")
    path = Path(table.uri, "_refs/branches/one.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "parentBranch": "two"}))
    there = moved(table, Path("moved"))
    assert {"one", "two"} == {change.name for change in there.maintenance.relocate().branches}
    assert "every base path is correct" == str(there.maintenance.relocate())


def crashed(tmp_path: Path, place: str, script: Callable[[Request], object]) -> LanceTable:
    """A copy of the moved table after a relocation through a store with a script."""
    shutil.copytree(tmp_path / "moved", tmp_path / place)
    context = context_on(ScriptedStore(open_store(tmp_path / place), script))
    relocate(context, None, How())
    return LanceTable.open(tmp_path / place)


def test_a_relocation_is_finished_after_any_crash(tmp_path: Path) -> None:
    """The relocation is interrupted before each of its writes, and repeated."""
    table = branched(tmp_path)
    before = rows_of(table, "old", "candidate", "production")
    moved(table)
    for step in range(100):
        try:
            crashed(tmp_path, f"copy-{step}", plug_pulled_before_write(step))
        except PlugPulledError:
            again = LanceTable.open(tmp_path / f"copy-{step}")
            again.maintenance.relocate()
            assert before == rows_of(again, "old", "candidate", "production")
            assert Relocation() == again.maintenance.relocate()
            assert 3 == len(again.branches.list())
        else:
            assert 10 < step
            return
    pytest.fail("a relocation has fewer writes than that")


def test_a_lost_answer_changes_nothing(tmp_path: Path) -> None:
    """Each write was made, and the same or the next call finds that out."""
    table = branched(tmp_path)
    before = rows_of(table, "old", "candidate", "production")
    moved(table)
    for step in range(30):
        place = f"copy-{step}"
        try:
            crashed(tmp_path, place, answer_lost_at_write(step))
        except StoreError:
            LanceTable.open(tmp_path / place).maintenance.relocate()
        assert before == rows_of(LanceTable.open(tmp_path / place), "old", "candidate", "production")


def test_a_table_is_moved_on_s3(s3_storage: S3Storage) -> None:
    """The table moves to another prefix."""
    options = dict(s3_storage.storage_options)
    table = LanceTable.create(f"{s3_storage.uri}/here", SCHEMA, storage_options=options)
    table.append(entries("a", 1, 2))
    table.branches.create("run")
    table.append(entries("r", 1, 2), branch="run")
    table.tags.create("old", "run")
    table.replace_where("key = 'a' and value = 1 or key = 'r' and value IN (1, 3)", entries("r", 3), branch="run")
    before = {name: contents(table, name) for name in ("main", "run", "old")}
    files = filesystem(s3_storage)
    bucket = s3_storage.uri.removeprefix("s3://")
    for key in files.find(f"{bucket}/here"):
        files.mv(key, key.replace("/here/", "/far/away/", 1))
    there = LanceTable.open(f"{s3_storage.uri}/far/away", options)
    done = there.maintenance.relocate()
    assert [("run", 3)] == [(branch.name, branch.files) for branch in done.branches]
    assert before == {name: contents(there, name) for name in before}
    there.append(entries("x", 1), branch="run")
    there.merge("run")
    assert sorted([*before["run"], ("x", 1)]) == contents(there)
    assert Relocation() == there.maintenance.relocate()


def test_a_local_table_is_moved_to_s3_and_back(tmp_path: Path, s3_storage: S3Storage) -> None:
    """The new place has another scheme."""
    table = branched(tmp_path)
    before = rows_of(table, "old")
    files, bucket = filesystem(s3_storage), s3_storage.uri.removeprefix("s3://")
    files.put(f"{table.uri}/", f"{bucket}/t/", recursive=True)
    shutil.rmtree(table.uri)
    there = LanceTable.open(f"{s3_storage.uri}/t", s3_storage.storage_options)
    there.maintenance.relocate()
    assert before == rows_of(there, "old")
    there.append(entries("x", 1), branch="run")
    files.get(f"{bucket}/t/", f"{tmp_path}/back/", recursive=True)
    back = LanceTable.open(tmp_path / "back")
    back.maintenance.relocate()
    assert before | {"run": sorted([*before["run"], ("x", 1)])} == rows_of(back, "old")


def filesystem(storage: S3Storage) -> fsspec.AbstractFileSystem:
    """The server as an operator uses it to copy objects."""
    options = storage.storage_options
    return fsspec.filesystem(
        "s3",
        key=options["aws_access_key_id"],
        secret=options["aws_secret_access_key"],
        client_kwargs={"endpoint_url": options["aws_endpoint"], "region_name": options["aws_region"]},
        use_listings_cache=False,
    )


def test_a_branch_that_was_being_made_is_finished_at_the_new_place(tmp_path: Path) -> None:
    """The creation is interrupted at any step before the move, and repeated after it."""
    table = prepared(tmp_path)
    rows = contents(table)
    for step in range(20):
        context = context_on(ScriptedStore(open_store(table.uri), plug_pulled_before_write(step)))
        try:
            create_branch("run", context.at("main"), context.refs, context.versions, exist_ok=True, metadata={})
        except PlugPulledError:
            there = moved(table, Path(f"moved-{step}"))
            there.maintenance.relocate()
            there.branches.create("run", exist_ok=True)
            there.maintenance.relocate()
            assert rows == contents(there, "run")
            there.append(entries("r", 1), branch="run")
            assert sorted([*rows, ("r", 1)]) == contents(there, "run")
            there.branches.delete("run")
            table = there
        else:
            assert step > 2
            return


def test_a_branch_that_was_being_deleted_stays_out_of_it(tmp_path: Path) -> None:
    """Nothing is committed to a branch that is being deleted."""
    table = prepared(tmp_path)
    branch = table.branches.create("run")
    context = context_on(open_store(table.uri))
    context.refs.branches.set_state(branch, DELETING)
    there = moved(table)
    assert Relocation() == there.maintenance.relocate()
    there.branches.delete("run")
    assert {} == there.branches.list()


def test_a_writer_that_gets_in_between_is_followed(tmp_path: Path) -> None:
    """The relocation is committed on top of another writer's commit to the branch."""
    table = branched(tmp_path)
    before = rows_of(table)
    there = moved(table)
    intruder = intruder_at_commit(lambda: as_pylance(there, "inner").insert(entries("x", 1)))
    relocate(context_on(ScriptedStore(open_store(there.uri), intruder)), None, How())
    assert before | {"inner": sorted([*before["inner"], ("x", 1)])} == rows_of(there)


def test_two_relocations_at_once_are_one(tmp_path: Path) -> None:
    """The slower process finds everything done."""
    table = branched(tmp_path)
    before = rows_of(table, "old", "candidate")
    there = moved(table)
    head = there.head("run").number
    other = intruder_at_commit(LanceTable.open(there.uri).maintenance.relocate)
    relocate(context_on(ScriptedStore(open_store(there.uri), other)), None, How())
    assert before == rows_of(there, "old", "candidate")
    assert head + 1 == there.head("run").number


def test_a_branch_forked_under_a_relative_path_is_relocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path was relative to the working directory of another process."""
    table = prepared(tmp_path)
    rows = contents(table)
    monkeypatch.chdir(tmp_path)
    lance.dataset(Path(table.uri).name).create_branch("run").insert(entries("r", 1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = moved(table)
    there.maintenance.relocate()
    assert sorted([*rows, ("r", 1)]) == contents(there, "run")


def test_a_move_of_a_base_is_finished_after_any_crash(tmp_path: Path) -> None:
    """The move is completed on every branch, and for a tag on an earlier version."""
    table = prepared(tmp_path)
    table.maintenance.add_base("cold", tmp_path / "cold")
    table.append(table.stage(entries("cold", 1), base="cold"))
    table.tags.create("early", "main")
    table.append(entries("m", 1))
    table.branches.create("run")
    table.append(table.stage(entries("cold", 2), branch="run", base="cold"), branch="run")
    before = {name: contents(table, name) for name in ("main", "run", "early")}
    (tmp_path / "cold").rename(tmp_path / "ice")
    for step in range(100):
        place = tmp_path / f"copy-{step}"
        shutil.copytree(table.uri, place)
        LanceTable.open(place).maintenance.relocate(check=False)
        context = context_on(ScriptedStore(open_store(place), plug_pulled_before_write(step)))
        try:
            move_base(context, "cold", str(tmp_path / "ice"), How())
        except PlugPulledError:
            again = LanceTable.open(place)
            again.maintenance.move_base("cold", tmp_path / "ice")
            assert before == {name: contents(again, name) for name in before}
            assert Relocation() == again.maintenance.move_base("cold", tmp_path / "ice")
        else:
            assert step > 6
            return
    pytest.fail("a move has fewer writes than that")
