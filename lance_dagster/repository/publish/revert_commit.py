"""Undo what one commit of a repository did to its tables, and keep everything that came later."""

from collections.abc import Mapping
from contextlib import suppress

from lance_dagster.errors import ConflictError, InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import create_branch, delete_branch
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import MergeOptions, merge
from lance_dagster.merge.picks import PickOptions, restore
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.commit_tables import CommitRequest
from lance_dagster.repository.publish.staging import TableChange, capture, landed_at, load, stage_change
from lance_dagster.repository.repository_context import RepositoryContext

_REVERTS = "reverts"
"""Property of a commit: the one that it takes back."""


def revert_request(
    repository: RepositoryContext, commit: RepositoryCommit, *, message: str, properties: Mapping[str, str]
) -> CommitRequest:
    """Return the request for a commit that takes the change of another commit back.

    Rows that the commit added are deleted and rows that it deleted come back, in all of its tables at once. A table
    that it added is removed, and one that it removed is named again.

    Raises:
        InvalidInputError: It is the first commit, which changed nothing.
        ConflictError: A version is not on `main` of its table, so that its change is not known.
    """
    undone = _to_undo(repository, commit)
    said = message or f"revert {commit.short_id}: {commit.message}"
    if undone is None:
        # A call that is repeated after a crash finds its commit and does nothing.
        return CommitRequest(branch=MAIN, stage=lambda _, __: None, names=(), message=said)
    commit = undone
    if not commit.parents:
        raise InvalidInputError(f"commit {commit.short_id} is the first one: there is nothing to take back")
    # A commit is compared with its first parent, as the log shows it: that is the state of `main` before it.
    before = repository.logs.commit(commit.parents[0])
    names = commit.changed_from(before)
    options = MergeOptions(message=said, properties=properties)

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        old, new = before.tables.get(name), commit.tables.get(name)
        if new is None or old is None or dest is None:
            # Where the commit removed the table, it is named again as it was. A table that a later commit removed stays
            # removed.
            return _named_again(repository, name, old) if old and dest is None and new is None else None
        context = repository.table(name)
        first, last = _ends(context, old, new)
        change = TableChange.of(repository.registry, name, dest, options=options)

        def undo(branch: str) -> None:
            # The change of a commit may be many versions of the table. They are undone by one merge, since versions
            # that are taken back one by one could be in conflict with each other.
            undo_branch = f"{branch}-undo"
            # The name follows from the change, so a call that is repeated after a crash goes on with this branch.
            create_branch(undo_branch, last, context.refs, context.versions, exist_ok=True, metadata={})
            restore(context, first, undo_branch, PickOptions(message=said, properties=dict(properties)))
            # The merge base is the version after the change, so the merge keeps what came later on the dest.
            merge(context, context.head(undo_branch), branch, options)
            delete_branch(undo_branch, context.refs, context.versions)

        return stage_change(change, dest, undo, f"revert {commit.id}")

    return CommitRequest(
        branch=MAIN,
        stage=stage,
        names=names,
        removed=tuple(name for name in names if name not in before.tables),
        message=said,
        properties={**properties, _REVERTS: commit.id},
    )


def changed_by(repository: RepositoryContext, commit: RepositoryCommit) -> tuple[str, ...]:
    """Return the tables that a commit changed; none where that is not known, because its parent was collected."""
    with suppress(NotFoundError):
        return commit.changed_from(repository.logs.commit(commit.parents[0]) if commit.parents else None)
    return ()


def _named_again(repository: RepositoryContext, name: str, old: TableVersion) -> TableVersion:
    """Take a table that was removed back, at the version that it had."""
    if repository.registry.register(name) != old.id:
        raise ConflictError(f"another table is at {repository.table(name).uri} now; remove it before the revert")
    # Only old commits name the version, and a collection may be about to delete them, so it gets a tag of its own.
    return capture(repository.table(name), old.id, load(repository.table(name), old))


def _to_undo(repository: RepositoryContext, commit: RepositoryCommit) -> RepositoryCommit | None:
    """Return the commit to undo, so that the change of a commit is gone; None when it is gone already.

    Where a revert of the commit was itself reverted, that second revert brought the change back, and it is the one to
    undo.
    """
    reverts: dict[str, RepositoryCommit] = {}
    later = repository.head()
    while later.generation > commit.generation and later.parents:
        # The loop goes from the newest commit back, so `setdefault` keeps the newest of several reverts of one commit.
        if _REVERTS in later.properties:
            reverts.setdefault(later.properties[_REVERTS], later)
        later = repository.logs.commit(later.parents[0])
    undone = reverts.get(commit.id)
    # Each revert can be reverted: an even number of them leaves the change in place, an odd number has taken it away.
    while undone is not None:
        again = reverts.get(undone.id)
        if again is None:
            return None
        commit, undone = again, reverts.get(again.id)
    return commit


def _ends(context: TableContext, old: TableVersion, new: TableVersion) -> tuple[State, State]:
    """Return the versions of `main` between which a commit changed a table."""
    first, last = landed_at(context, old), landed_at(context, new)
    # Both have to be versions of `main`, in this order: what lies between them is then the change of the commit.
    if first is None or last is None or first.number > last.number:
        raise ConflictError(
            f"{new} of {context.uri} is not on main as it was published, because another program committed there at "
            "the same time: revert it in the table, and commit that"
        )
    return first, last
