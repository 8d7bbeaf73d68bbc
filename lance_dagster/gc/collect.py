"""What a garbage collection found and did, as values.

Collect garbage: let old versions expire, and delete the files that no version names.

Nothing else deletes files that more than one branch may name. A branch that is deleted, reset or renamed takes those in
its own folder with it, which no other branch names.

What has to hold is that no file goes that somebody needs, and others go on committing, branching, tagging, merging
and restoring while this runs, through this package or through others, which know nothing of it. There is no lock. It
holds because a file goes only after it has been out of everybody's reach for long enough.

**A file without a version.** A writer puts data files first and commits them later. So a file younger than the grace
period stays, whoever names it. An older one that no version named when the versions were listed is named by none that
comes later: a new version names files of versions that were there when it was begun, and new files. Versions are
listed first, then read; one that is committed meanwhile is made of what the listed ones name.

**A version that expires.** Whoever restores, tags, forks or picks an old version has read it a moment ago and lands
in a moment. So an expired version is not gone: its manifest is first copied to `_expired/`, then deleted where it
was. From then on nobody new can reach it, and while its copy is younger than the settling time all files it names
stay, so what lands in the meantime lands on files that are there, and by the next collection is a version, a tag or
a branch that keeps them. Names are read again after the manifests were deleted, and at the beginning of every
collection: a tag or a fork that names an expired version gets it back from its copy, byte by byte. Copies are listed
after the versions: a version that another collector takes away meanwhile is seen in one place or the other.

**What is needed.** The newest version of each branch; what a retention rule keeps; what tags name or say they named
before; what branches were forked from and their first versions; what a merge of any two branches is judged by. The
rules are in `changes.retention`, the rest in `history.reach`.

**Clocks.** Ages are measured by the storage's clock alone, which stamps the objects, or by this computer's where that
is behind: a clock that is ahead must not make things look old. The time of a version is the later one of what it says
and of when it was stored, and never before its predecessor's. What lies in the future counts as new, and is reported.

**What cannot be read.** A manifest, branch or tag that cannot be read may name anything: then nothing is deleted.

**Crashes.** Every step can be done twice. After a crash a version is in its place, or in `_expired/`, or both; files
are deleted last, and each was garbage by itself. Objects that have no name of a table's, and other folders, base
paths and tables, are not touched. Shallow clones elsewhere cannot be seen: a tag on the version cloned keeps their
files (`clone` leaves one).

With a settling time of zero everything happens in one run, and whoever asks for that has to know that nobody else is
at work. A version that is needed again at that moment shows that somebody is: then no file is deleted.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import pendulum

from lance_dagster.errors import FormatError, InvalidInputError, StoreError
from lance_dagster.format import layout
from lance_dagster.gc.mark import Marker, Marks, RetentionPolicy, StoredVersion
from lance_dagster.gc.reachability import (
    Merges,
    NamedFiles,
    RequiredVersions,
    add_needed_by_merges,
    needed_by_names,
    owners,
)
from lance_dagster.gc.retention import Retention
from lance_dagster.gc.sweep import ClassifiedFiles, Sweeper, classify_files
from lance_dagster.history.inventory import EXPIRED, Inventory, Kind, expired_copies, take_inventory
from lance_dagster.history.refs.ref_store import Branch, Refs, Tag
from lance_dagster.history.versions import Versions
from lance_dagster.store import Entry, Store
from lance_dagster.verify.manifest_rules import ERROR, WARNING, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCount:
    """How many files, and how many bytes they have."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """What a garbage collection deleted, or would delete, and what it kept and why.

    Attributes:
        dry_run: Whether this only says what would be done.
        done: Whether everything below was done; False after a dry run, where a problem forbade it, and where versions
            were needed again with a settling time of zero.
        expiry_done: Whether the versions in `expired` did expire: as `done`, and also where no file was deleted since
            versions were needed again.
        now: The time by the storage's clock that ages were measured with.
        expired: By branch, the numbers of the versions that nothing needs, oldest first.
        garbage: By kind, files that no version names.
        waiting: By kind, files that only expired versions name; they go when these have been expired for long enough.
        young: By kind, files that no version names yet; somebody may be about to commit them.
        kept: By version, such as `main@3`, everything that keeps it.
        held: By branch, how many versions stay for its sake alone: nothing else keeps them once it is deleted.
            Mostly it is enough to merge it, or to sync it.
        branches: Branches that were half deleted, or had no metadata, and are gone.
        put_back: Versions that expired and are needed again, so they are there again.
        others: How many objects lie there that are not of a table; they are left alone.
        paths: The files of `garbage`, below the table's folder.
        problems: What is wrong. After an error nothing is deleted.
    """

    dry_run: bool
    done: bool = False
    expiry_done: bool = False
    now: pendulum.DateTime
    expired: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    garbage: Mapping[str, FileCount] = field(default_factory=dict)
    waiting: Mapping[str, FileCount] = field(default_factory=dict)
    young: Mapping[str, FileCount] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    branches: tuple[str, ...] = ()
    put_back: tuple[str, ...] = ()
    others: int = 0
    paths: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing forbids to delete; warnings do not."""
        return all(problem.severity != ERROR for problem in self.problems)

    @property
    def versions(self) -> int:
        """How many versions expired."""
        return sum(len(numbers) for numbers in self.expired.values())

    @property
    def files(self) -> int:
        """How many files are garbage."""
        return sum(count.files for count in self.garbage.values())

    @property
    def bytes(self) -> int:
        """How many bytes the garbage has."""
        return sum(count.bytes for count in self.garbage.values())


def counted(files: Mapping[Kind, Sequence[Entry]]) -> dict[str, FileCount]:
    """Count files by kind; kinds without any are left out."""
    return {
        str(kind): FileCount(files=len(entries), bytes=sum(entry.size for entry in entries))
        for kind, entries in files.items()
        if entries
    }


def by_branch(versions: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Group versions by branch, oldest first."""
    found: dict[str, list[int]] = {}
    for branch, number in sorted(versions):
        found.setdefault(branch, []).append(number)
    return {branch: tuple(numbers) for branch, numbers in found.items()}


Progress = Callable[[int, int], None]
"""Called with how many steps are done and how many there are."""
SETTLING = timedelta(days=1)
_TOLERANCE = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageOptions:
    """What is to be collected: the rules, all of which have to let a version go, and the ages of files."""

    rules: tuple[Retention, ...]
    grace: timedelta
    settling: timedelta = SETTLING
    dry_run: bool = True

    def __post_init__(self) -> None:
        """Refuse ages below zero; those in the rules are refused where these are made.

        Raises:
            InvalidInputError: There is one.
        """
        for name, age in (("grace", self.grace), ("settling", self.settling)):
            if age < timedelta(0):
                raise InvalidInputError(f"{name} is {age}; it cannot be negative")


def collect(store: Store, wish: GarbageOptions, progress: Progress | None = None) -> GarbageReport:
    """Find the garbage of a table, and delete it unless this is a dry run."""
    return _Collection(store, wish, progress).run()


class _Collection:
    """One collection, step by step."""

    def __init__(self, store: Store, wish: GarbageOptions, progress: Progress | None) -> None:
        self._store = store
        self._refs = Refs(store)
        self._wish = wish
        self._progress = progress
        self._done = self._total = 0
        self._problems: list[Problem] = []

    def run(self) -> GarbageReport:
        """Look, then delete."""
        terms = self._terms()
        try:
            branches, tags = self._refs.branches(), self._refs.tags()
            needs = needed_by_names(branches, tags)
            inventory = take_inventory(self._store.walk(""), branches)
            numbers = {line.branch: line.manifests for line in inventory.lines.values()}
            add_needed_by_merges(needs, branches, Merges(self._refs, Versions(self._store), numbers))
        except FormatError as error:
            mark = Marks(NamedFiles(self._store.uri), NamedFiles(self._store.uri))
            mark.failed(None, error)
            return self._report(terms, Inventory(), mark, ClassifiedFiles())
        self._total = sum(len(line.manifests) + len(line.detached) for line in inventory.lines.values())
        marking = Marker(self._store, branches, needs, terms)
        mark = marking.versions(inventory, self._step)
        # After the versions: what another collector takes away meanwhile is there by then.
        waiting, wanted = self._waiting(branches, needs, inventory)
        marking.kept(wanted, self._step)
        over = terms.now - terms.settling
        marking.waiting([found for found in waiting if found.entry.modified > over], self._step)
        settled = [found for found in waiting if found.entry.modified <= over]
        self._problems += [*needs.problems, *_dangling(tags, mark)]
        judging = partial(classify_files, inventory, mark, terms, settled)
        report = self._report(terms, inventory, mark, judging())
        if self._wish.dry_run or not report.ok:
            return replace(report, put_back=tuple(map(str, wanted)))
        self._total += len(mark.expired) + report.files
        sweep = Sweeper(self._store, branches, self._step)
        wanted = sweep.put_back(wanted)
        mark.expired, back = sweep.expire(mark.expired)
        marking.kept(back, self._step)
        judged = judging()
        report = self._report(terms, inventory, mark, judged)
        report = replace(report, expiry_done=True, put_back=tuple(map(str, (*wanted, *back))))
        if not report.ok or (back and not self._wish.settling):
            # Somebody is at work after all, and may be about to name other files.
            return report
        return self._swept(report, sweep, mark, judged)

    def _swept(self, report: GarbageReport, sweep: Sweeper, mark: Marks, judged: ClassifiedFiles) -> GarbageReport:
        sweep.delete_files(judged)
        if not self._wish.settling:
            sweep.forget(mark.expired)
        return replace(report, done=True, branches=tuple(sweep.free(mark.dead, mark.by_kept.keys)))

    def _terms(self) -> RetentionPolicy:
        here = time.time()
        try:
            there = self._store.now()
        except StoreError as error:
            if not self._wish.dry_run:
                raise
            there = here
            what = f"the storage's clock cannot be asked: {error}"
            right = "nothing can be deleted without; ages are measured by this computer's clock"
            self._problems.append(Problem(what=what, right=right, severity=WARNING))
        if abs(here - there) > _TOLERANCE:
            what = f"this computer's clock is {there - here:,.0f} seconds behind the storage's"
            right = "the earlier of the two is what ages are measured by"
            self._problems.append(Problem(what=what, right=right, severity=WARNING))
        return RetentionPolicy(
            rules=self._wish.rules,
            grace=self._wish.grace.total_seconds(),
            settling=self._wish.settling.total_seconds(),
            now=min(here, there),
        )

    def _waiting(
        self, branches: Mapping[str, Branch], needs: RequiredVersions, inventory: Inventory
    ) -> tuple[list[StoredVersion], list[StoredVersion]]:
        """Return the versions that expired earlier: those that go on waiting, and those that are needed again."""
        waiting: list[StoredVersion] = []
        wanted: dict[tuple[str, int], StoredVersion] = {}
        found = expired_copies(self._store.walk(EXPIRED), owners(branches))
        for branch, number, entry, same in sorted(found, key=lambda version: version[2].modified):
            place, version = (branch, number), StoredVersion(branch, number, entry)
            line = inventory.line(branch)
            gone = number not in line.manifests and number not in line.detached
            if same and gone and place in needs.reasons:
                wanted[place] = version
            else:
                waiting.append(version)
        return waiting, list(wanted.values())

    def _report(
        self, terms: RetentionPolicy, inventory: Inventory, mark: Marks, judged: ClassifiedFiles
    ) -> GarbageReport:
        return GarbageReport(
            dry_run=self._wish.dry_run,
            now=pendulum.from_timestamp(terms.now),
            expired=by_branch((found.branch, found.number) for found in mark.expired),
            garbage=counted(judged.garbage),
            waiting=counted(judged.waiting),
            young=counted(judged.young),
            kept={f"{branch}@{number}": why for (branch, number), why in sorted(mark.kept.items())},
            held=dict(sorted(mark.held.items())),
            branches=tuple(sorted(mark.dead)),
            others=inventory.unknown,
            paths=tuple(sorted(entry.key for entry in judged.files)),
            problems=(*self._problems, *mark.problems),
        )

    def _step(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def _dangling(tags: Mapping[str, Tag], mark: Marks) -> list[Problem]:
    return [
        Problem(
            what=f"tag {tag.name!r} names {tag.ref}, which does not exist",
            right="move the tag to a version that exists, or delete it",
            severity=WARNING,
            path=layout.tag_file(tag.name),
        )
        for tag in tags.values()
        if (tag.branch, tag.version) not in mark.kept
    ]
