"""`branch`, `tag` and `protect`."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.cli.running import document_of, lines_of, run
from tests.ledger import entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of three versions."""
    return new_table(tmp_path, entries("a", 1), entries("a", 2))


def test_a_branch_is_forked_renamed_and_deleted(table: LanceTable) -> None:
    """Each is told in a line."""
    assert ["work from main@2"] == lines_of("branch", table.uri, "work", "--at", "main@2")
    assert ["work from main@2"] == lines_of("branch", table.uri, "work", "--exist-ok")
    assert 1 == run("branch", table.uri, "work").exit_code
    assert ["play from main@2"] == lines_of("branch", table.uri, "work", "--rename", "play")
    assert ["play deleted"] == lines_of("branch", table.uri, "play", "--delete")
    assert {} == table.branches()
    assert 2 == run("branch", table.uri, "play", "-d").exit_code
    assert 2 == run("branch", table.uri, "play", "-d", "-r", "work").exit_code
    assert 2 == run("branch", table.uri, "no name").exit_code


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("branch", "main", "-d"), "main of TABLE cannot be deleted: every Lance program looks for it"),
        (("branch", "main", "-d", "--force"), "main of TABLE cannot be deleted: every Lance program looks for it"),
        (("branch", "v1", "-d"), "no branch 'v1' in TABLE; that is a tag, and a branch is wanted"),
        (("branch", "wrk", "-d"), "no branch 'wrk' in TABLE; did you mean 'work'?"),
        (("branch", "nobody", "-r", "new"), "no branch 'nobody' in TABLE; known names: main, work"),
        (("tag", "v9", "-d"), "no tag 'v9' in TABLE; did you mean 'v1'?"),
        (("tag", "work", "-d"), "no tag 'work' in TABLE; known names: v1"),
        (("merge", "work", "--into", "v1"), "no branch 'v1' in TABLE; that is a tag, and a branch is wanted"),
        (("merge", "work", "--into", "main~1"), "in TABLE; that is a version, and a branch is wanted, such as 'main'"),
        (("merge", "work", "--into", "work@3"), "in TABLE; that is a version, and a branch is wanted, such as 'work'"),
        (("sync", "main"), "main of TABLE was forked from nothing, so there is nothing to sync it with"),
        (("show", "main..work"), "expected one version; diff and log take ranges such as this one"),
        (("show", "HEAD"), "there is no HEAD, since nobody has a branch checked out: name the branch, such as main"),
        (("show", "17"), "cannot read ref '17': expected a name; version 17 is written main@17"),
    ],
)
def test_what_is_named_wrongly_is_told(table: LanceTable, arguments: tuple[str, ...], said: str) -> None:
    """With what was meant, where that can be told."""
    table.create_branch("work")
    table.create_tag("v1", "main@2")
    command, *others = arguments
    result = run(command, table.uri, *others)
    assert (2, True) == (result.exit_code, said.replace("TABLE", table.uri) in result.stderr), result.stderr
    assert ["work"] == list(table.branches())


def test_a_branch_is_told_to_programs(table: LanceTable) -> None:
    """Where it was forked and when, or that it is gone."""
    made = document_of("branch", table.uri, "work")
    assert ("work", "main@3", True) == (made["name"], made["forked_from"], made["created_at"].startswith("20"))
    assert {"name": "work", "deleted": True} == document_of("branch", table.uri, "work", "-d")


def test_a_tag_is_made_renamed_and_deleted(table: LanceTable) -> None:
    """A release stays where it is."""
    assert ["v1: main@2, immutable"] == lines_of("tag", table.uri, "v1", "--at", "main@2", "--immutable")
    assert 1 == run("promote", table.uri, "--tag", "v1").exit_code
    assert 1 == run("tag", table.uri, "v1", "--delete").exit_code
    assert ["v1 deleted"] == lines_of("tag", table.uri, "v1", "--delete", "--force")
    assert {"name": "old", "version": "main@3", "immutable": False} == document_of("tag", table.uri, "old")
    assert "new" == document_of("tag", table.uri, "old", "--rename", "new")["name"]
    assert {"name": "new", "deleted": True} == document_of("tag", table.uri, "new", "-d")
    assert {} == table.tags()


def test_where_a_tag_was_is_shown(table: LanceTable) -> None:
    """Newest first, with who moved it when, and what was a roll-back."""
    for number in (1, 2):
        table.move_tag("production", f"main@{number}")
    table.roll_back_tag("production")
    lines = lines_of("tag", table.uri, "production", "--history")
    assert ["main@2 -> main@1", "main@1 -> main@2", "new -> main@1"] == [line[:16].strip() for line in lines]
    assert lines[0].endswith("rolled back by 1")
    moves = document_of("tag", table.uri, "production", "--history")
    assert [("main@2", "main@1", 1), ("main@1", "main@2", 0)] == [
        (move["from"], move["to"], move["steps_back"]) for move in moves[:2]
    ]
    assert 2 == run("tag", table.uri, "stage", "--history").exit_code


def test_names_are_protected(table: LanceTable) -> None:
    """Told as they are, after each change."""
    assert ["branches  none", "tags      none"] == lines_of("protect", table.uri)
    lines = lines_of("protect", table.uri, "--branch", "main", "--branch", "release/*", "--tag", "v*")
    assert ["branches  main, release/*", "tags      v*"] == lines
    answer = document_of("protect", table.uri, "--branch", "main", "--remove")
    assert {"branches": ["release/*"], "tags": ["v*"]} == answer
    assert 2 == run("protect", table.uri, "--branch", "main", "--remove").exit_code
    assert answer == document_of("protect", table.uri)
