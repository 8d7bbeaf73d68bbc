import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_dagster import read_changes
from lance_dagster.errors import InvalidInputError, RefNotFoundError
from lance_dagster.table import LanceTable
from tests.raising import raises
from tests.spark.samples import schema_of

pytestmark = pytest.mark.slow


def test_what_differs_is_what_a_diff_says(spark: SparkSession, tmp_table_uri: str) -> None:
    """Rows are inserted, deleted and updated in fragments with deleted rows; columns are those of the newer version."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), x=pa.int64()))
    for start in (0, 3000):
        ids = range(start, start + 3000)
        table.append(pa.table({"id": ids, "x": ids}))
    table.delete("id % 10 = 3")
    before = table.head()
    table.delete("id IN (0, 3001) OR (id >= 100 AND id < 200)")
    table.update({"x": "x + 100000"}, where="id % 1000 = 7")
    table.append(pa.table({"id": [9000], "x": [1]}))
    table.columns.rename("x", "y")
    changes = read_changes(spark, table, before, "main")
    assert ["_change_type", "_commit_version", "id", "y"] == changes.columns
    found: dict[str, list[tuple[int, int]]] = {}
    for row in changes.collect():
        found.setdefault(row["_change_type"], []).append((row["id"], row["y"]))
        assert table.head().number == row["_commit_version"]
    updated = [7, 1007, 2007, 3007, 4007, 5007]
    gone = [0, *(number for number in range(100, 200) if number % 10 != 3), 3001]
    expected = {
        "insert": [(9000, 1)],
        "delete": [(number, number) for number in gone],
        "update_preimage": [(number, number) for number in updated],
        "update_postimage": [(number, number + 100_000) for number in updated],
    }
    assert expected == {kind: sorted(rows) for kind, rows in found.items()}
    # The opposite direction, with a key that identifies rows.
    back = read_changes(spark, table, "main", before, on=["id"]).groupBy("_change_type").count().collect()
    swapped = {"insert": 92, "delete": 1, "update_preimage": 6, "update_postimage": 6}
    assert swapped == {row[0]: row[1] for row in back}


def test_what_cannot_be_compared_is_refused_at_once(spark: SparkSession, tmp_table_uri: str) -> None:
    """Two equal versions give an empty frame with the columns."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()))
    table.append(pa.table({"id": [1, 1]}))
    assert [] == read_changes(spark, table, "main", "main").collect()
    with raises(RefNotFoundError, ref="mian"):
        read_changes(spark, table, "mian")
    with pytest.raises(InvalidInputError):
        read_changes(spark, table, "main@1", on=["id"])
    table.columns.rename("id", "_change_type")
    with pytest.raises(InvalidInputError):
        read_changes(spark, table, "main@1")
