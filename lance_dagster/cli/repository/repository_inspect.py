"""`lance-dagster repository tables`, `status`, `log`, `show`, `diff`, `channels` and `tags`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lance_dagster.cli.arguments import about_repository
from lance_dagster.cli.command_errors import command_line
from lance_dagster.cli.output import Output, aligned, busy, fact_lines, first_line, printable
from lance_dagster.errors import NotFoundError, counted

if TYPE_CHECKING:
    from datetime import datetime

    from lance_dagster.history.versions import Version
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.candidate_status import WaitingCandidate
    from lance_dagster.repository.channel_moves import Channel
    from lance_dagster.repository.commits.snapshot import ChannelHold, RepositoryCommit
    from lance_dagster.repository.repository_status import ChannelState, RepositoryStatus, TableState
    from lance_dagster.repository.view import RepositoryView

with_ref = click.option(
    "--ref", default="main", show_default=True, metavar="REF", help="A branch, channel, repository tag or commit."
)
with_limit = click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most this many.")


@click.command(epilog="Example: lance-dagster repository tables s3://lake --ref production")
@about_repository
@with_ref
def tables(repository: "LanceRepository", output: Output, ref: str) -> None:
    """List the tables of ROOT with the version and the rows that each one has at a ref."""
    with busy("reading the tables"):
        view = repository.at(ref)
        found = [_table_document(view, name) for name in view]
        # A registered table without a commit is about to join `main`, and no other ref.
        pending = [name for name in repository.tables() if name not in view] if ref == "main" else []
    # Programs get the same keys for all tables, with null where nothing is known yet.
    documents = found + [{"name": name, "uri": repository.table(name).uri, "version": None} for name in pending]
    rows = [(each["name"], each["version"], _rows(each["rows"])) for each in found]
    rows += [(name, "not committed yet", "") for name in pending]
    output.write([{"rows": None, **each} for each in documents], aligned(rows) or [f"no table at {ref}"])


def _table_document(view: "RepositoryView", name: str) -> dict[str, Any]:
    table, version = view[name], _version_of(view, name)
    if version is None:
        return {"name": name, "uri": table.uri, "version": f"{table.at} is gone", "rows": None}
    return {"name": name, "uri": table.uri, "version": str(version), "rows": version.rows}


def _version_of(view: "RepositoryView", name: str) -> "Version | None":
    """Return a version as its table names it now: on main, unless another program committed there at the same time."""
    try:
        return view[name].version
    except NotFoundError:
        # Other programs can delete versions that a commit names; the other tables are shown all the same.
        return None


def _text(view: "RepositoryView", name: str) -> str | None:
    return str(_version_of(view, name) or f"{view[name].at} is gone") if name in view else None


def _rows(number: int | None) -> str:
    return "" if number is None else counted(number, "row")


@click.command()
@about_repository
def status(repository: "LanceRepository", output: Output) -> None:
    """Show which branches wait to be published, how far channels are behind main, and which tables differ from it."""
    with busy("looking at the tables"):
        found = repository.status()
    document = {
        "root": repository.root,
        "main": commit_document(found.commit),
        "channels": [_channel_state_document(each) for each in found.channels],
        "tables": [_table_state_document(each) for each in found.tables],
        "waiting": {name: list(names) for name, names in found.waiting.items()},
        "unwritten": {name: list(names) for name, names in found.unwritten.items()},
        "superseded": {name: dict(versions) for name, versions in found.superseded.items()},
        "lost": {name: list(names) for name, names in found.lost.items()},
        "candidates": found.candidates,
        "collectable": found.collectable,
        "held_versions": found.held_versions,
    }
    lines = [f"main: {commit_line(found.commit)}, {counted(len(found.commit.tables), 'table')}"]
    lines += [_channel_state_line(each) for each in found.channels]
    lines += [line for each in found.tables for line in _table_state_lines(each)]
    lines += [_waiting_line(name, found) for name in found.waiting]
    if found.candidates:
        wait = f"{counted(found.candidates, 'candidate')} {'waits' if found.candidates == 1 else 'wait'} by the record"
        lines.append(f"{wait}; {command_line('candidates', repository.root)} shows them")
    if found.collectable:
        old, held = counted(found.collectable, "old commit"), found.held_versions
        command = command_line("repository collect", repository.root, "--delete")
        lines.append(f"not collected: {old}, {held} branches and tags of tables; {command} deletes what is not needed")
    output.write(document, [printable(line) for line in lines])


@click.command(epilog="Example: lance-dagster candidates s3://lake")
@about_repository
def candidates(repository: "LanceRepository", output: Output) -> None:
    """Show what runs and backfills wrote in the repository ROOT and nobody published, and the verdicts of checks.

    This is what the record of the repository says; Dagster is not asked.
    """
    with busy("reading the record"):
        waiting = repository.candidates()
    lines = [line for each in waiting for line in _candidate_lines(each)]
    output.write([_candidate_document(each) for each in waiting], [*map(printable, lines)] or ["nothing waits"])


def _candidate_lines(candidate: "WaitingCandidate") -> Iterator[str]:
    others = [run for run in candidate.runs if run != candidate.id]
    yield f"{candidate.id}" + (f", runs {', '.join(others)}" if others else "")
    for table in candidate.tables:
        place = f"{table.branch} is gone" if table.head is None else str(table.head)
        writes = ", ".join(
            f"{write.number} {write.request.mode}" + "".join(f" {key}" for key in write.request.partitions)
            for write in table.writes
        )
        passed = sum(verdict.passed for verdict in table.verdicts.values())
        failed = [f"{name} failed" for name, verdict in sorted(table.verdicts.items()) if not verdict.passed]
        checks = ", ".join([*([f"{counted(passed, 'check')} passed"] if passed else []), *failed]) or "no verdicts"
        yield f"    {table.table}: {place}; writes {writes}; {checks}"


def _candidate_document(candidate: "WaitingCandidate") -> dict[str, Any]:
    return {
        "candidate": candidate.id,
        "runs": list(candidate.runs),
        "tables": [
            {
                "table": table.table,
                "branch": table.branch,
                "version": None if table.head is None else str(table.head),
                "writes": [
                    {
                        "number": write.number,
                        "mode": write.request.mode,
                        "partitions": list(write.request.partitions),
                        "run": write.request.run_id,
                        "step": write.request.step,
                    }
                    for write in table.writes
                ],
                "verdicts": [
                    {
                        "check": verdict.check,
                        "passed": verdict.passed,
                        "description": verdict.description,
                        "run": verdict.run_id,
                    }
                    for _, verdict in sorted(table.verdicts.items())
                ],
            }
            for table in candidate.tables
        ],
    }


def _waiting_line(branch: str, found: "RepositoryStatus") -> str:
    written, unwritten = found.written(branch), found.unwritten.get(branch, ())
    if lost := found.lost.get(branch, ()):
        return (
            f"lost: {branch} in {', '.join(lost)}, where the branch that was forked is gone; fork the tables again and "
            "write their rows again, or give them up with `lance-dagster repository discard`"
        )
    if unwritten and not written:
        return f"nothing committed: {branch} ({', '.join(unwritten)}); its run is under way, or failed before"
    named = f"{branch} ({', '.join(written) or 'no table'})"
    superseded = found.superseded.get(branch, {})
    if not superseded:
        return f"not published: {named}" + (f"; nothing committed in {', '.join(unwritten)}" if unwritten else "")
    # A run is published whole, so one table that cannot be merged keeps its other tables back too.
    newer = ", ".join(f"{version} of {table}" for table, version in superseded.items())
    return (
        f"superseded: {named}; {newer} replaced the same rows since; set `discard: {branch}` in the config of the "
        "publisher, or execute the run again"
    )


def _channel_state_line(found: "ChannelState") -> str:
    behind = "not on main" if found.behind is None else f"{found.behind} behind main" if found.behind else "at main"
    return f"{found.name}: {found.commit[:12]}, {behind}{_held(found.hold)}"


def _table_state_lines(found: "TableState") -> Iterator[str]:
    # In this order: for a table that is gone or was replaced, nothing else can be shown.
    if found.main is None:
        mend = "restore its folder, or run `lance-dagster repository move-table` or `remove-table`"
        yield f"{found.name}: the table no longer exists; {mend}"
    elif found.replaced:
        mend = "run `lance-dagster repository remove-table`, then `adopt` to add the new one"
        yield f"{found.name}: another program made this table again; {mend}"
    elif found.at is None:
        yield f"{found.name}: not committed yet, {found.main}; `lance-dagster repository commit` adds it"
    elif found.lagging:
        yield f"{found.name}: main lags behind; `lance-dagster repository repair` brings it up"
    elif found.ahead:
        versions = counted(found.ahead, "version")
        line = f"{found.name}: {versions} on main that the repository does not have, up to {found.main}"
        # The next publication of the table has them too; until then readers of `main` in the repository miss changes.
        advice = (
            ""
            if found.ahead == found.maintenance
            else "; `lance-dagster repository commit` brings the repository up to it"
        )
        yield f"{line}: {found.commits_ahead}{advice}"
    yield from _tag_lines(found)


def _tag_lines(found: "TableState") -> Iterator[str]:
    mend = "`lance-dagster repository repair` brings it back"
    for tag, version in found.moved_tags.items():
        yield f"{found.name}: tag {tag} names {version} and does not follow the channel; {mend}"
    for tag in found.missing_tags:
        yield f"{found.name}: tag {tag}, which follows the channel, is missing; {mend}"
    for tag, hold in found.held_tags.items():
        mend = "nothing of the channel is published until `lance-dagster repository release` releases it"
        yield f"{found.name}: tag {tag} is {hold}; {mend}"


def _channel_state_document(found: "ChannelState") -> dict[str, Any]:
    return {
        "name": found.name,
        "commit": found.commit,
        "behind": found.behind,
        "hold": repository_hold_document(found.hold),
    }


def _table_state_document(found: "TableState") -> dict[str, Any]:
    return {
        "name": found.name,
        "version": None if found.at is None else str(found.at),
        "main": found.main,
        "ahead": found.ahead,
        "maintenance": found.maintenance,
        "lagging": found.lagging,
        "replaced": found.replaced,
        "moved_tags": dict(found.moved_tags),
        "missing_tags": list(found.missing_tags),
        "held_tags": dict(found.held_tags),
    }


@click.command(epilog="Example: lance-dagster repository log s3://lake production -n 10")
@about_repository
@click.argument("ref", default="main")
@with_limit
def log(repository: "LanceRepository", output: Output, ref: str, limit: int | None) -> None:
    """Show REF and the commits before it, newest first; main if REF is not given."""
    commits = repository.log(ref, limit)
    # Channels and tags are read once, for all lines.
    names = _names_by_commit(repository)
    rows = [
        (
            found.short_id,
            time_of(found.committed_at),
            printable(found.author),
            first_line(found.message) + _decoration(names.get(found.id, ())),
        )
        for found in commits
    ]
    output.write([commit_document(found) for found in commits], aligned(rows, whole=(0, 1)))


def _names_by_commit(repository: "LanceRepository") -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, channel in repository.channels.list().items():
        found.setdefault(channel.commit, []).append(name)
    for name, tag in repository.tags.list().items():
        found.setdefault(tag.commit, []).append(f"tag {name}")
    return found


def _decoration(names: Iterable[str]) -> str:
    shown = ", ".join(names)
    return f" ({shown})" if shown else ""


@click.command(epilog="Example: lance-dagster repository show s3://lake production~1")
@about_repository
@click.argument("ref", default="main")
def show(repository: "LanceRepository", output: Output, ref: str) -> None:
    """Show one commit, its changes, and the version of each table; main if REF is not given."""
    found = repository.head(ref)
    parent = _parent_of(repository, found)
    gone = bool(found.parents) and parent is None
    changed = set() if gone else set(found.changed_from(parent))
    facts = [
        ("commit", found.id),
        *(("parent", each) for each in found.parents),
        *([("changes", "not known, because the first parent was collected")] if gone else []),
        ("author", printable(found.author)),
        ("time", time_of(found.committed_at)),
        ("message", printable(found.message)),
        *((printable(key), printable(value)) for key, value in sorted(found.properties.items())),
    ]
    # By the id and not by the ref, which may have moved since it was resolved.
    view = repository.at(found.id)
    rows = [(name, _text(view, name) or "", _change_of(name, changed, parent)) for name in view]
    # The view has only the tables of the commit, so those that it removed are added.
    rows += [(name, "", "removed") for name in sorted(changed - found.tables.keys())]
    document = {**commit_document(found), "changed": None if gone else sorted(changed)}
    output.write(document, [*fact_lines(facts), *(["", *aligned(rows)] if rows else [])])


def _parent_of(repository: "LanceRepository", found: "RepositoryCommit") -> "RepositoryCommit | None":
    try:
        return repository.head(found.parents[0]) if found.parents else None
    except NotFoundError:
        # The parent was collected, so nobody can tell what the commit changed.
        return None


def _change_of(name: str, changed: set[str], parent: "RepositoryCommit | None") -> str:
    if name not in changed:
        return ""
    return "changed" if parent is not None and name in parent.tables else "added"


@click.command(epilog="Example: lance-dagster repository diff s3://lake production..main --stat")
@about_repository
@click.argument("range_", metavar="A..B")
@click.option("--stat", is_flag=True, help="Count the rows that were added, removed and changed in each table.")
def diff(repository: "LanceRepository", output: Output, range_: str, *, stat: bool) -> None:
    """Show which tables differ between two commits, and from which version to which."""
    before, dots, after = range_.partition("..")
    # A...B is refused: commits of a repository are compared as they are, and not since a merge base.
    if not (before and dots and after) or after.startswith("."):
        raise click.UsageError("give the two commits as A..B, such as production..main")
    found = repository.diff(before, after)
    # By the ids that the comparison found: a ref that moves meanwhile would give a view of another commit.
    old, new = repository.at(found.before.id), repository.at(found.after.id)
    documents: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for table in found.tables:
        # A table that is in one commit only has no second version to compare with.
        count = table.rows().stat() if stat and table.kind == "changed" else None
        versions = {"before": _text(old, table.name), "after": _text(new, table.name)}
        counted_rows = {"rows": None if count is None else asdict(count)} if stat else {}
        documents.append({"name": table.name, "kind": table.kind, **versions, **counted_rows})
        change = f"{versions['before'] or 'new'} -> {versions['after'] or 'gone'}"
        rows.append((table.kind, table.name, change, "" if count is None else str(count)))
    document = {"before": found.before.id, "after": found.after.id, "tables": documents}
    output.write(document, aligned(rows) or ["no table differs"])


@click.command()
@about_repository
def channels(repository: "LanceRepository", output: Output) -> None:
    """List the channels: the commit each one names, since when, by whom, and whether it is held."""
    found = repository.channels.list().values()
    rows = [
        (each.name, each.commit[:12], time_of(each.entry.at), printable(each.entry.by) + _held(each.hold))
        for each in found
    ]
    output.write([channel_document(each) for each in found], aligned(rows, whole=(1, 2)) or ["no channels"])


@click.command()
@about_repository
def tags(repository: "LanceRepository", output: Output) -> None:
    """List the repository tags: the commit each one names, since when, by whom and why."""
    found = repository.tags.list().values()
    documents = [
        {
            "name": each.name,
            "commit": each.commit,
            "created_by": each.created_by,
            "created_at": each.created_at.isoformat(),
            "message": each.message,
            "properties": dict(each.properties),
        }
        for each in found
    ]
    rows = [
        (each.name, each.commit[:12], time_of(each.created_at), printable(each.created_by), first_line(each.message))
        for each in found
    ]
    output.write(documents, aligned(rows, whole=(1, 2)) or ["no repository tags"])


def commit_document(found: "RepositoryCommit") -> dict[str, Any]:
    """Return a commit of a repository as JSON shows it."""
    return {
        "id": found.id,
        "parents": list(found.parents),
        "generation": found.generation,
        "committed_at": found.committed_at.isoformat(),
        "author": found.author,
        "message": found.message,
        "properties": dict(found.properties),
        "tables": {name: str(at) for name, at in sorted(found.tables.items())},
    }


def commit_line(found: "RepositoryCommit") -> str:
    """Return the id and the message of a commit."""
    return f"{found.short_id} {first_line(found.message)}"


def channel_document(found: "Channel") -> dict[str, Any]:
    """Return a channel as JSON shows it."""
    return {
        "name": found.name,
        "commit": found.commit,
        "moved_at": found.entry.at.isoformat(),
        "moved_by": found.entry.by,
        "reason": found.entry.reason,
        "hold": repository_hold_document(found.hold),
    }


def repository_hold_document(hold: "ChannelHold | None") -> dict[str, str] | None:
    """Return the hold of a channel as JSON shows it; None when the channel is free."""
    if hold is None:
        return None
    return {"reason": hold.reason, "held_by": hold.held_by, "held_at": hold.held_at.isoformat()}


def _held(hold: "ChannelHold | None") -> str:
    return "" if hold is None else f", held by {printable(hold.held_by)}: {printable(hold.reason)}"


def time_of(moment: "datetime") -> str:
    """Return a time to the second, in UTC."""
    # In UTC for everyone: a line can be compared with the logs of another machine.
    from datetime import UTC

    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
