"""Look up the values of new columns in a table by key, as a left join that keeps the rows in their order."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import Compute, cast_exactly, decoded, encoded, plain_type
from lance_dagster.edit.key_predicates import comparable_values
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.schema import without_views
from lance_dagster.format.shown_values import shown_rows

# Names of auxiliary columns in the key join, in which the keys have names of their own.
_PLACE = "__place"
_ROW = "__row"


def look_up(table: pa.Table, keys: Sequence[str], schema: pa.Schema) -> tuple[pa.Schema, Compute]:
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
