"""`lance-dagster status`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lance_dagster.cli.command import Answer, about_table, aligned
from lance_dagster.cli.versions import document, printable, shown_time

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable, Standing

_RUNS = "run/"


@click.command()
@about_table
def status(table: "LanceTable", answer: Answer) -> None:
    """Show where the branches and tags of TABLE stand beside main, and which run branches are not merged."""
    found = table.status()
    waiting = [branch for branch in found.branches if branch.name.startswith(_RUNS) and not branch.merged]
    main = found.main
    head = [str(main), main.id[:10], shown_time(main), f"{main.rows:,} rows", printable(main.message or "")]
    documents = {
        "table": table.uri,
        "main": document(main),
        "branches": [_document(branch) for branch in found.branches],
        "tags": [_document(tag) for tag in found.tags],
        "unmerged_runs": [branch.name for branch in waiting],
    }
    lines = [
        *aligned([head]),
        *_section("branches", found.branches),
        *_section("tags", found.tags),
        *(["", f"not merged: {', '.join(branch.name for branch in waiting)}"] if waiting else []),
    ]
    answer.give(documents, lines)


def _document(standing: "Standing") -> dict[str, object]:
    return {**asdict(standing), "merged": standing.merged}


def _section(title: str, found: Sequence["Standing"]) -> Iterator[str]:
    if found:
        yield ""
        yield f"{title}:"
        yield from (f"    {line}" for line in aligned([_row(each) for each in found]))


def _row(standing: "Standing") -> tuple[str, ...]:
    if standing.version is None:
        return (standing.name, "gone", "", "")
    counted = [f"{count} {word}" for count, word in ((standing.ahead, "ahead"), (standing.behind, "behind")) if count]
    told = ", ".join(counted) or "as main"
    return (
        standing.name,
        standing.version,
        f"{standing.rows:,} rows",
        f"{told} (squashed)" if standing.squashed else told,
    )
