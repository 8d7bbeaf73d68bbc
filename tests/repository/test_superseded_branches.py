"""Which waiting branches count as superseded, by what they and later commits of main say that they replaced."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.repository.repository_status import superseded_branches
from tests.table_factory import context_of, entries, new_table

Write = Callable[[LanceTable, str], object]


def overwrite(table: LanceTable, branch: str) -> object:
    """Replace all rows."""
    return table.overwrite(entries("a", 1), branch=branch)


def replace(predicate: str, *partitions: str) -> Write:
    """Replace the rows of a predicate, and say of which partitions they are."""

    def write(table: LanceTable, branch: str) -> object:
        return table.replace_where(f"key = '{predicate}'", entries(predicate, 1), branch=branch, partitions=partitions)

    return write


def append(table: LanceTable, branch: str) -> object:
    """Append rows."""
    return table.append(entries("a", 1), branch=branch)


@pytest.mark.parametrize(
    "waiting, later, superseded",
    [
        (overwrite, overwrite, True),
        (replace("a", "a"), overwrite, True),
        (replace("a", "a"), replace("a", "a"), True),
        (replace("a", "a"), replace("b", "b"), False),
        (overwrite, replace("a", "a"), False),
        (append, overwrite, False),
        (replace("a"), replace("b"), False),
        (overwrite, replace("a"), False),
    ],
)
def test_a_branch_is_superseded_when_all_that_it_replaced_was_replaced_since(
    tmp_path: Path, waiting: Write, later: Write, *, superseded: bool
) -> None:
    """A replacement of other rows, or one whose predicate says nothing about partitions, supersedes nothing."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 1))
    table.branches.create("run/1")
    waiting(table, "run/1")
    later(table, "main")
    expected = {"run/1": str(table.head())} if superseded else {}
    assert expected == superseded_branches(context_of(table), ["run/1"])


def test_a_branch_is_superseded_however_many_commits_followed(tmp_path: Path) -> None:
    """The replacement is found behind more than a hundred newer commits."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/1")
    overwrite(table, "run/1")
    overwrite(table, "main")
    replacement = str(table.head())
    for number in range(101):
        table.config.set({"note": str(number)})
    assert {"run/1": replacement} == superseded_branches(context_of(table), ["run/1"])
