"""The values from which the page draws."""

from pathlib import Path

from lance_dagster.page.drawn_values import drawn_values
from lance_dagster.page.lake_facts import lake_facts
from tests.page.lakes import RUN, add_candidate, lake_with, rows


def test_commits_tables_and_channels_are_places_in_lists(tmp_path: Path) -> None:
    """A commit names its tables, and a move of the channel its commit, by their places."""
    lake = lake_with(tmp_path / "lake", ["a", "b"], 2)
    values = drawn_values(lake_facts(lake, commits=10, preview_rows=0), "")
    assert ["b", "a"] == values["tables"]
    shown = [(message, changes) for _, _, _, message, _, changes in values["commits"]]
    assert [("create the repository", []), ("load 0", [[1, None, 2]]), ("load 1", [[0, None, 2]])] == shown
    ((name, moves),) = values["channels"]
    assert "production" == name
    assert [(1, [[1, None, 2]]), (2, [[0, None, 2]])] == [(move[5], move[7]) for move in moves]
    # Of both tables an empty version, and one with a row.
    assert [([1, 2], [0, 1])] * 2 == [(growth[::3], growth[2::3]) for growth in values["growth"]]


def test_a_candidate_begins_at_the_commit_that_its_branch_was_forked_after(tmp_path: Path) -> None:
    """It is drawn from the commit of `main` whose version its branch has, and not from the newest commit."""
    lake = lake_with(tmp_path / "lake", ["a"], 2)
    add_candidate(lake, "a", [1], {"unique_id": (False, "twice")})
    lake.table("a").append(rows(5))
    lake.commit("later")
    values = drawn_values(lake_facts(lake, commits=10, preview_rows=0), "")
    assert "load 1" == values["commits"][2][3]
    assert [[RUN, [RUN], True, [[0, 2, f"run/{RUN}@4"]]]] == values["waiting"]


def test_a_table_that_was_removed_is_still_named(tmp_path: Path) -> None:
    """It has a place behind the tables of the lake, and its last change is that it is gone."""
    lake = lake_with(tmp_path / "lake", ["a", "b"], 2)
    lake.remove_table("a")
    values = drawn_values(lake_facts(lake, commits=10, preview_rows=0), "")
    assert ["b", "a"] == values["tables"]
    assert [[1, 2, None]] == values["commits"][-1][5]


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    """The graph shows the first line, of at most 200 characters."""
    lake = lake_with(tmp_path / "lake", ["a"])
    lake.commit("x" * 300 + "\nmore")
    assert "x" * 197 + "..." == drawn_values(lake_facts(lake, commits=1, preview_rows=0), "")["commits"][0][3]
