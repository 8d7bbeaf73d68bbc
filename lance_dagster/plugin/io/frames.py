"""Handlers that convert between the values that assets return or take and the rows of a table.

There is one handler for each library, for lazy handles (`PinnedTable`, pylance's and Arrow's datasets) and for
dictionaries; `handler_for` finds the handler of a type. All of them convert through Arrow, except Spark's: Spark's
executors write and read the data files themselves, so no row passes through the process of the step.

A handler looks its library up in `sys.modules` and never imports it to recognise a value: a frame can only
exist when its library is loaded, and an import of a large library costs seconds.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import planned_schema
from lance_dagster.datafiles.writing import StagedFiles
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import enclosed
from lance_dagster.plugin.io.output_rows import (
    ArrowRows,
    FileRows,
    OutputRows,
    SparkRows,
    refuse_rows_without_columns,
    with_vectors,
)
from lance_dagster.plugin.resource import PinnedTable, SparkResource

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as pds
    from pyspark.sql import DataFrame

    Handle = PinnedTable | pds.Dataset | pds.Scanner


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

    def rows(self, value: Any) -> OutputRows:  # noqa: ANN401
        """Return the rows of a value, in its own columns and types."""
        ...

    def load(self, view: PinnedTable, kind: type) -> object:
        """Return the rows of a view as a value of this type."""
        ...


def _in_python(rows: pa.Table, library: str, convert: Callable[[pa.Table], object]) -> object:
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

    def rows(self, value: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> ArrowRows:
        """Return the value; a stream is not read into memory."""
        return ArrowRows(pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value)

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

    def rows(self, value: Any) -> ArrowRows:  # noqa: ANN401
        """Return the frame as an Arrow table, in which a column without a value has the type null.

        pandas has no type for such a column: it holds objects or floats, whatever it is meant to hold.
        Null fits every type that a table can have.
        """
        table = self._arrow(value)
        for index, column in enumerate(table.columns):
            if column.null_count == table.num_rows:
                table = table.set_column(index, table.schema.names[index], pa.nulls(table.num_rows))
        return ArrowRows(table)

    def load(self, view: PinnedTable, kind: type) -> object:  # noqa: ARG002
        """Return a pandas frame in memory."""
        return _in_python(view.read(), "pandas", self._frame)

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
            table = pa.Table.from_pandas(value, preserve_index=named).replace_schema_metadata(None)
            return table.cast(_with_plain_text(table.schema, _columns_of_arrow(value)))
        except (pa.ArrowException, ValueError, TypeError) as error:
            # The first argument of Arrow's error says what is wrong, and the second argument names the column.
            reason = "; ".join(map(str, error.args))
            raise InvalidInputError(
                f"the pandas frame cannot be stored: {reason}; give each column one type that Arrow knows, and a name "
                "of its own"
            ) from error


def _with_plain_text(schema: pa.Schema, kept: Collection[str]) -> pa.Schema:
    """Return a schema in which text is `string`, as in the tables that pandas 2 and the other engines make.

    pandas 3 gives its own type to every text, and Arrow makes `large_string` of that type. A table would otherwise have
    other types with each release of pandas.

    Args:
        schema: The schema of a frame, as Arrow infers it.
        kept: Columns whose type a person chose.
    """

    def plain(arrow: pa.DataType) -> pa.DataType:
        if isinstance(arrow, pa.DictionaryType) and pa.types.is_large_string(arrow.value_type):
            indices: Any = arrow.index_type
            return pa.dictionary(indices, pa.string(), arrow.ordered)
        return pa.string() if pa.types.is_large_string(arrow) else arrow

    return pa.schema([field if field.name in kept else field.with_type(plain(field.type)) for field in schema])


def _columns_of_arrow(frame: Any) -> set[str]:  # noqa: ANN401 - a frame of pandas
    """Return the columns whose type is one of Arrow's, which pandas never gives by itself."""
    import pandas as pd

    return {str(name) for name, kind in frame.dtypes.items() if isinstance(kind, pd.ArrowDtype)}


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

    def rows(self, value: "pl.DataFrame | pl.LazyFrame") -> ArrowRows:
        """Return the frame as an Arrow table; a lazy frame as a stream that computes it batch by batch."""
        import polars as pl

        if isinstance(value, pl.DataFrame):
            return ArrowRows(_ordinary(value.to_arrow()))
        schema = self.schema(value, {})
        frames = value.collect_batches(lazy=True)
        parts = (batch for frame in frames for batch in frame.to_arrow().cast(schema).to_batches())
        return ArrowRows(pa.RecordBatchReader.from_batches(schema, parts))

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

    def rows(self, value: "DataFrame") -> OutputRows:
        """Return the frame without computing it, unless it has no columns."""
        if value.columns:
            return SparkRows(value)
        refuse_rows_without_columns(0 if value.isEmpty() else value.count())
        return ArrowRows(pa.table({}))

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

    def rows(self, value: StagedFiles) -> FileRows:
        """Return the files as they are: they are on storage already."""
        return FileRows(value)

    def load(self, view: PinnedTable, kind: type) -> object:
        """Refuse, because staged files describe a write and cannot hold the rows of a version."""
        raise InvalidInputError(f"{view.ref} of {view.table.uri} cannot be read as {kind.__name__}")


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


class LazyFrames:
    """Handle `PinnedTable`, `lance.LanceDataset`, `pyarrow.dataset.Dataset` and `pyarrow.dataset.Scanner`.

    As an input a handle reads nothing until it is used. As an output its rows are written as a stream, so a handle of
    another table, or of an older version of the same table, is copied without being held in memory.
    """

    def accepts(self, kind: type) -> bool:
        """Return whether the type is one of these handles."""
        # Imported at first use here and below, because this module of Arrow imports pandas.
        import pyarrow.dataset as pds

        return issubclass(kind, (PinnedTable, pds.Dataset, pds.Scanner))

    def schema(self, value: "Handle", vectors: Mapping[str, int]) -> pa.Schema:
        """Return the schema of the rows that the handle reads."""
        import pyarrow.dataset as pds

        if isinstance(value, pds.Dataset):
            return with_vectors(value.schema, vectors)
        if isinstance(value, PinnedTable):
            dataset = value.table.to_lance(value.version)
            return with_vectors(planned_schema(dataset, value.columns, value.filter), vectors)
        return with_vectors(value.projected_schema, vectors)

    def rows(self, value: "Handle") -> ArrowRows:
        """Return the rows of the handle as a stream."""
        if isinstance(value, PinnedTable):
            return ArrowRows(value.scan())
        import pyarrow.dataset as pds

        scanner = value.scanner() if isinstance(value, pds.Dataset) else value
        return ArrowRows(scanner.to_reader())

    def load(self, view: PinnedTable, kind: type) -> object:
        """Return a handle of the view.

        A narrowed view is a dataset of rows in memory for `pyarrow.dataset.Dataset`, which cannot carry a filter.

        Raises:
            InvalidInputError: The input is narrowed, and annotated as `lance.LanceDataset`.
        """
        import pyarrow.dataset as pds

        from lance_dagster.datafiles import LanceDataset

        if issubclass(kind, PinnedTable):
            return view
        if issubclass(kind, pds.Scanner):
            columns = None if view.columns is None else list(view.columns)
            condition = None if view.filter is None else enclosed("the filter", view.filter)
            return view.table.to_lance(view.version).scanner(columns=columns, filter=condition)
        if not view.is_narrowed:
            return view.to_lance()
        if not issubclass(kind, LanceDataset):
            return pds.dataset(view.read())
        raise InvalidInputError(
            f"the input is narrowed to {view.narrowed_to}, "
            "which a lance.LanceDataset cannot carry; annotate it as pyarrow.Table, another frame, or "
            "lance_dagster.PinnedTable for a lazy handle that can"
        )


class DictRows:
    """Handle `list[dict]`: each dictionary is a row, and a key that a row lacks is null in it."""

    def accepts(self, kind: type) -> bool:
        """Return whether the type is a list."""
        return issubclass(kind, list)

    def schema(self, value: Sequence[Any], vectors: Mapping[str, int]) -> pa.Schema:
        """Return the schema that Arrow infers from the values."""
        return with_vectors(_table(value).schema, vectors)

    def rows(self, value: Sequence[Any]) -> ArrowRows:
        """Return the dictionaries as an Arrow table; a list without rows has no columns either."""
        return ArrowRows(_table(value))

    def load(self, view: PinnedTable, kind: type) -> object:  # noqa: ARG002
        """Return the rows as dictionaries."""
        return _in_python(view.read(), "Python", pa.Table.to_pylist)


def _table(value: Sequence[Any]) -> pa.Table:
    strange = next((row for row in value if not isinstance(row, dict)), None)
    if strange is not None:
        raise InvalidInputError(f"a list is stored as rows when each item is a dict, not {type(strange).__name__}")
    # Arrow looks for columns only in the first row, and would silently drop columns of later rows.
    names = dict.fromkeys(name for row in value for name in row)
    if not names:
        refuse_rows_without_columns(len(value))
    if unnamed := [name for name in names if not isinstance(name, str)]:
        raise InvalidInputError(f"the keys of a dict are the names of columns, and so text, not {unnamed[0]!r}")
    return pa.table({name: _column(name, [row.get(name) for row in value]) for name in names})


def _column(name: str, values: list[Any]) -> "pa.Array[Any]":
    try:
        array: pa.Array[Any] = pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidInputError(
            f"column {name!r} of a list of dicts cannot be stored: {error}; give all of its values one type"
        ) from error
    return array


def handler_for(kind: type, spark: SparkResource | None) -> FrameHandler:
    """Return the handler of a type.

    Args:
        kind: The class of an output, or the annotation of an input.
        spark: Starts a session when none is active.

    Raises:
        InvalidInputError: No handler accepts the type.
    """
    handlers: tuple[FrameHandler, ...] = (
        ArrowFrames(),
        PandasFrames(),
        PolarsFrames(),
        SparkFrames(spark),
        StagedFrames(),
        LazyFrames(),
        DictRows(),
    )
    for handler in handlers:
        if handler.accepts(kind):
            return handler
    raise InvalidInputError(
        f"rows cannot be returned or taken as {kind.__module__}.{kind.__qualname__}; use a Spark, pandas or Polars "
        "DataFrame, a polars.LazyFrame, a pyarrow.Table or RecordBatchReader, list[dict], StagedFiles, or lazily a "
        "PinnedTable, a lance.LanceDataset, or a pyarrow.dataset.Dataset or Scanner"
    )
