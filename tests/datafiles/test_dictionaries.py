"""Dictionaries with few indices: rows come together that have more values than the dictionaries number."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import SchemaMismatchError
from tests.soak import DEEP
from tests.table_factory import as_pylance

_INT8 = pa.dictionary(pa.int8(), pa.string())
_VALUES = [f"a{number}" for number in range(128)]


def coded(values: Sequence[str | None]) -> "pa.Array[Any]":
    """An array of a dictionary that has each value once."""
    return pa.array(values, pa.string()).dictionary_encode().cast(_INT8)


def nested(kind: str, values: "pa.Array[Any]") -> "pa.Array[Any]":
    """The values themselves, in a struct, or in a list each."""
    if kind == "struct":
        return pa.StructArray.from_arrays([values], ["d"])
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    return values


def part(number: int, kind: str = "plain") -> pa.Table:
    """Sixty rows with values of their own, one of them null."""
    values = nested(kind, coded([None, *(f"{number}-{each}" for each in range(59))]))
    return pa.table({"id": range(number * 60, number * 60 + 60), "user": values})


def table_of(folder: Path, version: str, *parts: pa.Table) -> LanceTable:
    """A table with a fragment for each argument."""
    uri = str(folder / "table")
    lance.write_dataset(parts[0], uri, data_storage_version=version, enable_stable_row_ids=True)  # type: ignore[arg-type]
    made = LanceTable.open(uri)
    for rows in parts[1:]:
        made.append(rows)
    return made


def values(rows: pa.Table) -> list[tuple[int, object]]:
    """The rows in order of their ids."""
    return sorted((row["id"], row["user"]) for row in rows.to_pylist())


def readable(table: LanceTable, branch: str = "main") -> list[tuple[int, object]]:
    """The rows as pylance reads them, and the package finds no problem."""
    assert not [problem for problem in table.maintenance.verify(deep=DEEP).problems if problem.severity == "error"]
    return values(as_pylance(table, branch).to_table())


@pytest.mark.parametrize("kind", ["plain", "struct", "list"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_compaction_makes_no_file_with_more_values_than_its_dictionary_numbers(
    tmp_path: Path, version: str, kind: str
) -> None:
    """Two fragments fit into one file, and a second compaction has nothing to do."""
    parts = [part(number, kind) for number in range(4)]
    table = table_of(tmp_path, version, *parts)
    table.maintenance.compact()
    assert values(pa.concat_tables(parts)) == readable(table)
    assert (2, table.head()) == (len(as_pylance(table).get_fragments()), table.maintenance.compact())


def test_one_append_of_equal_dictionaries(tmp_path: Path) -> None:
    """Lance puts the dictionaries of all batches of a file together, also equal ones of many rows."""
    rows = [pa.table({"id": range(at, at + 384), "user": coded([*_VALUES, *_VALUES, *_VALUES])}) for at in (0, 384)]
    table = LanceTable.create(tmp_path / "table", rows[0].schema)
    table.append(pa.concat_tables(rows))
    assert (values(pa.concat_tables(rows)), 1) == (readable(table), len(as_pylance(table).get_fragments()))


def test_a_null_is_a_value_in_files_of_version_2_0(tmp_path: Path) -> None:
    """The rows of a batch with 128 values and a null are divided."""
    table = table_of(tmp_path, "2.0", part(0))
    table.append(pa.table({"id": range(100, 229), "user": coded([*_VALUES, None])}))
    assert 60 + 129 == len(readable(table))


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_changes_of_rows_with_many_values(tmp_path: Path, version: str) -> None:
    """Updates, upserts, diffs and merges read rows of several fragments together."""
    table = table_of(tmp_path, version, *map(part, range(3)))
    given = values(table.read())
    table.columns.add({"n": "0"})
    before = table.head()
    table.branches.create("run")
    table.update({"n": "1"}, where="id % 2 = 0", branch="run")
    table.upsert(pa.table({"id": range(180), "n": range(180)}), on=["id"])
    assert 180 == table.read(filter="n = id").num_rows
    changed = table.diff(before, table.head()).rows().read_all()
    assert {"update_preimage": 179, "update_postimage": 179} == Counter(changed.column("_change_type").to_pylist())
    shown = table.preview_merge("run").conflicting_rows(on=["id"]).read_all()
    assert 89 == shown.num_rows
    table.merge("run", strategy="source-wins")
    table.upsert(part(5).slice(1).append_column("n", pa.array(range(59))), on=["user"])
    assert [*given, *((301 + place, f"5-{place}") for place in range(59))] == readable(table)


def test_cells_of_both_sides_of_a_merge(tmp_path: Path) -> None:
    """A null among the values of a dictionary, as pylance reads it from files of version 2.0, does not stop a merge."""
    rows = [part(number).append_column("n", pa.array([0] * 60)) for number in range(3)]
    table = table_of(tmp_path, "2.0", *rows)
    table.branches.create("run")
    table.update({"n": "1"}, branch="run")
    table.update({"user": "'x'"}, where="id < 100")
    assert 100 == table.preview_merge("run").rows_combined
    table.merge("run")
    found = {row["id"]: (row["user"], row["n"]) for row in table.read().to_pylist()}
    assert [("x", 1), ("1-40", 1), (None, 1)] == [found[number] for number in (60, 101, 120)]
    assert 180 == len(readable(table))


def test_an_index_gives_way_to_a_compaction_that_pylance_would_spoil(tmp_path: Path) -> None:
    """Rows with narrow dictionaries are moved by the package, and the index does not cover the new fragments."""
    table = table_of(tmp_path, "2.2", *map(part, range(3)))
    as_pylance(table).create_scalar_index("id", "BTREE")
    table.maintenance.compact()
    assert 180 == len(readable(table))
    assert 1 == table.read(filter="id = 7").num_rows


def test_a_new_column_with_too_many_values_is_refused(tmp_path: Path) -> None:
    """The values of one fragment have to be in one file."""
    table = table_of(tmp_path, "2.2", pa.table({"id": range(300), "user": coded(_VALUES[:100] * 3)}))
    values = [[str(number) for number in range(at, at + 100)] for at in (0, 100, 200)]
    chunks = [pa.table({"id": [int(one) for one in part], "new": coded(part)}) for part in values]
    new = pa.concat_tables(chunks)
    with pytest.raises(SchemaMismatchError, match="more different values"):
        table.columns.add(new, on=["id"])
    table.columns.add(new.set_column(1, "new", new["new"].cast(pa.string())), on=["id"])
    with pytest.raises(SchemaMismatchError):
        table.columns.cast("new", _INT8)


_STRUCT = pa.struct([("d", pa.dictionary(pa.int32(), pa.string()))])


@pytest.mark.parametrize("arrow,value", [(_STRUCT, None), (pa.list_(_STRUCT), [None])], ids=["struct", "list"])
def test_rows_that_have_no_value_of_a_dictionary(tmp_path: Path, arrow: pa.DataType, value: object) -> None:
    """Below a null struct the indices count for nothing, and the dictionary may be empty."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", arrow)])
    table = LanceTable.create(tmp_path / "table", schema)
    rows = pa.Table.from_pylist([{"id": 1, "v": value}, {"id": 2, "v": None}], schema=schema)
    table.append(rows)
    table.upsert(rows, on=["id"])
    table.columns.add(rows.rename_columns(["id", "w"]), on=["id"])
    assert [{**row, "w": row["v"]} for row in rows.to_pylist()] == as_pylance(table).to_table().to_pylist()
