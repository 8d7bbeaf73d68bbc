"""Stores what assets return on the branch of their run, and gives inputs the version their run should see."""

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from lance_dagster.datafiles import LanceDataset
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import string_list
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.frames import Destination, handler_for, handlers
from lance_dagster.plugin.partitions import partition_filter
from lance_dagster.plugin.pinned import PinnedTable, all_of
from lance_dagster.plugin.publication import landed_as
from lance_dagster.plugin.resource import LanceResource, SparkResource, check_fields
from lance_dagster.plugin.run_branch import RunBranch
from lance_dagster.plugin.run_chain import EPHEMERAL_RUN_ID, RunChain, started_at
from lance_dagster.plugin.writes import PassedRows, Write, partitions_definition, write_mode
from lance_dagster.table import LanceTable


class LanceIOManager(dg.ConfigurableIOManager):
    """Keeps assets in Lance tables: an output is one commit on its run's branch, an input is one version.

    The type of a returned value and the annotation of an input choose the library: Spark, pandas, Polars,
    Arrow, staged files; an input without an annotation is a lazy `lance.LanceDataset`. A partitioned asset
    replaces the rows of its partitions, found by its metadata `partition_expr`; another one overwrites its
    table. Metadata `write_mode` (`append`, `overwrite`, `replace`) of the asset, or of the output at run
    time, changes that.

    An append is safe to retry: rows that an earlier attempt of the step left on the branch are taken out by
    the same commit. Outside of a run, as in a test that calls this directly, writes go to `main`.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    lance: LanceResource = Field(description="Where the tables are.")
    spark: SparkResource | None = Field(
        default=None, description="Session for inputs annotated as Spark frames, when none is running."
    )
    write_mode: str = Field(
        default="", description="append, overwrite or replace; empty: replace if partitioned, else overwrite."
    )

    _chain: RunChain = PrivateAttr(default_factory=RunChain)
    _instance: dg.DagsterInstance | None = PrivateAttr(default=None)

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields and modes where they are written."""
        check_fields(type(self), fields)
        super().__init__(**fields)
        if self.write_mode and not isinstance(self.write_mode, dg.EnvVar):
            write_mode(self.write_mode)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Find out which run this is and which runs it continues; once per step process."""
        self._instance = context.instance
        self._chain = RunChain.of(context.run, context.instance)

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Commit a value to the run's branch of the asset's table, as one version.

        Raises:
            InvalidInputError: The value, the write mode or the partition column cannot work; nothing was
                written. SchemaMismatchError: The rows do not fit the table.
        """
        write = Write.of(context, self.write_mode)
        handler = handler_for(_type_of_output(write.asset, obj), handlers(self.spark))
        vectors = _vectors(context.definition_metadata)
        schema = handler.schema(obj, vectors)
        # A partition column that cannot work is refused here, because the next step may create the table.
        write.scope(schema)
        uri = self.lance.uri_of(context.asset_key, context.definition_metadata)
        # Another process of the run may create the table at the same time.
        table = LanceTable.create(uri, schema, storage_options=self.lance.storage_options, exist_ok=True)
        branch = RunBranch(table=table, chain=self._chain_of(context))
        if write.mode == "append" and branch.find() is None:
            self._refuse_published(write.asset, branch)
        name = branch.ensure()
        current = None if write.mode == "overwrite" else table.schema(name)
        rows = handler.rows(obj, Destination(table=table, branch=name, schema=current, vectors=vectors))
        passed = PassedRows(rows, write)
        version = write.commit(branch, passed.rows)
        self._report(context, table, version, passed.count if write.keys else None)

    def load_input(self, context: dg.InputContext) -> object:
        """Return the upstream table as this run should see it, as the type the input is annotated with.

        The first that applies: `lance/ref` in the input's metadata; the tag of a promoted node; the branch of
        the run that produced the value or of a run this one continues; the resource's `read_ref`. Input
        metadata `columns` and `filter`, and the partitions asked for, narrow what is read.
        """
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
        context.log.debug("%s is read at %s", context.asset_key.to_user_string(), pinned.ref)
        return PinnedTable(table=table, version=pinned.version, columns=chosen, filter=narrowed)

    def _chain_of(self, context: dg.OutputContext) -> RunChain:
        return self._chain if self._chain.run_ids else RunChain.of_run_id(context.run_id)

    def _read_chain(self, context: dg.InputContext) -> RunChain:
        produced_in = context.upstream_output.run_id if context.upstream_output else EPHEMERAL_RUN_ID
        return self._chain.after(produced_in)

    def _refuse_published(self, asset: str, branch: RunBranch) -> None:
        """Refuse to append what a run that this one continues has published: its rows would be there twice.

        Raises:
            InvalidInputError: Such a run has published its append to the asset.
        """
        earlier = branch.chain.run_ids[1:]
        if not earlier or self._instance is None:
            return
        since = started_at(dg.RunsFilter(run_ids=list(earlier)), self._instance)
        landed = landed_as(branch.table, {md.RUN_ID: earlier, md.ASSET_KEY: [asset]}, since)
        if landed is not None:
            raise InvalidInputError(
                f"run {landed.properties[md.RUN_ID]}, which this run continues, appended to {asset} and published it "
                f"as {landed}; repeating the step would add its rows again: leave the step out, or start a new run"
            )

    def _report(
        self, context: dg.OutputContext, table: LanceTable, version: Version, partition_rows: int | None
    ) -> None:
        """Put what was committed on the event of the output."""
        metadata: dict[str, dg.MetadataValue | dg.TableSchema | str | int] = {
            md.ROW_COUNT: version.rows,
            md.COLUMN_SCHEMA: md.column_schema(table.schema(version)),
            md.URI: table.uri,
            md.TABLE_NAME: self.lance.address_of(context.asset_key, context.definition_metadata).dotted,
            **md.version_metadata(version),
            # What the commit was made on, which is not the head read before where another step came first.
            md.BASE_VERSION: version.parents[0],
        }
        if partition_rows is not None:
            metadata[md.PARTITION_ROW_COUNT] = partition_rows
        context.add_output_metadata(metadata)
        set_data_version(context, version.transaction)


def set_data_version(context: dg.OutputContext, data_version: str) -> None:
    """Make an output's data version the transaction that wrote it, so that staleness follows commits.

    Version numbers would not do: they are counted per branch, and a merge gives the same rows another one.
    """
    try:
        step = context.step_context
    except dg.DagsterInvariantViolationError:  # called directly: there is no event to put it on
        return
    step.set_data_version(context.asset_key, dg.DataVersion(data_version))


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


def _vectors(metadata: Mapping[str, object]) -> dict[str, int]:
    given = md.plain(metadata.get(md.VECTORS)) or {}
    if not isinstance(given, Mapping) or not all(isinstance(length, int) for length in given.values()):
        raise InvalidInputError(f"{md.VECTORS} must be {{column: length}}, not {json.dumps(given, default=str)}")
    return {str(column): int(length) for column, length in given.items()}


def _type_of_output(asset: str, value: object) -> type:
    if value is None:
        raise InvalidInputError(
            f"{asset} returned None, so there is nothing to store; return rows, or annotate the asset "
            "`-> None` or return a MaterializeResult when it stores them itself"
        )
    return type(value)


def _type_of_input(context: dg.InputContext) -> type:
    """Return the class an input is annotated with; a lazy handle when it has no annotation."""
    try:
        annotated: object = context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:  # called directly
        return LanceDataset
    if annotated is Any or annotated is None:
        return LanceDataset
    if not isinstance(annotated, type):
        raise InvalidInputError(
            f"input {context.name!r} is annotated with {annotated}; a table is read as one class, such as pyarrow.Table"
        )
    return annotated
