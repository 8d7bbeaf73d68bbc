"""The columns of an older version as a newer one has them, followed through the versions in between."""

from datetime import timedelta

import pyarrow as pa
import pytest

from lance_dagster import LanceTable, SchemaMismatchError
from lance_dagster.history.context import open_context
from lance_dagster.spark.older_columns import ColumnHistory, OlderColumn

COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "a": pa.string(), "b": pa.string()}


@pytest.fixture
def table(tmp_table_uri: str) -> LanceTable:
    """A table of one row, at version 2."""
    made = LanceTable.create(tmp_table_uri, pa.schema(COLUMNS))
    made.append(pa.table({"id": [1], "a": ["x"], "b": ["y"]}))
    return made


def followed(table: LanceTable, older: str, newer: str) -> dict[str, str | None]:
    """The names that the columns of a version have in another one, by their names in the first."""
    context = open_context(table.uri, None)
    history = ColumnHistory(context, context.at(older), context.at(newer))
    found = {column.name: history.column(table.schema(older), column) for column in table.schema(newer)}
    return {name: None if column is None else column.name for name, column in found.items()}


def test_columns_are_followed_by_their_fields(table: LanceTable) -> None:
    """Both forwards and backwards: through names that were exchanged, given again, and casts."""
    table.columns.rename("a", "c")
    table.columns.rename("b", "a")
    table.columns.rename("c", "b")
    assert {"id": "id", "a": "b", "b": "a"} == followed(table, "main@2", "main")
    table.columns.cast("id", pa.int32())
    table.columns.drop(["a"])
    table.columns.add({"a": "'new'"})
    assert {"id": "id", "a": None, "b": "a"} == followed(table, "main@2", "main")
    assert {"id": "id", "a": "b", "b": None} == followed(table, "main", "main@2")


def test_columns_of_a_branch_are_followed_to_its_fork(table: LanceTable) -> None:
    """The versions of a branch follow those of the line that it was forked from."""
    table.columns.drop(["a"])
    table.branches.create("run")
    table.columns.add({"a": "'new'"}, branch="run")
    assert {"id": "id", "a": None, "b": "b"} == followed(table, "main@2", "run")


def test_without_the_versions_in_between_files_and_names_tell(table: LanceTable) -> None:
    """A tag keeps the older version; those that dropped the column and added the other one were collected."""
    table.tags.create("kept", "main@2")
    table.columns.drop(["a"])
    table.columns.add({"a": "'new'"})
    table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
    assert {"id": "id", "a": "a", "b": "b"} == followed(table, "main@2", "main")


def test_values_that_cannot_be_cast_name_the_column() -> None:
    """The message has both types, and the version."""
    column = OlderColumn(
        version="main@2",
        name="n",
        column=pa.field("number", pa.int8()),
        stored=pa.int64(),
        named=pa.int64(),
        arranged=pa.int64(),
    )
    assert [7, None] == column.cast(pa.array([7, None])).to_pylist()
    with pytest.raises(SchemaMismatchError, match="int64 in main@2 and int8"):
        column.cast(pa.array([300]))
