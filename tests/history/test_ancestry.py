"""Parents: `~` and `^` on histories with forks, merges, gaps, and deleted and recreated branches."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from tests.history.rewritten_manifests import manifest_file, skip_to, watched
from tests.table_factory import as_pylance, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A branch of a branch of main, each with its own versions, the inner one merged into main.

    main@1 - main@2 - main@3 ----------------- main@4 - main@5
                  outer@2 - outer@3           /
                                  inner@3 - inner@4
    """
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("outer", "main@2")
    made.append(entries("b", 1))
    made.append(entries("c", 1), branch="outer")
    made.branches.create("inner", "outer@3")
    made.append(entries("d", 1), branch="inner")
    made.merge("inner")
    made.append(entries("e", 1))
    return made


@pytest.mark.parametrize(
    "expression,version",
    [
        ("main~0", "main@5"),
        ("main^0", "main@5"),
        ("main~", "main@4"),
        ("main^", "main@4"),
        ("main~~", "main@3"),
        ("main^^", "main@3"),
        ("main~2", "main@3"),
        ("main@4^1", "main@3"),
        ("main~^2", "inner@4"),
        ("main@4^2", "inner@4"),
        ("main@4^2~", "outer@3"),
        ("main@4^2~1^", "main@2"),
        ("main@4^2~3", "main@1"),
        ("main@4~0^2^0", "inner@4"),
        ("inner~1", "outer@3"),
        ("inner~2", "main@2"),
        ("inner~3", "main@1"),
        ("inner@3", "inner@3"),
        ("inner@3~0", "inner@3"),
        ("inner@3^0", "inner@3"),
        ("inner@3~1", "main@2"),
        ("outer@2^", "main@1"),
    ],
)
def test_steps_lead_back(table: LanceTable, expression: str, version: str) -> None:
    """The first version of a branch counts as its fork point, so it needs no step."""
    assert version == str(table.at(expression))


def test_steps_begin_at_any_name(table: LanceTable) -> None:
    """A tag, a commit id or a time can be the base."""
    table.tags.create("v1", "main@4")
    for base in ("v1", "tag:v1", table.at("v1").id, table.at("v1").id[:8], "main@4", "branch:main~1"):
        assert "inner@4" == str(table.at(f"{base}^2"))
    assert "main@3" == str(table.at("main@{now}~2"))


@pytest.mark.parametrize(
    "expression,problem",
    [
        (
            "main~5",
            "there is no 'main~5' after 4 of 5 steps: main@1 is the first version of .*; nothing comes before it",
        ),
        ("main~9999999999", "after 4 of 9999999999 steps: main@1 is the first version of"),
        ("main@1^", "there is no 'main@1\\^': main@1 is the first version of"),
        ("inner~4", "there is no 'inner~4' after 3 of 4 steps: main@1 is the first"),
    ],
)
def test_history_ends_at_the_first_version(table: LanceTable, expression: str, problem: str) -> None:
    """The error has the first version and the number of steps to it."""
    with pytest.raises(VersionNotFoundError, match=problem):
        table.at(expression)


@pytest.mark.parametrize(
    "expression,has",
    [
        ("main^2", "main@5 of .* has one parent, so it has no '\\^2'"),
        ("main@4^3", "main@4 of .* has 2 parents, so it has no '\\^3'"),
        ("main@1^2", "main@1 of .* has no parent, so it has no '\\^2'"),
        ("outer@2^2", "main@2 of .* has one parent"),
    ],
)
def test_a_parent_there_is_not_is_an_error_that_counts_them(table: LanceTable, expression: str, has: str) -> None:
    """No other version is taken instead."""
    with pytest.raises(InvalidInputError, match=has):
        table.at(expression)


def test_a_history_that_was_cut_says_so(table: LanceTable) -> None:
    """The oldest remaining version is not taken for the parent, and versions still name their parents."""
    table.tags.create("kept", "main@2")
    as_pylance(table).cleanup_old_versions(retain_versions=2, error_if_tagged_old_versions=False)
    again = LanceTable.open(table.uri)
    assert ["main@5", "main@4", "main@2"] == [str(version) for version in again.log()]
    assert [False, True, True] == [version.cut for version in again.log()]
    assert ("main@3", "inner@4") == again.at("main@4").parents
    assert ("main@1",) == again.at("kept").parents
    assert "inner@4" == str(again.at("main@4^2"))
    left = "cut: the version it was made from was cleaned up; the newest version before it that is left is main@2"
    with pytest.raises(
        VersionNotFoundError, match=f"there is no 'main~3' after 1 of 3 steps: .* of main@4 of .* is {left}"
    ):
        again.at("main~3")
    with pytest.raises(VersionNotFoundError):
        again.at("kept~")


def test_a_fork_that_was_cleaned_up_is_stood_in_for_by_the_branch(table: LanceTable) -> None:
    """The branch's first version repeats the fork point, and earlier versions are gone."""
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    again = LanceTable.open(table.uri)
    assert ["outer@3", "outer@2"] == [str(again.at("inner~1")), str(again.at("inner~2"))]
    assert (("main@2",), True) == (again.at("outer@2").parents, again.at("outer@2").cut)
    for expression in ("inner~3", "outer@2^2"):
        with pytest.raises(VersionNotFoundError):
            again.at(expression)


def test_a_merged_branch_that_is_gone_is_not_replaced_by_its_namesake(table: LanceTable) -> None:
    """Another branch of the same name has other versions under the same numbers."""
    table.branches.delete("inner")
    with pytest.raises(VersionNotFoundError):
        table.at("main~1^2")
    table.branches.create("inner", "main@3")
    table.append(entries("x", 1), branch="inner")
    with pytest.raises(VersionNotFoundError):
        table.at("main~1^2")
    assert ("main@3", "inner@4") == table.at("main@4").parents
    assert ["main@5", "main@4", "main@3", "main@2", "main@1"] == [str(v) for v in table.log(first_parent=False)]


def test_numbers_left_out_by_a_merge_are_no_gap(table: LanceTable) -> None:
    """A branch that merges a newer version of another branch continues to count after it."""
    skip_to(table, "outer", 6, ("main@5", "main"))
    version = table.at("outer@6")
    assert (("outer@3", "main@5"), False) == (version.parents, version.cut)
    assert ["outer@3", "main@5"] == [str(table.at("outer~1")), str(table.at("outer^2"))]
    skip_to(table, "outer", 9, None)
    version = table.at("outer@9")
    assert (("outer@8",), True) == (version.parents, version.cut)


def test_steps_on_a_branch_take_no_manifest(table: LanceTable) -> None:
    """Names suffice for the steps, and only the resulting version is read."""
    again, read = watched(table)
    assert "main@1" == str(again.at("inner~3"))
    assert [manifest_file(table, "main", 1).name] == [key.rpartition("/")[2] for key in read]


def test_a_merged_branch_is_found_under_its_new_name(table: LanceTable) -> None:
    """The branch keeps its id."""
    table.branches.rename("inner", "innermost")
    assert "innermost@4" == str(table.at("main~^2"))
    assert "outer@3" == str(table.at("main~^2~"))
    shown = [str(version) for version in table.log("main@4", first_parent=False)]
    assert {"innermost@4", "outer@3"} < set(shown)


def test_a_branch_of_a_name_used_before_begins_where_it_begins(table: LanceTable) -> None:
    """Its first version has a higher number than its fork point, and still counts as that version."""
    table.append(entries("x", 1), branch="inner")
    table.branches.delete("inner")
    table.branches.create("inner", "main@2")
    table.append(entries("y", 1), branch="inner")
    first, second = table.branches.version_numbers("inner")
    assert first > 2
    assert ["main@2", "main@1"] == [str(table.at("inner~1")), str(table.at("inner~2"))]
    assert "main@1" == str(table.at(f"inner@{first}~"))
    assert [f"inner@{second}", "main@2", "main@1"] == [str(v) for v in table.log("inner")]
    assert [("main@2",), False] == [table.at(f"inner@{first}").parents, table.at(f"inner@{first}").cut]
    assert [f"inner@{second}"] == [str(v) for v in table.log("inner", after="main")]


def test_a_branch_forked_from_itself_is_damage(table: LanceTable) -> None:
    """A walk ends with an error instead of not ending."""
    path = Path(table.uri, "_refs/branches/outer.json")
    path.write_text(path.read_text().replace('"parentBranch": null', '"parentBranch": "inner"'))
    with pytest.raises(CorruptFileError, match="forked from itself"):
        table.at("inner~9999999999")
    with pytest.raises(CorruptFileError, match="forked from itself"):
        table.log("inner")
