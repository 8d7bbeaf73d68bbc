"""The objects in a table's folder by branch and kind, and the copies of expired manifests.

Only keys of the forms that Lance and this package write are recognised. Every other object, folders of other tables
and base paths included, belongs to somebody else: it is counted and never touched.

A version that expired, or whose branch was deleted, leaves a copy of its manifest in `_expired/`. No new reader can
reach the version. Its files stay while the copy is young, for writers that read the version just before: to restore it,
or to merge it.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lance_dagster.format import layout
from lance_dagster.format.codec import commit_id
from lance_dagster.store import PROBE_OBJECT, ObjectInfo, Store, concurrently

EXPIRED = "_expired"
"""The folder of the copies of expired manifests, one folder for each branch."""
DETACHED_FROM = 2**63
"""Version numbers from here on belong to detached versions."""
_TREE = "tree/"
_CLONE_MARKER = ".clone"
_DETACHED = re.compile(r"d(\d{19,20})\.manifest")
_EXPIRED_NAME = re.compile(r"(\d{1,20})-([0-9a-f]{8})-[0-9a-f]{16}\.manifest")
FOLDERS = frozenset({layout.VERSIONS, layout.TRANSACTIONS, layout.DELETIONS, layout.INDICES, layout.DATA})
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SUFFIXES = {layout.TRANSACTIONS: (".txn",), layout.DELETIONS: (".arrow", ".bin"), layout.DATA: (".lance",)}


class Kind(StrEnum):
    """The kind of an object."""

    VERSION = "versions"
    DATA = "data files"
    BLOB = "blob files"
    DIGEST = "digests"
    COPY = "copies under base paths"
    DELETION = "deletion files"
    INDEX = "index files"
    TRANSACTION = "transaction files"
    TEMPORARY = "temporary files"
    HINT = "version hints"
    NAME = "names"
    UNKNOWN = "others"


_TMP = ".tmp"
_BLOB = ".blob"
_KINDS = {layout.TRANSACTIONS: Kind.TRANSACTION, layout.DELETIONS: Kind.DELETION, layout.DATA: Kind.DATA}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The classification of an object, from its key alone.

    Attributes:
        branch: The branch it belongs to.
        kind: What it is.
        name: What versions name it by: the key of a data, deletion or transaction file, the folder of an index, or the
            data file that a blob file or a digest belongs to.
    """

    branch: str
    kind: Kind
    name: str


@dataclass(slots=True)
class BranchObjects:
    """The manifests of one branch.

    Attributes:
        branch: The name of the branch.
        manifests: Entries of the manifests by version number.
        detached: The same for detached versions, which are in no branch's history.
        schemes: The naming schemes in use.
        hints: The version hint files.
        modified: When any object of the branch was written last; not kept for `main`.
    """

    branch: str
    manifests: dict[int, ObjectInfo] = field(default_factory=dict)
    detached: dict[int, ObjectInfo] = field(default_factory=dict)
    schemes: set[str] = field(default_factory=set)
    hints: list[ObjectInfo] = field(default_factory=list)
    modified: float = float("-inf")

    @property
    def mixed(self) -> bool:
        """Whether its manifests have names of both schemes: an interrupted migration."""
        return len(self.schemes) > 1


@dataclass(slots=True)
class Inventory:
    """All objects in a table's folder. `names` says when each object below `_refs` and `_expired` was written last."""

    branches: dict[str, BranchObjects] = field(default_factory=dict)
    files: dict[Kind, list[tuple[ObjectInfo, StoredObject]]] = field(default_factory=dict)
    names: dict[str, float] = field(default_factory=dict)
    unknown: int = 0

    def of_branch(self, branch: str) -> BranchObjects:
        """Return the objects of a branch, none at first."""
        return self.branches.setdefault(branch, BranchObjects(branch))


def take_inventory(entries: Iterable[ObjectInfo], branches: Collection[str]) -> Inventory:
    """Sort the objects of a table.

    Args:
        entries: A listing of the table's whole folder.
        branches: The names of its branches. They are needed since a branch `a/data` lies where the data folder of a
            branch `a` would be.
    """
    inventory = Inventory()
    names = frozenset(branches)
    for entry in entries:
        place = classify_key(entry.key, names)
        # A collection never touches an unknown file: it may belong to another table or program.
        if place.kind is Kind.UNKNOWN:
            inventory.unknown += 1
            continue
        if place.kind is Kind.NAME:
            inventory.names[entry.key] = entry.modified
            continue
        objects = inventory.of_branch(place.branch)
        if place.branch != layout.MAIN:
            # `main` always exists; of another branch a collection asks whether somebody is creating it just now.
            objects.modified = max(objects.modified, entry.modified)
        if place.kind is Kind.VERSION:
            _add_version(objects, entry)
        elif place.kind is Kind.HINT:
            objects.hints.append(entry)
        else:
            inventory.files.setdefault(place.kind, []).append((entry, place))
    return inventory


def classify_key(key: str, branches: Collection[str]) -> StoredObject:
    """Classify an object by its key."""
    segments = key.split("/")
    if segments[0] == EXPIRED:
        # Expired manifests are listed separately, after everything else.
        return StoredObject(layout.MAIN, Kind.NAME, key)
    if segments[0] == "_refs":
        name = segments[-1]
        temporary = name.startswith((".tmp", ".probe-")) and key != PROBE_OBJECT
        return StoredObject(layout.MAIN, Kind.TEMPORARY if temporary else Kind.NAME, key)
    if len(segments) == 1:
        temporary = key.startswith(".tmp") or key == _CLONE_MARKER
        return StoredObject(layout.MAIN, Kind.TEMPORARY if temporary else Kind.UNKNOWN, key)
    if segments[0] in FOLDERS:
        return _below(layout.MAIN, segments, key)
    if key.startswith(_TREE):
        # The branch name ends before one of the known folders. A branch that exists decides which; otherwise the first
        # does, so that leftovers count as files of the shorter name.
        ends = [end for end in range(2, len(segments) - 1) if segments[end] in FOLDERS]
        existing = [end for end in ends if "/".join(segments[1:end]) in branches]
        if ends:
            end = existing[-1] if existing else ends[0]
            return _below("/".join(segments[1:end]), segments[end:], key)
    return StoredObject(layout.MAIN, Kind.UNKNOWN, key)


def _below(branch: str, segments: list[str], key: str) -> StoredObject:
    """Classify an object in one of the folders of a branch."""
    folder, first, deeper = segments[0], segments[1], segments[2:]
    name = layout.join(layout.branch_root(branch), folder, first)
    # This is an unfinished local write: it is deleted by its age, like any file that no version names.
    if first.startswith(_TMP):
        return StoredObject(branch, Kind.TEMPORARY, key)
    if deeper:
        kind = _kind_in_folder(folder, first, deeper)
        named = {Kind.INDEX: name, Kind.BLOB: f"{name}.lance", Kind.TEMPORARY: key}
        return StoredObject(branch, kind, named[kind]) if kind in named else _unknown(key)
    if folder == layout.VERSIONS:
        if f"{layout.VERSIONS}/{first}" == layout.VERSION_HINT:
            return StoredObject(branch, Kind.HINT, key)
        if layout.is_staged_manifest(first):
            return StoredObject(branch, Kind.TEMPORARY, key)
        numbered = layout.parse_manifest_name(first) is not None or layout.parse_manifest_name_v1(first) is not None
        return StoredObject(branch, Kind.VERSION, key) if numbered or _DETACHED.fullmatch(first) else _unknown(key)
    digest = layout.parse_digest_file(first) if folder == layout.DATA else None
    if digest is not None:
        return StoredObject(branch, Kind.DIGEST, layout.join(layout.branch_root(branch), folder, digest[0]))
    if folder not in _SUFFIXES or not first.endswith(_SUFFIXES[folder]):
        return _unknown(key)
    return StoredObject(branch, _KINDS[folder], key)


def _kind_in_folder(folder: str, first: str, deeper: list[str]) -> Kind:
    """Return the kind of an object in a folder inside one of the folders of a branch, from the names below that."""
    # The folder of an index has its uuid as name. The folder of blob files has the name of the data file, which may be
    # any name, and holds no folder: a whole table, or a tree that belongs to somebody else, may lie in `data/`.
    indexed = folder == layout.INDICES and _UUID.fullmatch(first) is not None
    if not indexed and (folder != layout.DATA or len(deeper) > 1):
        return Kind.UNKNOWN
    if any(segment.startswith(_TMP) for segment in deeper):
        return Kind.TEMPORARY
    if indexed:
        return Kind.INDEX
    digest = layout.parse_digest_file(deeper[0])
    return Kind.BLOB if (digest[0] if digest else deeper[0]).endswith(_BLOB) else Kind.UNKNOWN


def _unknown(key: str) -> StoredObject:
    return StoredObject(layout.MAIN, Kind.UNKNOWN, key)


def _add_version(objects: BranchObjects, entry: ObjectInfo) -> None:
    name = entry.key.rpartition("/")[2]
    if detached := _DETACHED.fullmatch(name):
        objects.detached[int(detached[1])] = entry
        return
    present, old = layout.parse_manifest_name(name), layout.parse_manifest_name_v1(name)
    # The schemes differ in the number of digits, so at most one of the two numbers is set.
    for scheme, number in (("present", present), ("first", old)):
        if number is not None:
            objects.schemes.add(scheme)
            objects.manifests[number] = entry


def expired_copy_key(branch: str, number: int, owner: str, digest: str) -> str:
    """Return the key of the copy of an expired manifest.

    Args:
        branch: The name of its branch.
        number: The version number.
        owner: The id of the branch: a branch that was deleted and made again has other versions of the same numbers.
        digest: The commit id of the version.
    """
    return f"{EXPIRED}/{branch}/{number}-{owner_digest(owner)}-{digest[:16]}.manifest"


def expired_copies(
    entries: Iterable[ObjectInfo], owners: Mapping[str, str]
) -> Iterator[tuple[str, int, ObjectInfo, bool]]:
    """Yield the branch, number and entry of each expired manifest, and whether the branch is still the same branch.

    Args:
        entries: A listing of `_expired/`.
        owners: The ids of the present branches, by name.
    """
    for branch, number, entry, owner in parsed_copies(entries):
        yield branch, number, entry, owner_digest(owners.get(branch, "")) == owner


def parsed_copies(entries: Iterable[ObjectInfo]) -> Iterator[tuple[str, int, ObjectInfo, str]]:
    """Yield the branch, number, entry and digest of the branch id of each expired manifest."""
    for entry in entries:
        branch, _, name = entry.key.partition("/")[2].rpartition("/")
        match = _EXPIRED_NAME.fullmatch(name)
        if match and branch:
            yield branch, int(match[1]), entry, match[2]


def newest_expired_copy(store: Store, branch: str, owner: str, number: int) -> bytes | None:
    """Read the newest copy of the manifest of an expired version; return None when there is none."""
    key = newest_expired_copies(store, branch, owner).get(number)
    return None if key is None else store.get(key)


def newest_expired_copies(store: Store, branch: str, owner: str) -> dict[int, str]:
    """Return the key of the newest copy of each expired version of a branch, by its number."""
    copies = expired_copies(store.walk(f"{EXPIRED}/{branch}"), {branch: owner})
    own_copies = [(number, entry) for name, number, entry, same in copies if same and name == branch]
    return {number: entry.key for number, entry in sorted(own_copies, key=lambda copy: copy[1].modified)}


def newest_copies_of(store: Store, owner: str) -> dict[str, int]:
    """Return the highest number of a copied version of a branch, by each name that the branch had."""
    own, newest = owner_digest(owner), dict[str, int]()
    for name, number, _, digest in parsed_copies(store.walk(EXPIRED)):
        if digest == own:
            newest[name] = max(number, newest.get(name, 0))
    return newest


def owner_digest(branch_id: str) -> str:
    """Return the digest of a branch id that the keys of the branch's copies have."""
    # A digest has a fixed form, so the key can be parsed whatever the id of the branch is.
    return hashlib.sha256(branch_id.encode()).hexdigest()[:8]


def copy_to_expired(
    store: Store, branch: str, owner: str, manifests: Mapping[int, str], *, cached: Callable[[int], bytes | None]
) -> None:
    """Copy manifests of a branch that are about to be deleted to `_expired/`.

    Args:
        store: The store of the table.
        branch: The branch.
        owner: The id of the branch.
        manifests: The keys of the manifests by version number.
        cached: Returns the bytes of a manifest that was read before, by its number; else None.
    """

    def copy(number: int) -> None:
        data = cached(number) or store.get(manifests[number])
        if data is not None:
            key = expired_copy_key(branch, number, owner, commit_id(data))
            # The copy is not synced: it serves writers that are at work now, and a power cut ends those too.
            store.put(key, data, durable=False)

    concurrently(copy, manifests)
