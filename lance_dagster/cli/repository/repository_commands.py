"""`lance-dagster repository create`, `adopt`, `fork`, `commit`, `publish` and the other commands that make commits.

A branch or tag of a table that a publication could not bring up to the commit is a warning and not an error: readers of
the repository do not depend on it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

import click

from lance_dagster.cli.arguments import (
    CommitOptions,
    DurationType,
    about_repository,
    properties_from,
    remember_table,
    storage_options_from,
    strategy_from,
    table_as_typed,
    with_message,
    with_properties,
    with_storage_options,
    with_strategy,
)
from lance_dagster.cli.command_errors import Refusal, command_line
from lance_dagster.cli.conflict_output import conflict_lines
from lance_dagster.cli.output import Output, busy, printable, problem_lines
from lance_dagster.cli.repository.repository_inspect import channel_document, commit_document, commit_line
from lance_dagster.errors import MergeConflictError, NotFoundError, counted

if TYPE_CHECKING:
    from datetime import timedelta

    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.adoption import Adopted
    from lance_dagster.repository.commits.snapshot import RepositoryCommit
    from lance_dagster.repository.projection import Lagging


class _PublishOptions(CommitOptions):
    """The options of `publish`."""

    channel: str | None
    create_channel: bool
    strategies: Sequence[str]
    keep_branches: bool


@click.command(epilog="Example: lance-dagster repository create s3://lake")
@click.argument("root", metavar="ROOT", type=click.Path())
@with_storage_options
def create(root: str, storage_options: Sequence[str], *, as_json: bool) -> None:
    """Create a repository at ROOT. Tables that exist there are added by adopt."""
    from lance_dagster.repository import LanceRepository

    remember_table(root)
    options = storage_options_from(storage_options)
    # `create` opens an existing repository; `open` is tried first so that the output can distinguish the two.
    try:
        repository, outcome = LanceRepository.open(root, options), "is a repository already"
    except NotFoundError:
        repository, outcome = LanceRepository.create(root, options), "is a repository now"
    not_adopted = repository.discover()
    document = {"root": repository.root, "id": repository.id, "not_adopted": not_adopted}
    lines = [f"{repository.root}: {outcome}"]
    if not_adopted:
        tables = (
            f"{counted(len(not_adopted), 'table')} below it {'is' if len(not_adopted) == 1 else 'are'} not part of it"
        )
        lines.append(f"{tables}: {', '.join(not_adopted)}; {command_line('repository adopt', root)} adds them")
    Output(as_json).write(document, [printable(line) for line in lines])


@click.command(epilog="Example: lance-dagster repository adopt s3://lake shop/orders")
@about_repository
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option(
    "--channel", "channels", multiple=True, default=("production",), show_default=True, help="A tag to look for."
)
@with_message
@with_properties
def adopt(
    repository: "LanceRepository",
    output: Output,
    names: tuple[str, ...],
    channels: tuple[str, ...],
    **options: Unpack[CommitOptions],
) -> None:
    """Add existing tables below ROOT to the repository: all that are found, if none is named.

    The commit names the newest version of main of each table. A channel gets the tables that have a tag of its name, at
    the version of the tag. Their files stay as they are.
    """
    before, properties = repository.head(), properties_from(options["properties"])
    # Without names the search goes through all folders below the root, which can take long on object storage.
    with busy("looking for tables"):
        # No name on the command line means all tables; an empty list would mean none.
        adopted = repository.adopt(
            names or None, channels=channels, message=options["message"] or "", properties=properties
        )
    output.write(_adopted_document(adopted), [printable(line) for line in _adopted_lines(repository, before, adopted)])


def _adopted_lines(repository: "LanceRepository", before: "RepositoryCommit", adopted: "Adopted") -> Iterator[str]:
    if adopted.tables:
        yield f"main: {before.short_id} -> {commit_line(adopted.commit)}, {_tables(adopted.tables)}"
    # The versions are printed, because they have to be the versions that readers of the tags had before.
    for name, adoption in adopted.channels.items():
        held = f", {adoption.channel.hold}" if adoption.channel.hold else ""
        versions = ", ".join(f"{table} {version}" for table, version in sorted(adoption.tables.items()))
        yield f"{name}: {adoption.channel.commit[:12]}, from the tags of {counted(len(adoption.tables), 'table')}{held}"
        yield f"  {versions}"
        if adoption.behind_main:
            behind = ", ".join(adoption.behind_main)
            yield f"  main is ahead of the tag of {behind}; promote brings all of main to {name}"
    yield from (f"skipped: {table}" for table in adopted.skipped)
    if not (adopted.tables or adopted.channels or adopted.skipped):
        yield f"no table below {repository.root} that is not part of the repository"


def _adopted_document(adopted: "Adopted") -> dict[str, Any]:
    channels = {
        name: {
            **channel_document(adoption.channel),
            "tables": dict(adoption.tables),
            "behind_main": list(adoption.behind_main),
        }
        for name, adoption in adopted.channels.items()
    }
    return {
        **commit_document(adopted.commit),
        "changed": list(adopted.tables),
        "channels": channels,
        "skipped": list(adopted.skipped),
    }


@click.command("move-table", epilog="Example: lance-dagster repository move-table s3://lake orders shop/orders")
@about_repository
@click.argument("name", metavar="OLD")
@click.argument("new_name", metavar="NEW")
@with_message
@with_properties
def move(
    repository: "LanceRepository", output: Output, name: str, new_name: str, **options: Unpack[CommitOptions]
) -> None:
    """Give a table a new name after its folder was moved from OLD.lance to NEW.lance.

    Move the folder first, with the tools of the storage, while nothing writes to it.
    """
    with _commit_lines(repository, output) as write_commit:
        properties = properties_from(options["properties"])
        write_commit(repository.move_table(name, new_name, message=options["message"] or "", properties=properties))


@click.command("remove-table")
@about_repository
@click.argument("name", metavar="TABLE")
@with_message
@with_properties
def remove(repository: "LanceRepository", output: Output, name: str, **options: Unpack[CommitOptions]) -> None:
    """Take a table out of the repository. Its files stay, and older commits still read it."""
    with _commit_lines(repository, output) as write_commit:
        properties = properties_from(options["properties"])
        write_commit(repository.remove_table(name, message=options["message"] or "", properties=properties))


@click.command(epilog="Example: lance-dagster repository fork s3://lake run/1 shop/orders shop/lines")
@about_repository
@click.argument("branch")
@click.argument("names", metavar="TABLE...", nargs=-1, required=True)
def fork(repository: "LanceRepository", output: Output, branch: str, names: tuple[str, ...]) -> None:
    """Create BRANCH in tables of the repository, for writes that one publication brings to main together."""
    # One after the other: where a name is wrong, the forks before it stay, and a repeated call finds them.
    forked = {name: repository.fork(name, branch) for name in names}
    document = {"branch": branch, "tables": [{"name": name, "uri": table.uri} for name, table in forked.items()]}
    output.write(document, [f"{branch} of {name}: {table.head(branch)}" for name, table in forked.items()])


@click.command(epilog="Example: lance-dagster repository commit s3://lake -m 'prices of May'")
@about_repository
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@with_message
@with_properties
def commit(
    repository: "LanceRepository", output: Output, names: tuple[str, ...], **options: Unpack[CommitOptions]
) -> None:
    """Commit the newest version of main of each table: of all tables, if none is named."""
    # `with_message` is optional elsewhere. Here no operation describes the change, so the log would show nothing.
    if not options["message"]:
        raise click.UsageError("a commit needs --message")
    with _commit_lines(repository, output) as write_commit, _conflicts_as_lines(output), busy("committing"):
        write_commit(
            repository.commit(
                options["message"], tables=names or None, properties=properties_from(options["properties"])
            )
        )


@click.command(epilog="Example: lance-dagster repository publish s3://lake run/1 --channel production")
@about_repository
@click.argument("branch")
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--channel", help="Promote this channel to the result.")
@click.option("--create-channel", is_flag=True, help="Create the channel if it does not exist; production always is.")
@click.option("--keep-branches", is_flag=True, help="Leave BRANCH in the tables; it is deleted otherwise.")
@with_strategy
@with_message
@with_properties
def publish(
    repository: "LanceRepository",
    output: Output,
    branch: str,
    names: tuple[str, ...],
    **options: Unpack[_PublishOptions],
) -> None:
    """Merge BRANCH into main in all tables that were forked to it, or in the given ones: all at once or none.

    After a crash, a repeated call completes the missing steps. With conflicts nothing changes, and those of all tables
    are printed.
    """
    from lance_dagster.repository.channel_moves import DEFAULT_CHANNEL

    # Only for the line "before -> after": the publication reads the head itself.
    before = repository.head()
    with _conflicts_as_lines(output, branch), busy("publishing"):
        publication = repository.publish(
            branch,
            channel=options["channel"],
            tables=names or None,
            strategy=strategy_from(options["strategies"]),
            message=options["message"] or "",
            properties=properties_from(options["properties"]),
            retire=not options["keep_branches"],
            # A flag of False would forbid the channel that the first publication creates automatically.
            create_channel=options["create_channel"] or options["channel"] == DEFAULT_CHANNEL,
        )
    changed = sorted(publication.changed)
    line = f"main: {before.short_id} -> {commit_line(publication.commit)}, {_tables(changed)}"
    # A repeated publication changes nothing, so it has no step of `main` to show.
    lines = [line if changed else f"main: {commit_line(publication.commit)}, which has all of {branch} already"]
    if publication.channel is not None:
        lines.append(f"{publication.channel.name}: {publication.channel.commit[:12]}")
    lines += [f"kept: {kept_branch}" for kept_branch in publication.kept]
    document = {
        **commit_document(publication.commit),
        "changed": changed,
        "channel": None if publication.channel is None else channel_document(publication.channel),
        "kept": list(publication.kept),
        "lagging": lagging_documents(publication.lagging),
    }
    output.write(document, [*map(printable, lines), *lagging_lines(publication.lagging)])


@click.command(epilog="Example: lance-dagster repository discard s3://lake run/1 shop/lines --reason 'wrong input'")
@about_repository
@click.argument("branch")
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--reason", "-m", required=True, help="Why; the log of the branch records it.")
def discard(repository: "LanceRepository", output: Output, branch: str, names: tuple[str, ...], reason: str) -> None:
    """Give BRANCH up without publishing it: in all tables that were forked to it, or in the given ones.

    BRANCH is deleted in these tables. The others can be published without them.
    """
    kept_branches = repository.discard(branch, tables=names or None, reason=reason)
    lines = [
        f"{branch}: discarded in {', '.join(names) or 'all of its tables'}",
        *(f"kept: {kept_branch}" for kept_branch in kept_branches),
    ]
    output.write(
        {"branch": branch, "tables": list(names), "kept": list(kept_branches)}, [printable(line) for line in lines]
    )


@click.command(epilog="Example: lance-dagster repository revert s3://lake main~1")
@about_repository
@click.argument("ref")
@with_message
@with_properties
def revert(repository: "LanceRepository", output: Output, ref: str, **options: Unpack[CommitOptions]) -> None:
    """Undo on main what one commit did to its tables, all at once, and keep everything that came later."""
    with _commit_lines(repository, output) as write_commit, _conflicts_as_lines(output), busy("committing"):
        properties = properties_from(options["properties"])
        write_commit(repository.revert(ref, message=options["message"] or "", properties=properties))


@click.command()
@about_repository
def repair(repository: "LanceRepository", output: Output) -> None:
    """Bring main and the tags of every table up to the repository; print those that could not be brought up."""
    # What still lags is a warning, and the exit code is 0: readers of the repository see the right versions already.
    with busy("repairing"):
        lagging = repository.repair()
    output.write(lagging_documents(lagging), lagging_lines(lagging) or ["all tables follow the repository"])


@click.command(epilog="Example: lance-dagster repository collect s3://lake --promotions 30 --keep-for 30d")
@about_repository
@click.option(
    "--promotions", type=click.IntRange(min=1), default=30, show_default=True, help="Keep this many of each channel."
)
@click.option(
    "--keep-for", type=DurationType(), default="30d", show_default=True, help="Keep commits that refs named since then."
)
@click.option("--dry-run/--delete", default=True, help="Only show what would be deleted (the default), or delete it.")
def collect(
    repository: "LanceRepository", output: Output, promotions: int, keep_for: "timedelta", *, dry_run: bool
) -> None:
    """Find commits that no branch, channel or repository tag needs, and the versions of tables that only they name.

    Data files stay until `lance-dagster gc` of each table deletes them.
    """
    from lance_dagster.repository.collect_commits import CommitRetention

    retention = CommitRetention(promotions=promotions, keep_for=keep_for)
    with busy("looking at commits"):
        garbage = repository.collect(retention, dry_run=dry_run)
    # Branches and tags of tables together: both hold versions that no commit names any longer.
    held = sum(map(len, garbage.branches.values()))
    outcome = "can be deleted; --delete deletes them" if dry_run else "were deleted"
    lines = [f"{counted(len(garbage.commits), 'commit')} and {counted(held, 'ref')} of tables {outcome}"]
    if not garbage.commits and keep_for < retention.grace:
        lines.append("commits younger than a day stay for all --keep-for: a publication may be about to name them")
    if garbage.candidates or garbage.writes or garbage.audits:
        lines.append(
            f"the record of {counted(garbage.candidates, 'candidate')}, with {counted(garbage.writes, 'write')} and "
            f"the verdicts on {counted(garbage.audits, 'version')}, {'can be' if dry_run else 'was'} deleted"
        )
    lines += [f"kept: {printable(kept_ref)}" for kept_ref in garbage.kept]
    document = {
        "dry_run": garbage.dry_run,
        "commits": list(garbage.commits),
        "entries": garbage.entries,
        "branches": {name: list(refs) for name, refs in garbage.branches.items()},
        "kept": list(garbage.kept),
        "candidates": garbage.candidates,
        "writes": garbage.writes,
        "audits": garbage.audits,
        "ranges": garbage.ranges,
    }
    output.write(document, lines)


@click.command(epilog="Example: lance-dagster repository record s3://lake --run 4f2a --record")
@about_repository
@click.option(
    "--run", "runs", metavar="ID", multiple=True, help="A run, by its id; may be given again. All by default."
)
@click.option("--dry-run/--record", default=True, help="Only show what would be recorded (the default), or record it.")
def record(repository: "LanceRepository", output: Output, runs: tuple[str, ...], *, dry_run: bool) -> None:
    """Record what runs wrote with a release that kept no record, so that it can be published.

    No branch changes. Branches that do not say enough are listed with the reason and left alone.
    """
    with busy("reading the branches of runs"):
        records = repository.record_branches([run.removeprefix("run/") for run in runs] or None, dry_run=dry_run)
    lines = [
        f"{entry.branch} of {entry.table}: {counted(len(entry.writes), 'write')} of candidate "
        f"{entry.writes[0].candidate}"
        for entry in records.recorded
    ]
    lines += [f"left alone: {entry.branch} of {entry.table}: {entry.reason}" for entry in records.left]
    count = counted(len(records.recorded), "branch")
    lines.append(f"{count} can be recorded; --record does it" if dry_run else f"recorded {count}")
    document = {
        "dry_run": records.dry_run,
        "recorded": [
            {"table": entry.table, "branch": entry.branch, "writes": [asdict(write) for write in entry.writes]}
            for entry in records.recorded
        ],
        "left": [{"table": entry.table, "branch": entry.branch, "reason": entry.reason} for entry in records.left],
    }
    output.write(document, [printable(line) for line in lines])


@contextmanager
def _commit_lines(repository: "LanceRepository", output: Output) -> "Iterator[Callable[[RepositoryCommit], None]]":
    """Print what the commit that the block makes has changed."""
    before = repository.head()
    # The block passes its commit by a call, since a context manager cannot see what the block returns. An error of
    # the block passes through, and nothing is printed.
    commits: list[RepositoryCommit] = []
    yield commits.append
    made_commit = commits[0]
    document = {**commit_document(made_commit), "changed": list(made_commit.changed_from(before))}
    if made_commit.id == before.id:
        output.write(document, [f"main: {commit_line(made_commit)}, nothing to commit"])
        return
    tables = _tables(made_commit.changed_from(before))
    output.write(document, [f"main: {before.short_id} -> {commit_line(made_commit)}, {tables}"])


def _tables(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'table')}: {printable(', '.join(names))}"


@contextmanager
def _conflicts_as_lines(output: Output, source: str = "") -> Iterator[None]:
    """Print the conflicts that the block raises, each on its own line, and refuse with a hint.

    Args:
        output: Where to print.
        source: The branch that was to be merged; empty where there is none.

    Raises:
        Refusal: There were conflicts.
    """
    try:
        yield
    except MergeConflictError as error:
        documents = {"made": False, "conflicts": [_conflict_document(conflict) for conflict in error.conflicts]}
        output.write(documents, conflict_lines(error.conflicts))
        # The error has no remedy of its own, since its conflicts may be of several tables.
        settle = "settle all of them with --strategy source-wins, or one kind with --strategy rows=source-wins"
        hint = f"{_look(error, source)}; {settle}" if source else ""
        raise Refusal(error.message.rstrip(";: "), hint, "lance-dagster repository") from error


def _look(error: MergeConflictError, source: str) -> str:
    # The conflicts of all tables are reported together, and each begins with the name of its table.
    names = sorted(
        {_conflict_document(conflict).get("unit", "").partition(": ")[0] for conflict in error.conflicts} - {""}
    )
    # A command shows the rows of one table, so the hint names the first table.
    uri = f"{table_as_typed().rstrip('/')}/{names[0] if names else 'TABLE'}.lance"
    return f"look with {command_line('diff', uri, f'main...{source}', '--rows')}"


def _conflict_document(conflict: object) -> dict[str, Any]:
    from lance_dagster.merge.rules.strategy import Conflict

    return asdict(conflict) if isinstance(conflict, Conflict) else {"problem": str(conflict)}


def lagging_lines(lagging: "Iterable[Lagging]") -> list[str]:
    """Return a warning for each branch or tag of a table that could not be brought up to the commit."""
    return [
        line
        for ref in lagging
        for line in problem_lines("warning", f"{ref.ref} of {ref.table} could not follow", printable(ref.reason))
    ]


def lagging_documents(lagging: "Iterable[Lagging]") -> list[dict[str, str]]:
    """Return branches and tags of tables that could not be brought up to the commit as JSON shows them."""
    return [{"table": ref.table, "ref": ref.ref, "reason": ref.reason} for ref in lagging]
