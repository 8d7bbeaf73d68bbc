"""The mapping of Arrow types, compared with pylance's for every type and for nestings of them."""

import json
import string
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from lance.schema import LanceSchema

from lance_dagster.errors import InvalidInputError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.fields import field_from_wire, field_to_wire
from lance_dagster.format.model import Field
from lance_dagster.format.schema import (
    arrow_from_fields,
    fields_from_arrow,
    renumbered,
    schema_metadata_from_arrow,
    stored_field_ids,
)

PLAIN: list[pa.DataType] = [
    pa.null(),
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(7)),
    *(pa.date32(), pa.date64()),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris"), pa.timestamp("ns", "+02:00")),
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
NESTED: list[pa.DataType] = [
    pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())]),
    pa.list_(pa.int8()),
    pa.list_(pa.field("element", pa.int8(), nullable=False)),
    pa.large_list(pa.string()),
    pa.list_(pa.struct([("x", pa.int8())])),
    pa.large_list(pa.struct([("x", pa.int8())])),
    pa.list_(pa.struct([("x", pa.int8())]), 3),
    pa.list_(pa.list_(pa.list_(pa.float64()))),
    pa.map_(pa.string(), pa.int64()),
    pa.map_(pa.int8(), pa.struct([("deep", pa.map_(pa.string(), pa.list_(pa.date32())))])),
]
CHANGED_BY_LANCE: dict[pa.DataType, pa.DataType] = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.dictionary(pa.int8(), pa.string(), ordered=True): pa.dictionary(pa.int8(), pa.string()),
}
REFUSED = [
    pa.list_view(pa.int8()),
    pa.decimal32(5, 2),
    pa.month_day_nano_interval(),
    pa.run_end_encoded(pa.int32(), pa.int8()),
    pa.dense_union([pa.field("x", pa.int8())]),
]


def columns(children: st.SearchStrategy[pa.DataType], most: int) -> "st.SearchStrategy[list[pa.Field[Any]]]":
    """Columns of different names; Arrow has none of nulls that may not be null."""
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
    """What may hold values of other types."""
    return st.one_of(
        children.map(pa.list_),
        children.map(pa.large_list),
        structs(children),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32(), pa.date32()]), children),
        structs(children).map(lambda row: pa.list_(row, 2)),
    )


types = st.recursive(st.sampled_from([*PLAIN, *VECTORS]), nested, max_leaves=6)
schemas = columns(types, 4).map(pa.schema)


def of_pylance(schema: pa.Schema) -> tuple[Field, ...]:
    """The fields pylance makes of a schema."""
    protos: tuple[Any, ...] = LanceSchema.from_pyarrow(schema).__reduce__()[1]  # type: ignore[assignment]
    return tuple(field_from_wire(wire.Field.FromString(proto)) for proto in protos[1:])


def read_by_pylance(fields: tuple[Field, ...], metadata: dict[str, bytes]) -> pa.Schema:
    """The schema pylance makes of fields."""
    described = json.dumps({key: list(value) for key, value in metadata.items()})
    protos = (field_to_wire(field).SerializeToString() for field in fields)
    return LanceSchema._from_protos(described, *protos).to_pyarrow()  # noqa: SLF001 - the reverse of `__reduce__`


def column(arrow: pa.DataType) -> pa.Schema:
    """A schema of one column."""
    return pa.schema([pa.field("c", arrow)])


@pytest.mark.parametrize("arrow", [*PLAIN, *VECTORS, *NESTED, *CHANGED_BY_LANCE], ids=str)
def test_a_type_is_mapped_as_pylance_does(arrow: pa.DataType) -> None:
    """Logical types, ids, parents, nullability and encodings are those of pylance."""
    assert of_pylance(column(arrow)) == fields_from_arrow(column(arrow))


@pytest.mark.parametrize("arrow", [*PLAIN, *VECTORS, *NESTED], ids=str)
def test_a_type_comes_back(arrow: pa.DataType) -> None:
    """Fields become the Arrow type they were made of."""
    assert column(arrow) == arrow_from_fields(fields_from_arrow(column(arrow)))


@pytest.mark.parametrize("arrow", CHANGED_BY_LANCE, ids=str)
def test_a_type_that_lance_simplifies_comes_back_simpler(arrow: pa.DataType) -> None:
    """What the format has no name for is stored as its nearest relative."""
    assert column(CHANGED_BY_LANCE[arrow]) == arrow_from_fields(fields_from_arrow(column(arrow)))


@pytest.mark.parametrize("arrow", REFUSED, ids=str)
def test_a_type_that_lance_cannot_hold_is_refused(arrow: pa.DataType) -> None:
    """The message names the column and the type, and pylance refuses it too."""
    with pytest.raises(ValueError, match="Unsupported data type"):
        LanceSchema.from_pyarrow(column(arrow))
    with pytest.raises(InvalidInputError, match="column 'c': Lance tables cannot hold the Arrow type") as caught:
        fields_from_arrow(column(arrow))
    assert str(arrow) in str(caught.value)


@given(schemas)
@settings(max_examples=150, deadline=None)
def test_any_nesting_is_mapped_as_pylance_does(schema: pa.Schema) -> None:
    """Nested columns too: the fields are pylance's, and both read them back as the same schema."""
    fields = fields_from_arrow(schema)
    assert of_pylance(schema) == fields
    assert read_by_pylance(fields, {}) == arrow_from_fields(fields)


@given(schemas)
@settings(max_examples=100, deadline=None)
def test_any_nesting_comes_back(schema: pa.Schema) -> None:
    """Arrow to fields to Arrow changes nothing."""
    assert schema == arrow_from_fields(fields_from_arrow(schema))


@given(schemas, st.integers(min_value=0, max_value=1000))
@settings(max_examples=50, deadline=None)
def test_other_ids_are_the_same_schema(schema: pa.Schema, first: int) -> None:
    """Fields renumbered from anywhere mean the same, and their leaves move along."""
    fields = fields_from_arrow(schema)
    moved = renumbered(fields, first)
    assert schema == arrow_from_fields(moved)
    assert tuple(number + first for number in stored_field_ids(fields)) == stored_field_ids(moved)


def test_metadata_is_kept() -> None:
    """Metadata of the schema and of columns are the same for pylance and for us."""
    schema = pa.schema([pa.field("c", pa.int8(), metadata={"unit": "m"})], metadata={"purpose": "test"})
    fields, metadata = fields_from_arrow(schema), schema_metadata_from_arrow(schema)
    assert of_pylance(schema) == fields
    assert arrow_from_fields(fields, metadata).equals(schema, check_metadata=True)
    assert read_by_pylance(fields, metadata).equals(schema, check_metadata=True)


def test_a_primary_key_is_marked_as_pylance_does() -> None:
    """The key and its position stand in the field as well as in its metadata."""
    primary = {"lance-schema:unenforced-primary-key": "true", "lance-schema:unenforced-primary-key:position": "2"}
    schema = pa.schema([pa.field("c", pa.int8(), nullable=False, metadata=primary)])
    (field,) = fields_from_arrow(schema)
    assert (field,) == of_pylance(schema)
    assert (True, 2) == (field.primary_key, field.primary_key_position)


class _Celsius(pa.ExtensionType):
    """An extension type as a user defines it."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"c"

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _serialized: bytes) -> "_Celsius":
        return cls()


@pytest.mark.parametrize("arrow", [_Celsius(), pa.uuid(), pa.bool8()], ids=str)
def test_an_extension_type_is_stored_with_its_name(arrow: pa.DataType) -> None:
    """The storage type is the column's, and the extension stands in the metadata where Arrow looks for it."""
    assert of_pylance(column(arrow)) == fields_from_arrow(column(arrow))


def test_an_extension_type_that_cannot_be_described_is_refused() -> None:
    """Arrow does not say how to write down the parameters of its own types."""
    with pytest.raises(InvalidInputError, match=r"column 'c': .*fixed_shape_tensor"):
        fields_from_arrow(column(pa.fixed_shape_tensor(pa.int32(), [2, 2])))


def test_two_columns_of_one_name_are_refused() -> None:
    """A table cannot tell them apart."""
    with pytest.raises(InvalidInputError, match="column names must be unique; 'c' stands twice"):
        fields_from_arrow(pa.schema([("c", pa.int8()), ("d", pa.int8()), ("c", pa.int8())]))


def test_an_unknown_logical_type_is_refused() -> None:
    """A column of a later format is not guessed at."""
    with pytest.raises(UnsupportedFeatureError, match=r"column 'c' uses features .* logical type 'complex:64'"):
        arrow_from_fields([Field(id=0, name="c", logical_type="complex:64")])


def test_only_leaves_own_columns_of_a_file() -> None:
    """A struct, list or map stores nothing itself; a vector does."""
    schema = pa.schema(
        [("s", pa.struct([("x", pa.int8()), ("l", pa.list_(pa.int8()))])), ("v", pa.list_(pa.int8(), 2))]
    )
    assert (1, 3, 4) == stored_field_ids(fields_from_arrow(schema))
