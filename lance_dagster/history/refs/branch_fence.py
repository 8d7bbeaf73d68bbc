"""The branch fence: keep a commit off a branch that is not the one it was meant for.

A branch can be deleted and its name given to a new branch while a writer is about to put the next manifest of the old
one. The key of a manifest holds the branch's name and a number, and nothing that tells the two branches apart. There
is no lock; these rules keep the late manifest out of the new branch:

- Deletion marks the branch first and then lists its versions. A writer looks for the mark after it read the head and
  before it puts the next manifest. A writer that saw no mark read the head before the deletion listed the versions,
  so the number it puts is at most one above the newest that the deletion saw.
- The deletion records that newest number in a fence file (`refs.branch_deletion`), and the next branch of the name
  begins at least two above it. So the late manifest lies below the first version of the new branch: it is not a
  version of that branch, and the new branch never uses its key.
- The writer looks again after the put. If the branch it read is still there, the version is on it. If the branch has
  the first mark, which can be taken back, the writer waits until it is taken back or the branch goes: the deletion may
  have listed the versions before this one was put. A mark that stays belongs to a process that died; whoever continues
  that deletion lists the versions again, so the version is deleted or kept with the branch.
- If the branch is gone, and the manifest still exists, then it was put after the folder was emptied. Nobody could reach
  it, so the writer deletes it and reports a conflict. If the manifest does not exist, it may have been on the branch
  before the deletion, and a merge or a rename may have taken it along: the state is unknown, and the error says so.
- The branch may be recovered meanwhile, under the same id (`refs.branch_recovery`), with every manifest that is there.
  So the writer first puts a fence file with the commit id of its manifest, and looks once more. A recovery that takes
  the name later finds the file, and deletes the manifest too. One that took it earlier is found by the writer, which
  then leaves the manifest where it is: the state is unknown. Both delete conditionally, since the number may belong to
  another commit by then. Where the storage cannot do that, the manifest is always left.
- A recovery leaves its id in the file of the branch. A writer that finds another one than before its put does not know
  whether the recovery has put another version in the place of its own.
- A transaction that was staged on the old branch and is committed to the new one would be classified against versions
  that do not exist, or against the fork of the new branch. `history.commit` reports a conflict.

A deletion by another program leaves no fence file. Then only the writer's two looks at the branch protect it.

A reset of a branch to an older version of its own (`refs.reset`) marks the versions that it drops; the second half
of this module keeps new tags and branches off them.
"""

import re
import time
from dataclasses import dataclass

from lance_dagster.errors import (
    Call,
    CommitConflictError,
    CommitStateUnknownError,
    ConflictError,
    CorruptFileError,
    Remedy,
    StoreError,
)
from lance_dagster.format import layout
from lance_dagster.format.codec import commit_id
from lance_dagster.format.transaction import Transaction
from lance_dagster.history.refs.ref_files import (
    CLOSING,
    CREATING,
    READY,
    RECOVERED,
    RECOVERING,
    RENAMED_FROM,
    RENAMING_TO,
    RESERVED_PREFIX,
    RESETTING,
    Branch,
)
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State
from lance_dagster.store import Store, put_once

DROPPING = f"{RESERVED_PREFIX}dropping"
"""The key of the mark: the version that the branch goes back to, the last one that is dropped, and a random id of the
reset, as "5-8 4f2a..."."""
WITHDRAWN = 0
"""The number in the fence file of a single commit, whose writer deletes the manifest: its id is that of the commit."""
_RESET_SECONDS = 60
"""The longest time that a writer waits for a reset of the branch to end."""
# The number of failed reads of the branch after a commit before its state counts as unknown.
_LOOKS, _PAUSE_SECONDS = 4, 0.02
# The longest time that a writer waits for a deletion to be taken back or to proceed: the deletion looks for references
# in a few requests.
_CLOSING_SECONDS = 1.0
_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})( [0-9a-f]+)?")


@dataclass(frozen=True, slots=True)
class BranchFence:
    """The checks of a branch before and after a manifest is put; `main` is never deleted and needs none."""

    refs: Refs
    name: str

    def check_before_put(self, head: State, seen: str = "") -> str:
        """Return the ids of the branch and its last recovery; call this after its head was read and before the put.

        Args:
            head: The version that was read as the head.
            seen: What was returned at an earlier attempt of the same commit; empty at the first one.

        Raises:
            RefNotFoundError: There is no such branch, or it is being deleted.
            CommitConflictError: The head belongs to a deleted branch of the name, or the branch is being reset or
                renamed.
        """
        branch = self.refs.branch(self.name)
        if branch is not None and branch.state != READY and RESETTING in branch.metadata:
            # The commit must not be retried automatically: it was made from the branch as it was before the reset.
            raise being_reset(branch, self.refs, in_flight=True)
        if branch is None or not _takes_commits(branch):
            raise self.refs.branch_not_found(self.name)
        # A head below the first version was put by a late writer; another id is another branch of the name.
        known = {_branch_id(seen) if seen else branch.id, branch.id if head.of is None else head.of.id}
        if head.number < branch.first or known != {branch.id}:
            raise self._gone(head)
        target = self.refs.renamed_to(branch)
        if target is not None:
            raise CommitConflictError(
                f"cannot commit to {self.name} of {self.refs.store.uri}: it is being renamed to {target}",
                str(head),
                retryable=False,
            )
        return _ids(branch)

    def check_after_put(self, read: str, put: State, transaction: Transaction, path: str) -> None:
        """Check that a version that was put belongs to the branch it was meant for.

        Args:
            read: What `check_before_put` returned.
            put: The version.
            transaction: Its transaction, to resume with where the state is unknown.
            path: The path of its manifest.

        Raises:
            CommitConflictError: The version never belonged to the branch; its manifest was deleted again.
            CommitStateUnknownError: The branch is being renamed or is gone, so another branch may hold the version;
                or the store did not answer.
        """
        problem: StoreError | CorruptFileError | None = None
        failed, until = 0, time.monotonic() + _CLOSING_SECONDS
        while failed < _LOOKS:
            try:
                doubt = self._reason_for_doubt(read, put, path)
                if doubt != CLOSING:
                    break
                if time.monotonic() > until:
                    doubt = None
                    break
            except (StoreError, CorruptFileError) as error:
                # The version is there: one lost or cut answer must not make the caller doubt it.
                problem, failed = error, failed + 1
            time.sleep(_PAUSE_SECONDS)
        else:
            message = (
                f"cannot tell whether {put} belongs to the current {self.name} of {self.refs.store.uri}: {problem}"
            )
            raise CommitStateUnknownError(message, transaction.uuid, transaction) from problem
        if doubt is not None:
            message = f"{self.name} of {self.refs.store.uri} was being {doubt} while {put} was committed"
            raise CommitStateUnknownError(message, transaction.uuid, transaction)

    def _reason_for_doubt(self, read: str, put: State, path: str) -> str | None:
        """Return what is happening to the branch if it is unknown whether a version stays; None when it stays.

        "closing" says that a deletion may still be taken back.

        Raises:
            CommitConflictError: The version does not stay.
        """
        branch = self.refs.branch(self.name)
        if branch is not None and branch.id == _branch_id(read):
            if _ids(branch) != read:
                return "recovered"
            target = self.refs.renamed_to(branch)
            if target is not None:
                return f"renamed to {target}"
            # "closing" alone can be taken back, and then the version stays. At the end of a rename it cannot: some
            # versions were copied to the new name before this one was put, and others after.
            if branch.state == CLOSING and RENAMING_TO not in branch.metadata:
                return CLOSING
            return None if _takes_commits(branch) else "deleted"
        # It is below the first version of any branch of the name, so nobody can have read it as a version.
        below = branch is None or branch.first > put.number
        if below and withdraw(put, path, branch, self.refs):
            raise self._gone(put)
        return "deleted"

    def _gone(self, state: State) -> CommitConflictError:
        return CommitConflictError(
            f"cannot commit to {self.name} of {self.refs.store.uri}: the branch was deleted meanwhile",
            str(state),
            retryable=False,
        )


def _ids(branch: Branch) -> str:
    """Return the ids of a branch and of its last recovery."""
    return f"{branch.id} {branch.metadata.get(RECOVERED, '')}"


def _branch_id(ids: str) -> str:
    return ids.rpartition(" ")[0]


def withdraw(put: State, path: str, branch: Branch | None, refs: Refs) -> bool:
    """Delete a manifest that was put after the versions of its branch were deleted, unless a recovery may take it in.

    Args:
        put: The version.
        path: The path of its manifest.
        branch: The branch that has the name now, as it was just read, or None. It is not the branch of the version, or
            that branch takes no commits.
        refs: The branches of the table.

    Returns:
        Whether the manifest never was a version of a branch, and will not be one.
    """
    store = refs.store
    found = store.get(path)
    if found is None or commit_id(found) != put.id:
        return False
    # Once another branch has had a version under the name, the old one is not recovered any more.
    if branch is None or branch.state != READY:
        if not store.deletes_conditionally():
            return False
        mark = layout.branch_fence_file(put.branch, WITHDRAWN, int(time.time()), put.id)
        put_once(store, mark, b"")
        if refs.branch(put.branch) != branch:
            # A recovery that took the manifest in does not lose it to the next one.
            store.delete(mark)
            return False
    # It is not there any more when a recovery and a deletion came between the two looks.
    return delete_manifest(path, put.id, store)


def delete_manifest(path: str, of: str, store: Store) -> bool:
    """Delete the manifest of a commit, by its id; return False where there is none, or that of another commit."""
    found = store.get_with_etag(path)
    if found is None or commit_id(found[0]) != of:
        return False
    store.compare_and_delete(path, found[1])
    return True


def being_reset(branch: Branch, refs: Refs, *, in_flight: bool = False) -> CommitConflictError:
    """Return the error for a commit to a branch that is being reset to a version of another branch.

    Args:
        branch: The branch, which has the mark of the reset.
        refs: The branches of the table.
        in_flight: Whether the commit was made from the branch as it was before the reset.
    """
    target, since, *_ = *branch.metadata[RESETTING].split(" "), ""
    # A reset takes a few requests. A mark that stays belongs to a process that died: waiting for it would be in vain.
    waiting = since.isdigit() and time.time() - int(since) < _RESET_SECONDS
    again = f"branches.reset({branch.name!r}, {target!r}) finishes that, if it was interrupted"
    return CommitConflictError(
        f"cannot commit to {branch.name} of {refs.store.uri}: it is being reset to {target}; {again}",
        target,
        retryable=waiting and not in_flight,
    )


def _takes_commits(branch: Branch) -> bool:
    """Tell whether a branch takes commits."""
    # One that is being created does, once it has a version, unless a rename or a recovery makes it.
    unfinished = {RENAMED_FROM, RECOVERING} & branch.metadata.keys()
    return branch.state == READY or (branch.state == CREATING and not unfinished)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The versions of a branch that a reset drops: those after `target`, up to `last`."""

    target: int
    last: int

    def __contains__(self, number: int) -> bool:
        """Tell whether a version is dropped."""
        return self.target < number <= self.last

    def __str__(self) -> str:
        """Return the range as the mark has it."""
        return f"{self.target}-{self.last}"


def dropped_versions(branch: Branch) -> Dropped | None:
    """Return the versions that a reset of a branch is about to drop; None when no reset is under way."""
    match = _RANGE.fullmatch(branch.metadata.get(DROPPING, ""))
    return None if match is None else Dropped(int(match[1]), int(match[2]))


def refuse_dropped(name: str, number: int, refs: Refs) -> None:
    """Refuse a new reference to a version that a reset is about to drop; call this after the reference was written.

    The reset marks the branch first and then looks for references, so at least one of the two sees the other.

    Raises:
        ConflictError: The version is about to be dropped.
    """
    branch = None if name == layout.MAIN else refs.branch(name)
    found = None if branch is None else dropped_versions(branch)
    if found is not None and number in found:
        again = Call("branches.reset", (name, f"{name}@{found.target}"))
        raise ConflictError(
            f"{name}@{number} of {refs.store.uri} is being dropped: the branch is being reset to {name}@{found.target}",
            remedy=Remedy("{} finishes that, if it was interrupted", again),
        )
