"""The table of an output: the table of its asset, or the table that the output of an op names.

Outputs of an op in a job or in a graph asset need not belong to an asset. Such an output is stored when its metadata
`lance/table` names a table: `dg.Out(metadata={"lance/table": "shop/raw"})`. It is written to the branch of the run, as
the outputs of assets are, and the ops downstream read it there.

Several steps of a run write one output when it is dynamic, or when its op runs once for each item of a dynamic output.
Each step needs rows of its own, or it would replace the rows of the other steps. So either the table's name holds the
mapping key: with `shop/raw/{mapping_key}` the step `clean[oslo]` writes `shop/raw/oslo`. Or `lance/partition_expr`
names the column that has the key: with `city` the step writes the rows of `shop/raw` whose `city` is `oslo`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.partitions import partitions_definition
from lance_dagster.plugin.partitioning import require_partition
from lance_dagster.plugin.table_asset import TableKey

_MAPPING_KEY = "{mapping_key}"
# A step that runs for one item of a dynamic output, such as `clean[oslo]`.
_MAPPED_STEP = re.compile(r"\[(\w+)\]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """The table of an output.

    Attributes:
        owner: The owner that the table records: the asset that writes it, or a text that names the op's output.
        key: The asset's key, or the path of the table.
        metadata: The metadata that sets the place of the table.
        partition_keys: The partitions that are written; the mapping key for one of several steps.
        definition: What gives the partition keys their meaning; None for plain values.
    """

    owner: str
    key: TableKey
    metadata: Mapping[str, object]
    partition_keys: tuple[str, ...]
    definition: dg.PartitionsDefinition | None

    @classmethod
    def of(cls, context: dg.OutputContext) -> "OutputTable":
        """Return the table of an output.

        Raises:
            InvalidInputError: The output belongs to no asset and names no table; or steps would replace each other's
                rows in it; or the asset is partitioned, and its run has no partition.
        """
        if not context.has_asset_key:
            return cls._of_op(context)
        # The list of keys is the only form that works for every kind of partition. Without partitions Dagster raises
        # for it, hence the guard.
        keys = tuple(context.asset_partition_keys) if context.has_asset_partitions else ()
        definition = partitions_definition(context)
        require_partition(context.asset_key, definition, keys)
        return cls(
            owner=context.asset_key.to_user_string(),
            key=context.asset_key,
            metadata=context.definition_metadata,
            partition_keys=keys,
            definition=definition,
        )

    @classmethod
    def _of_op(cls, context: dg.OutputContext) -> "OutputTable":
        metadata = context.definition_metadata
        named, mapping_key = md.text(metadata, md.TABLE), _mapping_key(context)
        if named is None:
            raise InvalidInputError(
                f"output {context.name!r} of {_step(context)} belongs to no asset, so it has no table; name one by "
                f'dg.Out(metadata={{"{md.TABLE}": "shop/raw"}}), or give the output another IO manager by '
                "dg.Out(io_manager_key=...)"
            )
        table = named.replace(_MAPPING_KEY, mapping_key or "")
        if _MAPPING_KEY in named and mapping_key is None:
            raise InvalidInputError(
                f"{md.TABLE} {named!r} of output {context.name!r} of {_step(context)} holds the mapping key, and the "
                "output is neither dynamic nor of a step that runs for each item of a dynamic output"
            )
        by_partition = md.plain(metadata.get(md.PARTITION_EXPR)) is not None
        if mapping_key is not None and _MAPPING_KEY not in named and not by_partition:
            raise InvalidInputError(
                f"output {context.name!r} of {_step(context)} is written once for each mapping key, and each would "
                f"replace the rows of the others in {named!r}; put the key into the name, such as "
                f'"{named}/{_MAPPING_KEY}", or name the column that has it by the metadata "{md.PARTITION_EXPR}"'
            )
        return cls(
            owner=f"{md.OP_OUTPUT}{table}",
            key=table,
            metadata={**metadata, md.TABLE: table},
            partition_keys=(mapping_key,) if mapping_key is not None and by_partition else (),
            definition=None,
        )


def _mapping_key(context: dg.OutputContext) -> str | None:
    if context.mapping_key is not None:
        return str(context.mapping_key)
    match = _MAPPED_STEP.search(_step(context))
    return match[1] if match else None


def _step(context: dg.OutputContext) -> str:
    try:
        return f"step {context.step_key}"
    except dg.DagsterInvariantViolationError:  # called outside of a run
        return "a step"
