r"""Decide, for the rows of one fragment of the merge base, which live on and from which side they are taken.

    source \ dest   same          updated       deleted
    same            keep          the dest's    gone
    updated         the source's  conflict      conflict
    deleted         gone          conflict      gone

Example: the merge base has the rows 0 to 3. The source updated row 0 and deleted row 1, the dest updated rows 1 and 2.
Then row 0 is taken from the source, rows 2 and 3 from the dest, and row 1 is a conflict.

A row that was deleted in the merge base and lives on one side (by a restore) lives. Rows that live on are taken from
where the dest has them, so that the dest's layout and indices stay, with three exceptions that are taken from the
source: rows that the source updated; rows that the source moved while the dest left them where they were, so that a
compaction on a branch arrives with the branch; and rows that the dest only moved, where the source has new columns for
them. It is a conflict if a row would be taken from a side where it lacks columns that the other side wrote.

Two updates of a row do not conflict where they changed different cells, or gave a cell the same value: the row gets the
changes of both sides. Where neither side's copy of the row has all changes, the row is written anew, with its id
(`combine_updates`).

`decide` implements the table; `RowRules.decide_fragment` gathers its input from both sides.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.model import Fragment
from lance_dagster.format.row_runs import U64Array, elements
from lance_dagster.merge.rules.columns.column_matching import backing
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema
from lance_dagster.merge.rules.merge_input import Cells, ComparedCells
from lance_dagster.merge.rules.merge_side import MOST_ROWS_COMPARED, MergeSide, picked_rows
from lance_dagster.merge.rules.row_changes import FragmentRowChanges, live_rows
from lance_dagster.merge.rules.row_origins import OFFSET_BITS, Absence, AbsentRows, BaseKey, BaseRows
from lance_dagster.merge.rules.strategy import DEST_WINS, SOURCE_WINS, ParsedStrategy, Winner, add_rows

Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
Fields = frozenset[int]
"""Ids of fields of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What both sides did to a fragment of the merge base, as offsets in it and ids of fields of the result.

    `source_columns` and `dest_columns` are the fields in which a side has other values than the merge base, or values
    that the merge base lacks. `source_undone` and `dest_undone` are rows for which a side's change does not count.
    `traceable` says that a row can be found wherever it was moved, so that the merge may move it as well. `uncertain`
    says that a side wrote columns beside rows of unknown origin, so perhaps not beside all rows of this fragment.
    `combined` are rows that are written anew with the cells of both sides, so that the copies of both sides are
    deleted; `in_conflict` are the combined rows for which a strategy decides about cells.
    """

    live: BitMap
    source: FragmentRowChanges
    dest: FragmentRowChanges
    source_columns: frozenset[int]
    dest_columns: frozenset[int]
    source_undone: BitMap
    dest_undone: BitMap
    traceable: bool
    uncertain: bool
    combined: BitMap = field(default_factory=BitMap)
    in_conflict: BitMap = field(default_factory=BitMap)


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedUpdates:
    """Rows of the merge base that both sides updated, as far as comparing their cells settles them.

    For rows `in_dest`, the dest's copy has the changes of both sides; for rows `in_source`, the source's copy has them.
    `combined` rows are written anew, from the copies at the addresses `source` and `dest`, in the order of the merge
    base: `from_source` flags the cells of `columns` that are taken from the source's copy; all other cells are taken
    from the dest's copy. `in_conflict` are combined rows in which both sides gave a cell different values; a strategy
    decides which value the cell gets.

    Example: the merge base has the row (1, "a"), the source (2, "a") and the dest (1, "b"). No side has (2, "b"), so
    the row is combined, and `from_source` is [yes, no].
    """

    in_dest: BaseRows = field(default_factory=dict)
    in_source: BaseRows = field(default_factory=dict)
    combined: BaseRows = field(default_factory=dict)
    in_conflict: BaseRows = field(default_factory=dict)
    source: U64Array = field(default_factory=lambda: np.empty(0, np.uint64))
    dest: U64Array = field(default_factory=lambda: np.empty(0, np.uint64))
    columns: tuple[str, ...] = ()
    from_source: Cells = field(default_factory=lambda: np.empty((0, 0), np.bool_))


NO_COMBINED_UPDATES = CombinedUpdates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about some rows: `alive` rows live on, and `from_source` are the live rows taken from the source.

    `conflicting` are rows that both sides changed. `lacking_source_columns` are rows that the dest moved or updated,
    away from the columns that the source wrote; `lacking_dest_columns` is the reverse. `both_moved` are rows that each
    side moved away from columns of the other side. `source_given_up` are rows that lose the new values of the source,
    because they are taken from where the dest's columns are; `dest_given_up` is the reverse. `options` are the
    strategies that can settle the conflict: a side cannot win where updated rows of the other side cannot be traced.
    """

    alive: BitMap
    from_source: BitMap
    conflicting: BitMap
    lacking_source_columns: BitMap
    lacking_dest_columns: BitMap
    both_moved: BitMap
    source_given_up: BitMap
    dest_given_up: BitMap
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedFragment:
    """The decision about the rows of a fragment of the merge base, or about rows that it does not have.

    `written_twice` are fields that both sides wrote beside the same rows, each with the rows that both sides have.
    """

    number: BaseKey
    situation: Situation
    decision: Decision
    written_twice: Mapping[int, BitMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """The input of the decisions about all fragments: the sides, the merged schema, lost claims, the strategy.

    `source_undone` and `dest_undone` are rows of the merge base, by its fragments, for which the change of a side does
    not count, since it lost the claim to them. `equal_updates` are rows that both sides updated to the same values, as
    `equally_updated_rows` finds them. `source_only_moved` and `dest_only_moved` are rows that a side seems to have
    updated, as `only_moved_rows` finds them. `combined` has the rows for which `combine_updates` combines
    the updates of both sides.
    """

    source: MergeSide
    dest: MergeSide
    schema: MergedSchema
    source_undone: BaseRows
    dest_undone: BaseRows
    strategy: ParsedStrategy
    equal_updates: BaseRows = field(default_factory=dict)
    source_only_moved: BaseRows = field(default_factory=dict)
    dest_only_moved: BaseRows = field(default_factory=dict)
    combined: CombinedUpdates = NO_COMBINED_UPDATES

    def decide_fragment(self, number: BaseKey) -> DecidedFragment | None:
        """Decide about the rows of a fragment of the merge base; None where the dest keeps all rows as they are.

        Args:
            number: The fragment, or the key of rows that the merge base does not have.
        """
        absence = number.why if isinstance(number, AbsentRows) else None
        fragment = None if isinstance(number, AbsentRows) else self.source.base.fragment(number)
        changes = source, dest = self._compared(number)
        # Rows that reached both sides through other branches count as live in the merge base, as they would be in a
        # merge base that contains these branches. Rows that the merge base has deleted do not.
        unknown = source.alive | dest.alive if absence is Absence.SHARED else BitMap()
        live = unknown if fragment is None else live_rows(self.source.base, fragment, self.source.lookups.deleted)
        source_undone = self.source_undone.get(number, BitMap())
        dest_undone = self.dest_undone.get(number, BitMap())
        differing = self._differing_fields(number, fragment, changes)
        # A source that left all rows in place and wrote no column gives no reason to change the dest. Rows to which the
        # dest lost its claim have to be restored all the same.
        untouched = source.stays == live and not (source.moved or source.updated or source.copied)
        if untouched and not differing[0] and not dest_undone:
            return None
        differing = self._in_whole_units(differing)
        twice = self._written_twice(changes, differing)
        source_columns, dest_columns = self._settled_fields(differing, twice.keys())
        if dest_columns & self.schema.equal:
            # Rows that the source moved or updated have values of their own in a column that both sides added.
            away = source.moved | source.updated
            dest_columns -= self.schema.equal & self._in_result(self.source, self.source.backed_for_all(number, away))
        situation = Situation(
            live=live,
            source=source,
            dest=dest,
            source_columns=source_columns,
            dest_columns=dest_columns,
            source_undone=source_undone,
            dest_undone=dest_undone,
            traceable=self.source.base.stable_row_ids,
            uncertain=self.source.may_lack_columns(number, source) or self.dest.may_lack_columns(number, dest),
            combined=self.combined.combined.get(number, BitMap()),
            in_conflict=self.combined.in_conflict.get(number, BitMap()),
        )
        winners = self.winner_for(source_columns), self.winner_for(dest_columns)
        decision = decide(situation, rows=self.strategy.winner("rows", "rows"), columns=winners)
        return DecidedFragment(number=number, situation=situation, decision=decision, written_twice=twice)

    def winner_for(self, fields: Fields) -> Winner | None:
        """Return the strategy for rows that lack the other side's values of some columns."""
        if not fields or not self.strategy.winners:
            return None
        return self.strategy.winner_for_columns(
            {path for number, path in self.schema.units.items() if number in fields}
        )

    def _in_result(self, side: MergeSide, fields: set[int]) -> set[int]:
        """Return the ids that fields of a side have in the result, for fields that the result has."""
        if not side.is_source:
            # A row that was written before its column was dropped still has values of it.
            return fields & self.schema.paths.keys()
        ids = self.schema.from_source
        return {ids[own] for own in fields if own in ids}

    def _compared(self, number: BaseKey) -> tuple[FragmentRowChanges, FragmentRowChanges]:
        """Return what both sides did to the rows of a fragment of the merge base, after their values were compared.

        A row that both sides updated to equal values counts as updated by one side only: by the dest, or by the source
        where its copy has values of more columns. A row that the merge base has deleted, and that both sides have
        again, counts as updated by both sides if the two copies may differ.
        """
        combined = self.combined
        source, dest = self.source.of(number), self.dest.of(number)
        # The copy that has the changes of both sides counts as the only update.
        for rows in (self.source_only_moved, combined.in_dest):
            source = _without_updates(source, rows.get(number))
        for rows in (self.dest_only_moved, combined.in_source):
            dest = _without_updates(dest, rows.get(number))
        updated_by_both = source.updated & dest.updated
        # Both sides can have the same update, from a third branch or because they computed equal values. A conflict
        # about such rows would refuse a merge in which nothing can be lost.
        if updated_by_both and (
            same := self._in_one_place(number, updated_by_both)
            | (self.equal_updates.get(number, BitMap()) & updated_by_both)
        ):
            of_source, of_dest = (self._in_result(side, side.backed(number, same)) for side in (self.source, self.dest))
            # The side with values of more columns keeps the update, since a copy from the other side would be null in
            # the additional columns. Where each side has a column that the other lacks, the rows stay in conflict.
            if of_source <= of_dest:
                source = replace(source, updated=source.updated - same, moved=source.moved | same)
            elif of_dest < of_source:
                dest = replace(dest, updated=dest.updated - same, moved=dest.moved | same)
        # A revert does not show which columns it filled, so two revived copies of a row may have different values. Only
        # copies at the same offset of the same file are certainly equal.
        was_deleted = isinstance(number, AbsentRows) and number.why is Absence.DELETED
        if was_deleted and self.dest.hides_filled_columns and (back := source.moved & dest.moved - updated_by_both):
            differing = back - self._in_one_place(number, back)
            source = replace(source, updated=source.updated | differing, moved=source.moved - differing)
            dest = replace(dest, updated=dest.updated | differing, moved=dest.moved - differing)
        return source, dest

    def _in_one_place(self, number: BaseKey, rows: BitMap) -> BitMap:
        """Return the rows that both sides have at the same offset of the same file: they are the same rows."""
        source, dest = (side.rows.places(number, rows) for side in (self.source, self.dest))
        return BitMap(offset for offset, place in source.items() if dest.get(offset) == place)

    def _differing_fields(
        self, number: BaseKey, fragment: Fragment | None, changes_by_side: tuple[FragmentRowChanges, FragmentRowChanges]
    ) -> tuple[Fields, Fields]:
        """Return the fields in which each side differs from the merge base for a fragment's rows.

        Args:
            number: The key of the fragment.
            fragment: The fragment in the merge base; None for rows that the merge base does not have.
            changes_by_side: What became of its rows on the source and on the dest.
        """
        sides = self.source, self.dest
        source, dest = (
            self._in_result(side, _changed(number, fragment, changes, side))
            for changes, side in zip(changes_by_side, sides, strict=True)
        )
        # Files of the dest still have a column that it dropped, under the id that a revert brings it back with. The
        # dest wrote no value of it, and rows that it updated since lack it.
        dest -= self.schema.added_by_source - {field.id for field in self.dest.manifest.fields}
        shared = changes_by_side[0].alive & changes_by_side[1].alive if fragment is None else BitMap()
        # Both sides got these rows from a third branch, perhaps with values of different columns beside them.
        if shared:
            of_source, of_dest = (self._in_result(side, side.backed(number, shared)) for side in sides)
            source, dest = source | (of_source - of_dest), dest | (of_dest - of_source)
        # A field that the result does not have needs no values, so no row can lack it. Of a field that the source
        # dropped and the strategy keeps, the dest's values count as written: rows taken from the source would be null.
        fields_of_result = self.schema.paths.keys()
        return frozenset(source & fields_of_result), frozenset((dest | self.schema.kept_by_strategy) & fields_of_result)

    def _in_whole_units(self, differing: tuple[Fields, Fields]) -> tuple[Fields, Fields]:
        """Count a list or map as wholly written by both sides where each side wrote a part: one side has to win it."""
        units = self.schema.units
        source, dest = ({units[number] for number in fields} for fields in differing)
        in_units = self.schema.inside(source & dest) if source & dest else frozenset[int]()
        return differing[0] | in_units, differing[1] | in_units

    def _written_twice(
        self, changes: tuple[FragmentRowChanges, FragmentRowChanges], differing: tuple[Fields, Fields]
    ) -> dict[int, BitMap]:
        """Return the fields that both sides wrote beside the same rows, and these rows."""
        fields = differing[0] & differing[1]
        if not fields:
            return {}
        # If both have the same file, its values were written once and came to a side by an earlier merge: no conflict.
        same = self._in_same_files(fields, changes) | self.schema.equal
        return dict.fromkeys(fields - same, changes[0].alive & changes[1].alive)

    def _in_same_files(self, fields: Fields, changes: tuple[FragmentRowChanges, FragmentRowChanges]) -> Fields:
        source_place, dest_place = changes[0].place, changes[1].place
        if source_place is None or dest_place is None:
            return frozenset()
        source_ids = {number: own for own, number in self.schema.from_source.items()}
        source, dest = backing(source_place), backing(dest_place)
        return frozenset(number for number in fields if source.get(source_ids.get(number, -1)) == dest.get(number))

    def _settled_fields(self, differing: tuple[Fields, Fields], twice: Collection[int]) -> tuple[Fields, Fields]:
        """Return the fields in which each side's values count; a field that both wrote counts for the winner alone."""
        source, dest = differing
        # Without a strategy, the rest is computed as if the dest won; the finding is reported all the same.
        for number in source & dest:
            if number in twice and self.winner_for(frozenset({number})) == SOURCE_WINS:
                dest -= {number}
            else:
                source -= {number}
        return source, dest


def equally_updated_rows(source: MergeSide, dest: MergeSide, schema: MergedSchema, keys: Iterable[BaseKey]) -> BaseRows:
    """Return the rows that both sides updated to the same values.

    Args:
        source: The side that is merged.
        dest: The side it is merged into.
        schema: The merged schema: columns that only one side has are not compared.
        keys: The fragments of the merge base that are looked at.
    """
    equal = source.lookups.equal_rows
    # A cast gives a column another id, so that its values would not be compared.
    if equal is None or source.casts or dest.casts:
        return {}
    candidates: dict[BaseKey, BitMap] = {}
    for key in keys:
        updated = source.rows.moved_from(key)[1]
        # What the dest did is looked up only where the source updated something.
        if updated and (updated_by_both := updated & dest.rows.moved_from(key)[1]):
            candidates[key] = updated_by_both
    # The comparison reads data files, so its cost is bounded. Rows that are not compared stay conflicts, which is safe.
    if not 0 < sum(map(len, candidates.values())) <= MOST_ROWS_COMPARED:
        return {}
    dest_ids = {field.id for field in dest.manifest.fields}
    matched = {own: number for own, number in schema.from_source.items() if number in dest_ids}
    addresses = [np.concatenate([side.addresses(*pair) for pair in candidates.items()]) for side in (source, dest)]
    flags = equal((source.manifest, addresses[0]), (dest.manifest, addresses[1]), matched)
    return picked_rows(candidates, flags)


def combine_updates(
    rules: RowRules, keys: Iterable[BaseKey], claimed: Callable[[], Collection[str] | None]
) -> CombinedUpdates:
    """Compare the cells of rows that both sides updated to different values.

    Args:
        rules: The sides, the strategy, and the rows whose cells need not be compared.
        keys: The fragments of the merge base that are looked at.
        claimed: Returns the columns that claims of either side are about; None where they are unknown. A row in which
            one of these changed stays a conflict: the combined row could be in a scope that neither copy is in.
    """
    source, dest, base = rules.source, rules.dest, rules.source.base
    compare = source.lookups.compare_cells
    # One file gets the whole rows, so all three versions have to have the same columns, though perhaps in another order
    # and under other ids, as after merges both ways.
    same = source.has_columns_of_base and dest.has_columns_of_base and rules.schema.fields == dest.manifest.fields
    if compare is None or not base.stable_row_ids or not same:
        return NO_COMBINED_UPDATES
    candidates: dict[BaseKey, BitMap] = {}
    for key in keys:
        updated = source.rows.moved_from(key)[1]
        if not isinstance(key, AbsentRows) and updated and (updated_by_both := updated & dest.rows.moved_from(key)[1]):
            for settled in (rules.equal_updates, rules.source_only_moved, rules.dest_only_moved):
                updated_by_both -= settled.get(key, BitMap())
            updated_by_both -= rules.source_undone.get(key, BitMap()) | rules.dest_undone.get(key, BitMap())
            add_rows(candidates, key, updated_by_both & live_rows(base, base.fragment(key), source.lookups.deleted))
    # A branch may have made thousands of claims, so they are looked at only where there is a row to combine.
    if not 0 < sum(map(len, candidates.values())) <= MOST_ROWS_COMPARED or (columns := claimed()) is None:
        return NO_COMBINED_UPDATES
    before = [
        elements(rows).astype(np.uint64) + np.uint64(key << OFFSET_BITS)
        for key, rows in candidates.items()
        if not isinstance(key, AbsentRows)
    ]
    after = [[side.addresses(*pair) for pair in candidates.items()] for side in (source, dest)]
    at = [np.concatenate(parts) for parts in (before, *after)]
    cells = compare((base, at[0]), (source.manifest, at[1]), (dest.manifest, at[2]))
    if cells is None:
        return NO_COMBINED_UPDATES
    winner = rules.strategy.winner("rows", "rows")
    return _combined(candidates, cells, (at[1], at[2]), claimed=columns, winner=winner)


def _combined(
    rows: BaseRows,
    cells: ComparedCells,
    at: tuple[U64Array, U64Array],
    *,
    claimed: Collection[str],
    winner: Winner | None,
) -> CombinedUpdates:
    """Find for each row the copy that has the changes of both sides, or that the row has to be written anew."""
    # Where both sides gave a cell the same value, either copy has it.
    differing = cells.source & cells.dest & cells.apart
    from_source = cells.source & cells.apart
    if winner != SOURCE_WINS:
        from_source &= ~differing
    has_conflict, in_dest = np.any(differing, axis=1), ~np.any(from_source, axis=1)
    in_source = ~in_dest & np.all(from_source == cells.apart, axis=1)
    is_claimed = (cells.source | cells.dest)[:, [name in claimed for name in cells.columns]].any(axis=1)
    # A row with such a cell is a conflict. Without a strategy the row is not written; with a strategy, the winner's
    # copy may have all cells.
    settled = ~(has_conflict | is_claimed)
    written_anew = ~(in_dest | in_source | is_claimed)
    if winner is None:
        written_anew &= settled
    return CombinedUpdates(
        in_dest=picked_rows(rows, in_dest & settled),
        in_source=picked_rows(rows, in_source & settled),
        combined=picked_rows(rows, written_anew),
        in_conflict=picked_rows(rows, written_anew & has_conflict),
        source=at[0][written_anew],
        dest=at[1][written_anew],
        columns=cells.columns,
        from_source=from_source[written_anew],
    )


def only_moved_rows(side: MergeSide, other_side: MergeSide, keys: Iterable[BaseKey]) -> BaseRows:
    """Return the rows that the other side changed and that a side seems to have updated, but only moved.

    Args:
        side: The side whose values are compared with the merge base.
        other_side: The other side.
        keys: The fragments of the merge base that are looked at.
    """
    if not side.may_only_have_moved:
        return {}
    candidates: dict[BaseKey, BitMap] = {}
    for key in keys:
        updated = side.rows.moved_from(key)[1]
        if updated:
            changes = other_side.of(key)
            # Rows that the other side did not touch cannot be in conflict, so their values need not be read. Where it
            # wrote columns beside them, a row that was updated lacks these, and one that only moved may get them.
            filled = None if isinstance(key, AbsentRows) else other_side.columns.written_beside(key)
            add_rows(candidates, key, updated if filled else updated - changes.stays - changes.moved)
    return side.same_as_base(candidates)


def _without_updates(changes: FragmentRowChanges, rows: BitMap | None) -> FragmentRowChanges:
    """Count some updated rows as moved."""
    return replace(changes, updated=changes.updated - rows, moved=changes.moved | rows) if rows else changes


def _changed(number: BaseKey, fragment: Fragment | None, changes: FragmentRowChanges, side: MergeSide) -> set[int]:
    """Return the fields, by the ids of the side, that may differ from the merge base in rows of a fragment."""
    columns, changed = side.columns, set[int]()
    if changes.place is None or fragment is None or changes.moved or changes.updated:
        # A moved row took with it the values that were written beside it before it moved.
        changed |= columns.written_beside(None if fragment is None else fragment.id)
    if changes.place is not None and fragment is not None:
        # Lance never rewrites a data file: a column differs from the merge base only if another file holds it.
        base_files, side_files, base_ids = backing(fragment), backing(changes.place), columns.base_ids
        changed |= {own for own, path in side_files.items() if base_files.get(base_ids.get(own, -1)) != path}
        # The merge base has values of these columns and the side has none any more, so its rows are null there.
        changed |= {
            columns.ids[number]
            for number in base_files
            if number in columns.ids and columns.ids[number] not in side_files
        }
        # An update in place writes a new file for the whole column and names the rows that it changed. These rows count
        # as updated; for all other rows the new file repeats the values of the merge base.
        changed -= columns.of_single_rows(fragment.id)
    if side.hides_filled_columns and fragment is not None:
        # A column the merge base does not have may have been there before any change that is looked at.
        added = side.backed(number, changes.moved | changes.updated) - columns.base_ids.keys()
        changed |= added - columns.nulls
    return changed


def decide(facts: Situation, *, rows: str | None, columns: tuple[str | None, str | None]) -> Decision:
    """Decide about the rows of one fragment.

    Args:
        facts: What both sides did.
        rows: The strategy for rows both changed.
        columns: The strategies for updated rows that lack columns of the source, and columns of the dest.
    """
    source, dest, live = facts.source, facts.dest, facts.live
    # A change that does not count leaves the row as the merge base has it: alive or deleted.
    s_alive = (source.alive - facts.source_undone) | (facts.source_undone & live)
    d_alive = (dest.alive - facts.dest_undone) | (facts.dest_undone & live)
    # A row that was rewritten untraceably counts as updated. If it counted as deleted, its new copy would come back
    # unnoticed where the other side deleted the row.
    s_new = (source.updated | source.rewritten) - facts.source_undone
    d_new = (dest.updated | dest.rewritten) - facts.dest_undone
    s_gone, d_gone = live - s_alive - s_new, live - d_alive - d_new
    # A row that both sides deleted is no conflict. A row that one side deleted and the other side updated is a
    # conflict: whichever side wins, the change of the other side is lost.
    conflicting = ((s_new & d_new) | (s_new & d_gone) | (s_gone & d_new)) - (facts.combined - facts.in_conflict)
    # A row that one side brought back, and of which the other side may have a copy, would be there twice.
    conflicting |= ((s_alive - live) & dest.copied) | ((d_alive - live) & source.copied)
    winner = s_alive if rows == SOURCE_WINS else d_alive
    # A live row of the merge base survives if both sides have it. A row that the merge base has deleted survives if at
    # least one side brought it back: the side that left it deleted changed nothing.
    alive = ((s_alive & d_alive & live) | ((s_alive | d_alive) - live)) - conflicting | (conflicting & winner)
    # These rows are written anew, so the copies of both sides go.
    alive -= facts.combined
    updated = (source.updated - facts.source_undone) & alive
    kept_updates = updated - conflicting if rows != SOURCE_WINS else updated
    # A row that is alive only on the source can be taken only from there.
    origins = _RowOrigins(facts, alive, kept_updates | ((alive - dest.alive) & source.alive))
    origins.settle(*columns)
    if facts.dest_undone:
        # Where the dest lost its claim to a row, its copy has values that do not count. The source's copy replaces it.
        origins.from_source |= alive & dest.updated & facts.dest_undone & source.alive
    # Without stable row ids, rows that the loser wrote anew cannot be found and taken out: both would stay. And where
    # nothing tells whether a side has a copy, the row that came back may be the only one.
    copied = source.copied | dest.copied
    options: list[Winner] = []
    if not conflicting & (dest.rewritten | copied):
        options.append(SOURCE_WINS)
    if not conflicting & (source.rewritten | copied):
        options.append(DEST_WINS)
    return Decision(
        alive=alive,
        from_source=origins.from_source & alive,
        conflicting=conflicting,
        lacking_source_columns=origins.lacking_source,
        lacking_dest_columns=origins.lacking_dest,
        both_moved=origins.both_moved,
        source_given_up=origins.source_given_up,
        dest_given_up=origins.dest_given_up,
        options=tuple(options),
    )


class _RowOrigins:
    """Chooses the rows that are taken from the source, of the rows that live on."""

    def __init__(self, facts: Situation, alive: BitMap, from_source: BitMap) -> None:
        self._facts, self._alive = facts, alive
        self.from_source = from_source
        self.lacking_source = BitMap()
        self.lacking_dest = BitMap()
        self.both_moved = BitMap()
        self.source_given_up = BitMap()
        self.dest_given_up = BitMap()

    def settle(self, of_source: str | None, of_dest: str | None) -> None:
        source, dest = self._facts.source, self._facts.dest
        from_dest = self._alive - self.from_source
        if self._facts.dest_columns:
            # The source wrote its copies of these rows without the dest's columns: they are null there or have old
            # values.
            self.lacking_dest = (self.from_source & source.updated & dest.alive) | source.rewritten
            if of_dest == DEST_WINS:
                self.source_given_up = self.from_source & self.lacking_dest
                self.from_source -= self.source_given_up
        # A row that the dest updated in place still lies in the fragment of the merge base, so the source's column file
        # fits beside it as beside every other row of that fragment.
        changed = (from_dest & (dest.updated - dest.in_place)) | dest.rewritten
        if self._facts.source_columns:
            self.lacking_source = changed
            if of_source == SOURCE_WINS:
                self.dest_given_up = changed & dest.updated & source.alive
                self.from_source |= self.dest_given_up
                # The source's copies lack the dest's new values, and also the columns that the dest wrote beside the
                # rows.
                self.lacking_dest |= self.dest_given_up if self._facts.dest_columns else BitMap()
        self._unchanged(from_dest - dest.updated)

    def _unchanged(self, rows: BitMap) -> None:
        """Choose where to take rows from that neither side gave new values."""
        source, dest, facts = self._facts.source, self._facts.dest, self._facts
        away = rows & source.moved
        if facts.source_columns:
            # A row that the source does not have, because its deletion does not count or because the dest brought the
            # row back, has no values in the source's columns.
            self.both_moved = (rows & dest.alive) - source.alive
            # Where a side has the row in another fragment than the merge base, the source's column file and the dest's
            # fragment have their rows in different orders, so the file cannot be put beside them. Such rows are taken
            # from the source, unless that would lose values of columns that the dest wrote.
            apart = (rows & dest.moved & source.alive) | (away & dest.alive)
            if facts.dest_columns:
                self.both_moved |= apart
            else:
                self.from_source |= apart
        elif facts.traceable and not facts.dest_columns:
            # The source's compaction is taken over only for rows that the dest left in place. Where both sides moved a
            # row, the dest's layout stays, and so do its indices.
            self.from_source |= away & dest.stays
