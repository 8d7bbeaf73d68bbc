"""Each type: what Spark writes in every way is read by Spark and by pylance, and what pylance writes by Spark."""

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance import blob_array, blob_field
from lance.arrow import bfloat16_array
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import VariantVal

from lance_dagster import compact_table, read_changes, read_table, stage, upsert_frame, write_table
from lance_dagster.errors import InvalidInputError
from lance_dagster.spark.spark_schema import target_schema
from lance_dagster.table import LanceTable
from tests.spark.samples import VARIANTS, VECTORS, every_type, with_every_type

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("time_type")]

FORMAT = "lance_dagster"


def created(df: DataFrame, uri: str) -> LanceTable:
    """An empty table for a frame."""
    return LanceTable.create(uri, target_schema(df.schema, VECTORS))


def staged(df: DataFrame, uri: str) -> None:
    """Write a frame with `stage`."""
    table = created(df, uri)
    table.append(stage(df, table))


def saved(df: DataFrame, uri: str) -> None:
    """Write a frame with `df.write`, which first creates the table and then adds rows to it."""
    for part in ("id < 2", "id >= 2"):
        df.where(part).write.format(FORMAT).option("vectors", "a_vector:3").mode("append").save(uri)


def upserted(df: DataFrame, uri: str) -> None:
    """Write a frame with an upsert that updates two rows, which have the values of each other, and inserts the rest."""
    staged(df.where("id < 2").withColumn("id", 1 - df["id"]), uri)
    merged = upsert_frame(df, LanceTable.open(uri), ["id"])
    assert (2, df.count() - 2) == (merged.rows_updated, merged.rows_added)


def streamed(df: DataFrame, uri: str) -> None:
    """Write a frame with a stream, which makes the values from a stream of ids."""
    created(df, uri)
    ids = f"{uri}.ids"
    LanceTable.create(ids, pa.schema([("id", pa.int64())])).append(pa.table({"id": range(df.count())}))
    stream = with_every_type(df.sparkSession.readStream.format(FORMAT).load(ids)).writeStream.format(FORMAT)
    stream = stream.option("checkpointLocation", f"{uri}.checkpoint").trigger(availableNow=True)
    stream.start(uri).awaitTermination()


def compacted(df: DataFrame, uri: str) -> None:
    """Write a frame in two fragments that are then compacted."""
    staged(df.repartition(2, "id"), uri)
    table = LanceTable.open(uri)
    compact_table(df.sparkSession, table)
    assert 1 == len(table.to_lance().get_fragments())


WAYS: dict[str, Callable[[DataFrame, str], object]] = {
    "stage": staged,
    "df.write": saved,
    "write_table": lambda df, uri: write_table(df, uri, vectors=VECTORS),
    "upsert": upserted,
    "stream": streamed,
    "compaction": compacted,
}


def values(rows: pa.Table | DataFrame) -> list[str]:
    """The rows by id. As text, because NaN is not equal to itself, and -0.0 is equal to 0.0.

    Spark cannot give a null beside a variant to Arrow, so its variants are collected as rows.
    """
    if isinstance(rows, pa.Table):
        return [str(row) for row in rows.sort_by("id").to_pylist()]
    found = rows.drop(*VARIANTS).toArrow().sort_by("id").to_pylist()
    variants = [row.asDict(recursive=True) for row in rows.select("id", *VARIANTS).orderBy("id").collect()]
    together = [{**row, **plain(variant)} for row, variant in zip(found, variants, strict=True)]
    return [str({name: row[name] for name in rows.columns}) for row in together]


def plain(value: Any) -> Any:  # noqa: ANN401 - any value of a row
    """A value with its variants in the form that they have in Arrow."""
    if isinstance(value, VariantVal):
        return {"value": bytes(value.value), "metadata": bytes(value.metadata)}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return {name: plain(part) for name, part in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("way", WAYS)
def test_every_type_of_spark_is_read_as_it_was_written(spark: SparkSession, tmp_table_uri: str, way: str) -> None:
    """Spark in its ways to read, pylance and PyArrow see Spark's own values, with nulls at every level."""
    df = every_type(spark)
    WAYS[way](df, tmp_table_uri)
    table = LanceTable.open(tmp_table_uri)
    assert pa.list_(pa.float32(), 3) == table.schema().field("a_vector").type
    # No code of this package takes part in this.
    expected = values(df)
    frame, source = read_table(spark, table), spark.read.format(FORMAT).load(table.uri)
    assert df.dtypes == frame.dtypes == source.dtypes
    assert expected == values(frame)
    assert expected == values(source)
    changes = read_changes(spark, table, "main@1", "main")
    assert expected == values(changes.select(*df.columns))
    assert expected == values(table.to_lance().to_table())
    assert expected == values(table.read())


class Stored(NamedTuple):
    """A column that pylance wrote, the type that Spark gives it, and the values that Spark reads where they differ."""

    written: "pa.Array[Any]"
    type: str
    read: list[object] | None = None


def column(first: object, arrow: pa.DataType) -> "pa.Array[Any]":
    """A value and a null."""
    return pa.array([first, None], arrow)


DAY, MOMENT = dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, 12, 34, 56, 123000, dt.UTC)
LOCAL = MOMENT.replace(tzinfo=None)
SECOND, MICROSECOND = dt.time(0, 0, 1), dt.time(0, 0, 0, 1)
DECIMAL = decimal.Decimal("-1.25")
UUID = bytes(range(16))
STRUCT = pa.struct([("u", pa.uint16()), ("v", pa.list_(pa.float32(), 2))])
BY_PYLANCE: dict[str, Stored] = {
    "bool": Stored(column(True, pa.bool_()), "boolean"),  # noqa: FBT003 - a value
    "int8": Stored(column(-128, pa.int8()), "tinyint"),
    "int16": Stored(column(-32768, pa.int16()), "smallint"),
    "int32": Stored(column(-(2**31), pa.int32()), "int"),
    "int64": Stored(column(-(2**63), pa.int64()), "bigint"),
    "uint8": Stored(column(255, pa.uint8()), "smallint"),
    "uint16": Stored(column(65535, pa.uint16()), "int"),
    "uint32": Stored(column(2**32 - 1, pa.uint32()), "bigint"),
    "uint64": Stored(column(2**64 - 1, pa.uint64()), "decimal(20,0)", [decimal.Decimal(2**64 - 1), None]),
    "half": Stored(column(np.float16(0.5), pa.float16()), "float", [0.5, None]),
    "float": Stored(column(0.5, pa.float32()), "float"),
    "double": Stored(column(-0.1, pa.float64()), "double"),
    # The bytes of the number, the lower one first.
    "bfloat16": Stored(bfloat16_array([1.5, None]), "binary", [b"\xc0\x3f", None]),
    "string": Stored(column("Zürich", pa.string()), "string"),
    "large_string": Stored(column("Zürich", pa.large_string()), "string"),
    "string_view": Stored(column("Zürich", pa.string_view()), "string"),
    "json": Stored(column('{"a":1}', pa.json_()), "string"),
    "binary": Stored(column(b"\x00\xff", pa.binary()), "binary"),
    "large_binary": Stored(column(b"\x00\xff", pa.large_binary()), "binary"),
    "binary_view": Stored(column(b"\x00\xff", pa.binary_view()), "binary"),
    "fixed_binary": Stored(column(b"ab", pa.binary(2)), "binary"),
    "uuid": Stored(column(UUID, pa.uuid()), "binary", [UUID, None]),
    "bool8": Stored(pa.ExtensionArray.from_storage(pa.bool8(), column(1, pa.int8())), "tinyint", [1, None]),
    "strings_in_a_dictionary": Stored(pa.array(["a", None]).dictionary_encode(), "string"),
    "numbers_in_a_dictionary": Stored(pa.array([7, None]).dictionary_encode(), "bigint"),
    "decimal128": Stored(column(DECIMAL, pa.decimal128(38, 2)), "decimal(38,2)"),
    "decimal256": Stored(column(DECIMAL, pa.decimal256(38, 2)), "decimal(38,2)"),
    "date32": Stored(column(DAY, pa.date32()), "date"),
    "date64": Stored(column(DAY, pa.date64()), "date"),
    "time32_s": Stored(column(SECOND, pa.time32("s")), "time(6)"),
    "time32_ms": Stored(column(SECOND, pa.time32("ms")), "time(6)"),
    "time64_us": Stored(column(MICROSECOND, pa.time64("us")), "time(6)"),
    "time64_ns": Stored(column(1_999, pa.time64("ns")), "time(6)", [MICROSECOND, None]),
    "timestamp_s": Stored(column(LOCAL.replace(microsecond=0), pa.timestamp("s")), "timestamp_ntz"),
    "timestamp_ms": Stored(column(MOMENT, pa.timestamp("ms", "Europe/Paris")), "timestamp", [MOMENT, None]),
    "timestamp_us": Stored(column(MOMENT, pa.timestamp("us", "UTC")), "timestamp", [MOMENT, None]),
    "timestamp_ns": Stored(
        column(1_999, pa.timestamp("ns")),
        "timestamp_ntz",
        [dt.datetime(1970, 1, 1, microsecond=1), None],  # noqa: DTZ001
    ),
    "duration_s": Stored(column(5, pa.duration("s")), "interval day to second"),
    "duration_ms": Stored(column(5, pa.duration("ms")), "interval day to second"),
    "duration_us": Stored(column(5, pa.duration("us")), "interval day to second"),
    "duration_ns": Stored(
        column(1_999, pa.duration("ns")), "interval day to second", [dt.timedelta(microseconds=1), None]
    ),
    "null": Stored(pa.nulls(2), "void"),
    "vector": Stored(column([0.5, None], pa.list_(pa.float16(), 2)), "array<float>"),
    "vector_of_vectors": Stored(
        column([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.list_(pa.float32(), 2), 2)), "array<array<float>>"
    ),
    "list": Stored(column([1, None], pa.list_(pa.uint8())), "array<smallint>"),
    "large_list": Stored(column([None, []], pa.large_list(pa.large_list(pa.int8()))), "array<array<tinyint>>"),
    "list_of_structs": Stored(
        column([None, {"u": 1, "v": None}, {"u": None, "v": [1.0, 2.0]}], pa.list_(STRUCT)),
        "array<struct<u:int,v:array<float>>>",
    ),
    "struct": Stored(column({"u": None, "v": [1.0, 2.0]}, STRUCT), "struct<u:int,v:array<float>>"),
    "map": Stored(
        column([("k", {"u": 1, "v": None}), ("l", None)], pa.map_(pa.string(), STRUCT)),
        "map<string,struct<u:int,v:array<float>>>",
    ),
}


def test_every_type_of_pylance_is_read_by_spark(spark: SparkSession, tmp_table_uri: str) -> None:
    """Spark reads the same values in both ways, and writes them back into columns of the same types."""
    made = pa.table({"id": [0, 1], **{name: stored.written for name, stored in BY_PYLANCE.items()}})
    lance.write_dataset(made, tmp_table_uri, data_storage_version="2.2")
    table = LanceTable.open(tmp_table_uri)
    for frame in (read_table(spark, table), spark.read.format(FORMAT).load(table.uri)):
        assert [("id", "bigint"), *((name, stored.type) for name, stored in BY_PYLANCE.items())] == frame.dtypes
        found = frame.toArrow().sort_by("id")
        for name, (written, _, read) in BY_PYLANCE.items():
            assert (read or written.to_pylist()) == found.column(name).to_pylist(), name
    before = table.to_lance().to_table()
    table.overwrite(stage(read_table(spark, table), table))
    after = table.to_lance().to_table().sort_by("id")
    assert before.schema == after.schema
    for name in set(BY_PYLANCE) - {"time64_ns", "timestamp_ns", "duration_ns"}:
        assert before.column(name).to_pylist() == after.column(name).to_pylist(), name


BLOB = pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
TOO_LONG = pa.array([decimal.Decimal("1.5"), None], pa.decimal256(39, 2))
UNREADABLE: dict[str, tuple[pa.Table, str]] = {
    "blobs of the first kind": (
        pa.table({"c": [b"a", None]}, pa.schema([BLOB])),
        "holds blobs, which Spark cannot read",
    ),
    "blobs in a struct": (
        pa.table({"c": [{"c": b"a"}, None]}, pa.schema([("c", pa.struct([BLOB]))])),
        "holds blobs, which Spark cannot read",
    ),
    "blobs": (
        pa.table([blob_array([b"a", b"b"])], schema=pa.schema([blob_field("c")])),
        "holds blobs, which Spark cannot read",
    ),
    "39 digits": (pa.table({"c": TOO_LONG}), r"is decimal256\(39, 2\), for which Spark has no type"),
    "39 digits in a list": (
        pa.table({"c": pa.ListArray.from_arrays([0, 1, 2], TOO_LONG)}),
        r"is list<item: decimal256\(39, 2\)>, for which Spark has no type",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_type_that_spark_cannot_read_is_refused_by_column(spark: SparkSession, tmp_table_uri: str, name: str) -> None:
    """No job starts, and the other columns can be read."""
    rows, said = UNREADABLE[name]
    # Files of version 2.2 and later have blobs of the second kind only.
    of_the_first = name in ("blobs of the first kind", "blobs in a struct")
    rows = rows.append_column("id", pa.array([0, 1]))
    lance.write_dataset(rows, tmp_table_uri, data_storage_version="2.1" if of_the_first else "2.2")
    table = LanceTable.open(tmp_table_uri)
    with pytest.raises(InvalidInputError, match=f"^column 'c' {said}.*; name the other columns to read them"):
        read_table(spark, table)
    with pytest.raises(PySparkException, match=f"column 'c' {said}"):
        spark.read.format(FORMAT).load(table.uri).schema  # noqa: B018 - Spark plans when it is asked for
    assert [0, 1] == sorted(row.id for row in read_table(spark, table, columns=["id"]).collect())


@pytest.mark.parametrize("arrow", [pa.duration("s"), pa.timestamp("ms"), pa.list_(pa.duration("s"))], ids=str)
def test_a_value_beyond_the_range_of_spark_is_refused_by_column(
    spark: SparkSession, tmp_path: Path, arrow: pa.DataType
) -> None:
    """Seconds reach further than microseconds, and no value may become another."""
    farthest: object = [2**62] if pa.types.is_list(arrow) else 2**62
    rows = pa.table({"id": [0, 1], "c": pa.array([farthest, None], arrow)})
    lance.write_dataset(rows, tmp_path / "table", data_storage_version="2.2")
    table = LanceTable.open(tmp_path / "table")
    said = f"column 'c' is {arrow} and has a value beyond the range of Spark's microseconds: {2**62}"
    with pytest.raises((InvalidInputError, PySparkException)) as refused:
        read_table(spark, table).collect()
    assert said in str(refused.value)
    assert 1 == read_table(spark, table, filter="c IS NULL").count()


@pytest.mark.parametrize("name", ["blobs of the first kind", "blobs"])
def test_blobs_are_written_by_spark(spark: SparkSession, tmp_table_uri: str, name: str) -> None:
    """Those of the first kind are bytes in Spark, later ones a struct of the data or where it is."""
    first = name == "blobs of the first kind"
    lance.write_dataset(UNREADABLE[name][0].slice(0, 1), tmp_table_uri, data_storage_version="2.1" if first else "2.2")
    table = LanceTable.open(tmp_table_uri)
    data, number = "x'0102'", "cast(null AS decimal(20,0))"
    struct = f"named_struct('data', {data}, 'uri', cast(null AS string), 'position', {number}, 'size', {number})"
    table.append(stage(spark.sql(f"SELECT {data if first else struct} AS c"), table))
    blobs = table.to_lance().take_blobs("c", indices=[0, 1])
    assert [b"a", b"\x01\x02"] == [blob and blob.read() for blob in blobs]
