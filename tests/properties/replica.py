"""The expected content of a table as plain values: the model that random histories are compared with.

A row is identified by its key, which no other row ever gets. Every written state of a row has a unique stamp, so that a
merge can be predicted: a row that only one side has stays, unless the other side had it once. A column is identified by
a token, not by its name: a writer that did not see a rename still means the same column.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

KEY = "id"
Cell = int | float | str | None
STAMPS = iter(range(1, 1 << 60))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its token, its name and type, and the tokens that it had before changes of its type."""

    token: int
    name: str
    type: pa.DataType
    was: tuple[int, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether its values are strings."""
        return self.type in (pa.string(), pa.large_string())

    def of(self, row: "Row") -> Cell:
        """The value of a row in the column, which may have been written before the type was changed."""
        return next((row.cells[token] for token in (self.token, *self.was) if token in row.cells), None)

    def cast(self, token: int, kind: pa.DataType) -> "Column":
        """The column with another type, and a new token."""
        return Column(token, self.name, kind, (self.token, *self.was))

    def made_up(self, number: int) -> Cell:
        """A value for a row, sometimes null."""
        if number % 7 == 6:
            return None
        if self.is_text:
            return f"w{number % 4}"
        return number % 10 / 2 if self.type == pa.float64() else number % 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row. `created` and `updated` are None while the version that wrote it has no number yet.

    `born` stays the same when the row is changed; a row that is inserted with the key of a deleted row has another one.
    """

    cells: Mapping[int, Cell]
    stamp: int
    born: int
    row_id: int | None = None
    created: int | None = None
    updated: int | None = None

    def changed(self, cells: Mapping[int, Cell]) -> "Row":
        """The row after an update with other values."""
        return replace(self, cells={**self.cells, **cells}, stamp=next(STAMPS), updated=None)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter, as SQL and as a function of a key and its row."""

    sql: str
    matches: Callable[[int, Row], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a branch.

    `owners` are the keys of all rows of this version and its ancestors, by row id, and `ever` are their stamps. `risen`
    are the stamps of deleted rows that a restore brought back; `lost` are those of rows that the restored version
    never had: a restore of a version from before a merge removes the record of the merge too.
    """

    columns: tuple[Column, ...]
    rows: Mapping[int, Row] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, int] = field(default_factory=dict)
    owners: Mapping[int, int] = field(default_factory=dict)
    ever: frozenset[int] = frozenset()
    risen: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        """The schema in Arrow."""
        return pa.schema([(KEY, pa.int64()), *((column.name, column.type) for column in self.columns)])

    def column(self, token: int) -> Column | None:
        """The column that has a token, or had it before a change of its type."""
        return next((column for column in self.columns if token in (column.token, *column.was)), None)

    def translated(self, cells: Mapping[int, Cell]) -> dict[int, Cell]:
        """Values that were made for an older version, for the columns that still exist."""
        found = ((self.column(token), value) for token, value in cells.items())
        return {column.token: value for column, value in found if column is not None}

    def arrow(self, rows: Mapping[int, Row]) -> pa.Table:
        """Some rows, as a writer of this version would pass them."""
        data: dict[str, list[Any]] = {KEY: list(rows)}
        for column in self.columns:
            data[column.name] = [column.of(row) for row in rows.values()]
        return pa.table(data, schema=self.schema)

    def values(self) -> dict[int, tuple[Cell, ...]]:
        """The values of every row, in the order of the columns."""
        return {key: tuple(column.of(row) for column in self.columns) for key, row in self.rows.items()}

    def blind(self) -> "Snapshot":
        """The snapshot without values that were written for a column's old type after its type had been changed."""
        tokens = [column.token for column in self.columns]
        rows = {
            key: replace(row, cells={token: row.cells.get(token) for token in tokens}) for key, row in self.rows.items()
        }
        return replace(self, rows=rows)

    def made_up(self, keys: Iterable[int], salt: int = 0) -> dict[int, Row]:
        """New rows with values for every column."""
        places = list(enumerate(self.columns, start=salt))
        return {key: new_row({column.token: column.made_up(key + place) for place, column in places}) for key in keys}

    def selected(self, condition: Condition) -> set[int]:
        """The keys of the rows that match a condition."""
        return {key for key, row in self.rows.items() if condition.matches(key, row)}

    def with_rows(self, rows: Mapping[int, Row]) -> "Snapshot":
        """The snapshot with more rows, or with other values of rows."""
        return replace(self, rows={**self.rows, **rows})

    def without(self, keys: Iterable[int]) -> "Snapshot":
        """The snapshot without some rows."""
        gone = set(keys)
        return replace(self, rows={key: row for key, row in self.rows.items() if key not in gone})

    def updated(self, keys: Iterable[int], cells: Mapping[int, Cell]) -> "Snapshot":
        """The snapshot with other values in those of some rows that still exist."""
        return self.with_rows({key: self.rows[key].changed(self.translated(cells)) for key in keys if key in self.rows})

    def upserted(self, rows: Mapping[int, Row]) -> "Snapshot":
        """The snapshot with rows inserted, or replacing those with the same key."""
        return self.with_rows(
            {
                key: self.rows[key].changed(self.translated(row.cells)) if key in self.rows else row
                for key, row in rows.items()
            }
        )

    def with_column(self, column: Column, value: Callable[[int, Row], Cell] | None) -> "Snapshot":
        """The snapshot with one more column, which has a value in every row or in none."""
        wider = replace(self, columns=(*self.columns, column))
        if value is None:
            return wider
        return wider.with_rows(
            {
                key: replace(row, cells={**row.cells, column.token: value(key, row)}, updated=None)
                for key, row in self.rows.items()
            }
        )

    def with_cast(self, column: Column, new: Column) -> "Snapshot":
        """The snapshot with another type of a column."""
        columns = tuple(new if own.token == column.token else own for own in self.columns)
        rows = {
            key: replace(row, cells={**row.cells, new.token: column.of(row)}, updated=None)
            for key, row in self.rows.items()
        }
        kept = {name: token for name, token in self.indices.items() if token != column.token}
        return replace(self, columns=columns, rows=rows, indices=kept)

    def without_column(self, column: Column) -> "Snapshot":
        """The snapshot without a column and the indices on it."""
        kept = {name: token for name, token in self.indices.items() if token != column.token}
        return replace(self, columns=tuple(own for own in self.columns if own.token != column.token), indices=kept)

    def restored(self, old: "Snapshot") -> "Snapshot":
        """The snapshot after a restore of an older version."""
        here = {row.stamp for row in self.rows.values()}
        risen = self.risen.union(row.stamp for row in old.rows.values() if row.stamp not in here)
        lost = self.lost | self.ever - old.ever
        return replace(old, owners=self.owners, ever=self.ever, risen=risen, lost=lost)

    def renamed(self, column: Column, name: str) -> "Snapshot":
        """The snapshot with another name of a column."""
        columns = (replace(own, name=name) if own.token == column.token else own for own in self.columns)
        return replace(self, columns=tuple(columns))


@dataclass(slots=True)
class Line:
    """A branch, with its versions that were not cleaned up."""

    versions: dict[int, Snapshot]
    parent: str | None = None

    @property
    def number(self) -> int:
        """The number of the newest version."""
        return max(self.versions)

    @property
    def head(self) -> Snapshot:
        """The content of the newest version."""
        return self.versions[self.number]


def merged(source: Snapshot, dest: Snapshot, found: Mapping[int, tuple[Cell, ...]]) -> Snapshot:
    """The expected result of a merge of the first into the second, unless it is refused; both have the same columns.

    A row that was deleted on both sides and restored on one stays; a row that the other side deleted only later is
    deleted. Stamps do not distinguish these cases, so the model takes the values that were `found`, by key. A restored
    row that the source changed is replaced by the source's row. Rows that a restore lost may count as never merged.
    Values that a restore of the dest took back stay taken back where both sides had them before the fork.
    """
    on_source = {row.stamp: key for key, row in source.rows.items()}
    born = {row.born for row in source.rows.values()}
    older = {key: cells for key, cells in dest.values().items() if dest.rows[key].stamp in source.ever}
    lost = {key for stamp, key in on_source.items() if stamp in dest.lost}
    taken_back = {key for key in lost if key in older and older[key] == found.get(key)}
    rows = {
        key: row
        for key, row in dest.rows.items()
        if row.stamp in on_source
        or key in taken_back
        or row.stamp not in source.ever
        or (row.stamp in dest.risen and row.born not in born and key in found)
        or (row.stamp in source.lost and key in found)
    }
    for stamp, key in on_source.items():
        came_back = stamp in source.risen | dest.lost and key in found and key not in rows
        if stamp not in dest.ever or came_back:
            assert key not in rows, f"both sides changed row {key}, and the merge was not refused"
            own = source.rows[key]
            # A row that both sides have from before the fork keeps its row id and its creation version.
            known = next((row for row in dest.rows.values() if row.born == own.born), None)
            ids = {} if known is None else {"row_id": known.row_id, "created": known.created}
            rows[key] = Row(cells=own.cells, stamp=stamp, born=own.born, **ids)
    return replace(dest, rows=rows, ever=dest.ever | source.ever)


def new_row(cells: Mapping[int, Cell]) -> Row:
    """A new row."""
    stamp = next(STAMPS)
    return Row(cells=cells, stamp=stamp, born=stamp)


def by_keys(keys: Iterable[int]) -> Condition:
    """The condition that selects rows by their keys."""
    wanted = frozenset(keys)
    return Condition(f"{KEY} IN ({', '.join(map(str, sorted(wanted)))})", lambda key, _: key in wanted)


def by_remainder(divisor: int) -> Condition:
    """The condition that selects every n-th row by the remainder of its key."""
    return Condition(f"{KEY} % {divisor} = 0", lambda key, _: key % divisor == 0)


def by_value(column: Column, value: Cell) -> Condition:
    """The condition that selects rows with one value in a column."""
    literal = f"'{value}'" if isinstance(value, str) else str(value)
    return Condition(f"{column.name} = {literal}", lambda _, row: column.of(row) == value)


def by_null(column: Column) -> Condition:
    """The condition that selects rows without a value in a column."""
    return Condition(f"{column.name} IS NULL", lambda _, row: column.of(row) is None)
