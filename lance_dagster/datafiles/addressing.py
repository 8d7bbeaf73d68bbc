"""Rows together with where they lie, for whatever takes them out of there or writes them anew.

An address is the id of a fragment in the high half and the offset of a row in it in the low one.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles.errors import reading_errors
from lance_dagster.errors import CorruptFileError

Addresses = np.ndarray[tuple[int], np.dtype[np.uint64]]
Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
ADDRESS = "_rowaddr"
_OFFSET_BITS = 32
OFFSETS = np.uint64(2**_OFFSET_BITS - 1)
_ROWS_AT_ONCE = 256 * 1024
"""Keys are looked up for many rows at a time: each look-up goes through all keys there are."""


@dataclass(frozen=True, slots=True)
class Located:
    """Some rows, and the address of each."""

    rows: pa.Table
    addresses: Addresses


def offsets_by_fragment(addresses: Addresses) -> dict[int, BitMap]:
    """Return the offsets of rows by the id of their fragment."""
    fragments = addresses >> np.uint64(_OFFSET_BITS)
    return {int(found): BitMap(offsets_in(addresses, int(found))) for found in np.unique(fragments)}


def offsets_in(addresses: Addresses, fragment: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return the offsets of those rows that lie in a fragment, in the order of the addresses."""
    return (addresses[in_fragment(addresses, fragment)] & OFFSETS).astype(np.uint32)


def in_fragment(addresses: Addresses, fragment: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell of each row whether it lies in a fragment."""
    here: np.ndarray[tuple[int], np.dtype[np.bool_]] = addresses >> np.uint64(_OFFSET_BITS) == np.uint64(fragment)
    return here


def expression_types(dataset: lance.LanceDataset, expressions: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Return the type of the values each SQL expression gives, by column; reads nothing.

    Raises:
        InvalidInputError: An expression cannot be understood; names it and its column.
    """
    found = {}
    for column, expression in expressions.items():
        with reading_errors(f"compute {column!r} as {expression!r}"):
            # A scan of constants alone is refused, so it is asked for addresses too.
            scanner = dataset.scanner(columns={column: expression}, with_row_address=True)
            found[column] = scanner.projected_schema.field(column).type
    return found


def computed(
    dataset: lance.LanceDataset, expressions: Mapping[str, str], where: str | None = None
) -> Iterator[Located]:
    """Read the live rows that match, the columns named in `expressions` as computed by them, the others as they are.

    Raises:
        InvalidInputError: The condition cannot be understood, or an expression fails for some row.
    """
    columns = {name: expressions.get(name, quoted(name)) for name in dataset.schema.names}
    shown = ", ".join(f"{name} = {expression}" for name, expression in expressions.items())
    condition = "" if where is None else f" where {where!r}"
    with reading_errors(f"compute {shown}{condition}"):
        batches = dataset.scanner(columns=columns, filter=where, with_row_address=True).to_batches()
        yield from map(_located, batches)


def located(dataset: lance.LanceDataset, columns: Sequence[str]) -> Iterator[Located]:
    """Read some columns of all live rows, many rows at a time, in the order `rows_at` counts them."""
    with reading_errors(f"read the columns {', '.join(columns)}"):
        scanner = dataset.scanner(
            columns=list(columns), with_row_address=True, scan_in_order=True, batch_size=_ROWS_AT_ONCE
        )
        waiting: list[pa.RecordBatch] = []
        for batch in scanner.to_batches():
            waiting.append(batch)
            if sum(other.num_rows for other in waiting) >= _ROWS_AT_ONCE:
                yield _located(*waiting)
                waiting = []
        if waiting:
            yield _located(*waiting)


def rows_at(
    dataset: lance.LanceDataset, positions: Positions, addresses: Addresses, columns: Sequence[str]
) -> pa.Table:
    """Read some columns of rows by their places among all live rows.

    Raises:
        CorruptFileError: The rows there are not those of the addresses.
    """
    with reading_errors(f"read the columns {', '.join(columns)}"):
        # Without a column of the table there would be nothing to take.
        table = dataset.take(positions.tolist(), columns=[*(columns or dataset.schema.names[:1]), ADDRESS])
    if not np.array_equal(table.column(ADDRESS).to_numpy(), addresses):
        raise CorruptFileError(dataset.uri, "two ways to read the same rows give different ones")
    return table.select(list(columns))


def holds(condition: str, pairs: Mapping[str, pa.Table]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell for which rows an SQL condition on the columns of several tables of as many rows each holds.

    Args:
        condition: Names columns as `source.value`.
        pairs: The tables, by the name they have in the condition.

    Raises:
        InvalidInputError: The condition cannot be understood.
    """
    together = pa.table({name: _as_structs(table) for name, table in pairs.items()})
    found = np.zeros(together.num_rows, np.bool_)
    with reading_errors(f"evaluate the condition {condition!r}"):
        dataset = lance.write_dataset(together, f"memory://{uuid.uuid4().hex}")
        matches = dataset.scanner(columns=[], filter=condition, with_row_address=True).to_table()
    found[matches.column(ADDRESS).to_numpy()] = True
    return found


def quoted(column: str) -> str:
    """Return a column's name as an expression of Lance SQL."""
    return f"`{column}`"


def _located(*batches: pa.RecordBatch) -> Located:
    table = pa.Table.from_batches(batches)
    return Located(table.drop_columns([ADDRESS]), table.column(ADDRESS).to_numpy())


def _as_structs(table: pa.Table) -> pa.StructArray:
    columns = [_stored(column) for column in table.combine_chunks().itercolumns()]
    return pa.StructArray.from_arrays(columns, names=table.column_names)


def _stored(column: "pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    whole: Any = column.combine_chunks()
    # Conditions are about what is stored; an extension says what it stands for.
    stored: pa.Array[Any] = whole.storage if isinstance(whole, pa.ExtensionArray) else whole
    return stored
