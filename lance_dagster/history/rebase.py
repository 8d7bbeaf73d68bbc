"""What was committed since a transaction read the table; deletion vectors in the store, and their rebase.

Each version that landed meanwhile is read and classified once (`transactions.conflicts`), however often the race for
the next number is lost. Row changes whose deletion vectors overlap are rebased.

A deletion vector holds all deleted rows of a fragment, so a vector that was made from an older version would bring
back rows that were deleted since, and delete rows that a revert brought back. A change means only the rows it adds to
the vector. When no other writer touched these rows, they are added to the vector of the head. Example: the vector of
the base is {1}, the vector of the change {1, 4}, the vector of the head {1, 2}; the rebased vector is {1, 2, 4}.

Rows that both changes deleted are not a conflict, unless one of the two changes moved them: an update of a row that
another writer deleted would bring the row back, and a deletion of a row that another writer moved would miss it. Then
the change has to be made again from the head, as it has when the fragment has other data files by now.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from pyroaring import BitMap

from lance_dagster.errors import (
    BasePathRefusedError,
    CommitConflictError,
    CorruptFileError,
    InvalidInputError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lance_dagster.format import layout
from lance_dagster.format.deletions import ARROW_FILE, decode_offsets, encode_offsets
from lance_dagster.format.model import DeletionFile, Fragment
from lance_dagster.format.transaction import COMMITTER, Append, Clone, Transaction, Update
from lance_dagster.history.ancestry import VersionRef
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import Store, concurrently
from lance_dagster.transactions.base_paths import base_path_of
from lance_dagster.transactions.conflicts import (
    Compatibility,
    RowChange,
    appended_since,
    classify,
    is_plain_append,
    removed_fragments,
    same_columns,
    touched_fragments,
)

_WORKERS = 16


def deleted_offsets(versions: Versions, state: State, fragment: Fragment) -> BitMap:
    """Return the offsets of the deleted rows of a fragment; none when it has no deletion file.

    Raises:
        CorruptFileError: The deletion file is missing or damaged, or has offsets beyond the fragment.
    """
    if fragment.deletion is None:
        return BitMap()
    # The file is located once: a merge reads the vectors of thousands of fragments, each in less time than it takes to
    # find its path.
    store, key = _locate_deletion(versions, state, fragment)
    path = f"{store.uri}/{key}"
    data = store.get(key)
    if data is None:
        raise CorruptFileError(path, "it is missing")
    offsets = decode_offsets(fragment.deletion.kind, data, path, fragment.physical_rows)
    # A very old manifest does not say how many rows a fragment has.
    if offsets and 0 < fragment.physical_rows <= offsets.max():
        raise CorruptFileError(path, f"it deletes row {offsets.max()} of {fragment.physical_rows}")
    # Readers count rows with the number in the manifest, so it has to agree. Very old writers left it out.
    recorded = fragment.deletion.deleted_rows
    if recorded and recorded != len(offsets):
        raise CorruptFileError(path, f"it deletes {len(offsets)} rows, but {state} records {recorded}")
    versions.checked_files.add(path)
    return offsets


def check_deletions(versions: Versions, state: State, fragment_ids: Iterable[int] | None) -> None:
    """Decode the Arrow deletion files of fragments that were not decoded before, several at the same time.

    A damaged Arrow file can make pylance end the process. Bitmap files only make it raise an error.

    Raises:
        CorruptFileError: As for `deleted_offsets`.
    """
    fragments = state.manifest.fragments
    if not fragments.deletions:
        # This is known without decoding a fragment.
        return
    waiting: list[Fragment] = []
    for fragment in fragments if fragment_ids is None else map(fragments.find, fragment_ids):
        if fragment is not None and fragment.deletion is not None and fragment.deletion.kind == ARROW_FILE:
            store, key = _locate_deletion(versions, state, fragment)
            if f"{store.uri}/{key}" not in versions.checked_files:
                waiting.append(fragment)
    concurrently(lambda fragment: deleted_offsets(versions, state, fragment), waiting, at_once=_WORKERS)


def with_deleted(versions: Versions, state: State, fragment: Fragment, offsets: BitMap) -> Fragment:
    """Store a new deletion vector for a fragment, for the version after `state`; return the fragment with it."""
    kind, data = encode_offsets(offsets)
    deletion = DeletionFile(kind=kind, read_version=state.number, id=secrets.randbits(64), deleted_rows=len(offsets))
    changed = replace(fragment, deletion=deletion)
    store_deletion(versions, state.branch, changed, data)
    return changed


def _locate_deletion(versions: Versions, state: State, fragment: Fragment) -> tuple[Store, str]:
    """Return the store and the key of a fragment's deletion file."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    base = base_path_of(state.manifest, fragment.deletion.base_id, versions.branch_uri(state.branch))
    path = layout.deletion_path(fragment.id, fragment.deletion)
    # A base path that is not a dataset root holds the files directly, without a `_deletions/` folder.
    key = path if base.is_dataset_root else path.removeprefix(f"{layout.DELETIONS}/")
    try:
        return versions.locate(base.path, key, base.id)
    except BasePathRefusedError:
        raise
    except InvalidInputError as error:
        where = state.path or str(state)
        raise UnsupportedFeatureError(where, [f"the base path {base.path!r} ({error})"]) from error


def store_deletion(versions: Versions, branch: str, fragment: Fragment, data: bytes) -> None:
    """Write a fragment's deletion file into a branch's own folder."""
    if fragment.deletion is None:
        raise InvalidInputError(f"fragment {fragment.id} has no deletion file")
    path = layout.join(layout.branch_root(branch), layout.deletion_path(fragment.id, fragment.deletion))
    versions.store.put(path, data)


def rebased(
    versions: Versions, transaction: Transaction, landed: Sequence[RowChange], *, base: State, head: State
) -> Transaction | None:
    """Rebase a row change onto `head`; return None when it has to be made again from the head.

    Args:
        versions: Where deletion files are read and written.
        transaction: The change; its operation removes rows.
        landed: The changes that were committed in between and touch the same fragments.
        base: The version that the change was made from.
        head: The version that the change is to follow.
    """
    operation = transaction.operation
    if not isinstance(operation, RowChange):
        return transaction
    # An update moves rows to new fragments; on either side that makes the same row in both a conflict.
    moved = isinstance(operation, Update) or any(isinstance(change, Update) for change in landed)
    shared = touched_fragments(operation) & frozenset().union(*map(touched_fragments, landed))
    updated: dict[int, Fragment] = {fragment.id: fragment for fragment in operation.updated_fragments}
    removed = set(removed_fragments(operation))
    for number in sorted(shared):
        before, current = base.manifest.fragments.find(number), head.manifest.fragments.find(number)
        changed = updated.pop(number, None)
        removed.discard(number)
        if before is None or (current is None and moved) or (current is not None and current.files != before.files):
            return None
        if current is None:
            # Every row of the fragment was deleted meanwhile, the rows of this change included.
            continue
        in_base, in_head = deleted_offsets(versions, base, before), deleted_offsets(versions, head, current)
        everything = BitMap(range(before.physical_rows))
        in_change = everything if changed is None else deleted_offsets(versions, base, changed)
        # Only rows that a side deleted after the base count.
        added = in_change - in_base
        if moved and added & (in_head - in_base):
            return None
        # A fragment without live rows is removed, as a deletion of all its rows does at once.
        union = added | in_head
        if len(union) == current.physical_rows:
            removed.add(number)
        elif union != in_head:
            updated[number] = with_deleted(versions, head, current, union)
    return replace(transaction, operation=_with_fragments(operation, updated, sorted(removed)))


def _with_fragments(operation: RowChange, updated: Mapping[int, Fragment], removed: Sequence[int]) -> RowChange:
    fragments = tuple(updated.values())
    if isinstance(operation, Update):
        return replace(operation, updated_fragments=fragments, removed_fragment_ids=tuple(removed))
    return replace(operation, updated_fragments=fragments, deleted_fragment_ids=tuple(removed))


@dataclass(slots=True)
class Landed:
    """The versions of a branch that were committed since a transaction read the table.

    Attributes:
        versions: The versions of the table.
        branch: The name of the branch.
        transaction: The transaction.
        base: The version that it read, or that was found compatible since; None where the caller does not have it.
        by_name: Whether a change of columns after `base` conflicts, since the rows were given when it had landed.
    """

    versions: Versions
    branch: str
    transaction: Transaction
    base: State | None = None
    by_name: bool = field(default=False, kw_only=True)
    looks_in_turn: bool = field(init=False)
    """Whether the newest version is looked for when the turn of the writer has come, and not before.

    Where writers take turns, a version that was the newest before the turn mostly is not so any more. Not for changes
    that may have to be rebased, which can take long while others wait.
    """
    _classified: int = field(init=False)
    _compares: bool | None = None
    _overlapping: list[RowChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._classified = self.transaction.read_version
        appends = isinstance(self.transaction.operation, Append)
        self.looks_in_turn = appends and not self.versions.store.ordered_listing

    @property
    def compares_states(self) -> bool:
        """Whether the newest version alone is read first: it mostly shows that all other writers only appended, too.

        Otherwise each of many writers would read what all others committed. Not on other branches than `main`, which
        may be deleted and made again with the same rows.
        """
        # Mostly nothing landed, and nobody asks.
        if self._compares is None:
            own = self.branch == layout.MAIN and self.base is not None
            self._compares = own and is_plain_append(self.transaction)
        return self._compares

    def find(self, newest: Sequence[int]) -> State | None:
        """Look for the transaction itself among the versions, newest first; `newest` are the newest numbers.

        Raises:
            CommitConflictError: It landed on a deleted branch of the name.
        """
        if not newest or newest[0] <= self.transaction.read_version:
            return None
        for number in reversed(self.versions.numbers(self.branch)):
            if number <= self.transaction.read_version:
                return None
            state = self.versions.load(self.branch, number)
            if state.transaction is not None and state.transaction.uuid == self.transaction.uuid:
                return self._confirmed(state)
        return None

    def catch_up(self, head: State) -> State | None:
        """Classify the versions up to a head; return the one that is the transaction itself, if there is one.

        Raises:
            CommitConflictError: A version conflicts with the transaction.
        """
        if self.transaction.read_version > head.number:
            raise self._branch_replaced(str(head))
        if not self._is_appended_to(head):
            confirmed = self._classify_until(head)
            if confirmed is not None:
                return confirmed
            if self.by_name and self.base is not None and not same_columns(self.base.manifest, head.manifest):
                raise CommitConflictError(f"the columns changed before {head}", str(head), retryable=True)
        self._classified, self.base = head.number, head
        return None

    def _is_appended_to(self, head: State) -> bool:
        """Return whether a head alone shows that it is compatible."""
        base = self.base
        if base is None or base.manifest is head.manifest:
            return base is not None
        return self.compares_states and appended_since(self.transaction, base.manifest, head.manifest)

    def _classify_until(self, head: State) -> State | None:
        """Classify each version up to a head; returns and raises as `catch_up`."""
        unclear = [number for number in range(self._classified + 1, head.number) if not self._is_compatible(number)]
        states = self.versions.find_many(self.branch, unclear) if unclear else []
        landed = zip(unclear, states, strict=True)
        # The head was read already, unless nothing landed since the last call.
        for number, state in chain(landed, [(head.number, head)] if head.number > self._classified else ()):
            confirmed = self._classify(VersionRef(self.branch, number), state)
            if confirmed is not None:
                return confirmed
        return None

    def look_ahead(self) -> None:
        """Classify the versions that are there by now, up to a number that has none; errors as for `catch_up`.

        What comes after such a number is left to `catch_up`: nothing is listed, since the head is looked for later.
        """
        if self.compares_states:
            return
        for number in count(self._classified + 1):
            if not self._is_compatible(number):
                state = self.versions.find(self.branch, number)
                if state is None or self._classify(VersionRef(self.branch, number), state) is not None:
                    return
            self._classified = number

    def rebased(self, head: State) -> Transaction:
        """Return the transaction, rebased over the row changes that touched the same fragments.

        Raises:
            CommitConflictError: Others changed the same rows.
        """
        if not self._overlapping:
            return self.transaction
        try:
            base = self.versions.load(head.branch, self.transaction.read_version)
        except VersionNotFoundError:
            # The base was cleaned up: without its deletion vectors nobody can tell which rows the transaction removed.
            ready = None
        else:
            ready = rebased(self.versions, self.transaction, self._overlapping, base=base, head=head)
        if ready is None:
            raise CommitConflictError(
                f"cannot commit {self.transaction.operation_name} to {head.branch} of {self.versions.store.uri}: "
                "others changed the same rows meanwhile",
                str(head),
                retryable=True,
            )
        return ready

    def _is_compatible(self, number: int) -> bool:
        """Return whether the transaction of a version alone shows that the version is compatible.

        Of many writers, each reads what all others committed, mostly appends. Not on object storage, where the request
        takes longer than decoding the version, which then is kept.
        """
        landed = None if self.versions.store.ordered_listing else self.versions.transaction(self.branch, number)
        if landed is None or landed.uuid == self.transaction.uuid or isinstance(landed.operation, Clone):
            return False
        return classify(self.transaction, landed) is Compatibility.COMPATIBLE

    def _classify(self, place: VersionRef, state: State | None) -> State | None:
        """Classify a version; `state` is None when it is gone.

        A row change that removed rows of the same fragments is kept, to rebase the deletion vectors over it.

        Returns:
            The version, when it is this transaction.

        Raises:
            CommitConflictError: The version conflicts with the transaction.
        """
        transaction = self.transaction
        if state is None:
            # Committed and cleaned up since the transaction read the table: what it did cannot be looked up any more.
            landed, who = None, "an unknown writer"
            if transaction.read_version < self._first_number():
                raise self._branch_replaced(str(place))
        else:
            landed = state.transaction
            who = (landed.properties.get(COMMITTER) if landed else None) or state.writer
            if landed is not None and landed.uuid == transaction.uuid:
                # Another process commits the same transaction and was faster.
                return self._confirmed(state)
            if landed is not None and isinstance(landed.operation, Clone) and place.branch != layout.MAIN:
                # A fork after the version that was read: the branch was deleted and its name given to a new branch.
                raise self._branch_replaced(str(state))
        # A version of unknown content may contradict the transaction; doing the work again from the head is safe.
        verdict = Compatibility.RETRYABLE if landed is None else classify(transaction, landed)
        if verdict is Compatibility.COMPATIBLE:
            return None
        if verdict is Compatibility.REBASE and landed is not None and isinstance(landed.operation, RowChange):
            self._overlapping.append(landed.operation)
            return None
        did = landed.operation_name if landed else "a change of unknown kind"
        raise CommitConflictError(
            f"cannot commit {transaction.operation_name} to {place.branch} of {self.versions.store.uri}: "
            f"{who} committed {did} as {place} meanwhile",
            str(place),
            verdict is Compatibility.RETRYABLE,
        )

    def _confirmed(self, state: State) -> State:
        """Return a version that the transaction made, if it belongs to the branch that has the name.

        Raises:
            CommitConflictError: The version is below the first version of the branch, so a late writer put it on a
                deleted branch.
        """
        if state.number < self._first_number():
            raise self._branch_replaced(str(state))
        # The attempt that put it may have ended, or failed, before its name was synced.
        self.versions.store.sync_folder(layout.versions_folder(state.branch))
        return state

    def _first_number(self) -> int:
        """Return the number of the branch's first version, 0 for `main` and for an unknown branch."""
        branch = None if self.branch == layout.MAIN else Refs(self.versions.store).branches.find(self.branch)
        return 0 if branch is None else branch.first

    def _branch_replaced(self, landed: str) -> CommitConflictError:
        """Return the error for a transaction that was made from a deleted branch of the same name."""
        return CommitConflictError(
            f"cannot commit {self.transaction.operation_name} to {landed} of {self.versions.store.uri}: it was made "
            f"from version {self.transaction.read_version} of a branch of that name which was deleted",
            landed,
            # A retry would apply the change to another branch than it was made for.
            retryable=False,
        )
