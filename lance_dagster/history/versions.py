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

_FIRST_NAMES = 8
_KEPT_STATES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One committed state of a branch, printed `main@17`.

    `rows` counts the rows that are not deleted. `parents` are the versions it was made from, the second one of a
    merge being the version merged. `transaction` is the uuid of the change that made it.
    """

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

    def __str__(self) -> str:
        """Return the ref expression that names this version."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True, slots=True)
class State:
    """A version as the format has it: its manifest and the transaction that made it, where that still exists.

    `path` is where it was read from, for messages.
    """

    branch: str
    manifest: Manifest
    transaction: Transaction | None
    path: str = ""

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
    _states: dict[int, State] = field(default_factory=dict)
    _old_named: set[str] = field(default_factory=set)

    def line_uri(self, branch: str) -> str:
        """Return the URI of the folder a branch's own files lie in."""
        return layout.join(self.store.uri, layout.line_root(branch))

    def located(self, uri: str, key: str, base_id: int = 0) -> tuple[Store, str]:
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

    def exist(self, branch: str) -> bool:
        """Tell whether a branch has a version, without looking at how many."""
        first = layout.versions_in(self.store.some(self._folder(branch), _FIRST_NAMES))
        return any(first) or self.newest(branch) is not None

    def manifest_path(self, branch: str, number: int) -> str:
        """Return where a version's manifest lies, or is to be put: a branch keeps the naming scheme it has."""
        old = branch in self._old_named
        return f"{self._folder(branch)}/{layout.old_manifest_name(number) if old else layout.manifest_name(number)}"

    def load(self, branch: str, number: int) -> State:
        """Read one version.

        Raises:
            VersionNotFoundError: There is none of that number.
        """
        known = self._states.get(number) if branch == layout.MAIN else None
        if known is not None:
            return known
        path, data = self._manifest(branch, number)
        if data is None:
            raise VersionNotFoundError(self._missing(branch, number))
        manifest, transaction = decode_manifest_file(data, f"{self.store.uri}/{path}")
        if manifest.version != number:
            raise CorruptFileError(f"{self.store.uri}/{path}", f"it says it is version {manifest.version}")
        if (manifest.branch or layout.MAIN) != branch:
            raise CorruptFileError(f"{self.store.uri}/{path}", f"it says it is of branch {manifest.branch!r}")
        found = transaction or self._stored_transaction(branch, manifest)
        state = State(branch, manifest, found, f"{self.store.uri}/{path}")
        if branch == layout.MAIN:
            # Only main: a branch that was deleted and made again has other versions under the same numbers.
            self._states[number] = state
            if len(self._states) > _KEPT_STATES:
                self._states.pop(next(iter(self._states)))
        return state

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
            operation=transaction.operation_name if transaction else "",
            properties=transaction.properties if transaction else {},
            forked_from=(operation.ref_name, operation.ref_version) if isinstance(operation, Clone) else None,
        )
        return _version(state.branch, summary, numbers if numbers is not None else self.numbers(state.branch))

    def describe_number(self, branch: str, number: int, numbers: Sequence[int]) -> Version:
        """Say the same of a version that was not read yet; reads no more than it takes."""
        path, data = self._manifest(branch, number)
        summary = None if data is None else summarize(data, f"{self.store.uri}/{path}")
        # One without its transaction in it has it in a file of its own, or nowhere.
        if summary is None or summary.number != number:
            return self.describe(self.load(branch, number), numbers)
        return _version(branch, summary, numbers)

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


def _version(branch: str, summary: Summary, numbers: Sequence[int]) -> Version:
    writer = "an unknown program" if summary.writer is None else " ".join(summary.writer)
    properties = summary.properties
    # Searched, not walked through: a log asks this of every version.
    place = bisect_left(numbers, summary.number)
    parents = [f"{branch}@{numbers[place - 1]}"] if place else []
    if summary.forked_from is not None and branch != layout.MAIN:
        name, number = summary.forked_from
        parents = [f"{name or layout.MAIN}@{number}"]
    merged = properties.get(MERGE)
    return Version(
        branch=branch,
        number=summary.number,
        committed_at=pendulum.from_timestamp(summary.timestamp / 1e9),
        operation=summary.operation or "unknown",
        rows=summary.rows,
        message=properties.get(MESSAGE),
        committer=properties.get(COMMITTER, writer),
        writer=writer,
        properties=properties,
        parents=(*parents, merged) if merged is not None else tuple(parents),
        transaction=summary.transaction,
    )
