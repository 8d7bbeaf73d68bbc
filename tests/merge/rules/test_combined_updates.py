"""Rows that both sides updated are compared by cell: one copy may have all changes, or the row is written anew."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from pyroaring import BitMap

from lance_dagster.format.transaction import CLAIMS, Update
from lance_dagster.merge.rules import MergePlan, MergeRefusal, plan_merge
from lance_dagster.merge.rules.merge_input import AddressedRows, ComparedCells, MergeInput
from lance_dagster.merge.rules.merge_side import MOST_ROWS_COMPARED
from lance_dagster.transactions.claims import Claim, ClaimMode, encode_claims
from lance_dagster.types import Strategy
from tests.merge.rules.literal_merges import BASE, FIELDS, fragment, manifest, merge_input, side

COLUMNS = ("id", "amount")
KEPT, TAKEN, CONFLICT, WRITTEN = "the dest's row", "the source's row", "conflict", "written anew"


@dataclass
class Comparison:
    """A comparison in which each side changed given columns of every row, some of them to the same value."""

    source: str
    dest: str
    equal: str = ""
    asked: list[list[list[int]]] = field(default_factory=list)

    def __call__(self, *versions: AddressedRows) -> ComparedCells | None:
        """Compare the cells of rows."""
        self.asked.append([addresses.tolist() for _, addresses in versions])
        rows = len(versions[0][1])
        changed = [np.array([[name in one.split() for name in COLUMNS]] * rows) for one in (self.source, self.dest)]
        equal = np.array([[name in self.equal.split() for name in COLUMNS]] * rows)
        apart = (changed[0] | changed[1]) & ~equal
        return ComparedCells(columns=COLUMNS, source=changed[0], dest=changed[1], apart=apart)


def updates(
    comparison: Comparison | None,
    rows: list[int] | None = None,
    *,
    claim: Claim | None = None,
    strategy: Strategy = None,
) -> MergeInput:
    """Both sides update rows of the merge base, given by row ids, into fragment 1; the source may have a claim."""
    ids = [1] if rows is None else rows
    count = max(4, len(ids))
    base = BASE if count == 4 else manifest(fragment(0, "base.lance", range(count)), next_row_id=count)
    states = [
        manifest(
            fragment(0, "base.lance", range(count), deleted=ids),
            fragment(1, f"{name}.lance", ids, updated_at=3),
            next_row_id=count,
        )
        for name in ("run", "main")
    ]
    properties: Mapping[str, str] = {} if claim is None else {CLAIMS: encode_claims([claim])}
    source, dest = (
        side(name, state, Update(), base=base, properties=properties if name == "run" else None)
        for name, state in zip(("run", "main"), states, strict=True)
    )
    nothing: Mapping[str, Mapping[int, BitMap]] = {} if claim is None else {str(claim.predicate): {}}
    given = merge_input(source, dest, base=base, strategy=strategy, matching=nothing)
    return replace(given, lookups=replace(given.lookups, compare_cells=comparison))


def outcome(given: MergeInput) -> tuple[str, list[list[bool]]]:
    """The outcome for the row, and for a row written anew which cells come from the source."""
    plan = plan_merge(given)
    if isinstance(plan, MergeRefusal):
        return CONFLICT, []
    gone = 1 in plan.removed
    if plan.added:
        assert gone
        return TAKEN, plan.combined.from_source.tolist()
    return (WRITTEN if gone else KEPT), plan.combined.from_source.tolist()


@pytest.mark.parametrize(
    "source,dest,equal,expected",
    [
        ("amount", "id", "", (WRITTEN, [[False, True]])),
        ("id", "amount", "", (WRITTEN, [[True, False]])),
        ("amount", "", "", (TAKEN, [])),
        ("", "amount", "", (KEPT, [])),
        ("", "", "", (KEPT, [])),
        ("id amount", "id", "id", (TAKEN, [])),
        ("id", "id amount", "id", (KEPT, [])),
        ("amount", "amount", "", (CONFLICT, [])),
        ("id amount", "amount", "", (CONFLICT, [])),
    ],
)
def test_the_cells_of_a_row(source: str, dest: str, equal: str, expected: tuple[str, list[list[bool]]]) -> None:
    """A copy with all changes is kept; if no copy has all, the row is written anew."""
    assert expected == outcome(updates(Comparison(source, dest, equal)))


@pytest.mark.parametrize(
    "source,dest,winner,expected",
    [
        ("amount", "amount", "source-wins", (TAKEN, [])),
        ("amount", "amount", "dest-wins", (KEPT, [])),
        ("amount", "id amount", "source-wins", (WRITTEN, [[False, True]])),
        ("amount", "id amount", "dest-wins", (KEPT, [])),
        ("id amount", "amount", "dest-wins", (WRITTEN, [[True, False]])),
    ],
)
def test_a_strategy_decides_about_conflicting_cells(
    source: str, dest: str, winner: Strategy, expected: tuple[str, list[list[bool]]]
) -> None:
    """Cells that only one side changed keep the change, whichever side wins the others."""
    assert expected == outcome(updates(Comparison(source, dest), strategy=winner))


def test_a_row_is_addressed_in_all_three_versions() -> None:
    """The plan has the addresses of both copies in the order of the merge base, and counts no row as removed."""
    comparison = Comparison("amount", "id")
    plan = plan_merge(updates(comparison, [2, 0]))
    assert isinstance(plan, MergePlan)
    assert [[[0, 2], [(1 << 32) + 1, 1 << 32], [(1 << 32) + 1, 1 << 32]]] == comparison.asked
    assert [(1 << 32) + 1, 1 << 32] == plan.combined.dest.tolist() == plan.combined.source.tolist()
    assert (2, 2, 2, 0) == (
        plan.first_combined,
        plan.tally.rows_combined,
        plan.tally.rows_updated,
        plan.tally.rows_removed,
    )


REPLACED: ClaimMode = "replace"
UPSERTED: ClaimMode = "upsert"


@pytest.mark.parametrize(
    "claim,expected",
    [
        (Claim(mode=REPLACED, predicate="amount = 9"), CONFLICT),
        (Claim(mode=REPLACED, predicate="id = 9"), CONFLICT),
        (Claim(mode=UPSERTED, predicate="other = 9", on=("id",)), CONFLICT),
        (Claim(mode="append"), WRITTEN),
    ],
)
def test_a_claimed_column_is_not_put_together(claim: Claim, expected: str) -> None:
    """The combined row could be in the scope of a claim in which neither copy is."""
    assert expected == outcome(updates(Comparison("amount", "id"), claim=claim))[0]


def test_rows_are_not_put_together_where_columns_differ() -> None:
    """Rows are not read if one side changed the columns, or if there is no comparison."""
    comparison = Comparison("amount", "id")
    given = updates(comparison)
    fields = (*FIELDS[:1], replace(FIELDS[1], metadata={"unit": b"cent"}))
    dest = replace(given.dest, manifest=replace(given.dest.manifest, fields=fields))
    assert (CONFLICT, []) == outcome(replace(given, dest=dest))
    assert ([], (CONFLICT, [])) == (comparison.asked, outcome(updates(None)))


def test_the_number_of_rows_that_are_put_together_is_bounded() -> None:
    """Above the limit no cell is read, and all rows conflict."""
    comparison = Comparison("amount", "id")
    rows = list(range(MOST_ROWS_COMPARED + 1))
    assert ((CONFLICT, []), []) == (outcome(updates(comparison, rows)), comparison.asked)
