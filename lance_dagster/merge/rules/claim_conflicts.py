"""Find the scopes that both sides claim, and settle them by a strategy.

Rows alone do not show that two runs which both replace tuesday for the first time contradict each other: both remove no
row and add all of their rows, so the result would have tuesday twice. So commits record what they claim. Claims are
compared by name where both sides name partitions, and by looking at rows otherwise; the keys of an upsert are compared
with the keys of rows that the other side wrote, so that only keys which both wrote are in conflict. Where a strategy
settles a scope, the rows that the loser wrote there are dropped, and the rows that it removed there are brought back.

A claim names columns as they were called when it was made. The other side, or the same one later, may have renamed
them, and may have given their old names to other columns. So a condition is kept with the columns of the merge base
that it is about, and is evaluated with the names they had. Where a field inside of such a column has another name, the
condition is not evaluated, and all rows that were written or removed may be in the scope.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.sql_text import columns_in, fields_in
from lance_dagster.merge.rules.change_makers import row_makers, schema_makers
from lance_dagster.merge.rules.merge_input import SharedKeys
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.row_origins import BaseKey
from lance_dagster.merge.rules.strategy import (
    BOTH,
    SOURCE_WINS,
    UNTRACEABLE,
    Conflict,
    ConflictingRows,
    Finding,
    ParsedStrategy,
    Rows,
    add_rows,
    made_after_reset,
    made_again,
)
from lance_dagster.transactions.claims import APPEND, OVERWRITE, REPLACE, UPSERT, Change, Claim, decode_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedColumns:
    """The columns that a claim may name: their ids in the merge base, by their names when the claim was made.

    `inner` are the names of the fields inside of columns, by their ids in the merge base, each with its column.
    """

    ids: Mapping[str, int]
    inner: Mapping[int, tuple[int, str]]

    @classmethod
    def of(cls, claimer: MergeSide, change: Change) -> "ClaimedColumns":
        """Look up the columns of the version that made a claim."""
        # A merge repeats claims of other branches, which may have called a column as the merge base does.
        ids = {field.name: field.id for field in claimer.base.fields if field.parent_id < 0}
        base_ids = claimer.columns.base_ids
        inner = {field.id: (column, field.name) for field, column in _inner_fields(claimer.base)}
        claimed_at = change.after or change.before or claimer.manifest
        for own in claimed_at.fields:
            if own.parent_id < 0:
                ids.pop(own.name, None)
                if own.id in base_ids:
                    ids[own.name] = base_ids[own.id]
        for own, column in _inner_fields(claimed_at):
            if own.id in base_ids and column in base_ids:
                inner[base_ids[own.id]] = base_ids[column], own.name
        return cls(ids=ids, inner=inner)

    def named_in(self, predicate: str) -> dict[str, int]:
        """Return the columns that a predicate names."""
        return {name: self.ids[name] for name in columns_in(predicate, self.ids)}

    def inner_named_in(self, predicate: str) -> dict[int, str]:
        """Return the fields inside of the columns that a predicate names, if it may name them too."""
        columns = set(self.named_in(predicate).values())
        inner = {number: name for number, (column, name) in self.inner.items() if column in columns}
        named = fields_in(predicate, inner.values())
        return {number: name for number, name in inner.items() if name in named}


def _inner_fields(manifest: Manifest) -> Iterator[tuple[Field, int]]:
    """Return the fields that are inside of columns, each with the id of its column."""
    columns: dict[int, int] = {}
    for member in manifest.fields:
        columns[member.id] = member.id if member.parent_id < 0 else columns.get(member.parent_id, member.parent_id)
        if member.parent_id >= 0:
            yield member, columns[member.id]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """A side or the merge base: its manifest, and what the fields of the merge base are called in it."""

    manifest: Manifest
    names: Mapping[int, str]

    @classmethod
    def of_side(cls, side: MergeSide) -> "NamedColumns":
        """Return the columns of a side."""
        now = {field.id: field.name for field in side.manifest.fields}
        names = {number: now[own] for number, own in side.columns.ids.items() if own in now}
        return cls(manifest=side.manifest, names=names)

    @classmethod
    def of_base(cls, side: MergeSide) -> "NamedColumns":
        """Return the columns of the merge base of a side."""
        return cls(manifest=side.base, names={field.id: field.name for field in side.base.fields})

    def renamed(self, columns: Mapping[str, int]) -> dict[str, str] | None:
        """Return the names of columns here, by their names in a claim; None where all have the same names.

        A column that this version lacks is left out: another column may have its name.
        """
        if all(self.names.get(number) == name for name, number in columns.items()):
            return None
        return {name: self.names[number] for name, number in columns.items() if number in self.names}


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """The rows that fulfil all conditions, each with the columns it may name; all rows where there is no condition."""

    conditions: tuple[tuple[str, ClaimedColumns], ...]

    @classmethod
    def of(cls, claimer: MergeSide, change: Change, claim: Claim) -> "ClaimScope":
        """Return the scope of a claim."""
        if claim.predicate is None:
            return cls(())
        return cls(((claim.predicate, ClaimedColumns.of(claimer, change)),))

    def narrowed(self, scope: "ClaimScope") -> "ClaimScope":
        """Return the rows that are in both scopes."""
        return ClaimScope((*self.conditions, *scope.conditions))

    def rows(self, side: MergeSide, rows: Rows, *, of_base: bool = False) -> Rows:
        """Return the rows that are in the scope.

        Args:
            side: The side.
            rows: Rows of it, by its fragments.
            of_base: Whether the rows are given by fragments of the merge base.

        Raises:
            InvalidInputError: A condition is about a column that the version does not have, or about a field inside
                of one that has another name there.
        """
        if not self.conditions or not rows:
            return rows
        version = NamedColumns.of_base(side) if of_base else NamedColumns.of_side(side)
        for predicate, columns in self.conditions:
            for number, name in columns.inner_named_in(predicate).items():
                if version.names.get(number) != name:
                    raise InvalidInputError(f"{predicate} is about a field {name!r}, which has another name here")
            names = version.renamed(columns.named_in(predicate))
            matching = side.lookups.matching(version.manifest, rows, predicate, names)
            rows = {number: rows[number] & offsets for number, offsets in matching.items()}
        return rows

    def rows_if_known(self, side: MergeSide, rows: Rows, *, of_base: bool = False) -> Rows:
        """Return the rows that may be in the scope: all rows where a condition cannot be evaluated."""
        try:
            return self.rows(side, rows, of_base=of_base)
        except InvalidInputError:
            return rows


def key_columns(claimer: MergeSide, change: Change, claim: Claim, side: MergeSide) -> list[str]:
    """Return the names that the key columns of an upsert have on a side, in the order of the claim.

    Raises:
        InvalidInputError: The side lacks a key column.
    """
    names, ids = NamedColumns.of_side(side).names, ClaimedColumns.of(claimer, change).ids
    # A column that the merge base lacks can only be found by its name.
    columns = [names.get(ids[name]) if name in ids else name for name in claim.on]
    if any(name is None for name in columns):
        raise InvalidInputError(f"{side.name} does not have all of the columns {', '.join(claim.on)}")
    return [name for name in columns if name is not None]


def claimed_columns(*sides: MergeSide) -> frozenset[str] | None:
    """Return the names in the merge base of all columns that claims of some sides may be about; None where unknown."""
    claimed: set[str] = set()
    for side in sides:
        names = {field.id: field.name for field in side.base.fields if field.parent_id < 0}
        for change, claim in side.claims:
            if claim.mode == APPEND:
                continue
            columns = ClaimedColumns.of(side, change)
            # The predicate of an upsert is about its keys alone, and there may be more keys than a predicate can list.
            by_keys = claim.mode == UPSERT and bool(claim.on)
            if (claim.predicate is None and not by_keys) or not columns.ids.keys() >= set(claim.on):
                return None
            named = () if by_keys or claim.predicate is None else columns.named_in(claim.predicate).values()
            ids = {*named, *(columns.ids[name] for name in claim.on)}
            claimed.update(names[number] for number in ids)
    return frozenset(claimed)


def claimed_units(*sides: MergeSide) -> Iterator[str]:
    """Return the units of all partitions and conditions that changes of some sides name."""
    for side in sides:
        for change in side.history.changes:
            # Claims of a change that is taken back count too: a strategy may name them for a merge in either direction.
            if change.transaction is not None:
                yield from claim_units(decode_claims(change.transaction.properties))


def claim_units(claims: Iterable[Claim]) -> Iterator[str]:
    """Return the units of all partitions and conditions that some claims name."""
    for claim in claims:
        yield from (f"partition {name}" for name in claim.partitions)
        if claim.partitions:
            yield f"partition {', '.join(claim.partitions)}"
        if claim.predicate is not None and claim.exclusive:
            yield f"rows where {claim.predicate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimConflict:
    """A conflict about a scope that a side claims as its own.

    `by_source` says whether it is the source's claim. Without `rows_known`, it is unknown which rows are in the scope.
    `keys` are the rows of both sides that have the same keys, where these were upserted: the conflict is only about
    them.
    """

    conflict: Conflict
    by_source: bool
    scope: ClaimScope
    rows_known: bool
    keys: SharedKeys | None = None


@dataclass(frozen=True, slots=True)
class ClaimLoss:
    """What one side loses: rows it inserted, by its fragments, and its changes to rows of the merge base."""

    dropped: dict[int, BitMap] = field(default_factory=dict)
    undone: dict[BaseKey, BitMap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledClaims:
    """The losses of source and dest by the strategy, and the claims that were in conflict."""

    source: ClaimLoss = field(default_factory=ClaimLoss)
    dest: ClaimLoss = field(default_factory=ClaimLoss)
    findings: tuple[Finding, ...] = ()


def settle_claims(source: MergeSide, dest: MergeSide, strategy: ParsedStrategy) -> SettledClaims:
    """Find the scopes that one side claims and the other side changed, and what the loser of each scope loses."""
    # Rows are looked up only when a claim is exclusive: appends never contradict each other.
    if not any(claim.exclusive for _, claim in (*source.claims, *dest.claims)):
        return SettledClaims()
    settled = SettledClaims()
    comparison = ClaimComparison(source, dest)
    findings = [_settle(conflict, settled, comparison, strategy) for conflict in comparison.conflicts()]
    return replace(settled, findings=tuple(findings))


def _settle(
    claim_conflict: ClaimConflict, settled: SettledClaims, comparison: "ClaimComparison", strategy: ParsedStrategy
) -> Finding:
    """Add what the loser of one scope loses, and return the finding with the strategies that can be carried out."""
    source, dest = comparison.source, comparison.dest
    # A conflict about the whole table is about all rows, so none are pointed out.
    rows = partial(_conflicting_rows, source, dest, claim_conflict.scope) if claim_conflict.scope.conditions else None
    on: tuple[str, ...] = ()
    if claim_conflict.keys is not None:
        rows, on = (
            partial(ConflictingRows, source=claim_conflict.keys.source, dest=claim_conflict.keys.dest),
            claim_conflict.keys.on,
        )
    again = made_again(f"the change of {claim_conflict.conflict.unit}", source.branch)
    finding = Finding(
        conflict=claim_conflict.conflict,
        options=BOTH if claim_conflict.rows_known else (),
        rows=rows,
        on=on,
        advice=again,
    )
    winner = strategy.winner_of(finding)
    if winner is None:
        return finding
    loser, loss = (dest, settled.dest) if winner == SOURCE_WINS else (source, settled.source)
    try:
        _lose(loser, loss, claim_conflict, claimed=claim_conflict.by_source == loser.is_source)
    except InvalidInputError:
        # The predicate is about columns or fields that the loser's rows do not have by these names, so it is unknown
        # which rows match.
        change = "a column of the condition was dropped, or a field inside of one renamed"
        return replace(finding, options=(), advice=made_after_reset(change, loser.branch))
    rewritten = any(offsets & loser.of(number).rewritten for number, offsets in loss.undone.items())
    # Any of the dropped rows may be the new copy of a row that the loser rewrote, which would then be lost altogether.
    rewritten |= bool(loss.dropped) and any(loser.rows.rewritten.values())
    if rewritten and (claim_conflict.keys is not None or claim_conflict.scope.conditions):
        # The loser wrote rows of the scope anew, perhaps as rows outside of it. Without stable row ids it is
        # unknown which, and if the old ones came back, the result would have both.
        return replace(finding, options=(), advice=UNTRACEABLE)
    return finding


def _lose(side: MergeSide, loss: ClaimLoss, claim_conflict: ClaimConflict, *, claimed: bool) -> None:
    """Record the loss of a side.

    Args:
        side: The side that loses.
        loss: Collects the rows that the side loses.
        claim_conflict: The conflict, which has the scope.
        claimed: Whether this side claimed the scope, and so took rows out of it.
    """
    relocated = side.rows.relocated
    if claim_conflict.keys is not None:
        lost, claimed = claim_conflict.keys.source if side.is_source else claim_conflict.keys.dest, False
    else:
        lost = claim_conflict.scope.rows(side, side.written)
    for number, offsets in lost.items():
        add_rows(loss.dropped, number, offsets & relocated[number].inserted)
        # An updated row in the scope goes back to the values that the merge base has for it; only inserted rows vanish.
        for base_id, there in relocated[number].in_base(offsets).items():
            add_rows(loss.undone, base_id, there)
    # Rows that the loser took out of its scope come back. A side that claimed nothing took none out on purpose.
    if claimed:
        all_rows = {fragment.id: BitMap(range(fragment.physical_rows)) for fragment in side.base.fragments}
        for number, offsets in claim_conflict.scope.rows(side, all_rows, of_base=True).items():
            add_rows(loss.undone, number, offsets)


def _conflicting_rows(source: MergeSide, dest: MergeSide, scope: ClaimScope) -> ConflictingRows:
    """Return the rows of a scope that the source or the dest inserted, updated or removed."""
    removed: dict[int, BitMap] = {}
    for side in (source, dest):
        for number, offsets in side.removed.items():
            add_rows(removed, number, offsets)

    return ConflictingRows(
        base=dict(scope.rows_if_known(source, removed, of_base=True).items()),
        source=scope.rows_if_known(source, source.written),
        dest=scope.rows_if_known(dest, dest.written),
    )


@dataclass(frozen=True, slots=True)
class ClaimComparison:
    """The claims of two sides, and what each did to rows."""

    source: MergeSide
    dest: MergeSide

    def conflicts(self) -> list[ClaimConflict]:
        """Return the scopes that one side claims and in which the other side inserted or replaced rows, each once."""
        conflicts_by_unit: dict[str, ClaimConflict] = {}
        # Claims are compared by name first. A conflict found by name stands for its scope: a conflict that the rows
        # show for the same unit is not reported again.
        for claim_conflict in (*self._named(), *self._found_by(self.source), *self._found_by(self.dest)):
            conflicts_by_unit.setdefault(claim_conflict.conflict.unit, claim_conflict)
        return list(conflicts_by_unit.values())

    def _named(self) -> Iterator[ClaimConflict]:
        """Compare claims by what they name: an overwritten table with anything, partitions by their keys."""
        for source_change, claim in self.source.claims:
            for dest_change, dest_claim in self.dest.claims:
                if not self._is_about_both(claim, dest_claim):
                    continue
                if _is_undone(self.source, source_change, claim) or _is_undone(self.dest, dest_change, dest_claim):
                    continue
                described = _describe(source_change, claim), _describe(dest_change, dest_claim)
                # An upsert claims its keys, and not the partition that they are in.
                by_source = claim.exclusive and not (claim.mode == UPSERT and dest_claim.exclusive)
                if OVERWRITE in (claim.mode, dest_claim.mode):
                    by_source = claim.mode == OVERWRITE
                    unit, stronger = "the whole table", claim if by_source else dest_claim
                    yield _claim_conflict(unit, described, stronger, ClaimScope(()), by_source=by_source)
                    continue
                scopes = (
                    ClaimScope.of(self.source, source_change, claim),
                    ClaimScope.of(self.dest, dest_change, dest_claim),
                )
                stronger, scope = (claim, scopes[0]) if by_source else (dest_claim, scopes[1])
                if _both_replace(claim, dest_claim):
                    scope = scopes[0].narrowed(scopes[1])
                for partition in claim.shared_partitions(dest_claim) or ():
                    yield _claim_conflict(f"partition {partition}", described, stronger, scope, by_source=by_source)

    def _is_about_both(self, claim: Claim, other_claim: Claim) -> bool:
        """Tell whether two claims contradict each other by what they name."""
        if not (claim.exclusive or other_claim.exclusive) or self._about_keys(claim, other_claim):
            return False
        return OVERWRITE in (claim.mode, other_claim.mode) or bool(claim.shared_partitions(other_claim))

    def _about_keys(self, claim: Claim, other_claim: Claim) -> bool:
        """Tell whether the keys of an upsert decide, and not the names of the partitions that both claims name."""
        keyed = any(claimed.mode == UPSERT and claimed.on for claimed in (claim, other_claim))
        return (
            keyed and {claim.mode, other_claim.mode} <= {UPSERT, APPEND} and self.source.lookups.shared_keys is not None
        )

    def _keys(self, claimer: MergeSide, change: Change, claim: Claim) -> SharedKeys | None:
        """Return the rows of both sides that have the same keys of an upsert; None where keys cannot be read."""
        find = self.source.lookups.shared_keys
        if find is None or claim.mode != UPSERT or not claim.on:
            return None
        try:
            sides, scope = (self.source, self.dest), ClaimScope.of(claimer, change, claim)
            source, dest = (side.without_only_moved(scope.rows(side, side.written)) for side in sides)
            rows = (self.source.manifest, source), (self.dest.manifest, dest)
            names = (key_columns(claimer, change, claim, side) for side in sides)
            return find(*rows, list(zip(claim.on, *names, strict=True)))
        except InvalidInputError:
            # One side does not have the columns of the key any more.
            return None

    def _found_by(self, side: MergeSide) -> Iterator[ClaimConflict]:
        """Compare what a side claims with the rows that the other side wrote or took out."""
        other_side = self.dest if side.is_source else self.source
        for change, claim in side.claims:
            if not claim.exclusive:
                continue
            keys, scope = self._keys(side, change, claim), ClaimScope.of(side, change, claim)
            if keys is not None:
                if any(keys.source.values()):
                    condition = keys.condition or claim.predicate
                    unit = f"rows where {condition}" if condition else "rows of any key"
                    there = _changed_there(other_side, keys.dest if side.is_source else keys.source, {})
                    did = _in_order(side, _describe(change, claim), there)
                    conflict = Conflict(kind="partition", unit=unit, source=did[0], dest=did[1])
                    yield ClaimConflict(
                        conflict=conflict, by_source=side.is_source, scope=scope, rows_known=True, keys=keys
                    )
            # Finding the rows of a condition may read data files, so it is done only where the names of partitions do
            # not decide.
            elif (
                (claim.mode == UPSERT or _has_to_look(claim, other_side))
                and (there := self._did_there(other_side, claim, scope))
                and not _is_undone(side, change, claim)
            ):
                did = _in_order(side, _describe(change, claim), there)
                yield _claim_conflict(_unit(claim), did, claim, scope, by_source=side.is_source)

    @staticmethod
    def _did_there(side: MergeSide, claim: Claim, scope: ClaimScope) -> str:
        """Say that a side put rows into a scope, or took rows out of it; return no text where it did neither."""
        put_in = side.without_only_moved(scope.rows_if_known(side, side.written))
        # Removed rows are looked up in the merge base, since the side does not have them any more.
        removed = scope.rows_if_known(side, side.removed, of_base=True)
        put_in, removed = (
            {number: rows for number, rows in rows_by_fragment.items() if rows}
            for rows_by_fragment in (put_in, removed)
        )
        if put_in or removed:
            return _changed_there(side, put_in, removed)
        # An overwrite claims the schema too, so a changed column contradicts it even if no row changed.
        return f"{schema_makers(side)} changed columns" if claim.mode == OVERWRITE and side.columns_changed else ""


def _claim_conflict(
    unit: str, described: tuple[str, str], claim: Claim, scope: ClaimScope, *, by_source: bool
) -> ClaimConflict:
    rows_known = claim.predicate is not None or claim.mode == OVERWRITE
    conflict = Conflict(
        kind="table" if claim.mode == OVERWRITE else "partition", unit=unit, source=described[0], dest=described[1]
    )
    return ClaimConflict(conflict=conflict, by_source=by_source, scope=scope, rows_known=rows_known)


def _both_replace(claim: Claim, other_claim: Claim) -> bool:
    """Tell whether a conflict is only about the rows that two replacements both replaced.

    Both replacements may name a partition and describe it by different conditions: `hour = 7` and `day = 'tue'`. Then
    only the rows of hour 7 on tuesday are in conflict, and a strategy leaves the other rows of tuesday alone.
    """
    conditions = {
        replacement.predicate
        for replacement in (claim, other_claim)
        if replacement.mode == REPLACE and replacement.predicate is not None
    }
    return len(conditions) > 1


def _is_undone(side: MergeSide, change: Change, claim: Claim) -> bool:
    """Tell whether nothing is left of a claimed change, however it was taken back: by a deletion, or by a merge."""
    # An overwrite claims the columns, too.
    return claim.mode != OVERWRITE and side.has_nothing_of(change)


def _has_to_look(claim: Claim, other_side: MergeSide) -> bool:
    """Tell whether some change of the other side says too little about its rows to be compared by name."""
    return claim.exclusive and any(
        not _tells(change, claim) or not claim.partitions for change in other_side.history.changes
    )


def _tells(change: Change, claim: Claim) -> bool:
    """Tell whether the names in the claims of a change, compared with a claim, show which rows the change is about."""
    return change.moves_no_row or (
        bool(change.claims)
        and all(
            bool(changed.partitions) and (not claim.partitions or changed.shared_partitions(claim) is not None)
            for changed in change.claims
        )
    )


def _unit(claim: Claim) -> str:
    if claim.mode == OVERWRITE:
        return "the whole table"
    named = ", ".join(claim.partitions)
    if not named and claim.predicate is None:
        return "rows of any key"
    return f"partition {named}" if named else f"rows where {claim.predicate}"


def _in_order(claimer: MergeSide, claimed: str, changed: str) -> tuple[str, str]:
    """Return what the source did and what the dest did."""
    return (claimed, changed) if claimer.is_source else (changed, claimed)


def _changed_there(side: MergeSide, put_in: Rows, removed: Rows) -> str:
    """Say who wrote rows into the scope of a claim or took rows of the merge base out of it."""
    of_base: dict[BaseKey, BitMap] = {number: offsets for number, offsets in removed.items()}  # noqa: C416  # of more keys
    return f"{row_makers(side, put_in, of_base)} changed rows there"


def _describe(change: Change, claim: Claim) -> str:
    verbs = {APPEND: "added rows to it", OVERWRITE: "replaced all rows", UPSERT: "upserted new keys there"}
    verb = verbs.get(claim.mode, "replaced it")
    return f"{change.author} {verb} in {change.version}"
