"""A collection deletes commits that no ref needs, and keeps those that a ref comes to need meanwhile."""

import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import count
from pathlib import Path

import pendulum
import pytest

from lance_dagster import (
    AlreadyExistsError,
    InvalidInputError,
    LanceRepository,
    LanceTable,
    NotFoundError,
    RefNotFoundError,
)
from lance_dagster.repository.commits.ref_log import RefLogs
from lance_dagster.repository.commits.snapshot import new_commit
from lance_dagster.types import CommitRetention
from tests.repository.scripted_repository import (
    FAST,
    Plug,
    ids,
    made_by,
    opened,
    rows,
    run,
    scripted,
    uncommitted_repository,
)
from tests.soak import thinned
from tests.store.scripted import PlugPulledError, Request

ALL = CommitRetention(promotions=1, keep_for=timedelta(0), grace=timedelta(0))
OLD = CommitRetention(promotions=1, keep_for=timedelta(0))
"""Everything that is a day old, while other processes are at work."""
TWO_DAYS = timedelta(days=2)
Prepare = Callable[[Path], LanceRepository]


def backdate(paths: Iterable[Path]) -> None:
    """Make files two days older, including the times inside the files of tags and branches."""
    for path in paths:
        if path.parent.parent.name == "_refs":
            found = json.loads(path.read_text())
            for key in found.keys() & {"createdAt", "updatedAt"}:
                found[key] = (pendulum.now("UTC") - TWO_DAYS).isoformat()
            if "createAt" in found:
                found["createAt"] -= int(TWO_DAYS.total_seconds())
            path.write_text(json.dumps(found))
        os.utime(path, (time.time() - TWO_DAYS.total_seconds(),) * 2)


def published(root: Path, times: int) -> LanceRepository:
    """A repository of one table with several publications."""
    repository = uncommitted_repository(root, "a")
    for number in range(1, times + 1):
        repository.publish(run(repository, number, "a"), channel="production")
    return repository


def holding(repository: LanceRepository) -> set[str]:
    """The branches and tags of the table that hold versions for commits."""
    table = repository.table("a")
    return {*table.branches.list("published/*"), *table.tags.list("repository-*")}


def test_what_refs_name_stays(tmp_path: Path) -> None:
    """Commits that a branch, channel or tag names stay; all others are deleted, with their table versions."""
    repository = published(tmp_path, 5)
    repository.tags.create("v2", "production~3")
    done = repository.maintenance.collect(ALL, dry_run=False)
    assert 4 == len(done.commits)
    channel = ("named by main", "named by production", "of the last 1 promotion of production")
    assert [channel, ("named by a repository tag",)] == sorted(done.kept_commits.values(), key=len, reverse=True)
    assert 2 == len(holding(repository))
    assert ([1, 2], [1, 2, 3, 4, 5]) == (ids(repository, "v2")["a"], ids(repository, "production")["a"])
    with pytest.raises(NotFoundError):
        repository.at("production~1")


def test_the_last_promotions_stay(tmp_path: Path) -> None:
    """The promotions that the retention keeps stay readable, even after a garbage collection of the table."""
    repository = published(tmp_path, 6)
    repository.maintenance.collect(
        CommitRetention(promotions=3, keep_for=timedelta(0), grace=timedelta(0)), dry_run=False
    )
    repository.table("a").maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
    found = [len(ids(repository, f"production~{steps}")["a"]) for steps in range(3)]
    assert [6, 5, 4] == found
    repository.channels.rollback("production", steps=2, reason="older")
    assert [1, 2, 3, 4] == ids(repository, "production")["a"]


def test_young_commits_stay(tmp_path: Path) -> None:
    """By default no commit of the last day is deleted."""
    repository = published(tmp_path, 3)
    assert () == repository.maintenance.collect(dry_run=False).commits
    assert (
        ()
        == repository.maintenance.collect(CommitRetention(promotions=1, keep_for=timedelta(0)), dry_run=False).commits
    )
    assert 3 == len(holding(repository))


def test_a_dry_run_deletes_nothing(tmp_path: Path) -> None:
    """A dry run, which is the default, reports what would be deleted, and deletes nothing."""
    repository = published(tmp_path, 3)
    found = repository.maintenance.collect(ALL)
    assert (3, 3) == (len(found.commits), len(holding(repository)))
    again = repository.maintenance.collect(ALL, dry_run=False)
    assert (found.commits, found.branches) == (again.commits, again.branches)


def test_a_commit_that_is_marked_is_not_promoted(tmp_path: Path) -> None:
    """A channel that is moved to a commit that a collection has marked is moved back, with an error."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError):
        repository.channels.rollback("production", to=old, reason="older")
    assert [1, 2, 3] == ids(repository, "production")["a"]


def test_a_channel_that_began_with_a_marked_commit_is_none(tmp_path: Path) -> None:
    """A new channel whose first commit is marked is deleted again, so that no reader finds it."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError):
        repository.channels.create("beta", old)
    assert ["production"] == [*repository.channels.list()]


def test_a_branch_that_a_person_made_stays(tmp_path: Path) -> None:
    """A person's branch is kept, although its name begins like those that hold versions for commits."""
    repository = published(tmp_path, 1)
    repository.table("a").branches.create("published/by-hand")
    repository.maintenance.collect(ALL, dry_run=False)
    assert "published/by-hand" in holding(repository)


def test_a_commit_that_is_marked_is_not_released(tmp_path: Path) -> None:
    """A repository tag whose commit a collection has marked is deleted again, with an error."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError):
        repository.tags.create("v1", old)
    assert {} == repository.tags.list()


def test_the_name_of_a_deleted_channel_that_a_release_has_is_refused(tmp_path: Path) -> None:
    """The names of branches, channels and repository tags are one set."""
    repository = published(tmp_path, 1)
    repository.channels.create("beta", reason="try")
    repository.channels.delete("beta", reason="tried")
    repository.tags.create("beta")
    with pytest.raises(AlreadyExistsError):
        repository.channels.create("beta", reason="again")


def test_a_commit_that_a_process_remembers_is_not_promoted(tmp_path: Path) -> None:
    """A process that read a commit before it was collected cannot move a channel or a repository tag to it."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    remembering = LanceRepository.open(tmp_path)
    remembering.head(old)
    assert old in repository.maintenance.collect(ALL, dry_run=False).commits
    for move in (
        lambda: remembering.channels.promote("production", old, reason="older"),
        lambda: remembering.tags.create("v1", old),
    ):
        with pytest.raises(NotFoundError):
            move()
    assert [1, 2, 3] == ids(LanceRepository.open(tmp_path), "production")["a"]
    assert {} == repository.tags.list()


def test_versions_of_main_are_kept_by_tags_as_long_as_needed(tmp_path: Path) -> None:
    """A version of main loses its tag when the only commit that names it is collected."""
    repository = uncommitted_repository(tmp_path, "a")
    for number in range(3):
        repository.table("a").append(rows(number))
        repository.commit(f"day {number}")
    assert 3 == len(repository.table("a").tags.list("repository-main-*"))
    done = repository.maintenance.collect(ALL, dry_run=False)
    assert {"a": ("repository-main-2", "repository-main-3")} == done.branches
    assert [0, 1, 2] == ids(repository, "main")["a"]


def test_a_refused_publication_leaves_nothing(tmp_path: Path) -> None:
    """A publication that its audit refuses leaves no branch or tag that holds a version."""
    repository = uncommitted_repository(tmp_path, "a")
    branch = run(repository, 1, "a")

    def refuse(staged: object) -> None:
        del staged
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError, match="no"):
        repository.publish(branch, audit=refuse)
    assert set() == holding(repository)
    repository.publish(branch)
    assert [1] == ids(repository, "main")["a"]


def test_a_retention_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    """A collection keeps at least the last promotion of each channel."""
    with pytest.raises(InvalidInputError):
        published(tmp_path, 1).maintenance.collect(CommitRetention(promotions=0), dry_run=False)


def test_a_collection_is_linear(tmp_path: Path) -> None:
    """Each deleted commit costs the same number of requests; with nothing to collect only commits are read."""
    found, idle = {}, {}
    for times in (3, 6, 12):
        repository = published(tmp_path / str(times), times)
        idle[times] = made_by(repository, lambda again: again.maintenance.collect(dry_run=False))
        found[times] = made_by(repository, lambda again: again.maintenance.collect(ALL, dry_run=False))
    assert 2 * (found[6] - found[3]) == found[12] - found[6]
    assert 2 * (idle[6] - idle[3]) == idle[12] - idle[6]


def test_branches_that_were_forked_from_each_other_go(tmp_path: Path) -> None:
    """Versions that main cannot follow stay on branches forked from each other, until main has their rows."""
    repository = uncommitted_repository(tmp_path, "a")
    table = repository.table("a")
    table.append(rows(0))
    repository.commit("begin")
    repository.fork("a", "run/1").update({"price": "5"}, branch="run/1")
    run(repository, 2, "a"), run(repository, 3, "a")

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            LanceTable.open(table.uri, FAST).update({"price": "10"}, where="id = 0")
        return request.send()

    (kept,) = scripted(repository.root, script).publish("run/1").kept
    assert "tag 'repository-landing-" in kept
    for number in (2, 3):
        assert "cannot follow" in str(repository.publish(f"run/{number}").lagging[0])
    chain = table.branches.list("published/*")
    assert {"run/1", *chain} - {str(repository.head().tables["a"]).partition("@")[0]} == {
        branch.parent_branch for branch in chain.values()
    }
    assert [0, 2, 3] == ids(repository, "main")["a"]
    table.merge(f"branch:{repository.head().tables['a']}", strategy="source-wins")
    repository.commit("what a person decided")
    # The first collection deletes the tag of the oldest version, the branches before it.
    assert () == repository.maintenance.collect(ALL, dry_run=False).kept
    assert {f"repository-main-{table.head().number}"} == holding(repository)
    assert () == repository.publish("run/1").kept
    assert [] == [*table.branches.list()]


def with_new_version(root: Path) -> LanceRepository:
    """Make a table whose main has a version that is not committed yet."""
    repository = uncommitted_repository(root, "a")
    repository.table("a").append(rows(1))
    return repository


def with_old_tag(root: Path) -> LanceRepository:
    """Make such a table, two days after the process died that was about to commit the version."""
    repository = with_new_version(root)
    with pytest.raises(PlugPulledError):
        scripted(repository.root, Plug(0, _stores_a_commit)).commit("died")
    backdate((root / "a.lance" / "_refs" / "tags").iterdir())
    return repository


def _stores_a_commit(request: Request) -> bool:
    return request.verb == "put_if_absent" and request.key.startswith("_repository/commits/")


def read_after_garbage(root: Path) -> list[int]:
    """The ids of the commit, after the table got a later version and its garbage was collected."""
    table = LanceRepository.open(root, FAST).table("a")
    table.append(rows(9))
    table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
    return ids(LanceRepository.open(root, FAST), "main")["a"]


def with_old_branch(root: Path) -> LanceRepository:
    """A run branch, two days after the process died that was about to publish it."""
    repository = uncommitted_repository(root, "a")
    run(repository, 1, "a")
    with pytest.raises(PlugPulledError):
        scripted(repository.root, Plug(0, _stores_a_commit)).publish("run/1")
    backdate((root / "a.lance" / "_refs" / "branches").glob("published*"))
    return repository


@pytest.mark.parametrize("at", ["commit", "every request"])
@pytest.mark.parametrize("prepare", [with_new_version, with_old_tag])
def test_a_version_that_is_about_to_be_committed_stays(tmp_path: Path, prepare: Prepare, at: str) -> None:
    """A collection during a commit keeps the tag of the version, even an old one, and so the version's files."""
    _collected_meanwhile(tmp_path, prepare, lambda repository: repository.commit("first"), at)


@pytest.mark.parametrize("at", thinned(["commit", "every request"], kept=lambda at: at == "commit"))
def test_a_run_that_is_published_long_after_an_attempt_died(tmp_path: Path, at: str) -> None:
    """A collection during a publication deletes what a dead attempt left, and nothing of the publication."""
    _collected_meanwhile(tmp_path, with_old_branch, lambda repository: repository.publish("run/1"), at)


def _collected_meanwhile(folder: Path, prepare: Prepare, act: Callable[[LanceRepository], object], at: str) -> None:
    for step in count() if at == "every request" else (0,):
        root = folder / str(step)
        repository, left = prepare(root), step

        def script(request: Request) -> object:
            nonlocal left
            if at == "every request" or _stores_a_commit(request):
                left -= 1
                if left == -1:
                    LanceRepository.open(root, FAST).maintenance.collect(OLD, dry_run=False)  # noqa: B023 - called in this round
            return request.send()

        act(scripted(repository.root, script))
        assert [1] == read_after_garbage(root)
        if left >= 0:
            assert step
            return


def test_a_publisher_whose_clock_is_behind_keeps_its_branches(tmp_path: Path) -> None:
    """A collection goes by the clock of the storage: a branch that looks old may have been made just now."""
    repository = uncommitted_repository(tmp_path, "a")
    run(repository, 1, "a")

    def script(request: Request) -> object:
        if _stores_a_commit(request):
            for path in (tmp_path / "a.lance" / "_refs" / "branches").glob("published*"):
                now = path.stat().st_mtime
                backdate([path])
                os.utime(path, (now, now))
            LanceRepository.open(tmp_path, FAST).maintenance.collect(OLD, dry_run=False)
        return request.send()

    scripted(repository.root, script).publish("run/1")
    assert [1] == read_after_garbage(tmp_path)


@pytest.mark.parametrize("at", ["walk _refs/tags", "compare_and_delete"])
def test_a_tag_that_is_used_again_while_a_collection_looks_stays(tmp_path: Path, at: str) -> None:
    """An old tag stays when a commit uses it after the collection read it, or just before it deletes it."""
    repository = with_old_tag(tmp_path)
    done: list[object] = []

    def script(request: Request) -> object:
        if f"{request.verb} {request.key}".startswith(at) and "branches" not in request.key and not done:
            done.append(LanceRepository.open(tmp_path, FAST).commit("first"))
        return request.send()

    scripted(repository.root, script).maintenance.collect(OLD, dry_run=False)
    assert done
    assert [1] == read_after_garbage(tmp_path)


def test_a_run_of_several_days_reads_one_commit(tmp_path: Path) -> None:
    """A run of several days still reads its pinned commit after a collection, although the channel has moved on."""
    repository = published(tmp_path, 1)
    view = repository.publications.pinned("run 1", "production")
    repository.publish(run(repository, 2, "a"), channel="production")
    backdate((tmp_path / "_repository" / "pins").iterdir())
    repository.maintenance.collect(dry_run=False)
    assert view == repository.publications.pinned("run 1", "production")


def test_versions_of_tables_that_were_removed_go(tmp_path: Path) -> None:
    """The versions of a removed table are deleted when no commit names them."""
    repository = published(tmp_path, 2)
    repository.remove_table("a")
    repository.channels.promote("production")
    repository.maintenance.collect(ALL, dry_run=False)
    assert set() == holding(repository)


def test_what_another_collection_marked_is_left_to_it(tmp_path: Path) -> None:
    """A collection ignores the marks of another one at work, which may take them back."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    backdate((tmp_path / "_repository" / "commits").iterdir())
    mark = tmp_path / "_repository" / "expired" / old
    mark.parent.mkdir()
    mark.write_bytes(b"another collection")
    assert old not in repository.maintenance.collect(OLD, dry_run=False).commits
    assert b"another collection" == mark.read_bytes()
    backdate([mark])
    assert (old,) == repository.maintenance.collect(OLD, dry_run=False).commits


def test_a_release_of_another_process_is_not_withdrawn(tmp_path: Path) -> None:
    """Only a repository tag that the call itself made is withdrawn, and not an equal one of another process."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    repository.tags.create("v1", old)
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError):
        repository.tags.create("v1", old)
    assert ["v1"] == [*repository.tags.list()]


def logs_of_branches(root: Path) -> list[str]:
    """The branches of the repository that have a log."""
    return sorted(path.name for path in (root / "_repository" / "branches").iterdir())


def test_logs_of_branches_that_ended_go(tmp_path: Path) -> None:
    """The log of an ended branch is deleted unless something waits; the name can be used again, also by old readers."""
    repository = published(tmp_path, 2)
    run(repository, 3, "a")
    assert 0 == repository.maintenance.collect(OLD, dry_run=False).entries
    backdate((tmp_path / "_repository" / "branches").rglob("*.json"))
    assert 4 == repository.maintenance.collect(OLD, dry_run=True).entries
    branch = "run/1"

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/run%2F1/9"):
            assert 4 == LanceRepository.open(tmp_path, FAST).maintenance.collect(OLD, dry_run=False).entries
        return request.send()

    scripted(repository.root, script).fork("a", branch).append(rows(4), branch=branch)
    assert ["main", "run%2F1", "run%2F3"] == logs_of_branches(tmp_path)
    repository.publish(branch, channel="production")
    assert [1, 2, 4] == ids(repository, "production")["a"]
    with pytest.raises(RefNotFoundError):
        repository.publish("run/2")


def test_runs_that_ended_cost_nothing(tmp_path: Path) -> None:
    """Neither a collection nor the status makes a request for each past run."""
    found = []
    for times in (3, 6):
        repository = published(tmp_path / str(times), times)
        status = made_by(repository, lambda again: again.status())
        repository.maintenance.collect(ALL, dry_run=False)
        found.append((status, made_by(repository, lambda again: again.maintenance.collect(ALL, dry_run=False))))
    assert found[0] == found[1]


def test_the_status_says_how_much_waits_for_a_collection(tmp_path: Path) -> None:
    """The status counts commits that are older than the retention and that no ref needs."""
    repository = published(tmp_path, 1)
    logs = RefLogs(opened(repository.root))
    for number in range(40):
        logs.put_commit(*new_commit({}, (), author="x", message=str(number), properties={}))
    assert (0, 1) == (repository.status().collectable, repository.status().held_versions)
    past = time.time() - timedelta(days=40).total_seconds()
    for path in (tmp_path / "_repository" / "commits").iterdir():
        os.utime(path, (past, past))
    waiting = repository.status().collectable
    assert 0 < waiting <= len(repository.maintenance.collect(dry_run=True).commits)
    assert f"`collect` would delete {waiting} old commits;" in str(repository.status())
