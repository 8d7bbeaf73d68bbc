"""`lance-dagster create`, `adopt`, `fork`, `commit`, `publish` and the other commands that make commits.

A branch or tag of a table that a publication could not bring up to the commit is a warning and not an error: readers of
the repository do not depend on it.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import (
    CommitOptions,
    DurationType,
    about_repository,
    place_as_typed,
    properties_from,
    remember_place,
    storage_options_from,
    strategy_from,
    with_message,
    with_properties,
    with_storage_options,
    with_strategy,
)
from lance_dagster.cli.command_errors import DONE, REFUSED, Refusal, command_line
from lance_dagster.cli.conflict_output import conflict_lines
from lance_dagster.cli.output import Output, busy, printable, problem_lines, size_text
from lance_dagster.cli.repository.repository_inspect import channel_document, commit_document, commit_line
from lance_dagster.errors import MergeConflictError, NotFoundError, counted

if TYPE_CHECKING:
    from datetime import timedelta

    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.adoption import Adopted
    from lance_dagster.repository.commits.snapshot import RepositoryCommit
    from lance_dagster.repository.free_space import FreedSpace
    from lance_dagster.repository.projection import Lagging


# At most so many tables and branches are listed.
_SHOWN = 5


class _FreeOptions(TypedDict):
    """The options of `free`."""

    older_than: "timedelta | None"
    promotions: int
    keep_for: "timedelta"
    dry_run: bool


class _PublishOptions(CommitOptions):
    """The options of `publish`."""

    channel: str | None
    create_channel: bool
    strategies: Sequence[str]
    keep_branches: bool


@click.command(epilog="Example: lance-dagster create s3://lake")
@click.argument("root", metavar="LAKE", type=click.Path())
@with_storage_options
def create(root: str, storage_options: Sequence[str], *, as_json: bool) -> None:
    """Create a repository at LAKE. Tables that exist there are added by adopt."""
    from lance_dagster.repository import LanceRepository

    remember_place(root)
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
        lines.append(f"{tables}: {', '.join(not_adopted)}; {command_line('adopt', root)} adds them")
    Output(as_json).write(document, [printable(line) for line in lines])


@click.command(epilog="Example: lance-dagster adopt s3://lake shop/orders")
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
    """Add existing tables below LAKE to the repository: all that are found, if none is named.

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


@click.command("move-table", epilog="Example: lance-dagster move-table s3://lake orders shop/orders")
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


@click.command(epilog="Example: lance-dagster fork s3://lake run/1 shop/orders shop/lines")
@about_repository
@click.argument("branch")
@click.argument("names", metavar="TABLE...", nargs=-1, required=True)
def fork(repository: "LanceRepository", output: Output, branch: str, names: tuple[str, ...]) -> None:
    """Create BRANCH in tables of the repository, for writes that one publication brings to main together."""
    # One after the other: where a name is wrong, the forks before it stay, and a repeated call finds them.
    forked = {name: repository.fork(name, branch) for name in names}
    document = {"branch": branch, "tables": [{"name": name, "uri": table.uri} for name, table in forked.items()]}
    output.write(document, [f"{branch} of {name}: {table.head(branch)}" for name, table in forked.items()])


@click.command(epilog="Example: lance-dagster commit s3://lake -m 'prices of May'")
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


@click.command(epilog="Example: lance-dagster publish s3://lake run/1 --channel production")
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

    Of the branch run/<run id> of a run of Dagster, the first eight characters of the id are enough. After a crash, a
    repeated call completes the missing steps. With conflicts nothing changes, and those of all tables are printed.
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


@click.command(epilog="Example: lance-dagster discard s3://lake run/1 shop/lines --reason 'wrong input'")
@about_repository
@click.argument("branch")
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--reason", "-m", required=True, help="Why; the log of the branch records it.")
def discard(repository: "LanceRepository", output: Output, branch: str, names: tuple[str, ...], reason: str) -> None:
    """Give BRANCH up without publishing it: in all tables that have it, or in the given ones.

    BRANCH is deleted in these tables. The others can be published without them. A run of Dagster, whose branch is
    run/<run id>, has to be over; the first eight characters of its id are enough.
    """
    kept_branches = repository.discard(branch, tables=names or None, reason=reason)
    lines = [
        f"{branch}: discarded in {', '.join(names) or 'all of its tables'}",
        *(f"kept: {kept_branch}" for kept_branch in kept_branches),
    ]
    output.write(
        {"branch": branch, "tables": list(names), "kept": list(kept_branches)}, [printable(line) for line in lines]
    )


@click.command(epilog="Example: lance-dagster revert s3://lake main~1")
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
        lagging = repository.maintenance.repair()
    output.write(lagging_documents(lagging), lagging_lines(lagging) or ["all tables follow the repository"])


@click.command(epilog="Example: lance-dagster free s3://lake --promotions 30 --keep-for 30d --delete")
@about_repository
@click.option("--older-than", type=DurationType(), help="Versions of tables expire at this age, such as 7d.")
@click.option(
    "--promotions", type=click.IntRange(min=1), default=30, show_default=True, help="Keep this many of each channel."
)
@click.option(
    "--keep-for", type=DurationType(), default="30d", show_default=True, help="Keep commits that refs named since then."
)
@click.option("--dry-run/--delete", default=True, help="Only show what would be deleted (the default), or delete it.")
def free(repository: "LanceRepository", output: Output, **options: Unpack[_FreeOptions]) -> None:
    """Free space: delete old commits of LAKE, old versions of its tables, and the files that nothing needs.

    Shows what would be deleted; --delete deletes it. Without --older-than, the rules stored with each table apply, or
    14 days. Commits younger than a day stay in any case, and the output says why the others stay. The files of versions
    that expire are deleted by a call a day later. Exits with 1 when a table is damaged.
    """
    from lance_dagster.repository.collect_commits import CommitRetention

    retention = CommitRetention(promotions=options["promotions"], keep_for=options["keep_for"])
    with busy("looking at commits, versions and files"):
        freed = repository.maintenance.free(options["older_than"], retention=retention, dry_run=options["dry_run"])
    output.write(_freed_document(freed), [printable(line) for line in _freed_lines(freed)])
    # After the output is printed: it says which table is damaged.
    sys.exit(DONE if freed.ok else REFUSED)


def _freed_lines(freed: "FreedSpace") -> Iterator[str]:
    refs = counted(sum(map(len, freed.commits.branches.values())), "ref")
    commits = f"{counted(len(freed.commits.commits), 'commit')} with {refs} of tables"
    outcome = "can be deleted; --delete deletes them" if freed.dry_run else "were deleted"
    files = _files_text(freed.freed.files, freed.freed.bytes)
    yield f"{commits}, {counted(freed.versions, 'version')} and {files} {outcome}"
    garbage = sorted(freed.tables.items(), key=lambda item: (-item[1].bytes, -item[1].versions, item[0]))
    rows = [
        f"  {name}: {counted(report.versions, 'version')}, {_files_text(report.files, report.bytes)}"
        for name, report in garbage
        if report.versions or report.files
    ]
    yield from _first_lines(rows, "table")
    if freed.waiting.files:
        waiting = _files_text(freed.waiting.files, freed.waiting.bytes)
        yield f"waiting: {waiting} of versions that expired or whose branch ended, for a call a day after that"
    held = [
        f"branch {branch} alone keeps {counted(sum(tables.values()), 'version')} of {', '.join(tables)}: publish or "
        "discard it"
        for branch, tables in freed.held().items()
    ]
    yield from _first_lines(held, "branch")
    yield from _kept_commit_lines(freed)
    kept = sum(len(report.kept) for report in freed.tables.values())
    yield f"kept: {counted(kept, 'version')}; `lance-dagster table gc TABLE` says why for each version"
    yield from _problem_lines(freed)


def _kept_commit_lines(freed: "FreedSpace") -> Iterator[str]:
    """Return one line with the number of commits that stay, and how many stay for each reason."""
    reasons = Counter(why for of_commit in freed.commits.kept_commits.values() for why in of_commit)
    if reasons:
        # A commit may stay for several reasons, so the numbers may add up to more.
        shown = ", ".join(f"{number:,} {why}" for why, number in reasons.most_common())
        yield f"kept: {counted(len(freed.commits.kept_commits), 'commit')}, of which {shown}"


def _first_lines(lines: Sequence[str], noun: str) -> Iterator[str]:
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"  and {counted(len(lines) - _SHOWN, noun)} more"


def _problem_lines(freed: "FreedSpace") -> Iterator[str]:
    yield from (f"kept: {kept_ref}" for kept_ref in freed.commits.kept)
    for name, report in freed.tables.items():
        for problem in report.problems:
            yield from problem_lines(problem.severity, f"{name}: {problem.where}", problem.what, problem.right)
    for name, reason in freed.unread.items():
        yield from problem_lines("error", name, reason)


def _files_text(files: int, size: int) -> str:
    return f"{counted(files, 'file')} ({size_text(size)})"


def _freed_document(freed: "FreedSpace") -> dict[str, Any]:
    commits = freed.commits
    return {
        "ok": freed.ok,
        "dry_run": freed.dry_run,
        "commits": list(commits.commits),
        "kept_commits": {commit_id: list(reasons) for commit_id, reasons in commits.kept_commits.items()},
        "entries": commits.entries,
        "refs": {name: list(refs) for name, refs in commits.branches.items()},
        "kept": list(commits.kept),
        "candidates": commits.candidates,
        "writes": commits.writes,
        "audits": commits.audits,
        "ranges": commits.ranges,
        "tables": {
            name: {"versions": report.versions, "files": report.files, "bytes": report.bytes}
            for name, report in freed.tables.items()
        },
        "waiting": asdict(freed.waiting),
        "held": freed.held(),
        "unread": dict(freed.unread),
    }


@click.command(epilog="Example: lance-dagster record s3://lake --run 4f2a --record")
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
        records = repository.maintenance.record_branches(
            [run.removeprefix("run/") for run in runs] or None, dry_run=dry_run
        )
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
        raise Refusal(error.message.rstrip(";: "), hint, "lance-dagster") from error


def _look(error: MergeConflictError, source: str) -> str:
    # The conflicts of all tables are reported together, and each begins with the name of its table.
    names = sorted(
        {_conflict_document(conflict).get("unit", "").partition(": ")[0] for conflict in error.conflicts} - {""}
    )
    # A command shows the rows of one table, so the hint names the first table.
    uri = f"{place_as_typed().rstrip('/')}/{names[0] if names else 'TABLE'}.lance"
    return f"look with {command_line('table diff', uri, f'main...{source}', '--rows')}"


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
