"""Merges of branches with cherry-picks of changes that the other side merged before, and did not keep."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.history.versions import Version
from lance_dagster.types import Winner
from tests.merge.picked_changes import BEFORE, CHANGES, PICKED, appended
from tests.raising import raises
from tests.table_factory import as_pylance, contents, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two rows, and the branches `run` and `redo`."""
    made = new_table(tmp_path, entries("a", 1, 2))
    made.branches.create("run")
    made.branches.create("redo")
    return made


def reverted(table: LanceTable, change: str = "append") -> Version:
    """Merge a good change and a bad one, revert the merge, and return the good one."""
    good = CHANGES[change](table)
    table.append(entries("bad", 666), branch="run")
    table.revert(str(table.merge("run")), parent=1)
    assert contents(table) == BEFORE
    return good


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_pick_brings_what_a_reverted_merge_had(table: LanceTable, change: str, *, compacted: bool) -> None:
    """The branch was forked before the merge, and its pick is a change that the dest does not have."""
    table.cherry_pick(str(reverted(table, change)), "redo")
    if compacted:
        table.maintenance.compact(branch="redo")
    assert table.merge("redo").rows_added == 2
    assert contents(table) == PICKED
    as_pylance(table).validate()
    table.append(entries("n", 5), branch="redo")
    table.merge("redo")
    assert contents(table) == sorted([*PICKED, ("n", 5)])


def test_a_sync_leaves_what_was_picked(table: LanceTable) -> None:
    """The dest picked the rows, and the source took them back before."""
    table.cherry_pick(str(reverted(table)), "redo")
    table.branches.sync("redo")
    assert contents(table, "redo") == PICKED
    table.merge("redo")
    assert contents(table) == PICKED


@pytest.mark.parametrize("undo", ["revert", "restore", "delete"])
def test_a_branch_keeps_what_it_picked(table: LanceTable, undo: str) -> None:
    """A revert or restore is about the version it names, and not about its pick; a deletion is about the rows."""
    good = appended(table)
    table.cherry_pick(str(good), "redo")
    {
        "revert": lambda: table.revert(str(good), "run"),
        "restore": lambda: table.restore("main@2", "run"),
        "delete": lambda: table.delete("value > 2", branch="run"),
    }[undo]()
    table.merge("run", "redo")
    assert contents(table, "redo") == (BEFORE if undo == "delete" else PICKED)


def test_a_pick_comes_through_a_branch_that_is_gone(table: LanceTable) -> None:
    """The branch with the pick was merged into another one, and deleted."""
    table.branches.create("develop")
    table.cherry_pick(str(reverted(table)), "redo")
    table.merge("redo", "develop")
    for branch in ("redo", "run"):
        table.branches.delete(branch)
    table.merge("develop")
    assert contents(table) == PICKED


def test_a_picked_row_comes_with_its_later_values(table: LanceTable) -> None:
    """The branch updated one of the picked rows and deleted the other one."""
    table.cherry_pick(str(reverted(table)), "redo")
    table.update({"key": "'new'"}, where="value = 20", branch="redo")
    table.delete("value = 21", branch="redo")
    table.merge("redo")
    assert contents(table) == [*BEFORE, ("new", 20)]


def test_a_pick_of_an_own_version_that_was_reverted(table: LanceTable) -> None:
    """The picked version is one of the dest itself."""
    made = table.append(entries("wed", 20, 21))
    table.revert(str(made))
    table.cherry_pick(str(made), "redo")
    table.merge("redo")
    assert contents(table) == PICKED


@pytest.mark.parametrize("there, conflict", [("thu", False), ("wed", True)])
def test_a_pick_claims_what_a_reverted_merge_claimed(table: LanceTable, there: str, *, conflict: bool) -> None:
    """The partition is in conflict with rows that the dest added there, and not with the merge that it reverted."""
    good = reverted(table, "partition")
    table.append(entries(there, 40), partitions=[there])
    table.cherry_pick(str(good), "redo")
    units = [each.unit for each in table.preview_merge("redo").conflicts]
    assert units == (["partition wed"] if conflict else [])


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("own", [True, False])
def test_picked_rows_that_the_dest_deleted_are_in_conflict(table: LanceTable, strategy: Winner, *, own: bool) -> None:
    """The conflict names who picked and who deleted; a strategy decides, and later merges leave it at that."""
    good = table.append(entries("wed", 20, 21), branch="main" if own else "run")
    table.append(entries("n", 5), branch="run")
    table.merge("run")
    deleted = table.delete("value = 20")
    picked = table.cherry_pick(str(good), "redo")
    with raises(MergeConflictError, units=("1 row that the merge base does not have",)) as refused:
        table.merge("redo")
    [conflict] = refused.value.conflicts
    assert ("rows", "1 row that the merge base does not have") == (conflict.kind, conflict.unit)
    assert (str(picked) in conflict.source, str(deleted) in conflict.dest) == (True, True)
    table.merge("redo", strategy={"rows": strategy})
    left = [("n", 5), ("wed", 21)] if strategy == "dest-wins" else [("n", 5), ("wed", 20), ("wed", 21)]
    assert contents(table) == [*BEFORE, *left]
    table.append(entries("o", 6), branch="redo")
    table.merge("redo")
    assert contents(table) == sorted([*BEFORE, *left, ("o", 6)])
    as_pylance(table).validate()


def test_the_rows_of_a_conflict_about_picks_are_shown(table: LanceTable) -> None:
    """They are those of the source."""
    good = appended(table)
    table.merge("run")
    table.delete("value = 20")
    table.cherry_pick(str(good), "redo")
    preview = table.preview_merge("redo")
    [line] = preview.conflicting_rows(preview.conflicts[0]).read_all().to_pylist()
    assert ("added", None) == (line["_source_change"], line["_dest_change"])
    assert ({"key": "wed", "value": 20}, None) == (line["source"], line["dest"])


@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
def test_a_deletion_after_a_pick_that_was_settled_is_a_conflict(
    table: LanceTable, winner: Winner, source: str, dest: str
) -> None:
    """Both sides updated the row, main picked the branch's update by a strategy, and the branch deletes the row."""
    updated = table.update({"value": "10"}, where="value = 1", branch="run")
    table.update({"value": "11"}, where="value = 1")
    table.cherry_pick(str(updated), strategy=winner)
    assert [("a", 2), ("a", 10 if winner == "source-wins" else 11)] == contents(table)
    table.delete("value = 10", branch="run")
    with pytest.raises(MergeConflictError) as refused:
        table.merge(source, dest)
    assert ["rows"] == [conflict.kind for conflict in refused.value.conflicts]
    table.merge(source, dest, strategy="source-wins" if source == "run" else "dest-wins")
    assert [("a", 2)] == contents(table, dest)


def test_a_deletion_after_a_pick_of_a_scope_that_was_settled_arrives(table: LanceTable) -> None:
    """Both sides replaced a day, and main picked the branch's replacement: its rows are those of the branch."""
    replaced = table.replace_where("key = 'wed'", entries("wed", 20), branch="run", partitions=["wed"])
    table.replace_where("key = 'wed'", entries("wed", 30), partitions=["wed"])
    table.cherry_pick(str(replaced), strategy="source-wins")
    assert PICKED[:-1] == contents(table)
    table.delete("key = 'wed'", branch="run")
    table.merge("run")
    assert BEFORE == contents(table)


@pytest.mark.parametrize("again", ["run", "redo"])
def test_rows_that_came_by_one_merge_to_both_stay_deleted(table: LanceTable, again: str) -> None:
    """Both sides merged one branch, whose versions both contain, or one branch is merged again: nothing was picked."""
    good = appended(table)
    table.append(entries("n", 5), branch="run")
    table.branches.create("third", "main")
    table.cherry_pick(str(good), "third")
    for branch in ("main", "redo"):
        table.merge("third", branch)
    table.merge("third", "run")
    table.delete("value = 20")
    table.append(entries("o", 6), branch=again)
    table.merge(again)
    assert ("wed", 20) not in contents(table)
    assert ("wed", 21) in contents(table)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("reverts, later", [(0, False), (0, True), (1, True), (2, True)])
def test_a_pick_of_rows_that_a_strategy_dropped(table: LanceTable, reverts: int, *, named: bool, later: bool) -> None:
    """It claims its scope against the dest, whatever else its branch brought in the merge that dropped the rows."""
    named_parts = ["wed"] if named else ()
    good = table.replace_where("key = 'wed'", entries("wed", 20, 21), branch="run", partitions=named_parts)
    if later:
        table.append(entries("n", 5), branch="run")
    table.replace_where("key = 'wed'", entries("wed", 30), partitions=named_parts)
    head: Version = table.merge("run", strategy="dest-wins")
    for number in range(reverts):
        head = table.revert(str(head), parent=None if number else 1)
    table.cherry_pick(str(good), "redo")
    with pytest.raises(MergeConflictError) as refused:
        table.merge("redo")
    unit = "partition wed" if named else "rows where key = 'wed'"
    assert [unit] == [conflict.unit for conflict in refused.value.conflicts]
    table.merge("redo", strategy="source-wins")
    assert [("wed", 20), ("wed", 21)] == [row for row in contents(table) if row[0] == "wed"]


@pytest.mark.parametrize("later", [True, False], ids=["append", "nothing"])
@pytest.mark.parametrize("back", ["reset", "revert", "restore"])
def test_a_picked_change_stays_where_its_branch_went_back(table: LanceTable, back: str, *, later: bool) -> None:
    """Main picked a change that the branch takes back: a merge of the branch leaves the pick, as in git."""
    before, picked = str(table.head("run")), str(appended(table))
    table.cherry_pick(picked)
    if back == "reset":
        table.branches.reset("run", before)
    elif back == "revert":
        table.revert(picked, "run")
    else:
        table.restore(before, branch="run")
    if later:
        table.append(entries("n", 5), branch="run")
    expected = sorted([*PICKED, *([("n", 5)] if later else [])])
    table.merge("run")
    assert expected == contents(table)
    if back == "reset":
        table.branches.sync("run")
        assert expected == contents(table, "run")
    as_pylance(table).validate()


def test_a_reset_of_a_branch_that_had_merged_leaves_the_pick(table: LanceTable) -> None:
    """The dropped version is the merge of a third branch, and main picked it from there."""
    picked = str(appended(table))
    before = str(table.head("redo"))
    table.merge("run", "redo")
    table.cherry_pick(picked)
    table.branches.reset("redo", before)
    table.append(entries("n", 5), branch="redo")
    table.merge("redo")
    assert sorted([*PICKED, ("n", 5)]) == contents(table)
    table.merge("run")
    assert sorted([*PICKED, ("n", 5)]) == contents(table)


@pytest.mark.parametrize("later", [True, False])
def test_rows_that_come_again_after_a_reset_are_known_to_their_first_branch(table: LanceTable, *, later: bool) -> None:
    """The reset dropped the record of a merge, and the rows came back by way of main, which had picked the merge."""
    table.update({"value": "10"}, where="value = 1", branch="run")
    before = str(table.merge("run", "redo"))
    appended(table)
    table.cherry_pick(str(table.merge("run", "redo")), parent=1)
    table.branches.reset("redo", before)
    if later:
        # The reset version is the merge base of the next merge then.
        table.merge("redo")
    table.branches.sync("redo")
    table.append(entries("n", 5), branch="run")
    table.merge("run", "redo")
    assert [("a", 2), ("a", 10), ("n", 5), ("wed", 20), ("wed", 21)] == contents(table, "redo")
    as_pylance(table, "redo").validate()
