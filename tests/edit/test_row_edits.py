"""Rewritten rows as fragments and deletion vectors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from lance_dagster import InvalidInputError, StagedFiles, write_files
from lance_dagster.datafiles import group_by_fragment, offsets_by_fragment, scan_addressed, take_rows
from lance_dagster.edit.write import field_ids, moved_in, retried, taken_out
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import decode_row_ids, decode_versions
from lance_dagster.format.schema import fields_from_arrow
from tests.raising import raises
from tests.table_factory import context_of, entries, new_table

ADDRESSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), unique=True, max_size=30)


@given(ADDRESSES)
def test_rows_are_grouped_by_their_fragment(pairs: list[tuple[int, int]]) -> None:
    """Rows keep their order within a fragment."""
    addresses = np.array([(fragment << 32) + offset for fragment, offset in pairs], np.uint64)
    wanted: dict[int, list[int]] = {}
    for place, (fragment, _) in enumerate(pairs):
        wanted.setdefault(fragment, []).append(place)
    assert dict(sorted(wanted.items())) == {
        fragment: places.tolist() for fragment, places in group_by_fragment(addresses)
    }
    offsets = {fragment: sorted(pairs[place][1] for place in places) for fragment, places in wanted.items()}
    assert offsets == {fragment: list(found) for fragment, found in offsets_by_fragment(addresses).items()}


def test_moved_rows_fill_as_many_files_as_it_takes(tmp_path: Path) -> None:
    """The last moved rows share a file with the first new rows, and later files have only new rows."""
    table = new_table(tmp_path, entries("a", *range(5)), entries("b", *range(5, 10)))
    context = context_of(table)
    head = context.head("main")
    (rows,) = scan_addressed(context.dataset(head), ["value"])
    moved = rows.addresses[[9, 3, 0, 6, 7, 2]]
    target = replace(table.write_target(), max_rows=4)
    staged = StagedFiles(target.schema, write_files(target, entries("c", *range(9)).to_batches()))
    first, second, third = moved_in(context, head, staged, moved)
    assert (4, 4, 1) == (first.physical_rows, second.physical_rows, third.physical_rows)
    assert [9, 3, 0, 6] == decode_row_ids(first.row_ids, 4, "m").tolist()
    assert [3, 2, 2, 3] == decode_versions(first.created_at, 4, "m").tolist()
    assert [7, 2] == decode_row_ids(second.row_ids, 2, "m").tolist()
    assert (None, None) == (third.row_ids, third.created_at)


@pytest.mark.parametrize("known", [True, False])
def test_rows_are_read_where_they_were_found(tmp_path: Path, known: bool) -> None:  # noqa: FBT001
    """Rows are read in any order, by position or address; rows at other addresses are refused."""
    table = new_table(tmp_path, entries("a", *range(5)), entries("b", *range(5, 10)))
    table.delete("value IN (1, 6)")
    dataset = table.to_lance()
    (rows,) = scan_addressed(dataset, ["value"])
    wanted = np.array([7, 0, 3, 5])
    places = wanted if known else None
    found = take_rows(dataset, rows.addresses[wanted], ["value", "key"], places)
    assert [(9, "b"), (0, "a"), (4, "a"), (7, "b")] == [tuple(row.values()) for row in found.to_pylist()]
    nothing = take_rows(dataset, rows.addresses[:0], ["key"], None if places is None else places[:0])
    assert (["key"], 0) == (nothing.column_names, nothing.num_rows)
    with pytest.raises(CorruptFileError, match="not the 4 rows found before"):
        take_rows(dataset, rows.addresses[wanted] + np.uint64(1), ["key"], places)


def test_rows_of_a_fragment_that_is_not_there_are_refused(tmp_path: Path) -> None:
    """The reader and the manifest disagree."""
    table = new_table(tmp_path, entries("a", 1))
    context = context_of(table)
    with raises(CorruptFileError, path="main@2"):
        taken_out(context, context.head("main"), offsets_by_fragment(np.array([7 << 32], np.uint64)))


def test_fields_are_named_with_what_is_inside() -> None:
    """The fields are columns with all their nested fields."""
    inner = pa.struct([("x", pa.list_(pa.struct([("y", pa.int8())]))), ("z", pa.int8())])
    columns: list[Any] = [("a", pa.int8()), ("s", inner), ("b", pa.int8())]
    fields = fields_from_arrow(pa.schema(columns))
    by_id = {field.id: field.name for field in fields}
    assert ["a", "b"] == [by_id[number] for number in field_ids(fields, ["b", "a"])]
    assert ["s", "x", "item", "y", "z"] == [by_id[number] for number in field_ids(fields, ["s"])]


def test_what_cannot_be_done_again_is_not() -> None:
    """An error other than a conflict is raised at once."""
    attempts = []

    def attempt() -> Any:  # noqa: ANN401 - never returns
        attempts.append(1)
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError):
        retried(attempt)
    assert [1] == attempts
