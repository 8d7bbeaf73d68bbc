"""Two publishers, a zombie, a retry, a discard and a rollback of one candidate, interleaved request by request.

Each of them works on the same appended row. Whatever the order of their requests, readers see the row once or not at
all, and what each call says is true.
"""

import shutil
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from lance_dagster import LanceRepository, LanceTable, RefNotFoundError
from lance_dagster.errors import ConflictError, LanceDagsterError
from lance_dagster.repository.candidates.closed_writes import ClosedWrites
from lance_dagster.repository.candidates.writes import WRITE_MARK, RecordedWrite
from lance_dagster.repository.publish.exact_versions import VersionToPublish
from tests import soak
from tests.history.refs.interleaver import Actor, Interleaver, at_random
from tests.repository.scripted_repository import FAST, in_order, new_repository, rows, scripted
from tests.repository.write_requests import write_request_on
from tests.store.scripted import Script

pytestmark = [pytest.mark.scaled]

SCHEDULES = soak.examples(3)
ROW = 7
Act = Callable[[LanceRepository], object]


def written(
    repository: LanceRepository, run: str, *, at: str = "main", replaces: tuple[int, ...] = ()
) -> RecordedWrite:
    """Record an append of the row by a run, and commit it to the branch of the run."""
    table = repository.table("a")
    earlier = None if at == "main" else table.head(at)
    table.branches.create(f"run/{run}", at=at)
    origin = "r1" if replaces else run
    request = write_request_on(table, run, candidate="r1", origin=origin, replaces=replaces)
    write = repository.record.put(repository.table_id("a"), request)
    table.append(rows(ROW), branch=f"run/{run}", properties={WRITE_MARK: write.mark}, replaces=earlier)
    return write


def publish(repository: LanceRepository, write: RecordedWrite, *more: RecordedWrite) -> None:
    """Publish what a run wrote, as its publisher does: one commit, then the channel."""

    def moved(name: str) -> VersionToPublish:
        raise ConflictError(f"main of {name} moved, and this publisher plans no merge")

    version = repository.table("a").head(write.request.branch)
    wanted = VersionToPublish(version=version, message="publish", writes=(write, *more))
    done = repository.publications.publish_versions(
        {"a": wanted}, plan_again=moved, message="publish", channel="production"
    )
    repository.channels.advance("production", done.commit.id, ["a"])


def first(repository: LanceRepository) -> None:
    """The publisher of the first run."""
    publish(repository, only(repository, "r1"))


def second(repository: LanceRepository) -> None:
    """The publisher of a re-execution of all steps."""
    publish(repository, only(repository, "r2"))


def zombie(repository: LanceRepository) -> None:
    """A worker of the first run that was taken for dead writes once more, and publishes."""
    publish(repository, written(repository, "zombie"))


def retry(repository: LanceRepository) -> None:
    """A re-execution from failure replaces what the first run appended, and publishes."""
    before = only(repository, "r1")
    publish(repository, written(repository, "retry", at="run/r1", replaces=(before.number,)), before)


def discard(repository: LanceRepository) -> None:
    """A person gives up what the re-execution wrote."""
    commit = repository.publications.drop_writes([only(repository, "r2")], message="discard")
    if only(repository, "r2").number in commit.writes[only(repository, "r2").table_id].published:
        raise ConflictError("published before")


def roll_back(repository: LanceRepository) -> None:
    """A person takes the channel back."""
    repository.channels.rollback("production", reason="wrong", hold=False)


ACTS: Sequence[Act] = (first, second, zombie, retry, discard, roll_back)
PUBLISHERS = (first, second, zombie, retry)


def only(repository: LanceRepository, run: str) -> RecordedWrite:
    """The write of a run."""
    (write,) = [write for write in repository.record.of_candidate("r1") if write.request.run_id == run]
    return write


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a repository in which a run and its re-execution have appended the same row, and neither is published.

    It is at the same place each time: the branches of its table name the place.
    """
    folder = tmp_path_factory.mktemp("interleavings")
    root, template = folder / "lake", folder / "template"
    repository = new_repository(root, "a")
    repository.channels.create("production")
    repository.table("a").append(rows(1))
    repository.commit("another row")
    repository.channels.promote("production")
    for run in ("r1", "r2"):
        written(repository, run)
    shutil.copytree(root, template)

    def fresh() -> Path:
        shutil.rmtree(root)
        shutil.copytree(template, root)
        return root

    return fresh


def actor_of(act: Act, root: str) -> Actor:
    """An actor that makes one call on a repository of its own."""

    def calls(script: Script) -> Sequence[Callable[[], object]]:
        repository = scripted(root, script)
        return [lambda: act(repository)]

    return calls


def ids(root: Path, ref: str) -> list[int]:
    """The ids at a ref, as a reader that begins now sees them."""
    try:
        return in_order(LanceRepository.open(root, FAST).at(ref)["a"].read())
    except RefNotFoundError:
        return []


@pytest.mark.parametrize(
    "acts", [*combinations(ACTS, 2), *combinations(ACTS, 3)], ids=lambda acts: "-".join(a.__name__ for a in acts)
)
def test_the_row_is_published_once(lake: Callable[[], Path], acts: Sequence[Act]) -> None:
    """`main` and the channel have the row at most once; they have it if a publisher succeeded and nobody went back."""
    for seed in range(SCHEDULES):
        root = lake()
        interleaver = Interleaver(at_random(Random(f"{seed} {[act.__name__ for act in acts]}")))
        interleaver.run([actor_of(act, str(root)) for act in acts])
        story = "\n".join(interleaver.requests)
        succeeded = {acts[call.actor] for call in interleaver.calls if call.error is None}
        for ref in ("main", "production"):
            assert ids(root, ref).count(ROW) <= 1, f"{ref}\n{story}"
        assert ids(root, "main").count(ROW) == bool(succeeded & {*PUBLISHERS}), story
        _check_record(root, succeeded, story)
        # Whoever publishes next finishes what is left, and nothing is published a second time.
        for act in PUBLISHERS:
            repository = LanceRepository.open(root, FAST)
            with_error(act, repository)
        assert ids(root, "main").count(ROW) == 1, story
        problems = LanceTable.open(f"{root}/a.lance", FAST).maintenance.verify().problems
        assert [] == [str(problem) for problem in problems if problem.severity == "error"], story


def _check_record(root: Path, succeeded: set[Act], story: str) -> None:
    """Check that the newest commit says what the calls said."""
    repository = LanceRepository.open(root, FAST)
    write = only(repository, "r2")
    closed = repository.head().writes.get(write.table_id, ClosedWrites())
    if discard in succeeded:
        assert write.number in closed.dropped, story
    if second in succeeded:
        assert write.number in closed.published, story


def with_error(act: Act, repository: LanceRepository) -> None:
    """Make a call that may be refused."""
    try:
        act(repository)
    except LanceDagsterError:
        return
