"""Delete rows by a predicate, and update rows by SQL expressions.

Data files are immutable. A delete stores a deletion vector for each affected fragment. An update deletes the rows from
their fragments and writes them with their new values to new fragments, where they keep their stable row ids.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import (
    AddressedRows,
    Addresses,
    blob_columns,
    can_shorten,
    cast_exactly,
    conform,
    empty_array,
    expression_types,
    offsets_by_fragment,
    scan_computed,
)
from lance_dagster.datafiles.writing import StagedFiles, write_files
from lance_dagster.edit.write import (
    CommitInfo,
    field_ids,
    matching,
    moved_in,
    refuse_nested_blobs,
    retried,
    submit,
    taken_out,
    target,
)
from lance_dagster.edit.write_result import Written
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.transaction import Delete, Update
from lance_dagster.format.validation import check_string, require_mapping
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State


def delete(context: TableContext, predicate: str, info: CommitInfo) -> Written:
    """Delete the rows that match a predicate, or return the head when no row matches."""

    def attempt() -> Written:
        head = context.head(info.branch)
        matches = matching(context, head, predicate)
        if not matches.count:
            # pylance commits a version without changes here; a rerun of a job would then grow the log.
            return Written(state=head)
        out = taken_out(context, head, matches.offsets, matches.whole)
        operation = Delete(updated_fragments=out.updated, deleted_fragment_ids=out.removed, predicate=predicate)
        state = submit(context, head, operation, info.as_properties())
        return Written(state=state, deleted=matches.count)

    return retried(attempt)


def update(context: TableContext, values: Mapping[str, str], where: str | None, info: CommitInfo) -> Written:
    """Update the rows that match a predicate, or return the head when no row matches."""
    for name in require_mapping("values", values, "{'price': 'price * 2'}"):
        check_string("a column of values", name)

    def attempt() -> Written:
        head = context.head(info.branch)
        refuse_nested_blobs(head, "update")
        changed = _Changed(context, head, values, where)
        schema = head.schema
        place = target(context, schema, head)
        # `addresses` is complete only after `write_files` has consumed the stream, so the order of these lines matters.
        staged = StagedFiles(schema, write_files(place, changed), place.base)
        addresses = changed.addresses
        if not len(addresses):
            return Written(state=head)
        out = taken_out(context, head, offsets_by_fragment(addresses))
        operation = Update(
            removed_fragment_ids=out.removed,
            updated_fragments=out.updated,
            new_fragments=moved_in(context, head, staged, addresses),
            # These are the changed fields. In pylance an index on other fields still covers the moved rows, which such
            # an index finds by their stable row ids.
            updated_fields=field_ids(head.manifest.fields, list(values)),
        )
        return Written(state=submit(context, head, operation, info.as_properties()), updated=len(addresses))

    return retried(attempt)


class _Changed:
    """A stream of the matching rows with their new values, which records the address of each row it yields.

    The rows are streamed, so an update of a large table needs memory for one batch and for the row addresses.
    """

    def __init__(self, context: TableContext, head: State, values: Mapping[str, str], where: str | None) -> None:
        self._schema = head.schema
        self._fragments = context.matching_fragments(head, where)
        self._dataset = context.dataset(head, self._fragments)
        self._values = dict(values)
        self._blobs = frozenset(blob_columns(self._schema))
        self._where = where
        self._addresses: list[Addresses] = []
        _check_values(self._values, self._schema)
        for name, arrow_type in expression_types(self._dataset, self._values).items():
            # Casting an empty array raises the error for incompatible types before any row is read.
            self._converted(empty_array(arrow_type), name)

    @property
    def addresses(self) -> Addresses:
        # The empty array gives the result its type when no row matched.
        return np.concatenate([np.empty(0, np.uint64), *self._addresses])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for part in scan_computed(self._dataset, self._values, self._where, self._fragments):
            self._addresses.append(part.addresses)
            yield from self._with_types(part)

    def _with_types(self, part: AddressedRows) -> Iterator[pa.RecordBatch]:
        for batch in part.rows.to_batches():
            columns = [
                self._converted(batch.column(name), name) if name in self._values else batch.column(name)
                for name in self._schema.names
            ]
            yield conform(pa.RecordBatch.from_arrays(columns, names=self._schema.names), self._schema)

    def _converted(self, values: "pa.Array[Any]", name: str) -> "pa.Array[Any]":
        column = self._schema.field(name)
        if values.type == column.type or name in self._blobs:
            # Blobs are read as bytes, whose type may differ from the type of the stored column.
            return values
        try:
            # Lance calculates in double precision, so the results for a column of single precision are rounded.
            cast: pa.Array[Any] = cast_exactly(values, column.type, rounding=True)
        except SchemaMismatchError as error:
            hint = "; to round or shorten the result, put it into ROUND or CAST"
            raise SchemaMismatchError(
                f"column {name!r} is {column.type}, and {self._values[name]!r} gives {values.type}: {error}"
                f"{hint if can_shorten(values.type, column.type) else ''}"
            ) from error
        return cast


def _check_values(values: Mapping[str, str], schema: pa.Schema) -> None:
    """Check that each key names a top-level column and each value is a string.

    Raises:
        InvalidInputError: A column does not exist or is a nested field, or an expression is not a string.
    """
    if not values:
        raise InvalidInputError("an update needs a column and its new value, such as {'price': 'price * 2'}")
    for name, expression in values.items():
        if not isinstance(expression, str):
            raise InvalidInputError(
                f"the new value of {name!r} is {expression!r}; give an SQL expression as a string, such as '5' or "
                "\"'text'\""
            )
        if name in schema.names:
            continue
        outer = name.split(".")[0]
        if outer in schema.names:
            raise InvalidInputError(
                f"cannot update {name!r} alone; give all of column {outer!r}, such as {outer} = named_struct(...)"
            )
        raise InvalidInputError(f"no column {name!r}; the table has {', '.join(schema.names)}")
