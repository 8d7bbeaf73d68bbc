"""The extent of a branch: its recorded writes, its partitions, and whether it replaced their rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_dagster.errors import RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.partition_scope import PartitionScope
from lance_dagster.format.transaction import WITHOUT_ROWS
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import strings_of
from lance_dagster.plugin.recorded_writes import write_of
from lance_dagster.plugin.run_branch import is_written

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.candidates.writes import RecordedWrite
    from lance_dagster.table import LanceTable
    from lance_dagster.transactions.claims import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchExtent:
    """What a branch wrote: the partitions, and whether it replaced their rows.

    `writes` are the recorded writes on the branch that `main` lacks, newest first.
    """

    head: "Version"
    writes: "tuple[RecordedWrite, ...]" = ()
    scope: PartitionScope
    replaces: bool = False

    @classmethod
    def of(cls, table: "LanceTable", head: "Version", repository: "LanceRepository") -> "BranchExtent":
        """Return the extent of the writes of a branch since it was forked from `main`."""
        commits = list(table.log(head, after=MAIN))
        claims = _claims(commits)
        writes = (write_of(repository, table, commit) for commit in commits)
        return cls(
            head=head,
            writes=tuple(write for write in writes if write is not None),
            scope=PartitionScope(frozenset(_partitions(commits)), next(filter(None, map(_partitioning, commits)), "")),
            # A branch with an append or an upsert does not supersede another branch, whose rows it lacks.
            replaces=bool(claims) and all(claim.mode in ("overwrite", "replace") for claim in claims),
        )

    @property
    def partitions(self) -> frozenset[str]:
        """The keys of the partitions; empty for the whole table."""
        return self.scope.keys

    @property
    def newest(self) -> int:
        """The number of the newest recorded write; 0 without any. Numbers are the order of the writes of a table."""
        return max((write.number for write in self.writes), default=0)

    def contains(self, older: "BranchExtent") -> bool:
        """Return whether this branch was forked from an older branch after its last write."""
        return bool(older.writes) and {*older.writes} <= {*self.writes}

    def redoes(self, older: "BranchExtent") -> bool:
        """Return whether this branch appended the rows of an older branch again, without replacing them."""
        own = [write for write in self.writes if write.adds_rows]
        return any(
            write.is_same_work(before) and write.scope.covers(before.scope)
            for before in older.writes
            if before not in self.writes
            for write in own
        )

    def appended_again(self, older: "BranchExtent") -> frozenset[str]:
        """Return the partitions of an older branch to which this branch appended the same rows again."""
        return frozenset(
            key
            for write in self.writes
            if write.adds_rows
            for before in older.writes
            if before.adds_rows and before not in self.writes and write.is_same_work(before)
            for key in before.request.partitions
            if key in write.request.partitions
        )

    def covers(self, older: "BranchExtent") -> bool:
        """Return whether this branch replaced everything that an older branch wrote."""
        return self.replaces and self.scope.covers(older.scope)

    def shares(self, second: "BranchExtent") -> str:
        """Return the partitions that both branches replaced, as text; empty when there is no such partition.

        A merge of the two branches would conflict there, since each branch says what all rows are.
        """
        if not (self.replaces and second.replaces):
            return ""
        if not (self.partitions and second.partitions):
            return ", ".join(sorted(self.partitions | second.partitions)) or "the whole table"
        # Keys of two partitionings do not tell whether they share rows, so the branches are not published together.
        if not self.scope.is_comparable(second.scope):
            return f"{', '.join(sorted(self.partitions))}, by another definition of the partitions"
        return ", ".join(sorted(self.partitions & second.partitions))


def _partitioning(commit: "Version") -> str:
    return commit.properties.get(md.PARTITIONING, "")


def _claims(commits: "Iterable[Version]") -> "list[Claim]":
    # Imported in a run only: a code location that is loaded does not need the format.
    from lance_dagster.transactions.claims import decode_claims

    return [claim for commit in commits for claim in decode_claims(commit.properties)]


def partitions_of(table: "LanceTable", version: "Version", partitioning: str) -> tuple[str, ...]:
    """Return the partitions that the commits of a branch wrote since it was forked from `main`, in order.

    Empty for a version of `main`, and when a commit changed rows without naming partitions or replaced all rows: then
    the branch wrote the whole table. Empty too when the keys mean other rows by now.

    Args:
        table: The table.
        version: The head of the branch.
        partitioning: The partitioning of the asset as it is defined now.
    """
    # The head decides for an asset without partitions, so that a check of it need not read the log of the branch.
    if version.branch == MAIN or _wrote_whole_table(version):
        return ()
    commits = list(table.log(version, after=MAIN))
    # Commits of earlier releases do not name a partitioning.
    if any(_partitioning(commit) not in ("", partitioning) for commit in commits):
        return ()
    return tuple(sorted(_partitions(commits)))


def _partitions(commits: "Iterable[Version]") -> set[str]:
    keys: set[str] = set()
    for commit in commits:
        if _wrote_whole_table(commit):
            return set()
        keys.update(strings_of(commit, md.PARTITION_KEYS))
    return keys


def _wrote_whole_table(commit: "Version") -> bool:
    return commit.operation not in WITHOUT_ROWS and (md.PARTITION_KEYS not in commit.properties or _overwrote(commit))


def _overwrote(commit: "Version") -> bool:
    """Return whether a commit of an asset replaced all rows, although it may name the partitions of its run."""
    # The IO manager gives an empty table its columns by an overwrite that names no asset.
    return md.ASSET_KEY in commit.properties and any(claim.mode == "overwrite" for claim in _claims([commit]))


def written_heads(table: "LanceTable", names: Iterable[str]) -> "list[Version]":
    """Return the heads of the branches, of some, that have commits of their own; the oldest first."""
    heads: list[Version] = []
    for name in names:
        try:
            head = table.head(name)
        except RefNotFoundError:
            # A publisher retired the branch since the branches were listed.
            continue
        if is_written(head):
            heads.append(head)
    return sorted(heads, key=lambda head: head.committed_at)


def newest_waiting(repository: "LanceRepository", table: "LanceTable") -> "Version | None":
    """Return the head of the branch with the newest recorded write of a table that waits to be published, or None.

    A write waits until a commit publishes it, or drops it because a newer write took its place or somebody discarded
    it.
    """
    for write in reversed(open_writes(repository, table)):
        head = table.branches.newest(write.request.branch)
        # The rows of a write that died before its commit, or whose branch was deleted, wait nowhere.
        if head is not None and is_written(head) and table.branches.is_merged(head) is None:
            return head
    return None


def open_writes(repository: "LanceRepository", table: "LanceTable") -> "list[RecordedWrite]":
    """Return the recorded writes of a table that are neither published nor dropped, oldest first."""
    from lance_dagster.repository.candidates.closed_writes import ClosedWrites

    table_id = repository.registered_id(repository.name_of(table))
    if table_id is None:
        return []
    return repository.record.open_writes(table_id, repository.head().writes.get(table_id, ClosedWrites()))
