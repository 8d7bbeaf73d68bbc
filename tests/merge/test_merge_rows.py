"""Merges of rows that either side updated, moved, deleted or restored, with and without stable row ids."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.format.transaction import ReserveFragments, Restore, Transaction
from lance_dagster.types import Winner
from tests.raising import raises
from tests.soak import DEEP
from tests.table_factory import Rows, as_pylance, contents, entries, new_table

pytestmark = pytest.mark.scaled

BEFORE: Rows = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5), ("b", 6)]


def made(folder: Path, *, stable: bool) -> LanceTable:
    """Two fragments of three rows, and a branch `run`."""
    if stable:
        table = new_table(folder, entries("a", 1, 2, 3), entries("b", 4, 5, 6))
    else:
        uri = str(folder / "addresses")
        lance.write_dataset(entries("a", 1, 2, 3), uri)
        lance.write_dataset(entries("b", 4, 5, 6), uri, mode="append")
        table = LanceTable.open(uri)
    table.branches.create("run")
    return table


@pytest.fixture(params=[True, False], ids=["stable ids", "addresses"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """The table with and without stable row ids."""
    return made(tmp_path, stable=request.param)


@pytest.fixture
def stable(tmp_path: Path) -> LanceTable:
    """The table with stable row ids."""
    return made(tmp_path, stable=True)


def sound(table: LanceTable) -> None:
    """Pylance and the package find no problem in the table."""
    as_pylance(table).validate()
    report = table.maintenance.verify(deep=DEEP)
    assert not [problem for problem in report.problems if problem.severity == "error"]


def update(table: LanceTable, value: int, where: str, branch: str = "main") -> None:
    """Give rows a new value through pylance."""
    as_pylance(table, branch).update({"value": str(value)}, where=where)


def compact(table: LanceTable, branch: str = "main") -> None:
    """Put all rows into one fragment through pylance."""
    as_pylance(table, branch).optimize.compact_files()


def restored(table: LanceTable, version: int, branch: str = "main") -> None:
    """Go back to a version of the branch."""
    read = table.head(branch).number
    operation = Restore(version=version)
    table.commit(Transaction(read_version=read, uuid=f"restore-{branch}-{version}", operation=operation), branch=branch)


def test_updates_of_both_sides_to_other_rows_are_kept(table: LanceTable) -> None:
    """The rows may be in the same fragment."""
    update(table, 10, "value = 1", "run")
    update(table, 20, "value = 2")
    update(table, 40, "value = 4", "run")
    table.merge("run")
    assert [("a", 3), ("a", 10), ("a", 20), ("b", 5), ("b", 6), ("b", 40)] == contents(table)
    sound(table)


def test_updates_meet_deletions_of_other_rows(table: LanceTable) -> None:
    """Deletion vectors are united."""
    update(table, 10, "value = 1", "run")
    table.delete("value = 5", branch="run")
    table.delete("value in (2, 5, 6)")
    table.merge("run")
    assert [("a", 3), ("a", 10), ("b", 4)] == contents(table)
    sound(table)


@pytest.mark.parametrize("updating", ["run", "main"])
def test_a_row_updated_here_and_deleted_there_is_a_conflict(table: LanceTable, updating: str) -> None:
    """The merge cannot decide which of the two changes to keep."""
    update(table, 10, "value = 1", updating)
    table.delete("value = 1", branch="main" if updating == "run" else "run")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]
    assert "1 row in fragment 0 of the merge base" == caught.value.conflicts[0].unit
    assert f"lance {lance.__version__}" in str(caught.value)


def test_a_row_updated_on_both_sides_is_a_conflict(table: LanceTable) -> None:
    """The sides gave the row different values."""
    for branch, value in (("run", 10), ("main", 11)):
        update(table, value, "value in (1, 2)", branch)
    with raises(MergeConflictError, units=("2 rows in fragment 0 of the merge base",)):
        table.merge("run")


def test_the_same_update_on_both_sides_is_one(stable: LanceTable) -> None:
    """Values are compared by row; other changes of one side are kept."""
    for branch in ("run", "main"):
        update(stable, 10, "value in (1, 2)", branch)
    update(stable, 30, "value = 3", "run")
    compact(stable, "run")
    stable.delete("value = 4")
    assert 0 == stable.preview_merge("run").rows_deleted
    stable.merge("run")
    assert [("a", 10), ("a", 10), ("a", 30), ("b", 5), ("b", 6)] == contents(stable)
    sound(stable)


def test_of_rows_updated_on_both_sides_those_with_other_values_are_conflicts(stable: LanceTable) -> None:
    """The unit counts only these rows, and a strategy decides only about them."""
    for branch, value in (("run", 20), ("main", 21)):
        update(stable, 10, "value = 1", branch)
        update(stable, value, "value = 2", branch)
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        stable.merge("run")
    assert 1 == stable.preview_merge("run").conflicting_rows().read_all().num_rows
    stable.merge("run", strategy="source-wins")
    assert [("a", 3), ("a", 10), ("a", 20)] == [row for row in contents(stable) if row[0] == "a"]
    sound(stable)


def test_the_same_update_beside_a_new_column_has_its_values(stable: LanceTable) -> None:
    """The row is taken from the side with values of more columns."""
    for branch in ("run", "main"):
        update(stable, 10, "value = 1", branch)
    stable.columns.add({"double": "value * 2"}, branch="run")
    stable.merge("run")
    assert [20] == stable.read(filter="value = 10")["double"].to_pylist()
    sound(stable)


def test_a_row_gets_the_cells_that_both_sides_changed(stable: LanceTable) -> None:
    """The row is written anew with its id and creation version, and the preview counts it."""
    (before,) = lineage_of(stable, "value = 1")
    update(stable, 10, "value = 1", "run")
    as_pylance(stable).update({"key": "'z'"}, where="value = 1")
    preview = stable.preview_merge("run")
    assert (1, 1, 0, 0) == (preview.rows_combined, preview.rows_updated, preview.rows_added, preview.rows_deleted)
    assert "written anew: 1" in str(preview)
    merged = stable.merge("run")
    (after,) = lineage_of(stable, "value = 10")
    assert ("z", *before[1:3], merged.number) == after
    assert merged.number == stable.merge("run").number
    sound(stable)


def lineage_of(table: LanceTable, where: str) -> list[tuple[object, ...]]:
    """The key, row id and row versions of rows."""
    names = ["key", "_row_created_at_version", "_row_last_updated_at_version"]
    found = as_pylance(table).to_table(columns=names, filter=where, with_row_id=True).to_pylist()
    return [tuple(row[name] for name in ("key", "_rowid", *names[1:])) for row in found]


@pytest.mark.parametrize("winner,value", [("source-wins", 10), ("dest-wins", 20)])
def test_a_strategy_decides_about_the_conflicting_cell_only(stable: LanceTable, winner: Winner, value: int) -> None:
    """A cell that only one side changed is kept; if the winner's copy has all cells, the row is not written."""
    update(stable, 10, "value in (1, 2)", "run")
    stable.update({"key": "'z'", "value": "20"}, where="value = 1")
    stable.update({"value": "20"}, where="value = 2")
    with raises(MergeConflictError, units=("2 rows in fragment 0 of the merge base",)):
        stable.merge("run")
    assert int(winner == "source-wins") == stable.preview_merge("run", strategy={"rows": winner}).rows_combined
    stable.merge("run", strategy={"rows": winner})
    assert sorted([("a", value), ("z", value)]) == sorted(row for row in contents(stable) if row[1] == value)
    sound(stable)


def test_an_update_that_changed_no_value_is_no_conflict(stable: LanceTable) -> None:
    """The other side's copy of the row has all changes, so the row is not written."""
    update(stable, 10, "value = 1", "run")
    stable.update({"value": "value"}, where="value in (1, 2)")
    assert 0 == stable.preview_merge("run").rows_combined
    stable.merge("run")
    assert ("a", 10) in contents(stable)
    sound(stable)


def test_a_claimed_column_is_not_put_together_with_another(stable: LanceTable) -> None:
    """The combined row would be in the scope of a claim in which neither copy was."""
    stable.replace_where("key = 'z' AND value = 10", entries("z", 10), branch="run")
    update(stable, 10, "value = 1", "run")
    stable.update({"key": "'z'"}, where="value = 1")
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        stable.merge("run")


@pytest.mark.parametrize(
    "predicate,changed,value",
    [
        ("customer_id IN (3)", "customer", "'z'"),
        ("customer_id IN (3)", "n", "7"),
        ("customer = 'price-3' /* price */", "price", "7"),
    ],
)
def test_a_column_is_claimed_only_where_a_predicate_names_it(
    tmp_path: Path, predicate: str, changed: str, value: str
) -> None:
    """Its name in another name, in a word of SQL or in a text names nothing: the cells of a row are combined."""
    columns: dict[str, pa.DataType] = dict.fromkeys(("customer_id", "n", "price", "other"), pa.int64())
    schema = pa.schema({"customer": pa.string(), **columns})
    row: dict[str, Any] = {"customer": "a", "customer_id": 1, "n": 1, "price": 1, "other": 1}
    table = LanceTable.create(tmp_path / "named", schema)
    table.append(pa.Table.from_pylist([row], schema=schema))
    table.branches.create("run")
    replaced = {**row, "customer": "price-3", "customer_id": 3}
    table.replace_where(predicate, pa.Table.from_pylist([replaced], schema=schema), branch="run")
    table.update({changed: value}, where="customer_id = 1", branch="run")
    table.update({"other": "9"}, where="customer_id = 1")
    table.merge("run")
    expected = {**row, changed: value.strip("'") if changed == "customer" else 7, "other": 9}
    assert [expected] == table.read(filter="customer_id = 1").to_pylist()
    sound(table)


@pytest.mark.parametrize("compacting", [["run"], ["main"], ["run", "main"]], ids="+".join)
def test_a_compaction_changes_no_merge(table: LanceTable, compacting: list[str]) -> None:
    """Moved rows are found on either side."""
    update(table, 10, "value = 1", "run")
    table.delete("value = 4", branch="run")
    update(table, 20, "value = 2")
    table.delete("value = 5")
    table.append(entries("n", 7), branch="run")
    table.append(entries("n", 8))
    for branch in compacting:
        compact(table, branch)
    table.merge("run")
    assert [("a", 3), ("a", 10), ("a", 20), ("b", 6), ("n", 7), ("n", 8)] == contents(table)
    sound(table)


def test_a_compaction_on_a_branch_arrives_with_it(table: LanceTable) -> None:
    """It is taken if the dest did not change the rows and can find them by row id; no row changes."""
    compact(table, "run")
    table.merge("run")
    assert BEFORE == contents(table)
    stable = as_pylance(table).has_stable_row_ids
    assert (1 if stable else 2) == len(as_pylance(table).get_fragments())
    sound(table)


def test_a_compaction_on_both_sides_keeps_the_dests(table: LanceTable) -> None:
    """Readers and indices of the dest know its fragments."""
    compact(table, "run")
    compact(table)
    before = [fragment.fragment_id for fragment in as_pylance(table).get_fragments()]
    table.merge("run")
    assert BEFORE == contents(table)
    assert before == [fragment.fragment_id for fragment in as_pylance(table).get_fragments()]


def test_a_conflict_is_found_behind_a_compaction(table: LanceTable) -> None:
    """Both sides moved the row, and one of them changed it before."""
    update(table, 10, "value = 1", "run")
    compact(table, "run")
    table.delete("value = 1")
    compact(table)
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        table.merge("run")


def test_a_replaced_partition_is_found_behind_a_compaction_of_the_dest(table: LanceTable) -> None:
    """The deleted rows are in another fragment."""
    compact(table)
    table.replace_where("key = 'a'", entries("a", 7), branch="run", partitions=["a"])
    table.merge("run")
    assert [("a", 7), ("b", 4), ("b", 5), ("b", 6)] == contents(table)
    sound(table)


def test_an_update_by_pylance_after_crosswise_merges_finds_when_rows_were_created(stable: LanceTable) -> None:
    """Pylance looks for a row in all fragments that had it, also in a merged one where it is deleted."""
    stable.append(entries("n", 5), branch="run")
    as_pylance(stable).optimize.compact_files()
    as_pylance(stable).update({"value": "20"}, where="value = 2")
    stable.merge("run")
    stable.merge("main", into="run")
    created = ["_rowid", "_row_created_at_version"]
    before = as_pylance(stable, "run").to_table(columns=created, filter="value = 20")
    as_pylance(stable, "run").update({"value": "21"}, where="value = 20")
    assert before == as_pylance(stable, "run").to_table(columns=created, filter="value = 21")


def test_rows_keep_their_ids_and_the_versions_they_were_created_at(stable: LanceTable) -> None:
    """Either side may move them; rows with new values were last updated by the merge."""
    update(stable, 10, "value = 1", "run")
    compact(stable, "run")
    stable.append(entries("n", 7))
    stable.append(entries("n", 8), branch="run")
    stable.merge("run")
    rows = as_pylance(stable).to_table(
        columns=["value", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    )
    found = {row["value"]: tuple(row.values())[1:] for row in rows.to_pylist()}
    assert {10: (0, 2, 5), 2: (1, 2, 2), 5: (4, 3, 3), 7: (6, 4, 4), 8: (7, 5, 5)} == {
        value: found[value] for value in (10, 2, 5, 7, 8)
    }


def test_upserts_of_other_keys_are_kept(stable: LanceTable) -> None:
    """Updated rows of both sides and new rows of one side are kept."""
    stable.upsert(pa.table({"key": ["x"], "value": [1]}), on=["value"], branch="run")
    stable.update({"key": "'y'"}, where="value = 4")
    stable.merge("run")
    assert [("a", 2), ("a", 3), ("b", 5), ("b", 6), ("x", 1), ("y", 4)] == contents(stable)
    sound(stable)


@pytest.mark.parametrize("restoring", ["run", "main"])
def test_a_restored_side_takes_back_what_it_did(table: LanceTable, restoring: str) -> None:
    """Changes of the other side are kept."""
    other = "main" if restoring == "run" else "run"
    first = table.head(restoring).number
    update(table, 10, "value = 1", restoring)
    table.delete("value = 5", branch=restoring)
    restored(table, first, restoring)
    table.delete("value = 1", branch=other)
    update(table, 60, "value = 6", other)
    table.merge("run")
    assert [("a", 2), ("a", 3), ("b", 4), ("b", 5), ("b", 60)] == contents(table)
    sound(table)


def test_rows_a_branch_brought_back_come_back(stable: LanceTable) -> None:
    """The branch restored a version before a deletion that both sides have."""
    stable.delete("value in (1, 4)")
    before = stable.head().number - 1
    stable.branches.create("back")
    restored(stable, 3)
    assert before == 3
    stable.append(entries("n", 7), branch="back")
    stable.merge("main", into="back")
    assert [*BEFORE, ("n", 7)] == contents(stable, "back")
    as_pylance(stable, "back").validate()


OTHERS: list[tuple[str, Callable[[LanceTable], Any]]] = [
    ("append", lambda table: as_pylance(table).insert(entries("z", 9))),
    ("update", lambda table: as_pylance(table).update({"value": "90"}, where="value = 3")),
    ("delete", lambda table: as_pylance(table).delete("value = 10")),
    ("compact", lambda table: as_pylance(table).optimize.compact_files()),
    ("merge_insert", lambda table: as_pylance(table).merge_insert("value").when_matched_update_all().execute(
        entries("y", 10)
    )),
]  # fmt: skip


@pytest.mark.parametrize("name,change", OTHERS, ids=[name for name, _ in OTHERS])
def test_life_goes_on_after_a_merge(table: LanceTable, name: str, change: Callable[[LanceTable], Any]) -> None:
    """Pylance can change a merged version like any other."""
    update(table, 10, "value = 1", "run")
    table.delete("value = 5", branch="run")
    table.append(entries("n", 7), branch="run")
    compact(table, "run")
    table.delete("value = 4")
    table.merge("run")
    change(table)
    expected = {
        "append": [("a", 2), ("a", 3), ("a", 10), ("b", 6), ("n", 7), ("z", 9)],
        "update": [("a", 2), ("a", 10), ("a", 90), ("b", 6), ("n", 7)],
        "delete": [("a", 2), ("a", 3), ("b", 6), ("n", 7)],
        "compact": [("a", 2), ("a", 3), ("a", 10), ("b", 6), ("n", 7)],
        "merge_insert": [("a", 2), ("a", 3), ("b", 6), ("n", 7), ("y", 10)],
    }
    assert expected[name] == contents(table)
    sound(table)


def test_a_branch_that_lives_on_is_merged_again_and_again(stable: LanceTable) -> None:
    """The branch's rows have other ids on the dest, and are found there after they were moved."""
    for turn in range(4):
        stable.append(entries("n", 10 + turn), branch="run")
        stable.append(entries("m", 20 + turn))
        if turn:
            stable.update({"value": "value + 100"}, where=f"value = {9 + turn}", branch="run")
            stable.delete(f"value = {19 + turn}")
        if turn == 1:
            compact(stable)
        if turn == 2:
            compact(stable, "run")
        stable.merge("run")
        sound(stable)
    assert [*BEFORE, ("m", 23), ("n", 13), ("n", 110), ("n", 111), ("n", 112)] == contents(stable)


def test_a_branch_takes_in_main_and_goes_back_to_it(stable: LanceTable) -> None:
    """Changes that the branch made to main's rows, under its own row ids, are merged into main."""
    stable.append(entries("m", 7))
    stable.append(entries("n", 8), branch="run")
    stable.merge("main", into="run")
    stable.update({"value": "70"}, where="value = 7", branch="run")
    stable.delete("value = 1", branch="run")
    compact(stable)
    stable.merge("run")
    assert [*BEFORE[1:], ("m", 70), ("n", 8)] == contents(stable)
    sound(stable)


def test_merges_crosswise_keep_what_either_took_out(stable: LanceTable) -> None:
    """Both sides have two equally near common versions, neither of which has all rows."""
    stable.append(entries("m", 7, 8))
    stable.append(entries("n", 9, 10), branch="run")
    main, run = str(stable.head()), str(stable.head("run"))
    stable.merge(run)
    stable.merge(main, into="run")
    stable.delete("value in (7, 9)")
    stable.update({"value": "100"}, where="value = 10", branch="run")
    stable.merge("run")
    assert [*BEFORE, ("m", 8), ("n", 100)] == contents(stable)
    sound(stable)


def test_without_row_ids_a_version_that_is_gone_is_refused(tmp_path: Path) -> None:
    """It is unknown which rows were moved and which deleted."""
    table = made(tmp_path, stable=False)
    table.append(entries("n", 7), branch="run")
    table.delete("value = 1", branch="run")
    compact(table)
    update(table, 50, "value = 5")
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    with raises(MergeConflictError, units=("version main@3", "history")):
        table.merge("run")


def test_with_row_ids_a_version_that_is_gone_is_no_obstacle(stable: LanceTable) -> None:
    """Rows still have their ids and versions; only that nothing was replaced needs a strategy."""
    stable.update({"value": "10"}, where="value = 1", branch="run")
    compact(stable)
    stable.update({"value": "50"}, where="value = 5")
    as_pylance(stable).cleanup_old_versions(retain_versions=1)
    stable.merge("run", strategy={"history": "source-wins"})
    assert [("a", 2), ("a", 3), ("a", 10), ("b", 4), ("b", 6), ("b", 50)] == contents(stable)
    sound(stable)


@pytest.mark.parametrize("reserved", [2**30, 2**30 + 2**29, 2**31])
def test_large_fragment_ids_are_ids_like_any_other(stable: LanceTable, reserved: int) -> None:
    """Rows that the merge base lacks have keys of another type, so they are never taken for a fragment."""
    stable.commit(
        Transaction(
            read_version=stable.head().number, uuid=str(uuid.uuid4()), operation=ReserveFragments(count=reserved)
        )
    )
    stable.append(entries("n", 7, 8, 9))
    assert reserved <= max(one.fragment_id for one in stable.to_lance().get_fragments())
    stable.branches.create("late")
    stable.delete("value = 7", branch="late")
    stable.update({"value": "90"}, where="value = 9", branch="late")
    stable.delete("value = 8")
    stable.merge("late")
    assert [90] == [value for key, value in contents(stable) if key == "n"]
    stable.branches.create("other")
    stable.update({"value": "91"}, where="value = 90", branch="other")
    stable.update({"value": "92"}, where="value = 90")
    shown = stable.preview_merge("other").conflicting_rows().read_all().select(["base", "source", "dest"])
    assert [[90, 91, 92]] == [[row[side]["value"] for side in row] for row in shown.to_pylist()]
    sound(stable)


def test_without_row_ids_a_row_that_left_a_partition_does_not_come_back_beside_itself(tmp_path: Path) -> None:
    """The replacing side had moved the row out of the partition before, and the row cannot be identified."""
    table = made(tmp_path, stable=False)
    as_pylance(table).update({"key": "'d'"}, where="value = 1")
    table.replace_where("key = 'a'", entries("a", 9), partitions=["a"])
    as_pylance(table, "run").insert(entries("a", 7))
    before = contents(table)
    with raises(MergeConflictError, units=("partition a",)):
        table.merge("run", strategy="source-wins")
    assert before == contents(table)
    table.merge("run", strategy="dest-wins")
    assert before == contents(table)


@pytest.mark.parametrize("late", ["update", "delete"])
@pytest.mark.parametrize("compacted", [True, False])
def test_a_row_that_a_strategy_brought_back_is_not_doubled_without_row_ids(
    tmp_path: Path, late: str, *, compacted: bool
) -> None:
    """A third branch updates or deletes the same row, which cannot be identified, so the merge is a conflict."""
    uri = str(tmp_path / "addresses")
    lance.write_dataset(entries("a", 1, 2), uri)
    table = LanceTable.open(uri)
    for name in ("run", "late"):
        table.branches.create(name)
    table.delete("value = 1")
    table.update({"key": "'run'"}, where="value = 1", branch="run")
    merged = table.merge("run", strategy="source-wins")
    assert "source-wins" in merged.properties["lance_dagster.merge.strategy"]
    assert [("a", 2), ("run", 1)] == contents(table)
    if compacted:
        table.maintenance.compact()
    if late == "update":
        table.update({"key": "'late'"}, where="value = 1", branch="late")
    else:
        table.delete("value = 1", branch="late")
    for strategy in (None, "source-wins"):
        with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
            table.merge("late", strategy=strategy)
    assert [("a", 2), ("run", 1)] == contents(table)


def test_a_row_that_was_brought_back_is_not_lost_with_the_claim_to_it(tmp_path: Path) -> None:
    """Without row ids the loser's new row is dropped and its old row is unknown, so the merge is refused."""
    uri = str(tmp_path / "addresses")
    lance.write_dataset(entries("a", 1, 2), uri)
    table = LanceTable.open(uri)
    for name in ("run", "late"):
        table.branches.create(name)
    table.replace_where("value = 1", entries("a"))
    table.append(entries("n", 9), branch="run")
    table.update({"key": "'late'"}, where="value = 1", branch="late")
    with raises(MergeConflictError, units=("rows where value = 1", "1 row in fragment 0 of the merge base")):
        table.merge("late", strategy="dest-wins")


@pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
def test_a_dropped_column_does_not_put_equal_updates_in_conflict(tmp_path: Path, source: str, dest: str) -> None:
    """The file of an updated row still has values of a column that its side dropped later."""
    table = new_table(tmp_path, entries("a", 1, 2))
    table.columns.add({"note": "'n'"})
    table.branches.create("run")
    for branch in ("run", "main"):
        table.update({"value": "5"}, where="value = 1", branch=branch)
    table.columns.drop(["note"], branch="run")
    table.columns.add({"twice": "value * 2"})
    assert () == table.preview_merge(source, into=dest).conflicts
    table.merge(source, into=dest)
    assert [{"key": "a", "value": 2, "twice": 4}, {"key": "a", "value": 5, "twice": 10}] == sorted(
        table.read(dest).to_pylist(), key=lambda row: row["value"]
    )
