"""The rows of an output on their way to data files.

A handler (`frames`) returns the rows of a value as one of these classes, and the write (`outputs`) uses only what all
of them have. So another kind of rows, such as frames of another engine, is one more class here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from lance_dagster.datafiles import RowTally, conform, exact_cast, fits_type, read_data_file
from lance_dagster.datafiles.writing import StagedFiles, WriteTarget, write_files
from lance_dagster.edit.staged_upsert import StagedUpsert
from lance_dagster.errors import InvalidInputError
from lance_dagster.history.versions import Version
from lance_dagster.table import LanceTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Destination(NamedTuple):
    """The asset whose rows are written, the branch of its table, and the newest version of the branch."""

    asset: str
    table: LanceTable
    branch: str
    head: Version

    def target(self, schema: pa.Schema, tally: RowTally) -> WriteTarget:
        """Return where data files are written; each file's bounds of the partition columns are recorded."""
        target = self.table.write_target(schema, self.head)
        return target if tally.scope is None else target.with_ranges(tally.scope.within.columns)


class OutputRows(ABC):
    """The rows of an output."""

    @property
    def in_memory(self) -> pa.Table | None:
        """The rows, where they are in memory; then their values decide how columns change, and not only their types."""
        return None

    @property
    def on_executors(self) -> "SparkRows | None":
        """The rows, where executors match the rows of an upsert; in other cases `keyed` returns them."""
        return None

    def columns(self, schema: pa.Schema, current: pa.Schema, vectors: Mapping[str, int]) -> pa.Schema:  # noqa: ARG002
        """Return the columns of the rows for a table that exists.

        Args:
            schema: The columns of a table that is created for the rows.
            current: The columns of the table.
            vectors: The lengths of the columns that are vectors.
        """
        return schema

    @abstractmethod
    def stage(self, target: Destination, schema: pa.Schema, tally: RowTally) -> StagedFiles:
        """Write the rows, in the columns of a table, to data files that no version names yet, and count them."""

    def keyed(self, target: Destination, schema: pa.Schema, tally: RowTally) -> pa.Table:  # noqa: ARG002
        """Return the rows of an upsert, in the types of a table and in the columns that the rows have; count them.

        Raises:
            InvalidInputError: The values of the rows are not at hand.
        """
        raise InvalidInputError(
            f"{target.asset}: rows are upserted by their values; return Arrow rows or a frame, not StagedFiles"
        )


@dataclass(frozen=True, slots=True)
class ArrowRows(OutputRows):
    """Rows in memory, or as a stream."""

    rows: pa.Table | pa.RecordBatchReader

    @property
    def in_memory(self) -> pa.Table | None:
        """The rows, unless they are a stream."""
        return self.rows if isinstance(self.rows, pa.Table) else None

    def columns(self, schema: pa.Schema, current: pa.Schema, vectors: Mapping[str, int]) -> pa.Schema:
        """Return the columns; unlike for a new table, the table decides the type of columns without a value."""
        if self.in_memory is None:
            return schema
        own = self.rows.schema
        fields = [column if column.name in current.names else schema.field(column.name) for column in own]
        return with_vectors(pa.schema(fields), vectors)

    def stage(self, target: Destination, schema: pa.Schema, tally: RowTally) -> StagedFiles:
        """Convert the rows and write them in this process."""
        place = target.target(schema, tally)
        batches = self._fitted(schema)
        # Rows in memory are converted before a file is begun, so a value that does not fit leaves no file. A stream is
        # converted while it is written.
        fitted = batches if self.in_memory is None else iter(list(batches))
        # They are committed next, so nobody can have changed them.
        return StagedFiles(schema, write_files(place, tally.passing(fitted)), place.base, is_checked=True)

    def keyed(self, target: Destination, schema: pa.Schema, tally: RowTally) -> pa.Table:  # noqa: ARG002
        """Return the rows in memory."""
        rows = pa.Table.from_batches(tally.passing(self._fitted(schema)), schema)
        # Rows that are updated keep their values in columns that the output lacks. A list without a dictionary has no
        # columns at all.
        names = self.rows.schema.names
        return rows.select([name for name in rows.column_names if name in names]) if names else rows

    def _fitted(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns and types of a table; columns that they lack are null."""
        for batch in self.rows.to_batches() if isinstance(self.rows, pa.Table) else self.rows:
            if not batch.num_columns:
                refuse_rows_without_columns(batch.num_rows)
            columns: list[pa.Array[Any]] = []
            for column in schema:
                index = batch.schema.get_field_index(column.name)
                values = pa.nulls(batch.num_rows) if index < 0 else batch.column(index)
                columns.append(values if fits_type(values.type, column.type) else exact_cast(values, column))
            yield conform(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


@dataclass(frozen=True, slots=True)
class FileRows(OutputRows):
    """Rows in data files that the asset wrote itself."""

    staged: StagedFiles

    def stage(self, target: Destination, schema: pa.Schema, tally: RowTally) -> StagedFiles:  # noqa: ARG002
        """Return the files, after their partition columns were read where they lie.

        Raises:
            InvalidInputError: The files are at a place that is not a named base path of the branch.
        """
        if tally.scope is None:
            tally.rows = self.staged.rows
            return self.staged
        names = {base.path: base.name for base in target.table.maintenance.bases(target.branch) if base.name}
        base = self.staged.base
        if base is not None and base not in names:
            raise InvalidInputError(
                f"{target.asset}: files were staged at {base}, which is not a named base path of {target.branch} of "
                f"{target.table.uri}; add_base adds a base path"
            )
        place = target.table.write_target(ref=target.branch, base=names.get(base or ""))
        for file in self.staged.files:
            columns = tally.scope.within.columns
            for batch in read_data_file(f"{place.data_uri}/{file.name}", columns, place.storage_options):
                tally.add(batch)
        return self.staged


@dataclass(frozen=True, slots=True)
class SparkRows(OutputRows):
    """The rows of a Spark frame, which executors compute when they are staged."""

    frame: "DataFrame"

    @property
    def on_executors(self) -> "SparkRows":
        """These rows."""
        return self

    def columns(self, schema: pa.Schema, current: pa.Schema, vectors: Mapping[str, int]) -> pa.Schema:  # noqa: ARG002
        """Return the frame's columns, with the types of a table where the frame's values fit them."""
        from lance_dagster.spark.spark_schema import replacement_schema

        return replacement_schema(self.frame.schema, current, vectors)

    def named_as(self, current: pa.Schema) -> "SparkRows":
        """Return the rows with the names that a table has for their columns; upper and lower case are as Spark says."""
        from lance_dagster.spark.writer import with_table_names

        return SparkRows(with_table_names(self.frame, current))

    def stage(self, target: Destination, schema: pa.Schema, tally: RowTally) -> StagedFiles:
        """Compute the frame on the executors, which count its rows and write them as data files."""
        from lance_dagster.spark.writer import stage_counted

        return stage_counted(self.frame, target.target(schema, tally), tally)

    def stage_upsert(
        self,
        table: LanceTable,
        branch: str,
        on: Sequence[str],
        *,
        schema: pa.Schema,
        when: Mapping[str, Any],
        tally: RowTally,
    ) -> StagedUpsert:
        """Match the rows by key on the executors, which write them.

        Rows that are updated keep their values in columns that the frame lacks; in new rows these are null.

        Args:
            table: The table.
            branch: The branch.
            on: The key columns.
            schema: The columns that the table has when the rows are committed.
            when: The rules of the upsert.
            tally: Has the scope of the rows, and gets their numbers.
        """
        from lance_dagster.spark.keyed_rows import KeyedWrite, stage_upsert_counted

        rules: Any = when
        write = KeyedWrite(table=table, branch=branch, on=on, rules=rules, schema=schema)
        return stage_upsert_counted(self.frame, write, tally)


def refuse_rows_without_columns(rows: int) -> None:
    """Refuse an output that has rows but no columns: a data file cannot record how many rows there are.

    Raises:
        InvalidInputError: There is at least one row.
    """
    if rows:
        raise InvalidInputError(f"the output has {rows} {'row' if rows == 1 else 'rows'} and no columns to store")


def with_vectors(schema: pa.Schema, vectors: Mapping[str, int]) -> pa.Schema:
    """Return a schema in which the named columns are lists of a fixed size.

    Lance builds vector indices only on lists of a fixed size.

    Raises:
        InvalidInputError: A column does not exist, or its type is not a list.
    """
    for name, length in vectors.items():
        index = schema.get_field_index(name)
        # An output without columns or values says nothing about the vectors.
        if not schema.names or (index >= 0 and pa.types.is_null(schema.field(index).type)):
            continue
        if index < 0:
            raise InvalidInputError(f"lance/vectors names {name!r}; the columns are {', '.join(schema.names)}")
        field = schema.field(index)
        if not hasattr(field.type, "value_type"):
            raise InvalidInputError(f"lance/vectors names {name!r}, which is {field.type} and not a list")
        schema = schema.set(index, field.with_type(pa.list_(field.type.value_type, length)))
    return schema
