"""Processes that die in the middle of merges, moves of tags and garbage collections."""

import signal
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.store import open_store
from tests.conftest import S3Storage
from tests.faults.killed_operations import OPERATIONS, die_at_change, die_at_request, fresh
from tests.forked_program import ready_processes
from tests.soak import DEEP, FACTOR, every, thinned
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import SCHEMA, Rows, context_on, sorted_rows

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

Seen = Mapping[str, Rows]
_PATIENCE = 120
READS_BETWEEN = 5


def seen(table: LanceTable) -> Seen:
    """The rows of every ref, read by pylance alone."""
    options = dict(table.storage_options) or None
    dataset = lance.dataset(table.uri, storage_options=options)
    found = {"main": dataset, **{name: dataset.checkout_version((name, None)) for name in table.branches.list()}}
    found |= {
        f"tag {name}": lance.dataset(table.uri, version=name, storage_options=options) for name in table.tags.list()
    }
    return {name: sorted_rows(version.to_table()) for name, version in found.items()}


class Either(NamedTuple):
    """The visible state before an operation and after it, and the versions of main."""

    before: Seen
    after: Seen
    versions: list[int]


def undisturbed(folder: Path, operation: str) -> Either:
    """The states before and after an operation that is not interrupted."""
    table = fresh(folder / f"undisturbed-{uuid.uuid4().hex[:8]}", operation)
    before = seen(table)
    OPERATIONS[operation].act(table)
    return Either(before, seen(table), table.branches.version_numbers())


def finished(table: LanceTable, operation: str, either: Either) -> None:
    """Check that the state is that before or after; and that a repetition gives the state after, without a problem."""
    assert seen(table) in (either.before, either.after)
    again = LanceTable.open(table.uri, table.storage_options)
    OPERATIONS[operation].act(again)
    assert either.after == seen(again)
    assert either.versions == again.branches.version_numbers()
    report = again.maintenance.verify(deep=DEEP)
    assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]
    lance.dataset(again.uri, storage_options=dict(again.storage_options) or None).validate()


def ended(target: Callable[..., None], *arguments: Any) -> int | None:  # noqa: ANN401 - what the job takes
    """The exit status of a separate process."""
    process: BaseProcess = ready_processes().Process(target=target, args=arguments)
    process.start()
    process.join(_PATIENCE)
    return process.exitcode


def steps(run: Callable[[int], int | None], numbers: Iterable[int] | None = None) -> Iterator[int]:
    """Every step at which a process was killed, until one process completed."""
    for step in numbers or count():
        code = run(step)
        if code == 0:
            assert step
            return
        assert -signal.SIGKILL == code
        yield step


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_before_any_change_to_the_disk(tmp_path: Path, operation: str) -> None:
    """A process may be killed before any change that it makes to the disk."""
    either = undisturbed(tmp_path, operation)
    made: list[LanceTable] = []

    def run(step: int) -> int | None:
        made.append(fresh(tmp_path / f"{operation}-{step}-{uuid.uuid4().hex[:8]}", operation))
        return ended(die_at_change, made[-1].uri, operation, step)

    for _ in steps(run):
        finished(made[-1], operation, either)
    finished(made[-1], operation, either._replace(before=either.after))


@pytest.mark.parametrize("operation", thinned(OPERATIONS, kept=every(len(OPERATIONS))))
def test_killed_at_any_request_to_an_object_store(tmp_path: Path, s3_storage: S3Storage, operation: str) -> None:
    """A process may be killed before any request to an object store, and after the last one."""
    either, options = undisturbed(tmp_path, operation), dict(s3_storage.storage_options)
    reads = requests_before_the_first_write(prepared_on(s3_storage, f"{operation}-counted", operation), operation)
    waiting: list[LanceTable] = []

    def run(step: int) -> int | None:
        if not waiting:
            waiting.append(prepared_on(s3_storage, f"{operation}-{step}", operation))
        return ended(die_at_request, waiting[-1].uri, options, operation, step)

    # Before its first write, an operation leaves nothing behind; only a soak kills it before each of those requests.
    reading = range(0, reads, 1 if FACTOR else READS_BETWEEN)
    for step in steps(run, chain(reading, count(reads))):
        if step < reads:
            # Nothing was written, so the next process uses the same table.
            assert either.before == seen(waiting[-1])
        else:
            finished(waiting.pop(), operation, either)
    assert reads


def prepared_on(storage: S3Storage, name: str, operation: str) -> LanceTable:
    """Make a table in a bucket for an operation."""
    table = LanceTable.create(f"{storage.uri}/{name}", SCHEMA, storage_options=storage.storage_options)
    OPERATIONS[operation].prepare(table)
    return table


def requests_before_the_first_write(table: LanceTable, operation: str) -> int:
    """The number of requests that an operation makes before its first write."""
    writes: list[bool] = []

    def script(request: Request) -> object:
        writes.append(request.writes)
        return request.send()

    OPERATIONS[operation].act(through(table, script))
    return writes.index(True)


def through(table: LanceTable, script: Callable[[Request], object]) -> LanceTable:
    """The same table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(open_store(table.uri, table.storage_options), script)))
