from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InRange,
    InvalidInputError,
    LanceIOManager,
    LanceRepository,
    LanceResource,
    ProtectedError,
    RowCount,
    build_publisher,
    build_table_checks,
    table_check,
)
from lance_dagster.plugin.publish.publish_config import PublishConfig
from tests.plugin.shop import (
    CANDIDATES,
    CUSTOMERS,
    ORDERS,
    PRODUCTION_CUSTOMERS,
    PRODUCTION_ORDERS,
    PROMOTED,
    Shop,
    candidates,
    failure,
    reasons,
    recorded,
)


def test_promotion_and_rollback_by_hand(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Audited versions of main can be promoted in any order, and the event names both versions and the reason."""
    shop.run(instance)
    first = shop.tag()
    shop.play(orders=[4, 5])
    shop.run(instance)
    second = shop.tag()
    assert shop.publish(instance, ref=first, reason="too few orders").success
    assert shop.tag() == "main@4"
    assert shop.ids("production") == [1, 2, 3]
    metadata = recorded(instance, PRODUCTION_ORDERS).metadata
    assert (metadata["lance/from"], metadata["lance/to"]) == (second, "main@4")
    assert metadata["lance/reason"] == "too few orders"
    # What a person looks for comes first, ids come last.
    assert ["lance/event", "lance/changes", "lance/rows_added"] == [*metadata][:3]
    assert "lance/reason" in [*metadata][:6]
    assert "lance/transaction" in [*metadata][-6:]
    assert "too few orders" == LanceRepository.open(shop.lance.root).channels.history("production", 1)[0].reason
    assert metadata["lance/event"] == "rolled back (revert): main@3 -> main@4, the content of main@2: too few orders"
    assert shop.publish(instance, ref=second, reason="they were right").success
    assert shop.ids("production") == [4, 5]
    assert shop.run(instance).success
    assert recorded(instance, PRODUCTION_ORDERS).metadata["lance/event"] == "promoted: main@5 -> main@6"
    assert shop.publish(instance, ref="production~1", rollback="hold", reason="a look").success
    event = recorded(instance, PRODUCTION_ORDERS).metadata["lance/event"]
    assert event == "rolled back (hold): main@6 -> main@5: a look"


def test_publishing_to_what_is_protected(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The publisher may move a protected main and a protected tag, but only to audited versions."""
    shop.run(instance)
    first = shop.tag()
    for candidate in (ORDERS, CUSTOMERS):
        shop.table(candidate).branches.protect(["main"])
        shop.table(candidate).tags.protect(["production"])
    shop.play(orders=[7])
    assert shop.run(instance).success
    second = shop.tag()
    assert first != second
    assert [7] == shop.ids("production")
    assert shop.publish(instance, ref=first, reason="worse").success
    assert ["main@4", second] == [move.after for move in shop.table().tags.history("production")[:2]]
    assert [1, 2, 3] == shop.ids("production")
    with pytest.raises(ProtectedError):
        shop.table().append(pa.table({"id": [99]}))


def test_a_branch_of_the_name_of_the_tag(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table with a branch `production` cannot have the tag: nothing is merged, and the error names the branch."""
    candidates(shop, instance)
    shop.table(CUSTOMERS).branches.create("production")
    assert "has a branch 'production', so it cannot have a tag of that name" in reasons(
        shop.publish(instance, *PROMOTED)
    )
    assert ("main@1", "main@1") == (str(shop.table().head()), str(shop.table(CUSTOMERS).head()))
    shop.table(CUSTOMERS).branches.delete("production")
    assert shop.publish(instance, *PROMOTED).success


def test_a_check_that_an_asset_reports_before_its_rows(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The order of a check and an output of one attempt does not matter; what an earlier attempt saw does not count."""
    attempts = [0]

    @dg.asset(check_specs=[dg.AssetCheckSpec("fine", asset="orders", blocking=True)])
    def orders() -> Iterator[Any]:
        attempts[0] += 1
        if attempts[0] != 3:
            yield dg.AssetCheckResult(passed=True)
        yield dg.Output(pa.table({"id": [1]}))
        if attempts[0] == 2:
            raise dg.RetryRequested
        if attempts[0] == 3:
            yield dg.AssetCheckResult(passed=False)

    publisher = build_publisher([orders])
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    for expected in (True, False):
        assert expected == dg.materialize([orders, publisher], raise_on_error=False, **options).success
    assert "main@2" == lake.table("orders").tags.get("production").ref


def test_a_run_that_is_cancelled_before_its_publisher(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A publisher whose run was cancelled neither publishes nor holds; the next one publishes what the run wrote."""

    @dg.asset
    def orders(context: dg.AssetExecutionContext) -> pa.Table:
        context.instance.report_run_canceling(context.run)
        return pa.table({"id": [1]})

    publisher = build_publisher([orders], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    first = dg.materialize([orders, publisher], raise_on_error=False, **options)
    assert "the run was cancelled, so nothing is published" in reasons(first)
    table = lake.table("orders")
    assert ({}, "main@1") == (table.tags.list(), str(table.head()))
    assert dg.materialize([orders, publisher], selection=[*publisher.keys], **options).success
    assert [1] == table.read("production")["id"].to_pylist()
    hold = {"ops": {"publish_production": {"config": {"hold": True, "reason": "wrong"}}}}
    second = dg.materialize([orders, publisher], raise_on_error=False, run_config=hold, **options)
    assert "the run was cancelled" in reasons(second)
    assert table.tags.get("production").hold is None


def test_promotion_of_a_version_nobody_audited(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Foreign commits and the empty first version are refused, unless a person ignores this with a reason."""
    shop.run(instance)
    before = shop.tag()
    foreign = shop.table().append(pa.table({"id": [99]}))
    for ref in (str(foreign), "main@1"):
        text = reasons(shop.publish(instance, ref=ref))
        assert f"{ref} was not made by a published run" in text
        assert "name a version that passed its checks, such as production~1; ignore_failed_checks: true" in text
    assert shop.tag() == before
    assert "ignore_failed_checks needs a reason" in reasons(
        shop.publish(instance, ref=str(foreign), ignore_failed_checks=True)
    )
    assert shop.publish(instance, ref=str(foreign), ignore_failed_checks=True, reason="looked at it").success
    assert shop.tag() == str(foreign)
    assert "was not made by a published run" in recorded(instance, PRODUCTION_ORDERS).metadata["lance/ignored"][0]


def test_branch_that_was_left_behind(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Naming a run without a publisher publishes the branches that it left behind, once."""
    run_id = candidates(shop, instance)
    assert shop.table().tags.list() == {}
    for _ in range(2):
        assert shop.publish(instance, *PROMOTED, ref=f"run/{run_id}").success
        assert (shop.ids("production"), shop.ids("production", CUSTOMERS)) == ([1, 2, 3], [10, 20])
        assert shop.table().branches.list("run/*") == shop.table(CUSTOMERS).branches.list("run/*") == {}
        assert shop.table().head().number == 2


def test_branch_whose_check_failed(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Naming the branch of a run that failed its audit is refused, with the reasons of the checks."""
    shop.play(orders=[-1])
    run_id = shop.run(instance).run_id
    text = reasons(shop.publish(instance, ref=f"run/{run_id}"))
    assert f"'ids_are_positive' failed on run/{run_id}@2: 1 ids are not positive" in text
    # What can be done, as the config of the publisher has it; the last is what the next line does.
    assert "repair the data or the check and re-execute the run" in text
    assert (
        f"discard: run/{run_id} gives up what it wrote; ref: run/{run_id} and ignore_failed_checks: true with" in text
    )
    assert shop.publish(instance, ref=f"run/{run_id}", ignore_failed_checks=True, reason="known").success
    assert shop.ids("production") == [-1]


def test_head_newer_than_what_was_audited(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Rows that were committed to a branch after the checks are not published with the audited ones."""
    run_id = candidates(shop, instance)
    shop.table().append(pa.table({"id": [-5]}), branch=f"run/{run_id}")
    text = reasons(shop.publish(instance, ref=f"run/{run_id}"))
    assert f"run/{run_id}@3 is to be published, but what the run materialized was run/{run_id}@2" in text
    assert shop.publish(instance, ref=f"run/{run_id}@2").success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.ids(f"run/{run_id}") == [-5, 1, 2, 3]  # what was not published is not deleted


def test_check_of_another_version_does_not_count(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A check that names the published version as the one it evaluated does not count for the branch."""

    @dg.asset_check(asset=ORDERS, blocking=True, name="ids_are_positive")
    def lazy_check() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True, metadata={"lance/branch": "main", "lance/version": 1})

    checks = [one for one in shop.assets if isinstance(one, dg.AssetChecksDefinition)]
    replaced = next(one for one in checks if one.check_key.name == "ids_are_positive")
    assets = [one for one in shop.assets if one is not replaced]
    result = Shop(shop.lance, [*assets, lazy_check]).run(instance)
    assert "looked at main@1, not at run/" in reasons(result)


def test_dry_run_moves_nothing(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A dry run verifies the audit and stops, and the promoted node is not materialized."""
    run_id = candidates(shop, instance)
    assert shop.publish(instance, ref=f"run/{run_id}", dry_run=True).success
    assert shop.table().tags.list() == {}
    assert shop.table().head().number == 1
    assert instance.get_latest_materialization_event(PRODUCTION_ORDERS) is None


def test_nothing_to_publish(shop: Shop, instance: dg.DagsterInstance) -> None:
    """*Materialize* fails when no run ever wrote the table; else it succeeds although there is nothing new."""
    assert "no table shop/orders" in reasons(shop.publish(instance))
    shop.run(instance)
    assert shop.publish(instance).success
    assert "no branch or tag 'mian'" in reasons(shop.publish(instance, ref="mian@2"))


def test_table_that_the_run_did_not_write_is_left_out(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table that the run did not write is left out, and does not keep the other one from being published."""
    shop.run(instance)
    before = shop.tag(CUSTOMERS)
    shop.play(orders=[8])
    result = shop.run(instance, selection=dg.AssetSelection.assets(ORDERS, *PROMOTED))
    assert result.success
    assert shop.ids("production") == [8]
    assert shop.tag(CUSTOMERS) == before
    events = result.asset_materializations_for_node("publish_production")
    assert [event.asset_key for event in events] == [PRODUCTION_ORDERS]


def test_materialized_without_a_branch(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A table that the run materialized without a branch is an error, not a table without news."""

    @dg.asset(key=ORDERS)
    def orders() -> dg.MaterializeResult[Any]:
        lake.table(ORDERS)
        return dg.MaterializeResult()

    LanceIOManager(lance=lake).handle_output(dg.build_output_context(asset_key=ORDERS), pa.table({"id": [1]}))
    result = dg.materialize(
        [orders, build_publisher([orders])], instance=instance, resources={"lance": lake}, raise_on_error=False
    )
    assert "materialized it, but left no branch" in reasons(result)


def test_leftover_branch_does_not_move_the_tag_back(shop: Shop, instance: dg.DagsterInstance) -> None:
    """Naming a run that was published long ago does not roll the tag back; naming its version does."""
    run_id = shop.run(instance).run_id
    shop.play(orders=[4])
    shop.run(instance)
    assert shop.publish(instance, ref=f"run/{run_id}").success
    assert shop.ids("production") == [4]
    assert shop.publish(instance, ref="main@2", reason="four is too few").success
    assert shop.ids("production") == [1, 2, 3]


MONTHS = dg.StaticPartitionsDefinition(["2024-01", "2024-02"])
SALES, PRODUCTION_SALES = dg.AssetKey(["shop", "sales"]), dg.AssetKey(["production", "shop", "sales"])


def sales_of(lake: LanceResource, *, partitioned: bool) -> tuple[list[Any], dict[str, Any]]:
    """A table that is replaced month by month."""

    @dg.asset(key=SALES, partitions_def=MONTHS, metadata={"lance/partition_expr": "month"})
    def sales(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"month": [context.partition_key], "run": [context.run.run_id]})

    publisher = build_publisher([sales], partitions_def=MONTHS if partitioned else None)
    checks = build_table_checks(sales, [RowCount(minimum=1)])
    return [sales, publisher, *checks], {"lance": lake, "io_manager": LanceIOManager(lance=lake)}


def months(lake: LanceResource) -> list[str]:
    """The months that readers see, with one entry for each row."""
    return sorted(row["month"] for row in lake.table(SALES).read("production").to_pylist())


@pytest.mark.parametrize("second_month,success", [("2024-01", False), ("2024-02", True)])
def test_two_runs_at_once(
    lake: LanceResource, instance: dg.DagsterInstance, second_month: str, *, success: bool
) -> None:
    """Of two runs on the same version, the second is refused for the same month, and merged for another month."""
    assets, resources = sales_of(lake, partitioned=True)
    options: dict[str, Any] = {"instance": instance, "resources": resources, "raise_on_error": False}
    first = dg.materialize(assets, selection=[SALES], partition_key="2024-01", **options)
    second = dg.materialize(assets, selection=[SALES], partition_key=second_month, **options)
    results = [
        dg.materialize(
            assets,
            selection=[PRODUCTION_SALES],
            partition_key=month,
            run_config={"ops": {"publish_production": {"config": {"ref": f"run/{run.run_id}"}}}},
            **options,
        )
        for run, month in ((first, "2024-01"), (second, second_month))
    ]
    assert [result.success for result in results] == [True, success]
    table = lake.table(SALES)
    rows = {row["month"]: row["run"] for row in table.read("production").to_pylist()}
    if success:
        assert rows == {"2024-01": first.run_id, "2024-02": second.run_id}
    else:
        text = reasons(results[1])
        assert "shop/sales" in text
        assert "partition 2024-01" in text
        assert first.run_id in text
        assert rows == {"2024-01": first.run_id}
        assert f"run/{second.run_id}" in table.branches.list("run/*")


def test_partitioned_publisher_works_in_every_run(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A backfill of partitioned nodes publishes month by month, each in its own run."""
    assets, resources = sales_of(lake, partitioned=True)
    for month in MONTHS.get_partition_keys():
        assert dg.materialize(
            assets, partition_key=month, instance=instance, resources=resources, tags={"dagster/backfill": "bf"}
        ).success
    assert months(lake) == ["2024-01", "2024-02"]


def test_one_publisher_after_a_backfill(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """An unpartitioned publisher publishes the branches of all runs of its backfill, no others, and only once."""
    assets, resources = sales_of(lake, partitioned=False)
    options: dict[str, Any] = {"instance": instance, "resources": resources, "raise_on_error": False}
    for month, backfill in (("2024-01", "bf"), ("2024-02", "bf"), ("2024-01", "other")):
        selection = dg.AssetSelection.assets(SALES)
        assert dg.materialize(
            assets, selection=selection, partition_key=month, tags={"dagster/backfill": backfill}, **options
        ).success
    for _ in range(2):
        result = dg.materialize(assets, selection=[PRODUCTION_SALES], tags={"dagster/backfill": "bf"}, **options)
        assert result.success, failure(result)
        table = lake.table(SALES)
        assert months(lake) == ["2024-01", "2024-02"]
        assert len(table.branches.list("run/*")) == 1
        assert table.head().number == 2


@pytest.mark.parametrize("crashes", [True, False])
def test_the_publisher_waits_for_a_check_that_it_names(
    lake: LanceResource, instance: dg.DagsterInstance, *, crashes: bool
) -> None:
    """Dagster starts the publisher before a check that is not blocking and whose step has a later name."""

    @dg.asset(key="sales")
    def sales() -> pa.Table:
        return pa.table({"id": [1]})

    @dg.asset_check(asset=sales)
    def is_gold() -> dg.AssetCheckResult:
        if crashes:
            raise ValueError("the check broke")
        return dg.AssetCheckResult(passed=True)

    assets = [sales, is_gold, build_publisher([sales], checks=[is_gold])]
    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
    result = dg.materialize(assets, instance=instance, resources=resources, raise_on_error=False)
    assert result.success != crashes
    if crashes:
        assert "blocking check 'is_gold' was not run on" in failure(result, "publish_production")


def test_publisher_without_tables() -> None:
    """A publisher needs at least one table, and each only once."""
    for tables in ([], [ORDERS, ORDERS]):
        with pytest.raises(InvalidInputError):
            build_publisher(tables)
    with pytest.raises(InvalidInputError, match="must be a list"):
        build_publisher("orders")
    with pytest.raises(InvalidInputError):
        build_publisher([ORDERS], checks=[dg.AssetCheckKey(CUSTOMERS, "rows")])


@pytest.mark.parametrize("tag", ["main", "published/0a1b2c3d", "run/4f2a", "two words"])
def test_a_publisher_of_a_branch_is_refused(tag: str) -> None:
    """The name of a branch, or one that is not valid for a tag, is refused when definitions load."""
    with pytest.raises(InvalidInputError):
        build_publisher([ORDERS], tag=tag)


def test_tags_that_are_no_names_of_steps() -> None:
    """A tag may have characters that Dagster refuses in the names of ops, and each tag gets its own name."""
    names = [build_publisher([ORDERS], tag=tag).node_def.name for tag in ("v1.0", "pre-prod", "pre.prod", "pre_prod")]
    assert 4 == len(set(names))
    assert "publish_pre_prod" == names[3]
    assert all(name.startswith("publish_pre_prod_") for name in names[1:3])


@pytest.mark.parametrize(
    "options",
    [
        {"tag": None},
        {"name": "my-lake"},
        {"checks": "rows"},
        {"checks": ["rows"]},
        {"checks": build_table_checks(ORDERS, [RowCount()])[0]},
        {"tables": [None]},
        {"tables": [len]},
    ],
)
def test_arguments_of_another_type_are_refused(options: dict[str, Any]) -> None:
    """Each is refused when definitions load, with a message that names what is wrong."""
    with pytest.raises(InvalidInputError):
        build_publisher(**{"tables": [ORDERS], **options})


def test_a_table_check_without_its_asset_is_refused() -> None:
    """The decorator has to be called with the asset."""
    with pytest.raises(InvalidInputError, match="@table_check"):
        table_check(len)
    with pytest.raises(InvalidInputError):
        table_check()(len)  # type: ignore[arg-type]


GOLD_ORDERS, GOLD_EVENTS = dg.AssetKey(["gold", "shop", "orders"]), dg.AssetKey(["gold", "events"])


def test_promoted_nodes_point_at_their_candidates() -> None:
    """A promoted node has the tag as the first part of its key, lineage to its candidate, and metadata for inputs."""
    publisher = build_publisher(["shop/orders", dg.AssetSpec("events", metadata={"lance/schema": "raw"})], tag="gold")
    orders, events = publisher.specs_by_key[GOLD_ORDERS], publisher.specs_by_key[GOLD_EVENTS]
    assert publisher.node_def.name == "publish_gold"
    assert publisher.op.pool == "lance_publish"
    assert orders.key.path == ["gold", "shop", "orders"]
    assert [dep.asset_key for dep in orders.deps] == [ORDERS]
    assert orders.metadata["lance/candidate"] == "shop/orders"
    assert "lance/table" not in orders.metadata
    assert orders.metadata["lance/ref"] == "gold"
    assert events.metadata["dagster/table_name"] == "raw.events"
    assert "lance" in orders.kinds


def test_promoted_nodes_inherit_from_their_candidates() -> None:
    """Promoted nodes have the owners, tags, kinds and column descriptions of all tables of a multi-asset."""
    columns = dg.TableSchema(columns=[dg.TableColumn("id", description="number of the order")])
    about: dict[str, Any] = {"owners": ["team:shop"], "tags": {"domain": "sales"}, "kinds": {"python", "spark"}}

    @dg.multi_asset(
        specs=[
            dg.AssetSpec(ORDERS, metadata={"dagster/column_schema": columns}, **about),
            dg.AssetSpec(CUSTOMERS, skippable=True),
        ]
    )
    def both() -> Iterator[dg.MaterializeResult[Any]]:
        yield from ()

    publisher = build_publisher([both, "shop/items"], group_name="readers")
    items = dg.AssetKey(["production", "shop", "items"])
    assert {PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS, items} == set(publisher.keys)
    orders = publisher.specs_by_key[PRODUCTION_ORDERS]
    assert (["team:shop"], {"lance", "python", "spark"}, "readers") == (orders.owners, orders.kinds, orders.group_name)
    assert ("sales", columns) == (orders.tags["domain"], orders.metadata["dagster/column_schema"])


@pytest.mark.parametrize(
    "name,options,expected",
    [
        ("publish_marts", {}, "production_marts"),
        ("marts_publish_production", {}, "production_marts"),
        (None, {}, "production"),
        ("publish_marts", {"group_name": "readers"}, "readers"),
    ],
)
def test_groups_of_promoted_nodes_make_no_cycle(name: str | None, options: Any, expected: str) -> None:  # noqa: ANN401
    """What is computed from the nodes of another publisher is promoted in a group after them."""

    @dg.asset(deps=[PRODUCTION_ORDERS])
    def totals() -> None:
        pass

    publisher = build_publisher([totals], name=name, **options)
    assert [expected] == [spec.group_name for spec in publisher.specs]
    both = build_publisher([ORDERS, totals], name="publish_marts")
    assert {"production"} == {spec.group_name for spec in both.specs}


@pytest.mark.parametrize("known", [True, False], ids=["definition", "keys"])
def test_an_optional_output_that_is_skipped(lake: LanceResource, instance: dg.DagsterInstance, known: bool) -> None:  # noqa: FBT001
    """When one output is skipped, the other is published if the definition says `skippable`, and waits otherwise."""

    @dg.multi_asset(outs={"a": dg.AssetOut(is_required=False), "b": dg.AssetOut(is_required=False)})
    def both() -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(pa.table({"id": [1]}), "a")

    node = dg.AssetKey(["production", "a"])
    options: dict[str, Any] = {
        "instance": instance,
        "resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)},
        "raise_on_error": False,
    }
    publisher = build_publisher([both] if known else ["a", "b"], unchecked=True)
    assert dg.materialize([both, publisher], **options).success
    assert known == bool(lake.table("a").tags.list())
    assert dg.materialize([both, publisher], selection=[node], **options).success
    assert "main@2" == lake.table("a").tags.get("production").ref
    config = {"ref": "main@1", "rollback": "revert", "reason": "too early", "ignore_failed_checks": True}
    options["run_config"] = {"ops": {"publish_production": {"config": config}}}
    assert dg.materialize([both, publisher], selection=[node], **options).success
    assert 0 == lake.table("a").count_rows("production")
    config["rollback"] = "hald"
    with pytest.raises(dg.DagsterInvalidConfigError, match="rollback"):
        dg.materialize([both, publisher], selection=[node], **options)


def test_failed_check_beside_a_skipped_output(lake: LanceResource) -> None:
    """The publisher does not run when one output is skipped and the check of the other one fails."""

    @dg.multi_asset(outs={name: dg.AssetOut(is_required=False) for name in ("a", "b", "c")})
    def all_of_them() -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(pa.table({"id": [1]}), "a")
        yield dg.Output(pa.table({"id": [-1]}), "c")

    checks = [check for name in ("a", "b", "c") for check in build_table_checks(name, [InRange("id", minimum=0)])]
    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
    made = [all_of_them, *checks, build_publisher([all_of_them])]
    result = dg.materialize(made, resources=resources, raise_on_error=False)
    assert not result.success
    assert {} == lake.table("a").tags.list()


def test_a_run_that_selects_one_of_its_promoted_nodes(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The publication is refused and names the node left out; then one button publishes the run."""
    one = CANDIDATES | dg.AssetSelection.checks_for_assets(ORDERS) | dg.AssetSelection.assets(PRODUCTION_ORDERS)
    refused = reasons(shop.run(instance, selection=one))
    assert "the run also writes shop/customers" in refused
    assert "select production/shop/customers too" in refused
    assert (None, [1]) == (shop.tag(), shop.table().branches.version_numbers())
    assert shop.publish(instance).success
    assert ("main@2", "main@2") == (shop.tag(), shop.tag(CUSTOMERS))


def test_a_continued_run_selects_one_of_the_promoted_nodes(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A re-execution does not publish a part of what it continues, until the other part is published."""
    shop.play(check_raises=True)
    broken = shop.execute(instance, job="one_promoted")
    shop.play()
    options = dg.ReexecutionOptions.from_failure(broken.run_id, instance)
    again = shop.execute(instance, options, job="one_promoted")
    assert "the run also writes shop/customers" in failure(again)
    assert shop.publish(instance, *PROMOTED).success
    assert ("main@2", "main@2") == (shop.tag(), shop.tag(CUSTOMERS))
    options = dg.ReexecutionOptions.from_failure(again.run_id, instance)
    assert shop.execute(instance, options, job="one_promoted").success


def test_the_status_of_the_repository_names_superseded_runs(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The branch of a run that failed its checks is superseded when a later run has published the same rows."""
    shop.play(orders=[-1])
    broken = shop.run(instance)
    shop.play()
    assert shop.run(instance).success
    newer = {"shop/customers": "main@2", "shop/orders": "main@2"}
    status = LanceRepository.open(shop.lance.root).status()
    assert {f"run/{broken.run_id}": newer} == status.superseded
    assert "superseded by shop/customers main@2, shop/orders main@2: discard it" in str(status)


def test_the_launchpad_has_one_line_for_each_setting_and_resource() -> None:
    """The help beside the config is one short line each: Dagster shows the docstrings of resources there in full."""
    settings = {name: field.description or "" for name, field in PublishConfig.model_fields.items()}
    assert {} == {name: text for name, text in settings.items() if not 10 < len(text) <= 110}
    resources = {one.__name__: one.__doc__ or "" for one in (LanceIOManager, LanceResource)}
    assert {} == {name: text for name, text in resources.items() if not 10 < len(text) <= 110}
