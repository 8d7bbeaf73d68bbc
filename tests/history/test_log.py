"""The history of a version."""

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, Unpack

import lance
import pendulum
import pytest

from lance_dagster import LanceTable, LogFilter
from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_dagster.history.log import DATE_SLOP
from tests.damage import in_manifest, newest_file
from tests.history.rewritten_manifests import date, watched
from tests.table_factory import as_pylance, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A branch of a branch of main, each with its own versions, the inner one merged into main."""
    made = new_table(tmp_path, entries("a", 1), entries("b", 1))
    made.branches.create("outer", "main@2")
    made.append(entries("c", 1), branch="outer")
    made.branches.create("inner", "outer@3")
    made.append(entries("d", 1), branch="inner", message="the inner rows", properties={"dagster/run_id": "r1"})
    made.merge("inner")
    return made


def test_the_first_parents_lead_across_forks(table: LanceTable) -> None:
    """A branch's history has its own versions and those before its fork; its first version is omitted."""
    assert ["inner@4", "outer@3", "main@2", "main@1"] == [str(v) for v in table.log("inner")]
    assert ["main@4", "main@3", "main@2", "main@1"] == [str(v) for v in table.log()]


@pytest.mark.parametrize("limit", range(8))
def test_a_limit_takes_the_newest(table: LanceTable, limit: int) -> None:
    """The limit applies across forks too."""
    assert table.log("inner")[:limit] == table.log("inner", limit=limit)


def test_a_version_says_where_it_comes_from(table: LanceTable) -> None:
    """A version has its message, properties, writer, parents and number of rows."""
    version = table.at("inner")
    assert ("the inner rows", "r1", 3) == (version.message, version.properties["dagster/run_id"], version.rows)
    assert ("Append", ("inner@3",)) == (version.operation, version.parents)
    assert version.writer.startswith("lance_dagster ")
    assert ("main@3", "inner@4") == table.at("main").parents
    assert "merge inner@4 into main" == table.at("main").message
    assert () == table.at("main@1").parents


def test_versions_of_pylance_are_described_too(table: LanceTable) -> None:
    """Writer and operation have pylance's names."""
    as_pylance(table).delete("key = 'a'")
    version = table.at("main")
    writer = f"lance {lance.__version__}"
    assert ("Delete", writer, writer) == (version.operation, version.writer, version.committer)


def test_a_new_branch_shows_what_it_was_forked_from(table: LanceTable) -> None:
    """Its first version, which repeats the fork point, is omitted."""
    table.branches.create("new", "inner@4")
    for first_parent in (True, False):
        assert names(table, "inner", first_parent=first_parent) == names(table, "new", first_parent=first_parent)


def test_what_a_clean_up_removed_is_left_out(table: LanceTable) -> None:
    """The removed version may be a fork point."""
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    again = LanceTable.open(table.uri)
    assert ["main@4"] == [str(v) for v in again.log()]
    assert ["inner@4", "outer@3", "outer@2"] == [str(v) for v in again.log("inner")]
    assert [("main@3", "inner@4"), True] == [again.at("main").parents, again.at("main").cut]
    assert [False, False, True] == [v.cut for v in again.log("inner")]


def test_versions_after_a_number_come_from_names_alone(table: LanceTable) -> None:
    """The numbers are ascending, of one branch."""
    assert [3, 4] == table.branches.version_numbers(after=2)
    assert [3, 4] == table.branches.version_numbers("inner")
    assert [] == table.branches.version_numbers(after=4)


class Asked(TypedDict, total=False):
    """The arguments of a log."""

    after: str
    limit: int
    first_parent: bool
    only: LogFilter


def names(table: LanceTable, ref: str = "main", **asked: Unpack[Asked]) -> list[str]:
    """The versions of a log."""
    return [str(version) for version in table.log(ref, **asked)]


@pytest.fixture
def dated(table: LanceTable) -> LanceTable:
    """The same table with versions an hour apart; main@5 merges the outer branch, and main@6 is by ann."""
    table.append(entries("e", 1), branch="outer")
    table.merge("outer", message="Outer rows")
    table.append(entries("f", 1), message="f", properties={"lance_dagster.committer": "ann", "ticket": "42"})
    versions = ["main@1", "main@2", "outer@2", "outer@3", "inner@3", "main@3", "inner@4", "main@4", "outer@4"]
    return date(table, {ref: f"2026-01-31T{hour:02}:00Z" for hour, ref in enumerate([*versions, "main@5", "main@6"])})


def test_the_whole_history_has_what_was_merged_too(dated: LanceTable) -> None:
    """Each version occurs once, newest first."""
    everything = ["main@6", "main@5", "outer@4", "main@4", "inner@4", "main@3", "outer@3"]
    assert [*everything, "main@2", "main@1"] == names(dated, first_parent=False)
    assert ["main@6", "main@5", "main@4", "main@3", "main@2", "main@1"] == names(dated)


@pytest.mark.parametrize("limit", range(11))
def test_a_limit_takes_the_newest_of_the_whole_history(dated: LanceTable, limit: int) -> None:
    """Hardly more versions than the limit are read."""
    again, read = watched(dated)
    assert dated.log(first_parent=False)[:limit] == again.log(first_parent=False, limit=limit)
    # These are the version itself, the parents of those shown, and the fork point of a branch.
    assert len(set(read)) <= limit + 4


def test_clocks_that_go_wrong_do_not_put_a_parent_before_its_child(dated: LanceTable) -> None:
    """The history decides; times decide only between unrelated versions."""
    wrong = date(dated, {"main@4": "1999-01-01T00:00Z", "outer@3": "2030-01-01T00:00Z", "main@1": "2040-01-01T00:00Z"})
    shown = names(wrong, first_parent=False)
    assert sorted(names(dated, first_parent=False)) == sorted(shown)
    for version in wrong.log(first_parent=False):
        known = [parent for parent in version.parents if wrong.at(parent).operation != "Clone"]
        assert all(shown.index(parent) > shown.index(str(version)) for parent in known)


@pytest.mark.parametrize(
    "ref,after,line,everything",
    [
        ("inner", "main@2", ["inner@4", "outer@3"], ["inner@4", "outer@3"]),
        ("main", "main@4", ["main@6", "main@5"], ["main@6", "main@5", "outer@4"]),
        (
            "main",
            "inner",
            ["main@6", "main@5", "main@4", "main@3"],
            ["main@6", "main@5", "outer@4", "main@4", "main@3"],
        ),
        ("main", "main", [], []),
        ("main@2", "outer@2", [], []),
        ("outer@2", "main", [], []),
        ("inner", "main", [], []),
        ("outer", "inner", ["outer@4"], ["outer@4"]),
    ],
)
def test_what_another_version_contains_can_be_left_out(
    dated: LanceTable, ref: str, after: str, line: list[str], everything: list[str]
) -> None:
    """As with `after..ref` in git, merged versions and versions before forks are left out too."""
    assert line == names(dated, ref, after=after)
    assert everything == names(dated, ref, after=after, first_parent=False)


@pytest.mark.parametrize(
    "only,shown",
    [
        (LogFilter(), ["main@6", "main@5", "main@4", "main@3", "main@2", "main@1"]),
        (LogFilter(committer="ann"), ["main@6"]),
        (LogFilter(committer="an"), []),
        (LogFilter(message="outer"), ["main@5"]),
        (LogFilter(message="ROWS"), ["main@5"]),
        (LogFilter(properties={"ticket": None}), ["main@6"]),
        (LogFilter(properties={"ticket": "42"}), ["main@6"]),
        (LogFilter(properties={"ticket": "43"}), []),
        (LogFilter(properties={"lance_dagster.merge": None}), ["main@5", "main@4"]),
        (LogFilter(merges=True), ["main@5", "main@4"]),
        (LogFilter(merges=False), ["main@6", "main@3", "main@2", "main@1"]),
        (LogFilter(properties={"lance_dagster.merge": "inner@4", "ticket": None}), []),
        (LogFilter(since=datetime(2026, 1, 31, 7, tzinfo=UTC)), ["main@6", "main@5", "main@4"]),
        (LogFilter(since=datetime(2026, 1, 31, 7)), ["main@6", "main@5", "main@4"]),  # noqa: DTZ001  # UTC
        (LogFilter(until=datetime(2026, 1, 31, 1, tzinfo=UTC)), ["main@2", "main@1"]),
        (
            LogFilter(since=pendulum.datetime(2026, 1, 31, 5), until=pendulum.datetime(2026, 1, 31, 7)),
            ["main@4", "main@3"],
        ),
    ],
)
def test_a_log_can_be_filtered(dated: LanceTable, only: LogFilter, shown: list[str]) -> None:
    """Filters are committer, message, property and time; a limit counts the versions shown."""
    assert shown == names(dated, only=only)
    assert shown == [name for name in names(dated, first_parent=False, only=only) if name.startswith("main")]
    for first_parent in (True, False):
        full = names(dated, only=only, first_parent=first_parent)
        assert full[:1] == names(dated, only=only, limit=1, first_parent=first_parent)


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """31 versions, a day apart."""
    table = new_table(tmp_path_factory.mktemp("daily"))
    for number in range(30):
        table.append(entries("a", number))
    return date(table, {f"main@{number}": f"2026-01-{number:02}T00:00Z" for number in range(1, 32)})


@pytest.mark.parametrize("first_parent", [True, False])
def test_a_log_since_a_time_reads_hardly_further(daily: LanceTable, first_parent: bool) -> None:  # noqa: FBT001
    """A few versions beyond the time are read, because one of them might be new enough."""
    again, read = watched(daily)
    only = LogFilter(since=pendulum.datetime(2026, 1, 30))
    assert ["main@31", "main@30"] == names(again, only=only, first_parent=first_parent)
    assert 2 + DATE_SLOP < len(set(read)) <= 2 + DATE_SLOP + 2


@pytest.mark.parametrize("first_parent", [True, False])
@pytest.mark.parametrize("lying", range(8))
def test_a_log_since_a_time_goes_on_behind_clocks_that_lie(
    dated: LanceTable,
    lying: int,
    first_parent: bool,  # noqa: FBT001
) -> None:
    """An old date of another writer omits that version only, unless too many in sequence have old dates."""
    for value in range(10):
        dated.append(entries("g", value))
    times = {f"main@{7 + number}": f"2026-02-01T{number:02}:00Z" for number in range(10)}
    lies = {f"main@{15 - number}": "1999-01-01T00:00Z" for number in range(lying)}
    wrong = date(dated, {**times, **lies})
    shown = names(wrong, only=LogFilter(since=pendulum.datetime(2026, 2, 1)), first_parent=first_parent)
    expected = ["main@16", *(f"main@{number}" for number in range(15, 6, -1) if f"main@{number}" not in lies)]
    assert (expected if lying <= DATE_SLOP else ["main@16"]) == shown


def test_a_graph_has_the_lines_to_draw(dated: LanceTable) -> None:
    """The edges lead to the next older versions shown, and beyond a limit to versions that are not shown."""
    lines = {str(version): below for version, below in dated.branches.graph()}
    assert ("main@4", "outer@4") == lines["main@5"]
    assert ("main@2",) == lines["outer@3"]
    assert () == lines["main@1"]
    assert names(dated, first_parent=False) == list(lines)
    assert [("main@6", ("main@5",)), ("main@5", ("main@4", "outer@4"))] == [
        (str(version), below) for version, below in dated.branches.graph(limit=2)
    ]
    merges = dated.branches.graph(only=LogFilter(properties={"lance_dagster.merge": None}))
    assert [("main@5", ("main@4",)), ("main@4", ())] == [(str(version), below) for version, below in merges]
    rows = dated.branches.graph(only=LogFilter(message="inner"))
    assert ["main@4", "inner@4"] == [str(version) for version, _ in rows]
    assert ("inner@4",) == rows[0][1]


def test_wrong_arguments_are_refused(dated: LanceTable) -> None:
    """A negative limit and a missing version are refused."""
    with pytest.raises(InvalidInputError):
        dated.log(limit=-1)
    for first_parent in (True, False):
        with pytest.raises(VersionNotFoundError):
            dated.log("main@9", first_parent=first_parent)
    with pytest.raises(VersionNotFoundError):
        dated.log(after="main@9")


def test_a_long_history_is_not_read_for_its_end(daily: LanceTable) -> None:
    """Only the newest versions are read if versions are further apart than clocks may differ."""
    again, read = watched(daily)
    assert ["main@31", "main@30", "main@29"] == names(again, first_parent=False, limit=3)
    assert len(set(read)) <= 5
    again, read = watched(daily)
    assert "main@12" == str(again.at("main@{2026-01-12T23:59Z}"))
    assert len(set(read)) <= 7


def test_the_committer_is_who_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property of the commit takes precedence; without both, the program is the committer."""
    table = new_table(tmp_path, entries("a", 1))
    assert table.at("main").writer == table.at("main").committer
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "Ann <ann@example.org>")
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    table.append(entries("c", 1), branch="run", properties={"lance_dagster.committer": "bot"})
    table.merge("run")
    ann = "Ann <ann@example.org>"
    assert [ann, "bot", ann, ann] == [table.at(ref).committer for ref in ("main", "run", "run@3", "run@2")]
    assert "bot" == LanceTable.open(table.uri).log("run")[0].committer


def test_the_user_of_the_system_commits_where_nobody_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty variable the program is the committer."""
    table = new_table(tmp_path, entries("a", 1))
    monkeypatch.setenv("LOGNAME", "grace")
    assert table.head().writer == table.append(entries("b", 1)).committer
    monkeypatch.delenv("LANCE_DAGSTER_COMMITTER")
    assert "grace" == table.append(entries("c", 1)).committer
    assert "bot" == table.append(entries("d", 1), properties={"lance_dagster.committer": "bot"}).committer


def test_a_user_whose_name_is_no_text_can_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is the committer."""
    monkeypatch.delenv("LANCE_DAGSTER_COMMITTER")
    monkeypatch.setenv("LOGNAME", "\udcff")
    version = new_table(tmp_path, entries("a", 1)).head()
    assert version.writer == version.committer


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process as a user without an account")
def test_a_user_without_an_account_is_nobody() -> None:
    """In a container that runs under any uid, the program is the committer."""
    code = "import os\nfrom lance_dagster.history.commit import committer\nos.setuid(1_999_999_999)\nprint(committer())"
    unnamed = {"LANCE_DAGSTER_COMMITTER", "LOGNAME", "USER", "LNAME", "USERNAME"}
    environment = {name: value for name, value in os.environ.items() if name not in unnamed}
    command = [sys.executable, "-c", code]
    assert "None\n" == subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.mark.parametrize("seconds", [2**62, 2**38, 253_402_300_799], ids=["no number", "year 10680", "rounded up"])
def test_a_version_of_no_date_is_named(tmp_path: Path, seconds: int) -> None:
    """A log reads less of a manifest than other operations do, and has to refuse the same."""
    table = new_table(tmp_path, entries("a", 1))
    name = newest_file(table).name
    in_manifest(lambda manifest: replace(manifest, timestamp=seconds * 10**9 + 999_999_999))(table)
    with pytest.raises(CorruptFileError, match=f"{name} is damaged: its timestamp is not a date"):
        LanceTable.open(table.uri).log()
