"""Sets of numbers behave like Python's sets of integers."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from lance_dagster.repository.candidates.number_set import NumberSet

SETS = st.sets(st.integers(1, 30))


@given(SETS, SETS)
def test_operations_are_those_of_sets(left: set[int], right: set[int]) -> None:
    """Membership, union, difference, size and order agree with Python's sets."""
    first, second = NumberSet.of(left), NumberSet.of(right)
    assert sorted(left | right) == list(first | second)
    assert sorted(left - right) == list(first - second)
    assert [number in left for number in range(32)] == [number in first for number in range(32)]
    assert len(left) == len(first)


@given(SETS)
def test_equal_sets_have_equal_runs(numbers: set[int]) -> None:
    """A set has one form, whatever runs it was made of; runs neither overlap nor touch."""
    runs = NumberSet.of(numbers).runs
    assert runs == NumberSet.of_runs(reversed(runs)).runs
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(runs))


@given(SETS)
def test_the_first_gap_is_the_smallest_missing_number(numbers: set[int]) -> None:
    """The first gap is not in the set, and all smaller numbers are."""
    assert min({*range(1, 33)} - numbers) == NumberSet.of(numbers).first_gap


@pytest.mark.parametrize("run", [(2, 1), (0, 1), (1,), (1, 2, 3), (1, True), ("1", "2"), (1.0, 2.0)])
def test_a_malformed_run_is_refused(run: tuple[int, ...]) -> None:
    """A run is a pair of whole numbers from 1 on, in order."""
    with pytest.raises(ValueError, match="is not a run of numbers"):
        NumberSet.of_runs([run])
