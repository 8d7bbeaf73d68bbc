"""Rows in a merge: unchanged, updated or deleted on each side, and cells that were written in place."""

from dataclasses import dataclass

from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS, ExpectedConflict, MergeInputs, rewritten
from tests.properties.merging.rows_model import Row, Value


def merged_rows(inputs: MergeInputs, conflicts: list[ExpectedConflict], strategy: str | None) -> dict[int, Row]:
    """Decide about every row, and record the conflicts."""
    base, source, dest = inputs.base, inputs.source, inputs.dest
    found: dict[int, Row] = {}
    for uid in dict.fromkeys((*dest.rows, *source.rows)):
        row = _Decision(inputs, uid, conflicts, strategy).row()
        if row is not None:
            found[uid] = row
    for uid in base.rows.keys() - dest.rows.keys() - source.rows.keys():
        found.pop(uid, None)
    return found


@dataclass(slots=True)
class _Decision:
    """The decision about one row that at least one side has."""

    inputs: MergeInputs
    uid: int
    conflicts: list[ExpectedConflict]
    strategy: str | None

    def row(self) -> Row | None:
        """The row of the result."""
        base, source, dest = (
            state.rows.get(self.uid) for state in (self.inputs.base, self.inputs.source, self.inputs.dest)
        )
        if base is None:
            if source is None or dest is None:
                return source or dest
            if source.stamp != dest.stamp:
                self.conflict("rows", "inserted twice")
                return source if self.strategy == SOURCE_WINS else dest
            return self.cells(_shared(source, dest), source, dest)
        if source is None or dest is None:
            return self.one_deleted(base, source, dest)
        changed = (source.stamp != base.stamp, dest.stamp != base.stamp)
        if source.stamp == dest.stamp:
            return self.cells(base, source, dest)
        if changed == (True, True):
            return self.both_updated(base, source, dest)
        return self.one_updated(base, source, dest)

    def one_deleted(self, base: Row, source: Row | None, dest: Row | None) -> Row | None:
        """Decide about a row that one side deleted."""
        left, side = (source, self.inputs.source) if dest is None else (dest, self.inputs.dest)
        assert left is not None
        if left.stamp != base.stamp:
            # The deletion loses nothing of an update that changed no value: where only stamps show the update, the
            # package compares values and deletes the row. The same holds if that side has dropped the updated columns.
            lost = any(cell.value != _value(base, token) for token, cell in left.cells.items())
            self.conflict("rows", "updated and deleted", hard=lost)
            return left if self.strategy == (SOURCE_WINS if side is self.inputs.source else DEST_WINS) else None
        written = [*rewritten(self.inputs.base, side, self.uid).values()]
        written += [cell for token, cell in left.cells.items() if token not in base.cells]
        if any(cell.partly for cell in written):
            self.conflict("rows", "updated in place and deleted", hard=False)
        return None

    def both_updated(self, base: Row, source: Row, dest: Row) -> Row:
        """Decide about a row that both sides updated, cell by cell; a program may refuse to rewrite the row."""
        merged, conflicting = dict(dest.cells), False
        for token, cell in source.cells.items():
            before, here = (_value(row, token) for row in (base, dest))
            if cell.value in (before, here) or self.is_dropped(token):
                continue
            if here != before:
                conflicting = True
                if self.strategy != SOURCE_WINS:
                    continue
            merged[token] = cell
        made = Row(merged, -((source.stamp << 32) + dest.stamp))
        row = next((one for one in (dest, source) if _has_equal_values(one, made)), made)
        # It is open whether the loser keeps its other cells: a row that cannot be rewritten is wholly the winner's.
        self.conflict("rows", "updated by both" + (", with other cells" if row is made else ""), hard=conflicting)
        return row

    def one_updated(self, base: Row, source: Row, dest: Row) -> Row:
        """Decide about a row that one side updated, and the other side left or wrote in place."""
        updated, other = (source, dest) if dest.stamp == base.stamp else (dest, source)
        side = self.inputs.dest if other is dest else self.inputs.source
        written = {
            token: cell
            for token, cell in rewritten(self.inputs.base, side, self.uid).items()
            if side.column(token) is not None
        }
        if any(cell.partly for cell in written.values()):
            # A program may record which rows it wrote in place, and then they count as updated. Cells that were also
            # written to all rows of a file are compared like the others, or refused.
            if not all(cell.partly for cell in written.values()):
                self.conflict("rows", "updated, and written in place", hard=False)
            return self.both_updated(base, source, dest)
        if written:
            # It is open whether a program finds the place of the updated row, unless both wrote the same cell.
            hard = any(_value(updated, token) not in (_value(base, token), one.value) for token, one in written.items())
            self.conflict("rows", "updated, and written in place", hard=hard)
        new = {
            token: cell for token, cell in other.cells.items() if token not in base.cells and token not in updated.cells
        }
        return Row({**updated.cells, **written, **new}, updated.stamp)

    def cells(self, base: Row, source: Row, dest: Row) -> Row:
        """Decide cell by cell about a row that neither side updated or deleted."""
        merged = dict(dest.cells)
        self.side_by_side(base, source, dest)
        for token, cell in source.cells.items():
            other, before = _stamp(dest, token), _stamp(base, token)
            if cell.stamp in (other, before):
                continue
            if self.is_dropped(token):
                # The column is dropped, and its cells with it.
                continue
            if other != before:
                if (
                    cell.partly
                    and dest.cells[token].partly
                    and _value(base, token) in (cell.value, _value(dest, token))
                ):
                    # One of the sides wrote the value that was there already.
                    merged[token] = dest.cells[token] if cell.value == _value(base, token) else cell
                    continue
                self.conflict("rows", "a cell written by both")
                if self.strategy != SOURCE_WINS:
                    continue
            merged[token] = cell
        return Row(merged, dest.stamp)

    def is_dropped(self, token: int) -> bool:
        """Whether a side has dropped a column of the base."""
        known = self.inputs.base.column(token) is not None
        return known and any(side.column(token) is None for side in (self.inputs.source, self.inputs.dest))

    def side_by_side(self, base: Row, source: Row, dest: Row) -> None:
        """Record that one side wrote some rows of a column, which a program may do by moving the rows."""
        written = [
            {
                token: cell
                for token, cell in row.cells.items()
                if cell.stamp not in (_stamp(base, token), _stamp(other, token))
            }
            for row, other in ((source, dest), (dest, source))
        ]
        if all(written) and any(cell.partly for cells in written for cell in cells.values()):
            self.conflict("rows", "written in place by both", hard=False)

    def conflict(self, kind: str, what: str, *, hard: bool = True) -> None:
        """Record a conflict."""
        self.conflicts.append(ExpectedConflict(kind, f"row {self.uid} {what}", hard))


def _has_equal_values(one: Row, other: Row) -> bool:
    """Whether two states of a row have the same values in the same columns."""
    return {token: cell.value for token, cell in one.cells.items()} == {
        token: cell.value for token, cell in other.cells.items()
    }


def _value(row: Row, token: int) -> Value:
    cell = row.cells.get(token)
    return None if cell is None else cell.value


def _shared(source: Row, dest: Row) -> Row:
    """The cells that both sides have in common: the original values of the others are unknown."""
    return Row({token: cell for token, cell in source.cells.items() if token in dest.cells}, source.stamp)


def _stamp(row: Row, token: int) -> int | None:
    cell = row.cells.get(token)
    return None if cell is None else cell.stamp
