import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_dagster.errors import AlreadyExistsError, InvalidInputError
from lance_dagster.spark import write_table
from lance_dagster.table import LanceTable
from tests.spark.samples import schema_of


def ids(uri: str, ref: str = "main") -> list[object]:
    """The ids in the table."""
    return LanceTable.open(uri).read(ref).sort_by("id")["id"].to_pylist()


def test_save_modes_mean_what_they_mean_in_spark(spark: SparkSession, tmp_table_uri: str) -> None:
    """The default mode creates a table, and refuses an existing one; each save is one version after the creation."""
    first = write_table(spark.range(3), tmp_table_uri)
    with pytest.raises(AlreadyExistsError, match="give mode='append', 'overwrite' or 'ignore'"):
        write_table(spark.range(9), tmp_table_uri)
    assert str(first) == str(write_table(spark.range(9), tmp_table_uri, mode="ignore"))
    assert [0, 1, 2] == ids(tmp_table_uri)
    write_table(spark.range(3, 5), tmp_table_uri, mode="append")
    assert [0, 1, 2, 3, 4] == ids(tmp_table_uri)
    last = write_table(spark.sql("SELECT 7L AS id, 'a' AS name"), tmp_table_uri, mode="overwrite")
    assert [{"id": 7, "name": "a"}] == LanceTable.open(tmp_table_uri).read().to_pylist()
    assert [1, 2, 3, 4] == [1, *LanceTable.open(tmp_table_uri).branches.version_numbers(after=1)]
    assert 4 == last.number


def test_a_save_that_is_ignored_computes_nothing(spark: SparkSession, tmp_table_uri: str) -> None:
    """The frame would fail if it were computed."""
    write_table(spark.range(1), tmp_table_uri)
    write_table(spark.range(1).selectExpr("cast(1 / id AS long) AS id"), tmp_table_uri, mode="ignore")
    assert [0] == ids(tmp_table_uri)


def test_a_part_is_replaced(spark: SparkSession, tmp_table_uri: str) -> None:
    """Rows that do not satisfy the predicate are refused, and nothing is committed."""
    write_table(spark.range(6), tmp_table_uri)
    write_table(spark.range(4, 5), tmp_table_uri, mode="overwrite", replace_where="id >= 3")
    assert [0, 1, 2, 4] == ids(tmp_table_uri)
    with pytest.raises(InvalidInputError, match="id >= 3"):
        write_table(spark.range(2), tmp_table_uri, mode="overwrite", replace_where="id >= 3")
    assert [0, 1, 2, 4] == ids(tmp_table_uri)
    saved = spark.range(8, 9).write.format("lance_dagster").option("replace_where", "id >= 2")
    saved.mode("overwrite").save(tmp_table_uri)
    assert [0, 1, 8] == ids(tmp_table_uri)


def test_a_branch_and_vectors(spark: SparkSession, tmp_table_uri: str) -> None:
    """Vectors of a new table have a fixed length; `main` does not get the rows of the branch."""
    frame = spark.sql("SELECT 1L AS id, array(cast(1 AS float), cast(2 AS float)) AS v")
    write_table(frame, tmp_table_uri, vectors={"v": 2})
    table = LanceTable.open(tmp_table_uri)
    assert pa.list_(pa.float32(), 2) == table.schema().field("v").type
    table.branches.create("run/1")
    write_table(frame, tmp_table_uri, mode="append", branch="run/1", coalesce="auto")
    assert [1] == ids(tmp_table_uri)
    assert [1, 1] == ids(tmp_table_uri, "run/1")


@pytest.mark.parametrize(
    "options,said",
    [
        ({"mode": "apend"}, "unknown save mode 'apend'; did you mean 'append'"),
        ({"vector": {}}, "unknown option of write_table 'vector'; did you mean 'vectors'"),
        ({"replace_where": "id = 1"}, "replace_where needs mode='overwrite', not 'errorifexists'"),
        ({"coalesce": 0}, "coalesce is a number of partitions, 'auto' or None, not 0"),
    ],
)
def test_a_save_that_makes_no_sense_is_refused(
    spark: SparkSession, tmp_table_uri: str, options: dict[str, object], said: str
) -> None:
    """The error has the nearest name."""
    with pytest.raises(InvalidInputError, match=said):
        write_table(spark.range(1), tmp_table_uri, **options)  # type: ignore[arg-type]
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64()), exist_ok=True)
    assert 0 == table.count_rows()
