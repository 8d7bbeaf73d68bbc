"""Claims: the scope of rows that a commit declares itself responsible for; and changes, the versions of a merge side.

From rows alone, a merge cannot tell that two writers both provided the complete rows of January: each removed nothing
and added some. So a commit that replaces rows records its predicate and partitions, an append may record its
partitions, and an overwrite claims everything. A merge compares the claims of both sides. Claims are stored as JSON in
the transaction properties.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from lance_dagster.format.model import Manifest
from lance_dagster.format.partition_scope import PartitionScope
from lance_dagster.format.run_properties import RUN_ID
from lance_dagster.format.transaction import (
    CLAIMS,
    COMMITTER,
    MERGE,
    REVERTED,
    CreateIndex,
    Delete,
    Operation,
    Overwrite,
    ReserveFragments,
    Transaction,
    Update,
    UpdateBases,
    UpdateConfig,
)
from lance_dagster.format.validation import parsed_json
from lance_dagster.transactions.row_id_spaces import RowSpace

ClaimMode = Literal["append", "replace", "overwrite", "upsert"]
"""The kind of a write that claims rows."""
APPEND: Literal["append"] = "append"
REPLACE: Literal["replace"] = "replace"
OVERWRITE: Literal["overwrite"] = "overwrite"
UPSERT: Literal["upsert"] = "upsert"
NO_KEYS = "false"
"""The predicate of an upsert that inserted no row: it claims no keys, and records the columns it found rows by."""
_MODES: Mapping[object, ClaimMode] = {APPEND: APPEND, REPLACE: REPLACE, OVERWRITE: OVERWRITE, UPSERT: UPSERT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The scope of one commit. `partitions` are Dagster partition keys; empty when they are unknown.

    `partitioning` says what these keys mean; empty when it is unknown. `on` are the key columns of an upsert: it claims
    the keys of the rows it put in, and the predicate covers them.
    `origin` is the version that made a claim which a merge or a pick repeats, as branch id and number: a side that
    contains this version has the claimed rows itself.
    """

    mode: ClaimMode
    predicate: str | None = None
    partitions: tuple[str, ...] = ()
    partitioning: str = ""
    on: tuple[str, ...] = ()
    origin: tuple[str, int] | None = field(default=None, compare=False)

    @property
    def exclusive(self) -> bool:
        """Whether the commit claims to provide all rows of its scope."""
        return self.mode != APPEND and not (self.mode == UPSERT and self.predicate == NO_KEYS)

    @property
    def scope(self) -> PartitionScope:
        """The partitions; the whole table where they are unknown."""
        return PartitionScope(frozenset(self.partitions), self.partitioning)

    def shared_partitions(self, claim: "Claim") -> tuple[str, ...] | None:
        """Return the partitions that both claim; None when their partitions cannot be compared by name."""
        # None is not "no common partition": rows of unknown partitions may be in any.
        if not (self.partitions and claim.partitions and self.scope.is_comparable(claim.scope)):
            return None
        return tuple(key for key in self.partitions if key in claim.partitions)


def encode_claims(claims: Iterable[Claim]) -> str:
    """Encode claims for the transaction properties."""
    return json.dumps(
        [
            {"mode": claim.mode, "predicate": claim.predicate, "partitions": list(claim.partitions)}
            | ({"partitioning": claim.partitioning} if claim.partitioning else {})
            | ({"on": list(claim.on)} if claim.on else {})
            | ({"origin": list(claim.origin)} if claim.origin else {})
            for claim in claims
        ]
    )


def decode_claims(properties: Mapping[str, str]) -> tuple[Claim, ...]:
    """Decode the claims of a commit; empty when it has none, or the property has another format."""
    # Any program can set the property, so an invalid value must not make a table unmergeable.
    try:
        entries = parsed_json(properties.get(CLAIMS, "[]"))
        return tuple(
            Claim(
                # A kind that only a newer release knows counts as a claim of all its rows.
                mode=_MODES.get(entry["mode"], REPLACE),
                predicate=entry["predicate"] and str(entry["predicate"]),
                partitions=tuple(map(str, entry["partitions"])),
                partitioning=str(entry.get("partitioning", "")),
                on=tuple(map(str, entry.get("on", ()))),
                origin=_origin(entry.get("origin")),
            )
            for entry in entries
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _origin(entry: object) -> tuple[str, int] | None:
    match entry:
        case [str(branch_id), int(number)]:
            return branch_id, number
    return None


# Operations that cannot conflict with changes of rows, columns or fragments on the other side.
_MOVES_NO_ROW = (CreateIndex, ReserveFragments, UpdateBases, UpdateConfig)


# Without slots, because `cached_property` needs a `__dict__`: the rules of a merge ask for the same values repeatedly.
@dataclass(frozen=True, kw_only=True)
class Change:
    """A version that one side of a merge made since the merge base.

    A change that is `undone`, `in_both` or `taken_back` claims nothing.

    Attributes:
        version: The version, such as `run/7@3`.
        writer: The program or person that wrote it.
        transaction: Its transaction; None when the file of the transaction was removed.
        before: The manifest of the version before; None when it was cleaned up.
        after: The manifest of the version; None when it was cleaned up.
        undone: Whether the merge input applies the reverse change, from `after` to `before`.
        in_both: Whether the other side contains the same change, or picked it after this side took it back.
        taken_back: Whether this side took the change back (`taken_back.mark_taken_back`).
        known: How far the other side contains each branch, by branch id. Claims of the versions that it contains, which
            a merge repeats, do not count.
        id: The commit id of the version.
        parent_id: The commit id of the version before it on its branch; empty where that was cleaned up.
    """

    version: str
    writer: str
    transaction: Transaction | None
    before: Manifest | None = None
    after: Manifest | None = None
    undone: bool = False
    in_both: bool = False
    taken_back: bool = False
    known: Mapping[str, int] = field(default_factory=dict)
    id: str = ""
    parent_id: str = ""

    @cached_property
    def author(self) -> str:
        """The author for messages: the merged version, else the committer, else the program; and the Dagster run."""
        properties = self.transaction.properties if self.transaction else {}
        run = properties.get(RUN_ID)
        if MERGE in properties and run is None:
            return f"the merge of {properties[MERGE]}"
        committer = properties.get(COMMITTER)
        if run is not None:
            # The run is more useful than the program, which can be looked up in the run.
            return f"run {run}" if committer is None else f"{committer} in run {run}"
        return committer or self.writer

    @cached_property
    def operation(self) -> Operation | None:
        """The operation of the transaction, or None when the transaction is unknown."""
        return self.transaction.operation if self.transaction else None

    @cached_property
    def is_merge(self) -> bool:
        """Whether the version is a merge."""
        return self.transaction is not None and MERGE in self.transaction.properties

    @cached_property
    def moves_no_row(self) -> bool:
        """Whether the operation leaves rows, columns and fragments unchanged."""
        return isinstance(self.operation, _MOVES_NO_ROW)

    @cached_property
    def adds_no_copy(self) -> bool:
        """Whether the operation deletes rows, brings rows back or changes them in place, and adds no row elsewhere."""
        in_place = isinstance(self.operation, Update) and not self.operation.new_fragments
        return in_place or isinstance(self.operation, Delete)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of the version. An overwrite claims everything, even without recorded claims."""
        # A change that is undone provides no rows, and a change that both sides contain cannot conflict with itself.
        if self.transaction is None or self.undone or self.in_both or self.taken_back:
            return ()
        claims = decode_claims(self.transaction.properties)
        takes_back = REVERTED in self.transaction.properties
        if not (claims or takes_back or self.is_merge) and isinstance(self.transaction.operation, Overwrite):
            # pylance records no claims, but its overwrite replaces the rows of every partition.
            return (Claim(mode=OVERWRITE),)
        origins = (claim.origin or ("", 0) for claim in claims)
        return tuple(
            claim
            for claim, (own, number) in zip(claims, origins, strict=True)
            if not own or self.known.get(own, -1) < number
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideHistory:
    """The history of one side since the merge base.

    Attributes:
        name: The version of the side, such as `run/7@3`.
        manifest: Its manifest.
        changes: The versions that the side made and the other side does not contain, oldest first.
        anchor: The merge base as the side's own line of versions has it; None when there is no such version.
        since: What the line did after the anchor, merges included.
        same_ids: Whether the fragments and fields of the anchor have the same ids as in the merge base.
        space: The origin of the side's row ids.
        common: The number of the last version that this side and the merge base share on their line of versions; beyond
            it, equal numbers are different versions.
        fields: Without `same_ids`, the ids of fields of the merge base and their ids on this side, where they differ;
            None when no merge recorded them.
        settled: The side's merges, with a strategy, of versions that the other side contains: what such a merge decided
            is not in `changes`.
    """

    name: str
    manifest: Manifest
    changes: Sequence[Change]
    anchor: Manifest | None
    since: Sequence[Change]
    same_ids: bool
    space: RowSpace
    common: int
    fields: Mapping[int, int] | None = None
    settled: Sequence[Change] = ()

    @property
    def complete(self) -> bool:
        """Whether every version of its line since the anchor is readable."""
        return self.anchor is not None and all(
            change.transaction is not None and change.after is not None for change in self.since
        )
