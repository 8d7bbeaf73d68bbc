"""Record what a run writes in the repository at the root, before the rows are committed to the branch of the run.

The candidate of a run is what its root run and all re-executions of that run write, or what all runs of a backfill and
of its re-executions write. So two attempts at the same rows are always writes of one candidate, and the repository
lets only one of two appends be published (`repository/candidates/closed_writes`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.run_branch import RunBranch, RunChain
from lance_dagster.plugin.settings import WriteMode

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.candidates.audits import Verdict
    from lance_dagster.repository.candidates.writes import RecordedWrite, WriteRequest
    from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """A write that a run is about to commit to its branch, and records before that.

    Attributes:
        repository: The repository of the table.
        branch: The branch of the run.
        request: The record of the write, without the identity of the branch: the branch may not exist yet.
    """

    repository: "LanceRepository"
    branch: RunBranch
    request: "WriteRequest"

    @classmethod
    def of(
        cls,
        repository: "LanceRepository",
        branch: RunBranch,
        properties: Mapping[str, str],
        mode: WriteMode,
        *,
        is_first: bool = False,
    ) -> "PlannedWrite":
        """Return the write that a commit with some properties will make, or refuse it before its rows are written.

        Args:
            repository: The repository of the table.
            branch: The branch of the run.
            properties: The properties of the commit with the rows.
            mode: How the write changes rows.
            is_first: Whether the branch has no commits, and so none of an earlier attempt of the step.

        Raises:
            InvalidInputError: The write would append rows that are published. Its publication would be refused too.
        """
        from lance_dagster.repository.candidates.writes import WriteRequest, work_of

        chain = branch.chain
        versions = () if is_first else branch.own_versions()
        # The other writes of a step stay beside this write: an external process may append twice.
        attempts = (
            version
            for version in versions
            if branch.is_of_step(version, properties) and version.properties.get(md.WRITE) == properties.get(md.WRITE)
        )
        marks = (repository.publications.mark_of(branch.table, version) for version in attempts)
        request = WriteRequest(
            candidate=chain.candidate_id,
            run_id=chain.run_id or "",
            origin=chain.run_ids[-1],
            branch=branch.name,
            branch_id="",
            base=0,
            # All attempts of another candidate have the partition of its root run.
            work=work_of(properties, chain.run_partition if chain.backfill_id else ()),
            partitions=tuple(json.loads(properties.get(md.PARTITION_KEYS, "[]"))),
            partitioning=properties.get(md.PARTITIONING, ""),
            mode=mode,
            step=properties.get(md.STEP_KEY, ""),
            replaces=tuple(number for mark in marks if (number := _number(mark))),
        )
        write = cls(repository=repository, branch=branch, request=request)
        if mode == "append":
            write._refuse_published(properties[md.ASSET_KEY])
        return write

    def put(self, head: "Version") -> dict[str, str]:
        """Record the write; return the property that its commit needs. `head` is the newest version of the branch."""
        branch = self.branch.table.branches.recall(head.branch)
        request = replace(self.request, branch_id=branch.id, base=head.number)
        return {_mark(): self.repository.record.put(self._table_id, request).mark}

    @property
    def _table_id(self) -> str:
        return self.repository.table_id(self.repository.name_of(self.branch.table))

    def _refuse_published(self, asset: str) -> None:
        """Refuse to append rows that are published.

        Raises:
            InvalidInputError: They are, or may be.
        """
        from lance_dagster.repository.candidates.closed_writes import published_duplicate
        from lance_dagster.repository.candidates.writes import RecordedWrite

        chain, table_id = self.branch.chain, self._table_id
        related = self.repository.record.candidate(chain.candidate_id)
        if related.is_collected:
            candidate = f"backfill {chain.backfill_id}" if chain.backfill_id else f"run {chain.candidate_id}"
            raise InvalidInputError(
                f"the record of {candidate} was collected, and rows that it appended are published; repeating "
                "the step may add its rows again: start a new run"
            )
        of_table = [write for write in related.writes if write.table_id == table_id]
        # The first run of a candidate finds nothing, and reads no commit.
        if not of_table:
            return
        write = RecordedWrite(table_id=table_id, number=0, request=self.request, id="")
        publications = self.repository.publications
        duplicate = published_duplicate(write, of_table, self.repository.head().writes, publications.is_merged)
        if duplicate is None:
            return
        run_id, partitions = duplicate.request.run_id, ", ".join(duplicate.request.partitions)
        does = "continues" if run_id in chain.run_ids else "repeats"
        advice = "leave the step out" if does == "continues" else "re-execute that run from its failure"
        raise InvalidInputError(
            f"run {run_id}, which this run {does}, appended {f'{partitions} ' if partitions else ''}to {asset}, and "
            f"that is published; repeating the step would add its rows again: {advice}, or start a new run"
        )


def write_of(repository: "LanceRepository", table: "LanceTable", version: "Version") -> "RecordedWrite | None":
    """Return the recorded write that wrote the rows of a version; None for a commit that nobody recorded."""
    mark = repository.publications.mark_of(table, version)
    return None if mark is None else repository.record.write(mark)


def is_marked(version: "Version") -> bool:
    """Return whether a run recorded the write of a version before it committed the rows."""
    return _mark() in version.properties


def recorded_table_id(version: "Version") -> str:
    """Return the identity of the table under which the write of a version is recorded; empty without a record."""
    return version.properties.get(_mark(), "").rpartition("@")[0]


def has_rows_of(version: "Version", write: "RecordedWrite") -> bool:
    """Return whether a version of the branch of a write is the commit with the rows of that write."""
    return version.id == write.commit_id or version.properties.get(_mark()) == write.mark


def _number(mark: str | None) -> int:
    """Return the number of the recorded write that a mark names; 0 where it names none."""
    number = (mark or "").rpartition("@")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


def join_candidate(repository: "LanceRepository", chain: RunChain) -> None:
    """Record that a run belongs to its candidate, where Dagster would not find it: a re-execution from Python.

    Such a run may only evaluate checks of what an earlier run wrote.
    """
    if chain.is_untagged and chain.run_id is not None:
        repository.record.join(chain.candidate_id, chain.run_id)


def put_verdict(repository: "LanceRepository", table: "LanceTable", version: "Version", verdict: "Verdict") -> None:
    """Record what a check found on a version of a run's branch; a version of `main` is audited by its publication."""
    if version.branch != MAIN:
        mark = repository.publications.mark_of(table, version)
        table_id = recorded_table_id(version) or repository.table_id(repository.name_of(table))
        repository.record.put_verdicts(table_id, version.id, [verdict], write=_number(mark))


def _mark() -> str:
    from lance_dagster.repository.candidates.writes import WRITE_MARK

    return WRITE_MARK
