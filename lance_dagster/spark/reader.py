"""Read the rows of exactly one version on Spark's executors, in tasks of about the same size.

A ref is resolved once, on the driver, and the executors receive the version. A branch or a tag that moves while a
job runs therefore does not affect the job.

Columns and filters are options of the read, because Spark cannot pass them to a Python data source safely. It has
no call for columns. For filters it has `pushFilters`, but Spark 4.3 keeps the filters of one query with the
relation and applies them to the next query: a frame that is used twice silently loses rows. `pushFilters` must
not be implemented here.

Nor can a function in Python tell Spark the size of what it returns. Spark takes that to be the size of what the
function is given, and broadcasts a side of a join that it takes to be small. The frame of a scan therefore begins with
a range of as many numbers as have the size of the rows, of which a filter leaves one for each task. That takes some
milliseconds, so actions without a join do without it, and so do tables of less than a mebibyte: it is right to
broadcast these, and Spark may take them for even smaller tables.
"""

import functools
import itertools
import math
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from lance_dagster.datafiles import query_errors, reading_errors
from lance_dagster.errors import InvalidInputError, StoreError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import Ref, TableContext, open_context
from lance_dagster.history.versions import State
from lance_dagster.spark.piece_rows import PieceReader
from lance_dagster.spark.spark_schema import (
    aligned_rows,
    arrow_for_spark,
    batch_rows,
    names_in_table,
    readable_schema,
    row_bytes,
    to_spark_batch,
)
from lance_dagster.spark.worker import begin_task
from lance_dagster.table import LanceTable

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset

ROW_ID, ROW_ADDRESS = "_rowid", "_rowaddr"
_ROW_VERSIONS = ("_row_created_at_version", "_row_last_updated_at_version")
# The columns that Lance has of every row beside the columns of the table; Spark's largest whole number holds them all.
ROW_COLUMNS = (ROW_ID, ROW_ADDRESS, *_ROW_VERSIONS)
# Spark's own file sources split at 128 MiB of compressed files. A task of this source decodes in a Python process, so
# smaller tasks keep all cores busy to the end.
SPLIT_BYTES = 32 * 1024 * 1024
# What opening a fragment costs, as bytes that are read in the same time. Ten thousand fragments of one row are then
# many tasks and not one.
_FRAGMENT_BYTES = 256 * 1024
# Several batches are in memory at once, in Lance and on their way to Spark; larger ones are also decoded more slowly.
_BATCH_BYTES = 4 * 1024 * 1024
# Lance reads and decodes a range of a fragment as a whole. Wide rows are read faster in large ranges. Under a filter,
# ranges without a row that passes are not read, so small ones read less.
_RANGE_BYTES = 24 * 1024 * 1024
_FILTERED_RANGE_BYTES = 12 * 1024 * 1024
# A row in Spark has so many bytes for each column, and as many besides. A number of a range has as many.
_CELL_BYTES = 8
# The exponent of the most numbers for each task: two million, which take 4 ms. Spark then takes each task for 16 MiB,
# and the default limit for a broadcast is 10 MiB.
_MOST_NUMBERS = 21
# Sizes from which Spark gets to know them. Less is worth a broadcast always.
_SIZED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The description of a read: a version of a table, columns of it, and a filter of its rows.

    Attributes:
        uri: The table.
        version: The version, such as `main@3`.
        commit_id: The id of the version, which another table at the same place does not have.
        schema: The columns.
        table_row_bytes: The estimated size of a row with all columns.
        filter: A condition in Lance's SQL.
        limit: The largest number of rows that a task needs to return; None for all.
        rows: The number of rows of the version, without the filter.
        addressed: Whether the address of each row is returned as well, as the last column.
        storage_options: The storage options of the table.
    """

    uri: str
    version: str
    commit_id: str = ""
    schema: pa.Schema
    table_row_bytes: int
    filter: str | None
    limit: int | None = None
    rows: int = 0
    addressed: bool = False
    storage_options: Mapping[str, str] = field(repr=False)

    @classmethod
    def plan(
        cls,
        table: LanceTable,
        ref: Ref = "main",
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        exact: bool = False,
    ) -> Self:
        """Resolve a ref, and check the columns and the filter against the version it names.

        Columns are found whatever the case of their names, unless `exact`: with `spark.sql.caseSensitive`.

        Raises:
            RefNotFoundError: There is no such ref.
            InvalidInputError: A column does not exist or is named twice, no column is named, the table does not keep
                the versions of rows that are named, or Lance cannot parse the filter.
        """
        version = table.at(ref)
        table_schema = table.schema(version)
        chosen = table_schema.names if columns is None else list(string_list("columns", columns, "id"))
        for name in ROW_COLUMNS:
            if name in chosen and name not in table_schema.names:
                table_schema = table_schema.append(pa.field(name, pa.int64()))
        if not exact:
            chosen = names_in_table(chosen, table_schema.names)
        missing = [name for name in chosen if name not in table_schema.names]
        if missing:
            raise InvalidInputError(
                f"no column {', '.join(map(repr, missing))} in {table.uri} at {version}; "
                f"it has {', '.join(table.schema(version).names)}, and of each row {', '.join(ROW_COLUMNS)}"
            )
        if not chosen or len(set(chosen)) < len(chosen):
            raise InvalidInputError(f"name at least one column, and each once; given: {', '.join(chosen) or 'none'}")
        scan = cls(
            uri=table.uri,
            version=str(version),
            commit_id=version.id,
            rows=version.rows,
            schema=pa.schema([table_schema.field(name) for name in chosen]),
            table_row_bytes=row_bytes(table_schema),
            filter=filter,
            storage_options=table.storage_options,
        )
        scan._check_row_versions(table.schema(version).names)
        if filter is not None:
            check_filter(scan)
        return scan

    def _check_row_versions(self, own: Sequence[str]) -> None:
        """Refuse the versions of rows where Lance does not keep them, and would return 1 for every row.

        Raises:
            InvalidInputError: They are read of such a table.
        """
        named = [name for name in _ROW_VERSIONS if name in self.schema.names and name not in own]
        if not named:
            return
        _, state, _ = _opened(self.uri, self.version, self.commit_id, frozenset(self.storage_options.items()))
        if not state.manifest.stable_row_ids:
            raise InvalidInputError(
                f"{self.uri} has no column {named[0]!r}: Lance keeps the versions of rows only in tables that were "
                "created with stable row ids, as those of lance_dagster are"
            )

    def narrowed(self, columns: Sequence[str], filter: str | None, limit: int | None) -> Self:
        """Return a read of some of the columns, of the rows for which a further condition is true as well."""
        conditions = [condition for condition in (self.filter, filter) if condition is not None]
        return replace(
            self,
            schema=pa.schema([self.schema.field(name) for name in columns]),
            filter=" AND ".join(f"({condition})" for condition in conditions)
            if len(conditions) > 1
            else next(iter(conditions), None),
            limit=limit,
        )

    def dataset(self, fragments: Iterable[int] = ()) -> "LanceDataset":
        """Open the version with pylance, to read the rows of some fragments; see `opened`."""
        return opened(self.uri, self.version, self.commit_id, self.storage_options, fragments=fragments)


def opened(
    uri: str, version: str, commit_id: str, storage_options: Mapping[str, str], *, fragments: Iterable[int]
) -> "LanceDataset":
    """Open a version with pylance, to read the rows of some fragments; a worker keeps the last versions open.

    A damaged deletion file can end the process that reads it with pylance, so the deletion files of these fragments are
    decoded here first, each once in a worker. Deletion files of other fragments are not read: each of many workers
    reads a part of the table.

    Raises:
        StoreError: There is no table at the path on this machine, though there was one where the read was planned.
        CorruptFileError: A deletion file is damaged.
    """
    context, state, dataset = _opened(uri, version, commit_id, frozenset(storage_options.items()))
    context.check_before_reading(state, fragments)
    return dataset


@functools.lru_cache(maxsize=2)
def _opened(
    uri: str, version: str, _commit_id: str, options: frozenset[tuple[str, str]]
) -> "tuple[TableContext, State, LanceDataset]":
    context = open_context(uri, dict(options))
    if not context.versions.has_versions(MAIN):
        raise StoreError(
            f"the executor on {socket.gethostname()} finds no table at {uri}; a table that several machines read has "
            "to be on object storage or on a file system that all of them mount at the same path"
        )
    state = context.at(version)
    return context, state, context.dataset(state, ())


def check_filter(scan: Scan) -> None:
    """Refuse a filter that Lance cannot evaluate.

    Raises:
        InvalidInputError: The filter is wrong; the message has Lance's reason.
    """
    dataset = scan.dataset()
    with query_errors(scan.filter, scan.uri) as condition:
        scanner = dataset.scanner(columns=scan.schema.names, filter=condition)
        # Lance parses the filter only when the schema of the scan is requested. Without this, an error would come
        # from an executor, in the middle of the job.
        _ = scanner.projected_schema


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


@dataclass(frozen=True, slots=True)
class FragmentSize:
    """The number of rows of a fragment, deleted ones included, and the size of its files."""

    fragment: int
    rows: int
    bytes: int


def fragment_sizes(scan: Scan) -> tuple[FragmentSize, ...]:
    """Return the sizes of the fragments of the version that is read."""
    # pylance does not know the size of a file in manifests of early releases, hence the estimate by rows.
    return tuple(
        FragmentSize(
            fragment.fragment_id,
            rows := fragment.physical_rows,
            sum(file.file_size_bytes or 0 for file in fragment.data_files()) or rows * scan.table_row_bytes,
        )
        for fragment in scan.dataset().get_fragments()
    )


def partition_pieces(scan: Scan, sizes: Sequence[FragmentSize]) -> list[list[FragmentRows]]:
    """Split large fragments and group small ones, into partitions that take about the same time.

    Fragments are not split where rows are filtered: each task would look for the rows that match in the whole fragment.
    """
    share = _share(scan)
    if scan.filter is not None:
        context, state, _ = _opened(scan.uri, scan.version, scan.commit_id, frozenset(scan.storage_options.items()))
        fragments = context.matching_fragments(state, scan.filter)
        matching = {size.fragment for size in sizes} if fragments is None else frozenset(fragments)
        sizes = [size for size in sizes if size.fragment in matching]
    # In order of the fragments and without looking ahead: rows that were written together stay together, which
    # keeps a table that is sorted by a column nearly sorted in the frame.
    groups: list[list[FragmentRows]] = [[]]
    filled = 0.0
    for size in sizes:
        cuts = 1 if scan.filter is not None else max(1, round(share * size.bytes / SPLIT_BYTES))
        cost = share * size.bytes / cuts + _FRAGMENT_BYTES
        for cut in range(cuts):
            if groups[-1] and filled + cost > SPLIT_BYTES:
                groups.append([])
                filled = 0.0
            stop = None if cuts == 1 else size.rows * (cut + 1) // cuts
            groups[-1].append(FragmentRows(size.fragment, size.rows * cut // cuts, stop))
            filled += cost
    return [group for group in groups if group]


def _share(scan: Scan) -> float:
    """Estimate by their types the share of the columns in the size of the files, which record no size of a column."""
    return row_bytes(scan.schema) / scan.table_row_bytes


def scan_frame(
    spark: SparkSession,
    scan: Scan,
    sizes: Sequence[FragmentSize],
    name: str,
    *,
    tasks_of: Scan | None = None,
    sized: bool = True,
) -> DataFrame:
    """Return a lazy frame of a scan, which Spark computes with the tasks that are planned now.

    The frame is a range of task numbers that `mapInArrow` replaces by rows. Spark carries rows to and from this
    function in fewer steps than a Python data source takes.

    Args:
        spark: A classic or Spark Connect session.
        scan: The rows and columns.
        sizes: The fragments.
        name: The name of the function in Spark's plans.
        tasks_of: A scan of more rows or columns, whose division into tasks this scan takes over.
        sized: Whether Spark needs the size, as for a join.
    """
    groups = partition_pieces(tasks_of or scan, sizes)
    schema = readable_schema(scan.schema)
    if scan.addressed:
        schema = StructType([*schema.fields, StructField(ROW_ADDRESS, LongType())])
    tasks = max(1, len(groups))
    # A power of two, so that Spark compiles few different filters.
    step = 1 << _numbers_exponent(scan, sizes, tasks) if sized else 1
    task = functools.partial(_read_groups, scan, dict(zip(itertools.count(0, step), groups, strict=False)), schema)
    # Spark names the function in plans, and `narrowed` finds the scan by this name.
    task.__name__ = name  # type: ignore[attr-defined]
    numbers = spark.range(0, len(groups) * step, 1, tasks)
    if step > 1:
        numbers = numbers.where(f"(id & {step - 1}L) = 0")
    return numbers.mapInArrow(task, schema)


def _numbers_exponent(scan: Scan, sizes: Sequence[FragmentSize], tasks: int) -> int:
    """Return how many numbers Spark gets for each task, as the exponent of 2: they have about the size of its rows."""
    stored = sum(size.bytes for size in sizes) * _share(scan)
    # Files may be compressed, and values may be wide.
    numbers = max(scan.rows * (len(scan.schema) + 1), stored / _CELL_BYTES)
    if numbers * _CELL_BYTES < _SIZED_BYTES:
        return 0
    return min(_MOST_NUMBERS, round(math.log2(max(1, numbers / tasks))))


def _read_groups(
    scan: Scan, groups: Mapping[int, Sequence[FragmentRows]], schema: StructType, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tasks with these numbers; runs on an executor."""
    begin_task()
    expected = arrow_for_spark(schema)
    for batch in numbers:
        for number in batch.column(0):
            yield from read_pieces(scan, groups[int(number.as_py())], expected)


def read_pieces(scan: Scan, pieces: Sequence[FragmentRows], expected: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some pieces, in the types that Spark expects, and not more of them than the limit."""
    width = row_bytes(scan.schema)
    rows_at_once = aligned_rows(max(1, min(batch_rows(scan.schema), _BATCH_BYTES // width)))
    batches_at_once = max(1, (_FILTERED_RANGE_BYTES if scan.filter else _RANGE_BYTES) // (width * rows_at_once))
    reader = PieceReader(
        dataset=scan.dataset({piece.fragment for piece in pieces}),
        columns=tuple(scan.schema.names),
        filter=scan.filter,
        limit=scan.limit,
        addressed=scan.addressed,
        batch_rows=rows_at_once,
        # A range that is not a multiple of a batch would end with a small batch.
        range_rows=rows_at_once * batches_at_once,
    )
    what = "read the columns" if scan.filter is None else f"evaluate the filter {scan.filter!r}"
    with reading_errors(what, scan.uri):
        # Before they are joined: dictionaries of several batches may have too many values for one dictionary.
        converted = (to_spark_batch(batch, expected) for batch in _limited(_batches(reader, pieces), scan.limit))
        yield from _joined(converted, rows_at_once)


def _limited(batches: Iterator[pa.RecordBatch], room: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first rows, and ask for no further batch."""
    for batch in batches:
        rows = batch if room is None else batch.slice(0, room)
        yield rows
        room = None if room is None else room - rows.num_rows
        if room == 0:
            return


def _joined(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: each batch takes Spark time, and each fragment gives at least one batch."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > most:
            yield _concatenated(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield _concatenated(waiting)


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        # It would be copied all the same.
        return batches[0]
    # The stubs of pyarrow do not know this function.
    joined: pa.RecordBatch = pa.concat_batches(list(batches))  # type: ignore[attr-defined]
    return joined


def _batches(reader: PieceReader, pieces: Sequence[FragmentRows]) -> Iterator[pa.RecordBatch]:
    yield from reader.whole([piece.fragment for piece in pieces if piece.stop is None])
    for piece in pieces:
        if piece.stop is not None:
            yield from reader.between(piece.fragment, piece.start, piece.stop)


class LanceReader(DataSourceReader):
    """Read one scan through Spark's interface for Python data sources."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        """Keep the scan, and the Spark schema in which its rows are returned."""
        self._scan = scan
        self._expected = arrow_for_spark(schema)

    def partitions(self) -> list[LancePartition]:
        """Return partitions of about the same size."""
        # Spark makes a partition without a value where there is none.
        return [LancePartition(group) for group in partition_pieces(self._scan, fragment_sizes(self._scan))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; runs on an executor."""
        # Spark's contract has a partition of any class here; a table without rows has one partition without pieces.
        if isinstance(partition, LancePartition):
            begin_task()
            yield from read_pieces(self._scan, partition.pieces, self._expected)
