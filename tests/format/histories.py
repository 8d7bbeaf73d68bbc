"""All operations of pylance on a table, whose manifests and transactions the package must read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tests.table_factory import entries

Operation = Callable[[lance.LanceDataset], object]


def written(folder: Path, operation: Operation, *, stable_row_ids: bool) -> lance.LanceDataset:
    """A table of two fragments made by pylance, after the operation."""
    uri = str(folder / "table")
    dataset = lance.write_dataset(
        entries("a", *range(10)), uri, max_rows_per_file=5, enable_stable_row_ids=stable_row_ids
    )
    operation(dataset)
    return lance.dataset(uri)


def files(folder: Path, pattern: str) -> Iterator[Path]:
    """The manifests or transactions of a table and of its branches."""
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


def _rewritten_column(dataset: lance.LanceDataset) -> None:
    changed, fields = dataset.get_fragments()[0].update_columns(entries("new", 1), left_on="value")
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def _replaced_data(dataset: lance.LanceDataset) -> None:
    schema = pa.schema([("extra", pa.int32())])
    dataset.add_columns(schema)
    field = dataset.lance_schema.field("extra")
    if field is None:
        raise LookupError("pylance added no column")
    with LanceFileWriter(f"{dataset.uri}/data/extra.lance", schema, version="2.2") as writer:
        writer.write_batch(pa.record_batch([pa.array(range(5), pa.int32())], schema=schema))
    group = lance.LanceOperation.DataReplacementGroup(0, DataFile("extra.lance", [field.id()], [0], 2, 2))
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def _bases(dataset: lance.LanceDataset) -> None:
    root = lance.DatasetBasePath(f"{dataset.uri}-root", name="root", is_dataset_root=True)
    flat = lance.DatasetBasePath(f"{dataset.uri}-flat", name="flat", is_dataset_root=False)
    dataset.add_bases([root, flat])
    for base in ("root", "flat"):
        lance.write_dataset(entries("b", 1), dataset.uri, mode="append", target_bases=[base])
    lance.dataset(dataset.uri).delete("value = 1")


def _mappings(dataset: lance.LanceDataset) -> None:
    changes: list[Callable[..., Any]] = [
        dataset.update_config,
        dataset.update_metadata,
        dataset.update_schema_metadata,
        lambda entries, **how: dataset.update_field_metadata({"value": entries}, **how),
    ]
    for change in changes:
        change({"a": "1", "b": "2"})
        change({"a": None})
        change({"c": "3"}, replace=True)
    for change in changes[1:]:
        change({}, replace=True)


def _merge_insert_variants(dataset: lance.LanceDataset) -> None:
    dataset.add_columns({"extra": "value + 1"})
    rows = pa.table({"key": ["m", "n"], "value": [3, 99], "extra": [0, 0]})
    dataset.merge_insert("value").when_not_matched_insert_all().execute(rows)
    dataset.merge_insert("value").when_matched_update_all("source.key != target.key").execute(rows)
    some = pa.table({"value": [4], "extra": [7]})
    dataset.merge_insert("value").when_matched_update_all().execute(some)
    last = dataset.merge_insert("value").when_matched_update_all().when_not_matched_insert_all()
    last.when_not_matched_by_source_delete("value > 7").execute(rows)


def _merge_insert_on_a_key(dataset: lance.LanceDataset) -> None:
    _primary_key(dataset)
    overwritten = lance.dataset(dataset.uri)
    rows = pa.table({"value": [1, 5]}, schema=overwritten.schema)
    overwritten.merge_insert("value").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _of_words(dataset: lance.LanceDataset) -> lance.LanceDataset:
    """Columns for every kind of index, in two fragments."""
    numbers = pa.array((number * 7 % 13 for number in range(300 * 8)), pa.float32())
    rows = pa.table(
        {
            "value": range(300),
            "words": [f"word{number} other" for number in range(300)],
            "labels": [[str(number % 3)] for number in range(300)],
            "vector": pa.FixedSizeListArray.from_arrays(numbers, 8),
        }
    )
    return lance.write_dataset(rows, dataset.uri, mode="overwrite", max_rows_per_file=150)


def _optimized(dataset: lance.LanceDataset) -> None:
    dataset.insert(dataset.to_table(limit=20))
    dataset.optimize.optimize_indices()


def _scalar_indices(dataset: lance.LanceDataset) -> None:
    words = _of_words(dataset)
    kinds: dict[str, Any] = {"BTREE": "value", "BITMAP": "value", "ZONEMAP": "value", "BLOOMFILTER": "value"}
    kinds |= {"LABEL_LIST": "labels", "NGRAM": "words", "INVERTED": "words"}
    for kind, column in kinds.items():
        words.create_scalar_index(column, kind, name=f"by_{kind}")  # type: ignore[arg-type]  # the stubs want literals
    _optimized(words)


def _vector_indices(dataset: lance.LanceDataset) -> None:
    words = _of_words(dataset)
    kinds: dict[str, dict[str, Any]] = {"IVF_FLAT": {}, "IVF_SQ": {}, "IVF_PQ": {"num_sub_vectors": 2}}
    kinds |= {"IVF_HNSW_FLAT": {}, "IVF_HNSW_SQ": {}, "IVF_HNSW_PQ": {"num_sub_vectors": 2}}
    for kind, options in kinds.items():
        words.create_index("vector", kind, name=f"by_{kind}", num_partitions=1, **options)
    _optimized(words)


def _compacted_index(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("value", "BTREE")
    dataset.delete("value = 1")
    # The remapping of row addresses can be deferred only without stable row ids.
    dataset.optimize.compact_files(defer_index_remap=not dataset.has_stable_row_ids)


def _nullable(dataset: lance.LanceDataset) -> None:
    change: Any = {"path": "key", "nullable": True}
    dataset.alter_columns(change)


def _other_files(dataset: lance.LanceDataset) -> None:
    lance.write_dataset(entries("b", 1), dataset.uri, mode="append", data_storage_version="2.1")


def spilled(dataset: lance.LanceDataset) -> None:
    """Row lineage in separate files, which fragments with deleted rows need."""
    dataset.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"})
    dataset.insert(entries("b", *range(50)))
    dataset.delete("value % 3 = 0")
    dataset.optimize.compact_files()


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
    "rewritten column": _rewritten_column,
    "replaced data": _replaced_data,
    "base paths": _bases,
    "mappings": _mappings,
    "merge_insert variants": _merge_insert_variants,
    "merge_insert on a key": _merge_insert_on_a_key,
    "scalar indices": _scalar_indices,
    "vector indices": _vector_indices,
    "compacted index": _compacted_index,
    "mixed file versions": _other_files,
    "nullable column": _nullable,
    "deep clone": lambda dataset: dataset.deep_clone(f"{dataset.uri}-clone", 1),
    "shallow clone": lambda dataset: dataset.shallow_clone(f"{dataset.uri}-clone", 1),
}
