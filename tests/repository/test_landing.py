"""Versions that commits name before they are on `main`: what keeps them, and what is left when they have landed."""

from datetime import timedelta
from pathlib import Path

import lance
import pytest

from lance_dagster import ConflictError, LanceRepository, LanceTable
from lance_dagster.repository.commits.ref_log import RefLogs, next_entry
from lance_dagster.repository.commits.snapshot import TableVersion, new_commit
from lance_dagster.types import CommitRetention
from tests.repository.scripted_repository import FAST, ids, in_order, new_repository, opened, rows, run, scripted
from tests.store.scripted import PlugPulledError, Request

ALL = CommitRetention(promotions=1, keep_for=timedelta(0), grace=timedelta(0))
NOW = timedelta(0)


def refs(repository: LanceRepository, name: str = "a") -> tuple[list[str], list[str]]:
    """The branches of a table, and the tags that hold versions for commits."""
    table = repository.table(name)
    return [*table.branches.list()], [*table.tags.list("repository-*")]


def killed_after_the_commit(repository: LanceRepository, branch: str) -> None:
    """Publish a branch in a process that dies right after the put that makes the commit visible."""
    is_dead = False

    def script(request: Request) -> object:
        nonlocal is_dead
        if is_dead:
            raise PlugPulledError
        answer = request.send()
        is_dead = request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/")
        return answer

    with pytest.raises(PlugPulledError):
        scripted(repository.root, script).publish(branch, channel="production")


@pytest.mark.parametrize("kind", ["fast-forward", "merge", "foreign commit before"])
def test_no_branch_outlives_a_publication(tmp_path: Path, kind: str) -> None:
    """A publication leaves no branch in its tables, and one tag for each version, which is that of main."""
    repository = new_repository(tmp_path, "a", "b")
    run(repository, 1, "a", "b")
    if kind == "merge":
        repository.publish(run(repository, 2, "a", "b"))
    if kind == "foreign commit before":
        repository.table("a").append(rows(2)), repository.table("b").append(rows(2))
    repository.publish("run/1", channel="production")
    expected = {"fast-forward": [1, 2], "merge": [1, 2, 3], "foreign commit before": [1, 3]}[kind]
    for name in ("a", "b"):
        assert ([], [f"repository-main-{number}" for number in expected]) == refs(repository, name)
    assert (() if kind == "fast-forward" else (2,)) == tuple(set(ids(repository, "production")["a"]) - {1})


@pytest.mark.parametrize("kind", ["fast-forward", "merge"])
def test_a_version_that_has_not_landed_survives(tmp_path: Path, kind: str) -> None:
    """Nobody can delete a version that a commit names until main has it, and a repeated publication lands it."""
    repository = new_repository(tmp_path, "a")
    run(repository, 1, "a")
    if kind == "merge":
        repository.publish(run(repository, 2, "a"))
    killed_after_the_commit(repository, "run/1")
    at, table = repository.head().tables["a"], repository.table("a")
    assert ("run/1" if kind == "fast-forward" else "published/") in str(at)
    with pytest.raises(ConflictError, match="repository-landing-"):
        table.branches.delete(at.branch)
    with pytest.raises(OSError, match="referenced by tags"):
        lance.dataset(table.uri).branches.delete(at.branch)
    table.append(rows(9), branch=at.branch)
    for branch in ("main", at.branch):
        dataset = lance.dataset(table.uri).checkout_version((branch, None))
        dataset.cleanup_old_versions(
            older_than=timedelta(seconds=0.001), delete_unverified=True, error_if_tagged_old_versions=False
        )
    repository.maintenance.collect(ALL, dry_run=False)
    table.maintenance.collect_garbage(NOW, dry_run=False, grace=NOW)
    expected = [1] if kind == "fast-forward" else [1, 2]
    assert expected == ids(LanceRepository.open(tmp_path, FAST), "main")["a"]
    repository.publish("run/1", channel="production")
    landed = table.at(f"main@{at.lands}")
    assert (str(at), expected) == (landed.parents[1], in_order(table.read(landed)))
    assert [] == [*table.tags.list("repository-landing-*")]


def test_earlier_publications_stay_readable(tmp_path: Path) -> None:
    """A clean-up by pylance keeps the versions of main that commits name, although their branches are gone."""
    repository = new_repository(tmp_path, "a")
    for number in (1, 2, 3):
        repository.publish(run(repository, number, "a"), channel="production")
    dataset = lance.dataset(repository.table("a").uri)
    dataset.cleanup_old_versions(older_than=timedelta(seconds=0.001), error_if_tagged_old_versions=False)
    again = LanceRepository.open(tmp_path, FAST)
    assert [[1, 2, 3], [1, 2], [1]] == [ids(again, f"production~{steps}")["a"] for steps in range(3)]


def test_a_version_that_cannot_land_stays_on_its_branch(tmp_path: Path) -> None:
    """Where another program takes the number on main, the version stays on its branch until no commit names it."""
    repository = new_repository(tmp_path, "a")
    run(repository, 1, "a")

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            LanceTable.open(f"{tmp_path}/a.lance", FAST).append(rows(7))
        return request.send()

    done = scripted(repository.root, script).publish("run/1", channel="production")
    assert "repository-landing-" in done.kept[0]
    assert ([1], [1, 7]) == (ids(repository, "production")["a"], in_order(repository.table("a").read()))
    repository.publish(run(repository, 2, "a"), channel="production")
    assert ([1, 2, 7], [1]) == (ids(repository, "production")["a"], ids(repository, "production~1")["a"])
    repository.maintenance.collect(ALL, dry_run=False)
    repository.publish("run/1", channel="production")
    assert ([], 1) == (refs(repository)[0], len(refs(repository)[1]))


def test_a_reader_finds_a_version_that_lands_while_it_looks(tmp_path: Path) -> None:
    """A reader that found nothing on main, and then no branch, looks at main once more."""
    repository = new_repository(tmp_path, "a")
    run(repository, 1, "a")
    killed_after_the_commit(repository, "run/1")
    looked = False

    def script(request: Request) -> object:
        nonlocal looked
        answer = request.send()
        if not looked and answer is None and "_versions/" in request.key:
            looked = True
            repository.publish("run/1")
        return answer

    assert "main@2" == str(scripted(repository.root, script).at("main")["a"].version)
    assert looked


def test_an_attempt_that_lost_its_race_leaves_no_tag(tmp_path: Path) -> None:
    """A publication that stages a table again drops the tag of its first attempt, so that the run's branch can go."""
    repository = new_repository(tmp_path, "a")
    run(repository, 1, "a"), run(repository, 2, "a")
    is_first = True

    def script(request: Request) -> object:
        nonlocal is_first
        if is_first and request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            is_first = False
            repository.publish("run/2")
        return request.send()

    assert () == scripted(repository.root, script).publish("run/1").kept
    assert [1, 2] == ids(repository, "main")["a"]
    assert ([], [f"repository-main-{number}" for number in (1, 2, 3)]) == refs(repository)


def test_a_lake_from_the_version_before_is_read_and_collected(tmp_path: Path) -> None:
    """Commits that name versions of hidden branches, without a tag, are read, land, and go with their branches."""
    repository, logs = new_repository(tmp_path, "a"), RefLogs(opened(str(tmp_path)))
    table, hidden = repository.table("a"), f"published/{'0' * 16}"
    run(repository, 1, "a")
    table.branches.create(hidden)
    version = table.merge("run/1", into=hidden, message="publish run/1", properties={"ticket": "7"})
    head, entry = repository.head(), logs.current("branch", "main")
    at = TableVersion(id=head.tables["a"].id, branch=hidden, version=version.number, commit_id=version.id, lands=2)
    commit, data = new_commit({"a": at}, (head,), author="Ada", message="publish run/1", properties={})
    logs.put_commit(commit, data)
    assert logs.append("branch", "main", next_entry(entry, "commit", commit.id))
    assert [1] == ids(repository, "main")["a"]
    repository.publish(run(repository, 2, "a"), channel="production")
    assert ("publish run/1", "7") == (table.at("main@2").message, table.at("main@2").properties["ticket"])
    repository.publish("run/1")
    assert ([1], [1, 2]) == (ids(repository, commit.id)["a"], ids(repository, "production")["a"])
    repository.maintenance.collect(ALL, dry_run=False)
    assert ([], ["repository-main-3"]) == refs(repository)
