"""Find the commit of `main` that published rows which another run appends again.

An append that is repeated replaces only the rows of the runs that its run continues. Those of any other run that did
the same work stay: of another re-execution of the same run, or of a run of the same backfill, of its re-executions, or
of a run of it that a person re-executed. When `main` has the rows of one of these, those of the others would be added
to them.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.branch_extent import BranchExtent, newest_materialized
from lance_dagster.plugin.publish.publication import Publication, is_withdrawn, landed_as
from lance_dagster.plugin.publish.publish_gate import AuditLog
from lance_dagster.plugin.run_branch import (
    BACKFILL_TAG,
    ROOT_RUN_TAG,
    RunChain,
    backfill_of,
    chain_of,
    earlier_runs,
    family_of,
    run_of,
    started_at,
)

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True)
class PublishedAppend:
    """A run whose append `main` has, and the partitions of it that were asked for; none for the whole table."""

    run_id: str
    landed: "Version"
    partitions: tuple[str, ...]

    @property
    def rows(self) -> str:
        """The rows as text."""
        return ", ".join(self.partitions) or "the whole table"


def published_append(
    table: "LanceTable",
    asset: dg.AssetKey,
    keys: Iterable[str],
    *,
    run_id: str,
    instance: dg.DagsterInstance,
    but: Collection[str] = (),
) -> PublishedAppend | None:
    """Return another run that did the work of a run, or a part of it, and whose rows `main` has; None without one.

    A run that one of the two continues is left out, and so is one whose publication was rolled back.

    Args:
        table: The table.
        asset: The asset, whose run appends rows.
        keys: The partitions that the run appends to; empty for the whole table.
        run_id: The run.
        instance: The Dagster instance that records runs.
        but: Further runs that are left out.
    """
    run = instance.get_run_by_id(run_id)
    if run is None:
        return None
    root_id, backfill_id = run.root_run_id or run.tags.get(ROOT_RUN_TAG) or run_id, backfill_of(run, instance)
    chain = RunChain.of(run, instance)
    tagged = instance.get_runs(dg.RunsFilter(tags={ROOT_RUN_TAG: root_id}))
    # A re-execution from Python lacks the tag.
    related = {root_id, *(one.run_id for one in tagged), *earlier_runs(chain, instance)} - {*chain.run_ids, *but}
    if not related and backfill_id is None:
        return None

    @cache
    def published_by(other: str) -> "Version | None":
        found = instance.get_run_by_id(other)
        is_related = other in related or (
            found is not None and backfill_id is not None and backfill_of(found, instance) == backfill_id
        )
        # A run that continues another one has taken its rows back.
        if not is_related or other in (*chain.run_ids, *but) or run_id in chain_of(other, instance):
            return None
        since = started_at(dg.RunsFilter(run_ids=[other]), instance)
        made_by = {md.RUN_ID: family_of(other, instance) or (other,), md.ASSET_KEY: [asset.to_user_string()]}
        landed = landed_as(table, made_by, since)
        return None if landed is None or is_withdrawn(table, landed) else landed

    # Dagster records the first run of a backfill before all others, so one record says since when there are any.
    first = dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}) if backfill_id else dg.RunsFilter(run_ids=[root_id])
    oldest = instance.get_run_records(first, limit=1, ascending=True)
    since = started_at(dg.RunsFilter(run_ids=[oldest[0].dagster_run.run_id]), instance) if oldest else None
    wanted = sorted(keys)
    newest = newest_materialized(
        asset, instance, keys=wanted, since=since, by=lambda other: published_by(other) is not None
    )
    made = {key: newest[key].run_id for key in wanted or (None,) if key in newest}
    by = next(iter(made.values()), None)
    landed = None if by is None else published_by(by)
    if by is None or landed is None:
        return None
    return PublishedAppend(by, landed, tuple(key for key in made if key is not None))


def redone_on_main(one: BranchExtent, publication: Publication, log: AuditLog) -> "Version | None":
    """Return the commit of `main` that published an append which the run of a branch repeated, or None."""
    run_id, table, candidate = run_of(one.head.branch), publication.table, publication.candidate
    own = chain_of(run_id, log.instance)
    # A run that continues no other one is contained in those that repeat its append, or `published_append` finds them.
    if not one.appends or len(own) <= 1 or not log.was_materialized(candidate, own[0]):
        return None
    others = [
        each
        for each in family_of(own[-1], log.instance)
        if run_id not in (chain := chain_of(each, log.instance))
        and any(log.was_materialized(candidate, by) for by in chain if by not in own)
    ]
    since = started_at(dg.RunsFilter(run_ids=others), log.instance) if others else None
    made_by = {md.RUN_ID: others, md.ASSET_KEY: [candidate.to_user_string()]}
    landed = landed_as(table, made_by, since) if others else None
    return None if landed is None or is_withdrawn(table, landed) else landed
