"""Make and delete branches so that a crash between any two steps leaves nothing that blocks a name.

A branch is its metadata file and a folder of versions. The file is written first, marked as being created: it takes
the name, and another program that deletes a neighbouring branch sees that the folder is in use. Then the first
manifest, then the mark is taken off. Whoever finds the mark finishes the work; every step can be done twice.

Deleting runs the other way round: mark, folder, file.
"""

from collections.abc import Mapping
from dataclasses import replace

from lance_dagster.changes.apply import with_flags
from lance_dagster.changes.places import fork
from lance_dagster.errors import AlreadyExistsError, ConflictError, RefNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.refs import CREATING, DELETING, READY, Branch, Refs, new_branch
from lance_dagster.history.versions import State, Versions

_OWN_FOLDERS = (layout.VERSIONS, layout.TRANSACTIONS, layout.DELETIONS, "_indices", layout.DATA)


def create_branch(
    name: str, parent: State, refs: Refs, versions: Versions, *, exist_ok: bool, metadata: Mapping[str, str]
) -> Branch:
    """Fork a branch from a version. Two callers with `exist_ok` get the same branch.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        AlreadyExistsError: A branch has the name and `exist_ok` is False, or a folder is in the way.
    """
    layout.check_branch_name(name)
    found = refs.branch(name)
    if found is not None and found.state == DELETING:
        _finish_deleting(found, refs)
        found = None
    # A creation that somebody began and did not finish is taken over by whoever asks for the same.
    ours = found is not None and found.state == CREATING and found.parent == str(parent)
    if found is None:
        _refuse_leftovers(name, versions)
        of = None if parent.branch == layout.MAIN else refs.branch(parent.branch)
        size = versions.manifest_size(parent)
        wanted = new_branch(name, of, version=parent.number, manifest_size=size, metadata=metadata)
        found = refs.add_branch(wanted)
        ours = found.id == wanted.id
    if found.state != READY:
        found = _finish_creating(found, refs, versions)
    return found if ours else _existing(found, versions, exist_ok=exist_ok)


def delete_branch(name: str, refs: Refs) -> None:
    """Delete a branch and the versions it made; data files stay, since `main` may name them by now.

    Raises:
        RefNotFoundError: There is no such branch.
        ConflictError: A tag or another branch refers to it.
    """
    branch = refs.branch(name)
    if branch is None:
        raise RefNotFoundError(name, list(refs.branches()), refs.store.uri)
    users = [f"tag {tag.name!r}" for tag in refs.tags().values() if tag.branch == name]
    users += [f"branch {other.name!r}" for other in refs.branches().values() if other.parent_branch == name]
    if users:
        raise ConflictError(f"cannot delete branch {name!r} of {refs.store.uri}: {', '.join(users)} refers to it")
    _finish_deleting(refs.set_branch_state(branch, DELETING), refs)


def _finish_creating(branch: Branch, refs: Refs, versions: Versions) -> Branch:
    if branch.state != CREATING:
        raise ConflictError(f"branch {branch.name!r} of {versions.store.uri} is being deleted; try again")
    parent = versions.load(branch.parent_branch, branch.parent_version)
    main = branch.parent_branch == layout.MAIN
    parent_uri = versions.line_uri(branch.parent_branch)
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
    forked = replace(manifest, transaction_file=transaction.file_name, writer=WRITER, timestamp=now_ns())
    # Already there: another process found the mark and was faster, with the same content.
    create_first(versions, Proposal(transaction, with_flags(forked)), branch.name)
    return refs.set_branch_state(branch, READY)


def _finish_deleting(branch: Branch, refs: Refs) -> None:
    root = layout.line_root(branch.name)
    # Folder by folder: a branch named below this one keeps its files in the same place.
    for folder in _OWN_FOLDERS:
        refs.store.delete_folder(f"{root}/{folder}")
    refs.remove_branch(branch.name)


def _existing(branch: Branch, versions: Versions, *, exist_ok: bool) -> Branch:
    if not exist_ok:
        raise AlreadyExistsError(f"branch {branch.name!r} of {versions.store.uri} exists, forked from {branch.parent}")
    return branch


def _refuse_leftovers(name: str, versions: Versions) -> None:
    if versions.newest(name) is not None:
        raise AlreadyExistsError(
            f"{versions.line_uri(name)} holds versions of a branch without metadata, left by another program; "
            "remove that folder or choose another name"
        )
