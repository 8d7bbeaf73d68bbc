"""`lance-dagster table gc`: its output, its deletions, its exit code."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lance_dagster import LanceTable
from lance_dagster.cli.main import main
from tests.backdating import DAY, age, files, manifest
from tests.table_factory import contents, entries, new_table


def run(*arguments: str) -> Result:
    """Call the command in this process."""
    return CliRunner().invoke(main, ["table", "gc", *arguments])


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Versions of which only the newest and a tagged one are needed, all of them old."""
    made = new_table(tmp_path, *(entries("a", number) for number in range(2)))
    for number in range(4):
        made.overwrite(entries("a", number))
    made.tags.create("production", "main@4")
    made.stage(entries("s", 1))
    age(made, 30 * DAY)
    return made


def test_it_only_says_what_it_would_do(table: LanceTable) -> None:
    """Without the option to delete, the command only says what it would delete."""
    before = files(table)
    result = run(table.uri, "--older-than", "7d")
    assert (0, "") == (result.exit_code, result.stderr)
    lines = result.stdout.splitlines()
    assert ["kept:", "    main@4  tag 'production'", "    main@7  the newest"] == lines[:3]
    assert "would expire: main@1 to main@3, main@5 to main@6" == lines[3]
    assert lines[4] == "would delete:"
    assert lines[5].startswith("    1 data file  ")
    assert "waiting, as only expired versions name them:" in lines
    assert "5 versions and 1 file (" in lines[-2]
    assert "nothing was deleted; --delete does it" == lines[-1]
    assert before == files(table)
    assert result.stdout == run(table.uri, "--dry-run", "--older-than", "7d").stdout


def test_it_deletes_when_it_is_told_to(table: LanceTable) -> None:
    """With the option to delete it deletes, and a second call finds nothing left."""
    result = run(table.uri, "--older-than", "7d", "--grace", "0s", "--delete")
    assert (0, "") == (result.exit_code, result.stderr)
    assert "expired: main@1 to main@3, main@5 to main@6" in result.stdout.splitlines()
    assert "--delete" not in result.stdout
    assert [4, 7] == table.branches.version_numbers()
    assert [("a", 0)] == contents(table, "production")
    again = run(table.uri, "--older-than", "7d", "--grace", "0s", "--delete")
    assert "0 versions and 0 files (0 B) deleted" == again.stdout.splitlines()[-1]


def test_it_answers_programs(table: LanceTable) -> None:
    """The JSON report is one document, with every file on request."""
    document = json.loads(run(table.uri, "--older-than", "7d", "--json").stdout)
    assert (True, True, False) == (document["ok"], document["dry_run"], document["done"])
    assert {"main": [1, 2, 3, 5, 6]} == document["expired"]
    assert "paths" not in document
    document = json.loads(run(table.uri, "--older-than", "7d", "--json", "--files").stdout)
    assert 1 == len(document["paths"])
    shown = run(table.uri, "--older-than", "7d", "--files").stdout
    assert f"    {document['paths'][0]}" in shown.splitlines()


def test_rules_are_given(table: LanceTable) -> None:
    """Retention rules can be given for a number of versions, for branches by name, and for files."""
    assert "would expire: main@1 to main@3\n" in run(table.uri, "--older-than", "7d", "--keep-last", "3").stdout
    assert "would expire" not in run(table.uri, "--older-than", "0s", "--branch", "ma*=90d").stdout
    assert "too young" in run(table.uri, "--older-than", "7d", "--grace", "50d").stdout


@pytest.mark.parametrize(
    "wrong",
    [("--older-than", "soon"), ("--branch", "run/*"), ("--branch", "=7d"), ("--keep-last", "0"), ("--grace", "-1d")],
)
def test_what_makes_no_sense_is_told(table: LanceTable, wrong: tuple[str, str]) -> None:
    """Invalid values are an error with exit code 2."""
    result = run(table.uri, *wrong)
    assert (2, "") == (result.exit_code, result.stdout)
    assert result.stderr


def test_damage_is_told_by_the_exit_code(table: LanceTable) -> None:
    """With a damaged file nothing is deleted."""
    manifest(table, 2).write_bytes(b"damaged")
    before = files(table)
    result = run(table.uri, "--delete", "--older-than", "7d")
    assert 1 == result.exit_code
    assert "error: _versions/18446744073709551613.manifest\n" in result.stdout
    assert "so nothing is deleted" in result.stdout
    assert before == files(table)


def test_what_is_deleted_is_told_apart(table: LanceTable) -> None:
    """The output separates versions that expire from files that waited since earlier expiries."""
    run(table.uri, "--older-than", "7d", "--delete")
    age(table, 2 * DAY)
    lines = run(table.uri, "--older-than", "7d", "--delete").stdout.splitlines()
    assert any(line.startswith("    5 manifests of versions that expired before  ") for line in lines)
    assert lines[-1].startswith("0 versions and ")


def test_who_keeps_a_lot_is_told(table: LanceTable) -> None:
    """Branches that keep the most versions come first, and a long list is cut."""
    table.branches.create("idle", at="main@5")
    age(table, 30 * DAY)
    line = "branch 'idle' alone keeps 2 versions: sync it, or delete it"
    assert line == run(table.uri, "--older-than", "7d").stdout.splitlines()[-2]
    # Branches of a repository must not be deleted by hand.
    for name in (*(f"run/{number:02}" for number in range(12)), "published/0123456789abcdef"):
        table.branches.create(name, at="main@7")
        table.append(entries("r", 1), branch=name)
        table.append(entries("r", 2), branch=name)
    age(table, 30 * DAY)
    lines = run(table.uri, "--older-than", "7d").stdout.splitlines()
    told = [line for line in lines if "alone keeps" in line]
    assert (10, "and so do 3 branches more") == (len(told), lines[-2])
    assert "branch 'idle' alone keeps 2 versions" in told[0]


def test_a_merged_branch_is_not_to_be_merged(table: LanceTable) -> None:
    """The advice for an unmerged branch is to merge it, and for a merged one to sync or delete it."""
    table.branches.create("work", at="main@5")
    for value in (1, 2):
        table.append(entries("w", value), branch="work")
    age(table, 30 * DAY)

    def advice() -> str:
        lines = run(table.uri, "--older-than", "7d").stdout.splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("branch 'work' alone keeps"))

    assert "merge it, sync it, or delete it" == advice()
    table.merge("work", strategy="dest-wins")
    age(table, 30 * DAY)
    assert "sync it, or delete it" == advice()
