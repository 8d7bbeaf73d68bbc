"""Rows that both sides changed, compared for equal values."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from lance_dagster.format.model import Field
from lance_dagster.format.transaction import Update
from lance_dagster.merge.rules.columns.schema_merge import merge_schemas
from lance_dagster.merge.rules.merge_input import AddressedRows, MergeInput
from lance_dagster.merge.rules.merge_side import MOST_ROWS_COMPARED, sides_of
from lance_dagster.merge.rules.row_decisions import equally_updated_rows, only_moved_rows
from lance_dagster.merge.rules.strategy import ParsedStrategy
from tests.merge.rules.literal_merges import BASE, ID, fragment, manifest, merge_input, side

Asked = list[tuple[list[int], list[int], dict[int, int]]]


class Comparison:
    """A comparison that finds the first few rows equal, and records its arguments."""

    def __init__(self, equal: int) -> None:
        """Take the number of equal rows."""
        self.equal = equal
        self.asked: Asked = []

    def __call__(
        self, source: AddressedRows, dest: AddressedRows, matched: Mapping[int, int]
    ) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Compare rows."""
        self.asked.append((source[1].tolist(), dest[1].tolist(), dict(matched)))
        return np.arange(len(source[1])) < self.equal


def updates(source: list[int], dest: list[int], equal: int, rows: int = 4) -> tuple[Comparison, MergeInput]:
    """Both sides update rows of the merge base, given by their row ids, into fragment 1."""
    base = BASE if rows == 4 else manifest(fragment(0, "base.lance", range(rows)), next_row_id=rows)
    states = [
        manifest(
            fragment(0, "base.lance", range(rows), deleted=ids),
            fragment(1, f"{name}.lance", ids, updated_at=3),
            next_row_id=rows,
        )
        for name, ids in (("run", source), ("main", dest))
    ]
    histories = [side(name, state, Update(), base=base) for name, state in zip(("run", "main"), states, strict=True)]
    comparison = Comparison(equal)
    return comparison, merge_input(*histories, base=base, equal_rows=comparison)


def found(given: MergeInput) -> dict[object, list[int]]:
    """The rows that both updated to the same values."""
    source, dest = sides_of(given)
    schema = merge_schemas(source, dest, ParsedStrategy.NONE)
    return {key: list(rows) for key, rows in equally_updated_rows(source, dest, schema, [0]).items()}


@pytest.mark.parametrize("equal,expected", [(0, {}), (1, {0: [1]}), (2, {0: [1, 2]})])
def test_rows_with_equal_values_are_found(equal: int, expected: dict[object, list[int]]) -> None:
    """Rows are given by their positions on each side, in the order of the merge base."""
    comparison, given = updates([2, 0, 1], [1, 2, 3], equal)
    assert expected == found(given)
    assert [([(1 << 32) + 2, 1 << 32], [1 << 32, (1 << 32) + 1], {0: 0, 1: 1})] == comparison.asked


def test_nothing_is_read_where_both_updated_other_rows() -> None:
    """Only rows that both sides updated are compared."""
    comparison, given = updates([0, 1], [2, 3], 9)
    assert ({}, []) == (found(given), comparison.asked)


@pytest.mark.parametrize("more", [0, 1])
def test_the_number_of_rows_read_is_bounded(more: int) -> None:
    """Above the limit no row is compared, and all conflict."""
    rows = MOST_ROWS_COMPARED + more
    comparison, given = updates(list(range(rows)), list(range(rows)), 1, rows=rows + 1)
    assert ({} if more else {0: [0]}, 1 - more) == (found(given), len(comparison.asked))


def test_rows_beside_a_cast_are_not_compared() -> None:
    """A cast gives the column another id, so the comparison would omit its values."""
    comparison, given = updates([1], [1], 1)
    fields = (ID, Field(id=2, name="amount", logical_type="double"))
    dest = replace(given.dest, manifest=replace(given.dest.manifest, fields=fields))
    assert ({}, []) == (found(replace(given, dest=dest)), comparison.asked)


def by_stamps(given: MergeInput) -> MergeInput:
    """The same merge with a source whose versions do not show which rows they updated."""
    return replace(given, source=replace(given.source, anchor=None, same_ids=False))


def only_moved(given: MergeInput) -> list[dict[object, list[int]]]:
    """The rows that a side seems to have updated, but that have their old values."""
    sides = sides_of(given)
    return [
        {key: list(rows) for key, rows in only_moved_rows(side, other, [0]).items()}
        for side, other in (sides, sides[::-1])
    ]


def test_rows_with_the_values_of_the_base_were_only_moved() -> None:
    """Rows that the other side changed too are compared with the merge base, and no other row is read."""
    comparison, given = updates([2, 0, 1], [1, 2, 3], 1)
    assert [{0: [1]}, {}] == only_moved(by_stamps(given))
    assert [([1, 2], [(1 << 32) + 2, 1 << 32], {0: 0, 1: 1})] == comparison.asked


def test_rows_are_not_compared_with_the_base_where_versions_show_the_updates() -> None:
    """In most merges the versions show the updates, so no row is read for it."""
    comparison, given = updates([0, 1], [0, 1], 9)
    assert ([{}, {}], []) == (only_moved(given), comparison.asked)


def test_the_number_of_rows_compared_with_the_base_is_bounded() -> None:
    """Above the limit no row is compared, and all count as updated."""
    rows = MOST_ROWS_COMPARED + 1
    comparison, given = updates(list(range(rows)), list(range(rows)), rows, rows=rows + 1)
    assert ([{}, {}], []) == (only_moved(by_stamps(given)), comparison.asked)
