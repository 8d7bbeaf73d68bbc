"""Merges the other way round: what contradicts itself does so both ways, and the rows are the same.

What a direction may change: where one side has nothing new, that way there is nothing to refuse. Where it is unknown
what one side did, the rest is not looked at. Of two columns whose values lie beside rows that moved, the source's is
named; and where rows are in conflict, what columns lack in them is told of the rows that the dest has. Of a column that
is in conflict itself, new values of deleted rows are named where the dest has the column. So conflicts of these sorts
are left out, and texts are not compared: each says who did what, and of a condition both sides are asked in turn.
"""

from collections.abc import Iterable

from lance_dagster import LanceTable, MergePreview, Winner
from lance_dagster.merge.rules.strategy import Conflict
from tests.properties.merging.laws import hold
from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS
from tests.properties.replica import KEY
from tests.table_factory import as_pylance

OTHER: dict[Winner, Winner] = {SOURCE_WINS: DEST_WINS, DEST_WINS: SOURCE_WINS}
_ONE_WAY = ("beside rows that moved", " without them")
_ONE_WAY_BESIDE_COLUMNS = "but records only their fragments"


def mirrored(there: MergePreview, back: MergePreview, counts: tuple[int, int]) -> bool:
    """Hold that two previews are each other's mirror; returns whether one has conflicts and the other none.

    Args:
        there: The preview of a merge.
        back: That of the merge the other way round.
        counts: How many rows its source and its dest have.
    """
    source, dest = counts
    if there.already_merged or back.already_merged:
        return False
    if bool(there.conflicts) != bool(back.conflicts):
        return True
    if "history" in {one.kind for one in (*there.conflicts, *back.conflicts)}:
        return False
    every = [{(one.kind, one.unit) for one in preview.conflicts} for preview in (there, back)]
    # A conflict that may come one way only can be about a column that another conflict the other way is about.
    alone = (_units(there.conflicts) - every[1]) | (_units(back.conflicts) - every[0])
    hold(not alone, "both ways", f"{alone} is in conflict one way only")
    hold((there.source, there.dest) == (back.dest, back.source), "both ways", f"{there} and {back}")
    if not there.conflicts:
        left = dest + there.rows_added - there.rows_removed, source + back.rows_added - back.rows_removed
        hold(left[0] == left[1], "both ways", f"{left[0]} rows one way, {left[1]} the other")
    return False


def mirrors(there: MergePreview, back: MergePreview) -> bool:
    """Tell whether all conflicts are the same both ways, so that a side that wins has to win the same."""
    every = [{(one.kind, one.unit) for one in preview.conflicts} for preview in (there, back)]
    return every[0] == every[1] == _units(there.conflicts) == _units(back.conflicts)


def same_rows(table: LanceTable, one: str, other: str, law: str) -> None:
    """Hold that two branches have the same rows, whatever order they and their columns are in."""
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
    one_way = (*_ONE_WAY, _ONE_WAY_BESIDE_COLUMNS) if columns else _ONE_WAY
    told = [one for one in every if not any(words in f"{one.source}; {one.dest}" for words in one_way)]
    return {(one.kind, one.unit) for one in told}
