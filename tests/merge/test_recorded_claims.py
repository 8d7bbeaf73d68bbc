"""The claims that versions record, and what a later merge learns from them."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, MergeConflictError
from lance_dagster.errors import CommitConflictError
from lance_dagster.transactions.claims import decode_claims
from tests.raising import raises
from tests.table_factory import as_pylance, contents, entries, new_table

UNCLAIMED: dict[str, Callable[[LanceTable], object]] = {
    "append": lambda table: as_pylance(table, "run").insert(entries("tue", 77)),
    "update": lambda table: table.update({"key": "'tue'"}, where="key = 'mon'", branch="run"),
    "delete": lambda table: table.delete("value = 2", branch="run"),
}


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two days, and the branches `run` and `other`."""
    made = new_table(tmp_path, entries("tue", 1, 2), entries("mon", 3))
    made.branches.create("run")
    made.branches.create("other")
    return made


@pytest.mark.parametrize("change", UNCLAIMED)
def test_a_merge_does_not_hide_a_change_without_a_claim(table: LanceTable, change: str) -> None:
    """The branch named the partition of one commit only; the merge of another branch still looks at its other rows."""
    table.append(entries("wed", 50), branch="run", partitions=["wed"])
    UNCLAIMED[change](table)
    table.replace_where("key = 'tue'", entries("tue", 99), branch="other", partitions=["tue"])
    table.merge("run")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("other")
    assert ["partition tue"] == [conflict.unit for conflict in caught.value.conflicts]


def test_a_merge_names_partitions_where_all_of_its_changes_do(table: LanceTable) -> None:
    """A compaction moves rows only: the merge of another partition needs no look at rows."""
    table.append(entries("wed", 50), branch="run", partitions=["wed"])
    table.maintenance.compact(branch="run")
    table.merge("run")
    assert '"partitions": []' not in table.head().properties["lance_dagster.claims"]
    table.replace_where("key = 'tue'", entries("tue", 99), branch="other", partitions=["tue"])
    table.merge("other")
    assert [("mon", 3), ("tue", 99), ("wed", 50)] == contents(table)


def test_rows_that_a_merge_moved_are_not_replaced(table: LanceTable) -> None:
    """The merge brought a claimed append and an update, which moved rows of the first attempt."""
    first = table.append(entries("thu", 1, 2))
    table.branches.create("later")
    table.append(entries("wed", 50), branch="later", partitions=["wed"])
    table.update({"value": "7"}, where="key = 'thu' and value = 1", branch="later")
    table.merge("later")
    with raises(CommitConflictError, committed="main@5", retryable=False):
        table.append(entries("thu", 1, 2), replaces=first)


def keyed(value: int, *ids: int) -> pa.Table:
    """Rows with keys, all of one value."""
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.int64())})


def test_values_of_an_upsert_are_not_combined_with_another_key(tmp_path: Path) -> None:
    """The upsert found the row by its key and inserted nothing; the other side gave the row another key."""
    table = LanceTable.create(tmp_path / "keyed", keyed(0).schema)
    table.append(keyed(50, 5, 6))
    table.branches.create("run")
    table.upsert(keyed(99, 5), on=["id"], branch="run")
    table.update({"id": "7"}, where="id = 5")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]


def test_an_upsert_that_only_updates_claims_no_key(table: LanceTable) -> None:
    """Its claim only names the key columns: a row that the other side inserted with its key is no conflict."""
    done = table.upsert(entries("mon", 4), on=["key"], branch="run")
    assert [("false", ("key",), False)] == [
        (claim.predicate, claim.on, claim.exclusive) for claim in decode_claims(done.properties)
    ]
    table.append(entries("mon", 9))
    table.merge("run")
    assert [("mon", 4), ("mon", 9), ("tue", 1), ("tue", 2)] == contents(table)


def test_a_field_that_got_the_name_of_another_one_is_not_taken_for_it(tmp_path: Path) -> None:
    """The condition is about the field that is called `day` now, and `d` is another one."""
    table = LanceTable.create(
        tmp_path / "nested", pa.schema([("s", pa.struct([("d", pa.string()), ("e", pa.string())]))])
    )
    table.append(pa.table({"s": [{"d": "mon", "e": "x"}, {"d": "tue", "e": "x"}]}))
    table.branches.create("run")
    table.replace_where("s.d = 'tue'", pa.table({"s": [{"d": "tue", "e": "y"}]}), branch="run")
    table.columns.rename("s.d", "day")
    table.columns.rename("s.e", "d")
    table.append(pa.table({"s": [{"day": "tue", "d": "z"}]}))
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    assert ["rows where s.d = 'tue'"] == [conflict.unit for conflict in caught.value.conflicts]
    table.merge("run", strategy="dest-wins")
    assert ["x", "x", "z"] == [row["s"]["d"] for row in table.read().to_pylist()]


UNREADABLE = {"no JSON": "x", "brackets nested too deep": "[" * 100_000}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_claims_that_cannot_be_read_do_not_stop_a_merge(tmp_path: Path, text: str) -> None:
    """Any program can set the property of a commit; such a commit claims nothing."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    at_run = as_pylance(table).checkout_version(("run", None))
    lance.write_dataset(entries("b", 2), at_run, mode="append", transaction_properties={"lance_dagster.claims": text})
    table.append(entries("c", 3))
    again = LanceTable.open(table.uri)
    assert again.preview_merge("run").ok
    again.merge("run")
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(again)
