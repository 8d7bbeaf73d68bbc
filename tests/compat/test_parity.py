"""The package applies an operation to a table, and pylance to its copy: later operations have equal results on both.

Each later step of either program is applied to both. After each step the copies are equal in rows, row ids and row
versions, field ids, fragments, flags, and what indices cover and answer.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, Transaction
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import MERGED_PREFIX, CreateIndex, Operation, Restore
from lance_dagster.transactions.index_updates import covered_fragments, indices_of
from tests.soak import thinned
from tests.table_factory import SCHEMA, context_of, entries

PackageChange = Callable[[LanceTable], object]
PylanceChange = Callable[[lance.LanceDataset], object]


@dataclass(frozen=True, slots=True)
class BothWays:
    """An operation through the package and through pylance."""

    with_package: PackageChange
    with_pylance: PylanceChange


def noted(key: str, *values: int) -> pa.Table:
    """Rows of one key, with a third column."""
    rows = entries(key, *values)
    return rows.append_column("note", pa.array([f"note {value % 3}" for value in values], pa.string()))


def committed(table: LanceTable, operation: Operation) -> None:
    """Commit an operation that has no method of its own."""
    number = table.head().number
    table.commit(Transaction(read_version=number, uuid=f"00000000-0000-4000-8000-{number:012}", operation=operation))


def _drop_index(table: LanceTable) -> None:
    gone = tuple(index for index in indices_of(manifest_of(table)) if index.name == "value_idx")
    committed(table, CreateIndex(removed_indices=gone))


def _upsert(dataset: lance.LanceDataset) -> None:
    builder = dataset.merge_insert("value").when_matched_update_all().when_not_matched_insert_all()
    builder.execute(noted("m", 3, 4, 90))


def _alter(dataset: lance.LanceDataset, change: dict[str, Any]) -> None:
    dataset.alter_columns(change)  # type: ignore[arg-type]


def _overwrite(dataset: lance.LanceDataset, rows: pa.Table) -> None:
    lance.write_dataset(rows, dataset.uri, mode="overwrite")


WIDER = pa.table(
    {"value": [1, 2], "key": ["a", "b"], "name": ["x", "y"]},
    schema=pa.schema([*reversed(list(SCHEMA)), ("name", pa.string())]),
)
OPERATIONS: dict[str, BothWays] = {
    "append": BothWays(lambda t: t.append(noted("n", 40, 41)), lambda d: d.insert(noted("n", 40, 41))),
    "overwrite": BothWays(lambda t: t.overwrite(entries("n", 40, 41)), lambda d: _overwrite(d, entries("n", 40, 41))),
    "overwrite with other columns": BothWays(lambda t: t.overwrite(WIDER), lambda d: _overwrite(d, WIDER)),
    "delete rows": BothWays(lambda t: t.delete("value % 3 = 0"), lambda d: d.delete("value % 3 = 0")),
    "delete a fragment": BothWays(lambda t: t.delete("key = 'b'"), lambda d: d.delete("key = 'b'")),
    "delete everything": BothWays(lambda t: t.delete("true"), lambda d: d.delete("true")),
    "update": BothWays(
        lambda t: t.update({"value": "value + 100"}, where="value % 4 = 0"),
        lambda d: d.update({"value": "value + 100"}, where="value % 4 = 0"),
    ),
    "update everything": BothWays(lambda t: t.update({"key": "'u'"}), lambda d: d.update({"key": "'u'"})),
    "upsert": BothWays(lambda t: t.upsert(noted("m", 3, 4, 90), on=["value"]), _upsert),
    "add nulls": BothWays(
        lambda t: t.columns.add(pa.field("n", pa.int32())), lambda d: d.add_columns(pa.field("n", pa.int32()))
    ),
    "add computed": BothWays(
        lambda t: t.columns.add({"twice": "value * 2"}), lambda d: d.add_columns({"twice": "value * 2"})
    ),
    "drop": BothWays(lambda t: t.columns.drop(["note"]), lambda d: d.drop_columns(["note"])),
    "rename": BothWays(
        lambda t: t.columns.rename("note", "remark"), lambda d: _alter(d, {"path": "note", "name": "remark"})
    ),
    "cast": BothWays(
        lambda t: t.columns.cast("note", pa.large_string()),
        lambda d: _alter(d, {"path": "note", "data_type": pa.large_string()}),
    ),
    "set config": BothWays(lambda t: t.config.set({"a": "1"}), lambda d: d.update_config({"a": "1"})),
    "set metadata": BothWays(
        lambda t: t.config.set_table_metadata({"a": "1"}), lambda d: d.update_metadata({"a": "1"})
    ),
    "compact": BothWays(lambda t: t.maintenance.compact(), lambda d: d.optimize.compact_files()),
    "restore": BothWays(lambda t: committed(t, Restore(version=1)), lambda d: d.checkout_version(1).restore()),
    "drop an index": BothWays(_drop_index, lambda d: d.drop_index("value_idx")),
}


def manifest_of(table: LanceTable) -> Manifest:
    """The newest manifest of main."""
    return context_of(table).head("main").manifest


def portrait(uri: str) -> dict[str, Any]:
    """Everything about the newest version that readers and later writers depend on, except names of files."""
    dataset = lance.dataset(uri)
    dataset.validate()
    manifest = manifest_of(LanceTable.open(uri))
    lineage = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"] if manifest.stable_row_ids else []
    rows = dataset.to_table(columns=[*dataset.schema.names, *lineage]).to_pylist()
    ids = set(manifest.fragments.ids)
    return {
        # Pylance reads fragments in parallel when it moves rows, so their order varies.
        "rows": sorted(rows, key=str),
        "count": dataset.count_rows(),
        "fields": [(own.id, own.parent_id, own.name, own.logical_type, own.nullable) for own in manifest.fields],
        "fragments": [
            (own.id, own.physical_rows, own.rows, sorted(number for file in own.files for number in file.fields))
            for own in manifest.fragments
        ],
        "numbers": (manifest.version, manifest.max_fragment_id, manifest.next_row_id),
        "flags": (manifest.reader_flags, manifest.writer_flags, manifest.file_version),
        "config": (manifest.config, manifest.schema_metadata),
        "metadata": {key: own for key, own in manifest.table_metadata.items() if not key.startswith(MERGED_PREFIX)},
        "indices": sorted(
            (own.name, own.fields, sorted(ids & set(covered_fragments(own) or ()))) for own in indices_of(manifest)
        ),
        "answers": answers(dataset),
    }


def answers(dataset: lance.LanceDataset) -> list[list[Any]]:
    """The results of queries by an index, where there is one, which equal those of a full scan."""
    found = []
    for condition in ("value = 4", "value > 6 AND value < 45", "key = 'n'", "key = 'b'"):
        indexed = dataset.to_table(columns=["value"], filter=condition)
        full = dataset.scanner(columns=["value"], filter=condition, use_scalar_index=False).to_table()
        assert sorted(full.to_pylist(), key=str) == sorted(indexed.to_pylist(), key=str)
        found.append(sorted(full.to_pylist(), key=str))
    return found


def two_tables(tmp_path: Path, *, stable: bool) -> tuple[str, str]:
    """A table of three fragments with deletions, two indices and rows that these do not cover; and its copy."""
    by_package, by_pylance = str(tmp_path / "package"), str(tmp_path / "pylance")
    rows = pa.concat_tables([noted("a", *range(8)), noted("b", *range(8, 16))])
    dataset = lance.write_dataset(rows, by_package, max_rows_per_file=8, enable_stable_row_ids=stable)
    dataset.create_scalar_index("value", "BTREE")
    dataset.create_scalar_index("key", "BITMAP")
    dataset.insert(noted("a", 20, 21))
    dataset.delete("value = 5")
    shutil.copytree(by_package, by_pylance)
    return by_package, by_pylance


def fitted(rows: pa.Table, uri: str) -> pa.Table:
    """Rows with the present columns of a table."""
    return pa.Table.from_pylist(rows.to_pylist(), schema=lance.dataset(uri).schema)


def _pylance_upsert(uri: str) -> None:
    builder = lance.dataset(uri).merge_insert("value").when_matched_update_all().when_not_matched_insert_all()
    builder.execute(fitted(entries("late", 4, 61), uri))


def _clean_up(uri: str) -> None:
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)


def _package_merge(uri: str) -> None:
    table = LanceTable.open(uri)
    table.branches.create("run")
    table.append(fitted(entries("branch", 70), uri), branch="run")
    table.delete("value = 11", branch="run")
    table.append(fitted(entries("main", 71), uri))
    table.merge("run")
    table.branches.delete("run")


LATER: dict[str, tuple[Callable[[str], object], ...]] = {
    "pylance": (
        lambda uri: lance.dataset(uri).insert(fitted(entries("late", 60), uri)),
        lambda uri: lance.dataset(uri).update({"value": "value + 1"}, where="value > 12"),
        lambda uri: lance.dataset(uri).delete("value = 2 OR value = 60"),
        _pylance_upsert,
        lambda uri: lance.dataset(uri).optimize.optimize_indices(),
        lambda uri: lance.dataset(uri).optimize.compact_files(),
        lambda uri: lance.dataset(uri).create_scalar_index("value", "BTREE", name="another"),
        lambda uri: lance.dataset(uri).add_columns({"later": "value + 1"}),
        _clean_up,
        lambda uri: lance.dataset(uri).insert(fitted(entries("last", 80), uri)),
    ),
    "this package": (
        lambda uri: LanceTable.open(uri).append(fitted(entries("late", 60), uri)),
        lambda uri: LanceTable.open(uri).update({"value": "value + 1"}, where="value > 12"),
        lambda uri: LanceTable.open(uri).delete("value = 2 OR value = 60"),
        lambda uri: LanceTable.open(uri).upsert(fitted(entries("late", 4, 61), uri), on=["value"]),
        lambda uri: LanceTable.open(uri).replace_where("value > 17", fitted(entries("late", 62), uri)),
        lambda uri: LanceTable.open(uri).maintenance.compact(),
        _package_merge,
        lambda uri: LanceTable.open(uri).columns.add({"later": "value + 1"}),
        lambda uri: LanceTable.open(uri).append(fitted(entries("last", 80), uri)),
    ),
}


# The program and stable row ids alternate over the operations; a soak runs each combination.
CASES = [(operation, who, stable) for operation in OPERATIONS for who in LATER for stable in (True, False)]
CHOSEN = {(operation, [*LATER][i % 2], i // 2 % 2 == 0) for i, operation in enumerate(OPERATIONS)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation,who,stable",
    thinned(
        CASES,
        kept=CHOSEN.__contains__,
        label=lambda case: f"{case[0]}-{case[1]}-{'stable' if case[2] else 'addresses'}",
    ),
)
def test_both_tables_go_on_in_the_same_way(tmp_path: Path, operation: str, who: str, *, stable: bool) -> None:
    """The copies are equal after the operation and after each later step of either program."""
    by_package, by_pylance = two_tables(tmp_path, stable=stable)
    both = OPERATIONS[operation]
    both.with_package(LanceTable.open(by_package))
    both.with_pylance(lance.dataset(by_pylance))
    assert portrait(by_pylance) == portrait(by_package)
    for step in LATER[who]:
        step(by_pylance)
        step(by_package)
        assert portrait(by_pylance) == portrait(by_package)
