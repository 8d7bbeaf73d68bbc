"""Claims: what a commit says about the rows it is responsible for.

Rows alone cannot tell that two writers both meant to provide *the* rows of January: both removed nothing and both
added some. So a commit that replaces rows records the predicate it replaced by and the partitions it stands for, an
append may record its partitions, and an overwrite claims everything. A merge compares the claims of both sides.
Claims travel in the transaction's properties as JSON.

One version that a side of a merge made since the merge base, and what it claims.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import (
    CLAIMS,
    COMMITTER,
    MERGE,
    CreateIndex,
    Operation,
    Overwrite,
    ReserveFragments,
    Transaction,
    UpdateBases,
    UpdateConfig,
)

APPEND, REPLACE, OVERWRITE, UPSERT = "append", "replace", "overwrite", "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one commit did to which rows. `partitions` are Dagster partition keys; none means they are not known."""

    mode: str
    predicate: str | None = None
    partitions: tuple[str, ...] = ()

    @property
    def exclusive(self) -> bool:
        """Whether the commit claims that no other rows of its scope exist."""
        return self.mode != APPEND

    def shared_partitions(self, other: "Claim") -> tuple[str, ...] | None:
        """Return the partitions both name; None when that cannot be told from the names."""
        if not self.partitions or not other.partitions:
            return None
        return tuple(key for key in self.partitions if key in other.partitions)


def encode_claims(claims: Iterable[Claim]) -> str:
    """Write claims as they stand in transaction properties."""
    return json.dumps(
        [{"mode": claim.mode, "predicate": claim.predicate, "partitions": list(claim.partitions)} for claim in claims]
    )


def decode_claims(properties: Mapping[str, str]) -> tuple[Claim, ...]:
    """Read the claims of a commit; none when it carries none, or carries something else under their name."""
    try:
        found = json.loads(properties.get(CLAIMS, "[]"))
        return tuple(
            Claim(
                mode=str(entry["mode"]),
                predicate=entry["predicate"] and str(entry["predicate"]),
                partitions=tuple(map(str, entry["partitions"])),
            )
            for entry in found
        )
    except (ValueError, TypeError, KeyError):
        return ()


RUN_ID = "dagster/run_id"
_MOVES_NO_ROW = (CreateIndex, ReserveFragments, UpdateBases, UpdateConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One version a side made since the merge base. `transaction` is None when its file is gone.

    `before` and `after` are the states around it; None when it was cleaned up. When it is `undone`, the side goes back
    from the second to the first, and claims nothing. Nor does it when it is `in_both`: the other side did the same.
    """

    version: str
    writer: str
    transaction: Transaction | None
    before: Manifest | None = None
    after: Manifest | None = None
    undone: bool = False
    in_both: bool = False

    @property
    def author(self) -> str:
        """The Dagster run that made the version, else what was merged, else who committed it, or with which program."""
        properties = self.transaction.properties if self.transaction else {}
        if run := properties.get(RUN_ID):
            return f"run {run}"
        if MERGE in properties:
            return f"the merge of {properties[MERGE]}"
        return properties.get(COMMITTER) or self.writer

    @property
    def operation(self) -> Operation | None:
        """The operation of its transaction."""
        return self.transaction.operation if self.transaction else None

    @property
    def is_merge(self) -> bool:
        """Whether it brought in another version."""
        return self.transaction is not None and MERGE in self.transaction.properties

    @property
    def moves_no_row(self) -> bool:
        """Whether its operation is one that leaves rows, columns and fragments as they are."""
        return isinstance(self.operation, _MOVES_NO_ROW)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the version claims. A replaced table claims everything, whoever wrote it."""
        if self.transaction is None or self.undone or self.in_both:
            return ()
        claims = decode_claims(self.transaction.properties)
        if not claims and isinstance(self.transaction.operation, Overwrite) and not self.is_merge:
            return (Claim(mode=OVERWRITE),)
        return claims
