"""Publications, promotions and rollbacks of many tables that end in the middle, or are not told how they ended."""

import uuid
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from lance_dagster import LanceRepository
from tests.repository.repository_operations import OPERATIONS, fresh
from tests.repository.scripted_repository import Ids, Plug, readable, scripted, seen
from tests.soak import DEEP, FACTOR
from tests.store.scripted import PlugPulledError

pytestmark = pytest.mark.scaled

Seen = dict[str, object]


class Either(NamedTuple):
    """What readers of the channel may see, and what there is to see after an operation."""

    before: Ids | None
    after: Ids | None
    all_after: Seen


def undisturbed(folder: Path, operation: str) -> Either:
    """What an operation does when nothing goes wrong."""
    repository = fresh(folder / f"undisturbed-{uuid.uuid4().hex[:8]}", operation)
    before = readable(repository)
    OPERATIONS[operation].act(repository)
    return Either(before, readable(repository), seen(repository))


def finished(repository: LanceRepository, operation: str, either: Either) -> None:
    """Readers see a whole commit; done again, the operation is done once, and nothing is wrong."""
    assert readable(repository) in (either.before, either.after, *([None] if operation == "move a table" else []))
    OPERATIONS[operation].act(LanceRepository.open(repository.root, repository._registry.storage_options))  # noqa: SLF001
    assert either.all_after == seen(repository)
    if operation == "move a table":
        # Older versions of a branch name the files of their table by its former place.
        return
    for name in repository.tables():
        report = repository.table(name).maintenance.verify(deep=DEEP)
        assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_plug_is_pulled_before_any_write(tmp_path: Path, operation: str) -> None:
    """Dead before any object that is written or deleted, in all threads at once; a soak also before each read."""
    either = undisturbed(tmp_path, operation)
    # Publications are long, and `make test` skips steps of them; each of the three begins at another one.
    first, stride = (len(operation) % 3, 1 if FACTOR else 3) if operation.startswith("publish") else (0, 1)
    for step in count(0 if FACTOR else first, stride):
        repository = fresh(tmp_path / str(step), operation)
        plug = Plug(step, lambda request: request.writes or FACTOR > 0)
        try:
            OPERATIONS[operation].act(scripted(repository.root, plug))
        except PlugPulledError:
            finished(repository, operation, either)
        else:
            finished(repository, operation, either)
            assert not plug.pulled
            assert step
            return
