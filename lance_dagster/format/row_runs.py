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
"""The number of rows from which adding a run to a bitmap as a range is faster than adding its rows one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """A map from positions to numbers, in runs: the positions `at` to `at + count - 1` have `first`, `first + 1`, ...

    The three arrays have an element for each run. `at` [0, 10], `count` [3, 2] and `first` [100, 7] map 0, 1, 2 to 100,
    101, 102, and 10, 11 to 7, 8; the positions 3 to 9 have no number. Positions ascend and no position is in two runs;
    the numbers may be in any order.
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
        """Make runs that follow each other from position 0 on, from pairs of first number and number of rows.

        [(100, 3), (7, 2)] maps the positions 0 to 4 to 100, 101, 102, 7, 8.
        """
        columns = np.array([pair for pair in ranges if pair[1]], np.uint64).reshape(-1, 2)
        return cls._following(columns[:, 1], columns[:, 0])

    @classmethod
    def of_values(cls, values: U64Array) -> "RowRuns":
        """Make runs from the numbers of the positions 0, 1, 2, ..."""
        if not len(values):
            return cls(_NONE, _NONE, _NONE)
        # After the largest number, adding one gives 0, which does not follow it.
        starts = np.flatnonzero(np.r_[True, (values[1:] != values[:-1] + _ONE) | (values[1:] == 0)])
        counts = np.diff(np.r_[starts, len(values)]).astype(np.uint64)
        return cls(starts.astype(np.uint64), counts, values[starts])

    @classmethod
    def itself(cls, positions: BitMap) -> "RowRuns":
        """Map each of some positions to itself."""
        first, lasts = bounds(positions)
        return cls(first, lasts - first + _ONE, first)

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
        """Return the set of the numbers of some maps, as a map of each number to itself.

        Numbers 1 to 5 in a map and 4 to 8 in another map give the run 1 to 8.
        """
        together = cls.concatenated(parts)
        if not len(together):
            return together
        # A run may overlap an earlier run or lie inside it, so the end of a run is the largest last number so far.
        order = np.argsort(together.first, kind="stable")
        first, lasts = together.first[order], np.maximum.accumulate(together.lasts[order])
        # First numbers are compared with the last number so far. The number after that would wrap around to 0 after the
        # largest number. So adjacent runs stay apart, which is the same set.
        starts = np.flatnonzero(np.r_[True, first[1:] > lasts[:-1]])
        first, lasts = first[starts], lasts[np.r_[starts[1:] - 1, len(lasts) - 1]]
        return cls(first, lasts - first + _ONE, first)

    @classmethod
    def first_of(cls, pieces: "RowRuns") -> "RowRuns":
        """Return a map from runs whose positions may overlap: of the numbers of a position, the first run's counts.

        Runs are taken in the order of their positions, and at equal positions in the order given. A run at 0 to 5 and a
        run at 4 to 9 give the first run and, at 6 to 9, the rest of the second run.
        """
        order = np.argsort(pieces.at, kind="stable")
        at, count, first = pieces.at[order], pieces.count[order], pieces.first[order]
        lasts = at + (count - _ONE)
        # A run loses the positions at its front that earlier runs cover. If it lies inside an earlier run, it loses
        # all.
        covered: U64Array = np.r_[np.uint64(0), (np.maximum.accumulate(lasts) + _ONE)[:-1]] if len(at) else at
        start: U64Array = np.maximum(at, covered)
        remaining = lasts >= start
        # `first` goes up by as many rows as are cut off, so that the remaining positions keep their numbers.
        skipped: U64Array = start - at
        return cls(start[remaining], (lasts - start + _ONE)[remaining], (first + skipped)[remaining])

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
        """The last number of each run; inclusive, since an end after the largest number would not fit into 64 bits."""
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
        """Return every number in the order of positions, an element for each row."""
        counts = self.count.astype(np.int64)
        # Array operations over all runs: with runs of single rows, a Python loop would cost one step for each row.
        inside = np.arange(self.rows, dtype=np.uint64) - np.repeat(np.cumsum(self.count) - self.count, counts)
        values: U64Array = np.repeat(self.first, counts) + inside
        return values

    def at_positions(self, positions: U64Array) -> U64Array:
        """Return the numbers of positions in the order given. Each position must have a number; this is not checked."""
        # The run with the greatest start at or below the position.
        places = np.searchsorted(self.at, positions, "right") - 1
        values: U64Array = self.first[places] + (positions - self.at[places])
        return values

    def merged(self) -> "RowRuns":
        """Return the same map in as few runs as possible."""
        if len(self) < 2:  # noqa: PLR2004  # one run has no neighbour
            return self
        # Positions and numbers have to continue: a gap in the positions or a jump in the numbers starts another run.
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

    def cut(self, target: "RowRuns | VersionRuns") -> "Pieces":
        """Cut this map into pieces at the runs of `target` in whose positions the numbers of this map lie.

        Numbers that are no position of `target` are left out. Example: this map has the run 0 to 4 -> 100 to 104, and
        `target` has runs at the positions 90 to 101 and 103 to 110. The pieces are 0 to 1 -> 100 to 101 in the first
        run of `target`, and 3 to 4 -> 103 to 104 in the second run.

        Returns:
            The pieces, in the order of the positions of this map.
        """
        if not len(self) or not len(target.at):
            none = np.empty(0, np.int64)
            return Pieces(at=_NONE, count=_NONE, first=_NONE, run=none, place=none)
        lasts = self.lasts
        # A run of this map overlaps the runs of `target` from the first run that ends at or after its first number
        # (`low`) to the last run that starts at or before its last number (`high`). Binary search finds both, because
        # the positions of a map ascend. Ends are inclusive, since an exclusive end would not fit into 64 bits after the
        # largest number.
        low = np.searchsorted(target.at + (target.count - _ONE), self.first, "left")
        high = np.searchsorted(target.at, lasts, "right")
        overlaps = np.maximum(high - low, 0)
        runs = np.repeat(np.arange(len(self)), overlaps)
        # A piece for each pair of overlapping runs: `low`, `low + 1`, ... for each run of this map.
        places = np.arange(len(runs)) - np.repeat(np.cumsum(overlaps) - overlaps, overlaps) + np.repeat(low, overlaps)
        first = np.maximum(self.first[runs], target.at[places])
        ends = np.minimum(lasts[runs], target.at[places] + (target.count[places] - _ONE))
        at = self.at[runs] + (first - self.first[runs])
        return Pieces(at=at, count=ends - first + _ONE, first=first, run=runs, place=places)

    def through(self, target: "RowRuns") -> "RowRuns":
        """Look the numbers of this map up as positions of `target`; a number that is no position there is left out.

        5 -> 100 through 100 -> 7 is 5 -> 7. This translates ids, looks up rows by their ids, and picks the numbers of
        some positions (`RowRuns.itself(positions).through(runs)`).
        """
        pieces = self.cut(target)
        first = target.first[pieces.place] + (pieces.first - target.at[pieces.place])
        return RowRuns(pieces.at, pieces.count, first)

    def versions(self, versions: "VersionRuns") -> "VersionRuns":
        """Look the numbers of this map up as positions of `versions`; a number without a version is left out."""
        pieces = self.cut(versions)
        return VersionRuns(pieces.at, pieces.count, versions.version[pieces.place])

    def without(self, excluded: "RowRuns") -> "RowRuns":
        """Return the part of this map whose numbers are not positions of `excluded`."""
        # The complement of a map has about as many runs as the map, so this is as cheap as `where_in`.
        return self.where_in(excluded.gaps())

    def restricted(self, positions: BitMap) -> "RowRuns":
        """Return the map for some of its positions only."""
        return RowRuns.itself(positions).through(self)

    def gaps(self) -> "RowRuns":
        """Return the numbers that are not positions of the map, each mapped to itself, except the largest of all."""
        # A gap before each run and a gap after the last run; the gap between adjacent runs is empty.
        first = np.r_[np.uint64(0), self.at + self.count]
        end = np.r_[self.at, np.uint64(_LARGEST)]
        nonempty = end > first
        return RowRuns(first[nonempty], (end - first)[nonempty], first[nonempty])

    def sliced(self, start: int, count: int) -> "RowRuns":
        """Return the part of the map from a position on, which is position 0 of the result."""
        return RowRuns.of([(0, count, start)]).through(self)

    def where_in(self, numbers: "RowRuns") -> "RowRuns":
        """Return the part of this map whose numbers are positions of `numbers`."""
        pieces = self.cut(numbers)
        return RowRuns(pieces.at, pieces.count, pieces.first)

    def repeated(self) -> "RowRuns":
        """Return the set of the numbers that occur at more than one position, as a map of each number to itself."""
        order = np.argsort(self.first, kind="stable")
        first, lasts = self.first[order], self.lasts[order]
        # The runs are sorted by their first number, so a run repeats numbers exactly if it starts before the end of an
        # earlier run. `reach` is the largest number of all earlier runs, not of the run before alone: a long run may
        # contain several runs that follow it.
        reach = np.maximum.accumulate(lasts)[:-1]
        again = first[1:] <= reach
        starts, ends = first[1:][again], np.minimum(lasts[1:], reach)[again]
        return RowRuns.set_of([RowRuns(starts, ends - starts + _ONE, starts)])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pieces:
    """The pieces into which `RowRuns.cut` cuts a map: the position, the number of rows and the first number of each.

    `run` is the index of the run that a piece is part of, `place` the index of the target's run that its numbers lie
        in.
    """

    at: U64Array
    count: U64Array
    first: U64Array
    run: Places
    place: Places


@dataclass(frozen=True, slots=True, eq=False)
class VersionRuns:
    """A map from positions to versions, in runs: the positions `at` to `at + count - 1` all have `version`."""

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
        """Give the positions 0 to `rows - 1` the same version; `rows` is at least 1."""
        return cls(np.zeros(1, np.uint64), np.array([rows], np.uint64), np.array([version], np.uint64))

    @classmethod
    def of_values(cls, versions: U64Array) -> "VersionRuns":
        """Make runs from the versions of the positions 0, 1, 2, ..."""
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
        """Return every version in the order of positions, an element for each row."""
        return np.repeat(self.version, self.count.astype(np.int64))

    def at_positions(self, positions: U64Array) -> U64Array:
        """Return the versions of positions, in the order given. Every position must have a version."""
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
        """Return the positions of the chosen runs; `chosen` has a flag for each run."""
        return bitmap_of(self.at[chosen], self.count[chosen])

    def with_versions(self, version: U64Array) -> "VersionRuns":
        """Return the same runs with new versions; `version` has an element for each run."""
        return VersionRuns(self.at, self.count, version)

    def overlaid(self, overlay: "VersionRuns") -> "VersionRuns":
        """Return the versions of `overlay` where it has a version, else the versions of this map, which has no gaps."""
        if not len(overlay):
            return self
        if not len(self):
            return self
        # All positions at which the version may change: the starts of the runs of both maps, and the ends of the runs
        # of `overlay`, where the version of this map applies again.
        points = np.unique(np.concatenate([self.at, overlay.at, overlay.at + overlay.count]))
        # `overlay` may have positions behind the last row; this map has no version for them.
        points = points[points < np.uint64(self.rows)]
        inside = np.searchsorted(overlay.at, points, "right") - 1
        # For points before the first run, `inside` is -1, which NumPy reads as the last run; `known` masks them out.
        covered = (inside >= 0) & (points < (overlay.at + overlay.count)[inside])
        versions = np.where(covered, overlay.version[inside], self.at_positions(points))
        counts = np.diff(np.r_[points, np.uint64(self.rows)]).astype(np.uint64)
        return VersionRuns(points, counts, versions).merged()


def bounds(positions: BitMap) -> tuple[U64Array, U64Array]:
    """Return the first and the last position of each run of a bitmap.

    {3, 4, 5, 9} gives [3, 9] and [5, 9]. A position starts a run when the bitmap lacks the position before it, which a
    shifted copy shows. This costs a step for each container of the bitmap, and not for each row.
    """
    if not positions:
        return _NONE, _NONE
    # The usual case, all rows of a fragment, takes no copies of the bitmap.
    if positions.max() - positions.min() + 1 == len(positions):
        return np.array([positions.min()], np.uint64), np.array([positions.max()], np.uint64)
    # `shift(1)` contains the successor of each position: a position that it lacks has no predecessor in the bitmap.
    starts, ends = positions - positions.shift(1), positions - positions.shift(-1)
    return elements(starts), elements(ends)


def elements(positions: BitMap) -> U64Array:
    """Return the positions of a bitmap as an array."""
    return np.frombuffer(positions.to_array(), np.uint32).astype(np.uint64)


def bitmap_of(at: U64Array, count: U64Array) -> BitMap:
    """Return the positions of ranges, given by the start and the number of positions of each range."""
    positions = BitMap()
    if len(at) <= 1:
        for start, size in zip(at.tolist(), count.tolist(), strict=True):
            if size >= _LONG_RANGE:
                # Constructing a bitmap from a long range takes a sixteenth of the time of adding the range to a bitmap.
                return BitMap(range(start, start + size))
            # A merge of updates calls this for one row of each of thousands of fragments, so arrays would not pay.
            positions.add_range(start, start + size)
        return positions
    long = count >= _FEW_RANGES
    for start, size in zip(at[long].tolist(), count[long].tolist(), strict=True):
        positions.add_range(start, start + size)
    # Short runs are expanded together: a call for each would cost more than the rows it adds.
    short = ~long
    if short.any():
        rows = RowRuns(at[short], count[short], at[short]).values()
        positions.update(array("I", rows.astype(np.uint32).tobytes()))
    return positions
