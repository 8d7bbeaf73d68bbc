"""Fragments of the merge base in which both sides took out different rows, or which the source alone dropped.

Most merges are of this kind: updates and deletes of a run, merged into a branch on which other rows changed. Such a
fragment has no conflict: the rows that either side took out are deleted, and the rows that the source moved or updated
are taken from where the source has them. The general rules in `row_decisions` come to the same result, at some twenty
set operations for each fragment; a merge that touches thousands of fragments is several times faster without them. A
fragment that does not meet every condition here is left to the general rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyroaring import BitMap

from lance_dagster.format.model import Fragment
from lance_dagster.merge.rules.merge_side import MergeSide


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparateChanges:
    """The changes of the source to fragments in which the dest changed other rows, if any.

    `masked` are the rows that the source took out, by fragment of the dest, and `taken_rows` the rows that it moved or
    updated, by fragment of the source. `base_ids` are the fragments of the merge base that this is about.
    """

    base_ids: frozenset[int]
    masked: Mapping[int, BitMap]
    taken_rows: Mapping[int, BitMap]
    rows_removed: int
    rows_updated: int


NO_SEPARATE_CHANGES = SeparateChanges(base_ids=frozenset(), masked={}, taken_rows={}, rows_removed=0, rows_updated=0)


def separate_changes(source: MergeSide, dest: MergeSide) -> SeparateChanges:
    """Find the fragments of the merge base in which the sides took out different rows, or the source dropped all.

    No claim may have been lost: deletion vectors do not show what a side loses.
    """
    if not source.base.stable_row_ids:
        return NO_SEPARATE_CHANGES
    untouched = _columns_untouched(source) and _columns_untouched(dest)
    matched, relocated = source.fragments, source.rows.relocated
    # A row that the source revived in its place has to be removed from the fragment that the dest has it in. Only the
    # general rules do that.
    in_place = [rows for number, rows in relocated.items() if matched.base_of(number) is not None]
    revived = {number for rows in in_place for number in rows.base_keys}
    masked: dict[int, BitMap] = {}
    separate_ids: set[int] = set()
    removed = updated_rows = 0
    for number in matched.changed:
        here = dest.fragments.place(number)
        if here is None or number in revived:
            continue
        removed_rows = _removed_rows(source, dest, number, untouched=untouched)
        moved, updated = source.rows.moved_from(number)
        if removed_rows is None or not moved <= removed_rows or not updated <= removed_rows:
            continue
        separate_ids.add(number)
        if removed_rows:
            masked[here.id] = removed_rows
        removed += len(removed_rows) - len(moved) - len(updated)
        updated_rows += len(updated)
    if not separate_ids:
        return NO_SEPARATE_CHANGES
    taken_rows = {
        number: rows.live_from(separate_ids) for number, rows in relocated.items() if matched.base_of(number) is None
    }
    return SeparateChanges(
        base_ids=frozenset(separate_ids),
        masked=masked,
        taken_rows=taken_rows,
        rows_removed=removed,
        rows_updated=updated_rows,
    )


def _columns_untouched(side: MergeSide) -> bool:
    """Tell whether a side has the columns of the merge base, with the values that they have there."""
    same = {field.id: field.id for field in side.base.fields}
    columns = side.columns
    return (
        side.manifest.fields == side.base.fields
        and columns.ids == same
        and not columns.filled
        and not side.hides_filled_columns
    )


def _same_files(fragment: Fragment, *others: Fragment) -> bool:
    """Tell whether fragments have the same columns in the same files, wherever these are said to lie."""
    files = [(file.path, file.fields) for file in fragment.files]
    return all(files == [(file.path, file.fields) for file in counterpart.files] for counterpart in others)


def _removed_rows(source: MergeSide, dest: MergeSide, number: int, *, untouched: bool) -> BitMap | None:
    """Return the rows the source took out of a fragment; None where only the general rules can tell.

    `untouched` says that neither side changed columns.
    """
    fragment, there, here = source.base.fragment(number), source.fragments.place(number), dest.fragments.place(number)
    if here is None:
        return None
    if there is None:
        # Columns do not matter where all rows go: none of their values is taken from the source.
        return None if any(source.rows.moved_from(number)) else _dropped(source, dest, fragment, here)
    if untouched and _same_files(fragment, there, here):
        return _taken_out(source, dest, (fragment, there, here))
    return None


def _dropped(source: MergeSide, dest: MergeSide, fragment: Fragment, here: Fragment) -> BitMap | None:
    """Return the live rows of a fragment that the source dropped; None where the dest changed anything in it."""
    if not _same_files(fragment, here):
        return None
    before, deleted = source.lookups.deleted(source.base, fragment), BitMap()
    if here.deletion is not None:
        deleted = source.lookups.deleted(dest.manifest, here)
    # A fragment may be large: the set of all its rows is made once here, and dozens of times by the general rules.
    return BitMap(range(fragment.physical_rows)) - before if before == deleted else None


def _taken_out(source: MergeSide, dest: MergeSide, fragments: tuple[Fragment, Fragment, Fragment]) -> BitMap | None:
    """Return the rows the source took out of a fragment; None where both sides took one out, or one came back."""
    fragment, there, here = fragments
    deleted = source.lookups.deleted
    before, source_dead, dest_dead = deleted(source.base, fragment), deleted(source.manifest, there), BitMap()
    if here.deletion is not None:
        dest_dead = deleted(dest.manifest, here)
    removed = source_dead - before
    if not before <= source_dead or not before <= dest_dead or not removed.isdisjoint(dest_dead):
        return None
    return removed
