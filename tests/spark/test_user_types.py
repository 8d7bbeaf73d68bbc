"""Vectors and matrices of Spark ML come back as what they were, and fields of structs may be vectors."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.ml.linalg import Matrices, MatrixUDT, Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lance_dagster import (
    LanceDataSource,
    LanceTable,
    SchemaMismatchError,
    compact_table,
    delete_keys,
    read_changes,
    read_table,
    stage,
    upsert_frame,
    write_table,
)
from lance_dagster.spark.spark_schema import target_schema
from tests.spark.samples import schema_of
from tests.table_factory import as_pylance

pytestmark = pytest.mark.slow

FORMAT = LanceDataSource.name()
COLUMNS = StructType([StructField("id", LongType()), StructField("v", VectorUDT()), StructField("m", MatrixUDT())])
ROWS = [
    (1, Vectors.dense([1.0, 2.0]), Matrices.dense(1, 2, [1.0, 2.0])),
    (2, Vectors.sparse(3, {1: 5.0}), Matrices.sparse(2, 2, [0, 1, 1], [0], [7.0])),
    (3, None, None),
    (4, Vectors.dense([]), None),
]
WRITES: dict[str, Callable[[DataFrame, str], object]] = {
    "write_table": write_table,
    "save": lambda frame, uri: frame.write.format(FORMAT).mode("append").save(uri),
}


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Dense and sparse values, and nulls."""
    return spark.createDataFrame(ROWS, COLUMNS).coalesce(2)


def values(frame: DataFrame) -> list[tuple[object, ...]]:
    """The rows by id."""
    return [tuple(row) for row in frame.select("id", "v", "m").orderBy("id").collect()]


@pytest.mark.parametrize("write", WRITES)
def test_values_of_spark_ml_come_back(spark: SparkSession, frame: DataFrame, tmp_table_uri: str, write: str) -> None:
    """By each way to write and to read, and after the table was changed by either program."""
    WRITES[write](frame, tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    as_pylance(table).optimize.compact_files()
    assert frame.schema == read_table(spark, table).schema
    assert ROWS == values(read_table(spark, table)) == values(spark.read.format(FORMAT).load(tmp_table_uri))
    assert [ROWS[1]] == values(read_table(spark, table).where("id = 2"))
    table.append(stage(frame.where("id = 3").selectExpr("id + 2 AS id", "v", "m"), table))
    changed = [(2, *ROWS[0][1:])]
    upsert_frame(spark.createDataFrame(changed, COLUMNS), table, ["id"])
    upsert_frame(spark.createDataFrame([(1,)], "id long"), table, ["id"])
    compact_table(spark, table)
    delete_keys(spark.createDataFrame([(3,)], "id long"), table, ["id"])
    assert [ROWS[0], changed[0], ROWS[3], (5, None, None)] == values(read_table(spark, table))
    assert {"v", "m"} <= set(read_changes(spark, table, "main~1", "main").columns)
    write_table(frame, tmp_table_uri, mode="overwrite")
    assert ROWS == values(read_table(spark, table))


def test_a_type_that_is_not_the_column_s_is_not_believed(spark: SparkSession, tmp_table_uri: str) -> None:
    """Any program can set the metadata, or cast the column."""
    marked = [
        pa.field("a", pa.int64(), metadata={"lance_dagster.spark.type": "VectorUDT"}),
        pa.field("b", pa.int64(), metadata={"lance_dagster.spark.type": "os.system"}),
    ]
    table = LanceTable.create(tmp_table_uri, pa.schema(marked))
    table.append(pa.table({"a": [1], "b": [2]}))
    assert [(1, 2)] == [tuple(row) for row in read_table(spark, table).collect()]


def test_a_struct_takes_values_of_spark_ml(spark: SparkSession, frame: DataFrame, tmp_table_uri: str) -> None:
    """A table that has the struct keeps it."""
    struct = VectorUDT.sqlType()
    columns = target_schema(frame.select("id", "v").schema)
    table = LanceTable.create(tmp_table_uri, pa.schema([pa.field(column.name, column.type) for column in columns]))
    for mode in ("append", "overwrite"):
        write_table(frame.select("id", "v"), tmp_table_uri, mode=mode)
    kind = read_table(spark, table).schema["v"].dataType
    assert isinstance(kind, StructType)
    assert struct.names == kind.names
    assert 4 == table.count_rows()


NESTED = "id long, page struct<n: int, v: array<float>>, pages array<struct<v: array<double>>>"
VECTORS = {"page.v": 2, "pages.item.v": 3}
NESTED_ROWS = [
    (1, (7, [1.0, 2.0]), [([1.0, 2.0, 3.0],), (None,)]),
    (2, (None, None), []),
    (3, None, None),
    (4, (8, [3.0, 4.0]), [None]),
]


@pytest.mark.parametrize("by_option", [True, False])
def test_vectors_inside_of_structs(spark: SparkSession, tmp_table_uri: str, *, by_option: bool) -> None:
    """They have a fixed length in the table, and are arrays in Spark."""
    frame = spark.createDataFrame(NESTED_ROWS, NESTED)
    if by_option:
        text = ", ".join(f"{path}:{length}" for path, length in VECTORS.items())
        frame.write.format(FORMAT).mode("append").option("vectors", text).save(tmp_table_uri)
    else:
        write_table(frame, tmp_table_uri, vectors=VECTORS)
    table = LanceTable.open(tmp_table_uri)
    page = pa.struct([("n", pa.int32()), ("v", pa.list_(pa.float32(), 2))])
    pages = pa.list_(pa.struct([("v", pa.list_(pa.float64(), 3))]))
    assert schema_of(id=pa.int64(), page=page, pages=pages) == table.schema()
    assert frame.orderBy("id").collect() == read_table(spark, table).orderBy("id").collect()
    wrong = spark.createDataFrame([(9, (1, [1.0]), None)], NESTED)
    with pytest.raises(SchemaMismatchError):
        write_table(wrong, tmp_table_uri, mode="append")
    upsert_frame(frame.where("id = 2"), table, ["id"])
    assert table.maintenance.verify(deep=True).ok
