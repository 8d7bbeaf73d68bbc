"""Claims: what a commit says about the rows it is responsible for.

Rows alone cannot tell that two writers both meant to provide *the* rows of January: both removed nothing and both
added some. So a commit that replaces rows records the predicate it replaced by and the partitions it stands for, an
append may record its partitions, and an overwrite claims everything. A merge compares the claims of both sides.
Claims travel in the transaction's properties as JSON.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lance_dagster.format.transaction import CLAIMS

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


def claims_of(properties: Mapping[str, str]) -> tuple[Claim, ...]:
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
