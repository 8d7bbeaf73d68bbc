"""Compaction keeps the rows, with their ids and versions, in fewer fragments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.datafiles import FILE_VERSION
from lance_dagster.edit.compaction_plan import plan_compaction
from lance_dagster.errors import CommitConflictError
from lance_dagster.format.model import DataFile, Fragment, Fragments
from lance_dagster.format.schema import fields_from_arrow
from lance_dagster.store import LocalStore
from lance_dagster.transactions.apply import empty_manifest
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_on

LINEAGE = ["key", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(*keys: int) -> pa.Table:
    """Rows with a number, a text and a vector."""
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "text": pa.array([f"word{key % 7} all" for key in keys], pa.string()),
            "vector": pa.array([[float(key), 1.0] for key in keys], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Five fragments of ten rows, some of them deleted and replaced."""
    table = LanceTable.create(tmp_path / "table", rows().schema)
    for start in range(0, 50, 10):
        table.append(rows(*range(start, start + 10)))
    table.replace_where("key % 5 = 1 OR key > 100", rows(101, 102))
    return table


def lineage(table: LanceTable, ref: str = "main") -> pa.Table:
    """The rows with their row ids and row versions."""
    return table.to_lance(ref).to_table(columns=LINEAGE).sort_by("key")


def test_rows_their_ids_and_versions_stay(table: LanceTable) -> None:
    """Only the fragments change; pylance validates the table and can change it."""
    before = lineage(table)
    version = table.maintenance.compact(target_rows=1_000, message="tidy")
    assert ("Rewrite", "tidy", len(before)) == (version.operation, version.message, version.rows)
    assert before == lineage(table)
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert [len(before)] == [fragment.physical_rows for fragment in dataset.get_fragments()]
    dataset.delete("key = 0")
    dataset.insert(rows(7))
    dataset.optimize.compact_files()
    dataset.validate()
    assert len(before) == table.count_rows()


def test_fragments_reach_the_target_and_the_large_ones_stay(table: LanceTable) -> None:
    """Adjacent fragments are joined until they have enough rows."""
    table.append(rows(*range(1_000, 1_030)))
    table.maintenance.compact(target_rows=25)
    found = [fragment.count_rows() for fragment in lance.dataset(table.uri).get_fragments()]
    assert sum(found) == table.count_rows()
    assert 1 >= sum(count < 25 for count in found)
    assert str(table.head()) == str(table.maintenance.compact(target_rows=25))


def test_fragments_of_one_and_of_several_files_are_put_together(table: LanceTable) -> None:
    """A fragment with an added column in a second file can be joined with others."""
    table.columns.add({"more": "key + 1"})
    table.append(table.read(filter="key = 2"))
    before = lineage(table)
    table.maintenance.compact()
    assert 1 == len(lance.dataset(table.uri).get_fragments())
    assert before == lineage(table)


def test_nothing_to_do_makes_no_version(tmp_path: Path) -> None:
    """A table with one large enough fragment, or with none, is left as it is."""
    table = LanceTable.create(tmp_path / "table", rows().schema)
    assert "main@1" == str(table.maintenance.compact())
    table.append(rows(1, 2, 3))
    assert "main@2" == str(table.maintenance.compact())


def test_large_files_are_large_enough_whatever_their_rows() -> None:
    """Files of wide rows are closed by their bytes, and would otherwise be rewritten by the next compaction."""
    mebibyte = 1024 * 1024
    sizes = [900, 10, 20, 900, 300, 300, 300, 900, 700]
    file = DataFile(path="a.lance", fields=(0,), column_indices=(0,), major=2, minor=2)
    fragments = Fragments(
        Fragment(id=number, files=(replace(file, size=size * mebibyte),), physical_rows=10)
        for number, size in enumerate(sizes)
    )
    manifest = replace(empty_manifest(fields_from_arrow(rows().schema), FILE_VERSION), fragments=fragments)
    groups = plan_compaction(manifest, target_rows=1_000, deleted_share=0.1)
    assert [[1, 2], [4, 5]] == [[fragment.id for fragment in group] for group in groups]


def test_a_fragment_with_many_deleted_rows_is_rewritten_alone(tmp_path: Path) -> None:
    """The rewritten fragment has no deleted rows."""
    table = LanceTable.create(tmp_path / "table", rows().schema)
    table.append(rows(*range(10)))
    table.replace_where("key < 3", rows())
    assert "main@3" == str(table.maintenance.compact(target_rows=5, deleted_share=0.5))
    table.maintenance.compact(target_rows=5, deleted_share=0.2)
    (fragment,) = lance.dataset(table.uri).get_fragments()
    assert (7, None) == (fragment.physical_rows, fragment.deletion_file())


@pytest.mark.parametrize("stable", [True, False])
def test_indices_answer_as_before(tmp_path: Path, *, stable: bool) -> None:
    """Indices of numbers, vectors and text answer with stable row ids and, through pylance, without them."""
    uri = str(tmp_path / "table")
    data = rows(*range(600))
    dataset = lance.write_dataset(data, uri, max_rows_per_file=100, enable_stable_row_ids=stable)
    dataset.create_scalar_index("key", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_index("vector", "IVF_FLAT", num_partitions=2)
    dataset.insert(rows(*range(600, 650)))
    dataset.delete("key % 9 = 0")
    table = LanceTable.open(uri)
    table.maintenance.compact(target_rows=10_000)
    after = lance.dataset(uri)
    assert 2 == len(after.get_fragments())
    assert ["key", "text", "vector"] == [index.columns[0] for index in table.maintenance.indices()]
    assert all(50 >= index.unindexed_rows > 0 for index in table.maintenance.indices())
    assert all(index.needs_work for index in table.maintenance.indices())
    left = [key for key in range(650) if key % 9]
    for key in (1, 9, 301, 649):
        found = after.to_table(filter=f"key = {key}")["key"].to_pylist()
        assert [key for _ in range(key in left)] == found
        near = {"column": "vector", "q": np.array([key, 1.0], np.float32), "k": 1, "nprobes": 2}
        assert min(left, key=lambda other: abs(other - key)) == after.to_table(nearest=near)["key"][0].as_py()
    words = after.to_table(full_text_query="word3", columns=["key"], limit=700)["key"].to_pylist()
    assert {key for key in left if key % 7 == 3} == set(words)


def test_a_branch_is_compacted_without_copying_and_main_does_not_notice(table: LanceTable) -> None:
    """The branch's files lie under the root; queries scan the rows that an inherited index no longer covers."""
    lance.dataset(table.uri).create_scalar_index("key", "BTREE")
    table.branches.create("run/1")
    table.append(rows(500), branch="run/1")
    before, main = lineage(table, "run/1"), table.head()
    table.maintenance.compact(branch="run/1", target_rows=1_000)
    assert before == lineage(table, "run/1")
    assert str(main) == str(table.head())
    dataset = table.to_lance("run/1")
    dataset.validate()
    assert [500] == dataset.to_table(filter="key = 500")["key"].to_pylist()
    assert [12] == dataset.to_table(filter="key = 12")["key"].to_pylist()
    assert [(0, dataset.count_rows())] == [
        (index.indexed_rows, index.unindexed_rows) for index in table.maintenance.indices("run/1")
    ]
    assert not (Path(table.uri) / "tree/run/1/data").exists()


def test_a_shallow_clone_is_compacted_and_its_inherited_index_stays_sound(table: LanceTable, tmp_path: Path) -> None:
    """Queries scan the moved rows, which the index no longer covers; pylance finds every row too."""
    lance.dataset(table.uri).create_scalar_index("key", "BTREE")
    clone = table.maintenance.clone(str(tmp_path / "clone"))
    before = clone.count_rows()
    clone.maintenance.compact(target_rows=1_000)
    assert before == clone.count_rows()
    assert 1 == clone.count_rows(filter="key = 12")
    assert [12] == lance.dataset(clone.uri).to_table(filter="key = 12")["key"].to_pylist()


def test_an_inherited_index_beside_one_of_its_own_is_refused(table: LanceTable) -> None:
    """Pylance would have to remap the index of the branch, and would break the inherited one; nothing is written."""
    lance.dataset(table.uri).create_scalar_index("key", "BTREE", name="by_key")
    table.branches.create("run/1")
    table.to_lance("run/1").create_scalar_index("text", "BTREE", name="by_text")
    before = table.head("run/1")
    with pytest.raises(InvalidInputError):
        table.maintenance.compact(branch="run/1")
    assert before == table.head("run/1")


@pytest.mark.parametrize("goal", [{"target_rows": 0}, {"deleted_share": 1.5}, {"deleted_share": -0.1}])
def test_a_goal_that_cannot_be_is_refused(table: LanceTable, goal: dict[str, float]) -> None:
    """The error names valid values."""
    with pytest.raises(InvalidInputError, match=r"1 or more|between 0 and 1"):
        table.maintenance.compact(**goal)  # type: ignore[arg-type]


@pytest.mark.parametrize("rivals", [1, 15])
def test_a_compaction_by_pylance_is_tried_again_like_any_other(rivals: int, tmp_path: Path) -> None:
    """Another writer deletes a row after each of the first reads of the head, before pylance commits."""
    other = LanceTable.create(tmp_path / "table", rows().schema)
    for start in (0, 10):
        other.append(rows(*range(start, start + 10)))
    lance.dataset(other.uri).create_scalar_index("key", "BTREE")
    keys = list(range(rivals))

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        answer = request.send()
        if request.verb == "get" and answer is not None and keys:
            other.delete(f"key = {keys.pop()}")
        return answer

    table = LanceTable(context_on(ScriptedStore(LocalStore(other.uri), script)))
    if rivals == 1:
        table.maintenance.compact(target_rows=100)
        assert 1 == len(other.to_lance().get_fragments())
    else:
        with pytest.raises(CommitConflictError) as raised:
            table.maintenance.compact(target_rows=100)
        assert raised.value.retryable
    assert 20 - rivals + len(keys) == other.count_rows()
