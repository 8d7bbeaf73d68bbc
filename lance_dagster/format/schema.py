"""Schemas: Arrow types to Lance fields with logical types and ids, and back.

Fields are listed in depth-first order and numbered in that order at creation. A fixed-size list of primitives is one
field without children. Where the published list of logical types and pylance 14 differ (time zones of timestamps,
`time32`, `map`), what pylance writes holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from lance_dagster.errors import InvalidInputError, UnsupportedFeatureError
from lance_dagster.format.model import Field
from lance_dagster.format.transaction import MapUpdate

ArrowField: TypeAlias = "pa.Field[Any]"
_EXTENSION_NAME = "ARROW:extension:name"
# Of Arrow's own extension types, whose parameters pyarrow does not give away, those that have none.
_WITHOUT_PARAMETERS = frozenset({"arrow.uuid", "arrow.bool8"})
_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
_PRIMARY_KEY_POSITION = "lance-schema:unenforced-primary-key:position"
_SIMPLE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
}
_SIMPLE_NAMES = {str(arrow): name for name, arrow in _SIMPLE.items()} | {
    str(pa.string_view()): "string",
    str(pa.binary_view()): "binary",
}
_LISTS: dict[str, Any] = {
    "list": pa.list_,
    "list.struct": pa.list_,
    "large_list": pa.large_list,
    "large_list.struct": pa.large_list,
}
_TIMES: dict[str, Any] = {"time32": pa.time32, "time64": pa.time64, "duration": pa.duration}
# The codes are ignored by readers of current files; they are written because pylance writes them.
_PLAIN, _VAR_BINARY, _DICTIONARY = 1, 2, 3


def fields_from_arrow(schema: pa.Schema) -> tuple[Field, ...]:
    """Give the columns of an Arrow schema ids, depth-first from 0.

    Raises:
        InvalidInputError: A column has a type the format cannot hold, or two columns have one name.
    """
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise InvalidInputError(f"column names must be unique; {', '.join(map(repr, doubled))} stands twice")
    found: list[Field] = []
    for column in schema:
        _number(column, -1, found)
    return tuple(found)


def schema_metadata_from_arrow(schema: pa.Schema) -> dict[str, bytes]:
    """Return the metadata of an Arrow schema as the format keeps it."""
    return {key.decode(): value for key, value in (schema.metadata or {}).items()}


def arrow_from_fields(fields: Sequence[Field], metadata: Mapping[str, bytes] | None = None) -> pa.Schema:
    """Rebuild the Arrow schema of a table.

    Raises:
        UnsupportedFeatureError: A logical type is not known.
    """
    children: dict[int, list[Field]] = {}
    for field in fields:
        children.setdefault(field.parent_id, []).append(field)
    columns = [_arrow_field(field, children) for field in children.get(-1, [])]
    return pa.schema(columns, metadata={key.encode(): value for key, value in (metadata or {}).items()} or None)


def stored_field_ids(fields: Sequence[Field]) -> tuple[int, ...]:
    """Return the ids of the fields that own a column of a data file (file versions 2.1 and newer).

    These are the leaves: fields without children. Structs, lists and maps own none.
    """
    parents = {field.parent_id for field in fields}
    return tuple(field.id for field in fields if field.id not in parents)


def _number(column: ArrowField, parent: int, found: list[Field]) -> None:
    own = len(found)
    metadata = {key.decode(): value for key, value in (column.metadata or {}).items()}
    arrow: Any = column.type
    if isinstance(arrow, pa.BaseExtensionType):
        metadata = {**_extension_metadata(arrow, column.name), **metadata}
        arrow = arrow.storage_type
    name, encoding = _logical_type(arrow, column.name)
    found.append(
        Field(
            id=own,
            name=column.name,
            logical_type=name,
            parent_id=parent,
            nullable=column.nullable,
            metadata=metadata,
            extension_name=metadata.get(_EXTENSION_NAME, b"").decode(),
            encoding=encoding,
            primary_key=metadata.get(_PRIMARY_KEY) == b"true",
            primary_key_position=int(metadata.get(_PRIMARY_KEY_POSITION, b"0")),
        )
    )
    for child in _children(arrow):
        _number(child, own, found)


def _extension_metadata(extension: Any, column: str) -> dict[str, bytes]:  # noqa: ANN401  # no stub has its methods
    name: str = extension.extension_name
    if name in _WITHOUT_PARAMETERS:
        described = b""
    elif isinstance(extension, pa.ExtensionType):
        described = extension.__arrow_ext_serialize__()
    else:
        raise InvalidInputError(f"column {column!r}: {name} cannot be written down; store {extension.storage_type}")
    return {_EXTENSION_NAME: name.encode(), "ARROW:extension:metadata": described}


def _children(arrow: pa.DataType) -> Iterator[ArrowField]:
    if pa.types.is_struct(arrow):
        yield from (arrow.field(index) for index in range(arrow.num_fields))
    elif pa.types.is_map(arrow):
        entries = pa.struct([pa.field(arrow.key_field.name, arrow.key_type, nullable=False), arrow.item_field])
        yield pa.field("entries", entries, nullable=False)
    elif (
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or (pa.types.is_fixed_size_list(arrow) and pa.types.is_struct(arrow.value_type))
    ):
        yield arrow.value_field


def _logical_type(arrow: pa.DataType, column: str) -> tuple[str, int]:
    simple = _SIMPLE_NAMES.get(str(arrow))
    if simple is not None:
        variable = simple.removeprefix("large_") in ("string", "binary")
        return simple, _VAR_BINARY if variable else 0 if simple == "null" else _PLAIN
    name = _temporal_or_decimal(arrow) or _nested(arrow)
    if name is not None:
        return name, 0 if name == "struct" else _PLAIN
    if pa.types.is_dictionary(arrow):
        value = _logical_type(arrow.value_type, column)[0]
        return f"dict:{value}:{_logical_type(arrow.index_type, column)[0]}:false", _DICTIONARY
    if pa.types.is_fixed_size_list(arrow):
        value = "struct" if pa.types.is_struct(arrow.value_type) else _logical_type(arrow.value_type, column)[0]
        return f"fixed_size_list:{value}:{arrow.list_size}", _PLAIN
    raise InvalidInputError(f"column {column!r}: Lance tables cannot hold the Arrow type {arrow}")


def _temporal_or_decimal(arrow: pa.DataType) -> str | None:
    if pa.types.is_timestamp(arrow):
        return f"timestamp:{arrow.unit}:{arrow.tz or '-'}"
    if pa.types.is_time32(arrow) or pa.types.is_time64(arrow):
        return f"time{arrow.bit_width}:{arrow.unit}"
    if pa.types.is_duration(arrow):
        return f"duration:{arrow.unit}"
    if pa.types.is_decimal128(arrow) or pa.types.is_decimal256(arrow):
        return f"decimal:{arrow.bit_width}:{arrow.precision}:{arrow.scale}"
    if pa.types.is_fixed_size_binary(arrow):
        return f"fixed_size_binary:{arrow.byte_width}"
    return None


def _nested(arrow: pa.DataType) -> str | None:
    if pa.types.is_struct(arrow):
        return "struct"
    if pa.types.is_map(arrow):
        return "map"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        name = "list" if pa.types.is_list(arrow) else "large_list"
        return f"{name}.struct" if pa.types.is_struct(arrow.value_type) else name
    return None


def _arrow_field(field: Field, children: Mapping[int, Sequence[Field]]) -> ArrowField:
    nested = [_arrow_field(child, children) for child in children.get(field.id, ())]
    metadata = {key.encode(): value for key, value in field.metadata.items()}
    if field.logical_type == "struct":
        arrow: pa.DataType = pa.struct(nested)
    elif field.logical_type in _LISTS:
        arrow = _LISTS[field.logical_type](nested[0])
    elif field.logical_type == "map":
        entries = nested[0].type
        arrow = pa.map_(entries.field(0), entries.field(1))
    elif field.logical_type.startswith("fixed_size_list:struct:"):
        arrow = pa.list_(nested[0], int(field.logical_type.rpartition(":")[2]))
    else:
        arrow = _arrow_type(field.logical_type, field.name)
    return pa.field(field.name, arrow, field.nullable, metadata or None)


def _arrow_type(logical_type: str, column: str) -> pa.DataType:
    simple = _SIMPLE.get(logical_type)
    return simple if simple is not None else _parametrized_type(logical_type, column)


def _parametrized_type(logical_type: str, column: str) -> Any:  # noqa: ANN401  # the stubs want literal units
    kind, *rest = logical_type.split(":")
    unit: Any
    match kind, rest:
        case "timestamp", [unit, *zone]:
            name = ":".join(zone)
            return pa.timestamp(unit, None if name in ("", "-") else name)
        case (("time32" | "time64" | "duration"), [unit]):
            return _TIMES[kind](unit)
        case "decimal", [width, precision, scale]:
            make = pa.decimal256 if width == "256" else pa.decimal128
            return make(int(precision), int(scale))
        case "fixed_size_binary", [size]:
            return pa.binary(int(size))
        case "fixed_size_list", [*value, size]:
            return pa.list_(_arrow_type(":".join(value), column), int(size))
        case "dict", [*value, index, _ordered]:
            return pa.dictionary(_arrow_type(index, column), _arrow_type(":".join(value), column))
    raise UnsupportedFeatureError(f"column {column!r}", [f"logical type {logical_type!r}"])


def renumbered(fields: Sequence[Field], first: int) -> tuple[Field, ...]:
    """Return the fields with ids counted from `first`, parents following their children."""
    ids = {field.id: first + offset for offset, field in enumerate(fields)}
    return tuple(replace(field, id=ids[field.id], parent_id=ids.get(field.parent_id, -1)) for field in fields)


def with_field_metadata(fields: Sequence[Field], updates: Mapping[int, MapUpdate]) -> tuple[Field, ...]:
    """Return the fields with changed metadata, by field id; what follows from it is set too.

    Raises:
        InvalidInputError: There is no field of an id.
    """
    missing = sorted(updates.keys() - {field.id for field in fields})
    if missing:
        raise InvalidInputError(f"the table has no field {missing[0]}")
    return tuple(_described(field, updates[field.id]) if field.id in updates else field for field in fields)


def _described(field: Field, update: MapUpdate) -> Field:
    current = {key: value.decode("utf-8", "surrogateescape") for key, value in field.metadata.items()}
    metadata = {key: value.encode("utf-8", "surrogateescape") for key, value in update.applied(current).items()}
    return replace(
        field,
        metadata=metadata,
        extension_name=metadata.get(_EXTENSION_NAME, b"").decode(),
        primary_key=metadata.get(_PRIMARY_KEY) == b"true",
        primary_key_position=int(metadata.get(_PRIMARY_KEY_POSITION, b"0")),
    )
