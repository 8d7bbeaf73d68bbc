"""Rows that the other side wrote are refused beside a renamed and cast column, in which they have no value.

A merge does both in one version, and so does pylance. Neither id nor name then identify the column.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.types import MergeMode
from tests.table_factory import as_pylance

pytestmark = pytest.mark.scaled

Alter = Callable[[LanceTable, str], object]
OLD = pa.table({"id": pa.array([4], pa.int64()), "num": pa.array([40], pa.int64())})
NEW = pa.table({"id": pa.array([4], pa.int64()), "n21": pa.array([40], pa.int32())})


def _renamed_then_cast(table: LanceTable, branch: str) -> None:
    table.columns.rename("num", "n21", branch=branch)
    table.columns.cast("n21", pa.int32(), branch=branch)


def _cast_then_renamed(table: LanceTable, branch: str) -> None:
    table.columns.cast("num", pa.int32(), branch=branch)
    table.columns.rename("num", "n21", branch=branch)


def _in_one_version(table: LanceTable, branch: str) -> None:
    alteration: Any = {"path": "num", "name": "n21", "data_type": pa.int32()}
    as_pylance(table, branch).alter_columns(alteration)


ALTERING = {"renamed, cast": _renamed_then_cast, "cast, renamed": _cast_then_renamed, "at once": _in_one_version}


@pytest.fixture(params=[True, False], ids=["stable ids", "addresses"])
def empty(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """A table without rows, of the columns `id` and `num`."""
    uri = str(tmp_path / "table")
    lance.write_dataset(OLD.slice(0, 0), uri, enable_stable_row_ids=request.param)
    return LanceTable.open(uri)


@pytest.fixture(params=[(), (1, 2)], ids=["no rows", "rows"])
def table(empty: LanceTable, request: pytest.FixtureRequest) -> LanceTable:
    """The same table without rows, and with two rows."""
    if request.param:
        empty.append(pa.table({"id": pa.array(request.param, pa.int64()), "num": pa.array([10, 20], pa.int64())}))
    return empty


def refused(table: LanceTable, act: Callable[[], object], unit: str, branch: str = "main") -> None:
    """Assert that the conflict has the column's name in the merge base, and that the branch stays as it was."""
    before = table.at(branch)
    with pytest.raises(MergeConflictError) as caught:
        act()
    assert unit in {conflict.unit for conflict in caught.value.conflicts}
    assert before == table.at(branch)


@pytest.mark.parametrize("altering", ALTERING)
def test_a_merge_is_not_reverted_beside_rows_of_the_cast_column(table: LanceTable, altering: str) -> None:
    """The values of the rows would be lost; without such rows the revert restores the old column."""
    table.branches.create("b1")
    ALTERING[altering](table, "b1")
    # This gives the column another id on main than on the branch.
    table.columns.add({"other": "1"})
    table.columns.drop(["other"])
    merged = table.merge("b1")
    table.branches.create("before")
    table.append(NEW)
    refused(table, lambda: table.revert(str(merged), parent=1), "column n21")
    table.revert(str(merged), "before", parent=1)
    assert ["id", "num"] == table.schema("before").names


def test_the_other_parent_is_not_returned_to_beside_rows_of_the_cast_column(table: LanceTable) -> None:
    """Seen from its second parent, the merge made the changes of the dest."""
    table.branches.create("b1")
    table.config.set({"note": "x"}, branch="b1")
    _renamed_then_cast(table, "main")
    merged = table.merge("b1")
    table.append(NEW)
    refused(table, lambda: table.revert(str(merged), parent=2), "column n21")


def test_a_version_that_renamed_and_cast_is_not_reverted_beside_rows_of_the_column(table: LanceTable) -> None:
    """Pylance does both in one call."""
    _in_one_version(table, "main")
    altered = table.at("main")
    table.append(NEW)
    refused(table, lambda: table.revert(str(altered)), "column n21")


@pytest.mark.parametrize("altered_on", ["main", "run"])
@pytest.mark.parametrize("altering", ALTERING)
def test_rows_of_the_old_column_are_not_merged(table: LanceTable, altering: str, altered_on: str) -> None:
    """Either side may have the rows, in a merge or a sync."""
    table.branches.create("run")
    ALTERING[altering](table, altered_on)
    table.append(OLD, branch="run" if altered_on == "main" else "main")
    refused(table, lambda: table.merge("run"), "column num")
    refused(table, lambda: table.branches.sync("run"), "column num", "run")


@pytest.mark.parametrize("mode", ["merge", "squash"])
@pytest.mark.parametrize("merged_into", ["main", "b2"])
def test_rows_of_the_old_column_are_not_merged_where_the_cast_was(
    table: LanceTable, merged_into: str, mode: MergeMode
) -> None:
    """A side that merged or squashed the cast counts like the side that made it."""
    table.branches.create("b1")
    table.branches.create("b2")
    _renamed_then_cast(table, "b1")
    table.merge("b1", merged_into, mode=mode)
    table.append(OLD, branch="b2" if merged_into == "main" else "main")
    refused(table, lambda: table.merge("b2"), "column num")
    refused(table, lambda: table.branches.sync("b2"), "column num", "b2")


@pytest.mark.parametrize("altering", ALTERING)
def test_rows_are_not_picked_across_the_cast(table: LanceTable, altering: str) -> None:
    """Rows of the old column and rows of the new one are both refused."""
    table.branches.create("run")
    ALTERING[altering](table, "run")
    new = table.append(NEW, branch="run")
    refused(table, lambda: table.cherry_pick(str(new)), "column num")
    old = table.append(OLD)
    refused(table, lambda: table.cherry_pick(str(old), "run"), "column num", "run")


def test_a_cast_is_not_picked_beside_rows_of_the_old_column(table: LanceTable) -> None:
    """The cast may be picked from its own version or from a merge."""
    table.branches.create("one")
    table.branches.create("two")
    _in_one_version(table, "one")
    table.merge("one", "two")
    table.append(OLD)
    refused(table, lambda: table.cherry_pick("one"), "column num")
    refused(table, lambda: table.cherry_pick("two", parent=1), "column num")


@pytest.mark.parametrize("mode", ["merge", "squash"])
def test_a_column_dropped_beside_a_new_one_is_no_cast(table: LanceTable, mode: MergeMode) -> None:
    """A merge does both in one version: rows of the other side can be merged, and the merge can be reverted.

    A row that was merged while the column was gone has no value in it.
    """
    table.branches.create("b1")
    table.branches.create("b2")
    table.columns.drop(["num"], branch="b1")
    table.columns.add({"n21": "cast(7 as int)"}, branch="b1")
    merged = table.merge("b1", mode=mode)
    table.append(OLD, branch="b2")
    table.merge("b2")
    assert {"id": 4, "n21": None} == table.read().sort_by("id").to_pylist()[-1]
    table.revert(str(merged), parent=1 if mode == "merge" else None)
    assert {"id": 4, "num": None} == table.read().sort_by("id").to_pylist()[-1]


def test_a_cast_that_both_sides_took_over_is_one(table: LanceTable) -> None:
    """Later rows of either side are rows of the new column."""
    table.branches.create("b1")
    table.branches.create("b2")
    _renamed_then_cast(table, "b1")
    table.merge("b1")
    table.merge("b1", "b2")
    table.append(NEW, branch="b2")
    table.merge("b2")
    assert {"id": 4, "n21": 40} == table.read().sort_by("id").to_pylist()[-1]
