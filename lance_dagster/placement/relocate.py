"""Repair the references to files that moved: relocated tables, moved base paths, and old manifest names.

Base paths are absolute. `main` usually has none and works wherever its folder is. A branch references inherited files
through the URI of the table, so after a move readers of the branch look for them at the old place. Versions are
immutable; `relocate` therefore commits one more version to each branch, with the same rows and corrected base paths.
The operation of that commit is UpdateBases, on which pending commits of other programs can be rebased.

Older versions of a branch keep the old base paths and cannot be read once the old place is gone. A tag on such a
version moves to a later version that differs only in its base paths, or else to a new branch forked from the version.

A branch gets its commit only after its files were found at the new place. Each step first checks whether it is done,
so an interrupted call is repeated. The former place of the table is read from its branches: from the base path of the
root, and from the Clone operation in the first version of each branch.

`migrate_manifest_names` renames manifests from the first naming scheme (V1) to the present one (V2). It writes all new
names of a branch before it deletes an old name, so every version can be found after a crash. `main` is migrated last,
because its names show whether the whole migration is complete.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

from lance_dagster.errors import Call, CorruptFileError, InvalidInputError, Remedy, VersionNotFoundError, counted
from lance_dagster.format import layout
from lance_dagster.format.layout import (
    MAIN,
    VERSIONS,
    branch_root,
    join,
    manifest_name,
    manifest_name_v1,
    parse_manifest_names,
)
from lance_dagster.format.model import BasePath
from lance_dagster.format.transaction import COMMIT_MESSAGE, Clone, Transaction, UpdateBases
from lance_dagster.format.validation import check_flag
from lance_dagster.gc.collect import Progress
from lance_dagster.history.base_access import refuse_place_of_table
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import create_branch
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.refs.tag_operations import carried
from lance_dagster.history.versions import State, Versions
from lance_dagster.placement.base_stores import allow, check_files, heads, spelled
from lance_dagster.store import base_options, canonical_uri
from lance_dagster.transactions.base_paths import ROOT_BASE, moved_base_paths, replace_base_paths

REPOINTED = "lance_dagster.repointed"
"""The property of a commit that changes base paths and nothing else."""
Moves = Callable[[State], Mapping[str, str]]
"""Returns for a version the moved folders: from the former path to the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repointed:
    """The change, made or planned, of one branch or tag.

    `before` and `after` are versions; `after` is None in a dry run. `paths` are pairs of the old and the new base path;
    `files` is the number of files found at the new paths; an index counts as one.
    """

    name: str
    before: str
    after: str | None
    paths: tuple[tuple[str, str], ...] = ()
    files: int = 0

    def __str__(self) -> str:
        """Return the name, both versions, and how many files were found at the new paths."""
        change = f"{self.before} would change" if self.after is None else f"{self.before} -> {self.after}"
        return f"{self.name}: {change}, {counted(len(self.paths), 'base path')}, {counted(self.files, 'file')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """The changes of a relocation, made or planned; empty when every base path is correct."""

    branches: tuple[Repointed, ...] = ()
    tags: tuple[Repointed, ...] = ()

    def __str__(self) -> str:
        """Return a line for each branch and tag."""
        changes = [f"branch {branch}" for branch in self.branches] + [f"tag {change}" for change in self.tags]
        return "\n".join(changes) or "every base path is correct"


class RelocateOptions(TypedDict, total=False):
    """The keyword arguments that `relocate` and `move_base` share."""

    check: bool
    dry_run: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Options of a relocation: check files before a commit references them, commit nothing, report progress.

    `properties` are recorded with each commit, a message of the caller among them.
    """

    check: bool = True
    dry_run: bool = False
    progress: Progress | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse text such as "no", which would count as True."""
        check_flag("check", self.check)
        check_flag("dry_run", self.dry_run)

    def tell(self, processed: int, total: int) -> None:
        """Report the number of branches and tags processed, and their total."""
        if self.progress is not None:
            self.progress(processed, total)


def relocate(context: TableContext, old_uri: str | None, how: How) -> Relocation:
    """Update every base path that refers to a former place of the table, or to a folder in it.

    Raises:
        InvalidInputError: The former place of a branch cannot be determined.
        CorruptFileError: Files are missing at the new place; no commit was made to that branch.
    """
    # Former places are determined once per branch, since that loads the first version of each ancestor.
    moves_by_branch: dict[str, Mapping[str, str]] = {}
    former_uri = None if old_uri is None else canonical_uri(old_uri)

    def moves(state: State) -> Mapping[str, str]:
        if state.branch not in moves_by_branch:
            earlier = {former_uri} if former_uri else _earlier_places(context, state.branch)
            # The present URI maps to itself, so that a path with another spelling of it is corrected as well.
            moves_by_branch[state.branch] = {context.uri: context.uri} | dict.fromkeys(earlier, context.uri)
        return moves_by_branch[state.branch]

    relocation = _repoint_all(context, moves, how)
    if not how.dry_run:
        _allow_again(context, frozenset(place for places in moves_by_branch.values() for place in places))
    return relocation


def _allow_again(context: TableContext, former: frozenset[str]) -> None:
    """Write the allowances of the table's new place where the base paths hold one for a former place."""
    for head in heads(context):
        for base in head.manifest.base_paths:
            context.versions.bases.carry_over(base.path, base.id, former)


def move_base(context: TableContext, name: str, uri: str, how: How) -> Relocation:
    """Change the path of a base path on every branch that has it, after its files were moved or copied.

    Args:
        context: The table.
        name: The name of the base path, or its former path when it has no name.
        uri: The new path.
        how: The options.

    Raises:
        InvalidInputError: No branch has such a base path, or there is a table at the new place.
        CorruptFileError: Files are missing at the new place; no commit was made to that branch.
    """
    new = canonical_uri(uri)
    if name == ROOT_BASE or spelled(name) == context.uri:
        remedy = Remedy("move its folder, then {} for the new place", Call("maintenance.relocate"))
        raise InvalidInputError(f"{name!r} is the table itself", remedy=remedy)
    bases = [base for head in heads(context) for base in head.manifest.base_paths]
    number = next((base.id for base in bases if name == base.name or spelled(name) == spelled(base.path)), None)
    if number is None:
        names = ", ".join(sorted({repr(base.name or base.path) for base in bases})) or "none"
        raise InvalidInputError(f"{context.uri} has no base path {name!r}; it has {names}")
    if not any(_is_of_clone(base) for base in bases if base.id == number):
        refuse_place_of_table(new, base_options(context.storage_options, number, new))
    # This is done for a dry run too: the check of the files reads there.
    allow(context, new, number)

    def moves(state: State) -> Mapping[str, str]:
        # A name may stand for different paths on different branches, so it is resolved for each version.
        named = [base for base in state.manifest.base_paths if base.name == name]
        old = spelled(named[0].path if named else name)
        return {new: new, old: new}

    return _repoint_all(context, moves, how)


def _is_of_clone(base: BasePath) -> bool:
    """Tell whether a base path is a cloned table: it goes where that table goes."""
    # A base path of a clone is named by the version (this package), or has no name or a branch's folder (pylance).
    return not base.name or "@" in base.name or "/tree/" in base.path


def _repoint_all(context: TableContext, moves: Moves, how: How) -> Relocation:
    # Branches come before tags: a tag can then move to the version that a branch has just got.
    newest, branches = heads(context), []
    for head in newest:
        branches.append(_repoint(context, head.branch, moves, how))
        how.tell(len(branches), len(newest))
    # Tags are read only after the branches, because a concurrent relocation may have moved them in the meantime.
    named, tags = context.refs.tags.all().values(), []
    for tag in named:
        tags.append(_carry(context, tag, moves, how))
        how.tell(len(newest) + len(tags), len(newest) + len(named))
    return Relocation(
        branches=tuple(repointed for repointed in branches if repointed is not None),
        tags=tuple(repointed for repointed in tags if repointed is not None),
    )


def _changed(state: State, moves: Moves) -> tuple[BasePath, ...]:
    """Return the base paths of a version that have to change, with their new paths."""
    bases = state.manifest.base_paths
    return moved_base_paths(bases, moves(state), {base.path: spelled(base.path) for base in bases}) if bases else ()


def _repoint(context: TableContext, branch: str, moves: Moves, how: How) -> Repointed | None:
    """Commit corrected base paths to a branch; return None where all base paths are correct."""
    # All proposals share one uuid, so a commit whose response was lost is recognised as this commit.
    transaction_id = str(uuid.uuid4())
    repointed: Repointed | None = None

    def propose(head: State) -> Proposal | State:
        nonlocal repointed
        changed = _changed(head, moves)
        if not changed:
            return head
        new = replace(head, manifest=replace_base_paths(head.manifest, changed))
        # The files are checked for each proposal, since a concurrent commit may reference more files.
        files = check_files(context, new, [base.id for base in changed]) if how.check else 0
        old = {base.id: base.path for base in head.manifest.base_paths}
        paths = tuple((old[base.id], base.path) for base in changed)
        repointed = Repointed(name=branch, before=str(head), after=None, paths=paths, files=files)
        if how.dry_run:
            return head
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=UpdateBases(new_bases=changed),
            properties={
                COMMIT_MESSAGE: f"base paths are elsewhere: {', '.join(old for old, _ in paths)}",
                **how.properties,
                REPOINTED: "true",
            },
        )
        # UpdateBases only adds: it rejects an id that is in use, and here the same ids get new paths. The next
        # manifest is therefore built without bases, and the corrected ones are set afterwards.
        following = next_manifest(context.versions, head, replace(transaction, operation=UpdateBases(new_bases=())))
        return Proposal(transaction, replace_base_paths(following, changed))

    state = commit(context.versions, branch, propose)
    return repointed if repointed is None or how.dry_run else replace(repointed, after=str(state))


def _carry(context: TableContext, tag: Tag, moves: Moves, how: How) -> Repointed | None:
    """Move a tag from a version with former base paths to a version with the same rows and corrected base paths."""
    try:
        state = context.versions.load(tag.branch, tag.version)
    except VersionNotFoundError:
        # The tagged version was removed, so there is no manifest to correct.
        return None
    if not _changed(state, moves):
        return None
    planned = Repointed(name=tag.name, before=tag.ref, after=None)
    if how.dry_run:
        return planned
    present = _repeated(context, state, moves) or _forked(context, tag.name, state, moves, how=how)
    # In the history of the tag, the new version takes the place of the tagged version, whose paths lead nowhere.
    branch = context.refs.branches.find(present.branch)
    branch_id = MAIN if present.branch == MAIN else "" if branch is None else branch.id
    carried_tag = carried(tag, present, branch_id, context.versions)
    # This is a compare-and-swap: a tag that was moved to another version meanwhile is not moved back.
    context.refs.tags.swap(carried_tag, tag.ref)
    return replace(planned, after=carried_tag.ref)


def _repeated(context: TableContext, state: State, moves: Moves) -> State | None:
    """Follow versions that changed only base paths to a version with corrected paths; return None if there is none."""
    while _changed(state, moves):
        try:
            following = context.versions.load(state.branch, state.number + 1)
        except VersionNotFoundError:
            return None
        if following.transaction is None or REPOINTED not in following.transaction.properties:
            return None
        state = following
    return state


def present_version(context: TableContext, tag: str, state: State) -> State:
    """Return an earlier version of a tag, or a version with the same rows where the table was moved since.

    Raises:
        InvalidInputError: The former place of its branch cannot be determined.
        CorruptFileError: Files are missing at the new place.
    """
    bases = state.manifest.base_paths
    # Looking for former places reads versions of each branch, so it is done only where base paths changed since.
    if not bases or context.versions.head(state.branch).manifest.base_paths == bases:
        return state
    places = {context.uri: context.uri} | dict.fromkeys(_earlier_places(context, state.branch), context.uri)

    def moves(_: State) -> Mapping[str, str]:
        return places

    if not _changed(state, moves):
        return state
    return _repeated(context, state, moves) or _forked(context, tag, state, moves, how=How())


def _forked(context: TableContext, tag: str, state: State, moves: Moves, *, how: How) -> State:
    """Fork a branch from a tagged version, correct its base paths, and return its head."""
    branches = context.refs.branches.all()
    names = (f"relocated-{tag}" if count == 1 else f"relocated-{tag}-{count}" for count in range(1, 10**6))
    tags = context.refs.tags.all("relocated-*")
    # Branches and tags share one namespace.
    free = (name for name in names if name not in tags)
    # A branch forked from the tagged version is the result of an interrupted call, and is used again.
    name = next(name for name in free if name not in branches or branches[name].parent == str(state))
    create_branch(name, state, context.refs, context.versions, exist_ok=True, metadata={REPOINTED: tag})
    # The moves of the tagged version are used, since the new branch has no former place of its own.
    there = dict(moves(state))
    _repoint(context, name, lambda _: there, How(check=how.check, properties=how.properties))
    return context.head(name)


def _earlier_places(context: TableContext, branch: str) -> set[str]:
    """Return the URIs the table had while a branch, or a branch it was forked from, was written.

    Raises:
        InvalidInputError: They cannot be determined.
    """
    if branch == layout.MAIN:
        # Main does not record the URI of the table. Its base paths may still be folders inside the table, so the
        # former places of all branches apply.
        names = [name for name in context.refs.branches.all() if context.versions.newest(name) is not None]
        return {place for name in names for place in _earlier_places(context, name)}
    places: set[str] = set()
    line: str = branch
    lines: set[str] = set()
    # Branch files can be damaged or edited by hand: a circle of forks ends where it closes.
    while line != layout.MAIN and line not in lines:
        lines.add(line)
        numbers = context.versions.numbers(line)
        if numbers:
            first, newest = context.versions.load(line, numbers[0]), context.versions.load(line, numbers[-1])
            places |= _roots(context, first, newest)
        above = context.refs.branches.find(line)
        if above is None:
            break
        line = above.parent_branch
    return places - {context.uri}


def _roots(context: TableContext, first: State, newest: State) -> set[str]:
    """Return the URIs that the first and the newest version of a branch record as the root of the table."""
    # The sources of this information are tried from the most to the least reliable: the recorded Clone operation, a
    # base path with the reserved name of the root, and elimination.
    foreign = _foreign(context)
    ids = _ids_by_clone(first) or {
        base.id: ""
        for base in newest.manifest.base_paths
        if base.name == ROOT_BASE and spelled(base.path) not in foreign
    }
    if not ids:
        ids = _ids_by_elimination(context, newest, foreign)
    roots: set[str] = set()
    for state in (first, newest):
        for base in state.manifest.base_paths:
            if base.id in ids and base.is_dataset_root:
                roots.add(spelled(base.path).removesuffix(ids[base.id]))
    return roots


def _foreign(context: TableContext) -> set[str]:
    """Return the base paths of main, which are never the root of the table."""
    if context.versions.newest(layout.MAIN) is None:
        return set()
    return {spelled(base.path) for base in context.versions.head(layout.MAIN).manifest.base_paths}


def _ids_by_clone(first: State) -> dict[int, str]:
    """Return the ids of the base paths recorded by the fork of a branch, with their suffix below the table's root."""
    operation = first.transaction.operation if first.transaction else None
    if not isinstance(operation, Clone):
        return {}
    parent = spelled(operation.ref_path)
    below = f"/{layout.branch_root(operation.ref_name)}" if operation.ref_name else ""
    # A fork of a branch records that branch's folder; the root is what remains without `/tree/<branch>`.
    root = parent.removesuffix(below)
    suffixes: dict[int, str] = {}
    for base in first.manifest.base_paths:
        path = spelled(base.path)
        if path in (root, parent):
            suffixes[base.id] = path.removeprefix(root)
    return suffixes


def _ids_by_elimination(context: TableContext, newest: State, foreign: set[str]) -> dict[int, str]:
    """Return the base paths that main lacks, as the last resort after the first version of a branch was removed.

    Raises:
        InvalidInputError: More than one place remains.
    """
    branches = [f"/{layout.branch_root(name)}" for name in context.refs.branches.all()]
    suffixes: dict[int, str] = {}
    for base in newest.manifest.base_paths:
        path = spelled(base.path)
        # The longest match wins: branch names may contain "/", so one branch folder may be a suffix of another.
        below = max((below for below in branches if path.endswith(below)), key=len, default="")
        # A base path that a user added has a name; pylance names only base paths of parent branches.
        if base.is_dataset_root and path not in foreign and (base.name is None or below):
            suffixes[base.id] = below
    roots = {
        spelled(base.path).removesuffix(suffixes[base.id]) for base in newest.manifest.base_paths if base.id in suffixes
    }
    if len(roots) > 1:
        raise InvalidInputError(
            f"cannot tell which of {', '.join(sorted(roots))} was the place of the table that {newest} belongs to",
            remedy=Remedy("say which, as in {}", Call("maintenance.relocate", (min(roots),))),
        )
    return suffixes


def migrate_manifest_names(versions: Versions, branches: Iterable[str]) -> int:
    """Rename the manifests with V1 names on `main` and on some branches; return the number of renamed versions.

    Raises:
        CorruptFileError: Two different manifests of one version exist, under the old and the new name.
    """
    return sum(_migrate(versions, branch) for branch in [*sorted(branches), MAIN])


def _migrate(versions: Versions, branch: str) -> int:
    store, folder = versions.store, join(branch_root(branch), VERSIONS)
    renamed = 0
    # The loop repeats until no old name is left, because a writer that was not stopped may have added an old name.
    while True:
        _, old = parse_manifest_names(store.list(folder))
        if not old:
            # The names are listed again: `versions` forgets the old scheme and commits with V2 names from now on.
            versions.numbers(branch)
            return renamed
        # The newest is copied first: on an ordered store readers take the first V2 name in the listing as the newest.
        for number in sorted(old, reverse=True):
            _copy(versions, folder, number)
        for number in sorted(old):
            store.delete(f"{folder}/{manifest_name_v1(number)}")
        renamed += len(old)


def _copy(versions: Versions, folder: str, number: int) -> None:
    """Copy the manifest of a version to its new name.

    Raises:
        CorruptFileError: The new name has another content.
    """
    store = versions.store
    source, target = f"{folder}/{manifest_name_v1(number)}", f"{folder}/{manifest_name(number)}"
    data = store.get(source)
    # The write is conditional: the new name may hold a version that another writer committed under the V2 scheme.
    if data is None or store.put_if_absent(target, data):
        return
    if store.get(target) != data:
        raise CorruptFileError(
            f"{store.uri}/{target}",
            f"it is another version {number} than {manifest_name_v1(number)}, because a writer committed meanwhile; "
            "find out which of the two has been read, and remove the other",
        )
