"""Merges that cross: each side merged the other one, so that there are several merge bases, and strategies on both."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceTable, MergeConflictError
from lance_dagster.errors import Reason
from lance_dagster.types import Strategy, Winner
from tests.table_factory import as_pylance, contents, entries, new_table

Change = Callable[[LanceTable, str], object]
NAMES = pytest.mark.parametrize("branch", ["feature", "run"])
"""Names before and after "main": of several merge bases, the one on the branch that sorts first is looked at first."""
WAYS = pytest.mark.parametrize("into_main", [True, False], ids=["into main", "into the branch"])


def update(value: int) -> Change:
    """Update the row 1."""
    return lambda table, branch: table.update({"value": str(value)}, where="key = 'a'", branch=branch)


def replace(value: int) -> Change:
    """Replace the row 1, as a run with a predicate does."""
    return lambda table, branch: table.replace_where("key = 'a'", entries("a", value), branch=branch)


def append(table: LanceTable, branch: str) -> None:
    """Append a row."""
    table.append(entries("later", 90), branch=branch)


def delete(table: LanceTable, branch: str) -> None:
    """Delete the row 1."""
    table.delete("key = 'a'", branch=branch)


def cross(
    folder: Path, branch: str, on_main: Change, on_branch: Change, strategies: tuple[Strategy, Strategy] = (None, None)
) -> LanceTable:
    """Make a table in which main and a branch each changed something, and each merged the change of the other."""
    table = new_table(folder, pa.concat_tables([entries("a", 1), entries("b", 2)]))
    table.branches.create(branch)
    on_main(table, "main")
    on_branch(table, branch)
    main, run = str(table.head()), str(table.head(branch))
    table.merge(run, strategy=strategies[0])
    table.merge(main, branch, strategy=strategies[1])
    return table


def merge(table: LanceTable, branch: str, *, into_main: bool, strategy: Strategy = None) -> None:
    """Merge the branch into main, or main into the branch."""
    source, dest = (branch, "main") if into_main else ("main", branch)
    table.merge(source, dest, strategy=strategy)


def conflicts(table: LanceTable, branch: str, *, into_main: bool) -> tuple[Reason, ...]:
    """Return the conflicts of a merge."""
    with pytest.raises(MergeConflictError) as caught:
        merge(table, branch, into_main=into_main)
    return caught.value.conflicts


@NAMES
@WAYS
def test_a_revert_after_crossing_merges_is_not_lost(tmp_path: Path, branch: str, *, into_main: bool) -> None:
    """Main reverts an update that the branch only took over: the old value is kept, or the merge is a conflict."""
    table = cross(tmp_path, branch, update(9), append)
    table.revert("main@3")
    append(table, branch)
    (conflict,) = conflicts(table, branch, into_main=into_main)
    assert "rows" == conflict.kind
    assert "which the merge bases" in conflict.unit
    merge(table, branch, into_main=into_main, strategy="source-wins" if not into_main else "dest-wins")
    dest = "main" if into_main else branch
    assert [("a", 1), ("b", 2), ("later", 90), ("later", 90)] == contents(table, dest)
    as_pylance(table, dest).validate()


@NAMES
@WAYS
def test_a_reverted_rename_after_crossing_merges_is_not_lost(tmp_path: Path, branch: str, *, into_main: bool) -> None:
    """The branch only took the new name over; main went back to the old one."""
    table = cross(tmp_path, branch, lambda table, on: table.columns.rename("value", "amount", branch=on), append)
    table.revert("main@3")
    table.delete("amount = 90", branch=branch)
    (conflict,) = conflicts(table, branch, into_main=into_main)
    assert "history" == conflict.kind
    assert "ambiguous" in conflict.dest


@NAMES
@WAYS
@pytest.mark.parametrize("change", [update(10), delete], ids=["update", "delete"])
def test_a_change_after_crossing_merges_is_taken(
    tmp_path: Path, branch: str, change: Change, *, into_main: bool
) -> None:
    """Main changes a row that it had updated before the merges: both merge bases give the newest state."""
    table = cross(tmp_path, branch, update(9), append)
    change(table, "main")
    append(table, branch)
    merge(table, branch, into_main=into_main)
    row = [] if change is delete else [("a", 10)]
    assert [*row, ("b", 2), ("later", 90), ("later", 90)] == contents(table, "main" if into_main else branch)


@NAMES
@WAYS
@pytest.mark.parametrize("on_branch", [update(8), replace(8), delete], ids=["update", "replace", "delete"])
@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
def test_two_sides_that_settled_a_conflict_differently_are_in_conflict(
    tmp_path: Path, branch: str, on_branch: Change, winner: Winner, *, into_main: bool
) -> None:
    """Each side kept its own row: a merge of both is a conflict in either direction, and a strategy settles it."""
    table = cross(tmp_path, branch, update(9), on_branch, ("dest-wins", "dest-wins"))
    append(table, branch)
    of_main, of_branch = contents(table), contents(table, branch)
    (conflict,) = conflicts(table, branch, into_main=into_main)
    assert "rows" == conflict.kind
    merge(table, branch, into_main=into_main, strategy={"rows": winner})
    of_source = (winner == "source-wins") == into_main
    expected = of_branch if of_source else [*of_main, ("later", 90)]
    assert expected == contents(table, "main" if into_main else branch)
    as_pylance(table, "main" if into_main else branch).validate()


@pytest.mark.parametrize("change", [update(10), delete], ids=["update", "delete"])
def test_what_a_strategy_settled_is_a_change(tmp_path: Path, change: Change) -> None:
    """Main kept its row by a strategy, so that a later change of the branch to the row is in conflict with it."""
    table = cross(tmp_path, "run", update(9), update(8), ("dest-wins", "dest-wins"))
    table.merge("run", strategy={"rows": "dest-wins"})
    change(table, "run")
    (conflict,) = conflicts(table, "run", into_main=True)
    assert "rows" == conflict.kind
    assert [("a", 9), ("b", 2)] == contents(table)


@NAMES
def test_main_becomes_equal_to_a_branch_that_has_all_of_it(tmp_path: Path, branch: str) -> None:
    """The branch took main twice, each time with the deletion of a row, and main took an older version between."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    table.branches.create(branch)
    delete(table, "main")
    older = update(9)(table, branch)
    table.merge("main", branch, strategy="source-wins")
    table.merge(str(older), strategy="source-wins")
    assert [("a", 9), ("b", 2)] == contents(table)
    table.merge("main", branch, strategy="dest-wins")
    assert [("b", 2)] == contents(table, branch)
    table.merge(branch)
    assert [("b", 2)] == contents(table)
    assert table.head() == table.merge(branch)
