"""Publications and rollbacks of many tables whose process is killed, or that lose the answer to a write."""

import signal
import uuid
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from lance_dagster import InvalidInputError, LanceRepository, NotFoundError
from lance_dagster.errors import CommitStateUnknownError, StoreError
from lance_dagster.repository.candidates.record import CandidateRecord
from lance_dagster.repository.commits.ref_log import ForkMark, RefLogs
from lance_dagster.repository.registry import RepositoryContext
from tests.forked_program import ready_processes
from tests.repository.repository_operations import OPERATIONS, die_at_change, fresh
from tests.repository.scripted_repository import (
    FAST,
    Ids,
    Plug,
    ScriptedRegistry,
    ids,
    new_repository,
    opened,
    readable,
    rows,
    run,
    scripted,
    seen,
)
from tests.soak import DEEP, FACTOR
from tests.store.scripted import PlugPulledError, Request, ScriptedStore
from tests.table_factory import context_of

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

Seen = dict[str, object]
_PATIENCE = 120


class Either(NamedTuple):
    """The states that readers of the channel may see, and the whole state after an operation."""

    before: Ids | None
    after: Ids | None
    all_after: Seen


def undisturbed(folder: Path, operation: str) -> Either:
    """The states of an operation that is not interrupted."""
    repository = fresh(folder / f"undisturbed-{uuid.uuid4().hex[:8]}", operation)
    before = readable(repository)
    OPERATIONS[operation].act(repository)
    return Either(before, readable(repository), seen(repository))


def finished(repository: LanceRepository, operation: str, either: Either) -> None:
    """Check that readers see a whole commit, and that a repetition completes the operation once, without a problem."""
    assert readable(repository) in (either.before, either.after, *([None] if operation == "move a table" else []))
    OPERATIONS[operation].act(LanceRepository.open(repository.root, FAST))
    assert either.all_after == seen(repository)
    if operation == "move a table":
        # Older versions of a branch have the paths of the table's former place.
        return
    for name in repository.tables():
        report = repository.table(name).maintenance.verify(deep=DEEP)
        assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]


def before_the_branch_ends(*, mark: int, act: Callable[[], object]) -> Callable[[Request], object]:
    """Call a function just before the file of the run's branch is marked for the first or the second time."""
    left = [mark]

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and request.key.endswith("run%2F1.json"):
            left[0] -= 1
            if not left[0]:
                act()
        return request.send()

    return script


def test_rows_that_arrive_as_the_branch_ends_are_kept(tmp_path: Path) -> None:
    """Rows that arrive while a publication ends the branch are kept, and the next publication publishes them."""
    repository = new_repository(tmp_path, "a")
    branch = run(repository, 1, "a")
    late = before_the_branch_ends(mark=1, act=lambda: repository.table("a").append(rows(2), branch=branch))
    (kept,) = scripted(repository.root, late).publish(branch).kept
    assert kept.endswith("run/1@3 was committed meanwhile")
    assert [1] == ids(repository, "main")["a"]
    assert () == repository.publish(branch).kept
    assert [1, 2] == ids(repository, "main")["a"]


def test_a_publication_goes_on_with_the_end_of_a_branch(tmp_path: Path) -> None:
    """A repeated publication completes the end of a branch when its process died between the two marks."""
    repository = new_repository(tmp_path, "a")
    branch = run(repository, 1, "a")

    def die() -> None:
        raise PlugPulledError

    with pytest.raises(PlugPulledError):
        scripted(repository.root, before_the_branch_ends(mark=2, act=die)).publish(branch)
    assert context_of(repository.table("a")).refs.branches.find(branch) is not None
    repository.publish(branch)
    assert context_of(repository.table("a")).refs.branches.find(branch) is None


def test_a_put_that_fails_each_time_is_unknown(tmp_path: Path) -> None:
    """A publication that cannot know whether its entry was put raises "unknown", and can be repeated."""
    either = undisturbed(tmp_path, "publish")
    repository = fresh(tmp_path / "unknown", "publish")

    def script(request: Request) -> object:
        answer = request.send()
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            raise StoreError("the answer is lost")
        return answer

    with pytest.raises(CommitStateUnknownError):
        OPERATIONS["publish"].act(scripted(repository.root, script))
    finished(repository, "publish", either)


@pytest.mark.parametrize("operation", ["publish a merge", "roll back"])
def test_a_process_is_killed_before_any_change_to_the_disk(
    tmp_path: Path, operation: str, record_property: Callable[[str, object], None]
) -> None:
    """A process may be killed before any change that it makes to the disk."""
    either, stride = undisturbed(tmp_path, operation), 1 if FACTOR else 23
    for step in count(len(operation) % stride, stride):
        repository = fresh(tmp_path / str(step), operation)
        process = ready_processes().Process(target=die_at_change, args=(repository.root, operation, step))
        process.start()
        process.join(_PATIENCE)
        finished(repository, operation, either)
        if process.exitcode == 0:
            assert step
            record_property("kills", step // stride)
            return
        assert -signal.SIGKILL == process.exitcode


def test_a_fork_that_died_blocks_no_publication(tmp_path: Path) -> None:
    """A mark of a fork that died before its branch was made does not block a publication."""
    repository = new_repository(tmp_path, "a", "b")
    run(repository, 1, "a")
    with pytest.raises(PlugPulledError):
        scripted(repository.root, Plug(0, lambda request: request.key.startswith("_refs/branches/run"))).fork(
            "b", "run/1"
        )
    assert {"a"} == set(repository.publish("run/1", channel="production").changed)
    assert {"a": [1], "b": []} == ids(repository, "production")


def test_a_revert_that_died_after_its_commit_is_finished(tmp_path: Path) -> None:
    """A repeated revert that died after its commit finds that commit, and main of the tables follows."""
    repository = new_repository(tmp_path, "a")
    wrong = repository.publish(run(repository, 1, "a")).commit
    entered: list[Request] = []

    def script(request: Request) -> object:
        if entered:
            raise PlugPulledError
        answer = request.send()
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            entered.append(request)
        return answer

    with pytest.raises(PlugPulledError):
        scripted(repository.root, script).revert(wrong.id)
    repository.revert(wrong.id)
    assert [] == repository.table("a").read("main")["id"].to_pylist()
    assert () == repository.maintenance.repair()


def test_a_fork_that_died_does_not_change_a_publication_that_is_repeated(tmp_path: Path) -> None:
    """The channel gets the commit of the repeated publication, and not a later one, despite the mark of a dead fork."""
    repository = new_repository(tmp_path, "a", "b")
    first = repository.publish(run(repository, 1, "a")).commit
    repository.publish(run(repository, 2, "a"))
    repository.create_table("c", rows().schema)
    mark = ForkMark(repository.commit("c").tables["c"].id)
    RefLogs(opened(repository.root)).mark_fork("run/1", mark)
    assert first.id == repository.publish("run/1", channel="production").commit.id
    assert {"a": [1], "b": []} == ids(repository, "production")


def test_tags_follow_the_newest_move(tmp_path: Path) -> None:
    """A process that was overtaken between its moves of a channel and of the tags does not move newer tags back."""
    repository = new_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    first = repository.publish(run(repository, 2, "a"))
    repository.publish(run(repository, 3, "b"))
    overtaken: list[object] = []

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and "production" in request.key and not overtaken:
            overtaken.append(repository.channels.promote("production"))
        return request.send()

    scripted(repository.root, script).channels.promote("production", first.commit.id)
    found = seen(repository)
    assert {"a": [1, 2], "b": [1, 3]} == found["production"]
    assert [1, 2] == repository.table("a").read("production")["id"].to_pylist()
    assert [1, 3] == repository.table("b").read("production")["id"].to_pylist()


def test_another_strategy_is_not_answered_by_what_was_staged(tmp_path: Path) -> None:
    """When a publication that died is repeated with another strategy, the second strategy decides."""
    repository = new_repository(tmp_path, "a")
    repository.table("a").append(rows(7))
    repository.commit("start")
    for branch, price in (("run/1", 10), ("run/2", 20)):
        repository.fork("a", branch).update({"price": str(price)}, branch=branch)
    repository.publish("run/1")

    def refuse(staged: object) -> None:
        raise InvalidInputError(f"not {staged}")

    with pytest.raises(InvalidInputError, match="not"):
        repository.publish("run/2", strategy="dest-wins", audit=refuse)
    repository.publish("run/2", strategy="source-wins")
    assert [20] == repository.at("main")["a"].read()["price"].to_pylist()


@pytest.mark.parametrize("writes", range(3))
def test_a_repository_that_was_half_made_is_none(tmp_path: Path, writes: int) -> None:
    """A repository whose creator died cannot be opened, and the next creation completes it."""

    class Scripted(LanceRepository):
        def __init__(self, root: Path, options: Mapping[str, str] | None = None) -> None:
            super().__init__(root, options)
            plug = Plug(writes, lambda request: request.writes)
            store = ScriptedStore(opened(str(root)), plug)
            self._context = RepositoryContext(RefLogs(store), ScriptedRegistry(store, FAST), CandidateRecord(store))

    with pytest.raises(PlugPulledError):
        Scripted.create(tmp_path)
    with pytest.raises(NotFoundError):
        LanceRepository.open(tmp_path)
    assert ["create the repository"] == [commit.message for commit in LanceRepository.create(tmp_path).log()]
