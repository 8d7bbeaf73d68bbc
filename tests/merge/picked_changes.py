"""Changes that make two rows on a branch, to be picked."""

from collections.abc import Callable

from lance_dagster import LanceTable
from lance_dagster.history.versions import Version
from tests.table_factory import entries

BEFORE = [("a", 1), ("a", 2)]

PICKED = [*BEFORE, ("wed", 20), ("wed", 21)]


def appended(table: LanceTable) -> Version:
    """Append the rows."""
    return table.append(entries("wed", 20, 21), branch="run")


def replaced(table: LanceTable) -> Version:
    """Replace the rows of the key, of which there are none."""
    return table.replace_where("key = 'wed'", entries("wed", 20, 21), branch="run")


def partition_replaced(table: LanceTable) -> Version:
    """Replace the rows of the key as a partition."""
    return table.replace_where("key = 'wed'", entries("wed", 20, 21), branch="run", partitions=["wed"])


CHANGES: dict[str, Callable[[LanceTable], Version]] = {
    "append": appended,
    "replace": replaced,
    "partition": partition_replaced,
}
