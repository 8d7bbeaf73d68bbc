"""Upserts on both sides of a merge conflict only about keys that both inserted."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.types import Winner
from tests.raising import raises
from tests.table_factory import as_pylance, contents, entries, new_table


@pytest.fixture(params=[True, False], ids=["stable row ids", "row addresses"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """One row, and a branch `run`."""
    uri = str(tmp_path / "keys")
    lance.write_dataset(rows(0, -1), uri, enable_stable_row_ids=request.param)
    made = LanceTable.open(uri)
    made.branches.create("run")
    return made


def rows(value: int, *ids: int | None) -> pa.Table:
    """Rows of a value."""
    parts = pa.array([str((one or 0) % 2) for one in ids])
    return pa.table({"id": pa.array(ids, pa.int64()), "part": parts, "v": pa.array([value] * len(ids))})


def values_of(table: LanceTable, branch: str = "main") -> dict[int, int]:
    """The value of each id, which must be unique."""
    found = as_pylance(table, branch).to_table().to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["v"] for row in found}


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
def test_a_strategy_decides_about_conflicting_keys_only(table: LanceTable, strategy: Winner) -> None:
    """Other keys of the losing side are kept, however many there are."""
    table.upsert(rows(1, 1, 2000), on=["id"], branch="run")
    table.upsert(rows(2, *range(1, 1001)), on=["id"])
    preview = table.preview_merge("run")
    assert ["rows where `id` IN (1)"] == [conflict.unit for conflict in preview.conflicts]
    listed = preview.conflicting_rows(on=["id"]).read_all().to_pylist()
    assert [{"id": 1}] == [row["key"] for row in listed]
    table.merge("run", strategy=strategy)
    expected = {-1: 0, 2000: 1, **dict.fromkeys(range(1, 1001), 2)}
    assert expected | ({1: 1} if strategy == "source-wins" else {}) == values_of(table)
    as_pylance(table).validate()


@pytest.mark.parametrize("other", ["append", "upsert", "update"])
def test_other_keys_between_those_of_an_upsert_are_not_in_conflict(table: LanceTable, other: str) -> None:
    """Of many keys only the lowest and the highest are recorded."""
    table.upsert(rows(1, *range(0, 1000, 2)), on=["id"], branch="run")
    match other:
        case "append":
            table.append(rows(2, 11, 501))
        case "upsert":
            table.upsert(rows(2, 11, 501), on=["id"])
        case _:
            table.update({"id": "11"}, where="id = -1")
    table.merge("run")
    assert set(range(0, 1000, 2)) | {11} <= values_of(table).keys()


def test_a_row_that_was_given_a_key_is_in_conflict(table: LanceTable) -> None:
    """The row was not inserted, but its new key equals that of an inserted row."""
    table.upsert(rows(1, 1, 2), on=["id"], branch="run")
    table.update({"id": "1"}, where="id = -1")
    with raises(MergeConflictError, units=("rows where `id` IN (1)",)):
        table.merge("run")
    if as_pylance(table).has_stable_row_ids:
        table.merge("run", strategy="source-wins")
        assert {-1: 0, 1: 1, 2: 1} == values_of(table)


def test_keys_decide_also_where_partitions_are_named(table: LanceTable) -> None:
    """An upsert does not claim the partition of its rows."""
    table.upsert(rows(1, 1, 3), on=["id"], branch="run", partitions=["1"])
    table.upsert(rows(2, 5, 7), on=["id"], partitions=["1"])
    table.merge("run")
    assert {-1: 0, 1: 1, 3: 1, 5: 2, 7: 2} == values_of(table)


def test_a_key_of_several_columns_is_in_conflict_as_a_whole(table: LanceTable) -> None:
    """An equal value in one column is no conflict, and null is no key."""
    table.upsert(rows(1, 1, 2, None), on=["id", "v"], branch="run")
    table.upsert(rows(2, 1, 2, None), on=["id", "v"])
    table.merge("run")
    assert 7 == table.count_rows()
    table.upsert(rows(3, 8), on=["id", "v"], branch="run")
    table.upsert(rows(3, 8), on=["id", "v"])
    with raises(MergeConflictError, units=("rows where `id` IN (8) AND `v` IN (3)",)):
        table.merge("run")


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
def test_of_two_replacements_only_the_shared_scope_is_in_conflict(table: LanceTable, strategy: Winner) -> None:
    """A partition that only one side replaced stays as that side has it, with either winner."""
    table.replace_where("id IN (1, 2)", rows(1, 1, 2), branch="run", partitions=["1", "2"])
    table.replace_where("id IN (2, 3)", rows(2, 2, 3), partitions=["2", "3"])
    assert ["partition 2"] == [conflict.unit for conflict in table.preview_merge("run").conflicts]
    table.merge("run", strategy=strategy)
    assert {-1: 0, 1: 1, 2: 1 if strategy == "source-wins" else 2, 3: 2} == values_of(table)


def test_a_key_may_have_any_name(tmp_path: Path) -> None:
    """The name may be that of an internal column of the comparison."""
    uri = str(tmp_path / "places")
    lance.write_dataset(pa.table({"place": ["z"], "v": [0]}), uri, enable_stable_row_ids=True)
    made = LanceTable.open(uri)
    made.branches.create("run")
    made.upsert(pa.table({"place": ["x", "y"], "v": [1, 1]}), on=["place"], branch="run")
    made.upsert(pa.table({"place": ["p", "q", "y"], "v": [2, 2, 2]}), on=["place"])
    preview = made.preview_merge("run")
    assert ["rows where `place` IN ('y')"] == [conflict.unit for conflict in preview.conflicts]
    made.merge("run", strategy="dest-wins")
    found = as_pylance(made).to_table().to_pylist()
    assert {"z": 0, "x": 1, "p": 2, "q": 2, "y": 2} == {row["place"]: row["v"] for row in found}
    assert 5 == len(found)


@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("by_key", [True, False], ids=["upsert", "replace_where"])
def test_two_merges_that_settled_one_conflict_in_opposite_ways_lose_no_row(
    tmp_path: Path, winner: Winner, *, by_key: bool
) -> None:
    """Each kept one copy of the row and deleted the other's; together they would delete both."""
    table = new_table(tmp_path, entries("a", 1))
    for branch in ("run", "third"):
        table.branches.create(branch)
    for value, branch in enumerate(("run", "main")):
        table.append(entries(f"of {branch}", 2), branch=branch)
        if by_key:
            table.upsert(entries("k", value), on=["key"], branch=branch)
        else:
            table.replace_where("key = 'k'", entries("k", value), branch=branch)
    before = table.head()
    table.merge("run", "third")
    table.merge(str(before), "third", strategy="dest-wins")
    table.merge("run", strategy="dest-wins")
    table.append(entries("later", 3), branch="third")
    kept = contents(table, "third" if winner == "source-wins" else "main")
    with pytest.raises(MergeConflictError) as refused:
        table.merge("third")
    assert ["rows"] == [conflict.kind for conflict in refused.value.conflicts]
    table.merge("third", strategy=winner)
    assert sorted({*kept, ("later", 3)}) == contents(table)


@pytest.mark.parametrize("inserted", ["n-1", "price", "x IN y"])
@pytest.mark.parametrize("column", ["n", "price", "x"])
def test_an_upsert_that_inserts_is_combined_with_an_update_of_another_column(
    tmp_path: Path, column: str, inserted: str
) -> None:
    """The upsert claims its keys, whatever columns are called like a part of a key or of the condition."""
    rows = pa.table({"id": ["a"], column: [1], "other": [1]})
    table = LanceTable.create(tmp_path / "table", rows.schema)
    table.append(rows)
    table.branches.create("run")
    table.upsert(pa.table({"id": ["a", inserted], "other": [2, 2]}), on=["id"], branch="run")
    table.update({column: "3"}, where="id = 'a'")
    assert 1 == table.preview_merge("run").rows_combined
    table.merge("run")
    expected = [{"id": "a", column: 3, "other": 2}, {"id": inserted, column: None, "other": 2}]
    assert expected == table.read().sort_by("id").to_pylist()


@pytest.mark.parametrize("into_main", [True, False])
def test_updates_are_combined_after_columns_were_merged_both_ways(tmp_path: Path, *, into_main: bool) -> None:
    """Each side added a column, so that the two have other field ids for them; the rows are still combined."""
    before = pa.table({"id": [1, 2], "first": [1, 1], "second": [1, 1]})
    table = LanceTable.create(tmp_path / "table", before.schema)
    table.append(before)
    table.branches.create("run")
    table.columns.add({"of_main": "id * 10"})
    table.columns.add({"of_run": "id * 100"}, branch="run")
    table.merge("run")
    table.branches.sync("run")
    table.update({"first": "9"}, where="id = 1")
    table.update({"second": "5"}, where="id = 1", branch="run")
    source, dest = ("run", "main") if into_main else ("main", "run")
    assert 1 == table.preview_merge(source, dest).rows_combined
    table.merge(source, dest)
    found = {row["id"]: row for row in table.read(dest).to_pylist()}
    assert {"id": 1, "first": 9, "second": 5, "of_main": 10, "of_run": 100} == found[1]
    assert {"id": 2, "first": 1, "second": 1, "of_main": 20, "of_run": 200} == found[2]
    as_pylance(table, dest).validate()
