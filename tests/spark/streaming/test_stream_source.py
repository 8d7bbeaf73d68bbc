"""A branch as a stream, read as Spark's query does it. `test_stream_sink` runs whole queries."""

import pickle
import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from lance_dagster.errors import InvalidInputError, LanceDagsterError, SchemaMismatchError, VersionNotFoundError
from lance_dagster.spark.change_rows import CHANGE_COLUMNS
from lance_dagster.spark.source import LanceDataSource
from lance_dagster.spark.spark_schema import readable_schema
from lance_dagster.spark.streaming.stream_source import LanceStreamReader, Offset, StreamOptions
from lance_dagster.table import LanceTable

Row = dict[str, Any]


def rows(*ids: int) -> pa.Table:
    """Rows of these ids."""
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{one}" for one in ids], pa.string())})


@pytest.fixture
def table(tmp_table_uri: str) -> LanceTable:
    """A table of three rows, at version 2."""
    made = LanceTable.create(tmp_table_uri, rows().schema)
    made.append(rows(1, 2, 3))
    return made


def started(table: LanceTable, **options: str) -> LanceStreamReader:
    """The reader of a query that was just started."""
    parsed = StreamOptions.of(options)
    known = table.at(parsed.branch)
    own = readable_schema(table.schema(known))
    schema = StructType([*CHANGE_COLUMNS, *own]) if parsed.changes else own
    reader = LanceStreamReader(LanceTable.open(table.uri), parsed, schema, schema_version=known)
    return pickle.loads(pickle.dumps(reader))  # type: ignore[no-any-return]  # noqa: S301 - bytes of this test


def batches(reader: LanceStreamReader, start: Offset) -> Iterator[tuple[Offset, list[Row]]]:
    """Each batch until nothing is new: its end offset and its rows."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        yield end, read(reader, start, end)
        start = end


def read(reader: LanceStreamReader, start: Offset, end: Offset) -> list[Row]:
    """The rows of one batch, as its tasks read them."""
    found = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: str(list(row.values())))


def all_rows(table: LanceTable, **options: str) -> list[list[int]]:
    """The ids of each batch of a new stream; the first one has the snapshot or nothing."""
    reader = started(table, **options)
    return [[row["id"] for row in found] for _, found in batches(reader, reader.initialOffset())]


def test_a_stream_has_the_rows_of_its_beginning_and_then_the_appended_ones(table: LanceTable) -> None:
    """Versions since the last trigger are one batch; rows deleted before the beginning are in none."""
    table.delete("id = 2")
    reader = started(table)
    (end, found), *rest = batches(reader, reader.initialOffset())
    assert [1, 3] == [row["id"] for row in found]
    assert [] == rest
    table.append(rows(4))
    table.append(rows(5))
    # This is like a restart, where the checkpoint has the offset.
    [(_, found)] = batches(started(table), end)
    assert [{"id": 4, "name": "n4"}, {"id": 5, "name": "n5"}] == found


def test_the_number_of_versions_in_a_batch_is_limited(table: LanceTable) -> None:
    """`startingVersion` is the first version whose changes are read; 1 is the whole history."""
    table.append(rows(4))
    table.append(rows(5))
    assert [[], [1, 2, 3], [4], [5]] == all_rows(table, startingVersion="1", maxVersionsPerTrigger="1")
    assert [[], [4, 5]] == all_rows(table, startingVersion="main@3")
    assert [[]] == all_rows(table, startingVersion="latest")


def test_available_now_ends_at_the_head_of_its_start(table: LanceTable) -> None:
    """Later commits are left to the next query."""
    reader = started(table, startingVersion="2")
    reader.prepareForTriggerAvailableNow()
    table.append(rows(4))
    assert [[], [1, 2, 3]] == [[row["id"] for row in found] for _, found in batches(reader, reader.initialOffset())]


def test_a_compaction_gives_no_row(table: LanceTable) -> None:
    """New settings give no row either, and a merge gives the rows that it adds to the branch."""
    reader = started(table)
    ((end, _),) = batches(reader, reader.initialOffset())
    table.append(rows(4))
    table.maintenance.compact()
    table.config.set({"some": "setting"})
    table.branches.create("run/1")
    table.append(rows(5), branch="run/1")
    table.append(rows(6))
    table.merge("run/1", into="main")
    assert [4, 5, 6] == [row["id"] for _, found in batches(reader, end) for row in found]


def test_deleted_and_updated_rows_need_an_option(table: LanceTable) -> None:
    """The options skip or convert such changes, and the error names the options."""
    table.update({"name": "'new'"}, where="id = 1")
    table.append(rows(4))
    table.delete("id = 2")
    start = {"startingVersion": "3"}
    with pytest.raises(InvalidInputError, match="updatesAsInserts=true"):
        all_rows(table, **start)
    with pytest.raises(InvalidInputError, match="ignoreDeletes=true"):
        all_rows(table, **start, updatesAsInserts="true")
    assert [[], [1, 4]] == all_rows(table, **start, updatesAsInserts="true", ignoreDeletes="true")
    assert [[], [4]] == all_rows(table, **start, skipChangeCommits="true")


def test_changes_have_old_and_new_values(table: LanceTable) -> None:
    """Each change has its version, also for rows that are not adjacent."""
    table.update({"name": "'new'"}, where="id <> 2")
    table.delete("id = 3")
    reader = started(table, changes="true", startingVersion="3")
    found = [tuple(row.values()) for _, part in batches(reader, reader.initialOffset()) for row in part]
    assert [
        ("delete", 4, 3, "new"),
        ("update_postimage", 3, 1, "new"),
        ("update_postimage", 3, 3, "new"),
        ("update_preimage", 3, 1, "n1"),
        ("update_preimage", 3, 3, "n3"),
    ] == found


def test_a_stream_of_a_stored_change_feed_has_its_values(tmp_table_uri: str) -> None:
    """A table may have the columns of a feed; a feed of it, which would have each of them twice, is refused."""
    feed = pa.table({"_change_type": ["delete", "insert"], "_commit_version": [7, 8], "id": [1, 2]})
    table = LanceTable.create(tmp_table_uri, feed.schema)
    table.append(feed)
    stream = started(table)
    assert [(stream.latestOffset(stream.initialOffset(), ReadAllAvailable()), feed.to_pylist())] == [
        *batches(stream, stream.initialOffset())
    ]
    with pytest.raises(InvalidInputError):
        LanceDataSource({"path": table.uri, "changes": "true"}).schema()


@pytest.mark.parametrize(
    "columns,said",
    [
        ({"id": StringType()}, "is not the table's, where it is id bigint"),
        ({"nope": LongType()}, "no column 'nope'"),
        ({"_change_type": LongType(), "id": LongType()}, "where it is _change_type string"),
    ],
)
def test_a_schema_given_for_a_stream_is_checked(table: LanceTable, columns: dict[str, DataType], said: str) -> None:
    """The error comes before any row is read, as for other reads."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    options = {"path": table.uri, "changes": "true"} if "_change_type" in columns else {"path": table.uri}
    with pytest.raises(LanceDagsterError, match=said):
        LanceDataSource(options).streamReader(schema).initialOffset()
    given = StructType([StructField("name", StringType())])
    stream = LanceDataSource({"path": table.uri}).streamReader(given)
    ((_, found),) = batches(stream, stream.initialOffset())
    assert [{"name": "n1"}, {"name": "n2"}, {"name": "n3"}] == found


def test_a_first_batch_that_is_repeated_has_the_same_rows(table: LanceTable) -> None:
    """Spark does not record the start, and the head has moved when the batch is repeated."""
    reader = started(table)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    table.append(rows(4))
    restarted = started(table)
    assert [1, 2, 3] == [row["id"] for row in read(restarted, restarted.initialOffset(), end)]


def test_another_table_at_the_place_is_not_gone_on_with(table: LanceTable, tmp_table_uri: str) -> None:
    """The new table may have as many versions or fewer; the same holds for a branch."""
    table.branches.create("dev")
    for branch in ("main", "dev"):
        reader = started(table, ref=branch)
        ((end, _),) = batches(reader, reader.initialOffset())
        if branch == "dev":
            table.branches.delete("dev")
            table.branches.create("dev")
        else:
            shutil.rmtree(tmp_table_uri)
            LanceTable.create(tmp_table_uri, rows().schema)
            table = LanceTable.open(tmp_table_uri)
            with pytest.raises(InvalidInputError, match="made again"):
                list(batches(started(table), end))
            table.append(rows(1))
            table.branches.create("dev")
        with pytest.raises(InvalidInputError, match="made again"):
            list(batches(started(table, ref=branch), end))


def test_a_collected_version_is_an_error_with_what_to_do(table: LanceTable) -> None:
    """The stream may need the last version that it read, or the one before `startingVersion`."""
    reader = started(table)
    ((end, _),) = batches(reader, reader.initialOffset())
    for number in range(4, 7):
        table.append(rows(number))
    table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
    said = "main@{} of .*, which was collected; start the stream with a new checkpointLocation, with startingVersion=6"
    with pytest.raises(VersionNotFoundError, match=f"the stream goes on from {said.format(2)}"):
        list(batches(started(table), end))
    with pytest.raises(VersionNotFoundError, match=f"startingVersion is {said.format(4)}"):
        all_rows(table, startingVersion="4")
    assert [[]] == all_rows(table, startingVersion="6")


def test_columns_that_change_end_the_query_and_a_restart_goes_on(table: LanceTable) -> None:
    """The restart has all present columns; renamed ones are found in old versions, and new ones are null there."""
    reader = started(table)
    ((end, _),) = batches(reader, reader.initialOffset())
    table.append(rows(4))
    table.columns.rename("name", "label")
    table.columns.add({"size": "id * 10"})
    with pytest.raises(SchemaMismatchError):
        list(batches(reader, end))
    [(_, found)] = batches(started(table), end)
    assert [{"id": 4, "label": "n4", "size": None}] == found


def unread(table: LanceTable) -> Offset:
    """The offset at which a query was stopped, before a row 4 was appended."""
    ((end, _),) = batches(reader := started(table), reader.initialOffset())
    table.append(rows(4))
    return end


@pytest.mark.parametrize("old", ["dropped", "renamed"])
def test_a_new_column_of_the_name_of_an_old_one_has_none_of_its_values(table: LanceTable, old: str) -> None:
    """Rows from before are null in the new column, and the running query ends at it."""
    running = started(table)
    end = unread(table)
    if old == "renamed":
        table.columns.rename("name", "label")
    else:
        table.columns.drop(["name"])
    table.columns.add({"name": "'new'"})
    with pytest.raises(SchemaMismatchError):
        list(batches(running, end))
    ((_, found),) = batches(started(table), end)
    assert [{"id": 4, "name": None} | ({"label": "n4"} if old == "renamed" else {})] == found


@pytest.mark.parametrize(
    "column,arrow,value",
    [
        ("name", pa.large_string(), "n4"),
        ("id", pa.int32(), 4),
        ("id", pa.float64(), 4.0),
        ("id", pa.string(), "4"),
    ],
)
def test_a_restart_after_a_cast_reads_rows_from_before_it(
    table: LanceTable, column: str, arrow: pa.DataType, value: object
) -> None:
    """They have the values that the cast gives them, in the type that Spark has for the column by now."""
    end = unread(table)
    table.columns.cast(column, arrow)
    table.append(
        rows(5).cast(pa.schema([field.with_type(arrow) if field.name == column else field for field in rows().schema]))
    )
    (*_, (_, found)) = batches(started(table), end)
    assert [value] == [row[column] for row in found if str(row["id"]) in ("4", "4.0")]
    assert 2 == len(found)


def test_a_restart_after_changes_inside_of_a_column_reads_rows_from_before_them(tmp_table_uri: str) -> None:
    """A field keeps its values under another name and in another type; one that is new, or has an old name, is null."""
    parts = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("s", parts), ("l", pa.list_(parts))])
    part = {"a": 1, "b": "x", "c": "y"}
    table = LanceTable.create(tmp_table_uri, schema)
    table.append(pa.table({"id": [1], "s": [part], "l": [[part]]}, schema=schema))
    reader = started(table)
    ((end, _),) = batches(reader, reader.initialOffset())
    table.append(pa.table({"id": [2, 3], "s": [part, None], "l": [[part, part], None]}, schema=schema))
    for column in ("s", "l.item"):
        table.columns.rename(f"{column}.b", "d")
        table.columns.rename(f"{column}.c", "b")
    wide = pa.struct([("a", pa.int64()), ("d", pa.string()), ("b", pa.string())])
    table.columns.cast("s", wide)
    table.columns.drop(["l.item.b"])
    ((_, found),) = batches(started(table), end)
    assert [
        {"id": 2, "s": {"a": 1, "d": "x", "b": "y"}, "l": [{"a": 1, "d": "x"}] * 2},
        {"id": 3, "s": None, "l": None},
    ] == found


def test_a_value_that_the_type_of_a_column_does_not_hold_is_named(table: LanceTable) -> None:
    """The row was deleted before the cast, and is in the change feed."""
    reader = started(table, changes="true")
    ((end, _),) = batches(reader, reader.initialOffset())
    table.append(rows(2**40))
    table.delete(f"id = {2**40}")
    table.columns.cast("id", pa.int32())
    said = "column 'id' is int64 in main@3 and int32 in the version whose columns are read, .*: 1099511627776"
    with pytest.raises(SchemaMismatchError, match=said):
        list(batches(started(table, changes="true"), end))


@pytest.mark.parametrize(
    "options,said",
    [
        ({"maxVersionsPerTrigger": "0"}, "a number of versions from 1 on, not '0'"),
        ({"changes": "yes"}, "the option changes is true or false, not 'yes'"),
        ({"changes": "true", "ignoreDeletes": "true"}, "leave ignoreDeletes and the like out"),
        ({"ref": "production"}, "a stream follows a branch, and 'production' is not a branch of"),
        ({"startingVersion": "dev"}, "which is not on branch 'main' of the stream"),
    ],
)
def test_an_option_that_makes_no_sense_says_so(table: LanceTable, options: dict[str, str], said: str) -> None:
    """The error is raised before a row is read."""
    table.tags.create("production", "main")
    table.branches.create("dev")
    with pytest.raises(InvalidInputError, match=said):
        started(table, **options).initialOffset()
