"""The files of the record: numbers, listings and verdicts."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lance_dagster.repository.candidates.audits import Verdict
from lance_dagster.repository.candidates.closed_writes import ClosedWrites
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.record import CandidateRecord
from lance_dagster.repository.candidates.writes import WriteRequest
from lance_dagster.store import open_store
from tests.repository.write_requests import write_request


@pytest.fixture
def record(tmp_path: Path) -> CandidateRecord:
    """A record in an empty folder."""
    return CandidateRecord(open_store(str(tmp_path)))


def again(record: CandidateRecord) -> CandidateRecord:
    """The same record as another process sees it."""
    return CandidateRecord(record._store)  # noqa: SLF001


def request(run: str, candidate: str = "r1") -> WriteRequest:
    """An append of a run."""
    return write_request(run, candidate=candidate)


def test_numbers_are_the_order_of_the_writes(record: CandidateRecord) -> None:
    """Each table counts from 1, whichever process records."""
    numbers = [each.put("t", request("r1")).number for each in (record, again(record), record, again(record))]
    assert [1, 2, 3, 4] == numbers
    assert 1 == record.put("other", request("r1")).number


def test_racing_writers_get_different_numbers(record: CandidateRecord) -> None:
    """Writes that are recorded at the same moment lose no number and share none."""
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda run: again(record).put("t", request(f"r{run}")).number, range(40)))
    assert list(range(1, 41)) == sorted(numbers)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 600])
def test_open_writes_are_found_however_many_there_are(record: CandidateRecord, count: int) -> None:
    """What a commit has closed is left out, and nothing else, in the order of the numbers."""
    for run in range(count):
        record.put("t", request(f"r{run}"))
    closed = ClosedWrites(NumberSet.of_runs([(1, count // 2)]) if count > 1 else NumberSet(), NumberSet.of([count]))
    numbers = [write.number for write in again(record).open_writes("t", closed)]
    assert [*range(count // 2 + 1, count)] == numbers
    assert [*range(1, count + 1)] == [write.number for write in again(record).open_writes("t", ClosedWrites())]


def test_a_candidate_is_found_by_its_id(record: CandidateRecord) -> None:
    """The writes of a candidate are one listing, over all tables; ids may have any characters."""
    writes = [record.put(table, request("x", candidate="../a b")) for table in ("t", "u", "t")]
    record.put("t", request("y", candidate="b"))
    assert [writes[0], writes[2], writes[1]] == again(record).of_candidate("../a b")
    assert [] == again(record).of_candidate("nobody")


def test_a_mark_leads_to_its_write(record: CandidateRecord) -> None:
    """The property of a commit names a write, or a text of another program names none."""
    write = record.put("t", request("r1"))
    assert write == again(record).write(write.mark)
    assert [None] * 4 == [record.write(mark) for mark in ("t@2", "t", "t@-1", "t@x")]


def test_the_last_verdict_counts(record: CandidateRecord) -> None:
    """A check that failed and passed later has passed; another version has verdicts of its own."""
    record.put_verdicts("t", "a" * 64, [Verdict(check="rows", passed=False), Verdict(check="ids", passed=True)])
    again(record).put_verdicts("t", "a" * 64, [Verdict(check="rows", passed=True, reads={"u": "main@3"}, run_id="r")])
    verdicts = again(record).verdicts("t", "a" * 64)
    assert {"rows": True, "ids": True} == {name: verdict.passed for name, verdict in verdicts.items()}
    assert {"u": "main@3"} == verdicts["rows"].reads
    assert {} == record.verdicts("t", "b" * 64)
