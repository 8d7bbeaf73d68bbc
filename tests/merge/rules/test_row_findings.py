"""Reports of conflicts between rows: the unit, the changes, their committers, and the strategies that settle them."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_dagster.format.model import Field
from lance_dagster.format.transaction import Delete, Update
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.row_changes import FragmentRowChanges
from lance_dagster.merge.rules.row_decisions import DecidedFragment, Decision, RowRules, Situation
from lance_dagster.merge.rules.row_findings import row_findings
from lance_dagster.merge.rules.row_origins import Absence, AbsentRows, BaseKey
from lance_dagster.merge.rules.strategy import Finding, ParsedStrategy, Strategy
from tests.merge.rules.literal_merges import AMOUNT, ID, both_sides, described, fragment, manifest, side

BOTH = ("source-wins", "dest-wins")
NONE, ROW = BitMap(), BitMap([1])
NEW = Field(id=2, name="new", logical_type="int64")
LEFT, MOVED = fragment(0, "base.lance", range(4), deleted=[1]), fragment(1, "new.lance", [1], updated_at=3)


def sides() -> tuple[MergeSide, ...]:
    """Return a source that updated a row and a dest that deleted it."""
    updated, deleted = Update(updated_fragments=(LEFT,)), Delete(updated_fragments=(LEFT,))
    return both_sides(side("run", manifest(LEFT, MOVED), updated), side("main", manifest(LEFT), deleted))


def rules_for(
    strategy: Strategy = None, *, added: tuple[int, ...] = (), nullable: bool = True, both: tuple[MergeSide, ...] = ()
) -> RowRules:
    """Return rules for a schema with a column `new`, which one side may have added."""
    fields = (ID, AMOUNT, replace(NEW, nullable=nullable))
    schema = MergedSchema(
        fields=fields,
        from_source={one.id: one.id for one in fields},
        added_by_source=frozenset(added),
        added_by_dest=frozenset(added),
        kept_by_strategy=frozenset(),
    )
    source, dest = both or sides()
    return RowRules(
        source=source,
        dest=dest,
        schema=schema,
        source_undone={},
        dest_undone={},
        strategy=ParsedStrategy.parse(strategy),
    )


def decided(
    number: BaseKey = 0,
    *,
    source: tuple[int, ...] = (),
    dest: tuple[int, ...] = (),
    rewritten: BitMap = NONE,
    **facts: object,
) -> DecidedFragment:
    """Return a decision about a fragment; `source` and `dest` are the fields of which each side has other values."""
    changes = FragmentRowChanges(place=None, stays=BitMap())
    situation = Situation(
        live=BitMap(range(4)),
        source=changes,
        dest=replace(changes, rewritten=rewritten),
        source_columns=frozenset(source),
        dest_columns=frozenset(dest),
        source_undone=NONE,
        dest_undone=NONE,
        traceable=True,
        uncertain=bool(facts.pop("uncertain", False)),
    )
    twice = facts.pop("written_twice", {})
    nothing = {name: NONE for name in Decision.__slots__ if name != "options"}
    decision = Decision(**{**nothing, "options": BOTH, **facts})  # type: ignore[arg-type]  # sets of rows by name
    return DecidedFragment(number=number, situation=situation, decision=decision, written_twice=twice)  # type: ignore[arg-type]  # as given


def findings(*each: DecidedFragment, rules: RowRules | None = None) -> list[Finding]:
    """Return what is reported."""
    return list(row_findings(each, (), rules or rules_for()))


def test_rows_that_both_changed_are_one_conflict() -> None:
    """The conflict counts the rows of all fragments and lists the fragments."""
    found = findings(decided(0, conflicting=ROW), decided(2, conflicting=BitMap([0, 3])), decided(1))
    assert [("rows", "3 rows in fragments 0, 2 of the merge base", BOTH)] == described(found)
    assert found[0].rows is not None
    assert {0: ROW, 2: BitMap([0, 3])} == found[0].rows().base


@pytest.mark.parametrize(
    "keys,place",
    [
        ((0,), "1 row in fragment 0 of the merge base"),
        ((AbsentRows(Absence.SHARED, 0),), "1 row that the merge base does not have"),
        ((0, AbsentRows(Absence.DELETED, 0)), "2 rows in fragment 0 of the merge base, and in none"),
    ],
)
def test_where_rows_are(keys: tuple[BaseKey, ...], place: str) -> None:
    """Rows that the merge base does not have are in none of its fragments."""
    assert [place] == [found.conflict.unit for found in findings(*(decided(key, conflicting=ROW) for key in keys))]


def test_a_side_that_cannot_win_in_one_fragment_is_no_option() -> None:
    """A strategy applies to all rows of a conflict."""
    found = findings(decided(0, conflicting=ROW), decided(1, conflicting=ROW, options=("dest-wins",)))
    assert [("dest-wins",)] == [each.options for each in found]


def test_both_sides_are_named_by_who_changed_rows() -> None:
    """The conflict has the committer and the version of each side."""
    (found,) = findings(decided(conflicting=ROW))
    assert ("ann (run@3) changed or deleted them", "bob (main@3) changed or deleted them") == (
        found.conflict.source,
        found.conflict.dest,
    )


def test_a_change_of_other_fragments_is_not_blamed() -> None:
    """A version that changed only other fragments, according to its transaction, is not named."""
    two = manifest(fragment(0, "base.lance", range(4)), fragment(5, "other.lance", [9]), next_row_id=10)
    gone = manifest(LEFT, fragment(5, "other.lance", [9]), next_row_id=10)
    elsewhere = Delete(deleted_fragment_ids=(5,))
    both = both_sides(side("run", gone, Update(), base=two), side("main", two, elsewhere, base=two), base=two)
    (found,) = findings(decided(conflicting=ROW), rules=rules_for(both=both))
    assert "main@3 changed or deleted them" == found.conflict.dest


@pytest.mark.parametrize(
    "of_source,added,nullable,lossless",
    [
        (True, (2,), True, "dest-wins"),
        (False, (2,), True, "source-wins"),
        (True, (), True, None),
        (True, (2,), False, None),
    ],
)
def test_updated_rows_without_a_new_column(
    *, of_source: bool, added: tuple[int, ...], nullable: bool, lossless: str | None
) -> None:
    """If the column is new and nullable, the side that updated the rows can win without loss."""
    if of_source:
        one = decided(source=(2,), lacking_source_columns=ROW)
    else:
        one = decided(dest=(2,), lacking_dest_columns=ROW)
    (found,) = findings(one, rules=rules_for(added=added, nullable=nullable))
    assert ("column", "column new", ()) == described([found])[0]
    assert lossless == found.lossless
    assert "keeps the updates, and 1 updated row is null there" == found.outcome
    did = (found.conflict.source, found.conflict.dest)
    wrote, moved = did if of_source else did[::-1]
    assert (True, True) == (wrote.endswith("wrote its values"), "updated 1 row without them" in moved)


@pytest.mark.parametrize(
    "strategy,of_source,settled,facts",
    [
        (None, True, False, {}),
        ("source-wins", True, True, {}),
        ("dest-wins", True, True, {}),
        ("source-wins", False, True, {}),
        ("dest-wins", False, True, {}),
        ("dest-wins", False, False, {"dest_given_up": ROW}),
        ("source-wins", True, False, {"rewritten": ROW}),
        ("dest-wins", True, True, {"rewritten": ROW}),
        ("source-wins", True, False, {"uncertain": True}),
        ({"column new": "dest-wins"}, True, True, {}),
        ({"column amount": "dest-wins"}, True, False, {}),
    ],
)
def test_a_strategy_for_updated_rows_without_a_column(
    strategy: Strategy, *, of_source: bool, settled: bool, facts: dict[str, object]
) -> None:
    """The strategy applies if rows can be taken from the side with the columns, or the columns may be null."""
    columns: dict[str, object] = {"source": (2,), "lacking_source_columns": ROW}
    if not of_source:
        columns = {"dest": (2,), "lacking_dest_columns": ROW}
    found = findings(decided(**columns, **facts), rules=rules_for(strategy, added=(2,)))  # type: ignore[arg-type]  # as given
    assert ([] if settled else ["column new"]) == [each.conflict.unit for each in found]


def test_the_writer_cannot_lose_a_column_that_may_not_be_null() -> None:
    """The updated rows would have no value in the column."""
    one = decided(source=(2,), lacking_source_columns=ROW)
    assert [] == findings(one, rules=rules_for("source-wins", nullable=False))
    assert 1 == len(findings(one, rules=rules_for("dest-wins", nullable=False)))


def test_a_column_that_both_wrote_beside_the_same_rows() -> None:
    """Each column is one conflict for all fragments, and either side may win it."""
    found = findings(decided(0, written_twice={1: ROW}), decided(3, written_twice={1: ROW, 2: ROW}))
    assert [("column", "column amount", BOTH), ("column", "column new", BOTH)] == described(found)
    assert [{0: ROW, 3: ROW}, {3: ROW}] == [each.rows().base for each in found if each.rows is not None]


def test_rows_that_both_moved_away_from_columns_of_the_other() -> None:
    """No strategy settles the conflict, and the report names both columns."""
    (found,) = findings(decided(source=(2,), dest=(1,), both_moved=ROW))
    assert [("column", "column new", ())] == described([found])
    assert "moved the rows or wrote amount beside them" in found.conflict.dest


def test_columns_beside_rows_that_the_source_does_not_have() -> None:
    """The report has the fragment of the merge base that the rows come from."""
    (found,) = row_findings([], [(frozenset({2}), 4, ROW)], rules_for())
    assert [("column", "column new", ())] == described([found])
    assert found.rows is not None
    assert {4: ROW} == found.rows().base


def test_nothing_is_reported_of_decisions_without_conflict() -> None:
    """The decisions report neither rows nor columns."""
    assert [] == findings(decided(source=(2,)), decided(dest=(1,)))
