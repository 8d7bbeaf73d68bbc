"""Types and schemas for tests of the format, and what pylance makes of them."""

import json
import string
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from lance.arrow import BFloat16Type
from lance.blob import BlobType
from lance.schema import LanceSchema

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.manifest_parts import fields_from_wire, fields_to_wire
from lance_dagster.format.model import Field

PLAIN: list[pa.DataType] = [
    pa.null(),
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(7)),
    *(pa.date32(), pa.date64()),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris"), pa.timestamp("ns", "+05:30")),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")),
    *(pa.decimal128(38, 10), pa.decimal128(5, -2), pa.decimal256(60, 3)),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_string())),
]

VECTORS: list[pa.DataType] = [
    pa.list_(pa.float32(), 4),
    pa.list_(pa.bool_(), 2),
    pa.list_(pa.binary(4), 2),
    pa.list_(pa.timestamp("us", "+02:00"), 2),
    pa.list_(pa.list_(pa.int8(), 2), 3),
]


def columns(children: st.SearchStrategy[pa.DataType], most: int) -> "st.SearchStrategy[list[pa.Field[Any]]]":
    """Columns with distinct names; Arrow has no column of nulls that is not nullable."""
    one = st.builds(
        lambda name, arrow, nullable: pa.field(name, arrow, nullable or pa.types.is_null(arrow)),
        st.text(string.ascii_lowercase, min_size=1, max_size=4),
        children,
        st.booleans(),
    )
    return st.lists(one, min_size=1, max_size=most, unique_by=lambda field: field.name)


def structs(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    """Structs of one to three columns."""
    return columns(children, 3).map(pa.struct)


def nested(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    """Types that can contain values of other types."""
    return st.one_of(
        children.map(pa.list_),
        children.map(pa.large_list),
        structs(children),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32(), pa.date32()]), children),
        structs(children).map(lambda row: pa.list_(row, 2)),
    )


types = st.recursive(st.sampled_from([*PLAIN, *VECTORS]), nested, max_leaves=6)


def of_pylance(schema: pa.Schema) -> tuple[Field, ...]:
    """The fields that pylance makes of a schema."""
    protos: tuple[Any, ...] = LanceSchema.from_pyarrow(schema).__reduce__()[1]  # type: ignore[assignment]
    return fields_from_wire(wire.Field.FromString(proto) for proto in protos[1:])


def read_by_pylance(fields: tuple[Field, ...], metadata: dict[str, bytes]) -> pa.Schema:
    """The schema that pylance makes of fields."""
    described = json.dumps({key: list(value) for key, value in metadata.items()})
    protos = (message.SerializeToString() for message in fields_to_wire(fields))
    return LanceSchema._from_protos(described, *protos).to_pyarrow()  # noqa: SLF001 - the reverse of `__reduce__`


class Celsius(pa.ExtensionType):
    """An extension type that a user defines."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"c"

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _serialized: bytes) -> "Celsius":
        return cls()


EXTENSIONS: list[pa.DataType] = [
    *(Celsius(), pa.uuid(), pa.bool8(), BFloat16Type()),
    *(pa.json_(), pa.json_(pa.large_string())),
    pa.fixed_shape_tensor(pa.int32(), [2, 2]),
    pa.fixed_shape_tensor(pa.int8(), [2, 3], dim_names=["a", 'b"é'], permutation=[1, 0]),
    pa.opaque(pa.int8(), 'é"', "vendor"),
    pa.list_(BFloat16Type(), 4),
    pa.list_(pa.json_()),
    pa.struct([("u", pa.uuid()), ("j", pa.json_())]),
    pa.map_(pa.string(), pa.uuid()),
    BlobType(),
]
