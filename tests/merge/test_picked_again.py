"""Cherry-picks of changes that the dest has reverted or already has, and the messages of picks."""

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable, MergeConflictError
from lance_dagster.history.versions import Version
from tests.table_factory import as_pylance, contents, entries, new_table

BEFORE = [("a", 1), ("a", 2), ("b", 3), ("b", 4)]
BY = "lance_dagster.cherry_pick.by"


def table_of(folder: Path, *, stable: bool = True) -> LanceTable:
    """Two fragments of two rows and a branch `run`, with or without stable row ids."""
    if stable:
        made = new_table(folder, entries("a", 1, 2), entries("b", 3, 4))
    else:
        uri = str(folder / "addresses")
        lance.write_dataset(entries("a", 1, 2), uri)
        lance.write_dataset(entries("b", 3, 4), uri, mode="append")
        made = LanceTable.open(uri)
    made.branches.create("run")
    return made


CHANGES: dict[str, Callable[[LanceTable], Version]] = {
    "append": lambda table: table.append(entries("n", 5), branch="run"),
    "update": lambda table: table.update({"key": "'new'"}, where="value = 1", branch="run"),
    "delete": lambda table: table.delete("value = 1", branch="run"),
    "column": lambda table: table.columns.add({"more": "value"}, branch="run"),
}


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_reverted_pick_can_be_picked_again(tmp_path: Path, change: str, *, compacted: bool) -> None:
    """The pick can be reverted and repeated, also after a compaction."""
    table = table_of(tmp_path)
    made = CHANGES[change](table)
    for _ in range(2):
        picked = table.cherry_pick(str(made))
        table.revert(str(picked))
        assert contents(table) == BEFORE
    if compacted:
        table.maintenance.compact()
    again = table.cherry_pick(str(made))
    assert again == table.cherry_pick(str(made))
    assert contents(table, "run") == contents(table)
    assert table.schema("run").names == table.schema().names
    as_pylance(table).validate()


@pytest.mark.parametrize("change", ["append", "update", "column"])
def test_without_stable_row_ids_a_reverted_pick_comes_again_by_a_revert(tmp_path: Path, change: str) -> None:
    """Nothing tells which rows of the pick the branch had before."""
    table = table_of(tmp_path, stable=False)
    made = CHANGES[change](table)
    table.revert(str(table.cherry_pick(str(made))))
    with pytest.raises(MergeConflictError, match="without stable row ids it is unknown which rows both have"):
        table.cherry_pick(str(made))
    table.revert("main")
    assert contents(table, "run") == contents(table)
    assert table.schema("run").names == table.schema().names


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_reverted_merge_can_be_picked(tmp_path: Path, change: str, *, compacted: bool) -> None:
    """The branch counts as merged, although the revert removed its rows."""
    table = table_of(tmp_path)
    made = CHANGES[change](table)
    merged = table.merge("run")
    table.revert(str(merged), parent=1)
    if compacted:
        table.maintenance.compact()
    table.cherry_pick(str(made))
    assert contents(table, "run") == contents(table)
    assert table.merge("run") == table.merge("run")
    assert contents(table, "run") == contents(table)


@pytest.mark.parametrize("compacted", [True, False])
def test_one_of_several_changes_of_a_reverted_merge_can_be_picked(tmp_path: Path, *, compacted: bool) -> None:
    """The other change stays out until it is picked too."""
    table = table_of(tmp_path)
    one, two = (table.append(entries("n", value), branch="run") for value in (5, 6))
    table.revert(str(table.merge("run")), parent=1)
    if compacted:
        table.maintenance.compact()
    picked = table.cherry_pick(str(one))
    assert [*BEFORE, ("n", 5)] == contents(table)
    table.cherry_pick(str(two))
    assert [*BEFORE, ("n", 5), ("n", 6)] == contents(table)
    table.revert(str(picked))
    assert [*BEFORE, ("n", 6)] == contents(table)
    as_pylance(table).validate()


def test_an_own_change_that_was_taken_back_can_be_picked(tmp_path: Path) -> None:
    """The pick has the effect of reverting the revert, and a later revert of that revert changes nothing."""
    table = table_of(tmp_path)
    made = table.append(entries("n", 5))
    undone = table.revert(str(made))
    table.cherry_pick(str(made))
    assert [*BEFORE, ("n", 5)] == contents(table)
    table.revert(str(undone))
    assert [*BEFORE, ("n", 5)] == contents(table)


def test_rows_that_were_deleted_after_a_pick_stay_deleted(tmp_path: Path) -> None:
    """The branch has the picked change, which was not reverted; the deletion is a separate change."""
    table = table_of(tmp_path)
    made = table.append(entries("n", 5), branch="run")
    table.cherry_pick(str(made))
    head = table.delete("value = 5")
    assert head == table.cherry_pick(str(made))


def test_a_merge_that_was_reverted_to_its_second_parent_still_has_the_change(tmp_path: Path) -> None:
    """The revert removed the changes of the dest."""
    table = table_of(tmp_path)
    made = table.append(entries("n", 5), branch="run")
    table.append(entries("b", 6))
    head = table.revert(str(table.merge("run")), parent=2)
    assert [*BEFORE, ("n", 5)] == contents(table)
    assert head == table.cherry_pick(str(made))


def test_a_restore_brings_a_revert_back(tmp_path: Path) -> None:
    """The restored version either has the change, or has its revert."""
    table = table_of(tmp_path)
    made = table.append(entries("n", 5), branch="run")
    picked = table.cherry_pick(str(made))
    undone = table.revert(str(picked))
    table.restore(str(picked))
    assert table.head() == table.cherry_pick(str(made))
    table.restore(str(undone))
    table.cherry_pick(str(made))
    assert [*BEFORE, ("n", 5)] == contents(table)


def test_an_update_comes_again_after_a_compaction(tmp_path: Path) -> None:
    """In a revert of a revert, the older values are in a fragment that is gone."""
    table = table_of(tmp_path)
    updated = table.update({"key": "'new'"}, where="value = 1")
    undone = table.revert(str(updated))
    table.maintenance.compact()
    table.revert(str(undone))
    assert [*BEFORE[1:], ("new", 1)] == contents(table)


def test_a_pick_says_what_the_picked_version_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pick has the committer and message of the picked version, and who picked it in a property."""
    table = table_of(tmp_path)
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "ada")
    made = table.append(entries("n", 5), branch="run", message="five")
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "grace")
    picked = table.cherry_pick(str(made))
    assert ("ada", "five", "grace") == (picked.committer, picked.message, picked.properties[BY])
    undone = table.revert(str(picked), message="not yet")
    assert ("grace", "not yet") == (undone.committer, undone.message)
    again = table.cherry_pick(str(made), message="five, for the audit")
    assert ("ada", "five, for the audit") == (again.committer, again.message)


@pytest.mark.parametrize("stable", [True, False])
def test_a_version_inside_of_a_picked_merge_comes_once(tmp_path: Path, *, stable: bool) -> None:
    """A branch picked a merge, and then a version that the merge brought, which was compacted before it was merged."""
    table = table_of(tmp_path, stable=stable)
    table.branches.create("a")
    table.append(entries("n", 8), branch="run")
    picked = table.append(entries("n", 9), branch="run")
    table.maintenance.compact(branch="run")
    merge = table.merge("run")
    table.cherry_pick(merge, "a", parent=1)
    before = contents(table, "a")
    if stable:
        table.cherry_pick(picked, "a")
    else:
        with pytest.raises(MergeConflictError, match="unknown which rows both have"):
            table.cherry_pick(picked, "a")
    assert before == contents(table, "a")
