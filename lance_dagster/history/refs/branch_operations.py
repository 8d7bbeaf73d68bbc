"""Create, reset and delete branches, so that a crash between any two steps blocks no name.

A branch is a file of metadata and a folder of versions. Neither can be written together with the other, so the file
carries a state and every step is idempotent: whoever finds an unfinished state can finish the work.

Creation:

1. The file, in state "creating". It takes the name; and another program that deletes a neighbouring branch sees that
   the folder is in use, because branch folders nest.
2. The first manifest, a clone of the fork point.
3. The file, in state "ready".

Deletion goes in the opposite order (`refs.branch_deletion`). A creation that finds a branch being deleted does the
rest of that, and then replaces the file by its own: a late request of the other process finds other bytes there.

Creation and deletion of names that refer to each other race. The creator of a reference writes it first and then
checks that its target is still there. A deletion marks the target first and then looks for references. So at
least one of the two sees the other and withdraws. A version of `main` that a collection takes away is looked for only
before, since its files wait for a day: by then the first manifest of the branch names them.

A reset to a version of another branch deletes the versions and replaces the file by that of a new branch, so that the
name is never free in between. Of two resets at once, or a reset and a deletion, the one that wrote its mark last wins.
A reset to a version of the branch itself is in `refs.reset`.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from lance_dagster.errors import AlreadyExistsError, Call, ConflictError, InvalidInputError, RefMovedError, Remedy
from lance_dagster.format import layout
from lance_dagster.format.codec import check_writable
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.format.validation import check_string_mapping
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.refs.branch_deletion import (
    ALL_FOLDERS,
    ClosedBranch,
    Closing,
    abandon_creation,
    close_branch,
    close_branches,
    empty_branch,
    fences,
    finish_deleting_many,
    first_number_above_fences,
    in_use,
    number_above,
    put_back,
    refuse_renaming,
    refuse_users,
)
from lance_dagster.history.refs.branch_fence import WITHDRAWN, refuse_dropped, withdraw
from lance_dagster.history.refs.landing_tags import without_landed_tags
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_files import (
    CLOSING,
    CLOSING_ID,
    CREATING,
    DELETING,
    FIRST,
    READY,
    RECOVERING,
    RENAME_ID,
    RENAMED_FROM,
    RESERVED_PREFIX,
    RESETTING,
    Branch,
    new_branch,
    with_metadata,
)
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import together
from lance_dagster.transactions.apply import with_feature_flags
from lance_dagster.transactions.base_paths import fork

NOTHING: Mapping[str, str] = MappingProxyType({})


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
    # This is checked before anything is written: the first manifest would fail after the name was taken.
    check_writable(parent.manifest)
    refs.store.refuse_links(layout.versions_folder(name))
    described = _describe_new(name, parent, refs, versions, metadata=metadata)
    newest, is_tag = together(refs.store, partial(versions.newest_or_none, name), partial(_is_tag, name, refs))
    if newest is None and not is_tag:
        # Most names are free. The put decides between two callers: the second caller gets the branch of the first.
        added = refs.branches.add(described)
        if added.id == described.id:
            return _finish_creating(added, refs, versions)
    existing = branch_of_name(name, refs, versions)
    if existing is not None and existing.state in (CLOSING, DELETING):
        replaced = _replace_deleted(existing, parent, refs, versions, metadata=metadata)
        if replaced is not None:
            return _finish_creating(replaced, refs, versions)
        existing = refs.branches.find(name)
    # An unfinished creation from the same version is taken over: the crash may have been our own.
    created = existing is not None and existing.state == CREATING and existing.parent == str(parent)
    if existing is None:
        refuse_tagged(name, refs)
        refuse_leftovers(name, versions)
        existing = refs.branches.add(described)
        created = existing.id == described.id
    if existing.state != READY:
        existing = _finish_creating(existing, refs, versions)
    if not created and not exist_ok:
        raise AlreadyExistsError(f"branch {name!r} of {refs.store.uri} exists, forked from {existing.parent}")
    return existing


def delete_branch(name: str, refs: Refs, versions: Versions) -> None:
    """Delete a branch and its versions. Data files stay until garbage collection: merged versions may name them.

    Raises:
        InvalidInputError: The branch is `main`.
        RefNotFoundError: There is no such branch.
        ProtectedError: The branch is protected.
        ConflictError: A tag or another branch refers to it, or it is being renamed.
    """

    def delete() -> None:
        finish_deleting_many([close_branch(_unused(name, "delete", refs), Closing(), refs, versions)], refs, versions)

    without_landed_tags(name, delete, refs, versions)


def retire_branch(newest: State, refs: Refs, versions: Versions) -> None:
    """Delete a branch that nobody is to write to any more, given the newest version that the caller knows of.

    It is deleted as by `delete_branch`, but protection and references are looked at only after it was marked. So a
    branch that has to stay takes no commits for a moment.

    Raises:
        ConflictError: As for `delete_branch`; or it has a newer version; or it is gone.
    """
    branch = newest.of or refs.branches.stored(newest.branch)
    if branch is None:
        raise RefMovedError(newest.branch, str(newest), "nothing")
    delete_up_to(branch, newest.number, refs, versions)


def delete_up_to(branch: Branch, number: int, refs: Refs, versions: Versions) -> None:
    """Delete a branch as `retire_branch` does, unless it has a version after that number; the number is not looked up.

    Raises:
        ConflictError: As for `retire_branch`.
    """
    refuse_renaming(branch, "delete", refs)
    refs.store.refuse_links(layout.versions_folder(branch.name))

    def delete() -> None:
        closed = close_branch(branch, Closing(upto=number, protected=True), refs, versions)
        finish_deleting_many([closed], refs, versions)

    without_landed_tags(branch.name, delete, refs, versions)


def delete_branches(names: Iterable[str], refs: Refs, versions: Versions) -> dict[str, ConflictError]:
    """Delete many branches, as `delete_branch` does each; return why some of them stay.

    References are searched twice for all of them together, and twice more for each further level of a chain of branches
    that were forked from each other.

    Raises:
        ProtectedError: A branch is protected.
    """
    remaining = {name: branch for name in names if (branch := refs.branches.find(name)) is not None}
    refusals: dict[str, ConflictError] = {}
    for branch in remaining.values():
        refuse_protected_branch("delete", branch.name, refs.store)
    while remaining:
        users = refs.referrers()
        closed, refusals = close_branches([remaining[name] for name in remaining if name not in users], refs, versions)
        finish_deleting_many(closed, refs, versions)
        if not closed:
            stay = {name: in_use(name, "delete", users[name], refs) for name in remaining if name in users}
            return {**refusals, **stay}
        # The branches that were deleted may have been all that referred to some remaining branches.
        remaining = {name: branch for name, branch in remaining.items() if name in users or name in refusals}
    return refusals


def reset_branch(
    name: str, target: State, refs: Refs, versions: Versions, *, properties: Mapping[str, str] = NOTHING
) -> Branch:
    """Make a branch start again from a version of another branch. Its own versions are deleted, its metadata stays.

    Raises:
        RefNotFoundError: There is no such branch.
        ProtectedError: The branch is protected.
        InvalidInputError: The branch is `main`.
        ConflictError: A tag or another branch refers to it, or it is being renamed; or another reset or a deletion of
            it began meanwhile, and takes precedence.
    """
    if name == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be reset; restore an older version instead")
    # The mark stays until the branch is ready: a writer that finds the branch unusable is told that it comes back.
    mark = f"{target} {int(time.time())} {uuid.uuid4().hex}"
    closed = close_branch(_unused(name, "reset", refs), Closing(do="reset", resetting=mark), refs, versions)
    # Reserved keys describe the old branch: its state, its first version, a rename.
    own_metadata = {key: value for key, value in closed.branch.metadata.items() if not key.startswith(RESERVED_PREFIX)}
    described = _describe_new(name, target, refs, versions, metadata=own_metadata | {RESETTING: mark})
    replaced = _replaced(closed, described, refs, versions)
    if replaced is None:
        raise ConflictError(
            f"cannot reset branch {name!r} of {refs.store.uri} to {target}: another process deleted or reset it at the "
            "same time"
        )
    return _finish_creating(replaced, refs, versions, properties)


def _replace_deleted(
    dying: Branch, parent: State, refs: Refs, versions: Versions, *, metadata: Mapping[str, str]
) -> Branch | None:
    """Put a new branch in the place of a branch that is being deleted; return None if another process did so first."""
    try:
        # The deletion that is continued may be the end of a rename, which is no reason to refuse here.
        dead = close_branch(dying, Closing(rename_id=dying.metadata.get(RENAME_ID)), refs, versions)
    except RefMovedError:
        return None
    refuse_tagged(dying.name, refs)
    described = _describe_new(dying.name, parent, refs, versions, metadata=metadata)
    return _replaced(dead, described, refs, versions)


def _replaced(closed: ClosedBranch, successor: Branch, refs: Refs, versions: Versions) -> Branch | None:
    """Empty a branch in state "deleting" and replace its file by the file of a new branch.

    Returns:
        The new branch; None when another process deleted or replaced the branch first.
    """
    emptied, dead = empty_branch(closed, refs, versions), closed.branch
    if emptied is None:
        return None
    marks = {name: dead.metadata.get(name) for name in (RESETTING, CLOSING_ID)}

    def replaced(current: Branch) -> Branch:
        # A reset and a deletion may both have emptied the branch. Without the comparison of marks, the slower of the
        # two would replace the new branch of the faster, which may have commits. Another CLOSING_ID belongs to a later
        # deletion, of a branch that was recovered meanwhile and may have more versions.
        if current.state != DELETING or any(current.metadata.get(name) != mark for name, mark in marks.items()):
            raise RefMovedError(dead.name, dead.id, "a branch that is being reset")
        return successor

    with suppress(RefMovedError):
        return refs.branches.change(dead, replaced)
    put_back(emptied.branch, emptied.numbers, refs, versions)
    return None


def delete_renamed(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Delete the old branch at the end of a rename, unless another process did."""
    closing = Closing(do="rename", rename_id=branch.metadata.get(RENAME_ID))
    with suppress(RefMovedError):
        finish_deleting_many([close_branch(branch, closing, refs, versions)], refs, versions, ALL_FOLDERS)


def branch_of_name(name: str, refs: Refs, versions: Versions) -> Branch | None:
    """Return the branch of a name, after deleting the unfinished copy of a rename that cannot be finished any more."""
    branch = refs.branches.find(name)
    if branch is None or branch.state != CREATING or RENAMED_FROM not in branch.metadata:
        return branch
    old = refs.branches.find(branch.metadata[RENAMED_FROM])
    if old is not None and old.id == branch.id:
        return branch
    # The rename ended before it marked the old branch, which was deleted since: nothing was copied.
    abandon_creation(branch, refs, versions)
    return refs.branches.find(name)


def refuse_tagged(name: str, refs: Refs) -> None:
    """Refuse a name that a tag has.

    Raises:
        AlreadyExistsError: There is such a tag.
    """
    if _is_tag(name, refs):
        raise AlreadyExistsError(f"{name!r} is a tag of {refs.store.uri}; a branch of that name would be ambiguous")


def _is_tag(name: str, refs: Refs) -> bool:
    # No program gives a tag a name with a slash.
    return "/" not in name and refs.tags.find(name) is not None


def refuse_recent(branch: Branch, name: str, refs: Refs, versions: Versions) -> None:
    """Refuse a new name for a branch while a commit to an earlier branch of that name may be in flight.

    The late commit could then become a version of the renamed branch. A new branch is safe, because its version numbers
    begin above those of the deleted branch (`refs.branch_fence`); a renamed branch keeps its version numbers.

    Raises:
        AlreadyExistsError: A branch of the name was deleted recently, and `branch` may have the same version numbers.
    """
    numbers = [
        number
        for own, number, _, branch_id in fences(refs)
        if own == name and number != WITHDRAWN and branch_id != branch.id
    ]
    if numbers and number_above(numbers, versions) > branch.first:
        raise AlreadyExistsError(
            f"{name!r} of {refs.store.uri} was the name of another branch until less than a day ago; "
            "choose another name"
        )


def refuse_reserved_keys(metadata: Mapping[str, object]) -> None:
    """Refuse metadata under keys that this package reserves, and values that are not strings.

    Raises:
        InvalidInputError: There are some; the error names the keys.
    """
    check_string_mapping("metadata", metadata, removing=True)
    reserved = sorted(key for key in metadata if key.startswith(RESERVED_PREFIX))
    if reserved:
        raise InvalidInputError(f"keys that start with {RESERVED_PREFIX!r} cannot be changed: {', '.join(reserved)}")


def _unused(name: str, do: str, refs: Refs) -> Branch:
    """Return a branch, after checking that it exists, is not protected or being renamed, and has no references."""
    if name == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be deleted: every Lance program looks for it")
    branch = refs.branches.stored(name)
    if branch is None:
        raise refs.branch_not_found(name)

    def refuse() -> None:
        refuse_renaming(branch, do, refs)
        # Links are refused before the mark: a branch behind a link would stay marked until the link is gone.
        refs.store.refuse_links(layout.versions_folder(name))

    # The cheap refusals come first, before anything is marked. References are looked for again after the mark.
    together(refs.store, refuse, partial(refuse_users, name, do, refs, protected=True))
    return branch


def _describe_new(name: str, parent: State, refs: Refs, versions: Versions, *, metadata: Mapping[str, str]) -> Branch:
    of = None if parent.branch == layout.MAIN else refs.branches.find(parent.branch)
    size = versions.manifest_size(parent)
    return new_branch(name, of, version=parent.number, manifest_size=size, metadata=metadata)


def _finish_creating(branch: Branch, refs: Refs, versions: Versions, properties: Mapping[str, str] = NOTHING) -> Branch:
    _refuse_other_work(branch, refs)
    refuse_dying_parent(branch, refs, versions)
    branch = _above_fences(branch, refs, versions)
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
        # Only the process that asked for the branch knows the properties; a process that finishes the creation does
        # not.
        properties=properties,
    )
    forked = replace(
        manifest,
        version=branch.first,
        transaction_file="",
        writer=WRITER,
        timestamp=now_ns(),
    )
    # This is None when another process finished the creation first; its manifest has the same content.
    first = create_first(versions, Proposal(transaction, with_feature_flags(forked)), branch.name)
    # The state comes last: a branch that is ready has a version, and a writer never finds it empty.
    try:
        ready = refs.branches.set_state(branch, READY)
    except ConflictError:
        if first is not None:
            _take_back_first(branch, first, refs, versions)
        raise
    if first is not None:
        versions.committed_to(ready, first)
    return ready


def _refuse_other_work(branch: Branch, refs: Refs) -> None:
    """Refuse to finish a creation that belongs to a deletion, a rename or a recovery."""
    old = branch.metadata.get(RENAMED_FROM)
    doing = ""
    if branch.state != CREATING:
        doing = "is being deleted; try again"
    elif old is not None:
        doing = f"is being made by renaming {old!r}; renaming it again finishes that"
    elif RECOVERING in branch.metadata:
        doing = "is being recovered; recovering it again finishes that"
    if doing:
        raise ConflictError(f"branch {branch.name!r} of {refs.store.uri} {doing}")


def _take_back_first(branch: Branch, first: State, refs: Refs, versions: Versions) -> None:
    """Delete the first manifest of a branch that was deleted while it was created, if it came after the deletion."""
    current = refs.branches.find(branch.name)
    # No other branch of the name uses the number while the fence stands; what another program put there stays.
    if current is None or current.id != branch.id or current.state == DELETING:
        withdraw(first, versions.manifest_path(branch.name, first.number), current, refs)


def refuse_dying_parent(branch: Branch, refs: Refs, versions: Versions) -> None:
    """Withdraw a branch whose fork point goes away meanwhile: the deletion or reset may not have seen this branch.

    Raises:
        RefNotFoundError: The branch that it was forked from is gone.
        ConflictError: That branch is being renamed, or the version is being dropped.
    """
    if branch.parent_branch == layout.MAIN:
        return
    parent = refs.branches.find(branch.parent_branch)
    # The lineage is compared too: the parent may have been deleted and another branch made under its name.
    if parent is None or parent.state != READY or parent.lineage != branch.lineage[:-1]:
        abandon_creation(branch, refs, versions)
        raise refs.branch_not_found(branch.parent_branch)
    try:
        # A rename looks for branches that were forked from it after its mark, and may have missed this branch.
        refuse_renaming(parent, "fork", refs)
        refuse_dropped(branch.parent_branch, branch.parent_version, refs)
    except ConflictError:
        abandon_creation(branch, refs, versions)
        raise


def _above_fences(branch: Branch, refs: Refs, versions: Versions) -> Branch:
    """Let a branch begin above every version number that earlier branches of the name had."""
    # Fences are listed only after the name was taken: a branch that is created and deleted before has its fence by
    # then.
    lowest = first_number_above_fences(branch.name, refs, versions)
    if lowest <= branch.first:
        return branch

    def raised(current: Branch) -> Branch:
        # Once it has a version, its numbers have begun.
        return with_metadata(current, {FIRST: str(lowest)}) if current.state == CREATING else current

    return refs.branches.change(branch, raised)


def refuse_leftovers(name: str, versions: Versions) -> None:
    """Refuse a name whose folder holds versions that belong to no branch.

    Raises:
        AlreadyExistsError: There are such versions.
    """
    newest = versions.newest(name)
    # A version below a fence was put by a late writer; the new branch begins above it and is not affected.
    if newest is None or newest < first_number_above_fences(name, Refs(versions.store), versions):
        return
    remedy = Remedy(
        "{} makes it a branch again, which can be deleted; or choose another name", Call("branches.recover", (name,))
    )
    raise AlreadyExistsError(
        f"{versions.branch_uri(name)} holds versions of a branch without metadata, left by another program or a crash",
        remedy=remedy,
    )


def set_metadata(name: str, updates: Mapping[str, str | None], refs: Refs) -> Branch:
    """Change the metadata of a branch, by compare-and-swap; a value of None removes a key.

    Raises:
        RefNotFoundError: There is no such branch.
        InvalidInputError: A key is reserved by this package.
        RefMovedError: The branch was deleted meanwhile.
    """
    refuse_reserved_keys(updates)
    branch = refs.branches.find(name)
    if branch is None or branch.state != READY:
        raise refs.branch_not_found(name)
    return refs.branches.change(branch, lambda current: with_metadata(current, dict(updates)))
