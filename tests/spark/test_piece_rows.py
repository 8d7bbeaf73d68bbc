import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from lance_dagster.spark.piece_rows import PieceReader
from lance_dagster.table import LanceTable

ROWS = 6000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """One fragment without deleted rows, and one with a gap at its start, a long gap and many short ones."""
    made = LanceTable.create(tmp_path_factory.mktemp("pieces") / "table", pa.schema([("id", pa.int64())]))
    for start in (0, ROWS):
        made.append(pa.table({"id": range(start, start + ROWS)}))
    made.delete(f"id >= {ROWS} AND (id % 7 = 3 OR id < {ROWS + 50} OR (id > {ROWS + 2000} AND id < {ROWS + 4000}))")
    return made


def reader(table: LanceTable, filter: str | None, range_rows: int, limit: int | None = None) -> PieceReader:
    """A reader of the newest version."""
    return PieceReader(
        dataset=table.to_lance(),
        columns=("id",),
        filter=filter,
        limit=limit,
        addressed=True,
        batch_rows=64,
        range_rows=range_rows,
    )


def values(batches: Iterable[pa.RecordBatch], name: str = "id") -> list[Any]:
    """The values of a column."""
    return [value for batch in batches for value in batch[name].to_pylist()]


@pytest.mark.parametrize("range_rows", [300, 10 * ROWS])
@pytest.mark.parametrize(
    "filter", [None, "id % 3 <> 0", "id % 1500 = 7", "id > 500 AND id < 560", "id < 0", "id >= 0"], ids=str
)
def test_rows_are_read_once_whatever_the_ranges(table: LanceTable, filter: str | None, range_rows: int) -> None:
    """Whole fragments and parts of them are read in order, with their addresses."""
    expected: list[Any] = table.read(filter=filter)["id"].to_pylist()
    for fragment in (0, 1):
        first = fragment * ROWS
        for parts in ([(0, ROWS)], [(0, 1), (1, 2999), (2999, 2999), (2999, 5500), (5500, ROWS)]):
            pieces = (reader(table, filter, range_rows).between(fragment, *part) for part in parts)
            read = [batch for piece in pieces for batch in piece]
            ids = values(read)
            assert [number for number in expected if first <= number < first + ROWS] == ids
            assert [(fragment << 32) + number - first for number in ids] == values(read, "_rowaddr")
            assert all(batch.num_rows for batch in read)
    assert expected == values(reader(table, filter, range_rows).whole([0, 1]))


def test_a_limit_is_enough_rows(table: LanceTable) -> None:
    """The caller takes as many of the rows as it needs."""
    for condition in (None, "id % 3 = 0"):
        read = reader(table, condition, 300, limit=5).whole([1])
        assert 5 == len(next(iter(read)))


def test_fragments_are_read_in_their_order(tmp_table_uri: str) -> None:
    """Large and small ones come as they are given, however many rows are read at once."""
    table = LanceTable.create(tmp_table_uri, pa.schema([("id", pa.int64())]))
    starts = [0, 5, 505, 510, 515, 1015]
    for start, stop in itertools.pairwise(starts):
        table.append(pa.table({"id": range(start, stop)}))
    for range_rows in (1, 100, ROWS):
        for condition in (None, "id % 2 = 0"):
            expected = list(range(0, starts[-1], 1 if condition is None else 2))
            assert expected == values(reader(table, condition, range_rows).whole([0, 1, 2, 3, 4]))
