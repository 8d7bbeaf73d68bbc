"""Cherry-picks and reverts with concurrent changes that make it hard to identify rows and columns."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.types import Winner
from tests.raising import raises
from tests.table_factory import as_pylance, contents, entries, new_table

BEFORE = [("a", 1), ("a", 2), ("b", 3), ("b", 4)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two fragments of two rows, and a branch `run`."""
    made = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    made.branches.create("run")
    return made


def without_row_ids(tmp_path: Path) -> LanceTable:
    """The same table without stable row ids."""
    uri = str(tmp_path / "addresses")
    lance.write_dataset(entries("a", 1, 2), uri)
    lance.write_dataset(entries("b", 3, 4), uri, mode="append")
    made = LanceTable.open(uri)
    made.branches.create("run")
    return made


def test_a_pick_does_not_depend_on_who_made_a_version(tmp_path: Path) -> None:
    """Versions made here differed in representation from those it read, and seemed to have other fragments."""
    table = without_row_ids(tmp_path)
    table.maintenance.compact()
    added = LanceTable.open(table.uri).append(entries("n", 5), branch="run")
    table.cherry_pick(str(added))
    assert [*BEFORE, ("n", 5)] == contents(table)


# Columns.


def test_a_pick_leaves_columns_alone_that_its_branch_dropped(table: LanceTable) -> None:
    """Values of these columns lie in files that both sides have."""
    table.columns.drop(["value"])
    added = table.append(pa.table({"key": ["n"]}))
    table.cherry_pick(str(added), into="run")
    assert [*BEFORE, ("n", None)] == contents(table, "run")
    as_pylance(table, "run").validate()


@pytest.mark.parametrize("stable", [True, False])
def test_a_pick_finds_columns_by_another_name(tmp_path: Path, table: LanceTable, *, stable: bool) -> None:
    """No data file of one side is left on the other."""
    of = table if stable else without_row_ids(tmp_path)
    of.columns.rename("value", "amount")
    of.maintenance.compact()
    added = of.append(entries("n", 5), branch="run")
    of.cherry_pick(str(added))
    found = as_pylance(of).to_table().to_pylist()
    assert {("a", 1), ("a", 2), ("b", 3), ("b", 4), ("n", 5)} == {(row["key"], row["amount"]) for row in found}


@pytest.mark.parametrize("onto", ["main", "run"])
@pytest.mark.parametrize("renamed", [True, False])
def test_rows_are_not_picked_across_a_cast(table: LanceTable, onto: str, *, renamed: bool) -> None:
    """Values of the rows would be null; a pick without rows is possible."""
    other = "run" if onto == "main" else "main"
    table.columns.cast("value", pa.int32(), branch=other)
    if renamed:
        table.columns.rename("value", "amount", branch=onto)
    given = entries("n", 5).cast(table.schema(other))
    added = table.append(given, branch=other)
    deleted = table.delete("value = 1", branch=other)
    with raises(MergeConflictError, units=("column value",)):
        table.cherry_pick(str(added), into=onto)
    table.cherry_pick(str(deleted), into=onto)
    assert 3 == table.count_rows(onto)


def test_an_overwrite_of_pylance_is_taken_back(tmp_path: Path) -> None:
    """Its field ids start from 0 again, so an equal id belongs to another column."""
    uri = str(tmp_path / "table")
    given = pa.table({"id": pa.array([1, 2]), "num": pa.array([10, 20]), "word": pa.array(["x", "y"])})
    lance.write_dataset(given, uri, enable_stable_row_ids=True)
    table = LanceTable.open(uri)
    table.columns.drop(["num"])
    before = as_pylance(table).to_table()
    lance.write_dataset(pa.table({"word": ["o"], "id": [9]}), uri, mode="overwrite", enable_stable_row_ids=True)
    table.branches.create("run")
    table.delete("id = 9", branch="run")
    table.restore("main@2", branch="run")
    table.revert("main@3")
    for branch in ("main", "run"):
        found = as_pylance(table, branch)
        found.validate()
        assert sorted(before.to_pylist(), key=str) == sorted(found.to_table(before.schema.names).to_pylist(), key=str)


@pytest.mark.parametrize("compacted", [True, False])
def test_an_update_is_not_picked_over_columns_it_does_not_know(table: LanceTable, *, compacted: bool) -> None:
    """The updated rows would lose their values in these columns."""
    table.columns.drop(["key"], branch="run")
    updated = table.update({"value": "10"}, where="value = 1", branch="run")
    if compacted:
        table.maintenance.compact()
    with raises(MergeConflictError, units=("column key",)):
        table.cherry_pick(str(updated))


def test_an_update_is_not_merged_over_columns_that_were_there_before(table: LanceTable) -> None:
    """Main had the columns before the branch, which lacks them, was merged for the first time."""
    table.columns.add({"more": "value"})
    table.append(entries("r", 5), branch="run")
    table.merge("run")
    table.maintenance.compact()
    table.update({"value": "10"}, where="value = 1", branch="run")
    with raises(MergeConflictError, units=("column more",)):
        table.merge("run")


@pytest.mark.parametrize("stable", [True, False])
def test_values_where_there_were_none_are_taken_back(tmp_path: Path, table: LanceTable, *, stable: bool) -> None:
    """A column of nulls has no file, and has none again after the revert."""
    of = table if stable else without_row_ids(tmp_path)
    of.columns.add(pa.schema([("more", pa.int64())]))
    written = write_beside(of, pa.table({"value": [1, 2], "more": [10, 20]}))
    of.revert(written)
    assert [None] * 4 == as_pylance(of).to_table()["more"].to_pylist()
    as_pylance(of).validate()


def write_beside(table: LanceTable, values: pa.Table) -> str:
    """Write values of a column in place, matched by `value`; return the version."""
    dataset = as_pylance(table)
    updated, fields = dataset.get_fragments()[0].update_columns(values, left_on="value", right_on="value")
    operation = lance.LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    return f"main@{lance.LanceDataset.commit(table.uri, operation, read_version=dataset.version).version}"


@pytest.mark.parametrize("compacted", [True, False])
def test_a_column_that_comes_later_finds_its_values_in_picked_rows(table: LanceTable, *, compacted: bool) -> None:
    """The branch did not have the column when the row was picked."""
    table.columns.add(pa.schema([("more", pa.int64())]))
    added = table.append(pa.table({"key": ["n"], "value": [5], "more": [50]}))
    table.cherry_pick(str(added), into="run")
    if compacted:
        table.maintenance.compact(branch="run")
    assert [*BEFORE, ("n", 5)] == contents(table, "run")
    table.merge("main", into="run")
    found = as_pylance(table, "run").to_table().to_pylist()
    assert {"a": None, "b": None, "n": 50} == {row["key"]: row["more"] for row in found}
    assert 5 == len(found)


def test_a_column_that_comes_later_finds_its_values_in_rows_whose_update_was_picked(table: LanceTable) -> None:
    """Both sides have the same new values of the other columns, from the same file."""
    table.columns.add(pa.schema([("more", pa.int64())]))
    updated = table.upsert(pa.table({"key": ["n"], "value": [1], "more": [10]}), on=["value"])
    table.cherry_pick(str(updated), into="run")
    table.merge("main", into="run")
    found = {row["value"]: (row["key"], row["more"]) for row in as_pylance(table, "run").to_table().to_pylist()}
    assert {1: ("n", 10), 2: ("a", None), 3: ("b", None), 4: ("b", None)} == found


def test_an_update_is_picked_beside_a_column_of_nulls(table: LanceTable) -> None:
    """A compaction wrote the nulls, which are no values that an update could lose."""
    table.columns.add(pa.schema([("more", pa.int64())]))
    table.maintenance.compact()
    updated = table.update({"key": "'new'"}, where="value = 1", branch="run")
    table.cherry_pick(str(updated))
    assert [("a", 2), ("b", 3), ("b", 4), ("new", 1)] == contents(table)
    assert [None] * 4 == table.read()["more"].to_pylist()


def test_a_column_is_not_picked_twice(table: LanceTable) -> None:
    """The column was renamed since."""
    added = table.columns.add({"more": "value"}, branch="run")
    table.merge("run")
    renamed = table.columns.rename("more", "most")
    assert renamed == table.cherry_pick(str(added))


def test_a_row_that_comes_back_meets_itself_with_other_values(table: LanceTable) -> None:
    """The row was updated and deleted before it was restored on the branch."""
    table.update({"key": "'new'"}, where="value = 1", branch="run")
    deleted = table.delete("value = 1", branch="run")
    back = table.revert(str(deleted), branch="run")
    with raises(MergeConflictError, units=("1 row that the merge base does not have",)):
        table.cherry_pick(str(back))
    assert contents(table) == BEFORE


@pytest.mark.parametrize("stable", [True, False])
def test_a_compaction_is_no_change(tmp_path: Path, table: LanceTable, *, stable: bool) -> None:
    """A compaction has nothing to pick, and its revert must not restore a deleted row."""
    of = table if stable else without_row_ids(tmp_path)
    of.maintenance.compact()
    head = of.delete("value = 1")
    assert head == of.revert("main~1")
    assert of.head("run") == of.cherry_pick("main~1", into="run")


# Claims.

CLAIMING: dict[str, Callable[[LanceTable], object]] = {
    "replace": lambda table: table.replace_where("key = 'a'", entries("a", 7), branch="run"),
    "upsert": lambda table: table.upsert(entries("n", 1, 7), on=["value"], branch="run"),
    "overwrite": lambda table: table.overwrite(entries("o", 7), branch="run"),
}


@pytest.mark.parametrize("claiming", CLAIMING)
def test_a_pick_claims_what_was_picked(table: LanceTable, claiming: str) -> None:
    """Rows that another branch added there conflict, as they do with a merge."""
    table.branches.create("other")
    table.append(entries("a", 7), branch="other")
    table.cherry_pick(str(CLAIMING[claiming](table)))
    with pytest.raises(MergeConflictError, match=r"replaced|upserted"):
        table.merge("other")


@pytest.mark.parametrize("claiming", CLAIMING)
def test_what_was_picked_claims_nothing_against_itself(table: LanceTable, claiming: str) -> None:
    """A later merge of the branch brings its later changes."""
    table.cherry_pick(str(CLAIMING[claiming](table)))
    table.append(entries("b", 9), branch="run")
    expected = contents(table, "run")
    table.merge("run")
    assert expected == contents(table)


def test_rows_that_came_back_go_with_the_side_that_loses(table: LanceTable) -> None:
    """The winner, which replaced the table, keeps its rows."""
    deleted = table.delete("value = 1")
    table.branches.create("late")
    table.overwrite(entries("o", 7), branch="late")
    table.revert(str(deleted), branch="late", strategy="dest-wins")
    assert [("o", 7)] == contents(table, "late")


# Tables without stable row ids.


@pytest.mark.parametrize("compacted", [True, False])
def test_an_update_of_a_row_that_was_deleted_is_not_taken_back(tmp_path: Path, *, compacted: bool) -> None:
    """The revert would restore the deleted row."""
    table = without_row_ids(tmp_path)
    updated = table.update({"value": "10"}, where="value = 1")
    table.delete("value = 10")
    if compacted:
        table.maintenance.compact()
    with raises(MergeConflictError, units=("1 row in fragment 2 of the merge base",)):
        table.revert(str(updated))


def test_an_update_is_not_taken_back_from_under_a_column(tmp_path: Path) -> None:
    """The restored row has no value in the new column."""
    table = without_row_ids(tmp_path)
    updated = table.update({"value": "10"}, where="value = 1")
    table.columns.add({"more": "value"})
    with raises(MergeConflictError, units=("column more",)):
        table.revert(str(updated))


def test_rows_that_were_picked_after_a_compaction_do_not_come_twice(tmp_path: Path) -> None:
    """The rows cannot be identified as the same."""
    table = without_row_ids(tmp_path)
    added = table.append(entries("n", 5), branch="run")
    table.maintenance.compact(branch="run")
    table.cherry_pick(str(added))
    with pytest.raises(MergeConflictError, match="by different merges"):
        table.merge("run")
    assert [*BEFORE, ("n", 5)] == contents(table)


def test_a_deletion_that_was_picked_is_in_nobodys_way(tmp_path: Path) -> None:
    """Rows deleted on both sides are the same rows."""
    table = without_row_ids(tmp_path)
    deleted = table.delete("value = 1", branch="run")
    table.append(entries("n", 5), branch="run")
    table.cherry_pick(str(deleted))
    table.merge("run")
    assert [*BEFORE[1:], ("n", 5)] == contents(table)


def test_what_came_back_is_not_taken_for_gone(tmp_path: Path) -> None:
    """A branch deletes a row that main deleted and restored as a new row."""
    table = without_row_ids(tmp_path)
    deleted = table.delete("key = 'a'")
    table.revert(str(deleted))
    table.delete("value = 1", branch="run")
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        table.merge("run")
    assert contents(table) == BEFORE


def test_a_version_of_another_line_with_the_same_number_is_another_version(tmp_path: Path) -> None:
    """Row versions are compared by numbers that mean the same on both branches."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    table.update({"key": "'u'"}, where="value = 3", branch="run")
    table.merge("run")
    table.columns.add({"double": "value * 2"}, branch="run")
    table.append(entries("n", 9))
    table.append(entries("n", 10))
    merged = table.merge("run")
    while table.head("run").number < merged.number - 1:
        table.config.set({"on": str(table.head("run").number)}, branch="run")
    there = table.update({"key": "'there only'"}, where="value = 3", branch="run")
    assert merged.number == there.number
    fix = table.update({"value": "30"}, where="value = 3", branch="run")
    table.cherry_pick(str(fix))
    # The change of the picked cell is applied, and the earlier change of another cell is not.
    assert [("u", 30)] == [row for row in contents(table) if row[1] in (3, 30)]


@pytest.mark.parametrize("strategy", [None, "source-wins", "dest-wins"])
def test_a_strategy_takes_no_values_from_rows_that_only_moved(table: LanceTable, strategy: Winner | None) -> None:
    """Both sides added a column, the dest beside rows that it had compacted, and updated one of them."""
    picked = table.columns.add({"more": "value * 2"}, branch="run")
    as_pylance(table).optimize.compact_files()
    table.update({"key": "'new'"}, where="value = 1")
    table.columns.add({"less": "value - 1"})
    before = table.read().to_pylist()
    with pytest.raises(MergeConflictError, match="beside rows that moved"):
        table.cherry_pick(str(picked), strategy=strategy)
    assert before == table.read().to_pylist()


def test_a_picked_merge_leaves_rows_that_it_is_not_about(tmp_path: Path) -> None:
    """The merge brought a branch that had reverted a row; the branch onto which it is picked had picked the row."""
    table = new_table(tmp_path, entries("a", 1, 2))
    for branch in ("run", "other"):
        table.branches.create(branch)
    added = table.append(entries("p", 7), branch="run")
    table.update({"value": "20"}, where="value = 2", branch="run")
    table.cherry_pick(str(added), "other")
    table.revert(str(added), "run")
    merged = table.merge("run")
    table.cherry_pick(str(merged), "other", parent=1)
    assert [("a", 1), ("a", 20), ("p", 7)] == contents(table, "other")


def test_a_pick_that_brings_a_row_back_with_new_values_is_an_update(tmp_path: Path) -> None:
    """The branch had deleted the row and been compacted, so the pick only adds rows; main was compacted, too."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    for branch in ("run", "other"):
        table.branches.create(branch)
    updated = table.update({"value": "20"}, where="value = 2", branch="other")
    table.delete("value = 2", branch="run")
    table.append(entries("r", 4), branch="run")
    table.maintenance.compact(branch="run")
    table.cherry_pick(str(updated), "run", strategy="source-wins")
    table.append(entries("m", 5))
    table.maintenance.compact()
    table.merge("run")
    assert [("a", 1), ("a", 20), ("b", 3), ("m", 5), ("r", 4)] == contents(table)
