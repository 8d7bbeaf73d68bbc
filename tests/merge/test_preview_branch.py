"""A preview branch is marked as a preview only when it has the merged rows, even if a process died."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import AlreadyExistsError, InvalidInputError
from lance_dagster.store import LocalStore
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore, plug_pulled_before_write
from tests.table_factory import contents, context_on, entries, new_table

MERGED = [("a", 1), ("m", 3), ("r", 2)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """`main` and `run` each have a change."""
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("run")
    made.append(entries("r", 2), branch="run")
    made.append(entries("m", 3))
    return made


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def writes_of(table: LanceTable) -> int:
    """The number of writes of a preview."""
    count = 0

    def script(request: Request) -> object:
        nonlocal count
        count += request.writes
        return request.send()

    through(table, script).branches.preview("run", name="counted")
    return count


def test_a_preview_that_died_is_finished_by_the_next(table: LanceTable) -> None:
    """A preview that was interrupted at any write is not marked, and the next call completes it."""
    steps = writes_of(table)
    table.branches.delete("counted")
    assert 5 <= steps <= 10
    unfinished = 0
    for step in range(steps):
        with pytest.raises(PlugPulledError):
            through(table, plug_pulled_before_write(step)).branches.preview("run")
        found = table.branches.list().get("preview/run")
        if found is not None:
            assert "preview_of" not in found.metadata
            unfinished += 1
        made = table.branches.preview("run")
        assert ("run@3", MERGED) == (made.metadata["preview_of"], contents(table, "preview/run"))
        assert made == table.branches.get("preview/run")
        assert "lance_dagster.previewing" not in made.metadata
        assert 2 == len(table.branches.version_numbers("preview/run"))
        with pytest.raises(AlreadyExistsError):
            table.branches.preview("run")
        table.branches.delete("preview/run")
    assert unfinished >= 2
    assert [] == [problem for problem in table.maintenance.verify().problems if problem.severity == "error"]


def begun(table: LanceTable) -> None:
    """Leave a preview that was interrupted between fork and merge."""

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and "preview/run/_versions" in request.key and "_versions" in seen:
            raise PlugPulledError
        if "preview/run/_versions" in request.key and request.writes:
            seen.add("_versions")
        return request.send()

    seen: set[str] = set()
    with pytest.raises(PlugPulledError):
        through(table, script).branches.preview("run")
    assert [("a", 1), ("m", 3)] == contents(table, "preview/run")


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.append(entries("x", 9), branch="preview/run"),
        lambda table: table.append(entries("x", 9), branch="run"),
        lambda table: table.append(entries("x", 9)),
    ],
    ids=["on it", "on the source", "on the dest"],
)
def test_a_preview_that_was_begun_of_something_else_is_not_gone_on_with(
    table: LanceTable, act: Callable[[LanceTable], object]
) -> None:
    """The branch would show another merge, or rows that are in neither side."""
    begun(table)
    act(table)
    before = contents(table, "preview/run")
    with pytest.raises(AlreadyExistsError):
        table.branches.preview("run")
    assert before == contents(table, "preview/run")
    table.branches.delete("preview/run")
    table.branches.preview("run")


def test_two_who_ask_for_the_same_preview_at_once(table: LanceTable) -> None:
    """The second process starts while the first one merges, and the rows are there once."""
    asked = [True]

    def script(request: Request) -> object:
        if request.commits and "preview/run" in request.key and table.branches.list().get("preview/run") and asked:
            asked.pop()
            table.branches.preview("run")
        return request.send()

    through(table, script).branches.preview("run")
    assert not asked
    assert (MERGED, "run@3") == (
        contents(table, "preview/run"),
        table.branches.get("preview/run").metadata["preview_of"],
    )


def test_a_preview_does_not_take_the_name_of_a_tag(table: LanceTable) -> None:
    """A ref expression with the name would be ambiguous."""
    table.tags.create("production", "main")
    with pytest.raises(AlreadyExistsError):
        table.branches.preview("run", name="production")
    with pytest.raises(AlreadyExistsError):
        table.branches.create("production")
    assert "main@3" == str(table.at("production"))
    assert ["run"] == list(table.branches.list())


def test_a_preview_whose_source_is_deleted_meanwhile_leaves_no_branch(table: LanceTable) -> None:
    """The branch would occupy the name without rows to check."""

    def script(request: Request) -> object:
        if request.key == "tree/preview/run/_versions" and request.verb == "sync_folder":
            table.branches.delete("run")
        return request.send()

    with pytest.raises(InvalidInputError):
        through(table, script).branches.preview("run")
    assert not table.branches.list()
