"""Deletion vectors as they lie in the store: read under whatever base, written into the branch's own folder."""

import secrets
from dataclasses import replace

from pyroaring import BitMap

from lance_dagster.changes.places import folder_of
from lance_dagster.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lance_dagster.format import layout
from lance_dagster.format.deletions import decode_offsets, encode_offsets
from lance_dagster.format.model import DeletionFile, Fragment
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import Store


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
    base = folder_of(state.manifest, fragment.deletion.base_id, versions.line_uri(state.branch))
    path = layout.deletion_path(fragment.id, fragment.deletion)
    # A base path that is no dataset root has no folders of its own.
    key = path if base.is_dataset_root else path.removeprefix(f"{layout.DELETIONS}/")
    try:
        return versions.located(base.path, key, base.id)
    except InvalidInputError as error:
        where = state.path or str(state)
        raise UnsupportedFeatureError(where, [f"the base path {base.path!r} ({error})"]) from error


def store_deletion(versions: Versions, branch: str, fragment: Fragment, data: bytes) -> None:
    """Write a fragment's deletion file into a branch's own folder."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    path = layout.join(layout.line_root(branch), layout.deletion_path(fragment.id, fragment.deletion))
    versions.store.put(path, data)
