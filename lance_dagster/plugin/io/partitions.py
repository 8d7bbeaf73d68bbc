"""Translate Dagster partitions into a filter over the rows of one table.

A Lance table stores no partitions. A partition is the set of rows that a predicate selects, over one column or one
SQL expression for each dimension. The input is always the list of partition keys, because Dagster offers no other
form for every kind of partition: its ranges and time windows fail for sets with gaps and for dynamic partitions.
Adjacent time windows are merged, so that a year of days becomes one comparison and not 365.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import RowFilter, RowGroups, RowTally
from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.partition_values import (
    PartitionFilter,
    PartitionValues,
    Windows,
    all_filters,
    any_of,
    usual_key,
)
from lance_dagster.plugin.settings import expressions_of

_SHOWN = 3


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
        partition_expr: The asset's metadata of that name: a column or an SQL expression over columns, such as
            `date_trunc('day', at)`; with several dimensions, one for each by its name.
        asset: The asset's name, for error messages.

    Raises:
        InvalidInputError: `partition_expr` is missing or does not fit the partitions or the columns.
    """
    return PartitionPoints.of(keys, definition).filter(schema, partition_expr, asset)


def partition_groups(
    keys: Sequence[str],
    schema: pa.Schema,
    *,
    definition: dg.PartitionsDefinition | None,
    partition_expr: object,
    asset: str,
) -> RowGroups:
    """Return partitions as groups of rows, named by their keys; the arguments and errors are as for `partition_filter`.

    The time that a write takes for the groups grows with the number of its rows and with the number of partitions, and
    not with their product.
    """
    points = PartitionPoints.of(keys, definition)
    dimensions = [
        PartitionValues.of(expression, schema, asset).groups(
            sorted({point[number] for point in points.points}), windows
        )
        for number, (expression, windows) in enumerate(
            zip(expressions_of(asset, points.names, partition_expr), points.windows, strict=True)
        )
    ]
    return RowGroups(dimensions=tuple(dimensions), names={_point(definition, key): key for key in keys})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPoints:
    """Partition keys by their coordinates, for filters where the definition of the partitions is not available.

    Attributes:
        points: The coordinates of each key, in the order of the dimensions.
        windows: The time windows of each dimension; None for a dimension without time windows.
        repeated: For each dimension, the keys that write the same number or truth value as another key, with the other
            key, such as `{"01": "1"}`.
        names: The names of the dimensions; None when the partitions have only one dimension, which has no name.
    """

    points: frozenset[tuple[str, ...]]
    windows: tuple[Windows | None, ...]
    repeated: tuple[Mapping[str, str], ...]
    names: tuple[str, ...] | None

    @classmethod
    def of(cls, keys: Sequence[str], definition: dg.PartitionsDefinition | None) -> "PartitionPoints":
        """Return the points of some keys of a definition; without a definition, keys are plain values."""
        if not isinstance(definition, dg.MultiPartitionsDefinition):
            return cls(
                points=frozenset((key,) for key in keys),
                windows=(_windows_of(definition),),
                repeated=(_repeated(keys, definition),),
                names=None,
            )
        # The names are sorted, so that the order in which the user wrote the dimensions changes no predicate.
        parts = sorted(definition.partitions_defs, key=lambda part: part.name)
        names = tuple(part.name for part in parts)
        coordinates = [_coordinates(definition, key) for key in keys]
        points = frozenset(tuple(by_dimension[name] for name in names) for by_dimension in coordinates)
        return cls(
            points=points,
            windows=tuple(_windows_of(part.partitions_def) for part in parts),
            repeated=tuple(
                _repeated({point[number] for point in points}, part.partitions_def) for number, part in enumerate(parts)
            ),
            names=names,
        )

    def filter(self, schema: pa.Schema, partition_expr: object, asset: str) -> PartitionFilter:
        """Return the filter of the rows at these points; the arguments are as for `partition_filter`.

        Raises:
            InvalidInputError: `partition_expr` is missing or does not fit the partitions or the columns.
        """
        # The expression is validated first: an invalid expression is an error even when there are no keys.
        expressions = expressions_of(asset, self.names, partition_expr)
        values = [PartitionValues.of(expression, schema, asset) for expression in expressions]
        for dimension, repeated in zip(values, self.repeated, strict=True):
            dimension.refuse_repeated(repeated)
        if not self.points:
            return PartitionFilter(predicate="false", expression=pc.scalar(False))  # noqa: FBT003
        return _select_points(set(self.points), list(zip(values, self.windows, strict=True)))

    def encoded(self) -> dict[str, object]:
        """Return the points as values of JSON, with the window of each key."""
        # A function cannot be sent to another process; the windows of these keys can.
        windows = [
            None if of is None else {key: _encoded_window(of(key)) for key in {point[number] for point in self.points}}
            for number, of in enumerate(self.windows)
        ]
        return {
            # The order of a set differs between two processes.
            "points": sorted(map(list, self.points)),
            "windows": windows,
            "repeated": list(self.repeated),
            "names": None if self.names is None else list(self.names),
        }

    @classmethod
    def decoded(cls, document: Mapping[str, Any]) -> "PartitionPoints":
        """Return the points that `encoded` returned in another process."""
        windows = [
            None if of is None else {key: _decoded_window(window) for key, window in of.items()}
            for of in document["windows"]
        ]
        return cls(
            points=frozenset(tuple(point) for point in document["points"]),
            windows=tuple(None if of is None else of.__getitem__ for of in windows),
            repeated=tuple(document["repeated"]),
            names=None if document["names"] is None else tuple(document["names"]),
        )


def _windows_of(definition: dg.PartitionsDefinition | None) -> Windows | None:
    # The keys of static and dynamic partitions, and keys without a definition, are compared as values.
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return None
    return definition.time_window_for_partition_key


def _repeated(keys: Collection[str], definition: dg.PartitionsDefinition | None) -> dict[str, str]:
    """Return the keys that write the same number or truth value as another key of the partitions, with the other key.

    Time partitions have one key for each window. The other keys of dynamic partitions are not known here, so each key
    has to write its value in the usual way.

    Example: for the static partitions `1`, `01` and `2` and the key `01`, it is `{"01": "1"}`.
    """
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return {}
    if not isinstance(definition, dg.StaticPartitionsDefinition):
        return {key: usual_key(key) for key in keys if key != usual_key(key)}
    by_value: dict[str, list[str]] = {}
    for key in definition.get_partition_keys():
        by_value.setdefault(usual_key(key), []).append(key)
    others = {key: [equal_key for equal_key in by_value.get(usual_key(key), ()) if equal_key != key] for key in keys}
    return {key: same[0] for key, same in others.items() if same}


def _encoded_window(window: dg.TimeWindow) -> list[str]:
    # ISO text keeps an offset but not the zone, which gives the local times for a column without a time zone.
    return [window.start.isoformat(), window.end.isoformat(), str(window.start.tzinfo)]


def _decoded_window(texts: Sequence[str]) -> dg.TimeWindow:
    start, end, zone = texts
    moments = [datetime.fromisoformat(moment).astimezone(ZoneInfo(zone)) for moment in (start, end)]
    return dg.TimeWindow(*moments)


def outside_error(
    tally: RowTally, *, asset: str, keys: Sequence[str], partition_expr: object, consequence: str
) -> InvalidInputError:
    """Return the error of a write with rows that are not in its partitions.

    Args:
        tally: The counts of the rows.
        asset: The asset's key as text.
        keys: The partitions of the write.
        partition_expr: The asset's metadata of that name.
        consequence: The outcome of the write, for the message.
    """
    shown = ", ".join(keys[:_SHOWN]) + (", ..." if len(keys) > _SHOWN else "")
    return InvalidInputError(
        f"{asset} returned {tally.outside} {'row that is' if tally.outside == 1 else 'rows that are'} not in "
        f"the partitions it was asked for ({shown}) by its {md.PARTITION_EXPR} {partition_expr!r}, such as one "
        f"with {tally.example}; {consequence}. Return only rows of context.partition_keys, and write the others in the "
        "runs of their own partitions"
    )


def rows_of(selection: PartitionFilter) -> RowFilter:
    """Return a filter of partitions as a filter that can be sent to executors."""
    return RowFilter(predicate=selection.predicate, expression=selection.expression, columns=selection.columns)


def _coordinates(definition: dg.MultiPartitionsDefinition, key: str) -> Mapping[str, str]:
    # A key that comes from a tag or from JSON is plain text.
    multi_key = key if isinstance(key, dg.MultiPartitionKey) else definition.get_partition_key_from_str(key)
    return multi_key.keys_by_dimension


def _point(definition: dg.PartitionsDefinition | None, key: str) -> tuple[str, ...]:
    """Return the coordinates of a key, in the order of the names of the dimensions."""
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return (key,)
    by_dimension = _coordinates(definition, key)
    return tuple(by_dimension[name] for name in sorted(by_dimension))


def _select_points(
    points: set[tuple[str, ...]], dimensions: Sequence[tuple[PartitionValues, Windows | None]]
) -> PartitionFilter:
    """Return the filter for a set of points in several dimensions.

    Values of the first dimension that occur with the same points of the other dimensions share one term. A full
    grid thus becomes one term, and not one for each point.
    """
    (first, windows), *others = dimensions
    if not others:
        return first.select([point[0] for point in points], windows)
    rests: dict[str, set[tuple[str, ...]]] = {}
    for value, *remaining in points:
        rests.setdefault(value, set()).add(tuple(remaining))
    # The sets are frozen, since values are grouped by the whole set of their other coordinates.
    values_by_rest: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for value, rest_points in rests.items():
        values_by_rest.setdefault(frozenset(rest_points), []).append(value)
    # The terms are sorted, so that the predicate of the same partitions is the same text in each run.
    ordered = sorted(values_by_rest.items(), key=lambda item: sorted(item[1]))
    return any_of(
        [
            all_filters([first.select(values, windows), _select_points(set(rest_points), others)])
            for rest_points, values in ordered
        ]
    )


def partitions_definition(
    context: dg.OutputContext | dg.InputContext,
) -> dg.PartitionsDefinition | None:
    """Return the partitions of a context's asset, or None when it has none or was built without them."""
    try:
        return context.asset_partitions_def
    except dg.DagsterInvariantViolationError:
        return None
