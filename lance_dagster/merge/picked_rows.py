"""Find picked rows that the other side of a merge had and has no more, or never took over.

A row that both sides know and that the merge base lacks came to them on separate ways. Where both contain the version
that inserted it, the row is as good as one of the merge base, and the side without it deleted it. A pick is a change of
its own: the other side cannot have meant it when it reverted a merge of the picked version, or dropped its rows by a
strategy. Such rows then count as inserted by the side that picked them, as they would in git.

A row that a later deletion took away is different. The deletion is about the row itself, so it holds for a row that was
picked before, and is a conflict where the source picked the row and the dest deleted it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_dagster.format.codec import decode_row_runs, smallest_row_id
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Manifest
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.transaction import MERGE_STRATEGY, PICKED, RESTORED, REVERTED, Restore
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import Lineage
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_changes import differing_fragments
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import Piece, RowSpace, Translation

_NO_ROWS = RowRuns.of(())


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedRows:
    """Rows that one side of a merge picked, that both sides know, and that the other side does not have.

    All are given as ids of the side that picked them, with the ids of the other side. `returning` were taken back
    there by a revert or a restore, or were never taken over because of a strategy; `deleted` were deleted there, by the
    versions `deleted_by`. `reverted` are the identities of the versions that a revert took back with these rows.
    """

    returning: RowRuns = _NO_ROWS
    deleted: RowRuns = _NO_ROWS
    deleted_by: frozenset[str] = frozenset()
    reverted: frozenset[str] = frozenset()

    def picked_by(self, change: Change) -> bool:
        """Tell whether a change of the side is the pick of some of the rows that count as inserted."""
        if change.transaction is None or PICKED not in change.transaction.properties:
            return False
        if change.before is None or change.after is None:
            return False
        first, end = change.before.next_row_id, change.after.next_row_id
        rows = RowRuns(self.returning.at, self.returning.count, self.returning.at)
        return first < end and bool(len(RowRuns.one(first, end - first, first).where_in(rows)))


def picked_rows(
    context: TableContext,
    sides: tuple[tuple[Lineage, SideHistory], tuple[Lineage, SideHistory]],
    base: RowSpace,
    deleted: Deleted,
) -> PickedRows:
    """Return the rows that the first of two sides picked and that the second does not have, though it knows them.

    Args:
        context: The table.
        sides: The side that may have picked rows, and the other one.
        base: The row ids of the merge base.
        deleted: Reads deletion vectors.
    """
    (lineage, side), (_, other) = sides
    both = side.space.translation(other.space)
    shared = both.beyond(side.space.translation(base))
    # In nearly every merge there are none, so that no branch is looked up.
    if not shared.stretches:
        return PickedRows()
    own = shared.beyond(_contained(context, lineage, _names(side.space, shared), other.space))
    if not own.stretches:
        return PickedRows()
    known = own.runs
    # A deleted copy may have the id of the row too, so only the rows that the side has are translated.
    there = _live(side.manifest, RowRuns(known.at, known.count, known.at), deleted).through(known)
    missing = there.without(_live(other.manifest, RowRuns.set_of([there]), deleted))
    if not len(missing):
        return PickedRows()
    return _why_missing(other, missing, deleted)


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


def _why_missing(side: SideHistory, missing: RowRuns, deleted: Deleted) -> PickedRows:
    """Tell which rows, given by their ids on a side, it took back or never took over, and which it deleted."""
    left, returning, known = RowRuns.set_of([missing]), list[RowRuns](), True
    deleted_by, reverted = set[str](), set[str]()
    for change in reversed(side.since):
        if change.transaction is None or change.before is None or change.after is None:
            # Nothing tells what became of the rows before. They count as deleted, which is a conflict at worst.
            known = False
            break
        gone = _gone(change.before, change.after, left, deleted)
        if not len(gone):
            continue
        left = left.without(gone)
        if _takes_back(change):
            returning.append(gone)
            reverted.add(change.transaction.properties.get(REVERTED, ""))
        else:
            deleted_by.add(change.version)
    if known and any(change.transaction and MERGE_STRATEGY in change.transaction.properties for change in side.since):
        returning.append(left)
    back = RowRuns.set_of(returning)
    return PickedRows(
        returning=missing.where_in(back),
        deleted=missing.without(back),
        deleted_by=frozenset(deleted_by),
        reverted=frozenset(reverted - {""}),
    )


def _takes_back(change: Change) -> bool:
    of = change.transaction
    return of is not None and (isinstance(of.operation, Restore) or bool({REVERTED, RESTORED} & of.properties.keys()))


def _gone(before: Manifest, after: Manifest, among: RowRuns, deleted: Deleted) -> RowRuns:
    """Return those of some rows that one version has and the next one does not, as a set of ids."""
    had = _live(before, among, deleted, differing_fragments(before, after))
    return had.without(_live(after, had, deleted, differing_fragments(after, before))) if len(had) else had


def _live(manifest: Manifest, among: RowRuns, deleted: Deleted, numbers: set[int] | None = None) -> RowRuns:
    """Return those of some rows that a version has, as a set of ids.

    Args:
        manifest: The version.
        among: The ids asked for, as a set.
        deleted: Reads deletion vectors.
        numbers: The fragments that are looked at; all by default.
    """
    return RowRuns.set_of(list(_live_parts(manifest, among, deleted, numbers))) if len(among) else among


def _live_parts(manifest: Manifest, among: RowRuns, deleted: Deleted, numbers: set[int] | None) -> Iterator[RowRuns]:
    last = among.largest or 0
    for number in manifest.fragments.ids if numbers is None else sorted(numbers):
        fragment = manifest.fragment(number)
        lowest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if lowest is not None and lowest > last:
            continue
        ids = decode_row_runs(fragment.row_ids, fragment.physical_rows, f"fragment {number}").where_in(among)
        # A deletion vector is a file, which is read only where some of the rows are.
        if len(ids) and fragment.deletion is not None:
            ids = ids.restricted(BitMap(range(fragment.physical_rows)) - deleted(manifest, fragment))
        if len(ids):
            yield ids
