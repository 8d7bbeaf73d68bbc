"""Compare the results that a merge has from each of several merge bases.

After criss-cross merges, each merge base has changes of its own that the other merge bases lack. A row, a column or a
setting that a merge base has in an older state looks there as if both sides had changed it, or as if the side that took
a change back had done nothing. The merge base with the newest state of a row gives the right result for the row. So a
result that all merge bases give is right; where they give different results, it is unknown which of them is right.

A strategy for rows chooses the result that leaves all differing rows as the winner has them, if a result does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.model import Manifest
from lance_dagster.format.row_runs import RowRuns, elements
from lance_dagster.merge.rules.merge_side import MOST_ROWS_COMPARED, MergeSide
from lance_dagster.merge.rules.result import FragmentEdits
from lance_dagster.merge.rules.row_changes import live_rows, row_ids_of
from lance_dagster.merge.rules.row_decisions import CombinedUpdates
from lance_dagster.merge.rules.row_origins import OFFSET_BITS
from lance_dagster.merge.rules.strategy import (
    DEST_WINS,
    HISTORY,
    SOURCE_WINS,
    Conflict,
    ConflictingRows,
    Finding,
    ParsedStrategy,
    Rows,
    Winner,
    add_rows,
    made_after_reset,
    unsettled,
)

_GONE = None
_Values = Mapping[int, str | None]
"""By row id, the side whose values a row has in a result, or `_GONE`. Equal values count as values of the dest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseResult:
    """The result of a merge from one merge base, as far as it may depend on the choice of the merge base."""

    manifest: Manifest
    edits: FragmentEdits
    combined: CombinedUpdates

    def same_columns(self, other_result: "BaseResult") -> bool:
        """Tell whether two results have the same columns, settings and values written beside rows or anew."""
        own_manifest, other_manifest = self.manifest, other_result.manifest
        settings = [
            (manifest.config, manifest.table_metadata, manifest.schema_metadata, manifest.fields)
            for manifest in (own_manifest, other_manifest)
        ]
        cells = [
            (result.combined.source, result.combined.dest, result.combined.from_source)
            for result in (self, other_result)
        ]
        return (
            settings[0] == settings[1]
            and self.edits.columns == other_result.edits.columns
            and all(map(np.array_equal, *cells))
        )


def choose_result(
    results: Sequence[BaseResult], source: MergeSide, dest: MergeSide, *, strategy: ParsedStrategy, names: Sequence[str]
) -> int | Finding:
    """Return the place of the result that all merge bases agree on, or that a strategy chooses; else the conflict.

    Args:
        results: The result from each merge base.
        source: The source of the merge.
        dest: Its dest.
        strategy: Who wins.
        names: The merge bases.
    """
    first, *others = results
    if not all(map(first.same_columns, others)):
        return _ambiguous(source, dest, names)
    rows = _DifferingRows(results, source, dest)
    if rows.count > MOST_ROWS_COMPARED:
        return _ambiguous(source, dest, names)
    values_by_result = [rows.values_in(result) for result in results]
    differing = [row for row, state in values_by_result[0].items() if any(of[row] != state for of in values_by_result)]
    if not differing:
        return 0
    sides: dict[Winner, MergeSide] = {SOURCE_WINS: source, DEST_WINS: dest}
    places = {
        winner: place
        for winner, side in sides.items()
        for place, values in enumerate(values_by_result)
        if all(values[row] == rows.state(row, of_source=side.is_source) for row in differing)
    }
    finding = rows.finding(sorted(differing), names, tuple(places))
    winner = strategy.winner_of(finding)
    return finding if winner is None else places[winner]


def _ambiguous(source: MergeSide, dest: MergeSide, names: Sequence[str]) -> Finding:
    bases = f"{source.name} and {dest.name} have several merge bases, {', '.join(names)}"
    did = bases, "the result is ambiguous: each base gives a different result"
    return unsettled(HISTORY, HISTORY, did, made_after_reset("their merges crossed", source.branch))


class _DifferingRows:
    """The rows that some results of a merge have and others do not, or have from the other side, by their row ids.

    A row has the id that it has on the dest. A row that the dest never had has a negative number instead.
    """

    def __init__(self, results: Sequence[BaseResult], source: MergeSide, dest: MergeSide) -> None:
        self._results, self._source, self._dest = results, source, dest
        self._deleted = dest.lookups.deleted
        self._known = source.history.space.translation(dest.history.space).runs
        dead = [self._dead_on_dest(result) for result in results]
        differing_dest = _differing(dead)
        differing_source = _differing([result.edits.taken_rows for result in results])
        self.count = sum(map(len, (*differing_dest.values(), *differing_source.values())))
        if self.count > MOST_ROWS_COMPARED:
            return
        ids = {*self._addresses(dest, differing_dest), *self._addresses(source, differing_source)}
        # The other copies of these rows, which some result may have in place of these copies.
        self._in_dest, self._in_source = (self._live_copies(side, ids) for side in (dest, source))
        self._ids = ids & (self._in_dest.keys() | self._in_source.keys())
        self._equal = self._equal_copies()

    def state(self, row: int, *, of_source: bool) -> str | None:
        """Return whose values a row has in a result that leaves it as one side has it."""
        return (
            self._valued(row, of_source=of_source)
            if row in (self._in_source if of_source else self._in_dest)
            else _GONE
        )

    def finding(self, rows: Sequence[int], names: Sequence[str], options: tuple[Winner, ...]) -> Finding:
        """Return the conflict about some rows."""
        differing = f"which the merge bases {' and '.join(names)} have in different states"
        conflict = Conflict(
            kind="rows",
            unit=f"{len(rows)} row{'s' * (len(rows) > 1)} {differing}",
            source=f"{self._source.name} has one state",
            dest=f"{self._dest.name} has another state, and it is ambiguous which is newer",
        )
        lookup = lambda: ConflictingRows(  # noqa: E731  # it is called when the rows are read
            source=_by_fragment(self._in_source, rows), dest=_by_fragment(self._in_dest, rows)
        )
        advice = made_after_reset("their merges crossed", self._source.branch)
        return Finding(conflict=conflict, options=options, rows=lookup, advice=advice)

    def _dead_on_dest(self, result: BaseResult) -> dict[int, BitMap]:
        edits, manifest = result.edits, self._dest.manifest
        # Fragments that no result edits are the same in all.
        numbers = {number for edited in self._results for number in (*edited.edits.masked, *edited.edits.revived)}
        return {number: edits.deleted(number, self._deleted(manifest, manifest.fragment(number))) for number in numbers}

    def values_in(self, result: BaseResult) -> _Values:
        """Return whose values the rows have in a result."""
        dead, from_source = self._dead_on_dest(result), result.edits.taken_rows
        values: dict[int, str | None] = dict.fromkeys(self._ids, _GONE)
        for row, (number, offset) in self._in_dest.items():
            if offset not in dead.get(number, ()):
                values[row] = self._valued(row, of_source=False)
        for number, offsets in result.edits.revived.items():
            # A row comes back to its old place where the source has it there.
            for row in self._addresses(self._dest, {number: offsets}).keys() & self._ids:
                values[row] = self._valued(row, of_source=True)
        for row, (number, offset) in self._in_source.items():
            if offset in from_source.get(number, ()):
                values[row] = self._valued(row, of_source=True)
        return values

    def _valued(self, row: int, *, of_source: bool) -> str:
        return SOURCE_WINS if of_source and row not in self._equal else DEST_WINS

    def _addresses(self, side: MergeSide, rows: Rows) -> dict[int, tuple[int, int]]:
        """Return the fragment and the offset of rows of a side by their ids."""
        addresses: dict[int, tuple[int, int]] = {}
        for number, offsets in rows.items():
            ids = row_ids_of(side.manifest.fragment(number), side.name).restricted(offsets)
            addresses |= {row: (number, offset) for row, offset in self._numbered(side, ids)}
        return addresses

    def _numbered(self, side: MergeSide, ids: RowRuns) -> Iterator[tuple[int, int]]:
        offsets = elements(ids.positions).tolist()
        if not side.is_source:
            yield from zip(ids.values().tolist(), offsets, strict=True)
            return
        there = ids.through(self._known)
        dest_ids = dict(zip(elements(there.positions).tolist(), there.values().tolist(), strict=True))
        for row, offset in zip(ids.values().tolist(), offsets, strict=True):
            yield dest_ids.get(offset, -1 - row), offset

    def _live_copies(self, side: MergeSide, ids: set[int]) -> dict[int, tuple[int, int]]:
        """Return where a side has rows, by their ids; a row that it does not have is left out."""
        own = {row for row in ids if row >= 0}
        numbers = RowRuns.of([(row, 1, row) for row in sorted(own)])
        if side.is_source:
            back = numbers.through(self._known.inverse())
            strays = sorted(-1 - row for row in ids if row < 0)
            numbers = RowRuns.set_of([back, RowRuns.of([(row, 1, row) for row in strays])])
        offsets_by_fragment: dict[int, BitMap] = {}
        for fragment in side.manifest.fragments if len(numbers) else ():
            here = row_ids_of(fragment, side.name).where_in(numbers).positions
            if here:
                add_rows(offsets_by_fragment, fragment.id, here & live_rows(side.manifest, fragment, self._deleted))
        return self._addresses(side, offsets_by_fragment)

    def _equal_copies(self) -> set[int]:
        """Return the rows that both sides have with the same values."""
        shared = sorted(self._in_source.keys() & self._in_dest.keys())
        compare, schema = self._dest.lookups.equal_rows, self._dest.manifest.fields == self._source.manifest.fields
        if compare is None or not shared or not schema:
            return set()
        pairs = [
            (side.manifest, np.array([(copies[row][0] << OFFSET_BITS) + copies[row][1] for row in shared], np.uint64))
            for side, copies in ((self._source, self._in_source), (self._dest, self._in_dest))
        ]
        same = compare(pairs[0], pairs[1], {field.id: field.id for field in self._dest.manifest.fields})
        return {row for row, equal in zip(shared, same.tolist(), strict=True) if equal}


def _differing(sets_by_result: Sequence[Rows]) -> dict[int, BitMap]:
    """Return the rows, by fragment, that some of several sets have and others do not."""
    differing: dict[int, BitMap] = {}
    for number in {number for rows in sets_by_result for number in rows}:
        sets = [rows.get(number, BitMap()) for rows in sets_by_result]
        add_rows(differing, number, BitMap.union(*sets) - BitMap.intersection(*sets))
    return differing


def _by_fragment(copies: Mapping[int, tuple[int, int]], rows: Sequence[int]) -> dict[int, BitMap]:
    offsets_by_fragment: dict[int, BitMap] = {}
    for number, offset in (copies[row] for row in rows if row in copies):
        offsets_by_fragment.setdefault(number, BitMap()).add(offset)
    return offsets_by_fragment
