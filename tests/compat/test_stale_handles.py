"""Pylance goes on from a version that we changed rows after: what it meant is done to what we left."""

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from tests.soak import pairs
from tests.table.pylance_parity import Twins
from tests.table_factory import as_pylance, contents, entries

Ours = Callable[[LanceTable], object]
Theirs = Callable[[lance.LanceDataset], object]

OURS: dict[str, Ours] = {
    "update": lambda table: table.update({"value": "value + 100"}, where="value IN (2, 7)"),
    "update of another column": lambda table: table.update({"key": "'u'"}, where="value IN (2, 7)"),
    "update of a fragment": lambda table: table.update({"key": "'u'"}, where="value < 5"),
    "update of everything": lambda table: table.update({"key": "'u'"}),
    "upsert": lambda table: table.upsert(entries("n", 2, 3, 50), on=["value"]),
    "delete": lambda table: table.delete("value IN (2, 8)"),
    "delete of a fragment": lambda table: table.delete("value < 5"),
    "delete of everything": lambda table: table.delete("true"),
}
THEIRS: dict[str, Theirs] = {
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


@pytest.mark.parametrize("ours,theirs", pairs(OURS, THEIRS))
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_a_stale_change_is_done_to_what_we_left(tmp_path: Path, ours: str, theirs: str, *, stable: bool) -> None:
    """The same as one after the other, done to a twin; a compaction is refused, and then nothing is done."""
    twins = Twins.made(tmp_path, stable_row_ids=stable)
    stale = as_pylance(twins.ours)
    OURS[ours](twins.ours)
    OURS[ours](LanceTable.open(twins.theirs.uri))
    before = contents(twins.ours)
    try:
        THEIRS[theirs](stale)
    except OSError:
        assert "compaction" == theirs
        assert before == contents(twins.ours)
        return
    THEIRS[theirs](lance.dataset(twins.theirs.uri))
    dataset = as_pylance(twins.ours)
    dataset.validate()
    assert contents(LanceTable.open(twins.theirs.uri)) == contents(twins.ours)
    rows = dataset.to_table(columns=["value", "_rowid"]).to_pylist()
    assert len(rows) == len({row["_rowid"] for row in rows}) == dataset.count_rows()
    assert [row["value"] for row in rows if row["value"] == 6] == dataset.to_table(filter="value = 6")[
        "value"
    ].to_pylist()
    # And we go on where it left.
    twins.ours.update({"key": "'end'"}, where="value = 1")
    twins.ours.upsert(entries("end", 0, 70), on=["value"])
    as_pylance(twins.ours).validate()
