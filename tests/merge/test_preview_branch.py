"""A branch that shows a merge: it says so only where it does, whoever died on the way."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import AlreadyExistsError
from lance_dagster.store import LocalStore
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore, plug_pulled_before_write
from tests.table_factory import contents, entries, new_table, parts_on

MERGED = [("a", 1), ("m", 3), ("r", 2)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """`main` and `run` each did something."""
    made = new_table(tmp_path, entries("a", 1))
    made.create_branch("run")
    made.append(entries("r", 2), branch="run")
    made.append(entries("m", 3))
    return made


def through(table: LanceTable, script: Script) -> LanceTable:
    """The same table behind a store that follows a script."""
    return LanceTable(parts_on(ScriptedStore(LocalStore(table.uri), script)))


def writes_of(table: LanceTable) -> int:
    """How many writes it takes."""
    count = 0

    def script(request: Request) -> object:
        nonlocal count
        count += request.writes
        return request.send()

    through(table, script).preview_branch("run", name="counted")
    return count


def test_a_preview_that_died_is_finished_by_the_next(table: LanceTable) -> None:
    """At every write: a branch that says it shows a merge shows it, and asking again gives it."""
    steps = writes_of(table)
    table.delete_branch("counted")
    assert 5 <= steps <= 10
    unfinished = 0
    for step in range(steps):
        with pytest.raises(PlugPulledError):
            through(table, plug_pulled_before_write(step)).preview_branch("run")
        found = table.branches().get("preview/run")
        if found is not None:
            assert "preview_of" not in found.metadata
            unfinished += 1
        made = table.preview_branch("run")
        assert ("run@3", MERGED) == (made.metadata["preview_of"], contents(table, "preview/run"))
        assert made == table.branch("preview/run")
        assert "lance_dagster.previewing" not in made.metadata
        assert 2 == len(table.versions_after(0, "preview/run"))
        with pytest.raises(AlreadyExistsError, match=r"branch 'preview/run' of .* exists, forked from main@3"):
            table.preview_branch("run")
        table.delete_branch("preview/run")
    assert unfinished >= 2
    assert [] == [problem for problem in table.verify().problems if problem.severity == "error"]


def begun(table: LanceTable) -> None:
    """Leave a preview that died between fork and merge."""

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and "preview/run/_versions" in request.key and "_versions" in seen:
            raise PlugPulledError
        if "preview/run/_versions" in request.key and request.writes:
            seen.add("_versions")
        return request.send()

    seen: set[str] = set()
    with pytest.raises(PlugPulledError):
        through(table, script).preview_branch("run")
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
    """It would show another merge than was asked for, or rows that are in neither."""
    begun(table)
    act(table)
    before = contents(table, "preview/run")
    with pytest.raises(AlreadyExistsError, match=r"branch 'preview/run' of .* exists"):
        table.preview_branch("run")
    assert before == contents(table, "preview/run")
    table.delete_branch("preview/run")
    table.preview_branch("run")


def test_two_who_ask_for_the_same_preview_at_once(table: LanceTable) -> None:
    """The second one comes while the first one merges: the rows are there once."""
    asked = [True]

    def script(request: Request) -> object:
        if request.commits and "preview/run" in request.key and table.branches().get("preview/run") and asked:
            asked.pop()
            table.preview_branch("run")
        return request.send()

    through(table, script).preview_branch("run")
    assert not asked
    assert (MERGED, "run@3") == (contents(table, "preview/run"), table.branch("preview/run").metadata["preview_of"])


def test_a_preview_does_not_take_the_name_of_a_tag(table: LanceTable) -> None:
    """Every expression with the name would be ambiguous from then on."""
    table.create_tag("production", "main")
    taken = r"'production' is a tag of .*; a branch of that name would be ambiguous"
    with pytest.raises(AlreadyExistsError, match=taken):
        table.preview_branch("run", name="production")
    with pytest.raises(AlreadyExistsError, match=taken):
        table.create_branch("production")
    assert "main@3" == str(table.at("production"))
    assert ["run"] == list(table.branches())
