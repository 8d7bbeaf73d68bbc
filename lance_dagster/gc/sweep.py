"""Sweep phase of garbage collection: classify files, move expired manifests away, delete files last.

`classify_files` decides for every file whether a version names it, whether it has to settle, whether it is too young,
or whether it is garbage. `Sweeper` then acts, in this order:

1. Copy the manifests of expired versions to `_expired/`, then delete the originals. From here on no new reader or
   writer reaches those versions.
2. Read the refs again. A version that a tag or a fork named in the meantime is put back from its copy.
3. Delete the copies of versions that have settled, and read the branches again. A branch that was recovered from such
   copies has its file by then, and no file is deleted; a recovery that begins later finds no copies.
4. Delete the files. Nothing that is deleted here is named by a version that is reachable or settling.
5. Delete branches that nobody can reach, when none of their files is named.

Every step is idempotent, so a collection that crashed is finished by the next collection.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_dagster.errors import ConflictError, NotFoundError, ProtectedError
from lance_dagster.format import layout
from lance_dagster.format.codec import commit_id
from lance_dagster.gc.base_files import BaseFile, delete_base_files
from lance_dagster.gc.copy_records import data_file_of
from lance_dagster.gc.mark import Marks, RetentionPolicy, StoredVersion
from lance_dagster.gc.reachability import branch_ids, required_by_refs
from lance_dagster.history.inventory import (
    DETACHED_FROM,
    FOLDERS,
    Inventory,
    Kind,
    StoredObject,
    expired_copy_key,
    owner_digest,
    parsed_copies,
)
from lance_dagster.history.refs.branch_operations import delete_branch
from lance_dagster.history.refs.ref_files import Branch
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import ObjectInfo, Store, concurrently, put_once

_TOGETHER = frozenset({Kind.DATA, Kind.BLOB, Kind.DIGEST, Kind.INDEX})
"""Kinds that consist of several files, which are as old as their youngest file: a writer may be adding to them."""


@dataclass(slots=True)
class ClassifiedFiles:
    """The files that no remaining version names: garbage, settling (named by an expired version), or too young."""

    garbage: dict[Kind, list[ObjectInfo]] = field(default_factory=dict)
    waiting: dict[Kind, list[ObjectInfo]] = field(default_factory=dict)
    young: dict[Kind, list[ObjectInfo]] = field(default_factory=dict)
    outside: list[BaseFile] = field(default_factory=list)
    """The garbage under base paths, which is in `garbage` too, by its URI."""
    kept_outside: list[BaseFile] = field(default_factory=list)
    """The other copies under base paths."""

    @property
    def files(self) -> Iterator[ObjectInfo]:
        """All files that are garbage."""
        for entries in self.garbage.values():
            yield from entries


def classify_files(
    inventory: Inventory,
    marks: Marks,
    policy: RetentionPolicy,
    settled: Sequence[StoredVersion],
    *,
    copying: Collection[str] = (),
) -> ClassifiedFiles:
    """Classify the files that no remaining version names.

    Args:
        inventory: All objects of the table.
        marks: The result of the mark phase.
        policy: The ages that decide.
        settled: Expired versions whose settling time is over; their manifest copies are garbage.
        copying: Data files that somebody may be about to write again and to commit; they count as young.
    """
    judged = ClassifiedFiles()
    over = policy.now - policy.grace
    youngest: dict[str, float] = {}
    for kind in _TOGETHER:
        for entry, place in inventory.files.get(kind, ()):
            youngest[place.name] = max(entry.modified, youngest.get(place.name, entry.modified))
    for kind, files in inventory.files.items():
        for entry, place in files:
            if _named(marks.by_kept.has, entry, place):
                continue
            # Files that belong together have one age: deleting half of an index would break the other half.
            old = youngest.get(place.name, entry.modified) <= over and place.name.rpartition("/")[2] not in copying
            # With a settling time of zero, files of expired versions are garbage at once.
            if policy.settling and _named(marks.by_expired.has, entry, place):
                judged.waiting.setdefault(kind, []).append(entry)
            else:
                (judged.garbage if old else judged.young).setdefault(kind, []).append(entry)
    hints = [hint for branch in marks.dead for hint in inventory.of_branch(branch).hints if hint.modified <= over]
    judged.garbage[Kind.HINT] = hints
    judged.garbage[Kind.VERSION] = [version.entry for version in settled]
    return judged


def with_base_files(
    judged: ClassifiedFiles,
    files: Sequence[BaseFile],
    marks: Marks,
    policy: RetentionPolicy,
    *,
    copying: Collection[str],
) -> ClassifiedFiles:
    """Classify copies under base paths in the same way; in the result they stand by their URIs."""
    over = policy.now - policy.grace
    youngest: dict[tuple[float, str], float] = {}
    for file in files:
        group = file.place, file.data_file
        youngest[group] = max(file.entry.modified, youngest.get(group, file.entry.modified))
    for file in files:
        place = file.place, file.data_file
        if marks.by_kept.has_outside(file.data_file, file.place):
            judged.kept_outside.append(file)
            continue
        old = youngest[place] <= over and file.data_file not in copying
        waits = bool(policy.settling) and marks.by_expired.has_outside(file.data_file, file.place)
        (judged.outside if old and not waits else judged.kept_outside).append(file)
        by_kind = judged.waiting if waits else judged.garbage if old else judged.young
        entry = replace(file.entry, key=f"{file.store.uri}/{file.entry.key}")
        by_kind.setdefault(Kind.COPY, []).append(entry)
    return judged


def _named(has: Callable[[str], bool], entry: ObjectInfo, place: StoredObject) -> bool:
    return has(place.name) or (place.kind is Kind.BLOB and has(entry.key))


_log = logging.getLogger(__name__)
_AT_ONCE = 1000


class Sweeper:
    """Deletes from one table. Every step is idempotent."""

    def __init__(self, store: Store, branches: Mapping[str, Branch], step: Callable[[], None]) -> None:
        """Take the table, and its branches as they were when the versions were listed."""
        self._store = store
        self._refs = Refs(store)
        self._versions = Versions(store)
        self._before = branches
        self._step = step
        self._copies: dict[StoredVersion, str] = {}

    def expire(self, versions: Sequence[StoredVersion]) -> tuple[list[StoredVersion], list[StoredVersion]]:
        """Make versions unreachable: copy their manifests to `_expired/` and delete the originals.

        Returns:
            The versions that expired, and the versions that were put back, since a ref named them meanwhile.
        """
        # A ref may have named a version since the mark phase.
        going, _ = self._recheck_refs(versions)
        copies = dict(zip(going, concurrently(self._copy, going), strict=True))
        # The originals are deleted only after every copy exists, so that each can be put back. The oldest go first, so
        # that a crash leaves a history that begins later, and no new gap in it.
        self._delete([version.entry for version in going])
        for branch in {version.branch for version in going}:
            # Without the sync a power cut could bring a version back whose files are deleted by then.
            self._store.sync_folder(layout.join(layout.branch_root(branch), layout.VERSIONS))
        self._copies = copies
        # The refs are read after the deletion: whoever read the version before and names it now is seen here.
        _, back = self._recheck_refs(going)
        self._restore_manifests(replace(version, entry=replace(version.entry, key=copies[version])) for version in back)
        again = frozenset(back)
        return [version for version in going if version not in again], back

    def forget(self, expired: Iterable[StoredVersion]) -> None:
        """Delete the copies of versions that expired in this run."""
        self._store.delete_many([self._copies[version] for version in expired])

    def put_back(self, versions: Sequence[StoredVersion]) -> list[StoredVersion]:
        """Put expired versions back, and return them, unless their branch was replaced meanwhile."""
        # Versions of a branch that was deleted and made again meanwhile do not belong to the new branch.
        present = [version for part in self._recheck_refs(versions) for version in part]
        self._restore_manifests(present)
        return present

    def _restore_manifests(self, versions: Iterable[StoredVersion]) -> None:
        for version in versions:
            data = self._store.get(version.entry.key)
            if data is not None:
                # This never overwrites: another process may have put the manifest back already.
                put_once(self._store, self._manifest_path(version), data)
                self._store.delete(version.entry.key)

    def delete_copies(self, settled: Sequence[StoredVersion]) -> bool:
        """Delete the copies of settled versions; return False where one of their branches was recovered meanwhile."""
        # The oldest go first: after a crash the first version of a branch is missing, and nothing recovers it in part.
        self._delete(
            [version.entry for version in sorted(settled, key=lambda version: (version.branch, version.number))]
        )
        owners = {owner for *_, owner in parsed_copies(version.entry for version in settled)}
        if not owners:
            return True
        # The branches are read after the deletion: a recovery whose branch is not there yet looks for copies later.
        now = self._refs.branches.all()
        changed = {branch.id for name, branch in now.items() if self._before.get(name) != branch}
        return owners.isdisjoint(map(owner_digest, changed))

    def delete_files(self, judged: ClassifiedFiles, copying: Collection[str] = ()) -> None:
        """Delete garbage, and the folders that become empty; not the data files that are being copied."""
        # Copies of manifests are deleted before the files, and copies under base paths through other stores.
        elsewhere = (Kind.VERSION, Kind.COPY)
        garbage = [entry for kind, entries in judged.garbage.items() if kind not in elsewhere for entry in entries]
        if copying:
            garbage = [
                entry for entry in garbage if data_file_of(entry.key.removeprefix(f"{layout.DATA}/")) not in copying
            ]
        self._delete(garbage)
        delete_base_files(judged.outside, copying)
        kinds = (Kind.INDEX, Kind.BLOB, Kind.TEMPORARY, Kind.VERSION)
        folders = {entry.key.rpartition("/")[0] for kind in kinds for entry in judged.garbage.get(kind, ())}
        for folder in folders:
            # The folders that every table has stay, also when they are empty.
            if folder and folder.rpartition("/")[2] not in FOLDERS and not folder.startswith("_refs"):
                self._store.prune(folder)

    def free(self, names: Iterable[str], named_keys: Collection[str]) -> list[str]:
        """Delete dead branches without a file that a version names; return their names."""
        freed: list[str] = []
        for name in sorted(names):
            root = layout.branch_root(name)
            # A file below the branch is still named, for example by a branch that another program forked from it.
            if any(key.startswith(f"{root}/") for key in named_keys) or any(self._versions.numbers(name)):
                continue
            branch = self._refs.branches.find(name)
            if branch is not None and branch.id == self._id(name):
                try:
                    delete_branch(name, self._refs, self._versions)
                except (ConflictError, NotFoundError, ProtectedError) as error:
                    # A ref names it, or it was made again, so it is not garbage any more.
                    _log.warning("branch %r of %s stays: %s", name, self._store.uri, error)
                    continue
            for folder in FOLDERS:
                self._store.prune(f"{root}/{folder}")
            freed.append(name)
        return freed

    def _recheck_refs(self, versions: Sequence[StoredVersion]) -> tuple[list[StoredVersion], list[StoredVersion]]:
        """Read the refs again; return the versions that no ref requires, and the versions that a ref requires.

        Versions of a branch that was created, deleted or replaced meanwhile are in neither list: the next collection
        decides about them.
        """
        branches = self._refs.branches.all()
        required = required_by_refs(branches, self._refs.tags.all())
        lines = {version.branch for version in versions}
        same = {name for name in lines if self._of(branches, name) == self._of(self._before, name)}
        free: list[StoredVersion] = []
        needed: list[StoredVersion] = []
        for version in versions:
            if version.branch in same:
                (needed if (version.branch, version.number) in required.reasons else free).append(version)
        return free, needed

    @staticmethod
    def _of(branches: Mapping[str, Branch], name: str) -> tuple[str, str] | None:
        branch = branches.get(name)
        return None if branch is None else (branch.id, branch.state)

    def _id(self, name: str) -> str:
        return branch_ids(self._before).get(name, "")

    def _copy(self, version: StoredVersion) -> str:
        """Copy a manifest to `_expired/`; return the key of the copy."""
        data = self._store.get(version.entry.key)
        key = expired_copy_key(version.branch, version.number, self._id(version.branch), commit_id(data or b""))
        if data is not None:
            # The copy is not synced: it serves writers that are at work now, and a power cut ends these writers too.
            self._store.put(key, data, durable=False)
        return key

    def _manifest_path(self, version: StoredVersion) -> str:
        folder = layout.join(layout.branch_root(version.branch), layout.VERSIONS)
        if version.number >= DETACHED_FROM:
            return f"{folder}/d{version.number}.manifest"
        # The versions are listed first, since only then the naming scheme of the branch is known.
        self._versions.numbers(version.branch)
        return self._versions.manifest_path(version.branch, version.number)

    def _delete(self, entries: Sequence[ObjectInfo]) -> None:
        for start in range(0, len(entries), _AT_ONCE):
            batch = entries[start : start + _AT_ONCE]
            self._store.delete_many([entry.key for entry in batch])
            for _ in batch:
                self._step()
