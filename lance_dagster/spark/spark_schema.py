"""Convert schemas and batches between Spark and Lance tables, by way of Arrow.

Spark has fewer types than Arrow. A read converts some types (`uint8` to `short`, a fixed-size list to an array,
nanoseconds to microseconds). A write converts the values back to the types of the table.

Every column of a table that is created for a Spark frame is nullable. The nullability of a Spark column depends
on the query that computes it rather than on the data, so the next frame could not be appended to a column that is
not nullable.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import (
    from_arrow_type,
    is_geography,
    is_geometry,
    is_variant,
    to_arrow_schema,
    to_arrow_type,
)
from pyspark.sql.types import DataType, StructField, StructType, UserDefinedType

from lance_dagster.datafiles import exact_cast, refuse_null_parts
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.arrow_types import has_blobs, has_legacy_blobs

SPARK_TYPE = "lance_dagster.spark.type"
"""The key, in the metadata of a column, of the type of Spark ML whose values the column holds."""
_ML, _USER_TYPES = "pyspark.ml.linalg", frozenset({"VectorUDT", "MatrixUDT"})
_MAX_DECIMAL = 38
# What a path has for the elements of an array, as in the paths of `columns.add_fields`.
_ITEM = "item"
# What PySpark raises for a type without a counterpart, and what pyarrow does for a decimal of too many digits.
_WITHOUT_SPARK_TYPE = (PySparkTypeError, ValueError)
# The reverse; an empty array or map has elements without a type, which Arrow does not declare to be never null.
_WITHOUT_ARROW_TYPE = (PySparkTypeError, ValueError)
# The estimated bytes of a string or binary value, and the estimated number of elements of a list or map.
_GUESSED_WIDTH = 64
_GUESSED_ELEMENTS = 16
# The size of a batch between Spark and Python. The time for each batch is negligible from about 16,000 rows on. The
# limits of cells and bytes keep the memory of a Python worker small for wide rows and for vectors.
_BATCH_ROWS = 16_384
_BATCH_CELLS = 2 * 1024 * 1024
_BATCH_BYTES = 16 * 1024 * 1024
_FEWEST_ROWS = 64
# Buffers of this many rows are multiples of 64 bytes, buffers of bits too. Spark takes up to a third less processor
# time for the values of a batch when its buffers are so aligned: 21 instead of 33 ns for each of 200 numbers in a row.
_ALIGNED_ROWS = 512
_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def target_schema(spark_schema: StructType, vectors: Mapping[str, int] | None = None) -> pa.Schema:
    """Return the Arrow schema of a table that is created for a Spark frame.

    Every column is nullable. Timestamps are microseconds in UTC, whatever the session's time zone.

    Args:
        spark_schema: The frame's `schema`.
        vectors: The length of each vector column, which in Spark is an array of numbers. Its rows must all
            have this length, and only then can Lance index and search them. `page.embedding` is a vector inside of a
            struct, and `pages.item.embedding` is one in each struct of an array.

    Raises:
        InvalidInputError: A column's type has no Arrow counterpart, a name is duplicated, or `vectors` names a
            column that is not an array of numbers.
    """
    doubled = sorted({name for name in spark_schema.names if spark_schema.names.count(name) > 1})
    if doubled:
        raise InvalidInputError(
            f"column names must be unique; rename one of the columns {', '.join(map(repr, doubled))} in the frame"
        )
    columns = [pa.field(field.name, _arrow_type(field), metadata=_user_type(field)) for field in spark_schema]
    return _with_vectors(pa.schema(columns), vectors or {})


def names_in_table(names: Sequence[str], table_names: Sequence[str]) -> list[str]:
    """Return what columns are called in a table, where upper and lower case make no difference.

    A name that the table has stays, and so does a name that means no column of the table, or more columns than one.

    Example: `ID` and `x` are `id` and `x` in a table of `id`, and `ID` and `x` in a table of `id` and `ID`.
    """
    own = set(table_names)
    free: dict[str, list[str]] = {}
    for name in table_names:
        if name not in names:
            free.setdefault(name.lower(), []).append(name)
    times = Counter(name.lower() for name in names if name not in own)
    meant = {lowered: found[0] for lowered, found in free.items() if len(found) == times[lowered] == 1}
    return [name if name in own else meant.get(name.lower(), name) for name in names]


def refuse_no_columns(spark_schema: StructType) -> None:
    """Refuse to write a frame without columns: a table would not keep its number of rows.

    Raises:
        InvalidInputError: The frame has none.
    """
    if not spark_schema.names:
        raise InvalidInputError("the frame has no columns, without which a table cannot keep rows; select one at least")


def replacement_schema(
    spark_schema: StructType, current: pa.Schema, vectors: Mapping[str, int] | None = None
) -> pa.Schema:
    """Return the schema of a table after a Spark frame replaced all its rows.

    A column the table has, with a type the frame's values fit, keeps the table's type: a vector stays a
    vector. The other columns are as in `target_schema`.

    Raises:
        InvalidInputError: As for `target_schema`.
    """
    frame_columns = target_schema(spark_schema)
    table_columns = {column.name: column for column in current}
    candidates = [table_columns.get(column.name, column) for column in frame_columns]
    kept = [k if _fits(m.type, k.type) else m for k, m in zip(candidates, frame_columns, strict=True)]
    return _with_vectors(pa.schema(kept), vectors or {})


def check_fits(
    spark_schema: StructType,
    target: pa.Schema,
    *,
    vectors: Mapping[str, int] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Refuse a Spark frame whose columns do not fit a table, before the frame is computed.

    Columns are matched by name, in any order. Values can still be refused later: a vector of the wrong
    length, a null where the table takes none, a number its type cannot hold.

    Args:
        spark_schema: The columns of the frame.
        target: The columns of the table that the frame has to have.
        vectors: The lengths of columns with vectors.
        names: All columns of the table, for the error; the columns of `target` if None is given.

    Raises:
        SchemaMismatchError: A column is missing or unknown, it has another type, or a column in `vectors`
            does not hold vectors of that length.
    """
    frame = target_schema(spark_schema)
    missing = [name for name in target.names if name not in frame.names]
    unknown = [name for name in frame.names if name not in target.names]
    if missing or unknown:
        wrong = [f"it lacks {', '.join(map(repr, missing))}"] if missing else []
        wrong += [f"the table has no {', '.join(map(repr, unknown))}"] if unknown else []
        raise SchemaMismatchError(
            f"the columns of the Spark frame are not those of the table: {' and '.join(wrong)}; "
            f"the table's columns are {', '.join(names or target.names)}"
        )
    for column in target:
        frame_type = spark_schema[column.name].dataType
        if not _fits(frame.field(column.name).type, column.type):
            raise SchemaMismatchError(
                f"column {column.name!r} is {frame_type.simpleString()} in the Spark frame and {column.type} in "
                f"the table, which takes {_spark_field(column).dataType.simpleString()}"
            )
        if _has_vectors_of_structs(column.type):
            raise SchemaMismatchError(
                f"column {column.name!r} is {column.type} in the table: Spark cannot write lists of a fixed "
                "length that have structs; give the rows to LanceTable.append"
            )
    for path, length in (vectors or {}).items():
        stored = _type_at(path, target)
        if not isinstance(stored, pa.FixedSizeListType) or stored.list_size != length:
            raise SchemaMismatchError(
                f"vectors says that {path!r} holds vectors of length {length}; the table has "
                f"{stored or 'no such column'}"
            )


def readable_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of a table's rows, every column nullable.

    Raises:
        InvalidInputError: Spark has no type for a column, or it holds blobs: Lance returns the place of a blob instead
            of its bytes, and a frame that is written back would store these places.
    """
    for column in schema:
        if _holds_blobs(column):
            raise InvalidInputError(
                f"column {column.name!r} holds blobs, which Spark cannot read; name the other columns to read them, "
                f"and read the blobs with pylance, by take_blobs of table.to_lance()"
            )
    return StructType([_spark_field(column) for column in schema])


def check_kept(columns: pa.Schema) -> None:
    """Refuse columns whose values Spark cannot read and write back unchanged.

    Raises:
        InvalidInputError: A column has such a type.
    """
    for column in columns:
        try:
            readable_schema(pa.schema([column]))
            changes = _is_cut(column.type)
        except InvalidInputError:
            changes = True
        if changes:
            raise InvalidInputError(
                f"column {column.name!r} is {column.type}, and the frame lacks it: Spark cannot keep its values; give "
                "the rows to LanceTable.upsert, which keeps them, such as table.upsert(frame.toArrow(), on=['id'])"
            )


def _is_cut(arrow: pa.DataType) -> bool:
    """Return whether Spark cuts values of a type, or of a part of it, to microseconds."""
    if isinstance(arrow, pa.BaseExtensionType):
        return _is_cut(arrow.storage_type)
    if isinstance(arrow, pa.DictionaryType):
        return _is_cut(arrow.value_type)
    if isinstance(arrow, pa.TimestampType | pa.DurationType):
        return bool(arrow.unit == "ns")
    return any(_is_cut(arrow.field(index).type) for index in range(arrow.num_fields))


def arrow_for_spark(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark expects from a data source."""
    return to_arrow_schema(schema, timezone="UTC")


def to_spark_batch(batch: pa.RecordBatch, expected: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of a table's rows to the types that Spark expects; columns that fit are not copied.

    Raises:
        InvalidInputError: A time or a duration is beyond Spark's range, with the column.
    """
    columns = [
        column if column.type == field.type else _widened(column, field)
        for column, field in zip(batch.columns, expected, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=expected)


def _widened(values: "pa.Array[Any]", field: "pa.Field[Any]") -> "pa.Array[Any]":
    # Spark stores microseconds, so nanoseconds are truncated. Every other conversion widens and is exact.
    try:
        return _cast(values, field.type, allow_time_truncate=True)
    except pa.ArrowInvalid as error:
        # Seconds and milliseconds reach further than microseconds.
        raise InvalidInputError(
            f"column {field.name!r} is {values.type} and has a value beyond the range of Spark's microseconds: "
            f"{str(error).rpartition(': ')[2]}; name the other columns to read them"
        ) from error


def _arrow_type(field: StructField) -> pa.DataType:
    try:
        return _relaxed(to_arrow_type(field.dataType, timezone="UTC"))
    except _WITHOUT_ARROW_TYPE as error:
        raise InvalidInputError(
            f"column {field.name!r} has the Spark type {field.dataType.simpleString()}, which has no Arrow "
            f"counterpart; cast it to another type"
        ) from error


def _with_vectors(schema: pa.Schema, vectors: Mapping[str, int]) -> pa.Schema:
    """Return a schema in which some columns, or fields inside of columns, are vectors."""
    for path, length in vectors.items():
        name, *inner = _steps(path, schema)
        column = schema.field(name) if name in schema.names else pa.field(name, pa.null())
        vector = column.with_type(_with_vector(path, inner, column.type if name in schema.names else None, length))
        schema = schema.set(schema.get_field_index(name), vector)
    return schema


def _steps(path: str, schema: pa.Schema) -> list[str]:
    """Return the name of the column, and the names of the fields inside of it, that lead to a field."""
    return [path] if path in schema.names else path.split(".")


def _with_vector(path: str, inner: Sequence[str], arrow: pa.DataType | None, length: int) -> pa.DataType:
    """Return the type of a column in which a field, to which some names lead, is a vector."""
    if not inner:
        return _vector_type(path, arrow, length)
    name, *rest = inner
    if isinstance(arrow, pa.ListType) and name == _ITEM:
        return pa.list_(_with_vector(path, rest, arrow.value_type, length))
    if isinstance(arrow, pa.StructType) and arrow.get_field_index(name) >= 0:
        vector = _with_vector(path, rest, arrow.field(name).type, length)
        return pa.struct([field.with_type(vector) if field.name == name else field for field in arrow])
    return _vector_type(path, None, length)


def _type_at(path: str, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of a column or of a field inside of one; None where there is none."""
    name, *inner = _steps(path, schema)
    arrow = schema.field(name).type if name in schema.names else None
    for step in inner:
        if isinstance(arrow, pa.ListType) and step == _ITEM:
            arrow = arrow.value_type
        else:
            is_field = isinstance(arrow, pa.StructType) and arrow.get_field_index(step) >= 0
            arrow = arrow.field(step).type if isinstance(arrow, pa.StructType) and is_field else None
    return arrow


def _user_type(field: StructField) -> dict[str, str] | None:
    """Return the metadata of a column that holds vectors or matrices of Spark ML."""
    kind = field.dataType
    known = isinstance(kind, UserDefinedType) and type(kind).__name__ in _USER_TYPES and type(kind).module() == _ML
    return {SPARK_TYPE: type(kind).__name__} if known else None


def _own_type(column: "pa.Field[Any]") -> DataType | None:
    """Return the type of Spark ML whose values a column holds; None for other columns."""
    name = (column.metadata or {}).get(SPARK_TYPE.encode(), b"").decode(errors="replace")
    # Any program can set the metadata, so nothing else is looked up by it.
    if name not in _USER_TYPES:
        return None
    # Not at the top: it imports the pipelines of Spark ML, which nearly no table needs.
    import pyspark.ml.linalg

    kind: DataType = getattr(pyspark.ml.linalg, name)()
    same = _relaxed(to_arrow_type(kind, timezone="UTC")) == _relaxed(column.type)
    return kind if same else None


def _vector_type(name: str, arrow: pa.DataType | None, length: int) -> pa.DataType:
    if arrow is None:
        raise InvalidInputError(f"vectors names {name!r}, and the Spark frame has no such column")
    if not isinstance(arrow, pa.ListType | pa.FixedSizeListType) or not is_number(arrow.value_type):
        raise InvalidInputError(f"vectors names {name!r}, which is {arrow} and not an array of numbers")
    # A type checker sees no other value here, but not every caller has a type checker.
    if type(length) is not int or length < 1:
        raise InvalidInputError(f"vectors gives {name!r} the length {length!r}; it must be a number, at least 1")
    return pa.list_(arrow.value_type, length)


def is_number(arrow: pa.DataType) -> bool:
    """Return whether values of a type are whole or floating numbers, which decimals are not."""
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow)


def _spark_field(column: "pa.Field[Any]") -> StructField:
    try:
        if _has_negative_scale(column.type):
            raise ValueError(f"Spark refuses {column.type} when a frame of it is used")
        spark_type = _own_type(column) or from_arrow_type(_relaxed(column.type))
        # PySpark makes a decimal of any number of digits, and finds only here that Spark has no more than 38.
        to_arrow_type(spark_type, timezone="UTC")
        return StructField(column.name, spark_type, nullable=True)
    except _WITHOUT_SPARK_TYPE as error:
        raise InvalidInputError(
            f"column {column.name!r} is {column.type}, for which Spark has no type; name the other columns to read them"
        ) from error


def _has_vectors_of_structs(arrow: pa.DataType) -> bool:
    """Return whether a type, or a part of it, is a list of a fixed length whose items are structs."""
    if isinstance(arrow, pa.FixedSizeListType) and pa.types.is_struct(arrow.value_type):
        return True
    return any(_has_vectors_of_structs(arrow.field(index).type) for index in range(arrow.num_fields))


def _has_negative_scale(arrow: pa.DataType) -> bool:
    """Return whether a type, or a part of it, is a decimal that counts in tens, hundreds and so on."""
    if isinstance(arrow, pa.DictionaryType):
        return _has_negative_scale(arrow.value_type)
    if pa.types.is_decimal(arrow):
        return bool(arrow.scale < 0)
    return any(_has_negative_scale(arrow.field(index).type) for index in range(arrow.num_fields))


def _holds_blobs(column: "pa.Field[Any]") -> bool:
    schema = pa.schema([column])
    return has_blobs(schema) or has_legacy_blobs(schema)


def _fits(frame: pa.DataType, table: pa.DataType) -> bool:
    """Return whether a frame's column has the type that Spark gives the table's column when it reads it."""
    try:
        read_back = to_arrow_type(from_arrow_type(_relaxed(table)), timezone="UTC")
    except _WITHOUT_SPARK_TYPE:
        return False
    return pa.types.is_null(frame) or bool(frame == _relaxed(read_back))


def _relaxed(arrow: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark has, nullable in every part; a type without one is returned unchanged."""
    if isinstance(arrow, pa.BaseExtensionType):
        return _relaxed(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return _relaxed(arrow.value_type)
    if pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    if pa.types.is_time32(arrow):
        return pa.time64("ns")
    if pa.types.is_decimal256(arrow) and arrow.precision <= _MAX_DECIMAL:
        return pa.decimal128(arrow.precision, arrow.scale)
    wider = _WIDER.get(arrow)
    return _relaxed_parts(arrow) if wider is None else wider


def _relaxed_parts(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return pa.list_(_relaxed(arrow.value_type))
    if isinstance(arrow, pa.MapType):
        return pa.map_(_relaxed(arrow.key_type), _relaxed(arrow.item_type))
    # Spark stores a variant, a geometry or a geography as a struct, recognises it by metadata of its fields and
    # rejects changes to them.
    if isinstance(arrow, pa.StructType) and not (is_variant(arrow) or is_geometry(arrow) or is_geography(arrow)):
        return pa.struct([pa.field(field.name, _relaxed(field.type)) for field in arrow])
    return arrow


def to_table_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Convert a batch from Spark to the types of a table; columns that need no change are not copied.

    Columns that the batch lacks become nulls. Single-precision numbers are rounded for a half-precision column, which
    refuses those beyond its range; every other conversion is exact.

    Raises:
        SchemaMismatchError: A value does not fit the table's type, with the column and the value.
    """
    columns: list[pa.Array[Any]] = []
    # Every access to `names` makes a list, which for each of many columns takes long.
    names = batch.schema.names
    for name, values in zip(names, batch.columns, strict=True):
        column_type = target.field(name).type
        if pa.types.is_float64(values.type) and pa.types.is_float32(column_type):
            columns.append(exact_cast(values, target.field(name)))
            continue
        try:
            columns.append(values if values.type == column_type else _cast(_castable(values, column_type), column_type))
        except pa.ArrowInvalid as error:
            problem = _wrong_length(values, column_type) or error
            raise SchemaMismatchError(f"column {name!r} does not fit the table's {column_type}: {problem}") from error
        if _holds(column_type, [pa.float16()]) and _beyond_half(values, column_type):
            raise SchemaMismatchError(
                f"column {name!r} does not fit the table's {column_type}: a number is beyond 65504, the largest one of "
                "half precision"
            )
    present = frozenset(names)
    for name, values in zip(names, columns, strict=True):
        refuse_null_parts(values, target.field(name))
    absent = [column for column in target if column.name not in present]
    columns += [pa.nulls(batch.num_rows, column.type) for column in absent]
    return pa.RecordBatch.from_arrays(columns, names=[*names, *(column.name for column in absent)])


def _cast(values: "pa.Array[Any]", arrow: pa.DataType, *, allow_time_truncate: bool = False) -> "pa.Array[Any]":
    """Cast values to a type, whose structs may have parts that take no nulls.

    An example is a variant: its parts are not nullable, but a null variant has null parts, which Arrow refuses to cast.
    """
    if isinstance(arrow, pa.DictionaryType) and not pa.types.is_dictionary(values.type):
        # Arrow casts only strings and binary values to a dictionary, and not numbers.
        return _cast(pc.dictionary_encode(_cast(values, arrow.value_type)), arrow)
    nullable = _nullable(arrow)
    cast = pc.call_function("cast", [values], pc.CastOptions(nullable, allow_time_truncate=allow_time_truncate))
    return cast if nullable == arrow else relabelled(cast, arrow)


def _nullable(arrow: pa.DataType) -> pa.DataType:
    """Return a type whose parts all take nulls."""
    if isinstance(arrow, pa.StructType):
        return pa.struct([field.with_nullable(nullable=True).with_type(_nullable(field.type)) for field in arrow])
    if isinstance(arrow, pa.ListType):
        return pa.list_(arrow.value_field.with_nullable(nullable=True).with_type(_nullable(arrow.value_type)))
    if isinstance(arrow, pa.MapType):
        # pyarrow takes a field for the items, which its stubs do not know.
        map_of: Any = pa.map_
        item = arrow.item_field.with_nullable(nullable=True).with_type(_nullable(arrow.item_type))
        nullable_map: pa.DataType = map_of(arrow.key_type, item)
        return nullable_map
    return arrow


def relabelled(values: Any, arrow: pa.DataType) -> "pa.Array[Any]":  # noqa: ANN401 - any Arrow array
    """Return the same values under a type that differs in the names and the nullability of its parts only.

    Raises:
        pyarrow.ArrowInvalid: A part that takes no null has one, and what it is a part of is not null.
    """
    if values.type == arrow:
        same: pa.Array[Any] = values
        return same
    # A slice shares the buffers of its array, and only a copy starts at their beginning.
    unsliced = pa.concat_arrays([values]) if values.offset else values
    bitmap, *offsets = unsliced.buffers()[: 1 if isinstance(arrow, pa.StructType) else 2]
    if isinstance(arrow, pa.StructType):
        parts = []
        for index in range(arrow.num_fields):
            part, field = unsliced.field(index), arrow.field(index)
            if part.null_count and not field.nullable and pc.any(pc.and_(part.is_null(), unsliced.is_valid())).as_py():
                raise pa.ArrowInvalid(f"part {field.name!r} is null, and takes no null")
            parts.append(relabelled(part, field.type))
    elif isinstance(arrow, pa.MapType):
        entries = pa.StructArray.from_arrays(
            [unsliced.keys, relabelled(unsliced.items, arrow.item_type)], fields=[arrow.key_field, arrow.item_field]
        )
        parts = [entries]
    else:
        parts = [relabelled(unsliced.values, arrow.field(0).type)]
    return pa.Array.from_buffers(arrow, len(unsliced), [bitmap, *offsets], children=parts)


def _beyond_half(values: Any, arrow: pa.DataType) -> bool:  # noqa: ANN401 - any Arrow array
    """Return whether a finite number, at any depth, becomes infinite in half precision."""
    if pa.types.is_float16(arrow) and pa.types.is_floating(values.type):
        # The middle between the largest number and the next one that half precision does not have.
        large = pc.and_(pc.is_finite(values), pc.greater_equal(pc.abs(values), pa.scalar(65_520.0, values.type)))
        return bool(pc.any(large).as_py())
    if isinstance(values, pa.MapArray) and isinstance(arrow, pa.MapType):
        return _beyond_half(values.keys, arrow.key_type) or _beyond_half(values.items, arrow.item_type)
    if isinstance(values, pa.ListArray):
        return _beyond_half(values.flatten(), arrow.field(0).type)
    if isinstance(values, pa.StructArray) and isinstance(arrow, pa.StructType):
        return any(_beyond_half(values.field(index), arrow.field(index).type) for index in range(arrow.num_fields))
    return False


def _wrong_length(values: "pa.Array[Any]", arrow: pa.DataType) -> str | None:
    """Describe the first vector of the wrong length; None when there is none."""
    if not isinstance(arrow, pa.FixedSizeListType) or not isinstance(values, pa.ListArray):
        return None
    lengths = values.value_lengths().drop_null().to_pylist()
    wrong = next((length for length in lengths if length != arrow.list_size), None)
    return None if wrong is None else f"a row has {wrong} elements"


def _castable(values: "pa.Array[Any]", arrow: pa.DataType) -> "pa.Array[Any]":
    """Return equal values that pyarrow casts to a type with vectors."""
    return _with_elements(_without_hidden(values) if _has_inner_vectors(arrow) else values)


def _has_inner_vectors(arrow: pa.DataType) -> bool:
    """Return whether a field of a struct, at any depth, is a vector."""
    inner = [arrow.field(index).type for index in range(arrow.num_fields)]
    if isinstance(arrow, pa.StructType) and any(isinstance(kind, pa.FixedSizeListType) for kind in inner):
        return True
    return any(map(_has_inner_vectors, inner))


def _without_hidden(values: Any) -> "pa.Array[Any]":  # noqa: ANN401 - any Arrow array
    """Return the same values with nulls below null structs, where pyarrow otherwise finds lists of a wrong length."""
    if isinstance(values, pa.StructArray):
        hidden = values.is_null()
        parts = [
            _without_hidden(pc.if_else(hidden, pa.scalar(None, field.type), values.field(index)))
            for index, field in enumerate(values.type)
        ]
        fields = [pa.field(field.name, part.type) for field, part in zip(values.type, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=hidden)
    if isinstance(values, pa.ListArray):
        # A slice shares the buffers of its array, and only a copy starts at their beginning.
        unsliced = pa.concat_arrays([values]) if values.offset else values
        if isinstance(unsliced, pa.MapArray):
            # A map is a list too, and its type would be lost below.
            # pyarrow takes a mask, which its stubs know only beside a type.
            map_of: Any = pa.MapArray.from_arrays
            rebuilt: pa.Array[Any] = map_of(
                unsliced.offsets, unsliced.keys, _without_hidden(unsliced.items), mask=unsliced.is_null()
            )
            return rebuilt
        items = _without_hidden(unsliced.values)
        return pa.Array.from_buffers(pa.list_(items.type), len(unsliced), unsliced.buffers()[:2], children=[items])
    kept: pa.Array[Any] = values
    return kept


def _with_elements(values: "pa.Array[Any]") -> "pa.Array[Any]":
    """Copy lists that have no element at all: pyarrow crashes when it casts such lists from Java to vectors."""
    return pa.concat_arrays([values.slice(0, 0), values]) if _lacks_elements(values) else values


def _lacks_elements(values: Any) -> bool:  # noqa: ANN401 - any Arrow array
    """Return whether an array has lists without a single element, at any depth."""
    if isinstance(values, pa.ListArray):
        return not len(values.values) or _lacks_elements(values.values)
    if isinstance(values, pa.StructArray):
        return any(_lacks_elements(values.field(index)) for index in range(values.type.num_fields))
    return False


def batch_rows(schema: pa.Schema, stored_row_bytes: int = 0) -> int:
    """Return the number of rows of a batch of some columns.

    Args:
        schema: The columns.
        stored_row_bytes: The bytes that a row of these columns takes in the files of the table, when there are any:
            strings may be longer than the guess.
    """
    width = max(row_bytes(schema), stored_row_bytes)
    cells = max(1, sum(_cells(column.type) for column in schema))
    return max(_FEWEST_ROWS, aligned_rows(min(_BATCH_ROWS, _BATCH_CELLS // cells, _BATCH_BYTES // width)))


def aligned_rows(rows: int) -> int:
    """Return the largest number of rows up to a limit whose buffers are aligned; few rows stay as they are."""
    return rows - rows % _ALIGNED_ROWS if rows >= _ALIGNED_ROWS else rows


def row_bytes(schema: pa.Schema) -> int:
    """Estimate the bytes of a row from its types, to choose the number of rows in a batch."""
    return max(1, sum(_width(column.type) for column in schema))


def holds_binary(schema: pa.Schema) -> bool:
    """Return whether a column or a part of one is binary; a limit of rows then does not bound a batch's bytes."""
    return any(_holds(column.type, [pa.binary(), pa.large_binary()]) for column in schema)


def _width(arrow: pa.DataType) -> int:
    if isinstance(arrow, pa.FixedSizeListType):
        length: int = arrow.list_size
        return length * _width(arrow.value_type)
    if arrow.num_fields:
        elements = 1 if pa.types.is_struct(arrow) else _GUESSED_ELEMENTS
        return elements * sum(_width(arrow.field(index).type) for index in range(arrow.num_fields))
    try:
        return (arrow.bit_width + 7) // 8
    except ValueError:
        return _GUESSED_WIDTH


def _cells(arrow: pa.DataType) -> int:
    """Return the estimated number of single values in one value of a type."""
    if isinstance(arrow, pa.FixedSizeListType):
        length: int = arrow.list_size
        return length * _cells(arrow.value_type)
    elements = 1 if pa.types.is_struct(arrow) else _GUESSED_ELEMENTS
    return elements * sum(_cells(arrow.field(index).type) for index in range(arrow.num_fields)) or 1


def _holds(arrow: pa.DataType, kinds: Sequence[pa.DataType]) -> bool:
    """Return whether a type is one of some types, or a part of it is."""
    if arrow.num_fields:
        return any(_holds(arrow.field(index).type, kinds) for index in range(arrow.num_fields))
    return arrow in kinds
