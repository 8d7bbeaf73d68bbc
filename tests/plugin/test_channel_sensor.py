"""A sensor over a repository reports the moves of its channel, from the log of the channel."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from benchmarks.measure import requests
from lance_dagster import LanceRepository, LanceResource, StoreError, build_ref_sensor
from tests.plugin.appending_location import Location
from tests.plugin.scripted_lake import ScriptedLake
from tests.plugin.ticks import Ticks
from tests.store.scripted import Request, obedient

READS = ("get", "get_with_etag", "list", "list_some", "folders")
NAMES = ("shop/orders", "shop/lines")


def repository_of(root: Path, *names: str) -> LanceRepository:
    """A repository with one row in each table, promoted."""
    repository = LanceRepository.create(root)
    for name in names or NAMES:
        repository.create_table(name, pa.schema({"id": pa.int64()}))
    promote(repository, 1, *(names or NAMES))
    return repository


def promote(repository: LanceRepository, number: int, *names: str) -> None:
    """Append a row to tables and promote them, outside of Dagster."""
    branch = f"run/{number}"
    for name in names or NAMES:
        repository.fork(name, branch).append(pa.table({"id": [number]}), branch=branch)
    repository.publish(branch, channel="production", message=f"day {number}")


def watching(root: Path, instance: dg.DagsterInstance, *names: str, **options: Any) -> Ticks:  # noqa: ANN401
    """A sensor that watches production."""
    sensor = build_ref_sensor("moves", names or NAMES, refs=["production"], **options)
    return Ticks(sensor, LanceResource(root=str(root)), instance)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder without tables."""
    return tmp_path / "lake"


def test_an_entry_names_all_tables_and_who_and_why(root: Path, instance: dg.DagsterInstance) -> None:
    """One promotion of two tables is one entry; a hold is named and materializes nothing."""
    repository = repository_of(root)
    ticks = watching(root, instance)
    assert [] == ticks.announced()
    promote(repository, 2)
    found = ticks.tick()
    head = repository.head("production")
    assert {("production/shop/lines", "3"), ("production/shop/orders", "3")} == {
        (event.asset_key.to_user_string(), event.metadata["lance/version"].value) for event in found.asset_events
    }
    for event in found.asset_events:
        said = {key: value.value for key, value in event.metadata.items()}
        assert ("production@2", head.id, "promote") == (
            said["lance/channel_entry"],
            said["lance/repository_commit"],
            said["lance/action"],
        )
        assert ("day 2", "shop/lines, shop/orders") == (said["lance/reason"], said["lance/tables"])
        assert event.description.startswith("production@2 promote by ")
        assert event.description == said["lance/event"]
    repository.channels.hold("production", reason="freeze", who="Ada")
    held = ticks.tick()
    assert [] == held.asset_events
    assert "production@3 hold by Ada: freeze (0 tables changed)" in str(held.skip_message)
    assert [] == ticks.announced()


def test_only_what_changed_is_reported(root: Path, instance: dg.DagsterInstance) -> None:
    """Each entry between two ticks is reported, with the tables that it changed and that are watched."""
    repository = repository_of(root)
    ticks, lines = watching(root, instance), watching(root, instance, "shop/lines")
    for one in (ticks, lines):
        assert [] == one.announced()
    promote(repository, 2, "shop/orders")
    promote(repository, 3, "shop/lines")
    repository.channels.rollback("production", reason="wrong", steps=2)
    expected = [("shop/orders", 3), ("shop/lines", 3), ("shop/lines", 2), ("shop/orders", 2)]
    assert [(f"production/{name}", number) for name, number in expected] == ticks.announced()
    assert [("production/shop/lines", 3), ("production/shop/lines", 2)] == lines.announced()


def test_an_unchanged_channel_costs_one_look(root: Path, instance: dg.DagsterInstance) -> None:
    """A tick takes one request for the marker of the repository, one listing and one read, however many tables."""
    names = [f"t{number}" for number in range(40)]
    repository_of(root, *names)
    ticks = watching(root, instance, *names)
    ticks.tick()
    with requests(READS) as made:
        assert [] == ticks.announced()
    assert 3 >= len(made)


def test_what_a_publisher_promoted_is_not_reported_twice(root: Path, instance: dg.DagsterInstance) -> None:
    """A publisher materializes the nodes of its own tables; the sensor reports other tables that a rollback moved."""
    both, orders = Location(root, instance=instance), Location(root, "orders", instance=instance)
    ticks = watching(root, instance)
    assert [] == ticks.announced()
    assert both.run(1).success
    assert both.run(2).success
    assert [] == ticks.announced()
    assert orders.act(ref="production~1", rollback="hold", reason="wrong").success
    assert [("production/shop/lines", 2)] == ticks.announced()


def test_a_root_that_becomes_a_repository(root: Path, instance: dg.DagsterInstance) -> None:
    """Tags are watched before there is a repository; the adoption of their versions is not reported."""
    Location(root, instance=instance).publish_by_tags(1)
    ticks = watching(root, instance)
    assert [] == ticks.announced()
    assert Location(root, instance=instance).run(2).success
    assert [] == ticks.announced()
    repository = LanceRepository.open(root)
    repository.channels.rollback("production", reason="by hand")
    assert [("production/shop/lines", 2), ("production/shop/orders", 2)] == ticks.announced()


def test_one_run_for_an_entry(root: Path, instance: dg.DagsterInstance) -> None:
    """With a job, the newest entry requests one run for all tables, whose key prevents a second run."""
    repository = repository_of(root)

    @dg.job
    def report() -> None:
        """Do nothing."""

    ticks = watching(root, instance, job=report)
    ticks.tick()
    promote(repository, 2)
    (request,) = ticks.tick().run_requests
    commit = repository.head("production").id
    assert f"lance:production@2:{commit[:12]}" == request.run_key
    assert ("production@2", commit) == (request.tags["lance/ref"], request.tags["lance/repository_commit"])


def test_a_publication_requests_a_run(root: Path, instance: dg.DagsterInstance) -> None:
    """The publisher's move starts the job once, though the publisher reports it; one of other tables does not."""

    @dg.job
    def report() -> None:
        """Do nothing."""

    both, other = Location(root, instance=instance), Location(root, "notes", instance=instance)
    ticks, silent = watching(root, instance, job=report), watching(root, instance)
    for one in (ticks, silent):
        one.tick()
    assert both.run(1).success
    found = ticks.tick()
    assert ([], ["production@1"]) == (found.asset_events, [one.tags["lance/ref"] for one in found.run_requests])
    said = str(silent.tick().skip_message)
    assert "nothing to report: the publisher reported shop/lines, shop/orders itself; production@1 promote" in said
    assert other.run(2).success
    assert [] == ticks.tick().run_requests


@pytest.mark.parametrize(
    "channels",
    [
        {"production": [99, "0" * 64]},
        {"production": [1, "not a commit"]},
        {"production": "x"},
        [1],
        {"production": [-1]},
    ],
)
def test_a_hostile_cursor_stops_nothing(root: Path, instance: dg.DagsterInstance, channels: object) -> None:
    """Later promotions are reported after a cursor that names a missing entry or commit, or that is unreadable."""
    repository = repository_of(root)
    ticks = watching(root, instance)
    ticks.cursor = json.dumps({"format": 2, "next": 0, "all": False, "seen": {}, "channels": channels})
    ticks.tick()
    promote(repository, 2)
    assert [("production/shop/lines", 3), ("production/shop/orders", 3)] == ticks.announced()


def test_an_old_cursor_goes_on(root: Path, instance: dg.DagsterInstance) -> None:
    """A cursor from before channels existed knows the tables, so the moves of the channel are reported."""
    repository_of(root)
    ticks = watching(root, instance)
    ticks.cursor = json.dumps({"format": 2, "next": 0, "all": False, "seen": {"shop/orders": {}, "shop/lines": {}}})
    assert [("production/shop/lines", 2), ("production/shop/orders", 2)] == ticks.announced()
    assert [] == ticks.announced()


def test_a_channel_that_is_added_to_a_sensor_begins_now(root: Path, instance: dg.DagsterInstance) -> None:
    """Its past is not reported when a sensor that watched main gets it; that of a channel watched before it is."""
    early = watching(root, instance)
    assert [] == early.announced()
    repository = repository_of(root)
    promote(repository, 2)
    ticks = Ticks(build_ref_sensor("moves", NAMES), LanceResource(root=str(root)), instance)
    assert [] == ticks.announced()
    ticks.sensor = build_ref_sensor("moves", NAMES, refs=["main", "production"])
    assert [] == ticks.announced()
    promote(repository, 3, "shop/lines")
    assert {("main/shop/lines", 4), ("production/shop/lines", 4)} == set(ticks.announced())
    assert 5 == len(early.announced())


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_channel_that_is_created_again_begins_there(
    root: Path, instance: dg.DagsterInstance, *, is_seen: bool
) -> None:
    """Its log goes on after the deletion, so what was promoted before is not reported again."""
    repository = repository_of(root)
    promote(repository, 2)
    ticks = watching(root, instance)
    if is_seen:
        assert [] == ticks.announced()
    repository.channels.delete("production", reason="moved")
    assert [] == ticks.announced()
    assert [] == ticks.announced()
    repository.channels.create("production", reason="back")
    promote(repository, 3, "shop/lines")
    assert [("production/shop/lines", 4)] == ticks.announced()


def test_what_was_promoted_before_a_channel_was_deleted_is_reported(root: Path, instance: dg.DagsterInstance) -> None:
    """The log outlives the channel, also one that was created and deleted between two ticks."""
    repository = repository_of(root)
    ticks = watching(root, instance)
    assert [] == ticks.announced()
    promote(repository, 2, "shop/orders")
    repository.channels.delete("production", reason="moved")
    found = ticks.tick()
    assert ["production/shop/orders"] == [event.asset_key.to_user_string() for event in found.asset_events]
    assert [] == ticks.announced()
    repository.channels.create("production", reason="back")
    promote(repository, 3, "shop/lines")
    repository.channels.delete("production", reason="moved again")
    assert [("production/shop/lines", 3)] == ticks.announced()
    assert [] == ticks.announced()


def test_an_error_in_the_middle_loses_no_entry(root: Path, instance: dg.DagsterInstance) -> None:
    """What was read before a fault of the storage is reported at once, and the rest by the next tick."""
    repository = repository_of(root)
    ticks = Ticks(build_ref_sensor("moves", NAMES, refs=["production"]), ScriptedLake(root=str(root)), instance)
    ScriptedLake.scripts.append(obedient)
    assert [] == ticks.announced()
    promote(repository, 2)
    promote(repository, 3)
    third = repository.head("production").id

    def fails(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if third in request.key:
            raise StoreError("503 slow down")
        return request.send()

    ScriptedLake.scripts.append(fails)
    ticks.lance = ScriptedLake(root=str(root))
    assert [("production/shop/lines", 3), ("production/shop/orders", 3)] == ticks.announced()
    ScriptedLake.scripts.append(obedient)
    ticks.lance = ScriptedLake(root=str(root))
    assert [("production/shop/lines", 4), ("production/shop/orders", 4)] == ticks.announced()
