"""A revert that puts values back is a change of these rows, however often the rows are moved afterwards."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceTable, MergeConflictError
from tests.table_factory import as_pylance, contents, entries, new_table

Change = Callable[[LanceTable], object]
WAYS = pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])


def compact(table: LanceTable) -> None:
    """Compact main by the package."""
    table.append(entries("d", 4))
    assert table.maintenance.compact() is not None


def compact_by_pylance(table: LanceTable) -> None:
    """Compact main by pylance."""
    table.append(entries("d", 4))
    as_pylance(table).optimize.compact_files()


MOVES: dict[str, Change] = {
    "stay": lambda table: table.append(entries("d", 4)),
    "compact": compact,
    "compact by pylance": compact_by_pylance,
}
CHANGES: dict[str, Change] = {
    "update": lambda table: table.update({"value": "100"}, where="key = 'a'", branch="run"),
    "delete": lambda table: table.delete("key = 'a'", branch="run"),
}


def reverted(folder: Path, where: str) -> LanceTable:
    """Make a table in which main reverts an update that the branch `run` has from its fork."""
    table = new_table(folder, pa.concat_tables([entries("a", 1), entries("b", 2)]))
    updated = table.update({"value": "value + 10"}, where=where)
    table.branches.create("run")
    table.revert(str(updated))
    return table


@WAYS
@pytest.mark.parametrize("where", ["key = 'a'", "value > 0"], ids=["one row", "all rows"])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_rows_whose_update_was_reverted_is_a_conflict(
    tmp_path: Path, change: str, move: str, where: str, source: str, dest: str
) -> None:
    """Main has the value from before the update, and the branch a newer one, or no row."""
    table = reverted(tmp_path, where)
    MOVES[move](table)
    CHANGES[change](table)
    with pytest.raises(MergeConflictError) as caught:
        table.merge(source, dest)
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]
    table.merge(source, dest, strategy="source-wins" if source == "main" else "dest-wins")
    of_main = [("a", 1), ("b", 2), ("d", 4)]
    assert of_main == contents(table, dest)


BACK: dict[str, Callable[[LanceTable, str], object]] = {
    "restore": lambda table, before: table.restore(before),
    "update": lambda table, _: table.update({"value": "1"}, where="key = 'a'"),
}


@WAYS
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("back", BACK)
def test_values_that_are_put_back_in_another_way_are_a_conflict_too(
    tmp_path: Path, back: str, change: str, move: str, source: str, dest: str
) -> None:
    """Main has the value from before the branch's fork by a restore, or by an update."""
    table = new_table(tmp_path, pa.concat_tables([entries("a", 1), entries("b", 2)]))
    before = str(table.head())
    table.update({"value": "11"}, where="key = 'a'")
    table.branches.create("run")
    BACK[back](table, before)
    MOVES[move](table)
    CHANGES[change](table)
    with pytest.raises(MergeConflictError) as caught:
        table.merge(source, dest)
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]


@WAYS
@pytest.mark.parametrize("move", MOVES)
def test_rows_that_were_put_back_unchanged_are_in_no_conflict(
    tmp_path: Path, move: str, source: str, dest: str
) -> None:
    """Main deletes a row and reverts that: the branch's update is taken, since the row has the values of the fork."""
    table = new_table(tmp_path, pa.concat_tables([entries("a", 1), entries("b", 2)]))
    table.branches.create("run")
    table.revert(str(table.delete("key = 'a'")))
    MOVES[move](table)
    CHANGES["update"](table)
    table.merge(source, dest)
    assert [("a", 100), ("b", 2), ("d", 4)] == contents(table, dest)


@WAYS
@pytest.mark.parametrize("change", ["update", "delete"])
def test_a_revert_in_a_row_of_both_sides_is_not_lost(tmp_path: Path, change: str, source: str, dest: str) -> None:
    """A merge combined the revert with the branch's change of another column; a later deletion is in conflict."""
    rows = pa.table({"id": [1, 2], "first": [1, 1], "second": [1, 1]})
    table = LanceTable.create(tmp_path / "table", rows.schema)
    table.append(rows)
    updated = table.update({"first": "9"}, where="id = 1")
    table.branches.create("run")
    table.update({"second": "5"}, where="id = 1", branch="run")
    table.revert(str(updated))
    table.merge("run")
    assert {"id": 1, "first": 1, "second": 5} in table.read().to_pylist()
    if change == "delete":
        table.delete("id = 1", branch="run")
        with pytest.raises(MergeConflictError):
            table.merge(source, dest)
        return
    table.update({"second": "6"}, where="id = 1", branch="run")
    table.merge(source, dest)
    assert {"id": 1, "first": 1, "second": 6} in table.read(dest).to_pylist()


@pytest.mark.parametrize("source,dest", [("run", "dev"), ("dev", "run")])
@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("change", [*CHANGES, "nothing"])
def test_a_revert_that_came_with_what_it_reverted_is_not_lost(
    tmp_path: Path, change: str, source: str, dest: str, *, compacted: bool
) -> None:
    """A third branch got the update of `run` and its revert by one merge of main, so it never had the new value."""
    table = new_table(tmp_path, pa.concat_tables([entries("a", 1), entries("b", 2)]))
    table.branches.create("dev")
    table.branches.create("run")
    table.append(entries("d", 4), branch="run")
    if compacted:
        table.maintenance.compact(branch="run")
    table.update({"value": "50"}, where="key = 'a'", branch="run")
    table.revert(str(table.merge("run")), parent=1)
    table.merge("main", "dev")
    assert [("a", 1), ("b", 2)] == contents(table, "dev")
    if change == "nothing":
        table.append(entries("c", 3), branch="run")
        table.merge(source, dest)
        assert [("a", 1), ("b", 2), ("c", 3)] == contents(table, dest)
        return
    CHANGES[change](table)
    with pytest.raises(MergeConflictError) as caught:
        table.merge(source, dest)
    (conflict,) = caught.value.conflicts
    assert "rows" == conflict.kind


@pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
def test_a_row_that_both_sides_brought_back_has_the_update_of_one(tmp_path: Path, source: str, dest: str) -> None:
    """Main reverts its deletion and the branch the merge that brought it: the update of the restored row is kept."""
    table = new_table(tmp_path, pa.concat_tables([entries("a", 1), entries("b", 2)]))
    table.branches.create("run")
    deleted = table.delete("key = 'a'")
    table.revert(str(table.merge("main", "run")), "run", parent=1)
    table.revert(str(deleted))
    CHANGES["update"](table)
    table.merge(source, dest)
    assert [("a", 100), ("b", 2)] == contents(table, dest)
