"""`lance-dagster compact`, `clone`, `relocate` and `move-base`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned, storage_options_from
from lance_dagster.cli.named import BRANCH, REF
from lance_dagster.cli.outcome import give_version, properties_from, with_message, with_properties
from lance_dagster.cli.progress import bar
from lance_dagster.cli.versions import document

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable, Relocation, Repointed

_checked = click.option("--check/--no-check", default=True, help="Look for every file first (the default), or do not.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


class _Options(TypedDict):
    """What is worth rewriting, and what is said about it."""

    target_rows: int
    deleted_share: float
    message: str | None
    properties: Sequence[str]


@click.command()
@about_table
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch to compact.")
@click.option(
    "--target-rows",
    type=click.IntRange(min=1),
    default=1024 * 1024,
    show_default=True,
    help="Rows a fragment should have at least.",
)
@click.option(
    "--deleted-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="The share of deleted rows above which a fragment is rewritten even alone.",
)
@with_message
@with_properties
def compact(table: "LanceTable", answer: Answer, branch: str, **options: Unpack[_Options]) -> None:
    """Write small fragments of TABLE, and those with many deleted rows, anew; rows stay as they are.

    Makes two versions: the first one reserves the numbers of the new fragments.
    """
    properties = properties_from(options["properties"])
    before = table.head(branch)
    with bar() as progress:
        made = table.compact(
            branch=branch,
            target_rows=options["target_rows"],
            deleted_share=options["deleted_share"],
            message=options["message"],
            properties=properties,
            progress=progress,
        )
    give_version(answer, before, made, f"nothing to do: no fragment of {made} is worth rewriting")


@click.command()
@about_table
@click.argument("uri")
@click.option("--at", type=REF, default="main", show_default=True, help="The version to clone.")
@click.option("--shallow/--deep", default=True, help="Name the files of TABLE (the default), or copy them.")
@click.option(
    "--to-storage-option",
    "to_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="For the clone; those of TABLE, if not given. May be given again.",
)
def clone(table: "LanceTable", answer: Answer, uri: str, at: str, to_options: Sequence[str], *, shallow: bool) -> None:
    """Make a table at URI out of one version of TABLE.

    A shallow clone lives as long as the files of TABLE do: tag the version that is cloned. History, branches and tags
    stay with TABLE.
    """
    options = storage_options_from(to_options) or None
    source = table.at(at)
    with bar() as progress:
        made = table.clone(uri, str(source), shallow=shallow, storage_options=options, progress=progress)
    head = made.head()
    answer.give(
        {"uri": made.uri, "cloned_from": str(source), "shallow": shallow, "version": document(head)},
        [f"{made.uri}: {head}, {head.rows:,} rows, {'naming the files' if shallow else 'a copy'} of {source}"],
    )


@click.command()
@about_table
@click.option(
    "--from", "old_uri", metavar="URI", help="Where the table was; found out from its branches, if not given."
)
@_checked
@_dry_run
def relocate(table: "LanceTable", answer: Answer, old_uri: str | None, *, check: bool, dry_run: bool) -> None:
    """Make the branches of TABLE work where it is, after it was moved or copied there."""
    with bar() as progress:
        found = table.relocate(old_uri, check=check, dry_run=dry_run, progress=progress)
    _give_relocation(answer, found, dry_run=dry_run)


@click.command("move-base")
@about_table
@click.argument("name")
@click.argument("uri")
@_checked
@_dry_run
def move_base(table: "LanceTable", answer: Answer, name: str, uri: str, *, check: bool, dry_run: bool) -> None:
    """Say that the files under the base path NAME of TABLE are at URI."""
    with bar() as progress:
        found = table.move_base(name, uri, check=check, dry_run=dry_run, progress=progress)
    _give_relocation(answer, found, dry_run=dry_run)


def _give_relocation(answer: Answer, found: "Relocation", *, dry_run: bool) -> None:
    rows = [
        *(("branch", *_row(each, dry_run=dry_run)) for each in found.branches),
        *(("tag", *_row(each, dry_run=dry_run)) for each in found.tags),
    ]
    lines = aligned(rows) if rows else ["nothing to do: everything is named where it is"]
    answer.give({"dry_run": dry_run, **asdict(found)}, lines)


def _row(each: "Repointed", *, dry_run: bool) -> tuple[str, ...]:
    after = each.after or ("a new version" if dry_run else "not done")
    moved = ", ".join(f"{old} is {new}" for old, new in each.paths)
    return (each.name, f"{each.before} -> {after}", f"{each.files:,} files found" if each.files else "", moved)
