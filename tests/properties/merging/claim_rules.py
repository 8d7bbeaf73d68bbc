"""Claims in a merge: a side that replaced rows claims that nobody else inserted any in their place."""

from collections.abc import Iterable, Sequence

from tests.properties.merging.merge_inputs import ExpectedConflict, MergeInputs, inserted, moved_by, touched
from tests.properties.merging.rows_model import Claim, Made, Snapshot


def claim_conflicts(inputs: MergeInputs) -> Iterable[ExpectedConflict]:
    """Yield the conflicts where one side claims rows that the other side changed."""
    pairs = (
        (inputs.source, inputs.source_did, inputs.dest, inputs.dest_did),
        (inputs.dest, inputs.dest_did, inputs.source, inputs.source_did),
    )
    for side, did, other, others in pairs:
        if not any(made.did not in QUIET for made in others):
            yield from _beside_quiet(did, others)
            continue
        restored = any(made.did == "restore" for made in (*did, *others))
        for made in did:
            for claim in made.claims:
                if claim.whole:
                    if not _differs(inputs.base, other) and (restored or not any(one.claims for one in others)):
                        continue
                    yield ExpectedConflict(
                        "table", claim.what, hard=_differs(inputs.base, other) and _differs(inputs.base, side)
                    )
                    continue
                # A write of which nothing is left claims nothing: the rows that it put are gone, and it removed none.
                left = any(_matched(claim, snapshot) for snapshot in (inputs.base, side))
                yield from claimed(inputs, claim, side, other, hard=left and not restored)
                yield from _deleted_there(inputs, claim, other)
                if any(set(claim.partitions) & set(one.partitions) for one in others):
                    yield ExpectedConflict("partition", claim.what, hard=False)


QUIET = {"config", "metadata", "index", "drop index", "optimize", "compact", "merge"}
"""Work that leaves rows and columns as they are."""


def _beside_quiet(did: Sequence[Made], others: Sequence[Made]) -> Iterable[ExpectedConflict]:
    if any(made.did == "compact" for made in others) and any(claim.whole for made in did for claim in made.claims):
        yield ExpectedConflict("table", "replaced beside a compaction", hard=False)


def _differs(base: Snapshot, side: Snapshot) -> bool:
    return (
        base.columns != side.columns
        or {uid: row.stamp for uid, row in base.rows.items()} != {uid: row.stamp for uid, row in side.rows.items()}
        or base.values() != side.values()
    )


def claimed(
    inputs: MergeInputs, claim: Claim, side: Snapshot, other: Snapshot, *, hard: bool = True
) -> Iterable[ExpectedConflict]:
    """Yield the conflicts over rows that the other side put where one side claims to have the only ones."""
    new = inserted(inputs.base, other) - side.rows.keys()
    for uid in (*new, *moved_by(inputs.base, other, beside=side)):
        if claim.matches(uid, other.named(other.rows[uid])):
            yield ExpectedConflict("partition", f"row {uid} where {claim.what}", hard)


def _matched(claim: Claim, snapshot: Snapshot) -> bool:
    return any(claim.matches(uid, snapshot.named(row)) for uid, row in snapshot.rows.items())


def _deleted_there(inputs: MergeInputs, claim: Claim, other: Snapshot) -> Iterable[ExpectedConflict]:
    base = inputs.base
    for uid, change in touched(base, other).items():
        if change == "deleted" and claim.matches(uid, base.named(base.rows[uid])):
            yield ExpectedConflict("partition", f"rows deleted where {claim.what}", hard=False)
