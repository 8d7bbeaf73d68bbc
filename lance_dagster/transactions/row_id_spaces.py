"""Identify rows across branches: after a fork, both branches assign the same row ids to different rows.

A row is identified by the branch that inserted it and the id it got there (its origin). Ids below the next row id of
the fork point are the parent's. A merge assigns ids of the dest to the source rows it adds, and records, for the branch
of origin, which ids became which (`encode_aliases`). So the ids of a version are a few ranges, each a shifted copy of a
range of some branch, and the ids of two versions are translated by comparing the origins of these ranges.

The record of an origin is dropped some time after its branch was deleted, and another branch may keep it. So every
branch that a row came through gave it a name as well: the branch, and the id the row has there. A merge records all
names of a row, and which of them is its origin; rows are recognised by the origin first, and then by any name.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from lance_dagster.format.row_runs import RowRuns, U64Array, elements

NO_FIELD = 2**31 - 1
"""The id recorded for a field of the branch that the merge result lacks: no field has it."""
_ALIAS = re.compile(r"([0-9]{1,20})-([0-9]{1,20})([=~])([0-9]{1,20})")
_ORIGIN, _THROUGH = "=", "~"
_FIELD = re.compile(r"f([0-9]{1,10})=([0-9]{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """The rows `first` to `end - 1` of a branch have the ids from `here` on in the merged version.

    `through` says that the rows only came through the branch: another branch inserted them.
    """

    first: int
    end: int
    here: int
    through: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Ids `start` to `end - 1` of a version: rows that branch `origin` (an id) inserted with ids from `first` on."""

    start: int
    end: int
    origin: str
    first: int

    def is_within(self, piece: "Piece") -> bool:
        """Tell whether `piece` gives all ids of this piece the same origin."""
        same = (self.origin, self.first - self.start) == (piece.origin, piece.first - piece.start)
        return same and piece.start <= self.start and self.end <= piece.end


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
            lines: The branches the version lies on, from main up to its own: the id of each branch, and the next row id
                at its fork point; 0 for main. [("main", 0), ("4f2a", 100)] says that a branch was forked when main had
                assigned the ids 0 to 99.
            next_row_id: The next free id of the version.
            aliases: By branch id, the rows of that branch that merges added.
        """
        # Each branch inserted rows until the next branch was forked from it; its later rows are not in this version.
        ends = [*(start for _, start in lines[1:]), next_row_id]
        own = [
            Piece(start=start, end=end, origin=origin, first=start)
            for (origin, start), end in zip(lines, ends, strict=True)
            # A branch that was forked again before it inserted a row has no ids of its own.
            if start < end
        ]
        merged = sorted(
            (
                (
                    alias.here,
                    alias.through,
                    Piece(start=alias.here, end=alias.here + alias.end - alias.first, origin=origin, first=alias.first),
                )
                for origin, branch_aliases in aliases.items()
                for alias in branch_aliases
            ),
            key=lambda entry: entry[:2],
        )
        origins = [piece for _, through, piece in merged if not through]
        return cls(tuple(_overlaid(own, origins)), (*own, *(piece for *_, piece in merged)))

    def translation(self, target: "RowSpace") -> "Translation":
        """Return a translation of the row ids of this version to the row ids of `target`."""
        by_origin = _in_both(self.pieces, target.pieces)
        # Another name decides only for rows whose origins tell nothing: after a restore, a row that was merged once
        # more has a second id, and the name on the branch itself still means the first id.
        return by_origin.joined(_in_both(self.names, target.names).beyond(by_origin))

    def assigned_ids_of(
        self, target: "RowSpace", again: "Translation | None" = None
    ) -> "tuple[RowSpace, dict[str, list[Alias]]]":
        """Assign ids of `target` to the rows of this version that `target` does not have.

        Args:
            target: The row ids of the version that gets the rows.
            again: Rows that come back to `target` under the ids that it has for them. It may know them by fewer names,
                since a reset or a restore drops the records of merges.

        Returns:
            The ids of `target` with these rows, and the aliases to record, by branch id.
        """
        pieces, names, end = list(target.pieces), list(target.names), target.end
        aliases: dict[str, list[Alias]] = {}
        # Only rows without an id in `target` get an id: a second merge of the same rows must not assign ids again.
        for first, stop in _gaps(self.translation(target), self.end):
            # The rows keep their first origins, even when a merge added them to this version: after merges along
            # different paths, a row still has the same origin.
            own, new = (_moved(ids, first, stop, end) for ids in (self.pieces, self.names))
            pieces += own
            names += new
            for origin, alias in _aliases(new, own):
                aliases.setdefault(origin, []).append(alias)
            end += stop - first
        for first, stop, there in again.stretches if again is not None else ():
            for piece in _moved(self.names, first, stop, there):
                if not any(piece.is_within(name) for name in names):
                    names.append(piece)
                    for origin, alias in _aliases([piece], _moved(self.pieces, first, stop, there)):
                        aliases.setdefault(origin, []).append(alias)
        return RowSpace(tuple(pieces), tuple(names)), aliases


@dataclass(frozen=True)
class Translation:
    """A map from row ids of a version to row ids of a target: sorted ranges (start, end, start in the target).

    (10, 15, 200) maps the ids 10 to 14 to 200 to 204.
    """

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

    def joined(self, translation: "Translation") -> "Translation":
        """Return a translation of the ids of this translation and of another, which have no id in common."""
        return Translation(tuple(sorted((*self.stretches, *translation.stretches)))) if translation.stretches else self

    def beyond(self, excluded: "Translation") -> "Translation":
        """Return the part of this translation whose ids are not in `excluded`, a translation from the same version."""
        covered = _covered(excluded.stretches)
        ends = [stop for _, stop in covered]
        remaining: list[tuple[int, int, int]] = []
        for start, end, there in self.stretches:
            at = start
            for first, stop in islice(covered, bisect_right(ends, start), None):
                if first >= end:
                    break
                if at < first:
                    remaining.append((at, first, there + at - start))
                at = stop
            if at < end:
                remaining.append((at, end, there + at - start))
        return Translation(tuple(remaining))

    @cached_property
    def runs(self) -> RowRuns:
        """The translation as a map to look ids up in: `ids.through(translation.runs)`.

        If two ranges contain an id, the range that starts first counts. Both mean the same row.
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
        """Translate ids; return the ids of the target, and a mask of the ids that could be translated."""
        translated = np.zeros_like(ids)
        is_translated = np.zeros(len(ids), np.bool_)
        # As runs, because ids of neighbouring rows mostly follow each other.
        runs = RowRuns.of_values(ids).through(self.runs)
        places = elements(runs.positions)
        translated[places], is_translated[places] = runs.values(), True
        return translated, is_translated


def encode_aliases(aliases: Iterable[Alias]) -> str:
    """Encode aliases for the record of a merge; adjacent aliases become one."""
    joined: list[Alias] = []
    # The record is kept in every later version, so it is made as short as possible.
    for alias in sorted(aliases, key=lambda alias: alias.first):
        previous = joined[-1] if joined else None
        if (
            previous is not None
            and (previous.end, previous.through) == (alias.first, alias.through)
            and previous.here + previous.end - previous.first == alias.here
        ):
            joined[-1] = replace(previous, end=alias.end)
        else:
            joined.append(alias)
    return " ".join(
        f"{alias.first}-{alias.end}{_THROUGH if alias.through else _ORIGIN}{alias.here}" for alias in joined
    )


def decode_aliases(text: str) -> list[Alias]:
    """Decode aliases; parts that are not aliases are skipped."""
    # Any program can change table metadata, and the record has entries of fields too. An entry that is left out makes
    # its rows count as unknown to the other branch.
    matches = [_ALIAS.fullmatch(part) for part in text.split()]
    return [
        Alias(first=int(m[1]), end=int(m[2]), here=int(m[4]), through=m[3] == _THROUGH)
        for m in matches
        if m and int(m[1]) < int(m[2])
    ]


def encode_fields(fields: Mapping[int, int]) -> str:
    """Encode the fields of a branch that have other ids where it was merged, for the record of the merge."""
    return " ".join(f"f{own}={here}" for own, here in sorted(fields.items()) if own != here)


def decode_fields(text: str) -> dict[int, int]:
    """Decode the fields of a branch that have other ids; other parts are skipped."""
    matches = [_FIELD.fullmatch(part) for part in text.split()]
    return {int(m[1]): int(m[2]) for m in matches if m}


def _aliases(names: Iterable[Piece], pieces: Sequence[Piece]) -> Iterator[tuple[str, Alias]]:
    """Return the records of the names of rows, by branch id: those that are their origins, and the others."""
    for name in names:
        at, shift = name.start, name.first - name.start
        # Pieces are in order; between those of this branch, the rows only came through it.
        for piece in (piece for piece in pieces if (piece.origin, piece.first - piece.start) == (name.origin, shift)):
            start, end = max(at, piece.start), min(piece.end, name.end)
            if start < end:
                yield from _records(name.origin, shift, (at, start, True), (start, end, False))
                at = end
        yield from _records(name.origin, shift, (at, name.end, True))


def _records(origin: str, shift: int, *ranges: tuple[int, int, bool]) -> Iterator[tuple[str, Alias]]:
    for start, end, through in ranges:
        if start < end:
            yield origin, Alias(first=start + shift, end=end + shift, here=start, through=through)


def _in_both(source: Iterable[Piece], target: Iterable[Piece]) -> Translation:
    """Translate row ids of `source` to row ids of `target`: the same row has the same origin and id there."""
    by_origin: dict[str, list[Piece]] = {}
    for piece in target:
        by_origin.setdefault(piece.origin, []).append(piece)
    stretches: set[tuple[int, int, int]] = set()
    for piece in source:
        for there in by_origin.get(piece.origin, ()):
            first = max(piece.first, there.first)
            end = min(piece.first + piece.end - piece.start, there.first + there.end - there.start)
            if first < end:
                # The overlap is computed in ids of the origin, and both sides shift it to their own ids.
                start = piece.start + first - piece.first
                stretches.add((start, start + end - first, there.start + first - there.first))
    return Translation(tuple(sorted(stretches)))


def _covered(stretches: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return the ids that sorted stretches contain, as disjoint ranges."""
    ranges: list[tuple[int, int]] = []
    for start, end, _ in stretches:
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges


def _moved(pieces: Iterable[Piece], first: int, end: int, to: int) -> list[Piece]:
    """Return the parts of pieces whose ids are from `first` up to `end`, with new ids from `to` on."""
    parts = ((max(first, piece.start), min(end, piece.end), piece) for piece in pieces)
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
