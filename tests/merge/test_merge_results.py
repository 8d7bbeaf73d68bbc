"""What merges, picks, reverts and restores report."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable, WriteResult
from tests.table_factory import entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """The values 1 to 5 on `main`, 6 and 7 beside them; on `run` 1 and 2 are deleted, 3 is updated and 8 added."""
    table = new_table(tmp_path, entries("a", 1, 2, 3), entries("b", 4, 5))
    table.branches.create("run")
    table.delete("value < 3", branch="run")
    table.update({"key": "'c'"}, where="value = 3", branch="run")
    table.append(entries("d", 8), branch="run")
    table.append(entries("b", 6, 7))
    return table


@pytest.mark.parametrize(
    "counts, write",
    [
        ((1, 2, 1), lambda table: table.merge("run")),
        ((1, 2, 1), lambda table: table.merge("run", mode="squash")),
        ((2, 0, 0), lambda table: table.branches.sync("run")),
        ((0, 0, 1), lambda table: table.cherry_pick("run~1")),
        ((0, 2, 0), lambda table: table.revert("main")),
        ((2, 0, 0), lambda table: table.revert("run~2", branch="run")),
        ((0, 0, 1), lambda table: table.revert("run~1", branch="run")),
        ((0, 2, 0), lambda table: table.restore("main~1")),
        ((0, 4, 0), lambda table: table.restore("main~2")),
        ((2, 1, 1), lambda table: table.restore("main@3", branch="run")),
        ((0, 1, 1), lambda table: table.restore("run~2", branch="run")),
    ],
)
def test_a_merge_counts_the_rows_that_it_changes(
    table: LanceTable, counts: tuple[int, int, int], write: Callable[[LanceTable], WriteResult]
) -> None:
    """The result counts rows as the dest sees them, which add up to the rows of the version."""
    result = write(table)
    before = table.at(f"{result}^")
    assert counts == (result.rows_added, result.rows_deleted, result.rows_updated)
    assert before.rows + result.rows_added - result.rows_deleted == result.rows == table.count_rows(result)


def test_a_merge_counts_the_rows_of_its_preview(table: LanceTable) -> None:
    """The preview and the result use the same words."""
    preview = table.preview_merge("run")
    assert preview.ok
    counts = preview.rows_added, preview.rows_deleted, preview.rows_updated
    result = table.merge("run")
    assert counts == (result.rows_added, result.rows_deleted, result.rows_updated)
    assert f"{result}: 1 row added, 2 deleted, 1 updated" == result.summary


def test_a_merge_names_the_columns_that_it_changes(table: LanceTable) -> None:
    """A merge that changes columns and no row is not summed up as one without a change."""
    table.branches.create("wide")
    table.columns.add({"twice": "value * 2"}, branch="wide")
    table.columns.rename("value", "amount", branch="wide")
    merged = table.merge("wide")
    assert (("amount", "twice"), f"{merged}: changed columns: amount, twice") == (
        merged.columns_changed,
        merged.summary,
    )
    undone = table.revert(merged, parent=1)
    assert f"{undone}: changed columns: value, twice" == undone.summary


def test_a_merge_that_finds_nothing_to_do_counts_no_row(table: LanceTable) -> None:
    """The version that has the change already is returned, with counts of 0."""
    merged = table.merge("run")
    for again in (table.merge("run"), table.cherry_pick("main", parent=1), table.restore("main")):
        assert f"{merged}: no rows changed" == again.summary
    undone = table.revert("main", parent=1)
    assert f"{undone}: no rows changed" == table.revert(merged, parent=1).summary


def test_a_restore_to_a_version_with_other_columns_counts_its_rows(table: LanceTable) -> None:
    """Columns that are there again are no change of rows; values that were written anew are."""
    table.columns.add({"twice": "value * 2"})
    assert (0, 0, 0) == tuple(table.restore("main~1").counts.values())
    table.update({"value": "value + 1"}, where="value > 5")
    assert (0, 0, 2) == tuple(table.restore("main~1").counts.values())


def test_a_restore_of_a_version_that_cannot_be_read_counts_all_rows(table: LanceTable) -> None:
    """A restore is the way back from a damaged version, so it must not need the files of that version."""
    table.delete("value = 1")
    (deletions,) = (Path(table.uri) / "_deletions").iterdir()
    deletions.unlink()
    result = LanceTable.open(table.uri).restore("main~1")
    assert (7, 6, 0) == tuple(result.counts.values())
    assert 7 == table.read().num_rows
