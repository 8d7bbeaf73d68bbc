"""The write that one output requests: its mode, its partitions, its keys and its policy for columns.

Several outputs of ops may name one table. Rows that they append are all there in the end. An overwrite or a replacement
says what all rows are, in the table or in some partitions: of two such outputs only the rows of the second would
remain, and the ops downstream of the first output would read them too, without a sign of it.
`refuse_second_replacement` refuses the second output.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa

from lance_dagster.datafiles import RowScope, RowTally
from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.output_events import partition_metadata, run_metadata
from lance_dagster.plugin.io.output_tables import OutputTable
from lance_dagster.plugin.io.partition_values import PartitionFilter
from lance_dagster.plugin.io.partitions import outside_error, partition_filter, partition_groups, rows_of
from lance_dagster.plugin.partitioning import partitioning_of
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunBranch
from lance_dagster.plugin.settings import (
    SchemaEvolution,
    WriteMode,
    refuse_unknown_settings,
    schema_evolution,
    write_mode,
)

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version

_OF_EDITS = (md.RUN_ID, md.STEP_KEY, md.OUTPUT, md.PARTITION_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDefaults:
    """The IO manager's fields, which apply where an output's metadata sets nothing; empty for its own defaults."""

    write_mode: str = ""
    schema_evolution: str = ""
    preview_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The write that one output requests.

    Attributes:
        asset: The asset's key as text.
        mode: The write mode.
        keys: The partitions of the run; empty for an asset without partitions.
        definition: The partitions of the asset.
        partition_expr: The asset's metadata of that name.
        properties: The properties of the commit.
        on: The key columns of an upsert.
        deletes_missing: Whether an upsert deletes rows of the partitions whose key the output lacks.
        evolution: The policy for columns that the table does not have.
    """

    asset: str
    mode: WriteMode
    keys: tuple[str, ...]
    definition: dg.PartitionsDefinition | None
    partition_expr: object
    properties: Mapping[str, str]
    on: tuple[str, ...] = ()
    deletes_missing: bool = False
    evolution: SchemaEvolution = "refuse"

    @classmethod
    def of(cls, context: dg.OutputContext, defaults: WriteDefaults) -> "Write":
        """Determine the write of an output.

        A setting is the first of these: the metadata that the step gave to the output or to its asset, the metadata of
        the asset's definition, the IO manager's default.

        Raises:
            InvalidInputError: The output belongs to no asset, or its settings cannot be used.
        """
        target = OutputTable.of(context)
        asset, keys = target.owner, target.partition_keys
        refuse_unknown_settings(context.definition_metadata, "asset", f"asset {asset}")
        of_run = run_metadata(context)
        refuse_unknown_settings(of_run, "output", f"output metadata of {asset}")
        for key in keys if len(keys) > 1 and context.has_asset_key else ():
            where = f"metadata of partition {key} of {asset}"
            refuse_unknown_settings(partition_metadata(context, key), "partition", where)
        settings = {**context.definition_metadata, **of_run}
        # Neither default adds rows twice when a person launches the asset again, as an append would.
        # The default of an IO manager is for all its assets, so a partitioned asset overwrites its partitions.
        of_manager = defaults.write_mode if defaults.write_mode != "overwrite" else ""
        default = of_manager or ("replace" if keys else "overwrite")
        mode = write_mode(md.text(settings, md.WRITE_MODE) or default)
        _refuse_wiping(asset, keys, mode, md.text(of_run, md.WRITE_MODE))
        evolution = schema_evolution(md.text(settings, md.SCHEMA_EVOLUTION) or defaults.schema_evolution or "refuse")
        if mode == "replace" and not keys:
            raise InvalidInputError(f"write_mode 'replace' of {asset} needs partitions; use overwrite or append")
        if evolution == "replace" and mode != "overwrite":
            raise InvalidInputError(
                f"{md.SCHEMA_EVOLUTION} 'replace' of {asset} needs {md.WRITE_MODE} 'overwrite', since the rows that "
                f"{mode!r} keeps would lose their columns; use 'add_columns' or 'widen'"
            )
        on, deletes_missing = _upsert_settings(asset, mode, context, settings=settings, defaults=defaults)
        return cls(
            asset=asset,
            mode=mode,
            keys=keys,
            definition=target.definition,
            partition_expr=md.plain(context.definition_metadata.get(md.PARTITION_EXPR)),
            properties=_properties(context, target, keys),
            on=on,
            deletes_missing=deletes_missing,
            evolution=evolution,
        )

    @property
    def edit_properties(self) -> dict[str, str]:
        """The properties of the commits that prepare the table for the rows, such as an edit of columns.

        They do not name the asset: a retried append removes the rows of the newest commit of its step that names the
        asset. They name the partitions: otherwise the branch would count as a write of the whole table.
        """
        return {key: value for key, value in self.properties.items() if key in _OF_EDITS}

    def partitions(self, schema: pa.Schema) -> PartitionFilter | None:
        """Return the filter of the rows that the write may have; None for an asset without partitions.

        The filter applies to every mode. The next replace of the same partitions would not delete a row outside of
        them, but would add it a second time; and a merge compares writes by the partitions they name.

        Raises:
            InvalidInputError: The asset's `partition_expr` is missing or does not fit the schema.
        """
        if not self.keys:
            return None
        return partition_filter(
            self.keys, schema, definition=self.definition, partition_expr=self.partition_expr, asset=self.asset
        )

    def tally(self, schema: pa.Schema) -> RowTally:
        """Return the tally of the write's rows: it counts the rows of each partition, and the rows outside of them.

        Raises:
            InvalidInputError: The asset's `partition_expr` is missing or does not fit the schema.
        """
        within = self.partitions(schema)
        if within is None:
            return RowTally()
        # A single partition has all rows, so it needs no group.
        groups = None
        if len(self.keys) > 1:
            groups = partition_groups(
                self.keys,
                schema,
                definition=self.definition,
                partition_expr=self.partition_expr,
                asset=self.asset,
            )
        return RowTally(RowScope(within=rows_of(within), groups=groups))

    def refuse_outside(self, tally: RowTally, hint: str = "") -> None:
        """Refuse rows that are not in the partitions of the write.

        Raises:
            InvalidInputError: There are such rows.
        """
        if tally.outside:
            raise outside_error(
                tally,
                asset=self.asset,
                keys=self.keys,
                partition_expr=self.partition_expr,
                consequence=f"{f'{hint}; ' if hint else ''}nothing was committed",
            )


def _refuse_wiping(asset: str, keys: tuple[str, ...], mode: WriteMode, in_run: str | None) -> None:
    """Refuse a permanent setting by which each run of some partitions would delete all other partitions.

    Raises:
        InvalidInputError: The asset is partitioned, and its metadata says overwrite.
    """
    if keys and mode == "overwrite" and in_run != "overwrite":
        raise InvalidInputError(
            f"write_mode 'overwrite' of {asset} would delete all other partitions in each run; leave it out to "
            f"replace the partitions of the run. To start the table anew, one run may call "
            f"context.add_output_metadata({{{md.WRITE_MODE!r}: 'overwrite'}})"
        )


def _upsert_settings(
    asset: str, mode: WriteMode, context: dg.OutputContext, *, settings: Mapping[str, object], defaults: WriteDefaults
) -> tuple[tuple[str, ...], bool]:
    """Return the key columns, and whether missing rows are deleted.

    Raises:
        InvalidInputError: An upsert has no keys, or the settings of an upsert are used with another mode.
    """
    listed = md.plain(settings.get(md.KEYS))
    on = tuple(str(name) for name in listed) if isinstance(listed, list | tuple) else ()
    missing = md.text(settings, md.WHEN_MISSING)
    if mode == "upsert" and not on:
        raise InvalidInputError(
            f"write_mode 'upsert' of {asset} needs the columns of its key; give the asset metadata "
            f'{{"{md.KEYS}": ["<column>"]}}'
        )
    # An asset that upserts may replace its rows in one run, so the settings are compared with the permanent mode.
    lasting = md.text(context.definition_metadata, md.WRITE_MODE) or defaults.write_mode
    if "upsert" not in (mode, lasting) and (on or missing):
        setting = md.KEYS if on else md.WHEN_MISSING
        raise InvalidInputError(
            f"{setting} of {asset} applies only to {md.WRITE_MODE} 'upsert', but its mode is {mode!r}"
        )
    return on, missing == "delete"


def _properties(context: dg.OutputContext, target: OutputTable, keys: tuple[str, ...]) -> dict[str, str]:
    # `RunBranch.earlier_attempt` recognises a commit by the asset, the step, the output and the partitions.
    properties = {md.ASSET_KEY: target.owner}
    if context.run_id not in (None, EPHEMERAL_RUN_ID):
        properties[md.RUN_ID] = context.run_id
    with suppress(dg.DagsterInvariantViolationError):  # called outside of a run: there is no step
        properties[md.STEP_KEY] = context.step_key
        properties[md.OUTPUT] = context.name
    if keys:
        properties[md.PARTITION_KEYS] = md.partition_property(keys)
        # The keys of an op's mapping have no definition, and are the values themselves.
        if partitioning := partitioning_of(target.definition, context.definition_metadata.get(md.PARTITION_EXPR)):
            properties[md.PARTITIONING] = partitioning
    return properties


def refuse_second_replacement(branch: RunBranch, write: Write, versions: "Iterable[Version] | None" = None) -> None:
    """Refuse an overwrite or a replacement of rows that another output of the run, or of its chain, wrote the same way.

    The same output may replace its rows: it is a retry, or writes another partition for each mapping key.

    Args:
        branch: The branch of the run.
        write: The write of an output of an op.
        versions: Versions of the branch, newest first; None for all.

    Raises:
        InvalidInputError: Another output overwrote the table, or replaced one of the partitions.
    """
    # Outside of a run there is no step.
    if write.mode not in ("overwrite", "replace") or md.STEP_KEY not in write.properties:
        return
    # Imported in a run only: a code location that is loaded does not need the format.
    from lance_dagster.transactions.claims import OVERWRITE, REPLACE, decode_claims

    for version in branch.own_versions() if versions is None else versions:
        claims = [claim for claim in decode_claims(version.properties) if claim.mode in (REPLACE, OVERWRITE)]
        if not claims:
            continue
        is_overwrite = any(claim.mode == OVERWRITE for claim in claims)
        # Two steps for different mapping keys replace the partitions of their own keys.
        keys = {key for claim in claims for key in claim.partitions}
        is_shared = is_overwrite or write.mode == "overwrite" or not keys.isdisjoint(write.keys)
        if is_shared and _is_of_another(version.properties, branch, write):
            raise InvalidInputError(
                f"{_output(write.properties)} replaces the rows that {_output(version.properties)} wrote to "
                f"{branch.table.uri} in {version}, and only the rows of the last output would be left; give each "
                f"output a table of its own by its metadata {md.TABLE!r}, or let all of them append by "
                f"{md.WRITE_MODE!r}: 'append'"
            )
        # An overwrite leaves no earlier rows.
        if is_overwrite:
            return


def _is_of_another(committed: Mapping[str, str], branch: RunBranch, write: Write) -> bool:
    # A table of ops may be written by other runs too, one after the other.
    if committed.get(md.ASSET_KEY) != write.asset or committed.get(md.RUN_ID) not in branch.chain.run_ids:
        return False
    return any(committed.get(key) != write.properties.get(key) for key in (md.STEP_KEY, md.OUTPUT))


def _output(properties: Mapping[str, str]) -> str:
    return f"output {properties.get(md.OUTPUT)!r} of step {properties.get(md.STEP_KEY)}"
