"""Conflicts between what two sides claim: compared by name where both name partitions, else by looking at the rows."""

from collections.abc import Iterator, Sequence

from lance_dagster.changes.claims import APPEND, OVERWRITE, UPSERT, Claim
from lance_dagster.changes.sides import Change, Conflict, Side, makers
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Fragment


def claim_conflicts(
    source: Side, dest: Side, *, added: Sequence[Fragment], dest_added: Sequence[Fragment]
) -> list[Conflict]:
    """Find where one side claims rows as its own and the other put or replaced rows too.

    Args:
        source: What is merged.
        dest: What it is merged into.
        added: The fragments only the source has.
        dest_added: The fragments only the dest has.

    Returns:
        One conflict for each partition, predicate or table that is contested.
    """
    found: dict[str, Conflict] = {}
    # By name first: a partition that both sides name need not be looked up in the rows.
    for conflict in (
        *_named(source, dest),
        *_found_in_dest(source, dest, dest_added),
        *_found_in_source(source, dest, added),
    ):
        found.setdefault(conflict.unit, conflict)
    return list(found.values())


def _named(source: Side, dest: Side) -> Iterator[Conflict]:
    """Compare claims by what they name: an overwritten table with anything, partitions by their keys."""
    for mine, claim in _claims(source):
        for theirs, other in _claims(dest):
            if not (claim.exclusive or other.exclusive):
                continue
            if OVERWRITE in (claim.mode, other.mode):
                yield Conflict("the whole table", _did(mine, claim), _did(theirs, other))
                continue
            for partition in claim.shared_partitions(other) or ():
                yield Conflict(f"partition {partition}", _did(mine, claim), _did(theirs, other))


def _found_in_dest(source: Side, dest: Side, dest_added: Sequence[Fragment]) -> Iterator[Conflict]:
    for mine, claim in _claims(source):
        if _has_to_look(claim, dest) and _matches(dest, dest_added, claim):
            who = makers(dest.changes, lambda change: not _tells(change))
            yield Conflict(_scope(claim), _did(mine, claim), f"{who} put rows there on {dest.name}")


def _found_in_source(source: Side, dest: Side, added: Sequence[Fragment]) -> Iterator[Conflict]:
    for theirs, claim in _claims(dest):
        if _has_to_look(claim, source) and _matches(source, added, claim):
            yield Conflict(_scope(claim), f"{source.name} put rows there", _did(theirs, claim))


def _claims(side: Side) -> Iterator[tuple[Change, Claim]]:
    return ((change, claim) for change in side.changes for claim in change.claims)


def _has_to_look(claim: Claim, other: Side) -> bool:
    """Tell whether some change of the other side says too little about its rows to be compared by name."""
    return claim.exclusive and any(not _tells(change) or not claim.partitions for change in other.changes)


def _tells(change: Change) -> bool:
    return change.moves_no_row or (bool(change.claims) and all(claim.partitions for claim in change.claims))


def _matches(side: Side, fragments: Sequence[Fragment], claim: Claim) -> bool:
    if not fragments or claim.predicate is None:
        return bool(fragments)
    try:
        return side.rows_matching([fragment.id for fragment in fragments], claim.predicate) > 0
    except InvalidInputError:
        # Written for columns that these rows do not have, so nobody can say that it leaves them out.
        return True


def _scope(claim: Claim) -> str:
    if claim.mode == OVERWRITE:
        return "the whole table"
    named = ", ".join(claim.partitions)
    if not named and claim.predicate is None:
        return "rows of any key"
    return f"partition {named}" if named else f"rows where {claim.predicate}"


def _did(change: Change, claim: Claim) -> str:
    verbs = {APPEND: "added rows to it", OVERWRITE: "replaced all rows", UPSERT: "upserted new keys there"}
    verb = verbs.get(claim.mode, "replaced it")
    return f"{change.who} {verb} in {change.version}"
