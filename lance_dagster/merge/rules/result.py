"""Turn decisions about rows into the fragments of the result, and count what the merge changes.

The result has the dest's fragments with other rows deleted, and new fragments for the rows taken from the source.

Fragments of the source get fragment ids of the dest, and the field ids and row ids of the result. A row that the merge
base had keeps the versions the dest says it was created and last updated at; everything else came with this version.
`ResultBuilder` collects what the decisions mean for the fragments of both sides; `FragmentBuilder` makes the fragments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import (
    decode_row_runs,
    decode_version_runs,
    encode_row_runs,
    encode_version_runs,
    row_id_range,
    single_range,
)
from lance_dagster.format.model import TOMBSTONE_FIELD, DataFile, Fragment
from lance_dagster.format.row_runs import RowRuns, VersionRuns
from lance_dagster.merge.rules.columns.column_matching import backing
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_changes import MatchedFragments, RelocatedRows, RowChanges, live_rows, row_ids_of
from lance_dagster.merge.rules.row_decisions import Decision, Situation
from lance_dagster.merge.rules.row_origins import (
    OFFSET_BITS,
    BaseKey,
    Origins,
    addresses_of,
    at_addresses,
    by_address,
    fragments_named,
    offsets_by_fragment,
)
from lance_dagster.merge.rules.strategy import add_rows
from lance_dagster.transactions.row_id_spaces import Translation
from lance_dagster.transactions.row_lineage import with_new_values

_Sequences = tuple[bytes | None, bytes | None, int]
"""The encoded versions that the rows of a fragment were created and last updated at, and how many rows it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Rows added, given new values and removed, as the dest sees it.

    `rows_combined` of the rows with new values are written anew, with the changes of both sides. `needs_backfill` gives
    by the path of a column that one side added how many rows only the other side has or updated: they are null there.
    Where `keeps_nulls`, no column that could be null before is required to have values.
    """

    rows_added: int
    rows_updated: int
    rows_removed: int
    schema_changed: bool
    keeps_nulls: bool
    rows_combined: int = 0
    needs_backfill: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFragment:
    """A fragment of the result that has files of the source, as the source names them, and its deleted rows.

    `deleted` is None where the deletion vector of `fragment` stays as it is.
    """

    fragment: Fragment
    files: tuple[DataFile, ...]
    deleted: BitMap | None


@dataclass(slots=True)
class FragmentEdits:
    """The edits of rows and columns, collected while fragment after fragment is decided.

    `masked` and `revived` are offsets by fragment of the dest, `taken_rows` by fragment of the source; `columns` are
    the ids in the result of fields whose values the source has, by fragment of the dest. `separate` are fragments of
    the dest from which every row was taken out that the source moved or updated.
    """

    masked: dict[int, BitMap] = field(default_factory=dict)
    revived: dict[int, BitMap] = field(default_factory=dict)
    taken_rows: dict[int, BitMap] = field(default_factory=dict)
    columns: dict[int, tuple[Fragment, frozenset[int]]] = field(default_factory=dict)
    separate: frozenset[int] = frozenset()

    def mask(self, number: int, offsets: BitMap) -> None:
        """Delete rows of a fragment of the dest."""
        add_rows(self.masked, number, offsets)

    def revive(self, number: int, offsets: BitMap) -> None:
        """Bring deleted rows of a fragment of the dest back."""
        add_rows(self.revived, number, offsets)

    def take(self, number: int, offsets: BitMap) -> None:
        """Take rows from a fragment of the source."""
        add_rows(self.taken_rows, number, offsets)

    def deleted(self, number: int, before: BitMap) -> BitMap:
        """Return which rows of a fragment of the dest are deleted in the result; `before` are deleted on the dest."""
        return (before - self.revived.get(number, BitMap())) | self.masked.get(number, BitMap())


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentBuilder:
    """Makes the fragments of the result out of the collected edits.

    `from_source` maps field ids of the source to field ids of the result, and `row_ids` does the same for row ids.
    Versions up to `common` have the same numbers on both sides.
    """

    edits: FragmentEdits
    source: MatchedFragments
    dest: MatchedFragments
    dest_rows: Callable[[], RowChanges]
    source_rows: Mapping[int, RelocatedRows]
    from_source: Mapping[int, int]
    row_ids: Translation
    deleted: Deleted
    common: int
    _known_versions: dict[_Sequences, tuple[VersionRuns, VersionRuns]] = field(default_factory=dict)
    _new_versions: dict[tuple[bytes | None, int], tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The number of the version that is made."""
        return self.dest.side.version + 1

    def changed(self) -> tuple[dict[int, MergedFragment], tuple[int, ...]]:
        """Return the dest's fragments that change, by id, and the ids of fragments without a remaining row."""
        changed: dict[int, MergedFragment] = {}
        removed: list[int] = []
        for number in sorted({*self.edits.masked, *self.edits.revived, *self.edits.columns}):
            fragment = self.dest.side.fragment(number)
            before = self.deleted(self.dest.side, fragment)
            after = self.edits.deleted(number, before)
            if len(after) == fragment.physical_rows:
                removed.append(number)
                continue
            fragment, files = self._with_columns(fragment)
            if not after and before:
                fragment = replace(fragment, deletion=None)
            if (revived := before - after) and self.dest.side.stable_row_ids:
                # Readers of the changes since a version get the rows by it, with the values that are there again.
                fragment = with_new_values(fragment, self.version, revived)
            if number in self.edits.columns or after != before:
                # A deletion file is written only where the set of deleted rows changed and is not empty.
                same = after == before or not after
                changed[number] = MergedFragment(fragment=fragment, files=files, deleted=None if same else after)
        return changed, tuple(removed)

    def added(self, ids: Mapping[int, int]) -> list[MergedFragment]:
        """Return the fragments of the source that are new, in the order of `ids`, which has their ids in the result."""
        fragments: list[MergedFragment] = []
        for number, new_id in ids.items():
            alive = self.edits.taken_rows[number]
            fragment = self.source.side.fragment(number)
            # Both lines give the same field ids to different columns. Only the manifest names field ids, so the data
            # files need not be rewritten.
            files = tuple(self._renumbered(file) for file in fragment.files)
            files = tuple(file for file in files if any(own >= 0 for own in file.fields)) or files[:1]
            stamped = self._stamped(fragment) if self.dest.side.stable_row_ids else fragment
            # A fragment that is taken whole needs no deletion vector, and no set of all its rows to find that out.
            deleted = None if len(alive) == fragment.physical_rows else BitMap(range(fragment.physical_rows)) - alive
            # The name of a deletion file contains the fragment id, so a fragment cannot keep its file under a new id.
            new = replace(stamped, id=new_id, files=(), deletion=None)
            fragments.append(MergedFragment(fragment=new, files=files, deleted=deleted))
        return fragments

    def doubled(self, added: Sequence[MergedFragment]) -> int:
        """Return how many rows of the source would be in the result twice: 0, unless a rule has a fault."""
        # This check does not trust the decisions that made the result. Equal files are compared first: they show a
        # doubled row on tables without stable row ids too.
        same = self._in_same_files(added)
        if same or not self.dest.side.stable_row_ids or not added:
            return same
        # Ranges are put together as one map: a merge of a thousand fragments would make a thousand small maps.
        ranges = [None if merged.deleted else single_range(merged.fragment.row_ids or b"") for merged in added]
        in_ranges = RowRuns.of([(0, id_range[1], id_range[0]) for id_range in ranges if id_range is not None])
        parts = [
            row_ids_of(merged.fragment, "the result").restricted(
                BitMap(range(merged.fragment.physical_rows)) - (merged.deleted or BitMap())
            )
            for merged, id_range in zip(added, ranges, strict=True)
            if id_range is None
        ]
        every = RowRuns.set_of([in_ranges, *parts])
        twice = in_ranges.rows + sum(part.rows for part in parts) - every.rows
        # The dest can only have rows whose ids it assigned, so all ids from its next row id on are new.
        old_ids = every.through(RowRuns.of([(0, self.dest.side.next_row_id, 0)]))
        if not len(old_ids):
            return twice
        places = [place.id for number in self.source.changed if (place := self.dest.place(number)) is not None]
        # A row that the source moved is alive in one fragment of the source, and not in the fragment where it was
        # before. Only these fragments of the dest can have a row of an added fragment: fragments not in the merge base,
        # fragments in the place of base fragments that the source changed, and fragments with revived rows.
        there = sorted({*self.dest.unmatched, *places, *self.edits.revived} - self.edits.separate)
        ids = [row_ids_of(self.dest.side.fragment(number), "the dest") for number in there]
        # Only rows with these ids are checked for being alive, in the few fragments that have them.
        offsets_by_id = offsets_by_fragment(by_address(there, ids).where_in(old_ids))
        return twice + sum(len(offsets - self._deleted_in_result(number)) for number, offsets in offsets_by_id.items())

    def _deleted_in_result(self, number: int) -> BitMap:
        fragment = self.dest.side.fragment(number)
        return self.edits.deleted(number, self.deleted(self.dest.side, fragment))

    def _in_same_files(self, added: Sequence[MergedFragment]) -> int:
        """Count the rows that are alive in the same file on the dest, although no record says how they came there."""
        holders = {merged_fragment.files[0].path: merged_fragment for merged_fragment in added if merged_fragment.files}
        twice = 0
        for number in self.dest.unmatched if holders else ():
            for merged_fragment in map(holders.get, self.dest.side.fragments.paths(number)):
                if merged_fragment is not None:
                    dead = self._deleted_in_result(number) | (merged_fragment.deleted or BitMap())
                    twice += self.dest.side.fragment(number).physical_rows - len(dead)
        return twice

    def _with_columns(self, fragment: Fragment) -> tuple[Fragment, tuple[DataFile, ...]]:
        """Put the source's values of some columns beside the dest's rows, and take the dest's out."""
        if fragment.id not in self.edits.columns:
            return fragment, ()
        origin, columns = self.edits.columns[fragment.id]
        renumbered = {file.path: self._renumbered(file, only=columns) for file in origin.files}
        merged_fragment = {
            path: file for path, file in renumbered.items() if any(number >= 0 for number in file.fields)
        }
        remaining = []
        for file in fragment.files:
            # Two files of one fragment must not hold the same field. The older file is shared with other versions and
            # keeps its bytes, so the field is tombstoned in the manifest and its other columns stay in use.
            fields = tuple(TOMBSTONE_FIELD if number in columns else number for number in file.fields)
            same = merged_fragment.pop(file.path, None)
            if same is not None and same.column_indices == file.column_indices:
                # The dest still has this file for its other columns. A column that was dropped and comes back is named
                # in it again, so that the fragment does not list the file twice.
                fields = tuple(new if new >= 0 else own for own, new in zip(fields, same.fields, strict=True))
            if any(number >= 0 for number in fields):
                remaining.append(replace(file, fields=fields))
        changed = replace(fragment, files=tuple(remaining))
        if self.dest.side.stable_row_ids:
            # Lance stamps rows as updated when a column is written beside them, and later merges read these stamps.
            changed = with_new_values(changed, self.version)
        return changed, tuple(merged_fragment.values())

    def _renumbered(self, file: DataFile, only: frozenset[int] | None = None) -> DataFile:
        ids = (self.from_source.get(number, TOMBSTONE_FIELD) for number in file.fields)
        fields = tuple(number if only is None or number in only else TOMBSTONE_FIELD for number in ids)
        return file if fields == file.fields else replace(file, fields=fields)

    def _stamped(self, fragment: Fragment) -> Fragment:
        row_ids, (origins, updated_rows) = self._translated_ids(fragment), self._origins(fragment)
        if not len(origins):
            # No row of the merge base is among them. Fragments of one append share the bytes of their versions.
            key = fragment.created_at, fragment.physical_rows
            if key not in self._new_versions:
                created, updated = self._versions_of_new_rows(fragment)
                self._new_versions[key] = encode_version_runs(created), encode_version_runs(updated)
            created_at, updated_at = self._new_versions[key]
            return replace(fragment, row_ids=row_ids, created_at=created_at, updated_at=updated_at)
        created, updated = self._versions_of_new_rows(fragment)
        # Deleted rows get their versions as well: pylance reads there when a row was created that an update moves.
        for created_at_dest, updated_at_dest in self._versions_on_dest(origins):
            created = created.overlaid(created_at_dest)
            updated = updated.overlaid(
                updated_at_dest.restricted(updated_at_dest.positions - updated_rows)
                if updated_rows
                else updated_at_dest
            )
        return replace(
            fragment,
            row_ids=row_ids,
            created_at=encode_version_runs(created),
            updated_at=encode_version_runs(updated),
        )

    def _translated_ids(self, fragment: Fragment) -> bytes:
        """Return the row ids that the rows of a fragment of the source get in the result.

        Raises:
            CorruptFileError: The fragment has row ids that the source never assigned.
        """
        where, rows = f"fragment {fragment.id} of the source", fragment.physical_rows
        id_range = single_range(fragment.row_ids or b"", where)
        if id_range is not None and id_range[1] == rows:
            # Two numbers take the place of arrays: nearly all fragments of an append are of this kind.
            first = self.row_ids.of_range(*id_range)
            if first is not None:
                return row_id_range(first, rows)
        ids = decode_row_runs(fragment.row_ids, rows, where).through(self.row_ids.runs)
        if ids.rows != rows:
            raise CorruptFileError(where, "it has row ids at or above the next row id")
        return encode_row_runs(ids)

    def _versions_of_new_rows(self, fragment: Fragment) -> tuple[VersionRuns, VersionRuns]:
        """Return when the rows of a fragment of the source were created and last updated, as if all were new."""
        rows = fragment.physical_rows
        own = decode_version_runs(fragment.created_at, rows, f"fragment {fragment.id} of the source")
        # Version numbers after the last common one belong to the line of the source and mean other versions on the
        # dest.
        created = np.where(own.version <= np.uint64(self.common), own.version, np.uint64(self.version))
        return own.with_versions(created), VersionRuns.of([(rows, self.version)])

    def _origins(self, fragment: Fragment) -> tuple[Origins, BitMap]:
        """Return where the rows of a fragment of the source come from, and which got new values."""
        rows = self.source_rows.get(fragment.id)
        own = self.source.base_of(fragment.id)
        if own is None:
            if rows is None:
                raise LookupError(f"fragment {fragment.id} of the source was not looked at")
            return rows.origins, rows.updated
        # The fragment is still in the place of a fragment of the merge base, and is taken because of the columns the
        # source wrote. Files that the merge base does not have show that the rows got new values.
        every = BitMap(range(fragment.physical_rows))
        base_files = set(backing(self.source.base.fragment(own)).values())
        updated = every if set(backing(fragment).values()) - base_files else BitMap()
        origins = Origins(base=addresses_of(fragment, own))
        if rows is not None:
            others, relocated = origins.base.restricted(every - rows.live), rows.origins.restricted(rows.live)
            origins = replace(relocated, base=RowRuns.united([others, relocated.base]))
            updated = (updated - rows.live) | (rows.updated & rows.live)
        return origins, updated

    def _versions(self, fragment: Fragment) -> tuple[VersionRuns, VersionRuns]:
        """Return when the rows of a fragment of the dest were created and last updated.

        Fragments that one append wrote with as many rows each have the same bytes there, so these are kept.
        """
        key = fragment.created_at, fragment.updated_at, fragment.physical_rows
        if key not in self._known_versions:
            where = f"fragment {fragment.id} of the dest"
            self._known_versions[key] = (
                decode_version_runs(fragment.created_at, fragment.physical_rows, where),
                decode_version_runs(fragment.updated_at, fragment.physical_rows, where),
            )
        return self._known_versions[key]

    def _versions_on_dest(self, origins: Origins) -> Iterator[tuple[VersionRuns, VersionRuns]]:
        """Return when rows were created and last updated on the dest, by position, for the rows that it has."""
        numbers = [number for number in fragments_named(origins.base) if self.dest.place(number) is not None]
        places = [place for number in numbers if (place := self.dest.place(number)) is not None]
        there = by_address(
            numbers, [RowRuns.of([(0, place.physical_rows, place.id << OFFSET_BITS)]) for place in places]
        )
        # Rows that the dest has in place come first. What the dest moved is looked up only for the rows that are left.
        yield from self._versions_at(origins.base.through(there), places)
        missing = replace(origins, base=origins.base.without(there))
        for rows in self.dest_rows().relocated.values() if len(missing) else ():
            places_on_dest = missing.found_in(rows.origins)
            # A row that was moved more than once is deleted in all of its fragments but one, so the first fragment that
            # has it counts.
            missing = missing.without(rows.origins)
            here = places_on_dest.moved(first=rows.fragment.id << OFFSET_BITS)
            yield from self._versions_at(here, [rows.fragment])

    def _versions_at(self, rows: RowRuns, fragments: Sequence[Fragment]) -> Iterator[tuple[VersionRuns, VersionRuns]]:
        """Look up when rows were created and last updated, by their addresses on the dest."""
        if len(rows):
            ordered = sorted(fragments, key=lambda fragment: fragment.id)
            versions = [self._versions(fragment) for fragment in ordered]
            numbers = [fragment.id for fragment in ordered]
            created, updated = zip(*versions, strict=True)
            yield rows.versions(at_addresses(numbers, created)), rows.versions(at_addresses(numbers, updated))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBuilder:
    """Collects the edits of both sides' fragments. The rows of the dest are looked up only where they matter."""

    source: MatchedFragments
    dest: MatchedFragments
    source_rows: RowChanges
    dest_rows: Callable[[], RowChanges]
    deleted: Deleted
    edits: FragmentEdits = field(default_factory=FragmentEdits)

    def apply_decision(self, number: BaseKey, facts: Situation, decision: Decision) -> None:
        """Collect the edits that follow from the decision about one fragment of the merge base."""
        source, dest, edits = facts.source, facts.dest, self.edits
        from_source = decision.from_source
        if dest.place is not None:
            back = BitMap()
            if not facts.dest_columns:
                # Rows that the dest deleted are still in its data files, so they are revived without adding a fragment.
                # A column file that the dest wrote since has no valid values for rows that were deleted by then. Where
                # the source wrote columns beside its rows, a row that it moved has these values in its new fragment
                # only.
                same = source.stays if facts.source_columns else source.stays | source.moved
                back = from_source & same - dest.alive
            from_source = from_source - back
            # A row that is taken from the source has to leave the fragment of the dest, or the result has it twice.
            edits.mask(dest.place.id, dest.stays - (decision.alive - from_source))
            edits.revive(dest.place.id, back | (BitMap() if facts.dest_columns else from_source & source.stays))
            if source.place is not None and facts.source_columns:
                edits.columns[dest.place.id] = source.place, facts.source_columns
        if source.place is not None and (dest.place is None or facts.dest_columns):
            edits.take(source.place.id, from_source & source.stays)
        # The same holds for rows that the dest moved or updated: every other fragment that has them gets a deletion.
        outdated = (dest.moved | dest.updated) - (decision.alive - from_source)
        for holder, offsets in self.dest_rows().holders(number, outdated).items() if outdated else ():
            edits.mask(holder, offsets)
        for holder, offsets in self.source_rows.holders(number, from_source - source.stays).items():
            self._take(holder, offsets)

    def beside_others(self) -> Iterator[tuple[frozenset[int], int, BitMap]]:
        """Find columns of the source that come beside rows which the source does not have: it wrote no values for them.

        Returns:
            The columns, and the rows: their fragment of the merge base and their offsets in it.
        """
        for number, (of, columns) in self.edits.columns.items():
            rows = self._alive(number) - live_rows(self.source.side, of, self.deleted)
            if rows:
                yield columns, self._in_base(number), rows

    def _take(self, holder: int, offsets: BitMap) -> None:
        """Take rows from a fragment of the source; or from the dest's in the same place, where it has the files."""
        own = self.source.base_of(holder)
        place = None if own is None else self.dest.place(own)
        fragment = self.source.side.fragment(holder)
        # The dest has the same files with the row deleted in them. Reviving it there avoids a second fragment of the
        # same files.
        if place is not None and place.file_names == fragment.file_names:
            self.edits.revive(place.id, offsets)
        else:
            self.edits.take(holder, offsets)

    def _in_base(self, number: int) -> int:
        base_id = self.dest.base_of(number)
        if base_id is None:
            raise LookupError(f"fragment {number} of the dest does not correspond to one of the merge base")
        return base_id

    def _alive(self, number: int) -> BitMap:
        """Return the offsets of the rows of a fragment of the dest that live on in it."""
        fragment = self.dest.side.fragment(number)
        before = self.deleted(self.dest.side, fragment)
        return BitMap(range(fragment.physical_rows)) - self.edits.deleted(number, before)
