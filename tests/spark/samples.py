"""Frames with one column of each type that a Lance table can take from Spark."""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

EVERY_TYPE = {
    "a_byte": "cast(-7 AS byte)",
    "a_short": "cast(-700 AS short)",
    "an_int": "-70000",
    "a_long": "-7000000000",
    "a_float": "cast(0.5 AS float)",
    "a_double": "cast(-0.1 AS double)",
    "a_boolean": "true",
    "a_string": "'Zürich'",
    "a_binary": "x'00FF'",
    "a_small_decimal": "cast(-1.25 AS decimal(10,2))",
    "a_large_decimal": "cast('1234567890123456789012345678.0123456789' AS decimal(38,10))",
    "a_date": "date '1969-12-31'",
    "a_timestamp": "timestamp '2026-01-31 12:34:56.123456 Europe/Paris'",
    "a_local_timestamp": "timestamp_ntz '2026-01-31 12:34:56.123456'",
    "a_time": "time '23:59:59.999999'",
    "a_duration": "interval '1 02:03:04.5' day to second",
    "a_vector": "array(cast(1 AS float), cast(2 AS float), cast(3 AS float))",
    "a_list_of_lists": "array(array(1), array(), array(2, 3))",
    "a_list_of_structs": "array(named_struct('x', 1, 'y', 'a'))",
    "a_map": "map('k', 1, 'l', 2)",
    "a_struct": "named_struct('inner', named_struct('x', 1), 'at', timestamp '2026-01-31 00:00:00 UTC')",
    "a_variant": """parse_json('{"a": [1, "b"]}')""",
    "a_void": "null",
}


def schema_of(**types: pa.DataType) -> pa.Schema:
    """The schema of a table whose columns are nullable."""
    return pa.schema([pa.field(name, arrow) for name, arrow in types.items()])


def every_type(spark: SparkSession, *, nulls: bool) -> DataFrame:
    """A frame with one row of values, and on request one of nulls."""
    columns = [f"if(id = 1, {value}, null) AS {name}" for name, value in EVERY_TYPE.items()]
    return spark.range(1, 3 if nulls else 2).selectExpr("id", *columns)


def rows(df: DataFrame) -> list[dict[str, object]]:
    """The rows of a frame by id, as comparable values."""
    found = [row.asDict(recursive=True) for row in df.orderBy("id").collect()]
    # Variants are compared by identity.
    return [{name: str(value) if name == "a_variant" else value for name, value in row.items()} for row in found]
