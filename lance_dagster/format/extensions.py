"""Extension types: the name and the parameters a column keeps beside its storage type, and back to the type.

Arrow writes both into a column's metadata when it leaves the process, and so does the format. pyarrow gives the
parameters of types that were written in Python; those of its own it does not give away, so they are written down
here as the list of canonical extension types says.

JSON is the one extension with a logical type of its own: text on the outside, a binary form in the data files.
"""

import json
from typing import Any

import pyarrow as pa

from lance_dagster.errors import InvalidInputError

EXTENSION_NAME = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"
JSON = "json"
_ARROW_JSON, _LANCE_JSON = "arrow.json", "lance.json"
_WITHOUT_PARAMETERS = frozenset({"arrow.uuid", "arrow.bool8", _ARROW_JSON})


def storage_of(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    """Return the type that holds the values of an extension type; any other type as it is."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def described(arrow: Any, column: str) -> dict[str, bytes]:  # noqa: ANN401  # no stub has its methods
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


def stored_as_json(metadata: dict[str, bytes]) -> dict[str, bytes]:
    """Return the metadata of a column of JSON as the format has it."""
    return {**metadata, EXTENSION_NAME: _LANCE_JSON.encode()}


def shown_as_json(metadata: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the metadata of a column of JSON as Arrow has it."""
    return {EXTENSION_METADATA.encode(): b"", **metadata, EXTENSION_NAME.encode(): _ARROW_JSON.encode()}


def with_extension_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema with extension types where the metadata names some that this process knows.

    Raises:
        ValueError: The parameters of one do not make sense.
    """
    return pa.ipc.read_schema(schema.serialize())
