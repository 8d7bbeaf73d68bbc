"""Bring back a branch whose file or versions were deleted though its commits were acknowledged.

A branch is its file and its manifests. Where the file is gone, its content follows from the manifests: the first
version of a branch clones its fork point, under the branch's id. Where manifests are gone, `_expired/` has copies of
them for about a day; the files that they name are kept as long. So a branch comes back from either half, and no version
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
recovery does the rest; one that begins while this one is at work takes its place.

A late writer may have put a manifest after the versions were deleted (`refs.branch_fence`). It becomes a version of the
branch, and its writer does not know whether it is one, except in two cases: there is a copy of another version of its
number, which was acknowledged and replaces it; or its writer is deleting it, and recorded that in a fence file. Then
step 4 begins with deleting it.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lance_dagster.errors import (
    BasePathRefusedError,
    ConflictError,
    CorruptFileError,
    RefNotFoundError,
    UnsupportedFeatureError,
)
from lance_dagster.format import layout
from lance_dagster.format.codec import commit_id, decode_manifest_file
from lance_dagster.format.transaction import Clone, Transaction, reset_target
from lance_dagster.history.commit import write_hint
from lance_dagster.history.inventory import EXPIRED, newest_copies_of, owner_digest, parsed_copies
from lance_dagster.history.refs.branch_deletion import abandon_creation, fences, put_back, restore_version
from lance_dagster.history.refs.branch_fence import WITHDRAWN, delete_manifest
from lance_dagster.history.refs.branch_operations import refuse_dying_parent, refuse_tagged
from lance_dagster.history.refs.ref_files import (
    CREATING,
    DELETING,
    FIRST,
    LAST,
    READY,
    RECOVERED,
    RECOVERING,
    STATE,
    Branch,
    new_branch,
    with_metadata,
)
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.transactions.base_paths import FileReferences, file_references


@dataclass(frozen=True, slots=True)
class _Found:
    """A version: its commit id and transaction, and of a copy the bytes, when it was written, and for which branch.

    `problem` is why a copy cannot be read.
    """

    number: int
    id: str
    made: Transaction | None
    data: bytes = b""
    modified: float = float("inf")
    owner: str = ""
    problem: CorruptFileError | None = None

    def is_fork(self, branch: Branch | None) -> bool:
        """Tell whether it is the first version of a branch; of any branch where that is None."""
        cloned = self.made is not None and isinstance(self.made.operation, Clone)
        return cloned and self.made is not None and (branch is None or self.made.uuid == branch.id)


@dataclass(frozen=True, slots=True)
class _Series:
    """What a recovery found.

    Attributes:
        versions: The versions that are to be there afterwards, by number.
        late: The commit ids of manifests that exist and that their writers are deleting, by number.
        whole: Whether only the file was lost, and the first version is in its place.
    """

    versions: Mapping[int, _Found]
    late: Mapping[int, str]
    whole: bool

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return max(self.versions)


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
        CorruptFileError: A file that its newest version names was deleted, or the copy of a version is damaged.
    """
    check_branch_name(name)
    branch = refs.branch(name)
    if branch is not None and branch.state == READY and versions.newest(name) is not None:
        return branch
    if branch is not None:
        _refuse_other_work(branch, refs)
    series = _series(name, branch, refs, versions)
    if not series.versions:
        raise refs.branch_not_found(name)
    if branch is None:
        found = _with_name_taken(name, series, refs, versions)
    else:
        _refuse_without_files(name, series, refs, versions)
        found = _taken_over(branch, series.newest, refs, versions)
    if found.state == READY:
        return found
    # A branch that had the name since the first look has a file or has left copies.
    again = _series(name, branch, refs, versions, whole=series.whole)
    # A branch that is ready has been looked at by whoever made it so.
    if branch is None or branch.state != READY:
        _check(found, again, refs, versions, taken=branch is None)
    return _completed(_with_last(found, again, refs), again, refs, versions)


def _refuse_without_files(name: str, series: _Series, refs: Refs, versions: Versions) -> None:
    """Refuse to bring back a branch that could not be read: files of the table that it needs were deleted.

    Raises:
        CorruptFileError: The newest version lacks a file.
        RefNotFoundError: A version lacks one, and the same versions are left under another name of the branch.
    """
    made, newest = next(iter(series.versions.values())).made, series.versions[series.newest]
    copies = newest_copies_of(refs.store, "" if made is None else made.uuid)
    # A rename copies the files in the folder of the branch, and then deletes those under the old name.
    same = [one for one, number in copies.items() if one != name and number == newest.number]
    missing = _missing_file(name, series.versions.values() if same else [newest], versions)
    if missing is not None and same:
        instead = (
            f"{missing} was deleted, and the branch has the same versions under the name {same[0]!r}; recover that"
        )
        raise RefNotFoundError(name, refs.known(), refs.store.uri, "branch", instead)
    if missing is not None:
        raise CorruptFileError(missing, f"it was deleted, so branch {name!r} cannot be recovered")


def _missing_file(name: str, found: Iterable[_Found], versions: Versions) -> str | None:
    """Return the URI of a file in the table that one of the versions names and that is not there."""
    wanted: dict[str, set[str]] = {}
    for version in found:
        # A version that is in its place is not made worse by the branch file.
        for place in _files_of(name, version, versions) if version.data else ():
            try:
                inside = versions.bases.is_inside(place.base.path) and place.base.is_dataset_root
            except BasePathRefusedError:
                inside = False
            # Other places may need options that are not at hand, and no collection of this table deletes there.
            if inside:
                folder = versions.bases.locate(place.base.path)[1]
                wanted.setdefault(layout.join(folder, layout.DATA), set()).update(place.data)
                wanted.setdefault(layout.join(folder, layout.DELETIONS), set()).update(place.deletions)
    for folder, names in wanted.items():
        missing = names - versions.store.sizes(folder).keys() if names else set()
        if missing:
            return layout.join(versions.store.uri, folder, min(missing))
    return None


def _files_of(name: str, found: _Found, versions: Versions) -> list[FileReferences]:
    try:
        manifest, _ = decode_manifest_file(found.data, f"{versions.store.uri}/{EXPIRED}/{name}")
        return file_references(manifest, versions.branch_uri(name))
    except UnsupportedFeatureError:
        # A later release wrote it, and knows its files.
        return []


def _refuse_other_work(branch: Branch, refs: Refs) -> None:
    begun = branch.state == CREATING and RECOVERING in branch.metadata
    if branch.state != READY and not begun:
        raise ConflictError(f"cannot recover branch {branch.name!r} of {refs.store.uri}: it is {branch.state}")


def _taken_over(branch: Branch, last: int, refs: Refs, versions: Versions) -> Branch:
    """Begin to bring back the versions of a branch whose file is there, perhaps in place of another recovery.

    The later one of two recoveries completes the branch: only it knows every manifest that a writer is deleting.
    """

    def begun(current: Branch) -> Branch:
        # Another recovery may have completed it, and it may have commits by now. That has changed the file, so a swap
        # that was overtaken looks again.
        done = current.state == READY and versions.newest(branch.name) is not None
        return current if done else _begun(current, last, refs)

    return refs.change_branch(branch, begun)


def _series(name: str, branch: Branch | None, refs: Refs, versions: Versions, *, whole: bool | None = None) -> _Series:
    """Find the versions that are to be there afterwards; those that a reset dropped stay away.

    Args:
        name: The name of the branch.
        branch: The branch, where its file is there.
        refs: The branches of the table.
        versions: The versions of the table.
        whole: What an earlier look found, before the file was written.
    """
    withdrawn = {of for own, number, _, of in fences(refs) if own == name and number == WITHDRAWN}
    # A writer may delete its manifest after it was listed.
    states = [state for number in versions.numbers(name) if (state := versions.find(name, number)) is not None]
    stored = [_Found(one.number, one.id, one.transaction) for one in states if one.id not in withdrawn]
    every = sorted(_copies(name, versions), key=lambda one: one.modified)
    copies = [one for one in every if one.problem is None]
    # Earlier branches of the name may have left copies too.
    forks = [one for one in (*copies, *stored) if one.is_fork(branch)]
    if not forks:
        _refuse_damaged(every)
        return _Series({}, {}, whole=False)
    fork = max(forks, key=lambda one: (one.modified, one.number))
    owners = _owners_of(fork, forks)
    own = {one.number: one for one in copies if one.owner in owners}
    if whole is None:
        whole = branch is None and not fork.data
    # Where the versions had been deleted, a manifest beside the copy of its number was put late.
    kept = [one for one in stored if whole or one.id == own.get(one.number, one).id]
    found = own | {one.number: one for one in kept}
    late = {one.number: one.id for one in states if one.id in withdrawn and found.get(one.number, fork).id != one.id}
    resets = [(target, one.number) for one in found.values() if (target := reset_target(one.made)) is not None]
    dropped = {one for one in found for target, number in resets if target < one < number}
    # Damaged copies of earlier branches do not matter; without one of a later branch, an earlier one would come back.
    _refuse_damaged(
        one for one in every if (one.number not in found if one.owner in owners else one.modified > fork.modified)
    )
    wanted = {number: found[number] for number in sorted(found.keys() - dropped) if number >= fork.number}
    return _Series(wanted, late, whole)


def _refuse_damaged(copies: Iterable[_Found]) -> None:
    problems = [one.problem for one in copies if one.problem is not None]
    if problems:
        raise problems[-1]


def _owners_of(fork: _Found, forks: Iterable[_Found]) -> set[str]:
    """Return the digests that the keys of a branch's copies have of its id, given its first version."""
    uuid_of = "" if fork.made is None else fork.made.uuid
    same = {one.owner for one in forks if one.made is not None and one.made.uuid == uuid_of}
    return {owner_digest(uuid_of)} | same


def _with_name_taken(name: str, series: _Series, refs: Refs, versions: Versions) -> Branch:
    """Create the file of a branch that has none, unless another branch has its name or its id."""
    # The first version of a series is a fork.
    first, found = next(iter(series.versions.items()))
    made = found.made
    if made is None or not isinstance(made.operation, Clone):
        raise refs.branch_not_found(name)
    refuse_tagged(name, refs)
    _refuse_renamed(name, made.uuid, series.newest, refs)
    _refuse_without_files(name, series, refs, versions)
    parent = _fork_point(name, made.operation, refs, versions)
    wanted = _begun(_described(name, first, made.uuid, parent), series.newest, refs)
    branch = refs.add_branch(wanted)
    if branch.id != wanted.id:
        raise ConflictError(f"cannot recover branch {name!r} of {refs.store.uri}: another branch took its name")
    own = branch.metadata.get(RECOVERING) == wanted.metadata[RECOVERING]
    return branch if own else _taken_over(branch, series.newest, refs, versions)


def _check(branch: Branch, series: _Series, refs: Refs, versions: Versions, *, taken: bool) -> None:
    """Look for what forbids that a branch comes back, now that its file is there.

    Args:
        branch: The branch that a recovery has begun to bring back.
        series: Its versions.
        refs: The branches of the table.
        versions: The versions of the table.
        taken: Whether that is this recovery, which then also gives up the name.
    """
    # The recovery that began this may have ended before it looked.
    refuse_dying_parent(branch, refs, versions)
    try:
        _refuse_other(branch, series, refs)
        # This is looked for again: two names of one branch may be recovered at the same time.
        _refuse_renamed(branch.name, branch.id, series.newest, refs)
    except (ConflictError, RefNotFoundError):
        if taken:
            abandon_creation(branch, refs, versions)
        raise


def _refuse_other(branch: Branch, series: _Series, refs: Refs) -> None:
    """Refuse to bring back a branch with versions of another one that had the name later."""
    first = next(iter(series.versions.values()), None)
    if first is None or not first.is_fork(branch):
        raise ConflictError(
            f"cannot recover branch {branch.name!r} of {refs.store.uri}: another branch had its name meanwhile"
        )


def _begun(branch: Branch, last: int, refs: Refs) -> Branch:
    if branch.state not in (CREATING, READY):
        raise ConflictError(f"cannot recover branch {branch.name!r} of {refs.store.uri}: it is {branch.state}")
    # A deletion that comes in between fences off every number that is about to come back.
    last = max(last, branch.last[0] if branch.last and branch.state == CREATING else 0)
    return with_metadata(branch, {STATE: CREATING, RECOVERING: uuid.uuid4().hex, LAST: f"{last} {int(time.time())}"})


def _with_last(branch: Branch, series: _Series, refs: Refs) -> Branch:
    """Record the highest number that is to come back, where there are more versions than when this began."""
    if not series.versions:
        raise _overtaken(branch, refs)
    newest = series.newest
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


def _refuse_renamed(name: str, branch_id: str, last: int, refs: Refs) -> None:
    """Refuse a name that the branch had before it got a name of which there are later versions."""
    other = next((one.name for one in refs.branches().values() if one.id == branch_id and one.name != name), None)
    if other is not None:
        raise RefNotFoundError(name, refs.known(), refs.store.uri, "branch", f"the branch is called {other!r} now")
    # After the files of the branches: where one was deleted meanwhile, there are copies of its versions by then.
    newest = {one: number for one, number in newest_copies_of(refs.store, branch_id).items() if one != name}
    latest = max(newest, key=lambda one: newest[one], default=name)
    if newest.get(latest, 0) > last:
        instead = f"the branch has later versions under the name {latest!r}, which was deleted; recover {latest!r}"
        raise RefNotFoundError(name, refs.known(), refs.store.uri, "branch", instead)


def _completed(branch: Branch, series: _Series, refs: Refs, versions: Versions) -> Branch:
    """Put the versions in their places, and then let the branch take commits."""
    for number, late in series.late.items():
        delete_manifest(versions.manifest_path(branch.name, number), late, versions.store)
    # A version without bytes is in its place.
    restored = {number: found.data for number, found in series.versions.items() if found.data}
    # Oldest first: an interrupted recovery leaves a series without gaps, which the next one continues.
    for number, data in restored.items():
        restore_version(branch.name, number, data, versions, late=True)
    versions.forget()
    write_hint(versions, layout.versions_folder(branch.name), max(series.versions))

    def ready(current: Branch) -> Branch:
        if current.state == READY:
            return current
        # The versions of another recovery are not complete yet.
        if not _is_same(current, branch):
            raise _overtaken(branch, refs)
        done = current.metadata[RECOVERING]
        return with_metadata(current, {STATE: READY, RECOVERING: None, RECOVERED: done, LAST: None})

    try:
        return refs.change_branch(branch, ready)
    except ConflictError:
        stored = refs.branch(branch.name)
        # What came after the deletion is taken back. No other branch has these numbers, which are below its fence.
        if stored is None or stored.id != branch.id or stored.state == DELETING:
            versions.store.delete_many([versions.manifest_path(branch.name, number) for number in restored])
            versions.forget()
            # Another process may have recovered the branch since it was read.
            put_back(branch, restored.keys(), refs, versions)
        raise


def _copies(name: str, versions: Versions) -> Iterator[_Found]:
    """Read the copies of manifests that branches of the name had."""
    for branch, number, entry, owner in parsed_copies(versions.store.walk(f"{EXPIRED}/{name}")):
        # The copies of a branch `a/b` lie below the folder with the copies of `a`.
        data = versions.store.get(entry.key) if branch == name else None
        if data is not None:
            try:
                made = decode_manifest_file(data, f"{versions.store.uri}/{entry.key}")[1]
            except CorruptFileError as error:
                # Copies are not synced, so a power cut may leave an empty one.
                yield _Found(number, "", None, b"", entry.modified, owner, error)
            else:
                yield _Found(number, commit_id(data), made, data, entry.modified, owner)


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
