"""Put a change that takes rows out on top of others that took rows out of the same fragments.

A deletion vector holds all rows of a fragment that are deleted, so a vector made from an older version would bring
rows back that others deleted since. What a change means is the rows it adds to the vector. When nobody else touched
those, the vectors are joined.

Rows that both deleted are no contradiction, unless one of the two put them elsewhere: an update that moved a row
which somebody else deleted would bring it back, and a deletion of a row that somebody else moved would miss it. Then
the work has to be done again from the newest version, as it has when the fragment has other files by now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.changes.conflicts import RowChange, removed_fragments, touched_fragments
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import Transaction, Update
from lance_dagster.history.vectors import deleted_offsets, with_deleted
from lance_dagster.history.versions import State, Versions


def rebased(
    versions: Versions, mine: Transaction, theirs: Sequence[RowChange], *, base: State, head: State
) -> Transaction | None:
    """Return a change as it has to be to follow `head`, or None when it has to be made again.

    Args:
        versions: Where deletion files are read and written.
        mine: The change; its operation takes rows out.
        theirs: What was committed in between and touches the same fragments.
        base: The version it was made from.
        head: The version it shall follow.
    """
    operation = mine.operation
    if not isinstance(operation, RowChange):
        return mine
    moved = isinstance(operation, Update) or any(isinstance(other, Update) for other in theirs)
    shared = touched_fragments(operation) & frozenset().union(*map(touched_fragments, theirs))
    updated: dict[int, Fragment] = {fragment.id: fragment for fragment in operation.updated_fragments}
    removed = set(removed_fragments(operation))
    for number in sorted(shared):
        before, there = base.manifest.fragments.find(number), head.manifest.fragments.find(number)
        own = updated.pop(number, None)
        removed.discard(number)
        if before is None or (there is None and moved) or (there is not None and there.files != before.files):
            return None
        if there is None:
            # Somebody else took all of it out.
            continue
        was, others = deleted_offsets(versions, base, before), deleted_offsets(versions, head, there)
        mine_now = BitMap(range(before.physical_rows)) if own is None else deleted_offsets(versions, base, own)
        if moved and (mine_now - was) & (others - was):
            return None
        union = mine_now | others
        if len(union) == there.physical_rows:
            removed.add(number)
        elif union != others:
            updated[number] = with_deleted(versions, head, there, union)
    return replace(mine, operation=_with(operation, updated, sorted(removed)))


def _with(operation: RowChange, updated: Mapping[int, Fragment], removed: Sequence[int]) -> RowChange:
    fragments = tuple(updated.values())
    if isinstance(operation, Update):
        return replace(operation, updated_fragments=fragments, removed_fragment_ids=tuple(removed))
    return replace(operation, updated_fragments=fragments, deleted_fragment_ids=tuple(removed))
