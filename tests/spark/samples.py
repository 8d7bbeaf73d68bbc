"""Frames with one column of each type that a Lance table can take from Spark."""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

# The SQL type of each column and some values, to which nulls are added; nested types have nulls at each level.
EVERY_TYPE: dict[str, tuple[str, *tuple[str, ...]]] = {
    "a_byte": ("byte", "-128", "127"),
    "a_short": ("short", "-32768", "32767"),
    "an_int": ("int", "-2147483648", "2147483647"),
    "a_long": ("long", "-9223372036854775807 - 1", "9223372036854775807"),
    "a_float": ("float", "0.1F", "float('nan')", "-float('infinity')", "-0.0F"),
    "a_double": ("double", "-0.1D", "double('nan')", "double('infinity')", "-0.0D"),
    "a_boolean": ("boolean", "true", "false"),
    "a_string": ("string", "'Zürich'", "''"),
    "a_binary": ("binary", "x'00FF'", "x''"),
    "a_small_decimal": ("decimal(10,2)", "-1.25BD", "99999999.99BD"),
    "a_large_decimal": ("decimal(38,10)", "'1234567890123456789012345678.0123456789'"),
    "a_date": ("date", "date '0001-01-01'", "date '1969-12-31'", "date '9999-12-31'"),
    "a_timestamp": (
        "timestamp",
        "timestamp '2026-01-31 12:34:56.123456 Europe/Paris'",
        "timestamp '0001-01-01 00:00:00 UTC'",
        "timestamp '9999-12-31 23:59:59.999999 UTC'",
    ),
    "a_local_timestamp": (
        "timestamp_ntz",
        "timestamp_ntz '2026-01-31 12:34:56.123456'",
        "timestamp_ntz '0001-01-01 00:00:00'",
        "timestamp_ntz '9999-12-31 23:59:59.999999'",
    ),
    "a_time": ("time(6)", "time '00:00:00'", "time '23:59:59.999999'"),
    "a_duration": (
        "interval day to second",
        "interval '1 02:03:04.5' day to second",
        "-interval '99999999 23:59:59.999999' day to second",
    ),
    "a_vector": ("array<float>", "array(1F, 2F, 3F)", "array(1F, null, float('nan'))"),
    "a_list": ("array<int>", "array()", "array(null)", "array(1, null, 2)"),
    "a_list_of_lists": ("array<array<int>>", "array(array(1), array(), null, array(2, null))"),
    "a_list_of_structs": (
        "array<struct<x: struct<y: int>, s: string>>",
        "array()",
        "array(null, named_struct('x', null, 's', null), named_struct('x', named_struct('y', null), 's', 'a'))",
        "array(named_struct('x', named_struct('y', 1), 's', null))",
    ),
    "a_map": ("map<string, int>", "map()", "map('k', 1, 'l', null)"),
    "a_map_of_lists": (
        "map<int, array<struct<y: int>>>",
        "map(1, null)",
        "map(1, array(), 2, array(null), 3, array(named_struct('y', null), named_struct('y', 7)))",
    ),
    "a_struct": (
        "struct<inner: struct<x: int>, at: timestamp, l: array<struct<y: int>>, m: map<string, int>>",
        "named_struct('inner', null, 'at', null, 'l', null, 'm', null)",
        "named_struct('inner', named_struct('x', null), 'at', null, 'l', array(null), 'm', map('k', null))",
        """named_struct('inner', named_struct('x', 1), 'at', timestamp '2026-01-31 00:00:00 UTC', 'l',
        array(named_struct('y', null), named_struct('y', 1)), 'm', map('k', 1))""",
    ),
    "a_variant": ("variant", """parse_json('{"a": [1, "b"]}')""", "parse_json('null')"),
    "a_struct_with_a_variant": (
        "struct<v: variant, s: struct<y: int>>",
        "named_struct('v', null, 's', named_struct('y', 1))",
        "named_struct('v', parse_json('[1]'), 's', null)",
    ),
    "a_list_of_variants": ("array<variant>", "array(null, parse_json('[1]'))"),
    "a_void": ("void",),
}
VARIANTS = ("a_variant", "a_struct_with_a_variant", "a_list_of_variants")
VECTORS = {"a_vector": 3}


def schema_of(**types: pa.DataType) -> pa.Schema:
    """The schema of a table whose columns are nullable."""
    return pa.schema([pa.field(name, arrow) for name, arrow in types.items()])


def with_every_type(ids: DataFrame) -> DataFrame:
    """A frame with a column of each type beside the ids, which count from 0: first nulls, then each of the values."""
    columns = [
        f"cast(CASE id {' '.join(f'WHEN {n} THEN {value}' for n, value in enumerate(['null', *values]))} END AS {kind})"
        f" AS {name}"
        for name, (kind, *values) in EVERY_TYPE.items()
    ]
    return ids.selectExpr("id", *columns)


def every_type(spark: SparkSession) -> DataFrame:
    """The frame of `with_every_type` with as many rows as the column of most values needs."""
    return with_every_type(spark.range(max(map(len, EVERY_TYPE.values()))).coalesce(1))


def rows(df: DataFrame) -> list[dict[str, object]]:
    """The rows of a frame by id."""
    return [row.asDict(recursive=True) for row in df.orderBy("id").collect()]
