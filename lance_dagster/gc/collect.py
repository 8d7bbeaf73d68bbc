"""Garbage collection: let old versions expire, and delete the files that no version names.

No file may be deleted that somebody needs, although other writers commit, branch, tag, merge and restore at the same
time, by this package or by programs that do not know it. There is no lock. A file is deleted only after no version
could name it for long enough:

**Files that no version names.** A writer puts data files first and commits them later, so a file younger than the
grace period stays. An older file that no version named when the versions were listed is named by no later version
either: a later version names new files, and files of versions that existed when its writer began. The versions are
listed first and read afterwards; a version that is committed in between names files of listed versions and new files.

**Versions that expire.** A program that restores, tags, forks or picks an old version read it a moment ago and commits
in a moment. So an expired version does not vanish: its manifest is copied to `_expired/` and then deleted in its
place, which makes it unreachable. While the copy is younger than the settling time, all files that it names stay. What
a late writer commits in that time finds its files, and the next collection sees it as a version, tag or branch that
needs them. Refs are read again after the manifests were deleted, and at the start of every collection: a version that
a tag or a fork names again is put back from its copy, byte by byte. The copies are listed after the versions, so a
version that another collector moves meanwhile is seen in at least one of the two places. Once the settling time is
over, the copy is deleted before the files, and the branches are read in between: where one of them was recovered from
such copies, the next collection decides about the files.

**What stays.** The newest version of each branch; what a retention rule keeps; what tags name, or named earlier; fork
points and the first versions of branches; and whatever a merge of any two branches reads. `gc.retention` holds the
rules, `gc.reachability` the rest.

**Clocks.** Ages are measured with the storage's clock, which stamps the objects, or with this computer's clock where it
is behind: a clock that runs ahead would make everything look old. The time of a version is the time in its manifest or
the time when it was stored, whichever is later, and never before the time of its predecessor. A version dated in the
future counts as new and is reported.

**What cannot be read.** A manifest, branch or tag that cannot be read may name any file. Then nothing is deleted.

**Crashes.** Every step is idempotent. After a crash a version is in its place, in `_expired/`, or in both. Files are
deleted last, and each of them is garbage by itself. Objects whose names no table has, and the folders of base paths
and of other tables, are never touched, except for copies under base paths that `move_files` has recorded
(`gc.base_files`). Shallow clones elsewhere cannot be seen: a tag on the cloned version keeps
their files, and `clone` creates one.

A settling time of zero does everything in one run. Whoever asks for it promises that nobody else is at work; if a
version is needed again during the run, the promise does not hold, and no file is deleted.

Deleting, resetting or renaming a branch deletes the files in the branch's own folder, which no other branch names.
Only garbage collection deletes files that two branches may share.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pendulum

from lance_dagster.errors import FormatError, InvalidInputError, StoreError
from lance_dagster.format import layout
from lance_dagster.gc.base_files import BasePlaces, list_base_files
from lance_dagster.gc.copy_records import CopyRecords
from lance_dagster.gc.garbage_report import GarbageReport, by_branch, counted
from lance_dagster.gc.mark import Marker, Marks, RetentionPolicy, StoredVersion
from lance_dagster.gc.reachability import (
    Merges,
    NamedFiles,
    RequiredVersions,
    add_required_by_merges,
    branch_ids,
    required_by_refs,
)
from lance_dagster.gc.retention import Retention
from lance_dagster.gc.sweep import ClassifiedFiles, Sweeper, classify_files, with_base_files
from lance_dagster.history.base_access import BaseAccess
from lance_dagster.history.inventory import EXPIRED, Inventory, expired_copies, take_inventory
from lance_dagster.history.refs.ref_files import Branch, Tag
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import ObjectInfo, Store
from lance_dagster.verify.manifest_rules import WARNING, Problem

Progress = Callable[[int, int], None]
"""Called with the number of steps that are done and the number of all steps."""
SETTLING = timedelta(days=1)
# Seconds by which the two clocks may differ without a warning.
_TOLERANCE = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageOptions:
    """The options of a collection.

    Attributes:
        rules: Retention rules; a version expires only when all rules agree.
        grace: Files younger than this stay, whether a version names them or not.
        settling: For how long files of an expired version stay.
        dry_run: Whether to report only.
    """

    rules: tuple[Retention, ...]
    grace: timedelta
    settling: timedelta = SETTLING
    dry_run: bool = True

    def __post_init__(self) -> None:
        """Refuse negative ages; rules check their own.

        Raises:
            InvalidInputError: An age is negative.
        """
        for name, age in (("grace", self.grace), ("settling", self.settling)):
            if age < timedelta(0):
                raise InvalidInputError(f"{name} is {age}; it cannot be negative")


def collect(
    store: Store, options: GarbageOptions, progress: Progress | None = None, *, bases: BaseAccess | None = None
) -> GarbageReport:
    """Find the garbage of a table, and delete it unless this is a dry run; `bases` are the table's base paths."""
    return _Collection(store, options, progress, bases or BaseAccess(store, {})).run()


class _Collection:
    """The steps of one collection, in the order that makes them safe."""

    def __init__(self, store: Store, options: GarbageOptions, progress: Progress | None, bases: BaseAccess) -> None:
        self._store = store
        self._bases, self._places = bases, BasePlaces(bases)
        self._refs = Refs(store)
        self._options = options
        self._progress = progress
        self._done = self._total = 0
        self._problems: list[Problem] = []

    def run(self) -> GarbageReport:
        """Mark what stays, classify the files, and then sweep."""
        policy = self._policy()
        try:
            # Refs are read before objects. A ref that is created after this is seen when the refs are read again,
            # before any file is deleted.
            branches, tags = self._refs.branches.all(), self._refs.tags.all()
            required = required_by_refs(branches, tags)
            inventory = take_inventory(self._places.watched(self._store.walk("")), branches)
            numbers = {objects.branch: objects.manifests for objects in inventory.branches.values()}
            heads = add_required_by_merges(required, branches, Merges(self._refs, Versions(self._store), numbers))
            self._add_unlisted(heads, inventory, policy)
        except FormatError as error:
            # It is unknown which branches exist and what they need, so nothing may be deleted.
            of = self._places.of
            marks = Marks(NamedFiles(self._store.uri, of), NamedFiles(self._store.uri, of))
            marks.failed(None, error)
            return self._report(policy, Inventory(), marks, ClassifiedFiles())
        self._total = sum(len(objects.manifests) + len(objects.detached) for objects in inventory.branches.values())
        # The heads were read to find what merges require.
        read_before = {head.path.removeprefix(f"{self._store.uri}/"): head.manifest for head in heads}
        marker = Marker(self._store, branches, required, policy, read_before=read_before, place_of=self._places.of)
        marks = marker.mark_versions(inventory, self._step)
        # The copies are listed only after the versions were: a version that another collector expires in between is in
        # at least one of the two listings.
        waiting, needed_again = self._expired_earlier(branches, required, inventory)
        marker.mark_needed_again(needed_again, self._step)
        over = policy.now - policy.settling
        marker.mark_expired([version for version in waiting if version.entry.modified > over], self._step)
        # Their copies are deleted in this run, and their files count as if the versions had never existed.
        settled = [version for version in waiting if version.entry.modified <= over]
        self._problems += [*required.problems, *_dangling_tags(tags, marks)]
        records = CopyRecords.of(self._store, inventory.names)
        classify = self._classifier(inventory, marks, policy, settled=settled, records=records)
        # Reported before anything is deleted, so that a dry run and a real one say the same.
        report = self._report(policy, inventory, marks, classify())
        if self._options.dry_run or not report.ok:
            return replace(report, put_back=tuple(map(str, needed_again)))
        self._total += len(marks.expired) + report.files
        sweep = Sweeper(self._store, branches, self._step)
        # Versions are put back before the next ones expire: a crash in between leaves too many versions, not too few.
        needed_again = sweep.put_back(needed_again)
        marks.expired, back = sweep.expire(marks.expired)
        marker.mark_needed_again(back, self._step)
        # The files are classified again, since versions that were put back keep theirs.
        files = classify()
        report = self._report(policy, inventory, marks, files)
        report = replace(report, expiry_done=True, put_back=tuple(map(str, (*needed_again, *back))))
        if not report.ok or (back and not self._options.settling) or not sweep.delete_copies(settled):
            # Another writer is at work after all, and may be about to name files that look like garbage.
            return report
        return self._swept(report, sweep, marks, files, records=records)

    def _classifier(
        self,
        inventory: Inventory,
        marks: Marks,
        policy: RetentionPolicy,
        *,
        settled: Sequence[StoredVersion],
        records: CopyRecords,
    ) -> Callable[[], ClassifiedFiles]:
        """Return what classifies the files of the table and its copies under base paths, by the marks at the call."""
        base_files, unlisted = list_base_files(records, self._places)
        self._problems += unlisted
        over = policy.now - policy.grace
        copying = records.young_names(over)
        # A record stays as long as a copy that it names may be there, and while its call may be at work.
        records.keep({problem.path for problem in unlisted}, over)

        def classify() -> ClassifiedFiles:
            files = classify_files(inventory, marks, policy, settled, copying=copying)
            return with_base_files(files, base_files, marks, policy, copying=copying)

        return classify

    def _add_unlisted(self, heads: Iterable[State], inventory: Inventory, policy: RetentionPolicy) -> None:
        """Add heads that the inventory lacks: they were committed since, or its listing lagged behind."""
        for head in heads:
            manifests = inventory.of_branch(head.branch).manifests
            if head.number not in manifests:
                key = head.path.removeprefix(f"{self._store.uri}/")
                manifests[head.number] = ObjectInfo(key, head.size, policy.now)

    def _swept(
        self, report: GarbageReport, sweep: Sweeper, marks: Marks, files: ClassifiedFiles, *, records: CopyRecords
    ) -> GarbageReport:
        # No copy outlives the files it names: a branch that is recovered from it could not be read.
        if not self._options.settling:
            sweep.forget(marks.expired)
        # This is the last of all steps: every version that named these files is unreachable by now.
        # Names that a call began to copy since the records were listed stay, whatever the file looked like then.
        sweep.delete_files(files, records.newest_names())
        records.forget(file.data_file for file in files.kept_outside)
        return replace(report, done=True, branches=tuple(sweep.free(marks.dead, marks.by_kept.keys)))

    def _policy(self) -> RetentionPolicy:
        here = time.time()
        try:
            there = self._store.now()
        except StoreError as error:
            # A dry run only estimates, so the local clock is good enough there; a deletion is not based on it.
            if not self._options.dry_run:
                raise
            there = here
            what = f"the storage's clock cannot be read: {error}"
            right = "without it nothing can be deleted; ages are measured by this computer's clock"
            self._problems.append(Problem(what=what, right=right, severity=WARNING))
        if abs(here - there) > _TOLERANCE:
            what = f"this computer's clock is {there - here:,.0f} seconds behind the storage's"
            right = "ages are measured by the earlier of the two"
            self._problems.append(Problem(what=what, right=right, severity=WARNING))
        return RetentionPolicy(
            rules=self._options.rules,
            grace=self._options.grace.total_seconds(),
            settling=self._options.settling.total_seconds(),
            # The earlier clock counts: a clock that runs ahead makes files look older than they are.
            now=min(here, there),
        )

    def _expired_earlier(
        self, branches: Mapping[str, Branch], required: RequiredVersions, inventory: Inventory
    ) -> tuple[list[StoredVersion], list[StoredVersion]]:
        """Return the versions that expired earlier: the versions that stay expired, and the versions needed again."""
        waiting: list[StoredVersion] = []
        needed_again: dict[tuple[str, int], StoredVersion] = {}
        # The oldest copy comes first, so that of two copies of one version the newer copy is put back.
        copies = expired_copies(self._store.walk(EXPIRED), branch_ids(branches))
        for branch, number, entry, same in sorted(copies, key=lambda version: version[2].modified):
            place, version = (branch, number), StoredVersion(branch, number, entry)
            there = inventory.of_branch(branch)
            is_absent = number not in there.manifests and number not in there.detached
            if same and is_absent and place in required.reasons:
                needed_again[place] = version
            else:
                waiting.append(version)
        return waiting, list(needed_again.values())

    def _report(
        self, policy: RetentionPolicy, inventory: Inventory, marks: Marks, files: ClassifiedFiles
    ) -> GarbageReport:
        return GarbageReport(
            dry_run=self._options.dry_run,
            now=pendulum.from_timestamp(policy.now),
            expired=by_branch((version.branch, version.number) for version in marks.expired),
            garbage=counted(files.garbage),
            waiting=counted(files.waiting),
            young=counted(files.young),
            kept={f"{branch}@{number}": why for (branch, number), why in sorted(marks.reasons.items())},
            held=dict(sorted(marks.held.items())),
            unmerged=tuple(sorted(marks.unmerged & marks.held.keys())),
            branches=tuple(sorted(marks.dead)),
            others=inventory.unknown,
            paths=tuple(sorted(entry.key for entry in files.files)),
            problems=(*self._problems, *marks.problems),
        )

    def _step(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


def _dangling_tags(tags: Mapping[str, Tag], marks: Marks) -> list[Problem]:
    return [
        Problem(
            what=f"tag {tag.name!r} names {tag.ref}, which does not exist",
            right="move the tag to a version that exists, or delete it",
            severity=WARNING,
            path=layout.tag_file(tag.name),
        )
        for tag in tags.values()
        if (tag.branch, tag.version) not in marks.reasons
    ]
