from dataclasses import replace

import pendulum

from example_project import history
from lance_dagster import Version


def version(number: int, *parents: str, **properties: str) -> Version:
    """A version of main with a message that contains its number."""
    return Version(
        id=f"{number:064x}",
        branch="main",
        number=number,
        committed_at=pendulum.datetime(2026, 1, 1),
        operation="Append",
        rows=number * 1000,
        message=None if parents[1:] else f"append {number}",
        committer="me",
        writer="lance 14.0.2",
        properties={f"dagster/{key}": value for key, value in properties.items()},
        parents=parents,
        transaction=str(number),
    )


def test_a_merge_is_drawn_with_the_branch_beside_it() -> None:
    """The second parent of a merge is drawn beside main with a short run id, and the tag at the merge."""
    versions = [version(3, "main@1", "run/0123456789abcdef@2"), version(1)]
    expected = [
        "● main@3       3,000 rows  merge of run/01234567@2  ◀ production",
        "├─╮",
        "│ ○ run/01234567@2",
        "├─╯",
        "● main@1       1,000 rows  created",
    ]
    assert expected == [line.plain for line in history.lines(versions, {"main@3": ["production"]}, {})]


def test_a_commit_of_a_run_is_told_from_one_from_outside() -> None:
    """Only a version that no Dagster run made is shown with its writer."""
    versions = [version(3, "main@2", run_id="r"), version(2, "main@1"), version(1)]
    drawn = [line.plain.partition("rows  ")[2] for line in history.lines(versions, {}, {})]
    assert ["append 3", "append 2 by lance 14.0.2", "created"] == drawn


def test_an_open_branch_is_drawn_above_its_fork() -> None:
    """A version on an open branch is shown with its rows, beside the versions of main."""
    waiting = replace(version(2, "main@1", run_id="r"), branch="run/0123456789")
    drawn = [line.plain for line in history.lines([version(2, "main@1"), version(1)], {}, {"main@1": [waiting]})]
    assert ["│ ○ run/01234567@2     2,000 rows  append 2", "├─╯"] == drawn[1:3]
    newest = next(iter(history.lines([version(1)], {}, {"main@1": [waiting]})))
    assert newest.plain.startswith("  ○ run/")


def test_other_names_stay_whole() -> None:
    """Only run ids are shortened."""
    assert ["main@7", "run/01234567@7", "run/short@1"] == [
        history.short(ref) for ref in ("main@7", "run/0123456789@7", "run/short@1")
    ]
