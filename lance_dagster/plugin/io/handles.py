"""Handlers of lazy handles (`PinnedTable`, pylance's and Arrow's datasets) and dictionaries; the handler of a type."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_dagster.datafiles import planned_schema
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import enclosed
from lance_dagster.plugin.io.frames import (
    ArrowFrames,
    FrameHandler,
    PandasFrames,
    PolarsFrames,
    SparkFrames,
    StagedFrames,
    in_python,
)
from lance_dagster.plugin.io.output_rows import ArrowRows, refuse_rows_without_columns, with_vectors
from lance_dagster.plugin.resource import PinnedTable, SparkResource

if TYPE_CHECKING:
    import pyarrow.dataset as pds

    Handle = PinnedTable | pds.Dataset | pds.Scanner


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
        return in_python(view.read(), "Python", pa.Table.to_pylist)


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
