"""Add, cast, rename, reorder and drop columns, and change field, table and schema metadata.

Readers find a column by its field id, so a schema change rewrites no existing data file. The values of a new column
go to one additional data file per fragment. A column of nulls needs no file, because a field id without a data file
reads as null.

Each edit is one commit. When a concurrent commit conflicts with it, the edit is made again from the new head; values
are computed only for fragments with data files or live rows that the previous attempt did not see. The values of a new
column can be constant nulls, SQL expressions, the result of a function, or the columns of another table matched by key.
"""

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import (
    Compute,
    Reads,
    backfill,
    can_shorten,
    cast_exactly,
    count,
    decoded,
    encoded,
    expression_schema,
    plain_type,
    quote_column,
    read_sample,
)
from lance_dagster.datafiles.writing import StagedFile, StagedFiles
from lance_dagster.edit.key_predicates import comparable_values
from lance_dagster.edit.write import CommitInfo, fragments_of, refuse_blobs, retried, submit, target
from lance_dagster.errors import InvalidInputError, SchemaMismatchError, counted
from lance_dagster.format import casts, evolution
from lance_dagster.format.arrow_types import has_blobs
from lance_dagster.format.evolution import Fields
from lance_dagster.format.file_versions import check_description, check_newly_storable, takes_nulls
from lance_dagster.format.logical_types import NULL
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.schema import arrow_from_fields, is_layout_key, with_field_metadata, without_views
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.format.transaction import MapUpdate, Merge, Operation, Project, UpdateConfig
from lance_dagster.format.validation import check_class, check_flag, check_string, check_string_mapping
from lance_dagster.history.context import TableContext
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.transactions.index_updates import indices_of

# Names of auxiliary columns in the key join, in which the keys have names of their own.
_PLACE = "__place"
_ROW = "__row"

NewColumns = Union["pa.Field[Any]", pa.Schema, Sequence["pa.Field[Any]"], Mapping[str, str], Compute, pa.Table]
"""Arrow fields (columns of nulls), SQL expressions by name, a function over batches, or a table to look up by key."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The schema of new columns and the function that computes their values. Without `compute` they are null."""

    columns: pa.Schema
    reads: Reads = ()
    compute: Compute | None = None


@dataclass(frozen=True, slots=True)
class _Filled:
    """A file with the values of new columns, and the fragment of the version for whose live rows it was written."""

    head: State
    fragment: Fragment
    file: StagedFile


@dataclass(slots=True)
class _Filler:
    """Computes the new columns of fragments, and keeps the staged files for later attempts of the same commit.

    `files` maps the id and the data file paths of a fragment to the file with its new values. It is valid for `names`.
    """

    context: TableContext
    source: _Source
    names: tuple[tuple[int, str], ...] = ()
    files: dict[tuple[int, tuple[str, ...]], _Filled] = field(default_factory=dict)

    def filled(self, head: State, new_fields: Fields) -> tuple[Fragment, ...]:
        """Return the fragments of a version, each extended by a data file for the fields in `new_fields`."""
        dataset = self.context.dataset(head)
        where = target(self.context, self.source.columns, head)
        # A concurrent rename may have given the name of a column that is read to another column.
        names = tuple((own.id, own.name) for own in head.manifest.fields)
        if names != self.names:
            self.names, self.files = names, {}
        fragments: list[Fragment] = []
        for fragment in head.manifest.fragments:
            # Data files are immutable, so the same paths hold the same rows: a retry computes only new fragments.
            # The id alone is not enough, since a concurrent update may replace a file; nor are the paths, since merges
            # may leave several fragments with one data file, each with other rows of it deleted.
            rows_key = fragment.id, tuple(file.path for file in fragment.files)
            if self.source.compute is not None and not self._has_values(head, fragment, self.files.get(rows_key)):
                file = backfill(dataset, fragment, where, self.source.reads, compute=self.source.compute)
                self.files[rows_key] = _Filled(head, fragment, file)
            fragments.append(self._with_file(head, fragment, new_fields, self.files[rows_key].file))
        return tuple(fragments)

    def _has_values(self, head: State, fragment: Fragment, filled: _Filled | None) -> bool:
        """Tell whether a file has values for all live rows: a concurrent revert may have revived some since."""
        if filled is None:
            return False
        versions, before = self.context.versions, filled.fragment
        return before.deletion == fragment.deletion or (
            deleted_offsets(versions, filled.head, before) <= deleted_offsets(versions, head, fragment)
        )

    def _with_file(self, head: State, fragment: Fragment, new_fields: Fields, file: StagedFile) -> Fragment:
        # Field ids and base ids belong to this head, so the description is made for each attempt.
        staged = StagedFiles(self.source.columns, (file,))
        (new,) = fragments_of(self.context, staged, new_fields, head)
        return replace(fragment, files=(*fragment.files, *new.files))


def add_columns(
    context: TableContext,
    columns: NewColumns,
    info: CommitInfo,
    *,
    reads: Sequence[str] | None,
    on: Sequence[str] | None,
) -> State:
    """Add columns in one commit.

    Args:
        context: The table.
        columns: The new columns, in one of the forms of `NewColumns`.
        info: The branch and the commit info.
        reads: The columns passed to a function; None unless `columns` is a function.
        on: The key columns of a table; None unless `columns` is a table.
    """
    columns = _checked(columns, reads=reads, on=on)
    # The source is determined once: a function is called for a sample row, which may be expensive.
    source = _source(context, columns, context.head(info.branch), reads=reads, on=on)
    _refuse_blob_values(source)
    filler = _Filler(context, source)

    def attempt() -> State:
        head = context.head(info.branch)
        fields = evolution.add_columns(head.manifest.fields, source.columns, evolution.next_field_id(head.manifest))
        check_newly_storable(head.manifest.fields, fields, head.manifest.file_version)
        new_fields = fields[len(head.manifest.fields) :]
        fragments = head.manifest.fragments if source.compute is None else filler.filled(head, new_fields)
        never_null = _never_null(new_fields, head.manifest.file_version)
        # An empty table is allowed: no row exists that would be null.
        if never_null and source.compute is None and len(fragments):
            name, reason = next(iter(never_null.items()))
            raise InvalidInputError(f"column {name!r} would be null in every row, and {reason}")
        # A concurrent append does not write the new columns, so its rows read as nulls there. With
        # `preserves_nullability` the conflict rules accept such an append; otherwise they make it retry.
        operation = _merged(head, fragments, fields, preserves_nullability=not never_null)
        return submit(context, head, operation, info.as_properties())

    return retried(attempt)


def add_fields(context: TableContext, inside: str, fields: pa.Schema, info: CommitInfo) -> State:
    """Add nullable fields to a struct in one commit; no file is written, and existing rows are null in them."""
    check_string("inside", inside)

    def attempt() -> State:
        head = context.head(info.branch)
        extended = evolution.add_fields(head.manifest.fields, inside, fields, evolution.next_field_id(head.manifest))
        check_newly_storable(head.manifest.fields, extended, head.manifest.file_version)
        operation = _merged(head, head.manifest.fragments, extended, preserves_nullability=True)
        return submit(context, head, operation, info.as_properties())

    return retried(attempt)


def _never_null(new_fields: Fields, file_version: str) -> dict[str, str]:
    """Return why new columns take no nulls, by their names; columns that take nulls are left out."""
    in_files = f"data files of version {file_version} hold no null structs; add it with its values"
    return {
        column.name: in_files if column.nullable else "it is not nullable"
        for column in new_fields
        if column.parent_id < 0 and not takes_nulls(column, file_version)
    }


def cast_column(context: TableContext, name: str, arrow: pa.DataType, info: CommitInfo) -> State:
    """Change the type of a column in one commit; only the values of this column are rewritten.

    Raises:
        InvalidInputError: The name is not a string, or the type is not one of Arrow.
    """
    check_string("column", name)
    check_class("type", arrow, pa.DataType, "pyarrow.int64()")
    filler: _Filler | None = None

    def attempt() -> State:
        nonlocal filler
        head = context.head(info.branch)
        manifest = head.manifest
        fields, cast_fields = casts.cast_column(manifest.fields, name, arrow, evolution.next_field_id(manifest))
        if not cast_fields:
            return head
        _refuse_indexed(manifest, name)
        refuse_blobs(head, "cast")
        schema = arrow_from_fields(cast_fields)
        if _needs_no_file(manifest, fields, cast_fields, name):
            operation = _merged(head, manifest.fragments, fields, preserves_nullability=True)
            return submit(context, head, operation, info.as_properties())
        # The filler outlives the attempt, so a retry does not convert the same files a second time.
        filler = filler or _Filler(context, _Source(schema, [name], lambda rows: _cast(rows, schema.field(0))))
        # The cast column has a new field id, so rows written concurrently under the old id would read as nulls.
        # `preserves_nullability=False` makes such writers conflict and retry.
        operation = _merged(head, filler.filled(head, cast_fields), fields, preserves_nullability=False)
        return submit(context, head, operation, info.as_properties())

    return retried(attempt)


def _needs_no_file(manifest: Manifest, fields: Fields, cast_fields: Fields, name: str) -> bool:
    """Return whether rows may stay without a file for a cast column: they are null in it, as they were before."""
    holds_values = evolution.find_field(manifest.fields, name).logical_type != NULL
    if holds_values or _never_null(cast_fields, manifest.file_version):
        return False
    live = {field.id for field in fields}
    # The files of a fragment record how many rows it has.
    return all(any(not live.isdisjoint(file.fields) for file in fragment.files) for fragment in manifest.fragments)


def project(context: TableContext, info: CommitInfo, change: Callable[[Fields], Fields]) -> State:
    """Commit a change of the schema alone, or return the head when the fields stay equal.

    Args:
        context: The table.
        info: The branch and the commit info.
        change: Returns the new fields for given fields; called again when a concurrent commit changed the schema.
    """

    def attempt() -> State:
        head = context.head(info.branch)
        fields = change(head.manifest.fields)
        if fields == head.manifest.fields:
            return head
        return submit(context, head, Project(fields=fields, preserves_nullability=True), info.as_properties())

    return retried(attempt)


def set_nullable(context: TableContext, path: str, info: CommitInfo, *, nullable: bool) -> State:
    """Make a column nullable or non-nullable, or return the head when it already is.

    Raises:
        InvalidInputError: The path names no field, or the column contains nulls and must become non-nullable; or
            `nullable` is not a boolean.
    """
    check_string("column", path)
    check_flag("nullable", nullable)

    def attempt() -> State:
        head = context.head(info.branch)
        fields = evolution.set_nullable(head.manifest.fields, path, nullable=nullable)
        if fields == head.manifest.fields:
            return head
        if not nullable:
            _refuse_nulls(context, head, path)
        # A concurrent writer may add nulls after the check above. Without `preserves_nullability` the two commits
        # conflict, and the check is repeated.
        return submit(context, head, Project(fields=fields, preserves_nullability=nullable), info.as_properties())

    return retried(attempt)


def map_update(what: str, entries: Mapping[str, str | None], *, replace: bool) -> MapUpdate:
    """Return the validated update of a string map; a value of None removes the key.

    Raises:
        InvalidInputError: `entries` is not a mapping of strings to strings or None, or `replace` is not a boolean.
    """
    check_string_mapping(what, entries, removing=True)
    check_flag("replace", replace)
    return MapUpdate(entries=dict(entries), replace=replace)


def describe_column(context: TableContext, path: str, update: MapUpdate, info: CommitInfo) -> State:
    """Change the metadata of a field.

    Raises:
        InvalidInputError: The path names no field, or with the metadata its values could not be stored or read.
    """
    check_string("column", path)

    def attempt() -> State:
        head = context.head(info.branch)
        fields = head.manifest.fields
        # The transaction names the field by id, so the path is resolved anew after a concurrent rename.
        field = evolution.find_field(fields, path)
        field_update = update
        if update.replace:
            # Entries that say how the values are stored stay with the values: a caller who replaces the metadata does
            # not repeat them.
            layout_entries = {key: value.decode() for key, value in field.metadata.items() if is_layout_key(key)}
            field_update = MapUpdate(entries={**layout_entries, **update.entries}, replace=True)
        described = {field.id: field_update}
        check_description(fields, with_field_metadata(fields, described), field.id, head.manifest.file_version)
        return submit(context, head, UpdateConfig(field_metadata=described), info.as_properties())

    return retried(attempt)


def describe(context: TableContext, operation: UpdateConfig, info: CommitInfo) -> State:
    """Commit an update of the table config, the table metadata or the schema metadata."""
    return retried(lambda: submit(context, context.head(info.branch), operation, info.as_properties()))


def _merged(head: State, fragments: Sequence[Fragment], fields: Fields, *, preserves_nullability: bool) -> Operation:
    # A Merge operation replaces the schema metadata as a whole, so the present metadata is repeated.
    return Merge(
        fragments=fragments,
        fields=fields,
        schema_metadata=head.manifest.schema_metadata,
        preserves_nullability=preserves_nullability,
    )


def _checked(columns: NewColumns, *, reads: Sequence[str] | None, on: Sequence[str] | None) -> NewColumns:
    """Return the new columns, fields as a list.

    Raises:
        InvalidInputError: They have none of the forms of `NewColumns`, or not the form that `reads` or `on` needs.
    """
    if isinstance(columns, pa.Table) != (on is not None):
        raise InvalidInputError("`on` names the key columns of a table of values: give both, or neither")
    if callable(columns) != (reads is not None):
        raise InvalidInputError("`reads` names the columns that a function gets: give both, or neither")
    if isinstance(columns, Mapping):
        check_string_mapping("columns", columns)
    if isinstance(columns, pa.Table | pa.Field | Mapping) or callable(columns):
        return columns
    candidates: object = columns
    # A list, because the fields may come from a generator, and are read twice.
    fields: list[Any] = list(candidates) if isinstance(candidates, Iterable) else [candidates]
    if not all(isinstance(column, pa.Field) for column in fields):
        raise InvalidInputError(
            "columns to add are pyarrow fields (of nulls), SQL expressions by name, a function with `reads`, "
            f"or a table with `on`, not {reprlib.repr(columns)}"
        )
    return fields


def _source(
    context: TableContext, columns: NewColumns, head: State, *, reads: Sequence[str] | None, on: Sequence[str] | None
) -> _Source:
    if isinstance(columns, pa.Table):
        keys = tuple(on or ())
        values, compute = _look_up(columns, keys, head.schema)
        return _Source(values, keys, compute)
    if callable(columns):
        names = tuple(reads or ())
        # An unknown column fails here, with an error that names it, before any row is read.
        for name in names:
            evolution.find_field(head.manifest.fields, name)
        return _Source(_returned(columns, read_sample(context.dataset(head), names)), names, columns)
    if isinstance(columns, Mapping):
        return _Source(expression_schema(context.dataset(head), columns), dict(columns), lambda rows: rows)
    return _Source(pa.schema([columns] if isinstance(columns, pa.Field) else columns))


def _look_up(table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> tuple[pa.Schema, Compute]:
    """Return the schema of a table's value columns, and a function that looks their values up by key.

    A row gets nulls when its key does not occur in the table or contains a null.

    Raises:
        InvalidInputError: A key occurs twice in the table, the table has only key columns, values of a key column
            cannot be compared, or a column is given twice.
        SchemaMismatchError: A key column is missing, or the type in the schema does not hold one of its values.
    """
    _check_keys(table, keys, schema)
    names = [name for name in table.column_names if name not in keys]
    if not names:
        raise InvalidInputError("the table to join has no column beside the keys, so there is nothing to add")
    # Names that no auxiliary column has, whatever the keys are called.
    numbered = [f"key {place}" for place in range(len(keys))]
    # The keys are cast before the check for duplicates: two keys that differ may become equal by the cast.
    lookup_keys = pa.Table.from_arrays(
        [_cast_key(table, name, schema.field(name).type) for name in keys], names=numbered
    )
    counts = lookup_keys.group_by(numbered).aggregate([([], "count_all")])
    is_doubled: Any = pc.call_function("greater", [counts.column("count_all"), 1])
    # A null equals no other key, so several rows with a null key are not duplicates.
    rows = shown_rows(counts.filter(is_doubled).select(numbered))
    doubled = next((row for row in rows if None not in row.values()), None)
    if doubled is not None:
        key = dict(zip(keys, (doubled[number] for number in numbered), strict=True))
        raise InvalidInputError(f"the table to join has the key {key} more than once; each key may occur once")
    places = lookup_keys.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    # The join carries row numbers instead of the values: Arrow's hash join refuses nested columns, `take` does not.
    # Decoded and combined once: Arrow would combine the chunks of a column for each batch of rows that takes values.
    values = table.select(names)
    # Arrow takes no rows of views.
    values = values.cast(without_views(values.schema))
    plain = pa.table([decoded(column) for column in values.columns], names=names).combine_chunks()
    # Every column becomes nullable, because a row without a match has no value.
    columns = pa.schema([column.with_nullable(True) for column in values.schema])  # noqa: FBT003  # pyarrow's

    def compute(rows: pa.RecordBatch) -> pa.RecordBatch:
        row_table = pa.Table.from_batches([rows])
        key_values = [comparable_values(row_table.column(name), name) for name in keys]
        row_keys = pa.Table.from_arrays([*key_values, pa.array(np.arange(rows.num_rows))], names=[*numbered, _PLACE])
        # A hash join returns rows in any order, and the new data file must follow the order of the fragment.
        matched = row_keys.join(places, numbered, join_type="left outer").sort_by(_PLACE)
        looked_up = plain.take(matched.column(_ROW).combine_chunks())
        pairs = zip(looked_up.columns, columns, strict=True)
        return pa.RecordBatch.from_arrays(
            [encoded(values_of_column.combine_chunks(), of.type) for values_of_column, of in pairs], schema=columns
        )

    return columns, compute


def _check_keys(table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> None:
    if not keys:
        raise InvalidInputError("`on` has to name at least one column")
    for named, where in ((list(keys), "`on` names"), (table.column_names, "the table to join has")):
        twice = next((name for name, times in Counter(named).items() if times > 1), None)
        if twice is not None:
            raise InvalidInputError(f"{where} the column {twice!r} more than once; give each column once")
    for name in keys:
        for columns, what in ((table.column_names, "the table to join"), (schema.names, "this table")):
            if name not in columns:
                raise SchemaMismatchError(f"key column {name!r} is not in {what}, which has {', '.join(columns)}")


def _cast_key(table: pa.Table, name: str, arrow: pa.DataType) -> "pa.Array[Any]":
    # Keys that the table cannot hold are refused: a rounded one would find the row of another key.
    chunks, plain = table.column(name).chunks, plain_type(arrow)
    try:
        cast = [cast_exactly(chunk, plain) for chunk in chunks]
    except SchemaMismatchError as error:
        key_type = table.schema.field(name).type
        raise SchemaMismatchError(f"key column {name!r} is {key_type}, this table holds {arrow}: {error}") from error
    return comparable_values(pa.chunked_array(cast, plain), name)


def _refuse_blob_values(source: _Source) -> None:
    # pylance writes blobs only with whole rows of the table.
    for column in source.columns:
        if source.compute is not None and has_blobs(pa.schema([column])):
            raise InvalidInputError(
                f"column {column.name!r} holds blobs, which cannot be added together with it; add the column as a "
                "field, without values, and give the blobs to its rows by upsert"
            )


def _returned(function: Compute, rows: pa.RecordBatch) -> pa.Schema:
    sample = function(rows)
    if not isinstance(sample, pa.RecordBatch):
        raise InvalidInputError(f"the function has to return a pyarrow.RecordBatch, not {type(sample).__qualname__}")
    return without_views(sample.schema)


def _cast(rows: pa.RecordBatch, column: "pa.Field[pa.DataType]") -> pa.RecordBatch:
    values = rows.column(0)
    try:
        converted = cast_exactly(values, column.type)
    except SchemaMismatchError as error:
        hint = "; to round or shorten values, add a column by columns.add with an expression that has ROUND or CAST"
        raise SchemaMismatchError(
            f"column {column.name!r} cannot become {column.type}: {error}"
            f"{hint if can_shorten(values.type, column.type) else ''}"
        ) from error
    return pa.RecordBatch.from_arrays([converted], schema=pa.schema([column]))


def _refuse_indexed(manifest: Manifest, name: str) -> None:
    ids = {own.id for own in evolution.subtree(manifest.fields, evolution.find_field(manifest.fields, name))}
    for index in indices_of(manifest):
        if ids.intersection((*index.fields, *index.covering_fields)):
            raise InvalidInputError(
                f"column {name!r} has the index {index.name!r}, which would hold values of the old type; drop it by "
                "drop_index first and create it again afterwards"
            )


def _refuse_nulls(context: TableContext, head: State, path: str) -> None:
    nulls = count(context.dataset(head), f"{'.'.join(quote_column(name) for name in path.split('.'))} IS NULL")
    if nulls:
        rows = counted(nulls, "row")
        raise InvalidInputError(f"column {path!r} of {head} is null in {rows}; fill them, or delete the rows, first")
