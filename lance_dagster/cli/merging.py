"""`lance-dagster merge`, `preview-branch`, `sync` and `merge-base`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned
from lance_dagster.cli.named import BRANCH, REF
from lance_dagster.cli.outcome import (
    conflict_lines,
    conflicts_told,
    exit_refused,
    give_version,
    strategy_from,
    with_message,
    with_strategy,
)
from lance_dagster.cli.versions import document, shown_time

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable, MergePreview

_MERGE, _FAST_FORWARD, _SQUASH = "merge", "ff-only", "squash"


class _Options(TypedDict):
    """The options of `merge` that say how."""

    strategies: Sequence[str]
    ff_only: bool
    squash: bool
    message: str | None


@click.command()
@about_table
@click.argument("source", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch to merge into.")
@click.option("--preview", is_flag=True, help="Only say what would be done. Exits with 1 when it would be refused.")
@with_strategy
@click.option("--ff-only", is_flag=True, help="Refuse when the branch has changes that SOURCE does not contain.")
@click.option("--squash", is_flag=True, help="Take the changes over without recording what was merged.")
@with_message
def merge(
    table: "LanceTable", answer: Answer, source: str, into: str, *, preview: bool, **options: Unpack[_Options]
) -> None:
    """Merge SOURCE, a branch or a version, into a branch of TABLE.

    Only metadata is written. Exits with 1 when both sides contradict each other, and says where; nothing is written
    then.
    """
    if options["ff_only"] and options["squash"]:
        raise click.UsageError("give --ff-only or --squash, not both")
    mode = _FAST_FORWARD if options["ff_only"] else _SQUASH if options["squash"] else _MERGE
    strategy = strategy_from(options["strategies"])
    if preview:
        _preview(answer, table.preview_merge(source, into, strategy=strategy, mode=mode))
        return
    before = table.head(into)
    with conflicts_told(answer):
        made = table.merge(source, into, strategy=strategy, mode=mode, message=options["message"])
    give_version(answer, before, made, f"nothing to do: {made} has everything of {source}")


@click.command("preview-branch")
@about_table
@click.argument("source", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch to merge into.")
@click.option("--name", help="The new branch; preview/ and the name of the source's branch, if not given.")
@with_strategy
def preview_branch(
    table: "LanceTable", answer: Answer, source: str, into: str, name: str | None, strategies: Sequence[str]
) -> None:
    """Make a branch that holds what merging SOURCE would give, for checks to run on."""
    with conflicts_told(answer):
        made = table.preview_branch(source, into, name=name, strategy=strategy_from(strategies))
    head = table.head(made.name)
    answer.give(
        {"branch": made.name, "forked_from": made.parent, "version": document(head)},
        [f"{made.name} from {made.parent}: {head}, {head.rows:,} rows"],
    )


@click.command()
@about_table
@click.argument("branch", type=BRANCH)
@with_strategy
@with_message
def sync(table: "LanceTable", answer: Answer, branch: str, strategies: Sequence[str], message: str | None) -> None:
    """Merge what happened on the branch that BRANCH was forked from into BRANCH."""
    before = table.head(branch)
    with conflicts_told(answer):
        made = table.sync(branch, strategy=strategy_from(strategies), message=message)
    give_version(answer, before, made, f"nothing to do: {made} has everything of the branch it was forked from")


@click.command("merge-base")
@about_table
@click.argument("one", type=REF, metavar="A")
@click.argument("other", type=REF, metavar="B")
def merge_base(table: "LanceTable", answer: Answer, one: str, other: str) -> None:
    """Show the newest version that A and B contain."""
    base = table.merge_base(one, other)
    answer.give(document(base), aligned([(str(base), base.id[:10], shown_time(base), f"{base.rows:,} rows")]))


def _preview(answer: Answer, found: "MergePreview") -> None:
    answer.give({"ok": not found.conflicts, **asdict(found)}, list(_lines(found)))
    if found.conflicts:
        exit_refused()


def _lines(found: "MergePreview") -> Iterator[str]:
    yield f"{found.source} into {found.dest}; merge base {found.base}"
    if found.already_merged:
        yield "nothing to do: it was merged before"
        return
    if found.conflicts:
        yield from conflict_lines(found.conflicts)
        yield f"{len(found.conflicts)} conflict{'s' * (len(found.conflicts) > 1)}; nothing would be written"
        return
    facts = [
        ("rows", f"{found.rows_added:,} added, {found.rows_updated:,} updated, {found.rows_removed:,} removed"),
        ("columns", "changed" if found.schema_changed else "as they are"),
        *(("needs backfill", f"{path}, null in {rows:,} rows") for path, rows in found.needs_backfill.items()),
        *((("reindex needed", ", ".join(found.reindex_needed)),) if found.reindex_needed else ()),
        ("fast-forward", "yes" if found.fast_forward else f"no: {found.dest} has changes of its own"),
    ]
    yield from (f"    {line}" for line in aligned(facts))
