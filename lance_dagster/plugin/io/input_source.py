"""The source of an input: the table of an asset or of an op's output, and the partitions to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import all_of
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.input_types import title_of
from lance_dagster.plugin.io.output_tables import OutputTable
from lance_dagster.plugin.io.partitions import partition_filter, partitions_definition
from lance_dagster.plugin.resource import PinnedTable
from lance_dagster.plugin.table_asset import TableKey


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPartitions:
    """The partitions that an input reads, and the column or expression that identifies them."""

    keys: tuple[str, ...]
    definition: dg.PartitionsDefinition | None
    partition_expr: object
    asset: str

    @classmethod
    def of_asset(cls, context: dg.InputContext, upstream: Mapping[str, object]) -> "InputPartitions | None":
        """Return the partitions of the input of an asset, or None when it reads the whole table.

        A partitioned reader of an upstream without partitions reads the whole table, unless `lance/partition_expr` of
        the input or of the upstream says how its own partitions select rows.
        """
        given = md.plain(context.definition_metadata.get(md.PARTITION_EXPR, upstream.get(md.PARTITION_EXPR)))
        asset = context.asset_key.to_user_string()
        # These are the partitions of the upstream asset, after Dagster's partition mapping.
        if context.has_asset_partitions:
            keys = tuple(context.asset_partition_keys)
            return cls(keys=keys, definition=partitions_definition(context), partition_expr=given, asset=asset)
        own = _own_partitions(context)
        if own is None:
            return None
        if not given:
            context.log.info(
                "%s reads every partition of %s, which has no partitions in Dagster; give the input the metadata "
                "%s to read the rows of the partitions of this run",
                title_of(context),
                asset,
                md.PARTITION_EXPR,
            )
            return None
        return cls(keys=own[1], definition=own[0], partition_expr=given, asset=asset)

    @classmethod
    def of_output(cls, table: OutputTable) -> "InputPartitions | None":
        """Return the part of a table that one of several steps wrote, or None when the table is its own."""
        if not table.partition_keys:
            return None
        given = md.plain(table.metadata.get(md.PARTITION_EXPR))
        return cls(keys=table.partition_keys, definition=None, partition_expr=given, asset=table.owner)

    def narrow(self, view: PinnedTable, keys: Sequence[str]) -> PinnedTable:
        """Return a view narrowed to some of the partitions."""
        selected = partition_filter(
            keys, view.schema, definition=self.definition, partition_expr=self.partition_expr, asset=self.asset
        )
        return replace(view, filter=all_of(view.filter, selected.predicate))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """The source of an input.

    Attributes:
        name: The asset, or the name that replaces it in messages.
        key: The asset's key, or the path of a table.
        metadata: The metadata that sets the place of the table and the ref.
        partitions: The partitions to read; None for the whole table.
    """

    name: str
    key: TableKey
    metadata: Mapping[str, object]
    partitions: InputPartitions | None

    @classmethod
    def of(cls, context: dg.InputContext) -> "InputSource":
        """Return the source of an input: the table that it names, that of its asset, or that of the op upstream.

        Raises:
            InvalidInputError: The input belongs to no asset, and neither it nor its upstream names a table.
        """
        named = md.text(context.definition_metadata, md.TABLE)
        own = {md.TABLE: named} if named else {}
        upstream = context.upstream_output
        if context.has_asset_key:
            # A table that the input names takes precedence over that of the upstream asset.
            metadata = {**(upstream.definition_metadata if upstream else {}), **own}
            return cls(
                name=context.asset_key.to_user_string(),
                key=context.asset_key,
                metadata=metadata,
                partitions=InputPartitions.of_asset(context, metadata),
            )
        if named:
            return cls(name=f"table {named}", key=named, metadata=own, partitions=None)
        if upstream is None:
            raise InvalidInputError(
                f"{title_of(context)} belongs to no asset and follows no output, so it has no table; name one by "
                f'dg.In(metadata={{"{md.TABLE}": "shop/raw"}})'
            )
        table = OutputTable.of(upstream)
        return cls(
            name=table.owner, key=table.key, metadata=table.metadata, partitions=InputPartitions.of_output(table)
        )


def _own_partitions(context: dg.InputContext) -> tuple[dg.PartitionsDefinition, tuple[str, ...]] | None:
    """Return the partitions of the asset that reads, or None when it has none."""
    try:
        step = context.step_context
    except dg.DagsterInvariantViolationError:  # called outside of a run
        return None
    definition = step.entity_partitions_def
    if definition is None or not step.has_partitions:
        return None
    # This reads the range and not the key, because a single run over several partitions has no key.
    span = step.partition_key_range
    if span.start == span.end:
        return definition, (span.start,)
    # Dynamic partitions are in the instance.
    with dg.partition_loading_context(dynamic_partitions_store=step.instance):
        return definition, tuple(definition.get_partition_keys_in_range(span))


def is_checked(context: dg.InputContext) -> bool:
    """Return whether the input is the asset that the step checks."""
    if not context.has_asset_key:
        return False
    try:
        graph = context.step_context.job_def.asset_layer.asset_graph
    except dg.DagsterInvariantViolationError:  # called outside of a run: there is no step
        return False
    checks = (graph.assets_def_for_key(key) for key in graph.asset_check_keys if key.asset_key == context.asset_key)
    # A definition without assets only checks. One with assets may read an earlier partition of itself, from `main`.
    return any(not check.keys and check.node_def.name == context.op_def.name for check in checks)
