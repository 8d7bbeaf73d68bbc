"""Pylance changes columns before a prepared commit of the package: no value is lost or read from another column."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CommitConflictError, InvalidInputError
from lance_dagster.store import open_store
from tests.store.scripted import ScriptedStore, intruder_at_commit
from tests.table_factory import context_on, entries

WRITES: dict[str, Callable[[LanceTable], object]] = {
    "append": lambda table: table.append(entries("new", 50, 51)),
    "replace": lambda table: table.replace_where("value IN (1, 50, 51)", entries("new", 50, 51)),
    "upsert": lambda table: table.upsert(entries("new", 50, 51), on=["value"]),
    "update": lambda table: table.update({"key": "'new'"}, where="value = 1"),
}


def _alter(dataset: lance.LanceDataset, change: dict[str, Any]) -> None:
    dataset.alter_columns(change)  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[lance.LanceDataset], object]] = {
    "cast a number": lambda dataset: _alter(dataset, {"path": "value", "data_type": pa.int32()}),
    "cast a text": lambda dataset: _alter(dataset, {"path": "key", "data_type": pa.large_string()}),
    "rename": lambda dataset: _alter(dataset, {"path": "key", "name": "name"}),
    "drop": lambda dataset: dataset.drop_columns(["key"]),
    "add computed": lambda dataset: dataset.add_columns({"more": "value * 2"}),
    "add nulls": lambda dataset: dataset.add_columns(pa.field("more", pa.int32())),
}


def rows(uri: str) -> list[tuple[Any, ...]]:
    """The rows of the columns `key` and `value`, as far as they exist, under whatever names they have."""
    dataset = lance.dataset(uri)
    dataset.validate()
    names = [name for name in dataset.schema.names if name != "more"]
    return sorted(tuple(row[name] for name in names) for row in dataset.to_table().to_pylist())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("write", WRITES)
def test_rows_are_whole_or_refused(tmp_path: Path, write: str, change: str) -> None:
    """The rows are as if pylance had changed the columns first, or as if the refused commit had not been tried."""
    uris = [str(tmp_path / name) for name in ("alone", "raced")]
    for uri in uris:
        lance.write_dataset(entries("a", 1, 2, 3), uri, max_rows_per_file=2, enable_stable_row_ids=True)
    alone, raced = uris
    WRITES[write](LanceTable.open(alone))
    CHANGES[change](lance.dataset(alone))
    script = intruder_at_commit(lambda: CHANGES[change](lance.dataset(raced)))
    table = LanceTable(context_on(ScriptedStore(open_store(raced), script)))
    try:
        WRITES[write](table)
    except (CommitConflictError, InvalidInputError):
        without = str(tmp_path / "without")
        lance.write_dataset(entries("a", 1, 2, 3), without, max_rows_per_file=2, enable_stable_row_ids=True)
        CHANGES[change](lance.dataset(without))
        assert rows(without) == rows(raced)
    else:
        assert rows(alone) == rows(raced)


def test_rows_of_pylance_meet_a_cast_of_the_package(tmp_path: Path) -> None:
    """An append that did not see the cast is refused, because its values would be read as nulls."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1), uri, enable_stable_row_ids=True)
    stale = lance.dataset(uri)
    LanceTable.open(uri).columns.cast("value", pa.int32())
    with pytest.raises(OSError, match="conflict"):
        stale.insert(entries("late", 2))
    assert [("a", 1)] == rows(uri)


@pytest.mark.parametrize("stable", [True, False])
def test_values_beside_rows_without_a_mode(tmp_path: Path, *, stable: bool) -> None:
    """An update of a row keeps what pylance's `update_columns` wrote beside it in a transaction without a mode."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1, 2, 3), uri, max_rows_per_file=2, enable_stable_row_ids=stable)
    script = intruder_at_commit(lambda: _write_beside(uri))
    LanceTable(context_on(ScriptedStore(open_store(uri), script))).update({"value": "10"}, where="value = 1")
    assert [("a", 2), ("a", 3), ("beside", 10)] == rows(uri)


@pytest.mark.parametrize("stable", [True, False])
def test_values_beside_rows_are_committed_as_pylance_says_them(tmp_path: Path, *, stable: bool) -> None:
    """The package commits such a transaction of pylance, without an update mode, with the same rows as pylance."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1, 2, 3), uri, max_rows_per_file=2, enable_stable_row_ids=stable)
    _write_beside(uri)
    table = LanceTable.open(uri)
    transaction = context_on(open_store(uri)).at("main@2").transaction
    assert transaction is not None
    table.restore("main@1")
    again = replace(transaction, uuid="again", read_version=3)
    assert "main@4" == str(table.commit(again))
    assert [("a", 2), ("a", 3), ("beside", 1)] == rows(uri)


def _write_beside(uri: str) -> None:
    dataset = lance.dataset(uri)
    values = pa.table({"value": pa.array([1], pa.int64()), "key": ["beside"]})
    updated, fields = dataset.get_fragments()[0].update_columns(values, left_on="value", right_on="value")
    operation = lance.LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    lance.LanceDataset.commit(uri, operation, read_version=dataset.version)
