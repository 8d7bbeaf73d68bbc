import pyarrow as pa
import pytest

from lance_dagster.spark.piece_rows import PieceReader
from lance_dagster.table import LanceTable

ROWS = 6000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """One fragment without deleted rows, and one with a gap at its start, a long one and many short ones."""
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


@pytest.mark.parametrize("range_rows", [300, 10 * ROWS])
@pytest.mark.parametrize(
    "filter", [None, "id % 3 <> 0", "id % 1500 = 7", "id > 500 AND id < 560", "id < 0", "id >= 0"], ids=str
)
def test_rows_are_read_once_whatever_the_ranges(table: LanceTable, filter: str | None, range_rows: int) -> None:
    """Whole fragments and parts of them, in order and at their addresses."""
    expected = table.read(filter=filter)["id"].to_pylist()
    for fragment in (0, 1):
        first = fragment * ROWS
        for parts in ([(0, ROWS)], [(0, 1), (1, 2999), (2999, 2999), (2999, 5500), (5500, ROWS)]):
            read = [
                batch
                for start, stop in parts
                for batch in reader(table, filter, range_rows).between(fragment, start, stop)
            ]
            ids = [number for batch in read for number in batch["id"].to_pylist()]
            assert [number for number in expected if first <= number < first + ROWS] == ids
            addresses = [number for batch in read for number in batch["_rowaddr"].to_pylist()]
            assert [(fragment << 32) + number - first for number in ids] == addresses
            assert all(batch.num_rows for batch in read)
    whole = [number for batch in reader(table, filter, range_rows).whole([0, 1]) for number in batch["id"].to_pylist()]
    assert expected == whole


def test_a_limit_is_enough_rows(table: LanceTable) -> None:
    """Of which the caller takes as many as it needs."""
    for filter in (None, "id % 3 = 0"):
        read = reader(table, filter, 300, limit=5).whole([1])
        assert 5 == len(next(iter(read)))
