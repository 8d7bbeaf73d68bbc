"""What a merge knows about each side: its state, what it did since the merge base, and who did it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lance_dagster.changes.claims import OVERWRITE, Claim, claims_of
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.transaction import (
    MERGE,
    CreateIndex,
    Operation,
    Overwrite,
    ReserveFragments,
    Restore,
    Transaction,
    UpdateBases,
    UpdateConfig,
)

RUN_ID = "dagster/run_id"
_MOVES_NO_ROW = (CreateIndex, ReserveFragments, UpdateBases, UpdateConfig)

RowsMatching = Callable[[Iterable[int], str], int]
"""Counts the live rows of some fragments of one side that match a predicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One version a side made since the merge base. `transaction` is None when its file is gone."""

    version: str
    writer: str
    transaction: Transaction | None

    @property
    def who(self) -> str:
        """The Dagster run that made the version, else what was merged, else the program that wrote it."""
        properties = self.transaction.properties if self.transaction else {}
        if run := properties.get(RUN_ID):
            return f"run {run}"
        return f"the merge of {properties[MERGE]}" if MERGE in properties else self.writer

    @property
    def operation(self) -> Operation | None:
        """The operation of its transaction."""
        return self.transaction.operation if self.transaction else None

    @property
    def moves_no_row(self) -> bool:
        """Whether its operation is one that leaves rows, columns and fragments as they are."""
        return isinstance(self.operation, _MOVES_NO_ROW)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the version claims. A replaced table claims everything, whoever wrote it."""
        if self.transaction is None:
            return ()
        claims = claims_of(self.transaction.properties)
        if not claims and isinstance(self.transaction.operation, Overwrite | Restore):
            return (Claim(mode=OVERWRITE),)
        return claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a merge: where it is now, what it did since the merge base, how to look at its rows.

    `fragments` are those it had at some time since then, by the names of their files.
    """

    name: str
    manifest: Manifest
    changes: Sequence[Change]
    fragments: Mapping[frozenset[str], Fragment]
    rows_matching: RowsMatching


@dataclass(frozen=True, slots=True)
class Conflict:
    """One reason why two sides cannot be merged: what it is about, and what both sides did."""

    unit: str
    source: str
    dest: str

    def __str__(self) -> str:
        """Say what it is about and what both sides did."""
        return f"{self.unit}: {self.source}; {self.dest}"


def makers(changes: Iterable[Change], select: Callable[[Change], bool]) -> str:
    """Name who made the selected changes."""
    named = [f"{change.who} ({change.version})" for change in changes if select(change)]
    return ", ".join(named) or "an unknown writer"
