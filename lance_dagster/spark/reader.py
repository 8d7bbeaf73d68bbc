"""Table rows for Spark, always from one version.

A ref is resolved once, on the driver. What executors get is a version, so a branch that moves on or a tag
that moves away while a job runs changes nothing for it.

Spark passes neither columns nor filters to a Python data source safely. It has no call for columns. For
filters it has `pushFilters`, and Spark 4.3 keeps the filters of one query with the relation and applies them
to the next: a frame used twice loses rows without a word. So both are options of the read, and `pushFilters`
must not be implemented here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import string_list
from lance_dagster.spark.spark_schema import arrow_for_spark, row_bytes, to_spark_batch
from lance_dagster.table import LanceTable

_SPLIT_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_FEWEST_ROWS, _MOST_ROWS = 64, 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What is read: some columns of one version of a table, and which of its rows."""

    uri: str
    version: str
    schema: pa.Schema
    table_row_bytes: int
    filter: str | None
    storage_options: Mapping[str, str] = field(repr=False)

    @classmethod
    def plan(
        cls,
        table: LanceTable,
        ref: str = "main",
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
    ) -> Self:
        """Resolve a ref, and check the columns and the filter against the version it names.

        Raises:
            RefNotFoundError: There is no such ref.
            InvalidInputError: A column does not exist or stands twice, none is asked for, or the filter
                cannot be understood.
        """
        version = str(table.at(ref))
        whole = table.schema(version)
        chosen = whole.names if columns is None else list(string_list("columns", columns, "id"))
        missing = [name for name in chosen if name not in whole.names]
        if missing:
            raise InvalidInputError(
                f"no column {', '.join(map(repr, missing))} in {table.uri} at {version}; "
                f"it has {', '.join(whole.names)}"
            )
        if not chosen or len(set(chosen)) < len(chosen):
            raise InvalidInputError(f"name at least one column, and each once; given: {', '.join(chosen) or 'none'}")
        scan = cls(
            uri=table.uri,
            version=version,
            schema=pa.schema([whole.field(name) for name in chosen]),
            table_row_bytes=row_bytes(whole),
            filter=filter,
            storage_options=table.storage_options,
        )
        if filter is not None:
            _check_filter(table, scan)
        return scan


def _check_filter(table: LanceTable, scan: Scan) -> None:
    try:
        scanner = table.to_lance(scan.version).scanner(columns=scan.schema.names, filter=scan.filter)
        # Asking for the schema is what makes Lance look at the filter.
        _ = scanner.projected_schema
    except (ValueError, OSError) as error:
        # Lance appends the place in its own source, which is noise to whoever made the call.
        problem = str(error).partition("\n")[0].partition(", /")[0]
        raise InvalidInputError(f"cannot evaluate the filter {scan.filter!r}: {problem}") from error


@dataclass(frozen=True, slots=True)
class Piece:
    """A fragment, or the rows of one from `start` to `stop`, counted with the deleted ones."""

    fragment: int
    start: int = 0
    stop: int | None = None


class LancePartition(InputPartition):
    """The pieces one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Keep the pieces."""
        super().__init__(None)
        self.pieces = tuple(pieces)


class LanceReader(DataSourceReader):
    """Read one scan, in tasks of about 32 MiB of the columns asked for."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        """Fix what is read, and the Spark schema the rows are given in."""
        self._scan = scan
        self._expected = arrow_for_spark(schema)

    def partitions(self) -> list[LancePartition]:
        """Cut large fragments into pieces and put small ones together."""
        groups: list[list[Piece]] = [[]]
        filled = 0.0
        for piece, size in self._pieces():
            if groups[-1] and filled + size > _SPLIT_BYTES:
                groups.append([])
                filled = 0.0
            groups[-1].append(piece)
            filled += size
        return [LancePartition(group) for group in groups]

    def _pieces(self) -> Iterator[tuple[Piece, float]]:
        """Yield each piece with the bytes the columns of the scan take in it, as far as types can tell."""
        scan = self._scan
        share = row_bytes(scan.schema) / scan.table_row_bytes
        dataset = LanceTable.open(scan.uri, scan.storage_options).to_lance(scan.version)
        for fragment in dataset.get_fragments():
            rows = fragment.physical_rows
            known = sum(file.file_size_bytes or 0 for file in fragment.data_files())
            size = share * (known or rows * scan.table_row_bytes)
            cuts = max(1, round(size / _SPLIT_BYTES))
            if cuts == 1:
                yield Piece(fragment.fragment_id), size
                continue
            for cut in range(cuts):
                yield Piece(fragment.fragment_id, rows * cut // cuts, rows * (cut + 1) // cuts), size / cuts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; runs on an executor."""
        if not isinstance(partition, LancePartition) or not partition.pieces:
            return
        scan = self._scan
        dataset = LanceTable.open(scan.uri, scan.storage_options).to_lance(scan.version)
        rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _BATCH_BYTES // row_bytes(scan.schema)))
        for fragments, condition in _scans(partition.pieces, scan.filter):
            scanner = dataset.scanner(
                columns=scan.schema.names,
                filter=condition,
                # A version names the same fragments for ever, so none is missing.
                fragments=[dataset.get_fragment(number) for number in fragments],  # type: ignore[misc]
                batch_size=rows,
            )
            for batch in scanner.to_batches():
                yield to_spark_batch(batch, self._expected)


def _scans(pieces: Sequence[Piece], filter: str | None) -> Iterator[tuple[list[int], str | None]]:
    """Yield the fragments and the filter of each scan that reads some pieces."""
    whole = [piece.fragment for piece in pieces if piece.stop is None]
    if whole:
        yield whole, filter
    for piece in pieces:
        if piece.stop is not None:
            # A row's address is its fragment and its place in it, so a range of them is found without reading
            # the rows before it.
            first = piece.fragment << 32
            place = f"_rowaddr >= {first + piece.start} AND _rowaddr < {first + piece.stop}"
            yield [piece.fragment], place if filter is None else f"({filter}) AND {place}"
