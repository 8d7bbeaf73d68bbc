"""Reset a branch to an older version of its own, as `git reset --hard` does.

A version number is never used twice, since readers, caches and the records of merges identify a version by it. So the
branch does not shrink. If `run/7` has the versions 1 to 8 and is reset to version 5, the reset commits the content of
version 5 as version 9, records that version 9 was made from version 5, and drops the versions 6 to 8. The log of the
branch then goes from version 9 to version 5, and a merge finds nothing of the dropped versions. Steps:

1. A mark in the branch's file says which versions are about to be dropped: "5-8", and a random id of this reset.
2. A search for refs that need a dropped version: tags that name it, branches forked from it, branches that merged it.
   If there are such refs, the mark is taken back and the reset refused.
3. The commit, one put-if-absent of version 9. If another writer commits version 9 first, the reset withdraws.
4. Copies of the dropped manifests in `_expired/`, for readers and merges in flight; then the manifests are deleted.
   Data files stay until they are collected.
5. The mark is taken back.

Two resets may meet. If the first reset has not committed yet, the second reset replaces its mark; the first reset then
finds a mark that is not its own, and searches again before it drops anything. If the first reset has committed, the
second reset does steps 4 and 5 of the first reset before its own step 1.

After a crash the branch is as it was (steps 1 and 2) or reset; the same call again does the remaining steps. Whoever
creates a reference to a version writes the reference first and then looks for the mark, and the reset looks for
references after it wrote the mark. So the reset finds the reference, or the creator of the reference finds the mark.

A merge is a reference that nobody can take back. A merge that lands after the search counts as done before the reset,
which then has the effect of a `restore`: the next merge, or a collection, puts the merged version back from its copy
(`lineage.load_or_copy`).
"""

import uuid
from collections.abc import Mapping
from functools import partial

from lance_dagster.errors import Call, CommitConflictError, ConflictError, InvalidInputError, Remedy, StoreError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import COMMIT_MESSAGE, RESET, Restore, Transaction, reset_target
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.inventory import copy_to_expired
from lance_dagster.history.lineage import merge_records_of
from lance_dagster.history.refs.branch_deletion import refuse_renaming
from lance_dagster.history.refs.branch_fence import DROPPING, Dropped, dropped_versions
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_files import READY, Branch, with_metadata
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_operations import recorded_versions
from lance_dagster.history.versions import State, Versions

_ATTEMPTS = 5


def reset_to_own_version(target: State, refs: Refs, versions: Versions, properties: Mapping[str, str]) -> Branch:
    """Commit an older version of a branch as its next version, and drop the versions between the two.

    Raises:
        RefNotFoundError: There is no such branch.
        InvalidInputError: The branch is `main`.
        ProtectedError: The branch is protected.
        VersionNotFoundError: Another reset dropped the version meanwhile.
        ConflictError: A tag or a branch needs a version that would be dropped, or the branch is being renamed.
        CommitConflictError: Another writer committed to the branch meanwhile; nothing was changed.
    """
    for _ in range(_ATTEMPTS):
        branch = _attempt_reset(target, refs, versions, properties)
        if branch is not None:
            return branch
        # The target is read again: another reset may have dropped it.
        target = versions.load(target.branch, target.number)
    raise StoreError(f"cannot reset branch {target.branch!r} of {refs.store.uri}: other resets keep replacing the mark")


def _attempt_reset(target: State, refs: Refs, versions: Versions, properties: Mapping[str, str]) -> Branch | None:
    """Reset a branch; return None when another reset replaced the mark, or had to be finished first."""
    branch, head = _branch_to_reset(target, refs), versions.head(target.branch)
    pending = dropped_versions(branch)
    if head.number == target.number and pending is None:
        return branch
    pending_committed = (
        pending is not None and head.number == pending.newest + 1 and reset_target(head.transaction) == pending.target
    )
    if pending_committed and pending is not None and pending.target != target.number:
        _drop(branch, pending, versions)
        _without_mark(branch, branch.metadata[DROPPING], refs)
        return None
    # A head that a reset to the same version committed is not dropped: an earlier attempt was interrupted after it.
    committed = reset_target(head.transaction) == target.number
    dropped = Dropped(target.number, head.number - 1 if committed else max(head.number, target.number))
    mark = f"{dropped} {uuid.uuid4().hex}"
    marked = refs.branches.change(branch, lambda current: _with_mark(current, mark, refs))
    try:
        # Once a reset is committed under a mark, a process that refers to a dropped version finds the mark and
        # withdraws, so the search is not repeated.
        if not pending_committed:
            _refuse_needed(marked, dropped, refs, versions)
        if not committed:
            _commit(target, dropped, versions, properties)
    except ConflictError:
        _without_mark(marked, mark, refs)
        # An earlier attempt, whose mark was taken away, committed the reset. Versions that got references since then
        # stay.
        if committed:
            return refs.branches.find(branch.name)
        raise
    stored = refs.branches.find(branch.name) or marked
    if dropped_versions(stored) is None or stored.metadata[DROPPING] != mark:
        return None
    _drop(marked, dropped, versions)
    return _without_mark(marked, mark, refs)


def _branch_to_reset(target: State, refs: Refs) -> Branch:
    name, uri = target.branch, refs.store.uri
    if name == MAIN:
        raise InvalidInputError(f"main of {uri} cannot be reset; restore an older version instead")
    branch = refs.branches.find(name)
    if branch is None or branch.state != READY:
        raise refs.branch_not_found(name)
    refuse_protected_branch("reset", name, refs.store)
    refuse_renaming(branch, "reset", refs)
    return branch


def _with_mark(branch: Branch, mark: str, refs: Refs) -> Branch:
    # A rename or a deletion marks the same file, so each attempt to swap looks for their marks.
    if branch.state != READY:
        raise refs.branch_not_found(branch.name)
    refuse_renaming(branch, "reset", refs)
    return with_metadata(branch, {DROPPING: mark})


def _without_mark(branch: Branch, mark: str, refs: Refs) -> Branch:
    """Take back the mark of a reset; a mark that another reset has put in its place stays."""

    def unmarked(current: Branch) -> Branch:
        return with_metadata(current, {DROPPING: None}) if current.metadata.get(DROPPING) == mark else current

    return refs.branches.change(branch, unmarked)


def _refuse_needed(branch: Branch, dropped: Dropped, refs: Refs, versions: Versions) -> None:
    """Refuse to drop versions that a tag or another branch refers to.

    Raises:
        ConflictError: A dropped version has a reference; the error names the references and the versions.
    """
    name = branch.name
    # The earlier versions of a tag count too: the next rollback goes to one of them.
    needs = [
        f"tag {tag.name!r} {'names' if str(recorded) == tag.ref else 'named'} {recorded}"
        for tag in refs.tags.all().values()
        for recorded in sorted(recorded_versions(tag), key=str)
        if recorded.branch_id in ("", branch.id)
        and (at := recorded.version_ref) is not None
        and (at.branch == name and at.number in dropped)
    ]
    neighbours = [neighbour for neighbour in refs.branches.all().values() if neighbour.name != name]
    needs += [
        f"branch {neighbour.name!r} was forked from {neighbour.parent}"
        for neighbour in neighbours
        if neighbour.parent_branch == name and neighbour.parent_version in dropped
    ]
    # A version that another branch merged is the merge base of later merges between the two branches.
    for line in (MAIN, *(neighbour.name for neighbour in neighbours if neighbour.state == READY)):
        record = merge_records_of(versions.head(line).manifest).get(branch.id)
        if record is not None and record.merged > dropped.target:
            needs.append(f"{line} contains {name}@{record.merged}")
    if needs:
        target = f"{name}@{dropped.target}"
        raise ConflictError(
            f"cannot reset branch {name!r} of {refs.store.uri} to {target}: {', '.join(needs)}",
            remedy=Remedy(
                "{} commits that version's content as the next version, and drops none",
                Call("restore", (target, name)),
            ),
        )


def _commit(target: State, dropped: Dropped, versions: Versions, properties: Mapping[str, str]) -> None:
    # All proposals share one uuid, so that a commit whose response was lost is recognised.
    transaction = Transaction(
        read_version=target.number,
        uuid=str(uuid.uuid4()),
        operation=Restore(version=target.number),
        properties={COMMIT_MESSAGE: f"reset to {target}", **properties, RESET: str(target)},
    )

    def propose(head: State) -> Proposal | State:
        if head.number == dropped.newest + 1 and reset_target(head.transaction) == target.number:
            # The same reset is committed already, by another call or by an earlier attempt of this call.
            return head
        if head.number > dropped.newest:
            # No process looked for references to the new version, and its writer knows that it is committed.
            problem = f"cannot reset {target.branch} of {versions.store.uri}: {head} was committed meanwhile"
            raise CommitConflictError(problem, str(head), retryable=True)
        return Proposal(transaction, next_manifest(versions, head, transaction))

    commit(versions, target.branch, propose)


def _drop(branch: Branch, dropped: Dropped, versions: Versions) -> None:
    numbers = [number for number in versions.numbers(branch.name) if number in dropped]
    if not numbers:
        return
    manifests = {number: versions.manifest_path(branch.name, number) for number in numbers}
    # The copies come first: a merge that reads a dropped version meanwhile, or lands after the search for references,
    # finds its files.
    copy_to_expired(versions.store, branch.name, branch.id, manifests, cached=partial(versions.cached.file_at, branch))
    # The newest version is deleted first: an interrupted reset then leaves a series without gaps up to some version.
    for number in reversed(numbers):
        versions.store.delete(versions.manifest_path(branch.name, number))
    # Versions that were read before must not be served from the cache any more.
    versions.forget()
