"""The asset node that stands for the promoted version of a table, and conditions under which its readers run.

A publisher materializes its promoted nodes. Another code location declares the same node as an external asset, so that
its assets read the table at the tag and not at `main`.

A promoted node is materialized only when its channel moves, and its data version is the transaction of the version. So
an asset downstream of promoted nodes can wait for a move, and an asset beside a candidate asset for its audit. Each
automation condition requests one run for each event: it holds from the event on until the asset is requested or
updated.
"""

import re
from typing import NamedTuple

import dagster as dg

from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.table_asset import TableAsset, asset_key_of, place_metadata, spec_of, table_address

_ABOUT = "`{table}` as readers of `{tag}` see it."


class PromotedNode(NamedTuple):
    """The candidate and the promoted node of one table."""

    candidate: dg.AssetKey
    promoted: dg.AssetKey
    metadata: dict[str, object]
    spec: dg.AssetSpec


def promoted_key(table: TableAsset, tag: str) -> dg.AssetKey:
    """Return the key of the promoted node of a table: the tag, then the key of the candidate."""
    return dg.AssetKey([tag, *asset_key_of(table).path])


def promoted_asset_spec(
    table: TableAsset, *, tag: str = "production", partitions_def: dg.PartitionsDefinition | None = None
) -> dg.AssetSpec:
    """Return the external asset that stands for a table at a tag, for a code location that only reads it.

    It has the owners, tags, kinds and column descriptions of the candidate's definition, when `table` is a definition.

    The code location of the publisher does not need this asset: `build_publisher` makes the node there, with the same
    key and metadata.

    Args:
        table: The candidate: its definition, or its key when the table is at the default place. A key with metadata is
            given as `dg.AssetSpec("shop/orders", metadata={"lance/table": "sales/orders"})`.
        tag: The tag that the publisher moves.
        partitions_def: The partitions of the node. The candidate's `lance/partition_expr` says which column has them.

    Examples:
        >>> promoted_asset_spec("shop/orders").key.to_user_string()
        'production/shop/orders'
    """
    asset = spec_of(table)
    candidate, metadata = asset.key, dict(asset.metadata)
    about = place_metadata(candidate, metadata)
    # With `partition_expr`, partitioned readers of the node can read their partitions.
    if partitions_def is not None and md.PARTITION_EXPR in metadata:
        about[md.PARTITION_EXPR] = metadata[md.PARTITION_EXPR]
    # Dagster merges these descriptions of the columns with the columns that the events report.
    if md.COLUMN_SCHEMA in metadata:
        about[md.COLUMN_SCHEMA] = metadata[md.COLUMN_SCHEMA]
    return dg.AssetSpec(
        promoted_key(candidate, tag),
        description=_ABOUT.format(table=candidate.to_user_string(), tag=tag),
        # Dagster allows fewer characters in a group name than Lance allows in a tag name.
        group_name=re.sub(r"\W", "_", tag, flags=re.ASCII),
        owners=list(asset.owners),
        # Dagster's own tags, such as those for kinds, describe the candidate.
        tags={key: value for key, value in asset.tags.items() if not key.startswith("dagster/")},
        # Dagster shows three kinds at most.
        kinds={"lance", *sorted(asset.kinds - {"lance"})[:2]},
        partitions_def=partitions_def,
        metadata={
            **about,
            md.REF: tag,
            # The URI is left out: the root belongs to the resource, which only a run has.
            **md.definition_metadata(table_address(candidate, metadata).dotted, None),
        },
    )


def candidate_audited() -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds when a candidate among the dependencies was written and passed its audit.

    It is for assets that read candidates before they are published. Readers of promoted nodes need `tag_moved`;
    for them the publisher verifies the audit. A run that is in progress may still have to check the tables it wrote, so
    the condition waits for its end.
    """
    audited = dg.AutomationCondition.all_deps_blocking_checks_passed()
    # A check keeps its last result until it runs again, so while a run is in progress the result may be an old one.
    running = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.run_in_progress())
    updated = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.newly_updated())
    return _once("candidate_audited", updated, audited & ~running)


def tag_moved() -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds when the tag of a promoted node among the dependencies moved to another version.

    A publication that changes nothing requests no run. A rollback does: the readers of the tag have to follow it. A
    move while the asset is being made requests one more run, because that run may have read the version before.
    """
    moved = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
    complete = ~dg.AutomationCondition.any_deps_missing()
    return (_once("moved", moved, complete) | (_moved_unread(moved) & complete)).with_label("tag_moved")


def newer_than(asset: TableAsset) -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds when an asset was materialized after the asset that has the condition.

    The asset need not be a dependency: a report can follow a promoted node that it reads by name, or the node of
    `main` that a ref sensor materializes.

    Args:
        asset: The other asset, as a definition or key.
    """
    key = asset_key_of(asset)
    updated = dg.AutomationCondition.asset_matches(key, dg.AutomationCondition.newly_updated())
    return _once(f"newer_than({key.to_user_string()})", updated, ~dg.AutomationCondition.in_progress())


def _moved_unread(moved: dg.AutomationCondition) -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds where a run made the asset, and a dependency moved since that run began.

    For Dagster, an asset that is updated has handled all events of the same tick and before. But what moved after the
    run had read its inputs is not among its rows.
    """
    running = dg.AutomationCondition.in_progress()
    updated = dg.AutomationCondition.newly_updated()
    # `since` compares the times of two events of one tick only where both are plain updates.
    after_it = dg.AutomationCondition.any_deps_match(updated).since(updated) & updated
    during_it = (moved & running).since(dg.AutomationCondition.newly_requested())
    return (after_it | during_it) & ~running


def _once(
    label: str,
    event: dg.AutomationCondition,  # type: ignore[type-arg]
    state: dg.AutomationCondition,  # type: ignore[type-arg]
) -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds from an event on, in a state, until the asset is requested or updated."""
    # `since` remembers an event that happens while the state does not hold, such as during a run.
    return (event.since_last_handled() & state & ~dg.AutomationCondition.in_progress()).with_label(label)
