"""Appends by a table object that has not looked for the newest version since other writers committed."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    NotDurableError,
    RefNotFoundError,
    SchemaMismatchError,
    StoreError,
    VersionNotFoundError,
)
from lance_dagster.store import LocalStore, open_store
from tests.conftest import S3Storage
from tests.raising import raises
from tests.store.scripted import Request, ScriptedStore, obedient
from tests.table_factory import SCHEMA, contents, context_of, context_on, entries, new_table


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
    store = context_of(table).store
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


@pytest.mark.slow
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
    with pytest.raises(NotDurableError) as raised:
        failing.append(entries("b", 1))
    assert isinstance(raised.value, StoreError)
    assert before == table.head()
    store.failing = "nothing"
    failing.append(entries("b", 1))
    assert before.number + 1 == table.head().number
    assert 3 <= len(data_files(table))


def on_s3(storage: S3Storage) -> LanceTable:
    """A table with one row on object storage."""
    table = LanceTable.create(f"{storage.uri}/t", SCHEMA, storage_options=storage.storage_options)
    table.append(entries("a", 1))
    return table


def again(table: LanceTable) -> LanceTable:
    """The same table as another process opens it."""
    return LanceTable.open(table.uri, table.storage_options)


def test_the_first_append_goes_on_top_of_what_landed_since_the_table_was_opened(s3_storage: S3Storage) -> None:
    """The rows are written for the version that was the newest then, and mean the columns of the head."""
    table = on_s3(s3_storage)
    opened, early, late = again(table), again(table), again(table)
    table.append(entries("b", 1))
    assert ("main@4", 3) == (str(version := opened.append(entries("c", 1))), version.rows)
    swap_columns = (("key", "other"), ("value", "key"), ("other", "value"))
    for old, new in swap_columns:
        table.columns.rename(old, new)
    with pytest.raises(SchemaMismatchError):
        early.append(entries("d", 1))
    late.append(pa.table({"key": pa.array([1], pa.int64()), "value": ["d"]}))
    assert ["a", "b", "c", "d"] == again(table).read().sort_by("value").column("value").to_pylist()


def test_the_first_append_to_a_table_that_was_made_again(s3_storage: S3Storage) -> None:
    """The version that was listed when the table was opened is gone, or is one of the new table."""
    for appends in (0, 3):
        table = on_s3(S3Storage(f"{s3_storage.uri}/{appends}", s3_storage.storage_options))
        table.append(entries("b", 1))
        opened = again(table)
        remove(table)
        LanceTable.create(table.uri, SCHEMA, storage_options=table.storage_options)
        for number in range(appends):
            again(table).append(entries("n", number))
        opened.append(entries("c", 1))
        assert ["c", *"n" * appends] == again(table).read().sort_by("key").column("key").to_pylist()


@pytest.mark.parametrize("staged", [False, True])
def test_an_append_to_a_branch_that_was_replaced_lands_on_the_new_one(s3_storage: S3Storage, *, staged: bool) -> None:
    """The file of the branch decides, which is read after the rows were written."""
    table = on_s3(s3_storage)
    table.branches.create("run")
    table.append(entries("old", 1), branch="run")
    rows = table.stage(entries("r", 1), branch="run") if staged else entries("r", 1)
    store = open_store(table.uri, table.storage_options)

    def script(request: Request) -> object:
        if request.key == "_refs/protection.json":
            table.branches.delete("run")
            table.branches.create("run")
            store_of_append.script = obedient
        return request.send()

    store_of_append = ScriptedStore(store, script)
    version = LanceTable(replace(context_on(store_of_append), storage_options=table.storage_options)).append(
        rows, branch="run"
    )
    assert version.number >= table.branches.get("run").first
    assert [("a", 1), ("r", 1)] == contents(table, "run")


def test_an_append_to_a_branch_that_is_gone_says_so(s3_storage: S3Storage) -> None:
    """Nothing is committed where the branch was deleted while the rows were written, or never existed."""
    table = on_s3(s3_storage)
    table.branches.create("run")
    store = open_store(table.uri, table.storage_options)

    def script(request: Request) -> object:
        if request.key == "_refs/protection.json":
            store_of_append.script = obedient
            table.branches.delete("run")
        return request.send()

    store_of_append = ScriptedStore(store, script)
    for name in ("run", "never"):
        with raises(RefNotFoundError, kind="branch", ref=name):
            LanceTable(replace(context_on(store_of_append), storage_options=table.storage_options)).append(
                entries("r", 1), branch=name
            )
    assert [] == store.list("tree/run/_versions")
