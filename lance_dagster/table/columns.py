"""`table.columns`: add, drop, rename, reorder and cast columns, and set their nullability and metadata."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lance_dagster.edit import column_edits
from lance_dagster.edit.column_edits import NewColumns, map_update
from lance_dagster.edit.write import CommitInfo
from lance_dagster.format import evolution
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_string, string_list
from lance_dagster.history.context import Properties, TableContext
from lance_dagster.history.versions import State, Version


class Columns:
    """The columns of a table, as `table.columns`.

    Each method makes one version, or no version when nothing changes; `set_metadata` always makes a version. No file is
    rewritten.

    A path names a column, or `column.field` for a field inside a struct. When a concurrent commit conflicts, the edit
    is made again from the new head.
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
        """Add columns after the existing columns; their values are written to additional data files.

        Args:
            columns: The source of the columns. Arrow fields or a schema: nulls, for which no file is written. A mapping
                from name to Lance SQL expression, such as `{"speed": "distance / air_time", "source": "'FAA'"}`. A
                function from a `pyarrow.RecordBatch` of the columns `reads` to a batch of the new columns with as many
                rows; it is also called once for a sample row, to determine the columns. Or a `pyarrow.Table` with the
                columns `on` and the new columns: each row gets the values of its key, or nulls.
            reads: The columns passed to a function.
            on: The key columns of a table.
            branch: The branch to commit to.
            message: The commit message.
            properties: Stored with the transaction.

        Raises:
            InvalidInputError: A column exists already, is given twice or has values that are blobs; an expression is
                invalid or fails; a key occurs twice.
            SchemaMismatchError: A function returned different columns for different rows; or a key column is missing,
                or the table's type does not hold one of its values exactly.
            CommitConflictError: Concurrent commits conflicted with each attempt.
        """
        info = CommitInfo.of(branch, message, properties)
        # Validated before anything is read: a single string would be taken for a sequence of one-character names.
        inputs = None if reads is None else string_list("reads", reads, "id")
        keys = None if on is None else string_list("on", on, "id")
        return self._described(column_edits.add_columns(self._context, columns, info, reads=inputs, on=keys))

    def add_fields(
        self,
        struct: str,
        fields: Sequence["pa.Field[Any]"] | pa.Schema,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Add nullable fields at the end of a struct; they are null in the rows that the table has.

        Args:
            struct: The path of the struct: a column, a field inside of a column, or `lines.item` for the structs in a
                list.
            fields: The fields.
            branch: The branch to commit to.
            message: The commit message.
            properties: Stored with the transaction.

        Raises:
            InvalidInputError: The path does not lead to a struct, or a field exists already or is not nullable.
            CommitConflictError: Concurrent commits conflicted with each attempt.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._described(column_edits.add_fields(self._context, struct, pa.schema(fields), info))

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
            InvalidInputError: A path names no field, or the table, a struct or a fragment would keep no field.
        """
        info = CommitInfo.of(branch, message, properties)
        paths = string_list("columns", columns, "note")
        # A function instead of fields: after a concurrent commit it is applied to the fields of the new head.
        return self._described(column_edits.project(self._context, info, partial(evolution.drop_fields, paths=paths)))

    def rename(
        self,
        column: str,
        name: str,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Rename a column, or a field inside a struct; indices stay.

        Raises:
            InvalidInputError: The path names no field, or the name is taken, or Lance cannot read it as a column.
        """
        # Data files and indices refer to a field by id, so a rename changes the schema alone.
        info = CommitInfo.of(branch, message, properties)
        check_string("column", column)
        check_string("name", name)
        renamed = partial(evolution.rename_field, path=column, name=name)
        return self._described(column_edits.project(self._context, info, renamed))

    def reorder(
        self,
        columns: Sequence[str],
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Change the order in which reads return the columns.

        Raises:
            InvalidInputError: The argument does not name every column exactly once.
        """
        info = CommitInfo.of(branch, message, properties)
        # Only the order of the fields in the schema changes; data files keep their own order of columns.
        names = string_list("columns", columns, "id")
        reordered = partial(evolution.reorder_columns, names=names)
        return self._described(column_edits.project(self._context, info, reordered))

    def cast(
        self,
        column: str,
        type: pa.DataType,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Change the type of a column; only the values of this column are rewritten.

        Types inside of lists, maps and structs count too, but a struct keeps its fields. No value is rounded, truncated
        or made null: when the type does not hold a value exactly, nothing is committed. To round values, add a column
        of an expression with ROUND or CAST.

        Raises:
            InvalidInputError: The column does not exist or has an index, the type has other fields in a struct, or any
                column of the table holds blobs.
            SchemaMismatchError: The type does not hold a value exactly, which the error has, or cannot be cast to.
        """
        info = CommitInfo.of(branch, message, properties)
        # The column gets a new field id, so older versions and the data files they share stay valid.
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
        """Make a column nullable or non-nullable.

        Raises:
            InvalidInputError: There is no such field; it has nulls and would forbid them; it is a key and would allow
                nulls; it is the entry or key of a map; or it would forbid nulls inside of a list or map.
        """
        info = CommitInfo.of(branch, message, properties)
        # Nullable to non-nullable reads the column: the schema must not exclude nulls that the rows have.
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
        """Update the metadata of a column; a value of None removes the key.

        Lance interprets some keys, such as `lance-schema:unenforced-primary-key`.

        Args:
            column: The column, or a field inside a struct.
            metadata: Keys and values.
            replace: Whether to remove the keys that are not given; keys that say how values are stored stay.
            branch: The branch to commit to.
            message: The commit message.

        Raises:
            InvalidInputError: The path names no field; or a key says how values are stored, as `ARROW:extension:name`
                does, or has a value that Lance does not take; or the column is a struct inside of a struct.
        """
        info = CommitInfo.of(branch, message, properties)
        # Primary and clustering keys are declared in metadata, so the edit also updates the fields' derived attributes.
        update = map_update("metadata", metadata, replace=replace)
        return self._described(column_edits.describe_column(self._context, column, update, info))

    def _described(self, state: State) -> Version:
        return self._context.versions.describe(state)
