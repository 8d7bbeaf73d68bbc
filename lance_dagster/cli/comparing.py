"""`lance-dagster diff`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.table import Diff, LanceTable, RowCounts

_COLOURS = {"+": "green", "-": "red", "~": "yellow"}
_SIGNS = {"insert": "+", "delete": "-", "update_preimage": "-", "update_postimage": "+"}
_CELL = 40
_LIMIT = 20


class _Options(TypedDict):
    stat: bool
    rows: bool
    limit: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]


@click.command()
@about_table
@click.argument("versions", nargs=-1, required=True, metavar="A..B | A...B | A B")
@click.option("--stat", is_flag=True, help="Count the rows that differ; reads those that moved.")
@click.option("--rows", is_flag=True, help="Show the rows that differ: - as they were, + as they are.")
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Show at most so many rows."
)
@click.option(
    "--key", "-k", "keys", metavar="COLUMN", multiple=True, help="Tell rows by this column; may be given again."
)
@click.option(
    "--column",
    "-c",
    "columns",
    metavar="COLUMN",
    multiple=True,
    help="Look at the rows of this column only; may be given again.",
)
def diff(table: "LanceTable", answer: Answer, versions: tuple[str, ...], **options: "Unpack[_Options]") -> None:
    """Show what differs between two versions of TABLE.

    A..B, or A B, is what turns version A into version B. A...B is what B did since A and B were last the same.
    """
    found = _compared(table, versions, options["keys"])
    columns = options["columns"] or None
    stat = found.stat(columns) if options["stat"] else None
    rows = _first(found.rows(columns=columns), options["limit"]) if options["rows"] else None
    document = _document(found, stat)
    if rows is not None:
        document |= {"rows": _plain(rows[: options["limit"]]), "more": len(rows) > options["limit"]}
    answer.give(document, [*_lines(found, stat), *_table(rows, options["limit"])])


def _compared(table: "LanceTable", versions: tuple[str, ...], keys: tuple[str, ...]) -> "Diff":
    from lance_dagster.history.expressions import parse_range

    key = list(keys) or None
    match versions:
        case (a, b):
            return table.diff(a, b, key=key)
        case (text,):
            asked = parse_range(text)
            compare = table.changes_since_base if asked.since_base else table.diff
            return compare(asked.left, asked.right, key=key)
        case _:
            raise click.UsageError("give two versions: A..B, A...B or A B")


def _first(reader: "pa.RecordBatchReader", limit: int) -> list[dict[str, Any]]:
    """Return the first rows, and one more where there are more."""
    found: list[dict[str, Any]] = []
    for batch in reader:
        found += batch.slice(0, limit + 1 - len(found)).to_pylist()
        if len(found) > limit:
            break
    return found


def _lines(found: "Diff", stat: "RowCounts | None") -> Iterator[str]:
    for line in found.lines():
        yield click.style(line, fg=_COLOURS.get(line.strip()[:1])) if line.startswith(" ") else line
    if stat is not None:
        yield str(stat)


def _table(rows: list[dict[str, Any]] | None, limit: int) -> Iterator[str]:
    if not rows:
        return
    names = [name for name in rows[0] if not name.startswith("_change_")]
    cells = [
        ["", *names],
        *([_SIGNS[row["_change_type"]], *(_cell(row[name]) for name in names)] for row in rows[:limit]),
    ]
    yield ""
    for line in aligned(cells):
        yield click.style(line, fg=_COLOURS.get(line[:1]))
    if len(rows) > limit:
        yield "there are more; --limit shows them"


def _cell(value: object) -> str:
    # A line for each row, whatever is in it.
    text = "" if value is None else str(value) if not isinstance(value, str) else value
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= _CELL else f"{shown[: _CELL - 3]}..."


def _document(found: "Diff", stat: "RowCounts | None") -> dict[str, Any]:
    document: dict[str, Any] = {
        "before": found.before,
        "after": found.after,
        "base_of": found.base_of,
        "key": found.key,
        "schema": [asdict(change) for change in found.schema],
        "settings": [asdict(change) for change in found.settings],
        "fragments": [asdict(change) for change in found.fragments],
        "rows_before": found.rows_before,
        "rows_after": found.rows_after,
        "not_compared": found.not_compared,
    }
    if stat is not None:
        document["stat"] = asdict(stat)
    return document


def _plain(value: Any) -> Any:  # noqa: ANN401  # whatever Arrow values are in Python
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
