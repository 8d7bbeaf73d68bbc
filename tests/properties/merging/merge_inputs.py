"""The three states of a merge, their differences, and its outcome."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.properties.merging.rows_model import Cell, Made, Snapshot

SOURCE_WINS: Literal["source-wins"] = "source-wins"
DEST_WINS: Literal["dest-wins"] = "dest-wins"


@dataclass(frozen=True, slots=True)
class ExpectedConflict:
    """One conflict: its kind, its unit, and whether the merge must be refused."""

    kind: str
    unit: str
    hard: bool = True


@dataclass(slots=True)
class Outcome:
    """The result of one merge by the rules, and its conflicts."""

    result: Snapshot
    conflicts: list[ExpectedConflict] = field(default_factory=list)

    def but(self, conflict: ExpectedConflict) -> "Outcome":
        """The same outcome with one more conflict."""
        return Outcome(self.result, [*self.conflicts, conflict])

    @property
    def must_refuse(self) -> bool:
        """Whether a merge would be wrong, so that it must be refused."""
        return any(conflict.hard for conflict in self.conflicts)

    @property
    def may_refuse(self) -> bool:
        """Whether a refusal is allowed."""
        return bool(self.conflicts)

    @property
    def kinds(self) -> set[str]:
        """The kinds of the conflicts."""
        return {conflict.kind for conflict in self.conflicts}


@dataclass(frozen=True, slots=True)
class MergeInputs:
    """The three states of a merge, and the versions that each side made since the base."""

    base: Snapshot
    source: Snapshot
    dest: Snapshot
    source_did: Sequence[Made] = ()
    dest_did: Sequence[Made] = ()


def touched(base: Snapshot, side: Snapshot) -> dict[int, str]:
    """The change of each row of the base that a side changed: "updated" or "deleted"."""
    return {
        uid: "updated" if uid in side.rows else "deleted"
        for uid, row in base.rows.items()
        if uid not in side.rows or side.rows[uid].stamp != row.stamp
    }


def inserted(base: Snapshot, side: Snapshot) -> set[int]:
    """The rows of a side that the base does not have."""
    return side.rows.keys() - base.rows.keys()


def rewritten(base: Snapshot, side: Snapshot, uid: int) -> dict[int, Cell]:
    """The cells of a row that a side wrote in place."""
    was, now = base.rows.get(uid), side.rows.get(uid)
    if was is None or now is None:
        return {}
    columns = {column.token for column in base.columns}
    return {
        token: cell
        for token, cell in now.cells.items()
        if token in columns and (token not in was.cells or was.cells[token].stamp != cell.stamp)
    }


def moved_by(base: Snapshot, other: Snapshot, *, beside: Snapshot) -> set[int]:
    """The rows that one side updated, and that the other one did not update in the same way."""
    return {
        uid
        for uid, change in touched(base, other).items()
        if change == "updated" and (uid not in beside.rows or beside.rows[uid].stamp != other.rows[uid].stamp)
    }
