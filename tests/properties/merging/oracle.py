"""The expected result of a merge: the rules of three-way merges over plain values, written independently of the engine.

Each side has kept, updated or deleted every row since the base. A change of one side only is taken; a row that both
deleted is deleted; anything else is a conflict. The same table applies to columns, their facets and the keys of maps.
Claims are about absent rows: a side that replaced a partition claims that nobody else inserted rows into it.

A conflict is `hard` when a merge would lose or duplicate something, or give something that neither side has. It is soft
where the rules let a program refuse that knows less than this model; a program that merges must give `Outcome.result`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lance_dagster.errors import Reason
from tests.properties.merging.claim_rules import claim_conflicts, claimed
from tests.properties.merging.column_rules import beside_updated, column_conflicts, is_beside, merged_columns
from tests.properties.merging.merge_inputs import (
    DEST_WINS,
    SOURCE_WINS,
    ExpectedConflict,
    MergeInputs,
    Outcome,
    touched,
)
from tests.properties.merging.row_rules import merged_rows
from tests.properties.merging.rows_model import Column, Made, Row, Snapshot, VersionGraph


def expected(inputs: MergeInputs, strategy: str | None = None) -> Outcome:
    """Merge the source into the dest by the rules.

    Args:
        inputs: The states.
        strategy: The side that wins a conflict over a row, a key of a map or the whole table. None gives the result
            of a merge whose conflicts are all soft.
    """
    conflicts: list[ExpectedConflict] = []
    columns = merged_columns(inputs, conflicts, strategy)
    rows = merged_rows(inputs, conflicts, strategy)
    conflicts += column_conflicts(inputs, rows)
    conflicts += claim_conflicts(inputs)
    states = (inputs.base, inputs.source, inputs.dest)
    config = _map("config", tuple(state.config for state in states), conflicts, strategy)
    metadata = _map("metadata", tuple(state.metadata for state in states), conflicts, strategy)
    kept = {
        name: token
        for name, token in inputs.dest.indices.items()
        if any(column.token == token for column in columns) and _cast_of(inputs.dest, token) == _cast_in(columns, token)
    }
    result = replace(inputs.dest, columns=tuple(columns), rows=rows, indices=kept, config=config, metadata=metadata)
    return Outcome(result, list(dict.fromkeys(conflicts)))


def merges(graph: VersionGraph, source: Made, dest: Made, known: Mapping[int, Row] | None = None) -> list[Outcome]:
    """The outcomes by the rules for each merge base, with versions that a restore removed counted as new, and as known.

    Args:
        graph: All versions.
        source: The version that is merged.
        dest: The version that it is merged into.
        known: Rows that both sides had, although no merge base has them.
    """
    found = []
    for source_nodes, dest_nodes in dict.fromkeys(((source.within, dest.within), (source.ever, dest.ever))):
        did, others = graph.since(source_nodes, dest_nodes), graph.since(dest_nodes, source_nodes)
        if not did:
            found.append(Outcome(dest.snapshot))
            continue
        found += [
            expected(
                MergeInputs(
                    replace(base, rows={**(known or {}), **base.rows}), source.snapshot, dest.snapshot, did, others
                )
            )
            for base in _bases(graph, graph.bases(source_nodes, dest_nodes))
        ]
    return found


def _bases(graph: VersionGraph, best: Sequence[Made]) -> Sequence[Snapshot]:
    """The merged state of several merge bases, or each of their states if they conflict with each other."""
    joined, within = best[0].snapshot, best[0].within
    for other in best[1:]:
        below = graph.bases(within, other.within)
        did = graph.since(other.within, within), graph.since(within, other.within)
        both = expected(MergeInputs(below[0].snapshot, other.snapshot, joined, *did))
        if len(below) > 1 or both.conflicts:
            return [one.snapshot for one in best]
        joined, within = both.result, within | other.within
    return [joined]


def resolved(inputs: MergeInputs, strategy: str, told: Collection[Reason] = ()) -> Snapshot | None:
    """The result of a merge in which one side wins every conflict; None if the rules leave open how much it wins.

    Args:
        inputs: The states.
        strategy: The side that wins.
        told: The conflicts that a preview has reported. If these are of more kinds, or about more rows, than the rules
            require, the side wins their subjects too.
    """
    outcome = expected(inputs, strategy)
    if not outcome.conflicts or not all(conflict.hard for conflict in outcome.conflicts):
        return None
    kinds = {conflict.kind for conflict in told} & {"rows", "column", "partition", "table"}
    count = sum(int(conflict.unit.split()[0]) for conflict in told if conflict.kind == "rows")
    if kinds - outcome.kinds or count > len(
        {conflict.unit for conflict in outcome.conflicts if conflict.kind == "rows"}
    ):
        return None
    winner = inputs.source if strategy == SOURCE_WINS else inputs.dest
    maps = {"config", "metadata"}
    whole = outcome.kinds - maps == {"table"}
    loser = inputs.dest if winner is inputs.source else inputs.source
    if whole and loser.columns != inputs.base.columns:
        # The rules leave open whether a column that only the loser has is lost with the loser's rows.
        return None
    if whole:
        return replace(winner, config=outcome.result.config, metadata=outcome.result.metadata)
    if outcome.kinds <= {"rows", *maps}:
        # Rows that a replacement deleted may count as a part of its partition.
        claimed_too = any(made.claims for made in (*inputs.source_did, *inputs.dest_did))
        open_ones = ("in place", "cell")
        unknown = any(word in conflict.unit for conflict in outcome.conflicts for word in open_ones)
        return None if claimed_too or unknown else outcome.result
    if outcome.kinds <= {"partition", *maps}:
        return _partitions_won(inputs, outcome.result, winner)
    if outcome.kinds <= {"column", *maps} and all(
        is_beside(conflict) for conflict in outcome.conflicts if conflict.kind not in maps
    ):
        # Without stable row ids more rows may count as updated, and the conflict says how many: all of them are won.
        lacking = sum(len(beside_updated(inputs, *sides)) for sides in _both_ways(inputs))
        return None if _told_updated(told) > lacking else _rows_won(inputs, outcome.result, strategy)
    return None


def _both_ways(inputs: MergeInputs) -> tuple[tuple[Snapshot, Snapshot], tuple[Snapshot, Snapshot]]:
    return (inputs.source, inputs.dest), (inputs.dest, inputs.source)


def _told_updated(told: Iterable[Reason]) -> int:
    """Return the most rows of which a conflict about a column says that they were updated without it."""
    texts = "; ".join(f"{conflict.source}; {conflict.dest}" for conflict in told)
    return max(map(int, re.findall(r"updated (\d+) rows? without", texts)), default=0)


def _rows_won(inputs: MergeInputs, merged: Snapshot, strategy: str) -> Snapshot:
    """Take rows that one side updated without a column that the other side filled from the winner."""
    rows = dict(merged.rows)
    for (side, other), wins in zip(_both_ways(inputs), (SOURCE_WINS, DEST_WINS), strict=True):
        new = {one.token for one in side.columns} - {one.token for one in inputs.base.columns}
        for uid in beside_updated(inputs, side, other):
            # A row that came from the other side after the column was added has no value there to lose.
            if new & side.rows[uid].cells.keys():
                rows[uid] = (side if strategy == wins else other).rows[uid]
    return replace(merged, rows=rows)


def _partitions_won(inputs: MergeInputs, merged: Snapshot, winner: Snapshot) -> Snapshot | None:
    in_conflict = [
        claim
        for side, did, other in (
            (inputs.source, inputs.source_did, inputs.dest),
            (inputs.dest, inputs.dest_did, inputs.source),
        )
        for made in did
        for claim in made.claims
        if any(True for _ in claimed(inputs, claim, side, other))
    ]
    if any(claim.whole for claim in in_conflict) or any(
        touched(inputs.base, side) for side in (inputs.source, inputs.dest)
    ):
        return None
    result = merged
    for claim in in_conflict:
        result = result.without(result.where(claim))
        result = replace(result, rows={**result.rows, **{uid: winner.rows[uid] for uid in winner.where(claim)}})
    return result


def _cast_of(state: Snapshot, token: int) -> int | None:
    return _cast_in(state.columns, token)


def _cast_in(columns: Iterable[Column], token: int) -> int | None:
    return next((column.cast for column in columns if column.token == token), None)


def _map(
    kind: str, states: tuple[Mapping[str, str], ...], conflicts: list[ExpectedConflict], strategy: str | None
) -> dict[str, str]:
    base, source, dest = states
    merged = dict(dest)
    for key in base.keys() | source.keys():
        before, new, current = base.get(key), source.get(key), dest.get(key)
        if new in (before, current):
            continue
        if current != before:
            conflicts.append(ExpectedConflict(kind, key))
            if strategy != SOURCE_WINS:
                continue
        if new is None:
            merged.pop(key, None)
        else:
            merged[key] = new
    return merged
