"""Find where the rows of a conflict lie in the merge base, on the source and on the dest, and what each side did.

A merge does not need any of this. It is computed when the rows of a conflict are read: rules note rows of the merge
base and of both sides as offsets by fragment, and a reader needs one line for each row with its three addresses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.merge.rules.columns.column_matching import backing
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.relocated_rows import UntraceableError
from lance_dagster.merge.rules.row_changes import live_rows
from lance_dagster.merge.rules.row_origins import OFFSET_BITS, BaseKey, in_order
from lance_dagster.merge.rules.strategy import Conflict, ConflictingRows, Rows, RowsLookup, add_rows

BASE, SOURCE, DEST = range(3)
Addresses = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Codes = np.ndarray[tuple[int], np.dtype[np.uint8]]
ABSENT = -1
"""Stands in `RowLocations.addresses` for a row that a version does not have."""
NEVER, UNCHANGED, ADDED, CHANGED, REMOVED, REWRITTEN = range(6)
"""What a side did to a row. `NEVER`: neither the side nor the merge base has the row. `REWRITTEN`: the side removed the
row or gave it new values; it is unknown whether one of the rows that it inserted is this row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocations:
    """Rows of a conflict, a line for each.

    `addresses` has three columns: where the row lies in the merge base, on the source and on the dest, or `ABSENT`.
    `did` has two: what source and dest did to it. With `fields`, which are ids of fields on the dest, the rows are all
    those for which both sides wrote these fields, whether the values changed or not.
    """

    addresses: "np.ndarray[tuple[int, int], np.dtype[np.int64]]"
    did: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]"
    fields: frozenset[int] = frozenset()

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.addresses)

    def at(self, places: "slice | Flags") -> "RowLocations":
        """Return some of the rows."""
        return RowLocations(addresses=self.addresses[places], did=self.did[places], fields=self.fields)


@dataclass(slots=True, kw_only=True)
class ConflictLocations:
    """The rows of conflicts as the rules noted them, and the functions and sides by which they are found.

    `sides` are the source and the dest.
    """

    lookups: Mapping[Conflict, Sequence[RowsLookup]]
    sides: tuple[MergeSide, MergeSide]
    _side_locations: "tuple[_SideLocations, _SideLocations] | None" = field(default=None)

    def rows_of(self, conflict: Conflict) -> RowLocations:
        """Return the rows of a conflict; no rows where they cannot be traced.

        Rows of the merge base come first, in its order, then new rows of the source, then new rows of the dest.
        """
        notes = [note() for note in self.lookups.get(conflict, ())]
        try:
            return self._locate(notes)
        except UntraceableError:
            # The conflict is still reported; only its rows cannot be shown.
            return _put_in(_joined([]), SOURCE)

    def put_in(self, side: int) -> Addresses:
        """Return the addresses of all rows that a side inserted, where its history tells inserted from moved rows."""
        rows = self.sides[side - SOURCE].rows.relocated
        return _joined([_addresses(number, here.inserted) for number, here in sorted(rows.items())])

    def _locate(self, notes: Sequence[ConflictingRows]) -> RowLocations:
        # Several rules may note the same row for one conflict. The union of their bitmaps gives it one line.
        base: dict[BaseKey, BitMap] = {}
        alone: tuple[dict[int, BitMap], dict[int, BitMap]] = {}, {}
        for conflicting_rows in notes:
            for number, offsets in conflicting_rows.base.items():
                add_rows(base, number, offsets)
            for side, rows, own in zip(
                self._sides(), (conflicting_rows.source, conflicting_rows.dest), alone, strict=True
            ):
                side.collect(rows, base, own)
        parts = [self._in_base(number, np.array(base[number], np.int64)) for number in in_order(base)]
        for own, place in zip(alone, (SOURCE, DEST), strict=True):
            parts.append(_put_in(_joined([_addresses(number, own[number]) for number in sorted(own)]), place))
        return RowLocations(
            addresses=np.concatenate([part.addresses for part in parts]),
            did=np.concatenate([part.did for part in parts]),
            fields=frozenset().union(*(conflicting_rows.fields for conflicting_rows in notes)),
        )

    def _sides(self) -> "tuple[_SideLocations, _SideLocations]":
        if self._side_locations is None:
            source, dest = self.sides
            self._side_locations = _SideLocations(source, source.base), _SideLocations(dest, dest.base)
        return self._side_locations

    def _in_base(self, key: BaseKey, offsets: Addresses) -> RowLocations:
        """Find rows of a fragment of the merge base, or rows that it does not have."""
        base = self.sides[0].base
        alive, where = np.zeros(len(offsets), np.bool_), np.full(len(offsets), ABSENT, np.int64)
        # Rows that the merge base lacks have an `AbsentRows` key in place of a fragment id, and no address there.
        if isinstance(key, int):
            alive = _among(offsets, live_rows(base, base.fragment(key), self.sides[0].lookups.deleted))
            where = np.where(alive, offsets + _first_address(key), ABSENT)
        source, dest = (side.of(key, offsets, alive) for side in self._sides())
        return RowLocations(
            addresses=np.stack([where, source[0], dest[0]], axis=1), did=np.stack([source[1], dest[1]], axis=1)
        )


class _SideLocations:
    """The places of rows of the merge base on one side."""

    def __init__(self, side: MergeSide, base: Manifest) -> None:
        self._base, self._columns, self._row_changes = base, side.columns, side.rows

    # A rule that compares one side only notes rows by their place there, although the merge base may have them as well.
    # Where another rule noted the same row in the merge base, the row must still get one line only.
    def collect(self, rows: Rows, base: dict[BaseKey, BitMap], alone: dict[int, BitMap]) -> None:
        """Sort rows, given by where they lie on the side, into those the merge base has and those the side inserted."""
        for number, offsets in rows.items():
            relocated = self._row_changes.relocated.get(number)
            # Rows out of place were moved or inserted. All others lie where the fragment of the merge base has them.
            away = BitMap() if relocated is None else offsets & relocated.live
            if relocated is not None and away:
                add_rows(alone, number, away & relocated.inserted)
                for origin, there in relocated.in_base(away).items():
                    add_rows(base, origin, there)
            own = self._row_changes.matched.base_of(number)
            if own is not None:
                add_rows(base, own, offsets - away)

    def of(self, key: BaseKey, offsets: Addresses, alive: Flags) -> tuple[Addresses, Codes]:
        """Return where rows of a fragment of the merge base lie, and what the side did to them.

        Args:
            key: The fragment, or the key of rows that the merge base does not have.
            offsets: The rows, ascending.
            alive: Which of the rows the merge base has.
        """
        row_changes = self._row_changes.of(key)
        places, did = np.full(len(offsets), ABSENT, np.int64), np.full(len(offsets), NEVER, np.uint8)
        # Statements go from the weakest to the strongest: a row that is found somewhere replaces what is assumed here.
        did[alive] = REMOVED
        did[alive & _among(offsets, row_changes.rewritten)] = REWRITTEN
        if row_changes.place is not None and isinstance(key, int):
            stays = _among(offsets, row_changes.stays)
            places[stays] = offsets[stays] + _first_address(row_changes.place.id)
            did[stays] = CHANGED if self._other_files(row_changes.place, key) else UNCHANGED
        rewritten_columns = bool(self._columns.written_beside(key if isinstance(key, int) else None))
        rows_in_base = BitMap(offsets.tolist())
        for number in self._row_changes.numbers_by_key.get(key, ()):
            rows = self._row_changes.relocated[number]
            there, here = (side_offsets.astype(np.int64) for side_offsets in rows.pairs(key, rows_in_base))
            # `offsets` ascends, so a binary search finds the line of each row.
            at = np.searchsorted(offsets, there)
            places[at] = here + _first_address(number)
            new = _among(here, rows.updated) | rewritten_columns
            did[at] = np.where(new, CHANGED, UNCHANGED)
        # This comes last: a row that the merge base lacks was added, whatever the fragment it lies in suggests.
        did[(places != ABSENT) & ~alive] = ADDED
        return places, did

    def _other_files(self, place: Fragment, number: int) -> bool:
        """Tell whether some values of rows that stayed lie in other files than in the merge base."""
        # Comparing file names reads no data. A file that was written anew may hold equal values, so this errs towards
        # reporting a change.
        base_files, base_ids = backing(self._base.fragment(number)), self._columns.base_ids
        return any(base_files.get(base_ids.get(own, ABSENT)) != path for own, path in backing(place).items())


def _put_in(addresses: Addresses, side: int) -> RowLocations:
    """Return rows that only one side has."""
    everywhere = np.full((len(addresses), 3), ABSENT, np.int64)
    everywhere[:, side] = addresses
    did = np.full((len(addresses), 2), NEVER, np.uint8)
    did[:, side - SOURCE] = ADDED
    return RowLocations(addresses=everywhere, did=did)


def _among(offsets: Addresses, rows: BitMap) -> Flags:
    return np.isin(offsets, np.array(rows & BitMap(offsets), np.int64))


def _addresses(number: int, offsets: BitMap) -> Addresses:
    return np.array(offsets, np.int64) + _first_address(number)


def _first_address(number: int) -> np.int64:
    """Return the address of the first row of a fragment, as the signed number of the same bits."""
    # Ids from 2^31 on give addresses above the largest signed number, which numpy would refuse to convert.
    signed: np.int64 = np.array([number << OFFSET_BITS], np.uint64).view(np.int64)[0]
    return signed


def _joined(parts: Sequence[Addresses]) -> Addresses:
    return np.concatenate([np.empty(0, np.int64), *parts])
