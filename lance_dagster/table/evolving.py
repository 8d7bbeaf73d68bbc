"""Columns and what a table says about itself: the methods of a table that change its schema."""

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from lance_dagster.edit import column_edits as changing
from lance_dagster.edit.column_edits import NewColumns
from lance_dagster.edit.write import Note
from lance_dagster.errors import InvalidInputError
from lance_dagster.format import evolution
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import MERGE_RECORD_PREFIXES, MapUpdate, UpdateConfig
from lance_dagster.format.validation import check_string_mapping, string_list
from lance_dagster.history.versions import Version
from lance_dagster.table.facade import Facade


class Evolving(Facade):
    """Each method makes one version, or none when it changes nothing; what does not change is not written again.

    A path names a column, or `column.field` for a field inside a struct. When others commit meanwhile, the change is
    made again from what they left.
    """

    def add_columns(
        self,
        columns: NewColumns,
        *,
        reads: Sequence[str] | None = None,
        on: Sequence[str] | None = None,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
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
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            InvalidInputError: A name is taken; an expression cannot be understood or fails; a key is there twice.
            SchemaMismatchError: A function returned other columns for some rows than for others.
            CommitConflictError: Others changed the table again and again.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        read = None if reads is None else string_list("reads", reads, "id")
        keys = None if on is None else string_list("on", on, "id")
        return self._described(changing.add_columns(self._parts, columns, note, reads=read, on=keys))

    def drop_columns(
        self,
        paths: Sequence[str],
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Drop columns, or fields inside structs, with the indices on them; older versions keep them.

        Raises:
            InvalidInputError: A path names nothing, or nothing would be left of the table, a struct, or the files of
                some rows.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        given = string_list("paths", paths, "note")
        return self._described(changing.project(self._parts, note, partial(evolution.drop_fields, paths=given)))

    def rename_column(
        self,
        path: str,
        name: str,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Give a column, or a field inside a struct, another name; indices stay.

        Raises:
            InvalidInputError: The path names nothing, or the name is taken.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        return self._described(
            changing.project(self._parts, note, lambda fields: evolution.rename_field(fields, path, name))
        )

    def reorder_columns(
        self,
        names: Sequence[str],
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Put the columns into another order, in which reads return them.

        Raises:
            InvalidInputError: The names are not those of all columns, each once.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        given = string_list("names", names, "id")
        return self._described(changing.project(self._parts, note, partial(evolution.reorder_columns, names=given)))

    def cast_column(
        self,
        name: str,
        type: pa.DataType,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Give a column another type; its values are written anew, those of other columns are not.

        Nothing is rounded, cut off or made null: when a value does not fit, nothing is committed.

        Raises:
            InvalidInputError: There is no such column, it holds blobs, or an index is on it.
            SchemaMismatchError: A value cannot become the type.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        return self._described(changing.cast_column(self._parts, name, type, note))

    def set_nullable(
        self,
        path: str,
        *,
        nullable: bool,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Allow nulls in a column, or refuse them from now on.

        Raises:
            InvalidInputError: The path names nothing, or there are nulls already; says how many.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        return self._described(changing.set_nullable(self._parts, path, note, nullable=nullable))

    def set_column_metadata(
        self,
        path: str,
        metadata: Mapping[str, str | None],
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
    ) -> Version:
        """Say something about a column: a value of None takes a key out.

        Lance reads some keys itself, such as `lance-schema:unenforced-primary-key`.

        Args:
            path: The column, or a field inside a struct.
            metadata: Keys and values.
            replace: Whether keys that are not given are taken out.
            branch: The branch to commit to.
            message: What to say in the log.

        Raises:
            InvalidInputError: The path names nothing.
        """
        note = Note(branch=branch, message=message)
        update = _update("metadata", metadata, replace=replace)
        return self._described(changing.describe_column(self._parts, path, update, note))

    def set_schema_metadata(
        self,
        metadata: Mapping[str, str | None],
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
    ) -> Version:
        """Say something about the schema, as Arrow's schema metadata; the arguments are those for a column."""
        update = _update("metadata", metadata, replace=replace)
        return self._stated(UpdateConfig(schema_metadata=update), branch, message)

    def set_table_metadata(
        self,
        metadata: Mapping[str, str | None],
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
    ) -> Version:
        """Say something about the table; the arguments are those for a column.

        What merges have recorded there stays, whatever is replaced.

        Raises:
            InvalidInputError: A key is one that merges record something under.
        """
        update = _update("metadata", metadata, replace=replace)
        taken = sorted(key for key in metadata if key.startswith(MERGE_RECORD_PREFIXES))
        if taken:
            raise InvalidInputError(f"what merges have recorded is not yours to change: {', '.join(taken)}")
        return self._stated(UpdateConfig(table_metadata=update), branch, message)

    def config(self, ref: str = MAIN) -> dict[str, str]:
        """Return the settings of a version that Lance programs go by, and rules kept with the table."""
        return dict(self._parts.at(ref).manifest.config)

    def set_config(
        self,
        settings: Mapping[str, str | None],
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
    ) -> Version:
        """Change settings that Lance programs go by, such as `lance.auto_cleanup.interval`; as for a column.

        `config` returns them.
        """
        update = _update("settings", settings, replace=replace)
        return self._stated(UpdateConfig(config=update), branch, message)

    def _stated(self, operation: UpdateConfig, branch: str, message: str | None) -> Version:
        return self._described(changing.describe(self._parts, operation, Note(branch=branch, message=message)))


def _update(what: str, given: Mapping[str, str | None], *, replace: bool) -> MapUpdate:
    check_string_mapping(what, given, removing=True)
    return MapUpdate(entries=dict(given), replace=replace)
