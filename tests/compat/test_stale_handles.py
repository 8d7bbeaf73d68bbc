"""Pylance commits from a handle older than changes of the package: its change applies to the remaining rows."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from tests.soak import pairs
from tests.table.pylance_parity import ParityPair
from tests.table_factory import as_pylance, contents, entries

PackageChange = Callable[[LanceTable], object]
PylanceChange = Callable[[lance.LanceDataset], object]

BY_PACKAGE: dict[str, PackageChange] = {
    "update": lambda table: table.update({"value": "value + 100"}, where="value IN (2, 7)"),
    "update of another column": lambda table: table.update({"key": "'u'"}, where="value IN (2, 7)"),
    "update of a fragment": lambda table: table.update({"key": "'u'"}, where="value < 5"),
    "update of everything": lambda table: table.update({"key": "'u'"}),
    "upsert": lambda table: table.upsert(entries("n", 2, 3, 50), on=["value"]),
    "delete": lambda table: table.delete("value IN (2, 8)"),
    "delete of a fragment": lambda table: table.delete("value < 5"),
    "delete of everything": lambda table: table.delete("true"),
}
BY_PYLANCE: dict[str, PylanceChange] = {
    "insert": lambda dataset: dataset.insert(entries("p", 60)),
    "delete": lambda dataset: dataset.delete("value IN (2, 9)"),
    "delete of another row": lambda dataset: dataset.delete("value = 4"),
    "delete by key": lambda dataset: dataset.delete("key = 'a'"),
    "update": lambda dataset: dataset.update({"value": "value + 1000"}, where="value IN (2, 6)"),
    "update of another row": lambda dataset: dataset.update({"key": "'p'"}, where="value = 1"),
    "update of everything": lambda dataset: dataset.update({"value": "value + 1000"}),
    "merge_insert": lambda dataset: (
        dataset.merge_insert("value").when_matched_update_all().execute(entries("p", 1, 2, 6))
    ),
    "compaction": lambda dataset: dataset.optimize.compact_files(),
    "index": lambda dataset: dataset.create_scalar_index("value", "BTREE"),
}


@pytest.mark.parametrize("change,stale_change", pairs(BY_PACKAGE, BY_PYLANCE))
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_a_stale_change_is_done_to_what_the_package_left(
    tmp_path: Path, change: str, stale_change: str, *, stable: bool
) -> None:
    """The result equals that of both changes in sequence; a compaction may be refused, and then changes nothing."""
    pair = ParityPair.made(tmp_path, stable_row_ids=stable)
    stale = as_pylance(pair.table)
    BY_PACKAGE[change](pair.table)
    BY_PACKAGE[change](LanceTable.open(pair.dataset.uri))
    before = contents(pair.table)
    try:
        BY_PYLANCE[stale_change](stale)
    except OSError:
        assert "compaction" == stale_change
        assert before == contents(pair.table)
        return
    BY_PYLANCE[stale_change](lance.dataset(pair.dataset.uri))
    dataset = as_pylance(pair.table)
    dataset.validate()
    assert contents(LanceTable.open(pair.dataset.uri)) == contents(pair.table)
    rows = dataset.to_table(columns=["value", "_rowid"]).to_pylist()
    assert len(rows) == len({row["_rowid"] for row in rows}) == dataset.count_rows()
    assert [row["value"] for row in rows if row["value"] == 6] == dataset.to_table(filter="value = 6")[
        "value"
    ].to_pylist()
    # The package can go on after pylance's commit.
    pair.table.update({"key": "'end'"}, where="value = 1")
    pair.table.upsert(entries("end", 0, 70), on=["value"])
    as_pylance(pair.table).validate()


def _write_in_place(table: LanceTable, branch: str = "main") -> None:
    """Write other values beside the rows of the first fragment, as pylance does."""
    dataset = as_pylance(table, branch)
    values = pa.table({"old": pa.array(range(5), pa.int64()), "value": pa.array(range(100, 105), pa.int64())})
    changed, fields = dataset.get_fragments()[0].update_columns(values, left_on="value", right_on="old")
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def _merge_in_place(table: LanceTable) -> None:
    table.branches.create("run")
    _write_in_place(table, "run")
    table.merge("run")


# What is done before the index is begun, what lands before it is committed, and a value that is there only afterwards.
BEFORE_INDEX: dict[str, tuple[PackageChange, PackageChange, int]] = {
    "reverted delete": (lambda t: t.delete("value IN (2, 7)"), lambda t: t.revert("main"), 2),
    "reverted update": (BY_PACKAGE["update"], lambda t: t.revert("main"), 7),
    "reverted values": (_write_in_place, lambda t: t.revert("main"), 2),
    "merged values": (lambda t: t.config.set({"a": "b"}), _merge_in_place, 102),
}


@pytest.mark.parametrize("change", BEFORE_INDEX)
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_an_index_that_a_merge_or_revert_overtakes_has_no_stale_rows(
    tmp_path: Path, change: str, *, stable: bool
) -> None:
    """The index lacks rows that came back and has old values of others, so it must not cover their fragments."""
    table = ParityPair.made(tmp_path, stable_row_ids=stable).table
    before, landing, value = BEFORE_INDEX[change]
    before(table)
    building = as_pylance(table)
    landing(table)
    building.create_scalar_index("value", "BTREE")
    assert 1 == table.count_rows(filter=f"value = {value}")
    assert 0 == table.count_rows(filter=f"value = {value + 100 if value < 100 else value - 100}")
    assert table.maintenance.indices()[0].unindexed_rows > 0
