"""`lance-dagster promote`, `rollback`, `hold`, `release` and `history`: channels; `tag`: names that never move."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import about_repository, properties_from, refuse_beside, refuse_without
from lance_dagster.cli.output import Output, aligned, first_line, printable
from lance_dagster.cli.repository.repository_commands import lagging_documents, lagging_lines
from lance_dagster.cli.repository.repository_inspect import (
    channel_document,
    repository_hold_document,
    time_of,
    with_limit,
)
from lance_dagster.errors import RefNotFoundError

if TYPE_CHECKING:
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.channel_moves import Channel
    from lance_dagster.repository.commits.snapshot import RefEntry, TableVersion

_with_channel = click.option("--channel", default="production", show_default=True, help="The channel.")
_with_properties = click.option(
    "--property", "properties", metavar="KEY=VALUE", multiple=True, help="Kept in the history; may be given again."
)
_with_reason = click.option("--reason", "-m", required=True, help="Why; the history shows it.")


class _MoveOptions(TypedDict):
    """Why a channel is moved, and what its history keeps."""

    reason: str
    properties: Sequence[str]


class _PromoteOptions(_MoveOptions):
    """The options of `promote`."""

    expect: str | None
    again: bool


class _RollbackOptions(_MoveOptions):
    """The options of `rollback`."""

    to: str | None
    steps: int | None
    tables: Sequence[str]
    hold: bool
    dry_run: bool


class _RepositoryTagOptions(TypedDict):
    """The options of `tag`."""

    at: str
    message: str | None
    properties: Sequence[str]
    delete: bool
    force: bool


@click.command(epilog="Example: lance-dagster promote s3://lake --at main --reason 'prices of May'")
@about_repository
@_with_channel
@click.option("--at", default="main", show_default=True, metavar="REF", help="The commit that it shall name.")
@click.option("--reason", "-m", default="", help="Why; the history shows it.")
@_with_properties
@click.option("--expect", metavar="REF", help="Refuse unless the channel names this commit when it is moved.")
@click.option("--again", is_flag=True, help="Move also to a version of a table that a rollback took back.")
def promote(
    repository: "LanceRepository", output: Output, channel: str, at: str, **options: Unpack[_PromoteOptions]
) -> None:
    """Move a channel to a commit, for all tables at once."""
    # Read before the move, for the line that is printed; the move itself compares with --expect only.
    before = _named_by(repository, channel)
    # The log of a channel has ids, so an expression such as production~1 is resolved here.
    expected = None if options["expect"] is None else repository.head(options["expect"]).id
    properties = properties_from(options["properties"])
    promoted = repository.channels.promote(
        channel, at, reason=options["reason"], properties=properties, expected=expected, again=options["again"]
    )
    _write_move(output, before, promoted)


@click.command(epilog="Example: lance-dagster rollback s3://lake --tables shop/orders --to production~1 -m doubled")
@about_repository
@click.option("--to", metavar="REF", help="Where to go back to, such as production~1; 1 step if not given.")
@click.option("--steps", type=click.IntRange(min=1), help="In place of --to: how many promotions.")
@click.option("--tables", metavar="NAMES", multiple=True, help="Only these tables, separated by commas; else all.")
@_with_channel
@click.option("--reason", "-m", default="", help="Why; the history shows it. Needed, except with --dry-run.")
@click.option("--hold/--no-hold", default=True, help="Hold the channel there (the default), or leave it free to move.")
@click.option("--dry-run", is_flag=True, help="Show what readers of each table would see, and change nothing.")
@_with_properties
def rollback(repository: "LanceRepository", output: Output, channel: str, **options: Unpack[_RollbackOptions]) -> None:
    """Take readers back to an earlier promotion, for all tables of a channel or for some.

    A channel is what readers of a lake follow; the tag of its name in each table is its shadow. Other tables stay as
    they are. production~1 counts the promotions of the tables that go back, without those that were rolled back before.
    A hold is one for all tables: nothing is published to the channel until `release`.
    """
    if options["to"] is not None and options["steps"] is not None:
        raise click.UsageError("give --steps or --to, not both")
    if not (options["reason"] or options["dry_run"]):
        raise click.UsageError("missing option '--reason' / '-m'")
    names = [name.strip() for text in options["tables"] for name in text.split(",")]
    before = _named_by(repository, channel)
    rolled_back = repository.channels.rollback(
        channel,
        reason=options["reason"],
        tables=names or None,
        **({"steps": options["steps"] or 1} if options["to"] is None else {"to": options["to"]}),
        hold=options["hold"],
        properties=properties_from(options["properties"]),
        dry_run=options["dry_run"],
    )
    document = {
        **_move_document(before, rolled_back),
        "dry_run": options["dry_run"],
        "tables": [
            {"name": move.name, "before": _version(move.before), "after": _version(move.after)}
            for move in rolled_back.moves
        ],
        "left": list(rolled_back.left),
    }
    first = [f"{channel}: dry run, nothing changed"] if options["dry_run"] else _move_lines(before, rolled_back)
    output.write(document, [*first, *_table_lines(rolled_back, is_dry_run=options["dry_run"])])


@click.command("create-channel", epilog="Example: lance-dagster create-channel s3://lake staging --at main")
@about_repository
@click.argument("channel")
@click.option("--at", default="main", show_default=True, metavar="REF", help="The commit that it shall name.")
@click.option("--reason", "-m", default="", help="Why; the history shows it.")
@_with_properties
def create_channel(
    repository: "LanceRepository", output: Output, channel: str, at: str, **options: Unpack[_MoveOptions]
) -> None:
    """Create a channel; the first publication creates production automatically."""
    before, properties = _named_by(repository, channel), properties_from(options["properties"])
    created = repository.channels.create(channel, at, reason=options["reason"], properties=properties)
    _write_move(output, before, created)


@click.command("delete-channel")
@about_repository
@click.argument("channel")
@_with_reason
@_with_properties
def delete_channel(
    repository: "LanceRepository", output: Output, channel: str, **options: Unpack[_MoveOptions]
) -> None:
    """Delete a channel. Its history stays, and so do the tags of its name in the tables.

    Its commits stay readable by commit id as long as free keeps the commits that refs named.
    """
    # Read before: the entry of a deletion names no commit, and the output shows the commit that the channel named.
    before = repository.channels.get(channel)
    properties = properties_from(options["properties"])
    repository.channels.delete(channel, reason=options["reason"], properties=properties)
    output.write(
        {"name": channel, "deleted": True, "commit": before.commit}, [f"{channel}: {before.commit[:12]}, deleted"]
    )


@click.command()
@about_repository
@_with_channel
@_with_reason
@_with_properties
def hold(repository: "LanceRepository", output: Output, channel: str, **options: Unpack[_MoveOptions]) -> None:
    """Keep a channel where it is until it is released."""
    properties = properties_from(options["properties"])
    held = repository.channels.hold(channel, reason=options["reason"], properties=properties)
    _write_channel(output, held, "held")


@click.command()
@about_repository
@_with_channel
@_with_reason
@_with_properties
def release(repository: "LanceRepository", output: Output, channel: str, **options: Unpack[_MoveOptions]) -> None:
    """Let a held channel move again."""
    properties = properties_from(options["properties"])
    released = repository.channels.release(channel, reason=options["reason"], properties=properties)
    _write_channel(output, released, "free to move")


@click.command()
@about_repository
@_with_channel
@with_limit
def history(repository: "LanceRepository", output: Output, channel: str, limit: int | None) -> None:
    """Show who moved a channel when, where to and why, newest first."""
    entries = repository.channels.history(channel, limit)
    rows = [
        (
            f"{channel}@{entry.number}",
            time_of(entry.at),
            entry.action,
            entry.commit[:12],
            printable(entry.by),
            first_line(entry.reason),
        )
        for entry in entries
    ]
    # Reasons are cut first where the terminal is narrow; ids and times are useless when cut.
    output.write([_entry_document(entry) for entry in entries], aligned(rows, uncut=(0, 1, 2, 3)))


@click.command(epilog="Example: lance-dagster tag s3://lake v1.4 --at production")
@about_repository
@click.argument("name")
@click.option("--at", default="main", show_default=True, metavar="REF", help="The commit to name.")
@click.option("--message", "-m", help="What the commit stands for.")
@click.option("--property", "properties", metavar="KEY=VALUE", multiple=True, help="Kept with it; may be given again.")
@click.option("--delete", "-d", is_flag=True, help="Delete the tag of the repository; those of the tables stay.")
@click.option("--force", is_flag=True, help="With --delete: needed, since a repository tag is meant to stay.")
def tag(repository: "LanceRepository", output: Output, name: str, **options: Unpack[_RepositoryTagOptions]) -> None:
    """Name a commit permanently by the repository tag NAME, in the repository and in each of its tables."""
    if options["delete"]:
        refuse_beside("--delete", "at", "message", "properties")
        repository.tags.delete(name, force=options["force"])
        output.write({"name": name, "deleted": True}, [f"{name}: deleted"])
        return
    refuse_without("--delete", "force")
    message, properties = options["message"] or "", properties_from(options["properties"])
    created, lagging = repository.tags.create(name, options["at"], message=message, properties=properties)
    document = {"name": created.name, "commit": created.commit, "lagging": lagging_documents(lagging)}
    output.write(document, [f"{created.name}: {created.commit[:12]}", *lagging_lines(lagging)])


def _named_by(repository: "LanceRepository", channel: str) -> str | None:
    """Return the commit that a channel names; None where there is no such channel."""
    try:
        return repository.channels.get(channel).commit
    except RefNotFoundError:
        # The move itself creates the channel, or reports that there is none.
        return None


def _write_move(output: Output, before: str | None, after: "Channel") -> None:
    output.write(_move_document(before, after), _move_lines(before, after))


def _move_lines(before: str | None, after: "Channel") -> list[str]:
    """Return the line of a move of a channel, and a warning for each tag of a table that did not follow."""
    # A repeated call moves nothing, and shows the present commit of the channel.
    shown = "new" if before is None else before[:12]
    moved = f"{shown} -> {after.commit[:12]}" if before != after.commit else f"{shown} already"
    held = f", held by {printable(after.hold.held_by)}: {printable(after.hold.reason)}" if after.hold else ""
    return [f"{after.name}: {moved}{held}", *lagging_lines(after.lagging)]


def _move_document(before: str | None, after: "Channel") -> dict[str, Any]:
    """Return a move of a channel as JSON shows it."""
    return {
        "channel": after.name,
        "moved": before != after.commit,
        "from": before,
        "to": after.commit,
        "hold": repository_hold_document(after.hold),
        "lagging": lagging_documents(after.lagging),
    }


def _table_lines(channel: "Channel", *, is_dry_run: bool) -> list[str]:
    """Return a line for each table that goes back, and a line for tables that were promoted with it and stay."""
    if not (channel.moves or is_dry_run):
        return ["this rollback was made before; another --reason, or another --to, goes further back"]
    remaining = (
        f"not taken back, though the same promotions moved it: {', '.join(channel.left)}; --tables takes more names"
    )
    return [*(f"  {printable(str(move))}" for move in channel.moves), *([remaining] if channel.left else [])]


def _version(at: "TableVersion | None") -> str | None:
    return None if at is None else at.on_main


def _write_channel(output: Output, channel: "Channel", state: str) -> None:
    output.write(channel_document(channel), [f"{channel.name}: {channel.commit[:12]}, {state}"])


def _entry_document(entry: "RefEntry") -> dict[str, Any]:
    return {
        "number": entry.number,
        "action": entry.action,
        "commit": entry.commit,
        "by": entry.by,
        "at": entry.at.isoformat(),
        "reason": entry.reason,
        "hold": repository_hold_document(entry.hold),
        "properties": dict(entry.properties),
    }
