"""Settle contested scopes by a strategy.

What the loser wrote there is dropped, and what it took out there is brought back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pyroaring import BitMap

from lance_dagster.changes.merge.arbiter import BOTH, DEST_WINS, SOURCE_WINS, Arbiter
from lance_dagster.changes.merge.disputed import Disputed, add
from lance_dagster.changes.merge.fates import Elsewhere, Fates, live_rows
from lance_dagster.changes.merge.matching import present
from lance_dagster.changes.overlaps import Contested, Overlaps, Work
from lance_dagster.changes.sides import Lookups, Side
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Manifest

Rows = dict[int, BitMap]
Located = Mapping[int, Elsewhere]


@dataclass(frozen=True, slots=True)
class Loss:
    """What one side loses: rows it put in, by its fragments; rows of the base that it counts as not having changed."""

    dropped: Rows = field(default_factory=dict)
    undone: Rows = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Two sides that claim scopes, where their rows are, and whether each changed columns."""

    base: Manifest
    source: Side
    dest: Side
    source_rows: Fates
    dest_rows: Fates
    columns_changed: tuple[bool, bool]
    lookups: Lookups

    def settled(self, arbiter: Arbiter) -> tuple[Loss, Loss]:
        """Return what source and dest lose; conflicts without a strategy stay with the arbiter."""
        losses = Loss(), Loss()
        overlaps = self._overlaps()
        for contested in overlaps.contested():
            # Of a whole table, all rows would be meant.
            rows = partial(self._disputed, overlaps, contested.scope) if contested.scope is not None else None
            winner = arbiter.settle(contested.conflict, BOTH if contested.known else (), rows)
            if winner == SOURCE_WINS:
                side, fates, loss = self.dest, self.dest_rows, losses[1]
            elif winner == DEST_WINS:
                side, fates, loss = self.source, self.source_rows, losses[0]
            else:
                continue
            try:
                self._lose(side, fates.elsewhere, loss, contested, claimed=contested.by_source == (winner == DEST_WINS))
            except InvalidInputError:
                # The condition is about columns that the other rows do not have.
                arbiter.refuse(contested.conflict, rows)
            again = any(offsets & fates.of(number).rewritten for number, offsets in loss.undone.items())
            if again and contested.scope is not None:
                # They became rows outside the scope perhaps, nobody can tell which, and would be there twice.
                arbiter.refuse(contested.conflict, rows)
        return losses

    def _overlaps(self) -> Overlaps:
        source, dest = (
            Work(side=side, written=_written(rows.elsewhere), gone=self._gone(rows), columns=changed)
            for side, rows, changed in zip(
                (self.source, self.dest), (self.source_rows, self.dest_rows), self.columns_changed, strict=True
            )
        )
        return Overlaps(base=self.base, source=source, dest=dest, matching=self.lookups.matching)

    def _gone(self, rows: Fates) -> Rows:
        found: Rows = {}
        for number in rows.matched.changed:
            fragment = present(self.base, number)
            add(found, number, live_rows(self.base, fragment, self.lookups.deleted) - rows.of(number).alive)
        return found

    def _lose(self, side: Side, rows: Located, loss: Loss, contested: Contested, *, claimed: bool) -> None:
        """Note what a side loses.

        Args:
            side: Who loses.
            rows: Its rows that the base does not have where they are.
            loss: What is noted.
            contested: The scope.
            claimed: Whether it was this side that claimed the scope, and so took rows out of it.
        """
        for number, offsets in self._in_scope(side.manifest, _written(rows), contested.scope).items():
            add(loss.dropped, number, offsets & rows[number].inserted)
            for base_id, in_base in rows[number].in_base(offsets).items():
                add(loss.undone, base_id, in_base)
        if claimed:
            whole = {fragment.id: BitMap(range(fragment.physical_rows)) for fragment in self.base.fragments}
            for number, offsets in self._in_scope(self.base, whole, contested.scope).items():
                add(loss.undone, number, offsets)

    def _disputed(self, overlaps: Overlaps, scope: str) -> Disputed:
        """Return the rows of a scope that either side put in, gave new values or took out."""
        gone: Rows = {}
        for work in (overlaps.source, overlaps.dest):
            for number, offsets in work.gone.items():
                add(gone, number, offsets)
        found = (
            self._perhaps_in_scope(manifest, rows, scope)
            for manifest, rows in (
                (self.base, gone),
                (self.source.manifest, overlaps.source.written),
                (self.dest.manifest, overlaps.dest.written),
            )
        )
        base, source, dest = found
        return Disputed(base=base, source=source, dest=dest)

    def _perhaps_in_scope(self, manifest: Manifest, rows: Mapping[int, BitMap], scope: str) -> Mapping[int, BitMap]:
        try:
            return self._in_scope(manifest, rows, scope)
        except InvalidInputError:
            # Nobody can say that the condition leaves them out.
            return rows

    def _in_scope(self, manifest: Manifest, rows: Mapping[int, BitMap], scope: str | None) -> Mapping[int, BitMap]:
        if scope is None:
            return rows
        found = self.lookups.matching(manifest, rows, scope)
        return {number: rows[number] & offsets for number, offsets in found.items()}


def claimed(sides: Iterable[Side]) -> bool:
    """Tell whether any of the sides claims a scope as its own."""
    return any(claim.exclusive for side in sides for change in side.changes for claim in change.claims)


def _written(rows: Located) -> Rows:
    return {number: offsets for number, found in rows.items() if (offsets := found.written)}
