"""Columns added, dropped, renamed, reordered and cast, and metadata of tables and columns."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field

from lance_dagster import InvalidInputError, LanceTable, SchemaMismatchError
from lance_dagster.errors import CommitConflictError
from lance_dagster.format.value_ranges import RANGES
from tests.store.scripted import intruder_at_commit
from tests.table_factory import through

PLACE = pa.struct([("x", pa.int32()), ("y", pa.float64())])
VERSIONS = ["key", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(*keys: int) -> pa.Table:
    """Rows with a number, a text and a struct."""
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "text": pa.array([f"t{key}" for key in keys], pa.string()),
            "place": pa.array(
                [{"x": key, "y": float(key)} for key in keys], pa.struct([("x", pa.int32()), ("y", pa.float64())])
            ),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two fragments; the rows 0, 3 and 4 of the first and the last row of the second are deleted."""
    table = LanceTable.create(tmp_path / "table", rows().schema)
    table.append(rows(*range(5)))
    table.append(rows(*range(5, 9)))
    table.delete("key in (0, 3, 4, 8)")
    return table


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The doubled keys."""
    keys: list[Any] = batch["key"].to_pylist()
    return pa.record_batch({"double": pa.array([2 * key for key in keys], pa.int64())})


KEY = pa.array([1], pa.int64())
BLOBS = pa.table([KEY, blob_array([b"x"])], schema=pa.schema([pa.field("key", pa.int64()), blob_field("a")]))
LEFT = [1, 2, 5, 6, 7]
NULL_KEY = rows(1).set_column(0, "key", pa.array([None], pa.int64()))


def files(table: LanceTable) -> set[str]:
    """The names of the data files."""
    return {path.name for path in (Path(table.uri) / "data").iterdir()}


def valid(table: LanceTable) -> lance.LanceDataset:
    """The table as pylance reads and validates it."""
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert dataset.count_rows() == table.count_rows()
    return dataset


def test_a_column_of_nulls_writes_no_file(table: LanceTable) -> None:
    """The new column reads as null; rows that pylance appends later have values in it."""
    before = files(table)
    version = table.columns.add(
        [pa.field("a", pa.int8()), pa.field("b", pa.struct([("c", pa.string())]))], message="more"
    )
    assert ("Merge", "more") == (version.operation, version.message)
    assert before == files(table)
    assert [(None, None)] * 5 == [(row["a"], row["b"]) for row in table.read().to_pylist()]
    valid(table).insert(
        rows(20).append_column("a", pa.array([1], pa.int8())).append_column("b", pa.array([{"c": "x"}]))
    )
    assert [1] == table.read(columns=["a"], filter="key = 20")["a"].to_pylist()


@pytest.mark.parametrize("kind", ["expression", "function", "table"])
def test_values_stand_beside_their_rows(table: LanceTable, kind: str) -> None:
    """Each fragment gets one new file with values for deleted rows too; no other file is written."""
    before, versions = files(table), table.to_lance().to_table(columns=VERSIONS)

    if kind == "expression":
        table.columns.add({"double": "key * 2"})
    elif kind == "function":
        table.columns.add(doubled, reads=["key"])
    else:
        keys = pa.array(range(100), pa.int16())
        table.columns.add(pa.table({"key": keys, "double": pa.array(range(0, 200, 2), pa.int64())}), on=["key"])
    assert 2 == len(files(table) - before)
    assert [(key, 2 * key) for key in LEFT] == [(row["key"], row["double"]) for row in table.read().to_pylist()]
    found = valid(table).to_table(columns=VERSIONS)
    assert versions.select(VERSIONS[:3]) == found.select(VERSIONS[:3])
    assert [table.head().number] * 5 == found["_row_last_updated_at_version"].to_pylist()
    lance.dataset(table.uri).update({"double": "0"}, where="key = 1")
    lance.dataset(table.uri).optimize.compact_files()
    assert [0, 4, 10, 12, 14] == valid(table).to_table().sort_by("double")["double"].to_pylist()


def test_constants_may_be_null_later(table: LanceTable) -> None:
    """An expression that is never null still makes a nullable column."""
    table.columns.add({"source": "'FAA'", "one": "1"})
    assert [("FAA", 1)] * 5 == [(row["source"], row["one"]) for row in table.read().to_pylist()]
    assert table.schema().field("source").nullable


def test_keys_that_are_not_found_are_null(table: LanceTable) -> None:
    """Null keys give nulls too, and unmatched rows of the other table are ignored."""
    other = pa.table({"key": pa.array([1, 99, None, None]), "name": ["one", "no", "a", "b"], "n": [[1], [2], [3], [4]]})
    table.columns.add(other, on=["key"])
    assert [("one", [1]), *[(None, None)] * 4] == [(row["name"], row["n"]) for row in table.read().to_pylist()]


def test_keys_that_python_has_no_object_for(tmp_path: Path) -> None:
    """Arrow has dates beyond the year 9999."""
    days = pa.array([10**7, 1, None], pa.date32())
    made = LanceTable.create(tmp_path / "days", pa.schema({"day": pa.date32()}))
    made.append(pa.table({"day": days}))
    made.columns.add(pa.table({"day": days, "x": [7, 8, 9]}), on=["day"])
    assert [7, 8, None] == made.read().column("x").to_pylist()


def test_a_struct_is_added_with_values_where_files_hold_no_null_struct(tmp_path: Path) -> None:
    """Files of version 2.0: no row could be rewritten any more that has a null there."""
    made = pa.table({"key": [1, 2]})
    lance.write_dataset(made, tmp_path / "table", data_storage_version="2.0", enable_stable_row_ids=True)
    table = LanceTable.open(tmp_path / "table")
    with pytest.raises(InvalidInputError):
        table.columns.add(pa.field("place", PLACE))
    places = pa.array([{"x": 1, "y": 1.0}, {"x": 2, "y": 2.0}], PLACE)
    with pytest.raises(SchemaMismatchError, match="null struct"):
        table.columns.add(pa.table({"key": [1], "place": places[:1]}), on=["key"])
    table.columns.add(made.append_column("place", places), on=["key"])
    rows = pa.table({"key": [1, 3], "place": [None, None]})
    for write in (table.append, lambda given: table.upsert(given, on=["key"]), table.overwrite):
        with pytest.raises(SchemaMismatchError, match="null struct"):
            write(rows)
    table.update({"key": "key + 1"})
    empty = LanceTable.open(lance.write_dataset(made[:0], tmp_path / "empty", data_storage_version="2.0").uri)
    empty.columns.add(pa.field("place", PLACE))
    empty.append(made.append_column("place", places))


VIEWS: dict[str, "pa.Array[Any]"] = {
    "string": pa.array(["a"], pa.string_view()),
    "bytes": pa.array([b"a"], pa.binary_view()),
    "list": pa.array([["a"]], pa.list_(pa.string_view())),
    "struct": pa.array([{"x": "a"}], pa.struct([("x", pa.string_view())])),
    "map": pa.array([[("k", "a")]], pa.map_(pa.string(), pa.string_view())),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views_are_added_as_strings(table: LanceTable, kind: str) -> None:
    """Arrow takes no rows of them, which a lookup by key and deleted rows need."""
    values = VIEWS[kind]

    def repeated(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.concat_arrays([values] * batch.num_rows)], ["all"])

    table.columns.add(repeated, reads=["key"])
    table.columns.add(pa.table({"key": KEY, "one": values}), on=["key"])
    found = table.read(columns=["key", "all", "one"]).to_pylist()
    (value,) = values.to_pylist()
    assert [(key, value, value if key == 1 else None) for key in LEFT] == [tuple(row.values()) for row in found]


def test_keys_of_extension_types_are_looked_up(tmp_path: Path) -> None:
    """Arrow joins their stored values; JSON has no one text."""
    ids = pa.array([b"0" * 16, b"1" * 16, None], pa.binary(16)).cast(pa.uuid())
    given = pa.table({"id": ids, "doc": pa.array(['{"a": 1}'] * 3).cast(pa.json_())})
    table = LanceTable.create(tmp_path / "keyed", given.schema)
    table.append(given)
    table.columns.add(pa.table({"id": ids[1:], "name": ["one", "none"]}), on=["id"])
    assert [None, "one", None] == table.read()["name"].to_pylist()
    for change in (table.upsert, table.columns.add):
        with pytest.raises(InvalidInputError, match="is JSON"):
            change(given.slice(0, 1), on=["doc"])


@pytest.mark.parametrize("name", ["__place", "__row", "count_all", "key 0"])
def test_keys_have_any_name(tmp_path: Path, name: str) -> None:
    """Also that of a column which the look-up has beside the keys."""
    table = LanceTable.create(tmp_path / "table", pa.schema([(name, pa.int64()), ("key", pa.int64())]))
    table.append(pa.table({name: [1, 2, 3], "key": [4, 5, 6]}))
    table.columns.add(pa.table({name: [3, 1], "key": [6, 4], "a": ["x", "y"]}), on=["key", name])
    assert ["y", None, "x"] == table.read()["a"].to_pylist()
    with pytest.raises(InvalidInputError, match=f"the key \\{{'key': 6, '{name}': 3\\}} more than once"):
        table.columns.add(pa.table({name: [3, 3], "key": [6, 6], "b": ["x", "y"]}), on=["key", name])


def test_columns_are_added_on_a_branch(table: LanceTable) -> None:
    """Data files of the branch lie under the root, and main is not affected."""
    table.branches.create("run/1")
    table.columns.add({"double": "key * 2"}, branch="run/1")
    assert [2 * key for key in LEFT] == table.read("run/1")["double"].to_pylist()
    assert rows().schema.names == table.schema().names
    table.to_lance("run/1").validate()
    assert not (Path(table.uri) / "tree/run/1/data").exists()


def test_rows_that_come_and_go_meanwhile_are_computed_too(table: LanceTable) -> None:
    """The commit is repeated with the new rows; values of the old fragments are not computed again."""
    calls: list[int] = []

    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return doubled(batch)

    def others() -> None:
        table.append(rows(30))
        table.delete("key = 2")

    through(table, intruder_at_commit(others)).columns.add(double, reads=["key"])
    assert [(1, 2), (5, 10), (6, 12), (7, 14), (30, 60)] == [(r["key"], r["double"]) for r in table.read().to_pylist()]
    assert [1, 2, 3, 1] == calls
    valid(table)


def test_rows_that_are_revived_meanwhile_are_computed_too(table: LanceTable) -> None:
    """A file with values is used again only where it has one for every live row, and not that of a neighbour."""
    through(table, intruder_at_commit(lambda: table.revert("main@4"))).columns.add(doubled, reads=["key"])
    assert [(key, 2 * key) for key in range(9)] == [(r["key"], r["double"]) for r in table.read().to_pylist()]


def test_a_retry_reads_the_column_that_has_the_name_now(table: LanceTable) -> None:
    """The values of the column that had the name before do not come back with the cast."""
    table.columns.add({"other": "key * 10"})

    def swap() -> None:
        table.delete("key = 7")
        table.columns.rename("key", "old")
        table.columns.rename("other", "key")

    through(table, intruder_at_commit(swap)).columns.cast("key", pa.int32())
    assert [(key, key * 10) for key in LEFT[:-1]] == [(r["old"], r["key"]) for r in table.read().to_pylist()]


def test_values_of_two_fragments_with_one_data_file(tmp_path: Path) -> None:
    """A picked revert and a merge leave a data file in two fragments, each with other rows of it."""
    table = LanceTable.create(tmp_path / "table", pa.schema([("key", pa.int64())]))
    table.branches.create("b")
    table.append(pa.table({"key": [10, 11, 12]}), branch="b")
    deleted = table.delete("key = 11", branch="b")
    table.cherry_pick(table.revert(str(deleted), branch="b"))
    table.merge("b")
    table.columns.cast("key", pa.int32())
    table.columns.add(doubled, reads=["key"])
    assert [(10, 20), (11, 22), (12, 24)] == sorted((r["key"], r["double"]) for r in table.read().to_pylist())


@pytest.mark.parametrize(
    "columns,arguments,said",
    [
        (pa.field("key", pa.int8()), {}, "there is a column 'key' already"),
        (pa.field("", pa.int8()), {}, "a column needs a name"),
        (pa.schema([]), {}, "no column to add was given"),
        ({"a": "nothing + 1"}, {}, "compute 'a' as 'nothing \\+ 1'"),
        ({"a": "key / 0"}, {}, "[Dd]ivide by zero"),
        (pa.field("a", pa.int8(), nullable=False), {}, "column 'a' would be null in every row"),
        (pa.field("a", pa.month_day_nano_interval()), {}, "cannot hold the Arrow type"),
        (pa.table({"key": [1, 1], "a": [1, 2]}), {"on": ["key"]}, "the key \\{'key': 1\\} more than once"),
        (pa.table({"key": [1]}), {"on": ["key"]}, "no column beside the keys"),
        (pa.table({"key": ["x"], "a": [1]}), {"on": ["key"]}, "key column 'key' is string"),
        (pa.table({"key": [1], "a": [1]}), {}, "`on` names the key columns"),
        (pa.table({"key": [1], "a": [1]}), {"on": ["key", "key"]}, "`on` names the column 'key' more than once"),
        (pa.table([KEY, KEY, KEY], ["key", "a", "a"]), {"on": ["key"]}, "has the column 'a' more than once"),
        (BLOBS, {"on": ["key"]}, "column 'a' holds blobs, .* by upsert"),
        (lambda _: BLOBS.select(["a"]).to_batches()[0], {"reads": ["key"]}, "column 'a' holds blobs"),
        (lambda rows: rows.slice(1), {"reads": ["text"]}, "column 'text' already"),
        (lambda _: pa.record_batch({"a": [1]}), {"reads": ["text"]}, "need 2 values each, 1 were given"),
        (lambda _: 7, {"reads": ["text"]}, "has to return a pyarrow.RecordBatch, not int"),
        (
            lambda rows: rows,
            {"reads": ["nothing"]},
            "there is no column 'nothing'; the table has 'key', 'text', 'place'",
        ),
        (["a"], {}, "columns to add are pyarrow fields"),
    ],
)
def test_columns_that_cannot_be_added(
    table: LanceTable, columns: object, arguments: dict[str, list[str]], said: str
) -> None:
    """One error says why, and no version is made."""
    before = table.head()
    with pytest.raises((InvalidInputError, SchemaMismatchError), match=said):
        table.columns.add(columns, **arguments)  # type: ignore[arg-type]
    assert before == table.head()


def test_errors_of_a_function_are_its_own(table: LanceTable) -> None:
    """The author of the function can interpret its errors."""

    def fails(_: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("of the function")

    with pytest.raises(ZeroDivisionError, match="of the function"):
        table.columns.add(fails, reads=["key"])


def test_dropped_columns_are_gone_and_their_files_with_them(table: LanceTable) -> None:
    """Older versions keep the columns; files without any other column are no longer referenced."""
    table.columns.add({"double": "key * 2"})
    kept = table.head()
    table.columns.drop(["double", "place.x"])
    assert ["key", "text", "place"] == table.schema().names
    assert [{"y": 1.0}] == table.read(filter="key = 1")["place"].to_pylist()
    assert {1} == {len(fragment.data_files()) for fragment in valid(table).get_fragments()}
    assert [2 * key for key in LEFT] == table.read(str(kept))["double"].to_pylist()
    table.columns.add(pa.field("double", pa.int64()))
    assert [None] * 5 == table.read()["double"].to_pylist()


def test_the_last_written_column_of_a_fragment_stays(table: LanceTable) -> None:
    """With only a column of nulls left, pylance allows the drop, but cannot read the table afterwards."""
    version = table.columns.add(pa.field("empty", pa.int8()))
    with pytest.raises(InvalidInputError):
        table.columns.drop(["key", "text", "place"])
    assert version == table.head()
    table.columns.cast("empty", pa.int16())
    table.columns.drop(["key", "text", "place"])
    assert [{"empty": None}] * 5 == valid(table).to_table().to_pylist()


def test_an_index_goes_with_its_column_and_the_others_stay(table: LanceTable) -> None:
    """Indices are found by field id, not by the position or name of the column."""
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("key", "BTREE", name="by_key")
    dataset.create_scalar_index("text", "BTREE", name="by_text")
    table.columns.drop(["text"])
    table.columns.rename("key", "number")
    assert [("by_key", ("number",))] == [(index.name, index.columns) for index in table.maintenance.indices()]
    plan = valid(table).scanner(filter="number = 5").explain_plan()
    assert "ScalarIndexQuery" in plan
    assert [5] == table.read(filter="number = 5")["number"].to_pylist()


def test_renamed_and_reordered(table: LanceTable) -> None:
    """No data is written; fields inside structs can be renamed too."""
    before = files(table)
    table.columns.rename("place.x", "longitude")
    table.columns.rename("text", "name")
    version = table.columns.reorder(["place", "key", "name"])
    assert "Project" == version.operation
    assert ["place", "key", "name"] == table.schema().names
    assert {"place": {"longitude": 1, "y": 1.0}, "key": 1, "name": "t1"} == valid(table).to_table().to_pylist()[0]
    assert before == files(table)
    assert version == table.columns.reorder(["place", "key", "name"])
    lance.dataset(table.uri).insert(table.read(filter="key = 1"))
    table.append(table.read(filter="key = 2"))
    assert 7 == valid(table).count_rows()


@pytest.mark.parametrize(
    "call,said",
    [
        (lambda table: table.columns.drop(["nothing"]), "there is no column 'nothing'"),
        (lambda table: table.columns.drop(["place.z"]), "there is no column 'place.z'; 'place' has 'x', 'y'"),
        (lambda table: table.columns.drop(["place.x", "place.y"]), "nothing would be left of the struct 'place'"),
        (lambda table: table.columns.drop(["key", "text", "place"]), "cannot be without any column"),
        (lambda table: table.columns.drop([]), "no column to drop"),
        (lambda table: table.columns.rename("key", "text"), "that name is taken"),
        (lambda table: table.columns.rename("key", ""), "a column needs a name$"),
        (lambda table: table.columns.rename("key", "a.b"), r"'a\.b' cannot name a column"),
        (lambda table: table.columns.rename("key", "a`b"), "cannot contain '`'"),
        (lambda table: table.columns.rename("key", "_rowid"), "Lance computes a column of that name"),
        (lambda table: table.columns.rename("place.x", "a\0b"), "cannot name a field: it cannot contain a NUL"),
        (lambda table: table.columns.reorder(["key"]), "has to name every column once"),
        (lambda table: table.columns.cast("place.x", pa.int64()), "only whole columns can be cast"),
        (lambda table: table.columns.cast("text", pa.int64()), "cannot become int64"),
        (lambda table: table.columns.cast("place", pa.struct([("x", pa.int32())])), "the fields x, y, and the type x;"),
        (lambda table: table.columns.set_nullable("nothing", nullable=False), "there is no column 'nothing'"),
        (lambda table: table.columns.set_metadata("nothing", {}), "there is no column 'nothing'"),
    ],
)
def test_changes_that_cannot_be(table: LanceTable, call: Callable[[LanceTable], object], said: str) -> None:
    """One error names the column and the reason, and no version is made."""
    before = table.head()
    with pytest.raises((InvalidInputError, SchemaMismatchError), match=said):
        call(table)
    assert before == table.head()


def test_a_cast_writes_one_column(table: LanceTable) -> None:
    """The column keeps its position and name, and gets a new id; a cast to the same type makes no version."""
    before = files(table)
    table.columns.cast("key", pa.int16())
    assert 2 == len(files(table) - before)
    assert [("key", pa.int16()), ("text", pa.string())] == [(f.name, f.type) for f in table.schema()][:2]
    assert LEFT == valid(table).to_table()["key"].to_pylist()
    version = table.head()
    assert version == table.columns.cast("key", pa.int16())
    table.append(rows(40).set_column(0, "key", pa.array([40], pa.int16())))
    table.maintenance.compact()
    assert [*LEFT, 40] == valid(table).to_table().sort_by("key")["key"].to_pylist()


@pytest.mark.parametrize(
    "values,to,expected",
    [
        (pa.array([[1], None]), pa.list_(pa.float64()), [[1.0], None]),
        (pa.array([[[1]], None]), pa.list_(pa.list_(pa.int32())), [[[1]], None]),
        (pa.array([{"a": 1}, None]), pa.struct([("a", pa.float64())]), [{"a": 1.0}, None]),
        (
            pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            pa.map_(pa.string(), pa.int32()),
            [[("k", 1)], []],
        ),
        (pa.array([b"0" * 16, None], pa.binary(16)), pa.uuid(), [UUID(bytes=b"0" * 16), None]),
        (pa.array([b"0" * 16, None], pa.binary(16)).cast(pa.uuid()), pa.binary(16), [b"0" * 16, None]),
        (pa.array(["{}", None]).cast(pa.json_()), pa.string(), ["{}", None]),
        (pa.array([1, None], pa.int8()).cast(pa.bool8()), pa.bool_(), [True, None]),
    ],
)
def test_a_cast_of_what_is_inside(tmp_path: Path, values: Any, to: pa.DataType, expected: list[object]) -> None:  # noqa: ANN401
    """The inner types count, and the extension type: it goes with the old type, unlike other metadata."""
    table = LanceTable.create(tmp_path / "table", pa.schema([pa.field("new", values.type, metadata={"note": "kept"})]))
    table.append(pa.table([values], schema=table.schema()))
    table.columns.cast("new", to)
    (field,) = table.schema()
    assert (to, expected) == (field.type, table.read()["new"].to_pylist())
    assert {b"note": b"kept"} == field.metadata
    assert 2 == valid(table).count_rows()


def test_a_cast_that_would_lose_values_is_refused(table: LanceTable) -> None:
    """A cast neither rounds nor truncates values; deleted rows are ignored."""
    table.append(rows(70_000))
    with pytest.raises(SchemaMismatchError):
        table.columns.cast("key", pa.int16())
    table.delete("key = 70000")
    table.columns.cast("key", pa.int16())
    assert LEFT == valid(table).to_table()["key"].to_pylist()


@pytest.mark.parametrize(
    "value,to,said",
    [
        (1.239, pa.decimal128(10, 2), "column 'new' cannot become decimal128\\(10, 2\\): 1.239 .*ROUND or CAST"),
        (1e300, pa.float32(), "1e\\+300 would become inf; .*ROUND or CAST"),
        ("16777217", pa.float32(), "16777217 would become 16777216.0$"),
        ({"at": datetime(2026, 1, 31, 12, tzinfo=UTC)}, pa.struct([("at", pa.date32())]), "would become 2026-01-31$"),
    ],
)
def test_a_cast_rounds_nothing(tmp_path: Path, value: object, to: pa.DataType, said: str) -> None:
    """Neither a number nor a moment; the error has the value, and what to do."""
    data = pa.table({"new": [None, value]})
    table = LanceTable.create(tmp_path / "table", data.schema)
    table.append(data)
    with pytest.raises(SchemaMismatchError, match=said):
        table.columns.cast("new", to)
    assert data.equals(table.read())
    assert 2 == table.head().number


def test_a_key_is_not_rounded_to_another_one(table: LanceTable) -> None:
    """The row of the other key would get its value."""
    with pytest.raises(SchemaMismatchError, match="does not fit"):
        table.columns.add(pa.table({"key": [1.0, 1.5], "a": ["x", "y"]}), on=["key"])
    table.columns.add(pa.table({"key": [1.0, 2.0], "a": ["x", "y"]}), on=["key"])
    assert ["x", "y"] == table.read(filter="key in (1, 2)").sort_by("key")["a"].to_pylist()


def test_an_indexed_column_is_not_cast(table: LanceTable) -> None:
    """The index would hold values of the old type."""
    lance.dataset(table.uri).create_scalar_index("key", "BTREE", name="by_key")
    with pytest.raises(InvalidInputError):
        table.columns.cast("key", pa.int16())
    table.maintenance.drop_index("by_key")
    table.columns.cast("key", pa.int16())
    assert () == table.maintenance.indices()
    valid(table)


def test_nulls_are_refused_from_then_on(table: LanceTable) -> None:
    """A column without nulls can be set to refuse them, and to allow them again."""
    table.columns.add(pa.field("empty", pa.int8()))
    with pytest.raises(InvalidInputError):
        table.columns.set_nullable("empty", nullable=False)
    table.columns.set_nullable("key", nullable=False)
    assert not valid(table).schema.field("key").nullable
    with pytest.raises(SchemaMismatchError, match="has nulls"):
        table.append(NULL_KEY.append_column("empty", pa.array([1], pa.int8())))
    table.columns.set_nullable("key", nullable=True)
    assert valid(table).schema.field("key").nullable


def test_a_primary_key_does_not_become_nullable(table: LanceTable) -> None:
    """No reader would open the table; a declaration that comes meanwhile counts too."""

    def declare() -> None:
        table.columns.set_metadata("key", {"lance-schema:unenforced-primary-key": "true"})

    table.columns.set_nullable("key", nullable=False)
    with pytest.raises((InvalidInputError, CommitConflictError)):
        through(table, intruder_at_commit(declare)).columns.set_nullable("key", nullable=True)
    with pytest.raises(InvalidInputError):
        table.columns.set_nullable("key", nullable=True)
    assert LEFT == valid(table).to_table()["key"].to_pylist()


@pytest.mark.parametrize(
    "path,nullable,problem",
    [
        ("tags.entries", True, "'tags.entries' is the entry of a map"),
        ("tags.entries.key", True, "'tags.entries.key' is the key of a map"),
        ("tags.entries.value", False, "inside of the map 'tags'"),
        ("tags.entries.value.x", False, "inside of the map 'tags'"),
        ("list.item", False, "inside of the list 'list'"),
        ("list.item.x", False, "inside of the list 'list'"),
    ],
)
def test_nulls_inside_of_maps_and_lists(tmp_path: Path, path: str, nullable: bool, problem: str) -> None:  # noqa: FBT001
    """A map whose keys may be null cannot be read, and nulls in lists cannot be looked for."""
    inner = pa.struct([("x", pa.int64())])
    schema = pa.schema([("tags", pa.map_(pa.string(), inner)), ("list", pa.list_(inner))])
    table = LanceTable.create(tmp_path / "table", schema)
    table.append(pa.table({"tags": [[("a", {"x": 1})]], "list": [[{"x": 1}]]}, schema=schema))
    with pytest.raises(InvalidInputError, match=problem):
        table.columns.set_nullable(path, nullable=nullable)
    assert schema == table.schema()


def test_nulls_that_come_meanwhile_are_found(table: LanceTable) -> None:
    """The check of the column covers the rows that the commit is made on."""
    with pytest.raises(InvalidInputError):
        through(table, intruder_at_commit(lambda: table.append(NULL_KEY))).columns.set_nullable("key", nullable=False)


def test_metadata_is_set_and_taken_out(table: LanceTable) -> None:
    """Metadata of columns, nested fields, the schema and the table, and config, can be set; pylance reads all of it."""
    table.columns.set_metadata("key", {"unit": "m", "gone": "x"})
    table.columns.set_metadata("key", {"gone": None})
    table.columns.set_metadata("place.x", {"a": "b"}, replace=True)
    table.config.set_schema_metadata({"about": "flights"})
    table.config.set_table_metadata({"owner": "ann", "team": "data"})
    table.config.set_table_metadata({"team": "ops"}, replace=True)
    table.config.set({"lance.auto_cleanup.interval": "100"})
    dataset = valid(table)
    assert {b"unit": b"m"} == dataset.schema.field("key").metadata
    assert {b"a": b"b"} == dataset.schema.field("place").type.field(0).metadata
    assert {b"about": b"flights"} == dataset.schema.metadata
    assert {"team": "ops"} == {key: text for key, text in dataset.metadata.items() if key != RANGES}
    assert {"lance.auto_cleanup.interval": "100"} == dataset.config()
    assert dataset.schema == table.schema()


@pytest.mark.parametrize(
    "column,key,value,problem",
    [
        ("place", "lance-encoding:packed", "true", "says how its values are stored"),
        ("place", "packed", "true", "says how its values are stored"),
        ("key", "lance-encoding:blob", "true", "says how its values are stored"),
        ("key", "ARROW:extension:name", "arrow.json", "says how its values are stored"),
        ("key", "lance-encoding:compression", "gzip", "Lance takes none, lz4, zstd, fsst as"),
        ("key", "lance-encoding:structural-encoding", "page", "Lance takes miniblock, fullzip as"),
    ],
)
def test_metadata_that_stored_values_do_not_fit_is_refused(
    table: LanceTable, column: str, key: str, value: str, problem: str
) -> None:
    """The rows would be read as nulls, or not at all, or no row could be written any more."""
    before = table.head()
    with pytest.raises(InvalidInputError, match=problem):
        table.columns.set_metadata(column, {key: value})
    assert before == table.head()


def test_the_type_of_a_column_stays_when_its_metadata_is_replaced(tmp_path: Path) -> None:
    """A caller who replaces the metadata does not have to give the keys of an extension type."""
    table = LanceTable.create(tmp_path / "table", pa.schema([pa.field("doc", pa.json_())]))
    table.append(pa.table({"doc": pa.array(['{"a":1}'], pa.json_())}))
    table.columns.set_metadata("doc", {"unit": "m"}, replace=True)
    assert (pa.json_(), ['{"a":1}']) == (table.schema().field("doc").type, table.read()["doc"].to_pylist())


def test_two_settings_of_one_key_need_a_person(table: LanceTable) -> None:
    """Concurrent settings of the same key conflict, because neither takes precedence; other keys do not."""
    other = through(table, intruder_at_commit(lambda: table.config.set({"a": "intruder"})))
    with pytest.raises(CommitConflictError):
        other.config.set({"a": "own"})
    through(table, intruder_at_commit(lambda: table.config.set({"b": "intruder"}))).config.set({"c": "own"})
    assert {"a": "intruder", "b": "intruder", "c": "own"} == lance.dataset(table.uri).config()
