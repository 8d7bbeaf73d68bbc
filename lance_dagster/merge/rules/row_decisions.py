r"""Where both sides have a row, whether it is the same one still; and which columns a side has other values of.

Decide, for the rows of one fragment of the merge base, which live on and from which side they are taken.

    source \ dest   same          updated       deleted
    same            keep          the dest's    gone
    updated         the source's  conflict      conflict
    deleted         gone          conflict      gone

A row that was dead in the merge base and lives on one side (a restore) lives. What lives on is taken from where the
dest has it, so that the dest's layout and indices stay, with these exceptions: rows the source gave new values; rows
the source moved while the dest left them where they were, so that a compaction on a branch arrives with it; and rows
the dest only moved, when the source has new columns for them. Where rows would be taken from a place that lacks
columns of the other side, it is a conflict.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyroaring import BitMap

from lance_dagster.format.model import Fragment
from lance_dagster.merge.rules.column_matching import Columns, backing
from lance_dagster.merge.rules.row_changes import GONE, SHARED, FragmentRowChanges, RowChanges
from lance_dagster.merge.rules.strategy import DEST_WINS, SOURCE_WINS


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a side has: its rows, its columns, and the field of the result that each of its fields is.

    `strict` says that what it did since the merge base does not tell which columns it filled.
    """

    rows: RowChanges
    columns: Columns
    result: Callable[[int], int | None]
    strict: bool = False

    def in_result(self, fields: Iterable[int]) -> set[int]:
        """Return the ids that fields of the side have in the result, where they are."""
        return {number for own in fields if (number := self.result(own)) is not None}


def compare_rows(number: int, source: Holder, dest: Holder) -> tuple[FragmentRowChanges, FragmentRowChanges]:
    """Return what became of the rows of a fragment of the base on both sides.

    Rows that both have with the same new values, from the same file, count as changed by the dest alone; by the source
    where that has values of more columns. Rows that the base had deleted and both have again count as changed by both
    when they may have other values.
    """
    source_changes, dest_changes = source.rows.of(number), dest.rows.of(number)
    both = source_changes.updated & dest_changes.updated
    if both and (same := _in_one_place(number, both, source, dest)):
        has, had = (side.in_result(_backed(number, same, side)) for side in (source, dest))
        if has <= had:
            source_changes = replace(
                source_changes, updated=source_changes.updated - same, moved=source_changes.moved | same
            )
        elif had < has:
            dest_changes = replace(dest_changes, updated=dest_changes.updated - same, moved=dest_changes.moved | same)
    if dest.strict and GONE <= number < SHARED and (back := source_changes.moved & dest_changes.moved - both):
        other = back - _in_one_place(number, back, source, dest)
        source_changes = replace(
            source_changes, updated=source_changes.updated | other, moved=source_changes.moved - other
        )
        dest_changes = replace(dest_changes, updated=dest_changes.updated | other, moved=dest_changes.moved - other)
    return source_changes, dest_changes


def differing_fields(
    number: int,
    fragment: Fragment | None,
    both_changes: tuple[FragmentRowChanges, FragmentRowChanges],
    sides: tuple[Holder, Holder],
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the fields, by their ids in the result, of which each side has other values for a fragment's rows.

    Args:
        number: What stands for the fragment.
        fragment: It, in the base; None for rows that the base does not have.
        both_changes: What became of its rows.
        sides: The source and the dest.
    """
    found = [
        _changed(number, fragment, row_changes, side) for row_changes, side in zip(both_changes, sides, strict=True)
    ]
    shared = both_changes[0].alive & both_changes[1].alive
    if fragment is None and shared:
        backed = [side.in_result(_backed(number, shared, side)) for side in sides]
        found = [found[0] | (backed[0] - backed[1]), found[1] | (backed[1] - backed[0])]
    return frozenset(found[0]), frozenset(found[1])


def _in_one_place(number: int, rows: BitMap, source: Holder, dest: Holder) -> BitMap:
    source_places, dest_places = (side.rows.places(number, rows) for side in (source, dest))
    return BitMap(offset for offset, place in source_places.items() if dest_places.get(offset) == place)


def _changed(number: int, fragment: Fragment | None, row_changes: FragmentRowChanges, side: Holder) -> set[int]:
    columns, changed = side.columns, set[int]()
    if row_changes.place is None or fragment is None or row_changes.moved or row_changes.updated:
        # Rows that moved have what was written beside them on the way.
        changed |= columns.written_beside(None if fragment is None else fragment.id)
    if row_changes.place is not None and fragment is not None:
        had, has, base_ids = backing(fragment), backing(row_changes.place), columns.base_ids
        changed |= {own for own, path in has.items() if had.get(base_ids.get(own, -1)) != path}
        # Values that were taken out again: there are nulls.
        changed |= {columns.ids[one] for one in had if one in columns.ids and columns.ids[one] not in has}
    if side.strict and fragment is not None:
        # A column the base does not have may have been there before any change that is looked at.
        changed |= (
            _backed(number, row_changes.moved | row_changes.updated, side) - columns.base_ids.keys() - columns.nulls
        )
    return side.in_result(changed)


def _backed(number: int, rows: BitMap, side: Holder) -> set[int]:
    """Return the fields, by the side's ids, of which it has values for rows that are not where the base has them."""
    holders = side.rows.holders(number, rows) if rows else {}
    return {own for one in holders for own in backing(side.rows.relocated[one].fragment)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What both sides did to a fragment of the base, as offsets in it and ids of fields of the result.

    `source_columns` and `dest_columns` are the fields one side has other values of, or values at all.
    `source_undone` and `dest_undone` are rows for which a side's change does not count. `traceable` says that rows
    can be found wherever they are moved, so that they may be. `uncertain` says that columns were written beside rows of
    which nobody knows where they were in the base, so perhaps not beside these.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of the rows: those that live on, and those of them that are taken from the source.

    `conflicting` are rows both sides changed. `lacking_source_columns` are rows that the dest moved or updated, away
    from the columns the source wrote; `lacking_dest_columns` the other way round. `both_moved` are rows that each side
    moved away from columns of the other. `source_given_up` are rows whose new values on the source count for nothing,
    since they are taken from where the dest's columns are; `dest_given_up` the other way round. `options` are the
    strategies that can resolve the conflict: a side is no option when its updated rows cannot be traced.
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


def decide(facts: Situation, *, rows: str | None, columns: tuple[str | None, str | None]) -> Decision:
    """Decide about the rows of one fragment.

    Args:
        facts: What both sides did.
        rows: The strategy for rows both changed.
        columns: The strategies for updated rows that lack columns of the source, and columns of the dest.
    """
    source, dest, live = facts.source, facts.dest, facts.live
    # What does not count leaves a row as the base has it: there or not.
    s_alive = (source.alive - facts.source_undone) | (facts.source_undone & live)
    d_alive = (dest.alive - facts.dest_undone) | (facts.dest_undone & live)
    s_new = (source.updated | source.rewritten) - facts.source_undone
    d_new = (dest.updated | dest.rewritten) - facts.dest_undone
    s_gone, d_gone = live - s_alive - s_new, live - d_alive - d_new
    conflicting = (s_new & d_new) | (s_new & d_gone) | (s_gone & d_new)
    winner = s_alive if rows == SOURCE_WINS else d_alive
    alive = ((s_alive & d_alive & live) | ((s_alive | d_alive) - live)) - conflicting | (conflicting & winner)
    updated = (source.updated - facts.source_undone) & alive
    kept_updates = updated - conflicting if rows != SOURCE_WINS else updated
    homes = _Homes(facts, alive, kept_updates | ((alive - dest.alive) & source.alive))
    homes.settle(*columns)
    if facts.dest_undone:
        homes.taken |= alive & dest.updated & facts.dest_undone & source.alive
    options = []
    if not conflicting & dest.rewritten:
        options.append(SOURCE_WINS)
    if not conflicting & source.rewritten:
        options.append(DEST_WINS)
    return Decision(
        alive=alive,
        from_source=homes.taken & alive,
        conflicting=conflicting,
        lacking_source_columns=homes.lacking_source,
        lacking_dest_columns=homes.lacking_dest,
        both_moved=homes.both_moved,
        source_given_up=homes.source_given_up,
        dest_given_up=homes.dest_given_up,
        options=tuple(options),
    )


class _Homes:
    """Which of the rows that live on are taken from the source."""

    def __init__(self, facts: Situation, alive: BitMap, taken: BitMap) -> None:
        self._facts, self._alive = facts, alive
        self.taken = taken
        self.lacking_source = BitMap()
        self.lacking_dest = BitMap()
        self.both_moved = BitMap()
        self.source_given_up = BitMap()
        self.dest_given_up = BitMap()

    def settle(self, of_source: str | None, of_dest: str | None) -> None:
        source, dest = self._facts.source, self._facts.dest
        rest = self._alive - self.taken
        if self._facts.dest_columns:
            self.lacking_dest = (self.taken & source.updated & dest.alive) | source.rewritten
            if of_dest == DEST_WINS:
                self.source_given_up = self.taken & self.lacking_dest
                self.taken -= self.source_given_up
        changed = (rest & dest.updated) | dest.rewritten
        if self._facts.source_columns:
            self.lacking_source = changed
            if of_source == SOURCE_WINS:
                self.dest_given_up = rest & dest.updated & source.alive
                self.taken |= self.dest_given_up
                # There they have what the dest wrote beside rows as little as what it wrote into them.
                self.lacking_dest |= self.dest_given_up if self._facts.dest_columns else BitMap()
        self._unchanged(rest - dest.updated)

    def _unchanged(self, rows: BitMap) -> None:
        """Choose for rows that neither side gave new values."""
        source, dest, facts = self._facts.source, self._facts.dest, self._facts
        away = rows & source.moved
        if facts.source_columns:
            # The source's columns lie beside the rows as the source has them.
            self.both_moved = (rows & dest.alive) - source.alive
            apart = (rows & dest.moved & source.alive) | (away & dest.alive)
            if facts.dest_columns:
                self.both_moved |= apart
            else:
                self.taken |= apart
        elif facts.traceable and not facts.dest_columns:
            self.taken |= away & dest.stays
