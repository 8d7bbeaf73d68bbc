"""Identify rows across branches: after a fork, both branches assign the same row ids to different rows.

A row is identified by the branch that inserted it and the id it got there (its origin). Ids below the next row id of
the fork point are the parent's. A merge assigns ids of the dest to the source rows it adds, and records, for the branch
of origin, which ids became which (`encode_aliases`). So the ids of a version are a few ranges, each a shifted copy of a
range of some branch, and the ids of two versions are translated by comparing the origins of these ranges.

The record of an origin is dropped some time after its branch was deleted, and another branch may keep it. So every
branch that a row came through gave it a name as well: the branch, and the id the row has there. A merge records all
names of a row, and rows are recognised by any of them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from lance_dagster.format.row_runs import RowRuns, U64Array, elements

NO_FIELD = 2**31 - 1
"""The id recorded for a field of the branch that the merge result lacks: no field has it."""
_ALIAS = re.compile(r"([0-9]{1,20})-([0-9]{1,20})=([0-9]{1,20})")
_FIELD = re.compile(r"f([0-9]{1,10})=([0-9]{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """The rows `first` to `end - 1` of a branch have the ids from `here` on in the merged version."""

    first: int
    end: int
    here: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Ids `start` to `end - 1` of a version: rows that branch `origin` (an id) inserted with ids from `first` on."""

    start: int
    end: int
    origin: str
    first: int

    @property
    def alias(self) -> Alias:
        """The ids of the branch, for the record of a merge."""
        return Alias(first=self.first, end=self.first + self.end - self.start, here=self.start)

    def is_within(self, other: "Piece") -> bool:
        """Tell whether another piece says the same of these ids."""
        same = (self.origin, self.first - self.start) == (other.origin, other.first - other.start)
        return same and other.start <= self.start and self.end <= other.end


@dataclass(frozen=True, slots=True)
class RowSpace:
    """The origin of every row id of a version: pieces in order, without gaps, from 0 to the next free id.

    `names` has every name of these ids: their origin, and the id that each branch on the way from there gave the row.
    """

    pieces: tuple[Piece, ...]
    names: tuple[Piece, ...] = ()

    @property
    def end(self) -> int:
        """The next free id."""
        return self.pieces[-1].end if self.pieces else 0

    @classmethod
    def of(
        cls, lines: Sequence[tuple[str, int]], next_row_id: int, aliases: Mapping[str, Iterable[Alias]]
    ) -> "RowSpace":
        """Return the row ids of a version with their origins.

        Args:
            lines: The branches the version lies on, from main up to its own: the id of each, and the next row id at
                the version it was forked at; 0 for main.
            next_row_id: The next free id of the version.
            aliases: By branch id, the rows of that branch that merges added.
        """
        # Each branch inserted rows until the next one was forked from it; its later rows are not in this version.
        ends = [*(start for _, start in lines[1:]), next_row_id]
        own = [
            Piece(start=start, end=end, origin=origin, first=start)
            for (origin, start), end in zip(lines, ends, strict=True)
            # A branch that was forked again before it inserted a row has no ids of its own.
            if start < end
        ]
        merged = sorted(
            (
                Piece(start=alias.here, end=alias.here + alias.end - alias.first, origin=origin, first=alias.first)
                for origin, found in aliases.items()
                for alias in found
            ),
            key=lambda piece: piece.start,
        )
        return cls(tuple(_overlaid(own, merged)), (*own, *merged))

    def translation(self, other: "RowSpace") -> "Translation":
        """Return a translation of the row ids of this version to those of another one."""
        found = _in_both(self.pieces, other.pieces)
        # Another name decides only for rows whose origins tell nothing: after a restore, a row that was merged once
        # more has a second id, and the name on the branch itself still means the first one.
        return found.joined(_in_both(self.names, other.names).beyond(found))

    def assigned_ids_of(
        self, other: "RowSpace", again: "Translation | None" = None
    ) -> "tuple[RowSpace, dict[str, list[Alias]]]":
        """Assign ids of another version to the rows of this one that it does not have.

        Args:
            other: The ids of the other version.
            again: Rows that come back to it under the ids that it has for them. It may know them by fewer names, since
                a reset or a restore drops the records of merges.

        Returns:
            The ids of the other version with these rows, and the aliases to record, by branch id.
        """
        pieces, names, end = list(other.pieces), list(other.names), other.end
        aliases: dict[str, list[Alias]] = {}
        # Only rows without an id in the other version get one: a second merge of the same rows must not assign ids
        # again.
        for first, last in _gaps(self.translation(other), self.end):
            # The rows keep their first origins, even when a merge added them to this version: after merges along
            # different paths, a row still has the same origin.
            pieces += _moved(self.pieces, first, last, end)
            new = _moved(self.names, first, last, end)
            names += new
            for piece in new:
                aliases.setdefault(piece.origin, []).append(piece.alias)
            end += last - first
        for first, last, there in again.stretches if again is not None else ():
            for piece in _moved(self.names, first, last, there):
                if not any(piece.is_within(name) for name in names):
                    names.append(piece)
                    aliases.setdefault(piece.origin, []).append(piece.alias)
        return RowSpace(tuple(pieces), tuple(names)), aliases


@dataclass(frozen=True)
class Translation:
    """A map from ids of one version to ids of another: ranges (start, end, start in the other version), sorted."""

    stretches: tuple[tuple[int, int, int], ...]

    @classmethod
    def of_runs(cls, runs: RowRuns) -> "Translation":
        """Return the translation of each position of a map to its number."""
        ranges = zip(runs.at.tolist(), runs.count.tolist(), runs.first.tolist(), strict=True)
        return cls(tuple((at, at + count, first) for at, count, first in ranges))

    @property
    def end(self) -> int:
        """The end of the last range: no id from there on is translated."""
        return max((end for _, end, _ in self.stretches), default=0)

    @property
    def back(self) -> "Translation":
        """The translation in the opposite direction."""
        return Translation(tuple(sorted((there, there + end - start, start) for start, end, there in self.stretches)))

    def joined(self, other: "Translation") -> "Translation":
        """Return a translation of the ids of both, which have none in common."""
        return Translation(tuple(sorted((*self.stretches, *other.stretches)))) if other.stretches else self

    def beyond(self, other: "Translation") -> "Translation":
        """Return the part of this translation whose ids another translation, from the same version, does not have."""
        taken = _covered(other.stretches)
        ends = [last for _, last in taken]
        left: list[tuple[int, int, int]] = []
        for start, end, there in self.stretches:
            at = start
            for first, last in islice(taken, bisect_right(ends, start), None):
                if first >= end:
                    break
                if at < first:
                    left.append((at, first, there + at - start))
                at = last
            if at < end:
                left.append((at, end, there + at - start))
        return Translation(tuple(left))

    @cached_property
    def runs(self) -> RowRuns:
        """The translation as a map to look ids up in: `ids.through(translation.runs)`.

        Where two ranges contain an id, the one that starts first counts. Both mean the same row.
        """
        return RowRuns.first_of(RowRuns.of([(start, end - start, there) for start, end, there in self.stretches]))

    def of_range(self, first: int, count: int) -> int | None:
        """Return the translation of the first of some consecutive ids; None unless one range contains all of them."""
        # Most fragments were written at once, so one look-up translates all of their ids.
        starts, ends, there = self._bounds
        place = bisect_right(starts, first) - 1
        if place < 0 or first + count > ends[place]:
            return None
        return there[place] + first - starts[place]

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int], list[int]]:
        """Starts, ends and the starts there of `runs`: looking one id up in a list beats a search in an array."""
        runs = self.runs
        return runs.at.tolist(), (runs.at + runs.count).tolist(), runs.first.tolist()

    def apply(self, ids: U64Array) -> "tuple[U64Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]":
        """Translate ids; return the ids of the other version, and a mask of those that could be translated."""
        translated = np.zeros_like(ids)
        known = np.zeros(len(ids), np.bool_)
        # As runs, because ids of neighbouring rows mostly follow each other.
        found = RowRuns.of_values(ids).through(self.runs)
        places = elements(found.positions)
        translated[places], known[places] = found.values(), True
        return translated, known


def encode_aliases(aliases: Iterable[Alias]) -> str:
    """Encode aliases for the record of a merge; adjacent ones become one."""
    joined: list[Alias] = []
    # The record is kept in every later version, so it is made as short as possible.
    for alias in sorted(aliases, key=lambda alias: alias.first):
        last = joined[-1] if joined else None
        if last is not None and last.end == alias.first and last.here + last.end - last.first == alias.here:
            joined[-1] = Alias(first=last.first, end=alias.end, here=last.here)
        else:
            joined.append(alias)
    return " ".join(f"{alias.first}-{alias.end}={alias.here}" for alias in joined)


def decode_aliases(text: str) -> list[Alias]:
    """Decode aliases; parts that are not aliases are skipped."""
    # Any program can change table metadata, and the record has entries of fields too. An entry that is left out makes
    # its rows count as unknown to the other branch.
    found = [_ALIAS.fullmatch(part) for part in text.split()]
    return [Alias(first=int(m[1]), end=int(m[2]), here=int(m[3])) for m in found if m and int(m[1]) < int(m[2])]


def encode_fields(fields: Mapping[int, int]) -> str:
    """Encode the fields of a branch that have other ids where it was merged, for the record of the merge."""
    return " ".join(f"f{own}={here}" for own, here in sorted(fields.items()) if own != here)


def decode_fields(text: str) -> dict[int, int]:
    """Decode the fields of a branch that have other ids; other parts are skipped."""
    found = [_FIELD.fullmatch(part) for part in text.split()]
    return {int(m[1]): int(m[2]) for m in found if m}


def _in_both(own: Iterable[Piece], other: Iterable[Piece]) -> Translation:
    """Translate ids by comparing pieces: an equal id of two origins is two different rows."""
    known: dict[str, list[Piece]] = {}
    for piece in other:
        known.setdefault(piece.origin, []).append(piece)
    stretches: set[tuple[int, int, int]] = set()
    for piece in own:
        for there in known.get(piece.origin, ()):
            first = max(piece.first, there.first)
            end = min(piece.first + piece.end - piece.start, there.first + there.end - there.start)
            if first < end:
                # The overlap is computed in ids of the origin, and both sides shift it to their own ids.
                start = piece.start + first - piece.first
                stretches.add((start, start + end - first, there.start + first - there.first))
    return Translation(tuple(sorted(stretches)))


def _covered(stretches: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return the ids that sorted stretches contain, as disjoint ranges."""
    found: list[tuple[int, int]] = []
    for start, end, _ in stretches:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _moved(pieces: Iterable[Piece], first: int, last: int, to: int) -> list[Piece]:
    """Return the parts of pieces whose ids are in a range, with the ids from `to` on."""
    parts = ((max(first, piece.start), min(last, piece.end), piece) for piece in pieces)
    return [
        Piece(
            start=to + start - first,
            end=to + stop - first,
            origin=piece.origin,
            first=piece.first + start - piece.start,
        )
        for start, stop, piece in parts
        if start < stop
    ]


def _overlaid(own: Iterable[Piece], merged: Sequence[Piece]) -> Iterable[Piece]:
    """Replace ids that the branch assigned to rows of merges by the pieces of these rows."""
    # A merge takes ids from the counter of the dest, so its rows lie inside the range of ids that the dest inserted.
    for piece in own:
        at = piece.start
        for over in merged:
            start, end = max(at, over.start), min(piece.end, over.end)
            if start >= end:
                continue
            if at < start:
                yield Piece(start=at, end=start, origin=piece.origin, first=at)
            yield Piece(start=start, end=end, origin=over.origin, first=over.first + start - over.start)
            at = end
        if at < piece.end:
            yield Piece(start=at, end=piece.end, origin=piece.origin, first=at)


def _gaps(translation: Translation, end: int) -> Iterable[tuple[int, int]]:
    at = 0
    for start, stop, _ in translation.stretches:
        if at < start:
            yield at, start
        at = max(at, stop)
    if at < end:
        yield at, end
