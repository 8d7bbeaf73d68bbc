"""Copy values that lie in memory where pylance cannot read them.

Rust reads a number only from an address that is a multiple of its size: 16 bytes for decimals, 8 bytes at most for
other numbers. Arrow allows any address, and the rows of Spark, of memory-mapped files and of IPC streams lie at
multiples of 8. If pylance gets rows as a stream, it panics on numbers at other addresses.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

_OF_DECIMALS, _OF_OTHERS = 16, 8


def aligned_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose values pylance can read; columns that lie right already are not copied."""
    return pa.RecordBatch.from_arrays([_aligned(column) for column in rows.columns], schema=rows.schema)


def aligned_table(rows: pa.Table) -> pa.Table:
    """Return a table whose values pylance can read; columns that lie right already are not copied."""
    return pa.Table.from_batches([aligned_batch(batch) for batch in rows.to_batches()], schema=rows.schema)


def _aligned(values: Any) -> Any:  # noqa: ANN401  # an array
    unit = _OF_DECIMALS if any(map(pa.types.is_decimal, _types_in(values.type))) else _OF_OTHERS
    if all(buffer is None or buffer.address % unit == 0 for buffer in values.buffers()):
        return values
    # Arrow allocates memory at multiples of 64 bytes.
    return values.take(pa.array(np.arange(len(values))))


def _types_in(kind: Any) -> Iterator[Any]:  # noqa: ANN401  # any Arrow type
    """Yield a type and the types of its parts."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    yield kind
    for index in range(kind.num_fields):
        yield from _types_in(kind.field(index).type)
