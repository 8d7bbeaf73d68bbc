"""Processes that die in the middle of merges, moves of tags and collections."""

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

pytestmark = pytest.mark.scaled

Seen = Mapping[str, Rows]
_PATIENCE = 120
READS_BETWEEN = 5


def seen(table: LanceTable) -> Seen:
    """The rows behind every name, through pylance alone."""
    options = dict(table.storage_options) or None
    dataset = lance.dataset(table.uri, storage_options=options)
    found = {"main": dataset, **{name: dataset.checkout_version((name, None)) for name in table.branches.list()}}
    found |= {
        f"tag {name}": lance.dataset(table.uri, version=name, storage_options=options) for name in table.tags.list()
    }
    return {name: sorted_rows(version.to_table()) for name, version in found.items()}


class Either(NamedTuple):
    """What there is to see before an operation, what there is after it, and which versions of main."""

    before: Seen
    after: Seen
    versions: list[int]


def undisturbed(folder: Path, operation: str) -> Either:
    """What an operation does when nothing goes wrong."""
    table = fresh(folder / f"undisturbed-{uuid.uuid4().hex[:8]}", operation)
    before = seen(table)
    OPERATIONS[operation].act(table)
    return Either(before, seen(table), table.branches.version_numbers())


def finished(table: LanceTable, operation: str, either: Either) -> None:
    """The table reads as before or as after; done again, the operation is done once, and nothing is wrong."""
    assert seen(table) in (either.before, either.after)
    again = LanceTable.open(table.uri, table.storage_options)
    OPERATIONS[operation].act(again)
    assert either.after == seen(again)
    assert either.versions == again.branches.version_numbers()
    report = again.maintenance.verify(deep=DEEP)
    assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]
    lance.dataset(again.uri, storage_options=dict(again.storage_options) or None).validate()


def ended(target: Callable[..., None], *arguments: Any) -> int | None:  # noqa: ANN401 - what the job takes
    """How a process of its own ended."""
    process: BaseProcess = ready_processes().Process(target=target, args=arguments)
    process.start()
    process.join(_PATIENCE)
    return process.exitcode


def steps(run: Callable[[int], int | None], numbers: Iterable[int] | None = None) -> Iterator[int]:
    """Every step at which a process was killed, until one lived to the end."""
    for step in numbers or count():
        code = run(step)
        if code == 0:
            assert step
            return
        assert -signal.SIGKILL == code
        yield step


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_before_any_change_to_the_disk(tmp_path: Path, operation: str) -> None:
    """A real process, dead at once wherever it opens, links, renames, makes or deletes a file."""
    either = undisturbed(tmp_path, operation)
    made: list[LanceTable] = []

    def run(step: int) -> int | None:
        made.append(fresh(tmp_path / f"{operation}-{step}-{uuid.uuid4().hex[:8]}", operation))
        return ended(die_at_change, made[-1].uri, operation, step)

    for _ in steps(run):
        finished(made[-1], operation, either)
    finished(made[-1], operation, either._replace(before=either.after))


@pytest.mark.slow
@pytest.mark.parametrize("operation", thinned(OPERATIONS, kept=every(len(OPERATIONS))))
def test_killed_at_any_request_to_an_object_store(tmp_path: Path, s3_storage: S3Storage, operation: str) -> None:
    """A real process, dead before any object it reads, lists, puts or deletes, and after the last."""
    either, options = undisturbed(tmp_path, operation), dict(s3_storage.storage_options)
    reads = requests_before_the_first_write(prepared_on(s3_storage, f"{operation}-counted", operation), operation)
    waiting: list[LanceTable] = []

    def run(step: int) -> int | None:
        if not waiting:
            waiting.append(prepared_on(s3_storage, f"{operation}-{step}", operation))
        return ended(die_at_request, waiting[-1].uri, options, operation, step)

    # Before its first write, an operation leaves nothing behind; a soak kills it there before every request as well.
    reading = range(0, reads, 1 if FACTOR else READS_BETWEEN)
    for step in steps(run, chain(reading, count(reads))):
        if step < reads:
            # Nothing was written, so it is the same table for the next one to die.
            assert either.before == seen(waiting[-1])
        else:
            finished(waiting.pop(), operation, either)
    assert reads


def prepared_on(storage: S3Storage, name: str, operation: str) -> LanceTable:
    """A table in a bucket that an operation is about to be done to."""
    table = LanceTable.create(f"{storage.uri}/{name}", SCHEMA, storage_options=storage.storage_options)
    OPERATIONS[operation].prepare(table)
    return table


def requests_before_the_first_write(table: LanceTable, operation: str) -> int:
    """How much an operation looks at before it does something."""
    writes: list[bool] = []

    def script(request: Request) -> object:
        writes.append(request.writes)
        return request.send()

    OPERATIONS[operation].act(through(table, script))
    return writes.index(True)


def through(table: LanceTable, script: Callable[[Request], object]) -> LanceTable:
    """The same table behind a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(open_store(table.uri, table.storage_options), script)))
