"""Claims in a merge: who replaced rows says that nobody else put any there."""

from collections.abc import Iterable, Sequence

from tests.properties.merging.rows_model import Claim, Made, Snapshot
from tests.properties.merging.three import Clash, Three, inserted, moved_by, touched


def claim_clashes(three: Three) -> Iterable[Clash]:
    """Find where one side claims what the other changed."""
    pairs = (
        (three.source, three.source_did, three.dest, three.dest_did),
        (three.dest, three.dest_did, three.source, three.source_did),
    )
    for side, did, other, others in pairs:
        if not any(made.did not in QUIET for made in others):
            yield from _beside_quiet(did, others)
            continue
        restored = any(made.did == "restore" for made in (*did, *others))
        for made in did:
            for claim in made.claims:
                if claim.whole:
                    if not _differs(three.base, other) and (restored or not any(one.claims for one in others)):
                        continue
                    yield Clash("table", claim.what, hard=_differs(three.base, other) and _differs(three.base, side))
                    continue
                yield from claimed(three, claim, side, other, hard=not restored)
                yield from _deleted_there(three, claim, other)
                if any(set(claim.partitions) & set(one.partitions) for one in others):
                    yield Clash("partition", claim.what, hard=False)


QUIET = {"config", "metadata", "index", "drop index", "optimize", "compact", "merge"}
"""Work that leaves rows and columns as they are."""


def _beside_quiet(did: Sequence[Made], others: Sequence[Made]) -> Iterable[Clash]:
    if any(made.did == "compact" for made in others) and any(claim.whole for made in did for claim in made.claims):
        yield Clash("table", "replaced beside a compaction", hard=False)


def _differs(base: Snapshot, side: Snapshot) -> bool:
    return (
        base.columns != side.columns
        or {uid: row.stamp for uid, row in base.rows.items()} != {uid: row.stamp for uid, row in side.rows.items()}
        or base.values() != side.values()
    )


def claimed(three: Three, claim: Claim, side: Snapshot, other: Snapshot, *, hard: bool = True) -> Iterable[Clash]:
    """Rows that the other side put where one side says only its own are."""
    new = inserted(three.base, other) - side.rows.keys()
    for uid in (*new, *moved_by(three.base, other, beside=side)):
        if claim.matches(uid, other.named(other.rows[uid])):
            yield Clash("partition", f"row {uid} where {claim.what}", hard)


def _deleted_there(three: Three, claim: Claim, other: Snapshot) -> Iterable[Clash]:
    base = three.base
    for uid, fate in touched(base, other).items():
        if fate == "deleted" and claim.matches(uid, base.named(base.rows[uid])):
            yield Clash("partition", f"rows deleted where {claim.what}", hard=False)
