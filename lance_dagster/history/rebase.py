"""Deletion vectors in the store, and the rebase of row changes whose deletion vectors overlap.

A deletion vector holds all deleted rows of a fragment, so a vector that was made from an older version would bring
back rows that were deleted since, and delete rows that a revert brought back. A change means only the rows it adds to
the vector. When no other writer touched those rows, they are added to the vector of the head.

Rows that both changes deleted are not a conflict, unless one of the two moved them: an update of a row that another
writer deleted would bring the row back, and a deletion of a row that another writer moved would miss it. Then the
change has to be made again from the head, as it has when the fragment has other data files by now.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.errors import BasePathRefusedError, CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lance_dagster.format import layout
from lance_dagster.format.deletions import ARROW_FILE, decode_offsets, encode_offsets
from lance_dagster.format.model import DeletionFile, Fragment
from lance_dagster.format.transaction import Transaction, Update
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import Store
from lance_dagster.transactions.base_paths import base_path_of
from lance_dagster.transactions.conflicts import RowChange, removed_fragments, touched_fragments

_WORKERS = 16


def deleted_offsets(versions: Versions, state: State, fragment: Fragment) -> BitMap:
    """Return the offsets of the deleted rows of a fragment; none when it has no deletion file.

    Raises:
        CorruptFileError: The deletion file is missing or damaged, or has offsets beyond the fragment.
    """
    if fragment.deletion is None:
        return BitMap()
    # The file is located once: a merge reads the vectors of thousands of fragments, each in less time than it takes to
    # find its path.
    store, key = _locate_deletion(versions, state, fragment)
    path = f"{store.uri}/{key}"
    offsets = decode_offsets(fragment.deletion.kind, _found(store, key), path)
    # A very old manifest does not say how many rows a fragment has.
    if offsets and 0 < fragment.physical_rows <= offsets.max():
        raise CorruptFileError(path, f"it deletes row {offsets.max()} of {fragment.physical_rows}")
    # Readers count rows with the number in the manifest, so it has to agree. Very old writers left it out.
    recorded = fragment.deletion.deleted_rows
    if recorded and recorded != len(offsets):
        raise CorruptFileError(path, f"it deletes {len(offsets)} rows, but {state} records {recorded}")
    versions.checked_files.add(path)
    return offsets


def check_deletions(versions: Versions, state: State, fragment_ids: Iterable[int] | None) -> None:
    """Decode the Arrow deletion files of fragments that were not decoded before, several at the same time.

    A damaged Arrow file can make pylance end the process. Bitmap files only make it raise an error.

    Raises:
        CorruptFileError: As for `deleted_offsets`.
    """
    known = state.manifest.fragments
    if not known.deletions:
        # This is known without decoding a fragment.
        return
    waiting: list[Fragment] = []
    for fragment in known if fragment_ids is None else map(known.find, fragment_ids):
        if fragment is not None and fragment.deletion is not None and fragment.deletion.kind == ARROW_FILE:
            store, key = _locate_deletion(versions, state, fragment)
            if f"{store.uri}/{key}" not in versions.checked_files:
                waiting.append(fragment)
    if len(waiting) <= 1:
        for fragment in waiting:
            deleted_offsets(versions, state, fragment)
        return
    with ThreadPoolExecutor(_WORKERS) as workers:
        for _ in workers.map(lambda fragment: deleted_offsets(versions, state, fragment), waiting):
            pass


def with_deleted(versions: Versions, state: State, fragment: Fragment, offsets: BitMap) -> Fragment:
    """Store a new deletion vector for a fragment, for the version after `state`; return the fragment with it."""
    kind, data = encode_offsets(offsets)
    deletion = DeletionFile(kind=kind, read_version=state.number, id=secrets.randbits(64), deleted_rows=len(offsets))
    changed = replace(fragment, deletion=deletion)
    store_deletion(versions, state.branch, changed, data)
    return changed


def _found(store: Store, key: str) -> bytes:
    data = store.get(key)
    if data is None:
        raise CorruptFileError(f"{store.uri}/{key}", "it is missing")
    return data


def _locate_deletion(versions: Versions, state: State, fragment: Fragment) -> tuple[Store, str]:
    """Return the store and the key of a fragment's deletion file."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    base = base_path_of(state.manifest, fragment.deletion.base_id, versions.branch_uri(state.branch))
    path = layout.deletion_path(fragment.id, fragment.deletion)
    # A base path that is not a dataset root holds the files directly, without a `_deletions/` folder.
    key = path if base.is_dataset_root else path.removeprefix(f"{layout.DELETIONS}/")
    try:
        return versions.locate(base.path, key, base.id)
    except BasePathRefusedError:
        raise
    except InvalidInputError as error:
        where = state.path or str(state)
        raise UnsupportedFeatureError(where, [f"the base path {base.path!r} ({error})"]) from error


def store_deletion(versions: Versions, branch: str, fragment: Fragment, data: bytes) -> None:
    """Write a fragment's deletion file into a branch's own folder."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    path = layout.join(layout.branch_root(branch), layout.deletion_path(fragment.id, fragment.deletion))
    versions.store.put(path, data)


def rebased(
    versions: Versions, transaction: Transaction, landed: Sequence[RowChange], *, base: State, head: State
) -> Transaction | None:
    """Rebase a row change onto `head`; return None when it has to be made again from the head.

    Args:
        versions: Where deletion files are read and written.
        transaction: The change; its operation removes rows.
        landed: The changes that were committed in between and touch the same fragments.
        base: The version that the change was made from.
        head: The version that the change is to follow.
    """
    operation = transaction.operation
    if not isinstance(operation, RowChange):
        return transaction
    # An update moves rows to new fragments; on either side that makes the same row in both a conflict.
    moved = isinstance(operation, Update) or any(isinstance(other, Update) for other in landed)
    shared = touched_fragments(operation) & frozenset().union(*map(touched_fragments, landed))
    updated: dict[int, Fragment] = {fragment.id: fragment for fragment in operation.updated_fragments}
    removed = set(removed_fragments(operation))
    for number in sorted(shared):
        before, current = base.manifest.fragments.find(number), head.manifest.fragments.find(number)
        changed = updated.pop(number, None)
        removed.discard(number)
        if before is None or (current is None and moved) or (current is not None and current.files != before.files):
            return None
        if current is None:
            # Every row of the fragment was deleted meanwhile, the rows of this change included.
            continue
        in_base, in_head = deleted_offsets(versions, base, before), deleted_offsets(versions, head, current)
        everything = BitMap(range(before.physical_rows))
        in_change = everything if changed is None else deleted_offsets(versions, base, changed)
        # Only rows that each side deleted by itself count; what the base deleted says nothing about either.
        added = in_change - in_base
        if moved and added & (in_head - in_base):
            return None
        # A fragment without live rows is removed, as a deletion of all its rows does at once.
        union = added | in_head
        if len(union) == current.physical_rows:
            removed.add(number)
        elif union != in_head:
            updated[number] = with_deleted(versions, head, current, union)
    return replace(transaction, operation=_with_fragments(operation, updated, sorted(removed)))


def _with_fragments(operation: RowChange, updated: Mapping[int, Fragment], removed: Sequence[int]) -> RowChange:
    fragments = tuple(updated.values())
    if isinstance(operation, Update):
        return replace(operation, updated_fragments=fragments, removed_fragment_ids=tuple(removed))
    return replace(operation, updated_fragments=fragments, deleted_fragment_ids=tuple(removed))
