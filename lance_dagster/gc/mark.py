"""Mark phase of garbage collection: find which versions stay and which expire, and the files that each version names.

Every manifest is read once. A version stays when a retention rule keeps it or when somebody requires it
(`gc.reachability`); otherwise it expires. The files of both are collected apart, since files of expired versions stay
until the settling time is over.

The marks err on the side of keeping. A branch that is being deleted, or that has no metadata, keeps all of its versions
while it was touched within the grace period; the retention rules decide about a branch that is being created. A
manifest that cannot be read is an error that forbids every deletion.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

from lance_dagster.errors import CorruptFileError, FormatError
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.model import BasePath, Manifest
from lance_dagster.gc.reachability import NamedFiles, RequiredVersions
from lance_dagster.gc.retention import Dated, Retention, duration_text, reasons_to_keep
from lance_dagster.history.inventory import BranchObjects, Inventory
from lance_dagster.history.refs.ref_files import CREATING, DELETING, Branch
from lance_dagster.store import ObjectInfo, Store
from lance_dagster.verify.manifest_rules import WARNING, Problem

StepDone = Callable[[], None]
"""A callback that is called after each manifest that was read."""
_WORKERS = 8
_AT_ONCE = 32
# Seconds a timestamp may lie in the future without a warning: clocks differ a little.
_TOLERANCE = 300.0
_NANO = 1e9
_BY_RULES = "subject to the rules"
"""The answer that the versions of a branch are subject to the retention rules; not a reason to keep the branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The retention policy of one collection; ages are in seconds, `now` is in seconds since 1970.

    `now` is the earlier time of the storage's clock and of this computer's. A version expires when all `rules` agree.
    Files younger than `grace` stay, and the files of an expired version stay for another `settling`.
    """

    rules: tuple[Retention, ...]
    grace: float
    settling: float
    now: float


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version, and the entry of its manifest in a listing."""

    branch: str
    number: int
    entry: ObjectInfo
    detached: bool = False

    def __str__(self) -> str:
        """Return the ref expression that names it."""
        return f"{self.branch}@{self.number}"


_Read = tuple[StoredVersion, Manifest]


@dataclass(slots=True)
class Marks:
    """The result of the mark phase.

    Attributes:
        by_kept: The files that remaining versions name.
        by_expired: The files that expired versions name.
        dead: Branches that nobody can reach and without a version that stays.
        reasons: By version, the reasons why it stays.
        held: By branch, how many versions stay for that branch alone.
        unmerged: The branches with versions that `main` does not contain.
        expired: The versions that nothing requires.
        problems: What is wrong with the table.
    """

    by_kept: NamedFiles
    by_expired: NamedFiles
    dead: set[str] = field(default_factory=set)
    reasons: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    unmerged: set[str] = field(default_factory=set)
    expired: list[StoredVersion] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def failed(self, path: str | None, error: FormatError) -> None:
        """Record a file that cannot be read; `path` is used where the error does not name the file."""
        what = str(error)
        if isinstance(error, CorruptFileError):
            what, path = error.problem, path or error.path.removeprefix(f"{self.by_kept.root_uri}/")
        right = "while it cannot be read nobody can tell which files it names, so nothing is deleted"
        self.problems.append(Problem(what=what, right=right, path=path))


class Marker:
    """Marks the versions of one table."""

    def __init__(
        self,
        store: Store,
        branches: Mapping[str, Branch],
        required: RequiredVersions,
        policy: RetentionPolicy,
        *,
        read_before: Mapping[str, Manifest],
        place_of: Callable[[BasePath], float | None],
    ) -> None:
        """Take the table, its branches, what is required and the policy; nothing is read yet.

        `read_before` are manifests that the caller has read, by the keys of their files; `place_of` tells base paths
        apart (`NamedFiles`).
        """
        self._store = store
        self._read_before = {**read_before}
        self._branches = branches
        self._required = required
        self._policy = policy
        self.marks = Marks(NamedFiles(store.uri, place_of), NamedFiles(store.uri, place_of))

    def mark_versions(self, inventory: Inventory, step: StepDone) -> Marks:
        """Read the versions of every branch and decide which stay."""
        for name in self._branches:
            # A branch whose creation was interrupted may have no objects at all; it needs a decision as well.
            inventory.of_branch(name)
        ready = [objects for objects in inventory.branches.values() if self._has_one_naming_scheme(objects)]
        versions = [version for objects in ready for version in _versions_of(objects)]
        # Grouping needs the detached versions of a branch to be one run, so they come last.
        parts = groupby(self._read(versions, step), lambda decoded: (decoded[0].branch, decoded[0].detached))
        for (branch, detached), own in parts:
            reason = self._reason_for_branch(inventory, branch)
            # All of the branch stays, or nobody can reach it, so no rule applies.
            if reason is not _BY_RULES:
                self._decide_all((decoded, reason) for decoded in own)
            elif detached:
                self._decide_all((decoded, self._reason_for_detached(*decoded)) for decoded in own)
            else:
                self._decide_all(self._by_rules(inventory.branches[branch], own))
        branches_kept = {branch for branch, _ in self.marks.reasons}
        # A branch is dead only if no version of it is required: a tag may still name a version.
        dead = {branch for branch in inventory.branches if self._reason_for_branch(inventory, branch) is None}
        self.marks.dead = dead - branches_kept
        return self.marks

    def mark_expired(self, versions: Sequence[StoredVersion], step: StepDone) -> None:
        """Add the files of versions that expired earlier and whose settling time is not over."""
        for version, manifest in self._read(versions, step):
            self._add_files(self.marks.by_expired, version, manifest)

    def mark_needed_again(self, versions: Sequence[StoredVersion], step: StepDone) -> None:
        """Keep expired versions that are needed again, and add their files."""
        for version, manifest in self._read(versions, step):
            place = (version.branch, version.number)
            self.marks.reasons[place] = tuple(self._required.reasons.get(place, ("needed again",)))
            self._add_files(self.marks.by_kept, version, manifest)

    def _reason_for_branch(self, inventory: Inventory, branch: str) -> str | None:
        """Return why all of a branch stays, or that the rules decide; None when nobody can reach the branch."""
        over = self._policy.now - self._policy.grace
        objects, branch_file = inventory.of_branch(branch), self._branches.get(branch)
        # A missing entry counts as written just now: the file was created after the listing.
        named = inventory.names.get(layout.branch_file(branch), self._policy.now)
        if branch == layout.MAIN:
            return _BY_RULES
        if branch_file is None:
            # An interrupted creation by another program puts the folder before the metadata.
            return None if objects.modified <= over else "of a branch without metadata that may still be created"
        # A deletion in progress needs a moment; after the grace period it was interrupted.
        if branch_file.state == DELETING:
            return None if named <= over else "of a branch that is being deleted"
        abandoned = branch_file.state == CREATING and not objects.manifests and named <= over
        return None if abandoned else _BY_RULES

    def _has_one_naming_scheme(self, objects: BranchObjects) -> bool:
        if objects.mixed:
            folder = layout.join(layout.branch_root(objects.branch), layout.VERSIONS)
            what = "it names versions by both schemes; migrate_manifest_names() finishes the migration"
            self.marks.failed(folder, CorruptFileError(folder, what))
        return not objects.mixed

    def _read(self, versions: Sequence[StoredVersion], step: StepDone) -> Iterator[_Read]:
        """Read manifests, in order; leave out manifests that another process deleted meanwhile."""
        # Reading in batches bounds the memory: manifests of large tables are megabytes each.
        with ThreadPoolExecutor(_WORKERS) as pool:
            for start in range(0, len(versions), _AT_ONCE):
                batch = versions[start : start + _AT_ONCE]
                keys = [stored.entry.key for stored in batch if stored.entry.key not in self._read_before]
                # On local disk a read takes less time than a thread.
                stored = dict(
                    zip(keys, (pool.map if self._store.ordered_listing else map)(self._store.get, keys), strict=True)
                )
                for version in batch:
                    step()
                    manifest = self._read_before.pop(version.entry.key, None)
                    data = stored.get(version.entry.key)
                    if manifest is None and data is not None:
                        manifest = self._decoded(version, data)
                    if manifest is not None:
                        yield version, manifest

    def _decoded(self, version: StoredVersion, data: bytes) -> Manifest | None:
        path = version.entry.key
        try:
            manifest, _ = decode_manifest_file(data, path)
            # It is unknown which version a manifest under a wrong name is and who needs it, so nothing is deleted.
            if (manifest.version, manifest.branch or layout.MAIN) != (version.number, version.branch):
                raise CorruptFileError(path, f"it says it is {manifest.branch or layout.MAIN}@{manifest.version}")
        except FormatError as error:
            self.marks.failed(path, error)
            return None
        return manifest

    def _by_rules(self, objects: BranchObjects, own: Iterable[_Read]) -> Iterator[tuple[_Read, str | None]]:
        # Ranks count from the newest listed version, so `keep_last` holds across gaps.
        ranks = {number: place for place, number in enumerate(sorted(objects.manifests, reverse=True), 1)}
        dated = ((self._dated(ranks[decoded[0].number], *decoded), decoded) for decoded in own)
        return reasons_to_keep([rules.rule(objects.branch) for rules in self._policy.rules], dated, self._policy.now)

    def _reason_for_detached(self, version: StoredVersion, manifest: Manifest) -> str | None:
        dated = self._dated(1, version, manifest)
        # A detached version is in no branch's history, so only its age or a ref that names it can keep it.
        age = max(rules.rule(version.branch).older_than for rules in self._policy.rules)
        young = max(dated.claimed_at, dated.stored_at) > self._policy.now - age.total_seconds()
        return f"detached, and made during the last {duration_text(age)}" if young else None

    def _dated(self, rank: int, version: StoredVersion, manifest: Manifest) -> Dated:
        claimed_at, stored_at = manifest.timestamp / _NANO, version.entry.modified
        # The version counts as new until its time has come, so more is kept than necessary; the report names it, so
        # that a user can look for the cause.
        ahead = max(claimed_at, stored_at) - self._policy.now
        if ahead > _TOLERANCE:
            clock = "its manifest says" if claimed_at >= stored_at else "the storage says"
            self.marks.problems.append(
                Problem(
                    what=f"{clock} it was made {ahead:,.0f} seconds from now",
                    right="a clock was wrong; it and the versions after it count as new until that time has come",
                    severity=WARNING,
                    path=version.entry.key,
                    versions=(str(version),),
                )
            )
        return Dated(rank, claimed_at, stored_at)

    def _decide_all(self, decisions: Iterable[tuple[_Read, str | None]]) -> None:
        for (version, manifest), why in decisions:
            self._decide(version, manifest, why)

    def _decide(self, version: StoredVersion, manifest: Manifest, why: str | None) -> None:
        place = (version.branch, version.number)
        reasons = (*((why,) if why else ()), *self._required.reasons.get(place, ()))
        if reasons:
            self.marks.reasons[place] = reasons
            # Only a requirement keeps it: the branches it depends on are shown as holding it.
            if why is None:
                holders = self._required.holders[place]
                self.marks.held.update(holders)
                self.marks.unmerged |= holders & self._required.unmerged
            self._add_files(self.marks.by_kept, version, manifest)
        else:
            self.marks.expired.append(version)
            self._add_files(self.marks.by_expired, version, manifest)

    def _add_files(self, files: NamedFiles, version: StoredVersion, manifest: Manifest) -> None:
        try:
            files.add(manifest, version.branch)
        except FormatError as error:
            self.marks.failed(version.entry.key, error)


def _versions_of(objects: BranchObjects) -> Iterator[StoredVersion]:
    for number in sorted(objects.manifests):
        yield StoredVersion(objects.branch, number, objects.manifests[number])
    for number in sorted(objects.detached):
        yield StoredVersion(objects.branch, number, objects.detached[number], detached=True)
