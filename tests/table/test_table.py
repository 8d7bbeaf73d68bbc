"""Opening, creating and passing around tables."""

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    TableNotFoundError,
    VersionNotFoundError,
)
from tests.raising import raises
from tests.table_factory import SCHEMA, as_pylance, contents, entries, new_table


def test_a_new_table_is_empty_and_open_to_everyone(tmp_path: Path) -> None:
    """One version, no rows, stable row ids; pylance writes the first row."""
    table = LanceTable.create(tmp_path / "t", SCHEMA)
    assert ("main@1", 0, "Overwrite") == (str(table.head()), table.count_rows(), table.head().operation)
    assert [] == contents(table)
    dataset = as_pylance(table)
    assert dataset.has_stable_row_ids
    assert SCHEMA == dataset.schema == table.schema()
    dataset.insert(entries("a", 1))
    dataset.validate()
    assert [("a", 1)] == contents(table)


def test_a_table_is_created_once(tmp_path: Path) -> None:
    """Then it is opened, by whoever said that this is fine."""
    LanceTable.create(tmp_path / "t", SCHEMA).append(entries("a", 1))
    with pytest.raises(AlreadyExistsError):
        LanceTable.create(tmp_path / "t", SCHEMA)
    assert 1 == LanceTable.create(tmp_path / "t", SCHEMA, exist_ok=True).count_rows()
    assert LanceTable.exists(tmp_path / "t")
    assert not LanceTable.exists(tmp_path / "other")


@pytest.mark.parametrize(
    "schema,said",
    [
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "column names must be unique; 'a' is duplicated"),
        (pa.schema([("a", pa.list_view(pa.int8()))]), "column 'a': Lance tables cannot hold"),
    ],
)
def test_a_schema_that_cannot_be_stored_creates_nothing(tmp_path: Path, schema: pa.Schema, said: str) -> None:
    """A schema that cannot be stored creates nothing, not even a folder."""
    with pytest.raises(InvalidInputError, match=said):
        LanceTable.create(tmp_path / "t", schema)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir], ids=["nothing", "an empty folder"])
def test_a_place_without_a_table_is_told(tmp_path: Path, make: object) -> None:
    """The error for a place without a table says what to do."""
    if callable(make):
        make(tmp_path / "t")
    with pytest.raises(TableNotFoundError, match=r"LanceTable\.create"):
        LanceTable.open(tmp_path / "t")


@pytest.mark.parametrize("place", ["data/sub", "_indices/x.lance", "tree/fix"])
def test_a_table_in_a_folder_of_another_is_refused(tmp_path: Path, place: str) -> None:
    """The outer table's collections could take its files for their own; other folders below a table are free."""
    outer = LanceTable.create(tmp_path / "orders.lance", SCHEMA)
    with pytest.raises(InvalidInputError):
        LanceTable.create(f"{outer.uri}/{place}", SCHEMA)
    with pytest.raises(InvalidInputError):
        LanceTable.create(tmp_path / "other.lance", SCHEMA).maintenance.clone(f"{outer.uri}/{place}")
    assert not LanceTable.exists(f"{outer.uri}/{place}")
    LanceTable.create(f"{outer.uri}/other.lance", SCHEMA)


def test_one_place_is_one_table_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lance compares base paths as text, so every spelling is brought to one."""
    monkeypatch.chdir(tmp_path)
    table = LanceTable.create("lake/../t/", SCHEMA)
    for spelling in ("t", "./t/", f"file://{tmp_path}/t", tmp_path / "t", f"{tmp_path}//t"):
        assert table.uri == LanceTable.open(spelling).uri == str(tmp_path / "t")


def test_a_table_travels_to_other_processes(tmp_path: Path) -> None:
    """As its URI; so does what an executor needs to write."""
    table = new_table(tmp_path, entries("a", 1))
    assert contents(table) == contents(pickle.loads(pickle.dumps(table)))  # noqa: S301 - bytes of this test
    target = table.write_target()
    assert target == pickle.loads(pickle.dumps(target))  # noqa: S301 - same
    assert f"LanceTable({table.uri!r})" == repr(table)


def test_a_damaged_version_is_named(tmp_path: Path) -> None:
    """The others can still be read."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    (newest, *_) = sorted((Path(table.uri) / "_versions").glob("*.manifest"))
    newest.write_bytes(newest.read_bytes()[:-5])
    again = LanceTable.open(table.uri)
    with raises(CorruptFileError, path=str(newest)):
        again.head()
    assert [("a", 1)] == contents(again, "main@2")


def test_old_versions_are_read_as_they_were(tmp_path: Path) -> None:
    """Old versions are read unchanged, whatever happened since."""
    table = new_table(tmp_path, entries("a", 1))
    table.replace_where("key = 'a'", entries("a", 2))
    table.overwrite(pa.table({"other": [1]}))
    assert [("a", 1)] == contents(table, "main@2")
    assert [("a", 2)] == contents(table, "main@3")
    assert [[], ["other"]] == [[n for n in table.schema(f"main@{v}").names if n == "other"] for v in (3, 4)]


def test_a_dataset_of_pylance_is_pinned_to_its_version(tmp_path: Path) -> None:
    """A dataset of pylance stays at its version and does not follow the branch."""
    table = new_table(tmp_path, entries("a", 1))
    pinned = table.to_lance("main")
    table.append(entries("b", 2))
    assert 1 == pinned.count_rows()
    assert 2 == table.to_lance().count_rows()


def test_leftovers_of_a_deleted_table_of_the_same_name_do_not_show(tmp_path: Path) -> None:
    """A table object opened anew sees what is there."""
    import shutil

    uri = tmp_path / "t"
    LanceTable.create(uri, SCHEMA).append(entries("a", 1))
    shutil.rmtree(uri)
    LanceTable.create(uri, SCHEMA).append(entries("b", 2))
    assert 1 == LanceTable.open(uri).count_rows()


def test_a_table_made_again_is_not_taken_for_the_former_one(tmp_path: Path) -> None:
    """An open table commits on what is there now, though its versions have the numbers of those that it read."""
    LanceTable.create(tmp_path / "t", SCHEMA).append(entries("old", 1))
    held = LanceTable.open(tmp_path / "t")
    assert 1 == held.head().rows
    shutil.rmtree(tmp_path / "t")
    LanceTable.create(tmp_path / "t", SCHEMA).append(entries("new", 1))
    held.append(entries("new", 2))
    assert [("new", 1), ("new", 2)] == contents(LanceTable.open(tmp_path / "t"))


def test_a_version_is_a_ref(tmp_path: Path) -> None:
    """It is never mistaken for a version of another branch of the same name."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"n": pa.int64()}))
    table.branches.create("work")
    made = table.append(pa.table({"n": [1]}), branch="work")
    table.tags.move("live", made)
    assert made == table.at(made) == table.at("live")
    assert str(made) == table.diff(table.head(), made).after
    table.tags.delete("live")
    table.branches.delete("work")
    table.branches.create("work")
    with pytest.raises(VersionNotFoundError):
        table.at(made)
