"""Check that the rows that an external process writes belong to the partitions of its run.

A process starts before the types of its columns are known, and a filter over time depends on them. The step passes
the partition keys with their time windows, and the process makes the filter from the columns that it writes.

The rows of each write are counted before its commit. Rows that the process wrote in other ways, by the `LanceTable` or
as files from Spark, are read from the differing fragments before the materialization is reported: without a
materialization, the publisher does not publish the version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import RowScope, RowTally, conform
from lance_dagster.datafiles.writing import StagedFiles
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.partition_values import PartitionFilter
from lance_dagster.plugin.io.partitions import PartitionPoints, outside_error, rows_of
from lance_dagster.plugin.settings import expressions_of

if TYPE_CHECKING:
    from lance_dagster.edit.write import Rows
    from lance_dagster.history.context import Ref
    from lance_dagster.history.versions import Version
    from lance_dagster.plugin.run_branch import RunBranch
    from lance_dagster.table import LanceTable

_CHANGE = "_change_type"
_NOTHING_COMMITTED = "nothing was committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipesPartitions:
    """The partitions that the run of an external process materializes.

    Attributes:
        asset: The asset's key as text.
        keys: The partition keys; empty for an asset without partitions, whose rows are not checked.
        partition_expr: The asset's metadata of that name.
        points: The keys by their coordinates.
    """

    asset: str
    keys: tuple[str, ...]
    partition_expr: object
    points: PartitionPoints

    @classmethod
    def of(
        cls, asset: str, keys: tuple[str, ...], metadata: Mapping[str, Any], definition: dg.PartitionsDefinition | None
    ) -> "PipesPartitions":
        """Return the partitions of a step.

        Raises:
            InvalidInputError: The asset's `partition_expr` is missing or does not fit the partitions.
        """
        points = PartitionPoints.of(keys, definition)
        partition_expr = md.plain(metadata.get(md.PARTITION_EXPR))
        if keys:
            # Before the process starts: it may run for hours.
            expressions_of(asset, points.names, partition_expr)
        return cls(asset=asset, keys=keys, partition_expr=partition_expr, points=points)

    def encoded(self) -> dict[str, object]:
        """Return the partitions as values of JSON."""
        return {"keys": list(self.keys), "partition_expr": self.partition_expr, "points": self.points.encoded()}

    @classmethod
    def decoded(cls, asset: str, settings: Mapping[str, Any]) -> "PipesPartitions":
        """Return the partitions that `encoded` returned in the process of Dagster."""
        return cls(
            asset=asset,
            keys=tuple(settings["keys"]),
            partition_expr=settings["partition_expr"],
            points=PartitionPoints.decoded(settings["points"]),
        )

    def filter(self, schema: pa.Schema) -> PartitionFilter:
        """Return the filter of the rows in the partitions.

        Raises:
            InvalidInputError: The asset's `partition_expr` does not fit the columns.
        """
        return self.points.filter(schema, self.partition_expr, self.asset)

    def held(self, rows: "Rows", schema: pa.Schema) -> "Rows":
        """Return rows for a write that fails before its commit when a row is outside of the partitions.

        Rows in memory are counted at once, the rows of a stream while they are written. Staged files are returned
        unchanged: `verify` reads them.

        Raises:
            InvalidInputError: A row in memory is outside of the partitions.
            SchemaMismatchError: The rows do not fit the schema.
        """
        if not self.keys or isinstance(rows, StagedFiles):
            return rows
        if isinstance(rows, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(rows.schema, self._passing(rows, schema))
        tally = self._tally(schema)
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
            tally.add(conform(batch, schema))
        self._refuse(tally, _NOTHING_COMMITTED)
        return rows

    def verify(self, branch: "RunBranch", version: "Version", since: int) -> None:
        """Refuse a version with rows of the run that are outside of its partitions.

        Args:
            branch: The branch of the run.
            version: The version that is about to be reported.
            since: The number of the head of the branch when the step began; 0 when there was no branch.

        Raises:
            InvalidInputError: There are such rows.
        """
        if not self.keys:
            return
        table = branch.table
        tally = self._tally(table.schema(version))
        for before, after in _written_ranges(branch, version, since):
            _count_written(table, before, after, tally)
        # The rows stay where they are: undoing them could undo rows of others too.
        shared = f"revert it before another run publishes {version.branch}"
        advice = shared if version.branch == branch.chain.branch_tag else "start a new run, and not a retry of this one"
        self._refuse(tally, f"{version} was not reported, so the publisher does not take it; {advice}")

    def _tally(self, schema: pa.Schema) -> RowTally:
        return RowTally(RowScope(within=rows_of(self.filter(schema))))

    def _passing(self, batches: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        tally = self._tally(schema)
        for batch in batches:
            tally.add(conform(batch, schema))
            if not tally.outside:
                yield batch
        # An error in the stream ends the write before its commit.
        self._refuse(tally, _NOTHING_COMMITTED)

    def _refuse(self, tally: RowTally, consequence: str) -> None:
        if tally.outside:
            raise outside_error(
                tally, asset=self.asset, keys=self.keys, partition_expr=self.partition_expr, consequence=consequence
            )


def _written_ranges(branch: "RunBranch", version: "Version", since: int) -> "Iterator[tuple[Ref, Ref]]":
    """Yield the ranges of versions that the run wrote: the version before each range, and its last version."""
    table, chain = branch.table, branch.chain
    if version.branch != chain.branch_tag:
        # On a branch that only these runs write, all rows count that its publication would bring to main, also the rows
        # of a failed attempt.
        yield table.branches.merge_base(MAIN, version), version
        return
    # Runs of other partitions share a branch that a tag names; their own sessions verify what they wrote.
    numbers = [number for number in table.branches.version_numbers(version.branch) if number <= version.number]
    versions = [table.at(f"branch:{version.branch}@{number}") for number in numbers]
    runs = [version.properties.get(md.RUN_ID) for version in versions]
    first = min((number for number, run in zip(numbers, runs, strict=True) if run in chain.run_ids), default=since + 1)
    start = min(first, since + 1)

    def is_own(version: "Version") -> bool:
        return version.number >= start and version.properties.get(md.RUN_ID) in (None, *chain.run_ids)

    for own, group in groupby(versions, is_own):
        if own:
            adjacent = list(group)
            yield f"branch:{adjacent[0].parents[0]}", adjacent[-1]


def _count_written(table: "LanceTable", before: "Ref", after: "Ref", tally: RowTally) -> None:
    """Count the rows that a range of versions added or changed; rows that a compaction moved are neither."""
    if tally.scope is None:
        return
    columns = tally.scope.within.columns
    diff = table.diff(before, after)
    for batch in diff.rows("added", columns):
        tally.add(batch)
    # Compared by all columns: a row of another partition whose values changed was written too.
    for batch in diff.rows("changed"):
        tally.add(batch.filter(pc.field(_CHANGE) == "update_postimage"))
