"""Record what runs wrote before the record of candidates was kept, so that it can be published.

The release before kept no record. The rows that its runs wrote are on branches `run/<id>` whose commits have no mark
(`candidates.writes`), and a publisher does not see that these branches wait. Here each commit with the rows of an
output gets a recorded write, which names the commit by its commit id. Nothing is committed to a branch: its newest
version stays the version that was audited.

All values are read from the branch and its commits. A branch that does not tell enough is not recorded, and the reason
is returned: a wrong guess could add rows twice, or let older rows take the place of newer rows.

The numbers of recorded writes are the order of the branches of a table. The release before ordered branches by the
times of their commits, so the writes are recorded in this order. Writes that runs have recorded themselves have smaller
numbers already, although they are newer; where the order matters, the branch is not recorded.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_dagster.errors import FormatError, LanceDagsterError, NotFoundError, RefNotFoundError
from lance_dagster.format.layout import MAIN, RUNS
from lance_dagster.format.run_properties import (
    ASSET_KEY,
    BACKFILL_ID,
    PARTITION_KEYS,
    PARTITIONING,
    ROOT_RUN_ID,
    RUN_ID,
    STEP_KEY,
)
from lance_dagster.format.transaction import Append, Clone
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.refs.ref_files import Branch
from lance_dagster.history.versions import Version
from lance_dagster.repository.candidates.closed_writes import NONE_CLOSED
from lance_dagster.repository.candidates.record import CandidateRecord, parse_mark
from lance_dagster.repository.candidates.writes import WRITE_MARK, RecordedWrite, WriteRequest, work_of
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.repository.run_branches import meant_branch
from lance_dagster.table import LanceTable
from lance_dagster.transactions.claims import ClaimMode, decode_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchWrites:
    """The writes on a branch of a run that no run recorded.

    Attributes:
        table: The name of the table.
        branch: The branch.
        writes: The writes that are recorded, oldest first.
        reason: Why nothing is recorded; empty where the writes are.
    """

    table: str
    branch: str
    writes: tuple[WriteRequest, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBranches:
    """The result of recording the branches of runs, or of its dry run.

    Attributes:
        dry_run: Whether nothing was written.
        recorded: The branches whose writes were recorded.
        left: The branches that were not recorded, each with the reason.
    """

    dry_run: bool
    recorded: tuple[BranchWrites, ...] = ()
    left: tuple[BranchWrites, ...] = ()


class _UnclearError(Exception):
    """A branch does not tell enough to be recorded; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _RowsCommit:
    """A commit with the rows of an output, the write that it was, and the earlier commits of the same step."""

    version: Version
    request: WriteRequest
    attempts: tuple[Version, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecorder:
    """Records the branches of runs in the tables of a repository.

    Attributes:
        repository: The repository.
        dry_run: Whether nothing is written.
        strays: Writes of commits that another process recorded at the same time. They are open until they are dropped.
    """

    repository: RepositoryContext
    dry_run: bool
    strays: list[RecordedWrite] = field(default_factory=list)

    def record(self, run_ids: Collection[str] | None) -> RecordedBranches:
        """Record the branches of some runs, or of all.

        Raises:
            RefNotFoundError: No table has a branch of a run in `run_ids`.
        """
        branches = for_each_table(lambda name: self._table(name).branches.list(f"{RUNS}*"), self._tables())
        branch_names = {name for of_table in branches.values() for name in of_table}
        recorded_runs = None if run_ids is None else {self._meant(run_id, branch_names) for run_id in run_ids}
        # In a table that the parent run did not write, the branch of a run is forked from `main`.
        parents = {
            branch.name: branch.parent_branch
            for of_table in branches.values()
            for branch in of_table.values()
            if branch.parent_branch.startswith(RUNS)
        }

        def record(name: str) -> list[BranchWrites]:
            chosen = [
                branch for branch in branches[name].values() if recorded_runs is None or branch.name in recorded_runs
            ]
            return self._recorded(name, chosen, parents) if chosen else []

        by_table = for_each_table(record, sorted(branches))
        branch_writes = [writes for name in sorted(branches) for writes in by_table[name]]
        return RecordedBranches(
            dry_run=self.dry_run,
            recorded=tuple(writes for writes in branch_writes if not writes.reason),
            left=tuple(writes for writes in branch_writes if writes.reason),
        )

    def _meant(self, run_id: str, branches: Collection[str]) -> str:
        branch = meant_branch(f"{RUNS}{run_id}", branches)
        if branch is None:
            raise RefNotFoundError(f"{RUNS}{run_id}", sorted(branches), self.repository.root)
        return branch

    def _tables(self) -> list[str]:
        registry = self.repository.registry
        registered = registry.names()
        discovered = (name for name in registry.discover(registered) if not registry.was_removed(name))
        return sorted({*registered, *discovered})

    def _table(self, name: str) -> LanceTable:
        return LanceTable(self.repository.table(name))

    def _recorded(self, name: str, branches: Iterable[Branch], parents: Mapping[str, str]) -> list[BranchWrites]:
        """Record some branches of one table, in the order of their commits."""
        table_id = self.repository.registry.id_of(name)
        open_writes = [] if table_id is None else self._open_writes(table_id)
        branch_writes: list[BranchWrites] = []
        commits: list[_RowsCommit] = []
        for branch in branches:
            reader = _BranchReader(
                record=self.repository.record,
                table=self._table(name),
                table_id=table_id or "",
                branch=branch,
                parents=parents,
                open_writes=open_writes,
            )
            try:
                own_commits = reader.unrecorded()
            except (_UnclearError, FormatError, NotFoundError) as error:
                branch_writes.append(BranchWrites(table=name, branch=branch.name, reason=str(error)))
                continue
            commits += own_commits
            if own_commits:
                requests = tuple(commit.request for commit in own_commits)
                branch_writes.append(BranchWrites(table=name, branch=branch.name, writes=requests))
        try:
            self._put(name, commits)
        except LanceDagsterError as error:
            # Such as a copy of another table, which has no identity of its own.
            return [replace(writes, writes=(), reason=writes.reason or str(error)) for writes in branch_writes]
        return branch_writes

    def _open_writes(self, table_id: str) -> list[RecordedWrite]:
        """Return the open writes of a table; claim the commits of writes that a call recorded before it died."""
        closed = self.repository.head().writes.get(table_id, NONE_CLOSED)
        writes = self.repository.record.open_writes(table_id, closed)
        for write in writes:
            if write.commit_id and not self.dry_run:
                self._claim(write)
        return [write for write in writes if write not in self.strays]

    def _put(self, name: str, commits: Sequence[_RowsCommit]) -> None:
        if self.dry_run or not commits:
            return
        table_id, record = self.repository.registry.register(name), self.repository.record
        for commit in sorted(commits, key=lambda commit: (commit.version.committed_at, str(commit.version))):
            marks = (_mark_of(record, table_id, version) for version in commit.attempts)
            replaces = tuple(parse_mark(mark)[1] for mark in marks if mark is not None)
            self._claim(record.put(table_id, replace(commit.request, replaces=replaces), commit.version.id))

    def _claim(self, write: RecordedWrite) -> None:
        if not self.repository.record.claim_commit(write):
            self.strays.append(write)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BranchReader:
    """Reads the writes of one branch from its commits.

    Attributes:
        record: The record.
        table: The table.
        table_id: Its identity; empty for a table that is not registered.
        branch: The branch.
        parents: By the branch of a run, the branch of the run that it continues, in any table.
        open_writes: The open writes of the table.
    """

    record: CandidateRecord
    table: LanceTable
    table_id: str
    branch: Branch
    parents: Mapping[str, str]
    open_writes: Sequence[RecordedWrite]

    def unrecorded(self) -> list[_RowsCommit]:
        """Return the commits with rows that no recorded write names, oldest first; none for a published branch.

        Raises:
            _UnclearError: The commits do not tell enough.
        """
        head = self.table.branches.newest(self.branch.name)
        if head is None or head.operation == Clone.__name__ or self.table.branches.is_merged(head) is not None:
            return []
        commits = list(self.table.log(head, after=MAIN))[::-1]
        rows = [version for version in commits if ASSET_KEY in version.properties]
        own_rows = [version for version in rows if version.branch == self.branch.name]
        unrecorded = [version for version in own_rows if _mark_of(self.record, self.table_id, version) is None]
        if own_rows and not unrecorded:
            return []
        self._refuse_foreign(commits)
        if not own_rows:
            raise _UnclearError("no commit of it has the rows of an output")
        return [self._rows_commit(version, rows[: rows.index(version)]) for version in unrecorded]

    def _refuse_foreign(self, commits: Iterable[Version]) -> None:
        run_id = self.branch.name.removeprefix(RUNS)
        if self.branch.metadata.get(RUN_ID) != run_id or ROOT_RUN_ID not in self.branch.metadata:
            raise _UnclearError(f"its metadata does not say that run {run_id} made it, or which root run the run has")
        for version in commits:
            if not version.branch.startswith(RUNS):
                raise _UnclearError(f"it was forked from {version.branch}, which is not the branch of a run")
            if version.properties.get(RUN_ID) != version.branch.removeprefix(RUNS):
                by = f"{version.operation} by {version.committer}"
                raise _UnclearError(f"{version} was not committed by the run of its branch ({by})")

    def _rows_commit(self, version: Version, before: Sequence[Version]) -> _RowsCommit:
        request = self._request(version)
        write = RecordedWrite(table_id=self.table_id, number=0, request=request, id="")
        newer = next(
            (
                recorded
                for recorded in self.open_writes
                if write.depends_on_order(recorded) and self._is_newer(recorded, version)
            ),
            None,
        )
        if newer is not None:
            raise _UnclearError(
                f"{newer}, of the same rows, is recorded already and would count as the older write: publish or "
                f"discard {newer.request.branch} first"
            )
        if write.adds_rows and self.record.candidate(request.candidate).is_collected:
            raise _UnclearError(
                f"the rows may be published already: {request.candidate} has published appends, and the record of them "
                "was collected; start a new run"
            )
        work = (request.work, request.partitions)
        attempts = [
            attempt
            for attempt in before
            if (work_of(attempt.properties), _partitions(attempt)) == work and attempt != version
        ]
        return _RowsCommit(version, request, tuple(attempts))

    def _is_newer(self, write: RecordedWrite, version: Version) -> bool:
        """Return whether the rows of a recorded write were committed after a version that nobody recorded."""
        if not write.commit_id:
            return True
        head = self.table.branches.newest(write.request.branch)
        commits = [] if head is None else self.table.log(head, after=MAIN)
        return any(commit.id == write.commit_id and commit.committed_at > version.committed_at for commit in commits)

    def _request(self, version: Version) -> WriteRequest:
        mode, properties, metadata = _mode(version), version.properties, self.branch.metadata
        backfill = metadata.get(BACKFILL_ID)
        if backfill is not None and PARTITION_KEYS not in properties and mode not in ("overwrite", "replace"):
            # Nothing tells two runs of the backfill from two attempts at the same rows.
            raise _UnclearError(
                f"{version} is an {mode} to a table without partitions by a run of backfill {backfill}, and does not "
                "say for which partition: execute the run again, then delete the branch"
            )
        return WriteRequest(
            candidate=backfill or metadata[ROOT_RUN_ID],
            run_id=properties[RUN_ID],
            origin=self._origin(),
            branch=version.branch,
            branch_id=self.branch.id,
            base=version.number - 1,
            work=work_of(properties),
            partitions=_partitions(version),
            partitioning=properties.get(PARTITIONING, ""),
            mode=mode,
            step=properties.get(STEP_KEY, ""),
        )

    def _origin(self) -> str:
        """Return the first of the runs that the run continues, as far as branches tell.

        Example: branch `run/c` was forked from `run/b`, which was forked from `run/a`: the result is `a`.
        """
        chain = [self.branch.name]
        # A branch name may be used again, so parents may form a circle.
        while (parent := self.parents.get(chain[-1])) is not None and parent not in chain:
            chain.append(parent)
        return chain[-1].removeprefix(RUNS)


def _mark_of(record: CandidateRecord, table_id: str, version: Version) -> str | None:
    """Return the mark of the write whose rows a commit has, whether a run recorded it or this module did."""
    mark = version.properties.get(WRITE_MARK)
    return mark if mark is not None or not table_id else record.mark_of(table_id, version.id)


def _mode(version: Version) -> ClaimMode:
    modes = {claim.mode for claim in decode_claims(version.properties)}
    if not modes and version.operation == Append.__name__:
        return "append"
    if len(modes) != 1:
        raise _UnclearError(f"{version} does not say whether it appended, replaced or upserted rows")
    return modes.pop()


def _partitions(version: Version) -> tuple[str, ...]:
    try:
        keys = parsed_json(version.properties.get(PARTITION_KEYS, "[]"))
    except ValueError:
        keys = None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _UnclearError(f"{version} does not have a list of partitions in its property {PARTITION_KEYS!r}")
    return tuple(keys)
