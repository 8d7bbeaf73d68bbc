"""Count the rows of a write while they are written, and check that the write may have them.

The writer of the rows calls a `RowTally` for each batch, so there is no second pass over the data. With Spark each
executor has a tally of its own, which is sent back as text and added to the tally of the driver.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles.sql_evaluation import evaluate_predicate
from lance_dagster.format.shown_values import shown_rows

# Distinct values that are kept before they are assigned to groups. Few groups have more, except groups of timestamps.
_DISTINCT = 100_000
# Lance needs about three milliseconds for an evaluation, however few rows there are, so small batches are collected.
_ROWS_AT_ONCE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """A filter over rows in memory; unlike a filter of Dagster's partitions it can be sent to executors.

    Attributes:
        predicate: The filter in Lance SQL.
        expression: The same filter in Arrow; None when only Lance can evaluate it.
        columns: The columns that it reads.
    """

    predicate: str
    expression: pc.Expression | None
    columns: tuple[str, ...]

    def inside(self, rows: pa.Table) -> pa.Table:
        """Return the rows that the filter is true for; for nulls it is not."""
        if self.expression is not None:
            return rows.filter(self.expression)
        # Without rows nothing is evaluated: an evaluation costs about two milliseconds.
        if not rows.num_rows:
            return rows
        return rows.filter(pa.array(evaluate_predicate(self.predicate, rows.select(self.columns))))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScope:
    """The rows that a write may have, and the groups in which they are counted.

    Attributes:
        within: True for each row that the write may have.
        groups: The filter of each group, by its name. Without groups only the number of all rows is known.
    """

    within: RowFilter
    groups: Mapping[str, RowFilter] = field(default_factory=dict)


@dataclass(slots=True)
class RowTally:
    """The number of rows of a write, of its rows outside of the scope, and of the rows of each group.

    Attributes:
        scope: The rows that the write may have; None for any.
        rows: The number of rows seen.
        example: The values of a row outside of the scope, in the columns of the scope; empty when there is none.
    """

    scope: RowScope | None = None
    rows: int = 0
    example: str = ""
    _outside: int = 0
    _groups: dict[str, int] = field(default_factory=dict)
    _distinct: list[pa.Table] = field(default_factory=list)
    _waiting: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def outside(self) -> int:
        """The number of rows outside of the scope."""
        self._evaluate()
        return self._outside

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch, in the types of the table."""
        self.rows += batch.num_rows
        if self.scope is None or not batch.num_rows:
            return
        within = self.scope.within
        self._waiting.append(batch.select(list(within.columns)))
        if within.expression is not None or sum(rows.num_rows for rows in self._waiting) >= _ROWS_AT_ONCE:
            self._evaluate()

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count batches and yield them until a batch is known to have a row outside of the scope.

        Later batches are counted too, so that the caller can name the number of all rows outside, but they are not
        yielded: the write will not be committed.
        """
        for batch in batches:
            self.add(batch)
            if not self._outside:
                yield batch

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each group, groups without rows included."""
        self._evaluate()
        self._assign()
        groups = self.scope.groups if self.scope else {}
        return {name: self._groups.get(name, 0) for name in groups}

    def encoded(self) -> str:
        """Return the numbers as text, for `absorb` in another process."""
        numbers = {"rows": self.rows, "outside": self.outside, "example": self.example, "groups": self.counts()}
        return json.dumps(numbers)

    def absorb(self, encoded: str) -> None:
        """Add the numbers of a tally that another process made for other rows of the same write."""
        tally = json.loads(encoded)
        self.rows += tally["rows"]
        self._outside += tally["outside"]
        self.example = self.example or tally["example"]
        for name, rows in tally["groups"].items():
            self._groups[name] = self._groups.get(name, 0) + rows

    def _evaluate(self) -> None:
        """Count the rows outside of the scope, and the values of groups, among the rows that were collected."""
        if self.scope is None or not self._waiting:
            return
        collected, self._waiting = pa.Table.from_batches(self._waiting), []
        inside = self.scope.within.inside(collected)
        if inside.num_rows < collected.num_rows:
            self._outside += collected.num_rows - inside.num_rows
            self.example = self.example or _example(self.scope.within, collected)
        if self.scope.groups:
            self._distinct.append(_counted(collected))
            if sum(rows.num_rows for rows in self._distinct) > _DISTINCT:
                self._assign()

    def _assign(self) -> None:
        """Add the rows whose values were collected to the groups that they belong to."""
        if self.scope is None or not self._distinct:
            return
        # Batches repeat the same few values, so the filters of many groups are evaluated on each value only once.
        distinct, self._distinct = pa.concat_tables(self._distinct), []
        for name, group in self.scope.groups.items():
            rows = pc.sum(group.inside(distinct).columns[-1]).as_py() or 0
            self._groups[name] = self._groups.get(name, 0) + rows


def _counted(rows: pa.Table) -> pa.Table:
    """Return the distinct rows, and in a last column how often each occurs."""
    # Names that differ from Arrow's `count_all`, and a name that is longer than the name of every column.
    names, numbered = rows.column_names, [f"column {place}" for place in range(rows.num_columns)]
    count = "".join([*names, "#"])
    plain: Any = pa.Table.from_arrays([_decoded(rows.column(name)) for name in names], numbered)
    try:
        counted: pa.Table = plain.group_by(numbered, use_threads=False).aggregate([([], "count_all")])
    except pa.ArrowNotImplementedError:
        # Arrow does not group structs, lists and JSON, so that each row stays alone.
        counted = plain.append_column(count, pa.array([1] * rows.num_rows, pa.int64()))
    return counted.rename_columns([*names, count])


def _decoded(column: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    # Arrow groups plain values only.
    if not pa.types.is_dictionary(column.type):
        return column
    chunks: list[Any] = column.chunks
    return pa.chunked_array([chunk.dictionary_decode() for chunk in chunks], column.type.value_type)


def _example(within: RowFilter, rows: pa.Table) -> str:
    """Return the values of the first row outside of a filter, such as `region = 'eu'`."""
    place = "__place"
    numbered = rows.append_column(place, pa.array(range(rows.num_rows), pa.int64()))
    inside = set(within.inside(numbered).column(place).to_pylist())
    first = next(number for number in range(rows.num_rows) if number not in inside)
    (row,) = shown_rows(rows.slice(first, 1))
    return ", ".join(f"{name} is null" if value is None else f"{name} = {_shown(value)}" for name, value in row.items())


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | bool) else str(value)
