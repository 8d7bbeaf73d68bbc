"""Values for new columns looked up in another table by key.

Change the columns of a table. What does not change is not written again: columns are found by field id.

A new column is one new file for each fragment, beside those that are there; a column of nulls is none at all. Rows
that others add or take out meanwhile do no harm: the change is made again from what they left, and only fragments
whose files are new to it are computed again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import (
    Compute,
    Reads,
    StagedFile,
    StagedFiles,
    backfill,
    count,
    expression_schema,
    quote_column,
    read_sample,
    staged_fragments,
)
from lance_dagster.edit.write import CommitInfo, refuse_blobs, retried, submit, target
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format import evolution
from lance_dagster.format.evolution import Fields
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.schema import arrow_from_fields
from lance_dagster.format.transaction import MapUpdate, Merge, Operation, Project, UpdateConfig
from lance_dagster.format.validation import check_string_mapping
from lance_dagster.history.context import TableContext, schema_of
from lance_dagster.history.versions import State
from lance_dagster.placement.base_stores import placed
from lance_dagster.transactions.index_updates import indices_of

_PLACE = "__place"
_ROW = "__row"


def look_up(table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> tuple[pa.Schema, Compute]:
    """Return the columns a table gives beside its keys, and what finds their values for rows of keys.

    Rows whose key the table does not have get nulls; a null is no key.

    Raises:
        InvalidInputError: A key is in the table twice, or there is no column beside the keys.
        SchemaMismatchError: A key column is missing, or of a type that cannot become the other's.
    """
    _check_keys(table, keys, schema)
    names = [name for name in table.column_names if name not in keys]
    if not names:
        raise InvalidInputError("the table to join has no column beside the keys, so there is nothing to add")
    found = pa.Table.from_arrays([_cast_key(table, name, schema.field(name).type) for name in keys], names=list(keys))
    counts = found.group_by(list(keys)).aggregate([([], "count_all")]).sort_by([("count_all", "descending")])
    doubled = next((row for row in _rows_counted_twice(counts) if None not in row.values()), None)
    if doubled is not None:
        raise InvalidInputError(f"the table to join has the key {doubled} more than once; each may be there once")
    places = found.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    values = table.select(names).combine_chunks()
    columns = pa.schema([column.with_nullable(True) for column in values.schema])  # noqa: FBT003  # pyarrow's

    def compute(rows: pa.RecordBatch) -> pa.RecordBatch:
        asked = pa.Table.from_batches([rows]).append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        matched = asked.join(places, list(keys), join_type="left outer").sort_by(_PLACE)
        taken = values.take(matched.column(_ROW).combine_chunks())
        return pa.RecordBatch.from_arrays([column.combine_chunks() for column in taken.columns], schema=columns)

    return columns, compute


def _rows_counted_twice(counts: pa.Table) -> Iterator[dict[str, object]]:
    for row in counts.to_pylist():
        if row.pop("count_all") < 2:  # noqa: PLR2004
            return
        yield row


def _check_keys(table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> None:
    if not keys:
        raise InvalidInputError("`on` has to name at least one column")
    for name in keys:
        for known, what in ((table.column_names, "the table to join"), (schema.names, "this table")):
            if name not in known:
                raise SchemaMismatchError(f"key column {name!r} is not in {what}, which has {', '.join(known)}")


def _cast_key(table: pa.Table, name: str, arrow: pa.DataType) -> "pa.ChunkedArray[Any]":
    try:
        return table.column(name).cast(arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        given = table.schema.field(name).type
        raise SchemaMismatchError(f"key column {name!r} is {given}, this table holds {arrow}: {error}") from error


NewColumns = Union["pa.Field[Any]", pa.Schema, Sequence["pa.Field[Any]"], Mapping[str, str], Compute, pa.Table]
"""Columns of nulls; SQL expressions by name; a function over batches; or a table to look values up in."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the values of new columns come from. Without `compute` they are null."""

    columns: pa.Schema
    reads: Reads = ()
    compute: Compute | None = None


@dataclass(slots=True)
class _Filler:
    """Computes new columns for fragments, once for each, however often the commit is tried."""

    context: TableContext
    source: _Source
    done: dict[tuple[str, ...], StagedFile] = field(default_factory=dict)

    def filled(self, head: State, made: Fields) -> tuple[Fragment, ...]:
        """Return the fragments of a version, each with a file of values for the fields in `made`."""
        dataset = self.context.dataset(head)
        where = target(self.context, self.source.columns, head)
        found: list[Fragment] = []
        for fragment in head.manifest.fragments:
            # Files never change: the values computed for the same files before still stand for the same rows.
            known = tuple(file.path for file in fragment.files)
            if known not in self.done and self.source.compute is not None:
                self.done[known] = backfill(dataset, fragment, where, self.source.reads, compute=self.source.compute)
            found.append(self._with_file(head, fragment, made, self.done[known]))
        return tuple(found)

    def _with_file(self, head: State, fragment: Fragment, made: Fields, file: StagedFile) -> Fragment:
        staged = StagedFiles(self.source.columns, (file,))
        described = staged_fragments(staged, made, head.manifest.file_version)
        (new,) = placed(self.context, described, head, staged.base)
        return replace(fragment, files=(*fragment.files, *new.files))


def add_columns(
    context: TableContext,
    columns: NewColumns,
    info: CommitInfo,
    *,
    reads: Sequence[str] | None,
    on: Sequence[str] | None,
) -> State:
    """Add columns, as one version."""
    source = _source(context, columns, context.head(info.branch), reads=reads, on=on)
    filler = _Filler(context, source)

    def attempt() -> State:
        head = context.head(info.branch)
        fields = evolution.add_columns(head.manifest.fields, source.columns, evolution.next_field_id(head.manifest))
        made = fields[len(head.manifest.fields) :]
        fragments = head.manifest.fragments if source.compute is None else filler.filled(head, made)
        nullable = all(column.nullable for column in source.columns)
        if not nullable and source.compute is None and len(fragments):
            names = [column.name for column in source.columns if not column.nullable]
            raise InvalidInputError(f"column {names[0]!r} would be null in every row, and says it cannot be")
        operation = _merged(head, fragments, fields, preserves_nullability=nullable)
        return submit(context, head, operation, info.as_properties())

    return retried(attempt)


def cast_column(context: TableContext, name: str, arrow: pa.DataType, info: CommitInfo) -> State:
    """Give a column another type, as one version; its values are written anew, the other columns' are not."""
    filler: _Filler | None = None

    def attempt() -> State:
        nonlocal filler
        head = context.head(info.branch)
        manifest = head.manifest
        fields, made = evolution.cast_column(manifest.fields, name, arrow, evolution.next_field_id(manifest))
        if made[0].logical_type == evolution.find_field(manifest.fields, name).logical_type:
            return head
        _refuse_indexed(manifest, name)
        refuse_blobs(head, "cast")
        schema = arrow_from_fields(made)
        filler = filler or _Filler(context, _Source(schema, [name], lambda rows: _cast(rows, schema.field(0))))
        # Rows that others are writing for the old type would be read as nulls: their commits have to be made again.
        operation = _merged(head, filler.filled(head, made), fields, preserves_nullability=False)
        return submit(context, head, operation, info.as_properties())

    return retried(attempt)


def project(context: TableContext, info: CommitInfo, change: Callable[[Fields], Fields]) -> State:
    """Change the schema and nothing else, as one version; the head as it is when that changes nothing.

    Args:
        context: The table.
        info: The branch, and what the commit says about itself.
        change: Returns the new fields; called again when somebody else changed the schema meanwhile.
    """

    def attempt() -> State:
        head = context.head(info.branch)
        fields = change(head.manifest.fields)
        if fields == head.manifest.fields:
            return head
        return submit(context, head, Project(fields=fields, preserves_nullability=True), info.as_properties())

    return retried(attempt)


def set_nullable(context: TableContext, path: str, info: CommitInfo, *, nullable: bool) -> State:
    """Allow nulls in a column, or refuse them from now on."""

    def attempt() -> State:
        head = context.head(info.branch)
        fields = evolution.set_nullable(head.manifest.fields, path, nullable=nullable)
        if fields == head.manifest.fields:
            return head
        if not nullable:
            _refuse_nulls(context, head, path)
        # Whoever writes values meanwhile may write nulls, so the commit must not pass theirs unseen.
        return submit(context, head, Project(fields=fields, preserves_nullability=nullable), info.as_properties())

    return retried(attempt)


def map_update(what: str, given: Mapping[str, str | None], *, replace: bool) -> MapUpdate:
    """Return a change of keys and values that a caller gave; a value of None takes a key out.

    Raises:
        InvalidInputError: It is no mapping of texts.
    """
    check_string_mapping(what, given, removing=True)
    return MapUpdate(entries=dict(given), replace=replace)


def describe_column(context: TableContext, path: str, update: MapUpdate, info: CommitInfo) -> State:
    """Change the metadata of a field."""

    def attempt() -> State:
        head = context.head(info.branch)
        number = evolution.find_field(head.manifest.fields, path).id
        return submit(context, head, UpdateConfig(field_metadata={number: update}), info.as_properties())

    return retried(attempt)


def describe(context: TableContext, operation: UpdateConfig, info: CommitInfo) -> State:
    """Change what the table says about itself, or its settings."""
    return retried(lambda: submit(context, context.head(info.branch), operation, info.as_properties()))


def _merged(head: State, fragments: Sequence[Fragment], fields: Fields, *, preserves_nullability: bool) -> Operation:
    return Merge(
        fragments=fragments,
        fields=fields,
        schema_metadata=head.manifest.schema_metadata,
        preserves_nullability=preserves_nullability,
    )


def _source(
    context: TableContext, columns: NewColumns, head: State, *, reads: Sequence[str] | None, on: Sequence[str] | None
) -> _Source:
    if isinstance(columns, pa.Table) != (on is not None):
        raise InvalidInputError("`on` names the columns to look a table's values up by: give both, or neither")
    if callable(columns) != (reads is not None):
        raise InvalidInputError("`reads` names the columns a function is given: give both, or neither")
    if isinstance(columns, pa.Table):
        keys = tuple(on or ())
        values, compute = look_up(columns, keys, schema_of(head))
        return _Source(values, keys, compute)
    if callable(columns):
        wanted = tuple(reads or ())
        for name in wanted:
            evolution.find_field(head.manifest.fields, name)
        return _Source(_returned(columns, read_sample(context.dataset(head), wanted)), wanted, columns)
    if isinstance(columns, Mapping):
        return _Source(expression_schema(context.dataset(head), columns), dict(columns), lambda rows: rows)
    fields = [columns] if isinstance(columns, pa.Field) else list(columns)
    if not all(isinstance(column, pa.Field) for column in fields):
        raise InvalidInputError(
            "columns to add are pyarrow fields (of nulls), SQL expressions by name, a function with `reads`, "
            "or a table with `on`"
        )
    return _Source(pa.schema(fields))


def _returned(function: Compute, rows: pa.RecordBatch) -> pa.Schema:
    found = function(rows)
    if not isinstance(found, pa.RecordBatch):
        raise InvalidInputError(f"the function has to return a pyarrow.RecordBatch, not {type(found).__qualname__}")
    return found.schema


def _cast(rows: pa.RecordBatch, column: "pa.Field[pa.DataType]") -> pa.RecordBatch:
    values = rows.column(0)
    try:
        # Safe: nothing is rounded, cut off or made null.
        converted = values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(f"column {column.name!r} cannot become {column.type}: {error}") from error
    return pa.RecordBatch.from_arrays([converted], schema=pa.schema([column]))


def _refuse_indexed(manifest: Manifest, name: str) -> None:
    ids = {own.id for own in evolution.subtree(manifest.fields, evolution.find_field(manifest.fields, name))}
    for index in indices_of(manifest):
        if ids.intersection((*index.fields, *index.covering_fields)):
            raise InvalidInputError(
                f"column {name!r} has the index {index.name!r}, which would hold values of the old type; drop_index it "
                "first and make it again after"
            )


def _refuse_nulls(context: TableContext, head: State, path: str) -> None:
    nulls = count(context.dataset(head), f"{'.'.join(quote_column(name) for name in path.split('.'))} IS NULL")
    if nulls:
        raise InvalidInputError(f"column {path!r} of {head} is null in {nulls} rows; fill or delete these first")
