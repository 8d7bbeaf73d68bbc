"""Verify a table: every version of every branch, every file they name, every ref.

The table is checked as it lies in the store, without trusting any cache. Whatever can be read is decoded, and each
statement of a manifest is compared with the files and with the other statements. Nothing is written, and the first
problem does not end the check: the damage is described, and the check goes on with the rest of the table.

Verification runs beside writers, so the order matters. The versions are listed first and the folders they name files
in afterwards; a commit in between adds files and takes none away. A clean-up in between does take files away, so every
problem is checked against a second listing of refs and versions, and dropped where its version or ref is gone.

A fragment that many versions share is checked once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lance_dagster.errors import StoreError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import BasePath, Fragment
from lance_dagster.history.context import TableContext
from lance_dagster.history.resolve import resolve
from lance_dagster.history.versions import Versions
from lance_dagster.store import concurrently
from lance_dagster.verify.file_checks import FileChecks, NamedFile
from lance_dagster.verify.fork_checks import check_named, named_places
from lance_dagster.verify.manifest_rules import ERROR, Problem
from lance_dagster.verify.ref_checks import RefListing, check_refs, gaps, list_refs
from lance_dagster.verify.version_checks import Progress, Verification

# Files that are read at once; each takes 16 MiB of memory.
_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The problems of a table, and how much of it was checked.

    Attributes:
        problems: The problems, in the order they were found.
        gaps: Missing versions between others, such as `main@3 to main@7`, as a clean-up leaves them.
        versions: The number of versions that were checked.
        branches: The number of branches, `main` included.
        tags: The number of tags.
        fragments: The number of distinct fragments; one that several versions share counts once.
        data_files: The number of distinct data files.
        deletion_files: The number of distinct deletion files.
        index_files: The number of distinct index files.
        files_read: The number of data files that were opened; files with blob columns are not decoded.
        digests_compared: The number of data and blob files whose bytes were compared with a recorded digest.
        without_digest: The number of data and blob files that were read and have no recorded digest.
        base_paths: The URIs of the places outside of the table that its versions name.
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
    digests_compared: int = 0
    without_digest: int = 0
    base_paths: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return all(problem.severity != ERROR for problem in self.problems)

    def __str__(self) -> str:
        """Return a line that counts the problems and what was checked, then each problem on a line."""
        checked = (
            (self.versions, "version", "versions"),
            (self.branches, "branch", "branches"),
            (self.tags, "tag", "tags"),
            (self.fragments, "fragment", "fragments"),
            (self.data_files, "data file", "data files"),
            (self.deletion_files, "deletion file", "deletion files"),
            (self.index_files, "index file", "index files"),
        )
        parts = ", ".join(f"{count:,} {singular if count == 1 else plural}" for count, singular, plural in checked)
        problem_count = len(self.problems)
        counted = (
            f"{problem_count:,} {'problem' if problem_count == 1 else 'problems'}" if problem_count else "no problems"
        )
        outside = [f"files outside of the table: {place}" for place in self.base_paths]
        return "\n".join([f"{counted}: {parts}", *outside, *map(str, self.problems)])


def verify(context: TableContext, ref: str | None, *, deep: bool, progress: Progress | None) -> VerifyReport:
    """Check every version, or only the version that a ref names.

    Raises:
        NotFoundError: There is no such branch, tag, version or commit id.
    """
    linked = tuple(_linked(key) for key in context.store.links())
    try:
        report = _verified(context, ref, deep=deep, progress=progress)
    except StoreError:
        # What lies behind a link is not read, and without some folders nothing can be checked.
        if not linked:
            raise
        return VerifyReport(problems=linked)
    return replace(report, problems=(*linked, *report.problems))


def _linked(key: str) -> Problem:
    return Problem(
        what="it is a symbolic link, which no operation follows",
        right="a table has its files in its own folders; remove the link, or put the files there",
        path=key,
    )


def _verified(context: TableContext, ref: str | None, *, deep: bool, progress: Progress | None) -> VerifyReport:
    # The cache is not used: the stored bytes may differ from the bytes that this process read before.
    context = replace(context, versions=Versions(context.store, context.storage_options))
    check = Verification(context, deep, progress)
    # With one version, refs and hints are not checked, and gaps in the numbers cannot be found.
    if ref is not None:
        branch, number = resolve(ref, context.refs, context.versions)
        check.branch(branch, (number,))
        if not check.versions:
            # Without this, a report about no version would say that all is well. It raises.
            context.versions.load(branch, number)
        report = _report(check)
        return replace(report, problems=_confirmed(context, report.problems))
    refs = list_refs(context)
    check.remembered = named_places(refs)
    check.expect(sum(len(own) for own in refs.numbers.values()))
    for branch, own in refs.numbers.items():
        check.branch(branch, own)
    # Only the whole history shows that no version ever had a field.
    if refs.numbers.get(MAIN, ())[:1] == [1]:
        check.fields()
    report = _report(check)
    problems = (*check_refs(refs), *report.problems, *check_named(refs, check.named))
    return replace(
        report,
        problems=_confirmed(context, problems),
        gaps=gaps(refs.numbers),
        branches=len(refs.numbers),
        tags=len(refs.tags),
    )


def record_digests(context: TableContext, ref: str | None, progress: Progress | None) -> int:
    """Record missing digests of the data files that any version names, or only the version of a ref.

    Returns:
        The number of digests that were recorded.

    Raises:
        NotFoundError: There is no such branch, tag, version or commit id.
        CorruptFileError: A manifest cannot be read.
    """
    context = replace(context, versions=Versions(context.store, context.storage_options))
    places = FileChecks(context)
    if ref is None:
        listed = [(branch, number) for branch, own in list_refs(context).numbers.items() for number in own]
    else:
        branch, number = resolve(ref, context.refs, context.versions)
        listed = [(branch, context.versions.load(branch, number).number)]
    files: dict[str, NamedFile] = {}
    distinct: set[tuple[str, tuple[BasePath, ...], Fragment | bytes]] = set()
    for branch, number in listed:
        state = context.versions.find(branch, number)
        # It may have expired since it was listed.
        if state is None:
            continue
        for position, item in enumerate(state.manifest.fragments.items):
            # Versions share almost all fragments; equal ones of one branch name equal files.
            key = (branch, state.manifest.base_paths, item)
            if key not in distinct:
                distinct.add(key)
                files |= {named.uri: named for named in places.named(state, state.manifest.fragments[position])}
    return sum(concurrently(places.record_digests, files.values(), at_once=_WORKERS, progress=progress))


def _report(check: Verification) -> VerifyReport:
    # Files are read after the manifests, so that each is read once however many versions name it.
    if check.deep:
        check.read_files()
    return VerifyReport(
        problems=check.reported,
        versions=check.versions,
        branches=1,
        fragments=check.fragments,
        data_files=len(check.places.data_files),
        deletion_files=len(check.places.deletion_files),
        index_files=len(check.places.index_files),
        files_read=check.files_read,
        digests_compared=check.digests_compared,
        without_digest=check.without_digest,
        base_paths=tuple(sorted(check.places.base_paths)),
    )


def _confirmed(context: TableContext, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(_still_there(problems, list_refs(context))) if problems else ()


def _still_there(problems: Sequence[Problem], refs: RefListing) -> Iterator[Problem]:
    """Yield the problems of refs that a second look confirms, and the problems of versions that still exist."""
    confirmed = {(problem.path, problem.what) for problem in check_refs(refs)}
    versions = {f"{branch}@{number}" for branch, numbers in refs.numbers.items() for number in numbers}
    # The problems of branches whose versions could not be listed are kept.
    unlisted = set(refs.all_branches) - refs.numbers.keys()
    for problem in problems:
        # Another problem at the same file confirms nothing: the file has changed since the first look.
        if not problem.versions:
            if (problem.path, problem.what) in confirmed:
                yield problem
            continue
        remaining = tuple(name for name in problem.versions if name in versions or name.rpartition("@")[0] in unlisted)
        if remaining:
            yield replace(problem, versions=remaining)
