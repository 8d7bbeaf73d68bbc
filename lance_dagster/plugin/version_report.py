"""The report about a version on the page of an asset: its changes, a few of its rows, and its size.

The report is for people. No decision depends on it, so a version that can no longer be compared or shown is committed
or published all the same, without that part of its report.
"""

from collections.abc import Sequence
from contextlib import suppress

import dagster as dg

from lance_dagster.diff.diff import Diff, RowCounts
from lance_dagster.errors import InvalidInputError, LanceDagsterError
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.history.context import Ref
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.table import LanceTable

# Above this number of rows in changed fragments, rows are counted by the manifests and none is read.
_MOST_COMPARED = 100_000
# The sizes of files are in the manifest; decoding all fragments of a larger table would take too long.
_MOST_FRAGMENTS = 1_000
_COLUMNS, _CHARACTERS = 10, 40
_SCHEMA_CHANGES = 5
Entry = dg.MetadataValue | int


def change_entries(
    table: LanceTable, version: Version, since: Ref, label: str, *, on: Sequence[str] = ()
) -> dict[str, Entry]:
    """Return the changes of a version since another version: a text table, and the numbers of rows.

    Args:
        table: The table.
        version: The version.
        since: The version to compare with; nothing is returned where it no longer exists.
        label: Names `since` for people.
        on: The key columns that identify rows; empty for row ids.
    """
    counts: RowCounts | None = None
    # Expired, or of a branch that was deleted meanwhile; or the storage failed once.
    with suppress(LanceDagsterError):
        diff = table.diff(since, version)
        counts, exact = _counted(table, diff, on)
        columns = md.listed([f"`{_one_line(change)}`" for change in diff.schema], _SCHEMA_CHANGES)
        numbers = " | ".join(f"{number:,}" for number in (counts.added, counts.removed, counts.changed))
        line = f"| {label} | {numbers if exact else f'~ {numbers}'} | {columns} |"
    if counts is None:
        return {}
    head = "| since | rows added | removed | changed | columns |\n|---|---|---|---|---|\n"
    return {
        md.CHANGES: dg.MetadataValue.md(head + line),
        md.ROWS_ADDED: counts.added,
        md.ROWS_REMOVED: counts.removed,
        md.ROWS_CHANGED: counts.changed,
    }


def content_entries(table: LanceTable, version: Version, rows: int) -> dict[str, Entry]:
    """Return the size of a version in bytes and some of its newest rows; nothing when `rows` is 0.

    Values reach Dagster's event log, so a table with values that not everyone may see needs `rows` 0.
    """
    if rows <= 0:
        return {}
    try:
        return _content(table, version, rows)
    # Errors that pylance raises when it cannot read, and Arrow when it cannot convert. The rows are committed, so the
    # step does not fail because of its report.
    except (LanceDagsterError, OSError, RuntimeError, ValueError, ArithmeticError, LookupError, TypeError):
        return {}


def _content(table: LanceTable, version: Version, rows: int) -> dict[str, Entry]:
    dataset = table.to_lance(version, rows_only=True)
    fragments = dataset.get_fragments()
    entries: dict[str, Entry] = {}
    if len(fragments) <= _MOST_FRAGMENTS:
        entries[md.BYTES] = sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.data_files())
    # The last fragment has the rows that were written last.
    if fragments and version.rows:
        names = dataset.schema.names
        shown = shown_rows(fragments[-1].to_table(columns=names[:_COLUMNS], limit=rows))
        more = f"\n\n{len(names) - _COLUMNS} more columns: {', '.join(names[_COLUMNS:])}" if names[_COLUMNS:] else ""
        cells = [map(_cell, names[:_COLUMNS]), ["---"] * len(names[:_COLUMNS])]
        cells += [map(_cell, row.values()) for row in shown]
        entries[md.PREVIEW] = dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in cells) + more)
    return entries


def _counted(table: LanceTable, diff: Diff, on: Sequence[str]) -> tuple[RowCounts, bool]:
    """Return the numbers of rows that differ, and whether rows that were rewritten unchanged are left out."""
    if sum(fragment.rows_before + fragment.rows_after for fragment in diff.fragments) <= _MOST_COMPARED:
        # A key may be missing in the older version or occur twice there; then row ids are used instead.
        with suppress(InvalidInputError):
            return (table.diff(diff.before, diff.after, on=on) if on else diff).stat(), True
    added = sum(max(0, fragment.rows_after - fragment.rows_before) for fragment in diff.fragments)
    removed = sum(max(0, fragment.rows_before - fragment.rows_after) for fragment in diff.fragments)
    return RowCounts(added, removed, 0), False


def _one_line(value: object) -> str:
    # A bar or a new line would end the cell; names of columns may have both.
    return " ".join(str(value).replace("|", "\\|").split())


def _cell(value: object) -> str:
    # A vector or a document would fill the page.
    text = _one_line(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"
