"""Checks that the versions which branches and tags name are those that they were made of.

A version is never changed, and no number is used twice. But a folder `_versions` that was brought back from an older
copy gives the numbers of lost versions to new ones. A branch that was forked from a lost version then seems to be
forked from another one, and a merge of it takes its inherited rows for rows that both sides have.
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
    """What is remembered of a version that a branch or a tag names.

    Attributes:
        size: The size of its manifest in bytes.
        files: A hash of its fragments and their data files; 0 when one of them cannot be read.
        is_fork: Whether it is the first version of a branch, made from another version.
    """

    size: int
    files: int
    is_fork: bool


def named_version(state: State, fragments: Iterable[Fragment | None]) -> NamedVersion:
    """Return what is remembered of a version; a fragment is None when it cannot be read."""
    # A fork names each file under the same path, by another base path. Later files may have been added to a fragment,
    # and rows be deleted, by commits that made further versions only.
    found = [one and (one.id, one.physical_rows, *(file.path for file in one.files)) for one in fragments]
    is_fork = state.transaction is not None and isinstance(state.transaction.operation, Clone)
    return NamedVersion(state.size, 0 if None in found else hash(tuple(found)), is_fork)


def named_places(refs: RefListing) -> frozenset[_Place]:
    """Return the versions that branches were forked from, the first ones of branches, and those that tags name."""
    found = [(tag.branch, tag.version) for tag in refs.tags.values()]
    for branch in refs.branches.values():
        found += [(branch.parent_branch, branch.parent_version), (branch.name, branch.first)]
    return frozenset(found)


def check_named(refs: RefListing, seen: Mapping[_Place, NamedVersion]) -> Iterator[Problem]:
    """Check forks and tags against the versions that they name, as far as these still exist."""
    for branch in refs.branches.values():
        if branch.state == READY:
            yield from _check_fork(branch, seen)
    for tag in refs.tags.values():
        yield from _check_tagged(tag, seen)


def _check_fork(branch: Branch, seen: Mapping[_Place, NamedVersion]) -> Iterator[Problem]:
    parent = seen.get((branch.parent_branch, branch.parent_version))
    first = seen.get((branch.name, branch.first))
    if parent is None or first is None or not (first.is_fork and first.files and parent.files):
        return
    if parent.files != first.files:
        yield Problem(
            what=f"it has other data files than {branch.parent}, from which branch {branch.name!r} was forked",
            right=f"it is a copy of that version; another {branch.parent} took its place, so a merge would lose rows",
            path=layout.branch_file(branch.name),
            versions=(f"{branch.name}@{branch.first}",),
        )


def _check_tagged(tag: Tag, seen: Mapping[_Place, NamedVersion]) -> Iterator[Problem]:
    named = seen.get((tag.branch, tag.version))
    # Zero stands for a size that was not known.
    if named is not None and tag.manifest_size and named.size != tag.manifest_size:
        yield Problem(
            what=f"its manifest has {named.size} bytes, and tag {tag.name!r} records {tag.manifest_size}",
            right="a version is never replaced by another one; look whether the tag names what it should, and move it",
            severity=WARNING,
            path=layout.tag_file(tag.name),
            versions=(tag.ref,),
        )
