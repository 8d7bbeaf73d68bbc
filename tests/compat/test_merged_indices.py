"""Indices that pylance made on a branch are there after a merge, and answer as a full scan does."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceRepository, LanceTable
from tests.table_factory import as_pylance

pytestmark = pytest.mark.slow

_COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "kind": pa.string(),
    "text": pa.string(),
    "vector": pa.list_(pa.float32(), 2),
}
SCHEMA = pa.schema(_COLUMNS)
NAMES = {"by_id", "by_kind", "by_text", "by_vector"}
QUERIES = (3, 55, 105, 120, 155)


def rows(*ids: int, kind: str = "new") -> pa.Table:
    """Rows whose text and vector follow from their id."""
    columns: list[list[object]] = [
        [*ids],
        [kind] * len(ids),
        [f"word{number} text" for number in ids],
        [[float(n), 0.0] for n in ids],
    ]
    return pa.Table.from_arrays([*map(pa.array, columns, SCHEMA.types)], schema=SCHEMA)


@pytest.fixture(params=[True, False], ids=["stable", "addresses"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """Two fragments of fifty rows each, and a branch."""
    uri = str(tmp_path / "table")
    lance.write_dataset(rows(*range(50)), uri, enable_stable_row_ids=request.param)
    table = LanceTable.open(uri)
    table.append(rows(*range(50, 100)))
    table.branches.create("run")
    return table


def make_indices(table: LanceTable, branch: str = "run") -> None:
    """Make an index of four kinds on a branch."""
    as_pylance(table, branch).create_scalar_index("id", "BTREE", name="by_id")
    as_pylance(table, branch).create_scalar_index("kind", "BITMAP", name="by_kind")
    as_pylance(table, branch).create_scalar_index("text", "INVERTED", name="by_text")
    as_pylance(table, branch).create_index("vector", "IVF_FLAT", num_partitions=2, name="by_vector")


def assert_exact(table: LanceTable, branch: str = "main") -> None:
    """Queries by each index find what a full scan finds."""
    dataset = as_pylance(table, branch)
    assert "ScalarIndexQuery" in dataset.scanner(filter="id = 3").explain_plan()
    everything = dataset.scanner(use_scalar_index=False).to_table()
    ids: list[int] = everything.column("id").to_numpy().tolist()
    kinds = everything["kind"].to_pylist()
    for number in QUERIES:
        expected = [number] * ids.count(number)
        assert expected == dataset.to_table(filter=f"id = {number}")["id"].to_pylist()
        assert expected == dataset.to_table(full_text_query=f"word{number}")["id"].to_pylist()
        near = sorted(ids, key=lambda own: abs(own - (number + 0.25)))[:2]
        query = {"column": "vector", "q": [number + 0.25, 0.0], "k": 2, "nprobes": 2}
        assert near == dataset.to_table(nearest=query)["id"].to_pylist()
    for kind in ("new", "other"):
        assert kinds.count(kind) == dataset.to_table(filter=f"kind = '{kind}'").num_rows


def coverage(table: LanceTable, branch: str = "main") -> dict[str, int]:
    """How many rows no segment of an index covers, by the name of the index."""
    return {index.name: index.unindexed_rows for index in table.maintenance.indices(branch)}


def segments(table: LanceTable) -> set[str]:
    """The ids of all segments of indices."""
    return {segment.uuid for index in as_pylance(table).describe_indices() for segment in index.segments}


def settled(table: LanceTable) -> None:
    """Indices are exact, also when the branch is gone, and after pylance added rows to them and compacted."""
    assert_exact(table)
    table.branches.delete("run")
    assert table.maintenance.verify(deep=True).ok
    as_pylance(table).optimize.optimize_indices()
    assert_exact(table)
    assert {0} == {*coverage(table).values()}
    as_pylance(table).optimize.compact_files()
    assert_exact(table)
    as_pylance(table).validate()


BEFORE_THE_INDEX: dict[str, Callable[[LanceTable], object]] = {
    "nothing": lambda _: None,
    "an append": lambda table: table.append(rows(*range(100, 120)), branch="run"),
    "appends that are compacted": lambda table: [
        table.append(rows(*range(100, 120)), branch="run"),
        table.append(rows(*range(120, 140)), branch="run"),
        table.maintenance.compact(branch="run"),
    ],
    "an update": lambda table: table.update({"kind": "'other'"}, where="id % 10 = 5", branch="run"),
    "a deletion": lambda table: table.delete("id < 70 and id <> 55", branch="run"),
    "another order of the columns": lambda table: table.columns.reorder(["vector", "text", "kind", "id"], branch="run"),
    "a new column": lambda table: table.columns.add({"twice": "id * 2"}, branch="run"),
    "an overwrite": lambda table: table.overwrite(rows(*range(2, 130)), branch="run"),
}


@pytest.mark.parametrize("change", BEFORE_THE_INDEX)
def test_a_fast_forward_keeps_indices_whole(table: LanceTable, change: str) -> None:
    """Every fragment is the same on both sides, so the indices cover what they cover on the branch."""
    BEFORE_THE_INDEX[change](table)
    make_indices(table)
    preview = table.preview_merge("run")
    if change == "appends that are compacted" and not as_pylance(table).has_stable_row_ids:
        # Rows that the compaction moved stay where main has them, so not every fragment is the same.
        assert tuple(sorted(NAMES)) == preview.reindex_needed
        table.merge("run")
        settled(table)
        return
    assert (True, ()) == (preview.fast_forward, preview.reindex_needed)
    table.merge("run")
    assert dict.fromkeys(NAMES, 0) == coverage(table)
    assert () == table.diff("run", "main").indices
    settled(table)


def test_rows_that_came_after_an_index_are_not_covered(table: LanceTable) -> None:
    """As on the branch: they are scanned, and the preview names the index."""
    make_indices(table)
    table.append(rows(*range(100, 120)), branch="run")
    table.update({"kind": "'other'"}, where="id = 55", branch="run")
    assert tuple(sorted(NAMES)) == table.preview_merge("run").reindex_needed
    table.merge("run")
    assert coverage(table, "run") == coverage(table)
    settled(table)


IN_BETWEEN: dict[str, Callable[[LanceTable], object]] = {
    "an append": lambda table: table.append(rows(*range(150, 160))),
    "a deletion": lambda table: table.delete("id < 10 or id = 55"),
    "an update": lambda table: table.update({"kind": "'other'"}, where="id = 55 or id = 20"),
    "a column in place": lambda table: table.columns.cast("kind", pa.large_string()),
}
"""What main does while a branch has an index, in other places than the branch."""


@pytest.mark.parametrize("change", IN_BETWEEN)
def test_an_index_keeps_the_fragments_that_the_dest_left_alone(table: LanceTable, change: str) -> None:
    """Both sides changed: the index covers the fragments that both have, and the preview names it where rows came."""
    make_indices(table)
    if change != "a column in place":
        table.append(rows(*range(100, 120)), branch="run")
    IN_BETWEEN[change](table)
    needed = table.preview_merge("run").reindex_needed
    table.merge("run")
    kept = coverage(table)
    assert NAMES - ({"by_kind"} if change == "a column in place" else set()) == kept.keys()
    assert {*needed} == {name for name in NAMES if kept.get(name, 1)}
    assert all(rows_left < 40 for rows_left in kept.values())
    if change != "a column in place":
        settled(table)


@pytest.mark.parametrize("change", ["an append", "an update"])
def test_an_index_of_fragments_with_taken_ids_is_dropped(table: LanceTable, change: str) -> None:
    """Both sides gave an id to a fragment, and with stable row ids readers would look rows up in the wrong fragment."""
    table.append(rows(*range(100, 120)), branch="run")
    make_indices(table)
    IN_BETWEEN[change](table)
    assert tuple(sorted(NAMES)) == table.preview_merge("run").reindex_needed
    table.merge("run")
    if as_pylance(table).has_stable_row_ids:
        assert {} == coverage(table)
    else:
        assert NAMES == coverage(table).keys()
        settled(table)


def test_an_index_of_no_fragment_of_the_result_is_dropped(table: LanceTable) -> None:
    """The dest moved all rows that the index covers, so that it would answer for none of them."""
    make_indices(table)
    table.maintenance.compact()
    assert tuple(sorted(NAMES)) == table.preview_merge("run").reindex_needed
    table.merge("run")
    assert {} == coverage(table)


def test_an_index_that_the_branch_built_anew_replaces_the_old_one(table: LanceTable) -> None:
    """`optimize_indices` on the branch adds the rows of the branch, and main has them after the merge."""
    table.branches.delete("run")
    make_indices(table, "main")
    table.branches.create("run")
    table.append(rows(*range(100, 130)), branch="run")
    as_pylance(table, "run").optimize.optimize_indices()
    assert () == table.preview_merge("run").reindex_needed
    table.merge("run")
    assert dict.fromkeys(NAMES, 0) == coverage(table)
    settled(table)


def test_an_index_of_both_sides_is_the_one_of_the_dest(table: LanceTable) -> None:
    """Both made one of the same name: the dest's stays, and the preview says that rows are missing in it."""
    table.append(rows(*range(100, 130)), branch="run")
    make_indices(table)
    make_indices(table, "main")
    before = segments(table)
    assert tuple(sorted(NAMES)) == table.preview_merge("run").reindex_needed
    table.merge("run")
    assert before == segments(table)
    settled(table)


def test_a_later_fragment_never_gets_an_id_that_the_index_has(table: LanceTable) -> None:
    """The index has rows of a fragment that the branch compacted away; appends to main get ids beyond it."""
    for start in (100, 110, 120):
        table.append(rows(*range(start, start + 10)), branch="run")
    make_indices(table)
    table.delete("id >= 100", branch="run")
    table.merge("run")
    for start in (140, 150, 160):
        table.append(rows(*range(start, start + 10)))
        assert_exact(table)
    settled(table)


def test_a_branch_finds_an_index_of_main_after_a_sync(table: LanceTable) -> None:
    """The files stay where they are, and the branch names them by its base path."""
    table.append(rows(*range(100, 120)), branch="run")
    make_indices(table, "main")
    table.branches.sync("run")
    assert NAMES == coverage(table, "run").keys()
    assert_exact(table, "run")
    table.merge("run")
    settled(table)


def test_an_empty_table_keeps_its_index(tmp_path: Path) -> None:
    """An index that covers nothing yet says how later rows are indexed."""
    table = LanceTable.create(tmp_path / "empty", SCHEMA)
    table.branches.create("run")
    as_pylance(table, "run").create_scalar_index("id", "BTREE", name="by_id")
    table.merge("run")
    table.append(rows(1, 2, 3))
    as_pylance(table).optimize.optimize_indices()
    assert {"by_id": 0} == coverage(table)
    assert [2] == as_pylance(table).to_table(filter="id = 2")["id"].to_pylist()


def test_a_publication_keeps_an_index(tmp_path: Path) -> None:
    """The branch of a run is published and deleted; readers have its rows and its index."""
    lake = LanceRepository.create(tmp_path / "lake")
    table = lake.create_table("orders", SCHEMA)
    run = lake.fork("orders", "run/1")
    run.append(rows(*range(100)), branch="run/1")
    make_indices(run, "run/1")
    lake.publish("run/1")
    assert {} == table.branches.list()
    assert dict.fromkeys(NAMES, 0) == coverage(table)
    assert_exact(table)
    assert table.maintenance.verify(deep=True).ok
