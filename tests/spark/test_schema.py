import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, NullType, StructField, StructType

from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.spark.spark_schema import (
    arrow_for_spark,
    check_fits,
    holds_binary,
    names_in_table,
    readable_schema,
    replacement_schema,
    row_bytes,
    target_schema,
    to_spark_batch,
    to_table_batch,
)
from tests.spark.samples import schema_of

# Parsing a schema from text needs a session.
pytestmark = pytest.mark.usefixtures("spark")


def ddl(text: str) -> StructType:
    """A Spark schema."""
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


def column(name: str, arrow: pa.DataType) -> pa.Schema:
    """A schema of one column."""
    return pa.schema([pa.field(name, arrow)])


def test_a_table_made_for_a_frame_takes_nulls_and_utc() -> None:
    """NOT NULL in Spark applies to the query only, and the session's time zone to the display only."""
    made = target_schema(ddl("id BIGINT NOT NULL, at TIMESTAMP, s STRUCT<x: INT NOT NULL>"))
    utc = pa.timestamp("us", "UTC")
    assert schema_of(id=pa.int64(), at=utc, s=pa.struct([pa.field("x", pa.int32())])) == made


def test_vectors_become_fixed_size_lists() -> None:
    """Spark has no such type, so the caller gives the length."""
    made = target_schema(ddl("id INT, v ARRAY<FLOAT>"), {"v": 4})
    assert pa.list_(pa.float32(), 4) == made.field("v").type


def test_vectors_inside_of_structs_become_fixed_size_lists() -> None:
    """The path of a vector has the fields that lead to it, and `item` for the elements of an array."""
    frame = ddl("page STRUCT<n: INT, v: ARRAY<FLOAT>>, pages ARRAY<STRUCT<v: ARRAY<DOUBLE>>>")
    vectors = {"page.v": 2, "pages.item.v": 3}
    made = target_schema(frame, vectors)
    vector = pa.list_(pa.float32(), 2)
    assert pa.struct([("n", pa.int32()), ("v", vector)]) == made.field("page").type
    assert pa.list_(pa.struct([("v", pa.list_(pa.float64(), 3))])) == made.field("pages").type
    check_fits(frame, made, vectors=vectors)
    assert made == replacement_schema(frame, made)
    assert (
        pa.list_(pa.float32(), 5) == replacement_schema(frame, made, {"page.v": 5}).field("page").type.field("v").type
    )
    with pytest.raises(SchemaMismatchError, match="length 3"):
        check_fits(frame, made, vectors={"page.v": 3})
    for path in ("page.w", "page.v.item.x", "pages.v", "n.v"):
        with pytest.raises(InvalidInputError):
            target_schema(frame, {path: 2})
        with pytest.raises(SchemaMismatchError, match="the table has no such column"):
            check_fits(frame, made, vectors={path: 2})


@pytest.mark.parametrize(
    "names,table,meant",
    [
        (["ID", "x"], ["id", "x"], ["id", "x"]),
        (["ID", "x"], ["id", "ID"], ["ID", "x"]),
        (["ID", "Id"], ["id"], ["ID", "Id"]),
        (["Id"], ["id", "ID"], ["Id"]),
        (["ID", "id"], ["id", "Id"], ["Id", "id"]),
        (["new"], ["id"], ["new"]),
    ],
)
def test_names_that_differ_in_case_mean_the_column_of_the_table(
    names: list[str], table: list[str], meant: list[str]
) -> None:
    """A name that is spelled as in the table comes first, and a name that could mean two columns means neither."""
    assert meant == names_in_table(names, table)


@pytest.mark.parametrize(
    "vectors,said",
    [
        ({"w": 4}, "vectors names 'w', and the Spark frame has no such column"),
        ({"id": 4}, "vectors names 'id', which is int32 and not an array of numbers"),
        ({"v": 0}, "vectors gives 'v' the length 0; it must be a number, at least 1"),
        ({"v": "2"}, "vectors gives 'v' the length '2'; it must be a number"),
    ],
)
def test_vectors_that_make_no_sense_are_refused(vectors: Mapping[str, int], said: str) -> None:
    """A misspelled column would otherwise be stored as a plain list."""
    with pytest.raises(InvalidInputError, match=said):
        target_schema(ddl("id INT, v ARRAY<FLOAT>"), vectors)


def test_a_type_without_arrow_counterpart_is_refused_by_name() -> None:
    """Otherwise Spark would fail later in a worker."""
    with pytest.raises(InvalidInputError):
        target_schema(ddl("id INT, m INTERVAL YEAR TO MONTH"))
    for kind in (ArrayType(NullType(), containsNull=False), MapType(NullType(), NullType())):
        with pytest.raises(InvalidInputError):
            target_schema(StructType([StructField("e", kind)]))


@pytest.mark.parametrize("kind", [pa.decimal128(10, -2), pa.list_(pa.decimal128(10, -2))], ids=str)
def test_decimals_with_a_negative_scale_are_refused_by_name(kind: pa.DataType) -> None:
    """Spark takes their type, and refuses the frame when it is used."""
    with pytest.raises(InvalidInputError):
        readable_schema(pa.schema([("a", kind)]))


def test_vectors_of_structs_are_refused() -> None:
    """Arrow leaves nulls below a null vector, and pylance cannot read them."""
    items = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    table = pa.schema([("v", pa.list_(items, 1))])
    frame = StructType([StructField("v", ArrayType(StructType([StructField("a", IntegerType())])))])
    with pytest.raises(SchemaMismatchError):
        check_fits(frame, table)


def test_columns_of_one_name_are_refused() -> None:
    """Spark allows them, but a table does not."""
    with pytest.raises(InvalidInputError):
        target_schema(StructType(ddl("a INT").fields * 2))


WIDENED = [
    (pa.uint8(), "smallint", 255),
    (pa.uint16(), "int", 65535),
    (pa.uint32(), "bigint", 2**32 - 1),
    (pa.uint64(), "decimal(20,0)", 2**64 - 1),
    (pa.float16(), "float", np.float16(0.5)),
    (pa.large_string(), "string", "a"),
    (pa.large_binary(), "binary", b"a"),
    (pa.binary(2), "binary", b"ab"),
    (pa.dictionary(pa.int8(), pa.string()), "string", "a"),
    (pa.time32("ms"), "time(6)", 1),
    (pa.date64(), "date", 86_400_000),
    (pa.timestamp("ms", "Europe/Paris"), "timestamp", 1),
    (pa.timestamp("s"), "timestamp_ntz", 1),
    (pa.list_(pa.float16(), 2), "array<float>", [np.float16(0.5), np.float16(1.5)]),
    (pa.large_list(pa.uint8()), "array<smallint>", [1, None]),
    (pa.map_(pa.string(), pa.uint8()), "map<string,smallint>", [("k", 1)]),
    (pa.struct([pa.field("u", pa.uint8())]), "struct<u:smallint>", {"u": 1}),
    (pa.struct([pa.field("v", pa.list_(pa.float32(), 2))]), "struct<v:array<float>>", {"v": [1.0, 2.0]}),
    (pa.decimal256(38, 2), "decimal(38,2)", None),
]


@pytest.mark.parametrize("arrow,spark_type,value", WIDENED, ids=[str(arrow) for arrow, _, _ in WIDENED])
def test_types_spark_lacks_are_widened_and_narrowed_back(arrow: pa.DataType, spark_type: str, value: object) -> None:
    """Spark can write the values that it reads from a table back to the table unchanged."""
    stored = pa.RecordBatch.from_arrays([pa.array([value, None], arrow)], schema=column("c", arrow))
    schema = readable_schema(stored.schema)
    assert spark_type == schema["c"].dataType.simpleString()
    read = to_spark_batch(stored, arrow_for_spark(schema))
    assert read.schema == arrow_for_spark(schema)
    check_fits(schema, stored.schema)
    assert stored == to_table_batch(read, stored.schema)


def test_nanoseconds_are_cut_to_microseconds() -> None:
    """Spark has no finer type."""
    stored = pa.record_batch({"c": pa.array([1_999], pa.timestamp("ns", "UTC"))})
    read = to_spark_batch(stored, arrow_for_spark(readable_schema(stored.schema)))
    assert pa.array([1], pa.timestamp("us", "UTC")) == read.column("c")


def test_a_time_beyond_spark_is_refused() -> None:
    """Seconds reach further than microseconds, and no value may become another."""
    stored = pa.record_batch({"c": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(InvalidInputError):
        to_spark_batch(stored, arrow_for_spark(readable_schema(stored.schema)))


def test_a_type_spark_lacks_altogether_is_refused_by_name() -> None:
    """The error says how to read the other columns."""
    with pytest.raises(InvalidInputError, match="name the other"):
        readable_schema(column("d", pa.month_day_nano_interval()))


@pytest.mark.parametrize(
    "frame,said",
    [
        ("id INT", "it lacks 'v'; the table's columns are id, v"),
        ("id INT, v ARRAY<FLOAT>, w INT", "the table has no 'w'; the table's columns are id, v"),
        ("ID INT, v ARRAY<FLOAT>", "it lacks 'id' and the table has no 'ID'"),
        (
            "id BIGINT, v ARRAY<FLOAT>",
            "column 'id' is bigint in the Spark frame and int32 in the table, which takes int",
        ),
        ("id INT, v ARRAY<DOUBLE>", "column 'v' is array<double> in the Spark frame and fixed_size_list"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_any_work(frame: str, said: str) -> None:
    """The error has the column and both types."""
    table = schema_of(id=pa.int32(), v=pa.list_(pa.float32(), 2))
    with pytest.raises(SchemaMismatchError) as refused:
        check_fits(ddl(frame), table)
    assert said in str(refused.value)


def test_columns_in_another_order_and_voids_fit() -> None:
    """Columns are matched by name, and a column of type VOID fits any type."""
    check_fits(ddl("b VOID, a INT"), schema_of(a=pa.int32(), b=pa.float64()))


def test_vectors_of_another_length_than_the_table_s_are_refused() -> None:
    """Otherwise each row would be refused later."""
    table = column("v", pa.list_(pa.float32(), 2))
    with pytest.raises(SchemaMismatchError):
        check_fits(ddl("v ARRAY<FLOAT>"), table, vectors={"v": 3})


NEVER_NULL = pa.struct([pa.field("a", pa.int32(), nullable=False)])


@pytest.mark.parametrize(
    "spark_values,table_type",
    [
        (pa.array([300], pa.int16()), pa.uint8()),
        (pa.array([[1.0, 2.0], [1.0]], pa.list_(pa.float32())), pa.list_(pa.float32(), 2)),
        (pa.array([b"abc"]), pa.binary(2)),
        (pa.array([70_000.0], pa.float32()), pa.float16()),
        (pa.array([[1.0, -70_000.0]], pa.list_(pa.float32())), pa.list_(pa.float16(), 2)),
        (pa.array([{"a": None}], pa.struct([("a", pa.int32())])), NEVER_NULL),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_column(spark_values: "pa.Array[Any]", table_type: pa.DataType) -> None:
    """No value is truncated or wrapped."""
    batch = pa.record_batch({"c": spark_values})
    with pytest.raises(SchemaMismatchError):
        to_table_batch(batch, column("c", table_type))


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("around", ["struct", "array", "map", "inner struct"])
def test_vectors_below_null_structs_are_null(around: str, *, sliced: bool) -> None:
    """A list there may be empty in the frame, which is no vector of a wrong length."""
    pages: list[object] = [{"n": 1, "v": [1.0, 2.0]}, {"n": None, "v": None}, None, {"n": 8, "v": [3.0, 4.0]}]
    given, stored = (
        pa.struct([("n", pa.int32()), ("v", vector)]) for vector in (pa.list_(pa.float32()), pa.list_(pa.float32(), 2))
    )
    values: list[object] = [pages, [], None, [None]]
    types: tuple[pa.DataType, pa.DataType] = pa.list_(given), pa.list_(stored)
    if around == "map":
        values = [[("a", page)] for page in pages]
        types = (pa.map_(pa.string(), given), pa.map_(pa.string(), stored))
    elif around != "array":
        values = pages if around == "struct" else [{"page": page} for page in pages]
        types = (given, stored) if around == "struct" else (pa.struct([("page", given)]), pa.struct([("page", stored)]))
    rows = pa.array([*values[:1], *values], types[0]).slice(1) if sliced else pa.array(values, types[0])
    written = to_table_batch(pa.record_batch({"c": rows}), column("c", types[1])).column("c")
    written.validate(full=True)
    assert values == written.to_pylist()


def test_numbers_are_rounded_to_half_precision() -> None:
    """What is infinite stays so, and the largest numbers fit."""
    values = pa.array([0.1, 65_519.0, -math.inf, None], pa.float32())
    stored = to_table_batch(pa.record_batch({"c": values}), column("c", pa.float16())).column("c")
    assert [None] == to_table_batch(pa.record_batch({"c": pa.nulls(1)}), column("c", pa.float16()))["c"].to_pylist()
    assert pa.array(np.array([0.1, 65_504, -np.inf, 0], np.float16), mask=np.array([0, 0, 0, 1], bool)) == stored


def test_a_replacement_keeps_the_types_a_frame_still_fits() -> None:
    """Spark does not know that a column was a vector, but the table does."""
    current = schema_of(v=pa.list_(pa.float32(), 2), u=pa.uint8(), gone=pa.int8())
    made = replacement_schema(ddl("new INT, v ARRAY<FLOAT>, u STRING"), current)
    assert schema_of(new=pa.int32(), v=pa.list_(pa.float32(), 2), u=pa.string()) == made


def test_the_size_of_a_row_is_estimated() -> None:
    """Numbers count exactly, vectors by their length, and text by a guess."""
    schema = schema_of(a=pa.int64(), b=pa.bool_(), v=pa.list_(pa.float32(), 256), s=pa.string())
    assert 8 + 1 + 1024 + 64 == row_bytes(schema)


def test_binary_is_found_in_nested_types() -> None:
    """Binary values have no size limit, at any depth."""
    assert holds_binary(column("c", pa.map_(pa.string(), pa.list_(pa.binary()))))
    assert not holds_binary(column("c", pa.struct([("a", pa.string()), ("b", pa.binary(4))])))
