"""Extension types: the name and the parameters a column keeps beside its storage type, and back to the type.

Arrow writes both into a column's metadata when it leaves the process, and so does the format. pyarrow gives the
parameters of types that were written in Python; those of its own it does not give away, so they are written down
here as the list of canonical extension types says.

JSON is the one extension with a logical type of its own: text on the outside, a binary form in the data files.

Logical types: the names the format gives to Arrow types, and back.

Where the published list of logical types and pylance 14 differ (time zones of timestamps, `time32`, `map`), what
pylance writes holds. Nested types have a name too; what they are made of stands in the fields below them.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lance_dagster.errors import InvalidInputError

EXTENSION_NAME = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"
JSON = "json"
_ARROW_JSON, _LANCE_JSON = "arrow.json", "lance.json"
_WITHOUT_PARAMETERS = frozenset({"arrow.uuid", "arrow.bool8", _ARROW_JSON})


def storage_type(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    """Return the type that holds the values of an extension type; any other type as it is."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def extension_metadata(arrow: Any, column: str) -> dict[str, bytes]:  # noqa: ANN401  # no stub has its methods
    """Return the metadata that says which extension type a column has; none for other types.

    Raises:
        InvalidInputError: Nobody knows how the parameters of the type are written down.
    """
    if not isinstance(arrow, pa.BaseExtensionType):
        return {}
    name: str = arrow.extension_name
    if name in _WITHOUT_PARAMETERS:
        parameters = b""
    elif isinstance(arrow, pa.ExtensionType):
        parameters = arrow.__arrow_ext_serialize__()
    else:
        parameters = json.dumps(_parameters(arrow, column), separators=(",", ":"), ensure_ascii=False).encode()
    return {EXTENSION_NAME: name.encode(), EXTENSION_METADATA: parameters}


def _parameters(arrow: Any, column: str) -> dict[str, object]:  # noqa: ANN401  # no stub has its properties
    if isinstance(arrow, pa.FixedShapeTensorType):
        optional = {"permutation": arrow.permutation, "dim_names": arrow.dim_names}
        return {"shape": arrow.shape, **{key: value for key, value in optional.items() if value is not None}}
    if isinstance(arrow, pa.OpaqueType):
        return {"type_name": arrow.type_name, "vendor_name": arrow.vendor_name}
    raise InvalidInputError(
        f"column {column!r}: {arrow.extension_name} cannot be written down; store {arrow.storage_type}"
    )


def is_json(storage: pa.DataType, metadata: dict[str, bytes]) -> bool:
    """Tell whether a column holds JSON, by its storage type and metadata."""
    name = metadata.get(EXTENSION_NAME, b"").decode("utf-8", "replace")
    text = pa.types.is_string(storage) or pa.types.is_large_string(storage)
    return (name == _ARROW_JSON and text) or (name == _LANCE_JSON and pa.types.is_large_binary(storage))


def lance_json_metadata(metadata: dict[str, bytes]) -> dict[str, bytes]:
    """Return the metadata of a column of JSON as the format has it."""
    return {**metadata, EXTENSION_NAME: _LANCE_JSON.encode()}


def arrow_json_metadata(metadata: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the metadata of a column of JSON as Arrow has it."""
    return {EXTENSION_METADATA.encode(): b"", **metadata, EXTENSION_NAME.encode(): _ARROW_JSON.encode()}


def with_extension_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema with extension types where the metadata names some that this process knows.

    Raises:
        ValueError: The parameters of one do not make sense.
    """
    return pa.ipc.read_schema(schema.serialize())


FIXED_SIZE_LIST_OF_STRUCTS = "fixed_size_list:struct:"
_BFLOAT16 = "lance.bfloat16"
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
_NUMBER = re.compile(r"-?[0-9]{1,10}")
# The codes are ignored by readers of current files; they are written because pylance writes them.
_PLAIN, VARIABLE_WIDTH, _DICTIONARY = 1, 2, 3


def logical_type(arrow: Any, column: str) -> tuple[str, int]:  # noqa: ANN401  # any Arrow type
    """Return the name of an Arrow type and the code of its encoding; `column` is for messages.

    Raises:
        InvalidInputError: The format cannot hold the type.
    """
    simple = _SIMPLE_NAMES.get(str(arrow))
    if simple is not None:
        variable = simple.removeprefix("large_") in ("string", "binary")
        return simple, VARIABLE_WIDTH if variable else 0 if simple == "null" else _PLAIN
    name = _temporal_or_decimal(arrow) or _nested(arrow)
    if name is not None:
        return name, 0 if name == "struct" else _PLAIN
    if pa.types.is_dictionary(arrow):
        value = logical_type(arrow.value_type, column)[0]
        return f"dict:{value}:{logical_type(arrow.index_type, column)[0]}:false", _DICTIONARY
    if pa.types.is_fixed_size_list(arrow) and arrow.list_size > 0:
        return f"fixed_size_list:{_value_of_vector(arrow, column)}:{arrow.list_size}", _PLAIN
    raise InvalidInputError(f"column {column!r}: Lance tables cannot hold the Arrow type {arrow}")


def _value_of_vector(arrow: Any, column: str) -> str:  # noqa: ANN401  # the stubs have no common class
    item = arrow.value_field
    name = getattr(item.type, "extension_name", None) or (item.metadata or {}).get(EXTENSION_NAME.encode(), b"")
    if name in (_BFLOAT16, _BFLOAT16.encode()):
        return _BFLOAT16
    value = storage_type(item.type)
    if pa.types.is_struct(value):
        return "struct"
    if _nested(value) is not None:
        raise InvalidInputError(f"column {column!r}: Lance tables cannot hold the Arrow type {arrow}")
    return logical_type(value, column)[0]


def _temporal_or_decimal(arrow: Any) -> str | None:  # noqa: ANN401  # the stubs have no common class
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


def _nested(arrow: Any) -> str | None:  # noqa: ANN401  # the stubs have no common class
    if pa.types.is_struct(arrow):
        return "struct"
    if pa.types.is_map(arrow):
        return None if arrow.keys_sorted else "map"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        name = "list" if pa.types.is_list(arrow) else "large_list"
        return f"{name}.struct" if pa.types.is_struct(storage_type(arrow.value_type)) else name
    return None


def arrow_type(name: str) -> pa.DataType | None:
    """Return the Arrow type of a logical type without fields below it; None when the name is not known.

    Raises:
        ValueError: The name is known and its parameters make no sense.
    """
    simple = _SIMPLE.get(name)
    if simple is not None:
        return simple
    kind, _, rest = name.partition(":")
    read = _PARAMETRIZED.get(kind)
    return None if read is None else read(*rest.split(":"))


def nested_type(name: str, children: "list[pa.Field[Any]]") -> pa.DataType | None:
    """Return the Arrow type of a logical type with fields below it; None for a name that is none of those.

    Raises:
        ValueError: The type needs other fields below it than there are.
    """
    kind, _, rest = name.partition(":")
    if name == "struct":
        return pa.struct(children)
    if name in ("list", "list.struct"):
        return pa.list_(*_exactly(1, children))
    if name in ("large_list", "large_list.struct"):
        return pa.large_list(*_exactly(1, children))
    if name == "map":
        entries: Any = _exactly(1, children)[0].type
        make: Callable[..., pa.DataType] = pa.map_
        return make(*_exactly(2, [entries.field(index) for index in range(entries.num_fields)]))
    if name.startswith(FIXED_SIZE_LIST_OF_STRUCTS):
        return pa.list_(_exactly(1, children)[0], _number(rest.rpartition(":")[2], least=1))
    if children:
        raise ValueError(f"{kind} has no fields below it")
    return None


def _exactly(count: int, children: "list[pa.Field[Any]]") -> "list[pa.Field[Any]]":
    if len(children) != count:
        raise ValueError(f"it needs {count} fields below it, not {len(children)}")
    return children


def _known(name: str) -> pa.DataType:
    found = arrow_type(name)
    if found is None:
        raise ValueError(f"{name!r} is no type")
    return found


def _number(text: str, least: int = -(2**31)) -> int:
    found = int(text) if _NUMBER.fullmatch(text) else None
    if found is None or not least <= found < 2**31:
        raise ValueError(f"{text!r} is not a number that fits")
    return found


def _timestamp(unit: Any, *zone: str) -> pa.DataType:  # noqa: ANN401  # the stubs want literal units
    name = ":".join(zone)
    return pa.timestamp(unit, None if name in ("", "-") else name)


def _decimal(width: str, precision: str, scale: str) -> pa.DataType:
    make: dict[str, Callable[[int, int], pa.DataType]] = {"128": pa.decimal128, "256": pa.decimal256}
    if width not in make:
        raise ValueError(f"there is no decimal of {width} bits")
    return make[width](_number(precision), _number(scale))


def _vector(*parts: str) -> pa.DataType:
    value, size = ":".join(parts[:-1]), _number(parts[-1], least=1)
    if value == _BFLOAT16:
        known = {EXTENSION_NAME: _BFLOAT16, EXTENSION_METADATA: ""}
        return pa.list_(pa.field("item", pa.binary(2), metadata=known), size)
    return pa.list_(_known(value), size)


def _dictionary(*parts: str) -> pa.DataType:
    index: Any = _known(parts[-2])
    value: Any = _known(":".join(parts[:-2]))
    return pa.dictionary(index, value)


_PARAMETRIZED: dict[str, Callable[..., pa.DataType]] = {
    "timestamp": _timestamp,
    "time32": pa.time32,
    "time64": pa.time64,
    "duration": pa.duration,
    "decimal": _decimal,
    "fixed_size_binary": lambda size: pa.binary(_number(size, least=0)),
    "fixed_size_list": _vector,
    "dict": _dictionary,
}
