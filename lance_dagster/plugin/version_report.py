"""The report about a version on the page of an asset: its changes, a few of its rows, and its size.

The report is for people. No decision depends on it, so a version that can no longer be compared or shown is committed
or published all the same, without that part of its report.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import dagster as dg

from lance_dagster.diff.diff import Diff, RowCounts
from lance_dagster.errors import InvalidInputError, LanceDagsterError
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.history.context import Ref
from lance_dagster.history.refs.ref_files import Tag
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


def since_tags(table: LanceTable, version: Version, tags: Iterable[Tag]) -> dict[str, Ref]:
    """Return the versions with which a candidate is compared because tags name them, by their labels for people.

    A tag may name a version that the candidate does not contain, because another run was published after the candidate
    was forked. The candidate did not remove the rows that only the tagged version has, so it is compared with the merge
    base then, and the label says so.

    Args:
        table: The table.
        version: The version of the candidate.
        tags: The tags.
    """
    versions: dict[str, Ref] = {}
    for tag in tags:
        # Expired, or without anything in common.
        with suppress(LanceDagsterError):
            base = table.diff(tag.ref, version, since_base=True).before
            if base == tag.ref:
                versions[f"{tag.name} ({tag.ref})"] = tag.ref
            else:
                versions[f"{base} (merge base with {tag.name}, which is at {tag.ref} by now)"] = base
    return versions


def change_entries(
    table: LanceTable, version: Version, since: Mapping[str, Ref], on: Sequence[str] = ()
) -> dict[str, Entry]:
    """Return the changes of a version since other versions: a text table, and the numbers of rows since the first.

    Args:
        table: The table.
        version: The version.
        since: The versions to compare with, by their labels for people. A version that no longer exists is left out.
        on: The key columns that identify rows; empty for row ids.
    """
    lines: list[str] = []
    counts: RowCounts | None = None
    for name, ref in since.items():
        # Expired, or of a branch that was deleted meanwhile; or the storage failed once.
        with suppress(LanceDagsterError):
            diff = table.diff(ref, version)
            row_counts, exact = _counted(table, diff, on)
            counts = counts or row_counts
            columns = md.listed([f"`{_one_line(change)}`" for change in diff.schema], _SCHEMA_CHANGES)
            numbers = " | ".join(f"{number:,}" for number in (row_counts.added, row_counts.removed, row_counts.changed))
            lines.append(f"| {name} | {numbers if exact else f'~ {numbers}'} | {columns} |")
    if counts is None:
        return {}
    head = "| since | rows added | removed | changed | columns |\n|---|---|---|---|---|\n"
    return {
        md.CHANGES: dg.MetadataValue.md(head + "\n".join(lines)),
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
