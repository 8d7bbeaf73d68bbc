"""Which rows of one version are which of another, told by numbers: row ids, or digests of keys or of whole rows."""

from dataclasses import dataclass

import numpy as np

from lance_dagster.changes.diff_values import Digests
from lance_dagster.format.codec import U64Array

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Paired:
    """Places of rows that are in both, in the same order, and of those in one alone, in theirs."""

    before: Places
    after: Places
    removed: Places
    added: Places


def paired_by_ids(before: U64Array, known: Flags, after: U64Array) -> Paired:
    """Pair rows by their ids.

    Args:
        before: Ids of rows of the older version, as they are in the newer one.
        known: Which of them there is an id for.
        after: Ids of rows of the newer version.
    """
    candidates = np.flatnonzero(known)
    _, olds, news = np.intersect1d(before[candidates], after, assume_unique=True, return_indices=True)
    return _paired(candidates[olds], news, len(before), len(after))


def paired_by_values(before: Digests, after: Digests) -> Paired:
    """Pair rows of equal digests, the first with the first and so on, as long as both have any."""
    count = len(before)
    together = np.concatenate([before, after])
    numbers = _numbered(together)
    span = len(together) + 1
    olds, news = _ranked(numbers[:count], span), _ranked(numbers[count:], span)
    _, one, other = np.intersect1d(olds, news, assume_unique=True, return_indices=True)
    return _paired(one, other, count, len(after))


def twice(digests: Digests) -> int | None:
    """Return the place of a row whose digest another one has as well."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    found = np.flatnonzero(np.all(ordered[1:] == ordered[:-1], axis=1))
    return int(order[found[0] + 1]) if len(found) else None


def _paired(olds: Places, news: Places, before: int, after: int) -> Paired:
    order = np.argsort(news, kind="stable")
    return Paired(
        olds[order],
        news[order],
        np.setdiff1d(np.arange(before), olds, assume_unique=True),
        np.setdiff1d(np.arange(after), news, assume_unique=True),
    )


def _numbered(digests: Digests) -> Places:
    """Give equal digests the same number, counted from 0."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    numbers = np.empty(len(digests), np.int64)
    numbers[order] = np.cumsum(np.r_[False, np.any(ordered[1:] != ordered[:-1], axis=1)]) if len(digests) else 0
    return numbers


def _ranked(numbers: Places, span: int) -> Places:
    """Return for each number, and for how many of the same stand before it, a number of its own."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.r_[starts, len(numbers)]))
    return numbers * span + ranks
