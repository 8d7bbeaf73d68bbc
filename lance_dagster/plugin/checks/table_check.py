"""Table checks: conditions on a table at a version, independent of the run in which they are evaluated.

A check knows neither Dagster's run nor the branch: it gets an `Audit`, which holds tables pinned to versions. So it
serves as an asset check of the candidate, and serves the publisher, which evaluates it again on a planned merge.

The definition of an asset check keeps its check and asset as a `BoundCheck`; the module `evaluation` evaluates it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

import dagster as dg

from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.partitioning import partitioning_of
from lance_dagster.plugin.resource import PinnedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.history.versions import Version
    from lance_dagster.plugin.io.partition_values import PartitionFilter

Scope = Literal["partitions", "table"]
# From this number of partitions on, one scan for all of them is faster than a count for each.
_MANY = 3
Finding = int | float | str | dg.MetadataValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The tables that a check reads.

    Attributes:
        candidate: The version to check, narrowed to the partitions if the scope of the check is `partitions`.
        others: The other tables that the check reads, whole, by the keys of their assets.
        partition_keys: The partitions to check; empty without partitions, and where they are unknown.
        partitions: The filter of each of these partitions; empty when the scope is `table`.
        seen: The version that readers see, when the candidate is compared with that version; None for the head of
            `main`.
    """

    candidate: PinnedTable
    others: Mapping[dg.AssetKey, PinnedTable] = field(default_factory=dict)
    partition_keys: tuple[str, ...] = ()
    partitions: "Mapping[str, PartitionFilter]" = field(default_factory=dict)
    seen: "Version | None" = None

    def by_partition(self) -> dict[str | None, PinnedTable]:
        """Return the candidate narrowed to each partition; without partitions, the candidate alone under None."""
        if not self.partitions:
            return {None: self.candidate}
        return {key: replace(self.candidate, filter=partition.predicate) for key, partition in self.partitions.items()}

    def count_by_partition(self, filter: str | None = None, *, of: PinnedTable | None = None) -> dict[str | None, int]:
        """Count the rows of each partition in one scan; without partitions, all rows under None.

        Args:
            filter: A Lance SQL filter; only the rows that it selects are counted.
            of: The table to count in, narrowed as the candidate is; the candidate if None.
        """
        table = of or self.candidate
        if len(self.partitions) < _MANY:
            return self._count_each(table, filter)
        columns = list(dict.fromkeys(name for partition in self.partitions.values() for name in partition.columns))
        groups = _grouped(table.scan(columns, filter), columns)
        if groups is None:
            return self._count_each(table, filter)
        return {key: _rows_inside(partition, groups) for key, partition in self.partitions.items()}

    def _count_each(self, table: PinnedTable, filter: str | None) -> dict[str | None, int]:
        parts = {key: replace(table, filter=part.filter) for key, part in self.by_partition().items()}
        return {key: part.count_rows(filter) for key, part in parts.items()}

    def published(self) -> PinnedTable:
        """Return the table as readers see it, or on `main` now, narrowed as the candidate is."""
        return replace(self.candidate, version=self.seen or self.candidate.table.at(MAIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The result of a check.

    Attributes:
        passed: Whether the condition holds.
        description: One sentence for people.
        counts: What was found, by name. Dagster plots the numbers over time.
        severity: With `WARN`, a failure is shown but blocks neither the downstream assets nor the publisher.
    """

    passed: bool
    description: str = ""
    counts: Mapping[str, Finding] = field(default_factory=dict)
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    @property
    def blocks(self) -> bool:
        """Whether a blocking check with this outcome stops the publication."""
        return not self.passed and self.severity is not dg.AssetCheckSeverity.WARN


class TableCheck(Protocol):
    """A condition on a table at a version. Values of any class with these members can be given to the builders."""

    @property
    def name(self) -> str:
        """The name of the asset check: letters, digits and underscores, unique among the checks of an asset."""
        ...

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        ...

    @property
    def scope(self) -> Scope:
        """Whether the check evaluates the partitions of the run or the whole table."""
        ...

    @property
    def reads(self) -> tuple[dg.AssetKey, ...]:
        """The assets of the other tables that the check reads."""
        ...

    @property
    def row_wise(self) -> bool:
        """Whether the check holds for a table exactly when it holds for each of its rows alone."""
        ...

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Check the candidate of an audit."""
        ...


def _grouped(batches: "pa.RecordBatchReader", columns: list[str]) -> "pa.Table | None":
    """Return the distinct rows of some columns, with their number in a last column.

    Returns None where Arrow does not group a column, such as a column of lists or of JSON.
    """
    # Imported where it is used, as in all checks: a code location that is only loaded needs no pyarrow.
    import pyarrow as pa

    # These names differ from Arrow's `count_all`, and the name of the last column is longer than the name of every
    # column.
    numbered, rows = [f"column {place}" for place in range(len(columns))], "".join([*columns, "#"])
    # A scan for each partition would read these columns as often as there are partitions. Batches are grouped singly,
    # so memory holds groups and not rows.
    try:
        tables = (pa.table(batch.columns, numbered) for batch in batches)
        groups = [batch.group_by(numbered).aggregate([([], "count_all")]) for batch in tables]
    except pa.ArrowNotImplementedError:
        return None
    if not groups:
        return batches.schema.append(pa.field(rows, pa.int64())).empty_table()
    # Batches of a dictionary column may have different dictionaries, which Arrow does not group.
    merged = pa.concat_tables(groups).unify_dictionaries().group_by(numbered).aggregate([("count_all", "sum")])
    return merged.rename_columns([*columns, rows])


def _rows_inside(partition: "PartitionFilter", groups: "pa.Table") -> int:
    if partition.expression is not None:
        inside = groups.filter(partition.expression)
    else:
        import pyarrow as pa

        from lance_dagster.datafiles import evaluate_predicate

        # A partition by an SQL expression, which only Lance can evaluate.
        rows = groups.select(partition.columns)
        inside = groups.filter(pa.array(evaluate_predicate(partition.predicate, rows))) if groups.num_rows else groups
    return sum(int(rows or 0) for rows in inside.columns[-1].to_pylist())


# The attribute of the function behind an asset check that holds its `BoundCheck`. Dagster copies definitions, with
# resources or for the selection of a job, but never copies the function, so the attribute survives.
LANCE_CHECK = "lance_check"
CheckContext = dg.AssetCheckExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCheck:
    """A table check and its asset.

    `metadata` and `partitions_def` come from the definition that the check was built from; where that was a key, the
    asset's definition in the code location supplies them. `seen` is passed on to the `Audit`.
    """

    check: TableCheck
    asset: dg.AssetKey
    metadata: Mapping[str, object] = field(default_factory=dict)
    partitions_def: dg.PartitionsDefinition | None = None
    seen: "Version | None" = None

    def described(self, context: CheckContext) -> "BoundCheck":
        """Return this check with what the code location knows about its asset."""
        metadata, partitions_def = describe_asset(context, self.asset)
        return replace(
            self,
            metadata={**metadata, **self.metadata},
            partitions_def=self.partitions_def or partitions_def,
        )

    @property
    def partitioning(self) -> str:
        """What the partition keys of the asset mean, by its definition."""
        return partitioning_of(self.partitions_def, self.metadata.get(md.PARTITION_EXPR))


def decorated_function(definition: dg.AssetsDefinition) -> object:
    """Return the function behind a definition; None for the node of a graph, and for checks that Dagster builds."""
    return getattr(getattr(definition.node_def, "compute_fn", None), "decorated_fn", None)


def describe_asset(
    context: CheckContext, asset: dg.AssetKey
) -> tuple[Mapping[str, object], dg.PartitionsDefinition | None]:
    """Return the metadata and the partitions of an asset's definition; empty when the code location has none."""
    # The graph of the job lacks assets that the run leaves out; the graph that it was cut out of has them.
    graph = context.job_def.asset_layer.asset_graph
    for asset_graph in (graph, graph.source_asset_graph):
        if asset_graph.has(asset):
            node = asset_graph.get(asset)
            return node.metadata, node.partitions_def
    return {}, None
