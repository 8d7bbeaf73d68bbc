"""A branch deployment runs the same definitions as production, on forks of its tables."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceResource, LanceTable, TableNotFoundError, build_discovery_sensor
from lance_dagster.plugin.environment import environment_folder
from tests.plugin.shop import ORDERS, PRODUCTION_ORDERS, Shop, shop_at
from tests.plugin.ticks import Ticks


def of_branch(lake: LanceResource) -> Shop:
    """The shop in a branch deployment."""
    return shop_at(lake.root, environment="feature/prices")


def contents(folder: str) -> dict[str, int]:
    """Every file of the shared tables, with its modification time."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and ".environments" not in path.parts]
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_story_of_a_branch_deployment(lake: LanceResource, shop: Shop, instance: dg.DagsterInstance) -> None:
    """A branch deployment reads production, writes, publishes and rolls back, and production does not change."""
    assert shop.run(instance).success
    branch, own = of_branch(lake), dg.DagsterInstance.ephemeral()
    assert [1, 2, 3] == branch.ids("production")
    assert "main@2" == branch.tag()
    before = contents(lake.root)

    branch.play(orders=[7, 8], mode="append")
    assert branch.run(own).success
    assert [1, 2, 3, 7, 8] == branch.ids("production") == branch.ids("main")
    assert branch.run(own, selection=[PRODUCTION_ORDERS]).success
    rolled_back = branch.publish(own, ref="main@2", reason="wrong prices", ignore_failed_checks=True)
    assert rolled_back.success
    assert [1, 2, 3] == branch.ids("production") == branch.ids("main")

    branch.play(orders=[-1])
    assert not branch.run(own).success
    assert [1, 2, 3] == branch.ids("production")
    assert before == {path: at for path, at in contents(lake.root).items() if path in before}
    # These references keep the files of the fork.
    added = sorted(set(contents(lake.root)) - set(before))
    assert [] == [path for path in added if "_refs/" not in path]
    assert {"production"} == {
        name for name in shop.table().tags.list() if not name.startswith(("clone-", "repository-"))
    }
    assert ("main@2", [1, 2, 3]) == (shop.tag(), shop.ids("production"))


def test_production_goes_on(lake: LanceResource, shop: Shop, instance: dg.DagsterInstance) -> None:
    """Later publications of production do not reach the environment, and garbage collection keeps its files."""
    assert shop.run(instance).success
    branch = of_branch(lake)
    assert [1, 2, 3] == branch.ids("main")
    shop.play(orders=[4], mode="overwrite")
    assert shop.run(instance).success
    shop.table().maintenance.collect_garbage(timedelta(0), dry_run=False)
    assert "main@2" == str(shop.table().at("main@2"))
    assert [4] == shop.ids("production")
    assert [1, 2, 3] == branch.ids("production")


def test_fork_at_a_tag(lake: LanceResource, shop: Shop, instance: dg.DagsterInstance) -> None:
    """An environment may fork the version that a tag names instead of the head of main."""
    assert shop.run(instance).success
    shop.table().append(shop.table().read())
    assert [1, 1, 2, 2, 3, 3] == of_branch(lake).ids("main")
    assert of_branch(lake).tag() is None
    other = shop_at(lake.root, environment="other", environment_from="production")
    assert [1, 2, 3] == other.ids("main") == other.ids("production")


def test_table_that_only_the_environment_has(lake: LanceResource, shop: Shop, instance: dg.DagsterInstance) -> None:
    """A new asset of the branch makes its table in the environment."""
    branch = of_branch(lake)
    with pytest.raises(TableNotFoundError):
        branch.table()
    assert branch.run(instance).success
    assert [1, 2, 3] == branch.ids("production")
    assert not LanceTable.exists(shop.lance.uri_of(ORDERS))


def test_many_processes_fork_one_table(lake: LanceResource, shop: Shop, instance: dg.DagsterInstance) -> None:
    """Processes that fork a table at the same time get the same fork."""
    assert shop.run(instance).success
    branch = of_branch(lake)
    with ThreadPoolExecutor(8) as pool:
        heads = list(pool.map(lambda _: branch.table().head().transaction, range(8)))
    assert 1 == len(set(heads))
    assert "main@2" == branch.tag()


def test_repository_of_an_environment(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """An environment has a repository of its own, with its own commits."""
    shared = shop_at(lake.root)
    assert shared.run(instance).success
    repository = shared.lance.open_repository()
    assert repository is not None
    before = repository.channels.get("production").commit
    branch, own = shop_at(lake.root, environment="pr-1"), dg.DagsterInstance.ephemeral()
    branch.play(orders=[7, 8])
    assert branch.run(own).success
    assert [7, 8] == branch.ids("production")
    assert before == repository.channels.get("production").commit
    assert [1, 2, 3] == shared.ids("production")


def test_names_of_environments() -> None:
    """Git branches with different names have different folders, and no name leads out of the root."""
    names = ["feature/x", "feature-x", "feature.x", "../..", "ä", "pr-1"]
    folders = {environment_folder(name) for name in names}
    assert len(names) == len(folders)
    assert all(folder.count("/") == 1 and ".." not in folder for folder in folders)


def test_new_tables_of_an_environment_are_discovered(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The discovery sensor looks below the folder of its environment, and not at the shared tables."""
    schema = pa.schema({"id": pa.int64()})
    LanceTable.create(lake.uri_of("shared"), schema)
    forked = LanceResource(root=lake.root, environment="pr-17")
    ticks = Ticks(build_discovery_sensor("new", from_start=True), forked, instance)
    assert [] == ticks.announced()
    LanceTable.create(forked.uri_of("shop/drafts"), schema)
    assert [("main/shop/drafts", 1)] == ticks.announced()
