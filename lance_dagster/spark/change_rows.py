"""Read on Spark's executors the rows in which two versions of a table differ.

The driver compares manifests and finds where the rows are: offsets in fragments of the older or the newer version. It
calls `Diff.differing_rows` for this, which reads no row where rows were only appended or whole fragments replaced. The
executors read the values, in tasks of about the same size.

Example: `main@4` deleted the row at offset 7 of fragment 0 and appended fragment 2 with 1,000 rows. The parts are one
row of `main@3`, a "delete", and the rows 0 to 999 of fragment 2 in `main@4`, each an "insert".
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_dagster.datafiles import Addresses, offsets_by_fragment, scan_fragment
from lance_dagster.diff.row_comparison import RowDifferences
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import check_class
from lance_dagster.history.context import Ref, open_context
from lance_dagster.history.versions import Version
from lance_dagster.spark.older_columns import ColumnHistory, OlderColumn
from lance_dagster.spark.reader import SPLIT_BYTES, FragmentRows, Scan, fragment_sizes, read_pieces
from lance_dagster.spark.spark_schema import arrow_for_spark, readable_schema, row_bytes, to_spark_batch
from lance_dagster.spark.worker import begin_task
from lance_dagster.spark.writer import check_session
from lance_dagster.table import LanceTable

ChangeType = Literal["insert", "delete", "update_preimage", "update_postimage"]
CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"
CHANGE_COLUMNS = StructType([StructField(CHANGE_TYPE, StringType()), StructField(COMMIT_VERSION, LongType())])
"""The columns of a change feed, before the columns of the table."""
# The number of rows that are read in the time that the start of a read takes.
_PIECE_ROWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePart:
    """Rows of one fragment of a version that changed in the same way.

    Attributes:
        scan: The version that has the rows, and the columns to read, by their names in that version.
        columns: For each column of `scan`, how it is read, and the column of the frame that gets its values.
        change: The change of the rows, as in the column `_change_type`.
        version: The number of the version that made the change.
        fragment: The fragment that has the rows.
        start: The offset of the first row, where `offsets` is None.
        stop: The offset after the last row, where `offsets` is None.
        offsets: The offsets of the rows as a serialised bitmap; None for all rows from `start` to before `stop`.
    """

    scan: Scan
    columns: tuple[OlderColumn, ...]
    change: ChangeType
    version: int
    fragment: int
    start: int = 0
    stop: int = 0
    offsets: bytes | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start if self.offsets is None else len(BitMap.deserialize(self.offsets))


def read_changes(
    spark: SparkSession, table: LanceTable, before: Ref, after: Ref = "main", *, on: Sequence[str] | None = None
) -> DataFrame:
    """Return a lazy Spark frame of the rows in which two versions differ.

    The frame has the columns of `after`, preceded by `_change_type`, which is "insert", "delete", "update_preimage" or
    "update_postimage", and by `_commit_version`, the number of `after`. This process finds now which rows differ, as
    `table.diff` does; the executors read the rows when the frame is computed.

    Args:
        spark: A classic or Spark Connect session.
        table: The table.
        before: The version to begin with.
        after: The version to arrive at.
        on: The key columns that identify rows; None for row ids, see `LanceTable.diff`.

    Raises:
        RefNotFoundError: There is no such ref.
        InvalidInputError: Two rows have the same key, Spark has no type for a column, or a column of the table has the
            name `_change_type` or `_commit_version`.
        SchemaMismatchError: A column has another type in `before`, and a changed row of `before` has a value that does
            not fit the type in `after`.
    """
    check_session(spark)
    check_class("table", table, LanceTable, "LanceTable.open(uri)")
    older, newer = table.at(before), table.at(after)
    columns = table.schema(newer)
    schema = feed_schema(columns)
    rows = table.diff(older, newer, on=on).differing_rows()
    parts = list(ChangePlan(table, columns, newer).changes(older, newer, rows))
    groups = grouped(parts)
    task = functools.partial(_read_groups, groups, schema)
    return spark.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(task, schema)


def feed_schema(columns: pa.Schema) -> StructType:
    """Return the Spark schema of a change feed of some columns.

    Raises:
        InvalidInputError: Spark has no type for a column, or the column has the name of a column of the feed.
    """
    for name in CHANGE_COLUMNS.names:
        if name in columns.names:
            raise InvalidInputError(
                f"a change feed has a column {name!r}, and so has the table: rename the column of the table, or name "
                "the other columns of a stream with the option columns"
            )
    return StructType([*CHANGE_COLUMNS, *readable_schema(columns)])


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Finds where the changed rows of versions are.

    Attributes:
        table: The table.
        columns: The columns to read, as `schema_version` has them.
        schema_version: The version whose names and types the columns have. Rows of older versions are cast to them.
    """

    table: LanceTable
    columns: pa.Schema
    schema_version: Version

    def snapshot(self, version: Version) -> Iterator[ChangePart]:
        """Yield all rows of a version as inserted rows."""
        scan, columns = self._scan(version)
        # The ranges contain offsets of deleted rows, which the read leaves out.
        for size in fragment_sizes(scan):
            yield from _parts(scan, columns, ("insert", version.number), {size.fragment: BitMap(range(size.rows))})

    def changes(
        self, before: Version, after: Version, rows: RowDifferences, *, images: bool = True
    ) -> Iterator[ChangePart]:
        """Yield the rows that differ between two versions; without `images`, only rows that `after` has."""
        number = after.number
        if images and (rows.removed or len(rows.changed_before)):
            scan, columns = self._scan(before)
            yield from _parts(scan, columns, ("delete", number), rows.removed)
            yield from _parts(scan, columns, ("update_preimage", number), _located(rows.changed_before))
        if rows.added or len(rows.changed_after):
            scan, columns = self._scan(after)
            yield from _parts(scan, columns, ("update_postimage", number), _located(rows.changed_after))
            yield from _parts(scan, columns, ("insert", number), rows.added)

    def columns_of(self, version: Version) -> list[OlderColumn]:
        """Return how to read the columns from an older version; columns that the older version lacks are left out.

        Raises:
            SchemaMismatchError: The values of a column cannot be cast to its type in `schema_version`.
        """
        context = open_context(self.table.uri, dict(self.table.storage_options))
        history = ColumnHistory(context, context.at(str(version)), context.at(str(self.schema_version)))
        own = self.table.schema(version)
        # A column that was added later is null in the rows of earlier versions.
        return [older_column for column in self.columns if (older_column := history.column(own, column)) is not None]

    def _scan(self, version: Version) -> tuple[Scan, tuple[OlderColumn, ...]]:
        """Return the read of a version, and how each of its columns is read.

        Raises:
            SchemaMismatchError: The values of a column cannot be cast to its type in `schema_version`.
        """
        older_columns = self.columns_of(version)
        if not older_columns:
            raise InvalidInputError(f"{version} has none of the columns {', '.join(self.columns.names)}")
        return Scan.plan(self.table, version, columns=[column.name for column in older_columns]), tuple(older_columns)


def grouped(parts: Sequence[ChangePart]) -> list[list[ChangePart]]:
    """Return parts in groups for tasks of about the same size."""
    groups: list[list[ChangePart]] = []
    filled = 0
    for part in parts:
        most = _task_rows(part.scan)
        if not groups or filled + part.rows + _PIECE_ROWS > most:
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += part.rows + _PIECE_ROWS
    return groups


def read_part(part: ChangePart, schema: StructType, *, feed: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part in a Spark schema; with `feed`, it begins with the two columns of a change feed."""
    expected = arrow_for_spark(schema)
    # Values of another type are read as they are, then cast to the type in `schema_version`, then to Spark's type.
    spark = [expected.field(column.column.name).with_name(column.name) for column in part.columns]
    own = pa.schema(
        [
            field if column.is_same else field.with_type(column.stored)
            for field, column in zip(spark, part.columns, strict=True)
        ]
    )
    for batch in _batches(part, own):
        have = {
            column.column.name: _for_spark(column, values, expected)
            for column, values in zip(part.columns, batch.columns, strict=True)
        }
        if feed:
            have[CHANGE_TYPE] = pa.repeat(pa.scalar(part.change), batch.num_rows)
            have[COMMIT_VERSION] = pa.repeat(pa.scalar(part.version, pa.int64()), batch.num_rows)
        columns = [have.get(column.name) for column in expected]
        filled = [
            pa.nulls(batch.num_rows, column.type) if values is None else values
            for values, column in zip(columns, expected, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(filled, schema=expected)


def _for_spark(column: OlderColumn, values: "pa.Array[Any]", expected: pa.Schema) -> "pa.Array[Any]":
    """Return values in the type that Spark expects of a column."""
    field = expected.field(column.column.name)
    if column.is_same:
        return values
    cast = pa.RecordBatch.from_arrays([column.cast(values)], names=[field.name])
    return to_spark_batch(cast, pa.schema([field])).column(0)


def _batches(part: ChangePart, own: pa.Schema) -> Iterator[pa.RecordBatch]:
    if part.offsets is None:
        yield from read_pieces(part.scan, [FragmentRows(part.fragment, part.start, part.stop)], own)
        return
    offsets = BitMap.deserialize(part.offsets)
    for addressed in scan_fragment(part.scan.dataset([part.fragment]), part.fragment, own.names, offsets):
        for batch in addressed.rows.to_batches():
            yield to_spark_batch(batch, own)


def _read_groups(
    groups: Sequence[Sequence[ChangePart]], schema: StructType, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tasks with these numbers; runs on an executor."""
    begin_task()
    for batch in numbers:
        for number in batch.column(0):
            for part in groups[int(number.as_py())]:
                yield from read_part(part, schema, feed=True)


def _parts(
    scan: Scan, columns: tuple[OlderColumn, ...], change: tuple[ChangeType, int], rows: Mapping[int, BitMap]
) -> Iterator[ChangePart]:
    """Yield parts of at most as many rows as one task reads."""
    most = _task_rows(scan)
    for fragment, offsets in sorted(rows.items()):
        part = ChangePart(scan=scan, columns=columns, change=change[0], version=change[1], fragment=fragment)
        lowest, highest = offsets.min(), offsets.max()
        if highest - lowest + 1 == len(offsets):
            # Nearly all changed rows are of this kind: rows of whole new fragments.
            for start in range(lowest, highest + 1, most):
                yield replace(part, start=start, stop=min(start + most, highest + 1))
            continue
        places = offsets.to_array()
        for start in range(0, len(places), most):
            yield replace(part, offsets=BitMap(places[start : start + most]).serialize())


def _task_rows(scan: Scan) -> int:
    return max(1, SPLIT_BYTES // row_bytes(scan.schema))


def _located(addresses: Addresses) -> Mapping[int, BitMap]:
    return offsets_by_fragment(np.sort(addresses))
