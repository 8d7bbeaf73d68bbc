"""Map Arrow types to the logical type names of the Lance format, and back.

A logical type is a string such as `timestamp:us:UTC`. Nested types have a logical type too; what they contain is
described by the fields below them. Where the published list of logical types and pylance 14 differ (time zones of
timestamps, `time32`, `map`), this module follows pylance.

An extension type is stored as its storage type plus two metadata entries on the column: the extension's name and its
serialized parameters. pyarrow serializes the parameters of extension types defined in Python. It does not expose the
parameters of its built-in types, so this module serializes them as Arrow's list of canonical extension types specifies.

JSON is the only extension type with a logical type of its own: a string column in Arrow, a binary form on disk.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.logical_types import BFLOAT16, EXTENSION_METADATA, EXTENSION_NAME, SIMPLE
from lance_dagster.format.model import LEGACY_BLOB

JSON = "json"
BLOB = "lance.blob.v2"
"""The extension name of blob columns, whose large values are stored in separate files."""
_ARROW_JSON, _LANCE_JSON = "arrow.json", "lance.json"
_WITHOUT_PARAMETERS = frozenset({"arrow.uuid", "arrow.bool8", _ARROW_JSON})


def storage_type(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    """Return the storage type of an extension type, and any other type unchanged."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def has_blobs(schema: pa.Schema) -> bool:
    """Return whether a schema has a blob column, nested columns included."""
    return any(_is_blob(column) for column in schema)


def has_legacy_blobs(schema: pa.Schema) -> bool:
    """Return whether a schema has a column of blobs in the legacy encoding, nested columns included."""
    return any(_is_legacy_blob(column) for column in schema)


def _is_legacy_blob(column: "pa.Field[pa.DataType]") -> bool:
    arrow = storage_type(column.type)
    marked = LEGACY_BLOB.encode() in (column.metadata or {})
    return marked or any(_is_legacy_blob(arrow.field(index)) for index in range(arrow.num_fields))


def _is_blob(column: "pa.Field[pa.DataType]") -> bool:
    # The extension is either registered in this process (a type) or only named in the metadata.
    name = (column.metadata or {}).get(b"ARROW:extension:name", b"").decode("utf-8", "replace")
    arrow = storage_type(column.type)
    if BLOB in (name, getattr(column.type, "extension_name", "")):
        return True
    return any(_is_blob(arrow.field(index)) for index in range(arrow.num_fields))


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """The form in which the format stores an Arrow column.

    `encoding` is the code of its encoding, `metadata` includes the entries that name the extension type, and `storage`
    is the Arrow type whose values are stored.
    """

    logical_type: str
    encoding: int
    metadata: Mapping[str, bytes]
    storage: Any


def stored_column(column: "pa.Field[Any]", metadata: Mapping[str, bytes]) -> StoredColumn:
    """Return the form in which an Arrow column is stored.

    Args:
        column: The column.
        metadata: Its metadata as text, which wins over what its extension type says.

    Raises:
        InvalidInputError: The format cannot hold the type.
    """
    metadata = {**_extension_metadata(column.type, column.name), **metadata}
    storage = storage_type(column.type)
    if _is_json(storage, metadata):
        lance_json = {**metadata, EXTENSION_NAME: _LANCE_JSON.encode()}
        return StoredColumn(JSON, _VARIABLE_WIDTH, lance_json, pa.large_binary())
    return StoredColumn(*_logical_type(storage, column.name), metadata, storage)


def _extension_metadata(arrow: Any, column: str) -> dict[str, bytes]:  # noqa: ANN401  # no stub has its methods
    """Return the metadata entries that identify a column's extension type; empty for other types.

    Raises:
        InvalidInputError: The parameters of the extension type cannot be serialized.
    """
    if not isinstance(arrow, pa.BaseExtensionType):
        return {}
    # The order matters: types defined in Python serialize themselves, and only built-in types are left for JSON.
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
        # Arrow's specification makes these two optional, so they are left out instead of being written as null.
        optional = {"permutation": arrow.permutation, "dim_names": arrow.dim_names}
        return {"shape": arrow.shape, **{key: value for key, value in optional.items() if value is not None}}
    if isinstance(arrow, pa.OpaqueType):
        return {"type_name": arrow.type_name, "vendor_name": arrow.vendor_name}
    raise InvalidInputError(
        f"column {column!r}: {arrow.extension_name} cannot be serialized; store its storage type {arrow.storage_type}"
    )


def _is_json(storage: pa.DataType, metadata: Mapping[str, bytes]) -> bool:
    """Return whether storage type and metadata of a column mark it as JSON."""
    name = metadata.get(EXTENSION_NAME, b"").decode("utf-8", "replace")
    # Both spellings occur in data to be written: Arrow's over strings, and Lance's over its binary form.
    text = pa.types.is_string(storage) or pa.types.is_large_string(storage)
    return (name == _ARROW_JSON and text) or (name == _LANCE_JSON and pa.types.is_large_binary(storage))


def arrow_json_metadata(metadata: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the metadata of a JSON column as Arrow represents it."""
    # Parameters stored in the manifest win over the empty default, and Arrow's name over the stored one.
    return {EXTENSION_METADATA.encode(): b"", **metadata, EXTENSION_NAME.encode(): _ARROW_JSON.encode()}


def with_extension_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema with extension types in place of storage types, for the extensions registered in this process.

    Raises:
        ValueError: The serialized parameters of an extension type are invalid.
    """
    # pyarrow has no public lookup of registered extension types; reading a schema back from IPC performs it.
    return pa.ipc.read_schema(schema.serialize())


# The format has no views: they are stored as strings, and read back as strings.
_SIMPLE_NAMES = {str(arrow): name for name, arrow in SIMPLE.items()} | {
    str(pa.string_view()): "string",
    str(pa.binary_view()): "binary",
}
# Readers of data files of version 2.0 and newer ignore these encoding codes; pylance writes them, so we do too.
_PLAIN, _VARIABLE_WIDTH, _DICTIONARY = 1, 2, 3


def _logical_type(arrow: Any, column: str) -> tuple[str, int]:  # noqa: ANN401  # any Arrow type
    """Return the logical type of an Arrow type and its encoding code; `column` is used in messages.

    Raises:
        InvalidInputError: The format cannot hold the type.
    """
    simple = _SIMPLE_NAMES.get(str(arrow))
    if simple is not None:
        variable = simple.removeprefix("large_") in ("string", "binary")
        return simple, _VARIABLE_WIDTH if variable else 0 if simple == "null" else _PLAIN
    name = _temporal_or_decimal(arrow) or _nested(arrow)
    if name is not None:
        return name, 0 if name == "struct" else _PLAIN
    if pa.types.is_dictionary(arrow):
        value = _logical_type(arrow.value_type, column)[0]
        # The last part says whether the dictionary is ordered; pylance writes false for every dictionary.
        return f"dict:{value}:{_logical_type(arrow.index_type, column)[0]}:false", _DICTIONARY
    if pa.types.is_fixed_size_list(arrow) and arrow.list_size > 0:
        return f"fixed_size_list:{_value_of_vector(arrow, column)}:{arrow.list_size}", _PLAIN
    raise InvalidInputError(f"column {column!r}: Lance tables cannot hold the Arrow type {arrow}")


def _value_of_vector(arrow: Any, column: str) -> str:  # noqa: ANN401  # the stubs have no common class
    item = arrow.value_field
    # bfloat16 has no logical type of its own: it is known by its extension name, from a registered type or from
    # the metadata of the item when the extension is not registered in this process.
    name = getattr(item.type, "extension_name", None) or (item.metadata or {}).get(EXTENSION_NAME.encode(), b"")
    if name in (BFLOAT16, BFLOAT16.encode()):
        return BFLOAT16
    value = storage_type(item.type)
    if pa.types.is_struct(value):
        return "struct"
    # A vector is one column of values of one width, so lists and maps cannot be its items.
    if _nested(value) is not None:
        raise InvalidInputError(f"column {column!r}: Lance tables cannot hold the Arrow type {arrow}")
    return _logical_type(value, column)[0]


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
        # The format cannot record that keys are sorted, so such a map would come back as another type.
        return None if arrow.keys_sorted else "map"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        # Lance spells a list of structs differently from all other lists, whose item only the child field describes.
        name = "list" if pa.types.is_list(arrow) else "large_list"
        return f"{name}.struct" if pa.types.is_struct(storage_type(arrow.value_type)) else name
    return None
