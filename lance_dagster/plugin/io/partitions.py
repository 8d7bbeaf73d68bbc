"""Translate Dagster partitions into a filter over the rows of one table.

A Lance table stores no partitions. A partition is the set of rows that a predicate selects, over one column for
each dimension. The input is always the list of partition keys, because Dagster offers no other form for every
kind of partition: its ranges and time windows fail for sets with gaps and for dynamic partitions. Adjacent time
windows are merged, so that a year of days becomes one comparison and not 365.
"""

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """A filter that selects the rows of some partitions, as Lance SQL and as an Arrow expression."""

    predicate: str
    expression: pc.Expression

    def outside(self, rows: pa.Table) -> int:
        """Count the rows outside the partitions. A null belongs to no partition, so its row is counted."""
        # Subtract rather than filter by the inverse: the inverse of a null is null, which would miss such
        # rows.
        return rows.num_rows - rows.filter(self.expression).num_rows


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One dimension of the partitions: its column, and the definition that gives its keys a meaning."""

    column: "pa.Field[Any]"
    definition: dg.PartitionsDefinition | None

    def select(self, keys: Iterable[str]) -> PartitionFilter:
        """Return the filter for some keys of this dimension."""
        kind = self.column.type
        timed = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        # A time partition over a text column, such as `2026-05-01`, is compared as text below.
        if isinstance(self.definition, dg.TimeWindowPartitionsDefinition) and timed:
            windows = _joined(self.definition.time_window_for_partition_key(key) for key in keys)
            return _any([_window(self.column, start, end) for start, end in windows])
        if timed:
            raise InvalidInputError(
                f"column {self.column.name!r} is {kind}, which only partitions by time can select from"
            )
        # Sorted, so that the predicate of the same partitions is the same text in each run.
        values = {key: _value(key, self.column) for key in sorted(set(keys))}
        listed = ", ".join(_literal(value) for value in values.values())
        return PartitionFilter(
            f"{quote_name(self.column.name)} IN ({listed})",
            pc.field(self.column.name).isin(pa.array(values.values(), kind)),
        )


def partition_filter(
    keys: Sequence[str],
    schema: pa.Schema,
    *,
    definition: dg.PartitionsDefinition | None,
    partition_expr: object,
    asset: str,
) -> PartitionFilter:
    """Return the filter that selects the rows of some partitions.

    Args:
        keys: The partition keys. Without keys the filter selects no row.
        schema: The columns of the table.
        definition: The partitions of the asset. With None, keys are compared with the column as plain values.
        partition_expr: The asset's metadata of that name: a column, or a column for each dimension.
        asset: The asset's name, for error messages.

    Raises:
        InvalidInputError: `partition_expr` is missing or does not fit the partitions or the columns.
    """
    dimensions = _dimension_names(definition)
    names = _column_names(asset, dimensions, partition_expr)
    columns = [_field(asset, name, schema) for name in names]
    if not keys:
        return PartitionFilter("false", pc.scalar(False))  # noqa: FBT003
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return _Dimension(columns[0], definition).select(keys)
    # In the order of the names of the dimensions, as `_column_names` returns the columns.
    parts = sorted(definition.partitions_defs, key=lambda part: part.name)
    axes = [_Dimension(column, part.partitions_def) for column, part in zip(columns, parts, strict=True)]
    points = {tuple(_coordinates(definition, key)[part.name] for part in parts) for key in keys}
    return _select_points(points, axes)


def _dimension_names(definition: dg.PartitionsDefinition | None) -> list[str] | None:
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return None
    return sorted(part.name for part in definition.partitions_defs)


def _column_names(asset: str, dimensions: list[str] | None, partition_expr: object) -> list[str]:
    """Return the column of each dimension, in the order of the names of the dimensions."""
    quoted = ", ".join(f'"{name}": "<column>"' for name in dimensions or ())
    example = f"{{{quoted}}}" if dimensions else '"<column>"'
    if partition_expr is None:
        raise InvalidInputError(
            f"{asset} is partitioned, and nothing says which column holds the partition; "
            f'give the asset metadata {{"{md.PARTITION_EXPR}": {example}}}'
        )
    if dimensions is None and isinstance(partition_expr, str):
        return [partition_expr]
    if dimensions and isinstance(partition_expr, Mapping) and set(partition_expr) == set(dimensions):
        return [str(partition_expr[name]) for name in dimensions]
    raise InvalidInputError(f"{md.PARTITION_EXPR} of {asset} must be {example}, not {partition_expr!r}")


def _field(asset: str, name: str, schema: pa.Schema) -> "pa.Field[Any]":
    if name not in schema.names:
        raise InvalidInputError(
            f"{md.PARTITION_EXPR} of {asset} names column {name!r}; the columns are {', '.join(schema.names)}"
        )
    return schema.field(name)


def _coordinates(definition: dg.MultiPartitionsDefinition, key: str) -> Mapping[str, str]:
    found = key if isinstance(key, dg.MultiPartitionKey) else definition.get_partition_key_from_str(key)
    return found.keys_by_dimension


def _select_points(points: set[tuple[str, ...]], dimensions: Sequence[_Dimension]) -> PartitionFilter:
    """Return the filter for a set of points in several dimensions.

    Values of the first dimension that occur with the same points of the other dimensions share one term. A full
    grid thus becomes one term, and not one for each point.
    """
    first, *others = dimensions
    if not others:
        return first.select(point[0] for point in points)
    rests: dict[str, set[tuple[str, ...]]] = {}
    for value, *rest in points:
        rests.setdefault(value, set()).add(tuple(rest))
    values_by_rest: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for value, rest_points in rests.items():
        values_by_rest.setdefault(frozenset(rest_points), []).append(value)
    ordered = sorted(values_by_rest.items(), key=lambda item: sorted(item[1]))
    return _any(
        [_both(first.select(values), _select_points(set(rest_points), others)) for rest_points, values in ordered]
    )


def _both(one: PartitionFilter, other: PartitionFilter) -> PartitionFilter:
    return PartitionFilter(f"({one.predicate}) AND ({other.predicate})", one.expression & other.expression)


def _any(filters: Sequence[PartitionFilter]) -> PartitionFilter:
    if len(filters) == 1:
        return filters[0]
    predicate = " OR ".join(f"({one.predicate})" for one in filters)
    return PartitionFilter(predicate, functools.reduce(operator.or_, (one.expression for one in filters)))


def _joined(windows: Iterable[dg.TimeWindow]) -> list[tuple[datetime, datetime]]:
    """Return the windows in order, with adjacent ones merged."""
    joined: list[tuple[datetime, datetime]] = []
    for window in sorted(windows, key=lambda one: one.start):
        # `<=`: a window ends where the next one starts, since its end is exclusive.
        if joined and window.start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(window.end, joined[-1][1]))
        else:
            joined.append((window.start, window.end))
    return joined


def _window(column: "pa.Field[Any]", start: datetime, end: datetime) -> PartitionFilter:
    name, (first, lower), (last, upper) = quote_name(column.name), _moment(start, column), _moment(end, column)
    values = pc.field(column.name)
    return PartitionFilter(f"{name} >= {first} AND {name} < {last}", (values >= lower) & (values < upper))


def _moment(moment: datetime, column: "pa.Field[Any]") -> "tuple[str, pa.Scalar[Any]]":
    """Return the boundary of a window as a SQL literal and as a value of the column's type.

    A timestamp column with a time zone holds instants. A column without one holds local times in the time zone
    of the partitions.
    """
    kind = column.type
    if pa.types.is_date(kind):
        if moment.time() != time():
            raise InvalidInputError(
                f"column {column.name!r} is {kind}, and a partition starts or ends at {moment}: "
                "partitions shorter than a day need a timestamp column"
            )
        return f"date '{moment:%Y-%m-%d}'", pa.scalar(moment.date(), kind)
    if kind.tz is not None:
        return f"timestamp '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00'", pa.scalar(moment, kind)
    return f"timestamp '{moment:%Y-%m-%d %H:%M:%S}'", pa.scalar(moment.replace(tzinfo=None), kind)


def _value(key: str, column: "pa.Field[Any]") -> str | int | bool:
    """Return a partition key as a value of the column's type."""
    kind, plain = column.type, str(key)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return plain
    if pa.types.is_integer(kind) and plain.removeprefix("-").isdecimal():
        return int(plain)
    if pa.types.is_boolean(kind) and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        raise InvalidInputError(f"partition key {plain!r} is no value of column {column.name!r}, which is {kind}")
    raise InvalidInputError(
        f"column {column.name!r} is {kind}; partitions select from text, integer, boolean, date and timestamp columns"
    )


def _literal(value: str | int | bool) -> str:  # noqa: FBT001
    # A bool is an int in Python too, but SQL spells its literals `true` and `false`.
    if isinstance(value, bool):
        return str(value).lower()
    return quote_text(value) if isinstance(value, str) else str(value)


def partitions_definition(
    context: dg.OutputContext | dg.InputContext,
) -> dg.PartitionsDefinition | None:
    """Return the partitions of a context's asset, or None when it has none or was built without them."""
    try:
        return context.asset_partitions_def
    except dg.DagsterInvariantViolationError:
        return None


def quote_text(value: str) -> str:
    """Return text as a string literal of Lance SQL."""
    return "'" + value.replace("'", "''") + "'"


def quote_name(column: str) -> str:
    """Return a column's name quoted for Lance SQL; it may have any character except a backtick."""
    if "`" in column:
        raise InvalidInputError(f"column {column!r} cannot be used in a filter: its name has a backtick")
    return f"`{column}`"
