"""The mapping of Arrow types is equal to pylance's for every type and for nested types."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from lance.schema import LanceSchema

from lance_dagster.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lance_dagster.format.model import Field
from lance_dagster.format.schema import (
    arrow_from_fields,
    fields_from_arrow,
    renumber_fields,
    schema_metadata_from_arrow,
    stored_field_ids,
    with_field_metadata,
)
from lance_dagster.format.transaction import MapUpdate
from tests.format.schemas import EXTENSIONS, PLAIN, VECTORS, Celsius, columns, of_pylance, read_by_pylance, types
from tests.raising import raises

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
_make_map: Any = pa.map_
SORTED_MAP: pa.DataType = _make_map(pa.string(), pa.int8(), keys_sorted=True)
REFUSED = [
    pa.list_view(pa.int8()),
    pa.decimal32(5, 2),
    pa.month_day_nano_interval(),
    pa.run_end_encoded(pa.int32(), pa.int8()),
    SORTED_MAP,
    *(pa.list_(pa.int8(), 0), pa.list_(pa.list_(pa.int8()), 2), pa.list_(pa.map_(pa.string(), pa.int8()), 2)),
    pa.dense_union([pa.field("x", pa.int8())]),
]

PRIMARY = {"lance-schema:unenforced-primary-key": "true"}
MAKING_NO_SENSE = [
    *(
        "fixed_size_list:float:-1",
        "fixed_size_list:float:0",
        "fixed_size_list:float:99999999999",
        "fixed_size_list:float",
    ),
    *("fixed_size_list:x:1", "fixed_size_list:struct:2", "fixed_size_binary:-1", "fixed_size_binary:4294967296"),
    *("fixed_size_binary", "decimal:128:99:2", "decimal:64:5:2", "decimal:128:5", "timestamp:xs:-", "timestamp"),
    *("time32:us", "duration:", "dict:string:float:false", "dict", "dict:::", "list", "large_list", "map"),
    "fixed_size_list:" * 3000 + "int8" + ":1" * 3000,
]


schemas = columns(types, 4).map(pa.schema)


def column(arrow: pa.DataType) -> pa.Schema:
    """A schema of one column."""
    return pa.schema([pa.field("c", arrow)])


@pytest.mark.parametrize("arrow", [*PLAIN, *VECTORS, *NESTED, *CHANGED_BY_LANCE], ids=str)
def test_a_type_is_mapped_as_pylance_does(arrow: pa.DataType) -> None:
    """Logical types, ids, parents, nullability and encodings are equal to pylance's."""
    assert of_pylance(column(arrow)) == fields_from_arrow(column(arrow))


@pytest.mark.parametrize("arrow", [*PLAIN, *VECTORS, *NESTED], ids=str)
def test_a_type_comes_back(arrow: pa.DataType) -> None:
    """Fields are converted back to the Arrow type that they were made from."""
    assert column(arrow) == arrow_from_fields(fields_from_arrow(column(arrow)))


@pytest.mark.parametrize("arrow", CHANGED_BY_LANCE, ids=str)
def test_a_type_that_lance_simplifies_comes_back_simpler(arrow: pa.DataType) -> None:
    """A type without a name in the format is stored as the nearest type that has one."""
    assert column(CHANGED_BY_LANCE[arrow]) == arrow_from_fields(fields_from_arrow(column(arrow)))


@pytest.mark.parametrize("arrow", REFUSED, ids=str)
def test_a_type_that_lance_cannot_hold_is_refused(arrow: pa.DataType) -> None:
    """The message names the column and the type, and pylance refuses it too."""
    with pytest.raises(ValueError, match=r"Unsupported|dimension 0"):
        LanceSchema.from_pyarrow(column(arrow))
    with pytest.raises(InvalidInputError, match="column 'c': Lance") as caught:
        fields_from_arrow(column(arrow))
    assert "column" in str(caught.value)


@given(schemas)
@settings(max_examples=150)
def test_any_nesting_is_mapped_as_pylance_does(schema: pa.Schema) -> None:
    """The fields of nested columns equal pylance's, and both read them as the same schema."""
    fields = fields_from_arrow(schema)
    assert of_pylance(schema) == fields
    assert read_by_pylance(fields, {}) == arrow_from_fields(fields)


@given(schemas)
@settings(max_examples=100)
def test_any_nesting_comes_back(schema: pa.Schema) -> None:
    """A schema converted to fields and back is unchanged."""
    assert schema == arrow_from_fields(fields_from_arrow(schema))


@given(schemas, st.integers(min_value=0, max_value=1000))
@settings(max_examples=50)
def test_other_ids_are_the_same_schema(schema: pa.Schema, first: int) -> None:
    """Renumbered fields give the same schema, and their stored fields are renumbered alike."""
    fields = fields_from_arrow(schema)
    moved = renumber_fields(fields, first)
    assert schema == arrow_from_fields(moved)
    assert tuple(number + first for number in stored_field_ids(fields)) == stored_field_ids(moved)


def test_metadata_is_kept() -> None:
    """Pylance and the package read the same metadata of the schema and of columns."""
    schema = pa.schema([pa.field("c", pa.int8(), metadata={"unit": "m"})], metadata={"purpose": "test"})
    fields, metadata = fields_from_arrow(schema), schema_metadata_from_arrow(schema)
    assert of_pylance(schema) == fields
    assert arrow_from_fields(fields, metadata).equals(schema, check_metadata=True)
    assert read_by_pylance(fields, metadata).equals(schema, check_metadata=True)


def test_a_primary_key_is_marked_as_pylance_does() -> None:
    """The primary key and its position are in the field and in its metadata."""
    primary = {"lance-schema:unenforced-primary-key": "true", "lance-schema:unenforced-primary-key:position": "2"}
    schema = pa.schema([pa.field("c", pa.int8(), nullable=False, metadata=primary)])
    (field,) = fields_from_arrow(schema)
    assert (field,) == of_pylance(schema)
    assert (True, 2) == (field.primary_key, field.primary_key_position)


@pytest.mark.parametrize("arrow", EXTENSIONS, ids=str)
def test_an_extension_type_is_stored_with_its_name(arrow: pa.DataType) -> None:
    """The column has the storage type, and its metadata has the keys that Arrow uses for extensions."""
    assert of_pylance(column(arrow)) == fields_from_arrow(column(arrow))


@pytest.mark.parametrize("arrow", [*EXTENSIONS[1:4], *EXTENSIONS[6:]], ids=str)
def test_an_extension_type_comes_back(arrow: pa.DataType) -> None:
    """If the process has registered the extension type, the column has it, as in pylance."""
    assert column(arrow) == arrow_from_fields(fields_from_arrow(column(arrow)))


def test_an_extension_type_nobody_knows_is_its_storage() -> None:
    """The name of the extension stays in the metadata."""
    (found,) = arrow_from_fields(fields_from_arrow(column(Celsius())))
    assert (pa.float32(), b"test.celsius") == (found.type, (found.metadata or {})[b"ARROW:extension:name"])


def test_an_extension_type_with_wrong_parameters_is_damage() -> None:
    """The error names the file."""
    metadata = {"ARROW:extension:name": b"arrow.uuid", "ARROW:extension:metadata": b""}
    wrong = Field(id=0, name="c", logical_type="int8", metadata=metadata, extension_name="arrow.uuid")
    with raises(CorruptFileError, path="x.manifest"):
        arrow_from_fields([wrong], path="x.manifest")


@pytest.mark.parametrize("value", ["true", "TRUE", "1", "yes", "on", "false", "", " true", "t"])
@pytest.mark.parametrize(
    "position", [None, "x", "-1", "0", "3", "+3", "003", " 3", "4294967295", "4294967296", "\uff13"]
)
@pytest.mark.parametrize("key", ["primary", "clustering"])
def test_a_key_is_read_as_pylance_does(key: str, value: str, position: str | None) -> None:
    """All spellings of true and all numbers, valid or not, are read as pylance reads them."""
    name = f"lance-schema:unenforced-{key}-key"
    metadata = {name: value} | ({} if position is None else {f"{name}:position": position})
    schema = pa.schema([pa.field("c", pa.int8(), nullable=False, metadata=metadata)])
    assert of_pylance(schema) == fields_from_arrow(schema)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("c", pa.int8(), metadata=PRIMARY)]),
        pa.schema([pa.field("c", pa.struct([pa.field("x", pa.int8(), nullable=False, metadata=PRIMARY)]))]),
        pa.schema([pa.field("c", pa.struct([pa.field("x", pa.int8())]), nullable=False, metadata=PRIMARY)]),
    ],
    ids=["null", "null above", "not a leaf"],
)
def test_a_primary_key_pylance_refuses_is_refused(schema: pa.Schema) -> None:
    """Pylance could not open such a table; metadata that would create such a key later is refused too."""
    with pytest.raises(ValueError, match="Primary key column"):
        LanceSchema.from_pyarrow(schema)
    with pytest.raises(InvalidInputError):
        fields_from_arrow(schema)
    plain = [Field(id=0, name="c", logical_type="int8")]
    with pytest.raises(InvalidInputError):
        with_field_metadata(plain, {0: MapUpdate(entries=PRIMARY)})


@pytest.mark.parametrize("metadata", [{b"\xff": b"x"}, {b"x": b"\xff"}])
def test_metadata_that_is_no_text_is_refused(metadata: dict[bytes | str, bytes | str]) -> None:
    """Pylance refuses such metadata in Arrow, and would change that of a manifest in its next commit."""
    with pytest.raises(InvalidInputError):
        fields_from_arrow(pa.schema([pa.field("c", pa.int8(), metadata=metadata)]))
    with pytest.raises(InvalidInputError):
        schema_metadata_from_arrow(pa.schema([], metadata=metadata))


@pytest.mark.parametrize("name", ["", "a.b", "`", "x\0y", "_rowid", "_rowaddr", "_row_last_updated_at_version"])
def test_a_name_lance_cannot_read_back_is_refused(name: str) -> None:
    """A table with such a column could be written but not read."""
    with pytest.raises(InvalidInputError):
        fields_from_arrow(pa.schema([(name, pa.int8())]))
    # Inside of a column, all but one can be read.
    if "\0" in name:
        with pytest.raises(InvalidInputError):
            fields_from_arrow(pa.schema([("column", pa.struct([(name, pa.int8())]))]))


def test_a_column_nested_too_deeply_is_refused() -> None:
    """The manifest of such a table could be written but not read."""
    arrow: pa.DataType = pa.int8()
    for _ in range(99):
        arrow = pa.list_(arrow)
    fields = fields_from_arrow(pa.schema([("c", arrow)]))
    assert arrow == arrow_from_fields(fields).field("c").type
    with pytest.raises(InvalidInputError):
        fields_from_arrow(pa.schema([("c", pa.list_(arrow))]))


def test_two_fields_of_one_name_are_refused() -> None:
    """The same holds for nested fields."""
    with pytest.raises(InvalidInputError):
        fields_from_arrow(column(pa.struct([("x", pa.int8()), ("x", pa.int8())])))


@pytest.mark.parametrize("logical_type", MAKING_NO_SENSE, ids=lambda name: name[:40])
def test_a_logical_type_that_makes_no_sense_is_damage(logical_type: str) -> None:
    """Missing, malformed or out-of-range parameters raise an error with the file and the column."""
    with raises(CorruptFileError, path="x.manifest"):
        arrow_from_fields([Field(id=0, name="c", logical_type=logical_type)], path="x.manifest")


def test_two_columns_of_one_name_are_refused() -> None:
    """A table could not tell the columns apart."""
    with pytest.raises(InvalidInputError):
        fields_from_arrow(pa.schema([("c", pa.int8()), ("d", pa.int8()), ("c", pa.int8())]))


def test_an_unknown_logical_type_is_refused() -> None:
    """The package refuses a column of a later format instead of guessing."""
    with raises(UnsupportedFeatureError, flags=("the logical type 'complex:64' of column 'c'",)):
        arrow_from_fields([Field(id=0, name="c", logical_type="complex:64")], path="x")


def test_only_leaves_own_columns_of_a_file() -> None:
    """A struct, list or map stores no values itself; a vector does."""
    schema = pa.schema(
        [("s", pa.struct([("x", pa.int8()), ("l", pa.list_(pa.int8()))])), ("v", pa.list_(pa.int8(), 2))]
    )
    assert (1, 3, 4) == stored_field_ids(fields_from_arrow(schema))
