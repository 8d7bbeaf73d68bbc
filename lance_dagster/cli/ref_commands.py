"""`lance-dagster table branch`, `tag`, `protect` and `reset`; `promote` and `rollback`, which move a tag."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import BRANCH, REF, TAG, about_table, refuse_beside, refuse_without
from lance_dagster.cli.inspect_commands import hold_document
from lance_dagster.cli.output import Output, aligned, printable
from lance_dagster.errors import (
    Call,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RefNotFoundError,
    Remedy,
    VersionNotFoundError,
    counted,
)
from lance_dagster.format.layout import MAIN, PUBLISHED

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_files import Branch, Tag
    from lance_dagster.history.refs.tag_operations import TagMove
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_with_tag = click.option("--tag", "name", type=TAG, default="production", show_default=True, help="The tag.")
_with_expected = click.option(
    "--expect", type=REF, metavar="VERSION", help="Refuse unless the tag points there when it is moved."
)
_with_force = click.option(
    "--force", is_flag=True, help="Move a tag that follows a channel of a repository, whose readers see no change."
)


class _BranchOptions(TypedDict):
    """The options of `branch`."""

    at: str
    exist_ok: bool
    delete: bool
    force: bool
    rename: str | None
    recover: bool


class _TagOptions(TypedDict):
    """The options of `tag`."""

    at: str
    immutable: bool
    delete: bool
    force: bool
    rename: str | None
    history: bool
    hold: str | None
    release: str | None


class _TagRollbackOptions(TypedDict):
    """The options of `rollback`."""

    name: str
    to: str | None
    steps: int | None
    expect: str | None
    force: bool


@click.command(epilog="Example: lance-dagster table branch orders.lance run/1 --at production")
@about_table
@click.argument("name", type=BRANCH)
@click.option("--at", type=REF, default="main", show_default=True, help="The version to fork from.")
@click.option("--exist-ok", is_flag=True, help="Succeed when a branch of that name exists, and use it.")
@click.option("--delete", "-d", is_flag=True, help="Delete the branch, when main contains all its versions.")
@click.option("--force", is_flag=True, help="With --delete: even when main lacks some of its versions.")
@click.option("--rename", "-r", metavar="NEW", help="Give the branch another name.")
@click.option(
    "--recover", is_flag=True, help="Bring back a branch that lost its file, or was deleted less than a day ago."
)
def branch(table: "LanceTable", output: Output, name: str, **options: Unpack[_BranchOptions]) -> None:
    """Fork the branch NAME from a version of TABLE, or delete, rename or recover it."""
    if options["delete"]:
        refuse_beside("--delete", "at", "exist_ok", "rename", "recover")
        # `branches.delete` does not ask whether the versions are merged; a person at a shell has to add --force.
        _refuse_published(table, name, force=options["force"])
        _refuse_unmerged(table, name, force=options["force"])
        table.branches.delete(name)
        _write_deleted(output, name)
        return
    refuse_without("--delete", "force")
    if options["rename"] is not None:
        refuse_beside("--rename", "at", "exist_ok", "recover")
        _write_branch(output, table.branches.rename(name, options["rename"]))
    elif options["recover"]:
        refuse_beside("--recover", "at", "exist_ok")
        _write_branch(output, table.branches.recover(name))
    else:
        _write_branch(output, table.branches.create(name, options["at"], exist_ok=options["exist_ok"]))


@click.command(epilog="Example: lance-dagster table tag orders.lance v1.0 --at main~1 --immutable")
@about_table
@click.argument("name", type=TAG)
@click.option("--at", type=REF, default="main", show_default=True, help="The version to name.")
@click.option("--immutable", is_flag=True, help="Never allow it to be moved or renamed, as for a release.")
@click.option("--delete", "-d", is_flag=True, help="Delete the tag.")
@click.option("--force", is_flag=True, help="With --delete: even a tag that is immutable or follows a channel.")
@click.option("--rename", "-r", metavar="NEW", help="Give the tag another name.")
@click.option("--history", is_flag=True, help="Show which versions the tag named, newest first.")
@click.option("--hold", metavar="REASON", help="Keep the tag where it is until it is released.")
@click.option("--release", metavar="REASON", help="Let a held tag move again.")
def tag(table: "LanceTable", output: Output, name: str, **options: Unpack[_TagOptions]) -> None:
    """Create the tag NAME at a version of TABLE, delete it, rename it, hold it, or show which versions it named.

    To move an existing tag, use promote.
    """
    if options["delete"]:
        refuse_beside("--delete", "at", "immutable", "rename", "history", "hold", "release")
        table.tags.delete(name, force=options["force"])
        _write_deleted(output, name)
        return
    refuse_without("--delete", "force")
    if options["rename"] is not None:
        refuse_beside("--rename", "at", "immutable", "history", "hold", "release")
        _write_tag(output, table.tags.rename(name, options["rename"]))
    # One change for each call: with a hold and a move at once, the order would be unclear.
    elif options["hold"] is not None:
        refuse_beside("--hold", "at", "immutable", "history", "release")
        _write_tag(output, table.tags.hold(name, reason=options["hold"]))
    elif options["release"] is not None:
        refuse_beside("--release", "at", "immutable", "history")
        _write_tag(output, table.tags.release(name, reason=options["release"]), ", released")
    elif options["history"]:
        refuse_beside("--history", "at", "immutable")
        moves = table.tags.history(name)
        output.write(
            [_move_document(move) for move in moves], aligned([_move_row(move) for move in moves], uncut=(1, 3))
        )
    else:
        _write_tag(output, table.tags.create(name, options["at"], immutable=options["immutable"]))


@click.command()
@about_table
@click.option("--branch", "branches", metavar="PATTERN", multiple=True, help="Branches, such as main or release/*.")
@click.option("--tag", "tags", metavar="PATTERN", multiple=True, help="Tags, such as production or v*.")
@click.option("--remove", is_flag=True, help="Remove the patterns.")
def protect(
    table: "LanceTable", output: Output, branches: tuple[str, ...], tags: tuple[str, ...], *, remove: bool
) -> None:
    """Protect branches and tags of TABLE by glob patterns, or show what is protected.

    A protected branch accepts only merges and maintenance. A protected tag names only versions of main or of protected
    branches.
    """
    if not branches and not tags:
        refuse_without("--branch or --tag", "remove")
        protection = table.branches.protection()
    else:
        change = table.branches.unprotect if remove else table.branches.protect
        # One call for both kinds: a wrong pattern among them leaves everything as it was.
        protection = change(branches, tags=tags)
    rows = [("branches", ", ".join(protection.branches) or "none"), ("tags", ", ".join(protection.tags) or "none")]
    output.write(asdict(protection), aligned(rows))


@click.command(epilog="Example: lance-dagster table reset orders.lance work --at work~2")
@about_table
@click.argument("branch", type=BRANCH)
@click.option("--at", type=REF, default="main", show_default=True, help="The version to go back to, or to start from.")
def reset(table: "LanceTable", output: Output, branch: str, at: str) -> None:
    """Reset BRANCH to an older version of its own, or start it anew from a version of another branch.

    Its versions after the older one are dropped; if it starts anew, all its own versions are dropped.
    """
    # Before the reset, which deletes versions: the line and the document name the former newest version.
    before = _head_or_none(table, branch)
    restarted = table.branches.reset(branch, at)
    head = table.head(branch)
    output.write(
        {"branch": restarted.name, "before": before, "head": str(head), "forked_from": restarted.parent},
        [f"{restarted.name}: {before or 'empty'} -> {head}, from {head.parents[0]}"],
    )


@click.command()
@about_table
@_with_tag
@click.option("--at", type=REF, default="main", show_default=True, help="The version to point it to.")
@_with_expected
@_with_force
def promote(  # one for each option
    table: "LanceTable", output: Output, name: str, at: str, expect: str | None, *, force: bool
) -> None:
    """Point a tag of TABLE to a version, by compare-and-swap; create it if it does not exist.

    A tag that follows a channel of a lake is refused: `lance-dagster promote LAKE` moves the channel. Exits with 1
    then, and when another process moves the tag at the same time.
    """
    # Without --expect, the tag is expected to stay where it is between this read and the move.
    current = _tag_or_none(table, name)
    expected = table.at(expect) if expect is not None else _target_of(table, current)
    _write_tag_move(
        output, _target_before(current, expected), table.tags.move(name, at, expected=expected, force=force)
    )


@click.command()
@about_table
@_with_tag
@click.option("--to", type=REF, metavar="VERSION", help="Where to go back to; 1 step if not given.")
@click.option("--steps", type=click.IntRange(min=1), help="In place of --to: how many moves of the tag.")
@_with_expected
@_with_force
def rollback(table: "LanceTable", output: Output, **options: Unpack[_TagRollbackOptions]) -> None:
    """Take a tag of TABLE back to a version that it named before.

    A tag that follows a channel of a lake is refused: `lance-dagster rollback LAKE` takes the channel back.
    """
    to, expect = options["to"], options["expect"]
    if to is not None and options["steps"] is not None:
        raise click.UsageError("give --steps or --to, not both")
    current = table.tags.get(options["name"])
    # A repeated call finds the tag at its goal. It must not go back further, to an older move to the same version.
    if to is not None and str(table.at(to)) == current.ref:
        if expect is not None:
            # Moves nothing, but refuses where the tag is not at the version that was expected.
            current = table.tags.move(current.name, to, expected=table.at(expect))
        _write_tag_move(output, current.ref, current)
        return
    if not options["force"]:
        from lance_dagster.history.refs.followed_channel import refuse_following

        # Before the history of the tag is searched: the error about that would suggest to move the tag alone.
        refuse_following("roll back", current, table, options["steps"] or 1)
    count = options["steps"] or 1 if to is None else _steps_to(table, current, str(table.at(to)))
    # The steps were counted from the target read above: a tag that was moved since would end somewhere else.
    expected = table.at(expect) if expect is not None else _target_of(table, current)
    moved = table.tags.rollback(current.name, count, expected=expected, force=options["force"])
    _write_tag_move(output, _target_before(current, expected), moved)


def _refuse_published(table: "LanceTable", name: str, *, force: bool) -> None:
    """Refuse to delete a branch that commits of a repository hold.

    Raises:
        ConflictError: It is such a branch.
    """
    if name.startswith(PUBLISHED) and not force and name in table.branches.list(name):
        raise ConflictError(
            f"{name!r} holds versions for commits of a repository; `lance-dagster free LAKE` deletes it "
            "when no commit needs it, and --force deletes it all the same"
        )


def _refuse_unmerged(table: "LanceTable", name: str, *, force: bool) -> None:
    """Refuse to delete a branch whose versions would be lost.

    Raises:
        ConflictError: `main` does not contain all its versions.
    """
    # A branch that does not exist is reported by the deletion itself.
    if force or name not in table.branches.list(name):
        return
    ahead, _ = table.branches.ahead_behind(name, MAIN)
    if ahead:
        versions = counted(ahead, "version")
        raise ConflictError(f"{name!r} has {versions} that main does not contain; merge it, or add --force")


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


def _head_or_none(table: "LanceTable", branch: str) -> str | None:
    try:
        return str(table.head(branch))
    except (NotFoundError, ConflictError):
        # A reset that crashed left the branch without a version, and this one completes it; or there is no such
        # branch, which the reset itself reports.
        return None


def _tag_or_none(table: "LanceTable", name: str) -> "Tag | None":
    try:
        return table.tags.get(name)
    except RefNotFoundError:
        return None


def _target_of(table: "LanceTable", tag: "Tag | None") -> "Version | None":
    """Return the version that a tag is expected to name; None where there is no tag or its version is gone."""
    try:
        # With "branch:", since other programs allow a tag that has the name of a branch.
        return None if tag is None else table.at(f"branch:{tag.ref}")
    except (VersionNotFoundError, RefNotFoundError):
        # Other programs delete tagged versions; the tag can be moved all the same.
        return None


def _target_before(current: "Tag | None", expected: "Version | None") -> str | None:
    """Return the version that a tag named when it was moved: the expected one, where one was expected."""
    # The tag may have moved between the read and the move; the compare-and-swap succeeded only at the expected version.
    if expected is not None:
        return str(expected)
    return None if current is None else current.ref


def _write_deleted(output: Output, name: str) -> None:
    output.write({"name": name, "deleted": True}, [f"{name} deleted"])


def _write_branch(output: Output, branch_file: "Branch") -> None:
    document = {
        "name": branch_file.name,
        "forked_from": branch_file.parent,
        "created_at": branch_file.created_at.isoformat(),
    }
    output.write(document, [f"{branch_file.name} from {branch_file.parent}"])


def _write_tag(output: Output, tag_file: "Tag", suffix: str = "") -> None:
    document = {
        "name": tag_file.name,
        "version": tag_file.ref,
        "immutable": tag_file.immutable,
        "hold": hold_document(tag_file.hold),
    }
    marks = (", immutable" if tag_file.immutable else "") + (
        f", {printable(str(tag_file.hold))}" if tag_file.hold else ""
    )
    output.write(document, [f"{tag_file.name}: {tag_file.ref}{marks}{suffix}"])


def _write_tag_move(output: Output, before: str | None, after: "Tag") -> None:
    """Write from which version to which a tag moved."""
    moved = before != after.ref
    line = f"{after.name}: {before or 'new'} -> {after.ref}" if moved else f"{after.name}: {before} already"
    output.write({"tag": after.name, "moved": moved, "from": before, "to": after.ref}, [line])


def _move_document(move: "TagMove") -> dict[str, Any]:
    return {
        "from": move.before,
        "to": move.after,
        "moved_at": move.moved_at.isoformat() if move.moved_at else None,
        "moved_by": move.moved_by,
        "steps_back": move.steps_back,
        "metadata": dict(move.metadata),
    }


def _move_row(move: "TagMove") -> tuple[str, ...]:
    when = f"{move.moved_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z" if move.moved_at else ""
    back = f"rolled back by {move.steps_back}" if move.steps_back else ""
    return (f"{move.before or 'new'} -> {move.after}", when, printable(move.moved_by), back)
