"""A merge needs memory for fragments and changed rows, not for the rows of a fragment that is added as a whole."""

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
"""The number of rows that a manifest claims for a fragment."""
SMALL_MEMORY = 64 * 2**20
"""The bound in bytes: a 32nd of a byte for each claimed row, which is enough for bitmaps of ranges."""


def claiming(manifest: Manifest, more: int) -> Manifest:
    """The same version with `more` additional new rows in its newest fragment."""
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
    """Append two rows to a branch, and change its manifest to claim two billion.

    The data file has two rows. Nothing that is measured here reads it.
    """
    table.append(entries("r", 1, 2), branch=branch)
    folder = Path(table.uri, layout.branch_root(branch), layout.VERSIONS)
    newest = min(folder.glob("*.manifest"))
    manifest, transaction = decode_manifest_file(newest.read_bytes(), str(newest))
    assert transaction is not None
    newest.write_bytes(encode_manifest_file(claiming(manifest, CLAIMED - 2), encode_transaction(transaction)))


def peak(run: Callable[[], object]) -> int:
    """The maximum number of bytes that a call allocates at a time, including NumPy's."""
    tracemalloc.start()
    run()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def with_a_huge_branch(tmp_path: Path) -> LanceTable:
    """A table with a branch `run` that appended a fragment with two billion claimed rows."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    with_claimed_rows(table, "run")
    return LanceTable.open(table.uri)


@pytest.mark.parametrize("moved", [False, True], ids=["main stays", "main moves"])
def test_a_merge_of_appended_rows_costs_no_element_for_each(tmp_path: Path, *, moved: bool) -> None:
    """All rows of the fragment are in the result, under ids that main gives."""
    table = with_a_huge_branch(tmp_path)
    if moved:
        table.append(entries("m", 5))
        table.delete("value = 1")
    rows = table.count_rows()
    assert peak(lambda: table.merge("run")) < SMALL_MEMORY
    assert rows + CLAIMED == table.count_rows()


def test_a_preview_of_appended_rows_costs_no_element_for_each(tmp_path: Path) -> None:
    """The preview counts the rows."""
    table = with_a_huge_branch(tmp_path)
    found = []
    assert peak(lambda: found.append(table.preview_merge("run"))) < SMALL_MEMORY
    assert [CLAIMED] == [one.rows_added for one in found]


def test_a_revert_of_appended_rows_costs_no_element_for_each(tmp_path: Path) -> None:
    """The fragment is removed as a whole."""
    table = with_a_huge_branch(tmp_path)
    merged = table.merge("run")
    assert peak(lambda: table.revert(str(merged), parent=1)) < SMALL_MEMORY
    assert 4 == table.count_rows()


def test_a_content_id_costs_no_element_for_each_row(tmp_path: Path) -> None:
    """Row ids are part of the content id by their runs."""
    table = with_a_huge_branch(tmp_path)
    assert peak(lambda: table.maintenance.content_id("run")) < SMALL_MEMORY


def test_rows_of_few_fragments_are_merged_among_huge_ones(tmp_path: Path) -> None:
    """The deletion of one row needs only that row, whatever else the table has."""
    table = with_a_huge_branch(tmp_path)
    table.branches.create("second")
    table.delete("value = 3", branch="second")
    table.merge("run")
    assert peak(lambda: table.merge("second")) < SMALL_MEMORY
    assert CLAIMED + 3 == table.count_rows()


def test_a_diff_of_appended_rows_costs_no_element_for_each(tmp_path: Path) -> None:
    """The rows are not read, because their row ids show that they are new."""
    table = with_a_huge_branch(tmp_path)
    table.delete("value = 3")
    found = []
    assert peak(lambda: found.append(table.diff("main", "run").stat())) < SMALL_MEMORY
    assert peak(lambda: found.append(table.diff("main", "run", since_base=True).stat())) < SMALL_MEMORY
    assert [(CLAIMED + 1, 0, 0), (CLAIMED, 0, 0)] == [(one.added, one.removed, one.changed) for one in found]


def test_rows_of_huge_fragments_are_removed_as_ranges(tmp_path: Path) -> None:
    """One diff goes back to the merge base, and one lacks a single row of the fragment."""
    table = with_a_huge_branch(tmp_path)
    table.merge("run")
    before = table.head()
    found = []
    table.revert("main", parent=1)
    assert peak(lambda: found.append(table.diff(before, "main").stat())) < SMALL_MEMORY
    assert [(0, CLAIMED)] == [(one.added, one.removed) for one in found]
