"""`lance-dagster table`: the commands of one table beside those of a lake."""

from pathlib import Path

import pytest

from lance_dagster import LanceRepository
from lance_dagster.cli.table_group import TABLE_TOPICS
from tests.cli.running import lines_of, run
from tests.table_factory import SCHEMA


@pytest.fixture
def lake(tmp_path: Path) -> LanceRepository:
    """A lake with one table."""
    repository = LanceRepository.create(tmp_path / "lake")
    repository.create_table("shop/orders", SCHEMA)
    repository.commit("start")
    return repository


def test_the_help_lists_each_command_under_its_topic() -> None:
    """The help of the group lists each command once."""
    lines = lines_of("table", "--help")
    for topic, commands in TABLE_TOPICS.items():
        place = lines.index(f"{topic}:")
        section = lines[place + 1 : (lines.index("", place) if "" in lines[place:] else len(lines))]
        listed = [line.split()[0] for line in section if line.startswith("  ") and line[2] != " "]
        assert [command.name for command in commands] == listed


def test_a_lake_is_no_table_and_a_table_is_no_lake(lake: LanceRepository) -> None:
    """Either mistake is one line that names the command which is meant, and exit code 2."""
    uri = lake.table("shop/orders").uri
    assert lines_of("table", "log", uri)
    assert lines_of("log", lake.root)
    refused = run("table", "log", lake.root)
    assert (2, 1) == (refused.exit_code, refused.stderr.count("\n"))
    assert f"{lake.root} is a lake" in refused.stderr
    refused = run("log", uri)
    assert (2, 1) == (refused.exit_code, refused.stderr.count("\n"))
    assert f"{uri} is a table" in refused.stderr
