"""Delete old commits of a repository, and with them the versions of tables that only they name.

A collection must not delete what a ref names, although other processes publish, promote, roll back and tag meanwhile.

**What stays.** The commits that branches, channels and release tags name; the last promotions of each channel, and
everything that a ref named within a time; commits younger than the grace period, because a publication may be about to
put the entry that names them. Of a table, every version that one of these commits names stays.

**A ref that moves to an old commit meanwhile.** A collection first marks the commits that it is going to delete, then
reads all refs again and keeps what one of them names by now. A process that moves a ref to an existing commit puts the
entry, or the release tag, first and looks for the mark afterwards. So at least one of the two sees the other. A mark
stays for the grace period: a process may have read the commit before it was deleted, and have it in memory.

**A publication that goes on with a branch of an earlier attempt.** A branch without a commit goes once it is older than
the grace period; a publication uses one of an earlier attempt only while it is much younger (`staging`).

Commits are deleted before the branches of tables: a crash in between leaves branches that no commit names, and the next
collection deletes them. Data files are left to `LanceTable.maintenance.collect_garbage`, which then finds them unnamed.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice

from lance_dagster.errors import InvalidInputError, NotFoundError, RefNotFoundError
from lance_dagster.format.layout import BRANCH_PIN, MAIN, PIN, PUBLISHED
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import delete_branches
from lance_dagster.history.refs.tag_operations import delete_tag
from lance_dagster.repository.commits.ref_log import COMMITS, EXPIRED, PINS, RefKind, RefLogs
from lance_dagster.repository.commits.release_tags import list_tags
from lance_dagster.repository.commits.resolve_commit import promotions
from lance_dagster.repository.commits.snapshot import RepositoryCommit
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.repository_context import RepositoryContext

_WORKERS = 8
_KINDS: tuple[RefKind, ...] = ("branch", "channel")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetention:
    """Which commits a collection keeps beside those that refs name.

    Attributes:
        promotions: How many of the last promotions of each channel stay readable.
        keep_for: What a branch or channel named within this time stays readable.
        grace: How young a commit or branch is that a publication may still be working on; at least a day, except where
            no other process is at work.
    """

    promotions: int = 30
    keep_for: timedelta = timedelta(days=30)
    grace: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryGarbage:
    """What a collection deleted, or would delete.

    Attributes:
        dry_run: Whether nothing was deleted.
        commits: The ids of the commits.
        entries: How many entries of branches and channels.
        branches: By table, the branches and tags that held versions which only those commits named.
        kept: What could not be deleted, and why.
    """

    dry_run: bool
    commits: tuple[str, ...] = ()
    entries: int = 0
    branches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()


def collect_commits(repository: RepositoryContext, retention: CommitRetention, *, dry_run: bool) -> RepositoryGarbage:
    """Delete what no ref and no rule of the retention needs.

    Raises:
        InvalidInputError: The retention would keep nothing of a channel, or has a negative time.
    """
    if retention.promotions < 1 or min(retention.keep_for, retention.grace) < timedelta(0):
        raise InvalidInputError("a collection keeps 1 promotion of each channel or more, and times are not negative")
    logs = repository.logs
    # The clock of the storage, which set the times of the objects: the local one may be wrong by more than the grace.
    now = logs.store.now()
    ages = {info.key.rpartition("/")[2].removesuffix(".json"): now - info.modified for info in logs.store.walk(COMMITS)}
    old = {commit for commit, age in ages.items() if age >= retention.grace.total_seconds()}
    # The refs are read after the ages: a commit that a publication stores and names meanwhile is not among `old`.
    needed = _needed(logs, retention, now)
    going = sorted(old - needed.keys())
    if not dry_run:
        going = _marked(logs, going, retention, now)
    gone = set(going)
    # Listed again: a commit that a publication stored since the first listing names branches of tables too.
    staying = list(_read(logs, {*ages, *logs.commit_ids()} - gone))
    entries = list(_entries_of(logs, gone))
    before = now - retention.grace.total_seconds()
    if not dry_run:
        # Entries go before their commits: a crash in between must not leave an entry whose commit is gone.
        logs.drop(entries)
        logs.drop_commits(going)
        logs.drop_marks(before, gone)
        logs.store.delete_many([info.key for info in logs.store.walk(PINS) if info.modified < before])
    branches, kept = _unnamed(repository, staying, before, dry_run=dry_run)
    return RepositoryGarbage(dry_run=dry_run, commits=tuple(going), entries=len(entries), branches=branches, kept=kept)


def _needed(logs: RefLogs, retention: CommitRetention, now: float) -> dict[str, None]:
    """Return the ids of the commits that refs name or that the retention keeps."""
    found = [tag.commit for tag in list_tags(logs).values()]
    found += _pinned(logs, now - retention.grace.total_seconds())
    since = now - retention.keep_for.total_seconds()
    for name in logs.live("branch"):
        found += _named_since(logs, "branch", name, since)
    # Deleted channels too: what they named stays readable for `keep_for` from the deletion on.
    for name in logs.names("channel"):
        found += _named_since(logs, "channel", name, since)
        with suppress(NotFoundError):
            found += islice(promotions(logs, name), retention.promotions)
    return dict.fromkeys(commit for commit in found if commit)


def _pinned(logs: RefLogs, since: float) -> Iterator[str]:
    """Return the commits that runs see; a run that began long ago is over."""
    for info in logs.store.walk(PINS):
        if info.modified < since:
            continue
        data = logs.store.get(info.key)
        if data is not None:
            yield data.decode()


def _named_since(logs: RefLogs, kind: RefKind, name: str, since: float) -> Iterator[str]:
    for entry in logs.entries(kind, name):
        yield entry.commit
        # The newest entry that is older than `since` was in force at that time, so its commit is kept too.
        if entry.at.timestamp() < since:
            return


def _marked(logs: RefLogs, going: Iterable[str], retention: CommitRetention, now: float) -> list[str]:
    """Mark the commits that are to go, and return those that no ref came to name meanwhile."""
    marked = list(going)
    if not marked:
        return []
    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(lambda commit: logs.store.put(f"{EXPIRED}/{commit}", b""), marked))
    # All marks are written before this second look. A ref that came to name a commit before its mark is seen here; a
    # process that moves a ref after the mark sees the mark.
    needed = _needed(logs, retention, now)
    logs.store.delete_many([f"{EXPIRED}/{commit}" for commit in marked if commit in needed])
    return [commit for commit in marked if commit not in needed]


def _entries_of(logs: RefLogs, gone: set[str]) -> Iterator[tuple[RefKind, str, int]]:
    """Return the entries from which on a log cannot be followed any more.

    A log is cut and not thinned out: `production~1` must never name an older promotion than the one before.
    """
    # Most collections delete nothing, and then no log is read.
    for kind in _KINDS if gone else ():
        for name in logs.names(kind):
            newest, *older = logs.numbers(kind, name) or [0]
            # The newest entry stays, also that of a deleted ref: the next number is counted from it, and a number must
            # not be given twice.
            keeps = logs.entry(kind, name, newest).commit not in gone if older else True
            for number in older:
                if keeps:
                    entry = logs.entry(kind, name, number)
                    keeps = not entry.deleted and entry.commit not in gone
                if not keeps:
                    yield kind, name, number


def _unnamed(
    repository: RepositoryContext, staying: Iterable[RepositoryCommit], before: float, *, dry_run: bool
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Delete the branches and tags of tables that hold versions for commits, and that no commit names."""
    named: dict[str, set[str]] = {}
    for commit in staying:
        for at in commit.tables.values():
            named.setdefault(at.id, set()).update((str(at), at.branch))
    kept: list[str] = []

    def one(name: str) -> tuple[str, ...]:
        context, used = repository.table(name), named.get(repository.registry.id_of(name) or "", set())
        branches, tags = _unnamed_branches(context, used, before), _unnamed_pins(context, used)
        if dry_run:
            return (*branches, *tags)
        # A branch stays where a tag still names its version: a person or another program put it there.
        stay = delete_branches(branches, context.refs, context.versions)
        kept.extend(f"{branch} of {name}: {error}" for branch, error in sorted(stay.items()))
        for tag in tags:
            # Another collection may have been faster.
            with suppress(RefNotFoundError):
                delete_tag(tag, context.refs, force=True)
        return (*(branch for branch in branches if branch not in stay), *tags)

    found = for_each_table(one, repository.registry.names())
    return {name: refs for name, refs in found.items() if refs}, tuple(sorted(kept))


def _unnamed_branches(context: TableContext, named: set[str], before: float) -> list[str]:
    """Return the branches that hold versions for no commit, without those that a publication may be making."""
    found = []
    for name in context.refs.branch_names(PUBLISHED):
        # Only branches that no commit names are read; the others can be as many as there were publications.
        branch = None if name in named else context.refs.branch(name)
        if branch is not None and branch.created_at.timestamp() <= before:
            found.append(name)
    return found


def _unnamed_pins(context: TableContext, named: set[str]) -> list[str]:
    """Return the tags that hold versions for no commit."""
    # The name of a pin of `main` has the number of the version, so these tags need not be read.
    pins = [name for name in context.refs.tag_names(PIN) if f"{MAIN}@{name.removeprefix(PIN)}" not in named]
    for name in context.refs.tag_names(BRANCH_PIN):
        tag = context.refs.tag(name)
        if tag is not None and tag.ref not in named:
            pins.append(name)
    return pins


def _read(logs: RefLogs, commit_ids: Iterable[str]) -> Iterator[RepositoryCommit]:
    for commit_id in commit_ids:
        # Another collection may delete one meanwhile.
        with suppress(NotFoundError):
            yield logs.commit(commit_id)
