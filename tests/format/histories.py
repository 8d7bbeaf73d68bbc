"""What pylance can do to a table, one operation each: the manifests and transactions to be understood."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from tests.ledger import entries

Operation = Callable[[lance.LanceDataset], object]


def written(folder: Path, operation: Operation, *, stable_row_ids: bool) -> lance.LanceDataset:
    """A table of two fragments made by pylance, and the operation done to it."""
    uri = str(folder / "table")
    dataset = lance.write_dataset(
        entries("a", *range(10)), uri, max_rows_per_file=5, enable_stable_row_ids=stable_row_ids
    )
    operation(dataset)
    return lance.dataset(uri)


def files(folder: Path, pattern: str) -> Iterator[Path]:
    """The manifests or transactions of a table, those of its branches included."""
    found = sorted(folder.rglob(pattern))
    if not found:
        raise FileNotFoundError(f"pylance wrote no {pattern}")
    yield from found


def _merge_insert(dataset: lance.LanceDataset) -> None:
    rows = pa.concat_tables([entries("a", 3), entries("b", 99)])
    dataset.merge_insert("value").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _compact(dataset: lance.LanceDataset) -> None:
    dataset.delete("value = 1")
    dataset.optimize.compact_files()


def _index(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("value", "BTREE")
    dataset.insert(entries("b", 20))
    dataset.optimize.optimize_indices()


def _dropped_index(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("value", "BTREE", name="by_value")
    dataset.drop_index("by_value")


def _branches(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("value", "BTREE")
    dataset.delete("value = 7")
    outer = dataset.create_branch("outer")
    outer.insert(entries("b", 1))
    outer.delete("value = 2")
    inner = outer.create_branch("inner")
    inner.insert(entries("c", 1))


def _evolved(dataset: lance.LanceDataset) -> None:
    dataset.add_columns({"double": "value * 2"})
    dataset.add_columns(pa.field("empty", pa.list_(pa.struct([("x", pa.float32())]))))
    changes: list[Any] = [{"path": "double", "name": "twice"}, {"path": "value", "data_type": pa.int32()}]
    dataset.alter_columns(*changes)
    dataset.drop_columns(["key"])
    dataset.insert(pa.table({"value": pa.array([5], pa.int32()), "twice": [10]}))


def _metadata(dataset: lance.LanceDataset) -> None:
    dataset.update_config({"lance.auto_cleanup.interval": "100", "own": "x"})
    dataset.delete_config_keys(["own"])
    dataset.update_metadata({"owner": "ann"})
    dataset.update_schema_metadata({"purpose": "test"})
    dataset.update_field_metadata({"value": {"unit": "m"}})


def _overwritten(dataset: lance.LanceDataset) -> None:
    rows = pa.table({"other": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), "name": ["x"]})
    lance.write_dataset(rows, dataset.uri, mode="overwrite")


def _primary_key(dataset: lance.LanceDataset) -> None:
    primary = {"lance-schema:unenforced-primary-key": "true"}
    key = pa.schema([pa.field("value", pa.int64(), nullable=False, metadata=primary)])
    lance.write_dataset(pa.table({"value": [1]}, schema=key), dataset.uri, mode="overwrite")


OPERATIONS: dict[str, Operation] = {
    "create": lambda _: None,
    "append": lambda dataset: dataset.insert(entries("b", 1)),
    "delete": lambda dataset: dataset.delete("value in (0, 7)"),
    "delete a fragment": lambda dataset: dataset.delete("value < 5"),
    "delete everything": lambda dataset: dataset.delete("true"),
    "truncate": lambda dataset: dataset.truncate_table(),
    "overwrite": _overwritten,
    "primary key": _primary_key,
    "update": lambda dataset: dataset.update({"value": "value + 100"}, where="value % 2 = 0"),
    "merge_insert": _merge_insert,
    "schema evolution": _evolved,
    "index": _index,
    "drop index": _dropped_index,
    "compaction": _compact,
    "restore": lambda dataset: (dataset.delete("true"), dataset.checkout_version(1).restore()),
    "tag": lambda dataset: dataset.tags.create("release", 1),
    "branches": _branches,
    "configuration": _metadata,
    "shallow clone": lambda dataset: dataset.shallow_clone(f"{dataset.uri}-clone", 1),
}
