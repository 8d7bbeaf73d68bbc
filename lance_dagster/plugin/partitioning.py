"""The partitioning of an asset: what its partition keys mean, as a text that commits record beside the keys.

A user may change the partitions of an asset: days become hours or months, a dimension gets another name, or the rows
are assigned by another column. Keys of both definitions then stand for different rows, also where they are equal:
`2026-01-01` is a day, or all of January. And different keys may stand for the same rows. So keys are compared only
within one partitioning; otherwise the rows themselves decide, and a check sees the whole table.

The first and the last partition are not part of the partitioning: they may be moved without a change of any key.
"""

import json
from collections.abc import Collection

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md


def partitioning_of(definition: dg.PartitionsDefinition | None, partition_expr: object) -> str:
    """Return the partitioning of an asset as text; empty for an asset without partitions.

    Args:
        definition: The partitions of the asset.
        partition_expr: The asset's metadata of that name.

    Example: for daily partitions of a column `at`, it is `["at", "0 0 * * *", "UTC", "%Y-%m-%d"]`.
    """
    if definition is None:
        return ""
    expr = md.plain(partition_expr)
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return json.dumps([expr, *_scheme(definition)], default=str)
    dimensions = {part.name: _scheme(part.partitions_def) for part in definition.partitions_defs}
    return json.dumps([expr, dimensions], sort_keys=True, default=str)


def require_partition(asset: dg.AssetKey, definition: dg.PartitionsDefinition | None, keys: Collection[str]) -> None:
    """Refuse to write a partitioned asset in a run without a partition, which would replace rows of all partitions.

    Dagster starts such a run from the command line and from Python.

    Raises:
        InvalidInputError: The asset is partitioned, and there are no keys.
    """
    if definition is not None and not keys:
        raise InvalidInputError(
            f"{asset.to_user_string()} is partitioned, and this run has no partition, so nothing tells which rows it "
            "replaces; start the run for a partition (`--partition`, `partition_key=`) or a range of partitions"
        )


def _scheme(definition: dg.PartitionsDefinition) -> list[str]:
    """Return what gives the keys of one dimension their rows; nothing where a key is the value, in the usual spelling.

    Example: the keys `01` and `02` write the same integers as `1` and `2`, and are keys of another partitioning.
    """
    if isinstance(definition, dg.StaticPartitionsDefinition):
        # Imported here: it imports Arrow, which a code location does not need when it is loaded.
        from lance_dagster.plugin.io.partition_values import usual_key

        return ["zeros"] if any(key != usual_key(key) for key in definition.get_partition_keys()) else []
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return []
    return [definition.cron_schedule, definition.timezone, definition.fmt]
