"""Row ids and row versions of fragments that a commit adds (row id and lineage specification).

A row keeps its id and the version it was created at when it moves to another fragment; what is new is the version it
was last updated at. Both are known only when the commit's number is, so they are set anew for every attempt.
"""

from dataclasses import replace

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import count_row_ids, row_id_range, version_run
from lance_dagster.format.model import Fragment


def stamped(fragment: Fragment, next_row_id: int, version: int) -> tuple[Fragment, int]:
    """Give the rows of a new fragment their ids and versions.

    Rows that were moved stand first: the fragment brings their ids, and the versions they were created at. The others
    are new.

    Returns:
        The fragment, and the next row id that is free.

    Raises:
        InvalidInputError: The fragment brings more ids than it has rows, or ids without the versions of creation.
    """
    moved = 0 if fragment.row_ids is None else count_row_ids(fragment.row_ids)
    new = fragment.physical_rows - moved
    if new < 0:
        raise InvalidInputError(f"a new fragment of {fragment.physical_rows} rows brings {moved} row ids")
    if moved and fragment.created_at is None:
        raise InvalidInputError("rows that bring their ids have to bring the versions they were created at too")
    # Both are lists of segments on the wire, so more of them can be put behind those that are there.
    row_ids = (fragment.row_ids or b"") + (row_id_range(next_row_id, new) if new else b"")
    created = (fragment.created_at or b"") + (version_run(new, version) if new else b"")
    updated = version_run(fragment.physical_rows, version)
    return replace(fragment, row_ids=row_ids, created_at=created, updated_at=updated), next_row_id + new
