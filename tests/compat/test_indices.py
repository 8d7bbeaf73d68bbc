"""Indices made by pylance still give right answers after commits of the package."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.format.codec import encode_indices
from lance_dagster.store import open_store
from lance_dagster.transactions.index_updates import (
    covered_by_readers,
    covered_fragments,
    indices_of,
    uncover_fields,
)
from tests.table_factory import as_pylance, context_on, entries, new_table, sorted_rows

CHANGES: dict[str, Callable[[LanceTable], object]] = {
    "append": lambda table: table.append(entries("x", *range(100, 120))),
    "replace a fragment": lambda table: table.replace_where("key = 'b'", entries("b", *range(100, 120))),
    "replace rows": lambda table: table.replace_where("value % 3 = 0 or key = 'x'", entries("x", *range(100, 120))),
    "merge of appends": lambda table: merged(table, lambda: table.append(entries("x", *range(120)), branch="run")),
    "merge of a replace": lambda table: merged(
        table, lambda: table.replace_where("value < 30 or key = 'x'", entries("x", *range(120)), branch="run")
    ),
    "merge of rows by pylance": lambda table: merged(
        table, lambda: as_pylance(table, "run").insert(entries("x", *range(120)))
    ),
}


def merged(table: LanceTable, change: Callable[[], object]) -> None:
    """Change a branch, change main, and merge."""
    table.branches.create("run")
    change()
    table.append(entries("m", *range(100, 110)))
    table.merge("run")


@pytest.fixture(params=[True, False], ids=["stable", "addresses"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """Two fragments of fifty rows each, indexed by value and by key."""
    rows = [entries("a", *range(50)), entries("b", *range(25, 75))]
    if request.param:
        made = new_table(tmp_path, *rows)
    else:
        uri = str(tmp_path / "addresses")
        for one in rows:
            lance.write_dataset(one, uri, mode="append" if one is rows[1] else "create")
        made = LanceTable.open(uri)
    as_pylance(made).create_scalar_index("value", "BTREE")
    as_pylance(made).create_scalar_index("key", "BITMAP")
    return made


@pytest.fixture
def deferred(tmp_path: Path) -> LanceTable:
    """Two pairs of fragments of five rows, each pair compacted to one, with an index that was not stored anew."""
    uri = str(tmp_path / "deferred")
    lance.write_dataset(entries("a", *range(20)), uri, max_rows_per_file=5)
    lance.dataset(uri).create_scalar_index("value", "BTREE")
    lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=10, defer_index_remap=True)
    return LanceTable.open(uri)


def write_in_place(dataset: lance.LanceDataset) -> None:
    """Write values from 100 on beside the rows of the first fragment."""
    values = pa.table({"old": pa.array(range(10), pa.int64()), "value": pa.array(range(100, 110), pa.int64())})
    changed, fields = dataset.get_fragments()[0].update_columns(values, left_on="value", right_on="old")
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def assert_answers(dataset: lance.LanceDataset) -> None:
    """Queries use the index, and their results equal those of a full scan."""
    for condition in (
        "value = 30",
        "value >= 20 and value < 40",
        "key = 'b'",
        "key = 'x' and value > 110",
        "value = 999",
    ):
        assert "ScalarIndexQuery" in dataset.scanner(filter=condition).explain_plan()
        with_index = dataset.to_table(filter=condition)
        without = dataset.scanner(filter=condition, use_scalar_index=False).to_table()
        assert sorted_rows(without) == sorted_rows(with_index)


@pytest.mark.parametrize("change", CHANGES)
def test_an_index_answers_after_a_commit_of_the_package(table: LanceTable, change: str) -> None:
    """Queries scan rows that the index does not cover and omit deleted rows, before and after the index is updated."""
    CHANGES[change](table)
    dataset = as_pylance(table)
    assert 2 == len(dataset.describe_indices())
    assert_answers(dataset)
    dataset.optimize.optimize_indices()
    assert_answers(dataset)
    dataset.optimize.compact_files()
    assert_answers(as_pylance(table))
    dataset.validate()


def test_a_branch_uses_the_indices_it_inherited(table: LanceTable) -> None:
    """The branch finds the indices through its base path, for inherited and new rows."""
    table.branches.create("run")
    table.append(entries("x", *range(100, 120)), branch="run")
    table.replace_where("value % 3 = 0", entries("x", 120), branch="run")
    assert_answers(as_pylance(table, "run"))
    table.branches.create("inner", "run")
    table.append(entries("x", 130), branch="inner")
    assert_answers(as_pylance(table, "inner"))


def test_an_overwrite_drops_the_indices(table: LanceTable) -> None:
    """The indices cover only rows that are gone; new ones can be created."""
    table.overwrite(entries("x", *range(200)))
    dataset = as_pylance(table)
    assert [] == dataset.describe_indices()
    dataset.create_scalar_index("value", "BTREE")
    dataset.create_scalar_index("key", "BITMAP")
    assert_answers(as_pylance(table))


def test_a_full_text_index_answers_after_commits_of_the_package(tmp_path: Path) -> None:
    """The index finds words in old, new and replaced rows."""
    schema = pa.schema([("text", pa.string())])
    table = LanceTable.create(tmp_path / "texts", schema)
    table.append(pa.table({"text": ["red apple", "green pear", "red cherry"]}))
    as_pylance(table).create_scalar_index("text", "INVERTED")
    table.append(pa.table({"text": ["red beet"]}))
    table.replace_where("text LIKE '% apple'", pa.table({"text": ["yellow apple"]}))
    found = as_pylance(table).to_table(full_text_query="red")["text"].to_pylist()
    assert {"red beet", "red cherry"} == set(found)


def test_a_vector_index_answers_after_commits_of_the_package(tmp_path: Path) -> None:
    """The index finds neighbours among old and new rows, and none of the replaced ones."""
    vectors = [[float(number), 0.0] for number in range(300)]
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), 2))])
    table = LanceTable.create(tmp_path / "vectors", schema)
    table.append(pa.table({"id": range(300), "vector": vectors}, schema=schema))
    as_pylance(table).create_index("vector", "IVF_FLAT", num_partitions=2)
    table.branches.create("run")
    near = pa.table({"id": [1000], "vector": [[100.25, 0.0]]}, schema=schema)
    table.replace_where("id IN (100, 1000)", near, branch="run")
    table.merge("run")
    query = {"column": "vector", "q": [100.0, 0.0], "k": 3, "nprobes": 2}
    found = as_pylance(table).to_table(nearest=query)["id"].to_pylist()
    assert {99, 101, 1000} == set(found)
    assert 1000 == found[0]


def test_an_index_left_behind_by_a_compaction_is_right_after_a_merge(deferred: LanceTable) -> None:
    """Readers follow it to the new fragments, so it must not name the old fragments of one that got other values."""
    assert [(20, 0)] == [(index.indexed_rows, index.unindexed_rows) for index in deferred.maintenance.indices()]
    deferred.branches.create("run")
    write_in_place(as_pylance(deferred, "run"))
    assert ("value_idx",) == deferred.preview_merge("run").reindex_needed
    deferred.merge("run")
    assert (1, 0) == (deferred.count_rows(filter="value = 104"), deferred.count_rows(filter="value = 4"))
    assert 1 == deferred.count_rows(filter="value = 14")
    assert [(10, 10)] == [(index.indexed_rows, index.unindexed_rows) for index in deferred.maintenance.indices()]
    deferred.upsert(entries("b", 104), on=["value"])
    assert 20 == deferred.count_rows()


def test_an_index_whose_old_fragments_are_unknown_covers_no_new_one(deferred: LanceTable) -> None:
    """A large record of the compactions is in a file, and is not read to remove a fragment from the coverage."""
    manifest = context_on(open_store(deferred.uri)).head("main").manifest
    # A reference to a file with the details, which is empty here.
    elsewhere = ("", b"\x12\x00")
    indices = [one if one.fields else replace(one, details=elsewhere) for one in indices_of(manifest)]
    changed = uncover_fields(replace(manifest, index_section=encode_indices(indices)), [1], [4])
    assert [[]] == [list(covered) for _, covered in covered_by_readers(changed)]
    assert [[]] == [list(covered_fragments(one) or ()) for one in indices_of(changed) if one.fields]


def test_a_compaction_after_a_deferred_one_keeps_the_index_right(deferred: LanceTable) -> None:
    """Pylance would store the index anew from addresses that are gone, so the package defers that again."""
    deferred.delete("value IN (3, 13)")
    deferred.maintenance.compact(deleted_share=0.0)
    assert {18: 18} == {index.indexed_rows: deferred.count_rows() for index in deferred.maintenance.indices()}
    found = [deferred.count_rows(filter=f"value = {value}") for value in range(20)]
    assert [0 if value in {3, 13} else 1 for value in range(20)] == found
