"""Rows leave their fragments, and some enter new ones: what every change of rows has in common.

A row that is written anew keeps its id and the version it was created at, on a table with stable row ids; readers
that knew it by its id find it where it is. The version it was last updated at is set by the commit.
"""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from lance_dagster.datafiles import Addresses, StagedFiles, by_fragment, fragments_of, offsets_of
from lance_dagster.errors import CommitConflictError, CorruptFileError, InvalidInputError
from lance_dagster.format.codec import decode_row_ids, decode_versions, encode_row_ids, encode_versions
from lance_dagster.format.model import Field, Fragment
from lance_dagster.format.transaction import Operation, Transaction
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.vectors import deleted_offsets, with_deleted
from lance_dagster.history.versions import State
from lance_dagster.table.bases import placed
from lance_dagster.table.parts import Parts

_DEADLINE_SECONDS = 300.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_BLOBS = ("lance-encoding:blob", "lance.blob")


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows to be taken out: fragments that lose all of theirs, and those that lose some with the new vector."""

    removed: tuple[int, ...]
    updated: tuple[Fragment, ...]


def retried(attempt: Callable[[], State]) -> State:
    """Make a change, and make it again from the newest version when another commit got in between.

    Gives up by the clock, not by a count of attempts: among many writers, each of whom has to look again when another
    one was faster, the last one needs as many attempts as there are others.

    Raises:
        CommitConflictError: Nothing can be done again, or it was in vain for too long.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    pause = _FIRST_PAUSE
    while True:
        try:
            return attempt()
        except CommitConflictError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0, pause))  # noqa: S311  # keeps writers apart, hides nothing
        pause = min(2 * pause, _LONGEST_PAUSE)


def submit(parts: Parts, head: State, operation: Operation, properties: Mapping[str, str]) -> State:
    """Commit an operation that was made from a version to the branch of that version."""
    transaction = Transaction(
        read_version=head.number, uuid=str(uuid.uuid4()), operation=operation, properties=properties
    )
    return commit_transaction(parts.versions, head.branch, transaction)


def taken_out(parts: Parts, head: State, rows: Mapping[int, BitMap]) -> Removal:
    """Store the deletion vectors it takes to take rows out.

    Args:
        parts: The table.
        head: The version the rows were found in.
        rows: Offsets of live rows by the id of their fragment.
    """
    removed: list[int] = []
    updated: list[Fragment] = []
    for number, offsets in rows.items():
        fragment = _known(head, number)
        if len(offsets) == fragment.rows:
            removed.append(number)
        else:
            deleted = deleted_offsets(parts.versions, head, fragment) | offsets
            updated.append(with_deleted(parts.versions, head, fragment, deleted))
    return Removal(tuple(removed), tuple(updated))


def moved_in(parts: Parts, head: State, staged: StagedFiles, addresses: Addresses) -> tuple[Fragment, ...]:
    """Describe new files as fragments whose leading rows were moved there.

    Args:
        parts: The table.
        head: The version the rows were found in.
        staged: The files.
        addresses: Where the leading rows were, in the order in which they were written.
    """
    made = placed(parts, fragments_of(staged, head.manifest.fields, head.manifest.file_version), head, staged.base)
    if not head.manifest.stable_row_ids or not len(addresses):
        return made
    ids, created = _lineage(head, addresses)
    found: list[Fragment] = []
    start = 0
    for fragment in made:
        part = slice(start, start + fragment.physical_rows)
        start += fragment.physical_rows
        if len(ids[part]):
            found.append(
                replace(fragment, row_ids=encode_row_ids(ids[part]), created_at=encode_versions(created[part]))
            )
        else:
            found.append(fragment)
    return tuple(found)


def _lineage(head: State, addresses: Addresses) -> tuple[Addresses, Addresses]:
    """Return the ids of some rows and the versions they were created at."""
    ids, created = np.empty_like(addresses), np.empty_like(addresses)
    for number, places in by_fragment(addresses):
        fragment, where = _known(head, number), f"fragment {number} of {head}"
        offsets = offsets_of(addresses[places])
        ids[places] = decode_row_ids(fragment.row_ids, fragment.physical_rows, where)[offsets]
        created[places] = decode_versions(fragment.created_at, fragment.physical_rows, where)[offsets]
    return ids, created


def _known(head: State, number: int) -> Fragment:
    fragment = head.manifest.fragments.find(number)
    if fragment is None:
        raise CorruptFileError(str(head), f"a reader finds a fragment {number} that its manifest does not have")
    return fragment


def field_ids(fields: Sequence[Field], columns: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of some columns and of everything inside them."""
    wanted = {field.id for field in fields if field.parent_id < 0 and field.name in columns}
    for field in fields:
        # Depth first: a parent comes before its children.
        if field.parent_id in wanted:
            wanted.add(field.id)
    return tuple(field.id for field in fields if field.id in wanted)


def refuse_blobs(head: State, verb: str) -> None:
    """Refuse to write rows anew that hold blobs, which lie beside the files of the rows.

    Raises:
        InvalidInputError: Names the column.
    """
    for field in head.manifest.fields:
        if field.extension_name.startswith(_BLOBS) or not field.metadata.keys().isdisjoint(_BLOBS):
            raise InvalidInputError(
                f"cannot {verb} rows of {head}: column {field.name!r} holds blobs, which are not written anew here; "
                "delete and append the rows, or change them with pylance"
            )


def refuse_nested_blobs(head: State, verb: str) -> None:
    """Refuse to write rows anew that hold blobs inside another column, where they cannot be read as bytes.

    Raises:
        InvalidInputError: Names the column.
    """
    for field in head.manifest.fields:
        if field.parent_id >= 0 and field.extension_name.startswith(_BLOBS):
            raise InvalidInputError(
                f"cannot {verb} rows of {head}: {field.name!r} holds blobs inside another column; delete and append "
                "the rows, or change them with pylance"
            )
