"""A column of type null holds no value, so a type that one side gives it fits the rows of both sides."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.raising import raises

COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "note": pa.null()}
UNTYPED = pa.schema(COLUMNS)
MANY = 20_000


def rows(*ids: int, note: str | None = None) -> pa.Table:
    """Rows with one note; the note has the type null without a value."""
    notes = pa.nulls(len(ids)) if note is None else pa.array([note] * len(ids))
    return pa.table({"id": pa.array(ids, pa.int64()), "note": notes})


@pytest.fixture(params=["stable row ids", "without them"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LanceTable:
    """More rows than a merge compares, none of which has a note, and a branch `run`."""
    stable = request.param == "stable row ids"
    first = rows(*range(MANY))
    lance.write_dataset(first, str(tmp_path / "table"), schema=UNTYPED, enable_stable_row_ids=stable)
    made = LanceTable.open(tmp_path / "table")
    made.branches.create("run")
    return made


def type_note(table: LanceTable, branch: str, arrow: pa.DataType | None = None) -> None:
    """Give the column a type on a branch."""
    table.columns.cast("note", arrow or pa.string(), branch=branch)


def notes(table: LanceTable) -> dict[object, object]:
    """The note of each row that was added later, read by this package and by pylance alike."""
    found = table.read(filter=f"id >= {MANY}")
    assert table.to_lance().to_table(filter=f"id >= {MANY}").sort_by("id") == found.sort_by("id")
    assert (MANY, ()) == (
        table.count_rows(filter=f"id < {MANY} AND note IS NULL"),
        table.maintenance.verify(deep=True).problems,
    )
    return {row["id"]: row["note"] for row in found.to_pylist()}


@pytest.mark.parametrize("typed,other", [("run", "main"), ("main", "run")])
def test_a_type_and_rows_without_a_value(table: LanceTable, typed: str, other: str) -> None:
    """One side gives the column its type while the other side writes rows: both are kept."""
    type_note(table, typed)
    table.append(rows(MANY, note="a"), branch=typed)
    table.append(rows(MANY + 1), branch=other)
    table.delete("id = 0", branch=other)
    table.append(rows(0), branch=other)
    table.merge("run")
    assert {MANY: "a", MANY + 1: None} == notes(table)


def test_the_same_type_on_both_sides(table: LanceTable) -> None:
    """Neither side had a value to convert, so nothing is compared."""
    for branch, number in (("run", MANY), ("main", MANY + 1)):
        type_note(table, branch)
        table.append(rows(number, note=branch), branch=branch)
    table.merge("run")
    assert {MANY: "run", MANY + 1: "main"} == notes(table)
    table.branches.sync("run")
    table.append(rows(MANY + 2, note="later"), branch="run")
    table.merge("run")
    assert {MANY: "run", MANY + 1: "main", MANY + 2: "later"} == notes(table)


def test_two_types_are_a_conflict(table: LanceTable) -> None:
    """The values of both sides do not fit one column."""
    type_note(table, "run")
    type_note(table, "main", pa.int64())
    with raises(MergeConflictError, units=("column note",)):
        table.merge("run")


def test_a_type_is_taken_back_and_given_again(table: LanceTable) -> None:
    """A revert of the merge takes the column back to type null, and a revert of the revert gives it the type again."""
    type_note(table, "run")
    table.append(rows(MANY, note="a"), branch="run")
    table.append(rows(MANY + 1))
    merged = table.merge("run")
    table.revert(str(merged), parent=1)
    assert (pa.null(), {MANY + 1: None}) == (table.schema().field("note").type, notes(table))
    table.revert("main")
    assert {MANY: "a", MANY + 1: None} == notes(table)


def data_files(folder: Path) -> list[str]:
    """The names of the data files of a table."""
    return sorted(path.name for path in (folder / "data").iterdir())


@pytest.mark.parametrize("arrow", [pa.string(), pa.struct([("text", pa.string())]), pa.list_(pa.int64())], ids=str)
def test_a_type_is_given_without_a_file(tmp_path: Path, arrow: pa.DataType) -> None:
    """A column without a value is cast without a look at its rows."""
    table = LanceTable.create(tmp_path / "t", UNTYPED)
    table.append(rows(1, 2))
    before = data_files(tmp_path / "t")
    table.columns.cast("note", arrow)
    assert before == data_files(tmp_path / "t")
    table.maintenance.compact()
    assert [None, None] == table.read()["note"].to_pylist()
    assert table.maintenance.verify(deep=True).problems == ()


def test_the_only_column_gets_a_type(tmp_path: Path) -> None:
    """The number of rows is known from their files, so a file is written where there would be no other."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"note": pa.null()}))
    table.append(pa.table({"note": pa.nulls(3)}))
    table.columns.cast("note", pa.string())
    table.append(pa.table({"note": ["a"]}))
    assert [None, None, None, "a"] == table.read()["note"].to_pylist()
    assert table.maintenance.verify(deep=True).problems == ()
