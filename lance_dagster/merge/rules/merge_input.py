"""What is given to a merge: the merge base, what each side did since, and how to look at what manifests do not hold.

Everything in here is a value. Whatever is derived from it is computed by `MergeSide`, once and only when it is asked
for, since a merge of a branch that only appended must not cost what the dest did.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.row_runs import U64Array
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import RowSpace

Deleted = Callable[[Manifest, Fragment], BitMap]
"""Reads which rows of a fragment of a version are deleted, as offsets."""
Matching = Callable[[Manifest, Iterable[int], str], Mapping[int, BitMap]]
"""Finds the live rows that match a predicate in some fragments of a version: offsets by fragment id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeys:
    """Rows of source and dest, by their fragments, whose key both have, and a condition that holds for these keys.

    The condition is None where there is no such row, or where the keys cannot be written down.
    """

    source: Mapping[int, BitMap]
    dest: Mapping[int, BitMap]
    condition: str | None


LocatedRows = tuple[Manifest, Mapping[int, BitMap]]
"""A version, and rows of it: offsets by fragment."""
AddressedRows = tuple[Manifest, U64Array]
"""A version, and addresses of rows of it."""
EqualRows = Callable[[AddressedRows, AddressedRows, Mapping[int, int]], "np.ndarray[tuple[int], np.dtype[np.bool_]]"]
"""Tells which rows of source and dest, given in the same order, have the same values in fields that both have.

The fields of the dest are given by those of the source.
"""
FindSharedKeys = Callable[[LocatedRows, LocatedRows, Sequence[str]], SharedKeys]
"""Finds the rows of source and dest that have the same values in the columns of a key."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """How a merge looks at what manifests do not hold.

    `ahead` gets everything that `deleted` will be asked for, so that the files can be read in parallel. Without
    `shared_keys` no keys are read, and the recorded conditions are compared instead; without `equal_rows` a row that
    both sides updated is a conflict, unless both have it from one file.
    """

    deleted: Deleted
    matching: Matching
    ahead: Callable[[Sequence[tuple[Manifest, Fragment]]], None] = lambda _: None
    shared_keys: FindSharedKeys | None = None
    equal_rows: EqualRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """What is to be merged: the newest version both sides contain with its row ids, the sides, how to look.

    `crosswise` says that both sides took in versions, by merges in both directions, that the merge base does not have.
    Rows that both had and only the source still has are gone then, since the dest deleted them; where they are
    `returning`, the dest took back the version that brought them, and they come again.
    `incompatible` are the paths of columns that source and dest have in different types, changed before the base.
    """

    base: Manifest
    space: RowSpace
    source: SideHistory
    dest: SideHistory
    lookups: Lookups
    strategy: Strategy = None
    crosswise: bool = False
    returning: bool = False
    incompatible: tuple[str, ...] = ()


def makers(side: SideHistory, select: Callable[[Change], bool]) -> str:
    """Name who made the selected changes of a side; the side itself when none was selected."""
    named = [
        f"taking back {change.version}" if change.undone else f"{change.author} ({change.version})"
        for change in side.changes
        if change.undone or select(change)
    ]
    return ", ".join(dict.fromkeys(named)) or side.name
