"""Give branches and tags other names; nothing is lost if the process dies in between.

A branch takes everything along: its versions with their numbers, its id, so that what was merged of it stays merged,
and the files in its own folder, which are copied on the server's side. The manifests are written anew, since each holds
the branch's name; commit ids change with them. Steps:

1. take the new name: a file that says which branch it is made from
2. mark the old branch: no commit begins any more (`history.guard`)
3. copy files, then versions, oldest first
4. the new branch is ready
5. delete the old one

Until 4 the old branch is read, from then on the new one; both hold the same. Doing it again goes on where it stopped.
Found to be in use after 2, the new name is given up, and the mark means nothing without it.
A tag moves the same way: the old one is marked, the new one put, the old one deleted. The new one says which file it
was made from, so a renaming that died is told from a tag that got its name long ago.
"""

from contextlib import suppress
from dataclasses import replace

from lance_dagster.errors import AlreadyExistsError, ConflictError, InvalidInputError, RefMovedError
from lance_dagster.format import layout
from lance_dagster.format.codec import encode_manifest_file, encode_transaction
from lance_dagster.format.names import check_branch_name, check_tag_name
from lance_dagster.history.refs import branch_operations
from lance_dagster.history.refs.protection import refuse_protected_branch, refuse_protected_tag
from lance_dagster.history.refs.ref_files import (
    CREATING,
    READY,
    RENAMED_FROM,
    RENAMED_WRITE,
    RENAMING_TO,
    STATE,
    WRITE_ID,
    Branch,
)
from lance_dagster.history.refs.ref_store import Refs, Tag, with_metadata
from lance_dagster.history.refs.tag_operations import refuse_immutable
from lance_dagster.history.versions import Versions
from lance_dagster.store import copy_folder

_COPIED = (layout.DELETIONS, layout.INDICES, layout.DATA)


def rename_branch(old: str, new: str, refs: Refs, versions: Versions) -> Branch:
    """Give a branch another name.

    Raises:
        InvalidRefNameError: The new name breaks a rule.
        InvalidInputError: The branch is `main`.
        RefNotFoundError: There is no branch of the old name.
        AlreadyExistsError: The new name is taken.
        ProtectedError: One of the names is protected.
        ConflictError: A tag or another branch refers to the branch.
    """
    check_branch_name(new)
    if old == layout.MAIN:
        raise InvalidInputError(f"main of {refs.store.uri} cannot be renamed: every Lance program looks for it")
    branch, target = refs.branch(old), refs.branch(new)
    if branch is None:
        if target is not None and target.state == READY and target.metadata.get(RENAMED_FROM) == old:
            return target
        raise refs.branch_not_found(old)
    begun = target if target is not None and _is_copy(target, branch) else None
    if begun is None or begun.state != READY:
        begun = _copied(branch, new, refs, versions, begun=begun)
    branch_operations.delete_renamed(branch, refs, versions)
    return begun


def _is_copy(target: Branch, branch: Branch) -> bool:
    return (target.id, target.metadata.get(RENAMED_FROM)) == (branch.id, branch.name)


def _copied(branch: Branch, new: str, refs: Refs, versions: Versions, *, begun: Branch | None) -> Branch:
    if branch.state != READY:
        raise refs.branch_not_found(branch.name)
    for name in (branch.name, new):
        refuse_protected_branch("rename", name, refs.store)
    target = begun
    try:
        branch_operations.refuse_users(branch.name, "rename", refs)
        target = begun or _taken(branch, new, refs, versions)
        marked = _marked(branch, new, refs)
        # Whoever began to refer to the branch before the mark is seen here.
        branch_operations.refuse_users(branch.name, "rename", refs)
    except ConflictError:
        # The mark means nothing without the new name, so the branch takes commits again.
        if target is not None:
            with suppress(RefMovedError):
                branch_operations.abandon_creation(target, refs, versions)
        raise
    _copy_files(marked, new, versions)
    _copy_versions(marked, new, versions)
    return refs.set_branch_state(target, READY)


def _taken(branch: Branch, new: str, refs: Refs, versions: Versions) -> Branch:
    """Take the new name for a branch."""
    branch_operations.refuse_renaming(branch, "rename", refs)
    found = refs.branch(new)
    if found is None:
        branch_operations.refuse_leftovers(new, versions)
    branch_operations.refuse_recent(branch, new, refs)
    branch_operations.refuse_tagged(new, refs)
    if found is None:
        taken = with_metadata(branch, {STATE: CREATING, RENAMED_FROM: branch.name, RENAMING_TO: None})
        found = refs.add_branch(replace(taken, name=new))
    if not _is_copy(found, branch):
        raise AlreadyExistsError(f"branch {new!r} of {refs.store.uri} exists, forked from {found.parent}")
    return found


def _marked(branch: Branch, new: str, refs: Refs) -> Branch:
    """Keep commits off a branch from here on."""

    def marked(current: Branch) -> Branch:
        if current.metadata.get(RENAMING_TO) == new:
            return current
        branch_operations.refuse_renaming(current, "rename", refs)
        return with_metadata(current, {RENAMING_TO: new})

    return refs.change_branch(branch, marked)


def _copy_files(branch: Branch, new: str, versions: Versions) -> None:
    store, source, dest = versions.store, layout.line_root(branch.name), layout.line_root(new)
    for folder in _COPIED:
        copy_folder(store, f"{source}/{folder}", store, f"{dest}/{folder}")


def _copy_versions(branch: Branch, new: str, versions: Versions) -> None:
    """Write every version of a branch under another name, until there is none that was not."""
    done: set[int] = set()
    while fresh := [number for number in versions.numbers(branch.name) if number not in done]:
        for number in fresh:
            _copy_version(branch.name, number, new, versions)
        done.update(fresh)
    if done and not versions.store.ordered_listing:
        hint = layout.join(layout.line_root(new), layout.HINT)
        versions.store.put(hint, b'{"version":%d}' % max(done), lasting=False)


def _copy_version(name: str, number: int, new: str, versions: Versions) -> None:
    state = versions.load(name, number)
    manifest, store, line = replace(state.manifest, branch=new), versions.store, layout.line_root(new)
    if state.transaction is None:
        raise InvalidInputError(
            f"{state} of {store.uri} lacks its transaction, so it cannot be written anew; "
            f"delete branch {new!r}, which was begun, and {name!r} is as it was"
        )
    path = layout.join(line, layout.TRANSACTIONS, state.transaction.file_name)
    store.put(path, encode_transaction(state.transaction), lasting=False)
    # Already there: put by an earlier attempt, which read the same.
    store.put_if_absent(versions.manifest_path(new, number), encode_manifest_file(manifest, state.transaction))


def rename_tag(old: str, new: str, refs: Refs) -> Tag:
    """Give a tag another name; its history goes along.

    Raises:
        InvalidRefNameError: The new name breaks a rule.
        RefNotFoundError: There is no tag of the old name.
        AlreadyExistsError: The new name is taken.
        ProtectedError: The tag is immutable, or one of the names is protected.
    """
    check_tag_name(new)
    tag, target = refs.tag(old), refs.tag(new)
    if tag is None:
        if target is not None and target.metadata.get(RENAMED_FROM) == old:
            return target
        raise refs.tag_not_found(old)
    refuse_protected_tag("rename", old, refs.store)
    refuse_protected_tag("rename", new, refs.store)
    refuse_immutable("rename", tag)
    if refs.branch(new) is not None:
        raise AlreadyExistsError(f"{new!r} is a branch of {refs.store.uri}; a tag of that name would be ambiguous")
    if target is not None and not _is_made_from(target, tag):
        raise AlreadyExistsError(f"tag {new!r} of {refs.store.uri} exists and names {target.ref}")
    # Marked: whoever was about to move it has to look again, and finds out.
    marked = refs.change_tag(old, lambda current: with_metadata(current, {RENAMING_TO: new}))
    if target is None:
        own = {RENAMING_TO: None, RENAMED_FROM: old, RENAMED_WRITE: marked.metadata[WRITE_ID]}
        target = refs.add_tag(replace(with_metadata(marked, own), name=new))
    refs.remove_tag(old)
    return target


def _is_made_from(target: Tag, tag: Tag) -> bool:
    made_from = target.metadata.get(RENAMED_FROM), target.metadata.get(RENAMED_WRITE), target.ref
    return made_from == (tag.name, tag.metadata.get(WRITE_ID), tag.ref)
