"""Fixtures that give each test a folder of tables, and the shop or the depot over it."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lance_dagster import LanceResource
from tests.plugin.depot import Depot
from tests.plugin.shop import Shop, shop_at


@pytest.fixture
def lake(tmp_path: Path) -> LanceResource:
    """A resource whose root is an empty folder."""
    return LanceResource(root=str(tmp_path / "lake"))


@pytest.fixture
def shop(lake: LanceResource) -> Shop:
    """The shop, in which nothing is materialized yet."""
    return shop_at(lake.root)


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance on disk, for runs in threads and other processes; a run takes three times as long with it."""
    (tmp_path / "dagster").mkdir()
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=quiet) as stored:
        yield stored


@pytest.fixture
def depot(tmp_path: Path, instance: dg.DagsterInstance) -> Depot:
    """A depot without tables."""
    return Depot(str(tmp_path / "lake"), instance)


@pytest.fixture
def depot_on_disk(tmp_path: Path, stored_instance: dg.DagsterInstance) -> Depot:
    """A depot without tables, two runs of which can be executed at the same time."""
    return Depot(str(tmp_path / "lake"), stored_instance)
