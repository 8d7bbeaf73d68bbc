"""The input of a merge: the merge base, what each side did since, and functions that read what manifests do not hold.

Every class here is a frozen value. What follows from the values is computed by `MergeSide`, once and at its first use,
since a merge of a branch that only appended must not pay for what the dest did. Sides whose rows cannot be compared are
refused (`blocking_findings`) before any rule compares them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.row_runs import RowRuns, U64Array
from lance_dagster.format.transaction import CHANGE_ORIGIN_PROPERTIES, DataOverlay, Restore, UpdateMemWalState
from lance_dagster.merge.rules.strategy import HISTORY, Conflict, Finding, Strategy, unsettled
from lance_dagster.transactions.claims import SideHistory
from lance_dagster.transactions.row_id_spaces import RowSpace

_NO_ROWS = RowRuns.of(())
_UNKNOWN = (DataOverlay, UpdateMemWalState)
_WAIVED = "its changes may conflict with what that version claimed; a strategy for 'history' assumes no claim"
Deleted = Callable[[Manifest, Fragment], BitMap]
"""Reads which rows of a fragment of a version are deleted, as offsets."""
Matching = Callable[[Manifest, Iterable[int], str, Mapping[str, str] | None], Mapping[int, BitMap]]
"""Finds the live rows that match a predicate in some fragments of a version: offsets by fragment id.

The last argument gives the names that columns have in the version by the names that the predicate has for them; None
means that all names are the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeys:
    """Rows of source and dest, by their fragments, whose key both sides have, and a condition for these keys.

    Where the source wrote the keys 1 and 2 and the dest 2 and 3, these are the two rows of key 2, and the condition
    lists key 2. The condition is None where there is no such row, or where the keys cannot be written down. `on` are
    the names that the key columns have on the dest.
    """

    source: Mapping[int, BitMap]
    dest: Mapping[int, BitMap]
    condition: str | None
    on: tuple[str, ...] = ()


LocatedRows = tuple[Manifest, Mapping[int, BitMap]]
"""A version, and rows of it: offsets by fragment."""
AddressedRows = tuple[Manifest, U64Array]
"""A version, and addresses of rows of it."""
EqualRows = Callable[[AddressedRows, AddressedRows, Mapping[int, int]], "np.ndarray[tuple[int], np.dtype[np.bool_]]"]
"""Tells which rows of source and dest, given in the same order, have the same values in fields that both have.

The last argument maps the field ids of the source to those of the dest.
"""
Cells: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.bool_]]"
"""A flag for each row and column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCells:
    """The cells, of rows that both sides updated, that differ from the merge base or from the other side.

    `source` and `dest` flag the cells that a side changed, `apart` flags the cells that differ between the sides;
    `columns` are the names of all columns of the table, in the order of the flags.

    Example: the merge base has the row (1, "a"), the source (2, "a"), the dest (2, "b"). Then `source` is [yes, no],
    `dest` is [yes, yes] and `apart` is [no, yes].
    """

    columns: tuple[str, ...]
    source: Cells
    dest: Cells
    apart: Cells


CompareCells = Callable[[AddressedRows, AddressedRows, AddressedRows], ComparedCells | None]
"""Compares the cells of rows of merge base, source and dest, given in the same order; None where that is impossible."""
FindSharedKeys = Callable[[LocatedRows, LocatedRows, Sequence[tuple[str, str, str]]], SharedKeys]
"""Finds the rows of source and dest that have the same values in the columns of a key.

Each column is given by its name in the condition, its name in the source and its name in the dest.
"""


@dataclass(frozen=True, slots=True)
class Lookups:
    """The functions by which a merge reads what manifests do not hold.

    `ahead` gets the fragments that the source changed, as each version has them, so that their deletion files can be
    read in parallel before `deleted` is called. Without `shared_keys` no keys are read, and the recorded conditions
    are compared instead. Without `equal_rows` a row that both sides updated is a conflict, unless both have it from
    one file. Without `compare_cells` a row is a conflict even if the sides changed different cells of it.
    """

    deleted: Deleted
    matching: Matching
    ahead: Callable[[Sequence[tuple[Manifest, Fragment]]], None] = lambda _: None
    shared_keys: FindSharedKeys | None = None
    equal_rows: EqualRows | None = None
    compare_cells: CompareCells | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """The input of a merge: the merge base with its row ids, the sides and the lookups.

    `base` is the newest version that both sides contain; for a pick or a revert it is the version that the change
    starts from.

    `crosswise` says that both sides may have rows of the same versions, which the merge base does not have: by merges
    in both directions, or by picks. Without stable row ids, nothing tells which rows these are.

    `inserted` are rows of the source and of the dest that count as inserted there although the other side knows them:
    for the source a map from ids on the source to ids on the dest, for the dest the reverse. `updated` are the ids of
    rows that count as updated by the source, whatever values they have. `incompatible` are the paths of columns that
    source and dest have in different types, because one side changed the type since the last version that both lines
    share. `other_bases` are the inputs of the same merge from the other merge bases, where crossing merges leave
    several.
    """

    base: Manifest
    space: RowSpace
    source: SideHistory
    dest: SideHistory
    lookups: Lookups
    strategy: Strategy = None
    crosswise: bool = False
    incompatible: tuple[str, ...] = ()
    inserted: tuple[RowRuns, RowRuns] = (_NO_ROWS, _NO_ROWS)
    updated: RowRuns = _NO_ROWS
    other_bases: "tuple[MergeInput, ...]" = ()


def blocking_findings(merge_input: MergeInput) -> Iterator[Finding]:
    """Find what makes it impossible to compare rows, which no strategy settles.

    Row ids are stable on one side only, or are not stable where they are needed; data files are of different
    generations; or a version has an unknown operation.
    """
    base, source, dest = merge_input.base, merge_input.source, merge_input.dest
    if merge_input.crosswise and not base.stable_row_ids:
        merged = f"{source.name} and {dest.name} have the same versions by different merges or picks"
        yield unsettled(HISTORY, HISTORY, (merged, "without stable row ids it is unknown which rows both have"))
    if not base.stable_row_ids and all(_may_have_copies(side) for side in (source, dest)):
        picked = f"{source.name} and {dest.name} both have cherry-picks, reverts, restores or merges with a strategy"
        unknown = "without stable row ids it is unknown which of the rows these brought or kept both have"
        yield unsettled(HISTORY, HISTORY, (picked, unknown))
    if not base.stable_row_ids == source.manifest.stable_row_ids == dest.manifest.stable_row_ids:
        verbs = {True: "has", False: "does not have"}
        has = [f"{side.name} {verbs[side.manifest.stable_row_ids]} them" for side in (source, dest)]
        yield unsettled(HISTORY, "stable row ids", (has[0], has[1]))
    # Data files of the legacy format 0.1 and of later formats must never be in one table.
    if source.manifest.file_version.startswith("0.") != dest.manifest.file_version.startswith("0."):
        has = [f"{side.name} has version {side.manifest.file_version}" for side in (source, dest)]
        yield unsettled(HISTORY, "format of data files", (has[0], has[1]))
    for side in (source, dest):
        for change in side.changes:
            if isinstance(change.operation, _UNKNOWN):
                committed = f"{change.author} committed the operation {type(change.operation).__name__}"
                unknown = "this program cannot merge that operation"
                did = (committed, unknown) if side is source else (unknown, committed)
                yield unsettled(HISTORY, f"version {change.version}", did)


def incompatible_columns(merge_input: MergeInput) -> Iterator[Finding]:
    """Find columns that source and dest have in different types, so that values of one side do not fit the other."""
    source, dest = merge_input.source.name, merge_input.dest.name
    for path in merge_input.incompatible:
        did = f"{source} has it in one type", f"{dest} has it in another type, which was changed since the fork"
        advice = f"make the change anew on {merge_input.dest.manifest.branch or MAIN}"
        yield unsettled("column", f"column {path}", did, advice)


def missing_versions(merge_input: MergeInput) -> Iterator[Finding]:
    """Find versions that were cleaned up, so that it is unknown which rows they claimed.

    A strategy for "history" settles the findings: it says that the versions claimed nothing. Rows that the versions
    changed are found all the same, since the rows of the sides are compared.
    """
    for side in (merge_input.source, merge_input.dest):
        for change in side.changes:
            if change.transaction is None:
                removed = f"it was cleaned up on {side.name}, so it is unknown whether it replaced rows"
                did = (removed, _WAIVED) if side is merge_input.source else (_WAIVED, removed)
                unit = f"version {change.version}"
                yield Finding(conflict=Conflict(kind="history", unit=unit, source=did[0], dest=did[1]))


def can_be_waived(conflict: Conflict) -> bool:
    """Tell whether a strategy for "history" settles a conflict: whether `missing_versions` found it."""
    return conflict.kind == "history" and _WAIVED in (conflict.source, conflict.dest)


def _may_have_copies(side: SideHistory) -> bool:
    """Tell whether a side may have rows that exist, or existed, in another place."""
    first = side.anchor.version if side.anchor is not None else 0
    # A strategy may have kept a new copy of a row that the merge base has deleted, and that the other side brings back.
    return bool(side.settled) or any(
        change.transaction is not None
        and (
            not CHANGE_ORIGIN_PROPERTIES.isdisjoint(change.transaction.properties)
            or (isinstance(change.operation, Restore) and change.operation.version < first)
        )
        for change in side.changes
    )
