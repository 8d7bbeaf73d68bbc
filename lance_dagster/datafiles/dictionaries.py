"""Keep dictionaries within their index type: when rows are put together, and in data files.

A dictionary with indices of 8 bits numbers 128 values, as in categories of pandas. Rows that come together may have
more values, and neither Arrow nor pylance divides them. pylance 14 concatenates the dictionaries of all batches of a
file, even if they are equal: two batches with the same 70 values make 140. Once the concatenation is longer than the
index type allows, pylance writes a file that nobody can read; in files of version 2.0, where a null takes a place as
well, it refuses to write. So a file gets few batches, each with one dictionary that has every value once, and is closed
before the dictionary of the next batch would be too much.

Dictionaries that pylance reads from files of version 2.0 may have a null among their values, which Arrow cannot unify.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles.extension_types import with_parts
from lance_dagster.errors import SchemaMismatchError
from lance_dagster.format.model import parse_file_version

_WIDE_BITS = 32
"""Indices of so many bits number more values than a file has rows."""
_JOINED_BYTES = 128 * 1024 * 1024
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def dictionaries_in(arrow: Any) -> Iterator[Any]:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    """Yield the dictionary types in a type: the type itself, or the types nested in it."""
    if pa.types.is_dictionary(arrow):
        yield arrow
    elif pa.types.is_nested(arrow):
        for index in range(arrow.num_fields):
            yield from dictionaries_in(arrow.field(index).type)


def has_narrow_dictionaries(schema: pa.Schema) -> bool:
    """Return whether a dictionary of a schema may have too few indices for the values of a file."""
    return any(kind.index_type.bit_width < _WIDE_BITS for column in schema for kind in dictionaries_in(column.type))


def late_materialization(schema: pa.Schema) -> bool | None:
    """Return the option of that name for pylance's scanner; None leaves the choice to pylance.

    pylance 14 puts rows of several fragments into one batch when it reads their columns after the filter, and fails
    where the dictionaries of these fragments do not go together. It also fails then where a struct inside of a struct
    has metadata, as other writers store it.
    """
    unfit = has_narrow_dictionaries(schema) or any(_has_described_structs(column.type) for column in schema)
    return False if unfit else None


def _has_described_structs(arrow: Any) -> bool:  # noqa: ANN401  # any Arrow type
    """Return whether there is a struct with metadata inside of a struct."""
    if not pa.types.is_struct(arrow):
        return False
    fields = [arrow.field(index) for index in range(arrow.num_fields)]
    return any(
        pa.types.is_struct(field.type) and (bool(field.metadata) or _has_described_structs(field.type))
        for field in fields
    )


def plain_type(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type
    """Return a type with the types of the values in place of dictionaries."""
    if pa.types.is_dictionary(arrow):
        return arrow.value_type
    if not any(dictionaries_in(arrow)):
        return arrow
    return with_parts(arrow, [plain_type(arrow.field(index).type) for index in range(arrow.num_fields)])


def decoded(values: Any) -> Any:  # noqa: ANN401  # an array, or one of several chunks
    """Return an array with the values themselves in place of dictionaries; an array of chunks chunk by chunk."""
    if not any(dictionaries_in(values.type)):
        return values
    plain = plain_type(values.type)
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([decoded(chunk) for chunk in values.chunks], plain)
    try:
        return values.cast(plain)
    except pa.ArrowIndexError:
        # Below a null struct an index counts for nothing, and need not be in the dictionary. Arrow looks it up.
        return pa.array(values.to_pylist(), plain)


def take(table: pa.Table, places: Any) -> pa.Table:  # noqa: ANN401  # an array of numbers, of Arrow or NumPy
    """Return rows of a table, as `pa.Table.take` does, also where its chunks have dictionaries that do not go together.

    Raises:
        SchemaMismatchError: One row has more values than its dictionary can number.
    """
    if not any(any(dictionaries_in(column.type)) for column in table.schema):
        return table.take(places)
    return pa.table([take_column(column, places) for column in table.columns], schema=table.schema)


def take_column(column: Any, places: Any) -> Any:  # noqa: ANN401  # as `take`
    """Return values of a column of several chunks, as `take` does for a table."""
    if not any(dictionaries_in(column.type)):
        return column.take(pa.array(places))
    plain = decoded(column).take(pa.array(places))
    chunks = [part for chunk in plain.chunks for part in _encoded_parts(chunk, column.type)]
    return pa.chunked_array(chunks, column.type)


def encoded(values: Any, target: Any) -> Any:  # noqa: ANN401  # an array, a type
    """Return an array of plain values in a type with dictionaries; the reverse of `decoded`.

    Raises:
        SchemaMismatchError: There are more different values than a dictionary of the type can number.
    """
    if values.type == target:
        return values
    try:
        return _encoded(values, target)
    except pa.ArrowInvalid as error:
        raise _too_many(target) from error


def _encoded_parts(values: Any, target: Any) -> Iterator[Any]:  # noqa: ANN401  # an array, a type
    """Encode plain values again, in as many arrays as their dictionaries need."""
    try:
        yield _encoded(values, target)
    except pa.ArrowInvalid as error:
        if len(values) <= 1:
            raise _too_many(target) from error
        middle = len(values) // 2
        yield from _encoded_parts(values.slice(0, middle), target)
        yield from _encoded_parts(values.slice(middle), target)


def _encoded(values: Any, target: Any) -> Any:  # noqa: ANN401  # an array, a type
    if pa.types.is_dictionary(target):
        return values.dictionary_encode().cast(target)
    try:
        return values.cast(target)
    except pa.ArrowNotImplementedError:
        # Arrow casts nested strings to dictionaries, but no nested numbers.
        return pa.array(values.to_pylist(), target)


def _too_many(what: object) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"the rows have more different values than a dictionary of {what} can number; use a dictionary with wider "
        "indices, or the type of the values"
    )


class DictionaryRoom:
    """Counts the values in the dictionaries of a file, column by column, nested ones included."""

    def __init__(self, schema: pa.Schema, file_version: str) -> None:
        """Begin with a file without rows, of a schema that has narrow dictionaries."""
        self._schema, self._version = schema, file_version
        self._used: list[int] = []

    def take(self, batch: pa.RecordBatch) -> bool:
        """Count the dictionaries of a batch if they fit beside the dictionaries of the file; tell whether they do."""
        there = [len(array.dictionary) for array in _dictionaries(batch)]
        total = [used + length for used, length in zip(self._used or [0] * len(there), there, strict=True)]
        if self._used and not within_limits(total, self._schema, self._version):
            return False
        self._used = total
        return True


def within_limits(lengths: Iterable[int], schema: pa.Schema, file_version: str) -> bool:
    """Tell whether dictionaries of some lengths, in the order of the columns, have indices for all their values."""
    kinds = (kind for column in schema for kind in dictionaries_in(column.type))
    # In files of version 2.0 a null is one of the values.
    null = int(parse_file_version(file_version) < (2, 1))
    return all(length + null <= _most_values(kind) for length, kind in zip(lengths, kinds, strict=True))


def _most_values(kind: Any) -> int:  # noqa: ANN401  # a dictionary type
    index = kind.index_type
    return int(2 ** (index.bit_width - pa.types.is_signed_integer(index)))


def _dictionaries(batch: pa.RecordBatch) -> list[Any]:
    """Return the arrays in a batch that have a dictionary, in the order of `dictionaries_in`."""
    return [array for column in batch.columns for array in _encoded_arrays(column)]


def _encoded_arrays(values: Any) -> Iterator[Any]:  # noqa: ANN401  # an array of any type
    arrow = values.type
    if pa.types.is_dictionary(arrow):
        yield values
    elif pa.types.is_nested(arrow) and any(dictionaries_in(arrow)):
        if pa.types.is_struct(arrow):
            parts: Sequence[Any] = [values.field(index) for index in range(arrow.num_fields)]
        else:
            parts = [values.keys, values.items] if pa.types.is_map(arrow) else [values.values]
        for part in parts:
            yield from _encoded_arrays(part)


def joined(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, file_version: str, *, most_bytes: int | None = _JOINED_BYTES
) -> Iterator[pa.RecordBatch]:
    """Put batches together whose values fit into one dictionary for each column; divide batches that do not fit.

    Args:
        batches: Batches of the schema.
        schema: A schema with narrow dictionaries.
        file_version: The version of the data files.
        most_bytes: About how many bytes are put together; None for no limit.

    Raises:
        SchemaMismatchError: One row has more values than its dictionary can number.
    """

    def fits(batch: pa.RecordBatch) -> bool:
        return within_limits((len(array.dictionary) for array in _dictionaries(batch)), schema, file_version)

    pending: list[pa.RecordBatch] = []
    dictionaries: pa.RecordBatch | None = None
    size = 0
    for batch in (part for source in batches for part in _clean(source, fits)):
        united = None if dictionaries is None else _dictionaries_of(dictionaries, batch)
        if pending and (united is None or not fits(united) or (most_bytes is not None and size >= most_bytes)):
            yield _together(pending)
            pending, united, size = [], None, 0
        dictionaries = batch.slice(0, 0) if united is None else united
        pending.append(batch)
        size += batch.nbytes
    if pending:
        yield _together(pending)


def _clean(batch: pa.RecordBatch, fits: Callable[[pa.RecordBatch], bool]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch with dictionaries that fit into a file and have no null among their values."""
    if not batch.num_rows:
        return
    if fits(batch) and not any(array.dictionary.null_count for array in _dictionaries(batch)):
        yield batch
        return
    try:
        columns = [
            _encoded(decoded(column), column.type) if any(dictionaries_in(column.type)) else column
            for column in batch.columns
        ]
        clean = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        if fits(clean):
            yield clean
            return
    except pa.ArrowInvalid as error:
        if batch.num_rows == 1:
            raise _too_many("this table") from error
    if batch.num_rows == 1:
        raise _too_many("this table")
    middle = batch.num_rows // 2
    for part in (np.arange(middle), np.arange(middle, batch.num_rows)):
        # Copied: pylance 14 dies on slices of some structs.
        yield from _clean(batch.take(part), fits)


def _dictionaries_of(dictionaries: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """Return an empty batch with the united dictionaries of both batches; None if they have too many values."""
    pairs = zip(_dictionaries(dictionaries), _dictionaries(batch), strict=True)
    if all(first.dictionary.equals(second.dictionary) for first, second in pairs):
        return dictionaries
    try:
        # Arrow unifies at most as many values as there are indices, less one.
        united = pa.Table.from_batches([dictionaries, batch.slice(0, 0)]).unify_dictionaries()
    except _UNFIT:
        return None
    columns: list[Any] = [column.chunk(0) for column in united.columns]
    return pa.RecordBatch.from_arrays(columns, schema=dictionaries.schema)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    # Where every index is taken, the dictionaries are equal, which needs no unification.
    with suppress(*_UNFIT):
        table = table.unify_dictionaries()
    columns: list[Any] = [pa.concat_arrays(column.chunks) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
