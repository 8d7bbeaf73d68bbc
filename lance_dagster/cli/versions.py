"""`lance-dagster log`, and how versions are shown."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned
from lance_dagster.cli.lanes import Cells, Drawn, draw, width_of
from lance_dagster.cli.named import REF
from lance_dagster.errors import FormatError
from lance_dagster.format.layout import MAIN

if TYPE_CHECKING:
    from datetime import datetime

    from lance_dagster.history.log import LogFilter
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan")
_ID_DIGITS = 10
CUT = "(cut: what it was made from was cleaned up)"


class _Time(click.ParamType["datetime"]):
    """A point in time, as in `main@{time}`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "datetime":
        """Read the text."""
        from lance_dagster.history.resolve import parse_time

        found = parse_time(str(value))
        if isinstance(found, str):
            self.fail(f"cannot read the time {value!r}: expected {found}", param, ctx)
        return found


class _Options(TypedDict):
    """The options of `log` that say which versions to show, and how."""

    begin: str | None
    decorate: bool
    graph: bool
    first_parent: bool | None
    committer: str | None
    message: str | None
    properties: Sequence[str]
    since: "datetime | None"
    until: "datetime | None"


@click.command(epilog="Example: lance-dagster log orders.lance main..run/1 --graph --since '2 days ago'")
@about_table
@click.argument("ref", type=REF, required=False, metavar="[REF | A..B]")
@click.option("--ref", "begin", type=REF, help="The same as REF.")
@click.option("--after", type=REF, metavar="REF", help="Leave out what this version contains.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most so many versions.")
@click.option(
    "--decorate/--no-decorate", default=True, help="Show which branches and tags name a version (the default), or not."
)
@click.option("--graph", is_flag=True, help="Draw which version was made from which.")
@click.option(
    "--first-parent/--all-parents",
    default=None,
    help="What the branch was at each time, or also what was merged into it. The first, unless a graph is drawn.",
)
@click.option("--since", type=_Time(), help="Show versions committed then or later: 2026-01-31, '2 days ago'.")
@click.option("--until", type=_Time(), help="Show versions committed then or earlier.")
@click.option("--committer", help="Show versions of this committer.")
@click.option("--message", help="Show versions whose message contains this, in any case.")
@click.option(
    "--property",
    "properties",
    metavar="KEY[=VALUE]",
    multiple=True,
    help="Show versions with this property; may be given again, and all have to hold.",
)
def log(
    table: "LanceTable",
    answer: Answer,
    ref: str | None,
    after: str | None,
    limit: int | None,
    **options: Unpack[_Options],
) -> None:
    """Show the versions of TABLE, newest first: those REF contains, which is main if not given.

    A..B shows what B contains and A does not. REF is a branch, a tag, or an expression such as main@17 or main~3.
    """
    ref, after = _span(ref, options["begin"], after)
    graph, first_parent, only = options["graph"], options["first_parent"], _filter(options)
    if graph and not first_parent:
        edges = table.log_graph(ref, after=after, limit=limit, only=only)
    else:
        found = table.log(ref, after=after, limit=limit, first_parent=first_parent is not False, only=only)
        edges = [(version, tuple(map(str, found[place : place + 1]))) for place, version in enumerate(found, start=1)]
    documents = [document(version) | ({"below": list(below)} if graph else {}) for version, below in edges]
    lines = []
    if edges and not answer.as_json:
        lines = _rows(table, [version for version, _ in edges], decorate=options["decorate"])
    answer.give(documents, _with_lanes(edges, lines) if graph and lines else lines)


def _span(ref: str | None, begin: str | None, after: str | None) -> tuple[str, str | None]:
    """Return where the log begins, and what it leaves out."""
    from lance_dagster.history.ref_expressions import is_range, parse_range

    if ref is not None and begin is not None:
        raise click.UsageError("give REF, or --ref REF, not both")
    text = ref if ref is not None else begin if begin is not None else MAIN
    if not is_range(text):
        return text, after
    asked = parse_range(text)
    if asked.since_base:
        raise click.UsageError(f"log takes A..B, what B contains and A does not: {asked.left}..{asked.right}")
    if after is not None:
        raise click.UsageError(f"{text} says what to leave out already; take --after away")
    return asked.right, asked.left


def _filter(options: _Options) -> "LogFilter":
    from lance_dagster.history.log import LogFilter

    pairs = [text.partition("=") for text in options["properties"]]
    return LogFilter(
        properties={key: value if found else None for key, found, value in pairs},
        committer=options["committer"],
        message=options["message"],
        since=options["since"],
        until=options["until"],
    )


def shown_time(version: "Version") -> str:
    """Return when a version was committed, to the second, in UTC."""
    return f"{version.committed_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z"


def document(version: "Version") -> dict[str, Any]:
    """Return a version as JSON shows it."""
    return {
        "version": str(version),
        "id": version.id,
        "branch": version.branch,
        "number": version.number,
        "committed_at": version.committed_at.isoformat(),
        "operation": version.operation,
        "rows": version.rows,
        "message": version.message,
        "committer": version.committer,
        "writer": version.writer,
        "parents": list(version.parents),
        "cut": version.cut,
        "properties": dict(version.properties),
        "transaction": version.transaction,
    }


def _rows(table: "LanceTable", found: Sequence["Version"], *, decorate: bool) -> list[str]:
    names = _names(table, found) if decorate else {}
    # Without anybody who said who they are, it would be the same program on every line.
    people = any(version.committer != version.writer for version in found)
    return aligned([_row(version, names.get(str(version), ()), people=people) for version in found])


def _row(version: "Version", names: Iterable[str], *, people: bool) -> tuple[str, ...]:
    said = printable((version.message or "").partition("\n")[0])
    said = f"{said} {CUT}".strip() if version.cut else said
    named = ", ".join(names)
    return (
        str(version),
        version.id[:_ID_DIGITS],
        shown_time(version),
        *((printable(version.committer),) if people else ()),
        version.operation,
        f"{version.rows:,} rows",
        f"({named}) {said}".rstrip() if named else said,
    )


def _names(table: "LanceTable", found: Sequence["Version"]) -> Mapping[str, Sequence[str]]:
    """Return by version the branches whose newest one it is, and the tags that name it.

    Only the branches are looked at that have a version among these: there may be many others.
    """
    names: dict[str, list[str]] = {}
    for branch in dict.fromkeys(version.branch for version in found):
        # By name alone; empty where it was deleted since.
        for newest in table.versions_after(0, branch)[-1:]:
            names.setdefault(f"{branch}@{newest}", []).append(branch)
    with suppress(FormatError):
        # A tag that is damaged is for verify to tell of.
        for tag in sorted(table.tags().values(), key=lambda tag: tag.name):
            names.setdefault(tag.ref, []).append(f"tag {tag.name}")
    return names


def _with_lanes(edges: Sequence[tuple["Version", Sequence[str]]], lines: Sequence[str]) -> list[str]:
    drawn = list(draw([(str(version), below) for version, below in edges]))
    width = max((width_of(each.line) for each in drawn), default=0)
    return [line for each, text in zip(drawn, lines, strict=True) for line in _beside(each, text, width)]


def _beside(drawn: Drawn, text: str, width: int) -> list[str]:
    gap = " " * (width - width_of(drawn.line) + 2)
    return [*map(_painted, drawn.above), f"{_painted(drawn.line)}{gap}{text}", *map(_painted, drawn.below)]


def _painted(cells: Cells) -> str:
    """Return a line with a colour for each lane; the colours are left out where output is no terminal."""
    painted = []
    for place in range(width_of(cells)):
        character, lane = cells.get(place, (" ", 0))
        colour = None if character in " *" else _COLOURS[lane % len(_COLOURS)]
        painted.append(click.style(character, fg=colour) if colour else character)
    return "".join(painted)


def printable(text: str) -> str:
    """Return a text that leaves the terminal as it is, whoever wrote it."""
    return "".join(character if character.isprintable() else " " for character in text)
