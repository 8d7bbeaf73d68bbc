"""Find the Arrow type of a logical type, the text by which a manifest names the type of a column. Pure."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

EXTENSION_NAME = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"
FIXED_SIZE_LIST_OF_STRUCTS = "fixed_size_list:struct:"
BFLOAT16 = "lance.bfloat16"
NULL = "null"
"""The type of a column that holds no value yet, and so takes any other type."""
SIMPLE: dict[str, pa.DataType] = {
    NULL: pa.null(),
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
# The length is bounded, so that a corrupt manifest cannot make `int` parse a string of millions of digits.
_NUMBER = re.compile(r"-?[0-9]{1,10}")


def arrow_type(name: str, children: "Sequence[pa.Field[Any]] | None" = None) -> pa.DataType | None:
    """Return the Arrow type of a logical type; None when the name is unknown.

    Args:
        name: The logical type.
        children: The Arrow fields of its child fields; None where only types without child fields are asked for.

    Raises:
        ValueError: The name is known but its parameters, or the number of child fields, are invalid.
    """
    simple = None if children else SIMPLE.get(name)
    if simple is not None:
        return simple
    nested = None if children is None else _nested_type(name, children)
    # Compare with None: a pyarrow struct type without fields is falsy.
    if nested is not None:
        return nested
    # Parameters are separated by colons. A parser of a parameter that may contain colons gets the parts and joins them.
    kind, _, parameters = name.partition(":")
    parse = _PARAMETRIZED.get(kind)
    return None if parse is None else parse(*parameters.split(":"))


def _nested_type(name: str, children: "Sequence[pa.Field[Any]]") -> pa.DataType | None:
    """Return the Arrow type of a logical type with child fields; None when the name is not a nested type."""
    kind, _, parameters = name.partition(":")
    if name == "struct":
        return pa.struct(children)
    if name in ("list", "list.struct"):
        return pa.list_(*_exactly(1, children))
    if name in ("large_list", "large_list.struct"):
        return pa.large_list(*_exactly(1, children))
    if name == "map":
        # A map is stored with one child, the struct "entries"; Arrow wants its two fields.
        entries: Any = _exactly(1, children)[0].type
        make: Callable[..., pa.DataType] = pa.map_
        return make(*_exactly(2, [entries.field(index) for index in range(entries.num_fields)]))
    if name.startswith(FIXED_SIZE_LIST_OF_STRUCTS):
        return pa.list_(_exactly(1, children)[0], _number(parameters.rpartition(":")[2], least=1))
    if children:
        raise ValueError(f"{kind} cannot have child fields")
    return None


def _exactly(count: int, children: "Sequence[pa.Field[Any]]") -> "Sequence[pa.Field[Any]]":
    if len(children) != count:
        raise ValueError(f"it needs {count} child fields, not {len(children)}")
    return children


def _required_type(name: str) -> pa.DataType:
    arrow = arrow_type(name)
    if arrow is None:
        raise ValueError(f"{name!r} is not a logical type")
    return arrow


def _number(text: str, least: int = -(2**31)) -> int:
    number = int(text) if _NUMBER.fullmatch(text) else None
    if number is None or not least <= number < 2**31:
        raise ValueError(f"{text!r} is not a number that fits")
    return number


# A time zone may itself contain a colon ("+01:00"), so the parts after the unit are joined again.
def _timestamp(unit: Any, *zone: str) -> pa.DataType:  # noqa: ANN401  # the stubs want literal units
    name = ":".join(zone)
    return pa.timestamp(unit, None if name in ("", "-") else name)


def _decimal(width: str, precision: str, scale: str) -> pa.DataType:
    make: dict[str, Callable[[int, int], pa.DataType]] = {"128": pa.decimal128, "256": pa.decimal256}
    if width not in make:
        raise ValueError(f"there is no decimal of {width} bits")
    return make[width](_number(precision), _number(scale))


def _vector(*parts: str) -> pa.DataType:
    # The size is the last part: the type of the values may contain colons itself, as `timestamp:us:UTC` does.
    value, size = ":".join(parts[:-1]), _number(parts[-1], least=1)
    if value == BFLOAT16:
        metadata = {EXTENSION_NAME: BFLOAT16, EXTENSION_METADATA: ""}
        return pa.list_(pa.field("item", pa.binary(2), metadata=metadata), size)
    return pa.list_(_required_type(value), size)


def _dictionary(*parts: str) -> pa.DataType:
    # Parts are counted from the end, since the type of the values may contain colons. The last part is `ordered`.
    index: Any = _required_type(parts[-2])
    value: Any = _required_type(":".join(parts[:-2]))
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
