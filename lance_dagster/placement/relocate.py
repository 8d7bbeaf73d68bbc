"""Make a table work at another place than the one it was made at, by commits of metadata alone.

Base paths are absolute. `main` has none as a rule and works wherever its folder is; a branch names what it inherited
through the table's own URI, so after a move its files are looked for at the old place. A version cannot be changed,
so each branch gets one more, with the same rows, whose base paths say where things are by now. It is recorded as the
base paths that changed, which other programs' unfinished commits can follow.

Older versions of a branch still name the old place and cannot be read once that is gone. A tag on one of them is
taken along: to the version that only differs by its base paths, or else to a branch of its own, forked there.

Nothing is committed to a branch before its files were found at the new place. Every step finds out whether it was
done, so a call that was interrupted is made again. Where the table was is read from its branches: from the base
path of that name, and from what the first version of each says it was cloned from.

Migrate a table from the first naming scheme of manifests to the present one.

Every manifest of a branch is put under its new name before any old name is deleted: whatever happens, each version can
be found. `main` comes last, since it shows whoever looks whether everything was done.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from lance_dagster.errors import Call, CorruptFileError, InvalidInputError, Remedy, VersionNotFoundError
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
from lance_dagster.gc.collect import Progress
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import create_branch
from lance_dagster.history.refs.ref_store import Tag
from lance_dagster.history.versions import State, Versions
from lance_dagster.placement.base_stores import check_files, heads, spelled
from lance_dagster.store import canonical_uri
from lance_dagster.transactions.base_paths import ROOT_BASE, moved_base_paths, replace_base_paths

REPOINTED = "lance_dagster.repointed"
"""The property of a commit that changes base paths and nothing else."""
Moves = Callable[[State], Mapping[str, str]]
"""Says of a version which folders it names are elsewhere by now, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repointed:
    """What was, or would be, done about one branch or tag. `after` is None when it was not done yet.

    `paths` are the base paths that changed, old and new; `files` how many files were found at the new places.
    """

    name: str
    before: str
    after: str | None
    paths: tuple[tuple[str, str], ...] = ()
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What a relocation did, or would do; nothing when everything was in its place."""

    branches: tuple[Repointed, ...] = ()
    tags: tuple[Repointed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Whether files are looked for before a commit names them, whether anything is committed, who is told how far."""

    check: bool = True
    dry_run: bool = False
    progress: Progress | None = None

    def tell(self, done: int, total: int) -> None:
        """Say how many branches and tags were looked at."""
        if self.progress is not None:
            self.progress(done, total)


def relocate(context: TableContext, old_uri: str | None, how: How) -> Relocation:
    """Re-point every base path that means an earlier place of the table, or a folder in it.

    Raises:
        InvalidInputError: Where a branch's table was cannot be told.
        CorruptFileError: Files are missing at the new place; no commit was made to that branch.
    """
    known: dict[str, Mapping[str, str]] = {}
    given = None if old_uri is None else canonical_uri(old_uri)

    def moves(state: State) -> Mapping[str, str]:
        if state.branch not in known:
            earlier = {given} if given else _earlier_places(context, state.branch)
            known[state.branch] = {context.uri: context.uri} | dict.fromkeys(earlier, context.uri)
        return known[state.branch]

    return _repoint_all(context, moves, how)


def move_base(context: TableContext, name: str, uri: str, how: How) -> Relocation:
    """Say that the files under a base path are elsewhere by now, on every branch that has it.

    Args:
        context: The table.
        name: The base path's name, or where it was, for one without a name.
        uri: Where its files are.
        how: Whether to look for the files first, and to commit.

    Raises:
        InvalidInputError: No branch has such a base path.
        CorruptFileError: Files are missing at the new place; no commit was made to that branch.
    """
    new = canonical_uri(uri)
    if name == ROOT_BASE or spelled(name) == context.uri:
        remedy = Remedy("move its folder, then {} for the new place", Call("maintenance.relocate"))
        raise InvalidInputError(f"{name!r} is the table itself", remedy=remedy)
    bases = [base for head in heads(context) for base in head.manifest.base_paths]
    if not any(name == base.name or spelled(name) == spelled(base.path) for base in bases):
        known = ", ".join(sorted({repr(base.name or base.path) for base in bases})) or "none"
        raise InvalidInputError(f"{context.uri} has no base path {name!r}; it has {known}")

    def moves(state: State) -> Mapping[str, str]:
        named = [base for base in state.manifest.base_paths if base.name == name]
        old = spelled(named[0].path if named else name)
        return {new: new, old: new}

    return _repoint_all(context, moves, how)


def _repoint_all(context: TableContext, moves: Moves, how: How) -> Relocation:
    newest, branches = heads(context), []
    for head in newest:
        branches.append(_repoint(context, head.branch, moves, how))
        how.tell(len(branches), len(newest))
    # Read only now: somebody who moves the same table may have carried them meanwhile.
    named, tags = context.refs.tags().values(), []
    for tag in named:
        tags.append(_carry(context, tag, moves, how))
        how.tell(len(newest) + len(tags), len(newest) + len(named))
    return Relocation(
        branches=tuple(done for done in branches if done is not None),
        tags=tuple(done for done in tags if done is not None),
    )


def _changed(state: State, moves: Moves) -> tuple[BasePath, ...]:
    bases = state.manifest.base_paths
    return moved_base_paths(bases, moves(state), {base.path: spelled(base.path) for base in bases}) if bases else ()


def _repoint(context: TableContext, branch: str, moves: Moves, how: How) -> Repointed | None:
    """Commit the newest version of a branch again, with other base paths; None when there is nothing to change."""
    transaction_id = str(uuid.uuid4())
    done: Repointed | None = None

    def propose(head: State) -> Proposal | State:
        nonlocal done
        changed = _changed(head, moves)
        if not changed:
            return head
        new = replace(head, manifest=replace_base_paths(head.manifest, changed))
        files = check_files(context, new, [base.id for base in changed]) if how.check else 0
        old = {base.id: base.path for base in head.manifest.base_paths}
        paths = tuple((old[base.id], base.path) for base in changed)
        done = Repointed(name=branch, before=str(head), after=None, paths=paths, files=files)
        if how.dry_run:
            return head
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=UpdateBases(new_bases=changed),
            properties={
                REPOINTED: "true",
                COMMIT_MESSAGE: f"base paths are elsewhere: {', '.join(old for old, _ in paths)}",
            },
        )
        # The rule for added bases refuses ids that are taken; here they are meant.
        following = next_manifest(context.versions, head, replace(transaction, operation=UpdateBases(new_bases=())))
        return Proposal(transaction, replace_base_paths(following, changed))

    state = commit(context.versions, branch, propose)
    return done if done is None or how.dry_run else replace(done, after=str(state))


def _carry(context: TableContext, tag: Tag, moves: Moves, how: How) -> Repointed | None:
    """Point a tag on a version that looks in the old place to one with the same rows that does not."""
    try:
        state = context.versions.load(tag.branch, tag.version)
    except VersionNotFoundError:
        return None
    if not _changed(state, moves):
        return None
    done = Repointed(name=tag.name, before=tag.ref, after=None)
    if how.dry_run:
        return done
    found = _repeated(context, state, moves) or _forked(context, tag, state, moves, check=how.check)
    wanted = replace(
        tag, branch=found.branch, version=found.number, manifest_size=context.versions.manifest_size(found)
    )
    context.refs.swap_tag(wanted, tag.ref)
    return replace(done, after=wanted.ref)


def _repeated(context: TableContext, state: State, moves: Moves) -> State | None:
    """Follow the versions that only changed base paths to one that looks in the right places."""
    while _changed(state, moves):
        try:
            following = context.versions.load(state.branch, state.number + 1)
        except VersionNotFoundError:
            return None
        if following.transaction is None or REPOINTED not in following.transaction.properties:
            return None
        state = following
    return state


def _forked(context: TableContext, tag: Tag, state: State, moves: Moves, *, check: bool) -> State:
    """Fork a branch of its own for a tagged version, and re-point that."""
    taken = context.refs.branches()
    names = (f"relocated-{tag.name}" if count == 1 else f"relocated-{tag.name}-{count}" for count in range(1, 10**6))
    tags = context.refs.tags("relocated-*")
    free = (name for name in names if name not in tags)
    name = next(name for name in free if name not in taken or taken[name].parent == tag.ref)
    create_branch(name, state, context.refs, context.versions, exist_ok=True, metadata={REPOINTED: tag.name})
    there = dict(moves(state))
    _repoint(context, name, lambda _: there, How(check=check))
    return context.head(name)


def _earlier_places(context: TableContext, branch: str) -> set[str]:
    """Find out where the table was while a branch, or one it was forked from, was written.

    Raises:
        InvalidInputError: It cannot be told.
    """
    if branch == layout.MAIN:
        # Main names nothing by the table's place, except base paths that lie in its folder or are that folder.
        names = [name for name in context.refs.branches() if context.versions.newest(name) is not None]
        return {place for name in names for place in _earlier_places(context, name)}
    found: set[str] = set()
    line: str = branch
    while line != layout.MAIN:
        numbers = context.versions.numbers(line)
        if numbers:
            first, newest = context.versions.load(line, numbers[0]), context.versions.load(line, numbers[-1])
            found |= _roots(context, first, newest)
        above = context.refs.branch(line)
        if above is None:
            break
        line = above.parent_branch
    return found - {context.uri}


def _roots(context: TableContext, first: State, newest: State) -> set[str]:
    """Return the places the first and the newest version of a branch take for the table's own."""
    foreign = _foreign(context)
    ids = _ids_by_clone(first) or {
        base.id: ""
        for base in newest.manifest.base_paths
        if base.name == ROOT_BASE and spelled(base.path) not in foreign
    }
    if not ids:
        ids = _ids_by_elimination(context, newest, foreign)
    found: set[str] = set()
    for state in (first, newest):
        for base in state.manifest.base_paths:
            if base.id in ids and base.is_dataset_root:
                found.add(spelled(base.path).removesuffix(ids[base.id]))
    return found


def _foreign(context: TableContext) -> set[str]:
    """Return the base paths of main: never the table itself."""
    if context.versions.newest(layout.MAIN) is None:
        return set()
    return {spelled(base.path) for base in context.versions.head(layout.MAIN).manifest.base_paths}


def _ids_by_clone(first: State) -> dict[int, str]:
    """Return the ids of the base paths a branch was forked through, and what each adds to the table's root."""
    operation = first.transaction.operation if first.transaction else None
    if not isinstance(operation, Clone):
        return {}
    parent = spelled(operation.ref_path)
    below = f"/{layout.branch_root(operation.ref_name)}" if operation.ref_name else ""
    root = parent.removesuffix(below)
    found: dict[int, str] = {}
    for base in first.manifest.base_paths:
        path = spelled(base.path)
        if path in (root, parent):
            found[base.id] = path.removeprefix(root)
    return found


def _ids_by_elimination(context: TableContext, newest: State, foreign: set[str]) -> dict[int, str]:
    """Take the one base path that main does not have, where nothing else tells: the first version is cleaned up."""
    branches = [f"/{layout.branch_root(name)}" for name in context.refs.branches()]
    found: dict[int, str] = {}
    for base in newest.manifest.base_paths:
        path = spelled(base.path)
        below = max((below for below in branches if path.endswith(below)), key=len, default="")
        # One that somebody added has a name of its own.
        if base.is_dataset_root and path not in foreign and (base.name is None or below):
            found[base.id] = below
    roots = {spelled(base.path).removesuffix(found[base.id]) for base in newest.manifest.base_paths if base.id in found}
    if len(roots) > 1:
        raise InvalidInputError(
            f"cannot tell which of {', '.join(sorted(roots))} was the place of the table that {newest} belongs to",
            remedy=Remedy("say which, as in {}", Call("maintenance.relocate", (min(roots),))),
        )
    return found


def migrate_manifest_names(versions: Versions, branches: Iterable[str]) -> int:
    """Rename what has an old name on `main` and on some branches. Returns how many versions were renamed.

    Raises:
        CorruptFileError: Two different manifests would have one name.
    """
    return sum(_migrate(versions, branch) for branch in [*sorted(branches), MAIN])


def _migrate(versions: Versions, branch: str) -> int:
    store, folder = versions.store, join(branch_root(branch), VERSIONS)
    renamed = 0
    # Again, until nothing is left: a writer that was not stopped may have put one more.
    while True:
        _, old = parse_manifest_names(store.list(folder))
        if not old:
            # So that commits of this object go on under the present scheme.
            versions.numbers(branch)
            return renamed
        # Newest first: a store that lists in order shows only the first names, and the newest has to be among them.
        for number in sorted(old, reverse=True):
            _copy(versions, folder, number)
        for number in sorted(old):
            store.delete(f"{folder}/{manifest_name_v1(number)}")
        renamed += len(old)


def _copy(versions: Versions, folder: str, number: int) -> None:
    store = versions.store
    source, target = f"{folder}/{manifest_name_v1(number)}", f"{folder}/{manifest_name(number)}"
    data = store.get(source)
    if data is None or store.put_if_absent(target, data):
        return
    if store.get(target) != data:
        raise CorruptFileError(
            f"{store.uri}/{target}",
            f"it is another version {number} than {manifest_name_v1(number)}; a writer was at work meanwhile: "
            "find out which of the two readers saw, and remove the other",
        )
