"""`lance-dagster rollback`: move a channel back, for all of its tables or for some, or the tag of a lone table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import REF, about_place, properties_from, refuse_beside
from lance_dagster.cli.output import Output, printable
from lance_dagster.cli.ref_commands import (
    target_before,
    target_of,
    with_expected,
    with_force,
    with_tag,
    write_tag_move,
)
from lance_dagster.cli.repository.channel_commands import move_document, move_lines, named_by
from lance_dagster.errors import Call, InvalidInputError, Remedy

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_files import Tag
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.channel_moves import Channel, TableMove
    from lance_dagster.repository.commits.snapshot import TableVersion
    from lance_dagster.table import LanceTable

_OF_LAKES = ("tables", "channel", "reason", "hold", "dry_run", "properties")
_OF_TABLES = ("name", "expect", "force")


class _RollbackOptions(TypedDict):
    """The options of `rollback`."""

    to: str | None
    steps: int | None
    tables: Sequence[str]
    channel: str
    reason: str | None
    hold: bool
    dry_run: bool
    properties: Sequence[str]
    name: str
    expect: str | None
    force: bool


@click.command(epilog="Example: lance-dagster rollback s3://lake --tables shop/orders --to production~1 -m doubled")
@about_place
@click.option("--to", type=REF, metavar="REF", help="Where to go back to, such as production~1; 1 step if not given.")
@click.option("--steps", type=click.IntRange(min=1), help="In place of --to: how many promotions, or moves of a tag.")
@click.option("--tables", metavar="NAMES", multiple=True, help="Only these tables, separated by commas; else all.")
@click.option("--channel", default="production", show_default=True, help="The channel.")
@click.option("--reason", "-m", help="Why; the history of the channel shows it. Needed for a channel.")
@click.option("--hold/--no-hold", default=True, help="Hold the channel there (the default), or leave it free to move.")
@click.option("--dry-run", is_flag=True, help="Show what readers of each table would see, and change nothing.")
@click.option(
    "--property", "properties", metavar="KEY=VALUE", multiple=True, help="Kept in the history; may be given again."
)
@with_tag
@with_expected
@with_force
def rollback(place: "LanceRepository | LanceTable", output: Output, **options: Unpack[_RollbackOptions]) -> None:
    """Take readers of LAKE back to an earlier promotion, for all tables of a channel or for some.

    A channel is what readers of a repository follow; the tag of its name in each table is its shadow. Other tables stay
    as they are. production~1 counts the promotions of the tables that go back, without those that were rolled back
    before. A hold is one for all tables: nothing is published to the channel until `repository release`.

    LAKE may also be a table without a repository. Then its tag goes back to a version that it named before.
    """
    from lance_dagster.repository import LanceRepository

    if options["to"] is not None and options["steps"] is not None:
        raise click.UsageError("give --steps or --to, not both")
    if isinstance(place, LanceRepository):
        refuse_beside("a repository", *_OF_TABLES)
        _roll_back_channel(place, output, options)
    else:
        refuse_beside("a table", *_OF_LAKES)
        _roll_back_tag(place, output, options)


def _roll_back_channel(repository: "LanceRepository", output: Output, options: _RollbackOptions) -> None:
    if options["reason"] is None:
        raise click.UsageError("missing option '--reason'")
    names = [name.strip() for text in options["tables"] for name in text.split(",")]
    before = named_by(repository, options["channel"])
    channel = repository.channels.rollback(
        options["channel"],
        reason=options["reason"],
        tables=names or None,
        **({"steps": options["steps"] or 1} if options["to"] is None else {"to": options["to"]}),
        hold=options["hold"],
        properties=properties_from(options["properties"]),
        dry_run=options["dry_run"],
    )
    document = {
        **move_document(before, channel),
        "dry_run": options["dry_run"],
        "tables": [_move_document(move) for move in channel.moves],
        "left": list(channel.left),
    }
    first = [f"{channel.name}: dry run, nothing changed"] if options["dry_run"] else move_lines(before, channel)
    output.write(document, [*first, *_table_lines(channel, is_dry_run=options["dry_run"])])


def _table_lines(channel: "Channel", *, is_dry_run: bool) -> list[str]:
    """Return a line for each table that goes back, and a line for tables that were promoted with it and stay."""
    if not (channel.moves or is_dry_run):
        return ["this rollback was made before; another --reason, or another --to, goes further back"]
    remaining = (
        f"not taken back, though the same promotions moved it: {', '.join(channel.left)}; --tables takes more names"
    )
    return [*(f"  {printable(str(move))}" for move in channel.moves), *([remaining] if channel.left else [])]


def _move_document(move: "TableMove") -> dict[str, str | None]:
    return {"name": move.name, "before": _version(move.before), "after": _version(move.after)}


def _version(at: "TableVersion | None") -> str | None:
    return None if at is None else at.on_main


def _roll_back_tag(table: "LanceTable", output: Output, options: _RollbackOptions) -> None:
    from lance_dagster.history.refs.followed_channel import refuse_following

    to, expect = options["to"], options["expect"]
    current = table.tags.get(options["name"])
    # A repeated call finds the tag at its goal. It must not go back further, to an older move to the same version.
    if to is not None and str(table.at(to)) == current.ref:
        if expect is not None:
            # Moves nothing, but refuses where the tag is not at the version that was expected.
            current = table.tags.move(current.name, to, expected=table.at(expect))
        write_tag_move(output, current.ref, current)
        return
    if not options["force"]:
        # Before the history of the tag is searched: the error about that would suggest to move the tag alone.
        refuse_following("roll back", current, table, options["steps"] or 1)
    count = options["steps"] or 1 if to is None else _steps_to(table, current, str(table.at(to)))
    # The steps were counted from the target read above: a tag that was moved since would end somewhere else.
    expected = table.at(expect) if expect is not None else target_of(table, current)
    moved = table.tags.rollback(current.name, count, expected=expected, force=options["force"])
    write_tag_move(output, target_before(current, expected), moved)


def _steps_to(table: "LanceTable", tag: "Tag", version: str) -> int:
    """Return the number of moves since a tag named a version.

    Raises:
        InvalidInputError: The history of the tag does not have the version.
    """
    from lance_dagster.history.refs.tag_operations import earlier_target

    # Moves that were rolled back do not count, so the history itself cannot be searched for the version.
    earlier: list[str] = []
    while version not in earlier:
        try:
            earlier.append(str(earlier_target(tag, len(earlier) + 1)))
        except InvalidInputError:
            raise _not_in_history(table, tag, version) from None
    return len(earlier)


def _not_in_history(table: "LanceTable", tag: "Tag", version: str) -> InvalidInputError:
    """Return the error for a version that a tag cannot be rolled back to; it lists the versions that the tag named."""
    from lance_dagster.history.refs.tag_operations import tag_history

    named_versions = list(dict.fromkeys(move.after for move in tag_history(tag)))
    reason = f"is not known to have been at {version}; it was at {', '.join(named_versions)}"
    # The history shows the version, so the general message would contradict it: it was left by a rollback.
    if version in named_versions:
        reason = f"cannot be rolled back to {version}, from where it was rolled back"
    remedy = Remedy("{} moves it there", Call("tags.move", (tag.name, version)))
    return InvalidInputError(f"tag {tag.name!r} of {table.uri} {reason}", remedy=remedy)
