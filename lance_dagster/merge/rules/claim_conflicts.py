"""Find the scopes that both sides claim, and settle them by a strategy.

Rows alone do not show that two runs which both replace tuesday for the first time contradict each other: both remove no
row and add all of their rows, so the result would have tuesday twice. So commits record what they claim. Claims are
compared by name where both sides name partitions, and by looking at rows otherwise; the keys of an upsert are compared
with those of the rows that the other side wrote, so that only keys which both wrote are in conflict. Where a strategy
settles a scope, the rows that the loser wrote there are dropped, and the rows that it removed there are brought back.

A claim names columns as they were called when it was made. The other side, or the same one later, may have renamed
them, and may have given their old names to other columns. So a condition is kept with the columns of the merge base
that it is about, and is evaluated with the names they had. Where a field inside of such a column has another name, the
condition is not evaluated, and all rows that were written or removed may be in the scope.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.sql_text import columns_in, fields_in
from lance_dagster.format.transaction import Rewrite
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
    ConflictKind,
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
        ids = {one.name: one.id for one in claimer.base.fields if one.parent_id < 0}
        base_ids = claimer.columns.base_ids
        inner = {one.id: (column, one.name) for one, column in _inner_fields(claimer.base)}
        made = change.after or change.before or claimer.manifest
        for own in made.fields:
            if own.parent_id < 0:
                ids.pop(own.name, None)
                if own.id in base_ids:
                    ids[own.name] = base_ids[own.id]
        for own, column in _inner_fields(made):
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
    for one in manifest.fields:
        columns[one.id] = one.id if one.parent_id < 0 else columns.get(one.parent_id, one.parent_id)
        if one.parent_id >= 0:
            yield one, columns[one.id]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """A side or the merge base: its manifest, and what the fields of the merge base are called in it."""

    manifest: Manifest
    names: Mapping[int, str]

    @classmethod
    def of_side(cls, side: MergeSide) -> "NamedColumns":
        """Return the columns of a side."""
        now = {one.id: one.name for one in side.manifest.fields}
        names = {number: now[own] for number, own in side.columns.ids.items() if own in now}
        return cls(manifest=side.manifest, names=names)

    @classmethod
    def of_base(cls, side: MergeSide) -> "NamedColumns":
        """Return the columns of the merge base of a side."""
        return cls(manifest=side.base, names={one.id: one.name for one in side.base.fields})

    def renamed(self, columns: Mapping[str, int]) -> dict[str, str] | None:
        """Return the names of columns here, by their names in a claim; None where all have the same names.

        A column that is not here is left out: another one may have its name.
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

    def narrowed(self, other: "ClaimScope") -> "ClaimScope":
        """Return the rows that are in both scopes."""
        return ClaimScope((*self.conditions, *other.conditions))

    def rows(self, side: MergeSide, rows: Rows, *, of_base: bool = False) -> Rows:
        """Return those of some rows that are in the scope.

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
            found = side.lookups.matching(version.manifest, rows, predicate, names)
            rows = {number: rows[number] & offsets for number, offsets in found.items()}
        return rows

    def rows_if_known(self, side: MergeSide, rows: Rows, *, of_base: bool = False) -> Rows:
        """Return those of some rows that may be in the scope: all where a condition cannot be evaluated."""
        try:
            return self.rows(side, rows, of_base=of_base)
        except InvalidInputError:
            return rows


def key_columns(claimer: MergeSide, change: Change, claim: Claim, side: MergeSide) -> list[str]:
    """Return the names of the key columns of an upsert on a side, in their order.

    Raises:
        InvalidInputError: The side does not have one of them.
    """
    names, ids = NamedColumns.of_side(side).names, ClaimedColumns.of(claimer, change).ids
    # A column that the merge base lacks can only be found by its name.
    found = [names.get(ids[name]) if name in ids else name for name in claim.on]
    if any(name is None for name in found):
        raise InvalidInputError(f"{side.name} does not have all of the columns {', '.join(claim.on)}")
    return [name for name in found if name is not None]


def claimed_columns(*sides: MergeSide) -> frozenset[str] | None:
    """Return the names in the merge base of all columns that claims of some sides may be about; None where unknown."""
    found: set[str] = set()
    for side in sides:
        names = {one.id: one.name for one in side.base.fields if one.parent_id < 0}
        for change, claim in side.claims:
            if claim.mode == APPEND:
                continue
            columns = ClaimedColumns.of(side, change)
            # The predicate of an upsert is about its keys alone, and there may be too many of them for one.
            by_keys = claim.mode == UPSERT and bool(claim.on)
            if (claim.predicate is None and not by_keys) or not columns.ids.keys() >= set(claim.on):
                return None
            named = () if by_keys or claim.predicate is None else columns.named_in(claim.predicate).values()
            ids = {*named, *(columns.ids[name] for name in claim.on)}
            found.update(names[number] for number in ids)
    return frozenset(found)


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

    `by_source` says whether it is the source's claim. Without `known`, it is unknown which rows are in the scope.
    `keys` are the rows of both sides that have the same keys, where these were upserted: the conflict is only about
    them.
    """

    conflict: Conflict
    by_source: bool
    scope: ClaimScope
    known: bool
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
    """Find the scopes that one side claims and the other one changed, and say what the loser of each loses."""
    # Rows are looked up only when a claim is exclusive: appends never contradict each other.
    if not any(claim.exclusive for _, claim in (*source.claims, *dest.claims)):
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
    # A conflict about the whole table is about all rows, so none are pointed out.
    rows = partial(_conflicting_rows, source, dest, found.scope) if found.scope.conditions else None
    on: tuple[str, ...] = ()
    if found.keys is not None:
        rows, on = partial(ConflictingRows, source=found.keys.source, dest=found.keys.dest), found.keys.on
    again = made_again(f"the change of {found.conflict.unit}", source.branch)
    finding = Finding(conflict=found.conflict, options=BOTH if found.known else (), rows=rows, on=on, advice=again)
    winner = strategy.winner_of(finding)
    if winner is None:
        return finding
    loser, loss = (dest, settled.dest) if winner == SOURCE_WINS else (source, settled.source)
    try:
        _lose(loser, loss, found, claimed=found.by_source == loser.is_source)
    except InvalidInputError:
        # The predicate is about columns or fields that the loser's rows do not have by these names, so which of them
        # match is unknown.
        change = "a column of the condition was dropped, or a field inside of one renamed"
        return replace(finding, options=(), advice=made_after_reset(change, loser.branch))
    rewritten = any(offsets & loser.of(number).rewritten for number, offsets in loss.undone.items())
    # Any of the dropped rows may be the new copy of a row that the loser rewrote, which would then be lost altogether.
    rewritten |= bool(loss.dropped) and any(loser.rows.rewritten.values())
    if rewritten and (found.keys is not None or found.scope.conditions):
        # The loser wrote rows of the scope anew, perhaps as rows outside of it. Without stable row ids it is
        # unknown which, and if the old ones came back, the result would have both.
        return replace(finding, options=(), advice=UNTRACEABLE)
    return finding


def _lose(side: MergeSide, loss: ClaimLoss, found: ClaimConflict, *, claimed: bool) -> None:
    """Record the loss of a side.

    Args:
        side: The side that loses.
        loss: Collects what it loses.
        found: The conflict, which has the scope.
        claimed: Whether this side claimed the scope, and so took rows out of it.
    """
    relocated = side.rows.relocated
    if found.keys is not None:
        lost, claimed = found.keys.source if side.is_source else found.keys.dest, False
    else:
        lost = found.scope.rows(side, side.written)
    for number, offsets in lost.items():
        add_rows(loss.dropped, number, offsets & relocated[number].inserted)
        # An updated row in the scope goes back to the values that the merge base has for it; only inserted rows vanish.
        for base_id, there in relocated[number].in_base(offsets).items():
            add_rows(loss.undone, base_id, there)
    # Rows that the loser took out of its scope come back. A side that claimed nothing took none out on purpose.
    if claimed:
        whole = {fragment.id: BitMap(range(fragment.physical_rows)) for fragment in side.base.fragments}
        for number, offsets in found.scope.rows(side, whole, of_base=True).items():
            add_rows(loss.undone, number, offsets)


def _conflicting_rows(source: MergeSide, dest: MergeSide, scope: ClaimScope) -> ConflictingRows:
    """Return the rows of a scope that either side put in, gave new values or took out."""
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
        found: dict[str, ClaimConflict] = {}
        # Claims are compared by name first. A conflict found by name stands for its scope: a conflict that the rows
        # show for the same unit is not reported again.
        for claim_conflict in (*self._named(), *self._found_by(self.source), *self._found_by(self.dest)):
            found.setdefault(claim_conflict.conflict.unit, claim_conflict)
        return list(found.values())

    def _named(self) -> Iterator[ClaimConflict]:
        """Compare claims by what they name: an overwritten table with anything, partitions by their keys."""
        for source_change, claim in _active_claims(self.source):
            for dest_change, other in _active_claims(self.dest):
                if not self._is_about_both(claim, other):
                    continue
                if _is_undone(self.source, source_change, claim) or _is_undone(self.dest, dest_change, other):
                    continue
                described = _describe(source_change, claim), _describe(dest_change, other)
                # An upsert claims its keys, and not the partition that they are in.
                by_source = claim.exclusive and not (claim.mode == UPSERT and other.exclusive)
                if OVERWRITE in (claim.mode, other.mode):
                    by_source = claim.mode == OVERWRITE
                    unit, stronger = "the whole table", claim if by_source else other
                    yield _claim_conflict(unit, described, stronger, ClaimScope(()), by_source=by_source)
                    continue
                scopes = (
                    ClaimScope.of(self.source, source_change, claim),
                    ClaimScope.of(self.dest, dest_change, other),
                )
                stronger, scope = (claim, scopes[0]) if by_source else (other, scopes[1])
                if _both_replace(claim, other):
                    scope = scopes[0].narrowed(scopes[1])
                for partition in claim.shared_partitions(other) or ():
                    yield _claim_conflict(f"partition {partition}", described, stronger, scope, by_source=by_source)

    def _is_about_both(self, claim: Claim, other: Claim) -> bool:
        """Tell whether two claims contradict each other by what they name."""
        if not (claim.exclusive or other.exclusive) or self._about_keys(claim, other):
            return False
        return OVERWRITE in (claim.mode, other.mode) or bool(claim.shared_partitions(other))

    def _about_keys(self, claim: Claim, other: Claim) -> bool:
        """Tell whether the keys of an upsert decide, and not the names of the partitions that both claims name."""
        keyed = any(each.mode == UPSERT and each.on for each in (claim, other))
        return keyed and {claim.mode, other.mode} <= {UPSERT, APPEND} and self.source.lookups.shared_keys is not None

    def _keys(self, claimer: MergeSide, change: Change, claim: Claim) -> SharedKeys | None:
        """Return the rows of both sides that have the same keys of an upsert; None where keys cannot be read."""
        find = self.source.lookups.shared_keys
        if find is None or claim.mode != UPSERT or not claim.on:
            return None
        try:
            both, scope = (self.source, self.dest), ClaimScope.of(claimer, change, claim)
            source, dest = (side.without_only_moved(scope.rows(side, side.written)) for side in both)
            rows = (self.source.manifest, source), (self.dest.manifest, dest)
            names = (key_columns(claimer, change, claim, side) for side in both)
            return find(*rows, list(zip(claim.on, *names, strict=True)))
        except InvalidInputError:
            # One side does not have the columns of the key any more.
            return None

    def _found_by(self, side: MergeSide) -> Iterator[ClaimConflict]:
        """Compare what one side claims with the rows that the other one wrote or took out."""
        other = self.dest if side.is_source else self.source
        for change, claim in side.claims:
            if not claim.exclusive:
                continue
            keys, scope = self._keys(side, change, claim), ClaimScope.of(side, change, claim)
            if keys is not None:
                if any(keys.source.values()):
                    condition = keys.condition or claim.predicate
                    unit = f"rows where {condition}" if condition else "rows of any key"
                    there = _changed_there(other, keys.dest if side.is_source else keys.source, {})
                    did = _in_order(side, _describe(change, claim), there)
                    conflict = Conflict(kind="partition", unit=unit, source=did[0], dest=did[1])
                    yield ClaimConflict(conflict=conflict, by_source=side.is_source, scope=scope, known=True, keys=keys)
            # Finding the rows of a condition may read data files, so it is done only where the names of partitions do
            # not decide.
            elif (
                (claim.mode == UPSERT or _has_to_look(claim, other))
                and (there := self._did_there(other, claim, scope))
                and not _is_undone(side, change, claim)
            ):
                did = _in_order(side, _describe(change, claim), there)
                yield _claim_conflict(_unit(claim), did, claim, scope, by_source=side.is_source)

    @staticmethod
    def _did_there(side: MergeSide, claim: Claim, scope: ClaimScope) -> str:
        """Say that a side put rows into a scope, or took rows out of it; return no text where it did neither."""
        written = side.without_only_moved(scope.rows_if_known(side, side.written))
        # Removed rows are looked up in the merge base, since the side does not have them any more.
        removed = scope.rows_if_known(side, side.removed, of_base=True)
        written, removed = ({number: rows for number, rows in found.items() if rows} for found in (written, removed))
        if written or removed:
            return _changed_there(side, written, removed)
        # An overwrite claims the schema too, so a changed column contradicts it even if no row changed.
        return f"{schema_makers(side)} changed columns" if claim.mode == OVERWRITE and side.columns_changed else ""


def _claim_conflict(
    unit: str, described: tuple[str, str], claim: Claim, scope: ClaimScope, *, by_source: bool
) -> ClaimConflict:
    known = claim.predicate is not None or claim.mode == OVERWRITE
    conflict = Conflict(kind=_kind(claim), unit=unit, source=described[0], dest=described[1])
    return ClaimConflict(conflict=conflict, by_source=by_source, scope=scope, known=known)


def _both_replace(claim: Claim, other: Claim) -> bool:
    """Tell whether a conflict is only about the rows that two replacements both replaced.

    Both may name a partition and describe it by different conditions, such as an hour and the day around it. A strategy
    leaves alone the rows that only one of them replaced.
    """
    conditions = {each.predicate for each in (claim, other) if each.mode == REPLACE and each.predicate is not None}
    return len(conditions) > 1


def _active_claims(side: MergeSide) -> Sequence[tuple[Change, Claim]]:
    """Return the claims of a side that count: with the rows of the merge base it claims what it replaced alone."""
    if not side.ended_where_it_began:
        return side.claims
    return [(change, claim) for change, claim in side.claims if claim.exclusive]


def _is_undone(side: MergeSide, change: Change, claim: Claim) -> bool:
    """Tell whether nothing is left of a claimed change, however it was taken back: by a deletion, or by a merge."""
    # An overwrite claims the columns, too.
    return claim.mode != OVERWRITE and side.has_nothing_of(change)


def _has_to_look(claim: Claim, other: MergeSide) -> bool:
    """Tell whether some change of the other side says too little about its rows to be compared by name."""
    return claim.exclusive and any(not _tells(change) or not claim.partitions for change in other.history.changes)


def _tells(change: Change) -> bool:
    return change.moves_no_row or (bool(change.claims) and all(claim.partitions for claim in change.claims))


def _kind(claim: Claim) -> ConflictKind:
    return "table" if claim.mode == OVERWRITE else "partition"


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


def _changed_there(side: MergeSide, written: Rows, removed: Rows) -> str:
    """Say who wrote rows into a scope or took rows of the merge base out of it."""

    def may_have(change: Change) -> bool:
        return not (_tells(change) or isinstance(change.operation, Rewrite))

    of_base: dict[BaseKey, BitMap] = {number: offsets for number, offsets in removed.items()}  # noqa: C416  # of more keys
    return f"{row_makers(side, written, of_base, may_have)} changed rows there"


def _describe(change: Change, claim: Claim) -> str:
    verbs = {APPEND: "added rows to it", OVERWRITE: "replaced all rows", UPSERT: "upserted new keys there"}
    verb = verbs.get(claim.mode, "replaced it")
    return f"{change.author} {verb} in {change.version}"
