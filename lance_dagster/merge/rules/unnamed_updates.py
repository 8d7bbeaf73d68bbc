"""Find rows that may have been updated in place, on tables without stable row ids.

On tables with stable row ids pylance names the rows that an update changed, and the row rules know them as updated.
Without stable row ids, every row of a fragment beside which an update put new files may have new values. A merge, a
pick or a revert passes on files of updates and files of columns that were written as a whole; it records which
fragments of its result have files of updates.
"""

import re
from collections.abc import Iterator, Mapping

from pyroaring import BitMap

from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import CHANGE_ORIGIN_PROPERTIES, MERGE, UPDATED_IN_PLACE, Update
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.row_origins import BaseKey
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_lineage import offsets_rewritten_in_place

_FRAGMENT_ID = re.compile("[0-9]{1,10}")
_MERGED = CHANGE_ORIGIN_PROPERTIES | {MERGE}


def updated_in_place(side: MergeSide, number: BaseKey) -> BitMap:
    """Return the rows of a fragment of the merge base that a side may have updated in place.

    Where a compaction removed an updated fragment, every row that the side moved out of the base fragment may have been
    updated.
    """
    updated = BitMap()
    if not isinstance(number, int):
        return updated
    anchored, relocated = side.fragments.anchored, side.rows.relocated
    own = anchored.get(number)
    for fragment, named in _rewritten_in_place(side.history):
        offsets = named or BitMap(range(fragment.physical_rows))
        if fragment.id == own:
            updated |= offsets
        elif fragment.id in relocated:
            updated |= relocated[fragment.id].in_base(offsets).get(number, BitMap())
        elif fragment.id not in anchored.values():
            updated |= side.of(number).moved
    return updated


def passed_on_in_place(
    source: MergeSide, column_sources: Mapping[int, Fragment], added: Mapping[int, int]
) -> frozenset[int] | None:
    """Return the fragments of the result whose rows may have values that the source wrote in place.

    Args:
        source: The side that wrote the values in place.
        column_sources: By fragment of the dest, the fragment of the source that gives it columns.
        added: By fragment of the source that is added to the dest, its id in the result.

    Returns:
        The ids of the fragments. None if there are no such fragments and a later merge knows it without a record.
    """
    if source.manifest.stable_row_ids:
        return None
    updated = {fragment.id for fragment, _ in _rewritten_in_place(source.history)}
    updated_ids = {number for number, fragment in column_sources.items() if fragment.id in updated}
    # Rows that a compaction moved after the update count as rewritten by the merge, so they need no record.
    updated_ids |= {new for own, new in added.items() if own in updated}
    return frozenset(updated_ids) if updated_ids or column_sources else None


def _rewritten_in_place(side: SideHistory) -> Iterator[tuple[Fragment, BitMap]]:
    """Return the fragments in which updates of a side put new files beside rows, and the rows if these are named."""
    for change in side.changes:
        operation = change.operation
        properties: Mapping[str, str] = change.transaction.properties if change.transaction is not None else {}
        if UPDATED_IN_PLACE in properties:
            yield from ((fragment, BitMap()) for fragment in _recorded(change, properties[UPDATED_IN_PLACE]))
        # A merge, pick or revert without the record brings columns as a whole, whichever operation made them.
        elif isinstance(operation, Update) and _MERGED.isdisjoint(properties):
            for fragment in operation.updated_fragments:
                before = None if change.before is None else change.before.fragments.find(fragment.id)
                # An update that moves rows leaves the files as they are; what a writer says of its mode is not relied
                # on.
                if before is None or before.file_names != fragment.file_names:
                    yield fragment, offsets_rewritten_in_place(operation, fragment.id)


def _recorded(change: Change, record: str) -> Iterator[Fragment]:
    """Return the fragments of a merge that its record names."""
    after = change.after
    # Any program can set the property, so it may contain anything and name a fragment that is not there.
    numbers = [int(number) for number in record.split(",") if _FRAGMENT_ID.fullmatch(number)]
    fragments = (None if after is None else after.fragments.find(number) for number in numbers)
    return (fragment for fragment in fragments if fragment is not None)
