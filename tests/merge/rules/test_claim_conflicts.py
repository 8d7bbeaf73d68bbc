"""Conflicts between claims of both sides, and what the losing side loses."""

from collections.abc import Mapping

import pytest
from pyroaring import BitMap

from lance_dagster.format.transaction import CLAIMS, Delete, Overwrite
from lance_dagster.merge.rules.claim_conflicts import SettledClaims, settle_claims
from lance_dagster.merge.rules.merge_side import sides_of
from lance_dagster.merge.rules.strategy import ParsedStrategy, Strategy
from lance_dagster.transactions.claims import Claim, SideHistory, encode_claims
from tests.merge.rules.literal_merges import BASE, appended, described, fragment, manifest, merge_input, side

MONDAY = "day = 'mon'"
BOTH = ("source-wins", "dest-wins")
REPLACED_MON = Claim(mode="replace", predicate=MONDAY, partitions=("mon",))
REPLACED_TUE = Claim(mode="replace", predicate="day = 'tue'", partitions=("tue",))
REPLACED_WHERE = Claim(mode="replace", predicate=MONDAY)
APPENDED_MON = Claim(mode="append", partitions=("mon",))
OVERWRITTEN = Claim(mode="overwrite")
UPSERTED = Claim(mode="upsert", predicate="id IN (4)")


def claiming(name: str, *claims: Claim) -> SideHistory:
    """Make a side that appended a row, with claims."""
    return side(name, *appended(4, file=f"{name}.lance"), properties={CLAIMS: encode_claims(claims)})


def settled(
    source: SideHistory,
    dest: SideHistory,
    strategy: Strategy = None,
    matching: Mapping[str, Mapping[int, BitMap]] | None = None,
) -> SettledClaims:
    """Settle the claims of two sides."""
    return settle_claims(*sides_of(merge_input(source, dest, matching=matching)), ParsedStrategy.parse(strategy))


@pytest.mark.parametrize(
    "source,dest,expected",
    [
        (APPENDED_MON, APPENDED_MON, []),
        (REPLACED_MON, REPLACED_TUE, []),
        (REPLACED_MON, REPLACED_MON, [("partition", "partition mon", BOTH)]),
        (REPLACED_MON, APPENDED_MON, [("partition", "partition mon", BOTH)]),
        (APPENDED_MON, REPLACED_MON, [("partition", "partition mon", BOTH)]),
        (OVERWRITTEN, APPENDED_MON, [("table", "the whole table", BOTH)]),
        (REPLACED_TUE, OVERWRITTEN, [("table", "the whole table", BOTH)]),
    ],
)
def test_claims_that_name_what_they_are_about(
    source: Claim, dest: Claim, expected: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    """Partitions are compared by name; if only one side names them, rows are compared, and here none match."""
    found = settled(claiming("run", source), claiming("main", dest), matching={"day = 'tue'": {}}).findings
    assert expected == described(found)


@pytest.mark.parametrize(
    "matches,expected", [(BitMap([0]), [("partition", f"rows where {MONDAY}", BOTH)]), (BitMap(), [])]
)
def test_a_predicate_is_held_against_the_rows_of_a_side_that_claims_nothing(
    matches: BitMap, expected: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    """Another program's append has no claim, so its rows are checked against the predicate."""
    source, dest = claiming("run", REPLACED_WHERE), side("main", *appended(4, file="other.lance"))
    assert expected == described(settled(source, dest, matching={MONDAY: {1: matches}}).findings)


def test_rows_that_the_predicate_cannot_be_asked_about_may_match() -> None:
    """If the other side may have renamed the column, its rows cannot be excluded from the claim."""
    source, dest = claiming("run", REPLACED_WHERE), side("main", *appended(4, file="other.lance"))
    assert [("partition", f"rows where {MONDAY}", BOTH)] == described(settled(source, dest).findings)


def test_a_side_that_did_nothing_is_in_nobodys_way() -> None:
    """An overwrite claims all rows, but the other side changed none."""
    overwritten = manifest(fragment(1, "all.lance", [4]), next_row_id=5)
    operation = Overwrite(fragments=overwritten.fragments, fields=overwritten.fields, schema_metadata={})
    assert () == settled(side("run", overwritten, operation), side("main")).findings


def test_the_loser_loses_what_it_wrote_in_the_scope() -> None:
    """The loser's rows in the claim are dropped; its other rows stay."""
    source, dest = claiming("run", REPLACED_WHERE), side("main", *appended(4, 5, file="other.lance"))
    won = settled(source, dest, "source-wins", matching={MONDAY: {0: BitMap([2]), 1: BitMap([1])}})
    assert ({1: BitMap([1])}, {}) == (won.dest.dropped, won.dest.undone)
    assert ({}, {}) == (won.source.dropped, won.source.undone)


def test_what_the_loser_of_its_own_claim_took_out_comes_back() -> None:
    """The source replaced Monday and loses, so the merge base's rows of Monday count as unchanged."""
    source = claiming("run", REPLACED_WHERE)
    dest = side("main", manifest(fragment(0, "base.lance", range(4), deleted=[3])), Delete(updated_fragments=()))
    won = settled(source, dest, "dest-wins", matching={MONDAY: {0: BitMap([2, 3]), 1: BitMap([0])}})
    assert ({1: BitMap([0])}, {0: BitMap([2, 3])}) == (won.source.dropped, won.source.undone)


def test_the_strategy_does_not_change_what_is_found() -> None:
    """The findings are equal for each winner and each order of rules."""
    sides = claiming("run", REPLACED_MON), claiming("main", REPLACED_MON)
    matching = {MONDAY: {0: BitMap([0]), 1: BitMap([0])}}
    found = [described(settled(*sides, strategy, matching).findings) for strategy in (None, "source-wins", "dest-wins")]
    assert 1 == len({tuple(each) for each in found})


def test_an_upsert_claims_its_new_keys() -> None:
    """A row of the other side with one of the keys would make the key occur twice."""
    source, dest = claiming("run", UPSERTED), side("main", *appended(4, file="other.lance"))
    found = settled(source, dest, matching={"id IN (4)": {1: BitMap([0])}}).findings
    assert ["rows where id IN (4)"] == [finding.conflict.unit for finding in found]
    assert "upserted new keys there" in found[0].conflict.source


def test_base_is_untouched() -> None:
    """No test changed the literals, which all tests share."""
    assert (1, 4) == (len(BASE.fragments), BASE.rows)
