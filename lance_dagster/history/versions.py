"""Versions as they lie in the store: which there are, and what each one says.

A manifest never changes, so a version that was read once is kept. Which versions exist is asked every time.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pendulum

from lance_dagster.errors import CorruptFileError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.codec import Summary, decode_manifest_file, decode_transaction, summarize
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import COMMITTER, MERGE, MESSAGE, Clone, Transaction
from lance_dagster.store import Store, base_options, open_store
from lance_dagster.transactions.identity import commit_id

_FIRST_NAMES = 8
_KEPT_STATES = 512
_KEPT_FRAGMENTS = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One committed state of a branch, printed `main@17`.

    `id` names it for all time, whatever becomes of its branch (`format.digests.commit_id`). `rows` counts the rows
    that are not deleted. `parents` are the versions it was made from, the second one of a merge being the version
    merged; they may be gone by now, a merged one with its branch. `cut` says that the first one is: a clean-up removed
    it, and what went before may be incomplete. `transaction` is the uuid of the change that made it, `committer` who
    or what made it: what the change says, or else the program.
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


@dataclass(frozen=True, slots=True)
class State:
    """A version as the format has it: its manifest and the transaction that made it, where that still exists.

    `path` is where it was read from, for messages. `id` is its commit id.
    """

    branch: str
    manifest: Manifest
    transaction: Transaction | None
    path: str = ""
    id: str = ""

    @property
    def number(self) -> int:
        """The version's number on its branch."""
        return self.manifest.version

    def __str__(self) -> str:
        """Return the ref expression that names this version."""
        return f"{self.branch}@{self.number}"

    @property
    def committed_at(self) -> pendulum.DateTime:
        """When the version was made, to the microsecond."""
        return pendulum.from_timestamp(self.manifest.timestamp_seconds)

    @property
    def writer(self) -> str:
        """The program that wrote the version, with its release."""
        writer = self.manifest.writer
        return f"{writer.library} {writer.version}" if writer else "an unknown program"


@dataclass(slots=True)
class Versions:
    """The versions of all branches of one table."""

    store: Store
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _states: dict[tuple[str, str, int], State] = field(default_factory=dict)
    _kept_fragments: int = 0
    _old_named: set[str] = field(default_factory=set)
    _ids: dict[tuple[str, int], str] = field(default_factory=dict)

    def branch_uri(self, branch: str) -> str:
        """Return the URI of the folder a branch's own files lie in."""
        return layout.join(self.store.uri, layout.line_root(branch))

    def locate(self, uri: str, key: str, base_id: int = 0) -> tuple[Store, str]:
        """Return where an object below any URI is found: in the table's own store when it lies there.

        Args:
            uri: A folder: of the table, or a base path.
            key: The object's path below it.
            base_id: The id of the base path, for which there may be storage options of its own.
        """
        own = self.store.uri
        if uri == own:
            return self.store, key
        if uri.startswith(f"{own}/"):
            return self.store, layout.join(uri.removeprefix(f"{own}/"), key)
        return open_store(uri, base_options(self.storage_options, base_id, uri)), key

    def numbers(self, branch: str) -> list[int]:
        """List the versions of a branch, oldest first, by file name alone; empty when there is no such branch."""
        return sorted(self._known(branch, self.store.list(self._folder(branch))))

    def newest(self, branch: str) -> int | None:
        """Return the newest version of a branch, or None when it has none."""
        if self.store.ordered_listing:
            # Newest first: one short listing, unless leftovers of other writers fill it, or names are of the first
            # scheme, which runs forwards.
            found = self._known(branch, self.store.list(self._folder(branch), limit=_FIRST_NAMES))
            if found and branch not in self._old_named:
                return max(found)
        names = layout.newest_among(self.store.list(self._folder(branch)))
        return max(self._known(branch, names), default=None)

    def has_versions(self, branch: str) -> bool:
        """Tell whether a branch has a version, without looking at how many."""
        first = layout.versions_in(self.store.some(self._folder(branch), _FIRST_NAMES))
        return any(first) or self.newest(branch) is not None

    def manifest_path(self, branch: str, number: int) -> str:
        """Return where a version's manifest lies, or is to be put: a branch keeps the naming scheme it has."""
        old = branch in self._old_named
        return f"{self._folder(branch)}/{layout.old_manifest_name(number) if old else layout.manifest_name(number)}"

    def load(self, branch: str, number: int, line: str = "") -> State:
        """Read one version.

        Args:
            branch: The name of its branch.
            number: Its number.
            line: The id of the branch, when it is known: under it, what was read is kept. A branch that was deleted
                and made again has other versions under the same numbers.

        Raises:
            VersionNotFoundError: There is none of that number.
        """
        found = self.find(branch, number, line)
        if found is None:
            raise VersionNotFoundError(self._missing(branch, number))
        return found

    def find(self, branch: str, number: int, line: str = "") -> State | None:
        """Read one version as `load` does; None when there is none of that number."""
        line = layout.MAIN if branch == layout.MAIN else line
        known = self._states.get((line, branch, number))
        if known is not None:
            return known
        path, data = self._manifest(branch, number)
        if data is None:
            return None
        manifest, transaction = decode_manifest_file(data, f"{self.store.uri}/{path}")
        if manifest.version != number:
            raise CorruptFileError(f"{self.store.uri}/{path}", f"it says it is version {manifest.version}")
        if (manifest.branch or layout.MAIN) != branch:
            raise CorruptFileError(f"{self.store.uri}/{path}", f"it says it is of branch {manifest.branch!r}")
        found = transaction or self._stored_transaction(branch, manifest)
        state = State(branch, manifest, found, f"{self.store.uri}/{path}", self._id_of(branch, number, data))
        self.keep(line, state)
        return state

    def keep(self, line: str, state: State) -> None:
        """Keep a version that was read, under the id of its branch; without one it is read again next time."""
        place = (line, state.branch, state.number)
        if not line or place in self._states:
            return
        self._states[place] = state
        self._kept_fragments += len(state.manifest.fragments)
        while len(self._states) > _KEPT_STATES or (self._kept_fragments > _KEPT_FRAGMENTS and len(self._states) > 1):
            dropped = self._states.pop(next(iter(self._states)))
            self._kept_fragments -= len(dropped.manifest.fragments)

    def manifest_size(self, state: State) -> int:
        """Return the size of a version's manifest in bytes; 0 when it is gone."""
        return len(self._manifest(state.branch, state.number)[1] or b"")

    def head(self, branch: str) -> State:
        """Read the newest version of a branch.

        Raises:
            VersionNotFoundError: The branch has no version.
        """
        newest = self.newest(branch)
        if newest is None:
            raise VersionNotFoundError(f"{self.store.uri} has no version on branch {branch!r}")
        return self.load(branch, newest)

    def describe(self, state: State, numbers: Sequence[int] | None = None) -> Version:
        """Say who made a version, when, from what.

        Args:
            state: The version.
            numbers: The versions of its branch, oldest first, when the caller listed them already.
        """
        writer, transaction = state.manifest.writer, state.transaction
        operation = transaction.operation if transaction else None
        summary = Summary(
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
        known = numbers if numbers is not None else self._around(state)
        return self._version(state.branch, state.id, summary, known)

    def describe_number(self, branch: str, number: int, numbers: Sequence[int]) -> Version:
        """Say the same of a version that was not read yet; reads no more than it takes."""
        path, data = self._manifest(branch, number)
        summary = None if data is None else summarize(data, f"{self.store.uri}/{path}")
        # One without its transaction in it has it in a file of its own, or nowhere.
        if summary is None or summary.number != number:
            return self.describe(self.load(branch, number), numbers)
        return self._version(branch, self._id_of(branch, number, data or b""), summary, numbers)

    def commit_id(self, branch: str, number: int, line: str) -> str | None:
        """Return the id of a version, or None when there is none of that number.

        Args:
            branch: The name of its branch.
            number: Its number.
            line: The id of the branch, under which commit ids are kept; empty when it has none.
        """
        known = self._ids.get((line, number))
        if known is not None:
            return known
        data = self._manifest(branch, number)[1]
        if data is None:
            return None
        found = commit_id(data)
        if line:
            self._ids[line, number] = found
        return found

    def _id_of(self, branch: str, number: int, data: bytes) -> str:
        found = commit_id(data)
        if branch == layout.MAIN:
            # As with states: the same number of another branch may be another version tomorrow.
            self._ids[layout.MAIN, number] = found
        return found

    def _version(self, branch: str, own_id: str, summary: Summary, numbers: Sequence[int]) -> Version:
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
            message=properties.get(MESSAGE),
            committer=properties.get(COMMITTER, writer),
            writer=writer,
            properties=properties,
            parents=(*parents, merged) if merged is not None else parents,
            transaction=summary.transaction,
            cut=cut,
        )

    def _around(self, state: State) -> list[int]:
        """List enough versions of a branch to tell what went before one of them."""
        if self.store.ordered_listing and state.branch not in self._old_named:
            # Mostly it is among the newest, which are listed first.
            found = self._known(state.branch, self.store.list(self._folder(state.branch), limit=_FIRST_NAMES))
            if found and min(found) < state.number and state.branch not in self._old_named:
                return sorted(found)
        return self.numbers(state.branch)

    def _first_parent(self, branch: str, summary: Summary, numbers: Sequence[int]) -> tuple[tuple[str, ...], bool]:
        """Return the version made before, none for the first of a table, and whether it is gone."""
        if summary.forked_from is not None:
            if branch == layout.MAIN:
                # A clone: what it was made from is another table's.
                return (), False
            name, number = summary.forked_from[0] or layout.MAIN, summary.forked_from[1]
            return (f"{name}@{number}",), self._manifest(name, number)[1] is None
        # Searched, not walked through: a log asks this of every version.
        place = bisect_left(numbers, summary.number)
        before = numbers[place - 1] if place else 0
        wanted = summary.number - 1
        # Only a merge leaves numbers out on purpose, to come after what it merged; and it is made from what it read.
        if before != wanted and before == summary.read_version and MERGE in summary.properties:
            wanted = before
        return ((f"{branch}@{wanted}",), before != wanted) if wanted else ((), False)

    def _manifest(self, branch: str, number: int) -> tuple[str, bytes | None]:
        path = self.manifest_path(branch, number)
        data = self.store.get(path)
        if data is not None:
            return path, data
        names = (layout.manifest_name(number), layout.old_manifest_name(number))
        other = next(found for name in names if (found := f"{self._folder(branch)}/{name}") != path)
        return other, self.store.get(other)

    def _known(self, branch: str, names: Sequence[str]) -> list[int]:
        present, old = layout.versions_in(names)
        if present and old:
            raise CorruptFileError(
                layout.join(self.store.uri, self._folder(branch)),
                f"it names versions by both schemes, such as {layout.old_manifest_name(old[0])} and "
                f"{layout.manifest_name(present[0])}; migrate_manifest_names() finishes what was begun",
            )
        (self._old_named.add if old else self._old_named.discard)(branch)
        return present or old

    def _folder(self, branch: str) -> str:
        return layout.join(layout.line_root(branch), layout.VERSIONS)

    def _stored_transaction(self, branch: str, manifest: Manifest) -> Transaction | None:
        if not manifest.transaction_file:
            return None
        folder = layout.join(layout.line_root(branch), layout.TRANSACTIONS)
        path = f"{folder}/{manifest.transaction_file}"
        data = self.store.get(path)
        return None if data is None else decode_transaction(data, f"{self.store.uri}/{path}")

    def _missing(self, branch: str, number: int) -> str:
        numbers = self.numbers(branch)
        known = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
        return f"branch {branch!r} of {self.store.uri} has no version {number}; {known}"
