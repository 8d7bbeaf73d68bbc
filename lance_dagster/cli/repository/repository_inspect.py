"""`lance-dagster tables`, `status`, `log`, `show`, `diff`, `channels` and `tags`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

# At most so many branches without commits are named.
_SHOWN = 5
with_ref = click.option(
    "--ref", default="main", show_default=True, metavar="REF", help="A branch, channel, repository tag or commit."
)
with_limit = click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most this many.")


@click.command(epilog="Example: lance-dagster tables s3://lake --ref production")
@about_repository
@with_ref
def tables(repository: "LanceRepository", output: Output, ref: str) -> None:
    """List the tables of LAKE with the version and the rows that each one has at a ref."""
    with busy("reading the tables"):
        view = repository.at(ref)
        committed = [_table_document(view, name) for name in view]
        # A registered table without a commit is about to join `main`, and no other ref.
        pending = [name for name in repository.tables() if name not in view] if ref == "main" else []
    # Programs get the same keys for all tables, with null where nothing is known yet.
    documents = committed + [{"name": name, "uri": repository.table(name).uri, "version": None} for name in pending]
    rows = [
        (table["name"], table["version"], "" if table["rows"] is None else counted(table["rows"], "row"))
        for table in committed
    ]
    rows += [(name, "not committed yet", "") for name in pending]
    output.write([{"rows": None, **table} for table in documents], aligned(rows) or [f"no table at {ref}"])


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


@click.command()
@about_repository
def status(repository: "LanceRepository", output: Output) -> None:
    """Show which branches wait to be published, how far channels are behind main, and which tables differ from it."""
    with busy("looking at the tables"):
        state = repository.status()
    document = {
        "root": repository.root,
        "main": commit_document(state.commit),
        "channels": [_channel_state_document(channel) for channel in state.channels],
        "tables": [_table_state_document(table) for table in state.tables],
        "waiting": {name: list(names) for name, names in state.waiting.items()},
        "unwritten": {name: list(names) for name, names in state.unwritten.items()},
        "superseded": {name: dict(versions) for name, versions in state.superseded.items()},
        "lost": {name: list(names) for name, names in state.lost.items()},
        "candidates": state.candidates,
        "collectable": state.collectable,
        "held_versions": state.held_versions,
    }
    lines = [f"main: {commit_line(state.commit)}, {counted(len(state.commit.tables), 'table')}"]
    lines += [_channel_state_line(channel) for channel in state.channels]
    waiting = {name for names in state.waiting.values() for name in names}
    lines += [line for table in state.tables for line in _table_state_lines(table, is_waiting=table.name in waiting)]
    # A run whose output was refused leaves an empty branch; many of them must not hide the branches that wait.
    lines += [_waiting_line(name, state, repository.root) for name in state.waiting if name not in state.empty]
    lines += _empty_lines(state.empty, repository.root)
    if state.candidates:
        wait = f"{counted(state.candidates, 'candidate')} {'waits' if state.candidates == 1 else 'wait'} by the record"
        lines.append(f"{wait}; {command_line('candidates', repository.root)} shows them")
    if state.collectable:
        old, held = counted(state.collectable, "old commit"), state.held_versions
        command = command_line("free", repository.root, "--delete")
        lines.append(f"not collected: {old}, {held} branches and tags of tables; {command} deletes what is not needed")
    output.write(document, [printable(line) for line in lines])


@click.command(epilog="Example: lance-dagster candidates s3://lake")
@about_repository
def candidates(repository: "LanceRepository", output: Output) -> None:
    """Show what runs and backfills wrote in the repository LAKE and nobody published, and the verdicts of checks.

    This is what the record of the repository says; Dagster is not asked.
    """
    with busy("reading the record"):
        waiting = repository.candidates()
    lines = [line for candidate in waiting for line in _candidate_lines(candidate)]
    output.write(
        [_candidate_document(candidate) for candidate in waiting], [*map(printable, lines)] or ["nothing waits"]
    )


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


def _empty_lines(branches: Sequence[str], root: str) -> Iterator[str]:
    """Return one line for all branches to which nothing was committed."""
    if branches:
        more = f" and {len(branches) - _SHOWN} more" if len(branches) > _SHOWN else ""
        discard = command_line("discard", root, branches[0] if len(branches) == 1 else "BRANCH", "--reason", "...")
        yield (
            f"nothing committed: {', '.join(branches[:_SHOWN])}{more}; of a run that is under way, or was refused or "
            f"failed before: then {discard} deletes the branch"
        )


def _waiting_line(branch: str, state: "RepositoryStatus", root: str) -> str:
    written, unwritten = state.written(branch), state.unwritten.get(branch, ())
    discard = command_line("discard", root, branch, "--reason", "...")
    if lost := state.lost.get(branch, ()):
        return (
            f"lost: {branch} in {', '.join(lost)}, where the branch that was forked is gone; fork the tables again and "
            f"write their rows again, or give them up with {discard}"
        )
    named = f"{branch} ({', '.join(written) or 'no table'})"
    superseded = state.superseded.get(branch, {})
    if not superseded:
        return f"not published: {named}" + (f"; nothing committed in {', '.join(unwritten)}" if unwritten else "")
    newer = ", ".join(f"{version} of {table}" for table, version in superseded.items())
    # A run is published whole, so a table that cannot be merged keeps its other tables back too.
    kept_back = [table for table in written if table not in superseded]
    advice = f"; to publish its rows of {', '.join(kept_back)}, execute the run again" if kept_back else ""
    return f"superseded: {named}; {newer} replaced the same rows since{advice}; {discard} deletes the branch"


def _channel_state_line(channel: "ChannelState") -> str:
    behind = (
        "not on main" if channel.behind is None else f"{channel.behind} behind main" if channel.behind else "at main"
    )
    return f"{channel.name}: {channel.commit[:12]}, {behind}{_held(channel.hold)}"


def _table_state_lines(table: "TableState", *, is_waiting: bool) -> Iterator[str]:
    # In this order: for a table that is gone or was replaced, nothing else can be shown.
    if table.main is None:
        mend = "restore its folder, or run `lance-dagster move-table` or `remove-table`"
        yield f"{table.name}: the table no longer exists; {mend}"
    elif table.replaced:
        mend = "run `lance-dagster remove-table`, then `adopt` to add the new one"
        yield f"{table.name}: another program made this table again; {mend}"
    elif table.at is None:
        mend = "its first publication adds it" if is_waiting else "`lance-dagster commit` adds it"
        yield f"{table.name}: not committed yet, {table.main}; {mend}"
    elif table.lagging:
        yield f"{table.name}: main lags behind; `lance-dagster repair` brings it up"
    elif table.ahead:
        versions = counted(table.ahead, "version")
        line = f"{table.name}: {versions} on main that the repository does not have, up to {table.main}"
        # The next publication of the table has them too; until then readers of `main` in the repository miss changes.
        advice = "" if table.ahead == table.maintenance else "; `lance-dagster commit` brings the repository up to it"
        yield f"{line}: {table.commits_ahead}{advice}"
    yield from _tag_lines(table)


def _tag_lines(table: "TableState") -> Iterator[str]:
    mend = "`lance-dagster repair` brings it back"
    for tag, version in table.moved_tags.items():
        yield f"{table.name}: tag {tag} names {version} and does not follow the channel; {mend}"
    for tag in table.missing_tags:
        yield f"{table.name}: tag {tag}, which follows the channel, is missing; {mend}"
    for tag, hold in table.held_tags.items():
        mend = "nothing of the channel is published until `lance-dagster release` releases it"
        yield f"{table.name}: tag {tag} is {hold}; {mend}"


def _channel_state_document(channel: "ChannelState") -> dict[str, Any]:
    return {
        "name": channel.name,
        "commit": channel.commit,
        "behind": channel.behind,
        "hold": repository_hold_document(channel.hold),
    }


def _table_state_document(table: "TableState") -> dict[str, Any]:
    return {
        "name": table.name,
        "version": None if table.at is None else str(table.at),
        "main": table.main,
        "ahead": table.ahead,
        "maintenance": table.maintenance,
        "lagging": table.lagging,
        "replaced": table.replaced,
        "moved_tags": dict(table.moved_tags),
        "missing_tags": list(table.missing_tags),
        "held_tags": dict(table.held_tags),
    }


@click.command(epilog="Example: lance-dagster log s3://lake production -n 10")
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
            commit.short_id,
            time_of(commit.committed_at),
            printable(commit.author),
            first_line(commit.message) + _decoration(names.get(commit.id, ())),
        )
        for commit in commits
    ]
    output.write([commit_document(commit) for commit in commits], aligned(rows, uncut=(0, 1)))


def _names_by_commit(repository: "LanceRepository") -> Mapping[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, channel in repository.channels.list().items():
        names.setdefault(channel.commit, []).append(name)
    for name, tag in repository.tags.list().items():
        names.setdefault(tag.commit, []).append(f"tag {name}")
    return names


def _decoration(names: Iterable[str]) -> str:
    shown = ", ".join(names)
    return f" ({shown})" if shown else ""


@click.command(epilog="Example: lance-dagster show s3://lake production~1")
@about_repository
@click.argument("ref", default="main")
def show(repository: "LanceRepository", output: Output, ref: str) -> None:
    """Show one commit, its changes, and the version of each table; main if REF is not given."""
    commit = repository.head(ref)
    parent = _parent_of(repository, commit)
    parent_is_gone = bool(commit.parents) and parent is None
    changed = set() if parent_is_gone else set(commit.changed_from(parent))
    facts = [
        ("commit", commit.id),
        *(("parent", parent_id) for parent_id in commit.parents),
        *([("changes", "not known, because the first parent was collected")] if parent_is_gone else []),
        ("author", printable(commit.author)),
        ("time", time_of(commit.committed_at)),
        ("message", printable(commit.message)),
        *((printable(key), printable(value)) for key, value in sorted(commit.properties.items())),
    ]
    # By the id and not by the ref, which may have moved since it was resolved.
    view = repository.at(commit.id)
    rows = [(name, _text(view, name) or "", _change_of(name, changed, parent)) for name in view]
    # The view has only the tables of the commit, so removed tables are added.
    rows += [(name, "", "removed") for name in sorted(changed - commit.tables.keys())]
    document = {**commit_document(commit), "changed": None if parent_is_gone else sorted(changed)}
    output.write(document, [*fact_lines(facts), *(["", *aligned(rows)] if rows else [])])


def _parent_of(repository: "LanceRepository", commit: "RepositoryCommit") -> "RepositoryCommit | None":
    try:
        return repository.head(commit.parents[0]) if commit.parents else None
    except NotFoundError:
        # The parent was collected, so nobody can tell what the commit changed.
        return None


def _change_of(name: str, changed: set[str], parent: "RepositoryCommit | None") -> str:
    if name not in changed:
        return ""
    return "changed" if parent is not None and name in parent.tables else "added"


@click.command(epilog="Example: lance-dagster diff s3://lake production..main --stat")
@about_repository
@click.argument("range_", metavar="A..B")
@click.option("--stat", is_flag=True, help="Count the rows that were added, removed and changed in each table.")
def diff(repository: "LanceRepository", output: Output, range_: str, *, stat: bool) -> None:
    """Show which tables differ between two commits, and from which version to which."""
    before, dots, after = range_.partition("..")
    # A...B is refused: commits of a repository are compared as they are, and not since a merge base.
    if not (before and dots and after) or after.startswith("."):
        raise click.UsageError("give the two commits as A..B, such as production..main")
    difference = repository.diff(before, after)
    # By the ids that the comparison found: a ref that moves meanwhile would give a view of another commit.
    old, new = repository.at(difference.before.id), repository.at(difference.after.id)
    documents: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for table in difference.tables:
        # A table that is in one commit only has no second version to compare with.
        count = table.rows().stat() if stat and table.kind == "changed" else None
        versions = {"before": _text(old, table.name), "after": _text(new, table.name)}
        counted_rows = {"rows": None if count is None else asdict(count)} if stat else {}
        documents.append({"name": table.name, "kind": table.kind, **versions, **counted_rows})
        change = f"{versions['before'] or 'new'} -> {versions['after'] or 'gone'}"
        rows.append((table.kind, table.name, change, "" if count is None else str(count)))
    document = {"before": difference.before.id, "after": difference.after.id, "tables": documents}
    output.write(document, aligned(rows) or ["no table differs"])


@click.command()
@about_repository
def channels(repository: "LanceRepository", output: Output) -> None:
    """List the channels: the commit each one names, since when, by whom, and whether it is held."""
    listed = repository.channels.list().values()
    rows = [
        (
            channel.name,
            channel.commit[:12],
            time_of(channel.entry.at),
            printable(channel.entry.by) + _held(channel.hold),
        )
        for channel in listed
    ]
    output.write([channel_document(channel) for channel in listed], aligned(rows, uncut=(1, 2)) or ["no channels"])


@click.command()
@about_repository
def tags(repository: "LanceRepository", output: Output) -> None:
    """List the repository tags: the commit each one names, since when, by whom and why."""
    listed = repository.tags.list().values()
    documents = [
        {
            "name": tag.name,
            "commit": tag.commit,
            "created_by": tag.created_by,
            "created_at": tag.created_at.isoformat(),
            "message": tag.message,
            "properties": dict(tag.properties),
        }
        for tag in listed
    ]
    rows = [
        (tag.name, tag.commit[:12], time_of(tag.created_at), printable(tag.created_by), first_line(tag.message))
        for tag in listed
    ]
    output.write(documents, aligned(rows, uncut=(1, 2)) or ["no repository tags"])


def commit_document(commit: "RepositoryCommit") -> dict[str, Any]:
    """Return a commit of a repository as JSON shows it."""
    return {
        "id": commit.id,
        "parents": list(commit.parents),
        "generation": commit.generation,
        "committed_at": commit.committed_at.isoformat(),
        "author": commit.author,
        "message": commit.message,
        "properties": dict(commit.properties),
        "tables": {name: str(at) for name, at in sorted(commit.tables.items())},
    }


def commit_line(commit: "RepositoryCommit") -> str:
    """Return the id and the message of a commit."""
    return f"{commit.short_id} {first_line(commit.message)}"


def channel_document(channel: "Channel") -> dict[str, Any]:
    """Return a channel as JSON shows it."""
    return {
        "name": channel.name,
        "commit": channel.commit,
        "moved_at": channel.entry.at.isoformat(),
        "moved_by": channel.entry.by,
        "reason": channel.entry.reason,
        "hold": repository_hold_document(channel.hold),
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
