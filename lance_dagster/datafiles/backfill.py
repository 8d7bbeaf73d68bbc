"""Compute the values of new columns: one additional data file per fragment.

A data file of a fragment has a value for every physical row, deleted rows included. Deleted rows cannot be read any
more, so they get the value of a neighbouring row: it is valid even where the column is not nullable, and encodes well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles.conforming import conform
from lance_dagster.datafiles.pylance_errors import reading_errors
from lance_dagster.datafiles.row_addresses import OFFSET_MASK, ROW_ADDRESS
from lance_dagster.datafiles.sql_evaluation import expression_types
from lance_dagster.datafiles.writing import StagedFile, WriteTarget, write_file
from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.model import Fragment
from lance_dagster.format.sql_text import enclosed

if TYPE_CHECKING:
    import lance

Compute = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Computes the new columns of a batch from existing columns."""
Reads = Sequence[str] | Mapping[str, str]
"""The columns to read, or a mapping of names to SQL expressions."""


def expression_schema(dataset: "lance.LanceDataset", expressions: Mapping[str, str]) -> pa.Schema:
    """Return the schema of SQL expressions; every column is nullable."""
    types = expression_types(dataset, expressions)
    return pa.schema([pa.field(name, types[name]) for name in expressions])


def read_sample(dataset: "lance.LanceDataset", reads: Reads) -> pa.RecordBatch:
    """Read one row, or an empty batch from an empty table: the input on which a function shows its output schema."""
    with reading_errors("read the columns a function needs", dataset.uri):
        # With row addresses, because a function may read no column, and pylance refuses a scan without columns.
        table = dataset.scanner(columns=_columns(reads), limit=1, with_row_address=True).to_table()
    batches = table.drop_columns([ROW_ADDRESS]).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema.remove(len(table.schema) - 1))


def backfill(
    dataset: "lance.LanceDataset", fragment: Fragment, target: WriteTarget, reads: Reads, *, compute: Compute
) -> StagedFile:
    """Compute new columns for every row of a fragment and write them to one data file.

    Raises:
        SchemaMismatchError: The values do not match the schema of the target.
        InvalidInputError: An expression fails for some row, or a function returns a different number of rows.
    """
    rows = fragment.physical_rows
    # One file holds the whole fragment, whatever its size: the files of a fragment must agree on the number of rows.
    computed = _computed(dataset, fragment.id, reads, compute, schema=target.schema)
    file = write_file(target, _filled(computed, rows), rows)
    if file is None:
        raise CorruptFileError(dataset.uri, f"fragment {fragment.id} does not have the {rows} rows it should")
    return file


def _computed(
    dataset: "lance.LanceDataset", fragment_id: int, reads: Reads, compute: Compute, *, schema: pa.Schema
) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.RecordBatch]]:
    """Yield the offsets and new values of the live rows of a fragment, in order."""
    for batch in _live_rows(dataset, fragment_id, reads):
        offsets = (batch.column(ROW_ADDRESS).to_numpy() & OFFSET_MASK).astype(np.int64)
        values = compute(batch.drop_columns([ROW_ADDRESS]))
        if values.num_rows != batch.num_rows:
            raise InvalidInputError(f"new columns need {batch.num_rows} values each, {values.num_rows} were given")
        yield offsets, conform(values, schema)


def _live_rows(dataset: "lance.LanceDataset", fragment_id: int, reads: Reads) -> Iterator[pa.RecordBatch]:
    fragment = dataset.get_fragment(fragment_id)
    if fragment is None:
        raise CorruptFileError(dataset.uri, f"pylance does not find its fragment {fragment_id}")
    pairs = reads.items() if isinstance(reads, Mapping) else ((name, name) for name in reads)
    shown = ", ".join(f"{name} as {expression!r}" for name, expression in pairs)
    with reading_errors(f"compute {shown}", dataset.uri):
        # Rows are read in order: a data file holds the values of a fragment by row offset.
        scanner = dataset.scanner(
            columns=_columns(reads), fragments=[fragment], scan_in_order=True, with_row_address=True
        )
        yield from (batch for batch in scanner.to_batches() if batch.num_rows)


def _filled(
    parts: Iterable[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.RecordBatch]], rows: int
) -> Iterator[pa.RecordBatch]:
    """Extend the values of live rows to all physical rows of a fragment."""
    expected = 0
    previous: pa.RecordBatch | None = None
    for offsets, batch in parts:
        end = int(offsets[-1]) + 1
        # For each physical row up to the last live row of this batch: the value of the first live row at or after it.
        yield (
            batch if end - expected == len(offsets) else batch.take(np.searchsorted(offsets, np.arange(expected, end)))
        )
        expected, previous = end, batch
    # Rows deleted at the end of the fragment have no live row after them, so they repeat the last live row.
    if previous is not None and expected < rows:
        yield previous.take(np.full(rows - expected, previous.num_rows - 1))


def _columns(reads: Reads) -> list[str] | dict[str, str]:
    if not isinstance(reads, Mapping):
        return list(reads)
    return {name: enclosed(f"the expression of {name!r}", expression) for name, expression in reads.items()}
