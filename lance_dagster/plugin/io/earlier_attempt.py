"""Take back what an earlier attempt of a step committed, before the output of this attempt is put on the branch.

A retry repeats a step in its run, and a re-execution repeats it in a run that continues the first one. Either finds the
commits of the earlier attempt on the branch: its edits of columns, then its rows. Whatever they left, this attempt must
end as if it were the first one. An overwrite and a replacement leave none of the earlier rows, and an append removes
them in its own commit; an upsert would keep each key that only the earlier attempt had, and no mode removes columns.

Where nobody else has committed to the branch since, one commit restores the version before the attempt. Otherwise the
rows of the attempt are reverted, and its columns stay.
"""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import ConflictError
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import values_of
from lance_dagster.plugin.io.write_request import Write
from lance_dagster.plugin.publish.publication import is_withdrawn, landed_as
from lance_dagster.plugin.repeated_appends import published_append
from lance_dagster.plugin.run_branch import (
    BACKFILL_TAG,
    RunBranch,
    RunChain,
    earlier_runs,
    is_restore,
    is_written,
    started_at,
)

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.plugin.resource import LanceResource
    from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """What earlier attempts of a step left on the branch of a run.

    Attributes:
        branch: The branch of the run.
        write: The write of this attempt.
        before: The version that the earlier attempts began with. None when there was no attempt, when it was taken back
            already, and when the version cannot be restored, since others have committed to the branch meanwhile or may
            do so at any time.
    """

    branch: RunBranch
    write: Write
    before: "Version | None"

    @classmethod
    def of(cls, branch: RunBranch, write: Write) -> "EarlierAttempt":
        """Look for the commits of earlier attempts."""
        # A branch that a tag names is written by other runs, and a table of ops by other steps of the run: what they
        # commit between this search and the restore would be lost.
        is_shared = branch.chain.branch_tag is not None or write.asset.startswith(md.OP_OUTPUT)
        return cls(branch=branch, write=write, before=None if is_shared else _version_before(branch, write.properties))

    def take_back(self, *, moves_rows: bool) -> bool:
        """Take back what the earlier attempts committed, where the commit of the rows would not do it.

        Args:
            moves_rows: Whether columns are edited so that rows move to other files, where an append could not find the
                rows of the earlier attempt.

        Returns:
            Whether the branch is without the rows of earlier attempts now.

        Raises:
            ConflictError: Later commits of others build on the rows of the earlier attempt.
        """
        branch, mode, properties = self.branch, self.write.mode, self.write.edit_properties
        keeps_rows = mode == "upsert" or (mode == "append" and moves_rows)
        table, before = branch.table, self.before
        if before is not None and (keeps_rows or table.schema(before) != table.schema(branch.name)):
            message = f"take back an earlier attempt of {self.write.asset}"
            table.restore(str(before), branch.name, message=message, properties=properties)
            return True
        if before is not None or not keeps_rows:
            return False
        if (rows := branch.earlier_attempt(self.write.properties)) is None:
            return False
        try:
            message = f"take back {rows}, an earlier attempt of {self.write.asset}"
            table.revert(str(rows), branch.name, message=message, properties=properties)
        except ConflictError as error:
            raise ConflictError(
                f"{self.write.asset}: an earlier attempt of this step wrote {rows} of {table.uri}, and its rows cannot "
                f"be taken back, because later commits build on them: {error}. Launch a new run, and not a retry or a "
                "partial re-execution of this one"
            ) from error
        return True


def published_before(
    branch: RunBranch, properties: Mapping[str, str], *, lance: "LanceResource", instance: dg.DagsterInstance | None
) -> str:
    """Return why an append must not be repeated: its rows are published, and it would not replace them there.

    Empty when it may be repeated. The branch of the run need not exist yet.

    Args:
        branch: The branch of the run.
        properties: The properties of the append.
        lance: The resource, whose repository `main` of the table is brought up to.
        instance: The Dagster instance that records runs; None outside of a run.
    """
    table, chain, asset = branch.table, branch.chain, properties[md.ASSET_KEY]
    said = _appended_before(table, chain, asset, lance=lance, instance=instance)
    # A publisher deletes the branches that it published, unless it was interrupted. The append replaces the rows that
    # are on such a branch, and the next publication replaces them on `main`.
    there = {one.properties[md.RUN_ID] for one in branch.attempts(properties)} if said else ()
    if there:
        said = _appended_before(table, chain, asset, lance=lance, instance=instance, but=there)
    return said or _appended_in_backfill(table, chain, properties, lance=lance, instance=instance)


def _appended_before(
    table: "LanceTable",
    chain: RunChain,
    asset: str,
    *,
    lance: "LanceResource",
    instance: dg.DagsterInstance | None,
    but: Container[str] = (),
) -> str:
    """Return why an append must not be repeated: a run that this one continues, or repeats, has published it.

    Empty when none has, or when the publication was rolled back by a commit on `main`.

    Args:
        table: The table.
        chain: The run, and the runs that it continues.
        asset: The key of the asset.
        lance: The resource, whose repository `main` of the table is brought up to.
        instance: The Dagster instance that records runs; None outside of a run.
        but: The runs whose rows the append would replace.
    """
    earlier = () if instance is None else tuple(one for one in earlier_runs(chain, instance) if one not in but)
    if not earlier or instance is None:
        return ""
    if lagging := _lagging(table, lance):
        return f"an earlier run that this one continues or repeats may have published {asset}: {lagging}"
    since = started_at(dg.RunsFilter(run_ids=list(earlier)), instance)
    landed = landed_as(table, {md.RUN_ID: earlier, md.ASSET_KEY: [asset]}, since)
    if landed is None or is_withdrawn(table, landed):
        return ""
    run_id = next(one for one in values_of(landed, md.RUN_ID) if one in earlier)
    continues = run_id in chain.run_ids
    advice = "leave the step out" if continues else "re-execute that run from its failure"
    return (
        f"run {run_id}, which this run {'continues' if continues else 'repeats'}, appended to {asset} and published it "
        f"as {landed}; repeating the step would add its rows again: {advice}, or start a new run"
    )


def _appended_in_backfill(
    table: "LanceTable",
    chain: RunChain,
    properties: Mapping[str, str],
    *,
    lance: "LanceResource",
    instance: dg.DagsterInstance | None,
) -> str:
    """Return why an append must not be repeated by the re-execution of a backfill: a run of the backfill published it.

    Empty when none has, or when the publication was rolled back by a commit on `main`.

    Args:
        table: The table.
        chain: The run, and the runs that it continues.
        properties: The properties of the append.
        lance: The resource, whose repository `main` of the table is brought up to.
        instance: The Dagster instance that records runs; None outside of a run.
    """
    run = None if instance is None else instance.get_run_by_id(chain.run_id or "")
    # A run of the first backfill comes before those of its re-executions.
    if run is None or instance is None or chain.backfill_id in (None, run.tags.get(BACKFILL_TAG)):
        return ""
    asset = properties[md.ASSET_KEY]
    if lagging := _lagging(table, lance):
        return f"an earlier run of the same backfill may have published {asset}: {lagging}"
    keys = json.loads(properties.get(md.PARTITION_KEYS, "[]"))
    # Those of the same root run were looked at, and some of them may be replaced by the append.
    but, key = earlier_runs(chain, instance), dg.AssetKey.from_user_string(asset)
    found = published_append(table, key, keys, run_id=run.run_id, instance=instance, but=but)
    if found is None:
        return ""
    left_out = found.rows if found.partitions else "the step"
    return (
        f"run {found.run_id} of the same backfill appended {found.rows} to {asset} and published it as {found.landed}; "
        f"repeating the step would add its rows again: leave {left_out} out, or launch a new backfill"
    )


def _lagging(table: "LanceTable", lance: "LanceResource") -> str:
    """Bring `main` of a table up to its repository, and return why it cannot follow; empty when it does."""
    # A publisher may have died after the commit of the repository, which published the rows, and before `main` of the
    # table followed, where they are looked for.
    repository = lance.open_repository()
    lagging = () if repository is None else repository.follow(MAIN, [repository.name_of(table)])
    return str(lagging[0]) if lagging else ""


def _version_before(branch: RunBranch, properties: Mapping[str, str]) -> "Version | None":
    """Return the version before the first commit of the earlier attempts of a step, if nobody else committed since."""
    before: Version | None = None
    found = others = False
    for version in branch.own_versions():
        is_own = branch.is_of_step(version, properties)
        if is_own and is_restore(version):
            # Nothing is left of the attempts before.
            before = before or version
            break
        if is_own:
            # Below a commit of others, whose version holds the rows of this attempt.
            if others:
                return None
            found, before = True, None
        else:
            others = others or is_written(version)
            if others and not found:
                return None
            before = before or version
    return before if found else None
