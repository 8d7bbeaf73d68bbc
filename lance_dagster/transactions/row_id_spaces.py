"""Which row is which across branches: every branch hands out row ids of its own once it is forked.

A row was put in once, on one branch, under one id; that pair is what it is. Ids below the one that was next when a
branch was forked are the parent's. A merge gives the rows it brings ids of the dest, and writes down, for the branch
each of them is from, which ids became which (`encode_aliases`). So the ids of a version are a few stretches, each a
shifted copy of a stretch of some branch, and two versions know each other's rows by where these stretches are from.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lance_dagster.format.row_runs import RowRuns, U64Array, elements

NO_FIELD = 2**31 - 1
"""Stands for the id of a field that was merged away: no field has it."""
_ALIAS = re.compile(r"([0-9]{1,20})-([0-9]{1,20})=([0-9]{1,20})")
_FIELD = re.compile(r"f([0-9]{1,10})=([0-9]{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """The rows `first` to `end - 1` of a branch have here the ids from `here` on."""

    first: int
    end: int
    here: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Ids `start` to `end - 1` of a version: rows that the branch with the id `origin` put in, as `first` and so on."""

    start: int
    end: int
    origin: str
    first: int


@dataclass(frozen=True, slots=True)
class RowSpace:
    """Where every row id of a version comes from: pieces in order, without gaps, from 0 to the next free id."""

    pieces: tuple[Piece, ...]

    @property
    def end(self) -> int:
        """The next free id."""
        return self.pieces[-1].end if self.pieces else 0

    @classmethod
    def of(
        cls, lines: Sequence[tuple[str, int]], next_row_id: int, aliases: Mapping[str, Iterable[Alias]]
    ) -> "RowSpace":
        """Put together the ids of a version.

        Args:
            lines: The branches the version lies on, from main up to its own: the id of each, and the next row id at
                the version it was forked at; 0 for main.
            next_row_id: The next free id of the version.
            aliases: By branch id, the rows that merges brought.
        """
        ends = [*(start for _, start in lines[1:]), next_row_id]
        own = [
            Piece(start=start, end=end, origin=origin, first=start)
            for (origin, start), end in zip(lines, ends, strict=True)
            if start < end
        ]
        brought = sorted(
            (
                Piece(start=alias.here, end=alias.here + alias.end - alias.first, origin=origin, first=alias.first)
                for origin, found in aliases.items()
                for alias in found
            ),
            key=lambda piece: piece.start,
        )
        return cls(tuple(_overlaid(own, brought)))

    def translation(self, other: "RowSpace") -> "Translation":
        """Return what the ids of this version are in another one."""
        known: dict[str, list[Piece]] = {}
        for piece in other.pieces:
            known.setdefault(piece.origin, []).append(piece)
        stretches: list[tuple[int, int, int]] = []
        for piece in self.pieces:
            for there in known.get(piece.origin, ()):
                first = max(piece.first, there.first)
                end = min(piece.first + piece.end - piece.start, there.first + there.end - there.start)
                if first < end:
                    start = piece.start + first - piece.first
                    stretches.append((start, start + end - first, there.start + first - there.first))
        return Translation(tuple(sorted(stretches)))

    def brought_to(self, other: "RowSpace") -> "tuple[RowSpace, dict[str, list[Alias]]]":
        """Give the rows the other version does not know ids there.

        Returns:
            The ids of the other version after that, and the aliases that say it, by branch id.
        """
        pieces, end = list(other.pieces), other.end
        aliases: dict[str, list[Alias]] = {}
        for first, last in _gaps(self.translation(other), self.end):
            for piece in self.pieces:
                start, stop = max(first, piece.start), min(last, piece.end)
                if start >= stop:
                    continue
                origin = piece.first + start - piece.start
                pieces.append(Piece(start=end, end=end + stop - start, origin=piece.origin, first=origin))
                aliases.setdefault(piece.origin, []).append(Alias(first=origin, end=origin + stop - start, here=end))
                end += stop - start
        return RowSpace(tuple(pieces)), aliases


@dataclass(frozen=True)
class Translation:
    """What ids of one version are in another: stretches of start, end and the start there, in order."""

    stretches: tuple[tuple[int, int, int], ...]

    @property
    def end(self) -> int:
        """The first id from which on none is known."""
        return max((end for _, end, _ in self.stretches), default=0)

    @property
    def back(self) -> "Translation":
        """The other way round."""
        return Translation(tuple(sorted((there, there + end - start, start) for start, end, there in self.stretches)))

    def beyond(self, other: "Translation") -> "Translation":
        """Return what this one knows of ids that another one, from the same version, does not know."""
        left: list[tuple[int, int, int]] = []
        for start, end, there in self.stretches:
            at = start
            for first, last, _ in other.stretches:
                if at < first < end:
                    left.append((at, first, there + at - start))
                if first < end and last > at:
                    at = max(at, last)
            if at < end:
                left.append((at, end, there + at - start))
        return Translation(tuple(left))

    def shifted(self, by: int) -> "Translation":
        """Return a translation to ids that are greater by a number."""
        return Translation(tuple((start, end, there + by) for start, end, there in self.stretches))

    @cached_property
    def runs(self) -> RowRuns:
        """The translation as a map to look ids up in: `ids.through(translation.runs)`.

        Where two stretches know an id, the one that starts first counts. Both mean the same row.
        """
        return RowRuns.first_of(RowRuns.of([(start, end - start, there) for start, end, there in self.stretches]))

    def of_range(self, first: int, count: int) -> int | None:
        """Return what the first of some ids that follow each other is; None unless one stretch has all of them."""
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
        """Translate ids; returns those of the other version, and for which of them there is one."""
        translated = np.zeros_like(ids)
        known = np.zeros(len(ids), np.bool_)
        found = RowRuns.of_values(ids).through(self.runs)
        places = elements(found.positions)
        translated[places], known[places] = found.values(), True
        return translated, known


def encode_aliases(aliases: Iterable[Alias]) -> str:
    """Write aliases as they stand in a record of a merge, neighbours joined."""
    joined: list[Alias] = []
    for alias in sorted(aliases, key=lambda alias: alias.first):
        last = joined[-1] if joined else None
        if last is not None and last.end == alias.first and last.here + last.end - last.first == alias.here:
            joined[-1] = Alias(first=last.first, end=alias.end, here=last.here)
        else:
            joined.append(alias)
    return " ".join(f"{alias.first}-{alias.end}={alias.here}" for alias in joined)


def decode_aliases(text: str) -> list[Alias]:
    """Read aliases; what is no alias is left out."""
    found = [_ALIAS.fullmatch(part) for part in text.split()]
    return [Alias(first=int(m[1]), end=int(m[2]), here=int(m[3])) for m in found if m and int(m[1]) < int(m[2])]


def encode_fields(fields: Mapping[int, int]) -> str:
    """Write which fields of a branch have other ids where it was merged, as it stands in a record."""
    return " ".join(f"f{own}={here}" for own, here in sorted(fields.items()) if own != here)


def decode_fields(text: str) -> dict[int, int]:
    """Read which fields of a branch have other ids; what says nothing of the kind is left out."""
    found = [_FIELD.fullmatch(part) for part in text.split()]
    return {int(m[1]): int(m[2]) for m in found if m}


def _overlaid(own: Iterable[Piece], brought: Sequence[Piece]) -> Iterable[Piece]:
    """Put the pieces that merges brought in the place of ids that the branch counts as its own."""
    for piece in own:
        at = piece.start
        for over in brought:
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
