"""The package reads tables that pylance makes, and writes to them."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError
from lance_dagster.history.refs.ref_files import NEVER_A_VERSION
from tests.format.histories import OPERATIONS, written
from tests.table_factory import as_pylance, contents, entries

UNREADABLE = frozenset({"compacted index"})
"""Operations whose transaction pylance cannot return, because it writes rewritten indices without details."""
OTHER_COLUMNS = frozenset(
    {"overwrite", "primary key", "schema evolution", "replaced data", "merge_insert variants", "merge_insert on a key"}
    | {"scalar indices", "vector indices"}
)
"""Operations after which the table has other columns than the two it began with."""


@pytest.fixture(autouse=True)
def _allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base paths that pylance adds lie below the folder of the test, which is allowed here."""
    monkeypatch.setenv("LANCE_DAGSTER_ALLOWED_BASE_PATHS", str(tmp_path))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_every_version_pylance_made_is_read(tmp_path: Path, operation: str, *, stable: bool) -> None:
    """The package reads rows, schema, counts and history of each version, on main and on branches."""
    dataset = written(tmp_path, OPERATIONS[operation], stable_row_ids=stable)
    table = LanceTable.open(dataset.uri)
    for branch in ["main", *dataset.branches.list()]:
        for version in table.branches.version_numbers(branch):
            ref = f"{branch}@{version}"
            expected = (
                dataset.checkout_version((branch, version))
                if branch != "main"
                else lance.dataset(dataset.uri, version=version)
            )
            assert expected.to_table() == table.read(ref)
            assert expected.schema == table.schema(ref)
            assert expected.count_rows() == table.count_rows(ref)
            described = table.at(ref)
            assert f"lance {lance.__version__}" == described.writer
            if operation in UNREADABLE and stable:
                continue
            made = expected.read_transaction(version)
            assert made is not None
            assert made.uuid == described.transaction
    assert len(table.log()) == dataset.version


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in OTHER_COLUMNS])
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_the_package_goes_on_with_what_pylance_made(tmp_path: Path, operation: str, *, stable: bool) -> None:
    """The package appends, replaces, branches and merges; pylance reads the same rows."""
    dataset = written(tmp_path, OPERATIONS[operation], stable_row_ids=stable)
    table = LanceTable.open(dataset.uri)
    before = contents(table)
    table.append(entries("o", 1))
    table.branches.create("run")
    table.replace_where("value = 4 or key = 'o' and value = 2", entries("o", 2), branch="run")
    table.append(entries("o", 3))
    table.merge("run")
    wanted = sorted([*(row for row in before if row[1] != 4), ("o", 1), ("o", 2), ("o", 3)])
    after = as_pylance(table)
    after.validate()
    assert wanted == contents(table)
    assert len(wanted) == after.count_rows()
    assert len(wanted) == len(set(after.to_table(columns=["_rowid"])["_rowid"].to_pylist()))


def test_columns_that_came_and_went_do_not_confuse_the_package(tmp_path: Path) -> None:
    """After columns were added, renamed, cast and dropped, field ids differ from positions."""
    dataset = written(tmp_path, OPERATIONS["schema evolution"], stable_row_ids=True)
    table = LanceTable.open(dataset.uri)
    before = table.read().to_pylist()
    row = {"value": 77, "twice": 154, "empty": [{"x": 0.5}]}
    table.append(pa.Table.from_pylist([row], schema=table.schema()))
    after = as_pylance(table)
    after.validate()
    assert [*before, row] == after.to_table().to_pylist()


@pytest.mark.parametrize("nested", [False, True])
def test_a_branch_of_pylance_is_a_branch(tmp_path: Path, *, nested: bool) -> None:
    """A branch of pylance can be read, written and merged, although pylance writes the table's root in its own way."""
    dataset = lance.write_dataset(entries("a", 1, 2), str(tmp_path / "t"), enable_stable_row_ids=True)
    dev = dataset.create_branch("dev")
    dev.insert(entries("dev", 1))
    name = "dev"
    if nested:
        dev.create_branch("deep").insert(entries("deep", 1))
        name = "deep"
    table = LanceTable.open(dataset.uri)
    branch = table.branches.list()[name]
    assert ("dev@2" if nested else "main@1") == branch.parent
    table.append(entries("o", 1), branch=name)
    table.replace_where("key = 'a' and value = 1 or key = 'o' and value = 2", entries("o", 2), branch=name)
    table.replace_where("key = 'dev' or key = 'o' and value = 3", entries("o", 3), branch=name)
    wanted = sorted([("a", 2), ("o", 1), ("o", 2), ("o", 3), *([("deep", 1)] if nested else [])])
    assert wanted == contents(table, name)
    as_pylance(table, name).validate()
    table.merge(name)
    assert wanted == contents(table)
    as_pylance(table).validate()
    table.branches.delete(name)
    assert wanted == contents(table)


def test_a_branch_of_a_table_called_something_else_can_be_read_and_merged(tmp_path: Path) -> None:
    """The branch cannot be written to, because a clean-up would not see that the new files are needed."""
    dataset = lance.write_dataset(entries("a", 1, 2), f"file://{tmp_path}/t", enable_stable_row_ids=True)
    dataset.create_branch("dev").insert(entries("dev", 1))
    table = LanceTable.open(dataset.uri)
    with pytest.raises(InvalidInputError):
        table.append(entries("o", 1), branch="dev")
    table.branches.create("again", "dev")
    table.append(entries("o", 1), branch="again")
    assert [("a", 1), ("a", 2), ("dev", 1), ("o", 1)] == contents(table, "again")
    table.merge("again")
    assert [("a", 1), ("a", 2), ("dev", 1), ("o", 1)] == contents(table)
    as_pylance(table).validate()


def test_a_branch_of_the_package_on_one_of_pylance_is_protected(tmp_path: Path) -> None:
    """The branch's last lineage entry has a version number that pylance's clean-up of the parent never passes over."""
    dataset = lance.write_dataset(entries("a", 1), str(tmp_path / "t"))
    dataset.create_branch("dev")
    table = LanceTable.open(dataset.uri)
    lineage = table.branches.create("package", "dev").lineage
    assert [1, NEVER_A_VERSION] == [version for version, _ in lineage]


def test_blobs_written_by_pylance_on_a_branch_of_the_package_come_along(tmp_path: Path) -> None:
    """Small blobs lie in the data file, large ones beside it, and all are there after the merge."""
    blobs = [b"small", b"p" * 100_000, b"d" * 6_000_000]
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    rows = pa.table({"id": [1, 2, 3], "blob": lance.blob_array(blobs)}, schema=schema)
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows.slice(0, 0), uri, data_storage_version="2.2", enable_stable_row_ids=True)
    table = LanceTable.open(dataset.uri)
    table.branches.create("run")
    as_pylance(table, "run").insert(rows)
    table.merge("run")
    table.branches.delete("run")
    found = as_pylance(table).take_blobs("blob", indices=[0, 1, 2])
    assert blobs == [blob.readall() for blob in found if blob is not None]


def test_a_moved_tag_is_followed(tmp_path: Path) -> None:
    """The package reads a tag where pylance moved it."""
    dataset = lance.write_dataset(entries("a", 1), str(tmp_path / "t"))
    dataset.tags.create("production", 1)
    table = LanceTable.open(dataset.uri)
    table.append(entries("b", 2))
    assert [("a", 1)] == contents(table, "production")
    dataset.tags.update("production", 2)
    assert [("a", 1), ("b", 2)] == contents(table, "production")
