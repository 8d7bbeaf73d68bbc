"""The share of the long tests that is run: a small part by `make test` and `make test-slow`, all of it by `make soak`.

`make soak` sets two variables of the environment. `LANCE_DAGSTER_SOAK` is the factor by which property tests run longer
than usual. `LANCE_DAGSTER_SEEDS` is `first:number`, the seeds of the random histories. docs/testing.md says which tests
take part.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

T = TypeVar("T")
FACTOR = int(os.environ.get("LANCE_DAGSTER_SOAK", "0"))
"""How many times longer than usual the property tests run; 0 outside of a soak."""
DEEP = FACTOR > 0
"""Whether soundness of tables is checked with every byte of their data files: that starts a process for each check."""
FIRST_SEED, SEEDS = map(int, os.environ.get("LANCE_DAGSTER_SEEDS", "1:5000" if FACTOR else "1:20").split(":"))


def examples(usual: int) -> int:
    """The number of examples of a property test: the usual number, or in a soak a multiple of it."""
    return usual * max(1, FACTOR)


def thinned(values: Iterable[T], *, kept: Callable[[T], bool], label: Callable[[T], str] = str) -> "list[ParameterSet]":
    """The cases of a parametrized test, of which the usual tests are those that are kept.

    Args:
        values: Every case; a tuple stands for as many arguments of the test.
        kept: Says of a case whether it is run outside of a soak too.
        label: Names a case in the report.
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), id=label(value), marks=_marks(kept(value)))
        for value in values
    ]


def _marks(kept: bool) -> "list[pytest.MarkDecorator]":  # noqa: FBT001 - the only argument
    return [] if kept else [pytest.mark.soak]


def every(number: int) -> Callable[[object], bool]:
    """Keep the first of every n cases."""
    seen = iter(range(1 << 62))
    return lambda _: next(seen) % number == 0


def pairs(first: Iterable[object], second: Iterable[object]) -> "list[ParameterSet]":
    """Every pair of two lists, as cases of a parametrized test; each value of either is run outside of a soak."""
    rows, columns = list(first), list(second)
    period = min(len(rows), len(columns))
    return [
        pytest.param(row, column, id=f"{row}-{column}", marks=_marks((i - j) % period == 0))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def results(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """The lines of a table for docs/testing.md: what was run, and what it counted with `record_property`.

    Args:
        reports: Of every test and each of its phases; a test counts as passed when its call did.
    """
    yield "| test | passed | failed | seconds | counted |"
    yield "|---|---|---|---|---|"
    called = [report for report in reports if report.when == "call" or report.failed]
    for name, group in groupby(sorted(called, key=_function), key=_function):
        done = list(group)
        counted: Counter[str] = Counter()
        for report in done:
            counted.update({what: times for what, times in report.user_properties if isinstance(times, int)})
        passed, seconds = sum(report.passed for report in done), sum(report.duration for report in done)
        told = ", ".join(f"{what}: {times:,}" for what, times in counted.most_common())
        yield f"| `{name}` | {passed:,} | {sum(report.failed for report in done):,} | {seconds:,.0f} | {told} |"


def _function(report: pytest.TestReport) -> str:
    return report.nodeid.partition("[")[0].removeprefix("tests/")
