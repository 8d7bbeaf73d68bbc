"""The read side of the IO manager: the version, the columns and the rows that an input gets, and their type.

`InputType` is the annotation of an input: the class that its rows are read as, and whether they may be missing.
`InputSource` is the table that it reads and the partitions of it. `InputReader` finds the version and loads the rows.

An input whose table was never published is an error and not an empty frame, because the IO manager creates the table of
a candidate on `main` before its first publication. An asset that can do without the rows declares it by the annotation
`Optional[T]` or by the metadata `lance/allow_missing`.
"""

import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Union, get_args, get_origin

import dagster as dg

from lance_dagster.datafiles import planned_schema
from lance_dagster.errors import InvalidInputError, RefNotFoundError, TableNotFoundError, VersionNotFoundError
from lance_dagster.format.sql_text import all_of
from lance_dagster.format.validation import string_list
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.backfill_reads import read_of_backfill
from lance_dagster.plugin.branch_extent import newest_waiting
from lance_dagster.plugin.io.frames import handler_for
from lance_dagster.plugin.io.output_tables import OutputTable
from lance_dagster.plugin.io.partitions import partition_filter, partitions_definition
from lance_dagster.plugin.resource import LanceResource, PinnedTable, SparkResource
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunBranch, RunChain, is_never_written
from lance_dagster.plugin.settings import refuse_unknown_settings
from lance_dagster.plugin.table_asset import TableKey
from lance_dagster.table import LanceTable

_NO_ROW = "false"
# Annotations that name no class.
_UNNAMED = (Any, None, object)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputType:
    """The annotation of an input.

    Example: `Optional[pa.Table]` is `kind=pa.Table, optional=True`, `dict[str, pa.Table]` is `kind=pa.Table,
    by_partition=True`, `Optional[dict[str, pa.Table]]` is both, and `dict[str, Optional[pa.Table]]` is
    `kind=pa.Table, by_partition=True, none_for_empty=True`.

    Attributes:
        kind: The class of one value; `list` for rows as dictionaries.
        optional: Whether the input is None when there is nothing to read: `Optional[T]`.
        by_partition: Whether the input has one value for each partition of the upstream: `dict[str, T]`.
        none_for_empty: Whether the value of a partition without rows is None: `dict[str, Optional[T]]`. A table stores
            no partitions, so such a partition cannot be told from a partition that was never written.
    """

    kind: type
    optional: bool = False
    by_partition: bool = False
    none_for_empty: bool = False

    @classmethod
    def of(cls, context: dg.InputContext) -> "InputType":
        """Return the type of an input.

        An input without an annotation is a `PinnedTable`. It reads nothing until one of its methods is called: asset
        checks often have no annotation, and a full read could fill memory. It carries the columns, the filter and the
        partitions of the input, which a `lance.LanceDataset` cannot.

        Raises:
            InvalidInputError: The annotation is not one class.
        """
        try:
            annotated: object = context.dagster_type.typing_type
        except dg.DagsterInvariantViolationError:  # called outside of a run
            return cls(kind=PinnedTable)
        # An input of an op that collects several outputs gets one call for each, with the type of the whole list.
        collected = not context.has_asset_key and get_origin(annotated) is list
        if collected and not _is_mapping((get_args(annotated) or (Any,))[0]):
            annotated = get_args(annotated)[0] if get_args(annotated) else Any
        input_type = _parsed(annotated)
        if input_type is None:
            raise InvalidInputError(
                f"{title_of(context)} is annotated with {annotated}; a table is read as one class, such as "
                "pyarrow.Table, as Optional[T], as dict[str, T] with a T for each partition, or as list[dict]"
            )
        return input_type


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
        partition_expr = md.plain(context.definition_metadata.get(md.PARTITION_EXPR, upstream.get(md.PARTITION_EXPR)))
        asset = context.asset_key.to_user_string()
        # These are the partitions of the upstream asset, after Dagster's partition mapping.
        if context.has_asset_partitions:
            keys = tuple(context.asset_partition_keys)
            return cls(keys=keys, definition=partitions_definition(context), partition_expr=partition_expr, asset=asset)
        own = _own_partitions(context)
        if own is None:
            return None
        if not partition_expr:
            context.log.info(
                "%s reads every partition of %s, which has no partitions in Dagster; give the input the metadata "
                "%s to read the rows of the partitions of this run",
                title_of(context),
                asset,
                md.PARTITION_EXPR,
            )
            return None
        return cls(keys=own[1], definition=own[0], partition_expr=partition_expr, asset=asset)

    @classmethod
    def of_output(cls, table: OutputTable) -> "InputPartitions | None":
        """Return the partitions that one step wrote of a table of several steps; None for a table of one step."""
        if not table.partition_keys:
            return None
        partition_expr = md.plain(table.metadata.get(md.PARTITION_EXPR))
        return cls(keys=table.partition_keys, definition=None, partition_expr=partition_expr, asset=table.owner)

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
        """Return the source of an input: the table that the input names, the table of its asset, or of the op upstream.

        Raises:
            InvalidInputError: The input belongs to no asset, and neither it nor its upstream names a table.
        """
        named = md.text(context.definition_metadata, md.TABLE)
        own = {md.TABLE: named} if named else {}
        upstream = context.upstream_output
        if context.has_asset_key:
            # A table that the input names takes precedence over the table of the upstream asset.
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
        source = InputSource.of(context)
        of_asset = f" of {source.name}" if context.has_input_name else ""
        refuse_unknown_settings(context.definition_metadata, "input", f"{title_of(context)}{of_asset}")
        annotation = InputType.of(context)
        handler = handler_for(annotation.kind, self.spark)
        partitions = source.partitions
        if annotation.by_partition and partitions is None:
            raise InvalidInputError(
                f"{title_of(context)} is annotated as a dict by partition, and "
                + (f"{source.name} has no partitions" if context.has_input_name else "no partitions were asked for")
            )
        # A self-dependency of the first partition reads no partition, because there is none before it.
        reads_none = partitions is not None and not partitions.keys
        pinned = self._pinned(context, source, annotation, reads_none=reads_none)
        if pinned is None:
            return None
        view = _narrowed(context, source, pinned)
        if partitions is None:
            return handler.load(view, annotation.kind)
        if annotation.by_partition:
            parts = {str(key): partitions.narrow(view, [key]) for key in partitions.keys}
            return {
                key: handler.load(part, annotation.kind) if part.count_rows() or not annotation.none_for_empty else None
                for key, part in parts.items()
            }
        return handler.load(partitions.narrow(view, partitions.keys), annotation.kind)

    def _pinned(
        self, context: dg.InputContext, source: InputSource, annotation: InputType, *, reads_none: bool
    ) -> PinnedTable | None:
        """Return the table at the version to read, or None when nothing can be read and the input is optional.

        Raises:
            TableNotFoundError: The table does not exist.
            VersionNotFoundError: Nothing was published.
        """
        asset = source.name
        try:
            pinned, absent = self._at_ref(context, source)
        except TableNotFoundError as error:
            if annotation.optional:
                return None
            raise TableNotFoundError(f"{error}; {_remedy(context, asset)}") from None
        # A log line and not input metadata: Dagster records input metadata as an observation of the upstream
        # asset on each read, which floods its events and breaks its plots.
        context.log.debug("%s is read at %s", asset, pinned.ref)
        missing = absent is not None or is_never_written(pinned.table, pinned.version)
        if annotation.optional and (missing or reads_none):
            if not reads_none:
                context.log.warning("%s is None: nothing of %s was published", title_of(context), asset)
            return None
        allowed = annotation.none_for_empty or md.plain(context.definition_metadata.get(md.ALLOW_MISSING))
        if missing and not reads_none and not allowed:
            at = f"{pinned.ref} of {pinned.table.uri}" if absent is None else repr(absent.ref)
            why = "" if absent is None else f": {absent}"
            raise VersionNotFoundError(
                f"{title_of(context)} reads {asset} at {at}, and nothing was published there{why}; "
                f"{_remedy(context, asset)}"
            )
        return pinned

    def _at_ref(self, context: dg.InputContext, source: InputSource) -> tuple[PinnedTable, RefNotFoundError | None]:
        """Return the table at the version to read.

        Where the asset is a promoted node whose tag does not exist, the table is returned without rows, together with
        the error.

        Raises:
            RefNotFoundError: The ref that the input names does not exist.
        """
        table, tag = self._table(source.key, source.metadata)
        if ref := md.text(context.definition_metadata, md.REF):
            return PinnedTable(table=table, version=self.lance.version_at(table, ref, self.chain.run_id)), None
        if tag is None:
            chain = self._read_chain(context)
            # A check that is executed alone belongs to no run that wrote the table. It reads the waiting candidate.
            alone = RunBranch(table=table, chain=chain).head() is None and is_checked(context)
            repository = self.lance.open_repository() if alone else None
            unpublished = None if repository is None else newest_waiting(repository, table)
            unpublished = unpublished or self._of_backfill(context, table)
            return PinnedTable(table=table, version=unpublished) if unpublished else self.lance.pin(chain, table), None
        try:
            return PinnedTable(table=table, version=self.lance.version_at(table, tag, self.chain.run_id)), None
        except RefNotFoundError as error:
            # The rows on `main`, if any, are not promoted.
            return PinnedTable(table=table, version=table.head(), filter=_NO_ROW), error

    def _of_backfill(self, context: dg.InputContext, table: LanceTable) -> Version | None:
        """Return the version that other runs of the same backfill wrote, to read it; None where they wrote nothing."""
        if self.chain.backfill_id is None or not context.has_asset_key:
            return None
        # These are the partitions of the upstream; the asset that reads may have other partitions.
        keys = tuple(context.asset_partition_keys) if context.has_asset_partitions else ()
        if context.has_asset_partitions and not keys:
            return None
        repository = self.lance.open_repository()
        return read_of_backfill(table, self.chain, repository, instance=context.instance, keys=keys)

    def _table(self, key: TableKey, metadata: Mapping[str, object]) -> tuple[LanceTable, str | None]:
        """Return the table of an asset, and the tag or branch to read when the asset represents one.

        Another code location may declare the promoted node `production/shop/orders` by its key alone. The node is
        recognised by the table `shop/orders` and its tag `production`, when there is no table at the place of the whole
        key.
        """
        ref = md.text(metadata, md.REF)
        try:
            return self.lance.table(key, metadata), ref
        except TableNotFoundError as error:
            first, *candidate_path = key.path if isinstance(key, dg.AssetKey) else [key]
            if not candidate_path or md.text(metadata, md.CANDIDATE) or md.text(metadata, md.TABLE):
                raise
            table = self._find(dg.AssetKey(candidate_path), metadata)
            if table is not None and (ref or first) in table.tags.list():
                return table, ref or first
            # A key of two parts, such as `shop/orders`, is rarely a promoted node.
            if table is None and len(candidate_path) == 1:
                raise
            where = "" if table is None else f", and the table at {table.uri} has no tag {first!r}"
            raise TableNotFoundError(
                f"{error}{where}; if {'/'.join([first, *candidate_path])} is the promoted node of a table, declare it "
                f"with promoted_asset_spec({'/'.join(candidate_path)!r}, tag={first!r})"
            ) from None

    def _find(self, key: dg.AssetKey, metadata: Mapping[str, object]) -> LanceTable | None:
        with suppress(TableNotFoundError):
            return self.lance.table(key, metadata)
        return None

    def _read_chain(self, context: dg.InputContext) -> RunChain:
        produced_in = context.upstream_output.run_id if context.upstream_output else EPHEMERAL_RUN_ID
        # The chain counts too: after a re-execution from asset failure Dagster names no producer, although the parent
        # run wrote the value.
        return self.chain.after(produced_in)


def _narrowed(context: dg.InputContext, source: InputSource, pinned: PinnedTable) -> PinnedTable:
    """Return a view narrowed by the columns and the filter of the input's metadata.

    Raises:
        InvalidInputError: A column does not exist, or the filter is invalid.
    """
    settings = context.definition_metadata
    columns = md.plain(settings.get(md.COLUMNS))
    chosen = None if columns is None else string_list("columns in the metadata of an input", columns, "id")
    condition = md.text(settings, md.FILTER)
    if chosen is None and condition is None:
        return pinned
    try:
        # pylance finds some errors only while it reads, when a lazy value has already left the IO manager.
        planned_schema(pinned.table.to_lance(pinned.version), chosen, condition)
    except InvalidInputError as error:
        hint = "" if condition is None else f"; the columns are {', '.join(pinned.schema.names)}"
        of_asset = f" of {source.name}" if context.has_input_name else ""
        raise InvalidInputError(f"{title_of(context)}{of_asset}: {error}{hint}") from None
    return replace(pinned, columns=chosen, filter=all_of(pinned.filter, condition))


def _remedy(context: dg.InputContext, asset: str) -> str:
    annotate = f"annotate {context.name!r} as" if context.has_input_name else "ask for"
    return (
        f"publish {asset} first, or {annotate} Optional[...] to get None, or give the input the "
        f"metadata {{{md.ALLOW_MISSING!r}: True}} to get no rows from a table that exists"
    )


def title_of(context: dg.InputContext) -> str:
    """Return the words by which messages name an input, or the value that a program loads outside of a run."""
    if context.has_input_name:
        return f"input {context.name!r}"
    # Dagster gives `load_asset_value` a context without a name.
    return f"the value of {context.asset_key.to_user_string()}" if context.has_asset_key else "the value"


def _parsed(annotated: object) -> InputType | None:
    origin, arguments = get_origin(annotated), get_args(annotated)
    if any(annotated is unnamed for unnamed in _UNNAMED):
        return InputType(kind=PinnedTable)
    if origin in (Union, types.UnionType):
        classes = [argument for argument in arguments if argument is not type(None)]
        inner = _parsed(classes[0]) if len(classes) == 1 else None
        return replace(inner, optional=True) if inner else None
    if _is_mapping(annotated):
        inner = _parsed(arguments[1]) if arguments else InputType(kind=PinnedTable)
        if inner is None or inner.by_partition:
            return None
        return replace(inner, optional=False, by_partition=True, none_for_empty=inner.optional)
    if annotated is list or (origin is list and (arguments[0] is Any or _is_mapping(arguments[0]))):
        return InputType(kind=list)
    return InputType(kind=annotated) if isinstance(annotated, type) and origin is None else None


def _is_mapping(annotated: object) -> bool:
    return annotated in (dict, Mapping) or get_origin(annotated) in (dict, Mapping)


def _own_partitions(context: dg.InputContext) -> tuple[dg.PartitionsDefinition, tuple[str, ...]] | None:
    """Return the partitions of the run, of the asset that reads, or None for an asset without partitions."""
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
    # A definition without assets only checks. A definition with assets may read an earlier partition of its asset, from
    # `main`.
    return any(not check.keys and check.node_def.name == context.op_def.name for check in checks)
