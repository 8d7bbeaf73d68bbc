"""The origins of the rows of a fragment: addresses in the merge base, and keys for rows that it does not have.

A row of the merge base is known by its address there: the id of its fragment and the offset in it, as 32 bits each. All
ids of fragments and all offsets are valid, so no address is left over for a row that the merge base does not have.
Such rows have row ids that both sides know, and a key of another type.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.model import Fragment
from lance_dagster.format.row_runs import RowRuns, VersionRuns

OFFSET_BITS = 32


class Absence(Enum):
    """Why the merge base does not have a row that a side has, although the row is known to more than that side."""

    DELETED = "deleted in the merge base, with its whole fragment, and brought back since"
    SHARED = "on both sides, by merges of a branch that the merge base does not contain"


@dataclass(frozen=True, slots=True)
class AbsentRows:
    """The key, in place of a fragment of the merge base, of rows that the merge base does not have.

    Rows of the merge base are known by their fragment and the offset in it. These have no fragment there, so they are
    known by the row ids that they have on the dest: by the upper 32 bits, which are `block`, and the lower 32 bits,
    which stand for the offset. Offsets of both kinds fit into Roaring bitmaps.
    """

    why: Absence
    block: int


BaseKey = int | AbsentRows
"""The id of a fragment of the merge base, or the key of rows that it does not have."""
BaseRows = Mapping[BaseKey, BitMap]
"""Offsets by fragment of the merge base, rows that it does not have included."""


def in_order(keys: Iterable[BaseKey]) -> list[BaseKey]:
    """Return keys in the order of the merge base; the keys of rows that it does not have come last."""
    return sorted(keys, key=lambda key: (0, "", key) if isinstance(key, int) else (1, key.why.name, key.block))


NOWHERE = RowRuns.of(())
"""An empty map: the origins of rows that the merge base does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The origins of the rows of a fragment of a side, by their offsets in the fragment.

    `base` maps offsets to addresses in the merge base; `deleted` and `shared` map the offsets of rows that the merge
    base lacks to row ids on the dest, for the two kinds of `Absence`. A row stands in at most one of the three maps; a
    row that stands in no map was inserted by this side alone.
    """

    base: RowRuns = NOWHERE
    deleted: RowRuns = NOWHERE
    shared: RowRuns = NOWHERE

    def __len__(self) -> int:
        """Return the number of runs."""
        # This is called for every fragment again and again, so it avoids a `len` call for each of the three.
        return self.base.at.size + self.deleted.at.size + self.shared.at.size

    @property
    def positions(self) -> BitMap:
        """Offsets of the rows that have an origin."""
        positions = self.base.positions
        for _, rows in self._absent():
            positions |= rows.positions
        return positions

    def restricted(self, offsets: BitMap) -> "Origins":
        """Return the origins of some rows only."""
        base = self.base.restricted(offsets)
        if not (len(self.deleted) or len(self.shared)):
            # Nearly every fragment takes this path. In large merges, work on empty runs would dominate the time.
            return Origins(base=base)
        return Origins(base=base, deleted=self.deleted.restricted(offsets), shared=self.shared.restricted(offsets))

    def by_key(self) -> "dict[BaseKey, RowRuns]":
        """Return for each fragment of the merge base a map from offsets in it to offsets in this fragment."""
        rows_by_key: dict[BaseKey, RowRuns] = dict(_by_fragment(self.base))
        for why, rows in self._absent():
            rows_by_key |= {AbsentRows(why, block): offsets for block, offsets in _by_fragment(rows)}
        return rows_by_key

    def in_base(self) -> dict[BaseKey, BitMap]:
        """Return, by fragment of the merge base, the offsets there of the rows."""
        return {key: rows.positions for key, rows in self.by_key().items()}

    def found_in(self, fragment: "Origins") -> RowRuns:
        """Return, by offset here, the offset of the same row in another fragment, for rows that have one there."""
        pairs = [(self.base, fragment.base), (self.deleted, fragment.deleted), (self.shared, fragment.shared)]
        return RowRuns.united([own.through(there.inverse()) for own, there in pairs if len(own) and len(there)])

    def without(self, fragment: "Origins") -> "Origins":
        """Return the origins of rows that another fragment does not have."""
        pairs = [(self.base, fragment.base), (self.deleted, fragment.deleted), (self.shared, fragment.shared)]
        remaining = [own.without(there.inverse()) if len(own) and len(there) else own for own, there in pairs]
        return Origins(base=remaining[0], deleted=remaining[1], shared=remaining[2])

    def _absent(self) -> Iterator[tuple[Absence, RowRuns]]:
        if len(self.deleted):
            yield Absence.DELETED, self.deleted
        if len(self.shared):
            yield Absence.SHARED, self.shared


NO_ORIGINS = Origins()
"""The origins of rows that a side inserted."""


def addresses_of(fragment: Fragment, base_id: int) -> RowRuns:
    """Return the addresses of all rows of a fragment that is in the place of a fragment of the merge base."""
    return RowRuns.of([(0, fragment.physical_rows, base_id << OFFSET_BITS)])


def offsets_in_base(addresses: RowRuns) -> dict[int, BitMap]:
    """Return, by fragment of the merge base, the offsets there that some addresses name."""
    return {number: rows.positions for number, rows in _by_fragment(addresses)}


def _by_fragment(addresses: RowRuns) -> Iterator[tuple[int, RowRuns]]:
    """Group runs by the upper 32 bits of their numbers: the positions by the lower 32 bits."""
    if not len(addresses):
        return
    rows = _within_fragments(addresses).inverse()
    numbers = rows.at >> np.uint64(OFFSET_BITS)
    offsets = rows.at & np.uint64(2**OFFSET_BITS - 1)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), RowRuns(offsets[start:end], rows.count[start:end], rows.first[start:end])


def fragments_named(addresses: RowRuns) -> list[int]:
    """Return the fragments that some addresses name, ascending."""
    numbers: list[int] = np.unique(_within_fragments(addresses).first >> np.uint64(OFFSET_BITS)).tolist()
    return numbers


def by_address(numbers: Sequence[int], parts: Sequence[RowRuns]) -> RowRuns:
    """Join maps from offsets in fragments into one map from addresses.

    Args:
        numbers: The ids of the fragments, ascending.
        parts: The map of each.
    """
    together = RowRuns.concatenated(parts)
    starts = np.array(numbers, np.uint64) << np.uint64(OFFSET_BITS)
    # One addition covers all fragments: for thousands of fragments, thousands of small ones would be slow.
    return RowRuns(together.at + np.repeat(starts, [len(part) for part in parts]), together.count, together.first)


def at_addresses(numbers: Sequence[int], parts: Sequence[VersionRuns]) -> VersionRuns:
    """Join the versions of rows of fragments, whose ids are given in ascending order, into versions by address."""
    at = by_address(numbers, [RowRuns(part.at, part.count, part.at) for part in parts])
    return VersionRuns(at.at, at.count, np.concatenate([at.at[:0], *(part.version for part in parts)]))


def offsets_by_fragment(rows: RowRuns) -> dict[int, BitMap]:
    """Group the positions of a map, which are addresses, by their fragments: the offsets in each."""
    return offsets_in_base(RowRuns(rows.at, rows.count, rows.at))


def _within_fragments(addresses: RowRuns) -> RowRuns:
    """Cut runs where a fragment ends. Runs of addresses end there; only runs of row ids go on into the next block."""
    shift = np.uint64(OFFSET_BITS)
    numbers, last_numbers = addresses.first >> shift, addresses.lasts >> shift
    if np.array_equal(numbers, last_numbers):
        return addresses
    every = np.unique(
        np.concatenate(
            [np.arange(*pair, dtype=np.uint64) for pair in zip(numbers, last_numbers + np.uint64(1), strict=True)]
        )
    )
    counts = np.full(len(every), 2**OFFSET_BITS, np.uint64)
    return addresses.through(RowRuns(every << shift, counts, every << shift))
