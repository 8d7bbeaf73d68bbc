"""Make the next version of a branch. Every version this package writes goes through here.

A commit is one put-if-absent of one manifest: there whole, or not at all. What makes it hard is what happens around
that one request.

Someone else was first. The manifest of that number exists and is not ours: look at what they did, and put ours after
theirs when it still means the same (`changes.conflicts`), from the state they left.

The answer was lost. A client below us may send a request again on its own and then report our own object as somebody
else's, and a failed request may have landed all the same. So neither "exists" nor an error decides anything: the
object is read back, and its bytes tell whether it is the one this attempt wrote. If it is not, it is looked at as any
version that landed meanwhile, and the uuid of its transaction tells whether another attempt or process made it of the
same one. A retry keeps the uuid, so a transaction lands exactly once, in this process or in a later one.

Nothing can be learnt. Then that is what is said (`CommitStateUnknownError`, with the uuid to resume by), and nothing
is deleted: the files may belong to a version that exists.

A writer that keeps losing gives up by the clock, not by a count of attempts, since the winner of a race tends to win
again.
"""

import importlib.metadata
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lance_dagster.errors import CommitConflictError, CommitStateUnknownError, StoreError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.codec import encode_manifest_file, encode_transaction
from lance_dagster.format.model import Manifest, WriterVersion
from lance_dagster.format.transaction import COMMITTER, Clone, Restore, Transaction
from lance_dagster.history.rebase import rebased
from lance_dagster.history.refs.branch_fence import BranchFence
from lance_dagster.history.refs.protection import refuse_direct_commit
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.apply import apply
from lance_dagster.transactions.conflicts import RowChange, Verdict, judge
from lance_dagster.transactions.identity import commit_id

WRITER = WriterVersion(library="lance_dagster", version=importlib.metadata.version("lance_dagster"))
COMMITTER_VARIABLE = "LANCE_DAGSTER_COMMITTER"
"""The environment variable that says who commits, where the properties of a commit do not."""
_log = logging.getLogger(__name__)
_DEADLINE_SECONDS = 300.0
_UNKNOWN_ATTEMPTS = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """A transaction and the manifest it makes out of one particular head."""

    transaction: Transaction
    manifest: Manifest


Propose = Callable[[State], Proposal | State]
"""Makes the next version out of a head, or finds that the change is in already, as which version.

Called again with the newer head whenever another writer was first.
"""


def now_ns() -> int:
    """Return the time, in nanoseconds since 1970 UTC."""
    return time.time_ns()


def committer() -> str | None:
    """Return who commits, as far as the environment says."""
    return os.environ.get(COMMITTER_VARIABLE, "").strip() or None


def writer_name(writer: WriterVersion) -> str:
    """Return what stands for the committer where nobody is named: the program and its release."""
    return f"{writer.library} {writer.version}"


def commit_transaction(versions: Versions, branch: str, transaction: Transaction) -> State:
    """Commit a transaction, on top of whatever compatible versions landed since it read the table.

    Committing a transaction that already landed returns the version it made.

    Raises:
        CommitConflictError: A version that landed meanwhile contradicts it.
        CommitStateUnknownError: It may or may not have landed; commit it again to find out.
        ProtectedError: The branch takes only merges.
    """
    numbers = versions.numbers(branch)
    landed = _find(versions, branch, transaction, numbers)
    if landed is not None:
        return landed
    refuse_direct_commit(versions.store, branch, transaction)
    judged = transaction.read_version
    contested: list[RowChange] = []

    def propose(head: State) -> Proposal | State:
        nonlocal judged
        if transaction.read_version > head.number:
            raise _made_again(versions, str(head), transaction)
        for number in range(judged + 1, head.number + 1):
            found = _check(versions, branch, number, transaction)
            if isinstance(found, State):
                return found
            if found is not None:
                contested.append(found)
        judged = head.number
        ready = _rebased(versions, transaction, head, contested) if contested else transaction
        return Proposal(ready, next_manifest(versions, head, ready))

    return commit(versions, branch, propose, versions.load(branch, numbers[-1]) if numbers else None)


def _made_again(versions: Versions, theirs: str, transaction: Transaction) -> CommitConflictError:
    return CommitConflictError(
        f"cannot commit {transaction.operation_name} to {theirs} of {versions.store.uri}: it was made from "
        f"version {transaction.read_version} of a branch of that name which was deleted",
        theirs,
        # Made again from what is there it would be another change, of a branch nobody looked at.
        retryable=False,
    )


def _rebased(versions: Versions, mine: Transaction, head: State, theirs: Sequence[RowChange]) -> Transaction:
    try:
        base = versions.load(head.branch, mine.read_version)
    except VersionNotFoundError:
        ready = None
    else:
        ready = rebased(versions, mine, theirs, base=base, head=head)
    if ready is None:
        raise CommitConflictError(
            f"cannot commit {mine.operation_name} to {head.branch} of {versions.store.uri}: "
            "others changed the same rows meanwhile",
            str(head),
            retryable=True,
        )
    return ready


def next_manifest(versions: Versions, head: State, transaction: Transaction) -> Manifest:
    """Apply a transaction to a head, as this program, now."""
    restored = None
    if isinstance(transaction.operation, Restore):
        restored = versions.load(head.branch, transaction.operation.version).manifest
    return apply(head.manifest, transaction, timestamp=now_ns(), writer=WRITER, restored=restored)


def commit(versions: Versions, branch: str, propose: Propose, head: State | None = None) -> State:
    """Make what `propose` returns the next version of a branch.

    Args:
        versions: The versions of the table.
        branch: The branch.
        propose: What makes the next version out of the newest one.
        head: The newest version, when the caller read it just before.

    Raises:
        CommitConflictError: Other writers were first until the deadline passed.
        CommitStateUnknownError: The version may or may not have landed.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    pause = _FIRST_PAUSE
    guard, branch_id = BranchFence(Refs(versions.store), branch), None
    head = head or versions.head(branch)
    while True:
        proposal = propose(head)
        if isinstance(proposal, State):
            return proposal
        branch_id = guard.before(head, branch_id)
        landed = _put(versions, branch, proposal, (guard, branch_id))
        if landed is not None:
            return landed
        if time.monotonic() > deadline:
            raise CommitConflictError(f"cannot commit to {branch} of {versions.store.uri}", str(head), retryable=True)
        time.sleep(random.uniform(0, pause))  # noqa: S311  # keeps writers apart, hides nothing
        pause = min(2 * pause, _LONGEST_PAUSE)
        head = versions.head(branch)


def create_first(versions: Versions, proposal: Proposal, branch: str = layout.MAIN) -> State | None:
    """Write the first version of a branch, or return None when it has one already."""
    return _put(versions, branch, proposal)


def _put(
    versions: Versions, branch: str, proposal: Proposal, guarded: tuple[BranchFence, str | None] | None = None
) -> State | None:
    """Write the proposed version; None when the number is taken by somebody else."""
    store, line = versions.store, layout.line_root(branch)
    transaction, number = _signed(proposal.transaction), proposal.manifest.version
    path = versions.manifest_path(branch, number)
    data = encode_manifest_file(proposal.manifest, transaction)
    # Other writers look for the file when they rebase, so it has to be there before the version is. The manifest holds
    # the same, and is what lasts.
    body = encode_transaction(transaction)
    store.put(layout.join(line, layout.TRANSACTIONS, transaction.file_name), body, lasting=False)
    store.sync_folder(layout.DATA)
    if not _put_manifest(versions, path, data, transaction):
        return None
    put = State(branch, proposal.manifest, transaction, id=commit_id(data))
    if guarded is not None:
        guard, branch_id = guarded
        guard.after(branch_id, put, transaction, path)
    if not store.ordered_listing:
        _hint(versions, line, number)
    return put


def _signed(transaction: Transaction) -> Transaction:
    """Put down who commits: what the transaction says, else the environment; else the program stands for them."""
    who = committer()
    if who is None or COMMITTER in transaction.properties:
        return transaction
    return replace(transaction, properties={**transaction.properties, COMMITTER: who})


def _hint(versions: Versions, line: str, number: int) -> None:
    """Write down the newest version, from which other writers look upwards where listings are unordered."""
    try:
        versions.store.put(layout.join(line, layout.HINT), b'{"version":%d}' % number, lasting=False)
    except StoreError as error:
        # The version is committed; reporting a failure now would make the caller commit it again.
        _log.warning("cannot write the version hint of %s: %s", versions.store.uri, error)


def _put_manifest(versions: Versions, path: str, data: bytes, transaction: Transaction) -> bool:
    """Write a manifest, or find out whose the one is that is there; False when it is not ours."""
    store = versions.store
    problem: StoreError | None = None
    for _ in range(_UNKNOWN_ATTEMPTS):
        try:
            if store.put_if_absent(path, data):
                return True
        except StoreError as error:
            problem = error
        try:
            found = store.get(path)
        except StoreError as error:
            problem = error
            found = None
        if found is not None:
            return found == data
        time.sleep(_FIRST_PAUSE)
    raise CommitStateUnknownError(
        f"cannot tell whether {store.uri}/{path} was committed: {problem}", transaction.uuid, transaction
    ) from problem


def _find(versions: Versions, branch: str, transaction: Transaction, numbers: Sequence[int]) -> State | None:
    """Look for a transaction among the versions committed since it read the table."""
    for number in reversed(numbers):
        if number <= transaction.read_version:
            return None
        state = versions.load(branch, number)
        if state.transaction is not None and state.transaction.uuid == transaction.uuid:
            return _counted(versions, state, transaction)
    return None


def _counted(versions: Versions, state: State, transaction: Transaction) -> State:
    """Return a version that a transaction made, unless its branch is gone and another one has the name.

    Raises:
        CommitConflictError: It lies below where the branch begins that has the name.
    """
    if state.number < _first(versions, state.branch):
        raise _made_again(versions, str(state), transaction)
    return state


def _first(versions: Versions, branch: str) -> int:
    found = None if branch == layout.MAIN else Refs(versions.store).branch(branch)
    return 0 if found is None else found.first


def _check(versions: Versions, branch: str, number: int, mine: Transaction) -> State | RowChange | None:
    """Look at a version committed meanwhile.

    Returns:
        The version when it is this transaction; what it did when both took rows out of the same fragments.

    Raises:
        CommitConflictError: It contradicts the transaction.
    """
    try:
        state = versions.load(branch, number)
    except VersionNotFoundError:
        # Committed and cleaned up since we read the table: what it did cannot be looked up any more.
        theirs, who = None, "somebody"
        if mine.read_version < _first(versions, branch):
            raise _made_again(versions, f"{branch}@{number}", mine) from None
    else:
        theirs = state.transaction
        who = (theirs.properties.get(COMMITTER) if theirs else None) or state.writer
        if theirs is not None and theirs.uuid == mine.uuid:
            # Another process commits the same transaction, and was faster.
            return _counted(versions, state, mine)
        if theirs is not None and isinstance(theirs.operation, Clone) and branch != layout.MAIN:
            raise _made_again(versions, str(state), mine)
    verdict = Verdict.RETRYABLE if theirs is None else judge(mine, theirs)
    if verdict is Verdict.COMPATIBLE:
        return None
    if verdict is Verdict.REBASE and theirs is not None and isinstance(theirs.operation, RowChange):
        return theirs.operation
    did = theirs.operation_name if theirs else "a change of unknown kind"
    raise CommitConflictError(
        f"cannot commit {mine.operation_name} to {branch} of {versions.store.uri}: "
        f"{who} committed {did} as {branch}@{number} meanwhile",
        f"{branch}@{number}",
        verdict is Verdict.RETRYABLE,
    )
