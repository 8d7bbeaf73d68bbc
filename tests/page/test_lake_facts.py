"""What is read for the page of a lake."""

import shutil
from pathlib import Path

import pytest

from lance_dagster import LanceRepository
from lance_dagster.page.lake_facts import lake_facts
from tests.page.lakes import lake_with, rows


@pytest.mark.parametrize("limit", [1, 2, 99, 100, 101, 102, 200, 201, 202])
def test_the_log_is_read_in_pieces_without_a_gap(tmp_path: Path, limit: int) -> None:
    """Whatever the limit, the shown commits follow each other, and each has what it changed."""
    lake = LanceRepository.create(tmp_path / "lake")
    for number in range(200):
        lake.publications.drop_writes([], message=str(number))
        if number % 67 == 0:
            lake.create_table(f"t{number}", rows().schema)
            lake.commit(f"with t{number}")
    whole = lake.log()
    facts = lake_facts(lake, commits=limit, preview_rows=0)
    assert [commit.id for commit in whole[:limit]] == [commit.id for commit in facts.commits]
    assert facts.has_older is (len(whole) > limit)
    expected = {commit.message.removeprefix("with ") for commit in whole[:limit] if commit.message.startswith("with")}
    assert expected == {move.name for commit in facts.commits for move in commit.changes}


def test_one_table_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    """The page says what is wrong with it."""
    lake = lake_with(tmp_path / "lake", ["a", "b"], 2)
    shutil.rmtree(tmp_path / "lake" / "a.lance")
    tables = {table.name: table for table in lake_facts(lake, commits=5, preview_rows=0).tables}
    assert ("the table no longer exists",) == tables["a"].problems[:1]
    assert ((), 1, 2) == (tables["b"].problems, tables["b"].rows, tables["b"].versions)


def test_a_branch_without_a_record_waits_too(tmp_path: Path) -> None:
    """A person forked it by hand, so no candidate has it."""
    lake = lake_with(tmp_path / "lake", ["a"], 1)
    lake.fork("a", "fix").append(rows(4), branch="fix")
    facts = lake_facts(lake, commits=5, preview_rows=0)
    assert {"fix": ("a",)} == facts.branches
    assert ("fix",) == facts.tables[0].branches
