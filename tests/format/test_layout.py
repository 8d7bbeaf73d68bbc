"""Names of files, and the rules for names of branches and tags, each rule one case."""

from pathlib import Path

import lance
import pytest
from hypothesis import given, strategies as st

from lance_dagster.errors import InvalidRefNameError
from lance_dagster.format import layout
from lance_dagster.format.model import DeletionFile
from tests.ledger import entries

GOOD = ["run/4f2a", "dev", "a/b/c", "v1.2", "x-1", "_private", "2026-01", "0.1", "A"]
RULES = {
    "": "it cannot be empty",
    "a\\b": "it cannot contain '\\'",
    "a..b": "it cannot contain '..'",
    "a.lock": "it cannot end with '.lock'",
    "a.": "it cannot end with '.'",
    "17": "it cannot be only digits, which would read as a version number",
    "a" * 201: "it cannot be longer than 200 characters",
    "prüfung": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'prüfung'",
    "a b": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'a b'",
    "a@1": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'a@1'",
    "a%2Fb": "segments can contain only ASCII letters, digits, '.', '-' and '_', unlike 'a%2Fb'",
}
BRANCH_RULES = {
    "main": "'main' is reserved for the main branch",
    "/a": "it cannot start or end with '/'",
    "a/": "it cannot start or end with '/'",
    "a//b": "it cannot contain '//'",
    "a/_versions": "no segment can be '_versions', which names a folder of the table",
    "data": "no segment can be 'data', which names a folder of the table",
    "1/2": "it cannot be only digits, which would read as a version number",
}
TAG_RULES = {"a/b": "a tag name cannot contain '/'", ".hidden": "it cannot start with '.'"}


@pytest.mark.parametrize("name", GOOD)
def test_pylance_takes_the_names_that_pass(tmp_path: Path, name: str) -> None:
    """A name that keeps our rules is a branch for pylance too, and its file is the one we look for."""
    layout.check_branch_name(name)
    dataset = lance.write_dataset(entries("a", 1), str(tmp_path / "table"))
    dataset.create_branch(name)
    assert (tmp_path / "table" / layout.branch_file(name)).is_file()
    assert (tmp_path / "table" / layout.line_root(name) / layout.VERSIONS).is_dir()
    if "/" not in name:
        layout.check_tag_name(name)
        dataset.tags.create(name, 1)
        assert (tmp_path / "table" / layout.tag_file(name)).is_file()


@pytest.mark.parametrize("name", RULES | BRANCH_RULES, ids=lambda name: name[:9] or "empty")
def test_a_branch_name_breaks_one_rule(name: str) -> None:
    """The error names what was given and the rule."""
    with pytest.raises(InvalidRefNameError) as caught:
        layout.check_branch_name(name)
    rule = (RULES | BRANCH_RULES)[name]
    assert ("branch", name, rule) == (caught.value.kind, caught.value.name, caught.value.rule)
    assert f"{name!r} cannot name a branch: {rule}" == str(caught.value)


@pytest.mark.parametrize("name", RULES | TAG_RULES, ids=lambda name: name[:9] or "empty")
def test_a_tag_name_breaks_one_rule(name: str) -> None:
    """Tags have the rules of branches, no slash and no leading dot."""
    with pytest.raises(InvalidRefNameError) as caught:
        layout.check_tag_name(name)
    assert ("tag", (RULES | TAG_RULES)[name]) == (caught.value.kind, caught.value.rule)


@given(st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=0, max_value=2**64 - 1))
def test_newer_versions_come_first_in_a_listing(one: int, other: int) -> None:
    """Names sort against numbers, and a name tells its number."""
    assert (one < other) == (layout.manifest_name(one) > layout.manifest_name(other))
    assert one == layout.version_of(layout.manifest_name(one))


@pytest.mark.parametrize(
    "name", [".tmp1", "latest_version_hint.json", "1.manifest", "d18446744073709551614.manifest", "x.manifest"]
)
def test_other_files_are_no_versions(name: str) -> None:
    """Temporary files, hints, detached versions and names of the first scheme have no number."""
    assert layout.version_of(name) is None


def test_names_of_the_first_scheme_are_told_apart() -> None:
    """`1.manifest` is of the first scheme, twenty digits are of the second."""
    names = ["10.manifest", layout.manifest_name(7), "9.manifest", "latest_version_hint.json", ".tmp1", "d1.manifest"]
    assert ([7], [10, 9]) == layout.versions_in(names)
    assert "12.manifest" == layout.old_manifest_name(12)


@pytest.mark.parametrize("name", GOOD)
def test_a_branch_file_tells_its_branch(name: str) -> None:
    """The slash of a name is encoded once, and decoded again."""
    path = layout.branch_file(name)
    assert path.startswith("_refs/branches/")
    assert 2 == path.count("/")
    assert name == layout.name_of_branch_file(path.rpartition("/")[2])


def test_other_files_are_no_refs() -> None:
    """Temporary files beside the refs are not taken for one."""
    assert layout.name_of_branch_file("run.json.tmp") is None
    assert layout.name_of_tag_file(".tmp123") is None
    assert "v1" == layout.name_of_tag_file("v1.json")


@pytest.mark.parametrize("kind,suffix", [(0, "arrow"), (1, "bin")])
def test_a_deletion_file_is_named_after_its_fragment(kind: int, suffix: str) -> None:
    """Fragment, version read and id make the name, so a vector moves when its fragment gets another id."""
    deletion = DeletionFile(kind=kind, read_version=4, id=2**64 - 1, deleted_rows=1)
    assert f"_deletions/7-4-18446744073709551615.{suffix}" == layout.deletion_path(7, deletion)
