"""Find the bounds of the values of columns while they are written, for the record of `format/value_ranges`."""

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.format.value_ranges import MOST_TEXT, Bound, ValueRange, encode_range

MOST_COLUMNS = 8
"""So many columns from the left have a range: every commit writes the ranges of all fragments."""


class RangeTally:
    """The bounds of the values of one data file, or of several files of which each has some of the values."""

    def __init__(self, schema: pa.Schema, named: Collection[str] = ()) -> None:
        """Begin without a value.

        Args:
            schema: The columns of the batches.
            named: Columns that have a range wherever they stand.
        """
        kinds = {column.name: kind for column in schema if (kind := _logical_type(column.type)) is not None}
        self._kinds = {
            name: kind for place, (name, kind) in enumerate(kinds.items()) if place < MOST_COLUMNS or name in named
        }
        self._ranges: dict[str, ValueRange] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the values of a batch into account."""
        for name in [*self._kinds] if batch.num_rows else ():
            values = _range(batch.column(name))
            before = self._ranges.get(name)
            if any(isinstance(bound, str) and len(bound) > MOST_TEXT for bound in (values.lower, values.upper)):
                # The column has no range in this file.
                del self._kinds[name]
                self._ranges.pop(name, None)
            else:
                self._ranges[name] = values if before is None else _together(before, values)

    @property
    def lines(self) -> str:
        """The ranges as text, with a line for each column."""
        return "\n".join(encode_range(name, self._kinds[name], values) for name, values in self._ranges.items())


def _range(column: "pa.Array[Any]") -> ValueRange:
    values: Any = column
    if isinstance(values, pa.DictionaryArray):
        # Only the values that occur: a batch may share its dictionary with others.
        values = values.dictionary.take(pc.unique(values.indices))
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    bounds: Any = pc.min_max(values)
    lower, upper = (_plain(bounds[name]) for name in ("min", "max"))
    return ValueRange(bool(values.null_count), lower, upper)


def _plain(bound: Any) -> Bound | None:  # noqa: ANN401  # a scalar of any type
    if not bound.is_valid:
        return None
    # Python has neither all dates nor nanoseconds.
    is_temporal = pa.types.is_temporal(bound.type)
    value: Any = bound.value if is_temporal else bound.as_py()
    plain: Bound = int(value) if isinstance(value, bool) else value
    return plain


def _together(first: ValueRange, second: ValueRange) -> ValueRange:
    lowers = [values.lower for values in (first, second) if values.lower is not None]
    uppers = [values.upper for values in (first, second) if values.upper is not None]
    # Bounds of one column have one type.
    lower: Any = min(lowers, default=None)
    upper: Any = max(uppers, default=None)
    return ValueRange(first.has_nulls or second.has_nulls, lower, upper)


def _logical_type(arrow: Any) -> str | None:  # noqa: ANN401  # any Arrow type
    """Return the logical type of values that may have bounds; None for every other type."""
    if pa.types.is_dictionary(arrow):
        return _logical_type(arrow.value_type)
    if pa.types.is_integer(arrow) or pa.types.is_boolean(arrow):
        return str(arrow)
    if pa.types.is_string(arrow) or pa.types.is_string_view(arrow):
        return "string"
    if pa.types.is_large_string(arrow):
        return "large_string"
    if pa.types.is_date32(arrow):
        return "date32:day"
    if pa.types.is_timestamp(arrow):
        return f"timestamp:{arrow.unit}:{arrow.tz or '-'}"
    return None
