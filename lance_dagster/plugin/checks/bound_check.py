"""A table check and its asset, which the definition of an asset check keeps.

The evaluation is in the module `evaluation`, which a code location does not load.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import dagster as dg

from lance_dagster.plugin.checks.table_check import TableCheck

# The attribute of the function behind an asset check that holds its `BoundCheck`. Dagster copies definitions, with
# resources or for the selection of a job, but never copies the function, so the attribute survives.
LANCE_CHECK = "lance_check"
CheckContext = dg.AssetCheckExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCheck:
    """A table check and its asset.

    `metadata` and `partitions_def` are those of the definition that the check was built from; empty when it was
    built from a key. The asset's definition in the code location supplies what is missing.
    """

    check: TableCheck
    asset: dg.AssetKey
    metadata: Mapping[str, object] = field(default_factory=dict)
    partitions_def: dg.PartitionsDefinition | None = None

    def described(self, context: CheckContext) -> "BoundCheck":
        """Return this check with what the code location knows about its asset."""
        metadata, partitions_def = describe_asset(context, self.asset)
        return replace(
            self,
            metadata={**metadata, **self.metadata},
            partitions_def=self.partitions_def or partitions_def,
        )


def describe_asset(
    context: CheckContext, asset: dg.AssetKey
) -> tuple[Mapping[str, object], dg.PartitionsDefinition | None]:
    """Return the metadata and the partitions of an asset's definition; empty when the code location has none."""
    # The graph of the job lacks assets that the run leaves out; the graph that it was cut out of has them.
    graph = context.job_def.asset_layer.asset_graph
    for known in (graph, graph.source_asset_graph):
        if known.has(asset):
            node = known.get(asset)
            return node.metadata, node.partitions_def
    return {}, None
