"""The write of one output: its mode, its partitions, its commit, and the validation of its rows."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import dagster as dg
import pyarrow as pa

from lance_dagster.datafiles import StagedFiles
from lance_dagster.errors import InvalidInputError
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.frames import Rows
from lance_dagster.plugin.partitions import PartitionFilter, partition_filter
from lance_dagster.plugin.run_branch import RunBranch
from lance_dagster.plugin.run_chain import EPHEMERAL_RUN_ID

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
        """Return the filter of the rows that a replace deletes, for a schema; None for the other modes.

        Raises:
            InvalidInputError: The asset's `partition_expr` is missing or does not fit the schema.
        """
        if self.mode != "replace":
            return None
        return partition_filter(
            self.keys,
            schema,
            definition=self.definition,
            partition_expr=self.partition_expr,
            asset=self.asset,
        )

    def commit(self, branch: RunBranch, rows: Rows) -> Version:
        """Commit the rows to the run's branch, as one version."""
        table, name, props, keys = branch.table, branch.name, self.properties, self.keys
        message = f"{self.mode} {self.asset}" + (f" {', '.join(keys[:3])}" if keys else "")
        match self.mode:
            case "append":
                # Overwrite and replace are idempotent by themselves. A repeated append has to remove the rows of the
                # earlier attempt, in the same commit, so that no reader sees them twice.
                earlier = branch.earlier_attempt(props)
                return table.append(
                    rows, branch=name, message=message, properties=props, partitions=keys, replaces=earlier
                )
            case "overwrite":
                return table.overwrite(rows, branch=name, message=message, properties=props, partitions=keys)
            case "replace":
                scope = self.scope(table.schema(name))
                predicate = scope.predicate if scope else "true"
                return table.replace_where(
                    predicate, rows, branch=name, message=message, properties=props, partitions=keys
                )
            case _:
                assert_never(self.mode)


class PassedRows:
    """Rows of an output that are counted and, for a replace, validated against its partitions.

    A row outside of the partitions would not be deleted by the next replace of the same partitions, which would
    add it a second time. Rows that Spark's executors have written already are only counted.
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
            self._check(rows)

    @property
    def count(self) -> int:
        """The number of rows; for a stream, the number of rows read so far."""
        return self._streamed if self._known is None else self._known

    def _passing(self, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._streamed += batch.num_rows
            # An error here ends the stream, and with it the write, before anything is committed.
            self._check(pa.Table.from_batches([batch]))
            yield batch

    def _check(self, rows: pa.Table) -> None:
        outside = self._scope.outside(rows) if self._scope else 0
        if outside:
            keys = ", ".join(self._write.keys[:3]) + (", ..." if len(self._write.keys) > 3 else "")  # noqa: PLR2004
            raise InvalidInputError(
                f"{self._write.asset} returned {outside} rows that are not in the partitions it was asked for "
                f"({keys}) by its {md.PARTITION_EXPR} {self._write.partition_expr!r}; nothing was written"
            )


def partitions_definition(
    context: dg.OutputContext | dg.InputContext,
) -> dg.PartitionsDefinition | None:
    """Return the partitions of a context's asset, or None when it has none or was built without them."""
    try:
        return context.asset_partitions_def
    except dg.DagsterInvariantViolationError:
        return None


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
