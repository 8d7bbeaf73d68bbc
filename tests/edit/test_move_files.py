"""Data files move to another base path: rows, ids, row versions and indices stay, whoever writes meanwhile."""

import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from tests.backdating import DAY, age
from tests.conftest import S3Storage
from tests.store.providers import requests_of
from tests.store.scripted import PlugPulledError, Request, plug_pulled_before_write
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, entries, new_table, through

LINEAGE = ["key", "value", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
OLD = "key = 'old'"
ALL: Rows = [("mixed", 1), ("new", 1), ("new", 2), ("old", 1), ("old", 2), ("old", 3), ("old", 9)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Four fragments, of which the rows of the first and the second are all old, and a base path."""
    table = new_table(
        tmp_path,
        entries("old", 1, 2, 7),
        entries("old", 3),
        pa.concat_tables([entries("old", 9), entries("mixed", 1)]),
        entries("new", 1, 2),
    )
    table.delete("value = 7")
    table.maintenance.add_base("cold", tmp_path / "cold", is_dataset_root=True)
    return table


def lineage(table: LanceTable, ref: str = "main") -> pa.Table:
    """The rows with their row ids and row versions."""
    return table.to_lance(ref).to_table(columns=LINEAGE).sort_by([("key", "ascending"), ("value", "ascending")])


def places(table: LanceTable, branch: str = "main") -> list[int | None]:
    """The base ids of the data files, by fragment."""
    fragments = table.to_lance(branch).get_fragments()
    return [file.base_id for fragment in fragments for file in fragment.metadata.files]


def data_files(folder: Path) -> set[str]:
    """The names of the data files in a folder."""
    return {path.name for path in folder.rglob("*.lance")}


def test_only_whole_fragments_move_and_nothing_else_changes(table: LanceTable, tmp_path: Path) -> None:
    """One version names the copies; the mixed fragment stays. pylance reads, validates and changes the table."""
    before, versions = lineage(table), len(table.log())
    as_pylance(table).create_scalar_index("value", "BTREE")
    indices, content = table.maintenance.indices(), table.maintenance.content_id()
    move = table.maintenance.move_files(OLD, "cold", message="tier", properties={"who": "me"})
    assert ((0, 1), 2, "cold", False) == (move.fragments, move.files, move.to, move.dry_run)
    assert ("Rewrite", "tier", "me") == (move.version.operation, move.version.message, move.version.properties["who"])
    assert [1, 1, None, None] == places(table)
    assert before == lineage(table)
    assert versions + 2 == len(table.log())
    assert (indices, content) == (table.maintenance.indices(), table.maintenance.content_id())
    assert table.maintenance.verify(deep=True).ok
    dataset = as_pylance(table)
    dataset.validate()
    plan = dataset.scanner(filter="value = 3").explain_plan()
    assert "ScalarIndexQuery" in plan
    assert 1 == dataset.count_rows("value = 3")
    assert () == table.diff("main~1", "main").fragments
    dataset.delete("value = 3")
    dataset.insert(entries("new", 4))
    assert sorted([*(row for row in ALL if row[1] != 3), ("new", 4)]) == contents(table)
    assert 2 == len(data_files(tmp_path / "cold" / "data"))


def test_a_dry_run_tells_all_and_does_nothing(table: LanceTable, tmp_path: Path) -> None:
    """Fragments, files and bytes are those of the call that follows."""
    head, done = table.head(), list[tuple[int, int]]()
    planned = table.maintenance.move_files(OLD, "cold", dry_run=True)
    assert (head, True) == (table.head(), planned.dry_run)
    assert not data_files(tmp_path / "cold")
    move = table.maintenance.move_files(OLD, "cold", progress=lambda step, total: done.append((step, total)))
    size = sum(path.stat().st_size for path in (tmp_path / "cold").rglob("*.lance"))
    assert (planned.fragments, planned.files, planned.bytes) == (move.fragments, move.files, size)
    assert [(1, 2), (2, 2)] == done
    assert "would move 2 fragments to cold, 2 files with" in str(planned)
    again = table.maintenance.move_files(OLD, "cold")
    assert ((), move.version) == (again.fragments, again.version)
    assert "no fragment to move" in str(again)


def test_ranges_tell_which_fragments_move_without_reading_rows(tmp_path: Path) -> None:
    """Rows that were replaced by partition are known to the version; it knows them after the move as well."""
    table = new_table(tmp_path)
    for day in ("d1", "d2", "d3"):
        table.replace_where(f"key = '{day}'", entries(day, 1))
    table.maintenance.add_base("cold", tmp_path / "cold")
    assert ((0, 1), 0) == (
        (move := table.maintenance.move_files("key < 'd3'", "cold")).fragments,
        move.searched,
    )
    assert 0 == table.maintenance.move_files("key < 'd2'", "root", dry_run=True).searched


@pytest.mark.parametrize("is_dataset_root", [True, False])
def test_files_move_back_and_the_collection_takes_what_nobody_names(
    table: LanceTable, tmp_path: Path, *, is_dataset_root: bool
) -> None:
    """The former files go when the versions that name them are gone, at both places."""
    if not is_dataset_root:
        table.maintenance.add_base("flat", tmp_path / "flat")
    name = "cold" if is_dataset_root else "flat"
    before, here, there = lineage(table), Path(table.uri) / "data", tmp_path / name
    first = data_files(here)
    table.maintenance.move_files(OLD, name)
    moved = data_files(there)
    collect(table, there)
    assert (first - moved, moved) == (data_files(here), data_files(there))
    assert before == lineage(table)
    table.maintenance.move_files(OLD, "root")
    assert [None] * 4 == places(table)
    collect(table, there)
    assert (first, set()) == (data_files(here), data_files(there))
    assert before == lineage(table)
    assert not list((Path(table.uri) / "_refs" / "copies").iterdir())
    as_pylance(table).validate()
    assert table.maintenance.verify(deep=True).ok


def collect(table: LanceTable, there: Path) -> None:
    """Collect everything that is not needed now; twice, since files of expired versions settle for a day."""
    for _ in range(2):
        age(table, 3 * DAY)
        backdate(there)
        assert table.maintenance.collect_garbage(timedelta(0), grace=timedelta(days=1), dry_run=False).done


def backdate(folder: Path) -> None:
    """Make the files of a base path three days older; the allowance keeps its time."""
    for path in folder.rglob("*"):
        if path.is_file() and "_refs" not in path.parts:
            old = path.stat().st_mtime - (3 * DAY).total_seconds()
            os.utime(path, (old, old))


def test_a_version_that_stays_keeps_its_files(table: LanceTable, tmp_path: Path) -> None:
    """A tag on a version before the move keeps the former files, and one after it the copies."""
    table.tags.create("before", "main")
    table.maintenance.move_files(OLD, "cold")
    table.tags.create("after", "main")
    table.delete(OLD)
    collect(table, tmp_path / "cold")
    assert ALL == contents(table, "before") == contents(table, "after")


def test_two_base_paths_are_told_apart(table: LanceTable, tmp_path: Path) -> None:
    """From one tier to the next: the copy at the first goes."""
    table.maintenance.move_files(OLD, "cold")
    # Base paths are told apart by when their allowances were written.
    time.sleep(0.01)
    table.maintenance.add_base("colder", tmp_path / "colder")
    table.maintenance.move_files(OLD, "colder")
    collect(table, tmp_path / "cold")
    assert (set(), 2) == (data_files(tmp_path / "cold"), len(data_files(tmp_path / "colder")))
    assert ALL == contents(table)


def test_files_of_other_tables_under_the_base_path_stay(table: LanceTable, tmp_path: Path) -> None:
    """Nothing is deleted there that no record names, and nothing where another table may name files."""
    table.maintenance.move_files(OLD, "cold")
    cold = tmp_path / "cold" / "data"
    (cold / "other.lance").write_bytes(b"somebody's")
    elsewhere = new_table(tmp_path / "elsewhere", entries("x", 1))
    elsewhere.maintenance.add_base("cold", tmp_path / "cold", is_dataset_root=True)
    table.maintenance.move_files(OLD, "root")
    age(table, 3 * DAY)
    backdate(tmp_path / "cold")
    report = table.maintenance.collect_garbage(timedelta(0), grace=timedelta(days=1), dry_run=False)
    assert ["another table may use them too" in str(problem) for problem in report.problems] == [True]
    assert 3 == len(data_files(cold))
    for allowance in (tmp_path / "cold" / "_refs" / "tables").iterdir():
        if elsewhere.uri in allowance.read_text():
            allowance.unlink()
    collect(table, tmp_path / "cold")
    assert {"other.lance"} == data_files(cold)


def test_a_folder_with_two_uris_loses_nothing(table: LanceTable, tmp_path: Path) -> None:
    """A base path that is the folder of the table by another name keeps the files there."""
    table.maintenance.move_files(OLD, "cold")
    (tmp_path / "cold2").symlink_to(tmp_path / "cold")
    # The files are at the same place by both names, and one of the names is what versions use.
    table.maintenance.move_base("cold", tmp_path / "cold2")
    collect(table, tmp_path / "cold")
    assert ALL == contents(table)


def test_blobs_and_digests_move_along(tmp_path: Path) -> None:
    """Blobs are in files beside the data file, and digests in names."""
    table = blob_table(tmp_path)
    table.maintenance.record_digests()
    for is_root, name in ((True, "cold"), (False, "flat")):
        table.maintenance.add_base(name, tmp_path / name, is_dataset_root=is_root)
        move = table.maintenance.move_files("id < 10", name)
        # The data file and its blob, and a digest of each.
        assert (1, 4) == (len(move.fragments), move.files)
        assert read_blobs(table) == [b"x" * 100_000, b"y" * 10]
        assert table.maintenance.verify(deep=True).ok
        as_pylance(table).validate()
    collect(table, tmp_path / "flat")
    backdate(tmp_path / "cold")
    assert table.maintenance.collect_garbage(timedelta(0), grace=timedelta(days=1), dry_run=False).done
    assert [] == [path for path in (tmp_path / "cold").rglob("*") if path.is_file() and "_refs" not in path.parts]
    assert read_blobs(table) == [b"x" * 100_000, b"y" * 10]


def blob_table(tmp_path: Path) -> LanceTable:
    """Two rows with a blob beside the file and one in it."""
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    uri = tmp_path / f"blobs-{uuid.uuid4().hex[:8]}"
    rows = pa.table([pa.array([1, 2]), lance.blob_array([b"x" * 100_000, b"y" * 10])], schema=schema)
    lance.write_dataset(rows, str(uri), data_storage_version="2.2", enable_stable_row_ids=True)
    return LanceTable.open(uri)


def read_blobs(table: LanceTable) -> list[bytes]:
    """The blobs of the newest version."""
    dataset = as_pylance(table)
    return [blob.readall() for blob in dataset.take_blobs("blob", indices=[0, 1]) if blob is not None]


Act = Callable[[LanceTable], object]
ROWS_LEFT: dict[str, tuple[Act, Rows, int]] = {
    "append": (lambda table: table.append(entries("late", 1)), [*ALL, ("late", 1)], 2),
    "delete": (lambda table: table.delete("value = 1"), [row for row in ALL if row[1] != 1], 2),
    "delete all of one": (lambda table: table.delete("value = 3"), [row for row in ALL if row[1] != 3], 1),
    "update": (
        lambda table: table.update({"value": "value + 10"}, where="value = 3"),
        sorted([*(row for row in ALL if row[1] != 3), ("old", 13)]),
        1,
    ),
    "compact": (lambda table: table.maintenance.compact(), ALL, 0),
    "pylance deletes": (lambda table: as_pylance(table).delete("value = 1"), [r for r in ALL if r[1] != 1], 2),
    "pylance compacts": (lambda table: as_pylance(table).optimize.compact_files(), ALL, 0),
    "overwrite": (lambda table: table.overwrite(entries("all", 1)), [("all", 1)], 0),
    "add a column": (lambda table: table.columns.add({"twice": "value * 2"}), ALL, 0),
    "index": (lambda table: as_pylance(table).create_scalar_index("value", "BTREE"), ALL, 2),
}


@pytest.mark.parametrize("name", ROWS_LEFT)
def test_what_others_commit_during_the_copies_stays(table: LanceTable, name: str) -> None:
    """The move is made on top of it; fragments that changed their files are left alone."""
    act, expected, moved = ROWS_LEFT[name]
    acted = list[str]()

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.commits and not acted:
            acted.append(name)
            act(table)
        return request.send()

    move = through(table, script).maintenance.move_files(OLD, "cold")
    assert ([name], moved) == (acted, len(move.fragments))
    assert sorted(expected) == contents(table)
    assert moved == sum(place == 1 for place in places(table))
    as_pylance(table).validate()
    assert table.maintenance.verify(deep=True).ok


PREPARED: dict[str, tuple[Callable[[lance.LanceDataset], object], Rows]] = {
    "delete": (lambda dataset: dataset.delete("value = 1"), [row for row in ALL if row[1] != 1]),
    "update": (
        lambda dataset: dataset.update({"value": "30"}, "value = 3"),
        sorted([*(row for row in ALL if row[1] != 3), ("old", 30)]),
    ),
    "append": (lambda dataset: dataset.insert(entries("late", 1)), sorted([*ALL, ("late", 1)])),
    "compact": (lambda dataset: dataset.optimize.compact_files(), ALL),
    "index": (lambda dataset: dataset.create_scalar_index("value", "BTREE"), ALL),
}
REFUSED = ("compact", "index")


@pytest.mark.parametrize("name", PREPARED)
def test_a_change_that_pylance_prepared_before_is_right_after_the_move(table: LanceTable, name: str) -> None:
    """A handle on the version before commits on top: it tries again, or says that there is a conflict."""
    act, expected = PREPARED[name]
    dataset = as_pylance(table)
    table.maintenance.move_files(OLD, "cold")
    if name in REFUSED:
        with pytest.raises(OSError, match="preempted by concurrent"):
            act(dataset)
    act(as_pylance(table) if name in REFUSED else dataset)
    assert expected == contents(table)
    as_pylance(table).validate()
    assert table.maintenance.verify(deep=True).ok


def test_the_cleanup_of_pylance_loses_nothing(table: LanceTable) -> None:
    """It keeps every file of a name that some version has, wherever that version looks for it."""
    before = lineage(table)
    table.maintenance.move_files(OLD, "cold")
    as_pylance(table).cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert before == lineage(table)
    assert 1 == len(as_pylance(table).versions())
    as_pylance(table).validate()


def test_a_killed_move_leaves_only_copies_that_the_collection_takes(table: LanceTable, tmp_path: Path) -> None:
    """Killed between two copies, and before each of its writes to the table; a repeated call moves the files."""
    before, cold = lineage(table), tmp_path / "cold"

    def killed_after_a_copy(_: int, __: int) -> None:
        raise PlugPulledError

    with pytest.raises(PlugPulledError):
        table.maintenance.move_files(OLD, "cold", progress=killed_after_a_copy)
    assert data_files(cold)
    assert before == lineage(table)
    table.maintenance.collect_garbage(timedelta(0), grace=timedelta(days=1), dry_run=False)
    assert data_files(cold)
    collect(table, cold)
    assert set() == data_files(cold)
    for writes in range(10):
        scripted, killed = through(table, plug_pulled_before_write(writes)), False
        try:
            scripted.maintenance.move_files(OLD, "cold")
        except PlugPulledError:
            killed = True
        assert before == lineage(table)
        if not killed or places(table) != [None] * 4:
            break
        collect(table, cold)
        assert set() == data_files(cold)
    # The last one was killed after its commit.
    assert ([1, 1, None, None], True) == (places(table), killed)
    assert 2 == writes
    assert table.maintenance.verify(deep=True).ok


@pytest.mark.parametrize("to", ["cold", "root"])
def test_a_move_over_files_that_are_about_to_be_collected(table: LanceTable, tmp_path: Path, to: str) -> None:
    """The collection has taken them for garbage when the move begins, and leaves them."""
    before, cold, moved = lineage(table), tmp_path / "cold", list[str]()
    table.maintenance.move_files(OLD, "cold")
    if to == "cold":
        table.maintenance.move_files(OLD, "root")
    # The versions that name the leftovers expire first.
    age(table, 3 * DAY)
    backdate(cold)
    table.maintenance.collect_garbage(timedelta(0), grace=timedelta(days=1), dry_run=False)
    age(table, 3 * DAY)
    backdate(cold)

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if (request.verb, request.key) == ("list", "_refs/copies") and not moved:
            moved.append(to)
            assert 2 == len(LanceTable.open(table.uri).maintenance.move_files(OLD, to).fragments)
        return request.send()

    report = through(table, script).maintenance.collect_garbage(timedelta(0), grace=timedelta(days=1), dry_run=False)
    assert (True, [to]) == (report.done, moved)
    assert report.files >= 2
    assert before == lineage(table)
    as_pylance(table).validate()
    assert table.maintenance.verify(deep=True).ok


@pytest.mark.parametrize("stable", [True, False])
def test_branches_merge_as_if_nothing_had_moved(tmp_path: Path, *, stable: bool) -> None:
    """One side moved files, and the other deleted, updated and added rows; in both directions."""
    for mover, writer in (("main", "fix"), ("fix", "main")):
        table = made_by_pylance(tmp_path, stable=stable)
        table.delete("value = 3")
        table.maintenance.add_base("cold", tmp_path / uuid.uuid4().hex)
        table.branches.create("fix")
        table.maintenance.move_files("key = 'old'", "cold", branch=mover)
        assert [("new", 1), ("old", 1), ("old", 2)] == contents(table, mover) == contents(table, "main")
        table.delete("value = 2", branch=writer)
        table.append(entries("late", 5), branch=writer)
        table.merge("fix")
        assert [("late", 5), ("new", 1), ("old", 1)] == contents(table)
        as_pylance(table).validate()
        assert table.maintenance.verify(deep=True).ok
        if mover == "main":
            assert 1 in places(table)
        table.branches.delete("fix")
        assert [("late", 5), ("new", 1), ("old", 1)] == contents(table)


def made_by_pylance(folder: Path, *, stable: bool) -> LanceTable:
    """Two fragments of old rows and one of a new row."""
    uri = str(folder / uuid.uuid4().hex)
    lance.write_dataset(entries("old", 1, 2, 3), uri, enable_stable_row_ids=stable)
    lance.write_dataset(entries("new", 1), uri, mode="append")
    return LanceTable.open(uri)


def test_files_of_a_branch_move_on_the_branch_alone(table: LanceTable, tmp_path: Path) -> None:
    """Inherited files too; `main` keeps naming its own, and back to the root means the folder of the table."""
    table.branches.create("run")
    table.append(entries("old", 20), branch="run")
    before = lineage(table, "run")
    move = table.maintenance.move_files(OLD, "cold", branch="run")
    assert ((0, 1, 4), [None] * 4) == (move.fragments, places(table))
    assert before == lineage(table, "run")
    as_pylance(table, "run").validate()
    table.maintenance.move_files(OLD, "root", branch="run")
    assert before == lineage(table, "run")
    table.branches.delete("run")
    collect(table, tmp_path / "cold")
    assert ALL == contents(table)


def test_a_version_before_the_move_is_restored(table: LanceTable) -> None:
    """Its files are where they were; moving them again names the copies that are there."""
    move = table.maintenance.move_files(OLD, "cold")
    table.append(entries("late", 1))
    table.restore(f"{move.version}~1")
    assert [None] * 4 == places(table)
    table.maintenance.move_files(OLD, "cold")
    assert [1, 1, None, None] == places(table)
    assert ALL == contents(table)
    assert table.maintenance.verify(deep=True).ok


def test_rows_that_a_revert_brings_back_are_right(table: LanceTable) -> None:
    """A deletion before the move is taken back after it."""
    deletion = table.delete("value = 3 or value = 1")
    table.maintenance.move_files(OLD, "cold")
    table.revert(str(deletion))
    assert ALL == contents(table)
    as_pylance(table).validate()


def test_a_shallow_clone_moves_inherited_files_into_its_own_folder(table: LanceTable, tmp_path: Path) -> None:
    """And not into the folder of the table that it was made of."""
    clone = table.maintenance.clone(tmp_path / "clone")
    clone.maintenance.move_files(OLD, "root")
    assert 2 == len(data_files(Path(clone.uri) / "data"))
    assert ALL == contents(clone)
    source = next(base.name or "" for base in clone.maintenance.bases() if base.path == table.uri)
    with pytest.raises(InvalidInputError):
        clone.maintenance.move_files(OLD, source)


@pytest.mark.parametrize(
    "where, to, message",
    [
        ("nothing = 1", "cold", "nothing"),
        (OLD, "colder", "no base path named 'colder'"),
        (None, "cold", "where"),
        ("true) OR (true", "cold", "filter"),
    ],
)
def test_a_call_that_cannot_be_is_refused(table: LanceTable, where: Any, to: str, message: str) -> None:  # noqa: ANN401
    """Before anything is copied."""
    head = table.head()
    with pytest.raises(InvalidInputError, match=message):
        table.maintenance.move_files(where, to)
    assert head == table.head()


def test_the_requests_told_beforehand_are_made(s3_storage: S3Storage) -> None:
    """Each copy within the storage takes as many requests as the dry run says."""
    options = dict(s3_storage.storage_options)

    def moved(files: int) -> tuple[int, int]:
        uri = f"{s3_storage.uri}/table{files}"
        table = LanceTable.create(uri, SCHEMA, storage_options=options)
        for number in range(files):
            table.append(entries("old", number))
        table.maintenance.add_base("cold", f"{s3_storage.uri}/cold{files}")
        planned = table.maintenance.move_files("true", "cold", dry_run=True)
        assert 0 == planned.searched
        sent = len(requests_of(s3_storage, lambda: table.maintenance.move_files("true", "cold")))
        assert files == len(contents(table))
        return planned.requests, sent

    (few, few_made), (many, many_made) = moved(2), moved(6)
    assert many - few == many_made - few_made
