"""What a table should hold, as plain values: the model that random histories are compared with.

A row is known by its key, which no other row ever gets. Every value of a row that was ever written has a stamp of its
own, so that a merge can be foretold: what only one side has stays, unless the other side had it once. A column is known
by a token, not by its name: a writer that did not see a column being renamed still means the same one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

KEY = "id"
Cell = int | float | str | None
STAMPS = iter(range(1, 1 << 60))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: what it is known by, whatever it is called, and which it was before its type was changed."""

    token: int
    name: str
    type: pa.DataType
    was: tuple[int, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether its values are strings."""
        return self.type in (pa.string(), pa.large_string())

    def of(self, row: "Row") -> Cell:
        """The value of a row, which may have been written before the type was changed."""
        return next((row.cells[token] for token in (self.token, *self.was) if token in row.cells), None)

    def cast(self, token: int, kind: pa.DataType) -> "Column":
        """The column after its type was changed."""
        return Column(token, self.name, kind, (self.token, *self.was))

    def made_up(self, number: int) -> Cell:
        """A value for a row, null at times."""
        if number % 7 == 6:
            return None
        if self.is_text:
            return f"w{number % 4}"
        return number % 10 / 2 if self.type == pa.float64() else number % 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row. `created` and `updated` are None while the version that made it so has no number yet.

    `born` stays when the row is changed: a row of the same key that was put in after this one was deleted has another.
    """

    cells: Mapping[int, Cell]
    stamp: int
    born: int
    row_id: int | None = None
    created: int | None = None
    updated: int | None = None

    def changed(self, cells: Mapping[int, Cell]) -> "Row":
        """The row with other values, as an update leaves it."""
        return replace(self, cells={**self.cells, **cells}, stamp=next(STAMPS), updated=None)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter: as SQL, and as a function of a key and its row."""

    sql: str
    matches: Callable[[int, Row], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a branch.

    `owners` are the keys of all rows that ever were on the way to this version, by row id, and `ever` the stamps.
    `risen` are the stamps of rows that were gone and that a restore brought back, `lost` those of rows that the
    restored version never had: a restore from before a merge takes the record of the merge with it.
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
        """As Arrow sees it."""
        return pa.schema([(KEY, pa.int64()), *((column.name, column.type) for column in self.columns)])

    def column(self, token: int) -> Column | None:
        """The column of a token, or what became of it."""
        return next((column for column in self.columns if token in (column.token, *column.was)), None)

    def translated(self, cells: Mapping[int, Cell]) -> dict[int, Cell]:
        """Values as they were meant for an older version, for the columns there are."""
        found = ((self.column(token), value) for token, value in cells.items())
        return {column.token: value for column, value in found if column is not None}

    def arrow(self, rows: Mapping[int, Row]) -> pa.Table:
        """Some rows, as a writer of this version would give them."""
        data: dict[str, list[Any]] = {KEY: list(rows)}
        for column in self.columns:
            data[column.name] = [column.of(row) for row in rows.values()]
        return pa.table(data, schema=self.schema)

    def values(self) -> dict[int, tuple[Cell, ...]]:
        """The values of every row, in the order of the columns."""
        return {key: tuple(column.of(row) for column in self.columns) for key, row in self.rows.items()}

    def blind(self) -> "Snapshot":
        """Without the values that were written for a column after it had been given another type."""
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
        """The keys of the rows that match."""
        return {key for key, row in self.rows.items() if condition.matches(key, row)}

    def with_rows(self, rows: Mapping[int, Row]) -> "Snapshot":
        """With more rows, or other values of rows."""
        return replace(self, rows={**self.rows, **rows})

    def without(self, keys: Iterable[int]) -> "Snapshot":
        """Without some rows."""
        gone = set(keys)
        return replace(self, rows={key: row for key, row in self.rows.items() if key not in gone})

    def updated(self, keys: Iterable[int], cells: Mapping[int, Cell]) -> "Snapshot":
        """With other values in some rows, where they are still there."""
        return self.with_rows({key: self.rows[key].changed(self.translated(cells)) for key in keys if key in self.rows})

    def upserted(self, rows: Mapping[int, Row]) -> "Snapshot":
        """With rows put in, or in the place of those of the same key."""
        return self.with_rows(
            {
                key: self.rows[key].changed(self.translated(row.cells)) if key in self.rows else row
                for key, row in rows.items()
            }
        )

    def with_column(self, column: Column, value: Callable[[int, Row], Cell] | None) -> "Snapshot":
        """With one more column, which every row gets a value for, or none."""
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
        """With a column of another type in the place of one."""
        columns = tuple(new if own.token == column.token else own for own in self.columns)
        rows = {
            key: replace(row, cells={**row.cells, new.token: column.of(row)}, updated=None)
            for key, row in self.rows.items()
        }
        kept = {name: token for name, token in self.indices.items() if token != column.token}
        return replace(self, columns=columns, rows=rows, indices=kept)

    def without_column(self, column: Column) -> "Snapshot":
        """Without a column and the indices on it."""
        kept = {name: token for name, token in self.indices.items() if token != column.token}
        return replace(self, columns=tuple(own for own in self.columns if own.token != column.token), indices=kept)

    def restored(self, old: "Snapshot") -> "Snapshot":
        """As an older version was."""
        here = {row.stamp for row in self.rows.values()}
        risen = self.risen.union(row.stamp for row in old.rows.values() if row.stamp not in here)
        lost = self.lost | self.ever - old.ever
        return replace(old, owners=self.owners, ever=self.ever, risen=risen, lost=lost)

    def renamed(self, column: Column, name: str) -> "Snapshot":
        """With another name for a column."""
        columns = (replace(own, name=name) if own.token == column.token else own for own in self.columns)
        return replace(self, columns=tuple(columns))


@dataclass(slots=True)
class Line:
    """A branch: its versions that were not cleaned up."""

    versions: dict[int, Snapshot]
    parent: str | None = None

    @property
    def number(self) -> int:
        """The newest version."""
        return max(self.versions)

    @property
    def head(self) -> Snapshot:
        """What the newest version holds."""
        return self.versions[self.number]


def merged(source: Snapshot, dest: Snapshot, found: Collection[int]) -> Snapshot:
    """What a merge of the first into the second has to give, if it is not refused; both have the same columns.

    A row that was gone on both sides and came back on one stays; one that the other side took out only later goes.
    Stamps do not tell which it was, so there it holds what was found. One that came back as the source found it and
    that the source changed is replaced by what the source has. What a restore lost may count as never merged.
    """
    on_source = {row.stamp: key for key, row in source.rows.items()}
    born = {row.born for row in source.rows.values()}
    rows = {
        key: row
        for key, row in dest.rows.items()
        if row.stamp in on_source
        or row.stamp not in source.ever
        or (row.stamp in dest.risen and row.born not in born and key in found)
        or (row.stamp in source.lost and key in found)
    }
    for stamp, key in on_source.items():
        came_back = stamp in source.risen | dest.lost and key in found and key not in rows
        if stamp not in dest.ever or came_back:
            assert key not in rows, f"both sides changed row {key}, and the merge was not refused"
            own = source.rows[key]
            # A row that both have from before the fork keeps what says when it came.
            known = next((row for row in dest.rows.values() if row.born == own.born), None)
            ids = {} if known is None else {"row_id": known.row_id, "created": known.created}
            rows[key] = Row(cells=own.cells, stamp=stamp, born=own.born, **ids)
    return replace(dest, rows=rows, ever=dest.ever | source.ever)


def new_row(cells: Mapping[int, Cell]) -> Row:
    """A row that never was."""
    stamp = next(STAMPS)
    return Row(cells=cells, stamp=stamp, born=stamp)


def by_keys(keys: Iterable[int]) -> Condition:
    """Rows by name."""
    wanted = frozenset(keys)
    return Condition(f"{KEY} IN ({', '.join(map(str, sorted(wanted)))})", lambda key, _: key in wanted)


def by_remainder(divisor: int) -> Condition:
    """Every so many rows, of any age."""
    return Condition(f"{KEY} % {divisor} = 0", lambda key, _: key % divisor == 0)


def by_value(column: Column, value: Cell) -> Condition:
    """Rows with one value in a column."""
    literal = f"'{value}'" if isinstance(value, str) else str(value)
    return Condition(f"{column.name} = {literal}", lambda _, row: column.of(row) == value)


def by_null(column: Column) -> Condition:
    """Rows without a value in a column."""
    return Condition(f"{column.name} IS NULL", lambda _, row: column.of(row) is None)
