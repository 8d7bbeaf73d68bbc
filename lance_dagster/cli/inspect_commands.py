"""`lance-dagster table status`, `show`, `branches` and `tags`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import REF, about_table, place_as_typed, refuse_without, with_limit
from lance_dagster.cli.command_errors import command_line
from lance_dagster.cli.diff_command import ShownDiff
from lance_dagster.cli.output import (
    CUT,
    ID_DIGITS,
    Output,
    aligned,
    busy,
    fact_lines,
    first_line,
    given_properties,
    printable,
    problem_lines,
    shown_time,
    version_document,
)
from lance_dagster.errors import RefNotFoundError, VersionNotFoundError, counted
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import CLAIMS, COMMIT_MESSAGE, COMMITTER

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_files import Branch, Tag
    from lance_dagster.history.refs.tag_hold import TagHold
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable
    from lance_dagster.table.status import RefStatus

_RUNS = "run/"
# Properties that `show` has a line of its own for.
_SHOWN_ABOVE = frozenset({COMMIT_MESSAGE, COMMITTER, CLAIMS})


@click.command()
@about_table
def status(table: "LanceTable", output: Output) -> None:
    """Show how far the branches and tags of TABLE are from main, and which run branches are not merged."""
    table_status = table.branches.status()
    # Only run branches are expected to be merged; other branches may be meant to stay separate from main.
    waiting = [branch for branch in table_status.branches if branch.name.startswith(_RUNS) and not branch.merged]
    main = table_status.main
    head = [str(main), main.id[:ID_DIGITS], shown_time(main), counted(main.rows, "row"), first_line(main.message)]
    documents = {
        "table": table.uri,
        "main": version_document(main),
        "branches": [_status_document(branch) for branch in table_status.branches],
        "tags": [_status_document(tag) for tag in table_status.tags],
        "unmerged_runs": [branch.name for branch in waiting],
    }
    lines = [
        *aligned([head]),
        *_status_section("branches", table_status.branches),
        *_status_section("tags", table_status.tags),
        *(["", f"not merged: {', '.join(branch.name for branch in waiting)}"] if waiting else []),
    ]
    output.write(documents, lines)


def _status_document(ref_status: "RefStatus") -> dict[str, object]:
    return {**asdict(ref_status), "merged": ref_status.merged}


def _status_section(title: str, ref_statuses: "Sequence[RefStatus]") -> Iterator[str]:
    if ref_statuses:
        yield ""
        yield f"{title}:"
        yield from aligned([_status_row(ref_status) for ref_status in ref_statuses], indent="    ", uncut=(2, 3))


def _status_row(ref_status: "RefStatus") -> tuple[str, ...]:
    # Other programs can delete the versions of a branch or a tag; the line says so in place of an error.
    if ref_status.version is None:
        return (ref_status.name, "gone", "", "")
    counts = [
        f"{count} {word}" for count, word in ((ref_status.ahead, "ahead"), (ref_status.behind, "behind")) if count
    ]
    distance = ", ".join(counts) or "as main"
    marks = (" (squashed)" if ref_status.squashed else "") + (
        f", {printable(ref_status.held)}" if ref_status.held else ""
    )
    return (ref_status.name, ref_status.version, counted(ref_status.rows or 0, "row"), f"{distance}{marks}")


class _ShowOptions(TypedDict):
    """The options of `show` that add to the description of the version."""

    content: bool
    diff: bool
    stat: bool
    rows: bool
    limit: int


@click.command(epilog="Example: lance-dagster table show orders.lance main~1 --stat")
@about_table
@click.argument("ref", type=REF, default="main")
@click.option("--content", is_flag=True, help="Show the content id too, for which deletion files are read.")
@click.option("--diff", is_flag=True, help="Show its changes, compared with its first parent.")
@click.option("--stat", is_flag=True, help="The same, and count the rows that differ.")
@click.option("--rows", is_flag=True, help="The same, and show the rows that differ.")
@with_limit
def show(table: "LanceTable", output: Output, ref: str, **options: Unpack[_ShowOptions]) -> None:
    """Show one version of TABLE: its commit, its parents, its columns, and its changes.

    A merge is compared with its first parent, so the output shows the merged changes.
    """
    if not options["rows"]:
        refuse_without("--rows", "limit")
    version = table.at(ref)
    columns, lines = _columns(table, version)
    digest = table.maintenance.content_id(str(version)) if options["content"] else None
    document = {**version_document(version), **({"content_id": digest} if digest else {}), "columns": columns}
    facts = _facts(version)
    if digest:
        # Below the commit id, which it is compared with by eye.
        facts.insert(2, ("content", digest))
    shown = [*fact_lines(facts), "", *(f"    {line}" for line in lines)]
    if options["diff"] or options["stat"] or options["rows"]:
        change = _change(table, version, options)
        document["diff"] = None if change is None else change.document
        # Both lack a parent to compare with; only the first version of a table never had a parent.
        no_parent = "the version before it was cleaned up" if version.cut else "it is the first version of the table"
        shown += ["", *([no_parent] if change is None else change.lines)]
    output.write(document, shown)


def _change(table: "LanceTable", version: "Version", options: _ShowOptions) -> ShownDiff | None:
    """Return the difference of a version to its first parent; None where there is none or it was cleaned up."""
    if version.cut or not version.parents:
        return None
    rows = options["limit"] if options["rows"] else None
    # Counting or showing rows may read data files; without them the two manifests are enough.
    with busy("comparing rows"):
        return ShownDiff.of(table.diff(version.parents[0], str(version)), stat=options["stat"], rows=rows)


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
        *(("claims", line) for line in _claim_lines(version)),
        *((key, printable(value)) for key, value in sorted(version.properties.items()) if key not in _SHOWN_ABOVE),
    ]


def _claim_lines(version: "Version") -> Iterator[str]:
    """Return each claim of a version in words: the rows that its write added or replaced."""
    from lance_dagster.transactions.claims import UPSERT, decode_claims

    # `decode_claims` returns none for a text that it cannot read, so both are needed.
    text = version.properties.get(CLAIMS)
    claims = decode_claims(version.properties)
    if text is not None and not claims:
        # Another program wrote the property, in a form that this release cannot read.
        yield printable(text)
    for claim in claims:
        rows = f"rows where {claim.predicate}" if claim.predicate else "all rows"
        if claim.mode == UPSERT and not claim.exclusive:
            rows = f"by {', '.join(claim.on)}"
        if claim.partitions:
            rows = f"partition{'s' * (len(claim.partitions) > 1)} {', '.join(claim.partitions)}"
        yield printable(f"{claim.mode} {rows}")


def _columns(table: "LanceTable", version: "Version") -> tuple[list[dict[str, object]], list[str]]:
    schema = table.schema(str(version))
    rows = [(printable(field.name), str(field.type) + ("" if field.nullable else " not null")) for field in schema]
    documents = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    return documents, aligned(rows)


@click.command()
@about_table
@click.argument("pattern", required=False)
def branches(table: "LanceTable", output: Output, pattern: str | None) -> None:
    """List the branches of TABLE with the newest version of each; only those that match PATTERN, such as 'run/*'.

    A branch without versions is listed with the commands that repair it.
    """
    listed = sorted(table.branches.list(pattern).values(), key=lambda branch: branch.name)
    documents: list[dict[str, object]] = []
    # Problems are collected and printed last: lines between the rows would break the table.
    rows, problems = [], []
    # `main` has no branch file, so the list lacks it.
    if pattern is None or fnmatchcase(MAIN, pattern):
        head = table.head()
        # With the keys of the other branches, so that a program reads all branches in the same way.
        documents.append({"name": MAIN, "head": str(head), "forked_from": None, "created_at": None, "metadata": {}})
        rows.append((MAIN, str(head), "", shown_time(head)))
    for branch, newest in heads(table, listed):
        documents.append({**_branch_document(branch), "head": None if newest is None else str(newest)})
        committed = "no version" if newest is None else shown_time(newest)
        rows.append((branch.name, str(newest or "-"), f"from {branch.parent}", committed))
        if newest is None:
            problems += _empty_branch_problem(branch)
    output.write(documents, [*aligned(rows, uncut=(3,)), *problems])


def _empty_branch_problem(branch: "Branch") -> list[str]:
    """Return the lines about a branch file without versions, and what to type."""
    table = place_as_typed()
    return problem_lines(
        "warning",
        f"branch {branch.name!r}",
        "the branch has no versions: making or resetting it was interrupted, or its manifests were deleted",
        f"start it anew with {command_line('table reset', table, branch.name, '--at', branch.parent)}, "
        f"or delete it with {command_line('table branch', table, branch.name, '--delete', '--force')}",
    )


@click.command()
@about_table
@click.argument("pattern", required=False)
def tags(table: "LanceTable", output: Output, pattern: str | None) -> None:
    """List the tags of TABLE with the version each names; only those that match PATTERN, such as 'v1.*'."""
    listed = sorted(table.tags.list(pattern).values(), key=lambda tag: tag.name)
    rows = [
        (
            tag.name,
            tag.ref,
            f"{tag.updated_at:%Y-%m-%d %H:%M:%S}Z" if tag.updated_at else "",
            ", ".join([*(["immutable"] if tag.immutable else []), *([printable(str(tag.hold))] if tag.hold else [])]),
        )
        for tag in listed
    ]
    output.write([_tag_document(tag) for tag in listed], aligned(rows, uncut=(2, 3)))


def heads(table: "LanceTable", branches: "Iterable[Branch]") -> "Iterator[tuple[Branch, Version | None]]":
    """Look up the newest version of each branch, None where it has none.

    Branches that were deleted since they were listed are left out.
    """
    for branch in branches:
        try:
            yield branch, table.head(branch.name)
        except RefNotFoundError:
            # Deleted since it was listed, so it is left out.
            continue
        except VersionNotFoundError:
            # A deletion removes the manifests before the branch file, so check whether it is complete by now.
            if branch.name in table.branches.list(branch.name):
                yield branch, None


def _branch_document(branch: "Branch") -> dict[str, object]:
    return {
        "name": branch.name,
        "forked_from": branch.parent,
        "created_at": branch.created_at.isoformat(),
        "metadata": given_properties(branch.metadata),
    }


def hold_document(hold: "TagHold | None") -> dict[str, str | None] | None:
    """Return the hold of a tag for programs; None when the tag is free."""
    if hold is None:
        return None
    held_at = None if hold.held_at is None else hold.held_at.isoformat()
    return {"version": hold.version, "reason": hold.reason, "held_by": hold.held_by, "held_at": held_at}


def _tag_document(tag: "Tag") -> dict[str, object]:
    return {
        "name": tag.name,
        "version": tag.ref,
        "updated_at": tag.updated_at.isoformat() if tag.updated_at else None,
        "immutable": tag.immutable,
        "hold": hold_document(tag.hold),
        "metadata": given_properties(tag.metadata),
    }
