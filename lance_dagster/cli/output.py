"""The output of a subcommand: lines for people or one JSON document for programs, and the progress of long operations.

Lines fit the terminal: tables are cut, sentences are wrapped at blanks. A pipe or a file gets every line whole, since
the program that reads it searches for names.
"""

import json
import math
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, takewhile
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import click

from lance_dagster.cli.command_errors import Refusal
from lance_dagster.errors import counted

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version

CUT = "(cut: the version before it was cleaned up)"
ID_DIGITS = 10
GAP = "  "
_ELLIPSIS = "..."
# A cut cell of fewer characters is useless: three of them are the ellipsis.
_NARROWEST = 8
_NARROW_TERMINAL = 100
_CELL = 40
_HANGING = 4
_BAR = 30
_SECOND = 1.0
_COLOURS = {"error": "red", "warning": "yellow"}
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE_STEP = 1024


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a subcommand."""

    as_json: bool

    def write(self, document: object, lines: Sequence[str]) -> None:
        """Print the document or the lines.

        A closed pipe, such as that of `head -1`, is not an error: the subcommand has done its work, and its exit code
        reports the outcome.

        Raises:
            Refusal: The text cannot be written, such as to a full disk.
        """
        if self.as_json:
            # `default=str` for the values of rows that JSON has no type for, such as dates and decimals.
            _print([json.dumps(document, indent=2, default=str)])
        else:
            width = terminal_width()
            _print([part for line in lines for part in _wrapped(line, width)])


def _print(lines: Sequence[str]) -> None:
    # Python has no standard output where the shell closed it, as by `>&-`; then there is nobody to read the lines.
    if sys.stdout is None:
        return
    try:
        for line in lines:
            _echo(line)
    except BrokenPipeError:
        # The program that reads the pipe has ended, as `head -1` does; the command itself has not failed.
        discard_output()
    except OSError as error:
        discard_output()
        raise Refusal(f"cannot write the output: {error.strerror}; the command itself is done") from error


def _echo(line: str) -> None:
    try:
        click.echo(line)
    except UnicodeEncodeError:
        # The encoding of the output lacks a character, or a name on disk is not UTF-8. Escapes keep it readable.
        encoding = sys.stdout.encoding
        click.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def discard_output() -> None:
    """Send standard output nowhere: Python flushes it once more at exit, which would fail a second time."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def terminal_width() -> int | None:
    """Return how many characters a line may have; None where standard output is closed or no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def is_narrow() -> bool:
    """Return whether standard output is a terminal too narrow for all columns of a table of versions."""
    width = terminal_width()
    return width is not None and width < _NARROW_TERMINAL


def _wrapped(line: str, width: int | None) -> list[str]:
    """Break a line at blanks; parts after the first are indented more. Names and paths are never broken."""
    if width is None or text_width(click.unstyle(line)) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip(" ")) + _HANGING)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The widths of a table's columns that make its lines fit; the last `hidden` columns are left out."""

    widths: tuple[int, ...]
    hidden: int = 0

    @classmethod
    def fit(
        cls,
        rows: Sequence[Sequence[str]],
        *,
        indent: int = 0,
        width: int | None = None,
        uncut: Collection[int] = (),
    ) -> "ColumnLayout":
        """Lay out columns.

        The last column gives up room first, since it has messages and other free text; then the widest columns. Columns
        that do not fit even so are left out, the last column first. Example: columns of 10, 20 and 60 characters in a
        terminal of 60 become 10, 20 and 26, with two blanks in each gap.

        Args:
            rows: Cells, as many in each row.
            indent: How many blanks each line begins with.
            width: The maximum length of a line in characters; the width of the terminal if None is given.
            uncut: Places of columns that are left out rather than cut, such as times and counts.
        """
        # Widths as the terminal shows them: a wide character takes two places and would shift the rest of its line.
        widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
        room = terminal_width() if width is None else width
        # A pipe or a file has no width, and gets every cell whole.
        if room is None:
            return cls(tuple(widths))
        room -= indent
        # A column is left out only if it does not fit even at its narrowest.
        least = [widest if place in uncut else min(widest, _NARROWEST) for place, widest in enumerate(widths)]
        shown = len(widths)
        while shown > 1 and _line_width(least[:shown]) > room:
            shown -= 1
        return cls(tuple(_narrowed(widths[:shown], least[:shown], room)), len(widths) - shown)

    def cells(self, row: Sequence[str]) -> list[str]:
        """Return the cells that are shown, cut and padded to their columns."""
        last_place = len(self.widths) + self.hidden - 1
        return [
            padded(_cut(cell, width, at_end=place == last_place), width)
            for place, (cell, width) in enumerate(zip(row, self.widths, strict=False))
        ]


def aligned(
    rows: Sequence[Sequence[str]], *, indent: str = "", width: int | None = None, uncut: Collection[int] = ()
) -> list[str]:
    """Return rows of cells as lines with aligned columns, as `ColumnLayout.fit` lays them out."""
    if not rows:
        return []
    layout = ColumnLayout.fit(rows, indent=len(indent), width=width, uncut=uncut)
    return [(indent + GAP.join(layout.cells(row))).rstrip() for row in rows]


def fact_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values as lines; a long value is wrapped and never cut, so that an id can be copied."""
    # Not `aligned`, which would cut the values.
    longest = max(text_width(name) for name, _ in facts)
    return [f"{padded(name, longest)}{GAP}{value}" for name, value in facts]


def value_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows of a table as lines, the names of their columns first; columns that do not fit are named below."""
    cells = [[*map(printable, names)], *([shown_cell(row[name]) for name in names] for row in rows)]
    lines = aligned(cells)
    hidden = ColumnLayout.fit(cells).hidden
    if hidden:
        missing = ", ".join(map(printable, names[-hidden:]))
        lines.append(f"not shown: {counted(hidden, 'column')} ({missing}); --columns chooses")
    return lines


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns reduced to the room: the last column gives up room first, then the widest."""
    narrowed = list(widths)
    excess = _line_width(narrowed) - room
    reduction = max(0, min(excess, narrowed[-1] - least[-1]))
    narrowed[-1] -= reduction
    excess -= reduction
    # One character at a time keeps columns of one width as wide as each other.
    while excess > 0 and narrowed != list(least):
        place = max(
            range(len(narrowed)), key=lambda column: (narrowed[column] > least[column], narrowed[column], -column)
        )
        narrowed[place] -= 1
        excess -= 1
    return narrowed


def _cut(cell: str, width: int, *, at_end: bool) -> str:
    """Return a cell that is no wider than its column.

    Text keeps its beginning. A name keeps both ends, since run branches differ there and versions end in a number.
    """
    if text_width(cell) <= width:
        return cell
    room = width - len(_ELLIPSIS)
    end = 0 if at_end else room // 2
    return _beginning(cell, room - end) + _ELLIPSIS + (_beginning(cell[::-1], end)[::-1] if end else "")


def _beginning(text: str, width: int) -> str:
    """Return as many characters as fit."""
    fitting = sum(1 for _ in takewhile(lambda total: total <= width, accumulate(map(text_width, text))))
    return text[:fitting]


def padded(text: str, width: int) -> str:
    """Return a text with blanks up to a width on the terminal."""
    return text + " " * (width - text_width(text))


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for wide characters, none for combining characters."""
    # Most texts are ASCII, and large tables have many cells, so ASCII texts are not examined character by character.
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def styled(line: str, colour: str | None) -> str:
    """Return a line in a colour; without a colour the line has no control characters at all."""
    return line if colour is None else click.style(line, fg=colour)


def printable(text: str) -> str:
    """Replace control characters: the writer of a message or a value could change the reader's terminal with them."""
    return "".join(character if character.isprintable() else " " for character in text)


def shown_cell(value: object) -> str:
    """Return a value of a row as text on one line, cut after 40 characters."""
    text = "null" if value is None else value if isinstance(value, str) else str(_shown(value))
    shown = printable(text)
    return shown if len(shown) <= _CELL else f"{shown[: _CELL - len(_ELLIPSIS)]}{_ELLIPSIS}"


def _shown(value: object) -> object:
    # Python writes a duration of minus one second as "-1 day, 23:59:59".
    return f"-{-value}" if isinstance(value, timedelta) and value < timedelta() else value


def json_value(value: Any) -> Any:  # noqa: ANN401  # whatever Arrow values are in Python
    """Return a value of a row as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no NaN and no infinity.
        return str(value)
    if isinstance(value, bytes):
        # JSON has no bytes; in hexadecimal, other programs can read them.
        return value.hex()
    if isinstance(value, timedelta):
        return str(_shown(value))
    if isinstance(value, Mapping):
        return {str(key): json_value(part) for key, part in value.items()}
    return [json_value(part) for part in value] if isinstance(value, list | tuple) else value


def problem_lines(severity: str, where: str, *explanation: str) -> list[str]:
    """Return the lines for one problem: its severity in colour and its place, then the explanation, indented."""
    return [f"{click.style(severity, fg=_COLOURS[severity])}: {where}", *(f"    {line}" for line in explanation)]


def shown_time(version: "Version") -> str:
    """Return when a version was committed, to the second, in UTC."""
    return f"{version.committed_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z"


def first_line(message: str | None) -> str:
    """Return the first line of a message, printable."""
    return printable((message or "").partition("\n")[0])


def version_document(version: "Version") -> dict[str, Any]:
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


def given_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that users and programs gave a version or a name, without this package's own."""
    # Keys with the reserved prefix are left out, because their values have lines and fields of their own.
    return {key: value for key, value in properties.items() if not key.startswith("lance_dagster.")}


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on standard error while the block runs, where that is a terminal.

    Returns:
        A function that takes the number of things done and the number of all things; None without a terminal.
    """
    # Standard error, so that the progress does not mix with output that goes into a pipe or a file.
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        yield _show_bar
    finally:
        _clear()


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Show on a terminal the present activity and its seconds; for operations whose length is unknown."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    finished = Event()
    display = Thread(target=_show_seconds, args=(doing, finished), daemon=True)
    display.start()
    try:
        yield
    finally:
        # The thread has to end before the line is cleared, or it would write the text once more.
        finished.set()
        display.join()
        _clear()


def _show_seconds(doing: str, finished: Event) -> None:
    seconds = 0
    while True:
        click.echo(f"\r{doing}{f', {seconds} s' if seconds else ''} ...", nl=False, err=True)
        # The thread waits for the event and does not sleep, so the display ends as soon as the work does.
        if finished.wait(_SECOND):
            return
        seconds += 1


def _clear() -> None:
    # Blanks and not an escape sequence: not every terminal can clear a line.
    click.echo("\r" + " " * (_BAR + 40) + "\r", nl=False, err=True)


def _show_bar(steps: int, total: int) -> None:
    filled = _BAR * steps // max(total, 1)
    click.echo(f"\r[{'#' * filled}{' ' * (_BAR - filled)}] {steps:,} of {total:,}", nl=False, err=True)


def size_text(count: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    size = float(count)
    for unit in _SIZE_UNITS:
        if size < _SIZE_STEP or unit == _SIZE_UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _SIZE_STEP
    return f"{count} B"
