import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_dagster.spark.writer import WRITE_PROPERTY
from lance_dagster.table import LanceTable
from tests.spark.samples import every_type, rows

FORMAT = "lance_dagster"


@pytest.mark.usefixtures("time_type")
def test_every_type_makes_the_round_trip(spark: SparkSession, tmp_table_uri: str) -> None:
    """The first save makes the table; the second adds to it."""
    df = every_type(spark, nulls=True)
    writer = df.write.format(FORMAT).option("vectors", "a_vector:3")
    writer.mode("append").save(tmp_table_uri)
    assert pa.list_(pa.float32(), 3) == LanceTable.open(tmp_table_uri).schema().field("a_vector").type
    assert rows(df) == rows(spark.read.format(FORMAT).load(tmp_table_uri))
    writer.mode("append").save(tmp_table_uri)
    assert 4 == LanceTable.open(tmp_table_uri).count_rows()


def test_overwrite_replaces_rows_and_columns(spark: SparkSession, tmp_table_uri: str) -> None:
    """The version before is still there."""
    spark.range(5).write.format(FORMAT).mode("append").save(tmp_table_uri)
    spark.sql("SELECT 'a' AS name").write.format(FORMAT).mode("overwrite").save(tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    assert [{"name": "a"}] == table.read().to_pylist()
    assert 5 == spark.read.format(FORMAT).option("ref", "main@2").load(tmp_table_uri).count()


def test_a_save_is_one_version_with_its_own_uuid(spark: SparkSession, tmp_table_uri: str) -> None:
    """Two saves of the same rows are two versions, told apart by a property."""
    for _ in range(2):
        spark.range(10).repartition(3).write.format(FORMAT).mode("append").save(tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    versions = [table.at(f"main@{number}") for number in table.versions_after(1)]
    assert 2 == len({version.properties[WRITE_PROPERTY] for version in versions})
    assert 20 == table.count_rows()
