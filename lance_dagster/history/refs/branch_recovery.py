"""Bring back a branch whose file or versions were deleted though its commits were acknowledged.

A branch is its file and its manifests. Where the file is gone, its content follows from the manifests: the first
version of a branch clones its fork point, under the branch's id. Where manifests are gone, `_expired/` has copies of
them for about a day; the files that they name are kept as long. So a branch comes back from either half, and nothing
that exists is overwritten.
"""

from dataclasses import replace

from lance_dagster.errors import ConflictError, RefNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_manifest_file, encode_transaction
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.history.inventory import EXPIRED, expired_copies
from lance_dagster.history.refs.ref_files import CREATING, FIRST, READY, STATE, Branch, new_branch, with_metadata
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import put_once

# The bytes of a copy (empty for a manifest that is in its place), and the transaction of the version.
_Found = tuple[bytes, Transaction | None]
# The parent (None for `main`), the number of the version there, and the size of its manifest.
_ForkPoint = tuple[Branch | None, int, int]


def recover_branch(name: str, refs: Refs, versions: Versions) -> Branch:
    """Bring back a branch: its file from its first version, and its versions from the copies of expired manifests.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        RefNotFoundError: Nothing of such a branch is left, or the branch that it was forked from is gone.
        ConflictError: A branch of the name is being created, deleted or reset.
    """
    check_branch_name(name)
    branch = refs.branch(name)
    if branch is not None and branch.state != READY:
        raise ConflictError(f"cannot recover branch {name!r} of {refs.store.uri}: it is {branch.state}")
    if branch is not None and versions.newest(name) is not None:
        return branch
    found = _copies(name, versions) | _stored(name, versions)
    # The newest fork: an earlier branch of the name may have left copies too, and those have lower numbers.
    first = max((number for number, (_, made) in found.items() if _is_fork(made, branch)), default=None)
    if first is None:
        raise refs.branch_not_found(name)
    made = found[first][1]
    if branch is None and made is not None and isinstance(made.operation, Clone):
        parent = _fork_point(name, made.operation, refs, versions)
        branch = _described(name, first, made.uuid, parent)
    if branch is None:
        raise refs.branch_not_found(name)
    # Oldest first: an interrupted recovery leaves a series without gaps, which the next one continues.
    for number in sorted(number for number in found if number >= first):
        _restore(name, number, found[number], versions)
    versions.forget()
    # The file comes last: a writer that found the branch before would commit on top of a part of the series.
    return refs.set_branch_state(refs.add_branch(branch), READY)


def _is_fork(made: Transaction | None, branch: Branch | None) -> bool:
    fork = made is not None and isinstance(made.operation, Clone)
    return fork and (branch is None or made is None or made.uuid == branch.id)


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


def _restore(name: str, number: int, found: _Found, versions: Versions) -> None:
    data, transaction = found
    if not data:
        return
    # The transaction comes first: a version without it would make later commits of other programs fail.
    if transaction is not None:
        path = layout.transaction_path(name, transaction.file_name)
        versions.store.put(path, encode_transaction(transaction), durable=False)
    put_once(versions.store, versions.manifest_path(name, number), data)
