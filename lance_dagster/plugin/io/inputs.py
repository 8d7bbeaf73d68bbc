"""The read side of the IO manager: the version, the columns and the rows that an input gets, and their type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from lance_dagster.datafiles import LanceDataset
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import string_list
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.frames import handler_for, handlers
from lance_dagster.plugin.io.partitions import partition_filter, partitions_definition
from lance_dagster.plugin.resource import LanceResource, PinnedTable, SparkResource, all_of
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunChain


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReader:
    """Read the inputs of one step: each is a view of one pinned version."""

    lance: LanceResource
    spark: SparkResource | None
    chain: RunChain

    def load(self, context: dg.InputContext) -> object:
        """Return the upstream table as the type that the input is annotated with."""
        kind = _type_of_input(context)
        return handler_for(kind, handlers(self.spark)).load(self._view(context), kind)

    def _view(self, context: dg.InputContext) -> PinnedTable:
        upstream = context.upstream_output.definition_metadata if context.upstream_output else {}
        wanted = context.definition_metadata
        table = self.lance.table(context.asset_key, upstream)
        ref = md.text(wanted, md.REF) or md.text(upstream, md.REF)
        pinned = (
            PinnedTable(table=table, version=table.at(ref)) if ref else self.lance.pin(self._read_chain(context), table)
        )
        columns = md.plain(wanted.get(md.COLUMNS))
        chosen = None if columns is None else string_list("columns in the metadata of an input", columns, "id")
        narrowed = all_of(md.text(wanted, md.FILTER), _partition_filter(context, upstream, pinned))
        # A log line and not input metadata: Dagster records input metadata as an observation of the upstream
        # asset on each read, which floods its events and breaks its plots.
        context.log.debug("%s is read at %s", context.asset_key.to_user_string(), pinned.ref)
        return PinnedTable(table=table, version=pinned.version, columns=chosen, filter=narrowed)

    def _read_chain(self, context: dg.InputContext) -> RunChain:
        produced_in = context.upstream_output.run_id if context.upstream_output else EPHEMERAL_RUN_ID
        # The chain has to be consulted too: after a re-execution from asset failure Dagster names no
        # producer, although the parent run wrote the value.
        return self.chain.after(produced_in)


def _partition_filter(context: dg.InputContext, upstream: Mapping[str, object], pinned: PinnedTable) -> str | None:
    if not context.has_asset_partitions:
        return None
    selected = partition_filter(
        list(context.asset_partition_keys),
        pinned.schema,
        definition=partitions_definition(context),
        partition_expr=md.plain(upstream.get(md.PARTITION_EXPR)),
        asset=context.asset_key.to_user_string(),
    )
    return selected.predicate


def _type_of_input(context: dg.InputContext) -> type:
    """Return the class that an input is annotated with; `LanceDataset` when it has no annotation.

    A lazy handle is the default because asset checks often annotate nothing, and a full read could fill memory.
    """
    try:
        annotated: object = context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:  # called outside of a run
        return LanceDataset
    if annotated is Any or annotated is None:
        return LanceDataset
    if not isinstance(annotated, type):
        raise InvalidInputError(
            f"input {context.name!r} is annotated with {annotated}; a table is read as one class, such as pyarrow.Table"
        )
    return annotated
