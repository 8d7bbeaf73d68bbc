"""Appends, overwrites and replacements, and the errors for rows that do not fit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, StagedFiles, Version, write_files
from lance_dagster.errors import (
    CommitConflictError,
    InvalidInputError,
    RefNotFoundError,
    SchemaMismatchError,
    StoreError,
    UnsupportedFeatureError,
)
from tests.raising import raises
from tests.table_factory import SCHEMA, as_pylance, contents, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of two rows in one fragment."""
    return new_table(tmp_path, pa.concat_tables([entries("a", 1), entries("b", 2)]))


def staged(table: LanceTable, rows: pa.Table, schema: pa.Schema | None = None) -> StagedFiles:
    """Rows written as data files, as an executor would."""
    target = table.write_target(schema)
    return StagedFiles(target.schema, write_files(target, rows.to_batches()))


def data_files(table: LanceTable) -> list[str]:
    """The names of the files in the table's data folder."""
    return sorted(path.name for path in (Path(table.uri) / "data").glob("*"))


@pytest.mark.parametrize(
    "given",
    [
        lambda rows: rows,
        lambda rows: rows.to_batches()[0],
        lambda rows: rows.to_reader(),
        lambda rows: rows.select(["value", "key"]),
    ],
    ids=["table", "batch", "stream", "other order"],
)
def test_rows_come_in_any_shape(table: LanceTable, given: Callable[[pa.Table], pa.Table]) -> None:
    """Rows may be a table, a batch or a stream; columns are matched by name."""
    version = table.append(given(entries("c", 3)))
    assert ("main@3", 3) == (str(version), version.rows)
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)


@pytest.mark.parametrize("kind", ["string", "large string", "struct", "list", "map", "dictionary"])
def test_a_string_that_is_not_utf8_is_refused(tmp_path: Path, kind: str) -> None:
    """Such rows could not be read back; rows outside of a slice are ignored."""
    texts: Any = pa.array([b"ok", b"\xc3\xa4", b"latin \xe4", b"ok"]).view(pa.string())
    offsets: Any = [0, 1, 2, 4]
    numbers: Any = pa.array([1, 2, 3, 4])
    column: Any = {
        "string": texts,
        "large string": texts.cast(pa.large_string()),
        "struct": pa.StructArray.from_arrays([texts], ["text"]),
        "list": pa.ListArray.from_arrays(offsets, texts),
        "map": pa.MapArray.from_arrays(offsets, texts, numbers),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([2, 0, 0]), texts),
    }[kind]
    rows = pa.table({"it": column})
    table = LanceTable.create(tmp_path / "t", rows.schema)
    with pytest.raises(SchemaMismatchError, match="not UTF-8"):
        table.append(rows)
    assert [1] == table.branches.version_numbers()
    if kind != "dictionary":
        assert 2 == table.append(rows.slice(0, 2)).rows


@pytest.mark.parametrize("write", ["append", "overwrite", "replace_where"])
def test_rows_that_are_not_arrow_are_refused(table: LanceTable, write: str) -> None:
    """The error for a dict names the Arrow types that are accepted, and nothing is written."""
    condition = ["value > 0"] if write == "replace_where" else []
    with pytest.raises(InvalidInputError, match="give a pyarrow"):
        getattr(table, write)(*condition, {"key": ["c"]})
    assert "main@2" == str(table.head())


def test_no_rows_are_a_commit_without_files(table: LanceTable) -> None:
    """The version records that the call was made; there is no empty fragment."""
    table.append(entries("c"))
    table.append(pa.RecordBatchReader.from_batches(SCHEMA, []))
    assert 4 == table.head().number
    assert 1 == len(as_pylance(table).get_fragments())
    as_pylance(table).validate()


def test_staged_files_are_rows(table: LanceTable) -> None:
    """Data files written elsewhere are committed by name."""
    files = staged(table, entries("c", 3, 4))
    assert 2 == files.rows
    assert [("a", 1), ("b", 2)] == contents(table)
    table.append(files)
    assert [("a", 1), ("b", 2), ("c", 3), ("c", 4)] == contents(table)


def test_large_input_is_split_into_files(table: LanceTable) -> None:
    """No file has more rows than the target says, and all files are in one commit."""
    target = table.write_target()
    small = replace(target, max_rows=4)
    files = write_files(small, entries("c", *range(10)).to_batches(max_chunksize=3))
    assert [4, 4, 2] == [file.rows for file in files]
    table.append(StagedFiles(target.schema, files))
    assert [("c", value) for value in range(10)] == contents(table)[2:]


@pytest.mark.parametrize("at_once", [1, 3, 10])
def test_wide_rows_are_split_by_their_bytes(table: LanceTable, at_once: int) -> None:
    """A batch is divided where a file is full, and a row that is larger than a file has a file of its own."""
    rows = entries("c" * 1000, *range(10))
    target = table.write_target()
    limited = replace(target, max_bytes=4 * (rows.nbytes // 10))
    files = write_files(limited, rows.to_batches(max_chunksize=at_once))
    assert 10 == sum(file.rows for file in files)
    assert all(3 <= file.rows <= 5 for file in files[:-1])
    table.append(StagedFiles(target.schema, files))
    assert list(range(10)) == [value for _, value in contents(table)[2:]]
    tiny = write_files(replace(target, max_bytes=100), rows.to_batches())
    assert [1] * 10 == [file.rows for file in tiny]


def test_a_replace_takes_out_and_puts_in_at_once(table: LanceTable) -> None:
    """One version deletes the old rows and adds the new ones."""
    version = table.replace_where("key = 'a'", entries("a", 8, 9))
    assert ("main@3", "Update", 3) == (str(version), version.operation, version.rows)
    assert [("a", 8), ("a", 9), ("b", 2)] == contents(table)


def test_a_replace_that_matches_nothing_is_an_append(table: LanceTable) -> None:
    """A partition that is written for the first time matches no rows."""
    table.replace_where("key = 'z'", entries("z", 1))
    assert [("a", 1), ("b", 2), ("z", 1)] == contents(table)


def test_a_replace_by_nothing_is_a_delete(table: LanceTable) -> None:
    """A fragment whose last rows are deleted is removed."""
    table.replace_where("key = 'a'", entries("a"))
    table.replace_where("key = 'b'", entries("b"))
    assert [] == contents(table)
    assert [] == as_pylance(table).get_fragments()


def test_a_replace_twice_deletes_from_what_is_left(table: LanceTable) -> None:
    """The deletion vector of a fragment grows."""
    table.append(entries("c", *range(10)))
    table.replace_where("key = 'c' and value < 3", entries("c"))
    table.replace_where("key = 'c' and value > 7", entries("c"))
    assert [("c", value) for value in (3, 4, 5, 6, 7)] == contents(table)[2:]
    as_pylance(table).validate()


def test_an_overwrite_keeps_the_columns_where_rows_fit(table: LanceTable) -> None:
    """Arrow types that differ only in representation are stored as the table's types."""
    table.overwrite(pa.table({"value": pa.array([7], pa.int64()), "key": pa.array(["x"], pa.large_string())}))
    assert SCHEMA == table.schema()
    assert [("x", 7)] == contents(table)


def test_an_overwrite_can_change_the_columns(table: LanceTable) -> None:
    """Later writes must have the new columns."""
    table.overwrite(pa.table({"name": ["x"], "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    assert ["name", "vector"] == table.schema().names
    with pytest.raises(SchemaMismatchError, match="is missing"):
        table.append(entries("a", 1))
    table.append(pa.table({"name": ["y"], "vector": [[3.0, 4.0]]}, schema=table.schema()))
    assert [[1.0, 2.0], [3.0, 4.0]] == table.read()["vector"].to_pylist()
    as_pylance(table).validate()


@pytest.mark.parametrize("arrow", [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.large_string()], ids=str)
def test_what_an_overwrite_stores_is_what_is_read(table: LanceTable, arrow: pa.DataType) -> None:
    """New columns of a type that Lance simplifies are readable, and can be appended to with what was read."""
    table.overwrite(pa.table({"name": pa.array(["x", None], arrow)}))
    rows = table.read()
    table.append(rows)
    assert ["x", None, "x", None] == table.read()["name"].to_pylist()


def test_extension_types_are_kept(tmp_path: Path) -> None:
    """Rows read from a table can be appended to it with their extension types."""
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
    table = LanceTable.create(tmp_path / "ids", pa.schema([("id", pa.uuid())]))
    table.append(pa.table({"id": ids}))
    table.append(table.read())
    assert pa.uuid() == table.read().schema.field("id").type
    assert 2 == table.count_rows()


def _written(table: LanceTable, verb: str, rows: pa.Table) -> Version:
    return table.append(rows) if verb == "append" else table.replace_where("true", rows)


@pytest.mark.parametrize(
    "rows,said",
    [
        (pa.table({"key": ["a"]}), "column 'value' is missing"),
        (pa.table({"key": ["a"], "value": [1], "more": [1]}), "column 'more' is not in the table"),
        (pa.table({"key": ["a"], "value": ["1"]}), "column 'value' is string, the table holds int64"),
        (pa.table({"key": [1], "value": [1]}), "column 'key' is int64, the table holds string"),
        (
            pa.table({"key": ["a"], "value": pa.array([1], pa.int32())}),
            "column 'value' is int32, the table holds int64",
        ),
        (
            pa.table({"key": ["a"], "value": pa.array([1.0], pa.float64())}),
            "column 'value' is double, the table holds int64",
        ),
        (
            pa.Table.from_arrays([pa.array(["a"]), pa.array(["a"]), pa.array([1])], ["key", "key", "value"]),
            "column 'key' is given twice",
        ),
        (
            pa.table({"Key": ["a"], "value": ["1"]}),
            "column 'key' is missing; column 'Key' is not in the table; column 'value' is string",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["append", "replace_where"])
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    table: LanceTable, rows: pa.Table, said: str, verb: str
) -> None:
    """The error lists all wrong columns, each with both types."""
    before = data_files(table)
    with pytest.raises(SchemaMismatchError, match=said):
        _written(table, verb, rows)
    assert before == data_files(table)
    assert [1, 2] == table.branches.version_numbers()


def test_a_null_where_none_may_be_is_refused(tmp_path: Path) -> None:
    """Nulls in a column that is not nullable are refused at any depth."""
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", inner)])
    table = LanceTable.create(tmp_path / "strict", schema)
    loose = pa.struct([("x", pa.int32())])
    table.append(pa.table({"id": [1], "s": pa.array([{"x": 1}], loose)}))
    with pytest.raises(SchemaMismatchError, match="has nulls"):
        table.append(pa.table({"id": pa.array([None], pa.int64()), "s": pa.array([{"x": 1}], loose)}))
    with pytest.raises(SchemaMismatchError):
        table.append(pa.table({"id": [2], "s": pa.array([{"x": None}], loose)}))
    assert 1 == table.count_rows()


@pytest.mark.parametrize(
    "given,stored",
    [
        (pa.array([[1.0, 2.0]], pa.list_(pa.float32())), pa.list_(pa.float32(), 2)),
        (pa.array(["2026-01-31"], pa.string()).cast(pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([0], pa.timestamp("us", "Europe/Paris")), pa.timestamp("us", "UTC")),
        (pa.array([None], pa.null()), pa.map_(pa.string(), pa.int8())),
        (pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int8())), pa.map_(pa.string(), pa.int8())),
        (
            pa.array([[{"x": "a"}]], pa.list_(pa.struct([("x", pa.large_string())]))),
            pa.list_(pa.struct([("x", pa.string())])),
        ),
        (pa.array([b"a"], pa.binary()), pa.large_binary()),
    ],
    ids=lambda value: str(getattr(value, "type", "")) or None,
)
def test_representations_are_converted(tmp_path: Path, given: "pa.Array[Any]", stored: pa.DataType) -> None:
    """Equivalent types are stored as the table's type."""
    table = LanceTable.create(tmp_path / "typed", pa.schema([("c", stored)]))
    table.append(pa.table({"c": given}))
    expected: Any = given.cast(stored)
    assert expected.to_pylist() == table.read()["c"].to_pylist()


@pytest.mark.parametrize(
    "given,stored",
    [
        (pa.array([[1.0]], pa.list_(pa.float32())), pa.list_(pa.float32(), 2)),
        (pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32(), 3)), pa.list_(pa.float32(), 2)),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("s")),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("ns")),
        (pa.array([{"x": 1}]), pa.struct([("y", pa.int64())])),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array([True]), pa.int8()),
        (pa.array(["a"]), pa.binary()),
    ],
    ids=lambda value: str(getattr(value, "type", "")) or None,
)
def test_nothing_is_rounded_parsed_or_cut(tmp_path: Path, given: "pa.Array[Any]", stored: pa.DataType) -> None:
    """A value that a conversion would change is refused with both types."""
    table = LanceTable.create(tmp_path / "typed", pa.schema([("c", stored)]))
    with pytest.raises(SchemaMismatchError) as caught:
        table.append(pa.table({"c": given}))
    assert str(given.type) in str(caught.value)
    assert 0 == table.count_rows()


@pytest.mark.parametrize(
    "types,said",
    [
        ({"value": pa.int64(), "key": pa.string()}, "files were staged as value int64, key string"),
        ({"key": pa.large_string(), "value": pa.int64()}, "key large_string"),
        ({"key": pa.string(), "value": pa.timestamp("s")}, "column 'value' is timestamp"),
        ({"key": pa.string()}, "column 'value' is missing"),
    ],
)
def test_staged_files_have_the_tables_types_and_order(
    table: LanceTable, types: dict[str, pa.DataType], said: str
) -> None:
    """A written file cannot be converted: its bytes would be read as other values."""
    schema = pa.schema(types)
    rows = pa.table({name: pa.array([None], schema.field(name).type) for name in schema.names}, schema=schema)
    with pytest.raises(SchemaMismatchError, match=said):
        table.append(staged(table, rows, schema))
    assert 2 == table.count_rows()


def test_a_stream_that_fails_commits_nothing(table: LanceTable) -> None:
    """The error of the stream is raised, and files already written are not referenced."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield entries("c", 1).to_batches()[0]
        raise OSError("the source went away")

    with pytest.raises(OSError, match="the source went away"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert [1, 2] == table.branches.version_numbers()


@pytest.mark.parametrize(
    "filter",
    ["", "key ==", "missing = 1", "value = 'x'", "nofunction(key)", "key", "value / 0 > 1", "CAST(key AS int) = 1"],
)
@pytest.mark.parametrize("verb", ["read", "count_rows", "replace_where"])
def test_a_condition_that_makes_no_sense_is_named(table: LanceTable, filter: str, verb: str) -> None:
    """Each method that takes a filter reports the error in the same way."""
    ask: dict[str, Callable[[], object]] = {
        "read": lambda: table.read(filter=filter),
        "count_rows": lambda: table.count_rows(filter=filter),
        "replace_where": lambda: table.replace_where(filter, entries("a", 1)),
    }
    with pytest.raises(InvalidInputError) as caught:
        ask[verb]()
    assert repr(filter) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [1, 2] == table.branches.version_numbers()


@pytest.mark.parametrize("columns,said", [(["nope"], "no column 'nope'"), (["key.deep"], "cannot read the columns")])
def test_a_column_that_is_not_there_is_named(table: LanceTable, columns: list[str], said: str) -> None:
    """The error lists the existing columns."""
    with pytest.raises(InvalidInputError, match=said):
        table.read(columns=columns)


def test_columns_come_in_the_order_asked_for(table: LanceTable) -> None:
    """The filter may use other columns."""
    rows = table.read(columns=["value"], filter="key = 'b'")
    assert (["value"], [2]) == (rows.schema.names, rows["value"].to_pylist())
    assert ["value", "key"] == table.read(columns=["value", "key"]).schema.names
    assert 1 == table.count_rows(filter="value > 1")
    assert [2] == table.scan(columns=["value"], filter="value > 1").read_all()["value"].to_pylist()


def test_a_missing_data_file_is_a_failure_of_the_storage(table: LanceTable) -> None:
    """The error is not one about the caller's filter."""
    for path in (Path(table.uri) / "data").iterdir():
        path.unlink()
    with pytest.raises(StoreError, match="Not found"):
        table.read(filter="value = 1")


def test_a_write_to_a_branch_that_is_not_there_is_refused(table: LanceTable) -> None:
    """The error has the nearest name, and is raised before rows are written."""
    table.branches.create("run")
    before = data_files(table)
    for write in (table.append, table.overwrite, lambda rows, branch: table.replace_where("true", rows, branch=branch)):
        with raises(RefNotFoundError, ref="rum", hint="did you mean 'run'?"):
            write(entries("a", 1), branch="rum")
    assert before == data_files(table)


def test_a_tag_cannot_be_written_to(table: LanceTable) -> None:
    """A tag names a fixed version."""
    table.tags.create("release", "main")
    with raises(RefNotFoundError, kind="branch", ref="release"):
        table.append(entries("a", 1), branch="release")


def test_a_repeated_attempt_replaces_the_first(table: LanceTable) -> None:
    """The commit that adds the second attempt's rows removes those of the first."""
    first = table.append(entries("c", 1))
    table.append(entries("d", 1))
    second = table.append(entries("c", 2), replaces=first)
    assert [("a", 1), ("b", 2), ("c", 2), ("d", 1)] == contents(table)
    table.append(entries("c", 3), replaces=second)
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 1)] == contents(table)
    table.append(entries("c", 4), replaces=first)
    assert [("a", 1), ("b", 2), ("c", 3), ("c", 4), ("d", 1)] == contents(table)


@pytest.mark.parametrize(
    "move",
    [
        lambda dataset: dataset.optimize.compact_files(),
        lambda dataset: dataset.update({"value": "7"}, where="key = 'c'"),
    ],
    ids=["compaction", "update"],
)
def test_rows_of_a_first_attempt_that_moved_are_not_doubled(
    table: LanceTable, move: Callable[[lance.LanceDataset], object]
) -> None:
    """The rows cannot be identified any more, so the second attempt is refused."""
    first = table.append(entries("c", 1))
    move(as_pylance(table))
    with raises(CommitConflictError, retryable=False):
        table.append(entries("c", 2), replaces=first)


def test_rows_of_a_first_attempt_that_an_upsert_moved_are_not_doubled(table: LanceTable) -> None:
    """This holds even if the upsert added new keys and therefore claims its rows."""
    first = table.append(entries("c", 1))
    table.upsert(pa.concat_tables([entries("c", 7), entries("x", 1)]), on=["key"])
    with raises(CommitConflictError, committed="main@4", retryable=False):
        table.append(entries("c", 2), replaces=first)
    assert 1 == table.count_rows(filter="key = 'c'")


def test_an_attempt_on_another_branch_is_not_replaced(table: LanceTable) -> None:
    """Fragments of another branch may have the same numbers, but have other rows."""
    table.branches.create("run")
    first = table.append(entries("c", 1), branch="run")
    table.append(entries("m", 1))
    with pytest.raises(InvalidInputError):
        table.append(entries("c", 2), replaces=first)
    assert ("m", 1) in contents(table)


def test_an_attempt_before_a_fork_is_replaced_after_it(table: LanceTable) -> None:
    """A run that continues a failed run replaces the rows that the failed run added."""
    table.branches.create("first")
    attempt = table.append(entries("c", 1), branch="first")
    table.branches.create("second", "first")
    table.append(entries("d", 1), branch="second")
    table.append(entries("c", 2), branch="second", replaces=attempt)
    assert [("a", 1), ("b", 2), ("c", 2), ("d", 1)] == contents(table, "second")
    assert [("a", 1), ("b", 2), ("c", 1)] == contents(table, "first")


def test_messages_and_properties_are_kept(table: LanceTable) -> None:
    """Every kind of write keeps both."""
    for write in (
        table.append,
        table.overwrite,
        lambda rows, **options: table.replace_where("true", rows, **options),
    ):
        version = write(entries("a", 1), message="why", properties={"k": "v"})
        assert ("why", "v") == (version.message, version.properties["k"])
    transaction = as_pylance(table).read_transaction(3)
    assert transaction is not None
    assert "why" == (transaction.transaction_properties or {})["__lance_commit_message"]


def test_pylance_tables_of_older_file_versions_are_written_in_their_own(tmp_path: Path) -> None:
    """New data files have the file version of the table, not the newest one."""
    for version in ("2.0", "2.1", "2.2"):
        uri = str(tmp_path / version)
        lance.write_dataset(entries("a", 1), uri, data_storage_version=version)
        table = LanceTable.open(uri)
        table.append(entries("b", 2))
        assert [("a", 1), ("b", 2)] == contents(table)
        assert version == as_pylance(table).data_storage_version
        as_pylance(table).validate()


def test_a_table_of_the_first_file_format_can_only_be_read(tmp_path: Path) -> None:
    """No current library writes such files."""
    uri = str(tmp_path / "legacy")
    lance.write_dataset(entries("a", 1), uri, data_storage_version="legacy")
    table = LanceTable.open(uri)
    assert [("a", 1)] == contents(table)
    with pytest.raises(UnsupportedFeatureError, match=r"data files of version '0\.1'"):
        table.append(entries("b", 2))


def test_a_slice_of_nested_structs_is_written(tmp_path: Path) -> None:
    """A slice of rows with structs in structs, and nulls at each level, is written as given."""
    inner = pa.struct([("n", pa.int32()), ("deep", pa.struct([("t", pa.string())]))])
    values = [None, {"n": None, "deep": None}, {"n": 1, "deep": {"t": None}}, {"n": 2, "deep": {"t": "a"}}] * 4
    rows = pa.table({"value": pa.array(values, inner)})
    table = LanceTable.create(tmp_path / "t.lance", rows.schema)
    table.append(rows.slice(5, 7))
    assert values[5:12] == table.read()["value"].to_pylist()
