"""`lance-dagster repository promote`, `hold`, `release` and `history`: channels; `tag`: names that never move."""

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
    from lance_dagster.repository.commits.snapshot import RefEntry

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


class _RepositoryTagOptions(TypedDict):
    """The options of `tag`."""

    at: str
    message: str | None
    properties: Sequence[str]
    delete: bool
    force: bool


@click.command(epilog="Example: lance-dagster repository promote s3://lake --at main --reason 'prices of May'")
@about_repository
@_with_channel
@click.option("--at", default="main", show_default=True, metavar="REF", help="The commit that it shall name.")
@click.option("--reason", "-m", default="", help="Why; the history shows it.")
@_with_properties
@click.option("--expect", metavar="REF", help="Refuse unless the channel names this commit when it is moved.")
def promote(
    repository: "LanceRepository", output: Output, channel: str, at: str, **options: Unpack[_PromoteOptions]
) -> None:
    """Move a channel to a commit, for all tables at once."""
    # Read before the move, for the line that is printed; the move itself compares with --expect only.
    before = named_by(repository, channel)
    # The log of a channel has ids, so an expression such as production~1 is resolved here.
    expected = None if options["expect"] is None else repository.head(options["expect"]).id
    properties = properties_from(options["properties"])
    promoted = repository.channels.promote(
        channel, at, reason=options["reason"], properties=properties, expected=expected
    )
    _write_move(output, before, promoted)


@click.command("create-channel", epilog="Example: lance-dagster repository create-channel s3://lake staging --at main")
@about_repository
@click.argument("channel")
@click.option("--at", default="main", show_default=True, metavar="REF", help="The commit that it shall name.")
@click.option("--reason", "-m", default="", help="Why; the history shows it.")
@_with_properties
def create_channel(
    repository: "LanceRepository", output: Output, channel: str, at: str, **options: Unpack[_MoveOptions]
) -> None:
    """Create a channel; the first publication creates production automatically."""
    before, properties = named_by(repository, channel), properties_from(options["properties"])
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
    """Delete a channel. The tags of that name in the tables stay, and so does its history.

    Its commits stay readable by commit id as long as collect keeps the commits that refs named.
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


@click.command(epilog="Example: lance-dagster repository tag s3://lake v1.4 --at production")
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


def named_by(repository: "LanceRepository", channel: str) -> str | None:
    """Return the commit that a channel names; None where there is no such channel."""
    try:
        return repository.channels.get(channel).commit
    except RefNotFoundError:
        # The move itself creates the channel, or reports that there is none.
        return None


def _write_move(output: Output, before: str | None, after: "Channel") -> None:
    output.write(move_document(before, after), move_lines(before, after))


def move_lines(before: str | None, after: "Channel") -> list[str]:
    """Return the line of a move of a channel, and a warning for each tag of a table that did not follow."""
    # A repeated call moves nothing, and shows the present commit of the channel.
    shown = "new" if before is None else before[:12]
    moved = f"{shown} -> {after.commit[:12]}" if before != after.commit else f"{shown} already"
    held = f", held by {printable(after.hold.held_by)}: {printable(after.hold.reason)}" if after.hold else ""
    return [f"{after.name}: {moved}{held}", *lagging_lines(after.lagging)]


def move_document(before: str | None, after: "Channel") -> dict[str, Any]:
    """Return a move of a channel as JSON shows it."""
    return {
        "channel": after.name,
        "moved": before != after.commit,
        "from": before,
        "to": after.commit,
        "hold": repository_hold_document(after.hold),
        "lagging": lagging_documents(after.lagging),
    }


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
