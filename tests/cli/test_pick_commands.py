"""`cherry-pick`, `revert`, `restore` and `reset`."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.cli.command_errors import quoted
from lance_dagster.store import open_store
from tests.cli.running import document_of, lines_of, run
from tests.store.scripted import PlugPulledError, ScriptedStore, plug_pulled_before_write
from tests.table_factory import contents, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch of two commits."""
    made = new_table(tmp_path, entries("a", 1, 2))
    made.branches.create("fix")
    made.append(entries("f", 1), branch="fix", message="the first")
    made.append(entries("f", 2), branch="fix", message="the second")
    return made


def test_one_change_is_taken_over(table: LanceTable) -> None:
    """Earlier changes of the branch are not picked."""
    (line,) = lines_of("table", "cherry-pick", table.uri, "fix")
    assert "main@2 -> main@3  3 rows (1 added)  the second" == line
    assert [("a", 1), ("a", 2), ("f", 2)] == contents(table)
    answer = document_of("table", "cherry-pick", table.uri, "fix@3", "--into", "main")
    assert (True, "main@3", "main@4") == (answer["made"], answer["before"], answer["version"]["version"])


def test_a_change_is_taken_back(table: LanceTable) -> None:
    """Later changes are kept."""
    table.append(entries("b", 1))
    table.delete("value = 2")
    (line,) = lines_of("table", "revert", table.uri, "main@4")
    assert line.startswith("main@4 -> main@5  3 rows (1 added)  revert main@4")
    answer = document_of("table", "revert", table.uri, "main@3")
    assert (True, "main@6") == (answer["made"], answer["version"]["version"])
    assert [("a", 1), ("a", 2)] == contents(table)


def test_a_merge_is_taken_back_to_a_parent(table: LanceTable) -> None:
    """The parent must be given."""
    table.append(entries("b", 1))
    table.merge("fix")
    result = run("table", "revert", table.uri, "main")
    assert (2, True) == (result.exit_code, "is a merge; say which parent" in result.stderr)
    lines_of("table", "revert", table.uri, "main", "--parent", "1")
    assert [("a", 1), ("a", 2), ("b", 1)] == contents(table)


@pytest.mark.parametrize("command", ["cherry-pick", "revert"])
def test_conflicts_are_told(table: LanceTable, command: str) -> None:
    """They are printed and settled like those of a merge."""
    branch = "fix" if command == "cherry-pick" else "main"
    table.update({"value": "value + 10"}, where="value = 2 AND key = 'a'", branch=branch)
    commit = str(table.head(branch))
    table.update({"value": "value + 20"}, where="value IN (2, 12) AND key = 'a'")
    answer = document_of("table", command, table.uri, commit, code=1)
    assert (False, ["rows"]) == (answer["made"], [conflict["kind"] for conflict in answer["conflicts"]])
    result = run("table", command, table.uri, commit)
    assert (1, 1, 2) == (result.exit_code, result.stdout.count("\n"), result.stderr.count("\n"))
    shown = f"{commit}^..{commit}" if command == "cherry-pick" else f"{commit}..main"
    typed = f"lance-dagster table diff {table.uri} {quoted(shown)} --rows"
    option = "--into" if command == "cherry-pick" else "--branch"
    settled = f"lance-dagster table {command} {table.uri} {commit} {option} main --strategy rows=source-wins"
    assert result.stderr.splitlines()[1].startswith(f"hint: look with `{typed}`; ")
    assert f"`{settled}`, or choose the other winner for each" in result.stderr.splitlines()[1]
    assert 0 == run("table", "diff", table.uri, shown, "--rows").exit_code
    assert 0 == run("table", command, table.uri, commit, "--strategy", "source-wins").exit_code


@pytest.mark.parametrize("command,version", [("cherry-pick", "fix"), ("revert", "main")])
def test_something_is_said_about_it(table: LanceTable, command: str, version: str) -> None:
    """The log has the message and the version the properties; reserved properties are refused."""
    table.append(entries("b", 1))
    answer = document_of("table", command, table.uri, version, "-m", "for the audit", "--property", "ticket=7=7")[
        "version"
    ]
    assert ("for the audit", "7=7") == (answer["message"], answer["properties"]["ticket"])
    for wrong in ("ticket", "=7", "lance_dagster.merge=fix@3"):
        assert 2 == run("table", command, table.uri, version, "--property", wrong).exit_code


def test_a_branch_is_restored(table: LanceTable) -> None:
    """The restore is the next version of the branch."""
    table.append(entries("b", 1))
    (line,) = lines_of("table", "restore", table.uri, "main@2", "-m", "back", "--property", "ticket=7")
    assert "main@3 -> main@4  2 rows (1 deleted)  back" == line
    assert "7" == table.head().properties["ticket"]
    assert ["nothing to do: main@4 is the newest version"] == lines_of("table", "restore", table.uri, "main")
    answer = document_of("table", "restore", table.uri, "fix@3", "--branch", "fix")
    assert (True, "fix@5") == (answer["made"], answer["version"]["version"])
    result = run("table", "restore", table.uri, "fix@3")
    assert (2, True) == (result.exit_code, "fix@3" in result.stderr)


def test_a_branch_starts_anew(table: LanceTable) -> None:
    """A branch can be reset to a given version, but main cannot."""
    table.append(entries("b", 1))
    (line,) = lines_of("table", "reset", table.uri, "fix")
    head = table.head("fix")
    assert f"fix: fix@4 -> {head}, from main@3" == line
    assert contents(table) == contents(table, "fix")
    answer = document_of("table", "reset", table.uri, "fix", "--at", "main@2")
    assert (str(head), "main@2") == (answer["before"], answer["forked_from"])
    assert str(table.head("fix")) == answer["head"]
    assert 2 == run("table", "reset", table.uri, "main", "--at", "fix").exit_code


@pytest.mark.parametrize("step", [1, 4, 7, 10])
def test_a_reset_that_died_is_made_again(table: LanceTable, step: int) -> None:
    """The same call completes it, and prints the earlier version if that is known; a missing branch is an error."""
    table.branches.create("work")
    script = plug_pulled_before_write(step)
    with pytest.raises(PlugPulledError):
        LanceTable(context_on(ScriptedStore(open_store(table.uri, None), script))).branches.reset("work", "main@1")
    assert {} == {name: found for name, found in table.branches.list().items() if name == "work"}
    answer = document_of("table", "reset", table.uri, "work", "--at", "main@1")
    assert ("work", None, "main@1") == (answer["branch"], answer["before"], answer["forked_from"])
    assert answer["head"] == str(table.head("work"))
    (line,) = lines_of("table", "reset", table.uri, "work")
    assert line.startswith(f"work: {answer['head']} -> work@")
    result = run("table", "reset", table.uri, "nobody")
    assert (2, True) == (result.exit_code, "no branch 'nobody'" in result.stderr)
