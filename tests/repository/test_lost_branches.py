"""A branch of the repository is not published without the rows that a table has lost."""

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceRepository, LanceTable, PublishRefusedError, RefNotFoundError
from lance_dagster.repository.commits.ref_log import RefLogs
from tests.raising import raises
from tests.repository.scripted_repository import FAST, SCHEMA, Plug, ids, new_repository, opened, rows, run, scripted
from tests.store.scripted import PlugPulledError

BRANCH = "run/1"


def forked(root: Path) -> LanceRepository:
    """A repository with a branch that has rows in two tables."""
    repository = new_repository(root, "a", "b")
    run(repository, 1, "a", "b")
    return repository


def deleted_by_pylance(table: LanceTable) -> None:
    """Delete the branch with pylance."""
    lance.dataset(table.uri).branches.delete(BRANCH)


def made_again(table: LanceTable) -> None:
    """Delete the branch and make another one of its name, with other rows."""
    table.branches.delete(BRANCH)
    table.branches.create(BRANCH)
    table.append(rows(9), branch=BRANCH)


def table_made_again(table: LanceTable) -> None:
    """Delete the files of the table and create another one in its place."""
    path = Path(table.uri)
    path.rename(path.with_name("gone"))
    LanceTable.create(table.uri, SCHEMA, storage_options=FAST)


LOSSES: dict[str, Callable[[LanceTable], object]] = {
    "deleted": lambda table: table.branches.delete(BRANCH),
    "deleted by pylance": deleted_by_pylance,
    "renamed": lambda table: table.branches.rename(BRANCH, "saved"),
    "reset": lambda table: table.branches.reset(BRANCH, "main"),
    "made again": made_again,
    "table made again": table_made_again,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_branch_that_a_table_lost_is_not_published(tmp_path: Path, loss: str) -> None:
    """Nothing is published when a table lost the branch that was forked; the error and the status name the table."""
    repository = forked(tmp_path)
    LOSSES[loss](repository.table("b"))
    with pytest.raises(PublishRefusedError) as refused:
        repository.publish(BRANCH, channel="production")
    assert ["b"] == [reason.partition(":")[0] for reason in refused.value.reasons]
    assert ["create the repository", "start"] == [commit.message for commit in reversed(repository.log())]
    status = repository.status()
    assert {BRANCH: ("b",)} == status.lost
    assert f"discard('{BRANCH}', tables=['b']" in str(status)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "table made again"])
def test_what_is_left_is_published_after_a_discard(tmp_path: Path, loss: str) -> None:
    """After the part of the table is discarded the other tables are published, and the log says why."""
    repository = forked(tmp_path)
    LOSSES[loss](repository.table("b"))
    assert () == repository.discard(BRANCH, tables=["b"], reason="the source was wrong")
    entry, marks = RefLogs(opened(repository.root)).forked(BRANCH)
    assert ("the source was wrong", 1) == (entry.reason if entry else "", len(marks))
    assert {"a"} == set(repository.publish(BRANCH, channel="production").changed)
    assert {"a": [1], "b": []} == ids(repository, "production")
    assert {} == repository.status().lost


def test_a_table_that_is_forked_again_is_published(tmp_path: Path) -> None:
    """Rows that are written again after another fork are published."""
    repository = forked(tmp_path)
    repository.table("b").branches.delete(BRANCH)
    repository.fork("b", BRANCH).append(rows(5), branch=BRANCH)
    repository.publish(BRANCH)
    assert {"a": [1], "b": [5]} == ids(repository, "main")


def test_a_table_that_was_published_and_lost_its_next_branch(tmp_path: Path) -> None:
    """The part that a publication has ended does not excuse the loss of a later fork of the same table."""
    repository = forked(tmp_path)
    repository.publish(BRANCH, tables=["a"])
    repository.fork("a", BRANCH).append(rows(2), branch=BRANCH)
    repository.table("a").branches.delete(BRANCH)
    with pytest.raises(PublishRefusedError, match="a: its branch"):
        repository.publish(BRANCH)
    repository.discard(BRANCH, tables=["a"])
    repository.publish(BRANCH)
    assert {"a": [1], "b": [1]} == ids(repository, "main")


@pytest.mark.parametrize("writes", range(6))
def test_a_fork_that_died_is_repaired_by_another(tmp_path: Path, writes: int) -> None:
    """A fork that died before any of its writes blocks no publication, and another fork finishes it."""
    repository = new_repository(tmp_path, "a", "b")
    run(repository, 1, "a")
    with pytest.raises(PlugPulledError):
        scripted(repository.root, Plug(writes, lambda request: request.writes)).fork("b", BRANCH)
    repository.fork("b", BRANCH).append(rows(3), branch=BRANCH)
    assert {} == repository.status().lost
    repository.publish(BRANCH)
    assert {"a": [1], "b": [3]} == ids(repository, "main")
    assert {} == repository.status().waiting


def test_a_whole_branch_is_discarded(tmp_path: Path) -> None:
    """A branch without its tables is over: its branches are gone, it does not wait, and its name can be used again."""
    repository = forked(tmp_path)
    assert () == repository.discard(BRANCH, reason="a wrong input")
    assert [{}, {}] == [repository.table(name).branches.list() for name in ("a", "b")]
    assert {} == repository.status().waiting
    with pytest.raises(RefNotFoundError):
        repository.publish(BRANCH)
    repository.publish(run(repository, 1, "a"))
    assert {"a": [1], "b": []} == ids(repository, "main")


def test_what_was_not_forked_is_not_discarded(tmp_path: Path) -> None:
    """A misspelt branch or table is an error, and nothing is deleted."""
    repository = forked(tmp_path)
    with raises(RefNotFoundError, kind="branch", ref="run/2"):
        repository.discard("run/2")
    with raises(RefNotFoundError, kind="table of the branch", ref="c"):
        repository.discard(BRANCH, tables=["b", "c"])
    assert {BRANCH: ("a", "b")} == repository.status().waiting


def test_a_discard_that_died_is_repeated(tmp_path: Path) -> None:
    """A discard may die before any of its writes; repeated, it ends the part, and the other table is published."""
    writes = 0
    while True:
        repository = forked(tmp_path / str(writes))
        plug = Plug(writes, lambda request: request.writes)
        try:
            scripted(repository.root, plug).discard(BRANCH, tables=["b"])
        except PlugPulledError:
            with_parts = {mark.table_id for mark in RefLogs(opened(repository.root)).fork_marks(BRANCH)}
            if repository.head().tables["b"].id in with_parts:
                repository.discard(BRANCH, tables=["b"])
        repository.publish(BRANCH)
        assert {"a": [1], "b": []} == ids(repository, "main")
        assert {} == repository.table("b").branches.list()
        if not plug.pulled:
            assert writes
            return
        writes += 1
