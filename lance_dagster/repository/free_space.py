"""Free the space of a repository: collect its old commits, then the versions and files of each table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from lance_dagster.errors import LanceDagsterError
from lance_dagster.gc.garbage_report import FileCount, GarbageReport
from lance_dagster.repository.collect_commits import CommitRetention, RepositoryGarbage, collect_commits
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedSpace:
    """What was deleted in a repository, or would be.

    Attributes:
        dry_run: Whether nothing was deleted.
        commits: The commits of the repository, with the branches and tags of tables that held versions for them.
        tables: The report of each table.
        unread: The tables that could not be looked at, each with the reason; nothing of them was deleted.
    """

    dry_run: bool
    commits: RepositoryGarbage
    tables: Mapping[str, GarbageReport]
    unread: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether every table could be looked at, and has no error."""
        return not self.unread and all(report.ok for report in self.tables.values())

    @property
    def versions(self) -> int:
        """The number of versions that expired."""
        return sum(report.versions for report in self.tables.values())

    @property
    def freed(self) -> FileCount:
        """The files that no version names, and their size."""
        return _sum(FileCount(files=report.files, bytes=report.bytes) for report in self.tables.values())

    @property
    def waiting(self) -> FileCount:
        """The files that only expired versions name: a call at least a day after the expiry deletes them."""
        return _sum(count for report in self.tables.values() for count in report.waiting.values())

    def held(self) -> dict[str, dict[str, int]]:
        """Return the branches that alone keep versions: by branch and table, how many; the most versions first."""
        held: dict[str, dict[str, int]] = {}
        for name, report in self.tables.items():
            for branch, versions in report.held.items():
                held.setdefault(branch, {})[name] = versions
        return dict(sorted(held.items(), key=lambda item: -sum(item[1].values())))


def _sum(counts: Iterable[FileCount]) -> FileCount:
    listed = list(counts)
    return FileCount(files=sum(count.files for count in listed), bytes=sum(count.bytes for count in listed))


def free_space(
    repository: RepositoryContext, older_than: timedelta | None, retention: CommitRetention, *, dry_run: bool
) -> FreedSpace:
    """Collect the commits of a repository, then let versions of its tables expire and delete files.

    Args:
        repository: The repository.
        older_than: The age at which versions expire; None for the rules of each table, or 14 days.
        retention: The commits that stay.
        dry_run: Whether to only report what would be deleted.
    """
    # The commits first: the versions that only they name can expire then. A dry run cannot know that, and reports less.
    commits = collect_commits(repository, retention, dry_run=dry_run)
    reports: dict[str, GarbageReport] = {}
    unread: dict[str, str] = {}

    def collect(name: str) -> None:
        # A table that is gone or damaged must not keep the garbage of the others.
        try:
            table = LanceTable(repository.table(name))
            reports[name] = table.maintenance.collect_garbage(older_than, dry_run=dry_run)
        except LanceDagsterError as error:
            unread[name] = str(error)

    for_each_table(collect, repository.registry.names())
    return FreedSpace(
        dry_run=dry_run,
        commits=commits,
        tables={name: reports[name] for name in sorted(reports)},
        unread={name: unread[name] for name in sorted(unread)},
    )
