"""The IO manager: it commits outputs to the branch of their run and reads inputs from one pinned version.

The class extends `dg.ConfigurableIOManager` and not Dagster's `DbIOManager`. `DbIOManager` is in a private module,
handles only contiguous partitions, and deletes and writes in two commits.

This module has the fields of the resource and finds the run; `outputs` has the write side and `inputs` the read side.

The type of a returned value and the annotation of an input choose the library: Spark, pandas, Polars, Arrow,
`list[dict]`, lazy handles or staged files. `dict[str, T]` reads a value for each partition. An input without an
annotation is a `PinnedTable`, which reads nothing until one of its methods is called, and carries the partitions,
the columns and the filter of the input. An input whose table was never published is an error, unless it is
annotated as `Optional[T]` (it is None then) or has the metadata `lance/allow_missing`. A partitioned asset
replaces the rows of its partitions, which its metadata `lance/partition_expr` identifies; an asset without
partitions overwrites its table. The metadata `lance/write_mode` (`append`, `overwrite`, `replace`, `upsert`) of
the asset, or of the output at run time, overrides this.

An upsert needs `lance/keys`, the columns of the key; it looks for the keys of the output in the whole table. With
`lance/when_missing: delete` it also deletes the rows of the run's partitions whose key the output lacks. The rows
of an upsert are held in memory, except rows of a Spark frame, which the executors match.

In every mode the rows are checked against the partitions of the run while they are written: when one row is
outside, nothing is committed. An output with other columns or types than the table is refused, unless
`lance/schema_evolution` says otherwise: `add_columns`, `widen` or, for an overwrite, `replace`. The descriptions in
the asset's `dagster/column_schema` are stored with the columns of the table.

An append is safe to retry: the commit of the retry also removes the rows that an earlier attempt of the
step left on the branch. Outside of a run, as in a test that calls the IO manager directly, writes go to
`main`.
"""

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from lance_dagster.plugin.provider_options import check_fields
from lance_dagster.plugin.resource import LanceResource, SparkResource
from lance_dagster.plugin.settings import schema_evolution, write_mode

if TYPE_CHECKING:
    from lance_dagster.plugin.run_branch import RunChain


class LanceIOManager(dg.ConfigurableIOManager):
    """Store assets in Lance tables: an output is one commit on its run's branch, an input is one version."""

    model_config = ConfigDict(hide_input_in_errors=True)

    lance: LanceResource = Field(description="Where the tables are.")
    spark: SparkResource | None = Field(
        default=None, description="Session for inputs annotated as Spark frames, when none is running."
    )
    write_mode: str = Field(
        default="",
        description="append, overwrite, replace or upsert; empty, as overwrite: the partitions, or the table.",
    )
    schema_evolution: str = Field(
        default="", description="refuse, add_columns, widen or replace, for outputs with other columns; empty: refuse."
    )
    preview_rows: int = Field(
        default=5,
        description="How many of the newest rows the asset's page shows. They are stored in Dagster's event log; set 0 "
        "for tables with values that not everyone who sees the page may see.",
    )

    _chain: "RunChain | None" = PrivateAttr(default=None)
    _instance: dg.DagsterInstance | None = PrivateAttr(default=None)

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields and write modes when the resource is constructed, rather than in the first run."""
        check_fields(type(self), fields)
        super().__init__(**fields)
        if self.write_mode and not isinstance(self.write_mode, dg.EnvVar):
            write_mode(self.write_mode)
        if self.schema_evolution and not isinstance(self.schema_evolution, dg.EnvVar):
            schema_evolution(self.schema_evolution)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Find the current run and the runs it continues; Dagster calls this once in each step process."""
        from lance_dagster.plugin.run_branch import RunChain

        self._instance = context.instance
        # Only this context offers the run, with its tags and its parent, by Dagster's public API.
        self._chain = RunChain.of_current(context.run, context.instance)

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Commit a value to the run's branch of the asset's table, as one version.

        Raises:
            InvalidInputError: The value, the write mode or the partition column cannot be used; nothing was
                written.
            SchemaMismatchError: The rows do not fit the schema of the table.
        """
        # Imported in a run only: a code location that is loaded needs neither the format nor pyarrow.
        from lance_dagster.plugin.io.outputs import OutputWriter
        from lance_dagster.plugin.io.write_request import WriteDefaults
        from lance_dagster.plugin.run_branch import RunChain

        # A context that was built by hand may have a run id although no resource was set up for a run.
        chain = self._chain if self._chain and self._chain.run_ids else RunChain.of_run_id(context.run_id)
        writer = OutputWriter(
            lance=self.lance,
            spark=self.spark,
            defaults=WriteDefaults(
                write_mode=self.write_mode, schema_evolution=self.schema_evolution, preview_rows=self.preview_rows
            ),
            chain=chain,
            instance=self._instance,
        )
        writer.write(context, obj)

    def load_input(self, context: dg.InputContext) -> object:
        """Return the upstream table as the type that the input is annotated with.

        The version is the first of these that applies: `lance/ref` in the input's metadata; the tag of a promoted
        node; what other runs of the same backfill wrote; the branch of the run that produced the value, or of a run
        that the current run continues; the resource's `read_ref`. The metadata `lance/columns` and `lance/filter` of
        the input, and the partitions of the run, narrow what is read.

        Raises:
            InvalidInputError: The annotation, the columns, the filter or the partitions cannot be used.
            TableNotFoundError: The table does not exist, and the input is not optional.
            VersionNotFoundError: Nothing was published, and the input is not optional.
        """
        from lance_dagster.plugin.io.inputs import InputReader
        from lance_dagster.plugin.run_branch import RunChain

        return InputReader(lance=self.lance, spark=self.spark, chain=self._chain or RunChain()).load(context)
