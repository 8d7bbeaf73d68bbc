"""Which fragments the fast rule decides: both sides took out different rows, or the source dropped the fragment."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_dagster.format.model import Field, Fragment
from lance_dagster.format.transaction import Delete, Operation, Project, Rewrite, RewriteGroup, Update
from lance_dagster.merge.rules.separate_changes import NO_SEPARATE_CHANGES, SeparateChanges, separate_changes
from lance_dagster.transactions.claims import SideHistory
from tests.merge.rules.literal_merges import BASE, FIELDS, appended, both_sides, fragment, manifest, side

DEAD = fragment(0, "base.lance", range(4), deleted=[3])
BASE_WITH_DEAD = manifest(DEAD)


def deleted(name: str, *ids: int) -> SideHistory:
    """Make a side that deleted rows of the merge base, or all of them."""
    if len(ids) == 4:
        return side(name, manifest(), Delete(deleted_fragment_ids=(0,)))
    left = fragment(0, "base.lance", range(4), deleted=ids)
    return side(name, manifest(left), Delete(updated_fragments=(left,)))


def updated(name: str, *ids: int) -> SideHistory:
    """Make a side that updated rows of the merge base: they lie in fragment 1 then."""
    left = fragment(0, "base.lance", range(4), deleted=ids)
    new = fragment(1, f"{name}.lance", ids, updated_at=3)
    return side(name, manifest(left, new), Update(updated_fragments=(left,), new_fragments=(new,)))


def compacted(name: str) -> SideHistory:
    """Make a side that moved all rows to fragment 1."""
    new = fragment(1, f"{name}.lance", range(4))
    return side(name, manifest(new), Rewrite(groups=(RewriteGroup(old=BASE.fragments, new=[new]),)))


def with_columns(name: str, *fields: Field) -> SideHistory:
    """Make a side that deleted row 0 and has other columns than the merge base."""
    left = fragment(0, "base.lance", range(4), deleted=[0])
    return side(name, replace(manifest(left), fields=fields), Project(fields=fields))


def decided(source: SideHistory, dest: SideHistory | None = None) -> SeparateChanges:
    """Apply the rule."""
    return separate_changes(*both_sides(source, dest))


@pytest.mark.parametrize("dest", [None, deleted("main", 3), updated("main", 3), side("main", *appended(4))])
def test_deletions_of_other_rows_are_added_to_those_of_the_dest(dest: SideHistory | None) -> None:
    """The rows that the source deleted are masked in the dest's fragment; no row is taken from the source."""
    found = decided(deleted("run", 1, 2), dest)
    assert (frozenset({0}), {0: BitMap([1, 2])}) == (found.base_ids, found.masked)
    assert ({}, 2, 0) == (found.taken_rows, found.rows_removed, found.rows_updated)


def test_updated_rows_are_taken_from_where_the_source_has_them() -> None:
    """The old copies are masked, and the new ones come with the source's fragment; none counts as removed."""
    found = decided(updated("run", 1, 2), deleted("main", 3))
    assert ({0: BitMap([1, 2])}, {1: BitMap([0, 1])}) == (found.masked, found.taken_rows)
    assert (0, 2) == (found.rows_removed, found.rows_updated)


@pytest.mark.parametrize("source", [deleted("run", 1, 2), updated("run", 1, 2)])
@pytest.mark.parametrize("dest", [deleted("main", 2, 3), updated("main", 2, 3)])
def test_a_row_that_both_took_out_is_left_to_the_general_rules(source: SideHistory, dest: SideHistory) -> None:
    """It may be a conflict."""
    assert NO_SEPARATE_CHANGES == decided(source, dest)


def test_a_fragment_that_the_source_dropped_is_removed() -> None:
    """The dest has not touched it, so all of its rows go."""
    found = decided(deleted("run", 0, 1, 2, 3))
    assert ({0: BitMap(range(4))}, 4) == (found.masked, found.rows_removed)


def test_a_dropped_fragment_that_the_dest_touched_is_left_to_the_general_rules() -> None:
    """A row that the dest updated would be lost without a word."""
    assert NO_SEPARATE_CHANGES == decided(deleted("run", 0, 1, 2, 3), updated("main", 2))


def test_a_fragment_that_the_dest_moved_is_left_to_the_general_rules() -> None:
    """Its rows have to be looked up in the fragments that the dest has instead."""
    assert NO_SEPARATE_CHANGES == decided(deleted("run", 1), compacted("main"))


def test_a_compaction_of_the_source_is_left_to_the_general_rules() -> None:
    """The fragment is gone without being dropped: its rows lie elsewhere."""
    assert NO_SEPARATE_CHANGES == decided(compacted("run"))


def test_a_source_that_changed_no_fragment_has_nothing_to_decide() -> None:
    """Appended rows belong to no fragment of the merge base."""
    assert NO_SEPARATE_CHANGES == decided(side("run", *appended(4)), deleted("main", 1))


def test_rows_that_were_deleted_before_do_not_count() -> None:
    """A row that the merge base lacks is not removed again, nor is it a row that both took out."""
    left = fragment(0, "base.lance", range(4), deleted=[0, 3])
    source = side("run", manifest(left), Delete(updated_fragments=(left,)), base=BASE_WITH_DEAD)
    found = separate_changes(*both_sides(source, base=BASE_WITH_DEAD))
    assert ({0: BitMap([0])}, 1) == (found.masked, found.rows_removed)


def test_a_row_that_came_back_is_left_to_the_general_rules() -> None:
    """The source restored a row in its old place, which no union of deleted rows expresses."""
    left = fragment(0, "base.lance", range(4), deleted=[0])
    source = side("run", manifest(left), Delete(updated_fragments=(left,)), base=BASE_WITH_DEAD)
    assert NO_SEPARATE_CHANGES == separate_changes(*both_sides(source, base=BASE_WITH_DEAD))


@pytest.mark.parametrize("changed", [FIELDS[:1], (FIELDS[0], replace(FIELDS[1], name="price"))])
@pytest.mark.parametrize("by_source", [True, False])
def test_other_columns_leave_the_rows_to_the_general_rules(changed: tuple[Field, ...], *, by_source: bool) -> None:
    """Rows of the source may lack values that the result needs."""
    source, dest = with_columns("run", *changed), deleted("main", 3)
    if not by_source:
        source, dest = deleted("run", 3), with_columns("main", *changed)
    assert NO_SEPARATE_CHANGES == decided(source, dest)


def test_a_dropped_fragment_goes_whatever_happened_to_the_columns() -> None:
    """None of its values is taken from the source."""
    renamed = (FIELDS[0], replace(FIELDS[1], name="price"))
    dest = side("main", replace(BASE, fields=renamed), Project(fields=renamed))
    assert {0: BitMap(range(4))} == decided(deleted("run", 0, 1, 2, 3), dest).masked


def with_new_amounts(name: str, *ids: int) -> SideHistory:
    """Make a side that wrote the column `amount` anew beside all rows, and deleted some of them."""
    left = fragment(0, "base.lance", range(4), deleted=ids)
    amounts = replace(left.files[0], path="amounts.lance", fields=(1,), column_indices=(0,))
    left = replace(left, files=(replace(left.files[0], fields=(0, -2)), amounts))
    return side(name, manifest(left), Update(updated_fragments=(left,), fields_modified=(1,)))


@pytest.mark.parametrize(
    "source,dest",
    [
        (with_new_amounts("run", 0), deleted("main", 3)),
        (deleted("run", 3), with_new_amounts("main", 0)),
        (deleted("run", 0, 1, 2, 3), with_new_amounts("main")),
    ],
)
def test_a_column_that_was_written_anew_leaves_the_rows_to_the_general_rules(
    source: SideHistory, dest: SideHistory
) -> None:
    """A taken row would have the old value, and a removed row would lose the new one."""
    assert NO_SEPARATE_CHANGES == decided(source, dest)


def test_a_row_that_moved_back_is_left_to_the_general_rules() -> None:
    """Row 3 lies where it was before an update again: masking its copy in the dest would lose it."""
    base = manifest(DEAD, fragment(1, "new.lance", [3, 4]), next_row_id=5)
    back = fragment(0, "base.lance", range(4)), fragment(1, "new.lance", [3, 4], deleted=[0])
    source = side("run", manifest(*back, next_row_id=5), Update(updated_fragments=back), base=base)
    assert NO_SEPARATE_CHANGES == separate_changes(*both_sides(source, base=base))


def test_of_a_new_fragment_only_the_decided_rows_are_taken() -> None:
    """The source updated rows of two fragments; in one of them the dest deleted the same row."""
    first, second = fragment(0, "base.lance", range(4)), fragment(1, "more.lance", range(4, 8))
    base = manifest(first, second, next_row_id=8)
    left = fragment(0, "base.lance", range(4), deleted=[1]), fragment(1, "more.lance", range(4, 8), deleted=[1])
    new = fragment(2, "run.lance", [1, 5], updated_at=3)
    operation = Update(updated_fragments=left, new_fragments=(new,))
    source = side("run", manifest(*left, new, next_row_id=8), operation, base=base)
    dest = side("main", manifest(first, left[1], next_row_id=8), Delete(updated_fragments=left[1:]), base=base)
    found = separate_changes(*both_sides(source, dest, base=base))
    assert (frozenset({0}), {0: BitMap([1])}) == (found.base_ids, found.masked)
    assert ({2: BitMap([0])}, 1) == (found.taken_rows, found.rows_updated)


def test_without_stable_row_ids_nothing_is_decided() -> None:
    """Moved rows could not be traced."""
    base = replace(BASE, writer_flags=0)
    left: Fragment = replace(fragment(0, "base.lance", range(4), deleted=[1]), row_ids=None)
    operation: Operation = Delete(updated_fragments=(left,))
    source = side("run", replace(manifest(left), writer_flags=0), operation, base=base)
    assert NO_SEPARATE_CHANGES == separate_changes(*both_sides(source, base=base))
