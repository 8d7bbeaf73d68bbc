"""`lance-dagster cherry-pick`, `revert`, `restore` and `reset`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import click

from lance_dagster.cli.command import Answer, about_table
from lance_dagster.cli.named import BRANCH, REF
from lance_dagster.cli.outcome import (
    Noted,
    conflicts_told,
    give_version,
    properties_from,
    strategy_from,
    with_message,
    with_properties,
    with_strategy,
)
from lance_dagster.cli.progress import busy
from lance_dagster.errors import NotFoundError

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable

_with_parent = click.option(
    "--parent", type=click.IntRange(min=1), help="For a merge: the parent its change is seen from, counted from 1."
)


class _Options(Noted):
    """How a change is taken over or taken back."""

    parent: int | None
    strategies: Sequence[str]


@click.command("cherry-pick")
@about_table
@click.argument("version", type=REF)
@click.option("--onto", type=BRANCH, default="main", show_default=True, help="The branch that gets the change.")
@_with_parent
@with_strategy
@with_message
@with_properties
def cherry_pick(table: "LanceTable", answer: Answer, version: str, onto: str, **options: Unpack[_Options]) -> None:
    """Make the change of one VERSION on another branch too."""
    parent, strategy = options["parent"], strategy_from(options["strategies"])
    properties = properties_from(options["properties"], options["message"])
    before = table.head(onto)
    with conflicts_told(answer, strategy, lambda: f"{version}^{parent or ''}..{version}"), busy("merging"):
        made = table.cherry_pick(version, onto, parent=parent, strategy=strategy, properties=properties)
    give_version(answer, before, made, f"nothing to do: {made} has the change already")


@click.command()
@about_table
@click.argument("version", type=REF)
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch it is taken back on.")
@_with_parent
@with_strategy
@with_message
@with_properties
def revert(table: "LanceTable", answer: Answer, version: str, branch: str, **options: Unpack[_Options]) -> None:
    """Take the change of one VERSION back, and keep what was done since."""
    parent, strategy = options["parent"], strategy_from(options["strategies"])
    properties = properties_from(options["properties"], options["message"])
    before = table.head(branch)
    with conflicts_told(answer, strategy, lambda: f"{version}..{branch}"), busy("merging"):
        made = table.revert(version, branch, parent=parent, strategy=strategy, properties=properties)
    give_version(answer, before, made, f"nothing to do: {made} does not have the change")


@click.command()
@about_table
@click.argument("version", type=REF)
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch to take back.")
@with_message
@with_properties
def restore(table: "LanceTable", answer: Answer, version: str, branch: str, **options: Unpack[Noted]) -> None:
    """Make an older VERSION of a branch its newest one; what came after stays in the log."""
    before = table.head(branch)
    properties = properties_from(options["properties"])
    made = table.restore(version, branch, message=options["message"], properties=properties)
    give_version(answer, before, made, f"nothing to do: {made} is the newest version")


@click.command(epilog="Example: lance-dagster reset orders.lance work --at production")
@about_table
@click.argument("branch", type=BRANCH)
@click.option("--at", type=REF, default="main", show_default=True, help="The version to start from.")
def reset(table: "LanceTable", answer: Answer, branch: str, at: str) -> None:
    """Make BRANCH start anew from a version of another branch; what it had is gone."""
    before = _head(table, branch)
    made = table.reset(branch, at)
    head = table.head(branch)
    answer.give(
        {"branch": made.name, "before": before, "head": str(head), "forked_from": made.parent},
        [f"{made.name}: {before or 'empty'} -> {head}, from {made.parent}"],
    )


def _head(table: "LanceTable", branch: str) -> str | None:
    try:
        return str(table.head(branch))
    except NotFoundError:
        # A reset that died on the way, which this one finishes; or there is no such branch, as that says.
        return None
