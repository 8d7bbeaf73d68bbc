"""Handlers that convert between the values that assets return or take and the rows of a table.

There is one handler for each library. All of them convert through Arrow, except Spark's: Spark's executors
write and read the data files themselves, so no row passes through the process of the step.

A handler looks its library up in `sys.modules` and never imports it to recognise a value: a frame can only
exist when its library is loaded, and an import of a large library costs seconds.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import RowTally
from lance_dagster.datafiles.writing import StagedFiles, WriteTarget
from lance_dagster.edit.staged_upsert import StagedUpsert
from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin.resource import PinnedTable, SparkResource
from lance_dagster.table import LanceTable

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SparkRows:
    """The rows of a Spark frame, which are computed when they are staged or read."""

    frame: "DataFrame"

    def schema(self, current: pa.Schema, vectors: Mapping[str, int]) -> pa.Schema:
        """Return the frame's columns, with the types of a table where the frame's values fit them."""
        from lance_dagster.spark.spark_schema import replacement_schema

        return replacement_schema(self.frame.schema, current, vectors)

    def named_as(self, current: pa.Schema) -> "SparkRows":
        """Return the rows with the names that a table has for their columns; upper and lower case are as Spark says."""
        from lance_dagster.spark.writer import with_table_names

        return SparkRows(with_table_names(self.frame, current))

    def stage(self, target: WriteTarget, tally: RowTally) -> StagedFiles:
        """Compute the frame on the executors, which count its rows and write them as data files."""
        from lance_dagster.spark.writer import stage_counted

        return stage_counted(self.frame, target, tally)

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


Rows = pa.Table | pa.RecordBatchReader | StagedFiles | SparkRows
"""The rows of an output: in memory, as a stream, in files of the table, or where Spark's executors compute them."""


# For a date beyond the year 9999, a long duration, or a time zone that is not known.
_NO_OBJECT = (OverflowError, ValueError, LookupError)
_EXACT_IN_DOUBLES = 2**53


class FrameHandler(Protocol):
    """Convert the values of one library to rows, and rows to such a value."""

    def accepts(self, kind: type) -> bool:
        """Return whether this handler converts values of a type."""
        ...

    def schema(self, value: Any, vectors: Mapping[str, int]) -> pa.Schema:  # noqa: ANN401
        """Return the schema of a table that is created for this value."""
        ...

    def rows(self, value: Any) -> Rows:  # noqa: ANN401
        """Return the rows of a value, in its own columns and types."""
        ...

    def load(self, view: PinnedTable, kind: type) -> object:
        """Return the rows of a view as a value of this type."""
        ...


def in_python(rows: pa.Table, library: str, convert: Callable[[pa.Table], object]) -> object:
    """Convert rows to a value of Python or of a library that has fewer dates, times and durations than Arrow.

    Raises:
        InvalidInputError: A value cannot be converted; the error names its column.
    """
    try:
        return convert(rows)
    except _NO_OBJECT as error:
        for name in rows.schema.names:
            try:
                convert(rows.select([name]))
            except _NO_OBJECT:
                kind = rows.schema.field(name).type
                raise InvalidInputError(
                    f"{library} cannot hold a value of column {name!r}, which is {kind}: {error}; annotate the input "
                    "as pyarrow.Table, or leave the column out by lance/columns"
                ) from error
        raise


class ArrowFrames:
    """Handle `pyarrow.Table`, `pyarrow.RecordBatch` (outputs only) and `pyarrow.RecordBatchReader` (streamed)."""

    def accepts(self, kind: type) -> bool:
        """Return whether the type is one of these three classes of Arrow."""
        return issubclass(kind, (pa.Table, pa.RecordBatch, pa.RecordBatchReader))

    def schema(self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader, vectors: Mapping[str, int]) -> pa.Schema:
        """Return the value's schema, in which vector columns are lists of a fixed size."""
        return with_vectors(value.schema, vectors)

    def rows(self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
        """Return the value; a stream is not read into memory."""
        return pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value

    def load(self, view: PinnedTable, kind: type) -> object:
        """Return a table in memory, or a stream of batches."""
        if issubclass(kind, pa.RecordBatch):
            raise InvalidInputError(
                "rows cannot be read as one pyarrow.RecordBatch; annotate the input as pyarrow.Table or "
                "pyarrow.RecordBatchReader"
            )
        return view.scan() if issubclass(kind, pa.RecordBatchReader) else view.read()


class PandasFrames:
    """Handle `pandas.DataFrame`. Index levels with a name become columns; integers without a name are dropped."""

    def accepts(self, kind: type) -> bool:
        """Return whether the type is a pandas frame."""
        pandas = sys.modules.get("pandas")
        return pandas is not None and issubclass(kind, pandas.DataFrame)

    def schema(self, value: Any, vectors: Mapping[str, int]) -> pa.Schema:  # noqa: ANN401
        """Return the schema that Arrow infers from the frame; without rows, its doubles and objects have type null.

        pandas gives these types to columns that are made without a value.
        """
        schema = self._arrow(value).schema
        if len(value) == 0:
            schema = pa.schema(
                [field.with_type(pa.null()) if field.type == pa.float64() else field for field in schema]
            )
        return with_vectors(schema, vectors)

    def rows(self, value: Any) -> pa.Table:  # noqa: ANN401
        """Return the frame as an Arrow table, in which a column without a value has the type null.

        pandas has no type for such a column: it holds objects or floats, whatever it is meant to hold.
        Null fits every type that a table can have.
        """
        table = self._arrow(value)
        for index, column in enumerate(table.columns):
            if column.null_count == table.num_rows:
                table = table.set_column(index, table.schema.names[index], pa.nulls(table.num_rows))
        return table

    def load(self, view: PinnedTable, kind: type) -> object:  # noqa: ARG002
        """Return a pandas frame in memory."""
        return in_python(view.read(), "pandas", self._frame)

    def _frame(self, rows: pa.Table) -> Any:  # noqa: ANN401
        frame: Any = rows.to_pandas()
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            # pandas holds integers with a null as doubles, which round large integers.
            if column.null_count and pa.types.is_integer(column.type) and _are_rounded(column):
                frame[name] = column.to_pandas(types_mapper=_nullable_integers)
        return frame

    def _arrow(self, value: Any) -> pa.Table:  # noqa: ANN401
        if not len(value.columns) and all(name is None for name in value.index.names):
            refuse_rows_without_columns(len(value))
        named = any(name is not None and name not in value.columns for name in value.index.names)
        # A level that is a column as well, as after `set_index(drop=False)`, has its values stored already.
        for level in [name for name in value.index.names if named and name in value.columns]:
            value = value.reset_index(level=level, drop=True)
        if not named:
            _refuse_values_in_index(value.index)
        # Arrow adds a JSON description of the frame to the schema's metadata. It would become metadata of the
        # table, where it changes with every frame.
        try:
            return pa.Table.from_pandas(value, preserve_index=named).replace_schema_metadata(None)
        except (pa.ArrowException, ValueError, TypeError) as error:
            # The first argument of Arrow's error says what is wrong, and the second argument names the column.
            reason = "; ".join(map(str, error.args))
            raise InvalidInputError(
                f"the pandas frame cannot be stored: {reason}; give each column one type that Arrow knows, and a name "
                "of its own"
            ) from error


def _refuse_values_in_index(index: Any) -> None:  # noqa: ANN401  # an index of pandas
    """Refuse an index without a name whose values would be lost; integers are the places of rows.

    Raises:
        InvalidInputError: A level holds other values.
    """
    levels = [index.get_level_values(place) for place in range(index.nlevels)]
    lost = next((level for level in levels if level.name is None and level.dtype.kind not in "iu"), None)
    if lost is not None and len(lost):
        raise InvalidInputError(
            f"the index of the pandas frame has no name, so its values, such as {lost[0]!r}, would not be stored; name "
            'it by frame.rename_axis("at") to store it as a column, or drop it by frame.reset_index(drop=True)'
        )


def _are_rounded(integers: "pa.ChunkedArray[Any]") -> bool:
    """Return whether doubles round any of the integers."""
    bounds: Any = pc.call_function("min_max", [integers])
    return any(abs(bounds[end].as_py() or 0) > _EXACT_IN_DOUBLES for end in ("min", "max"))


def _nullable_integers(kind: pa.DataType) -> Any:  # noqa: ANN401 - a type of pandas
    """Return the type of pandas that holds integers and nulls."""
    import pandas as pd

    return pd.UInt64Dtype() if pa.types.is_unsigned_integer(kind) else pd.Int64Dtype()


class PolarsFrames:
    """Handle `polars.DataFrame` and `polars.LazyFrame`.

    A lazy frame is read batch by batch, and only the columns that its plan uses. `Enum` and `Categorical` columns are
    stored as text and read as `String`.
    """

    def accepts(self, kind: type) -> bool:
        """Return whether the type is one of these two classes of Polars."""
        polars = sys.modules.get("polars")
        return polars is not None and issubclass(kind, (polars.DataFrame, polars.LazyFrame))

    def schema(self, value: "pl.DataFrame | pl.LazyFrame", vectors: Mapping[str, int]) -> pa.Schema:
        """Return the frame's schema in Arrow's ordinary types; computes no row of a lazy frame."""
        # An empty frame gives Arrow the schema, so the plan of a lazy frame is not run.
        empty = value.lazy().collect_schema().to_frame()
        return with_vectors(_ordinary(empty.to_arrow()).schema, vectors)

    def rows(self, value: "pl.DataFrame | pl.LazyFrame") -> pa.Table | pa.RecordBatchReader:
        """Return the frame as an Arrow table; a lazy frame as a stream that computes it batch by batch."""
        import polars as pl

        if isinstance(value, pl.DataFrame):
            return _ordinary(value.to_arrow())
        schema = self.schema(value, {})
        frames = value.collect_batches(lazy=True)
        parts = (batch for frame in frames for batch in frame.to_arrow().cast(schema).to_batches())
        return pa.RecordBatchReader.from_batches(schema, parts)

    def load(self, view: PinnedTable, kind: type) -> object:
        """Return a frame in memory, or a lazy frame over the pinned version."""
        import polars as pl

        if issubclass(kind, pl.LazyFrame):
            return _lazy_frame(view)
        return pl.from_arrow(view.read())


class SparkFrames:
    """Handle `pyspark.sql.DataFrame`, classic or Connect, whose rows the executors write and read."""

    def __init__(self, spark: SparkResource | None = None) -> None:
        """Keep the resource that starts a session when none is active."""
        self._spark = spark

    def accepts(self, kind: type) -> bool:
        """Return whether the type is a Spark frame, classic or Connect."""
        spark = sys.modules.get("pyspark.sql")
        # This is the parent class of classic and Connect frames. Importing the class of Connect frames would need
        # the optional packages of Connect.
        return spark is not None and issubclass(kind, spark.DataFrame)

    def schema(self, value: "DataFrame", vectors: Mapping[str, int]) -> pa.Schema:
        """Return the frame's schema in Arrow's types."""
        from lance_dagster.spark.spark_schema import target_schema

        return target_schema(value.schema, vectors)

    def rows(self, value: "DataFrame") -> SparkRows | pa.Table:
        """Return the frame without computing it, unless it has no columns."""
        if value.columns:
            return SparkRows(value)
        refuse_rows_without_columns(0 if value.isEmpty() else value.count())
        return pa.table({})

    def load(self, view: PinnedTable, kind: type) -> object:  # noqa: ARG002
        """Return a lazy Spark frame, in the active session if there is one."""
        from pyspark.sql import SparkSession

        from lance_dagster.spark.session import local_session

        active = SparkSession.getActiveSession()
        if active is None:
            active = self._spark.session if self._spark else local_session()
        return view.spark(active)


class StagedFrames:
    """Handle `StagedFiles`: data files that an asset wrote with Spark's `stage` or with `write_files`."""

    def accepts(self, kind: type) -> bool:
        """Return whether the type is `StagedFiles`."""
        return issubclass(kind, StagedFiles)

    def schema(self, value: StagedFiles, vectors: Mapping[str, int]) -> pa.Schema:  # noqa: ARG002
        """Return the schema the files were written with."""
        return value.schema

    def rows(self, value: StagedFiles) -> StagedFiles:
        """Return the files as they are: they are on storage already."""
        return value

    def load(self, view: PinnedTable, kind: type) -> object:
        """Refuse, because staged files describe a write and cannot hold the rows of a version."""
        raise InvalidInputError(f"{view.ref} of {view.table.uri} cannot be read as {kind.__name__}")


def refuse_rows_without_columns(rows: int) -> None:
    """Refuse rows that hold nothing: a data file could not even record their number.

    Raises:
        InvalidInputError: There are such rows.
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


def _ordinary(table: pa.Table) -> pa.Table:
    """Return a table without Polars' own metadata, in the types that the other engines write.

    Polars uses Arrow's large and view types. An asset that changes from pandas to Polars would otherwise have a schema
    that differs from its table.
    """
    fields = [pa.field(field.name, _ordinary_type(field.type), field.nullable) for field in table.schema]
    return table.cast(pa.schema(fields))


def _ordinary_type(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, (pa.ListType, pa.LargeListType)):
        return pa.list_(_ordinary_type(arrow.value_type))
    if isinstance(arrow, pa.FixedSizeListType):
        return pa.list_(_ordinary_type(arrow.value_type), arrow.list_size)
    if isinstance(arrow, pa.StructType):
        return pa.struct([pa.field(field.name, _ordinary_type(field.type), field.nullable) for field in arrow])
    # The other engines do not write dictionary types, so `Enum` and `Categorical` are stored as text.
    if isinstance(arrow, pa.DictionaryType):
        return _ordinary_type(arrow.value_type)
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow) else arrow


def _lazy_frame(view: PinnedTable) -> "pl.LazyFrame":
    import polars as pl
    from polars.io.plugins import register_io_source

    def batches(
        columns: list[str] | None, predicate: "pl.Expr | None", rows: int | None, size: int | None
    ) -> Iterator["pl.DataFrame"]:
        # Polars allows a source to ignore this hint: Lance chooses the size of its batches.
        del size
        remaining = rows
        for batch in view.scan(columns):
            frame = cast("pl.DataFrame", pl.from_arrow(batch))
            # Polars' expressions have no exact counterpart in Lance's SQL, so batches are filtered here.
            if predicate is not None:
                frame = frame.filter(predicate)
            # The limit counts rows after the filter.
            if remaining is not None:
                frame = frame.head(remaining)
                remaining -= frame.height
            yield frame
            if remaining == 0:
                return

    names = view.columns if view.columns is not None else view.schema.names
    empty = cast("pl.DataFrame", pl.from_arrow(view.schema.empty_table().select(list(names))))
    return register_io_source(batches, schema=empty.schema)
