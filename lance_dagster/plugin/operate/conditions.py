"""Automation conditions for assets that read Lance tables, built from Dagster's public operands.

A promoted node is materialized only when its tag moves, and its data version is the transaction of the version. So an
asset downstream of promoted nodes can wait for a move, and an asset beside a candidate for its audit.

Each condition requests one run for each event: it holds from the event on until the asset is requested or updated.
"""

import dagster as dg

from lance_dagster.plugin.table_asset import TableAsset, asset_key_of


def candidate_audited() -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds when a candidate among the dependencies was written and passed its audit.

    It is for assets that read candidates before they are published. Readers of promoted nodes need `tag_moved`;
    for them the publisher verifies the audit. A run that is in progress may still have to check the tables it wrote, so
    the condition waits for its end.
    """
    audited = dg.AutomationCondition.all_deps_blocking_checks_passed()
    # A check keeps its last result until it runs again, so while a run is in progress the result may be an old one.
    running = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.run_in_progress())
    written = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.newly_updated())
    return _once("candidate_audited", written, audited & ~running)


def tag_moved() -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds when the tag of a promoted node among the dependencies moved to another version.

    A publication that changes nothing requests no run. A rollback does: the readers of the tag have to follow it.
    """
    moved = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
    return _once("tag_moved", moved, ~dg.AutomationCondition.any_deps_missing())


def newer_than(asset: TableAsset) -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds when an asset was materialized after the asset that has the condition.

    The asset need not be a dependency: a report can follow a promoted node that it reads by name, or the node of
    `main` that a ref sensor materializes.

    Args:
        asset: The other asset, as a definition or key.
    """
    other = asset_key_of(asset)
    updated = dg.AutomationCondition.asset_matches(other, dg.AutomationCondition.newly_updated())
    return _once(f"newer_than({other.to_user_string()})", updated, ~dg.AutomationCondition.in_progress())


def _once(
    label: str,
    event: dg.AutomationCondition,  # type: ignore[type-arg]
    state: dg.AutomationCondition,  # type: ignore[type-arg]
) -> dg.AutomationCondition:  # type: ignore[type-arg]
    """Return a condition that holds from an event on, in a state, until the asset is requested or updated."""
    # `since` remembers an event that happens while the state does not hold, such as during a run.
    return (event.since_last_handled() & state & ~dg.AutomationCondition.in_progress()).with_label(label)
