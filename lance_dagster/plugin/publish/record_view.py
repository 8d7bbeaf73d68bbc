"""What the record of the lake says about the tables of a publisher, read once for a step.

The newest commit of the repository says which recorded writes are closed. Everything else follows from the files of
the record by key: which writes of a table are open, which writes belong to a candidate, and which commit published a
write. The commit of a publication is refused when any of it changed meanwhile.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import pendulum

from lance_dagster.errors import RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin.run_branch import RunChain
from lance_dagster.repository import LanceRepository
from lance_dagster.repository.candidates.audits import Verdict
from lance_dagster.repository.candidates.closed_writes import ClosedWrites, published_duplicate
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.commits.snapshot import RepositoryCommit
from lance_dagster.table import LanceTable

_NO_COMMIT = RepositoryCommit(
    id="",
    tables={},
    parents=(),
    generation=0,
    committed_at=pendulum.datetime(1970, 1, 1),
    author="",
    message="",
)


@dataclass(kw_only=True)
class RecordView:
    """The record of a repository as a step sees it.

    Attributes:
        repository: The repository.
    """

    repository: LanceRepository
    _tables: dict[str, str] = field(default_factory=dict)
    _candidates: dict[str, list[RecordedWrite]] = field(default_factory=dict)

    @cached_property
    def head(self) -> RepositoryCommit:
        """The newest commit of `main` when it was first asked for; one without tables before the first commit."""
        with suppress(RefNotFoundError):
            return self.repository.head()
        return _NO_COMMIT

    def refresh(self) -> None:
        """Read the newest commit and the writes of candidates again when they are asked for the next time."""
        self.__dict__.pop("head", None)
        self._candidates.clear()

    def follow(self) -> None:
        """Take the newest commit that the repository object has read since: the commit that a publication follows."""
        newest = self.repository.publications.newest_read()
        if newest is not None and newest.id != self.head.id:
            self.refresh()
            self.__dict__["head"] = newest

    def table_id(self, table: LanceTable) -> str:
        """Return the identity of a table; empty for a table that no run recorded. Nothing is written."""
        if table.uri not in self._tables:
            self._tables[table.uri] = self.repository.registered_id(self.repository.name_of(table)) or ""
        return self._tables[table.uri]

    def closed(self, table: LanceTable) -> ClosedWrites:
        """Return the closed writes of a table."""
        return self.head.writes.get(self.table_id(table), ClosedWrites())

    def open_writes(self, table: LanceTable) -> list[RecordedWrite]:
        """Return the writes of a table that are neither published nor dropped, oldest first."""
        table_id = self.table_id(table)
        return self.repository.record.open_writes(table_id, self.closed(table)) if table_id else []

    def verdicts(self, table: LanceTable, commit_id: str, table_id: str = "") -> Mapping[str, Verdict]:
        """Return the last verdict of each check on a version of a run branch, by the name of the check.

        Args:
            table: The table.
            commit_id: The commit id of the version; empty where it is unknown, and then there are no verdicts.
            table_id: The identity of the table where the version names it, so that the registry need not be asked.
        """
        table_id = self._tables.setdefault(table.uri, table_id) if table_id else self.table_id(table)
        return self.repository.record.verdicts(table_id, commit_id) if table_id and commit_id else {}

    def of_candidate(self, candidate: str) -> list[RecordedWrite]:
        """Return all writes of a candidate."""
        if candidate not in self._candidates:
            self._candidates[candidate] = self.repository.record.of_candidate(candidate)
        return self._candidates[candidate]

    def writes_of_runs(self, candidate: str, run_ids: Collection[str], table: LanceTable) -> list[RecordedWrite]:
        """Return the writes that some runs of a candidate made to a table, oldest first."""
        table_id = self.table_id(table)
        return [
            write
            for write in self.of_candidate(candidate)
            if write.table_id == table_id and write.request.run_id in run_ids
        ]

    def on_branch(self, table: LanceTable, head: Version) -> tuple[RecordedWrite, ...]:
        """Return the recorded writes that a version of a run's branch has and `main` lacks, newest first.

        Raises:
            ConflictError: The record of a write was collected, so nobody can tell whether its rows are published.
        """
        if head.branch == MAIN:
            return ()
        return tuple(self.repository.publications.writes_of(table, table.branches.unmerged(head)))

    def is_published(self, write: RecordedWrite) -> bool:
        """Return whether `main` has the rows of a write."""
        return write.number in self._closed_in(write).published

    def is_dropped(self, write: RecordedWrite) -> bool:
        """Return whether a write will never be published, because it was discarded, replaced or withdrawn."""
        return write.number in self._closed_in(write).dropped

    def published_duplicate(self, write: RecordedWrite) -> RecordedWrite | None:
        """Return a published write whose rows an append would add a second time, or None."""
        related = self.of_candidate(write.request.candidate)
        return published_duplicate(write, related, self.head.writes, self.repository.publications.is_merged)

    def runs_of_candidate(self, candidate: str) -> tuple[str, ...]:
        """Return the runs of a candidate that wrote anything, and those that joined it without a write."""
        writes = [write.request.run_id for write in self.of_candidate(candidate)]
        return tuple(dict.fromkeys([*writes, *self.repository.record.runs_of(candidate)]))

    def landed(self, table: LanceTable, chain: RunChain) -> tuple[RecordedWrite, Version] | None:
        """Return the newest published write of a chain of runs to a table, and the version of `main` that has it.

        Returns:
            None where no write of these runs is published, or its version is not on `main`.
        """
        writes = self.writes_of_runs(chain.candidate_id, chain.run_ids, table)
        return self.version_with([write for write in writes if self.is_published(write)])

    def version_with(self, published: Iterable[RecordedWrite]) -> tuple[RecordedWrite, Version] | None:
        """Return the newest of some published writes of a table, and the version of `main` that first had it."""
        newest = max(published, key=lambda write: write.number, default=None)
        commit = None if newest is None else self.repository.publications.commit_with(newest)
        if newest is None or commit is None:
            return None
        view = self.repository.at(commit.id)
        name = next((name for name, at in commit.tables.items() if at.id == newest.table_id), None)
        version = None if name is None else view[name].version
        return None if version is None or version.branch != MAIN else (newest, version)

    def _closed_in(self, write: RecordedWrite) -> ClosedWrites:
        return self.head.writes.get(write.table_id, ClosedWrites())
