"""Names of files: what each means, and which ones the package does not know."""

import pytest
from hypothesis import given, strategies as st

from lance_dagster.format import layout
from lance_dagster.format.model import DeletionFile

NAMES = ["run/4f2a", "dev", "a/b/c", "v1.2", "_private", "prüfung/名前"]


@given(st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=0, max_value=2**64 - 1))
def test_newer_versions_come_first_in_a_listing(one: int, other: int) -> None:
    """Higher numbers have names that sort first, and a name contains its number."""
    assert (one < other) == (layout.manifest_name(one) > layout.manifest_name(other))
    assert one == layout.parse_manifest_name(layout.manifest_name(one))


@pytest.mark.parametrize(
    "name", [".tmp1", "latest_version_hint.json", "1.manifest", "d18446744073709551614.manifest", "x.manifest"]
)
def test_other_files_are_no_versions(name: str) -> None:
    """Temporary files, hints, detached versions and names of the first scheme have no number."""
    assert layout.parse_manifest_name(name) is None


def test_names_of_the_first_scheme_are_told_apart() -> None:
    """`1.manifest` has the first naming scheme, twenty digits the second."""
    names = ["10.manifest", layout.manifest_name(7), "9.manifest", "latest_version_hint.json", ".tmp1", "d1.manifest"]
    assert ([7], [10, 9]) == layout.parse_manifest_names(names)
    assert "12.manifest" == layout.manifest_name_v1(12)


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_file_tells_its_branch(name: str) -> None:
    """Slashes and letters that are not ASCII are encoded once, and decoded again."""
    path = layout.branch_file(name)
    assert path.startswith("_refs/branches/")
    assert 2 == path.count("/")
    assert name == layout.parse_branch_file_name(path.rpartition("/")[2])


def test_other_files_are_no_refs() -> None:
    """Temporary files beside the refs are not taken for refs."""
    assert layout.parse_branch_file_name("run.json.tmp") is None
    assert layout.parse_tag_file_name(".tmp123") is None
    assert "v1" == layout.parse_tag_file_name("v1.json")
    assert layout.parse_branch_fence("run@1") is None


@pytest.mark.parametrize("kind,suffix", [(0, "arrow"), (1, "bin")])
def test_a_deletion_file_is_named_after_its_fragment(kind: int, suffix: str) -> None:
    """The name has fragment, read version and id, so a new fragment id needs a new file."""
    deletion = DeletionFile(kind=kind, read_version=4, id=2**64 - 1, deleted_rows=1)
    assert f"_deletions/7-4-18446744073709551615.{suffix}" == layout.deletion_path(7, deletion)
