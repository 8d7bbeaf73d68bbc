"""Base paths: rows outside the table's own folder, also after such a place was moved."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import AlreadyExistsError, InvalidInputError, LanceTable, StagedFiles, write_files
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.transaction import Restore, Transaction
from tests.conftest import S3Storage
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, entries, new_table

COLD: Rows = [("cold", 1), ("cold", 2)]
FILES, ROOT = "folder of files", "dataset root"
BOTH = pytest.mark.parametrize("kind", [FILES, ROOT])


def tiered(folder: Path, kind: str = FILES) -> LanceTable:
    """A table with a row of its own and two under a base path."""
    table = new_table(folder, entries("hot", 1))
    table.maintenance.add_base("cold", folder / "cold", is_dataset_root=kind == ROOT)
    table.append(table.stage(entries("cold", 1, 2), base="cold"))
    return table


def files_below(folder: Path) -> list[str]:
    """The data files below a folder, relative to it."""
    return sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("*.lance"))


@BOTH
def test_rows_are_written_to_a_base_and_read_with_the_others(tmp_path: Path, kind: str) -> None:
    """The rows differ only in where their files lie."""
    table = tiered(tmp_path, kind)
    assert ["data" if kind == ROOT else "."] == files_below(tmp_path / "cold")
    assert [*COLD, ("hot", 1)] == contents(table)
    assert 2 == table.count_rows(filter="key = 'cold'")
    as_pylance(table).validate()


@BOTH
def test_rows_in_a_base_can_be_replaced(tmp_path: Path, kind: str) -> None:
    """Deletion files lie in the folder of the table."""
    table = tiered(tmp_path, kind)
    table.replace_where("key = 'cold' and value IN (1, 3)", table.stage(entries("cold", 3), base="cold"))
    table.replace_where("key = 'cold' and value IN (2, 4)", entries("cold", 4))
    assert [("cold", 3), ("cold", 4), ("hot", 1)] == contents(table)
    assert not (tmp_path / "cold" / "_deletions").exists()
    as_pylance(table).validate()


def test_a_table_can_be_overwritten_from_a_base(tmp_path: Path) -> None:
    """Each kind of write takes staged files under a base path."""
    table = tiered(tmp_path)
    table.overwrite(table.stage(entries("cold", 9), base="cold"))
    assert [("cold", 9)] == contents(table)
    assert ("cold",) == tuple(base.name for base in table.maintenance.bases())


def test_files_written_by_another_process_know_their_base(tmp_path: Path) -> None:
    """The write target has the base path."""
    table = tiered(tmp_path)
    target = table.write_target(base="cold")
    staged = StagedFiles(SCHEMA, write_files(target, entries("cold", 3).to_batches()), target.base)
    table.append(staged)
    assert [*COLD, ("cold", 3), ("hot", 1)] == contents(table)


def test_a_base_has_a_name_an_id_and_a_place(tmp_path: Path) -> None:
    """Ids are counted from one."""
    table = tiered(tmp_path)
    added = table.maintenance.add_base("warm", tmp_path / "x" / ".." / "warm", is_dataset_root=True)
    assert (2, "warm", str(tmp_path / "warm"), True) == (added.id, added.name, added.path, added.is_dataset_root)
    assert ["cold", "warm"] == [base.name for base in table.maintenance.bases()]
    assert () == table.maintenance.bases("main@1")


def test_a_base_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    """Repeating the call makes no version."""
    table = tiered(tmp_path)
    number = table.head().number
    assert 1 == table.maintenance.add_base("cold", tmp_path / "cold").id
    assert number == table.head().number


@pytest.mark.parametrize("name,place", [("cold", "other"), ("other", "cold")], ids=["name", "place"])
def test_another_base_of_that_name_or_place_is_refused(tmp_path: Path, name: str, place: str) -> None:
    """Name and place are both unique."""
    table = tiered(tmp_path)
    with pytest.raises(AlreadyExistsError):
        table.maintenance.add_base(name, tmp_path / place)


@pytest.mark.parametrize("name", ["", "root"])
def test_a_name_that_means_something_else_is_refused(tmp_path: Path, name: str) -> None:
    """The name "root" means the table itself."""
    with pytest.raises(InvalidInputError):
        tiered(tmp_path).maintenance.add_base(name, tmp_path / "other")


@pytest.mark.parametrize("place", ["", "data", "data/x", "_indices", "tree/run"])
def test_a_folder_of_the_table_is_no_base(tmp_path: Path, place: str) -> None:
    """Its files would have two names."""
    table = tiered(tmp_path)
    with pytest.raises(InvalidInputError, match="a folder of the table itself"):
        table.maintenance.add_base("other", Path(table.uri) / place)


@pytest.mark.parametrize("place", ["", "data", "tree/run/data", "_indices"])
def test_a_base_is_not_in_another_table(tmp_path: Path, place: str) -> None:
    """A collection of that table would delete the files."""
    other = new_table(tmp_path, entries("other", 1))
    table = tiered(tmp_path)
    changes: tuple[Callable[[], object], ...] = (
        lambda: table.maintenance.add_base("warm", f"{other.uri}/{place}", is_dataset_root=not place),
        lambda: table.maintenance.move_base("cold", f"{other.uri}/{place}"),
    )
    for change in changes:
        with pytest.raises(InvalidInputError):
            change()
    assert table.maintenance.add_base("warm", f"{other.uri}/warm").path == f"{other.uri}/warm"


@BOTH
def test_a_table_is_not_made_at_a_base(tmp_path: Path, kind: str) -> None:
    """A collection of the new table would delete the rows there."""
    table = tiered(tmp_path, kind)
    place = tmp_path / "cold"
    makers: tuple[Callable[[], object], ...] = (
        lambda: LanceTable.create(place, SCHEMA),
        lambda: LanceTable.create(place, SCHEMA, exist_ok=True),
        lambda: table.maintenance.clone(place),
        lambda: table.maintenance.clone(place, shallow=False),
    )
    for make in makers:
        with pytest.raises(InvalidInputError):
            make()
    if kind == FILES:
        # The place is the folder of data files of what would be a table.
        (tmp_path / "above").mkdir()
        place.rename(tmp_path / "above" / "data")
        with pytest.raises(InvalidInputError):
            LanceTable.create(tmp_path / "above", SCHEMA)
    assert not (place / "_versions").exists()


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error lists the existing base paths."""
    table = tiered(tmp_path)
    with pytest.raises(InvalidInputError, match="it has 'cold'"):
        table.stage(entries("x", 1), base="could")


def test_files_staged_for_a_base_the_branch_does_not_have_are_refused(tmp_path: Path) -> None:
    """Referenced through another base path, the files would not be found."""
    table = new_table(tmp_path)
    table.branches.create("run")
    table.maintenance.add_base("cold", tmp_path / "cold")
    staged = table.stage(entries("cold", 1), base="cold")
    with pytest.raises(InvalidInputError):
        table.append(staged, branch="run")


def test_staged_files_are_not_staged_again(tmp_path: Path) -> None:
    """The files are written already."""
    table = new_table(tmp_path)
    with pytest.raises(InvalidInputError):
        table.stage(table.stage(entries("a", 1)))


@BOTH
def test_a_branch_writes_to_a_base_and_is_merged_without_a_copy(tmp_path: Path, kind: str) -> None:
    """Both sides reference the file at the same place."""
    table = tiered(tmp_path, kind)
    table.branches.create("run")
    table.append(table.stage(entries("cold", 3), branch="run", base="cold"), branch="run")
    table.append(entries("hot", 2), branch="run")
    table.append(entries("m", 1))
    before = files_below(tmp_path)
    table.merge("run")
    assert before == files_below(tmp_path)
    assert [*COLD, ("cold", 3), ("hot", 1), ("hot", 2), ("m", 1)] == contents(table)
    as_pylance(table).validate()
    table.branches.delete("run")
    assert [*COLD, ("cold", 3), ("hot", 1), ("hot", 2), ("m", 1)] == contents(table)


def test_rows_under_a_base_that_only_the_branch_has_are_copied_by_the_merge(tmp_path: Path) -> None:
    """Main has no base path for the place."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    table.maintenance.add_base("cold", tmp_path / "cold", branch="run")
    table.append(table.stage(entries("cold", 1), branch="run", base="cold"), branch="run")
    table.merge("run")
    shutil.rmtree(tmp_path / "cold")
    table.branches.delete("run")
    assert [("a", 1), ("cold", 1)] == contents(LanceTable.open(table.uri))
    assert () == table.maintenance.bases()


def test_one_id_is_one_place_on_every_branch(tmp_path: Path) -> None:
    """Storage options are given by base id, which must not depend on the branch."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    cold = table.maintenance.add_base("cold", tmp_path / "cold")
    warm = table.maintenance.add_base("warm", tmp_path / "warm", branch="run")
    assert cold.id == table.maintenance.add_base("cold", tmp_path / "cold", branch="run").id
    assert warm.id == table.maintenance.add_base("warm", tmp_path / "warm").id
    assert 3 == len({base.id for base in table.maintenance.bases("run")})


def test_going_back_to_a_version_does_not_bring_old_places_back(tmp_path: Path) -> None:
    """A base path that was moved since keeps its new place."""
    table = tiered(tmp_path)
    version = table.head().number
    shutil.move(tmp_path / "cold", tmp_path / "ice")
    table.maintenance.move_base("cold", tmp_path / "ice")
    table.overwrite(entries("new", 1))
    table.commit(Transaction(read_version=table.head().number, uuid="back", operation=Restore(version=version)))
    assert [*COLD, ("hot", 1)] == contents(table)


@BOTH
def test_a_base_that_was_moved_is_found_again(tmp_path: Path, kind: str) -> None:
    """It is found on main and on every branch, and for old tags."""
    table = tiered(tmp_path, kind)
    table.tags.create("early", "main@3")
    table.branches.create("run")
    table.append(table.stage(entries("cold", 3), branch="run", base="cold"), branch="run")
    table.append(entries("hot", 2))
    shutil.move(tmp_path / "cold", tmp_path / "ice")
    done = table.maintenance.move_base("cold", tmp_path / "ice")
    again = LanceTable.open(table.uri)
    assert ["main", "run"] == [branch.name for branch in done.branches]
    assert [*COLD, ("hot", 1), ("hot", 2)] == contents(again)
    assert [*COLD, ("cold", 3), ("hot", 1)] == contents(again, "run")
    assert [("hot", 1)] == contents(again, "early")
    again.append(again.stage(entries("cold", 4), base="cold"))
    assert [*COLD, ("cold", 4), ("hot", 1), ("hot", 2)] == contents(again)
    assert () == again.maintenance.move_base("cold", tmp_path / "ice").branches
    # Earlier versions reference the old place.
    assert again.maintenance.verify().ok


def test_a_base_is_not_moved_to_where_its_files_are_not(tmp_path: Path) -> None:
    """The move needs `check=False` if the files are missing at the new place."""
    table = tiered(tmp_path)
    with pytest.raises(CorruptFileError):
        table.maintenance.move_base("cold", tmp_path / "ice")
    assert [*COLD, ("hot", 1)] == contents(table)
    assert "main@5" == table.maintenance.move_base("cold", tmp_path / "ice", check=False).branches[0].after


def test_a_file_that_was_copied_in_part_is_noticed(tmp_path: Path) -> None:
    """Sizes are compared as well as names."""
    table = tiered(tmp_path)
    shutil.copytree(tmp_path / "cold", tmp_path / "ice")
    file = next((tmp_path / "ice").glob("*.lance"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=file.name):
        table.maintenance.move_base("cold", tmp_path / "ice")


@pytest.mark.parametrize("name,said", [("could", r"no base path 'could'; it has 'cold'"), ("root", "relocate")])
def test_only_a_base_is_moved(tmp_path: Path, name: str, said: str) -> None:
    """The error names what is no base path."""
    with pytest.raises(InvalidInputError, match=said):
        tiered(tmp_path).maintenance.move_base(name, tmp_path / "ice")


def test_a_local_table_keeps_cold_rows_on_s3(tmp_path: Path, s3_storage: S3Storage) -> None:
    """The base path has its own storage options, which no repr shows."""
    table = new_table(tmp_path, entries("hot", 1))
    base = table.maintenance.add_base("cold", f"{s3_storage.uri}/cold", is_dataset_root=True)
    options = {f"base_{base.id}.{key}": value for key, value in s3_storage.storage_options.items()}
    table = LanceTable.open(table.uri, options)
    # The options were missing when the base path was added, so no allowance could be written at its place.
    table.maintenance.allow_base(base.path)
    table.append(table.stage(entries("cold", 1, 2), base="cold"))
    assert "test-secret" not in repr(table.write_target(base="cold"))
    table.branches.create("run")
    table.append(table.stage(entries("cold", 3), branch="run", base="cold"), branch="run")
    table.replace_where("key = 'cold' and value IN (1, 4)", entries("cold", 4), branch="run")
    table.merge("run")
    assert [("cold", 2), ("cold", 3), ("cold", 4), ("hot", 1)] == contents(table)
    done = table.maintenance.move_base("cold", f"{s3_storage.uri}/cold/", dry_run=True)
    assert () == done.branches


def test_a_table_on_s3_has_bases_in_two_places(tmp_path: Path, s3_storage: S3Storage) -> None:
    """One base is another prefix with the table's options, and one is a local folder without options."""
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.maintenance.add_base("far", f"{s3_storage.uri}/far")
    table.maintenance.add_base("near", tmp_path / "near")
    table.append(table.stage(entries("far", 1), base="far"))
    table.append(table.stage(entries("near", 1, 2), base="near"))
    table.branches.create("run")
    table.replace_where("key IN ('near', 'own') and value = 1", entries("own", 1), branch="run")
    table.merge("run")
    assert [("far", 1), ("near", 2), ("own", 1)] == contents(table)
    shutil.move(tmp_path / "near", tmp_path / "nearer")
    table.maintenance.move_base("near", tmp_path / "nearer")
    assert [("far", 1), ("near", 2), ("own", 1)] == contents(table)


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The rows are checked as for every write."""
    table = tiered(tmp_path)
    before = files_below(tmp_path)
    with pytest.raises(InvalidInputError):
        table.stage(pa.table({"other": [1]}), base="cold")
    assert before == files_below(tmp_path)


@pytest.mark.parametrize(
    "call,said",
    [
        (lambda table: table.clone("place", shallow="no"), "shallow has to be True or False, not 'no'"),
        (lambda table: table.clone("place", storage_options="x"), "storage options have to be a mapping"),
        (lambda table: table.verify(deep="no"), "deep has to be True or False, not 'no'"),
        (lambda table: table.add_base(3, "place"), "the name of a base path has to be a string, not 3"),
        (lambda table: table.add_base("x", "place", is_dataset_root="no"), "is_dataset_root has to be True or False"),
        (lambda table: table.relocate(dry_run="no"), "dry_run has to be True or False, not 'no'"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., object], said: str
) -> None:
    """Text such as "no" would count as True, and an error of Python would come from the inside."""
    monkeypatch.chdir(tmp_path)
    table = new_table(tmp_path / "lake")
    with pytest.raises(InvalidInputError, match=said):
        call(table.maintenance)
    assert not (tmp_path / "place").exists()
