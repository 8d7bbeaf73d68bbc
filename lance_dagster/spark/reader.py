"""The reader of the Spark data source, which reads the rows of exactly one version.

A ref is resolved once, on the driver, and the executors receive the version. A branch or a tag that moves while a
job runs therefore does not affect the job.

Columns and filters are options of the read, because Spark cannot pass them to a Python data source safely. It has
no call for columns. For filters it has `pushFilters`, but Spark 4.3 keeps the filters of one query with the
relation and applies them to the next query: a frame that is used twice silently loses rows. `pushFilters` must
not be implemented here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import Ref
from lance_dagster.spark.spark_schema import arrow_for_spark, batch_rows, row_bytes, to_spark_batch
from lance_dagster.table import LanceTable

# Spark's own file sources split at 128 MiB of compressed files. A task of this source decodes in a Python process, so
# smaller tasks keep all cores busy to the end.
_SPLIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The description of a read: a version of a table, columns of it, and a filter of its rows."""

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
        ref: Ref = "main",
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
    ) -> Self:
        """Resolve a ref, and check the columns and the filter against the version it names.

        Raises:
            RefNotFoundError: There is no such ref.
            InvalidInputError: A column does not exist or is named twice, no column is named, or Lance cannot
                parse the filter.
        """
        version = table.at(ref)
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
            version=str(version),
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
        # Lance parses the filter only when the schema of the scan is requested. Without this, an error would come
        # from an executor, in the middle of the job.
        _ = scanner.projected_schema
    except (ValueError, OSError) as error:
        # Lance appends the location in its own source code, which does not help the caller.
        problem = str(error).partition("\n")[0].partition(", /")[0]
        raise InvalidInputError(f"cannot evaluate the filter {scan.filter!r}: {problem}") from error


@dataclass(frozen=True, slots=True)
class FragmentRows:
    """The rows of one fragment with offsets from `start` to before `stop`; the whole fragment when `stop` is None.

    Offsets count deleted rows too.
    """

    fragment: int
    start: int = 0
    stop: int | None = None


class LancePartition(InputPartition):
    """The pieces that one task reads."""

    def __init__(self, pieces: Sequence[FragmentRows]) -> None:
        """Keep the pieces."""
        super().__init__(None)
        self.pieces = tuple(pieces)


class LanceReader(DataSourceReader):
    """Read one scan, in tasks of about 32 MiB of the columns that it reads."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        """Keep the scan, and the Spark schema in which its rows are returned."""
        self._scan = scan
        self._expected = arrow_for_spark(schema)

    def partitions(self) -> list[LancePartition]:
        """Split large fragments and group small ones, into partitions of about the same size."""
        # In order of the fragments and without looking ahead: rows that were written together stay together, which
        # keeps a table that is sorted by a column nearly sorted in the frame.
        groups: list[list[FragmentRows]] = [[]]
        filled = 0.0
        for piece, size in self._pieces():
            if groups[-1] and filled + size > _SPLIT_BYTES:
                groups.append([])
                filled = 0.0
            groups[-1].append(piece)
            filled += size
        return [LancePartition(group) for group in groups]

    def _pieces(self) -> Iterator[tuple[FragmentRows, float]]:
        """Yield each piece with the estimated bytes of the scan's columns in it.

        A fragment knows the size of its files, but not of each column; the types of the columns give their share.
        """
        scan = self._scan
        share = row_bytes(scan.schema) / scan.table_row_bytes
        dataset = LanceTable.open(scan.uri, scan.storage_options).to_lance(scan.version)
        for fragment in dataset.get_fragments():
            rows = fragment.physical_rows
            # pylance does not know the size of a file in manifests of early releases, hence the estimate by rows.
            known = sum(file.file_size_bytes or 0 for file in fragment.data_files())
            size = share * (known or rows * scan.table_row_bytes)
            cuts = max(1, round(size / _SPLIT_BYTES))
            if cuts == 1:
                yield FragmentRows(fragment.fragment_id), size
                continue
            for cut in range(cuts):
                yield FragmentRows(fragment.fragment_id, rows * cut // cuts, rows * (cut + 1) // cuts), size / cuts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; runs on an executor."""
        # Spark's contract has a partition of any class here; a table without rows has one partition without pieces.
        if not isinstance(partition, LancePartition) or not partition.pieces:
            return
        scan = self._scan
        dataset = LanceTable.open(scan.uri, scan.storage_options).to_lance(scan.version)
        rows = batch_rows(scan.schema)
        for fragments, condition in _scans(partition.pieces, scan.filter):
            scanner = dataset.scanner(
                columns=scan.schema.names,
                filter=condition,
                # The fragments of a version never change, so none is missing.
                fragments=[dataset.get_fragment(number) for number in fragments],  # type: ignore[misc]
                batch_size=rows,
            )
            for batch in scanner.to_batches():
                yield to_spark_batch(batch, self._expected)


def _scans(pieces: Sequence[FragmentRows], filter: str | None) -> Iterator[tuple[list[int], str | None]]:
    """Yield the fragments and the filter of each scan that the pieces need; whole fragments share one scan."""
    whole = [piece.fragment for piece in pieces if piece.stop is None]
    if whole:
        yield whole, filter
    for piece in pieces:
        if piece.stop is not None:
            # A row address is the fragment id and the row offset, so Lance reads a range of them without the rows
            # before it. `offset` and `limit` of a scan would not do: they count live rows after the filter.
            first = piece.fragment << 32
            place = f"_rowaddr >= {first + piece.start} AND _rowaddr < {first + piece.stop}"
            yield [piece.fragment], place if filter is None else f"({filter}) AND {place}"
