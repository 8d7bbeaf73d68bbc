"""The stored form of a repository: commits by their digest, and the logs of branches and channels.

    _repository/repository.json                   the repository's id, written once
    _repository/commits/{sha256}.json             commits, never changed
    _repository/commits/ranges/{sha256}           entries of commits of many tables, which these commits share
    _repository/branches/{name}/{number}.json     the log of a branch, the newest entry listed first
    _repository/branches/{name}/tables/{table}    a table is being forked to the branch
    _repository/branches/{name}/tables/{table}@{id}
                                                  a table was forked to the branch, and the id of the table's branch
    _repository/channels/{name}/{number}.json     the log of a channel
    _repository/tags/{name}.json                  repository tags, written once
    _repository/tables/{name}.json                which tables are registered, and their ids
    _repository/pins/{reader}@{channel}           which commit a run sees by a channel
    _repository/identities/{table}.json           the name of the table that has an id
    _repository/expired/{sha256}                  commits that a collection deleted lately, or will; its id

A ref moves by one put-if-absent of the next entry of its log. That is the moment at which a publication of many tables
happens: before it no reader sees any of them, after it every reader of the ref sees all of them. No entry of a log is
overwritten, so nothing has to be locked, and a reader needs one listing and one read whatever the length of the log.

A lost response proves nothing: an HTTP client may have sent the request twice and report the refusal of the second
request. So an entry carries a random id, and is read back before it counts as refused.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeVar, cast
from urllib.parse import quote, unquote

import pendulum

from lance_dagster.errors import (
    CommitStateUnknownError,
    NotFoundError,
    PermissionRefusedError,
    RefNotFoundError,
    StoreError,
)
from lance_dagster.format.layout import MAIN, REPOSITORY, REPOSITORY_MARKER
from lance_dagster.format.validation import check_string, check_string_mapping
from lance_dagster.history.commit import WRITER, committer, writer_name
from lance_dagster.repository.commits.entry_ranges import EntryKind, RangedEntries
from lance_dagster.repository.commits.snapshot import (
    Action,
    ChannelHold,
    RefEntry,
    RepositoryCommit,
    entry_bytes,
    parse_commit,
    parse_entry,
    parse_pin,
    parse_range,
)
from lance_dagster.store import AT_ONCE, ObjectInfo, Store, concurrently, put_once

FOLDER = REPOSITORY
MARKER = REPOSITORY_MARKER
COMMITS = f"{FOLDER}/commits"
# Below the commits, so that a collection lists both by one request.
RANGES = f"{COMMITS}/ranges"
TAGS = f"{FOLDER}/tags"
TABLES = f"{FOLDER}/tables"
EXPIRED = f"{FOLDER}/expired"
IDENTITIES = f"{FOLDER}/identities"
PINS = f"{FOLDER}/pins"
RefKind = Literal["branch", "channel"]
_FOLDERS: Mapping[RefKind, str] = {"branch": f"{FOLDER}/branches", "channel": f"{FOLDER}/channels"}
# Names count down: storages list names in ascending order, so a listing of one name finds the newest entry.
_NUMBERS = 10**15
# A commit names every table of the repository, so a process that reads a long log must not keep all of them.
_CACHED = 256
_CACHED_RANGES = 2048
_PUTS = 3
_LOOKS = 3
_NONE: Mapping[str, RefEntry] = MappingProxyType({})
T = TypeVar("T")
_ENTRY_FILE = re.compile(r"[0-9]{15}\.json")
_BRANCH_FILE = re.compile(rf"(?P<name>[^/]+)/(?:(?P<entry>{_ENTRY_FILE.pattern})|tables/(?P<mark>[^/]+))")


@dataclass(frozen=True, slots=True)
class ForkMark:
    """The mark of a table that was forked to a branch.

    Attributes:
        table_id: The identity of the table.
        branch_id: The identity of the table's own branch; empty until the branch is made.
    """

    table_id: str
    branch_id: str = ""

    @property
    def file_name(self) -> str:
        """The name of the mark's file, which has no content: a listing tells everything."""
        names = [self.table_id, self.branch_id] if self.branch_id else [self.table_id]
        return "@".join(quote(name, safe="") for name in names)

    @classmethod
    def parse(cls, file_name: str) -> "ForkMark":
        """Return the mark of a file."""
        table_id, _, branch_id = file_name.partition("@")
        return cls(unquote(table_id), unquote(branch_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchLog:
    """The information about the log of a branch that a listing has.

    Attributes:
        numbers: The numbers of the entries, newest first.
        modified: When the newest entry was written, in seconds by the clock of the storage.
        marks: The marks of the tables that were forked to the branch.
    """

    numbers: tuple[int, ...]
    modified: float
    marks: tuple[ForkMark, ...]


@dataclass(frozen=True, slots=True)
class RefLogs:
    """The commits and the refs of one repository."""

    store: Store
    # Commits never change, so a commit that was read once is kept.
    _commits: dict[str, RepositoryCommit] = field(default_factory=dict)
    # Nor do entries: the newest entry of `main` and of each channel is read once for each number.
    _entries: dict[tuple[RefKind, str], RefEntry] = field(default_factory=dict)
    # Nor do ranges, which many commits share.
    _ranges: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def names(self, kind: RefKind) -> list[str]:
        """List the names of all branches or channels, deleted ones included."""
        return [unquote(name) for name in self.store.folders(_FOLDERS[kind])]

    def newest(self, kind: RefKind, name: str) -> RefEntry | None:
        """Return the newest entry of a ref, also an entry that deleted it; None when there never was such a ref.

        The log is listed at each call. The entry is read only where this object has not read or put it before.
        """
        for _ in range(_LOOKS):
            number, entry = self._newest_number(kind, name), self._entries.get((kind, name))
            if number is None or (entry is not None and entry.number == number):
                return None if number is None else entry
            # A collection may remove the log of an ended branch between the listing and the read.
            with suppress(NotFoundError):
                return self._keep_newest(kind, name, self.entry(kind, name, number))
        raise StoreError(f"{self.store.uri}/{_folder(kind, name)} lists entries and does not have them")

    def newest_read(self) -> RepositoryCommit | None:
        """Return the newest commit of `main` that this object has read or made, without a request; None for none."""
        entry = self._entries.get(("branch", MAIN))
        return None if entry is None else self._commits.get(entry.commit)

    def _keep_newest(self, kind: RefKind, name: str, entry: RefEntry) -> RefEntry:
        # The log of an ended branch may be collected, and a later branch of the name counts from 1 again.
        if kind == "channel" or name == MAIN:
            self._entries[kind, name] = entry
        return entry

    def _newest_number(self, kind: RefKind, name: str) -> int | None:
        folder = _folder(kind, name)
        file_names = self.store.list(folder, 1)
        if file_names and not _ENTRY_FILE.fullmatch(file_names[0]):
            # A file of another program, such as `.DS_Store` or the backup of an editor, is listed before the entries.
            file_names = self.store.list(folder)
        return next((_number_of(file_name) for file_name in file_names if _ENTRY_FILE.fullmatch(file_name)), None)

    def current(self, kind: RefKind, name: str) -> RefEntry:
        """Return the entry that says which commit a ref names.

        Raises:
            RefNotFoundError: There is no such branch or channel.
        """
        entry = self.newest(kind, name)
        if entry is None or entry.deleted:
            raise RefNotFoundError(name, list(self.live(kind)), self.store.uri, kind)
        return entry

    def live(self, kind: RefKind) -> dict[str, RefEntry]:
        """Return the newest entry of every ref that was not deleted; of branches, `main` and branches with marks."""
        if kind == "branch":
            # The end of a branch deletes its marks, so the logs of ended branches are listed and not read.
            logs = {name: log for name, log in self.branch_logs().items() if log.marks or name == MAIN}
            entries = self.newest_of(logs)
            return {name: entry for name, entry in sorted(entries.items()) if not entry.deleted}
        names = self.names(kind)
        # Each ref costs two requests, one after the other; different refs are read at the same time.
        newest_entries = concurrently(lambda name: self.newest(kind, name), names)
        return {name: entry for name, entry in zip(names, newest_entries, strict=True) if entry and not entry.deleted}

    def branch_logs(self) -> dict[str, BranchLog]:
        """List the logs of all branches, ended ones included; no entry is read."""
        # One listing of everything, and not a listing for each name: a run leaves a few objects, and a request lists a
        # thousand objects.
        return _branch_logs(self.store.walk(_FOLDERS["branch"]))

    def forked(self, branch: str) -> tuple[RefEntry | None, tuple[ForkMark, ...]]:
        """Return the newest entry of a branch, None where there is none, and the marks of its tables; two requests."""
        log = _branch_logs(self.store.walk(_folder("branch", branch))).get(branch)
        # A collection may remove the log of an ended branch after it was listed.
        entry = None if log is None else self.newest_of({branch: log}).get(branch)
        return entry, () if log is None else log.marks

    def newest_of(self, logs: Mapping[str, BranchLog], previous: Mapping[str, RefEntry] = _NONE) -> dict[str, RefEntry]:
        """Read the newest entry of each branch in `logs`; an entry that `previous` has is not read again."""

        def newest(name: str) -> RefEntry | None:
            number, before = logs[name].numbers[0], previous.get(name)
            if before is not None and before.number == number:
                return before
            # A collection may remove the log of an ended branch after it was listed.
            with suppress(NotFoundError):
                return self.entry("branch", name, number)
            return None

        return {name: entry for name, entry in zip(logs, concurrently(newest, logs), strict=True) if entry is not None}

    def entries(self, kind: RefKind, name: str, *, upto: int | None = None) -> Iterator[RefEntry]:
        """Read the entries of a ref up to a number, newest first, each when it is asked for."""
        for number in self.numbers(kind, name):
            if upto is None or number <= upto:
                yield self.entry(kind, name, number)

    def numbers(self, kind: RefKind, name: str) -> list[int]:
        """List the numbers of the entries of a ref, newest first."""
        file_names = self.store.list(_folder(kind, name))
        # Anything else is a file of another program.
        return [_number_of(file_name) for file_name in file_names if _ENTRY_FILE.fullmatch(file_name)]

    def append(self, kind: RefKind, name: str, entry: RefEntry) -> bool:
        """Put the next entry of a ref; return False when another writer put an entry of the same number first.

        Raises:
            PermissionRefusedError: The credentials may not write it; nothing happened.
            CommitStateUnknownError: The storage failed, and the entry may or may not have been written.
        """
        path, data = _path(kind, name, entry.number), entry_bytes(entry)
        for tried in range(_PUTS):
            try:
                if self.store.put_if_absent(path, data):
                    self._keep_newest(kind, name, entry)
                    return True
                # The refusal may be the answer to a second copy of this very request.
                stored = self.store.get(path)
            except PermissionRefusedError:
                # A policy decides before anything is written, but an earlier put whose answer was lost may have landed.
                if not tried:
                    raise
                continue
            except StoreError:
                # The put may have been done all the same. It is repeated with the same bytes, so it cannot be done
                # twice: the second put is refused, and the read finds the id of this entry.
                continue
            # The put was refused, and there is no entry: the other put that was in progress failed, so the number is
            # free.
            if stored is not None:
                return parse_entry(stored, f"{self.store.uri}/{path}").write == entry.write
        raise CommitStateUnknownError(
            f"the storage failed while {kind} {name!r} of {self.store.uri} was moved; it may or may not have moved",
            entry.write,
            entry,
        )

    def put_commit(self, commit: RepositoryCommit, data: bytes, *, base: RepositoryCommit | None = None) -> None:
        """Store a commit; the same commit may be stored twice.

        Args:
            commit: The commit.
            data: Its bytes.
            base: The commit that the ref names until the entry is put that names the new commit; the ranges of `base`
                are not stored again. None where no ref is known to name such a commit.
        """
        # Before the commit that names them. A collection keeps the ranges of `base`, because a ref names it.
        self._put_ranges(commit.tables, None if base is None else base.tables)
        self._put_ranges(commit.writes, None if base is None else base.writes)
        # Not a single put-if-absent: an entry will name the commit next, so the commit must certainly exist.
        put_once(self.store, _commit_path(commit.id), data)
        self._keep(commit)

    def _put_ranges(self, entries: Mapping[str, object], base: Mapping[str, object] | None) -> None:
        if not isinstance(entries, RangedEntries):
            return
        digests = sorted(entries.digests - (base.digests if isinstance(base, RangedEntries) else frozenset()))
        concurrently(lambda digest: self._put_range(digest, entries.content(digest)), digests)

    def _put_range(self, digest: str, content: bytes) -> None:
        """Store a range, and make sure that no collection that has begun deletes it."""
        path = f"{RANGES}/{digest}"
        for _ in range(_PUTS):
            # Each copy has a line of its own: a collection deletes a range only as the collection has read it.
            data = content + b"\n" + uuid.uuid4().hex.encode()
            if self.store.put_if_absent(path, data):
                return
            # An earlier state had the range. No commit may name it any more, so a collection may be about to delete it.
            stored = self.store.get_with_etag(path)
            if stored is not None and self.store.compare_and_swap(path, data, stored[1]):
                return
        raise StoreError(f"cannot write {self.store.uri}/{path}: other processes write and delete it at each attempt")

    def read_ranges(self, digests: Sequence[str], kind: EntryKind[T]) -> Sequence[Mapping[str, T]]:
        """Return the entries of ranges; a range that was read before is not read again.

        Raises:
            NotFoundError: A range was collected.
        """
        # A digest is that of entries of one kind: their content has different fields.
        ranges = {digest: cast("Mapping[str, T]", self._ranges[digest]) for digest in digests if digest in self._ranges}
        missing = [digest for digest in digests if digest not in ranges]
        at_once = AT_ONCE if self.store.ordered_listing else 1
        read = concurrently(lambda digest: self._read_range(digest, kind), missing, at_once=at_once)
        ranges |= zip(missing, read, strict=True)
        for digest in missing:
            _make_room(self._ranges, _CACHED_RANGES)
            self._ranges[digest] = ranges[digest]
        return [ranges[digest] for digest in digests]

    def _read_range(self, digest: str, kind: EntryKind[T]) -> Mapping[str, T]:
        path = f"{RANGES}/{digest}"
        data = self.store.get(path)
        if data is None:
            raise NotFoundError(f"range {digest[:12]} of {self.store.uri} is gone: it was collected with its commits")
        return parse_range(digest, data, f"{self.store.uri}/{path}", kind)

    def commit(self, commit_id: str) -> RepositoryCommit:
        """Read a commit.

        Raises:
            NotFoundError: It was collected.
        """
        cached = self._commits.get(commit_id)
        if cached is not None:
            return cached
        path = _commit_path(commit_id)
        data = self.store.get(path)
        if data is None:
            raise NotFoundError(f"commit {commit_id[:12]} of {self.store.uri} is gone: it was collected")
        return self._keep(parse_commit(commit_id, data, f"{self.store.uri}/{path}", self))

    def commit_ids(self) -> list[str]:
        """List the ids of all commits."""
        return [name.removesuffix(".json") for name in self.store.list(COMMITS) if name.endswith(".json")]

    def has_commit(self, commit_id: str) -> bool:
        """Return whether a commit is stored, whether it was read before or not."""
        return self.store.get(_commit_path(commit_id)) is not None

    def drop(self, entries: Sequence[tuple[RefKind, str, int]]) -> None:
        """Delete entries; never the newest entry of a ref, from which the next number is counted."""
        self.store.delete_many([_path(kind, name, number) for kind, name, number in entries])

    def drop_branch_logs(self, logs: Mapping[str, BranchLog]) -> None:
        """Delete the logs of ended branches, as far as they were listed."""
        # The newest entries go last: otherwise a crash in between would leave an older entry in force.
        older = [(name, number) for name, log in logs.items() for number in log.numbers[1:]]
        for entries in (older, [(name, log.numbers[0]) for name, log in logs.items()]):
            self.store.delete_many([_path("branch", name, number) for name, number in entries])
        for name in logs:
            self.store.prune(_folder("branch", name))

    def mark(self, commit_id: str, collection: str) -> bool:
        """Mark a commit as about to be deleted by a collection; return False where another collection marked it."""
        path, data = f"{EXPIRED}/{commit_id}", collection.encode()
        # Read back, because the refusal may be the answer to a second copy of this very request.
        return self.store.put_if_absent(path, data) or self.store.get(path) == data

    def drop_commits(self, commit_ids: Sequence[str]) -> None:
        """Delete commits that were marked as expired; the marks stay."""
        # The marks stay for a process that moves a ref to such a commit, which it may have read long before and have in
        # memory: it finds the mark and undoes the move.
        self.store.delete_many([_commit_path(commit_id) for commit_id in commit_ids])
        for commit_id in commit_ids:
            self._commits.pop(commit_id, None)

    def ages(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return when each commit and each range was written, by its id, in seconds by the clock of the storage."""
        commits, ranges = dict[str, float](), dict[str, float]()
        for info in self.store.walk(COMMITS):
            name = info.key.rpartition("/")[2]
            if info.key.startswith(f"{RANGES}/"):
                ranges[name] = info.modified
            else:
                commits[name.removesuffix(".json")] = info.modified
        return commits, ranges

    def drop_ranges(self, digests: Sequence[str], before: float) -> int:
        """Delete ranges, unless they were written again after a time of the storage's clock; return how many."""
        if not self.store.deletes_conditionally():
            return 0

        def tag(digest: str) -> str | None:
            stored = self.store.get_with_etag(f"{RANGES}/{digest}")
            return None if stored is None else stored[1]

        tags = dict(zip(digests, concurrently(tag, digests), strict=True))
        # The ages are listed after the tags were read: where a range is written again after its tag was read, its age
        # shows that here, or its deletion finds other bytes.
        _, ages = self.ages()
        old = {digest: tag for digest, tag in tags.items() if tag and ages.get(digest, before + 1) <= before}
        deleted = concurrently(lambda digest: self.store.compare_and_delete(f"{RANGES}/{digest}", old[digest]), old)
        for digest in old:
            self._ranges.pop(digest, None)
        return sum(deleted)

    def drop_marks(self, before: float) -> None:
        """Delete the marks older than a time of the storage's clock."""
        self.store.delete_many([info.key for info in self.store.walk(EXPIRED) if info.modified < before])

    def unmark(self, commit_ids: Sequence[str]) -> None:
        """Delete marks of commits; call it only with marks of this collection."""
        self.store.delete_many([f"{EXPIRED}/{commit_id}" for commit_id in commit_ids])

    def is_expired(self, commit_id: str) -> bool:
        """Return whether a collection deleted a commit lately, or is about to."""
        return self.store.get(f"{EXPIRED}/{commit_id}") is not None

    def pin(self, reader: str, channel: str, commit_id: str) -> str:
        """Pin a reader of a channel to a commit; return the commit, which another process may have set first."""
        # The first process of a reader decides; all later processes read what it wrote.
        self.store.put_if_absent(_pin_path(reader, channel), commit_id.encode())
        return self.pinned(reader, channel) or commit_id

    def pin_again(self, reader: str, channel: str, commit_id: str) -> None:
        """Pin a reader of a channel to another commit."""
        self.store.put(_pin_path(reader, channel), commit_id.encode())

    def pinned(self, reader: str, channel: str) -> str | None:
        """Return the commit that a reader of a channel is pinned to, or None."""
        return self.read_pin(_pin_path(reader, channel))

    def read_pin(self, path: str) -> str | None:
        """Return the commit that a file below `pins/` names, or None when it is gone.

        Raises:
            CorruptFileError: It does not hold the id of a commit.
        """
        data = self.store.get(path)
        return None if data is None else parse_pin(data, f"{self.store.uri}/{path}")

    def mark_fork(self, branch: str, mark: ForkMark) -> None:
        """Record that a table is being forked, or was forked, to a branch."""
        self.store.put_if_absent(f"{_marks_folder(branch)}/{mark.file_name}", b"")

    def unmark_forks(self, branch: str, marks: Iterable[ForkMark]) -> None:
        """Delete the marks of tables that were forked to a branch."""
        if paths := [f"{_marks_folder(branch)}/{mark.file_name}" for mark in marks]:
            self.store.delete_many(paths)

    def fork_marks(self, branch: str) -> tuple[ForkMark, ...]:
        """List the marks of the tables that were forked to a branch."""
        return tuple(map(ForkMark.parse, self.store.list(_marks_folder(branch))))

    def entry(self, kind: RefKind, name: str, number: int) -> RefEntry:
        """Read one entry of a ref.

        Raises:
            NotFoundError: It was collected.
        """
        path = _path(kind, name, number)
        data = self.store.get(path)
        if data is None:
            raise NotFoundError(f"entry {number} of {kind} {name!r} of {self.store.uri} is gone: it was collected")
        return parse_entry(data, f"{self.store.uri}/{path}")

    def _keep(self, commit: RepositoryCommit) -> RepositoryCommit:
        _make_room(self._commits, _CACHED)
        self._commits[commit.id] = commit
        return commit


def _make_room(cached: dict[str, T], most: int) -> None:
    if len(cached) >= most:
        # Half of the values are removed, the oldest first. Another thread may remove the same values.
        for oldest in list(cached)[: most // 2]:
            cached.pop(oldest, None)


def next_entry(
    before: RefEntry | None,
    action: Action,
    commit: str,
    *,
    reason: str = "",
    hold: ChannelHold | None = None,
    by: str = "",
) -> RefEntry:
    """Return the entry that follows entry `before`.

    Raises:
        InvalidInputError: The reason or the person is not a string.
    """
    # Checked here: an entry that cannot be read would stop every reader of the ref.
    check_string("the reason", reason)
    check_string("who acts", by)
    now = pendulum.now("UTC")
    return RefEntry(
        number=1 if before is None else before.number + 1,
        commit=commit,
        action=action,
        by=by or person(),
        # Times never go back within a log, whatever the clocks of its writers show: `ref@{time}` is found by a binary
        # search.
        at=now if before is None else max(now, before.at),
        reason=reason,
        hold=hold,
        write=uuid.uuid4().hex,
    )


def with_properties(entry: RefEntry, properties: Mapping[str, str]) -> RefEntry:
    """Return an entry with properties.

    Raises:
        InvalidInputError: They are not strings.
    """
    check_string_mapping("properties", properties)
    return replace(entry, properties=dict(properties))


def person() -> str:
    """Return who acts: the committer, else the program."""
    return committer() or writer_name(WRITER)


def _folder(kind: RefKind, name: str) -> str:
    check_string(f"the name of a {kind}", name)
    # A slash is encoded too: each ref is one folder, and a listing of folders gives the names.
    encoded = quote(name, safe="")
    # `..` as a name would lead out of the folder.
    return f"{_FOLDERS[kind]}/{encoded.replace('.', '%2E', 1) if encoded.startswith('.') else encoded}"


def _marks_folder(branch: str) -> str:
    return f"{_folder('branch', branch)}/tables"


def _branch_logs(files: Iterable[ObjectInfo]) -> dict[str, BranchLog]:
    """Return the logs of branches, by name, given the files below the folder of all branches or of one."""
    times: dict[str, dict[int, float]] = {}
    marks: dict[str, list[ForkMark]] = {}
    folder = f"{_FOLDERS['branch']}/"
    for info in files:
        # Anything else is a temporary file of a writer.
        if match := _BRANCH_FILE.fullmatch(info.key.removeprefix(folder)):
            name = unquote(match["name"])
            if match["entry"] is None:
                marks.setdefault(name, []).append(ForkMark.parse(match["mark"]))
            else:
                times.setdefault(name, {})[_number_of(match["entry"])] = info.modified
    return {
        name: BranchLog(
            numbers=tuple(sorted(by_number, reverse=True)),
            modified=by_number[max(by_number)],
            marks=tuple(marks.get(name, ())),
        )
        for name, by_number in times.items()
    }


def _path(kind: RefKind, name: str, number: int) -> str:
    return f"{_folder(kind, name)}/{_NUMBERS - number:015d}.json"


def _number_of(file_name: str) -> int:
    return _NUMBERS - int(file_name.removesuffix(".json"))


def _pin_path(reader: str, channel: str) -> str:
    return f"{PINS}/{quote(reader, safe='')}@{quote(channel, safe='')}"


def _commit_path(commit_id: str) -> str:
    return f"{COMMITS}/{commit_id}.json"
