"""Undo what one commit of a repository did to its tables, and keep everything that came later."""

from collections.abc import Mapping

from lance_dagster.errors import ConflictError, InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import TableContext
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.merge.picks import PickOptions, revert
from lance_dagster.repository.commit_tables import CommitRequest
from lance_dagster.repository.commits.ref_log import RefLogs
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.registry import Registry
from lance_dagster.repository.staging import TableChange, landed_at, stage_change


def revert_request(
    logs: RefLogs, registry: Registry, commit: RepositoryCommit, *, message: str, properties: Mapping[str, str]
) -> CommitRequest:
    """Return the commit that takes the change of another commit back.

    Rows that the commit added go, rows it deleted come back, for all of its tables at once. A table that it added is
    removed, one that it removed is named again.

    Raises:
        InvalidInputError: It is the first commit, which changed nothing.
        ConflictError: A version is not on `main` of its table, so that its change is not known.
    """
    if not commit.parents:
        raise InvalidInputError(f"commit {commit.short_id} is the first one: there is nothing to take back")
    before = logs.commit(commit.parents[0])
    names = commit.changed_from(before)
    said = message or f"revert {commit.short_id}: {commit.message}"
    options = MergeOptions(message=said, properties=properties)

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        old, new = before.tables.get(name), commit.tables.get(name)
        if new is None or old is None or dest is None:
            # The commit removed the table; it is named again as it was.
            return old if dest is None else None
        context = registry.context(name)
        undone = _range(context, old, new)
        change = TableChange(context=context, table_id=dest.id, sources=(), options=options)

        def undo(branch: str) -> None:
            for number in undone:
                state = context.versions.load(MAIN, number, MAIN)
                parent = 1 if len(context.versions.describe(state).parents) > 1 else None
                picked = PickOptions(parent=parent, message=said, properties=dict(properties))
                revert(context, state, branch, picked)

        return stage_change(change, dest, undo, f"revert {commit.id}")

    return CommitRequest(
        branch=MAIN,
        stage=stage,
        names=names,
        removed=tuple(name for name in names if name not in before.tables),
        message=said,
        properties={**properties, "reverts": commit.id},
    )


def _range(context: TableContext, old: TableVersion, new: TableVersion) -> list[int]:
    """Return the numbers of the versions of `main` that lead from one version to another, newest first."""
    first, last = landed_at(context, old), landed_at(context, new)
    if first is None or last is None or first.number > last.number:
        raise ConflictError(
            f"{new} of {context.uri} is not on main as it was published, because another program committed there at "
            "the same time: revert it in the table, and commit that"
        )
    return [number for number in reversed(context.versions.numbers(MAIN)) if first.number < number <= last.number]
