"""Versions that were written down stay what they are, whatever has the name of their branch by now."""

import pickle
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable, MergePreview
from lance_dagster.errors import InvalidInputError, VersionNotFoundError
from tests.backdating import free_names
from tests.table_factory import Rows, contents, entries, new_table

MERGED: Rows = [("a", 1), ("m", 3), ("r", 2)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """`main@4` merged `run@3`; the branch `other` is at `main@3`, just before."""
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("run")
    made.append(entries("r", 2), branch="run")
    made.append(entries("m", 3))
    made.merge("run")
    made.branches.create("other", "main@3")
    return made


def run_again(table: LanceTable) -> LanceTable:
    """Delete the branch and make another one of the name, which has other versions under the same numbers."""
    table.branches.delete("run")
    free_names(table)
    table.branches.create("run", "main@2")
    table.append(entries("stranger", 77), branch="run")
    assert "run@3" == str(table.head("run"))
    return LanceTable.open(table.uri)


# The second parent of a merge.


def test_a_merge_is_taken_back_against_a_branch_that_was_renamed(table: LanceTable) -> None:
    """The branch is found by its id: what `main` did besides goes, what the branch did stays."""
    table.branches.rename("run", "renamed")
    assert "renamed@3" == str(table.at("main^2"))
    table.revert("main@4", parent=2)
    assert [("a", 1), ("r", 2)] == contents(table)
    table.cherry_pick("main@4", "renamed", parent=2)
    assert MERGED == contents(table, "renamed")


def test_a_merge_is_not_taken_back_against_another_branch(table: LanceTable) -> None:
    """It has the name and the number, and rows that never were on `main`."""
    again = run_again(table)
    with pytest.raises(VersionNotFoundError):
        again.revert("main@4", parent=2)
    with pytest.raises(VersionNotFoundError):
        again.cherry_pick("main@4", "other", parent=2)
    assert (MERGED, "main@4", "other@3") == (contents(again), str(again.head()), str(again.head("other")))
    again.cherry_pick("main@4", "other", parent=1)
    assert MERGED == contents(again, "other")


def test_a_branch_that_is_being_renamed_is_not_looked_for_under_its_third_name(table: LanceTable) -> None:
    """That one has its id, but not yet its versions."""
    table.branches.rename("run", "second")
    table.branches.rename("second", "run")
    assert "run@3" == str(table.at("main^2"))
    table.branches.rename("run", "second")
    began = Path(table.uri, "_refs/branches/second.json").read_text()
    began = began.replace('"lance_dagster.state": "ready"', '"lance_dagster.state": "creating"')
    Path(table.uri, "_refs/branches/athird.json").write_text(began)
    table.revert("main@4", parent=2)
    assert [("a", 1), ("r", 2)] == contents(table)


def test_a_change_is_taken_back_once_though_its_branch_was_renamed_in_between(table: LanceTable) -> None:
    """Asked for again, there is nothing to do."""
    first = table.revert("main@4", parent=2)
    table.branches.rename("run", "renamed")
    assert first == table.revert("main@4", parent=2)


# A tag with the name of a branch, which pylance makes.


@pytest.fixture
def tagged(table: LanceTable) -> LanceTable:
    """`run` is a tag, too, and names another version."""
    table.append(entries("r", 4), branch="run")
    table.append(entries("r", 5), branch="run")
    lance.dataset(table.uri).tags.create("run", 1)
    with pytest.raises(InvalidInputError, match="a branch and a tag"):
        table.at("run@4")
    return table


def test_changes_of_a_branch_are_taken_over_and_back_though_a_tag_has_its_name(tagged: LanceTable) -> None:
    """Versions are read by branch and number, not as an expression somebody typed."""
    tagged.revert("branch:run~1", "run")
    assert [("a", 1), ("r", 2), ("r", 5)] == contents(tagged, "branch:run")
    tagged.revert("branch:run", "run")
    assert [("a", 1), ("r", 2), ("r", 4), ("r", 5)] == contents(tagged, "branch:run")
    tagged.cherry_pick("branch:run@5")
    assert sorted([*MERGED, ("r", 5)]) == contents(tagged)
    tagged.revert("main@4", parent=2)
    assert [("a", 1), ("r", 2), ("r", 5)] == contents(tagged)


def test_a_tag_is_rolled_back_to_a_branch_though_another_tag_has_its_name(tagged: LanceTable) -> None:
    """What was written down is a branch."""
    tagged.tags.create("production", "branch:run@4")
    tagged.tags.move("production", "main")
    assert "run@4" == tagged.tags.rollback("production").ref


# Pickled previews.


def copied(preview: MergePreview) -> MergePreview:
    """The preview as another process gets it."""
    found: MergePreview = pickle.loads(pickle.dumps(preview))  # noqa: S301  # bytes of this test
    return found


@pytest.fixture
def conflicting(table: LanceTable) -> LanceTable:
    """Both sides changed the row the branch put in."""
    table.update({"value": "20"}, where="key = 'r'", branch="run")
    table.update({"value": "21"}, where="key = 'r'")
    return table


def test_a_pickled_preview_finds_a_branch_that_was_renamed(conflicting: LanceTable) -> None:
    """And one whose name is a tag's, too."""
    preview = conflicting.preview_merge("run")
    expected = preview.conflicting_rows().read_all()
    assert 1 == expected.num_rows
    lance.dataset(conflicting.uri).tags.create("run", 1)
    assert expected == copied(preview).conflicting_rows().read_all()
    conflicting.tags.delete("run")
    conflicting.branches.rename("run", "renamed")
    assert expected == copied(copied(preview)).conflicting_rows().read_all()


def test_a_pickled_preview_does_not_read_another_branch(conflicting: LanceTable) -> None:
    """Which has other rows under the same numbers."""
    preview = conflicting.preview_merge("run")
    again = run_again(conflicting)
    again.append(entries("stranger", 78), branch="run")
    assert preview.source == str(again.head("run"))
    with pytest.raises(VersionNotFoundError):
        copied(preview).conflicting_rows()


# Rows of an earlier attempt.


def test_rows_of_an_earlier_attempt_are_replaced_though_a_tag_has_the_name_of_the_branch(tagged: LanceTable) -> None:
    """The version before is read by branch and number."""
    earlier = tagged.append(entries("r", 6), branch="run")
    tagged.append(entries("r", 7), branch="run", replaces=earlier)
    assert [("a", 1), ("r", 2), ("r", 4), ("r", 5), ("r", 7)] == contents(tagged, "branch:run")


def test_rows_of_another_branch_do_not_count_as_an_earlier_attempt(table: LanceTable) -> None:
    """Its version had the same name."""
    earlier = table.at("run@3")
    again = run_again(table)
    with pytest.raises(InvalidInputError):
        again.append(entries("r", 6), branch="run", replaces=earlier)
    assert [("a", 1), ("stranger", 77)] == contents(again, "run")
