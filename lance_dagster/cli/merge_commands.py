"""`lance-dagster table merge`, `preview-branch`, `sync`, `merge-base`, `cherry-pick`, `revert` and `restore`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import (
    BRANCH,
    REF,
    CommitOptions,
    about_table,
    properties_from,
    refuse_beside,
    refuse_without,
    strategy_from,
    with_message,
    with_properties,
    with_strategy,
)
from lance_dagster.cli.conflict_output import (
    PrintedRows,
    RowOptions,
    conflict_lines,
    exit_refused,
    hint_for,
    report_conflicts,
    with_rows,
)
from lance_dagster.cli.output import (
    ID_DIGITS,
    Output,
    aligned,
    busy,
    first_line,
    shown_time,
    version_document,
)
from lance_dagster.errors import AlreadyExistsError, ConflictError, Remedy, counted
from lance_dagster.format.transaction import NEEDS_BACKFILL

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.merge.merge_commit import MergeMode
    from lance_dagster.merge.preview import MergePreview
    from lance_dagster.table import LanceTable

_with_parent = click.option(
    "--parent", type=click.IntRange(min=1), help="For a merge: the parent it is compared with, counted from 1."
)


class _MergeOptions(RowOptions):
    """The options of `merge` about the way of merging."""

    strategies: Sequence[str]
    ff_only: bool
    squash: bool
    message: str | None
    properties: Sequence[str]


class _PreviewOptions(TypedDict):
    """The options of `preview-branch` about the way of merging."""

    name: str | None
    replace: bool
    strategies: Sequence[str]


class _PickOptions(CommitOptions):
    """The options of `cherry-pick` and `revert`."""

    parent: int | None
    strategies: Sequence[str]


@click.command()
@about_table
@click.argument("source", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch to merge into.")
@click.option("--preview", is_flag=True, help="Only show what would be done. Exits with 1 when it would be refused.")
@with_rows
@with_strategy
@click.option("--ff-only", is_flag=True, help="Refuse when the branch has changes that SOURCE does not contain.")
@click.option("--squash", is_flag=True, help="Apply the changes without recording the merge.")
@with_message
@with_properties
def merge(
    table: "LanceTable", output: Output, source: str, into: str, *, preview: bool, **options: Unpack[_MergeOptions]
) -> None:
    """Merge SOURCE, a branch or a version, into a branch of TABLE.

    Writes only metadata, and rows that combine cells of both sides. With conflicts, prints all of them, writes nothing
    and exits with 1.
    """
    # All options are checked before the merge begins, so that a wrong call changes nothing.
    if options["ff_only"] and options["squash"]:
        raise click.UsageError("give --ff-only or --squash, not both")
    if preview:
        refuse_beside("--preview", "message", "properties")
    else:
        refuse_without("--preview", "rows")
    if not options["rows"]:
        refuse_without("--rows", "limit", "keys", "columns")
    mode: MergeMode = "ff-only" if options["ff_only"] else "squash" if options["squash"] else "merge"
    strategy, properties = strategy_from(options["strategies"]), properties_from(options["properties"])
    if preview:
        # The rows are read within the block too: that can take longer than the merge itself.
        with busy("looking for conflicts"):
            merge_preview = table.preview_merge(source, into, strategy=strategy, mode=mode)
            rows = PrintedRows.of(merge_preview, options)
        _write_preview(
            output, merge_preview, rows, hint_for(merge_preview.conflicts, merge_preview.remedy, f"{into}...{source}")
        )
        return
    # The head is read before the merge: the output says whether a version was made.
    before = table.head(into)
    with report_conflicts(output, lambda: f"{into}...{source}"), busy("merging"):
        merged = table.merge(
            source, into, strategy=strategy, mode=mode, message=options["message"], properties=properties
        )
    write_version(output, before, merged, f"nothing to do: {merged} has everything of {source}")


@click.command("preview-branch")
@about_table
@click.argument("source", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch to merge into.")
@click.option("--name", help="The new branch; preview/ and the name of the source's branch, if not given.")
@click.option("--replace", is_flag=True, help="Delete the preview of that name, once the merge has no conflict.")
@with_strategy
def preview_branch(
    table: "LanceTable", output: Output, source: str, into: str, **options: Unpack[_PreviewOptions]
) -> None:
    """Create a branch with the result of merging SOURCE, for checks to run on."""
    strategy = strategy_from(options["strategies"])
    make = partial(table.branches.preview, source, into, name=options["name"], strategy=strategy)
    with report_conflicts(output, lambda: f"{into}...{source}"), busy("merging"):
        try:
            # Tried first, also with --replace: a merge in conflict is refused here, and the present preview stays.
            previewed = make()
        except AlreadyExistsError as error:
            if not options["replace"]:
                raise AlreadyExistsError(error.complaint, remedy=Remedy("--replace replaces a preview")) from error
            _delete_preview(table, options["name"], source, into)
            previewed = make()
    head = table.head(previewed.name)
    output.write(
        {"branch": previewed.name, "forked_from": previewed.parent, "version": version_document(head)},
        [f"{previewed.name} from {previewed.parent}: {head}, {counted(head.rows, 'row')}"],
    )


def _delete_preview(table: "LanceTable", name: str | None, source: str, into: str) -> None:
    """Delete the branch that has the name of a preview.

    Raises:
        ConflictError: It is not a preview, so it may hold other work.
    """
    from lance_dagster.merge.preview import PREVIEW_OF, PREVIEWING
    from lance_dagster.table.branches import preview_name

    present = table.branches.get(name or preview_name(table.at(source).branch, into))
    # A preview whose merge was interrupted has only the second key, and may be replaced too.
    if not {PREVIEW_OF, PREVIEWING} & present.metadata.keys():
        raise ConflictError(
            f"branch {present.name!r} of {table.uri} is not a preview; give another --name, or delete it"
        )
    table.branches.delete(present.name)


@click.command(epilog="Example: lance-dagster table sync orders.lance work --strategy rows=dest-wins")
@about_table
@click.argument("branch", type=BRANCH)
@with_strategy
@with_message
@with_properties
def sync(
    table: "LanceTable", output: Output, branch: str, strategies: Sequence[str], **options: Unpack[CommitOptions]
) -> None:
    """Merge the branch that BRANCH was forked from into BRANCH."""
    before = table.head(branch)
    strategy, properties = strategy_from(strategies), properties_from(options["properties"])

    def changes() -> str:
        # The range is computed only for a conflict, since finding the parent reads the branch file.
        return f"{branch}...{table.branches.get(branch).parent_branch}"

    with report_conflicts(output, changes), busy("merging"):
        synced = table.branches.sync(branch, strategy=strategy, message=options["message"], properties=properties)
    write_version(output, before, synced, f"nothing to do: {synced} has everything of the branch it was forked from")


@click.command("merge-base")
@about_table
@click.argument("first", type=REF, metavar="A")
@click.argument("second", type=REF, metavar="B")
def merge_base(table: "LanceTable", output: Output, first: str, second: str) -> None:
    """Show the newest version that A and B contain."""
    base = table.branches.merge_base(first, second)
    row = (str(base), base.id[:ID_DIGITS], shown_time(base), counted(base.rows, "row"))
    output.write(version_document(base), aligned([row]))


@click.command("cherry-pick")
@about_table
@click.argument("version", type=REF)
@click.option("--into", type=BRANCH, default="main", show_default=True, help="The branch that gets the change.")
@_with_parent
@with_strategy
@with_message
@with_properties
def cherry_pick(table: "LanceTable", output: Output, version: str, into: str, **options: Unpack[_PickOptions]) -> None:
    """Apply the change of one VERSION to another branch."""
    parent, strategy = options["parent"], strategy_from(options["strategies"])
    message, properties = options["message"], properties_from(options["properties"])
    before = table.head(into)
    # The change of a version is its difference from the parent, so the hint shows that range.
    with report_conflicts(output, lambda: f"{version}^{parent or ''}..{version}"), busy("merging"):
        picked = table.cherry_pick(
            version, into, parent=parent, strategy=strategy, message=message, properties=properties
        )
    write_version(output, before, picked, f"nothing to do: {picked} has the change already")


@click.command()
@about_table
@click.argument("version", type=REF)
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch to undo it on.")
@_with_parent
@with_strategy
@with_message
@with_properties
def revert(table: "LanceTable", output: Output, version: str, branch: str, **options: Unpack[_PickOptions]) -> None:
    """Undo the change of one VERSION, and keep later changes."""
    parent, strategy = options["parent"], strategy_from(options["strategies"])
    message, properties = options["message"], properties_from(options["properties"])
    before = table.head(branch)
    # Changes after the version can conflict with undoing it, so the hint shows that range.
    with report_conflicts(output, lambda: f"{version}..{branch}"), busy("merging"):
        reverted = table.revert(
            version, branch, parent=parent, strategy=strategy, message=message, properties=properties
        )
    write_version(output, before, reverted, f"nothing to do: {reverted} does not have the change")


@click.command()
@about_table
@click.argument("version", type=REF)
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch to restore.")
@with_message
@with_properties
def restore(table: "LanceTable", output: Output, version: str, branch: str, **options: Unpack[CommitOptions]) -> None:
    """Restore an older VERSION of a branch as a new version; later versions stay in the log."""
    before = table.head(branch)
    properties = properties_from(options["properties"])
    restored = table.restore(version, branch, message=options["message"], properties=properties)
    write_version(output, before, restored, f"nothing to do: {restored} is the newest version")


def write_version(output: Output, before: "Version", after: "Version", nothing: str) -> None:
    """Print which version was made, or why none had to be.

    Args:
        output: Where to print.
        before: The newest version of the branch before.
        after: The version that has the result.
        nothing: What to print when that version existed before.
    """
    from lance_dagster.edit.write_result import WriteResult

    # A merge that was made before returns the version that has it, which is not newer than the head.
    new = after.number > before.number
    # A compaction makes a version and changes no row.
    counts = after.counts if isinstance(after, WriteResult) else dict.fromkeys(("added", "deleted", "updated"), 0)
    document = {
        "made": new,
        "before": str(before),
        "version": version_document(after),
        **{f"rows_{verb}": count for verb, count in counts.items()},
        "conflicts": [],
    }
    # The rows that changed are printed, so that an unexpected result is noticed.
    changed = ", ".join(f"{count:,} {verb}" for verb, count in counts.items() if count)
    rows = counted(after.rows, "row") + (f" ({changed})" if changed else "")
    lines = [f"{before} -> {after}  {rows}  {first_line(after.message)}".rstrip() if new else nothing]
    # The property of an older version says nothing about this call.
    lacking = json.loads(after.properties.get(NEEDS_BACKFILL, "{}")) if new else {}
    lines += [f"needs backfill: {path}, null in {counted(count, 'row')}" for path, count in lacking.items()]
    output.write(document, lines)


def _write_preview(output: Output, preview: "MergePreview", rows: PrintedRows, hint: str) -> None:
    # The remedy is printed as a hint, and private fields are not part of the document.
    facts = {name: value for name, value in asdict(preview).items() if not name.startswith("_") and name != "remedy"}
    output.write({"ok": preview.ok, **facts, **rows.document}, [*_preview_lines(preview), *rows.lines])
    if preview.conflicts:
        exit_refused(hint)


def _preview_lines(preview: "MergePreview") -> Iterator[str]:
    yield f"{preview.source} into {preview.dest}; merge base {preview.base}"
    if preview.already_merged:
        yield "nothing to do: it was merged before"
        return
    # The counts below are for a merge that can be made, so conflicts take their place.
    if preview.conflicts:
        yield from conflict_lines(preview.conflicts)
        yield f"{counted(len(preview.conflicts), 'conflict')}; nothing would be written"
        return
    facts = [
        ("rows", f"{preview.rows_added:,} added, {preview.rows_updated:,} updated, {preview.rows_deleted:,} deleted"),
        *(
            (("of both sides", f"{counted(preview.rows_combined, 'row')} written anew"),)
            if preview.rows_combined
            else ()
        ),
        ("columns", "changed" if preview.schema_changed else "as they are"),
        *(
            ("needs backfill", f"{path}, null in {counted(rows, 'row')}")
            for path, rows in preview.needs_backfill.items()
        ),
        *((("reindex needed", ", ".join(preview.reindex_needed)),) if preview.reindex_needed else ()),
        ("fast-forward", "yes" if preview.fast_forward else f"no: {preview.dest} has changes of its own"),
    ]
    yield from aligned(facts, indent="    ")
