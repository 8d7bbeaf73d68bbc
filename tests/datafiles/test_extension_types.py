"""Extension types at any depth of a column: every operation handles them, as pylance does."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_dagster import LanceTable, SchemaMismatchError
from lance_dagster.datafiles.extension_types import extended, stored, stored_type

# The type, the type of what is stored, and a value of that.
EXTENSIONS: dict[str, tuple[Any, pa.DataType, object]] = {
    "json": (pa.json_(pa.string()), pa.string(), '{"a":1}'),
    "large json": (pa.json_(pa.large_string()), pa.large_string(), '{"a":1}'),
    "uuid": (pa.uuid(), pa.binary(16), uuid.UUID(int=1).bytes),
    "bool8": (pa.bool8(), pa.int8(), 1),
}
# The type around a type, and the value around a value.
PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "column": (lambda kind: kind, lambda value: value),
    "list": (pa.list_, lambda value: [value, None]),
    "large list": (pa.large_list, lambda value: [value]),
    "struct": (lambda kind: pa.struct([("x", kind), ("n", pa.int64())]), lambda value: {"x": value, "n": 1}),
    "list of structs": (lambda kind: pa.list_(pa.struct([("x", kind)])), lambda value: [{"x": value}]),
    "struct of lists": (lambda kind: pa.struct([("x", pa.list_(kind))]), lambda value: {"x": [value]}),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
}


def column(extension: str, place: str) -> Any:  # noqa: ANN401 - an array
    """A value and a null of the type."""
    arrow, storage, value = EXTENSIONS[extension]
    around, inside = PLACES[place]
    return extended(pa.array([inside(value), None], around(storage)), around(arrow))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_an_array_has_its_values_with_and_without_extension_types(extension: str, place: str) -> None:
    """Also where it is a slice of a longer one."""
    values = column(extension, place)
    for part in (values, values.slice(1), values.slice(0, 1), pa.concat_arrays([values, values]).slice(2, 2)):
        plain = stored(part)
        plain.validate(full=True)
        assert stored_type(values.type) == plain.type
        again = extended(plain, values.type)
        again.validate(full=True)
        assert part.to_pylist() == again.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_every_operation_handles_extension_types(tmp_path: Path, extension: str, place: str) -> None:
    """Rows of the type with which the table was created, all of them null, or without the column."""
    values = column(extension, place)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", values.type)])
    rows = pa.table([pa.array([1, 2]), values], schema=schema)
    table = LanceTable.create(tmp_path / "values", schema)
    table.append(rows)
    value, none = table.read()["v"].to_pylist()
    assert value is not None
    assert none is None
    table.append(pa.table({"id": [3, 4], "v": pa.nulls(2)}))
    table.append(pa.table({"id": [5], "v": pa.nulls(1, stored_type(values.type))}).cast(schema))
    table.upsert(rows, on=["id"])
    table.upsert(pa.table({"id": [2, 6]}), on=["id"])
    table.update({"v": "v"}, where="id = 1")
    table.replace_where("id = 3", pa.table([pa.array([3]), values.slice(0, 1)], schema=schema))
    table.columns.add({"copy": "v"})
    table.maintenance.compact()
    expected = {1: value, 2: None, 3: value, 4: None, 5: None, 6: None}
    found = table.read().sort_by("id").to_pylist()
    assert [{"id": number, "v": own, "copy": own} for number, own in expected.items()] == found
    table.update({"v": "NULL"}, where="id = 1")
    assert [None] == table.read(filter="id = 1")["v"].to_pylist()
    assert table.maintenance.verify(deep=True).ok


@pytest.mark.parametrize(
    "expression,said",
    [
        ("named_struct('a', 1, 'c', 'x')", "a struct has the fields a, c, and the type a, b"),
        ("named_struct('a', 1)", "a struct has the fields a, and the type a, b"),
        ("named_struct('a', 1, 'b', 'x', 'c', 1)", "a struct has the fields a, b, c, and the type a, b"),
    ],
)
def test_a_struct_with_other_fields_is_refused(tmp_path: Path, expression: str, said: str) -> None:
    """A field that it lacks would be null without a word."""
    schema = pa.schema([pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    table = LanceTable.create(tmp_path / "structs", schema)
    table.append(pa.table({"s": [{"a": 1, "b": "y"}]}, schema=schema))
    with pytest.raises(SchemaMismatchError, match=said):
        table.update({"s": expression})
    table.update({"s": "named_struct('b', 'x', 'a', s.a + 1)"})
    assert [{"a": 2, "b": "x"}] == table.read()["s"].to_pylist()
