"""The versions of one table in the store: which exist, and what each one says.

`Versions` lists, reads and caches. `State` is a version as the format has it, manifest and transaction; `Version` is
the description of it that users get.

Invariants:

- A manifest never changes once it is written, so a version that was read once is cached. Which versions are the newest
  is asked of the store every time, since other writers commit meanwhile. They clean up, too: whoever builds on an older
  version asks for it `fresh`, since its files may have been deleted after it was cached.
- A cached version is returned without a request only under the id of its branch. A branch name alone proves nothing:
  a branch can be deleted and made again, and then has other versions under the same numbers. Only `main` is never
  replaced, except with the whole table: whoever asks for its head reads the newest version that is cached once more.
  Where the id is not known, the manifest is requested; its commit id then tells whether it has to be decoded.
- The names of the manifests of one branch follow one naming scheme. A mixture is an interrupted migration and is
  refused: an ordered listing would not tell the newest version.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import pendulum
import pyarrow as pa

from lance_dagster.errors import CorruptFileError, FormatError, StoreError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.codec import (
    VersionSummary,
    commit_id,
    decode_manifest_file,
    decode_transaction,
    decode_transaction_of,
    message_bytes,
    summarize_manifest,
)
from lance_dagster.format.model import Manifest
from lance_dagster.format.schema import arrow_from_fields
from lance_dagster.format.transaction import COMMIT_MESSAGE, COMMITTER, MERGE, RESET, Clone, Transaction
from lance_dagster.history.base_access import BaseAccess
from lance_dagster.history.inventory import DETACHED_FROM
from lance_dagster.history.refs.ref_files import Branch
from lance_dagster.store import AT_ONCE, Store, concurrently, together

# Enough names to skip a few leftovers of other writers, few enough for one short request.
_FIRST_NAMES = 8
# From how many versions on they are read at the same time.
_MANY = 2
# How many of the versions that landed meanwhile are read at once, before they are asked for.
_READ_AHEAD = 64
# Two bounds, since versions differ in size: many small versions, or few versions of tables with very many fragments.
_CACHED_STATES = 512
_CACHED_FRAGMENTS = 500_000
# Those of a few short branches, which are copied when the branch is deleted.
_SMALL_MANIFEST, _CACHED_FILES = 64 * 1024, 64
# Far less than it takes until a version expires.
_RECENT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One committed state of a branch, printed `main@17`.

    Attributes:
        id: The commit id (`format.codec.commit_id`). Renaming the branch gives its versions other ids; a
            `Version` that was read before the rename still names the same version.
        branch: The name of the branch.
        number: The version number on that branch.
        committed_at: When the version was committed.
        operation: The name of the Lance operation.
        rows: The number of rows that are not deleted.
        message: The commit message.
        committer: Who committed: what the transaction says, else the program that wrote the version.
        writer: The program that wrote the version, with its release.
        properties: The properties of the transaction.
        parents: The versions this version was made from, as `branch@n`; the second parent of a merge is the merged
            version. A parent may be gone: cleaned up, or deleted with its branch.
        transaction: The uuid of the transaction.
        cut: Whether the first parent was cleaned up, so that older history may be incomplete.
    """

    id: str
    branch: str
    number: int
    committed_at: pendulum.DateTime
    operation: str
    rows: int
    message: str | None
    committer: str
    writer: str
    properties: Mapping[str, str]
    parents: tuple[str, ...]
    transaction: str
    cut: bool = False

    def __str__(self) -> str:
        """Return the ref expression that names this version."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True)
class State:
    """A version as the format has it: its manifest, and its transaction where that still exists.

    `path` is the URI of the manifest, for messages, and `size` its size in bytes, 0 where it was not read. `id` is the
    commit id. `before` is the number of the version before it on its branch, where a listing or the commit showed it.
    `of` is the branch of the version, if the file of the branch was read after the version was listed.
    """

    branch: str
    manifest: Manifest
    transaction: Transaction | None
    path: str = ""
    id: str = ""
    size: int = 0
    before: int | None = None
    of: Branch | None = field(default=None, compare=False, repr=False)

    @cached_property
    def number(self) -> int:
        """The version's number on its branch."""
        return self.manifest.version

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the version."""
        return arrow_from_fields(self.manifest.fields, self.manifest.schema_metadata, self.path or str(self))

    def __str__(self) -> str:
        """Return the ref expression that names this version."""
        return f"{self.branch}@{self.manifest.version}"

    def after(self, head: "State") -> "State":
        """Return this version with what is known from the head that it was committed on."""
        own = replace(self, before=head.number)
        same = self.manifest.fields is head.manifest.fields
        if same and self.manifest.schema_metadata is head.manifest.schema_metadata and "schema" in vars(head):
            # A stream of small appends would otherwise build the schema of many columns again for each append.
            vars(own)["schema"] = head.schema
        return own

    @property
    def committed_at(self) -> pendulum.DateTime:
        """When the version was committed, to the microsecond."""
        return pendulum.from_timestamp(self.manifest.timestamp_seconds)

    @property
    def writer(self) -> str:
        """The program that wrote the version, with its release."""
        writer = self.manifest.writer
        return f"{writer.library} {writer.version}" if writer else "an unknown program"


@dataclass(slots=True)
class VersionCache:
    """The versions of one table that this process has read or committed, as long as they fit."""

    # By commit id, oldest first.
    _states: dict[str, State] = field(default_factory=dict)
    # The commit ids by the id and the name of the branch, and the number.
    _places: dict[tuple[str, str, int], str] = field(default_factory=dict)
    _fragments: int = 0
    # The files of small manifests, by commit id.
    _files: dict[str, bytes] = field(default_factory=dict)

    def known(self, commit_id: str) -> State | None:
        """Return a version by its commit id, whether or not it is still there."""
        return self._states.get(commit_id)

    def at(self, branch_id: str, branch: str, number: int) -> State | None:
        """Return a version of the branch with an id, which is empty where it is unknown."""
        return self._states.get(self._places.get((branch_id, branch, number), ""))

    def id_at(self, branch_id: str, branch: str, number: int) -> str | None:
        """Return the commit id of a version of the branch with an id, also of a version that did not fit any more."""
        return self._places.get((branch_id, branch, number))

    def is_of(self, state: State, branch_id: str) -> bool:
        """Return whether a version is known to belong to the branch with an id."""
        return self.id_at(branch_id, state.branch, state.number) == state.id

    def put(self, branch_id: str, state: State) -> None:
        """Keep a version; under the id of its branch it is found without a request."""
        if branch_id:
            self._places[branch_id, state.branch, state.number] = state.id
        if not state.id or state.id in self._states:
            return
        self._states[state.id] = state
        self._fragments += len(state.manifest.fragments)
        while len(self._states) > _CACHED_STATES or (self._fragments > _CACHED_FRAGMENTS and len(self._states) > 1):
            dropped = self._states.pop(next(iter(self._states)))
            self._fragments -= len(dropped.manifest.fragments)
            # Keys of dropped versions may remain, but not more of them than twice the versions that are kept.
            if len(self._places) > 2 * _CACHED_STATES:
                self._places = {place: own_id for place, own_id in self._places.items() if own_id in self._states}

    def put_file(self, commit_id: str, data: bytes) -> None:
        """Keep the file of a manifest, where it is small."""
        if len(data) <= _SMALL_MANIFEST:
            self._files[commit_id] = data
            while len(self._files) > _CACHED_FILES:
                self._files.pop(next(iter(self._files)))

    def file_at(self, branch: Branch, number: int) -> bytes | None:
        """Return the file of a version of a branch, where it is small and was read or committed lately; else None."""
        return self._files.get(self._places.get((branch.id, branch.name, number), ""))

    def message(self, state: State) -> bytes | None:
        """Return the manifest message of a version, where it is small and was read or committed lately; else None."""
        data = self._files.get(state.id)
        return None if data is None else message_bytes(data, state.path)

    def clear(self) -> None:
        """Forget every version."""
        self._states.clear()
        self._places.clear()
        self._fragments = 0


@dataclass(slots=True)
class SeenHeads:
    """The newest version of each branch of one table as this process saw it last; there may be newer versions.

    Attributes:
        main: The newest version of `main` that was read or committed. It may be gone (`Versions.is_stored`).
        main_numbers: The newest numbers of `main` when `Versions.has_versions` listed them, newest first.
    """

    main: State | None = None
    main_numbers: list[int] = field(default_factory=list)
    # By branch, the newest version that was committed to it, and when, by the monotonic clock.
    _tips: dict[str, tuple[State, float]] = field(default_factory=dict)
    # By branch, the commit id of the version that was its newest when it was read last.
    _heads: dict[str, str] = field(default_factory=dict)
    # The branches that had no version when they were listed last, and when, by the monotonic clock.
    _empty: dict[str, float] = field(default_factory=dict)

    def latest(self, branch: str) -> State | None:
        """Return `main` of this object if that is the branch; None for any other branch."""
        return self.main if branch == layout.MAIN else None

    def tip(self, branch: str) -> State | None:
        """Return the newest version that was committed to a branch other than `main`, with its branch; else None.

        This version may be gone: whoever commits on it lists the newest number, and the fence of the branch compares
        the id.
        """
        return self._tips.get(branch, (None, 0.0))[0]

    def is_recent_tip(self, state: State) -> bool:
        """Return whether this process has just committed a version to a branch, or made the branch with it.

        Its branch was looked at after the version was there. So a commit on top of it needs to look neither for newer
        versions, which the put finds, nor at the branch: whoever deletes the branch counts on a commit after the newest
        version (`refs.branch_fence`). That holds for any time, but versions that others commit meanwhile may expire.
        """
        tip, since = self._tips.get(state.branch, (None, 0.0))
        return tip is not None and tip.id == state.id and time.monotonic() - since < _RECENT_SECONDS

    def committed_to(self, name: str, tip: State | None) -> None:
        """Keep a version with its branch as the tip of the branch; None where the branch was not read."""
        self._tips.pop(name, None)
        if tip is not None:
            self._tips[name] = tip, time.monotonic()

    def read_head(self, state: State) -> None:
        """Keep a version that is the newest of its branch."""
        self._heads[state.branch] = state.id
        if state.branch == layout.MAIN:
            self.main = state

    def was_head(self, state: State) -> bool:
        """Return whether a version was the newest of its branch when the branch was read last."""
        return self._heads.get(state.branch) == state.id

    def found_empty(self, branch: str) -> None:
        """Keep that a branch had no version."""
        self._empty[branch] = time.monotonic()

    def take_empty(self, branch: str) -> bool:
        """Return once whether a branch had no version a moment ago."""
        since = self._empty.pop(branch, None)
        return since is not None and time.monotonic() - since < _RECENT_SECONDS

    def clear(self) -> None:
        """Forget the newest versions."""
        self.main = None
        self._tips.clear()
        self._heads.clear()


@dataclass(slots=True)
class Versions:
    """The versions of all branches of one table."""

    store: Store
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    cached: VersionCache = field(default_factory=VersionCache, repr=False)
    seen: SeenHeads = field(default_factory=SeenHeads, repr=False)
    # The branches whose manifests were last seen under names of the first scheme, and under names of the second.
    _v1_named: set[str] = field(default_factory=set)
    _v2_named: set[str] = field(default_factory=set)
    _ids: dict[tuple[str, int], str] = field(default_factory=dict)
    _folders: dict[str, str] = field(default_factory=dict)
    bases: BaseAccess = field(init=False)
    # The URIs of the files that were checked before pylance read them; files never change.
    checked_files: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bases = BaseAccess(self.store, self.storage_options)

    def branch_uri(self, branch: str) -> str:
        """Return the URI of the folder that holds a branch's own files."""
        return layout.join(self.store.uri, layout.branch_root(branch))

    def locate(self, uri: str, key: str, base_id: int = 0) -> tuple[Store, str]:
        """Return the store and the key under which an object below some URI is read.

        An object below the table's own URI is read through the table's own store.

        Args:
            uri: A folder of the table, or a base path.
            key: The object's path below it.
            base_id: The id of the base path, which may have storage options of its own.

        Raises:
            BasePathRefusedError: The base path is outside of the table, and neither the caller nor the place allows it.
        """
        store, folder = self.bases.locate(uri, base_id)
        return store, layout.join(folder, key)

    def numbers(self, branch: str) -> list[int]:
        """List the versions of a branch, oldest first, from file names alone; empty when there is no such branch."""
        return sorted(self._checked(branch, *layout.parse_manifest_names(self.store.list(self._folder(branch)))))

    def newest(self, branch: str) -> int | None:
        """Return the newest version of a branch, or None when it has none."""
        newest = next(iter(self.newest_few(branch)), None)
        if newest is None:
            self.seen.found_empty(branch)
        return newest

    def newest_or_none(self, branch: str) -> int | None:
        """Return the newest version as `newest` does, without a request where `newest` has just found none.

        This is for whoever makes a branch of the name: a version that somebody leaves meanwhile belongs to a branch
        that was made and deleted meanwhile, above whose fence the new branch begins.
        """
        return None if self.seen.take_empty(branch) else self.newest(branch)

    def newest_few(self, branch: str) -> list[int]:
        """Return the newest versions of a branch, newest first: at least one version, if there is any."""
        folder = self._folder(branch)
        if self.store.ordered_listing:
            # Names count down from 2^64-1, so the first few of an ordered listing hold the newest version. Two cases
            # need the whole listing: leftovers of other writers fill the first names, or names count upwards (v1).
            names = self.store.list(folder, limit=_FIRST_NAMES)
            numbers = self._checked(branch, *layout.parse_manifest_names(names))
            # A listing that is shorter than it may be is the whole one.
            if (numbers and branch not in self._v1_named) or len(names) < _FIRST_NAMES:
                return sorted(numbers, reverse=True)
        return sorted(self._checked(branch, *layout.newest_versions_in(self.store.list(folder))), reverse=True)

    def newest_in(self, branch: str, names: Iterable[str]) -> int:
        """Return the newest version of a branch among the names in its folder of versions, 0 where it has none."""
        return max(self._checked(branch, *layout.parse_manifest_names(names)), default=0)

    def has_versions(self, branch: str) -> bool:
        """Tell whether a branch has a version; lists only a few names in the usual case."""
        first = layout.parse_manifest_names(self.store.list_some(self._folder(branch), _FIRST_NAMES))
        if branch == layout.MAIN and self.store.ordered_listing and first[0]:
            self.seen.main_numbers = sorted(first[0], reverse=True)
        return any(first) or self.newest(branch) is not None

    def listed(self) -> State | None:
        """Read the version of `main` that was the newest when `has_versions` listed it; None where it is gone.

        There may be newer versions.
        """
        numbers, main = self.seen.main_numbers, self.seen.main
        state = self.find(layout.MAIN, numbers[0], fresh=True) if numbers else None
        if state is not None and len(numbers) > 1:
            state = replace(state, before=numbers[1])
        # Kept, so that whoever asks for the head later makes sure that it is still there.
        if state is not None and (main is None or main.number < state.number):
            self.seen.main = state
        return state

    def manifest_path(self, branch: str, number: int) -> str:
        """Return the path of a version's manifest, in the naming scheme the branch was last seen to use.

        A new version follows the scheme of the versions before it: readers expect one scheme for each branch.
        """
        v1 = branch in self._v1_named
        return f"{self._folder(branch)}/{layout.manifest_name_v1(number) if v1 else layout.manifest_name(number)}"

    def load(self, branch: str, number: int, branch_id: str = "", *, fresh: bool = False) -> State:
        """Read one version.

        Args:
            branch: The name of its branch.
            number: Its number.
            branch_id: The id of the branch, when the caller knows it: only then is the version cached.
            fresh: Ask the store even for a version that is cached.

        Raises:
            VersionNotFoundError: The branch has no version of that number.
        """
        state = self.find(branch, number, branch_id, fresh=fresh)
        if state is None:
            raise VersionNotFoundError(self._missing(branch, number))
        return state

    def find(self, branch: str, number: int, branch_id: str = "", *, fresh: bool = False) -> State | None:
        """Read one version as `load` does; return None when there is none of that number."""
        branch_id = layout.MAIN if branch == layout.MAIN else branch_id
        cached = None if fresh else self.cached.at(branch_id, branch, number)
        state = cached or self._read_state(branch, number, branch_id, self._manifest(branch, number))
        if fresh and state is None:
            # Other versions were cleaned up with it, and would be answered from memory.
            self.forget()
        return state

    def find_many(self, branch: str, numbers: Sequence[int]) -> list[State | None]:
        """Read versions as `find` does, several at a time where each takes a request to an object store."""
        branch_id = layout.MAIN if branch == layout.MAIN else ""
        unknown = [number for number in numbers if self.cached.id_at(branch_id, branch, number) is None]
        if len(unknown) < _MANY or not self.store.ordered_listing:
            return [self.find(branch, number) for number in numbers]
        manifests = dict(zip(unknown, concurrently(partial(self._manifest, branch), unknown), strict=True))
        # Decoded and kept here: the cache is not for several threads.
        return [
            self._read_state(branch, number, branch_id, manifests[number])
            if number in manifests
            else self.find(branch, number)
            for number in numbers
        ]

    def transaction(self, branch: str, number: int) -> Transaction | None:
        """Read only the transaction of a version; None where there is no such version, or only `find` can tell it."""
        path, data = self._manifest(branch, number)
        uri = f"{self.store.uri}/{path}"
        return None if data is None else decode_transaction_of(data, uri, branch=branch, number=number)

    def _read_state(
        self, branch: str, number: int, branch_id: str, manifest_file: tuple[str, bytes | None]
    ) -> State | None:
        key, data = manifest_file
        if data is None:
            return None
        own_id = commit_id(data)
        state = self.cached.known(own_id)
        if state is None or (state.branch, state.number) != (branch, number):
            state = self._decoded(branch, number, data, path=f"{self.store.uri}/{key}", own_id=own_id)
        # The id is kept only after the manifest was decoded, since the answer may have been cut.
        self._keep_id(branch, number, own_id)
        self.cached.put(branch_id, state)
        self.cached.put_file(own_id, data)
        return state

    def _decoded(self, branch: str, number: int, data: bytes, *, path: str, own_id: str) -> State:
        """Decode a manifest file.

        Raises:
            CorruptFileError: It is the manifest of another version.
        """
        manifest, transaction = decode_manifest_file(data, path)
        # A manifest that was copied to another name or folder would be read as a version that nobody committed.
        if manifest.version != number:
            raise CorruptFileError(path, f"it says it is version {manifest.version}")
        if (manifest.branch or layout.MAIN) != branch:
            raise CorruptFileError(path, f"it says it is of branch {manifest.branch!r}")
        transaction = transaction or self._stored_transaction(branch, manifest)
        return State(branch, manifest, transaction, path, own_id, len(data))

    def find_range(self, branch: str, first: int, newest: int, branch_id: str) -> list[State]:
        """Read the versions `first` to `newest` of a branch that exist, oldest first.

        The branch is listed only when a version is missing: most ranges are short and have no gap, and reading such a
        range takes no listing at all.
        """
        states: list[State] = []
        for number in range(first, newest + 1):
            state = self.find(branch, number, branch_id)
            if state is None:
                later = [listed for listed in self.numbers(branch) if number < listed <= newest]
                return states + [self.load(branch, listed, branch_id) for listed in later]
            states.append(state)
        return states

    def forget(self) -> None:
        """Forget every version that was read: a clean-up may have removed it."""
        self.cached.clear()
        self.seen.clear()
        self._v1_named.clear()
        self._v2_named.clear()
        self._ids.clear()

    def manifest_size(self, state: State) -> int:
        """Return the size of a version's manifest in bytes; 0 when the manifest is gone."""
        return state.size or len(self._manifest(state.branch, state.number)[1] or b"")

    def read_ahead(self, branch: str, after: int, newest: int) -> None:
        """Read the versions of `main` after a number at once, where each takes a request to an object store.

        This is not done for other branches, whose versions are not cached by their numbers alone.
        """
        if branch == layout.MAIN and self.store.ordered_listing:
            self.find_many(branch, range(max(after, newest - _READ_AHEAD) + 1, newest + 1))

    def head(self, branch: str, branch_id: str = "", newest: Sequence[int] = ()) -> State:
        """Read the newest version of a branch.

        Args:
            branch: The name of the branch.
            branch_id: Its id, when the caller knows it.
            newest: Its newest versions, when the caller has just listed them by `newest_few`.

        Raises:
            VersionNotFoundError: The branch has no version.
        """
        latest = self.seen.latest(branch)
        if latest is not None and not newest:
            # The table may have been deleted and made again, with the same numbers. Cached versions of the former table
            # would be mixed with the new table, and a commit on top of them would make the new table unreadable.
            newest, (_, data) = together(
                self.store, partial(self.newest_few, branch), partial(self._manifest, branch, latest.number)
            )
            if data is None or commit_id(data) != latest.id:
                self.forget()
        newest = newest or self.newest_few(branch)
        if not newest:
            raise VersionNotFoundError(f"{self.store.uri} has no version on branch {branch!r}")
        own_id = self.cached.id_at(branch_id, branch, newest[0])
        if own_id is not None and not self.store.ordered_listing:
            # Its folder may have been replaced by a link or a copy. A read of one manifest takes no request here.
            data = self._manifest(branch, newest[0])[1]
            if data is not None and commit_id(data) != own_id:
                self.forget()
        state = self.load(branch, newest[0], branch_id)
        self.seen.read_head(state)
        return replace(state, before=newest[1]) if len(newest) > 1 else state

    def heads(self, branches: Mapping[str, str]) -> dict[str, State]:
        """Read the newest version of each branch that has versions, several at a time on an object store.

        Args:
            branches: The ids of the branches by their names.
        """

        def newest_manifest(branch: str) -> tuple[int, tuple[str, bytes | None]] | None:
            number = self.newest(branch)
            return None if number is None else (number, self._manifest(branch, number))

        heads: dict[str, State] = {}
        # On local disk a read takes less time than a thread.
        manifests = concurrently(newest_manifest, branches, at_once=AT_ONCE if self.store.ordered_listing else 1)
        for (branch, branch_id), newest in zip(branches.items(), manifests, strict=True):
            # Decoded and kept here: the cache is not for several threads.
            state = None if newest is None else self._read_state(branch, newest[0], branch_id, newest[1])
            if state is not None:
                heads[branch] = state
        return heads

    def is_stored(self, state: State) -> bool:
        """Tell whether a version that was read earlier is still stored as it was; if not, forget all versions."""
        data = self._manifest(state.branch, state.number)[1]
        if data is not None and commit_id(data) == state.id:
            return True
        self.forget()
        return False

    def committed(self, state: State) -> None:
        """Keep a version that was committed, so that it is not decoded."""
        own = state.branch == layout.MAIN
        self.cached.put(layout.MAIN if own else "", state)
        if own:
            self.seen.main = state

    def committed_to(self, branch: Branch | None, state: State) -> None:
        """Keep a version as the tip of its branch; None where the branch is `main` or was not read."""
        if branch is not None:
            self.cached.put(branch.id, state)
        self.seen.committed_to(state.branch, None if branch is None else replace(state, of=branch))

    def read(self, branch: str, number: int, data: bytes) -> None:
        """Cache a version of `main` whose manifest was read; a damaged manifest is left to the next reader."""
        if branch == layout.MAIN:
            with suppress(FormatError, StoreError):
                self._read_state(branch, number, branch, (self.manifest_path(branch, number), data))

    def describe(self, state: State, numbers: Sequence[int] | None = None) -> Version:
        """Describe a version that was read.

        Args:
            state: The version.
            numbers: The versions of its branch, oldest first, when the caller has listed them already.
        """
        writer, transaction = state.manifest.writer, state.transaction
        operation = transaction.operation if transaction else None
        summary = VersionSummary(
            number=state.number,
            timestamp=state.manifest.timestamp,
            rows=state.manifest.rows,
            writer=(writer.library, writer.version) if writer else None,
            transaction=transaction.uuid if transaction else "",
            read_version=transaction.read_version if transaction else 0,
            operation=transaction.operation_name if transaction else "",
            properties=transaction.properties if transaction else {},
            forked_from=(operation.ref_name, operation.ref_version) if isinstance(operation, Clone) else None,
        )
        if numbers is None and state.before is not None:
            numbers = (state.before,)
        elif numbers is None:
            # The parent of the first version of a branch is recorded in its transaction.
            numbers = () if summary.forked_from is not None else self._numbers_around(state)
        return self._version(state.branch, state.id, summary, numbers)

    def describe_number(self, branch: str, number: int, numbers: Sequence[int]) -> Version:
        """Describe a version that was not read yet, from its manifest's summary where that is enough.

        A log describes very many versions; decoding every fragment of each one would dominate its cost.
        """
        path, data = self._manifest(branch, number)
        summary = None if data is None else summarize_manifest(data, f"{self.store.uri}/{path}")
        # A manifest without an inline transaction has it in a separate file, or has none.
        if summary is None or summary.number != number:
            return self.describe(self.load(branch, number), numbers)
        own_id = commit_id(data or b"")
        self._keep_id(branch, number, own_id)
        return self._version(branch, own_id, summary, numbers)

    def commit_id(self, branch: str, number: int, branch_id: str) -> str | None:
        """Return the commit id of a version, or None when there is none of that number.

        Args:
            branch: The name of its branch.
            number: Its number.
            branch_id: The id of the branch, under which commit ids are cached; empty when it has none.
        """
        cached = self._ids.get((branch_id, number))
        if cached is not None:
            return cached
        data = self._manifest(branch, number)[1]
        if data is None:
            return None
        own_id = commit_id(data)
        if branch_id:
            self._ids[branch_id, number] = own_id
        return own_id

    def _keep_id(self, branch: str, number: int, own_id: str) -> None:
        if branch == layout.MAIN:
            # Only main: the same number of another branch name may be another version tomorrow.
            self._ids[layout.MAIN, number] = own_id

    def _version(self, branch: str, own_id: str, summary: VersionSummary, numbers: Sequence[int]) -> Version:
        writer = "an unknown program" if summary.writer is None else " ".join(summary.writer)
        properties = summary.properties
        parents, cut = self._first_parent(branch, summary, numbers)
        merged = properties.get(MERGE)
        return Version(
            id=own_id,
            branch=branch,
            number=summary.number,
            committed_at=pendulum.from_timestamp(summary.timestamp / 1e9),
            operation=summary.operation or "unknown",
            rows=summary.rows,
            message=properties.get(COMMIT_MESSAGE),
            committer=properties.get(COMMITTER, writer),
            writer=writer,
            # A dict of its own: the empty default of a transaction cannot be sent to another process.
            properties=dict(properties),
            parents=(*parents, merged) if merged is not None else parents,
            transaction=summary.transaction,
            cut=cut,
        )

    def _numbers_around(self, state: State) -> list[int]:
        """List enough versions of a branch to tell which version comes before `state`."""
        if self.store.ordered_listing and state.branch not in self._v1_named:
            # Callers mostly describe a new version, which the short listing of the newest ones holds.
            names = self.store.list(self._folder(state.branch), limit=_FIRST_NAMES)
            nearby = self._checked(state.branch, *layout.parse_manifest_names(names))
            if nearby and min(nearby) < state.number and state.branch not in self._v1_named:
                return sorted(nearby)
        return self.numbers(state.branch)

    def _first_parent(
        self, branch: str, summary: VersionSummary, numbers: Sequence[int]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the first parent, none for the first version of a table, and whether it was cleaned up."""
        if summary.forked_from is not None:
            if branch == layout.MAIN:
                # A cloned table: its origin is a version of another table, which is not a parent here.
                return (), False
            name, number = summary.forked_from[0] or layout.MAIN, summary.forked_from[1]
            # Versions of `main` are known by their numbers, and only those.
            cached = self.cached.id_at(layout.MAIN, name, number) is not None
            return (f"{name}@{number}",), not cached and self._manifest(name, number)[1] is None
        # Binary search: a log asks for the parent of every version.
        place = bisect_left(numbers, summary.number)
        before = numbers[place - 1] if place else 0
        expected = summary.number - 1
        if RESET in summary.properties and summary.read_version < expected:
            # A reset was made from the version it went back to. Versions between the two exist until the reset has
            # dropped them, and are not parents.
            made_from = summary.read_version
            return (f"{branch}@{made_from}",), made_from not in numbers
        # The parent of a merge is not plain `number - 1`: a sync skips numbers on purpose, to be numbered after the
        # version it merged, and is made from the version it read. In any other version a skipped number was cleaned up.
        if before != expected and before == summary.read_version and MERGE in summary.properties:
            expected = before
        return ((f"{branch}@{expected}",), before != expected) if expected else ((), False)

    def _manifest(self, branch: str, number: int) -> tuple[str, bytes | None]:
        """Return the path and the bytes of a manifest, looked for under both naming schemes."""
        path = self.manifest_path(branch, number)
        data = self.store.get(path)
        # The scheme is known only once the branch was listed. A migration may rename files meanwhile, and only from the
        # first scheme to the second.
        if data is not None or branch in self._v2_named:
            return path, data
        names = (layout.manifest_name(number), layout.manifest_name_v1(number))
        other_path = next(candidate for name in names if (candidate := f"{self._folder(branch)}/{name}") != path)
        return other_path, self.store.get(other_path)

    def _checked(self, branch: str, numbers: list[int], v1_numbers: list[int]) -> list[int]:
        """Remember which naming scheme a branch uses; return its listed versions.

        Raises:
            CorruptFileError: The listing has names of both schemes.
        """
        if numbers and v1_numbers:
            raise CorruptFileError(
                layout.join(self.store.uri, self._folder(branch)),
                f"it names versions by both schemes, such as {layout.manifest_name_v1(v1_numbers[0])} and "
                f"{layout.manifest_name(numbers[0])}; migrate_manifest_names() finishes the migration",
            )
        (self._v1_named.add if v1_numbers else self._v1_named.discard)(branch)
        (self._v2_named.add if numbers else self._v2_named.discard)(branch)
        return numbers or v1_numbers

    def _folder(self, branch: str) -> str:
        folder = self._folders.get(branch)
        if folder is None:
            folder = self._folders[branch] = layout.versions_folder(branch)
        return folder

    def _stored_transaction(self, branch: str, manifest: Manifest) -> Transaction | None:
        if not manifest.transaction_file:
            return None
        path = layout.transaction_path(branch, manifest.transaction_file)
        data = self.store.get(path)
        # Other programs delete transaction files in their clean-up; the version stays readable without one.
        return None if data is None else decode_transaction(data, f"{self.store.uri}/{path}")

    def _missing(self, branch: str, number: int) -> str:
        numbers = self.numbers(branch)
        existing = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
        if numbers and numbers[0] < number < numbers[-1]:
            existing += ", without those that were cleaned up or that a reset dropped"
        if number >= DETACHED_FROM:
            existing += "; a version of such a number is detached, and pylance alone reads it"
        return f"branch {branch!r} of {self.store.uri} has no version {number}; {existing}"
