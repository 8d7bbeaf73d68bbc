"""Names on object storage, in other alphabets, and in the hands of pylance; what each call costs."""

from collections.abc import Callable

import lance
import pytest

from lance_dagster import LanceTable, RefNotFoundError
from lance_dagster.errors import InvalidRefNameError
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import open_store
from tests.conftest import S3Storage
from tests.raising import raises
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import SCHEMA, contents, entries


@pytest.fixture
def remote(s3_storage: S3Storage) -> LanceTable:
    """A table of three versions on object storage."""
    table = LanceTable.create(f"{s3_storage.uri}/table", SCHEMA, storage_options=s3_storage.storage_options)
    for value in (1, 2):
        table.append(entries("a", value))
    return table


def by_pylance(table: LanceTable) -> lance.LanceDataset:
    """The table opened by pylance."""
    return lance.dataset(table.uri, storage_options=dict(table.storage_options))


def counted(table: LanceTable, asked: list[str]) -> LanceTable:
    """The same table, with every request noted."""

    def script(request: Request) -> object:
        asked.append(f"{request.verb} {request.key}")
        return request.send()

    store = ScriptedStore(open_store(table.uri, table.storage_options), script)
    return LanceTable(TableContext(store, Refs(store), Versions(store, table.storage_options), table.storage_options))


def test_a_branch_lives_on_object_storage(remote: LanceTable) -> None:
    """Made, written, renamed, reset, made again, deleted; pylance agrees all the way."""
    remote.branches.create("run/1", "main@2", metadata={"a": "b"})
    remote.append(entries("r", 1), branch="run/1")
    remote.delete("value = 1 AND key = 'a'", branch="run/1")
    by_pylance(remote).checkout_version(("run/1", None)).insert(entries("p", 1))
    remote.branches.rename("run/1", "run/2")
    assert ["run/2"] == list(remote.branches.list("run/*")) == list(by_pylance(remote).branches.list())
    assert [("p", 1), ("r", 1)] == contents(remote, "run/2")
    assert 2 == by_pylance(remote).checkout_version(("run/2", None)).count_rows()
    remote.branches.reset("run/2", "main@2")
    assert [("a", 1)] == contents(remote, "run/2")
    assert {"a": "b"}.items() <= remote.branches.get("run/2").metadata.items()
    made = remote.append(entries("r", 2), branch="run/2")
    by_pylance(remote).checkout_version(("run/2", None)).insert(entries("p", 2))
    assert f"run/2@{made.number + 1}" == str(remote.head("run/2"))
    remote.merge("run/2")
    remote.branches.delete("run/2")
    assert [("a", 1), ("a", 2), ("p", 2), ("r", 2)] == contents(remote)
    assert {} == by_pylance(remote).branches.list()
    assert made.number < remote.branches.create("run/2").first
    assert [] == [problem for problem in remote.maintenance.verify().problems if problem.severity == "error"]


def test_a_tag_lives_on_object_storage(remote: LanceTable) -> None:
    """Made, moved by either, rolled back, renamed, deleted; and protected."""
    remote.tags.create("live", "main@2")
    remote.tags.move("live", "main@3", expected=remote.at("main@2"))
    by_pylance(remote).tags.update("live", 1)
    assert ["main@1", "main@3", "main@2"] == [move.after for move in remote.tags.history("live")]
    assert "main@3" == remote.tags.rollback("live").ref
    remote.tags.rename("live", "production")
    remote.branches.protect(["main"])
    remote.tags.protect(["production"])
    assert 3 == by_pylance(remote).tags.list()["production"]["version"]
    remote.branches.unprotect(["main"])
    remote.tags.unprotect(["production"])
    remote.tags.delete("production")
    assert {} == by_pylance(remote).tags.list()


@pytest.mark.parametrize("name", ["prüfung", "名前"])
def test_names_in_other_alphabets_on_object_storage(remote: LanceTable, name: str) -> None:
    """They are made by pylance, listed, read and deleted, and no such name is given here."""
    dataset = by_pylance(remote)
    dataset.create_branch(name).insert(entries("b", 1))
    with pytest.raises(InvalidRefNameError):
        remote.branches.create(f"{name}-2")
    assert [name] == list(remote.branches.list())
    assert 3 == remote.count_rows(name)
    remote.branches.delete(name)
    assert {} == remote.branches.list()
    assert {} == dataset.branches.list()


def test_what_a_branch_costs(remote: LanceTable) -> None:
    """Requests of a run's life on object storage: no listing of what others made, no read of their files."""
    for number in range(3):
        remote.branches.create(f"other/{number}")
        remote.tags.create(f"other-{number}", "main")
    jobs: dict[str, Callable[[LanceTable], object]] = {
        "create": lambda table: table.branches.create("run"),
        "append": lambda table: table.append(entries("r", 1), branch="run"),
        "append to main": lambda table: table.append(entries("r", 1)),
        "tag": lambda table: table.tags.create("own", "main"),
        "move": lambda table: table.tags.move("own", "main@2"),
        "look": lambda table: table.branches.get("run"),
        "look for": lambda table: table.branches.newest("gone"),
    }
    costs = {}
    for what, act in jobs.items():
        asked: list[str] = []
        act(counted(remote, asked))
        costs[what] = len([request for request in asked if not request.startswith("sync_folder")])
        assert not [request for request in asked if "other" in request]
    assert {"create": 8, "append": 7, "append to main": 5, "tag": 4, "move": 4, "look": 1, "look for": 2} == costs


def test_the_newest_version_of_a_branch_that_may_not_be_there(remote: LanceTable) -> None:
    """It is the head of the branch, or None without an error."""
    remote.branches.create("run")
    appended = remote.append(entries("r", 1), branch="run")
    assert (appended.id, None) == (getattr(remote.branches.newest("run"), "id", ""), remote.branches.newest("gone"))


def test_errors_of_names_lead_somewhere(remote: LanceTable) -> None:
    """The nearest names are in the error."""
    remote.branches.create("run/17")
    with raises(RefNotFoundError, ref="run/71", hint="did you mean 'run/17'?"):
        remote.branches.rename("run/71", "run/18")
    with raises(RefNotFoundError, ref="run/71", hint="did you mean 'run/17'?"):
        remote.branches.set_metadata("run/71", {"a": "b"})
