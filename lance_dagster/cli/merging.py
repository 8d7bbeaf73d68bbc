"""`lance-dagster merge`, `preview-branch`, `sync` and `merge-base`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned, refuse_beside, refuse_without
from lance_dagster.cli.conflict_rows import RowOptions, ShownRows, with_rows
from lance_dagster.cli.named import BRANCH, REF
from lance_dagster.cli.outcome import (
    Noted,
    conflict_lines,
    conflicts_told,
    exit_refused,
    give_version,
    hint_for,
    properties_from,
    strategy_from,
    with_message,
    with_properties,
    with_strategy,
)
from lance_dagster.cli.progress import busy
from lance_dagster.cli.versions import document, shown_time
from lance_dagster.errors import AlreadyExistsError, ConflictError, Remedy

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable, MergePreview

_MERGE, _FAST_FORWARD, _SQUASH = "merge", "ff-only", "squash"


class _Options(RowOptions):
    """The options of `merge` that say how."""

    strategies: Sequence[str]
    ff_only: bool
    squash: bool
    message: str | None
    properties: Sequence[str]


class _PreviewOptions(TypedDict):
    """The options of `preview-branch` that say how."""

    name: str | None
    replace: bool
    strategies: Sequence[str]


@click.command()
@about_table
@click.argument("source", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch to merge into.")
@click.option("--preview", is_flag=True, help="Only say what would be done. Exits with 1 when it would be refused.")
@with_rows
@with_strategy
@click.option("--ff-only", is_flag=True, help="Refuse when the branch has changes that SOURCE does not contain.")
@click.option("--squash", is_flag=True, help="Take the changes over without recording what was merged.")
@with_message
@with_properties
def merge(
    table: "LanceTable", answer: Answer, source: str, into: str, *, preview: bool, **options: Unpack[_Options]
) -> None:
    """Merge SOURCE, a branch or a version, into a branch of TABLE.

    Only metadata is written. Exits with 1 when both sides contradict each other, and says where; nothing is written
    then.
    """
    if options["ff_only"] and options["squash"]:
        raise click.UsageError("give --ff-only or --squash, not both")
    if preview:
        refuse_beside("--preview", "message", "properties")
    else:
        refuse_without("--preview", "rows")
    if not options["rows"]:
        refuse_without("--rows", "limit", "keys", "columns")
    mode = _FAST_FORWARD if options["ff_only"] else _SQUASH if options["squash"] else _MERGE
    strategy, properties = strategy_from(options["strategies"]), properties_from(options["properties"])
    if preview:
        with busy("looking for conflicts"):
            found = table.preview_merge(source, into, strategy=strategy, mode=mode)
            rows = ShownRows.of(found, options)
        _preview(answer, found, rows, hint_for(found.conflicts, strategy, f"{into}...{source}"))
        return
    before = table.head(into)
    with conflicts_told(answer, strategy, lambda: f"{into}...{source}"), busy("merging"):
        made = table.merge(
            source, into, strategy=strategy, mode=mode, message=options["message"], properties=properties
        )
    give_version(answer, before, made, f"nothing to do: {made} has everything of {source}")


@click.command("preview-branch")
@about_table
@click.argument("source", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch to merge into.")
@click.option("--name", help="The new branch; preview/ and the name of the source's branch, if not given.")
@click.option("--replace", is_flag=True, help="Delete the preview that has the name, once the merge is known to work.")
@with_strategy
def preview_branch(
    table: "LanceTable", answer: Answer, source: str, into: str, **options: Unpack[_PreviewOptions]
) -> None:
    """Make a branch that holds what merging SOURCE would give, for checks to run on."""
    strategy = strategy_from(options["strategies"])
    make = partial(table.preview_branch, source, into, name=options["name"], strategy=strategy)
    with conflicts_told(answer, strategy, lambda: f"{into}...{source}"), busy("merging"):
        try:
            made = make()
        except AlreadyExistsError as error:
            if not options["replace"]:
                raise AlreadyExistsError(error.complaint, remedy=Remedy("--replace makes a preview anew")) from error
            _delete_preview(table, options["name"], source, into)
            made = make()
    head = table.head(made.name)
    answer.give(
        {"branch": made.name, "forked_from": made.parent, "version": document(head)},
        [f"{made.name} from {made.parent}: {head}, {head.rows:,} rows"],
    )


def _delete_preview(table: "LanceTable", name: str | None, source: str, into: str) -> None:
    """Delete the branch that is in the way of a preview, if it is one."""
    from lance_dagster.merge.preview import PREVIEW_OF, PREVIEWING
    from lance_dagster.table.merging import preview_name

    found = table.branch(name or preview_name(table.at(source).branch, into))
    if not {PREVIEW_OF, PREVIEWING} & found.metadata.keys():
        raise ConflictError(f"branch {found.name!r} of {table.uri} is no preview; give another --name, or delete it")
    table.delete_branch(found.name)


@click.command(epilog="Example: lance-dagster sync orders.lance work --strategy rows=dest-wins")
@about_table
@click.argument("branch", type=BRANCH)
@with_strategy
@with_message
@with_properties
def sync(table: "LanceTable", answer: Answer, branch: str, strategies: Sequence[str], **note: Unpack[Noted]) -> None:
    """Merge what happened on the branch that BRANCH was forked from into BRANCH."""
    before = table.head(branch)
    strategy, properties = strategy_from(strategies), properties_from(note["properties"])
    with conflicts_told(answer, strategy, lambda: f"{branch}...{table.branch(branch).parent_branch}"), busy("merging"):
        made = table.sync(branch, strategy=strategy, message=note["message"], properties=properties)
    give_version(answer, before, made, f"nothing to do: {made} has everything of the branch it was forked from")


@click.command("merge-base")
@about_table
@click.argument("one", type=REF, metavar="A")
@click.argument("other", type=REF, metavar="B")
def merge_base(table: "LanceTable", answer: Answer, one: str, other: str) -> None:
    """Show the newest version that A and B contain."""
    base = table.merge_base(one, other)
    answer.give(document(base), aligned([(str(base), base.id[:10], shown_time(base), f"{base.rows:,} rows")]))


def _preview(answer: Answer, found: "MergePreview", rows: ShownRows, hint: str) -> None:
    facts = {name: value for name, value in asdict(found).items() if not name.startswith("_")}
    answer.give({"ok": not found.conflicts, **facts, **rows.document}, [*_lines(found), *rows.lines])
    if found.conflicts:
        exit_refused(hint)


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
