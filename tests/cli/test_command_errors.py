"""The command's texts for errors that name a method to call."""

import ast
import pickle
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

import lance_dagster
from lance_dagster import LanceRepository, LanceTable, ProtectedError
from lance_dagster.cli.command_errors import COMMANDS, REPOSITORY_COMMANDS, command_for, error_line
from lance_dagster.errors import AlreadyExistsError, Call, CommitStateUnknownError, InvalidInputError, Remedy
from tests.cli.running import run
from tests.table_factory import entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch, a tag that stays and a protected one."""
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("work")
    made.tags.create("v1", "main@2", immutable=True)
    made.tags.create("stable", "main@2")
    made.branches.protect(["release/*"])
    made.tags.protect(["stable"])
    made.branches.create("release/1")
    made.branches.create("published/1")
    return made


def methods_named() -> Iterator[str]:
    """The methods that errors name, anywhere in the package."""
    for path in Path(lance_dagster.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Call", "call_with"):
                # A pick and a revert choose their method.
                yield str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else "cherry_pick"


def test_every_method_that_errors_name_can_be_typed(table: LanceTable) -> None:
    """Every method that an error names has a subcommand, and is a method of a table or a repository."""
    assert (set(COMMANDS) | set(REPOSITORY_COMMANDS)) - {"revert"} == set(methods_named())
    assert all(callable(attrgetter(name)(table)) for name in COMMANDS)
    repository = LanceRepository.create(Path(table.uri).parent)
    assert all(callable(attrgetter(name)(repository)) for name in REPOSITORY_COMMANDS)


def test_a_reset_that_is_refused_offers_a_restore(table: LanceTable) -> None:
    """The error names the tag whose version would be dropped."""
    table.append(entries("w", 1), branch="work")
    table.append(entries("w", 2), branch="work")
    table.tags.create("kept", table.head("work"))
    target = f"work@{table.head('work').number - 1}"
    refused = run("table", "reset", table.uri, "work", "--at", target)
    assert 1 == refused.exit_code
    assert f"`lance-dagster table restore {table.uri} {target} --branch work`" in refused.stderr
    assert 0 == run("table", "restore", table.uri, target, "--branch", "work").exit_code


@pytest.mark.parametrize(
    "arguments,typed",
    [
        (("tag", "v1", "-d"), "delete the tag with `lance-dagster table tag TABLE v1 --delete --force`"),
        (("promote", "--tag", "v1", "--at", "main@1"), "`lance-dagster table tag TABLE v1 --delete --force`"),
        (("tag", "v1", "--at", "main@1"), "exists; `lance-dagster table promote TABLE --tag v1 --at main@1` moves it"),
        (("tag", "stable", "-d"), "; `lance-dagster table protect TABLE --remove --tag stable` takes that back"),
        (("branch", "published/1", "-d"), "`lance-dagster free LAKE` deletes it when no commit needs it"),
        (
            ("branch", "release/1", "-d"),
            "`lance-dagster table protect TABLE --remove --branch 'release/*'` takes that back",
        ),
        (("restore", "main@3", "--branch", "work"), "; `lance-dagster table reset TABLE work --at main@3` recreates"),
        (
            ("move-base", "TABLE", "/new"),
            "; move its folder, then `lance-dagster table relocate TABLE` for the new place",
        ),
    ],
)
def test_errors_say_what_to_type(table: LanceTable, arguments: tuple[str, ...], typed: str) -> None:
    """An error says in one line what to type for the table that was named."""
    command, *others = (word.replace("TABLE", table.uri) for word in arguments)
    table.append(entries("b", 1))
    result = run("table", command, table.uri, *others)
    assert result.exit_code in (1, 2)
    assert typed.replace("TABLE", table.uri) in result.stderr
    assert 1 == result.stderr.count("\n")


def test_what_is_typed_puts_it_right(table: LanceTable) -> None:
    """The typed command is for a pattern, a tag or a branch."""
    assert 0 == run("table", "protect", table.uri, "--remove", "--branch", "release/*").exit_code
    assert 0 == run("table", "branch", table.uri, "release/1", "--delete").exit_code
    assert 0 == run("table", "tag", table.uri, "v1", "--delete", "--force").exit_code
    assert 0 == run("table", "reset", table.uri, "work", "--at", "main@1").exit_code


def test_python_is_told_what_to_call(table: LanceTable) -> None:
    """The same error tells a Python caller what to call, also after pickling."""
    with pytest.raises(ProtectedError) as caught:
        table.tags.delete("v1")
    said = "give the version another name, or delete the tag with tags.delete('v1', force=True)"
    assert said == caught.value.hint
    assert str(caught.value).endswith(f"; {said}")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - bytes of this test
    assert (str(caught.value), caught.value.remedy) == (str(again), again.remedy)
    plain = AlreadyExistsError("it is there", remedy=Remedy("take it"))
    assert ("it is there; take it", "take it") == (str(plain), pickle.loads(pickle.dumps(plain)).hint)  # noqa: S301


def test_an_error_without_a_remedy_is_told_as_it_is() -> None:
    """An error without a remedy is printed unchanged, on one line."""
    assert "wrong: this; that" == error_line(InvalidInputError("wrong:\n  this\n  that"), "t", command_for)
    assert "no; `lance-dagster table relocate t --from '/an old place'` does it" == error_line(
        InvalidInputError("no", remedy=Remedy("{} does it", Call("maintenance.relocate", ("/an old place",)))),
        "t",
        command_for,
    )


def test_a_commit_that_may_have_landed_is_looked_for() -> None:
    """After an unknown commit the advice is to look for the version, since a shell has no transaction to repeat."""
    error = CommitStateUnknownError("the answer was lost", "1f", object())
    assert (
        "the answer was lost; check whether the log has it, and repeat it if not; delete nothing meanwhile"
        == error_line(error, "t", command_for)
    )


def test_a_file_is_no_table_and_no_lake(tmp_path: Path) -> None:
    """Every way to open or to make a table or a lake names the file, and offers no command that would fail."""
    file = tmp_path / "orders.csv"
    file.write_text("id\n1\n")
    expected = f"lance-dagster: {file} is a file, and a table or a lake is a folder: move the file away, or name "
    for arguments in (("status",), ("create",), ("table", "status"), ("table", "log")):
        result = run(*arguments, str(file))
        assert (2, f"{expected}another place\n") == (result.exit_code, result.stderr)


def test_a_misspelt_lake_is_told_its_neighbour(tmp_path: Path) -> None:
    """A lake beside the place that was typed is proposed by the path to type; without one, `create` is."""
    LanceRepository.create(tmp_path / "lake")
    (tmp_path / "lane").mkdir()
    result = run("status", str(tmp_path / "lak"))
    expected = f"lance-dagster: no repository at {tmp_path / 'lak'}; did you mean {tmp_path / 'lake'}?\n"
    assert (2, expected) == (result.exit_code, result.stderr)
    assert "`lance-dagster create` make" in run("status", str(tmp_path / "other")).stderr
    (tmp_path / "lake").rename(tmp_path / "water")
    assert "`lance-dagster create` make" in run("status", str(tmp_path / "lak")).stderr
