"""Deletion vectors as they lie in the store: read under whatever base, written into the branch's own folder.

Put a change that takes rows out on top of others that took rows out of the same fragments.

A deletion vector holds all rows of a fragment that are deleted, so a vector made from an older version would bring
rows back that others deleted since. What a change means is the rows it adds to the vector. When nobody else touched
those, the vectors are joined.

Rows that both deleted are no contradiction, unless one of the two put them elsewhere: an update that moved a row
which somebody else deleted would bring it back, and a deletion of a row that somebody else moved would miss it. Then
the work has to be done again from the newest version, as it has when the fragment has other files by now.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lance_dagster.format import layout
from lance_dagster.format.deletions import decode_offsets, encode_offsets
from lance_dagster.format.model import DeletionFile, Fragment
from lance_dagster.format.transaction import Transaction, Update
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import Store
from lance_dagster.transactions.base_paths import base_path_of
from lance_dagster.transactions.conflicts import RowChange, removed_fragments, touched_fragments


def deleted_offsets(versions: Versions, state: State, fragment: Fragment) -> BitMap:
    """Return the offsets of the rows of a fragment that are deleted; none when it has no deletion file.

    Raises:
        CorruptFileError: The deletion file is missing or cannot be read, or holds offsets the fragment does not have.
    """
    if fragment.deletion is None:
        return BitMap()
    store, key = _place(versions, state, fragment)
    path = f"{store.uri}/{key}"
    offsets = decode_offsets(fragment.deletion.kind, read_deletion(versions, state, fragment), path)
    if offsets and offsets.max() >= fragment.physical_rows:
        raise CorruptFileError(path, f"it deletes row {offsets.max()} of {fragment.physical_rows}")
    # Readers count with the number in the manifest, which very old writers left out.
    recorded = fragment.deletion.deleted_rows
    if recorded and recorded != len(offsets):
        raise CorruptFileError(path, f"it deletes {len(offsets)} rows, {state} says {recorded}")
    return offsets


def with_deleted(versions: Versions, state: State, fragment: Fragment, offsets: BitMap) -> Fragment:
    """Store a deletion vector for a fragment, as the next version after `state` names it; return the fragment."""
    kind, data = encode_offsets(offsets)
    deletion = DeletionFile(kind=kind, read_version=state.number, id=secrets.randbits(64), deleted_rows=len(offsets))
    changed = replace(fragment, deletion=deletion)
    store_deletion(versions, state.branch, changed, data)
    return changed


def read_deletion(versions: Versions, state: State, fragment: Fragment) -> bytes:
    """Read the bytes of a fragment's deletion file."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    store, key = _place(versions, state, fragment)
    data = store.get(key)
    if data is None:
        raise CorruptFileError(f"{store.uri}/{key}", "it is missing")
    return data


def _place(versions: Versions, state: State, fragment: Fragment) -> tuple[Store, str]:
    """Return where a fragment's deletion file is."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    base = base_path_of(state.manifest, fragment.deletion.base_id, versions.branch_uri(state.branch))
    path = layout.deletion_path(fragment.id, fragment.deletion)
    # A base path that is no dataset root has no folders of its own.
    key = path if base.is_dataset_root else path.removeprefix(f"{layout.DELETIONS}/")
    try:
        return versions.locate(base.path, key, base.id)
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
