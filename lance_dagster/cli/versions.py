"""`lance-dagster log` and `show`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned
from lance_dagster.cli.lanes import Cells, Drawn, draw, width_of
from lance_dagster.cli.named import REF

if TYPE_CHECKING:
    from datetime import datetime

    from lance_dagster.history.log import LogFilter
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan")
_ID_DIGITS = 10
_CUT = "(cut: what it was made from was cleaned up)"


class _Time(click.ParamType["datetime"]):
    """A point in time, as in `main@{time}`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "datetime":
        """Read the text."""
        from lance_dagster.history.resolve import read_time

        found = read_time(str(value))
        if found is None:
            self.fail(f"{value!r} is no time such as 2026-01-31, 2026-01-31T18:00+01:00 or '2 days ago'", param, ctx)
        return found


class _Options(TypedDict):
    """The options of `log` that say which versions to show, and how."""

    graph: bool
    first_parent: bool | None
    committer: str | None
    message: str | None
    properties: Sequence[str]
    since: "datetime | None"
    until: "datetime | None"


@click.command()
@click.option(
    "--ref", type=REF, default="main", show_default=True, help="Where to begin: a branch, a tag, main@17, main~3."
)
@click.option("--after", type=REF, metavar="REF", help="Leave out what this version contains.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most so many versions.")
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
@about_table
def log(
    table: "LanceTable",
    answer: Answer,
    ref: str,
    after: str | None,
    limit: int | None,
    **options: Unpack[_Options],
) -> None:
    """Show the versions of TABLE, newest first."""
    graph, first_parent, only = options["graph"], options["first_parent"], _filter(options)
    if graph and not first_parent:
        edges = table.log_graph(ref, after=after, limit=limit, only=only)
    else:
        found = table.log(ref, after=after, limit=limit, first_parent=first_parent is not False, only=only)
        edges = [(version, tuple(map(str, found[place : place + 1]))) for place, version in enumerate(found, start=1)]
    documents = [document(version) | ({"below": list(below)} if graph else {}) for version, below in edges]
    lines = aligned([_row(version) for version, _ in edges]) if edges else []
    answer.give(documents, _with_lanes(edges, lines) if graph else lines)


@click.command()
@about_table
@click.argument("ref", type=REF, default="main")
@click.option("--content", is_flag=True, help="Show the content id too, for which deletion files are read.")
def show(table: "LanceTable", answer: Answer, ref: str, *, content: bool) -> None:
    """Show one version of TABLE: what made it, from what, and its columns."""
    version = table.at(ref)
    schema = table.schema(str(version))
    digest = table.content_id(str(version)) if content else None
    columns = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    facts = [
        ("version", str(version)),
        ("id", version.id),
        *((("content", digest),) if digest else ()),
        ("from", ", ".join(version.parents) + (f" {_CUT}" if version.cut else "") or "nothing"),
        ("committed", shown_time(version)),
        ("by", printable(version.committer)),
        ("operation", version.operation),
        ("transaction", version.transaction),
        ("rows", f"{version.rows:,}"),
        *((("message", printable(version.message)),) if version.message else ()),
        *((key, printable(value)) for key, value in sorted(version.properties.items())),
    ]
    shown = [(field.name, str(field.type) + ("" if field.nullable else " not null")) for field in schema]
    answer.give(
        {**document(version), **({"content_id": digest} if digest else {}), "columns": columns},
        [*aligned(facts), "", *(f"    {line}" for line in aligned(shown))],
    )


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


def _row(version: "Version") -> tuple[str, ...]:
    said = printable((version.message or "").partition("\n")[0])
    said = f"{said} {_CUT}".strip() if version.cut else said
    return (
        str(version),
        version.id[:_ID_DIGITS],
        shown_time(version),
        version.operation,
        f"{version.rows:,} rows",
        said,
    )


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
