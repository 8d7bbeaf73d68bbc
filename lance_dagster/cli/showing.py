"""`lance-dagster show`."""

from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.command import Answer, about_table, aligned, refuse_without
from lance_dagster.cli.comparing import Shown, with_limit
from lance_dagster.cli.named import REF
from lance_dagster.cli.progress import busy
from lance_dagster.cli.versions import CUT, document, printable, shown_time

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable


class _Options(TypedDict):
    """What `show` shows beside the version itself."""

    content: bool
    diff: bool
    stat: bool
    rows: bool
    limit: int


@click.command(epilog="Example: lance-dagster show orders.lance main~1 --stat")
@about_table
@click.argument("ref", type=REF, default="main")
@click.option("--content", is_flag=True, help="Show the content id too, for which deletion files are read.")
@click.option("--diff", is_flag=True, help="Show what it changed, beside the version it was made from.")
@click.option("--stat", is_flag=True, help="The same, and count the rows that differ.")
@click.option("--rows", is_flag=True, help="The same, and show the rows that differ.")
@with_limit
def show(table: "LanceTable", answer: Answer, ref: str, **options: Unpack[_Options]) -> None:
    """Show one version of TABLE: what made it, from what, its columns, and what it changed.

    Of a merge that is what it brought in.
    """
    if not options["rows"]:
        refuse_without("--rows", "limit")
    version = table.at(ref)
    columns, lines = _columns(table, version)
    digest = table.content_id(str(version)) if options["content"] else None
    found = {**document(version), **({"content_id": digest} if digest else {}), "columns": columns}
    facts = _facts(version)
    if digest:
        facts.insert(2, ("content", digest))
    shown = [*aligned(facts), "", *(f"    {line}" for line in lines)]
    if options["diff"] or options["stat"] or options["rows"]:
        change = _change(table, version, options)
        found["diff"] = None if change is None else change.document
        gone = "what it was made from was cleaned up" if version.cut else "it is where the table begins"
        shown += ["", *([gone] if change is None else change.lines)]
    answer.give(found, shown)


def _change(table: "LanceTable", version: "Version", options: _Options) -> Shown | None:
    if version.cut or not version.parents:
        return None
    rows = options["limit"] if options["rows"] else None
    with busy("comparing rows"):
        return Shown.of(table.diff(version.parents[0], str(version)), stat=options["stat"], rows=rows)


def _facts(version: "Version") -> list[tuple[str, str]]:
    return [
        ("version", str(version)),
        ("id", version.id),
        ("from", ", ".join(version.parents) + (f" {CUT}" if version.cut else "") or "nothing"),
        ("committed", shown_time(version)),
        ("by", printable(version.committer)),
        ("operation", version.operation),
        ("transaction", version.transaction),
        ("rows", f"{version.rows:,}"),
        *((("message", printable(version.message)),) if version.message else ()),
        *((key, printable(value)) for key, value in sorted(version.properties.items())),
    ]


def _columns(table: "LanceTable", version: "Version") -> tuple[list[dict[str, object]], list[str]]:
    schema = table.schema(str(version))
    shown = [(field.name, str(field.type) + ("" if field.nullable else " not null")) for field in schema]
    documents = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    return documents, aligned(shown)
