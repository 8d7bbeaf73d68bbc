"""Rename branches and tags, so that a crash between any two steps loses nothing.

A branch keeps everything it has: its versions under their numbers; its id, so that merges of it stay recognised; and
the files in its own folder, which are copied on the server's side. The manifests are written again, since each holds
the name of the branch, so commit ids change. Steps:

1. Create the file of the new name, with a mark that says which branch it is made from, and a random id of this rename.
2. Mark the old branch, with the same id: no commit begins from here on (`refs.branch_fence`). Then look for references
   to the old branch, and record in the new file how far its version numbers go: a deletion of the new name puts a fence
   above these numbers, too.
3. Copy the files, then the versions, oldest first. Then copy the files again that a collection deleted meanwhile: it
   may have begun while no version named them, and found copies that an interrupted rename had left long before.
4. Set the new branch to "ready".
5. Delete the old branch, while it has the mark with the id of this rename. Old and new branch have the same branch id;
   without the id of the rename, a slow process would delete a branch that was renamed back meanwhile.

A deletion, a reset, a new tag or a new fork of the old branch first writes its own mark or file, and then looks for the
mark of step 2; the rename writes the mark of step 2, and then looks for these marks and files. So at least one of the
two finds the other and withdraws, and the branch is not taken away while it is copied.

Readers use the old name until step 4 and may use the new name afterwards; both hold the same versions. Calling the
rename again continues where a crash stopped it. If references turn up after step 2, the new name is given up; the mark
on the old branch means nothing without the new name.

A tag is renamed in the same way: mark the old tag, create the new tag, delete the old tag. The new tag records from
which write of the old tag it was made. That tells an unfinished rename from a tag that has had its name for long.
"""

import time
import uuid
from contextlib import suppress
from dataclasses import replace

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefMovedError,
    RefNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format import layout
from lance_dagster.format.codec import encode_manifest_file, encode_transaction
from lance_dagster.history.commit import write_hint
from lance_dagster.history.refs import branch_deletion, branch_operations
from lance_dagster.history.refs.protection import refuse_protected_branch, refuse_protected_tag
from lance_dagster.history.refs.ref_files import (
    CLOSING,
    CREATING,
    DELETING,
    LAST,
    READY,
    RENAME_ID,
    RENAMED_FROM,
    RENAMED_WRITE,
    RENAMING_TO,
    STATE,
    WRITE_ID,
    Branch,
    Tag,
    with_metadata,
)
from lance_dagster.history.refs.ref_names import check_branch_name, check_tag_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_hold import refuse_held
from lance_dagster.history.refs.tag_operations import refuse_immutable
from lance_dagster.history.versions import Versions
from lance_dagster.store import copy_file, copy_folder, put_once

_COPIED = (layout.DELETIONS, layout.INDICES, layout.DATA)


def rename_branch(old: str, new: str, refs: Refs, versions: Versions) -> Branch:
    """Rename a branch.

    Raises:
        InvalidRefNameError: The new name breaks a rule.
        InvalidInputError: The branch is `main`.
        RefNotFoundError: There is no branch of the old name.
        AlreadyExistsError: The new name is taken.
        ProtectedError: One of the names is protected.
        ConflictError: A tag or another branch refers to the branch, or it is being renamed to a third name.
    """
    check_branch_name(new)
    if old == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be renamed: every Lance program looks for it")
    branch, target = refs.branches.find(old), refs.branches.find(new)
    if branch is None:
        # An earlier attempt lost its answer after it had deleted the old name.
        if target is not None and target.state == READY and target.metadata.get(RENAMED_FROM) == old:
            return target
        raise refs.branch_not_found(old)
    # An earlier attempt is continued only if its mark and id fit: another branch may have the new name.
    begun = target if target is not None and _is_copy(target, branch) else None
    if begun is None or begun.state != READY:
        begun = _copy_branch(branch, new, refs, versions, begun=begun)
    marked = with_metadata(branch, {RENAME_ID: begun.metadata.get(RENAME_ID)})
    branch_operations.delete_renamed(marked, refs, versions)
    return begun


def _is_copy(target: Branch, branch: Branch) -> bool:
    """Tell whether `target` is the copy that a rename of `branch` makes or made."""
    same = (target.id, target.metadata.get(RENAMED_FROM)) == (branch.id, branch.name)
    # A complete copy belongs to a rename that is not finished yet only if both files have its id: the branch may have
    # been renamed back and forth.
    return same and (target.state == CREATING or target.metadata.get(RENAME_ID) == branch.metadata.get(RENAME_ID))


def _copy_branch(branch: Branch, new: str, refs: Refs, versions: Versions, *, begun: Branch | None) -> Branch:
    if branch.state != READY:
        raise refs.branch_not_found(branch.name)
    for name in (branch.name, new):
        refs.store.refuse_links(layout.versions_folder(name))
        refuse_protected_branch("rename", name, refs.store)
    target = begun
    try:
        branch_deletion.refuse_users(branch.name, "rename", refs)
        target = begun or _take_name(branch, new, refs, versions)
        marked = _mark_renaming(branch, target, refs)
        # References are searched again: one that was made between the first search and the mark is found here.
        branch_deletion.refuse_users(branch.name, "rename", refs)
    except (ConflictError, RefNotFoundError):
        # Without the new name the mark has no effect, so the old branch takes commits again.
        if target is not None:
            with suppress(RefMovedError):
                branch_deletion.abandon_creation(target, refs, versions)
        raise
    try:
        target = _with_last(marked, target, refs, versions)
        # Files are copied before the manifests that name them, so that a power cut leaves no version without its files.
        _copy_files(marked, new, versions)
        _copy_versions(marked, target, versions)
        _copy_missing(marked, new, versions)
        return refs.branches.set_state(target, READY)
    except (RefMovedError, VersionNotFoundError) as error:
        # Another process may have finished the rename, and deleted the versions under the old name.
        renamed = refs.branches.find(new)
        if (
            renamed is not None
            and renamed.state == READY
            and renamed.metadata.get(RENAME_ID) == target.metadata.get(RENAME_ID)
        ):
            return renamed
        raise ConflictError(
            f"cannot rename branch {branch.name!r} of {refs.store.uri} to {new!r}: another process deleted or renamed "
            "one of them at the same time"
        ) from error


def _with_last(marked: Branch, target: Branch, refs: Refs, versions: Versions) -> Branch:
    """Record the highest number that the copied versions may have, before anything is copied."""
    # A commit may be in flight to the number after the newest one.
    newest = (versions.newest(marked.name) or marked.first) + 1

    def recorded(current: Branch) -> Branch:
        if current.state in (CLOSING, DELETING):
            raise RefMovedError(target.name, target.id, "a branch that is being deleted")
        if current.state == READY or current.last is not None:
            return current
        return with_metadata(current, {LAST: f"{newest} {int(time.time())}"})

    return refs.branches.change(target, recorded)


def _take_name(branch: Branch, new: str, refs: Refs, versions: Versions) -> Branch:
    """Create the file of the new name, or return the branch that an earlier attempt created under it."""
    branch_deletion.refuse_renaming(branch, "rename", refs)
    target = branch_operations.branch_of_name(new, refs, versions)
    if target is None:
        branch_operations.refuse_leftovers(new, versions)
    branch_operations.refuse_recent(branch, new, refs, versions)
    branch_operations.refuse_tagged(new, refs)
    if target is None:
        own = {RENAMED_FROM: branch.name, RENAMING_TO: None, RENAME_ID: uuid.uuid4().hex, LAST: None}
        copy = with_metadata(branch, {STATE: CREATING, **own})
        target = refs.branches.add(replace(copy, name=new))
    if not _is_copy(target, branch):
        raise AlreadyExistsError(f"branch {new!r} of {refs.store.uri} exists, forked from {target.parent}")
    return target


def _mark_renaming(branch: Branch, target: Branch, refs: Refs) -> Branch:
    """Mark a branch as being renamed, which keeps new commits off it."""
    mark = {RENAMING_TO: target.name, RENAME_ID: target.metadata.get(RENAME_ID)}

    def marked(current: Branch) -> Branch:
        if current.state != READY:
            raise refs.branch_not_found(branch.name)
        # The mark of an abandoned attempt to rename to the same name is replaced: its file of the new name is gone.
        if current.metadata.get(RENAMING_TO) != target.name:
            branch_deletion.refuse_renaming(current, "rename", refs)
        return with_metadata(current, mark)

    return refs.branches.change(branch, marked)


def _copy_files(branch: Branch, new: str, versions: Versions) -> None:
    store, source, dest = versions.store, layout.branch_root(branch.name), layout.branch_root(new)
    for folder in _COPIED:
        copy_folder(store, f"{source}/{folder}", store, f"{dest}/{folder}")


def _copy_missing(branch: Branch, new: str, versions: Versions) -> None:
    """Copy the files once more that a collection took for garbage before the versions that name them were there."""
    store, source, dest = versions.store, layout.branch_root(branch.name), layout.branch_root(new)
    for folder in _COPIED:
        names, copied = (
            {entry.key.removeprefix(f"{root}/") for entry in store.walk(f"{root}/{folder}")} for root in (source, dest)
        )
        for name in sorted(names - copied):
            copy_file(store, f"{source}/{name}", store, f"{dest}/{name}")


def _copy_versions(branch: Branch, target: Branch, versions: Versions) -> None:
    """Copy every version of a branch; list again until no new version appears, since a commit may be in flight."""
    copied: set[int] = set()
    # No number above `highest` is copied: another branch may have the old name by now, and begins above it.
    highest = target.last[0] if target.last else -1
    while fresh := [number for number in versions.numbers(branch.name) if number <= highest and number not in copied]:
        for number in fresh:
            _copy_version(branch.name, number, target.name, versions)
        copied.update(fresh)
    if copied:
        write_hint(versions, layout.versions_folder(target.name), max(copied))


def _copy_version(name: str, number: int, new: str, versions: Versions) -> None:
    state = versions.load(name, number)
    manifest = replace(state.manifest, branch=new, transaction_file="")
    # A version without its transaction would make later commits of other programs fail, so it is not copied.
    if state.transaction is None:
        raise InvalidInputError(
            f"{state} of {versions.store.uri} lacks its transaction, so it cannot be copied; "
            f"delete the unfinished branch {new!r}; {name!r} is unchanged"
        )
    data = encode_manifest_file(manifest, encode_transaction(state.transaction))
    # It may exist from an earlier attempt, with the same content.
    put_once(versions.store, versions.manifest_path(new, number), data)


def rename_tag(old: str, new: str, refs: Refs) -> Tag:
    """Rename a tag, which keeps its history.

    Raises:
        InvalidRefNameError: The new name breaks a rule.
        RefNotFoundError: There is no tag of the old name.
        AlreadyExistsError: The new name is taken.
        ProtectedError: The tag is immutable or held, or one of the names is protected.
    """
    check_tag_name(new)
    tag, target = refs.tags.find(old), refs.tags.find(new)
    if tag is None:
        # An earlier attempt lost its answer after it had removed the old name.
        if target is not None and target.metadata.get(RENAMED_FROM) == old:
            return target
        raise refs.tags.not_found(old)
    refuse_protected_tag("rename", old, refs.store)
    refuse_protected_tag("rename", new, refs.store)
    if refs.branches.find(new) is not None:
        raise AlreadyExistsError(f"{new!r} is a branch of {refs.store.uri}; a tag of that name would be ambiguous")
    if target is not None and not _is_made_from(target, tag):
        raise AlreadyExistsError(f"tag {new!r} of {refs.store.uri} exists and names {target.ref}")
    # The mark changes the file, so a concurrent move fails its compare-and-swap and reads the tag again.
    marked = refs.tags.change(old, lambda current: _marked_tag(current, new))
    if target is None:
        own = {RENAMING_TO: None, RENAMED_FROM: old, RENAMED_WRITE: marked.metadata[WRITE_ID]}
        target = refs.tags.add(replace(with_metadata(marked, own), name=new))
    # The old tag is removed last, so that one of the two names always resolves.
    try:
        refs.tags.remove(marked)
    except RefMovedError:
        # The old tag was moved meanwhile. It stays, and the copy of its former state is removed.
        with suppress(RefMovedError):
            refs.tags.remove(target)
        raise
    return target


def _marked_tag(tag: Tag, new: str) -> Tag:
    # This is looked at inside the swap: another process may hold the tag until then.
    refuse_immutable("rename", tag)
    refuse_held("rename", tag.name, tag.metadata)
    return with_metadata(tag, {RENAMING_TO: new})


def _is_made_from(target: Tag, tag: Tag) -> bool:
    made_from = target.metadata.get(RENAMED_FROM), target.metadata.get(RENAMED_WRITE), target.ref
    return made_from == (tag.name, tag.metadata.get(WRITE_ID), tag.ref)
