"""Merges of rows that pylance updated in place, named in the transaction, with changes of the other side."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.format.transaction import UPDATED_IN_PLACE
from lance_dagster.merge.merge_commit import MergeMode
from tests.raising import raises
from tests.table_factory import as_pylance

Values = dict[int, tuple[int | None, ...]]
_NAMES = count()


def made(folder: Path, *, stable: bool) -> LanceTable:
    """Two fragments of five rows with an index on their ids, and a branch `run`."""
    uri = str(folder / f"in-place-{next(_NAMES)}")
    rows = pa.table({"id": list(range(10)), "a": [0] * 10, "b": [0] * 10})
    lance.write_dataset(rows, uri, enable_stable_row_ids=stable, max_rows_per_file=5).create_scalar_index("id", "BTREE")
    table = LanceTable.open(uri)
    table.branches.create("run")
    return table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """The table with stable row ids."""
    return made(tmp_path, stable=True)


def write_in_place(table: LanceTable, branch: str, column: str, values: dict[int, int]) -> None:
    """Update rows by id through pylance, which writes them in place and names them in the transaction."""
    rows = pa.table({"id": list(values), column: list(values.values())})
    dataset = as_pylance(table, branch)
    dataset.merge_insert("id").when_matched_update_all().execute(rows)
    newest = as_pylance(table, branch)
    transaction = newest.read_transaction(newest.version)
    operation = None if transaction is None else transaction.operation
    assert isinstance(operation, lance.LanceOperation.Update)
    assert operation.update_mode == "rewrite_columns"


def write_column(table: LanceTable, branch: str) -> None:
    """Give rows 1 and 3 new values through pylance, which writes them in place and names no row."""
    dataset = as_pylance(table, branch)
    given = pa.table({"id": [1, 3], "a": [7, 7]})
    fragment, fields = dataset.get_fragments()[0].update_columns(given, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def upsert_in_place(table: LanceTable, branch: str) -> None:
    """Give the same rows these values by an upsert, which names the rows only where row ids are stable."""
    write_in_place(table, branch, "a", {1: 7, 3: 7})


def values_of(table: LanceTable, branch: str = "main") -> Values:
    """The rows by id that differ from the initial ones."""
    found = as_pylance(table, branch)
    found.validate()
    rows = found.to_table().to_pylist()
    assert len(rows) == len({row["id"] for row in rows})
    gone: Values = dict.fromkeys(set(range(10)) - {row["id"] for row in rows}, ())
    kept: Values = {row["id"]: tuple(value for name, value in row.items() if name != "id") for row in rows}
    return gone | {number: row for number, row in kept.items() if any(row)}


BESIDE: dict[str, tuple[Callable[[LanceTable, str], object], Values]] = {
    "nothing": (lambda table, branch: table.config.set({"k": "v"}, branch=branch), {}),
    "append": (
        lambda table, branch: table.append(pa.table({"id": [20], "a": [1], "b": [1]}), branch=branch),
        {20: (1, 1)},
    ),
    "delete": (lambda table, branch: table.delete("id = 2", branch=branch), {2: ()}),
    "update": (lambda table, branch: table.update({"b": "9"}, where="id = 2", branch=branch), {2: (0, 9)}),
    "in place": (lambda table, branch: write_in_place(table, branch, "a", {2: 8, 7: 8}), {2: (8, 0), 7: (8, 0)}),
    "other column": (lambda table, branch: write_in_place(table, branch, "b", {2: 8}), {2: (0, 8)}),
    "compaction": (lambda table, branch: table.maintenance.compact(branch=branch), {}),
}


@pytest.mark.parametrize("compacted", [None, "main", "run"])
@pytest.mark.parametrize("other", ["main", "run"])
@pytest.mark.parametrize("beside", BESIDE)
def test_other_rows_of_the_fragment_do_not_matter(
    table: LanceTable, beside: str, other: str, compacted: str | None
) -> None:
    """Either side may write in place, and either may be compacted since."""
    did, expected = BESIDE[beside]
    did(table, other)
    write_in_place(table, "run" if other == "main" else "main", "a", {1: 7})
    if compacted is not None:
        table.maintenance.compact(branch=compacted)
    table.merge("run")
    assert {1: (7, 0), **expected} == values_of(table)
    assert not table.maintenance.verify().problems


SAME: dict[str, tuple[Callable[[LanceTable, str], object], Values]] = {
    "delete": (lambda table, branch: table.delete("id = 1", branch=branch), {1: ()}),
    "update": (lambda table, branch: table.update({"a": "9"}, where="id = 1", branch=branch), {1: (9, 0)}),
    "in place": (lambda table, branch: write_in_place(table, branch, "a", {1: 8}), {1: (8, 0)}),
}


@pytest.mark.parametrize("compacted", [None, "main", "run"])
@pytest.mark.parametrize("other", ["main", "run"])
@pytest.mark.parametrize("same", SAME)
def test_the_same_row_is_a_conflict(table: LanceTable, same: str, other: str, compacted: str | None) -> None:
    """The update is not lost to a deletion; a strategy decides between both."""
    did, expected = SAME[same]
    did(table, other)
    one = "run" if other == "main" else "main"
    write_in_place(table, one, "a", {1: 7, 3: 7})
    if compacted is not None:
        table.maintenance.compact(branch=compacted)
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        table.merge("run")
    table.branches.create("again", "main")
    table.merge("run", into="again", strategy="source-wins" if one == "run" else "dest-wins")
    assert {1: (7, 0), 3: (7, 0)} == values_of(table, "again")
    table.merge("run", strategy="source-wins" if other == "run" else "dest-wins")
    assert {**expected, 3: (7, 0)} == values_of(table)


@pytest.mark.parametrize("how", ["update", "in place"])
@pytest.mark.parametrize("other", ["main", "run"])
def test_another_cell_of_the_row_is_no_conflict(table: LanceTable, how: str, other: str) -> None:
    """The row gets the cells of both sides, whichever side wrote in place."""
    write_in_place(table, "run" if other == "main" else "main", "a", {1: 7, 3: 7})
    if how == "update":
        table.update({"b": "9"}, where="id = 1", branch=other)
    else:
        write_in_place(table, other, "b", {1: 9})
    table.merge("run")
    assert {1: (7, 9), 3: (7, 0)} == values_of(table)
    assert not table.maintenance.verify().problems


def test_a_row_that_was_merged_is_not_lost_to_a_deletion(table: LanceTable) -> None:
    """A third branch deletes the row; a row that is written in place again after the merge is kept too."""
    table.branches.create("late")
    write_in_place(table, "run", "a", {1: 7})
    table.merge("run")
    table.delete("id = 1", branch="late")
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        table.merge("late")
    write_in_place(table, "run", "a", {2: 8, 1: 9})
    table.merge("run")
    assert {1: (9, 0), 2: (8, 0)} == values_of(table)
    table.merge("main", into="run")
    assert {1: (9, 0), 2: (8, 0)} == values_of(table, "run")


def test_it_can_be_taken_over_and_back(table: LanceTable) -> None:
    """Only the row changes, although other rows of its fragment were changed meanwhile."""
    write_in_place(table, "run", "a", {1: 7})
    table.update({"b": "9"}, where="id = 2")
    picked = table.cherry_pick("run")
    assert {1: (7, 0), 2: (0, 9)} == values_of(table)
    table.update({"b": "9"}, where="id = 3")
    table.revert(str(picked))
    assert {2: (0, 9), 3: (0, 9)} == values_of(table)
    table.delete("id = 4", branch="run")
    table.revert("run~1", branch="run")
    assert {4: ()} == values_of(table, "run")


@pytest.mark.parametrize("other", ["main", "run"])
def test_a_column_that_is_added_on_the_other_side(table: LanceTable, other: str) -> None:
    """A column is written beside rows of the dest, but updated rows of the source have no values in it."""
    table.columns.add({"more": "id"}, branch=other)
    write_in_place(table, "run" if other == "main" else "main", "a", {1: 7})
    if other == "main":
        with raises(MergeConflictError, units=("column more",)):
            table.merge("run")
    else:
        table.merge("run")
        assert {1: (7, 0, 1)} == {1: values_of(table)[1]}
        assert set(range(10)) == set(table.read(columns=["more"])["more"].to_pylist())


@pytest.mark.parametrize("compacted", [None, "main", "run"])
@pytest.mark.parametrize("other", ["main", "run"])
def test_without_stable_row_ids_a_deletion_in_the_fragment_is_a_conflict(
    tmp_path: Path, other: str, compacted: str | None
) -> None:
    """The deleted row may be one that got a new value; a strategy can accept the deletion."""
    table = made(tmp_path, stable=False)
    table.delete("id = 1", branch=other)
    one = "run" if other == "main" else "main"
    write_in_place(table, one, "a", {1: 7, 3: 7})
    if compacted is not None:
        table.maintenance.compact(branch=compacted)
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)) as caught:
        table.merge("run")
    (conflict,) = caught.value.conflicts
    assert "may have given them new values" in (conflict.source if one == "run" else conflict.dest)
    assert "as far as the history shows without stable row ids" in (conflict.dest if one == "run" else conflict.source)
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
        table.merge("run", strategy="source-wins" if one == "run" else "dest-wins")
    table.merge("run", strategy="source-wins" if other == "run" else "dest-wins")
    assert {1: (), 3: (7, 0)} == values_of(table)


@pytest.mark.parametrize("other", ["main", "run"])
def test_without_stable_row_ids_new_values_of_a_column_that_is_given_up_do_not_matter(
    tmp_path: Path, other: str
) -> None:
    """The deleting side also dropped the column and wins, so no value of the row is lost."""
    table = made(tmp_path, stable=False)
    writer = "run" if other == "main" else "main"
    write_in_place(table, writer, "a", {2: 8, 3: 8})
    table.columns.drop(["a"], branch=other)
    table.delete("id = 2", branch=other)
    table.merge("run", strategy={"column a": "source-wins" if other == "run" else "dest-wins"})
    assert ["id", "b"] == table.schema().names
    assert {2: ()} == values_of(table)


@pytest.mark.parametrize("other", ["main", "run"])
def test_without_stable_row_ids_a_deletion_in_another_fragment_is_none(tmp_path: Path, other: str) -> None:
    """Only rows of the updated fragments may have new values."""
    table = made(tmp_path, stable=False)
    table.delete("id = 7", branch=other)
    write_in_place(table, "run" if other == "main" else "main", "a", {1: 7})
    table.merge("run")
    assert {1: (7, 0), 7: ()} == values_of(table)


def test_without_stable_row_ids_rows_updated_twice_over_a_compaction_are_followed(tmp_path: Path) -> None:
    """The fragment of the second update is not in the merge base."""
    table = made(tmp_path, stable=False)
    table.maintenance.compact(branch="run")
    as_pylance(table, "run").create_scalar_index("id", "BTREE", replace=True)
    write_in_place(table, "run", "a", {1: 7})
    table.maintenance.compact(branch="run")
    table.delete("id = 1")
    with pytest.raises(MergeConflictError):
        table.merge("run")


def _merged_twice(table: LanceTable) -> object:
    table.branches.create("between")
    table.merge("run", into="between")
    return table.merge("between")


def _merged_with_a_column(table: LanceTable) -> object:
    table.columns.add({"more": "0"}, branch="run")
    return table.merge("run")


def _merged_beside_a_column(table: LanceTable) -> object:
    table.columns.add({"more": "0"})
    return table.merge("run")


def _merged_compacted(table: LanceTable) -> object:
    # pylance compacts only fragments that the same indices have.
    as_pylance(table, "run").create_scalar_index("id", "BTREE", replace=True)
    table.maintenance.compact(branch="run")
    assert 1 == len(as_pylance(table, "run").get_fragments())
    return table.merge("run")


def _reverted_back(table: LanceTable) -> object:
    return table.revert(str(table.revert(str(table.cherry_pick("run")))))


PASSED_ON: dict[str, Callable[[LanceTable], object]] = {
    "merge": lambda table: table.merge("run"),
    "squash": lambda table: table.merge("run", mode="squash"),
    "pick": lambda table: table.cherry_pick("run"),
    "reverts of a pick": _reverted_back,
    "two merges": _merged_twice,
    "merge with a column": _merged_with_a_column,
    "merge beside a column": _merged_beside_a_column,
    "compaction and merge": _merged_compacted,
}


@pytest.mark.parametrize("write", [write_column, upsert_in_place])
@pytest.mark.parametrize("how", PASSED_ON)
def test_without_stable_row_ids_a_merge_that_passes_new_values_on_says_so(
    tmp_path: Path, how: str, write: Callable[[LanceTable, str], None]
) -> None:
    """A third branch deletes a row to which the merge brought a new value; the merge itself names no update."""
    table = made(tmp_path, stable=False)
    for name in ("late", "elsewhere"):
        table.branches.create(name)
    write(table, "run")
    PASSED_ON[how](table)
    expected = {number: row[:2] for number, row in values_of(table).items()}
    assert {1: (7, 0), 3: (7, 0)} == {number: row for number, row in expected.items() if any(row)}
    table.delete("id = 1", branch="late")
    with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)) as caught:
        table.merge("late")
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]
    if how != "compaction and merge":
        table.delete("id = 7", branch="elsewhere")
        table.merge("elsewhere")
        table.merge("late", strategy="source-wins")
        assert {1: (), 7: ()} == {number: row for number, row in values_of(table).items() if not row}


@pytest.mark.parametrize("mode", ["merge", "squash"])
def test_without_stable_row_ids_a_merge_of_whole_columns_is_no_update_of_rows(tmp_path: Path, mode: MergeMode) -> None:
    """A deletion on a third branch is kept, as it is where it meets the write of the column itself."""
    table = made(tmp_path, stable=False)
    table.branches.create("late")
    dataset = as_pylance(table, "run")
    given = pa.table({"id": list(range(10)), "a": [7] * 10})
    fragments = [one.update_columns(given, left_on="id", right_on="id")[0] for one in dataset.get_fragments()]
    operation = lance.LanceOperation.Merge(fragments, dataset.lance_schema)
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    table.merge("run", mode=mode)
    table.delete("id = 1", branch="late")
    table.merge("late")
    assert {**dict.fromkeys(range(10), (7, 0)), 1: ()} == values_of(table)


def test_a_record_of_updates_that_names_no_fragment_is_not_relied_on(tmp_path: Path) -> None:
    """Any program can write the property."""
    table = made(tmp_path, stable=False)
    table.update({"b": "9"}, where="id = 7", properties={UPDATED_IN_PLACE: f"x,,77,-1,{'9' * 5000}"})
    table.delete("id = 1", branch="run")
    table.merge("run")
    assert {1: (), 7: (0, 9)} == values_of(table)


@pytest.mark.parametrize("other", ["main", "run"])
def test_a_column_written_without_names_of_rows_does_not_bring_a_deleted_row_back(
    table: LanceTable, other: str
) -> None:
    """With stable row ids the write is one of the column: it is no update that a deletion would contradict."""
    writer = "run" if other == "main" else "main"
    write_column(table, writer)
    table.delete("id = 1", branch=other)
    table.merge("run")
    assert {1: (), 3: (7, 0)} == values_of(table)
