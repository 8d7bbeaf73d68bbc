"""Row ids and row versions that a commit gives to rows it adds, moves or changes in place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_dagster import LanceTable, Transaction
from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.codec import decode_row_ids, decode_versions, encode_row_ids, encode_versions, version_run
from lance_dagster.format.model import DataFile, Fragment
from lance_dagster.format.transaction import REWRITE_COLUMNS, Update
from lance_dagster.transactions.row_lineage import restamped, stamped
from tests.raising import raises
from tests.table_factory import as_pylance, context_of, entries, new_table


def fragment(rows: int, ids: list[int] | None = None, created: list[int] | None = None) -> Fragment:
    """A new fragment whose first rows were moved."""
    return Fragment(
        id=0,
        files=(),
        physical_rows=rows,
        row_ids=None if ids is None else encode_row_ids(np.array(ids, np.uint64)),
        created_at=None if created is None else encode_versions(np.array(created, np.uint64)),
    )


def test_moved_rows_keep_their_ids_and_new_ones_get_the_next() -> None:
    """Moved rows keep their creation version; all rows are updated by this version."""
    made, following = stamped(fragment(5, [7, 3], [1, 2]), 10, 4)
    assert [7, 3, 10, 11, 12] == decode_row_ids(made.row_ids, 5, "m").tolist()
    assert [1, 2, 4, 4, 4] == decode_versions(made.created_at, 5, "m").tolist()
    assert [4] * 5 == decode_versions(made.updated_at, 5, "m").tolist()
    assert 13 == following


def test_another_attempt_gives_other_versions() -> None:
    """The next attempt does not start from what an earlier one assigned."""
    moved = fragment(3, [7], [1])
    assert stamped(moved, 20, 9)[0] == stamped(moved, 20, 9)[0]
    assert stamped(moved, 10, 4) != stamped(moved, 20, 9)


@pytest.mark.parametrize(
    "bad,said",
    [
        (fragment(1, [1, 2], [1, 1]), "has 2 row ids for 1 rows"),
        (fragment(2, [1, 2]), "needs the versions that its rows were created at"),
        (fragment(2, [1, 10], [1, 1]), "brings the row id 10, but the next row id is 10"),
    ],
)
def test_ids_that_cannot_be_are_refused(bad: Fragment, said: str) -> None:
    """There are more ids than rows, ids without history, or ids of rows that do not exist."""
    with pytest.raises(InvalidInputError, match=said):
        stamped(bad, 10, 4)


@pytest.mark.parametrize(
    "bad", [fragment(2, [1, 2], [1]), fragment(2, [1, 2], [1, 1, 1]), replace(fragment(2), row_ids=b"\xff")]
)
def test_sequences_that_do_not_fit_each_other_are_refused(bad: Fragment) -> None:
    """A version for each moved row and readable bytes are required."""
    with pytest.raises(CorruptFileError):
        stamped(bad, 10, 4)


@pytest.mark.parametrize(
    "said", [{"updated_offsets": {0: (1, 3)}}, {"updated_offset_bitmaps": {0: BitMap([1, 3]).serialize()}}]
)
def test_rows_with_new_values_are_updated_in_place(said: dict[str, Any]) -> None:
    """The named rows get the new version, in either way of naming; others keep their version."""
    own = replace(fragment(5), updated_at=encode_versions(np.array([1, 1, 1, 2, 2], np.uint64)))
    other = replace(fragment(2), id=1, updated_at=version_run(2, 1))
    operation = Update(updated_fragments=(own, other), mode=REWRITE_COLUMNS, **said)
    one, two = restamped(operation, 7)
    assert [1, 7, 1, 7, 2] == decode_versions(one.updated_at, 5, "m").tolist()
    assert other == two
    assert [own, other] == list(restamped(replace(operation, mode=0), 7))


@pytest.mark.parametrize("bitmap", [BitMap([5]).serialize(), b"no bitmap"])
def test_offsets_that_cannot_be_are_refused(bitmap: bytes) -> None:
    """The fragment does not have such rows, or the offsets cannot be read."""
    operation = Update(updated_fragments=(fragment(5),), mode=REWRITE_COLUMNS, updated_offset_bitmaps={0: bitmap})
    with raises(CorruptFileError, path="fragment 0"):
        list(restamped(operation, 7))


def test_pylance_sees_which_rows_got_values_in_place(tmp_path: Path) -> None:
    """A column that pylance wrote is committed: its rows get new versions, and the index no longer covers them."""
    table = new_table(tmp_path, entries("a", *range(5)), entries("b", 5))
    as_pylance(table).create_scalar_index("key", "BTREE")
    there = as_pylance(table).get_fragment(0)
    assert there is not None
    written, fields = there.update_columns(pa.table({"value": [1, 3], "key": ["x", "y"]}), "value", "value")
    operation = Update(
        updated_fragments=(replace(_fragment(table), files=tuple(map(_file, written.files))),),
        fields_modified=tuple(fields),
        mode=REWRITE_COLUMNS,
        updated_offset_bitmaps={0: BitMap([1, 3]).serialize()},
    )
    version = table.commit(Transaction(read_version=table.head().number, uuid="7", operation=operation))
    dataset = lance.dataset(table.uri)
    dataset.validate()
    rows = dataset.to_table(columns=["value", "key", "_row_last_updated_at_version"]).to_pylist()
    assert [("a", 2), ("x", version.number), ("a", 2), ("y", version.number), ("a", 2), ("b", 3)] == [
        (row["key"], row["_row_last_updated_at_version"]) for row in rows
    ]
    assert [1] == dataset.to_table(filter="key = 'x'")["value"].to_pylist()
    assert [0, 2, 4] == dataset.to_table(filter="key = 'a'")["value"].to_pylist()


def _fragment(table: LanceTable) -> Fragment:
    found = context_of(table).head("main").manifest.fragments.find(0)
    assert found is not None
    return found


def _file(file: Any) -> DataFile:  # noqa: ANN401 - pylance's own description
    return DataFile(
        path=file.path,
        fields=tuple(file.fields),
        column_indices=tuple(file.column_indices),
        major=file.file_major_version,
        minor=file.file_minor_version,
        size=file.file_size_bytes,
    )
