"""Delete the record of candidates that nobody can publish, repeat or take back any more.

Only closed writes are collected. A closed write never opens again, so no publication is about to name it. A candidate
is collected as a whole or not at all, and only

- when `main` and every channel have closed its writes, also in each older commit that they may go back to
- when all of its files are older than the retention and the grace period, by the clock of the storage
- when none of its branches is left: its rows could be published again from there, and nothing would refuse them
- when none of its writes is the newest write of its table, from which the next number is counted

A run may be repeated long afterwards. Where the candidate appended rows that were published, an empty file stays in its
place, and an append of the candidate is refused from then on. The file is put before anything is deleted. Whoever
lists the candidate reads the names in their order, in which this file is the last: a listing that misses a write
because it was deleted has the file.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lance_dagster.repository.candidates.closed_writes import ClosedWrites
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.record import (
    AuditFiles,
    CandidateFiles,
    CandidateRecord,
    RecordFiles,
    RecordListing,
)
from lance_dagster.repository.candidates.writes import RecordedWrite

_NO_NUMBERS = NumberSet()


@dataclass(frozen=True, slots=True)
class CollectedRecord:
    """How many candidates were collected, with how many recorded writes and audited versions."""

    candidates: int = 0
    writes: int = 0
    audits: int = 0


@dataclass(slots=True)
class SettledWrites:
    """The recorded writes that commits agree on, by table id.

    Attributes:
        closed: Those that each commit has closed which `main` or a channel names, or may go back to; None before the
            first such commit.
        published: Those that any commit has published.
    """

    closed: dict[str, NumberSet] | None = None
    published: dict[str, NumberSet] = field(default_factory=dict)

    def add(self, writes: Mapping[str, ClosedWrites], *, is_named: bool) -> None:
        """Take a commit into account.

        Args:
            writes: The closed writes of the commit.
            is_named: Whether `main` or a channel names it, or may go back to it.
        """
        for table_id, closed in writes.items():
            self.published[table_id] = self.published.get(table_id, _NO_NUMBERS) | closed.published
        if is_named:
            own_closed = {table_id: closed.published | closed.dropped for table_id, closed in writes.items()}
            before = own_closed if self.closed is None else self.closed
            self.closed = {
                table_id: own_closed[table_id] & before[table_id] for table_id in own_closed.keys() & before.keys()
            }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCollection:
    """Collects the record of a repository.

    Attributes:
        record: The record.
        files: Its files.
        settled: The writes that all commits have closed.
        past: A time of the storage's clock; younger files stay.
        branches: Returns the names of all branches of some tables, by table id.
    """

    record: CandidateRecord
    files: RecordFiles
    settled: SettledWrites
    past: float
    branches: Callable[[Collection[str]], Mapping[str, Collection[str]]]

    def collect(self, *, dry_run: bool) -> CollectedRecord:
        """Delete candidates and writes that are settled and old, and their verdicts; with `dry_run` only count them."""
        listing = self.files.listing()
        settled = self._settled(listing)
        old = {
            candidate: files
            for candidate, files in listing.candidates.items()
            # Without its file, a write was deleted by a collection that died before it deleted the mark.
            if files.keys and files.modified <= self.past and settled.issuperset({*files.marks} & listing.writes.keys())
        }
        # The process of a write without a mark died before it committed the rows.
        unmarked = settled.difference(*(files.marks for files in listing.candidates.values()))
        keys = sorted(unmarked.union(*(files.marks for files in old.values())))
        writes = {(write.table_id, write.number): write for write in self.record.read(keys)}

        def writes_of(files: CandidateFiles) -> list[RecordedWrite]:
            return [writes[key] for key in files.marks if key in writes]

        branches = self.branches({write.table_id for files in old.values() for write in writes_of(files)})
        candidates = {
            name: files
            for name, files in old.items()
            if not any(write.request.branch in branches.get(write.table_id, ()) for write in writes_of(files))
        }
        collected = [write for files in candidates.values() for write in writes_of(files)]
        collected += [writes[key] for key in sorted(unmarked) if key in writes]
        audits = self._audits(listing, {(write.table_id, write.number) for write in collected})
        if not dry_run and (candidates or collected or audits):
            self.files.mark_collected(
                name for name, files in candidates.items() if any(map(self._was_appended, writes_of(files)))
            )
            self.files.drop_audits(audits)
            self.files.drop(candidates.values(), collected)
        return CollectedRecord(candidates=len(candidates), writes=len(collected), audits=len(audits))

    def _settled(self, listing: RecordListing) -> set[tuple[str, int]]:
        """Return the writes that are old and closed everywhere, without the newest write of each table."""
        newest: dict[str, int] = {}
        for table_id, number in listing.writes:
            newest[table_id] = max(number, newest.get(table_id, 0))
        closed = self.settled.closed or {}
        return {
            (table_id, number)
            for (table_id, number), modified in listing.writes.items()
            if modified <= self.past and number < newest[table_id] and number in closed.get(table_id, _NO_NUMBERS)
        }

    def _was_appended(self, write: RecordedWrite) -> bool:
        return write.adds_rows and write.number in self.settled.published.get(write.table_id, _NO_NUMBERS)

    def _audits(self, listing: RecordListing, collected: Collection[tuple[str, int]]) -> list[AuditFiles]:
        """Return the old verdicts on versions whose write is collected, or whose rows no recorded write has."""
        old = [files for files in listing.audits.values() if files.modified <= self.past]
        remaining = listing.writes.keys() - set(collected)
        return [files for files in old if (files.table_id, self.files.audited_write(files)) not in remaining]
