"""The package and pylance change the columns of two copies of one table in the same way, with the same result."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.layout import manifest_name
from lance_dagster.format.model import Manifest
from lance_dagster.transactions.index_updates import covered_fragments, indices_of

LINEAGE = ["key", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
Change = tuple[Callable[[LanceTable], object], Callable[[lance.LanceDataset], object]]


def rows(*keys: int) -> pa.Table:
    """Rows with columns of every shape that has one or several fields of its own in a file."""
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "text": pa.array([f"word{key % 3}" for key in keys], pa.string()),
            "place": pa.array([{"x": key, "y": [float(key)]} for key in keys]),
            "vector": pa.array([[float(key), 1.0] for key in keys], pa.list_(pa.float32(), 2)),
            "other": pa.array([key * 10 for key in keys], pa.int32()),
        }
    )


def _double(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys: list[Any] = batch["key"].to_pylist()
    return pa.record_batch({"double": pa.array([2 * key for key in keys], pa.int64())})


def _altered(*changes: dict[str, Any]) -> Callable[[lance.LanceDataset], object]:
    return lambda dataset: dataset.alter_columns(*changes)  # type: ignore[arg-type]


PRIMARY: dict[str, str | None] = {"lance-schema:unenforced-primary-key": "true"}


def _both(*changes: Callable[[lance.LanceDataset], object]) -> Callable[[lance.LanceDataset], object]:
    return lambda dataset: [change(dataset) for change in changes]


JOINED = pa.table({"key": pa.array([1, 2, 99]), "name": ["one", "two", "no"]})
NESTED = pa.field("nested", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]))
CHANGES: dict[str, Change] = {
    "add nulls": (lambda t: t.columns.add(pa.field("n", pa.int8())), lambda d: d.add_columns(pa.field("n", pa.int8()))),
    "add nested nulls": (lambda t: t.columns.add(NESTED), lambda d: d.add_columns(NESTED)),
    "add computed": (
        lambda t: t.columns.add({"double": "key * 2", "sum": "key + other"}),
        lambda d: d.add_columns({"double": "key * 2", "sum": "key + other"}),
    ),
    "add by function": (
        lambda t: t.columns.add(_double, reads=["key"]),
        lambda d: d.add_columns(lance.batch_udf()(_double), read_columns=["key"]),
    ),
    "add joined": (lambda t: t.columns.add(JOINED, on=["key"]), lambda d: d.merge(JOINED, "key")),
    "drop": (lambda t: t.columns.drop(["other"]), lambda d: d.drop_columns(["other"])),
    "drop nested": (lambda t: t.columns.drop(["place.x"]), lambda d: d.drop_columns(["place.x"])),
    "drop indexed": (lambda t: t.columns.drop(["text"]), lambda d: d.drop_columns(["text"])),
    "rename": (lambda t: t.columns.rename("key", "id"), _altered({"path": "key", "name": "id"})),
    "rename nested": (lambda t: t.columns.rename("place.x", "z"), _altered({"path": "place.x", "name": "z"})),
    "cast": (lambda t: t.columns.cast("other", pa.int64()), _altered({"path": "other", "data_type": pa.int64()})),
    "forbid nulls": (
        lambda t: t.columns.set_nullable("key", nullable=False),
        _altered({"path": "key", "nullable": False}),
    ),
    "describe a column": (
        lambda t: t.columns.set_metadata("key", {"unit": "m"}),
        lambda d: d.update_field_metadata({"key": {"unit": "m"}}),
    ),
    "primary key": (
        lambda t: (t.columns.set_nullable("key", nullable=False), t.columns.set_metadata("key", PRIMARY)),
        _both(_altered({"path": "key", "nullable": False}), lambda d: d.update_field_metadata({"key": PRIMARY})),
    ),
    "describe the schema": (
        lambda t: t.config.set_schema_metadata({"a": "b"}, replace=True),
        lambda d: d.update_schema_metadata({"a": "b"}, replace=True),
    ),
    "describe the table": (lambda t: t.config.set_table_metadata({"a": "b"}), lambda d: d.update_metadata({"a": "b"})),
    "settings": (lambda t: t.config.set({"a": "b"}), lambda d: d.update_config({"a": "b"})),
    "one after the other": (
        lambda t: (t.columns.add({"double": "key * 2"}), t.columns.drop(["double"]), t.columns.add({"d": "other + 1"})),
        lambda d: (d.add_columns({"double": "key * 2"}), d.drop_columns(["double"]), d.add_columns({"d": "other + 1"})),
    ),
}


@pytest.fixture(params=[True, False], ids=["stable row ids", "row addresses"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[LanceTable, lance.LanceDataset]:
    """Two copies of a table with deleted rows and three kinds of index."""
    uri = str(tmp_path / "pylance")
    dataset = lance.write_dataset(rows(*range(40)), uri, max_rows_per_file=20, enable_stable_row_ids=request.param)
    dataset.create_scalar_index("key", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_index("vector", "IVF_FLAT", num_partitions=1)
    dataset.insert(rows(*range(40, 45)))
    dataset.delete("key in (0, 7, 44)")
    shutil.copytree(uri, tmp_path / "package")
    return LanceTable.open(tmp_path / "package"), lance.dataset(uri)


def manifest_of(dataset: lance.LanceDataset) -> Manifest:
    """The manifest of a version on main."""
    path = Path(dataset.uri) / "_versions" / manifest_name(dataset.version)
    return decode_manifest_file(path.read_bytes(), str(path))[0]


def shape(manifest: Manifest) -> object:
    """The content of a manifest, without the names that each writer generates and their order."""
    fragments = [
        (own.id, own.physical_rows, own.deletion, own.row_ids, own.created_at, own.updated_at)
        for own in manifest.fragments
    ]
    files = [[(file.fields, file.column_indices, file.base_id) for file in own.files] for own in manifest.fragments]
    indices = [(index.name, index.fields, covered_fragments(index)) for index in indices_of(manifest)]
    return {
        "fields": [(field, field.id) for field in manifest.fields],
        "fragments": fragments,
        "files": files,
        "indices": indices,
        "flags": (manifest.reader_flags, manifest.writer_flags),
        "metadata": (manifest.schema_metadata, manifest.table_metadata, manifest.config),
        "counters": (manifest.max_fragment_id, manifest.next_row_id, manifest.version),
    }


@pytest.mark.parametrize("change", CHANGES)
def test_both_make_the_same_of_it(pair: tuple[LanceTable, lance.LanceDataset], change: str) -> None:
    """Fields, files, row versions, indices, flags and rows are equal, and pylance can go on with the table."""
    table, dataset = pair
    change_table, change_dataset = CHANGES[change]
    change_table(table)
    change_dataset(dataset)
    found, expected = lance.dataset(table.uri), lance.dataset(dataset.uri)
    assert shape(manifest_of(expected)) == shape(manifest_of(found))
    assert expected.schema == found.schema == table.schema()
    assert expected.to_table() == found.to_table() == table.read()
    names = [name for name in LINEAGE if name in (*found.schema.names, *LINEAGE[1:])]
    if found.has_stable_row_ids:
        assert expected.to_table(columns=names) == found.to_table(columns=names)
    assert_pylance_goes_on(found)


def assert_pylance_goes_on(dataset: lance.LanceDataset) -> None:
    """Apply each operation of pylance to a table, and compare the rows with the expected ones."""
    number = next(name for name in ("key", "id") if name in dataset.schema.names)
    expected = dataset.to_table()
    dataset.validate()
    near = {"column": "vector", "q": np.array([5, 1], np.float32), "k": 1}
    assert [5] == dataset.to_table(nearest=near, columns=[number])[number].to_pylist()
    assert [5] == dataset.to_table(filter=f"{number} = 5")[number].to_pylist()
    dataset.insert(expected.slice(0, 2))
    dataset.delete(f"{number} = 12")
    dataset.update({number: f"{number} + 1000"}, where=f"{number} = 20")
    dataset.optimize.compact_files()
    dataset.optimize.optimize_indices()
    dataset.create_scalar_index(number, "BTREE", name="again")
    dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    dataset.validate()
    keys: list[Any] = expected[number].to_pylist()
    wanted = sorted([*(1020 if key == 20 else key for key in keys if key != 12), *keys[:2]])
    assert wanted == dataset.to_table().sort_by(number)[number].to_pylist()


@pytest.mark.parametrize("change", CHANGES)
def test_the_package_goes_on_where_pylance_changed_columns(
    pair: tuple[LanceTable, lance.LanceDataset], change: str
) -> None:
    """The package appends, deletes, adds a column and compacts after pylance changed columns."""
    _, dataset = pair
    CHANGES[change][1](dataset)
    table = LanceTable.open(dataset.uri)
    number = next(name for name in ("key", "id") if name in table.schema().names)
    before = table.read()
    table.append(before.slice(0, 2))
    table.delete(f"{number} = 12")
    table.columns.add({"more": f"{number} * 3"})
    table.maintenance.compact()
    found = lance.dataset(dataset.uri)
    found.validate()
    keys: list[Any] = before[number].to_pylist()
    wanted = sorted([*(key for key in keys if key != 12), *keys[:2]])
    assert [(key, 3 * key) for key in wanted] == sorted(
        (row[number], row["more"]) for row in found.to_table().to_pylist()
    )
