"""The type of a column that takes the values of two types."""

from typing import Any

import pyarrow as pa
import pytest

from lance_dagster.plugin.io.common_types import can_be_cast, common_type, needs_cast, new_fields, without_length

I32, I64, F64, TEXT, NULL = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.null()

CODED = pa.dictionary(pa.int8(), TEXT)


def struct(**fields: pa.DataType) -> pa.DataType:
    """A struct with fields that may be null."""
    return pa.struct(list(fields.items()))


def lists(item: pa.DataType, length: int = -1) -> pa.DataType:
    """A list, of a fixed size if a length is given."""
    return pa.list_(item, length)


@pytest.mark.parametrize(
    "own,given,same,kept,wider",
    [
        (I32, I64, None, I32, I64),
        (I64, I32, None, I64, I64),
        (NULL, TEXT, TEXT, TEXT, TEXT),
        (TEXT, NULL, TEXT, TEXT, TEXT),
        (TEXT, I64, None, None, None),
        (lists(NULL), lists(TEXT), lists(TEXT), lists(TEXT), lists(TEXT)),
        (lists(I64), lists(F64), None, lists(I64), lists(F64)),
        (lists(I64, 2), lists(F64, 2), None, lists(I64, 2), lists(F64, 2)),
        (lists(I64, 2), lists(I64, 3), None, None, None),
        (struct(a=NULL), struct(a=TEXT), struct(a=TEXT), struct(a=TEXT), struct(a=TEXT)),
        (struct(a=I64), struct(a=I64, b=TEXT), None, struct(a=I64, b=TEXT), struct(a=I64, b=TEXT)),
        (struct(a=I64, b=TEXT), struct(b=TEXT), None, struct(a=I64, b=TEXT), struct(a=I64, b=TEXT)),
        (struct(a=I32, b=TEXT), struct(b=TEXT, a=I64), None, struct(a=I32, b=TEXT), struct(a=I64, b=TEXT)),
        (struct(a=I64), struct(a=TEXT, b=TEXT), None, None, None),
        (lists(struct(a=I32)), lists(struct(c=I32)), None, lists(struct(a=I32, c=I32)), lists(struct(a=I32, c=I32))),
        (pa.map_(TEXT, I32), pa.map_(TEXT, I64), None, pa.map_(TEXT, I32), pa.map_(TEXT, I64)),
        (pa.map_(TEXT, I32), pa.map_(I64, I32), None, None, None),
        (lists(I64), struct(a=I64), None, None, None),
        (CODED, TEXT, None, CODED, TEXT),
        (TEXT, CODED, None, TEXT, TEXT),
        (CODED, pa.dictionary(I32, TEXT), None, CODED, pa.dictionary(I32, TEXT)),
        (pa.dictionary(I32, TEXT), CODED, None, pa.dictionary(I32, TEXT), pa.dictionary(I32, TEXT)),
        (CODED, I64, None, None, None),
        (struct(a=CODED), struct(a=TEXT, b=I64), None, struct(a=CODED, b=I64), struct(a=TEXT, b=I64)),
    ],
    ids=str,
)
def test_a_common_type(
    own: pa.DataType,
    given: pa.DataType,
    same: pa.DataType | None,
    kept: pa.DataType | None,
    wider: pa.DataType | None,
) -> None:
    """With equal numbers, with those of the table, and with the wider ones."""
    assert [same, kept, wider] == [
        common_type(own, given, "same"),
        common_type(own, given, "own"),
        common_type(own, given, "wider"),
    ]


def test_fields_that_cannot_be_told_apart_or_left_out() -> None:
    """A struct with two fields of one name has no common type, nor one that lacks a field which is never null."""
    twice: Any = pa.struct([pa.field("a", I64), pa.field("a", I64)])
    required: Any = pa.struct([pa.field("a", I64), pa.field("b", I64, nullable=False)])
    assert [None, None] == [common_type(struct(a=I64), twice, "own"), common_type(required, struct(a=I64), "own")]


def test_fields_are_new_at_any_depth() -> None:
    """Each new field comes with the path of its struct; the values of the others need no cast."""
    own: Any = struct(a=lists(struct(b=I64)), m=pa.map_(TEXT, struct(c=I64)))
    given: Any = struct(a=lists(struct(b=I64, x=TEXT)), m=pa.map_(TEXT, struct(c=I64, y=TEXT)), z=struct(d=I64))
    result = common_type(own, given, "own")
    found = [(path, field.name) for path, field in new_fields(own, result, "v")]
    assert [("v.a.item", "x"), ("v.m.entries.value", "y"), ("v", "z")] == found
    assert not needs_cast(own, result)
    assert needs_cast(own, common_type(own, struct(a=lists(struct(b=F64))), "wider"))


def test_a_cast_that_cannot_work_is_told_by_the_types() -> None:
    """A cast keeps the fields of structs, and turns no list into another kind of value."""
    assert can_be_cast(lists(struct(a=I64)), lists(struct(a=TEXT)))
    assert not can_be_cast(lists(struct(a=I64)), lists(struct(a=TEXT, b=TEXT)))
    assert not can_be_cast(lists(I64), I64)
    assert lists(I64) == without_length(lists(I64, 2), lists(I64, 3))
    assert struct(a=lists(I64), b=I64) == without_length(struct(a=lists(I64, 2)), struct(a=lists(I64, 3), b=I64))
