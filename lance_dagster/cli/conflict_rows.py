"""The rows that contradict each other, as `lance-dagster merge --preview --rows` shows them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from lance_dagster.cli.comparing import cell, first, plain, with_columns, with_keys, with_limit
from lance_dagster.cli.versions import printable

if TYPE_CHECKING:
    from lance_dagster.table import MergePreview

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]
_BASE, _SOURCE, _DEST = _IMAGES = ("base", "source", "dest")
_GONE = {"removed": "(removed)", "rewritten": "(changed or removed; a key tells: -k COLUMN)"}
_INDENT = "  "
_NONE = object()
"""Stands for the value of a column that a version does not have."""


class RowOptions(TypedDict):
    """Which rows are shown, and what of them."""

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
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class ShownRows:
    """Rows in conflict, for programs and for people."""

    document: Mapping[str, object]
    lines: Sequence[str]

    @classmethod
    def of(cls, found: "MergePreview", options: RowOptions) -> "ShownRows":
        """Show the rows of the conflicts of a merge; nothing where none are asked for."""
        if not options["rows"]:
            return cls({}, [])
        keys, limit = options["keys"], options["limit"]
        columns = list(dict.fromkeys([*keys, *options["columns"]])) if options["columns"] else None
        reader = found.conflicting_rows(columns=columns, key=keys or None, limit=limit + 1)
        images = [reader.schema.field(name).type for name in (_DEST, _BASE, _SOURCE)]
        names = list(dict.fromkeys(image.field(place).name for image in images for place in range(image.num_fields)))
        rows = first(reader, limit)
        more = len(rows) > limit
        lines = list(_lines(rows[:limit], names, more=more)) if found.conflicts else []
        return cls({"rows": plain(rows[:limit]), "more": more}, lines)


def _lines(rows: Sequence[Row], names: Sequence[str], *, more: bool) -> Iterator[str]:
    yield ""
    if not rows:
        yield "no rows can be shown of this"
    for (kind, unit), group in groupby(rows, key=lambda row: (row["_conflict_kind"], row["_conflict_unit"])):
        yield f"{click.style(f'{kind} conflict', fg='red')}: {printable(unit)}"
        yield from _of_conflict(list(group), names)
    if more:
        yield "there are more; --limit shows them"


def _of_conflict(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    shown = [(image, row[image]) for row in rows for image in _IMAGES]
    cells = [[image, *_cells(values, names)] for image, values in shown if values is not None]
    head = [" " * max(map(len, _IMAGES)), *map(printable, names)]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    yield _aligned(head, widths, frozenset())
    for row in rows:
        for image in _IMAGES:
            values = row[image]
            if values is not None:
                changed = _changed(row, image, names)
                yield _aligned([image, *_cells(values, names)], widths, changed)
            elif image != _BASE and row[f"_{image}_change"] is not None:
                told = click.style(_GONE[row[f"_{image}_change"]], fg="red")
                yield f"{_INDENT}{image.ljust(widths[0])}  {told}"
        yield ""


def _cells(values: Row, names: Sequence[str]) -> list[str]:
    # A column that a version does not have is no null.
    return [cell(values[name]) if name in values else "" for name in names]


def _changed(row: Row, image: str, names: Sequence[str]) -> frozenset[int]:
    """Return the places of columns in which a side's image differs from the merge base's, or else from the other's."""
    if image == _BASE:
        return frozenset()
    beside = row[_BASE] or row[_DEST if image == _SOURCE else _SOURCE]
    if beside is None:
        return frozenset()
    # As JSON has them: a number that is no number is none other than itself.
    values, others = plain(row[image]), plain(beside)
    return frozenset(place for place, name in enumerate(names) if values.get(name, _NONE) != others.get(name, _NONE))


def _aligned(cells: Sequence[str], widths: Sequence[int], changed: frozenset[int]) -> str:
    """Return a line whose cells stand below those of others; styles take no room."""
    padded = [text.ljust(width) for text, width in zip(cells, widths, strict=True)]
    styled = [
        click.style(text.rstrip(), fg="yellow") + text[len(text.rstrip()) :] if place - 1 in changed else text
        for place, text in enumerate(padded)
    ]
    return f"{_INDENT}{_INDENT.join(styled)}".rstrip()
