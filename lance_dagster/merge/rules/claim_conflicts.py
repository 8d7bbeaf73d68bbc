"""Conflicts between what two sides claim: compared by name where both name partitions, else by looking at the rows.

Settle contested scopes by a strategy.

What the loser wrote there is dropped, and what it took out there is brought back.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import RESTORED, REVERTED, Restore, Rewrite
from lance_dagster.merge.rules.merge_side import Conflict, Lookups, Matching, SideHistory, makers
from lance_dagster.merge.rules.row_changes import RelocatedRows, RowChanges, live_rows, present
from lance_dagster.merge.rules.strategy import BOTH, DEST_WINS, SOURCE_WINS, ConflictingRows, StrategyResolver, add
from lance_dagster.transactions.claims import APPEND, OVERWRITE, UPSERT, Change, Claim

Rows = Mapping[int, BitMap]
"""Offsets by fragment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimConflict:
    """A conflict about a scope that a side claims as its own, and the condition its rows fulfil.

    `by_source` says whose claim it is. `scope` is None for all rows; without `known`, nobody can tell the rows.
    """

    conflict: Conflict
    by_source: bool
    scope: str | None
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SideWrites:
    """What one side did: the rows it put in or gave new values, by its fragments; those it took out, by the base's.

    `columns` says whether it changed the schema, or values beside rows.
    """

    side: SideHistory
    written: Rows
    gone: Rows
    columns: bool

    @property
    def nothing(self) -> bool:
        """Whether the side ended where it began."""
        return not (self.written or self.gone or self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOverlaps:
    """The claims of two sides, and what each did to rows."""

    base: Manifest
    source: SideWrites
    dest: SideWrites
    matching: Matching

    def claim_conflicts(self) -> list[ClaimConflict]:
        """Return where one side claims rows as its own and the other put or replaced rows too, each scope once."""
        found: dict[str, ClaimConflict] = {}
        # By name first: a partition that both sides name need not be looked up in the rows.
        for claim_conflicts in (*self._named(), *self._found_in_dest(), *self._found_in_source()):
            found.setdefault(claim_conflicts.conflict.unit, claim_conflicts)
        return list(found.values())

    def _named(self) -> Iterator[ClaimConflict]:
        """Compare claims by what they name: an overwritten table with anything, partitions by their keys."""
        for source_change, claim in _standing(self.source):
            for dest_change, other in _standing(self.dest):
                if not (claim.exclusive or other.exclusive):
                    continue
                described = _describe(source_change, claim), _describe(dest_change, other)
                by_source = claim.exclusive
                stronger = claim if by_source else other
                if OVERWRITE in (claim.mode, other.mode):
                    stronger = claim if claim.mode == OVERWRITE else other
                    yield _claim_conflict("table", "the whole table", described, stronger, by_source=stronger is claim)
                    continue
                for partition in claim.shared_partitions(other) or ():
                    yield _claim_conflict(
                        "partition", f"partition {partition}", described, stronger, by_source=by_source
                    )

    def _found_in_dest(self) -> Iterator[ClaimConflict]:
        for change, claim in _claims(self.source.side):
            if _has_to_look(claim, self.dest.side) and self._matches(self.dest, claim):
                described = _describe(change, claim), _changed_there(self.dest.side)
                yield _claim_conflict(_kind(claim), _scope(claim), described, claim, by_source=True)

    def _found_in_source(self) -> Iterator[ClaimConflict]:
        for change, claim in _claims(self.dest.side):
            if _has_to_look(claim, self.source.side) and self._matches(self.source, claim):
                described = _changed_there(self.source.side), _describe(change, claim)
                yield _claim_conflict(_kind(claim), _scope(claim), described, claim, by_source=False)

    def _matches(self, work: SideWrites, claim: Claim) -> bool:
        """Tell whether a side put rows into a scope, or took rows out of it."""
        if claim.mode == OVERWRITE and work.columns:
            return True
        pairs = ((work.side.manifest, work.written), (self.base, work.gone))
        return any(self._in_scope(manifest, rows, claim.predicate) for manifest, rows in pairs if rows)

    def _in_scope(self, manifest: Manifest, rows: Rows, predicate: str | None) -> bool:
        if predicate is None:
            return True
        try:
            found = self.matching(manifest, rows, predicate)
        except InvalidInputError:
            # Written for columns that these rows do not have, so nobody can say that it leaves them out.
            return True
        return any(rows[number] & offsets for number, offsets in found.items())


def _claim_conflict(
    kind: str, unit: str, described: tuple[str, str], claim: Claim, *, by_source: bool
) -> ClaimConflict:
    known = claim.predicate is not None or claim.mode == OVERWRITE
    conflict = Conflict(kind=kind, unit=unit, source=described[0], dest=described[1])
    return ClaimConflict(conflict=conflict, by_source=by_source, scope=claim.predicate, known=known)


def _claims(side: SideHistory) -> Iterator[tuple[Change, Claim]]:
    return ((change, claim) for change in side.changes for claim in change.claims)


def _standing(work: SideWrites) -> Iterator[tuple[Change, Claim]]:
    """Return what a side claims: of one that ended where it began, what it says there is, unless it took that back."""
    if not work.nothing:
        return _claims(work.side)
    back = any(_takes_back(change) for change in work.side.changes)
    return ((change, claim) for change, claim in _claims(work.side) if claim.exclusive and not back)


def _takes_back(change: Change) -> bool:
    of = change.transaction
    return of is not None and (
        isinstance(of.operation, Restore) or not of.properties.keys().isdisjoint((REVERTED, RESTORED))
    )


def _has_to_look(claim: Claim, other: SideHistory) -> bool:
    """Tell whether some change of the other side says too little about its rows to be compared by name."""
    return claim.exclusive and any(not _tells(change) or not claim.partitions for change in other.changes)


def _tells(change: Change) -> bool:
    return change.moves_no_row or (bool(change.claims) and all(claim.partitions for claim in change.claims))


def _kind(claim: Claim) -> str:
    return "table" if claim.mode == OVERWRITE else "partition"


def _scope(claim: Claim) -> str:
    if claim.mode == OVERWRITE:
        return "the whole table"
    named = ", ".join(claim.partitions)
    if not named and claim.predicate is None:
        return "rows of any key"
    return f"partition {named}" if named else f"rows where {claim.predicate}"


def _changed_there(side: SideHistory) -> str:
    who = makers(side, lambda change: not (_tells(change) or isinstance(change.operation, Rewrite)))
    there = f" on {side.name}" if who != side.name else ""
    return f"{who} changed rows there{there}"


def _describe(change: Change, claim: Claim) -> str:
    verbs = {APPEND: "added rows to it", OVERWRITE: "replaced all rows", UPSERT: "upserted new keys there"}
    verb = verbs.get(claim.mode, "replaced it")
    return f"{change.who} {verb} in {change.version}"


Located = Mapping[int, RelocatedRows]


@dataclass(frozen=True, slots=True)
class ClaimLoss:
    """What one side loses: rows it put in, by its fragments; rows of the base that it counts as not having changed."""

    dropped: dict[int, BitMap] = field(default_factory=dict)
    undone: dict[int, BitMap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSettlement:
    """Two sides that claim scopes, where their rows are, and whether each changed columns."""

    base: Manifest
    source: SideHistory
    dest: SideHistory
    source_rows: RowChanges
    dest_rows: RowChanges
    columns_changed: tuple[bool, bool]
    lookups: Lookups

    def settled(self, resolver: StrategyResolver) -> tuple[ClaimLoss, ClaimLoss]:
        """Return what source and dest lose; conflicts without a strategy stay with the resolver."""
        losses = ClaimLoss(), ClaimLoss()
        overlaps = self._overlaps()
        for claim_conflicts in overlaps.claim_conflicts():
            # Of a whole table, all rows would be meant.
            rows = (
                partial(self._conflicting_rows, overlaps, claim_conflicts.scope)
                if claim_conflicts.scope is not None
                else None
            )
            winner = resolver.settle(claim_conflicts.conflict, BOTH if claim_conflicts.known else (), rows)
            if winner == SOURCE_WINS:
                side, row_changes, loss = self.dest, self.dest_rows, losses[1]
            elif winner == DEST_WINS:
                side, row_changes, loss = self.source, self.source_rows, losses[0]
            else:
                continue
            try:
                self._lose(
                    side,
                    row_changes.relocated,
                    loss,
                    claim_conflicts,
                    claimed=claim_conflicts.by_source == (winner == DEST_WINS),
                )
            except InvalidInputError:
                # The condition is about columns that the other rows do not have.
                resolver.refuse(claim_conflicts.conflict, rows)
            again = any(offsets & row_changes.of(number).rewritten for number, offsets in loss.undone.items())
            if again and claim_conflicts.scope is not None:
                # They became rows outside the scope perhaps, nobody can tell which, and would be there twice.
                resolver.refuse(claim_conflicts.conflict, rows)
        return losses

    def _overlaps(self) -> ClaimOverlaps:
        source, dest = (
            SideWrites(side=side, written=_written(rows.relocated), gone=self._gone(rows), columns=changed)
            for side, rows, changed in zip(
                (self.source, self.dest), (self.source_rows, self.dest_rows), self.columns_changed, strict=True
            )
        )
        return ClaimOverlaps(base=self.base, source=source, dest=dest, matching=self.lookups.matching)

    def _gone(self, rows: RowChanges) -> dict[int, BitMap]:
        found: dict[int, BitMap] = {}
        for number in rows.matched.changed:
            fragment = present(self.base, number)
            add(found, number, live_rows(self.base, fragment, self.lookups.deleted) - rows.of(number).alive)
        return found

    def _lose(
        self, side: SideHistory, rows: Located, loss: ClaimLoss, claim_conflicts: ClaimConflict, *, claimed: bool
    ) -> None:
        """Note what a side loses.

        Args:
            side: Who loses.
            rows: Its rows that the base does not have where they are.
            loss: What is noted.
            claim_conflicts: The conflict, which has the scope.
            claimed: Whether it was this side that claimed the scope, and so took rows out of it.
        """
        for number, offsets in self._in_scope(side.manifest, _written(rows), claim_conflicts.scope).items():
            add(loss.dropped, number, offsets & rows[number].inserted)
            for base_id, in_base in rows[number].in_base(offsets).items():
                add(loss.undone, base_id, in_base)
        if claimed:
            whole = {fragment.id: BitMap(range(fragment.physical_rows)) for fragment in self.base.fragments}
            for number, offsets in self._in_scope(self.base, whole, claim_conflicts.scope).items():
                add(loss.undone, number, offsets)

    def _conflicting_rows(self, overlaps: ClaimOverlaps, scope: str) -> ConflictingRows:
        """Return the rows of a scope that either side put in, gave new values or took out."""
        gone: dict[int, BitMap] = {}
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
        return ConflictingRows(base=base, source=source, dest=dest)

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


def claimed(sides: Iterable[SideHistory]) -> bool:
    """Tell whether any of the sides claims a scope as its own."""
    return any(claim.exclusive for side in sides for change in side.changes for claim in change.claims)


def _written(rows: Located) -> dict[int, BitMap]:
    return {number: offsets for number, found in rows.items() if (offsets := found.written)}
