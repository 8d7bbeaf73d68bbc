"""`log` and `show`: which versions, who made them, which names they have, what they changed."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.history.table_uri import table_uri
from tests.cli.running import document_of, lines_of, process, run
from tests.table_factory import entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch that main does not contain, and that does not contain main."""
    made = new_table(tmp_path, entries("a", 1, 2))
    made.branches.create("left")
    made.append(entries("l", 1), branch="left", message="on the left")
    made.delete("value = 2", message="two goes")
    return made


def versions_of(*arguments: str) -> list[str]:
    """The versions of a log."""
    return [line.split()[0] for line in lines_of("table", "log", *arguments)]


@pytest.mark.parametrize(
    "arguments,expected",
    [
        ([], ["main@3", "main@2", "main@1"]),
        (["left"], ["left@3", "main@2", "main@1"]),
        (["--ref", "left"], ["left@3", "main@2", "main@1"]),
        (["main~1"], ["main@2", "main@1"]),
        (["main..left"], ["left@3"]),
        (["left..main"], ["main@3"]),
        (["--ref", "main..left"], ["left@3"]),
        (["main@2..main@3", "-n", "1"], ["main@3"]),
        (["left", "--after", "main"], ["left@3"]),
    ],
)
def test_a_log_begins_where_it_is_told(table: LanceTable, arguments: list[str], expected: list[str]) -> None:
    """The log begins at a ref or a range, given as an argument or as an option."""
    assert expected == versions_of(table.uri, *arguments)
    assert expected == [version["version"] for version in document_of("table", "log", table.uri, *arguments)]


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["left", "--ref", "main"], "give REF, or --ref REF, not both"),
        (["main...left"], "log takes A..B, what B contains and A does not: main..left"),
        (["main..left", "--after", "main@1"], "main..left names the versions to leave out already; remove --after"),
        (["main..nobody"], "no branch or tag 'nobody'"),
    ],
)
def test_a_log_says_what_it_does_not_take(table: LanceTable, arguments: list[str], said: str) -> None:
    """Other arguments are wrong calls."""
    result = run("table", "log", table.uri, *arguments)
    assert (2, True) == (result.exit_code, said in result.stderr)


def test_a_log_begins_at_the_ref_of_the_table(table: LanceTable) -> None:
    """A log begins at the ref of the table's URI, which must not be given a second time."""
    assert ["left@3", "main@2", "main@1"] == versions_of(table_uri(table.uri, "left"))
    for given in (["main"], ["--ref", "main"]):
        assert "TABLE names the ref 'left' already" in run("table", "log", table_uri(table.uri, "left"), *given).stderr


def test_names_are_beside_versions(table: LanceTable) -> None:
    """Versions are shown with the branches and tags that name them, unless names are switched off."""
    for name, at in (("v1", "main@2"), ("stable", "main@2"), ("tip", "main")):
        table.tags.create(name, at)
    newest, second, first = lines_of("table", "log", table.uri)
    assert newest.endswith("(main, tag tip) two goes")
    assert second.endswith("(tag stable, tag v1)")
    assert "(" not in first
    assert lines_of("table", "log", table.uri, "--ref", "left", "--graph")[0].endswith("(left) on the left")
    assert not any("(" in line for line in lines_of("table", "log", table.uri, "--no-decorate"))


def test_a_damaged_tag_is_no_reason_not_to_show_a_log(table: LanceTable) -> None:
    """A damaged tag, which `verify` reports, does not stop the log."""
    table.tags.create("v1", "main@2")
    (Path(table.uri) / "_refs/tags/v1.json").write_bytes(b"{")
    assert lines_of("table", "log", table.uri)[0].endswith("(main) two goes")


def test_a_log_says_who_committed(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committers are shown as soon as any version has one other than the program."""
    assert not any("lance_dagster" in line for line in lines_of("table", "log", table.uri))
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "ann")
    table.append(entries("c", 1))
    newest, second, *_ = lines_of("table", "log", table.uri)
    assert "ann" in newest.split()
    assert "lance_dagster" in second.split()


def test_conflicts_name_who_committed(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conflicts name the committer, or the program if there is none."""
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "ann")
    table.branches.create("right")
    table.update({"value": "11"}, where="value = 1", branch="right")
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "")
    table.update({"value": "12"}, where="value = 1")
    (conflict,) = document_of("table", "merge", table.uri, "right", code=1)["conflicts"]
    assert "ann (right@4)" in conflict["source"]
    assert "lance_dagster" in conflict["dest"]


def test_a_version_is_shown_with_what_it_changed(table: LanceTable) -> None:
    """A version is shown with its changes from its parent: fragments, counts, rows."""
    assert "fragments: 1 changed" in lines_of("table", "show", table.uri, "--diff")
    assert "0 rows added, 1 removed, 0 changed" == lines_of("table", "show", table.uri, "--stat")[-1]
    *_, head, row = lines_of("table", "show", table.uri, "main", "--rows")
    assert (["key", "value"], ["-", "a", "2"]) == (head.split(), row.split())
    found = document_of("table", "show", table.uri, "--stat", "--rows", "-n", "1")["diff"]
    assert ("main@2", "main@3", 1, False) == (found["before"], found["after"], found["stat"]["removed"], found["more"])
    assert [2] == [row["value"] for row in found["rows"]]


def test_a_merge_is_shown_with_what_it_brought(table: LanceTable) -> None:
    """A merge is shown with its changes from its first parent."""
    table.merge("left")
    assert "1 row added, 0 removed, 0 changed" == lines_of("table", "show", table.uri, "--stat")[-1]


def test_the_first_version_changed_nothing(table: LanceTable) -> None:
    """The first version has no changes, and those of a version whose parent was cleaned up are unknown."""
    assert "it is the first version of the table" == lines_of("table", "show", table.uri, "main@1", "--stat")[-1]
    assert document_of("table", "show", table.uri, "main@1", "--diff")["diff"] is None
    for number in (1, 2):
        (Path(table.uri) / f"_versions/{2**64 - 1 - number}.manifest").unlink()
    assert "the version before it was cleaned up" == lines_of("table", "show", table.uri, "main@3", "--diff")[-1]


def test_a_version_is_shown_in_words(table: LanceTable) -> None:
    """`show` has the message once, each claim as a sentence, and other properties under their own names."""
    table.replace_where("key = 'a'", entries("a", 7), message="only sevens", properties={"ticket": "77"})
    done = process("table", "show", table.uri)
    assert (0, "", 1) == (done.returncode, done.stderr, done.stdout.count("only sevens"))
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[:11])
    assert ("replace rows where key = 'a'", "77") == (facts["claims"], facts["ticket"])
    assert "lance_dagster.claims" not in done.stdout
    assert "only sevens" == document_of("table", "show", table.uri)["properties"]["__lance_commit_message"]
