"""Columns in a merge: added, dropped, renamed or cast, also beside values that the other side wrote."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tests.properties.merging.merge_inputs import (
    SOURCE_WINS,
    ExpectedConflict,
    MergeInputs,
    inserted,
    moved_by,
    rewritten,
)
from tests.properties.merging.rows_model import Column, Row, Snapshot

BESIDE_UPDATED = "beside updated rows"


def merged_columns(inputs: MergeInputs, conflicts: list[ExpectedConflict], strategy: str | None) -> list[Column]:
    """Decide about every column, and record the conflicts."""
    found: dict[int, Column] = {}
    order = (*inputs.dest.columns, *inputs.source.columns, *inputs.base.columns)
    for token in dict.fromkeys(column.token for column in order):
        merged = _column(inputs, token, conflicts, strategy)
        if merged is not None:
            found[token] = merged
    names: dict[str, int] = {}
    for column in found.values():
        if column.name in names:
            conflicts.append(ExpectedConflict("column", f"name {column.name}"))
        names[column.name] = column.token
    return list(found.values())


def _column(inputs: MergeInputs, token: int, conflicts: list[ExpectedConflict], strategy: str | None) -> Column | None:
    base, source, dest = (state.column(token) for state in (inputs.base, inputs.source, inputs.dest))
    if base is not None and (source is None or dest is None):
        if source is not None:
            _dropped(inputs, base, source, inputs.source, conflicts)
        elif dest is not None:
            _dropped(inputs, base, dest, inputs.dest, conflicts)
        return None
    if source is None or dest is None:
        return source or dest
    merged = _faceted(base, source, dest, conflicts, strategy)
    if base is not None and _crossed(base, source, dest):
        conflicts.append(ExpectedConflict("column", f"name and type of {dest.name}", hard=False))
    return merged


def _faceted(
    base: Column | None, source: Column, dest: Column, conflicts: list[ExpectedConflict], strategy: str | None
) -> Column:
    merged = dest
    for facet in ("name", "nullable", "cast"):
        before = None if base is None else getattr(base, facet)
        own, other = getattr(source, facet), getattr(dest, facet)
        if own in (before, other):
            continue
        if other != before:
            # Casts of both sides to one type may be merged where the values are equal, for which they have to be read.
            conflicts.append(
                ExpectedConflict("column", f"{facet} of {dest.name}", hard=not _same_cast(source, dest, facet))
            )
            if strategy != SOURCE_WINS:
                continue
        merged = _with_facet(merged, facet, source)
    return merged


def _same_cast(one: Column, other: Column, facet: str = "cast") -> bool:
    """Whether two columns were given one type, perhaps by different versions."""
    return facet == "cast" and one.type == other.type


def _with_facet(column: Column, facet: str, of: Column) -> Column:
    if facet == "name":
        return replace(column, name=of.name)
    return replace(column, nullable=of.nullable) if facet == "nullable" else replace(column, cast=of.cast, type=of.type)


def _dropped(
    inputs: MergeInputs, base: Column, kept: Column, side: Snapshot, conflicts: list[ExpectedConflict]
) -> None:
    """Record as a conflict what one side did to a column that the other side dropped."""
    if kept != base:
        hard = kept.name != base.name or (kept.cast != base.cast and not _same_cast(kept, base))
        conflicts.append(ExpectedConflict("column", f"dropped {base.name}", hard=hard))
    cells = {uid: rewritten(inputs.base, side, uid).get(base.token) for uid in inputs.base.rows}
    written = {uid: cell for uid, cell in cells.items() if cell is not None}
    if written:
        stays = (uid for uid, cell in written.items() if not cell.partly)
        hard = any(side.rows[uid].stamp == inputs.base.rows[uid].stamp for uid in stays)
        conflicts.append(ExpectedConflict("column", f"dropped {base.name} with new values", hard=hard))


def _crossed(base: Column, source: Column, dest: Column) -> bool:
    """Whether one side changed the type and the other another facet: a cast column is a new one in the format."""
    return (source.cast != base.cast) != (dest.cast != base.cast) and (
        (dest if source.cast != base.cast else source) != base
    )


def column_conflicts(inputs: MergeInputs, rows: Mapping[int, Row]) -> Iterable[ExpectedConflict]:
    """Yield the conflicts where one side changed a column and the other wrote rows or values that do not fit it."""
    for side, other in ((inputs.source, inputs.dest), (inputs.dest, inputs.source)):
        moved, new = moved_by(inputs.base, other, beside=side), inserted(inputs.base, other) - side.rows.keys()
        # A row of which only values of dropped columns changed need not come from the side that changed them.
        unchanged = {uid for uid in moved if not _has_new_values(inputs.base.rows[uid], other.rows[uid], (side, other))}
        for column in side.columns:
            base, opposite = inputs.base.column(column.token), other.column(column.token)
            if base is None and opposite is None:
                found = _added(inputs, column, side, (moved, new))
                yield from (replace(one, hard=one.hard and bool(moved - unchanged)) for one in found)
                yield from _added_beside_cells(inputs, column, other)
            if base is None or column == opposite:
                continue
            if column.cast != base.cast:
                found = _cast(inputs, column, side, other, moved | new)
                # Where the other side has the type as well, by a cast of its own or by an earlier merge of equal casts,
                # it has converted its rows itself.
                same = any(_same_cast(column, one) for one in (base, opposite) if one is not None)
                yield from (replace(one, hard=one.hard and not same) for one in found)
            elif base.nullable and not column.nullable:
                yield from _without_nulls(inputs, column, other, rows, moved | new)


def _has_new_values(was: Row, now: Row, sides: tuple[Snapshot, Snapshot]) -> bool:
    """Whether a row has other values than before in columns that both sides still have."""
    tokens = {token for token in (*was.cells, *now.cells) if all(side.column(token) is not None for side in sides)}
    return any(now.cells.get(token) != was.cells.get(token) for token in tokens)


def _added_beside_cells(inputs: MergeInputs, column: Column, other: Snapshot) -> Iterable[ExpectedConflict]:
    """A new column with values conflicts with a column written for some rows, which may be in files that lack them."""
    cells = (cell for uid in inputs.base.rows for cell in rewritten(inputs.base, other, uid).values())
    if column.computed and any(cell.partly for cell in cells):
        yield ExpectedConflict("column", f"new {column.name} beside rows updated in place", hard=False)


def _without_nulls(
    inputs: MergeInputs, column: Column, other: Snapshot, rows: Mapping[int, Row], moved: set[int]
) -> Iterable[ExpectedConflict]:
    written = {uid for uid in inputs.base.rows if column.token in rewritten(inputs.base, other, uid)}
    if moved or written:
        values = [rows[uid].value(column) for uid in moved | written if uid in rows]
        yield ExpectedConflict("column", f"{column.name} without nulls beside written rows", hard=None in values)


def _cast(
    inputs: MergeInputs, column: Column, side: Snapshot, other: Snapshot, moved: set[int]
) -> Iterable[ExpectedConflict]:
    if moved:
        yield ExpectedConflict("column", f"cast {column.name} beside written rows")
    if any(cell.partly for uid in inputs.base.rows for cell in rewritten(inputs.base, other, uid).values()):
        yield ExpectedConflict("column", f"cast {column.name} beside rows updated in place", hard=False)
    for uid in inputs.base.rows:
        cell = rewritten(inputs.base, other, uid).get(column.token)
        if cell is not None and (uid not in side.rows or side.rows[uid].cells.get(column.token) != cell):
            yield ExpectedConflict("column", f"cast {column.name} beside written values")


def is_beside(conflict: ExpectedConflict) -> bool:
    """Whether the conflict is that one side updated rows without a column that the other side filled."""
    return conflict.unit.startswith("new ") and conflict.unit.endswith(BESIDE_UPDATED)


def beside_updated(inputs: MergeInputs, side: Snapshot, other: Snapshot) -> set[int]:
    """The rows that one side updated without a new column of the other side."""
    moved = moved_by(inputs.base, other, beside=side)
    new = (one for one in side.columns if inputs.base.column(one.token) is None and other.column(one.token) is None)
    conflicts = [conflict for column in new for conflict in _added(inputs, column, side, (moved, set()))]
    return {uid for uid in moved if uid in side.rows} if any(map(is_beside, conflicts)) else set()


def _added(
    inputs: MergeInputs, column: Column, side: Snapshot, written: tuple[set[int], set[int]]
) -> Iterable[ExpectedConflict]:
    moved, new = written
    kept = (side.rows[uid] for uid, row in inputs.base.rows.items() if uid in side.rows)
    filled = column.computed or any(column.token in row.cells for row in kept)
    if filled and any(uid in side.rows for uid in moved):
        known = any(column.token in side.rows[uid].cells for uid in moved if uid in side.rows)
        yield ExpectedConflict("column", f"new {column.name} {BESIDE_UPDATED}", hard=known)
    if not column.nullable and (new or moved):
        yield ExpectedConflict("column", f"new {column.name} without nulls beside new rows")
