"""Read every version of a table, and say which stay, which expire, and which files each of the two name."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

from lance_dagster.errors import CorruptFileError, FormatError
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.model import Manifest
from lance_dagster.gc.reachability import NamedFiles, RequiredVersions
from lance_dagster.gc.retention import Dated, Retention, duration_text, kept
from lance_dagster.history.inventory import BranchObjects, Inventory
from lance_dagster.history.refs.ref_store import CREATING, DELETING, Branch
from lance_dagster.store import Entry, Store
from lance_dagster.verify.manifest_rules import WARNING, Problem

Steps = Callable[[], None]
"""Called after each step."""
_WORKERS = 8
_AT_ONCE = 32
_TOLERANCE = 300.0
_NANO = 1e9
_RULED = "subject to the rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What decides: rules that all have to let a version go, and times in seconds by the storage's clock.

    Files younger than `grace` stay. Files of an expired version stay for another `settling`.
    """

    rules: tuple[Retention, ...]
    grace: float
    settling: float
    now: float


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version and where its manifest lies."""

    branch: str
    number: int
    entry: Entry
    detached: bool = False

    def __str__(self) -> str:
        """Return the ref expression that names it."""
        return f"{self.branch}@{self.number}"


_Read = tuple[StoredVersion, Manifest]


@dataclass(slots=True)
class Marks:
    """What stays and what goes.

    `dead` are the branches nobody can reach, of which no version stays. `held` counts by branch the versions that
    would go without it.
    """

    by_kept: NamedFiles
    by_expired: NamedFiles
    dead: set[str] = field(default_factory=set)
    kept: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    expired: list[StoredVersion] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def failed(self, path: str | None, error: FormatError) -> None:
        """Write down what cannot be read: where, unless the error knows better."""
        what = str(error)
        if isinstance(error, CorruptFileError):
            what, path = error.problem, path or error.path.removeprefix(f"{self.by_kept.root_uri}/")
        right = "while it cannot be read nobody can tell which files it names, so nothing is deleted"
        self.problems.append(Problem(what=what, right=right, path=path))


class Marker:
    """Marks one table."""

    def __init__(
        self, store: Store, branches: Mapping[str, Branch], needs: RequiredVersions, terms: RetentionPolicy
    ) -> None:
        """Take what decides; nothing is read yet."""
        self._store = store
        self._branches = branches
        self._needs = needs
        self._terms = terms
        self.mark = Marks(NamedFiles(store.uri), NamedFiles(store.uri))

    def versions(self, inventory: Inventory, step: Steps) -> Marks:
        """Read the versions of every branch and sort them."""
        for name in self._branches:
            # A branch may be nothing but its name.
            inventory.line(name)
        ready = [line for line in inventory.lines.values() if self._is_told_by_names(line)]
        found = [version for line in ready for version in _versions_of(line)]
        # Of each branch those that are detached are read last.
        parts = groupby(self._read(found, step), lambda read: (read[0].branch, read[0].detached))
        for (branch, detached), own in parts:
            fate = self._fate(inventory, branch)
            if fate is not _RULED:
                self._decide_all((read, fate) for read in own)
            elif detached:
                self._decide_all((read, self._why_detached(*read)) for read in own)
            else:
                self._decide_all(self._by_rules(inventory.lines[branch], own))
        kept = {branch for branch, _ in self.mark.kept}
        dead = {branch for branch in inventory.lines if self._fate(inventory, branch) is None}
        self.mark.dead = dead - kept
        return self.mark

    def waiting(self, found: Sequence[StoredVersion], step: Steps) -> None:
        """Take in the files of versions that expired earlier and wait."""
        for version, manifest in self._read(found, step):
            self._name(self.mark.by_expired, version, manifest)

    def kept(self, found: Sequence[StoredVersion], step: Steps) -> None:
        """Keep versions that are needed again, and take in their files."""
        for version, manifest in self._read(found, step):
            place = (version.branch, version.number)
            self.mark.kept[place] = tuple(self._needs.reasons.get(place, ("needed again",)))
            self._name(self.mark.by_kept, version, manifest)

    def _fate(self, inventory: Inventory, branch: str) -> str | None:
        """Tell whether the rules apply to a branch, or why all of it is kept; None when nobody can reach it."""
        over = self._terms.now - self._terms.grace
        line, found = inventory.line(branch), self._branches.get(branch)
        named = inventory.names.get(layout.branch_file(branch), self._terms.now)
        if branch == layout.MAIN:
            return _RULED
        if found is None:
            return None if line.modified <= over else "of a branch without metadata that may be being made"
        if found.state == DELETING:
            return None if named <= over else "of a branch that is being deleted"
        given_up = found.state == CREATING and not line.manifests and named <= over
        return None if given_up else _RULED

    def _is_told_by_names(self, line: BranchObjects) -> bool:
        if line.mixed:
            folder = layout.join(layout.line_root(line.branch), layout.VERSIONS)
            what = "it names versions by both schemes; migrate_manifest_names() finishes what was begun"
            self.mark.failed(folder, CorruptFileError(folder, what))
        return not line.mixed

    def _read(self, found: Sequence[StoredVersion], step: Steps) -> Iterator[_Read]:
        """Read manifests, in order; those that are gone by now are left out."""
        with ThreadPoolExecutor(_WORKERS) as pool:
            for start in range(0, len(found), _AT_ONCE):
                some = found[start : start + _AT_ONCE]
                for version, data in zip(some, pool.map(self._store.get, [one.entry.key for one in some]), strict=True):
                    step()
                    manifest = None if data is None else self._decoded(version, data)
                    if manifest is not None:
                        yield version, manifest

    def _decoded(self, version: StoredVersion, data: bytes) -> Manifest | None:
        path = version.entry.key
        try:
            manifest, _ = decode_manifest_file(data, path)
            if (manifest.version, manifest.branch or layout.MAIN) != (version.number, version.branch):
                raise CorruptFileError(path, f"it says it is {manifest.branch or layout.MAIN}@{manifest.version}")
        except FormatError as error:
            self.mark.failed(path, error)
            return None
        return manifest

    def _by_rules(self, line: BranchObjects, own: Iterable[_Read]) -> Iterator[tuple[_Read, str | None]]:
        left = {number: place for place, number in enumerate(sorted(line.manifests, reverse=True), 1)}
        dated = ((self._dated(left[read[0].number], *read), read) for read in own)
        return kept([rules.rule(line.branch) for rules in self._terms.rules], dated, self._terms.now)

    def _why_detached(self, version: StoredVersion, manifest: Manifest) -> str | None:
        dated = self._dated(1, version, manifest)
        age = max(rules.rule(version.branch).older_than for rules in self._terms.rules)
        young = max(dated.said, dated.stored) > self._terms.now - age.total_seconds()
        return f"detached, and made during the last {duration_text(age)}" if young else None

    def _dated(self, left: int, version: StoredVersion, manifest: Manifest) -> Dated:
        said, stored = manifest.timestamp / _NANO, version.entry.modified
        ahead = max(said, stored) - self._terms.now
        if ahead > _TOLERANCE:
            clock = "its manifest says" if said >= stored else "the storage says"
            self.mark.problems.append(
                Problem(
                    what=f"{clock} it was made {ahead:,.0f} seconds from now",
                    right="a clock was wrong; it and the versions after it count as new until that time has come",
                    severity=WARNING,
                    path=version.entry.key,
                    versions=(str(version),),
                )
            )
        return Dated(left, said, stored)

    def _decide_all(self, fates: Iterable[tuple[_Read, str | None]]) -> None:
        for (version, manifest), why in fates:
            self._decide(version, manifest, why)

    def _decide(self, version: StoredVersion, manifest: Manifest, why: str | None) -> None:
        place = (version.branch, version.number)
        reasons = (*((why,) if why else ()), *self._needs.reasons.get(place, ()))
        if reasons:
            self.mark.kept[place] = reasons
            if why is None:
                self.mark.held.update(self._needs.holders[place])
            self._name(self.mark.by_kept, version, manifest)
        else:
            self.mark.expired.append(version)
            self._name(self.mark.by_expired, version, manifest)

    def _name(self, files: NamedFiles, version: StoredVersion, manifest: Manifest) -> None:
        try:
            files.add(manifest, version.branch)
        except FormatError as error:
            self.mark.failed(version.entry.key, error)


def _versions_of(line: BranchObjects) -> Iterator[StoredVersion]:
    for number in sorted(line.manifests):
        yield StoredVersion(line.branch, number, line.manifests[number])
    for number in sorted(line.detached):
        yield StoredVersion(line.branch, number, line.detached[number], detached=True)
