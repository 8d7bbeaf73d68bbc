"""The read side of the IO manager: the version, the columns and the rows that an input gets, and their type.

An input whose table was never published is an error and not an empty frame, because the IO manager creates the table of
a candidate on `main` before its first publication. An asset that can do without the rows declares it by the annotation
`Optional[T]` or by the metadata `lance/allow_missing`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import dagster as dg

from lance_dagster.datafiles import planned_schema
from lance_dagster.errors import InvalidInputError, RefNotFoundError, TableNotFoundError, VersionNotFoundError
from lance_dagster.format.sql_text import all_of
from lance_dagster.format.validation import string_list
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.backfill_reads import read_of_backfill
from lance_dagster.plugin.branch_extent import newest_waiting
from lance_dagster.plugin.io.handles import handler_for, handlers
from lance_dagster.plugin.io.input_source import InputSource, is_checked
from lance_dagster.plugin.io.input_types import InputType, title_of
from lance_dagster.plugin.resource import LanceResource, PinnedTable, SparkResource
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunBranch, RunChain, is_never_written
from lance_dagster.plugin.settings import refuse_unknown_settings
from lance_dagster.plugin.table_asset import TableKey
from lance_dagster.table import LanceTable

_NO_ROW = "false"


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
        wanted = InputType.of(context)
        handler = handler_for(wanted.kind, handlers(self.spark))
        partitions = source.partitions
        if wanted.by_partition and partitions is None:
            raise InvalidInputError(
                f"{title_of(context)} is annotated as a dict by partition, and "
                + (f"{source.name} has no partitions" if context.has_input_name else "no partitions were asked for")
            )
        # A self-dependency of the first partition asks for none, because there is no partition before it.
        none_asked = partitions is not None and not partitions.keys
        pinned = self._pinned(context, source, wanted, none_asked=none_asked)
        if pinned is None:
            return None
        view = _narrowed(context, source, pinned)
        if partitions is None:
            return handler.load(view, wanted.kind)
        if wanted.by_partition:
            parts = {str(key): partitions.narrow(view, [key]) for key in partitions.keys}
            return {
                key: handler.load(part, wanted.kind) if part.count_rows() or not wanted.none_for_empty else None
                for key, part in parts.items()
            }
        return handler.load(partitions.narrow(view, partitions.keys), wanted.kind)

    def _pinned(
        self, context: dg.InputContext, source: InputSource, wanted: InputType, *, none_asked: bool
    ) -> PinnedTable | None:
        """Return the table at the version to read, or None when nothing can be read and the input is optional.

        Raises:
            TableNotFoundError: The table does not exist.
            VersionNotFoundError: Nothing was published.
        """
        asset = source.name
        try:
            found, absent = self._at_ref(context, source)
        except TableNotFoundError as error:
            if wanted.optional:
                return None
            raise TableNotFoundError(f"{error}; {_remedy(context, asset)}") from None
        # A log line and not input metadata: Dagster records input metadata as an observation of the upstream
        # asset on each read, which floods its events and breaks its plots.
        context.log.debug("%s is read at %s", asset, found.ref)
        missing = absent is not None or is_never_written(found.table, found.version)
        if wanted.optional and (missing or none_asked):
            if not none_asked:
                context.log.warning("%s is None: nothing of %s was published", title_of(context), asset)
            return None
        allowed = wanted.none_for_empty or md.plain(context.definition_metadata.get(md.ALLOW_MISSING))
        if missing and not none_asked and not allowed:
            at = f"{found.ref} of {found.table.uri}" if absent is None else repr(absent.ref)
            why = "" if absent is None else f": {absent}"
            raise VersionNotFoundError(
                f"{title_of(context)} reads {asset} at {at}, and nothing was published there{why}; "
                f"{_remedy(context, asset)}"
            )
        return found

    def _at_ref(self, context: dg.InputContext, source: InputSource) -> tuple[PinnedTable, RefNotFoundError | None]:
        """Return the table at the version to read; without rows, and with the error, when a node's tag does not exist.

        Raises:
            RefNotFoundError: The ref that the input names does not exist.
        """
        table, tag = self._table(source.key, source.metadata)
        if ref := md.text(context.definition_metadata, md.REF):
            return PinnedTable(table=table, version=self.lance.version_at(table, ref, self.chain.run_id)), None
        if tag is None:
            chain = self._read_chain(context)
            # A check that is executed alone is not part of a run that wrote the table. It reads the waiting candidate.
            alone = RunBranch(table=table, chain=chain).head() is None and is_checked(context)
            repository = self.lance.open_repository() if alone else None
            unpublished = None if repository is None else newest_waiting(repository, table)
            unpublished = unpublished or self._of_backfill(context, table)
            found = PinnedTable(table=table, version=unpublished) if unpublished else self.lance.pin(chain, table)
            return found, None
        try:
            return PinnedTable(table=table, version=self.lance.version_at(table, tag, self.chain.run_id)), None
        except RefNotFoundError as error:
            # The rows on `main`, if any, are not promoted.
            return PinnedTable(table=table, version=table.head(), filter=_NO_ROW), error

    def _of_backfill(self, context: dg.InputContext, table: LanceTable) -> Version | None:
        """Return the version to read because other runs of the same backfill wrote it; None if none did."""
        if self.chain.backfill_id is None or not context.has_asset_key:
            return None
        # These are the partitions of the upstream, which may differ from those of the asset that reads.
        keys = tuple(context.asset_partition_keys) if context.has_asset_partitions else ()
        if context.has_asset_partitions and not keys:
            return None
        repository = self.lance.open_repository() if self.chain.backfill_id else None
        return read_of_backfill(table, self.chain, repository, instance=context.instance, keys=keys)

    def _table(self, key: TableKey, metadata: Mapping[str, object]) -> tuple[LanceTable, str | None]:
        """Return the table of an asset, and the tag or branch to read when the asset represents one.

        Another code location may declare the promoted node `production/shop/orders` by its key alone. It is recognised
        by the table `shop/orders` and its tag `production`, when there is no table at the place of the whole key.
        """
        ref = md.text(metadata, md.REF)
        try:
            return self.lance.table(key, metadata), ref
        except TableNotFoundError as error:
            first, *rest = key.path if isinstance(key, dg.AssetKey) else [key]
            if not rest or md.text(metadata, md.CANDIDATE) or md.text(metadata, md.TABLE):
                raise
            table = self._find(dg.AssetKey(rest), metadata)
            if table is not None and (ref or first) in table.tags.list():
                return table, ref or first
            # A key of two parts, such as `shop/orders`, is rarely a promoted node.
            if table is None and len(rest) == 1:
                raise
            where = "" if table is None else f", and the table at {table.uri} has no tag {first!r}"
            raise TableNotFoundError(
                f"{error}{where}; if {'/'.join([first, *rest])} is the promoted node of a table, declare it with "
                f"promoted_asset_spec({'/'.join(rest)!r}, tag={first!r})"
            ) from None

    def _find(self, key: dg.AssetKey, metadata: Mapping[str, object]) -> LanceTable | None:
        with suppress(TableNotFoundError):
            return self.lance.table(key, metadata)
        return None

    def _read_chain(self, context: dg.InputContext) -> RunChain:
        produced_in = context.upstream_output.run_id if context.upstream_output else EPHEMERAL_RUN_ID
        # The chain has to be consulted too: after a re-execution from asset failure Dagster names no
        # producer, although the parent run wrote the value.
        return self.chain.after(produced_in)


def _narrowed(context: dg.InputContext, source: InputSource, pinned: PinnedTable) -> PinnedTable:
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
        planned_schema(pinned.table.to_lance(pinned.version), chosen, condition)
    except InvalidInputError as error:
        known = "" if condition is None else f"; the columns are {', '.join(pinned.schema.names)}"
        of_asset = f" of {source.name}" if context.has_input_name else ""
        raise InvalidInputError(f"{title_of(context)}{of_asset}: {error}{known}") from None
    return replace(pinned, columns=chosen, filter=all_of(pinned.filter, condition))


def _remedy(context: dg.InputContext, asset: str) -> str:
    annotate = f"annotate {context.name!r} as" if context.has_input_name else "ask for"
    return (
        f"publish {asset} first, or {annotate} Optional[...] to get None, or give the input the "
        f"metadata {{{md.ALLOW_MISSING!r}: True}} to get no rows from a table that exists"
    )
