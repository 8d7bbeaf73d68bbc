"""Addresses in the merge base, and keys of rows that it does not have, from small runs."""

import pytest
from pyroaring import BitMap

from lance_dagster.format.row_runs import RowRuns
from lance_dagster.merge.rules.row_origins import (
    NO_ORIGINS,
    OFFSET_BITS,
    Absence,
    AbsentRows,
    BaseKey,
    Origins,
    fragments_named,
    in_order,
    offsets_in_base,
)

LARGEST = 2**32 - 1
DELETED, SHARED = AbsentRows(Absence.DELETED, 0), AbsentRows(Absence.SHARED, 0)
FOUR_ROWS = Origins(
    base=RowRuns.of([(0, 2, (7 << OFFSET_BITS) + 4)]),
    deleted=RowRuns.of([(2, 1, 11)]),
    shared=RowRuns.of([(3, 1, 11)]),
)
"""Two rows of fragment 7, and two rows with equal row ids that the base lacks for different reasons."""


def offsets(found: dict[BaseKey, BitMap]) -> dict[BaseKey, list[int]]:
    """Return sets of offsets as lists."""
    return {key: list(rows) for key, rows in found.items()}


def test_rows_that_the_base_does_not_have_are_told_from_those_of_a_fragment() -> None:
    """The three maps are separate, even for equal numbers."""
    assert {7: [4, 5], DELETED: [11], SHARED: [11]} == offsets(FOUR_ROWS.in_base())


@pytest.mark.parametrize("number", [0, 2**30, 2**30 + 2**29, LARGEST])
def test_every_fragment_id_is_one_of_the_base(number: int) -> None:
    """No fragment id has another meaning."""
    origins = Origins(base=RowRuns.of([(0, 3, number << OFFSET_BITS)]))
    assert {number: [0, 1, 2]} == offsets(origins.in_base())
    assert [number] == fragments_named(origins.base)


def test_row_ids_are_cut_into_blocks() -> None:
    """An offset has 32 bits, so a run of row ids across a multiple of 2**32 has two keys."""
    origins = Origins(shared=RowRuns.of([(0, 4, 2**32 - 2)]))
    first, second = AbsentRows(Absence.SHARED, 0), AbsentRows(Absence.SHARED, 1)
    assert {first: [LARGEST - 1, LARGEST], second: [0, 1]} == offsets(origins.in_base())


def test_some_rows_only() -> None:
    """Restricting origins leaves out the other rows of all three maps."""
    assert {7: [5], SHARED: [11]} == offsets(FOUR_ROWS.restricted(BitMap([1, 3])).in_base())
    assert {7: [4]} == offsets(Origins(base=FOUR_ROWS.base).restricted(BitMap([0])).in_base())
    assert {} == FOUR_ROWS.restricted(BitMap([9])).in_base()


def test_positions_are_those_of_all_three_maps() -> None:
    """A row may have its origin in any of the three maps."""
    assert [0, 1, 2, 3] == list(FOUR_ROWS.positions)
    assert (3, 0) == (len(FOUR_ROWS), len(NO_ORIGINS))


def test_rows_by_their_offsets_in_the_base() -> None:
    """Each key has the positions here, ordered by the offsets in the base."""
    by_key = FOUR_ROWS.by_key()
    assert [0, 1] == by_key[7].values().tolist()
    assert [2] == by_key[DELETED].values().tolist()
    assert [3] == by_key[SHARED].values().tolist()


def test_the_same_row_in_another_fragment() -> None:
    """A row is matched by its origin; an equal number in another map is another row."""
    other = Origins(base=RowRuns.of([(5, 1, (7 << OFFSET_BITS) + 5)]), shared=RowRuns.of([(6, 1, 11)]))
    found = FOUR_ROWS.found_in(other)
    assert {1: 5, 3: 6} == dict(zip(found.positions, found.values().tolist(), strict=True))
    assert {7: [4], DELETED: [11]} == offsets(FOUR_ROWS.without(other).in_base())


def test_the_order_of_keys() -> None:
    """Fragments come first, in the order of their ids."""
    keys: list[BaseKey] = [SHARED, 9, AbsentRows(Absence.DELETED, 1), 2, DELETED]
    assert [2, 9, DELETED, AbsentRows(Absence.DELETED, 1), SHARED] == in_order(keys)


def test_offsets_of_addresses() -> None:
    """Addresses are grouped by their fragments, in any order."""
    addresses = RowRuns.of([(0, 1, (3 << OFFSET_BITS) + 1), (1, 2, 5), (3, 1, 3 << OFFSET_BITS)])
    assert {0: [5, 6], 3: [0, 1]} == {number: list(rows) for number, rows in offsets_in_base(addresses).items()}
