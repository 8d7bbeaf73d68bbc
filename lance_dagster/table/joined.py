"""Values for new columns looked up in another table by key."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import Compute
from lance_dagster.errors import InvalidInputError, SchemaMismatchError

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
    found = pa.Table.from_arrays([_cast(table, name, schema.field(name).type) for name in keys], names=list(keys))
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


def _cast(table: pa.Table, name: str, arrow: pa.DataType) -> "pa.ChunkedArray[Any]":
    try:
        return table.column(name).cast(arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        given = table.schema.field(name).type
        raise SchemaMismatchError(f"key column {name!r} is {given}, this table holds {arrow}: {error}") from error
