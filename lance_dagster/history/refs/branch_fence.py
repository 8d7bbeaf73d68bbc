"""The branch fence: keep a late commit to a deleted branch out of the next branch of that name.

A branch can be deleted, and its name given to a new branch, while a writer is about to put the next manifest of the old
branch. The key of a manifest holds the name of the branch and a number, and nothing that tells the old branch from the
new branch. There is no lock; the rules below keep the late manifest out of the new branch. In the example, `run/7` has
the versions 1 to 5. A writer has read version 5 and is about to put manifest 6, when `run/7` is deleted and created
again.

- A deletion marks the branch and then lists its versions. A writer reads the head, then looks for the mark, then puts
  the next manifest. A writer that saw no mark read the head before the deletion listed the versions, so it puts at most
  the number after the newest listed version: 6.
- The deletion records the newest listed number in a fence file: 5 (`refs.branch_deletion`). The next branch of the name
  begins at least two above the fence, and at least two above `main`, since a sync of the old branch may be about to put
  the number after the version of `main` that it merges. Where `main` has 4 versions, it begins at 7. So manifest 6 lies
  below the first version of the new `run/7`. It is no version of the new branch, and the new branch never uses its key.
- After the put, the writer reads the branch again:

  - The old branch is there: version 6 is on it.
  - The old branch is marked "closing", and a deletion can take this mark back. The writer waits until the mark or the
    branch is gone, because the deletion may have listed the versions before manifest 6 was put. A mark that stays
    belongs to a process that died; whoever continues its deletion lists the versions again, and then deletes version 6
    or keeps it with the branch.
  - The old branch is gone, and manifest 6 exists: it was put after the folder was emptied, and nobody could reach it.
    The writer deletes manifest 6 and reports a conflict.
  - The old branch is gone, and manifest 6 is gone: version 6 may have been on the branch before the deletion, and a
    merge or a rename may have taken it along. The state is unknown, and the error says so.

- The old branch may be recovered meanwhile, under the same id and with every manifest in its folder
  (`refs.branch_recovery`). So before the writer deletes manifest 6, it puts a fence file with the commit id of the
  manifest, and reads the branch once more. A recovery that takes the name afterwards finds this fence file and deletes
  manifest 6 too. If a recovery took the name before, the writer finds the recovered branch and leaves manifest 6: the
  state is unknown. Writer and recovery delete conditionally, since key 6 may hold another commit by then. Where the
  storage cannot delete conditionally, the writer always leaves the manifest.
- A recovery leaves its id in the file of the branch. A writer that finds a new recovery id after its put does not know
  whether the recovery has put another version in the place of version 6.
- A transaction that was staged on the old branch and is committed to the new branch would be classified against
  versions that do not exist, or against the fork of the new branch. `history.commit` reports a conflict.

A deletion by another program leaves no fence file. Then only the two reads of the branch, before and after the put,
protect the new branch.

A reset of a branch to an older version of its own (`refs.reset`) marks the versions that it drops; the second half
of this module keeps new tags and branches off the dropped versions.
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
"""The key of the mark of a reset. Its value "5-8 4f2a..." says that the branch goes back to version 5, that the
versions 6 to 8 are dropped, and that the random id of the reset is 4f2a..."""
WITHDRAWN = 0
"""The number in the fence file that a writer puts before it deletes its own manifest; the id in it is the commit id."""
CLOSING_SECONDS = 3.0
"""The longest time that a writer waits for a deletion to be taken back or to proceed: the deletion lists what refers to
the branch and what lies in its folder, and writes the branch's file."""
_RESET_SECONDS = 60
"""The longest time that a writer waits for a reset of the branch to end."""
# The number of failed reads of the branch after a commit before its state counts as unknown.
_LOOKS, _PAUSE_SECONDS = 4, 0.02
_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})( [0-9a-f]+)?")


@dataclass(frozen=True, slots=True)
class BranchFence:
    """The checks of a branch before and after a manifest is put; `main` is never deleted and needs none."""

    refs: Refs
    name: str

    def check_before_put(self, head: State, earlier_ids: str = "", known: Branch | None = None) -> str:
        """Return the ids of the branch and its last recovery; call this after its head was read and before the put.

        Args:
            head: The version that was read as the head.
            earlier_ids: What an earlier attempt of the same commit returned; empty at the first attempt.
            known: The branch, if it was read after this process had put the head; it is not read again then.

        Raises:
            RefNotFoundError: There is no such branch, or it is being deleted.
            CommitConflictError: The head belongs to a deleted branch of the name, or the branch is being reset or
                renamed.
        """
        branch = known or self.refs.branches.find(self.name)
        if branch is not None and branch.state != READY and RESETTING in branch.metadata:
            # The commit must not be retried automatically: it was made from the branch as it was before the reset.
            raise being_reset(branch, self.refs, in_flight=True)
        if branch is None or not _takes_commits(branch):
            raise self.refs.branch_not_found(self.name)
        # A head below the first version was put by a late writer. A second id belongs to another branch of the name.
        branch_ids = {
            _branch_id(earlier_ids) if earlier_ids else branch.id,
            branch.id if head.of is None else head.of.id,
        }
        if head.number < branch.first or branch_ids != {branch.id}:
            raise self._branch_deleted(head)
        target = self.refs.branches.renamed_to(branch)
        if target is not None:
            raise CommitConflictError(
                f"cannot commit to {self.name} of {self.refs.store.uri}: it is being renamed to {target}",
                str(head),
                retryable=False,
            )
        return _ids(branch)

    def check_after_put(self, ids_before: str, version: State, transaction: Transaction, path: str) -> None:
        """Check that a version that was put belongs to the branch that its writer read before the put.

        Args:
            ids_before: What `check_before_put` returned.
            version: The version.
            transaction: Its transaction, to resume with where the state is unknown.
            path: The path of its manifest.

        Raises:
            CommitConflictError: The version never belonged to the branch; its manifest was deleted again.
            CommitStateUnknownError: The branch is being renamed or is gone, so another branch may hold the version;
                or the store did not answer.
        """
        problem: StoreError | CorruptFileError | None = None
        failed, until = 0, time.monotonic() + CLOSING_SECONDS
        while failed < _LOOKS:
            try:
                doubt = self._reason_for_doubt(ids_before, version, path)
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
                f"cannot tell whether {version} belongs to the current {self.name} of {self.refs.store.uri}: {problem}"
            )
            raise CommitStateUnknownError(message, transaction.uuid, transaction) from problem
        if doubt is not None:
            message = f"{self.name} of {self.refs.store.uri} was being {doubt} while {version} was committed"
            raise CommitStateUnknownError(message, transaction.uuid, transaction)

    def _reason_for_doubt(self, ids_before: str, version: State, path: str) -> str | None:
        """Return why it is unknown whether the version stays, such as "renamed to x"; None when it stays.

        "closing" means that a deletion is under way and may still be taken back.

        Raises:
            CommitConflictError: The version does not stay.
        """
        branch = self.refs.branches.find(self.name)
        if branch is not None and branch.id == _branch_id(ids_before):
            if _ids(branch) != ids_before:
                return "recovered"
            target = self.refs.branches.renamed_to(branch)
            if target is not None:
                return f"renamed to {target}"
            # A deletion in state "closing" can be taken back, and then the version stays. The deletion at the end of a
            # rename is never taken back, and the rename may have copied the versions before this version was put.
            if branch.state == CLOSING and RENAMING_TO not in branch.metadata:
                return CLOSING
            return None if _takes_commits(branch) else "deleted"
        # A version below the first number of the branch that has the name was never read as a version of it.
        below = branch is None or branch.first > version.number
        if below and withdraw(version, path, branch, self.refs):
            raise self._branch_deleted(version)
        return "deleted"

    def _branch_deleted(self, state: State) -> CommitConflictError:
        return CommitConflictError(
            f"cannot commit to {self.name} of {self.refs.store.uri}: the branch was deleted meanwhile",
            str(state),
            retryable=False,
        )


def _ids(branch: Branch) -> str:
    """Return the id of a branch and the id of its last recovery."""
    return f"{branch.id} {branch.metadata.get(RECOVERED, '')}"


def _branch_id(ids: str) -> str:
    return ids.rpartition(" ")[0]


def withdraw(version: State, path: str, branch: Branch | None, refs: Refs) -> bool:
    """Delete a manifest that was put after the versions of its branch were deleted, unless a recovery may take it in.

    Args:
        version: The version.
        path: The path of its manifest.
        branch: The branch that has the name now, as it was just read, or None: another branch than the branch of the
            version, or the same branch in a state in which it takes no commits.
        refs: The branches of the table.

    Returns:
        Whether the manifest never was a version of a branch, and will not be one.
    """
    store = refs.store
    data = store.get(path)
    if data is None or commit_id(data) != version.id:
        return False
    # Once another branch has a version under the name, the old branch is not recovered any more.
    if branch is None or branch.state != READY:
        if not store.deletes_conditionally():
            return False
        mark = layout.branch_fence_file(version.branch, WITHDRAWN, int(time.time()), version.id)
        put_once(store, mark, b"")
        if refs.branches.find(version.branch) != branch:
            # A recovery took the name: without its fence file, the manifest stays for the next recovery too.
            store.delete(mark)
            return False
    # The manifest is gone by now if a recovery and a deletion came between the two reads of the branch.
    return delete_manifest(path, version.id, store)


def delete_manifest(path: str, commit: str, store: Store) -> bool:
    """Delete a manifest that holds the commit with this id; return False if it is missing or holds another commit."""
    stored = store.get_with_etag(path)
    if stored is None or commit_id(stored[0]) != commit:
        return False
    store.compare_and_delete(path, stored[1])
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
    # A branch in state "creating" takes commits once it has a version, unless a rename or a recovery creates it.
    unfinished = {RENAMED_FROM, RECOVERING} & branch.metadata.keys()
    return branch.state == READY or (branch.state == CREATING and not unfinished)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The versions of a branch that a reset drops: with `target` 5 and `newest` 8, the versions 6, 7 and 8."""

    target: int
    newest: int

    def __contains__(self, number: int) -> bool:
        """Tell whether a version is dropped."""
        return self.target < number <= self.newest

    def __str__(self) -> str:
        """Return the range as in the mark, such as "5-8"."""
        return f"{self.target}-{self.newest}"


def dropped_versions(branch: Branch) -> Dropped | None:
    """Return the versions that a reset of a branch is about to drop; None when no reset is under way."""
    match = _RANGE.fullmatch(branch.metadata.get(DROPPING, ""))
    return None if match is None else Dropped(int(match[1]), int(match[2]))


def refuse_dropped(name: str, number: int, refs: Refs) -> None:
    """Refuse a new reference to a version that a reset is about to drop; call this after the reference was written.

    The reset writes its mark and then looks for references, so the reset finds the reference, or this check the mark.

    Raises:
        ConflictError: The version is about to be dropped.
    """
    branch = None if name == layout.MAIN else refs.branches.find(name)
    dropped = None if branch is None else dropped_versions(branch)
    if dropped is not None and number in dropped:
        target = f"{name}@{dropped.target}"
        raise ConflictError(
            f"{name}@{number} of {refs.store.uri} is being dropped: the branch is being reset to {target}",
            remedy=Remedy("{} finishes that, if it was interrupted", Call("branches.reset", (name, target))),
        )
