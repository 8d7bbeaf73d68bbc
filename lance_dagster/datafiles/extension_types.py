"""Handle arrays whose type has extension types in it: JSON, UUIDs, 8-bit booleans and types of other programs.

Many of Arrow's functions know no extension type inside of a list or a struct, and no function casts between extension
types. So values are handled in their storage type, and get their type back afterwards. Neither step copies them.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def has_extensions(arrow: Any) -> bool:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    """Return whether a type is an extension type or contains an extension type."""
    if isinstance(arrow, pa.BaseExtensionType):
        return True
    return any(has_extensions(arrow.field(index).type) for index in range(arrow.num_fields))


def stored_type(arrow: Any) -> Any:  # noqa: ANN401  # as above
    """Return a type with the storage types in place of extension types."""
    if isinstance(arrow, pa.BaseExtensionType):
        return stored_type(arrow.storage_type)
    if not has_extensions(arrow):
        return arrow
    return with_parts(arrow, [stored_type(arrow.field(index).type) for index in range(arrow.num_fields)])


def with_parts(arrow: Any, parts: Sequence[Any]) -> Any:  # noqa: ANN401  # as above
    """Return a struct, a list or a map with other types inside; inside of a map is the struct of its entries."""
    inner = [arrow.field(index).with_type(part) for index, part in enumerate(parts)]
    if pa.types.is_struct(arrow):
        return pa.struct(inner)
    if pa.types.is_map(arrow):
        entries = inner[0].type
        return pa.map_(entries.field(0), entries.field(1))
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(inner[0], arrow.list_size)
    return pa.large_list(inner[0]) if pa.types.is_large_list(arrow) else pa.list_(inner[0])


def stored(values: Any) -> Any:  # noqa: ANN401  # an array
    """Return an array as it is stored, without extension types."""
    return extended(values, stored_type(values.type))


def extended(values: Any, target: Any) -> Any:  # noqa: ANN401  # an array, a type
    """Return the same values in a type that differs in extension types only."""
    if values.type == target:
        return values
    if isinstance(values, pa.ExtensionArray):
        return extended(values.storage, target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, extended(values, target.storage_type))
    if pa.types.is_struct(target):
        parts = [extended(values.field(index), target.field(index).type) for index in range(target.num_fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)
    if pa.types.is_map(target):
        items = [values.keys, extended(values.items, target.item_type)]
        parts = [pa.StructArray.from_arrays(items, fields=[target.key_field, target.item_field])]
    else:
        parts = [extended(values.values, target.value_type)]
    own = values.buffers()[: 1 if pa.types.is_fixed_size_list(target) else 2]
    return pa.Array.from_buffers(target, len(values), own, offset=values.offset, children=parts)


def empty_array(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type
    """Return an array of a type without a value."""
    return extended(pa.array([], stored_type(arrow)), arrow)
