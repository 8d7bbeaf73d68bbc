"""The expected result of a cherry-pick or a revert: the rules of a merge, applied to the change between two versions.

The change need not start at a version that the branch contains, and may lead to an earlier state. So the branch may
lack rows of the base that nobody deleted, and a new column may have values for rows that others have rewritten.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.properties.merging.merge_inputs import ExpectedConflict, MergeInputs, Outcome
from tests.properties.merging.oracle import expected, merges
from tests.properties.merging.rows_model import Cell, Column, Made, Row, Snapshot, VersionGraph
from tests.properties.replica import KEY

UNWRITTEN = Cell(None, 0)
CLAIMED = ("partition", "table")


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The change from one version to another: a picked change, or, in reverse, a reverted one."""

    base: Made
    source: Made
    did: Made

    @classmethod
    def of(cls, commit: Made, parent: Made) -> "ChangeRange":
        """The change of a version, to be made again."""
        return cls(parent, commit, commit)

    @classmethod
    def back(cls, commit: Made, parent: Made) -> "ChangeRange":
        """The reversed change of a version, which claims nothing."""
        return cls(commit, parent, replace(commit, claims=(), partitions=()))

    def all_inputs(self, graph: VersionGraph, head: Made) -> list[MergeInputs]:
        """The states of a merge into a branch: once with the versions that a restore removed, and once without."""
        base, source, dest = (_seen(one.snapshot) for one in (self.base, self.source, head))
        source, dest = (_prepared(_matched(side, base), base) for side in (source, dest))
        known = dict.fromkeys(((head.within, self.base.within), (head.ever, self.base.ever)))
        return [MergeInputs(base, source, dest, [self.did], graph.since(*pair)) for pair in known]


def _prepared(side: Snapshot, base: Snapshot) -> Snapshot:
    return _partly(_with_nulls(_computed(side, base), base), base)


def outcome(inputs: MergeInputs) -> Outcome:
    """Merge by the rules; a resulting row without its key is a conflict."""
    found = expected(inputs)
    same_casts = {f"cast {column.name}" for column in inputs.dest.columns if _has_the_cast_of(column, inputs.base)}
    conflicts = [
        # The branch's values in a dropped column may differ only because they are older than those of the base.
        replace(conflict, hard=False)
        if conflict.unit.partition(" beside ")[0] in same_casts or conflict.unit.startswith("dropped ")
        else conflict
        for conflict in found.conflicts
    ]
    return Outcome(_without_unwritten(found.result), [*conflicts, *_unreadable(found.result)])


def _without_unwritten(state: Snapshot) -> Snapshot:
    """Leave out the markers of values that nobody wrote."""
    rows = {
        uid: replace(row, cells={token: cell for token, cell in row.cells.items() if cell.stamp != UNWRITTEN.stamp})
        for uid, row in state.rows.items()
    }
    return replace(state, rows=rows)


def _has_the_cast_of(column: Column, base: Snapshot) -> bool:
    """Whether a branch itself gave a column the type that it has in the base, so that the values are equal."""
    was = base.column(column.token)
    return was is not None and (was.name, was.type) == (column.name, column.type)


def known_rows(graph: VersionGraph, head: Made, inputs: MergeInputs) -> dict[int, Row]:
    """The rows that the source inserts and that a branch once had in the same form.

    A row that a merged branch inserted and deleted before the merge was never a row of the branch itself.
    """
    there = {(uid, row.stamp) for made in _own_versions(graph, head) for uid, row in made.snapshot.rows.items()}
    new = inputs.source.rows.keys() - inputs.base.rows.keys()
    return {uid: inputs.source.rows[uid] for uid in new if (uid, inputs.source.rows[uid].stamp) in there}


def _own_versions(graph: VersionGraph, made: Made) -> Iterator[Made]:
    yield made
    while made.parents:
        made = graph.made[made.parents[0]]
        yield made


def with_rows(inputs: MergeInputs, rows: Mapping[int, Row]) -> MergeInputs:
    """Treat rows as known to both sides."""
    return replace(inputs, base=replace(inputs.base, rows={**rows, **inputs.base.rows}))


def after_pick(graph: VersionGraph, source: Made, picked: Made, commit: Made) -> list[Outcome]:
    """Merge a branch into one that already has the rows of one of its versions; these rows are not new.

    The branch has the same claims as that version, so these contradict nothing that it did since.
    """
    before = graph.made[commit.parents[0]].snapshot.rows
    known = {uid: row for uid, row in commit.snapshot.rows.items() if uid not in before and uid in picked.snapshot.rows}
    found = merges(graph, source, picked, known)
    # A restore that took the version back is not about its pick.
    if any(made.did == "restore" for made in graph.since(source.ever, commit.ever)):
        found += merges(graph, source, picked)
    if not commit.claims:
        return found
    return [
        Outcome(
            one.result,
            [replace(conflict, hard=conflict.hard and conflict.kind not in CLAIMED) for conflict in one.conflicts],
        )
        for one in found
    ]


def _unreadable(result: Snapshot) -> Sequence[ExpectedConflict]:
    key = result.by_name(KEY)
    return [ExpectedConflict("rows", f"row {uid} has no key") for uid, row in result.rows.items() if _lacks(row, key)]


def _lacks(row: Row, key: object) -> bool:
    return key is None or getattr(key, "token", None) not in row.cells


def _seen(state: Snapshot) -> Snapshot:
    """Leave out the values of columns that no longer exist."""
    tokens = {column.token for column in state.columns}
    rows = {
        uid: replace(row, cells={token: cell for token, cell in row.cells.items() if token in tokens})
        for uid, row in state.rows.items()
    }
    return replace(state, rows=rows)


def _computed(side: Snapshot, base: Snapshot) -> Snapshot:
    """Mark the new columns that have values for rows of the base."""
    tokens = {token for uid in base.rows.keys() & side.rows.keys() for token in side.rows[uid].cells}
    new = tokens - {column.token for column in base.columns}
    columns = tuple(replace(one, computed=one.computed or one.token in new) for one in side.columns)
    return replace(side, columns=columns)


def _with_nulls(side: Snapshot, base: Snapshot) -> Snapshot:
    """Mark the values of the base that a row lacks although the column exists: nobody wrote them."""
    tokens = {column.token for column in side.columns}
    rows = {
        uid: replace(row, cells={**dict.fromkeys(base.rows[uid].cells.keys() & tokens, UNWRITTEN), **row.cells})
        if uid in base.rows
        else row
        for uid, row in side.rows.items()
    }
    return replace(side, rows=rows)


def _partly(side: Snapshot, base: Snapshot) -> Snapshot:
    """Mark the values that differ from the base because only some rows of the column were written."""
    rows = {
        uid: replace(
            row, cells={token: _marked(cell, base.rows[uid].cells.get(token)) for token, cell in row.cells.items()}
        )
        if uid in base.rows
        else row
        for uid, row in side.rows.items()
    }
    return replace(side, rows=rows)


def _marked(cell: Cell, was: Cell | None) -> Cell:
    return replace(cell, partly=True) if was is not None and was.partly and was.stamp != cell.stamp else cell


def _matched(side: Snapshot, base: Snapshot) -> Snapshot:
    """After an overwrite, identify columns with those of the base that have the same names and types."""
    keys = [state.by_name(KEY) for state in (side, base)]
    if keys[0] is None or keys[1] is None or keys[0].token == keys[1].token:
        return side
    known = {(column.name, column.type): column.token for column in base.columns}
    tokens = {column.token: known.get((column.name, column.type), column.token) for column in side.columns}
    rows = {
        uid: replace(row, cells={tokens[token]: cell for token, cell in row.cells.items()})
        for uid, row in side.rows.items()
    }
    return replace(
        side, rows=rows, columns=tuple(replace(column, token=tokens[column.token]) for column in side.columns)
    )
