"""Row ids and row versions of fragments that a commit adds or changes (row id and lineage specification).

A row keeps its id and the version it was created at when it moves to another fragment; what is new is the version it
was last updated at. Both are known only when the commit's number is, so they are set anew for every attempt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.codec import (
    count_row_ids,
    decode_row_runs,
    decode_version_runs,
    encode_version_runs,
    row_id_range,
    version_run,
)
from lance_dagster.format.model import Fragment
from lance_dagster.format.row_runs import VersionRuns
from lance_dagster.format.transaction import Update

_NEW = "a new fragment"


def stamped(fragment: Fragment, next_row_id: int, version: int) -> tuple[Fragment, int]:
    """Give the rows of a new fragment their ids and versions.

    Moved rows come first; the fragment contains their ids and the versions they were created at. All later rows are
    new.

    Returns:
        The fragment, and the next row id that is free.

    Raises:
        InvalidInputError: The fragment has more row ids than rows, row ids without creation versions, or row ids
            that this branch has not assigned.
        CorruptFileError: Its sequences cannot be decoded.
    """
    moved = 0 if fragment.row_ids is None else count_row_ids(fragment.row_ids, _NEW)
    # Moved rows come first, so their number alone separates them from the new rows.
    new = fragment.physical_rows - moved
    if new < 0:
        raise InvalidInputError(
            f"a new fragment has {moved} row ids for {fragment.physical_rows} rows; each row has at most one row id"
        )
    if moved and fragment.created_at is None:
        raise InvalidInputError("a new fragment with row ids needs the versions that its rows were created at, too")
    if moved:
        # An id at or above the counter would be assigned again by a later commit, and two rows would share it.
        largest = decode_row_runs(fragment.row_ids, moved, _NEW).largest
        if largest is not None and largest >= next_row_id:
            raise InvalidInputError(f"a new fragment brings the row id {largest}, but the next row id is {next_row_id}")
        # Decoded only to refuse damaged bytes, before they are stored in the manifest.
        decode_version_runs(fragment.created_at, moved, _NEW)
    # Both are repeated messages in protobuf, so encoded segments can be concatenated.
    row_ids = (fragment.row_ids or b"") + (row_id_range(next_row_id, new) if new else b"")
    # Moved rows too: a row only moves to a new fragment in an update because it has new values.
    updated = version_run(fragment.physical_rows, version)
    inserted = (updated if not moved else version_run(new, version)) if new else b""
    created = (fragment.created_at or b"" if moved else b"") + inserted
    return replace(fragment, row_ids=row_ids, created_at=created, updated_at=updated), next_row_id + new


def restamped(operation: Update, version: int) -> Iterator[Fragment]:
    """Return the fragments an update changes, with the version that rows updated in place were last updated at.

    When the update does not name the rows, all rows keep their versions, as in pylance.

    Raises:
        CorruptFileError: The offsets of the rows or their versions cannot be read.
    """
    for fragment in operation.updated_fragments:
        offsets = offsets_rewritten_in_place(operation, fragment.id)
        if not operation.writes_columns or not offsets:
            yield fragment
            continue
        where = f"fragment {fragment.id}"
        if offsets.max() >= fragment.physical_rows:
            raise CorruptFileError(where, f"row {offsets.max()} of {fragment.physical_rows} is said to be updated")
        yield with_new_values(fragment, version, offsets)


def with_creation(fragment: Fragment, sources: Sequence[Fragment]) -> Fragment:
    """Look up the versions that the moved rows of a new fragment were created at, where they were before.

    Raises:
        InvalidInputError: A row was in none of these fragments.
        CorruptFileError: Ids or versions cannot be read.
    """
    moved = decode_row_runs(fragment.row_ids, count_row_ids(fragment.row_ids or b"", _NEW), _NEW)
    missing, created = moved, VersionRuns.of([(moved.rows, 0)])
    for own in sources:
        where = f"fragment {own.id}"
        offsets = decode_row_runs(own.row_ids, own.physical_rows, where).inverse()
        located = missing.through(offsets)
        created = created.overlaid(located.versions(decode_version_runs(own.created_at, own.physical_rows, where)))
        missing = missing.without(offsets)
    if len(missing):
        raise InvalidInputError("a new fragment brings the id of a row that was in none of the fragments it came from")
    return replace(fragment, created_at=encode_version_runs(created))


def with_new_values(fragment: Fragment, version: int, offsets: BitMap | None = None) -> Fragment:
    """Record that rows of a fragment were last updated by a version: the rows at some offsets, or every row.

    Raises:
        CorruptFileError: The versions of the remaining rows cannot be read.
    """
    if offsets is None:
        return replace(fragment, updated_at=version_run(fragment.physical_rows, version))
    versions = decode_version_runs(fragment.updated_at, fragment.physical_rows, f"fragment {fragment.id}")
    fresh = VersionRuns.of([(fragment.physical_rows, version)]).restricted(offsets)
    return replace(fragment, updated_at=encode_version_runs(versions.overlaid(fresh)))


def offsets_rewritten_in_place(operation: Update, fragment_id: int) -> BitMap:
    """Return the offsets of the rows of a fragment that an update changed in place.

    The result is empty if the update does not name the rows; it may have changed whole columns all the same.

    Raises:
        CorruptFileError: The offsets cannot be read.
    """
    listed = BitMap(operation.updated_offsets.get(fragment_id, ()))
    bitmap = operation.updated_offset_bitmaps.get(fragment_id)
    if bitmap is None:
        return listed
    try:
        return listed | BitMap.deserialize(bitmap)
    except ValueError as error:
        where = f"fragment {fragment_id}"
        raise CorruptFileError(where, f"the bitmap of its updated rows cannot be read: {error}") from error
