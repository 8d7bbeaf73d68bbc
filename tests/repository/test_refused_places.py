"""Places and names that would make a repository or table part of another one are refused, and leave nothing behind."""

from pathlib import Path

import pytest

from lance_dagster import AlreadyExistsError, InvalidInputError, LanceRepository, LanceTable
from lance_dagster.errors import InvalidRefNameError
from tests.repository.scripted_repository import FAST, SCHEMA, new_repository, run


def test_a_repository_inside_another_one(tmp_path: Path) -> None:
    """A repository inside another one is refused, except in a folder that is not searched for tables."""
    repository = new_repository(tmp_path, "shop/orders")
    with pytest.raises(InvalidInputError, match="inside the repository"):
        LanceRepository.create(tmp_path / "shop" / "eu", FAST)
    with pytest.raises(InvalidInputError, match="is a Lance table"):
        LanceRepository.create(tmp_path / "shop" / "orders.lance", FAST)
    with pytest.raises(InvalidInputError, match="inside the table"):
        LanceRepository.create(tmp_path / "shop" / "orders.lance" / "x", FAST)
    LanceRepository.create(tmp_path / ".environments" / "pr-1", FAST)
    assert repository.id == LanceRepository.create(tmp_path, FAST).id


def test_a_repository_around_another_one_leaves_its_tables(tmp_path: Path) -> None:
    """A repository around another one does not find, and so does not adopt, the tables of the inner one."""
    new_repository(tmp_path / "eu", "orders")
    LanceTable.create(tmp_path / "raw.lance", SCHEMA, storage_options=FAST)
    assert ["raw"] == LanceRepository.create(tmp_path, FAST).discover()


def test_a_table_inside_a_table(tmp_path: Path) -> None:
    """A table inside a table is neither created nor adopted, and nothing is written."""
    repository = new_repository(tmp_path, "orders")
    for act in (
        lambda: repository.create_table("orders.lance/lines", SCHEMA),
        lambda: repository.adopt(["orders.lance/lines"]),
        lambda: repository.fork("orders.lance/lines", "run/1"),
    ):
        with pytest.raises(InvalidInputError):
            act()
    assert not (tmp_path / "orders.lance" / "lines.lance").exists()


def test_a_channel_called_main(tmp_path: Path) -> None:
    """A channel cannot be called `main`, which is the branch of the repository and of each table."""
    repository = new_repository(tmp_path, "orders")
    for act in (
        lambda: repository.channels.create("main"),
        lambda: repository.adopt(channels=["main"]),
        lambda: repository.tags.create("main"),
    ):
        with pytest.raises(InvalidRefNameError, match="reserved for the main branch"):
            act()


def test_branches_channels_and_releases_share_no_name(tmp_path: Path) -> None:
    """No two refs of any kinds share a name, as expressions name a ref without its kind; nothing is written."""
    repository = new_repository(tmp_path, "orders")
    repository.fork("orders", "nightly")
    repository.channels.create("stable", "main")
    repository.tags.create("v1", "main")
    for taken, kind, makers in (
        ("nightly", "branch", (repository.channels.create, repository.tags.create)),
        ("stable", "channel", (lambda name: repository.fork("orders", name), repository.tags.create)),
        ("v1", "repository tag", (lambda name: repository.fork("orders", name), repository.channels.create)),
    ):
        for make in makers:
            with pytest.raises(AlreadyExistsError, match=f"'{taken}' is a {kind} of .* needs another name"):
                make(taken)
    assert {"nightly": ("orders",)} == repository.status().waiting
    assert (["stable"], ["v1"]) == ([*repository.channels.list()], [*repository.tags.list()])


@pytest.mark.parametrize("channel", ["main", "v1", "nightly"])
def test_a_channel_that_cannot_be_is_refused_before_the_publication(tmp_path: Path, channel: str) -> None:
    """An impossible channel is refused before the commit, which would otherwise leave main ahead of the channel."""
    repository = new_repository(tmp_path, "orders")
    repository.tags.create("v1")
    repository.fork("orders", "nightly")
    before = repository.head()
    with pytest.raises((AlreadyExistsError, InvalidRefNameError)):
        repository.publish(run(repository, 1, "orders"), channel=channel, create_channel=True)
    assert before == repository.head()


def test_a_refused_fork_leaves_nothing_that_waits(tmp_path: Path) -> None:
    """A fork that is refused because of a tag leaves no waiting branch; the branch of other tables stays."""
    repository = new_repository(tmp_path, "a", "b")
    repository.table("a").tags.create("nightly", "main")
    with pytest.raises(AlreadyExistsError):
        repository.fork("a", "nightly")
    assert {} == repository.status().waiting
    repository.fork("b", "nightly")
    with pytest.raises(AlreadyExistsError):
        repository.fork("a", "nightly")
    assert {"nightly": ("b",)} == repository.status().waiting
    assert {"b"} == set(repository.publish("nightly").commit.tables) - {"a"}


def test_the_status_lists_run_branches_of_all_tables(tmp_path: Path) -> None:
    """The status lists the branches that a run made in the tables itself, and those that the repository forked."""
    repository = new_repository(tmp_path, "a", "b", "c")
    for name in ("a", "c"):
        repository.table(name).branches.create("run/7")
    run(repository, 8, "b")
    assert {"run/7": ("a", "c"), "run/8": ("b",)} == repository.status().waiting


def test_the_status_tells_branches_without_commits(tmp_path: Path) -> None:
    """A branch that is as it was forked, as after a refused output, is told from one whose rows wait."""
    repository = new_repository(tmp_path, "a", "b")
    for name in ("a", "b"):
        repository.table(name).branches.create("run/7")
    run(repository, 8, "a")
    repository.fork("b", "run/8")
    status = repository.status()
    assert {"run/7": ("a", "b"), "run/8": ("b",)} == status.unwritten
    assert ((), ("a",)) == (status.written("run/7"), status.written("run/8"))
    waits, empty = str(status).splitlines()[1:]
    assert ("branch run/8 waits: a", ("run/7",)) == (waits, status.empty)
    assert empty.startswith("1 branch without commits, of runs that are under way or failed before")
