"""`lance-dagster table verify`, `record-digests`, `gc`, `compact`, `clone`, `move-files`, and what moves places."""

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from lance_dagster.cli.arguments import (
    BRANCH,
    REF,
    DurationType,
    about_table,
    properties_from,
    storage_options_from,
    with_message,
    with_properties,
)
from lance_dagster.cli.command_errors import DONE, REFUSED
from lance_dagster.cli.merge_commands import write_version
from lance_dagster.cli.output import Output, aligned, bar, problem_lines, size_text, version_document
from lance_dagster.errors import counted
from lance_dagster.format.layout import PUBLISHED
from lance_dagster.gc.retention import duration

if TYPE_CHECKING:
    from lance_dagster.gc.garbage_report import FileCount, GarbageReport
    from lance_dagster.placement.relocate import Relocation, Repointed
    from lance_dagster.table import LanceTable
    from lance_dagster.verify.verify import VerifyReport

# The kind "versions" of a report counts manifests that were set aside, and would be read as versions of branches.
_KINDS = {"versions": "manifests of versions that expired before"}
# Branches that keep at least two versions are named, ten of them at most.
_HELD_VERSIONS, _HELD_BRANCHES = 2, 10

_with_check = click.option(
    "--check/--no-check", default=True, help="Look for every file first (the default), or skip that."
)
_with_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


class _CompactOptions(TypedDict):
    """The options of `compact`: which fragments are rewritten, and the message and properties of the version."""

    target_rows: int
    deleted_share: float
    mix_partitions: bool
    message: str | None
    properties: Sequence[str]


@click.command()
@click.option("--ref", type=REF, help="Check one version only: a branch, a tag or an expression such as main@17.")
@click.option("--deep", is_flag=True, help="Read every data, index and transaction file, too.")
@about_table
def verify(table: "LanceTable", output: Output, ref: str | None, *, deep: bool) -> None:
    """Look for damage in every version, file, branch and tag of TABLE.

    Prints the place of each problem, the fault and the correct state. Exits with 1 when there is an error; warnings do
    not count. Nothing is written.
    """
    with bar() as progress:
        report = table.maintenance.verify(ref, deep=deep, progress=progress)
    output.write({"ok": report.ok, **asdict(report)}, _verify_lines(report))
    # After the output is printed: a program needs the document of a damaged table most of all.
    sys.exit(DONE if report.ok else REFUSED)


def _verify_lines(report: "VerifyReport") -> list[str]:
    lines = []
    for problem in report.problems:
        lines += problem_lines(problem.severity, problem.where, problem.what, f"right: {problem.right}")
    lines += [f"note: files outside of the table: {place}" for place in report.base_paths]
    lines += [f"note: not there, as clean-up leaves it: {gap}" for gap in report.gaps]
    severities = Counter(problem.severity for problem in report.problems)
    looked_at = ", ".join(
        counted(number, noun)
        for number, noun in (
            (report.versions, "version"),
            (report.branches, "branch"),
            (report.tags, "tag"),
            (report.fragments, "fragment"),
            (report.data_files, "data file"),
            (report.deletion_files, "deletion file"),
            (report.index_files, "index file"),
        )
    )
    reading = f", {counted(report.files_read, 'data file')} read whole" if report.files_read else ""
    reading += f", {counted(report.without_digest, 'file')} without a digest" if report.without_digest else ""
    verdict = f"{counted(severities['error'], 'error')}, {counted(severities['warning'], 'warning')}"
    return [*lines, f"{verdict}; looked at {looked_at}{reading}"]


@click.command("record-digests")
@click.option("--ref", type=REF, help="The files of one version only: a branch, a tag or an expression.")
@about_table
def record_digests(table: "LanceTable", output: Output, ref: str | None) -> None:
    """Record the SHA-256 of each data file of TABLE that has none yet, for `verify --deep` to compare.

    Each file is read once. The digest is written beside it and deleted with it.
    """
    with bar() as progress:
        recorded = table.maintenance.record_digests(ref, progress=progress)
    output.write({"recorded": recorded}, [f"{counted(recorded, 'digest')} recorded"])


@click.command()
@click.option("--older-than", type=DurationType(), help="Versions expire at this age, such as 7d, 36h or 2w.")
@click.option(
    "--keep-last", type=click.IntRange(min=1), default=1, help="The newest versions of each branch that never expire."
)
@click.option(
    "--branch",
    "branches",
    metavar="PATTERN=DURATION",
    multiple=True,
    help="Another age for branches whose names match, such as run/*=2d; may be given again.",
)
@click.option("--grace", type=DurationType(), help="Files that no version names are deleted at this age.")
@click.option("--dry-run/--delete", default=True, help="Only show what would be deleted (the default), or delete it.")
@click.option("--files", is_flag=True, help="List every file.")
@about_table
def gc(table: "LanceTable", output: Output, branches: Sequence[str], *, files: bool, **retention: object) -> None:
    """Let old versions of TABLE expire and delete the files that no version names.

    Shows what would be deleted; --delete deletes it. Without --older-than, the rules stored with the table apply, or 14
    days. Files of versions that expire are deleted by a later call, a day after. Exits with 1 when something cannot be
    read: then nothing is deleted.
    """
    # The names of the remaining options are the names of arguments of `collect_garbage`, which has the defaults.
    ages = dict(map(_pattern_duration, branches))
    with bar() as progress:
        report = table.maintenance.collect_garbage(branches=ages, progress=progress, **retention)  # type: ignore[arg-type]  # click's
    output.write(_garbage_document(report, files=files), list(garbage_lines(report, files=files)))
    sys.exit(DONE if report.ok else REFUSED)


def _pattern_duration(text: str) -> tuple[str, timedelta]:
    # A branch name cannot hold an equals sign, so the first one ends the pattern.
    pattern, equals, age = text.partition("=")
    if not equals or not pattern:
        raise click.UsageError("--branch takes PATTERN=DURATION, such as run/*=2d")
    return pattern, duration(age)


def _garbage_document(report: "GarbageReport", *, files: bool) -> dict[str, object]:
    document = {"ok": report.ok, **asdict(report), "now": report.now.isoformat()}
    # A table may have millions of paths; `--files` asks for them.
    if not files:
        del document["paths"]
    return document


def garbage_lines(report: "GarbageReport", *, files: bool = False) -> Iterator[str]:
    """Return the lines about a collection or its dry run.

    Args:
        report: What the collection returned.
        files: Whether every file is listed.
    """
    for problem in report.problems:
        yield from problem_lines(problem.severity, problem.where, problem.what, problem.right)
    is_deleted = report.done
    if report.kept:
        yield "kept:"
        yield from aligned(list(_kept_rows(report.kept)), indent="    ")
    # Versions expire in a first step and their files are deleted in a later call, so a report may have only the first.
    for branch, numbers in report.expired.items():
        yield f"{'expired' if report.expiry_done else 'would expire'}: {', '.join(_spans(branch, numbers))}"
    if report.put_back:
        yield f"needed again: {', '.join(report.put_back)}"
    yield from (
        f"{'removed' if is_deleted else 'would remove'} what is left of branch {name!r}" for name in report.branches
    )
    yield from _count_lines("deleted" if is_deleted else "would delete", report.garbage)
    yield from _count_lines("waiting, as only expired versions name them", report.waiting)
    yield from _count_lines("too young: a writer may be about to commit them", report.young)
    if files:
        yield from (f"    {path}" for path in report.paths)
    yield _sum_line(report)
    yield from _held_lines(report.held, report.unmerged)
    if report.dry_run and (report.versions or report.files or report.branches):
        yield "nothing was deleted; --delete does it"


def _sum_line(report: "GarbageReport") -> str:
    versions = counted(report.versions, "version")
    files = f"{counted(report.files, 'file')} ({size_text(report.bytes)})"
    if report.done:
        return f"{versions} and {files} deleted"
    # Nothing is deleted as long as something cannot be read: it might name any of the files.
    if not report.ok:
        return f"{versions} and {files} could be deleted if everything could be read"
    if report.expiry_done:
        verb = "is" if report.files == 1 else "are"
        return f"{versions} expired; {files} {verb} left to the next run, because another process is writing"
    return f"{versions} and {files} can be deleted"


def _held_lines(held: Mapping[str, int], unmerged: Collection[str]) -> Iterator[str]:
    """Yield a line for each branch that keeps versions which nothing else needs, sorted by their number."""
    # Commits of a repository hold the published branches, which `free` deletes when it is time.
    own = {name: count for name, count in held.items() if not name.startswith(PUBLISHED)}
    many = sorted(((name, count) for name, count in own.items() if count >= _HELD_VERSIONS), key=lambda item: -item[1])
    for name, count in many[:_HELD_BRANCHES]:
        # A branch that main contains keeps versions of other branches, until it has them too.
        merge = "merge it, " if name in unmerged else ""
        yield f"branch {name!r} alone keeps {counted(count, 'version')}: {merge}sync it, or delete it"
    if len(many) > _HELD_BRANCHES:
        more = len(many) - _HELD_BRANCHES
        yield f"and so {'does' if more == 1 else 'do'} {counted(more, 'branch')} more"


def _kept_rows(versions: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yield one row for consecutive versions of a branch that are kept for the same reasons."""
    for (_, why), group in groupby(versions.items(), lambda item: (item[0].rpartition("@")[0], item[1])):
        names = [version for version, _ in group]
        yield names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", "; ".join(why)


def _count_lines(title: str, counts: "Mapping[str, FileCount]") -> Iterator[str]:
    if counts:
        yield f"{title}:"
        rows = [(_kind_count(kind, count.files), size_text(count.bytes)) for kind, count in counts.items()]
        yield from aligned(rows, indent="    ")


def _kind_count(kind: str, files: int) -> str:
    """Return a number of files of one kind; the kinds of a report are plurals."""
    text = _KINDS.get(kind, kind)
    if files == 1:
        text = text.replace("manifests", "manifest") if kind in _KINDS else text.removesuffix("s")
    return f"{files:,} {text}"


def _spans(branch: str, numbers: Sequence[int]) -> Iterator[str]:
    """Yield each run of consecutive numbers as one span of versions."""
    first = numbers[0]
    # The None at the end closes the last span.
    for number, following in pairwise((*numbers, None)):
        if following is None or following != (number or 0) + 1:
            yield f"{branch}@{first}" if first == number else f"{branch}@{first} to {branch}@{number}"
            first = following or 0


@click.command()
@about_table
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch to compact.")
@click.option(
    "--target-rows",
    type=click.IntRange(min=1),
    default=1024 * 1024,
    show_default=True,
    help="Fragments with fewer rows are rewritten.",
)
@click.option(
    "--deleted-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="A fragment with a larger share of deleted rows is rewritten even alone.",
)
@click.option("--mix-partitions", is_flag=True, help="Rows of different partitions may get into one fragment.")
@with_message
@with_properties
def compact(table: "LanceTable", output: Output, branch: str, **options: Unpack[_CompactOptions]) -> None:
    """Rewrite small fragments of TABLE and fragments with many deleted rows; the rows do not change.

    Makes two versions: the first one reserves the ids of the new fragments.
    """
    # A wrong property is refused before any fragment is rewritten.
    properties = properties_from(options["properties"])
    # Read before: the output compares it with the result, and says when there was nothing to do.
    before = table.head(branch)
    with bar() as progress:
        compacted = table.maintenance.compact(
            branch=branch,
            target_rows=options["target_rows"],
            deleted_share=options["deleted_share"],
            mix_partitions=options["mix_partitions"],
            message=options["message"],
            properties=properties,
            progress=progress,
        )
    write_version(output, before, compacted, f"nothing to do: no fragment of {compacted} is worth rewriting")


@click.command()
@about_table
@click.argument("uri")
@click.option("--at", type=REF, default="main", show_default=True, help="The version to clone.")
@click.option("--shallow/--deep", default=True, help="Refer to the files of TABLE (the default), or copy them.")
@click.option(
    "--to-storage-option",
    "to_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="For the clone; those of TABLE, if not given. May be given again.",
)
def clone(table: "LanceTable", output: Output, uri: str, at: str, to_options: Sequence[str], *, shallow: bool) -> None:
    """Create a table at URI from one version of TABLE.

    A shallow clone is readable as long as the files of TABLE exist; a tag that the clone leaves there keeps them.
    History, branches and tags are not cloned.
    """
    # An empty mapping would mean no options at all; None means the options of TABLE.
    options = storage_options_from(to_options) or None
    # Resolved once: the printed version is the cloned version, although the branch may move meanwhile.
    source = table.at(at)
    with bar() as progress:
        cloned = table.maintenance.clone(uri, str(source), shallow=shallow, storage_options=options, progress=progress)
    head = cloned.head()
    files = "naming the files" if shallow else "a copy"
    output.write(
        {"uri": cloned.uri, "cloned_from": str(source), "shallow": shallow, "version": version_document(head)},
        [f"{cloned.uri}: {head}, {counted(head.rows, 'row')}, {files} of {source}"],
    )


@click.command()
@about_table
@click.option("--from", "old_uri", metavar="URI", help="The former URI; determined from the branches, if not given.")
@_with_check
@_with_dry_run
def relocate(table: "LanceTable", output: Output, old_uri: str | None, *, check: bool, dry_run: bool) -> None:
    """Make the branches of TABLE refer to its present place, after TABLE was moved or copied there."""
    with bar() as progress:
        relocation = table.maintenance.relocate(old_uri, check=check, dry_run=dry_run, progress=progress)
    _write_relocation(output, relocation, dry_run=dry_run)


@click.command("allow-base")
@about_table
@click.argument("uri")
def allow_base(table: "LanceTable", output: Output, uri: str) -> None:
    """Allow versions of TABLE to name files at URI, a place outside of it, for every reader.

    URI is a base path as an error shows it. A small object that names TABLE is written there. To allow it for one call
    only, use --storage-option allowed_base_paths=URI.
    """
    table.maintenance.allow_base(uri)
    output.write({"table": table.uri, "allowed": uri}, [f"{table.uri} may name files at {uri}"])


@click.command("move-base")
@about_table
@click.argument("name")
@click.argument("uri")
@_with_check
@_with_dry_run
def move_base(table: "LanceTable", output: Output, name: str, uri: str, *, check: bool, dry_run: bool) -> None:
    """Record that the files under the base path NAME of TABLE are at URI."""
    with bar() as progress:
        relocation = table.maintenance.move_base(name, uri, check=check, dry_run=dry_run, progress=progress)
    _write_relocation(output, relocation, dry_run=dry_run)


class _MoveFilesOptions(TypedDict):
    """The options of `move-files`: which files go where, and the message and properties of the version."""

    where: str
    to: str
    message: str | None
    properties: Sequence[str]


@click.command("move-files")
@about_table
@click.option("--where", required=True, metavar="FILTER", help="The rows, such as \"day < '2026-01-01'\".")
@click.option("--to", required=True, metavar="NAME", help="The base path; root for the folder of TABLE.")
@click.option("--branch", type=BRANCH, default="main", show_default=True, help="The branch whose files are moved.")
@_with_dry_run
@with_message
@with_properties
def move_files(
    table: "LanceTable", output: Output, branch: str, *, dry_run: bool, **options: Unpack[_MoveFilesOptions]
) -> None:
    """Copy the data files of old rows of TABLE to a base path, and commit a version that names the copies.

    Moves the files of each fragment all of whose rows match. The rows do not change. gc deletes the former files.
    """
    properties = properties_from(options["properties"])
    with bar() as progress:
        move = table.maintenance.move_files(
            options["where"],
            options["to"],
            branch=branch,
            message=options["message"],
            properties=properties,
            dry_run=dry_run,
            progress=progress,
        )
    document = {
        "dry_run": dry_run,
        "version": version_document(move.version),
        "to": move.to,
        "fragments": move.fragments,
        "files": move.files,
        "bytes": move.bytes,
        "requests": move.requests,
        "searched": move.searched,
    }
    output.write(document, [str(move)])


def _write_relocation(output: Output, relocation: "Relocation", *, dry_run: bool) -> None:
    rows = [
        *(("branch", *_relocation_row(branch, dry_run=dry_run)) for branch in relocation.branches),
        *(("tag", *_relocation_row(tag, dry_run=dry_run)) for tag in relocation.tags),
    ]
    lines = aligned(rows) if rows else ["nothing to do: all paths are correct"]
    output.write({"dry_run": dry_run, **asdict(relocation)}, lines)


def _relocation_row(repointed: "Repointed", *, dry_run: bool) -> tuple[str, ...]:
    # A preview cannot know the number of a version that is not made; a branch that failed has none either.
    after = repointed.after or ("a new version" if dry_run else "not done")
    moved = ", ".join(f"{old} is {new}" for old, new in repointed.paths)
    return (
        repointed.name,
        f"{repointed.before} -> {after}",
        f"{counted(repointed.files, 'file')} found" if repointed.files else "",
        moved,
    )
