"""Check that the page of figures is what its program writes."""

import pytest

from benchmarks.__main__ import INTRODUCTION
from benchmarks.cases import CASES
from benchmarks.figures import PAGE, Goal, Run, Table, load, page, quantity

RUN = Run(date="2026-01-31", commit="1234567890ab", machine="2 cores", python="3.11.7", pylance="14.0.2")


def test_the_page_is_that_of_the_stored_figures() -> None:
    """`python -m benchmarks --page` writes what is committed, and nobody edits it."""
    assert page(CASES, load(), INTRODUCTION) == PAGE.read_text()


def test_every_case_has_its_plot() -> None:
    """A case with figures and a plot has the file that the page shows."""
    assert [] == [case.name for case in CASES if case.plot and case.name in load() and not case.plot_file.exists()]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2.17 s", 2170.0),
        ("0.28 ms", 0.28),
        ("1,424", 1424.0),
        ("+9.2%", 9.2),
        ("276 MiB", 276.0),
        ("3 for all", None),
        ("", None),
    ],
)
def test_quantities_of_cells(text: str, expected: float | None) -> None:
    """Times are comparable whatever their unit; a cell without a figure has no quantity."""
    assert expected == quantity(text)


def test_missed_goals_are_named() -> None:
    """A goal is judged in the rows that it is for; goals of a row are speeds, or times that may not be exceeded."""
    rows = (("8 writers", "", "1.4"), ("16 writers", "", "1.5"), ("1 writer", "", "1.0"))
    table = Table(run=RUN, columns=("writers", "goal", "ratio"), rows=rows)
    assert ["8 writers (1.4)"] == [*Goal(column="ratio", least=1.5, rows="(8|16) .*").missed(table)]
    queries = (("wide", "1.6", "0.78"), ("narrow", "0.8", "0.92"))
    counts = (("count", "1.5 s", "62 ms"), ("late", "1.5 s", "1.6 s"))
    table = Table(run=RUN, columns=("query", "goal", "read"), rows=(*queries, *counts))
    assert ["wide (0.78)", "late (1.6 s)"] == [*Goal(column="read").missed(table)]
