"""A rollback lasts: the next publication does not bring back the rows that it withdrew."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import InRange, LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks
from tests.plugin.shop import (
    CANDIDATES,
    CUSTOMERS,
    ORDERS,
    PRODUCTION_CUSTOMERS,
    PRODUCTION_ORDERS,
    Shop,
    failure,
    reasons,
    recorded,
)

BACK = {"ref": "main@2", "reason": "wrong prices"}


@pytest.fixture
def rolled(shop: Shop, instance: dg.DagsterInstance) -> Shop:
    """A shop with two publications: [1, 2, 3] at main@2, and [4] appended at main@3."""
    shop.play(mode="append")
    assert shop.run(instance).success
    shop.play(mode="append", orders=[4])
    assert shop.run(instance).success
    return shop


def test_withdrawn_rows_do_not_come_back(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """A revert is a commit on main with message, reason and person, and the next run builds on it."""
    tags = {"dagster/user": "ada"}
    config = {"ops": {"publish_production": {"config": BACK}}}
    assert rolled.run(instance, selection=[PRODUCTION_ORDERS], run_config=config, tags=tags).success
    assert [1, 2, 3] == rolled.ids("production") == rolled.ids("main")
    head = rolled.table().head()
    assert ("main@4", "main@2") == (str(head), head.properties["lance/rolled_back_to"])
    assert head.message == "roll shop/orders back to main@2: wrong prices"
    assert ("wrong prices", "user ada") == (head.properties["lance/reason"], head.properties["lance/who"])
    metadata = recorded(instance, PRODUCTION_ORDERS).metadata
    assert ("revert", "main@4") == (metadata["lance/rollback"], metadata["lance/to"])
    assert ["main@3"] == [line.split(":")[0] for line in metadata["lance/withdrawn"]]
    assert {} == rolled.table().branches.list("run/*")
    rolled.play(mode="append", orders=[5])
    assert rolled.run(instance).success
    assert [1, 2, 3, 5] == rolled.ids("production")


def test_what_was_taken_back_by_a_hold_is_undone_on_main(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """A person on call holds the channel at the older version, and later releases and undoes the rest in one run."""
    nodes = [PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS]
    assert rolled.publish(instance, *nodes, ref="production~1", rollback="hold", reason="wrong prices").success
    assert ([1, 2, 3], [1, 2, 3, 4]) == (rolled.ids("production"), rolled.ids("main"))
    undone = rolled.publish(instance, *nodes, ref="production", release=True, reason="undo the wrong prices")
    assert undone.success, failure(undone)
    assert ([1, 2, 3], [1, 2, 3]) == (rolled.ids("production"), rolled.ids("main"))
    rolled.play(mode="append", orders=[5])
    assert rolled.run(instance).success
    assert [1, 2, 3, 5] == rolled.ids("production")


@pytest.mark.parametrize("minimum,is_good", [(1, True), (2, False)])
def test_a_check_that_was_added_later_is_evaluated_on_an_older_version(
    rolled: Shop, instance: dg.DagsterInstance, *, minimum: int, is_good: bool
) -> None:
    """A version that readers had before a check was added can be rolled back to when it passes the check now."""
    rolled.assets = [*rolled.assets, *build_table_checks(ORDERS, [InRange("id", minimum=minimum)])]
    done = rolled.publish(instance, **BACK)
    assert is_good == done.success
    assert ([1, 2, 3] if is_good else [1, 2, 3, 4]) == rolled.ids("production")
    assert is_good or "blocking check 'in_range_id'" in failure(done)


def test_a_version_is_rolled_back_to_after_its_asset_was_renamed(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """Its checks under the new name are evaluated on the version that readers had under the old one."""

    def run(name: str, ids: list[int], back: dict[str, str] | None = None) -> bool:
        @dg.asset(key=["shop", name], metadata={"lance/table": "shop/orders"})
        def orders() -> pa.Table:
            return pa.table({"id": ids})

        publisher = build_publisher([orders])
        return dg.materialize(
            [orders, *build_table_checks(orders, [RowCount(minimum=2)]), publisher],
            instance=instance,
            resources={"lance": lake, "io_manager": LanceIOManager(lance=lake)},
            selection=list(publisher.keys) if back else "*",
            run_config={"ops": {"publish_production": {"config": back}}} if back else None,
        ).success

    assert run("orders", [1, 2, 3])
    assert run("orders", [4, 5])
    assert run("sales", [], BACK)
    assert [1, 2, 3] == lake.table("shop/orders").read("production")["id"].to_pylist()


def test_a_rollback_of_one_table_names_the_others(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """`production~1` on one node warns that the other table of the publication stays; on both nodes, or held, not."""
    customers = rolled.tag(CUSTOMERS)
    # A dry run needs no reason.
    alone = rolled.publish(instance, ref="production~1", dry_run=True)
    both = rolled.publish(instance, PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS, ref="production~1", dry_run=True)
    held = rolled.publish(instance, ref="production~1", rollback="hold", dry_run=True)
    said = [
        [one.user_message for one in instance.all_logs(result.run_id) if "the selected tables" in one.user_message]
        for result in (alone, both, held)
    ]
    assert ([1, 0, 0], True) == (list(map(len, said)), held.success)
    assert f"that were promoted with them stay: shop/customers at {customers}. Select their nodes too" in said[0][0]


def test_a_branch_from_before_the_rollback_brings_nothing_back(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """Of a branch that was forked from a withdrawn version, only its own rows are published."""
    rolled.play(mode="append", orders=[6])
    waiting = rolled.run(instance, selection=CANDIDATES).run_id
    assert [1, 2, 3, 4, 6] == rolled.ids(f"run/{waiting}")
    assert rolled.publish(instance, **BACK).success
    rolled.publish(instance, ref=f"run/{waiting}", ignore_failed_checks=True, reason="looked at it")
    assert [1, 2, 3, 6] == rolled.ids("production")


def test_the_withdrawn_run_is_not_published_again(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """Naming a withdrawn run is refused, as main has its rows and their removal; naming its version publishes it."""
    withdrawn = rolled.table().at("main@3").properties["dagster/run_id"]
    assert rolled.publish(instance, **BACK).success
    assert "rolled back; to bring it back" in failure(rolled.publish(instance, ref=f"run/{withdrawn}"))
    assert ([1, 2, 3], "main@4") == (rolled.ids("production"), rolled.tag())
    assert rolled.publish(instance, ref="main@3", reason="they were right").success
    assert ([1, 2, 3, 4], "main@5") == (rolled.ids("production"), rolled.tag())
    assert rolled.publish(instance, ref="main@4", reason="no").success
    assert ([1, 2, 3], "main@6") == (rolled.ids("production"), rolled.tag())


def test_a_rollback_that_was_cut_off_is_finished(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """After a rollback that died before it moved the tag, the next one moves the tag without a second commit."""
    assert rolled.publish(instance, **BACK).success
    rolled.table().tags.move("production", "main@3", force=True)
    assert rolled.publish(instance, **BACK).success
    assert "main@4" == rolled.tag() == str(rolled.table().head())


@pytest.mark.parametrize(
    "config,said",
    [
        ({"ref": "main@2"}, "a rollback needs a reason"),
        ({"ref": "main@2", "rollback": "hold"}, "a rollback needs a reason"),
        ({"hold": True}, "hold needs a reason"),
        ({"release": True}, "release needs a reason"),
        ({"hold": True, "release": True, "reason": "x"}, "hold cannot be combined with"),
        (
            {"hold": True, "dry_run": True, "reason": "x"},
            "dry_run shows a publication or a rollback; leave it out",
        ),
        ({"discard": "4f", "dry_run": True, "reason": "x"}, "leave it out with discard"),
        ({"rollback": "hold", "reason": "bad data"}, "rollback: hold needs ref"),
    ],
)
def test_a_contradiction_is_refused(
    rolled: Shop, instance: dg.DagsterInstance, config: dict[str, object], said: str
) -> None:
    """A config that lacks a reason or would do what nobody asked for is refused before anything is changed."""
    assert said in reasons(rolled.publish(instance, **config))
    assert ("main@3", "main@3") == (rolled.tag(), str(rolled.table().head()))


def test_a_run_of_a_held_table_alone_fails(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """When the only table of a run is held, its rows stay on the branch, and the error says how to publish them."""
    assert rolled.publish(instance, hold=True, reason="audit of the year").success
    assert "main@3" == rolled.tag()
    (observed,) = instance.fetch_observations(PRODUCTION_ORDERS, limit=5).records
    assert observed.asset_observation is not None
    scope = "held for all 2 tables of production, selected or not, until a release: nothing of them is published before"
    assert scope == observed.asset_observation.metadata["lance/scope"].value
    rolled.play(mode="append", orders=[5])
    result = rolled.run(instance, selection=dg.AssetSelection.assets(ORDERS, PRODUCTION_ORDERS))
    assert "audit of the year; set release: true and a reason" in failure(result)
    done = rolled.publish(instance, release=True, ref=f"run/{result.run_id}", reason="audit is over")
    assert done.success
    assert [1, 2, 3, 4, 5] == rolled.ids("production")


def test_foreign_rows_on_main_are_withdrawn_too_and_named(rolled: Shop, instance: dg.DagsterInstance) -> None:
    """A revert withdraws every version after the restored one, including foreign ones, and lists them."""
    rolled.table().append(pa.table({"id": [99]}))
    assert rolled.publish(instance, **BACK).success
    assert [1, 2, 3] == rolled.ids("main")
    listed = recorded(instance, PRODUCTION_ORDERS).metadata["lance/withdrawn"]
    assert ["main@4", "main@3"] == [line.split(":")[0] for line in listed]
