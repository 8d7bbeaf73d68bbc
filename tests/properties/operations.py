"""Operations that have the same meaning whether committed at once or later, because they name rows by their keys.

Each operation is prepared on one version, and computes its result for a later version.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tests.properties.replica import KEY, Cell, Column, Row, Snapshot, by_keys
from tests.properties.writers import PackageWriter, PylanceWriter

Writer = PackageWriter | PylanceWriter
KINDS = ("append", "delete", "update", "upsert", "replace")
COLUMN_KINDS = ("add null", "add computed", "drop", "rename", "cast")
CASTS: dict[pa.DataType, pa.DataType] = {
    pa.int64(): pa.int32(),
    pa.int32(): pa.int64(),
    pa.string(): pa.large_string(),
    pa.large_string(): pa.string(),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, and every outcome that it may have on a version, the most likely one first."""

    kind: str
    do: Callable[[Writer, str], object]
    outcomes: Callable[[Snapshot], list[Snapshot]]


def append(seen: Snapshot, new: list[int]) -> Operation:
    """Add rows."""
    rows = seen.made_up(new)
    data = seen.arrow(rows)
    return Operation("append", lambda writer, branch: writer.append(branch, data), lambda head: [head.with_rows(rows)])


def delete(seen: Snapshot, keys: list[int]) -> Operation:
    """Delete rows."""
    where = by_keys(keys).sql
    return Operation(
        "delete",
        lambda writer, branch: writer.delete(branch, where),
        lambda head: [head.without(keys), head.without(_same(seen, head, keys))],
    )


def update(seen: Snapshot, keys: list[int], column: Column, number: int) -> Operation:
    """Set a column of some rows to one value."""
    where = by_keys(keys).sql
    value = column.made_up(number)
    cells = {column.token: value}
    values = {column.name: literal(value)}
    return Operation(
        "update",
        lambda writer, branch: writer.update(branch, values, where),
        lambda head: [head.updated(keys, cells), head.updated(_same(seen, head, keys), cells)],
    )


def upsert(seen: Snapshot, keys: list[int], new: list[int], number: int) -> Operation:
    """Update all columns of rows, and insert rows."""
    rows = seen.made_up([*keys, *new], salt=number)
    data = seen.arrow(rows)
    return Operation("upsert", lambda writer, branch: writer.upsert(branch, data), lambda head: [head.upserted(rows)])


def upsert_partly(seen: Snapshot, keys: list[int], new: list[int], column: Column) -> Operation:
    """Update one column of rows, and insert rows that have only this column."""
    rows: dict[int, Row] = {
        key: _with_cells(row, {column.token: row.cells[column.token]})
        for key, row in seen.made_up([*keys, *new], salt=3).items()
    }
    data = seen.arrow(rows).select([KEY, column.name])
    return Operation("upsert", lambda writer, branch: writer.upsert(branch, data), lambda head: [head.upserted(rows)])


def replace_rows(seen: Snapshot, keys: list[int], new: list[int]) -> Operation:
    """Replace rows by others, which only this package can do."""
    # A replacement deletes only rows for which its condition is true, not null.
    where = by_keys([*keys, *new]).sql
    rows = seen.made_up(new)
    data = seen.arrow(rows)

    def do(writer: Writer, branch: str) -> None:
        assert isinstance(writer, PackageWriter)
        writer.replace(branch, where, data)

    return Operation(
        "replace",
        do,
        lambda head: [
            head.without(keys).with_rows(rows),
            head.without(_same(seen, head, keys)).with_rows(rows),
        ],
    )


def add_null(column: Column) -> Operation:
    """Add a column without values."""
    return Operation(
        "add null",
        lambda writer, branch: writer.add_null(branch, column.name, column.type),
        lambda head: [head.with_column(column, None)],
    )


def add_computed(column: Column) -> Operation:
    """Add a column of twice the key."""
    return Operation(
        "add computed",
        lambda writer, branch: writer.add_computed(branch, column.name, f"{KEY} * 2"),
        lambda head: [head.with_column(column, lambda key, _: 2 * key)],
    )


def drop(column: Column) -> Operation:
    """Drop a column."""
    return Operation(
        "drop", lambda writer, branch: writer.drop(branch, column.name), lambda head: [_on(head, column, _dropped)]
    )


def rename(column: Column, name: str) -> Operation:
    """Rename a column."""
    return Operation(
        "rename",
        lambda writer, branch: writer.rename(branch, column.name, name),
        lambda head: [_on(head, column, lambda version, own: version.renamed(own, name))],
    )


def cast(column: Column, token: int) -> Operation:
    """Change the type of a column."""
    kind = CASTS[column.type]
    return Operation(
        "cast",
        lambda writer, branch: writer.cast(branch, column.name, kind),
        lambda head: [_on(head, column, lambda version, own: version.with_cast(own, own.cast(token, kind)))],
    )


def _on(head: Snapshot, column: Column, change: Callable[[Snapshot, Column], Snapshot]) -> Snapshot:
    own = head.column(column.token)
    return head if own is None else change(head, own)


def _dropped(head: Snapshot, column: Column) -> Snapshot:
    return head.without_column(column)


def literal(value: Cell) -> str:
    """An SQL literal for a value."""
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _same(seen: Snapshot, head: Snapshot, keys: list[int]) -> list[int]:
    """The keys whose rows are the ones that were seen, and not rows that were inserted later."""
    return [key for key in keys if key in head.rows and head.rows[key].born == seen.rows[key].born]


def _with_cells(row: Row, cells: dict[int, Cell]) -> Row:
    return Row(cells=cells, stamp=row.stamp, born=row.born)
