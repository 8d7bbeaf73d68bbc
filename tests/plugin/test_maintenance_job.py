# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceRepository, LanceResource, LanceTable, Tier, build_maintenance_job
from tests.plugin.shop import CUSTOMERS, ORDERS, Shop

NAME = "lance_maintenance"


def small_fragments(lake: LanceResource, key: dg.AssetKey = ORDERS, count: int = 5) -> LanceTable:
    """A table of several fragments of one row each."""
    table = LanceTable.create(lake.uri_of(key), pa.schema([("id", pa.int64())]))
    for number in range(count):
        table.append(pa.table({"id": [number]}))
    return table


def run(job: dg.JobDefinition, lake: LanceResource, instance: dg.DagsterInstance, **options: Any) -> Any:
    """Execute the job in this process."""
    return job.execute_in_process(instance=instance, resources={"lance": lake}, raise_on_error=False, **options)


def report(instance: dg.DagsterInstance, key: dg.AssetKey = ORDERS) -> Mapping[str, Any]:
    """The metadata of the newest observation of an asset."""
    (record,) = instance.fetch_observations(key, limit=1).records
    observed = record.asset_observation
    assert observed is not None
    return {name: value.value for name, value in observed.metadata.items()}


def test_report_of_each_table(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Small fragments become one, the rows stay, and the observation says so."""
    table = small_fragments(lake)
    result = run(build_maintenance_job([ORDERS]).job, lake, instance)
    assert result.success
    found = report(instance)
    assert (5, 1) == (found["lance/fragments_before"], found["lance/fragments_after"])
    assert 0 == found["lance/problems"]
    assert 0 == found["lance/versions_removed"]
    assert [0, 1, 2, 3, 4] == sorted(row["id"] for row in table.read().to_pylist())
    assert result.run_id == table.head().properties["dagster/run_id"]


def test_old_versions_are_collected(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A dry run reports what it would remove; a real one removes the versions."""
    table = small_fragments(lake)
    job = build_maintenance_job([ORDERS], compact=False, collect=timedelta(0)).job
    dry = {"ops": {f"{NAME}__shop__orders": {"config": {"dry_run": True}}}}
    assert run(job, lake, instance, run_config=dry).success
    would = report(instance)["lance/versions_would_remove"]
    assert would >= 4
    assert 6 == len(table.branches.version_numbers())
    assert run(job, lake, instance).success
    assert would == report(instance)["lance/versions_removed"]
    assert 6 - would == len(table.branches.version_numbers())


def test_stale_indices_are_refreshed(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Rows that were appended after the index was built are added to it."""
    table = small_fragments(lake)
    table.to_lance("main").create_scalar_index("id", "BTREE")
    table.append(pa.table({"id": [9]}))
    assert run(build_maintenance_job([ORDERS], compact=False).job, lake, instance).success
    assert 1 == report(instance)["lance/indices_refreshed"]
    assert [0] == [index.unindexed_rows for index in table.maintenance.indices()]


def test_data_files_of_old_partitions_are_moved(
    lake: LanceResource, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Each to the tier of its age, by the column of the partitions; a dry run only reports it."""
    days = [f"{datetime.now(UTC) - timedelta(days=age):%Y-%m-%d}" for age in (1, 100, 400)]
    table = LanceTable.create(lake.uri_of(ORDERS), pa.schema([("day", pa.string())]))
    for day in days:
        table.replace_where(f"day = '{day}'", pa.table({"day": [day]}))
    for name in ("warm", "cold"):
        table.maintenance.add_base(name, tmp_path / name)
    spec = dg.AssetSpec(ORDERS, metadata={"lance/partition_expr": "day"})
    tiers = [Tier(to="cold", older_than=timedelta(days=365)), Tier(to="warm", older_than=timedelta(days=90))]
    job = build_maintenance_job([spec], compact=False, tiers=tiers).job
    dry = {"ops": {f"{NAME}__shop__orders": {"config": {"dry_run": True}}}}
    assert run(job, lake, instance, run_config=dry).success
    assert 2 == report(instance)["lance/files_would_move"]
    assert run(job, lake, instance).success
    assert 2 == report(instance)["lance/files_moved"]
    assert report(instance)["lance/bytes_moved"] > 0
    assert (1, 1) == tuple(len(list((tmp_path / name).glob("*.lance"))) for name in ("warm", "cold"))
    assert set(days) == set(table.read()["day"].to_pylist())
    head = table.head()
    assert run(job, lake, instance).success
    assert (0, head) == (report(instance)["lance/files_moved"], table.head())


def test_a_tier_that_a_table_does_not_have_fails_its_step(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The error says what the table lacks."""
    small_fragments(lake)
    for tier, problem in (
        (Tier(to="cold", older_than=timedelta(0)), "no lance/partition_expr of one dimension"),
        (Tier(to="cold", older_than=timedelta(0), column="id"), "is int64, which has no age"),
    ):
        (failed,) = run(build_maintenance_job([ORDERS], tiers=[tier]).job, lake, instance).get_step_failure_events()
        assert problem in failed.step_failure_data.user_failure_data.description
    with pytest.raises(InvalidInputError):
        build_maintenance_job([ORDERS], tiers=["cold"])  # type: ignore[list-item]


def test_one_damaged_table_does_not_stop_the_others(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The run fails at its end and names the damage; the healthy table is compacted."""
    damaged, healthy = small_fragments(lake), small_fragments(lake, CUSTOMERS)
    next(Path(damaged.uri, "data").glob("*.lance")).unlink()
    result = run(build_maintenance_job([ORDERS, CUSTOMERS]).job, lake, instance)
    assert not result.success
    failed = {event.step_key: event.step_failure_data for event in result.get_step_failure_events()}
    assert {f"{NAME}__shop__orders"} == set(failed)
    assert "shop/orders is damaged" in failed[f"{NAME}__shop__orders"].user_failure_data.description
    assert report(instance)["lance/problems"] > 0
    assert "lance/fragments_after" not in report(instance)
    assert 1 == report(instance, CUSTOMERS)["lance/fragments_after"]
    assert 5 == healthy.count_rows()


def test_a_table_that_no_run_has_written_is_left_out(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The run succeeds without it; a table of the repository that is gone fails it."""
    small_fragments(lake)
    job = build_maintenance_job([ORDERS, "shop/missing"]).job
    done = run(job, lake, instance)
    assert done.success
    said = [
        entry.user_message for entry in instance.all_logs(done.run_id) if "nothing to maintain" in entry.user_message
    ]
    assert 1 == len(said)
    assert "shop/missing: nothing to maintain: no table shop/missing" in said[0]
    assert 1 == report(instance)["lance/fragments_after"]
    lost = LanceRepository.create(lake.root).create_table("shop/missing", pa.schema([("id", pa.int64())]))
    shutil.rmtree(lost.uri)
    (failed,) = run(job, lake, instance).get_step_failure_events()
    assert "which the repository has, is gone" in failed.step_failure_data.user_failure_data.description


@pytest.mark.parametrize(
    "keys,steps",
    [
        (["repository"], {"repository_23ee12cc"}),
        (["a/b", "a__b", "a/c"], {"a__b_39c70e34", "a__b_d26dae36", "a__c"}),
    ],
    ids=["repository", "alike"],
)
def test_names_of_steps_differ(keys: list[str], steps: set[str]) -> None:
    """Tables whose names are alike as names of steps, or like that of the repository's step, get a digest."""
    job = build_maintenance_job(keys).job
    assert {f"{NAME}__{step}" for step in {*steps, "repository"}} == {node.name for node in job.nodes}


def test_publication_beside_maintenance(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A run branch that was forked before `main` was compacted and cleaned up is published without a conflict.

    One of its checks is a plain function, which the publisher cannot evaluate again, and need not: no row changed.
    """
    for number in range(1, 5):
        shop.play(orders=[number], mode="append")
        assert shop.run(instance).success
    checks = dg.AssetSelection.checks_for_assets(ORDERS)
    shop.play(orders=[7], mode="append")
    written = shop.run(instance, selection=dg.AssetSelection.assets(ORDERS) | checks)
    assert written.success
    job = build_maintenance_job([ORDERS], collect=timedelta(0)).job
    assert run(job, shop.lance, instance).success
    assert 1 == report(instance)["lance/fragments_after"]
    assert shop.publish(instance, ref=f"run/{written.run_id}").success
    assert [1, 2, 3, 4, 7] == shop.ids("production")


def test_schedule_and_wrong_arguments() -> None:
    """The schedule runs the job; wrong tables fail when definitions load."""
    made = build_maintenance_job([ORDERS], name="weekly", schedule="0 3 * * 0", resource_key="archive")
    assert made.schedule is not None
    assert ("0 3 * * 0", "weekly") == (made.schedule.cron_schedule, made.schedule.job_name)
    assert build_maintenance_job([ORDERS]).schedule is None
    assert "archive" in made.job.required_resource_keys
    for tables in ([], [ORDERS, ORDERS]):
        with pytest.raises(InvalidInputError):
            build_maintenance_job(tables)


@pytest.mark.parametrize(
    "given,said",
    [
        ({"collect": 14}, "collect=14 is not a duration of zero or more; give a timedelta"),
        ({"collect": timedelta(days=-1)}, "is not a duration of zero or more"),
        ({"verify": "no"}, "verify has to be True or False, not 'no'"),
        ({"compact": 0}, "compact has to be True or False"),
        ({"indices": None}, "indices has to be True or False"),
    ],
)
def test_wrong_options(given: Any, said: str) -> None:
    """An option of a wrong type would fail in the run, or count as true; it is refused when definitions load."""
    with pytest.raises(InvalidInputError) as error:
        build_maintenance_job([ORDERS], **given)
    assert said in str(error.value)
