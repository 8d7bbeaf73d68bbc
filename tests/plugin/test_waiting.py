"""*Materialize* publishes what waits: the newest audited candidate, every partition, the whole backfill."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InRange,
    LanceIOManager,
    LanceRepository,
    LanceResource,
    PinnedTable,
    RowCount,
    Unique,
    build_publisher,
    build_table_checks,
    table_check,
)
from tests.plugin.dying_publisher import Dying, Meanwhile, channel_moves, killed, main_moves
from tests.plugin.shop import CANDIDATES, CUSTOMERS, ORDERS, PRODUCTION_ORDERS, PROMOTED, Shop, candidates, failure
from tests.plugin.stall import ITEMS, PRODUCTION_ITEMS, Stall
from tests.store.scripted import Request


def events(result: dg.ExecuteInProcessResult) -> set[dg.AssetKey]:
    """The promoted nodes that a run materialized."""
    made = result.asset_materializations_for_node("publish_production")
    return {event.asset_key for event in made}


def waits(event: dg.AssetMaterialization, key: str = "lance/waiting") -> list[str]:
    """The reasons why branches of the table had to wait."""
    found = event.metadata[key].value
    assert isinstance(found, list)
    return [str(reason) for reason in found]


FIRST = {"dagster/backfill": "b1"}
AGAIN = {"dagster/backfill": "b2", "dagster/root_backfill_id": "b1"}


def flaky_stall(lake: LanceResource) -> tuple[Stall, dg.AssetSelection, list[bool]]:
    """Daily items with a check that fails until the list has an item, and the selection of the items and the check."""
    passes: list[bool] = []

    @table_check(asset=ITEMS)
    def flaky(items: PinnedTable) -> bool:
        return bool(passes and items.count_rows())

    selection = dg.AssetSelection.assets(ITEMS) | dg.AssetSelection.checks_for_assets(ITEMS)
    return Stall(lake, [flaky], days=True, once=True), selection, passes


def test_the_button_publishes_what_waits(shop: Shop, instance: dg.DagsterInstance) -> None:
    """*Materialize* without a config publishes what waits; repeated, it succeeds without an event or news."""
    candidates(shop, instance)
    first = shop.publish(instance, *PROMOTED)
    assert first.success
    assert (set(PROMOTED), [1, 2, 3]) == (events(first), shop.ids("production"))
    again = shop.publish(instance, *PROMOTED)
    assert (True, set()) == (again.success, events(again))
    same = shop.publish(instance, ref="main")
    assert (True, set()) == (same.success, events(same))


def test_the_newest_audited_candidate_is_published(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Of three waiting overwrites, whose newest failed its audit, the second is published and supersedes the oldest."""
    for orders in ([1], [2], [-3]):
        shop.play(orders=orders)
        shop.run(instance, selection=CANDIDATES)
    assert shop.publish(instance).success
    assert [2] == shop.ids("production")
    nothing = shop.publish(instance)
    assert (True, set()) == (nothing.success, events(nothing))
    assert [2] == shop.ids("production")


def test_a_run_publishes_nothing_of_others(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table that the run did not write is left out, although a candidate of another run waits."""
    candidates(shop, instance)
    shop.play(orders=[8])
    result = shop.run(instance, selection=dg.AssetSelection.assets(ORDERS, *PROMOTED))
    assert result.success
    assert ({PRODUCTION_ORDERS}, None) == (events(result), shop.tag(CUSTOMERS))


def test_every_waiting_append_is_published(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Every waiting append is published, oldest first, audited together and as one commit."""
    stall = Stall(lake, [Unique("id")])
    for number in (1, 2, 3):
        stall.write(instance, number)
    assert stall.publish(instance).success
    assert ([1, 2, 3], "main@2", {}) == (stall.published(), str(stall.table.head()), stall.table.branches.list("run/*"))


def test_a_held_table_is_not_published_by_the_button(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """*Materialize* fails for a held table and says who holds it; after the release it publishes."""
    stall = Stall(lake, [Unique("id")])
    assert stall.run(instance).success
    stall.write(instance, 2)
    assert stall.publish(instance, hold=True, reason="wait for the audit").success
    assert "wait for the audit" in failure(stall.publish(instance))
    assert stall.publish(instance, release=True, reason="audited").success
    assert [1] == stall.published()
    assert stall.publish(instance).success
    assert [1, 2] == stall.published()


def test_the_button_says_what_main_has_and_its_channel_lacks(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """*Materialize* succeeds without promoting a version of main unasked; the ref that it suggests promotes it."""
    stall = Stall(lake, [Unique("id")])
    assert stall.run(instance).success
    ref = stall.write(instance, 2)
    assert stall.publish(instance).success
    channels = LanceRepository.open(lake.root).channels
    channels.rollback("production", reason="wait for the audit")
    channels.release("production", reason="audited")
    pressed = stall.publish(instance)
    said = [entry.user_message for entry in instance.all_logs(pressed.run_id) if "nothing waits" in entry.user_message]
    assert (True, 1, [1]) == (pressed.success, len(said), stall.published())
    assert f"main@3 has what {ref} wrote, and production names main@2: to promote it, set ref: {ref}," in said[0]
    assert stall.publish(instance, ref=ref).success
    assert [1, 2] == stall.published()


def test_a_backfill_publishes_what_passed_and_names_what_waits(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """A broken partition waits; its repair, in a run without Dagster's tag of the backfill, is published later."""
    stall = Stall(lake, [InRange("id", minimum=0)], days=True, once=True, mode="replace")
    tags = {"dagster/backfill": "bf"}
    stall.write(instance, 1, partition_key="mon", tags=tags)
    stall.ids = [-2]
    selection = dg.AssetSelection.assets(ITEMS) | dg.AssetSelection.checks_for_assets(ITEMS)
    broken = stall.run(instance, partition_key="tue", tags=tags, selection=selection)
    assert not broken.success
    result = stall.publish(instance, tags=tags)
    assert (True, [1]) == (result.success, stall.published())
    (event,) = result.asset_materializations_for_node("publish_production")
    (waiting,) = waits(event)
    assert f"failed on run/{broken.run_id}@" in waiting
    assert f"discard: run/{broken.run_id} gives up what it wrote" in waiting
    stall.write(instance, 2, partition_key="tue", tags={"dagster/root_run_id": broken.run_id})
    again = stall.publish(instance, tags=tags)
    assert (True, [1, 2]) == (again.success, stall.published())
    (event,) = again.asset_materializations_for_node("publish_production")
    (superseded,) = waits(event, "lance/superseded")
    assert "is superseded by run/" in superseded
    assert "lance/waiting" not in event.metadata


def test_a_backfill_of_promoted_nodes_alone_publishes_what_waits(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """No run of the backfill writes a candidate, so it stands for *Materialize*."""
    stall = Stall(lake, [Unique("id")], days=True, once=True, mode="replace")
    stall.write(instance, 1, partition_key="mon", tags={"dagster/backfill": "first"})
    assert stall.publish(instance, tags={"dagster/backfill": "second"}).success
    assert [1] == stall.published()


@pytest.mark.slow
def test_a_backfill_repeated_whole_adds_no_rows_twice(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Appended rows of the first backfill wait no longer when the second one wrote the same partitions."""
    stall = Stall(lake, [Unique("id")], days=True, once=True)
    first = {"dagster/backfill": "b1"}
    again = {"dagster/backfill": "b2", "dagster/root_backfill_id": "b1"}
    for day, number, tags in (("mon", 1, first), ("tue", 2, first), ("mon", 3, again)):
        stall.write(instance, number, partition_key=day, tags=tags)
    assert stall.publish(instance, tags=again).success
    assert [2, 3] == stall.published()
    assert stall.publish(instance).success
    assert [2, 3] == stall.published()


def test_a_backfill_that_failed_when_it_was_repeated_supersedes_nothing(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """Appended rows that passed are published although the same partition failed in a re-execution of the backfill."""
    stall = Stall(lake, [InRange("id", minimum=0)], days=True, once=True)
    stall.write(instance, 1, partition_key="mon", tags={"dagster/backfill": "b1"})
    stall.ids = [-1]
    again = {"dagster/backfill": "b2", "dagster/root_backfill_id": "b1"}
    selection = dg.AssetSelection.assets(ITEMS) | dg.AssetSelection.checks_for_assets(ITEMS)
    assert not stall.run(instance, partition_key="mon", tags=again, selection=selection).success
    assert stall.publish(instance).success
    assert [1] == stall.published()


@pytest.mark.parametrize("by", ["the backfill", "a person"])
def test_what_a_backfill_published_is_not_appended_by_its_reexecution(
    lake: LanceResource, instance: dg.DagsterInstance, by: str
) -> None:
    """The rows of a failed run are published when its check, or the run, passes later; then its day is refused."""
    stall, selection, passes = flaky_stall(lake)
    stall.ids = [1]
    failed = stall.run(instance, partition_key="mon", tags=FIRST, selection=selection)
    passes.append(True)
    if by == "a person":
        stall.write(instance, 1, partition_key="mon", tags={"dagster/root_run_id": failed.run_id})
    else:
        assert stall.run(instance, selection=dg.AssetSelection.checks_for_assets(ITEMS)).success
    assert stall.publish(instance, tags=FIRST).success
    again = stall.run(instance, partition_key="mon", tags=AGAIN, selection=selection)
    assert "which this run repeats, appended mon to shop/items, and that is published" in failure(again, "shop__items")
    stall.write(instance, 2, partition_key="tue", tags=AGAIN)
    assert stall.publish(instance, tags=AGAIN).success
    assert [1, 2] == stall.published()
    assert stall.publish(instance, "production~1", reason="wrong").success
    stall.write(instance, 3, partition_key="tue", tags=AGAIN)


@pytest.mark.parametrize("tags", [{}, {"dagster/backfill": "b1"}], ids=["runs", "backfills"])
def test_of_two_attempts_whose_checks_pass_later_one_is_published(
    lake: LanceResource, instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    """Both appended before either was published; the publication of the first drops the second."""
    stall, selection, passes = flaky_stall(lake)
    stall.ids = [1]
    first = stall.run(instance, partition_key="mon", tags=tags, selection=selection)
    again = AGAIN if tags else {"dagster/root_run_id": first.run_id}
    second = stall.run(instance, partition_key="mon", tags=again, selection=selection)
    passes.append(True)
    superseded = []
    for run in (first, second):
        branch = {"lance/branch": f"run/{run.run_id}"}
        assert stall.run(instance, selection=dg.AssetSelection.checks_for_assets(ITEMS), tags=branch).success
        published = stall.publish(instance)
        assert published.success
        assert [1] == stall.published()
        events = published.asset_materializations_for_node("publish_production")
        superseded += [reason for event in events for reason in waits(event, "lance/superseded")]
    (reason,) = superseded
    assert f"write 2 of run/{second.run_id} (append of mon) is superseded by write 1 of run/{first.run_id}" in reason
    stall.write(instance, 2, partition_key="tue")
    assert stall.publish(instance).success
    assert [1, 2] == stall.published()


@pytest.mark.slow
def test_a_repeated_publisher_of_a_backfill_leaves_withdrawn_rows(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """What the backfill published, and a person withdrew, is promoted only by name."""
    stall = Stall(lake, [Unique("id")], days=True, once=True, mode="replace")
    tags = {"dagster/backfill": "bf"}
    for day, number in (("mon", 1), ("tue", 2)):
        stall.write(instance, number, partition_key=day, tags=tags)
        assert stall.publish(instance, tags=tags).success
    assert stall.publish(instance, "production~1", rollback="hold", reason="bad").success
    assert stall.publish(instance, release=True, reason="repaired").success
    assert stall.publish(instance, tags=tags).success
    assert [1] == stall.published()


def test_a_full_reexecution_supersedes_the_run_that_it_repeats(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """Of a run that appended and a re-execution of all its steps, only the second one is published."""
    stall = Stall(lake, [RowCount(minimum=1)])
    first = stall.write(instance, 1, 2)
    again = stall.write(instance, 1, 2, tags={"dagster/root_run_id": first.removeprefix("run/")})
    published = stall.publish(instance)
    (event,) = published.asset_materializations_for_node("publish_production")
    (superseded,) = waits(event, "lance/superseded")
    assert f"{first}@2 is superseded by {again}@2" in superseded
    # The branch is still there, and does not wait when the other one is gone.
    assert stall.publish(instance).success
    assert ([1, 2], [first]) == (stall.published(), list(stall.table.branches.list("run/*")))


def test_a_full_reexecution_that_was_finished_later_supersedes_the_run_that_it_repeats(
    shop: Shop, instance: dg.DagsterInstance
) -> None:
    """Appended rows are published once, also when the re-execution failed like the run and was continued."""
    shop.play(mode="append", customers_fail=True)
    failed = shop.execute(instance, job="candidates")
    again = shop.execute(instance, dg.ReexecutionOptions(failed.run_id), "candidates")
    shop.play(mode="append")
    options = dg.ReexecutionOptions.from_failure(again.run_id, instance)
    assert shop.execute(instance, options, "candidates").success
    published = shop.publish(instance, *PROMOTED)
    assert (True, [1, 2, 3]) == (published.success, shop.ids("production"))
    assert [f"run/{failed.run_id}"] == list(shop.table().branches.list("run/*"))


def test_of_two_reexecutions_that_repeat_an_append_one_is_published(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Each of them removes the rows of the run that both continue, but not those of the other one."""
    shop.play(mode="append", orders=[-1])
    failed = shop.execute(instance, job="candidates")
    steps = ["shop__orders", "shop__orders_ids_are_positive", "shop__orders_row_count", "shop__customers"]
    continued = dg.ReexecutionOptions(failed.run_id, step_selection=steps)
    for number in (1, 2):
        shop.play(mode="append", orders=[number])
        repaired = shop.execute(instance, continued, "candidates")
        assert repaired.success
    for _ in range(2):
        assert shop.publish(instance, *PROMOTED).success
        assert [2] == shop.ids("production")
    assert f"run/{repaired.run_id}" not in shop.table().branches.list("run/*")
    again = shop.execute(instance, continued, "candidates")
    assert f"run {repaired.run_id}, which this run repeats, appended" in failure(again, "shop__orders")


def test_a_reexecution_that_failed_supersedes_nothing(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The rows of a run are published when the re-execution of all its steps did not succeed."""
    stall = Stall(lake, [InRange("id", minimum=0)])
    first = stall.write(instance, 1)
    stall.ids = [-1]
    assert not stall.run(instance, tags={"dagster/root_run_id": first.removeprefix("run/")}).success
    assert stall.publish(instance).success
    assert [1] == stall.published()


def test_a_branch_that_a_published_reexecution_continued_does_not_wait(
    shop: Shop, instance: dg.DagsterInstance
) -> None:
    """A failed branch that `main` contains, through a re-execution, does not wait: it goes with the publication."""
    shop.play(orders=[-1])
    broken = shop.execute(instance)
    assert not broken.success
    shop.play(orders=[2])
    steps = ["shop__orders", "shop__orders_ids_are_positive", "shop__orders_row_count", "shop__customers"]
    continued = dg.ReexecutionOptions(broken.run_id, step_selection=steps)
    assert shop.execute(instance, continued).success
    assert shop.publish(instance, *PROMOTED).success
    assert ([2], []) == (shop.ids("production"), list(shop.table().branches.list("run/*")))
    shop.play(orders=[-3])
    assert not shop.run(instance, selection=CANDIDATES).success
    pressed = shop.publish(instance, *PROMOTED)
    said = [entry.user_message for entry in instance.all_logs(pressed.run_id)]
    assert [] == [text for text in said if "it waits" in text and broken.run_id in text]


def test_what_a_reexecution_from_python_adds_is_published_with_the_rest(
    shop: Shop, instance: dg.DagsterInstance
) -> None:
    """A table that failed, repaired by a re-execution without Dagster's tags, is published with the other table."""
    shop.play(orders=[1], customers_fail=True)
    broken = shop.execute(instance)
    assert not broken.success
    shop.play(orders=[2])
    continued = dg.ReexecutionOptions(broken.run_id, step_selection=["shop__customers"])
    assert shop.execute(instance, continued).success
    published = shop.publish(instance, *PROMOTED)
    assert (True, set(PROMOTED)) == (published.success, events(published))
    assert ([1], [10, 20]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))


def test_a_broken_branch_is_discarded_with_a_reason(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A branch is discarded by the first characters of its run id, which an observation of the node records."""
    stall = Stall(lake, [InRange("id", minimum=0)])
    assert stall.run(instance).success
    stall.ids = [-2]
    broken = stall.run(instance)
    assert not broken.success
    short = broken.run_id[:8]
    assert "discard needs a reason" in failure(stall.publish(instance, discard=short))
    assert "nothing to be discarded" in failure(stall.publish(instance, discard="ffffffffffff", reason="x"))
    assert "is not a run id" in failure(stall.publish(instance, discard="*", reason="x"))
    assert stall.publish(instance, discard=short, reason="wrong prices").success
    assert {} == stall.table.branches.list("run/*")
    (seen,) = instance.fetch_observations(PRODUCTION_ITEMS, limit=5).records
    observed = seen.asset_observation
    assert observed is not None
    found = {key: value.value for key, value in observed.metadata.items()}
    assert (f"run/{broken.run_id}@3", "wrong prices") == (found["lance/discarded"], found["lance/reason"])


def test_a_candidate_is_discarded_whole_or_not_at_all(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table whose branch is needed by another branch keeps the branches of the other tables."""
    run_id = candidates(shop, instance)
    shop.table(CUSTOMERS).branches.create("run/later", at=f"run/{run_id}")
    said = failure(shop.publish(instance, *PROMOTED, discard=run_id, reason="sent twice"))
    assert f"run/{run_id} of {shop.table(CUSTOMERS).uri} is needed by branch run/later; discard what was forked" in said
    for key in (ORDERS, CUSTOMERS):
        assert f"run/{run_id}" in shop.table(key).branches.list("run/*")


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(main_moves, id="before main of the first table"),
        pytest.param(channel_moves, id="before the channel"),
    ],
)
def test_rows_that_are_committed_are_not_discarded(
    shop: Shop, instance: dg.DagsterInstance, at: Callable[[Request], bool]
) -> None:
    """Where a publisher died after its commit, `discard` says what takes the rows back, and that does it."""
    assert shop.run(instance).success
    killed(shop, instance, at)
    (branch,) = shop.table().branches.list("run/*")
    said = failure(shop.publish(instance, *PROMOTED, discard=branch, reason="wrong"))
    assert f"{branch} of {shop.table().uri} cannot be discarded: commit " in said
    assert shop.publish(instance, *PROMOTED).success
    assert shop.publish(instance, *PROMOTED, ref="production~1", reason="wrong").success
    assert shop.publish(instance, *PROMOTED).success
    assert ([1, 2, 3], [10, 20]) == (shop.ids("production"), shop.ids("production", CUSTOMERS))


def test_a_withdrawn_branch_that_was_left_behind_is_discarded(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """After a rollback, `main` contains the branch and lacks its rows, so nothing speaks against its deletion."""
    stall = Stall(lake, [Unique("id")])
    branch = stall.write(instance, 1)
    stall.table.tags.create("kept", branch)
    assert stall.publish(instance).success
    stall.write(instance, 2)
    assert stall.publish(instance).success
    stall.table.tags.delete("kept")
    assert "cannot be discarded: commit" in failure(stall.publish(instance, discard=branch, reason="x"))
    assert stall.publish(instance, ref="main@1", reason="wrong").success
    assert stall.publish(instance, discard=branch, reason="x").success
    assert {} == stall.table.branches.list("run/*")


def test_short_run_ids_are_enough(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A short run id names a waiting branch or one that was published and deleted; an ambiguous id is refused."""
    stall = Stall(lake, [RowCount(minimum=1)])
    branch = stall.write(instance, 1)
    for _ in range(2):
        assert stall.publish(instance, branch[:10]).success
    assert [1] == stall.published()
    for name in ("run/cafe-1", "run/cafe-2"):
        stall.table.branches.create(name)
    assert "is the beginning of several branches" in failure(stall.publish(instance, "run/cafe"))


@pytest.mark.parametrize("config", [{"ref": "run/cafe"}, {"discard": "cafe", "reason": "wrong"}])
def test_the_beginning_of_a_run_id_means_one_run_in_all_tables(
    shop: Shop, instance: dg.DagsterInstance, config: dict[str, str]
) -> None:
    """In each table alone it would mean another run, and one act would publish or delete what two runs wrote."""
    assert shop.run(instance).success
    for key, run in ((ORDERS, "cafe-1"), (CUSTOMERS, "cafe-2")):
        shop.table(key).branches.create(f"run/{run}")
    refused = shop.publish(instance, *PROMOTED, **config)
    assert "is the beginning of several branches: run/cafe-1, run/cafe-2" in failure(refused)
    assert ["run/cafe-1"] == list(shop.table().branches.list("run/cafe*"))


def test_a_superseded_branch_that_another_table_needs_is_not_to_be_discarded(
    shop: Shop, instance: dg.DagsterInstance
) -> None:
    """When one of two tables of a run was repaired alone, the advice does not lose what the run wrote to the other."""
    shop.play(orders=[1])
    assert shop.run(instance).success
    shop.play(orders=[-3])
    assert not shop.run(instance, selection=CANDIDATES).success
    shop.play(orders=[2])
    alone = dg.AssetSelection.assets(ORDERS) | dg.AssetSelection.checks_for_assets(ORDERS)
    assert shop.run(instance, selection=alone).success
    result = shop.publish(instance, *PROMOTED)
    assert (True, [2]) == (result.success, shop.ids("production"))
    said = [
        entry.user_message for entry in instance.all_logs(result.run_id) if "is superseded by" in entry.user_message
    ]
    assert "which waits with it: re-execute the run, or discard all of it" in said[0]


def test_a_branch_that_conflicts_says_what_to_do(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A branch whose replaced rows were rolled back since waits with advice, and a new run takes its place."""
    stall = Stall(lake, [Unique("id")], days=True, once=True, mode="replace")
    monday = {"partition_key": "mon"}
    for number in (1, 2):
        stall.write(instance, number, **monday)
        assert stall.publish(instance).success
    waiting = stall.write(instance, 3, **monday)
    assert stall.publish(instance, ref="production~1", reason="2 is wrong").success
    pressed = stall.publish(instance)
    said = [entry.user_message for entry in instance.all_logs(pressed.run_id) if "conflicts with" in entry.user_message]
    assert (True, 1, [1]) == (pressed.success, len(said), stall.published())
    assert f"materialize it again, which starts from what is published, then set discard: {waiting}" in said[0]
    stall.write(instance, 4, **monday)
    assert stall.publish(instance).success
    assert [4] == stall.published()


def test_the_advice_about_conflicts_names_only_the_runs_in_conflict(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """Of three runs that wait, two upserted the same new key; nobody is told to give up the rows of the third one."""
    ids: list[int] = []

    @dg.asset(key=ITEMS, metadata={"lance/write_mode": "upsert", "lance/keys": ["id"]})
    def items() -> pa.Table:
        return pa.table({"id": ids, "at": [len(ids)]})

    publisher = build_publisher([items], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    waiting = []
    for found in (1, 10, 10, 30):
        ids[:] = [found]
        assets = [items, publisher] if found == 1 else [items]
        waiting.append(dg.materialize(assets, **options).run_id)
    _, older, newer, innocent = waiting
    nodes = list(publisher.keys)
    said = failure(dg.materialize([items, publisher], selection=nodes, raise_on_error=False, **options))
    assert f"publish one by ref: run/{older}, then run the others again, or give its rows up" in said
    assert f"with discard: run/{older} or discard: run/{newer} and a reason" in said
    assert innocent not in said


def test_a_branch_that_is_being_published_is_not_discarded(shop: Shop, instance: dg.DagsterInstance) -> None:
    """After the commit of a publication, `discard` names the commit; after its end there is nothing to discard."""
    assert shop.run(instance).success
    run_id, other, said = candidates(shop, instance), replace(shop), list[str]()

    def give_up() -> None:
        said.append(failure(other.publish(instance, discard=f"run/{run_id}", reason="given up")))

    Dying.scripts.append(Meanwhile(0, channel_moves, give_up))
    shop.lance = Dying(root=shop.lance.root)
    publisher = shop.publish(instance, *PROMOTED)
    assert publisher.success
    assert f"run/{run_id} of {shop.table().uri} cannot be discarded: commit" in said[0]
    assert [1, 2, 3] == shop.ids("production")
    assert "nothing to be discarded" in failure(shop.publish(instance, discard=f"run/{run_id}", reason="given up"))


def test_a_run_that_publishes_its_own_rows_prevents_no_discard(shop: Shop, instance: dg.DagsterInstance) -> None:
    """While a job publishes what it wrote itself, the branch of another run is discarded."""
    assert shop.run(instance).success
    run_id, other, done = candidates(shop, instance), replace(shop), list[bool]()

    def give_up() -> None:
        done.append(other.publish(instance, discard=f"run/{run_id}", reason="given up").success)

    Dying.scripts.append(Meanwhile(0, channel_moves, give_up))
    shop.lance = Dying(root=shop.lance.root)
    shop.play(orders=[8])
    assert shop.run(instance).success
    assert ([True], [8], {}) == (done, shop.ids("production"), shop.table().branches.list("run/*"))


def test_a_branch_deleted_by_hand_is_not_published(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A publisher whose branch is deleted while the preview of its merge is audited fails before its commit."""

    @table_check(asset=ITEMS)
    def given_up(items: PinnedTable) -> bool:
        if items.version.branch.startswith("preview/"):
            items.table.branches.delete(waiting)
        return True

    stall = Stall(lake, [given_up])
    assert stall.run(instance).success
    waiting, table = stall.write(instance, 2), stall.table
    table.append(pa.table({"id": [3]}))
    said = failure(stall.publish(instance))
    assert f"{waiting}@3 of shop/items was deleted while this run was about to publish it, so nothing is" in said
    assert ([1], [1, 3]) == (stall.published(), sorted(row["id"] for row in table.read().to_pylist()))


def test_a_range_that_overlaps_a_newer_partition_waits(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A waiting range, of which a newer run replaced one day, waits and says why; everything else is published."""
    numbers = [1]

    @dg.asset(
        key=ITEMS,
        partitions_def=dg.StaticPartitionsDefinition(["d1", "d2", "d3"]),
        metadata={"lance/partition_expr": "day"},
    )
    def items(context: dg.AssetExecutionContext) -> pa.Table:
        keys = list(context.partition_keys)
        return pa.table({"day": keys, "id": numbers * len(keys)})

    publisher = build_publisher([items], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    ends = {"dagster/asset_partition_range_start": "d1", "dagster/asset_partition_range_end": "d2"}
    older = dg.materialize([items], tags=ends, **options)
    for numbers[0], key in ((2, "d2"), (3, "d3")):
        assert dg.materialize([items], partition_key=key, **options).success
    done = dg.materialize([items, publisher], selection=list(publisher.keys), **options)
    assert done.success
    assert [2, 3] == sorted(row["id"] for row in lake.table(ITEMS).read("production").to_pylist())
    said = [entry.user_message for entry in instance.all_logs(done.run_id)]
    assert any(f"run/{older.run_id}@2 and the newer run/" in text and "both replaced d2" in text for text in said)


@pytest.mark.parametrize("passes", [True, False])
def test_a_range_of_which_a_newer_run_appended_a_day_again_waits(
    lake: LanceResource, instance: dg.DagsterInstance, *, passes: bool
) -> None:
    """Of a range and a day of it, appended by one backfill, the newer day is published; if it failed, the range is."""
    number = [1]

    @dg.asset(
        key=ITEMS,
        partitions_def=dg.StaticPartitionsDefinition(["d1", "d2"]),
        metadata={"lance/partition_expr": "day", "lance/write_mode": "append"},
    )
    def items(context: dg.AssetExecutionContext) -> pa.Table:
        keys = list(context.partition_keys)
        return pa.table({"day": keys, "id": number * len(keys)})

    checks = build_table_checks(items, [InRange("id", minimum=0)])
    publisher = build_publisher([items])
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    ends = {"dagster/asset_partition_range_start": "d1", "dagster/asset_partition_range_end": "d2"}
    older = dg.materialize([items, *checks], tags={**FIRST, **ends}, **options)
    number[0] = 2 if passes else -2
    dg.materialize([items, *checks], partition_key="d2", tags=AGAIN, raise_on_error=False, **options)
    nodes = [items, *checks, publisher]
    done = dg.materialize(nodes, selection=list(publisher.keys), tags=AGAIN, **options)

    def published() -> list[tuple[str, int]]:
        return sorted((row["day"], row["id"]) for row in lake.table(ITEMS).read("production").to_pylist())

    assert ([("d2", 2)] if passes else [("d1", 1), ("d2", 1)]) == published()
    if passes:
        said = "\n".join(entry.user_message for entry in instance.all_logs(done.run_id))
        advice = f"materialize d1 again by a new run, then set discard: run/{older.run_id}"
        assert f"run/{older.run_id}@2 appended to d2 as did the newer run/" in said
        assert advice in said
        number[0] = 3
        assert dg.materialize([items, *checks], partition_key="d1", **options).success
        config = {"ops": {"publish_production": {"config": {"discard": f"run/{older.run_id}", "reason": "again"}}}}
        assert dg.materialize(nodes, selection=list(publisher.keys), run_config=config, **options).success
        assert dg.materialize(nodes, selection=list(publisher.keys), **options).success
        assert [("d1", 3), ("d2", 2)] == published()


def test_a_branch_that_conflicts_and_is_named_says_what_to_do(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """The conflict is found while the commit is made, and the error names the remedy, as for a branch that waits."""
    stall = Stall(lake, [InRange("id", minimum=0)], days=True, once=True, mode="replace")
    older, newer = (stall.write(instance, number, partition_key="mon") for number in (1, 2))
    assert stall.publish(instance, newer).success
    said = failure(stall.publish(instance, older))
    advice = f"materialize the publisher with discard: {older} and a reason"
    assert f"run the job again, which starts from what is published, or give its rows up: {advice}" in said
    assert stall.publish(instance, discard=older, reason="written again").success
    assert [2] == stall.published()
