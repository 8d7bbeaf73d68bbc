"""Make a commit of many tables: stage every table, then move the branch of the repository by one put.

1. stage    each table gets its next version beside `main` (`staging`); all conflicts are reported together
2. audit    the caller checks exactly the staged versions, and may refuse them
3. commit   the commit is stored, then the next entry of the branch is put if absent: this makes it visible
4. land     `main` of each table is brought up to it; a reader of a branch or channel does not depend on this step

A process may die at any moment; the next call with the same tables completes the missing steps. When another process
moved the branch first, tables that it did not change keep their staged versions; tables that it changed are staged
again on top of its versions.
"""

import reprlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from lance_dagster.errors import ConflictError, InvalidInputError
from lance_dagster.repository.candidates.closed_writes import WriteChanges
from lance_dagster.repository.commits.entry_ranges import changed_entries
from lance_dagster.repository.commits.ref_log import RefLogs, next_entry, person
from lance_dagster.repository.commits.snapshot import Recorded, RefEntry, RepositoryCommit, TableVersion, new_commit
from lance_dagster.repository.publish.staging import Staging, for_each_table
from lance_dagster.store.retries import Pauses

_TRIES = 50
# In seconds.
_PAUSES = Pauses(first=0.02, longest=2.0)
T = TypeVar("T")
Stage = Callable[[str, TableVersion | None], TableVersion | None]
"""Stages one table, given its name and the version the repository names; returns None when nothing changes."""
AuditStaged = Callable[[Mapping[str, TableVersion]], None]
"""Checks the tables to be committed, together with the tables in `CommitRequest.reads`; raises to refuse the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """The content of a new commit.

    Attributes:
        branch: The branch of the repository that gets the commit.
        stage: How each table is staged.
        names: The tables that may change.
        removed: The tables that the commit no longer names.
        renamed: New names of tables, by their old ones.
        message: The commit message.
        author: Who commits; empty for the committer.
        properties: Stored with the commit.
        audit: Checks the staged versions.
        reads: Tables that the audit reads besides the changed tables; the audit gets the versions of them that the
            commit will name.
        since: The newest entry of the branch, if it was read before; an outdated one only costs an attempt.
        writes: The recorded writes that the commit publishes or drops.
        channel: The channel that the commit is to be promoted to; empty for none.
        staging: The versions that `stage` has staged; they are dropped where no commit will name them.
    """

    branch: str
    stage: Stage
    names: tuple[str, ...]
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    message: str
    author: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    audit: AuditStaged | None = None
    reads: tuple[str, ...] = ()
    since: RefEntry | None = None
    writes: WriteChanges = field(default_factory=WriteChanges)
    channel: str = ""
    staging: Staging | None = None

    @property
    def dropping(self) -> AbstractContextManager[None]:
        """A block that drops the staged versions when it raises."""
        return nullcontext() if self.staging is None else self.staging.dropped_if_refused()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTables:
    """A commit, and the tables whose version it changed: empty when there was nothing to do."""

    commit: RepositoryCommit
    changed: Mapping[str, TableVersion]


def commit_tables(logs: RefLogs, request: CommitRequest) -> CommittedTables:
    """Make a commit of many tables, or find that there is nothing to do.

    Raises:
        RefNotFoundError: There is no such branch.
        MergeConflictError: Tables cannot be merged; the error has the conflicts of all tables, and nothing is visible.
        ConflictError: Other processes moved the branch each time; or they closed a recorded write that is to be
            published.
        CommitStateUnknownError: The storage failed; the commit may or may not have landed.
    """
    # By table, the version that the repository named when the table was staged, and the staged version.
    staged: dict[str, tuple[TableVersion | None, TableVersion | None]] = {}
    audited: dict[str, TableVersion] = {}
    for attempt in range(_TRIES):
        newest = request.since if request.since and not attempt else logs.current("branch", request.branch)
        head = logs.commit(newest.commit)
        tables = changed_entries(head.tables, _named(request, head))
        with request.dropping:
            # Only what another process changed is staged again: staging costs most of the requests.
            staged |= _staged_again(request, head, staged)
            changed = {name: version for name, (_, version) in staged.items() if version is not None}
            # After the head was read: where the put of the entry succeeds, no other commit closed a write meanwhile.
            writes = changed_entries(head.writes, request.writes.apply(head.writes))
            # A call that is repeated after a crash ends here when the earlier call made its commit.
            if not changed and tables == head.tables and writes == head.writes:
                return CommittedTables(commit=head, changed={})
            # Before the commit is stored, so that nothing names refused versions.
            _audit(request, {**{name: tables[name] for name in request.reads if name in tables}, **changed}, audited)
        commit, data = new_commit(
            changed_entries(tables, changed),
            (head,),
            author=request.author or person(),
            message=request.message,
            properties=request.properties,
            recorded=Recorded(
                writes, {**head.channels, **({request.channel: newest.number + 1} if request.channel else {})}
            ),
        )
        # Stored before the entry that names it: a crash in between leaves a commit that nothing names, which a
        # collection deletes. In the opposite order, readers could find an entry without its commit.
        logs.put_commit(commit, data, base=head)
        entry = next_entry(newest, "commit", commit.id, reason=request.message, by=commit.author)
        if logs.append("branch", request.branch, entry):
            if request.staging is not None:
                request.staging.drop_unused(commit)
            return CommittedTables(commit=commit, changed=changed)
        # Wait for a random time: publishers that lost at the same moment would meet again at the next put.
        _PAUSES.wait(attempt)
    raise ConflictError(
        f"other processes moved branch {request.branch!r} of {logs.store.uri} during each of {_TRIES} attempts; "
        "publish again"
    )


def _named(request: CommitRequest, head: RepositoryCommit) -> dict[str, TableVersion | None]:
    """Return the tables that get another name or are removed, as changes of the entries of a commit."""
    changes: dict[str, TableVersion | None] = {}
    versions = {name: head.tables[name] for name in (*request.renamed, *request.removed) if name in head.tables}
    changes |= dict.fromkeys(versions)
    changes |= {request.renamed[name]: at for name, at in versions.items() if name in request.renamed}
    return changes


def _staged_again(
    request: CommitRequest,
    head: RepositoryCommit,
    staged: Mapping[str, tuple[TableVersion | None, TableVersion | None]],
) -> dict[str, tuple[TableVersion | None, TableVersion | None]]:
    """Stage the tables that were not staged yet, and the tables whose version in the repository changed since."""
    # The version of a table that another process changed has to contain what that process published.
    names = [name for name in request.names if name not in staged or staged[name][0] != head.tables.get(name)]

    def stage(name: str) -> tuple[TableVersion | None, TableVersion | None]:
        dest = head.tables.get(name)
        return dest, request.stage(name, dest)

    refusal = f"cannot commit to {request.branch!r}: nothing was published, and no table changed;"
    return for_each_table(stage, names, refusal)


def _audit(request: CommitRequest, versions: Mapping[str, TableVersion], audited: dict[str, TableVersion]) -> None:
    # An audit may read all rows, so it is repeated only when a later attempt has other versions of the tables it reads.
    # The put of the entry then proves that the commit has these versions: it is refused when the branch moved since.
    if request.audit is not None and audited != versions:
        run_audit(request.audit, versions)
        audited.clear()
        audited.update(versions)


def run_audit(audit: Callable[[T], object], tables: T) -> None:
    """Let an audit check tables.

    Raises:
        InvalidInputError: The audit returned a value, such as False: only an exception refuses the commit.
    """
    answer = audit(tables)
    if answer is not None:
        raise InvalidInputError(f"audit raises to refuse and returns nothing; it returned {reprlib.repr(answer)}")


def stage_nothing(name: str, dest: TableVersion | None) -> None:
    """Stage nothing, for a commit that only removes or renames tables, or closes recorded writes."""
    del name, dest
