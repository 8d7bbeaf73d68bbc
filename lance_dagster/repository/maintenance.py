"""What keeps a repository small and whole: `repository.maintenance`."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_flag, string_list
from lance_dagster.repository.channels import Channels
from lance_dagster.repository.collect_commits import CommitRetention, RepositoryGarbage, collect_commits
from lance_dagster.repository.free_space import FreedSpace, free_space
from lance_dagster.repository.projection import FollowingTag, Lagging, land_tables, project, settle_tables
from lance_dagster.repository.publications import Publications
from lance_dagster.repository.publish.staging import Staging
from lance_dagster.repository.record_branches import BranchRecorder, RecordedBranches
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.repository.repository_status import held_versions


@dataclass(frozen=True, slots=True)
class RepositoryMaintenance:
    """The maintenance of one repository."""

    _repository: RepositoryContext

    def collect(self, retention: CommitRetention | None = None, *, dry_run: bool = True) -> RepositoryGarbage:
        """Delete commits that no branch, channel or tag needs, and the versions of tables that only they name.

        Data files stay, unlike with `free`, which has the same arguments.
        """
        return collect_commits(self._repository, retention or CommitRetention(), dry_run=dry_run)

    def free(
        self, older_than: timedelta | None = None, *, retention: CommitRetention | None = None, dry_run: bool = True
    ) -> FreedSpace:
        """Collect commits, let old versions of every table expire, and delete files of versions that expired a day ago.

        Args:
            older_than: The age at which versions expire; None for the rules stored with each table, or 14 days.
            retention: Which commits stay; by default the last 30 promotions of each channel, and 30 days.
            dry_run: Only return what would be deleted, the default; `dry_run=False` deletes it.

        Example:
            >>> from datetime import timedelta
            >>> from lance_dagster.types import CommitRetention
            >>> lake, week = LanceRepository.create("lake"), timedelta(days=7)
            >>> freed = lake.maintenance.free(week, retention=CommitRetention(promotions=10, keep_for=week))
            >>> list(freed.commits.kept_commits.values())
            [('younger than 1d', 'named by main')]
        """
        return free_space(self._repository, older_than, retention or CommitRetention(), dry_run=dry_run)

    def repair(self) -> tuple[Lagging, ...]:
        """Bring `main` and the tags of every table up to the repository; return what could not be brought up."""
        head = self._repository.resolve(MAIN)
        # `main` before the tags: a tag names the version on `main` as soon as it has landed there.
        staging = Staging(self._repository.registry)
        lagging = land_tables(staging, head, head.tables)
        settle_tables(staging, head, head.tables)
        for channel in Channels(self._repository).list().values():
            commit = self._repository.logs.commit(channel.commit)
            tag = FollowingTag(name=channel.name, hold=channel.hold)
            lagging += project(self._repository.registry, commit, commit.tables, tag)
        return lagging

    def record_branches(self, run_ids: Iterable[str] | None = None, *, dry_run: bool = True) -> RecordedBranches:
        """Record the writes of runs of the release that kept no record, so that a publisher finds them.

        Each commit with rows on a branch `run/<id>` of a registered or discovered table gets a recorded write, as if
        its run had recorded the write. No commit is added to a branch. Commits that are recorded or published already
        are skipped, so this is idempotent, and several processes may do it at once.

        Args:
            run_ids: The runs; None for all.
            dry_run: Only return what would be recorded, the default; `dry_run=False` records the writes.

        Returns:
            The writes that were recorded, and the branches whose commits do not tell enough to be recorded, each with
            the reason.

        Raises:
            RefNotFoundError: No table has a branch of a run in `run_ids`.
        """
        check_flag("dry_run", dry_run)
        runs = None if run_ids is None else string_list("run_ids", run_ids, "4f2a")
        recorder = BranchRecorder(repository=self._repository, dry_run=dry_run)
        recorded = recorder.record(runs)
        if recorder.strays:
            Publications(self._repository).drop_writes(
                recorder.strays, message="drop writes that two processes recorded at the same time"
            )
        return recorded

    def held_versions(self, name: str) -> int:
        """Return how many branches and tags of a table hold versions for commits, until `collect` deletes them."""
        return held_versions(self._repository.table(name))
