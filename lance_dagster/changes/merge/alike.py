"""Where both sides have a row, whether it is the same one still; and which columns a side has other values of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyroaring import BitMap

from lance_dagster.changes.merge.columns import Columns, backing
from lance_dagster.changes.merge.fates import GONE, SHARED, Fate, Fates
from lance_dagster.format.model import Fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a side has: its rows, its columns, and the field of the result that each of its fields is.

    `strict` says that what it did since the merge base does not tell which columns it filled.
    """

    rows: Fates
    columns: Columns
    result: Callable[[int], int | None]
    strict: bool = False

    def in_result(self, fields: Iterable[int]) -> set[int]:
        """Return the ids that fields of the side have in the result, where they are."""
        return {number for own in fields if (number := self.result(own)) is not None}


def told_apart(number: int, source: Holder, dest: Holder) -> tuple[Fate, Fate]:
    """Return what became of the rows of a fragment of the base on both sides.

    Rows that both have with the same new values, from the same file, count as changed by the dest alone; by the source
    where that has values of more columns. Rows that the base had deleted and both have again count as changed by both
    when they may have other values.
    """
    mine, theirs = source.rows.of(number), dest.rows.of(number)
    both = mine.updated & theirs.updated
    if both and (same := _in_one_place(number, both, source, dest)):
        has, had = (side.in_result(_backed(number, same, side)) for side in (source, dest))
        if has <= had:
            mine = replace(mine, updated=mine.updated - same, moved=mine.moved | same)
        elif had < has:
            theirs = replace(theirs, updated=theirs.updated - same, moved=theirs.moved | same)
    if dest.strict and GONE <= number < SHARED and (back := mine.moved & theirs.moved - both):
        other = back - _in_one_place(number, back, source, dest)
        mine = replace(mine, updated=mine.updated | other, moved=mine.moved - other)
        theirs = replace(theirs, updated=theirs.updated | other, moved=theirs.moved - other)
    return mine, theirs


def other_values(
    number: int, fragment: Fragment | None, fates: tuple[Fate, Fate], sides: tuple[Holder, Holder]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the fields, by their ids in the result, of which each side has other values for a fragment's rows.

    Args:
        number: What stands for the fragment.
        fragment: It, in the base; None for rows that the base does not have.
        fates: What became of its rows.
        sides: The source and the dest.
    """
    found = [_changed(number, fragment, fate, side) for fate, side in zip(fates, sides, strict=True)]
    shared = fates[0].alive & fates[1].alive
    if fragment is None and shared:
        backed = [side.in_result(_backed(number, shared, side)) for side in sides]
        found = [found[0] | (backed[0] - backed[1]), found[1] | (backed[1] - backed[0])]
    return frozenset(found[0]), frozenset(found[1])


def _in_one_place(number: int, rows: BitMap, source: Holder, dest: Holder) -> BitMap:
    mine, theirs = (side.rows.places(number, rows) for side in (source, dest))
    return BitMap(offset for offset, place in mine.items() if theirs.get(offset) == place)


def _changed(number: int, fragment: Fragment | None, fate: Fate, side: Holder) -> set[int]:
    columns, changed = side.columns, set[int]()
    if fate.place is None or fragment is None or fate.moved or fate.updated:
        # Rows that moved have what was written beside them on the way.
        changed |= columns.written_beside(None if fragment is None else fragment.id)
    if fate.place is not None and fragment is not None:
        had, has, base_ids = backing(fragment), backing(fate.place), columns.base_ids
        changed |= {own for own, path in has.items() if had.get(base_ids.get(own, -1)) != path}
        # Values that were taken out again: there are nulls.
        changed |= {columns.ids[one] for one in had if one in columns.ids and columns.ids[one] not in has}
    if side.strict and fragment is not None:
        # A column the base does not have may have been there before any change that is looked at.
        changed |= _backed(number, fate.moved | fate.updated, side) - columns.base_ids.keys() - columns.nulls
    return side.in_result(changed)


def _backed(number: int, rows: BitMap, side: Holder) -> set[int]:
    """Return the fields, by the side's ids, of which it has values for rows that are not where the base has them."""
    holders = side.rows.holders(number, rows) if rows else {}
    return {own for one in holders for own in backing(side.rows.elsewhere[one].fragment)}
