"""Delete a branch, so that nothing of another branch of the name goes with it.

The folder of a branch bears its name, since pylance looks for it there. So while this process deletes a branch, another
process can finish the deletion and give the name to a new branch that takes commits. Therefore each step removes only
what belongs to one branch *id*, however late its requests arrive. In the example, `run/7` has the versions 1 to 5.

1. Write the branch's file in state "closing", with a random id of this attempt. A process that refers to the branch
   from here on sees the state and withdraws, and no commit begins.
2. List the keys in the folder of the branch. At the same time, search for tags and branches that refer to the branch.
   If there are some, set the state back and refuse the deletion.
3. Write the branch's file in state "deleting", with the highest number that a version of the branch may have: 5. This
   state is never set back. If another process set the state back after step 1 and began a new attempt, the id in the
   file differs, and the search is repeated.
4. Put the fence file, an empty file whose name has the number 5. The next `run/7` begins above it, which keeps late
   commits out of it (`refs.branch_fence`). The fence file is deleted when a branch of any name is created at least a
   day later, when no commit can be in flight any more, if the creator may delete it.
5. Copy the manifests to `_expired/`, for merges of the branch that are in flight, and for `branches.recover`. The files
   that they name stay in the folder of the branch as long as the copies; a collection deletes them.
6. Delete exactly the manifests and transactions that step 2 listed. The branch had the name from step 1 to step 3, so
   no other branch can have written a listed key. The keys are never used again: the numbers 1 to 5 are below the first
   number of the next branch, and transactions have random names. The folder is listed again, and the file read after
   it, where another process did step 3; where the branch was not ready, so that its first versions were being put; and
   where step 3 came so late that a writer may have acknowledged a version that step 2 did not list. While the file says
   "deleting", no other branch can have written a listed key.
7. Delete the branch's file, by compare-and-delete. Where the storage cannot do that, only one process may send the
   request, and a writer that wants the name waits until the request cannot arrive any more
   (`BranchFiles.adopt_removal`).
8. If the file changed after step 3, read the branch again: a second process may have finished the deletion and a third
   process recovered the branch, with the same id and numbers. Then put the versions back that step 6 deleted, and
   delete them once more if a later deletion may have missed them, and so on.

A reset writes its own mark in step 1. The last mark decides: a deletion takes away the mark of a reset, a reset
replaces the mark of an earlier reset, and a process that does not find its own mark at the end reports a conflict.
"""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lance_dagster.errors import ConflictError, PermissionRefusedError, ProtectedError, RefMovedError, StoreError
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.history.inventory import copy_to_expired, newest_expired_copies
from lance_dagster.history.refs.branch_fence import CLOSING_SECONDS
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_files import (
    BEFORE_CLOSING,
    CLOSING,
    CLOSING_ID,
    CREATING,
    DELETING,
    LAST,
    READY,
    RECOVERING,
    REMOVER,
    RENAME_ID,
    RESETTING,
    STATE,
    Branch,
    with_metadata,
)
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import put_once, together

VERSION_FOLDERS = (layout.VERSIONS, layout.TRANSACTIONS)
"""The folders of a branch that its deletion empties; what the manifests name stays until a collection."""
ALL_FOLDERS = (*VERSION_FOLDERS, layout.DELETIONS, layout.INDICES, layout.DATA)
"""All folders of a branch: a rename empties them, since it has copied the files."""
# This is far longer than a commit takes, which gives up after minutes.
FENCE_SECONDS = 24 * 60 * 60
_ATTEMPTS = 5
# Less than the whole, since the clocks of two machines may run differently fast.
_PROMPT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The reason why a branch is taken to the state "deleting".

    Attributes:
        do: What is done to it, for messages.
        resetting: The mark of the reset that this belongs to; None for a deletion.
        rename_id: The id of the rename that this ends; None for any other deletion.
        upto: The newest version that may be deleted; None for any.
        protected: Whether the branch stays if it is protected; otherwise that was looked at before.
    """

    do: str = "delete"
    resetting: str | None = None
    rename_id: str | None = None
    upto: int | None = None
    protected: bool = False


@dataclass(frozen=True, slots=True)
class ClosedBranch:
    """A branch in state "deleting".

    Attributes:
        branch: The branch.
        keys: The keys below its folder, listed between its mark and its seal, while no other branch could have the
            name; None where they have to be listed now.
    """

    branch: Branch
    keys: Sequence[str] | None = None


def close_branch(branch: Branch, why: Closing, refs: Refs, versions: Versions) -> ClosedBranch:
    """Take a branch to the state "deleting", after making sure that nothing refers to it or will.

    Raises:
        ConflictError: Something refers to the branch, or it has a newer version than may be deleted.
        ProtectedError: The branch is protected.
        RefMovedError: The branch is gone, or that rename was ended by another process.
    """
    for _ in range(_ATTEMPTS):
        closing = _marked(branch, refs, why)
        if closing.state != CLOSING:
            closed = _sealed(closing, _Listed(newest=_newest(closing, versions)), refs)
        else:
            try:
                refuse = partial(refuse_users, branch.name, why.do, refs, protected=why.protected)
                listed, _ = together(refs.store, partial(_listed, closing, versions), refuse)
                _refuse_newer(branch.name, listed.newest, why, refs)
            except (ConflictError, ProtectedError):
                _reopen(closing, refs, versions)
                raise
            closed = _sealed(closing, listed, refs)
        # Where the file changed between the mark and the seal, another attempt had reopened the branch, and a writer
        # may have committed: everything is looked at again.
        if closed.branch.state == DELETING:
            return closed
    raise StoreError(f"cannot {why.do} branch {branch.name!r} of {refs.store.uri}: it keeps changing")


def close_branches(
    branches: Sequence[Branch], refs: Refs, versions: Versions
) -> tuple[list[ClosedBranch], dict[str, ConflictError]]:
    """Take many branches to the state "deleting" with one search for references; return also why others stay.

    The order is as in `close_branch`: all marks, then the search, then the seals. So a process that refers to a branch
    of the list sees the mark of this branch, or the search finds its reference.
    """
    marked: list[Branch] = []
    closed: list[ClosedBranch] = []
    refusals: dict[str, ConflictError] = {}
    for branch in branches:
        try:
            marked.append(_marked(branch, refs, Closing()))
        except RefMovedError:
            # A branch that is gone was deleted by another process.
            continue
        except ConflictError as error:
            refusals[branch.name] = error
    users = refs.referrers()
    for closing in marked:
        try:
            if closing.state == CLOSING and closing.name in users:
                _reopen(closing, refs, versions)
                raise in_use(closing.name, "delete", users[closing.name], refs)
            sealed = _sealed(closing, _listed(closing, versions), refs)
            again = sealed.branch.state != DELETING
            closed.append(close_branch(sealed.branch, Closing(), refs, versions) if again else sealed)
        except RefMovedError:
            continue
        except ConflictError as error:
            refusals[closing.name] = error
    return closed, refusals


def _marked(branch: Branch, refs: Refs, why: Closing) -> Branch:
    own = uuid.uuid4().hex

    def marked(current: Branch) -> Branch:
        # A rename marks the same file. Each attempt to swap looks for it, so that one of the two finds the other.
        if why.rename_id is None:
            refuse_renaming(current, why.do, refs)
        elif current.metadata.get(RENAME_ID) != why.rename_id:
            raise RefMovedError(branch.name, branch.id, "a branch that was renamed back")
        if current.state in (CLOSING, DELETING):
            return with_metadata(current, {RESETTING: why.resetting})
        # What a rename recorded still holds while the branch is being created, and is outdated once it takes commits.
        recorded = current.metadata.get(LAST) if current.state == CREATING else None
        marks = {STATE: CLOSING, CLOSING_ID: own, BEFORE_CLOSING: current.state}
        return with_metadata(current, {**marks, RESETTING: why.resetting, LAST: recorded})

    return refs.branches.change(branch, marked)


def _reopen(closing: Branch, refs: Refs, versions: Versions) -> None:
    """Take back the attempt to delete a branch, unless another attempt has replaced it by now."""
    # The reference was made before the mark, so it stays and the deletion withdraws.
    state = CREATING if versions.newest(closing.name) is None else READY

    def reopened(current: Branch) -> Branch:
        if current.state != CLOSING or current.metadata.get(CLOSING_ID) != closing.metadata.get(CLOSING_ID):
            return current
        # A creation may have gone on meanwhile. A branch that was ready is not created again, which would give it
        # another first version: where it has none, a recovery brings its versions back. Some may be missing on a branch
        # that is being recovered, so only the recovery makes it ready.
        reached = READY if current.metadata.get(BEFORE_CLOSING) == READY else state
        reached = CREATING if RECOVERING in current.metadata else reached
        return with_metadata(current, {STATE: reached, RESETTING: None, CLOSING_ID: None, BEFORE_CLOSING: None})

    refs.branches.change(closing, reopened)


def _refuse_newer(name: str, newest: int, why: Closing, refs: Refs) -> None:
    if why.upto is not None and newest > why.upto:
        raise ConflictError(
            f"cannot {why.do} branch {name!r} of {refs.store.uri}: {name}@{newest} was committed meanwhile"
        )


def _newest(closing: Branch, versions: Versions) -> int:
    """Return the newest version of a branch that was marked, 0 where it has none."""
    # Versions are listed after the mark: a writer that saw no mark read the head before, and puts at most the number
    # after the newest.
    return versions.newest(closing.name) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """What lies below the folder of a branch that was marked.

    Attributes:
        newest: The newest version, 0 where the branch has none.
        keys: All keys; None where only the versions were listed.
        since: When the listing began, by the monotonic clock.
    """

    newest: int
    keys: Sequence[str] | None = None
    since: float = 0.0


def _listed(closing: Branch, versions: Versions) -> _Listed:
    """List the folder of a branch that was marked, after the mark for the reason that `_newest` gives."""
    since, folder = time.monotonic(), f"{layout.versions_folder(closing.name)}/"
    keys = [entry.key for entry in versions.store.walk(layout.branch_root(closing.name))]
    names = [key.removeprefix(folder) for key in keys if key.startswith(folder)]
    return _Listed(newest=versions.newest_in(closing.name, names), keys=keys, since=since)


def _sealed(closing: Branch, listed: _Listed, refs: Refs) -> ClosedBranch:
    """Take a branch from "closing" to "deleting", if the file still belongs to the same attempt."""
    if closing.state == DELETING and closing.last is not None:
        return ClosedBranch(refs.branches.adopt_removal(closing))
    highest = f"{_highest(closing, listed.newest)} {int(time.time())}"

    def sealed(current: Branch) -> Branch:
        same = current.metadata.get(CLOSING_ID) == closing.metadata.get(CLOSING_ID)
        if current.state != closing.state or not same or (current.state == DELETING and current.last is not None):
            return current
        return with_metadata(current, {STATE: DELETING, LAST: highest, **own})

    own = refs.branches.removal_right.mark()
    changed = refs.branches.change(closing, sealed)
    if changed.state != DELETING:
        return ClosedBranch(changed)
    # The branch had the name from its mark on, so the listed keys are its own. They are all of them where only commits
    # were under way, and not a creation, a recovery or a rename that puts its first versions. A writer that saw no mark
    # acknowledges a version that is not among them only where it has seen the mark for `CLOSING_SECONDS`.
    same = changed.metadata.get(CLOSING_ID) == closing.metadata.get(CLOSING_ID)
    only_commits = closing.metadata.get(BEFORE_CLOSING) == READY
    prompt = time.monotonic() - listed.since < _PROMPT * CLOSING_SECONDS
    # Another process may have sealed the same attempt first, and has the right to delete the file.
    return ClosedBranch(_with_right(changed, own, refs), listed.keys if same and only_commits and prompt else None)


def _with_right(deleting: Branch, own: Mapping[str, str], refs: Refs) -> Branch:
    """Return a branch whose file this process may delete, given the mark that it may have put there."""
    return deleting if deleting.metadata.get(REMOVER) == own.get(REMOVER) else refs.branches.adopt_removal(deleting)


def _highest(branch: Branch, newest: int) -> int:
    """Return the highest number that a version of a branch may have, once the branch takes no commits any more."""
    # A late sync may be about to use a higher number: `first_number_above_fences` says which.
    return max(branch.first, branch.last[0] if branch.last else 0, newest)


def abandon_creation(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Undo a creation that was begun under a name, unless another process finished it meanwhile."""
    highest = f"{_highest(branch, _newest(branch, versions))} {int(time.time())}"

    def marked(current: Branch) -> Branch:
        if current.state != CREATING:
            return current
        # The process that makes the branch records it before it puts anything there.
        recorded = current.metadata.get(LAST, highest)
        return with_metadata(current, {STATE: DELETING, LAST: recorded, **own})

    own = refs.branches.removal_right.mark()
    # The mark is written first: another process that is about to finish the creation finds it.
    changed = refs.branches.change(branch, marked)
    if changed.state == DELETING:
        finish_deleting(_with_right(changed, own, refs), refs, versions)


def finish_deleting(branch: Branch, refs: Refs, versions: Versions, folders: Collection[str] = VERSION_FOLDERS) -> None:
    """Delete the versions of a branch in state "deleting", and its file.

    Args:
        branch: The branch.
        refs: The branches of the table.
        versions: The versions of the table.
        folders: The folders of the branch that are emptied.

    Raises:
        ConflictError: It is being reset meanwhile.
    """
    finish_deleting_many([ClosedBranch(branch)], refs, versions, folders)


def finish_deleting_many(
    branches: Sequence[ClosedBranch], refs: Refs, versions: Versions, folders: Collection[str] = VERSION_FOLDERS
) -> None:
    """Delete the versions of branches in state "deleting", and their files; arguments as for `finish_deleting`.

    Raises:
        ConflictError: One of them is being reset meanwhile.
    """
    for closed in branches:
        emptied = empty_branch(closed, refs, versions, folders)
        if emptied is None:
            continue
        try:
            removed = refs.branches.remove(emptied.branch, emptied.etag)
        except ConflictError:
            put_back(emptied.branch, emptied.numbers, refs, versions)
            raise
        if not removed:
            put_back(emptied.branch, emptied.numbers, refs, versions)


@dataclass(frozen=True, slots=True)
class EmptiedBranch:
    """A branch as stored when its versions were deleted, the ETag of its file, and the numbers of the versions."""

    branch: Branch
    etag: str
    numbers: Collection[int]


def empty_branch(
    closed: ClosedBranch, refs: Refs, versions: Versions, folders: Collection[str] = VERSION_FOLDERS
) -> EmptiedBranch | None:
    """Delete the versions of a branch in state "deleting", after recording how far their numbers went.

    The files that they name stay in the folder of the branch, until a collection finds that no manifest and no copy of
    a manifest names them: a merge may be reading them, and a recovery needs them.

    Returns:
        What was deleted; None when another process finished the deletion.
    """
    branch, listed = closed.branch, closed.keys
    root, store = layout.branch_root(branch.name), refs.store
    while True:
        highest, since = branch.last or (_highest(branch, _newest(branch, versions)), int(time.time()))
        # The fence is put before the deletion: from here on no next branch of the name can begin too low.
        put_fence = partial(put_once, store, layout.branch_fence_file(branch.name, highest, since, branch.id), b"")
        if listed is not None and branch.etag:
            put_fence()
            below, deleting = listed, (branch, branch.etag)
        else:
            _, below = together(store, put_fence, lambda: [entry.key for entry in store.walk(root)])
            read = refs.branches.read_deleting(branch)
            if read is None:
                return None
            deleting = read
        # Only its own folders are emptied: a branch `a/b` lies inside the folder of `a`.
        keys = [key for key in below if key.removeprefix(f"{root}/").partition("/")[0] in folders]
        manifests = _manifests_of(keys, f"{root}/{layout.VERSIONS}/")
        numbers = manifests.keys()
        if not numbers or max(numbers) <= highest + 1:
            break
        # Another program, which knows no marks, committed meanwhile.
        branch, listed = _with_last(branch, max(numbers), refs), None
    # A merge of this branch may be in flight: the copies make a collection keep the files for the settling time.
    copy_to_expired(store, branch.name, branch.id, manifests, cached=partial(versions.cached.file_at, branch))
    # Oldest first: if the branch was recovered and loses versions, its head stays for as long as possible.
    ordered = [manifests[number] for number in sorted(manifests)]
    if manifests and not store.ordered_listing:
        # A power cut could otherwise keep a version whose files are gone. An object store has no power cuts.
        store.delete_many(ordered)
        store.sync_folder(f"{root}/{layout.VERSIONS}")
    if keys:
        store.delete_many([*ordered, *sorted(set(keys) - set(ordered))])
    for folder in ALL_FOLDERS:
        store.prune(f"{root}/{folder}")
    return EmptiedBranch(*deleting, numbers)


def put_back(branch: Branch, deleted: Collection[int], refs: Refs, versions: Versions) -> None:
    """Put versions back that were deleted, by their numbers, if the branch was recovered meanwhile."""
    name = branch.name
    # The branch may be recovered again while its versions are deleted here, so it is read again after each deletion.
    for _ in range(_ATTEMPTS):
        if not _is_kept(branch, refs):
            return
        copies = newest_expired_copies(versions.store, name, branch.id)
        # Newest first: the branch takes commits, and a commit on an older version would take the number of a missing
        # version.
        numbers = sorted(copies.keys() & set(deleted), reverse=True)
        for number in numbers:
            data = versions.store.get(copies[number])
            if data is not None:
                restore_version(name, number, data, versions)
        versions.forget()
        # A deletion that came in between may have listed the versions before they were put.
        if _is_kept(branch, refs):
            return
        # Oldest first, for the same reason.
        versions.store.delete_many([versions.manifest_path(name, number) for number in reversed(numbers)])
        versions.forget()
    raise StoreError(f"cannot put back what was deleted of branch {name!r} of {refs.store.uri}: it keeps changing")


def _is_kept(branch: Branch, refs: Refs) -> bool:
    """Tell whether a branch exists and its deletion is not certain."""
    current = refs.branches.find(branch.name)
    return current is not None and current.id == branch.id and current.state != DELETING


def restore_version(name: str, number: int, data: bytes, versions: Versions, *, late: bool = False) -> None:
    """Put the copy of a manifest in its place.

    A manifest that is there stays, unless it was put `late`, while the branch took no commits.

    Raises:
        FormatError: The copy is damaged.
    """
    key = versions.manifest_path(name, number)
    decode_manifest_file(data, f"{versions.store.uri}/{key}")
    put_once(versions.store, key, data)
    if late and versions.store.get(key) != data:
        # However late this request arrives: under the id of the branch, the number belongs to the copied version.
        versions.store.put(key, data)


def _with_last(branch: Branch, number: int, refs: Refs) -> Branch:
    highest = f"{number} {int(time.time())}"
    return refs.branches.change(branch, lambda current: with_metadata(current, {LAST: highest}))


def _manifests_of(keys: list[str], folder: str) -> dict[int, str]:
    """Return the keys of manifests by version number."""
    parsed = ((layout.parse_manifest_names([key.removeprefix(folder)]), key) for key in keys if key.startswith(folder))
    return {number: key for (present, old), key in parsed for number in (*present, *old)}


def fences(refs: Refs) -> list[tuple[str, int, int, str]]:
    """Return the name, highest number, time and id of each branch that was deleted recently."""
    return [
        fence
        for file in refs.store.list(layout.DELETED_BRANCHES)
        if (fence := layout.parse_branch_fence(file)) is not None
    ]


def first_number_above_fences(name: str, refs: Refs, versions: Versions) -> int:
    """Return the lowest number with which a new branch of a name may begin; delete outdated fences where allowed."""
    all_fences, until = fences(refs), time.time() - FENCE_SECONDS
    old = [layout.branch_fence_file(*fence) for fence in all_fences if fence[2] < until]
    if old:
        # These fences are older than any commit in flight. Where the credentials may write only branches of some names,
        # the fences of others stay until somebody creates a branch who may delete them.
        with suppress(PermissionRefusedError):
            refs.store.delete_many(old)
    numbers = [number for deleted_name, number, *_ in all_fences if deleted_name == name]
    return number_above(numbers, versions) if numbers else 0


def number_above(fenced: Sequence[int], versions: Versions) -> int:
    """Return a number above every number that a late writer may still give, given the newest of deleted branches."""
    # A late writer may still put the version after the newest one. A sync is numbered after the version that it merges,
    # usually of main, whose newest version has no lower number now than when the sync read it.
    return max(*fenced, versions.newest(layout.MAIN) or 0) + 2


def refuse_users(name: str, do: str, refs: Refs, *, protected: bool = False) -> None:
    """Refuse to change a branch that tags or other branches refer to, or that is `protected`.

    Raises:
        ConflictError: There are some; the error names them.
        ProtectedError: The branch is protected.
    """
    listed = refs.listed()
    # Most tables protect nothing, and the listing shows it.
    if protected and listed.has_protection:
        refuse_protected_branch(do, name, refs.store)
    users = refs.referrers_of(name, listed)
    if users:
        raise in_use(name, do, users, refs)


def refuse_renaming(branch: Branch, do: str, refs: Refs) -> None:
    """Refuse to change a branch that is being renamed.

    Raises:
        ConflictError: It is being renamed.
    """
    new = refs.branches.renamed_to(branch)
    if new is not None:
        raise ConflictError(
            f"cannot {do} branch {branch.name!r} of {refs.store.uri}: it is being renamed to {new!r}; "
            "renaming it again finishes that"
        )


def in_use(name: str, do: str, users: Sequence[str], refs: Refs) -> ConflictError:
    """Return the error for a branch that tags or other branches refer to."""
    refer = "refers" if len(users) == 1 else "refer"
    return ConflictError(f"cannot {do} branch {name!r} of {refs.store.uri}: {', '.join(users)} {refer} to it")
