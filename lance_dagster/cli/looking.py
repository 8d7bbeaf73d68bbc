"""`lance-dagster branches` and `tags`."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from lance_dagster.cli.command import Answer, about_table, aligned
from lance_dagster.cli.versions import shown_time
from lance_dagster.errors import RefNotFoundError, VersionNotFoundError

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_store import Branch, Tag
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable


@click.command()
@about_table
@click.argument("pattern", required=False)
def branches(table: "LanceTable", answer: Answer, pattern: str | None) -> None:
    """List the branches of TABLE with the newest version of each; only those that match PATTERN, such as 'run/*'."""
    found = sorted(table.branches(pattern).values(), key=lambda branch: branch.name)
    documents: list[dict[str, object]] = []
    rows = []
    if pattern is None or fnmatchcase("main", pattern):
        head = table.head()
        documents.append({"name": "main", "head": str(head), "forked_from": None, "created_at": None, "metadata": {}})
        rows.append(("main", str(head), "", shown_time(head)))
    for branch, head in heads(table, found):
        documents.append({**_branch_document(branch), "head": str(head)})
        rows.append((branch.name, str(head), f"from {branch.parent}", shown_time(head)))
    answer.give(documents, aligned(rows) if rows else [])


@click.command()
@about_table
@click.argument("pattern", required=False)
def tags(table: "LanceTable", answer: Answer, pattern: str | None) -> None:
    """List the tags of TABLE with the version each names; only those that match PATTERN, such as 'v1.*'."""
    found = sorted(table.tags(pattern).values(), key=lambda tag: tag.name)
    rows = [
        (
            tag.name,
            tag.ref,
            f"{tag.updated_at:%Y-%m-%d %H:%M:%S}Z" if tag.updated_at else "",
            "immutable" if tag.immutable else "",
        )
        for tag in found
    ]
    answer.give([_tag_document(tag) for tag in found], aligned(rows) if rows else [])


def heads(table: "LanceTable", branches: "Iterable[Branch]") -> "Iterator[tuple[Branch, Version]]":
    """Look up the newest version of each branch; those that were deleted since they were listed are left out."""
    for branch in branches:
        try:
            yield branch, table.head(branch.name)
        except RefNotFoundError:
            continue
        except VersionNotFoundError:
            # Its files go first.
            if branch.name in table.branches(branch.name):
                raise


def _branch_document(found: "Branch") -> dict[str, object]:
    return {
        "name": found.name,
        "forked_from": found.parent,
        "created_at": found.created_at.isoformat(),
        "metadata": _said(found.metadata),
    }


def _tag_document(found: "Tag") -> dict[str, object]:
    return {
        "name": found.name,
        "version": found.ref,
        "updated_at": found.updated_at.isoformat() if found.updated_at else None,
        "immutable": found.immutable,
        "metadata": _said(found.metadata),
    }


def _said(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what people and programs said about a name, without what this package keeps there."""
    return {key: value for key, value in metadata.items() if not key.startswith("lance_dagster.")}
