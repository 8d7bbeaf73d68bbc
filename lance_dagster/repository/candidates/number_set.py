"""Sets of the numbers of recorded writes, stored as runs of consecutive numbers.

The writes of a table are numbered from 1 without gaps, and almost all of them are closed sooner or later. So a set of
a million numbers is one run, `[[1, 1000000]]`, and each number that is missing adds one run at most.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberSet:
    """A set of whole numbers from 1 on, as ascending runs `(first, last)` that neither overlap nor touch.

    Examples:
        >>> numbers = NumberSet.of([1, 2, 3, 7])
        >>> numbers.runs
        ((1, 3), (7, 7))
        >>> 2 in numbers, 4 in numbers, numbers.first_gap
        (True, False, 4)
    """

    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "NumberSet":
        """Return the set of some numbers."""
        return cls.of_runs((number, number) for number in numbers)

    @classmethod
    def of_runs(cls, runs: Iterable[Sequence[int]]) -> "NumberSet":
        """Return the set of all numbers in some runs, which may be in any order and overlap.

        Raises:
            ValueError: A run is not a pair `first <= last` of numbers from 1 on.
        """
        joined: list[tuple[int, int]] = []
        for run in sorted(map(_checked, runs)):
            if joined and run[0] <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], run[1]))
            else:
                joined.append(run)
        return cls(tuple(joined))

    def __contains__(self, number: object) -> bool:
        """Return whether a number is in the set."""
        if not isinstance(number, int):
            return False
        place = bisect_right(self.runs, number, key=lambda run: run[0]) - 1
        return place >= 0 and number <= self.runs[place][1]

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in ascending order."""
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        """Return how many numbers the set has."""
        return sum(last - first + 1 for first, last in self.runs)

    def __or__(self, other: "NumberSet") -> "NumberSet":
        """Return the numbers that are in either set."""
        return NumberSet.of_runs([*self.runs, *other.runs])

    def __and__(self, other: "NumberSet") -> "NumberSet":
        """Return the numbers that are in both sets."""
        return self - (self - other)

    def __sub__(self, other: "NumberSet") -> "NumberSet":
        """Return the numbers of this set that are not in the other set."""
        runs = []
        for first, last in self.runs:
            start = first
            for hole_first, hole_last in other.runs:
                if hole_last < start or hole_first > last:
                    continue
                if hole_first > start:
                    runs.append((start, hole_first - 1))
                start = hole_last + 1
            if start <= last:
                runs.append((start, last))
        return NumberSet(tuple(runs))

    @property
    def first_gap(self) -> int:
        """The smallest number from 1 on that is not in the set."""
        return self.runs[0][1] + 1 if self.runs and self.runs[0][0] == 1 else 1


def _checked(run: Sequence[int]) -> tuple[int, int]:
    # `bool` is a subclass of `int`, so JSON's true would pass as 1.
    if len(run) != len(("first", "last")) or any(isinstance(end, bool) or not isinstance(end, int) for end in run):
        raise ValueError(f"{run!r} is not a run of numbers: a pair of whole numbers is expected")
    first, last = run
    if not 1 <= first <= last:
        raise ValueError(f"{run!r} is not a run of numbers: the first is at least 1, and at most the last")
    return first, last
