"""What Dagster's event log says about the newest materialization of each partition of an asset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from lance_dagster.plugin import metadata as md

# How many materializations are asked for at once.
_PAGE = 1000


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
        by: Says of the id of a run whether its materializations count.
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
