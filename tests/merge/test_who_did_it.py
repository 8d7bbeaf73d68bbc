"""Conflicts name the versions, committers and runs that made the change, and no others."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import Conflict, LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.format.run_properties import RUN_ID
from tests.table_factory import as_pylance, entries, new_table

VERSION = re.compile(r"\((\w+@\d+)\)")


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Three rows, and a branch `run`; both sides changed other things before what a test does."""
    made = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    made.branches.create("run")
    noise(made)
    return made


def noise(table: LanceTable) -> None:
    """Change settings and a column on both sides, none of which is in conflict."""
    for branch in ("run", "main"):
        table.config.set({f"noise of {branch}": str(table.head(branch))}, branch=branch)
        table.columns.set_nullable("value", nullable=False, branch=branch)
        table.columns.set_nullable("value", nullable=True, branch=branch)


def told(table: LanceTable, unit: str, kind: str) -> Conflict:
    """Return the conflict about a unit."""
    (found,) = (each for each in table.preview_merge("run").conflicts if (each.unit, each.kind) == (unit, kind))
    return found


def named(table: LanceTable, unit: str, kind: str = "column") -> tuple[Sequence[str], Sequence[str]]:
    """Return the versions that the conflict about a unit names on both sides."""
    found = told(table, unit, kind)
    return VERSION.findall(found.source), VERSION.findall(found.dest)


def test_a_renamed_column(table: LanceTable) -> None:
    """Casts, updates and settings of the side did not give the column its name."""
    by = [str(table.columns.rename("key", name, branch=on)) for name, on in (("k", "run"), ("kk", "main"))]
    noise(table)
    assert ([by[0]], [by[1]]) == named(table, "column key")
    conflict = told(table, "column key", "column")
    assert ("made its name 'k'", "made its name 'kk'") == (conflict.source[-17:], conflict.dest[-18:])


def test_a_cast_column(table: LanceTable) -> None:
    """The rows of the other side are those that were written without the cast."""
    cast = table.columns.cast("value", pa.int32(), branch="run")
    noise(table)
    added = table.append(pa.table({"key": ["c"], "value": pa.array([9], pa.int64())}))
    source, dest = named(table, "column value")
    assert ([str(cast)], [str(added)]) == (source, dest)


@pytest.mark.parametrize("dropper", ["run", "main"])
def test_a_dropped_column(table: LanceTable, dropper: str) -> None:
    """One side dropped the column, the other one renamed it."""
    other = "main" if dropper == "run" else "run"
    dropped = str(table.columns.drop(["key"], branch=dropper))
    renamed = str(table.columns.rename("key", "k", branch=other))
    noise(table)
    wanted = ([dropped], [renamed])
    assert (wanted if dropper == "run" else wanted[::-1]) == named(table, "column key")


def test_columns_of_one_name(table: LanceTable) -> None:
    """Both sides added a column, with different values; one side gave the name to a renamed column."""
    added = [
        str(table.columns.add({"more": value}, branch=on)) for value, on in (("value + 1", "run"), ("value", "main"))
    ]
    named_k = str(table.columns.rename("key", "k", branch="run")), str(table.columns.add({"k": "'x'"}))
    noise(table)
    assert ([added[0]], [added[1]]) == named(table, "column more")
    assert ([named_k[0]], [named_k[1]]) == named(table, "column k", "schema")


def test_a_setting(table: LanceTable) -> None:
    """The version that set the key is named with its run, and not the head."""
    by_run = table.config.set({"owner": "ann"}, branch="run", properties={RUN_ID: "r1"})
    by_main = table.config.set({"owner": "bob"})
    noise(table)
    assert ([str(by_run)], [str(by_main)]) == named(table, "config key 'owner'", "config")
    assert f"run r1 ({by_run}) set it" == told(table, "config key 'owner'", "config").source


def test_the_metadata_of_a_column(table: LanceTable) -> None:
    """Both sides described the column differently."""
    by = [str(table.columns.set_metadata("key", {"unit": on}, branch=on)) for on in ("run", "main")]
    noise(table)
    assert ([by[0]], [by[1]]) == named(table, "metadata of column key")


def test_rows_of_a_replaced_partition(table: LanceTable) -> None:
    """Only the version that put rows into the scope is named, and no head beside it."""
    replaced = str(table.replace_where("key = 'a'", entries("a", 7), branch="run", partitions=["a"]))
    as_pylance(table).insert(entries("a", 8))
    added = str(table.head())
    as_pylance(table).insert(entries("c", 8))
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    (conflict,) = (each for each in caught.value.conflicts if each.kind == "partition")
    assert f"replaced it in {replaced}" in str(conflict)
    assert [added] == VERSION.findall(str(conflict))
    assert " on main@" not in str(conflict)


def test_rows_that_both_changed(table: LanceTable) -> None:
    """Versions that changed other rows of the fragment are not named; those that changed the row again are."""
    table.update({"value": "20"}, where="value = 2", branch="run")
    first = str(table.update({"value": "10"}, where="value = 1", branch="run"))
    table.maintenance.compact(branch="run")
    second = str(table.update({"value": "11"}, where="value = 10", branch="run"))
    deleted = str(table.delete("value = 1"))
    (conflict,) = (each for each in table.preview_merge("run").conflicts if each.kind == "rows")
    assert ([first, second], [deleted]) == (VERSION.findall(conflict.source), VERSION.findall(conflict.dest))
