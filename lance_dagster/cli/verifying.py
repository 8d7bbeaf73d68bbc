"""`lance-dagster verify`."""

import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lance_dagster.cli.command import DONE, REFUSED, Answer, about_table
from lance_dagster.cli.named import REF
from lance_dagster.cli.progress import bar

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable, VerifyReport


@click.command()
@click.option("--ref", type=REF, help="Look at one version only: a branch, a tag or an expression such as main@17.")
@click.option("--deep", is_flag=True, help="Read every data file instead of comparing its size.")
@about_table
def verify(table: "LanceTable", answer: Answer, ref: str | None, *, deep: bool) -> None:
    """Look for damage in every version, file and name of TABLE.

    Says where something is wrong, what, and what would be right. Exits with 1 when there is an error; warnings do not
    count. Nothing is written.
    """
    with bar() as progress:
        report = table.verify(ref, deep=deep, progress=progress)
    answer.give({"ok": report.ok, **asdict(report)}, _lines(report))
    sys.exit(DONE if report.ok else REFUSED)


def _lines(report: "VerifyReport") -> list[str]:
    lines = []
    for problem in report.problems:
        colour = "red" if problem.severity == "error" else "yellow"
        lines += [
            f"{click.style(problem.severity, fg=colour)}: {problem.where}",
            f"    {problem.what}",
            f"    right: {problem.right}",
        ]
    lines += [f"note: not there, as clean-up leaves it: {gap}" for gap in report.gaps]
    counts = Counter(problem.severity for problem in report.problems)
    looked_at = ", ".join(
        _count(number, what)
        for number, what in (
            (report.versions, "version"),
            (report.branches, "branch"),
            (report.tags, "tag"),
            (report.fragments, "fragment"),
            (report.data_files, "data file"),
            (report.deletion_files, "deletion file"),
            (report.index_files, "index file"),
        )
    )
    read = f", {_count(report.files_read, 'data file')} read whole" if report.files_read else ""
    verdict = f"{_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')}"
    return [*lines, f"{verdict}; looked at {looked_at}{read}"]


def _count(number: int, what: str) -> str:
    plural = "branches" if what == "branch" else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"
