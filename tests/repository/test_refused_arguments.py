"""Arguments that would do harm are refused with one error before anything is written."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from lance_dagster import (
    AlreadyExistsError,
    InvalidInputError,
    LanceRepository,
    LanceTable,
    MergeConflictError,
    RefNotFoundError,
    SchemaMismatchError,
)
from lance_dagster.errors import InvalidRefNameError
from tests.raising import raises
from tests.repository.scripted_repository import FAST, ids, new_repository, rows, run, scripted
from tests.store.scripted import Request

# Wrong values of arguments, as from a caller who ignores the signatures.
NO_TEXT: Any = 3
NOTHING: Any = None
WRONG: Mapping[str, Callable[[LanceRepository], object]] = {
    "commit with a property": lambda lake: lake.commit("x", properties={"n": NO_TEXT}),
    "commit with a message": lambda lake: lake.commit(NO_TEXT),
    "commit tables": lambda lake: lake.commit("x", tables="orders"),
    "publish tables": lambda lake: lake.publish("run/1", tables="orders"),
    "publish what an audit reads": lambda lake: lake.publish("run/1", reads="orders"),
    "adopt tables": lambda lake: lake.adopt("orders"),
    "adopt channels": lambda lake: lake.adopt(channels="production"),
    "promote with a property": lambda lake: lake.channels.promote("production", properties={"n": NO_TEXT}),
    "promote with a reason": lambda lake: lake.channels.promote("production", reason=NO_TEXT),
    "hold by a person": lambda lake: lake.channels.hold("production", reason="x", who=NO_TEXT),
    "roll back for a reason": lambda lake: lake.channels.rollback("production", reason=NO_TEXT),
    "delete for a reason": lambda lake: lake.channels.delete("production", reason=NO_TEXT),
    "adopt with a property": lambda lake: lake.adopt(properties={"n": NO_TEXT}),
    "hold with a property": lambda lake: lake.channels.hold("production", reason="x", properties={"n": NO_TEXT}),
    "move with a property": lambda lake: lake.move_table("orders", "items", properties={"n": NO_TEXT}),
    "remove with a property": lambda lake: lake.remove_table("orders", properties={"n": NO_TEXT}),
    "release with a property": lambda lake: lake.tags.create("v1", properties={"n": NO_TEXT}),
    "release with a message": lambda lake: lake.tags.create("v1", message=NO_TEXT),
    "delete a release that cannot be encoded": lambda lake: lake.tags.delete("\udcff", force=True),
    "fork with metadata": lambda lake: lake.fork("orders", "run/2", metadata={"n": NO_TEXT}),
    "a commit of no ref": lambda lake: lake.at(NOTHING),
    "release of no ref": lambda lake: lake.tags.create("v1", NOTHING),
    "channel at no ref": lambda lake: lake.channels.promote("production", NOTHING),
    "log with a limit": lambda lake: lake.log(limit=-1),
    "history with a limit": lambda lake: lake.channels.history("production", -1),
    "roll back by text": lambda lake: lake.channels.rollback("production", reason="x", steps=cast("int", "1")),
    "roll back twice": lambda lake: lake.channels.rollback("production", reason="x", steps=5, to="main"),
    "roll back and hold by text": lambda lake: lake.channels.rollback("production", reason="x", hold=NO_TEXT),
    "collect": lambda lake: lake.maintenance.collect(dry_run=NOTHING),
    "publish what an audit returned": lambda lake: lake.publish("run/1", audit=lambda _: False),  # type: ignore[arg-type]
    "publish nothing": lambda lake: lake.publish(None),  # type: ignore[arg-type]  # as a caller may
    "publish main": lambda lake: lake.publish("main", tables=["orders"]),
}


@pytest.fixture
def lake(tmp_path: Path) -> LanceRepository:
    """A channel, a run that waits, and a version of main that is not committed."""
    repository = new_repository(tmp_path, "orders")
    repository.channels.create("production")
    run(repository, 1, "orders")
    repository.table("orders").append(rows(7))
    repository.commit("more")
    repository.table("orders").append(rows(8))
    return repository


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_before_it_is_stored(lake: LanceRepository, name: str) -> None:
    """A wrong value is refused before it is stored, since readers of the channel could not read some of them."""
    root = Path(lake.root)
    before = sorted(root.rglob("*"))
    with pytest.raises(InvalidInputError):
        WRONG[name](lake)
    if name not in ("commit with a property", "publish what an audit returned"):
        # The version to be committed has its tag or its branch by then.
        assert before == sorted(root.rglob("*"))
    again = LanceRepository.open(root, FAST)
    assert ([7], []) == (ids(again, "main")["orders"], ids(again, "production")["orders"])
    assert {"run/1": ("orders",)} == again.status().waiting


def test_a_table_that_an_audit_reads_has_to_be_there(lake: LanceRepository) -> None:
    """A misspelt table in `reads` is refused, because the audit would otherwise pass without it."""
    with raises(RefNotFoundError, kind="committed table", ref="order"):
        lake.publish("run/1", reads=["order"])
    assert {"run/1": ("orders",)} == lake.status().waiting


def test_a_misspelt_table_of_a_published_branch_is_refused(lake: LanceRepository) -> None:
    """A misspelt table is refused even if the branch is deleted and so counts as published."""
    lake.publish("run/1")
    with raises(RefNotFoundError, kind="table", ref="order"):
        lake.publish("run/1", tables=["order"])


def test_a_table_with_other_columns_is_not_opened(lake: LanceRepository) -> None:
    """`create_table` refuses an existing table with another schema, and does not register it."""
    assert lake.table("orders").uri == lake.create_table("orders", rows().schema).uri
    LanceTable.create(f"{lake.root}/lines.lance", rows().schema)
    for name in ("orders", "lines"):
        with pytest.raises(
            SchemaMismatchError, match=rf"'{name}' of .* exists with other columns[^$]*not:\s+id: string"
        ):
            lake.create_table(name, pa.schema({"id": pa.string()}))
    assert ["orders"] == lake.tables()


def test_names_of_what_commits_hold_are_not_for_runs(lake: LanceRepository) -> None:
    """A fork is refused whose name has the prefix of the branches that hold versions for commits."""
    with raises(InvalidRefNameError, kind="branch", name="published/by-hand"):
        lake.fork("orders", "published/by-hand")


def test_rows_that_came_late_are_published_by_a_repeated_publication(lake: LanceRepository) -> None:
    """A publication keeps a branch that got rows meanwhile, and a repeated publication publishes them."""
    table = lake.table("orders")

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            table.append(rows(2), branch="run/1")
        return request.send()

    kept = scripted(lake.root, script).publish("run/1", channel="production").kept
    assert "run/1@3 was committed meanwhile" in kept[0]
    done = lake.publish("run/1", channel="production")
    assert ([1, 2, 7, 8], ()) == (ids(lake, "production")["orders"], done.kept)
    assert {} == lake.status().waiting
    assert done.commit.id == lake.publish("run/1", channel="production").commit.id


def test_a_table_that_is_moved_to_where_it_is_stays_registered(lake: LanceRepository) -> None:
    """A move of a table to its own name changes nothing."""
    before = lake.head()
    lake.move_table("orders", "orders")
    assert (["orders"], before) == (lake.tables(), lake.head())


def test_rows_of_a_table_that_was_removed_are_named(lake: LanceRepository) -> None:
    """A publication reports the rows of a removed table, which it cannot publish, and then ends the branch."""
    lake.create_table("lines", rows().schema)
    lake.commit("lines")
    run(lake, 1, "lines")
    lake.remove_table("orders")
    assert {"run/1": ("lines", "orders (removed)")} == lake.status().waiting
    lake.publish("run/1", tables=["lines"])
    assert {"run/1": ("orders (removed)",)} == lake.status().waiting
    done = lake.publish("run/1")
    assert ({}, [1]) == (lake.status().waiting, ids(lake, "main")["lines"])
    left = "run/1 of orders: the table was removed from the repository; the branch stays in its files"
    assert (left,) == done.kept
    # Nothing was lost: the rows are published when the table is part of the repository again.
    lake.adopt(["orders"])
    lake.publish("run/1", tables=["orders"])
    assert [1, 7, 8] == ids(lake, "main")["orders"]


def test_a_branch_goes_on_while_a_table_of_it_waits(lake: LanceRepository) -> None:
    """A partial publication can be repeated, and the branch name stays taken until the rest is published."""
    lake.create_table("lines", rows().schema)
    lake.fork("lines", "half").append(rows(3), branch="half")
    lake.fork("orders", "half").append(rows(3), branch="half")
    done = lake.publish("half", tables=["orders"])
    assert done.commit == lake.publish("half", tables=["orders"]).commit
    assert ("lines",) == lake.status().waiting["half"]
    with pytest.raises(AlreadyExistsError):
        lake.channels.create("half")
    lake.publish("half")
    assert ([3], [3, 7, 8]) == (ids(lake, "main")["lines"], ids(lake, "main")["orders"])
    lake.channels.create("half")


def test_two_publications_of_parts_end_the_branch(lake: LanceRepository) -> None:
    """Two concurrent partial publications free the branch name, though each finds that a table of the other waits."""
    lake.create_table("lines", rows().schema)
    for name in ("lines", "orders"):
        lake.fork(name, "half").append(rows(3), branch="half")
    others: list[str] = []

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/half/") and not others:
            others.append("publishes")
            lake.publish("half", tables=["lines"])
        return request.send()

    scripted(lake.root, script).publish("half", tables=["orders"])
    assert others
    assert ([3], [3, 7, 8]) == (ids(lake, "main")["lines"], ids(lake, "main")["orders"])
    lake.channels.create("half")


def test_two_publications_of_one_conflict_say_what_is_in_conflict(lake: LanceRepository) -> None:
    """Two publications of one conflict report the conflict, and not that the other one deletes their staged branch."""
    table = lake.fork("orders", "run/3")
    table.update({"price": "2"}, where="id = 7", branch="run/3")
    table.update({"price": "3"}, where="id = 7")
    others: list[str] = []

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and "published" in request.key and not others:
            others.append("publishes")
            with pytest.raises(MergeConflictError):
                lake.publish("run/3")
        return request.send()

    with pytest.raises(MergeConflictError):
        scripted(lake.root, script).publish("run/3")
    assert others
    assert [] == [name for name in table.branches.list() if name.startswith("published/")]
