"""The outcome for one row by the change of each side, as in the table of the merging guide."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_dagster.format.model import Field
from lance_dagster.format.transaction import Update
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema
from lance_dagster.merge.rules.row_changes import FragmentRowChanges
from lance_dagster.merge.rules.row_decisions import Decision, RowRules, Situation, decide
from lance_dagster.merge.rules.row_origins import BaseKey
from lance_dagster.merge.rules.strategy import ParsedStrategy
from tests.merge.rules.literal_merges import FIELDS, FOUR_ROWS, both_sides, fragment, manifest, side

ROW, NONE = BitMap([0]), BitMap()
DID = {
    "same": FragmentRowChanges(place=FOUR_ROWS, stays=ROW),
    "moved": FragmentRowChanges(place=None, stays=NONE, moved=ROW),
    "updated": FragmentRowChanges(place=FOUR_ROWS, stays=NONE, updated=ROW),
    "rewritten": FragmentRowChanges(place=FOUR_ROWS, stays=NONE, rewritten=ROW),
    "deleted": FragmentRowChanges(place=FOUR_ROWS, stays=NONE),
}
KEPT, TAKEN, GONE, CONFLICT = "the dest's row", "the source's row", "gone", "conflict"


def situation(source: str, dest: str, **facts: object) -> Situation:
    """Return a situation with the changes of both sides to one row."""
    plain = Situation(
        live=ROW,
        source=DID[source],
        dest=DID[dest],
        source_columns=frozenset(),
        dest_columns=frozenset(),
        source_undone=NONE,
        dest_undone=NONE,
        traceable=True,
        uncertain=False,
    )
    return replace(plain, **facts)  # type: ignore[arg-type]  # of the caller's choice


def outcome(decision: Decision) -> str:
    """Return the outcome for the row."""
    if decision.conflicting:
        return CONFLICT
    if not decision.alive:
        return GONE
    return TAKEN if decision.from_source else KEPT


@pytest.mark.parametrize(
    "source,dest,expected",
    [
        ("same", "same", KEPT),
        ("same", "moved", KEPT),
        ("same", "updated", KEPT),
        ("same", "deleted", GONE),
        ("moved", "same", TAKEN),
        ("moved", "moved", KEPT),
        ("moved", "updated", KEPT),
        ("moved", "deleted", GONE),
        ("updated", "same", TAKEN),
        ("updated", "moved", TAKEN),
        ("updated", "updated", CONFLICT),
        ("updated", "deleted", CONFLICT),
        ("deleted", "same", GONE),
        ("deleted", "moved", GONE),
        ("deleted", "updated", CONFLICT),
        ("deleted", "deleted", GONE),
        ("rewritten", "same", GONE),
        ("rewritten", "updated", CONFLICT),
        ("rewritten", "rewritten", CONFLICT),
        ("same", "rewritten", GONE),
    ],
)
def test_a_row_of_the_merge_base(source: str, dest: str, expected: str) -> None:
    """Without a strategy, each pair of changes has one outcome. A rewritten row continues as an inserted row."""
    assert expected == outcome(decide(situation(source, dest), rows=None, columns=(None, None)))


@pytest.mark.parametrize(
    "source,dest,by_source,by_dest",
    [
        ("updated", "updated", (ROW, ROW), (ROW, NONE)),
        ("updated", "deleted", (ROW, ROW), (NONE, NONE)),
        ("deleted", "updated", (NONE, NONE), (ROW, NONE)),
    ],
)
def test_a_strategy_for_rows(
    source: str, dest: str, by_source: tuple[BitMap, BitMap], by_dest: tuple[BitMap, BitMap]
) -> None:
    """The winner's row is kept or deleted; it is taken from the source only if the source wins."""
    for winner, expected in (("source-wins", by_source), ("dest-wins", by_dest)):
        decision = decide(situation(source, dest), rows=winner, columns=(None, None))
        assert (*expected, ROW) == (decision.alive, decision.from_source, decision.conflicting)


@pytest.mark.parametrize(
    "source,dest,options",
    [
        ("updated", "updated", ("source-wins", "dest-wins")),
        ("rewritten", "updated", ("source-wins",)),
        ("updated", "rewritten", ("dest-wins",)),
        ("rewritten", "rewritten", ()),
    ],
)
def test_rows_that_cannot_be_traced_cannot_lose(source: str, dest: str, options: tuple[str, ...]) -> None:
    """Without stable row ids the new row of a rewritten one is unknown, so it could not be removed."""
    assert options == decide(situation(source, dest), rows=None, columns=(None, None)).options


def test_a_row_that_was_deleted_in_the_base_lives_when_a_side_has_it() -> None:
    """A restore brings rows back, which the other side left deleted, and so did not change."""
    decision = decide(situation("moved", "deleted", live=NONE), rows=None, columns=(None, None))
    assert (TAKEN, ROW) == (outcome(decision), decision.alive)


def test_a_change_that_lost_its_claim_does_not_count() -> None:
    """The dest's update is undone, so the source's deletion is no conflict."""
    decision = decide(situation("deleted", "updated", dest_undone=ROW), rows=None, columns=(None, None))
    assert GONE == outcome(decision)


def test_an_untraceable_row_is_not_moved() -> None:
    """Without stable row ids a compaction of the source is omitted, because a moved row could not be found again."""
    assert KEPT == outcome(decide(situation("moved", "same", traceable=False), rows=None, columns=(None, None)))


AMOUNT = frozenset({1})


@pytest.mark.parametrize(
    "source,dest,columns,lacking",
    [
        ("same", "updated", {"source_columns": AMOUNT}, (ROW, NONE)),
        ("updated", "same", {"dest_columns": AMOUNT}, (NONE, ROW)),
        ("same", "same", {"source_columns": AMOUNT}, (NONE, NONE)),
        ("same", "deleted", {"source_columns": AMOUNT}, (NONE, NONE)),
        ("same", "rewritten", {"source_columns": AMOUNT}, (ROW, NONE)),
    ],
)
def test_updated_rows_lack_columns_of_the_other_side(
    source: str, dest: str, columns: dict[str, object], lacking: tuple[BitMap, BitMap]
) -> None:
    """The values lie beside the other side's copy of the row, which is not the copy that is kept."""
    decision = decide(situation(source, dest, **columns), rows=None, columns=(None, None))
    assert lacking == (decision.lacking_source_columns, decision.lacking_dest_columns)


def test_rows_that_both_moved_with_columns_of_both_have_no_place() -> None:
    """No fragment has the columns of both sides beside the row."""
    decision = decide(
        situation("moved", "moved", source_columns=AMOUNT, dest_columns=frozenset({2})), rows=None, columns=(None, None)
    )
    assert ROW == decision.both_moved


def test_a_row_the_dest_moved_is_taken_from_where_the_new_column_is() -> None:
    """The dest only compacted, and the source's fragment has the row with its new column."""
    assert TAKEN == outcome(decide(situation("same", "moved", source_columns=AMOUNT), rows=None, columns=(None, None)))


@pytest.mark.parametrize(
    "winner,given_up,taken", [("source-wins", ROW, ROW), ("dest-wins", NONE, NONE), (None, NONE, NONE)]
)
def test_a_strategy_for_columns_of_updated_rows(winner: str | None, given_up: BitMap, taken: BitMap) -> None:
    """If the source's columns win, the row is taken from the source, and the dest's update is given up."""
    decision = decide(situation("same", "updated", source_columns=AMOUNT), rows=None, columns=(winner, None))
    assert (given_up, taken) == (decision.dest_given_up, decision.from_source)


def test_a_row_that_the_source_moved_stays_where_the_dest_s_column_is() -> None:
    """The fragment to which the source moved the row lacks the column that the dest wrote."""
    decision = decide(situation("moved", "same", dest_columns=AMOUNT), rows=None, columns=(None, None))
    assert KEPT == outcome(decision)


def test_a_row_whose_update_lost_its_claim_is_taken_from_the_source() -> None:
    """The dest has only invalid values of the row, and the source has those of the merge base."""
    decision = decide(situation("moved", "updated", dest_undone=ROW), rows=None, columns=(None, None))
    assert TAKEN == outcome(decision)


NEW = Field(id=2, name="new", logical_type="int64")


def both_updated(*, source_has_new: bool = False, dest_has_new: bool = False) -> RowRules:
    """Both sides gave row 1 the same values; each may also have values of a new column."""
    histories = []
    for name, has_new in (("run", source_has_new), ("main", dest_has_new)):
        own = fragment(1, f"{name}.lance", [1], updated_at=3)
        if has_new:
            own = replace(own, files=(replace(own.files[0], fields=(0, 1, 2), column_indices=(0, 1, 2)),))
        after = replace(manifest(fragment(0, "base.lance", range(4), deleted=[1]), own), fields=(*FIELDS, NEW))
        histories.append(side(name, after, Update()))
    source, dest = both_sides(*histories)
    fields = (*FIELDS, NEW)
    schema = MergedSchema(
        fields=fields,
        from_source={one.id: one.id for one in fields},
        added_by_source=frozenset(),
        added_by_dest=frozenset(),
        kept_by_strategy=frozenset(),
    )
    undone: dict[BaseKey, BitMap] = {}
    return RowRules(
        source=source,
        dest=dest,
        schema=schema,
        source_undone=undone,
        dest_undone=undone,
        strategy=ParsedStrategy.NONE,
        equal_updates={0: BitMap([1])},
    )


@pytest.mark.parametrize(
    "columns,from_source", [({}, []), ({"source_has_new": True}, [1]), ({"dest_has_new": True}, [])]
)
def test_rows_updated_equally_are_taken_from_the_side_with_more_columns(
    columns: dict[str, bool], from_source: list[int]
) -> None:
    """Such rows are no conflict."""
    found = both_updated(**columns).decide_fragment(0)
    assert found is not None
    assert (NONE, from_source) == (found.decision.conflicting, list(found.decision.from_source))
    assert [0, 1, 2, 3] == list(found.decision.alive)


def test_rows_updated_differently_are_a_conflict() -> None:
    """The compared values differ."""
    found = replace(both_updated(), equal_updates={}).decide_fragment(0)
    assert found is not None
    assert [1] == list(found.decision.conflicting)
