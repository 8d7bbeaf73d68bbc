"""The package maps random schemas in the same way as pylance, down to the columns of the files."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.file_versions import check_storable
from lance_dagster.format.schema import fields_from_arrow, stored_field_ids
from tests.format.schemas import EXTENSIONS, columns, nested, of_pylance, read_by_pylance, types

_EXTENDED = st.recursive(st.one_of(types, st.sampled_from(EXTENSIONS)), nested, max_leaves=4)


def packed(schema: pa.Schema, marks: list[bool]) -> pa.Schema:
    """The schema with some of its structs packed."""
    metadata: dict[bytes | str, bytes | str] = {"lance-encoding:packed": "true"}
    marked = [
        column.with_metadata(metadata) if mark and pa.types.is_struct(column.type) else column
        for column, mark in zip(schema, marks, strict=False)
    ]
    return pa.schema(marked)


def storable(schema: pa.Schema, version: str = "2.2") -> bool:
    """Whether data files can hold the columns."""
    try:
        check_storable(fields_from_arrow(schema), version)
    except InvalidInputError:
        return False
    return True


def value_of(arrow: Any) -> Any:  # noqa: ANN401  # a value of any type
    """A value of a type, without nulls in fields that may not be null."""
    of_kind: dict[Callable[[Any], bool], Callable[[], Any]] = {
        pa.types.is_struct: lambda: {
            arrow.field(at).name: value_of(arrow.field(at).type) for at in range(arrow.num_fields)
        },
        pa.types.is_fixed_size_list: lambda: [value_of(arrow.value_type)] * arrow.list_size,
        pa.types.is_map: list,
        pa.types.is_list: lambda: [value_of(arrow.value_type)],
        pa.types.is_large_list: lambda: [value_of(arrow.value_type)],
        pa.types.is_dictionary: lambda: value_of(arrow.value_type),
        pa.types.is_decimal: lambda: 0,
        pa.types.is_fixed_size_binary: lambda: bytes(arrow.byte_width),
        pa.types.is_string: lambda: "1",
        pa.types.is_large_string: lambda: "1",
        pa.types.is_binary: lambda: b"1",
        pa.types.is_large_binary: lambda: b"1",
        pa.types.is_null: lambda: None,
    }
    return next((make() for is_kind, make in of_kind.items() if is_kind(arrow)), 0)


def rows_of(schema: pa.Schema) -> pa.Table:
    """One row, without nulls."""
    return pa.table([pa.array([value_of(column.type)], column.type) for column in schema], schema=schema)


@given(columns(_EXTENDED, 3).map(pa.schema))
@settings(max_examples=150)
def test_extension_types_anywhere_are_mapped_as_pylance_does(schema: pa.Schema) -> None:
    """Extension types, also inside structs, lists and maps, are mapped as by pylance, in both directions."""
    fields = fields_from_arrow(schema)
    assert of_pylance(schema) == fields


@given(
    columns(types, 3).map(pa.schema),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(["2.0", "2.1", "2.2"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_the_columns_of_files_are_those_pylance_writes(schema: pa.Schema, marks: list[bool], version: Any) -> None:  # noqa: ANN401
    """The columns of data files are pylance's, for every nesting, packed or not, and every version of files."""
    schema = packed(schema, marks)
    assume(storable(schema, version))
    try:
        rows = rows_of(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        assume(False)  # noqa: FBT003  # pyarrow cannot make a row of the type
    with tempfile.TemporaryDirectory() as folder:
        lance.write_dataset(rows, f"{folder}/t", data_storage_version=version)
        (path,) = Path(folder).glob("t/_versions/*.manifest")
        manifest, _ = decode_manifest_file(path.read_bytes(), "m")
        major, minor = version.split(".")
        (file,) = manifest.fragments[0].files
        assert file.fields == stored_field_ids(manifest.fields, (int(major), int(minor)))
        table = LanceTable.open(f"{folder}/t")
        table.append(rows)
        assert [rows.to_pylist()[0]] * 2 == table.read().to_pylist()


@given(columns(types, 3).map(pa.schema), st.lists(st.booleans(), min_size=3, max_size=3))
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_a_row_of_any_schema_goes_in_and_comes_out(schema: pa.Schema, marks: list[bool]) -> None:
    """The package and pylance read a row of any schema that the package has written."""
    schema = packed(schema, marks)
    assume(storable(schema))
    try:
        rows = rows_of(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        assume(False)  # noqa: FBT003  # pyarrow cannot make a row of the type
    with tempfile.TemporaryDirectory() as folder:
        table = LanceTable.create(f"{folder}/t", schema)
        table.append(rows)
        dataset = lance.dataset(table.uri)
        assert table.schema() == dataset.schema
        assert rows.to_pylist() == table.read().to_pylist() == dataset.to_table().to_pylist()


@pytest.mark.parametrize("arrow", EXTENSIONS, ids=str)
def test_pylance_reads_the_fields_of_an_extension_type(arrow: pa.DataType) -> None:
    """Pylance reads the package's fields of an extension type as the same schema."""
    fields = fields_from_arrow(pa.schema([pa.field("c", arrow)]))
    assert ["c"] == read_by_pylance(fields, {}).names
