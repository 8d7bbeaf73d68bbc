"""Merges in the other direction: they have the same conflicts, and give the same rows.

The direction may change this: if one side has nothing new, a merge of that side has nothing to refuse. If the change
of one side is unknown, nothing else is examined. Of two columns with values beside rows that moved, the source's is
named; and where rows are in conflict, values that columns lack are reported for the rows of the dest. For a column
that is itself in conflict, new values of deleted rows are reported if the dest has the column, and so is a cast beside
rows that get new values of it. So conflicts of these kinds are left out, and texts are not compared: each names the
sides, and checks of a condition take the sides in order.
"""

from collections.abc import Iterable

from lance_dagster import LanceTable, MergePreview
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.types import Winner
from tests.properties.merging.laws import hold
from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS
from tests.properties.replica import KEY
from tests.table_factory import as_pylance

OTHER: dict[Winner, Winner] = {SOURCE_WINS: DEST_WINS, DEST_WINS: SOURCE_WINS}
_ONE_WAY = ("beside rows that moved", " without them")
_ONE_WAY_BESIDE_COLUMNS = ("but records only their fragments", "are brought back")


def mirrored(there: MergePreview, back: MergePreview, counts: tuple[int, int]) -> bool:
    """Check that two previews mirror each other; return whether one of them has conflicts and the other none.

    Args:
        there: The preview of a merge.
        back: The preview of the merge in the other direction.
        counts: The numbers of rows of the source and of the dest.
    """
    source, dest = counts
    if there.already_merged or back.already_merged:
        return False
    if bool(there.conflicts) != bool(back.conflicts):
        return True
    if "history" in {one.kind for one in (*there.conflicts, *back.conflicts)}:
        return False
    every = [{(one.kind, one.unit) for one in preview.conflicts} for preview in (there, back)]
    # A conflict of only one direction can have the same column as another conflict of the other direction.
    alone = (_units(there.conflicts) - every[1]) | (_units(back.conflicts) - every[0])
    hold(not alone, "both ways", f"{alone} is in conflict one way only")
    hold((there.source, there.dest) == (back.dest, back.source), "both ways", f"{there} and {back}")
    if not there.conflicts:
        left = dest + there.rows_added - there.rows_deleted, source + back.rows_added - back.rows_deleted
        hold(left[0] == left[1], "both ways", f"{left[0]} rows one way, {left[1]} the other")
    return False


def mirrors(there: MergePreview, back: MergePreview) -> bool:
    """Return whether both directions have the same conflicts, so that the winning side has to win the same rows."""
    every = [{(one.kind, one.unit) for one in preview.conflicts} for preview in (there, back)]
    return every[0] == every[1] == _units(there.conflicts) == _units(back.conflicts)


def same_rows(table: LanceTable, one: str, other: str, law: str) -> None:
    """Check that two branches have the same rows, regardless of the order of rows and columns."""
    rows = []
    for branch in (one, other):
        found = as_pylance(table, branch).to_table().to_pylist()
        rows.append({row[KEY]: row for row in found})
        hold(len(found) == len(rows[-1]), law, f"rows are doubled in {branch}")
    for uid in sorted(rows[0].keys() | rows[1].keys()):
        had = rows[0].get(uid), rows[1].get(uid)
        hold(had[0] == had[1], law, f"{one} has {had[0]}, {other} has {had[1]}")


def _units(conflicts: Iterable[Conflict]) -> set[tuple[str, str]]:
    every = list(conflicts)
    columns = any(one.kind == "column" for one in every)
    one_way = (*_ONE_WAY, *_ONE_WAY_BESIDE_COLUMNS) if columns else _ONE_WAY
    told = [one for one in every if not any(words in f"{one.source}; {one.dest}" for words in one_way)]
    return {(one.kind, one.unit) for one in told}
