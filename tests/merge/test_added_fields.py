"""Fields that a side adds to a struct are null in the rows of the other side, at any depth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError, MergeConflictError
from tests.raising import raises

TEXT: "pa.Field[Any]" = pa.field("text", pa.string())
AMOUNT: "pa.Field[Any]" = pa.field("amount", pa.float64())


class Shape(NamedTuple):
    """A column that has a struct somewhere in it."""

    path: str
    column: Callable[[pa.DataType], pa.DataType]
    value: Callable[[object], object]


SHAPES = {
    "struct": Shape("value", lambda struct: struct, lambda value: value),
    "list": Shape("value.item", pa.list_, lambda value: [value]),
    "nested": Shape("value.inner", lambda struct: pa.struct([("inner", struct)]), lambda value: {"inner": value}),
}


class Folded(NamedTuple):
    """A table with the rows 0, which has a struct, and 1, which has none, and a branch `run`."""

    table: LanceTable
    shape: Shape

    def rows(self, number: int, *fields: "pa.Field[Any]", **values: object) -> pa.Table:
        """A row whose struct has a number and some more fields."""
        struct = pa.struct([pa.field("number", pa.int64()), *fields])
        value = self.shape.value({"number": number, **values})
        return pa.table({"id": [number], "value": pa.array([value], self.shape.column(struct))})

    def add(self, branch: str, number: int, *fields: "pa.Field[Any]", **values: object) -> None:
        """Add fields to the struct on a branch, and a row that has them."""
        if fields:
            self.table.columns.add_fields(self.shape.path, fields, branch=branch)
        self.table.append(self.rows(number, *fields, **values), branch=branch)

    def found(self) -> dict[object, object]:
        """The values by id, the same for this package, for pylance and after a compaction."""
        by_id = {row["id"]: row["value"] for row in self.table.read().to_pylist()}
        assert by_id == {row["id"]: row["value"] for row in self.table.to_lance().to_table().to_pylist()}
        self.table.maintenance.compact()
        assert by_id == {row["id"]: row["value"] for row in self.table.read().to_pylist()}
        assert self.table.maintenance.verify(deep=True).problems == ()
        return by_id


@pytest.fixture(params=SHAPES)
def folded(request: pytest.FixtureRequest, tmp_path: Path) -> Folded:
    """A table of one shape."""
    shape = SHAPES[request.param]
    kind = shape.column(pa.struct([("number", pa.int64())]))
    rows = pa.table({"id": [0, 1], "value": pa.array([shape.value({"number": 0}), None], kind)})
    lance.write_dataset(rows, str(tmp_path / "t"), enable_stable_row_ids=True, data_storage_version="2.1")
    table = LanceTable.open(tmp_path / "t")
    table.branches.create("run")
    return Folded(table, shape)


def test_a_field_of_one_side(folded: Folded) -> None:
    """Rows of the side without the field are null in it, updated ones too."""
    folded.add("run", 2, TEXT, text="run")
    folded.add("main", 3)
    folded.table.update({"id": "10"}, where="id = 0")
    folded.table.merge("run")
    value = folded.shape.value
    assert folded.found() == {
        10: value({"number": 0, "text": None}),
        1: None,
        2: value({"number": 2, "text": "run"}),
        3: value({"number": 3, "text": None}),
    }


def test_the_same_field_on_both_sides(folded: Folded) -> None:
    """The field is there once, with the values of the rows of either side."""
    folded.add("run", 2, TEXT, text="run")
    folded.add("main", 3, TEXT, text="main")
    folded.table.merge("run")
    value, found = folded.shape.value, folded.found()
    assert [value({"number": 2, "text": "run"}), value({"number": 3, "text": "main"})] == [found[2], found[3]]


def test_other_fields_on_both_sides(folded: Folded) -> None:
    """Both fields are there."""
    folded.add("run", 2, TEXT, text="run")
    folded.add("main", 3, AMOUNT, amount=1.5)
    folded.table.merge("run")
    value, found = folded.shape.value, folded.found()
    assert found[2] == value({"number": 2, "amount": None, "text": "run"})
    assert found[3] == value({"number": 3, "amount": 1.5, "text": None})


def test_a_field_of_two_types_is_a_conflict(folded: Folded) -> None:
    """The values of both sides do not fit one field."""
    folded.add("run", 2, TEXT, text="run")
    folded.add("main", 3, pa.field("text", pa.int64()), text=3)
    with raises(MergeConflictError, units=(f"column {folded.shape.path}.text",)):
        folded.table.merge("run")


@pytest.mark.parametrize(
    "path,field,says",
    [
        ("value.number", TEXT, "only a struct whose fields are stored apart gets new fields, and 'value.number' is of"),
        ("id", TEXT, "and 'id' is of type int64"),
        ("nothing", TEXT, "there is no column 'nothing'"),
        ("value", pa.field("number", pa.int64()), "there is a column 'number' already"),
        ("value", pa.field("text", pa.string(), nullable=False), "'text' would be null in every row"),
    ],
)
def test_fields_that_cannot_be_added(tmp_path: Path, path: str, field: "pa.Field[Any]", says: str) -> None:
    """The error says why, and nothing is committed."""
    table = LanceTable.create(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("value", pa.struct([("number", pa.int64())]))])
    )
    with pytest.raises(InvalidInputError, match=says):
        table.columns.add_fields(path, [field])
    assert table.head().number == 1
