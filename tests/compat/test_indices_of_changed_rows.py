"""Indices made by pylance give right answers after the package updated, upserted and deleted rows."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from tests.table_factory import as_pylance, context_of

pytestmark = pytest.mark.slow

SIZE = 300
WORDS = ["red", "green", "blue", "yellow"]
COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "value": pa.int64(), "text": pa.string(), "tag": pa.string()}
SCHEMA = pa.schema({**COLUMNS, "vector": pa.list_(pa.float32(), 4)})
Change = Callable[[LanceTable], object]


def rows(*ids: int, word: str | None = None) -> pa.Table:
    """Rows whose columns are derived from their number, or marked by a word."""
    return pa.Table.from_pylist(
        [
            {
                "id": number,
                "value": number * 3 % 101 if word is None else 1000 + number,
                "text": f"{word or WORDS[number % 4]} {WORDS[number // 4 % 4]} thing",
                "tag": word or WORDS[number % 3],
                "vector": np.random.default_rng([number, len(word or "")]).random(4).tolist(),
            }
            for number in ids
        ],
        schema=SCHEMA,
    )


@pytest.fixture(scope="module", params=[True, False], ids=["stable", "addresses"])
def template(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Three fragments, the last of which no index covers, with an index of every kind."""
    uri = str(tmp_path_factory.mktemp("indexed") / "template")
    dataset = lance.write_dataset(
        rows(*range(SIZE)), uri, max_rows_per_file=150, enable_stable_row_ids=bool(request.param)
    )
    dataset.create_scalar_index("value", "BTREE")
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("tag", "BITMAP")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_index("vector", "IVF_FLAT", num_partitions=2)
    dataset.insert(rows(*range(SIZE, SIZE + 20)))
    return Path(uri)


@pytest.fixture
def table(template: Path, tmp_path: Path) -> LanceTable:
    """A copy for each test, because pylance caches indices by path."""
    shutil.copytree(template, tmp_path / "indexed")
    return LanceTable.open(tmp_path / "indexed")


def assert_exact(dataset: lance.LanceDataset) -> None:
    """The results by index equal those of a full scan."""
    dataset.validate()
    everything = dataset.to_table().to_pylist()
    assert len(everything) == len({row["id"] for row in everything})
    for condition in ("value = 30", "value >= 40 AND value < 60", "value > 900", "id < 40", "id IN (5, 155, 305, 999)"):
        assert _ids(dataset.scanner(filter=condition, use_scalar_index=False)) == _ids(
            dataset.scanner(filter=condition)
        )
    for tag in (*WORDS, "changed", "new"):
        assert sorted(row["id"] for row in everything if row["tag"] == tag) == _ids(
            dataset.scanner(filter=f"tag = '{tag}'")
        )
    for word in (*WORDS, "changed", "new"):
        found = _ids(dataset.scanner(full_text_query=word, limit=SIZE * 2))
        assert sorted(row["id"] for row in everything if word in (row["text"] or "").split()) == found
    for query in ([0.5] * 4, [0.1, 0.9, 0.1, 0.9], [0.0] * 4):
        nearest = {"column": "vector", "q": query, "k": 7, "nprobes": 2}
        exact = dataset.to_table(nearest={**nearest, "use_index": False})
        assert exact["id"].to_pylist() == dataset.to_table(nearest=nearest)["id"].to_pylist()


def _ids(scanner: lance.LanceScanner) -> list[int]:
    found: list[Any] = scanner.to_table()["id"].to_pylist()
    return sorted(found)


CHANGES: dict[str, Change] = {
    "update of an indexed column": lambda table: table.update({"value": "value + 950"}, where="id % 7 = 0"),
    "update of text": lambda table: table.update({"text": "'changed thing'", "tag": "'changed'"}, where="id % 5 = 1"),
    "update of vectors": lambda table: table.update({"vector": "[0.01, 0.0, 0.02, 0.0]"}, where="id IN (3, 160, 310)"),
    "update of everything": lambda table: table.update({"value": "100 - value"}),
    "update of a fragment": lambda table: table.update({"tag": "'changed'"}, where="id < 150"),
    "update twice": lambda table: [
        table.update({"value": f"value + {number}", "tag": "'changed'"}, where="id % 3 = 0") for number in (500, 7)
    ],
    "update there and back": lambda table: [
        table.update({"value": f"value {sign} 500"}, where="id % 3 = 0") for sign in "+-"
    ],
    "upsert": lambda table: table.upsert(rows(5, 155, 305, 999, word="changed"), on=["id"]),
    "upsert of a column": lambda table: table.upsert(rows(5, 155, 998, word="new").select(["id", "tag"]), on=["id"]),
    "upsert and delete": lambda table: table.upsert(rows(*range(0, 320, 2)), on=["id"], when_missing="delete"),
    "delete": lambda table: table.delete("id % 4 = 1"),
    "delete of a fragment": lambda table: table.delete("id >= 150 AND id < 300"),
    "delete after update": lambda table: [table.update({"tag": "'new'"}, where="id < 50"), table.delete("id % 2 = 0")],
}


@pytest.mark.parametrize("change", CHANGES)
def test_indices_are_exact_after_a_change(table: LanceTable, change: str) -> None:
    """Indices are exact after the change, after their update, after a compaction, and after a second change."""
    CHANGES[change](table)
    if change not in ("update of everything", "upsert and delete"):
        # After these, no fragment is left that an index covers.
        assert "ScalarIndexQuery" in as_pylance(table).scanner(filter="value = 30").explain_plan()
    assert_exact(as_pylance(table))
    as_pylance(table).optimize.optimize_indices()
    assert_exact(as_pylance(table))
    CHANGES["upsert"](table)
    assert_exact(as_pylance(table))
    as_pylance(table).optimize.compact_files()
    assert_exact(as_pylance(table))
    CHANGES[change](table)
    assert_exact(as_pylance(table))


@pytest.mark.parametrize("change", ["update of an indexed column", "upsert", "delete"])
def test_indices_are_exact_after_a_compaction_of_the_package(table: LanceTable, change: str) -> None:
    """The compaction may come before or after the change."""
    CHANGES[change](table)
    table.maintenance.compact()
    assert_exact(as_pylance(table))
    CHANGES[change](table)
    assert_exact(as_pylance(table))


@pytest.mark.parametrize("change", CHANGES)
def test_a_branch_uses_the_indices_it_inherited(table: LanceTable, change: str) -> None:
    """The rows of main stay as they were."""
    table.branches.create("run")
    before = as_pylance(table).to_table().to_pylist()
    dataset = as_pylance(table, "run")
    assert_exact(dataset)
    for verb in ("update of text", "upsert"):
        CHANGES[verb](_On(table, "run"))
    CHANGES[change](_On(table, "run"))
    assert_exact(as_pylance(table, "run"))
    assert before == as_pylance(table).to_table().to_pylist()


class _On(LanceTable):
    """A table whose changes go to a branch."""

    def __init__(self, table: LanceTable, branch: str) -> None:
        super().__init__(context_of(table))
        self._branch = branch

    def delete(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes
        return super().delete(*args, **options, branch=self._branch)

    def update(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes
        return super().update(*args, **options, branch=self._branch)

    def upsert(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes
        return super().upsert(*args, **options, branch=self._branch)
