"""The asset node that stands for the promoted version of a table.

A publisher materializes its promoted nodes. Another code location declares the same node as an external asset, so that
its assets read the table at the tag and not at `main`.
"""

import re
from typing import NamedTuple

import dagster as dg

from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.table_asset import TableAsset, asset_key_of, metadata_of, place_metadata, table_address

_ABOUT = "`{table}` as readers of `{tag}` see it."


class PromotedNode(NamedTuple):
    """The candidate and the promoted node of one table."""

    candidate: dg.AssetKey
    promoted: dg.AssetKey
    metadata: dict[str, object]
    spec: dg.AssetSpec


def promoted_key(table: TableAsset, tag: str) -> dg.AssetKey:
    """Return the key of the promoted node of a table: the tag, then the key of the candidate."""
    return dg.AssetKey([tag, *asset_key_of(table).path])


def promoted_asset_spec(
    table: TableAsset, *, tag: str = "production", partitions_def: dg.PartitionsDefinition | None = None
) -> dg.AssetSpec:
    """Return the external asset that stands for a table at a tag, for a code location that only reads it.

    It has the owners, tags, kinds and column descriptions of the candidate's definition, when `table` is a definition.

    The code location of the publisher does not need this asset: `build_publisher` makes the node there, with the same
    key and metadata.

    Args:
        table: The candidate: its definition, or its key when the table is at the default place. A key with metadata is
            given as `dg.AssetSpec("shop/orders", metadata={"lance/table": "sales/orders"})`.
        tag: The tag that the publisher moves.
        partitions_def: The partitions of the node. The candidate's `lance/partition_expr` says which column has them.

    Example:
        >>> promoted_asset_spec("shop/orders").key.to_user_string()
        'production/shop/orders'
    """
    candidate, metadata = asset_key_of(table), metadata_of(table)
    asset = _spec_of(table)
    about = place_metadata(candidate, metadata)
    # With `partition_expr`, partitioned readers of the node can read their partitions.
    if partitions_def is not None and md.PARTITION_EXPR in metadata:
        about[md.PARTITION_EXPR] = metadata[md.PARTITION_EXPR]
    # Dagster merges these descriptions of the columns with the columns that the events report.
    if md.COLUMN_SCHEMA in metadata:
        about[md.COLUMN_SCHEMA] = metadata[md.COLUMN_SCHEMA]
    return dg.AssetSpec(
        promoted_key(candidate, tag),
        description=_ABOUT.format(table=candidate.to_user_string(), tag=tag),
        # Dagster allows fewer characters in a group name than Lance allows in a tag name.
        group_name=re.sub(r"\W", "_", tag, flags=re.ASCII),
        owners=list(asset.owners),
        # Dagster's own tags, such as those for kinds, describe the candidate.
        tags={key: value for key, value in asset.tags.items() if not key.startswith("dagster/")},
        # Dagster shows three kinds at most.
        kinds={"lance", *sorted(asset.kinds - {"lance"})[:2]},
        partitions_def=partitions_def,
        metadata={
            **about,
            md.REF: tag,
            # The URI is left out: the root belongs to the resource, which only a run has.
            **md.definition_metadata(table_address(candidate, metadata).dotted, None),
        },
    )


def _spec_of(table: TableAsset) -> dg.AssetSpec:
    if isinstance(table, dg.AssetsDefinition):
        return table.get_asset_spec(table.key)
    return table if isinstance(table, dg.AssetSpec) else dg.AssetSpec(asset_key_of(table))
