"""docs/cli.md has the help of each command, and the keys of its JSON documents."""

import re
import shlex
from pathlib import Path

import click
import pyarrow as pa
import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.cli.main import TOPICS
from tests.cli.reference import PAGE, with_reference
from tests.cli.running import document_of
from tests.repository.write_requests import write_request
from tests.table_factory import entries, new_table

VERSION = re.search(r"A version is an object with (.*?)\.\n", PAGE.read_text(), re.DOTALL)
COMMIT = re.search(r"A commit of a repository is an object with (.*?)\.\n", PAGE.read_text(), re.DOTALL)
ALL_ROWS = re.findall(r"^\| `([^`]+)` \| (an object|a list) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
ROWS = [row for row in ALL_ROWS if row[0].startswith("table ")]
REPOSITORY_ROWS = [row for row in ALL_ROWS if row not in ROWS]


def names(text: str) -> set[str]:
    """The keys in a text."""
    return set(re.findall(r"`([a-z_]+)`", text))


def test_the_page_says_what_the_help_says() -> None:
    """`python -m tests.cli.reference` updates the page."""
    page = PAGE.read_text()
    assert with_reference(page) == page


def test_every_document_is_described() -> None:
    """Each command has at least one described document."""
    commands = [command for commands in TOPICS.values() for command in commands]
    assert {command.name for command in commands} == {call.split()[0] for call, _, _ in ALL_ROWS}
    (group,) = [command for command in commands if isinstance(command, click.Group)]
    assert set(group.commands) == {call.split()[1] for call, _, _ in ROWS}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """A table for all calls of the page, in their order."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "cold").mkdir()
    made = new_table(folder, entries("a", 1), entries("a", 2))
    made.maintenance.add_base("archive", folder / "cool", message="a place for more")
    for name in ("run/1", "work"):
        made.branches.create(name)
        made.append(entries(name, 1), branch=name)
    return made


@pytest.mark.parametrize("call,kind,keys", ROWS, ids=[call for call, _, _ in ROWS])
def test_a_document_is_as_described(table: LanceTable, call: str, kind: str, keys: str) -> None:
    """The document has exactly the described keys."""
    assert VERSION is not None
    group, name, *arguments = shlex.split(call)
    here = [str(Path(table.uri).parent / part[3:]) if part.startswith("../") else part for part in arguments]
    document = document_of(group, name, table.uri, *here)
    assert kind == ("a list" if isinstance(document, list) else "an object")
    expected = names(keys) | (names(VERSION[1]) if re.match("a version|of versions", keys) else set())
    for each in document if isinstance(document, list) else [document]:
        assert expected == set(each)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tables, for all calls of the page about a repository, in their order."""
    folder = tmp_path_factory.mktemp("lake")
    for name in ("orders", "old"):
        LanceTable.create(folder / f"{name}.lance", pa.schema([("id", pa.int64())]))
    return folder


@pytest.mark.parametrize("call,kind,keys", REPOSITORY_ROWS, ids=[call for call, _, _ in REPOSITORY_ROWS])
def test_a_document_of_a_repository_is_as_described(lake: Path, call: str, kind: str, keys: str) -> None:
    """The document has exactly the described keys, and each command has something to do."""
    assert COMMIT is not None
    name, *arguments = shlex.split(call)
    if "run/1" in arguments and name == "publish":
        rows = pa.table({"id": [1]}, schema=pa.schema([("id", pa.int64())]))
        LanceRepository.open(lake).table("orders").append(rows, branch="run/1")
    if name == "candidates":
        repository = LanceRepository.open(lake)
        repository.record.put(repository.table_id("orders"), write_request("1"))
    if name == "move-table":
        (lake / "old.lance").rename(lake / "new.lance")
    document = document_of(name, str(lake), *arguments)
    assert kind == ("a list" if isinstance(document, list) else "an object")
    expected = names(keys) | (names(COMMIT[1]) if re.match("a commit|of commits", keys) else set())
    for each in document if isinstance(document, list) else [document]:
        assert expected == set(each)
