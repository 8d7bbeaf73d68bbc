"""Count the rows of a write while they are written, and check that the write may have them.

The writer of the rows calls a `RowTally` for each batch, so there is no second pass over the data. With Spark each
executor has a tally of its own, which is sent back as text and added to the tally of the driver.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles.dictionaries import decoded
from lance_dagster.datafiles.sql_evaluation import evaluate_expression, evaluate_predicate
from lance_dagster.format.shown_values import shown_rows

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
class GroupDimension:
    """The groups of rows by one value: a column, or an SQL expression.

    Attributes:
        column: The column; empty for an expression.
        sql: The column or the expression in Lance SQL.
        kind: The type of the value.
        keys: The key of each group.
        values: The value of each key; or, in ascending order, where the window of each key begins.
        ends: Where the window of each key ends, which it does not contain; empty where keys are values.
    """

    column: str
    sql: str
    kind: pa.DataType
    keys: tuple[str, ...]
    values: tuple[str | int | bool, ...]
    ends: tuple[int, ...] = ()

    def places(self, rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Return the place of the key of each row, -1 for a row of no key; a null has none."""
        if not self.keys:
            return np.full(rows.num_rows, -1)
        column = decoded(rows.column(self.column)) if self.column else evaluate_expression(self.sql, rows)
        values = column.cast(self.kind)
        if not self.ends:
            indices: Any = pc.index_in(values, value_set=pa.array(self.values, self.kind))
            return np.asarray(indices.fill_null(-1).to_numpy(), np.int64)
        # Dates and timestamps are compared as the numbers that they are stored as.
        numbers: Any = values.cast(pa.int32()) if pa.types.is_date32(self.kind) else values.cast(pa.int64())
        moments = np.asarray(numbers.fill_null(0).to_numpy(), np.int64)
        places = np.searchsorted(np.array(self.values, np.int64), moments, side="right") - 1
        is_inside = (places >= 0) & (moments < np.array(self.ends, np.int64)[places]) & values.is_valid().to_numpy()
        return np.where(is_inside, places, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The groups in which rows are counted; each row belongs to one group or to none.

    Attributes:
        dimensions: The values that decide the group of a row.
        names: The name of each group, by the keys of the dimensions.
    """

    dimensions: tuple[GroupDimension, ...]
    names: Mapping[tuple[str, ...], str]

    def of_rows(self, rows: pa.Table) -> tuple["np.ndarray[tuple[int], np.dtype[np.bool_]]", dict[str, int]]:
        """Return which rows have a group, and the number of rows of each group that has rows.

        This takes time for the rows and for the groups, and not for their product.
        """
        is_inside = np.full(rows.num_rows, fill_value=True)
        codes = np.zeros(rows.num_rows, np.int64)
        for dimension in self.dimensions:
            places = dimension.places(rows)
            is_inside &= places >= 0
            codes = codes * (len(dimension.keys) + 1) + places
        counts, strays = dict[str, int](), list[int]()
        for code, count in zip(*map(np.ndarray.tolist, np.unique(codes[is_inside], return_counts=True)), strict=True):
            name = self.names.get(self._keys(code))
            if name is None:
                # The keys of several dimensions need not be a group together.
                strays.append(code)
            else:
                counts[name] = count
        if strays:
            is_inside &= ~np.isin(codes, strays)
        return is_inside, counts

    def _keys(self, code: int) -> tuple[str, ...]:
        """Return the keys of the dimensions, given the places of the keys as one number."""
        keys: tuple[str, ...] = ()
        for dimension in reversed(self.dimensions):
            code, place = divmod(code, len(dimension.keys) + 1)
            keys = (dimension.keys[place], *keys)
        return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScope:
    """The rows that a write may have, and the groups in which they are counted.

    Attributes:
        within: True for each row that the write may have.
        groups: The groups; the rows that the write may have are then the rows of the groups. None where only the number
            of all rows is counted.
    """

    within: RowFilter
    groups: RowGroups | None = None


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
        groups = self.scope.groups if self.scope else None
        return {} if groups is None else {name: self._groups.get(name, 0) for name in groups.names.values()}

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
        """Count the rows outside of the scope, and the rows of groups, among the rows that were collected."""
        if self.scope is None or not self._waiting:
            return
        collected, self._waiting = pa.Table.from_batches(self._waiting), []
        if self.scope.groups is None:
            is_inside = _inside(self.scope.within, collected)
        else:
            is_inside, counts = self.scope.groups.of_rows(collected)
            for name, rows in counts.items():
                self._groups[name] = self._groups.get(name, 0) + rows
        outside = collected.num_rows - int(is_inside.sum())
        if outside:
            self._outside += outside
            self.example = self.example or _example(collected.slice(int(is_inside.argmin()), 1))


def _inside(within: RowFilter, rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return for which rows a filter is true."""
    if within.inside(rows).num_rows == rows.num_rows:
        return np.full(rows.num_rows, fill_value=True)
    place = "__place"
    numbered = rows.append_column(place, pa.array(range(rows.num_rows), pa.int64()))
    is_inside = np.full(rows.num_rows, fill_value=False)
    is_inside[within.inside(numbered).column(place).to_numpy()] = True
    return is_inside


def _example(rows: pa.Table) -> str:
    """Return the values of a row outside of a filter, such as `region = 'eu'`."""
    (row,) = shown_rows(rows)
    return ", ".join(f"{name} is null" if value is None else f"{name} = {_shown(value)}" for name, value in row.items())


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | bool) else str(value)
