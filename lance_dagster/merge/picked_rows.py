"""Find rows that one side of a merge has, and that the other side had and lacks, where one of them came by a pick.

Such a row is known to both sides and absent from the merge base. What it counts as depends on how it came to each side
and on why the second side lacks it:

    first side, has the row   second side, lacks the row                 the row counts as
    contains version 5        contains version 5                         deleted, like a row of the merge base
    picked version 5          merged version 5, reverted the merge       inserted by the first side
    contains version 5        picked version 5, reverted the pick        inserted by the first side
    contains version 5        picked version 5, deleted the row          deleted
    picked version 5          contains version 5, deleted the row        deleted, or in conflict if the source picked it

A pick is a change of its own. Who reverts the merge of version 5, or drops its rows by a strategy, does not mean the
pick on another branch; who reverts a pick of version 5 does not mean version 5. So the row comes to the result, as it
would in git. A deletion is about the row itself, so it holds for each copy of the row. Where the source picked the row
and the dest deleted it, nothing tells whether the pick was made in spite of the deletion: that is a conflict.

The version that removed the rows from the second side tells why they are gone: a revert, a restore or a reset takes
versions back, any other version deletes rows. Where it is a merge, the version that removed the rows is looked up in
the line that was merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Manifest
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.transaction import (
    MERGE_STRATEGY,
    MERGED_BRANCH,
    RESTORED,
    REVERTED,
    Restore,
    reset_target,
)
from lance_dagster.history.ancestry import Ancestry, RecordedVersion
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import Lineage, lineage_of, side_history
from lance_dagster.history.merge_base import merge_base
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_changes import differing_fragments, live
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import Piece, RowSpace, Translation

_NO_ROWS = RowRuns.of(())


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRows:
    """Rows that one side of a merge has and the other side knows and lacks, by the reason why it lacks them.

    Rows are given as a map from ids of the side that has them to ids of the side that lacks them. The side that lacks
    them took `returning` rows back by a revert or a restore, or never had them; it deleted the `deleted` rows.
    """

    returning: RowRuns = _NO_ROWS
    deleted: RowRuns = _NO_ROWS

    def inserted_by(self, change: Change) -> bool:
        """Tell whether a change of the side that has the rows inserted some of the `returning` rows."""
        if change.before is None or change.after is None:
            # The version, or the version before it, was cleaned up. To count it leads to a conflict at worst.
            return bool(len(self.returning))
        first, end = change.before.next_row_id, change.after.next_row_id
        rows = RowRuns(self.returning.at, self.returning.count, self.returning.at)
        return first < end and bool(len(RowRuns.one(first, end - first, first).where_in(rows)))


def picked_rows(
    context: TableContext,
    sides: tuple[tuple[Lineage, SideHistory], tuple[Lineage, SideHistory]],
    base: RowSpace,
    deleted: Deleted,
    *,
    other_bases: Sequence[tuple[RowSpace, Manifest]] = (),
) -> MissingRows:
    """Return the rows of the first side that the second side does not have, though both know them by a pick.

    Args:
        context: The table.
        sides: The side that has the rows, and the side that does not have them.
        base: The row ids of the merge base.
        deleted: Reads deletion vectors.
        other_bases: The row ids and the manifests of the other merge bases. A row that one of them knows and lacks is
            no row that the second side deleted: where the first side has it, it came back there.
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
    returning = [picked.returning, original.returning]
    if other_bases:
        lacking = rows_lacking(side, other_side, shared, deleted)
        for space, manifest in other_bases:
            addressed = RowRuns(lacking.at, lacking.count, lacking.at).through(side.space.translation(space).runs)
            returning.append(addressed.without(live(manifest, RowRuns.set_of([addressed]), deleted)))
    every = RowRuns.set_of([RowRuns(rows.at, rows.count, rows.at) for rows in returning])
    return replace(picked, returning=every.through(shared.runs))


def rows_lacking(side: SideHistory, other_side: SideHistory, shared: Translation, deleted: Deleted) -> RowRuns:
    """Return the shared rows that a side has and the other side does not have, as ids of both."""
    if not shared.stretches:
        return _NO_ROWS
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
        names |= {branch.id: branch.name for branch in context.refs.branches.all().values()}
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


def why_missing(
    context: TableContext, side: SideHistory, missing: RowRuns, deleted: Deleted, *, never_had: bool
) -> MissingRows:
    """Tell which of the rows that a side lacks it took back, and which it deleted.

    The versions of the side are walked from the newest to the oldest; a row belongs to the version that removed it
    last.

    Args:
        context: The table.
        side: The side that lacks the rows.
        missing: The ids of the rows on the other side, with their ids on this side.
        deleted: Reads deletion vectors.
        never_had: Whether rows that the side never had count as taken back, and not as deleted.
    """
    if not len(missing):
        return MissingRows()
    unexplained, returning, history_complete = RowRuns.set_of([missing]), list[RowRuns](), True
    for change in reversed(side.since):
        if change.transaction is None or change.before is None or change.after is None:
            # Nothing tells what became of the rows earlier, so they count as deleted. A merge is refused for it.
            history_complete = False
            break
        removed = _removed_rows(change.before, change.after, unexplained, deleted)
        if reset_target(change.transaction) is not None:
            # The versions that the reset dropped are not among the changes, but the ids of their rows stay assigned.
            minted = change.after.next_row_id - change.before.next_row_id
            dropped = unexplained.where_in(RowRuns.of([(change.before.next_row_id, max(0, minted), 0)]))
            removed = RowRuns.set_of([removed, dropped.without(live(change.after, dropped, deleted))])
        if not len(removed):
            continue
        unexplained = unexplained.without(removed)
        returning.append(_taken_back(context, change, removed, side.space, deleted=deleted))
    if history_complete and never_had:
        returning.append(unexplained)
    every = RowRuns.set_of(returning)
    return MissingRows(
        returning=missing.where_in(every),
        deleted=missing.without(every),
    )


def _taken_back(
    context: TableContext, change: Change, removed: RowRuns, space: RowSpace, *, deleted: Deleted
) -> RowRuns:
    """Return the removed rows that a version, or the line of versions that it merged, took back.

    Where the merged line cannot be read any more, the rows count as deleted there.
    """
    if _takes_back(change) or not change.is_merge:
        return removed if _takes_back(change) else _NO_ROWS
    try:
        version = context.versions.describe(context.load_recorded(RecordedVersion(change.version)))
        merged = Ancestry(context.refs, context.versions).merged(version)
        if merged is None:
            return _NO_ROWS
        origin = version.properties.get(MERGED_BRANCH, "")
        source = lineage_of(context.versions.load(merged.branch, merged.number, origin), context.refs)
        dest = lineage_of(context.load_recorded(RecordedVersion(version.parents[0])), context.refs)
        base = merge_base(source, dest, context.refs, context.versions)
        side = side_history(source, dest, base, context.versions)
    except (InvalidInputError, NotFoundError):
        return _NO_ROWS
    there = removed.through(space.translation(side.space).runs)
    back = why_missing(context, side, there, deleted, never_had=False).returning
    return RowRuns(back.at, back.count, back.at)


def _takes_back(change: Change) -> bool:
    transaction = change.transaction
    if transaction is None:
        return False
    return isinstance(transaction.operation, Restore) or bool({REVERTED, RESTORED} & transaction.properties.keys())


def _removed_rows(before: Manifest, after: Manifest, among: RowRuns, deleted: Deleted) -> RowRuns:
    """Return the rows, of the ids `among`, that a version has and the next version lacks, as a set of ids."""
    earlier = live(before, among, deleted, differing_fragments(before, after))
    return (
        earlier.without(live(after, earlier, deleted, differing_fragments(after, before))) if len(earlier) else earlier
    )
