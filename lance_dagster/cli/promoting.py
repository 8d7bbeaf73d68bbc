"""`lance-dagster promote` and `rollback`: the tag that readers follow."""

from typing import TYPE_CHECKING

import click

from lance_dagster.cli.command import Answer, about_table
from lance_dagster.cli.named import REF, TAG
from lance_dagster.errors import Call, InvalidInputError, RefNotFoundError, Remedy, VersionNotFoundError

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_store import Tag
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_with_tag = click.option("--tag", "name", type=TAG, default="production", show_default=True, help="The tag.")
_with_expected = click.option(
    "--expect", type=REF, metavar="VERSION", help="Refuse unless the tag points there when it is moved."
)


@click.command()
@about_table
@_with_tag
@click.option("--at", type=REF, default="main", show_default=True, help="The version to point it to.")
@_with_expected
def promote(table: "LanceTable", answer: Answer, name: str, at: str, expect: str | None) -> None:
    """Point a tag of TABLE to a version, by compare-and-swap; create it where there is none.

    Exits with 1 when somebody else moves it at the same time.
    """
    current = _current(table, name)
    expected = table.at(expect) if expect is not None else _version(table, current)
    _give(answer, _was(current, expected), table.move_tag(name, at, expected=expected))


@click.command()
@about_table
@_with_tag
@click.option("--steps", type=click.IntRange(min=1), help="How many moves to go back; 1 if not given.")
@click.option("--to", type=REF, metavar="VERSION", help="The version to go back to, where the tag was before.")
@_with_expected
def rollback(
    table: "LanceTable", answer: Answer, name: str, steps: int | None, to: str | None, expect: str | None
) -> None:
    """Point a tag of TABLE to where it was before.

    Moves that were rolled back do not count, so rolling back twice goes back by two.
    """
    if steps is not None and to is not None:
        raise click.UsageError("give --steps or --to, not both")
    current = table.tag(name)
    if to is not None and str(table.at(to)) == current.ref:
        if expect is not None:
            # Moves nothing, and refuses where something else was expected.
            current = table.move_tag(name, to, expected=table.at(expect))
        _give(answer, current.ref, current)
        return
    count = steps or 1 if to is None else _steps_to(table, current, str(table.at(to)))
    # Steps are counted from where the tag was when this began.
    expected = table.at(expect) if expect is not None else _version(table, current)
    _give(answer, _was(current, expected), table.roll_back_tag(name, count, expected=expected))


def _current(table: "LanceTable", name: str) -> "Tag | None":
    try:
        return table.tag(name)
    except RefNotFoundError:
        return None


def _version(table: "LanceTable", tag: "Tag | None") -> "Version | None":
    """Return the version a tag names, as what is expected of it; None where nothing can be."""
    try:
        # Named as a branch: a tag of another program may have the branch's name.
        return None if tag is None else table.at(f"branch:{tag.ref}")
    except (VersionNotFoundError, RefNotFoundError):
        # Other programs delete tagged versions; the tag has to move all the same.
        return None


def _steps_to(table: "LanceTable", tag: "Tag", wanted: str) -> int:
    """Return how many moves back a tag was at a version.

    Raises:
        InvalidInputError: It was not, as far as is known.
    """
    from lance_dagster.history.refs.tag_operations import earlier_target

    earlier: list[str] = []
    while wanted not in earlier:
        try:
            earlier.append(str(earlier_target(tag, len(earlier) + 1)))
        except InvalidInputError:
            raise _never_there(table, tag, wanted) from None
    return len(earlier)


def _never_there(table: "LanceTable", tag: "Tag", wanted: str) -> InvalidInputError:
    """Return the error for a version that a tag cannot be rolled back to, with where it was."""
    from lance_dagster.history.refs.tag_operations import tag_history

    known = list(dict.fromkeys(move.after for move in tag_history(tag)))
    said = f"is not known to have been at {wanted}; it was at {', '.join(known)}"
    if wanted in known:
        said = f"cannot be rolled back to {wanted}, from where it was rolled back"
    remedy = Remedy("{} moves it there", Call("move_tag", (tag.name, wanted)))
    return InvalidInputError(f"tag {tag.name!r} of {table.uri} {said}", remedy=remedy)


def _was(current: "Tag | None", expected: "Version | None") -> str | None:
    """Return where a tag was when it was moved: where it had to be, if anything was expected."""
    if expected is not None:
        return str(expected)
    return None if current is None else current.ref


def _give(answer: Answer, was: str | None, after: "Tag") -> None:
    moved = was != after.ref
    document = {"tag": after.name, "moved": moved, "from": was, "to": after.ref}
    answer.give(document, [f"{after.name}: {was or 'new'} -> {after.ref}" if moved else f"{after.name}: {was} already"])
