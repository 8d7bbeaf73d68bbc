"""The table of most tests, with rows of a key and a value, and short functions to write and read them."""

import uuid
from pathlib import Path

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import LocalStore, Store
from tests.store.scripted import Script, ScriptedStore

_COLUMNS: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.int64()}
SCHEMA = pa.schema(_COLUMNS)
Rows = list[tuple[str, int]]


def entries(key: str, *values: int) -> pa.Table:
    """Rows of one key."""
    return pa.Table.from_pylist([{"key": key, "value": value} for value in values], schema=SCHEMA)


def new_table(folder: Path, *tables: pa.Table) -> LanceTable:
    """Make a table with one version for each argument; its name is unique, since pylance caches files by name."""
    table = LanceTable.create(folder / f"table-{uuid.uuid4().hex[:8]}", SCHEMA)
    for rows in tables:
        table.append(rows)
    return table


def contents(table: LanceTable, ref: str = "main") -> Rows:
    """The rows of a version, sorted."""
    return sorted_rows(table.read(ref))


def sorted_rows(rows: pa.Table) -> Rows:
    """The rows of an Arrow table, sorted."""
    return sorted((row["key"], row["value"]) for row in rows.to_pylist())


def as_pylance(table: LanceTable, branch: str = "main") -> lance.LanceDataset:
    """The table opened by pylance itself, without this package, with a handle that follows the branch."""
    dataset = lance.dataset(table.uri)
    return dataset if branch == "main" else dataset.checkout_version((branch, None))


def context_of(table: LanceTable) -> TableContext:
    """A fresh context of a table, for manifests and states of refs that its public methods do not show."""
    return open_context(table.uri, table.storage_options)


def context_on(store: Store) -> TableContext:
    """The context of a table in a store that the test chooses."""
    return TableContext(store, Refs(store), Versions(store), {})


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))
