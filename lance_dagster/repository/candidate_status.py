"""The candidates that wait in a repository, read from its record without Dagster.

The writes of a table are listed newest first, up to the number before which the newest commit has closed all writes.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter

from lance_dagster.errors import CommitConflictError, NotFoundError
from lance_dagster.history.versions import Version
from lance_dagster.repository.candidates.audits import Verdict
from lance_dagster.repository.candidates.closed_writes import NONE_CLOSED
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.commits.snapshot import RepositoryCommit
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.registry import RepositoryContext


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTable:
    """The writes of a candidate that wait on one branch of one table.

    Attributes:
        table: The name of the table; the identity of the table where it has no name any more.
        branch: The branch.
        writes: The recorded writes that wait, oldest first.
        head: The newest version of the branch; None where there is no branch: a run records a write before it forks the
            branch, and may die in between.
        verdicts: The last verdict of each check on `head`, by the name of the check.
    """

    table: str
    branch: str
    writes: tuple[RecordedWrite, ...]
    head: Version | None = None
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCandidate:
    """A candidate with writes that are neither published nor dropped.

    Attributes:
        id: The id of the candidate: of its root run, or of its backfill.
        runs: The runs whose writes wait, in the order of `tables`, then runs that joined the candidate without a write.
        tables: The writes that wait, by table and branch.
    """

    id: str
    runs: tuple[str, ...]
    tables: tuple[CandidateTable, ...]


def count_candidates(repository: RepositoryContext, head: RepositoryCommit) -> int:
    """Return how many candidates wait, given the newest commit."""
    writes = _open_writes(repository, head).values()
    return len({write.request.candidate for of_table in writes for write in of_table})


def _open_writes(repository: RepositoryContext, head: RepositoryCommit) -> dict[str, list[RecordedWrite]]:
    """Return the recorded writes that a commit has not closed, oldest first, by table id."""
    record = repository.record
    return for_each_table(
        lambda table_id: record.open_writes(table_id, head.writes.get(table_id, NONE_CLOSED)), record.table_ids()
    )


def waiting_candidates(repository: RepositoryContext) -> tuple[WaitingCandidate, ...]:
    """Return the candidates that wait, by their ids; nothing is written."""
    head = repository.head()
    writes = _open_writes(repository, head)
    names = {at.id: name for name, at in head.tables.items()}

    def of_table(table_id: str) -> dict[str, list[CandidateTable]]:
        name = names.get(table_id) or repository.registry.name_of(table_id)
        return _by_candidate(repository, table_id, name, writes[table_id])

    tables: dict[str, list[CandidateTable]] = {}
    for by_candidate in for_each_table(of_table, [table_id for table_id in writes if writes[table_id]]).values():
        for candidate, candidate_tables in by_candidate.items():
            tables.setdefault(candidate, []).extend(candidate_tables)
    joined = for_each_table(repository.record.runs_of, tables)
    return tuple(_candidate(candidate, tables[candidate], joined[candidate]) for candidate in sorted(tables))


def _candidate(candidate: str, tables: Iterable[CandidateTable], joined: Iterable[str]) -> WaitingCandidate:
    ordered = sorted(tables, key=attrgetter("table", "branch"))
    runs = [write.request.run_id for table in ordered for write in table.writes]
    return WaitingCandidate(id=candidate, runs=tuple(dict.fromkeys([*runs, *joined])), tables=tuple(ordered))


def _by_candidate(
    repository: RepositoryContext, table_id: str, name: str | None, writes: Iterable[RecordedWrite]
) -> dict[str, list[CandidateTable]]:
    by_branch: dict[tuple[str, str], list[RecordedWrite]] = {}
    for write in writes:
        by_branch.setdefault((write.request.candidate, write.request.branch), []).append(write)
    tables: dict[str, list[CandidateTable]] = {}
    for (candidate, branch), branch_writes in by_branch.items():
        head = None if name is None else _head(repository, name, branch)
        verdicts = {} if head is None else repository.record.verdicts(table_id, head.id)
        tables.setdefault(candidate, []).append(
            CandidateTable(
                table=name or table_id, branch=branch, writes=tuple(branch_writes), head=head, verdicts=verdicts
            )
        )
    return tables


def _head(repository: RepositoryContext, name: str, branch: str) -> Version | None:
    # The branch, or the whole table, may be deleted or be made at this moment.
    with suppress(NotFoundError, CommitConflictError):
        state = repository.table(name).find_head(branch)
        return None if state is None else repository.table(name).versions.describe(state)
    return None
