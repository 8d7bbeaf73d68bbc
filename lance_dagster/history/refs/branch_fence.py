"""Keep a commit off a branch that is not the one it was meant for.

A branch can be deleted and its name given to another one, while somebody is about to put the next manifest of the
first. A manifest's key says the branch's name and a number, and nothing about which branch of that name is meant. So:

- Whoever deletes a branch marks it first, and then looks how far its numbers go. A writer looks for the mark between
  reading the head and putting the next manifest. So after that look, no writer puts a number that is higher by more
  than one: it would have had to read the head before the mark, and the number it reads then is counted.
- The next branch of the same name begins above all of these. What a late writer puts lies below where it begins: no
  version of it, and no key that it will ever use.
- The writer looks again after the put. The branch it read is there, perhaps with the mark that can be taken back: so
  its version is on it, and what becomes of the branch becomes of the version.
- The branch is gone, or about to be. The manifest is still there: it was put after the folder was emptied, when nobody
  could find it any more, so the writer takes it away and says that it failed. It is not there: it may have been on the
  branch before, and somebody may have merged or renamed the branch then. Nobody knows, and that is what is said.
- A transaction that was staged on the old branch and is committed to the new one would have to be judged against
  versions that are not there, and against one that begins a branch: a conflict (`history.commit`).

What a branch that another program deleted had is not known, so only the two looks protect there.
"""

from dataclasses import dataclass

from lance_dagster.errors import CommitConflictError, CommitStateUnknownError, StoreError
from lance_dagster.format import layout
from lance_dagster.format.transaction import Transaction
from lance_dagster.history.refs.ref_files import CLOSING, CREATING, READY, RENAMED_FROM, RENAMING_TO, Branch
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State
from lance_dagster.transactions.identity import commit_id


@dataclass(frozen=True, slots=True)
class BranchFence:
    """The two looks at a branch, before and after a manifest is put. There is nothing to look at for `main`."""

    refs: Refs
    name: str

    def before(self, head: State, seen: str | None = None) -> str | None:
        """Return the id of the branch, once its head was read and before the next version is put.

        Args:
            head: What was read.
            seen: The id the branch had at an earlier attempt of the same commit.

        Raises:
            RefNotFoundError: There is no such branch, or it is being deleted.
            CommitConflictError: What was read belongs to a branch that had the name before; or it is being renamed.
        """
        if self.name == layout.MAIN:
            return None
        branch = self.refs.branch(self.name)
        if branch is None or not _takes_commits(branch):
            raise self.refs.branch_not_found(self.name)
        if head.number < branch.first or seen not in (None, branch.id):
            raise self._gone(head)
        target = self._renamed_to(branch)
        if target is not None:
            raise CommitConflictError(
                f"cannot commit to {self.name} of {self.refs.store.uri}: it is being renamed to {target}",
                str(head),
                retryable=False,
            )
        return branch.id

    def after(self, branch_id: str | None, put: State, transaction: Transaction, path: str) -> None:
        """Look whether a version that was put is one of the branch it was meant for.

        Raises:
            CommitConflictError: It never was; it was taken away.
            CommitStateUnknownError: The branch is being renamed, or gone: what it was renamed to or merged into may
                hold the version. Or nothing can be learnt.
        """
        if branch_id is None:
            return
        try:
            doubt = self._doubt(branch_id, put, path)
        except StoreError as error:
            message = f"cannot tell whether {self.name} of {self.refs.store.uri} is what {put} was made for: {error}"
            raise CommitStateUnknownError(message, transaction.uuid, transaction) from error
        if doubt is not None:
            message = f"{self.name} of {self.refs.store.uri} was being {doubt} while {put} was committed"
            raise CommitStateUnknownError(message, transaction.uuid, transaction)

    def _doubt(self, branch_id: str, put: State, path: str) -> str | None:
        """Say why it is not known whether a version stays; None when it does.

        Raises:
            CommitConflictError: It does not.
        """
        branch = self.refs.branch(self.name)
        if branch is not None and branch.id == branch_id:
            target = self._renamed_to(branch)
            if target is not None:
                return f"renamed to {target}"
            # At the end of a renaming the mark stands for versions that were taken along, and others that were not.
            closing = branch.state == CLOSING and RENAMING_TO not in branch.metadata
            return None if closing or _takes_commits(branch) else "deleted"
        if branch is None or branch.first > put.number:
            found = self.refs.store.get(path)
            if found is not None and commit_id(found) == put.id:
                # Below where the branch of that name begins, so it is nobody's version.
                self.refs.store.delete(path)
                raise self._gone(put)
        return "deleted"

    def _renamed_to(self, branch: Branch) -> str | None:
        """Return the name a branch is about to get; None when it is not, or when that was given up."""
        name = branch.metadata.get(RENAMING_TO)
        target = self.refs.branch(name) if name else None
        return name if target is not None and target.metadata.get(RENAMED_FROM) == branch.name else None

    def _gone(self, state: State) -> CommitConflictError:
        return CommitConflictError(
            f"cannot commit to {self.name} of {self.refs.store.uri}: the branch was deleted meanwhile",
            str(state),
            retryable=False,
        )


def _takes_commits(branch: Branch) -> bool:
    """Tell whether a branch is there to stay: one that is being made is, once it has a version to commit upon."""
    return branch.state == READY or (branch.state == CREATING and RENAMED_FROM not in branch.metadata)
