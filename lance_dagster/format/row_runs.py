"""Numbers of many rows as runs: row ids, row addresses and row versions without one element for each row.

A fragment may have four billion rows, and the ids of its rows take a few bytes where they were given out in order. A
merge, a diff or a content id has to work with these ids, so it works with the runs. `RowRuns` maps positions to
numbers that count upwards within a run; `VersionRuns` maps positions to numbers that are equal within a run. All
operations cost the number of runs, which is at most the number of rows that were moved or deleted one by one.

Positions are offsets of rows in a fragment, and sets of them are Roaring bitmaps, which hold ranges as ranges. All
arrays are unsigned: NumPy turns a sum of signed and unsigned 64-bit integers into floating point, which loses ids.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

U64Array = np.ndarray[tuple[int], np.dtype[np.uint64]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]
_ONE = np.uint64(1)
_LARGEST = 2**64 - 1
"""A number that is neither a position nor a row id: the next row id has to fit into 64 bits too."""
_NONE: U64Array = np.empty(0, np.uint64)
_LONG_RANGE = 2**16
_FEW_RANGES = 8
"""The number of rows of a run from which adding it as a range is faster than adding its rows one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """A number for some positions, in runs: the rows `at` to `at + count - 1` have `first`, `first + 1` and so on.

    The three arrays have one element for each run. Positions ascend and no position is in two runs; the numbers
    may be in any order. Positions without a run have no number.
    """

    at: U64Array
    count: U64Array
    first: U64Array

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, int, int]]) -> "RowRuns":
        """Make runs from triples of position, number of rows and first number, in the order of positions."""
        # Empty pieces are left out: `lasts` subtracts one from a count, and 0 would wrap around to 2^64 - 1.
        columns = np.array([piece for piece in pieces if piece[1]], np.uint64).reshape(-1, 3)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2])

    @classmethod
    def one(cls, at: int, count: int, first: int) -> "RowRuns":
        """Make a single run of at least one row, without the detour over a table of runs."""
        return cls(np.array([at], np.uint64), np.array([count], np.uint64), np.array([first], np.uint64))

    @classmethod
    def sequence(cls, ranges: Sequence[tuple[int, int]]) -> "RowRuns":
        """Make runs that follow each other from position 0 on, from pairs of first number and number of rows."""
        columns = np.array([pair for pair in ranges if pair[1]], np.uint64).reshape(-1, 2)
        return cls._following(columns[:, 1], columns[:, 0])

    @classmethod
    def of_values(cls, values: U64Array) -> "RowRuns":
        """Make runs from one number for each position from 0 on."""
        if not len(values):
            return cls(_NONE, _NONE, _NONE)
        # After the largest number, adding one gives 0, which does not follow it.
        starts = np.flatnonzero(np.r_[True, (values[1:] != values[:-1] + _ONE) | (values[1:] == 0)])
        counts = np.diff(np.r_[starts, len(values)]).astype(np.uint64)
        return cls(starts.astype(np.uint64), counts, values[starts])

    @classmethod
    def itself(cls, positions: BitMap) -> "RowRuns":
        """Map each of some positions to itself."""
        first, last = bounds(positions)
        return cls(first, last - first + _ONE, first)

    @classmethod
    def concatenated(cls, parts: Sequence["RowRuns"]) -> "RowRuns":
        """Concatenate maps whose positions do not overlap, given in the order of their positions."""
        if not parts:
            return cls(_NONE, _NONE, _NONE)
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("at", "count", "first")))

    @classmethod
    def united(cls, parts: Sequence["RowRuns"]) -> "RowRuns":
        """Unite maps whose positions do not overlap, given in any order."""
        together = cls.concatenated(parts)
        order = np.argsort(together.at, kind="stable")
        return cls(together.at[order], together.count[order], together.first[order])

    @classmethod
    def set_of(cls, parts: Sequence["RowRuns"]) -> "RowRuns":
        """Return the numbers of maps as a set: each mapped to itself, once, however often it occurs in the maps."""
        together = cls.concatenated(parts)
        if not len(together):
            return together
        # Runs may overlap or lie inside one another, so a run ends where the largest last number so far ends.
        order = np.argsort(together.first, kind="stable")
        first, last = together.first[order], np.maximum.accumulate(together.lasts[order])
        # First numbers are compared with the last number so far, not with the one after it, which wraps around to 0
        # after the largest. So adjacent runs stay apart, which is the same set.
        starts = np.flatnonzero(np.r_[True, first[1:] > last[:-1]])
        first, last = first[starts], last[np.r_[starts[1:] - 1, len(last) - 1]]
        return cls(first, last - first + _ONE, first)

    @classmethod
    def first_of(cls, pieces: "RowRuns") -> "RowRuns":
        """Return runs in the order of positions that may overlap, each position with the first number given for it."""
        order = np.argsort(pieces.at, kind="stable")
        at, count, first = pieces.at[order], pieces.count[order], pieces.first[order]
        last = at + (count - _ONE)
        # A run loses the positions at its front that earlier runs cover; one that lies inside another loses all.
        known: U64Array = np.r_[np.uint64(0), (np.maximum.accumulate(last) + _ONE)[:-1]] if len(at) else at
        start: U64Array = np.maximum(at, known)
        left = last >= start
        # `first` goes up by as many rows as are cut off, so that the remaining positions keep their numbers.
        skipped: U64Array = start - at
        return cls(start[left], (last - start + _ONE)[left], (first + skipped)[left])

    @classmethod
    def _following(cls, counts: U64Array, firsts: U64Array) -> "RowRuns":
        at = np.cumsum(counts, dtype=np.uint64) - counts
        return cls(at, counts, firsts)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.at)

    @property
    def rows(self) -> int:
        """The number of positions that have a number."""
        return int(self.count.sum(dtype=np.uint64))

    @property
    def smallest(self) -> int | None:
        """The smallest number, or None when there is none."""
        return int(self.first.min()) if len(self) else None

    @property
    def largest(self) -> int | None:
        """The largest number, or None when there is none."""
        return int(self.lasts.max()) if len(self) else None

    @property
    def lasts(self) -> U64Array:
        """The last number of each run. An exclusive end would not fit into 64 bits after the largest number."""
        lasts: U64Array = self.first + (self.count - _ONE)
        return lasts

    @property
    def ascending(self) -> bool:
        """Whether numbers ascend with positions."""
        return bool(np.all(self.first[1:] > self.lasts[:-1]))

    @property
    def positions(self) -> BitMap:
        """The positions that have a number."""
        return bitmap_of(self.at, self.count)

    def values(self) -> U64Array:
        """Return every number, in the order of positions: one element for each row."""
        counts = self.count.astype(np.int64)
        # Array operations over all runs: with runs of single rows, a Python loop would cost one step for each row.
        inside = np.arange(self.rows, dtype=np.uint64) - np.repeat(np.cumsum(self.count) - self.count, counts)
        values: U64Array = np.repeat(self.first, counts) + inside
        return values

    def at_positions(self, positions: U64Array) -> U64Array:
        """Return the numbers of positions, each of which has to have one, in the order given."""
        # The run with the greatest start at or below the position. Whether the run reaches the position is not checked.
        places = np.searchsorted(self.at, positions, "right") - 1
        values: U64Array = self.first[places] + (positions - self.at[places])
        return values

    def merged(self) -> "RowRuns":
        """Return the same map in as few runs as possible."""
        if len(self) < 2:  # noqa: PLR2004  # one run has no neighbour
            return self
        # Both have to continue: a gap in the positions or a jump in the numbers starts another run.
        ends = self.at[:-1] + self.count[:-1]
        follows = (self.at[1:] == ends) & (self.first[1:] == self.first[:-1] + self.count[:-1])
        starts = np.flatnonzero(np.r_[True, ~follows])
        counts = np.add.reduceat(self.count, starts)
        return RowRuns(self.at[starts], counts, self.first[starts])

    def moved(self, *, at: int = 0, first: int = 0) -> "RowRuns":
        """Return the same runs at greater positions, or with greater numbers."""
        return RowRuns(self.at + np.uint64(at), self.count, self.first + np.uint64(first))

    def packed(self) -> "RowRuns":
        """Return the same numbers in the same order, at positions from 0 on without gaps."""
        return self.packed_positions().merged()

    def packed_positions(self) -> "RowRuns":
        """Return the same numbers at positions from 0 on without gaps, run by run."""
        return RowRuns._following(self.count, self.first)

    def inverse(self) -> "RowRuns":
        """Return the positions by the numbers; no number may occur at two positions."""
        order = np.argsort(self.first, kind="stable")
        return RowRuns(self.first[order], self.count[order], self.at[order])

    def cut(self, other: "RowRuns | VersionRuns") -> "Pieces":
        """Cut the runs where the numbers of one are the positions of the other: pieces in the order of positions."""
        if not len(self) or not len(other.at):
            none = np.empty(0, np.int64)
            return Pieces(at=_NONE, count=_NONE, first=_NONE, run=none, place=none)
        lasts = self.lasts
        # A run overlaps the runs of the other map from the first that ends at or after its start (`low`) to the last
        # that starts at or before its end (`high`). Both are binary searches, because positions of a map ascend. Ends
        # are inclusive, since an exclusive end would not fit into 64 bits after the largest number.
        low = np.searchsorted(other.at + (other.count - _ONE), self.first, "left")
        high = np.searchsorted(other.at, lasts, "right")
        found = np.maximum(high - low, 0)
        runs = np.repeat(np.arange(len(self)), found)
        # One piece for each pair of runs that overlap: counts from 0 within each run, plus its `low`.
        places = np.arange(len(runs)) - np.repeat(np.cumsum(found) - found, found) + np.repeat(low, found)
        first = np.maximum(self.first[runs], other.at[places])
        last = np.minimum(lasts[runs], other.at[places] + (other.count[places] - _ONE))
        at = self.at[runs] + (first - self.first[runs])
        return Pieces(at=at, count=last - first + _ONE, first=first, run=runs, place=places)

    def through(self, other: "RowRuns") -> "RowRuns":
        """Look the numbers up as positions of another map; a number without one is left out.

        This translates ids, looks up rows by their ids, and picks the numbers of some positions
        (`RowRuns.itself(positions).through(runs)`).
        """
        pieces = self.cut(other)
        first = other.first[pieces.place] + (pieces.first - other.at[pieces.place])
        return RowRuns(pieces.at, pieces.count, first)

    def versions(self, other: "VersionRuns") -> "VersionRuns":
        """Look the numbers up as positions of versions; a number without one is left out."""
        pieces = self.cut(other)
        return VersionRuns(pieces.at, pieces.count, other.version[pieces.place])

    def without(self, other: "RowRuns") -> "RowRuns":
        """Return the part of the map whose numbers are not positions of another one."""
        # The complement has about as many runs as the map, so one operation serves both cheaply.
        return self.where_in(other.gaps())

    def restricted(self, positions: BitMap) -> "RowRuns":
        """Return the map for some of its positions only."""
        return RowRuns.itself(positions).through(self)

    def gaps(self) -> "RowRuns":
        """Return the numbers that are not positions of the map, each mapped to itself, except the largest of all."""
        # One gap before each run and one after the last; adjacent runs have an empty one between them.
        first = np.r_[np.uint64(0), self.at + self.count]
        end = np.r_[self.at, np.uint64(_LARGEST)]
        some = end > first
        return RowRuns(first[some], (end - first)[some], first[some])

    def sliced(self, start: int, count: int) -> "RowRuns":
        """Return the part of the map from a position on, which is position 0 of the result."""
        return RowRuns.of([(0, count, start)]).through(self)

    def where_in(self, numbers: "RowRuns") -> "RowRuns":
        """Return the part of the map whose numbers are positions of another one."""
        pieces = self.cut(numbers)
        return RowRuns(pieces.at, pieces.count, pieces.first)

    def repeated(self) -> "RowRuns":
        """Return the numbers that occur at more than one position as a set: each mapped to itself, once."""
        order = np.argsort(self.first, kind="stable")
        first, last = self.first[order], self.lasts[order]
        # With runs sorted by their first number, a run repeats numbers exactly where it starts before the end of an
        # earlier one. That is compared with the largest number so far, not only with that of the run before: a long run
        # may hold several that follow it.
        known = np.maximum.accumulate(last)[:-1]
        again = first[1:] <= known
        starts, ends = first[1:][again], np.minimum(last[1:], known)[again]
        return RowRuns.set_of([RowRuns(starts, ends - starts + _ONE, starts)])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pieces:
    """Parts of runs: position, number of rows and first number of each.

    `run` is the run that each is a part of, `place` the run of the other map that its numbers lie in.
    """

    at: U64Array
    count: U64Array
    first: U64Array
    run: Places
    place: Places


@dataclass(frozen=True, slots=True, eq=False)
class VersionRuns:
    """A version for each position of some ranges: the rows `at` to `at + count - 1` all have `version`."""

    at: U64Array
    count: U64Array
    version: U64Array

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int]]) -> "VersionRuns":
        """Make runs that follow each other from position 0 on, from pairs of number of rows and version."""
        columns = np.array([run for run in runs if run[0]], np.uint64).reshape(-1, 2)
        counts = columns[:, 0]
        return cls(np.cumsum(counts, dtype=np.uint64) - counts, counts, columns[:, 1])

    @classmethod
    def one(cls, rows: int, version: int) -> "VersionRuns":
        """Give the positions from 0 on, of which there is at least one, the same version."""
        return cls(np.zeros(1, np.uint64), np.array([rows], np.uint64), np.array([version], np.uint64))

    @classmethod
    def of_values(cls, versions: U64Array) -> "VersionRuns":
        """Make runs from one version for each position from 0 on."""
        if not len(versions):
            return cls(_NONE, _NONE, _NONE)
        starts = np.flatnonzero(np.r_[True, versions[1:] != versions[:-1]])
        counts = np.diff(np.r_[starts, len(versions)]).astype(np.uint64)
        return cls(starts.astype(np.uint64), counts, versions[starts])

    @classmethod
    def concatenated(cls, parts: Sequence["VersionRuns"]) -> "VersionRuns":
        """Concatenate maps, each of which starts at position 0 and has no gaps."""
        counts = np.concatenate([_NONE, *(part.count for part in parts)])
        versions = np.concatenate([_NONE, *(part.version for part in parts)])
        return cls(np.cumsum(counts, dtype=np.uint64) - counts, counts, versions).merged()

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.at)

    @property
    def rows(self) -> int:
        """The number of positions that have a version."""
        return int(self.count.sum(dtype=np.uint64))

    @property
    def positions(self) -> BitMap:
        """The positions that have a version."""
        return bitmap_of(self.at, self.count)

    def values(self) -> U64Array:
        """Return every version, in the order of positions: one element for each row."""
        return np.repeat(self.version, self.count.astype(np.int64))

    def at_positions(self, positions: U64Array) -> U64Array:
        """Return the versions of positions, each of which has to have one, in the order given."""
        versions: U64Array = self.version[np.searchsorted(self.at, positions, "right") - 1]
        return versions

    def merged(self) -> "VersionRuns":
        """Return the same versions in as few runs as possible; positions have no gaps."""
        if len(self) < 2:  # noqa: PLR2004  # one run has no neighbour
            return self
        starts = np.flatnonzero(np.r_[True, self.version[1:] != self.version[:-1]])
        return VersionRuns(self.at[starts], np.add.reduceat(self.count, starts), self.version[starts])

    def restricted(self, positions: BitMap) -> "VersionRuns":
        """Return the versions of some positions."""
        return RowRuns.itself(positions).versions(self)

    def packed(self) -> "VersionRuns":
        """Return the same versions in the same order, at positions from 0 on without gaps."""
        return VersionRuns(np.cumsum(self.count, dtype=np.uint64) - self.count, self.count, self.version).merged()

    def where(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> BitMap:
        """Return the positions of some of the runs, chosen by a flag for each."""
        return bitmap_of(self.at[chosen], self.count[chosen])

    def with_versions(self, version: U64Array) -> "VersionRuns":
        """Return the same runs with other versions, one for each run."""
        return VersionRuns(self.at, self.count, version)

    def overlaid(self, other: "VersionRuns") -> "VersionRuns":
        """Return the versions of another map where it has one, else those of this map, which has no gaps."""
        if not len(other):
            return self
        if not len(self):
            return self
        # These are all positions at which one of the two maps may change its version, including the ends of the runs of
        # the other map, since there the version of this map applies again.
        points = np.unique(np.concatenate([self.at, other.at, other.at + other.count]))
        # The other map may name positions behind the last row; this map has no version for them.
        points = points[points < np.uint64(self.rows)]
        inside = np.searchsorted(other.at, points, "right") - 1
        # For points before the first run, `inside` is -1, which NumPy reads as the last run; `known` masks them out.
        known = (inside >= 0) & (points < (other.at + other.count)[inside])
        versions = np.where(known, other.version[inside], self.at_positions(points))
        counts = np.diff(np.r_[points, np.uint64(self.rows)]).astype(np.uint64)
        return VersionRuns(points, counts, versions).merged()


def bounds(positions: BitMap) -> tuple[U64Array, U64Array]:
    """Return the first and the last position of each run of a bitmap.

    A position starts a run when the bitmap lacks the position before it, which a shifted copy shows. The cost is that
    of the bitmap's containers; reading its positions would cost one step for each row.
    """
    if not positions:
        return _NONE, _NONE
    # The usual case, all rows of a fragment, takes no copies of the bitmap.
    if positions.max() - positions.min() + 1 == len(positions):
        return np.array([positions.min()], np.uint64), np.array([positions.max()], np.uint64)
    # `shift(1)` contains the successor of each position: what it does not contain has no predecessor.
    starts, ends = positions - positions.shift(1), positions - positions.shift(-1)
    return elements(starts), elements(ends)


def elements(positions: BitMap) -> U64Array:
    """Return the positions of a bitmap, one element for each."""
    return np.frombuffer(positions.to_array(), np.uint32).astype(np.uint64)


def bitmap_of(at: U64Array, count: U64Array) -> BitMap:
    """Return the positions of ranges, given by where each starts and how many it has."""
    found = BitMap()
    if len(at) <= 1:
        for start, size in zip(at.tolist(), count.tolist(), strict=True):
            if size >= _LONG_RANGE:
                # Constructing a bitmap from a long range takes a sixteenth of the time of adding the range to one.
                return BitMap(range(start, start + size))
            # A merge of updates calls this for one row of each of thousands of fragments, so arrays would not pay.
            found.add_range(start, start + size)
        return found
    long = count >= _FEW_RANGES
    for start, size in zip(at[long].tolist(), count[long].tolist(), strict=True):
        found.add_range(start, start + size)
    # Short runs are expanded together: a call for each would cost more than the rows it adds.
    short = ~long
    if short.any():
        rows = RowRuns(at[short], count[short], at[short]).values()
        found.update(array("I", rows.astype(np.uint32).tobytes()))
    return found
