"""Find out why a side of a merge lacks rows whose ids it knows: it took them back, deleted them or never had them.

A revert, a restore or a reset takes versions back; a deletion is about the rows themselves. The two are told apart by
the version that removed the rows. Where that version is a merge, the version that removed them is looked up in the line
that was merged.
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
    """Rows that one side of a merge has and the other side knows and lacks, by the reason why it lacks them.

    Rows are given as a map from ids of the side that has them to ids of the side that lacks them. The side that lacks
    them took `returning` rows back by a revert or a restore, or never had them; it deleted the `deleted` rows, in the
    versions `deleted_by`. `reverted` are the identities of the versions that a revert took back with these rows.
    """

    returning: RowRuns = NO_ROWS
    deleted: RowRuns = NO_ROWS
    deleted_by: frozenset[str] = frozenset()
    reverted: frozenset[str] = frozenset()

    def inserted_by(self, change: Change) -> bool:
        """Tell whether a change of the side that has the rows inserted some of the `returning` rows."""
        if change.before is None or change.after is None:
            # The version, or the version before it, was cleaned up. To count it leads to a conflict at worst.
            return bool(len(self.returning))
        first, end = change.before.next_row_id, change.after.next_row_id
        rows = RowRuns(self.returning.at, self.returning.count, self.returning.at)
        return first < end and bool(len(RowRuns.one(first, end - first, first).where_in(rows)))


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
    deleted_by, reverted = set[str](), set[str]()
    for change in reversed(side.since):
        if change.transaction is None or change.before is None or change.after is None:
            # Nothing tells what became of the rows earlier, so they count as deleted. A merge is refused for it.
            history_complete = False
            break
        removed = _gone(change.before, change.after, unexplained, deleted)
        if reset_target(change.transaction) is not None:
            # The versions that the reset dropped are not among the changes, but the ids of their rows stay assigned.
            minted = change.after.next_row_id - change.before.next_row_id
            dropped = unexplained.where_in(RowRuns.of([(change.before.next_row_id, max(0, minted), 0)]))
            removed = RowRuns.set_of([removed, dropped.without(live(change.after, dropped, deleted))])
        if not len(removed):
            continue
        unexplained = unexplained.without(removed)
        back = _taken_back(context, change, removed, side.space, deleted=deleted)
        returning.append(back)
        reverted.add(change.transaction.properties.get(REVERTED, ""))
        if len(removed.without(back)):
            deleted_by.add(change.version)
    if history_complete and never_had:
        returning.append(unexplained)
    every = RowRuns.set_of(returning)
    return MissingRows(
        returning=missing.where_in(every),
        deleted=missing.without(every),
        deleted_by=frozenset(deleted_by),
        reverted=frozenset(reverted - {""}),
    )


def _taken_back(
    context: TableContext, change: Change, removed: RowRuns, space: RowSpace, *, deleted: Deleted
) -> RowRuns:
    """Return the removed rows that a version, or the line of versions that it merged, took back.

    Where the merged line cannot be read any more, the rows count as deleted there.
    """
    if _takes_back(change) or not change.is_merge:
        return removed if _takes_back(change) else NO_ROWS
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
    there = removed.through(space.translation(side.space).runs)
    back = why_missing(context, side, there, deleted, never_had=False).returning
    return RowRuns(back.at, back.count, back.at)


def _takes_back(change: Change) -> bool:
    transaction = change.transaction
    if transaction is None:
        return False
    return isinstance(transaction.operation, Restore) or bool({REVERTED, RESTORED} & transaction.properties.keys())


def _gone(before: Manifest, after: Manifest, among: RowRuns, deleted: Deleted) -> RowRuns:
    """Return the rows, of the ids `among`, that a version has and the next version lacks, as a set of ids."""
    earlier = live(before, among, deleted, differing_fragments(before, after))
    return (
        earlier.without(live(after, earlier, deleted, differing_fragments(after, before))) if len(earlier) else earlier
    )
