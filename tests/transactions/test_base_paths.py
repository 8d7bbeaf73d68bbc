"""Places of files and references to them, as pure rules on values."""

import pytest

from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.model import BasePath, DataFile, DeletionFile, Fragment, Fragments, Manifest
from lance_dagster.transactions.base_paths import (
    file_references,
    moved_base_paths,
    replace_base_paths,
    restored_base_paths,
    shallow_clone,
    shared_base_ids,
    with_base,
    with_root_base,
)
from tests.raising import raises

ROOT = BasePath(id=1, path="/t", name="root", is_dataset_root=True)
COLD = BasePath(id=2, path="/cold", name="cold")


def fragment(number: int, *bases: int | None, deletion: int | None = None, deleted: bool = False) -> Fragment:
    """A fragment with one file under each base, the first of 10 bytes, and optionally a deletion file."""
    files = [
        DataFile(
            path=f"{number}-{base}", fields=(base or 0,), column_indices=(0,), major=2, minor=2, size=10, base_id=base
        )
        for base in bases
    ]
    vector = DeletionFile(kind=0, read_version=3, id=7, deleted_rows=1, base_id=deletion) if deleted else None
    return Fragment(id=number, files=tuple(files), physical_rows=5, deletion=vector)


def manifest(*fragments: Fragment, bases: tuple[BasePath, ...] = (), branch: str | None = None) -> Manifest:
    """A version with these fragments and base paths."""
    return Manifest(version=9, fields=(), fragments=Fragments(fragments), base_paths=bases, branch=branch)


def test_files_are_listed_by_place() -> None:
    """The branch's own folder is a place too, and differs from a base path of the id 0."""
    zero = BasePath(id=0, path="/other", is_dataset_root=True)
    found = file_references(
        manifest(
            fragment(0, 0, 2, deleted=True),
            fragment(1, None, 1, deleted=True, deletion=1),
            bases=(zero, ROOT, COLD),
            branch="run",
        ),
        "/t/tree/run",
    )
    assert {
        "/other": ({"0-0": 10}, set()),
        "/cold": ({"0-2": 10}, set()),
        "/t/tree/run": ({"1-None": 10}, {"0-3-7.arrow"}),
        "/t": ({"1-1": 10}, {"1-3-7.arrow"}),
    } == {place.base.path: (place.data, place.deletions) for place in found}


def test_a_file_under_no_known_base_is_an_error() -> None:
    """The manifest is inconsistent."""
    with raises(CorruptFileError, path="/t/_versions/18446744073709551606.manifest"):
        file_references(manifest(fragment(0, 4), bases=(ROOT,)), "/t")


@pytest.mark.parametrize(
    "moves,path,expected",
    [
        ({"/old": "/new"}, "/old", "/new"),
        ({"/old": "/new"}, "/old/tree/run", "/new/tree/run"),
        ({"/old": "/new"}, "/older", None),
        ({"/old": "/old/new", "/old/new": "/old/new"}, "/old/new/tree/x", None),
        ({"/old": "/old/new", "/old/new": "/old/new"}, "/old/tree/x", "/old/new/tree/x"),
        ({"/t/old": "/t", "/t": "/t"}, "/t/old/tree/x", "/t/tree/x"),
        ({"/t/old": "/t", "/t": "/t"}, "/t/tree/old", None),
        ({}, "/old", None),
    ],
)
def test_a_base_follows_the_innermost_folder_that_moved(moves: dict[str, str], path: str, expected: str | None) -> None:
    """The innermost of nested folders decides."""
    changed = moved_base_paths([BasePath(id=3, path=path, name="x")], moves, {path: path})
    assert ([] if expected is None else [(3, expected, "x")]) == [(base.id, base.path, base.name) for base in changed]


def test_another_spelling_of_where_it_is_is_a_change() -> None:
    """Clean-up compares base paths as strings."""
    changed = moved_base_paths([BasePath(id=3, path="file:///t/")], {"/t": "/t"}, {"file:///t/": "/t"})
    assert ["/t"] == [base.path for base in changed]


def test_only_the_places_change() -> None:
    """Files keep their base ids."""
    before = manifest(fragment(0, 1, 2), bases=(ROOT, COLD))
    after = replace_base_paths(before, [BasePath(id=2, path="/ice", name="cold")])
    assert (("/t", "/ice"), before.fragments) == (tuple(base.path for base in after.base_paths), after.fragments)


def test_an_older_version_is_found_where_a_newer_one_says() -> None:
    """The old version gets the newer place if the base is the same."""
    older = (BasePath(id=2, path="/was", name="cold"), BasePath(id=3, path="/x", name="x"))
    newer = (COLD, BasePath(id=3, path="/y", name="another"))
    assert (COLD, older[1]) == restored_base_paths(older, newer)


def test_places_are_shared_by_path_and_kind() -> None:
    """Ids and names do not count, and the table's own folders are not shared."""
    source = manifest(bases=(ROOT, COLD, BasePath(id=3, path="/x"), BasePath(id=4, path="/t/tree/run")), branch="run")
    dest = manifest(
        bases=(
            BasePath(id=7, path="/cold"),
            BasePath(id=8, path="/x", is_dataset_root=True),
            BasePath(id=9, path="/t"),
        ),
    )
    assert {2: 7} == shared_base_ids(source, dest, "/t")


def test_new_files_are_named_through_the_root_or_a_base() -> None:
    """Main references its own files without a base."""
    files = (fragment(0, None, 2),)
    own, kept = with_root_base(files, manifest(), "/t", {2: 7})[0].files
    assert (None, 7) == (own.base_id, kept.base_id)
    own, other = with_root_base(files, manifest(bases=(ROOT,), branch="run"), "/t")[0].files
    assert (1, 1) == (own.base_id, other.base_id)
    assert [2, 2] == [file.base_id for file in with_base(files, COLD)[0].files]


def test_a_branch_that_calls_the_table_something_else_is_not_written_to() -> None:
    """Clean-up would delete the new file as unused."""
    with pytest.raises(InvalidInputError):
        with_root_base((), manifest(bases=(BasePath(id=1, path="/t/", name="root"),), branch="run"), "/t")


def test_a_shallow_clone_names_everything_through_bases_of_its_own_names() -> None:
    """The root of the source is not the root of the clone."""
    source = manifest(fragment(0, None, 1, deleted=True), bases=(ROOT, COLD), branch="run")
    clone = shallow_clone(source, source_uri="/t/tree/run", name="cold")
    assert [(1, "cold-root", "/t"), (2, "cold", "/cold"), (3, "cold-2", "/t/tree/run")] == [
        (base.id, base.name, base.path) for base in clone.base_paths
    ]
    (made,) = clone.fragments
    assert [3, 1, 3] == [*(file.base_id for file in made.files), made.deletion.base_id if made.deletion else None]
    assert clone.branch is None
