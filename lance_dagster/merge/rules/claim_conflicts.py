"""Find the scopes that both sides claim, and settle them by a strategy.

Rows alone do not show that two runs which both replace tuesday for the first time contradict each other: both remove no
row and add all of their rows, so the result would have tuesday twice. So commits record what they claim. Claims are
compared by name where both sides name partitions, and by looking at rows otherwise; the keys of an upsert are compared
with those of the rows that the other side wrote, so that only keys which both wrote are in conflict. Where a strategy
settles a scope, what the loser wrote there is dropped, and what it took out there is brought back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import RESTORED, REVERTED, Restore, Rewrite
from lance_dagster.merge.rules.merge_input import SharedKeys, makers
from lance_dagster.merge.rules.merge_side import MergeSide, matching_rows
from lance_dagster.merge.rules.row_origins import BaseKey
from lance_dagster.merge.rules.strategy import (
    BOTH,
    SOURCE_WINS,
    Conflict,
    ConflictingRows,
    ConflictKind,
    Finding,
    ParsedStrategy,
    Rows,
    add_rows,
)
from lance_dagster.transactions.claims import APPEND, OVERWRITE, REPLACE, UPSERT, Change, Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimConflict:
    """A conflict about a scope that a side claims as its own, and the condition its rows fulfil.

    `by_source` says whose claim it is. `scope` is None for all rows; without `known`, its rows cannot be told. `keys`
    are the rows of both sides that have the same keys, where these were upserted: the conflict is about them alone.
    """

    conflict: Conflict
    by_source: bool
    scope: str | None
    known: bool
    keys: SharedKeys | None = None


@dataclass(frozen=True, slots=True)
class ClaimLoss:
    """What one side loses: rows it put in, by its fragments; rows of the base that it counts as not having changed."""

    dropped: dict[int, BitMap] = field(default_factory=dict)
    undone: dict[BaseKey, BitMap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledClaims:
    """What source and dest lose by the strategy, and the claims that were in conflict."""

    source: ClaimLoss = field(default_factory=ClaimLoss)
    dest: ClaimLoss = field(default_factory=ClaimLoss)
    findings: tuple[Finding, ...] = ()


def settle_claims(source: MergeSide, dest: MergeSide, strategy: ParsedStrategy) -> SettledClaims:
    """Find the scopes that one side claims and the other one changed, and say what the loser of each loses."""
    changes = (*source.history.changes, *dest.history.changes)
    # Rows are looked up only when a claim is exclusive: appends never contradict each other.
    if not any(claim.exclusive for change in changes for claim in change.claims):
        return SettledClaims()
    settled = SettledClaims()
    comparison = ClaimComparison(source, dest)
    findings = [_settle(each, settled, comparison, strategy) for each in comparison.conflicts()]
    return replace(settled, findings=tuple(findings))


def _settle(
    found: ClaimConflict, settled: SettledClaims, comparison: "ClaimComparison", strategy: ParsedStrategy
) -> Finding:
    """Add what the loser of one scope loses, and return the finding with the strategies that can be carried out."""
    source, dest = comparison.source, comparison.dest
    # Of a whole table all rows would be meant, so there is nothing to point out.
    rows = None if found.scope is None else partial(_conflicting_rows, source, dest, found.scope)
    if found.keys is not None:
        rows = partial(ConflictingRows, source=found.keys.source, dest=found.keys.dest)
    finding = Finding(conflict=found.conflict, options=BOTH if found.known else (), rows=rows)
    winner = strategy.winner_of(finding)
    if winner is None:
        return finding
    loser, loss = (dest, settled.dest) if winner == SOURCE_WINS else (source, settled.source)
    try:
        _lose(loser, loss, found, claimed=found.by_source == loser.is_source)
    except InvalidInputError:
        # The predicate is about columns that the loser's rows do not have, so which of them match is unknown.
        return replace(finding, options=())
    rewritten = any(offsets & loser.of(number).rewritten for number, offsets in loss.undone.items())
    # Of the rows that are dropped, any may be one that the loser wrote anew, and would be lost with its old values too.
    rewritten |= bool(loss.dropped) and any(loser.rows.rewritten.values())
    if rewritten and found.scope is not None:
        # The loser wrote rows of the scope anew, perhaps as rows outside of it. Without stable row ids it is
        # unknown which, and if the old ones came back, the result would have both.
        return replace(finding, options=())
    return finding


def _lose(side: MergeSide, loss: ClaimLoss, found: ClaimConflict, *, claimed: bool) -> None:
    """Note what a side loses.

    Args:
        side: Who loses.
        loss: What is noted.
        found: The conflict, which has the scope.
        claimed: Whether it was this side that claimed the scope, and so took rows out of it.
    """
    relocated = side.rows.relocated
    if found.keys is not None:
        lost, claimed = found.keys.source if side.is_source else found.keys.dest, False
    else:
        lost = side.matching(side.written, found.scope)
    for number, offsets in lost.items():
        add_rows(loss.dropped, number, offsets & relocated[number].inserted)
        # An updated row in the scope goes back to the values that the merge base has for it; only inserted rows vanish.
        for base_id, there in relocated[number].in_base(offsets).items():
            add_rows(loss.undone, base_id, there)
    # Rows that the loser took out of its scope come back. A side that claimed nothing took none out on purpose.
    if claimed:
        whole = {fragment.id: BitMap(range(fragment.physical_rows)) for fragment in side.base.fragments}
        for number, offsets in matching_rows(side.lookups, side.base, whole, found.scope).items():
            add_rows(loss.undone, number, offsets)


def _conflicting_rows(source: MergeSide, dest: MergeSide, scope: str) -> ConflictingRows:
    """Return the rows of a scope that either side put in, gave new values or took out."""
    removed: dict[int, BitMap] = {}
    for side in (source, dest):
        for number, offsets in side.removed.items():
            add_rows(removed, number, offsets)

    def in_scope(manifest: Manifest, rows: Rows) -> Rows:
        try:
            return matching_rows(source.lookups, manifest, rows, scope)
        except InvalidInputError:
            # The version does not have the columns of the predicate, so no row can be left out.
            return rows

    return ConflictingRows(
        base=dict(in_scope(source.base, removed).items()),
        source=in_scope(source.manifest, source.written),
        dest=in_scope(dest.manifest, dest.written),
    )


@dataclass(frozen=True, slots=True)
class ClaimComparison:
    """The claims of two sides, and what each did to rows."""

    source: MergeSide
    dest: MergeSide

    def conflicts(self) -> list[ClaimConflict]:
        """Return where one side claims rows as its own and the other put or replaced rows too, each scope once."""
        found: dict[str, ClaimConflict] = {}
        # Claims are compared by name first. Where that finds a conflict, it stands for the scope, and one that the rows
        # show for the same unit is not reported again.
        for claim_conflict in (*self._named(), *self._found_by(self.source), *self._found_by(self.dest)):
            found.setdefault(claim_conflict.conflict.unit, claim_conflict)
        return list(found.values())

    def _named(self) -> Iterator[ClaimConflict]:
        """Compare claims by what they name: an overwritten table with anything, partitions by their keys."""
        for source_change, claim in _active_claims(self.source):
            for dest_change, other in _active_claims(self.dest):
                if not (claim.exclusive or other.exclusive) or self._about_keys(claim, other):
                    continue
                described = _describe(source_change, claim), _describe(dest_change, other)
                # An upsert claims its keys, and not the partition that they are in.
                by_source = claim.exclusive and not (claim.mode == UPSERT and other.exclusive)
                stronger = claim if by_source else other
                if OVERWRITE in (claim.mode, other.mode):
                    stronger = claim if claim.mode == OVERWRITE else other
                    yield _claim_conflict("table", "the whole table", described, stronger, by_source=stronger is claim)
                    continue
                stronger = _narrowed(stronger, (claim, other))
                for partition in claim.shared_partitions(other) or ():
                    yield _claim_conflict(
                        "partition", f"partition {partition}", described, stronger, by_source=by_source
                    )

    def _about_keys(self, claim: Claim, other: Claim) -> bool:
        """Tell whether the keys of an upsert decide, and not the names of the partitions that both are about."""
        keyed = any(each.mode == UPSERT and each.on for each in (claim, other))
        return keyed and {claim.mode, other.mode} <= {UPSERT, APPEND} and self.source.lookups.shared_keys is not None

    def _keys(self, claim: Claim) -> SharedKeys | None:
        """Return the rows of the keys of an upsert that both sides wrote; None where they cannot be looked at."""
        find = self.source.lookups.shared_keys
        if find is None or claim.mode != UPSERT or not claim.on:
            return None
        try:
            source, dest = (
                side.without_only_moved(side.matching(side.written, claim.predicate))
                for side in (self.source, self.dest)
            )
            rows = (self.source.manifest, source), (self.dest.manifest, dest)
            return find(*rows, claim.on)
        except InvalidInputError:
            # One side does not have the columns of the key any more.
            return None

    def _found_by(self, side: MergeSide) -> Iterator[ClaimConflict]:
        """Compare what one side claims with the rows that the other one wrote or took out."""
        other = self.dest if side.is_source else self.source
        for change, claim in _claims(side):
            did = _describe(change, claim), _changed_there(other)
            described = did if side.is_source else did[::-1]
            keys = self._keys(claim)
            if keys is not None:
                if any(keys.source.values()):
                    scope = keys.condition or claim.predicate
                    unit = f"rows where {scope}" if scope else "rows of any key"
                    conflict = Conflict(kind="partition", unit=unit, source=described[0], dest=described[1])
                    yield ClaimConflict(conflict=conflict, by_source=side.is_source, scope=scope, known=True, keys=keys)
            # Finding the rows of a condition may read data files, so it is done only where the names of partitions do
            # not decide.
            elif (claim.mode == UPSERT or _has_to_look(claim, other)) and self._matches(other, claim):
                unit = _scope(claim)
                yield _claim_conflict(_kind(claim), unit, described, claim, by_source=side.is_source)

    def _matches(self, side: MergeSide, claim: Claim) -> bool:
        """Tell whether a side put rows into a scope, or took rows out of it."""
        # An overwrite claims the schema too, so a changed column contradicts it even if no row changed.
        if claim.mode == OVERWRITE and side.columns_changed:
            return True
        written = side.without_only_moved(self._in_scope(side.manifest, side.written, claim.predicate))
        # Removed rows are looked up in the base, since the side does not have them any more.
        return any(written.values()) or any(self._in_scope(side.base, side.removed, claim.predicate).values())

    def _in_scope(self, manifest: Manifest, rows: Rows, predicate: str | None) -> Rows:
        """Return the rows that may fulfil a condition."""
        try:
            return matching_rows(self.source.lookups, manifest, rows, predicate) if rows else rows
        except InvalidInputError:
            # Written for columns that these rows do not have, so it may be about them.
            return rows


def _claim_conflict(
    kind: ConflictKind, unit: str, described: tuple[str, str], claim: Claim, *, by_source: bool
) -> ClaimConflict:
    known = claim.predicate is not None or claim.mode == OVERWRITE
    conflict = Conflict(kind=kind, unit=unit, source=described[0], dest=described[1])
    return ClaimConflict(conflict=conflict, by_source=by_source, scope=claim.predicate, known=known)


def _narrowed(claim: Claim, both: tuple[Claim, Claim]) -> Claim:
    """Return a claim to what two replaced both, so that a strategy leaves alone what only one of them replaced."""
    # A partition may be named by both and described by different conditions, such as an hour and the day around it.
    conditions = [each.predicate for each in both if each.mode == REPLACE and each.predicate is not None]
    if len(set(conditions)) < len(both):
        return claim
    return replace(claim, predicate=" AND ".join(f"({condition})" for condition in conditions))


def _claims(side: MergeSide) -> Iterator[tuple[Change, Claim]]:
    return ((change, claim) for change in side.history.changes for claim in change.claims)


def _active_claims(side: MergeSide) -> Iterator[tuple[Change, Claim]]:
    """Return what a side claims.

    A side that has the rows of the merge base again still claims the scopes that it replaced, unless it took a
    change back.
    """
    if not side.ended_where_it_began:
        return _claims(side)
    back = any(_takes_back(change) for change in side.history.changes)
    return ((change, claim) for change, claim in _claims(side) if claim.exclusive and not back)


def _takes_back(change: Change) -> bool:
    of = change.transaction
    return of is not None and (
        isinstance(of.operation, Restore) or not of.properties.keys().isdisjoint((REVERTED, RESTORED))
    )


def _has_to_look(claim: Claim, other: MergeSide) -> bool:
    """Tell whether some change of the other side says too little about its rows to be compared by name."""
    return claim.exclusive and any(not _tells(change) or not claim.partitions for change in other.history.changes)


def _tells(change: Change) -> bool:
    return change.moves_no_row or (bool(change.claims) and all(claim.partitions for claim in change.claims))


def _kind(claim: Claim) -> ConflictKind:
    return "table" if claim.mode == OVERWRITE else "partition"


def _scope(claim: Claim) -> str:
    if claim.mode == OVERWRITE:
        return "the whole table"
    named = ", ".join(claim.partitions)
    if not named and claim.predicate is None:
        return "rows of any key"
    return f"partition {named}" if named else f"rows where {claim.predicate}"


def _changed_there(side: MergeSide) -> str:
    who = makers(side.history, lambda change: not (_tells(change) or isinstance(change.operation, Rewrite)))
    there = f" on {side.name}" if who != side.name else ""
    return f"{who} changed rows there{there}"


def _describe(change: Change, claim: Claim) -> str:
    verbs = {APPEND: "added rows to it", OVERWRITE: "replaced all rows", UPSERT: "upserted new keys there"}
    verb = verbs.get(claim.mode, "replaced it")
    return f"{change.author} {verb} in {change.version}"
