"""Say of every file of a table whether it is named, waits, may be about to be named, or is garbage.

Take away what a table's mark found to be garbage: manifests first, names looked at again, files last.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from lance_dagster.errors import ConflictError, NotFoundError, ProtectedError
from lance_dagster.format import layout
from lance_dagster.gc.mark import Marks, RetentionPolicy, StoredVersion
from lance_dagster.gc.reachability import needed_by_names, owners
from lance_dagster.history.inventory import DETACHED_FROM, FOLDERS, Inventory, Kind, StoredObject, expired_copy_key
from lance_dagster.history.refs.branch_operations import delete_branch
from lance_dagster.history.refs.ref_store import Branch, Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import Entry, Store
from lance_dagster.transactions.identity import commit_id

_TOGETHER = frozenset({Kind.DATA, Kind.BLOB, Kind.INDEX})
"""What consists of several files: as young as the youngest of them."""


@dataclass(slots=True)
class ClassifiedFiles:
    """The files that no version that stays names, by what becomes of them."""

    garbage: dict[Kind, list[Entry]] = field(default_factory=dict)
    waiting: dict[Kind, list[Entry]] = field(default_factory=dict)
    young: dict[Kind, list[Entry]] = field(default_factory=dict)

    @property
    def files(self) -> Iterator[Entry]:
        """Everything that is garbage."""
        for entries in self.garbage.values():
            yield from entries


def classify_files(
    inventory: Inventory, mark: Marks, terms: RetentionPolicy, settled: Sequence[StoredVersion]
) -> ClassifiedFiles:
    """Sort files by what becomes of them.

    Args:
        inventory: Everything there is.
        mark: What versions name.
        terms: How old is old enough.
        settled: Versions that expired long enough ago.
    """
    judged = ClassifiedFiles()
    over = terms.now - terms.grace
    youngest: dict[str, float] = {}
    for kind in _TOGETHER:
        for entry, place in inventory.files.get(kind, ()):
            youngest[place.name] = max(entry.modified, youngest.get(place.name, entry.modified))
    for kind, files in inventory.files.items():
        for entry, place in files:
            if _named(mark.by_kept.has, entry, place):
                continue
            old = youngest.get(place.name, entry.modified) <= over
            if terms.settling and _named(mark.by_expired.has, entry, place):
                judged.waiting.setdefault(kind, []).append(entry)
            else:
                (judged.garbage if old else judged.young).setdefault(kind, []).append(entry)
    hints = [hint for branch in mark.dead for hint in inventory.line(branch).hints if hint.modified <= over]
    judged.garbage[Kind.HINT] = hints
    judged.garbage[Kind.VERSION] = [found.entry for found in settled]
    return judged


def _named(has: Callable[[str], bool], entry: Entry, place: StoredObject) -> bool:
    return has(place.name) or (place.kind is Kind.BLOB and has(entry.key))


_log = logging.getLogger(__name__)
_WORKERS = 8
_AT_ONCE = 1000


class Sweeper:
    """Deletes from one table. Every step can be done twice."""

    def __init__(self, store: Store, branches: Mapping[str, Branch], step: Callable[[], None]) -> None:
        """Take the table and the branches it had when its versions were listed."""
        self._store = store
        self._refs = Refs(store)
        self._versions = Versions(store)
        self._before = branches
        self._step = step
        self._copies: dict[StoredVersion, str] = {}

    def expire(self, versions: Sequence[StoredVersion]) -> tuple[list[StoredVersion], list[StoredVersion]]:
        """Put versions out of reach.

        Returns:
            Those that expired, and those that somebody named at the same moment and that are back in their places.
        """
        going, _ = self._looked_up(versions)
        with ThreadPoolExecutor(_WORKERS) as pool:
            copies = dict(zip(going, pool.map(self._copy, going), strict=True))
        # Oldest first: after a crash the history of a branch begins later, and has no hole it did not have.
        self._delete([found.entry for found in going])
        for branch in {found.branch for found in going}:
            # Or a power cut brings a version back whose files are gone.
            self._store.sync_folder(layout.join(layout.line_root(branch), layout.VERSIONS))
        self._copies = copies
        _, back = self._looked_up(going)
        self._put_back(replace(found, entry=replace(found.entry, key=copies[found])) for found in back)
        again = frozenset(back)
        return [found for found in going if found not in again], back

    def forget(self, expired: Iterable[StoredVersion]) -> None:
        """Delete the copies of versions that expired in this run."""
        self._store.delete_many([self._copies[found] for found in expired])

    def put_back(self, versions: Sequence[StoredVersion]) -> list[StoredVersion]:
        """Make versions reachable again whose manifests wait; returns those whose branch still is the same."""
        # A branch that was made anew meanwhile has no use for what the one before it had.
        found = [version for some in self._looked_up(versions) for version in some]
        self._put_back(found)
        return found

    def _put_back(self, versions: Iterable[StoredVersion]) -> None:
        for found in versions:
            data = self._store.get(found.entry.key)
            if data is not None:
                self._store.put_if_absent(self._place(found), data)
                self._store.delete(found.entry.key)

    def delete_files(self, judged: ClassifiedFiles) -> None:
        """Delete garbage, and the folders that leaves empty."""
        self._delete(list(judged.files))
        several = (Kind.INDEX, Kind.BLOB, Kind.TEMPORARY, Kind.VERSION)
        folders = {entry.key.rpartition("/")[0] for kind in several for entry in judged.garbage.get(kind, ())}
        for folder in folders:
            # Those that every table has stay.
            if folder and folder.rpartition("/")[2] not in FOLDERS and not folder.startswith("_refs"):
                self._store.prune(folder)

    def free(self, names: Iterable[str], kept: Collection[str]) -> list[str]:
        """Free the names of dead branches of which nothing is needed; returns the branches that are gone."""
        gone: list[str] = []
        for name in sorted(names):
            root = layout.line_root(name)
            if any(key.startswith(f"{root}/") for key in kept) or any(self._versions.numbers(name)):
                continue
            branch = self._refs.branch(name)
            if branch is not None and branch.id == self._id(name):
                try:
                    delete_branch(name, self._refs, self._versions)
                except (ConflictError, NotFoundError, ProtectedError) as error:
                    # Somebody refers to it, or made it anew: it is no garbage any more.
                    _log.warning("branch %r of %s stays: %s", name, self._store.uri, error)
                    continue
            for folder in FOLDERS:
                self._store.prune(f"{root}/{folder}")
            gone.append(name)
        return gone

    def _looked_up(self, versions: Sequence[StoredVersion]) -> tuple[list[StoredVersion], list[StoredVersion]]:
        """Look at the names there are by now: which versions still nobody needs, and which somebody does.

        Those of a branch that came, went, or came back meanwhile are neither: they are for the next collection.
        """
        branches = self._refs.branches()
        needs = needed_by_names(branches, self._refs.tags())
        lines = {found.branch for found in versions}
        same = {name for name in lines if self._of(branches, name) == self._of(self._before, name)}
        free: list[StoredVersion] = []
        needed: list[StoredVersion] = []
        for found in versions:
            if found.branch in same:
                (needed if (found.branch, found.number) in needs.reasons else free).append(found)
        return free, needed

    @staticmethod
    def _of(branches: Mapping[str, Branch], name: str) -> tuple[str, str] | None:
        branch = branches.get(name)
        return None if branch is None else (branch.id, branch.state)

    def _id(self, name: str) -> str:
        return owners(self._before).get(name, "")

    def _copy(self, found: StoredVersion) -> str:
        """Copy a manifest to where it waits; returns the copy's key."""
        data = self._store.get(found.entry.key)
        key = expired_copy_key(found.branch, found.number, self._id(found.branch), commit_id(data or b""))
        if data is not None:
            # A power cut that takes the copy with it also ends whoever needed it.
            self._store.put(key, data, lasting=False)
        return key

    def _place(self, found: StoredVersion) -> str:
        folder = layout.join(layout.line_root(found.branch), layout.VERSIONS)
        if found.number >= DETACHED_FROM:
            return f"{folder}/d{found.number}.manifest"
        # The scheme of its names is known once they were listed.
        self._versions.numbers(found.branch)
        return self._versions.manifest_path(found.branch, found.number)

    def _delete(self, entries: Sequence[Entry]) -> None:
        for start in range(0, len(entries), _AT_ONCE):
            some = entries[start : start + _AT_ONCE]
            self._store.delete_many([entry.key for entry in some])
            for _ in some:
                self._step()
