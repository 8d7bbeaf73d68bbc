"""A column whose drop was reverted is the column that it was, so that branches which still have it can be merged."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, MergeConflictError
from tests.table_factory import as_pylance

WAYS = pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
Rows = dict[int, tuple[int | None, int | None]]
BEFORE = pa.table({"id": [1, 2], "value": [10, 20], "pair": [{"x": 1}, {"x": 2}]})


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two rows, and a branch `run`."""
    made = LanceTable.create(tmp_path / "table", BEFORE.schema)
    made.append(BEFORE)
    made.branches.create("run")
    return made


def row(number: int) -> pa.Table:
    """Make a row with values in all columns."""
    return pa.table({"id": [number], "value": [number * 10], "pair": [{"x": number}]})


def rows(table: LanceTable, branch: str) -> Rows:
    """Read the value and the field of the struct by id."""
    found = table.read(branch).to_pylist()
    return {each["id"]: (each["value"], each["pair"] and each["pair"]["x"]) for each in found}


def revert(table: LanceTable, branch: str) -> None:
    """Drop columns and revert that."""
    table.revert(str(table.columns.drop(["value", "pair"], branch=branch)), branch)


def revert_later(table: LanceTable, branch: str) -> None:
    """Revert the drop after another column was added."""
    dropped = table.columns.drop(["value", "pair"], branch=branch)
    table.columns.add({"more": "id + 1"}, branch=branch)
    table.revert(str(dropped), branch)
    table.columns.drop(["more"], branch=branch)


def revert_twice(table: LanceTable, branch: str) -> None:
    """Drop the columns and revert that, twice."""
    revert(table, branch)
    revert(table, branch)


def revert_a_merge(table: LanceTable, branch: str) -> None:
    """Merge a branch that dropped the columns, and revert the merge."""
    table.branches.create("side", branch)
    table.columns.drop(["value", "pair"], branch="side")
    table.revert(str(table.merge("side", branch)), branch, parent=1)


DROPS: dict[str, Callable[[LanceTable, str], None]] = {
    "at once": revert,
    "later": revert_later,
    "twice": revert_twice,
    "merge": revert_a_merge,
}


@WAYS
@pytest.mark.parametrize("side", ["main", "run"])
@pytest.mark.parametrize("drop", DROPS)
def test_rows_are_merged_into_columns_that_came_back(
    table: LanceTable, drop: str, side: str, source: str, dest: str
) -> None:
    """New rows and new values of the other side keep their values, in either direction."""
    other = "run" if side == "main" else "main"
    DROPS[drop](table, side)
    table.append(row(3), branch=side)
    table.append(row(4), branch=other)
    table.update({"value": "21"}, where="id = 2", branch=other)
    table.merge(source, dest)
    assert {1: (10, 1), 2: (21, 2), 3: (30, 3), 4: (40, 4)} == rows(table, dest)
    as_pylance(table, dest).validate()
    assert table.maintenance.verify().ok


def test_rows_from_between_have_no_value(table: LanceTable) -> None:
    """A row that was appended without the column is null there after the revert."""
    dropped = table.columns.drop(["value", "pair"])
    table.append(pa.table({"id": [5]}))
    table.revert(str(dropped))
    assert {1: (10, 1), 2: (20, 2), 5: (None, None)} == rows(table, "main")
    table.append(row(4), branch="run")
    table.merge("run")
    assert {1: (10, 1), 2: (20, 2), 4: (40, 4), 5: (None, None)} == rows(table, "main")


def test_another_column_of_the_name_is_not_taken_for_it(table: LanceTable) -> None:
    """Its values stay its own where the revert would bring a second column of the name."""
    dropped = table.columns.drop(["value"])
    table.maintenance.compact()
    table.columns.add({"value": "id * 1000"})
    table.append(row(3))
    before = rows(table, "main")
    table.branches.create("fork")
    table.columns.rename("value", "other")
    table.revert(str(dropped))
    found = table.read().sort_by("id").to_pylist()
    assert [1000, 2000, 30] == [each["other"] for each in found]
    assert [10, 20, None] == [each["value"] for each in found]
    assert {1: (1000, 1), 2: (2000, 2), 3: (30, 3)} == before == rows(table, "fork")
    as_pylance(table).validate()


@pytest.mark.parametrize("is_merge", [True, False])
@pytest.mark.parametrize("stable", [True, False])
def test_rows_that_were_updated_without_the_column_are_a_conflict(
    tmp_path: Path, *, is_merge: bool, stable: bool
) -> None:
    """An update after the drop wrote its rows without the column: the revert must not make them null unasked."""
    uri = str(tmp_path / "table")
    lance.write_dataset(BEFORE, uri, enable_stable_row_ids=stable)
    table = LanceTable.open(uri)
    table.branches.create("run")
    drop = table.columns.drop(["value"])
    if is_merge:
        table.append(row(3), branch="run")
        drop = table.merge("main", "run")
    branch = "run" if is_merge else "main"
    table.update({"id": "id + 10"}, where="id = 2", branch=branch)
    parent = 1 if is_merge else None
    with pytest.raises(MergeConflictError) as caught:
        table.revert(str(drop), branch, parent=parent)
    assert ["column value"] == [conflict.unit for conflict in caught.value.conflicts]
    table.revert(str(drop), branch, strategy={"column value": "dest-wins"}, parent=parent)
    expected = {1: 10, 12: None} | ({3: 30} if is_merge else {})
    assert expected == {each["id"]: each["value"] for each in table.read(branch).to_pylist()}
