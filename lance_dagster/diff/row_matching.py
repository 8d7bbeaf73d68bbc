"""Match rows of two versions by equal row ids or by equal digests. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lance_dagster.diff.row_digests import Digests
from lance_dagster.format.row_runs import RowRuns

_OFFSET_BITS = 32
"""Bits of an address that are the offset in the fragment; those above are the id of the fragment."""
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
RowPositions = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Positions of the rows in both versions, pair by pair, and of the rows that only one version has."""

    before: RowPositions
    after: RowPositions
    removed: RowPositions
    added: RowPositions


def paired_by_ids(before: Mapping[int, RowRuns], after: Mapping[int, RowRuns]) -> RowRuns:
    """Pair rows by their ids; the cost depends on the runs of ids, and not on the number of rows.

    Args:
        before: Row ids of the older version by fragment and offset, translated to ids of the newer version.
        after: Row ids of the newer version by fragment and offset.

    Returns:
        A map from the addresses in the newer version to the addresses in the older version, for rows that both have.
    """
    addresses = [ids.moved(at=number << _OFFSET_BITS) for number, ids in sorted(before.items())]
    by_id = RowRuns.concatenated(addresses).inverse()
    pairs = [ids.through(by_id).moved(at=number << _OFFSET_BITS) for number, ids in sorted(after.items())]
    return RowRuns.concatenated(pairs)


def paired_by_values(before: Digests, after: Digests) -> RowPairs:
    """Pair rows of equal digests in their order: of three equal rows before and two after, the third is removed."""
    count = len(before)
    together = np.concatenate([before, after])
    numbers = _numbered(together)
    # The span is large enough that number and rank never run into each other.
    span = len(together) + 1
    # Ranks make duplicates distinct: three equal rows before and two after are two pairs and one removed row.
    olds, news = _ranked(numbers[:count], span), _ranked(numbers[count:], span)
    _, old_positions, new_positions = np.intersect1d(olds, news, assume_unique=True, return_indices=True)
    return _paired(old_positions, new_positions, count, len(after))


def first_duplicate(digests: Digests) -> int | None:
    """Return the position of a row whose digest another row has too; None when all are distinct."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    duplicates = np.flatnonzero(np.all(ordered[1:] == ordered[:-1], axis=1))
    return int(order[duplicates[0] + 1]) if len(duplicates) else None


def _paired(olds: RowPositions, news: RowPositions, before: int, after: int) -> RowPairs:
    # Pairs are put in the order of the newer version, in which the rows are shown.
    order = np.argsort(news, kind="stable")
    return RowPairs(
        olds[order],
        news[order],
        np.setdiff1d(np.arange(before), olds, assume_unique=True),
        np.setdiff1d(np.arange(after), news, assume_unique=True),
    )


def _numbered(digests: Digests) -> RowPositions:
    """Give equal digests the same number, counted from 0."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    numbers = np.empty(len(digests), np.int64)
    numbers[order] = np.cumsum(np.r_[False, np.any(ordered[1:] != ordered[:-1], axis=1)]) if len(digests) else 0
    return numbers


def _ranked(numbers: RowPositions, span: int) -> RowPositions:
    """Return a distinct number for each number and its rank among equal numbers.

    With a span of 10, the numbers 5, 5, 7 become 50, 51, 70.
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.r_[starts, len(numbers)]))
    return numbers * span + ranks
