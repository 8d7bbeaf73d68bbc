"""Read the rows that the conflicts of a merge are about, as a stream of Arrow record batches.

Each line of the stream shows one row three times: as the merge base, the source and the dest have it. Each image is a
struct with the columns of its version. A column has one name in all three images: the name on the dest, else the name
in the merge base, else the name on the source (`ConflictColumns`). Values are read when a batch is asked for, and only
the values that the batch shows.

With key columns, a row that a side removed and a row that it inserted with the same key count as one changed row
(`RowKeys`). A side that replaced rows, and an update on a table without stable row ids, remove rows and insert others;
only a key tells which inserted row corresponds to which removed row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import Addresses, Positions, batch_size, decoded, plain_type
from lance_dagster.diff.comparison_shapes import ComparedColumn, compared_columns
from lance_dagster.diff.row_comparison import keys_of, parts_of
from lance_dagster.diff.row_matching import Flags, RowPositions, paired_by_values
from lance_dagster.diff.schema_diff import Fields
from lance_dagster.diff.versioned_rows import VersionedRows
from lance_dagster.edit.upsert import key_columns
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Field, Fragment, Manifest
from lance_dagster.format.validation import optional_limit, string_list
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.merge.gather_input import state_of
from lance_dagster.merge.rules import MergeRefusal
from lance_dagster.merge.rules.columns.column_matching import backing
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.relocated_rows import UntraceableError
from lance_dagster.merge.rules.row_changes import live_rows
from lance_dagster.merge.rules.row_origins import OFFSET_BITS, BaseKey, in_order
from lance_dagster.merge.rules.strategy import Conflict, ConflictingRows, Rows, RowsLookup, add_rows

BASE, SOURCE, DEST = range(3)
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


@dataclass(kw_only=True)
class ConflictLocations:
    """The rows of conflicts as the rules noted them, and the functions and sides by which they are found.

    `sides` are the source and the dest.
    """

    lookups: Mapping[Conflict, Sequence[RowsLookup]]
    sides: tuple[MergeSide, MergeSide]

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

    def put_in(self, side: int) -> Positions:
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
                self._located, (conflicting_rows.source, conflicting_rows.dest), alone, strict=True
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

    @cached_property
    def _located(self) -> "tuple[_SideLocations, _SideLocations]":
        source, dest = self.sides
        return _SideLocations(source, source.base), _SideLocations(dest, dest.base)

    def _in_base(self, key: BaseKey, offsets: Positions) -> RowLocations:
        """Find rows of a fragment of the merge base, or rows that it does not have."""
        base = self.sides[0].base
        alive, where = np.zeros(len(offsets), np.bool_), np.full(len(offsets), ABSENT, np.int64)
        # Rows that the merge base lacks have an `AbsentRows` key in place of a fragment id, and no address there.
        if isinstance(key, int):
            alive = _among(offsets, live_rows(base, base.fragment(key), self.sides[0].lookups.deleted))
            where = np.where(alive, offsets + _first_address(key), ABSENT)
        source, dest = (side.of(key, offsets, alive) for side in self._located)
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

    def of(self, key: BaseKey, offsets: Positions, alive: Flags) -> tuple[Positions, Codes]:
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


def _put_in(addresses: Positions, side: int) -> RowLocations:
    """Return rows that only one side has."""
    everywhere = np.full((len(addresses), 3), ABSENT, np.int64)
    everywhere[:, side] = addresses
    did = np.full((len(addresses), 2), NEVER, np.uint8)
    did[:, side - SOURCE] = ADDED
    return RowLocations(addresses=everywhere, did=did)


def _among(offsets: Positions, rows: BitMap) -> Flags:
    return np.isin(offsets, np.array(rows & BitMap(offsets), np.int64))


def _addresses(number: int, offsets: BitMap) -> Positions:
    return np.array(offsets, np.int64) + _first_address(number)


def _first_address(number: int) -> np.int64:
    """Return the address of the first row of a fragment, as the signed number of the same bits."""
    # Ids from 2^31 on give addresses above the largest signed number, which numpy would refuse to convert.
    signed: np.int64 = np.array([number << OFFSET_BITS], np.uint64).view(np.int64)[0]
    return signed


def _joined(parts: Sequence[Positions]) -> Positions:
    return np.concatenate([np.empty(0, np.int64), *parts])


Manifests = tuple[Manifest, Manifest, Manifest]
"""The manifests of the merge base, the source and the dest."""


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """A column of three versions: one name for all, the name in each (None where it is missing), its id on the dest."""

    name: str
    names: tuple[str | None, str | None, str | None]
    dest_id: int | None


class ConflictColumns:
    """The columns of three versions, matched with each other."""

    def __init__(self, manifests: Manifests, ids: Sequence[Mapping[int, int]]) -> None:
        """Match the columns of the three versions.

        Args:
            manifests: The three versions.
            ids: The ids of fields on the source and on the dest, each by their ids in the merge base.
        """
        self._fields = [Fields.of(manifest.fields) for manifest in manifests]
        base = self._fields[BASE]
        self._matched = [_matched(base, side, own) for side, own in zip(self._fields[SOURCE:], ids, strict=True)]
        self.all = tuple(self._matched_columns())

    def chosen(self, names: Sequence[str] | None) -> tuple[SharedColumn, ...]:
        """Return columns by any name that a version has for them; all columns where `names` is None.

        Raises:
            InvalidInputError: No column has one of the names.
        """
        if names is None:
            return self.all
        return tuple(dict.fromkeys(self._named(name) for name in string_list("columns", names, "id")))

    def holding(self, fields: frozenset[int]) -> tuple[SharedColumn, ...]:
        """Return the columns that contain some fields of the dest."""
        dest = self._fields[DEST]
        columns = {dest.column(dest.by_id[number]).id for number in fields}
        return tuple(column for column in self.all if column.dest_id in columns)

    def compared(self, columns: Sequence[SharedColumn], side: int) -> tuple[ComparedColumn, ...]:
        """Return how to compare the columns that merge base and side have; incomparable columns are left out."""
        comparable, _ = compared_columns(self._fields[BASE], self._fields[side], self._matched[side - SOURCE])
        by_name = {(column.before, column.after): column for column in comparable}
        pairs = [(column.names[BASE], column.names[side]) for column in columns]
        return tuple(by_name[pair] for pair in pairs if pair in by_name)

    def _named(self, name: str) -> SharedColumn:
        named = next((column for column in self.all if column.name == name), None)
        if named is None:
            named = next((column for column in self.all if name in column.names), None)
        if named is None:
            raise InvalidInputError(f"no column {name!r}; there are {', '.join(column.name for column in self.all)}")
        return named

    def _matched_columns(self) -> list[SharedColumn]:
        base, source, dest = (list(fields.below(None)) for fields in self._fields)
        to_source, to_dest = self._matched
        from_dest = {own: number for number, own in to_dest.items()}
        base_fields, source_fields = {field.id: field for field in base}, {field.id: field for field in source}
        # Columns that the merge base lacks have no id in common, so such columns of source and dest are matched by
        # name.
        new = {field.name: field for field in source if field.id not in set(to_source.values())}
        names_taken: set[str] = set()
        columns: list[SharedColumn] = []

        def put(was: Field | None, own: Field | None, dest_field: Field | None) -> None:
            named_field = dest_field or was or own
            if named_field is not None:
                base_name, source_name, dest_name = (
                    None if field is None else field.name for field in (was, own, dest_field)
                )
                number = None if dest_field is None else dest_field.id
                columns.append(
                    SharedColumn(_free(named_field.name, names_taken), (base_name, source_name, dest_name), number)
                )

        # The dest's columns are put first and keep their names: `_free` renames a later column of an equal name.
        for field in dest:
            was = base_fields.pop(from_dest.get(field.id, -1), None)
            own = new.pop(field.name, None) if was is None else source_fields.get(to_source.get(was.id, -1))
            put(was, own, field)
        for was in base_fields.values():
            put(was, source_fields.get(to_source.get(was.id, -1)), None)
        for own in new.values():
            put(None, own, None)
        return columns


def _matched(base: Fields, side: Fields, ids: Mapping[int, int]) -> dict[int, int]:
    """Match fields by their ids, and the remaining columns by name: a cast column has a new id and its old name."""
    matched = {number: own for number, own in ids.items() if number in base.by_id and own in side.by_id}
    matched_ids = set(matched.values())
    unmatched = {field.name: field.id for field in side.below(None) if field.id not in matched_ids}
    for field in base.below(None):
        if field.id not in matched and field.name in unmatched:
            matched[field.id] = unmatched[field.name]
    return matched


def _free(name: str, names_taken: set[str]) -> str:
    """Return a name that is not taken."""
    # Two versions may use one name for different columns, but a request by name must mean a single column.
    free = next(candidate for suffix in count() if (candidate := name + "_" * suffix) not in names_taken)
    names_taken.add(free)
    return free


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """The identification of rows: the key columns of merge base and source, and the key columns of merge base and dest.

    `put_in` returns the addresses of all rows that a side inserted.
    """

    versions: Sequence[VersionedRows]
    columns: tuple[tuple[ComparedColumn, ...], tuple[ComparedColumn, ...]]
    put_in: "Callable[[int], Positions]"

    def applied(self, locations: RowLocations) -> RowLocations:
        """Return the rows of a conflict, each key once.

        Raises:
            InvalidInputError: Two rows of one version have the same key.
        """
        # Each side is paired with the merge base first, so that a row which both sides rewrote gets one line. Only rows
        # that no row of the merge base corresponds to are then paired between the sides.
        for side in (SOURCE, DEST):
            locations = self._with_base(locations, side)
        return self._with_each_other(locations)

    def _with_base(self, locations: RowLocations, side: int) -> RowLocations:
        """Search the rows that a side inserted for the rows of the merge base that it does not have."""
        addresses, did = locations.addresses.copy(), locations.did.copy()
        missing = np.flatnonzero((addresses[:, BASE] != ABSENT) & (addresses[:, side] == ABSENT))
        alone = np.flatnonzero(_only(locations, side))
        pool = addresses[alone, side]
        unknown_removals = did[missing, side - SOURCE] == REWRITTEN
        # Where a removal cannot be distinguished from an update, the new row may lie outside of the conflict, so all
        # rows that the side inserted are searched. Rows of the conflict stay first in the pool, where `alone` gives
        # their lines.
        if unknown_removals.any():
            pool = np.concatenate([pool, np.setdiff1d(self.put_in(side), pool)])
        olds, news, unknown = self._paired((BASE, addresses[missing, BASE]), (side, pool), side)
        removed = np.ones(len(missing), np.bool_)
        removed[olds], removed[unknown] = False, False
        # A key that no inserted row has proves the removal. A row with a null in its key stays `REWRITTEN`.
        did[missing[removed & unknown_removals], side - SOURCE] = REMOVED
        addresses[missing[olds], side] = pool[news]
        did[missing[olds], side - SOURCE] = CHANGED
        return _without(
            RowLocations(addresses=addresses, did=did, fields=locations.fields), alone[news[news < len(alone)]]
        )

    def _with_each_other(self, locations: RowLocations) -> RowLocations:
        """Give one line to a row that source and dest both inserted under the same key."""
        addresses, did = locations.addresses.copy(), locations.did.copy()
        source_only, dest_only = (np.flatnonzero(_only(locations, side)) for side in (SOURCE, DEST))
        source_places, dest_places, _ = self._paired(
            (SOURCE, addresses[source_only, SOURCE]), (DEST, addresses[dest_only, DEST]), DEST
        )
        addresses[source_only[source_places], DEST] = addresses[dest_only[dest_places], DEST]
        did[source_only[source_places], DEST - SOURCE] = did[dest_only[dest_places], DEST - SOURCE]
        return _without(RowLocations(addresses=addresses, did=did, fields=locations.fields), dest_only[dest_places])

    def _paired(
        self, first: tuple[int, Positions], second: tuple[int, Positions], side: int
    ) -> tuple[RowPositions, RowPositions, RowPositions]:
        """Return the places of rows of two versions with the same key, and of rows of the first without a key."""
        nothing: RowPositions = np.empty(0, np.int64)
        # Without rows of one version there are no pairs, and the keys of the other version need not be read.
        if not len(first[1]) or not len(second[1]):
            return nothing, nothing, nothing
        (olds, old_null), (news, new_null) = (
            keys_of(
                self.versions[version],
                addresses.astype(np.uint64),
                self.columns[(side if version == BASE else version) - SOURCE],
            )
            for version, addresses in (first, second)
        )
        # A null matches nothing: two rows with a null in their key are not the same row.
        pairs = paired_by_values(olds[~old_null], news[~new_null])
        return np.flatnonzero(~old_null)[pairs.before], np.flatnonzero(~new_null)[pairs.after], np.flatnonzero(old_null)


def _only(locations: RowLocations, side: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Tell which rows only one side has."""
    there = locations.addresses != ABSENT
    only: np.ndarray[tuple[int], np.dtype[np.bool_]] = there[:, side] & (there.sum(axis=1) == 1)
    return only


def _without(locations: RowLocations, places: RowPositions) -> RowLocations:
    remaining = np.ones(len(locations), np.bool_)
    remaining[places] = False
    return locations.at(remaining)


KIND, UNIT, ROW_ID, KEY = "_conflict_kind", "_conflict_unit", "_row_id", "key"
VERSION_FIELDS = ("base", "source", "dest")
DID = ("_source_change", "_dest_change")
_WORDS = {UNCHANGED: "unchanged", ADDED: "added", CHANGED: "changed", REMOVED: "removed", REWRITTEN: "rewritten"}
FlagsOfRows = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
"""Whether the merge base, the source and the dest have a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRequest:
    """A request for rows: the conflicts, the columns, the key columns, and the maximum number of rows."""

    conflicts: tuple[Conflict, ...]
    columns: tuple[SharedColumn, ...]
    keys: tuple[SharedColumn, ...] | None
    limit: int | None


class ConflictRows:
    """The rows of the conflicts of one merge."""

    def __init__(self, context: TableContext, states: tuple[State, State, State], refusal: MergeRefusal) -> None:
        """Keep the versions; rows are read by `stream`.

        Args:
            context: The table.
            states: The merge base, the source and the dest.
            refusal: Why they cannot be merged.
        """
        self._conflicts = refusal.conflicts
        self._locations = (
            None if refusal.sides is None else ConflictLocations(lookups=refusal.rows, sides=refusal.sides)
        )
        if refusal.sides is not None:
            # Of several merge bases, the refusal may be from a different merge base.
            states = (state_of(refusal.sides[0].base), *states[1:])
        self._versions = [VersionedRows(context, state, after=place != BASE) for place, state in enumerate(states)]
        # A refusal without sides was made before anything was compared; columns are then matched by name alone.
        ids = [] if refusal.sides is None else [side.columns.ids for side in refusal.sides]
        base, source, dest = (state.manifest for state in states)
        self._columns = ConflictColumns((base, source, dest), ids or [{}, {}])

    def stream(
        self, conflict: Conflict | None, *, columns: Sequence[str] | None, on: Sequence[str] | None, limit: int | None
    ) -> pa.RecordBatchReader:
        """Read the rows of a conflict, or of all.

        Raises:
            InvalidInputError: There is no such conflict or column, a column cannot be a key, or the limit is below 0.
        """
        if conflict is not None and conflict not in self._conflicts:
            raise InvalidInputError(
                f"this merge has no conflict {str(conflict)!r}; it has {len(self._conflicts)} others"
            )
        limit = optional_limit("the limit", limit)
        request = RowsRequest(
            conflicts=self._conflicts if conflict is None else (conflict,),
            columns=self._columns.chosen(columns),
            keys=None if on is None else self._keys(on),
            limit=limit,
        )
        schema = self._schema(request)
        return pa.RecordBatchReader.from_batches(schema, self._batches(request, schema))

    def _keys(self, key: Sequence[str]) -> tuple[SharedColumn, ...]:
        chosen = self._columns.chosen(key_columns(key))
        for column in chosen:
            if not all(self._columns.compared([column], side) for side in (SOURCE, DEST)):
                raise InvalidInputError(
                    f"column {column.name!r} cannot be a key: its values cannot be compared, or one of "
                    f"{', '.join(str(version.state) for version in self._versions)} does not have it"
                )
        return chosen

    def _schema(self, request: RowsRequest) -> pa.Schema:
        marks: list[pa.Field[Any]] = [
            pa.field(KIND, pa.string(), nullable=False),
            pa.field(UNIT, pa.string(), nullable=False),
            pa.field(ROW_ID, pa.uint64(), nullable=False),
            *(pa.field(name, pa.string()) for name in DID),
        ]
        if request.keys is not None:
            # One column identifies the rows of all three versions, so it has one type: the type on the dest.
            marks.append(pa.field(KEY, pa.struct(self._fields(request.keys, DEST)), nullable=False))
        locations = [
            pa.field(name, pa.struct(self._fields(request.columns, place))) for place, name in enumerate(VERSION_FIELDS)
        ]
        return pa.schema([*marks, *locations])

    def _fields(self, columns: Sequence[SharedColumn], version: int) -> "list[pa.Field[Any]]":
        names = {own: column.name for column in columns if (own := column.names[version]) is not None}
        return [
            # A line is null where the version lacks the row, even in a column that forbids nulls.
            # Rows of several files may have more values than a dictionary can number.
            field.with_name(names[field.name]).with_nullable(nullable=True).with_type(plain_type(field.type))
            for field in (self._versions[version].schema(list(names)) if names else ())
        ]

    def _batches(self, request: RowsRequest, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._locations is None:
            return
        remaining = request.limit
        # A batch holds rows of all three versions: the version with the widest rows limits it.
        step = min(batch_size(version.dataset.schema) for version in self._versions)
        for conflict in request.conflicts:
            locations = self._conflict_locations(self._locations, conflict, request)
            for part in parts_of(len(locations), step):
                lines = self._with_differing_values(locations.at(part)) if locations.fields else locations.at(part)
                # The limit counts rows that are shown, so it is applied after rows without a difference are left out.
                lines = lines if remaining is None else lines.at(slice(remaining))
                remaining = None if remaining is None else remaining - len(lines)
                if len(lines):
                    yield self._batch(lines, conflict, request, schema)
                if remaining == 0:
                    return

    def _conflict_locations(
        self, locations: ConflictLocations, conflict: Conflict, request: RowsRequest
    ) -> RowLocations:
        rows = locations.rows_of(conflict)
        if request.keys is None:
            return rows
        # Keys pair rows of a whole conflict, so this comes before the rows are cut into batches.
        source_columns, dest_columns = (self._columns.compared(request.keys, side) for side in (SOURCE, DEST))
        return RowKeys(
            versions=self._versions, columns=(source_columns, dest_columns), put_in=locations.put_in
        ).applied(rows)

    def _with_differing_values(self, locations: RowLocations) -> RowLocations:
        """Leave out rows in which neither side changed the values of the columns that both wrote anew for all rows."""
        differ = np.zeros(len(locations), np.bool_)
        for column in self._columns.holding(locations.fields):
            for side in (SOURCE, DEST):
                differ |= self._differ(locations, column, side)
        return locations.at(differ)

    def _differ(self, locations: RowLocations, column: SharedColumn, side: int) -> Flags:
        """Tell in which rows a side has another value than the merge base; in all where they cannot be compared."""
        compared = self._columns.compared([column], side)
        there = locations.addresses != ABSENT
        in_both = there[:, BASE] & there[:, side]
        differ: Flags = ~in_both
        if not compared:
            # Values that cannot be compared may differ, and no row in conflict may be hidden.
            return np.ones(len(locations), np.bool_)
        if in_both.any():
            olds, news = (
                self._versions[version].digests(_unsigned(locations.addresses[in_both, version]), compared)[0]
                for version in (BASE, side)
            )
            differ[in_both] = np.any(olds != news, axis=1)
        return differ

    def _batch(
        self, locations: RowLocations, conflict: Conflict, request: RowsRequest, schema: pa.Schema
    ) -> pa.RecordBatch:
        columns = tuple(dict.fromkeys([*request.columns, *(request.keys or ())]))
        images = [self._read(locations, version, columns) for version in (BASE, SOURCE, DEST)]
        rows = len(locations)
        arrays: list[pa.Array[Any]] = [
            pa.array([conflict.kind] * rows, pa.string()),
            pa.array([conflict.unit] * rows, pa.string()),
            pa.array(self._row_ids(locations), pa.uint64()),
            *(pa.array([_WORDS.get(code) for code in did], pa.string()) for did in locations.did.T.tolist()),
        ]
        there = locations.addresses != ABSENT
        if request.keys is not None:
            arrays.append(_coalesced(images, there, schema.field(KEY).type))
        for version, name in enumerate(VERSION_FIELDS):
            arrays.append(_struct(images[version], there[:, version], schema.field(name).type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _read(
        self, locations: RowLocations, version: int, columns: Sequence[SharedColumn]
    ) -> "dict[str, pa.Array[Any]]":
        """Read columns as one version has them, by the names they have for all; null where it lacks the row."""
        names = {column.name: own for column in columns if (own := column.names[version]) is not None}
        addresses = locations.addresses[:, version]
        there = addresses != ABSENT
        if not names or not there.any():
            return {}
        # Only rows that the version has are read. A null index leaves a null in the lines of all others.
        places = pa.array(np.cumsum(there) - 1, mask=~there)
        rows = self._versions[version].take(_unsigned(addresses[there]), list(names.values()))
        return {name: decoded(rows.column(own)).take(places).combine_chunks() for name, own in names.items()}

    def _row_ids(self, locations: RowLocations) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """Return the stable id of each row in the first version that has the row, or its address without stable ids."""
        there = locations.addresses != ABSENT
        # Every line has its row in at least one version, so `argmax` finds the first version with the row.
        first = there.argmax(axis=1)
        ids = _unsigned(np.take_along_axis(locations.addresses, first[:, None], axis=1)[:, 0])
        for place, version in enumerate(self._versions):
            own = first == place
            if version.state.manifest.stable_row_ids and own.any():
                ids[own] = version.ids(ids[own])
        return ids


def _unsigned(addresses: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Addresses:
    return addresses.astype(np.uint64)


def _struct(values: "Mapping[str, pa.Array[Any]]", there: Flags, kind: pa.StructType) -> "pa.Array[Any]":
    """Return rows of one version as structs, null where it lacks them."""
    fields: list[pa.Field[Any]] = [kind.field(place) for place in range(kind.num_fields)]
    if not there.any():
        return pa.nulls(len(there), kind)
    if not fields:
        return pa.array([{} if has else None for has in there.tolist()], kind)
    return pa.StructArray.from_arrays(
        [_typed(values[field.name], field.type) for field in fields], fields=fields, mask=pa.array(~there)
    )


def _coalesced(
    images: "Sequence[Mapping[str, pa.Array[Any]]]", there: FlagsOfRows, kind: pa.DataType
) -> "pa.Array[Any]":
    """Return rows as structs, each taken from the first version that has the row."""
    fields: list[pa.Field[Any]] = [kind.field(place) for place in range(kind.num_fields)]
    rows = len(there)
    # The columns of the versions are concatenated, so row `r` of version `v` is element `v * rows + r`.
    first = pa.array(there.argmax(axis=1) * rows + np.arange(rows))
    arrays = []
    for field in fields:
        values = [_typed(own[field.name], field.type) if own else pa.nulls(rows, field.type) for own in images]
        arrays.append(pa.concat_arrays(values).take(first))
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _typed(values: "pa.Array[Any]", kind: pa.DataType) -> "pa.Array[Any]":
    return values if values.type == kind else values.cast(kind)
