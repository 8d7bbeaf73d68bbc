"""Pylance's clean-up of a table with branches of the package deletes only files that no version needs."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from tests.table_factory import as_pylance, contents, entries, new_table

CLEAN_UPS: dict[str, dict[str, Any]] = {
    "default": {},
    "retain one version": {"retain_versions": 1},
    "everything old": {"older_than": timedelta(microseconds=1)},
    "everything old, unverified": {"older_than": timedelta(microseconds=1), "delete_unverified": True},
    "fork kept, unverified": {"older_than": timedelta(days=1), "delete_unverified": True},
    "retain one version, unverified": {"retain_versions": 1, "delete_unverified": True},
}
LATER: dict[str, Callable[[LanceTable], object]] = {
    "nothing": lambda _: None,
    "append": lambda table: table.append(entries("m", 1)),
    "overwrite": lambda table: table.overwrite(entries("m", 1)),
    "compaction": lambda table: (table.append(entries("m", 1)), as_pylance(table).optimize.compact_files()),
    "delete": lambda table: as_pylance(table).delete("true"),
}


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A run branch with appended, replaced and deleted rows, and a branch forked from it."""
    made = new_table(tmp_path, pa.concat_tables([entries("a", 1, 2), entries("b", 1)]), entries("c", 1))
    made.branches.create("run")
    made.append(entries("r", *range(100)), branch="run")
    made.replace_where("key = 'a' and value = 1 or key = 'r' and value = 100", entries("r", 100), branch="run")
    made.branches.create("inner", "run")
    made.replace_where("key IN ('c', 'i')", entries("i", 1), branch="inner")
    made.append(entries("r", 101), branch="run")
    return made


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("options", CLEAN_UPS)
def test_a_clean_up_of_main_loses_nothing_of_a_branch(table: LanceTable, options: str, later: str) -> None:
    """After a clean-up of main, branches keep their own rows and the rows that main has deleted since the fork."""
    before = {name: contents(table, name) for name in ("run", "inner")}
    LATER[later](table)
    main = contents(table)
    as_pylance(table).cleanup_old_versions(**CLEAN_UPS[options])
    again = LanceTable.open(table.uri)
    assert before == {name: contents(again, name) for name in before}
    assert main == contents(again)
    for name, rows in before.items():
        as_pylance(again, name).validate()
        assert rows == contents(again, name)


@pytest.mark.parametrize("name", ["run", "inner"])
def test_a_clean_up_of_a_branch_loses_nothing_of_the_others(table: LanceTable, name: str) -> None:
    """The clean-up keeps the branch's inherited rows, which lie in the root of the table, outside its own folder."""
    before = {ref: contents(table, ref) for ref in ("main", "run", "inner")}
    as_pylance(table, name).cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)
    again = LanceTable.open(table.uri)
    assert before == {ref: contents(again, ref) for ref in before}


def test_automatic_clean_up_loses_nothing_of_a_branch(table: LanceTable) -> None:
    """The automatic clean-up runs inside an ordinary commit of pylance."""
    before = contents(table, "run")
    dataset = as_pylance(table)
    dataset.update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0ms"})
    for value in range(4):
        dataset.insert(entries("m", value))
    assert table.branches.version_numbers()[0] > 1
    assert before == contents(LanceTable.open(table.uri), "run")


@pytest.mark.parametrize("options", CLEAN_UPS)
def test_rows_merged_before_a_clean_up_are_there_after_it(table: LanceTable, options: str) -> None:
    """The merged rows stay, both while the branches exist and after they are deleted."""
    table.append(entries("m", 1))
    table.merge("inner")
    rows = contents(table)
    as_pylance(table).cleanup_old_versions(**CLEAN_UPS[options])
    again = LanceTable.open(table.uri)
    assert rows == contents(again)
    again.branches.delete("inner")
    again.branches.delete("run")
    as_pylance(again).cleanup_old_versions(**CLEAN_UPS[options])
    again = LanceTable.open(table.uri)
    assert rows == contents(again)
    as_pylance(again).validate()


def test_what_a_deleted_branch_left_is_taken_away(table: LanceTable) -> None:
    """The clean-up deletes the files of deleted branches, which no version references any more."""
    table.branches.delete("inner")
    table.branches.delete("run")
    before = len(list((Path(table.uri) / "data").iterdir()))
    as_pylance(table).cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)
    assert before - 4 == len(list((Path(table.uri) / "data").iterdir()))
    assert [("a", 1), ("a", 2), ("b", 1), ("c", 1)] == contents(table)


def test_a_tagged_version_of_a_branch_is_kept(table: LanceTable) -> None:
    """A clean-up of a branch and one of main keep a tagged version of the branch."""
    table.tags.create("release", "run@4")
    rows = contents(table, "release")
    as_pylance(table, "run").cleanup_old_versions(
        older_than=timedelta(microseconds=1), error_if_tagged_old_versions=False, delete_unverified=True
    )
    as_pylance(table).cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)
    assert rows == contents(LanceTable.open(table.uri), "release")


def test_a_writer_that_is_behind_a_clean_up_loses_nothing(table: LanceTable) -> None:
    """A pylance handle opened before the clean-up finds the newest version through the hint that the package writes."""
    stale = lance.dataset(table.uri)
    for value in range(5):
        table.append(entries("m", value))
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    stale.insert(entries("s", 1))
    rows = contents(LanceTable.open(table.uri))
    assert ("s", 1) in rows
    assert 5 == sum(1 for key, _ in rows if key == "m")
