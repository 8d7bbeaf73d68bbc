"""Complete plans from literal manifests: the resulting fragments, and all conflicts at once."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_dagster import Conflict
from lance_dagster.format.codec import decode_row_ids
from lance_dagster.format.model import DataFile, Fragment
from lance_dagster.format.transaction import Delete, Rewrite, RewriteGroup, Update
from lance_dagster.merge.rules import MergePlan, MergeRefusal, plan_merge
from lance_dagster.merge.rules.strategy import BOTH
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.types import Strategy, Winner
from tests.merge.rules.literal_merges import BASE, appended, fragment, manifest, merge_input, side


def updated(name: str, *ids: int, column: bool = False) -> SideHistory:
    """Make a side that updated rows of the merge base; with `column`, it wrote all of `amount` in place too."""
    left = fragment(0, "base.lance", range(4), deleted=ids)
    if column:
        amounts = DataFile(path=f"{name}-amount.lance", fields=(1,), column_indices=(0,), major=2, minor=0)
        kept = replace(left.files[0], fields=(0, -2))
        left = replace(left, files=(kept, amounts))
    new = fragment(1, f"{name}.lance", ids, updated_at=3)
    return side(name, manifest(left, new), Update(updated_fragments=(left,), new_fragments=(new,)))


def deleted(name: str, *ids: int) -> SideHistory:
    """Make a side that deleted rows of the merge base."""
    left = fragment(0, "base.lance", range(4), deleted=ids)
    return side(name, manifest(left), Delete(updated_fragments=(left,)))


def compacted(name: str) -> SideHistory:
    """Make a side that moved all rows to another fragment."""
    new = fragment(1, f"{name}.lance", range(4))
    group = RewriteGroup(old=BASE.fragments, new=[new])
    return side(name, manifest(new), Rewrite(groups=(group,)))


def planned(source: SideHistory, dest: SideHistory | None = None, strategy: Strategy = None) -> MergePlan:
    """Plan a merge that has no conflicts."""
    found = plan_merge(merge_input(source, dest, strategy=strategy))
    assert isinstance(found, MergePlan)
    return found


def refused(source: SideHistory, dest: SideHistory, strategy: Strategy = None) -> MergeRefusal:
    """Plan a merge that has conflicts."""
    found = plan_merge(merge_input(source, dest, strategy=strategy))
    assert isinstance(found, MergeRefusal)
    return found


def row_ids(of: Fragment) -> list[int]:
    """Return the row ids of a fragment."""
    return [int(number) for number in decode_row_ids(of.row_ids, of.physical_rows, "the result")]


def test_a_source_that_did_nothing_changes_nothing() -> None:
    """The result equals the dest, with or without changes of its own."""
    plan = planned(side("run"), updated("main", 1))
    assert ({}, (), (), 0) == (plan.changed, plan.removed, plan.added, plan.tally.rows_added)


def test_appended_rows_get_a_fragment_and_row_ids_of_the_dest() -> None:
    """Both sides gave fragment id 1 and row id 4 to different rows."""
    plan = planned(side("run", *appended(4, 5)), side("main", *appended(4, file="other.lance")))
    assert [(2, [5, 6])] == [(one.fragment.id, row_ids(one.fragment)) for one in plan.added]
    assert (7, 2, {"run": [4]}) == (
        plan.manifest.next_row_id,
        plan.tally.rows_added,
        {name: [alias.first for alias in aliases] for name, aliases in plan.aliases.items()},
    )


def test_deletions_of_both_are_joined() -> None:
    """One side deleted row 1, the other row 2, and both row 3."""
    plan = planned(deleted("run", 1, 3), deleted("main", 2, 3))
    assert {0: BitMap([1, 2, 3])} == {number: one.deleted for number, one in plan.changed.items()}
    assert 1 == plan.tally.rows_removed


def test_a_fragment_without_rows_goes() -> None:
    """Each side deleted half of the fragment."""
    assert (0,) == planned(deleted("run", 0, 1), deleted("main", 2, 3)).removed


def test_an_updated_row_replaces_the_one_of_the_merge_base() -> None:
    """The row is deleted in the dest, and comes with the source's fragment under the same row id."""
    plan = planned(updated("run", 2), updated("main", 0))
    assert {0: BitMap([0, 2])} == {number: one.deleted for number, one in plan.changed.items()}
    assert [(2, [2], None)] == [(one.fragment.id, row_ids(one.fragment), one.deleted) for one in plan.added]
    assert (0, 1, 0) == (plan.tally.rows_added, plan.tally.rows_updated, plan.tally.rows_removed)


def test_an_updated_row_is_found_where_the_dest_moved_it() -> None:
    """A compaction keeps row ids, so the row is deleted in its new fragment."""
    plan = planned(updated("run", 2), compacted("main"))
    assert {1: BitMap([2])} == {number: one.deleted for number, one in plan.changed.items()}


def test_a_compaction_of_the_source_arrives_where_the_dest_left_the_rows() -> None:
    """The source's fragment with all rows replaces the dest's fragment."""
    plan = planned(compacted("run"), side("main", *appended(4)))
    assert ((0,), [[0, 1, 2, 3]]) == (plan.removed, [row_ids(one.fragment) for one in plan.added])


def test_a_compaction_of_the_source_gives_way_to_updates_of_the_dest() -> None:
    """A row that the dest updated is deleted in the compacted fragment, or it would occur twice."""
    plan = planned(compacted("run"), updated("main", 2))
    assert [([0, 1, 2, 3], BitMap([2]))] == [(row_ids(one.fragment), one.deleted) for one in plan.added]


@pytest.mark.parametrize("winner,updates", [("source-wins", [[1]]), ("dest-wins", [])])
def test_a_row_that_both_updated_is_the_winners(winner: Winner, updates: list[list[int]]) -> None:
    """Without a strategy the row is a conflict with the committers and versions of both sides."""
    sides = updated("run", 1), updated("main", 1)
    said = Conflict(
        kind="rows",
        unit="1 row in fragment 0 of the merge base",
        source="ann (run@3) changed or deleted them",
        dest="bob (main@3) changed or deleted them",
    )
    assert (said,) == refused(*sides).conflicts
    assert updates == [row_ids(one.fragment) for one in planned(*sides, winner).added]


def described(refusal: MergeRefusal) -> list[tuple[str, str]]:
    """Return the kinds and units of the conflicts."""
    return [(conflict.kind, conflict.unit) for conflict in refusal.conflicts]


def test_a_conflict_that_a_strategy_would_lead_to_is_told_at_once() -> None:
    """Both sides updated a row, and the dest wrote a column beside all rows, which the source's row lacks.

    The second conflict exists only if the source wins the row, but it is reported together with the first.
    """
    sides = updated("run", 1), updated("main", 1, column=True)
    without = refused(*sides)
    assert {"rows", "column"} == {kind for kind, _ in described(without)}
    for winner in BOTH:
        found = plan_merge(merge_input(*sides, strategy={"rows": winner}))
        assert isinstance(found, MergePlan) or set(described(found)) <= set(described(without))


def test_each_strategy_that_is_offered_settles_everything() -> None:
    """A strategy that led to another conflict would not help; strategies that were given are kept."""
    sides = updated("run", 1), updated("main", 1, column=True)
    tried: tuple[dict[str, Winner], ...] = ({}, {"column": "source-wins"})
    for given in tried:
        refusal = refused(*sides, given)
        assert refusal.settling
        for strategy in refusal.settling:
            assert strategy.items() >= given.items()
            assert isinstance(plan_merge(merge_input(*sides, strategy=strategy)), MergePlan)


def test_the_hint_of_a_conflict_names_what_settles_it() -> None:
    """The hint names a strategy for the kind or unit, or says that there is none."""
    assert ["strategy 'rows': 'source-wins' or 'dest-wins'"] == [
        conflict.hint for conflict in refused(updated("run", 1), updated("main", 1)).conflicts
    ]
    blocked = refused(side("run", replace(BASE, writer_flags=0)), side("main"))
    assert ["no strategy settles it"] == [conflict.hint for conflict in blocked.conflicts]


def test_a_side_that_never_had_the_rows_is_not_said_to_have_changed_them() -> None:
    """The picked change updates a row that was added after the fork of the dest."""
    picked_base = manifest(fragment(0, "base.lance", range(4)), fragment(1, "later.lance", [4]), next_row_id=5)
    left = fragment(1, "later.lance", [4], deleted=[0])
    new = fragment(2, "pick.lance", [4], updated_at=3)
    operation = Update(updated_fragments=(left,), new_fragments=(new,))
    source = side("run", manifest(BASE.fragments[0], left, new, next_row_id=5), operation, base=picked_base)
    # The dest shares the row ids of the base below 4.
    dest = replace(side("main", manifest(BASE.fragments[0], version=3)), anchor=picked_base)
    given = merge_input(source, dest, base=picked_base)
    found = plan_merge(given)
    assert isinstance(found, MergeRefusal)
    assert ["main@3 does not have them"] == [conflict.dest for conflict in found.conflicts]


def test_a_version_without_its_transaction_does_not_hide_other_conflicts() -> None:
    """A single call can settle both the missing history and the rows."""
    source, dest = updated("run", 1), updated("main", 1)
    gone: list[Change] = [replace(change, transaction=None) for change in dest.changes]
    refusal = refused(source, replace(dest, changes=gone, since=gone))
    assert {"history", "rows"} == {kind for kind, _ in described(refusal)}


def test_plans_do_not_depend_on_what_was_asked_before() -> None:
    """The state of a side is cached, but a plan with another strategy equals that of a new merge."""
    sides = updated("run", 1), updated("main", 1)
    first, again = planned(*sides, "source-wins"), planned(*sides, "source-wins")
    refused(*sides)
    assert (first.changed, first.added) == (again.changed, again.added)
