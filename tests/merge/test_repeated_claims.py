"""Claims that a merge or a pick repeats do not count against a side that contains the version which made them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable, MergeConflictError
from lance_dagster.transactions.claims import Claim, decode_claims
from tests.raising import raises
from tests.table_factory import contents, entries, new_table

Way = Callable[[LanceTable], object]
BEFORE = [("mon", 1), ("tue", 2)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two days, and the branches `run` and `third`."""
    made = new_table(tmp_path, entries("mon", 1), entries("tue", 2))
    made.branches.create("run")
    made.branches.create("third")
    return made


def replace(table: LanceTable, value: int, branch: str = "run") -> None:
    """Replace a day."""
    table.replace_where("key = 'tue'", entries("tue", value), branch=branch, partitions=["tue"])


def through_a_third(table: LanceTable) -> None:
    """Merge `run` into a third branch, and that into main."""
    table.merge("run", "third")
    table.merge("third")


def through_a_deleted(table: LanceTable) -> None:
    """Merge `run` into a third branch, which is deleted after it was merged into main."""
    through_a_third(table)
    table.branches.delete("third")


def through_two(table: LanceTable) -> None:
    """Merge `run` into main by way of two other branches."""
    table.branches.create("fourth")
    table.merge("run", "third")
    table.merge("third", "fourth")
    table.merge("fourth")


def through_a_preview(table: LanceTable) -> None:
    """Merge a preview of the merge of `run`."""
    table.branches.preview("run")
    table.merge("preview/run")


WAYS = {
    "third": through_a_third,
    "deleted": through_a_deleted,
    "two": through_two,
    "preview": through_a_preview,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("into_main", [True, False], ids=["merge", "sync"])
def test_a_branch_replaces_what_it_replaced_before(table: LanceTable, way: str, *, into_main: bool) -> None:
    """The replacement that main has over another branch is the branch's own, so that it may be replaced again."""
    replace(table, 20)
    WAYS[way](table)
    replace(table, 21)
    dest = "main" if into_main else "run"
    if into_main:
        table.merge("run")
    else:
        table.branches.sync("run")
    assert [("mon", 1), ("tue", 21)] == contents(table, dest)


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_added_to_what_was_replaced_before(table: LanceTable, way: str) -> None:
    """An append to the day that the branch itself replaced is in no conflict with its replacement."""
    replace(table, 20)
    WAYS[way](table)
    table.append(entries("tue", 22), branch="run", partitions=["tue"])
    table.merge("run")
    assert [("mon", 1), ("tue", 20), ("tue", 22)] == contents(table)


def test_a_pick_that_came_over_a_third_branch_is_no_conflict_with_its_original(table: LanceTable) -> None:
    """As where main picked the version itself."""
    replace(table, 20)
    table.cherry_pick("run", "third")
    table.merge("third")
    table.append(entries("wed", 3), branch="run", partitions=["wed"])
    table.merge("run")
    assert [("mon", 1), ("tue", 20), ("wed", 3)] == contents(table)


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_claim_of_the_third_branch_counts(table: LanceTable, *, first: bool) -> None:
    """The third branch replaced the day too, before or after it merged the branch by a strategy."""
    if first:
        replace(table, 30, "third")
    replace(table, 20)
    table.merge("run", "third", strategy="dest-wins")
    if not first:
        replace(table, 30, "third")
    table.merge("third")
    replace(table, 21)
    with raises(MergeConflictError, units=("partition tue",)):
        table.merge("run")
    assert [("mon", 1), ("tue", 30)] == contents(table)


def test_the_newest_claim_of_a_branch_counts(table: LanceTable) -> None:
    """Main got two replacements of the branch; a fork from between them does not have the second one."""
    replace(table, 20)
    between = str(table.head("run"))
    replace(table, 21)
    table.merge("run", "third")
    table.merge("third")
    table.branches.create("older", between)
    replace(table, 22, "older")
    with raises(MergeConflictError, units=("partition tue",)):
        table.merge("older")
    assert [("mon", 1), ("tue", 21)] == contents(table)


def test_a_merge_records_the_versions_of_its_claims(table: LanceTable) -> None:
    """Each claim has the branch and the number of the version that made it, also in a merge of merges."""
    replace(table, 20)
    made = (table.branches.get("run").id, table.head("run").number)
    through_a_third(table)
    (claim,) = decode_claims(table.head().properties)
    assert Claim(mode="replace", predicate="key = 'tue'", partitions=("tue",)) == claim
    assert made == claim.origin


@pytest.mark.parametrize("origin", ['"run@2"', "7", "[1, 2]", '["a", "b"]', '["a"]', "{}", "null"])
def test_an_origin_of_another_form_is_none(origin: str) -> None:
    """Any program can write the property."""
    text = f'[{{"mode": "replace", "predicate": null, "partitions": ["tue"], "origin": {origin}}}]'
    (claim,) = decode_claims({"lance_dagster.claims": text})
    assert claim.origin is None
