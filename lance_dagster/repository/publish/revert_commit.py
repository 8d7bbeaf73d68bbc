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
from lance_dagster.repository.candidates.closed_writes import WriteChanges
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.commits.promotions import by_id
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.commit_tables import CommitRequest
from lance_dagster.repository.publish.staging import (
    Staging,
    TableChange,
    capture,
    landed_at,
    load,
    stage_change,
)
from lance_dagster.repository.registry import RepositoryContext

_NONE: tuple[str, None] = "", None
_REVERTS = "reverts"
"""Property of a commit: the id of the commit that it reverts."""


def revert_request(
    repository: RepositoryContext, commit: RepositoryCommit, *, message: str, properties: Mapping[str, str]
) -> CommitRequest:
    """Return the request for a commit that reverts another commit.

    Rows that the commit added are deleted and rows that it deleted come back, in all of its tables at once. A table
    that the commit added is removed, and a table that it removed is added again. Tables are found by their ids,
    whatever their present names; the message names the tables that were removed since.

    Raises:
        InvalidInputError: The commit is the first one; or it changed no table, as a discard; or it gave a table another
            name.
        ConflictError: A version of the commit is not on `main` of its table, so that its change is not known; or all
            tables that the commit changed were removed since.
    """
    head = repository.head()
    full_message = message or f"revert {commit.short_id}: {commit.message}"
    commit, is_undone = _to_undo(repository, commit, head)
    if not commit.parents:
        raise InvalidInputError(f"commit {commit.short_id} is the first one: there is nothing to revert")
    if commit.tables == repository.logs.commit(commit.parents[0]).tables:
        raise _changed_nothing(repository, commit, head)
    changes, missing = _changes(repository, commit, head, is_undone=is_undone)
    if missing:
        full_message += f" (without {', '.join(missing)}, removed since)"
    options, staging = MergeOptions(message=full_message, properties=properties), Staging(repository.registry)

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        old, new = changes[name]
        if new is None and old is not None:
            # Another process may have reverted the removal since the head was read.
            return None if dest is not None and dest.id == old.id else _named_again(repository, name, old)
        if new is None or dest is None or dest.id != new.id:
            # `changes` has the names of the head that was read; another table may have the name by now.
            raise ConflictError(f"table {name!r} of {repository.root} was moved or removed meanwhile; revert again")
        if old is None:
            return None
        ends = _ends(repository.table(name), old, new)
        change = staging.change(name, dest, options=options)
        return stage_change(change, dest, lambda branch: _undo(change, ends, branch), f"revert {commit.id}")

    return CommitRequest(
        branch=MAIN,
        stage=stage,
        names=tuple(changes),
        removed=tuple(name for name, (old, _) in changes.items() if old is None),
        message=full_message,
        properties={**properties, _REVERTS: commit.id},
        staging=staging,
        writes=WriteChanges() if is_undone else _undone_writes(repository, commit),
    )


def _changed_nothing(
    repository: RepositoryContext, commit: RepositoryCommit, head: RepositoryCommit
) -> InvalidInputError:
    """Return the error for a commit that changed no table; it names the newest commit that did."""
    newest, instead = head, ""
    with suppress(NotFoundError):
        while newest.parents:
            parent = repository.logs.commit(newest.parents[0])
            if newest.tables != parent.tables:
                instead = f"; the newest commit of {MAIN} that changed tables is {newest.short_id} ({newest.message})"
                break
            newest = parent
    return InvalidInputError(
        f"commit {commit.short_id} ({commit.message}) changed no table, so there is nothing to revert{instead}"
    )


def _undone_writes(repository: RepositoryContext, commit: RepositoryCommit) -> WriteChanges:
    """Return the recorded writes that the revert of a commit withdraws, and the writes that it brings back.

    Example: a commit published write 5 of a table, and restored a version of another table without write 3. Its revert
    withdraws 5 and brings back 3.
    """
    parent = repository.logs.commit(commit.parents[0])
    before, after = (
        {table_id: closed.published for table_id, closed in end.writes.items()} for end in (parent, commit)
    )
    none = NumberSet()
    return WriteChanges(
        withdraw={table_id: published - before.get(table_id, none) for table_id, published in after.items()},
        bring_back={table_id: published - after.get(table_id, none) for table_id, published in before.items()},
    )


def _undo(change: TableChange, ends: tuple[State, State], branch: str) -> None:
    """Undo, by a merge into a branch, what changed between two versions.

    One merge undoes all versions in between: if each had a merge of its own, these merges could conflict.
    """
    context, options, (before, after) = change.context, change.options, ends
    undo_branch = f"{branch}-undo"
    # The name is derived from the change, so a call that is repeated after a crash continues with this branch.
    create_branch(undo_branch, after, context.refs, context.versions, exist_ok=True, metadata={})
    properties = dict(options.properties or {})
    restore(context, before, undo_branch, PickOptions(message=options.message, properties=properties))
    # The merge base is the version after the change, so the merge keeps later changes of the dest.
    merge(context, context.head(undo_branch), branch, options)
    delete_branch(undo_branch, context.refs, context.versions)


def changed_by(repository: RepositoryContext, commit: RepositoryCommit, now: RepositoryCommit) -> tuple[str, ...]:
    """Return the tables that a commit changed, by their names in commit `now`; none where its parent was collected."""
    with suppress(NotFoundError):
        before = by_id(repository.logs.commit(commit.parents[0])) if commit.parents else {}
        after = by_id(commit)
        return tuple(name for name, at in now.tables.items() if before.get(at.id) != after.get(at.id))
    return ()


def added_by(repository: RepositoryContext, commit: RepositoryCommit, now: RepositoryCommit) -> dict[str, str]:
    """Return the ids of the tables that a commit added and commit `now` lacks, by their last names."""
    with suppress(NotFoundError):
        before = by_id(repository.logs.commit(commit.parents[0])) if commit.parents else {}
        lacking = by_id(commit).keys() - before.keys() - by_id(now).keys()
        names = {table_id: repository.registry.name_of(table_id) for table_id in sorted(lacking)}
        return {name: table_id for table_id, name in names.items() if name is not None}
    return {}


def _changes(
    repository: RepositoryContext, commit: RepositoryCommit, head: RepositoryCommit, *, is_undone: bool
) -> tuple[dict[str, tuple[TableVersion | None, TableVersion | None]], list[str]]:
    """Return the changes to undo: by the present name of each table, its versions before and after the commit.

    The second value has the names of tables whose change cannot be undone, because they were removed since. Where there
    is no other table, this raises. Of a commit that is undone already, only tables that were added or removed again
    since are returned: no table for a call that is repeated after a crash.
    """
    old, new, now = (by_id(state) for state in (repository.logs.commit(commit.parents[0]), commit, head))
    changes: dict[str, tuple[TableVersion | None, TableVersion | None]] = {}
    missing = []
    for table_id in sorted(old.keys() | new.keys()):
        (old_name, before), (new_name, after) = old.get(table_id, _NONE), new.get(table_id, _NONE)
        if before == after:
            _refuse_new_name(commit, old_name, new_name)
            continue
        if after is None:
            # Where the removal was reverted since, there is nothing to do.
            if table_id not in now and old_name in head.tables:
                raise ConflictError(f"another table is called {old_name!r} now; remove or move it before the revert")
            changes |= {} if table_id in now else {old_name: (before, None)}
        elif table_id in now and (before is None or not is_undone):
            changes[now[table_id][0]] = before, after
        elif before is not None and not is_undone:
            missing.append(new_name)
    if missing and not changes:
        raise ConflictError(f"tables that commit {commit.short_id} changed were removed since: {', '.join(missing)}")
    return changes, sorted(missing)


def _refuse_new_name(commit: RepositoryCommit, old_name: str, new_name: str) -> None:
    # A commit that gives a table another name changes no version.
    if old_name != new_name:
        error = f"commit {commit.short_id} gave table {old_name!r} the name {new_name!r}"
        raise InvalidInputError(f"{error}: to undo that, move the folder back and call move_table")


def _named_again(repository: RepositoryContext, name: str, old: TableVersion) -> TableVersion:
    """Register a table that was removed, and return its version from before the removal.

    Raises:
        ConflictError: Another table has the name by now.
    """
    if repository.registry.register(name) != old.id:
        raise ConflictError(f"another table is at {repository.table(name).uri} now; remove it before the revert")
    # Only old commits name the version, and a collection may be about to delete them: a new tag keeps the version.
    return capture(repository.table(name), old.id, load(repository.table(name), old))


def _to_undo(
    repository: RepositoryContext, commit: RepositoryCommit, head: RepositoryCommit
) -> tuple[RepositoryCommit, bool]:
    """Return the commit to undo so that the change of a commit goes away, and whether it is undone already.

    Where a revert of the commit was itself reverted, the second revert brought the change back and is the commit to
    undo. Example: for commit 1, with 2 a revert of 1, this returns 1 and True; with 3 a revert of 2, it returns 3 and
    False.
    """
    reverts: dict[str, RepositoryCommit] = {}
    later = head
    while later.generation > commit.generation and later.parents:
        # The loop goes from the newest commit back, so `setdefault` keeps the newest of several reverts of one commit.
        if _REVERTS in later.properties:
            reverts.setdefault(later.properties[_REVERTS], later)
        later = repository.logs.commit(later.parents[0])
    undone = reverts.get(commit.id)
    # After an even number of reverts of reverts the change is in place, after an odd number it is undone.
    while undone is not None:
        again = reverts.get(undone.id)
        if again is None:
            return commit, True
        commit, undone = again, reverts.get(again.id)
    return commit, False


def _ends(context: TableContext, old: TableVersion, new: TableVersion) -> tuple[State, State]:
    """Return the versions of `main` between which a commit changed a table."""
    before, after = landed_at(context, old), landed_at(context, new)
    # Both have to be versions of `main`, in this order: the versions in between are then the change of the commit.
    if before is None or after is None or before.number > after.number:
        raise ConflictError(
            f"{new} of {context.uri} is not on main as it was published, because another program committed there at "
            "the same time: revert it in the table, and commit that"
        )
    return before, after
