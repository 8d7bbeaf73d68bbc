"""The read side of the IO manager: the version, the columns and the rows that an input gets, and their type.

An input of which nothing was published is an error and no empty frame, because the IO manager creates the table of a
candidate on `main` before its first publication. An asset that can do without the rows says so: by the annotation
`Optional[T]` or by the metadata `lance/allow_missing`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from lance_dagster.datafiles import planned_schema
from lance_dagster.errors import InvalidInputError, RefNotFoundError, TableNotFoundError, VersionNotFoundError
from lance_dagster.format.validation import string_list
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.handles import handler_for, handlers
from lance_dagster.plugin.io.input_types import InputType
from lance_dagster.plugin.io.partitions import partition_filter, partitions_definition
from lance_dagster.plugin.resource import LanceResource, PinnedTable, SparkResource, all_of
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunBranch, RunChain, is_never_written, waiting_version

_NO_ROW = "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPartitions:
    """The partitions that an input reads, and the column or expression that tells them apart."""

    keys: tuple[str, ...]
    definition: dg.PartitionsDefinition | None
    partition_expr: object
    asset: str

    @classmethod
    def of(cls, context: dg.InputContext, upstream: Mapping[str, object]) -> "InputPartitions | None":
        """Return the partitions of an input, or None when it reads the whole table.

        A partitioned reader of an upstream without partitions reads the whole table, unless `lance/partition_expr` of
        the input or of the upstream says how its own partitions select rows.
        """
        given = md.plain(context.definition_metadata.get(md.PARTITION_EXPR, upstream.get(md.PARTITION_EXPR)))
        asset = context.asset_key.to_user_string()
        if context.has_asset_partitions:
            keys = tuple(context.asset_partition_keys)
            return cls(keys=keys, definition=partitions_definition(context), partition_expr=given, asset=asset)
        own = _own_partitions(context)
        if own is None:
            return None
        if not given:
            context.log.info(
                "input %r reads every partition of %s, which has no partitions in Dagster; give the input the metadata "
                "%s to read the rows of the partitions of this run",
                context.name,
                asset,
                md.PARTITION_EXPR,
            )
            return None
        return cls(keys=own[1], definition=own[0], partition_expr=given, asset=asset)

    def narrow(self, view: PinnedTable, keys: Sequence[str]) -> PinnedTable:
        """Return a view narrowed to some of the partitions."""
        selected = partition_filter(
            keys, view.schema, definition=self.definition, partition_expr=self.partition_expr, asset=self.asset
        )
        return replace(view, filter=all_of(view.filter, selected.predicate))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReader:
    """Read the inputs of one step: each is a view of one pinned version."""

    lance: LanceResource
    spark: SparkResource | None
    chain: RunChain

    def load(self, context: dg.InputContext) -> object:
        """Return the upstream table as the type that the input is annotated with.

        Raises:
            InvalidInputError: The annotation, the columns, the filter or the partitions cannot be used.
            TableNotFoundError: The table does not exist.
            VersionNotFoundError: Nothing of the table was published.
        """
        wanted = InputType.of(context)
        handler = handler_for(wanted.kind, handlers(self.spark))
        upstream = context.upstream_output.definition_metadata if context.upstream_output else {}
        partitions = InputPartitions.of(context, upstream)
        if wanted.by_partition and partitions is None:
            raise InvalidInputError(
                f"input {context.name!r} is annotated as a dict by partition, and "
                f"{context.asset_key.to_user_string()} has no partitions"
            )
        # The partitions before the first one do not exist, so a self-dependency asks for none of them there.
        none_asked = partitions is not None and not partitions.keys
        pinned = self._pinned(context, upstream, wanted, none_asked=none_asked)
        if pinned is None:
            return None
        view = _narrowed(context, pinned)
        if partitions is None:
            return handler.load(view, wanted.kind)
        if wanted.by_partition:
            return {str(key): handler.load(partitions.narrow(view, [key]), wanted.kind) for key in partitions.keys}
        return handler.load(partitions.narrow(view, partitions.keys), wanted.kind)

    def _pinned(
        self, context: dg.InputContext, upstream: Mapping[str, object], wanted: InputType, *, none_asked: bool
    ) -> PinnedTable | None:
        """Return the table at the version to read, or None when nothing can be read and the input is optional.

        Raises:
            TableNotFoundError: The table does not exist.
            VersionNotFoundError: Nothing was published.
        """
        asset = context.asset_key.to_user_string()
        try:
            found = self._at_ref(context, upstream)
        except TableNotFoundError as error:
            if wanted.optional:
                return None
            raise TableNotFoundError(f"{error}; {_remedy(context, asset)}") from None
        # A log line and not input metadata: Dagster records input metadata as an observation of the upstream
        # asset on each read, which floods its events and breaks its plots.
        context.log.debug("%s is read at %s", asset, found.ref)
        missing = found.filter == _NO_ROW or is_never_written(found.table, found.version)
        if wanted.optional and (missing or none_asked):
            if not none_asked:
                context.log.warning("input %r is None: nothing of %s was published", context.name, asset)
            return None
        if missing and not none_asked and not md.plain(context.definition_metadata.get(md.ALLOW_MISSING)):
            raise VersionNotFoundError(
                f"input {context.name!r} reads {asset} at {found.ref} of {found.table.uri}, and nothing was published "
                f"there; {_remedy(context, asset)}"
            )
        return found

    def _at_ref(self, context: dg.InputContext, upstream: Mapping[str, object]) -> PinnedTable:
        """Return the table at the version to read; without rows when the tag of a promoted node does not exist."""
        table = self.lance.table(context.asset_key, upstream)
        if ref := md.text(context.definition_metadata, md.REF):
            return PinnedTable(table=table, version=table.at(ref))
        tag = md.text(upstream, md.REF)
        if tag is None:
            chain = self._read_chain(context)
            # A check that is executed alone belongs to no run that wrote the table; the candidate that waits is meant.
            alone = RunBranch(table=table, chain=chain).head() is None and _is_checked(context)
            waiting = waiting_version(table, context.asset_key, context.instance) if alone else None
            return PinnedTable(table=table, version=waiting) if waiting else self.lance.pin(chain, table)
        try:
            return PinnedTable(table=table, version=table.at(tag))
        except RefNotFoundError:
            # The rows on `main`, if any, are not promoted.
            return PinnedTable(table=table, version=table.head(), filter=_NO_ROW)

    def _read_chain(self, context: dg.InputContext) -> RunChain:
        produced_in = context.upstream_output.run_id if context.upstream_output else EPHEMERAL_RUN_ID
        # The chain has to be consulted too: after a re-execution from asset failure Dagster names no
        # producer, although the parent run wrote the value.
        return self.chain.after(produced_in)


def _is_checked(context: dg.InputContext) -> bool:
    """Return whether the input is the asset that the step checks."""
    try:
        graph = context.step_context.job_def.asset_layer.asset_graph
    except dg.DagsterInvariantViolationError:  # called outside of a run: there is no step
        return False
    checks = (graph.assets_def_for_key(key) for key in graph.asset_check_keys if key.asset_key == context.asset_key)
    # A definition without assets only checks. One with assets may read an earlier partition of itself, which is main's.
    return any(not check.keys and check.node_def.name == context.op_def.name for check in checks)


def _narrowed(context: dg.InputContext, pinned: PinnedTable) -> PinnedTable:
    """Return a view narrowed by the columns and the filter of the input's metadata.

    Raises:
        InvalidInputError: A column does not exist, or the filter is invalid.
    """
    wanted = context.definition_metadata
    columns = md.plain(wanted.get(md.COLUMNS))
    chosen = None if columns is None else string_list("columns in the metadata of an input", columns, "id")
    condition = md.text(wanted, md.FILTER)
    if chosen is None and condition is None:
        return pinned
    try:
        # pylance finds some errors only while it reads, when a lazy value has already left the IO manager.
        planned_schema(pinned.to_lance(), chosen, condition)
    except InvalidInputError as error:
        known = "" if condition is None else f"; the columns are {', '.join(pinned.schema.names)}"
        raise InvalidInputError(
            f"input {context.name!r} of {context.asset_key.to_user_string()}: {error}{known}"
        ) from None
    return replace(pinned, columns=chosen, filter=all_of(pinned.filter, condition))


def _own_partitions(context: dg.InputContext) -> tuple[dg.PartitionsDefinition, tuple[str, ...]] | None:
    """Return the partitions of the asset that reads, or None when it has none."""
    try:
        step = context.step_context
    except dg.DagsterInvariantViolationError:  # called outside of a run
        return None
    definition = step.entity_partitions_def
    if definition is None or not step.has_partitions:
        return None
    span = step.partition_key_range
    if span.start == span.end:
        return definition, (span.start,)
    return definition, tuple(definition.get_partition_keys_in_range(span))


def _remedy(context: dg.InputContext, asset: str) -> str:
    return (
        f"publish {asset} first, or annotate {context.name!r} as Optional[...] to get None, or give the input the "
        f"metadata {{{md.ALLOW_MISSING!r}: True}} to get no rows from a table that exists"
    )
