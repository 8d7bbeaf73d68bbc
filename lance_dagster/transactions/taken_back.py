"""Which changes of a line of versions were taken back by later versions of it, so that they claim nothing any more.

A revert takes one change back, and a restore all changes since a version. A revert of a revert, and a restore to a
version from before it, bring the change again. Only what is certain counts: a revert with a strategy may have left a
part of the change, and a merge is taken back only by a revert to the version that it was made on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lance_dagster.format.transaction import MERGE_STRATEGY, RESTORED, REVERTED, REVERTED_TO, Restore, Transaction
from lance_dagster.transactions.claims import Change

_START = -1
"""The position before the first change."""


def mark_taken_back(changes: Sequence[Change], base: str) -> list[Change]:
    """Return the changes of a line; a change that a later change took back, and none brought again, is marked.

    If change 3 reverts change 1, change 1 is marked. If change 4 then reverts change 3, change 3 is marked instead.

    Args:
        changes: The changes of the line since a version, oldest first.
        base: The commit id of that version.
    """
    line = _Line(changes, base)
    for position, change in enumerate(changes):
        line.states.append(line.after(position, change))
    positions = line.states[-1] if line.states else frozenset[int]()
    return [
        replace(change, taken_back=True) if number in positions else change for number, change in enumerate(changes)
    ]


@dataclass(frozen=True, slots=True)
class _Line:
    """The changes of a line by their positions, and for each the positions that are taken back after it."""

    changes: Sequence[Change]
    base: str
    states: list[frozenset[int]] = field(default_factory=list)

    def after(self, position: int, change: Change) -> frozenset[int]:
        """Return the positions that are taken back after a change."""
        transaction, undone = change.transaction, self._state(position - 1)
        if transaction is None:
            return undone
        if isinstance(transaction.operation, Restore):
            return self._restored(self._at(change, transaction.operation.version, position), position)
        if (to := transaction.properties.get(RESTORED)) is not None:
            place = self._find(to, position)
            return undone if place is None else self._restored(place, position)
        place = self._find(transaction.properties.get(REVERTED), position)
        if place is None or place == _START or not self._reverts_all(transaction, place):
            return undone
        before, after = self._state(place - 1), self._state(place)
        # Changes that the reverted change took back come again, and changes that it brought again are taken back.
        return (undone - (after - before)) | (before - after) | {place}

    def _state(self, position: int) -> frozenset[int]:
        return frozenset() if position == _START else self.states[position]

    def _restored(self, to: int, position: int) -> frozenset[int]:
        return self._state(to) | frozenset(range(to + 1, position))

    def _find(self, name: str | None, end: int) -> int | None:
        """Return the position of a version that properties name, before another position."""
        if name is None:
            return None
        matches = (number for number in range(end) if name in (self.changes[number].id, self.changes[number].version))
        return next(matches, _START if name == self.base else None)

    def _at(self, change: Change, number: int, end: int) -> int:
        """Return the position of the last change up to a version of the same branch, which a restore names by number.

        Changes of branches below come before changes of the branch.
        """
        branch = change.version.rpartition("@")[0]
        later = (
            position
            for position, (own, _, count) in enumerate(
                earlier.version.rpartition("@") for earlier in self.changes[:end]
            )
            if own == branch and int(count) > number
        )
        return next(later, end) - 1

    def _reverts_all(self, revert: Transaction, place: int) -> bool:
        """Tell whether a revert takes back all that the change at a position brought to the line."""
        if MERGE_STRATEGY in revert.properties:
            return False
        reverted = self.changes[place]
        return not reverted.is_merge or revert.properties.get(REVERTED_TO) == reverted.parent_id
