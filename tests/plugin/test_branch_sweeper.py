# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceRepository,
    LanceTable,
    build_branch_sweeper,
    build_waiting_checks,
)
from lance_dagster.merge.preview import PREVIEW_OF
from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_CUSTOMERS, PRODUCTION_ORDERS, Shop

NOW = timedelta(0)
DAY = timedelta(days=1)
AT_ONCE: dict[str, Any] = {"keep_failed": NOW}


def sweep(
    shop: Shop,
    instance: dg.DagsterInstance,
    cursor: str | None = None,
    *,
    tables: Sequence[dg.AssetKey] = (ORDERS, CUSTOMERS),
    **options: Any,
) -> Any:
    """One tick of a sweeper over the shop's tables, or some of them."""
    sensor = build_branch_sweeper("sweep", tables, **options)
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, resources={"lance": shop.lance}, definitions=shop.definitions
    )
    return sensor.evaluate_tick(context)


def text(shop: Shop, instance: dg.DagsterInstance, **options: Any) -> str:
    """The text of one tick."""
    return str(sweep(shop, instance, **options).skip_message)


def branches(shop: Shop) -> list[str]:
    """The branches of the orders."""
    return sorted(name for name in shop.table().branches.list() if not name.startswith("published/"))


def failed(shop: Shop, instance: dg.DagsterInstance) -> str:
    """Write orders in a run whose check fails; the run's id."""
    shop.play(orders=[-1])
    return shop.execute(instance).run_id


def test_branch_of_a_failed_run_is_kept_and_then_deleted(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The branch of a failed run is kept for some days, in which people may re-execute the run, and then deleted."""
    run_id = failed(shop, instance)
    said = text(shop, instance)
    assert "nothing to delete; 2 kept, because a run is unfinished, may be re-executed or was repeated" == said
    assert [f"run/{run_id}"] == branches(shop)
    would = text(shop, instance, **AT_ONCE, dry_run=True)
    assert f"would delete 2 branches: shop/orders run/{run_id[:8]} (the run failed 0 minutes ago)" in would
    assert [f"run/{run_id}"] == branches(shop)
    assert "deleted 2 branches: " in text(shop, instance, **AT_ONCE)
    assert [] == branches(shop)
    assert "nothing to delete" == text(shop, instance, **AT_ONCE)


def test_the_tables_of_a_run_stay_together(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A merged branch is kept while another table of its run waits."""
    run_id = shop.run(instance, selection=[ORDERS, CUSTOMERS]).run_id
    shop.table().merge(f"run/{run_id}")
    said = text(shop, instance)
    assert "1 kept, because other tables of the run are not merged yet" in said
    assert f"waiting to be published: 1 branch: shop/customers run/{run_id[:8]}" in said
    assert [f"run/{run_id}"] == branches(shop)


def test_branches_of_a_chain_stay_while_a_run_of_it_is_unfinished(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A branch is kept while a queued re-execution, which will read it, continues the run."""
    run_id = failed(shop, instance)
    parent = instance.get_run_by_id(run_id)
    assert parent is not None
    queued = instance.add_run(
        dg.DagsterRun(
            job_name=parent.job_name,
            run_id=dg_run_id(1),
            parent_run_id=run_id,
            root_run_id=run_id,
            status=dg.DagsterRunStatus.NOT_STARTED,
            # The run lacks the tag of its root run, like a re-execution from Python.
        )
    )
    assert "2 kept" in text(shop, instance, **AT_ONCE)
    instance.report_run_canceled(queued)
    assert "deleted 2 branches" in text(shop, instance, **AT_ONCE)


def test_branch_that_an_unfinished_run_names_stays(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A branch is kept while an unfinished run of another root names it in the tag `lance/branch`."""
    run_id = failed(shop, instance)
    instance.add_run(
        dg.DagsterRun(
            job_name="other",
            run_id=dg_run_id(2),
            status=dg.DagsterRunStatus.STARTED,
            tags={"lance/branch": f"run/{run_id}"},
        )
    )
    assert "2 kept" in text(shop, instance, **AT_ONCE)


def test_run_that_dagster_will_retry_keeps_its_branch(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A branch is kept until the daemon starts the retry some seconds later, though no run is unfinished till then."""
    run_id = failed(shop, instance)
    instance.add_run_tags(run_id, {"dagster/will_retry": "true"})
    assert "2 kept" in text(shop, instance, **AT_ONCE)


def test_cancelled_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The sweeper treats a cancelled run, which Dagster's failure sensors do not see, as a failed one."""
    run_id = dg_run_id(3)
    run = instance.add_run(dg.DagsterRun(job_name="job", run_id=run_id, status=dg.DagsterRunStatus.STARTED))
    table = LanceTable.create(shop.lance.uri_of(ORDERS), rows().schema)
    table.branches.create(f"run/{run_id}")
    table.append(rows(), branch=f"run/{run_id}")
    assert "1 kept" in text(shop, instance, **AT_ONCE)
    instance.report_run_canceled(run)
    assert "(the run was cancelled 0 minutes ago)" in text(shop, instance, **AT_ONCE)


def test_full_reexecution_supersedes_a_failed_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The branch of a failed run is deleted when a full re-execution has done and published the work again."""
    run_id = failed(shop, instance)
    shop.play(orders=[1])
    again = shop.execute(instance, dg.ReexecutionOptions(parent_run_id=run_id))
    assert again.success
    assert f"shop/orders run/{run_id[:8]} (the run failed, and a full re-execution of it succeeded)" in text(
        shop, instance
    )
    assert [] == branches(shop)


def test_published_branch_is_deleted_at_once(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A merged branch that a killed publisher left behind is deleted at once."""
    run_id = waiting_run(shop, instance)
    shop.table().merge(f"run/{run_id}")
    assert f"shop/orders run/{run_id[:8]} (main contains it)" in text(shop, instance)
    assert [] == branches(shop)


def test_waiting_branch_is_never_deleted(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The waiting branch of a successful run is never deleted; the tick names it, and reports it once on request."""
    run_id = waiting_run(shop, instance)
    said = text(shop, instance, **AT_ONCE)
    assert f"nothing to delete; waiting to be published: 1 branch: shop/orders run/{run_id[:8]}" == said
    alert: dict[str, Any] = {"waiting": "alert", "waiting_after": NOW}
    first = sweep(shop, instance, **alert)
    (event,) = first.asset_events
    assert ORDERS == event.asset_key
    assert f"run/{run_id}@2" == event.metadata["lance/waiting"].value
    assert [] == sweep(shop, instance, first.cursor, **alert).asset_events
    assert [f"run/{run_id}"] == branches(shop)
    # The branch is younger than an hour: its publisher may be about to run.
    assert [] == sweep(shop, instance, waiting="alert").asset_events


@pytest.mark.slow
def test_rows_that_wait_behind_a_hold_are_kept(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A run that fails because the tag is held wrote rows that wait; they are requested after the release."""
    shop.play(orders=[1])
    assert shop.execute(instance).success
    assert shop.publish(instance, hold=True, reason="audit").success
    shop.play(orders=[2])
    run_id = shop.execute(instance).run_id
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW, **AT_ONCE}
    held = sweep(shop, instance, **options)
    assert [] == held.run_requests
    assert f"nothing to delete; waiting to be published: 2 branches: shop/orders run/{run_id[:8]}" in held.skip_message
    assert shop.publish(instance, release=True, reason="audited").success
    (request,) = sweep(shop, instance, **options).run_requests
    assert shop.run(instance, selection=request.asset_selection, run_config=request.run_config).success
    assert [2] == shop.ids("production")


def test_a_held_channel_holds_tables_that_it_does_not_name(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table that was never published has no tag; its request comes after the release of the channel."""
    waiting_run(shop, instance)
    assert shop.publish(instance).success
    channels = LanceRepository.open(shop.lance.root).channels
    channels.hold("production", reason="audit")
    assert shop.run(instance, selection=[CUSTOMERS]).success
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    held = sweep(shop, instance, **options)
    assert [] == held.run_requests
    assert "waiting to be published: 1 branch: shop/customers" in held.skip_message
    channels.release("production", reason="audited")
    assert 1 == len(sweep(shop, instance, **options).run_requests)


@pytest.mark.slow
def test_what_a_successful_run_continues_is_kept(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A run failed after its first table, and a re-execution wrote the other one: one request publishes both."""
    shop.play(customers_fail=True)
    first = shop.execute(instance, job="candidates").run_id
    shop.play()
    options = dg.ReexecutionOptions.from_failure(first, instance)
    second = shop.execute(instance, options, job="candidates").run_id
    said = text(shop, instance, **AT_ONCE)
    both = f"shop/orders run/{first[:8]}, shop/customers run/{second[:8]}"
    assert f"nothing to delete; waiting to be published: 2 branches: {both}" == said
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    publishing: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    (request,) = sweep(shop, instance, **publishing).run_requests
    assert shop.run(instance, selection=request.asset_selection, run_config=request.run_config).success
    assert ([1, 2, 3], [10, 20]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))
    assert [] == branches(shop)


def test_a_check_warns_of_what_waits(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The check warns on the candidate's page that a successful run is not published, and blocks nothing."""

    def checked(after: timedelta) -> tuple[bool, dg.AssetCheckSeverity, str]:
        made = build_waiting_checks([ORDERS, CUSTOMERS], after=after)
        selection = dg.AssetSelection.checks(*made)
        result = dg.materialize([*shop.assets, *made], selection=selection, resources=shop.resources, instance=instance)
        (found,) = [one for one in result.get_asset_check_evaluations() if one.asset_key == ORDERS]
        return found.passed, found.severity, found.description or ""

    run_id = waiting_run(shop, instance)
    passed, severity, said = checked(NOW)
    assert (False, dg.AssetCheckSeverity.WARN) == (passed, severity)
    assert f"waits to be published: run/{run_id}@2" in said
    assert checked(timedelta(hours=1))[0]
    assert shop.publish(instance).success
    assert "nothing waits" == checked(NOW)[2]


def test_a_check_of_some_tables_counts_the_others_of_the_publisher(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A run that failed in another table does not wait, as nothing of it may be published."""
    shop.play(customers_fail=True)
    assert not shop.run(instance, selection=[ORDERS, CUSTOMERS]).success
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    (check,) = build_waiting_checks([ORDERS], after=NOW, publisher=publisher)
    selection = dg.AssetSelection.checks(check)
    result = dg.materialize([*shop.assets, check], selection=selection, resources=shop.resources, instance=instance)
    (found,) = result.get_asset_check_evaluations()
    assert found.passed


def test_waiting_branch_is_published(shop: Shop, instance: dg.DagsterInstance) -> None:
    """One request publishes all tables of the waiting run; a repeated one has the same key and starts no second run."""
    waiting_run(shop, instance)
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    found = sweep(shop, instance, **options)
    (request,) = found.run_requests
    assert {PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS} == set(request.asset_selection)
    assert request.run_key.startswith("lance:publish:")
    (again,) = sweep(shop, instance, found.cursor, **options).run_requests
    assert again.run_key == request.run_key
    assert shop.run(instance, selection=request.asset_selection, run_config=request.run_config).success
    assert "main@2" == shop.tag()


def test_a_run_that_was_repeated_does_not_wait(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Of a run and its full re-execution, which append the same row, the request publishes one, as *Materialize*."""
    shop.play(orders=[1], mode="append")
    first = shop.execute(instance, job="candidates").run_id
    again = shop.execute(instance, dg.ReexecutionOptions(parent_run_id=first), job="candidates").run_id
    waits = f"waiting to be published: 2 branches: shop/orders run/{again[:8]}, shop/customers run/{again[:8]}"
    assert f"nothing to delete; {waits}; 2 kept, because" in text(shop, instance)
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    (request,) = sweep(shop, instance, **options).run_requests
    assert shop.run(instance, selection=request.asset_selection, run_config=request.run_config).success
    assert ([1], [f"run/{first}"]) == (shop.ids("production"), branches(shop))
    assert f"run/{first[:8]} (the run succeeded 0 minutes ago, and so did a full re-execution of it)" in text(
        shop, instance, **AT_ONCE
    )
    assert [] == branches(shop)


def test_a_run_stays_whose_full_reexecution_was_discarded(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Its branch has the only rows that are left of the two runs, and a person publishes it by its name."""
    shop.play(orders=[1], mode="append")
    first = shop.execute(instance, job="candidates").run_id
    again = shop.execute(instance, dg.ReexecutionOptions(parent_run_id=first), job="candidates").run_id
    discarded = shop.publish(instance, PRODUCTION_ORDERS, discard=f"run/{again}", reason="wrong")
    assert discarded.success
    assert "nothing to delete; 2 kept, because" in text(shop, instance, **AT_ONCE)
    named = shop.publish(instance, PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS, ref=f"run/{first}")
    assert (True, [1], []) == (named.success, shop.ids("production"), branches(shop))


def test_a_newer_run_that_is_not_late_supersedes_a_late_one(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A request for a late overwrite publishes the newest overwrite; the branch of the older one is deleted."""
    shop.play(orders=[1])
    assert shop.run(instance, selection=[ORDERS]).success
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    (request,) = sweep(shop, instance, **options).run_requests
    shop.play(orders=[2])
    assert shop.run(instance, selection=[ORDERS]).success
    assert shop.run(instance, selection=request.asset_selection, run_config=request.run_config).success
    assert [2] == shop.ids("production")
    assert [] == sweep(shop, instance, **options).run_requests
    assert [] == branches(shop)


def test_all_tables_of_the_publisher_decide(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Where a run failed before it wrote a table that only the publisher knows, the table that is watched waits not."""
    shop.play(customers_fail=True)
    assert not shop.execute(instance, job="candidates").success
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    found = sweep(shop, instance, tables=[ORDERS], **options)
    assert [] == found.run_requests
    assert found.skip_message.startswith("nothing to delete; 1 kept")
    assert "deleted 1 branch: shop/orders" in text(shop, instance, tables=[ORDERS], **options, **AT_ONCE)


def test_tables_of_one_run_are_published_together(shop: Shop, instance: dg.DagsterInstance) -> None:
    """For a run that wrote two tables there is one request, not one for each table."""
    shop.play()
    assert shop.run(instance, selection=[ORDERS, CUSTOMERS]).success
    (publisher,) = [one for one in shop.assets if PRODUCTION_ORDERS in getattr(one, "keys", ())]
    options: dict[str, Any] = {"waiting": "publish", "publisher": publisher, "waiting_after": NOW}
    (request,) = sweep(shop, instance, **options).run_requests
    assert shop.run(instance, selection=request.asset_selection, run_config=request.run_config).success
    assert {"main@2"} == {shop.lance.table(key).tags.list()["production"].ref for key in (ORDERS, CUSTOMERS)}


def test_branch_of_an_unknown_run_stays(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The branch of a run that may belong to another deployment is deleted only if a setting allows it."""
    table = LanceTable.create(shop.lance.uri_of(ORDERS), rows().schema)
    table.branches.create(f"run/{dg_run_id(4)}")
    table.append(rows(), branch=f"run/{dg_run_id(4)}")
    said = text(shop, instance, **AT_ONCE)
    assert "nothing to delete; 1 of runs that this Dagster instance does not know" == said
    assert "1 of runs" in text(shop, instance, **AT_ONCE, keep_unknown=timedelta(days=1))
    assert "deleted 1 branch" in text(shop, instance, **AT_ONCE, keep_unknown=NOW)


def test_branch_that_a_tag_names_is_kept(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A branch is kept while a tag names one of its versions."""
    run_id = failed(shop, instance)
    shop.table().tags.create("look", f"run/{run_id}")
    said = text(shop, instance, **AT_ONCE)
    assert "deleted 1 branch: shop/customers" in said
    assert "cannot delete 1 branch: shop/orders" in said
    assert [f"run/{run_id}"] == branches(shop)


def test_previews_of_crashed_publishers_are_deleted(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A preview is deleted after a day, before the branch that it previews; other branches of the name are kept."""
    run_id = waiting_run(shop, instance)
    table = shop.table()
    table.branches.preview(f"run/{run_id}")
    table.branches.create("preview/by-hand")
    assert "nothing to delete" in text(shop, instance)
    assert "deleted 1 branch: shop/orders preview/run/" in text(shop, instance, keep_previews=NOW)
    assert ["preview/by-hand", f"run/{run_id}"] == branches(shop)


def test_previews_of_a_run_that_is_not_over_are_kept(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A run may read its preview for longer than a day; the age of the preview is that of the worker's clock, too."""
    waiting_run(shop, instance)
    run_id = dg_run_id(4)
    run = instance.add_run(dg.DagsterRun(job_name="job", run_id=run_id, status=dg.DagsterRunStatus.STARTED))
    about = {"dagster/published_by": run_id, PREVIEW_OF: "main@1"}
    shop.table().branches.create(f"reads/{run_id}-1", metadata=about)
    assert "nothing to delete" in text(shop, instance, keep_previews=NOW)
    instance.report_run_canceled(run)
    assert f"deleted 1 branch: shop/orders reads/{run_id}-1" in text(shop, instance, keep_previews=NOW)


def test_damaged_cursor_and_wrong_arguments(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A cursor only saves work, so a damaged one is ignored; wrong arguments fail when definitions load."""
    for cursor in ("x", "[]", '{"next": "a"}', '{"next": -3, "alerted": 7}', '{"next": 1e999}'):
        assert "nothing to delete" == str(sweep(shop, instance, cursor).skip_message)
    with pytest.raises(InvalidInputError):
        build_branch_sweeper("sweep", [])
    with pytest.raises(InvalidInputError):
        build_branch_sweeper("sweep", [ORDERS], waiting="drop")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        build_branch_sweeper("sweep", [ORDERS], waiting="publish")
    with pytest.raises(InvalidInputError):
        build_branch_sweeper("sweep", [ORDERS], keep_failed=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given,said",
    [
        ({"keep_failed": -DAY}, "is not a duration of zero or more"),
        ({"keep_unknown": 0}, "keep_unknown=0 is not a duration"),
        ({"keep_previews": 1}, "keep_previews=1 is not a duration of zero or more; give a timedelta"),
        ({"keep_previews": -DAY}, "is not a duration of zero or more"),
        ({"waiting_after": 1}, "waiting_after=1 is not a duration"),
        ({"waiting_after": None}, "waiting_after=None is not a duration"),
        ({"dry_run": "false"}, "dry_run has to be True or False, not 'false'"),
    ],
)
def test_wrong_options(given: Any, said: str) -> None:
    """An option of a wrong type would fail in each tick, or count as true; it is refused when definitions load."""
    with pytest.raises(InvalidInputError) as error:
        build_branch_sweeper("sweep", [ORDERS], **given)
    assert said in str(error.value)


@pytest.mark.parametrize("after", [1, None, timedelta(-1)])
def test_wrong_time_of_a_waiting_check(after: Any) -> None:
    """A time without a unit, and a negative one, are refused when definitions load."""
    with pytest.raises(InvalidInputError):
        build_waiting_checks([ORDERS], after=after)


def waiting_run(shop: Shop, instance: dg.DagsterInstance) -> str:
    """Write orders in a green run without a publisher; the run's id."""
    shop.play()
    result = shop.run(instance, selection=[ORDERS])
    assert result.success
    return result.run_id


def rows() -> Any:
    """One row."""
    return pa.table({"id": [1]})


def dg_run_id(number: int) -> str:
    """A run id in Dagster's form."""
    return f"{number:08d}-0000-4000-8000-000000000000"


WRITES = {
    "deleted": "dropped",
    "merged": "published",
    "merged, and the copies of its versions collected": "published",
    "deleted, and another branch of its name merged": "dropped",
}


@pytest.mark.parametrize("how", WRITES)
def test_a_write_that_nobody_publishes_is_closed(shop: Shop, instance: dg.DagsterInstance, how: str) -> None:
    """What is on no branch waits no longer, and rows that a person merged are not appended again."""
    shop.play(orders=[1], mode="append")
    run = shop.execute(instance, job="candidates")
    repository, table, branch = LanceRepository.open(shop.lance.root), shop.table(), f"run/{run.run_id}"
    table_id = repository.table_id("shop/orders")
    (write,) = [write for write in repository.record.of_candidate(run.run_id) if write.table_id == table_id]
    # The process of a further write died before its commit.
    lost = repository.record.put(table_id, replace(write.request, work="further rows"))
    if how.startswith("merged"):
        table.merge(branch)
    table.branches.delete(branch)
    if "collected" in how:
        shutil.rmtree(Path(table.uri) / "_expired")
    if "another" in how:
        table.branches.create(branch)
        table.append(pa.table({"id": [2]}), branch=branch)
        table.merge(branch)
        table.branches.delete(branch)
    assert sweep(shop, instance, **AT_ONCE)
    closed = repository.head().writes[table_id]
    assert (WRITES[how] == "published", WRITES[how] == "dropped") == (
        write.number in closed.published,
        write.number in closed.dropped,
    )
    # Without the versions of the branch nobody can tell, and rows that may be there are not added again.
    assert (lost.number in closed.published) == ("collected" in how)
    assert lost.number in closed
