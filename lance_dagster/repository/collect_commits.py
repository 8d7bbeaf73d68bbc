"""Delete old commits of a repository, and with them the versions of tables that only they name.

A collection must not delete what a ref names, although other processes publish, promote, roll back and tag meanwhile.

**What stays.** The commits that branches, channels and repository tags name; the last promotions of each channel, and
the commits that a ref named within a time; commits younger than the grace period, because a publication may be about to
put the entry that names them. Every version of a table that one of these commits names stays.

**A ref that moves to an old commit meanwhile.** A collection first marks the commits that it is going to delete, then
reads all refs again and keeps the commits that a ref names by now. A process that moves a ref to an existing commit
puts the entry, or the tag, first and looks for the mark afterwards. So at least one of the two sees the other: the
collection finds the ref, or the process finds the mark.

A mark stays for the grace period after its commit was deleted: a process may have read the commit before and still move
a ref to it. Only the collection that put a mark deletes the mark and its commit: with shared marks, one collection
could delete a mark on which another collection relies. When a collection dies after it marked commits, these commits
are kept for the grace period.

**A publication that is about to name a version of a table.** The version is held by a branch `published/...` or by a
tag before the commit is stored. A collection that lists the commits before the commit is stored sees a branch or tag
that no commit names, and deletes it only if it is older than the grace period. A publication may still use an old
branch or tag, which an earlier attempt made, or which holds the same version for an older commit:

- A branch is used again only while it is at most twelve hours old (`pins.REUSED_FOR`); after that, another name is
  taken.
- A tag that is older is written again first, by compare-and-swap. The collection (1) reads the tag, (2) lists its age,
  and (3) deletes the tag only if it still has the bytes of step 1. If the publication writes between steps 1 and 2, the
  age shows it; between steps 2 and 3, the bytes differ; after step 3, the publication creates the tag again.

So a branch or tag that a publication uses was at most twelve hours old when the publication began to use it. A
collection that deletes the branch or tag began at least twelve hours later; a publication takes less time from its
staging to its commit, so the collection lists the commit.

**A range that a publication is about to name.** In a repository of many tables, commits share ranges of their entries
(`commits.entry_ranges`). A range is deleted when no commit that stays names it. A publication takes the ranges of the
commit that its ref names; the put of its entry succeeds only if the ref named that commit all the time, so that commit
stays, and its ranges. The publication writes each other range, by put-if-absent, or by compare-and-swap where the range
exists, because an earlier state had it. The collection deletes a range in the three steps in which it deletes a tag,
and each copy of a range has other bytes: the publication finds that the range is gone and puts it again, or the
collection finds a young range or other bytes. Ranges are deleted after the commits that name them. A storage that does
not obey the condition of a deletion keeps its ranges.

**Logs of ended branches.** There is one log for each run branch. After the branch was published, only a repeated
publication reads it. A log is deleted when its newest entry ended the branch longer ago than the retention and the
grace period, and no table is marked as touched by the branch. From then on a publication of the branch reports that
there is no such branch, and a fork of the name begins its log with entry 1. The numbers of the two logs are not
confused: a process that knew the deleted log would have to be older than the grace period. A process that read the log
just before its deletion puts the next larger number; a log may begin with any number. Logs of channels stay, because
sensors remember their numbers, and so does the newest entry of each other log.

**The record of candidates** is collected too: `candidates.collect_record` says what stays and why nothing is published
twice.

Commits are deleted before the branches of tables: a crash in between leaves branches that no commit names, and the next
collection deletes them. Data files are left to `LanceTable.maintenance.collect_garbage`, which then finds them unnamed.
"""

import re
import sys
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import NamedTuple

from lance_dagster.errors import (
    InvalidInputError,
    NotFoundError,
    ProtectedError,
    RefMovedError,
    RefNotFoundError,
    counted,
)
from lance_dagster.format.layout import (
    BRANCH_PIN,
    BRANCHES,
    LANDING_PIN,
    MAIN,
    PIN,
    PUBLISHED,
    TAGS,
    branch_file,
    tag_file,
)
from lance_dagster.format.validation import check_flag
from lance_dagster.gc.retention import duration_text
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import delete_branches
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.refs.tag_operations import delete_tag
from lance_dagster.repository.candidates.collect_record import RecordCollection, SettledWrites
from lance_dagster.repository.candidates.record import RecordFiles
from lance_dagster.repository.commits.entry_ranges import RangedEntries
from lance_dagster.repository.commits.promotions import Promotions
from lance_dagster.repository.commits.ref_log import PINS, BranchLog, RefKind, RefLogs
from lance_dagster.repository.commits.repository_tags import list_tags
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit, TableVersion, ranges_of
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.store import concurrently

_WORKERS = 8
_READ_AT_ONCE = 100
_PINS_OF_TABLES = "repository-"
_HOLDING = re.compile(rf"{PUBLISHED}[0-9a-f]{{16}}(-undo)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetention:
    """The commits that a collection keeps in addition to the commits that refs name.

    Attributes:
        promotions: How many of the last promotions of each channel stay readable.
        keep_for: Commits that a branch or channel named within this time stay readable.
        grace: The age up to which a publication may still be using a commit or branch; at least a day, except where
            no other process is running.
    """

    promotions: int = 30
    keep_for: timedelta = timedelta(days=30)
    grace: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryGarbage:
    """The result of a collection, or of its dry run.

    Attributes:
        dry_run: Whether nothing was deleted.
        commits: The ids of the commits.
        kept_commits: By id, the commits that stay, each with every reason, such as "younger than 1d".
        entries: How many entries of branches and channels.
        ranges: How many ranges of entries that no other commit has.
        branches: By table, the branches and tags that held versions which no other commit names.
        kept: The branches and tags that could not be deleted, each with the reason.
        candidates: How many candidates, whose record is not needed any more.
        writes: How many recorded writes, most of them of these candidates.
        audits: How many versions with recorded verdicts of checks.
    """

    dry_run: bool
    commits: tuple[str, ...] = ()
    kept_commits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    entries: int = 0
    ranges: int = 0
    branches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    candidates: int = 0
    writes: int = 0
    audits: int = 0


def collect_commits(repository: RepositoryContext, retention: CommitRetention, *, dry_run: bool) -> RepositoryGarbage:
    """Delete the commits that no ref and no rule of the retention needs, with their entries and branches.

    Raises:
        InvalidInputError: The retention would keep nothing of a channel, or has a negative time.
    """
    check_flag("dry_run", dry_run)
    _check_retention(retention)
    logs = repository.logs
    # The clock of the storage, which set the times of the objects: the local one may be wrong by more than the grace.
    now = logs.store.now()
    before = now - retention.grace.total_seconds()
    ages, range_ages = logs.ages()
    old = {commit for commit, modified in ages.items() if modified <= before}
    # The refs are read after the ages: a commit that a publication stores and names meanwhile is not among `old`.
    branches = logs.branch_logs()
    newest = logs.newest_of(branches)
    needs = _Needs(logs, retention, now)
    needed = _by_commit(needs.commits(newest))
    going = sorted(old - needed.keys())
    if not dry_run:
        # Before new marks: old marks of a collection that died would keep this collection from deleting their commits.
        logs.drop_marks(before)
        going = _marked(needs, going, newest)
    deleted = set(going)
    # Listed again: a commit that a publication stored since the first listing names branches of tables too.
    named, settled, ranges = _named_versions(logs, {*ages, *logs.commit_ids()} - deleted, needed)
    # Entries, pins and records from before this time are older than all times of the retention.
    past = min(before, now - retention.keep_for.total_seconds())
    ended = _ended(branches, newest, past)
    entries = list(_entries_of(logs, deleted, {name: log for name, log in branches.items() if name not in ended}))
    if not dry_run:
        # Entries go before their commits: a crash in between must not leave an entry whose commit is gone.
        logs.drop(entries)
        logs.drop_branch_logs(ended)
        logs.drop_commits(going)
        # Pins stay longer than the grace period: a run of several days must read the same commit until its end.
        logs.store.delete_many([info.key for info in logs.store.walk(PINS) if info.modified < past])
    unnamed = [digest for digest, modified in range_ages.items() if modified <= before and digest not in ranges]
    # After their commits: a crash in between must not leave a commit whose ranges are gone.
    range_count = len(unnamed) if dry_run or not unnamed else logs.drop_ranges(unnamed, before)
    tables = repository.registry.all_tables()
    refs, undeleted = _unnamed(repository, tables, named, before, dry_run=dry_run)
    recorded = _record_of(repository, tables, settled, past).collect(dry_run=dry_run)
    return RepositoryGarbage(
        dry_run=dry_run,
        commits=tuple(going),
        kept_commits=_kept_commits(ages.keys() - deleted, needed, old, retention),
        entries=len(entries) + sum(len(log.numbers) for log in ended.values()),
        ranges=range_count,
        branches=refs,
        kept=undeleted,
        candidates=recorded.candidates,
        writes=recorded.writes,
        audits=recorded.audits,
    )


def _check_retention(retention: CommitRetention) -> None:
    if retention.promotions < 1 or min(retention.keep_for, retention.grace) < timedelta(0):
        raise InvalidInputError("a collection keeps 1 promotion of each channel or more, and times are not negative")


class _NamedCommit(NamedTuple):
    """A commit that must stay, and why; `returns` where `main` or a channel names it or may return to it by its log."""

    id: str
    why: str
    returns: bool = False


def _by_commit(commits: Iterable[_NamedCommit]) -> dict[str, list[_NamedCommit]]:
    by_commit: dict[str, list[_NamedCommit]] = {}
    for commit in commits:
        by_commit.setdefault(commit.id, []).append(commit)
    return by_commit


def _kept_commits(
    commit_ids: Iterable[str],
    needed: Mapping[str, Sequence[_NamedCommit]],
    old: Collection[str],
    retention: CommitRetention,
) -> dict[str, tuple[str, ...]]:
    """Return why each commit stays: its age, and all that names it."""

    def reasons(commit_id: str) -> tuple[str, ...]:
        young = () if commit_id in old else (f"younger than {duration_text(retention.grace)}",)
        named = (*young, *dict.fromkeys(commit.why for commit in needed.get(commit_id, ())))
        # The commit was named after the refs were read, or another collection that died had marked it.
        return named or ("needed meanwhile, or marked by another collection",)

    return {commit_id: reasons(commit_id) for commit_id in sorted(commit_ids)}


def _record_of(
    repository: RepositoryContext, tables: Mapping[str, str], settled: SettledWrites, past: float
) -> RecordCollection:
    """Return the collection of the record, of files that are older than a time of the storage's clock."""
    return RecordCollection(
        record=repository.record,
        files=RecordFiles(repository.store),
        settled=settled,
        past=past,
        branches=partial(_branches_of, repository, tables),
    )


def _branches_of(
    repository: RepositoryContext, tables: Mapping[str, str], table_ids: Collection[str]
) -> dict[str, set[str]]:
    """Return the names of the branches of tables, by table id; a table that is gone has none."""
    names = [name for name, table_id in tables.items() if table_id in table_ids]
    # Branches of any name: a tag of a run may give its branch another name.
    branches = for_each_table(lambda name: repository.table(name).refs.branches.names(""), names)
    return {tables[name]: {*branch_names} for name, branch_names in branches.items()}


@dataclass(frozen=True, slots=True)
class _Needs:
    """The commits that refs name or the retention keeps, at a time of the storage's clock."""

    logs: RefLogs
    retention: CommitRetention
    now: float

    def commits(self, newest: Mapping[str, RefEntry]) -> list[_NamedCommit]:
        """Return the commits that must stay, given the newest entries of the branches, once for each reason."""
        logs, since = self.logs, self.now - self.retention.keep_for.total_seconds()
        named = [_NamedCommit(tag.commit, "named by a repository tag") for tag in list_tags(logs).values()]
        read = f"read by a run during the last {duration_text(self.retention.grace)}"
        named += [_NamedCommit(commit_id, read) for commit_id in self._pinned()]
        for name, entry in newest.items():
            # The commits of an ended branch are needed only by the refs that contain them.
            if not entry.deleted and name != MAIN:
                named += [
                    _NamedCommit(commit, "named by a branch") for commit in _named_since(logs, "branch", name, since)
                ]
        named += self._of_log("branch", MAIN, since)
        # Deleted channels too: their commits stay readable for `keep_for` after the deletion.
        for name in logs.names("channel"):
            named += self._of_log("channel", name, since)
            with suppress(NotFoundError):
                # `islice` takes no larger number than `maxsize`, and a person may ask to keep more promotions.
                promoted = Promotions(logs, name).commits_back(min(self.retention.promotions, sys.maxsize) - 1)
                why = f"of the last {counted(self.retention.promotions, 'promotion')} of {name}"
                named += [_NamedCommit(commit, why, returns=True) for commit in promoted]
        return [commit for commit in named if commit.id]

    def _of_log(self, kind: RefKind, name: str, since: float) -> Iterator[_NamedCommit]:
        """Return the commits that the log of `main` or of a channel named since a time, the newest first."""
        why, age = f"named by {name}", duration_text(self.retention.keep_for)
        for commit_id in _named_since(self.logs, kind, name, since):
            yield _NamedCommit(commit_id, why, returns=True)
            why = f"named by {name} during the last {age}"

    def _pinned(self) -> Iterator[str]:
        """Return the commits that runs are pinned to.

        Older pins need not be read: the channel named their commits within `keep_for`, so these commits stay anyway.
        """
        since = self.now - self.retention.grace.total_seconds()
        for info in self.logs.store.walk(PINS):
            commit_id = None if info.modified < since else self.logs.read_pin(info.key)
            if commit_id is not None:
                yield commit_id


def _ended(branches: Mapping[str, BranchLog], newest: Mapping[str, RefEntry], until: float) -> dict[str, BranchLog]:
    """Return the logs of branches that ended before a time of the storage's clock and have nothing left to publish."""
    return {
        name: branches[name]
        for name, entry in newest.items()
        if entry.deleted and branches[name].modified <= until and not branches[name].marks
    }


def _named_since(logs: RefLogs, kind: RefKind, name: str, since: float) -> Iterator[str]:
    # Another collection may cut the log meanwhile; nothing needs what it deleted.
    with suppress(NotFoundError):
        for entry in logs.entries(kind, name):
            yield entry.commit
            # The newest entry that is older than `since` was in force at that time, so its commit is kept too.
            if entry.at.timestamp() < since:
                return


def _marked(needs: _Needs, going: Sequence[str], newest: Mapping[str, RefEntry]) -> list[str]:
    """Mark commits that are to be deleted, and return the marked commits that no ref has named meanwhile."""
    logs = needs.logs
    collection = uuid.uuid4().hex
    own_marks = concurrently(lambda commit: logs.mark(commit, collection), going)
    # Only the collection that put a mark may delete the mark and the commit.
    marked = [commit for commit, is_own in zip(going, own_marks, strict=True) if is_own]
    if not marked:
        return []
    # The refs are read after all marks are written. A ref that came to name a commit before its mark is seen here; a
    # process that moves a ref after the mark sees the mark.
    needed = _by_commit(needs.commits(logs.newest_of(logs.branch_logs(), newest)))
    logs.unmark([commit for commit in marked if commit in needed])
    return [commit for commit in marked if commit not in needed]


def _entries_of(
    logs: RefLogs, deleted: set[str], branches: Mapping[str, BranchLog]
) -> Iterator[tuple[RefKind, str, int]]:
    """Return the entries to delete of each log: from the newest entry with a deleted commit back to the oldest entry.

    A log is cut and not thinned out: `production~1` must always name the promotion just before, never an older
    promotion. Where entry 3 of 5 names a deleted commit, or deleted the ref, entries 1 to 3 are returned.
    """
    # Most collections delete nothing, and then no log is read.
    if not deleted:
        return
    refs: list[tuple[RefKind, str, Sequence[int]]] = [("branch", name, log.numbers) for name, log in branches.items()]
    refs += [("channel", name, logs.numbers("channel", name)) for name in logs.names("channel")]
    for kind, name, numbers in refs:
        # The newest entry stays, also of a deleted ref: the next number is counted from it, and a number must not be
        # given twice.
        keeps = True
        for number in numbers if numbers[1:] else ():
            is_newest = number == numbers[0]
            if keeps:
                # Another collection may have been faster.
                with suppress(NotFoundError):
                    entry = logs.entry(kind, name, number)
                    keeps = entry.commit not in deleted and (is_newest or not entry.deleted)
            if not keeps and not is_newest:
                yield kind, name, number


def _unnamed(
    repository: RepositoryContext,
    tables: Mapping[str, str],
    named: Mapping[str, set[str]],
    before: float,
    *,
    dry_run: bool,
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Delete the branches and tags of tables that hold versions for commits, and that no commit names."""
    undeleted: list[str] = []

    def collect_refs(name: str) -> tuple[str, ...]:
        context, used = repository.table(name), named.get(tables[name], set())
        branches, tags = _unnamed_branches(context, used, before), _unnamed_pins(context, used, before)
        if dry_run:
            return (*branches, *(tag.name for tag in tags))
        # A branch stays where a tag still names its version: a person or another program put it there.
        refusals = {
            name: str(error) for name, error in delete_branches(branches, context.refs, context.versions).items()
        }
        for tag in tags:
            try:
                # Only as it was read: a publication that uses an old tag again renews the tag first.
                delete_tag(tag.name, context.refs, force=True, expected=tag)
            except (RefNotFoundError, RefMovedError, ProtectedError) as error:
                # Another collection was faster, a publication needs it, or a person holds it.
                refusals[tag.name] = str(error)
        undeleted.extend(f"{ref} of {name}: {error}" for ref, error in sorted(refusals.items()))
        return tuple(ref for ref in (*branches, *(tag.name for tag in tags)) if ref not in refusals)

    refs_by_table = for_each_table(collect_refs, tables)
    return {name: refs for name, refs in refs_by_table.items() if refs}, tuple(sorted(undeleted))


def _unnamed_branches(context: TableContext, named: set[str], before: float) -> list[str]:
    """Return the old branches that hold versions for no commit; a publication may be using a young branch."""
    unnamed = []
    for name in context.refs.branches.names(PUBLISHED):
        # A person may have made a branch in the table itself whose name begins so.
        if not _HOLDING.fullmatch(name):
            continue
        # Only branches that no commit names are read: there can be as many branches as there were publications.
        branch = None if name in named else context.refs.branches.find(name)
        if branch is not None and branch.created_at.timestamp() <= before:
            unnamed.append(name)
    if not unnamed:
        return []
    # A publisher whose clock is behind by more than the grace makes branches that look old at once.
    old = {info.key for info in context.store.walk(BRANCHES) if info.modified <= before}
    return [name for name in unnamed if branch_file(name) in old]


def _unnamed_pins(context: TableContext, named: set[str], before: float) -> list[Tag]:
    """Return the old tags that hold versions for no commit; a publication may have just set a young tag."""
    pins = []
    for name in context.refs.tags.names(_PINS_OF_TABLES):
        # The name of a pin of `main` has the number of the version, so most tags need not be read.
        is_named = name.startswith(PIN) and f"{MAIN}@{name.removeprefix(PIN)}" in named
        tag = None if is_named or not name.startswith((PIN, BRANCH_PIN, LANDING_PIN)) else context.refs.tags.find(name)
        if tag is not None and tag.ref not in named:
            pins.append(tag)
    if not pins:
        return []
    # The ages are listed after the tags were read: where a tag is renewed after it was read, its age shows that here,
    # or its deletion finds other bytes.
    old = {info.key for info in context.store.walk(TAGS) if info.modified <= before}
    return [tag for tag in pins if tag_file(tag.name) in old]


def _tables_without(
    logs: RefLogs, commit: RepositoryCommit, ranges: Collection[str]
) -> Mapping[str, TableVersion] | None:
    """Return the tables of a commit that are not in some ranges; None where the commit was collected meanwhile."""
    if not isinstance(commit.tables, RangedEntries):
        return commit.tables
    try:
        # Another collection may delete the ranges after their commit was read.
        commit.writes.keys()
        return commit.tables.without(ranges)
    except NotFoundError:
        # What a stored commit names must stay, and without its ranges nobody can tell what that is.
        if logs.has_commit(commit.id):
            raise
        return None


def _named_versions(
    logs: RefLogs, commit_ids: Iterable[str], needed: Mapping[str, Sequence[_NamedCommit]]
) -> tuple[dict[str, set[str]], SettledWrites, set[str]]:
    """Return what commits name: versions and branches of tables, by table id; the writes they closed; their ranges."""
    versions: dict[str, set[str]] = {}
    settled, ranges = SettledWrites(), set[str]()

    def read(commit_id: str) -> RepositoryCommit | None:
        # Another collection may delete the commit meanwhile.
        with suppress(NotFoundError):
            return logs.commit(commit_id)
        return None

    # Most commits change a few tables, so all the versions that commits name take little memory, unlike the commits.
    waiting = iter(sorted(commit_ids))
    with ThreadPoolExecutor(_WORKERS) as pool:
        while batch := list(islice(waiting, _READ_AT_ONCE)):
            for commit in filter(None, pool.map(read, batch)):
                # A range that an earlier commit of the loop has is not looked at again.
                tables = _tables_without(logs, commit, ranges)
                if tables is None:
                    continue
                ranges |= ranges_of(commit)
                settled.add(commit.writes, is_named=any(named.returns for named in needed.get(commit.id, ())))
                for at in tables.values():
                    # The version of `main` too that has the content of a version which has landed there.
                    versions.setdefault(at.id, set()).update((str(at), at.branch, f"{MAIN}@{at.lands}"))
    return versions, settled, ranges
