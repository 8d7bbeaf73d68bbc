"""Checks of branches, tags and version hints against the versions that exist.

Everything is read as far as it can be: one damaged file is a problem of its own and does not hide the others.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from lance_dagster.errors import FormatError, counted
from lance_dagster.format import layout
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.context import TableContext
from lance_dagster.history.inventory import DETACHED_FROM, FOLDERS
from lance_dagster.history.refs.ref_files import FIRST, READY, Branch, Tag
from lance_dagster.verify.manifest_rules import ERROR, WARNING, Problem, problem_of

T = TypeVar("T")


@dataclass(slots=True)
class RefListing:
    """The refs of a table as far as they can be read.

    Attributes:
        branches: The branches whose file can be read.
        tags: The tags whose file can be read.
        all_branches: The refs of all branches, `main` included, also those whose file or versions cannot be read.
        numbers: The version numbers of each branch that can be listed, oldest first.
        problems: What cannot be read.
    """

    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, Tag] = field(default_factory=dict)
    all_branches: list[str] = field(default_factory=lambda: [layout.MAIN])
    numbers: dict[str, list[int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def list_refs(context: TableContext) -> RefListing:
    """Read every ref and list the versions of every branch; report what cannot be read as a problem."""
    refs = RefListing()
    for file in context.store.list(layout.BRANCHES):
        name = layout.parse_branch_file_name(file)
        if name is not None:
            refs.all_branches.append(name)
            _read_branch(context, name, refs)
    for file in context.store.list(layout.TAGS):
        name = layout.parse_tag_file_name(file)
        tag = None if name is None else _read(context.refs.tags.find, name, f"{layout.TAGS}/{file}", refs)
        if tag is not None:
            refs.tags[tag.name] = tag
    # Branches whose file is damaged are listed too: their versions still reference files.
    for branch_name in refs.all_branches:
        _list_versions(context, branch_name, refs)
    refs.problems.extend(_check_orphans(context, frozenset(refs.all_branches)))
    return refs


def _read_branch(context: TableContext, name: str, refs: RefListing) -> None:
    branch = _read(context.refs.branches.find, name, layout.branch_file(name), refs)
    if branch is None:
        refs.branches.pop(name, None)
    else:
        refs.branches[name] = branch


def _has_changed(context: TableContext, name: str, refs: RefListing) -> bool:
    """Read the file of a branch again; tell whether it is another file now."""
    before = refs.branches.get(name)
    if before is not None:
        _read_branch(context, name, refs)
    return refs.branches.get(name) != before


def _check_orphans(context: TableContext, branch_names: Collection[str], folder: str = "tree") -> Iterator[Problem]:
    """Check that the versions in a folder below `tree`, and in the folders below it, belong to branches."""
    inside = context.store.folders(folder)
    name = folder.partition("/")[2]
    # A branch that was created since the branches were listed has its file before its versions.
    if layout.VERSIONS in inside and name not in branch_names and context.store.get(layout.branch_file(name)) is None:
        manifests = sum(map(len, layout.parse_manifest_names(context.store.list(layout.versions_folder(name)))))
        if manifests:
            yield Problem(
                what=f"there are {counted(manifests, 'version')} of a branch {name!r}, and no file of the branch",
                right=f"branches.recover({name!r}) writes it again; a collection deletes versions without one",
                # One version has no commits: it may be left of an interrupted creation by another program.
                severity=ERROR if manifests > 1 else WARNING,
                path=layout.versions_folder(name),
            )
    for below in inside:
        if below not in FOLDERS:
            yield from _check_orphans(context, branch_names, f"{folder}/{below}")


def _read(read_ref: Callable[[str], T | None], name: str, path: str, refs: RefListing) -> T | None:
    try:
        return read_ref(name)
    except FormatError as error:
        refs.problems.append(
            Problem(
                what=problem_of(error),
                right="while this file is there no name of its kind can be listed; delete it, or write it again",
                path=path,
            )
        )
        return None


def _list_versions(context: TableContext, branch_name: str, refs: RefListing) -> None:
    # The hint is read before the listing: a hint read later could name a version newer than the listed versions.
    hinted = _hint(context, branch_name)
    try:
        numbers = context.versions.numbers(branch_name)
        # Without a version the branch's file is read again: a deletion marks the file before it removes the versions.
        while not numbers and _has_changed(context, branch_name, refs):
            numbers = context.versions.numbers(branch_name)
        refs.numbers[branch_name] = _own_versions(branch_name, numbers, refs)
    except FormatError as error:
        path = layout.join(layout.branch_root(branch_name), layout.VERSIONS)
        refs.problems.append(
            Problem(what=problem_of(error), right="a folder whose manifests follow one naming scheme", path=path)
        )
        return
    refs.problems.extend(_check_staged(context, branch_name))
    # Ordered stores list the newest version first and use no hint.
    if refs.numbers[branch_name] and not context.store.ordered_listing:
        refs.problems.extend(_check_hint(context, branch_name, hinted, refs.numbers[branch_name][-1]))


def _check_staged(context: TableContext, branch_name: str) -> Iterator[Problem]:
    folder = layout.versions_folder(branch_name)
    for name in filter(layout.is_staged_manifest, context.store.list(folder)):
        yield Problem(
            what="it is the manifest of a commit through a namespace that is under way or was refused",
            right="a collection deletes it after its grace period",
            severity=WARNING,
            path=layout.join(folder, name),
        )


def _hint(context: TableContext, branch_name: str) -> int | str | None:
    """Return the version that a hint names, the text it holds instead, or None when there is no hint."""
    data = context.store.get(layout.join(layout.branch_root(branch_name), layout.VERSION_HINT))
    if data is None:
        return None
    try:
        hint = parsed_json(data)
        version = hint.get("version") if isinstance(hint, dict) else None
    except ValueError:
        version = None
    return version if isinstance(version, int) else repr(data[:40])


def _own_versions(branch_name: str, numbers: list[int], refs: RefListing) -> list[int]:
    """Return the numbers without those below the first version of the branch, which are reported."""
    branch = refs.branches.get(branch_name)
    # Only a branch with the name of a deleted branch begins above other numbers, and a collection keeps its first.
    if branch is None or FIRST not in branch.metadata or branch.first not in numbers:
        return numbers
    late = [number for number in numbers if number < branch.first]
    if late:
        refs.problems.append(
            Problem(
                what=f"the folder of branch {branch_name!r} has {counted(len(late), 'version')} below its first",
                right=f"that is {branch.first}; a late commit to a deleted branch of the name is left, and never read",
                severity=WARNING,
                path=layout.versions_folder(branch_name),
            )
        )
    return numbers[len(late) :]


def _check_hint(context: TableContext, branch_name: str, before: int | str | None, newest: int) -> Iterator[Problem]:
    """Check the hint. It was read before the versions were listed, and a commit in between is not a problem."""
    path = layout.join(layout.branch_root(branch_name), layout.VERSION_HINT)
    right = f"it names version {newest}; pylance looks for newer versions from there on before it commits"
    if isinstance(before, str):
        yield Problem(what=f"the version hint holds {before}", right=right, severity=WARNING, path=path)
    elif before is not None and before > newest:
        # A hint is written after its version, and the newest version of `main` is never deleted. On a branch, a late
        # commit to a deleted one of the name may have left the hint, where pylance begins its search for the head.
        lost = branch_name == layout.MAIN
        yield Problem(
            what=f"the version hint names version {before}, and the newest one is {newest}",
            right="every version up to the hint was committed, so the newest ones are lost" if lost else right,
            severity=ERROR if lost else WARNING,
            path=path,
        )
    elif before is None or before < newest:
        # The hint is read again: pylance writes it after the manifest, so a commit in flight leaves it behind for a
        # moment.
        after = _hint(context, branch_name)
        if after is None and not isinstance(before, int):
            yield Problem(what="there is no version hint", right=right, severity=WARNING, path=path)
        elif isinstance(after, int) and after < newest:
            yield Problem(what=f"the version hint names version {after}", right=right, severity=WARNING, path=path)


def check_refs(refs: RefListing) -> Iterator[Problem]:
    """Check that branches and tags refer to what exists, and that pylance's clean-up sees every branch."""
    yield from refs.problems
    if refs.numbers.get(layout.MAIN) == []:
        yield Problem(
            what="there is no version on main", right="a table has at least one version", path=layout.VERSIONS
        )
    for branch in refs.branches.values():
        yield from _check_branch(branch, refs)
    for tag in refs.tags.values():
        yield from _check_tag(tag, refs)


def _check_branch(branch: Branch, refs: RefListing) -> Iterator[Problem]:
    path = layout.branch_file(branch.name)
    if branch.state != READY:
        yield Problem(
            what=f"branch {branch.name!r} is marked as {branch.state}",
            right="a creation or deletion that was interrupted is finished by doing it again",
            severity=WARNING,
            path=path,
        )
        return
    own = refs.numbers.get(branch.name)
    if own == []:
        # The list is empty, not missing: a branch that could not be listed is a problem of its own.
        yield Problem(
            what=f"branch {branch.name!r} has no version", right="a branch has at least one version", path=path
        )
    elif own and own[0] < branch.first:
        yield Problem(
            what=f"branch {branch.name!r} has a version {own[0]}",
            right=f"it was forked from {branch.parent} as version {branch.first}, so its versions count from there",
            path=path,
        )
    yield from _check_lineage(branch, refs, path)


def _check_lineage(branch: Branch, refs: RefListing, path: str) -> Iterator[Problem]:
    # pylance reads the identifier to protect the files of branches in its own clean-up.
    if not branch.lineage:
        yield Problem(
            what=f"branch {branch.name!r} has no identifier",
            right="without one, pylance's clean-up of main deletes files that the branch needs",
            path=path,
        )
    if branch.parent_branch == layout.MAIN:
        above: tuple[tuple[int, str], ...] | None = ()
    else:
        parent = refs.branches.get(branch.parent_branch)
        # None means that the parent cannot be read, so nothing is compared with it.
        above = parent.lineage if parent else None
        if branch.parent_branch not in refs.all_branches:
            yield Problem(
                what=f"the parent of branch {branch.name!r} is {branch.parent_branch!r}, which does not exist",
                right="a branch must not be deleted while other branches are forked from it",
                path=path,
            )
    if branch.lineage and above is not None and branch.lineage[: len(above)] != above:
        yield Problem(
            what=f"the identifier of branch {branch.name!r} does not begin with that of {branch.parent_branch!r}",
            right="it has to, or pylance's clean-up of the parent deletes files that the branch needs",
            path=path,
        )
    newest = max(refs.numbers.get(branch.parent_branch, ()), default=None)
    # An older fork point may be cleaned up; a fork point above the newest version never existed.
    if newest is not None and branch.parent_version > newest:
        yield Problem(
            what=f"branch {branch.name!r} is said to be forked from {branch.parent}",
            right=f"the newest version of {branch.parent_branch!r} is {newest}",
            path=path,
        )


def _check_tag(tag: Tag, refs: RefListing) -> Iterator[Problem]:
    path = layout.tag_file(tag.name)
    if tag.branch not in refs.all_branches:
        yield Problem(
            what=f"tag {tag.name!r} names {tag.ref}, and there is no such branch",
            right="move the tag to a version that exists, or delete it",
            path=path,
        )
    elif tag.version >= DETACHED_FROM:
        yield Problem(
            what=f"tag {tag.name!r} names {tag.ref}, a detached version, which is not checked",
            right="pylance alone reads such a version, and a collection keeps it as long as the tag names it",
            severity=WARNING,
            path=path,
        )
    # When the versions could not be listed, which is a problem of its own, the version is assumed to exist.
    elif tag.version not in refs.numbers.get(tag.branch, [tag.version]):
        yield Problem(
            what=f"tag {tag.name!r} names {tag.ref}, which does not exist",
            right="move the tag to a version that exists, or delete it",
            path=path,
        )
    # Another program may create both; a ref expression could then mean either.
    if tag.name in refs.branches or tag.name == layout.MAIN:
        yield Problem(
            what=f"{tag.name!r} is a tag and a branch",
            right="a name is one of the two, or reads by that name are refused",
            severity=WARNING,
            path=path,
        )


def gaps(numbers: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Return the gaps between listed versions, as a clean-up leaves them."""
    missing = []
    for branch_name, own in numbers.items():
        for older, newer in pairwise(own):
            if newer > older + 1:
                until = "" if newer == older + 2 else f" to {branch_name}@{newer - 1}"
                missing.append(f"{branch_name}@{older + 1}{until}")
    return tuple(missing)
