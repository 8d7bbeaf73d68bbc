"""Rows are held to the schema of a table before a file is written."""

from typing import Any

import pyarrow as pa
import pytest

from lance_dagster.datafiles import conform
from lance_dagster.errors import SchemaMismatchError

NUMBER = pa.field("item", pa.int32(), nullable=False)
# pyarrow takes a field for the items, which its stubs do not know.
MAP: pa.DataType = pa.map_(pa.string(), NUMBER.with_name("value"))  # type: ignore[call-overload]
PART = pa.struct([pa.field("a", pa.int32(), nullable=False)])
TYPES: dict[str, tuple[pa.DataType, Any, list[Any]]] = {
    "list": (pa.list_(NUMBER), [[1, None]], [[1], None, []]),
    "large list": (pa.large_list(NUMBER), [[None]], [[1], None]),
    "vector": (pa.list_(NUMBER, 2), [[1, None]], [[1, 2], None]),
    "struct": (PART, [{"a": None}], [{"a": 1}, None]),
    "struct in list": (pa.list_(PART), [[{"a": None}]], [[{"a": 1}], [None], None]),
    "struct in struct": (pa.struct([("s", PART)]), [{"s": {"a": None}}], [{"s": None}, None]),
    "map": (MAP, [[("k", None)]], [[("k", 1)], None]),
}
"""For each type, whose parts take no nulls, values with a null in a part, and values without one."""


def nullable(kind: pa.DataType) -> pa.DataType:
    """The same type, whose parts take nulls, as rows from elsewhere have it."""
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(kind.key_type, nullable(kind.item_type))
    if isinstance(kind, pa.FixedSizeListType):
        return pa.list_(nullable(kind.value_type), kind.list_size)
    if isinstance(kind, pa.ListType):
        return pa.list_(nullable(kind.value_type))
    return pa.large_list(nullable(kind.value_type)) if isinstance(kind, pa.LargeListType) else kind


@pytest.mark.parametrize("name", TYPES)
def test_nulls_of_parts_that_take_none_are_refused(name: str) -> None:
    """Whether the type of the rows allows them or not; a null around the part is none of its nulls."""
    wanted, wrong, right = TYPES[name]
    schema = pa.schema([("x", wanted)])
    for kind in (wanted, nullable(wanted)):
        batch = pa.record_batch({"x": pa.array([*right, *wrong], kind)})
        with pytest.raises(SchemaMismatchError):
            conform(batch, schema)
    # A slice of the same buffers has no such null.
    held = pa.record_batch({"x": pa.array([*right, *wrong], wanted)}).slice(0, len(right))
    assert held.column("x").to_pylist() == conform(held, schema).column("x").to_pylist()
