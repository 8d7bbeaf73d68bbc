"""Make, reset and delete branches so that a crash between any two steps leaves nothing that blocks a name.

A branch is its metadata file and a folder of versions. The file is written first, marked as being created: it takes
the name, and another program that deletes a neighbouring branch sees that the folder is in use. Then the first
manifest, then the mark is taken off. Whoever finds the mark finishes the work; every step can be done twice.

Deleting runs the other way round: two marks, fence, folder, file. The fence is an empty file whose name says how far
the numbers of the branch went; the next branch of that name begins above (`history.guard` says why). It is needed for
as long as somebody may be in the middle of a commit, and is swept away a day later, by the next deletion.

Names that refer to each other are made and deleted at the same time: whoever makes one writes it first and then looks
whether what it refers to is still there; whoever deletes marks first and then looks who refers to it. So one of the two
sees the other, and gives way: the first mark of a deletion can be taken back, the second one cannot.

Resetting deletes, and makes another branch out of the same file, so that the name is never free meanwhile.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from lance_dagster.errors import AlreadyExistsError, ConflictError, InvalidInputError
from lance_dagster.format import layout
from lance_dagster.format.codec import check_writable
from lance_dagster.format.names import check_branch_name, check_texts
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.inventory import copy_to_expired
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_files import (
    CLOSING,
    CREATING,
    DELETING,
    FIRST,
    READY,
    RENAMED_FROM,
    RENAMING_TO,
    RESERVED_PREFIX,
    STATE,
    Branch,
    new_branch,
)
from lance_dagster.history.refs.ref_store import Refs, with_metadata
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.apply import with_flags
from lance_dagster.transactions.base_paths import fork

OWN_FOLDERS = (layout.VERSIONS, layout.TRANSACTIONS, layout.DELETIONS, layout.INDICES, layout.DATA)
FENCE_SECONDS = 24 * 60 * 60


def create_branch(
    name: str, parent: State, refs: Refs, versions: Versions, *, exist_ok: bool, metadata: Mapping[str, str]
) -> Branch:
    """Fork a branch from a version. Two callers with `exist_ok` get the same branch.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        AlreadyExistsError: A tag has the name, or a branch and `exist_ok` is False, or a folder is in the way.
        ConflictError: The parent is being deleted, or the name is being given to another branch.
    """
    check_branch_name(name)
    check_writable(parent.manifest)
    found = refs.branch(name)
    if found is not None and found.state in (CLOSING, DELETING):
        _finish_deleting(_closed(found, "delete", refs, versions), refs, versions)
        found = None
    # A creation that somebody began and did not finish is taken over by whoever asks for the same.
    ours = found is not None and found.state == CREATING and found.parent == str(parent)
    if found is None:
        refuse_tagged(name, refs)
        refuse_leftovers(name, versions)
        wanted = _described(name, parent, refs, versions, metadata=metadata)
        found = refs.add_branch(wanted)
        ours = found.id == wanted.id
    if found.state != READY:
        found = _finish_creating(found, refs, versions)
    return found if ours else _existing(found, versions, exist_ok=exist_ok)


def delete_branch(name: str, refs: Refs, versions: Versions) -> None:
    """Delete a branch and the versions it made; data files stay, since `main` may name them by now.

    Raises:
        InvalidInputError: The branch is `main`.
        RefNotFoundError: There is no such branch.
        ProtectedError: The branch is protected.
        ConflictError: A tag or another branch refers to it, or it is being renamed.
    """
    _finish_deleting(_closed(_unused(name, "delete", refs), "delete", refs, versions), refs, versions)


def reset_branch(name: str, target: State, refs: Refs, versions: Versions) -> Branch:
    """Make a branch start anew from a version: what was committed to it is gone, its own metadata stays.

    Raises:
        RefNotFoundError: There is no such branch.
        ProtectedError: The branch is protected.
        InvalidInputError: The branch is `main`, or the version is its own.
        ConflictError: A tag or another branch refers to it, or it is being renamed.
    """
    if name == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be reset; restore an older version instead")
    if target.branch == name:
        raise InvalidInputError(
            f"{target} goes away with the branch that is reset; "
            f"restore it as the next version, or branch off it under another name"
        )
    branch = _closed(_unused(name, "reset", refs), "reset", refs, versions)
    _empty(branch, refs, versions)
    kept = {key: value for key, value in branch.metadata.items() if not key.startswith(RESERVED_PREFIX)}
    wanted = _described(name, target, refs, versions, metadata=kept)
    return _finish_creating(refs.change_branch(branch, lambda _: wanted), refs, versions)


def delete_renamed(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Delete what is left of a branch that has another name by now."""
    _finish_deleting(_closed(branch, "rename", refs, versions), refs, versions)


def abandon_creation(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Delete what was begun under a name, unless it was finished meanwhile."""

    def marked(current: Branch) -> Branch:
        return with_metadata(current, {STATE: DELETING}) if current.state == CREATING else current

    # Whoever else was about to finish it finds the mark.
    if refs.change_branch(branch, marked).state == DELETING:
        _finish_deleting(branch, refs, versions)


def refuse_tagged(name: str, refs: Refs) -> None:
    """Refuse a name that a tag has.

    Raises:
        AlreadyExistsError: There is such a tag.
    """
    if refs.tag(name) is not None:
        raise AlreadyExistsError(f"{name!r} is a tag of {refs.store.uri}; a branch of that name would be ambiguous")


def refuse_recent(branch: Branch, name: str, refs: Refs) -> None:
    """Refuse a name under which somebody may still be in the middle of a commit to another branch.

    Raises:
        AlreadyExistsError: There was one until recently, with numbers that this branch has too.
    """
    for own, newest, _, branch_id in _fences(refs):
        if own == name and branch_id != branch.id and newest + 2 > branch.first:
            raise AlreadyExistsError(
                f"{name!r} of {refs.store.uri} was the name of another branch until less than a day ago; "
                "choose another name"
            )


def refuse_reserved_keys(metadata: Mapping[str, object]) -> None:
    """Refuse metadata under keys that this package keeps, and what is no text.

    Raises:
        InvalidInputError: With the keys.
    """
    check_texts("metadata", metadata, removing=True)
    taken = sorted(key for key in metadata if key.startswith(RESERVED_PREFIX))
    if taken:
        raise InvalidInputError(f"keys that start with {RESERVED_PREFIX!r} are not yours to change: {', '.join(taken)}")


def refuse_renaming(branch: Branch, do: str, refs: Refs) -> None:
    """Refuse to touch a branch in the middle of a renaming.

    Raises:
        ConflictError: It is being renamed.
    """
    other = branch.metadata.get(RENAMING_TO)
    target = refs.branch(other) if other else None
    if target is not None and target.metadata.get(RENAMED_FROM) == branch.name:
        raise ConflictError(
            f"cannot {do} branch {branch.name!r} of {refs.store.uri}: it is being renamed to {other!r}; "
            "renaming it again finishes that"
        )


def _unused(name: str, do: str, refs: Refs) -> Branch:
    """Return a branch that nothing refers to."""
    if name == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be deleted: every Lance program looks for it")
    branch = refs.branch(name)
    if branch is None:
        raise refs.branch_not_found(name)
    refuse_protected_branch(do, name, refs.store)
    refuse_renaming(branch, do, refs)
    refuse_users(name, do, refs)
    return branch


def refuse_users(name: str, do: str, refs: Refs) -> None:
    """Refuse to touch a branch that tags or other branches refer to.

    Raises:
        ConflictError: With their names.
    """
    users = refs.referrers_of(name)
    if users:
        refer = "refers" if len(users) == 1 else "refer"
        raise ConflictError(f"cannot {do} branch {name!r} of {refs.store.uri}: {', '.join(users)} {refer} to it")


def _closed(branch: Branch, do: str, refs: Refs, versions: Versions) -> Branch:
    """Mark a branch as being deleted, once nobody can refer to it any more."""
    marked = refs.set_branch_state(branch, CLOSING)
    try:
        refuse_users(branch.name, do, refs)
    except ConflictError:
        # Somebody referred to it just before the mark. Whoever does so after it looks, and withdraws.
        back = CREATING if versions.newest(branch.name) is None else READY
        refs.change_branch(
            marked, lambda current: with_metadata(current, {STATE: back}) if current.state == CLOSING else current
        )
        raise
    return refs.set_branch_state(marked, DELETING)


def _described(name: str, parent: State, refs: Refs, versions: Versions, *, metadata: Mapping[str, str]) -> Branch:
    of = None if parent.branch == layout.MAIN else refs.branch(parent.branch)
    size = versions.manifest_size(parent)
    return new_branch(name, of, version=parent.number, manifest_size=size, metadata=metadata)


def _finish_creating(branch: Branch, refs: Refs, versions: Versions) -> Branch:
    if branch.state != CREATING:
        raise ConflictError(f"branch {branch.name!r} of {versions.store.uri} is being deleted; try again")
    if RENAMED_FROM in branch.metadata:
        raise ConflictError(
            f"branch {branch.name!r} of {versions.store.uri} is being made by renaming "
            f"{branch.metadata[RENAMED_FROM]!r}; renaming it again finishes that"
        )
    _refuse_dying_parent(branch, refs)
    branch = _fenced(branch, refs)
    parent = versions.load(branch.parent_branch, branch.parent_version)
    main = branch.parent_branch == layout.MAIN
    parent_uri = versions.branch_uri(branch.parent_branch)
    root_uri = versions.store.uri
    manifest = fork(parent.manifest, branch.name, root_uri=root_uri, parent_uri=parent_uri)
    transaction = Transaction(
        read_version=parent.number,
        uuid=branch.id,
        operation=Clone(
            is_shallow=True,
            ref_name=None if main else branch.parent_branch,
            ref_version=parent.number,
            ref_path=parent_uri,
            branch_name=branch.name,
        ),
    )
    forked = replace(
        manifest,
        version=branch.first,
        transaction_file=transaction.file_name,
        writer=WRITER,
        timestamp=now_ns(),
    )
    # Already there: another process found the mark and was faster, with the same content.
    create_first(versions, Proposal(transaction, with_flags(forked)), branch.name)
    return refs.set_branch_state(branch, READY)


def _refuse_dying_parent(branch: Branch, refs: Refs) -> None:
    """Withdraw a branch whose parent is gone by now: whoever deleted it may not have seen this one."""
    if branch.parent_branch == layout.MAIN:
        return
    parent = refs.branch(branch.parent_branch)
    if parent is None or parent.state != READY or parent.lineage != branch.lineage[:-1]:
        refs.remove_branch(branch.name)
        raise refs.branch_not_found(branch.parent_branch)


def _fenced(branch: Branch, refs: Refs) -> Branch:
    """Let a branch begin above every number that branches of the same name had before."""
    # Listed after the name was taken: a branch that comes and goes in between leaves its fence before that.
    newest = max((number for name, number, *_ in _fences(refs) if name == branch.name), default=-1)
    # The version after the newest one is what a late writer may still put.
    if newest + 2 <= branch.first:
        return branch
    return refs.change_branch(branch, lambda current: with_metadata(current, {FIRST: str(newest + 2)}))


def _fences(refs: Refs) -> list[tuple[str, int, int, str]]:
    return [fence for file in refs.store.list(layout.DELETED) if (fence := layout.fence_of(file)) is not None]


def _finish_deleting(branch: Branch, refs: Refs, versions: Versions) -> None:
    _empty(branch, refs, versions)
    refs.remove_branch(branch.name)
    _sweep(refs)


def _empty(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Delete the versions of a branch that is marked, and put down how far their numbers went."""
    # A merge may be numbered after what it merges, which mostly is of main.
    newest = max(branch.first, *(versions.newest(line) or 0 for line in (branch.name, layout.MAIN)))
    refs.store.put_if_absent(layout.fence_file(branch.name, newest, int(time.time()), branch.id), b"")
    # Somebody may be merging it at this moment: a collection keeps its files a while longer.
    copy_to_expired(refs.store, branch.name, branch.id)
    root = layout.line_root(branch.name)
    # Folder by folder: a branch named below this one keeps its files in the same place.
    for folder in OWN_FOLDERS:
        refs.store.delete_folder(f"{root}/{folder}")


def _sweep(refs: Refs) -> None:
    """Delete the fences that nobody can run into any more."""
    until = time.time() - FENCE_SECONDS
    for fence in _fences(refs):
        if fence[2] < until:
            refs.store.delete(layout.fence_file(*fence))


def _existing(branch: Branch, versions: Versions, *, exist_ok: bool) -> Branch:
    if not exist_ok:
        raise AlreadyExistsError(f"branch {branch.name!r} of {versions.store.uri} exists, forked from {branch.parent}")
    return branch


def refuse_leftovers(name: str, versions: Versions) -> None:
    """Refuse a name under which versions lie that belong to no branch.

    Raises:
        AlreadyExistsError: There are such.
    """
    newest = versions.newest(name)
    # What a late writer put on a branch that was deleted is below where the next one begins.
    if newest is None or any(name == own and newest <= last + 1 for own, last, *_ in _fences(Refs(versions.store))):
        return
    raise AlreadyExistsError(
        f"{versions.branch_uri(name)} holds versions of a branch without metadata, left by another program; "
        "remove that folder or choose another name"
    )


def set_metadata(name: str, updates: Mapping[str, str | None], refs: Refs) -> Branch:
    """Change what a branch says about itself, by compare-and-swap; a value of None takes a key out.

    Raises:
        RefNotFoundError: There is no such branch.
        InvalidInputError: A key is one of this package's.
        RefMovedError: The branch was deleted meanwhile.
    """
    refuse_reserved_keys(updates)
    branch = refs.branch(name)
    if branch is None or branch.state != READY:
        raise refs.branch_not_found(name)
    return refs.change_branch(branch, lambda current: with_metadata(current, dict(updates)))
