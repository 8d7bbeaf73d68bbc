"""What is repeated, how often and for how long, and how long the pauses are."""

from itertools import count

import pytest

from lance_dagster.errors import CommitConflictError, InvalidInputError, LanceDagsterError, StoreError
from lance_dagster.store.retries import Pauses, is_retryable_conflict, repeated


class Failing:
    """Fails some times, and then returns the number of its calls."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self) -> int:
        """Fail or return."""
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls


def is_of_the_store(error: LanceDagsterError) -> bool:
    """Whether the storage failed."""
    return isinstance(error, StoreError)


def test_the_result_of_the_first_success_is_returned() -> None:
    """Nothing is called again after it."""
    failing = Failing(2, StoreError("lost"))
    assert 3 == repeated(failing, is_of_the_store, times=5)
    assert 3 == failing.calls


@pytest.mark.parametrize("times", [1, 5])
def test_the_last_error_is_raised(times: int) -> None:
    """After so many calls the error of the last one is raised as it is."""
    failing = Failing(9, StoreError("lost"))
    with pytest.raises(StoreError) as caught:
        repeated(failing, is_of_the_store, times=times)
    assert caught.value is failing.error
    assert times == failing.calls


@pytest.mark.parametrize("error", [InvalidInputError("wrong"), ValueError("of another package")])
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    """A call that cannot help is not made."""
    failing = Failing(9, error)
    with pytest.raises(type(error)):
        repeated(failing, is_of_the_store, times=5)
    assert 1 == failing.calls


def test_time_is_a_limit_too() -> None:
    """One call is made when there is no time at all."""
    failing = Failing(9, StoreError("lost"))
    with pytest.raises(StoreError):
        repeated(failing, is_of_the_store, seconds=-1)
    assert 1 == failing.calls


def test_pauses_grow_to_their_limit() -> None:
    """Each is below a limit that doubles, after any number of attempts; they differ."""
    pauses = Pauses(first=0.1, longest=10)
    drawn = [max(pauses.drawn(attempt) for _ in range(200)) for attempt in (0, 1, 3, 7, 5000)]
    limits = [0.1, 0.2, 0.8, 10, 10]
    assert all(limit / 2 < longest <= limit for longest, limit in zip(drawn, limits, strict=True))


def test_conflicts_are_retried_where_that_can_help() -> None:
    """The error says so itself."""
    numbers = count()
    conflicts = [CommitConflictError(f"main@{next(numbers)}", "main@2", retryable) for retryable in (True, False)]
    assert [True, False] == [is_retryable_conflict(conflict) for conflict in conflicts]
    assert not is_retryable_conflict(StoreError("lost"))
