"""The ways in which a table loses the branch of a run."""

import shutil
from pathlib import Path

import lance

from lance_dagster import LanceTable
from tests.backdating import free_names


def deleted(table: LanceTable, branch: str) -> None:
    """Delete the branch."""
    table.branches.delete(branch)


def deleted_a_day_ago(table: LanceTable, branch: str) -> None:
    """Delete the branch, of which nothing is remembered any more."""
    table.branches.delete(branch)
    free_names(table)


def deleted_by_pylance(table: LanceTable, branch: str) -> None:
    """Delete the branch by pylance."""
    lance.dataset(table.uri).branches.delete(branch)


def deleted_by_hand(table: LanceTable, branch: str) -> None:
    """Remove the files of the branch."""
    shutil.rmtree(Path(table.uri, "tree", branch))
    for file in Path(table.uri, "_refs", "branches").glob("*.json"):
        file.unlink()


def renamed(table: LanceTable, branch: str) -> None:
    """Give the branch another name."""
    table.branches.rename(branch, "aside")


def reset(table: LanceTable, branch: str) -> None:
    """Reset the branch to `main`."""
    table.branches.reset(branch)


def made_again(table: LanceTable, branch: str) -> None:
    """Delete the branch, and make it again from `main` a day later."""
    deleted_a_day_ago(table, branch)
    table.branches.create(branch)


def table_deleted(table: LanceTable, branch: str) -> None:  # noqa: ARG001 - like the other ways
    """Delete the table."""
    shutil.rmtree(table.uri)


def table_made_again(table: LanceTable, branch: str) -> None:  # noqa: ARG001 - like the other ways
    """Delete the table, and make it again without the branch."""
    schema = table.schema()
    shutil.rmtree(table.uri)
    LanceTable.create(table.uri, schema)


def table_made_again_with_the_branch(table: LanceTable, branch: str) -> None:
    """Delete the table, and make it again with an empty branch of the name."""
    table_made_again(table, branch)
    LanceTable.open(table.uri).branches.create(branch)


WAYS = (
    deleted,
    deleted_a_day_ago,
    deleted_by_pylance,
    deleted_by_hand,
    renamed,
    reset,
    made_again,
    table_deleted,
    table_made_again,
    table_made_again_with_the_branch,
)
