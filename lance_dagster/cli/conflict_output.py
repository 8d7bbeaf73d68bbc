"""Merge conflicts as the command prints them: a line for each, the rows in conflict, and a hint that settles them."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from lance_dagster.cli.arguments import place_as_typed, with_columns, with_keys, with_limit
from lance_dagster.cli.command_errors import REFUSED, Refusal, command_for, command_line
from lance_dagster.cli.diff_command import MORE_ROWS, first_rows
from lance_dagster.cli.output import GAP, ColumnLayout, Output, json_value, padded, printable, shown_cell
from lance_dagster.errors import MergeConflictError, Remedy

if TYPE_CHECKING:
    from lance_dagster.merge.preview import MergePreview
    from lance_dagster.merge.rules.strategy import Conflict

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]
_HISTORY = "history"
_BASE, _SOURCE, _DEST = _SIDES = ("base", "source", "dest")
_ABSENT = {"removed": "(removed)", "rewritten": "(changed or removed; a key tells: --on COLUMN)"}
# The value of a column that a version does not have; None would be a null.
_NO_COLUMN = object()


@contextmanager
def report_conflicts(output: Output, changes: Callable[[], str]) -> Iterator[None]:
    """Print the conflicts that the block raises, each on its own line, and refuse with a hint.

    Args:
        output: Where to print.
        changes: Returns the range of the changes to merge, for `diff`.

    Raises:
        Refusal: There were conflicts.
    """
    try:
        yield
    except MergeConflictError as error:
        # The conflicts are the result, so they go to standard output; the refusal and its hint go to standard error.
        output.write(
            {
                "made": False,
                "before": None,
                "version": None,
                "conflicts": [asdict(conflict) for conflict in _conflicts(error.conflicts)],
            },
            conflict_lines(error.conflicts),
        )
        raise Refusal(error.message.rstrip(":"), hint_for(error.conflicts, error.remedy, changes())) from error


def hint_for(conflicts: Iterable[object], remedy: Remedy | None, changes: str) -> str:
    """Return how to look at conflicts, and the command that settles all of them; empty where neither is possible.

    Args:
        conflicts: What no strategy settled.
        remedy: The call that settles them, if any does.
        changes: The range of the changes to merge, for `diff`.
    """
    from lance_dagster.merge.rules.merge_input import can_be_waived

    # A conflict of the kind "history" has no rows to look at, and changing one side does not settle it.
    merge_conflicts, hints = _conflicts(conflicts), []
    of_rows = any(conflict.kind != _HISTORY for conflict in merge_conflicts)
    if of_rows:
        hints.append(f"look with {command_line('table diff', place_as_typed(), changes, '--rows')}")
    if remedy is not None:
        settle = remedy.described(partial(command_for, place_as_typed()))
        # Only the people who made the deleted versions can know whether this conflict may be waived.
        waived = remedy.call is not None and any(map(can_be_waived, merge_conflicts))
        hints.append(f"if no version that was cleaned up replaced rows, {settle}" if waived else settle)
    elif of_rows:
        hints.append("then change one side")
    return printable("; ".join(hints))


def conflict_lines(conflicts: Iterable[object]) -> list[str]:
    """Return a line for each conflict: its kind and unit, and the changes of the source and of the dest."""
    return [f"{_title(conflict.kind)}: {printable(str(conflict))}" for conflict in _conflicts(conflicts)]


def _title(kind: str) -> str:
    return click.style(f"{kind} conflict", fg="red")


def _conflicts(conflicts: Iterable[object]) -> "list[Conflict]":
    from lance_dagster.merge.rules.strategy import Conflict

    return [conflict for conflict in conflicts if isinstance(conflict, Conflict)]


def exit_refused(hint: str) -> None:
    """Exit with 1 after the output was printed, and print the hint."""
    if hint:
        click.echo(f"hint: {hint}", err=True)
    sys.exit(REFUSED)


class RowOptions(TypedDict):
    """The options that select the rows in conflict to show, and their columns."""

    rows: bool
    limit: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]


def with_rows(command: F) -> F:
    """Give a subcommand the options of `RowOptions`."""
    options = (
        click.option(
            "--rows",
            is_flag=True,
            help="With --preview: show the rows in conflict, as the merge base and both have them.",
        ),
        with_limit,
        with_keys,
        with_columns("Show this column of the rows, beside the key"),
    )
    # Decorators apply from the last one to the first; in reverse, the help lists them in the order above.
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class PrintedRows:
    """Rows in conflict as a part of a document and as lines."""

    document: Mapping[str, object]
    lines: Sequence[str]

    @classmethod
    def of(cls, preview: "MergePreview", options: RowOptions) -> "PrintedRows":
        """Read the rows of the conflicts of a merge; none where `--rows` was not given."""
        if not options["rows"]:
            return cls({}, [])
        keys, limit = options["keys"], options["limit"]
        columns = list(dict.fromkeys([*keys, *options["columns"]])) if options["columns"] else None
        # One row more than is shown tells whether there are more.
        reader = preview.conflicting_rows(columns=columns, on=keys or None, limit=limit + 1)
        # The dest comes first, since all versions use its names for the columns.
        types = [reader.schema.field(name).type for name in (_DEST, _BASE, _SOURCE)]
        names = list(
            dict.fromkeys(
                image_type.field(place).name for image_type in types for place in range(image_type.num_fields)
            )
        )
        rows = first_rows(reader, limit + 1)
        more = len(rows) > limit
        lines = list(_row_lines(rows[:limit], names, more=more)) if preview.conflicts else []
        return cls({"rows": json_value(rows[:limit]), "more": more}, lines)


def _row_lines(rows: Sequence[Row], names: Sequence[str], *, more: bool) -> Iterator[str]:
    yield ""
    if not rows:
        yield "these conflicts have no rows that can be shown"
    # The reader yields the rows of one conflict together, so `groupby` needs no sort.
    for (kind, unit), group in groupby(rows, key=lambda row: (row["_conflict_kind"], row["_conflict_unit"])):
        yield f"{_title(kind)}: {printable(unit)}"
        yield from _conflict_table(list(group), names)
    if more:
        yield MORE_ROWS


def _conflict_table(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Show each row of one conflict as the merge base, the source and the dest have it."""
    # All rows are laid out at once, so that the columns of one conflict stand below each other.
    shown = [(side, row[side]) for row in rows for side in _SIDES]
    cells = [[side, *_cells(values, names)] for side, values in shown if values is not None]
    head = [" " * max(map(len, _SIDES)), *map(printable, names)]
    layout = ColumnLayout.fit([head, *cells], indent=len(GAP))
    yield _line(layout.cells(head), frozenset())
    for row in rows:
        for side in _SIDES:
            values = row[side]
            if values is not None:
                changed = _changed_columns(row, side, names)
                yield _line(layout.cells([side, *_cells(values, names)]), changed)
            # A side that removed the row gets a line that says so; a side that never had it gets none.
            elif side != _BASE and row[f"_{side}_change"] is not None:
                absent = click.style(_ABSENT[row[f"_{side}_change"]], fg="red")
                yield f"{GAP}{padded(side, layout.widths[0])}{GAP}{absent}"
        yield ""


def _cells(values: Row, names: Sequence[str]) -> list[str]:
    # A column that a version does not have is left empty; a null would be shown as "null".
    return [shown_cell(values[name]) if name in values else "" for name in names]


def _changed_columns(row: Row, side: str, names: Sequence[str]) -> frozenset[int]:
    """Return the places of columns in which a side differs from the merge base, or from the other side if it added."""
    if side == _BASE:
        return frozenset()
    compared_with = row[_BASE] or row[_DEST if side == _SOURCE else _SOURCE]
    if compared_with is None:
        return frozenset()
    # As JSON values: there NaN is a text and equals itself.
    values, others = json_value(row[side]), json_value(compared_with)
    return frozenset(
        place for place, name in enumerate(names) if values.get(name, _NO_COLUMN) != others.get(name, _NO_COLUMN)
    )


def _line(cells: Sequence[str], changed: frozenset[int]) -> str:
    """Return a line of padded cells; the cells that changed are coloured, the blanks after them are not."""
    # The first cell names the side, so column `n` of the row is cell `n + 1`.
    styled = [
        click.style(cell.rstrip(), fg="yellow") + cell[len(cell.rstrip()) :] if place in changed else cell
        for place, cell in enumerate(cells, start=-1)
    ]
    return f"{GAP}{GAP.join(styled)}".rstrip()
