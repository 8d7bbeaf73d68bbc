"""Give up what was written to a branch: its writes will never be published, and the branch ends.

A branch that a person forked is known by the marks of its tables (`publish/forks`). The branch of a run of Dagster has
no such marks: the record has its writes. They are dropped by a commit before the branches are deleted, so of a discard
and a publication of the same writes exactly one happens, whichever process dies or is slow.
"""

from collections.abc import Collection

from lance_dagster.errors import ConflictError, RefNotFoundError
from lance_dagster.format.layout import RUNS
from lance_dagster.history.refs.branch_operations import delete_branch
from lance_dagster.repository.candidate_status import CandidateTable, waiting_candidates
from lance_dagster.repository.candidates.writes import WRITE_MARK
from lance_dagster.repository.publications import Publications
from lance_dagster.repository.publish.forks import discard_tables
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.repository.run_branches import branch_as_typed, is_as_forked, unknown_branch


def discard_branch(
    repository: RepositoryContext, branch: str, tables: Collection[str] | None, *, reason: str
) -> tuple[str, ...]:
    """End a branch, or its part in some tables, without a publication; return the branches that stay, and why.

    Raises:
        RefNotFoundError: There is no such branch, or it is not in a table.
        ConflictError: The rows are published, or another process changed the branch at the same time.
    """
    branch = branch_as_typed(repository, branch)
    if repository.logs.forked(branch)[0] is not None:
        return discard_tables(repository, branch, tables, reason=reason)
    waiting = {table.table: table for table in _tables_with_branch(repository, branch)} | {
        table.table: table
        for candidate in waiting_candidates(repository)
        for table in candidate.tables
        if table.branch == branch
    }
    if not waiting:
        raise unknown_branch(repository, branch)
    for name in tables or ():
        if name not in waiting:
            raise RefNotFoundError(name, sorted(waiting), repository.root, "table of the branch")
    return _discard_writes(repository, branch, [waiting[name] for name in tables or waiting], reason)


def _tables_with_branch(repository: RepositoryContext, branch: str) -> list[CandidateTable]:
    """Return the tables that have a branch of a run, also where newer rows replaced its writes, or it has none."""

    def of_table(name: str) -> CandidateTable | None:
        context = repository.table(name)
        state = context.find_head(branch)
        if state is None:
            return None
        head = context.versions.describe(state)
        # A run whose output was refused leaves a branch without commits, whose deletion loses nothing.
        is_empty = branch.startswith(RUNS) and is_as_forked(state)
        # A person's branch has no mark of a recorded write.
        if not is_empty and WRITE_MARK not in head.properties:
            return None
        return CandidateTable(table=name, branch=branch, writes=(), head=head)

    names = {*repository.registry.names(), *repository.head().tables}
    tables = for_each_table(of_table, sorted(names)).values()
    return [table for table in tables if table is not None]


def _discard_writes(
    repository: RepositoryContext, branch: str, tables: Collection[CandidateTable], reason: str
) -> tuple[str, ...]:
    writes = [write for table in tables for write in table.writes]
    if writes:
        message = f"discard {branch}: {reason}" if reason else f"discard {branch}"
        Publications(repository).discard_writes(writes, message=message)

    def delete(name: str) -> str | None:
        context = repository.table(name)
        try:
            delete_branch(branch, context.refs, context.versions)
        except ConflictError as error:
            return f"{branch} of {name}: {error}"
        return None

    refusals = for_each_table(delete, [table.table for table in tables if table.head is not None])
    return tuple(sorted(refusal for refusal in refusals.values() if refusal is not None))
