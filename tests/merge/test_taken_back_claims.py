"""Writes that were taken back claim nothing: they are in no conflict with later changes of the same rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable, MergeConflictError, Version
from lance_dagster.transactions.claims import decode_claims
from tests.raising import raises
from tests.table_factory import contents, entries, new_table

Write = Callable[[LanceTable, str], Version]
BEFORE = [("mon", 1), ("tue", 2)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two days, and a branch `run`."""
    made = new_table(tmp_path, entries("mon", 1), entries("tue", 2))
    made.branches.create("run")
    return made


def replace(table: LanceTable, branch: str, value: int = 10) -> Version:
    """Replace a day."""
    return table.replace_where("key = 'tue'", entries("tue", value), branch=branch, partitions=["tue"])


def overwrite(table: LanceTable, branch: str) -> Version:
    """Replace all rows."""
    return table.overwrite(entries("tue", 11), branch=branch)


def merge(table: LanceTable, branch: str) -> Version:
    """Replace a day on another branch, and merge it."""
    table.branches.create("side", branch)
    replace(table, "side")
    return table.merge("side", branch)


def pick(table: LanceTable, branch: str) -> Version:
    """Replace a day on another branch, and pick that."""
    table.branches.create("side", branch)
    return table.cherry_pick(str(replace(table, "side")), branch)


WRITES: dict[str, Write] = {
    "replace": replace,
    "overwrite": overwrite,
    "append": lambda table, branch: table.append(entries("tue", 12), branch=branch, partitions=["tue"]),
    "append of any partition": lambda table, branch: table.append(entries("tue", 13), branch=branch),
    "upsert": lambda table, branch: table.upsert(entries("tue", 14), on=["value"], branch=branch),
    "merge": merge,
    "pick": pick,
}


def take_back(table: LanceTable, branch: str, *, write: str, restored: bool, between: bool) -> None:
    """Write to a branch and take it back, if asked with an append between the two that a revert leaves."""
    before, made = str(table.head(branch)), WRITES[write](table, branch)
    if between:
        table.append(entries("wed", 3), branch=branch, partitions=["wed"])
    if restored:
        table.restore(before, branch=branch)
    else:
        table.revert(str(made), branch=branch, parent=1 if write == "merge" else None)


@pytest.mark.parametrize("branch", ["run", "main"])
@pytest.mark.parametrize("between", [False, True], ids=["alone", "with an append"])
@pytest.mark.parametrize("restored", [False, True], ids=["revert", "restore"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_was_taken_back_claims_nothing(
    table: LanceTable, write: str, branch: str, *, restored: bool, between: bool
) -> None:
    """The other side replaced the same rows, or all rows, and the merge keeps that and the rows of others."""
    take_back(table, branch, write=write, restored=restored, between=between)
    table.append(entries("thu", 4), branch=branch, partitions=["thu"])
    replace(table, "main" if branch == "run" else "run", 99)
    table.merge("run")
    kept = [("wed", 3)] if between and not restored else []
    assert sorted([("mon", 1), ("tue", 99), ("thu", 4), *kept]) == contents(table)


@pytest.mark.parametrize("branch", ["run", "main"])
@pytest.mark.parametrize("restored", [False, True], ids=["revert", "restore"])
@pytest.mark.parametrize("write", WRITES)
def test_an_overwrite_beside_what_was_taken_back(table: LanceTable, write: str, branch: str, *, restored: bool) -> None:
    """Nothing is left of the write, so that the other side may replace all rows."""
    take_back(table, branch, write=write, restored=restored, between=False)
    overwrite(table, "main" if branch == "run" else "run")
    table.merge("run")
    assert [("tue", 11)] == contents(table)


@pytest.mark.parametrize("write", ["replace", "overwrite", "append", "merge", "pick"])
def test_a_write_that_came_again_claims_its_rows(table: LanceTable, write: str) -> None:
    """A revert of the revert brings the rows back, and their claim."""
    take_back(table, "run", write=write, restored=False, between=False)
    table.revert("run", branch="run")
    replace(table, "main", 99)
    with pytest.raises(MergeConflictError):
        table.merge("run")
    table.revert("run", branch="run")
    table.merge("run")
    assert [("mon", 1), ("tue", 99)] == contents(table)


def test_another_write_of_the_same_rows_claims_them(table: LanceTable) -> None:
    """Of two replacements of a day one was taken back; the other one is in conflict with that of main."""
    take_back(table, "run", write="replace", restored=True, between=False)
    replace(table, "run", 20)
    replace(table, "main", 99)
    with raises(MergeConflictError, units=("partition tue",)):
        table.merge("run")


def test_a_merge_does_not_repeat_claims_that_were_taken_back(table: LanceTable) -> None:
    """The merged version claims what its branch left, so that a later merge of the same day is in no conflict."""
    table.branches.create("other")
    take_back(table, "run", write="replace", restored=False, between=True)
    merged = table.merge("run")
    claimed = {key for claim in decode_claims(merged.properties) for key in claim.partitions}
    assert {"wed"} == claimed
    replace(table, "other", 99)
    table.merge("other")
    assert [("mon", 1), ("tue", 99), ("wed", 3)] == contents(table)


def test_a_revert_with_a_strategy_leaves_the_claim(table: LanceTable) -> None:
    """Such a revert may have kept a part of the replaced rows, so the replacement still claims them."""
    made = table.replace_where("key = 'tue'", entries("tue", 20, 21), branch="run", partitions=["tue"])
    table.update({"key": "'late'"}, where="value = 20", branch="run")
    table.revert(str(made), branch="run", strategy="dest-wins")
    replace(table, "main", 99)
    with raises(MergeConflictError, units=("partition tue",)):
        table.merge("run")


BACK: dict[str, Callable[[LanceTable, str, str], object]] = {
    "revert": lambda table, made, _: table.revert(made, "third"),
    "restore": lambda table, _, before: table.restore(before, branch="third"),
}


@pytest.mark.parametrize("partitions", [("tue",), ()], ids=["named", "predicate"])
@pytest.mark.parametrize("back", BACK)
def test_a_replacement_that_a_merged_branch_took_back_claims_nothing(
    table: LanceTable, back: str, partitions: tuple[str, ...]
) -> None:
    """A branch of main took the replacement back, and main has the rows from before it by the merge of this branch."""
    before = str(table.head())
    made = table.replace_where("key = 'tue'", entries("tue", 10), partitions=partitions)
    table.branches.create("third")
    BACK[back](table, str(made), before)
    table.merge("third")
    table.replace_where("key = 'tue'", entries("tue", 99), branch="run", partitions=partitions)
    table.merge("run")
    assert [("mon", 1), ("tue", 99)] == contents(table)


@pytest.mark.parametrize("branch", ["run", "main"])
@pytest.mark.parametrize("write", ["append", "append of any partition", "upsert"])
def test_rows_that_were_added_and_deleted_claim_nothing(table: LanceTable, write: str, branch: str) -> None:
    """The side has other changes, so that it has not the rows of the fork again."""
    WRITES[write](table, branch)
    table.append(entries("wed", 3), branch=branch, partitions=["wed"])
    table.delete("value >= 12", branch=branch)
    replace(table, "main" if branch == "run" else "run", 99)
    table.merge("run")
    assert [("mon", 1), ("tue", 99), ("wed", 3)] == contents(table)


def test_a_replacement_by_no_rows_claims_its_partition(table: LanceTable) -> None:
    """It says that there are no rows of the day, which contradicts rows that another branch added."""
    table.replace_where("key = 'thu'", entries("thu"), partitions=["thu"])
    table.append(entries("wed", 3), partitions=["wed"])
    table.append(entries("thu", 4), branch="run", partitions=["thu"])
    with raises(MergeConflictError, units=("partition thu",)):
        table.merge("run")
