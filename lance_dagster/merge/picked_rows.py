"""Find rows that came to one side of a merge by a pick and that the other side had and does not have any more.

Such a row is known to both sides and absent from the merge base. It matters why the second side lacks it:

    first side             second side                                    the row counts as
    contains the version   contains the version, deleted the row          deleted, as a row of the merge base does
    picked version 5       merged version 5 and reverted that merge       inserted by the first side
    contains version 5     picked version 5 and reverted that pick        inserted by the first side
    picked version 5       contains version 5 and deleted the row         deleted, or a conflict (below)

A revert or a strategy takes a version back, and not the pick of it: a pick is a change of its own, made by another
branch, and comes to the result as it would in git. A deletion is about the row itself, however the row came there. So
the row is deleted on the other side as well; where the source picked the row and the dest deleted it, nothing tells
whether the pick was made in spite of the deletion, and the row is in conflict.
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
    """Return the rows of the first side that the second side does not have, though both know them by a pick.

    Args:
        context: The table.
        sides: The side that has the rows, and the side that does not have them.
        base: The row ids of the merge base.
        deleted: Reads deletion vectors.
    """
    (lineage, side), (other_lineage, other_side) = sides
    in_both = side.space.translation(other_side.space)
    shared = in_both.beyond(side.space.translation(base))
    # Nearly every merge returns here, before a branch is looked up.
    if not shared.stretches:
        return MissingRows()
    names = _names(side.space, shared)
    # A row whose version both sides contain counts like a row of the merge base.
    own = shared.beyond(_contained(context, lineage, names, other_side.space))
    native = shared.beyond(own)
    native = native.beyond(_contained(context, other_lineage, names, other_side.space)) if native.stretches else native
    dropped = any(change.transaction and MERGE_STRATEGY in change.transaction.properties for change in other_side.since)
    picked = why_missing(context, other_side, rows_lacking(side, other_side, own, deleted), deleted, never_had=dropped)
    original = why_missing(
        context, other_side, rows_lacking(side, other_side, native, deleted), deleted, never_had=other_side.complete
    )
    # A deletion of rows that the second side picked is about the rows themselves, so it holds for the originals too.
    return replace(
        picked,
        returning=RowRuns.united([picked.returning, original.returning]),
        reverted=picked.reverted | original.reverted,
    )


def rows_lacking(side: SideHistory, other_side: SideHistory, shared: Translation, deleted: Deleted) -> RowRuns:
    """Return the shared rows that a side has and the other side does not have, as ids of both."""
    if not shared.stretches:
        return NO_ROWS
    runs = shared.runs
    # A deleted copy may have the id of the row too, so only the rows that the side has are translated.
    there = live(side.manifest, RowRuns(runs.at, runs.count, runs.at), deleted).through(runs)
    return there.without(live(other_side.manifest, RowRuns.set_of([there]), deleted))


def _names(space: RowSpace, ids: Translation) -> list[Piece]:
    """Return the pieces of a row space that contain some of its ids."""
    ranges = ids.stretches
    return [piece for piece in space.names if any(piece.start < end and start < piece.end for start, end, _ in ranges)]


def _contained(context: TableContext, lineage: Lineage, names: Sequence[Piece], other_space: RowSpace) -> Translation:
    """Return the ids of rows that a version itself contains, with their ids in another row space.

    A row is contained, and not only picked, where the version contains the version of the row's branch of origin that
    inserted the row.

    Args:
        context: The table.
        lineage: The version.
        names: Where its ids come from: branches of origin with the ids that the rows have there.
        other_space: The row space to translate to.
    """
    branches = {piece.origin for piece in names if piece.origin in lineage.contained}
    ends = {branch_id: _next_row_id(context, lineage, branch_id) for branch_id in sorted(branches)}
    parts = (_up_to(piece, ends[piece.origin]) for piece in names if piece.origin in ends)
    native = tuple(part for part in parts if part is not None)
    return RowSpace(native, native).translation(RowSpace(other_space.names, other_space.names))


def _next_row_id(context: TableContext, of: Lineage, branch_id: str) -> int | None:
    """Return the next row id of the newest version of a branch that a version contains; None where it is unknown."""
    number = of.contained[branch_id]
    if branch_id == of.id and number <= of.state.number:
        return of.state.manifest.next_row_id
    names = {segment.id: segment.branch for segment in of.segments}
    if branch_id not in names and branch_id != MAIN:
        names |= {branch.id: branch.name for branch in context.refs.branches().values()}
    name = MAIN if branch_id == MAIN else names.get(branch_id)
    newest = None if name is None else context.versions.find(name, number, branch_id)
    # All rows of a deleted branch count as contained: nothing tells which of them were picked.
    return None if newest is None else newest.manifest.next_row_id


def _up_to(piece: Piece, end: int | None) -> Piece | None:
    """Return the part of a piece whose ids on its branch of origin are below an id."""
    if end is None:
        return piece
    count = min(piece.end - piece.start, end - piece.first)
    if count <= 0:
        return None
    return Piece(start=piece.start, end=piece.start + count, origin=piece.origin, first=piece.first)
