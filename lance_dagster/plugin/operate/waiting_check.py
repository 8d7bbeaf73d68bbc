"""An asset check of a candidate that warns when a version of a run waits too long for its publication.

A candidate can be green and unpublished: its publisher was deselected, refused it, or died. The page of the candidate
does not show this, and readers of the promoted node see old rows. The check reads the run branches of the table when
it is executed; it never blocks, and reads no rows.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import InvalidInputError, TableNotFoundError
from lance_dagster.format.validation import check_class, require_sequence
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.check_arguments import require_duration
from lance_dagster.plugin.operate.branch_decisions import KeepFor, RunsOfBranches, age_text
from lance_dagster.plugin.operate.branch_sweeper import with_published
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import run_of
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, WatchedTable

if TYPE_CHECKING:
    from lance_dagster.plugin.operate.waiting_candidates import WaitingCandidates

NAME = "published_in_time"
_SHOWN = 20


def build_waiting_checks(
    tables: Sequence[TableAsset],
    *,
    after: timedelta = timedelta(hours=1),
    automation_condition: "dg.AutomationCondition[dg.AssetCheckKey] | None" = None,
    publisher: dg.AssetsDefinition | None = None,
    resource_key: str = RESOURCE_KEY,
) -> list[dg.AssetChecksDefinition]:
    """Build a check `published_in_time` of each candidate, which warns when a run is not published.

    These are runs that succeeded, and runs that failed later although everything that they wrote passed its checks.

    The check says which versions wait and for how long. Its severity is WARN and it does not block, so it stops no
    publisher. It reports versions that wait when it is executed: give it a condition, or put it into a job with a
    schedule.

    Args:
        tables: The candidates, as definitions or keys. Give all tables of a publisher, or give
            `publisher`: whether what a failed run wrote may be published depends on all tables that it wrote.
        after: How long a version may wait after the end of its run.
        automation_condition: When the check is executed automatically, such as
            `dg.AutomationCondition.cron_tick_passed("0 * * * *")`.
        publisher: The result of `build_publisher`, whose other tables count too.
        resource_key: The key of the `LanceResource`.

    Raises:
        InvalidInputError: No table is given, `after` is not a duration of zero or more, or `publisher` is not the
            definition of a publisher.
    """
    require_sequence("tables", tables, "shop/orders")
    if not tables:
        raise InvalidInputError("build_waiting_checks needs at least one table")
    require_duration("after", after)
    if publisher is not None:
        check_class("publisher", publisher, dg.AssetsDefinition, "build_publisher([orders])")
    watched = [WatchedTable.of(table) for table in tables]
    together = with_published(watched, publisher)
    return [
        _check(watched_table, together, after, condition=automation_condition, resource_key=resource_key)
        for watched_table in watched
    ]


def _check(
    watched_table: WatchedTable,
    together: Sequence[WatchedTable],
    after: timedelta,
    *,
    condition: "dg.AutomationCondition[dg.AssetCheckKey] | None",
    resource_key: str,
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=watched_table.key,
        name=NAME,
        description=f"What a run wrote is published within {after}.",
        required_resource_keys={resource_key},
        automation_condition=condition,
    )
    def published_in_time(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        # Imported only in a run, as all modules are that loading a code location does not need.
        from lance_dagster.plugin.operate.waiting_candidates import WaitingCandidates

        lance: LanceResource = getattr(context.resources, resource_key)
        candidates = WaitingCandidates(lance=lance, instance=context.instance, watched=together)
        late = _waiting(watched_table, candidates, after)
        shown = [*late[:_SHOWN], *([f"and {len(late) - _SHOWN} more"] if len(late) > _SHOWN else [])]
        return dg.AssetCheckResult(
            passed=not late,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"waits to be published: {'; '.join(shown)}" if late else "nothing waits",
            metadata={md.WAITING: shown} if late else {},
        )

    return published_in_time


def _waiting(watched_table: WatchedTable, candidates: "WaitingCandidates", after: timedelta) -> list[str]:
    """Return the versions that wait longer than a time, oldest first, each with its age."""
    try:
        table = candidates.lance.table(watched_table.key, watched_table.metadata)
    except TableNotFoundError:
        # No run has written the table yet.
        return []
    branches = sorted(table.branches.list("run/*").values(), key=lambda branch: branch.created_at)
    runs = RunsOfBranches.of((run_of(branch.name) or "" for branch in branches), candidates.instance)
    # How long failed runs are kept does not matter: where their rows may not be published, they do not wait.
    keep = KeepFor(failed=timedelta(0), unknown=None)
    late = []
    for branch in branches:
        if (outcome := candidates.decide(watched_table, table, branch, runs=runs, keep=keep)) is None:
            continue
        head, decision = outcome
        if decision.ended is not None and decision.waits_since(after):
            late.append(f"{head}, whose run ended {age_text(decision.ended)} ago")
    return late
