"""A lake that was moved as a folder publishes what its open branches have, once its tables are relocated."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceRepository
from lance_dagster.errors import BasePathRefusedError
from tests.table_factory import as_pylance

NAMES = ("shop/orders", "shop/lines")


@pytest.mark.parametrize("is_behind", [False, True], ids=["fast-forward", "merge"])
def test_an_open_branch_is_published_after_its_tables_are_relocated(tmp_path: Path, *, is_behind: bool) -> None:
    """Before that the publication is refused, and says what to do: no reader could read the version."""
    lake = LanceRepository.create(tmp_path / "lake")
    for name in NAMES:
        lake.create_table(name, pa.schema([("id", pa.int64())])).append(pa.table({"id": [1]}))
        lake.fork(name, "run/1").append(pa.table({"id": [2]}), branch="run/1")
        if is_behind:
            lake.table(name).append(pa.table({"id": [3]}))
    shutil.move(tmp_path / "lake", tmp_path / "moved")
    lake = LanceRepository.open(tmp_path / "moved")
    with pytest.raises(BasePathRefusedError, match="relocate it"):
        lake.publish("run/1", channel="production")
    assert ([1, 3] if is_behind else [1]) == lake.table(NAMES[0]).read()["id"].to_pylist()
    for name in NAMES:
        assert ["run/1"] == [branch.name for branch in lake.table(name).maintenance.relocate().branches]
    lake.publish("run/1", channel="production")
    for name in NAMES:
        expected = [1, 2, 3] if is_behind else [1, 2]
        assert expected == sorted(row["id"] for row in lake.at("production")[name].read().to_pylist())
        assert expected == sorted(row["id"] for row in as_pylance(lake.table(name)).to_table().to_pylist())
        assert lake.table(name).maintenance.verify().ok
