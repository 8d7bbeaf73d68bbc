"""Indices made by pylance still give right answers after commits of the package."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from tests.table_factory import as_pylance, entries, new_table, sorted_rows

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


def test_an_index_made_on_a_branch_is_not_merged(table: LanceTable) -> None:
    """The branch's index would refer to fragments that have other ids on main; main keeps its own indices."""
    table.branches.create("run")
    table.append(entries("x", *range(100, 120)), branch="run")
    as_pylance(table, "run").create_scalar_index("value", "BTREE", name="of_the_branch")
    table.merge("run")
    names = {index.name for index in as_pylance(table).describe_indices()}
    assert {"value_idx", "key_idx"} == names
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
