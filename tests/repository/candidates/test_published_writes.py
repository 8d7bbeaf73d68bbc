"""Commits publish recorded writes, withdraw them, and say what a channel has yet to get."""

from pathlib import Path

import pytest

from lance_dagster import LanceRepository
from lance_dagster.errors import ConflictError
from lance_dagster.repository.candidates.writes import WRITE_MARK, RecordedWrite
from lance_dagster.repository.commits.snapshot import RepositoryCommit
from lance_dagster.repository.publish.exact_versions import VersionToPublish
from tests.repository.scripted_repository import FAST, in_order, new_repository, rows
from tests.repository.write_requests import write_request_on


@pytest.fixture
def repository(tmp_path: Path) -> LanceRepository:
    """A repository with one empty table."""
    return new_repository(tmp_path / "lake", "a")


def written(repository: LanceRepository, run: str, number: int, candidate: str = "") -> RecordedWrite:
    """A run that appends a row to its branch."""
    table = repository.table("a")
    table.branches.create(f"run/{run}")
    request = write_request_on(table, run, candidate=candidate or run)
    write = repository.record.put(repository.table_id("a"), request)
    table.append(rows(number), branch=f"run/{run}", properties={WRITE_MARK: write.mark})
    return write


def published(repository: LanceRepository, write: RecordedWrite, channel: str = "") -> RepositoryCommit:
    """Commit what a run wrote, and move no channel."""

    def merged(name: str) -> VersionToPublish:
        table = repository.table(name)
        table.branches.create(f"preview/{write.number}")
        version = table.merge(write.request.branch, into=f"preview/{write.number}")
        return VersionToPublish(version=version, message="publish", writes=(write,))

    version = repository.table("a").head(write.request.branch)
    wanted = VersionToPublish(version=version, message="publish", writes=(write,))
    return repository.publications.publish_versions(
        {"a": wanted}, plan_again=merged, message="publish", channel=channel
    ).commit


def numbers(repository: LanceRepository) -> tuple[list[int], list[int]]:
    """The numbers of the published and of the dropped writes of the table."""
    closed = repository.head().writes[repository.table_id("a")]
    return list(closed.published), list(closed.dropped)


def test_the_commit_of_a_write_is_found_however_many_came_later(repository: LanceRepository) -> None:
    """Each write leads to the commit that published it, also when other programs and other tables were committed."""
    commits = {}
    for number in range(1, 7):
        write = written(repository, f"r{number}", number)
        commits[write] = published(repository, write).id
        repository.create_table(f"other{number}", rows(1).schema)
        repository.commit("another table")
    assert commits == {write: repository.publications.commit_with(write).id for write in commits}  # type: ignore[union-attr]
    assert repository.publications.commit_with(written(repository, "late", 9)) is None


def test_a_publication_of_a_branch_closes_its_writes(repository: LanceRepository) -> None:
    """A person publishes the branch of a run, or a branch that has merged it: the rows are not appended again."""
    table = repository.table("a")
    written(repository, "r1", 1)
    repository.publish("run/r1", tables=["a"])
    written(repository, "r2", 2)
    repository.fork("a", "fix")
    table.merge("run/r2", into="fix")
    repository.publish("fix")
    assert ([1, 2], []) == numbers(repository)
    assert () == repository.candidates()
    for run in ("r1", "r2"):
        again = written(repository, f"{run}-again", 3, candidate=run)
        with pytest.raises(ConflictError, match="twice"):
            published(repository, again)
        with pytest.raises(ConflictError, match="twice"):
            repository.publish(again.request.branch, tables=["a"])
    assert [1, 2] == in_order(repository.at("main")["a"].read())


def test_a_discarded_write_is_not_published_by_its_branch(repository: LanceRepository) -> None:
    """What somebody gave up, or a newer write has replaced, comes back by no way."""
    repository.publications.drop_writes([written(repository, "r1", 1)], message="discard")
    with pytest.raises(ConflictError, match="was discarded"):
        repository.publish("run/r1", tables=["a"])
    assert [] == in_order(repository.at("main")["a"].read())
    assert ([], [1]) == numbers(repository)


def test_a_reverted_commit_withdraws_its_writes(repository: LanceRepository) -> None:
    """A revert takes the write back, so that another run may append the rows again; its revert brings it back."""
    first = written(repository, "r1", 1)
    done = published(repository, first)
    assert ([1], []) == numbers(repository)
    undone = repository.revert(done.id)
    assert ([], [1]) == numbers(repository)
    repository.revert(undone.id)
    assert ([1], []) == numbers(repository)
    again = written(repository, "r2", 1, candidate="r1")
    with pytest.raises(ConflictError, match="twice"):
        published(repository, again)
    assert [1] == in_order(repository.at("main")["a"].read())


def test_a_channel_has_yet_to_get_what_was_made_for_it(repository: LanceRepository) -> None:
    """Commits for the channel are listed until it is promoted to them; those of other channels are not."""
    first = published(repository, written(repository, "r1", 1), "production")
    published(repository, written(repository, "r2", 2), "gold")
    third = published(repository, written(repository, "r3", 3), "production")
    assert [first.id, third.id] == [commit.id for commit in repository.channels.unpromoted("production")]
    repository.channels.advance("production", first.id, ["a"])
    assert [third.id] == [commit.id for commit in repository.channels.unpromoted("production")]
    repository.channels.advance("production", third.id, ["a"])
    assert () == repository.channels.unpromoted("production")
    assert 1 == len(repository.channels.unpromoted("gold"))


def test_a_rollback_leaves_nothing_to_be_promoted(repository: LanceRepository) -> None:
    """What was committed before somebody took the channel back comes to readers only when a person asks for it."""
    for number in (1, 2):
        commit = published(repository, written(repository, f"r{number}", number), "production")
        repository.channels.advance("production", commit.id, ["a"])
    published(repository, written(repository, "r3", 3), "production")
    repository.channels.rollback("production", reason="wrong", hold=False)
    assert () == repository.channels.unpromoted("production")
    assert [1] == in_order(LanceRepository.open(repository.root, FAST).at("production")["a"].read())


def test_a_discarded_write_is_not_published(repository: LanceRepository) -> None:
    """After the commit that drops a write its publication is refused, and before it the discard says so."""
    write, other = written(repository, "r1", 1), written(repository, "r2", 2)
    repository.publications.drop_writes([write], message="discard")
    with pytest.raises(ConflictError, match="was discarded"):
        published(repository, write)
    published(repository, other)
    assert (
        other.number in repository.publications.drop_writes([other], message="discard").writes[other.table_id].published
    )
    assert ([2], [1]) == numbers(repository)
