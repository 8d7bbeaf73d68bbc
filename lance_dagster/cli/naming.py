"""`lance-dagster branch`, `tag` and `protect`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned, refuse_beside, refuse_without
from lance_dagster.cli.named import BRANCH, REF, TAG
from lance_dagster.cli.versions import printable
from lance_dagster.errors import ConflictError
from lance_dagster.format.layout import MAIN

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_store import Branch, Tag
    from lance_dagster.history.refs.tag_operations import TagMove
    from lance_dagster.table import LanceTable


class _BranchOptions(TypedDict):
    """What `branch` is asked to do."""

    at: str
    exist_ok: bool
    delete: bool
    force: bool
    rename: str | None


class _TagOptions(TypedDict):
    """What `tag` is asked to do."""

    at: str
    immutable: bool
    delete: bool
    force: bool
    rename: str | None
    history: bool


@click.command(epilog="Example: lance-dagster branch orders.lance run/1 --at production")
@about_table
@click.argument("name", type=BRANCH)
@click.option("--at", type=REF, default="main", show_default=True, help="The version to fork from.")
@click.option("--exist-ok", is_flag=True, help="Take the branch of that name when there is one.")
@click.option("--delete", "-d", is_flag=True, help="Delete the branch, when all it has is in main.")
@click.option("--force", is_flag=True, help="With --delete: although it has versions that main does not contain.")
@click.option("--rename", "-r", metavar="NEW", help="Give the branch another name.")
def branch(table: "LanceTable", answer: Answer, name: str, **options: Unpack[_BranchOptions]) -> None:
    """Fork the branch NAME from a version of TABLE, delete it or rename it."""
    if options["delete"]:
        refuse_beside("--delete", "at", "exist_ok", "rename")
        _refuse_unmerged(table, name, force=options["force"])
        table.delete_branch(name)
        _deleted(answer, name)
        return
    refuse_without("--delete", "force")
    if options["rename"] is not None:
        refuse_beside("--rename", "at", "exist_ok")
        _give_branch(answer, table.rename_branch(name, options["rename"]))
    else:
        _give_branch(answer, table.create_branch(name, options["at"], exist_ok=options["exist_ok"]))


@click.command(epilog="Example: lance-dagster tag orders.lance v1.0 --at main~1 --immutable")
@about_table
@click.argument("name", type=TAG)
@click.option("--at", type=REF, default="main", show_default=True, help="The version to name.")
@click.option("--immutable", is_flag=True, help="Never move or rename it, as the tag of a release.")
@click.option("--delete", "-d", is_flag=True, help="Delete the tag.")
@click.option("--force", is_flag=True, help="With --delete: although it is immutable.")
@click.option("--rename", "-r", metavar="NEW", help="Give the tag another name.")
@click.option("--history", is_flag=True, help="Show where the tag was, newest first.")
def tag(table: "LanceTable", answer: Answer, name: str, **options: Unpack[_TagOptions]) -> None:
    """Name a version of TABLE, delete the name, change it, or show where it was.

    To move a tag that is there, use promote.
    """
    if options["delete"]:
        refuse_beside("--delete", "at", "immutable", "rename", "history")
        table.delete_tag(name, force=options["force"])
        _deleted(answer, name)
        return
    refuse_without("--delete", "force")
    if options["rename"] is not None:
        refuse_beside("--rename", "at", "immutable", "history")
        _give_tag(answer, table.rename_tag(name, options["rename"]))
    elif options["history"]:
        refuse_beside("--history", "at", "immutable")
        moves = table.tag_history(name)
        answer.give([_move_document(move) for move in moves], aligned([_move_row(move) for move in moves]))
    else:
        _give_tag(answer, table.create_tag(name, options["at"], immutable=options["immutable"]))


@click.command()
@about_table
@click.option("--branch", "branches", metavar="PATTERN", multiple=True, help="Branches, such as main or release/*.")
@click.option("--tag", "tags", metavar="PATTERN", multiple=True, help="Tags, such as production or v*.")
@click.option("--remove", is_flag=True, help="Take the patterns back.")
def protect(
    table: "LanceTable", answer: Answer, branches: tuple[str, ...], tags: tuple[str, ...], *, remove: bool
) -> None:
    """Protect branches and tags of TABLE by glob patterns, or show what is protected.

    A protected branch takes merges and upkeep, and no other commit. A protected tag names only versions of main or of
    protected branches.
    """
    if not branches and not tags:
        refuse_without("--branch or --tag", "remove")
        found = table.protection()
    else:
        found = (table.unprotect if remove else table.protect)(branches=branches, tags=tags)
    rows = [("branches", ", ".join(found.branches) or "none"), ("tags", ", ".join(found.tags) or "none")]
    answer.give(asdict(found), aligned(rows))


def _refuse_unmerged(table: "LanceTable", name: str, *, force: bool) -> None:
    if force or name not in table.branches():
        return
    ahead, _ = table.ahead_behind(name, MAIN)
    if ahead:
        versions = f"{ahead} version{'s' * (ahead > 1)}"
        raise ConflictError(f"{name!r} has {versions} that main does not contain; merge it, or add --force")


def _deleted(answer: Answer, name: str) -> None:
    answer.give({"name": name, "deleted": True}, [f"{name} deleted"])


def _give_branch(answer: Answer, found: "Branch") -> None:
    document = {"name": found.name, "forked_from": found.parent, "created_at": found.created_at.isoformat()}
    answer.give(document, [f"{found.name} from {found.parent}"])


def _give_tag(answer: Answer, found: "Tag") -> None:
    document = {"name": found.name, "version": found.ref, "immutable": found.immutable}
    answer.give(document, [f"{found.name}: {found.ref}{', immutable' if found.immutable else ''}"])


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
