"""Tables without stable row ids, as pylance makes them by default: what would double rows is refused, with a reason."""

from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable, MergeConflictError
from tests.table_factory import as_pylance, contents, entries

BEFORE = [("a", 1), ("a", 2), ("a", 3)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """One fragment of three rows, and the branches `run` and `third`."""
    lance.write_dataset(entries("a", 1, 2, 3), tmp_path / "addresses")
    made = LanceTable.open(tmp_path / "addresses")
    made.branches.create("run")
    made.branches.create("third")
    return made


def test_a_deletion_reverted_twice_beside_an_update(table: LanceTable) -> None:
    """The row is there with a new value, so that the deletion cannot be reverted again, under any strategy."""
    deleted = str(table.delete("value = 2"))
    table.revert(deleted)
    table.update({"value": "20"}, where="value = 2")
    for strategy in (None, "source-wins", "dest-wins"):
        with pytest.raises(MergeConflictError) as caught:
            table.revert(deleted, strategy=strategy)
        assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]
    assert [("a", 1), ("a", 3), ("a", 20)] == contents(table)


@pytest.mark.parametrize("by_pylance", [True, False])
def test_a_pick_of_rows_that_were_picked_and_moved(table: LanceTable, *, by_pylance: bool) -> None:
    """A second pick is refused after the rows were compacted."""
    picked = str(table.append(entries("p", 4), branch="run"))
    table.cherry_pick(picked)
    if by_pylance:
        as_pylance(table).optimize.compact_files()
    else:
        table.maintenance.compact()
    with pytest.raises(MergeConflictError, match="by different merges or picks"):
        table.cherry_pick(picked)
    assert [*BEFORE, ("p", 4)] == contents(table)


def test_a_pick_of_a_merge_of_rows_that_main_deleted(table: LanceTable) -> None:
    """Main merged the same branch, deleted one of its rows and was compacted; the row does not come back."""
    table.append(entries("p", 4, 5), branch="run")
    merged = table.merge("run", "third")
    table.merge("run")
    table.delete("value = 4")
    table.maintenance.compact()
    with pytest.raises(MergeConflictError, match="unknown which rows both have"):
        table.cherry_pick(str(merged), parent=1)
    assert [*BEFORE, ("p", 5)] == contents(table)


@pytest.mark.parametrize("change", ["delete", "update"])
@pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
def test_a_revert_of_an_update_from_before_the_fork(table: LanceTable, change: str, source: str, dest: str) -> None:
    """One side reverts an update that the other side's row has: neither comes back nor stays beside the older state."""
    updated = table.update({"value": "20"}, where="value = 2")
    table.branches.delete("run")
    table.branches.create("run")
    table.revert(str(updated), "run")
    if change == "delete":
        table.delete("value = 20")
    else:
        table.update({"value": "200"}, where="value = 20")
    before = contents(table, dest)
    with pytest.raises(MergeConflictError) as caught:
        table.merge(source, dest)
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]
    for winner in ("source-wins", "dest-wins"):
        name = f"{dest}-{winner}"
        table.branches.create(name, dest)
        if f"{winner}" in (caught.value.hint or ""):
            table.merge(source, name, strategy={"rows": winner})
            expected = before if winner == "dest-wins" else contents(table, source)
            assert expected == contents(table, name)
    assert before == contents(table, dest)


@pytest.mark.parametrize("deleted", [True, False])
def test_rows_that_a_third_branch_picked_and_their_own_compacted(table: LanceTable, *, deleted: bool) -> None:
    """Main has a row by a merge of a pick, and the branch has it in a compacted file: nothing tells that it is one."""
    picked = str(table.append(entries("p", 4), branch="run"))
    table.append(entries("p", 5), branch="run")
    table.maintenance.compact(branch="run")
    table.cherry_pick(picked, "third")
    table.append(entries("t", 6), branch="third")
    table.merge("third")
    if deleted:
        table.branches.delete("third")
    for source, dest in (("run", "main"), ("main", "run")):
        with pytest.raises(MergeConflictError, match="unknown which rows both have"):
            table.merge(source, dest)
    assert [*BEFORE, ("p", 4), ("t", 6)] == contents(table)


def test_a_pick_that_cannot_be_traced_says_why(table: LanceTable) -> None:
    """The dest never had a fragment of the version that the change starts at; no version is gone."""
    table.append(entries("m", 9))
    table.append(entries("p", 4, 5), branch="run")
    updated = table.update({"value": "40"}, where="value = 4", branch="run")
    for picked in (updated, table.delete("value = 5", branch="run")):
        with pytest.raises(MergeConflictError, match="is not made from the version"):
            table.cherry_pick(str(picked))
    assert [*BEFORE, ("m", 9)] == contents(table)


def test_a_pick_of_a_revert_of_a_row_that_the_dest_has(table: LanceTable) -> None:
    """The revert brings the row back in a new file, and main has the row of the file before it."""
    table.append(entries("p", 4), branch="run")
    table.maintenance.compact(branch="run")
    table.merge("run")
    deleted = table.delete("value = 4", branch="run")
    table.append(entries("p", 5), branch="run")
    table.maintenance.compact(branch="run")
    reverted = table.revert(str(deleted), "run")
    with pytest.raises(MergeConflictError, match="unknown which rows both have"):
        table.cherry_pick(str(reverted))
    assert [*BEFORE, ("p", 4)] == contents(table)


@pytest.mark.parametrize("where", ["value = 2", "value > 0"], ids=["one row", "all rows"])
@pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
def test_a_reverted_deletion_of_a_row_that_a_strategy_kept(
    table: LanceTable, where: str, source: str, dest: str
) -> None:
    """The branch kept its own copy of the row; the revert brings the older copy back beside it."""
    table.update({"value": "20"}, where="value = 2", branch="run")
    deleted = table.delete(where)
    table.merge("main", "run", strategy="dest-wins")
    table.revert(str(deleted))
    before = contents(table, dest)
    with pytest.raises(MergeConflictError, match="these brought or kept"):
        table.merge(source, dest)
    assert before == contents(table, dest)
