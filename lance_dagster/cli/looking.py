"""`lance-dagster log`, `show`, `branches` and `tags`."""

from typing import TYPE_CHECKING, Any

import click

from lance_dagster.cli.command import Answer, about_table, aligned

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable


@click.command()
@click.option("--ref", default="main", show_default=True, help="Where to begin: a branch, a tag or main@17.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most so many versions.")
@about_table
def log(table: "LanceTable", answer: Answer, ref: str, limit: int | None) -> None:
    """Show the versions of TABLE, newest first."""
    versions = table.log(ref, limit)
    rows = [
        (str(found), _time(found), found.operation, f"{found.rows:,} rows", found.message or "") for found in versions
    ]
    answer.give([_document(found) for found in versions], aligned(rows))


@click.command()
@about_table
@click.argument("ref", default="main")
def show(table: "LanceTable", answer: Answer, ref: str) -> None:
    """Show one version of TABLE: what made it, from what, and its columns."""
    version = table.at(ref)
    schema = table.schema(str(version))
    columns = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    facts = [
        ("version", str(version)),
        ("from", ", ".join(version.parents) or "nothing"),
        ("committed", _time(version)),
        ("by", version.committer),
        ("operation", version.operation),
        ("transaction", version.transaction),
        ("rows", f"{version.rows:,}"),
        *((("message", version.message),) if version.message else ()),
        *sorted(version.properties.items()),
    ]
    shown = [(field.name, str(field.type) + ("" if field.nullable else " not null")) for field in schema]
    answer.give(
        {**_document(version), "columns": columns},
        [*aligned(facts), "", *(f"    {line}" for line in aligned(shown))],
    )


@click.command()
@about_table
def branches(table: "LanceTable", answer: Answer) -> None:
    """List the branches of TABLE with the newest version of each."""
    found = sorted(table.branches().values(), key=lambda branch: branch.name)
    heads = {name: table.head(name) for name in ("main", *(branch.name for branch in found))}
    documents = [{"name": "main", "head": str(heads["main"]), "forked_from": None, "created_at": None}]
    rows = [("main", str(heads["main"]), "", _time(heads["main"]))]
    for branch in found:
        head = heads[branch.name]
        documents.append(
            {
                "name": branch.name,
                "head": str(head),
                "forked_from": branch.parent,
                "created_at": branch.created_at.isoformat(),
            }
        )
        rows.append((branch.name, str(head), f"from {branch.parent}", _time(head)))
    answer.give(documents, aligned(rows))


@click.command()
@about_table
def tags(table: "LanceTable", answer: Answer) -> None:
    """List the tags of TABLE with the version each names."""
    found = sorted(table.tags().values(), key=lambda tag: tag.name)
    documents = [
        {"name": tag.name, "version": tag.ref, "updated_at": tag.updated_at.isoformat() if tag.updated_at else None}
        for tag in found
    ]
    rows = [(tag.name, tag.ref, f"{tag.updated_at:%Y-%m-%d %H:%M:%S}Z" if tag.updated_at else "") for tag in found]
    answer.give(documents, aligned(rows))


def _time(version: "Version") -> str:
    return f"{version.committed_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z"


def _document(version: "Version") -> dict[str, Any]:
    return {
        "version": str(version),
        "branch": version.branch,
        "number": version.number,
        "committed_at": version.committed_at.isoformat(),
        "operation": version.operation,
        "rows": version.rows,
        "message": version.message,
        "committer": version.committer,
        "writer": version.writer,
        "parents": list(version.parents),
        "properties": dict(version.properties),
        "transaction": version.transaction,
    }
