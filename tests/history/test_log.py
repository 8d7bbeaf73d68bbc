"""The history of a version."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.ledger import as_pylance, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A branch of a branch of main, each with versions of its own, the inner one merged into main."""
    made = new_table(tmp_path, entries("a", 1), entries("b", 1))
    made.create_branch("outer", "main@2")
    made.append(entries("c", 1), branch="outer")
    made.create_branch("inner", "outer@3")
    made.append(entries("d", 1), branch="inner", message="the inner rows", properties={"dagster/run_id": "r1"})
    made.merge("inner")
    return made


def test_the_first_parents_lead_across_forks(table: LanceTable) -> None:
    """A branch's history is its own versions, then those it was forked from."""
    assert ["inner@4", "inner@3", "outer@3", "outer@2", "main@2", "main@1"] == [str(v) for v in table.log("inner")]
    assert ["main@4", "main@3", "main@2", "main@1"] == [str(v) for v in table.log()]


@pytest.mark.parametrize("limit", range(8))
def test_a_limit_takes_the_newest(table: LanceTable, limit: int) -> None:
    """Across forks too."""
    assert table.log("inner")[:limit] == table.log("inner", limit=limit)


def test_a_version_says_where_it_comes_from(table: LanceTable) -> None:
    """Message, properties, writer, parents, rows."""
    version = table.at("inner")
    assert ("the inner rows", "r1", 3) == (version.message, version.properties["dagster/run_id"], version.rows)
    assert ("Append", ("inner@3",)) == (version.operation, version.parents)
    assert version.writer.startswith("lance_dagster ")
    assert ("main@3", "inner@4") == table.at("main").parents
    assert "merge inner@4 into main" == table.at("main").message
    assert () == table.at("main@1").parents


def test_versions_of_pylance_are_described_too(table: LanceTable) -> None:
    """Its writer and its operation are named as it names them."""
    as_pylance(table).delete("key = 'a'")
    version = table.at("main")
    assert ("Delete", "lance 14.0.2", "lance 14.0.2") == (version.operation, version.writer, version.committer)


def test_what_a_clean_up_removed_is_left_out(table: LanceTable) -> None:
    """Also when it is the version a branch was forked from."""
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    again = LanceTable.open(table.uri)
    assert ["main@4"] == [str(v) for v in again.log()]
    assert ["inner@4", "inner@3", "outer@3", "outer@2"] == [str(v) for v in again.log("inner")]


def test_versions_after_a_number_come_from_names_alone(table: LanceTable) -> None:
    """Ascending, of one branch."""
    assert [3, 4] == table.versions_after(2)
    assert [3, 4] == table.versions_after(0, "inner")
    assert [] == table.versions_after(4)
