"""`lance-dagster table diff`, and the lines and the document of a difference, which `show` prints too."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import about_table, refuse_without, with_columns, with_keys, with_limit
from lance_dagster.cli.output import Output, aligned, busy, json_value, printable, shown_cell, styled

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.diff.diff import Diff, RowCounts
    from lance_dagster.table import LanceTable

MORE_ROWS = "there are more rows; --limit shows them"
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}
_SIGNS = {"insert": "+", "delete": "-", "update_preimage": "-", "update_postimage": "+"}
_CHANGE = "_change_"


class _DiffOptions(TypedDict):
    """The options of `diff`."""

    stat: bool
    rows: bool
    limit: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]


@click.command()
@about_table
@click.argument("versions", nargs=-1, required=True, metavar="A..B | A...B | A B")
@click.option("--stat", is_flag=True, help="Count the rows that differ; this reads the rows that moved.")
@click.option("--rows", is_flag=True, help="Show the rows that differ: - as they were, + as they are.")
@with_limit
@with_keys
@with_columns("Compare only this column of the rows, and show it beside the key")
def diff(table: "LanceTable", output: Output, versions: tuple[str, ...], **options: "Unpack[_DiffOptions]") -> None:
    """Show the differences between two versions of TABLE.

    A..B, or A B, shows the changes from version A to version B. A...B shows the changes of B since the merge base of A
    and B.
    """
    # An option without an effect is refused: a person who typed it expects another answer.
    if not options["rows"]:
        refuse_without("--rows", "limit")
        if not options["stat"]:
            refuse_without("--stat or --rows", "columns")
    difference = _compared(table, versions, options["keys"])
    rows = options["limit"] if options["rows"] else None
    with busy("comparing rows"):
        shown = ShownDiff.of(difference, stat=options["stat"], rows=rows, columns=options["columns"])
    output.write(shown.document, shown.lines)


@dataclass(frozen=True, slots=True)
class ShownDiff:
    """A difference as a document and as lines."""

    document: dict[str, Any]
    lines: list[str]

    @classmethod
    def of(cls, difference: "Diff", *, stat: bool, rows: int | None, columns: Sequence[str] = ()) -> "ShownDiff":
        """Show a difference.

        Args:
            difference: What differs.
            stat: Whether rows are counted.
            rows: How many rows are shown; None for no rows at all.
            columns: The columns of the rows that are compared; all of them if none is given.
        """
        # No columns means all of them, which `stat` calls None; an empty selection would compare nothing.
        counts = difference.stat(columns or None) if stat else None
        document, lines = _document(difference, counts), list(_lines(difference, counts))
        if rows is not None:
            # The key is shown too: it tells which row it is, and its values are the same in both versions.
            shown_columns = list(dict.fromkeys([*(difference.on or ()), *columns])) if columns else None
            # One row more than is shown, to tell whether there are more.
            shown_rows = first_rows(difference.rows(columns=shown_columns), rows + 1)
            document |= {"rows": json_value(shown_rows[:rows]), "more": len(shown_rows) > rows}
            lines += _row_lines(shown_rows, rows)
        return cls(document, lines)


def _compared(table: "LanceTable", versions: tuple[str, ...], keys: tuple[str, ...]) -> "Diff":
    from lance_dagster.history.ref_grammar import parse_range

    key = list(keys) or None
    match versions:
        case (before, after):
            return table.diff(before, after, on=key)
        case (text,):
            version_range = parse_range(text)
            return table.diff(version_range.left, version_range.right, on=key, since_base=version_range.since_base)
        case _:
            raise click.UsageError("give two versions: A..B, A...B or A B")


def first_rows(reader: "pa.RecordBatchReader", limit: int) -> list[dict[str, Any]]:
    """Return the first rows of a reader, as many as the limit says or all of them; the rest is not read."""
    from lance_dagster.format.shown_values import shown_rows

    rows: list[dict[str, Any]] = []
    # Batch by batch: the first rows of a large table must not cost the reading of all of it.
    for batch in reader:
        rows += shown_rows(batch.slice(0, min(limit - len(rows), batch.num_rows)))
        if len(rows) >= limit:
            break
    return rows


def _lines(difference: "Diff", stat: "RowCounts | None") -> Iterator[str]:
    for line in difference.lines():
        # The lines of single changes are indented; a heading may begin with one of the signs by chance.
        yield styled(line, _COLOURS.get(line.strip()[:1])) if line.startswith(" ") else line
    if stat is not None:
        yield str(stat)


def _row_lines(rows: list[dict[str, Any]], limit: int) -> Iterator[str]:
    if not rows:
        return
    # The sign at the beginning of each line takes the place of the columns that describe the change.
    names = [name for name in rows[0] if not name.startswith(_CHANGE)]
    cells = [
        ["", *map(printable, names)],
        *([_SIGNS[row["_change_type"]], *(shown_cell(row[name]) for name in names)] for row in rows[:limit]),
    ]
    yield ""
    for line in aligned(cells):
        yield styled(line, _COLOURS.get(line[:1]))
    if len(rows) > limit:
        yield MORE_ROWS


def _document(difference: "Diff", stat: "RowCounts | None") -> dict[str, Any]:
    document: dict[str, Any] = {
        "before": difference.before,
        "after": difference.after,
        "base_of": difference.base_of,
        "on": difference.on,
        "schema": [asdict(change) for change in difference.schema],
        "settings": [asdict(change) for change in difference.settings],
        "indices": [asdict(change) for change in difference.indices],
        "fragments": [asdict(change) for change in difference.fragments],
        "rows_before": difference.rows_before,
        "rows_after": difference.rows_after,
        "not_compared": difference.not_compared,
    }
    if stat is not None:
        document["stat"] = asdict(stat)
    return document
