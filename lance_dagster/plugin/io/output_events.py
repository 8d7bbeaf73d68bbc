"""The metadata of an output's event about its commit, and the column descriptions that the table gets.

The metadata `dagster/column_schema` of a definition describes columns for people. Its descriptions and tags are stored
in the table, where readers without Dagster find them, and are shown in the events together with the actual types of the
columns.
"""

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_dagster.datafiles import RowTally
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.table import LanceTable

_DESCRIPTION = "description"
_TAGS = "dagster/tags"


def run_metadata(context: dg.OutputContext) -> dict[str, object]:
    """Return the metadata that the step gave to an output: to the output itself, and to its asset.

    The metadata of `context.add_asset_metadata` is only in the event of the asset, where it takes precedence over the
    metadata of the output, as it does here. Metadata of one partition counts where the step writes only that partition.
    """
    keys = context.asset_partition_keys if context.has_asset_partitions else ()
    of_partition = partition_metadata(context, keys[0]) if len(keys) == 1 else {}
    return {**context.output_metadata, **partition_metadata(context, None), **of_partition}


def partition_metadata(context: dg.OutputContext, key: str | None) -> Mapping[str, object]:
    """Return the metadata that `context.add_asset_metadata` gave to one partition of an asset, or with None to all."""
    step = step_of(context)
    if step is None or not context.has_asset_key:
        return {}
    metadata: Mapping[str, object] | None = step.get_asset_metadata(context.asset_key, key)
    return metadata or {}


def described_columns(context: dg.OutputContext) -> dict[str, dg.TableColumn]:
    """Return the columns that the user describes, by name; a description in the run precedes one in the definition."""
    columns: dict[str, dg.TableColumn] = {}
    # The run comes last, because a later description of a column replaces an earlier one.
    for metadata in (context.definition_metadata, run_metadata(context)):
        table_schema = md.plain(metadata.get(md.COLUMN_SCHEMA))
        if isinstance(table_schema, dg.TableSchema):
            columns |= {column.name: column for column in table_schema.columns}
    return columns


def with_descriptions(schema: pa.Schema, columns: Mapping[str, dg.TableColumn]) -> pa.Schema:
    """Return a schema whose fields have the descriptions and tags of columns in their metadata."""
    for index, field in enumerate(schema):
        metadata: Any = field.metadata or {}
        described: Any = _field_metadata(columns.get(field.name))
        if described:
            schema = schema.set(index, field.with_metadata({**metadata, **described}))
    return schema


def describe_columns(
    table: LanceTable, branch: str, columns: Mapping[str, dg.TableColumn], properties: Mapping[str, str]
) -> None:
    """Store the descriptions and tags of columns in the table, where they differ from what it has."""
    if not columns:
        return
    for field in table.schema(branch):
        stored = {_text(key): _text(value) for key, value in (field.metadata or {}).items()}
        described = _field_metadata(columns.get(field.name))
        changed = {key: value for key, value in described.items() if stored.get(key) != value}
        if changed:
            table.columns.set_metadata(
                field.name, changed, branch=branch, message=f"describe {field.name}", properties=properties
            )


def event_metadata(
    version: Version, schema: pa.Schema, columns: Mapping[str, dg.TableColumn]
) -> dict[str, "dg.MetadataValue | dg.TableSchema | str | int"]:
    """Return the entries of the materialization event that describe the commit."""
    # The real types of the columns, with what the user says about the columns.
    merged = [_merged(column, columns.get(column.name)) for column in md.column_schema(schema).columns]
    return {
        md.ROW_COUNT: version.rows,
        md.COLUMN_SCHEMA: dg.TableSchema(columns=merged),
        **md.version_metadata(version),
        # From the commit itself: another step of the run may have moved the head since it was read.
        md.BASE_VERSION: version.parents[0],
    }


def add_row_counts(context: dg.OutputContext, keys: tuple[str, ...], tally: RowTally) -> None:
    """Add the number of rows that were written: the total, and for each partition on the event of that partition.

    The metadata of an output is the same on the events of all its partitions, so with several partitions a number there
    would be wrong for each partition.
    """
    context.add_output_metadata({md.ROWS_WRITTEN: tally.rows})
    if len(keys) == 1:
        context.add_output_metadata({md.PARTITION_ROW_COUNT: tally.rows})
    if len(keys) <= 1:
        return
    counts = tally.counts()
    step = step_of(context)
    if step is None:
        context.add_output_metadata({md.ROWS_BY_PARTITION: dg.MetadataValue.json(counts)})
        return
    for key in keys:
        step.add_asset_metadata({md.PARTITION_ROW_COUNT: counts[key]}, context.asset_key, key)


def set_data_version(context: dg.OutputContext, data_version: str) -> None:
    """Set the data version of an output, so that Dagster's staleness follows commits.

    The data version is the uuid of the transaction. A version number would not do: numbers are counted per
    branch, so two runs may produce the same number, and a merge gives the same rows another number.
    """
    step = step_of(context)
    # Only assets have data versions.
    if step is not None and context.has_asset_key:
        step.set_data_version(context.asset_key, dg.DataVersion(data_version))


def step_of(context: dg.OutputContext) -> Any:  # noqa: ANN401  # Dagster exports no class for it
    """Return the step that an output belongs to, or None outside of a run."""
    try:
        # Not marked public by Dagster, and the only route from an IO manager to the data version of its output and to
        # the metadata of one partition.
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return None


def _merged(real: dg.TableColumn, described: dg.TableColumn | None) -> dg.TableColumn:
    if described is None:
        return real
    # The table knows whether a column takes nulls; only the user knows the other constraints.
    constraints = dg.TableColumnConstraints(
        nullable=real.constraints.nullable, unique=described.constraints.unique, other=described.constraints.other
    )
    return dg.TableColumn(
        name=real.name,
        type=real.type,
        description=described.description or real.description,
        constraints=constraints,
        tags=described.tags,
    )


def _field_metadata(column: dg.TableColumn | None) -> dict[str, str]:
    if column is None:
        return {}
    tags = {_TAGS: json.dumps(dict(column.tags), sort_keys=True)} if column.tags else {}
    return ({_DESCRIPTION: column.description} if column.description else {}) | tags


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
