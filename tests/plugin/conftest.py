"""A folder of tables, and the shop on it, for each test."""

from pathlib import Path

import pytest

from lance_dagster import LanceResource
from tests.plugin.shop import Shop, build_shop


@pytest.fixture
def lake(tmp_path: Path) -> LanceResource:
    """The resource over an empty folder."""
    return LanceResource(root=str(tmp_path / "lake"))


@pytest.fixture
def shop(lake: LanceResource) -> Shop:
    """The shop, with nothing made yet."""
    return build_shop(lake)
