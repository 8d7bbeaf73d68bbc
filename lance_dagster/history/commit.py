"""Make the next version of a branch. Every version this package writes goes through here.

A commit is one put-if-absent of one manifest, so a version is there whole or not at all. The difficulty is everything
around that one request.

Order of steps, and what a crash between two of them leaves:

1. Data files and deletion files are in the store before `commit` is called. A crash leaves files that no version
   names; garbage collection removes them after the grace period.
2. The manifest is put if absent. This request is the commit. The manifest holds the transaction too: other writers,
   pylance among them, read it there when they rebase over the version, so no transaction file is written. On local disk
   its content, the names in `data/` and small data files are synced together before: a power cut must not keep a
   manifest whose data files it loses. The name of the manifest is synced after the turn of the writer is over, and
   before the commit is acknowledged.
3. The branch fence is checked again, for branches other than `main` (`refs.branch_fence` says why).
4. The version hint is written, only where listings are unordered. It is a hint: a crash before it costs other writers
   a longer search, so a failure is logged and not raised.

Races:

- Another writer was first: another manifest of that number exists. Each version that landed since the transaction read
  the table is classified against it (`transactions.conflicts`). When all are compatible, the change is applied again on
  the new head; when both removed rows of one fragment, its deletion vectors are rebased (`history.rebase`); otherwise
  the commit fails and names the version it conflicts with.
- The answer was lost: an HTTP client may retry a request by itself and then take the object that its first attempt put
  for another writer's, and a request that failed may have landed. So neither "exists" nor an error decides anything.
  The object is read back: if it has the bytes that were put, the commit succeeded. Otherwise it is classified like any
  other version, and the uuid of its transaction tells whether another attempt or process committed the same
  transaction. A retry keeps the uuid, so a transaction lands exactly once, in this process or in a later process.
- Nothing can be learnt, since the store does not answer: `CommitStateUnknownError` carries the transaction to resume
  with. Nothing is deleted, as the files may belong to a version that exists.

A writer that keeps losing gives up by the clock, not by a count of attempts: the winner of a race has the head at hand
and tends to win again, so a fixed number of attempts would fail early on a busy table. For the same reason writers of
one machine take turns (`Store.turn`), and of the writers of several machines those that lost more often pause less.
Both only save time: correctness does not depend on them, and two writers may get a turn at once. On local disk, an
append looks for the newest version only when it has its turn: a version that was found earlier is seldom still the
newest, and a listing of many versions takes longer than the rest of a commit. While a writer of another change waits
for its turn, it reads the versions that have landed so far, by their numbers, so that few are left to read in its turn.

Most commits of a busy table are appends, and an append is compatible with any number of them. The newest version alone
shows that nothing else landed (`transactions.conflicts.appended_since`), so that an append reads one version instead of
each. If it does not, such as after a deletion, each version is classified as for any other change.

On object storage each request takes tens of milliseconds, so requests that do not depend on each other are made at the
same time. A transaction that is new cannot have landed, so the protection is read while the newest version is listed.
The fence is not part of that, since it has to be read after the head. Of the versions that landed meanwhile each is
read once, all at the same time. After a lost race the newest version is listed again, while the winner is read: others
may have landed on top of it. A writer that waited for its turn on `main` does not list: it is handed the manifest that
was just put.
"""

import getpass
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial

from lance_dagster.__about__ import __version__
from lance_dagster.datafiles import SMALL_FILE_BYTES
from lance_dagster.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ConditionalPutUnsupportedError,
    LanceDagsterError,
    NotDurableError,
    PermissionRefusedError,
    StoreError,
    VersionNotFoundError,
)
from lance_dagster.format import layout
from lance_dagster.format.codec import commit_id, encode_manifest_file, encode_transaction, encoded
from lance_dagster.format.model import Manifest, WriterVersion
from lance_dagster.format.transaction import COMMITTER, Append, Restore, Transaction, Update
from lance_dagster.history.ancestry import VersionRef
from lance_dagster.history.rebase import Landed
from lance_dagster.history.refs.branch_fence import BranchFence
from lance_dagster.history.refs.protection import refuse_direct_commit
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import together
from lance_dagster.store.interface import Turn
from lance_dagster.store.retries import repeated
from lance_dagster.transactions.apply import apply

WRITER = WriterVersion(library="lance_dagster", version=__version__)
COMMITTER_VARIABLE = "LANCE_DAGSTER_COMMITTER"
"""The environment variable that names the committer where the properties of a transaction do not.

Set to an empty value, it says that nobody is to be named. Unset, the user of the operating system is the committer.
"""
_log = logging.getLogger(__name__)
_DEADLINE_SECONDS = 300.0
# How often the manifest is put and read back before its state counts as unknown.
_UNKNOWN_ATTEMPTS = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
# The first pause after a lost race is at most this many times the duration of the attempt, or `_FIRST_PAUSE`.
_ROUNDS = 2
# A change that takes longer to apply is not applied while other writers wait.
_QUICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Proposal:
    """A transaction, and the manifest that results from applying it to one particular head."""

    transaction: Transaction
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class _Put:
    """A version that was put, its transaction as it was committed, and the bytes of its manifest."""

    state: State
    transaction: Transaction
    data: bytes


Propose = Callable[[State], Proposal | State]
"""Proposes the next version for a head, or returns the version that has the change already.

It is called again with the newer head whenever another writer was first.
"""


def committer() -> str | None:
    """Return who commits: whom the environment names, else the user of the operating system; None for nobody."""
    named = os.environ.get(COMMITTER_VARIABLE)
    if named is not None:
        return named.strip() or None
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run under a uid that has no account: KeyError up to Python 3.12, OSError from 3.13 on. A
        # system without a user database has no `pwd` to import.
        return None
    # The name may come from the environment, where any bytes can stand; what cannot be encoded must not fail a commit.
    return user if user.isprintable() else None


def writer_name(writer: WriterVersion) -> str:
    """Return what stands for the committer where nobody is named: the program and its release."""
    return f"{writer.library} {writer.version}"


def now_ns() -> int:
    """Return the time, in nanoseconds since 1970 UTC."""
    return time.time_ns()


def commit_transaction(
    versions: Versions,
    branch: str,
    transaction: Transaction,
    base: State | None = None,
    *,
    check: Callable[[], object] = object,
    by_name: bool = False,
) -> State:
    """Commit a transaction on top of the compatible versions that landed since it read the table.

    The call is idempotent: committing a transaction that landed already returns the version it made.

    Args:
        versions: The versions of the table.
        branch: The name of the branch.
        transaction: What to commit.
        base: The version that the transaction read, for a transaction that is committed for the first time: it is not
            looked for among the versions that landed.
        check: Called before the commit, unless the transaction landed before: its files may be collected since.
        by_name: Whether columns that changed since `base` conflict, as with rows that were given for the head's names.

    Raises:
        CommitConflictError: A version that landed meanwhile conflicts with the transaction.
        CommitStateUnknownError: The transaction may or may not have landed; commit it again to find out.
        ProtectedError: The branch is protected and takes only merges.
    """
    transaction = _with_committer(transaction)
    landed = Landed(versions, branch, transaction, base, by_name=by_name)
    # Where the newest version is looked for in the turn of the writer, it would be looked for twice.
    late = base is not None and landed.looks_in_turn
    recent = base is not None and versions.seen.is_recent_tip(base)
    look = list[int] if late or recent else partial(versions.newest_few, branch)
    # In a retry this runs after the search for the landed transaction: it must succeed though the branch is protected.
    refuse = partial(refuse_direct_commit, versions.store, branch, transaction)
    if base is not None:
        newest, _ = together(versions.store, look, partial(together, versions.store, refuse, check))
    else:
        newest = look()
        state = landed.find(newest)
        if state is not None:
            return state
        refuse()
        check()

    def propose(head: State) -> Proposal | State:
        state = landed.catch_up(head)
        if state is not None:
            return state
        ready = landed.rebased(head)
        return Proposal(ready, next_manifest(versions, head, ready))

    # A number is never given again, not even to a branch that takes the name of a deleted branch, so `base` is the
    # head.
    head = base if base is not None and (late or recent or newest[:1] == [base.number]) else None
    head = head or _head(versions, branch, transaction.read_version, newest, needs_between=not landed.compares_states)
    return commit(versions, branch, propose, head, landed=landed)


def next_manifest(versions: Versions, head: State, transaction: Transaction) -> Manifest:
    """Return the manifest that applying a transaction to a head makes, with this writer and the present time."""
    restored = None
    if isinstance(transaction.operation, Restore):
        restored = versions.load(head.branch, transaction.operation.version).manifest
    return apply(head.manifest, transaction, timestamp=now_ns(), writer=WRITER, restored=restored)


def commit(
    versions: Versions,
    branch: str,
    propose: Propose,
    head: State | None = None,
    *,
    landed: Landed | None = None,
) -> State:
    """Commit what `propose` returns as the next version of a branch; propose again while other writers are first.

    Args:
        versions: The versions of the table.
        branch: The name of the branch.
        propose: Proposes the next version for the newest one.
        head: The newest version, if the caller has just read it; with `landed.looks_in_turn`, any version it has read.
        landed: What landed since the transaction read the table, where `propose` looks at that.

    Raises:
        CommitConflictError: Other writers were first until the deadline passed, or the branch was deleted meanwhile.
        CommitStateUnknownError: The version may or may not have landed.
    """
    started = time.monotonic()
    # `main` is never deleted, and nothing else can take its name.
    fence = None if branch == layout.MAIN else BranchFence(Refs(versions.store), branch)
    late = landed is not None and landed.base is not None and landed.looks_in_turn
    branch_id, attempts, known_number, newest = "", 0, 0, list[int]()
    with closing(_Queued(versions, branch, propose, landed)) as queued:
        while True:
            head = head or _head(versions, branch, known_number, newest, needs_between=queued.needs_between)
            head, proposal = queued.proposed(head, late=late)
            if isinstance(proposal, State):
                return proposal
            # After the head was read and before the put: whoever deletes the branch relies on this order.
            recent = head.of if not attempts and versions.seen.is_recent_tip(head) else None
            branch_id = fence.check_before_put(head, branch_id, recent) if fence else ""
            put = _put(versions, branch, proposal, pause=partial(_pause, attempts + 1, queued.since))
            if isinstance(put, _Put):
                break
            if time.monotonic() - started > _DEADLINE_SECONDS:
                problem = f"cannot commit to {branch} of {versions.store.uri}"
                raise CommitConflictError(problem, str(head), retryable=True)
            attempts, late = attempts + 1, False
            # The version of another writer has the number that was lost.
            known_number, newest = proposal.manifest.version, put
            if not newest:
                _pause(attempts, queued.since)
            head = None
        queued.close(put.state.number, put.data)
    version = put.state.after(head)
    _finish(versions, version, put.transaction, fence=fence, branch_id=branch_id)
    # The fence has compared the branch of the head with the branch that the version is on.
    versions.committed_to(head.of, version)
    return version


@dataclass(slots=True)
class _Queued:
    """A change that waits for its turn to be committed, and has it until it is committed or takes long.

    As much as possible is done before and after the turn, since other writers wait for as long as it takes. A writer
    that is overtaken in its turn by another machine keeps it: otherwise it would have to wait for all others again.
    `since` is when the attempt or the turn began, by the monotonic clock.
    """

    versions: Versions
    branch: str
    propose: Propose
    landed: Landed | None
    since: float = 0.0
    _turns: ExitStack = field(default_factory=ExitStack)
    _turn: Turn | None = None

    @property
    def needs_between(self) -> bool:
        """Whether the versions between a head and a newer version are needed too."""
        return self.landed is None or not self.landed.compares_states

    def proposed(self, head: State, *, late: bool) -> tuple[State, Proposal | State]:
        """Propose the version after a head, and wait for this writer's turn to put it.

        Args:
            head: The newest version when it was last read.
            late: Whether to make the proposal only when the turn has come.

        Returns:
            The newest version, and the proposal to put after it or the version that contains the change already.
        """
        self.since = time.monotonic()
        proposal = None if late else self.propose(head)
        if isinstance(proposal, State):
            return head, proposal
        if proposal is not None and time.monotonic() - self.since >= _QUICK_SECONDS:
            # A merge may compute for long, and others are not to wait for that: it takes its chance without a turn.
            self.close()
        elif proposal is None or self._turn is None:
            self._turn = self._turns.enter_context(self.versions.store.turn(self.branch, self._look_ahead))
            self.since = time.monotonic()
            if proposal is None or self._turn.waited:
                # Others were ahead, so there is a newer head.
                head = self._newer(head, self._turn)
                return head, self.propose(head)
        return head, proposal

    def _newer(self, head: State, turn: Turn) -> State:
        """Read the newest version again, from the manifest that the last writer left; `head` if nothing landed."""
        versions, branch, expected = self.versions, self.branch, turn.newest
        look, newest = partial(versions.newest_few, branch), [expected]
        if expected <= head.number or branch != layout.MAIN:
            newest = look()
        elif turn.manifest is not None:
            # Only versions of `main` are kept by their numbers. If there is a newer version, the put finds it.
            versions.read(branch, expected, turn.manifest)
        else:
            # It is read while the newest version is looked for.
            ahead = partial(versions.store.get, versions.manifest_path(branch, expected))
            newest, data = together(versions.store, look, ahead)
            if data is not None and newest[:1] == [expected]:
                versions.read(branch, expected, data)
        # A number is never given again.
        return (
            head
            if newest[:1] == [head.number]
            else _head(versions, branch, head.number, newest, needs_between=self.needs_between)
        )

    def _look_ahead(self) -> None:
        """Look at the versions that landed meanwhile, so that few are left to look at when the turn has come."""
        if self.landed is not None:
            self.landed.look_ahead()
        else:
            self.propose(_head(self.versions, self.branch, 0))

    def close(self, newest: int = 0, manifest: bytes = b"") -> None:
        """End the turn; `newest` is the version that was committed in it, with its manifest."""
        if self._turn is not None and newest:
            self._turn.newest, self._turn.manifest = newest, manifest
        self._turns.close()
        self._turn = None


def _finish(
    versions: Versions, put: State, transaction: Transaction, *, fence: BranchFence | None, branch_id: str
) -> None:
    """Do what a version needs after its manifest was put, and before the commit is acknowledged; errors as `commit`."""
    versions.committed(put)
    folder = layout.versions_folder(put.branch)
    _sync(versions, folder, put, transaction)
    if fence is not None:
        fence.check_after_put(branch_id, put, transaction, versions.manifest_path(put.branch, put.number))
    write_hint(versions, folder, put.number)


def _pause(attempts: int, since: float) -> None:
    """Wait after a lost race: a random time, shorter for writers who lost more often.

    A winner comes back with its next change as a newcomer, and waits longest when it loses. With pauses that grow, as
    is usual where a server is overloaded, it would win again and again, since all other writers sleep.
    """
    longest = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, _ROUNDS * (time.monotonic() - since)))
    time.sleep(random.uniform(0, longest / attempts))  # noqa: S311  # no secret depends on it


def _head(
    versions: Versions,
    branch: str,
    known_number: int,
    newest: Sequence[int] | None = None,
    *,
    needs_between: bool = True,
) -> State:
    """Read the newest version of a branch.

    Versions after a known one that a lagging listing does not show are looked for by name; `known_number` is 0 where
    there is none. `newest` are the newest numbers, where they were just listed. With `needs_between`, the versions in
    between are needed too.
    """
    newest = newest or (versions.newest_few(branch) if known_number else ())
    if known_number and needs_between and newest:
        versions.read_ahead(branch, known_number, newest[0])
    try:
        head = versions.head(branch, newest=newest)
    except VersionNotFoundError:
        if not known_number:
            raise
        head = None
    if head is not None and head.number >= known_number:
        return head
    # A version that is known and gone was on another branch of the name, or was cleaned up.
    later = versions.find(branch, known_number)
    if later is None:
        return head or versions.head(branch)
    while (following := versions.find(branch, later.number + 1)) is not None:
        later = following
    return later


def create_first(versions: Versions, proposal: Proposal, branch: str = layout.MAIN) -> State | None:
    """Write the first version of a branch, or return None when that number exists already.

    There is no fence to check: the branch's own file says that it is being created.
    """
    put = _put(versions, branch, proposal)
    if not isinstance(put, _Put):
        return None
    folder = layout.versions_folder(branch)
    _sync(versions, folder, put.state, put.transaction)
    write_hint(versions, folder, put.state.number)
    return put.state


def _put(
    versions: Versions, branch: str, proposal: Proposal, *, pause: Callable[[], object] = object
) -> _Put | list[int]:
    """Put the manifest of the proposed version, with its transaction in it; return the version.

    When another writer took the number, return the newest versions, which is empty where they were not listed.
    """
    transaction, proposed = _with_committer(proposal.transaction), proposal.manifest
    path = versions.manifest_path(branch, proposed.version)
    uri = f"{versions.store.uri}/{path}"
    # Held as they will be read: the next commits of this process do not encode all fragments again.
    manifest = replace(proposed, fragments=encoded(proposed.fragments, uri))
    data = encode_manifest_file(manifest, encode_transaction(transaction))
    place = VersionRef(branch, proposed.version)
    winner = _put_manifest(versions, place, data, transaction, path=path, pause=pause)
    if winner is not None:
        # The change goes on top of it next.
        versions.read(branch, place.number, winner[0])
        return winner[1]
    put = State(branch, manifest, transaction, uri, commit_id(data), len(data))
    versions.cached.put_file(put.id, data)
    return _Put(put, transaction, data)


def _sync(versions: Versions, folder: str, put: State, transaction: Transaction) -> None:
    """Make the name of a manifest in a folder survive a power cut, and with it the names of all versions before.

    Outside of the turn: the next writer may put its version on top, and its own sync covers this name too.

    Raises:
        CommitStateUnknownError: The name may be lost by a power cut.
    """

    def may_be_repeated(error: LanceDagsterError) -> bool:
        # After a sync that failed, a second sync that succeeds proves nothing, and neither does reading it back.
        return isinstance(error, StoreError) and not isinstance(error, NotDurableError)

    try:
        repeated(lambda: versions.store.sync_folder(folder), may_be_repeated, times=_UNKNOWN_ATTEMPTS)
    except StoreError as problem:
        text = f"cannot tell whether the commit of {put} survives a power cut: {problem}"
        raise CommitStateUnknownError(text, transaction.uuid, transaction) from problem


def _with_committer(transaction: Transaction) -> Transaction:
    """Add the committer that the environment names, unless the transaction names one."""
    # Asked once for each commit and not for each of its steps: the user is looked up in a file.
    who = None if COMMITTER in transaction.properties else committer()
    return transaction if who is None else replace(transaction, properties={**transaction.properties, COMMITTER: who})


def write_hint(versions: Versions, folder: str, number: int) -> None:
    """Write the version hint: pylance starts there to look for newer versions where listings are unordered."""
    if versions.store.ordered_listing:
        return
    # Last: a hint must never name a version that is not there. Of two writers the slower one may leave an older number.
    try:
        versions.store.put_hint(f"{folder}/{layout.HINT_NAME}", b'{"version":%d}' % number)
    except StoreError as error:
        # The version is committed: an error here would make the caller commit the same change again.
        _log.warning("cannot write the version hint of %s: %s", versions.store.uri, error)


def _put_manifest(
    versions: Versions,
    place: VersionRef,
    data: bytes,
    transaction: Transaction,
    *,
    path: str,
    pause: Callable[[], object],
) -> tuple[bytes, list[int]] | None:
    """Put a manifest if absent; when there is one of that number, return it and the newest versions where listed.

    `pause` waits after a lost race on object storage.

    Raises:
        CommitStateUnknownError: The store neither confirms the put nor lets the object be read back.
        ConditionalPutUnsupportedError: The store cannot put an object only where there is none.
        PermissionRefusedError: The credentials may not write there.
        NotDurableError: A data file could not be synced, and the manifest was not put.
    """
    store = versions.store
    # A durable manifest must not name files that a power cut removes: pylance syncs neither data files nor their names.
    after = [layout.DATA, *_unsynced_files(transaction)]
    problem: StoreError | None = None
    for _ in range(_UNKNOWN_ATTEMPTS):
        exists, stored, newest = False, None, list[int]()
        try:
            # Its name is synced when the turn is over.
            if store.put_if_absent(path, data, synced=False, after=after):
                return None
            exists = True
        except (ConditionalPutUnsupportedError, PermissionRefusedError, NotDurableError):
            # Such a request changes nothing; an earlier request may have landed without an answer.
            if problem is None:
                raise
        except StoreError as error:
            # The request may have landed all the same; only the stored object tells.
            problem = error
        try:
            stored, newest = _read_back(versions, place, pause if exists else None)
        except StoreError as error:
            problem = error
        if stored is not None:
            # Equal bytes are this attempt's: a manifest holds its own timestamp and the transaction's uuid.
            return None if stored == data else (stored, newest)
        # Absent so far: a request that is still under way may land later, so the same bytes are put again.
        time.sleep(_FIRST_PAUSE)
    raise CommitStateUnknownError(
        f"cannot tell whether {store.uri}/{path} was committed: {problem}", transaction.uuid, transaction
    ) from problem


def _read_back(
    versions: Versions, place: VersionRef, pause: Callable[[], object] | None
) -> tuple[bytes | None, list[int]]:
    """Read the manifest that is stored under a number.

    After a lost race on object storage, wait first, and list the newest versions too: the next attempt needs both.
    """
    get = partial(versions.store.get, versions.manifest_path(place.branch, place.number))
    if pause is None or not versions.store.ordered_listing:
        return get(), []
    pause()
    look = partial(versions.newest_few, place.branch)
    if place.branch != layout.MAIN:
        # Only versions of `main` are kept by their numbers.
        return together(versions.store, get, look)
    # The next number is read before it is known to be there. On a busy branch it mostly is, and that saves a wait.
    following = partial(versions.store.get, versions.manifest_path(place.branch, place.number + 1))
    (data, ahead), newest = together(versions.store, partial(together, versions.store, get, following), look)
    if ahead is not None:
        versions.read(place.branch, place.number + 1, ahead)
    return data, newest


def _unsynced_files(transaction: Transaction) -> list[str]:
    """Return the paths of the data files that may not be synced yet: small files of an append (`edit.write`)."""
    match transaction.operation:
        case Append(fragments=added) | Update(new_fragments=added):
            files = (file for fragment in added for file in fragment.files)
            return [f"{layout.DATA}/{file.path}" for file in files if file.size <= SMALL_FILE_BYTES]
    return []
