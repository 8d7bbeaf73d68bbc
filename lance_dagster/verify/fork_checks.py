"""Checks that the versions which branches and tags name are still the versions that they were made from.

A version is never changed, and no number is used twice. But where a folder `_versions` was brought back from an older
copy, new versions get the numbers of lost versions. Example: branch `fix` is forked from `main@7`; the folder is
restored to `main@5`, and two commits make a new `main@6` and `main@7`. Then `fix` seems to be forked from the new
`main@7`, and a merge takes the rows that `fix` inherited from the lost `main@7` for rows that both sides have.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lance_dagster.format import layout
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import Clone
from lance_dagster.history.refs.ref_files import READY, Branch, Tag
from lance_dagster.history.versions import State
from lance_dagster.verify.manifest_rules import WARNING, Problem
from lance_dagster.verify.ref_checks import RefListing

_Place = tuple[str, int]
"""A branch and a version number."""


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """The facts about a version that the checks of branches and tags compare.

    Attributes:
        size: The size of its manifest in bytes.
        files: A hash of its fragments and their data files; 0 where a fragment cannot be read.
        is_fork: Whether it is the first version of a branch, made from a version of another branch.
    """

    size: int
    files: int
    is_fork: bool


def named_version(state: State, fragments: Iterable[Fragment | None]) -> NamedVersion:
    """Return the facts about a version; a fragment is None where it cannot be read."""
    # The hash leaves out base paths: a fork names each file under the same path, by another base path. Fragments of the
    # fork point and of the fork itself have equal files: commits that add files or delete rows make later versions.
    outlines = [
        fragment and (fragment.id, fragment.physical_rows, *(file.path for file in fragment.files))
        for fragment in fragments
    ]
    is_fork = state.transaction is not None and isinstance(state.transaction.operation, Clone)
    return NamedVersion(state.size, 0 if None in outlines else hash(tuple(outlines)), is_fork)


def named_places(refs: RefListing) -> frozenset[_Place]:
    """Return the fork points and the first versions of all branches, and the versions that tags name."""
    places = [(tag.branch, tag.version) for tag in refs.tags.values()]
    for branch in refs.branches.values():
        places += [(branch.parent_branch, branch.parent_version), (branch.name, branch.first)]
    return frozenset(places)


def check_named(refs: RefListing, named_versions: Mapping[_Place, NamedVersion]) -> Iterator[Problem]:
    """Check forks and tags against the versions that they name, as far as these versions still exist."""
    for branch in refs.branches.values():
        if branch.state == READY:
            yield from _check_fork(branch, named_versions)
    for tag in refs.tags.values():
        yield from _check_tagged(tag, named_versions)


def _check_fork(branch: Branch, named_versions: Mapping[_Place, NamedVersion]) -> Iterator[Problem]:
    parent = named_versions.get((branch.parent_branch, branch.parent_version))
    first = named_versions.get((branch.name, branch.first))
    if parent is None or first is None or not (first.is_fork and first.files and parent.files):
        return
    if parent.files != first.files:
        yield Problem(
            what=f"it has other data files than {branch.parent}, from which branch {branch.name!r} was forked",
            right=f"it is a copy of that version; another {branch.parent} took its place, so a merge would lose rows",
            path=layout.branch_file(branch.name),
            versions=(f"{branch.name}@{branch.first}",),
        )


def _check_tagged(tag: Tag, named_versions: Mapping[_Place, NamedVersion]) -> Iterator[Problem]:
    named = named_versions.get((tag.branch, tag.version))
    # Zero stands for a size that was not known.
    if named is not None and tag.manifest_size and named.size != tag.manifest_size:
        yield Problem(
            what=f"its manifest has {named.size} bytes, and tag {tag.name!r} records {tag.manifest_size}",
            right="a version never changes; look whether the tag names what it should, and move it",
            severity=WARNING,
            path=layout.tag_file(tag.name),
            versions=(tag.ref,),
        )
