"""Convert batches to the schema of a table.

Only the representation of values may change: column order, offset widths, equivalent list types. Values are never
rounded, parsed or filled in, because a silent conversion in a pipeline is found much later than an error.

Arrow and Spark take any bytes as a string, and so does pylance when it writes them. It refuses to read them, so one
such string would make its whole column unreadable: text is checked here, before it is written.
"""

import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles.extension_types import extended, stored, stored_type
from lance_dagster.errors import SchemaMismatchError
from lance_dagster.format.arrow_types import BLOB, storage_type

_STRINGS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BINARIES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns, order and types of `schema`.

    Types may differ in the width of offsets, a list for a fixed-size list, the time zone label, a coarser time unit,
    whether a dictionary is ordered, or the null type for any type.

    Raises:
        SchemaMismatchError: A column does not fit; the message names it and both types. Or a string is not UTF-8; the
            message names its column and row. Or a part of a value is null that the table holds not null.
    """
    check_schema(batch.schema, schema)
    columns = [_conform_column(_unsliced(batch.column(column.name)), column) for column in schema]
    for column, values in zip(schema, map(stored, columns), strict=True):
        _check_text(values, column.name)
        refuse_null_parts(values, column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_schema(actual: pa.Schema, expected: pa.Schema) -> None:
    """Refuse rows of schema `actual` for a table of schema `expected`, before any row is read.

    Raises:
        SchemaMismatchError: Some columns do not fit; the message names each, with both types.
    """
    # Every access to `names` makes a list, which for each of many columns would take longer than to write the rows.
    names, times = expected.names, Counter(actual.names)
    expected_names = frozenset(names)
    problems = [f"column {name!r} is missing" for name in names if name not in times]
    problems += [f"column {name!r} is not in the table" for name in actual.names if name not in expected_names]
    problems += [f"column {name!r} is given twice" for name in names if times[name] > 1]
    # All problems are collected, so that a caller fixes them in one go.
    for column in expected:
        if times[column.name] != 1:
            continue
        source = actual.field(column.name).type
        if not fits_type(source, column.type):
            problems.append(f"column {column.name!r} is {source}, the table holds {column.type}")
    if problems:
        raise SchemaMismatchError("; ".join(problems))


def fits_type(source: Any, target: Any) -> bool:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    """Return whether `conform` takes values of a type for a column of another type."""
    # Equal types are the usual case, and need no look at their structure.
    if source == target:
        return True
    # A table stores the storage type of an extension type; the metadata of the column names the extension.
    blobs = _is_blob(target) and (_is_blob(source) or source in _BINARIES)
    source, target = storage_type(source), storage_type(target)
    if (
        blobs
        or source == target
        or pa.types.is_null(source)
        or _is_family(source, target)
        or _fits_dictionary(source, target)
    ):
        return True
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        # Values of a coarser unit convert without loss; values of a finer unit would be rounded.
        finer = ["s", "ms", "us", "ns"]
        return (source.tz is None) == (target.tz is None) and finer.index(source.unit) <= finer.index(target.unit)
    if _is_list(source) and _is_list(target):
        # Vectors of different lengths cannot be cast; a list without a fixed length may have the right length.
        fixed = pa.types.is_fixed_size_list
        if fixed(source) and fixed(target) and source.list_size != target.list_size:
            return False
        return fits_type(source.value_type, target.value_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _same_struct(source, target)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return fits_type(source.key_type, target.key_type) and fits_type(source.item_type, target.item_type)
    return False


def _is_family(source: pa.DataType, target: pa.DataType) -> bool:
    return any(source in family and target in family for family in (_STRINGS, _BINARIES))


def _fits_dictionary(source: Any, target: Any) -> bool:  # noqa: ANN401  # any Arrow type
    """Return whether both are dictionaries of the same values; the format does not store whether they are ordered."""
    if not (
        pa.types.is_dictionary(source) and pa.types.is_dictionary(target) and source.index_type == target.index_type
    ):
        return False
    return source.value_type == target.value_type or _is_family(source.value_type, target.value_type)


def _is_blob(arrow: Any) -> bool:  # noqa: ANN401  # only extension types have the name
    return getattr(arrow, "extension_name", None) == BLOB


def _same_struct(source: pa.StructType, target: pa.StructType) -> bool:
    names = [target.field(index).name for index in range(target.num_fields)]
    if names != [source.field(index).name for index in range(source.num_fields)]:
        return False
    return all(fits_type(source.field(index).type, target.field(index).type) for index in range(target.num_fields))


def _is_list(arrow: pa.DataType) -> bool:
    return pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)


def _unsliced(values: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return an array that is not a slice of a longer one, where pylance needs that.

    pylance 14 dies on a slice of a struct that holds structs.
    """
    inner = (values.type.field(index).type for index in range(values.type.num_fields))
    if values.offset == 0 or not pa.types.is_struct(values.type) or not any(map(pa.types.is_nested, inner)):
        return values
    return values.take(pa.array(range(len(values)), pa.int64()))


def _conform_column(values: "pa.Array[Any]", column: "pa.Field[Any]") -> "pa.Array[Any]":
    if not column.nullable and values.null_count:
        raise SchemaMismatchError(f"column {column.name!r} has nulls, the table holds {column.type} not null")
    if values.type == column.type:
        return values
    try:
        if _is_blob(column.type):
            return _as_blobs(values, column.type)
        plain, target = stored(values), stored_type(column.type)
        cast: pa.Array[Any] = extended(plain if plain.type == target else plain.cast(target), column.type)
        return cast
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"column {column.name!r} is {values.type}, the table holds {column.type}: {error}"
        ) from error


def refuse_null_parts(values: "pa.Array[Any]", column: "pa.Field[Any]") -> None:
    """Refuse nulls in parts of values that take no nulls; pylance refuses some of these nulls, and stores others.

    Raises:
        SchemaMismatchError: The message names the column and the part.
    """
    if not _has_required_part(column.type):
        return
    part = _null_part(values, column.name)
    if part is not None:
        raise SchemaMismatchError(f"column {column.name!r} has nulls in {part}, which the table holds not null")


def _has_required_part(arrow: pa.DataType) -> bool:
    """Return whether a part of a type, at any depth, takes no nulls; the keys and the entries of a map never do."""
    parts = [arrow.field(index) for index in range(arrow.num_fields)]
    if isinstance(arrow, pa.MapType):
        parts = [arrow.item_field]
    return any(not part.nullable or _has_required_part(part.type) for part in parts)


def _null_part(values: Any, path: str) -> str | None:  # noqa: ANN401  # any Arrow array
    """Return the path of the first part that takes no nulls and has a null; what is below a null does not count."""
    arrow = values.type
    if isinstance(arrow, pa.BaseExtensionType):
        return _null_part(values.storage, path)
    parts: list[tuple[pa.Field[Any], Any, str]] = []
    if pa.types.is_struct(arrow):
        present = values.filter(values.is_valid()) if values.null_count else values
        parts = [
            (arrow.field(index), present.field(index), arrow.field(index).name) for index in range(arrow.num_fields)
        ]
    elif isinstance(arrow, pa.MapType):
        # The items of a slice are the items of the whole array; the filter copies the slice.
        parts = [(arrow.item_field, values.filter(values.is_valid()).items, "value")]
    elif pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        parts = [(arrow.field(0), values.flatten(), arrow.field(0).name)]
    for field, part, name in parts:
        if not field.nullable and part.null_count:
            return f"{path}.{name}"
        null_path = _null_part(part, f"{path}.{name}") if _has_required_part(field.type) else None
        if null_path is not None:
            return null_path
    return None


def _check_text(values: "pa.Array[Any]", name: str) -> None:
    """Refuse a column with a string that is not UTF-8.

    Raises:
        SchemaMismatchError: The message names the first row that has such a string, counted in its batch.
    """
    if all(map(_is_utf8, _texts(values))):
        return
    first, end = 0, len(values)
    # The rows from `first` up to `end` have such a string, and no row before `first` does.
    while end - first > 1:
        middle = (first + end) // 2
        if all(map(_is_utf8, _texts(values.slice(first, middle - first)))):
            first = middle
        else:
            end = middle
    wrong = next(text for text in _texts(values.slice(first, 1)) if not _is_utf8(text))
    shown = reprlib.repr(_as_binary(wrong)[0].as_py() if len(wrong) == 1 else _as_binary(wrong).to_pylist())
    # All rows share one dictionary, so the error names no single row.
    where = "its dictionary" if pa.types.is_dictionary(values.type) else f"row {first} of a batch"
    raise SchemaMismatchError(
        f"column {name!r} has a string that is not UTF-8, in {where}: {shown}; decode it with the "
        "encoding that it has, or write it to a column of type binary"
    )


def _texts(values: "pa.Array[Any]") -> "Iterator[pa.Array[Any]]":
    """Yield the arrays of strings in an array: the array itself, or the arrays nested in it."""
    # An extension type need not be hashable, as pylance's type of blobs is not.
    if not isinstance(values, pa.ExtensionArray) and values.type in _STRINGS:
        yield values
        return
    for part in _parts(values):
        yield from _texts(part)


def _parts(values: Any) -> "Sequence[pa.Array[Any]]":  # noqa: ANN401  # no stub has the parts of every type
    """Return the arrays that an array consists of, without the rows outside of a slice."""
    arrow = values.type
    if isinstance(values, pa.ExtensionArray):
        return [values.storage]
    if pa.types.is_dictionary(arrow):
        return [values.dictionary]
    if pa.types.is_struct(arrow):
        return list(values.flatten())
    if pa.types.is_map(arrow):
        first, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return [part.slice(first, end - first) for part in (values.keys, values.items)]
    # Lists of numbers are skipped: vectors are the usual lists, and flattening a vector may copy it.
    return [values.flatten()] if _is_list(arrow) and not pa.types.is_primitive(arrow.value_type) else []


def _is_utf8(texts: Any) -> bool:  # noqa: ANN401  # an array of strings
    """Return whether each string is UTF-8."""
    offset_type = {pa.string(): np.int32, pa.large_string(): np.int64}.get(texts.type)
    _, places, data = texts.buffers()[:3] if offset_type else (None, None, None)
    if offset_type and places and data:
        # ASCII is UTF-8, and this test of all the bytes takes a fifth of the time of the conversion below.
        ends = np.frombuffer(places, offset_type)[[texts.offset, texts.offset + len(texts)]]
        if np.frombuffer(data, np.int8)[ends[0] : ends[1]].min(initial=0) >= 0:
            return True
    try:
        # Only a conversion from binary validates the bytes.
        _as_binary(texts).cast(texts.type)
    except pa.ArrowInvalid:
        return False
    return True


def _as_binary(texts: Any) -> Any:  # noqa: ANN401  # an array of strings, and one of bytes
    return texts.cast(
        {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(texts.type, pa.binary_view())
    )


def _as_blobs(values: Any, target: Any) -> "pa.Array[Any]":  # noqa: ANN401  # no stub has an extension's storage
    """Convert binary values, or blobs in another struct layout, to the blob type of a column."""
    source = values.storage if _is_blob(values.type) else pa.StructArray.from_arrays([values], ["data"])
    nulls = values.is_null()
    fields: list[Any] = list(target.storage_type)
    names = {source.type.field(index).name for index in range(source.type.num_fields)}
    parts = [source.field(own.name) if own.name in names else pa.nulls(len(values), own.type) for own in fields]
    cast = [part.cast(own.type) for part, own in zip(parts, fields, strict=True)]
    storage = pa.StructArray.from_arrays(cast, fields=fields, mask=nulls)
    return pa.ExtensionArray.from_storage(target, storage)
