from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable, RowCount, TableCheck, Unique, lance_assets

ORDERS = dg.AssetKey(["shop", "orders"])
CHECKS: Mapping[str, Sequence[TableCheck]] = {"shop/orders": [Unique("id")], "customers": [RowCount(minimum=1)]}


def orders_of(ids: list[int]) -> dg.AssetsDefinition:
    """The asset of orders, which returns these ids."""

    @dg.asset(key=ORDERS)
    def orders() -> pa.Table:
        return pa.table({"id": ids})

    return orders


@dg.asset
def customers() -> pa.Table:
    """Customers, always the same."""
    return pa.table({"id": [1]})


def load(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Run the job that writes, checks and publishes."""
    job = defs.resolve_job_def("load_and_publish")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_one_call_writes_checks_and_publishes(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Rows that pass reach production and its reader; rows that do not pass stay on their branch."""
    root = str(tmp_path / "lake")

    @dg.asset(ins={"orders": dg.AssetIn(["production", "shop", "orders"])})
    def report(orders: pa.Table) -> dg.MaterializeResult:  # type: ignore[type-arg]
        return dg.MaterializeResult(metadata={"rows": orders.num_rows})

    good = lance_assets([orders_of([1, 2]), customers], root=root, checks=CHECKS)
    assert load(good, instance).success
    table = LanceTable.open(f"{root}/shop/orders.lance")
    assert [1, 2] == table.read("production")["id"].to_pylist()
    assert "lance" in good.resolve_assets_def(ORDERS).specs_by_key[ORDERS].kinds
    bad = lance_assets([orders_of([3, 3]), customers], root=root, checks=CHECKS)
    refused = load(bad, instance)
    assert not refused.success
    assert [1, 2] == table.read("production")["id"].to_pylist()
    assert [3, 3] == table.read(f"run/{refused.run_id}")["id"].to_pylist()
    merged = dg.Definitions.merge(good, dg.Definitions(assets=[report]))
    result = merged.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=[report.key]
    )
    (made,) = result.asset_materializations_for_node("report")
    assert 2 == made.metadata["rows"].value


def test_publish_job_rolls_back(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The second job, which takes the configuration of the publisher, rolls back."""
    root = str(tmp_path / "lake")
    for ids in ([1], [1, 2]):
        defs = lance_assets([orders_of(ids), customers], root=root, checks=CHECKS, tag="gold")
        assert load(defs, instance).success
    job = defs.resolve_job_def("publish")
    config = {"ops": {"publish_gold": {"config": {"ref": "main@2", "reason": "too many"}}}}
    assert job.execute_in_process(instance=instance, run_config=config).success
    assert [1] == LanceTable.open(f"{root}/shop/orders.lance").read("gold")["id"].to_pylist()


def test_two_roots_in_one_code_location(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Each call makes its own resources, jobs and sensor; giving the same root twice is refused."""
    eu = lance_assets([orders_of([1]), customers], root=str(tmp_path / "eu"), checks=CHECKS)

    @dg.asset(key=["us", "orders"], io_manager_key="us_io")
    def us_orders() -> pa.Table:
        return pa.table({"id": [7]})

    us = lance_assets(
        [us_orders],
        root=str(tmp_path / "us"),
        checks={"us/orders": [Unique("id")]},
        tag="us_live",
        name="us",
        resource_key="us_lance",
        io_manager_key="us_io",
    )
    both = dg.Definitions.merge(eu, us)
    assert load(both, instance).success
    assert both.resolve_job_def("us_load_and_publish").execute_in_process(instance=instance).success
    assert [1] == LanceTable.open(str(tmp_path / "eu/shop/orders.lance")).read("production")["id"].to_pylist()
    assert [7] == LanceTable.open(str(tmp_path / "us/us/orders.lance")).read("us_live")["id"].to_pylist()
    assert {"tag_moves", "us_tag_moves"} == {sensor.name for sensor in both.sensors or ()}


@pytest.mark.parametrize("metadata", [{}, {"lance/write_mode": "append"}])
def test_an_asset_of_another_io_manager_key_is_named_with_both_keys(metadata: Mapping[str, str]) -> None:
    """Each call has its own IO manager, whose key its assets need; an asset that stores its rows itself does not."""

    def rows() -> pa.Table:
        return pa.table({"id": [7]})

    def call(*assets: dg.AssetsDefinition) -> dg.Definitions:
        keys = {"name": "us", "resource_key": "us_lance", "io_manager_key": "us_io"}
        return lance_assets(list(assets), root="/us", unchecked=True, **keys)  # type: ignore[arg-type]  # all texts

    @dg.asset(key=["us", "notes"], required_resource_keys={"us_lance"})
    def notes() -> None:
        """Stores its rows itself."""

    key = dg.AssetKey(["us", "orders"])
    wrong = dg.asset(key=key, metadata=metadata)(rows)
    with pytest.raises(InvalidInputError, match=r"us/orders .*give the asset io_manager_key='us_io'"):
        call(notes, wrong)
    call(notes, dg.asset(key=key, metadata=metadata, io_manager_key="us_io")(rows))


def test_schedules_of_the_usual_case() -> None:
    """A schedule is a cron expression or the end of each partition; partitions cannot have a cron expression."""
    day = dg.DailyPartitionsDefinition("2026-01-01")

    @dg.asset(partitions_def=day, metadata={"lance/partition_expr": "day"})
    def days() -> pa.Table:
        return pa.table({"day": [1]})

    hourly = lance_assets([customers], root="/lake", checks={"customers": [RowCount()]}, schedule="5 * * * *")
    assert "5 * * * *" == hourly.resolve_schedule_def("load_and_publish_schedule").cron_schedule
    daily = lance_assets([days, customers], root="/lake", unchecked=True, schedule="partitions")
    assert "0 0 * * *" == daily.resolve_schedule_def("load_and_publish_schedule").cron_schedule
    with pytest.raises(InvalidInputError):
        lance_assets([days], root="/lake", unchecked=True, schedule="5 * * * *")
    with pytest.raises(InvalidInputError):
        lance_assets([customers], root="/lake", unchecked=True, schedule="partitions")


def test_mistakes_in_the_one_call_are_refused() -> None:
    """A check of an unknown asset, a table without a check, an option that does not exist."""
    with pytest.raises(InvalidInputError, match="not one of the assets"):
        lance_assets([customers], root="/lake", checks={"customer": [RowCount()]})
    with pytest.raises(InvalidInputError):
        lance_assets([customers], root="/lake")
    with pytest.raises(InvalidInputError):
        lance_assets([customers], root="/lake", unchecked=True, scheduel="@daily")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "given,says",
    [
        ({"assets": customers}, "assets have to be a list of assets such as [orders], not one asset"),
        ({"assets": "customers"}, "assets have to be a list of assets such as [orders], not 'customers'"),
        ({"assets": ["customers"]}, "assets: 'customers' is not an asset; give the functions"),
        (
            {"checks": {"customers": RowCount()}},
            "checks of 'customers' have to be a list of checks such as {'shop/orders': [Unique('id')]}, not",
        ),
        (
            {"checks": [RowCount()]},
            "checks have to be a mapping such as {'shop/orders': [Unique('id')]}, not [RowCount",
        ),
        ({"checks": {"customers": ["unique"]}}, "checks: 'unique' for 'customers' is not a check; give one such as"),
        ({"maintenance": "sundays"}, "maintenance: 'sundays' is not a cron expression; give one such as '0 3 * * 0'"),
        ({"schedule": "daily"}, "schedule: 'daily' is not a cron expression; give one such as '0 6 * * *' or '@daily'"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(given: dict[str, Any], says: str) -> None:
    """The error names the argument, what it was and what is wanted."""
    arguments: dict[str, Any] = {"assets": [customers], "root": "/lake", "unchecked": True, **given}
    with pytest.raises(InvalidInputError) as caught:
        lance_assets(arguments.pop("assets"), **arguments)
    assert str(caught.value).startswith(says)


def test_several_kinds_of_partitions_in_one_call_are_refused() -> None:
    """Several kinds of partitions are refused at once with advice; Dagster would fail later and without advice."""

    def named(name: str, keys: list[str]) -> dg.AssetsDefinition:
        @dg.asset(
            name=name, partitions_def=dg.StaticPartitionsDefinition(keys), metadata={"lance/partition_expr": "id"}
        )
        def made() -> pa.Table:
            return pa.table({"id": keys})

        return made

    lance_assets([customers, named("a", ["1"]), named("b", ["1"])], root="/lake", unchecked=True)
    with pytest.raises(InvalidInputError):
        lance_assets([customers, named("a", ["1"]), named("c", ["2"])], root="/lake", unchecked=True)


def test_root_of_the_environment_is_read_in_the_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable of the root is read in the run; definitions load without it."""
    monkeypatch.delenv("LAKE", raising=False)
    defs = lance_assets([customers], root=dg.EnvVar("LAKE"), checks={"customers": [RowCount()]})
    monkeypatch.setenv("LAKE", str(tmp_path))
    assert load(defs, instance).success
    assert 1 == LanceTable.open(str(tmp_path / "customers.lance")).count_rows("production")
