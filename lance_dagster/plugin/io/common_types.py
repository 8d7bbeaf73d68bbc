"""Find the common type of a column: it holds the values that a table has and the values of an output.

Two types of numbers have a common type when one type holds the numbers of the other. Structs, lists and maps have a
common type when their parts have: the common struct has the fields of both, first the fields of the table, then the new
fields. Example: `struct<a: int32>` and `struct<b: string, a: int64>` have `struct<a: int64, b: string>` when the
numbers may become wider.
"""

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa

from lance_dagster.datafiles import fits_type

Numbers = Literal["same", "own", "wider"]
"""The numbers of another type that a column takes: no such numbers (`same`); any numbers, in the type of the table
(`own`); or numbers of a wider type, which the column gets (`wider`). A dictionary, such as categories of pandas, and
its plain values differ in the same way: the plain values are the wider type, and so are indices with more bits.
"""

_DECIMALS = (pa.Decimal128Type, pa.Decimal256Type)
# A double holds every integer up to 53 bits, single precision up to 24.
_EXACT_BITS = {pa.float64(): 53, pa.float32(): 24, pa.float16(): 11}


def common_type(own: Any, incoming: Any, numbers: Numbers) -> pa.DataType | None:  # noqa: ANN401  # any Arrow types
    """Return the type of a column of type `own` that takes values of type `incoming` too; None when there is none.

    Args:
        own: The type of the column. Type null, as of the items of lists that are all empty, becomes any other type.
        incoming: The type of the values.
        numbers: The numbers of another type that the column takes. With "same", structs have the same fields as well.
    """
    if fits_type(incoming, own):
        return own  # type: ignore[no-any-return]
    if pa.types.is_null(own):
        return incoming  # type: ignore[no-any-return]
    if are_numbers(own, incoming):
        return _number(own, incoming, numbers)
    if pa.types.is_dictionary(own) or pa.types.is_dictionary(incoming):
        return _dictionary(own, incoming, numbers)
    if pa.types.is_struct(own) and pa.types.is_struct(incoming):
        return _struct(own, incoming, numbers)
    if pa.types.is_map(own) and pa.types.is_map(incoming) and fits_type(incoming.key_type, own.key_type):
        item = common_type(own.item_type, incoming.item_type, numbers)
        make: Any = pa.map_
        return None if item is None else make(own.key_field, own.item_field.with_type(item))
    if _is_list(own) and _is_list(incoming) and not _differ_in_length(own, incoming):
        item = common_type(own.value_type, incoming.value_type, numbers)
        return None if item is None else _list(own, item)
    return None


def new_fields(own: Any, result: Any, path: str) -> Iterator[tuple[str, "pa.Field[Any]"]]:  # noqa: ANN401  # any types
    """Yield the fields that structs have in a common type and not in a column, each with the path of its struct."""
    if pa.types.is_struct(own):
        names = [field.name for field in own]
        for field in result:
            if field.name in names:
                yield from new_fields(own.field(field.name).type, field.type, f"{path}.{field.name}")
            else:
                yield path, field
    elif isinstance(own, pa.MapType):
        yield from new_fields(own.item_type, result.item_type, f"{path}.entries.{own.item_field.name}")
    elif _is_list(own):
        yield from new_fields(own.value_type, result.value_type, f"{path}.{own.value_field.name}")


def needs_cast(own: Any, result: Any) -> bool:  # noqa: ANN401  # any Arrow types
    """Return whether values of a column have another type in a common type, apart from new fields of structs."""
    if pa.types.is_struct(own) and pa.types.is_struct(result):
        return any(needs_cast(field.type, result.field(field.name).type) for field in own)
    if isinstance(own, pa.MapType) and isinstance(result, pa.MapType):
        return needs_cast(own.item_type, result.item_type)
    if _is_list(own) and _is_list(result):
        return needs_cast(own.value_type, result.value_type)
    return bool(own != result)


def can_be_cast(own: Any, incoming: Any) -> bool:  # noqa: ANN401  # any Arrow types
    """Return whether a column may be cast to another type, as far as its type tells: structs keep their fields."""
    if pa.types.is_struct(own) and pa.types.is_struct(incoming):
        names = [sorted(field.name for field in struct) for struct in (own, incoming)]
        return names[0] == names[1] and all(can_be_cast(field.type, incoming.field(field.name).type) for field in own)
    if isinstance(own, pa.MapType) and isinstance(incoming, pa.MapType):
        return can_be_cast(own.item_type, incoming.item_type)
    if _is_list(own) and _is_list(incoming):
        return can_be_cast(own.value_type, incoming.value_type)
    return not (pa.types.is_nested(own) or pa.types.is_nested(incoming))


def without_length(own: Any, incoming: Any) -> Any:  # noqa: ANN401  # any Arrow types
    """Return the type of incoming values, as lists of any length where the column has lists of another length."""
    if _is_list(own) and _is_list(incoming):
        item = incoming.value_field.with_type(without_length(own.value_type, incoming.value_type))
        return pa.list_(item) if _differ_in_length(own, incoming) else _list(incoming, item.type)
    if pa.types.is_struct(own) and pa.types.is_struct(incoming):
        names = [field.name for field in own]
        parts = ((field, own.field(field.name).type if field.name in names else field.type) for field in incoming)
        return pa.struct([field.with_type(without_length(of, field.type)) for field, of in parts])
    return incoming


def are_numbers(*kinds: pa.DataType) -> bool:
    """Return whether types are all of integers and floating-point numbers, or all of decimals."""
    plain = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds)
    return plain or all(isinstance(kind, _DECIMALS) for kind in kinds)


def is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether a type holds every number of another type, or is a double; then the values decide."""
    if isinstance(narrow, _DECIMALS) and isinstance(wide, _DECIMALS):
        before = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return before and wide.scale >= narrow.scale and wide.bit_width >= narrow.bit_width
    if pa.types.is_floating(narrow):
        return pa.types.is_floating(wide) and wide.bit_width >= narrow.bit_width
    if pa.types.is_floating(wide):
        return wide == pa.float64() or narrow.bit_width <= _EXACT_BITS[wide]
    signed, was_signed = pa.types.is_signed_integer(wide), pa.types.is_signed_integer(narrow)
    if was_signed and not signed:
        return False
    # An unsigned integer needs one bit more in a signed type.
    return wide.bit_width >= narrow.bit_width + (1 if signed and not was_signed else 0)


def _number(own: pa.DataType, incoming: pa.DataType, numbers: Numbers) -> pa.DataType | None:
    if numbers == "same":
        return None
    # The type of the table may hold the values all the same; only the values tell.
    return incoming if numbers == "wider" and not is_wider(own, incoming) and is_wider(incoming, own) else own


def _dictionary(own: Any, incoming: Any, numbers: Numbers) -> pa.DataType | None:  # noqa: ANN401  # any Arrow types
    values, incoming_values = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (own, incoming))
    plain = None if numbers == "same" else common_type(values, incoming_values, numbers)
    if plain is None or not pa.types.is_dictionary(own):
        return plain
    make: Any = pa.dictionary
    if numbers == "own":
        narrow: pa.DataType = make(own.index_type, plain)
        return narrow
    if not pa.types.is_dictionary(incoming):
        return plain
    widened: pa.DataType = make(max(own.index_type, incoming.index_type, key=lambda indices: indices.bit_width), plain)
    return widened


def _struct(own: Any, incoming: Any, numbers: Numbers) -> pa.DataType | None:  # noqa: ANN401  # structs
    names, incoming_names = ([field.name for field in struct] for struct in (own, incoming))
    if len(set(incoming_names)) < len(incoming_names) or (numbers == "same" and names != incoming_names):
        return None
    fields: list[pa.Field[Any]] = []
    for field in own:
        if field.name not in incoming_names:
            if not field.nullable:
                return None
            fields.append(field)
            continue
        part = common_type(field.type, incoming.field(field.name).type, numbers)
        if part is None:
            return None
        fields.append(field.with_type(part))
    # A new field is null in the existing rows of the table.
    fields += [field.with_nullable(True) for field in incoming if field.name not in names]  # noqa: FBT003
    return pa.struct(fields)


def _list(own: Any, item: pa.DataType) -> pa.DataType:  # noqa: ANN401  # a list
    field = own.value_field.with_type(item)
    if pa.types.is_fixed_size_list(own):
        return pa.list_(field, int(own.list_size))
    return pa.large_list(field) if pa.types.is_large_list(own) else pa.list_(field)


def _is_list(kind: Any) -> bool:  # noqa: ANN401  # any Arrow type
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _differ_in_length(own: Any, incoming: Any) -> bool:  # noqa: ANN401  # lists
    fixed = pa.types.is_fixed_size_list
    return bool(fixed(own) and fixed(incoming) and own.list_size != incoming.list_size)
