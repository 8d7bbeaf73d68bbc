"""Branches over many tables: the tables that a branch touched, and the end of a branch.

A branch of the repository is a log entry that names its fork point, and a mark for each table that was forked to it;
the rows are on the branch of that name in each table. When the branch was published, its last entry names the commit
that has the rows, and the name may be used again. Where only some of its tables were published, an entry names that
commit, and the branch stays.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    InvalidRefNameError,
    NotFoundError,
    RefNotFoundError,
)
from lance_dagster.format.layout import MAIN, PUBLISHED
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import (
    create_branch,
    delete_branch,
    refuse_reserved_keys,
    retire_branch,
)
from lance_dagster.history.refs.ref_files import CLOSING, DELETING
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import find_merged
from lance_dagster.repository.commits.ref_log import next_entry, with_properties
from lance_dagster.repository.commits.release_tags import refuse_taken
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit
from lance_dagster.repository.publish.staging import for_each_table, load
from lance_dagster.repository.registry import RepositoryContext

MERGED = "merged"
"""Property of an entry that ends a branch, or a part of it: the id of the commit that contains the changes."""


def fork_table(repository: RepositoryContext, name: str, branch: str, *, metadata: Mapping[str, str]) -> TableContext:
    """Create a branch of a table that a publication of the branch finds; return the context of the table."""
    check_branch_name(branch)
    if branch.startswith(PUBLISHED):
        raise InvalidRefNameError("branch", branch, f"{PUBLISHED!r} begins the names of versions that commits hold")
    # Before the mark of the table: a branch with other metadata could not be read.
    refuse_reserved_keys(metadata)
    logs = repository.logs
    # Registered before anything is written: a misspelt table must not leave a branch that waits for a publication.
    table_id = repository.registry.register(name)
    # After the registration is read: it tells whether another process made the table again.
    context = repository.table(name)
    begun = logs.newest("branch", branch)
    if begun is None or begun.deleted:
        refuse_taken(logs, branch, "branch")
        # The answer does not matter: where another process forks a table at the same moment, its entry serves both.
        logs.append("branch", branch, next_entry(begun, "fork", logs.current("branch", MAIN).commit))
    # The mark comes before the branch: rows on a branch that no publication finds would never be seen.
    logs.touch(branch, table_id)
    try:
        create_branch(branch, context.head(MAIN), context.refs, context.versions, exist_ok=True, metadata=metadata)
    except (AlreadyExistsError, ConflictError, InvalidInputError):
        _withdraw(repository, branch, table_id)
        raise
    return context


def _withdraw(repository: RepositoryContext, branch: str, table_id: str) -> None:
    """Delete the mark of a table whose branch was refused, and the branch of the repository when it has no other."""
    logs = repository.logs
    logs.untouch(branch, table_id)
    newest = logs.newest("branch", branch)
    # Another process may fork a table between this look and the entry; a publication finds it by its mark all the same.
    if newest is not None and not newest.deleted and not logs.touched(branch):
        logs.append("branch", branch, next_entry(newest, "delete", "", reason="the fork was refused"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedTables:
    """The tables of a branch that are to be published.

    Attributes:
        names: Their names in the newest commit.
        removed: By id, the names of those that were removed from the repository since; the id where no name is known.
        has_others: Whether the branch touched other tables than those that were asked for.
    """

    names: tuple[str, ...]
    removed: Mapping[str, str]
    has_others: bool


def touched_tables(
    repository: RepositoryContext, branch: str, head: RepositoryCommit, wanted: Collection[str] | None = None
) -> TouchedTables:
    """Return the tables that were forked to a branch, or the wanted ones, whether they were forked or not.

    Raises:
        RefNotFoundError: There is no table of a wanted name.
    """
    for asked in wanted or ():
        # Checked before its branch is read: a branch that is gone counts as published.
        if asked not in head.tables and not repository.table(asked).versions.has_versions(MAIN):
            raise RefNotFoundError(asked, sorted(head.tables), repository.root, "table")
    names, removed = {at.id: name for name, at in head.tables.items()}, {}
    ids = repository.logs.touched(branch)
    for table_id in set(ids) - names.keys():
        # A table that was never committed is known to the register only.
        name = repository.registry.name_of(table_id)
        if name is not None and repository.registry.id_of(name) == table_id:
            names[table_id] = name
        else:
            removed[table_id] = name or table_id
    found = {names[table_id] for table_id in ids if table_id in names}
    if wanted is not None:
        return TouchedTables(names=tuple(wanted), removed={}, has_others=bool(removed or found - {*wanted}))
    return TouchedTables(names=tuple(sorted(found)), removed=removed, has_others=False)


def end_branch(
    repository: RepositoryContext, branch: str, touched: TouchedTables, *, merged: str, known: RefEntry | None
) -> list[str]:
    """Record which commit contains a branch, and delete the branch in each table; return what was kept, and why.

    The branch stays where other tables of it wait. Its branches in tables that were removed stay there. `known` is
    its newest entry, as it was read before.
    """
    logs = repository.logs
    newest = logs.newest("branch", branch, known=known)
    stays = touched.has_others and newest is not None and not newest.deleted
    # Ended before with another commit: rows were committed to the branch after that one.
    if newest is None or newest.properties.get(MERGED) != merged or newest.deleted == stays:
        # A branch that stays names the commit, so that a collection keeps it.
        entry = next_entry(newest, "commit", merged) if stays else next_entry(newest, "delete", "")
        logs.append("branch", branch, with_properties(entry, {MERGED: merged}))
    tables = logs.commit(merged).tables

    def end(name: str) -> str | None:
        context, at = repository.table(name), tables.get(name)
        try:
            # The commit is asked, not `main` of the table, which may lag behind it.
            published = context.head(MAIN) if at is None else load(context, at)
            _delete_published(context, branch, published)
        except ConflictError as error:
            return f"{branch} of {name}: {error}"
        # The mark goes last: after a crash, a repeated publication looks only at tables that have one.
        logs.untouch(branch, repository.registry.register(name) if at is None else at.id)
        return None

    kept = for_each_table(end, touched.names)
    for table_id in touched.removed:
        logs.untouch(branch, table_id)
    # The other tables may have been published at the same time. Each publication deletes its own marks before it
    # looks for others, so the last one finds none.
    if stays and not logs.touched(branch):
        last = logs.newest("branch", branch)
        if last is not None and not last.deleted:
            logs.append("branch", branch, with_properties(next_entry(last, "delete", ""), last.properties))
    return [kept_branch for _, kept_branch in sorted(kept.items()) if kept_branch is not None]


def _delete_published(context: TableContext, branch: str, published: State) -> None:
    """Delete the branch of a table.

    Raises:
        ConflictError: It has commits that the published version does not contain, or something refers to it.
    """
    newest = context.find_head(branch)
    if newest is not None:
        # Rows may have been committed to the branch after it was read; those are not published.
        if find_merged(context, newest, published) is None:
            raise ConflictError("it has commits that were not published")
        retire_branch(newest, context.refs, context.versions)
        return
    # An interrupted publication deleted it before, or began to.
    found = context.refs.branch(branch)
    if found is not None and found.state in (CLOSING, DELETING):
        delete_branch(branch, context.refs, context.versions)


def has_more(repository: RepositoryContext, branch: str, *, merged: str, names: Iterable[str]) -> bool:
    """Return whether a branch that was published has rows that its commit does not contain, in some table."""
    try:
        tables = repository.logs.commit(merged).tables
    except NotFoundError:
        # The commit was collected, so the newest commit tells which rows are not published.
        return True

    def more(name: str) -> bool:
        context, at = repository.table(name), tables.get(name)
        try:
            newest = context.head(branch)
        except RefNotFoundError:
            # A fork may have died between its mark and the branch.
            return False
        return at is None or find_merged(context, newest, load(context, at)) is None

    return any(for_each_table(more, names).values())


def head_of_branch(context: TableContext, name: str, branch: str) -> State:
    """Return the newest version of the branch of a table.

    Raises:
        RefNotFoundError: The table has no such branch.
    """
    try:
        return context.head(branch)
    except RefNotFoundError as error:
        raise RefNotFoundError(branch, error.known, context.uri, "branch", f"{name} was not forked to it") from error
