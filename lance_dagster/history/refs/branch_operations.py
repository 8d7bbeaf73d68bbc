"""Create, reset and delete branches, so that a crash between any two steps blocks no name.

A branch is a file of metadata and a folder of versions. Neither can be written together with the other, so the file
carries a state and every step is idempotent: whoever finds an unfinished state can finish the work.

Creation:

1. The file, in state "creating". It takes the name; and another program that deletes a neighbouring branch sees that
   the folder is in use, because branch folders nest.
2. The first manifest, a clone of the fork point.
3. The file, in state "ready".

Deletion, in the opposite order:

1. The file, in state "closing". Whoever refers to the branch from here on sees the mark and withdraws.
2. A look for tags and branches that refer to it. If there are some, the state is set back and the deletion refused.
3. The file, in state "deleting", which is never taken back.
4. The fence file, an empty file whose name says how far the version numbers went. The next branch of the name begins
   above them, which keeps late commits out of it (`refs.branch_fence`). It is removed by the next deletion that
   happens at least a day later, when no commit can be in flight any more.
5. Copies of the manifests in `_expired/`, for merges of the branch that are in flight. Then the folders, then the file.

Creation and deletion of names that refer to each other race. Whoever creates a reference writes it first and then
checks that its target is still there. Whoever deletes marks the target first and then looks for references. So at
least one of the two sees the other and withdraws.

A reset to a version of another branch deletes the versions and creates a branch from the same file, so that the name
is never free in between. A reset to a version of the branch itself is in `refs.reset`.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from lance_dagster.errors import AlreadyExistsError, ConflictError, InvalidInputError
from lance_dagster.format import layout
from lance_dagster.format.codec import check_writable
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.format.validation import check_string_mapping
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.inventory import copy_to_expired
from lance_dagster.history.refs.branch_fence import refuse_dropped
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.refs.ref_store import (
    CLOSING,
    CREATING,
    DELETING,
    FIRST,
    READY,
    RENAMED_FROM,
    RENAMING_TO,
    RESERVED_PREFIX,
    RESETTING,
    STATE,
    Branch,
    Refs,
    new_branch,
    with_metadata,
)
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.apply import with_feature_flags
from lance_dagster.transactions.base_paths import fork

BRANCH_FOLDERS = (layout.VERSIONS, layout.TRANSACTIONS, layout.DELETIONS, layout.INDICES, layout.DATA)
# Far longer than a commit takes: it gives up after minutes.
FENCE_SECONDS = 24 * 60 * 60


def create_branch(
    name: str, parent: State, refs: Refs, versions: Versions, *, exist_ok: bool, metadata: Mapping[str, str]
) -> Branch:
    """Fork a branch from a version. Two concurrent callers with `exist_ok` get the same branch.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        AlreadyExistsError: A tag has the name; or a branch has it and `exist_ok` is False; or a folder holds versions
            without a branch.
        ConflictError: The parent is being deleted, or the name is being given to another branch.
    """
    check_branch_name(name)
    # Checked before anything is written: the first manifest would fail after the name was taken.
    check_writable(parent.manifest)
    found = refs.branch(name)
    if found is not None and found.state in (CLOSING, DELETING):
        _finish_deleting(_closed(found, "delete", refs, versions), refs, versions)
        found = None
    # An unfinished creation from the same version is taken over: the crash may have been our own.
    created = found is not None and found.state == CREATING and found.parent == str(parent)
    if found is None:
        refuse_tagged(name, refs)
        refuse_leftovers(name, versions)
        # The put decides between two callers: whoever loses gets the branch of the other one.
        wanted = _describe_new(name, parent, refs, versions, metadata=metadata)
        found = refs.add_branch(wanted)
        created = found.id == wanted.id
    if found.state != READY:
        found = _finish_creating(found, refs, versions)
    return found if created else _existing(found, versions, exist_ok=exist_ok)


def delete_branch(name: str, refs: Refs, versions: Versions) -> None:
    """Delete a branch and its versions. Data files stay until garbage collection: merged versions may name them.

    Raises:
        InvalidInputError: The branch is `main`.
        RefNotFoundError: There is no such branch.
        ProtectedError: The branch is protected.
        ConflictError: A tag or another branch refers to it, or it is being renamed.
    """
    _finish_deleting(_closed(_unused(name, "delete", refs), "delete", refs, versions), refs, versions)


def reset_branch(name: str, target: State, refs: Refs, versions: Versions) -> Branch:
    """Make a branch start again from a version of another branch. Its own versions are deleted, its metadata stays.

    Raises:
        RefNotFoundError: There is no such branch.
        ProtectedError: The branch is protected.
        InvalidInputError: The branch is `main`.
        ConflictError: A tag or another branch refers to it, or it is being renamed.
    """
    if name == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be reset; restore an older version instead")
    # The mark stays until the branch is ready: a writer that finds it unusable is told that it comes back.
    mark = f"{target} {int(time.time())}"
    branch = _closed(_unused(name, "reset", refs), "reset", refs, versions, resetting=mark)
    _empty(branch, refs, versions)
    # Reserved keys describe the old branch: its state, its first version, a rename.
    kept = {key: value for key, value in branch.metadata.items() if not key.startswith(RESERVED_PREFIX)}
    wanted = _describe_new(name, target, refs, versions, metadata=kept | {RESETTING: mark})
    return _finish_creating(refs.change_branch(branch, lambda _: wanted), refs, versions)


def delete_renamed(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Delete the old branch at the end of a rename."""
    _finish_deleting(_closed(branch, "rename", refs, versions), refs, versions)


def abandon_creation(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Undo a creation that was begun under a name, unless another process finished it meanwhile."""

    def marked(current: Branch) -> Branch:
        return with_metadata(current, {STATE: DELETING}) if current.state == CREATING else current

    # The mark first: another process that is about to finish the creation finds it.
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
    """Refuse a new name for a branch while a commit to an earlier branch of that name may be in flight.

    A renamed branch keeps its version numbers, so it cannot begin above the fence as a new branch does.

    Raises:
        AlreadyExistsError: A branch of the name was deleted recently, and its numbers overlap those of this one.
    """
    for own, newest, _, branch_id in _fences(refs):
        if own == name and branch_id != branch.id and newest + 2 > branch.first:
            raise AlreadyExistsError(
                f"{name!r} of {refs.store.uri} was the name of another branch until less than a day ago; "
                "choose another name"
            )


def refuse_reserved_keys(metadata: Mapping[str, object]) -> None:
    """Refuse metadata under keys that this package reserves, and values that are not strings.

    Raises:
        InvalidInputError: Names the keys.
    """
    check_string_mapping("metadata", metadata, removing=True)
    taken = sorted(key for key in metadata if key.startswith(RESERVED_PREFIX))
    if taken:
        raise InvalidInputError(f"keys that start with {RESERVED_PREFIX!r} are not yours to change: {', '.join(taken)}")


def refuse_renaming(branch: Branch, do: str, refs: Refs) -> None:
    """Refuse to change a branch that is being renamed.

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
    """Return a branch that exists, is not protected, not being renamed, and not referred to."""
    if name == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be deleted: every Lance program looks for it")
    branch = refs.branch(name)
    if branch is None:
        raise refs.branch_not_found(name)
    # The cheap refusals come first, before anything is marked. References are looked for again after the mark.
    refuse_protected_branch(do, name, refs.store)
    refuse_renaming(branch, do, refs)
    refuse_users(name, do, refs)
    return branch


def refuse_users(name: str, do: str, refs: Refs) -> None:
    """Refuse to change a branch that tags or other branches refer to.

    Raises:
        ConflictError: Names them.
    """
    users = refs.referrers_of(name)
    if users:
        refer = "refers" if len(users) == 1 else "refer"
        raise ConflictError(f"cannot {do} branch {name!r} of {refs.store.uri}: {', '.join(users)} {refer} to it")


def _closed(branch: Branch, do: str, refs: Refs, versions: Versions, *, resetting: str | None = None) -> Branch:
    """Mark a branch as being deleted, after making sure that nothing refers to it or will."""
    marked = refs.set_branch_state(branch, CLOSING, resetting=resetting)
    try:
        refuse_users(branch.name, do, refs)
    except ConflictError:
        # The reference was made before the mark, so it stays and the deletion withdraws.
        back = CREATING if versions.newest(branch.name) is None else READY
        refs.change_branch(
            marked,
            lambda current: (
                with_metadata(current, {STATE: back, RESETTING: None}) if current.state == CLOSING else current
            ),
        )
        raise
    return refs.set_branch_state(marked, DELETING)


def _describe_new(name: str, parent: State, refs: Refs, versions: Versions, *, metadata: Mapping[str, str]) -> Branch:
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
    branch = _above_fences(branch, refs)
    parent = versions.load(branch.parent_branch, branch.parent_version)
    main = branch.parent_branch == layout.MAIN
    parent_uri = versions.branch_uri(branch.parent_branch)
    root_uri = versions.store.uri
    # The fork names the files of the root through a base path, so a later merge copies nothing.
    manifest = fork(parent.manifest, branch.name, root_uri=root_uri, parent_uri=parent_uri)
    transaction = Transaction(
        read_version=parent.number,
        # The branch id as uuid makes the content the same, whoever finishes the creation.
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
    # None when another process finished the creation first; its manifest has the same content.
    create_first(versions, Proposal(transaction, with_feature_flags(forked)), branch.name)
    return refs.set_branch_state(branch, READY)


def _refuse_dying_parent(branch: Branch, refs: Refs) -> None:
    """Withdraw a branch whose fork point goes away meanwhile: the deletion or reset may not have seen this branch."""
    if branch.parent_branch == layout.MAIN:
        return
    parent = refs.branch(branch.parent_branch)
    # The lineage is compared too: the parent may have been deleted and another branch made under its name.
    if parent is None or parent.state != READY or parent.lineage != branch.lineage[:-1]:
        refs.remove_branch(branch.name)
        raise refs.branch_not_found(branch.parent_branch)
    try:
        refuse_dropped(branch.parent_branch, branch.parent_version, refs)
    except ConflictError:
        refs.remove_branch(branch.name)
        raise


def _above_fences(branch: Branch, refs: Refs) -> Branch:
    """Let a branch begin above every version number that earlier branches of the name had."""
    # Listed only after the name was taken: a branch that is created and deleted before that has its fence by then.
    newest = max((number for name, number, *_ in _fences(refs) if name == branch.name), default=-1)
    # A late writer may still put the version after the newest one, so the branch begins above that.
    if newest + 2 <= branch.first:
        return branch
    return refs.change_branch(branch, lambda current: with_metadata(current, {FIRST: str(newest + 2)}))


def _fences(refs: Refs) -> list[tuple[str, int, int, str]]:
    return [
        fence
        for file in refs.store.list(layout.DELETED_BRANCHES)
        if (fence := layout.parse_branch_fence(file)) is not None
    ]


def _finish_deleting(branch: Branch, refs: Refs, versions: Versions) -> None:
    _empty(branch, refs, versions)
    refs.remove_branch(branch.name)
    _remove_old_fences(refs)


def _empty(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Delete the versions of a branch in state "deleting", after recording how far their numbers went."""
    # A sync may be numbered after the version it merged, usually of main: a late one may be about to use that number.
    newest = max(branch.first, *(versions.newest(line) or 0 for line in (branch.name, layout.MAIN)))
    # The fence before the deletion: from here on no next branch of the name can begin too low.
    refs.store.put_if_absent(layout.branch_fence_file(branch.name, newest, int(time.time()), branch.id), b"")
    # A merge of this branch may be in flight: the copies make a collection keep the files for the settling time.
    copy_to_expired(refs.store, branch.name, branch.id)
    root = layout.branch_root(branch.name)
    # Folder by folder, since a branch `a/b` lies inside the folder of `a`.
    for folder in BRANCH_FOLDERS:
        refs.store.delete_folder(f"{root}/{folder}")


def _remove_old_fences(refs: Refs) -> None:
    """Delete the fence files that are older than any commit in flight."""
    until = time.time() - FENCE_SECONDS
    for fence in _fences(refs):
        if fence[2] < until:
            refs.store.delete(layout.branch_fence_file(*fence))


def _existing(branch: Branch, versions: Versions, *, exist_ok: bool) -> Branch:
    if not exist_ok:
        raise AlreadyExistsError(f"branch {branch.name!r} of {versions.store.uri} exists, forked from {branch.parent}")
    return branch


def refuse_leftovers(name: str, versions: Versions) -> None:
    """Refuse a name whose folder holds versions that belong to no branch.

    Raises:
        AlreadyExistsError: There are such versions.
    """
    newest = versions.newest(name)
    # A version below a fence was put by a late writer; the new branch begins above it and is not affected.
    if newest is None or any(name == own and newest <= last + 1 for own, last, *_ in _fences(Refs(versions.store))):
        return
    raise AlreadyExistsError(
        f"{versions.branch_uri(name)} holds versions of a branch without metadata, left by another program; "
        "remove that folder or choose another name"
    )


def set_metadata(name: str, updates: Mapping[str, str | None], refs: Refs) -> Branch:
    """Change the metadata of a branch, by compare-and-swap; a value of None removes a key.

    Raises:
        RefNotFoundError: There is no such branch.
        InvalidInputError: A key is reserved by this package.
        RefMovedError: The branch was deleted meanwhile.
    """
    refuse_reserved_keys(updates)
    branch = refs.branch(name)
    if branch is None or branch.state != READY:
        raise refs.branch_not_found(name)
    return refs.change_branch(branch, lambda current: with_metadata(current, dict(updates)))
