"""What lies in a table's folder: every object sorted by the branch it belongs to and by what it is.

Only names of the forms that Lance and this package write are recognized. Whatever else lies there, folders of other
tables and base paths included, belongs to somebody else and is only counted.

Manifests that wait: of versions that expired, and of branches that were deleted.

Nobody new can reach such a version. Its files stay while its copy in `_expired/` is young, for whoever had read it a
moment before: to restore it, or to merge it.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

from lance_dagster.format import layout
from lance_dagster.store import Entry, Store
from lance_dagster.transactions.identity import commit_id

EXPIRED = "_expired"
"""The folder in which the manifests of expired versions wait, under the name of their branch."""
DETACHED_FROM = 2**63
"""Numbers from here on are those of detached versions."""
_TREE = "tree/"
_CLAIM = ".clone"
_DETACHED = re.compile(r"d(\d{19,20})\.manifest")
_WAITING = re.compile(r"(\d{1,20})-([0-9a-f]{8})-[0-9a-f]{16}\.manifest")
FOLDERS = frozenset({layout.VERSIONS, layout.TRANSACTIONS, layout.DELETIONS, layout.INDICES, layout.DATA})
_SUFFIXES = {layout.TRANSACTIONS: (".txn",), layout.DELETIONS: (".arrow", ".bin"), layout.DATA: (".lance",)}


class Kind(StrEnum):
    """What an object is."""

    VERSION = "versions"
    DATA = "data files"
    BLOB = "blob files"
    DELETION = "deletion files"
    INDEX = "index files"
    TRANSACTION = "transaction files"
    TEMPORARY = "temporary files"
    HINT = "version hints"
    NAME = "names"
    UNKNOWN = "others"


_KINDS = {layout.TRANSACTIONS: Kind.TRANSACTION, layout.DELETIONS: Kind.DELETION, layout.DATA: Kind.DATA}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What an object is: of which branch, of what kind.

    `name` is what versions call it by: the key of a data, deletion or transaction file, the folder of an index, the
    data file that blobs belong to.
    """

    branch: str
    kind: Kind
    name: str


@dataclass(slots=True)
class BranchObjects:
    """The manifests of one branch by the numbers of their versions, and when anything of it was written last.

    Detached versions, which belong to no branch's history, are apart. `schemes` are the naming schemes in use.
    """

    branch: str
    manifests: dict[int, Entry] = field(default_factory=dict)
    detached: dict[int, Entry] = field(default_factory=dict)
    schemes: set[str] = field(default_factory=set)
    hints: list[Entry] = field(default_factory=list)
    modified: float = float("-inf")

    @property
    def mixed(self) -> bool:
        """Whether its versions have names of both schemes."""
        return len(self.schemes) > 1


@dataclass(slots=True)
class Inventory:
    """Everything in a table's folder. `names` says when each file of a branch or tag was written last."""

    lines: dict[str, BranchObjects] = field(default_factory=dict)
    files: dict[Kind, list[tuple[Entry, StoredObject]]] = field(default_factory=dict)
    names: dict[str, float] = field(default_factory=dict)
    unknown: int = 0

    def line(self, branch: str) -> BranchObjects:
        """Return what there is of a branch."""
        return self.lines.setdefault(branch, BranchObjects(branch))


def take_inventory(entries: Iterable[Entry], branches: Collection[str]) -> Inventory:
    """Sort the objects of a table.

    Args:
        entries: Everything in its folder.
        branches: The names of its branches: one may be called like a folder of another.
    """
    found = Inventory()
    names = frozenset(branches)
    for entry in entries:
        place = classify_key(entry.key, names)
        if place.kind is Kind.UNKNOWN:
            found.unknown += 1
            continue
        if place.kind is Kind.NAME:
            found.names[entry.key] = entry.modified
            continue
        line = found.line(place.branch)
        if place.branch != layout.MAIN:
            line.modified = max(line.modified, entry.modified)
        if place.kind is Kind.VERSION:
            _add_version(line, entry)
        elif place.kind is Kind.HINT:
            line.hints.append(entry)
        else:
            found.files.setdefault(place.kind, []).append((entry, place))
    return found


def classify_key(key: str, branches: Collection[str]) -> StoredObject:
    """Say what an object is by its key."""
    segments = key.split("/")
    if segments[0] == EXPIRED:
        # Looked at by themselves, after everything else.
        return StoredObject(layout.MAIN, Kind.NAME, key)
    if segments[0] == "_refs":
        last = segments[-1]
        temporary = last.startswith((".tmp", ".probe-"))
        return StoredObject(layout.MAIN, Kind.TEMPORARY if temporary else Kind.NAME, key)
    if len(segments) == 1:
        temporary = key.startswith(".tmp") or key == _CLAIM
        return StoredObject(layout.MAIN, Kind.TEMPORARY if temporary else Kind.UNKNOWN, key)
    if segments[0] in FOLDERS:
        return _below(layout.MAIN, segments, key)
    if key.startswith(_TREE):
        ends = [end for end in range(2, len(segments) - 1) if segments[end] in FOLDERS]
        known = [end for end in ends if "/".join(segments[1:end]) in branches]
        if ends:
            end = known[-1] if known else ends[0]
            return _below("/".join(segments[1:end]), segments[end:], key)
    return StoredObject(layout.MAIN, Kind.UNKNOWN, key)


def _below(branch: str, segments: list[str], key: str) -> StoredObject:
    """Say what an object in a folder of a branch is."""
    folder, first, deeper = segments[0], segments[1], segments[2:]
    name = layout.join(layout.line_root(branch), folder, first)
    if any(segment.startswith(".tmp") for segment in segments[1:]):
        return StoredObject(branch, Kind.TEMPORARY, key)
    if deeper:
        kinds = {layout.INDICES: Kind.INDEX, layout.DATA: Kind.BLOB}
        named = f"{name}.lance" if folder == layout.DATA else name
        return StoredObject(branch, kinds[folder], named) if folder in kinds else _no(key)
    if folder == layout.VERSIONS:
        if f"{layout.VERSIONS}/{first}" == layout.HINT:
            return StoredObject(branch, Kind.HINT, key)
        numbered = layout.version_of(first) is not None or layout.old_version_of(first) is not None
        return StoredObject(branch, Kind.VERSION, key) if numbered or _DETACHED.fullmatch(first) else _no(key)
    if folder not in _SUFFIXES or not first.endswith(_SUFFIXES[folder]):
        return _no(key)
    return StoredObject(branch, _KINDS[folder], key)


def _no(key: str) -> StoredObject:
    return StoredObject(layout.MAIN, Kind.UNKNOWN, key)


def _add_version(line: BranchObjects, entry: Entry) -> None:
    name = entry.key.rpartition("/")[2]
    if detached := _DETACHED.fullmatch(name):
        line.detached[int(detached[1])] = entry
        return
    present, old = layout.version_of(name), layout.old_version_of(name)
    for scheme, number in (("present", present), ("first", old)):
        if number is not None:
            line.schemes.add(scheme)
            line.manifests[number] = entry


def expired_copy_key(branch: str, number: int, owner: str, digest: str) -> str:
    """Return where the manifest of an expired version waits.

    Args:
        branch: The branch it was of.
        number: The version's number.
        owner: The id of the branch: one that was deleted and made again has other versions of the same numbers.
        digest: Of the manifest.
    """
    return f"{EXPIRED}/{branch}/{number}-{_owner(owner)}-{digest[:16]}.manifest"


def expired_copies(entries: Iterable[Entry], owners: Mapping[str, str]) -> Iterator[tuple[str, int, Entry, bool]]:
    """Yield branch, number and manifest of each version that expired and waits, and whether the branch is the same.

    Args:
        entries: What is in the folder they wait in.
        owners: The ids of the branches there are by now.
    """
    for entry in entries:
        branch, _, name = entry.key.partition("/")[2].rpartition("/")
        match = _WAITING.fullmatch(name)
        if match and branch:
            yield branch, int(match[1]), entry, _owner(owners.get(branch, "")) == match[2]


def _owner(branch_id: str) -> str:
    return hashlib.sha256(branch_id.encode()).hexdigest()[:8]


_WORKERS = 8


def copy_to_expired(store: Store, branch: str, owner: str) -> None:
    """Copy all manifests of a branch that is about to be deleted to where they wait; `owner` is the branch's id."""
    folder = layout.join(layout.line_root(branch), layout.VERSIONS)

    def copy(name: str) -> None:
        data = store.get(f"{folder}/{name}")
        present, old = layout.versions_in([name])
        if data is not None and (present or old):
            key = expired_copy_key(branch, (present or old)[0], owner, commit_id(data))
            # A power cut that takes the copy with it also ends whoever needed it.
            store.put(key, data, lasting=False)

    with ThreadPoolExecutor(_WORKERS) as pool:
        # Asked for, so that a failure is raised here.
        list(pool.map(copy, store.list(folder)))
