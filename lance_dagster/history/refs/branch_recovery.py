"""Bring back a branch whose file or versions were deleted though its commits were acknowledged.

A branch is its file and its manifests. If the file is gone, its content follows from the manifests: the first version
of a branch clones its fork point, under the branch's id. If manifests are gone, `_expired/` has copies of them for
about a day, and the data files that they name are kept as long. So a branch comes back from its file or from its
manifests, and no version that exists is overwritten. Steps:

1. Write the branch's file, in state "creating", with a mark that keeps commits off, and with the highest version number
   that is to come back. The file takes the name before any version is put back: a new branch that took the name
   meanwhile would have the old versions too.
2. Search for a branch that has the same id under another name, and for copies of later versions under another name. A
   renamed branch keeps its id, and merges record what they contain by branch id and version number. So commits of a
   second branch with the id, or with numbers that the branch used under its later name, would count as merged.
3. List the versions again. A branch that had the name between the first listing and step 1, and was deleted, has left
   copies of its versions.
4. Put the versions in their places, oldest first.
5. Set the branch's file to state "ready".

If the branch is deleted in between, the recovery ends and deletes the versions that it put back. After a crash, the
same call completes the recovery. If two recoveries meet, the later recovery takes the place of the earlier recovery.

A late writer may have put a manifest after the versions were deleted (`refs.branch_fence`). In the example, `run/7` was
deleted with the versions 1 to 5, and manifest 6 came late. Manifest 6 becomes a version of the recovered branch, though
its writer was told that its state is unknown, with two exceptions, in which step 4 begins with deleting the manifest:

- `_expired/` has a copy of an acknowledged version 6 with another commit id. The copy replaces the late manifest.
- The writer of manifest 6 is deleting it, and has recorded that in a fence file.
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
class _StoredVersion:
    """A version of the branch, as a manifest in its place or as a copy in `_expired/`.

    Attributes:
        number: The version number.
        id: The commit id.
        transaction: The transaction of the version.
        data: The bytes of a copy; empty for a manifest in its place.
        modified: When a copy was written; infinite for a manifest in its place.
        owner: The digest of the branch's id in the key of a copy; empty for a manifest in its place.
        problem: Why a copy cannot be read; None where it can.
    """

    number: int
    id: str
    transaction: Transaction | None
    data: bytes = b""
    modified: float = float("inf")
    owner: str = ""
    problem: CorruptFileError | None = None

    def is_fork(self, branch: Branch | None) -> bool:
        """Tell whether this is the first version of `branch`; without `branch`, the first version of any branch."""
        if self.transaction is None or not isinstance(self.transaction.operation, Clone):
            return False
        return branch is None or self.transaction.uuid == branch.id


@dataclass(frozen=True, slots=True)
class _Series:
    """The versions of a branch that a recovery brings back.

    Attributes:
        versions: The versions that the recovered branch will have, by number.
        late: The commit ids of late manifests that their writers are deleting, by number.
        only_file_lost: Whether the branch lost only its file: its first version is in its place.
    """

    versions: Mapping[int, _StoredVersion]
    late: Mapping[int, str]
    only_file_lost: bool

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return max(self.versions)


# The parent branch (None for `main`), the number of the version of the parent, and the size of its manifest.
_ForkPoint = tuple[Branch | None, int, int]


def recover_branch(name: str, refs: Refs, versions: Versions) -> Branch:
    """Bring back a branch: its file from its first version, and its versions from the copies of expired manifests.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        RefNotFoundError: Neither the file nor a version of the branch is left; or the branch was renamed; or the branch
            that it was forked from is gone.
        AlreadyExistsError: A tag has the name.
        ConflictError: A branch of the name is being created, deleted or reset.
        CorruptFileError: A file that the newest version names was deleted, or the copy of a version is damaged.
    """
    check_branch_name(name)
    branch = refs.branches.find(name)
    if branch is not None and branch.state == READY and versions.newest(name) is not None:
        return branch
    if branch is not None:
        _refuse_other_work(branch, refs)
    series = _series(name, branch, refs, versions)
    if not series.versions:
        raise refs.branch_not_found(name)
    if branch is None:
        recovering = _with_name_taken(name, series, refs, versions)
    else:
        _refuse_without_files(name, series, refs, versions)
        recovering = _taken_over(branch, series.newest, refs, versions)
    if recovering.state == READY:
        return recovering
    # A branch that took the name after the first listing has a file, or was deleted and has left copies.
    relisted = _series(name, branch, refs, versions, only_file_lost=series.only_file_lost)
    # A branch in state "ready" was checked by the process that set this state.
    if branch is None or branch.state != READY:
        _check(recovering, relisted, refs, versions, owns_name=branch is None)
    return _completed(_with_last(recovering, relisted, refs), relisted, refs, versions)


def _refuse_without_files(name: str, series: _Series, refs: Refs, versions: Versions) -> None:
    """Refuse to bring back a branch whose data files were deleted, since it could not be read.

    Raises:
        CorruptFileError: A file that the newest version names is missing.
        RefNotFoundError: A file is missing, and the branch has the same versions under a later name.
    """
    fork, newest = next(iter(series.versions.values())).transaction, series.versions[series.newest]
    copies = newest_copies_of(refs.store, "" if fork is None else fork.uuid)
    # A rename copies the files in the folder of the branch, and then deletes those under the old name.
    aliases = [alias for alias, number in copies.items() if alias != name and number == newest.number]
    missing = _missing_file(name, series.versions.values() if aliases else [newest], versions)
    if missing is not None and aliases:
        instead = (
            f"{missing} was deleted, and the branch has the same versions under the name {aliases[0]!r}; "
            f"recover {aliases[0]!r}"
        )
        raise RefNotFoundError(name, refs.branches.known(), refs.store.uri, "branch", instead)
    if missing is not None:
        raise CorruptFileError(missing, f"it was deleted, so branch {name!r} cannot be recovered")


def _missing_file(name: str, series: Iterable[_StoredVersion], versions: Versions) -> str | None:
    """Return the URI of a missing file of the table that a copy of a version names; None where none is missing."""
    named: dict[str, set[str]] = {}
    for version in series:
        # Only copies are checked: a manifest in its place lacks the file whether the branch is recovered or not.
        for place in _files_of(name, version, versions) if version.data else ():
            try:
                inside = versions.bases.is_inside(place.base.path) and place.base.is_dataset_root
            except BasePathRefusedError:
                inside = False
            # Files outside of the table are not looked for: no collection of this table deletes them, and reading them
            # may need options that the caller has not given.
            if inside:
                folder = versions.bases.locate(place.base.path)[1]
                named.setdefault(layout.join(folder, layout.DATA), set()).update(place.data)
                named.setdefault(layout.join(folder, layout.DELETIONS), set()).update(place.deletions)
    for folder, names in named.items():
        missing = names - versions.store.sizes(folder).keys() if names else set()
        if missing:
            return layout.join(versions.store.uri, folder, min(missing))
    return None


def _files_of(name: str, version: _StoredVersion, versions: Versions) -> list[FileReferences]:
    try:
        manifest, _ = decode_manifest_file(version.data, f"{versions.store.uri}/{EXPIRED}/{name}")
        return file_references(manifest, versions.branch_uri(name))
    except UnsupportedFeatureError:
        # A later release wrote it, and knows its files.
        return []


def _refuse_other_work(branch: Branch, refs: Refs) -> None:
    begun = branch.state == CREATING and RECOVERING in branch.metadata
    if branch.state != READY and not begun:
        raise ConflictError(f"cannot recover branch {branch.name!r} of {refs.store.uri}: it is {branch.state}")


def _taken_over(branch: Branch, newest: int, refs: Refs, versions: Versions) -> Branch:
    """Begin to bring back the versions of a branch whose file exists, or take the place of an earlier recovery.

    The later recovery completes the branch, because it has the later list of manifests that their writers are deleting.
    """

    def begun(current: Branch) -> Branch:
        # Another recovery may have completed the branch, which may have commits by now. Its completion changed the
        # file, so the compare-and-swap fails and this function is called again.
        completed = current.state == READY and versions.newest(branch.name) is not None
        return current if completed else _begun(current, newest, refs)

    return refs.branches.change(branch, begun)


def _series(
    name: str, branch: Branch | None, refs: Refs, versions: Versions, *, only_file_lost: bool | None = None
) -> _Series:
    """Find the versions that the recovered branch will have: manifests in their places, else copies in `_expired/`.

    Example: the manifests 1 and 6 exist, `_expired/` has copies of the versions 2 to 5, and version 5 is a reset to
    version 2. The series has the versions 1, 2, 5 and, unless its writer is deleting it, 6; the versions 3 and 4, which
    the reset dropped, stay away.

    Args:
        name: The name of the branch.
        branch: The branch, if its file exists.
        refs: The branches of the table.
        versions: The versions of the table.
        only_file_lost: `_Series.only_file_lost` of an earlier call, from before the file was written.
    """
    withdrawn = {commit for fenced, number, _, commit in fences(refs) if fenced == name and number == WITHDRAWN}
    # A writer may delete its manifest after it was listed.
    states = [state for number in versions.numbers(name) if (state := versions.find(name, number)) is not None]
    stored = [
        _StoredVersion(state.number, state.id, state.transaction) for state in states if state.id not in withdrawn
    ]
    copies = sorted(_copies(name, versions), key=lambda copy: copy.modified)
    readable = [copy for copy in copies if copy.problem is None]
    # Earlier branches of the name may have left copies too.
    forks = [version for version in (*readable, *stored) if version.is_fork(branch)]
    if not forks:
        _refuse_damaged(copies)
        return _Series({}, {}, only_file_lost=False)
    fork = max(forks, key=lambda version: (version.modified, version.number))
    owners = _owners_of(fork, forks)
    own = {copy.number: copy for copy in readable if copy.owner in owners}
    if only_file_lost is None:
        only_file_lost = branch is None and not fork.data
    # If the versions had been deleted, a manifest with another commit id than the copy of its number was put late.
    in_place = [state for state in stored if only_file_lost or state.id == own.get(state.number, state).id]
    series = own | {version.number: version for version in in_place}
    withdrawing = [state for state in states if state.id in withdrawn]
    late = {state.number: state.id for state in withdrawing if series.get(state.number, fork).id != state.id}
    targets = {number: reset_target(version.transaction) for number, version in series.items()}
    resets = [(target, number) for number, target in targets.items() if target is not None]
    dropped = {number for number in series for target, reset in resets if target < number < reset}
    # A damaged copy of an earlier branch does not matter. A damaged copy of a later branch does: without it, the
    # earlier branch would come back in its place.
    _refuse_damaged(
        copy
        for copy in copies
        if (copy.number not in series if copy.owner in owners else copy.modified > fork.modified)
    )
    surviving = {number: series[number] for number in sorted(series.keys() - dropped) if number >= fork.number}
    return _Series(surviving, late, only_file_lost)


def _refuse_damaged(copies: Iterable[_StoredVersion]) -> None:
    problems = [copy.problem for copy in copies if copy.problem is not None]
    if problems:
        raise problems[-1]


def _owners_of(fork: _StoredVersion, forks: Iterable[_StoredVersion]) -> set[str]:
    """Return the digests of the branch's id that the keys of its copies may have, given its first version."""
    branch_id = "" if fork.transaction is None else fork.transaction.uuid
    forks_of_branch = (
        version for version in forks if version.transaction is not None and version.transaction.uuid == branch_id
    )
    return {owner_digest(branch_id), *(version.owner for version in forks_of_branch)}


def _with_name_taken(name: str, series: _Series, refs: Refs, versions: Versions) -> Branch:
    """Create the file of a branch that has none, unless another branch has its name or its id."""
    # The first version of a series is a fork.
    first, fork = next(iter(series.versions.items()))
    transaction = fork.transaction
    if transaction is None or not isinstance(transaction.operation, Clone):
        raise refs.branch_not_found(name)
    refuse_tagged(name, refs)
    _refuse_renamed(name, transaction.uuid, series.newest, refs)
    _refuse_without_files(name, series, refs, versions)
    parent = _fork_point(name, transaction.operation, refs, versions)
    begun = _begun(_described(name, first, transaction.uuid, parent), series.newest, refs)
    branch = refs.branches.add(begun)
    if branch.id != begun.id:
        raise ConflictError(f"cannot recover branch {name!r} of {refs.store.uri}: another branch took its name")
    own = branch.metadata.get(RECOVERING) == begun.metadata[RECOVERING]
    return branch if own else _taken_over(branch, series.newest, refs, versions)


def _check(branch: Branch, series: _Series, refs: Refs, versions: Versions, *, owns_name: bool) -> None:
    """Refuse to bring back a branch whose parent is gone, whose name another branch had, or that was renamed.

    Args:
        branch: The branch that a recovery has begun to bring back; its file exists.
        series: The versions of the branch.
        refs: The branches of the table.
        versions: The versions of the table.
        owns_name: Whether this recovery wrote the file. If it refuses, it deletes the file again.
    """
    # The check is repeated, since the recovery that wrote the file may have died before its own check.
    refuse_dying_parent(branch, refs, versions)
    try:
        _refuse_name_taken(branch, series, refs)
        # The check is repeated, since two names of the branch may be recovered at the same time.
        _refuse_renamed(branch.name, branch.id, series.newest, refs)
    except (ConflictError, RefNotFoundError):
        if owns_name:
            abandon_creation(branch, refs, versions)
        raise


def _refuse_name_taken(branch: Branch, series: _Series, refs: Refs) -> None:
    first = next(iter(series.versions.values()), None)
    if first is None or not first.is_fork(branch):
        raise ConflictError(
            f"cannot recover branch {branch.name!r} of {refs.store.uri}: another branch had its name meanwhile"
        )


def _begun(branch: Branch, newest: int, refs: Refs) -> Branch:
    if branch.state not in (CREATING, READY):
        raise ConflictError(f"cannot recover branch {branch.name!r} of {refs.store.uri}: it is {branch.state}")
    # A deletion that comes in between fences off every number that is about to come back.
    newest = max(newest, branch.last[0] if branch.last and branch.state == CREATING else 0)
    return with_metadata(branch, {STATE: CREATING, RECOVERING: uuid.uuid4().hex, LAST: f"{newest} {int(time.time())}"})


def _with_last(branch: Branch, series: _Series, refs: Refs) -> Branch:
    """Record the highest number that is to come back, if the second listing has a higher number than the first."""
    if not series.versions:
        raise _overtaken(branch, refs)
    newest = series.newest
    if branch.last is not None and branch.last[0] >= newest:
        return branch

    def recorded(current: Branch) -> Branch:
        if not _is_same(current, branch):
            raise _overtaken(branch, refs)
        return with_metadata(current, {LAST: f"{newest} {int(time.time())}"})

    return refs.branches.change(branch, recorded)


def _is_same(current: Branch, branch: Branch) -> bool:
    """Tell whether the recovery of `branch` is still under way; a recovery that replaced it has another id."""
    return current.state == CREATING and current.metadata.get(RECOVERING) == branch.metadata.get(RECOVERING)


def _overtaken(branch: Branch, refs: Refs) -> ConflictError:
    return ConflictError(
        f"cannot recover branch {branch.name!r} of {refs.store.uri}: another process deleted or recovered it"
    )


def _refuse_renamed(name: str, branch_id: str, newest: int, refs: Refs) -> None:
    """Refuse an earlier name of a branch that was renamed, if the later name has a file or copies of later versions."""
    branches = [branch for branch in refs.branches.all().values() if branch.id == branch_id and branch.name != name]
    if branches:
        instead = f"the branch is called {branches[0].name!r} now"
        raise RefNotFoundError(name, refs.branches.known(), refs.store.uri, "branch", instead)
    # Copies are listed after the files: a branch that was deleted between the two lists has left copies by then.
    copies = {alias: number for alias, number in newest_copies_of(refs.store, branch_id).items() if alias != name}
    latest = max(copies, key=lambda alias: copies[alias], default=name)
    if copies.get(latest, 0) > newest:
        instead = f"the branch has later versions under the name {latest!r}, which was deleted; recover {latest!r}"
        raise RefNotFoundError(name, refs.branches.known(), refs.store.uri, "branch", instead)


def _completed(branch: Branch, series: _Series, refs: Refs, versions: Versions) -> Branch:
    """Put the versions in their places, and then let the branch take commits."""
    for number, late in series.late.items():
        delete_manifest(versions.manifest_path(branch.name, number), late, versions.store)
    # A version without bytes is a manifest in its place.
    restored = {number: version.data for number, version in series.versions.items() if version.data}
    # Oldest first: an interrupted recovery leaves a series without gaps, which the next recovery continues.
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
        recovery_id = current.metadata[RECOVERING]
        return with_metadata(current, {STATE: READY, RECOVERING: None, RECOVERED: recovery_id, LAST: None})

    try:
        return refs.branches.change(branch, ready)
    except ConflictError:
        stored = refs.branches.find(branch.name)
        # The branch was deleted meanwhile, so the versions that were put after the deletion are deleted. No other
        # branch of the name has these numbers, which are below the fence.
        if stored is None or stored.id != branch.id or stored.state == DELETING:
            versions.store.delete_many([versions.manifest_path(branch.name, number) for number in restored])
            versions.forget()
            # Another process may have recovered the branch since it was read.
            put_back(branch, restored.keys(), refs, versions)
        raise


def _copies(name: str, versions: Versions) -> Iterator[_StoredVersion]:
    """Read the copies of manifests that branches of the name had."""
    for branch, number, entry, owner in parsed_copies(versions.store.walk(f"{EXPIRED}/{name}")):
        # The copies of a branch `a/b` lie below the folder with the copies of `a`.
        data = versions.store.get(entry.key) if branch == name else None
        if data is not None:
            try:
                transaction = decode_manifest_file(data, f"{versions.store.uri}/{entry.key}")[1]
            except CorruptFileError as error:
                # Copies are not synced, so a power cut may leave an empty one.
                yield _StoredVersion(number, "", None, b"", entry.modified, owner, error)
            else:
                yield _StoredVersion(number, commit_id(data), transaction, data, entry.modified, owner)


def _fork_point(name: str, fork: Clone, refs: Refs, versions: Versions) -> _ForkPoint:
    of = fork.ref_name or layout.MAIN
    parent = None if of == layout.MAIN else refs.branches.find(of)
    if of != layout.MAIN and parent is None:
        raise RefNotFoundError(of, refs.branches.known(), refs.store.uri, "branch", f"{name!r} was forked from it")
    state = versions.find(of, fork.ref_version)
    return parent, fork.ref_version, 0 if state is None else versions.manifest_size(state)


def _described(name: str, first: int, branch_id: str, fork_point: _ForkPoint) -> Branch:
    """Return the branch whose first version has this number and fork point."""
    parent, number, size = fork_point
    described = new_branch(name, parent, version=number, manifest_size=size, metadata={})
    lineage = (*described.lineage[:-1], (described.lineage[-1][0], branch_id))
    own = {FIRST: str(first)} if first != number else {}
    return with_metadata(replace(described, id=branch_id, lineage=lineage), {STATE: CREATING, **own})
