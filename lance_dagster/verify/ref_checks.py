"""Branches, tags and version hints, each held against the versions that exist."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from json import JSONDecodeError, loads
from typing import TypeVar

from lance_dagster.errors import CorruptFileError, FormatError
from lance_dagster.format import layout
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.ref_store import READY, Branch, Tag
from lance_dagster.verify.manifest_rules import WARNING, Problem

T = TypeVar("T")


@dataclass(slots=True)
class RefListing:
    """The names of a table as far as they can be read, and the versions of each branch, oldest first.

    `lines` are all branches, `main` included, those whose file or versions cannot be read too.
    """

    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, Tag] = field(default_factory=dict)
    lines: list[str] = field(default_factory=lambda: [layout.MAIN])
    numbers: dict[str, list[int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def list_refs(context: TableContext) -> RefListing:
    """Read every name and list every branch's versions; what cannot be read is a problem and left out."""
    names = RefListing()
    for file in context.store.list(layout.BRANCHES):
        name = layout.parse_branch_file_name(file)
        if name is not None:
            names.lines.append(name)
            branch = _read(context.refs.branch, name, f"{layout.BRANCHES}/{file}", names)
            if branch is not None:
                names.branches[name] = branch
    for file in context.store.list(layout.TAGS):
        name = layout.parse_tag_file_name(file)
        tag = None if name is None else _read(context.refs.tag, name, f"{layout.TAGS}/{file}", names)
        if tag is not None:
            names.tags[tag.name] = tag
    for line in names.lines:
        _list_versions(context, line, names)
    return names


def _read(read: Callable[[str], T | None], name: str, path: str, names: RefListing) -> T | None:
    try:
        return read(name)
    except FormatError as error:
        names.problems.append(
            Problem(
                what=error.problem if isinstance(error, CorruptFileError) else str(error),
                right="while this file is there no name of its kind can be listed; delete it, or write it again",
                path=path,
            )
        )
        return None


def _list_versions(context: TableContext, line: str, names: RefListing) -> None:
    hinted = _hint(context, line)
    try:
        names.numbers[line] = context.versions.numbers(line)
    except FormatError as error:
        path = layout.join(layout.branch_root(line), layout.VERSIONS)
        what = error.problem if isinstance(error, CorruptFileError) else str(error)
        names.problems.append(Problem(what=what, right="a folder whose versions can be told by their names", path=path))
        return
    if names.numbers[line] and not context.store.ordered_listing:
        names.problems.extend(_check_hint(context, line, hinted, names.numbers[line][-1]))


def _hint(context: TableContext, line: str) -> int | str | None:
    """Return the version a hint names, what it holds if it is none, or None."""
    data = context.store.get(layout.join(layout.branch_root(line), layout.VERSION_HINT))
    if data is None:
        return None
    try:
        found = loads(data)
        version = found.get("version") if isinstance(found, dict) else None
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        version = None
    return version if isinstance(version, int) else repr(data[:40])


def _check_hint(context: TableContext, line: str, before: int | str | None, newest: int) -> Iterator[Problem]:
    """Check the hint that was read before the versions were listed: a commit in between is no mistake."""
    path = layout.join(layout.branch_root(line), layout.VERSION_HINT)
    right = f"it names version {newest}; pylance looks for newer versions from there on before it commits"
    if isinstance(before, str):
        yield Problem(what=f"the version hint holds {before}", right=right, severity=WARNING, path=path)
    elif before is not None and before > newest:
        yield Problem(what=f"the version hint names version {before}", right=right, severity=WARNING, path=path)
    elif before is None or before < newest:
        after = _hint(context, line)
        if after is None and not isinstance(before, int):
            yield Problem(what="there is no version hint", right=right, severity=WARNING, path=path)
        elif isinstance(after, int) and after < newest:
            yield Problem(what=f"the version hint names version {after}", right=right, severity=WARNING, path=path)


def check_names(names: RefListing) -> Iterator[Problem]:
    """Check that branches and tags name what exists, and that pylance's clean-up sees every branch."""
    yield from names.problems
    if names.numbers.get(layout.MAIN) == []:
        yield Problem(what="there is no version on main", right="a table has one", path=layout.VERSIONS)
    for branch in names.branches.values():
        yield from _check_branch(branch, names)
    for tag in names.tags.values():
        yield from _check_tag(tag, names)


def _check_branch(branch: Branch, names: RefListing) -> Iterator[Problem]:
    path = layout.branch_file(branch.name)
    if branch.state != READY:
        yield Problem(
            what=f"branch {branch.name!r} is marked as {branch.state}",
            right="a creation or deletion that was interrupted is finished by doing it again",
            severity=WARNING,
            path=path,
        )
        return
    own = names.numbers.get(branch.name)
    if own == []:
        yield Problem(what=f"branch {branch.name!r} has no version", right="a branch has its fork at least", path=path)
    elif own and own[0] < branch.first:
        yield Problem(
            what=f"branch {branch.name!r} has a version {own[0]}",
            right=f"it was forked from {branch.parent} as version {branch.first}, so its versions count from there",
            path=path,
        )
    yield from _check_lineage(branch, names, path)


def _check_lineage(branch: Branch, names: RefListing, path: str) -> Iterator[Problem]:
    if not branch.lineage:
        yield Problem(
            what=f"branch {branch.name!r} has no identifier",
            right="without one, pylance's clean-up of main deletes files that the branch needs",
            path=path,
        )
    if branch.parent_branch == layout.MAIN:
        above: tuple[tuple[int, str], ...] | None = ()
    else:
        parent = names.branches.get(branch.parent_branch)
        above = parent.lineage if parent else None
        if branch.parent_branch not in names.lines:
            yield Problem(
                what=f"the parent of branch {branch.name!r} is {branch.parent_branch!r}, which does not exist",
                right="a branch stays while another one is forked from it",
                path=path,
            )
    if branch.lineage and above is not None and branch.lineage[: len(above)] != above:
        yield Problem(
            what=f"the identifier of branch {branch.name!r} does not begin with that of {branch.parent_branch!r}",
            right="it does, or pylance's clean-up of the parent deletes files that the branch needs",
            path=path,
        )
    newest = max(names.numbers.get(branch.parent_branch, ()), default=None)
    if newest is not None and branch.parent_version > newest:
        yield Problem(
            what=f"branch {branch.name!r} is said to be forked from {branch.parent}",
            right=f"the newest version of {branch.parent_branch!r} is {newest}",
            path=path,
        )


def _check_tag(tag: Tag, names: RefListing) -> Iterator[Problem]:
    path = layout.tag_file(tag.name)
    if tag.branch not in names.lines:
        yield Problem(
            what=f"tag {tag.name!r} names {tag.ref}, and there is no such branch",
            right="move the tag to a version that exists, or delete it",
            path=path,
        )
    elif tag.version not in names.numbers.get(tag.branch, [tag.version]):
        yield Problem(
            what=f"tag {tag.name!r} names {tag.ref}, which does not exist",
            right="move the tag to a version that exists, or delete it",
            path=path,
        )
    if tag.name in names.branches or tag.name == layout.MAIN:
        yield Problem(
            what=f"{tag.name!r} is a tag and a branch",
            right="a name is one of the two, or reads by that name are refused",
            severity=WARNING,
            path=path,
        )


def gaps(numbers: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Say which versions are not there, as clean-up leaves it."""
    found = []
    for line, own in numbers.items():
        for older, newer in pairwise(own):
            if newer > older + 1:
                last = "" if newer == older + 2 else f" to {line}@{newer - 1}"
                found.append(f"{line}@{older + 1}{last}")
    return tuple(found)
