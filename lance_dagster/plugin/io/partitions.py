"""Translate Dagster partitions into a filter over the rows of one table.

A Lance table stores no partitions. A partition is the set of rows that a predicate selects, over one column or one
SQL expression for each dimension. The input is always the list of partition keys, because Dagster offers no other
form for every kind of partition: its ranges and time windows fail for sets with gaps and for dynamic partitions.
Adjacent time windows are merged, so that a year of days becomes one comparison and not 365.
"""

from collections.abc import Mapping, Sequence

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.partition_values import PartitionFilter, PartitionValues, all_filters, any_of


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
    dimensions = _dimension_names(definition)
    values = [PartitionValues.of(one, schema, asset) for one in _expressions(asset, dimensions, partition_expr)]
    if not keys:
        return PartitionFilter(predicate="false", expression=pc.scalar(False))  # noqa: FBT003
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return values[0].select(keys, definition)
    # In the order of the names of the dimensions, as `_expressions` returns the values.
    parts = sorted(definition.partitions_defs, key=lambda part: part.name)
    axes = [(one, part.partitions_def) for one, part in zip(values, parts, strict=True)]
    points = {tuple(_coordinates(definition, key)[part.name] for part in parts) for key in keys}
    return _select_points(points, axes)


def _dimension_names(definition: dg.PartitionsDefinition | None) -> list[str] | None:
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return None
    return sorted(part.name for part in definition.partitions_defs)


def _expressions(asset: str, dimensions: list[str] | None, partition_expr: object) -> list[str]:
    """Return the column or expression of each dimension, in the order of the names of the dimensions."""
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


def _coordinates(definition: dg.MultiPartitionsDefinition, key: str) -> Mapping[str, str]:
    found = key if isinstance(key, dg.MultiPartitionKey) else definition.get_partition_key_from_str(key)
    return found.keys_by_dimension


def _select_points(
    points: set[tuple[str, ...]], dimensions: Sequence[tuple[PartitionValues, dg.PartitionsDefinition]]
) -> PartitionFilter:
    """Return the filter for a set of points in several dimensions.

    Values of the first dimension that occur with the same points of the other dimensions share one term. A full
    grid thus becomes one term, and not one for each point.
    """
    (first, definition), *others = dimensions
    if not others:
        return first.select([point[0] for point in points], definition)
    rests: dict[str, set[tuple[str, ...]]] = {}
    for value, *rest in points:
        rests.setdefault(value, set()).add(tuple(rest))
    values_by_rest: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for value, rest_points in rests.items():
        values_by_rest.setdefault(frozenset(rest_points), []).append(value)
    ordered = sorted(values_by_rest.items(), key=lambda item: sorted(item[1]))
    return any_of(
        [
            all_filters([first.select(values, definition), _select_points(set(rest_points), others)])
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
