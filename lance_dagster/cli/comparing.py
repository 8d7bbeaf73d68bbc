"""`lance-dagster diff`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned, refuse_without
from lance_dagster.cli.progress import busy
from lance_dagster.cli.versions import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.table import Diff, LanceTable, RowCounts

F = TypeVar("F", bound=Callable[..., Any])
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}
_SIGNS = {"insert": "+", "delete": "-", "update_preimage": "-", "update_postimage": "+"}
_CELL = 40
_LIMIT = 20
_NULL = "null"
with_limit: Callable[[F], F] = click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Show at most so many rows."
)
with_keys: Callable[[F], F] = click.option(
    "--key", "-k", "keys", metavar="COLUMN", multiple=True, help="Tell rows by this column; may be given again."
)


def with_columns(meaning: str) -> Callable[[F], F]:
    """Give a subcommand the option `columns`, with what it does there."""
    return click.option(
        "--column", "-c", "columns", metavar="COLUMN", multiple=True, help=f"{meaning}; may be given again."
    )


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
@with_limit
@with_keys
@with_columns("Look at this column of the rows only, and show it beside the key")
def diff(table: "LanceTable", answer: Answer, versions: tuple[str, ...], **options: "Unpack[_Options]") -> None:
    """Show what differs between two versions of TABLE.

    A..B, or A B, is what turns version A into version B. A...B is what B did since A and B were last the same.
    """
    if not options["rows"]:
        refuse_without("--rows", "limit")
        if not options["stat"]:
            refuse_without("--stat or --rows", "columns")
    found = _compared(table, versions, options["keys"])
    rows = options["limit"] if options["rows"] else None
    with busy("comparing rows"):
        shown = Shown.of(found, stat=options["stat"], rows=rows, columns=options["columns"])
    answer.give(shown.document, shown.lines)


@dataclass(frozen=True, slots=True)
class Shown:
    """What differs, for programs and for people."""

    document: dict[str, Any]
    lines: list[str]

    @classmethod
    def of(cls, found: "Diff", *, stat: bool, rows: int | None, columns: Sequence[str] = ()) -> "Shown":
        """Show a difference.

        Args:
            found: What differs.
            stat: Whether rows are counted.
            rows: How many rows are shown; None for no rows at all.
            columns: The columns of the rows that are looked at; all of them if none is given.
        """
        counts = found.stat(columns or None) if stat else None
        document, lines = _document(found, counts), list(_lines(found, counts))
        if rows is not None:
            # Rows are shown under what they are known by: its values are the same in both versions.
            wanted = list(dict.fromkeys([*(found.key or ()), *columns])) if columns else None
            some = first(found.rows(columns=wanted), rows)
            document |= {"rows": plain(some[:rows]), "more": len(some) > rows}
            lines += _table(some, rows)
        return cls(document, lines)


def _compared(table: "LanceTable", versions: tuple[str, ...], keys: tuple[str, ...]) -> "Diff":
    from lance_dagster.history.ref_expressions import parse_range

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


def first(reader: "pa.RecordBatchReader", limit: int) -> list[dict[str, Any]]:
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


def _table(rows: list[dict[str, Any]], limit: int) -> Iterator[str]:
    if not rows:
        return
    names = [name for name in rows[0] if not name.startswith("_change_")]
    cells = [
        ["", *names],
        *([_SIGNS[row["_change_type"]], *(cell(row[name]) for name in names)] for row in rows[:limit]),
    ]
    yield ""
    for line in aligned(cells):
        yield click.style(line, fg=_COLOURS.get(line[:1]))
    if len(rows) > limit:
        yield "there are more; --limit shows them"


def cell(value: object) -> str:
    """Return a value as text that takes its place in a line for each row, whatever is in it."""
    text = _NULL if value is None else str(value) if not isinstance(value, str) else value
    shown = printable(text)
    return shown if len(shown) <= _CELL else f"{shown[: _CELL - 3]}..."


def _document(found: "Diff", stat: "RowCounts | None") -> dict[str, Any]:
    document: dict[str, Any] = {
        "before": found.before,
        "after": found.after,
        "base_of": found.base_of,
        "key": found.key,
        "schema": [asdict(change) for change in found.schema],
        "settings": [asdict(change) for change in found.settings],
        "indices": [asdict(change) for change in found.indices],
        "fragments": [asdict(change) for change in found.fragments],
        "rows_before": found.rows_before,
        "rows_after": found.rows_after,
        "not_compared": found.not_compared,
    }
    if stat is not None:
        document["stat"] = asdict(stat)
    return document


def plain(value: Any) -> Any:  # noqa: ANN401  # whatever Arrow values are in Python
    """Return a value as JSON can show it."""
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value
