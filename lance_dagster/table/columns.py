"""`table.columns`: add, drop, rename, reorder and cast columns, and set their nullability and metadata."""

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from lance_dagster.edit import column_edits
from lance_dagster.edit.column_edits import NewColumns, map_update
from lance_dagster.edit.write import CommitInfo
from lance_dagster.format import evolution
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import Properties, TableContext
from lance_dagster.history.versions import State, Version


class Columns:
    """The columns of a table, as `table.columns`.

    Each method makes one version, or none when it changes nothing; what does not change is not written again.

    A path names a column, or `column.field` for a field inside a struct. When others commit meanwhile, the change is
    made again from what they left.
    """

    def __init__(self, context: TableContext) -> None:
        """Wrap the context of a table."""
        self._context = context

    def add(
        self,
        columns: NewColumns,
        *,
        reads: Sequence[str] | None = None,
        on: Sequence[str] | None = None,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Add columns behind those there are; values are written to new files beside the old ones.

        Args:
            columns: What the columns hold. Arrow fields, or a schema: nulls, for which nothing is written. A mapping
                from name to Lance SQL expression, such as `{"speed": "distance / air_time", "source": "'FAA'"}`. A
                function that takes a `pyarrow.RecordBatch` of the columns `reads` and returns one with the new columns
                and as many rows; it is called once more for one row, to learn the columns. Or a `pyarrow.Table` with
                the columns `on` and those to be added: rows get the values of their key, or null.
            reads: The columns a function is given.
            on: The key columns of a table.
            branch: The branch to commit to.
            message: What the log says.
            properties: Kept with the transaction.

        Raises:
            InvalidInputError: A name is taken; an expression cannot be understood or fails; a key is there twice.
            SchemaMismatchError: A function returned other columns for some rows than for others.
            CommitConflictError: Others changed the table again and again.
        """
        info = CommitInfo.of(branch, message, properties)
        read = None if reads is None else string_list("reads", reads, "id")
        keys = None if on is None else string_list("on", on, "id")
        return self._described(column_edits.add_columns(self._context, columns, info, reads=read, on=keys))

    def drop(
        self,
        columns: Sequence[str],
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Drop columns, or fields inside structs, with the indices on them; older versions keep them.

        Raises:
            InvalidInputError: A path names nothing, or nothing would be left of the table, a struct, or the files of
                some rows.
        """
        info = CommitInfo.of(branch, message, properties)
        given = string_list("columns", columns, "note")
        return self._described(column_edits.project(self._context, info, partial(evolution.drop_fields, paths=given)))

    def rename(
        self,
        column: str,
        name: str,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Give a column, or a field inside a struct, another name; indices stay.

        Raises:
            InvalidInputError: The path names nothing, or the name is taken.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._described(
            column_edits.project(self._context, info, lambda fields: evolution.rename_field(fields, column, name))
        )

    def reorder(
        self,
        columns: Sequence[str],
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Put the columns into another order, in which reads return them.

        Raises:
            InvalidInputError: The names are not those of all columns, each once.
        """
        info = CommitInfo.of(branch, message, properties)
        given = string_list("columns", columns, "id")
        return self._described(
            column_edits.project(self._context, info, partial(evolution.reorder_columns, names=given))
        )

    def cast(
        self,
        column: str,
        type: pa.DataType,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Give a column another type; its values are written anew, those of other columns are not.

        Nothing is rounded, cut off or made null: when a value does not fit, nothing is committed.

        Raises:
            InvalidInputError: There is no such column, it holds blobs, or an index is on it.
            SchemaMismatchError: A value cannot become the type.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._described(column_edits.cast_column(self._context, column, type, info))

    def set_nullable(
        self,
        column: str,
        *,
        nullable: bool,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Allow nulls in a column, or refuse them from now on.

        Raises:
            InvalidInputError: The path names nothing, or there are nulls already; says how many.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._described(column_edits.set_nullable(self._context, column, info, nullable=nullable))

    def set_metadata(
        self,
        column: str,
        metadata: Mapping[str, str | None],
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Say something about a column: a value of None takes a key out.

        Lance reads some keys itself, such as `lance-schema:unenforced-primary-key`.

        Args:
            column: The column, or a field inside a struct.
            metadata: Keys and values.
            replace: Whether keys that are not given are taken out.
            branch: The branch to commit to.
            message: What the log says.

        Raises:
            InvalidInputError: The path names nothing.
        """
        info = CommitInfo.of(branch, message, properties)
        update = map_update("metadata", metadata, replace=replace)
        return self._described(column_edits.describe_column(self._context, column, update, info))

    def _described(self, state: State) -> Version:
        return self._context.versions.describe(state)
