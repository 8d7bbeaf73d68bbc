"""Undo what one commit of a repository did to its tables, and keep everything that came later."""

from collections.abc import Mapping

from lance_dagster.errors import ConflictError, InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import create_branch, delete_branch
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import MergeOptions, merge
from lance_dagster.merge.picks import PickOptions, restore
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.commit_tables import CommitRequest
from lance_dagster.repository.publish.staging import TableChange, landed_at, stage_change
from lance_dagster.repository.repository_context import RepositoryContext

_REVERTS = "reverts"
"""Property of a commit: the one that it takes back."""


def revert_request(
    repository: RepositoryContext, commit: RepositoryCommit, *, message: str, properties: Mapping[str, str]
) -> CommitRequest:
    """Return the commit that takes the change of another commit back.

    Rows that the commit added go, rows it deleted come back, for all of its tables at once. A table that it added is
    removed, one that it removed is named again.

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
    before = repository.logs.commit(commit.parents[0])
    names = commit.changed_from(before)
    options = MergeOptions(message=said, properties=properties)

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        old, new = before.tables.get(name), commit.tables.get(name)
        if new is None or old is None or dest is None:
            # The commit removed the table; it is named again as it was.
            return old if dest is None else None
        context = repository.table(name)
        first, last = _ends(context, old, new)
        change = TableChange.of(repository.registry, name, dest, options=options)

        def undo(branch: str) -> None:
            # One merge of all that is undone: its versions, taken back one by one, could contradict each other.
            undo_branch = f"{branch}-undo"
            create_branch(undo_branch, last, context.refs, context.versions, exist_ok=True, metadata={})
            restore(context, first, undo_branch, PickOptions(message=said, properties=dict(properties)))
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


def _to_undo(repository: RepositoryContext, commit: RepositoryCommit) -> RepositoryCommit | None:
    """Return the commit whose change has to be undone, so that the change of a commit is gone; None when it is gone.

    A commit that was taken back, and whose revert was taken back in turn, is there by the last of these.
    """
    reverts: dict[str, RepositoryCommit] = {}
    later = repository.head()
    while later.generation > commit.generation and later.parents:
        # Newest first: of two reverts of one commit, the newest one counts.
        if _REVERTS in later.properties:
            reverts.setdefault(later.properties[_REVERTS], later)
        later = repository.logs.commit(later.parents[0])
    undone = reverts.get(commit.id)
    while undone is not None:
        again = reverts.get(undone.id)
        if again is None:
            return None
        commit, undone = again, reverts.get(again.id)
    return commit


def _ends(context: TableContext, old: TableVersion, new: TableVersion) -> tuple[State, State]:
    """Return the versions of `main` between which a commit changed a table."""
    first, last = landed_at(context, old), landed_at(context, new)
    if first is None or last is None or first.number > last.number:
        raise ConflictError(
            f"{new} of {context.uri} is not on main as it was published, because another program committed there at "
            "the same time: revert it in the table, and commit that"
        )
    return first, last
