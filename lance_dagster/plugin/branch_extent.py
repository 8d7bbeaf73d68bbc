"""The extent of a branch: its partitions, whether it replaced their rows, and the newest run of each partition.

From these follows which candidate of a table waits (`waiting_version`).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import RefNotFoundError, VersionNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import WITHOUT_ROWS
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import strings_of
from lance_dagster.plugin.run_branch import is_written, repeated_by, run_of, started_at

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable
    from lance_dagster.transactions.claims import Claim


# How many materializations are asked for at once.
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchExtent:
    """What a branch wrote: the partitions, or none for the whole table, and whether it replaced or appended rows."""

    head: "Version"
    partitions: frozenset[str] = field(default_factory=frozenset)
    replaces: bool = False
    appends: bool = False

    @classmethod
    def of(cls, table: "LanceTable", head: "Version") -> "BranchExtent":
        """Return the extent of the writes of a branch since it was forked from `main`."""
        commits = list(table.log(head, after=MAIN))
        claims = _claims(commits)
        appends = any(claim.mode == "append" for claim in claims)
        partitions = frozenset(_partitions(commits))
        return cls(head=head, partitions=partitions, replaces=_replaces(claims), appends=appends)

    @classmethod
    def of_published(cls, commit: "Version") -> "BranchExtent":
        """Return the extent of the publication that a commit of `main` made."""
        claims = _claims([commit])
        named = frozenset(key for claim in claims for key in claim.partitions)
        partitions = frozenset() if _overwrote(commit) else named
        return cls(head=commit, partitions=partitions, replaces=_replaces(claims))

    def covers(self, older: "BranchExtent") -> bool:
        """Return whether this branch replaced everything that an older branch wrote."""
        if not self.replaces:
            return False
        # No partitions mean the whole table, which only another write of the whole table covers.
        return not self.partitions or (bool(older.partitions) and older.partitions <= self.partitions)

    def shares(self, other: "BranchExtent") -> str:
        """Return what both branches replaced, as text; empty when there is no such partition.

        A merge of the two would conflict there, since each of them says what all rows are.
        """
        if not (self.replaces and other.replaces):
            return ""
        if not (self.partitions and other.partitions):
            return ", ".join(sorted(self.partitions | other.partitions)) or "the whole table"
        return ", ".join(sorted(self.partitions & other.partitions))


def _claims(commits: "Iterable[Version]") -> "list[Claim]":
    # Imported in a run only: a code location that is loaded does not need the format.
    from lance_dagster.transactions.claims import decode_claims

    return [claim for commit in commits for claim in decode_claims(commit.properties)]


def _replaces(claims: "Iterable[Claim]") -> bool:
    modes = {claim.mode for claim in claims}
    # A branch with an append or an upsert does not supersede another branch: it lacks the rows of the other one.
    return bool(modes) and modes <= {"overwrite", "replace"}


def partitions_of(table: "LanceTable", version: "Version") -> tuple[str, ...]:
    """Return the partitions that the commits of a branch wrote since it was forked from `main`, in order.

    Empty for a version of `main`, and when a commit changed rows without naming partitions or replaced all rows: then
    the branch wrote the whole table.
    """
    # The head decides for an asset without partitions, so that a check of it need not read the log of the branch.
    if version.branch == MAIN or _wrote_whole_table(version):
        return ()
    return tuple(sorted(_partitions(table.log(version, after=MAIN))))


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
    """Return the heads of those of some branches that have commits of their own, oldest first."""
    found: list[Version] = []
    for name in names:
        try:
            head = table.head(name)
        except RefNotFoundError:
            # Another publisher retired it since the branches were listed.
            continue
        if is_written(head):
            found.append(head)
    return sorted(found, key=lambda head: head.committed_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized:
    """A version that a run materialized."""

    run_id: str
    branch: str
    number: int
    transaction: str | None


def newest_materialized(
    asset: dg.AssetKey,
    instance: dg.DagsterInstance,
    *,
    keys: Sequence[str] = (),
    since: datetime | None = None,
    by: Callable[[str], bool] = lambda _: True,
) -> dict[str | None, Materialized]:
    """Return the newest materialization of each partition that has one; the key is None for the whole table.

    Args:
        asset: The asset.
        instance: The Dagster instance.
        keys: The partitions to look for; empty for all.
        since: Earlier materializations are left out.
        by: Returns for the id of a run whether its materializations count.
    """
    wanted = dg.AssetRecordsFilter(
        asset_key=asset,
        asset_partitions=list(keys) or None,
        after_timestamp=since.timestamp() if since is not None else None,
    )
    newest: dict[str | None, Materialized] = {}
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(wanted, limit=_PAGE, cursor=cursor)
        # The records come newest first.
        for record in page.records:
            event = record.asset_materialization
            named = md.audited_version(event.metadata) if event else None
            if event is not None and named is not None and event.partition not in newest and by(record.run_id):
                transaction = md.text(event.metadata, md.TRANSACTION)
                made = Materialized(run_id=record.run_id, branch=named[0], number=named[1], transaction=transaction)
                newest[event.partition] = made
        if not page.has_more:
            return newest
        cursor = page.cursor


def in_order(heads: "Sequence[Version]", asset: dg.AssetKey, instance: dg.DagsterInstance) -> "list[Version]":
    """Sort the heads of branches by the order in which Dagster recorded their materializations, oldest first.

    The times of commits are those of the workers' clocks. By a clock that is ahead, the older of two branches would
    supersede the newer one. A head that Dagster has no record of keeps its place.
    """
    if len(heads) <= 1:
        return list(heads)
    wanted = {(head.branch, head.number): head for head in heads}
    newest_first: list[Version] = []
    page = instance.fetch_materializations(asset, limit=_PAGE)
    for record in page.records:
        event = record.asset_materialization
        named = md.audited_version(event.metadata) if event else None
        # A repeated report of a version is not a newer version, but nothing came between the two.
        if named is not None and (head := wanted.pop(named, None)) is not None:
            newest_first.append(head)
    known = iter(reversed(newest_first))
    return [head if (head.branch, head.number) in wanted else next(known) for head in heads]


def waiting_version(table: "LanceTable", asset: dg.AssetKey, instance: dg.DagsterInstance) -> "Version | None":
    """Return the newest version of an asset that waits to be published, or None when none waits.

    This is the newest materialized version, unless `main` has it. Otherwise it is the head of the newest run branch
    that `main` lacks, such as that of a day that failed its checks before a later day was published. A branch whose
    rows a later materialization replaced, or whose append a later run repeated, does not wait.

    Args:
        table: The table of the asset.
        asset: The candidate.
        instance: The Dagster instance, whose event log names the versions.
    """
    event = instance.get_latest_materialization_event(asset)
    made = event.asset_materialization if event else None
    found = md.audited_version(made.metadata) if made else None
    if made is None or found is None:
        return None
    # A branch may have been deleted and created again under its name, with other versions of the same numbers.
    with suppress(RefNotFoundError, VersionNotFoundError):
        version = table.at(f"branch:{found[0]}@{found[1]}")
        is_same = version.transaction == md.text(made.metadata, md.TRANSACTION)
        if is_same and version.branch != MAIN and not table.branches.is_merged(version):
            return version
    # The publisher deletes the branches that it published, so few are left.
    heads = [head for head in written_heads(table, table.branches.list("run/*")) if not table.branches.is_merged(head)]
    newest_first = reversed(in_order(heads, asset, instance))
    return next((head for head in newest_first if _waits(BranchExtent.of(table, head), asset, instance)), None)


def _waits(one: BranchExtent, asset: dg.AssetKey, instance: dg.DagsterInstance) -> bool:
    """Return whether a branch has rows of an asset of which no later run made others."""
    run_id = run_of(one.head.branch) or ""
    newest = newest_materialized(
        asset,
        instance,
        keys=sorted(one.partitions),
        since=started_at(dg.RunsFilter(run_ids=[run_id]), instance),
        # What a later run appended does not take the place of these rows.
        by=lambda by: one.replaces or by == run_id,
    )
    is_newest = any(made.branch == one.head.branch for made in newest.values())
    return is_newest and (one.replaces or repeated_by(run_id, instance) is None)
