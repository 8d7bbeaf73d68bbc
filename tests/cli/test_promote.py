"""`promote` and `rollback`."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.backdating import free_names
from tests.cli.running import document_of, lines_of, run
from tests.table_factory import as_pylance, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of five versions."""
    return new_table(tmp_path, *(entries("a", value) for value in range(4)))


def test_a_tag_is_made_and_moved(table: LanceTable) -> None:
    """The output has both versions; a repeated call moves nothing."""
    assert ["production: new -> main@2"] == lines_of("table", "promote", table.uri, "--at", "main@2")
    assert ["production: main@2 -> main@5"] == lines_of("table", "promote", table.uri)
    assert ["production: main@5 already"] == lines_of("table", "promote", table.uri)
    assert {"tag": "stage", "moved": True, "from": None, "to": "main@4"} == document_of(
        "table", "promote", table.uri, "--tag", "stage", "--at", "main~1"
    )
    assert "main@5" == table.tags.get("production").ref


def test_a_tag_is_where_it_was_expected(table: LanceTable) -> None:
    """Otherwise the tag does not move, and the exit code is 1."""
    table.tags.create("production", "main@3")
    result = run("table", "promote", table.uri, "--expect", "main@2")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "lance-dagster: 'production' points to main@3, not to main@2: someone moved it meanwhile\n" == result.stderr
    assert "main@3" == table.tags.get("production").ref
    assert ["production: main@3 -> main@5"] == lines_of("table", "promote", table.uri, "--expect", "main@3")
    assert 2 == run("table", "promote", table.uri, "--expect", "nothing").exit_code


def test_nothing_can_be_expected_of_a_tag_that_is_not_there(table: LanceTable) -> None:
    """The tag is not created."""
    assert 2 == run("table", "promote", table.uri, "--expect", "main@3").exit_code
    assert {} == table.tags.list()


def test_a_tag_goes_back(table: LanceTable) -> None:
    """A rollback goes one step, several steps or to an earlier version of the tag."""
    for number in (2, 3, 4, 5):
        table.tags.move("production", f"main@{number}")
    assert ["production: main@5 -> main@4"] == lines_of("table", "rollback", table.uri)
    assert ["production: main@4 -> main@3"] == lines_of("table", "rollback", table.uri, "--steps", "1")
    assert {"tag": "production", "moved": True, "from": "main@3", "to": "main@2"} == document_of(
        "table", "rollback", table.uri, "--to", "main@2"
    )
    assert ["production: main@2 already"] == lines_of("table", "rollback", table.uri, "--to", "main@2")
    result = run("table", "rollback", table.uri)
    assert (2, True) == (result.exit_code, "nothing is known from before main@2" in result.stderr)
    assert [1, 1, 1, 0] == [move.steps_back for move in table.tags.history("production")][:4]


def test_a_tag_goes_back_by_many(table: LanceTable) -> None:
    """Moves in between are skipped."""
    for number in (2, 3, 4, 5):
        table.tags.move("production", f"main@{number}")
    assert ["production: main@5 -> main@3"] == lines_of("table", "rollback", table.uri, "--steps", "2")
    table.tags.move("production", "main@5")
    assert ["production: main@5 -> main@2"] == lines_of("table", "rollback", table.uri, "--to", "main@2")


def test_a_tag_goes_back_to_where_it_was_only(table: LanceTable) -> None:
    """The error for another version lists the earlier versions of the tag, and suggests `promote`."""
    for number in (2, 4):
        table.tags.move("production", f"main@{number}")
    result = run("table", "rollback", table.uri, "--to", "main@3")
    assert (2, True) == (result.exit_code, "at main@3; it was at main@4, main@2; `lance-d" in result.stderr)
    assert f"`lance-dagster table promote {table.uri} --tag production --at main@3` moves it there" in result.stderr
    assert 2 == run("table", "rollback", table.uri, "--to", "main@2", "--steps", "1").exit_code
    assert 2 == run("table", "rollback", table.uri, "--tag", "stage").exit_code
    assert 1 == run("table", "rollback", table.uri, "--expect", "main@3").exit_code
    assert "main@4" == table.tags.get("production").ref


def test_protection_is_told(table: LanceTable) -> None:
    """A protected tag is an error with exit code 1."""
    table.branches.create("work")
    table.tags.protect(["production"])
    result = run("table", "promote", table.uri, "--at", "work")
    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))


def test_a_tag_does_not_go_back_to_where_it_was_rolled_back_from(table: LanceTable) -> None:
    """Such a rollback would move the tag forward."""
    for number in (2, 4):
        table.tags.move("production", f"main@{number}")
    table.tags.rollback("production")
    back = run("table", "rollback", table.uri, "--to", "main@4")
    assert (2, True) == (back.exit_code, "cannot be rolled back to main@4, from where it was rolled" in back.stderr)


def test_what_is_expected_of_a_tag_holds_where_nothing_moves(table: LanceTable) -> None:
    """The expected version is also checked if the tag is already at the target."""
    for number in (1, 2):
        table.tags.move("production", f"main@{number}")
    assert ["production: main@2 already"] == lines_of(
        "table", "rollback", table.uri, "--to", "main@2", "--expect", "main@2"
    )
    result = run("table", "rollback", table.uri, "--to", "main@2", "--expect", "main@1")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "'production' points to main@2, not to main@1" in result.stderr


def test_a_tag_moves_though_the_branch_it_is_on_has_the_name_of_another_tag(table: LanceTable) -> None:
    """Pylance can create such a tag; the version of a tag is a branch and a number."""
    table.branches.create("run", "main@3")
    table.tags.create("production", "run")
    as_pylance(table).tags.create("run", 1)
    assert ["production: run@3 -> main@5"] == lines_of("table", "promote", table.uri)
    assert ["production: main@5 -> run@3"] == lines_of("table", "rollback", table.uri)
    assert ["production: run@3 -> main@2"] == lines_of("table", "promote", table.uri, "--at", "main@2")


def test_a_tag_does_not_go_back_to_another_branch_of_the_name(table: LanceTable) -> None:
    """The error is one line, and the exit code is 2."""
    table.branches.create("run", "main@2")
    table.append(entries("r", 1), branch="run")
    for ref in ("run@3", "main@4"):
        table.tags.move("production", ref)
    table.branches.delete("run")
    free_names(table)
    table.branches.create("run", "main@3")
    for arguments in ([], ["--to", "run@3"]):
        result = run("table", "rollback", table.uri, *arguments)
        assert (2, 1) == (result.exit_code, result.stderr.count("\n"))
        assert "is gone: its branch was deleted, and another branch has its name" in result.stderr
    assert "main@4" == table.tags.get("production").ref
