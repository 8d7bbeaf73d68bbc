"""The files of the record of candidates, and the only code that reads and writes them.

    _repository/writes/{table id}/{number}.json           a recorded write; numbers count down: newest first
    _repository/writes/{table id}/commits/{commit id}     the mark of a write that was recorded after its commit
    _repository/candidates/{candidate}/{table id}@{n}     empty: write n of the table belongs to the candidate
    _repository/candidates/{candidate}/runs/{run}         empty: the run belongs to the candidate
    _repository/candidates/{candidate}/~collected         empty: published appends of the candidate were collected
    _repository/audits/{table id}/{commit id}/{n}.json    verdicts of checks on one version, in the order they were put

Every file is put if absent and never changed. The commits of the repository say which writes are closed
(`writes.ClosedWrites`), so the state of a write is read from the commit that a reader has resolved anyway.

The waiting writes of a table take one listing, however many writes the table had: the listing begins with the newest
write and ends at the number before which the commit has closed all writes. All writes of a candidate take one listing
of its folder.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from lance_dagster.errors import ConflictError
from lance_dagster.repository.candidates.audits import Verdict, audited_write, parse_verdicts, verdicts_bytes
from lance_dagster.repository.candidates.closed_writes import ClosedWrites
from lance_dagster.repository.candidates.writes import (
    CandidateWrites,
    RecordedWrite,
    WriteRequest,
    parse_write,
    write_bytes,
)
from lance_dagster.repository.commits.ref_log import FOLDER
from lance_dagster.store import Store, concurrently, put_once

WRITES = f"{FOLDER}/writes"
CANDIDATES = f"{FOLDER}/candidates"
AUDITS = f"{FOLDER}/audits"
# Sorted behind all marks: a listing that misses a mark because it was collected meanwhile ends with this name.
_COLLECTED = "~collected"
# Names count down: storages list names in ascending order, so a listing begins with the newest file.
_NUMBERS = 10**15
_PUTS = 100
_LOOKS = 3
# How many names the first listing of a log asks for; each further listing asks for many more.
_PAGE = 16
_FACTOR = 32


@dataclass(slots=True)
class CandidateFiles:
    """The files of a candidate, without `~collected`.

    Attributes:
        keys: The files.
        marks: By table id and number, the writes that they name.
        modified: When the newest file was written.
    """

    keys: list[str] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    modified: float = 0.0


@dataclass(slots=True)
class AuditFiles:
    """The files of verdicts on one version of a table, and when the newest file was written."""

    table_id: str
    keys: list[str] = field(default_factory=list)
    modified: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordListing:
    """The files of the record, with their times by the clock of the storage.

    Attributes:
        writes: By table and number, when a write was recorded.
        candidates: By its id, the files of a candidate.
        audits: By folder, the verdicts on a version.
    """

    writes: dict[tuple[str, int], float] = field(default_factory=dict)
    candidates: dict[str, CandidateFiles] = field(default_factory=dict)
    audits: dict[str, AuditFiles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """The record of the candidates of one repository; `repository.record`."""

    _store: Store
    # The newest number that this process has seen in the log of each table, and the writes it has read: neither a
    # number nor a write ever changes.
    _newest: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _writes: dict[tuple[str, int], RecordedWrite] = field(default_factory=dict, repr=False, compare=False)

    def put(self, table_id: str, request: WriteRequest, commit_id: str = "") -> RecordedWrite:
        """Record a write, before its rows are committed.

        Args:
            table_id: The identity of the table.
            request: The write.
            commit_id: The commit id of the version with the rows, where they were committed before. The write is
                found by it after `claim_commit`.

        Returns:
            The recorded write, whose mark belongs among the properties of the commit.

        Raises:
            ConflictError: Other processes took the next number each time.
            StoreError: The storage failed; the write may have been recorded, and no commit has its mark.
        """
        write_id = uuid.uuid4().hex
        newest = self._newest.get(table_id)
        for _ in range(_PUTS):
            if newest is None:
                newest = self._newest_number(table_id)
            write = RecordedWrite(
                table_id=table_id, number=newest + 1, request=request, id=write_id, commit_id=commit_id
            )
            path = _write_path(table_id, write.number)
            # Read back, because the refusal may be the answer to a second copy of this very request.
            if self._store.put_if_absent(path, write_bytes(write)) or self._is_own(path, write_id):
                self._keep(write)
                # Before the commit: a re-execution must find the write before anybody can publish it.
                mark = f"{_candidate_folder(request.candidate)}/{quote(write.mark, safe='@')}"
                put_once(self._store, mark, b"")
                return write
            newest = None
        raise ConflictError(
            f"other processes recorded a write of the table {table_id} during each of {_PUTS} attempts; try again"
        )

    def claim_commit(self, write: RecordedWrite) -> bool:
        """Let `mark_of` find a write that was recorded after its commit by the commit id.

        Returns:
            False where another write has claimed the commit.
        """
        path = _commit_path(write.table_id, write.commit_id)
        put_once(self._store, path, write.mark.encode())
        return self._store.get(path) == write.mark.encode()

    def mark_of(self, table_id: str, commit_id: str) -> str | None:
        """Return the mark of the write that was recorded after its commit; None where there is none."""
        data = self._store.get(_commit_path(table_id, commit_id))
        return None if data is None else data.decode(errors="replace")

    def table_ids(self) -> list[str]:
        """Return the identities of the tables that have recorded writes, sorted: one listing."""
        return sorted(map(unquote, self._store.folders(WRITES)))

    def open_writes(self, table_id: str, closed: ClosedWrites) -> list[RecordedWrite]:
        """Return the recorded writes of a table that are not closed, oldest first.

        Args:
            table_id: The identity of the table.
            closed: Its closed writes, by the newest commit.
        """
        numbers = self._numbers_from(table_id, closed.first_open)
        return self.read([(table_id, number) for number in numbers if number not in closed])

    def of_candidate(self, candidate: str) -> list[RecordedWrite]:
        """Return all recorded writes of a candidate, closed or not; by table, then oldest first."""
        return list(self.candidate(candidate).writes)

    def candidate(self, candidate: str) -> CandidateWrites:
        """Return all recorded writes of a candidate, and whether others were collected."""
        for _ in range(_LOOKS):
            names = self._store.list(_candidate_folder(candidate))
            marks = sorted(parse_mark(name) for name in names if "@" in name)
            writes = self.read(marks)
            # A write is stored before its mark, so a missing write was collected since the listing. The collection put
            # `~collected` before, which the next listing has.
            if len(writes) == len(marks) or _COLLECTED in names:
                break
        return CandidateWrites(tuple(writes), _COLLECTED in names)

    def join(self, candidate: str, run_id: str) -> None:
        """Record that a run belongs to a candidate, although it may write nothing."""
        self._store.put_if_absent(f"{_candidate_folder(candidate)}/runs/{quote(run_id, safe='')}", b"")

    def runs_of(self, candidate: str) -> list[str]:
        """Return the runs that joined a candidate, sorted by their ids."""
        return [unquote(name) for name in self._store.list(f"{_candidate_folder(candidate)}/runs")]

    def candidates_like(self, beginning: str) -> list[str]:
        """Return the ids of the candidates that begin with a text, sorted: one listing of all candidates."""
        names = map(unquote, self._store.folders(CANDIDATES))
        return sorted(name for name in names if name.startswith(beginning))

    def write(self, mark: str) -> RecordedWrite | None:
        """Return the recorded write that the property of a commit names; None where there is no such write."""
        table_id, separator, number = mark.rpartition("@")
        if not separator or not number.isascii() or not number.isdecimal():
            return None
        return next(iter(self.read([(table_id, int(number))])), None)

    def put_verdicts(self, table_id: str, commit_id: str, verdicts: Sequence[Verdict], *, write: int = 0) -> None:
        """Record the verdicts of checks on a version of a table.

        Args:
            table_id: The identity of the table.
            commit_id: The commit id of the version.
            verdicts: The results; a later verdict of a check takes the place of an earlier one.
            write: The number of the recorded write that wrote the rows of the version; 0 where no recorded write did.

        Raises:
            ConflictError: Other processes took the next number each time.
        """
        writer = uuid.uuid4().hex
        data, folder = verdicts_bytes(verdicts, writer, write), _audit_folder(table_id, commit_id)
        number = 1
        for _ in range(_PUTS):
            path = f"{folder}/{_file(number)}"
            if self._store.put_if_absent(path, data) or writer.encode() in (self._store.get(path) or b""):
                return
            names = self._store.list(folder, 1)
            number = max(number, _number(names[0]) if names else 0) + 1
        raise ConflictError(
            f"other processes recorded verdicts on {commit_id[:12]} during each of {_PUTS} attempts; try again"
        )

    def verdicts(self, table_id: str, commit_id: str) -> dict[str, Verdict]:
        """Return the last verdict of each check on a version, by the name of the check."""
        folder = _audit_folder(table_id, commit_id)
        names = self._store.list(folder)
        paths = [f"{folder}/{name}" for name in sorted(names, reverse=True) if name.endswith(".json")]
        contents = concurrently(self._store.get, paths)
        return {
            verdict.check: verdict
            for path, data in zip(paths, contents, strict=True)
            if data is not None
            for verdict in parse_verdicts(data, f"{self._store.uri}/{path}")
        }

    def read(self, numbers: Iterable[tuple[str, int]]) -> list[RecordedWrite]:
        """Return the recorded writes of pairs of a table id and a number; a write that does not exist is left out."""
        keys = list(numbers)
        missing = [key for key in keys if key not in self._writes]
        for (table_id, number), data in zip(
            missing, concurrently(lambda key: self._store.get(_write_path(*key)), missing), strict=True
        ):
            if data is not None:
                self._keep(parse_write(data, f"{self._store.uri}/{_write_path(table_id, number)}"))
        return [self._writes[key] for key in keys if key in self._writes]

    def _newest_number(self, table_id: str) -> int:
        names = self._store.list(f"{WRITES}/{quote(table_id, safe='')}", 1)
        return max(self._newest.get(table_id, 0), _number(names[0]) if names else 0)

    def _numbers_from(self, table_id: str, first: int) -> list[int]:
        """List the numbers of recorded writes from a number on, in ascending order."""
        folder, limit = f"{WRITES}/{quote(table_id, safe='')}", _PAGE
        while True:
            names = self._store.list(folder, limit)
            if len(names) < limit or _number(names[-1]) <= first:
                return sorted(number for number in map(_number, names) if number >= first)
            limit *= _FACTOR

    def _keep(self, write: RecordedWrite) -> None:
        self._newest[write.table_id] = max(write.number, self._newest.get(write.table_id, 0))
        self._writes[write.table_id, write.number] = write

    def _is_own(self, path: str, write_id: str) -> bool:
        data = self._store.get(path)
        return data is not None and parse_write(data, f"{self._store.uri}/{path}").id == write_id


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The files of the record as a collection sees them."""

    _store: Store

    def listing(self) -> RecordListing:
        """List the files of the record, with their ages: three walks."""
        listing = RecordListing()
        for info in self._store.walk(WRITES):
            table_id, *names = _parts(info.key, WRITES)
            if len(names) == 1 and (number := _number(names[0])):
                listing.writes[table_id, number] = info.modified
        for info in self._store.walk(CANDIDATES):
            candidate, *names = _parts(info.key, CANDIDATES)
            files = listing.candidates.setdefault(candidate, CandidateFiles())
            if names == [_COLLECTED]:
                continue
            files.keys.append(info.key)
            files.modified = max(files.modified, info.modified)
            if len(names) == 1 and "@" in names[0]:
                files.marks.append(parse_mark(names[0]))
        for info in self._store.walk(AUDITS):
            table_id, *_ = _parts(info.key, AUDITS)
            audit = listing.audits.setdefault(info.key.rpartition("/")[0], AuditFiles(table_id))
            audit.keys.append(info.key)
            audit.modified = max(audit.modified, info.modified)
        return listing

    def audited_write(self, files: AuditFiles) -> int:
        """Return the number of the recorded write that verdicts are about; 0 if they are about no recorded write."""
        key = files.keys[0]
        data = self._store.get(key)
        return 0 if data is None else audited_write(data, f"{self._store.uri}/{key}")

    def drop(self, candidates: Iterable[CandidateFiles], writes: Sequence[RecordedWrite]) -> None:
        """Delete recorded writes, and then the files of their candidates.

        Candidates are last: their files lead to the writes that a call left behind when it died.
        """
        keys = [_write_path(write.table_id, write.number) for write in writes]
        keys += [_commit_path(write.table_id, write.commit_id) for write in writes if write.commit_id]
        self._store.delete_many(keys)
        self._store.delete_many([key for files in candidates for key in files.keys])

    def drop_audits(self, audits: Iterable[AuditFiles]) -> None:
        """Delete verdicts."""
        self._store.delete_many([key for files in audits for key in files.keys])

    def mark_collected(self, candidates: Iterable[str]) -> None:
        """Record that published appends of some candidates are about to be collected."""
        concurrently(
            lambda candidate: put_once(self._store, f"{_candidate_folder(candidate)}/{_COLLECTED}", b""),
            list(candidates),
        )


def _parts(key: str, folder: str) -> list[str]:
    """Return the names of the folders and the file below a folder; the first is decoded."""
    first, *names = key.removeprefix(f"{folder}/").split("/")
    return [unquote(first), *names]


def _file(number: int) -> str:
    return f"{_NUMBERS - number:015d}.json"


def _number(name: str) -> int:
    # A file of another program, such as `.DS_Store`, counts as older than everything.
    digits = name.removesuffix(".json")
    return _NUMBERS - int(digits) if len(digits) == len(_file(1)) - len(".json") and digits.isdecimal() else 0


def _write_path(table_id: str, number: int) -> str:
    return f"{WRITES}/{quote(table_id, safe='')}/{_file(number)}"


def _commit_path(table_id: str, commit_id: str) -> str:
    return f"{WRITES}/{quote(table_id, safe='')}/commits/{quote(commit_id, safe='')}"


def _candidate_folder(candidate: str) -> str:
    encoded = quote(candidate, safe="")
    # `..` as an id would lead out of the folder.
    return f"{CANDIDATES}/{encoded.replace('.', '%2E', 1) if encoded.startswith('.') else encoded}"


def _audit_folder(table_id: str, commit_id: str) -> str:
    return f"{AUDITS}/{quote(table_id, safe='')}/{commit_id}"


def parse_mark(name: str) -> tuple[str, int]:
    """Return the table and the number of a write, by the name of its mark in the folder of a candidate.

    Example: `4f2a@17` is write 17 of the table with the id `4f2a`.
    """
    table_id, _, number = name.rpartition("@")
    return unquote(table_id), int(number) if number.isascii() and number.isdecimal() else 0
