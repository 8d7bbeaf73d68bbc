"""Find out why one side of a merge does not have rows that it knows: it took them back, deleted them or never had them.

A revert, a restore or a reset is about versions, a deletion about the rows themselves. What a merge removed is looked
up in the line of versions that it merged.
"""

from dataclasses import dataclass

from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.model import Manifest
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.transaction import MERGED_BRANCH, RESTORED, REVERTED, Restore, reset_target
from lance_dagster.history.ancestry import Ancestry, RecordedVersion
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import lineage_of, side_history
from lance_dagster.history.merge_base import merge_base
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_changes import differing_fragments, live
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import RowSpace

NO_ROWS = RowRuns.of(())


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRows:
    """Rows that one side of a merge has, that the other one knows by a pick of either, and does not have.

    All are given as ids of the side that has them, with the ids of the other side. `returning` were taken back there by
    a revert or a restore, or were never taken over; `deleted` were picked and then deleted there, by the versions
    `deleted_by`. `reverted` are the identities of the versions that a revert took back with these rows.
    """

    returning: RowRuns = NO_ROWS
    deleted: RowRuns = NO_ROWS
    deleted_by: frozenset[str] = frozenset()
    reverted: frozenset[str] = frozenset()

    def inserted_by(self, change: Change) -> bool:
        """Tell whether a change of the side put in some of the rows that count as inserted."""
        if change.before is None or change.after is None:
            # A version beside it was cleaned up. That it counts is a conflict at worst.
            return bool(len(self.returning))
        first, end = change.before.next_row_id, change.after.next_row_id
        rows = RowRuns(self.returning.at, self.returning.count, self.returning.at)
        return first < end and bool(len(RowRuns.one(first, end - first, first).where_in(rows)))


def why_missing(
    context: TableContext, side: SideHistory, missing: RowRuns, deleted: Deleted, *, never_had: bool
) -> MissingRows:
    """Tell which rows, given by their ids on a side, it took back, and which it deleted.

    Args:
        context: The table.
        side: The side that does not have the rows.
        missing: Their ids on the other side, with those on this one.
        deleted: Reads deletion vectors.
        never_had: Whether rows that it never had count as taken back, and not as deleted.
    """
    if not len(missing):
        return MissingRows()
    left, returning, known = RowRuns.set_of([missing]), list[RowRuns](), True
    deleted_by, reverted = set[str](), set[str]()
    for change in reversed(side.since):
        if change.transaction is None or change.before is None or change.after is None:
            # Nothing tells what became of the rows before, so they count as deleted. A merge is refused for it.
            known = False
            break
        gone = _gone(change.before, change.after, left, deleted)
        if reset_target(change.transaction) is not None:
            # The versions that the reset dropped are not among the changes, but the ids of their rows stay taken.
            minted = change.after.next_row_id - change.before.next_row_id
            had = left.where_in(RowRuns.of([(change.before.next_row_id, max(0, minted), 0)]))
            gone = RowRuns.set_of([gone, had.without(live(change.after, had, deleted))])
        if not len(gone):
            continue
        left = left.without(gone)
        back = _taken_back(context, change, gone, side.space, deleted=deleted)
        returning.append(back)
        reverted.add(change.transaction.properties.get(REVERTED, ""))
        if len(gone.without(back)):
            deleted_by.add(change.version)
    if known and never_had:
        returning.append(left)
    every = RowRuns.set_of(returning)
    return MissingRows(
        returning=missing.where_in(every),
        deleted=missing.without(every),
        deleted_by=frozenset(deleted_by),
        reverted=frozenset(reverted - {""}),
    )


def _taken_back(context: TableContext, change: Change, gone: RowRuns, space: RowSpace, *, deleted: Deleted) -> RowRuns:
    """Return those of the rows that a version removed that it, or the line of versions it merged, took back.

    Where that line cannot be read any more, the rows count as deleted there.
    """
    if _takes_back(change) or not change.is_merge:
        return gone if _takes_back(change) else NO_ROWS
    try:
        version = context.versions.describe(context.load_recorded(RecordedVersion(change.version)))
        merged = Ancestry(context.refs, context.versions).merged(version)
        if merged is None:
            return NO_ROWS
        origin = version.properties.get(MERGED_BRANCH, "")
        source = lineage_of(context.versions.load(merged.branch, merged.number, origin), context.refs)
        dest = lineage_of(context.load_recorded(RecordedVersion(version.parents[0])), context.refs)
        base = merge_base(source, dest, context.refs, context.versions)
        side = side_history(source, dest, base, context.versions)
    except (InvalidInputError, NotFoundError):
        return NO_ROWS
    there = gone.through(space.translation(side.space).runs)
    back = why_missing(context, side, there, deleted, never_had=False).returning
    return RowRuns(back.at, back.count, back.at)


def _takes_back(change: Change) -> bool:
    of = change.transaction
    return of is not None and (isinstance(of.operation, Restore) or bool({REVERTED, RESTORED} & of.properties.keys()))


def _gone(before: Manifest, after: Manifest, among: RowRuns, deleted: Deleted) -> RowRuns:
    """Return those of some rows that one version has and the next one does not, as a set of ids."""
    had = live(before, among, deleted, differing_fragments(before, after))
    return had.without(live(after, had, deleted, differing_fragments(after, before))) if len(had) else had
