"""Evaluate SQL expressions and predicates of Lance over Arrow rows, and find out the types of expressions."""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles.alignment import aligned_table
from lance_dagster.datafiles.dictionaries import decoded
from lance_dagster.datafiles.pylance_errors import query_errors, reading_errors
from lance_dagster.datafiles.row_addresses import ROW_ADDRESS, row_offsets
from lance_dagster.format.sql_text import enclosed

if TYPE_CHECKING:
    import lance


def expression_types(dataset: "lance.LanceDataset", expressions: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Return the Arrow type of each SQL expression, by column, without reading rows.

    Raises:
        InvalidInputError: An expression is invalid; the message names it and its column.
    """
    types = {}
    for column, expression in expressions.items():
        closed = enclosed(f"the expression of {column!r}", expression)
        with reading_errors(f"compute {column!r} as {expression!r}", dataset.uri):
            # pylance refuses a scan of constants alone; the row address makes it valid.
            scanner = dataset.scanner(columns={column: closed}, with_row_address=True)
            types[column] = scanner.projected_schema.field(column).type
    return types


def evaluate_condition(condition: str, pairs: Mapping[str, pa.Table]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Evaluate an SQL condition over the columns of several tables with equal row counts; return a mask.

    Args:
        condition: The condition, with columns written as `source.value`.
        pairs: The tables, by their name in the condition.

    Raises:
        InvalidInputError: The condition is invalid.
    """
    closed = enclosed("the condition", condition)
    together = pa.table({name: _as_structs(table) for name, table in pairs.items()})
    with reading_errors(f"evaluate the condition {condition!r}"):
        return _matches(closed, together)


def evaluate_predicate(predicate: str, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Evaluate an SQL predicate over rows in memory as a scan of the table would; a null result counts as false.

    Args:
        predicate: The predicate.
        rows: The rows, in the types of the table; columns that the predicate does not name may be absent.

    Raises:
        InvalidInputError: The predicate is invalid.
    """
    if not rows.num_columns:
        # A constant predicate needs a column all the same, because a dataset has at least one.
        rows = pa.table({"_": pa.nulls(rows.num_rows, pa.bool_())})
    with query_errors(predicate, "rows in memory") as closed:
        return _matches(closed, rows)


def evaluate_expression(expression: str, rows: pa.Table) -> "pa.ChunkedArray[Any]":
    """Evaluate an SQL expression over rows in memory, in the types of the table; return the value of each row.

    Raises:
        InvalidInputError: The expression is invalid.
    """
    import lance

    with query_errors(expression, "rows in memory") as closed:
        dataset = lance.write_dataset(aligned_table(rows), f"memory://{uuid.uuid4().hex}", data_storage_version="2.2")
        # In the order of the rows, of which a file in memory has one fragment.
        values = dataset.scanner(columns={"value": closed or expression}, scan_in_order=True).to_table()
    column: pa.ChunkedArray[Any] = values.column("value")
    return column


def expression_type(expression: str, schema: pa.Schema) -> pa.DataType:
    """Return the type of the values of an SQL expression over the columns of a schema.

    Raises:
        InvalidInputError: The expression is invalid.
    """
    import lance

    with reading_errors(f"compute {expression!r}", "no rows"):
        dataset = lance.write_dataset(schema.empty_table(), f"memory://{uuid.uuid4().hex}", data_storage_version="2.2")
    return expression_types(dataset, {"value": expression})["value"]


def _matches(condition: str | None, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    import lance

    mask = np.zeros(rows.num_rows, np.bool_)
    # Lance has no function that evaluates SQL over Arrow rows; a dataset in memory costs about two milliseconds.
    dataset = lance.write_dataset(aligned_table(rows), f"memory://{uuid.uuid4().hex}", data_storage_version="2.2")
    matches = dataset.scanner(columns=[], filter=condition, with_row_address=True).to_table()
    # One file holds far more rows than are in memory at once; the fragment of an address is cut off to be safe.
    mask[row_offsets(matches.column(ROW_ADDRESS).to_numpy())] = True
    return mask


def _as_structs(table: pa.Table) -> pa.StructArray:
    plain = pa.table([decoded(column) for column in table.columns], names=table.column_names)
    columns = [_stored(column) for column in plain.combine_chunks().itercolumns()]
    return pa.StructArray.from_arrays(columns, names=table.column_names)


def _stored(column: "pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    array: Any = column.combine_chunks()
    # Conditions apply to storage values; DataFusion does not know extension types.
    stored: pa.Array[Any] = array.storage if isinstance(array, pa.ExtensionArray) else array
    return stored
