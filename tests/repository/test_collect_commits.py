"""A collection deletes what no ref needs, and what a ref comes to need meanwhile stays."""

from datetime import timedelta
from pathlib import Path

import pytest

from lance_dagster import AlreadyExistsError, CommitRetention, InvalidInputError, LanceRepository, NotFoundError
from tests.repository.scripted_repository import rows, run
from tests.repository.test_repository import ids, new_repository
from tests.repository.test_repository_requests import made_by

ALL = CommitRetention(promotions=1, keep_for=timedelta(0), grace=timedelta(0))


def published(root: Path, times: int) -> LanceRepository:
    """A repository of one table that was published some times."""
    repository = new_repository(root, "a")
    for number in range(1, times + 1):
        repository.publish(run(repository, number, "a"), channel="production")
    return repository


def branches(repository: LanceRepository) -> set[str]:
    """The branches of the table that hold versions for commits."""
    return set(repository.table("a").branches.list("published/*"))


def test_what_refs_name_stays(tmp_path: Path) -> None:
    """Nothing goes that a branch, a channel or a release tag names; everything else goes, in the tables too."""
    repository = published(tmp_path, 5)
    repository.tags.create("v2", "production~3")
    done = repository.collect(ALL)
    assert 4 == len(done.commits)
    assert 2 == len(branches(repository))
    assert ([1, 2], [1, 2, 3, 4, 5]) == (ids(repository, "v2")["a"], ids(repository, "production")["a"])
    with pytest.raises(NotFoundError):
        repository.at("production~1")


def test_the_last_promotions_stay(tmp_path: Path) -> None:
    """The promotions that the retention asks for stay readable, after the files of the table were collected too."""
    repository = published(tmp_path, 6)
    repository.collect(CommitRetention(promotions=3, keep_for=timedelta(0), grace=timedelta(0)))
    repository.table("a").maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
    found = [len(ids(repository, f"production~{steps}")["a"]) for steps in range(3)]
    assert [6, 5, 4] == found
    repository.channels.rollback("production", steps=2, reason="older")
    assert [1, 2, 3, 4] == ids(repository, "production")["a"]


def test_young_commits_stay(tmp_path: Path) -> None:
    """By default nothing of the last day goes."""
    repository = published(tmp_path, 3)
    assert () == repository.collect().commits
    assert () == repository.collect(CommitRetention(promotions=1, keep_for=timedelta(0))).commits
    assert 3 == len(branches(repository))


def test_a_dry_run_deletes_nothing(tmp_path: Path) -> None:
    """A dry run says what would go."""
    repository = published(tmp_path, 3)
    found = repository.collect(ALL, dry_run=True)
    assert (3, 3) == (len(found.commits), len(branches(repository)))
    again = repository.collect(ALL)
    assert (found.commits, found.branches) == (again.commits, again.branches)


def test_a_commit_that_is_marked_is_not_promoted(tmp_path: Path) -> None:
    """A channel that is moved to a commit which a collection has marked goes back, with a clear error."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError, match="is being collected"):
        repository.channels.rollback("production", to=old, reason="older")
    assert [1, 2, 3] == ids(repository, "production")["a"]


def test_a_commit_that_is_marked_is_not_released(tmp_path: Path) -> None:
    """A release tag whose commit a collection has marked is withdrawn, with the same error."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError, match="is being collected"):
        repository.tags.create("v1", old)
    assert {} == repository.tags.list()


def test_the_name_of_a_deleted_channel_that_a_release_has_is_refused(tmp_path: Path) -> None:
    """The names of branches, channels and release tags are one set."""
    repository = published(tmp_path, 1)
    repository.channels.create("beta", reason="try")
    repository.channels.delete("beta", reason="tried")
    repository.tags.create("beta")
    with pytest.raises(AlreadyExistsError, match="is a release tag"):
        repository.channels.create("beta", reason="again")


def test_a_commit_that_a_process_remembers_is_not_promoted(tmp_path: Path) -> None:
    """A process that read a commit before it was collected cannot move a channel or a release tag to it."""
    repository = published(tmp_path, 3)
    old = repository.head("production~2").id
    remembering = LanceRepository.open(tmp_path)
    remembering.head(old)
    assert old in repository.collect(ALL).commits
    for move in (
        lambda: remembering.channels.promote("production", old, reason="older"),
        lambda: remembering.tags.create("v1", old),
    ):
        with pytest.raises(NotFoundError, match="is being collected"):
            move()
    assert [1, 2, 3] == ids(LanceRepository.open(tmp_path), "production")["a"]
    assert {} == repository.tags.list()


def test_versions_of_main_are_kept_by_tags_as_long_as_needed(tmp_path: Path) -> None:
    """A version of main that only a collected commit names loses its tag."""
    repository = new_repository(tmp_path, "a")
    for number in range(3):
        repository.table("a").append(rows(number))
        repository.commit(f"day {number}")
    assert 3 == len(repository.table("a").tags.list("repository-main-*"))
    done = repository.collect(ALL)
    assert {"a": ("repository-main-2", "repository-main-3")} == done.branches
    assert [0, 1, 2] == ids(repository, "main")["a"]


def test_a_branch_without_a_commit_goes(tmp_path: Path) -> None:
    """What a refused publication left behind is deleted by the next collection."""
    repository = new_repository(tmp_path, "a")
    branch = run(repository, 1, "a")

    def refuse(staged: object) -> None:
        del staged
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError, match="no"):
        repository.publish(branch, audit=refuse)
    assert 1 == len(branches(repository))
    repository.collect(ALL)
    assert set() == branches(repository)
    repository.publish(branch)
    assert [1] == ids(repository, "main")["a"]


def test_a_retention_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    """A collection keeps at least the last promotion of each channel."""
    with pytest.raises(InvalidInputError, match="1 promotion"):
        published(tmp_path, 1).collect(CommitRetention(promotions=0))


def test_a_collection_is_linear(tmp_path: Path) -> None:
    """Each commit that goes costs the same number of requests, and with nothing to collect only commits are read."""
    found, idle = {}, {}
    for count in (3, 6, 12):
        repository = published(tmp_path / str(count), count)
        idle[count] = made_by(repository, lambda again: again.collect())
        found[count] = made_by(repository, lambda again: again.collect(ALL))
    assert 2 * (found[6] - found[3]) == found[12] - found[6]
    assert 2 * (idle[6] - idle[3]) == idle[12] - idle[6]


def test_branches_that_were_forked_from_each_other_go(tmp_path: Path) -> None:
    """A chain of versions beside main, because another program conflicts with each of them, is deleted whole."""
    repository = new_repository(tmp_path, "a")
    repository.table("a").append(rows(0))
    repository.commit("begin")
    for number in (1, 2, 3):
        branch = f"run/{number}"
        repository.fork("a", branch).update({"price": str(number)}, branch=branch)
        repository.publish(branch, strategy="source-wins")
        repository.table("a").update({"price": str(10 * number)}, where="id = 0")
    chained = branches(repository)
    done = repository.collect(ALL)
    assert () == done.kept
    assert chained - branches(repository) == {name for name in done.branches["a"] if name.startswith("published/")}
