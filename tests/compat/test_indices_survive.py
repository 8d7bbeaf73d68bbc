"""A scalar, two vector and a full-text index made by pylance answer exactly after each operation of the package.

This holds on `main`, on a branch that inherited the indices, and after a merge, before and after pylance updates the
indices. Each answer is compared with one that uses no index. Rows that an index does not cover are found too.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, Transaction
from lance_dagster.format.transaction import Restore
from tests.soak import thinned
from tests.table_factory import as_pylance

pytestmark = pytest.mark.slow

WORDS = ["red", "green", "blue", "yellow", "black"]
_COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "value": pa.int64(),
    "text": pa.string(),
    "near": pa.list_(pa.float32(), 4),
    "coded": pa.list_(pa.float32(), 4),
    "note": pa.string(),
    "spare": pa.int32(),
}
SCHEMA = pa.schema(_COLUMNS)
INDEXED = ("value_idx", "text_idx", "near_idx", "coded_idx")
Change = Callable[[LanceTable, str], object]


def rows(numbers: range, salt: int = 0) -> pa.Table:
    """Rows whose values are derived from their numbers."""
    vectors = np.random.default_rng([numbers.start, salt]).random((len(numbers), 4)).astype("float32")
    return pa.table(
        {
            "id": numbers,
            "value": [number * 7 % 101 + salt for number in numbers],
            "text": [f"{WORDS[(number + salt) % 5]} {WORDS[number // 5 % 5]} thing" for number in numbers],
            "near": list(vectors),
            "coded": list(vectors),
            "note": [f"note {number}" for number in numbers],
            "spare": [number % 9 for number in numbers],
        },
        schema=SCHEMA,
    )


@pytest.fixture(scope="module", params=[True, False], ids=["stable", "addresses"])
def template(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Three fragments that the indices cover, with deletions, and one that they do not cover."""
    folder = tmp_path_factory.mktemp("indexed") / "template"
    dataset = lance.write_dataset(
        rows(range(270)), str(folder), max_rows_per_file=90, enable_stable_row_ids=bool(request.param)
    )
    dataset.create_scalar_index("value", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_index("near", "IVF_FLAT", num_partitions=2)
    dataset.create_index("coded", "IVF_PQ", num_partitions=2, num_sub_vectors=2)
    dataset.insert(rows(range(270, 290)))
    dataset.delete("id % 20 = 3")
    return folder


@pytest.fixture
def table(template: Path, tmp_path: Path) -> LanceTable:
    """A copy for each test, because pylance caches indices by path."""
    shutil.copytree(template, tmp_path / "table")
    return LanceTable.open(tmp_path / "table")


def _restore(table: LanceTable, branch: str) -> None:
    number = table.head(branch).number
    table.append(rows(range(300, 320)), branch=branch)
    operation = Restore(version=number)
    uuid = "00000000-0000-4000-8000-000000000001"
    table.commit(Transaction(read_version=number + 1, uuid=uuid, operation=operation), branch=branch)


def _twice(table: LanceTable, branch: str) -> None:
    table.update({"value": "value + 1000"}, where="id < 40", branch=branch)
    table.upsert(rows(range(20, 60), salt=5), on=["id"], branch=branch)
    table.delete("id BETWEEN 30 AND 50", branch=branch)
    table.maintenance.compact(branch=branch)


# These only add and delete rows, so a merge carries them over.
MERGEABLE: dict[str, Change] = {
    "append": lambda t, b: t.append(rows(range(300, 340), salt=3), branch=b),
    "delete rows": lambda t, b: t.delete("value % 3 = 0", branch=b),
    "delete a fragment": lambda t, b: t.delete("id < 90", branch=b),
    "replace": lambda t, b: t.replace_where(
        "id < 60 OR id BETWEEN 300 AND 339", rows(range(300, 340), salt=3), branch=b
    ),
    "set config": lambda t, b: t.config.set({"a": "b"}, branch=b),
    "set metadata": lambda t, b: t.config.set_table_metadata({"a": "b"}, branch=b),
}
CHANGES: dict[str, Change] = {
    **MERGEABLE,
    "nothing": lambda _table, _branch: None,
    "delete everything": lambda t, b: t.delete("true", branch=b),
    "update what is indexed": lambda t, b: t.update(
        {"value": "value + 50", "text": "'red ' || note"}, where="id % 5 = 2", branch=b
    ),
    "update another column": lambda t, b: t.update({"spare": "spare + 1"}, where="id % 5 = 2", branch=b),
    "update everything": lambda t, b: t.update({"value": "id"}, branch=b),
    "upsert": lambda t, b: t.upsert(rows(range(250, 320), salt=9), on=["id"], branch=b),
    "add nulls": lambda t, b: t.columns.add(pa.field("more", pa.int8()), branch=b),
    "add computed": lambda t, b: t.columns.add({"more": "value + 1"}, branch=b),
    "drop": lambda t, b: t.columns.drop(["spare"], branch=b),
    "rename another column": lambda t, b: t.columns.rename("spare", "other", branch=b),
    "cast another column": lambda t, b: t.columns.cast("spare", pa.int64(), branch=b),
    "reorder": lambda t, b: t.columns.reorder(list(reversed(SCHEMA.names)), branch=b),
    "describe a column": lambda t, b: t.columns.set_metadata("value", {"unit": "m"}, branch=b),
    "compact": lambda t, b: t.maintenance.compact(branch=b),
    "restore": _restore,
    "a lot": _twice,
}


def exact(table: LanceTable, branch: str = "main") -> None:
    """Every index exists, is used unless it covers no row any more, and finds exactly the right rows."""
    dataset = as_pylance(table, branch)
    known = {status.name for status in table.maintenance.indices(branch) if status.indexed_rows}
    assert set(INDEXED) == {index.name for index in dataset.describe_indices()}
    for condition in ("value = 30", "value >= 20 AND value < 45", "value > 1000", "value IN (1, 51, 101)"):
        plan = dataset.scanner(filter=condition).explain_plan()
        assert ("value_idx" in known) == ("ScalarIndexQuery" in plan)
        without = dataset.scanner(columns=["id"], filter=condition, use_scalar_index=False).to_table()
        assert ids(without) == ids(dataset.to_table(columns=["id"], filter=condition))
    texts = dataset.to_table(columns=["id", "text"]).to_pylist()
    for word in ("red", "yellow", "note"):
        found = dataset.to_table(columns=["id"], full_text_query={"query": word, "columns": ["text"]})
        assert sorted(row["id"] for row in texts if word in row["text"].split()) == ids(found)
    for column in ("near", "coded"):
        nearest: dict[str, Any] = {"column": column, "q": [0.5] * 4, "k": 7, "nprobes": 2, "refine_factor": 100}
        assert f"{column}_idx" not in known or "ANN" in dataset.scanner(nearest=nearest).explain_plan()
        with_index = dataset.to_table(columns=["id"], nearest=nearest)
        assert ids(dataset.to_table(columns=["id"], nearest={**nearest, "use_index": False})) == ids(with_index)


def ids(found: pa.Table) -> list[int]:
    """The ids of the rows found."""
    return sorted(row["id"] for row in found.select(["id"]).to_pylist())


def unindexed(table: LanceTable, branch: str = "main") -> set[int]:
    """The numbers of rows that indices do not cover."""
    return {status.unindexed_rows for status in table.maintenance.indices(branch)}


# Each change is tested once, alternately on main and on a branch; a soak tests each on both.
CHOSEN_ON_MAIN = set([*CHANGES][::2])


@pytest.mark.parametrize("change", thinned(CHANGES, kept=CHOSEN_ON_MAIN.__contains__))
def test_on_main(table: LanceTable, change: str) -> None:
    """Indices are exact after a change of the package, and after pylance updated them."""
    CHANGES[change](table, "main")
    exact(table)
    as_pylance(table).optimize.optimize_indices()
    exact(table)
    assert {0} == unindexed(table)
    as_pylance(table).validate()


@pytest.mark.parametrize("change", thinned(CHANGES, kept=lambda change: change not in CHOSEN_ON_MAIN))
def test_on_a_branch(table: LanceTable, change: str) -> None:
    """Indices are exact on a branch that inherited them, and main is not affected."""
    before = table.read("main", columns=["id"])
    table.branches.create("run")
    CHANGES[change](table, "run")
    exact(table, "run")
    exact(table)
    assert before == table.read("main", columns=["id"])
    as_pylance(table, "run").optimize.optimize_indices()
    exact(table, "run")
    assert {0} == unindexed(table, "run")


@pytest.mark.parametrize("change", MERGEABLE)
def test_after_a_merge(table: LanceTable, change: str) -> None:
    """Indices are exact after a merge into a main that has changed since the fork."""
    table.branches.create("run")
    MERGEABLE[change](table, "run")
    table.append(rows(range(400, 420), salt=7))
    table.merge("run")
    exact(table)
    table.branches.delete("run")
    as_pylance(table).optimize.optimize_indices()
    exact(table)
    assert {0} == unindexed(table)


@pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])
def test_in_a_clone(table: LanceTable, tmp_path: Path, *, shallow: bool) -> None:
    """A clone has the indices, which are exact after changes to it."""
    clone = table.maintenance.clone(tmp_path / "clone", shallow=shallow)
    exact(clone)
    clone.replace_where("id % 4 = 1 OR id >= 300", rows(range(300, 340), salt=3))
    exact(clone)


def test_after_a_move(table: LanceTable, tmp_path: Path) -> None:
    """Indices are exact on main and on a branch after the table was moved and relocated."""
    table.branches.create("run")
    table.append(rows(range(300, 340), salt=3), branch="run")
    moved = shutil.move(table.uri, tmp_path / "moved")
    here = LanceTable.open(moved)
    here.maintenance.relocate()
    exact(here)
    exact(here, "run")


def test_a_renamed_column_keeps_its_index(table: LanceTable) -> None:
    """The index is used under the new name of the column."""
    table.columns.rename("value", "worth")
    dataset = as_pylance(table)
    assert "ScalarIndexQuery" in dataset.scanner(filter="worth = 30").explain_plan()
    without = dataset.scanner(columns=["id"], filter="worth = 30", use_scalar_index=False).to_table()
    assert [] != ids(without) == ids(dataset.to_table(columns=["id"], filter="worth = 30"))


@pytest.mark.parametrize("column", ["value", "text", "near", "coded"])
def test_a_dropped_column_takes_its_index_along(table: LanceTable, column: str) -> None:
    """Other indices stay."""
    table.columns.drop([column])
    assert set(INDEXED) - {f"{column}_idx"} == {index.name for index in as_pylance(table).describe_indices()}


def test_an_overwrite_leaves_no_index(table: LanceTable) -> None:
    """The indices cover only rows that are gone."""
    table.overwrite(rows(range(20)))
    assert [] == as_pylance(table).describe_indices()
