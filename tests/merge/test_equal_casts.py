"""Two casts of a column to one type are one cast where all rows that both sides have kept their values."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.types import Winner
from tests.raising import raises
from tests.table_factory import contents, entries, new_table

WINNERS: list[Winner] = ["source-wins", "dest-wins"]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Three rows and a branch `run`."""
    made = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    made.branches.create("run")
    return made


def cast(table: LanceTable, *branches: str, to: pa.DataType | None = None) -> None:
    """Give the column `value` the same type on some branches."""
    for branch in branches:
        table.columns.cast("value", to or pa.int32(), branch=branch)


def more(*values: int) -> pa.Table:
    """Rows of the new type."""
    return pa.table({"key": ["n"] * len(values), "value": pa.array(values, pa.int32())})


@pytest.mark.parametrize("compacted", [(), ("run",), ("main",), ("run", "main")])
def test_an_equal_cast_keeps_the_rows_of_both_sides(table: LanceTable, compacted: tuple[str, ...]) -> None:
    """Each side converted the rows that it wrote before its cast, and wrote the later ones with the new type."""
    table.append(entries("c", 4), branch="run")
    table.update({"value": "10"}, where="value = 1", branch="run")
    table.update({"value": "20"}, where="value = 2")
    cast(table, "run", "main")
    for branch in compacted:
        table.maintenance.compact(branch=branch)
    table.append(more(5), branch="run")
    table.append(more(6))
    table.delete("value = 3", branch="run")
    table.merge("run")
    assert (pa.int32(), [("a", 10), ("a", 20), ("c", 4), ("n", 5), ("n", 6)]) == (
        table.schema().field("value").type,
        contents(table),
    )
    table.branches.sync("run")
    table.update({"value": "50"}, where="value = 5", branch="run")
    table.update({"value": "11"}, where="value = 10")
    table.delete("value = 4", branch="run")
    table.merge("run")
    assert [("a", 11), ("a", 20), ("n", 6), ("n", 50)] == contents(table)
    assert table.maintenance.verify(deep=True).problems == ()


def test_later_changes_of_a_branch_that_was_not_synced(table: LanceTable) -> None:
    """The columns of both sides lie in different files, so an updated row is refused rather than changed wrongly."""
    cast(table, "run", "main")
    table.merge("run")
    table.append(more(5), branch="run")
    table.delete("value = 1", branch="run")
    table.merge("run")
    assert [("a", 2), ("b", 3), ("n", 5)] == contents(table)
    table.update({"value": "30"}, where="value = 3", branch="run")
    with raises(MergeConflictError, units=("column value",)):
        table.merge("run")


@pytest.mark.parametrize("winner", WINNERS)
def test_a_row_in_conflict_beside_equal_casts(table: LanceTable, winner: Winner) -> None:
    """The strategy decides about the row, and the column is cast once."""
    for branch, value in (("run", 10), ("main", 20)):
        table.update({"value": str(value)}, where="value = 1", branch=branch)
        cast(table, branch)
    assert ["rows"] == [conflict.kind for conflict in table.preview_merge("run").conflicts]
    table.merge("run", strategy=winner)
    assert [("a", 2), ("a", 10 if winner == "source-wins" else 20), ("b", 3)] == contents(table)


def test_an_equal_cast_is_taken_back_with_its_merge(table: LanceTable) -> None:
    """The dest's own cast stays, and the merge can be reinstated."""
    cast(table, "run", "main")
    table.append(more(5), branch="run")
    merged = table.merge("run")
    table.revert(str(merged), parent=1)
    assert [("a", 1), ("a", 2), ("b", 3)] == contents(table)
    table.revert("main")
    assert [("a", 1), ("a", 2), ("b", 3), ("n", 5)] == contents(table)


def test_casts_that_are_not_the_same_conflict(table: LanceTable) -> None:
    """The conflict says of both sides that they changed the type."""
    cast(table, "run")
    cast(table, "main", to=pa.int16())
    (conflict,) = table.preview_merge("run").conflicts
    assert ("column value", True, True) == (
        conflict.unit,
        conflict.source.endswith("(run@4) changed its type"),
        conflict.dest.endswith("(main@4) changed its type"),
    )
    table.branches.create("other", "main@3")
    table.columns.drop(["value"], branch="other")
    table.columns.add({"value": "cast(7 as smallint)"}, branch="other")
    assert table.preview_merge("other").conflicts


def test_casts_of_other_values_conflict(table: LanceTable) -> None:
    """One side wrote the column anew beside the rows, so rows would have two values."""
    table.columns.drop(["value"], branch="run")
    table.columns.add({"value": "cast(9 as int)"}, branch="run")
    cast(table, "main")
    assert ["column value"] == [conflict.unit for conflict in table.preview_merge("run").conflicts]


def test_equal_casts_without_stable_row_ids_conflict(tmp_path: Path) -> None:
    """Rows cannot be traced, so their values are not compared."""
    lance.write_dataset(entries("a", 1, 2), str(tmp_path / "addresses"))
    table = LanceTable.open(tmp_path / "addresses")
    table.branches.create("run")
    cast(table, "run", "main")
    assert ["column value"] == [conflict.unit for conflict in table.preview_merge("run").conflicts]


def test_a_cast_of_a_list_is_not_advised_on_the_other_side(tmp_path: Path) -> None:
    """Values of lists are not compared, so two casts would be a conflict as well."""
    table = LanceTable.create(tmp_path / "lists", pa.schema([("value", pa.list_(pa.int64()))]))
    table.append(pa.table({"value": [[1]]}))
    table.branches.create("run")
    cast(table, "run", to=pa.list_(pa.float64()))
    table.append(pa.table({"value": [[2]]}))
    with raises(MergeConflictError, units=("column value", "column value.item")) as caught:
        table.merge("run")
    assert "columns.cast" not in str(caught.value.hint)
