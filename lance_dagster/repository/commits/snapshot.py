"""Commits of a repository and entries of its refs: the values, and their bytes.

A commit names one version of every table. Its id is the SHA-256 of its bytes, so a commit is never changed, and its
parents are covered by the id. A ref of the repository is a log of entries; the newest entry says which commit the ref
names, and whether the ref is held there.

    commit  {"format", "parents", "generation", "committed_at", "author", "message", "properties",
             "tables": {name: {"id", "branch", "version", "commit", "lands", "pin"}},
             "writes": {table id: {"published": [[first, last]], "dropped": [[first, last]]}},
             "channels": {name: number of an entry of main}}
            format 2, of many tables: "tables", "writes" or both are [[first key, number of entries, digest]], each of
            them a range of the entries (`entry_ranges`)
    range   {"format", "entries"}, then a line that is different in each copy
    entry   {"format", "number", "commit", "action", "by", "at", "reason", "hold", "properties", "write", "upto",
             "moves": {table id: [number, ...]}, "request"}
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import pendulum

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_string, parsed_json, validate_commit_info
from lance_dagster.repository.candidates.closed_writes import ClosedWrites, closed_value, parse_closed
from lance_dagster.repository.commits.entry_ranges import (
    RANGE_FORMAT,
    EntryKind,
    EntryRange,
    RangedEntries,
    RangeReader,
    different_entries,
    range_digest,
    stored_form,
)

FORMAT = 1
Action = Literal["fork", "commit", "promote", "rollback", "hold", "release", "delete"]
"""The action of an entry of a ref."""
_ACTIONS: tuple[str, ...] = get_args(Action)
_ID = re.compile(r"[0-9a-f]{64}")
# The commit of a small repository takes about 250 bytes for each table; of a large repository, 2 bytes for each table.
_MAX_BYTES = 100_000_000
# The text of a parser's error may quote the file, which can be long.
_LONGEST_PROBLEM = 200
Moves = Mapping[str, Collection[int]]
"""The ids of tables that an entry of a channel moves, each with the earlier entries that it withdraws for the table."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One version of one table, as a commit of a repository names it.

    Attributes:
        id: The identity of the table, which stays when the table gets another name.
        branch: The branch of the table that holds the version.
        version: Its number on that branch.
        commit_id: The commit id of the version (`Version.id`), a digest of its manifest.
        lands: The number that the version gets on the `main` of its table, unless another program commits there first;
            0 for a version that cannot land as it is.
        pin: The tag of the table that keeps the version until `main` has it; empty for a version that needs none.
    """

    id: str
    branch: str
    version: int
    commit_id: str
    lands: int
    pin: str = ""

    @property
    def ref(self) -> str:
        """The ref expression that names the version in its table."""
        return f"branch:{self.branch}@{self.version}"

    @property
    def on_main(self) -> str:
        """The version on `main`, which people find in the log of the table; `branch@number` where it cannot land."""
        return f"{MAIN}@{self.lands}" if self.lands else str(self)

    def __str__(self) -> str:
        """Return the version as people write it."""
        return f"{self.branch}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryCommit:
    """One state of all tables of a repository.

    Attributes:
        id: The SHA-256 of the commit's bytes, as 64 hexadecimal digits.
        tables: The version of each table, by the table's name.
        parents: The ids of the commits it was made from, the newest state of the branch first.
        generation: 1 for the first commit; for any other commit, 1 more than the largest generation of its parents.
        committed_at: When it was made, by the clock of the writer.
        author: Who made it.
        message: The commit message, which the log shows.
        properties: Further values that are recorded with it, such as the run and its assets.
        writes: The closed writes by table id: recorded writes whose rows the versions of the commit have, and recorded
            writes that will never be published.
        channels: By channel, the number of the last entry of `main` that was made to be promoted to it: the entry of
            this commit, or of an earlier commit. The commits that a channel has yet to get form a chain.
        is_stored: Whether the repository has the commit. An expression such as `production~1` may name a state that no
            commit has; it is stored when a ref moves there.
    """

    id: str
    # A repository may have very many.
    tables: Mapping[str, TableVersion] = field(repr=False)
    parents: tuple[str, ...]
    generation: int
    committed_at: pendulum.DateTime
    author: str
    message: str
    properties: Mapping[str, str] = field(default_factory=dict)
    writes: Mapping[str, ClosedWrites] = field(default_factory=dict, repr=False)
    channels: Mapping[str, int] = field(default_factory=dict, repr=False)
    is_stored: bool = field(default=True, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the beginning of the id and the message."""
        return f"{self.short_id} {self.message}"

    @property
    def short_id(self) -> str:
        """The first 12 digits of the id, for people."""
        return self.id[:12]

    def changed_from(self, parent: "RepositoryCommit | None") -> tuple[str, ...]:
        """Return the names of the tables that this commit added, changed or removed."""
        before, after = different_entries({} if parent is None else parent.tables, self.tables)
        return tuple(sorted(before.keys() | after.keys()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelHold:
    """A hold of a channel: it names the same commit until it is released, with a reason."""

    reason: str
    held_by: str
    held_at: pendulum.DateTime

    def __str__(self) -> str:
        """Return who held the channel, since when and why."""
        return f"held by {self.held_by} since {self.held_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefEntry:
    """One entry of the log of a branch or channel.

    Attributes:
        number: The place in the log, from 1.
        commit: The id of the commit that the ref names from this entry on; empty after a deletion.
        action: What the entry does.
        by: The person or program.
        at: When, by the clock of the writer.
        reason: Why; the message of a commit.
        hold: The hold that is in force after the entry, or None.
        properties: Further values that were recorded, such as the checks that passed.
        write: A random id by which a writer recognises its own entry when the response of the storage was lost.
        upto: Of a channel, the number of the last entry of `main` that it had, or was moved back from, when the entry
            was made. Later commits for the channel are still to be promoted.
        moves: The ids of the tables that the entry of a channel is about, each with the numbers of the earlier entries
            that it withdraws for the table: none in a promotion. None for a branch, and for an entry of a version of
            this package that did not record it.
        request: Which request for a rollback the entry fulfils, so that a repeated request is recognised.
        withdrawn: By table id, the number on `main` of the newest version that a rollback took back, until the channel
            moves forward in this table.
    """

    number: int
    commit: str
    action: Action
    by: str
    at: pendulum.DateTime
    reason: str = ""
    hold: ChannelHold | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    write: str = ""
    upto: int = 0
    moves: Moves | None = None
    request: str = ""
    withdrawn: Mapping[str, int] = field(default_factory=dict)

    @property
    def deleted(self) -> bool:
        """Whether the ref was deleted by this entry."""
        return self.action == "delete"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The records that a commit has besides its tables: `RepositoryCommit.writes` and `RepositoryCommit.channels`."""

    writes: Mapping[str, ClosedWrites] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)


_NOTHING_RECORDED = Recorded()


def new_commit(
    tables: Mapping[str, TableVersion],
    parents: tuple[RepositoryCommit, ...],
    *,
    author: str,
    message: str,
    properties: Mapping[str, str],
    recorded: Recorded = _NOTHING_RECORDED,
) -> tuple[RepositoryCommit, bytes]:
    """Return a new commit and its bytes."""
    # Before anything is stored: no reader accepts other values.
    validate_commit_info(message, properties)
    check_string("the author", author)
    commit = RepositoryCommit(
        id="",
        tables=stored_form(tables, TABLE_ENTRIES),
        parents=tuple(parent.id for parent in parents),
        # A search for an ancestor ends where generations are too small, without reading older commits.
        generation=1 + max((parent.generation for parent in parents), default=0),
        committed_at=pendulum.now("UTC"),
        author=author,
        message=message,
        properties=properties,
        writes=stored_form(recorded.writes, WRITE_ENTRIES),
        channels=recorded.channels,
    )
    data = commit_bytes(commit)
    commit_id = hashlib.sha256(data).hexdigest()
    # Parsed from its bytes: the writer holds what each reader will hold. Its new ranges are not stored yet.
    parsed = parse_commit(commit_id, data, commit_id)
    return replace(
        parsed,
        tables=commit.tables if isinstance(commit.tables, RangedEntries) else parsed.tables,
        writes=commit.writes if isinstance(commit.writes, RangedEntries) else parsed.writes,
    ), data


def composed_commit(
    tables: Mapping[str, TableVersion], sources: tuple[RepositoryCommit, ...], entry: RefEntry, name: str
) -> RepositoryCommit:
    """Return the commit of a state that no stored commit has; the same state at the same entry has the same id.

    Args:
        tables: The version of each table.
        sources: The stored commits that have these versions, which become the parents; the newest commit last.
        entry: The entry of a channel to which the state belongs.
        name: The expression that names the state.
    """
    commit = RepositoryCommit(
        id="",
        tables=stored_form(tables, TABLE_ENTRIES),
        parents=tuple(source.id for source in sources),
        generation=1 + max(source.generation for source in sources),
        committed_at=entry.at,
        author=entry.by,
        message=name,
        writes=stored_form(writes_of(tables, sources), WRITE_ENTRIES),
        channels=sources[-1].channels,
    )
    return replace(commit, id=hashlib.sha256(commit_bytes(commit)).hexdigest(), is_stored=False)


def commit_bytes(commit: RepositoryCommit) -> bytes:
    """Return the bytes of a commit, of which its id is the digest."""
    is_split = any(isinstance(entries, RangedEntries) for entries in (commit.tables, commit.writes))
    content: dict[str, Any] = {
        # An earlier release reads the commits of a small repository, and says of others that it is too old.
        "format": RANGE_FORMAT if is_split else FORMAT,
        "parents": list(commit.parents),
        "generation": commit.generation,
        "committed_at": commit.committed_at.isoformat(),
        "author": commit.author,
        "message": commit.message,
        "properties": dict(commit.properties),
        "tables": _entries_value(commit.tables, TABLE_ENTRIES),
    }
    if commit.writes:
        content["writes"] = _entries_value(commit.writes, WRITE_ENTRIES)
    if commit.channels:
        content["channels"] = dict(commit.channels)
    return _bytes(content)


def ranges_of(commit: RepositoryCommit) -> frozenset[str]:
    """Return the digests of the ranges that a commit names; none for a commit of few tables."""
    digests = frozenset[str]()
    for entries in (commit.tables, commit.writes):
        if isinstance(entries, RangedEntries):
            digests |= entries.digests
    return digests


def writes_of(tables: Mapping[str, TableVersion], commits: Iterable[RepositoryCommit]) -> dict[str, ClosedWrites]:
    """Return the closed writes of versions of tables that are taken from several commits.

    Args:
        tables: The versions.
        commits: The commits; the writes of a table are those of the first commit that names its version.
    """
    writes: dict[str, ClosedWrites] = {}
    versions = {at.id: at for at in tables.values()}
    for commit in commits:
        for at in commit.tables.values():
            if versions.get(at.id) == at and at.id in commit.writes:
                writes.setdefault(at.id, commit.writes[at.id])
    return writes


def parse_commit(commit_id: str, data: bytes, path: str, reader: RangeReader | None = None) -> RepositoryCommit:
    """Parse the bytes of a commit; the reader reads its ranges when they are asked for.

    Raises:
        CorruptFileError: The bytes are not those of the commit.
        UnsupportedFeatureError: A later release wrote them.
    """
    # Refs and other commits name a commit by its digest, so bytes with this digest are what the writer stored.
    if hashlib.sha256(data).hexdigest() != commit_id:
        raise CorruptFileError(path, "the digest of its bytes differs from the digest in its name")

    def parse(content: Mapping[str, Any]) -> RepositoryCommit:
        return RepositoryCommit(
            id=commit_id,
            tables=_parse_entries(content["tables"], TABLE_ENTRIES, reader),
            parents=tuple(_digest(parent) for parent in content["parents"]),
            generation=_count(content["generation"]),
            committed_at=_time(content["committed_at"]),
            author=_text(content["author"]),
            message=_text(content["message"]),
            properties=_texts(content["properties"]),
            # Commits of repositories in which no run recorded a write have none.
            writes=_parse_entries(content.get("writes", {}), WRITE_ENTRIES, reader),
            channels={_text(name): _count(number) for name, number in content.get("channels", {}).items()},
        )

    return _parsed(parse, data, path, RANGE_FORMAT)


def parse_range(digest: str, data: bytes, path: str, kind: EntryKind[T]) -> Mapping[str, T]:
    """Parse the bytes of a range.

    Raises:
        CorruptFileError: The bytes are not those of the range.
        UnsupportedFeatureError: A later release wrote them.
    """
    # The line after the content is different in each copy of the range.
    content, _, _ = data.partition(b"\n")
    if range_digest(content) != digest:
        raise CorruptFileError(path, "the digest of its content differs from the digest in its name")
    return _parsed(lambda parsed: kind.parse(parsed["entries"]), content, path, RANGE_FORMAT)


def entry_bytes(entry: RefEntry) -> bytes:
    """Return the bytes of an entry."""
    hold = entry.hold
    return _bytes(
        {
            "format": FORMAT,
            "number": entry.number,
            "commit": entry.commit,
            "action": entry.action,
            "by": entry.by,
            "at": entry.at.isoformat(),
            "reason": entry.reason,
            "hold": hold and {"reason": hold.reason, "by": hold.held_by, "at": hold.held_at.isoformat()},
            "properties": dict(entry.properties),
            "write": entry.write,
            "upto": entry.upto,
            "moves": entry.moves and {table: sorted(numbers) for table, numbers in entry.moves.items()},
            "request": entry.request,
            **({"withdrawn": dict(entry.withdrawn)} if entry.withdrawn else {}),
        }
    )


def parse_entry(data: bytes, path: str) -> RefEntry:
    """Parse the bytes of an entry.

    Raises:
        CorruptFileError: The bytes are not an entry.
        UnsupportedFeatureError: A later release wrote them.
    """

    def parse(content: Mapping[str, Any]) -> RefEntry:
        action, hold = content["action"], content["hold"]
        if action not in _ACTIONS:
            raise ValueError(f"{action!r} is not an action of a ref")
        held = hold and ChannelHold(reason=_text(hold["reason"]), held_by=_text(hold["by"]), held_at=_time(hold["at"]))
        return RefEntry(
            number=_count(content["number"]),
            # A deleted ref names no commit, and an empty text is not a digest.
            commit="" if action == "delete" else _digest(content["commit"]),
            action=action,
            by=_text(content["by"]),
            at=_time(content["at"]),
            reason=_text(content["reason"]),
            hold=held or None,
            properties=_texts(content["properties"]),
            write=_text(content["write"]),
            upto=_count(content.get("upto", 0)),
            # Branches have none, and neither have entries that an earlier version of this package wrote.
            moves=_moves(content.get("moves")),
            request=_text(content.get("request", "")),
            withdrawn={_text(table): _count(number) for table, number in content.get("withdrawn", {}).items()},
        )

    return _parsed(parse, data, path)


def parse_pin(data: bytes, path: str) -> str:
    """Parse the file that says which commit a reader is pinned to; `path` is used in messages.

    Raises:
        CorruptFileError: It does not hold the id of a commit.
    """
    try:
        return _digest(data.decode())
    except ValueError as error:
        raise CorruptFileError(path, "it does not hold the id of the commit that a reader is pinned to") from error


def _parsed(parse: Callable[[Mapping[str, Any]], T], data: bytes, path: str, newest: int = FORMAT) -> T:
    # JSON takes many times its size when it is parsed: a file of another program must not exhaust the memory.
    if len(data) > _MAX_BYTES:
        raise CorruptFileError(path, f"it has {len(data)} bytes, far more than a repository needs")
    try:
        content = parsed_json(data)
        # Before all other fields: those of a later format are unknown, and would be reported as damage.
        if _count(content["format"]) > newest:
            raise UnsupportedFeatureError(path, [f"repository format {content['format']}"])
        return parse(content)
    # The bytes may be any JSON, also a list in place of an object, or brackets too deep for a message to show.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
        raise CorruptFileError(path, f"it is not a valid file of a repository: {problem}") from error


def _entries_value(entries: Mapping[str, T], kind: EntryKind[T]) -> object:
    """Return the entries of a commit as JSON has them: the entries, or their ranges."""
    if isinstance(entries, RangedEntries):
        return [[entry_range.first, entry_range.count, entry_range.digest] for entry_range in entries.ranges]
    return kind.encode(entries)


def _parse_entries(value: Any, kind: EntryKind[T], reader: RangeReader | None) -> Mapping[str, T]:  # noqa: ANN401
    if not isinstance(value, list):
        return kind.parse(value)
    ranges = [EntryRange(_text(first), _count(count), _digest(digest)) for first, count, digest in value]
    firsts = [entry_range.first for entry_range in ranges]
    # An entry is found by a binary search.
    if firsts != sorted({*firsts}):
        raise ValueError("the ranges are not sorted")
    return RangedEntries(ranges, kind, reader, {})


def _encode_tables(tables: Mapping[str, TableVersion]) -> dict[str, object]:
    return {
        name: {
            "id": at.id,
            "branch": at.branch,
            "version": at.version,
            "commit": at.commit_id,
            "lands": at.lands,
            **({"pin": at.pin} if at.pin else {}),
        }
        for name, at in tables.items()
    }


def _parse_tables(tables: Mapping[str, Any]) -> dict[str, TableVersion]:
    return {_text(name): _table_version(at) for name, at in tables.items()}


def _table_version(content: Mapping[str, Any]) -> TableVersion:
    return TableVersion(
        id=_text(content["id"]),
        branch=_text(content["branch"]),
        version=_count(content["version"]),
        commit_id=_digest(content["commit"]),
        lands=_count(content["lands"]),
        # Commits of older releases name no such tag.
        pin=_text(content.get("pin", "")),
    )


def _moves(moves: Mapping[str, Sequence[object]] | None) -> Moves | None:
    if moves is None:
        return None
    return {_text(table): tuple(map(_count, numbers)) for table, numbers in moves.items()}


def _bytes(value: object) -> bytes:
    # Sorted and without blanks: equal content has equal bytes, and so the same id.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _texts(texts: Mapping[str, object]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in texts.items()}


def _digest(value: object) -> str:
    # Ids become parts of paths, so anything else than digits could lead out of the folder.
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(f"{value!r} is not an id of a commit")
    return value


def _count(value: object) -> int:
    # `bool` is a subclass of `int`, so JSON's true would pass as 1.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a valid number there")
    return value


def _time(value: object) -> pendulum.DateTime:
    return pendulum.instance(pendulum.DateTime.fromisoformat(_text(value)))


TABLE_ENTRIES: EntryKind[TableVersion] = EntryKind(encode=_encode_tables, parse=_parse_tables)
"""How the versions of tables are stored."""
WRITE_ENTRIES: EntryKind[ClosedWrites] = EntryKind(encode=closed_value, parse=parse_closed)
"""How the closed writes of tables are stored."""
