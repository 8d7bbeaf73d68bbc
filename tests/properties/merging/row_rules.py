"""Rows in a merge: the same, updated or deleted on each side; cells written in place."""

from dataclasses import dataclass

from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS, ExpectedConflict, MergeInputs, rewritten
from tests.properties.merging.rows_model import Row


def merged_rows(inputs: MergeInputs, conflicts: list[ExpectedConflict], strategy: str | None) -> dict[int, Row]:
    """Decide about every row, and note the conflicts."""
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
    """What becomes of one row that at least one side has."""

    inputs: MergeInputs
    uid: int
    conflicts: list[ExpectedConflict]
    strategy: str | None

    def row(self) -> Row | None:
        """The row of the result."""
        was, mine, theirs = (
            state.rows.get(self.uid) for state in (self.inputs.base, self.inputs.source, self.inputs.dest)
        )
        if was is None:
            if mine is None or theirs is None:
                return mine or theirs
            if mine.stamp != theirs.stamp:
                self.conflict("rows", "inserted twice")
                return mine if self.strategy == SOURCE_WINS else theirs
            return self.cells(_shared(mine, theirs), mine, theirs)
        if mine is None or theirs is None:
            return self.one_deleted(was, mine, theirs)
        changed = (mine.stamp != was.stamp, theirs.stamp != was.stamp)
        if mine.stamp == theirs.stamp:
            return self.cells(was, mine, theirs)
        if changed == (True, True):
            self.conflict("rows", "updated by both")
            return mine if self.strategy == SOURCE_WINS else theirs
        return self.one_updated(was, mine, theirs)

    def one_deleted(self, was: Row, mine: Row | None, theirs: Row | None) -> Row | None:
        """Deleted on one side."""
        left, side = (mine, self.inputs.source) if theirs is None else (theirs, self.inputs.dest)
        assert left is not None
        if left.stamp != was.stamp:
            self.conflict("rows", "updated and deleted")
            return left if self.strategy == (SOURCE_WINS if side is self.inputs.source else DEST_WINS) else None
        written = [*rewritten(self.inputs.base, side, self.uid).values()]
        written += [cell for token, cell in left.cells.items() if token not in was.cells]
        if any(cell.partly for cell in written):
            self.conflict("rows", "updated in place and deleted", hard=False)
        return None

    def one_updated(self, was: Row, mine: Row, theirs: Row) -> Row:
        """Updated on one side, at most written in place on the other."""
        updated, other = (mine, theirs) if theirs.stamp == was.stamp else (theirs, mine)
        side = self.inputs.dest if other is theirs else self.inputs.source
        written = {
            token: cell
            for token, cell in rewritten(self.inputs.base, side, self.uid).items()
            if side.column(token) is not None
        }
        if written:
            self.conflict(
                "rows", "updated, and written in place", hard=not all(cell.partly for cell in written.values())
            )
        new = {
            token: cell for token, cell in other.cells.items() if token not in was.cells and token not in updated.cells
        }
        return Row({**updated.cells, **written, **new}, updated.stamp)

    def cells(self, was: Row, mine: Row, theirs: Row) -> Row:
        """The same row on both sides: cell by cell."""
        merged = dict(theirs.cells)
        self.side_by_side(was, mine, theirs)
        for token, cell in mine.cells.items():
            other, before = _stamp(theirs, token), _stamp(was, token)
            if cell.stamp in (other, before):
                continue
            sides = (self.inputs.source, self.inputs.dest)
            if self.inputs.base.column(token) is not None and any(side.column(token) is None for side in sides):
                # The column goes, and its cells with it.
                continue
            if other != before:
                self.conflict("rows", "a cell written by both")
                if self.strategy != SOURCE_WINS:
                    continue
            merged[token] = cell
        return Row(merged, theirs.stamp)

    def side_by_side(self, was: Row, mine: Row, theirs: Row) -> None:
        """Note where one side wrote some rows of a column, which a program may do by moving them."""
        written = [
            {
                token: cell
                for token, cell in row.cells.items()
                if cell.stamp not in (_stamp(was, token), _stamp(other, token))
            }
            for row, other in ((mine, theirs), (theirs, mine))
        ]
        if all(written) and any(cell.partly for cells in written for cell in cells.values()):
            self.conflict("rows", "written in place by both", hard=False)

    def conflict(self, kind: str, what: str, *, hard: bool = True) -> None:
        """Note a conflict."""
        self.conflicts.append(ExpectedConflict(kind, f"row {self.uid} {what}", hard))


def _shared(mine: Row, theirs: Row) -> Row:
    """A row as both sides got it: nobody knows what it had where they differ."""
    return Row({token: cell for token, cell in mine.cells.items() if token in theirs.cells}, mine.stamp)


def _stamp(row: Row, token: int) -> int | None:
    cell = row.cells.get(token)
    return None if cell is None else cell.stamp
