"""What a merge holds in memory: fragments and changed rows, never the rows of a fragment that came as a whole."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.format import layout
from lance_dagster.format.codec import (
    decode_manifest_file,
    encode_manifest_file,
    encode_transaction,
    row_id_range,
    version_run,
)
from lance_dagster.format.model import Manifest
from tests.table_factory import entries, new_table

CLAIMED = 2**31
"""Rows that a manifest claims a fragment has."""
SMALL_MEMORY = 64 * 2**20
"""Bytes: a thirty-second part of a byte for each claimed row, and enough for bitmaps of ranges."""


def claiming(manifest: Manifest, more: int) -> Manifest:
    """The same version with `more` rows in its newest fragment, all of them new."""
    newest = manifest.fragments[len(manifest.fragments) - 1]
    first = manifest.next_row_id - newest.physical_rows
    rows = newest.physical_rows + more
    claimed = replace(
        newest,
        physical_rows=rows,
        row_ids=row_id_range(first, rows),
        created_at=version_run(rows, manifest.version),
        updated_at=version_run(rows, manifest.version),
    )
    fragments = manifest.fragments.changed((), {newest.id: claimed})
    return replace(manifest, fragments=fragments, next_row_id=first + rows)


def with_claimed_rows(table: LanceTable, branch: str) -> None:
    """Append two rows to a branch, and say in its manifest that they are two billion.

    The data file has two rows. Nothing that is measured here reads it.
    """
    table.append(entries("r", 1, 2), branch=branch)
    folder = Path(table.uri, layout.branch_root(branch), layout.VERSIONS)
    newest = min(folder.glob("*.manifest"))
    manifest, transaction = decode_manifest_file(newest.read_bytes(), str(newest))
    assert transaction is not None
    newest.write_bytes(encode_manifest_file(claiming(manifest, CLAIMED - 2), encode_transaction(transaction)))


def peak(run: Callable[[], object]) -> int:
    """Bytes that something allocates at most at a time, those of NumPy included."""
    tracemalloc.start()
    run()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def with_a_huge_branch(tmp_path: Path) -> LanceTable:
    """A table whose branch `run` appended a fragment that claims two billion rows."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    with_claimed_rows(table, "run")
    return LanceTable.open(table.uri)


@pytest.mark.parametrize("moved", [False, True], ids=["main stays", "main moves"])
def test_a_merge_of_appended_rows_costs_no_element_for_each(tmp_path: Path, *, moved: bool) -> None:
    """However many rows a fragment has; each of them is in the result, under an id that main gives."""
    table = with_a_huge_branch(tmp_path)
    if moved:
        table.append(entries("m", 5))
        table.delete("value = 1")
    rows = table.count_rows()
    assert peak(lambda: table.merge("run")) < SMALL_MEMORY
    assert rows + CLAIMED == table.count_rows()


def test_a_preview_of_appended_rows_costs_no_element_for_each(tmp_path: Path) -> None:
    """It counts them all the same."""
    table = with_a_huge_branch(tmp_path)
    found = []
    assert peak(lambda: found.append(table.preview_merge("run"))) < SMALL_MEMORY
    assert [CLAIMED] == [one.rows_added for one in found]


def test_a_revert_of_appended_rows_costs_no_element_for_each(tmp_path: Path) -> None:
    """The fragment goes as it came."""
    table = with_a_huge_branch(tmp_path)
    merged = table.merge("run")
    assert peak(lambda: table.revert(str(merged), parent=1)) < SMALL_MEMORY
    assert 4 == table.count_rows()


def test_a_content_id_costs_no_element_for_each_row(tmp_path: Path) -> None:
    """Row ids are part of it by their runs."""
    table = with_a_huge_branch(tmp_path)
    assert peak(lambda: table.maintenance.content_id("run")) < SMALL_MEMORY


def test_rows_of_few_fragments_are_merged_among_huge_ones(tmp_path: Path) -> None:
    """An update of one row of a fragment, which names that row alone, whatever else the table has."""
    table = with_a_huge_branch(tmp_path)
    table.branches.create("second")
    table.delete("value = 3", branch="second")
    table.merge("run")
    assert peak(lambda: table.merge("second")) < SMALL_MEMORY
    assert CLAIMED + 3 == table.count_rows()


def test_a_diff_of_appended_rows_costs_no_element_for_each(tmp_path: Path) -> None:
    """Nor does it read one: that they are new is told by their row ids."""
    table = with_a_huge_branch(tmp_path)
    table.delete("value = 3")
    found = []
    assert peak(lambda: found.append(table.diff("main", "run").stat())) < SMALL_MEMORY
    assert peak(lambda: found.append(table.diff("main", "run", since_base=True).stat())) < SMALL_MEMORY
    assert [(CLAIMED + 1, 0, 0), (CLAIMED, 0, 0)] == [(one.added, one.removed, one.changed) for one in found]


def test_rows_of_huge_fragments_are_removed_as_ranges(tmp_path: Path) -> None:
    """A diff back to the merge base, and one in which a single row of the fragment is gone."""
    table = with_a_huge_branch(tmp_path)
    table.merge("run")
    before = table.head()
    found = []
    table.revert("main", parent=1)
    assert peak(lambda: found.append(table.diff(before, "main").stat())) < SMALL_MEMORY
    assert [(0, CLAIMED)] == [(one.added, one.removed) for one in found]
