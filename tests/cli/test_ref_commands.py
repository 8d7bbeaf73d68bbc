"""`branch`, `tag` and `protect`."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.cli.inspect_commands import heads
from tests.cli.running import document_of, lines_of, process, run
from tests.table_factory import entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of three versions."""
    return new_table(tmp_path, entries("a", 1), entries("a", 2))


def test_a_branch_is_forked_renamed_and_deleted(table: LanceTable) -> None:
    """Each of these prints one line."""
    assert ["work from main@2"] == lines_of("table", "branch", table.uri, "work", "--at", "main@2")
    assert ["work from main@2"] == lines_of("table", "branch", table.uri, "work", "--exist-ok")
    assert 1 == run("table", "branch", table.uri, "work").exit_code
    assert ["play from main@2"] == lines_of("table", "branch", table.uri, "work", "--rename", "play")
    assert ["play deleted"] == lines_of("table", "branch", table.uri, "play", "--delete")
    assert {} == table.branches.list()
    assert 2 == run("table", "branch", table.uri, "play", "-d").exit_code
    assert 2 == run("table", "branch", table.uri, "play", "-d", "-r", "work").exit_code
    assert 2 == run("table", "branch", table.uri, "no name").exit_code


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("branch", "main", "-d"), "main of TABLE cannot be deleted: every Lance program looks for it"),
        (("branch", "main", "-d", "--force"), "main of TABLE cannot be deleted: every Lance program looks for it"),
        (("branch", "v1", "-d"), "no branch 'v1' in TABLE; that is a tag; name a branch"),
        (("branch", "wrk", "-d"), "no branch 'wrk' in TABLE; did you mean 'work'?"),
        (("branch", "nobody", "-r", "new"), "no branch 'nobody' in TABLE; known names: main, work"),
        (("tag", "v9", "-d"), "no tag 'v9' in TABLE; did you mean 'v1'?"),
        (("tag", "work", "-d"), "no tag 'work' in TABLE; known names: v1"),
        (("merge", "work", "--into", "v1"), "no branch 'v1' in TABLE; that is a tag; name a branch"),
        (("merge", "work", "--into", "main~1"), "in TABLE; that is a version; name a branch, such as 'main'"),
        (("merge", "work", "--into", "work@3"), "in TABLE; that is a version; name a branch, such as 'work'"),
        (("sync", "main"), "main of TABLE has no parent branch, so there is nothing to sync it with"),
        (("show", "main..work"), "expected one version; diff and log take ranges such as this one"),
        (("show", "HEAD"), "there is no HEAD, since nobody has a branch checked out: name the branch, such as main"),
        (("show", "17"), "cannot read ref '17': expected a name; version 17 is written main@17"),
    ],
)
def test_what_is_named_wrongly_is_told(table: LanceTable, arguments: tuple[str, ...], said: str) -> None:
    """The error suggests the name that was probably meant."""
    table.branches.create("work")
    table.tags.create("v1", "main@2")
    command, *others = arguments
    result = run("table", command, table.uri, *others)
    assert (2, True) == (result.exit_code, said.replace("TABLE", table.uri) in result.stderr), result.stderr
    assert ["work"] == list(table.branches.list())


def test_a_branch_is_told_to_programs(table: LanceTable) -> None:
    """The JSON has the fork point and time of creation, or says that the branch was deleted."""
    made = document_of("table", "branch", table.uri, "work")
    assert ("work", "main@3", True) == (made["name"], made["forked_from"], made["created_at"].startswith("20"))
    assert {"name": "work", "deleted": True} == document_of("table", "branch", table.uri, "work", "-d")


def test_a_tag_is_made_renamed_and_deleted(table: LanceTable) -> None:
    """An immutable tag does not move."""
    assert ["v1: main@2, immutable"] == lines_of("table", "tag", table.uri, "v1", "--at", "main@2", "--immutable")
    assert 1 == run("table", "promote", table.uri, "--tag", "v1").exit_code
    assert 1 == run("table", "tag", table.uri, "v1", "--delete").exit_code
    assert ["v1 deleted"] == lines_of("table", "tag", table.uri, "v1", "--delete", "--force")
    assert {"name": "old", "version": "main@3", "immutable": False, "hold": None} == document_of(
        "table", "tag", table.uri, "old"
    )
    assert "new" == document_of("table", "tag", table.uri, "old", "--rename", "new")["name"]
    assert {"name": "new", "deleted": True} == document_of("table", "tag", table.uri, "new", "-d")
    assert {} == table.tags.list()


def test_where_a_tag_was_is_shown(table: LanceTable) -> None:
    """The history has the newest move first, with its mover, its time and whether it was a rollback."""
    for number in (1, 2):
        table.tags.move("production", f"main@{number}")
    table.tags.rollback("production")
    lines = lines_of("table", "tag", table.uri, "production", "--history")
    assert ["main@2 -> main@1", "main@1 -> main@2", "new -> main@1"] == [line[:16].strip() for line in lines]
    assert lines[0].endswith("rolled back by 1")
    moves = document_of("table", "tag", table.uri, "production", "--history")
    assert [("main@2", "main@1", 1), ("main@1", "main@2", 0)] == [
        (move["from"], move["to"], move["steps_back"]) for move in moves[:2]
    ]
    assert 2 == run("table", "tag", table.uri, "stage", "--history").exit_code


def test_names_are_protected(table: LanceTable) -> None:
    """The command prints all patterns after each change."""
    assert ["branches  none", "tags      none"] == lines_of("table", "protect", table.uri)
    lines = lines_of("table", "protect", table.uri, "--branch", "main", "--branch", "release/*", "--tag", "v*")
    assert ["branches  main, release/*", "tags      v*"] == lines
    answer = document_of("table", "protect", table.uri, "--branch", "main", "--remove")
    assert {"branches": ["release/*"], "tags": ["v*"]} == answer
    assert 2 == run("table", "protect", table.uri, "--branch", "main", "--remove").exit_code
    assert answer == document_of("table", "protect", table.uri)


def test_a_branch_that_goes_away_meanwhile_is_left_out(table: LanceTable) -> None:
    """The other branches are listed; a branch without manifests is damaged, and has no newest version."""
    for name in ("a", "b", "c", "d"):
        table.branches.create(name)
    listed = list(table.branches.list().values())
    found = heads(table, listed)
    assert "a" == next(found)[0].name
    table.branches.delete("c")
    assert ["b", "d"] == [branch.name for branch, _ in found]
    for path in Path(table.uri).glob("tree/d/_versions/*"):
        path.unlink()
    newest = [str(head) for _, head in heads(LanceTable.open(table.uri), listed)]
    assert ["a@3", "b@3", "None"] == newest


@pytest.mark.parametrize("remedy", [("reset", "d", "--at", "main@3"), ("branch", "d", "--delete", "--force")])
def test_a_branch_without_versions_is_listed(table: LanceTable, remedy: tuple[str, ...]) -> None:
    """The list has a warning with a command that repairs the branch."""
    table.branches.create("d")
    for path in Path(table.uri).glob("tree/d/_versions/*"):
        path.unlink()
    listed = process("table", "branches", table.uri)
    assert (0, "") == (listed.returncode, listed.stderr)
    lines = listed.stdout.splitlines()
    assert ["d", "-", "from", "main@3", "no", "version"] == lines[1].split()
    assert "warning: branch 'd'" == lines[2]
    command, *words = remedy
    assert f"`lance-dagster table {' '.join((command, table.uri, *words))}`" in lines[4]
    assert ["main@3", None] == [each["head"] for each in document_of("table", "branches", table.uri)]
    assert 0 == run("table", command, table.uri, *words).exit_code
    assert "warning" not in run("table", "branches", table.uri).stdout


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("branch", "work", "--delete", "--at", "main@1"), "--delete cannot be combined with --at"),
        (("branch", "work", "-d", "--exist-ok", "-r", "x"), "--delete cannot be combined with --exist-ok, --rename"),
        (("branch", "work", "--rename", "x", "--at", "nowhere"), "--rename cannot be combined with --at"),
        (("branch", "work", "--rename", "x", "--force"), "--force needs --delete"),
        (("branch", "new", "--force"), "--force needs --delete"),
        (("branch", "work", "--rename", ""), "cannot name a branch"),
        (
            ("tag", "v1", "--rename", "v2", "--at", "nowhere", "--immutable"),
            "--rename cannot be combined with --at",
        ),
        (("tag", "v1", "--rename", "v2", "--force"), "--force needs --delete"),
        (("tag", "v1", "--rename", "v2", "--history"), "--rename cannot be combined with --history"),
        (("tag", "v1", "--rename", ""), "cannot name a tag"),
        (("tag", "v1", "--delete", "--immutable"), "--delete cannot be combined with --immutable"),
        (("tag", "v1", "--history", "--at", "main@1"), "--history cannot be combined with --at"),
        (("tag", "v2", "--force"), "--force needs --delete"),
        (("protect", "--remove"), "--remove needs --branch or --tag"),
        (("show", "main", "--limit", "3"), "--limit needs --rows"),
        (("show", "main", "--stat", "-n", "20"), "--limit needs --rows"),
        (("diff", "main~1..main", "-n", "3", "--stat"), "--limit needs --rows"),
        (("diff", "main~1..main", "--column", "key"), "--column needs --stat or --rows"),
        (("merge", "work", "--rows"), "--rows needs --preview"),
        (("merge", "work", "--preview", "-n", "3"), "--limit needs --rows"),
        (("merge", "work", "-k", "key", "-c", "value"), "--on, --column need --rows"),
        (("merge", "work", "--preview", "-m", "x"), "--preview cannot be combined with --message"),
        (("merge", "work", "--preview", "--property", "a=b"), "--preview cannot be combined with --property"),
        (("merge", "work", "--ff-only", "--squash"), "give --ff-only or --squash, not both"),
        (("rollback", "--tag", "v1", "--steps", "1", "--to", "main@1"), "give --steps or --to, not both"),
    ],
)
def test_options_that_would_be_ignored_are_refused(table: LanceTable, arguments: tuple[str, ...], said: str) -> None:
    """The error names the incompatible options, and nothing is done."""
    table.branches.create("work")
    table.append(entries("w", 1), branch="work")
    table.tags.create("v1", "main@2")
    command, *others = arguments
    result = run("table", command, table.uri, *others)
    assert (2, "", 1, True) == (result.exit_code, result.stdout, result.stderr.count("\n"), said in result.stderr)
    assert (["work"], ["v1"], "main@3") == (list(table.branches.list()), list(table.tags.list()), str(table.head()))
