"""The write side of the IO manager: the write that an output requests, and its commit to the run's branch."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import dagster as dg
import pyarrow as pa

from lance_dagster.datafiles import StagedFiles, read_data_file
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import DATA
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.frames import Destination, Rows
from lance_dagster.plugin.io.handles import handler_for, handlers
from lance_dagster.plugin.io.partition_values import PartitionFilter
from lance_dagster.plugin.io.partitions import partition_filter, partitions_definition
from lance_dagster.plugin.publish.publication import landed_as
from lance_dagster.plugin.resource import LanceResource, SparkResource
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunBranch, RunChain, started_at
from lance_dagster.plugin.table_asset import Ownership
from lance_dagster.table import LanceTable

WriteMode = Literal["append", "overwrite", "replace"]
_MODES: tuple[WriteMode, ...] = get_args(WriteMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The write that one output requests."""

    asset: str
    mode: WriteMode
    keys: tuple[str, ...]
    definition: dg.PartitionsDefinition | None
    partition_expr: object
    properties: Mapping[str, str]

    @classmethod
    def of(cls, context: dg.OutputContext, default_mode: str) -> "Write":
        """Determine the write of an output.

        The write mode is the first of these: the output's metadata, the asset's metadata, the IO manager's default.

        Raises:
            InvalidInputError: The output belongs to no asset, or the write mode cannot be used.
        """
        if not context.has_asset_key:
            raise InvalidInputError(
                f"output {context.name!r} belongs to no asset, so it has no table; give it another IO manager"
            )
        asset = context.asset_key.to_user_string()
        # The list of keys is the only form that works for every kind of partition. Without partitions Dagster
        # raises for it, hence the guard.
        keys = tuple(context.asset_partition_keys) if context.has_asset_partitions else ()
        given = md.text(context.output_metadata, md.WRITE_MODE) or md.text(context.definition_metadata, md.WRITE_MODE)
        mode = write_mode(given or default_mode or ("replace" if keys else "overwrite"))
        if mode == "replace" and not keys:
            raise InvalidInputError(f"write_mode 'replace' of {asset} needs partitions; use overwrite or append")
        return cls(
            asset=asset,
            mode=mode,
            keys=keys,
            definition=partitions_definition(context),
            partition_expr=md.plain(context.definition_metadata.get(md.PARTITION_EXPR)),
            properties=_properties(context, asset, keys),
        )

    def scope(self, schema: pa.Schema) -> PartitionFilter | None:
        """Return the filter of the rows that the write claims, for a schema; None when it names no partition column.

        A replace deletes these rows. An append only declares that its rows are among them, so it may do without a
        `partition_expr`. An overwrite claims every row.

        Raises:
            InvalidInputError: The asset's `partition_expr` is missing or does not fit the schema.
        """
        unnamed = self.mode == "append" and (self.partition_expr is None or not self.keys)
        if self.mode == "overwrite" or unnamed:
            return None
        return partition_filter(
            self.keys,
            schema,
            definition=self.definition,
            partition_expr=self.partition_expr,
            asset=self.asset,
        )

    def commit(self, branch: RunBranch, rows: Rows, schema: pa.Schema | None) -> Version:
        """Commit the rows to the run's branch, as one version.

        Args:
            branch: The branch.
            rows: The rows, or staged files.
            schema: The schema of the branch; None for an overwrite, which may change it.
        """
        table, name, props, keys = branch.table, branch.name, self.properties, self.keys
        message = f"{self.mode} {self.asset}" + (f" {', '.join(keys[:3])}" if keys else "")
        match self.mode:
            case "append":
                self._check_staged(rows, table)
                # Overwrite and replace are idempotent by themselves. A repeated append has to remove the rows of the
                # earlier attempt, in the same commit, so that no reader sees them twice.
                earlier = branch.earlier_attempt(props)
                return table.append(
                    rows, branch=name, message=message, properties=props, partitions=keys, replaces=earlier
                )
            case "overwrite":
                return table.overwrite(rows, branch=name, message=message, properties=props, partitions=keys)
            case "replace":
                scope = None if schema is None else self.scope(schema)
                predicate = scope.predicate if scope else "true"
                return table.replace_where(
                    predicate, rows, branch=name, message=message, properties=props, partitions=keys
                )
            case _:
                assert_never(self.mode)

    def check(self, rows: pa.Table, scope: PartitionFilter | None) -> None:
        """Check that rows are in the partitions of the write.

        Raises:
            InvalidInputError: Some are outside of them.
        """
        outside = scope.outside(rows) if scope else 0
        if outside:
            keys = ", ".join(self.keys[:3]) + (", ..." if len(self.keys) > 3 else "")  # noqa: PLR2004
            raise InvalidInputError(
                f"{self.asset} returned {outside} {'row that is' if outside == 1 else 'rows that are'} not in the "
                f"partitions it was asked for ({keys}) by its {md.PARTITION_EXPR} {self.partition_expr!r}; "
                f"{scope.hint + '; ' if scope and scope.hint else ''}nothing was committed"
            )

    def _check_staged(self, rows: Rows, table: LanceTable) -> None:
        """Check the rows of files that Spark's executors wrote, by the partition columns alone.

        The table itself checks the rows of a replace.
        """
        scope = self.scope(rows.schema) if isinstance(rows, StagedFiles) else None
        if scope is None or not isinstance(rows, StagedFiles):
            return
        for file in rows.files:
            uri = f"{table.uri}/{DATA}/{file.name}"
            for batch in read_data_file(uri, scope.columns, table.storage_options):
                self.check(pa.Table.from_batches([batch]), scope)


class PassedRows:
    """Rows of an output that are counted and validated against its partitions.

    A row outside of the partitions would not be deleted by the next replace of the same partitions, which would
    add it a second time; and a merge compares writes by the partitions they name. Rows that Spark's executors have
    written already are only counted here, and validated by the commit.
    """

    def __init__(self, rows: Rows, write: Write) -> None:
        """Validate rows that are in memory; the rows of a stream are validated while they are read.

        Raises:
            InvalidInputError: Some rows in memory are outside of the partitions.
        """
        self._write = write
        self._scope = None if isinstance(rows, StagedFiles) else write.scope(rows.schema)
        self._streamed = 0
        self._known: int | None = None
        self.rows: Rows = rows
        if isinstance(rows, pa.RecordBatchReader):
            self.rows = pa.RecordBatchReader.from_batches(rows.schema, self._passing(rows))
        elif isinstance(rows, StagedFiles):
            self._known = rows.rows
        else:
            self._known = rows.num_rows
            write.check(rows, self._scope)

    @property
    def count(self) -> int:
        """The number of rows; for a stream, the number of rows read so far."""
        return self._streamed if self._known is None else self._known

    def _passing(self, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._streamed += batch.num_rows
            # An error here ends the stream, and with it the write, before anything is committed.
            self._write.check(pa.Table.from_batches([batch]), self._scope)
            yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWriter:
    """Write the outputs of one step: each is one commit on the branch of the run."""

    lance: LanceResource
    spark: SparkResource | None
    write_mode: str
    chain: RunChain
    instance: dg.DagsterInstance | None

    def write(self, context: dg.OutputContext, obj: object) -> None:
        """Commit a value to the run's branch of the asset's table, and describe the commit in the output's metadata.

        Raises:
            InvalidInputError: The value, the write mode or the partition column cannot be used; nothing was
                written.
            SchemaMismatchError: The rows do not fit the schema of the table.
        """
        write = Write.of(context, self.write_mode)
        handler = handler_for(_type_of_output(write.asset, obj), handlers(self.spark))
        vectors = _vectors(context.definition_metadata)
        schema = handler.schema(obj, vectors)
        # Refuse an unusable partition column here: the next lines may create the table.
        write.scope(schema)
        place = self.lance.address_of(context.asset_key, context.definition_metadata)
        # Another process of the run may create the table at the same time.
        table = LanceTable.create(
            self.lance.uri_at(place),
            schema,
            storage_options=self.lance.storage_options,
            exist_ok=True,
            config={md.OWNER: write.asset},
        )
        branch = RunBranch(table=table, chain=self.chain)
        ownership = Ownership(asset=write.asset, branch=branch)
        is_owned = ownership.is_recorded()
        if write.mode == "append":
            self._refuse_published(write.asset, branch)
        # The branch is forked before rows are computed: Spark stages files for the schema of the branch.
        name = branch.ensure()
        # An overwrite may change the schema, so it has none to keep.
        current = None if write.mode == "overwrite" else table.schema(name)
        rows = handler.rows(obj, Destination(table=table, branch=name, schema=current, vectors=vectors))
        passed = PassedRows(rows, write)
        if not is_owned:
            ownership.record()
        version = write.commit(branch, passed.rows, current)
        about = {md.URI: table.uri, md.TABLE_NAME: place.dotted, **_about(version, table.schema(version))}
        if write.keys:
            about[md.PARTITION_ROW_COUNT] = passed.count
        context.add_output_metadata(about)
        set_data_version(context, version.transaction)

    def _refuse_published(self, asset: str, branch: RunBranch) -> None:
        """Refuse to repeat an append that a run which this one continues has published: it would add its rows twice.

        Raises:
            InvalidInputError: Such a run appended to the asset and was published.
        """
        earlier = branch.chain.run_ids[1:]
        # A branch that is left has the rows of the earlier run, so it was not retired; `Write.commit` removes them.
        if not earlier or self.instance is None or branch.head() is not None:
            return
        since = started_at(dg.RunsFilter(run_ids=list(earlier)), self.instance)
        landed = landed_as(branch.table, {md.RUN_ID: earlier, md.ASSET_KEY: [asset]}, since)
        if landed is not None:
            raise InvalidInputError(
                f"run {landed.properties[md.RUN_ID]}, which this run continues, appended to {asset} and published it "
                f"as {landed}; repeating the step would add its rows again: leave the step out, or start a new run"
            )


def set_data_version(context: dg.OutputContext, data_version: str) -> None:
    """Set the data version of an output, so that Dagster's staleness follows commits.

    The data version is the uuid of the transaction. A version number would not do: numbers are counted per
    branch, and a merge gives the same rows another number.
    """
    try:
        # Not marked public by Dagster, and the only route from an IO manager to the data version of its
        # output.
        step = context.step_context
    except dg.DagsterInvariantViolationError:  # called outside of a run: there is no event
        return
    step.set_data_version(context.asset_key, dg.DataVersion(data_version))


def _about(version: Version, schema: pa.Schema) -> dict[str, "dg.MetadataValue | dg.TableSchema | str | int"]:
    """Return the entries of the materialization event that describe the commit."""
    return {
        md.ROW_COUNT: version.rows,
        md.COLUMN_SCHEMA: md.column_schema(schema),
        **md.version_metadata(version),
        # From the commit itself: another step of the run may have moved the head since it was read.
        md.BASE_VERSION: version.parents[0],
    }


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


def write_mode(given: str) -> WriteMode:
    """Return a write mode given as text.

    Raises:
        InvalidInputError: There is no such mode.
    """
    for mode in _MODES:
        if given == mode:
            return mode
    raise InvalidInputError(f"write_mode is one of {', '.join(_MODES)}, not {given!r}")


def _properties(context: dg.OutputContext, asset: str, keys: tuple[str, ...]) -> dict[str, str]:
    properties = {md.ASSET_KEY: asset}
    if context.run_id not in (None, EPHEMERAL_RUN_ID):
        properties[md.RUN_ID] = context.run_id
    with suppress(dg.DagsterInvariantViolationError):  # called outside of a run: there is no step
        properties[md.STEP_KEY] = context.step_key
    if keys:
        properties[md.PARTITION_KEYS] = md.partition_property(keys)
    return properties
