"""A table pinned to one version, which checks, assets and lazy inputs read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_dagster.datafiles import LanceDataset
from lance_dagster.format.validation import string_list
from lance_dagster.history.versions import Version
from lance_dagster.table import LanceTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def all_of(*filters: str | None) -> str | None:
    """Combine filters with AND; an empty or missing filter is left out, and None means that none is left."""
    given = [one for one in filters if one]
    if len(given) <= 1:
        return given[0] if given else None
    return " AND ".join(f"({one})" for one in given)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTable:
    """A table at the version that a ref named when the table was opened; later commits do not show.

    Nothing is read before a method asks for it. `columns` and `filter`, where set, narrow every read, and the
    arguments of the methods narrow it further.
    """

    table: LanceTable
    version: Version
    columns: tuple[str, ...] | None = None
    filter: str | None = None

    @property
    def ref(self) -> str:
        """The version as a ref expression, such as `main@17`."""
        return str(self.version)

    @property
    def schema(self) -> pa.Schema:
        """The table's schema at this version."""
        return self.table.schema(self.version)

    @property
    def is_narrowed(self) -> bool:
        """Whether `columns` or `filter` is set."""
        return self.columns is not None or self.filter is not None

    def count_rows(self, filter: str | None = None) -> int:
        """Return the number of rows that a Lance SQL filter selects; reads only the columns that it names."""
        wanted = all_of(self.filter, filter)
        # The manifest holds the number of rows, so nothing is read without a filter.
        return self.version.rows if wanted is None else self.table.count_rows(self.version, filter=wanted)

    def read(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
        """Return rows as an Arrow table in memory."""
        return self.table.read(self.version, columns=self._columns(columns), filter=all_of(self.filter, filter))

    def scan(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.RecordBatchReader:
        """Return rows as a stream of record batches."""
        return self.table.scan(self.version, columns=self._columns(columns), filter=all_of(self.filter, filter))

    def spark(
        self, spark: "SparkSession", columns: Sequence[str] | None = None, filter: str | None = None
    ) -> "DataFrame":
        """Return rows as a lazy Spark frame, which the executors read."""
        # Imported here: PySpark is an optional extra, and most steps do not use it.
        from lance_dagster.spark import read_table

        narrowed = all_of(self.filter, filter)
        return read_table(spark, self.table, self.ref, columns=self._columns(columns), filter=narrowed)

    def to_lance(self) -> LanceDataset:
        """Return the table at this version as pylance's dataset, for vector search and SQL.

        A dataset cannot carry `columns` and `filter`, so it shows the whole version.
        """
        return self.table.to_lance(self.version)

    def _columns(self, columns: Sequence[str] | None) -> list[str] | None:
        chosen = columns if columns is not None else self.columns
        return None if chosen is None else list(string_list("columns", chosen, "id"))
