"""Reset a branch to an older version of its own, as `git reset --hard` does.

A version number is never used twice, since readers, caches and the records of merges identify a version by it. So the
branch does not shrink: the reset commits the content of the older version as the next version, and records that this
version was made from the older one. The versions between the two are dropped. The log of the branch then goes from the
new version to the older one, and a merge finds nothing of what was dropped.

1. A mark in the branch's file says which versions are about to be dropped.
2. A look for what still needs one of them: tags, branches forked from them, branches that merged them. If there is
   something, the mark is taken back and the reset refused.
3. The commit, one put-if-absent of the next number. A commit of another writer that is first makes the reset withdraw.
4. Copies of the dropped manifests in `_expired/`, for readers and merges in flight; then the manifests are deleted.
   Data files stay until they are collected.
5. The mark is taken back.

After a crash the branch is either as it was (steps 1 and 2) or reset; the same call again does what is left. Whoever
creates a reference to a version writes it first and then looks for the mark, and the reset looks for references after
it wrote the mark, so at least one of the two sees the other.
"""

import uuid

from lance_dagster.errors import Call, CommitConflictError, ConflictError, InvalidInputError, Remedy
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import COMMIT_MESSAGE, RESET, Restore, Transaction, reset_target
from lance_dagster.history.ancestry import VersionRef
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.inventory import copy_to_expired
from lance_dagster.history.lineage import merge_records_of
from lance_dagster.history.refs.branch_fence import DROPPING, Dropped
from lance_dagster.history.refs.branch_operations import refuse_renaming
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_files import READY, Branch, with_metadata
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_operations import recorded_versions
from lance_dagster.history.versions import State, Versions


def reset_to_own_version(target: State, refs: Refs, versions: Versions) -> Branch:
    """Make an older version of a branch its newest one, and drop the versions after it.

    Raises:
        RefNotFoundError: There is no such branch.
        InvalidInputError: The branch is `main`.
        ProtectedError: The branch is protected.
        ConflictError: A tag or a branch needs a version that would be dropped, or the branch is being renamed.
        CommitConflictError: Another writer committed to the branch meanwhile; nothing was changed.
    """
    name, uri = target.branch, refs.store.uri
    if name == MAIN:
        raise InvalidInputError(f"main of {uri} cannot be reset; restore an older version instead")
    branch = refs.branch(name)
    if branch is None or branch.state != READY:
        raise refs.branch_not_found(name)
    refuse_protected_branch("reset", name, refs.store)
    refuse_renaming(branch, "reset", refs)
    head = versions.head(name)
    if head.number == target.number:
        return _unmarked(branch, refs)
    # A head that this reset made is not dropped: an earlier attempt committed it and was interrupted afterwards.
    done = reset_target(head.transaction) == target.number
    dropped = Dropped(target.number, head.number - 1 if done else head.number)
    marked = refs.change_branch(branch, lambda current: with_metadata(current, {DROPPING: str(dropped)}))
    try:
        _refuse_needed(marked, dropped, refs, versions)
        if not done:
            _commit(target, dropped, versions)
    except ConflictError:
        _unmarked(marked, refs)
        raise
    _drop(marked, dropped, versions)
    return _unmarked(marked, refs)


def _unmarked(branch: Branch, refs: Refs) -> Branch:
    return refs.change_branch(branch, lambda current: with_metadata(current, {DROPPING: None}))


def _refuse_needed(branch: Branch, dropped: Dropped, refs: Refs, versions: Versions) -> None:
    """Refuse to drop versions that something refers to.

    Raises:
        ConflictError: Names what refers to which version.
    """
    name = branch.name
    # The earlier versions of a tag too: the next rollback goes to one of them.
    needs = [
        f"tag {tag.name!r} {'names' if str(recorded) == tag.ref else 'named'} {recorded}"
        for tag in refs.tags().values()
        for recorded in sorted(recorded_versions(tag), key=str)
        if recorded.branch_id in ("", branch.id) and _is_dropped(recorded.version_ref, name, dropped)
    ]
    others = [other for other in refs.branches().values() if other.name != name]
    needs += [
        f"branch {other.name!r} was forked from {other.parent}"
        for other in others
        if other.parent_branch == name and other.parent_version in dropped
    ]
    # A version that was merged is part of the other branch: without it, later merges would have no merge base.
    for line in (MAIN, *(other.name for other in others if other.state == READY)):
        record = merge_records_of(versions.head(line).manifest).get(branch.id)
        if record is not None and record.merged > dropped.target:
            needs.append(f"{line} contains {name}@{record.merged}")
    if needs:
        target = f"{name}@{dropped.target}"
        raise ConflictError(
            f"cannot reset branch {name!r} of {refs.store.uri} to {target}: {', '.join(needs)}",
            remedy=Remedy("{} makes it the next version and drops none", Call("restore", (target, name))),
        )


def _is_dropped(place: VersionRef | None, name: str, dropped: Dropped) -> bool:
    return place is not None and place.branch == name and place.number in dropped


def _commit(target: State, dropped: Dropped, versions: Versions) -> None:
    # One uuid for all proposals, so that a commit whose response was lost is recognised.
    transaction = Transaction(
        read_version=target.number,
        uuid=str(uuid.uuid4()),
        operation=Restore(version=target.number),
        properties={RESET: str(target), COMMIT_MESSAGE: f"reset to {target}"},
    )

    def propose(head: State) -> Proposal | State:
        if head.number == dropped.last + 1 and reset_target(head.transaction) == target.number:
            # Another call of the same reset was first, or an earlier attempt of this one.
            return head
        if head.number > dropped.last:
            # Nobody looked for references to the new version, and its writer was told that it is committed.
            raise CommitConflictError(
                f"cannot reset {target.branch} of {versions.store.uri}: {head} was committed meanwhile",
                str(head),
                retryable=True,
            )
        return Proposal(transaction, next_manifest(versions, head, transaction))

    commit(versions, target.branch, propose)


def _drop(branch: Branch, dropped: Dropped, versions: Versions) -> None:
    numbers = [number for number in versions.numbers(branch.name) if number in dropped]
    if not numbers:
        return
    copy_to_expired(versions.store, branch.name, branch.id, only=frozenset(numbers))
    # The newest first: what an interrupted reset leaves is then a series without gaps up to some version.
    for number in reversed(numbers):
        versions.store.delete(versions.manifest_path(branch.name, number))
    # Versions that were read before must not be served from the cache any more.
    versions.forget()
