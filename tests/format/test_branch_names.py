"""The rules for names of branches and tags, with one case for each rule."""

from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidRefNameError
from lance_dagster.format import layout
from lance_dagster.history.refs.ref_names import check_branch_name, check_tag_name
from tests.table_factory import entries

GOOD = [
    "run/4f2a",
    "dev",
    "a/b/c",
    "v1.2",
    "x-1",
    "_private",
    "2026-01",
    "0.1",
    "A",
    "mainly",
    "a/treehouse",
    "cafe",
    "run/deadbeef",
    "deadbeef-1",
]
RULES = {
    "": "it cannot be empty",
    "a\\b": "it cannot contain '\\'",
    "a..b": "it cannot contain '..'",
    "a.lock": "no segment can end with '.lock'",
    "a.": "no segment can end with '.', or 'a...b' could be read in two ways",
    ".hidden": "no segment can start with '.', as hidden and temporary files do",
    "-x": "it cannot start with '-', which would read as an option of a command",
    "17": "it cannot be only digits, which would read as a version number",
    "deadbeef": "it cannot be only hexadecimal digits, 8 or more of them, which would read as a commit id",
    "0A" * 32: "it cannot be only hexadecimal digits, 8 or more of them, which would read as a commit id",
    "g" * 201: "it cannot be longer than 200 characters, of which '/' counts as 3",
    "main": "'main' is reserved for the main branch",
    "HEAD": "no segment can be 'HEAD', which names a version",
    "prüfung": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'prüfung'",
    "名前": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike '名前'",
    "٣": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike '٣'",
    "a\n": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'a\\n'",
    **{
        name: f"segments can contain only ASCII letters, digits, '.', '-' and '_', unlike {name!r}"
        for name in ("a b", "a@1", "a%2Fb", "a~1", "a^", "a:b", "a*", "a{b}")
    },
    **{
        name: f"no segment can be {name!r}, which names a folder of the table"
        for name in ("data", "_versions", "_transactions", "_deletions", "_indices", "_refs", "tree", "_blobs", "_fri")
    },
}
BRANCH_RULES = {
    "/a": "it cannot start or end with '/'",
    "a/": "it cannot start or end with '/'",
    "a//b": "it cannot contain '//'",
    "a/.b": "no segment can start with '.', as hidden and temporary files do",
    "a./b": "no segment can end with '.', or 'a...b' could be read in two ways",
    "a.lock/b": "no segment can end with '.lock'",
    "a/_versions": "no segment can be '_versions', which names a folder of the table",
    "a/_deletions/b": "no segment can be '_deletions', which names a folder of the table",
    "a/main": "no segment can be 'main', which names a version",
    "1/2": "it cannot be only digits, which would read as a version number",
    "/".join("a" * 51): "it cannot be longer than 200 characters, of which '/' counts as 3",
}
TAG_RULES = {"a/b": "a tag name cannot contain '/'", "/": "a tag name cannot contain '/'"}
# Names that pylance accepts and the package refuses.
TAKEN_ELSEWHERE = [
    "a.", ".hidden", "-x", "17", "deadbeef", "HEAD", "data", "_versions", "tree", "a/_versions", "prüfung", "名前/x",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_pylance_takes_the_names_that_pass(tmp_path: Path, name: str) -> None:
    """Pylance accepts a name that follows the package's rules, and writes the file that the package reads."""
    check_branch_name(name)
    dataset = lance.write_dataset(entries("a", 1), str(tmp_path / "table"))
    dataset.create_branch(name)
    assert (tmp_path / "table" / layout.branch_file(name)).is_file()
    assert (tmp_path / "table" / layout.branch_root(name) / layout.VERSIONS).is_dir()
    if "/" not in name:
        check_tag_name(name)
        dataset.tags.create(name, 1)
        assert (tmp_path / "table" / layout.tag_file(name)).is_file()


@pytest.mark.parametrize("name", RULES | BRANCH_RULES, ids=lambda name: name[:9] or "empty")
def test_a_branch_name_breaks_one_rule(name: str) -> None:
    """The error has the name and the rule."""
    with pytest.raises(InvalidRefNameError) as caught:
        check_branch_name(name)
    rule = (RULES | BRANCH_RULES)[name]
    assert ("branch", name, rule) == (caught.value.kind, caught.value.name, caught.value.rule)
    assert f"{name!r} cannot name a branch: {rule}" == str(caught.value)


@pytest.mark.parametrize("name", RULES | TAG_RULES, ids=lambda name: name[:9] or "empty")
def test_a_tag_name_breaks_one_rule(name: str) -> None:
    """Tags have the rules of branches, and must not contain a slash."""
    with pytest.raises(InvalidRefNameError) as caught:
        check_tag_name(name)
    assert ("tag", (RULES | TAG_RULES)[name]) == (caught.value.kind, caught.value.rule)


def test_the_longest_names_have_files(tmp_path: Path) -> None:
    """Each valid name gives a valid file name, with encoded slashes."""
    for name in ("g" * 200, "/".join("a" * 50)):
        check_branch_name(name)
        file = tmp_path / layout.branch_file(name).rpartition("/")[2]
        file.write_bytes(b"")
        fence = tmp_path / layout.branch_fence_file(name, 10**6, 2 * 10**9, "").rpartition("/")[2]
        fence.write_bytes(b"")
        assert name == layout.parse_branch_file_name(file.name)
        assert (name, 10**6, 2 * 10**9, "") == layout.parse_branch_fence(fence.name)


@pytest.mark.parametrize("name", TAKEN_ELSEWHERE)
def test_names_that_pylance_gave_are_read_and_deleted(tmp_path: Path, name: str) -> None:
    """The package lists, reads, writes and deletes branches and tags with such names."""
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(entries("a", 1), uri, enable_stable_row_ids=True)
    dataset.create_branch(name).insert(entries("b", 2))
    table = LanceTable.open(uri)
    with pytest.raises(InvalidRefNameError):
        table.branches.create(name)
    assert [name] == list(table.branches.list())
    assert 2 == table.count_rows(f"branch:{name}")
    assert f"{name}@3" == str(table.append(entries("c", 3), branch=name))
    table.branches.delete(name)
    assert [] == [*table.branches.list(), *dataset.branches.list()]
    if "/" not in name and name[0] != "." and name[-1] != ".":
        dataset.tags.create(name, 1)
        assert "main@1" == table.tags.list()[name].ref
        assert 1 == table.count_rows(f"tag:{name}")
        table.tags.delete(name)
        assert [] == [*table.tags.list(), *dataset.tags.list()]
