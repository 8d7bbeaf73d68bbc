"""Find rows that one side of a merge picked, or the other one, and that the other one had and has no more.

A row that both sides know and that the merge base lacks came to them on separate ways. Where both contain the version
that inserted it, the row is as good as one of the merge base, and the side without it deleted it. A pick is a change of
its own: the other side cannot have meant it when it reverted a merge of the picked version, or dropped its rows by a
strategy. Nor is the revert of a pick about the version that was picked: the two cancel out, and the side that contains
the version still has its change. Such rows then count as inserted by the side that has them, as they would in git.

A row that a later deletion took away is different. The deletion is about the row itself. So it holds for a row that was
picked before, for the original of a row that was deleted after it was picked, and is a conflict where the source picked
the row and the dest deleted it.
"""

from collections.abc import Sequence
from dataclasses import replace

from lance_dagster.format.layout import MAIN
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.transaction import MERGE_STRATEGY
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import Lineage
from lance_dagster.merge.missing_rows import NO_ROWS, MissingRows, why_missing
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_changes import live
from lance_dagster.transactions.claims import SideHistory
from lance_dagster.transactions.row_id_spaces import Piece, RowSpace, Translation


def picked_rows(
    context: TableContext,
    sides: tuple[tuple[Lineage, SideHistory], tuple[Lineage, SideHistory]],
    base: RowSpace,
    deleted: Deleted,
) -> MissingRows:
    """Return the rows of the first of two sides that the second does not have, though it knows them by a pick.

    Args:
        context: The table.
        sides: The side that has the rows, and the other one.
        base: The row ids of the merge base.
        deleted: Reads deletion vectors.
    """
    (lineage, side), (other_lineage, other) = sides
    both = side.space.translation(other.space)
    shared = both.beyond(side.space.translation(base))
    # In nearly every merge there are none, so that no branch is looked up.
    if not shared.stretches:
        return MissingRows()
    names = _names(side.space, shared)
    # A row whose version both contain is as good as one of the merge base.
    own = shared.beyond(_contained(context, lineage, names, other.space))
    native = shared.beyond(own)
    native = native.beyond(_contained(context, other_lineage, names, other.space)) if native.stretches else native
    dropped = any(change.transaction and MERGE_STRATEGY in change.transaction.properties for change in other.since)
    picked = why_missing(context, other, rows_lacking(side, other, own, deleted), deleted, never_had=dropped)
    original = why_missing(
        context, other, rows_lacking(side, other, native, deleted), deleted, never_had=other.complete
    )
    # A deletion of rows that the other side picked is about the rows themselves, so it holds for the original ones.
    return replace(
        picked,
        returning=RowRuns.united([picked.returning, original.returning]),
        reverted=picked.reverted | original.reverted,
    )


def rows_lacking(side: SideHistory, other: SideHistory, known: Translation, deleted: Deleted) -> RowRuns:
    """Return those of some rows that a side has and the other one does not, as ids of both."""
    if not known.stretches:
        return NO_ROWS
    runs = known.runs
    # A deleted copy may have the id of the row too, so only the rows that the side has are translated.
    there = live(side.manifest, RowRuns(runs.at, runs.count, runs.at), deleted).through(runs)
    return there.without(live(other.manifest, RowRuns.set_of([there]), deleted))


def _names(space: RowSpace, ids: Translation) -> list[Piece]:
    """Return the names of some ids of a version, and of their neighbours."""
    ranges = ids.stretches
    return [one for one in space.names if any(one.start < end and start < one.end for start, end, _ in ranges)]


def _contained(context: TableContext, of: Lineage, names: Sequence[Piece], other: RowSpace) -> Translation:
    """Return those of the ids of a version that another one knows by a name whose version the first one contains."""
    branches = {piece.origin for piece in names if piece.origin in of.contained}
    ends = {branch_id: _next_row_id(context, of, branch_id) for branch_id in sorted(branches)}
    parts = (_up_to(piece, ends[piece.origin]) for piece in names if piece.origin in ends)
    native = tuple(part for part in parts if part is not None)
    return RowSpace(native, native).translation(RowSpace(other.names, other.names))


def _next_row_id(context: TableContext, of: Lineage, branch_id: str) -> int | None:
    """Return the next row id of the newest version of a branch that a version contains; None where that is unknown."""
    number = of.contained[branch_id]
    if branch_id == of.id and number <= of.state.number:
        return of.state.manifest.next_row_id
    names = {segment.id: segment.branch for segment in of.segments}
    if branch_id not in names and branch_id != MAIN:
        names |= {branch.id: branch.name for branch in context.refs.branches().values()}
    name = MAIN if branch_id == MAIN else names.get(branch_id)
    found = None if name is None else context.versions.find(name, number, branch_id)
    # Of a branch that is gone, all rows count as contained: nothing tells which were picked.
    return None if found is None else found.manifest.next_row_id


def _up_to(piece: Piece, end: int | None) -> Piece | None:
    """Return the part of a piece whose ids on its branch of origin are below an id."""
    if end is None:
        return piece
    count = min(piece.end - piece.start, end - piece.first)
    if count <= 0:
        return None
    return Piece(start=piece.start, end=piece.start + count, origin=piece.origin, first=piece.first)
