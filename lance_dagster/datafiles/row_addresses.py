"""Read rows together with their row addresses, and read rows at given addresses.

A row address is the fragment id in the upper 32 bits and the row offset in the lower 32 bits. Updates and upserts need
it to delete the old version of a row.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles.dictionaries import has_narrow_dictionaries, late_materialization, take
from lance_dagster.datafiles.pylance_errors import reading_errors
from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.arrow_types import has_blobs
from lance_dagster.format.model import LEGACY_BLOB
from lance_dagster.format.sql_text import enclosed

if TYPE_CHECKING:
    import lance
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lance

Addresses = np.ndarray[tuple[int], np.dtype[np.uint64]]
Offsets = np.ndarray[tuple[int], np.dtype[np.uint32]]
Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
ROW_ADDRESS = "_rowaddr"
_LEGACY = LEGACY_BLOB.encode()
_FIRST_GENERATION = "0.1"
_OFFSET_BITS = 32
OFFSET_MASK = np.uint64(2**_OFFSET_BITS - 1)
_KEYS_AT_ONCE = 256 * 1024
"""Rows per batch of a key look-up. Each look-up searches all keys, so large batches are cheaper."""
_ROWS_AT_ONCE = 16 * 1024
_LOOKED_UP = 1024
"""Up to this many rows of a fragment are taken by address; beyond it, the whole fragment is scanned and filtered."""
_BLOBS_AT_ONCE = 64
"""Rows per batch when there are blobs: all blobs of a batch are in memory at once."""


@dataclass(frozen=True, slots=True)
class AddressedRows:
    """Rows and the row address of each."""

    rows: pa.Table
    addresses: Addresses


def group_by_fragment(addresses: Addresses) -> Iterator[tuple[int, Positions]]:
    """Group addresses by fragment: yield each fragment id and the positions of its rows in `addresses`, in order."""
    fragments = addresses >> np.uint64(_OFFSET_BITS)
    # The sort is stable, so that the rows of a fragment keep the order in which they were given.
    order = np.argsort(fragments, kind="stable")
    ordered = fragments[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else np.empty(0, np.int64)
    for start, end in pairwise([*starts.tolist(), len(order)]):
        yield int(ordered[start]), order[start:end]


def fragments_by_id(
    dataset: "lance.LanceDataset", fragment_ids: Iterable[int] | None
) -> "list[lance.LanceFragment] | None":
    """Return fragments as pylance's scanner takes them; None for all.

    Raises:
        InvalidInputError: One of the fragments does not exist.
    """
    if fragment_ids is None:
        return None
    numbers = list(fragment_ids)
    # pylance returns None for a missing fragment, and would scan the other fragments without an error.
    fragments = [fragment for number in numbers if (fragment := dataset.get_fragment(number)) is not None]
    if len(fragments) < len(numbers):
        raise InvalidInputError(f"one of the fragments {numbers} does not exist")
    return fragments


def row_offsets(addresses: Addresses) -> Offsets:
    """Return the row offsets of addresses."""
    offsets: Offsets = (addresses & OFFSET_MASK).astype(np.uint32)
    return offsets


def offsets_by_fragment(addresses: Addresses) -> dict[int, BitMap]:
    """Return the row offsets of addresses by fragment id."""
    # pyroaring reads an `array` as a buffer; a numpy array it would iterate element by element.
    return {
        number: BitMap(array("I", row_offsets(addresses[places]).tobytes()))
        for number, places in group_by_fragment(addresses)
    }


def scan_computed(
    dataset: "lance.LanceDataset",
    expressions: Mapping[str, str],
    where: str | None = None,
    fragment_ids: Sequence[int] | None = None,
) -> Iterator[AddressedRows]:
    """Scan the rows that match a predicate, with some columns replaced by the values of SQL expressions.

    Args:
        dataset: The version.
        expressions: The expressions, by column.
        where: The predicate; None for every row.
        fragment_ids: The fragments that may have such rows; None for all.

    Raises:
        InvalidInputError: The predicate is invalid, or an expression fails for some row.
    """
    columns = {name: quote_column(name) for name in dataset.schema.names}
    columns |= {name: enclosed(f"the expression of {name!r}", sql) for name, sql in expressions.items()}
    closed = None if where is None else enclosed("the condition", where)
    shown = ", ".join(f"{name} = {expression}" for name, expression in expressions.items())
    condition = "" if where is None else f" where {where!r}"
    with reading_errors(f"compute {shown}{condition}", dataset.uri):
        scanner = dataset.scanner(
            columns=columns,
            filter=closed,
            with_row_address=True,
            blob_handling="all_binary",
            batch_size=_BLOBS_AT_ONCE if blob_columns(dataset.schema) else None,
            late_materialization=late_materialization(dataset.schema),
            fragments=fragments_by_id(dataset, fragment_ids),
        )
        yield from map(_located, _batches(scanner, fragment_ids))


def scan_addressed(
    dataset: "lance.LanceDataset",
    columns: Sequence[str],
    where: str | None = None,
    *,
    named: str | None = None,
    fragment_ids: Sequence[int] | None = None,
) -> Iterator[AddressedRows]:
    """Scan some columns of the rows that match a predicate, in storage order, in large batches.

    Args:
        dataset: The version.
        columns: The columns to read.
        where: The predicate; None for every row.
        named: What errors call the predicate if a caller wrote it, such as "missing_where"; None if no caller did.
        fragment_ids: The fragments that may have such rows; None for all.

    Raises:
        InvalidInputError: The predicate is invalid.
    """
    closed = None if where is None else enclosed(named or "the condition", where)
    # A predicate that no caller wrote may list a thousand keys.
    attempted = f"read the columns {', '.join(columns)}" if named is None else f"evaluate {named} {where!r}"
    with reading_errors(attempted, dataset.uri):
        scanner = dataset.scanner(
            columns=list(columns),
            filter=closed,
            with_row_address=True,
            scan_in_order=True,
            batch_size=_KEYS_AT_ONCE,
            late_materialization=late_materialization(dataset.schema),
            fragments=fragments_by_id(dataset, fragment_ids),
        )
        waiting: list[pa.RecordBatch] = []
        for batch in _batches(scanner, fragment_ids):
            waiting.append(batch)
            # Batches of pylance may be smaller than asked for, such as batches of small fragments.
            if sum(part.num_rows for part in waiting) >= _KEYS_AT_ONCE:
                yield _located(*waiting)
                waiting = []
        if waiting:
            yield _located(*waiting)


def _batches(scanner: "lance.LanceScanner", fragment_ids: Sequence[int] | None) -> Iterator[pa.RecordBatch]:
    """Return the batches of a scan, and none of a scan of no fragment, which pylance takes for a scan of all."""
    if fragment_ids is None or fragment_ids:
        return iter(scanner.to_batches())
    # For the error of an invalid predicate: Lance parses it when it is asked for the schema.
    _ = scanner.projected_schema
    return iter(())


def scan_fragment(
    dataset: "lance.LanceDataset", fragment_id: int, columns: Sequence[str], offsets: BitMap | None = None
) -> Iterator[AddressedRows]:
    """Scan some columns of the live rows of one fragment in storage order, with blobs as bytes.

    Args:
        dataset: The version.
        fragment_id: The fragment.
        columns: The columns to read; may be empty.
        offsets: The row offsets to read; None for all.

    Raises:
        CorruptFileError: The fragment does not exist.
    """
    fragment = dataset.get_fragment(fragment_id)
    if fragment is None:
        raise CorruptFileError(dataset.uri, f"pylance does not find its fragment {fragment_id}")
    if offsets is not None and not offsets:
        return
    few = offsets is not None and len(offsets) <= _LOOKED_UP
    start = fragment_id << _OFFSET_BITS
    with reading_errors(f"read the columns {', '.join(columns)}", dataset.uri):
        scanner = dataset.scanner(
            columns=list(columns),
            fragments=[fragment],
            filter=rows_at(dataset, [start + offset for offset in offsets]) if offsets is not None and few else None,
            with_row_address=True,
            scan_in_order=True,
            blob_handling="all_binary",
            batch_size=None if set(columns).isdisjoint(blob_columns(dataset.schema)) else _BLOBS_AT_ONCE,
        )
        parts = map(_located, scanner.to_batches())
        yield from parts if few or offsets is None else _chosen(parts, offsets)


def _chosen(parts: Iterator[AddressedRows], offsets: BitMap) -> Iterator[AddressedRows]:
    """Yield the rows of a fragment that are at the given offsets; `parts` come in order."""
    is_chosen = np.zeros(offsets.max() + 1, np.bool_)
    is_chosen[np.fromiter(offsets, np.int64, len(offsets))] = True
    for part in parts:
        places = row_offsets(part.addresses)
        if len(places) and places[0] >= len(is_chosen):
            return
        there = places < len(is_chosen)
        there[there] = is_chosen[places[there]]
        if there.all():
            yield part
        elif there.any():
            yield AddressedRows(part.rows.filter(pa.array(there)), part.addresses[there])


def projected_schema(dataset: "lance.LanceDataset", columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the rows that `scan_fragment` and `take_rows` return."""
    with reading_errors(f"read the columns {', '.join(columns)}", dataset.uri):
        # pylance refuses a scan without columns; the row address makes it valid.
        scanner = dataset.scanner(columns=list(columns), with_row_address=True, blob_handling="all_binary")
        return pa.schema([column for column in scanner.projected_schema if column.name != ROW_ADDRESS])


def count_physical_rows(dataset: "lance.LanceDataset", fragment_id: int) -> int:
    """Return the number of rows of a fragment, deleted ones included, from its data files."""
    fragment = dataset.get_fragment(fragment_id)
    if fragment is None:
        raise CorruptFileError(dataset.uri, f"a reader does not find its fragment {fragment_id}")
    with reading_errors(f"count the rows of fragment {fragment_id}", dataset.uri):
        return int(fragment.physical_rows)


def take_rows(
    dataset: "lance.LanceDataset", addresses: Addresses, columns: Sequence[str], places: Positions | None = None
) -> pa.Table:
    """Read some columns of live rows in the order of `addresses`, with blobs as bytes.

    Args:
        dataset: The version.
        addresses: The row addresses.
        columns: The columns to read.
        places: The position of each row among all live rows, where known; `take` by position is faster.

    Raises:
        CorruptFileError: An address has no row, or a position has a row with another address.
    """
    with reading_errors(f"read the columns {', '.join(columns)}", dataset.uri):
        # `take` joins the dictionaries of all rows, and fails where they have too many values together.
        looked_up = has_narrow_dictionaries(dataset.schema) or not set(columns).isdisjoint(blob_columns(dataset.schema))
        if places is not None and not looked_up:
            located = _located(dataset.take(places.tolist(), columns=[*columns, ROW_ADDRESS]))
        else:
            located = _looked_up(dataset, addresses, columns)
    order = np.argsort(located.addresses)
    ordered = located.addresses[order]
    if not np.array_equal(ordered, np.sort(addresses)):
        raise CorruptFileError(dataset.uri, f"the rows read are not the {len(addresses)} rows found before")
    return take(located.rows, order[np.searchsorted(ordered, addresses)])


def _looked_up(dataset: "lance.LanceDataset", addresses: Addresses, columns: Sequence[str]) -> AddressedRows:
    # A filtered scan is the only way to read blobs as bytes: `take` returns descriptors, and `read_blobs` does not find
    # blobs that a branch inherited through a base path.
    scanner = dataset.scanner(
        columns=list(columns),
        filter=rows_at(dataset, addresses.tolist()),
        with_row_address=True,
        blob_handling="all_binary",
        late_materialization=late_materialization(dataset.schema),
    )
    return _located(scanner.to_table())


def rows_at(dataset: "lance.LanceDataset", addresses: Sequence[int]) -> str:
    """Return a predicate that selects the rows at some addresses."""
    if not addresses:
        return "false"
    # pylance turns `_rowaddr IN (...)` into a look-up. For legacy files that look-up fails; the addition prevents it.
    subject = f"({ROW_ADDRESS} + 0)" if dataset.data_storage_version == _FIRST_GENERATION else ROW_ADDRESS
    return f"{subject} IN ({', '.join(map(str, addresses))})"


def batch_size(schema: pa.Schema) -> int:
    """Return the number of rows of a schema to hold in memory at once."""
    return _BLOBS_AT_ONCE if blob_columns(schema) else _ROWS_AT_ONCE


def blob_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the blob columns, in the legacy or the present encoding."""
    return [column.name for column in schema if has_blobs(pa.schema([column])) or _LEGACY in (column.metadata or {})]


def _located(*batches: pa.RecordBatch | pa.Table) -> AddressedRows:
    table = pa.concat_tables([pa.table(batch) for batch in batches])
    return AddressedRows(table.drop_columns([ROW_ADDRESS]), table.column(ROW_ADDRESS).to_numpy())


def quote_column(column: str) -> str:
    """Return a column name quoted for Lance SQL."""
    return f"`{column}`"
