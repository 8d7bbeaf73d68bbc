"""Appends by a table object that has not looked for the newest version since other writers committed."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import NotDurableError, SchemaMismatchError, StoreError, VersionNotFoundError
from lance_dagster.store import LocalStore
from tests.conftest import S3Storage
from tests.table_factory import SCHEMA, context_on, entries, new_table


def data_files(table: LanceTable) -> set[str]:
    """The names of the data files in the folder of a table."""
    return {path.name for path in (Path(table.uri) / "data").iterdir()}


def test_rows_fit_the_head(tmp_path: Path) -> None:
    """Rows that fit the head alone are appended, and rows that fit an older version alone are refused."""
    table = new_table(tmp_path, entries("a", 1))
    known = LanceTable.open(table.uri)
    known.append(entries("b", 1))
    table.columns.add({"more": "1"})
    rows = table.read().to_pandas()
    with pytest.raises(SchemaMismatchError):
        known.append(pa.table({"nothing": [1]}))
    known.append(pa.Table.from_pandas(rows, schema=table.schema(), preserve_index=False))
    assert 2 * len(rows) == table.count_rows()
    table.columns.drop(["more"])
    with pytest.raises(SchemaMismatchError):
        known.append(pa.Table.from_pandas(rows, preserve_index=False))
    assert table.maintenance.verify(deep=True).ok


def swap(table: LanceTable) -> None:
    """Swap the names of two columns."""
    for old, new in (("a", "other"), ("b", "a"), ("other", "b")):
        table.columns.rename(old, new)


def swap_with_pylance(table: LanceTable) -> None:
    """Swap the names of two columns by another program."""
    for old, new in (("a", "other"), ("b", "a"), ("other", "b")):
        change: Any = {"path": old, "name": new}
        lance.dataset(table.uri).alter_columns(change)


def rename(table: LanceTable) -> None:
    """Rename a column."""
    table.columns.rename("b", "c")


def add(table: LanceTable) -> None:
    """Add a column that may be null."""
    table.columns.add(pa.field("c", pa.int64()))


@pytest.mark.parametrize(
    "change, refused",
    [
        (swap, None),
        (swap_with_pylance, None),
        (rename, "column 'c' is missing; column 'b' is not in the table"),
        (add, "column 'c' is missing"),
    ],
)
def test_rows_mean_the_columns_of_the_head(
    change: Callable[[LanceTable], None], refused: str | None, tmp_path: Path
) -> None:
    """After a change of columns, an object that knows an older version gives no value to another column."""
    known = LanceTable.create(f"{tmp_path}/t", pa.schema({"a": pa.int64(), "b": pa.int64()}))
    known.append(pa.table({"a": [10], "b": [20]}))
    change(LanceTable.open(known.uri))
    with pytest.raises(SchemaMismatchError, match=refused) if refused else nullcontext():
        known.append(pa.table({"a": [1], "b": [2]}))
    assert ([] if refused else [{"a": 1, "b": 2}]) == known.read(filter="a = 1").to_pylist()


def test_staged_files_keep_the_columns_they_were_staged_for(tmp_path: Path) -> None:
    """Files that were staged before a column got another name have the values of that column."""
    table = LanceTable.create(f"{tmp_path}/t", pa.schema({"a": pa.int64(), "b": pa.int64()}))
    staged = table.stage(pa.table({"a": [1], "b": [2]}))
    swap(LanceTable.open(table.uri))
    table.append(staged)
    assert [{"a": 2, "b": 1}] == table.read().to_pylist()


def test_what_others_did_stays(tmp_path: Path) -> None:
    """An append succeeds after an overwrite or a restore by another writer."""
    table = new_table(tmp_path, entries("a", 1))
    known = LanceTable.open(table.uri)
    known.append(entries("b", 1))
    table.overwrite(entries("c", 1))
    known.append(entries("d", 1))
    assert 2 == table.count_rows()
    table.restore("main@1")
    known.append(entries("e", 1))
    assert table.count_rows("main@1") + 1 == table.count_rows()


def remove(table: LanceTable) -> None:
    """Delete all objects of a table, as other programs do."""
    if "://" not in table.uri:
        shutil.rmtree(table.uri)
        return
    store = table._context.store  # noqa: SLF001 - a table has no call that deletes it
    store.delete_many([entry.key for entry in store.walk("")])


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_a_table_that_was_made_again(where: str, tmp_path: Path, s3_storage: S3Storage) -> None:
    """Rows go to the table that is there, with its columns, and not to the one that was there before."""
    uri = f"{tmp_path}/t" if where == "disk" else f"{s3_storage.uri}/t"
    options = {} if where == "disk" else dict(s3_storage.storage_options)
    known = LanceTable.create(uri, SCHEMA, storage_options=options)
    for number in range(3):
        known.append(entries("a", number))
    remove(known)
    made = LanceTable.create(uri, pa.schema([("other", pa.int64())]), storage_options=options)
    for number in range(3):
        made.append(pa.table({"other": [number]}))
    with pytest.raises(SchemaMismatchError):
        known.append(entries("a", 4))
    known.append(pa.table({"other": [3]}))
    assert [0, 1, 2, 3] == made.read().sort_by("other").column("other").to_pylist()
    assert "main@5" == str(known.head())


@pytest.mark.parametrize("where", ["disk", "s3"])
@pytest.mark.parametrize("longer", [0, 12])
def test_nothing_is_cached_of_a_former_table(where: str, longer: int, tmp_path: Path, s3_storage: S3Storage) -> None:
    """The head, older versions and deletions are those of the present table, whatever its number of versions."""
    uri = f"{tmp_path}/t" if where == "disk" else f"{s3_storage.uri}/t"
    options = {} if where == "disk" else dict(s3_storage.storage_options)
    known = LanceTable.create(uri, SCHEMA, storage_options=options)
    for number in range(3):
        known.append(entries("a", number))
    former = known.head()
    remove(known)
    made = LanceTable.create(uri, SCHEMA, storage_options=options)
    for number in range(3 + longer):
        made.append(entries("b", number, number + 100))
    assert made.head() == known.head() != former
    assert (2 * (3 + longer), 4) == (known.count_rows(), known.count_rows("main@3"))
    with pytest.raises(VersionNotFoundError):
        known.read(former)
    known.delete("value = 100")
    assert made.head().rows == made.read().num_rows == 2 * (3 + longer) - 1
    assert made.maintenance.verify(deep=True).ok


class FailingDisk(LocalStore):
    """A local store that fails to sync files whose name has a given ending."""

    failing = "nothing"

    def _sync(self, path: str) -> None:
        if path.endswith(self.failing):
            raise OSError(5, "Input/output error", path)
        super()._sync(path)


@pytest.mark.parametrize("what", [".lance", "/data"])
def test_data_files_are_synced_before_their_version(what: str, tmp_path: Path) -> None:
    """If the data file or its folder cannot be synced, no version references it, and the commit is not repeated."""
    table = new_table(tmp_path, entries("a", 1))
    store = FailingDisk(table.uri)
    failing, before = LanceTable(context_on(store)), table.head()
    store.failing = what
    with pytest.raises(NotDurableError, match="Input/output error") as raised:
        failing.append(entries("b", 1))
    assert isinstance(raised.value, StoreError)
    assert before == table.head()
    store.failing = "nothing"
    failing.append(entries("b", 1))
    assert before.number + 1 == table.head().number
    assert 3 <= len(data_files(table))
