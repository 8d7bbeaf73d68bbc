"""Verify a table: every version of every branch, every file they name, every name.

A table is checked as it lies in the store, by nobody else's word: what can be read is decoded, and each statement of
a manifest is held against the files and against the other statements. Nothing is written and nothing is given up at
the first problem; what is damaged is described, and the rest is looked at all the same.

The order makes it safe beside writers: the versions are listed first and the folders they name files in afterwards,
so what is committed meanwhile is not missed. What is deleted meanwhile would be: so whatever was found is held against
a second look at the names and versions there are, and forgotten where its version or branch is gone.

A fragment that many versions share is looked at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import TableContext
from lance_dagster.history.resolve import resolve
from lance_dagster.history.versions import Versions
from lance_dagster.verify.manifest_rules import ERROR, Problem
from lance_dagster.verify.ref_checks import RefListing, check_names, gaps, list_refs
from lance_dagster.verify.version_checks import Progress, Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What is wrong with a table, and how much of it was looked at.

    Attributes:
        problems: What is wrong, in the order it was found.
        gaps: Versions between others that are not there, such as `main@3 to main@7`. Clean-up leaves them.
        versions: How many versions were looked at.
        branches: Branches, `main` included.
        tags: Tags.
        fragments: Fragments, each that several versions share counted once.
        data_files: Data files, counted in the same way.
        deletion_files: Deletion files.
        index_files: Files of indices.
        files_read: Data files that were opened and read whole.
    """

    problems: tuple[Problem, ...] = ()
    gaps: tuple[str, ...] = ()
    versions: int = 0
    branches: int = 0
    tags: int = 0
    fragments: int = 0
    data_files: int = 0
    deletion_files: int = 0
    index_files: int = 0
    files_read: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return all(problem.severity != ERROR for problem in self.problems)


def verify(context: TableContext, ref: str | None, *, deep: bool, progress: Progress | None) -> VerifyReport:
    """Look at every version, or at the one a ref names.

    Raises:
        NotFoundError: There is no such ref.
    """
    # What this process has read before says nothing about the bytes that are there.
    context = replace(context, versions=Versions(context.store, context.storage_options))
    check = Verification(context, deep, progress)
    if ref is not None:
        branch, number = resolve(ref, context.refs, context.versions)
        check.branch(branch, (number,))
        report = _report(check)
        return replace(report, problems=_confirmed(context, report.problems))
    names = list_refs(context)
    check.expect(sum(len(own) for own in names.numbers.values()))
    for branch, own in names.numbers.items():
        check.branch(branch, own)
    if names.numbers.get(MAIN, ())[:1] == [1]:
        check.fields()
    report = _report(check)
    problems = (*check_names(names), *report.problems)
    return replace(
        report,
        problems=_confirmed(context, problems),
        gaps=gaps(names.numbers),
        branches=len(names.numbers),
        tags=len(names.tags),
    )


def _report(check: Verification) -> VerifyReport:
    if check.deep:
        check.read_files()
    return VerifyReport(
        problems=check.found,
        versions=check.versions,
        branches=1,
        fragments=check.fragments,
        data_files=len(check.places.data_files),
        deletion_files=len(check.places.deletion_files),
        index_files=len(check.places.index_files),
        files_read=check.files_read,
    )


def _confirmed(context: TableContext, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(_still_there(problems, list_refs(context))) if problems else ()


def _still_there(problems: Sequence[Problem], names: RefListing) -> Iterator[Problem]:
    """Yield the problems of names that are still problems, and those of versions that still exist."""
    paths = {problem.path for problem in check_names(names)}
    versions = {f"{branch}@{number}" for branch, numbers in names.numbers.items() for number in numbers}
    # Of these nobody can say which versions they have.
    unlisted = set(names.lines) - names.numbers.keys()
    for problem in problems:
        if not problem.versions:
            if problem.path in paths:
                yield problem
            continue
        left = tuple(name for name in problem.versions if name in versions or name.rpartition("@")[0] in unlisted)
        if left:
            yield replace(problem, versions=left)
