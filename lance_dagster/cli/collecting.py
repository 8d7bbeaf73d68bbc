"""`lance-dagster gc`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import click

from lance_dagster.cli.command import DONE, REFUSED, Answer, about_table, aligned
from lance_dagster.cli.progress import bar
from lance_dagster.gc.retention import duration

if TYPE_CHECKING:
    from lance_dagster.gc.collect import FileCount, GarbageReport
    from lance_dagster.table import LanceTable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_KINDS = {"versions": "manifests of versions that expired before"}
_MANY, _SHOWN = 2, 10


class _Duration(click.ParamType[timedelta]):
    """A duration such as 7d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:  # noqa: ARG002
        """Read the text."""
        return value if isinstance(value, timedelta) else duration(str(value))


@click.command()
@click.option("--older-than", type=_Duration(), help="For how long versions stay, such as 7d, 36h or 2w.")
@click.option("--keep-last", type=click.IntRange(min=1), default=1, help="How many of each branch stay in any case.")
@click.option(
    "--branch",
    "branches",
    metavar="PATTERN=DURATION",
    multiple=True,
    help="Another duration for branches whose names match, such as run/*=2d; may be given again.",
)
@click.option("--grace", type=_Duration(), help="How old a file has to be that no version names.")
@click.option("--dry-run/--delete", default=True, help="Only say what would be deleted (the default), or delete it.")
@click.option("--files", is_flag=True, help="List every file.")
@about_table
def gc(table: "LanceTable", answer: Answer, branches: Sequence[str], *, files: bool, **others: object) -> None:
    """Let old versions of TABLE expire and delete the files that no version names.

    Says what would be done; --delete does it. Without --older-than the rules kept with the table apply, or 14 days.
    Files of versions that expire are deleted by a later call, a day after. Exits with 1 when something cannot be read:
    then nothing is deleted.
    """
    ages = dict(map(_pair, branches))
    with bar() as progress:
        report = table.collect_garbage(branches=ages, progress=progress, **others)  # type: ignore[arg-type]  # click's
    answer.give(_document(report, files=files), list(told(report, files=files)))
    sys.exit(DONE if report.ok else REFUSED)


def _pair(text: str) -> tuple[str, timedelta]:
    pattern, found, age = text.partition("=")
    if not found or not pattern:
        raise click.UsageError("--branch takes PATTERN=DURATION, such as run/*=2d")
    return pattern, duration(age)


def _document(report: "GarbageReport", *, files: bool) -> dict[str, object]:
    document = {"ok": report.ok, **asdict(report), "now": report.now.isoformat()}
    if not files:
        del document["paths"]
    return document


def told(report: "GarbageReport", *, files: bool = False) -> Iterator[str]:
    """Say in lines what a collection did, or would do."""
    for problem in report.problems:
        colour = "red" if problem.severity == "error" else "yellow"
        yield f"{click.style(problem.severity, fg=colour)}: {problem.where}"
        yield f"    {problem.what}"
        yield f"    {problem.right}"
    done = report.done
    if report.kept:
        yield "kept:"
        yield from (f"    {line}" for line in aligned(list(_kept(report.kept))))
    for branch, numbers in report.expired.items():
        yield f"{'expired' if report.expiry_done else 'would expire'}: {', '.join(_spans(branch, numbers))}"
    if report.put_back:
        yield f"needed again: {', '.join(report.put_back)}"
    yield from (f"{'removed' if done else 'would remove'} what is left of branch {name!r}" for name in report.branches)
    yield from _counts("deleted" if done else "would delete", report.garbage)
    yield from _counts("waiting, as only expired versions name them", report.waiting)
    yield from _counts("too young to be told from what is about to be committed", report.young)
    if files:
        yield from (f"    {path}" for path in report.paths)
    yield _together(report)
    yield from _held(report.held)
    if report.dry_run and (report.versions or report.files or report.branches):
        yield "nothing was deleted; --delete does it"


def _together(report: "GarbageReport") -> str:
    versions, files = f"{report.versions:,} versions", f"{report.files:,} files ({_size(report.bytes)})"
    if report.done:
        return f"{versions} and {files} deleted"
    if not report.ok:
        return f"{versions} and {files} could be deleted if everything could be read"
    if report.expiry_done:
        return f"{versions} expired; {files} are left to the next run, as somebody else is at work"
    return f"{versions} and {files} can be deleted"


def _held(held: Mapping[str, int]) -> Iterator[str]:
    """Say which branches keep what nothing else needs, those that keep the most first."""
    many = sorted(((name, count) for name, count in held.items() if count >= _MANY), key=lambda item: -item[1])
    for name, count in many[:_SHOWN]:
        yield f"branch {name!r} alone keeps {count:,} versions: merge it, sync it, or delete it"
    if len(many) > _SHOWN:
        yield f"and so do {len(many) - _SHOWN:,} branches more"


def _kept(versions: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Write versions that follow each other and are kept for the same reasons as one line."""
    for (_, why), group in groupby(versions.items(), lambda item: (item[0].rpartition("@")[0], item[1])):
        names = [version for version, _ in group]
        yield names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", "; ".join(why)


def _counts(title: str, counts: "Mapping[str, FileCount]") -> Iterator[str]:
    if counts:
        yield f"{title}:"
        rows = [(f"{count.files:,} {_KINDS.get(kind, kind)}", _size(count.bytes)) for kind, count in counts.items()]
        yield from (f"    {line}" for line in aligned(rows))


def _spans(branch: str, numbers: Sequence[int]) -> Iterator[str]:
    """Write numbers that follow each other as one span."""
    first = numbers[0]
    for number, following in pairwise((*numbers, None)):
        if following is None or following != (number or 0) + 1:
            yield f"{branch}@{first}" if first == number else f"{branch}@{first} to {branch}@{number}"
            first = following or 0


def _size(count: int) -> str:
    size = float(count)
    for unit in _UNITS:
        if size < _STEP or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _STEP
    return f"{count} B"
