"""Bring back a branch whose file or versions were deleted though its commits were acknowledged.

A branch is its file and its manifests. Where the file is gone, its content follows from the manifests: the first
version of a branch clones its fork point, under the branch's id. Where manifests are gone, `_expired/` has copies of
them for about a day; the files that they name are kept as long. So a branch comes back from either half, and nothing
that exists is overwritten.

1. The file, in state "creating", with a mark that keeps commits off, and the highest number that is to come back. It
   takes the name before any version is there: another branch that took it meanwhile would have these versions, too.
2. A search for another branch with the id of this one, and for copies of later versions under another name. A renamed
   branch keeps its id. Merges record what they contain by branch id and version number, so commits of a second branch
   with this id, or with numbers that the branch used under its later name, would count as merged.
3. The versions are listed again: commits that came between the first listing and step 1 were made by a branch that is
   deleted by now, and has left copies.
4. The versions, oldest first.
5. The file, in state "ready".

A deletion in between ends the recovery, which then deletes the versions that it put there. After a crash, another
recovery does the rest.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lance_dagster.errors import ConflictError, RefNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.transaction import Clone, Transaction, reset_target
from lance_dagster.history.inventory import EXPIRED, expired_copies, newest_copies_of
from lance_dagster.history.refs.branch_deletion import abandon_creation, put_back, restore_version
from lance_dagster.history.refs.branch_operations import refuse_dying_parent, refuse_tagged
from lance_dagster.history.refs.ref_files import (
    CREATING,
    DELETING,
    FIRST,
    LAST,
    READY,
    RECOVERING,
    STATE,
    Branch,
    new_branch,
    with_metadata,
)
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions

# The bytes of a copy (empty for a manifest that is in its place), and the transaction of the version.
_Found = tuple[bytes, Transaction | None]
# The parent (None for `main`), the number of the version there, and the size of its manifest.
_ForkPoint = tuple[Branch | None, int, int]


def recover_branch(name: str, refs: Refs, versions: Versions) -> Branch:
    """Bring back a branch: its file from its first version, and its versions from the copies of expired manifests.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        RefNotFoundError: Nothing of such a branch is left; or it was renamed; or the branch that it was forked from is
            gone.
        AlreadyExistsError: A tag has the name.
        ConflictError: A branch of the name is being created, deleted or reset.
    """
    check_branch_name(name)
    branch = refs.branch(name)
    begun = branch is not None and branch.state == CREATING and RECOVERING in branch.metadata
    if branch is not None and not begun:
        if branch.state != READY:
            raise ConflictError(f"cannot recover branch {name!r} of {refs.store.uri}: it is {branch.state}")
        if versions.newest(name) is not None:
            return branch
    series = _series(name, branch, versions)
    if not series:
        raise refs.branch_not_found(name)
    if branch is not None and not begun:
        found = refs.change_branch(branch, lambda current: _begun_unless_done(current, series, refs, versions))
    else:
        found = branch or _with_name_taken(name, series, refs, versions)
    if found.state == READY:
        return found
    # A branch that had the name since the first look has a file or has left copies.
    if branch is not None and not begun:
        series = _series(name, found, versions) or series
    else:
        series = _checked_series(found, refs, versions, taken=branch is None)
    return _completed(_with_last(found, series, refs), series, refs, versions)


def _series(name: str, branch: Branch | None, versions: Versions) -> dict[int, _Found]:
    """Return the versions that are to be there afterwards, by number; those that a reset dropped stay away."""
    found = _copies(name, versions) | _stored(name, versions)
    # The newest fork: an earlier branch of the name may have left copies too, and those have lower numbers.
    first = max((number for number, (_, made) in found.items() if _is_fork(made, branch)), default=None)
    if first is None:
        return {}
    resets = [(target, number) for number, (_, made) in found.items() if (target := reset_target(made)) is not None]
    dropped = {one for one in found for target, number in resets if target < one < number}
    return {number: found[number] for number in sorted(found.keys() - dropped) if number >= first}


def _with_name_taken(name: str, series: Mapping[int, _Found], refs: Refs, versions: Versions) -> Branch:
    """Create the file of a branch that has none, unless another branch has its name or its id."""
    # The first version of a series is a fork.
    first, (_, made) = next(iter(series.items()))
    if made is None or not isinstance(made.operation, Clone):
        raise refs.branch_not_found(name)
    refuse_tagged(name, refs)
    _refuse_renamed(name, made.uuid, series, refs)
    parent = _fork_point(name, made.operation, refs, versions)
    wanted = _begun(_described(name, first, made.uuid, parent), series, refs)
    branch = refs.add_branch(wanted)
    if branch.id != wanted.id:
        raise ConflictError(f"cannot recover branch {name!r} of {refs.store.uri}: another branch took its name")
    return branch


def _checked_series(branch: Branch, refs: Refs, versions: Versions, *, taken: bool) -> dict[int, _Found]:
    """Read the versions once more, now that the name is taken, and look for what forbids that they come back.

    Args:
        branch: The branch that a recovery has begun to bring back.
        refs: The branches of the table.
        versions: The versions of the table.
        taken: Whether that is this recovery, which then also gives up the name.
    """
    # The recovery that began this may have ended before it looked.
    refuse_dying_parent(branch, refs, versions)
    try:
        series = _series(branch.name, None if taken else branch, versions)
        _refuse_other(branch, series, refs)
        # This is looked for again: two names of one branch may be recovered at the same time.
        _refuse_renamed(branch.name, branch.id, series, refs)
    except (ConflictError, RefNotFoundError):
        if taken:
            abandon_creation(branch, refs, versions)
        raise
    return series


def _refuse_other(branch: Branch, series: Mapping[int, _Found], refs: Refs) -> None:
    """Refuse to bring back a branch with versions of another one that had the name later."""
    _, made = next(iter(series.values()), (b"", None))
    if made is None or made.uuid != branch.id:
        raise ConflictError(
            f"cannot recover branch {branch.name!r} of {refs.store.uri}: another branch had its name meanwhile"
        )


def _begun_unless_done(branch: Branch, series: Iterable[int], refs: Refs, versions: Versions) -> Branch:
    """Mark a branch that has no versions; a branch that another recovery completed may have commits by now."""
    done = branch.state == READY and versions.newest(branch.name) is not None
    return branch if done else _begun(branch, series, refs)


def _begun(branch: Branch, series: Iterable[int], refs: Refs) -> Branch:
    if branch.state not in (CREATING, READY):
        raise ConflictError(f"cannot recover branch {branch.name!r} of {refs.store.uri}: it is {branch.state}")
    # A deletion that comes in between fences off every number that is about to come back.
    last = f"{max(series)} {int(time.time())}"
    return with_metadata(branch, {STATE: CREATING, RECOVERING: uuid.uuid4().hex, LAST: last})


def _with_last(branch: Branch, series: Iterable[int], refs: Refs) -> Branch:
    """Record the highest number that is to come back, where there are more versions than when this began."""
    newest = max(series)
    if branch.last is not None and branch.last[0] >= newest:
        return branch

    def recorded(current: Branch) -> Branch:
        if not _is_same(current, branch):
            raise _overtaken(branch, refs)
        return with_metadata(current, {LAST: f"{newest} {int(time.time())}"})

    return refs.change_branch(branch, recorded)


def _is_same(current: Branch, branch: Branch) -> bool:
    """Tell whether a recovery is still under way; one that began after a deletion has another id."""
    return current.state == CREATING and current.metadata.get(RECOVERING) == branch.metadata.get(RECOVERING)


def _overtaken(branch: Branch, refs: Refs) -> ConflictError:
    return ConflictError(
        f"cannot recover branch {branch.name!r} of {refs.store.uri}: another process deleted or recovered it"
    )


def _refuse_renamed(name: str, branch_id: str, series: Iterable[int], refs: Refs) -> None:
    """Refuse a name that the branch had before it got a name of which there are later versions."""
    other = next((one.name for one in refs.branches().values() if one.id == branch_id and one.name != name), None)
    if other is not None:
        raise RefNotFoundError(name, refs.known(), refs.store.uri, "branch", f"the branch is called {other!r} now")
    # After the files of the branches: where one was deleted meanwhile, there are copies of its versions by then.
    newest = {one: number for one, number in newest_copies_of(refs.store, branch_id).items() if one != name}
    last = max(newest, key=lambda one: newest[one], default=name)
    if newest.get(last, 0) > max(series):
        instead = f"the branch has later versions under the name {last!r}, which was deleted; recover {last!r}"
        raise RefNotFoundError(name, refs.known(), refs.store.uri, "branch", instead)


def _completed(branch: Branch, series: Mapping[int, _Found], refs: Refs, versions: Versions) -> Branch:
    """Put the versions in their places, and then let the branch take commits."""
    # Oldest first: an interrupted recovery leaves a series without gaps, which the next one continues.
    for number, (data, _) in series.items():
        # A version without a copy is in its place.
        if data:
            restore_version(branch.name, number, data, versions)
    versions.forget()

    def ready(current: Branch) -> Branch:
        if current.state == READY:
            return current
        # The versions of another recovery are not complete yet.
        if not _is_same(current, branch):
            raise _overtaken(branch, refs)
        return with_metadata(current, {STATE: READY, RECOVERING: None, LAST: None})

    try:
        return refs.change_branch(branch, ready)
    except ConflictError:
        stored = refs.branch(branch.name)
        # What came after the deletion is taken back. No other branch has these numbers, which are below its fence.
        if stored is None or stored.id != branch.id or stored.state == DELETING:
            numbers = [number for number, (data, _) in series.items() if data]
            versions.store.delete_many([versions.manifest_path(branch.name, number) for number in numbers])
            versions.forget()
            # Another process may have recovered the branch since it was read.
            put_back(branch, numbers, refs, versions)
        raise


def _is_fork(made: Transaction | None, branch: Branch | None) -> bool:
    return made is not None and isinstance(made.operation, Clone) and (branch is None or made.uuid == branch.id)


def _stored(name: str, versions: Versions) -> dict[int, _Found]:
    states = (versions.load(name, number) for number in versions.numbers(name))
    return {state.number: (b"", state.transaction) for state in states}


def _copies(name: str, versions: Versions) -> dict[int, _Found]:
    """Read the copies of manifests that a branch of the name had."""
    found = {}
    for branch, number, entry, _ in expired_copies(versions.store.walk(f"{EXPIRED}/{name}"), {}):
        # The copies of a branch `a/b` lie below the folder with the copies of `a`.
        data = versions.store.get(entry.key) if branch == name else None
        if data is not None:
            found[number] = (data, decode_manifest_file(data, f"{versions.store.uri}/{entry.key}")[1])
    return found


def _fork_point(name: str, fork: Clone, refs: Refs, versions: Versions) -> _ForkPoint:
    of = fork.ref_name or layout.MAIN
    parent = None if of == layout.MAIN else refs.branch(of)
    if of != layout.MAIN and parent is None:
        raise RefNotFoundError(of, refs.known(), refs.store.uri, "branch", f"{name!r} was forked from it")
    state = versions.find(of, fork.ref_version)
    return parent, fork.ref_version, 0 if state is None else versions.manifest_size(state)


def _described(name: str, first: int, branch_id: str, fork_point: _ForkPoint) -> Branch:
    """Return the branch that a first version was made for."""
    parent, number, size = fork_point
    described = new_branch(name, parent, version=number, manifest_size=size, metadata={})
    lineage = (*described.lineage[:-1], (described.lineage[-1][0], branch_id))
    own = {FIRST: str(first)} if first != number else {}
    return with_metadata(replace(described, id=branch_id, lineage=lineage), {STATE: CREATING, **own})
