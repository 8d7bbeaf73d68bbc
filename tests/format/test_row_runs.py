"""Runs of rows give the same results as arrays with one element for each row, at a cost per run."""

import tracemalloc
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import (
    U64Array,
    decode_row_runs,
    decode_version_runs,
    encode_row_ids,
    encode_row_runs,
    encode_version_runs,
    row_id_range,
    version_run,
)
from lance_dagster.format.row_runs import RowRuns, VersionRuns, bounds, elements

IDS = st.integers(0, 3_000)
OFFSETS = st.sets(st.integers(0, 120)).map(sorted)
HUGE = 2**31
SMALL_MEMORY = 64 * 2**20
"""The bound in bytes; an array of eight bytes for each row would take 256 times as much."""


@st.composite
def maps(draw: st.DrawFn, highest: int = 120) -> dict[int, int]:
    """Maps of positions to distinct numbers, in runs of any length."""
    positions = draw(OFFSETS)
    starts = draw(st.lists(st.booleans(), min_size=len(positions), max_size=len(positions)))
    blocks = [list(range(10 * start, 10 * start + 10)) for start in draw(st.permutations(range(highest // 10 + 1)))]
    numbers = [number for block in blocks for number in block]
    kept = [number for number, cut in zip(numbers, starts, strict=False) if not cut]
    return dict(zip(positions, kept, strict=False))


def runs_of(values: dict[int, int]) -> RowRuns:
    """The map with these elements."""
    return RowRuns.of([(at, 1, first) for at, first in sorted(values.items())]).merged()


def as_dict(runs: RowRuns) -> dict[int, int]:
    """The elements of a map."""
    return dict(zip(elements(runs.positions).tolist(), runs.values().tolist(), strict=True))


def numbers(values: list[int]) -> U64Array:
    """Values as an array."""
    return np.array(values, np.uint64)


@given(maps())
def test_a_map_holds_its_elements(values: dict[int, int]) -> None:
    """A map returns its positions and numbers, in as few runs as possible."""
    runs = runs_of(values)
    assert values == as_dict(runs)
    assert [values[at] for at in sorted(values)] == runs.values().tolist()
    pairs = list(values.items())
    breaks = sum(
        after != (before[0] + 1, before[1] + 1) for before, after in zip(sorted(pairs), sorted(pairs)[1:], strict=False)
    )
    assert len(runs) == (breaks + 1 if values else 0)
    assert min(values.values(), default=None) == runs.smallest
    assert max(values.values(), default=None) == runs.largest


@given(maps(), maps())
def test_numbers_are_looked_up_in_another_map(one: dict[int, int], other: dict[int, int]) -> None:
    """Numbers that are no position of the other map are left out."""
    expected = {at: other[number] for at, number in one.items() if number in other}
    assert expected == as_dict(runs_of(one).through(runs_of(other)))
    kept = {at: number for at, number in one.items() if number in other}
    assert kept == as_dict(runs_of(one).where_in(runs_of(other)))


@given(maps(), OFFSETS)
def test_a_map_is_restricted_inverted_and_packed(values: dict[int, int], offsets: list[int]) -> None:
    """A map is restricted to some positions, inverted, and packed to positions without gaps."""
    runs = runs_of(values)
    assert {at: number for at, number in values.items() if at in offsets} == as_dict(runs.restricted(BitMap(offsets)))
    assert {number: at for at, number in values.items()} == as_dict(runs.inverse())
    assert dict(enumerate(values[at] for at in sorted(values))) == as_dict(runs.packed())


@given(maps())
def test_numbers_of_positions(values: dict[int, int]) -> None:
    """The numbers are in the order of the given positions."""
    asked = sorted(values, reverse=True)
    if asked:
        assert [values[at] for at in asked] == runs_of(values).at_positions(numbers(asked)).tolist()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8))
def test_a_number_that_stands_twice_is_found(ranges: list[tuple[int, int]]) -> None:
    """The result has all repeated numbers, and is empty if every number is unique."""
    runs = RowRuns.sequence(ranges)
    every = [number for start, count in ranges for number in range(start, start + count)]
    again = sorted({number for number in every if every.count(number) > 1})
    assert again == runs.repeated().values().tolist()


@given(OFFSETS | st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 2**18))))
def test_bounds_of_a_bitmap(offsets: list[int] | list[tuple[int, int]]) -> None:
    """The bounds are the first and last position of each run, from which the bitmap can be made again."""
    bitmap = BitMap()
    for item in offsets:
        start, count = item if isinstance(item, tuple) else (item, 1)
        bitmap.add_range(start, start + count)
    first, last = bounds(bitmap)
    assert all(
        bitmap.contains_range(one, other + 1) and one - 1 not in bitmap and other + 1 not in bitmap
        for one, other in zip(first.tolist(), last.tolist(), strict=True)
        if one
    )
    assert bitmap == RowRuns.itself(bitmap).positions


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), max_size=10), OFFSETS)
def test_versions(runs: list[tuple[int, int]], offsets: list[int]) -> None:
    """Versions for each position can be selected, written and read again."""
    expanded = [version for count, version in runs for _ in range(count)]
    versions = VersionRuns.of(runs)
    assert expanded == versions.values().tolist() == versions.merged().values().tolist()
    assert expanded == VersionRuns.of_values(numbers(expanded)).values().tolist()
    picked = [offset for offset in offsets if offset < len(expanded)]
    assert [expanded[offset] for offset in picked] == versions.restricted(BitMap(picked)).packed().values().tolist()
    assert [expanded[offset] for offset in picked] == versions.at_positions(numbers(picked)).tolist()
    written = encode_version_runs(versions)
    assert expanded == decode_version_runs(written, len(expanded), "it").values().tolist()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), max_size=10), OFFSETS, st.integers(4, 6))
def test_versions_are_laid_over_others(runs: list[tuple[int, int]], offsets: list[int], version: int) -> None:
    """The result has the version of the upper map where it has one, and of the lower one elsewhere."""
    below = VersionRuns.of(runs)
    inside = RowRuns.itself(BitMap([offset for offset in offsets if offset < below.rows]))
    above = VersionRuns(inside.at, inside.count, np.full(len(inside), version, np.uint64))
    expected = below.values()
    expected[[offset for offset in offsets if offset < below.rows]] = version
    assert expected.tolist() == below.overlaid(above).values().tolist()


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 5_000)), max_size=6) | st.just([(7, HUGE)]))
def test_runs_are_written_and_read_again(ranges: list[tuple[int, int]]) -> None:
    """Runs of any order are read as written; a row id that occurs twice is refused, as in arrays."""
    runs = RowRuns.sequence(ranges).merged()
    written = encode_row_runs(runs)
    if len(runs.repeated()):
        with pytest.raises(CorruptFileError, match="twice"):
            decode_row_runs(written, runs.rows, "it")
        return
    found = decode_row_runs(written, runs.rows, "it")
    assert (runs.first.tolist(), runs.count.tolist()) == (found.first.tolist(), found.count.tolist())


@given(st.lists(IDS, min_size=1, unique=True) | st.sets(IDS, min_size=1).map(sorted))
def test_the_smallest_encoding_does_not_depend_on_how_ids_are_given(ids: list[int]) -> None:
    """Runs and arrays are written as the same bytes, with at most one range for each run."""
    runs = RowRuns.of_values(numbers(ids))
    assert encode_row_ids(numbers(ids)) == encode_row_runs(runs)
    assert len(encode_row_runs(runs)) <= 24 * len(runs) + 24


@pytest.mark.parametrize("pieces", [1, 2, 1_000])
def test_rows_that_are_claimed_take_no_memory(pieces: int) -> None:
    """Two billion row ids are read, translated, restricted and written with memory for their runs only."""
    each = HUGE // pieces
    ranges = [(2 * number * each, each) for number in range(pieces)]
    starts = [0, *accumulate(count for _, count in ranges)]
    tracemalloc.start()
    written = b"".join(row_id_range(start, count) for start, count in ranges)
    runs = decode_row_runs(written, starts[-1], "it")
    moved = runs.through(RowRuns.of([(0, 2**40, 5)]))
    live = BitMap(range(starts[-1])) - BitMap([3, starts[-1] - 1])
    kept = moved.restricted(live).packed()
    again = decode_row_runs(encode_row_runs(kept), kept.rows, "it")
    versions = decode_version_runs(version_run(starts[-1], 4), starts[-1], "it").restricted(live).packed()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert starts[-1] - 2 == again.rows == versions.rows
    assert pieces + 1 == len(again)
    assert peak < SMALL_MEMORY


def test_positions_at_the_end_of_a_bitmap() -> None:
    """The largest possible row offset can end a run."""
    first, last = bounds(BitMap([0, 1, 2**32 - 2, 2**32 - 1]))
    assert ([0, 2**32 - 2], [1, 2**32 - 1]) == (first.tolist(), last.tolist())


def test_the_largest_number_is_not_followed_by_the_smallest() -> None:
    """64-bit numbers wrap around, but a run does not."""
    assert [1, 1] == RowRuns.of_values(numbers([2**64 - 1, 0])).count.tolist()
