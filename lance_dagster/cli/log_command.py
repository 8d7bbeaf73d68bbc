r"""`lance-dagster table log`, and the graph it draws.

The graph has lanes of characters, one column for each line of versions:

    *    main@5     a merge: a lane for what was merged begins
    |\
    | *  run/2@4
    * |  main@4
    |/               two lanes wait for the same version, so they become one
    *    main@3

A lane waits for one version. A version is drawn in the lane that waits for it, which then waits for its first parent;
other parents get lanes of their own. Column `n` is character `2n`; what moves from one column to the next is drawn
between them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import REF, about_table
from lance_dagster.cli.output import (
    CUT,
    ID_DIGITS,
    Output,
    aligned,
    first_line,
    is_narrow,
    printable,
    shown_time,
    terminal_width,
    version_document,
)
from lance_dagster.errors import FormatError, counted
from lance_dagster.format.layout import MAIN

if TYPE_CHECKING:
    from datetime import datetime

    from lance_dagster.history.log import LogFilter
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan")


class _TimeType(click.ParamType["datetime"]):
    """A point in time, as in `main@{time}`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "datetime":
        """Read the text."""
        from lance_dagster.history.resolve import parse_time

        # The parser of `main@{time}`, so that both accept the same texts. Its error is a text that names the expected
        # forms.
        time = parse_time(str(value))
        if isinstance(time, str):
            self.fail(f"cannot read the time {value!r}: expected {time}", param, ctx)
        return time


class _LogOptions(TypedDict):
    """The options of `log` except its range."""

    begin: str | None
    decorate: bool
    graph: bool
    first_parent: bool | None
    merges: bool | None
    committer: str | None
    message: str | None
    properties: Sequence[str]
    since: "datetime | None"
    until: "datetime | None"


@click.command(epilog="Example: lance-dagster table log orders.lance main..run/1 --graph --since '2 days ago'")
@about_table
@click.argument("ref", type=REF, required=False, metavar="[REF | A..B]")
@click.option("--ref", "begin", type=REF, help="The same as REF.")
@click.option("--after", type=REF, metavar="REF", help="Leave out what this version contains.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most this many versions.")
@click.option(
    "--decorate/--no-decorate", default=True, help="Show which branches and tags name a version (the default), or not."
)
@click.option("--graph", is_flag=True, help="Draw the versions with their parents.")
@click.option(
    "--first-parent/--all-parents",
    default=None,
    help="Show only first parents (the default without --graph), or merged versions too (the default with --graph).",
)
@click.option("--since", type=_TimeType(), help="Show versions committed then or later: 2026-01-31, '2 days ago'.")
@click.option("--until", type=_TimeType(), help="Show versions committed then or earlier.")
@click.option("--merges/--no-merges", default=None, help="Show merges only, or leave them out. Both, if not given.")
@click.option("--committer", help="Show versions of this committer.")
@click.option("--message", help="Show versions whose message contains this, in any case.")
@click.option(
    "--property",
    "properties",
    metavar="KEY[=VALUE]",
    multiple=True,
    help="Show versions with this property; may be given again, and all have to match.",
)
def log(
    table: "LanceTable",
    output: Output,
    ref: str | None,
    after: str | None,
    limit: int | None,
    **options: Unpack[_LogOptions],
) -> None:
    """Show the versions of TABLE that REF contains, newest first; REF is main if not given.

    A..B shows what B contains and A does not. REF is a branch, a tag, or an expression such as main@17 or main~3.
    """
    ref, after = _range(ref, options["begin"], after)
    # A graph of first parents alone is a line, which the plain log draws too; so a graph shows all parents by default.
    graph, first_parent, only = options["graph"], options["first_parent"], _filter(options)
    if graph and not first_parent:
        edges = table.branches.graph(ref, after=after, limit=limit, only=only)
    else:
        versions = table.log(ref, after=after, limit=limit, first_parent=first_parent is not False, only=only)
        edges = [
            (version, tuple(map(str, versions[place : place + 1]))) for place, version in enumerate(versions, start=1)
        ]
    documents = [version_document(version) | ({"below": list(below)} if graph else {}) for version, below in edges]
    # Names and lines are looked up and drawn for people only: both take time for a long log.
    lines: list[str] = []
    if not output.as_json:
        rows = _rows(table, [version for version, _ in edges], decorate=options["decorate"])
        lines = _graph_lines(edges, rows) if graph else aligned(rows)
    output.write(documents, lines)


def _range(ref: str | None, begin: str | None, after: str | None) -> tuple[str, str | None]:
    """Return the ref at which the log begins, and the ref whose versions it leaves out."""
    from lance_dagster.history.ref_grammar import is_range, parse_range

    if ref is not None and begin is not None:
        raise click.UsageError("give REF, or --ref REF, not both")
    text = ref if ref is not None else begin if begin is not None else MAIN
    # Only a range says what to leave out; a plain ref keeps what --after says.
    if not is_range(text):
        return text, after
    version_range = parse_range(text)
    if version_range.since_base:
        raise click.UsageError(
            f"log takes A..B, what B contains and A does not: {version_range.left}..{version_range.right}"
        )
    if after is not None:
        raise click.UsageError(f"{text} names the versions to leave out already; remove --after")
    return version_range.right, version_range.left


def _filter(options: _LogOptions) -> "LogFilter":
    from lance_dagster.history.log import LogFilter

    # KEY alone asks for any value of the property.
    pairs = [text.partition("=") for text in options["properties"]]
    return LogFilter(
        properties={key: value if has_value else None for key, has_value, value in pairs},
        committer=options["committer"],
        message=options["message"],
        merges=options["merges"],
        since=options["since"],
        until=options["until"],
    )


def _rows(table: "LanceTable", versions: Sequence["Version"], *, decorate: bool) -> list[tuple[str, ...]]:
    names = _names(table, versions) if decorate else {}
    narrow = is_narrow()
    # Where no commit names a committer, the column would have the same program on every line.
    people = not narrow and any(version.committer != version.writer for version in versions)
    return [_row(version, names.get(str(version), ()), people=people, narrow=narrow) for version in versions]


def _row(version: "Version", names: Iterable[str], *, people: bool, narrow: bool) -> tuple[str, ...]:
    """Return the cells of a version; a narrow terminal shows the operation only in place of a missing message."""
    message = first_line(version.message) or (version.operation if narrow else "")
    message = f"{message} {CUT}".strip() if version.cut else message
    named = ", ".join(names)
    return (
        str(version),
        version.id[:ID_DIGITS],
        shown_time(version),
        *((printable(version.committer),) if people else ()),
        *(() if narrow else (version.operation,)),
        counted(version.rows, "row"),
        f"({named}) {message}".rstrip() if named else message,
    )


def _names(table: "LanceTable", versions: Sequence["Version"]) -> Mapping[str, Sequence[str]]:
    """Return, for each version, the branches whose newest version it is, and the tags that name it.

    Only branches with a version among `versions` are looked up: a table may have many run branches.
    """
    names: dict[str, list[str]] = {}
    for branch in dict.fromkeys(version.branch for version in versions):
        # Lists names without reading a manifest; empty where the branch was deleted since.
        for newest in table.branches.version_numbers(branch)[-1:]:
            names.setdefault(f"{branch}@{newest}", []).append(branch)
    with suppress(FormatError):
        # `verify` reports a damaged tag; the log can be shown without it.
        for tag in sorted(table.tags.list().values(), key=lambda tag: tag.name):
            names.setdefault(tag.ref, []).append(f"tag {tag.name}")
    return names


def _graph_lines(edges: Sequence[tuple["Version", Sequence[str]]], rows: Sequence[Sequence[str]]) -> list[str]:
    drawn = list(draw([(str(version), below) for version, below in edges]))
    lanes = max((lanes_width(version_lines.line) for version_lines in drawn), default=0)
    # All lines get the room of the widest part of the graph, so that their columns are aligned.
    width = terminal_width()
    lines = aligned(rows, width=None if width is None else width - lanes - 2)
    return [
        line
        for version_lines, text in zip(drawn, lines, strict=True)
        for line in _drawn_lines(version_lines, text, lanes)
    ]


def _drawn_lines(drawn: "Drawn", text: str, width: int) -> list[str]:
    gap = " " * (width - lanes_width(drawn.line) + 2)
    return [*map(_coloured, drawn.above), f"{_coloured(drawn.line)}{gap}{text}", *map(_coloured, drawn.below)]


def _coloured(cells: "Cells") -> str:
    """Return a line with a colour for each lane; `click.echo` removes colours where output is not a terminal."""
    coloured = []
    for place in range(lanes_width(cells)):
        character, lane = cells.get(place, (" ", 0))
        colour = None if character in " *" else _COLOURS[lane % len(_COLOURS)]
        coloured.append(click.style(character, fg=colour) if colour else character)
    return "".join(coloured)


Cells = dict[int, tuple[str, int]]
"""Characters by their place in a line, each with the number of the lane it belongs to."""


@dataclass(slots=True)
class _Lane:
    """A lane that waits for the version `awaited`; its number chooses its colour."""

    awaited: str
    number: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A version's line, and the lines that lead to it and away from it, as cells."""

    above: tuple[Cells, ...]
    line: Cells
    below: tuple[Cells, ...]


def draw(history: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Drawn]:
    """Draw a history.

    Args:
        history: Versions in order, each with the versions that a line leads to, which come later.
    """
    lanes: list[_Lane] = []
    # How many lanes there were so far. Each lane gets the next number, so that neighbours mostly differ in colour.
    lane_count = 0
    for name, parents in history:
        waiting = [column for column, lane in enumerate(lanes) if lane.awaited == name]
        if waiting:
            # The leftmost lane gets the version; the lines above lead the other lanes to it, one by one.
            column = waiting[0]
            above = tuple(cells for _ in waiting[1:] for cells in _close_lane(lanes, column, name))
        else:
            # A line without this version, so that it does not look like a parent of the version above.
            column, above = len(lanes), (_straight(lanes),) if lane_count else ()
            lanes.append(_Lane(name, lane_count))
            lane_count += 1
        line = {**_straight(lanes), 2 * column: ("*", lanes[column].number)}
        if not parents:
            yield Drawn(above, line, _end_lane(lanes, column))
            continue
        # The first parent stays in the lane, so that a branch is one straight line.
        lanes[column].awaited = parents[0]
        below = [
            _open_lane(lanes, column, _Lane(parent, lane_count + place)) for place, parent in enumerate(parents[1:])
        ]
        lane_count += len(below)
        yield Drawn(above, line, tuple(below))


def lanes_width(cells: Cells) -> int:
    """Return how many characters a line of lanes takes."""
    return max(cells, default=-1) + 1


def _straight(lanes: Sequence[_Lane]) -> Cells:
    return {2 * column: ("|", lane.number) for column, lane in enumerate(lanes)}


def _close_lane(lanes: list[_Lane], column: int, name: str) -> list[Cells]:
    """Lead the next lane that waits for a version to the first such lane; lanes right of it move to the left."""
    ending = next(right for right in range(column + 1, len(lanes)) if lanes[right].awaited == name)
    # One lane at a time, since all lanes to the right of it move by one column.
    number = lanes[ending].number
    first = {
        **_straight(lanes[:ending]),
        # The lane passes below the lanes between the two columns.
        **dict.fromkeys(range(2 * column + 3, 2 * ending - 1, 2), ("_", number)),
        **{2 * right - 1: ("/", lanes[right].number) for right in range(ending, len(lanes))},
    }
    del lanes[ending]
    # A neighbour needs one line. From further away the lane arrives beside the column, and turns in a second line.
    if ending == column + 1:
        return [first]
    return [first, {**_straight(lanes), 2 * column + 1: ("/", number)}]


def _open_lane(lanes: list[_Lane], column: int, lane: _Lane) -> Cells:
    """Begin a lane beside the lane of a column; lanes right of it move to the right."""
    cells = {
        **_straight(lanes[: column + 1]),
        **{2 * right + 1: ("\\", lanes[right].number) for right in range(column + 1, len(lanes))},
        2 * column + 1: ("\\", lane.number),
    }
    # Only after the line is drawn, which shows the lanes on their way from the old columns to the new columns.
    lanes.insert(column + 1, lane)
    return cells


def _end_lane(lanes: list[_Lane], column: int) -> tuple[Cells, ...]:
    """End a lane; lanes right of it move to the left."""
    moving = {2 * right - 1: ("/", lanes[right].number) for right in range(column + 1, len(lanes))}
    cells = {**_straight(lanes[:column]), **moving}
    del lanes[column]
    return (cells,) if moving else ()
