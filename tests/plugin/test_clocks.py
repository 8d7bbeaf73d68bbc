"""Sensors, the sweeper, checks of what waits and automation conditions beside workers whose clocks are wrong.

A worker's clock is imitated by the times that it leaves behind: in manifests, refs, run records and events.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceRepository,
    LanceResource,
    LanceTable,
    build_protected_branch_sensor,
    build_ref_sensor,
    build_waiting_checks,
    newer_than,
    tag_moved,
)
from lance_dagster.plugin.operate.branch_decisions import (
    Action,
    BranchDecision,
    KeepFor,
    RunLookups,
    RunsOfBranches,
    decide,
)
from tests.backdating import manifest, say
from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_ORDERS, Shop
from tests.plugin.ticks import ConditionTicks, Ticks

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
AHEAD = pytest.mark.parametrize("ahead", [8 * HOUR, -8 * HOUR], ids=["ahead", "behind"])
ROWS = pa.table({"id": [1]})


def decided(ended: timedelta, ahead: timedelta, *, succeeded: bool) -> BranchDecision:
    """The decision about the branch of a run of ten minutes that ended some time ago on a worker with another clock."""
    status = dg.DagsterRunStatus.SUCCESS if succeeded else dg.DagsterRunStatus.FAILURE
    end = datetime.now(UTC) - ended
    start = end - timedelta(minutes=10)
    record = dg.RunRecord(
        storage_id=1,
        dagster_run=dg.DagsterRun(job_name="job", run_id="a", status=status),
        create_timestamp=start,
        update_timestamp=end + ahead,
        start_time=(start + ahead).timestamp(),
        end_time=(end + ahead).timestamp(),
    )
    runs = RunsOfBranches(records={"a": record}, unfinished=())
    keep = KeepFor(failed=7 * DAY, unknown=None)
    lookups = RunLookups(lambda: None, lambda _: None)
    options: dict[str, Any] = {"is_merged": False, "created_at": start + ahead, "lookups": lookups}
    return decide("run/a", runs, keep=keep, **options)


@AHEAD
def test_the_branch_of_a_failed_run_is_not_deleted_early(ahead: timedelta) -> None:
    """It is kept for the whole time by whatever clock the run was executed, and deleted after that."""
    assert Action.KEEP is decided(7 * DAY - HOUR, ahead, succeeded=False).action
    assert Action.DELETE is decided(8 * DAY, ahead, succeeded=False).action


@AHEAD
def test_a_run_does_not_wait_before_it_ended(ahead: timedelta) -> None:
    """It is not reported early; with a clock that is ahead it is reported later, by what the clock is ahead."""
    young, old = (decided(age, ahead, succeeded=True) for age in (HOUR / 2, 2 * HOUR))
    assert not young.waits_since(HOUR)
    assert (ahead < timedelta(0)) is old.waits_since(HOUR)
    assert decided(10 * HOUR, ahead, succeeded=True).waits_since(HOUR)


@AHEAD
def test_a_check_of_what_waits_goes_by_the_end_of_the_run(
    shop: Shop, instance: dg.DagsterInstance, ahead: timedelta
) -> None:
    """The time in the commit does not count: nothing waits for an hour yet, and something waits since the run's end."""
    run_id = shop.run(instance, selection=[ORDERS]).run_id
    say(manifest(shop.table(), 2, f"run/{run_id}"), -ahead)

    def passed(after: timedelta) -> bool:
        (check,) = build_waiting_checks([ORDERS], after=after)
        selection = dg.AssetSelection.checks(check)
        result = dg.materialize([*shop.assets, check], selection=selection, resources=shop.resources, instance=instance)
        return result.get_asset_check_evaluations()[0].passed

    assert (True, False) == (passed(HOUR), passed(timedelta(0)))


@AHEAD
def test_each_commit_is_reported_once(lake: LanceResource, instance: dg.DagsterInstance, ahead: timedelta) -> None:
    """Commits and moves of a tag are reported in their order and once, though their times go back or lie ahead."""
    orders = LanceTable.create(lake.uri_of(ORDERS), ROWS.schema)
    refs = Ticks(build_ref_sensor("refs", [ORDERS], refs=("main", "production")), lake, instance)
    guard = Ticks(build_protected_branch_sensor("guard", [ORDERS]), lake, instance)
    assert ([], []) == (refs.announced(), guard.announced())
    for number, by in ((2, ahead), (3, -ahead), (4, 2 * ahead)):
        orders.append(ROWS)
        say(manifest(orders, number), -by)
        assert [("main/shop/orders", number)] == refs.announced() == guard.announced()
    for target, by in (("main@3", ahead), ("main@4", -ahead), ("main@3", 2 * ahead)):
        orders.tags.move("production", target, force=True)
        redate(Path(orders.uri, "_refs/tags/production.json"), "updatedAt", by)
        assert [("production/shop/orders", int(target[-1]))] == refs.announced()
    orders.append(ROWS)
    orders.append(ROWS)
    say(manifest(orders, 5), -ahead)
    say(manifest(orders, 6), ahead)
    assert [("main/shop/orders", 5), ("main/shop/orders", 6)] == refs.announced() == guard.announced()
    assert ([], []) == (refs.announced(), guard.announced())


@pytest.mark.slow
@AHEAD
def test_each_move_of_a_channel_is_reported_once(shop: Shop, instance: dg.DagsterInstance, ahead: timedelta) -> None:
    """The log of a channel is read by the numbers of its entries, whatever their times say."""
    for ids in ([1], [2], [3]):
        shop.play(orders=ids)
        assert shop.run(instance).success
    ticks = Ticks(build_ref_sensor("refs", [ORDERS], refs=("production",)), shop.lance, instance)
    assert [] == ticks.announced()
    channels = LanceRepository.open(shop.lance.root).channels
    entries = Path(shop.lance.root, "_repository/channels/production")
    for commit, by in (("main~1", ahead), ("main", -ahead), ("main~2", ahead)):
        channels.promote("production", at=commit, reason="looking")
        # The names count down, so the newest entry is the first one.
        redate(min(entries.glob("*.json")), "at", by)
        assert [PRODUCTION_ORDERS.to_user_string()] == [asset for asset, _ in ticks.announced()]
    assert [] == ticks.announced()


@pytest.mark.slow
@AHEAD
def test_conditions_request_one_run_for_each_event(shop: Shop, instance: dg.DagsterInstance, ahead: timedelta) -> None:
    """Events of a worker with another clock request one run each, as the order of Dagster's records decides."""
    moved = ConditionTicks(shop, instance, tag_moved(), [PRODUCTION_ORDERS])
    newer = ConditionTicks(shop, instance, newer_than(CUSTOMERS))
    for ids in ([1], [2]):
        with dg.DagsterInstance.ephemeral() as worker:
            shop.play(orders=ids, customers=ids)
            assert shop.run(worker).success
            for key in (CUSTOMERS, PRODUCTION_ORDERS):
                copy_event(worker, instance, key, ahead)
        assert (1, 1) == (moved.requested(), newer.requested())
        # Dagster forgets an event in the tick right after a request.
        assert (0, 0) == (moved.requested(), newer.requested())


def redate(file: Path, key: str, by: timedelta) -> None:
    """Change a time in a JSON file to what a clock shows that is ahead."""
    found: dict[str, Any] = json.loads(file.read_text())
    found[key] = (datetime.fromisoformat(found[key]) + by).isoformat()
    file.write_text(json.dumps(found))


def copy_event(source: dg.DagsterInstance, dest: dg.DagsterInstance, key: dg.AssetKey, by: timedelta) -> None:
    """Record the newest materialization of an asset as that of a worker whose clock is ahead."""
    entry = source.get_latest_materialization_event(key)
    assert entry is not None
    if not dest.has_run(entry.run_id):
        dest.add_run(dg.DagsterRun(job_name=entry.job_name or "", run_id=entry.run_id))
    dest.handle_new_event(
        dg.EventLogEntry(  # type: ignore[no-untyped-call]
            error_info=None,
            level=entry.level,
            user_message=entry.user_message,
            run_id=entry.run_id,
            timestamp=entry.timestamp + by.total_seconds(),
            step_key=entry.step_key,
            job_name=entry.job_name,
            dagster_event=entry.dagster_event,
        )
    )
