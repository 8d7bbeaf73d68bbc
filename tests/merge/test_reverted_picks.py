"""Merges of a branch whose change the other side picked and reverted: the two cancel out, and the branch keeps it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.history.versions import Version
from tests.merge.picked_changes import BEFORE, CHANGES, PICKED
from tests.raising import raises
from tests.table_factory import as_pylance, contents, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two rows, and the branch `run`."""
    made = new_table(tmp_path, entries("a", 1, 2))
    made.branches.create("run")
    return made


def reverted(table: LanceTable, change: str = "append") -> Version:
    """Make a change on the branch, pick it, revert the pick, and return the change."""
    made = CHANGES[change](table)
    table.revert(str(table.cherry_pick(str(made))))
    assert contents(table) == BEFORE
    return made


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("compacted", ["main", "run", None])
@pytest.mark.parametrize("change", CHANGES)
def test_a_merge_brings_it_and_a_sync_keeps_it(
    table: LanceTable, change: str, compacted: str | None, *, synced: bool
) -> None:
    """Each alone, and a merge after a sync; a later merge brings only what is new."""
    reverted(table, change)
    wanted = PICKED
    if compacted is not None:
        table.append(entries("c", 3), branch=compacted)
        table.maintenance.compact(branch=compacted)
        wanted = sorted([*PICKED, ("c", 3)])
    if synced:
        table.branches.sync("run")
        assert contents(table, "run") == wanted
    table.merge("run")
    assert contents(table) == wanted
    table.append(entries("n", 5), branch="run")
    table.merge("run")
    assert contents(table) == sorted([*wanted, ("n", 5)])
    as_pylance(table).validate()
    as_pylance(table, "run").validate()


@pytest.mark.parametrize("synced", [True, False])
def test_what_the_branch_did_since_comes_too(table: LanceTable, *, synced: bool) -> None:
    """It updated one of the rows and deleted the other one."""
    reverted(table)
    table.update({"key": "'new'"}, where="value = 20", branch="run")
    table.delete("value = 21", branch="run")
    if synced:
        table.branches.sync("run")
    table.merge("run")
    assert contents(table) == contents(table, "run") == [*BEFORE, ("new", 20)]


@pytest.mark.parametrize("there, conflict", [("thu", False), ("wed", True)])
@pytest.mark.parametrize("into", ["main", "run"])
def test_its_claims_count(table: LanceTable, into: str, there: str, *, conflict: bool) -> None:
    """They are in conflict with what came there since, and not with the pick."""
    reverted(table, "partition")
    table.append(entries(there, 40), partitions=[there])
    source = "run" if into == "main" else "main"
    units = [each.unit for each in table.preview_merge(source, into).conflicts]
    assert units == (["partition wed"] if conflict else [])


@pytest.mark.parametrize("where, left", [("key = 'a'", []), ("value < 2", [("a", 2)])], ids=["all rows", "one row"])
@pytest.mark.parametrize("synced", [True, False])
def test_a_replacement_of_rows_that_the_revert_brought_back(
    table: LanceTable, where: str, left: list[tuple[str, int]], *, synced: bool
) -> None:
    """The rows are as the merge base has them, also where all rows of their fragment were replaced."""
    made = table.replace_where(where, entries("a", 0), branch="run")
    table.revert(str(table.cherry_pick(str(made))))
    if synced:
        table.branches.sync("run")
        assert contents(table, "run") == [("a", 0), *left]
    table.merge("run")
    assert contents(table) == [("a", 0), *left]


def test_a_replacement_and_rows_updated_after_the_revert(table: LanceTable) -> None:
    """The rows count as changed in the scope of the replacement."""
    made = table.replace_where("key = 'a'", entries("a", 20), branch="run")
    table.revert(str(table.cherry_pick(str(made))))
    table.update({"value": "10"}, where="value = 1")
    for source, into in (("run", "main"), ("main", "run")):
        with raises(MergeConflictError, units=("rows where key = 'a'", "1 row in fragment 0 of the merge base")):
            table.merge(source, into)
    table.merge("run", strategy="source-wins")
    assert contents(table) == [("a", 20)]


def test_rows_deleted_after_the_pick_stay_deleted(table: LanceTable) -> None:
    """A deletion is about the rows, whatever was reverted later; the other rows come again."""
    made = table.append(entries("wed", 20, 21), branch="run")
    picked = table.cherry_pick(str(made))
    table.delete("value = 20")
    table.revert(str(picked))
    table.branches.create("later", "run")
    table.branches.sync("run")
    assert contents(table, "run") == [*BEFORE, ("wed", 21)]
    table.merge("later")
    assert contents(table) == [*BEFORE, ("wed", 21)]


def test_a_pick_that_is_there_again(table: LanceTable) -> None:
    """The revert was reverted; then the rows were deleted."""
    table.append(entries("wed", 20, 21), branch="run")
    table.cherry_pick("run")
    table.revert(str(table.revert("main")))
    table.branches.sync("run")
    table.merge("run")
    assert contents(table) == contents(table, "run") == PICKED
    table.delete("value = 20")
    table.branches.sync("run")
    assert contents(table, "run") == [*BEFORE, ("wed", 21)]


def _merge_of_a_pick(table: LanceTable) -> None:
    """Revert the merge of a branch that picked the change."""
    table.branches.create("redo", "main")
    table.cherry_pick("run", "redo")
    table.append(entries("bad", 666), branch="redo")
    table.revert(str(table.merge("redo")), parent=1)


def _elsewhere(table: LanceTable) -> None:
    """Merge a branch that picked the change and reverted the pick."""
    table.branches.create("redo", "main")
    table.cherry_pick("run", "redo")
    table.revert("redo", "redo")
    table.append(entries("c", 3))
    table.merge("redo")


def _merge_of_a_revert(table: LanceTable) -> None:
    """Pick the change, and merge a branch that reverted the pick."""
    picked = table.cherry_pick("run")
    table.branches.create("redo", "main")
    table.append(entries("c", 3))
    table.revert(str(picked), "redo")
    table.merge("redo")


@pytest.mark.parametrize("way", [_merge_of_a_pick, _elsewhere, _merge_of_a_revert])
@pytest.mark.parametrize("change", ["append", "partition"])
def test_a_pick_and_its_revert_through_another_branch(
    table: LanceTable, way: Callable[[LanceTable], None], change: str
) -> None:
    """The rows come with their own branch, and what was taken back claims nothing against it."""
    CHANGES[change](table)
    way(table)
    there = contents(table)
    assert ("wed", 20) not in there
    table.branches.create("synced", "run")
    table.merge("main", "synced")
    table.merge("run")
    assert contents(table) == contents(table, "synced") == sorted([*there, ("wed", 20), ("wed", 21)])


def test_a_deletion_that_a_merge_brought(table: LanceTable) -> None:
    """It holds for the original rows like one on the branch itself."""
    table.append(entries("wed", 20, 21), branch="run")
    table.cherry_pick("run")
    table.branches.create("redo", "main")
    table.append(entries("c", 3))
    table.delete("value = 20", branch="redo")
    table.merge("redo")
    table.branches.create("synced", "run")
    table.merge("main", "synced")
    table.merge("run")
    assert contents(table) == contents(table, "synced") == [*BEFORE, ("c", 3), ("wed", 21)]


@pytest.mark.parametrize("merged_before", [True, False])
def test_a_pick_of_rows_that_their_own_branch_deleted(table: LanceTable, *, merged_before: bool) -> None:
    """A dest that never had the rows gets them; where it had them, their deletion holds."""
    made = table.append(entries("wed", 20, 21), branch="run")
    if merged_before:
        table.merge("run")
    table.delete("key = 'wed'", branch="run")
    table.merge("run")
    table.branches.create("fork", "main")
    table.cherry_pick(str(made), "fork")
    assert contents(table, "fork") == (BEFORE if merged_before else PICKED)
